//! Two tenants with the same addresses: what should talk talks, nothing else does.

use e2e::frames::{self, TwoTenants};
use e2e::{Ended, Instance};
use std::time::Duration;

fn up(tenants: &TwoTenants) -> Instance {
    let instance = Instance::start().unwrap();
    instance.apply(&tenants.spec).unwrap();
    instance
}

/// Serves a page that names its tenant, in the background of the namespace.
fn serve(tenants: &TwoTenants, tenant: &str) -> std::process::Child {
    let page = format!("page of {tenant} ").repeat(800);
    let line = format!(
        "d=$(mktemp -d) && cd $d && printf '%s' '{page}' > index.html && exec python3 -c \"
import http.server,socket
class S(http.server.ThreadingHTTPServer): address_family=socket.AF_INET6
S(('::',80),http.server.SimpleHTTPRequestHandler).serve_forever()\" 2>/dev/null"
    );
    let namespace = std::mem::ManuallyDrop::new(tenants.at(tenant, "web1"));
    namespace.command(&line).spawn().unwrap()
}

#[test]
fn each_tenant_gets_its_own_page_over_both_families() {
    let tenants = TwoTenants::default();
    let instance = up(&tenants);
    let _servers = [
        Ended(serve(&tenants, "red")),
        Ended(serve(&tenants, "blue")),
    ];
    for tenant in ["red", "blue"] {
        for url in ["http://10.1.1.10/", "http://[fd00:1:1:1::10]/"] {
            let ok = instance.until(Duration::from_secs(5), |_| {
                let line = format!("curl -s --max-time 2 '{url}'");
                let said = tenants.sh(tenant, "app1", &line).unwrap();
                said.out == format!("page of {tenant} ").repeat(800)
            });
            assert!(ok, "{tenant} does not get its own page from {url}");
        }
    }
}

#[test]
fn what_comes_up_loses_nothing() {
    let tenants = TwoTenants::default();
    let instance = up(&tenants);
    // Each kernel speaks to groups as soon as its interface is there, before the others are.
    let spoken = |i: &Instance| {
        let status = i.ask(&["status"]).unwrap();
        let endpoints: Vec<_> = ["red", "blue"]
            .iter()
            .flat_map(|tenant| ["web1", "app1", "app2"].map(|name| (*tenant, name)))
            .map(|(tenant, name)| i.endpoint(tenant, name).unwrap()["counters"].clone())
            .collect();
        assert!(
            endpoints
                .iter()
                .all(|c| c["drops"] == serde_json::json!([])),
            "{status}"
        );
        endpoints.iter().all(|c| c["rx_frames"].as_u64() > Some(2))
    };
    assert!(instance.until(Duration::from_secs(5), spoken));
}

#[test]
fn gateway_answers_and_hops_are_counted() {
    let tenants = TwoTenants::default();
    let _instance = up(&tenants);
    for target in [
        "10.1.2.1",
        "10.1.1.1",
        "10.1.2.12",
        "10.1.1.10",
        "fd00:1:1:2::12",
        "fd00:1:1:1::10",
    ] {
        let said = tenants
            .sh("red", "app1", &format!("ping -n -c 2 -i 0.1 -W 2 {target}"))
            .unwrap();
        assert!(said.ok(), "{target}: {}", said.out);
        let ttl = if target.contains(":1:1::") || target.starts_with("10.1.1.10") {
            "ttl=63"
        } else {
            "ttl=64"
        };
        assert!(
            said.out.contains(ttl),
            "{target}: {ttl} not in {}",
            said.out
        );
    }
    let said = tenants
        .sh("red", "app1", "ping -n -c 1 -t 1 -W 2 10.1.1.10")
        .unwrap();
    assert!(said.out.contains("Time to live exceeded"), "{}", said.out);
    let said = tenants
        .sh("red", "app1", "ping -n -c 1 -W 2 10.77.0.1")
        .unwrap();
    assert!(said.out.contains("Unreachable"), "{}", said.out);
}

