//! Two namespaces and what joins them: our switch, a Linux bridge, Open vSwitch in user
//! space. What is measured between them runs with its server on core 0 and its client on
//! core 1 unless said otherwise.

use crate::load::ovs::{self, Ovs, ran};
use e2e::{Instance, Namespace};
use rustix::process::{Pid, Signal};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Two of them.
pub struct Pair {
    /// The client's namespace.
    pub a: Namespace,
    /// The server's.
    pub b: Namespace,
    /// The server's address.
    pub address: &'static str,
    /// What joins them, with its version.
    pub name: String,
    /// Our switch's process, or the operator's.
    pub switch: Option<u32>,
    // Dropped behind the namespaces.
    joined: Joined,
}

enum Joined {
    Ours(Box<Instance>),
    Circuits(Box<Instance>),
    /// The same, with the library of rings loaded for every program.
    Rings(Box<Instance>),
    Proxied(Box<Instance>),
    Bridge(#[expect(dead_code, reason = "kept for as long as the pair is")] Namespace),
    /// Both in the first namespace.
    Loopback,
    Ovs(Box<Ovs>),
}

/// How Open vSwitch has its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `userspace-tso-enable`, the namespaces' offloads left on.
    Tso,
    /// AF_XDP ports; offloads off, which it has not.
    Afxdp,
}

/// What joins a pair rests.
pub struct Resting<'a>(&'a Pair);

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        let _ = self.0.rest(false);
    }
}

impl Pair {
    /// Joined by our switch, by a veth each as the peers are; `tenant` are more settings of the tenant.
    pub fn ours(tenant: &[&str]) -> Result<Pair, String> {
        let (a, b) = (Namespace::make()?, Namespace::make()?);
        let instance = Instance::start()?;
        let mut text = String::from("version: 1\ntenants:\n  - name: red\n");
        for line in tenant {
            text += &format!("    {line}\n");
        }
        text += "    subnets: [{ name: lan, prefixes: [10.9.0.0/24], gateway: [10.9.0.254] }]\n    endpoints:\n";
        for (name, host, at) in [("a", 1, &a), ("b", 2, &b)] {
            text += &format!(
                "      - {{ name: {name}, subnet: lan, addresses: [10.9.0.{host}], attach: {{ veth: {{ namespace: {}, interface: eth0 }} }} }}\n",
                at.name
            );
        }
        instance.apply(&text)?;
        let switch = Some(instance.pid("red")?);
        Ok(Pair {
            a,
            b,
            address: "10.9.0.2",
            name: format!(
                "bulkhead, veth, {}",
                match tenant {
                    [] => "adaptive".to_owned(),
                    words => words.join(", "),
                }
            ),
            switch,
            joined: Joined::Ours(Box::new(instance)),
        })
    }

    /// Endpoints of circuits: the namespaces are not used.
    pub fn circuits() -> Result<Pair, String> {
        let (a, b) = (Namespace::make()?, Namespace::make()?);
        let instance = Instance::start()?;
        instance.apply(
            "version: 1
tenants:
  - name: red
    subnets: [{ name: lan, prefixes: [10.9.0.0/24], gateway: [10.9.0.254] }]
    endpoints:
      - { name: a, subnet: lan, addresses: [10.9.0.1], attach: circuits }
      - { name: b, subnet: lan, addresses: [10.9.0.2], attach: { circuits: { sockets: 8192 } } }
",
        )?;
        let switch = instance.child("bulkhead-operator");
        Ok(Pair {
            a,
            b,
            address: "10.9.0.2",
            name: "bulkhead, kernel circuits".to_owned(),
            switch,
            joined: Joined::Circuits(Box::new(instance)),
        })
    }

    /// The same, whose programs have the library of rings loaded.
    pub fn rings() -> Result<Pair, String> {
        let mut pair = Pair::circuits()?;
        pair.name = "bulkhead, circuits with the library of rings".to_owned();
        if let Joined::Circuits(instance) = pair.joined {
            pair.joined = Joined::Rings(instance);
        }
        Ok(pair)
    }

