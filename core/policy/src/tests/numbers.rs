//! Numbers over changes.

use super::{NOW, example, intent, read};
use crate::{Ids, Intent, compile, compile_after};
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
    /// The host after a change.
    fn change(&self, text: &str) -> Host {
        let spec = read(text);
        let ids = Ids::assign(&spec, &self.ids);
        let intent = compile_after(
            &spec,
            &ids,
            NOW,
            Some((&self.spec, &self.ids, &self.intent)),
        )
        .expect("compiles");
        assert!(
            intent == compile(&spec, &ids, NOW).expect("compiles"),
            "reuse changed the result"
        );
        Host { spec, ids, intent }
    }
}

#[test]
fn an_endpoint_put_first_moves_nobody() {
    let host = start(BASE);
    let after = host.change(&BASE.replace(
        "      - {name: a, subnet: web}\n      - {name: b",
        "      - {name: aa, subnet: web}\n      - {name: a, subnet: web}\n      - {name: b",
    ));
    for name in ["red/a", "red/b", "blue/a"] {
        assert_eq!(host.ids.endpoint(name), after.ids.endpoint(name), "{name}");
    }
}

#[test]
fn a_number_that_is_free_is_not_given_in_the_change_that_freed_it() {
    let host = start(BASE);
    let after = host.change(&BASE.replace("{name: b, subnet: web}", "{name: z, subnet: web}"));
    assert_ne!(
        host.ids.endpoint("red/b").expect("b").slot,
        after.ids.endpoint("red/z").expect("z").slot
    );
    let renamed = BASE.replace("name: blue", "name: green");
    let after = host.change(&renamed);
    assert_eq!(
        (
            after.ids.compartments["green"].id,
            after.ids.tenants["green"].id
        ),
        (4, 3)
    );
    // Once it is gone its numbers are free.
    let later = after.change(&renamed.replace("name: green", "name: pink"));
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
    let other = host.change(&BASE.replace("192.0.2.10/24", "192.0.2.11/24"));
    assert_ne!(tag(&host), tag(&other));
    let same = host.change(&BASE.replace("{name: b, subnet: web}", "{name: c, subnet: web}"));
    assert_eq!(tag(&host), tag(&same));
}

#[test]
fn what_was_chosen_gives_way_to_what_is_written() {
    let host = start(BASE);
    let had = host.ids.endpoint("red/a").expect("a").chosen.clone();
    assert_eq!(had[0].to_string(), "10.1.1.2");
    let after = host.change(&BASE.replace(
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
    let larger = host.change(&many(33));
    assert_eq!(larger.ids.compartments["red"].slots, 64);
    let later = larger.change(&many(45));
    assert_eq!(
        later.intent.compartments[&1].create, larger.intent.compartments[&1].create,
        "made anew only when it leaps"
    );
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
fn a_machines_memory_is_its_own() {
    let made = |vhost: &str| {
        let spec = format!(
            "version: 1\ntenants:\n- name: red\n  subnets: [{{name: l, prefixes: [10.7.0.0/24]}}]\n  endpoints:\n  - {{name: v, subnet: l, addresses: [10.7.0.5], attach: {vhost}}}\n"
        );
        let intent = intent(&read(&spec)).1;
        let red = intent.compartments.values().next().expect("red");
        let port = red.ports.values().next().expect("its port");
        let mib = port.create.capacity;
        (mib, red.create, crate::needs(&intent).memory_bytes)
    };
    let (usual, compartment, needs) = made("vhost");
    assert_eq!(usual, 4096);
    for (said, mib) in [
        ("1MiB", 1),
        ("1025KiB", 2),
        ("16GiB", 16_384),
        ("1024GiB", 1 << 20),
    ] {
        let of = made(&format!("{{vhost: {{memory: {said}}}}}"));
        // A compartment that differed would be made anew for it.
        assert_eq!(of, (mib, compartment, needs), "{said}");
    }
}

#[test]
fn a_fifo_needs_the_memory_of_two_channels() {
    let needs = |capacity: &str| {
        let spec = format!(
            "version: 1\ntenants:\n- name: red\n  subnets: [{{name: l, prefixes: [10.7.0.0/24]}}]\n  endpoints:\n  - {{name: f, subnet: l, addresses: [10.7.0.5], attach: {{fifo: {{owner: 1000, capacity: {capacity}}}}}}}\n"
        );
        crate::needs(&intent(&read(&spec)).1).memory_bytes
    };
    // Two directions of a channel; two channels, and four made ahead.
    assert_eq!(needs("4MiB") - needs("2MiB"), (2 + 4) * 2 * (2 << 20));
}
