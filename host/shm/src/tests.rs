//! What the memory itself promises: who can write it, cut it, or see it change.

use crate::*;
use ring::{Breach, Geometry, PAGE, PushError, State, StreamConsumer, StreamProducer};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use telemetry::counters::{self, Counter, ProcessWord};
use telemetry::drops::DropReason;
use telemetry::recorder::{self, Event};
use wire::offload::RawOffload;

const NONE: RawOffload = RawOffload {
    flags: 0,
    gso_type: 0,
    gso_size: 0,
    csum_start: 0,
    csum_offset: 0,
};

fn geometry() -> Geometry {
    Geometry::records(64 * 1024, 4096).expect("legal")
}

fn pair() -> (Pair, Channel, Channel) {
    let pair = Pair::create(&geometry()).expect("memory");
    let a = attach(pair.end_a().expect("fds"), &geometry(), Start::Fresh).expect("attaches");
    let b = attach(pair.end_b().expect("fds"), &geometry(), Start::Fresh).expect("attaches");
    (pair, a, b)
}

fn send(tx: &mut Sender, bytes: &[u8]) {
    tx.ring.push(1, &NONE, bytes, &[]).expect("room");
    if tx.ring.publish() == Doorbell::Ring {
        tx.bell.ring().expect("peer is there");
    }
}

fn receive(rx: &mut Receiver) -> Result<Option<Vec<u8>>, Breach> {
    let frame = rx.ring.next()?.map(|record| {
        let mut out = vec![0; record.len()];
        record.copy(0, &mut out);
        out
    });
    rx.ring.release();
    Ok(frame)
}

#[test]
fn a_channel_carries_both_ways_and_wakes() {
    let (_pair, mut a, mut b) = pair();
    assert_eq!(b.rx.ring.arm(), Ok(true));
    send(&mut a.tx, b"ping");
    assert_eq!(b.rx.bell.drain().expect("open"), 1);
    b.rx.ring.rung(1).expect("owed");
    assert_eq!(receive(&mut b.rx), Ok(Some(b"ping".to_vec())));
    send(&mut b.tx, b"pong");
    assert_eq!(receive(&mut a.rx), Ok(Some(b"pong".to_vec())));
    for n in 0..1000usize {
        let bytes: Vec<u8> = (0..n * 3 % 4000).map(|i| (i + n) as u8).collect();
        send(&mut a.tx, &bytes);
        let record = b.rx.ring.next().expect("honest").expect("there");
        b.tx.ring.forward(2, &NONE, &[], &record, 0).expect("room");
        b.rx.ring.release();
        let _ = b.tx.ring.publish();
        assert_eq!(receive(&mut a.rx), Ok(Some(bytes)));
    }
}

#[test]
fn every_small_length_is_copied_exactly() {
    let (_pair, mut a, mut b) = pair();
    for len in 0..300usize {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        send(&mut a.tx, &bytes);
        let record = b.rx.ring.next().expect("honest").expect("there");
        let mut out = [0xee; 320];
        assert_eq!(record.copy(0, &mut out[..len]), len);
        assert_eq!(&out[..len], &bytes[..]);
        assert!(out[len..].iter().all(|b| *b == 0xee));
        b.tx.ring
            .forward(0, &NONE, b"h", &record, len / 3)
            .expect("room");
        let _ = b.tx.ring.publish();
        b.rx.ring.release();
        let back = receive(&mut a.rx).expect("honest").expect("there");
        assert_eq!(&back[1..], &bytes[len / 3..]);
    }
}