#[test]
fn what_is_not_its_own_is_dropped_by_name() {
    let tenants = TwoTenants::default();
    let instance = up(&tenants);
    let mine = tenants.mac("blue", "app1").unwrap();
    let other = [0x02, 0xbb, 0, 0, 0, 1];
    let gateway = gateway_mac(&tenants);
    let packet = |from| frames::ipv4(from, [10, 1, 1, 10], 17, &frames::udp(1, 2, b"x"));
    let advertise = |own: [u8; 6]| {
        let octets = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
        let (from, to) = (octets("fd00:1:1:2::11"), octets("ff02::1"));
        let mut advert = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
        // Another's address, said from our own.
        advert.extend(octets("fd00:1:1:2::12"));
        advert.extend([2, 1]);
        advert.extend(own);
        frames::ipv6(from, to, 58, 255, &frames::icmpv6(from, to, &advert))
    };
    let tries: Vec<(&str, Vec<u8>)> = vec![
        (
            "source-mac",
            frames::ethernet(gateway, other, 0x0800, &packet([10, 1, 2, 11])),
        ),
        (
            "source-ip",
            frames::ethernet(gateway, mine, 0x0800, &packet([10, 1, 2, 12])),
        ),
        (
            "arp-spoof",
            frames::ethernet(
                [0xff; 6],
                mine,
                0x0806,
                &frames::arp(2, (mine, [10, 1, 2, 12]), ([0xff; 6], [10, 1, 2, 12])),
            ),
        ),
        (
            "nd-spoof",
            frames::ethernet([0x33, 0x33, 0, 0, 0, 1], mine, 0x86dd, &advertise(mine)),
        ),
        (
            "vlan-tag",
            frames::ethernet(
                gateway,
                mine,
                0x8100,
                &[&[0, 5, 8, 0], &packet([10, 1, 2, 11])[..]].concat(),
            ),
        ),
        (
            "ethertype",
            frames::ethernet(gateway, mine, 0x88cc, &[0; 46]),
        ),
        (
            "group-source",
            frames::ethernet(gateway, [3, 0, 0, 0, 0, 1], 0x0800, &packet([10, 1, 2, 11])),
        ),
        (
            "reserved-mac",
            frames::ethernet(
                [1, 0x80, 0xc2, 0, 0, 0],
                mine,
                0x0800,
                &packet([10, 1, 2, 11]),
            ),
        ),
        (
            "dhcp-server",
            frames::ethernet(
                [0xff; 6],
                mine,
                0x0800,
                &frames::ipv4(
                    [10, 1, 2, 11],
                    [255; 4],
                    17,
                    &frames::udp(67, 68, &[2; 240]),
                ),
            ),
        ),
    ];
    for (reason, frame) in tries {
        let before = instance.drops("blue", "app1", reason).unwrap();
        frames::send(&tenants.name("blue", "app1"), "eth0", &[frame]).unwrap();
        let counted = instance.until(Duration::from_secs(2), |i| {
            i.drops("blue", "app1", reason).unwrap() == before + 1
        });
        assert!(counted, "{reason} was not counted");
    }
}

fn gateway_mac(tenants: &TwoTenants) -> [u8; 6] {
    let line = "ping -c 1 -W 1 10.1.2.1 >/dev/null; ip neigh show 10.1.2.1 | sed 's/.*lladdr \\([^ ]*\\).*/\\1/'";
    let said = tenants.sh("blue", "app1", line).unwrap();
    let mut mac = [0; 6];
    for (byte, text) in mac.iter_mut().zip(said.out.trim().split(':')) {
        *byte = u8::from_str_radix(text, 16).unwrap();
    }
    mac
}

#[test]
fn a_broadcast_stays_in_its_subnet() {
    let tenants = TwoTenants::default();
    let instance = up(&tenants);
    // Every namespace listens; only red/app2 may hear red/app1.
    let listen = "python3 -c \"
import socket
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);s.bind(('',9999));s.settimeout(10)
print(s.recv(99).decode())\" 2>/dev/null";
    let mut ears = Vec::new();
    for tenant in ["red", "blue"] {
        for endpoint in ["web1", "app2"] {
            let namespace = std::mem::ManuallyDrop::new(tenants.at(tenant, endpoint));
            let child = namespace
                .command(listen)
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            ears.push((tenant, endpoint, child));
        }
    }
    for (tenant, endpoint, _) in &ears {
        let hears = |_: &Instance| {
            let said = tenants.sh(tenant, endpoint, "ss -ulnH 'sport = :9999'");
            !said.unwrap().out.is_empty()
        };
        let hears = instance.until(Duration::from_secs(10), hears);
        assert!(hears, "{tenant}/{endpoint} is deaf");
    }
    tenants
        .sh("red", "app1", "python3 -c \"
import socket
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);s.setsockopt(socket.SOL_SOCKET,socket.SO_BROADCAST,1)
for a in ('10.1.2.255','255.255.255.255'):
  try: s.sendto(b'from red/app1',(a,9999))
  except OSError: pass\"")
        .unwrap();
    for (tenant, endpoint, child) in ears {
        let heard = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let should = if (tenant, endpoint) == ("red", "app2") {
            "from red/app1\n"
        } else {
            ""
        };
        assert_eq!(heard, should, "{tenant}/{endpoint}");
    }
}

#[test]
fn apply_twice_changes_nothing_and_down_leaves_nothing() {
    let tenants = TwoTenants::default();
    let instance = up(&tenants);
    let pid = instance.pid("red").unwrap();
    let again = instance.apply(&tenants.spec).unwrap();
    assert_eq!(
        again["plan"]["changes"].as_array().map(Vec::len),
        Some(0),
        "{again}"
    );
    assert_eq!(instance.pid("red").unwrap(), pid);
    instance.ask(&["down"]).unwrap();
    assert!(
        !std::path::Path::new("/run/netns")
            .join(tenants.name("red", "web1"))
            .exists()
    );
    assert_eq!(
        instance.ask(&["status"]).unwrap()["compartments"]
            .as_array()
            .map(Vec::len),
        Some(0)
    );
}
