//! What tenants ask for between endpoints of circuits, of packets, and of both.

use super::hosts::{Compiled, read};
use image::compartment::CROSSING_RINGS;
use image::{Aligned, CompartmentImage};

/// `c` and `d` have circuits alone, `both` has them beside a veth, `p` and `q` have packets.
fn said(rules: &str, reach: &str) -> Vec<String> {
    let text = format!(
        "version: 1
uplinks: [{{name: wan0, interface: eth1}}]
tenants:
  - name: red
    subnets: [{{name: net, prefixes: [10.1.0.0/24, 'fd00:1::/64']}}]
    endpoints:
      - {{name: c, subnet: net, attach: circuits, labels: {{k: circuits}}}}
      - {{name: d, subnet: net, attach: circuits, labels: {{k: circuits}}}}
      - {{name: both, subnet: net, attach: {{veth: {{circuits: {{}}}}}}}}
      - {{name: m, subnet: net, attach: {{circuits: {{metered: on}}}}}}
      - {{name: r, subnet: net, attach: circuits, rate: 1Gbit}}
      - {{name: p, subnet: net, labels: {{k: packets}}}}
      - {{name: q, subnet: net, labels: {{k: packets}}}}
    outside: [{{uplink: wan0, address: [192.0.2.10/24], gateway: [192.0.2.1], nat: on}}]
    policy:
      default: deny
      rules: [{{name: r, {rules}}}]
      reach: [{{{reach}}}]
"
    );
    let host = Compiled::new(read(&text));
    host.breaches().iter().map(ToString::to_string).collect()
}

/// Between these two, with everything allowed.
fn between(from: &str, to: &str, what: &str) -> Vec<String> {
    let reach = format!("from: {{endpoint: {from}}}, to: {{endpoint: {to}}}, {what}allowed: yes");
    said("action: allow", &reach)
}

#[test]
fn who_has_circuits_alone_is_reached_by_them_and_by_nothing_else() {
    for what in ["protocol: tcp, ", "protocol: udp, ports: [53], "] {
        for (from, to) in [
            ("c", "d"),
            ("c", "both"),
            ("both", "d"),
            ("p", "both"),
            ("p", "q"),
        ] {
            assert_eq!(between(from, to, what), [""; 0], "{from} {to} {what}");
        }
        for (from, to) in [("c", "p"), ("p", "d")] {
            let said = between(from, to, what);
            assert!(
                said[0].contains("circuits alone, the other none"),
                "{said:?}"
            );
            assert!(
                said[0].contains(&format!("red/{from} to red/{to}")),
                "{said:?}"
            );
        }
    }
    // Whatever else there is takes a packet.
    for what in ["", "protocol: icmp, ", "protocol: 47, "] {
        for (from, to) in [("c", "d"), ("c", "both")] {
            let said = between(from, to, what);
            assert!(said[0].contains("TCP and UDP do alone"), "{what}: {said:?}");
        }
        for (from, to) in [("both", "p"), ("p", "q")] {
            assert_eq!(between(from, to, what), [""; 0], "{from} {to} {what}");
        }
    }
}

#[test]
fn who_is_metered_has_no_datagrams() {
    for (from, to) in [("c", "m"), ("m", "d"), ("both", "r"), ("m", "r")] {
        let said = between(from, to, "protocol: udp, ports: [53], ");
        assert!(
            said[0].contains("metered, or has a rate, TCP does alone"),
            "{said:?}"
        );
        assert_eq!(between(from, to, "protocol: tcp, "), [""; 0], "{from} {to}");
    }
    assert!(between("p", "m", "protocol: tcp, ")[0].contains("the other none"));
}

#[test]
fn several_of_them_are_asked_about_as_one_is() {
    let groups = |from: &str, to: &str| {
        let reach = format!(
            "from: {{label: {{k: {from}}}}}, to: {{label: {{k: {to}}}}}, protocol: tcp, allowed: yes"
        );
        said("action: allow", &reach)
    };
    assert_eq!(groups("circuits", "circuits"), [""; 0]);
    assert_eq!(groups("packets", "packets"), [""; 0]);
    for (from, to) in [("circuits", "packets"), ("packets", "circuits")] {
        let said = groups(from, to);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].contains("circuits alone, the other none"),
            "{said:?}"
        );
    }
}

#[test]
fn what_is_stateless_is_no_way_by_circuits() {
    let reach = |from: &str, to: &str| {
        let asked = format!(
            "from: {{endpoint: {from}}}, to: {{endpoint: {to}}}, protocol: tcp, ports: [80], allowed: yes"
        );
        said(
            "action: allow, protocol: tcp, ports: [80], state: stateless",
            &asked,
        )
    };
    assert_eq!(reach("p", "q"), [""; 0]);
    assert_eq!(reach("both", "p"), [""; 0]);
    for (from, to) in [("c", "d"), ("c", "both"), ("both", "d")] {
        let said = reach(from, to);
        assert!(said[0].contains("nothing that is stateless"), "{said:?}");
    }
}

