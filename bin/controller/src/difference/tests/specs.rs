//! From specs: what a change does, that its steps are never torn in whatever order a
//! batch's are done, and that undoing any part of them brings back what was.

use super::*;
use crate::applier::existing;
use crate::steps::{described, undoing};
use crate::world::World;
use proptest::prelude::*;

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

fn made(text: &str, old: &World) -> World {
    World::compile("x.yaml", text.as_bytes(), old).unwrap_or_else(|e| panic!("{e:?}\n{text}"))
}

fn between(old: &World, new: &World) -> Difference {
    Difference::between(
        &existing(old),
        new.objects(),
        new.digests(),
        new.images(),
        new.epoch(),
    )
}

/// A batch a line, then what people are told.
fn lines(old: &World, new: &World) -> String {
    let difference = between(old, new);
    let mut out = String::new();
    for (phase, batches) in [
        ("prepare", &difference.prepare),
        ("commit", &difference.commit),
        ("cleanup", &difference.cleanup),
    ] {
        for batch in batches {
            let steps: Vec<String> = batch.iter().map(described).collect();
            out += &format!("{phase}: {}\n", steps.join(", "));
        }
    }
    let name = |target| match target {
        FABRIC => "the fabric".to_owned(),
        id => format!("compartment {id}"),
    };
    for change in difference.changes(&existing(old), name) {
        out += &format!("{} {}: {}\n", change.action, change.object, change.reason);
    }
    out
}

/// The steps of a change to `BASE`.
fn changed(from: &str, to: &str) -> String {
    assert!(BASE.contains(from), "{from}");
    let base = made(BASE, &World::default());
    lines(&base, &made(&BASE.replace(from, to), &base))
}

#[test]
fn the_first_apply_makes_everything() {
    let none = World::default();
    insta::assert_snapshot!(lines(&none, &made(BASE, &none)));
}

#[test]
fn the_end_removes_everything_after_the_last_table() {
    let base = made(BASE, &World::default());
    insta::assert_snapshot!(lines(&base, &World::nothing(&base).expect("nothing")));
}

#[test]
fn another_layout_is_nothing_to_do() {
    assert_eq!(changed("name: red", "name:   red   # again"), "");
}

#[test]
fn a_new_endpoint_touches_its_tenant_only() {
    insta::assert_snapshot!(changed(
        "      - {name: b, subnet: web}\n",
        "      - {name: b, subnet: web}\n      - {name: c, subnet: web}\n",
    ));
}

#[test]
fn an_endpoint_put_first_replaces_nobody() {
    let steps = changed(
        "      - {name: b",
        "      - {name: aa, subnet: web}\n      - {name: b",
    );
    assert!(!steps.contains("removing"), "{steps}");
}

#[test]
fn a_state_is_another_table_and_no_more() {
    assert_eq!(
        changed(
            "{name: b, subnet: web}",
            "{name: b, subnet: web, state: quarantined}"
        ),
        "commit: installing the table image of compartment 1\n\
         install tables of compartment 1: what it forwards by has changed\n"
    );
}

#[test]
fn a_tenant_renamed_is_another() {
    insta::assert_snapshot!(changed("name: blue", "name: green"));
}

#[test]
fn another_way_of_waiting_makes_the_compartment_anew() {
    insta::assert_snapshot!(changed(
        "  - name: blue\n",
        "  - name: blue\n    wait: sleep\n"
    ));
}

/// Its addresses are the same whatever it is attached by, though not every kind of port has them set.
#[test]
fn of_another_kind_of_port_that_alone_is_told_which_both_have() {
    let with = |rest: &str| BASE.replace("name: b, ", &format!("name: b, {rest}, "));
    for (from, to, why) in [
        ("attach: circuits", "attach: tap", "another kind of port"),
        ("attach: veth", "attach: circuits", "another kind of port"),
        (
            "attach: { fifo: { owner: 1000 } }",
            "attach: tap",
            "another kind of port",
        ),
        (
            "attach: { fifo: { owner: 1000 } }",
            "attach: vhost",
            "another kind of port, owner",
        ),
        ("attach: tap", "attach: veth", "another kind of port"),
        (
            "attach: tap",
            "attach: { veth: { namespace: here, circuits: {} } }",
            "another kind of port, place, how it is set up",
        ),
        (
            "attach: tap, addresses: [10.1.1.8]",
            "attach: veth, addresses: [10.1.1.9]",
            "another kind of port, addresses",
        ),
    ] {
        let base = made(&with(from), &World::default());
        let told = lines(&base, &made(&with(to), &base));
        let line = told
            .lines()
            .find(|line| line.starts_with("replace endpoint red/b: changed: "))
            .unwrap_or_else(|| panic!("{from} to {to}: {told}"));
        let shown = line["replace endpoint red/b: changed: ".len()..]
            .split(": ")
            .next();
        assert_eq!(shown, Some(why), "{from} to {to}");
    }
}

