//! The ten bytes before each frame of a tap or packet socket: `struct
//! virtio_net_hdr` in host order. Ten and not twelve: the two more would be a
//! count of merged buffers, which only virtqueues have.

use wire::RawOffload;

/// Bytes of the header.
pub(crate) const LEN: usize = 10;

/// What the kernel says about a frame it gives us.
pub(crate) fn read(bytes: &[u8; LEN]) -> RawOffload {
    // Bytes 2 and 3 are a hint of the headers' length, which we measure ourselves.
    let [flags, gso_type, _, _, s0, s1, c0, c1, o0, o1] = *bytes;
    RawOffload {
        flags,
        gso_type,
        gso_size: u16::from_ne_bytes([s0, s1]),
        csum_start: u16::from_ne_bytes([c0, c1]),
        csum_offset: u16::from_ne_bytes([o0, o1]),
    }
}

/// What we say to the kernel. The hint of the headers' length is left zero: the
/// kernel takes at least what the checksum position needs.
pub(crate) fn write(offload: &RawOffload) -> [u8; LEN] {
    let [s0, s1] = offload.gso_size.to_ne_bytes();
    let [c0, c1] = offload.csum_start.to_ne_bytes();
    let [o0, o1] = offload.csum_offset.to_ne_bytes();
    [
        offload.flags,
        offload.gso_type,
        0,
        0,
        s0,
        s1,
        c0,
        c1,
        o0,
        o1,
    ]
}
