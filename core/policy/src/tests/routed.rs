//! Agreements of prefixes: what takes part, who begins, what follows in the tables.

use super::{fabric, intent, read};
use crate::{Ids, Intent, Peer, Question, Way, explain};
use image::compartment::{CROSSING_BOTH, CROSSING_OFFERER, CROSSING_ROUTED};
use image::{Aligned, CompartmentImage, CompartmentTables};
use spec::Spec;

fn changed(edit: impl Fn(&str) -> String) -> (Spec, Ids, Intent) {
    let path = format!("{}/../../examples/routed.yaml", env!("CARGO_MANIFEST_DIR"));
    let spec = read(&edit(&std::fs::read_to_string(path).expect("example")));
    let (ids, intent) = intent(&spec);
    (spec, ids, intent)
}

fn plain(text: &str) -> String {
    text.to_owned()
}

/// Both say that both begin.
fn both(text: &str) -> String {
    text.replace("to: [blue]", "to: [blue]\n        both: yes")
        .replace("service: lan", "service: lan\n        both: yes")
}

fn tables(intent: &Intent, tenant: &str) -> CompartmentTables {
    let bytes = &intent.compartment_of(tenant).expect("tenant").image.bytes;
    let memory = Aligned::copy_of(bytes);
    CompartmentImage::map(memory.as_ref())
        .expect("image")
        .decode()
}

