//! Numbers over changes, and the steps of a change.

use super::{breaches, example, intent, read};
use crate::{Action, Change, Ids, Intent, Phase, Plan, compile, compile_after, diff};
use spec::Spec;

const BASE: &str = "version: 1
uplinks: [{name: wan0, interface: eth1}]
tenants:
  - name: red
    subnets: [{name: web, prefixes: [10.1.1.0/24]}]
    endpoints:
      - {name: a, subnet: web}
      - {name: b, subnet: web}
    outside: [{uplink: wan0, address: [192.0.2.10/24], gateway: [192.0.2.1]}]
  - name: blue
    subnets: [{name: web, prefixes: [10.1.1.0/24]}]
    endpoints:
      - {name: a, subnet: web}
";

struct Host {
    spec: Spec,
    ids: Ids,
    intent: Intent,
}

fn start(text: &str) -> Host {
    let spec = read(text);
    let (ids, intent) = intent(&spec);
    Host { spec, ids, intent }
}

impl Host {
    /// The host after a change, and the plan for it.
    fn change(&self, text: &str) -> (Host, Plan) {
        let spec = read(text);
        let ids = Ids::assign(&spec, &self.ids);
        let intent = compile_after(&spec, &ids, Some((&self.spec, &self.ids, &self.intent)))
            .expect("compiles");
        assert!(
            intent == compile(&spec, &ids).expect("compiles"),
            "reuse changed the result"
        );
        assert_eq!(breaches(&intent), []);
        let plan = diff(&self.intent, &intent);
        (Host { spec, ids, intent }, plan)
    }
}

