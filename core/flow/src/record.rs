//! One connection in memory: 120 bytes, all zero where there is none.

use wire::{Tuple, tcp};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::connections::{Side, Verdict};
use crate::segment::Tcp;
use crate::state::State;
use crate::tally::{Tally, exact, rounded};
use crate::tcp::{Step, Track};
use guard::guard;

/// Whether two addresses are one: as numbers, for which nobody is called.
#[inline(always)]
const fn same(a: &[u8; 16], b: &[u8; 16]) -> bool {
    u128::from_ne_bytes(*a) == u128::from_ne_bytes(*b)
}

/// A connection. Pairs are (initiator, responder).
#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Record {
    source: [u8; 16],
    destination: [u8; 16],
    source_port: u16,
    destination_port: u16,
    zones: [u16; 2],
    owners: [u16; 2],
    protocol: u8,
    /// [`State`], or 0: no connection.
    state: u8,
    flags: u8,
    /// Window scales, 4 bits each, low ones the initiator's; [`NO_SCALE`] where none
    /// was offered.
    scales: u8,
    /// The next record in the chain of answers, or of free ones; its number and 1.
    pub(crate) next: u32,
    /// When a packet passed last, [`tick`]s.
    last: u32,
    epoch: u32,
    rules: [u32; 2],
    /// Its place in the journal, and 1; 0: none.
    pub(crate) place: u32,
    ends: [u32; 2],
    limits: [u32; 2],
    windows: [u16; 2],
    counts: [Count; 2],
    /// Packets and bytes of them that were told, [`rounded`].
    told: [u16; 2],
}

/// Bytes of a record.
pub(crate) const RECORD: usize = size_of::<Record>();
const _: () = assert!(RECORD == 120);

/// Flag: the side of the responder is not the initiator's reversed.
pub(crate) const TRANSLATED: u8 = 0x40;
/// Flag: it lies among the half-open ones.
pub(crate) const WAITS: u8 = 0x80;
const TRACKED: u8 = 0x3f;

/// The coarse clock of records: about 16.8 ms, which goes round after two years.
pub(crate) const fn tick(now: u64) -> u32 {
    (now >> 24) as u32
}

impl Record {
    /// A new one, not yet judged by any packet.
    pub(crate) fn new(now: u64, a: &Side, b: &Side, verdict: &Verdict) -> Record {
        let mut record = Record {
            source: a.tuple.source,
            destination: a.tuple.destination,
            source_port: a.tuple.source_port,
            destination_port: a.tuple.destination_port,
            zones: [a.zone, b.zone],
            owners: [a.owner as u16, b.owner as u16],
            protocol: a.tuple.protocol,
            state: 0,
            flags: match b.tuple == a.tuple.reversed() {
                true => 0,
                false => TRANSLATED,
            },
            scales: 0xff,
            next: 0,
            last: tick(now),
            epoch: 0,
            rules: [0; 2],
            place: 0,
            ends: [0; 2],
            limits: [0; 2],
            windows: [0; 2],
            counts: [Count([0; 3]); 2],
            told: [0; 2],
        };
        record.judge(verdict);
        record
    }

    /// Words out of all its cache lines, whatever they are.
    #[inline]
    pub(crate) const fn pull(&self) -> u32 {
        let [first, ..] = self.source;
        let [.., last] = self.told;
        first as u32 ^ self.epoch ^ last as u32
    }

    pub(crate) const fn state(&self) -> Option<State> {
        State::of(self.state)
    }

    pub(crate) const fn set_state(&mut self, state: State) {
        self.state = state as u8;
    }

    pub(crate) const fn protocol(&self) -> u8 {
        self.protocol
    }

    pub(crate) const fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(crate) const fn set(&mut self, flag: u8, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }

    /// By which zone its initiator comes.
    pub(crate) const fn zone(&self) -> u16 {
        self.zones[0]
    }

    /// The initiator's side.
    pub(crate) const fn a(&self) -> Side {
        Side {
            owner: self.owners[0] as u32,
            zone: self.zones[0],
            tuple: Tuple {
                source: self.source,
                destination: self.destination,
                source_port: self.source_port,
                destination_port: self.destination_port,
                protocol: self.protocol,
            },
        }
    }

    /// Whether this is the initiator's side. The ports come first: most others differ there.
    #[inline]
    pub(crate) fn is_a(&self, owner: u32, zone: u16, tuple: &Tuple) -> bool {
        (self.source_port, self.destination_port) == (tuple.source_port, tuple.destination_port)
            && (u32::from(self.owners[0]), self.zones[0]) == (owner, zone)
            && self.protocol == tuple.protocol
            && same(&self.source, &tuple.source)
            && same(&self.destination, &tuple.destination)
    }

    /// Whether the responder's side is found there.
    #[inline]
    pub(crate) fn is_b_of(&self, owner: u32, zone: u16) -> bool {
        (u32::from(self.owners[1]), self.zones[1]) == (owner, zone)
    }

