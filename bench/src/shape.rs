//! `bench shape`: what a FIFO's size and the number of active ones cost, and a ring of
//! descriptors in the same memory instead of a ring of bytes: one hop between two cores,
//! each record's head copied to private memory and looked at, its payload copied once.

mod descriptors;

use crate::Options;
use crate::load::First;
use crate::load::fifo::{pin, thread_ns};
use crate::peer::{cluster, cluster_of, round_trip_ns};
use crate::results::Figure;
use descriptors::{Reader, Writer};
use shm::{Direction, Geometry, Receiver, Sender, Start};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wire::offload::RawOffload;

const SIZES: [usize; 2] = [64, 1500];
const KIB: [usize; 4] = [16, 64, 256, 1024];
const ACTIVE: [usize; 4] = [1, 10, 50, 200];
/// Records of one ring before the next one's turn.
const BATCH: usize = 32;
/// Bytes of a record that are looked at on the way.
const HEAD: usize = 64;

/// A ring between two processes.
trait Shape {
    /// Its two ends.
    type Tx: Send;
    /// The reading one.
    type Rx: Send;
    fn make(bytes: usize) -> Result<(Self::Tx, Self::Rx), String>;
    /// Whether there was room.
    fn push(tx: &mut Self::Tx, record: &[u8]) -> bool;
    fn publish(tx: &mut Self::Tx);
    /// Copies the next record out.
    fn take(rx: &mut Self::Rx, into: &mut [u8]) -> Option<usize>;
    /// Hands the next record on; whether there was one, and room for it.
    fn pass(rx: &mut Self::Rx, tx: &mut Self::Tx) -> bool;
    fn release(rx: &mut Self::Rx);
}

/// Records one behind the other: the FIFO as it is.
struct Bytes;

impl Shape for Bytes {
    type Tx = Sender;
    type Rx = Receiver;

    fn make(bytes: usize) -> Result<(Sender, Receiver), String> {
        let (direction, geometry) = direction(bytes)?;
        let say = |e: &dyn std::fmt::Display| e.to_string();
        let (a, b) = (direction.producer_end(), direction.consumer_end());
        let tx = shm::attach_producer(a.map_err(|e| say(&e))?, &geometry, Start::Fresh);
        let rx = shm::attach_consumer(b.map_err(|e| say(&e))?, &geometry, Start::Fresh);
        Ok((tx.map_err(|e| say(&e))?, rx.map_err(|e| say(&e))?))
    }

    fn push(tx: &mut Sender, record: &[u8]) -> bool {
        tx.ring.push(0, &RawOffload::default(), record, &[]).is_ok()
    }

    fn publish(tx: &mut Sender) {
        let _ = tx.ring.publish();
    }

    fn take(rx: &mut Receiver, into: &mut [u8]) -> Option<usize> {
        Some(rx.ring.next().ok()??.copy(0, into))
    }

    fn pass(rx: &mut Receiver, tx: &mut Sender) -> bool {
        let Ok(Some(record)) = rx.ring.peek() else {
            return false;
        };
        let mut head = [0; HEAD];
        let n = record.copy(0, &mut head);
        let head = std::hint::black_box(&head[..n]);
        let passed = tx.ring.forward(0, &record.offload(), head, &record, n);
        if passed.is_ok() {
            rx.ring.advance();
        }
        passed.is_ok()
    }

    fn release(rx: &mut Receiver) {
        rx.ring.release();
    }
}

/// Descriptors of buffers: bench/src/shape/descriptors.rs.
struct Descriptors;

impl Shape for Descriptors {
    type Tx = Writer;
    type Rx = Reader;

    fn make(bytes: usize) -> Result<(Writer, Reader), String> {
        let (direction, geometry) = direction(bytes)?;
        let a = direction.producer_end().map_err(|e| e.to_string())?;
        let b = direction.consumer_end().map_err(|e| e.to_string())?;
        let a = shm::producer_end(&a, &geometry).map_err(|e| e.to_string())?;
        let b = shm::consumer_end(&b, &geometry).map_err(|e| e.to_string())?;
        Ok((Writer::new(a, bytes), Reader::new(b, bytes)))
    }

    fn push(tx: &mut Writer, record: &[u8]) -> bool {
        tx.push(record)
    }

    fn publish(tx: &mut Writer) {
        tx.publish();
    }

    fn take(rx: &mut Reader, into: &mut [u8]) -> Option<usize> {
        let (at, len) = rx.peek()?;
        let len = len.min(into.len());
        rx.copy(at, &mut into[..len]);
        rx.advance();
        Some(len)
    }

    fn pass(rx: &mut Reader, tx: &mut Writer) -> bool {
        let Some((at, len)) = rx.peek() else {
            return false;
        };
        let mut head = [0; HEAD];
        let n = len.min(HEAD);
        rx.copy(at, &mut head[..n]);
        let head = std::hint::black_box(&head[..n]);
        let passed = tx.forward(head, rx, at + n, len - n);
        if passed {
            rx.advance();
        }
        passed
    }

    fn release(rx: &mut Reader) {
        rx.release();
    }
}

fn direction(bytes: usize) -> Result<(Direction, Geometry), String> {
    let geometry = Geometry::records(bytes, bytes / 4).map_err(|e| e.to_string())?;
    let direction = Direction::create(&geometry).map_err(|e| e.to_string())?;
    Ok((direction, geometry))
}

/// A size, a capacity in KiB, a number of rings; and its runs: of bytes, of descriptors.
struct Cell {
    of: (usize, usize, usize),
    runs: Vec<(f64, f64)>,
    clusters: Vec<&'static str>,
}

