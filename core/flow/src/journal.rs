//! What of a connection outlives the process that tracked it.
//!
//! The switch writes an [`Entry`] per connection into memory that another holds; its
//! successor reads them. Whoever wrote them may have been taken over, so that what is
//! read is an allegation: [`Entry::read`] takes only what a connection can be, and the
//! caller judges it by the present tables before it opens it again. Numbers are given
//! anew then, so that all entries are read before the first connection is opened.

use guard::guard;
use wire::address::{is_multicast, is_unspecified, unmapped};
use wire::{Tuple, icmpv4, icmpv6, tcp, udp};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::connections::Side;
use crate::sip;
use crate::state::State;
use crate::tcp::NO_SCALE;

/// Where entries are written to. It neither blocks nor fails.
pub trait Journal {
    /// Whether anything is kept; if not, no entry is made.
    const KEEPS: bool = true;

    /// What is at `slot`, a connection's number, from now on; `None`: nothing.
    fn write(&mut self, slot: u32, entry: Option<&Entry>);
}

/// No journal.
impl Journal for () {
    const KEEPS: bool = false;

    fn write(&mut self, _: u32, _: Option<&Entry>) {}
}

/// `Entry::version` of this layout.
pub const VERSION: u8 = 1;

/// A connection as written: 96 bytes, host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Entry {
    /// A hash of the rest and of the slot: what was torn or moved is not taken. It
    /// keeps no one from forging.
    check: u64,
    owners: [u32; 2],
    sources: [[u8; 16]; 2],
    destinations: [[u8; 16]; 2],
    source_ports: [u16; 2],
    destination_ports: [u16; 2],
    zones: [u16; 2],
    protocol: u8,
    state: u8,
    scales: u8,
    version: u8,
}

/// Bytes of an [`Entry`].
pub const ENTRY: usize = size_of::<Entry>();
const _: () = assert!(ENTRY == 96);

/// A connection that a journal alleges, and that could be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The initiator's side.
    pub a: Side,
    /// The responder's side.
    pub b: Side,
    /// [`State::Established`], [`State::Replied`] or [`State::Stream`].
    pub state: State,
    pub(crate) scales: [u8; 2],
}

impl Entry {
    pub(crate) fn new(slot: u32, [a, b]: [&Side; 2], state: State, scales: [u8; 2]) -> Entry {
        let mut entry = Entry {
            check: 0,
            owners: [a.owner, b.owner],
            sources: [a.tuple.source, b.tuple.source],
            destinations: [a.tuple.destination, b.tuple.destination],
            source_ports: [a.tuple.source_port, b.tuple.source_port],
            destination_ports: [a.tuple.destination_port, b.tuple.destination_port],
            zones: [a.zone, b.zone],
            protocol: a.tuple.protocol,
            state: state as u8,
            scales: scales[0] & 15 | scales[1] << 4,
            version: VERSION,
        };
        entry.check = entry.sum(slot);
        entry
    }

    fn sum(&self, slot: u32) -> u64 {
        let mut words = [0u64; ENTRY / 8];
        let (all, _) = self.as_bytes().as_chunks::<8>();
        for (word, bytes) in words.iter_mut().zip(all) {
            *word = u64::from_ne_bytes(*bytes);
        }
        // In place of itself.
        words[0] = u64::from(slot);
        sip::hash([0; 2], words, (ENTRY as u64) << 56)
    }

    /// Reads what was found at `slot`. `None`: nothing, or nothing that a connection
    /// could be: torn, of another version, half-open or over, of contradicting sides.
    /// That owners exist and that sides are free is seen when it is opened.
    pub fn read(&self, slot: u32) -> Option<Restored> {
        if self.version != VERSION || (guard!("journal-torn") && self.check != self.sum(slot)) {
            return None;
        }
        let state = match (State::of(self.state)?, self.protocol) {
            // What was closing may close once more.
            (State::Established | State::HalfClosed, tcp::PROTOCOL) => State::Established,
            (State::Replied | State::Stream, tcp::PROTOCOL) => return None,
            (state @ (State::Replied | State::Stream), _) => state,
            _ => return None,
        };
        let scales = [self.scales & 15, self.scales >> 4];
        // Both sides scale or neither does.
        let scaled = scales.iter().filter(|&&scale| scale != NO_SCALE).count();
        if state == State::Established && scaled == 1 {
            return None;
        }
        let [a, b] = [0, 1].map(|index| self.side(index));
        let (a, b) = (a?, b?);
        if guard!("journal-sides") && !(sound(&a.tuple, false) && sound(&b.tuple, true)) {
            return None;
        }
        let family = |side: &Side| unmapped(&side.tuple.source).is_some();
        if family(&a) != family(&b) {
            return None;
        }
        Some(Restored {
            a,
            b,
            state,
            scales,
        })
    }

    fn side(&self, index: usize) -> Option<Side> {
        Some(Side {
            owner: *self.owners.get(index)?,
            zone: *self.zones.get(index)?,
            tuple: Tuple {
                source: *self.sources.get(index)?,
                destination: *self.destinations.get(index)?,
                source_port: *self.source_ports.get(index)?,
                destination_port: *self.destination_ports.get(index)?,
                protocol: self.protocol,
            },
        })
    }
}

/// Whether a connection can have such a side: addresses of one family that one host
/// has, ports as the protocol has them.
fn sound(tuple: &Tuple, responder: bool) -> bool {
    let v4 = unmapped(&tuple.source).is_some();
    let addresses = [&tuple.source, &tuple.destination];
    let hosts = addresses
        .iter()
        .all(|a| unmapped(a).is_some() == v4 && !is_multicast(a) && !is_unspecified(a));
    let (source, destination) = (tuple.source_port, tuple.destination_port);
    let ports = match (tuple.protocol, v4) {
        (tcp::PROTOCOL | udp::PROTOCOL, _) => true,
        (icmpv4::PROTOCOL, true) | (icmpv6::PROTOCOL, false) => match responder {
            false => destination == 0,
            true => source == 0,
        },
        _ => (source, destination) == (0, 0),
    };
    hosts && ports
}
