//! DHCP, and TCP both ways with the offloads that each stack has by default, between every
//! two kinds of ports, and between each kind and a network beyond an uplink.

use e2e::fifo::{Relay, attach};
use e2e::machine::{Card, DHCP, Machine, Setup, TAKES, talks};
use e2e::outside::Outside;
use e2e::talk::Hosts;
use e2e::{Ended, Instance, Namespace, enter, leave_to};
use port::Tap;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// An emulated machine is slow where others compile.
const PATIENCE: Duration = Duration::from_secs(90);
/// Bytes of one transfer.
const BYTES: u64 = 2 << 20;
/// What an endpoint is attached by, and the last part of its addresses.
const KINDS: [(&str, u8); 4] = [("tap", 11), ("veth", 12), ("fifo", 13), ("vhost", 14)];
/// Who is no endpoint: beyond the uplink.
const BEYOND: [&str; 2] = ["TCP4:198.51.100.2", "TCP6:[2001:db8:1::2]"];

/// One endpoint: of a kind, in the first subnet or the second.
#[derive(Clone, Copy)]
struct Place {
    kind: &'static str,
    host: u8,
    subnet: u8,
}

impl Place {
    fn all() -> impl Iterator<Item = Place> {
        let of = |subnet| KINDS.map(|(kind, host)| Place { kind, host, subnet });
        of(1).into_iter().chain(of(2))
    }

    fn name(&self) -> String {
        format!("{}{}", self.kind, self.subnet)
    }

    fn mac(&self) -> String {
        format!("02:00:00:09:{:02x}:{:02x}", self.subnet, self.host)
    }

    /// Over both families, as socat has it.
    fn targets(&self) -> [String; 2] {
        let Place { subnet, host, .. } = self;
        [
            format!("TCP4:10.9.{subnet}.{host}"),
            format!("TCP6:[fd00:9:{subnet}::{host}]"),
        ]
    }
}

/// With an uplink and a way outside, or with nothing in their places.
fn spec(uplink: &str, outside: &str) -> String {
    let mut spec = format!("version: 1\n{uplink}tenants:\n  - name: red\n{outside}    subnets:\n");
    for (subnet, name) in [(1, "one"), (2, "two")] {
        spec += &format!(
            "      - {{ name: {name}, prefixes: [10.9.{subnet}.0/24, \"fd00:9:{subnet}::/64\"] }}\n"
        );
    }
    spec += "    endpoints:\n";
    for place in Place::all() {
        let Place { kind, host, subnet } = place;
        let (name, mac) = (place.name(), place.mac());
        let lan = ["one", "two"][usize::from(subnet) - 1];
        let attach = match kind {
            "tap" | "veth" => {
                format!("{{ {kind}: {{ namespace: {{ns}}-{name}, interface: eth0, make: true }} }}")
            }
            "fifo" => "{ fifo: { capacity: 1MiB } }".to_owned(),
            _ => kind.to_owned(),
        };
        spec += &format!(
            "      - {{ name: {name}, subnet: {lan}, addresses: [10.9.{subnet}.{host}, \"fd00:9:{subnet}::{host}\"], mac: \"{mac}\", attach: {attach} }}\n"
        );
    }
    spec
}

/// An instance with all of them, each of which takes what it is sent and answers with its
/// digest, and the digests of what they send.
struct Lan {
    // In the order in which they end.
    _servers: Vec<Ended>,
    _relays: Vec<Relay>,
    machines: Vec<Machine>,
    instance: Instance,
    hosts: Hosts,
    digests: BTreeMap<String, String>,
}

