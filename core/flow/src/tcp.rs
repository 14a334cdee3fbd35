//! TCP's states and windows, after van Rooij, "Real Stateful TCP Packet Filtering in
//! IP Filter" (2001), as Linux and the BSDs have it since.
//!
//! Of each direction three figures are kept: the end of what was sent, the end of what
//! the other side allows, and the largest window that it ever gave. A segment belongs
//! where its sequence number is not beyond what the receiver allows, its end not more
//! than the receiver's window before what was sent already, and its acknowledgement not
//! of what was not sent, nor older than a window.

use guard::guard;
use wire::tcp::{ACK, FIN, RST, SYN};

use crate::segment::Tcp;
use crate::state::{Invalid, State};

/// A window scale that was not offered.
pub(crate) const NO_SCALE: u8 = 15;
/// An acknowledgement may be so old at least, bytes: Linux's figure, a window without
/// scale and something.
const OLD_ACKNOWLEDGEMENT: u32 = 66_000;
/// The most payload that fragments of one segment have together, bytes.
const MOST_PAYLOAD: u32 = 65_535;

/// What is known of both directions; index 0 is the initiator's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Track {
    pub(crate) state: State,
    /// Bits 0 and 1: this one's SYN was acknowledged, or what it sent is known again since
    /// it was restored; 2 and 3: it sent FIN; 4 and 5: it sent RST.
    pub(crate) flags: u8,
    /// The end of what it sent.
    pub(crate) ends: [u32; 2],
    /// The end of what the other side allows it. Until its SYN is acknowledged: the
    /// number after its SYN.
    pub(crate) limits: [u32; 2],
    /// The largest window that it gave, bytes; 0: it was not heard.
    pub(crate) windows: [u32; 2],
    pub(crate) scales: [u8; 2],
}

/// What becomes of a packet that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Pass,
    /// A new connection of the same tuple begins.
    Anew,
}

const ACKED: u8 = 0x01;
const FINISHED: u8 = 0x04;
const RESET: u8 = 0x10;

/// `a` comes after `b` (RFC 9293, section 3.4).
const fn after(a: u32, b: u32) -> bool {
    (b.wrapping_sub(a) as i32) < 0
}

/// Both ends belong to it.
const fn between(low: u32, value: u32, high: u32) -> bool {
    !after(low, value) && !after(value, high)
}

/// One direction's view: itself and the other.
#[derive(Clone, Copy)]
struct Pair {
    this: usize,
    other: usize,
}

impl Track {
    /// A connection that was restored with these scales: nothing is known of its
    /// windows until each side was heard.
    pub(crate) const fn restored(scales: [u8; 2]) -> Track {
        Track {
            state: State::Established,
            flags: 0,
            ends: [0; 2],
            limits: [0; 2],
            windows: [0; 2],
            scales,
        }
    }

    fn at(values: &[u32; 2], index: usize) -> u32 {
        values.get(index & 1).copied().unwrap_or_default()
    }

    fn put(values: &mut [u32; 2], index: usize, value: u32) {
        if let Some(slot) = values.get_mut(index & 1) {
            *slot = value;
        }
    }

    fn raise(values: &mut [u32; 2], index: usize, value: u32) {
        if after(value, Self::at(values, index)) {
            Self::put(values, index, value);
        }
    }

    fn is(&self, flag: u8, index: usize) -> bool {
        self.flags & flag << (index & 1) != 0
    }

    fn mark(&mut self, flag: u8, index: usize) {
        self.flags |= flag << (index & 1);
    }

    /// Restored, and the end of what this one sent is a guess: it may have repeated what
    /// was lost, behind what it had sent and the other knows.
    fn is_guessed(&self, index: usize) -> bool {
        let stands = matches!(
            self.state,
            State::Established | State::HalfClosed | State::TimeWait
        );
        stands && !self.is(ACKED, index)
    }

    fn scaled(&self, index: usize, window: u16) -> u32 {
        match self.scales.get(index & 1) {
            Some(&scale) if scale < NO_SCALE => u32::from(window) << scale,
            _ => u32::from(window),
        }
    }

