//! What connection tracking needs to know of one packet.

use wire::parse::{Fragment, Transport, Version};
use wire::{Offload, Parsed, icmpv4, icmpv6, tcp};

/// One packet's facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Frames that it becomes on a wire.
    pub packets: u32,
    /// Bytes of those frames.
    pub bytes: u32,
    /// By its protocol.
    pub kind: Kind,
}

/// What a packet is to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// UDP, or a protocol that is tracked by its addresses.
    Plain,
    /// An echo request, else a reply.
    Echo {
        /// A request.
        request: bool,
    },
    /// TCP.
    Tcp(Tcp),
}

/// A TCP header's facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Flag bits, [`wire::tcp`].
    pub flags: u8,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// Window, unscaled.
    pub window: u16,
    /// Bytes of payload: up to 64 KiB before segmentation.
    pub payload: u32,
    /// Window scale option of a SYN, at most 14 (RFC 7323, section 2.3).
    pub scale: Option<u8>,
    /// A first fragment: more payload follows than `payload` says.
    pub more: bool,
}

impl Segment {
    /// Reads the facts of the packet that was parsed; `head` is its private copy,
    /// `total_len` the bytes of the frame. `None`: no packet of a connection (not IP, a
    /// later fragment, ICMP that is no echo), or `head` is not what was parsed.
    pub fn read(
        head: &[u8],
        parsed: &Parsed,
        offload: &Offload,
        total_len: usize,
    ) -> Option<Segment> {
        let ip = parsed.ip()?;
        let kind = match ip.transport {
            Transport::Tcp {
                header_len, flags, ..
            } => {
                let end = ip.transport_offset.checked_add(usize::from(header_len))?;
                let header = tcp::Header::parse(head.get(ip.transport_offset..end)?).ok()?;
                let options = head.get(ip.transport_offset + tcp::HEADER..end)?;
                Kind::Tcp(Tcp {
                    flags,
                    sequence: header.sequence,
                    acknowledgement: header.acknowledgement,
                    window: header.window,
                    payload: parsed.packet_end.saturating_sub(end) as u32,
                    scale: match flags & tcp::SYN {
                        0 => None,
                        _ => scale(options),
                    },
                    more: ip.fragment == Fragment::First,
                })
            }
            Transport::Icmp { kind, code } => Kind::Echo {
                request: match (ip.version, kind, code) {
                    (Version::V4, icmpv4::ECHO_REQUEST, 0)
                    | (Version::V6, icmpv6::ECHO_REQUEST, 0) => true,
                    (Version::V4, icmpv4::ECHO_REPLY, 0) | (Version::V6, icmpv6::ECHO_REPLY, 0) => {
                        false
                    }
                    _ => return None,
                },
            },
            Transport::Udp { .. } | Transport::Other => Kind::Plain,
            Transport::Later => return None,
        };
        Some(Segment {
            kind,
            ..Segment::counted(offload, total_len)
        })
    }

    /// A packet of which only what is counted matters: a later fragment, an ICMP error.
    pub fn counted(offload: &Offload, total_len: usize) -> Segment {
        Segment {
            packets: offload.segments() as u32,
            bytes: offload.wire_bytes(total_len) as u32,
            kind: Kind::Plain,
        }
    }
}

/// The window scale among a SYN's options. Bound: 40 bytes, each turn takes at least
/// one; options that run over their header end it.
fn scale(mut options: &[u8]) -> Option<u8> {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const WINDOW_SCALE: u8 = 3;
    while let Some(&kind) = options.first() {
        let length = match kind {
            END => return None,
            NO_OPERATION => 1,
            _ => match options.get(1) {
                Some(&length) if length >= 2 => usize::from(length),
                _ => return None,
            },
        };
        if kind == WINDOW_SCALE && length == 3 {
            // A larger one is meant as 14.
            return options.get(2).map(|&scale| scale.min(14));
        }
        options = options.get(length..)?;
    }
    None
}
