//! Signals that come while somebody waits.
#![expect(unsafe_code, reason = "signals")]

use super::{numbered, pair};
use crate::Circuit;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

static COUNTED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn counts(_: libc::c_int) {
    COUNTED.fetch_add(1, Ordering::Relaxed);
}

/// Does it, while a signal comes again and again, to this thread alone; how many did.
fn among_signals<T>(does: impl FnOnce() -> T) -> (T, usize) {
    // SAFETY: all of it is set below, or 0: no flags, so that calls are interrupted.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = counts as extern "C" fn(libc::c_int) as usize;
    // SAFETY: of this process, and its handler does nothing that a handler may not.
    let set = unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) };
    assert_eq!(set, 0);
    // SAFETY: no more than a number.
    let own = unsafe { libc::pthread_self() };
    let (before, is_over) = (COUNTED.load(Ordering::Relaxed), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(2));
                // SAFETY: that thread ends after this one.
                unsafe { libc::pthread_kill(own, libc::SIGUSR1) };
            }
        });
        let done = does();
        is_over.store(true, Ordering::Relaxed);
        (done, COUNTED.load(Ordering::Relaxed) - before)
    })
}

#[test]
fn a_signal_makes_nothing_readable_or_writable() {
    const LIMIT: Duration = Duration::from_millis(300);
    let (ring, _peer) = pair();
    let (socket, _other) = UnixStream::pair().unwrap();
    for mut a in [ring, Circuit::by_socket(socket.into())] {
        let begun = Instant::now();
        let (is, signals) = among_signals(|| a.wait_readable(Some(LIMIT)).unwrap());
        assert!(!is && begun.elapsed() >= LIMIT && signals > 0, "{signals}");
        a.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut a, &[0; 10_000]).is_ok() {}
        let begun = Instant::now();
        let (is, signals) = among_signals(|| a.wait_writable(Some(LIMIT)).unwrap());
        assert!(!is && begun.elapsed() >= LIMIT && signals > 0, "{signals}");
    }
}

#[test]
fn a_signal_ends_no_wait() {
    const ALL: usize = 1 << 20;
    let (a, mut b) = UnixStream::pair().unwrap();
    let mut a = Circuit::by_socket(a.into());
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        let mut came = vec![0; ALL];
        b.read_exact(&mut came).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        std::io::Write::write_all(&mut b, b"y").unwrap();
        (came, b)
    });
    let (went, signals) = among_signals(|| {
        let mut room = a.reserve(ALL).unwrap();
        room.fill(ALL, |at, bytes| {
            bytes.copy_from_slice(&numbered(at, bytes.len()))
        });
        room.commit(ALL).unwrap()
    });
    assert!(went == ALL && signals > 0);
    // For as long as can be said, and longer than the kernel can count.
    let (is, _) = among_signals(|| a.wait_readable(Some(Duration::MAX)).unwrap());
    assert!(is);
    assert_eq!(a.read(&mut [0; 9]).unwrap(), 1);
    let (came, _b) = other.join().unwrap();
    assert!(came == numbered(0, ALL));
}
