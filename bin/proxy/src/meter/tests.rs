//! Metered circuits: rates, turns, counts and ends.

use super::*;
use shm::Words;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use telemetry::circuits::{Count, METER_BYTES, METER_WORDS};
use telemetry::counters::{Counter, bytes_for, counter_word};

const SECOND: u64 = 1_000_000_000;

struct Scene {
    metering: Metering,
    rows: Words,
    endpoints: Words,
}

fn scene() -> Scene {
    let mut metering = Metering::default();
    let page = shm::sparse_file("rows", METER_BYTES).unwrap();
    metering.use_page(&page);
    let counters = shm::memory_file("counters", bytes_for(8)).unwrap();
    metering.counts.use_counters(&counters, 8).unwrap();
    Scene {
        metering,
        rows: Words::map(&page, METER_BYTES).unwrap(),
        endpoints: Words::map_whole(&counters).unwrap(),
    }
}

impl Scene {
    fn rates(&mut self, slot: u32, from: u64, to: u64) {
        self.rates_at_once(slot, [from, to], 0);
    }

    fn rates_at_once(&mut self, slot: u32, [from, to]: [u64; 2], burst: u64) {
        let body = MeterRates {
            slot,
            flags: METER_COUNTS,
            from,
            from_burst: burst,
            to,
            to_burst: burst,
        };
        self.metering.rates(&body, 0);
    }

    /// A circuit from slot 1 to slot 2: the programs' ends.
    fn join(&mut self, id: u64) -> [UnixStream; 2] {
        self.join_slots(id, [1, 2])
    }

    fn join_slots(&mut self, id: u64, [from, to]: [u32; 2]) -> [UnixStream; 2] {
        let pair = || UnixStream::pair().unwrap();
        let ((a, near), (b, far)) = (pair(), pair());
        for end in [&a, &near, &b, &far] {
            end.set_nonblocking(true).unwrap();
        }
        let body = Metered {
            id,
            from,
            to,
            ..Metered::default()
        };
        let ends = [near.into(), far.into()];
        self.metering.join(id, &body, ends, 0).unwrap();
        [a, b]
    }

    /// What came until then, of a sender that sends as much as it can.
    fn run(&mut self, ends: &mut [[UnixStream; 2]], from: Nanos, until: Nanos) -> Vec<u64> {
        let mut came = vec![0; ends.len()];
        let (mut now, mut bytes) = (from, vec![7; 1 << 16]);
        while now < until {
            for (n, [a, b]) in ends.iter_mut().enumerate() {
                while a.write(&bytes).is_ok() {}
                while let Ok(read @ 1..) = b.read(&mut bytes) {
                    came[n] += read as u64;
                }
                self.metering.stirred(n as u64);
            }
            self.metering.turn(now);
            let due = self.metering.due().filter(|due| *due < until);
            now = due.unwrap_or(now).max(now + 100_000);
        }
        came
    }

    fn count(&self, row: usize) -> Count {
        let word = |n| self.rows.load(row * METER_WORDS + n);
        Count::of(&core::array::from_fn(word))
    }

    fn counter(&self, slot: usize, counter: Counter) -> u64 {
        self.endpoints.load(counter_word(slot, counter))
    }
}

#[test]
fn both_rates_hold_for_all_circuits_together() {
    for (from, to) in [(40 << 20, 0), (0, 40 << 20), (40 << 20, 400 << 20)] {
        let mut scene = scene();
        scene.rates(1, from, 0);
        scene.rates(2, 0, to);
        let mut ends = [0, 1, 2].map(|id| scene.join(id));
        let came = scene.run(&mut ends, 0, SECOND);
        let all: u64 = came.iter().sum();
        assert!(all.abs_diff(40 << 20) < 2 << 20, "{from} {to}: {came:?}");
        for one in &came {
            assert!(one.abs_diff(all / 3) < all / 20, "{from} {to}: {came:?}");
        }
    }
}