#[test]
fn nobody_outside_is_reached_by_circuits_alone() {
    let reach = |from: &str| {
        let asked = format!(
            "from: {{endpoint: {from}}}, to: outside, protocol: tcp, ports: [443], allowed: yes"
        );
        said("action: allow", &asked)
    };
    assert_eq!(reach("both"), [""; 0]);
    assert!(reach("c")[0].contains("circuits alone"), "{:?}", reach("c"));
    // What may not pass is asked of the tables, whoever it is about.
    let asked = "from: {endpoint: c}, to: {endpoint: p}, protocol: tcp, ports: [22], allowed: no";
    assert_eq!(said("action: allow, protocol: udp", asked), [""; 0]);
    assert_eq!(said("action: allow", asked).len(), 1);
}

/// Red's `c`, of circuits alone, and `p`, of packets, use what blue's `x`, attached so, offers;
/// blue's own users are attached as red's are.
fn across(of_x: &str, user: &str, offer: &str, reach: &str) -> Vec<String> {
    let text = format!(
        "version: 1
tenants:
  - name: red
    subnets: [{{name: net, prefixes: [10.1.0.0/24]}}]
    endpoints:
      - {{name: c, subnet: net, attach: circuits}}
      - {{name: both, subnet: net, attach: {{veth: {{circuits: {{}}}}}}}}
      - {{name: p, subnet: net}}
    accepts: [{{name: theirs, from: blue, service: web, as: [10.1.200.1], endpoints: {{endpoint: {user}}}}}]
    policy:
      reach: [{{from: {{endpoint: {user}}}, to: {{agreement: theirs}}, {reach}, allowed: yes}}]
  - name: blue
    subnets: [{{name: net, prefixes: [10.1.0.0/24]}}]
    endpoints: [{{name: x, subnet: net, attach: {of_x}}}]
    offers: [{{name: web, endpoint: x, {offer}, to: [red], pool: [10.1.250.0/28]}}]
    policy:
      reach: [{{from: {{agreement: web}}, to: {{endpoint: x}}, {reach}, allowed: yes}}]
"
    );
    let host = Compiled::new(read(&text));
    host.breaches().iter().map(ToString::to_string).collect()
}

#[test]
fn across_an_agreement_circuits_do_tcp_and_nobody_is_held_to_how_another_is_attached() {
    let veth = "{veth: {circuits: {}}}";
    let tap = "{tap: {namespace: n, interface: eth0}}";
    let tcp = ("protocol: tcp, ports: [80]", "protocol: tcp, ports: [80]");
    let udp = ("protocol: udp, ports: [53]", "protocol: udp, ports: [53]");
    for of_x in ["circuits", veth, tap] {
        for user in ["c", "both", "p"] {
            assert_eq!(across(of_x, user, tcp.0, tcp.1), [""; 0], "{of_x} {user}");
        }
    }
    // By its own doing it has circuits alone, and so no datagrams beyond.
    let said = across(veth, "c", udp.0, udp.1);
    assert!(said[0].contains("TCP does alone across"), "{said:?}");
    assert!(said[0].contains("red/c"), "{said:?}");
    let said = across("circuits", "both", udp.0, udp.1);
    assert!(said[0].contains("to blue/x"), "{said:?}");
    assert_eq!(said.len(), 1, "red is not held to it: {said:?}");
    assert_eq!(across(tap, "p", udp.0, udp.1), [""; 0]);
}

#[test]
fn programs_of_two_tenants_share_memory_where_both_ask_and_nowhere_else() {
    let host = |offer: &str, accept: &str| {
        let text = format!(
            "version: 1
tenants:
  - name: red
    subnets: [{{name: net, prefixes: [10.1.0.0/24]}}]
    endpoints: [{{name: a, subnet: net, attach: circuits}}]
    accepts: [{{name: theirs, from: blue, service: web, as: [10.1.200.1]{accept}}}]
  - name: blue
    subnets: [{{name: net, prefixes: [10.1.0.0/24]}}]
    endpoints: [{{name: x, subnet: net, attach: circuits}}]
    offers: [{{name: web, endpoint: x, protocol: tcp, ports: [80], to: [red], pool: [10.1.250.0/28]{offer}}}]
"
        );
        Compiled::new(read(&text))
    };
    let (yes, no) = (", rings: yes", ", rings: no");
    for (offer, accept) in [(yes, yes), (yes, ""), ("", yes), (no, yes), ("", "")] {
        let agreed = (offer, accept) == (yes, yes);
        let mut host = host(offer, accept);
        assert_eq!(host.breaches(), [], "{offer} {accept}");
        for tenant in ["red", "blue"] {
            let slot = host.slot_of(tenant);
            let honest = host.images[&slot].clone();
            let memory = Aligned::copy_of(&honest);
            let mut tables = CompartmentImage::map(memory.as_ref()).unwrap().decode();
            assert_eq!(tables.crossings[0].has_rings(), agreed, "{offer} {accept}");
            tables.crossings[0].flags ^= CROSSING_RINGS;
            host.images.insert(slot, tables.finish().unwrap());
            let said = host.breaches();
            let said: Vec<String> = said.iter().map(ToString::to_string).collect();
            assert!(said[0].contains("share memory"), "{said:?}");
            host.images.insert(slot, honest);
        }
    }
}
