//! Boxes against every representative packet, and against Z3.

mod circuits;
mod guards;
mod honest;
mod hosts;
mod known;
mod planted;
mod reach;
mod referee;
mod replay;
mod routed;
mod segments;
mod solver;
mod tables;
mod uplinks;
mod walk;
mod walked;

use super::*;
use image::rules::{Action, RuleTable};
use proptest::prelude::*;
use tables::{decide, grid, in_space, small_table};

const PLENTY: Fuel = Fuel(u64::MAX);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn tables_differ_exactly_where_a_packet_shows_it(
        installed in small_table(4), wanted in small_table(4), whole: bool,
    ) {
        let space = packets(&anywhere(), &anywhere());
        let wish = if whole { Cubes::of(&wanted) } else { Cubes::partial(&wanted) };
        let says = |tuple: &wire::Tuple| {
            let (action, by) = decide(&wanted, tuple);
            (whole || by.is_some()).then_some(action)
        };
        let found = difference(&Cubes::of(&installed), &wish, &space, &mut PLENTY.clone());
        match found.unwrap() {
            Some(witness) => {
                prop_assert!(in_space(&witness.packet), "{witness:?}");
                prop_assert_eq!(witness.installed, decide(&installed, &witness.packet));
                prop_assert_eq!(Some(witness.wanted.0), says(&witness.packet));
                prop_assert_ne!(witness.installed.0, witness.wanted.0);
            }
            None => {
                for tuple in grid(&[&installed, &wanted]) {
                    let does = decide(&installed, &tuple).0;
                    prop_assert!(says(&tuple).is_none_or(|wants| wants == does), "{tuple:?}");
                }
            }
        }
    }

    #[test]
    fn what_passes_two_lists_is_found_exactly(
        egress in small_table(3), ingress in small_table(3), about in small_table(1),
    ) {
        let all = packets(&anywhere(), &anywhere());
        let asked = about.rules.first().map(|rule| Cube::of(&rule.region));
        let space: Vec<Cube> = match asked {
            Some(asked) => all.iter().filter_map(|part| part.and(&asked)).collect(),
            None => all,
        };
        let goes = |tuple: &wire::Tuple| {
            [&egress, &ingress].iter().all(|table| decide(table, tuple).0 != Action::Deny)
        };
        let within = |tuple: &wire::Tuple| about.rules.is_empty() || decide(&about, tuple).1.is_some();
        let lists = [Cubes::of(&egress), Cubes::of(&ingress)];
        let lists = [&lists[0], &lists[1]];
        let open = passes(&lists, &space, &mut PLENTY.clone()).unwrap();
        let shut = stopped(&lists, &space, &mut PLENTY.clone()).unwrap();
        match open {
            Some(tuple) => prop_assert!(goes(&tuple) && within(&tuple) && in_space(&tuple)),
            None => for tuple in grid(&[&egress, &ingress, &about]) {
                prop_assert!(!(within(&tuple) && goes(&tuple)), "{tuple:?}");
            }
        }
        match shut {
            Some((which, tuple)) => {
                let table = [&egress, &ingress][which];
                prop_assert!(within(&tuple) && in_space(&tuple));
                prop_assert_eq!(decide(table, &tuple).0, Action::Deny);
            }
            None => for tuple in grid(&[&egress, &ingress, &about]) {
                prop_assert!(!within(&tuple) || goes(&tuple), "{tuple:?}");
            }
        }
    }
}

#[test]
fn a_packets_family_and_ports_are_those_of_a_packet() {
    let all = RuleTable {
        rules: vec![],
        default: Action::Allow,
    };
    let none = RuleTable {
        rules: vec![],
        default: Action::Deny,
    };
    let space = packets(&anywhere(), &anywhere());
    let mut fuel = Fuel(1000);
    let found = difference(&Cubes::of(&all), &Cubes::of(&none), &space, &mut fuel);
    assert!(in_space(&found.unwrap().unwrap().packet));
    // No packet goes from one family to the other.
    let [four, six, _] = &anywhere()[..] else {
        unreachable!()
    };
    assert!(packets(core::slice::from_ref(four), core::slice::from_ref(six)).is_empty());
}

#[test]
fn what_costs_more_than_its_fuel_is_not_proved() {
    let tables = tables::adversarial(248);
    let space = packets(&anywhere(), &anywhere());
    let [installed, wanted] = &tables;
    let asked = |fuel: u64| {
        let (installed, wanted) = (Cubes::of(installed), Cubes::of(wanted));
        difference(&installed, &wanted, &space, &mut Fuel(fuel))
    };
    assert_eq!(asked(100), Err(OutOfFuel));
    // With enough it is: the two say the same in other words.
    assert_eq!(asked(u64::MAX), Ok(None));
}