#[test]
fn each_byte_is_counted_where_it_belongs() {
    let mut scene = scene();
    // The second one's are not.
    scene.rates(1, 0, 0);
    let mut ends = [scene.join(0)];
    let came = scene.run(&mut ends, 0, SECOND);
    let [[_, b]] = &mut ends;
    b.write_all(b"answer").unwrap();
    scene.metering.stirred(0);
    scene.metering.turn(2 * SECOND);
    let count = scene.count(0);
    // What lies in the receiver's socket was handed on as well.
    let mut rest = Vec::new();
    let _ = ends[0][1].read_to_end(&mut rest);
    let came = came[0] + rest.len() as u64;
    assert_eq!((count.id, count.bytes), (0, [came, 6]));
    assert_eq!(count.moved, 2 * SECOND);
    assert!(count.rate[0] > 0 && count.measured >= SECOND);
    let counters = [Counter::RxBytes, Counter::TxBytes];
    let [one, other] = [1, 2].map(|slot| counters.map(|it| scene.counter(slot, it)));
    assert_eq!((one, other), ([came, 6], [0; 2]));
    // Those who let them begin count connections.
    assert_eq!(scene.counter(1, Counter::Connections), 0);
}

#[test]
fn the_end_of_one_gives_back_its_place_and_its_turn() {
    let mut scene = scene();
    scene.rates(1, 1 << 20, 0);
    let mut ends = [scene.join(5)];
    scene.metering.turn(0);
    let [[a, b]] = &mut ends;
    scene.metering.end(5);
    scene.metering.end(5);
    assert_eq!(
        (a.read(&mut [0]).unwrap(), b.read(&mut [0]).unwrap()),
        (0, 0)
    );
    assert_eq!(
        (scene.metering.len(), scene.count(0)),
        (0, Count::default())
    );
    // As many as there are places, one after another; none has used its turn.
    for id in 0..9000 {
        let [mut a, mut b] = scene.join(id);
        let now = id * 10_000;
        a.write_all(b"1").unwrap();
        scene.metering.turn(now);
        assert_eq!(b.read(&mut [0; 2]).unwrap(), 1, "{id}");
        drop(a);
        scene.metering.stirred(id);
        scene.metering.turn(now);
        assert_eq!(b.read(&mut [0]).unwrap(), 0, "{id}");
        drop(b);
        scene.metering.stirred(id);
        scene.metering.turn(now);
    }
    assert_eq!(scene.metering.len(), 0);
}

#[test]
fn who_waits_for_a_low_rate_keeps_little_of_a_high_one() {
    let mut scene = scene();
    scene.rates(1, 10 << 20, 0);
    scene.rates(2, 0, 1 << 20);
    let slots = |id| if id == 0 { [3, 1] } else { [2, 1] };
    let mut ends: Vec<_> = (0..200).map(|id| scene.join_slots(id, slots(id))).collect();
    // The end that answers has more to send than any of them takes.
    ends.iter_mut().for_each(|ends| ends.reverse());
    let came = scene.run(&mut ends, 0, SECOND);
    assert!(came[0] > 17 << 19, "{}", came[0]);
    let then = scene.run(&mut ends, SECOND, 3 * SECOND);
    let many: u64 = then[1..].iter().sum();
    assert!(many > 15 << 17, "{many}");
}

/// Some would have a turn of the one and wait for the other's, which others have.
#[test]
fn two_rates_hold_nobody_up_however_many_circuits_there_are() {
    for (from, to) in [(100, 50), (50, 100), (10, 20)] {
        for (count, burst) in [(16, 1), (128, 128 << 10)] {
            let mut scene = scene();
            let [from, to] = [from, to].map(|mbit| mbit * 125_000);
            scene.rates_at_once(1, [from, 0], burst);
            scene.rates_at_once(2, [0, to], burst);
            let mut ends: Vec<_> = (0..count).map(|id| scene.join(id)).collect();
            let came = scene.run(&mut ends, 0, SECOND);
            let all: u64 = came.iter().sum();
            let least = from.min(to);
            assert!(all > least * 9 / 10, "{from} {to}, {count}: {all}");
        }
    }
}

