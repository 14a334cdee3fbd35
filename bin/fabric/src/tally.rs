//! Counters, the flight recorder, and what was suspicious in a batch.

use crate::crossed::Crossed;
use fabric::{Counters, Frame, HEAD};
use shm::{CountersPage, Recorder};
use telemetry::counters::{Counter, ProcessWord};
use telemetry::drops::{DropReason, MAX_REASONS};
use telemetry::recorder::{Event, EventKind};

/// Least time between two recorded drops for one reason, ns.
const DROP_EVENT_NS: u64 = 1_000_000_000;

/// What this process tells the world.
pub struct Tally {
    pub counters: CountersPage,
    crossed: Crossed,
    recorder: Recorder,
    beats: u64,
    recorded: [u64; MAX_REASONS],
    forwarded: bool,
    /// The last frame of a batch that no honest switch can send.
    pub suspicious: Option<(u32, DropReason, [u8; HEAD])>,
    /// Time of the batch.
    pub now: u64,
}

impl Tally {
    pub fn new(counters: CountersPage, recorder: Recorder) -> Tally {
        // A predecessor that died asleep or at work left its words.
        for word in [
            ProcessWord::Asleep,
            ProcessWord::Working,
            ProcessWord::FirstFrame,
        ] {
            counters.set(word, 0);
        }
        let beats = counters.process(ProcessWord::Heartbeat);
        let (recorded, now) = ([0; MAX_REASONS], 0);
        Tally {
            crossed: Crossed::new(&counters),
            counters,
            recorder,
            beats,
            recorded,
            forwarded: false,
            suspicious: None,
            now,
        }
    }

    /// The supervisor's sign of progress.
    pub fn beat(&mut self) {
        self.beats = self.beats.wrapping_add(1);
        self.counters.set(ProcessWord::Heartbeat, self.beats);
    }

    pub fn record(&mut self, kind: EventKind, slot: u32, a: u64, b: u64, now: u64) {
        self.recorder.record(Event {
            time_ns: now,
            kind: kind as u32,
            slot,
            a,
            b,
        });
    }

    /// Frames that were in flight when a side of a channel restarted.
    pub fn lost(&mut self, slot: u32, records: u64) {
        if records != 0 {
            self.counters
                .dropped(slot as usize, DropReason::Restart, records);
        }
    }

    /// System calls for frames, and the frames they moved.
    pub fn called(&self, calls: u64, frames: u64) {
        self.counters.add_process(ProcessWord::FrameSyscalls, calls);
        self.counters
            .add_process(ProcessWord::FrameSyscallFrames, frames);
    }
}

impl Counters for Tally {
    #[inline]
    fn add(&mut self, slot: u32, counter: Counter, n: u64) {
        self.counters.count(slot as usize, counter, n);
        if counter == Counter::TxFrames && !self.forwarded {
            self.forwarded = true;
            self.counters.set(ProcessWord::FirstFrame, self.now);
        }
    }

    #[inline]
    fn crossed(&mut self, ingress: u32, tag: u16, segments: u64, bytes: u64) {
        let counters = &self.counters;
        self.crossed.count(counters, ingress, tag, segments, bytes);
    }

    fn dropped(&mut self, slot: u32, reason: DropReason, frame: &Frame) {
        self.counters.dropped(slot as usize, reason, 1);
        if reason == DropReason::FabricSource {
            self.suspicious = Some((slot, reason, frame.head));
        }
        let Some(last) = self.recorded.get_mut(reason as usize) else {
            return;
        };
        if *last == 0 || self.now.saturating_sub(*last) >= DROP_EVENT_NS {
            *last = self.now.max(1);
            // A mark to tell frames apart, not their bytes.
            let mark = frame
                .head
                .iter()
                .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
                    (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
                });
            self.record(EventKind::Drop, slot, reason as u64, mark, self.now);
        }
    }
}
