//! Finishing in software what a receiver cannot: segmentation (TSO, USO), partial
//! checksums, IPv4 fragmentation.
//!
//! Each is an iterator in the caller's hand that writes one whole frame at a time
//! into the caller's buffer. The headers come from one slice (the private copy
//! that was rewritten) and the payload from another, so that neither need be
//! joined first; both are private memory. The result is what Linux' own
//! segmentation gives.

use crate::address::{Address, mapped};
use crate::field;
use crate::offload::{Gso, GsoKind, Offload};
use crate::parse::{Fragment, Parsed, Transport, Version};
use crate::{NoRoom, checksum, ipv4, ipv6, tcp, udp};

/// Why a frame cannot be finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentError {
    /// The caller's buffer is too short for the next frame.
    NoRoom(NoRoom),
    /// Headers and facts do not belong together: our bug.
    Layout,
    /// The packet must not be fragmented, or the MTU has no room for any payload.
    Indivisible,
}

impl core::fmt::Display for SegmentError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SegmentError::NoRoom(room) => room.fmt(f),
            SegmentError::Layout => f.write_str("headers and facts do not belong together"),
            SegmentError::Indivisible => f.write_str("the packet cannot be fragmented"),
        }
    }
}

impl core::error::Error for SegmentError {}

impl From<NoRoom> for SegmentError {
    fn from(room: NoRoom) -> Self {
        SegmentError::NoRoom(room)
    }
}

/// Completes the partial checksum of a whole frame in place, if it has one.
/// Returns the facts that hold afterwards.
///
/// # Errors
/// [`SegmentError::Layout`]: the facts are another frame's, which is our fault.
pub fn complete_checksum(
    frame: &mut [u8],
    parsed: &Parsed,
    offload: &Offload,
) -> Result<Offload, SegmentError> {
    let Some(offset) = offload.checksum_offset() else {
        return Ok(*offload);
    };
    let start = parsed.transport_offset().ok_or(SegmentError::Layout)?;
    let packet = frame
        .get_mut(..parsed.packet_end)
        .ok_or(SegmentError::Layout)?;
    checksum::complete(packet, start, offset).ok_or(SegmentError::Layout)?;
    Ok(offload.finished())
}

/// Cuts one GSO frame into the frames it stands for.
#[derive(Clone, Debug)]
pub struct Segmenter<'a> {
    headers: &'a [u8],
    payload: &'a [u8],
    gso: Gso,
    network_offset: usize,
    transport_offset: usize,
    version: Version,
    source: Address,
    destination: Address,
    done: usize,
}

