//! Page tables of circuits' data that nobody uses any more, given back. What a long burst went by keeps a page of the
//! page table in each program, 4 KiB, also once the memory behind it is gone; only the program itself can give it back
//! (`madvise`, Linux 6.14), so this is done as it is about to wait for something. A circuit that is used again has its
//! page again.
//!
//! No lock, for the library that programs load comes here in signal handlers and in children of fork(2), and what is
//! mapped may go while it is looked at: who looks at one says so, and then it is that one who takes away what goes meanwhile.
#![expect(unsafe_code, reason = "giving back by address")]

use rustix::mm::Advice;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What one page of the page table knows, and where such begin: the data of a circuit.
const SPAN: usize = 2 << 20;
/// Circuits that are known; who comes when all are there keeps its page.
const PLACES: usize = 8192;
/// Looked at so often, milliseconds: what was not used between two looks goes.
const LOOKS: u64 = 1000;
/// At a time no more are given back, and again after so long: who waits for something does not wait for that.
const MOST: usize = 64;
const PAUSE: u64 = 4;

/// In the low bits of an address that has none: nothing has been used since it was given back.
const CLEAN: usize = 1;
/// It has been, since the last look.
const USED: usize = 2;
/// It was before.
const AGED: usize = 3;
/// It is being given back.
const GIVEN: usize = 4;
/// As that, and has gone meanwhile: who gives it back unmaps it.
const GONE: usize = 5;
const STATES: usize = 7;

static ALL: Places<PLACES> = Places::new();

/// Circuits' data, by their addresses and states; 0: free.
struct Places<const N: usize> {
    places: [AtomicUsize; N],
    /// Before it all are taken, as far as is known; behind the other none was.
    first: AtomicUsize,
    last: AtomicUsize,
    /// Where the look that is under way goes on, and when.
    next: AtomicUsize,
    due: AtomicU64,
}

