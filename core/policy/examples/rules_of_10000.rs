//! How long the rules of 10,000 endpoints take to work out, 250 for each:
//! `cargo run --release -p core-policy --example rules_of_10000`.

use std::fmt::Write;
use std::time::Instant;

use core_policy::{Ids, compile, compile_after};

fn main() {
    let text = text();
    let begun = Instant::now();
    let parsed = spec::parse("spec.yaml", text.as_bytes()).expect("a good spec");
    println!("read: {:?}", begun.elapsed());
    let begun = Instant::now();
    let ids = Ids::assign(&parsed, &Ids::default());
    println!("numbers: {:?}", begun.elapsed());
    let begun = Instant::now();
    let intent = compile(&parsed, &ids, 0).expect("compiles");
    let took = begun.elapsed();
    let tables = || intent.compartments.values().flat_map(|c| &c.tables);
    let boxes: usize = tables().map(|t| t.rules.len()).sum();
    println!(
        "compile: {took:?}, {} tables, {boxes} boxes",
        tables().count()
    );
    let text = text.replacen("192.0.2.7/32", "192.0.2.8/32", 1);
    let changed = spec::parse("spec.yaml", text.as_bytes()).expect("a good spec");
    let next = Ids::assign(&changed, &ids);
    let begun = Instant::now();
    compile_after(&changed, &next, 0, Some((&parsed, &ids, &intent))).expect("compiles");
    println!("after one rule of 10,000: {:?}", begun.elapsed());
}

/// 40 tenants of 250 endpoints in ten roles, with 250 rules each.
fn text() -> String {
    let mut text = String::from("version: 1\ntenants:\n");
    for tenant in 0..40 {
        let _ = writeln!(
            text,
            "  - name: t{tenant}\n    subnets: [{{name: web, prefixes: [10.1.0.0/16, fd00:1::/64]}}]\n    endpoints:"
        );
        for at in 0..250 {
            let role = at % 10;
            let _ = writeln!(
                text,
                "      - {{name: e{at}, subnet: web, labels: {{role: r{role}}}}}"
            );
        }
        text.push_str("    policy:\n      rules:\n");
        for at in 0..250 {
            let (role, port) = (at % 10, 1000 + at);
            let _ = writeln!(
                text,
                "        - {{name: r{at}, action: allow, from: {{prefix: 192.0.2.{at}/32}}, to: {{label: {{role: r{role}}}}}, protocol: tcp, ports: [{port}]}}"
            );
        }
    }
    text
}
