//! pcapng blocks (draft-ietf-opsawg-pcapng), little-endian: one section; one
//! interface for each endpoint seen; one enhanced packet block for each frame, with
//! nanosecond times, its direction, the reason it was dropped for as its comment and the
//! number of the rule that denied it as another;
//! one interface statistics block whenever the switch says that it lost more of them.

use crate::CHANNELS;
use ring::record::CaptureNote;
use telemetry::drops::DropReason;
use wire::offload::MAX_FRAME;

/// Endpoints that get an interface of their own; a switch that makes up more of them
/// finds the rest under the first interface.
const MOST_INTERFACES: usize = 1024;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
const ETHERNET: u16 = 1;
const OPTION_COMMENT: u16 = 1;
const OPTION_NAME: u16 = 2;
const OPTION_FLAGS: u16 = 2;
const OPTION_RESOLUTION: u16 = 9;
const OPTION_LOST: u16 = 5;

/// Gathers blocks as bytes, to be written out and cleared by the caller.
pub struct Writer {
    out: Vec<u8>,
    /// Endpoint ids by interface number.
    interfaces: Vec<u32>,
    /// Frames lost, as last said, by channel.
    lost: [u32; CHANNELS],
}

impl Writer {
    /// Starts a file: the section header and a first interface, for what belongs to
    /// no endpoint.
    pub fn new() -> Writer {
        let mut writer = Writer {
            out: Vec::with_capacity(256 * 1024),
            interfaces: Vec::new(),
            lost: [0; CHANNELS],
        };
        writer.block(SECTION, |out| {
            out.extend(0x1a2b_3c4d_u32.to_le_bytes());
            out.extend(1u16.to_le_bytes());
            out.extend(0u16.to_le_bytes());
            out.extend(u64::MAX.to_le_bytes());
            option(out, 4, b"bulkhead-auditor");
            end_of_options(out);
        });
        writer.interface(0);
        writer
    }

    /// What is to be written.
    pub fn bytes(&self) -> &[u8] {
        &self.out
    }

    /// Forgets what has been written.
    pub fn clear(&mut self) {
        self.out.clear();
    }

    /// Adds a frame of `len` bytes that came by a channel, which `copy` puts into the slice it is
    /// given.
    pub fn packet(
        &mut self,
        channel: usize,
        note: &CaptureNote,
        len: usize,
        copy: impl FnOnce(&mut [u8]),
    ) {
        let interface = self.interface(note.endpoint);
        if let Some(lost) = self.lost.get_mut(channel)
            && *lost != note.lost
        {
            *lost = note.lost;
            self.statistics(note);
        }
        let len = len.min(MAX_FRAME);
        let reason = u8::try_from(note.drop_reason)
            .ok()
            .and_then(DropReason::from_number);
        self.block(PACKET, |out| {
            out.extend(interface.to_le_bytes());
            out.extend(((note.time_ns >> 32) as u32).to_le_bytes());
            out.extend((note.time_ns as u32).to_le_bytes());
            out.extend((len as u32).to_le_bytes());
            // The original length is an allegation, and never less than what is there.
            out.extend(note.original_len.max(len as u32).to_le_bytes());
            let at = out.len();
            out.resize(at + len.next_multiple_of(4), 0);
            if let Some(into) = out.get_mut(at..at + len) {
                copy(into);
            }
            // Bits 0 and 1: 1 = inbound (from the endpoint), 2 = outbound.
            let direction: u32 = if note.direction == 0 { 1 } else { 2 };
            option(out, OPTION_FLAGS, &direction.to_le_bytes());
            if let Some(reason) = reason {
                let text = format!("dropped: {}: {}", reason.slug(), reason.explain().trim());
                option(out, OPTION_COMMENT, text.as_bytes());
            } else if note.drop_reason != 0 {
                let text = format!("dropped: reason {}", note.drop_reason);
                option(out, OPTION_COMMENT, text.as_bytes());
            }
            if note.denied != 0 {
                // `DEFAULT_RULE`: no rule of the table is about it.
                let text = match note.rule {
                    u32::MAX => "rule default".to_owned(),
                    number => format!("rule {number}"),
                };
                option(out, OPTION_COMMENT, text.as_bytes());
            }
            end_of_options(out);
        });
    }

    /// How many were lost so far, of all endpoints together: under the first interface.
    fn statistics(&mut self, note: &CaptureNote) {
        let lost: u64 = self.lost.iter().copied().map(u64::from).sum();
        self.block(STATISTICS, |out| {
            out.extend(0u32.to_le_bytes());
            out.extend(((note.time_ns >> 32) as u32).to_le_bytes());
            out.extend((note.time_ns as u32).to_le_bytes());
            option(out, OPTION_LOST, &lost.to_le_bytes());
            end_of_options(out);
        });
    }

    /// The interface of an endpoint, described on first sight.
    fn interface(&mut self, endpoint: u32) -> u32 {
        if let Some(at) = self.interfaces.iter().position(|known| *known == endpoint) {
            return at as u32;
        }
        if self.interfaces.len() >= MOST_INTERFACES {
            return 0;
        }
        self.interfaces.push(endpoint);
        let name = match endpoint {
            0 => "fabric".to_owned(),
            n => format!("endpoint-{n}"),
        };
        self.block(INTERFACE, |out| {
            out.extend(ETHERNET.to_le_bytes());
            out.extend(0u16.to_le_bytes());
            out.extend((MAX_FRAME as u32).to_le_bytes());
            option(out, OPTION_NAME, name.as_bytes());
            option(out, OPTION_RESOLUTION, &[9]);
            end_of_options(out);
        });
        self.interfaces.len() as u32 - 1
    }

    /// A block: its type, its whole length before and after the body.
    fn block(&mut self, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
        let start = self.out.len();
        self.out.extend(kind.to_le_bytes());
        self.out.extend([0; 4]);
        body(&mut self.out);
        let len = (self.out.len() - start + 4) as u32;
        self.out.extend(len.to_le_bytes());
        if let Some(at) = self.out.get_mut(start + 4..start + 8) {
            at.copy_from_slice(&len.to_le_bytes());
        }
    }
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn end_of_options(out: &mut Vec<u8>) {
    out.extend([0; 4]);
}
