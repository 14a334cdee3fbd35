//! Two ends over a socket pair and a memory file, as the operator would give them.

use crate::{CAPACITY, Circuit, Side, Way};
use shm::CircuitWords;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stream::ConsumerWord;
use stream::reclaim::{Kept, Look, done, is_idle, look};

mod reserves;
mod signals;

fn pair_of(capacity: usize) -> (Circuit, Circuit) {
    let (a, b) = UnixStream::pair().unwrap();
    let memory = shm::circuit_file(capacity).unwrap();
    let other = memory.try_clone().unwrap();
    let a = Circuit::with_memory(a.into(), memory, capacity, Side::Began);
    let b = Circuit::with_memory(b.into(), other, capacity, Side::Accepted);
    (a, b)
}

/// Both ways by the ring.
fn pair() -> (Circuit, Circuit) {
    let (mut a, mut b) = pair_of(CAPACITY);
    // Whoever came second knew at once; the first sees it now.
    assert_eq!(b.way(), Way::Socket);
    assert_eq!(a.way(), Way::Ring);
    assert_eq!(b.way(), Way::Ring);
    (a, b)
}

fn numbered(from: usize, n: usize) -> Vec<u8> {
    (from..from + n)
        .map(|at| (at ^ at >> 7 ^ at >> 15) as u8)
        .collect()
}

#[test]
fn all_bytes_come_in_order_whatever_the_sizes() {
    const ALL: usize = 20 << 20;
    for (capacity, nonblocking) in [
        (4096, false),
        (4096, true),
        (CAPACITY, false),
        (CAPACITY, true),
    ] {
        let (mut a, mut b) = pair_of(capacity);
        a.set_nonblocking(nonblocking).unwrap();
        let writer = std::thread::spawn(move || {
            let (mut sent, mut turn) = (0, 0_usize);
            while sent < ALL {
                turn += 1;
                let n = (turn * 7919 % 150_000 + 1).min(ALL - sent);
                let bytes = numbered(sent, n);
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    match a.write(rest) {
                        Ok(n) => rest = &rest[n..],
                        Err(e) if e.kind() == ErrorKind::WouldBlock => {
                            assert!(a.wait_writable(Some(Duration::from_secs(20))).unwrap());
                        }
                        Err(e) => panic!("{e}"),
                    }
                }
                sent += n;
            }
            let way = a.way();
            a.shutdown(Shutdown::Write).unwrap();
            (a, way)
        });
        let (mut came, mut turn, mut out) = (0, 0_usize, vec![0; 90_000]);
        loop {
            turn += 1;
            // As one who polls, and reads once for each time it is told to.
            assert!(
                b.wait_readable(Some(Duration::from_secs(20))).unwrap(),
                "at {came}"
            );
            let most = turn * 104_729 % 90_000 + 1;
            let n = b.read(&mut out[..most]).unwrap();
            if n == 0 {
                break;
            }
            assert_eq!(out[..n], numbered(came, n), "{came} of {capacity}");
            came += n;
        }
        assert_eq!(came, ALL);
        drop(writer.join().unwrap());
    }
}