fn prefixes(list: &[spec::Prefix]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

#[test]
fn what_both_name_takes_part() {
    let (_, ids, intent) = changed(plain);
    let [one] = &intent.agreements[..] else {
        panic!("one agreement")
    };
    assert_eq!(one.tag, ids.agreements["red/lan/blue"].tag);
    let routed = one.routed.as_ref().expect("routed");
    assert_eq!(
        prefixes(&routed.offered),
        ["10.1.1.0/24", "fd00:1:1:1::/64"]
    );
    assert_eq!(prefixes(&one.pool), ["10.2.1.0/24", "fd00:2:1:1::/64"]);
    assert!(!routed.both && one.service.is_empty() && one.endpoint.is_empty());

    // What red adds is nothing to blue before it has said so; a family that one side
    // has no part in is left out.
    let wider = |text: &str| {
        text.replace(
            "route: [10.1.1.0/24, fd00:1:1:1::/64]",
            "route: [10.1.1.0/24, 10.1.9.0/24, fd00:1:1:1::/64]",
        )
        .replace(
            "route: [10.1.0.0/16, fd00:1::/32]",
            "route: [10.1.1.0/25, fd00:1::/32]",
        )
        .replace("users: [10.2.0.0/16, fd00:2::/32]", "users: [10.2.0.0/16]")
    };
    let (_, _, intent) = changed(wider);
    let one = &intent.agreements[0];
    let routed = one.routed.as_ref().expect("routed");
    assert_eq!(prefixes(&routed.offered), ["10.1.1.0/25"]);
    assert_eq!(prefixes(&one.pool), ["10.2.1.0/24"]);
}

#[test]
fn each_side_has_its_crossing_and_the_fabric_its_two_entries() {
    let (_, _, intent) = changed(plain);
    let mapped = fabric(&intent);
    assert_eq!(
        mapped
            .image()
            .forwards()
            .iter()
            .filter(|f| f.kind != 0)
            .count(),
        2
    );
    for (tenant, own) in [("red", "10.1.1.0/24"), ("blue", "10.2.1.0/24")] {
        let tables = tables(&intent, tenant);
        let [crossing] = &tables.crossings[..] else {
            panic!("one crossing")
        };
        assert_eq!(crossing.flags, CROSSING_ROUTED);
        assert_eq!(crossing.role == CROSSING_OFFERER, tenant == "red");
        let own: spec::Prefix = own.parse().expect("prefix");
        let (_, first) = &tables.routed_prefixes[0];
        assert_eq!(
            (first.theirs, first.prefix, first.len),
            (0, own.range().0, 120)
        );
        assert_eq!(tables.routed_prefixes.len(), 4);
        assert!(tables.service_ports.is_empty(), "any protocol");
    }
    let (_, _, intent) = changed(|text| {
        text.replace(
            "to: [blue]",
            "to: [blue]\n        protocol: tcp\n        ports: [443]",
        )
    });
    let ports = &tables(&intent, "red").service_ports;
    assert_eq!(
        ports
            .iter()
            .map(|(_, p)| (p.protocol, p.first, p.last))
            .collect::<Vec<_>>(),
        [(6, 443, 443)]
    );
}

fn ask(of: &(Spec, Ids, Intent), from: &str, to: &str, protocol: u8, port: u16) -> Vec<Way> {
    let question = Question {
        from: from.parse().map_or(Peer::Endpoint(from), Peer::Address),
        to: to.parse().map_or(Peer::Endpoint(to), Peer::Address),
        protocol,
        source_port: 40_000,
        port,
    };
    explain(&of.0, &of.1, &of.2, &question)
        .expect("answer")
        .there
}

#[test]
fn who_may_begin_is_explained_on_both_sides() {
    let one = changed(plain);
    let ways = ask(&one, "blue/app1", "red/db1", 6, 443);
    assert_eq!(ways.len(), 2);
    for way in &ways {
        assert!(way.allowed && way.answers, "{way:?}");
        let service = way.service.as_ref().expect("across");
        assert_eq!(
            (service.source, service.destination),
            (way.source, way.destination)
        );
        let by: Vec<_> = way
            .verdicts
            .iter()
            .map(|v| (v.compartment.as_str(), v.decided.by))
            .collect();
        assert_eq!(by, [("blue", "acceptance"), ("red", "offer")]);
    }
    assert!(ask(&one, "blue/app1", "10.1.1.10", 17, 53)[0].allowed);
    assert!(ask(&one, "10.2.1.10", "red/db1", 17, 53)[0].allowed);
    // Whether anybody has the address is for its own tenant to know: the way is the same.
    let nobody = ask(&one, "10.2.1.77", "red/db1", 17, 53);
    assert!(nobody[0].allowed && nobody[0].service.is_some());
    let told: Vec<_> = nobody[0].verdicts.iter().map(|it| &*it.endpoint).collect();
    assert_eq!(told, ["red/db1"]);
    for (from, to, port, by) in [
        ("blue/app1", "red/db1", 22, "rule"),
        ("blue/other", "red/db1", 443, "acceptance"),
        ("red/db1", "blue/app1", 443, "offer"),
        ("red/db1", "10.2.1.10", 443, "offer"),
    ] {
        let ways = ask(&one, from, to, 6, port);
        let way = &ways[0];
        assert!(!way.allowed, "{from} {to}: {way:?}");
        let denies = way
            .verdicts
            .iter()
            .find(|v| v.action == image::rules::Action::Deny);
        assert_eq!(denies.expect("one denies").decided.by, by, "{from} {to}");
    }
    assert!(ask(&one, "blue/app1", "red/ops", 6, 443).is_empty());
    // Where a protocol is named the rest is nobody's to allow.
    let tcp = changed(|text| text.replace("to: [blue]", "to: [blue]\n        protocol: tcp"));
    assert!(ask(&tcp, "blue/app1", "red/db1", 6, 443)[0].allowed);
    assert!(!ask(&tcp, "blue/app1", "red/db1", 17, 443)[0].allowed);
}

#[test]
fn the_offerer_begins_where_both_say_so_and_with_whom_the_acceptor_says() {
    for one_alone in ["to: [blue]", "service: lan"] {
        let one =
            changed(|text| text.replace(one_alone, &format!("{one_alone}\n        both: yes")));
        assert!(!one.2.agreements[0].both());
        assert!(!ask(&one, "red/db1", "blue/app1", 6, 443)[0].allowed);
    }
    let one = changed(both);
    assert_eq!(
        tables(&one.2, "blue").crossings[0].flags,
        CROSSING_ROUTED | CROSSING_BOTH
    );
    assert!(ask(&one, "red/db1", "blue/app1", 6, 443)[0].allowed);
    assert!(ask(&one, "blue/app1", "red/db1", 6, 443)[0].allowed);
    assert!(!ask(&one, "red/db1", "blue/other", 6, 443)[0].allowed);
    // Whatever blue's rules allow.
    let open = "    policy: {default: allow, rules: [{name: all, action: allow, priority: 0}]}\n    accepts:\n";
    let one = changed(|text| both(text).replace("    accepts:\n", open));
    assert!(!ask(&one, "red/db1", "blue/other", 6, 443)[0].allowed);
    assert!(!ask(&one, "blue/other", "red/db1", 6, 443)[0].allowed);
}
