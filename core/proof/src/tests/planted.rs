//! Breaches planted in live structures: an honest host's images are decoded, changed, and
//! built again. Nothing here is the verifier's. What it finds it shows by what somebody can
//! send, and that is sent for real; else it says that nobody can.

mod agreements;
mod others;
mod places;
mod rules;

use super::hosts::{Compiled, read, text};
use super::replay::{nobodys, sent};
use crate::{Breach, Class};
use image::{Aligned, CompartmentImage, CompartmentTables, FabricImage, FabricTables};

/// Numbers that follow from a seed (splitmix64, Steele et al., OOPSLA '14).
struct Dice(u64);
impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % n.max(1) as u64) as usize
    }
}

/// Of each class, at least.
const EACH: u64 = 50;

/// A host of its own for each seed: other rules, other defaults.
fn host(seed: u64) -> Compiled {
    let default = ["deny", "{inside: deny, inbound: deny, outbound: deny}"][seed as usize % 2];
    host_by(seed, default)
}

fn host_by(seed: u64, default: &str) -> Compiled {
    let mut dice = Dice(seed ^ 0xabcd);
    let rules = [
        "action: deny, from: {label: {k: one}}, to: {subnet: web}, protocol: tcp, ports: [22, 23], priority: 1",
        "action: deny, to: outside, protocol: udp, ports: [53], priority: 2",
        "action: allow, from: {endpoint: [a, b, d]}, to: {subnet: [web, six]}, protocol: tcp, ports: [443, 8443], priority: 3",
        "action: deny, from: any, to: {endpoint: b}, protocol: icmp, icmp: [redirect], priority: 4",
        "action: allow, from: {subnet: web}, to: {prefix: [203.0.113.0/24, '2001:db8:7::/48']}, protocol: udp, ports: 5000-5999, state: stateless, priority: 5",
    ];
    let rails = [
        "action: deny, to: {prefix: [198.51.100.0/24, '2001:db8:9::/48']}, protocol: tcp, ports: [25]",
    ];
    let first = dice.below(rules.len());
    let own = (0..3)
        .map(|n| rules[(first + n) % rules.len()].to_owned())
        .collect::<Vec<_>>();
    let rails = rails.map(str::to_owned);
    let host = Compiled::new(read(&text(
        &own,
        &rails[..dice.below(2)],
        default,
        "2027-01-01",
    )));
    assert!(host.breaches().is_empty(), "{}", host.breaches()[0]);
    host
}

fn tables(host: &Compiled, slot: u32) -> CompartmentTables {
    let memory = Aligned::copy_of(&host.images[&slot]);
    CompartmentImage::map(memory.as_ref()).unwrap().decode()
}

fn fabric(host: &Compiled) -> FabricTables {
    let memory = Aligned::copy_of(&host.images[&0]);
    FabricImage::map(memory.as_ref()).unwrap().decode()
}

/// Of what was planted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tally {
    /// Found by something that was sent, and came out where it was said.
    shown: u64,
    /// Found, and said that nobody can send what shows it.
    nobodys: u64,
    /// Of those shown: something of one compartment's ended with somebody of another.
    crossed: u64,
}

impl Tally {
    /// Of [`EACH`] that were shown.
    const fn of(nobodys: u64, crossed: u64) -> Tally {
        Tally {
            shown: EACH,
            nobodys,
            crossed,
        }
    }
}

/// What the verifier found, and whether something crossed.
struct Found {
    breaches: Vec<Breach>,
    crossed: bool,
}

/// What the verifier found. All that can be sent is sent.
fn found(host: &Compiled) -> Found {
    let mut crossed = false;
    let honest = Compiled::at((*host.spec).clone(), &host.ids, host.now);
    let breaches = host.breaches();
    for breach in &breaches {
        let told = breach.to_string();
        assert!(told.len() > 20, "{told}");
        match &breach.way {
            Some(way) => {
                assert!(told.contains(&way.to_string()), "{told}");
                crossed |= sent(host, &honest, breach);
            }
            None if breach.is_nobodys() => nobodys(host, &honest, breach),
            None => assert!(NAMELESS.contains(&breach.class), "{told}"),
        }
    }
    Found { breaches, crossed }
}

/// Classes about which no packet says anything: whoever reads them knows.
const NAMELESS: [Class; 5] = [
    Class::Unreadable,
    Class::NoImage,
    Class::WrongPlace,
    Class::NoTables,
    Class::Fuel,
];

fn has(breaches: &[Breach], classes: &[Class]) -> bool {
    breaches.iter().any(|b| classes.contains(&b.class))
}

/// `plant` changes a host by these dice, or says that there is nothing to change (then
/// the next seed is taken); one of `classes` must be found each time. How many of them were
/// shown by what was sent.
fn planted(classes: &[Class], plant: impl FnMut(&mut Compiled, &mut Dice) -> Option<()>) -> Tally {
    planted_in(classes, host, plant)
}

fn planted_in(
    classes: &[Class],
    host: impl Fn(u64) -> Compiled,
    mut plant: impl FnMut(&mut Compiled, &mut Dice) -> Option<()>,
) -> Tally {
    let mut tally = Tally::default();
    let mut seed = 0;
    while tally.shown < EACH {
        seed += 1;
        assert!(seed < 20 * EACH, "only {tally:?} could be planted");
        let mut host = host(seed);
        let mut dice = Dice(seed);
        if plant(&mut host, &mut dice).is_none() {
            continue;
        }
        let Found { breaches, crossed } = found(&host);
        let told = breaches.first().map(ToString::to_string);
        assert!(has(&breaches, classes), "seed {seed}: {told:?}");
        let mut of = breaches.iter().filter(|b| classes.contains(&b.class));
        match of.any(|b| b.way.is_some()) {
            true => {
                tally.shown += 1;
                tally.crossed += u64::from(crossed);
            }
            false => tally.nobodys += 1,
        }
    }
    tally
}