/// What readers get of a sender's 100 Mbit/s, in bits a second: of so many each, with this rate of their own, and then
/// ten others with one each and none. `alone`: one circuit that is not the sender's, besides.
fn shared(readers: &[(u64, u64)], alone: Option<[u32; 2]>) -> Vec<u64> {
    const MBIT: u64 = 1_000_000 / 8;
    let mut scene = scene();
    scene.rates_at_once(1, [100 * MBIT, 0], 128 << 10);
    let mut slots = Vec::new();
    for (slot, (count, rate)) in (2..).zip(readers) {
        scene.rates_at_once(slot, [0, rate * MBIT], 128 << 10);
        slots.extend((0..*count).map(|_| [slot, 1]));
    }
    slots.extend((100..110).map(|slot| [slot, 1]));
    slots.extend(alone);
    let join = |(id, slots): (usize, &[u32; 2])| scene.join_slots(id as u64, *slots);
    let mut ends: Vec<_> = slots.iter().enumerate().map(join).collect();
    for (slots, ends) in slots.iter().zip(&mut ends) {
        // Who began it is sent to, but for one that leads to a reader.
        if slots[1] == 1 || slots[1] > 100 {
            ends.reverse();
        }
    }
    scene.run(&mut ends, 0, SECOND / 2);
    let came = scene.run(&mut ends, SECOND / 2, 3 * SECOND / 2);
    let mut came = came.iter().map(|bytes| bytes * 8);
    let mut sum = |count: u64| came.by_ref().take(count as usize).sum::<u64>();
    let mut all: Vec<u64> = readers.iter().map(|(count, _)| sum(*count)).collect();
    all.push(sum(10));
    all.extend(alone.map(|_| sum(1)));
    all
}

/// Turns of a slower rate are small, and who has it would have one for each of the faster; or more than others, whose turns
/// are over before the last one's bytes are. In Mbit/s.
#[test]
fn who_has_circuits_by_two_rates_has_its_part_of_the_faster() {
    let near = |all: &[u64], expected: &[f64]| {
        let off = |(is, of): (&u64, &f64)| (*is as f64 / 1e6 - of).abs() / of;
        let is_near = all.iter().zip(expected).all(|it| off(it) < 0.08);
        assert!(
            is_near && all.len() == expected.len(),
            "{all:?} {expected:?}"
        );
    };
    for (count, rate) in [(1, 10), (2, 10), (100, 10), (2, 90), (1, 99)] {
        near(&shared(&[(count, rate)], None), &[9.09, 90.9]);
    }
    near(
        &shared(&[(1, 10); 5], None),
        &[6.67, 6.67, 6.67, 6.67, 6.67, 66.7],
    );
    // Another's to the same reader, by that rate alone.
    near(&shared(&[(100, 10)], Some([20, 2])), &[5.0, 95.0, 5.0]);
    // One of its own is like the others at least.
    let [many, others, own] = shared(&[(100, 10)], Some([2, 200]))[..] else {
        panic!("three");
    };
    near(&[many, others], &[9.09, 90.9]);
    assert!(own > 90_000, "{own}");
}

/// A slow reader's many circuits leave the sender's rate to its other one.
#[test]
fn who_waits_for_a_slow_reader_keeps_nothing_of_its_senders_rate() {
    for reader in [1, 3] {
        let mut scene = scene();
        scene.rates(2, 100 << 17, 0);
        scene.rates(reader, 0, 1 << 17);
        let slots = |id| if id == 0 { [2, 4] } else { [2, reader] };
        let mut ends: Vec<_> = (0..200).map(|id| scene.join_slots(id, slots(id))).collect();
        let came = scene.run(&mut ends, 0, SECOND);
        assert!(came[0] > 80 << 17, "{reader}: {}", came[0]);
    }
}