/// Runs it: all cells in turns, so that they can be held against each other as well.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    let window = Duration::from_millis(if options.smoke { 5 } else { 30 });
    let mut cells = Vec::new();
    for size in SIZES {
        for kib in KIB {
            // A moment's run tries each shape, not each cell.
            let tried = ACTIVE
                .into_iter()
                .filter(|n| !options.smoke || (kib == 64 && *n <= 10));
            cells.extend(tried.map(|active| Cell {
                of: (size, kib, active),
                runs: Vec::new(),
                clusters: Vec::new(),
            }));
        }
    }
    for _ in 0..options.runs(9, 1) {
        for cell in &mut cells {
            let (size, kib, active) = cell.of;
            let before = round_trip_ns()?;
            let first = First::are(&[]);
            let a = hop::<Bytes>(size, kib << 10, active, window)?;
            let b = hop::<Descriptors>(size, kib << 10, active, window)?;
            drop(first);
            cell.runs.push((a, b));
            cell.clusters.push(cluster(before, round_trip_ns()?));
        }
    }
    Ok(cells.iter().map(Cell::figure).collect())
}

impl Cell {
    fn figure(&self) -> Figure {
        let (size, kib, active) = self.of;
        let of = |what: fn(&(f64, f64)) -> f64| self.runs.iter().map(what).collect::<Vec<_>>();
        let median = |all: Vec<f64>| Figure::of("", "", &all).value;
        Figure::of(&format!("shape.{size}_{kib}k_{active}"), "ratio", &of(|(a, b)| a / b))
            .cluster(cluster_of(&self.clusters))
            .ours("mrec_s", median(of(|run| run.0)))
            .peer("name", "a ring of descriptors in the same memory, buffers of 2 KiB, the one freed last taken first")
            .peer("mrec_s", median(of(|run| run.1)))
            .note(format!("{size} B, {active} rings of {kib} KiB each way in turns, a hop from core 1 over core 0 back to core 1"))
    }
}

/// Millions of records a second over one hop.
fn hop<S: Shape>(
    size: usize,
    bytes: usize,
    active: usize,
    window: Duration,
) -> Result<f64, String> {
    let mut ways = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
    for (tx, rx) in &mut ways {
        for _ in 0..active {
            let made = S::make(bytes)?;
            tx.push(made.0);
            rx.push(made.1);
        }
    }
    let [(mut first, mut from), (mut to, mut last)] = ways;
    let stop = AtomicBool::new(false);
    let (wrong, spent) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = pin(0);
            let mut turns = 0_u32;
            while !stop.load(Ordering::Relaxed) {
                for (rx, tx) in from.iter_mut().zip(&mut to) {
                    let mut n = 0;
                    while n < BATCH && S::pass(rx, tx) {
                        n += 1;
                    }
                    if n > 0 {
                        S::release(rx);
                        S::publish(tx);
                    }
                    turns = turns.wrapping_add(1);
                    if turns.is_multiple_of(64) {
                        spent.store(thread_ns(), Ordering::Relaxed);
                    }
                }
            }
        });
        let measured = scope.spawn(|| -> Result<f64, String> {
            pin(1)?;
            let mut record = vec![7_u8; size];
            let mut read = vec![0_u8; size];
            let (mut sent, mut got) = (vec![0_u64; active], vec![0_u64; active]);
            let mut rounds = |time: Duration| {
                let (begun, mut came) = (Instant::now(), 0_u64);
                while begun.elapsed() < time {
                    for at in 0..active {
                        for _ in 0..BATCH {
                            record[..8].copy_from_slice(&sent[at].to_le_bytes());
                            if !S::push(&mut first[at], &record) {
                                break;
                            }
                            sent[at] += 1;
                        }
                        S::publish(&mut first[at]);
                        let mut n = 0;
                        while n < BATCH && S::take(&mut last[at], &mut read) == Some(size) {
                            let number = read.first_chunk().map(|b| u64::from_le_bytes(*b));
                            wrong.fetch_add(u64::from(number != Some(got[at])), Ordering::Relaxed);
                            got[at] += 1;
                            n += 1;
                        }
                        S::release(&mut last[at]);
                        came += n as u64;
                    }
                }
                (came, begun.elapsed())
            };
            // Every byte of every ring has been used before it counts.
            rounds(window);
            // What counts are spans in which both threads had their processors.
            let (mut all, mut clean) = ((0, Duration::ZERO), (0, Duration::ZERO));
            let mut spans = 0;
            while clean.1 < window && spans < 20 * (window.as_millis() / 4 + 1) {
                let (mine, its) = (thread_ns(), spent.load(Ordering::Relaxed));
                let (came, time) = rounds(Duration::from_millis(4));
                let least = time.as_nanos() as u64 * 95 / 100;
                let both =
                    thread_ns() - mine > least && spent.load(Ordering::Relaxed) - its > least;
                for sum in [Some(&mut all), both.then_some(&mut clean)]
                    .into_iter()
                    .flatten()
                {
                    sum.0 += came;
                    sum.1 += time;
                }
                spans += 1;
            }
            let (came, time) = if clean.1.is_zero() { all } else { clean };
            Ok(came as f64 / time.as_secs_f64() / 1e6)
        });
        let rate = measured
            .join()
            .map_err(|_| "the generator panicked".to_owned());
        stop.store(true, Ordering::Relaxed);
        match wrong.load(Ordering::Relaxed) {
            0 => rate?,
            n => Err(format!("{n} records were not what was written")),
        }
    })
}
