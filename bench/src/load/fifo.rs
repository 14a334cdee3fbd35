//! The generator and sink over two FIFO endpoints, one thread on core 1 that polls both:
//! the counterpart of peers/dpdk_load.c, with the same marks and windows.

use super::{Shape, Trial};
use crate::flow::Attached;
use crate::forward::site::{PLAIN, Station, frame, ports, shuffled};
use rustix::thread::{CpuSet, sched_setaffinity};
use shm::Doorbell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use wire::offload::{GSO_UDP_L4, NEEDS_CSUM, RawOffload};

const BATCH: usize = 32;
/// Bytes at most that are sent before the sink has its turn: less than a ring holds.
const BATCH_BYTES: usize = 192 << 10;
const WINDOW: u64 = 4_000_000;
const WINDOWS: usize = 4096;
const MARK: u32 = 0x6265_6e63;
/// Where the mark stands, behind Ethernet, IPv4 and UDP.
const MARK_AT: usize = 42;
/// Buckets of each power of two of a delay.
const SUBS: u64 = 64;
/// Bytes of the frames that stand for many.
pub const GSO_FRAME: usize = 65_549;

/// It.
pub struct Fifo {
    ends: [Attached; 2],
    stations: [Station; 2],
    order: Vec<u32>,
    number: u16,
}

struct Sink {
    got: Vec<u64>,
    recent: Vec<u64>,
    scratch: Vec<u8>,
    sum: u64,
    /// Frames of whatever kind.
    taken: u64,
}

impl Fifo {
    /// From the first end to the second.
    pub fn new(ends: [Attached; 2], stations: [Station; 2]) -> Fifo {
        Fifo {
            ends,
            stations,
            order: vec![0],
            number: 0,
        }
    }

    /// A packet of each flow both ways, each awaited.
    pub fn converse(&mut self, flows: u32) -> Result<(), String> {
        self.number = self.number.wrapping_add(1);
        let mut sink = Sink::new();
        let all: Vec<u32> = (0..flows).collect();
        // So few that no two sets of the table have more half-open ones than these hold.
        for chunk in all.chunks(64) {
            for side in [0, 1] {
                let (from, to) = (self.stations[side], self.stations[1 - side]);
                for flow in chunk {
                    let mut frame = frame(from, to, *flow, 64, side == 1);
                    mark(&mut frame, self.number, WINDOWS as u16, 0);
                    let tx = &mut self.ends[side].channel.tx.ring;
                    let pushed = tx.push(0, &PLAIN, &frame, &[]);
                    pushed.map_err(|e| format!("flow {flow}: {e:?}"))?;
                }
                self.publish(side);
                let patience = Instant::now() + Duration::from_secs(5);
                let mut came = 0;
                while came < chunk.len() {
                    self.follow()?;
                    came += self.take(1 - side, 0, &mut sink)?;
                    if Instant::now() > patience {
                        return Err(format!("{came} of {} connections", chunk.len()));
                    }
                }
            }
        }
        Ok(())
    }

