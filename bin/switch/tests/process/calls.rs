//! System calls, as the kernel counts them (by strace), beside our own count.

use crate::rig::Rig;
use crate::{PLAIN, frame, receive, tables, taps};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use telemetry::counters::{Counter, ProcessWord};
use telemetry::drops::DropReason;

/// Calls and how many of them failed, by name, while something is done.
fn traced(pid: Pid, work: impl FnOnce()) -> BTreeMap<String, (u64, u64)> {
    let number = pid.as_raw_nonzero();
    let strace = Command::new("strace")
        .args(["-c", "-U", "name,calls,errors", "-p", &number.to_string()])
        .stderr(Stdio::piped())
        .spawn()
        .expect("strace: `tools/setup test` installs it");
    let end = Instant::now() + Duration::from_secs(10);
    let status = format!("/proc/{number}/status");
    while std::fs::read_to_string(&status)
        .unwrap()
        .contains("TracerPid:\t0\n")
    {
        assert!(Instant::now() < end, "strace does not attach");
        std::thread::sleep(Duration::from_millis(1));
    }
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

#[test]
fn a_frame_on_a_channel_costs_no_system_call() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: tracing a confined process needs root");
        return;
    }
    let rig = Rig::with_channels();
    rig.install(&tables(), 1);
    let (mut one, mut two) = (rig.guest(1), rig.guest(2));
    let sent = frame(1, 2, &[7; 100]);
    let mut of = |burst: u64| {
        let calls = traced(rig.pid, || {
            for _ in 0..20 {
                for _ in 0..burst {
                    one.tx.ring.push(0, &PLAIN, &sent, &[]).unwrap();
                }
                if one.tx.ring.publish() == shm::Doorbell::Ring {
                    one.tx.bell.ring().unwrap();
                }
                (0..burst).for_each(|_| assert_eq!(receive(&mut two), sent));
                one.tx.ring.poll().unwrap();
            }
        });
        println!("bursts of {burst}: {calls:?}");
        calls.values().map(|(calls, _)| calls).sum::<u64>()
    };
    let (small, large) = (of(50), of(1000));
    assert!(small > 0, "it was traced");
    // 19,000 frames more; a look at what else came each eighth turn of 64 frames.
    assert!(large < small + 20 * 20, "{small} calls, then {large}");
    assert_eq!(rig.words().load(ProcessWord::FrameSyscalls as usize), 0);
}

#[test]
fn a_frame_on_a_tap_or_veth_costs_one_system_call() {
    one_call_a_frame(taps::Kind::Tap, ["readv", "writev"]);
    one_call_a_frame(taps::Kind::Veth, ["recvmsg", "sendmsg"]);
}

fn one_call_a_frame(kind: taps::Kind, [reading, writing]: [&str; 2]) {
    let Some((rig, one, _two)) = taps::pair_by(&taps::tables(), [kind; 2]) else {
        return;
    };
    one.must("ping -c 1 -W 5 10.1.2.10");
    let ours = || rig.words().load(ProcessWord::FrameSyscalls as usize);
    let frames = || {
        let both = [Counter::RxFrames, Counter::TxFrames];
        let of = |slot| {
            both.map(|counter| rig.count(slot, counter))
                .iter()
                .sum::<u64>()
        };
        of(1) + of(2)
    };
    // What a guest's kernel says by itself may be dropped where it is written, and is read
    // and counted on one side alone then.
    let drops = || -> u64 {
        let of = |slot| -> u64 { DropReason::ALL.iter().map(|r| rig.drops(slot, *r)).sum() };
        of(1) + of(2)
    };
    let dropped = drops();
    let before = (ours(), frames());
    let mut first = before;
    let mut last = before;
    let calls = traced(rig.pid, || {
        first = (ours(), frames());
        one.must("ping -q -c 500 -i 0.002 -W 5 10.1.2.10");
        last = (ours(), frames());
    });
    // A frame is counted at the end of its batch, in the middle of which the switch may have
    // lost its processor.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let after = (ours(), frames());
    println!(
        "{calls:?}, frames {}, ours {}",
        last.1 - first.1,
        last.0 - first.0
    );
    let of = |name: &str| calls.get(name).copied().unwrap_or_default();
    let ((reads, empty), (writes, refused)) = (of(reading), of(writing));
    let moved = reads - empty + writes - refused;
    // Whatever a guest's kernel says meanwhile is in one of them or the other.
    assert!(
        (last.0 - first.0..=after.0 - before.0).contains(&moved),
        "ours is the kernel's"
    );
    assert!(
        (last.1 - first.1..=after.1 - before.1 + drops() - dropped).contains(&moved),
        "one a frame: {} dropped",
        drops() - dropped
    );
    assert!(
        moved >= 2000,
        "500 pings and their answers, read and written"
    );
    // A batch ends with a read that finds nothing; a wake may start one at each tap.
    let waits: u64 = calls
        .iter()
        .filter(|(name, _)| name.starts_with("epoll"))
        .map(|(_, (calls, _))| calls)
        .sum();
    assert!(
        empty <= 2 * waits,
        "{empty} reads found nothing in {waits} wakes"
    );
}

#[test]
fn a_frame_that_its_port_refuses_is_given_to_it_once() {
    let Some((rig, one, two)) = taps::pair_by(&taps::tables(), [taps::Kind::Tap; 2]) else {
        return;
    };
    one.must("ping -c 1 -W 5 10.1.2.10");
    two.must("ip link set eth0 down");
    let counts = || {
        let calls = rig.words().load(ProcessWord::FrameSyscalls as usize);
        (calls, rig.count(1, Counter::RxFrames))
    };
    let before = counts();
    let flood = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/process/flood.py");
    one.must(&format!("python3 {flood} 10.1.2.10"));
    let (calls, frames) = (counts().0 - before.0, counts().1 - before.1);
    assert!(frames > 500, "{frames} frames of one flow");
    // Read once and written once; a neighbour's last words may be written back.
    assert!(
        calls <= 2 * frames + 20,
        "{calls} calls for {frames} frames"
    );
}
