//! MAC addresses made from names.

use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

/// A locally administered station address made from words: the same words always
/// give the same address; the next candidate where that one is taken.
pub(crate) fn made(words: &[&str], taken: &mut BTreeSet<[u8; 6]>) -> [u8; 6] {
    // 46 bits: the second round is as good as never needed, so this ends.
    for round in 0u32.. {
        let mut sha = Sha256::new();
        for word in words {
            sha.update(word.as_bytes());
            sha.update([0]);
        }
        sha.update(round.to_le_bytes());
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(sha.finalize()) {
            *to = from;
        }
        mac[0] = mac[0] & 0xfc | 0x02;
        if taken.insert(mac) {
            return mac;
        }
    }
    [2, 0, 0, 0, 0, 0]
}
