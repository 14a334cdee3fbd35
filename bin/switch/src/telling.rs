//! What the process tells of itself, by plain stores into pages that the keeper holds.

use crate::rules::Rules;
use shm::{CountersPage, Recorder};
use switch::{Decided, Slot, Tally};
use telemetry::counters::{Counter, MOST_WORKERS, ProcessWord, worker_word};
use telemetry::drops::{DropReason, MAX_REASONS};
use telemetry::recorder::{Event, EventKind};
use telemetry::rules::Logged;

/// At most one drop event a reason in this time, ns; of what rules deny one a rule, of which
/// those of the same number modulo [`RULES`] count as one.
const SAMPLE: u64 = 1_000_000_000;
const RULES: usize = 16;

/// Counters and flight recorder.
pub struct Telling {
    pub counters: CountersPage,
    recorder: Recorder,
    rules: Rules,
    sampled: [u64; MAX_REASONS],
    /// The same of what rules denied, so that one rule does not hide another.
    denied: [u64; RULES],
    /// Host-wide endpoint ids by slot, for captures; 0 = none.
    endpoints: Vec<u32>,
    /// What went to one slot since that was counted.
    pub going: Sum,
}

/// Frames of one slot in a row: counted together, at another slot's or when the turn ends.
#[derive(Clone, Copy, Default)]
pub struct Sum {
    pub slot: Slot,
    pub frames: u64,
    pub bytes: u64,
    pub segments: u64,
    pub gso_bytes: u64,
    /// Some of them were not our own.
    pub forwarded: bool,
}

impl Telling {
    /// Over the pages of this compartment, which were [begun](Telling::begin).
    pub fn new(counters: CountersPage, recorder: Recorder) -> Telling {
        let endpoints = vec![0; counters.slots()];
        Telling {
            rules: Rules::new(&counters),
            counters,
            recorder,
            sampled: [0; MAX_REASONS],
            denied: [0; RULES],
            endpoints,
            going: Sum::default(),
        }
    }

    /// What a predecessor was doing is over, and what it kept for later gone.
    pub fn begin(counters: &CountersPage) {
        for word in [
            ProcessWord::Working,
            ProcessWord::Asleep,
            ProcessWord::FirstFrame,
            ProcessWord::Restored,
            ProcessWord::NotRestored,
            ProcessWord::Workers,
            ProcessWord::Died,
        ] {
            counters.set(word, 0);
        }
        for slot in 0..counters.slots() {
            counters.catch_up(slot, Counter::Released, Counter::Held);
        }
        for worker in 0..MOST_WORKERS {
            for word in [ProcessWord::Working, ProcessWord::Asleep] {
                counters
                    .words()
                    .store(worker_word(worker, word as usize), 0);
            }
        }
    }

    /// Records an event.
    pub fn record(&mut self, now: u64, kind: EventKind, slot: Slot, a: u64, b: u64) {
        self.recorder.record(Event {
            time_ns: now,
            kind: kind as u32,
            slot,
            a,
            b,
        });
    }

    /// Counts a drop, and records one now and then.
    pub fn dropped(&mut self, slot: Slot, reason: DropReason, now: u64) {
        self.dropped_by(slot, reason, None, now);
    }

    /// The same, with the rule that denied it.
    pub fn dropped_by(&mut self, slot: Slot, reason: DropReason, rule: Option<u32>, now: u64) {
        self.counters.dropped(slot as usize, reason, 1);
        let last = match rule {
            Some(rule) => self.denied.get_mut(rule as usize % RULES),
            None => self.sampled.get_mut(reason as usize),
        };
        if let Some(last) = last
            && (*last == 0 || now.saturating_sub(*last) >= SAMPLE)
        {
            *last = now;
            let rule = rule.map_or(0, |rule| u64::from(rule) + 1);
            self.record(now, EventKind::Drop, slot, reason as u64, rule);
        }
    }

