//! What tenants ask for, of many endpoints and rules.

use super::hosts::{Compiled, read};
use crate::{Known, Read, prove};
use std::fmt::Write;

/// So many endpoints in one subnet, these rules, and what is asked for.
fn text(endpoints: usize, rules: &[String], reach: &[&str]) -> String {
    let mut text = String::from(
        "version: 1\ntenants:\n  - name: red\n    subnets: [{name: net, prefixes: [10.1.0.0/16, \"fd00:1::/64\"]}]\n    endpoints:\n",
    );
    for n in 0..endpoints {
        // Every second address, so that they are no prefix together.
        let host = 10 + 2 * n;
        let _ = writeln!(
            text,
            "      - {{name: e{n}, subnet: net, addresses: [10.1.{}.{}, \"fd00:1::{host:x}\"], labels: {{side: s{}}}}}",
            host / 250,
            host % 250,
            n % 2,
        );
    }
    text += "    policy:\n      default: deny\n      rules:\n";
    for (n, rule) in rules.iter().enumerate() {
        let _ = writeln!(text, "        - {{name: r{n}, {rule}}}");
    }
    text += "      reach:\n";
    for asked in reach {
        let _ = writeln!(text, "        - {{{asked}}}");
    }
    text
}

fn rules(count: usize, allow: &str) -> Vec<String> {
    let mut rules: Vec<String> = (0..count)
        .map(|n| {
            let ports: Vec<String> = (0..10).map(|p| (1000 + 40 * n + 3 * p).to_string()).collect();
            format!(
                "action: deny, protocol: tcp, from: {{prefix: 198.51.{}.{}/32}}, ports: [{}], priority: 1",
                n / 250,
                n % 250,
                ports.join(", ")
            )
        })
        .collect();
    rules.push(format!("action: allow, {allow}, priority: 5"));
    rules
}

const ASKED: &[&str] = &[
    "from: {label: {side: s0}}, to: {label: {side: s1}}, protocol: tcp, ports: [443], allowed: yes",
    "to: {label: {side: s0}}, protocol: tcp, ports: [22], allowed: no",
    "from: {subnet: net}, to: {subnet: net}, protocol: tcp, ports: [443, 8080], allowed: yes",
];

#[test]
fn many_endpoints_with_the_same_rules_are_asked_about_together() {
    let allow = "protocol: tcp, ports: [443, 8080]";
    let host = Compiled::new(read(&text(100, &rules(150, allow), ASKED)));
    let breaches = host.breaches();
    assert!(breaches.is_empty(), "{}", breaches[0]);
}

#[test]
fn the_one_pair_of_many_is_found() {
    let allow = "protocol: tcp, ports: [443, 8080]";
    let mut stopped = rules(20, allow);
    stopped.push(
        "action: deny, from: {endpoint: e30}, to: {endpoint: e17}, protocol: tcp, ports: [8080], priority: 0"
            .into(),
    );
    let host = Compiled::new(read(&text(40, &stopped, ASKED)));
    let said: Vec<String> = host.breaches().iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].contains("red/e30") && said[0].contains("red/e17"),
        "{}",
        said[0]
    );
    // To itself nobody sends: that no rule lets it is not asked about.
    let mut alone = rules(20, allow);
    alone.push(
        "action: deny, from: {endpoint: e7}, to: {endpoint: e7}, protocol: tcp, ports: [8080], priority: 0"
            .into(),
    );
    let host = Compiled::new(read(&text(40, &alone, ASKED)));
    let breaches = host.breaches();
    assert!(breaches.is_empty(), "{}", breaches[0]);
}

#[test]
fn too_much_is_refused_at_its_line() {
    let allow = "protocol: tcp, ports: [443]";
    let mut rules = rules(400, allow);
    // Each pair is another matter: nothing shows it of all together.
    for n in 0..40 {
        rules.push(format!(
            "action: deny, from: {{endpoint: e{n}}}, to: {{endpoint: e{n}}}, priority: 0"
        ));
    }
    let asked: Vec<&str> = (0..150).map(|_| ASKED[0]).collect();
    let host = Compiled::new(read(&text(120, &rules, &asked)));
    let said: Vec<String> = host.breaches().iter().map(ToString::to_string).collect();
    assert!(
        said.iter().any(|s| s.contains("asks for is not proved")),
        "{said:?}"
    );
}

/// So many tenants that state themselves what they ask for; `greedy` of them so much that
/// it takes all of their fuel.
fn own(tenants: usize, greedy: usize) -> Compiled {
    let mut rules = rules(400, "protocol: tcp, ports: [443]");
    for n in 0..40 {
        rules.push(format!(
            "action: deny, from: {{endpoint: e{n}}}, to: {{endpoint: e{n}}}, priority: 0"
        ));
    }
    let mut host = String::from("version: 1\ntenants:\n");
    let mut parts = spec::Parts::default();
    for n in 0..tenants {
        let _ = writeln!(
            host,
            "  - {{name: t{n}, self-managed: {{endpoints: 120, rules: 500}}}}"
        );
        let asked = vec![ASKED[0]; if n < greedy { 100 } else { 1 }];
        let document = spec::Written {
            file: "own.yaml".into(),
            text: text(120, &rules, &asked).replace("name: red", &format!("name: t{n}")),
        };
        parts.documents.insert(format!("t{n}"), document);
    }
    parts.provider = spec::Written {
        file: "host.yaml".into(),
        text: host,
    };
    Compiled::new(read(&parts.joined()))
}

#[test]
fn what_many_tenants_ask_for_themselves_does_not_keep_a_host_from_starting() {
    let mut known = Known::default();
    assert!(prove(&own(6, 6).claim(), &mut known).is_ok(), "all anew");
    // The one who asks waits for its own, and is told.
    let mut known = Known::default();
    let before = own(3, 0);
    assert!(prove(&before.claim(), &mut known).is_ok());
    let mut after = own(3, 1);
    after.spec = Read::after(spec::Spec::clone(&after.spec), &before.spec);
    let said = prove(&after.claim(), &mut known).unwrap_err();
    let said: Vec<String> = said.iter().map(ToString::to_string).collect();
    assert!(
        (said.iter()).all(|one| one.contains("what t0 asks for is not proved")),
        "{said:?}"
    );
}
