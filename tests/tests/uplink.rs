//! A tenant with a network of its own behind an uplink: a router in a namespace, and a
//! server beyond it, all by the kernel's own network stack.

use e2e::frames;
use e2e::outside::{Outside, Page};
use e2e::{Ended, Instance, Namespace, Said};
use serde_json::Value;
use std::time::Duration;

fn ping(from: &Namespace, to: &str) -> Said {
    from.sh(&format!("ping -n -c 2 -i 0.1 -W 2 {to}")).unwrap()
}

/// What the fabric has counted at the uplink: frames in, out, and dropped for a reason.
fn at_uplink(instance: &Instance) -> Value {
    instance.ask(&["status"]).unwrap()["uplinks"][0]["counters"].clone()
}

fn dropped(counters: &Value, reason: &str) -> u64 {
    counters["drops"]
        .as_array()
        .and_then(|all| all.iter().find(|d| d["reason"] == reason))
        .and_then(|d| d["frames"].as_u64())
        .unwrap_or(0)
}

/// The same, and what the tenant's switch says it dropped of what came from outside.
fn dropped_outside(instance: &Instance, reason: &str) -> u64 {
    let status = instance.ask(&["status"]).unwrap();
    let by_switch = serde_json::json!({ "drops": status["compartments"][0]["outside_drops"] });
    dropped(&status["uplinks"][0]["counters"], reason) + dropped(&by_switch, reason)
}

#[test]
fn a_tenant_and_a_server_beyond_a_router_reach_each_other() {
    let outside = Outside::make().unwrap();
    let instance = Instance::start().unwrap();
    instance.apply(&outside.spec("", "weight: 1")).unwrap();
    let tenant = outside.tenant();
    let reached = instance.until(Duration::from_secs(5), |_| ping(&tenant, "192.0.2.1").ok());
    assert!(reached, "{:?}", ping(&tenant, "192.0.2.1"));
    for to in ["198.51.100.2", "2001:db8:1::2", "2001:db8::1"] {
        let said = ping(&tenant, to);
        assert!(said.ok(), "{to}: {}{}", said.out, said.err);
    }
    // The hop limit goes down at both routers: the switch's and the one outside.
    assert!(ping(&tenant, "198.51.100.2").out.contains("ttl=62"));
    // From outside, not as an answer to anything.
    for to in ["10.9.0.10", "fd00:9::10"] {
        let said = ping(&outside.server, to);
        assert!(said.ok(), "{to}: {}{}", said.out, said.err);
    }
    // A route of its own decides before the default: nobody is 192.0.2.9.
    assert!(ping(&tenant, "203.0.113.1").ok());
    assert!(!ping(&tenant, "203.0.113.2").ok());

    // Pages of 300 kB, over both families and in both directions.
    let folder = instance.folder().join("page");
    let page = Page::new(&folder, &"from beyond\n".repeat(25_000)).unwrap();
    for (from, at, hosts) in [
        (
            &*tenant,
            &outside.server,
            ["198.51.100.2", "[2001:db8:1::2]"],
        ),
        (&outside.server, &*tenant, ["10.9.0.10", "[fd00:9::10]"]),
    ] {
        let _server = page.serve(at).unwrap();
        for host in hosts {
            let got = page.comes(&instance, from, host);
            assert!(got, "the page of {host} does not arrive whole");
        }
    }
    let counters = at_uplink(&instance);
    assert!(
        counters["rx_frames"].as_u64() > Some(20) && counters["tx_frames"].as_u64() > Some(20),
        "{counters}"
    );
}

#[test]
fn what_is_not_allowed_at_the_uplink_is_dropped_and_counted_in_both_directions() {
    let outside = Outside::make().unwrap();
    let instance = Instance::start().unwrap();
    instance.apply(&outside.spec("", "weight: 1")).unwrap();
    let tenant = outside.tenant();
    assert!(instance.until(Duration::from_secs(5), |_| ping(&tenant, "192.0.2.1").ok()));

    // In: another's MAC, or a VLAN, ends at the fabric; a tag that names none, or an address
    // that the tenant does not have, at the tenant's switch. Nothing of it reaches an endpoint.
    let router = [0x02, 0xaa, 0, 0, 0, 1];
    let compartment = [0x02, 0, 0, 0, 0x09, 0x10];
    let packet = |to| frames::ipv4([198, 51, 100, 2], to, 17, &frames::udp(7, 7777, b"x"));
    let own = packet([10, 9, 0, 10]);
    let stranger = frames::ethernet([0x02, 0xee, 0, 0, 0, 7], router, 0x0800, &own);
    let tag = [&[0, 5, 8, 0], &own[..]].concat();
    let of_vlan = frames::ethernet(compartment, router, 0x8100, &tag);
    let tag = [&[0x60, 0, 8, 0], &own[..]].concat();
    let tagged = frames::ethernet(compartment, router, 0x8100, &tag);
    let elsewhere = frames::ethernet(compartment, router, 0x0800, &packet([10, 250, 0, 1]));
    let had = instance.endpoint("green", "web1").unwrap()["counters"]["tx_frames"].clone();
    for (reason, frame) in [
        ("fabric-no-entry", stranger),
        ("fabric-no-entry", of_vlan),
        ("vlan-tag", tagged),
        ("martian", elsewhere),
    ] {
        let before = dropped_outside(&instance, reason);
        frames::send(&outside.router.name, "r0", &vec![frame; 10]).unwrap();
        let counted = instance.until(Duration::from_secs(3), |i| {
            dropped_outside(i, reason) >= before + 10
        });
        assert!(counted, "{reason}: {}", instance.ask(&["status"]).unwrap());
    }
    let has = instance.endpoint("green", "web1").unwrap()["counters"]["tx_frames"].clone();
    assert_eq!(had, has, "a frame came through");

    // Out: a source that is not its own ends at the tenant's own switch.
    let mac = tenant.sh("cat /sys/class/net/eth0/address").unwrap().out;
    let mac: Vec<u8> = mac
        .trim()
        .split(':')
        .map(|b| u8::from_str_radix(b, 16).unwrap())
        .collect();
    let gateway = tenant
        .sh("ip neigh show 10.9.0.1 | sed 's/.*lladdr \\([^ ]*\\).*/\\1/'")
        .unwrap()
        .out;
    let gateway: Vec<u8> = gateway
        .trim()
        .split(':')
        .map(|b| u8::from_str_radix(b, 16).unwrap())
        .collect();
    let spoofed = frames::ipv4(
        [10, 9, 0, 77],
        [198, 51, 100, 2],
        17,
        &frames::udp(7, 7, b"x"),
    );
    let spoofed = frames::ethernet(
        gateway.try_into().unwrap(),
        mac.try_into().unwrap(),
        0x0800,
        &spoofed,
    );
    let before = instance.drops("green", "web1", "source-ip").unwrap();
    frames::send(&outside.tenant, "eth0", &vec![spoofed; 10]).unwrap();
    assert!(instance.until(Duration::from_secs(3), |i| {
        i.drops("green", "web1", "source-ip").unwrap() == before + 10
    }));
}

