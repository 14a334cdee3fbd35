//! The real process, confined, between switches and a wire that the test plays.

mod host;

use command::verbs::{
    AddPort, NeedReplace, PortClosed, RemovePort, Report, Running, UseImage, closed_by,
};
use host::*;
use ring::{ProducerMemory, ProducerWord};
use rustix::io::Errno;
use shm::Pair;
use std::time::Duration;
use telemetry::counters::{Counter, ProcessWord};
use telemetry::drops::DropReason;
use wire::RawOffload;
use wire::offload::{GSO_TCPV4, NEEDS_CSUM};

const MOMENT: Duration = Duration::from_millis(50);

#[test]
fn frames_pass_by_their_entry_whole() {
    let (host, mut two, mut three) = Host::usual();
    for len in [60, 63, 64, 65, 1514, 9000] {
        let sent = frame(mac(3), mac(2), len as u64, len);
        two.send(7, &sent);
        let (tag, _, got) = three.receive(LONG).expect("a frame");
        assert_eq!((tag, &got), (7, &sent), "{len} bytes");
    }
    let offload = RawOffload {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
    };
    let sent = frame(mac(2), mac(3), 1, 65_000);
    three.send_with(7, &offload, &sent);
    let (_, got, bytes) = two.receive(LONG).expect("a GSO frame");
    assert_eq!((got, bytes.len()), (offload, sent.len()));
    assert_eq!(host.counter(3, Counter::RxSegments), 45);
    assert_eq!(host.counter(3, Counter::TxFrames), 6);
    assert_eq!(host.counter(2, Counter::TxGsoBytes), 65_000);
}

#[test]
fn an_idle_fabric_sleeps_and_wakes() {
    let (host, mut two, mut three) = Host::usual();
    for n in 0..5 {
        until("it sleeps", || host.process(ProcessWord::Asleep) == 1);
        two.send(7, &frame(mac(3), mac(2), n, 60));
        assert_eq!(number(&three.receive(LONG).expect("woken").2), n);
    }
    until("it sleeps", || host.process(ProcessWord::Asleep) == 1);
    let beats = host.process(ProcessWord::Heartbeat);
    std::thread::sleep(Duration::from_millis(300));
    let woken = host.process(ProcessWord::Heartbeat) - beats;
    assert!(
        woken <= 2,
        "asleep with nothing to do, it woke {woken} times"
    );
    assert_eq!(host.process(ProcessWord::Working), 0);
}

#[test]
fn nobody_is_reached_without_an_entry() {
    let (mut host, mut two, mut three) = Host::usual();
    let mut one = host.switch(1);
    for tag in [0, 5, 7] {
        for to in [mac(2), mac(3), [255; 6]] {
            one.send(tag, &frame(to, mac(2), 1, 60));
            two.send(tag + 1, &frame(to, mac(2), 1, 60));
        }
    }
    until("all are dropped", || {
        host.counter(1, Counter::RxFrames) == 9 && host.counter(2, Counter::RxFrames) == 9
    });
    assert_eq!(host.dropped(2, DropReason::FabricNoEntry), 9);
    assert!(two.receive(MOMENT).is_none() && three.receive(MOMENT).is_none());
}

#[test]
fn the_uplink_carries_only_its_own_words() {
    let (mut host, mut two, mut three) = Host::usual();
    let (wire, mut one) = (host.uplink(), host.switch(1));
    let out = frame([2, 9, 9, 9, 9, 9], mac(1), 4, 1000);
    one.send(5, &out);
    assert_eq!(wire.receive(LONG), Some(out));
    wire.send(&frame(mac(1), [2, 9, 9, 9, 9, 9], 5, 900));
    assert_eq!(
        one.receive(LONG)
            .map(|(tag, _, f)| (tag, number(&f), f.len())),
        Some((5, 5, 900))
    );
    // Nothing from outside reaches who has no entry for it.
    wire.send(&frame(mac(2), [2, 9, 9, 9, 9, 9], 6, 900));
    until("it is dropped", || {
        host.dropped(UPLINK, DropReason::FabricNoEntry) == 1
    });
    // Right after an image nobody is told on: two may overlap.
    one.send(5, &frame([2, 9, 9, 9, 9, 9], mac(2), 7, 200));
    until("it is dropped", || {
        host.dropped(1, DropReason::FabricSource) == 1
    });
    assert_eq!(host.counter(1, Counter::Reports), 0);
    std::thread::sleep(Duration::from_millis(1_100));
    for n in 0..50 {
        one.send(5, &frame([2, 9, 9, 9, 9, 9], mac(2), n, 200));
    }
    let report: Report = host.fabric.hears(LONG).expect("it is told on");
    assert_eq!(
        (report.slot, report.reason),
        (1, DropReason::FabricSource as u32)
    );
    assert_eq!(report.head[6..12], mac(2));
    until("all are dropped", || {
        host.dropped(1, DropReason::FabricSource) == 51
    });
    assert_eq!(host.counter(1, Counter::Reports), 1, "once a second");
    assert!(wire.receive(MOMENT).is_none());
    assert!(two.receive(MOMENT).is_none() && three.receive(MOMENT).is_none());
}