/// By whichever way this processor copies much at once.
#[test]
fn much_is_copied_exactly_wherever_it_lies() {
    use ::stream::Side;
    use ring::{ConsumerMemory, ProducerMemory};
    let file = circuit_file(1 << 20).unwrap();
    let (writer, _, _) = circuit_ends(&file, 1 << 20, Side::Began).unwrap();
    let (_, reader, _) = circuit_ends(&file, 1 << 20, Side::Accepted).unwrap();
    let byte = |n: usize| (n * 31 + n / 251) as u8;
    let shows = |at: usize, len: usize| {
        let mut out = vec![0; len + 2];
        reader.read(at - 1, &mut out);
        let (edge, rest) = out.split_first().unwrap();
        let (last, bytes) = rest.split_last().unwrap();
        assert_eq!((*edge, *last), (0xee, 0xee), "{at} {len}");
        assert!((0..len).all(|n| bytes[n] == byte(n)), "{at} {len}");
    };
    for at in [1, 64, 5000, 61_440, 70_001, 131_072, 1_000_003, 1_046_000] {
        for len in [2047, 2048, 4095, 4096, 5001, 16_384, 40_001] {
            writer.write(at - 1, &vec![0xee; len + 2]);
            let bytes: Vec<u8> = (0..len).map(byte).collect();
            writer.write(at, &bytes);
            shows(at, len);
            // The same, made where it lies.
            let lines = len / LINE;
            writer.write(at - 1, &vec![0xee; len + 2]);
            let line = |n: usize| core::array::from_fn(|at| byte(n * LINE + at));
            assert!(writer.write_lines(at, lines, line));
            shows(at, lines * LINE);
        }
    }
}

/// Each is memory of the kernel's, and a process may have so many.
#[test]
fn a_circuits_side_is_three_mappings_and_two_more_where_something_runs_over_the_end() {
    use ::stream::Side;
    let file = circuit_file(1 << 20).unwrap();
    let inode = format!(" {} ", rustix::fs::fstat(&file).unwrap().st_ino);
    let mappings = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.contains(&inode)).count()
    };
    let (writer, own, _) = circuit_ends(&file, 1 << 20, Side::Began).unwrap();
    assert_eq!(mappings(), 3);
    let (other, reader, _) = circuit_ends(&file, 1 << 20, Side::Accepted).unwrap();
    assert_eq!(mappings(), 6);
    let (at, lines) = ((1 << 20) - 3 * LINE, 7);
    assert_eq!(writer.reach(at, lines * LINE), lines * LINE);
    assert!(writer.write_lines(at, lines, |n| [n as u8 + 1; LINE]));
    assert_eq!(mappings(), 8);
    let mut seen = Vec::new();
    assert!(reader.read_lines(at, lines, |line| seen.push(line)));
    assert_eq!(seen, [1, 2, 3, 4, 5, 6, 7].map(|n| [n; LINE]));
    assert_eq!(mappings(), 10);
    assert_eq!(reader.place(at, 2 << 20), None, "more than there is");
    assert_eq!(reader.reach(at, 2 << 20), 3 * LINE, "what lies in a row");
    drop((writer, own, other, reader));
    assert_eq!(mappings(), 0);
}

#[test]
fn either_side_restarts_on_the_same_memory() {
    let (pair, mut a, mut b) = pair();
    send(&mut a.tx, b"lost");
    send(&mut b.tx, b"lost too");
    drop(b);
    let start = Start::Resume {
        generation: 0x1234_5678,
        now: 5,
    };
    let mut b = attach(pair.end_b().expect("fds"), &geometry(), start).expect("attaches");
    assert_eq!(a.rx.bell.drain().expect("open"), 1, "the successor rings");
    a.rx.ring.rung(1).expect("forgiven");
    assert_eq!(a.rx.ring.poll(), Ok(State::AwaitingPeer));
    assert_eq!(a.tx.ring.poll(), Ok(State::Running));
    assert_eq!(b.tx.ring.poll(), Ok(State::Running));
    assert_eq!(b.rx.ring.poll(), Ok(State::Running));
    send(&mut a.tx, b"to b");
    send(&mut b.tx, b"to a");
    assert_eq!(receive(&mut b.rx), Ok(Some(b"to b".to_vec())));
    assert_eq!(receive(&mut a.rx), Ok(Some(b"to a".to_vec())));
    assert_eq!(a.rx.ring.take_lost().records, 1);
}

#[test]
fn a_stream_runs_over_the_end_of_its_memory() {
    use ::stream::Side;
    let file = circuit_file(PAGE).expect("memory");
    let (writer, _, geometry) = circuit_ends(&file, PAGE, Side::Began).expect("maps");
    let (_, reader, _) = circuit_ends(&file, PAGE, Side::Accepted).expect("maps");
    let mut tx = StreamProducer::fresh(writer, &geometry);
    let mut rx = StreamConsumer::fresh(reader, &geometry);
    let mut next = (0u8, 0u8);
    for _ in 0..20 {
        let bytes: Vec<u8> = (0..3000).map(|i| next.0.wrapping_add(i as u8)).collect();
        let n = tx.write(&bytes).expect("honest");
        next.0 = next.0.wrapping_add(n as u8);
        let _ = tx.publish();
        let mut out = [0; 2900];
        let n = rx.read(&mut out).expect("honest");
        for byte in &out[..n] {
            assert_eq!(*byte, next.1);
            next.1 = next.1.wrapping_add(1);
        }
        let _ = rx.release();
    }
}

fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<(), Errno> {
    let path = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).map(|_| ())
}

#[test]
fn the_far_end_cannot_write_what_it_reads() {
    let direction = Direction::create(&geometry()).expect("memory");
    let consumer = direction.consumer_end().expect("fds");
    let producer = direction.producer_end().expect("fds");
    for fd in [consumer.data.as_fd(), producer.consumer.as_fd()] {
        assert_eq!(rustix::io::pwrite(fd, b"x", 0), Err(Errno::BADF));
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(
            rustix::fs::fallocate(fd, hole, 0, PAGE as u64),
            Err(Errno::BADF)
        );
        assert!(Words::map(fd, PAGE).is_err(), "no writable mapping");
    }
}

#[test]
fn another_user_cannot_reopen_a_read_only_end() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: cannot become another user; this test showed nothing");
        return;
    }
    let direction = Direction::create(&geometry()).expect("memory");
    let consumer = direction.consumer_end().expect("fds");
    let data = consumer.data.as_fd();
    std::thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            let nobody = rustix::process::Uid::from_raw(65_534);
            // This thread's credentials only.
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may");
            reopen(data, OFlags::RDWR)
        });
        assert_eq!(stranger.join().expect("runs"), Err(Errno::ACCESS));
    });
    // The same with the mode a memfd is born with: it would succeed.
    rustix::fs::fchmod(direction.as_fds()[0], Mode::from_raw_mode(0o666)).expect("ours");
    std::thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            let nobody = rustix::process::Uid::from_raw(65_534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may");
            reopen(data, OFlags::RDWR)
        });
        assert_eq!(
            stranger.join().expect("runs"),
            Ok(()),
            "the test sees what it looks for"
        );
    });
}

