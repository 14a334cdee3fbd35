//! What the compiler makes of honest specs is no breach.

use super::hosts::{Compiled, EXAMPLES, NOW, example, read, text};
use crate::{Known, prove};
use proptest::prelude::*;

#[test]
fn every_example_is_proved() {
    for name in EXAMPLES {
        let host = Compiled::new(example(name));
        let breaches = host.breaches();
        assert!(breaches.is_empty(), "{name}: {}", breaches[0]);
        // Without any one image the rest stands; with it away and nobody a liar, not.
        for slot in host.intent.compartments.keys() {
            let mut claim = host.claim();
            claim.compartments.remove(slot);
            assert!(prove(&claim, &mut Known::default()).is_err());
            claim.compromised = Some(*slot);
            let proved = prove(&claim, &mut Known::default()).expect("the rest");
            assert_eq!(proved.len(), host.intent.compartments.len());
        }
    }
}

pub fn selector() -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(vec![
        "any",
        "outside",
        "{endpoint: a}",
        "{endpoint: [b, c]}",
        "{endpoint: [fw, d]}",
        "{label: {k: one}}",
        "{label: {k: one, l: x}}",
        "{subnet: web}",
        "{subnet: [app, six]}",
        "{prefix: 10.1.1.10/31}",
        "{prefix: [10.1.1.0/24, 'fd00:1:1::/64']}",
        "{prefix: [10.0.0.0/8, 10.1.1.8/29, 8.8.8.8/32]}",
        "{prefix: '::/0'}",
        "{prefix: 0.0.0.0/0}",
        "{prefix: [224.0.0.0/4, 'ff00::/8']}",
        "{prefix: 'fe80::/10'}",
        "{agreement: mine}",
        "{agreement: theirs}",
    ])
}

fn outer() -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(vec![
        "any",
        "outside",
        "{prefix: [10.1.1.10/31, 'fd00:1:1::10/127']}",
        "{prefix: '::/0'}",
        "{prefix: [10.1.250.0/31, 10.1.200.10/32]}",
    ])
}

fn traffic() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "",
        "",
        ", protocol: tcp",
        ", protocol: tcp, ports: [80, 443]",
        ", protocol: tcp, ports: [80, 81-90, 8000-8999], source-ports: [1024-65535]",
        ", protocol: udp, source-ports: [53, 53-60]",
        ", protocol: sctp, ports: 0-65535",
        ", protocol: 47",
        ", protocol: icmp, icmp: [echo-request, 3/4, 3/5]",
        ", protocol: icmp6, icmp: [packet-too-big, 128/0]",
    ])
}

pub fn rule(of: impl Strategy<Value = &'static str> + Clone) -> impl Strategy<Value = String> {
    let action = prop::sample::select(vec!["allow", "deny", "allow, state: stateless"]);
    let side = || prop::option::of(of.clone());
    (action, side(), side(), traffic()).prop_map(|(action, from, to, traffic)| {
        let side =
            |key: &str, of: Option<&str>| of.map_or(String::new(), |s| format!(", {key}: {s}"));
        format!(
            "action: {action}{}{}{traffic}",
            side("from", from),
            side("to", to)
        )
    })
}

/// What of these can stand in a spec.
pub fn good(rules: Vec<String>, of: impl Fn(&[String]) -> String) -> Vec<String> {
    let alone = |rule: &String| spec::parse("x", of(std::slice::from_ref(rule)).as_bytes()).is_ok();
    rules.into_iter().filter(alone).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn random_specs_are_proved(
        rules in prop::collection::vec((rule(selector()), 0u32..3), 0..7),
        rails in prop::collection::vec(rule(outer()), 0..3),
        default in prop::sample::select(vec!["deny", "allow", "{inside: deny, outbound: allow}", "{inside: allow, inbound: allow, outbound: deny}"]),
        ended: bool,
    ) {
        let ends = if ended { "2025-12-31" } else { "2027-01-01" };
        let rules = rules.into_iter().map(|(rule, at)| format!("{rule}, priority: {at}")).collect();
        let rails = good(rails, |rails| text(&[], rails, default, ends));
        let rules = good(rules, |rules| text(rules, &[], default, ends));
        let host = Compiled::new(read(&text(&rules, &rails, default, ends)));
        prop_assert_eq!(host.now, NOW);
        let breaches = host.breaches();
        prop_assert!(breaches.is_empty(), "{}", breaches[0]);
    }
}

