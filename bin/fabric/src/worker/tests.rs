//! The loop itself, in this process: no turn of it allocates.

use super::*;
use allocation_counter::measure;
use command::message::Body;
use command::verbs::{
    AddPort, PORT_CHANNEL, PORT_PACKET, PortClosed, START_FRESH, UseImage, WAIT_POLL,
};
use fabric::BATCH;
use image::FabricTables;
use image::fabric::*;
use ring::Geometry;
use shm::{CountersPage, Pair, Recorder, Start};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;
use telemetry::drops::DropReason;
use wire::RawOffload;
use wire::offload::{GSO_TCPV4, MAX_FRAME, NEEDS_CSUM};

const SLOTS: u32 = 16;
const UPLINK: u32 = 9;
const ROUTER: [u8; 6] = [2, 9, 9, 9, 9, 9];
const EVERYBODY: [u8; 6] = [255; 6];

fn mac(slot: u32) -> [u8; 6] {
    [2, 0, 0, 0, 1, slot as u8]
}

/// 1 has an uplink (tag 5), 2 and 3 an agreement (tag 7); from outside all of 1 to 3
/// hear broadcasts.
fn tables() -> FabricTables {
    let channel = |id, kind, slot| Channel {
        id,
        kind,
        slot,
        weight: 1,
        ..Channel::default()
    };
    let entry = |ingress, tag, mac, target, out_tag, kind| Forward {
        ingress,
        tag,
        mac,
        target,
        out_tag,
        kind,
    };
    let mut template = Template {
        egress: UPLINK,
        tag: 5,
        len: 14,
        ..Template::default()
    };
    template.mask[6..12].fill(255);
    template.value[6..12].copy_from_slice(&mac(1));
    let member = |slot| GroupMember {
        slot,
        out_tag: 5,
        reserved: 0,
    };
    FabricTables {
        channels: vec![
            channel(1, CHANNEL_COMPARTMENT, 1),
            channel(2, CHANNEL_COMPARTMENT, 2),
            channel(3, CHANNEL_COMPARTMENT, 3),
            channel(0, CHANNEL_UPLINK, UPLINK),
        ],
        forwards: vec![
            entry(2, 7, mac(3), 3, 7, FORWARD_UNICAST),
            entry(3, 7, mac(2), 2, 7, FORWARD_UNICAST),
            entry(1, 5, [0; 6], UPLINK, 0, FORWARD_UNICAST),
            entry(UPLINK, 0, mac(1), 1, 5, FORWARD_UNICAST),
            entry(UPLINK, 0, EVERYBODY, 0, 0, FORWARD_GROUP),
        ],
        groups: vec![vec![member(1), member(2), member(3)]],
        templates: vec![(0, template)],
    }
}

fn frame(to: [u8; 6], from: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = vec![0xab; len];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame
}

/// A worker and the far ends of all that is plugged into it.
struct Bench {
    worker: Worker,
    supervisor: Socket,
    pairs: Vec<Pair>,
    ends: Vec<shm::Channel>,
    wire: UnixDatagram,
    scratch: Vec<u8>,
}

fn geometry() -> Geometry {
    Geometry::records(1 << 19, Geometry::max_record_for(MAX_FRAME)).unwrap()
}

