//! What rule tables cost, for people to read; nothing here is judged:
//! `cargo test --release -p core-image --test figures -- --ignored --nocapture`.

use core_image::compartment::{Attachment, Endpoint, NONE, Subnet, Tenant};
use core_image::rules::{Action, Region, Rule, RuleTable};
use core_image::{Aligned, CompartmentImage, CompartmentTables};
use std::hint::black_box;
use std::time::{Duration, Instant};
use wire::Tuple;
use wire::address::mapped;

/// xorshift64*: the same tables and headers each time.
struct Dice(u64);
impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % n
    }
    fn v4(&mut self) -> [u8; 16] {
        mapped([
            10,
            self.below(256) as u8,
            self.below(256) as u8,
            self.below(256) as u8,
        ])
    }
    fn v6(&mut self) -> [u8; 16] {
        let mut address = [0; 16];
        (address[0], address[1]) = (0xfd, 0);
        for byte in &mut address[2..] {
            *byte = self.below(256) as u8;
        }
        address
    }
}

fn prefix(address: [u8; 16], len: u32) -> core::ops::RangeInclusive<[u8; 16]> {
    let (bits, mask) = (u128::from_be_bytes(address), u128::MAX << (128 - len));
    (bits & mask).to_be_bytes()..=(bits | !mask).to_be_bytes()
}

/// Rules as people write them: sources of one or the other family, one endpoint as
/// destination, a port or a few.
fn typical(dice: &mut Dice, rules: usize) -> RuleTable {
    let rules = (0..rules).map(|n| {
        let six = dice.below(2) == 1;
        let (source, destination) = if six {
            (
                prefix(dice.v6(), 48 + 16 * dice.below(6) as u32),
                [0xfd; 16],
            )
        } else {
            (
                prefix(dice.v4(), 112 + 8 * dice.below(3) as u32),
                mapped([10, 0, 0, 9]),
            )
        };
        let first = [22, 53, 80, 443, 5432, 8000, 8443, 9000][dice.below(8) as usize]
            + dice.below(8) as u16;
        let region = Region {
            source,
            destination: destination..=destination,
            source_port: 0..=u16::MAX,
            destination_port: first..=first + [0, 0, 0, 99][dice.below(4) as usize],
            protocol: [6..=6, 6..=6, 17..=17][dice.below(3) as usize].clone(),
        };
        let action = [Action::Allow, Action::Deny][dice.below(2) as usize];
        Rule {
            region,
            action,
            log: false,
            id: n as u32,
        }
    });
    RuleTable {
        rules: rules.collect(),
        default: Action::Deny,
    }
}

/// Every field of every rule an interval of its own, all overlapping.
fn dense(dice: &mut Dice, rules: usize) -> RuleTable {
    fn pair<T: Ord>(a: T, b: T) -> core::ops::RangeInclusive<T> {
        if a <= b { a..=b } else { b..=a }
    }
    let rules = (0..rules).map(|n| Rule {
        region: Region {
            source: pair(dice.v6(), dice.v6()),
            destination: pair(dice.v6(), dice.v6()),
            source_port: pair(dice.below(1 << 16) as u16, dice.below(1 << 16) as u16),
            destination_port: pair(dice.below(1 << 16) as u16, dice.below(1 << 16) as u16),
            protocol: pair(dice.below(256) as u8, dice.below(256) as u8),
        },
        action: Action::Allow,
        log: false,
        id: n as u32,
    });
    RuleTable {
        rules: rules.collect(),
        default: Action::Deny,
    }
}

fn tables(rule_tables: Vec<RuleTable>) -> CompartmentTables {
    CompartmentTables {
        tenants: vec![Tenant {
            id: 1,
            ..Tenant::default()
        }],
        subnets: vec![Subnet {
            gateway_mac: [2; 6],
            mtu: 1500,
            ..Subnet::default()
        }],
        endpoints: vec![Endpoint {
            slot: 1,
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            own_first: NONE,
            ..Endpoint::default()
        }],
        attachments: vec![Attachment {
            mac: [2, 1, 0, 0, 0, 0],
            tag: 1,
            mtu: 1500,
            ..Attachment::default()
        }],
        rule_tables,
        ..CompartmentTables::default()
    }
}

fn took<T>(what: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let value = what();
    (value, start.elapsed())
}

/// Median of seven, ns a call.
fn per_judge(image: &CompartmentImage<'_>, headers: &[(u32, Tuple)]) -> f64 {
    let mut each: Vec<f64> = (0..7)
        .map(|_| {
            let ((), time) = took(|| {
                for (table, tuple) in headers {
                    black_box(image.judge(*table, black_box(tuple)));
                }
            });
            time.as_nanos() as f64 / headers.len() as f64
        })
        .collect();
    each.sort_by(f64::total_cmp);
    each[3]
}

fn within(dice: &mut Dice, rule: &Rule) -> Tuple {
    let Region {
        source,
        destination,
        source_port,
        destination_port,
        protocol,
    } = &rule.region;
    let pick = |r: &core::ops::RangeInclusive<u16>, d: &mut Dice| {
        r.start() + d.below(u64::from(r.end() - r.start()) + 1) as u16
    };
    Tuple {
        source: if dice.below(2) == 0 {
            *source.start()
        } else {
            *source.end()
        },
        destination: *destination.start(),
        source_port: pick(source_port, dice),
        destination_port: pick(destination_port, dice),
        protocol: *protocol.start(),
    }
}