    /// Whether this is the responder's tuple, where nothing is translated.
    #[inline]
    pub(crate) fn is_answered_by(&self, tuple: &Tuple) -> bool {
        (self.source_port, self.destination_port) == (tuple.destination_port, tuple.source_port)
            && self.protocol == tuple.protocol
            && same(&self.source, &tuple.destination)
            && same(&self.destination, &tuple.source)
    }

    /// The responder's, where nothing is translated.
    pub(crate) const fn plain_b(&self) -> Side {
        Side {
            owner: self.owners[1] as u32,
            zone: self.zones[1],
            tuple: self.a().tuple.reversed(),
        }
    }

    pub(crate) const fn verdict(&self) -> Verdict {
        Verdict {
            epoch: self.epoch,
            rules: self.rules,
        }
    }

    pub(crate) const fn epoch(&self) -> u32 {
        self.epoch
    }

    pub(crate) const fn renew(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    pub(crate) const fn judge(&mut self, verdict: &Verdict) {
        self.epoch = verdict.epoch;
        self.rules = verdict.rules;
    }

    /// Nanoseconds since a packet passed, as the coarse clock knows it: never more than
    /// it was.
    pub(crate) const fn silent(&self, now: u64) -> u64 {
        (tick(now).wrapping_sub(self.last).saturating_sub(1) as u64) << 24
    }

    /// The order of eviction: ticks of silence.
    pub(crate) const fn age(&self, now: u64) -> u32 {
        tick(now).wrapping_sub(self.last)
    }

    pub(crate) const fn touch(&mut self, now: u64) {
        self.last = tick(now);
    }

    /// Silent for longer than its state allows.
    #[inline(never)]
    pub(crate) fn expired(&self, now: u64) -> bool {
        self.state()
            .is_none_or(|state| self.silent(now) > state.timeout(self.protocol))
    }

    /// Gives way where there is no other place.
    pub(crate) fn idle(&self, now: u64) -> bool {
        self.state().is_none_or(|state| {
            state.is_over() || self.silent(now) > state.idle().min(state.timeout(self.protocol))
        })
    }

    pub(crate) const fn track(&self, state: State) -> Track {
        Track {
            state,
            flags: self.flags & TRACKED,
            ends: self.ends,
            limits: self.limits,
            windows: [widen(self.windows[0]), widen(self.windows[1])],
            scales: [self.scales & 15, self.scales >> 4],
        }
    }

    pub(crate) const fn set_track(&mut self, track: &Track) {
        self.state = track.state as u8;
        self.flags = self.flags & !TRACKED | track.flags & TRACKED;
        self.ends = track.ends;
        self.limits = track.limits;
        self.windows = [narrow(track.windows[0]), narrow(track.windows[1])];
        self.scales = track.scales[0] & 15 | track.scales[1] << 4;
    }

    /// Judges and counts a packet of `side` that changes nothing but counts, windows and the
    /// time of the last packet; `false`: it may change more, and nothing changed.
    #[inline(always)]
    pub(crate) fn hit(&mut self, now: u64, side: usize, tcp: Option<&Tcp>, bytes: u32) -> bool {
        const STREAM: u8 = State::Stream as u8;
        const REPLIED: u8 = State::Replied as u8;
        const UNREPLIED: u8 = State::Unreplied as u8;
        // Who waits for a place of its own asks for it with each packet, unless it is half
        // open still.
        let waits = self.is(WAITS);
        let steady = match (self.state, side) {
            (STREAM, _) | (REPLIED, 1) => tcp.is_none() && !waits,
            (UNREPLIED, 0) => tcp.is_none(),
            _ => false,
        };
        let tick = tick(now);
        // No state here lasts less than that.
        let lately = tick.wrapping_sub(self.last) < LATELY;
        if !lately && self.expired(now) && guard!("flow-hit-expires") {
            return false;
        }
        let Some(counted) = self.counts.get(side).and_then(|count| count.plus(bytes)) else {
            return false;
        };
        if !steady && !self.hit_tcp(side, tcp) {
            return false;
        }
        if let Some(count) = self.counts.get_mut(side) {
            *count = counted;
        }
        self.last = tick;
        true
    }

    /// A segment of an established connection that changes no more than its windows.
    #[inline(never)]
    fn hit_tcp(&mut self, side: usize, tcp: Option<&Tcp>) -> bool {
        let Some(facts) = tcp.filter(|_| !self.is(WAITS)) else {
            return false;
        };
        let ends = facts.flags & (tcp::FIN | tcp::RST) != 0;
        if ends || self.state() != Some(State::Established) {
            return false;
        }
        let mut track = self.track(State::Established);
        let steady =
            track.judge(side, facts) == Ok(Step::Pass) && track.state == State::Established;
        if steady {
            self.set_track(&track);
        }
        steady
    }

    pub(crate) fn count(&mut self, side: usize, packets: u32, bytes: u32) {
        if let Some(count) = self.counts.get_mut(side) {
            count.add(packets, bytes);
        }
    }

    pub(crate) const fn counts(&self) -> [(u64, u64); 2] {
        [self.counts[0].both(), self.counts[1].both()]
    }

    /// All that passed and was not told yet: of a connection that ends.
    pub(crate) const fn untold(&self) -> Tally {
        let [packets, bytes] = self.passed();
        self.beyond(packets, bytes)
    }

    /// The same of one that goes on, as far as its record can say that it was told; that is
    /// noted.
    pub(crate) const fn tell(&mut self) -> Tally {
        let [packets, bytes] = self.passed();
        let told = [rounded(packets), rounded(bytes)];
        let tally = self.beyond(exact(told[0]), exact(told[1]));
        self.told = told;
        tally
    }

    const fn passed(&self) -> [u64; 2] {
        let [forth, back] = self.counts();
        [forth.0 + back.0, forth.1 + back.1]
    }

    const fn beyond(&self, packets: u64, bytes: u64) -> Tally {
        Tally {
            rules: self.rules,
            packets: packets.saturating_sub(exact(self.told[0])),
            bytes: bytes.saturating_sub(exact(self.told[1])),
        }
    }
}

/// Packets (44 bits) and bytes (52 bits): at 100 Gbit/s of small packets a day and a
/// half, at what one flow does in practice years. They stop at their ends.
#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Count([u32; 3]);

impl Count {
    const fn both(self) -> (u64, u64) {
        let [low, middle, high] = self.0;
        let all = low as u128 | (middle as u128) << 32 | (high as u128) << 64;
        ((all >> 52) as u64, all as u64 & ((1 << 52) - 1))
    }