    /// A run, as [`super::Load::run`]; `switch` is the switch's process.
    pub fn run(&mut self, shape: &Shape, pps: f64, switch: u32) -> Result<Trial, String> {
        std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                pin(1)?;
                self.run_here(shape, pps, switch)
            });
            run.join()
                .map_err(|_| "the generator panicked".to_owned())?
        })
    }

    fn run_here(&mut self, shape: &Shape, pps: f64, switch: u32) -> Result<Trial, String> {
        if self.order.len() != shape.flows as usize {
            self.order = shuffled(shape.flows);
        }
        self.number = self.number.wrapping_add(1);
        let gso = shape.size == GSO_FRAME;
        let offload = if gso { SEGMENTED } else { PLAIN };
        let (from, to) = (self.stations[0], self.stations[1]);
        let mut frame = frame(from, to, 0, shape.size, false);
        let mut sink = Sink::new();
        let mut its = Processor::of(switch)?;
        let (mut offered, mut own) = (vec![0_u64; WINDOWS], vec![false; WINDOWS]);
        let (mut widths, mut delays) = (vec![0_u64; WINDOWS], vec![0_u64; BUCKETS]);
        let (mut at, mut due_count, mut taken, mut window) = (0, 0_u64, 0_u64, 0_usize);
        let batch = (BATCH_BYTES / shape.size).min(BATCH) as u64;
        let start = Instant::now();
        let end = shape.time.as_nanos() as u64;
        let gap = if pps > 0.0 { 1e9 / pps } else { 0.0 };
        let (mut edge, mut mine_before, mut its_before) = (WINDOW, thread_ns(), its.ns());
        for turn in 0_u64.. {
            let now = start.elapsed().as_nanos() as u64;
            // What was due while this thread was away is offered at once, and late.
            let batches = if pps > 0.0 { 4 } else { 1 };
            for _ in 0..batches {
                let due = if pps > 0.0 {
                    (now as f64 / gap) as u64
                } else {
                    due_count + batch
                };
                let k = (due - due_count).min(batch);
                if k == 0 {
                    break;
                }
                let tx = &mut self.ends[0].channel.tx.ring;
                for n in 0..k {
                    let due = if pps > 0.0 {
                        ((due_count + n) as f64 * gap) as u64
                    } else {
                        now
                    };
                    let (a, b) = ports(self.order[at]);
                    frame[34..36].copy_from_slice(&a.to_be_bytes());
                    frame[36..38].copy_from_slice(&b.to_be_bytes());
                    mark(&mut frame, self.number, window as u16, due);
                    let took = tx.push(0, &offload, &frame, &[]).is_ok();
                    if !took && pps == 0.0 {
                        break;
                    }
                    at = if at + 1 == self.order.len() {
                        0
                    } else {
                        at + 1
                    };
                    taken += u64::from(took);
                    offered[window] += 1;
                }
                due_count += k;
                self.publish(0);
            }
            self.take(1, now, &mut sink)?;
            if turn.is_multiple_of(64) {
                self.follow()?;
                self.take(0, now, &mut sink)?;
            }
            if now >= edge {
                let (mine, theirs) = (thread_ns(), its.ns());
                let width = WINDOW + (now - edge);
                let least = width * 97 / 100;
                own[window] =
                    shape.every || (mine - mine_before > least && theirs - its_before > least);
                if own[window] && window > 0 && own[window - 1] {
                    delays
                        .iter_mut()
                        .zip(&sink.recent)
                        .for_each(|(a, b)| *a += b);
                }
                sink.recent.fill(0);
                widths[window] = width;
                (mine_before, its_before, edge) = (mine, theirs, now + WINDOW);
                window += 1;
                if window == WINDOWS - 1 {
                    break;
                }
            }
            if now >= end {
                break;
            }
        }
        let patience = Instant::now() + Duration::from_millis(5);
        while Instant::now() < patience {
            self.take(1, 0, &mut sink)?;
        }
        let clean: Vec<usize> = (1..window).filter(|w| own[*w] && own[*w - 1]).collect();
        let of = |all: &[u64]| clean.iter().map(|w| all[*w]).sum::<u64>() as f64;
        Ok(Trial {
            offered: of(&offered),
            got: of(&sink.got),
            seconds: of(&widths) / 1e9,
            clean: clean.len() as u32,
            delays: [0.5, 0.99, 0.999].map(|q| quantile(&delays, q)),
            taken,
        })
    }

    /// For so long only takes what comes to the second end.
    pub fn rest(&mut self, time: Duration) -> Result<(), String> {
        let mut sink = Sink::new();
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.follow()?;
            let before = sink.taken;
            self.take(1, 0, &mut sink)?;
            if sink.taken == before {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    fn publish(&mut self, side: usize) {
        let tx = &mut self.ends[side].channel.tx;
        if tx.ring.publish() == Doorbell::Ring {
            let _ = tx.bell.ring();
        }
    }

    /// Follows the switch where it starts again.
    fn follow(&mut self) -> Result<(), String> {
        for end in &mut self.ends {
            let channel = &mut end.channel;
            channel.tx.ring.poll().map_err(|b| format!("{b:?}"))?;
            channel.rx.ring.poll().map_err(|b| format!("{b:?}"))?;
        }
        Ok(())
    }

    /// Takes a batch of what came to a side; how many are this run's.
    fn take(&mut self, side: usize, now: u64, sink: &mut Sink) -> Result<usize, String> {
        let own = self.stations[side].0;
        let ring = &mut self.ends[side].channel.rx.ring;
        let (mut mine, before) = (0, sink.taken);
        for _ in 0..BATCH {
            let Some(record) = ring.next().map_err(|b| format!("{b:?}"))? else {
                break;
            };
            sink.taken += 1;
            let len = record.copy(0, &mut sink.scratch);
            let seen = &sink.scratch[..len];
            let words = seen.chunks_exact(8);
            sink.sum = words.fold(sink.sum, |sum, word| {
                sum.wrapping_add(u64::from_ne_bytes(word.try_into().unwrap_or_default()))
            });
            let Some((window, due)) = marked(seen, self.number) else {
                continue;
            };
            if seen[..6] != own {
                continue;
            }
            mine += 1;
            if let Some(got) = sink.got.get_mut(window) {
                *got += 1;
            }
            sink.recent[bucket(now.saturating_sub(due))] += 1;
        }
        if sink.taken != before {
            ring.release();
        }
        std::hint::black_box(sink.sum);
        Ok(mine)
    }
}

/// UDP that stands for a datagram of each 1,472 bytes.
const SEGMENTED: RawOffload = RawOffload {
    flags: NEEDS_CSUM,
    gso_type: GSO_UDP_L4,
    gso_size: 1472,
    csum_start: 34,
    csum_offset: 6,
};

impl Sink {
    fn new() -> Sink {
        Sink {
            got: vec![0; WINDOWS],
            recent: vec![0; BUCKETS],
            scratch: vec![0; 66_000],
            sum: 0,
            taken: 0,
        }
    }
}

fn mark(frame: &mut [u8], number: u16, window: u16, due: u64) {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&MARK.to_ne_bytes());
    bytes[4..6].copy_from_slice(&number.to_ne_bytes());
    bytes[6..8].copy_from_slice(&window.to_ne_bytes());
    bytes[8..].copy_from_slice(&due.to_ne_bytes());
    frame[MARK_AT..MARK_AT + 16].copy_from_slice(&bytes);
}

