//! One direction of a channel between two pinned threads: millions of records a
//! second, payload written and read.
//!
//! `ring_pair [PAYLOAD=64] [CAPACITY=1048576] [BATCH=32] [SECONDS=2]`
//! Core 0 consumes, core 1 produces. Each payload carries its number; `bad` counts
//! those that arrive out of order or with another.

use host_shm::{Direction, Doorbell, PushError, Start, attach_consumer, attach_producer};
use ring::Geometry;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<f64>());
    let mut next = |default| args.next().unwrap_or(Ok(default));
    let (payload, capacity) = (next(64.0)?.max(8.0) as usize, next(1048576.0)? as usize);
    let (batch, seconds) = (next(32.0)?.max(1.0) as usize, next(2.0)?);
    let max_record = Geometry::max_record_for(payload.max(2048));
    let geometry = Geometry::records(capacity, max_record)?;
    let direction = Direction::create(&geometry)?;
    let mut tx = attach_producer(direction.producer_end()?, &geometry, Start::Fresh)?;
    let mut rx = attach_consumer(direction.consumer_end()?, &geometry, Start::Fresh)?;
    let stop = &AtomicBool::new(false);

    let produce = move || {
        pin(1);
        let mut frame = vec![7; payload];
        let offload = Default::default();
        let mut number = 0u64;
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..batch {
                frame[..8].copy_from_slice(&number.to_ne_bytes());
                match tx.ring.push(0, &offload, &frame, &[]) {
                    Ok(()) => number += 1,
                    Err(PushError::Full) => {
                        spin_loop();
                        break;
                    }
                    Err(e) => panic!("push: {e:?}"),
                }
            }
            if tx.ring.publish() == Doorbell::Ring {
                tx.bell.ring().expect("ring");
            }
        }
    };
    let consume = move || {
        pin(0);
        let mut out = vec![0; payload];
        let (mut number, mut bad) = (0u64, 0u64);
        let warm = Instant::now() + Duration::from_millis(200);
        let end = warm + Duration::from_secs_f64(seconds);
        let mut started: Option<(Instant, u64)> = None;
        loop {
            for _ in 0..256 {
                let mut got = 0;
                while got < batch {
                    let Some(record) = rx.ring.next().expect("no breach") else {
                        break;
                    };
                    record.copy(0, &mut out);
                    bad += u64::from(out[..8] != number.to_ne_bytes());
                    black_box(&out);
                    number += 1;
                    got += 1;
                }
                rx.ring.release();
                if got == 0 {
                    spin_loop();
                }
            }
            let now = Instant::now();
            match started {
                None if now > warm => started = Some((now, number)),
                Some((at, base)) if now > end => {
                    stop.store(true, Ordering::Relaxed);
                    let took = (now - at).as_secs_f64();
                    return ((number - base) as f64 / took / 1e6, bad);
                }
                _ => {}
            }
        }
    };
    let (rate, bad) = std::thread::scope(|scope| {
        scope.spawn(produce);
        scope.spawn(consume).join().expect("consumer")
    });
    println!(
        "ring payload={payload} capacity={capacity} batch={batch}  {rate:.2} Mrec/s  {:.2} GB/s bad={bad}",
        rate * payload as f64 / 1e3
    );
    Ok(())
}

/// Best effort: a machine with one core still runs it.
fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}