/// Whose are many has its turns, and no more of them.
#[test]
fn who_has_many_circuits_keeps_others_from_nothing() {
    let mut scene = scene();
    let slots = |id| if id == 0 { [3, 2] } else { [1, 2] };
    let mut ends: Vec<_> = (0..1500)
        .map(|id| scene.join_slots(id, slots(id)))
        .collect();
    for (number, [a, _]) in ends.iter_mut().enumerate().rev() {
        a.write_all(b"x").unwrap();
        scene.metering.stirred(number as u64);
    }
    // Its own two lines among the first, though all others were called before.
    scene.metering.turn(0);
    assert_eq!(ends[0][1].read(&mut [0; 2]).unwrap(), 1);
    let came = |ends: &[UnixStream; 2]| (&ends[1]).read(&mut [0; 2]).is_ok();
    let others = ends.iter().filter(|it| came(it)).count();
    assert!((1..40).contains(&others), "{others}");
    while scene.metering.due() == Some(0) {
        scene.metering.turn(0);
    }
    let others = others + ends.iter().filter(|it| came(it)).count();
    assert_eq!(others, 1499);
}

#[test]
fn turns_of_a_rate_of_before_are_none_of_the_next_ones() {
    let mut scene = scene();
    // They have turns of the one, and wait for the other.
    scene.rates(1, 500 << 20, 0);
    scene.rates(2, 0, 600 << 20);
    let mut ends: Vec<_> = (0..100).map(|id| scene.join(id)).collect();
    scene.run(&mut ends, 0, SECOND / 100);
    scene.rates(1, 1 << 10, 0);
    let came = scene.run(&mut ends, SECOND / 100, SECOND / 2);
    // What was on its way, and a turn of the new one.
    let all: u64 = came.iter().sum();
    assert!(all < 200 << 10, "{all}");
}

/// Which nobody said, where there was no operator to say it.
#[test]
fn rates_that_the_next_operator_does_not_tell_of_are_over() {
    let mut scene = scene();
    scene.rates(1, 1 << 10, 0);
    scene.rates(3, 1 << 10, 0);
    let mut ends = [scene.join(0), scene.join_slots(1, [3, 2])];
    let page = shm::sparse_file("rows", METER_BYTES).unwrap();
    scene.metering.use_page(&page);
    scene.rates(3, 1 << 10, 0);
    let mut run = |scene: &mut Scene, from: Nanos| {
        let mut moved = [0; 2];
        for now in (from..from + SECOND / 10).step_by(1_000_000) {
            let some = scene.run(&mut ends, now, now + 1);
            moved = [moved[0] + some[0], moved[1] + some[1]];
        }
        moved
    };
    let slow = run(&mut scene, 0);
    assert!(slow[0] < 64 << 10, "{slow:?}");
    let all = MeterRates {
        slot: EVERYBODY,
        ..MeterRates::default()
    };
    scene.metering.rates(&all, SECOND / 10);
    let moved = run(&mut scene, SECOND / 10);
    assert!(moved[0] > 2 << 20 && moved[1] < 64 << 10, "{moved:?}");
    assert_eq!(scene.metering.counts.counted().iter().next(), Some(&3));
}

#[test]
fn another_rate_holds_at_once_and_none_lets_all_pass() {
    let mut scene = scene();
    scene.rates(1, 1 << 10, 0);
    let mut ends = [scene.join(0)];
    let slow = scene.run(&mut ends, 0, SECOND / 10)[0];
    assert!(slow < 64 << 10, "{slow}");
    scene.rates(1, 40 << 20, 0);
    let fast = scene.run(&mut ends, SECOND / 10, 2 * SECOND / 10)[0];
    assert!(fast > 2 << 20, "{fast}");
    scene.rates(1, 0, 0);
    assert!(scene.metering.due().is_some(), "who waited is served");
    let free = scene.run(&mut ends, 2 * SECOND / 10, 3 * SECOND / 10)[0];
    assert!(free > 8 << 20, "{free}");
}

/// Its rate has most of that wait, and what it is told comes to an end meanwhile.
#[test]
fn who_speaks_to_who_hears_nothing_reads_an_end_and_no_error() {
    let mut scene = scene();
    scene.rates(2, 1000, 0);
    let [mut a, mut b] = scene.join(0);
    a.write_all(b"hello").unwrap();
    a.shutdown(std::net::Shutdown::Both).unwrap();
    b.write_all(&[7; 150_000]).unwrap();
    scene.metering.stirred(0);
    scene.metering.turn(0);
    assert_eq!(scene.metering.len(), 0, "all is said");
    let mut heard = Vec::new();
    b.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, b"hello");
    assert!(b.write(b"more").is_err());
}