/// Who runs programs there has to start them again.
#[test]
fn that_programs_lose_their_circuits_is_told_and_of_no_others() {
    let with = |attach: &str| BASE.replace("name: b, ", &format!("name: b, attach: {attach}, "));
    let left = ": its programs' circuits end, and they have to be started again";
    for (from, to, why, ends) in [
        ("circuits", "fifo", "another kind of port", true),
        ("fifo", "circuits", "another kind of port", false),
        (
            "circuits",
            "{ circuits: { sockets: 99 } }",
            "sockets or set-ups",
            true,
        ),
        (
            "{ veth: { circuits: {} } }",
            "veth",
            "sockets or set-ups, how it is set up",
            true,
        ),
    ] {
        let base = made(&with(from), &World::default());
        let told = lines(&base, &made(&with(to), &base));
        let left = if ends { left } else { "" };
        let line = format!("replace endpoint red/b: changed: {why}{left}\n");
        assert!(told.contains(&line), "{told}");
    }
    // And of what goes, alone or with its compartment.
    const OWN: &str = "      - {name: b, subnet: web}\n";
    let red = BASE.find("  - name: red\n").unwrap();
    let blue = BASE.find("  - name: blue\n").unwrap();
    let without_red = [&BASE[..red.min(blue)], &BASE[blue..]].concat();
    for (attach, left) in [
        (
            "circuits",
            ": its programs' circuits end, and they are left behind",
        ),
        ("fifo", ""),
    ] {
        let base = made(&with(attach), &World::default());
        assert!(BASE.contains(OWN) && red < blue);
        for (text, object) in [
            (BASE.replace(OWN, ""), "endpoint red/b"),
            (without_red.clone(), "compartment red"),
        ] {
            let told = lines(&base, &made(&text, &base));
            let line = format!("destroy {object}: no longer in the spec{left}\n");
            assert!(told.contains(&line), "{told}");
        }
    }
}

#[test]
fn an_interface_that_moves_between_tenants_is_let_go_first() {
    let placed = "      - {name: b, subnet: web, attach: {tap: {namespace: n}}}\n";
    let old = made(
        &BASE.replace("      - {name: b, subnet: web}\n", placed),
        &World::default(),
    );
    let moved = BASE.replace("      - {name: b, subnet: web}\n", "") + placed;
    let steps = lines(&old, &made(&moved, &old));
    let (gone, comes) = (
        steps.find("prepare: removing endpoint red/b\n"),
        steps.find("prepare: making endpoint blue/b\n"),
    );
    assert!(gone.is_some() && gone < comes, "{steps}");
    assert!(!steps.contains("cleanup"), "{steps}");
}

/// What a supervisor holds, by the same rules.
#[derive(Clone, Debug, PartialEq)]
struct Host {
    objects: BTreeMap<Key, Object>,
    images: BTreeMap<u32, [u8; 32]>,
}

impl Host {
    fn of(world: &World) -> Host {
        Host {
            objects: world.objects().clone(),
            images: existing(world).images,
        }
    }

