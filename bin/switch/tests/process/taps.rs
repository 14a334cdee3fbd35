//! Real stacks behind taps and veths, with every offload on: what a young
//! datapath breaks first.

use crate::rig::{PATIENCE, Rig};
use command::verbs::{AddPort, PORT_PACKET, PORT_TAP};
use image::CompartmentTables;
use image::compartment::*;
use netlink::{Netlink, namespace};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use telemetry::counters::{Counter, ProcessWord};
use telemetry::drops::DropReason;
use wire::MacAddress;
use wire::address::{link_local, mapped};

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]];

fn v6(subnet: u8, host: u8) -> [u8; 16] {
    [0xfd, 0, 0, 1, 0, subnet, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]
}

/// One endpoint in each of two subnets.
pub fn tables() -> CompartmentTables {
    let mut tables = CompartmentTables {
        tenants: vec![Tenant {
            id: 1,
            ..Tenant::default()
        }],
        ..CompartmentTables::default()
    };
    for (index, mac) in (0u32..2).zip(MACS) {
        let third = index as u8 + 1;
        tables.subnets.push(Subnet {
            id: index + 1,
            prefix4: [10, 1, third, 0],
            prefix4_len: 24,
            gateway4: [10, 1, third, 1],
            prefix6: v6(third, 0),
            prefix6_len: 64,
            gateway6: v6(third, 1),
            gateway_mac: [2, 9, 9, 9, 9, third],
            mtu: 1500,
            flags: SUBNET_DHCP4 | SUBNET_RA,
            lease_s: 600,
            ..Subnet::default()
        });
        tables.endpoints.push(Endpoint {
            id: 100 + index,
            subnet: index,
            slot: index + 1,
            mac,
            mtu: 1500,
            min_gso: 536,
            features: FEATURE_ALL,
            dhcp4: [10, 1, third, 10],
            ..Endpoint::default()
        });
        for address in [
            mapped([10, 1, third, 10]),
            v6(third, 10),
            link_local(MacAddress(mac)),
        ] {
            tables.addresses.push((index, address));
        }
        tables.members.push((index, index));
        tables.routes.push(Route {
            kind: ROUTE_SUBNET,
            subnet: index,
            ..Route::default()
        });
        let mut end6 = v6(third, 0);
        end6[8..].fill(255);
        for (start, end) in [
            (mapped([10, 1, third, 0]), mapped([10, 1, third, 255])),
            (v6(third, 0), end6),
        ] {
            tables.ranges.push((
                0,
                RouteRange {
                    start,
                    end,
                    route: index,
                    reserved: [0; 3],
                },
            ));
        }
    }
    tables
}

static GUESTS: AtomicU32 = AtomicU32::new(0);

/// What a guest is attached by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tap,
    Veth,
}

/// A namespace with an interface in it, gone at the end.
pub struct Guest {
    namespace: String,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = namespace::delete_named(&self.namespace);
    }
}

impl Guest {
    fn new(index: usize, kind: Kind) -> (Guest, OwnedFd) {
        let number = GUESTS.fetch_add(1, Ordering::Relaxed);
        let name = format!("bhsw-{}-{number}", std::process::id());
        let fd = namespace::create_named(&name).expect("a namespace");
        let guest = Guest { namespace: name };
        let make = || match kind {
            Kind::Veth => veth(),
            Kind::Tap => port::tap::create("eth0").unwrap().0,
        };
        let end = namespace::within(fd.as_fd(), make).unwrap();
        let [a, b, c, d, e, f] = MACS[index];
        let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
        let third = index + 1;
        for line in [
            "link set lo up".to_owned(),
            format!("link set eth0 address {mac} up"),
            format!("addr add 10.1.{third}.10/24 dev eth0"),
            format!("addr add {}/64 dev eth0 nodad", address(third, 10)),
            format!("route add default via 10.1.{third}.1"),
            format!("-6 route add default via {}", address(third, 1)),
        ] {
            let output = guest.run(&format!("ip {line}"));
            assert!(output.status.success(), "{line}: {output:?}");
        }
        (guest, end)
    }

    pub fn run(&self, line: &str) -> Output {
        let words = ["netns", "exec", &self.namespace];
        Command::new("ip")
            .args(words)
            .args(line.split_whitespace())
            .output()
            .expect("ip")
    }