/// Both write, in place and not, and rest now and then, for as short as may be: somebody gives the memory back
/// as soon as they do, with no more between its asking and its looking than a moment's sleep.
#[test]
fn no_byte_is_lost_where_memory_is_given_back_beside_both() {
    const ALL: usize = 12 << 20;
    let (a, b) = UnixStream::pair().unwrap();
    let memory = shm::circuit_file(CAPACITY).unwrap();
    let copies = [0, 1].map(|_| memory.try_clone().unwrap());
    let [one, other] = copies;
    let mut a = Circuit::with_memory(a.into(), one, CAPACITY, Side::Began);
    let mut b = Circuit::with_memory(b.into(), other, CAPACITY, Side::Accepted);
    let is_over = AtomicBool::new(false);
    let (given, spilled) = std::thread::scope(|scope| {
        let keeper = scope.spawn(|| {
            let words = CircuitWords::map(memory.as_fd()).unwrap();
            let (mut seen, mut given) = ([0; 2], 0);
            while !is_over.load(Ordering::Relaxed) {
                match look(&words, seen) {
                    Look::Moved(now) => seen = now,
                    Look::Unread => {}
                    Look::Asked => {
                        std::thread::sleep(Duration::from_micros(20));
                        if is_idle(&words, seen) {
                            shm::give_back(&memory, CAPACITY).unwrap();
                            given += 1;
                        }
                        done(&words);
                    }
                }
            }
            (given, words.of_reader(Side::Began, ConsumerWord::Spilled))
        });
        scope.spawn(|| {
            let (mut sent, mut turn) = (0, 0_usize);
            while sent < ALL {
                turn += 1;
                let n = (turn * 7919 % 30_000 + 1).min(ALL - sent);
                let bytes = numbered(sent, n);
                match turn % 2 {
                    0 => a.write_all(&bytes).unwrap(),
                    _ => {
                        let mut reserved = a.reserve(n).unwrap();
                        assert_eq!(reserved.copy_from_slice(0, &bytes), n);
                        reserved.commit(n).unwrap();
                    }
                }
                sent += n;
                std::thread::sleep(Duration::from_micros(turn as u64 % 300));
            }
            a.shutdown(Shutdown::Write).unwrap();
        });
        let (mut came, mut out) = (0, vec![0; 90_000]);
        loop {
            let n = b.read(&mut out).unwrap();
            if n == 0 {
                break;
            }
            assert!(out[..n] == numbered(came, n)[..], "at {came}");
            came += n;
        }
        assert_eq!(came, ALL);
        is_over.store(true, Ordering::Relaxed);
        keeper.join().unwrap()
    });
    // And they went on meanwhile, by the socket.
    assert!(given > 20, "{given} times");
    assert!(spilled > 0);
}

#[test]
fn what_is_made_in_place_is_used_in_place() {
    let (mut a, mut b) = pair();
    let mut expected = 0;
    for round in 0..200 {
        let n = 12_345;
        let mut reserved = a.reserve(n).unwrap();
        assert!(reserved.len() >= n);
        assert_eq!(
            reserved.fill(n, |at, part| part
                .copy_from_slice(&numbered(round + at, part.len()))),
            n
        );
        reserved.commit(n).unwrap();
        expected += n;
        let peeked = b.peek().unwrap();
        assert_eq!(peeked.len(), n);
        let sum: u64 = numbered(round, n).iter().map(|byte| u64::from(*byte)).sum();
        assert_eq!(peeked.sum(n), sum);
        let mut some = [0; 100];
        assert_eq!(peeked.copy_to(5000, &mut some), 100);
        assert_eq!(some[..], numbered(round + 5000, 100));
        assert_eq!(peeked.copy_to(n - 1, &mut some), 1);
        peeked.consume(n);
    }
    assert!(expected > 2 * CAPACITY, "round the end");
}

#[test]
fn a_file_goes_in_and_comes_out() {
    let (mut a, mut b) = pair();
    let bytes = numbered(3, 3 << 20);
    let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    (&from).write_all(&bytes).unwrap();
    std::io::Seek::rewind(&mut &from).unwrap();
    let sender = std::thread::spawn(move || {
        loop {
            let mut room = a.reserve(1).unwrap();
            let n = room.read_from(from.as_fd(), 0, 100_000).unwrap();
            room.commit(n).unwrap();
            if n == 0 {
                return;
            }
        }
    });
    loop {
        let peeked = b.peek().unwrap();
        let n = peeked.len();
        if n == 0 {
            break;
        }
        assert_eq!(peeked.write_to(to.as_fd(), n).unwrap(), n);
        peeked.consume(n);
    }
    sender.join().unwrap();
    let mut came = Vec::new();
    std::io::Seek::rewind(&mut &to).unwrap();
    (&to).read_to_end(&mut came).unwrap();
    assert!(came == bytes);
}

#[test]
fn with_anybody_else_it_is_a_socket() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut a = Circuit::connect(server.local_addr().unwrap()).unwrap();
    let (mut b, _) = server.accept().unwrap();
    assert_eq!(a.way(), Way::Socket);
    let mut reserved = a.reserve(5).unwrap();
    assert_eq!(reserved.copy_from_slice(0, b"hello"), 5);
    reserved.commit(5).unwrap();
    let mut came = [0; 5];
    b.read_exact(&mut came).unwrap();
    assert_eq!(&came, b"hello");
    b.write_all(b"and back").unwrap();
    let peeked = a.peek().unwrap();
    assert_eq!(
        peeked.sum(3),
        u64::from(b'a') + u64::from(b'n') + u64::from(b'd')
    );
    peeked.consume(4);
    let mut rest = [0; 100];
    assert_eq!(a.read(&mut rest).unwrap(), 4);
    assert_eq!(&rest[..4], b"back");
    drop(b);
    assert!(a.peek().unwrap().is_empty());
}

