//! Numbers that nobody guesses, asked of the kernel many at a time.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::cell::RefCell;

/// Bytes that are asked for at once: the kernel gives as many without being interrupted.
const BYTES: usize = 256;

thread_local! {
    /// The rest of them.
    static LEFT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// So many bytes, each given once.
///
/// # Errors
/// AGAIN: the kernel gave fewer than it was asked for.
pub fn bytes<const N: usize>() -> Result<[u8; N], Errno> {
    const { assert!(N <= BYTES) };
    LEFT.with_borrow_mut(|left| {
        if left.len() < N {
            left.resize(BYTES, 0);
            let given = getrandom(&mut left[..], GetRandomFlags::empty());
            if given != Ok(BYTES) {
                left.clear();
                return Err(given.err().unwrap_or(Errno::AGAIN));
            }
        }
        let rest = left.len() - N;
        let taken = left.split_off(rest);
        taken.try_into().map_err(|_| Errno::AGAIN)
    })
}

/// A number; 0 where the kernel has none.
pub fn number() -> u32 {
    bytes().map_or(0, u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_byte_is_given_twice() {
        let all: BTreeSet<[u8; 16]> = (0..1000).map(|_| bytes().unwrap()).collect();
        assert_eq!(all.len(), 1000);
        let numbers: BTreeSet<u32> = (0..1000).map(|_| number()).collect();
        assert!(numbers.len() > 990);
    }
}