    /// Judges a segment that `this` side sent (0 the initiator) and learns from it.
    pub(crate) fn judge(&mut self, this: usize, segment: &Tcp) -> Result<Step, Invalid> {
        if !legal(segment.flags) {
            return Err(Invalid::Flags);
        }
        let pair = Pair {
            this: this & 1,
            other: 1 - (this & 1),
        };
        match self.state {
            State::SynSent | State::SynReceived => self.handshake(pair, segment),
            State::TimeWait | State::Reset if segment.flags & (SYN | ACK) == SYN => Ok(Step::Anew),
            _ => self.established(pair, segment),
        }
    }

    fn handshake(&mut self, pair: Pair, segment: &Tcp) -> Result<Step, Invalid> {
        let Pair { this, other } = pair;
        let heard = Self::at(&self.windows, this) != 0;
        let heard_other = Self::at(&self.windows, other) != 0;
        let ack = segment.flags & ACK != 0;
        if heard_other && ack {
            // Only who saw the SYN can acknowledge it.
            let oldest = match self.is(ACKED, other) {
                true => Self::at(&self.ends, other).wrapping_sub(OLD_ACKNOWLEDGEMENT),
                false => Self::at(&self.limits, other),
            };
            let known = between(oldest, segment.acknowledgement, Self::at(&self.ends, other));
            if guard!("flow-handshake-acknowledgement") && !known {
                return self.challenged(pair, segment, Invalid::Acknowledgement);
            }
        }
        if segment.flags & RST != 0 {
            let fits = match heard {
                true => between(
                    match self.is(ACKED, this) {
                        true => Self::at(&self.ends, this).wrapping_sub(1),
                        false => Self::at(&self.limits, this).wrapping_sub(1),
                    },
                    segment.sequence,
                    Self::at(&self.ends, this),
                ),
                // It answers a SYN, and says so.
                false => ack && heard_other,
            };
            if guard!("flow-handshake-reset") && !fits {
                return self.challenged(pair, segment, Invalid::Reset);
            }
            self.state = State::Reset;
            self.mark(RESET, this);
            return Ok(Step::Pass);
        }
        if segment.flags & SYN == 0 {
            if !(heard && heard_other) {
                return self.challenged(pair, segment, Invalid::NotSyn);
            }
            self.window(pair, segment)?;
            self.learn(pair, segment);
            return Ok(Step::Pass);
        }
        if ack && !heard_other {
            return Err(Invalid::NotSyn);
        }
        let first = segment.sequence.wrapping_add(1);
        if !heard {
            self.begin(this, segment);
        } else if first != Self::at(&self.limits, this) && !self.is(ACKED, this) {
            // Begun again with another number: by an initiator that was not answered,
            // or by a responder that forgot its first answer (SYN cookies).
            let again = match this {
                0 => self.state == State::SynSent,
                _ => ack,
            };
            if !again {
                return Ok(Step::Pass);
            }
            self.begin(this, segment);
        }
        if heard_other {
            self.state = State::SynReceived;
            if self.scales.contains(&NO_SCALE) {
                // Scaling needs both sides (RFC 7323, section 2.2).
                self.scales = [NO_SCALE; 2];
            }
        }
        if ack {
            self.acknowledge(pair, segment.acknowledgement, u32::from(segment.window));
        }
        Ok(Step::Pass)
    }

    /// An answer to a SYN by a host that has an old connection still, and the RST that
    /// follows it (RFC 9293, section 3.5.1): they pass and nothing is learnt.
    fn challenged(&self, pair: Pair, segment: &Tcp, fault: Invalid) -> Result<Step, Invalid> {
        let bare = segment.payload == 0 && !segment.more && segment.flags & (SYN | FIN) == 0;
        match (self.state, pair.this, segment.flags & RST != 0) {
            (State::SynSent, 1, false) | (State::SynSent, 0, true) if bare => Ok(Step::Pass),
            _ => Err(fault),
        }
    }

