//! Frames for an uplink that takes none unfinished.

use wire::offload::{self, MIN_GSO_FLOOR, NEEDS_CSUM, RawOffload};
use wire::segment::{Segmenter, complete_checksum};

/// Whether something is left to be done to a frame.
pub fn is_needed(offload: &RawOffload) -> bool {
    offload.gso_type != 0 || offload.flags & NEEDS_CSUM != 0
}

/// What a frame cannot be finished for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinishable;

/// Finishes a whole frame and gives each that it becomes to `send`, until that refuses one.
/// `frame` is private, `part` holds one of them. The headers that were judged stay what they
/// are, in each: as the kernel does it behind a socket that takes unfinished frames. Bound:
/// the frame's segments.
///
/// # Errors
/// [`Unfinishable`]: the offload fields are not those of the frame. Nothing was sent.
pub fn finish<E>(
    frame: &mut [u8],
    raw: &RawOffload,
    part: &mut [u8],
    mut send: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<Result<(), E>, Unfinishable> {
    let length = frame.len();
    let parsed = wire::parse(frame, length).map_err(|_| Unfinishable)?;
    let offload = offload::check(*raw, &parsed, length, MIN_GSO_FLOOR).map_err(|_| Unfinishable)?;
    if offload.gso().is_none() {
        complete_checksum(frame, &parsed, &offload).map_err(|_| Unfinishable)?;
        return Ok(send(frame));
    }
    let at = parsed.payload_offset().ok_or(Unfinishable)?;
    let end = parsed.packet_end.min(length);
    let packet = frame.get(..end).ok_or(Unfinishable)?;
    let (headers, payload) = packet.split_at_checked(at).ok_or(Unfinishable)?;
    let mut segments =
        Segmenter::new(headers, payload, &parsed, &offload).map_err(|_| Unfinishable)?;
    while let Ok(Some(length)) = segments.next(part) {
        if let Err(refused) = send(part.get(..length).unwrap_or(&[])) {
            return Ok(Err(refused));
        }
    }
    Ok(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::offload::{GSO_TCPV4, GSO_UDP_L4};
    use wire::{MacAddress, build, ethernet, ipv4};

    /// A TCP frame of so much payload, its checksum left out.
    fn unfinished(payload: usize) -> Vec<u8> {
        let [to, from] = [1, 2].map(|last| MacAddress([2, 0, 0, 0, 0, last]));
        let link = ethernet::Header::new(to, from, ethernet::IPV4);
        let ip = ipv4::Header::new([10, 0, 0, 1], [10, 0, 0, 2], 6);
        let mut frame = vec![0; 70_000];
        let end = build::ipv4(&mut frame, &link, &ip, |body| {
            let segment = body.get_mut(..20 + payload).unwrap();
            segment.fill(7);
            segment[12] = 0x50;
            Ok(20 + payload)
        })
        .unwrap();
        frame.truncate(end);
        let sum = wire::checksum::pseudo(
            &wire::address::mapped([10, 0, 0, 1]),
            &wire::address::mapped([10, 0, 0, 2]),
            6,
            20 + payload,
        );
        frame[50..52].copy_from_slice(&sum.fold().to_be_bytes());
        frame
    }

    fn raw(gso_type: u8, gso_size: u16) -> RawOffload {
        RawOffload {
            flags: NEEDS_CSUM,
            gso_type,
            gso_size,
            csum_start: 34,
            csum_offset: 16,
        }
    }

    #[test]
    fn what_is_unfinished_leaves_whole_and_in_parts() {
        let mut part = vec![0; 70_000];
        for (payload, gso, count) in [(100, raw(0, 0), 1), (4000, raw(GSO_TCPV4, 1000), 4)] {
            let mut lengths = Vec::new();
            let sent = finish(&mut unfinished(payload), &gso, &mut part, |bytes| {
                let parsed = wire::parse(bytes, bytes.len()).unwrap();
                assert!(parsed.transport_offset().is_some());
                let [from, to] = [1, 2].map(|last| wire::address::mapped([10, 0, 0, last]));
                let message = bytes.get(34..).unwrap();
                assert!(wire::checksum::verifies(&from, &to, 6, message));
                lengths.push(bytes.len());
                Ok::<(), ()>(())
            });
            assert_eq!(sent, Ok(Ok(())));
            assert_eq!(lengths, vec![54 + payload / count; count]);
        }
    }

    #[test]
    fn what_does_not_fit_its_frame_is_not_sent() {
        let mut part = vec![0; 70_000];
        for gso in [raw(GSO_UDP_L4, 1000), raw(GSO_TCPV4, 7), raw(9, 1000)] {
            let none = |_: &[u8]| -> Result<(), ()> { panic!("sent") };
            let sent = finish(&mut unfinished(4000), &gso, &mut part, none);
            assert_eq!(sent, Err(Unfinishable), "{gso:?}");
        }
        // Who has no room for one part is asked for no other.
        let mut asked = 0;
        let full = |_: &[u8]| {
            asked += 1;
            Err(())
        };
        let sent = finish(
            &mut unfinished(4000),
            &raw(GSO_TCPV4, 1000),
            &mut part,
            full,
        );
        assert_eq!((sent, asked), (Ok(Err(())), 1));
    }
}
