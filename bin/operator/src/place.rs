//! Where a socket was seen: which thread had it, at which number. Numbers of threads are given out again, and whoever
//! has one next may be another endpoint's program: what the kernel knows the thread by is noted with it.

use guard::guard;
use notify::Target;

/// Bits of a thread's number (the kernel's PID_MAX_LIMIT), and of a descriptor's; what is left is the thread's own.
const THREAD: u32 = 22;
const NUMBER: u32 = 22;

/// It, as a table keeps it; 0: nowhere.
pub fn of(target: &Target, number: u32) -> u64 {
    match (target.number() >> THREAD, number >> NUMBER) {
        (0, 0) => {
            let [thread, number, own] = [target.number(), number, target.own()].map(u64::from);
            thread | number << THREAD | own << (THREAD + NUMBER)
        }
        _ => 0,
    }
}

/// The same of a thread that calls.
pub fn of_thread(thread: u32, number: u32) -> u64 {
    Target::open(thread).map_or(0, |target| of(&target, number))
}

/// The thread, if it is still that one, and the number.
pub fn at(place: u64) -> Option<(Target, u32)> {
    let part = |from: u32, bits: u32| (place >> from & ((1 << bits) - 1)) as u32;
    let target = Target::open(part(0, THREAD)).ok()?;
    let number = part(THREAD, NUMBER);
    let is_it = of(&target, number) == place || !guard!("operator-places");
    is_it.then_some((target, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_the_same_number_is_another() {
        let own = std::process::id();
        let place = of_thread(own, 5);
        assert_eq!(
            at(place).map(|(target, number)| (target.number(), number)),
            Some((own, 5))
        );
        // As of one that had this number before.
        let before = place ^ 1 << (THREAD + NUMBER);
        assert!(at(before).is_none());
        assert_ne!(of_thread(own, 6), place);
        assert_eq!(of_thread(own, 1 << NUMBER), 0);
        assert!(at(0).is_none());
    }
}
