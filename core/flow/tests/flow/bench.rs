//! Figures, printed and not asserted: `cargo test --release -p core-flow -- --ignored
//! --nocapture bench`.

use std::time::Duration;

use flow::{Connections, Found, Judgement, Segment, Side};
use wire::tcp::{ACK, FIN, SYN};

use crate::{SEED, VERDICT, plain, segment, sides, tuple};

fn both(n: u32) -> [Side; 2] {
    let mut tuple = tuple(6, (1, n as u16), (2, 80));
    tuple.source[10..14].copy_from_slice(&[0xff, 0xff, 10, (n >> 16) as u8]);
    sides(tuple, 0, 1)
}

/// Time that this thread had a core: others share the machine.
struct Instant(u64);

impl Instant {
    fn now() -> Instant {
        let spent = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Instant(spent.split(' ').next().unwrap().parse().unwrap())
    }

    fn elapsed(&self) -> Duration {
        Duration::from_nanos(Instant::now().0 - self.0)
    }
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = status.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn turn(c: &mut Connections, now: u64, side: &Side, segment: &Segment) {
    let found = c.find(now, side.owner, side.zone, &side.tuple).unwrap();
    assert_eq!(c.packet(now, found, segment), Judgement::Pass);
}

#[test]
#[ignore = "figures, not a test"]
fn bench() {
    const MANY: u32 = 1_000_000;
    let before = resident();
    let mut c = Connections::new(SEED, &[MANY, 0]).unwrap();
    println!("resident before use: {} KiB", (resident() - before) >> 10);
    let start = Instant::now();
    for n in 0..MANY {
        let [a, b] = both(n);
        let id = c
            .open(0, &a, &b, &VERDICT, &segment(SYN, 1, 0, 0, 60_000))
            .unwrap()
            .id;
        let [forth, back] = [flow::Direction::Forth, flow::Direction::Back]
            .map(|direction| Found { id, direction });
        c.packet(0, back, &segment(SYN | ACK, 5, 2, 0, 60_000));
        c.packet(0, forth, &segment(ACK, 2, 6, 0, 60_000));
    }
    let time = start.elapsed();
    println!(
        "{} established: {:.0} ns each",
        c.live(0).0,
        time.as_nanos() as f64 / f64::from(MANY)
    );
    println!(
        "resident with a million: {:.1} MiB",
        (resident() - before) as f64 / f64::from(1 << 20)
    );
    println!("{:?}", c.counters(0));
    for (what, side) in [("forth", 0usize), ("back", 1)] {
        let facts = if side == 0 {
            segment(ACK, 2, 6, 0, 60_000)
        } else {
            segment(ACK, 6, 2, 0, 60_000)
        };
        let mut n = 1u32;
        let start = Instant::now();
        for _ in 0..MANY {
            n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            turn(&mut c, 0, &both(n % MANY)[side], &facts);
        }
        let time = start.elapsed();
        println!(
            "hit among a million, {what}: {:.0} ns",
            time.as_nanos() as f64 / f64::from(MANY)
        );
    }
    let start = Instant::now();
    for _ in 0..MANY {
        turn(&mut c, 0, &both(77)[0], &segment(ACK, 2, 6, 0, 60_000));
    }
    println!(
        "hit of one: {:.0} ns",
        start.elapsed().as_nanos() as f64 / f64::from(MANY)
    );
    let start = Instant::now();
    let swept = c.sweep(0, MANY, 1, &mut |_| unreachable!());
    println!("sweep of {}: {:?}", swept.looked, start.elapsed());

    // Set up and torn down by seven packets, in a table whose rest is in TIME-WAIT.
    let mut c = Connections::new(SEED, &[65_536, 0]).unwrap();
    let start = Instant::now();
    for n in 0..MANY {
        let [a, b] = both(n);
        assert_eq!(c.find(0, 0, 0, &a.tuple), None);
        c.open(0, &a, &b, &VERDICT, &segment(SYN, 1, 0, 0, 60_000))
            .unwrap();
        turn(&mut c, 0, &b, &segment(SYN | ACK, 5, 2, 0, 60_000));
        turn(&mut c, 0, &a, &segment(ACK, 2, 6, 0, 60_000));
        turn(&mut c, 0, &a, &segment(ACK, 2, 6, 100, 60_000));
        turn(&mut c, 0, &b, &segment(ACK, 6, 102, 100, 60_000));
        turn(&mut c, 0, &a, &segment(FIN | ACK, 102, 106, 0, 60_000));
        turn(&mut c, 0, &b, &segment(FIN | ACK, 106, 103, 0, 60_000));
    }
    let time = start.elapsed();
    println!(
        "TCP up and down: {:.0} a second",
        f64::from(MANY) / time.as_secs_f64()
    );
    println!("{:?}", c.counters(0));

    // A flood of half-open ones into a full quarter.
    let mut c = Connections::new(SEED, &[65_536, 0]).unwrap();
    let start = Instant::now();
    for n in 0..MANY {
        let [a, b] = both(n);
        let [a, b] = [a, b].map(|mut side| {
            side.tuple.protocol = 17;
            side
        });
        let _ = c.open(0, &a, &b, &VERDICT, &plain(60));
    }
    println!(
        "half-open flood: {:.0} ns each",
        start.elapsed().as_nanos() as f64 / f64::from(MANY)
    );
    println!("{:?}", c.counters(0));
}
