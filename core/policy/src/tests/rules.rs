//! Tables mean what the spec says, and hold no more than they must.

use super::interpret::Reader;
use super::{NOW, example, intent, read};
use crate::explain::decide;
use crate::{Answer, Ids, Peer, PortIntent, Question, Side, Unclear, compile, explain};
use core::net::IpAddr;
use image::rules::{Action, MAX_RULES, Region, RuleTable};
use proptest::prelude::*;
use spec::mapped;
use wire::Tuple;

/// Two tenants that know each other, around these rules of red.
fn spec_of(
    rules: &[String],
    rails: &[String],
    default: &str,
    agreements: (bool, bool, bool),
) -> String {
    let (offer, accept, ended) = agreements;
    let until = if ended {
        "2025-12-31T23:59:59Z"
    } else {
        "2026-01-01T00:00:01Z"
    };
    let list = |rules: &[String], what: &str, indent: &str| {
        let named = rules.iter().enumerate();
        named
            .map(|(i, rule)| format!("{indent}- {{name: {what}{i}, {rule}}}\n"))
            .collect::<String>()
    };
    let policy = if rules.is_empty() && default.is_empty() {
        String::new()
    } else {
        let default = if default.is_empty() {
            String::new()
        } else {
            format!("      default: {default}\n")
        };
        format!(
            "    policy:\n{default}      rules:\n{}",
            list(rules, "r", "        ")
        )
    };
    let rails = match list(rails, "g", "  ") {
        none if none.is_empty() => String::new(),
        rails => format!("guardrails:\n{rails}"),
    };
    let offers = |name: &str, endpoint: &str, to: &str, pool: &str| {
        format!(
            "    offers:\n      - {{name: {name}, endpoint: {endpoint}, protocol: tcp, ports: [80, 8000-8010], to: [{to}], until: {until}, pool: [{pool}]}}\n"
        )
    };
    let accepts = |name: &str, from: &str, service: &str, to: &str, more: &str| {
        format!(
            "    accepts:\n      - {{name: {name}, from: {from}, service: {service}, as: [{to}]{more}}}\n"
        )
    };
    let mut red = String::new();
    let mut blue = String::new();
    if offer {
        red += &offers(
            "mine",
            "a",
            "green, blue",
            "10.1.250.0/30, 'fd00:1:250::/64'",
        );
        blue += &accepts("reds", "red", "mine", "10.1.200.9, 'fd00:1:200::9'", "");
    }
    if accept {
        blue += &offers("web", "x", "red", "10.1.251.0/29, 'fd00:1:251::/64'");
        red += &accepts(
            "theirs",
            "blue",
            "web",
            "10.1.200.10, 'fd00:1:200::10'",
            ", endpoints: {label: {k: one}}",
        );
    }
    format!(
        "version: 1
{rails}tenants:
  - name: red
    subnets:
      - {{name: web, prefixes: [10.1.1.0/24, fd00:1:1::/64], slaac: on}}
      - {{name: app, prefixes: [10.1.2.0/25]}}
      - {{name: six, prefixes: [fd00:1:3::/64]}}
    endpoints:
      - {{name: a, subnet: web, addresses: [10.1.1.10, 'fd00:1:1::10'], labels: {{k: one, l: x}}}}
      - {{name: b, subnet: web, addresses: [10.1.1.11, 'fd00:1:1::11'], labels: {{k: two}}}}
      - {{name: c, subnet: app, labels: {{k: one}}}}
      - {{name: d, subnet: six, labels: {{l: x}}}}
      - {{name: fw, subnet: app, roles: [router], prefixes: [10.9.0.0/16, 'fd00:9::/48']}}
{policy}{red}  - name: blue
    subnets: [{{name: web, prefixes: [10.1.1.0/24, fd00:1:1::/64]}}]
    endpoints: [{{name: x, subnet: web}}, {{name: y, subnet: web}}]
{blue}  - name: green
"
    )
}

