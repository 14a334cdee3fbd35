//! Finishing in software what a port cannot take: segmentation, checksums, IPv4
//! fragments.

use guard::guard;
use image::compartment::{FEATURE_CSUM, FEATURE_TSO4, FEATURE_TSO6, FEATURE_USO};
use wire::offload::{GsoKind, Offload, RawOffload};
use wire::parse::Parsed;
use wire::segment::{Fragmenter, SegmentError, Segmenter, complete_checksum};

/// What is to be done to a frame before a port takes it.
#[derive(Clone, Copy, Debug)]
pub struct Finish {
    pub(crate) parsed: Parsed,
    pub(crate) offload: Offload,
    /// MTU to fragment to.
    pub(crate) fragment: Option<u16>,
}

/// Whether a port with these `FEATURE_*` bits needs the frame finished first.
pub fn needed(offload: &Offload, features: u16) -> bool {
    let gso = offload.gso().map_or(0, |gso| match gso.kind {
        GsoKind::Tcp4 { .. } => FEATURE_TSO4,
        GsoKind::Tcp6 { .. } => FEATURE_TSO6,
        GsoKind::Udp => FEATURE_USO,
    });
    let checksum = if offload.is_partial() {
        FEATURE_CSUM
    } else {
        0
    };
    let wants = gso | checksum;
    guard!("finish-offload") && features & wants != wants
}

/// Finishes the whole `frame` (its head already rewritten) and emits each frame it
/// becomes, with complete checksums. `scratch` holds one such frame. Bound: the
/// frame's segments, or its payload over the MTU. An error is our bug or a port's
/// MTU too small for any fragment; what was emitted before it stands.
pub fn finish(
    how: &Finish,
    frame: &mut [u8],
    scratch: &mut [u8],
    mut emit: impl FnMut(&RawOffload, &[u8]),
) -> Result<(), SegmentError> {
    let plain = RawOffload::default();
    if how.offload.gso().is_some() {
        let at = how.parsed.payload_offset().ok_or(SegmentError::Layout)?;
        let end = how.parsed.packet_end.min(frame.len());
        let packet = frame.get(..end).ok_or(SegmentError::Layout)?;
        let (headers, payload) = packet.split_at_checked(at).ok_or(SegmentError::Layout)?;
        let mut segments = Segmenter::new(headers, payload, &how.parsed, &how.offload)?;
        while let Some(length) = segments.next(scratch)? {
            emit(&plain, scratch.get(..length).ok_or(SegmentError::Layout)?);
        }
        return Ok(());
    }
    complete_checksum(frame, &how.parsed, &how.offload)?;
    let Some(mtu) = how.fragment else {
        emit(&plain, frame);
        return Ok(());
    };
    let ip = how.parsed.ip().ok_or(SegmentError::Layout)?;
    let packet = frame
        .get(..how.parsed.packet_end)
        .ok_or(SegmentError::Layout)?;
    let at = how.parsed.network_offset + ip.header_len;
    let (headers, payload) = packet.split_at_checked(at).ok_or(SegmentError::Layout)?;
    let mut fragments = Fragmenter::new(
        headers,
        payload,
        how.parsed.network_offset,
        usize::from(mtu),
    )?;
    while let Some(length) = fragments.next(scratch)? {
        emit(&plain, scratch.get(..length).ok_or(SegmentError::Layout)?);
    }
    Ok(())
}