/// The window and time that a frame of this run was due in.
fn marked(frame: &[u8], number: u16) -> Option<(usize, u64)> {
    let bytes: &[u8; 16] = frame.get(MARK_AT..)?.first_chunk()?;
    let [a, b, c, d, e, f, g, h, due @ ..] = *bytes;
    let mine = u32::from_ne_bytes([a, b, c, d]) == MARK && u16::from_ne_bytes([e, f]) == number;
    mine.then(|| {
        (
            usize::from(u16::from_ne_bytes([g, h])),
            u64::from_ne_bytes(due),
        )
    })
}

const BUCKETS: usize = 64 * SUBS as usize;

fn bucket(v: u64) -> usize {
    if v < SUBS {
        return v as usize;
    }
    let power = u64::from(63 - v.leading_zeros());
    ((power - 5) * SUBS + ((v >> (power - 6)) & (SUBS - 1))) as usize
}

fn value(bucket: usize) -> f64 {
    let bucket = bucket as u64;
    if bucket < SUBS {
        return bucket as f64;
    }
    let power = bucket / SUBS + 5;
    ((1_u64 << power) + ((bucket % SUBS) << (power - 6))) as f64
}

fn quantile(all: &[u64], q: f64) -> f64 {
    let sum: u64 = all.iter().sum();
    let mut seen = 0;
    for (at, n) in all.iter().enumerate() {
        seen += n;
        if seen > 0 && seen as f64 >= q * sum as f64 {
            return value(at);
        }
    }
    0.0
}

/// CPU time of a process's first thread.
struct Processor(File);

impl Processor {
    fn of(pid: u32) -> Result<Processor, String> {
        let path = format!("/proc/{pid}/schedstat");
        File::open(&path)
            .map(Processor)
            .map_err(|e| format!("{path}: {e}"))
    }

    fn ns(&mut self) -> u64 {
        let mut text = [0; 64];
        let n = self.0.read_at(&mut text, 0).unwrap_or(0);
        let digits = text[..n].iter().take_while(|b| b.is_ascii_digit());
        digits.fold(0, |all, b| all * 10 + u64::from(b - b'0'))
    }
}

/// CPU time of this thread.
pub fn thread_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Keeps this thread on a core.
pub fn pin(core: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(|e| format!("core {core}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_at_most_a_sixtieth_off() {
        for v in [0, 1, 63, 64, 65, 1000, 123_456, 9_999_999_999] {
            let found = value(bucket(v));
            assert!((found - v as f64).abs() <= v as f64 / 60.0, "{v}: {found}");
        }
        let mut all = vec![0; BUCKETS];
        all[bucket(10)] = 99;
        all[bucket(5000)] = 1;
        assert_eq!(quantile(&all, 0.5), 10.0);
        assert!(quantile(&all, 0.999) > 4900.0);
    }

    #[test]
    fn a_mark_is_read_by_its_own_run_alone() {
        let mut frame = vec![0; 64];
        mark(&mut frame, 7, 3, 99);
        assert_eq!(marked(&frame, 7), Some((3, 99)));
        assert_eq!(marked(&frame, 8), None);
        assert_eq!(marked(&frame[..50], 7), None);
    }
}