    /// A SYN, the first or one with another number.
    fn begin(&mut self, this: usize, segment: &Tcp) {
        let first = segment.sequence.wrapping_add(1);
        Self::put(&mut self.limits, this, first);
        Self::put(&mut self.ends, this, first.wrapping_add(segment.payload));
        // A SYN's own window is never scaled.
        Self::put(&mut self.windows, this, u32::from(segment.window).max(1));
        if let Some(scale) = self.scales.get_mut(this) {
            *scale = segment.scale.unwrap_or(NO_SCALE);
        }
    }

    fn acknowledge(&mut self, pair: Pair, number: u32, window: u32) {
        // One byte beyond a closed window is a probe (RFC 9293, section 3.8.6.1).
        let limit = number.wrapping_add(window.max(1));
        let first = !self.is(ACKED, pair.other) && !self.is_guessed(pair.other);
        if first {
            Self::put(&mut self.limits, pair.other, limit);
        }
        Self::raise(&mut self.limits, pair.other, limit);
        if matches!(self.state, State::SynSent | State::SynReceived) {
            self.mark(ACKED, pair.other);
            if self.is(ACKED, 0) && self.is(ACKED, 1) {
                self.state = State::Established;
            }
        }
    }

    fn established(&mut self, pair: Pair, segment: &Tcp) -> Result<Step, Invalid> {
        let Pair { this, other } = pair;
        if segment.flags & SYN != 0 {
            // Its receiver answers with a challenge (RFC 5961, section 4), from which
            // both learn; nothing is learnt here.
            return Ok(Step::Pass);
        }
        if Self::at(&self.windows, this) == 0 {
            // Restored, and not heard since: what it sends is believed once, but no RST.
            if self.state == State::Reset {
                return Err(Invalid::NotSyn);
            }
            if segment.flags & RST != 0 || segment.flags & ACK == 0 {
                return Err(Invalid::Reset);
            }
            let end = end(segment);
            let window = self.scaled(this, segment.window).max(1);
            Self::put(&mut self.windows, this, window);
            if Self::at(&self.windows, other) == 0 {
                Self::put(&mut self.ends, other, segment.acknowledgement);
                Self::put(&mut self.limits, other, segment.acknowledgement);
                Self::put(&mut self.ends, this, end);
                Self::put(&mut self.limits, this, end.wrapping_add(window));
            } else {
                // What the other acknowledged was sent.
                Self::raise(&mut self.ends, this, end);
                Self::raise(&mut self.limits, this, end.wrapping_add(window));
            }
        }
        if self.is_guessed(other) && segment.flags & (ACK | RST) == ACK {
            Self::raise(&mut self.ends, other, segment.acknowledgement);
        }
        self.window(pair, segment)?;
        self.learn(pair, segment);
        Ok(Step::Pass)
    }

    /// Whether the segment lies in the windows.
    fn window(&self, Pair { this, other }: Pair, segment: &Tcp) -> Result<(), Invalid> {
        let end = end(segment);
        let window = Self::at(&self.windows, other);
        let sent = Self::at(&self.ends, this);
        let handshake = matches!(self.state, State::SynSent | State::SynReceived);
        let mut limit = Self::at(&self.limits, this);
        if handshake && !self.is(ACKED, this) {
            // The window of the other side's SYN is all that it allows so far.
            limit = limit.wrapping_add(window);
        }
        if segment.flags & RST != 0 {
            // Between what was acknowledged, at the latest, and what is allowed.
            let low = match window {
                0 => sent,
                _ => limit.wrapping_sub(window),
            };
            if guard!("flow-reset-window") && !between(low, segment.sequence, limit) {
                return Err(Invalid::Reset);
            }
        } else {
            // Of another that was not heard since it was restored no window is known.
            let too_new = window != 0 && after(segment.sequence, limit);
            let known = window != 0 && !self.is_guessed(this);
            let too_old = known && !after(end, sent.wrapping_sub(window).wrapping_sub(1));
            if guard!("flow-sequence-window") && (too_new || too_old) {
                return Err(Invalid::Sequence);
            }
        }
        // Some RSTs have the flag and no number.
        let bare = segment.flags & RST != 0 && segment.acknowledgement == 0;
        if segment.flags & ACK != 0 && !bare {
            let newest = Self::at(&self.ends, other);
            let oldest = Self::at(&self.windows, this).max(OLD_ACKNOWLEDGEMENT);
            let oldest = newest.wrapping_sub(oldest);
            let known = between(oldest, segment.acknowledgement, newest);
            if guard!("flow-acknowledgement-window") && !known && !self.is_guessed(other) {
                return Err(Invalid::Acknowledgement);
            }
        }
        Ok(())
    }