fn selector() -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(vec![
        "any",
        "outside",
        "{endpoint: a}",
        "{endpoint: [b, c]}",
        "{endpoint: [fw, d]}",
        "{label: {k: one}}",
        "{label: {l: x}}",
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

fn packets() -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(vec![
        "",
        "",
        ", protocol: tcp",
        ", protocol: tcp, ports: [80, 443]",
        ", protocol: tcp, ports: [80, 81-90, 8000-8999], source-ports: [1024-65535]",
        ", protocol: udp, source-ports: [53, 53-60]",
        ", protocol: sctp, ports: 0-65535",
        ", protocol: 47",
        ", protocol: icmp",
        ", protocol: icmp, icmp: [echo-request, 3/4, 3/5]",
        ", protocol: icmp6, icmp: [packet-too-big, 128/0]",
    ])
}

fn rule(of: impl Strategy<Value = &'static str> + Clone) -> impl Strategy<Value = String> {
    let action = prop::sample::select(vec![
        "allow",
        "deny",
        "allow, state: stateless",
        "allow, log: on",
    ]);
    let side = || prop::option::of(of.clone());
    (action, side(), side(), packets(), prop::option::of(0u32..3)).prop_map(
        |(action, from, to, packets, priority)| {
            let side =
                |key: &str, of: Option<&str>| of.map_or(String::new(), |s| format!(", {key}: {s}"));
            let priority = priority.map_or(String::new(), |p| format!(", priority: {p}"));
            format!(
                "action: {action}{}{}{packets}{priority}",
                side("from", from),
                side("to", to)
            )
        },
    )
}

fn defaults() -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(vec![
        "",
        "deny",
        "allow",
        "{inside: deny, outbound: allow}",
        "{inside: allow, inbound: allow, outbound: deny}",
    ])
}

/// What of these can stand in a spec.
fn good(rules: Vec<String>, of: impl Fn(&[String]) -> String) -> Vec<String> {
    let alone = |rule: &String| spec::parse("x", of(std::slice::from_ref(rule)).as_bytes()).is_ok();
    rules.into_iter().filter(alone).collect()
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("address")
}

/// Addresses at which something changes.
const EDGES: &[&str] = &[
    "0.0.0.0",
    "8.8.8.8",
    "10.0.0.0",
    "10.1.0.255",
    "10.1.1.0",
    "10.1.1.7",
    "10.1.1.9",
    "10.1.1.10",
    "10.1.1.11",
    "10.1.1.12",
    "10.1.1.255",
    "10.1.2.0",
    "10.1.2.1",
    "10.1.2.2",
    "10.1.2.3",
    "10.1.2.128",
    "10.1.200.9",
    "10.1.200.10",
    "10.1.250.0",
    "10.1.250.1",
    "10.1.250.2",
    "10.1.251.1",
    "10.9.0.0",
    "10.9.255.255",
    "10.10.0.0",
    "169.254.1.1",
    "224.0.0.251",
    "255.255.255.255",
    "::",
    "::1",
    "fd00:1:1::9",
    "fd00:1:1::10",
    "fd00:1:1::11",
    "fd00:1:1::ff",
    "fd00:1:3::2",
    "fd00:1:3::77",
    "fd00:1:200::10",
    "fd00:1:250::1",
    "fd00:1:250::8000:0:0:1",
    "fd00:1:251::1",
    "fd00:9::1",
    "fd00:a::1",
    "fe80::1",
    "ff02::1",
    "2001:db8::1",
    "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
];
const PORTS: &[u16] = &[
    0, 53, 60, 61, 79, 80, 81, 90, 91, 443, 444, 768, 772, 773, 774, 1023, 1024, 2048, 2049, 2303,
    2304, 512, 767, 7999, 8000, 8010, 8011, 8999, 9000, 32768, 32769, 65535,
];
const PROTOCOLS: &[u8] = &[0, 1, 6, 17, 47, 58, 132, 255];

/// One draw; what it is taken from differs by endpoint.
type Draw = (
    prop::sample::Index,
    prop::sample::Index,
    prop::sample::Index,
    prop::sample::Index,
    prop::sample::Index,
);

fn header(draw: &Draw, own: &[IpAddr], others: &[IpAddr], sends: bool) -> Tuple {
    let (mine, theirs, source_port, port, protocol) = draw;
    let (mine, theirs) = (mapped(*mine.get(own)), mapped(*theirs.get(others)));
    let (source, destination) = if sends {
        (mine, theirs)
    } else {
        (theirs, mine)
    };
    Tuple {
        source,
        destination,
        source_port: *source_port.get(PORTS),
        destination_port: *port.get(PORTS),
        protocol: *protocol.get(PROTOCOLS),
    }
}

