//! A machine's own kernel as the far end of an uplink: a foreign 802.1Q peer, that puts tags
//! on and takes them off as it does on any trunk.

use e2e::machine::{Card, Machine, Setup, TAKES, talks};
use e2e::talk::Hosts;
use e2e::{Ended, Instance, Namespace};
use serde_json::Value;
use std::time::Duration;

/// An emulated machine is slow where others compile.
const PATIENCE: Duration = Duration::from_secs(90);
/// Bytes of one transfer.
const BYTES: u64 = 2 << 20;
/// The tenant's VLAN, and its MAC there.
const VLAN: u16 = 10;
const MAC: &str = "02:00:00:00:09:10";
/// Echo requests by each tag.
const PINGS: u64 = 5;
fn spec(wire: &Namespace, driver: &str) -> String {
    format!(
        "version: 1
uplinks: [{{ name: wan, interface: up0, namespace: {}, driver: {driver} }}]
tenants:
  - name: red
    subnets: [{{ name: lan, prefixes: [10.9.0.0/24, \"fd00:9::/64\"] }}]
    endpoints:
      - {{ name: web1, subnet: lan, addresses: [10.9.0.10, \"fd00:9::10\"], attach: {{ tap: {{ namespace: {{ns}}-web1, make: true }} }} }}
    outside:
      - {{ uplink: wan, vlan: {VLAN}, address: [192.0.2.10/24, \"2001:db8::10/64\"], gateway: [192.0.2.1, \"2001:db8::1\"], mac: \"{MAC}\" }}
",
        wire.name
    )
}

/// Tags that are not the tenant's, alone or one in the other, and what a ping by them is
/// sent over. The last has the tenant's own outside, and another in it.
const STRANGERS: [(&str, &str); 6] = [
    ("another", "link eth0 type vlan protocol 802.1q id 20"),
    ("service", "link eth0 type vlan protocol 802.1ad id 10"),
    ("inside", "link service type vlan protocol 802.1q id 10"),
    ("priority", "link eth0 type vlan protocol 802.1q id 0"),
    ("none", ""),
    ("twice", "link v10 type vlan protocol 802.1q id 10"),
];

/// What the machine does: its end of the VLAN, and then, each time that it is told, a ping by
/// the next stranger to the tenant's endpoint, from the same address and to the same MAC as
/// by the VLAN itself. The second time it leaves nothing of its frames to others.
fn script() -> String {
    let mut script = format!(
        "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad\n\
         ip link add link eth0 name v10 type vlan protocol 802.1q id {VLAN}; ip link set v10 up\n\
         ip addr add 192.0.2.1/24 dev v10; ip -6 addr add 2001:db8::1/64 dev v10\n\
         ip route add 10.9.0.0/24 via 192.0.2.10; ip -6 route add fd00:9::/64 via 2001:db8::10\n\
         told() {{ rm -f /tmp/on; until [ -s /tmp/on ]; do nc -l -p 5003 > /tmp/on; done; }}\n"
    );
    let mut pings = String::from(
        "pings() {\n\
         told; ping -q -c 3 -i 0.2 10.9.0.10; ping -6 -q -c 3 -i 0.2 fd00:9::10; echo WENT $1\n",
    );
    for (number, (name, link)) in STRANGERS.iter().enumerate() {
        let by = match *link {
            "" => "eth0",
            _ => name,
        };
        if !link.is_empty() {
            script += &format!("ip link add name {name} {link} && ip link set {name} up\n");
        }
        script += &format!(
            "ip addr add 10.66.{number}.1/24 dev {by}; arp -i {by} -s 10.66.{number}.10 {MAC}\n"
        );
        pings += &format!(
            "told; ip route add 10.9.0.10/32 via 10.66.{number}.10 dev {by}\n\
             timeout -s INT 3 ping -q -c {PINGS} -i 0.1 -I 192.0.2.1 10.9.0.10\n\
             ip route del 10.9.0.10/32; echo WENT {name} $1\n"
        );
    }
    script += &pings;
    script += "}\n";
    script += &talks(BYTES);
    script
        + "pings af_packet; ethtool -K eth0 tx off; pings xdp; told\n\
         ping -q -c 3 -i 0.2 10.9.0.10\n"
}

fn status(instance: &Instance) -> Value {
    instance.ask(&["status"]).unwrap()
}

/// Frames that were dropped for a reason, in a list of those.
fn dropped(drops: &Value, reason: &str) -> u64 {
    let all = drops.as_array().cloned().unwrap_or_default();
    let found = all.iter().find(|drop| drop["reason"] == reason).cloned();
    found.map_or(0, |drop| drop["frames"].as_u64().unwrap_or(0))
}

/// Echo requests that came to the tenant's endpoint.
fn asked(hosts: &Hosts) -> u64 {
    let text = hosts.sh("web1", "grep ^Icmp: /proc/net/snmp").out;
    let mut lines = text.lines().map(|line| line.split(' '));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let found = names.zip(values).find(|(name, _)| *name == "InEchos");
    found.unwrap().1.parse().unwrap()
}

fn digest(said: &str) -> String {
    let word = said.split_whitespace().next();
    word.unwrap_or_default().to_owned()
}

#[test]
fn a_machines_kernel_is_a_peer_in_a_vlan_and_in_no_other() {
    let wire = Namespace::make().unwrap();
    let quiet = "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1";
    assert!(wire.sh(quiet).unwrap().ok());
    wire.ip("tuntap add dev up0 mode tap").unwrap();
    wire.ip("link set up0 up").unwrap();
    let hosts = Hosts::of(&spec(&wire, "af_packet"));
    let instance = Instance::start().unwrap();
    let mut machine = Machine::start(&Setup {
        folder: instance.folder(),
        name: "far",
        card: Card::Tap(&wire.name, "up0"),
        mac: "52:54:00:00:00:09",
        device: "",
        queues: 1,
        modules: &["llc", "stp", "garp", "mrp", "8021q"],
        programs: &["socat", "ethtool"],
        arguments: &[],
        script: &script(),
    })
    .unwrap();
    machine.wait_for("SERVES", PATIENCE).unwrap();
    for (driver, how) in [("af_packet", "AF_PACKET"), ("xdp", "AF_XDP")] {
        instance.apply(&hosts.other(&spec(&wire, driver))).unwrap();
        let is = status(&instance)["uplinks"][0]["how"].clone();
        assert!(is.as_str().unwrap_or_default().starts_with(how), "{is}");
        talk(&instance, &hosts, &machine, driver);
        strangers(&instance, &hosts, &mut machine, driver);
    }
    tell(&instance, &hosts);
    let console = machine.wait_for("ENDED", PATIENCE).unwrap();
    assert_eq!(console.matches(" 0% packet loss").count(), 5, "{console}");
    let lost = console.matches(" 100% packet loss").count();
    assert_eq!(lost, 2 * STRANGERS.len(), "{console}");
}

/// Both families and both ways, large frames whole where both can.
fn talk(instance: &Instance, hosts: &Hosts, machine: &Machine, driver: &str) {
    for to in ["192.0.2.1", "2001:db8::1"] {
        let line = format!("ping -n -c 1 -W 1 {to}");
        let reached = |_: &Instance| hosts.sh("web1", &line).ok();
        let reached = instance.until(Duration::from_secs(20), reached);
        assert!(reached, "{to}: {}", status(instance));
    }
    let large = || {
        let counters = status(instance)["uplinks"][0]["counters"].clone();
        ["rx_gso_bytes", "tx_gso_bytes"].map(|which| counters[which].as_u64().unwrap())
    };
    let before = large();
    let console = machine.console();
    let sum = digest(console.split("SUM ").nth(1).unwrap_or_default());
    let data = instance.folder().join("data").display().to_string();
    let line = format!("head -c {BYTES} /dev/urandom > {data}; sha256sum < {data}");
    let own = digest(&hosts.sh("web1", &line).out);
    let takes = hosts.at("web1").command(&format!("exec {TAKES}")).spawn();
    let _takes = Ended(takes.unwrap());
    for (far, near) in [
        ("TCP4:192.0.2.1", "TCP4:10.9.0.10"),
        ("TCP6:[2001:db8::1]", "TCP6:[fd00:9::10]"),
    ] {
        let line = format!("timeout 60 socat -t 60 - {far}:5001 < {data}");
        let said = hosts.sh("web1", &line);
        assert_eq!(digest(&said.out), own, "to {far}: {}", said.err);
        let line = format!("echo {near}:5001 | timeout 60 socat -t 60 - {far}:5002");
        let said = hosts.sh("web1", &line);
        assert_eq!(digest(&said.out), sum, "from {far}: {}", said.err);
    }
    let after = large();
    let [came, left] = [0, 1].map(|way: usize| after[way] - before[way]);
    // By AF_XDP none comes, and what leaves is cut by the fabric.
    let whole = came > BYTES || driver == "xdp" && came == 0;
    assert!(whole && left > BYTES, "{driver}: {came} {left}");
}

/// Tells the machine to go on.
fn tell(instance: &Instance, hosts: &Hosts) {
    let line = "echo on | timeout 5 socat - TCP4:192.0.2.1:5003";
    let told = |_: &Instance| hosts.sh("web1", line).ok();
    assert!(instance.until(Duration::from_secs(20), told));
}

/// By other tags nothing comes to the endpoint, and it is counted where it ends.
fn strangers(instance: &Instance, hosts: &Hosts, machine: &mut Machine, driver: &str) {
    let counted = || {
        let status = status(instance);
        let fabric = &status["uplinks"][0]["counters"]["drops"];
        let inside = &status["compartments"][0]["outside_drops"];
        let no_entry = dropped(fabric, "fabric-no-entry");
        (no_entry, dropped(inside, "vlan-tag"))
    };
    let before = asked(hosts);
    tell(instance, hosts);
    machine
        .wait_for(&format!("WENT {driver}\n"), PATIENCE)
        .unwrap();
    let came = asked(hosts);
    assert_eq!(came, before + 3, "those by the VLAN itself");
    for (name, _) in STRANGERS {
        let before = counted();
        tell(instance, hosts);
        let went = format!("WENT {name} {driver}\n");
        let console = machine.wait_for(&went, PATIENCE).unwrap();
        // A tag in the tenant's own ends at the tenant's switch, any other at the fabric.
        let ended = |after: (u64, u64)| match name {
            "twice" => after.1 - before.1,
            _ => after.0 - before.0,
        };
        let all = instance.until(Duration::from_secs(5), |_| ended(counted()) >= PINGS);
        assert!(
            all,
            "{driver}, {name}: {before:?} {:?} {console}",
            counted()
        );
        assert_eq!(asked(hosts), came, "{driver}, {name}: it came through");
    }
}