    fn perform(&mut self, step: &Step) -> Result<(), String> {
        let port_of = |key: &Key, id: u32| matches!(key, Key::Port(of, _) if *of == id);
        let there = |key: &Key, held: &BTreeMap<Key, Object>| match held.contains_key(key) {
            true => Ok(()),
            false => Err("is not there"),
        };
        let outcome = match step {
            Step::Create(object) => {
                let place = held(object);
                let taken = place.is_some() && self.objects.values().any(|o| held(o) == place);
                match object.key() {
                    _ if taken => Err("another holds its place"),
                    Key::Port(id, _) if !self.images.contains_key(&id) => {
                        Err("would forward without a table")
                    }
                    Key::Port(id, _) if !self.objects.contains_key(&Key::Compartment(id)) => {
                        Err("has no compartment")
                    }
                    key if self.objects.insert(key, *object).is_some() => Err("is there already"),
                    _ => Ok(()),
                }
            }
            Step::Destroy(Key::Compartment(id), _)
                if self.objects.keys().any(|key| port_of(key, *id)) =>
            {
                Err("has ports, whose namespaces would go")
            }
            Step::Destroy(key, _) | Step::Remove(key, _) => {
                let outcome = there(key, &self.objects);
                self.objects.remove(key);
                if let Key::Compartment(id) = key {
                    self.images.remove(id);
                    self.objects.retain(|key, _| !port_of(key, *id));
                }
                outcome
            }
            Step::Install(image, _) => {
                self.images.insert(image.target, image.digest);
                match image.target {
                    FABRIC => Ok(()),
                    id => there(&Key::Compartment(id), &self.objects),
                }
            }
        };
        outcome.map_err(|why| format!("{}: {why}", described(step)))
    }

    fn perform_all(&mut self, batches: &[Batch]) -> Result<(), String> {
        batches
            .iter()
            .flatten()
            .try_for_each(|step| self.perform(step))
    }
}

/// Carries a change out as a supervisor would, each batch's steps in this order or the
/// reverse, and takes back what was done up to each step.
fn carry_out(old: &World, new: &World, reversed: bool) -> Result<(), String> {
    let mut difference = between(old, new);
    let Difference {
        prepare,
        commit,
        cleanup,
    } = &mut difference;
    if reversed {
        let batches = prepare
            .iter_mut()
            .chain(commit.iter_mut())
            .chain(cleanup.iter_mut());
        batches.for_each(|batch| batch.reverse());
    }
    let before = Host::of(old);
    let mut host = before.clone();
    let mut done = Vec::new();
    for step in prepare.iter().chain(commit.iter()).flatten() {
        host.perform(step)?;
        done.push(step.clone());
        let mut undone = host.clone();
        undone
            .perform_all(&undoing(&done, old.epoch(), |target| {
                old.image(target).cloned()
            }))
            .map_err(|why| format!("undoing up to {}: {why}", described(step)))?;
        // Where there was no fabric's table there is nothing to put back.
        undone
            .images
            .retain(|target, _| before.images.contains_key(target));
        if undone != before {
            return Err(format!("undone up to {}: not what was", described(step)));
        }
    }
    if let Some(key) = new
        .objects()
        .keys()
        .find(|key| !host.objects.contains_key(key))
    {
        return Err(format!("{key:?} is missing when the change is concluded"));
    }
    host.perform_all(cleanup)?;
    match host == Host::of(new) {
        true => Ok(()),
        false => Err("the end is not what was wanted".into()),
    }
}

/// A spec of a few tenants, whose parts come and go by these numbers.
fn text(tenants: &[(u8, u8, u8, u8)]) -> String {
    let mut text = String::from(
        "version: 1\nuplinks: [{name: wan0, interface: eth1}, {name: wan1, interface: eth2}]\ntenants:\n",
    );
    for (at, (name, endpoints, shape, outside)) in tenants.iter().enumerate() {
        let per = ["{per: tenant}", "{per: zone, zone: z}", "{per: host}"][usize::from(shape % 3)];
        text += &format!(
            "  - name: t{at}-{}\n    placement: {per}\n    subnets:\n",
            name % 2
        );
        let v6 = if shape & 4 == 0 { ", fd00:1::/64" } else { "" };
        text += &format!(
            "      - {{name: web, prefixes: [10.1.1.0/24{v6}], slaac: {}}}\n",
            !v6.is_empty() && shape & 8 != 0
        );
        text += "      - {name: app, prefixes: [10.1.2.0/28]}\n    endpoints:\n";
        for e in 0..endpoints % 12 {
            let subnet = if e % 2 == 0 { "web" } else { "app" };
            let more = match (shape ^ e) % 5 {
                0 => ", attach: fifo",
                1 => ", configure: none, rate: {bits: 1Gbit}",
                2 => ", state: unauthorised, mtu: 1300",
                _ => "",
            };
            text += &format!("      - {{name: e{e}, subnet: {subnet}{more}}}\n");
        }
        text += "      - {name: fw, subnet: web, roles: [router], prefixes: [172.16.0.0/12]}\n";
        text += "    routes:\n      - {to: 172.16.5.0/24, via: unreachable}\n    outside:\n";
        for uplink in 0..outside % 3 {
            text += &format!(
                "      - {{uplink: wan{uplink}, address: [192.0.{uplink}.{}/24], gateway: [192.0.{uplink}.1], routes: [{}]}}\n",
                at + 10,
                if uplink == 0 {
                    "0.0.0.0/0"
                } else {
                    "198.51.100.0/24"
                }
            );
        }
        if outside % 3 == 0 {
            text = text.trim_end_matches("    outside:\n").to_owned();
        }
    }
    text
}