    /// Counts frames that waited for a slot and are lost: nothing waits for it any longer.
    pub fn no_longer_wait(&self, slot: Slot, frames: usize, reason: DropReason) {
        let at = slot as usize;
        self.counters.dropped(at, reason, frames as u64);
        self.counters.catch_up(at, Counter::Released, Counter::Held);
    }

    /// Counts what rules decided, and records it where they log.
    pub fn decided(&mut self, decided: &Decided, now: u64) {
        let [sent, got] = decided.rules;
        // One rule at both ends is one decision.
        for (rule, log) in [sent, got.filter(|_| got != sent)].into_iter().flatten() {
            let sum = (decided.packets.into(), decided.bytes.into());
            self.rules.count(&self.counters, rule, decided.outcome, sum);
            if !log {
                continue;
            }
            if !self.rules.may_log(now) {
                self.counters.add_process(ProcessWord::Unlogged, 1);
                continue;
            }
            let [a, b] = logged(decided, rule).words();
            self.record(now, EventKind::Rule, decided.owner, a, b);
        }
    }

    /// Counts what passed of a connection, for its rules.
    pub fn tallied(&mut self, tally: &Tally) {
        let [sent, got] = tally.rules;
        // A side that has no rules is the default's, as where connections are listed.
        for rule in [Some(sent), (got != sent).then_some(got)]
            .into_iter()
            .flatten()
        {
            self.rules
                .passed(&self.counters, rule, tally.packets, tally.bytes);
        }
    }

    /// Counts frames that came the short way, each one frame on a wire.
    pub fn came(&mut self, slot: Slot, frames: u64, bytes: u64) {
        let at = slot as usize;
        self.counters.count(at, Counter::RxFrames, frames);
        self.counters.count(at, Counter::RxBytes, bytes);
        self.counters.count(at, Counter::RxSegments, frames);
    }

    /// Counts what went to one slot, if anything did, and goes on with another; which slot
    /// that was.
    pub fn settle_going(&mut self, next: Slot, now: u64) -> Option<Slot> {
        let sum = core::mem::replace(
            &mut self.going,
            Sum {
                slot: next,
                ..Sum::default()
            },
        );
        if sum.frames == 0 {
            return None;
        }
        let at = sum.slot as usize;
        self.counters.count(at, Counter::TxFrames, sum.frames);
        self.counters.count(at, Counter::TxBytes, sum.bytes);
        self.counters.count(at, Counter::TxSegments, sum.segments);
        self.counters.count(at, Counter::TxGsoBytes, sum.gso_bytes);
        if sum.forwarded && self.counters.process(ProcessWord::FirstFrame) == 0 {
            self.counters.set(ProcessWord::FirstFrame, now);
        }
        Some(sum.slot)
    }

    /// Counts system calls that each move one frame.
    pub fn frame_calls(&mut self, calls: u64) {
        self.counters.add_process(ProcessWord::FrameSyscalls, calls);
        self.counters
            .add_process(ProcessWord::FrameSyscallFrames, calls);
    }

    /// The endpoint in a slot; 0 = the fabric, or none.
    pub fn endpoint(&self, slot: Slot) -> u32 {
        self.endpoints.get(slot as usize).copied().unwrap_or(0)
    }

    /// Takes the endpoints' places from a new image.
    pub fn place(&mut self, image: &image::CompartmentImage<'_>) {
        self.endpoints.fill(0);
        for endpoint in image.endpoints() {
            if let Some(id) = self.endpoints.get_mut(endpoint.slot as usize) {
                *id = endpoint.id;
            }
        }
    }
}

fn logged(decided: &Decided, rule: u32) -> Logged {
    let tuple = &decided.tuple;
    let peer = match decided.inbound {
        true => tuple.source,
        false => tuple.destination,
    };
    let [.., a, b, c, d] = peer;
    Logged {
        rule,
        outcome: decided.outcome as u8,
        inbound: decided.inbound,
        peer: [a, b, c, d],
        six: !peer.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]),
        protocol: tuple.protocol,
        source_port: tuple.source_port,
        destination_port: tuple.destination_port,
        circuit: false,
        reason: 0,
    }
}
