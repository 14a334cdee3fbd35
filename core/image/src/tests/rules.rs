//! Bit vectors against the plain list of rules, and what no builder makes of them.

use super::built;
use super::fixture::{compartment, section_at, v4};
use crate::compartment::*;
use crate::container::{self, digest};
use crate::map::Section;
use crate::rules::*;
use crate::{Aligned, BuildError, CompartmentImage, CompartmentTables, MapError};
use proptest::prelude::*;
use std::ops::RangeInclusive;
use wire::Tuple;

fn with_tables(rule_tables: Vec<RuleTable>) -> CompartmentTables {
    CompartmentTables {
        rule_tables,
        ..compartment(1, 1)
    }
}

/// A few values that meet each other often, the ends of the field among them.
fn address() -> impl Strategy<Value = [u8; 16]> {
    prop_oneof![
        4 => (0u8..40).prop_map(|last| v4([10, 0, 0, last])),
        2 => (0u8..20).prop_map(|last| {
            let mut address = [0; 16];
            (address[0], address[15]) = (0xfd, last);
            address
        }),
        1 => prop_oneof![Just([0; 16]), Just([255; 16]), any::<[u8; 16]>()],
    ]
}
fn port() -> impl Strategy<Value = u16> {
    prop_oneof![3 => 75u16..100, 1 => prop_oneof![Just(0), Just(u16::MAX), any::<u16>()]]
}
fn protocol() -> impl Strategy<Value = u8> {
    prop_oneof![Just(6), Just(17), Just(1), Just(0), Just(255), any::<u8>()]
}

fn range<T: Copy + PartialOrd + std::fmt::Debug>(
    value: impl Strategy<Value = T> + Clone,
    all: RangeInclusive<T>,
) -> impl Strategy<Value = RangeInclusive<T>> {
    let two = (value.clone(), value.clone());
    prop_oneof![
        1 => Just(all),
        1 => value.prop_map(|a| a..=a),
        2 => two.prop_map(|(a, b)| if a <= b { a..=b } else { b..=a }),
    ]
}

prop_compose! {
    fn rule()(
        source in range(address().boxed(), Region::ALL.source),
        destination in range(address().boxed(), Region::ALL.destination),
        source_port in range(port().boxed(), Region::ALL.source_port),
        destination_port in range(port().boxed(), Region::ALL.destination_port),
        protocol in range(protocol().boxed(), Region::ALL.protocol),
        action in action(), log: bool, id: u32,
    ) -> Rule {
        let region = Region { source, destination, source_port, destination_port, protocol };
        Rule { region, action, log, id }
    }
}
fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        Just(Action::Deny),
        Just(Action::Allow),
        Just(Action::AllowStateless)
    ]
}
fn table(rules: std::ops::Range<usize>) -> impl Strategy<Value = RuleTable> {
    (proptest::collection::vec(rule(), rules), action())
        .prop_map(|(rules, default)| RuleTable { rules, default })
}
fn tables_of_each_kind() -> impl Strategy<Value = RuleTable> {
    prop_oneof![2 => table(0..40), 1 => table(200..600), 1 => clustered()]
}

/// Tables of several groups, each of which covers a part of some fields only.
fn clustered() -> impl Strategy<Value = RuleTable> {
    table(300..700).prop_map(|mut table| {
        for (n, rule) in table.rules.iter_mut().enumerate() {
            let [a, b, c, d] = rule.id.to_le_bytes();
            let (low, high) = (a.min(b) % 40, a.max(b) % 40);
            let (low, high) = (low.min(high), low.max(high));
            let cluster = (n / 90) as u8;
            rule.region.source = v4([10, cluster, 0, low])..=v4([10, cluster, 0, high]);
            let port = 20 * u16::from(cluster) + u16::from(c % 32);
            rule.region.destination_port = port..=port + u16::from(d % 16);
            rule.region.protocol = 6 + cluster / 3..=6 + cluster / 3;
        }
        table
    })
}
prop_compose! {
    fn tuple()(
        source in address(), destination in address(),
        source_port in port(), destination_port in port(), protocol in protocol(),
    ) -> Tuple {
        Tuple { source, destination, source_port, destination_port, protocol }
    }
}

