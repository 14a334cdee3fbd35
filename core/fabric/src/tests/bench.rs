//! Queues, tables and frames to test with.

use crate::forward::{Frame, HEAD};
use crate::serve::{Batch, Counters, Egress, Ingress, Refused, Turn, serve};
use crate::{Outcome, Rounds};
use image::fabric::*;
use image::{Aligned, FabricImage, FabricTables};
use std::collections::{BTreeMap, VecDeque};
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use wire::RawOffload;

/// The uplink's slot.
pub const UPLINK: u32 = 9;
/// Compartment 1's MAC and tag on the uplink; 2's differ in the last byte and tag.
pub const ONE: [u8; 6] = [2, 0, 0, 0, 1, 1];
pub const TWO: [u8; 6] = [2, 0, 0, 0, 1, 2];
pub const ROUTER: [u8; 6] = [2, 0, 0, 0, 0, 99];
pub const EVERYBODY: [u8; 6] = [255; 6];
pub const IP_ONE: [u8; 4] = [192, 0, 2, 1];

/// Compartments 1 and 2 on an uplink, each with its own MAC, address and tag; 3 is
/// connected to nothing.
pub fn tables() -> FabricTables {
    let channel = |id, kind, slot| Channel {
        id,
        kind,
        slot,
        weight: 1,
        ..Channel::default()
    };
    let entry = |ingress, tag, mac, target, out_tag, kind| Forward {
        ingress,
        tag,
        mac,
        target,
        out_tag,
        kind,
    };
    let mut template = Template {
        egress: UPLINK,
        tag: 5,
        len: 30,
        ..Template::default()
    };
    template.mask[6..14].fill(255);
    template.value[6..12].copy_from_slice(&ONE);
    template.value[12..14].copy_from_slice(&[8, 0]);
    template.mask[26..30].fill(255);
    template.value[26..30].copy_from_slice(&IP_ONE);
    let mut other = Template {
        egress: UPLINK,
        tag: 6,
        len: 14,
        ..Template::default()
    };
    other.mask[6..12].fill(255);
    other.value[6..12].copy_from_slice(&TWO);
    let member = |slot, out_tag| GroupMember {
        slot,
        out_tag,
        reserved: 0,
    };
    FabricTables {
        channels: vec![
            channel(1, CHANNEL_COMPARTMENT, 1),
            channel(2, CHANNEL_COMPARTMENT, 2),
            channel(3, CHANNEL_COMPARTMENT, 3),
            channel(0, CHANNEL_UPLINK, UPLINK),
        ],
        forwards: vec![
            entry(1, 5, [0; 6], UPLINK, 0, FORWARD_UNICAST),
            entry(2, 6, [0; 6], UPLINK, 0, FORWARD_UNICAST),
            entry(UPLINK, 0, ONE, 1, 5, FORWARD_UNICAST),
            entry(UPLINK, 0, TWO, 2, 6, FORWARD_UNICAST),
            entry(UPLINK, 0, EVERYBODY, 0, 0, FORWARD_GROUP),
            entry(1, 5, EVERYBODY, 1, 0, FORWARD_GROUP),
        ],
        groups: vec![
            vec![member(1, 5), member(2, 6)],
            vec![member(UPLINK, 0), member(1, 5)],
        ],
        templates: vec![(0, template), (1, other)],
    }
}

pub fn image(tables: &FabricTables) -> Aligned {
    Aligned::copy_of(&tables.finish().unwrap())
}

/// An IPv4 frame of `len` bytes.
pub fn frame(tag: u16, to: [u8; 6], from: [u8; 6], source: [u8; 4], len: usize) -> Frame {
    let mut head = [0; HEAD];
    head[..6].copy_from_slice(&to);
    head[6..12].copy_from_slice(&from);
    head[12..14].copy_from_slice(&[8, 0]);
    head[14] = 0x45;
    head[26..30].copy_from_slice(&source);
    Frame {
        tag,
        offload: RawOffload::default(),
        len,
        head,
    }
}

/// What compartment 1 may say.
pub fn honest(len: usize) -> Frame {
    frame(5, ROUTER, ONE, IP_ONE, len)
}

#[derive(Default)]
pub struct Queue(pub VecDeque<Frame>);

impl Ingress for Queue {
    type Source<'a> = ();
    fn peek(&mut self) -> Option<(Frame, ())> {
        self.0.front().map(|frame| (*frame, ()))
    }
    fn advance(&mut self) {
        self.0.pop_front();
    }
}

