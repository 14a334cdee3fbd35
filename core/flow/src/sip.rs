//! SipHash-1-3 over whole words, for keys of a fixed length: written out here because
//! it is on the way of each packet, and a library's is not inlined there. Held against
//! one by test.

/// The hash of `words` and of `last`, which has the message's length modulo 256 in its
/// highest byte and its last bytes below (Aumasson and Bernstein, 2012, section 2.2).
#[inline]
pub(crate) fn hash<const N: usize>(key: [u64; 2], words: [u64; N], last: u64) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    for word in words {
        v[3] ^= word;
        round(&mut v);
        v[0] ^= word;
    }
    v[3] ^= last;
    round(&mut v);
    v[0] ^= last;
    v[2] ^= 0xff;
    round(&mut v);
    round(&mut v);
    round(&mut v);
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[inline]
const fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::hash::Hasher;
    use siphasher::sip::SipHasher13;

    fn library(key: [u64; 2], words: &[u64], rest: u8) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(key[0], key[1]);
        for word in words {
            hasher.write(&word.to_le_bytes());
        }
        hasher.write(&[rest]);
        hasher.finish()
    }

    proptest::proptest! {
        #[test]
        fn is_what_the_library_says(key: [u64; 2], words: [u64; 5], rest: u8) {
            let two = [words[0], words[1]];
            proptest::prop_assert_eq!(hash(key, two, 17 << 56 | u64::from(rest)), library(key, &two, rest));
            proptest::prop_assert_eq!(hash(key, words, 41 << 56 | u64::from(rest)), library(key, &words, rest));
        }
    }
}