/// No box is two that follow each other, none covers what a table ends with.
fn minimal(table: &RuleTable) -> bool {
    let mut neighbours = table.rules.windows(2);
    let whole = table.rules.iter().position(|r| r.region == Region::ALL);
    whole.is_none_or(|at| at + 1 == table.rules.len())
        && !neighbours.any(|pair| {
            let (a, b) = (&pair[0], &pair[1]);
            let same = [
                a.region.source == b.region.source,
                a.region.destination == b.region.destination,
                a.region.source_port == b.region.source_port,
                a.region.destination_port == b.region.destination_port,
                a.region.protocol == b.region.protocol,
            ];
            let touch = |x: &core::ops::RangeInclusive<[u8; 16]>,
                         y: &core::ops::RangeInclusive<[u8; 16]>| {
                u128::from_be_bytes(*x.end()).saturating_add(1) >= u128::from_be_bytes(*y.start())
                    && x.start() <= y.start()
            };
            let number = |x: &core::ops::RangeInclusive<u16>,
                          y: &core::ops::RangeInclusive<u16>| {
                x.end().saturating_add(1) >= *y.start() && x.start() <= y.start()
            };
            let joins = match same.iter().position(|same| !same) {
                _ if same.iter().filter(|same| !**same).count() > 1 => false,
                None => true,
                Some(0) => touch(&a.region.source, &b.region.source),
                Some(1) => touch(&a.region.destination, &b.region.destination),
                Some(2) => number(&a.region.source_port, &b.region.source_port),
                Some(3) => number(&a.region.destination_port, &b.region.destination_port),
                _ => false,
            };
            joins && (a.id, a.action, a.log) == (b.id, b.action, b.log)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn tables_say_what_the_spec_says(
        rules in prop::collection::vec(rule(selector()), 0..7),
        rails in prop::collection::vec(rule(outer()), 0..3),
        default in defaults(),
        agreements in any::<(bool, bool, bool)>(),
        draws in prop::collection::vec(any::<Draw>(), 48),
    ) {
        let rails = rails.into_iter().map(|r| r.split(", priority").next().unwrap_or("").to_owned()).collect();
        let rails = good(rails, |rails| spec_of(&[], rails, "", agreements));
        let rules = good(rules, |rules| spec_of(rules, &[], default, agreements));
        let spec = read(&spec_of(&rules, &rails, default, agreements));
        let (ids, intent) = intent(&spec);
        prop_assert_eq!(&intent, &compile(&spec, &ids, NOW).expect("compiles"), "not the same twice");
        let reader = Reader { spec: &spec, ids: &ids, intent: &intent, now: NOW };
        let mut others: Vec<IpAddr> = EDGES.iter().map(|a| address(a)).collect();
        for tenant in &spec.tenants {
            others.extend(tenant.endpoints.iter().flat_map(|e| reader.addresses(tenant, e)));
        }
        for (compartment, port) in intent.ports() {
            let tenant = reader.tenant(&port.tenant);
            let endpoint = tenant.endpoints.iter().find(|e| e.name.as_str() == port.endpoint).expect("endpoint");
            let judged = tenant.is_judged(&spec.guardrails);
            prop_assert_eq!((port.egress.is_some(), port.ingress.is_some()), (judged, judged));
            let mut own = reader.addresses(tenant, endpoint);
            if port.endpoint == "fw" {
                own.extend(["10.9.0.0", "10.9.255.255", "fd00:9::1"].map(address));
            }
            for sends in [true, false] {
                let mut own = own.clone();
                own.extend(if sends { ["0.0.0.0", "::"] } else { ["224.0.0.251", "ff02::1"] }.map(address));
                let Some(table) = (if sends { port.egress } else { port.ingress }) else { continue };
                let table = &compartment.tables[table as usize];
                prop_assert!(minimal(table), "{:#?}", table);
                for draw in &draws {
                    let tuple = header(draw, &own, &others, sends);
                    let says = decide(table, &tuple);
                    let reads = reader.judge(port, sends, &tuple);
                    prop_assert_eq!(says, reads, "{}/{} sends {}: {:?}", &port.tenant, &port.endpoint, sends, tuple);
                }
            }
        }
        for compartment in intent.compartments.values() {
            let tables = &compartment.tables;
            let twice = (0..tables.len()).any(|i| tables[..i].contains(&tables[i]));
            prop_assert!(!twice, "equal tables are not shared");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_taken_over_is_what_would_be_made(
        rules in prop::collection::vec(rule(selector()), 0..4),
        rails in prop::collection::vec(rule(outer()), 0..3),
        first in any::<(bool, bool, bool)>(),
        second in any::<(bool, bool, bool)>(),
        (kept_rules, kept_rails, later) in any::<(prop::sample::Index, prop::sample::Index, bool)>(),
    ) {
        let rails: Vec<String> = rails.into_iter().map(|r| r.split(", priority").next().unwrap_or("").to_owned()).collect();
        let rails = good(rails, |rails| spec_of(&[], rails, "", second));
        let both = |rules: &[String]| {
            let other = spec_of(rules, &[], "deny", second);
            if spec::parse("x", other.as_bytes()).is_ok() { spec_of(rules, &[], "deny", first) } else { other }
        };
        let rules = good(rules, both);
        let before = read(&spec_of(&rules, &rails, "deny", first));
        let (ids, old) = intent(&before);
        let few = (&rules[..kept_rules.index(rules.len() + 1)], &rails[..kept_rails.index(rails.len() + 1)]);
        let after = read(&spec_of(few.0, few.1, "deny", second));
        let next = Ids::assign(&after, &ids);
        let now = NOW + 2 * u64::from(later);
        let reused = crate::compile_after(&after, &next, now, Some((&before, &ids, &old))).expect("compiles");
        prop_assert!(reused == compile(&after, &next, now).expect("compiles"));
        // What stays keeps its number, and no number is two things'.
        let kept = |old: &std::collections::BTreeMap<String, u32>, new: &std::collections::BTreeMap<String, u32>| {
            new.iter().all(|(name, id)| old.get(name).is_none_or(|was| was == id))
        };
        prop_assert!(kept(&ids.tenants["red"].rules, &next.tenants["red"].rules));
        prop_assert!(kept(&ids.guardrails, &next.guardrails));
        let mut all: Vec<u32> = next.guardrails.values().copied().collect();
        for tenant in next.tenants.values() {
            all.extend(tenant.rules.values().chain(tenant.offers.values()).chain(tenant.accepts.values()));
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        prop_assert_eq!(all.len(), count);
    }

    #[test]
    fn sets_are_what_their_ranges_are(
        ranges in prop::collection::vec((0u128..40, 0u128..6), 0..8),
        other in prop::collection::vec((0u128..40, 0u128..6), 0..8),
    ) {
        use crate::rules::Set;
        let closed = |list: &[(u128, u128)]| list.iter().map(|(a, n)| (*a, a + n)).collect::<Vec<_>>();
        let (ranges, other) = (closed(&ranges), closed(&other));
        let (set, others) = (Set::of(ranges.clone()), Set::of(other.clone()));
        let within = |list: &[(u128, u128)], x: u128| list.iter().any(|(a, b)| (*a..=*b).contains(&x));
        for x in 0..50 {
            prop_assert_eq!(within(set.ranges(), x), within(&ranges, x));
            prop_assert_eq!(within(set.complement().ranges(), x), !within(&ranges, x));
            prop_assert_eq!(set.meets((x, x + 3)), (x..=x + 3).any(|x| within(&ranges, x)));
        }
        prop_assert_eq!(set.complement().complement(), set.clone());
        prop_assert!(set.ranges().windows(2).all(|w| w[0].1 + 1 < w[1].0));
        let met: Vec<usize> = (0..set.ranges().len()).filter(|at| {
            let (a, b) = set.ranges()[*at];
            (a..=b).any(|x| within(&other, x))
        }).collect();
        prop_assert_eq!(set.met_by(&others), met);
    }
}

/// What an endpoint of red may send and be sent, as sides of `tables_say_what_the_spec_says`.
fn red(rules: &[&str], default: &str) -> (spec::Spec, Ids, crate::Intent) {
    let rules: Vec<String> = rules.iter().map(|r| (*r).to_owned()).collect();
    let spec = read(&spec_of(&rules, &[], default, (false, false, false)));
    let (ids, intent) = intent(&spec);
    (spec, ids, intent)
}

fn table<'a>(intent: &'a crate::Intent, name: &str, side: Side) -> &'a RuleTable {
    let (compartment, port) = intent.endpoint(name).expect("endpoint");
    let place = |port: &PortIntent| match side {
        Side::Egress => port.egress,
        Side::Ingress => port.ingress,
    };
    &compartment.tables[place(port).expect("table") as usize]
}

#[test]
fn what_cannot_match_at_an_endpoint_is_not_in_its_tables() {
    let (_, _, intent) = red(
        &["action: allow, from: {endpoint: a}, to: {endpoint: b}, protocol: tcp, ports: [80]"],
        "deny",
    );
    let count = |name: &str, side| table(&intent, name, side).rules.len();
    // b: IPv4, IPv6, link-local, and made from its MAC.
    assert_eq!(count("red/a", Side::Egress), 4);
    assert_eq!(count("red/b", Side::Ingress), 4);
    for (name, side) in [
        ("red/a", Side::Ingress),
        ("red/b", Side::Egress),
        ("red/c", Side::Egress),
        ("red/c", Side::Ingress),
    ] {
        assert_eq!(count(name, side), 0, "{name}");
    }
    // All that say nothing but "no" are one.
    assert_eq!(intent.compartments[&1].tables.len(), 3);
}

#[test]
fn a_tenant_about_which_nothing_is_said_has_no_tables() {
    let (_, _, intent) = red(&[], "");
    assert!(intent.compartments.values().all(|c| c.tables.is_empty()));
    assert!(
        intent
            .ports()
            .all(|(_, p)| p.egress.is_none() && p.ingress.is_none())
    );
}

#[test]
fn guardrails_come_first_and_an_allow_of_them_is_final() {
    let rules = ["action: allow, priority: 0, to: outside".to_owned()];
    let rails = [
        "action: allow, to: {prefix: 192.0.2.25/32}".to_owned(),
        "action: deny, tenants: [red], to: outside, protocol: tcp, ports: [25]".to_owned(),
    ];
    let spec = read(&spec_of(&rules, &rails, "deny", (false, false, false)));
    let (ids, intent) = intent(&spec);
    let egress = table(&intent, "red/a", Side::Egress);
    let to = |to: &str, port: u16| {
        let tuple = Tuple {
            source: mapped(address("10.1.1.10")),
            destination: mapped(address(to)),
            source_port: 40_000,
            destination_port: port,
            protocol: 6,
        };
        decide(egress, &tuple)
    };
    let rule = ids.tenants["red"].rules["r0"];
    assert_eq!(to("198.51.100.1", 25), (Action::Deny, ids.guardrails["g1"]));
    assert_eq!(to("192.0.2.25", 25), (Action::Allow, ids.guardrails["g0"]));
    assert_eq!(to("198.51.100.1", 80), (Action::Allow, rule));
    // Of blue only the first.
    let (blue, port) = intent.endpoint("blue/x").expect("blue/x");
    let rules = &blue.tables[port.egress.expect("table") as usize].rules;
    assert_eq!(
        rules.iter().map(|r| r.id).collect::<Vec<_>>(),
        [ids.guardrails["g0"]]
    );
}

#[test]
fn a_short_prefix_of_ipv6_does_not_reach_ipv4() {
    let (_, ids, intent) = red(&["action: deny, to: {prefix: '::/0'}"], "allow");
    let egress = table(&intent, "red/a", Side::Egress);
    let to = |to: &str| {
        let tuple = Tuple {
            destination: mapped(address(to)),
            ..Tuple::default()
        };
        decide(egress, &tuple)
    };
    assert_eq!(to("192.0.2.1").0, Action::Allow);
    assert_eq!(
        to("2001:db8::1"),
        (Action::Deny, ids.tenants["red"].rules["r0"])
    );
}

#[test]
fn a_table_of_too_many_boxes_is_refused_with_the_rule_that_is_too_much() {
    let ports: Vec<String> = (0..64).map(|i| (2 * i).to_string()).collect();
    let prefixes: Vec<String> = (0..=160).map(|i| format!("10.200.{i}.1/32")).collect();
    let rule = |n: usize| {
        format!(
            "action: allow, from: {{endpoint: a}}, to: {{prefix: [{}]}}, protocol: tcp, ports: [{}]",
            prefixes[..n].join(", "),
            ports.join(", ")
        )
    };
    let spec = |n| read(&spec_of(&[rule(n)], &[], "deny", (false, false, false)));
    let full = spec(160);
    let (_, intent) = intent(&full);
    assert_eq!(table(&intent, "red/a", Side::Egress).rules.len(), MAX_RULES);
    let over = spec(161);
    let errors = compile(&over, &Ids::assign(&over, &Ids::default()), NOW).expect_err("compiled");
    assert_eq!(errors[0].code, "too-many");
    assert_eq!(
        over.source
            .text()
            .lines()
            .nth(errors[0].line() as usize - 1)
            .map(str::trim_start)
            .map(|l| &l[..10]),
        Some("- {name: r")
    );
}

#[test]
fn a_switch_has_so_many_boxes_and_no_more() {
    let one = |id| RuleTable {
        rules: vec![image::rules::Rule {
            region: Region::ALL,
            action: Action::Deny,
            log: false,
            id,
        }],
        default: Action::Deny,
    };
    let mut tables = crate::rules::Tables::default();
    tables.boxes += crate::MAX_BOXES - 1;
    assert_eq!(tables.add(one(1)), Some(0));
    assert_eq!(tables.add(one(1)), Some(0), "an equal one takes no more");
    assert_eq!(tables.add(one(2)), None);
}

pub(super) fn ask(
    spec: &spec::Spec,
    ids: &Ids,
    intent: &crate::Intent,
    from: &str,
    to: &str,
    protocol: u8,
    port: u16,
) -> Answer {
    fn peer(text: &str) -> Peer<'_> {
        text.parse().map_or(Peer::Endpoint(text), Peer::Address)
    }
    let question = Question {
        from: peer(from),
        to: peer(to),
        protocol,
        source_port: 40_000,
        port,
    };
    explain(spec, ids, intent, &question).expect("an answer")
}

#[test]
fn the_policy_example_says_what_its_heading_says() {
    let spec = example("policy.yaml");
    let (ids, intent) = intent(&spec);
    let all = |from: &str, to: &str, protocol, port| {
        let answer = ask(&spec, &ids, &intent, from, to, protocol, port);
        assert!(!answer.there.is_empty(), "{from} {to}");
        answer.there.iter().map(|w| w.allowed).collect::<Vec<_>>()
    };
    assert_eq!(all("203.0.113.9", "shop/web1", 6, 443), [true]);
    assert_eq!(all("198.51.100.9", "shop/web1", 6, 443), [false]);
    assert_eq!(all("2001:db8:9::1", "shop/app1", 6, 8000), [false]);
    assert_eq!(all("shop/web1", "shop/app1", 6, 8050), [true, true]);
    assert_eq!(all("shop/web1", "shop/db1", 6, 5432), [false, false]);
    assert_eq!(all("shop/app1", "shop/db1", 6, 5432), [true, true]);
    assert_eq!(all("shop/db1", "shop/app1", 6, 5432), [false, false]);
    assert_eq!(all("shop/web1", "203.0.113.9", 6, 25), [false]);
    assert_eq!(all("shop/web1", "203.0.113.9", 6, 80), [true]);
    assert_eq!(all("shop/web1", "shop/web2", 1, 8 << 8), [true]);
    assert_eq!(all("shop/web1", "shop/web2", 58, 128 << 8), [true]);
}

#[test]
fn an_answer_names_rule_file_line_and_switch_both_ways() {
    let spec = example("policy.yaml");
    let (ids, intent) = intent(&spec);
    let answer = ask(&spec, &ids, &intent, "shop/web1", "shop/app1", 6, 8000);
    let way = &answer.there[0];
    assert!(way.allowed && way.answers && way.service.is_none());
    let line = 1 + spec
        .source
        .text()
        .lines()
        .position(|l| l.contains("name: web-to-app"))
        .expect("rule") as u32;
    for (verdict, (endpoint, side)) in way
        .verdicts
        .iter()
        .zip([("shop/web1", Side::Egress), ("shop/app1", Side::Ingress)])
    {
        assert_eq!((verdict.endpoint.as_str(), verdict.side), (endpoint, side));
        assert_eq!(verdict.compartment, "shop");
        assert_eq!(
            (verdict.decided.by, verdict.decided.name.as_str()),
            ("rule", "web-to-app")
        );
        assert_eq!(verdict.decided.place, Some(("spec.yaml".into(), line, 17)));
    }
    let back = &answer.back[0];
    assert!(!back.allowed);
    assert_eq!(
        (
            back.verdicts[0].decided.by,
            back.verdicts[0].decided.name.as_str()
        ),
        ("default", "inside")
    );
    let mail = ask(&spec, &ids, &intent, "shop/web1", "203.0.113.9", 6, 25);
    assert_eq!(mail.there[0].verdicts[0].decided.by, "guardrail");
    let untold = example("two-tenants.yaml");
    let (ids, intent) = super::intent(&untold);
    let free = ask(&untold, &ids, &intent, "red/web1", "red/app1", 6, 80);
    assert_eq!(free.there[0].verdicts[0].decided.by, "nothing");
    let apart = ask(&untold, &ids, &intent, "red/web1", "blue/app1", 6, 80);
    assert!(apart.there.is_empty() && apart.back.is_empty());
    let nobody = Question {
        from: Peer::Endpoint("red/x"),
        to: Peer::Endpoint("red/web1"),
        protocol: 6,
        source_port: 0,
        port: 0,
    };
    assert_eq!(
        explain(&untold, &ids, &intent, &nobody),
        Err(Unclear::NoEndpoint("red/x".into()))
    );
}