/// Where a circuit's data are known, if they are.
#[derive(Clone, Copy)]
pub(crate) struct Place(Option<&'static AtomicUsize>);

impl Place {
    /// The data are about to be used.
    #[inline]
    pub(crate) fn uses(self) {
        if let Some(place) = self.0 {
            let is = place.load(Ordering::Relaxed);
            if is & STATES != USED {
                mark(place, is);
            }
        }
    }

    /// What is mapped at an address is about to go; `false`: it is unmapped by who gives it back just now.
    pub(crate) fn leaves(self, base: usize) -> bool {
        self.0.is_none_or(|place| ALL.leaves(place, base))
    }
}

#[cold]
fn mark(place: &AtomicUsize, is: usize) {
    // One that is being given back just now keeps its page until it is used the next time.
    if matches!(is & STATES, CLEAN | AGED) {
        let used = is & !STATES | USED;
        let _ = place.compare_exchange(is, used, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Data that were mapped so are known from now on, if one page of the page table is all that they have.
pub(crate) fn enter(base: usize, len: usize) -> Place {
    match len == SPAN && base.is_multiple_of(SPAN) {
        true => Place(ALL.enter(base)),
        false => Place(None),
    }
}

/// This program is about to wait for something, or has time otherwise: what circuits have of page tables that were not
/// used for a second or two is given back. Looks at the clock, and does no more most of the time.
pub fn give_back_tables() {
    ALL.give_back(now());
}

/// Milliseconds, by the C library's clock: rustix's looks for the kernel's itself, in memory that valgrind has hidden.
fn now() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: one that may be written. It cannot fail: the clock is there since Linux 2.6.32.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
}

fn give(base: usize) {
    let at = with_exposed_provenance_mut(base);
    // SAFETY: it stays mapped, for who takes it away meanwhile leaves that to us; it is memory of a file, whose bytes
    // stay as they are and are mapped again as somebody touches them. Where the kernel refuses it nothing has changed.
    let _ = unsafe { rustix::mm::madvise(at, SPAN, Advice::LinuxDontNeed) };
}

impl<const N: usize> Places<N> {
    const fn new() -> Places<N> {
        Places {
            places: [const { AtomicUsize::new(0) }; N],
            first: AtomicUsize::new(0),
            last: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            due: AtomicU64::new(0),
        }
    }

    fn enter(&self, base: usize) -> Option<&AtomicUsize> {
        let first = self.first.load(Ordering::Relaxed);
        // Where none is free behind it, all are looked at: it is a hint.
        for from in [first, 0] {
            for (at, place) in self.places.iter().enumerate().skip(from) {
                let is_free = place.load(Ordering::Relaxed) == 0;
                let (order, else_order) = (Ordering::AcqRel, Ordering::Relaxed);
                if is_free
                    && place
                        .compare_exchange(0, base | CLEAN, order, else_order)
                        .is_ok()
                {
                    self.first.store(at + 1, Ordering::Relaxed);
                    self.last.fetch_max(at + 1, Ordering::Relaxed);
                    return Some(place);
                }
            }
        }
        None
    }

    fn leaves(&self, place: &AtomicUsize, base: usize) -> bool {
        let mut is = place.load(Ordering::Acquire);
        // Bound: the few states that it goes through meanwhile.
        while is & !STATES == base {
            let new = match is & STATES {
                GIVEN => base | GONE,
                _ => 0,
            };
            match place.compare_exchange(is, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) if new != 0 => return false,
                Ok(_) => {
                    self.is_free(place);
                    return true;
                }
                Err(now) => is = now,
            }
        }
        // Another process's.
        true
    }

    fn is_free(&self, place: &AtomicUsize) {
        let from = std::ptr::from_ref(place).addr() - self.places.as_ptr().addr();
        self.first
            .fetch_min(from / size_of::<AtomicUsize>(), Ordering::Relaxed);
    }

    /// `now`: milliseconds. Who comes while another looks does not.
    fn give_back(&self, now: u64) {
        let due = self.due.load(Ordering::Relaxed);
        let (order, again) = (Ordering::AcqRel, now + LOOKS);
        if now < due
            || self
                .due
                .compare_exchange(due, again, order, Ordering::Relaxed)
                .is_err()
        {
            return;
        }
        let (from, last) = (
            self.next.load(Ordering::Relaxed),
            self.last.load(Ordering::Relaxed),
        );
        let mut given = 0;
        for (at, place) in self.places.iter().enumerate().take(last).skip(from) {
            if given == MOST {
                self.next.store(at, Ordering::Relaxed);
                self.due.store(now + PAUSE, Ordering::Release);
                return;
            }
            given += usize::from(self.looks(place, give));
        }
        self.next.store(0, Ordering::Relaxed);
    }

    /// Whether it was given back, by `give`.
    fn looks(&self, place: &AtomicUsize, give: impl FnOnce(usize)) -> bool {
        let is = place.load(Ordering::Relaxed);
        let (base, state) = (is & !STATES, is & STATES);
        let goes = |from, to| {
            let done = place.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
            done.is_ok()
        };
        match state {
            USED => {
                goes(is, base | AGED);
                false
            }
            AGED if goes(is, base | GIVEN) => {
                give(base);
                if !goes(base | GIVEN, base | CLEAN) {
                    // SAFETY: whose it was has gone, and left it to us.
                    let _ = unsafe { rustix::mm::munmap(with_exposed_provenance_mut(base), SPAN) };
                    place.store(0, Ordering::Release);
                    self.is_free(place);
                }
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{circuit_ends, circuit_file};
    use ring::{ConsumerMemory, ProducerMemory};
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap_anonymous, msync, munmap};
    use std::ptr::null_mut;
    use stream::{CAPACITY, Side};

    /// KiB of page tables that this process has.
    fn tables() -> usize {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmPTE:"));
        let number = line.unwrap().split_whitespace().next().unwrap();
        number.parse().unwrap()
    }

    /// Memory of the size of a circuit's data, at such an address, all of it touched.
    fn memory() -> usize {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE;
        // SAFETY: a new mapping, of which what lies before and behind goes.
        unsafe {
            let at = mmap_anonymous(null_mut(), 2 * SPAN, access, flags).unwrap();
            let base = at.addr().next_multiple_of(SPAN);
            for page in (0..SPAN).step_by(4096) {
                at.with_addr(base + page).cast::<u8>().write_volatile(7);
            }
            let end = at.addr() + 2 * SPAN;
            if base > at.addr() {
                munmap(at, base - at.addr()).unwrap();
            }
            if base + SPAN < end {
                munmap(at.with_addr(base + SPAN), end - base - SPAN).unwrap();
            }
            at.with_addr(base).expose_provenance()
        }
    }

    fn is_mapped(base: usize) -> bool {
        // SAFETY: it is looked at alone.
        unsafe { msync(with_exposed_provenance_mut(base), SPAN, MsyncFlags::ASYNC) }.is_ok()
    }

    fn unmap(base: usize) {
        // SAFETY: the tests' own.
        unsafe { munmap(with_exposed_provenance_mut(base), SPAN) }.unwrap();
    }

    #[test]
    fn what_was_not_used_for_two_looks_is_given_back_and_its_bytes_stay() {
        let is_known = {
            let before = tables();
            let all = [(); 100].map(|()| memory());
            let most = tables();
            all.iter().for_each(|at| give(*at));
            let after = tables();
            all.into_iter().for_each(unmap);
            most > before + 300 && after + 300 < most
        };
        let one = |n: usize| {
            let file = circuit_file(CAPACITY).unwrap();
            let (writer, _, _) = circuit_ends(&file, CAPACITY, Side::Began).unwrap();
            let (_, reader, _) = circuit_ends(&file, CAPACITY, Side::Accepted).unwrap();
            writer.write(0, &vec![n as u8; CAPACITY]);
            (file, writer, reader)
        };
        let all: Vec<_> = (0..100).map(one).collect();
        let read = |which: &[usize]| {
            for &n in which {
                let mut out = vec![0; CAPACITY];
                all[n].2.read(0, &mut out);
                assert!(out.iter().all(|byte| *byte == n as u8), "{n}");
            }
        };
        let every: Vec<usize> = (0..100).collect();
        read(&every);
        let most = tables();
        // Nothing is given back of what was used since the last look.
        let mut now = 10 * LOOKS;
        let mut look = || {
            now += LOOKS;
            for part in 0..20 {
                ALL.give_back(now + part * PAUSE);
            }
        };
        look();
        let after = tables();
        assert!(after + 100 > most, "{after} of {most}");
        read(&[3]);
        look();
        look();
        if is_known {
            let after = tables();
            assert!(after + 600 < most, "{after} of {most}");
        } else {
            println!("this kernel keeps page tables: Linux 6.14 gives them back");
        }
        read(&every);
        let again = tables();
        assert!(again > most / 2, "{again} of {most}");
    }

    #[test]
    fn what_goes_while_it_is_given_back_goes_then() {
        let places = Places::<2>::new();
        let base = memory();
        let place = places.enter(base).unwrap();
        mark(place, place.load(Ordering::Relaxed));
        assert!(!places.looks(place, |_| panic!("it was used")));
        assert!(places.looks(place, |at| {
            assert_eq!(at, base);
            assert!(!places.leaves(place, base));
            assert!(is_mapped(base));
            // Nobody else has its place meanwhile.
            assert!(!std::ptr::eq(places.enter(SPAN).unwrap(), place));
            assert!(places.enter(2 * SPAN).is_none());
        }));
        assert!(!is_mapped(base));
        assert!(std::ptr::eq(places.enter(3 * SPAN).unwrap(), place));
        assert!(places.leaves(place, 3 * SPAN));
    }

    #[test]
    fn what_is_used_stays_and_what_is_used_while_it_is_given_back_goes_the_next_time() {
        let places = Places::<1>::new();
        let place = places.enter(SPAN).unwrap();
        let is = || place.load(Ordering::Relaxed);
        let never = |_| panic!("it is used");
        for _ in 0..3 {
            mark(place, is());
            assert!(!places.looks(place, never));
            mark(place, is());
            assert_eq!(is(), SPAN | USED);
        }
        assert!(!places.looks(place, never));
        assert!(places.looks(place, |_| mark(place, is())));
        assert!(!places.looks(place, never));
        mark(place, is());
        assert!(!places.looks(place, never));
        let mut given = false;
        assert!(places.looks(place, |_| given = true) && given);
        assert!(places.leaves(place, SPAN));
    }

    #[test]
    fn many_are_given_back_by_and_by() {
        const ALL: usize = 3 * MOST;
        let places = Places::<ALL>::new();
        for n in 1..=ALL {
            let place = places.enter(n * SPAN).unwrap();
            place.store((n * SPAN) | AGED, Ordering::Relaxed);
        }
        let left = || {
            let aged = |it: &&AtomicUsize| it.load(Ordering::Relaxed) & STATES == AGED;
            places.places.iter().filter(aged).count()
        };
        // What is nobody's memory: the kernel refuses it.
        places.give_back(LOOKS);
        assert_eq!(left(), 2 * MOST);
        places.give_back(LOOKS + PAUSE - 1);
        assert_eq!(left(), 2 * MOST);
        places.give_back(LOOKS + PAUSE);
        places.give_back(LOOKS + 2 * PAUSE);
        assert_eq!(left(), 0);
    }

    /// Circuits come and go while another thread looks: what is mapped where they were is nobody else's to give back.
    #[test]
    fn memory_of_others_at_the_same_addresses_keeps_its_bytes() {
        let places = Places::<64>::new();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    for place in &places.places {
                        places.looks(place, give);
                    }
                }
            });
            let (mut again, mut left, mut all) = (0, 0, 0);
            let mut last = 0;
            // On busy processors the other is seldom where it is met.
            let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
            let is_late = || std::time::Instant::now() > until;
            while all < 500 || ((again == 0 || left == 0) && !is_late()) {
                all += 1;
                let circuit = memory();
                let place = places.enter(circuit).unwrap();
                mark(place, place.load(Ordering::Relaxed));
                // Just as the other comes to it for the second time.
                while matches!(place.load(Ordering::Relaxed) & STATES, USED | AGED) {
                    std::hint::spin_loop();
                }
                match places.leaves(place, circuit) {
                    true => unmap(circuit),
                    false => left += 1,
                }
                let others = memory();
                again += usize::from(others == circuit || others == last);
                last = circuit;
                for page in (0..SPAN).step_by(4096) {
                    let at = with_exposed_provenance_mut::<u8>(others + page);
                    // SAFETY: mapped above.
                    assert_eq!(unsafe { at.read_volatile() }, 7);
                }
                unmap(others);
            }
            over.store(true, Ordering::Relaxed);
            println!("{again} of {all} at the same address, {left} went as they were given back");
            assert!(again > 0 && left > 0);
        });
    }
}
