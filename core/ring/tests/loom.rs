//! Model checks under loom, which tries the interleavings of two threads and the
//! stale values that a weak memory may show. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p core-ring --release --test loom`.
//!
//! Death: a side's memory takes a number of stores and then no more, as if the
//! process had been killed there; its successor comes up on the same memory. Each
//! number of stores is a model of its own. Payloads look like record headers, so that
//! a side that starts in a record's middle finds records, with a wrong tag.
#![cfg(loom)]

use core_ring::{
    Consumer, ConsumerMemory, ConsumerWord, Doorbell, Geometry, Producer, ProducerMemory,
    ProducerWord, PushError, RawRecord, State,
};
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Arc, Notify};
use loom::thread;
use std::cell::Cell;
use wire::offload::RawOffload;
use zerocopy::IntoBytes;

const CAPACITY: usize = 128;
const RECORD: usize = 32;
/// The last record of a model.
const LAST: u16 = 100;

struct Shared {
    producer: Vec<AtomicU64>,
    consumer: Vec<AtomicU64>,
    data: Vec<AtomicU64>,
}

/// A process's view: `fuel` stores, then death.
struct Memory {
    shared: Arc<Shared>,
    fuel: Cell<usize>,
}

impl Shared {
    fn new() -> Arc<Shared> {
        let words = |n| (0..n).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Shared {
            producer: words(5),
            consumer: words(4),
            data: words(CAPACITY / 8),
        })
    }
}

impl Memory {
    fn of(shared: &Arc<Shared>, fuel: usize) -> Memory {
        Memory {
            shared: shared.clone(),
            fuel: Cell::new(fuel),
        }
    }
    fn alive(&self) -> bool {
        let fuel = self.fuel.get();
        self.fuel.set(fuel.saturating_sub(1));
        fuel > 0
    }
    fn put(&self, at: usize, value: u64) {
        if self.alive() {
            self.shared.data[at / 8].store(value, Ordering::Relaxed);
        }
    }
}

fn p(word: ProducerWord) -> usize {
    match word as usize {
        n if n >= 8 => n - 5,
        n => n,
    }
}

fn c(word: ConsumerWord) -> usize {
    (word as usize).saturating_sub(7)
}