impl Lan {
    fn start() -> Lan {
        let hosts = Hosts::of(&spec("", ""));
        let instance = Instance::start().unwrap();
        instance.apply(&hosts.spec).unwrap();
        let mut lan = Lan {
            _servers: Vec::new(),
            _relays: Vec::new(),
            machines: Vec::new(),
            instance,
            hosts,
            digests: BTreeMap::new(),
        };
        let vhost = |place: &Place| place.kind == "vhost";
        for place in Place::all().filter(vhost) {
            let machine = lan.boot(&place);
            lan.machines.push(machine);
        }
        let folder = lan.instance.folder().to_path_buf();
        std::fs::write(folder.join("dhcp"), DHCP).unwrap();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.join("dhcp"), mode).unwrap();
        for place in Place::all().filter(|place| !vhost(place)) {
            if place.kind == "fifo" {
                let relay = lan.plug(&place);
                lan._relays.push(relay);
            }
            let name = place.name();
            let data = folder.join(&name).display().to_string();
            let line = format!("head -c {BYTES} /dev/urandom > {data}; sha256sum < {data}");
            let said = lan.hosts.sh(&name, &line);
            lan.digests.insert(name.clone(), digest(&said.out));
            let server = lan
                .hosts
                .at(&name)
                .command(&format!("exec {TAKES}"))
                .spawn();
            lan._servers.push(Ended(server.unwrap()));
        }
        for (machine, place) in lan.machines.iter_mut().zip(Place::all().filter(vhost)) {
            let console = machine.wait_for("SERVES", PATIENCE).unwrap();
            assert!(console.contains(&leased(&place)), "{console}");
            let sum = console.split("SUM ").nth(1).unwrap_or_default();
            lan.digests.insert(place.name(), digest(sum));
        }
        lan
    }

    /// A machine that serves as the namespaces do, and sends to whom port 5002 is told.
    fn boot(&self, place: &Place) -> Machine {
        let Place { subnet, host, .. } = place;
        let script = format!(
            "udhcpc -i eth0 -n -q -t 20 -T 1 -s /dhcp > /tmp/dhcp; grep DHCP /tmp/dhcp\n\
             echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad\n\
             ip -6 addr add fd00:9:{subnet}::{host}/64 dev eth0\n\
             ip -6 route add default via fd00:9:{subnet}::1\n\
             {}sleep 1000\n",
            talks(BYTES)
        );
        let name = place.name();
        let socket = self.instance.run_dir().join("vhost/red");
        Machine::start(&Setup {
            folder: self.instance.folder(),
            name: &name,
            card: Card::Vhost(&socket.join(format!("{name}.sock"))),
            mac: &place.mac(),
            device: ["", ",packed=on"][usize::from(*subnet) - 1],
            queues: 1,
            modules: &[],
            programs: &["socat"],
            arguments: &[],
            script: &script,
        })
        .unwrap()
    }

    /// Puts a namespace's stack behind a fifo.
    fn plug(&self, place: &Place) -> Relay {
        let name = place.name();
        let namespace = self.hosts.at(&name).name.clone();
        let ip = |line: &str| {
            let status = Command::new("ip").args(line.split(' ')).status();
            assert!(status.unwrap().success(), "{line}");
        };
        ip(&format!("netns add {namespace}"));
        let home = enter(&namespace).unwrap();
        let tap = port::tap::create("eth0");
        leave_to(&home).unwrap();
        let Place { subnet, host, .. } = place;
        for line in [
            format!("link set eth0 address {} up", place.mac()),
            format!("addr add fd00:9:{subnet}::{host}/64 dev eth0 nodad"),
            format!("route add default via fd00:9:{subnet}::1"),
        ] {
            ip(&format!("-n {namespace} {line}"));
        }
        let attached = attach(&self.instance.run_dir(), "red", &name).unwrap();
        Relay::new(attached, Tap::from_fd(tap.unwrap().0))
    }

    /// What somebody says the digest is of what an endpoint has sent to it.
    fn sends(&self, from: &Place, to: &str) -> String {
        let name = from.name();
        if from.kind != "vhost" {
            let data = self.instance.folder().join(&name);
            let line = format!("socat -t 60 - {to}:5001 < {}", data.display());
            return self.said(&self.hosts.at(&name), &line);
        }
        // A machine is told by a neighbour.
        let line = format!("echo {to}:5001 | socat -t 60 - {}:5002", from.targets()[0]);
        self.said(&self.hosts.at(&format!("tap{}", from.subnet)), &line)
    }

    fn said(&self, at: &Namespace, line: &str) -> String {
        let said = at.sh(&format!("timeout 60 sh -c '{line}'")).unwrap();
        assert!(said.ok(), "{line}: {}{}", said.out, said.err);
        digest(&said.out)
    }

    /// Bytes in large frames that came of an endpoint, and went to it.
    fn large(&self, of: &Place) -> [u64; 2] {
        let endpoint = self.instance.endpoint("red", &of.name()).unwrap();
        let count = |which: &str| endpoint["counters"][which].as_u64().unwrap();
        [count("rx_gso_bytes"), count("tx_gso_bytes")]
    }

    /// Both families, one way; large frames whole at both ends.
    fn transfer(&self, from: &Place, to: &Place) {
        for target in to.targets() {
            let before = (self.large(from)[0], self.large(to)[1]);
            let what = format!("{} to {target}, {}", from.name(), to.name());
            assert_eq!(
                self.sends(from, &target),
                self.digests[&from.name()],
                "{what}"
            );
            let after = (self.large(from)[0], self.large(to)[1]);
            let large = (after.0 - before.0, after.1 - before.1);
            assert!(
                large.0 > BYTES / 2 && large.1 > BYTES / 2,
                "{what}: {large:?}"
            );
        }
    }
}

