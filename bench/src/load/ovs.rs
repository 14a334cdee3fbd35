//! Open vSwitch with its datapath in user space: a database, a daemon and sockets of its
//! own, in a namespace of its own.

use super::dpdk::{Folder, Generator, Program, Wire, stations};
use super::{Load, Shape, Trial};
use e2e::Namespace;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const DAEMON: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// Megabytes of huge pages.
const MB: u32 = 512;

/// One.
pub struct Ovs {
    daemon: Program,
    _database: Program,
    /// Where it runs: interfaces that it is to have are moved here.
    pub namespace: Namespace,
    folder: Folder,
}

impl Ovs {
    /// Starts one with a bridge `br0`; `settings` are of its `other_config`.
    pub fn start(settings: &[&str]) -> Result<Ovs, String> {
        let folder = Folder::make("bulkhead-ovs-")?;
        let database = folder.join("conf.db");
        let mut made = Command::new("ovsdb-tool");
        made.arg("create").arg(&database).arg(SCHEMA);
        ran(&mut made)?;
        let mut server = with(&folder, "ovsdb-server");
        server
            .arg(format!(
                "--remote=punix:{}",
                folder.join("db.sock").display()
            ))
            .arg(format!("--unixctl={}", folder.join("db.ctl").display()))
            .arg(&database);
        let server = Program::start(server, &folder, "ovsdb")?;
        until(&folder.join("db.sock"))?;
        let namespace = Namespace::make()?;
        vsctl(&folder, &["--no-wait", "init"])?;
        let mut words = vec!["--no-wait", "set", "Open_vSwitch", "."];
        words.extend(settings);
        vsctl(&folder, &words)?;
        let mut daemon = with(&folder, "nsenter");
        daemon
            .arg(format!("--net=/run/netns/{}", namespace.name))
            .arg(DAEMON)
            .arg(format!("unix:{}", folder.join("db.sock").display()))
            .arg(format!("--unixctl={}", folder.join("ovs.ctl").display()))
            .args(["-vconsole:off", "-vsyslog:off", "-vfile:info"])
            .arg(format!("--log-file={}", folder.join("ovs.log").display()));
        let daemon = Program::start(daemon, &folder, "vswitchd")?;
        let ovs = Ovs {
            daemon,
            _database: server,
            namespace,
            folder,
        };
        until(&ovs.folder.join("ovs.ctl"))?;
        ovs.vsctl(&[
            "add-br",
            "br0",
            "--",
            "set",
            "bridge",
            "br0",
            "datapath_type=netdev",
        ])?;
        Ok(ovs)
    }

    /// One with DPDK, which polls on core 0.
    pub fn with_dpdk() -> Result<Ovs, String> {
        let memory = format!("other_config:dpdk-socket-mem={MB}");
        Ovs::start(&[
            "other_config:dpdk-init=true",
            &memory,
            "other_config:dpdk-lcore-mask=0x1",
            "other_config:pmd-cpu-mask=0x1",
            "other_config:dpdk-extra=--in-memory --no-pci --no-telemetry --file-prefix=bhovs",
        ])
    }

    /// Runs ovs-vsctl.
    pub fn vsctl(&self, words: &[&str]) -> Result<String, String> {
        vsctl(&self.folder, words).map_err(|e| format!("{e}\n{}", self.log()))
    }

    /// Has it learn addresses as any switch does (`NORMAL`), and nothing else.
    pub fn normal(&self) -> Result<(), String> {
        let bridge = format!("unix:{}", self.folder.join("br0.mgmt").display());
        ran(with(&self.folder, "ovs-ofctl").args(["del-flows", &bridge]))?;
        ran(with(&self.folder, "ovs-ofctl").args(["add-flow", &bridge, "actions=NORMAL"]))?;
        Ok(())
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.daemon.id()
    }

    /// A path in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn log(&self) -> String {
        let text = std::fs::read_to_string(self.folder.join("ovs.log")).unwrap_or_default();
        let worst = text
            .lines()
            .filter(|l| l.contains("|ERR|") || l.contains("|WARN|"));
        worst.collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Ovs {
    fn drop(&mut self) {
        for process in [self.daemon.id(), self._database.id()] {
            super::signal(&[process], rustix::process::Signal::CONT);
            super::signal(&[process], rustix::process::Signal::TERM);
        }
    }
}

/// The version of Open vSwitch here.
pub fn version() -> Result<String, String> {
    let text = ran(Command::new(DAEMON).arg("--version"))?;
    let word = text
        .split_whitespace()
        .find(|w| w.starts_with(|c: char| c.is_ascii_digit()));
    Ok(word.unwrap_or("unknown").to_owned())
}

fn with(folder: &Path, program: &str) -> Command {
    let mut command = Command::new(program);
    for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(name, folder);
    }
    command
}

fn vsctl(folder: &Path, words: &[&str]) -> Result<String, String> {
    let mut command = with(folder, "ovs-vsctl");
    command
        .arg("--timeout=30")
        .arg(format!("--db=unix:{}", folder.join("db.sock").display()))
        .args(words);
    ran(&mut command)
}

/// What it printed, if it is there and succeeded.
pub fn ran(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|e| format!("peer missing: {:?}: {e}", command.get_program()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

fn until(path: &Path) -> Result<(), String> {
    let patience = Instant::now() + Duration::from_secs(10);
    while !path.exists() {
        if Instant::now() > patience {
            return Err(format!("{} does not appear", path.display()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// OVS-DPDK as a learning switch between two vhost ports, with its generator.
pub struct Vhost {
    generator: Generator,
    ovs: Ovs,
}

impl Vhost {
    /// Starts both.
    pub fn start() -> Result<Vhost, String> {
        let ovs = Ovs::with_dpdk()?;
        let sockets = [ovs.path("v0"), ovs.path("v1")];
        for (n, socket) in sockets.iter().enumerate() {
            let path = format!("options:vhost-server-path={}", socket.display());
            let interface = format!("p{n}");
            ovs.vsctl(&[
                "add-port",
                "br0",
                &interface,
                "--",
                "set",
                "Interface",
                &interface,
                "type=dpdkvhostuserclient",
                &path,
            ])?;
        }
        ovs.normal()?;
        let (macs, addresses) = stations();
        let folder = ovs.path("");
        let mut generator = Generator::start(Wire::VhostClient, &folder, &sockets, &macs)?;
        generator.join(&macs, &addresses, ovs.id(), true)?;
        super::signal(&[ovs.id()], rustix::process::Signal::STOP);
        Ok(Vhost { generator, ovs })
    }
}

impl Load for Vhost {
    fn run(&mut self, shape: &Shape, pps: f64) -> Result<Trial, String> {
        self.generator.run(shape, pps)
    }
    fn switch(&self) -> Vec<u32> {
        vec![self.ovs.id()]
    }
    fn generator(&self) -> Option<u32> {
        Some(self.generator.id())
    }
}
