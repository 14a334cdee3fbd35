//! A tenant behind an uplink by AF_XDP, and what is said where that cannot be.

use e2e::outside::Outside;
use e2e::{Ended, Instance};
use std::time::Duration;

fn spec(outside: &Outside, driver: &str) -> String {
    format!(
        "version: 1
uplinks:
  - {{ name: wan, interface: up0, namespace: {}{driver} }}
tenants:
  - name: green
    subnets:
      - {{ name: lan, prefixes: [10.9.0.0/24, \"fd00:9::/64\"] }}
    endpoints:
      - name: web1
        subnet: lan
        addresses: [10.9.0.10, \"fd00:9::10\"]
        attach: {{ tap: {{ namespace: {}, interface: eth0, make: true }} }}
    outside:
      - uplink: wan
        address: [192.0.2.10/24, \"2001:db8::10/64\"]
        gateway: [192.0.2.1, \"2001:db8::1\"]
        mac: 02:00:00:00:09:10
",
        outside.wire.name, outside.tenant
    )
}

/// What `status` says of the uplink.
fn how(instance: &Instance) -> String {
    let status = instance.ask(&["status"]).unwrap();
    let how = status["uplinks"][0]["how"].as_str();
    how.unwrap_or_default().to_owned()
}

fn reaches(instance: &Instance, outside: &Outside, to: &str) -> bool {
    instance.until(Duration::from_secs(10), |_| {
        let said = outside.tenant().sh(&format!("ping -n -c 1 -W 1 {to}"));
        said.unwrap().ok()
    })
}

/// A far end that leaves nothing of its frames to others.
fn finished() -> Outside {
    let outside = Outside::make().unwrap();
    outside.finish().unwrap();
    outside
}

#[test]
fn a_tenant_behind_af_xdp_talks_and_goes_on_through_every_death() {
    let outside = finished();
    let instance = Instance::start().unwrap();
    instance.apply(&spec(&outside, ", driver: xdp")).unwrap();
    assert_eq!(how(&instance), "AF_XDP, copy, queues: 1");
    let log = instance.log();
    assert!(log.contains("the uplink up0: AF_XDP, copy"), "{log}");

    let folder = instance.folder().join("page");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("index.html"), "from beyond\n".repeat(250_000)).unwrap();
    let serve = format!(
        "cd {}; exec python3 -m http.server --bind :: 80 >/dev/null 2>&1",
        folder.display()
    );
    let tenant = outside.tenant();
    let _servers = [
        Ended(tenant.command(&serve).spawn().unwrap()),
        Ended(outside.server.command(&serve).spawn().unwrap()),
    ];
    for died in ["", "fabric", "supervisor", "switch", "fabric"] {
        match died {
            "" => {}
            "switch" => drop(instance.kill("green")),
            program => instance.kill_program(&format!("bulkhead-{program}")),
        }
        for to in ["198.51.100.2", "2001:db8:1::2"] {
            assert!(reaches(&instance, &outside, to), "{to} after {died:?}");
        }
        // Pages of 3 MB in both directions: what leaves by large frames is cut here.
        for (from, hosts) in [
            (&*tenant, ["198.51.100.2", "[2001:db8:1::2]"]),
            (&outside.server, ["10.9.0.10", "[fd00:9::10]"]),
        ] {
            for host in hosts {
                let got = instance.until(Duration::from_secs(10), |_| {
                    let line = format!("curl -sg --max-time 5 http://{host}/");
                    from.sh(&line).unwrap().out.len() == 3_000_000
                });
                assert!(got, "the page of {host} does not arrive after {died:?}");
            }
        }
    }
    assert_eq!(how(&instance), "AF_XDP, copy, queues: 1");
    let counters = instance.ask(&["status"]).unwrap()["uplinks"][0]["counters"].clone();
    assert!(counters["rx_frames"].as_u64() > Some(1000), "{counters}");

    // The program goes with the uplink.
    let attached = || outside.wire.sh("ip -o link show up0").unwrap().out;
    assert!(attached().contains("xdp"), "{}", attached());
    instance.apply("version: 1\ntenants: []\n").unwrap();
    let gone = |_: &Instance| !attached().contains("xdp");
    assert!(instance.until(Duration::from_secs(5), gone));
}

#[test]
fn all_queues_of_an_interface_are_served_and_handed_on() {
    // More than descriptors go with one message.
    const QUEUES: usize = 16;
    let outside = finished();
    let mac = outside
        .router
        .sh("cat /sys/class/net/r0/address")
        .unwrap()
        .out;
    outside.wire.ip("link del up0").unwrap();
    let many = format!("numrxqueues {QUEUES} numtxqueues {QUEUES}");
    outside
        .wire
        .ip(&format!(
            "link add up0 {many} type veth peer name r0 address {} netns {} {many}",
            mac.trim(),
            outside.router.name
        ))
        .unwrap();
    outside.wire.ip("link set up0 up").unwrap();
    for line in [
        "link set r0 up",
        "addr add 192.0.2.1/24 dev r0",
        "route add 10.9.0.0/24 via 192.0.2.10",
    ] {
        outside.router.ip(line).unwrap();
    }
    outside.finish().unwrap();
    let instance = Instance::start().unwrap();
    instance.apply(&spec(&outside, ", driver: xdp")).unwrap();
    assert_eq!(how(&instance), format!("AF_XDP, copy, queues: {QUEUES}"));
    for died in ["", "fabric", "supervisor", "fabric"] {
        if !died.is_empty() {
            instance.kill_program(&format!("bulkhead-{died}"));
        }
        assert!(reaches(&instance, &outside, "192.0.2.1"), "after {died:?}");
        // Of many flows, which come by many queues.
        let flows = "python3 -c \"
import socket
for n in range(200):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(('192.0.2.1', 3000 + n))
    s.sendto(b'x', ('10.9.0.10', 4000 + n))
\"";
        let count = |i: &Instance| {
            let web1 = i.endpoint("green", "web1").unwrap();
            web1["counters"]["tx_frames"].as_u64().unwrap()
        };
        let before = count(&instance);
        assert!(outside.router.sh(flows).unwrap().ok());
        let came = |i: &Instance| count(i) >= before + 200;
        assert!(
            instance.until(Duration::from_secs(10), came),
            "after {died:?}"
        );
    }
}

#[test]
fn why_an_uplink_is_not_by_af_xdp_is_shown_and_af_xdp_alone_is_refused() {
    let outside = Outside::make().unwrap();
    let instance = Instance::start().unwrap();
    instance.apply(&spec(&outside, "")).unwrap();
    assert_eq!(
        how(&instance),
        "AF_PACKET: frames of a veth come without the checksums that its other end left out"
    );
    assert!(reaches(&instance, &outside, "192.0.2.1"));
    let shown = instance.say(&["status"]).unwrap();
    assert!(
        shown.out.contains("AF_PACKET: frames of a veth"),
        "{}",
        shown.out
    );
    instance
        .apply(&spec(&outside, ", driver: af_packet"))
        .unwrap();
    assert_eq!(how(&instance), "AF_PACKET, as the spec says");
    assert!(reaches(&instance, &outside, "192.0.2.1"));

    // The host would be cut off from what it has there.
    outside.wire.ip("addr add 192.0.2.200/24 dev up0").unwrap();
    let refused = instance
        .apply(&spec(&outside, ", driver: xdp"))
        .unwrap_err();
    assert!(refused.contains("192.0.2.200"), "{refused}");
    assert!(reaches(&instance, &outside, "192.0.2.1"), "what ran runs");
    outside.wire.ip("addr del 192.0.2.200/24 dev up0").unwrap();
    instance.apply(&spec(&outside, ", driver: xdp")).unwrap();
    assert_eq!(how(&instance), "AF_XDP, copy, queues: 1");
}

#[test]
fn an_uplink_by_af_xdp_that_vanished_is_made_again() {
    let outside = finished();
    let instance = Instance::start().unwrap();
    let spec = spec(&outside, ", driver: xdp");
    instance.apply(&spec).unwrap();
    assert!(reaches(&instance, &outside, "192.0.2.1"));
    // The same station afterwards: who has another MAC is asked for anew only in time.
    let mac = outside
        .router
        .sh("cat /sys/class/net/r0/address")
        .unwrap()
        .out;
    outside.wire.ip("link del up0").unwrap();
    let noticed = |i: &Instance| i.log().contains("the uplink up0 is gone");
    assert!(instance.until(Duration::from_secs(5), noticed));
    outside
        .wire
        .ip(&format!(
            "link add up0 type veth peer name r0 netns {}",
            outside.router.name
        ))
        .unwrap();
    outside.wire.ip("link set up0 up").unwrap();
    let line = format!("link set r0 address {}", mac.trim());
    outside.router.ip(&line).unwrap();
    for line in [
        "link set r0 up",
        "addr add 192.0.2.1/24 dev r0",
        "route add 10.9.0.0/24 via 192.0.2.10",
    ] {
        outside.router.ip(line).unwrap();
    }
    outside.finish().unwrap();
    instance.apply(&spec).unwrap();
    assert!(reaches(&instance, &outside, "192.0.2.1"));
}
