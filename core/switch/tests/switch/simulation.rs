//! A small seeded day in the life of the site, as a table: a change of behaviour
//! shows as a changed line.

use crate::support::*;
use std::collections::BTreeMap;
use std::fmt::Write;
use telemetry::counters::Counter;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

#[test]
fn a_day_of_traffic() {
    let mut site = Site::new();
    let mut random = Random(42);
    let mut delivered: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    let mut drops: BTreeMap<(u32, &str), u64> = BTreeMap::new();
    let mut replies: BTreeMap<u32, u64> = BTreeMap::new();
    for _ in 0..5000 {
        let from = random.of(&[A1, A2, R, B1, C1, C2]);
        let to = random.of(&[A1, A2, R, B1, C1, C2]);
        let own_gateway = gateway_mac(match from {
            B1 => 1,
            C1 | C2 => 2,
            _ => 0,
        });
        let link = (
            mac(from),
            random.of(&[
                mac(to),
                own_gateway,
                own_gateway,
                wire::MacAddress::BROADCAST,
            ]),
        );
        let four = (
            v4(random.of(&[from, from, from, to])),
            random.of(&[v4(to), GATEWAY4, [198, 51, 100, 9], [9, 9, 9, 9]]),
        );
        let six = (
            v6(random.of(&[from, from, from, to])),
            random.of(&[v6(to), GATEWAY6]),
        );
        let payload = vec![0; random.of(&[0usize, 64, 1400])];
        let frame = match random.below(4) {
            0 => udp6(link, six, (1, 2), &payload),
            1 => arp_request(from, v4(from), v4(to)),
            _ => udp4(link, four, (1, 2), &payload),
        };
        let seen = site.inject(from, &frame);
        for sent in &seen.sent {
            *delivered.entry((from, sent.slot)).or_default() += 1;
        }
        for (slot, reason) in &seen.drops {
            *drops.entry((*slot, reason.slug())).or_default() += 1;
        }
        *replies.entry(from).or_default() += seen.count(from, Counter::Replies);
        site.after(random.below(2_000_000));
    }
    let mut table = String::from("from to frames\n");
    for ((from, to), n) in delivered {
        writeln!(table, "{from} {to} {n}").unwrap();
    }
    table.push_str("slot reason drops\n");
    for ((slot, reason), n) in drops {
        writeln!(table, "{slot} {reason} {n}").unwrap();
    }
    table.push_str("slot replies\n");
    for (slot, n) in replies {
        writeln!(table, "{slot} {n}").unwrap();
    }
    insta::assert_snapshot!(table);
}
