//! The loop itself, in this process: no turn of it allocates.

use super::*;
use crate::attached::SPARE_BUFFERS;
use allocation_counter::measure;
use command::verbs::{START_FRESH, WAIT_SLEEP};
use image::CompartmentTables;
use image::compartment::*;
use shm::{Channel, Direction, Pair};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;
use telemetry::counters::Counter;
use wire::offload::{GSO_TCPV4, MAX_FRAME, NEEDS_CSUM, RawOffload};
use wire::{MacAddress, arp, build, ethernet, ipv4};

const SLOTS: u32 = 12;
/// Channels are in the slots before, taps from here on.
const TAPS: u32 = 5;
const MTU: u16 = 9000;
const GATEWAY: [u8; 6] = [2, 9, 9, 9, 9, 9];

fn mac(slot: u32) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, slot as u8])
}

fn v4(slot: u32) -> [u8; 4] {
    [10, 1, 1, 10 + slot as u8]
}

fn tables() -> CompartmentTables {
    let endpoint = |slot: u32| Endpoint {
        id: 100 + slot,
        slot,
        mac: mac(slot).0,
        mtu: MTU,
        min_gso: 536,
        // One that must be given finished frames.
        features: if slot == 2 { 0 } else { FEATURE_ALL },
        dhcp4: v4(slot),
        ..Endpoint::default()
    };
    CompartmentTables {
        tenants: vec![Tenant {
            id: 1,
            ..Tenant::default()
        }],
        subnets: vec![Subnet {
            id: 1,
            prefix4: [10, 1, 1, 0],
            prefix4_len: 24,
            gateway4: [10, 1, 1, 1],
            gateway_mac: GATEWAY,
            mtu: MTU,
            ..Subnet::default()
        }],
        endpoints: (1..SLOTS).map(endpoint).collect(),
        addresses: (1..SLOTS)
            .map(|slot| (slot - 1, wire::address::mapped(v4(slot))))
            .collect(),
        members: (1..SLOTS).map(|slot| (0, slot - 1)).collect(),
        ..CompartmentTables::default()
    }
}

fn udp(from: u32, to: MacAddress, address: [u8; 4], payload: usize) -> Vec<u8> {
    let mut buffer = vec![0; 66_000];
    let link = ethernet::Header::new(to, mac(from), ethernet::IPV4);
    let header = ipv4::Header::new(v4(from), address, 17);
    let ports = (1000, 2000);
    let n = build::udp4(&mut buffer, &link, &header, ports, |_| Ok(payload)).unwrap();
    buffer.truncate(n);
    buffer
}

fn tcp(from: u32, to: u32) -> Vec<u8> {
    let mut buffer = vec![0; 66_000];
    let link = ethernet::Header::new(mac(to), mac(from), ethernet::IPV4);
    let header = ipv4::Header::new(v4(from), v4(to), 6);
    let n = build::ipv4(&mut buffer, &link, &header, |segment| {
        segment[12..14].copy_from_slice(&[0x50, 0x18]);
        Ok(30_020)
    })
    .unwrap();
    buffer.truncate(n);
    buffer
}

fn who_has(from: u32) -> Vec<u8> {
    let mut buffer = vec![0; 64];
    let link = ethernet::Header::new(MacAddress::BROADCAST, mac(from), ethernet::ARP);
    let message = arp::Message {
        operation: arp::Operation::Request,
        sender_mac: mac(from),
        sender: v4(from),
        target_mac: MacAddress::ZERO,
        target: [10, 1, 1, 1],
    };
    let n = build::arp(&mut buffer, &link, &message).unwrap();
    buffer.truncate(n);
    buffer
}

const PLAIN: RawOffload = RawOffload {
    flags: 0,
    gso_type: 0,
    gso_size: 0,
    csum_start: 0,
    csum_offset: 0,
};
const GSO: RawOffload = RawOffload {
    flags: NEEDS_CSUM,
    gso_type: GSO_TCPV4,
    gso_size: 1448,
    csum_start: 34,
    csum_offset: 16,
};

/// A worker and the far ends of all that is plugged into it.
struct Bench {
    worker: Worker,
    supervisor: Socket,
    channels: Vec<Channel>,
    taps: Vec<UnixDatagram>,
    geometry: Geometry,
    scratch: Vec<u8>,
}

impl Bench {
    fn new() -> Bench {
        // Mutant builds look for the guard's name once.
        guard::stands("");
        let (supervisor, control) = Socket::pair().unwrap();
        let mut bench = Bench {
            worker: Worker::new(control).unwrap(),
            supervisor,
            channels: Vec::new(),
            taps: Vec::new(),
            geometry: Geometry::records(1 << 19, Geometry::max_record_for(MAX_FRAME)).unwrap(),
            scratch: vec![0; MAX_FRAME + 16],
        };
        let bytes = telemetry::counters::bytes_for(SLOTS as usize);
        let counters = shm::memory_file("counters", bytes).unwrap();
        let recorder = shm::memory_file("recorder", telemetry::recorder::BYTES).unwrap();
        let attach = Attach {
            slots: SLOTS,
            wait: WAIT_SLEEP,
            shared_cores: 1,
            start: START_FRESH,
            ..Attach::default()
        };
        bench.tell(&attach, &[counters.as_fd(), recorder.as_fd()]);
        for slot in 1..SLOTS {
            bench.plug(slot);
        }
        bench.run(1, tables());
        bench
    }