fn digest(said: &str) -> String {
    said.split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// What a DHCP client's script prints.
fn leased(place: &Place) -> String {
    let Place { subnet, host, .. } = place;
    format!("DHCP 10.9.{subnet}.{host}/24 via 10.9.{subnet}.1 mtu 1500")
}

#[test]
fn every_kind_of_port_gets_its_address_and_talks_to_every_kind_and_beyond_an_uplink() {
    let mut lan = Lan::start();
    for place in Place::all().filter(|place| place.kind != "vhost") {
        let script = lan.instance.folder().join("dhcp");
        let line = format!(
            "ip -4 addr flush dev eth0; timeout 20 busybox udhcpc -i eth0 -n -q -t 5 -T 1 -s {}",
            script.display()
        );
        let said = lan.hosts.sh(&place.name(), &line);
        assert!(
            said.out.contains(&leased(&place)),
            "{}: {said:?}",
            place.name()
        );
        let features = lan.hosts.sh(&place.name(), "ethtool -k eth0").out;
        for feature in ["tcp-segmentation-offload: on", "tx-checksumming: on"] {
            assert!(features.contains(feature), "{}: {features}", place.name());
        }
    }
    // Each kind with the others beside it, and with its own kind behind the gateway.
    let all: Vec<Place> = Place::all().collect();
    for (at, one) in all.iter().take(KINDS.len()).enumerate() {
        for other in all.iter().take(KINDS.len()).skip(at + 1) {
            lan.transfer(one, other);
            lan.transfer(other, one);
        }
        let own = &all[at + KINDS.len()];
        lan.transfer(one, own);
        lan.transfer(own, one);
    }
    beyond(&mut lan, &all[..KINDS.len()]);
    let status = lan.instance.ask(&["status"]).unwrap();
    assert_eq!(status["compartments"][0]["restarts"], 0, "no switch died");
}

/// The same with a server behind a router, by either way to the uplink.
fn beyond(lan: &mut Lan, places: &[Place]) {
    let outside = Outside::make().unwrap();
    for line in [
        "route add 10.9.0.0/16 via 192.0.2.10",
        "route add fd00:9::/32 via 2001:db8::10",
    ] {
        outside.router.ip(line).unwrap();
    }
    let mut server = outside.server.command(&format!("exec {TAKES}"));
    let server = Ended(server.stdout(Stdio::null()).spawn().unwrap());
    let data = lan.instance.folder().join("tap1").display().to_string();
    for (driver, how) in [("af_packet", "AF_PACKET"), ("xdp", "AF_XDP")] {
        if driver == "xdp" {
            outside.finish().unwrap();
        }
        let uplink = format!(
            "uplinks: [{{ name: wan, interface: up0, namespace: {}, driver: {driver} }}]\n",
            outside.wire.name
        );
        let way = "    outside:\n      - { uplink: wan, address: [192.0.2.10/24, \"2001:db8::10/64\"], gateway: [192.0.2.1, \"2001:db8::1\"], mac: \"02:00:00:00:09:10\" }\n";
        let spec = lan.hosts.other(&spec(&uplink, way));
        lan.instance.apply(&spec).unwrap();
        let at_uplink = || lan.instance.ask(&["status"]).unwrap()["uplinks"][0].clone();
        let large = || {
            let counters = at_uplink()["counters"].clone();
            ["rx_gso_bytes", "tx_gso_bytes"].map(|which| counters[which].as_u64().unwrap())
        };
        let is = at_uplink()["how"].as_str().unwrap_or_default().to_owned();
        assert!(is.starts_with(how), "{is}");
        let before = large();
        for place in places {
            for (target, own) in BEYOND.iter().zip(place.targets()) {
                let what = format!("{} and {target} by {how}", place.name());
                let sent = lan.sends(place, target);
                assert_eq!(sent, lan.digests[&place.name()], "{what}");
                let line = format!("socat -t 60 - {own}:5001 < {data}");
                let came = lan.said(&outside.server, &line);
                assert_eq!(came, lan.digests["tap1"], "{what}");
            }
        }
        let after = large();
        let [came, left] = [0, 1].map(|way: usize| after[way] - before[way]);
        // By AF_XDP none comes, and what leaves is cut by the fabric.
        let sent = 2 * BYTES * places.len() as u64;
        let whole = came > sent / 2 || (driver == "xdp" && came == 0);
        assert!(whole && left > sent / 2, "{how}: {came} {left} of {sent}");
    }
    drop(server);
}
