//! Offload metadata that travels beside a frame: what a NIC driver or tap calls
//! `virtio_net_hdr` (virtio 1.2, section 5.1.6). As received it is an allegation.

use guard::guard;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::parse::{Fragment, Parsed, Transport, Version};
use crate::{tcp, udp};

/// Offload fields as alleged by whoever wrote the record: 8 bytes, host order.
///
/// Never forwarded as it is: [`crate`]'s parser turns it into facts, and egress
/// builds a new one from those.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RawOffload {
    /// Bit 0 [`NEEDS_CSUM`], bit 1 [`DATA_VALID`]; other bits are a misdeed.
    pub flags: u8,
    /// One of `GSO_*`; the bit [`GSO_ECN`] may be or-ed in.
    pub gso_type: u8,
    /// Bytes of L4 payload per segment; 0 exactly when `gso_type` is [`GSO_NONE`].
    pub gso_size: u16,
    /// Offset from the first frame byte where checksumming starts.
    pub csum_start: u16,
    /// Offset from `csum_start` where the 16-bit checksum is stored.
    pub csum_offset: u16,
}

/// `flags`: the L4 checksum holds the pseudo-header sum only, to be completed.
pub const NEEDS_CSUM: u8 = 1;
/// `flags`: the sender says the checksum is right. Cleared on every ingress.
pub const DATA_VALID: u8 = 2;
/// `gso_type`: an ordinary frame.
pub const GSO_NONE: u8 = 0;
/// `gso_type`: TCP over IPv4, to be segmented.
pub const GSO_TCPV4: u8 = 1;
/// `gso_type`: TCP over IPv6, to be segmented.
pub const GSO_TCPV6: u8 = 4;
/// `gso_type`: UDP, to be segmented (USO).
pub const GSO_UDP_L4: u8 = 5;
/// `gso_type` bit: the TCP segment carries ECN's CWR.
pub const GSO_ECN: u8 = 0x80;
/// The longest frame anything in Bulkhead carries, bytes: 64 KiB of IP packet
/// and room for Ethernet and two VLAN tags, a multiple of 16 (docs/design.md §4).
pub const MAX_FRAME: usize = 65_664;

/// Segments one record can become at most: 64 KiB in pieces of the least
/// `min_gso` that a spec may set.
pub const MAX_SEGMENTS: usize = 65_535usize.div_ceil(MIN_GSO_FLOOR as usize);
/// The `min_gso` no per-endpoint override goes below: an IPv4 MTU of 68 leaves
/// 28 bytes, but nothing real is under 256.
pub const MIN_GSO_FLOOR: u16 = 256;
/// The default least `gso_size`: RFC 9293's default segment for IPv4.
pub const MIN_GSO: u16 = 536;

/// What is to be cut into segments downstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4 {
        /// CWR is set: on the first segment alone (RFC 3168).
        ecn: bool,
    },
    /// TCP over IPv6.
    Tcp6 {
        /// CWR is set: on the first segment alone (RFC 3168).
        ecn: bool,
    },
    /// UDP over either.
    Udp,
}

/// A segmentation request that matches its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Kind.
    pub kind: GsoKind,
    /// Bytes of layer 4 payload in every segment but the last.
    pub size: u16,
}

/// Offload facts about one frame: only [`check`] makes one that asks for anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    partial: Option<u16>,
    gso: Option<Gso>,
    header_len: usize,
    network_offset: usize,
    payload_len: usize,
}

/// Why offload fields were refused: the sender's misdeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadOffload {
    /// A flag or type bit that is not defined here, or UFO (type 3).
    Unknown,
    /// The type does not match the frame's layer 4.
    Type,
    /// A segmentation request on a fragment, or a partial checksum on one; or the request
    /// behind a header that is one packet's alone (IPv6 fragment, authentication).
    Fragment,
    /// `gso_size` is below the least allowed, or set without a type, or zero with one.
    Size,
    /// More segments than one record may become.
    Segments,
    /// The checksum fields are not where the frame's layer 4 has its checksum.
    Checksum,
    /// A segmentation request without a partial checksum.
    NoChecksum,
    /// Padding or trailing bytes where the packet must fill the frame.
    Length,
}