/// Headers in each corner of some rules, and one step out of it.
fn near(rule: &Rule) -> Vec<Tuple> {
    let Region {
        source,
        destination,
        source_port,
        destination_port,
        protocol,
    } = &rule.region;
    let step = |a: &[u8; 16], by: i128| {
        let a = u128::from_be_bytes(*a);
        a.wrapping_add_signed(by).to_be_bytes()
    };
    let low = Tuple {
        source: *source.start(),
        destination: *destination.start(),
        source_port: *source_port.start(),
        destination_port: *destination_port.start(),
        protocol: *protocol.start(),
    };
    let high = Tuple {
        source: *source.end(),
        destination: *destination.end(),
        source_port: *source_port.end(),
        destination_port: *destination_port.end(),
        protocol: *protocol.end(),
    };
    let mut all = vec![low, high];
    for (from, by) in [(low, -1), (high, 1)] {
        let by = i128::from(by);
        let (source, destination) = (step(&from.source, by), step(&from.destination, by));
        all.push(Tuple { source, ..from });
        all.push(Tuple {
            destination,
            ..from
        });
        let source_port = from.source_port.wrapping_add_signed(by as i16);
        all.push(Tuple {
            source_port,
            ..from
        });
        let destination_port = from.destination_port.wrapping_add_signed(by as i16);
        all.push(Tuple {
            destination_port,
            ..from
        });
        let protocol = from.protocol.wrapping_add_signed(by as i8);
        all.push(Tuple { protocol, ..from });
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn judging_is_the_first_rule_that_contains(
        tables in proptest::collection::vec(tables_of_each_kind(), 1..4),
        tuples in proptest::collection::vec(tuple(), 200),
    ) {
        let bytes = built(&with_tables(tables.clone()));
        let image = CompartmentImage::map(bytes.as_ref()).unwrap();
        for (index, table) in (0..).zip(&tables) {
            let corners = table.rules.iter().step_by(1 + table.rules.len() / 40).flat_map(near);
            for tuple in corners.chain(tuples.iter().copied()) {
                prop_assert_eq!(image.judge(index, &tuple), table.judge(&tuple), "{:?}", tuple);
            }
        }
    }

    #[test]
    fn decoding_gives_the_rules_back(
        tables in proptest::collection::vec(tables_of_each_kind(), 0..4),
    ) {
        let bytes = built(&with_tables(tables.clone()));
        let image = CompartmentImage::map(bytes.as_ref()).unwrap();
        let decoded = image.decode();
        prop_assert_eq!(&decoded.rule_tables, &tables);
        prop_assert_eq!(decoded.finish().unwrap(), bytes.as_ref());
        let mut reused = RuleTable { rules: Vec::new(), default: Action::Deny };
        for (index, table) in (0..).zip(&tables) {
            image.rule_table_into(index, &mut reused);
            prop_assert_eq!(&reused, table);
        }
    }

    #[test]
    fn tampered_tables_are_refused_or_judged_as_they_decode(
        table in prop_oneof![3 => table(1..6), 1 => table(257..270), 1 => clustered()],
        changes in proptest::collection::vec((21usize..29, any::<prop::sample::Index>(), any::<u8>()), 1..4),
        tuples in proptest::collection::vec(tuple(), 60),
    ) {
        let mut image = with_tables(vec![table]).finish().unwrap();
        for (section, at, value) in changes {
            let (start, len) = section_at(&image, section);
            if len != 0 {
                image[start + at.index(len)] = value;
            }
        }
        container::seal(&mut image);
        let bytes = Aligned::copy_of(&image);
        if let Ok(image) = CompartmentImage::map(bytes.as_ref()) {
            let table = image.rule_table(0);
            let corners = table.rules.iter().take(20).flat_map(near);
            for tuple in corners.chain(tuples) {
                prop_assert_eq!(image.judge(0, &tuple), table.judge(&tuple), "{:?}", tuple);
            }
            prop_assert!(!table.rules.iter().any(|rule| rule.region.is_empty()));
            let again = with_tables(vec![table.clone()]);
            let again = Aligned::copy_of(&again.finish().unwrap());
            let again = CompartmentImage::map(again.as_ref()).unwrap();
            prop_assert_eq!(again.rule_table(0), table);
        }
    }
}

/// One rule from 10.0.0.`n` to port `n` each.
fn numbered(rules: u32) -> RuleTable {
    let rule = |n: u32| {
        let [.., b, c] = n.to_be_bytes();
        let source = v4([10, 0, b, c]);
        Rule {
            region: Region {
                source: source..=source,
                destination_port: n as u16..=n as u16,
                ..Region::ALL
            },
            action: Action::Allow,
            log: n.is_multiple_of(2),
            id: 1000 + n,
        }
    };
    RuleTable {
        rules: (0..rules).map(rule).collect(),
        default: Action::Deny,
    }
}

#[test]
fn a_table_of_the_most_rules_is_judged_and_decoded() {
    let table = numbered(MAX_RULES as u32);
    let bytes = built(&with_tables(vec![table.clone()]));
    let image = CompartmentImage::map(bytes.as_ref()).unwrap();
    assert_eq!(image.tables()[0].groups_count as usize, MAX_GROUPS);
    assert_eq!(image.rule_table(0), table);
    for n in [0u16, 255, 256, 5_000, 10_239] {
        let [b, c] = n.to_be_bytes();
        let mut tuple = Tuple {
            source: v4([10, 0, b, c]),
            destination_port: n,
            ..Tuple::default()
        };
        let verdict = image.judge(0, &tuple);
        assert_eq!(
            (verdict.rule, verdict.place),
            (1000 + u32::from(n), n.into())
        );
        assert_eq!(verdict.action, Action::Allow);
        assert_eq!(verdict.log, n.is_multiple_of(2));
        tuple.destination_port += 1;
        let verdict = image.judge(0, &tuple);
        assert_eq!((verdict.rule, verdict.place), (DEFAULT_RULE, NONE));
        assert_eq!(verdict.action, Action::Deny);
    }

    let more = with_tables(vec![numbered(1), numbered(MAX_RULES as u32 + 1)]);
    let (table, rules) = (1, MAX_RULES + 1);
    assert_eq!(more.finish(), Err(BuildError::Rules { table, rules }));
}

#[test]
fn a_group_of_rules_is_256() {
    for (rules, groups) in [(0, 0), (1, 1), (256, 1), (257, 2), (512, 2), (513, 3)] {
        let bytes = built(&with_tables(vec![numbered(rules)]));
        let image = CompartmentImage::map(bytes.as_ref()).unwrap();
        assert_eq!(image.tables()[0].groups_count, groups, "{rules}");
        assert_eq!(image.rule_table(0), numbered(rules));
    }
}

#[test]
fn no_rules_are_the_default_and_no_table_is_a_refusal() {
    let empty = |default| RuleTable {
        rules: Vec::new(),
        default,
    };
    let bytes = built(&with_tables(vec![
        empty(Action::Allow),
        empty(Action::Deny),
    ]));
    let image = CompartmentImage::map(bytes.as_ref()).unwrap();
    let action = |table| image.judge(table, &Tuple::default()).action;
    assert_eq!(action(0), Action::Allow);
    assert_eq!(action(1), Action::Deny);
    assert_eq!(action(2), Action::Deny, "no such table");
    assert_eq!(action(NONE), Action::Deny);
    assert_eq!(image.rule_table(2), empty(Action::Deny));
}

#[test]
fn a_rule_that_contains_nothing_is_refused() {
    let empty: [fn(&mut Region); 5] = [
        |r| r.source = [1; 16]..=[0; 16],
        |r| r.destination = [1; 16]..=[0; 16],
        |r| r.source_port = RangeInclusive::new(9, 8),
        |r| r.destination_port = RangeInclusive::new(9, 8),
        |r| r.protocol = RangeInclusive::new(9, 8),
    ];
    for change in empty {
        let mut table = numbered(3);
        change(&mut table.rules[2].region);
        let refused = with_tables(vec![table]).finish();
        assert_eq!(refused, Err(BuildError::EmptyRegion { table: 0, rule: 2 }));
    }
}

#[test]
fn equal_rules_give_equal_bytes() {
    let tables = with_tables(vec![numbered(300), numbered(40)]);
    let (one, other) = (tables.finish().unwrap(), tables.finish().unwrap());
    assert_eq!(digest(&one), digest(&other));
    assert_eq!(one, other);
}

#[test]
fn people_can_read_rules() {
    let mut tables = with_tables(vec![numbered(2)]);
    tables.endpoints[0].egress = 0;
    let bytes = built(&tables);
    let text = CompartmentImage::map(bytes.as_ref()).unwrap().to_string();
    for part in [
        "  egress by rule table 0\n",
        "rule table 0: 2 rules, else deny\n",
        "  0: allow protocol any from 10.0.0.0 port any to any port 0 by rule 1000, logged\n",
        "  1: allow protocol any from 10.0.0.1 port any to any port 1 by rule 1001\n",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn an_endpoint_without_its_table_is_refused() {
    let change: [fn(&mut Endpoint); 2] = [|e| e.egress = 1, |e| e.ingress = 1];
    for change in change {
        let mut tables = with_tables(vec![numbered(1)]);
        change(&mut tables.endpoints[0]);
        let refused = tables.finish().unwrap_err();
        let what = "no such table of rules";
        let section = Section::Endpoints;
        assert_eq!(
            refused,
            BuildError::Refused(MapError::Record {
                section,
                index: 0,
                what
            })
        );
    }
    assert_eq!(Endpoint::default().egress, NONE);
    assert_eq!(Endpoint::default().ingress, NONE);
}

/// What mapping says about an image of these rules, one section of which is changed.
fn refusal(
    table: RuleTable,
    section: Section,
    change: impl FnOnce(&mut [u8]),
) -> Option<&'static str> {
    let mut image = with_tables(vec![table]).finish().unwrap();
    let (start, len) = section_at(&image, section as usize);
    change(&mut image[start..start + len]);
    container::seal(&mut image);
    let bytes = Aligned::copy_of(&image);
    match CompartmentImage::map(bytes.as_ref()) {
        Err(MapError::Record { what, .. }) => Some(what),
        Err(other) => panic!("{other}"),
        Ok(_) => None,
    }
}

/// Two rules about ports 10 to 19 and 15 to 29.
fn overlapping() -> RuleTable {
    let mut table = numbered(2);
    for (rule, ports) in table.rules.iter_mut().zip([10..=19, 15..=29]) {
        rule.region = Region {
            destination_port: ports,
            ..Region::ALL
        };
    }
    table
}

#[test]
fn boundaries_out_of_order_are_refused() {
    // Source port: 0. Destination port: 0, 10, 15, 20, 30. Protocol: 0.
    for (at, value) in [(0, 1), (1, 1), (2, 21), (3, 10), (3, 20), (6, 1)] {
        let refused = refusal(overlapping(), Section::PortBounds, |bytes| {
            bytes[2 * at..2 * at + 2].copy_from_slice(&u16::to_le_bytes(value));
        });
        let what = "boundaries that do not rise from 0";
        assert_eq!(refused, Some(what), "{at} {value}");
    }
}

#[test]
fn a_protocol_beyond_255_is_refused() {
    let mut table = overlapping();
    table.rules[0].region.protocol = 6..=6;
    // The last of 0, 6, 7, as 7 + 256.
    let refused = refusal(table, Section::PortBounds, |bytes| {
        let [.., high] = bytes else { panic!() };
        *high = 1;
    });
    let what = "a boundary beyond the field's last value";
    assert_eq!(refused, Some(what));
}

#[test]
fn places_beyond_the_words_are_refused() {
    // Places: source 0, destination 0, source port 0, destination port 0 1 2 3 0,
    // protocol 0.
    let what = "words that are not in the order of their use";
    for (at, value) in [(0, 1), (5, 3), (7, 9), (8, 1)] {
        let refused = refusal(overlapping(), Section::Places, |bytes| {
            bytes[2 * at] = value
        });
        assert_eq!(refused, Some(what), "{at}");
    }
}

#[test]
fn words_that_nothing_has_are_refused() {
    let refused = refusal(overlapping(), Section::Places, |bytes| bytes[2 * 6] = 0);
    assert_eq!(refused, Some("words that no interval has"));
}

#[test]
fn a_rule_in_two_pieces_is_refused() {
    // Port 15 to 19's word without rule 0, which then begins twice if 20 to 29's has it.
    let refused = refusal(overlapping(), Section::Words, |bytes| {
        // Words: source, destination, source port, then 0, {0}, {0, 1}, {1}.
        bytes[32 * 5] = 0b10;
        bytes[32 * 6] = 0b11;
    });
    assert_eq!(refused, Some("a rule of two intervals in one field"));
}

#[test]
fn bits_of_no_rule_and_rules_of_no_bit_are_refused() {
    let what = Some("bits that are not its rules'");
    for (at, value) in [(32 * 4, 0b101), (32 * 4 + 31, 0x80), (0, 0b01), (0, 0b111)] {
        let refused = refusal(overlapping(), Section::Words, |bytes| bytes[at] = value);
        assert_eq!(refused, what, "{at}");
    }
}

#[test]
fn a_summary_of_other_groups_is_refused() {
    // Rules 0 to 255 and 256 to 299: bit 0 in the second interval of sources, and so on.
    for (word, flip) in [(1, 1u8), (1, 2), (0, 1), (2, 1), (3, 1), (1, 128)] {
        let refused = refusal(numbered(300), Section::Summaries, |bytes| {
            bytes[8 * word] ^= flip;
        });
        let what = refused.unwrap_or("nothing wrong");
        assert!(what.starts_with("a summary of"), "{word} {flip}: {what}");
    }
}

#[test]
fn unknown_actions_and_flags_are_refused() {
    let refused = refusal(overlapping(), Section::Outcomes, |bytes| bytes[4] = 3);
    assert_eq!(refused, Some("an unknown action"));
    let refused = refusal(overlapping(), Section::Outcomes, |bytes| bytes[6] = 2);
    assert_eq!(refused, Some("unknown flags"));
    let refused = refusal(overlapping(), Section::Tables, |bytes| bytes[8] = 3);
    assert_eq!(refused, Some("an unknown action"));
}