#[test]
fn what_was_proved_is_not_asked_again_and_what_changed_is() {
    let before = Compiled::new(read(&text(&[], &[], "deny", "2027-01-01")));
    let mut known = Known::default();
    let first = prove(&before.claim(), &mut known).expect("honest");
    assert_eq!(prove(&before.claim(), &mut known), Ok(first.clone()));
    // The same images for another spec: red's stays, and blue's, but not what they mean.
    let rule =
        "action: deny, from: {prefix: 203.0.113.7/32}, to: {endpoint: b}, priority: 1".to_owned();
    let after = Compiled::new(read(&text(&[rule], &[], "deny", "2027-01-01")));
    let mut claim = before.claim();
    claim.spec = &after.spec;
    assert!(prove(&claim, &mut known).is_ok(), "all is denied already");
    let rule = "action: allow, protocol: udp, priority: 1".to_owned();
    let after = Compiled::new(read(&text(&[rule], &[], "deny", "2027-01-01")));
    claim.spec = &after.spec;
    assert!(prove(&claim, &mut known).is_err());
    let ids = policy::Ids::assign(&after.spec, &before.ids);
    let after = Compiled::with(spec::Spec::clone(&after.spec), &ids);
    let changed = prove(&after.claim(), &mut known).expect("honest");
    let differ = first.iter().zip(&changed).filter(|(a, b)| a != b).count();
    assert_eq!((changed.len(), differ), (first.len(), 1));
    // An agreement's end changes the fabric, and both sides.
    let mut late = after.claim();
    late.now = 1_798_761_600;
    let breaches = prove(&late, &mut known).expect_err("it has ended");
    let slots: std::collections::BTreeSet<u32> = breaches.iter().map(|b| b.slot).collect();
    let sides = [0, after.slot_of("red"), after.slot_of("blue")];
    assert_eq!(slots, sides.into_iter().collect());
}

#[test]
fn an_agreement_ends_whatever_the_other_side_asks_for() {
    let path = format!(
        "{}/../../examples/agreement.yaml",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(path).expect("example");
    let (end, offer) = (
        text.find("until").unwrap(),
        text.find("    offers:").unwrap(),
    );
    for target in ["agreement: reds-db", "prefix: 10.1.200.10/32"] {
        let asks = format!(
            "    policy: {{reach: [{{from: {{endpoint: app1}}, to: {{{target}}}, protocol: tcp, ports: [5432], allowed: yes}}]}}\n    accepts:"
        );
        let asking = text.replace("    accepts:", &asks);
        let live = Compiled::new(read(&asking));
        assert!(live.breaches().is_empty(), "{}", live.breaches()[0]);
        // Over, or taken out by red.
        let after = Compiled::at(read(&asking), &live.ids, 1_924_992_001);
        assert!(text[end..].starts_with("until: 2031-01-01"));
        assert!(after.breaches().is_empty(), "{}", after.breaches()[0]);
        let blue = asking.find("  - name: blue").unwrap();
        let rule = asking.find("    policy:\n").unwrap();
        assert!(rule < offer && offer < blue);
        let without = format!("{}{}", &asking[..rule], &asking[blue..]);
        let after = Compiled::new(read(&without));
        assert!(after.breaches().is_empty(), "{}", after.breaches()[0]);
        // What is its own to give is asked for still.
        let own = asking.replace(&format!("to: {{{target}}}"), "to: {endpoint: other}");
        let own = own.replace("policy: {reach", "policy: {default: deny, reach");
        assert!(!Compiled::new(read(&own)).breaches().is_empty());
    }
}
