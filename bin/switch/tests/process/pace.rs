//! How long it stays awake without work, in CPU time of its own.

use crate::rig::{PATIENCE, Rig};
use crate::{PLAIN, frame, receive, send, tables};
use command::verbs::{WAIT_ADAPTIVE, WAIT_SLEEP};
use rustix::process::Pid;
use std::time::{Duration, Instant};
use telemetry::counters::ProcessWord;

/// CPU time that a process has had, ns; exact while it sleeps.
fn cpu(pid: Pid) -> u64 {
    let path = format!("/proc/{}/schedstat", pid.as_raw_nonzero());
    let text = std::fs::read_to_string(&path).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// What it costs to be woken by one frame and to fall asleep again, ns: medians, taken
/// in turn, so that what else the machine does is the same for all.
fn wakes(waiting: [(u32, u32, u32); 3]) -> [u64; 3] {
    let mut switches = waiting.map(|waiting| {
        let rig = Rig::that_waits(waiting);
        rig.plug(0);
        rig.install(&tables(), 1);
        let guests = (rig.guest(1), rig.guest(2));
        (rig, guests, Vec::new())
    });
    let sent = frame(1, 2, b"wake up");
    for _ in 0..300 {
        for (rig, (one, two), costs) in &mut switches {
            let asleep = || {
                let end = Instant::now() + PATIENCE;
                while rig.words().load(ProcessWord::Asleep as usize) == 0 {
                    assert!(Instant::now() < end, "it never sleeps");
                    std::thread::sleep(Duration::from_micros(100));
                }
                // It says so just before.
                std::thread::sleep(Duration::from_millis(1));
                cpu(rig.pid)
            };
            let before = asleep();
            send(one, &PLAIN, &sent);
            receive(two);
            costs.push(asleep() - before);
        }
    }
    switches.map(|(_, _, mut costs): (Rig, _, Vec<u64>)| {
        costs.sort_unstable();
        costs[costs.len() / 2]
    })
}

#[test]
fn on_shared_cores_it_does_not_spin_as_long_as_it_is_told() {
    let [at_once, shared, own] = wakes([
        (WAIT_SLEEP, 0, 1),
        (WAIT_ADAPTIVE, 1_000, 1),
        (WAIT_ADAPTIVE, 2_000, 0),
    ]);
    println!("CPU time a wake, ns: asleep at once {at_once}, shared {shared}, own core {own}");
    // How much of its 2 ms a busy machine lets it have is another matter.
    assert!(own > at_once + 100_000, "a spin shows");
    // It was told half of what the one with a core of its own is. How much a wake costs by itself
    // differs from one process to the next by tens of us on a busy machine.
    let (spun, all) = (shared.saturating_sub(at_once), own - at_once);
    assert!(spun < all / 4, "it spun for longer");
}
