//! An output that writes everything down.

use core_switch::{Finish, HEAD, Outgoing, Output, Slot, finish};
use std::collections::BTreeMap;
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use wire::offload::RawOffload;

/// A frame that came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub slot: Slot,
    pub tag: u16,
    pub offload: RawOffload,
    pub frame: Vec<u8>,
}

impl Sent {
    pub fn parsed(&self) -> wire::Parsed {
        wire::parse(&self.frame, self.frame.len()).expect("what comes out parses")
    }
    /// Bytes of layer 4 and above.
    pub fn transport(&self) -> &[u8] {
        let parsed = self.parsed();
        &self.frame[parsed.transport_offset().expect("IP")..parsed.packet_end]
    }
}

/// All that one frame caused.
#[derive(Debug, Default)]
pub struct Seen {
    ingress: Vec<u8>,
    pub sent: Vec<Sent>,
    pub drops: Vec<(Slot, DropReason)>,
    pub counts: BTreeMap<(Slot, Counter), u64>,
    pub decided: Option<core_switch::Decided>,
    /// By which tag what was sent came, in order.
    pub came_by: Vec<u16>,
}

impl Seen {
    /// A frame's head, and of what it causes nothing yet.
    pub fn of(frame: &[u8]) -> (Vec<u8>, Seen) {
        let seen = Seen {
            ingress: frame.to_vec(),
            ..Seen::default()
        };
        (frame[..frame.len().min(HEAD)].to_vec(), seen)
    }
    /// The slots that got something, in order.
    pub fn slots(&self) -> Vec<Slot> {
        self.sent.iter().map(|s| s.slot).collect()
    }
    pub fn reasons(&self) -> Vec<DropReason> {
        self.drops.iter().map(|d| d.1).collect()
    }
    /// The one frame that came out.
    pub fn only(&self) -> &Sent {
        assert_eq!((self.sent.len(), self.reasons()), (1, vec![]), "{self:?}");
        &self.sent[0]
    }
    pub fn count(&self, slot: Slot, counter: Counter) -> u64 {
        self.counts.get(&(slot, counter)).copied().unwrap_or(0)
    }
}

impl Output for Seen {
    fn ingress(&mut self, offset: usize, into: &mut [u8]) -> usize {
        assert!(
            offset >= HEAD.min(self.ingress.len()),
            "the head is read once"
        );
        let rest = self.ingress.get(offset..).unwrap_or(&[]);
        let n = rest.len().min(into.len());
        into[..n].copy_from_slice(&rest[..n]);
        n
    }
    fn send(&mut self, f: &Outgoing<'_>) {
        let frame = self.whole(f);
        self.came_by.push(f.came_by);
        self.sent.push(Sent {
            slot: f.slot,
            tag: f.tag,
            offload: f.offload,
            frame,
        });
    }
    fn finish(&mut self, f: &Outgoing<'_>, how: &Finish) {
        let mut frame = self.whole(f);
        let mut scratch = [0; 9100];
        self.came_by.push(f.came_by);
        let sent = &mut self.sent;
        finish(how, &mut frame, &mut scratch, |offload, frame| {
            sent.push(Sent {
                slot: f.slot,
                tag: f.tag,
                offload: *offload,
                frame: frame.to_vec(),
            });
        })
        .expect("finishes");
    }
    fn reply(&mut self, slot: Slot, tag: u16, frame: &[u8]) {
        self.sent.push(Sent {
            slot,
            tag,
            offload: RawOffload::default(),
            frame: frame.to_vec(),
        });
    }
    fn dropped(&mut self, slot: Slot, reason: DropReason) {
        self.drops.push((slot, reason));
    }
    fn count(&mut self, slot: Slot, counter: Counter, n: u64) {
        *self.counts.entry((slot, counter)).or_default() += n;
    }
    fn decided(&mut self, decided: &core_switch::Decided) {
        assert!(self.decided.replace(*decided).is_none(), "told twice");
    }
}

impl Seen {
    fn whole(&self, f: &Outgoing<'_>) -> Vec<u8> {
        let mut frame = f.head.to_vec();
        frame.extend_from_slice(self.ingress.get(f.rest_from..f.total).unwrap_or(&[]));
        assert_eq!(
            frame.len(),
            f.head.len() + f.total.saturating_sub(f.rest_from)
        );
        frame
    }
}
