//! With a ring, which no program in C has but by the operator.

use super::{Handle, bulkhead_commit, bulkhead_is_ring, bulkhead_reserve};
use bulkhead::{CAPACITY, Circuit, Side, Way};
use std::fs::File;
use std::io::Error;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use stream::{CONSUMER_WORDS_AT, ConsumerWord};

#[test]
fn a_peer_that_says_it_read_what_was_not_sent_holds_up_no_commit() {
    let (a, b) = UnixStream::pair().unwrap();
    let memory = shm::circuit_file(CAPACITY).unwrap();
    let [one, other, theirs] = [0; 3].map(|_| memory.try_clone().unwrap());
    let mut a = Circuit::with_memory(a.into(), one, CAPACITY, Side::Began);
    let _b = Circuit::with_memory(b.into(), other, CAPACITY, Side::Accepted);
    assert_eq!(a.way(), Way::Ring);
    a.set_nonblocking(true).unwrap();
    let mut a = Handle {
        circuit: a,
        peeked: 0,
    };
    let word = CONSUMER_WORDS_AT + ConsumerWord::Spilled as usize * 8;
    let theirs = File::from(theirs);
    theirs
        .write_all_at(&77_u64.to_ne_bytes(), word as u64)
        .unwrap();
    let (a, mut sent, mut room) = (&raw mut a, 0, std::ptr::null_mut());
    // SAFETY: made above, and used by nobody else; the room is as long as is said.
    unsafe {
        assert_eq!(bulkhead_is_ring(a), 0);
        let went = loop {
            assert!(bulkhead_reserve(a, 300_001, &raw mut room) >= 300_001);
            room.cast::<u8>().write_bytes(7, 300_001);
            match bulkhead_commit(a, 300_001) {
                300_001 => sent += 300_001,
                went => break went,
            }
        };
        assert!(sent + went.max(0) > 0);
        // As much of it as did not go is reserved.
        let left = 300_001 - went.max(0).cast_unsigned();
        for (n, errno) in [(left, libc::EAGAIN), (left + 1, libc::EINVAL)] {
            assert_eq!(bulkhead_commit(a, n), -1);
            assert_eq!(Error::last_os_error().raw_os_error(), Some(errno));
        }
    }
}
