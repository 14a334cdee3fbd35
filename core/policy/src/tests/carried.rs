//! What an explanation says of ends that are attached differently: by circuits, by packets, by both.

use super::rules::ask;
use super::{intent, read};
use crate::{Bar, Side};

const SPEC: &str = "
version: 1
tenants:
  - name: red
    subnets:
      - { name: lan, prefixes: [10.1.1.0/24] }
    endpoints:
      - { name: alone, subnet: lan, addresses: [10.1.1.10], attach: circuits }
      - { name: other, subnet: lan, addresses: [10.1.1.11], attach: circuits }
      - { name: both, subnet: lan, addresses: [10.1.1.12], attach: { tap: { circuits: {} } } }
      - { name: counted, subnet: lan, addresses: [10.1.1.14], attach: { circuits: { metered: on } } }
      - { name: shut, subnet: lan, addresses: [10.1.1.15], attach: tap, state: quarantined }
      - { name: plain, subnet: lan, addresses: [10.1.1.13], attach: tap }
    policy:
      rules:
        - { name: loose, action: allow, protocol: tcp, ports: [99], state: stateless }
        - { name: all, action: allow }
    offers:
      - { name: db, endpoint: alone, protocol: tcp, ports: [5432], to: [blue], pool: [10.1.250.0/28] }
      - { name: dns, endpoint: alone, protocol: udp, ports: [53], to: [blue], pool: [10.1.251.0/28] }
  - name: blue
    subnets:
      - { name: lan, prefixes: [10.2.1.0/24] }
    endpoints:
      - { name: app, subnet: lan, addresses: [10.2.1.10], attach: circuits }
      - { name: tapped, subnet: lan, addresses: [10.2.1.11], attach: tap }
    accepts:
      - { name: db, from: red, service: db, as: [10.2.200.10] }
      - { name: dns, from: red, service: dns, as: [10.2.200.11] }
";

#[test]
fn what_nothing_carries_is_not_possible_whatever_rules_allow() {
    let spec = read(SPEC);
    let (ids, intent) = intent(&spec);
    let ping = (1, 8 << 8);
    let (from, to) = (
        Some(Bar::Apart(Side::Egress)),
        Some(Bar::Apart(Side::Ingress)),
    );
    for (a, b, (protocol, port), bar) in [
        ("red/alone", "red/other", (6, 80), None),
        ("red/alone", "red/other", (17, 80), None),
        ("red/alone", "red/other", ping, Some(Bar::Protocol)),
        ("red/alone", "red/other", (6, 99), Some(Bar::Stateless)),
        ("red/alone", "red/alone", (6, 80), None),
        ("red/alone", "red/both", (6, 80), None),
        ("red/both", "red/alone", ping, Some(Bar::Protocol)),
        ("red/both", "red/plain", ping, None),
        ("red/counted", "red/counted", (17, 53), None),
        ("red/alone", "red/alone", ping, Some(Bar::Protocol)),
        ("red/plain", "red/plain", ping, None),
        (
            "red/shut",
            "red/plain",
            (6, 80),
            Some(Bar::Shut(Side::Egress)),
        ),
        (
            "red/both",
            "red/shut",
            (6, 80),
            Some(Bar::Shut(Side::Ingress)),
        ),
        ("red/alone", "red/counted", (6, 80), None),
        ("red/alone", "red/counted", (17, 53), Some(Bar::Metered)),
        ("red/counted", "red/both", (17, 53), Some(Bar::Metered)),
        ("red/counted", "red/plain", (17, 53), from),
        ("red/alone", "red/plain", (6, 80), from),
        ("red/plain", "red/alone", (17, 80), to),
        ("10.1.1.13", "red/alone", (6, 80), to),
        ("red/alone", "10.1.1.13", (6, 80), from),
        ("blue/app", "red/alone", (6, 5432), None),
        ("blue/app", "10.2.200.10", (6, 5432), None),
        ("blue/app", "red/alone", (17, 53), Some(Bar::Crossing)),
        ("blue/tapped", "red/alone", (6, 5432), to),
        ("blue/tapped", "10.2.200.11", (17, 53), to),
    ] {
        let ways = ask(&spec, &ids, &intent, a, b, protocol, port).there;
        assert_eq!(ways.len(), 1, "{a} {b} {protocol}");
        let way = &ways[0];
        let told = (way.bar, way.allowed, way.answers);
        let may = bar.is_none();
        assert_eq!(told, (bar, may, may), "{a} {b} {protocol} {way:?}");
    }
}