    /// Learns from a segment that lies in the windows.
    fn learn(&mut self, pair: Pair, segment: &Tcp) {
        let Pair { this, other } = pair;
        if segment.flags & RST != 0 {
            self.state = State::Reset;
            self.mark(RESET, this);
            return;
        }
        let mut end = end(segment);
        let limit = Self::at(&self.limits, this);
        if segment.more {
            // How much follows in other fragments is not known: what is allowed, at most.
            let most = segment.sequence.wrapping_add(MOST_PAYLOAD);
            let most = if after(most, limit) { limit } else { most };
            end = if after(most, end) { most } else { end };
        }
        let fresh = after(end, Self::at(&self.ends, this));
        if fresh {
            Self::put(&mut self.ends, this, end);
            if self.is_guessed(this) && Self::at(&self.windows, other) != 0 {
                self.mark(ACKED, this);
            }
        }
        let window = self.scaled(this, segment.window);
        let largest = Self::at(&self.windows, this).max(window);
        Self::put(&mut self.windows, this, largest);
        let allowed = Self::at(&self.windows, other);
        if allowed != 0 && self.is(ACKED, this) && after(end, limit) {
            // It knew of more than was seen here.
            let more = allowed.saturating_add(end.wrapping_sub(limit));
            Self::put(&mut self.windows, other, more);
        }
        if segment.flags & ACK != 0 {
            self.acknowledge(pair, segment.acknowledgement, window);
        }
        let stood = self.is(ACKED, 0) && self.is(ACKED, 1) && self.is(RESET, this);
        if self.state == State::Reset && stood && fresh && segment.payload != 0 {
            // Who sent the RST goes on: another forged it, and the receiver did not
            // believe it.
            self.flags &= !(RESET << this);
            self.state = State::Established;
        }
        if segment.flags & FIN != 0 {
            self.mark(FINISHED, this);
        }
        if matches!(self.state, State::Established | State::HalfClosed) {
            self.state = match (self.is(FINISHED, 0), self.is(FINISHED, 1)) {
                (true, true) => State::TimeWait,
                (false, false) => State::Established,
                _ => State::HalfClosed,
            };
        }
    }

    /// Whether `this` side sent the number and may still hear of it.
    pub(crate) fn sent(&self, this: usize, sequence: u32) -> bool {
        let end = Self::at(&self.ends, this);
        let window = Self::at(&self.windows, 1 - (this & 1)).max(OLD_ACKNOWLEDGEMENT);
        Self::at(&self.windows, this) != 0 && between(end.wrapping_sub(window), sequence, end)
    }
}

/// The number after the segment's last byte, SYN and FIN counted.
const fn end(segment: &Tcp) -> u32 {
    let flags = (segment.flags & SYN != 0) as u32 + (segment.flags & FIN != 0) as u32;
    segment
        .sequence
        .wrapping_add(segment.payload)
        .wrapping_add(flags)
}

/// Sets of flags that are sent: one of SYN, RST and none; FIN only with ACK; never
/// none at all.
const fn legal(flags: u8) -> bool {
    match flags & (SYN | FIN | RST | ACK) {
        SYN | RST | ACK => true,
        both => both == SYN | ACK || both == RST | ACK || both == FIN | ACK,
    }
}
