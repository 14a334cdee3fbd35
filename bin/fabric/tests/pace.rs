//! How long it stays awake without work, and which system calls it makes: in CPU time
//! of its own, and as the kernel counts them (by strace).

mod host;

use command::verbs::{WAIT_ADAPTIVE, WAIT_SLEEP};
use host::*;
use ring::Doorbell;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;
use telemetry::counters::ProcessWord;
use wire::RawOffload;

/// CPU time that a process has had, ns; exact while it sleeps.
fn cpu(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// What it costs to be woken by one frame and to fall asleep again, ns: medians, taken
/// in turn, so that what else the machine does is the same for all.
fn wakes(waiting: [(u32, u32, u32); 3]) -> [u64; 3] {
    let mut fabrics = waiting.map(|waiting| (Host::that_waits(waiting), Vec::new()));
    for n in 0..300 {
        for ((host, two, three), costs) in &mut fabrics {
            let asleep = || {
                until("it sleeps", || host.process(ProcessWord::Asleep) == 1);
                // It says so just before.
                std::thread::sleep(Duration::from_millis(1));
                cpu(host.fabric.pid)
            };
            let before = asleep();
            two.send(7, &frame(mac(3), mac(2), n, 60));
            assert_eq!(number(&three.receive(LONG).expect("woken").2), n);
            costs.push(asleep() - before);
        }
    }
    fabrics.map(|(_, mut costs): (_, Vec<u64>)| {
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

/// Calls and how many of them failed, by name, while something is done.
fn traced(pid: u32, work: impl FnOnce()) -> BTreeMap<String, (u64, u64)> {
    let strace = Command::new("strace")
        .args(["-c", "-U", "name,calls,errors", "-p", &pid.to_string()])
        .stderr(Stdio::piped())
        .spawn()
        .expect("strace: `tools/setup test` installs it");
    until("strace attaches", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        !status.contains("TracerPid:\t0\n")
    });
    work();
    kill_process(Pid::from_child(&strace), Signal::INT).unwrap();
    let output = strace.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let rows = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?.to_owned();
        let calls = words.next()?.parse().ok()?;
        let errors = words.next().map_or(Some(0), |n| n.parse().ok())?;
        (name != "total").then_some((name, (calls, errors)))
    });
    rows.collect()
}

fn all(calls: &BTreeMap<String, (u64, u64)>, named: &str) -> u64 {
    let named = calls.iter().filter(|(name, _)| name.starts_with(named));
    named.map(|(_, (calls, _))| calls).sum()
}

#[test]
fn a_frame_between_channels_costs_no_system_call() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: tracing a confined process needs root");
        return;
    }
    let (host, mut two, mut three) = Host::usual();
    let sent = frame(mac(3), mac(2), 1, 100);
    let mut of = |burst: u64| {
        let calls = traced(host.fabric.pid, || {
            for _ in 0..20 {
                for _ in 0..burst {
                    let ring = &mut two.channel.tx.ring;
                    ring.push(7, &RawOffload::default(), &sent, &[]).unwrap();
                }
                if two.channel.tx.ring.publish() == Doorbell::Ring {
                    two.channel.tx.bell.ring().unwrap();
                }
                (0..burst).for_each(|_| assert!(three.receive(LONG).is_some()));
                two.poll();
            }
        });
        println!("bursts of {burst}: {calls:?}");
        all(&calls, "")
    };
    let (small, large) = (of(50), of(1000));
    assert!(small > 0, "it was traced");
    // 19,000 frames more; a look at what else came each 20 us while there is work.
    assert!(large < small + 20 * 100, "{small} calls, then {large}");
    assert_eq!(host.process(ProcessWord::FrameSyscalls), 0);
}

#[test]
fn a_frame_on_an_uplink_costs_one_system_call() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: tracing a confined process needs root");
        return;
    }
    let (mut host, _two, _three) = Host::usual();
    let (wire, mut one) = (host.uplink(), host.switch(1));
    let router = [2, 9, 9, 9, 9, 9];
    // Both are plugged in once a frame has crossed.
    one.send(5, &frame(router, mac(1), 0, 200));
    assert!(wire.receive(LONG).is_some());
    let ours = || host.process(ProcessWord::FrameSyscalls);
    // That first one is counted once its batch is over.
    until("it sleeps", || host.process(ProcessWord::Asleep) == 1);
    let before = ours();
    let calls = traced(host.fabric.pid, || {
        for n in 0..500 {
            one.send(5, &frame(router, mac(1), n, 200));
            assert_eq!(wire.receive(LONG).map(|f| number(&f)), Some(n));
            wire.send(&frame(mac(1), router, n, 200));
            assert_eq!(one.receive(LONG).map(|(_, _, f)| number(&f)), Some(n));
        }
        until("it sleeps", || host.process(ProcessWord::Asleep) == 1);
    });
    println!("{calls:?}, ours {}", ours() - before);
    let of = |name: &str| calls.get(name).copied().unwrap_or_default();
    let ((reads, empty), (writes, refused)) = (of("recvmsg"), of("sendmsg"));
    assert_eq!((writes, refused), (500, 0));
    assert_eq!(reads - empty, 500);
    // A batch ends with a read that finds nothing, and begins with a wake.
    assert!(empty <= all(&calls, "epoll"), "{empty} reads too many");
    assert_eq!(ours() - before, reads + writes, "ours is the kernel's");
}