#[test]
fn a_killed_fabric_is_followed_by_another() {
    let (mut host, mut two, mut three) = Host::usual();
    let mut last = 0;
    for round in 0..4u64 {
        for n in 1..=200 {
            two.send(
                7,
                &frame(
                    mac(3),
                    mac(2),
                    round * 1000 + n,
                    60 + (n as usize * 37) % 1400,
                ),
            );
        }
        // Some are still under way.
        host.restart(&mut [&mut two, &mut three]);
        let mark = round * 1000 + 900;
        // Until one gets through: what was in flight may be lost, never mixed up.
        let mut tries = 0;
        loop {
            two.send(7, &frame(mac(3), mac(2), mark, 100));
            two.poll();
            while let Some((tag, _, got)) = three.receive(Duration::from_millis(2)) {
                let n = number(&got);
                assert!(
                    tag == 7 && got[..12] == frame(mac(3), mac(2), 0, 60)[..12],
                    "misread"
                );
                assert!(n > last || n == mark, "{n} after {last}");
                last = n;
            }
            if last == mark {
                break;
            }
            tries += 1;
            assert!(tries < 2_000, "nothing passes after the restart");
            host.mend(&mut [&mut two, &mut three]);
        }
    }
    assert!(host.fabric.is_alive());
}

#[test]
fn a_peer_that_never_echoes_is_replaced() {
    let (mut host, mut two, mut three) = Host::usual();
    host.pair(4);
    host.restart(&mut [&mut two, &mut three]);
    // Nobody is at the other end of slot 4; 2 and 3 answer.
    let start = std::time::Instant::now();
    while start.elapsed() < MOMENT {
        let _ = (two.receive(Duration::ZERO), three.receive(Duration::ZERO));
    }
    let asked: NeedReplace = host.fabric.hears(LONG).expect("it asks for another pair");
    assert_eq!(asked.slot, 4);
    two.send(7, &frame(mac(3), mac(2), 1, 60));
    assert!(three.receive(LONG).is_some());
}

#[test]
fn a_breach_closes_that_channel_alone() {
    let (mut host, mut two, mut three) = Host::usual();
    let one = host.switch(1);
    one.channel
        .tx
        .ring
        .memory()
        .store(ProducerWord::Published, 1 << 40);
    one.channel.tx.bell.ring().unwrap();
    let closed: PortClosed = host.fabric.hears(LONG).expect("it says so");
    assert_eq!(
        (closed.slot, closed.reason),
        (1, ring::Breach::Position as u32)
    );
    two.send(7, &frame(mac(3), mac(2), 1, 60));
    assert!(three.receive(LONG).is_some());
    // A fresh pair in the same slot works again.
    let (wire, mut one) = (host.uplink(), host.switch(1));
    one.send(5, &frame([2, 9, 9, 9, 9, 9], mac(1), 4, 100));
    assert!(wire.receive(LONG).is_some());
    assert!(host.fabric.is_alive());
}