/// One line a step.
fn lines(plan: &Plan) -> String {
    let line = |s: &crate::Step| {
        format!(
            "{:?} {} {}: {} (undo {})",
            s.phase,
            s.change.as_str(),
            s.object,
            s.reason,
            s.undo.len()
        )
    };
    plan.steps.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_first_apply_makes_everything() {
    let host = start(BASE);
    insta::assert_snapshot!(lines(&diff(&Intent::default(), &host.intent)));
}

#[test]
fn the_same_again_is_nothing_to_do() {
    let host = start(BASE);
    let (_, plan) = host.change(&BASE.replace("name: red", "name:   red   # again"));
    assert!(plan.is_empty(), "{}", lines(&plan));
}

#[test]
fn the_end_removes_everything() {
    let host = start(BASE);
    let plan = diff(&host.intent, &Intent::default());
    assert!(
        plan.steps
            .iter()
            .all(|s| s.phase == Phase::Cleanup || s.object == "fabric"),
        "{}",
        lines(&plan)
    );
    insta::assert_snapshot!(lines(&plan));
}

#[test]
fn a_new_endpoint_touches_its_tenant_only() {
    let host = start(BASE);
    let (after, plan) = host.change(&BASE.replace(
        "      - {name: b, subnet: web}\n",
        "      - {name: b, subnet: web}\n      - {name: c, subnet: web}\n",
    ));
    insta::assert_snapshot!(lines(&plan));
    for name in ["red/a", "red/b", "blue/a"] {
        assert_eq!(host.ids.endpoint(name), after.ids.endpoint(name), "{name}");
    }
}

#[test]
fn an_endpoint_put_first_moves_nobody() {
    let host = start(BASE);
    let (after, plan) = host.change(&BASE.replace(
        "      - {name: a, subnet: web}\n      - {name: b",
        "      - {name: aa, subnet: web}\n      - {name: a, subnet: web}\n      - {name: b",
    ));
    assert_eq!(host.ids.endpoint("red/a"), after.ids.endpoint("red/a"));
    assert_eq!(plan.phase(Phase::Prepare).count(), 1, "{}", lines(&plan));
}

#[test]
fn a_state_is_another_table_and_no_more() {
    let host = start(BASE);
    let (_, plan) = host.change(&BASE.replace(
        "{name: b, subnet: web}",
        "{name: b, subnet: web, state: quarantined}",
    ));
    assert_eq!(plan.steps.len(), 1, "{}", lines(&plan));
    assert!(matches!(
        plan.steps[0].action,
        Action::Install { target: 1, .. }
    ));
    assert_eq!(plan.steps[0].undo.len(), 1);
}

#[test]
fn a_number_that_is_free_is_not_given_in_the_change_that_freed_it() {
    let host = start(BASE);
    let (after, _) = host.change(&BASE.replace("{name: b, subnet: web}", "{name: z, subnet: web}"));
    assert_ne!(
        host.ids.endpoint("red/b").expect("b").slot,
        after.ids.endpoint("red/z").expect("z").slot
    );
    let renamed = BASE.replace("name: blue", "name: green");
    let (after, plan) = host.change(&renamed);
    assert_eq!(
        (
            after.ids.compartments["green"].id,
            after.ids.tenants["green"].id
        ),
        (4, 3)
    );
    insta::assert_snapshot!(lines(&plan));
    // Once it is gone its numbers are free.
    let (later, _) = after.change(&renamed.replace("name: green", "name: pink"));
    assert_eq!(
        (
            later.ids.compartments["pink"].id,
            later.ids.tenants["pink"].id
        ),
        (2, 2)
    );
}

#[test]
fn what_its_tag_means_changes_with_the_tag() {
    let host = start(BASE);
    let tag = |h: &Host| h.ids.tenants["red"].attachments["wan0"].tag;
    let (other, plan) = host.change(&BASE.replace("192.0.2.10/24", "192.0.2.11/24"));
    assert_ne!(tag(&host), tag(&other));
    // The fabric first: a switch that still runs the table before speaks with a tag that
    // is unknown by then, which is dropped and not taken for a lie.
    let installs: Vec<&str> = plan
        .phase(Phase::Commit)
        .map(|s| s.object.as_str())
        .collect();
    assert_eq!(installs, ["fabric", "compartment red"]);
    let (same, _) = host.change(&BASE.replace("{name: b, subnet: web}", "{name: c, subnet: web}"));
    assert_eq!(tag(&host), tag(&same));
}

#[test]
fn another_way_of_waiting_makes_the_compartment_anew() {
    let host = start(BASE);
    let (_, plan) =
        host.change(&BASE.replace("  - name: blue\n", "  - name: blue\n    wait: sleep\n"));
    insta::assert_snapshot!(lines(&plan));
    assert!(
        plan.changes()
            .iter()
            .all(|(_, object, _)| object.contains("blue"))
    );
}

#[test]
fn an_interface_that_moves_is_let_go_first() {
    let host = start(&BASE.replace(
        "{name: b, subnet: web}",
        "{name: b, subnet: web, attach: {tap: {namespace: n}}}",
    ));
    let moved = BASE
        .replace("      - {name: b, subnet: web}\n", "")
        .replace("  - name: blue", "  - name: blue\n    weight: 2")
        + "      - {name: b, subnet: web, attach: {tap: {namespace: n}}}\n";
    let (_, plan) = host.change(&moved);
    let order: Vec<_> = plan
        .phase(Phase::Prepare)
        .map(|s| (s.change, s.object.as_str()))
        .collect();
    assert_eq!(
        order,
        [
            (Change::Destroy, "endpoint red/b"),
            (Change::Create, "endpoint blue/b")
        ],
        "{}",
        lines(&plan)
    );
    assert_eq!(plan.phase(Phase::Cleanup).count(), 0, "{}", lines(&plan));
}

#[test]
fn what_was_chosen_gives_way_to_what_is_written() {
    let host = start(BASE);
    let had = host.ids.endpoint("red/a").expect("a").chosen.clone();
    assert_eq!(had[0].to_string(), "10.1.1.2");
    let (after, _) = host.change(&BASE.replace(
        "{name: b, subnet: web}",
        "{name: b, subnet: web, addresses: [10.1.1.2]}",
    ));
    assert_ne!(after.ids.endpoint("red/a").expect("a").chosen, had);
}

#[test]
fn counters_grow_in_leaps() {
    let many = |n: usize| {
        let endpoints: String = (0..n)
            .map(|i| format!("      - {{name: e{i}, subnet: web}}\n"))
            .collect();
        format!(
            "version: 1\ntenants:\n  - name: red\n    subnets: [{{name: web, prefixes: [10.1.0.0/16]}}]\n    endpoints:\n{endpoints}"
        )
    };
    let host = start(&many(20));
    assert_eq!(host.ids.compartments["red"].slots, 32);
    let (larger, plan) = host.change(&many(33));
    assert_eq!(larger.ids.compartments["red"].slots, 64);
    assert!(
        lines(&plan).contains("it needs room for more endpoints"),
        "{}",
        lines(&plan)
    );
    let (_, plan) = larger.change(&many(45));
    assert!(!lines(&plan).contains("replace"), "{}", lines(&plan));
}

#[test]
fn ids_survive_being_written_down() {
    let (ids, _) = intent(&example("reference.yaml"));
    let text = serde_json::to_string(&ids).expect("json");
    assert_eq!(ids, serde_json::from_str(&text).expect("json"));
}

#[test]
fn needs_count_what_is_asked_for() {
    let (_, two) = intent(&example("two-tenants.yaml"));
    let (_, levels) = intent(&example("levels.yaml"));
    let (two, levels) = (crate::needs(&two), crate::needs(&levels));
    assert_eq!(
        (two.processes + 1, levels.cores),
        (levels.processes, vec![1])
    );
    assert!(
        (50 << 20..100 << 20).contains(&two.memory_bytes),
        "{}",
        two.memory_bytes
    );
}

#[test]
fn undoing_brings_back_what_was() {
    // The undo of each step, in reverse, names what the old intent has.
    let host = start(BASE);
    let (_, plan) =
        host.change(&BASE.replace("  - name: blue\n", "  - name: blue\n    channel: 256KiB\n"));
    let undo: Vec<&Action> = plan
        .phase(Phase::Prepare)
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .flat_map(|s| &s.undo)
        .collect();
    let blue = &host.intent.compartments[&2];
    let port = blue.ports.values().next().expect("port");
    let expected = [
        Action::CreateCompartment(blue.create),
        Action::Install {
            target: 2,
            image: blue.image.clone(),
        },
        Action::CreatePort(port.create),
    ];
    assert!(
        undo.ends_with(&expected.iter().collect::<Vec<_>>()),
        "{undo:?}"
    );
}
