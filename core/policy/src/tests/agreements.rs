//! Agreements: who has one, until when, what follows on the fabric and in the tables.

use super::{NOW, example, fabric, intent, read};
use crate::{
    Ids, Intent, Lacks, Peer, Question, Unaccepted, agreements, compile, compile_after, explain,
    halves, unaccepted,
};
use spec::Spec;
use std::sync::Arc;

const ENDS: u64 = 1_924_992_000;

fn changed(edit: impl Fn(&str) -> String) -> Spec {
    let path = format!(
        "{}/../../examples/agreement.yaml",
        env!("CARGO_MANIFEST_DIR")
    );
    read(&edit(&std::fs::read_to_string(path).expect("example")))
}

fn after(before: &(Spec, Ids, Intent), spec: Spec, now: u64) -> (Spec, Ids, Intent) {
    let ids = Ids::assign(&spec, &before.1);
    let intent =
        compile_after(&spec, &ids, now, Some((&before.0, &before.1, &before.2))).expect("compiles");
    assert!(
        intent == compile(&spec, &ids, now).expect("compiles"),
        "reuse changed the result"
    );
    (spec, ids, intent)
}

fn start() -> (Spec, Ids, Intent) {
    let spec = example("agreement.yaml");
    let (ids, intent) = intent(&spec);
    (spec, ids, intent)
}

#[test]
fn an_agreement_is_one_offer_and_one_acceptance() {
    let (_, ids, intent) = start();
    let [one] = &intent.agreements[..] else {
        panic!("one agreement")
    };
    let numbers = &ids.agreements["red/db/blue"];
    assert_eq!((one.id, one.tag), (numbers.id, numbers.tag));
    assert_eq!(
        (one.offerer.as_str(), one.endpoint.as_str()),
        ("red", "db1")
    );
    assert_eq!(
        (one.acceptor.as_str(), one.acceptance.as_str()),
        ("blue", "reds-db")
    );
    let text = |list: &[core::net::IpAddr]| list.iter().map(|a| a.to_string()).collect::<Vec<_>>();
    assert_eq!(text(&one.service), ["10.1.1.10", "fd00:1:1:1::10"]);
    assert_eq!(text(&one.addresses), ["10.1.200.10", "fd00:1:200::10"]);
    assert_eq!(
        one.pool.iter().map(|p| p.to_string()).collect::<Vec<_>>(),
        ["10.1.250.0/28", "fd00:1:250::/64"]
    );
    assert_eq!(
        (one.protocol, &one.ports[..]),
        (Some(6), &[5432..=5432][..])
    );
    assert_eq!((one.until, intent.expires), (Some(ENDS), Some(ENDS)));
    for compartment in intent.compartments.values() {
        assert_eq!(compartment.agreements, intent.agreements);
    }
}

#[test]
fn it_ends_at_its_time_and_when_either_side_takes_its_part_out() {
    let before = start();
    let count = |spec: &Spec, now| agreements(spec, &Ids::assign(spec, &Ids::default()), now).len();
    assert_eq!(count(&before.0, ENDS - 1), 1);
    assert_eq!(count(&before.0, ENDS), 0);
    let (_, _, ended) = after(&before, before.0.clone(), ENDS);
    assert!(ended.agreements.is_empty() && fabric(&ended).image().forwards().is_empty());
    assert_eq!(ended.expires, None);
    for spec in [
        changed(|text| {
            text.replace("to: [blue]", "to: [blu3]")
                .replace("  - name: blue", "  - name: blu3\n  - name: blue")
        }),
        changed(|text| text.replace("service: db", "service: other")),
        changed(|text| text.split("    accepts:").next().expect("text").to_owned()),
    ] {
        let (_, ids, revoked) = after(&before, spec, NOW);
        assert!(ids.agreements.is_empty(), "it keeps its tag");
        assert!(revoked.agreements.is_empty() && fabric(&revoked).image().forwards().is_empty());
    }
}