#[test]
fn a_full_receiver_stops_its_sender_alone() {
    let (mut host, mut two, mut three) = Host::usual();
    let (wire, mut one) = (host.uplink(), host.switch(1));
    // 3 reads nothing: its ring fills, then 2's frames are dropped and counted.
    for n in 0..2_000 {
        two.send(7, &frame(mac(3), mac(2), n, 1400));
        if n % 20 == 0 {
            one.send(5, &frame([2, 9, 9, 9, 9, 9], mac(1), n, 100));
            assert_eq!(wire.receive(LONG).map(|f| number(&f)), Some(n));
        }
    }
    until("the rest is dropped", || {
        host.counter(2, Counter::RxFrames) == 2_000
    });
    let dropped = host.dropped(2, DropReason::QueueFull);
    let passed = host.counter(3, Counter::TxFrames);
    assert!(
        dropped > 0 && dropped + passed == 2_000,
        "{dropped} and {passed}"
    );
    for n in 0..passed {
        assert_eq!(number(&three.receive(LONG).expect("in order").2), n);
    }
}

#[test]
fn what_is_no_image_is_refused_and_the_old_one_stays() {
    let (mut host, mut two, mut three) = Host::usual();
    let bytes = tables().finish().unwrap();
    let digest = image::digest(&bytes).unwrap().0;
    assert_eq!(
        host.install_bytes(&bytes, [1; 32]),
        image::MapError::Digest.number()
    );
    let mut changed = bytes.clone();
    changed[100] ^= 1;
    assert_ne!(host.install_bytes(&changed, digest), 0);
    let open = shm::memory_file("image", 4096).unwrap();
    assert_eq!(host.install_fd(&open, digest), image::map::NOT_SEALED);
    assert_eq!(host.process(ProcessWord::Epoch), 1);
    two.send(7, &frame(mac(3), mac(2), 1, 60));
    assert!(three.receive(LONG).is_some());
    // And one without the entry takes it away, at once.
    let mut without = tables();
    without.forwards.remove(0);
    assert_eq!(host.install(&without), 0);
    two.send(7, &frame(mac(3), mac(2), 2, 60));
    until("no entry", || {
        host.dropped(2, DropReason::FabricNoEntry) == 1
    });
    assert!(three.receive(MOMENT).is_none());
}

#[test]
fn ports_are_refused_with_their_reason() {
    let host = Host::new();
    let system = |errno: Errno| closed_by(errno.raw_os_error());
    let usual = channel_body(1, 0);
    let version = ring::VERSION + 1;
    // Its header says another longest record.
    let max_record = usual.max_record - 16;
    for (body, reason) in [
        (AddPort { version, ..usual }, system(Errno::PROTONOSUPPORT)),
        (
            AddPort {
                max_record,
                ..usual
            },
            ring::Breach::HeaderPage as u32,
        ),
        (AddPort { kind: 9, ..usual }, system(Errno::INVAL)),
    ] {
        let pair = Pair::create(&geometry()).unwrap();
        host.fabric.tell(&body, &pair.end_b().unwrap().as_fds());
        let closed: PortClosed = host.fabric.hears(LONG).expect("a reason");
        assert_eq!(closed, PortClosed { slot: 1, reason });
    }
}

#[test]
fn what_is_said_while_nobody_listens_is_heard_later() {
    let host = Host::new();
    // What such a socket holds, and then some.
    let (one, _two) = seqpacket::Socket::pair().unwrap();
    let message = command::Message::new(0, &Running::default());
    let held = (0..)
        .take_while(|_| one.send(&message, &[]).is_ok())
        .count();
    let asked = held as u64 + 50;
    for epoch in 1..=asked {
        let body = UseImage {
            epoch,
            ..UseImage::default()
        };
        host.fabric.tell(&body, &[]);
    }
    for epoch in 1..=asked {
        let running: Running = host.fabric.hears(LONG).expect("every answer");
        let refused = image::map::NOT_SEALED;
        assert_eq!((running.epoch, running.refused), (epoch, refused));
    }
}

#[test]
fn an_unplugged_slot_gets_nothing() {
    let (host, mut two, mut three) = Host::usual();
    host.fabric.tell(&RemovePort { slot: 3 }, &[]);
    until("it is gone", || {
        two.send(7, &frame(mac(3), mac(2), 1, 60));
        host.dropped(2, DropReason::PortClosed) > 0
    });
    while three.receive(MOMENT).is_some() {}
    two.send(7, &frame(mac(3), mac(2), 1, 60));
    assert!(three.receive(MOMENT).is_none());
    assert!(host.fabric.is_alive());
}
