//! A packet as the short way looks for it: what it has in common with others of its flow, and
//! what is looked at in each.

use super::{Entry, FINISHES};
use crate::Slot;
use flow::segment::Tcp;
use guard::guard;
use wire::address::mapped;
use wire::offload::{DATA_VALID, NEEDS_CSUM, RawOffload};
use wire::{Tuple, ethernet, ipv4, tcp, udp};

/// Bytes that a packet has at least to be looked for, and that [`crate::Switch::foresee`]
/// sees: Ethernet, IPv4 and TCP headers.
pub const LEAST: usize = ethernet::HEADER + ipv4::HEADER + tcp::HEADER;
const TRANSPORT: usize = ethernet::HEADER + ipv4::HEADER;

/// What is common to packets of one flow, out of their first 40 bytes; where that leaves
/// bytes free, the slot.
pub(super) type Key = [u64; 5];

/// 0: they are the same.
#[inline(always)]
pub(super) const fn differ([a, b, c, d, e]: &Key, key: &Key) -> u64 {
    *a ^ key[0] | *b ^ key[1] | *c ^ key[2] | *d ^ key[3] | *e ^ key[4]
}

/// Bytes 16..24: of IPv4 the fragment field but for DF, and the protocol.
const COMMON_2: u64 = u64::from_le_bytes([0, 0, 0, 0, 0xbf, 0xff, 0, 0xff]);
/// Bytes 24..32: source and half the destination.
const COMMON_3: u64 = u64::from_le_bytes([0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
/// Bytes 32..40: the other half, and ports.
const COMMON_4: u64 = u64::from_le_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);
/// Without ports.
pub(super) const WAY_4: u64 = u64::from_le_bytes([0xff, 0xff, 0, 0, 0, 0, 0, 0]);

/// A packet as it is looked for.
pub(super) struct Plain<'a> {
    bytes: &'a [u8; LEAST],
    pub(super) words: Key,
    pub(super) key: Key,
}

/// The little-endian word at a place.
#[inline(always)]
fn word<const AT: usize>(bytes: &[u8; LEAST]) -> u64 {
    match bytes.get(AT..).and_then(<[u8]>::first_chunk) {
        Some(word) => u64::from_le_bytes(*word),
        None => 0,
    }
}