#[test]
fn what_nobody_answers_is_told_with_what_it_lacks() {
    let halves_of = |spec: &Spec, now, of: Option<&str>, most| {
        let live = agreements(spec, &Ids::assign(spec, &Ids::default()), now);
        let all = halves(spec, &live, (of, most), now).into_iter();
        all.map(|it| (format!("{}/{} {}", it.tenant, it.name, it.other), it.lacks))
            .collect::<Vec<_>>()
    };
    let told = |spec: &Spec, now| halves_of(spec, now, None, 9);
    assert_eq!(told(&start().0, NOW), []);
    let both = |lacks: Lacks| {
        ["red/db blue", "blue/reds-db red"].map(|name| (name.to_owned(), lacks.clone()))
    };
    assert_eq!(told(&start().0, ENDS), both(Lacks::Time));
    assert_eq!(halves_of(&start().0, ENDS, None, 1), both(Lacks::Time)[..1]);
    let blues = halves_of(&start().0, ENDS, Some("blue"), 9);
    assert_eq!(blues, both(Lacks::Time)[1..]);
    // Another service than is offered: each side is told of its own.
    let misnamed = changed(|text| text.replace("service: db", "service: bd"));
    let [mut offer, mut accept] = both(Lacks::Acceptance);
    accept.1 = Lacks::Offer("bd".into());
    assert_eq!(told(&misnamed, NOW), [offer.clone(), accept.clone()]);
    // One that is offered to somebody else is none that it is told of.
    let elsewhere = changed(|text| {
        text.replace("to: [blue]", "to: [blu3]")
            .replace("  - name: blue", "  - name: blu3\n  - name: blue")
    });
    (offer.0, accept.1) = ("red/db blu3".into(), Lacks::Offer("db".into()));
    assert_eq!(told(&elsewhere, NOW), [offer, accept]);
    // Who is named may know what it has not accepted, while it could.
    let left = |spec: &Spec, to: &str, now| unaccepted(spec, to, 9, now);
    let db = Unaccepted {
        offerer: "red".into(),
        offer: "db".into(),
        is_routed: false,
    };
    assert_eq!(left(&misnamed, "blue", NOW), std::slice::from_ref(&db));
    assert_eq!(left(&misnamed, "blue", ENDS), []);
    assert_eq!(left(&elsewhere, "blu3", NOW), [db]);
    for (spec, to) in [
        (&elsewhere, "blue"),
        (&elsewhere, "red"),
        (&start().0, "blue"),
    ] {
        assert_eq!(left(spec, to, NOW), [], "{to}");
    }
}

/// The provider's document alone is refused for that.
#[test]
fn what_has_nothing_in_common_with_a_tenants_own_document_is_told() {
    let written = |text: &str| spec::Written {
        file: "some.yaml".into(),
        text: text.into(),
    };
    let host = "version: 1\ntenants:\n  - name: red\n    subnets: [{name: lan, prefixes: [10.1.1.0/24]}]\n    endpoints: [{name: db, subnet: lan, addresses: [10.1.1.10]}]\n    offers: [{name: db, endpoint: db, protocol: tcp, ports: [80], to: [blue], pool: [10.1.250.0/28]}]\n  - name: blue\n    self-managed: {endpoints: 2, rules: 1}\n";
    let own = "version: 1\ntenants:\n  - name: blue\n    subnets: [{name: lan, prefixes: [\"fd00:1::/64\"]}]\n    endpoints: [{name: app, subnet: lan, addresses: [\"fd00:1::10\"]}]\n    accepts: [{name: reds-db, from: red, service: db, as: \"fd00:2::10\"}]\n";
    let parts = spec::Parts {
        provider: written(host),
        documents: [("blue".to_owned(), written(own))].into(),
        ..spec::Parts::default()
    };
    let spec = read(&parts.joined());
    let ids = Ids::assign(&spec, &Ids::default());
    assert_eq!(agreements(&spec, &ids, NOW), []);
    let told = halves(&spec, &[], (None, 9), NOW);
    let lacks: Vec<_> = told.iter().map(|it| (&*it.tenant, &it.lacks)).collect();
    assert_eq!(lacks, [("red", &Lacks::Common), ("blue", &Lacks::Common)]);
}