#[test]
fn a_taken_over_switch_says_nothing_on_the_uplink_that_is_not_its_own() {
    let outside = Outside::make().unwrap();
    let instance = Instance::start().unwrap();
    // Whatever is heard outside has been let through by the fabric.
    let heard = instance.folder().join("heard.pcapng");
    let mut ear = Ended(
        outside
            .router
            .command(&format!(
                "exec tshark -q -i r0 -w {} 2>/dev/null",
                heard.display()
            ))
            .spawn()
            .unwrap(),
    );
    assert!(instance.until(Duration::from_secs(10), |_| heard.exists()));
    let liar = e2e::program("bulkhead-liar");
    let placement = format!("placement: {{ program: {} }}", liar.display());
    let spec = outside.spec("", &placement);
    instance.apply(&spec).unwrap();
    let caught = |i: &Instance| {
        let status = i.ask(&["status"]).unwrap();
        let drops = status["compartments"][0]["fabric_drops"].clone();
        dropped(&serde_json::json!({ "drops": drops }), "fabric-source")
            + dropped(&serde_json::json!({ "drops": drops }), "fabric-no-entry")
    };
    assert!(
        instance.until(Duration::from_secs(10), |i| caught(i) > 100),
        "{}",
        instance.ask(&["status"]).unwrap()
    );
    // So that it is known to hear: the router asks for somebody.
    let _ = outside.router.sh("ping -n -c 1 -W 1 192.0.2.77; sleep 1");
    ear.end();
    let said = outside
        .router
        .sh(&format!(
            "tshark -r {} -T fields -e eth.src -e ip.src -e ipv6.src -e arp.src.proto_ipv4",
            heard.display()
        ))
        .unwrap();
    let own = outside
        .router
        .sh("cat /sys/class/net/r0/address")
        .unwrap()
        .out;
    assert!(said.out.contains(own.trim()), "the ear is deaf");
    for line in said
        .out
        .lines()
        .filter(|line| !line.starts_with(own.trim()))
    {
        let mut fields = line.split('\t');
        assert_eq!(fields.next(), Some("02:00:00:00:09:10"), "{line}");
    }
}

#[test]
fn a_taken_over_switch_is_no_router_no_dhcp_server_and_nobody_else_on_the_uplink() {
    let outside = Outside::make().unwrap();
    let instance = Instance::start().unwrap();
    let heard = instance.folder().join("heard.pcapng");
    let line = format!("exec tshark -q -i r0 -w {} 2>/dev/null", heard.display());
    let mut ear = Ended(outside.router.command(&line).spawn().unwrap());
    assert!(instance.until(Duration::from_secs(10), |_| heard.exists()));
    let liar = e2e::program("bulkhead-liar");
    let program = liar.with_file_name("bulkhead-liar-uplink");
    std::fs::copy(&liar, &program).unwrap();
    let placement = format!("placement: {{ program: {} }}", program.display());
    instance.apply(&outside.spec("", &placement)).unwrap();
    let caught = |i: &Instance| {
        let drops = i.ask(&["status"]).unwrap()["compartments"][0]["fabric_drops"].clone();
        dropped(&serde_json::json!({ "drops": drops }), "fabric-source")
    };
    // More than once through all its lies.
    let all = instance.until(Duration::from_secs(20), |i| caught(i) > 3000);
    std::fs::remove_file(&program).unwrap();
    assert!(all, "{}", instance.ask(&["status"]).unwrap());
    // What was heard is written by then.
    let _ = outside.router.sh("ping -n -c 1 -W 1 192.0.2.77; sleep 1");
    ear.end();
    let said = outside.router.sh(&format!(
        "tshark -r {} -Y \"frame contains 6c:69:61:72\" -T fields -e udp.srcport -e eth.dst -e ipv6.src -e icmpv6.type -e ipv6.nxt",
        heard.display()
    ));
    let said = said.unwrap();
    assert!(said.ok(), "{}", said.err);
    assert!(
        said.out.contains("1024"),
        "nothing true was heard: {}",
        said.out
    );
    // Of port 1024 from its own address, which is the truth, and nothing else.
    let other = said.out.lines().find(|line| !line.starts_with("1024\t"));
    assert_eq!(other, None);
}
