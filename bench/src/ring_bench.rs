//! `bench ring`: 64-byte records in batches of 32 through a FIFO, written and read,
//! producer on core 1 and consumer on core 0, against a plain ring in C that checks
//! nothing. Runs alternate.

use crate::Options;
use crate::peer::{cluster, cluster_of, plain_ring_mrecs, round_trip_ns};
use crate::results::Figure;
use rustix::thread::{CpuSet, sched_setaffinity};
use shm::{Direction, Geometry, Start};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wire::offload::RawOffload;

const BATCH: usize = 32;
/// The same bytes of ring as the peer's 4,096 slots of 64.
const CAPACITY: usize = 256 << 10;

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    let seconds = if options.smoke { 0.1 } else { 0.4 };
    let (mut ratios, mut ours, mut plain, mut clusters) = (vec![], vec![], vec![], vec![]);
    for _ in 0..options.runs(25, 9) {
        let before = round_trip_ns()?;
        let a = fifo_mrecs(Duration::from_secs_f64(seconds), options.hindered)?;
        let b = plain_ring_mrecs(seconds)?;
        clusters.push(cluster(before, round_trip_ns()?));
        ratios.push(a / b);
        ours.push(a);
        plain.push(b);
    }
    Ok(vec![
        Figure::of("ring.records_vs_plain", "ratio", &ratios)
            .cluster(cluster_of(&clusters))
            .ours("mrec_s", Figure::of("", "", &ours).value)
            .ours("cores", 2)
            .peer("name", "plain C ring without checks (bench/peers/plain_ring.c spsc 64 4096 32)")
            .peer("mrec_s", Figure::of("", "", &plain).value)
            .peer("cores", 2)
            .note("64 B payload written and read on each side, batch 32; ours adds a 16 B header a record"),
    ])
}

/// Millions of records a second through one direction of a channel.
fn fifo_mrecs(window: Duration, slowed: bool) -> Result<f64, String> {
    let geometry = Geometry::records(CAPACITY, 16 << 10).map_err(|e| e.to_string())?;
    let direction = Direction::create(&geometry).map_err(|e| e.to_string())?;
    let producer = direction.producer_end().map_err(|e| e.to_string())?;
    let consumer = direction.consumer_end().map_err(|e| e.to_string())?;
    let stop = AtomicBool::new(false);
    let wrong = AtomicU64::new(0);
    let mut rate = 0.0;
    std::thread::scope(|scope| -> Result<(), String> {
        let writer = scope.spawn(|| -> Result<(), String> {
            pin(1)?;
            let mut tx = shm::attach_producer(producer, &geometry, Start::Fresh)
                .map_err(|e| e.to_string())?;
            let offload = RawOffload::default();
            let mut payload = [7_u8; 64];
            let mut number = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..BATCH {
                    payload[..8].copy_from_slice(&number.to_le_bytes());
                    if tx.ring.push(0, &offload, &payload, &[]).is_err() {
                        std::hint::spin_loop();
                        break;
                    }
                    number += 1;
                }
                let _ = tx.ring.publish();
            }
            Ok(())
        });
        pin(0)?;
        let mut rx =
            shm::attach_consumer(consumer, &geometry, Start::Fresh).map_err(|e| e.to_string())?;
        let mut read = [0_u8; 64];
        let (mut number, mut counted, mut began) = (0_u64, 0_u64, None);
        let start = Instant::now();
        let warm = Duration::from_millis(100);
        loop {
            let mut any = 0;
            while any < BATCH {
                let Some(record) = rx.ring.next().map_err(|b| format!("{b:?}"))? else {
                    break;
                };
                record.copy(0, &mut read);
                if u64::from_le_bytes(*read.first_chunk().unwrap_or(&[0; 8])) != number {
                    wrong.fetch_add(1, Ordering::Relaxed);
                }
                number += 1;
                any += 1;
                if slowed {
                    std::hint::black_box((0..400).fold(number, |a, b| a ^ b));
                }
            }
            rx.ring.release();
            if any == 0 {
                std::hint::spin_loop();
                continue;
            }
            let now = start.elapsed();
            if began.is_none() && now > warm {
                began = Some(now);
                counted = number;
            }
            if let Some(began) = began.filter(|b| now > *b + window) {
                rate = (number - counted) as f64 / (now - began).as_secs_f64() / 1e6;
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        writer
            .join()
            .map_err(|_| "the producer panicked".to_owned())?
    })?;
    match wrong.into_inner() {
        0 => Ok(rate),
        wrong => Err(format!("{wrong} records were not what was written")),
    }
}

fn pin(core: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(|e| format!("core {core}: {e}"))
}