#[test]
fn the_fabric_joins_the_two_by_its_tag_and_nothing_else() {
    let (_, _, intent) = start();
    let mapped = fabric(&intent);
    let image = mapped.image();
    let one = &intent.agreements[0];
    let way = |from, tag| image.default(from, tag).map(|f| (f.target, f.out_tag));
    assert_eq!(
        way(one.acceptor_slot, one.tag),
        Some((one.offerer_slot, one.tag))
    );
    assert_eq!(
        way(one.offerer_slot, one.tag),
        Some((one.acceptor_slot, one.tag))
    );
    assert_eq!(image.forwards().iter().filter(|f| f.kind != 0).count(), 2);
}

#[test]
fn numbers_stay_and_a_change_touches_the_two_it_is_about() {
    let third = "\n  - name: green\n    subnets: [{name: lan, prefixes: [10.1.1.0/24]}]\n    endpoints: [{name: a, subnet: lan}]\n";
    let with = |text: &str| format!("{text}{third}");
    let spec = changed(with);
    let (ids, intent) = intent(&spec);
    let before = (spec, ids, intent);
    let same = |a: &Intent, b: &Intent| -> Vec<bool> {
        a.compartments
            .iter()
            .map(|(id, c)| Arc::ptr_eq(c, &b.compartments[id]))
            .collect()
    };
    // Only red's part is another, but both have to know.
    let ports = after(
        &before,
        changed(|t| with(t).replace("ports: [5432]\n", "ports: [5433]\n")),
        NOW,
    );
    assert_eq!(same(&ports.2, &before.2), [false, false, true]);
    assert_eq!(ports.1.agreements, before.1.agreements);
    // A rule of one is its own.
    let rule = after(
        &before,
        changed(|t| with(t).replace("log: on", "log: off")),
        NOW,
    );
    assert_eq!(same(&rule.2, &before.2), [false, true, true]);
    assert_eq!(rule.1.tenants["red"].rules, before.1.tenants["red"].rules);
    // A guardrail touches whom it concerns.
    let rail = after(
        &before,
        changed(|t| {
            with(t).replace(
                "tenants:\n",
                "guardrails: [{name: g, action: deny, tenants: [green], to: outside}]\ntenants:\n",
            )
        }),
        NOW,
    );
    assert_eq!(same(&rail.2, &before.2), [true, true, false]);
    // Its time: both.
    let ended = after(&before, before.0.clone(), ENDS);
    assert_eq!(same(&ended.2, &before.2), [false, false, true]);
    assert_eq!(ended.1, before.1);
}

#[test]
fn another_compartment_gets_another_tag() {
    let before = start();
    let moved = after(
        &before,
        changed(|t| {
            t.replace(
                "  - name: blue\n",
                "  - name: blue\n    placement: {per: zone, zone: z}\n",
            )
        }),
        NOW,
    );
    let (old, new) = (
        &before.1.agreements["red/db/blue"],
        &moved.1.agreements["red/db/blue"],
    );
    assert_eq!(old.id, new.id);
    assert_ne!(old.tag, new.tag);
}

#[test]
fn tags_of_agreements_and_of_attachments_are_of_one_space() {
    let spec = changed(|t| {
        let out = |n: u32| {
            format!(
                "    outside: [{{uplink: wan0, address: [192.0.2.{n}/24], gateway: [192.0.2.1]}}]\n"
            )
        };
        t.replace(
            "tenants:\n",
            "uplinks: [{name: wan0, interface: eth1}]\ntenants:\n",
        )
        .replace("    policy:\n", &format!("{}    policy:\n", out(10)))
        .replace("    accepts:\n", &format!("{}    accepts:\n", out(11)))
    });
    let (ids, _) = intent(&spec);
    let mut tags: Vec<u16> = ids
        .tenants
        .values()
        .flat_map(|t| t.attachments.values())
        .map(|a| a.tag)
        .collect();
    tags.extend(ids.agreements.values().map(|a| a.tag));
    tags.sort_unstable();
    assert_eq!(tags, [1, 2, 3]);
}