impl core::fmt::Display for BadOffload {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            BadOffload::Unknown => "an unknown offload flag or type",
            BadOffload::Type => "the segmentation type does not match the frame",
            BadOffload::Fragment => "an offload asked for a fragment or a signed packet",
            BadOffload::Size => "a segment size that is not allowed",
            BadOffload::Segments => "too many segments",
            BadOffload::Checksum => "the checksum position is not the frame's",
            BadOffload::NoChecksum => "segmentation without a partial checksum",
            BadOffload::Length => "the packet does not fill the frame",
        })
    }
}

impl core::error::Error for BadOffload {}

/// Turns alleged offload fields into facts about the frame that was parsed
/// (docs/design.md §5, ingress). `min_gso` is this endpoint's least `gso_size`, never
/// taken below [`MIN_GSO_FLOOR`].
///
/// The egress MTU is not known yet: [`Offload::largest_packet`] is compared with
/// it once it is. DATA_VALID is cleared, since nobody but we can say so. A
/// request that would give a single segment becomes an ordinary frame.
///
/// # Errors
/// [`BadOffload`]: the sender's fault, dropped as `bad-offload`.
pub fn check(
    raw: RawOffload,
    parsed: &Parsed,
    total_len: usize,
    min_gso: u16,
) -> Result<Offload, BadOffload> {
    let known_flags = NEEDS_CSUM | DATA_VALID;
    if guard!("offload-flags") && raw.flags & !known_flags != 0 {
        return Err(BadOffload::Unknown);
    }
    let partial = checked_partial(raw, parsed)?;
    let mut offload = Offload {
        partial,
        gso: None,
        header_len: parsed.payload_offset().unwrap_or(0),
        network_offset: parsed.network_offset,
        payload_len: 0,
    };
    let gso = checked_gso(raw, parsed)?;
    if (partial.is_some() || gso.is_some())
        && guard!("offload-padding")
        && parsed.packet_end != total_len
    {
        // A checksum to be completed runs to the frame's end: padding would be in it.
        return Err(BadOffload::Length);
    }
    offload.payload_len = parsed.packet_end.saturating_sub(offload.header_len);
    let Some(gso) = gso else {
        return Ok(offload);
    };
    if guard!("offload-min-gso") && gso.size < min_gso.max(MIN_GSO_FLOOR) {
        return Err(BadOffload::Size);
    }
    if partial.is_none() {
        return Err(BadOffload::NoChecksum);
    }
    if let Some(Transport::Udp { length, .. }) = parsed.ip().map(|ip| ip.transport)
        && usize::from(length) != offload.payload_len + crate::udp::HEADER
    {
        return Err(BadOffload::Length);
    }
    if offload.payload_len > usize::from(gso.size) {
        offload.gso = Some(gso);
    }
    if offload.segments() > MAX_SEGMENTS {
        return Err(BadOffload::Segments);
    }
    Ok(offload)
}

fn checked_partial(raw: RawOffload, parsed: &Parsed) -> Result<Option<u16>, BadOffload> {
    if raw.flags & NEEDS_CSUM == 0 {
        // The position fields mean nothing then, and are not passed on.
        return Ok(None);
    }
    let ip = parsed.ip().ok_or(BadOffload::Checksum)?;
    if guard!("offload-fragment") && ip.fragment_header && ip.fragment != Fragment::Whole {
        return Err(BadOffload::Fragment);
    }
    let offset = match ip.transport {
        Transport::Tcp { .. } => tcp::CHECKSUM,
        Transport::Udp { .. } => udp::CHECKSUM,
        _ => return Err(BadOffload::Checksum),
    };
    let ours = usize::from(raw.csum_start) == ip.transport_offset
        && usize::from(raw.csum_offset) == offset;
    if guard!("offload-checksum-position") && !ours {
        return Err(BadOffload::Checksum);
    }
    Ok(Some(offset as u16))
}