/// Collects what is sent; a slot in `full` has no room.
#[derive(Default)]
pub struct Sink {
    pub sent: Vec<(u32, u16, Frame)>,
    pub full: Vec<u32>,
    /// To which each frame is a system call.
    pub called: Vec<u32>,
    pub calls: u64,
}

impl Egress<Queue> for Sink {
    fn send(&mut self, slot: u32, tag: u16, frame: &Frame, (): &()) -> Result<(), Refused> {
        if self.full.contains(&slot) {
            return Err(Refused::Full);
        }
        self.calls += u64::from(self.called.contains(&slot));
        self.sent.push((slot, tag, *frame));
        Ok(())
    }
    fn calls(&self) -> u64 {
        self.calls
    }
}

#[derive(Default)]
pub struct Tally {
    pub drops: BTreeMap<(u32, DropReason), u64>,
    pub counts: BTreeMap<(u32, Counter), u64>,
    /// By ingress and tag: segments, bytes.
    pub crossed: BTreeMap<(u32, u16), [u64; 2]>,
}

impl Counters for Tally {
    fn add(&mut self, slot: u32, counter: Counter, n: u64) {
        *self.counts.entry((slot, counter)).or_default() += n;
    }
    fn crossed(&mut self, ingress: u32, tag: u16, segments: u64, bytes: u64) {
        let sum = self.crossed.entry((ingress, tag)).or_default();
        *sum = [sum[0] + segments, sum[1] + bytes];
    }
    fn dropped(&mut self, slot: u32, reason: DropReason, _: &Frame) {
        *self.drops.entry((slot, reason)).or_default() += 1;
    }
}

/// A turn without bounds that matter.
pub fn turn() -> Turn {
    Turn {
        allowance: 1 << 30,
        now: 0,
        parked: 0,
        may_park: true,
    }
}

/// What becomes of one frame from a slot.
pub fn pass(tables: &FabricTables, ingress: u32, frame: Frame) -> (Sink, Tally) {
    let bytes = image(tables);
    let image = FabricImage::map(bytes.as_ref()).unwrap();
    let (mut from, mut to, mut tally) = (Queue::default(), Sink::default(), Tally::default());
    from.0.push_back(frame);
    let outcome = serve(&image, ingress, &mut from, &mut to, &mut tally, turn()).outcome;
    assert_eq!(outcome, Outcome::Empty);
    (to, tally)
}

/// Senders that always have more, each of frames of a size of its own, on a link of
/// so many bytes a second; what each got through in a second of that, in bytes.
pub fn contend(tables: &FabricTables, senders: &[(u32, usize)], link: u64) -> BTreeMap<u32, u64> {
    let got = contend_by(tables, senders, link, &[]);
    got.into_iter()
        .map(|(slot, (cost, _))| (slot, cost))
        .collect()
}

/// The same where each frame to some slots is a system call: what each cost, and its bytes.
pub fn contend_by(
    tables: &FabricTables,
    senders: &[(u32, usize)],
    link: u64,
    called: &[u32],
) -> BTreeMap<u32, (u64, u64)> {
    let bytes = image(tables);
    let image = FabricImage::map(bytes.as_ref()).unwrap();
    let mut rounds = Rounds::new(64, crate::UNITS);
    rounds.configure(crate::shares(&image));
    let mut now = 0u64;
    for (slot, _) in senders {
        rounds.activate(*slot, now);
    }
    let mut got = BTreeMap::<u32, (u64, u64)>::new();
    while now < 1_000_000_000 {
        let (slot, allowance) = rounds.next(now).unwrap();
        let (_, len) = senders.iter().find(|(s, _)| *s == slot).unwrap();
        let mut from = Queue::default();
        let (tag, mac, source) = if slot == 1 {
            (5, ONE, IP_ONE)
        } else {
            (6, TWO, IP_ONE)
        };
        from.0
            .extend((0..crate::BATCH).map(|_| frame(tag, ROUTER, mac, source, *len)));
        let mut tally = Tally::default();
        let mut to = Sink {
            called: called.to_vec(),
            ..Sink::default()
        };
        let turn = Turn {
            allowance,
            now,
            parked: 0,
            may_park: true,
        };
        let Batch { cost, bytes, .. } = serve(&image, slot, &mut from, &mut to, &mut tally, turn);
        rounds.price(slot, cost, bytes);
        now += (cost as u128 * 1_000_000_000 / u128::from(link)) as u64 + 1;
        let sums = got.entry(slot).or_default();
        *sums = (sums.0 + cost, sums.1 + bytes);
        rounds.settle(slot, cost, Outcome::More, true);
    }
    got
}
