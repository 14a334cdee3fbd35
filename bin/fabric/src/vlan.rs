//! 802.1Q tags of frames on an uplink: taken off what comes, put on what goes, by the table's
//! word alone.

use fabric::HEAD;
use std::ops::Range;
use wire::RawOffload;
use wire::ethernet::VLAN;
use wire::offload::NEEDS_CSUM;

/// Bytes of a tag.
pub const TAG: usize = 4;
/// Bytes of the two MAC addresses, after which it stands.
const ADDRESSES: usize = 12;

/// The VLAN of a frame; 0 = it has none. A tag that names none (of a priority alone, or the
/// reserved one) and a provider's (IEEE 802.1ad) is left where it is: what is in it is nobody's.
pub fn of(frame: &[u8]) -> u16 {
    let tag = frame.get(ADDRESSES..).and_then(|rest| rest.first_chunk());
    match tag {
        Some([a, b, c, d]) if u16::from_be_bytes([*a, *b]) == VLAN => {
            let vlan = u16::from_be_bytes([*c, *d]) & 0xfff;
            if vlan == 0xfff { 0 } else { vlan }
        }
        _ => 0,
    }
}

/// Takes the tag out of a frame in a buffer.
pub fn take_off(offload: &mut RawOffload, at: &mut Range<usize>, buffer: &mut [u8]) {
    let addresses = at.start..at.start + ADDRESSES;
    if addresses.end + TAG > at.end || at.end > buffer.len() {
        return;
    }
    buffer.copy_within(addresses, at.start + TAG);
    at.start += TAG;
    if offload.flags & NEEDS_CSUM != 0 {
        offload.csum_start = offload.csum_start.saturating_sub(TAG as u16);
    }
}

/// A frame's head with the tag of a VLAN, and its offload fields then; 0 = as they are.
pub fn put_on<'a>(
    vlan: u16,
    head: &'a [u8],
    mut offload: RawOffload,
    room: &'a mut [u8; HEAD + TAG],
) -> (&'a [u8], RawOffload) {
    let parts = head.split_at_checked(ADDRESSES);
    let (Some((addresses, rest)), true) = (parts, vlan != 0) else {
        return (head, offload);
    };
    let [a, b] = VLAN.to_be_bytes();
    let [c, d] = vlan.to_be_bytes();
    let tag = [a, b, c, d];
    let all = addresses.iter().chain(&tag).chain(rest);
    room.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
    if offload.flags & NEEDS_CSUM != 0 {
        offload.csum_start = offload.csum_start.saturating_add(TAG as u16);
    }
    (room.get(..head.len() + TAG).unwrap_or(&[]), offload)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(tpid: u16, tci: u16) -> Vec<u8> {
        let mut frame = vec![1; ADDRESSES];
        frame.extend(tpid.to_be_bytes());
        frame.extend(tci.to_be_bytes());
        frame.extend([8, 0, 0x45, 7, 7]);
        frame
    }

    #[test]
    fn a_tag_goes_on_and_comes_off_with_what_counts_from_the_start() {
        let offload = RawOffload {
            flags: NEEDS_CSUM,
            csum_start: 34,
            ..RawOffload::default()
        };
        let plain = [&[1; ADDRESSES][..], &[8, 0, 0x45, 7, 7]].concat();
        let mut room = [0; HEAD + TAG];
        let (head, moved) = put_on(7, &plain, offload, &mut room);
        assert_eq!((head, moved.csum_start), (&tagged(VLAN, 7)[..], 38));
        // Behind two bytes that are somebody else's.
        let mut buffer = [&[9, 9][..], head].concat();
        let (mut at, mut back) = (2..buffer.len(), moved);
        take_off(&mut back, &mut at, &mut buffer);
        assert_eq!((&buffer[at], back), (&plain[..], offload));
        assert_eq!(put_on(0, &plain, offload, &mut room), (&plain[..], offload));
    }

    #[test]
    fn what_names_no_vlan_has_none() {
        assert_eq!(of(&tagged(VLAN, 0x6000 | 9)), 9);
        for (tpid, tci) in [(VLAN, 0xe000), (VLAN, 0xffff), (0x88a8, 9), (0x0800, 9)] {
            assert_eq!(of(&tagged(tpid, tci)), 0, "{tpid:x} {tci:x}");
        }
        assert_eq!(of(&[0; 15]), 0);
        // Cut off within it: left as it is.
        let (mut at, mut buffer) = (0..15, vec![0; 15]);
        take_off(&mut RawOffload::default(), &mut at, &mut buffer);
        assert_eq!(at, 0..15);
    }
}
