//! What is reserved by who does not block, toward one that does not read.

use super::{numbered, pair_of};
use crate::{CAPACITY, Circuit, Way};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use stream::{CONSUMER_WORDS_AT, ConsumerWord, PRODUCER_WORDS_AT, ProducerWord, Side};

/// Reserves, makes and commits, so many bytes at a time, until nothing more goes; how many went, and how many
/// are still reserved.
fn fills_up(a: &mut Circuit, part: usize) -> (usize, usize) {
    let mut sent = 0;
    loop {
        let mut room = a.reserve(part).unwrap();
        let made = room.fill(part, |at, bytes| {
            bytes.copy_from_slice(&numbered(sent + at, bytes.len()));
        });
        let mut left = made;
        let mut went = room.commit(made);
        // The rest, until it is told that there is no more of it to go.
        loop {
            match went {
                Ok(n) => {
                    assert!(n > 0);
                    (sent, left) = (sent + n, left - n);
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    return (sent, left);
                }
            }
            if left == 0 {
                break;
            }
            went = a.commit(left);
        }
    }
}

/// A while later, as who is told by a poll.
fn goes_on(a: &mut Circuit, mut left: usize) {
    while left > 0 {
        assert!(a.wait_writable(Some(Duration::from_secs(20))).unwrap());
        match a.commit(left) {
            Ok(n) => left -= n,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

#[test]
fn what_the_socket_does_not_take_stays_reserved() {
    let (a, mut b) = UnixStream::pair().unwrap();
    let mut a = Circuit::by_socket(a.into());
    a.set_nonblocking(true).unwrap();
    // It fits no number of the socket's buffers.
    let (sent, left) = fills_up(&mut a, 300_001);
    assert!(sent > 0 && left > 0, "{sent}, {left}");
    assert!(!a.wait_writable(Some(Duration::ZERO)).unwrap());
    assert_eq!(a.commit(left).unwrap_err().kind(), ErrorKind::WouldBlock);
    let more = a.commit(left + 1).unwrap_err();
    assert_eq!(more.kind(), ErrorKind::InvalidInput);
    let all = sent + left;
    let reader = std::thread::spawn(move || {
        let mut came = vec![0; all];
        b.read_exact(&mut came).unwrap();
        (came, b)
    });
    goes_on(&mut a, left);
    let (came, mut b) = reader.join().unwrap();
    assert!(came == numbered(0, all));
    // All went: nothing is reserved.
    assert_eq!(a.commit(1).unwrap_err().kind(), ErrorKind::InvalidInput);
    // Who writes gives up what it has reserved.
    fills_up(&mut a, 300_001);
    std::io::copy(&mut (&mut b).take(1 << 10), &mut std::io::sink()).unwrap();
    let _ = a.write(b"x");
    assert_eq!(a.commit(1).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_full_ring_that_is_not_read_holds_up_nobody_who_does_not_block() {
    let (mut a, mut b) = pair_of(CAPACITY);
    assert_eq!((b.way(), a.way()), (Way::Socket, Way::Ring));
    a.set_nonblocking(true).unwrap();
    let (sent, left) = fills_up(&mut a, 300_001);
    assert!(sent > CAPACITY && left > 0, "{sent}, {left}");
    // A poll says so too.
    assert!(!a.wait_writable(Some(Duration::ZERO)).unwrap());
    let all = sent + left;
    let reader = std::thread::spawn(move || {
        let mut came = vec![0; all];
        b.read_exact(&mut came).unwrap();
        (came, b)
    });
    goes_on(&mut a, left);
    let (came, _b) = reader.join().unwrap();
    assert!(came == numbered(0, all));
    assert_eq!(a.way(), Way::Ring);
}

#[test]
fn a_peer_that_says_it_read_what_was_not_sent_holds_up_nobody_who_does_not_block() {
    let (a, b) = UnixStream::pair().unwrap();
    let memory = shm::circuit_file(CAPACITY).unwrap();
    let [one, other, theirs] = [0; 3].map(|_| memory.try_clone().unwrap());
    let mut a = Circuit::with_memory(a.into(), one, CAPACITY, Side::Began);
    let b = Circuit::with_memory(b.into(), other, CAPACITY, Side::Accepted);
    assert_eq!(a.way(), Way::Ring);
    a.set_nonblocking(true).unwrap();
    let word = CONSUMER_WORDS_AT + ConsumerWord::Spilled as usize * 8;
    let theirs = File::from(theirs);
    theirs
        .write_all_at(&77_u64.to_ne_bytes(), word as u64)
        .unwrap();
    assert_eq!(a.way(), Way::Socket);
    let (sent, left) = fills_up(&mut a, 300_001);
    assert!(sent > 0 && left > 0, "{sent}, {left}");
    assert!(!a.wait_writable(Some(Duration::ZERO)).unwrap());
    assert_eq!(a.commit(left).unwrap_err().kind(), ErrorKind::WouldBlock);
    // Nor does it hold up who blocks for longer than it lives.
    a.set_nonblocking(false).unwrap();
    let writer = std::thread::spawn(move || a.commit(left).unwrap_err().kind());
    drop(b);
    let kind = writer.join().unwrap();
    assert!(
        matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset),
        "{kind:?}"
    );
}

/// Its memory may be given back then.
#[test]
fn who_finds_too_little_room_in_the_ring_holds_none_of_it() {
    let (a, b) = UnixStream::pair().unwrap();
    let memory = shm::circuit_file(CAPACITY).unwrap();
    let [one, other, words] = [0; 3].map(|_| memory.try_clone().unwrap());
    let mut a = Circuit::with_memory(a.into(), one, CAPACITY, Side::Began);
    let _b = Circuit::with_memory(b.into(), other, CAPACITY, Side::Accepted);
    a.set_nonblocking(true).unwrap();
    let words = File::from(words);
    let fills = || {
        let mut word = [0; 8];
        let at = PRODUCER_WORDS_AT + ProducerWord::Fills as usize * 8;
        words.read_exact_at(&mut word, at as u64).unwrap();
        u64::from_ne_bytes(word)
    };
    a.write_all(&vec![1; CAPACITY - 100]).unwrap();
    assert_eq!(a.reserve(50).unwrap().into_place().1, 100);
    assert_eq!(fills(), 1);
    assert!(a.reserve(1000).unwrap().into_place().1 >= 1000);
    assert_eq!((a.way(), fills()), (Way::Ring, 0));
}

#[test]
fn who_reserves_again_gives_up_what_it_reserved() {
    let (a, mut b) = UnixStream::pair().unwrap();
    let mut a = Circuit::by_socket(a.into());
    let (_, length) = a.reserve(100_000).unwrap().into_place();
    assert!(length >= 100_000);
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(b"hello", 0).unwrap();
    let mut room = a.reserve(1).unwrap();
    assert_eq!(room.read_from(file.as_fd(), 0, 9).unwrap(), 5);
    assert_eq!(room.commit(5).unwrap(), 5);
    assert_eq!(a.commit(1).unwrap_err().kind(), ErrorKind::InvalidInput);
    let mut came = [0; 5];
    b.read_exact(&mut came).unwrap();
    assert_eq!(&came, b"hello");
}