    fn tell<B: Body>(&mut self, body: &B, fds: &[std::os::fd::BorrowedFd<'_>]) {
        self.supervisor.send(&Message::new(0, body), fds).unwrap();
        self.worker.hear();
    }

    fn run(&mut self, epoch: u64, tables: CompartmentTables) {
        let bytes = tables.finish().unwrap();
        let digest = image::digest(&bytes).unwrap().0;
        let image = SealedImage::create("image", &bytes).unwrap();
        self.tell(&UseImage { epoch, digest }, &[image.as_fd()]);
    }

    fn plug(&mut self, slot: u32) {
        let body = AddPort {
            slot,
            kind: if slot < TAPS { PORT_CHANNEL } else { PORT_TAP },
            capacity: self.geometry.capacity() as u32,
            max_record: self.geometry.max_record() as u32,
            version: ring::VERSION,
            mtu: u32::from(MTU),
            ..AddPort::default()
        };
        if slot < TAPS {
            let pair = Pair::create(&self.geometry).unwrap();
            self.tell(&body, &pair.end_a().unwrap().as_fds());
            let end = shm::attach(pair.end_b().unwrap(), &self.geometry, Start::Fresh).unwrap();
            self.channels.push(end);
        } else {
            // A tap's descriptor gives and takes an offload header and a frame at once.
            let (inside, outside) = UnixDatagram::pair().unwrap();
            for end in [&inside, &outside] {
                end.set_nonblocking(true).unwrap();
            }
            self.tell(&body, &[inside.as_fd()]);
            self.taps.push(outside);
        }
    }

    /// Puts a frame before the worker. `false`: there is no room.
    fn send(&mut self, slot: u32, offload: &RawOffload, frame: &[u8]) -> bool {
        if slot >= TAPS {
            let header = [
                offload.flags,
                offload.gso_type,
                0,
                0,
                offload.gso_size as u8,
                (offload.gso_size >> 8) as u8,
                offload.csum_start as u8,
                0,
                offload.csum_offset as u8,
                0,
            ];
            let tap = &self.taps[(slot - TAPS) as usize];
            return tap.send(&[&header, frame].concat()).is_ok();
        }
        let channel = &mut self.channels[slot as usize - 1];
        channel.tx.ring.poll().unwrap();
        let pushed = channel.tx.ring.push(0, offload, frame, &[]).is_ok();
        if channel.tx.ring.publish() == shm::Doorbell::Ring {
            channel.tx.bell.ring().unwrap();
        }
        pushed
    }

    /// Takes all there is at the far ends but those of these slots.
    fn drain(&mut self, but: &[u32]) -> u64 {
        let mut taken = 0;
        for slot in (1..SLOTS).filter(|slot| !but.contains(slot)) {
            if let Some(tap) = slot.checked_sub(TAPS) {
                while self.taps[tap as usize].recv(&mut self.scratch).is_ok() {
                    taken += 1;
                }
            } else {
                let channel = &mut self.channels[slot as usize - 1];
                while channel.rx.ring.next().unwrap().is_some() {
                    taken += 1;
                }
                channel.rx.ring.release();
                let _ = channel.rx.ring.arm().unwrap();
            }
        }
        taken
    }

    /// Turns of the loop as `Worker::run` makes them, but for sleeping; what they
    /// allocated or freed.
    fn turns(&mut self, n: usize) -> u64 {
        let seen = measure(|| {
            for _ in 0..n {
                let attached = self.worker.attached.as_mut().unwrap();
                let patience = attached.turn();
                self.worker.tell_closed();
                if patience.is_some() {
                    self.worker.look(Some(0));
                }
            }
        });
        seen.count_total + seen.count_current.unsigned_abs()
    }

    fn counters(&self) -> &CountersPage {
        &self.worker.attached.as_ref().unwrap().telling.counters
    }

    fn drops(&self, slot: u32, reason: DropReason) -> u64 {
        let word = telemetry::counters::drop_word(slot as usize, reason);
        self.counters().words().load(word)
    }

    fn capture(&mut self) -> Direction {
        let mirror = Direction::create(&self.geometry).unwrap();
        let body = CaptureAsked {
            on: 1,
            drops_only: 0,
            of: 0,
            slot: u32::MAX,
            snap: 1000,
            capacity: self.geometry.capacity() as u32,
            max_record: self.geometry.max_record() as u32,
        };
        let end = mirror.producer_end().unwrap();
        self.tell(&body, &end.as_fds());
        assert!(self.worker.attached.as_ref().unwrap().capture.is_some());
        mirror
    }
}

/// From channels and from taps: to a channel, to a tap, to one that is given finished
/// frames, to all, to the gateway, to nobody, and what is refused.
fn stream() -> Vec<(u32, RawOffload, Vec<u8>)> {
    let mut frames = Vec::new();
    for from in [1, TAPS] {
        for to in [2, 3, TAPS + 1] {
            frames.push((from, PLAIN, udp(from, mac(to), v4(to), 1000)));
            frames.push((from, GSO, tcp(from, to)));
        }
        let everybody = MacAddress::BROADCAST;
        frames.push((from, PLAIN, udp(from, everybody, [10, 1, 1, 255], 10)));
        frames.push((from, PLAIN, who_has(from)));
        let lost = MacAddress([2, 1, 2, 3, 4, 5]);
        frames.push((from, PLAIN, udp(from, lost, v4(3), 10)));
        frames.push((from, PLAIN, udp(3, mac(2), v4(2), 10)));
        frames.push((from, GSO, udp(from, mac(3), v4(3), 10)));
        frames.push((from, PLAIN, vec![0xff; 40]));
        frames.push((from, PLAIN, vec![0; 3]));
    }
    frames
}

fn pass(bench: &mut Bench) -> u64 {
    let mut taken = 0;
    for _ in 0..50 {
        for (from, offload, frame) in stream() {
            assert!(bench.send(from, &offload, &frame), "from {from}");
            assert_eq!(bench.turns(3), 0, "from {from}: {} bytes", frame.len());
            taken += bench.drain(&[]);
        }
        // Idle: everything is armed, and rung again by the next.
        assert_eq!(bench.turns(40), 0, "idle");
    }
    taken
}

#[test]
fn no_turn_of_the_loop_allocates() {
    let mut bench = Bench::new();
    let plain = pass(&mut bench);
    // With a capture of everything, whether it is read or not.
    let _mirror = bench.capture();
    let captured = pass(&mut bench);
    assert_eq!(plain, captured);
    // To three, whole to two of them, in segments, to all others, and an answer.
    assert_eq!(plain, 50 * 2 * (3 + 2 + 21 + 10 + 1));
    let refused = [
        DropReason::UnknownMac,
        DropReason::SourceMac,
        DropReason::BadOffload,
        DropReason::Malformed,
    ];
    for slot in [1, TAPS] {
        for reason in refused {
            assert!(bench.drops(slot, reason) > 0, "{slot} {reason:?}");
        }
    }
    let sleeps = bench
        .counters()
        .process(telemetry::counters::ProcessWord::Doorbells);
    assert!(sleeps > 0, "it was never armed");
}

#[test]
fn receivers_that_are_full_cost_no_memory() {
    let mut bench = Bench::new();
    let (full, tap) = (3, SLOTS - 1);
    for round in 0..100 {
        // Nobody reads at `full`; every tap and a channel send there at once.
        for from in (TAPS..SLOTS).chain([1]) {
            for _ in 0..2 {
                bench.send(from, &PLAIN, &udp(from, mac(full), v4(full), 8000));
            }
        }
        assert_eq!(bench.turns(4), 0, "round {round}");
        bench.drain(&[full]);
        if round % 10 == 9 {
            std::thread::sleep(Duration::from_micros(100));
            assert_eq!(bench.turns(4), 0, "after {round}: patience is over");
        }
    }
    // Some waited in vain, one had no buffer to wait in.
    assert!(bench.drops(1, DropReason::QueueFull) > 0);
    assert!((TAPS..SLOTS).all(|slot| bench.drops(slot, DropReason::QueueFull) > 0));
    assert!(bench.worker.attached.as_ref().unwrap().spares.len() <= SPARE_BUFFERS);
    // Once it reads, all is as before.
    while bench.drain(&[]) > 0 {
        assert_eq!(bench.turns(4), 0);
    }
    std::thread::sleep(Duration::from_micros(100));
    assert_eq!(bench.turns(4), 0);
    bench.drain(&[]);
    assert_eq!(
        bench.worker.attached.as_ref().unwrap().spares.len(),
        SPARE_BUFFERS
    );
    let before = bench
        .counters()
        .words()
        .load(telemetry::counters::counter_word(
            full as usize,
            Counter::TxFrames,
        ));
    assert!(bench.send(tap, &PLAIN, &udp(tap, mac(full), v4(full), 8000)));
    assert_eq!(bench.turns(4), 0);
    let after = bench
        .counters()
        .words()
        .load(telemetry::counters::counter_word(
            full as usize,
            Counter::TxFrames,
        ));
    assert_eq!(after - before, 1);
}

/// Whose rate is raised, or taken away, goes on at once, however long he would have waited.
#[test]
fn who_waits_for_a_rate_that_is_raised_goes_on() {
    let with = |bytes| {
        let mut tables = tables();
        let first = &mut tables.endpoints[0];
        (first.rate_bytes, first.rate_burst) = (bytes, 1500);
        tables
    };
    for raised in [0, 1 << 27] {
        let mut bench = Bench::new();
        bench.run(2, with(100));
        let frame = udp(1, mac(2), v4(2), 8900);
        for _ in 0..5 {
            assert!(bench.send(1, &PLAIN, &frame));
        }
        bench.turns(20);
        assert!(bench.drain(&[]) < 5, "it waits some 75 s");
        bench.run(3, with(raised));
        bench.turns(20);
        assert!(bench.drain(&[]) > 0, "{raised}");
    }
}