impl<'a> Plain<'a> {
    #[inline(always)]
    pub(super) fn of(slot: Slot, head: &'a [u8]) -> Option<Plain<'a>> {
        let bytes: &[u8; LEAST] = head.first_chunk()?;
        let words = [
            word::<0>(bytes),
            word::<8>(bytes),
            word::<16>(bytes),
            word::<24>(bytes),
            word::<32>(bytes),
        ];
        let key = [
            words[0],
            words[1],
            words[2] & COMMON_2,
            words[3] & COMMON_3 | u64::from(slot as u16),
            words[4] & COMMON_4,
        ];
        Some(Plain { bytes, words, key })
    }

    /// Untagged IPv4 without options, whole, with TCP or UDP.
    pub(super) fn is_plain(&self) -> bool {
        let protocol = (self.words[2] >> 56) as u8;
        self.words[1] >> 32 & 0xff_ffff == u64::from_le_bytes([8, 0, 0x45, 0, 0, 0, 0, 0])
            && self.words[2] & COMMON_2 & !(0xff << 56) == 0
            && matches!(protocol, tcp::PROTOCOL | udp::PROTOCOL)
    }

    #[inline(always)]
    pub(super) fn packet_len(&self) -> usize {
        usize::from((self.words[2] as u16).swap_bytes())
    }

    #[inline(always)]
    pub(super) fn hop_limit(&self) -> u8 {
        (self.words[2] >> 48) as u8
    }

    #[inline(always)]
    pub(super) fn is_tcp(&self) -> bool {
        (self.words[2] >> 56) as u8 == tcp::PROTOCOL
    }

    pub(super) fn ports(&self) -> (u16, u16) {
        let ports = self.words[4] >> 16;
        (
            (ports as u16).swap_bytes(),
            ((ports >> 16) as u16).swap_bytes(),
        )
    }

    /// Whether the header's one's complement sum is all ones (RFC 1071), which is to be divided
    /// by 65535: so are carries out of 64 bits that come in again below. Nothing in it is zero
    /// throughout.
    #[inline(always)]
    pub(super) fn is_summed(&self) -> bool {
        let add = |a: u64, b: u64| {
            let (sum, carries) = a.overflowing_add(b);
            sum + u64::from(carries)
        };
        let ends = (self.words[1] >> 48) + (self.words[4] & 0xffff);
        let sum = add(add(self.words[2], self.words[3]), ends);
        sum.is_multiple_of(0xffff) || !guard!("hit-checksum")
    }

    /// Whether the packet lies in a frame of so many bytes, and its datagram or segment in
    /// it.
    #[inline(always)]
    pub(super) fn fits(&self, total: usize) -> bool {
        let packet = self.packet_len();
        let payload = packet.wrapping_sub(ipv4::HEADER);
        let inside = if self.is_tcp() {
            let header = usize::from(self.bytes[TRANSPORT + 12] >> 4) * 4;
            header >= tcp::HEADER && header <= payload
        } else {
            let length = usize::from(((self.words[4] >> 48) as u16).swap_bytes());
            length >= udp::HEADER && length <= payload
        };
        packet >= ipv4::HEADER && packet + ethernet::HEADER <= total && inside
            || !guard!("hit-length")
    }

    /// Whether this is the first segment of either side.
    #[inline(always)]
    pub(super) fn begins(&self) -> bool {
        let flags = self.bytes.get(TRANSPORT + 13).copied().unwrap_or(0);
        self.is_tcp() && flags & tcp::SYN != 0
    }

    /// The facts of another one.
    #[inline(always)]
    pub(super) fn segment(&self) -> Tcp {
        let at = |n: usize| self.bytes.get(TRANSPORT + n).copied().unwrap_or(0);
        let four = |n| u32::from_be_bytes([at(n), at(n + 1), at(n + 2), at(n + 3)]);
        let flags = at(13);
        let header = usize::from(at(12) >> 4) * 4;
        Tcp {
            flags,
            sequence: four(4),
            acknowledgement: four(8),
            window: u16::from_be_bytes([at(14), at(15)]),
            payload: (self.packet_len() - ipv4::HEADER).saturating_sub(header) as u32,
            scale: None,
            more: false,
        }
    }

    pub(super) fn tuple(&self) -> Tuple {
        let (source_port, destination_port) = self.ports();
        let at = |n: usize| self.bytes.get(n).copied().unwrap_or(0);
        let four = |n| mapped([at(n), at(n + 1), at(n + 2), at(n + 3)]);
        Tuple {
            source: four(26),
            destination: four(30),
            source_port,
            destination_port,
            protocol: (self.words[2] >> 56) as u8,
        }
    }

    /// Asks for an address or gives one: who may is not said by addresses alone.
    pub(super) fn is_dhcp(&self) -> bool {
        let (source, destination) = self.ports();
        !self.is_tcp()
            && [source, destination]
                .iter()
                .any(|port| matches!(port, 67 | 68))
    }

    /// The offload fields with which it goes on, where they ask for nothing but a checksum
    /// that whoever gets it finishes, if `finishes`.
    #[inline(always)]
    pub(super) fn offload(
        &self,
        raw: &RawOffload,
        total: usize,
        entry: &Entry,
    ) -> Option<RawOffload> {
        let words: u64 = zerocopy::transmute!(*raw);
        if words == 0 {
            return Some(*raw);
        }
        self.partial(raw, total, entry.has(FINISHES))
    }

    pub(super) fn partial(
        &self,
        raw: &RawOffload,
        total: usize,
        finishes: bool,
    ) -> Option<RawOffload> {
        if raw.gso_type != 0 || raw.gso_size != 0 {
            return None;
        }
        match raw.flags & !DATA_VALID {
            0 => Some(RawOffload::default()),
            NEEDS_CSUM => {
                let offset = match self.is_tcp() {
                    true => tcp::CHECKSUM,
                    false => udp::CHECKSUM,
                };
                let own = RawOffload {
                    flags: NEEDS_CSUM,
                    csum_start: TRANSPORT as u16,
                    csum_offset: offset as u16,
                    ..RawOffload::default()
                };
                let same = (raw.csum_start, raw.csum_offset) == (own.csum_start, own.csum_offset);
                let fills = self.packet_len() + ethernet::HEADER == total;
                (finishes && same && fills).then_some(own)
            }
            _ => None,
        }
    }
}