    /// A client of circuits, and a server of packets alone: joined by the client's proxy and our
    /// switch.
    pub fn proxied() -> Result<Pair, String> {
        let (a, b) = (Namespace::make()?, Namespace::make()?);
        let instance = Instance::start()?;
        instance.apply(&format!(
            "version: 1
tenants:
  - name: red
    subnets: [{{ name: lan, prefixes: [10.9.0.0/24], gateway: [10.9.0.254] }}]
    endpoints:
      - {{ name: a, subnet: lan, addresses: [10.9.0.1], attach: {{ veth: {{ namespace: {}, circuits: {{}} }} }} }}
      - {{ name: b, subnet: lan, addresses: [10.9.0.2], attach: {{ veth: {{ namespace: {} }} }} }}
",
            a.name, b.name
        ))?;
        let switch = instance.child("bulkhead-proxy");
        Ok(Pair {
            a,
            b,
            address: "10.9.0.2",
            name: "bulkhead, circuits to packets by the proxy".to_owned(),
            switch,
            joined: Joined::Proxied(Box::new(instance)),
        })
    }

    /// Joined by veth and a bridge in a third namespace.
    pub fn bridge() -> Result<Pair, String> {
        let middle = Namespace::make()?;
        middle.ip("link add br0 type bridge")?;
        middle.ip("link set br0 up")?;
        let (a, b) = veths(&middle)?;
        for port in ["pa", "pb"] {
            middle.ip(&format!("link set {port} master br0"))?;
        }
        let kernel = ran(Command::new("uname").arg("-r"))?;
        Ok(Pair {
            a,
            b,
            address: "10.9.0.2",
            name: format!("Linux {} bridge, veth", kernel.trim()),
            switch: None,
            joined: Joined::Bridge(middle),
        })
    }

    /// One namespace's own loopback: nothing is between the two.
    pub fn loopback() -> Result<Pair, String> {
        let (a, b) = (Namespace::make()?, Namespace::make()?);
        a.ip("link set lo up")?;
        Ok(Pair {
            a,
            b,
            address: "127.0.0.1",
            name: "loopback".to_owned(),
            switch: None,
            joined: Joined::Loopback,
        })
    }

    /// Joined by veth and Open vSwitch in user space.
    pub fn ovs(kind: Kind) -> Result<Pair, String> {
        let mut settings = vec!["other_config:pmd-cpu-mask=0x1"];
        if kind == Kind::Tso {
            settings.push("other_config:userspace-tso-enable=true");
        }
        let ovs = Ovs::start(&settings)?;
        let (a, b) = veths(&ovs.namespace)?;
        for (port, at) in [("pa", &a), ("pb", &b)] {
            let mut words = vec!["add-port", "br0", port];
            if kind == Kind::Afxdp {
                without_offloads(at)?;
                words.extend(["--", "set", "Interface", port, "type=afxdp"]);
                words.push("options:xdp-mode=best-effort");
            }
            ovs.vsctl(&words)?;
            let error = ovs.vsctl(&["get", "Interface", port, "error"])?;
            if error.trim() != "[]" {
                return Err(format!("peer missing: Open vSwitch, {kind:?}: {error}"));
            }
        }
        // As the peers' notes have it: its main thread on the server's core.
        ran(Command::new("taskset").args(["-a", "-p", "-c", "0", &ovs.id().to_string()]))?;
        let name = match kind {
            Kind::Tso => format!("OVS {} userspace-tso, veth", ovs::version()?),
            Kind::Afxdp => format!("OVS {} afxdp, veth", ovs::version()?),
        };
        Ok(Pair {
            a,
            b,
            address: "10.9.0.2",
            name,
            switch: None,
            joined: Joined::Ovs(Box::new(ovs)),
        })
    }

    /// Whether they are joined by circuits.
    pub fn is_circuits(&self) -> bool {
        matches!(self.joined, Joined::Circuits(_) | Joined::Rings(_))
    }

    /// The process that mediates circuits, as it is now.
    pub fn operator(&self) -> Option<u32> {
        match &self.joined {
            Joined::Circuits(instance) | Joined::Rings(instance) => {
                instance.child("bulkhead-operator")
            }
            _ => None,
        }
    }

    /// Operators that died with a connection of the kernel's queue in their hands, which is lost then.
    pub fn taken(&self) -> Result<u64, String> {
        let (Joined::Circuits(instance) | Joined::Rings(instance)) = &self.joined else {
            return Ok(0);
        };
        let status = instance.ask(&["status"])?;
        let all = status["compartments"].as_array().into_iter().flatten();
        Ok(all.filter_map(|of| of["operator"]["taken"].as_u64()).sum())
    }