fn attack(dice: &mut Dice) -> Tuple {
    Tuple {
        source: if dice.below(2) == 0 {
            dice.v4()
        } else {
            dice.v6()
        },
        destination: if dice.below(2) == 0 {
            mapped([10, 0, 0, 9])
        } else {
            [0xfd; 16]
        },
        source_port: dice.below(1 << 16) as u16,
        destination_port: dice.below(1 << 16) as u16,
        protocol: dice.below(256) as u8,
    }
}

#[test]
#[ignore = "figures"]
fn figures() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for (name, rules, count, make) in [
        (
            "typical",
            1,
            1,
            typical as fn(&mut Dice, usize) -> RuleTable,
        ),
        ("typical", 50, 8, typical),
        ("typical", 250, 1, typical),
        ("typical", 250, 64, typical),
        ("dense", 250, 1, dense),
        ("dense", 250, 64, dense),
        ("typical", 1_000, 4, typical),
        ("typical", 10_240, 1, typical),
        ("dense", 10_240, 1, dense),
    ] {
        let lists: Vec<RuleTable> = (0..count).map(|_| make(&mut dice, rules)).collect();
        let empty = tables(Vec::new()).finish().unwrap().len();
        let plain = tables(lists.clone());
        let (bytes, build) = took(|| plain.finish().unwrap());
        let aligned = Aligned::copy_of(&bytes);
        let (_, digest) = took(|| core_image::digest(&bytes));
        let (image, map) = took(|| CompartmentImage::map(aligned.as_ref()).unwrap());
        let mut into = image.rule_table(0);
        let ((), decode) = took(|| {
            for table in 0..count as u32 {
                image.rule_table_into(table, black_box(&mut into));
            }
        });
        let inside: Vec<(u32, Tuple)> = (0..20_000)
            .map(|_| {
                let table = dice.below(count as u64) as usize;
                let rule = &lists[table].rules[dice.below(rules as u64) as usize];
                (table as u32, within(&mut dice, rule))
            })
            .collect();
        let outside: Vec<(u32, Tuple)> = (0..20_000)
            .map(|_| (dice.below(count as u64) as u32, attack(&mut dice)))
            .collect();
        let (a, b) = (per_judge(&image, &inside), per_judge(&image, &outside));
        let linear = took(|| {
            for (table, tuple) in &inside[..2_000] {
                black_box(lists[*table as usize].judge(black_box(tuple)));
            }
        });
        let each = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
        println!(
            "{name} {rules} rules x {count}: {:.1} KiB, build {:.0} us, check {:.1} us (digest {:.0}), \
             decode {:.1} us; in-rule {a:.0} ns, attack {b:.0} ns ({:.2}); a list {} ns",
            (bytes.len() - empty) as f64 / 1024.0 / count as f64,
            each(build),
            each(map.saturating_sub(digest)),
            each(digest),
            each(decode),
            b / a,
            linear.1.as_nanos() / 2_000,
        );
    }
}

/// Every group holds rules for both halves of each address, none for the header's pair.
#[test]
#[ignore = "figures"]
fn the_dearest_header() {
    let mut dice = Dice(5);
    let mut table = dense(&mut dice, 10_240);
    for (n, rule) in table.rules.iter_mut().enumerate() {
        let half = |high: bool| {
            if high {
                [0x80; 16]..=[0xff; 16]
            } else {
                [0; 16]..=[0x7f; 16]
            }
        };
        rule.region.source = half(n % 2 == 0);
        rule.region.destination = half(n % 2 == 1);
    }
    let bytes = Aligned::copy_of(&tables(vec![table]).finish().unwrap());
    let image = CompartmentImage::map(bytes.as_ref()).unwrap();
    let headers: Vec<(u32, Tuple)> = (0..1_000)
        .map(|_| {
            let tuple = Tuple {
                source: [1; 16],
                destination: [2; 16],
                source_port: dice.below(1 << 16) as u16,
                destination_port: dice.below(1 << 16) as u16,
                protocol: dice.below(256) as u8,
            };
            (0, tuple)
        })
        .collect();
    assert_eq!(image.judge(0, &headers[0].1).place, NONE);
    println!("40 groups in vain: {:.0} ns", per_judge(&image, &headers));
}

#[test]
#[ignore = "figures"]
fn the_proofs_input() {
    let mut dice = Dice(7);
    let lists: Vec<RuleTable> = (0..1_000).map(|_| typical(&mut dice, 250)).collect();
    let bytes = Aligned::copy_of(&tables(lists).finish().unwrap());
    let image = CompartmentImage::map(bytes.as_ref()).unwrap();
    let mut into = image.rule_table(0);
    let (rules, time) = took(|| {
        let mut rules = 0;
        for round in 0..10_000 {
            image.rule_table_into(round % 1_000, &mut into);
            rules += black_box(&into).rules.len();
        }
        rules
    });
    println!(
        "{rules} rules decoded in {:.0} ms, {} bytes a rule",
        time.as_secs_f64() * 1e3,
        size_of::<Rule>()
    );
}
