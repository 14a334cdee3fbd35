//! What was proved before is not asked again, and that changes no answer.

use super::honest::{good, rule, selector};
use super::hosts::{Compiled, read, text};
use crate::{Claim, Known, Read, prove};
use image::rules::{Action, Region, Rule};
use image::{Aligned, CompartmentImage};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A host, and the same under another spec, its images made anew.
struct Two {
    before: Compiled,
    after: Compiled,
    known: Known,
    memory: BTreeMap<u32, Aligned>,
}

impl Two {
    fn of(before: &str, after: &str) -> Two {
        let before = Compiled::new(read(before));
        let spec = read(after);
        let ids = policy::Ids::assign(&spec, &before.ids);
        let mut after = Compiled::with(spec, &ids);
        after.spec = Read::after(spec::Spec::clone(&after.spec), &before.spec);
        let mut known = Known::default();
        prove(&before.claim(), &mut known).expect("honest");
        let images = before.images.iter().filter(|(slot, _)| **slot != 0);
        let memory = images.map(|(slot, bytes)| (*slot, Aligned::copy_of(bytes)));
        Two {
            memory: memory.collect(),
            before,
            after,
            known,
        }
    }

    /// What is said about what comes after by who knows what was before, and by who does not.
    fn said(mut self) -> [Vec<String>; 2] {
        let memory = self.memory.iter();
        let claim = Claim {
            before: memory
                .map(|(slot, bytes)| (*slot, bytes.as_ref()))
                .collect(),
            ..self.after.claim()
        };
        let words = |known: &mut Known| match prove(&claim, known) {
            Ok(digests) => digests.iter().map(ToString::to_string).collect(),
            Err(breaches) => breaches.iter().map(ToString::to_string).collect(),
        };
        [words(&mut self.known), words(&mut Known::default())]
    }

    /// Changes a table of red's, by its number; whether there is such a one.
    fn plant(&mut self, table: usize, edit: impl FnOnce(&mut Vec<Rule>)) -> bool {
        let slot = self.after.slot_of("red");
        let memory = Aligned::copy_of(&self.after.images[&slot]);
        let mut tables = CompartmentImage::map(memory.as_ref()).unwrap().decode();
        let Some(table) = tables.rule_tables.get_mut(table) else {
            return false;
        };
        edit(&mut table.rules);
        let image = tables.finish().unwrap();
        self.after.images.insert(slot, image).is_some()
    }
}

fn everything(action: Action) -> Rule {
    Rule {
        region: Region::ALL,
        action,
        log: false,
        id: 1,
    }
}

const ENDS: &str = "2027-01-01";

#[test]
fn a_table_is_looked_at_where_it_differs_and_where_a_line_of_it_does() {
    let with = |rule: &str| text(&[rule.to_owned()], &[], "deny", ENDS);
    let one = "action: allow, to: {endpoint: b}, protocol: tcp, ports: [80]";
    let other = "action: allow, to: {endpoint: b}, protocol: tcp, ports: [81]";
    let (one, other) = (with(one), with(other));
    let [said, fresh] = Two::of(&one, &other).said();
    assert_eq!(said, fresh);
    // Each table in turn, whether or not the change concerns its endpoint.
    let mut planted = 0;
    loop {
        let mut two = Two::of(&one, &other);
        if !two.plant(planted, |rules| rules.insert(0, everything(Action::Allow))) {
            break;
        }
        let [said, fresh] = two.said();
        assert_eq!(said, fresh, "table {planted}");
        assert!(said.iter().any(|s| s.contains("says allow")), "{said:?}");
        planted += 1;
    }
    assert!(planted > 4, "{planted}");
    // The spec's line is another, and the table is not.
    let mut two = Two::of(&one, &other);
    two.after.images.clone_from(&two.before.images);
    let [said, fresh] = two.said();
    assert_eq!(said, fresh);
    assert!(said.iter().any(|s| s.contains("red/b")), "{said:?}");
}

#[test]
fn parts_of_a_spec_are_the_same_only_while_they_say_the_same() {
    let one = text(&[], &[], "deny", ENDS);
    let first = Read::new(read(&one));
    let moved = Read::after(read(&format!("# moved\n{one}")), &first);
    let other = Read::after(
        read(&one.replace("labels: {k: two}", "labels: {k: no}")),
        &moved,
    );
    let back = Read::after(read(&one), &other);
    let same = |a: &Read, b: &Read| {
        let host = Compiled::new(spec::Spec::clone(a));
        let mut known = Known::default();
        let claim = |spec| Claim {
            spec,
            ..host.claim()
        };
        prove(&claim(a), &mut known).expect("honest");
        known.says_the_same(b)
    };
    assert_eq!(same(&first, &moved), vec![true; 4]);
    // What concerns all, red, blue, green.
    assert_eq!(same(&moved, &other), [true, false, true, true]);
    // Back is not known: it was another thing meanwhile.
    assert_eq!(same(&first, &back), [true, false, true, true]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn who_knows_what_was_before_says_the_same_as_who_does_not(
        rules in prop::collection::vec((rule(selector()), 0u32..3), 1..7),
        new in rule(selector()), at: prop::sample::Index, how in 0..6,
        default in prop::sample::select(vec!["deny", "allow", "{inside: deny, outbound: allow}"]),
        plant in prop::option::of((0usize..10, any::<prop::sample::Index>(), 0..5)),
        stale in prop::bool::weighted(0.2),
    ) {
        let rules = rules.into_iter().map(|(rule, at)| format!("{rule}, priority: {at}")).collect();
        let rules = good(rules, |rules| text(rules, &[], default, ENDS));
        prop_assume!(!rules.is_empty());
        let (mut changed, at) = (rules.clone(), at.index(rules.len()));
        match how {
            0 => drop(changed.remove(at)),
            1 => changed.swap(0, at),
            2 | 3 => changed[at] = new,
            _ => changed.insert(at, new),
        }
        let changed = good(changed, |rules| text(rules, &[], default, ENDS));
        let other = if how == 5 { "{inside: allow, outbound: deny}" } else { default };
        let mut two = Two::of(&text(&rules, &[], default, ENDS), &text(&changed, &[], other, ENDS));
        if stale {
            two.after.images.clone_from(&two.before.images);
        }
        if let Some((table, place, how)) = plant {
            two.plant(table, |rules| {
                let at = place.index(rules.len().max(1));
                match (how, rules.get_mut(at)) {
                    (0, _) => rules.insert(at.min(rules.len()), everything(Action::Allow)),
                    (1, Some(_)) => drop(rules.remove(at)),
                    (2, Some(rule)) => rule.action = Action::AllowStateless,
                    (3, Some(rule)) => rule.region.destination_port = 0..=u16::MAX,
                    (4, Some(rule)) => rule.region.source = Region::ALL.source,
                    _ => {}
                }
            });
        }
        let [said, fresh] = two.said();
        prop_assert_eq!(said, fresh);
    }
}