fn checked_gso(raw: RawOffload, parsed: &Parsed) -> Result<Option<Gso>, BadOffload> {
    let ecn = raw.gso_type & GSO_ECN != 0;
    let kind = match raw.gso_type & !GSO_ECN {
        GSO_NONE if ecn => return Err(BadOffload::Unknown),
        GSO_NONE if raw.gso_size != 0 => return Err(BadOffload::Size),
        GSO_NONE => return Ok(None),
        GSO_TCPV4 => GsoKind::Tcp4 { ecn },
        GSO_TCPV6 => GsoKind::Tcp6 { ecn },
        GSO_UDP_L4 if !ecn => GsoKind::Udp,
        _ => return Err(BadOffload::Unknown),
    };
    if raw.gso_size == 0 {
        return Err(BadOffload::Size);
    }
    let ip = parsed.ip().ok_or(BadOffload::Type)?;
    let alone = guard!("offload-alone") && (ip.fragment_header || ip.authenticated);
    if ip.fragment != Fragment::Whole || alone {
        return Err(BadOffload::Fragment);
    }
    let matches = matches!(
        (kind, ip.version, ip.transport),
        (GsoKind::Tcp4 { .. }, Version::V4, Transport::Tcp { .. })
            | (GsoKind::Tcp6 { .. }, Version::V6, Transport::Tcp { .. })
            | (GsoKind::Udp, _, Transport::Udp { .. })
    );
    if guard!("offload-type") && !matches {
        return Err(BadOffload::Type);
    }
    Ok(Some(Gso {
        kind,
        size: raw.gso_size,
    }))
}

impl Offload {
    /// An ordinary frame that asks for nothing.
    pub const NONE: Offload = Offload {
        partial: None,
        gso: None,
        header_len: 0,
        network_offset: 0,
        payload_len: 0,
    };

    /// Facts about a frame of our own making, whose layer 4 checksum is partial.
    /// `checksum_offset` is [`tcp::CHECKSUM`] or [`udp::CHECKSUM`].
    pub const fn partial(checksum_offset: usize) -> Offload {
        Offload {
            partial: Some(checksum_offset as u16),
            ..Offload::NONE
        }
    }

    /// The checksum is still to be completed.
    pub const fn is_partial(&self) -> bool {
        self.partial.is_some()
    }

    /// Where in the layer 4 header the checksum is, if it is to be completed.
    pub const fn checksum_offset(&self) -> Option<usize> {
        match self.partial {
            Some(offset) => Some(offset as usize),
            None => None,
        }
    }

    /// The segmentation asked for, if it gives more than one segment.
    pub const fn gso(&self) -> Option<Gso> {
        self.gso
    }

    /// The same frame after its checksum was completed and it was segmented.
    pub const fn finished(&self) -> Offload {
        Offload {
            partial: None,
            gso: None,
            ..*self
        }
    }

    /// Builds the fields anew for a frame whose layer 4 header starts at
    /// `transport_offset` (it moves when tags or tunnels are put on or taken off).
    pub fn rebuild(&self, transport_offset: usize) -> RawOffload {
        let mut raw = RawOffload::default();
        if let Some(offset) = self.partial {
            raw.flags = NEEDS_CSUM;
            raw.csum_start = transport_offset as u16;
            raw.csum_offset = offset;
        }
        if let Some(gso) = self.gso {
            raw.gso_size = gso.size;
            raw.gso_type = match gso.kind {
                GsoKind::Tcp4 { ecn: false } => GSO_TCPV4,
                GsoKind::Tcp4 { ecn: true } => GSO_TCPV4 | GSO_ECN,
                GsoKind::Tcp6 { ecn: false } => GSO_TCPV6,
                GsoKind::Tcp6 { ecn: true } => GSO_TCPV6 | GSO_ECN,
                GsoKind::Udp => GSO_UDP_L4,
            };
        }
        raw
    }

    /// The frames this one becomes on a wire.
    pub fn segments(&self) -> usize {
        match self.gso {
            Some(gso) => segments(self.payload_len, gso.size),
            None => 1,
        }
    }

    /// Bytes of those frames together, of a frame that is `total_len` long now:
    /// the headers are there once in each. Meters count these.
    pub fn wire_bytes(&self, total_len: usize) -> usize {
        total_len + (self.segments() - 1) * self.header_len
    }

    /// Bytes of the largest IP packet among those frames, of a packet that is
    /// `packet_len` long now: what must fit the egress MTU. Extension or encapsulating
    /// headers put on later are the caller's to add.
    pub fn largest_packet(&self, packet_len: usize) -> usize {
        match self.gso {
            Some(gso) => self.header_len - self.network_offset + usize::from(gso.size),
            None => packet_len,
        }
    }
}

/// Segments that a payload becomes; at least one.
pub fn segments(payload_len: usize, gso_size: u16) -> usize {
    payload_len.div_ceil(usize::from(gso_size.max(1))).max(1)
}
