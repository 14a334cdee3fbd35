//! A tenant behind an uplink by AF_XDP, and what is said where that cannot be.

use e2e::Instance;
use e2e::outside::{Outside, Page};
use std::time::Duration;

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
    instance
        .apply(&outside.spec(", driver: xdp", "weight: 1"))
        .unwrap();
    assert_eq!(how(&instance), "AF_XDP, copy, queues: 1");
    let log = instance.log();
    assert!(log.contains("the uplink up0: AF_XDP, copy"), "{log}");

    let folder = instance.folder().join("page");
    let page = Page::new(&folder, &"from beyond\n".repeat(250_000)).unwrap();
    let tenant = outside.tenant();
    let _servers = [
        page.serve(&tenant).unwrap(),
        page.serve(&outside.server).unwrap(),
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
                let got = page.comes(&instance, from, host);
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
    let mac = outside.unplug().unwrap();
    let many = format!("numrxqueues {QUEUES} numtxqueues {QUEUES}");
    outside.plug(&mac, &many).unwrap();
    outside.finish().unwrap();
    let instance = Instance::start().unwrap();
    instance
        .apply(&outside.spec(", driver: xdp", "weight: 1"))
        .unwrap();
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
    instance.apply(&outside.spec("", "weight: 1")).unwrap();
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
        .apply(&outside.spec(", driver: af_packet", "weight: 1"))
        .unwrap();
    assert_eq!(how(&instance), "AF_PACKET, as the spec says");
    assert!(reaches(&instance, &outside, "192.0.2.1"));

    // The host would be cut off from what it has there.
    outside.wire.ip("addr add 192.0.2.200/24 dev up0").unwrap();
    let refused = instance
        .apply(&outside.spec(", driver: xdp", "weight: 1"))
        .unwrap_err();
    assert!(refused.contains("192.0.2.200"), "{refused}");
    assert!(reaches(&instance, &outside, "192.0.2.1"), "what ran runs");
    outside.wire.ip("addr del 192.0.2.200/24 dev up0").unwrap();
    instance
        .apply(&outside.spec(", driver: xdp", "weight: 1"))
        .unwrap();
    assert_eq!(how(&instance), "AF_XDP, copy, queues: 1");
}

#[test]
fn an_uplink_by_af_xdp_that_vanished_is_made_again() {
    let outside = finished();
    let instance = Instance::start().unwrap();
    let spec = outside.spec(", driver: xdp", "weight: 1");
    instance.apply(&spec).unwrap();
    assert!(reaches(&instance, &outside, "192.0.2.1"));
    let mac = outside.unplug().unwrap();
    let noticed = |i: &Instance| i.log().contains("the uplink up0 is gone");
    assert!(instance.until(Duration::from_secs(5), noticed));
    outside.plug(&mac, "").unwrap();
    outside.finish().unwrap();
    instance.apply(&spec).unwrap();
    assert!(reaches(&instance, &outside, "192.0.2.1"));
}