impl Bench {
    fn new() -> Bench {
        // Mutant builds look for the guard's name once.
        guard::stands("");
        let (supervisor, control) = Socket::pair().unwrap();
        let bytes = telemetry::counters::bytes_for(SLOTS as usize);
        let counters = shm::memory_file("counters", bytes).unwrap();
        let recorder = shm::memory_file("recorder", telemetry::recorder::BYTES).unwrap();
        let tally = Tally::new(
            CountersPage::open(counters, SLOTS as usize).unwrap(),
            Recorder::open(recorder).unwrap(),
        );
        let attach = Attach {
            slots: SLOTS,
            // With a period every turn of a test ends by itself.
            wait: WAIT_POLL,
            wait_us: 1,
            shared_cores: 1,
            start: START_FRESH,
            ..Attach::default()
        };
        let (inside, wire) = UnixDatagram::pair().unwrap();
        let mut bench = Bench {
            worker: Worker::new(control, &attach, tally).unwrap(),
            supervisor,
            pairs: Vec::new(),
            ends: Vec::new(),
            wire,
            scratch: vec![0; MAX_FRAME + 16],
        };
        for end in [&inside, &bench.wire] {
            end.set_nonblocking(true).unwrap();
        }
        for slot in 1..=3 {
            let pair = Pair::create(&geometry()).unwrap();
            let body = AddPort {
                slot,
                kind: PORT_CHANNEL,
                capacity: geometry().capacity() as u32,
                max_record: geometry().max_record() as u32,
                version: ring::VERSION,
                mtu: 9000,
                ..AddPort::default()
            };
            bench.tell(&body, &pair.end_b().unwrap().as_fds());
            let end = shm::attach(pair.end_a().unwrap(), &geometry(), Start::Fresh).unwrap();
            bench.ends.push(end);
            bench.pairs.push(pair);
        }
        let body = AddPort {
            slot: UPLINK,
            kind: PORT_PACKET,
            mtu: 1500,
            ..AddPort::default()
        };
        bench.tell(&body, &[inside.as_fd()]);
        bench.swap(&tables(), 1);
        bench
    }

    fn swap(&mut self, tables: &FabricTables, epoch: u64) {
        let bytes = tables.finish().unwrap();
        let digest = image::digest(&bytes).unwrap().0;
        let image = SealedImage::create("image", &bytes).unwrap();
        self.tell(&UseImage { epoch, digest }, &[image.as_fd()]);
    }

