//! What the proof's boxes do not settle within their fuel: z3 settles it, confined, and where
//! it is not there nothing is installed.

use e2e::{Instance, Said};
use std::fmt::Write;

/// Red must not reach b from a by TCP. Rules that deny it, port by port, stand in front of
/// rules that allow some of it at both ends; the boxes look at every pair of those. Where a
/// rule is `missing`, its ports are reached.
fn spec(missing: Option<usize>) -> String {
    const SLICES: usize = 256;
    let mut text = String::from(
        "version: 1
tenants:
- name: red
  subnets: [{name: lan, prefixes: [10.1.1.0/24]}]
  endpoints:
  - {name: a, subnet: lan, addresses: [10.1.1.10], attach: fifo}
  - {name: b, subnet: lan, addresses: [10.1.1.11], attach: fifo}
  policy:
    rules:
",
    );
    let mut rule = |name: String, action: &str, first: usize, last: usize| {
        let _ = writeln!(
            text,
            "    - {{name: {name}, action: {action}, from: {{endpoint: a}}, to: {{endpoint: b}}, protocol: tcp, ports: [{first}-{last}]}}"
        );
    };
    for slice in (0..SLICES).filter(|slice| Some(*slice) != missing) {
        // Not in their order, so that no two beside each other are one.
        let at = slice * 167 % SLICES;
        rule(format!("no{slice}"), "deny", at * 256, at * 256 + 255);
    }
    for n in 0..700 {
        let first = n * 7919 % 30_000;
        rule(format!("yes{n}"), "allow", first, first + 30_000 + n);
    }
    text +=
        "    reach:\n    - {from: {endpoint: a}, to: {endpoint: b}, protocol: tcp, allowed: no}\n";
    text
}

fn apply(instance: &Instance, spec: &str) -> Said {
    let file = instance.folder().join("spec.yaml");
    std::fs::write(&file, spec).unwrap();
    instance
        .say(&["apply", &file.display().to_string()])
        .unwrap()
}

#[test]
fn z3_settles_what_the_boxes_leave_open() {
    let instance = Instance::start().unwrap();
    let said = apply(&instance, &spec(None));
    assert_eq!(said.code, 0, "{said:?}\n{}", instance.log());
    assert_eq!(instance.child("bulkhead-solver"), None, "it has ended");
    // Ports 167 * 256 and on.
    let said = apply(&instance, &spec(Some(1)));
    assert_ne!(said.code, 0);
    let port = |said: &str| -> Option<u32> {
        let (_, rest) = said.split_once("to 10.1.1.11:")?;
        rest.split(|c: char| !c.is_ascii_digit())
            .next()?
            .parse()
            .ok()
    };
    let shown = port(&said.err).or_else(|| port(&said.out));
    assert!(
        shown.is_some_and(|port| (42_752..=43_007).contains(&port)),
        "{said:?}\n{}",
        instance.log()
    );
}

#[test]
fn without_z3_it_is_refused_in_words_that_help() {
    for solver in ["/nonexistent/z3", "/etc/hostname"] {
        let instance = Instance::start_with(&["--solver", solver]).unwrap();
        let said = apply(&instance, &spec(None));
        assert_ne!(said.code, 0);
        let all = format!("{}{}", said.out, said.err);
        assert!(all.contains("not proved within its fuel"), "{said:?}");
        let helps = match solver {
            "/etc/hostname" => "nor was it by z3",
            _ => "apt install z3",
        };
        assert!(all.contains(helps), "{said:?}\n{}", instance.log());
        // What is easy is still proved.
        let easy = spec(None).lines().take(8).collect::<Vec<_>>().join("\n");
        let easy = easy.replace("  policy:\n    rules:", "");
        assert_eq!(apply(&instance, &easy).code, 0);
    }
}