    /// Stops what joins them while another pair is measured, or lets it go on: what polls a
    /// core would take it from the other, or keep it awake for it.
    pub fn rest(&self, rests: bool) -> Result<(), String> {
        let mut processes = match &self.joined {
            Joined::Bridge(_)
            | Joined::Loopback
            | Joined::Circuits(_)
            | Joined::Rings(_)
            | Joined::Proxied(_) => return Ok(()),
            Joined::Ovs(ovs) => vec![ovs.id()],
            // Who watches over the switch first, and last again.
            Joined::Ours(instance) => {
                let watches = instance
                    .child("bulkhead-supervisor")
                    .ok_or("no supervisor")?;
                vec![watches, self.switch.ok_or("no switch")?]
            }
        };
        let signal = match rests {
            true => Signal::STOP,
            false => {
                processes.reverse();
                Signal::CONT
            }
        };
        for id in processes {
            let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
            rustix::process::kill_process(pid.ok_or("no process")?, signal)
                .map_err(|e| e.to_string())?;
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Stops it until what this gives is dropped.
    pub fn resting(&self) -> Result<Resting<'_>, String> {
        let resting = Resting(self);
        self.rest(true)?;
        Ok(resting)
    }

    /// A command in the client's (`false`) or server's namespace on a core.
    pub fn command(&self, server: bool, core: usize, program: &str) -> Command {
        let with_circuits = match &self.joined {
            Joined::Circuits(instance) | Joined::Rings(instance) => Some(instance),
            Joined::Proxied(instance) if !server => Some(instance),
            _ => None,
        };
        if let Some(instance) = with_circuits {
            let mut command = Command::new(e2e::program("bulkhead"));
            let socket = instance.run_dir().join("api.sock");
            let endpoint = if server { "red/b" } else { "red/a" };
            command.arg("--socket").arg(socket);
            command.args(["run", "--endpoint", endpoint]);
            if matches!(self.joined, Joined::Rings(_)) {
                command.arg("--rings");
            }
            command.args(["--", "taskset", "-c"]);
            command.arg(core.to_string()).arg(program);
            command.stdin(Stdio::null());
            return command;
        }
        let at = match server && !matches!(self.joined, Joined::Loopback) {
            true => &self.b,
            false => &self.a,
        };
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &at.name, "taskset", "-c"])
            .arg(core.to_string())
            .arg(program)
            .stdin(Stdio::null());
        command
    }

    /// Waits until a ping is answered.
    pub fn reaches(&self) -> Result<(), String> {
        for _ in 0..40 {
            let mut ping = self.command(false, 1, "ping");
            ping.args(["-c", "1", "-W", "1", "-q", self.address]);
            let done = ping.stdout(Stdio::null()).stderr(Stdio::null()).status();
            if done.is_ok_and(|status| status.success()) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(format!("{}: no ping is answered", self.name))
    }
}

/// A line in a namespace, which has to succeed; what it says.
pub fn done(at: &Namespace, line: &str) -> Result<String, String> {
    let said = at.sh(line)?;
    match said.ok() {
        true => Ok(said.out),
        false => Err(format!("{line}: {}", said.err.trim())),
    }
}

fn without_offloads(at: &Namespace) -> Result<(), String> {
    let said = at.sh("ethtool -K eth0 tx off tso off gso off gro off sg off")?;
    // It complains of those that follow from others, and of itself where it is not there.
    match said.code {
        126 | 127 => Err(format!("peer missing: ethtool: {}", said.err)),
        _ => Ok(()),
    }
}

/// The two namespaces, a veth each whose other end, `pa` or `pb`, is in the middle.
fn veths(middle: &Namespace) -> Result<(Namespace, Namespace), String> {
    let (a, b) = (Namespace::make()?, Namespace::make()?);
    for (at, port, host) in [(&a, "pa", 1), (&b, "pb", 2)] {
        at.ip(&format!(
            "link add eth0 type veth peer name {port} netns {}",
            middle.name
        ))?;
        at.ip(&format!("addr add 10.9.0.{host}/24 dev eth0"))?;
        at.ip("link set eth0 up")?;
        middle.ip(&format!("link set {port} up"))?;
    }
    Ok((a, b))
}