#[test]
fn a_ring_cannot_be_cut_grown_sealed_or_executed() {
    let direction = Direction::create(&geometry()).expect("memory");
    let [data, consumer, ..] = direction.as_fds();
    for fd in [data, consumer] {
        assert_eq!(rustix::fs::ftruncate(fd, 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(fd, 1 << 30), Err(Errno::PERM));
        let more = rustix::fs::SealFlags::WRITE;
        assert_eq!(rustix::fs::fcntl_add_seals(fd, more), Err(Errno::PERM));
        assert_eq!(
            rustix::fs::fchmod(fd, Mode::from_raw_mode(0o700)),
            Err(Errno::PERM)
        );
    }
}

#[test]
fn a_hole_punched_by_the_producer_is_a_breach_and_no_fault() {
    let (pair, mut a, mut b) = pair();
    send(&mut a.tx, b"x");
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let data = pair.a_to_b.as_fds()[0];
    rustix::fs::fallocate(data, hole, ring::DATA_AT as u64, PAGE as u64).expect("its own file");
    assert_eq!(receive(&mut b.rx), Err(Breach::Kind));
    // Its own page gone too: the position goes back to zero.
    let (pair, mut a, mut b) = self::pair();
    send(&mut a.tx, b"x");
    receive(&mut b.rx).expect("honest").expect("there");
    let data = pair.a_to_b.as_fds()[0];
    rustix::fs::fallocate(data, hole, 0, 2 * PAGE as u64).expect("its own file");
    assert_eq!(receive(&mut b.rx), Err(Breach::Position));
}

#[test]
fn memory_that_is_discarded_is_zero_to_who_has_it_mapped_and_is_no_fault() {
    let (pair, mut a, mut b) = pair();
    send(&mut a.tx, b"x");
    let held = Words::map(pair.a_to_b.as_fds()[0], 2 * PAGE).expect("the producer's own");
    pair.a_to_b.discard().expect("its descriptors");
    for file in &pair.a_to_b.as_fds()[..2] {
        assert_eq!(rustix::fs::fstat(file).expect("open").st_blocks, 0);
    }
    assert!((0..2 * PAGE / 8).all(|word| held.load(word) == 0));
    // Nor for the honest end, if it still looks.
    let _ = receive(&mut b.rx);
}

#[test]
fn a_peer_that_scribbles_by_its_own_mapping_closes_its_channel_only() {
    let (pair, mut a, mut b) = pair();
    let page = Words::map(pair.b_to_a.as_fds()[0], 2 * PAGE).expect("the producer's own");
    page.store(PAGE / 8, 123_456_789);
    assert_eq!(receive(&mut a.rx), Err(Breach::Unaligned));
    let page = Words::map(pair.a_to_b.as_fds()[1], PAGE).expect("the consumer's own");
    page.store(0, 1 << 40);
    assert_eq!(a.tx.ring.poll(), Err(Breach::Position));
    let late = a.tx.ring.push(0, &NONE, b"x", &[]);
    assert_eq!(late, Err(PushError::Breach(Breach::Position)));
    assert_eq!(b.rx.ring.poll(), Ok(State::Running));
}

#[test]
fn memory_that_can_shrink_is_not_attached() {
    let direction = Direction::create(&geometry()).expect("memory");
    let unsealed = crate::file::create("unsealed").expect("memfd");
    rustix::fs::ftruncate(&unsealed, geometry().data_file_bytes() as u64).expect("sized");
    let header = rustix::io::pwrite(&unsealed, &header_bytes(), 0).expect("writes");
    assert_eq!(header, 32);
    let fds = ConsumerFds {
        data: unsealed,
        ..direction.consumer_end().expect("fds")
    };
    let attached = attach_consumer(fds, &geometry(), Start::Fresh);
    assert!(matches!(attached.map(|_| ()), Err(AttachError::Shape)));
}

fn header_bytes() -> Vec<u8> {
    geometry()
        .header_words()
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect()
}

#[test]
fn a_header_page_that_disagrees_is_not_attached() {
    let direction = Direction::create(&geometry()).expect("memory");
    let other = Geometry::records(32 * 1024, 4096).expect("legal");
    let attached = attach_consumer(direction.consumer_end().expect("fds"), &other, Start::Fresh);
    assert!(matches!(attached.map(|_| ()), Err(AttachError::Header)));
    let attached = attach_producer(direction.producer_end().expect("fds"), &other, Start::Fresh);
    assert!(matches!(attached.map(|_| ()), Err(AttachError::Header)));
    let larger = Geometry::records(128 * 1024, 4096).expect("legal");
    let attached = attach_consumer(
        direction.consumer_end().expect("fds"),
        &larger,
        Start::Fresh,
    );
    assert!(matches!(attached.map(|_| ()), Err(AttachError::Shape)));
}

#[test]
fn a_full_doorbell_does_not_block_and_a_closed_one_is_told() {
    let (pair, a, b) = pair();
    for _ in 0..100_000 {
        a.tx.bell.ring().expect("full is not an error");
    }
    assert!(b.rx.bell.drain().expect("open") > 0);
    // One that died with blocking descriptors does not leave them to its successor.
    rustix::fs::fcntl_setfl(&b.rx.bell, OFlags::empty()).expect("ours");
    let again = pair.end_b().expect("fds");
    let flags = rustix::fs::fcntl_getfl(&again.rx.bell).expect("open");
    assert!(flags.contains(OFlags::NONBLOCK));
    drop((again, b, pair));
    let err = a.tx.bell.ring().expect_err("nobody reads");
    assert_eq!(err.kind(), std::io::ErrorKind::BrokenPipe);
    assert!(a.rx.bell.drain().is_err());
}

#[test]
fn a_pool_makes_pairs_ahead_and_on_demand() {
    let mut pool = Pool::new(geometry(), 2);
    assert!(!pool.refill(1).expect("memory"));
    assert!(pool.refill(5).expect("memory"));
    assert_eq!(pool.ready(), 2);
    for _ in 0..3 {
        let pair = pool.take().expect("memory");
        attach(pair.end_a().expect("fds"), pool.geometry(), Start::Fresh).expect("attaches");
    }
    assert_eq!(pool.ready(), 0);
}

#[test]
fn an_image_is_accepted_only_when_nobody_can_write_it() {
    let fd = SealedImage::create("image", b"tables").expect("memory");
    let image = SealedImage::map(&fd).expect("sealed");
    assert_eq!(image.as_slice(), b"tables");
    assert_eq!(rustix::io::pwrite(&fd, b"x", 0), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(&fd, 0), Err(Errno::PERM));
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(
        rustix::fs::fallocate(&fd, hole, 0, PAGE as u64),
        Err(Errno::PERM)
    );
    assert!(Words::map(&fd, 6).is_err());
    let (read, _write) = crate::bell::pipe().expect("pipe");
    assert!(matches!(
        SealedImage::map(&read).map(|_| ()),
        Err(SealError::NotSealed)
    ));
    let empty = SealedImage::create("image", b"").expect("memory");
    assert!(matches!(
        SealedImage::map(&empty).map(|_| ()),
        Err(SealError::Empty)
    ));
}

#[test]
fn an_unsealed_image_is_refused() {
    let fd = memory_file("not sealed against writing", PAGE).expect("memory");
    assert!(matches!(
        SealedImage::map(&fd).map(|_| ()),
        Err(SealError::NotSealed)
    ));
}

#[test]
fn several_workers_count_in_one_page_and_lose_nothing() {
    const EACH: u64 = 300_000;
    let fd = memory_file("counters", counters::bytes_for(4)).expect("memory");
    for round in 1..=3 {
        std::thread::scope(|scope| {
            for worker in 0..2 {
                let page = CountersPage::open(&fd, 4).expect("maps").of_worker(worker);
                assert!(page.is_shared());
                scope.spawn(move || {
                    page.set_own(ProcessWord::Heartbeat, 7 + worker as u64);
                    for _ in 0..EACH {
                        page.count(2, Counter::RxFrames, 1);
                        page.dropped(2, DropReason::QueueFull, 1);
                    }
                });
            }
        });
        let peer = PeerWords::map(&fd).expect("maps");
        let all = 2 * EACH * round;
        assert_eq!(peer.load(counters::counter_word(2, Counter::RxFrames)), all);
        let dropped = counters::drop_word(2, DropReason::QueueFull);
        assert_eq!(peer.load(dropped), all);
        for worker in 0..2 {
            let own = counters::worker_word(worker, ProcessWord::Heartbeat as usize);
            assert_eq!(peer.load(own), 7 + worker as u64);
        }
        assert_eq!(peer.load(ProcessWord::Heartbeat as usize), 0);
    }
}

#[test]
fn several_workers_record_each_event_in_a_place_of_its_own() {
    let fd = memory_file("recorder", telemetry::recorder::BYTES).expect("memory");
    std::thread::scope(|scope| {
        for worker in 0..2u64 {
            let mut recorder = Recorder::open(&fd).expect("maps").shared();
            scope.spawn(move || {
                for n in 0..1000 {
                    recorder.record(telemetry::recorder::Event {
                        time_ns: n,
                        kind: 1,
                        slot: 0,
                        a: worker,
                        b: n,
                    });
                }
            });
        }
    });
    let events = PeerWords::map(&fd).expect("maps").events();
    for worker in 0..2 {
        let own = events.iter().filter(|event| event.a == worker);
        assert!(own.map(|event| event.b).eq(0..1000), "{worker}");
    }
}

#[test]
fn a_direction_between_threads_carries_frames_and_rings() {
    let geometry = Geometry::records(1 << 16, Geometry::max_record_for(4000)).expect("shape");
    let (mut tx, mut rx) = crate::between(&geometry).expect("memory");
    let sender = std::thread::spawn(move || {
        let plain = wire::offload::RawOffload::default();
        for n in 0..20_000u64 {
            let head = n.to_le_bytes();
            let rest = (n % 900) as usize;
            let note = [n, !n];
            while tx
                .ring
                .push_beside(note, (0, &plain), &head, rest, |_, _| {})
                .is_err()
            {
                std::thread::yield_now();
            }
            if tx.ring.publish() == Doorbell::Ring {
                tx.bell.ring().expect("rings");
            }
        }
    });
    let mut n = 0u64;
    while n < 20_000 {
        if let Some(record) = rx.ring.next().expect("no breach") {
            let mut head = [0; 8];
            record.copy(0, &mut head);
            assert_eq!(
                (u64::from_le_bytes(head), record.beside()),
                (n, Some([n, !n]))
            );
            assert_eq!(record.len() as u64, 8 + n % 900);
            n += 1;
            rx.ring.release();
        } else if rx.ring.arm().expect("no breach") {
            let mut bell = [rustix::event::PollFd::new(
                &rx.bell,
                rustix::event::PollFlags::IN,
            )];
            rustix::event::poll(&mut bell, None).expect("waits");
            let rings = rx.bell.drain().expect("the sender lives");
            rx.ring.rung(rings).expect("once an arming");
        }
    }
    sender.join().expect("it ends");
}

#[test]
fn counters_are_counted_and_read_by_another() {
    let fd = memory_file("counters", counters::bytes_for(4)).expect("memory");
    let page = CountersPage::open(&fd, 4).expect("maps");
    page.count(2, Counter::RxFrames, 5);
    page.count(2, Counter::RxFrames, 6);
    page.count(99, Counter::RxFrames, 6);
    page.dropped(3, DropReason::SourceMac, 1);
    page.add_process(ProcessWord::Heartbeat, 1);
    let peer = PeerWords::map(read_only(&fd).expect("opens")).expect("maps");
    assert_eq!(peer.load(ProcessWord::Magic as usize), counters::MAGIC);
    assert_eq!(peer.load(ProcessWord::Slots as usize), 4);
    assert_eq!(peer.load(ProcessWord::Heartbeat as usize), 1);
    assert_eq!(peer.load(counters::counter_word(2, Counter::RxFrames)), 11);
    assert_eq!(peer.load(counters::drop_word(3, DropReason::SourceMac)), 1);
    assert_eq!(peer.load(usize::MAX), 0);
    let mut out = [9; 4];
    peer.copy(peer.len() - 2, &mut out);
    assert_eq!(out, [0; 4]);
    assert!(CountersPage::open(&fd, 5).is_err(), "too short");
}

#[test]
fn a_counters_page_of_before_has_no_room_for_rules_and_serves() {
    let before = counters::bytes_for(4) - telemetry::rules::WORDS * 8;
    let fd = memory_file("counters", before).expect("memory");
    let page = CountersPage::open(&fd, 4).expect("maps");
    page.count(3, Counter::RxFrames, 5);
    page.add(telemetry::rules::used_word(4), 1);
    let peer = PeerWords::map(&fd).expect("maps");
    assert_eq!(peer.load(counters::counter_word(3, Counter::RxFrames)), 5);
    assert_eq!(page.words().load(telemetry::rules::used_word(4)), 0);
    // One that was made before their bytes were counted has them, and no bytes.
    let before = before + telemetry::rules::DECIDED_WORDS * 8;
    let fd = memory_file("counters", before).expect("memory");
    let page = CountersPage::open(&fd, 4).expect("maps");
    for word in [
        telemetry::rules::entry_word(4, telemetry::rules::MOST),
        telemetry::rules::passed_word(4, 0),
    ] {
        page.add(word, 1);
    }
    let load = |word| page.words().load(word);
    assert_eq!(
        load(telemetry::rules::entry_word(4, telemetry::rules::MOST)),
        1
    );
    assert_eq!(load(telemetry::rules::passed_word(4, 0)), 0);
}

#[test]
fn the_recorder_keeps_the_last_events_over_a_restart() {
    let fd = memory_file("recorder", recorder::BYTES).expect("memory");
    let event = |n: u64| Event {
        time_ns: n,
        kind: 3,
        slot: n as u32,
        a: n * 2,
        b: 1,
    };
    let mut first = Recorder::open(&fd).expect("maps");
    (0..5000).for_each(|n| first.record(event(n)));
    drop(first);
    Recorder::open(&fd).expect("maps").record(event(5000));
    let events = PeerWords::map(&fd).expect("maps").events();
    assert_eq!(events.len(), recorder::EVENTS);
    assert_eq!(
        (events.first(), events.last()),
        (Some(&event(905)), Some(&event(5000)))
    );
}

#[test]
fn a_recorder_whose_writer_lies_is_read_within_bounds() {
    let fd = memory_file("recorder", recorder::BYTES).expect("memory");
    let words = Words::map(&fd, recorder::BYTES).expect("maps");
    words.store(0, u64::MAX);
    assert_eq!(
        PeerWords::map(&fd).expect("maps").events().len(),
        recorder::EVENTS
    );
    Recorder::open(&fd).expect("maps").record(Event::default());
}