impl ProducerMemory for Memory {
    fn load(&self, word: ConsumerWord) -> u64 {
        self.shared.consumer[c(word)].load(Ordering::Acquire)
    }
    fn store(&self, word: ProducerWord, value: u64) {
        if self.alive() {
            self.shared.producer[p(word)].store(value, Ordering::Release);
        }
    }
    fn write_header(&self, at: usize, words: [u64; 2]) {
        self.put(at, words[0]);
        self.put(at + 8, words[1]);
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        for (i, word) in bytes.chunks_exact(8).enumerate() {
            self.put(at + i * 8, u64::from_ne_bytes(word.try_into().unwrap()));
        }
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl ConsumerMemory for Memory {
    fn load(&self, word: ProducerWord) -> u64 {
        self.shared.producer[p(word)].load(Ordering::Acquire)
    }
    fn own(&self, word: ConsumerWord) -> u64 {
        self.shared.consumer[c(word)].load(Ordering::Acquire)
    }
    fn store(&self, word: ConsumerWord, value: u64) {
        if self.alive() {
            self.shared.consumer[c(word)].store(value, Ordering::Release);
        }
    }
    fn read_header(&self, at: usize) -> [u64; 2] {
        [0, 8].map(|i| self.shared.data[(at + i) / 8].load(Ordering::Relaxed))
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        for (i, word) in out.chunks_exact_mut(8).enumerate() {
            let value = self.shared.data[at / 8 + i].load(Ordering::Relaxed);
            word.copy_from_slice(&value.to_ne_bytes());
        }
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

fn geometry() -> Geometry {
    Geometry::records(CAPACITY, RECORD).unwrap()
}

/// 16 bytes that are themselves the header of an empty record, with a tag that no
/// record of ours has.
fn payload(tag: u16) -> [u64; 2] {
    let mut header = RawRecord {
        kind: 1,
        header_units: 1,
        tag: tag | 0x8000,
        ..RawRecord::default()
    };
    header.offload.csum_start = tag;
    header.to_words()
}

fn push(tx: &mut Producer<Memory>, tag: u16) -> Result<Doorbell, PushError> {
    tx.push(tag, &RawOffload::default(), payload(tag).as_bytes(), &[])?;
    Ok(tx.publish())
}

/// The next record's tag, with its payload checked.
fn pull(rx: &mut Consumer<Memory>) -> Option<u16> {
    let tag = rx
        .next()
        .expect("no breach between honest sides")
        .map(|record| {
            let mut words = [0u64; 2];
            assert_eq!(record.copy(0, words.as_mut_bytes()), 16);
            assert_eq!(record.tag() & 0x8000, 0, "a payload was read as a header");
            assert_eq!(words, payload(record.tag()), "torn");
            record.tag()
        });
    rx.release();
    tag
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

#[test]
fn nothing_is_lost_torn_or_reordered() {
    check(3, || {
        let shared = Shared::new();
        let mut tx = Producer::fresh(Memory::of(&shared, usize::MAX), &geometry());
        let producer = thread::spawn(move || {
            // One more than fit: the last must wait for the consumer.
            for tag in 1..=5 {
                while push(&mut tx, tag) == Err(PushError::Full) {
                    thread::yield_now();
                }
            }
        });
        let mut rx = Consumer::fresh(Memory::of(&shared, usize::MAX), &geometry());
        for tag in 1..=5 {
            let got = loop {
                match pull(&mut rx) {
                    Some(tag) => break tag,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(got, tag);
        }
        producer.join().unwrap();
    });
}

#[test]
fn no_wakeup_is_lost() {
    check(4, || {
        let shared = Shared::new();
        let bell = Arc::new(Notify::new());
        let mut tx = Producer::fresh(Memory::of(&shared, usize::MAX), &geometry());
        let ringer = bell.clone();
        let producer = thread::spawn(move || {
            for tag in 1..=2 {
                if push(&mut tx, tag).unwrap() == Doorbell::Ring {
                    ringer.notify();
                }
            }
        });
        let mut rx = Consumer::fresh(Memory::of(&shared, usize::MAX), &geometry());
        let mut want = 1;
        while want <= 2 {
            if let Some(tag) = pull(&mut rx) {
                assert_eq!(tag, want);
                want += 1;
            } else if rx.arm().unwrap() {
                // Nobody left to ring is a deadlock, which loom reports.
                bell.wait();
                rx.rung(1).unwrap();
            }
        }
        producer.join().unwrap();
    });
}

/// The dead producer's stores: two records of five words and one publish each, then
/// its own hand-over.
#[test]
fn a_producer_may_die_at_every_step() {
    for fuel in 0..=13 {
        check(2, move || {
            let shared = Shared::new();
            let mut rx = Consumer::fresh(Memory::of(&shared, usize::MAX), &geometry());
            let producer = thread::spawn(move || {
                let mut tx = Producer::fresh(Memory::of(&shared, fuel), &geometry());
                let _ = push(&mut tx, 1);
                let _ = push(&mut tx, 2);
                drop(tx);
                let rest = fuel.saturating_sub(10);
                if rest > 0 {
                    // A successor that dies in its hand-over.
                    let mut tx = Producer::resume(Memory::of(&shared, rest), &geometry(), 31, 0);
                    let _ = tx.poll();
                    let _ = push(&mut tx, 3);
                }
                let fresh = Memory::of(&shared, usize::MAX);
                let mut tx = Producer::resume(fresh, &geometry(), 55, 0);
                while tx.poll().expect("no breach") != State::Running {
                    thread::yield_now();
                }
                let _ = push(&mut tx, 10).unwrap();
                let _ = push(&mut tx, 11).unwrap();
            });
            let mut last = 0;
            while last != 11 {
                match pull(&mut rx) {
                    Some(tag) => {
                        assert!(tag > last, "{tag} after {last}");
                        assert!(tag != 11 || last == 10, "a record of the living was lost");
                        last = tag;
                    }
                    None => thread::yield_now(),
                }
            }
            producer.join().unwrap();
        });
    }
}

#[test]
fn a_consumer_may_die_at_every_step() {
    for fuel in 0..=5 {
        check(2, move || {
            let shared = Shared::new();
            let mut tx = Producer::fresh(Memory::of(&shared, usize::MAX), &geometry());
            let _ = push(&mut tx, 1).unwrap();
            let consumer = thread::spawn(move || {
                let mut rx = Consumer::fresh(Memory::of(&shared, fuel.min(2)), &geometry());
                let _ = rx.arm();
                let first = pull(&mut rx);
                assert!(first.is_none() || first == Some(1));
                drop(rx);
                if fuel > 2 {
                    // A successor that dies in its hand-over.
                    let memory = Memory::of(&shared, fuel - 3);
                    let mut rx = Consumer::resume(memory, &geometry(), 62, 0);
                    let _ = pull(&mut rx);
                }
                let fresh = Memory::of(&shared, usize::MAX);
                let mut rx = Consumer::resume(fresh, &geometry(), 44, 0);
                assert!(!rx.overdue(0), "the producer lives");
                while rx.poll().expect("no breach") != State::Running {
                    thread::yield_now();
                }
                let mut last = 0;
                while last != LAST {
                    match pull(&mut rx) {
                        Some(tag) => {
                            let follows = last == 0 || tag == last + 1 || tag == LAST;
                            assert!(follows, "{tag} after {last}");
                            last = tag;
                        }
                        None => thread::yield_now(),
                    }
                }
            });
            let mut tag = 2;
            for _ in 0..4 {
                tag += u16::from(push(&mut tx, tag).is_ok());
            }
            // The last must reach the successor, so it waits for it.
            while seen_generation(&mut tx) != 44 {
                thread::yield_now();
            }
            while push(&mut tx, LAST) == Err(PushError::Full) {
                thread::yield_now();
            }
            consumer.join().unwrap();
        });
    }
}

/// Polls; the consumer generation that the producer has seen, by its echo.
fn seen_generation(tx: &mut Producer<Memory>) -> u64 {
    tx.poll().expect("no breach");
    ConsumerMemory::load(tx.memory(), ProducerWord::Echo)
}

/// Both die, and both successors come up at once: nobody reads a wrong record, and at
/// least one side asks for a new pair or both agree.
#[test]
fn both_may_die() {
    for fuel in [0, 4, 5, 9, 10] {
        check(2, move || {
            let shared = Shared::new();
            let memory = shared.clone();
            let producer = thread::spawn(move || {
                let mut tx = Producer::fresh(Memory::of(&memory, fuel), &geometry());
                let _ = push(&mut tx, 1);
                let _ = push(&mut tx, 2);
                drop(tx);
                let fresh = Memory::of(&memory, usize::MAX);
                let mut tx = Producer::resume(fresh, &geometry(), 55, 0);
                for tag in 10..13 {
                    let _ = push(&mut tx, tag);
                    thread::yield_now();
                }
            });
            let mut rx = Consumer::fresh(Memory::of(&shared, 1), &geometry());
            let _ = rx.next();
            drop(rx);
            let fresh = Memory::of(&shared, usize::MAX);
            let mut rx = Consumer::resume(fresh, &geometry(), 44, 0);
            let mut last = 0;
            for _ in 0..4 {
                // A breach here may be: it closes the pair. A wrong record may not.
                let Ok(next) = rx.next() else { break };
                if let Some(record) = next {
                    let mut words = [0u64; 2];
                    record.copy(0, words.as_mut_bytes());
                    assert_eq!(record.tag() & 0x8000, 0, "a payload was read as a header");
                    assert_eq!(words, payload(record.tag()), "torn");
                    assert!(record.tag() > last);
                    last = record.tag();
                } else {
                    thread::yield_now();
                }
                rx.release();
            }
            producer.join().unwrap();
        });
    }
}
