//! How long a processor that sleeps takes to wake for another: what waits for an answer waits
//! for that too.

use confine::{Feature, Found};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

/// There and back so often: the median is of as many.
const TRIPS: usize = 101;
/// Nobody answers who has not after so long.
const LONGEST: Duration = Duration::from_secs(1);
/// Beyond that a set-up of a circuit is more waiting than work.
const DEAR: Duration = Duration::from_micros(20);
/// For how long an idle guest of KVM polls before it has its host wake it; absent where
/// nothing of that kind is done.
const POLLS: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";

/// The line of `doctor`, of this process's first two processors.
pub fn wakes() -> Feature {
    let (found, detail) = seen(measured(), fs::read_to_string(POLLS).ok().as_deref());
    Feature {
        name: "wake-ups across processors",
        kernel: "",
        used_by: "each answer to a program on another processor: a circuit's set-up, a packet to who sleeps",
        found,
        detail,
        lost: "what waits for an answer waits longer, and processors idle meanwhile; a guest of KVM polls before it sleeps \
             where guest_halt_poll_ns of the module haltpoll is 200000, a host by idle states that are left in less",
        required: false,
    }
}

fn seen(took: Option<Duration>, polls: Option<&str>) -> (Found, String) {
    let Some(took) = took else {
        return (
            Found::Yes,
            "not measured: it takes two processors that answer".into(),
        );
    };
    let found = match took < DEAR {
        true => Found::Yes,
        false => Found::Partly,
    };
    let polls = polls.map_or(String::new(), |ns| {
        format!("; guest_halt_poll_ns is {}", ns.trim())
    });
    (found, format!("{} us{polls}", took.as_micros()))
}

/// The median way of a byte to a thread on the other processor, which sleeps: half of there
/// and back. `None` where there is one processor, it cannot be chosen, or is somebody's alone.
fn measured() -> Option<Duration> {
    let may = sched_getaffinity(None).ok()?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| may.is_set(*core));
    let (near, far) = (cores.next()?, cores.next()?);
    let (mut own, mut other) = UnixStream::pair().ok()?;
    // A processor may be another's alone.
    own.set_read_timeout(Some(LONGEST)).ok()?;
    other.set_read_timeout(Some(LONGEST)).ok()?;
    let answers = thread::spawn(move || -> Option<()> {
        only(far)?;
        let mut byte = [0];
        // Bound: until the other end is closed.
        while other.read(&mut byte).ok()? > 0 {
            other.write_all(&byte).ok()?;
        }
        Some(())
    });
    // By a thread of its own: this one goes on wherever it ran.
    let asks = thread::spawn(move || -> Option<Duration> {
        only(near)?;
        let mut took = Vec::with_capacity(TRIPS);
        for _ in 0..TRIPS {
            let began = Instant::now();
            own.write_all(&[0]).ok()?;
            own.read_exact(&mut [0]).ok()?;
            took.push(began.elapsed());
        }
        took.sort_unstable();
        took.get(TRIPS / 2).map(|trip| *trip / 2)
    });
    let took = asks.join().ok()?;
    answers.join().ok()??;
    took
}

/// Has this thread run on that processor alone.
fn only(core: usize) -> Option<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dear_wake_up_is_weaker_and_says_by_what_it_is_set() {
        let of = |us| Some(Duration::from_micros(us));
        assert_eq!(seen(of(4), None), (Found::Yes, "4 us".into()));
        let dear = (Found::Partly, "40 us; guest_halt_poll_ns is 0".into());
        assert_eq!(seen(of(40), Some("0\n")), dear);
        assert_eq!(seen(None, Some("0\n")).0, Found::Yes);
        // The real thing: on two processors it is seen, and takes some time.
        let processors = sched_getaffinity(None).unwrap().count();
        let took = measured();
        assert_eq!(took.is_some(), processors > 1, "{took:?}");
        assert!(took.is_none_or(|took| took > Duration::ZERO));
    }
}