    /// With one packet more; `None`: near an end.
    #[inline(always)]
    fn plus(self, bytes: u32) -> Option<Count> {
        let [low, middle, high] = self.0;
        let all = u64::from(middle) << 32 | u64::from(low);
        let held = (all & ((1 << 52) - 1)) + u64::from(bytes);
        if held >> 52 != 0 || high == u32::MAX {
            return None;
        }
        let (all, carries) = all.overflowing_add(1 << 52 | u64::from(bytes));
        Some(Count([
            all as u32,
            (all >> 32) as u32,
            high + u32::from(carries),
        ]))
    }

    fn add(&mut self, packets: u32, bytes: u32) {
        let (had, held) = self.both();
        let packets = (had + u64::from(packets)).min((1 << 44) - 1);
        let bytes = (held + u64::from(bytes)).min((1 << 52) - 1);
        let all = u128::from(packets) << 52 | u128::from(bytes);
        self.0 = [all as u32, (all >> 32) as u32, (all >> 64) as u32];
    }
}

/// Ticks of silence that end nothing: half the shortest timeout of what is answered.
const LATELY: u32 = ((crate::state::ECHO / 2) >> 24) as u32;

/// A window in 16 bits: 11 of its leading bits and where they are, rounded up, so that
/// a window is never taken for less than it is, nor for a two-thousandth more.
const fn narrow(window: u32) -> u16 {
    let places = 21u32.saturating_sub(window.leading_zeros());
    if places == 0 {
        return window as u16;
    }
    let window = window as u64 + ((1 << places) - 1);
    let leading = window >> places;
    // Rounding up may have made a bit more of it.
    match leading >> 11 {
        0 => (places << 11) as u16 | leading as u16,
        _ => ((places + 1) << 11) as u16 | (leading >> 1) as u16,
    }
}

const fn widen(window: u16) -> u32 {
    let wide = ((window & 0x7ff) as u64) << (window >> 11);
    if wide > u32::MAX as u64 {
        return u32::MAX;
    }
    wide as u32
}

/// A translated connection's responder side, beside the record of the same number.
#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Translation {
    source: [u8; 16],
    destination: [u8; 16],
    source_port: u16,
    destination_port: u16,
}

impl Translation {
    pub(crate) const fn of(tuple: &Tuple) -> Translation {
        Translation {
            source: tuple.source,
            destination: tuple.destination,
            source_port: tuple.source_port,
            destination_port: tuple.destination_port,
        }
    }

    pub(crate) const fn tuple(&self, protocol: u8) -> Tuple {
        Tuple {
            source: self.source,
            destination: self.destination,
            source_port: self.source_port,
            destination_port: self.destination_port,
            protocol,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_rounded_up_and_hardly() {
        let mut edges: Vec<u32> = (0..32).flat_map(|n| [1 << n, (1u32 << n) - 1]).collect();
        edges.extend([2047, 2048, 2049, 4095, 65_535, 65_535 << 14, (1 << 22) + 1]);
        for window in edges {
            let wide = widen(narrow(window));
            assert!(wide >= window, "{window} became {wide}");
            assert!(wide - window <= window / 1024, "{window} became {wide}");
        }
    }

    #[test]
    fn counts_stop_at_their_ends() {
        let mut count = Count([0; 3]);
        count.add(3, 70_000);
        count.add(4, 5);
        assert_eq!(count.both(), (7, 70_005));
        let mut full = Count([u32::MAX; 3]);
        full.add(1, 1);
        assert_eq!(full.both(), ((1 << 44) - 1, (1 << 52) - 1));
    }
}