#[test]
fn who_may_not_use_a_service_is_refused_whatever_the_rules_allow() {
    let open = "    policy: {default: allow, rules: [{name: all, action: allow, priority: 0}]}\n    accepts:\n";
    let spec = changed(|t| t.replace("    accepts:\n", open));
    let (ids, intent) = intent(&spec);
    let ask = |from: &str, to: &str, port| {
        let question = Question {
            from: Peer::Endpoint(from),
            to: to.parse().map_or(Peer::Endpoint(to), Peer::Address),
            protocol: 6,
            source_port: 40_000,
            port,
        };
        explain(&spec, &ids, &intent, &question).expect("answer")
    };
    let works = ask("blue/app1", "10.1.200.10", 5432);
    let [way] = &works.there[..] else {
        panic!("one way")
    };
    let service = way.service.as_ref().expect("service");
    assert!(way.allowed && way.answers && service.offered);
    assert_eq!(
        (service.destination.to_string(), service.source.to_string()),
        ("10.1.1.10".into(), "10.1.250.0".into())
    );
    let names: Vec<_> = way
        .verdicts
        .iter()
        .map(|v| {
            (
                v.compartment.as_str(),
                v.decided.by,
                v.decided.name.as_str(),
            )
        })
        .collect();
    assert_eq!(names, [("blue", "rule", "all"), ("red", "rule", "seen")]);
    let other = ask("blue/other", "10.1.200.10", 5432);
    assert!(!other.there[0].allowed);
    assert_eq!(other.there[0].verdicts[0].decided.by, "acceptance");
    let by_name = ask("blue/app1", "red/db1", 5432);
    assert_eq!(
        by_name.there.iter().map(|w| w.allowed).collect::<Vec<_>>(),
        [true, true]
    );
    assert!(by_name.back.is_empty(), "the offerer begins nothing");
    assert!(!ask("blue/app1", "red/db1", 22).there[0].allowed);
    assert!(ask("blue/app1", "red/backup", 5432).there.is_empty());
}

#[test]
fn an_address_that_stands_for_a_service_is_chosen_for_nobody() {
    let spec = changed(|t| {
        t.replace(
            "as: [10.1.200.10, \"fd00:1:200::10\"]",
            "as: [10.1.1.2, \"fd00:1:200::10\"]",
        )
        .replace(", addresses: [10.1.1.11, \"fd00:1:1:1::11\"]", "")
    });
    let (ids, _) = intent(&spec);
    let chosen = &ids.endpoint("blue/other").expect("other").chosen;
    assert_eq!(chosen[0].to_string(), "10.1.1.3");
}

#[test]
fn blocks_of_ports_stay_with_their_endpoints() {
    let text = |endpoints: &str| {
        format!(
            "version: 1
uplinks: [{{name: wan0, interface: eth1}}]
tenants:
  - name: red
    subnets: [{{name: web, prefixes: [10.1.1.0/24, fd00:1::/64]}}, {{name: six, prefixes: [fd00:2::/64]}}]
    endpoints: [{endpoints} {{name: s, subnet: six}}]
    outside: [{{uplink: wan0, address: [192.0.2.10/24], gateway: [192.0.2.1], nat: on, ports-per-endpoint: 20000}}]
"
        )
    };
    let a = "{name: a, subnet: web},";
    let b = "{name: b, subnet: web},";
    let c = "{name: c, subnet: web},";
    let spec = read(&text(&format!("{a} {b}")));
    let (ids, intent) = intent(&spec);
    let blocks = |ids: &Ids| ids.tenants["red"].attachments["wan0"].blocks.clone();
    assert_eq!(
        blocks(&ids),
        [("a".to_owned(), 0), ("b".to_owned(), 1)].into()
    );
    let attachment = &intent.compartments[&1].attachments[0];
    assert_eq!(attachment.nat_ports, 20_000);
    let slots: Vec<u32> = attachment.nat.iter().map(|n| n.slot).collect();
    assert_eq!(
        slots,
        ["red/a", "red/b"].map(|n| ids.endpoint(n).expect("ids").slot)
    );
    // Translated sources do not go out as they are.
    assert_eq!(
        attachment
            .sources
            .iter()
            .map(|p| p.to_string())
            .collect::<Vec<_>>(),
        ["fd00:1::/64", "fd00:2::/64"]
    );
    // a goes, c comes: not into a's block in the same change, as there is another.
    let next = read(&text(&format!("{b} {c}")));
    let ids = Ids::assign(&next, &ids);
    assert_eq!(
        blocks(&ids),
        [("b".to_owned(), 1), ("c".to_owned(), 2)].into()
    );
    // All three: a's is free again.
    let all = read(&text(&format!("{a} {b} {c}")));
    let ids = Ids::assign(&all, &ids);
    assert_eq!(
        blocks(&ids),
        [
            ("a".to_owned(), 0),
            ("b".to_owned(), 1),
            ("c".to_owned(), 2)
        ]
        .into()
    );
    // Full: whoever comes has to take one that was just left.
    let full = read(&text(&format!("{b} {c} {{name: d, subnet: web}},")));
    assert_eq!(blocks(&Ids::assign(&full, &ids))["d"], 0);
}