impl<'a> Segmenter<'a> {
    /// `headers` runs from the frame's start to the end of its TCP or UDP header
    /// (where [`Parsed::payload_offset`] says), `payload` is all the rest.
    /// `parsed` describes where things are in `headers`, whose addresses and ports may
    /// have been translated since. A frame without GSO gives one frame, its checksum
    /// complete.
    ///
    /// # Errors
    /// [`SegmentError::Layout`]: the facts are another frame's, which is our fault.
    pub fn new(
        headers: &'a [u8],
        payload: &'a [u8],
        parsed: &Parsed,
        offload: &Offload,
    ) -> Result<Segmenter<'a>, SegmentError> {
        let ip = parsed.ip().ok_or(SegmentError::Layout)?;
        let known = matches!(ip.transport, Transport::Tcp { .. } | Transport::Udp { .. });
        if !known
            || ip.fragment != Fragment::Whole
            || parsed.payload_offset() != Some(headers.len())
        {
            return Err(SegmentError::Layout);
        }
        if let (None, Transport::Udp { length, .. }) = (offload.gso(), ip.transport)
            && usize::from(length) != udp::HEADER + payload.len()
        {
            // Bytes after the datagram (RFC 9868) would become part of it.
            return Err(SegmentError::Layout);
        }
        let gso = offload.gso().unwrap_or(Gso {
            kind: match (ip.transport, ip.version) {
                (Transport::Udp { .. }, _) => GsoKind::Udp,
                (_, Version::V4) => GsoKind::Tcp4 { ecn: false },
                (_, Version::V6) => GsoKind::Tcp6 { ecn: false },
            },
            size: u16::MAX,
        });
        let (source, destination) =
            addresses(headers, parsed.network_offset, ip.version).ok_or(SegmentError::Layout)?;
        Ok(Segmenter {
            headers,
            payload,
            gso,
            network_offset: parsed.network_offset,
            transport_offset: ip.transport_offset,
            version: ip.version,
            source,
            destination,
            done: 0,
        })
    }

    /// Writes the next frame to the start of `buffer` and returns its length;
    /// `None` when all were written. The bound is [`Offload::segments`] frames.
    ///
    /// # Errors
    /// [`SegmentError::NoRoom`]: `buffer` is too short for the next frame, or
    /// [`SegmentError::Layout`]: our fault, both.
    pub fn next(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, SegmentError> {
        let size = usize::from(self.gso.size.max(1));
        let from = self.done * size;
        if self.done > 0 && from >= self.payload.len() {
            return Ok(None);
        }
        let payload = self.payload.get(from..).ok_or(SegmentError::Layout)?;
        let payload = payload.get(..size).unwrap_or(payload);
        let last = from + payload.len() == self.payload.len();
        let total = self.headers.len() + payload.len();
        let frame = buffer.get_mut(..total).ok_or(NoRoom { needed: total })?;
        let (headers, body) = frame.split_at_mut(self.headers.len());
        headers.copy_from_slice(self.headers);
        body.copy_from_slice(payload);
        self.number(frame, from, last).ok_or(SegmentError::Layout)?;
        self.done += 1;
        Ok(Some(total))
    }

    /// Sets what differs from segment to segment, then the checksums.
    fn number(&self, frame: &mut [u8], from: usize, last: bool) -> Option<()> {
        let packet_len = frame.len().checked_sub(self.network_offset)?;
        match self.version {
            Version::V4 => {
                let header_len = self.transport_offset.checked_sub(self.network_offset)?;
                let packet = frame.get_mut(self.network_offset..)?;
                field::put(packet, 2, &u16::try_from(packet_len).ok()?.to_be_bytes())?;
                let id = field::word(packet, 4)?.wrapping_add(self.done as u16);
                field::put(packet, 4, &id.to_be_bytes())?;
                field::put(packet, 10, &[0, 0])?;
                let sum = checksum::internet(packet.get(..header_len)?);
                field::put(packet, 10, &sum.to_be_bytes())?;
            }
            Version::V6 => {
                let length = packet_len.checked_sub(ipv6::HEADER)?;
                let at = self.network_offset + 4;
                field::put(frame, at, &u16::try_from(length).ok()?.to_be_bytes())?;
            }
        }
        let message = frame.get_mut(self.transport_offset..)?;
        let (protocol, at) = match self.gso.kind {
            GsoKind::Udp => {
                field::put(
                    message,
                    4,
                    &u16::try_from(message.len()).ok()?.to_be_bytes(),
                )?;
                (udp::PROTOCOL, udp::CHECKSUM)
            }
            GsoKind::Tcp4 { .. } | GsoKind::Tcp6 { .. } => {
                let sequence = field::long(message, 4)?.wrapping_add(from as u32);
                field::put(message, 4, &sequence.to_be_bytes())?;
                let mut flags = field::byte(message, 13)?;
                if self.done > 0 {
                    flags &= !tcp::CWR;
                }
                if !last {
                    flags &= !(tcp::FIN | tcp::PSH);
                }
                field::put(message, 13, &[flags])?;
                (tcp::PROTOCOL, tcp::CHECKSUM)
            }
        };
        field::put(message, at, &[0, 0])?;
        let sum = checksum::pseudo(&self.source, &self.destination, protocol, message.len())
            .bytes(message)
            .finish();
        // In UDP alone zero says that there is none (RFC 768).
        let sum = match (sum, self.gso.kind) {
            (0, GsoKind::Udp) => 0xffff,
            _ => sum,
        };
        field::put(message, at, &sum.to_be_bytes())
    }
}

/// Source and destination of the packet whose header starts at `at`.
fn addresses(frame: &[u8], at: usize, version: Version) -> Option<(Address, Address)> {
    Some(match version {
        Version::V4 => (
            mapped(field::array(frame, at + 12)?),
            mapped(field::array(frame, at + 16)?),
        ),
        Version::V6 => (field::array(frame, at + 8)?, field::array(frame, at + 24)?),
    })
}

/// Cuts one IPv4 packet into fragments (RFC 791, section 3.2).
#[derive(Clone, Debug)]
pub struct Fragmenter<'a> {
    headers: &'a [u8],
    payload: &'a [u8],
    network_offset: usize,
    /// Payload bytes of the last fragment at most; of every other what is a multiple of 8
    /// in them.
    room: usize,
    /// Flags and offset as the packet came.
    field: u16,
    done: usize,
}