    #[track_caller]
    pub fn must(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(
            output.status.success(),
            "{line}: {}",
            String::from_utf8_lossy(&output.stdout)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn address(subnet: usize, host: u8) -> String {
    std::net::Ipv6Addr::from(v6(subnet as u8, host)).to_string()
}

/// In the current namespace: a veth whose other end is alone in a namespace that lives as
/// long as its socket.
fn veth() -> OwnedFd {
    let outside = namespace::create().unwrap();
    let mut netlink = Netlink::open().unwrap();
    let batch = netlink
        .batch()
        .create_veth("eth0", "outer", Some(outside.as_fd()));
    batch.commit().unwrap();
    let stay = port::ethtool::turn_off("eth0", port::ethtool::UNSAID).unwrap();
    assert_eq!(stay, [] as [&str; 0]);
    let open = || {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link("outer").unwrap().index;
        let batch = netlink.batch().without_own_link_local(index);
        batch.set_up(index).commit().unwrap();
        port::packet::open_outer("outer").unwrap()
    };
    namespace::within(outside.as_fd(), open).unwrap()
}

/// Two namespaces with taps and a switch between them; `None` where this user cannot make
/// them.
pub fn pair() -> Option<(Rig, Guest, Guest)> {
    pair_of(&tables())
}

/// The same under other tables.
pub fn pair_of(tables: &CompartmentTables) -> Option<(Rig, Guest, Guest)> {
    pair_by(tables, [Kind::Tap; 2])
}

/// The same by these kinds.
pub fn pair_by(tables: &CompartmentTables, kinds: [Kind; 2]) -> Option<(Rig, Guest, Guest)> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: namespaces and taps need root");
        return None;
    }
    let rig = Rig::new();
    let mut guests = Vec::new();
    for ((index, kind), slot) in kinds.into_iter().enumerate().zip(1..) {
        let (guest, end) = Guest::new(index, kind);
        guests.push(guest);
        let body = AddPort {
            slot,
            kind: if kind == Kind::Veth {
                PORT_PACKET
            } else {
                PORT_TAP
            },
            mtu: 1500,
            features: u32::from(FEATURE_ALL),
            ..AddPort::default()
        };
        rig.tell(&body, &[&end]);
    }
    rig.install(tables, 1);
    let two = guests.pop()?;
    Some((rig, guests.pop()?, two))
}

#[test]
fn kernels_ping_and_talk_tcp_with_every_offload_on() {
    talk([Kind::Tap, Kind::Tap]);
}

#[test]
fn kernels_talk_by_veths_with_every_offload_on() {
    talk([Kind::Veth, Kind::Veth]);
}

fn talk(kinds: [Kind; 2]) {
    let Some((rig, one, two)) = pair_by(&tables(), kinds) else {
        return;
    };
    for (guest, own) in [(&one, "10.1.1.10"), (&two, "10.1.2.10")] {
        let asked = guest.run("busybox udhcpc -n -q -f -t 5 -i eth0 -s /bin/true");
        let said = String::from_utf8_lossy(&asked.stderr);
        assert!(
            said.contains(&format!("lease of {own} obtained")),
            "{kinds:?}: {said}"
        );
    }
    one.must("ping -c 1 -W 5 10.1.1.1");
    one.must("ping -c 1 -W 5 10.1.2.10");
    one.must(&format!("ping -6 -c 1 -W 5 {}", address(1, 1)));
    one.must(&format!("ping -6 -c 1 -W 5 {}", address(2, 10)));
    // In fragments, both families.
    one.must("ping -c 1 -W 5 -s 4000 10.1.2.10");
    one.must(&format!("ping -6 -c 1 -W 5 -s 4000 {}", address(2, 10)));
    // The gateway is one hop, the neighbour behind it two.
    let hop = one.run("ping -c 1 -W 5 -t 1 10.1.2.10");
    assert!(
        String::from_utf8_lossy(&hop.stdout).contains("From 10.1.1.1"),
        "{hop:?}"
    );

    let mut server = Command::new("ip")
        .args(["netns", "exec", &two.namespace, "iperf3", "-s"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + PATIENCE;
    while two.must("ss -Hltn sport = :5201").is_empty() {
        assert!(Instant::now() < end, "iperf3 does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    let six = address(2, 10);
    let runs: Vec<Output> = [
        "-c 10.1.2.10 -n 50M",
        "-c 10.1.2.10 -n 50M -R",
        "-c SIX -n 50M",
        "-c 10.1.2.10 -u -b 50M -t 1",
    ]
    .into_iter()
    .map(|arguments| {
        let line = format!("iperf3 -f m {}", arguments.replace("SIX", &six));
        let end = Instant::now() + PATIENCE;
        loop {
            let output = one.run(&line);
            // The server closes the run before in its own time, and its listening socket with it.
            let said = String::from_utf8_lossy(&output.stderr);
            let busy = ["server is busy", "control message: Connection reset"];
            if !busy.iter().any(|it| said.contains(it)) || Instant::now() > end {
                return output;
            }
        }
    })
    .collect();
    let _ = server.kill();
    let _ = server.wait();
    for output in runs {
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{kinds:?}: {output:?}");
        println!(
            "{}",
            text.lines()
                .filter(|l| l.contains("receiver"))
                .collect::<String>()
        );
    }
    let bytes = rig.count(1, Counter::RxBytes) + rig.count(2, Counter::RxBytes);
    let gso = rig.count(1, Counter::RxGsoBytes) + rig.count(2, Counter::RxGsoBytes);
    println!("{kinds:?}: bytes {bytes}, in GSO frames {gso}");
    assert!(gso * 2 > bytes, "GSO frames cross whole");
    // At most one system call a frame.
    let words = rig.words();
    let (calls, frames) = (
        words.load(ProcessWord::FrameSyscalls as usize),
        words.load(ProcessWord::FrameSyscallFrames as usize),
    );
    assert!(calls <= frames);
}

#[test]
fn an_interface_that_vanishes_closes_its_slot_alone() {
    for kind in [Kind::Tap, Kind::Veth] {
        let Some((rig, one, two)) = pair_by(&tables(), [Kind::Tap, kind]) else {
            return;
        };
        one.must("ping -c 1 -W 5 10.1.1.1");
        two.must("ip link delete eth0");
        let closed: command::verbs::PortClosed = rig.hear();
        assert_eq!(closed.slot, 2);
        assert!(closed.reason > 1000);
        one.must("ping -c 1 -W 5 10.1.1.1");
    }
}

#[test]
fn what_a_veth_sends_tagged_is_dropped_as_what_it_is() {
    let Some((rig, one, two)) = pair_by(&tables(), [Kind::Veth, Kind::Tap]) else {
        return;
    };
    one.must("ping -c 1 -W 5 10.1.2.10");
    // Datagrams that came, whoever was there for them.
    let datagrams = || two.must("grep ^Udp: /proc/net/snmp");
    let before = datagrams();
    // From the endpoint's own addresses: without its tag it would pass.
    let mut frame = vec![2, 9, 9, 9, 9, 1];
    frame.extend(MACS[0]);
    frame.extend([0x81, 0, 0, 7, 8, 0]);
    let packet = wire::ipv4::Header::new([10, 1, 1, 10], [10, 1, 2, 10], 17);
    let mut bytes = vec![0; 100];
    let link = wire::ethernet::Header::new(MacAddress(MACS[1]), MacAddress(MACS[0]), 0x800);
    let end = wire::build::udp4(&mut bytes, &link, &packet, (9, 9), |_| Ok(0)).unwrap();
    frame.extend(&bytes[14..end]);
    let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
    let line = "import socket,sys;s=socket.socket(17,3);s.bind(('eth0',0));[s.send(bytes.fromhex(sys.argv[1])) for _ in range(10)]";
    let sent = Command::new("ip")
        .args(["netns", "exec", &one.namespace, "python3", "-c", line, &hex])
        .output()
        .unwrap();
    assert!(sent.status.success(), "{sent:?}");
    let end = Instant::now() + PATIENCE;
    while rig.drops(1, DropReason::VlanTag) < 10 {
        assert!(Instant::now() < end, "the tag was not seen");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(datagrams(), before);
}

#[test]
fn an_interface_that_is_down_for_a_while_comes_back() {
    let Some((_rig, one, two)) = pair() else {
        return;
    };
    two.must("ip link set eth0 down");
    assert!(!one.run("ping -c 1 -W 1 10.1.2.10").status.success());
    two.must("ip link set eth0 up");
    two.must("ip route replace default via 10.1.2.1");
    one.must("ping -c 3 -W 2 10.1.2.10");
}