#[test]
fn where_nothing_leads_there_is_no_way_to_explain() {
    let (spec, ids, intent) = start();
    let ways = |from: &str, to: &str| {
        let peer = |text| str::parse(text).map_or(Peer::Endpoint(text), Peer::Address);
        let question = Question {
            from: peer(from),
            to: peer(to),
            protocol: 6,
            source_port: 40_000,
            port: 5432,
        };
        let answer = explain(&spec, &ids, &intent, &question).expect("answer");
        (answer.there.len(), answer.back.len())
    };
    // A service answers, and begins nothing.
    assert_eq!(ways("blue/app1", "10.1.200.10"), (1, 0));
    // Who uses it appears as somebody of the pool.
    assert_eq!(ways("10.1.250.3", "red/db1"), (1, 0));
    assert_eq!(ways("10.1.250.3", "red/backup"), (0, 0));
    // Nobody has an uplink; nobody has that address; the gateway does.
    assert_eq!(ways("red/db1", "203.0.113.7"), (0, 0));
    assert_eq!(ways("red/db1", "10.1.1.99"), (0, 0));
    assert_eq!(ways("red/db1", "10.1.1.1"), (1, 1));
}

#[test]
fn two_tenants_of_one_compartment_have_a_tag_each() {
    let near = |text: &str| {
        ["red", "blue"].iter().fold(text.to_owned(), |text, name| {
            let line = format!("  - name: {name}\n");
            text.replace(&line, &format!("{line}    placement: {{per: host}}\n"))
        })
    };
    let spec = changed(near);
    let (ids, intent) = intent(&spec);
    let one = &intent.agreements[0];
    let slot = one.acceptor_slot;
    assert_eq!(one.offerer_slot, slot);
    assert_ne!(one.tag, one.offerer_tag);
    let mapped = fabric(&intent);
    let image = mapped.image();
    let way = |tag| image.default(slot, tag).map(|f| (f.target, f.out_tag));
    assert_eq!(way(one.tag), Some((slot, one.offerer_tag)));
    assert_eq!(way(one.offerer_tag), Some((slot, one.tag)));
    assert_eq!(image.forwards().iter().filter(|f| f.kind != 0).count(), 2);
    let bytes = &intent.compartments[&slot].image.bytes;
    let memory = image::Aligned::copy_of(bytes);
    let tables = image::CompartmentImage::map(memory.as_ref()).expect("image");
    for (tag, tenant) in [(one.tag, "blue"), (one.offerer_tag, "red")] {
        let (_, crossing) = tables.crossing_by_tag(tag).expect("its side");
        let of = &tables.tenants()[crossing.tenant as usize];
        assert_eq!(of.id, ids.tenants[tenant].id);
    }
    // They stay, and are others when one moves away.
    assert_eq!(Ids::assign(&spec, &ids).agreements, ids.agreements);
    let before = (spec, ids, intent.clone());
    let apart = after(&before, changed(|t| t.to_owned()), NOW);
    let (near, apart) = (&before.1.agreements, &apart.1.agreements);
    let (near, apart) = (&near["red/db/blue"], &apart["red/db/blue"]);
    assert_eq!((near.id, apart.back), (apart.id, 0));
    assert!(![near.tag, near.back].contains(&apart.tag));
}