#[test]
fn one_that_has_the_memory_talks_to_one_that_does_not() {
    let (a, mut b) = UnixStream::pair().unwrap();
    let memory = shm::circuit_file(CAPACITY).unwrap();
    let mut a = Circuit::with_memory(a.into(), memory, CAPACITY, Side::Began);
    a.write_all(b"hello").unwrap();
    let mut came = [0; 5];
    b.read_exact(&mut came).unwrap();
    b.write_all(&came).unwrap();
    assert_eq!(a.read(&mut came).unwrap(), 5);
    assert_eq!(a.way(), Way::Socket);
}

#[test]
fn who_must_not_block_does_not() {
    let (mut a, mut b) = pair_of(4096);
    a.set_nonblocking(true).unwrap();
    b.set_nonblocking(true).unwrap();
    assert_eq!(
        a.read(&mut [0; 9]).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    let mut sent = 0;
    loop {
        match a.write(&numbered(sent, 5000)) {
            Ok(n) => sent += n,
            Err(e) => break assert_eq!(e.kind(), ErrorKind::WouldBlock),
        }
    }
    assert!(sent > 100_000, "the socket's buffer, too: {sent}");
    assert!(!a.wait_writable(Some(Duration::from_millis(20))).unwrap());
    let (mut came, mut out) = (0, [0; 10_000]);
    while let Ok(n) = b.read(&mut out) {
        assert_eq!(out[..n], numbered(came, n));
        came += n;
    }
    assert_eq!(came, sent);
    assert!(a.wait_writable(Some(Duration::ZERO)).unwrap());
    assert!(!b.wait_readable(Some(Duration::ZERO)).unwrap());
    a.write_all(b"x").unwrap();
    assert!(b.wait_readable(Some(Duration::ZERO)).unwrap());
    // What tells of it is there still when it is read.
    b.read_exact(&mut [0]).unwrap();
    assert!(!b.wait_readable(Some(Duration::from_millis(20))).unwrap());
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        a.write_all(b"y").unwrap();
        a
    });
    assert!(b.wait_readable(None).unwrap());
    b.read_exact(&mut [0]).unwrap();
    drop(writer.join().unwrap());
    assert!(b.wait_readable(None).unwrap());
    assert_eq!(b.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_peer_that_goes_is_an_end_and_a_broken_pipe() {
    let (mut a, mut b) = pair();
    b.write_all(b"last words").unwrap();
    drop(b);
    let mut came = Vec::new();
    // What is in the ring came before the end.
    a.read_to_end(&mut came).unwrap();
    assert_eq!(came, b"last words");
    // At most a ring full is written to nobody.
    let error = (0..100_000).find_map(|_| a.write(&[0; 100]).err());
    assert_eq!(error.unwrap().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn who_waits_for_room_is_told_that_nobody_will_make_any() {
    let (mut a, b) = pair();
    let writer = std::thread::spawn(move || a.write_all(&vec![0; 4 << 20]).unwrap_err().kind());
    std::thread::sleep(Duration::from_millis(100));
    drop(b);
    assert_eq!(writer.join().unwrap(), ErrorKind::BrokenPipe);
}

#[test]
fn a_socket_that_is_shut_ends_a_stream_that_flows() {
    let (a, b) = UnixStream::pair().unwrap();
    let cut = a.try_clone().unwrap();
    let memory = shm::circuit_file(CAPACITY).unwrap();
    let other = memory.try_clone().unwrap();
    let mut a = Circuit::with_memory(a.into(), memory, CAPACITY, Side::Began);
    let mut b = Circuit::with_memory(b.into(), other, CAPACITY, Side::Accepted);
    let (flows, flowing) = std::sync::mpsc::channel();
    let (ends, ended) = std::sync::mpsc::channel();
    let over = ends.clone();
    std::thread::spawn(move || {
        let mut out = vec![0; 1 << 16];
        while b.read(&mut out).unwrap() > 0 {
            let _ = flows.send(b.way());
        }
        ends.send("read").unwrap();
    });
    std::thread::spawn(move || {
        while a.write_all(&[0; 10_000]).is_ok() {}
        over.send("written").unwrap();
    });
    let limit = Duration::from_secs(20);
    while flowing.recv_timeout(limit).unwrap() != Way::Ring {}
    assert!(ended.try_recv().is_err());
    cut.shutdown(Shutdown::Both).unwrap();
    let mut ended = [(); 2].map(|()| ended.recv_timeout(limit).unwrap());
    ended.sort_unstable();
    assert_eq!(ended, ["read", "written"]);
}

#[test]
fn memory_that_can_shrink_is_not_used() {
    let (a, _b) = UnixStream::pair().unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(8 << 20).unwrap();
    let mut a = Circuit::with_memory(a.into(), file.into(), CAPACITY, Side::Began);
    assert!(a.ring.is_none());
    assert_eq!(a.way(), Way::Socket);
    let short = shm::circuit_file(CAPACITY / 2).unwrap();
    let (c, _d) = UnixStream::pair().unwrap();
    assert!(
        Circuit::with_memory(c.into(), short, CAPACITY, Side::Began)
            .ring
            .is_none()
    );
}

/// Who naps is woken for every byte, also where it leaves some and waits for more otherwise.
#[test]
fn who_naps_is_woken_for_every_byte() {
    let (mut a, mut b) = pair();
    a.set_polled(false);
    b.set_polled(false);
    let other = std::thread::spawn(move || {
        let mut bytes = [0; 3];
        for turn in 0..20_000_u32 {
            b.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes, [turn as u8, 1, 2]);
            b.write_all(&bytes).unwrap();
        }
        b
    });
    let mut byte = [0];
    let begun = std::time::Instant::now();
    for turn in 0..20_000_u32 {
        a.write_all(&[turn as u8, 1, 2]).unwrap();
        for expected in [turn as u8, 1, 2] {
            if turn % 3 == 0 {
                assert!(a.wait_readable(Some(Duration::from_secs(20))).unwrap());
            }
            a.read_exact(&mut byte).unwrap();
            assert_eq!(byte, [expected]);
        }
    }
    // A wake-up that is lost costs a nap's whole time.
    assert!(
        begun.elapsed() < Duration::from_secs(15),
        "{:?}",
        begun.elapsed()
    );
    let mut b = other.join().unwrap();
    assert_eq!((a.way(), b.way()), (Way::Ring, Way::Ring));
}

/// Its socket hangs up as one that is closed does where both directions are.
#[test]
fn who_shuts_its_sending_down_says_so_in_the_ring() {
    for (how, says) in [
        (Shutdown::Read, stream::Says::Nothing),
        (Shutdown::Write, stream::Says::Ended),
        (Shutdown::Both, stream::Says::Ended),
    ] {
        let (mut a, b) = pair();
        a.shutdown(how).unwrap();
        assert_eq!(b.ring.as_ref().unwrap().reader.says(), says, "{how:?}");
    }
}

#[test]
fn who_naps_hears_of_the_end() {
    for how in ["dropped", "shut", "killed"] {
        let (mut a, mut b) = pair();
        a.set_polled(false);
        a.write_all(&[1]).unwrap();
        b.read_exact(&mut [0]).unwrap();
        let reader = std::thread::spawn(move || {
            let begun = std::time::Instant::now();
            (a.read(&mut [0; 9]).unwrap(), begun.elapsed())
        });
        std::thread::sleep(Duration::from_millis(1));
        let copy = b.as_fd().try_clone_to_owned().unwrap();
        match how {
            "dropped" => drop((b, copy)),
            "shut" => b.shutdown(Shutdown::Write).unwrap(),
            _ => {
                // As the kernel does it for a process that is gone.
                rustix::net::shutdown(&copy, rustix::net::Shutdown::Both).unwrap();
                std::mem::forget(b);
            }
        }
        let (n, took) = reader.join().unwrap();
        assert_eq!(n, 0, "{how}");
        assert!(took < Duration::from_secs(5), "{how}: {took:?}");
    }
}