/// Into how many fragments a [`Fragmenter`] cuts so many bytes of payload behind an IPv4
/// header of `header_len` bytes, for `mtu` bytes of IP packet. At least 1.
pub const fn fragments(header_len: usize, payload: usize, mtu: usize) -> usize {
    let room = mtu.saturating_sub(header_len);
    match room & !7 {
        0 => 1,
        size => 1 + payload.saturating_sub(room).div_ceil(size),
    }
}

impl<'a> Fragmenter<'a> {
    /// `headers` runs from the frame's start to the end of the IPv4 header with
    /// its options, `payload` is the rest of the packet without padding, its
    /// checksum complete. `mtu` is in bytes of IP packet. A packet with DF is
    /// [`SegmentError::Indivisible`]; a fragment may be cut further.
    ///
    /// # Errors
    /// [`SegmentError`]: `headers` are none (our fault), or the packet may not be
    /// cut.
    pub fn new(
        headers: &'a [u8],
        payload: &'a [u8],
        network_offset: usize,
        mtu: usize,
    ) -> Result<Fragmenter<'a>, SegmentError> {
        let header_len = headers
            .len()
            .checked_sub(network_offset)
            .filter(|&length| length >= ipv4::HEADER)
            .ok_or(SegmentError::Layout)?;
        let field = field::word(headers, network_offset + 6).ok_or(SegmentError::Layout)?;
        let room = mtu.saturating_sub(header_len);
        if room < 8 || field & ipv4::DONT_FRAGMENT != 0 {
            return Err(SegmentError::Indivisible);
        }
        Ok(Fragmenter {
            headers,
            payload,
            network_offset,
            room,
            field,
            done: 0,
        })
    }

    /// Writes the next fragment to the start of `buffer` and returns its length;
    /// `None` when all were written. The bound is the payload over 8.
    ///
    /// # Errors
    /// [`SegmentError::NoRoom`]: `buffer` is too short for the next frame, or
    /// [`SegmentError::Layout`]: our fault, both.
    pub fn next(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, SegmentError> {
        if self.done > 0 && self.done >= self.payload.len() {
            return Ok(None);
        }
        let rest = self.payload.get(self.done..).ok_or(SegmentError::Layout)?;
        let part = match rest.len() > self.room {
            true => rest.get(..self.room & !7).ok_or(SegmentError::Layout)?,
            false => rest,
        };
        let total = self.headers.len() + part.len();
        let frame = buffer.get_mut(..total).ok_or(NoRoom { needed: total })?;
        let (headers, body) = frame.split_at_mut(self.headers.len());
        headers.copy_from_slice(self.headers);
        body.copy_from_slice(part);
        let header = headers
            .get_mut(self.network_offset..)
            .ok_or(SegmentError::Layout)?;
        self.mark(header, part.len()).ok_or(SegmentError::Layout)?;
        self.done += part.len().max(1);
        Ok(Some(total))
    }

    fn mark(&self, header: &mut [u8], length: usize) -> Option<()> {
        let total = u16::try_from(header.len() + length).ok()?;
        let last = self.done + length >= self.payload.len();
        let units = usize::from(self.field & 0x1fff) + self.done / 8;
        let mut field = u16::try_from(units).ok().filter(|&units| units < 0x2000)?;
        if !last || self.field & ipv4::MORE_FRAGMENTS != 0 {
            field |= ipv4::MORE_FRAGMENTS;
        }
        field::put(header, 2, &total.to_be_bytes())?;
        field::put(header, 6, &field.to_be_bytes())?;
        // In a part of something longer, who cut that has done it.
        if self.done > 0 && self.field & 0x1fff == 0 {
            blank_uncopied_options(header.get_mut(ipv4::HEADER..)?);
        }
        field::put(header, 10, &[0, 0])?;
        let sum = checksum::internet(header);
        field::put(header, 10, &sum.to_be_bytes())
    }
}

/// Options without the copied bit are in the first fragment alone: in the others
/// no-operations take their place, as in Linux. Bound: 40 bytes of options.
fn blank_uncopied_options(mut options: &mut [u8]) {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const COPIED: u8 = 0x80;
    while let Some(&kind) = options.first() {
        let length = match kind {
            END => return,
            NO_OPERATION => 1,
            _ => usize::from(options.get(1).copied().unwrap_or(0)).max(2),
        };
        let Some((option, rest)) = core::mem::take(&mut options).split_at_mut_checked(length)
        else {
            return;
        };
        if kind & COPIED == 0 {
            option.fill(NO_OPERATION);
        }
        options = rest;
    }
}