    fn tell<B: Body>(&mut self, body: &B, fds: &[BorrowedFd<'_>]) {
        self.supervisor.send(&Message::new(0, body), fds).unwrap();
        self.worker.receive(now()).unwrap();
    }

    fn send(&mut self, slot: u32, tag: u16, offload: &RawOffload, frame: &[u8]) -> bool {
        if slot == UPLINK {
            return self.wire.send(&[&[0; 10], frame].concat()).is_ok();
        }
        let end = &mut self.ends[slot as usize - 1];
        end.tx.ring.poll().unwrap();
        let pushed = end.tx.ring.push(tag, offload, frame, &[]).is_ok();
        if end.tx.ring.publish() == ring::Doorbell::Ring {
            end.tx.bell.ring().unwrap();
        }
        pushed
    }

    fn drain(&mut self) -> u64 {
        let mut taken = 0;
        for end in &mut self.ends {
            while end.rx.ring.next().unwrap().is_some() {
                taken += 1;
            }
            end.rx.ring.release();
            let _ = end.rx.ring.arm().unwrap();
        }
        while self.wire.recv(&mut self.scratch).is_ok() {
            taken += 1;
        }
        taken
    }

    /// What so many turns of the loop allocated or freed.
    fn turns(&mut self, n: usize) -> u64 {
        let seen = measure(|| {
            for _ in 0..n {
                assert!(self.worker.turn().unwrap());
            }
        });
        seen.count_total + seen.count_current.unsigned_abs()
    }

    fn drops(&self, slot: u32, reason: DropReason) -> u64 {
        let word = telemetry::counters::drop_word(slot as usize, reason);
        self.worker.tally.counters.words().load(word)
    }

    fn hears<B: Body>(&self) -> Option<B> {
        while let Ok(Some((message, _))) = self.supervisor.recv() {
            if let Some(body) = message.body() {
                return Some(body);
            }
        }
        None
    }
}

#[test]
fn no_turn_of_the_loop_allocates() {
    let mut bench = Bench::new();
    // Right after an image nobody is told on.
    std::thread::sleep(Duration::from_millis(1_100));
    let plain = RawOffload::default();
    let gso = RawOffload {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
    };
    let stream = [
        (2, 7, plain, frame(mac(3), mac(2), 1500)),
        (3, 7, gso, frame(mac(2), mac(3), 60_000)),
        (1, 5, plain, frame(ROUTER, mac(1), 1500)),
        (1, 5, gso, frame(ROUTER, mac(1), 60_000)),
        (UPLINK, 0, plain, frame(mac(1), ROUTER, 1500)),
        (UPLINK, 0, plain, frame(EVERYBODY, ROUTER, 60)),
        // Refused: no entry, another's source (which is told on), absurd offloads, a stub.
        (2, 8, plain, frame(mac(3), mac(2), 60)),
        (1, 5, plain, frame(ROUTER, mac(2), 60)),
        (2, 7, gso, frame(mac(3), mac(2), 40)),
        (2, 7, plain, vec![0; 9]),
        (UPLINK, 0, plain, frame(mac(2), ROUTER, 60)),
    ];
    let mut taken = 0;
    for round in 0..50 {
        for (slot, tag, offload, frame) in &stream {
            assert!(bench.send(*slot, *tag, offload, frame));
            let len = frame.len();
            assert_eq!(bench.turns(3), 0, "round {round}: {len} bytes from {slot}");
            taken += bench.drain();
        }
    }
    assert_eq!(taken, 50 * (5 + 3));
    for (slot, reason) in [
        (2, DropReason::FabricNoEntry),
        (1, DropReason::FabricSource),
        (2, DropReason::BadOffload),
        (2, DropReason::Malformed),
        (UPLINK, DropReason::FabricNoEntry),
    ] {
        assert_eq!(bench.drops(slot, reason), 50, "{slot} {reason:?}");
    }
    assert!(bench.hears::<Report>().is_some(), "it was told on");
}

#[test]
fn receivers_that_are_full_or_lie_cost_no_memory() {
    let mut bench = Bench::new();
    let plain = RawOffload::default();
    // Nobody reads at 3, until not even a small frame fits.
    for len in [9000, 60] {
        let before = bench.drops(2, DropReason::QueueFull);
        for _ in 0..200 {
            bench.send(2, 7, &plain, &frame(mac(3), mac(2), len));
            assert_eq!(bench.turns(2), 0);
        }
        std::thread::sleep(Duration::from_micros(200));
        assert_eq!(bench.turns(4), 0);
        assert!(bench.drops(2, DropReason::QueueFull) > before);
    }
    // It alleges that it has read what was never written, and a batch is for it.
    let before = bench.drops(2, DropReason::PortClosed);
    for _ in 0..BATCH {
        assert!(bench.send(2, 7, &plain, &frame(mac(3), mac(2), 60)));
    }
    let consumer = bench.pairs[2].end_a().unwrap().rx.consumer;
    let lie = 0xdead_beef_0000u64.to_le_bytes();
    rustix::io::pwrite(&consumer, &lie, 0).unwrap();
    assert_eq!(bench.turns(2), 0);
    let closed: PortClosed = bench.hears().expect("it is closed");
    assert_eq!(closed.slot, 3);
    // More of that batch than there are slots to be noted.
    assert!(bench.drops(2, DropReason::PortClosed) - before > u64::from(SLOTS));
}

#[test]
fn a_slot_that_is_given_again_counts_from_nothing() {
    let mut bench = Bench::new();
    let plain = RawOffload::default();
    for (slot, to) in [(2, 3), (3, 2)] {
        assert!(bench.send(slot, 7, &plain, &frame(mac(to), mac(slot), 60)));
        assert!(bench.send(slot, 8, &plain, &frame(mac(to), mac(slot), 60)));
        bench.turns(3);
    }
    let counted = |bench: &Bench, slot: usize| {
        let word = telemetry::counters::counter_word(slot, Counter::RxFrames);
        let received = bench.worker.tally.counters.words().load(word);
        (
            received,
            bench.drops(slot as u32, DropReason::FabricNoEntry),
        )
    };
    assert_eq!((counted(&bench, 2), counted(&bench, 3)), ((2, 1), (2, 1)));
    let mut without = tables();
    without.channels.retain(|c| c.slot != 3);
    without.forwards.retain(|f| f.tag != 7);
    without.groups = vec![vec![GroupMember {
        slot: 1,
        out_tag: 5,
        reserved: 0,
    }]];
    bench.swap(&without, 2);
    // Read still by whoever accounts for it.
    assert_eq!(counted(&bench, 3), (2, 1));
    bench.swap(&tables(), 3);
    assert_eq!((counted(&bench, 2), counted(&bench, 3)), ((2, 1), (0, 0)));
}
