//! What is proved of `reach` is what the switch does: what must not pass is dropped where
//! it is proved, and where it is not, the packet that shows it passes.

use super::hosts::{Compiled, read, text};
use super::walk::walk;
use crate::Class;
use proptest::prelude::*;
use wire::Tuple;

const RULES: &[&str] = &[
    "action: deny, from: {label: {k: one}}, to: {subnet: web}, protocol: tcp, ports: [22, 23]",
    "action: allow, from: {endpoint: [a, b, d]}, to: {subnet: [web, six]}, protocol: tcp, ports: [443, 8443]",
    "action: allow, from: {subnet: app}, to: {label: {k: one}}, protocol: udp, ports: 5000-5999",
    "action: deny, to: {endpoint: b}, protocol: icmp",
    "action: allow, to: {endpoint: a}, protocol: icmp6, state: stateless",
];
const TRAFFIC: &[(&str, u8, u16)] = &[
    ("protocol: tcp, ports: [22]", 6, 22),
    ("protocol: tcp, ports: [443]", 6, 443),
    ("protocol: tcp, ports: [80]", 6, 80),
    ("protocol: udp, ports: [5500]", 17, 5500),
    ("protocol: icmp, icmp: [echo-request]", 1, 0x0800),
    ("protocol: icmp6, icmp: [echo-request]", 58, 0x8000),
];

fn host(rules: &[usize], default: &str, reach: &str) -> Compiled {
    let rules: Vec<String> = rules.iter().map(|at| RULES[*at].to_owned()).collect();
    let text = text(&rules, &[], default, "2027-01-01").replace(
        "    offers:\n      - {name: mine",
        &format!("      reach: [{{{reach}}}]\n    offers:\n      - {{name: mine"),
    );
    Compiled::new(read(&text))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn what_must_not_be_possible_is_dropped_or_shown_to_pass(
        rules in prop::sample::subsequence((0..RULES.len()).collect::<Vec<_>>(), 0..RULES.len()),
        default in prop::sample::select(vec!["deny", "allow", "{inside: deny, outbound: allow}"]),
        ends in prop::sample::subsequence(vec!["a", "b", "c", "d"], 2).prop_shuffle(),
        (words, protocol, port) in prop::sample::select(TRAFFIC),
    ) {
        let [from, to] = &ends[..] else { unreachable!() };
        let asks = |allowed: &str| {
            let reach = format!("from: {{endpoint: {from}}}, to: {{endpoint: {to}}}, {words}, allowed: {allowed}");
            host(&rules, default, &reach)
        };
        let host = asks("no");
        let red = host.slot_of("red");
        let breaches = host.breaches();
        let given = |name: &str| {
            let (_, port) = host.intent.endpoint(&format!("red/{name}")).unwrap();
            port.addresses.iter().map(|a| spec::mapped(*a)).collect::<Vec<_>>()
        };
        let mut passed = false;
        for source in given(from) {
            for destination in given(to) {
                let v4 = wire::address::unmapped(&source).is_some();
                let of = wire::address::unmapped(&destination).is_some();
                if v4 != of || (protocol == 1 && !v4) || (protocol == 58 && v4) {
                    continue;
                }
                let source_port = if protocol == 6 || protocol == 17 { 40_000 } else { 0 };
                let packet = Tuple { source, destination, source_port, destination_port: port, protocol };
                let end = walk(&host, red, &packet);
                prop_assert!(end.passed() || end.by_rules(), "{packet:?}: {end:?}");
                passed |= end.passed();
            }
        }
        prop_assert!(!breaches.is_empty() || !passed, "proved, and something passes");
        for breach in &breaches {
            prop_assert_eq!(breach.class, Class::Reach);
            let packet: Tuple = breach.packet.unwrap().into();
            // Else it is about what nobody is given: link-local addresses, what is behind routers.
            if !(given(from).contains(&packet.source) && given(to).contains(&packet.destination)) {
                prop_assert!(!passed, "{breach}");
                continue;
            }
            let end = walk(&host, red, &packet);
            prop_assert!(end.passed(), "{breach}: {end:?}");
        }
    }
}
