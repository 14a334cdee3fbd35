//! Which pair of queues a frame goes by.

/// A number of the flow that a frame belongs to, from its first bytes: the same for all of
/// one connection's frames in one direction, so that these stay in order. Of fragments and
/// of what has no ports, the addresses alone.
#[inline]
pub fn flow_of(head: &[u8]) -> u32 {
    let bytes = |at: usize, n: usize| head.get(at..at + n).unwrap_or(&[]);
    let with_ports = |protocol: Option<&u8>| matches!(protocol, Some(6 | 17 | 33 | 132 | 136));
    let (addresses, ports): (&[u8], &[u8]) = match bytes(12, 2) {
        [8, 0] => {
            let whole = matches!(bytes(20, 2), [high, 0] if high & 0x3f == 0);
            let begins = 14 + usize::from(head.get(14).map_or(0, |first| first & 15)) * 4;
            match whole && with_ports(head.get(23)) {
                true => (bytes(26, 8), bytes(begins, 4)),
                false => (bytes(26, 8), &[]),
            }
        }
        [0x86, 0xdd] if with_ports(head.get(20)) => (bytes(22, 32), bytes(54, 4)),
        [0x86, 0xdd] => (bytes(22, 32), &[]),
        _ => (bytes(0, 12), &[]),
    };
    let fold = |all: u32, word: &[u8]| {
        let word = word
            .first_chunk()
            .map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        (all.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b1)
    };
    let words = addresses.chunks_exact(4).chain(ports.chunks_exact(4));
    words.fold(0, fold) >> 16
}