fn tenants() -> impl Strategy<Value = Vec<(u8, u8, u8, u8)>> {
    proptest::collection::vec(any::<(u8, u8, u8, u8)>(), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn specs_compile_the_same_twice_and_change_into_each_other(first in tenants(), second in tenants()) {
        let none = World::default();
        // To compile is to be found isolated as well.
        let one = made(&text(&first), &none);
        let two = made(&text(&second), &one);
        let again = made(&text(&second), &one);
        prop_assert_eq!((two.applied(), two.digests(), two.images()), (again.applied(), again.digests(), again.images()));
        let nothing = World::nothing(&two).expect("nothing");
        let back = made(&text(&first), &two);
        for (old, new) in [(&none, &one), (&one, &two), (&two, &back), (&two, &nothing), (&nothing, &one), (&one, &one)] {
            for reversed in [false, true] {
                prop_assert_eq!(carry_out(old, new, reversed), Ok(()), "{}\n{}", old.text(), new.text());
            }
        }
    }
}

#[test]
fn what_no_step_says_of_a_change_is_told() {
    const AGREED: &str = r#"version: 1
tenants:
  - name: red
    subnets: [{name: lan, prefixes: [10.1.1.0/24]}]
    endpoints: [{name: db, subnet: lan, addresses: [10.1.1.10], attach: {circuits: {}}}]
    offers: [{name: db, endpoint: db, protocol: tcp, ports: [5432], to: [blue], until: 2100-01-01, pool: [10.1.250.0/28]}]
  - name: blue
    subnets: [{name: lan, prefixes: [10.1.1.0/24]}]
    endpoints: [{name: app, subnet: lan, addresses: [10.1.1.10], attach: {circuits: {}}}]
    accepts: [{name: reds, from: red, service: db, as: [10.1.200.10]}]
"#;
    let base = made(AGREED, &World::default());
    let told = |text: &str| {
        let new = made(text, &base);
        let plan =
            crate::applier::planned(&between(&base, &new), &existing(&base), [&base, &new], None);
        let all = plan.changes.iter();
        all.map(|it| format!("{} {}: {}", it.action, it.object, it.reason))
            .collect::<Vec<_>>()
    };
    assert!(told(AGREED).is_empty());
    assert_eq!(
        told(&AGREED.replace("2100", "2101")),
        ["end agreement red/db with blue: ends at another time: 2101-01-01"]
    );
    assert_eq!(
        told(&AGREED.replace(" until: 2100-01-01,", "")),
        ["end agreement red/db with blue: has no end any more"]
    );
    // Tables change with all of these: what that means is said beside.
    let means = |text: &str| -> Vec<String> {
        let all = told(text).into_iter();
        all.filter(|line| !line.starts_with("install ")).collect()
    };
    let rings = AGREED
        .replace("pool: [10.1.250.0/28]", "pool: [10.1.250.0/28], rings: yes")
        .replace("as: [10.1.200.10]", "as: [10.1.200.10], rings: yes");
    let shared =
        "change agreement red/db with blue: programs of both sides may share memory (rings)";
    assert_eq!(means(&rings), [shared]);
    let gone = AGREED.replace(
        "    accepts: [{name: reds, from: red, service: db, as: [10.1.200.10]}]\n",
        "",
    );
    let cut = "destroy agreement red/db with blue: no longer in force: what goes by it is cut";
    assert_eq!(means(&gone), [cut]);
    // In force in another way: which of its circuits end, and that none do where there is more than before.
    let ends = |of: [&str; 2], reason: &str| {
        let [was, is] = of;
        let said = format!("change agreement red/db with blue: {reason}");
        assert_eq!(means(&AGREED.replace(was, is)), [said]);
    };
    let pool = "pool: [10.1.250.0/28]";
    ends(
        [pool, "pool: [10.1.251.0/28]"],
        "has its users at other addresses (`pool`, `users`): circuits from those before end",
    );
    ends(
        ["as: [10.1.200.10]", "as: [10.1.200.11]"],
        "is at other addresses of who accepts (`as`): circuits by those before end",
    );
    ends(
        ["[5432]", "[5433]"],
        "has other ports: circuits to those that it has no more end",
    );
    for more in [[pool, "pool: [10.1.250.0/27]"], ["[5432]", "[5000-6000]"]] {
        let [was, is] = more;
        assert!(means(&AGREED.replace(was, is)).is_empty(), "{is}");
    }
    let out = AGREED.replace(
        "{name: app, subnet: lan,",
        "{name: app, subnet: lan, state: quarantined,",
    );
    let is_out = "change endpoint blue/app: is cut off: its connections and circuits end";
    assert!(
        means(&out).contains(&is_out.to_owned()),
        "{:?}",
        means(&out)
    );
    let limited = AGREED.replace(
        "{name: app, subnet: lan,",
        "{name: app, subnet: lan, rate: {from: 1mbit},",
    );
    let metered = "change endpoint blue/app: its circuits have a rate from now on: those that are not metered end";
    assert!(
        means(&limited).contains(&metered.to_owned()),
        "{:?}",
        means(&limited)
    );
    // The other way round, from where there are rings.
    let with = made(&rings, &base);
    let told = |text: &str| {
        let new = made(text, &with);
        let plan =
            crate::applier::planned(&between(&with, &new), &existing(&with), [&with, &new], None);
        let all = plan.changes.iter();
        all.map(|it| format!("{} {}: {}", it.action, it.object, it.reason))
            .collect::<Vec<_>>()
    };
    let apart = "change agreement red/db with blue: programs of both sides share no memory any more: circuits by rings end";
    assert!(
        told(AGREED).contains(&apart.to_owned()),
        "{:?}",
        told(AGREED)
    );
}

/// Whoever runs programs there is told which of their circuits end, and of no others.
#[test]
fn which_circuits_end_by_a_change_is_told() {
    const APP: &str = "{name: app, subnet: lan, addresses: [10.1.1.11], attach: circuits}";
    const OPEN: &str = "{rules: [{name: db, action: allow, to: {endpoint: app}}]}";
    const UNMETERED: &str = "endpoint red/app: its circuits are metered: no UDP but inside it, so that names are to be looked up by TCP";
    let text = |app: &str, policy: &str| {
        format!(
            "version: 1\ntenants:\n  - name: red\n    subnets: [{{name: lan, prefixes: [10.1.1.0/24]}}]\n    \
             endpoints: [{app}, {{name: peer, subnet: lan, attach: fifo}}]\n    policy: {policy}\n"
        )
    };
    let means = |before: &str, after: &str| -> Vec<String> {
        let old = made(before, &World::default());
        let new = made(after, &old);
        let plan =
            crate::applier::planned(&between(&old, &new), &existing(&old), [&old, &new], None);
        let all = plan.changes.iter().filter(|it| it.action == "change");
        all.map(|it| format!("{}: {}", it.object, it.reason))
            .collect()
    };
    let base = text(APP, OPEN);
    assert!(means(&base, &base).is_empty());
    // An address that goes, and one that only comes.
    let moved = text(&APP.replace(".11", ".15"), OPEN);
    assert_eq!(
        means(&base, &moved),
        ["endpoint red/app: is no more at 10.1.1.11: its circuits by that end"]
    );
    let fifo = |text: &str| text.replace("attach: circuits", "attach: fifo");
    assert!(means(&fifo(&base), &fifo(&moved)).is_empty());
    // Rules, what holds without one, whom they mean, and what the host forbids.
    let ends = ["rules of red: circuits of its endpoints that they allow no longer end"];
    let denied = text(APP, &OPEN.replace("allow", "deny"));
    let default = text(APP, "{default: deny}");
    let labelled = text(&APP.replace("attach", "labels: {tier: a}, attach"), OPEN);
    let guarded = base.replace(
        "tenants:",
        "guardrails: [{name: mail, action: deny, protocol: tcp, ports: [25]}]\ntenants:",
    );
    for other in [&denied, &default, &labelled, &guarded] {
        let told = means(&base, other);
        assert_eq!(told.first().map(String::as_str), Some(ends[0]), "{other}");
        assert_eq!(told.len(), 1 + usize::from(other == &default), "{other}");
        let of_packets = means(&fifo(&base), &fifo(other));
        assert_eq!(of_packets.len(), told.len() - 1, "{of_packets:?}");
    }
    // How circuits are counted.
    let none = base.clone();
    let metered = text(
        &APP.replace("attach: circuits", "attach: {circuits: {metered: on}}"),
        OPEN,
    );
    let rate = text(&APP.replace("attach", "rate: {from: 1mbit}, attach"), OPEN);
    let faster = rate.replace("1mbit", "2mbit");
    for (before, after, told) in [
        (
            &none,
            &metered,
            "circuits that begin from now on are metered: those that are not go on uncounted",
        ),
        (
            &none,
            &rate,
            "its circuits have a rate from now on: those that are not metered end",
        ),
        (
            &metered,
            &rate,
            "its circuits have a rate from now on: those that are not metered end",
        ),
        (
            &rate,
            &metered,
            "its circuits have no rate any more, and are metered all the same",
        ),
        (
            &metered,
            &none,
            "circuits that begin from now on are not metered",
        ),
        (
            &rate,
            &none,
            "circuits that begin from now on are not metered",
        ),
    ] {
        let mut lines = vec![format!("endpoint red/app: {told}")];
        if before == &none {
            lines.push(UNMETERED.to_owned());
        }
        assert_eq!(means(before, after), lines);
    }
    assert!(means(&rate, &faster).is_empty());
    // An endpoint that comes is told of too.
    let nobody = text("{name: other, subnet: lan, attach: fifo}", "{rules: []}");
    assert_eq!(means(&nobody, &rate), [UNMETERED]);
}

/// What holds where no rule decides is said in words, of tenants with packets too.
#[test]
fn another_default_is_told() {
    let text = |policy: &str| {
        format!(
            "version: 1\ntenants:\n  - name: shop\n    subnets: [{{name: lan, prefixes: [10.1.1.0/24]}}]\n    \
             endpoints: [{{name: web, subnet: lan, attach: fifo}}]\n{policy}"
        )
    };
    let means = |before: &str, after: &str| -> Vec<String> {
        let old = made(&text(before), &World::default());
        let new = made(&text(after), &old);
        let plan =
            crate::applier::planned(&between(&old, &new), &existing(&old), [&old, &new], None);
        let all = plan.changes.iter().filter(|it| it.action == "change");
        all.map(|it| format!("{}: {}", it.object, it.reason))
            .collect()
    };
    let none = "";
    let deny = "    policy: {default: deny}\n";
    let allow = "    policy: {default: allow}\n";
    let mixed = "    policy: {default: {inside: deny, inbound: allow}}\n";
    for (before, after, told) in [
        (none, deny, "allow becomes deny (there was no policy)"),
        (
            deny,
            none,
            "deny becomes allow (there is no policy any more)",
        ),
        (deny, allow, "deny becomes allow"),
        (allow, deny, "allow becomes deny"),
        (allow, mixed, "inside: allow becomes deny"),
        (deny, mixed, "inbound, outbound: deny becomes allow"),
        (
            mixed,
            "    policy: {rules: []}\n",
            "inbound: allow becomes deny; inside: deny becomes allow",
        ),
    ] {
        let line = format!("default of shop: {told}");
        assert_eq!(means(before, after), [line], "{before} {after}");
        assert!(crate::deeds::is_own("default of shop", "shop"));
    }
    for same in [none, deny, allow, mixed] {
        assert!(means(same, same).is_empty(), "{same}");
    }
    // A policy that lets all pass is as none.
    assert!(means(none, allow).is_empty());
}
