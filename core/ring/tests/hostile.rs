//! A peer that scribbles over all it can reach, all the while: the honest side never
//! panics, never leaves its bounds, and closes only with a named breach.

use core_ring::heap::Heap;
use core_ring::{Consumer, Geometry, Producer, PushError};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use wire::offload::RawOffload;

const CAPACITY: usize = 1024;
/// At least so many peers are survived, and so many of each outcome seen.
const ROUNDS: usize = 60_000;
const ENOUGH: u64 = 100;
const MOST_ROUNDS: usize = 50_000_000;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    /// Mostly plausible: near what is there, aligned, small; now and then anything.
    fn lie(&mut self, near: u64) -> u64 {
        match self.next() % 8 {
            0 => self.next(),
            4 | 5 => 16 * (self.next() % 40),
            1 => near.wrapping_sub(16),
            2 => near.wrapping_add(CAPACITY as u64),
            3 => near + 1,
            _ => near.wrapping_add(16 * (self.next() % 40)),
        }
    }
}

fn scribble(words: &[AtomicU64], random: &mut Random) {
    let word = &words[random.next() as usize % words.len()];
    word.store(random.lie(word.load(Ordering::Relaxed)), Ordering::Relaxed);
}

fn scribble_header(heap: &Heap, random: &mut Random) {
    let at = random.next() as usize % (CAPACITY / 16) * 16;
    let kind = random.next() as u8 % 4;
    let units = random.next() as u8 % 5;
    let len = (random.next() % 300) as u32;
    for (i, byte) in len
        .to_ne_bytes()
        .into_iter()
        .chain([kind, units])
        .enumerate()
    {
        heap.data[at + i].store(byte, Ordering::Relaxed);
    }
}

/// Now and then all looks fresh again, so that the other side gets past the handshake.
fn calm(words: &[AtomicU64], random: &mut Random) {
    if random.next().is_multiple_of(16) {
        words
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

#[test]
fn a_consumer_survives_a_scribbling_producer() {
    let geometry = Geometry::records(CAPACITY, 256).unwrap();
    let heap = Heap::new(CAPACITY);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(0x9e3779b97f4a7c15);
            while !done.load(Ordering::Relaxed) {
                scribble_header(&heap, &mut random);
                scribble(&heap.producer[..1], &mut random);
                if random.next().is_multiple_of(64) {
                    scribble(&heap.producer, &mut random);
                }
                calm(&heap.producer, &mut random);
            }
        });
        let (mut records, mut breaches) = (0u64, 0u64);
        let mut out = [0; 512];
        for n in 0..MOST_ROUNDS {
            if n > ROUNDS && records > ENOUGH && breaches > ENOUGH {
                break;
            }
            if n % 1000 == 0 {
                thread::yield_now();
            }
            let mut rx = if n % 2 == 0 {
                Consumer::fresh(heap.clone(), &geometry)
            } else {
                Consumer::resume(heap.clone(), &geometry, n as u64 * 2, 0)
            };
            for _ in 0..50 {
                match rx.next() {
                    Ok(Some(record)) => {
                        assert!(record.len() <= 240 && record.ring_bytes() <= 256);
                        assert_eq!(record.copy(0, &mut out), record.len());
                        let _ = record.note();
                        records += 1;
                    }
                    Ok(None) => {
                        let _ = rx.arm();
                    }
                    Err(_) => {
                        breaches += 1;
                        break;
                    }
                }
                rx.release();
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(
            records > 0 && breaches > 0,
            "{records} records, {breaches} breaches"
        );
    });
}

#[test]
fn a_producer_survives_a_scribbling_consumer() {
    let geometry = Geometry::records(CAPACITY, 256).unwrap();
    let heap = Heap::new(CAPACITY);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(0x2545f4914f6cdd1d);
            while !done.load(Ordering::Relaxed) {
                scribble(&heap.consumer[..1], &mut random);
                if random.next().is_multiple_of(64) {
                    scribble(&heap.consumer, &mut random);
                }
                calm(&heap.consumer, &mut random);
            }
        });
        let (mut pushed, mut breaches) = (0u64, 0u64);
        for n in 0..MOST_ROUNDS {
            if n > ROUNDS && pushed > ENOUGH && breaches > ENOUGH {
                break;
            }
            if n % 1000 == 0 {
                thread::yield_now();
            }
            let mut tx = if n % 2 == 0 {
                Producer::fresh(heap.clone(), &geometry)
            } else {
                Producer::resume(heap.clone(), &geometry, n as u64, 0)
            };
            for i in 0..50 {
                match tx.push(1, &RawOffload::default(), &[1; 200][..i * 4], &[2; 7]) {
                    Ok(()) => pushed += 1,
                    Err(PushError::Full) => {}
                    Err(PushError::TooLong) => unreachable!("207 bytes"),
                    Err(PushError::Breach(_)) => {
                        breaches += 1;
                        break;
                    }
                }
                assert!(tx.backlog() <= CAPACITY);
                let _ = tx.publish();
                let _ = tx.poll();
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(
            pushed > 0 && breaches > 0,
            "{pushed} pushed, {breaches} breaches"
        );
    });
}
