//! Each misdeed, each handshake step, each doorbell rule, one at a time.

use crate::heap::Heap;
use crate::memory::{ConsumerMemory, ConsumerWord, ProducerMemory, ProducerWord};
use crate::record::{CaptureNote, KIND_CAPTURE, KIND_FRAME, KIND_PAD};
use crate::*;
use std::cell::RefCell;
use std::rc::Rc;
use wire::offload::RawOffload;

const CAPACITY: usize = 1024;
const MAX_RECORD: usize = 256;
const NONE: RawOffload = RawOffload {
    flags: 0,
    gso_type: 0,
    gso_size: 0,
    csum_start: 0,
    csum_offset: 0,
};

fn geometry() -> Geometry {
    Geometry::records(CAPACITY, MAX_RECORD).expect("legal")
}

fn ring() -> (Producer<Heap>, Consumer<Heap>, Heap) {
    let heap = Heap::new(CAPACITY);
    let g = geometry();
    (
        Producer::fresh(heap.clone(), &g),
        Consumer::fresh(heap.clone(), &g),
        heap,
    )
}

fn send(tx: &mut Producer<Heap>, bytes: &[u8]) -> Result<Doorbell, PushError> {
    send_to(tx, bytes)
}

fn send_to<M: ProducerMemory>(tx: &mut Producer<M>, bytes: &[u8]) -> Result<Doorbell, PushError> {
    tx.push(7, &NONE, bytes, &[])?;
    Ok(tx.publish())
}

fn receive(rx: &mut Consumer<Heap>) -> Result<Option<Vec<u8>>, Breach> {
    let frame = rx.next()?.map(|record| {
        let mut out = vec![0; record.len()];
        record.copy(0, &mut out);
        out
    });
    rx.release();
    Ok(frame)
}

/// A consumer before whom the peer has put these header words and this position.
fn alleged(at: u64, header: RawRecord, published: u64) -> Result<Option<Vec<u8>>, Breach> {
    let (mut tx, mut rx, heap) = ring();
    let mut left = at as usize;
    while left > 0 {
        let step = left.min(MAX_RECORD);
        let _ = send(&mut tx, &vec![0; step - UNIT]).expect("room");
        receive(&mut rx).expect("honest").expect("there");
        left -= step;
    }
    heap.write_header((at as usize) & (CAPACITY - 1), header.to_words());
    ProducerMemory::store(&heap, ProducerWord::Published, published);
    receive(&mut rx)
}

fn frame(len: u32) -> RawRecord {
    RawRecord {
        len,
        kind: KIND_FRAME,
        header_units: 1,
        ..RawRecord::default()
    }
}

#[test]
fn a_record_crosses_whole() {
    let (mut tx, mut rx, _) = ring();
    let offload = RawOffload {
        flags: 1,
        gso_type: 4,
        gso_size: 1400,
        csum_start: 34,
        csum_offset: 16,
    };
    tx.push(0x1234, &offload, b"head", b"and tail")
        .expect("room");
    assert!(rx.next().expect("honest").is_none(), "not published yet");
    assert_eq!(tx.publish(), Doorbell::Quiet);
    let record = rx.next().expect("honest").expect("published");
    let mut out = [0; 64];
    assert_eq!(record.copy(0, &mut out), 12);
    assert_eq!(&out[..12], b"headand tail");
    assert_eq!(record.copy(5, &mut out[..3]), 3);
    assert_eq!(&out[..3], b"nd ");
    assert_eq!(record.copy(12, &mut out), 0);
    assert_eq!(record.copy(99, &mut out), 0);
    assert_eq!(
        (record.tag(), record.offload(), record.kind()),
        (0x1234, offload, KIND_FRAME)
    );
    assert!(rx.next().expect("honest").is_none());
}

#[test]
fn a_capture_note_travels_beside_its_frame() {
    let (mut tx, mut rx, _) = ring();
    let note = CaptureNote {
        time_ns: 5,
        endpoint: 9,
        original_len: 1500,
        ..CaptureNote::default()
    };
    tx.push_capture(3, &NONE, &note, b"abc", b"def")
        .expect("room");
    let _ = tx.publish();
    let record = rx.next().expect("honest").expect("there");
    assert_eq!(
        (record.kind(), record.note(), record.len()),
        (KIND_CAPTURE, Some(note), 6)
    );
    let mut out = [0; 6];
    record.copy(0, &mut out);
    assert_eq!(&out, b"abcdef");
}

#[test]
fn what_is_beside_a_frame_is_there_for_who_looks() {
    let (mut tx, mut rx, _) = ring();
    let plain = RawOffload::default();
    tx.push(3, &plain, b"without", &[]).unwrap();
    tx.push_beside([7, u64::MAX], (5, &plain), b"he", 2, |ring, at| {
        ProducerMemory::write(ring, at, b"ad");
    })
    .unwrap();
    let _ = tx.publish();
    let record = rx.next().unwrap().unwrap();
    assert_eq!(record.beside(), None);
    let record = rx.next().unwrap().unwrap();
    let mut frame = [0; 8];
    assert_eq!(record.copy(0, &mut frame), 4);
    assert_eq!((&frame[..4], record.tag()), (&b"head"[..], 5));
    assert_eq!(record.beside(), Some([7, u64::MAX]));
}

#[test]
fn forwarding_copies_from_ring_to_ring() {
    let (mut tx, mut rx, _) = ring();
    let (mut tx2, mut rx2, _) = ring();
    let _ = send(&mut tx, b"0123456789").expect("room");
    let record = rx.next().expect("honest").expect("there");
    tx2.forward(1, &NONE, b"new", &record, 4).expect("room");
    tx2.forward_capture(&NONE, &CaptureNote::default(), b"xy", &record, 2, 5)
        .expect("room");
    let _ = tx2.publish();
    assert_eq!(receive(&mut rx2), Ok(Some(b"new456789".to_vec())));
    assert_eq!(receive(&mut rx2), Ok(Some(b"xy234".to_vec())));
}

#[test]
fn peeking_does_not_go_on() {
    let (mut tx, mut rx, _) = ring();
    let _ = send(&mut tx, b"one").expect("room");
    let _ = send(&mut tx, b"three").expect("room");
    assert_eq!(rx.peek().expect("honest").expect("there").len(), 3);
    assert_eq!(rx.peek().expect("honest").expect("there").len(), 3);
    rx.advance();
    rx.advance();
    assert_eq!(rx.next().expect("honest").expect("there").len(), 5);
}

#[test]
fn full_is_not_empty_and_neither_is_a_breach() {
    let (mut tx, mut rx, _) = ring();
    let mut sent = 0;
    while send(&mut tx, &[sent; 100]).is_ok() {
        sent += 1;
    }
    assert_eq!(send(&mut tx, &[0; 100]), Err(PushError::Full));
    assert_eq!(send(&mut tx, &[0; MAX_RECORD]), Err(PushError::TooLong));
    assert!(!tx.has_room(100));
    for n in 0..sent {
        assert_eq!(receive(&mut rx), Ok(Some(vec![n; 100])));
    }
    assert_eq!(receive(&mut rx), Ok(None));
    assert!(tx.has_room(100));
}

#[test]
fn records_and_pads_go_round_many_times() {
    let (mut tx, mut rx, _) = ring();
    for n in 0..500usize {
        let bytes = vec![n as u8; n * 37 % 240];
        let _ = send(&mut tx, &bytes).expect("room");
        assert_eq!(receive(&mut rx), Ok(Some(bytes)));
    }
}

#[test]
fn every_record_misdeed_has_its_name() {
    let bad_kind = RawRecord {
        kind: 9,
        ..frame(0)
    };
    let pad = |len, units| RawRecord {
        len,
        kind: KIND_PAD,
        header_units: units,
        ..frame(0)
    };
    assert_eq!(alleged(0, bad_kind, 16), Err(Breach::Kind));
    assert_eq!(
        alleged(
            0,
            RawRecord {
                kind: KIND_CAPTURE,
                header_units: 2,
                ..frame(0)
            },
            64
        ),
        Err(Breach::Header)
    );
    assert_eq!(
        alleged(
            0,
            RawRecord {
                header_units: 17,
                ..frame(0)
            },
            512
        ),
        Err(Breach::Header)
    );
    assert_eq!(alleged(0, frame(u32::MAX), 512), Err(Breach::TooLong));
    assert_eq!(
        alleged(0, RawRecord::default(), 16),
        Err(Breach::Kind),
        "a hole reads as zero"
    );
    assert_eq!(alleged(256, pad(2000, 1), 512), Err(Breach::Pad));
}

#[test]
fn a_header_of_no_size_is_refused() {
    assert_eq!(
        alleged(
            0,
            RawRecord {
                header_units: 0,
                ..frame(0)
            },
            16
        ),
        Err(Breach::Header)
    );
}

#[test]
fn a_record_longer_than_the_longest_is_refused() {
    assert_eq!(
        alleged(0, frame(MAX_RECORD as u32), 512),
        Err(Breach::TooLong)
    );
}

#[test]
fn a_record_over_the_end_is_refused() {
    assert_eq!(alleged(960, frame(100), 960 + 256), Err(Breach::CrossesEnd));
}

#[test]
fn a_record_beyond_what_was_published_is_refused() {
    assert_eq!(alleged(0, frame(100), 64), Err(Breach::Overrun));
}

#[test]
fn a_pad_at_the_start_or_short_of_the_end_is_refused() {
    let pad = RawRecord {
        kind: KIND_PAD,
        ..frame((CAPACITY - UNIT) as u32)
    };
    assert_eq!(alleged(0, pad, CAPACITY as u64), Err(Breach::Pad));
    let short = RawRecord {
        kind: KIND_PAD,
        ..frame(16)
    };
    assert_eq!(alleged(512, short, 512 + 64), Err(Breach::Pad));
}

#[test]
fn a_position_beyond_the_capacity_closes_the_consumer_for_good() {
    let (mut tx, mut rx, heap) = ring();
    let _ = send(&mut tx, b"x").expect("room");
    ProducerMemory::store(&heap, ProducerWord::Published, CAPACITY as u64 + 16);
    assert_eq!(receive(&mut rx), Err(Breach::Position));
    ProducerMemory::store(&heap, ProducerWord::Published, 32);
    assert_eq!(receive(&mut rx), Err(Breach::Position));
}

#[test]
fn a_position_that_goes_back_closes_the_consumer() {
    let (mut tx, mut rx, heap) = ring();
    let _ = send(&mut tx, &[0; 100]).expect("room");
    receive(&mut rx).expect("honest");
    ProducerMemory::store(&heap, ProducerWord::Published, 64);
    assert_eq!(receive(&mut rx), Err(Breach::Position));
}

#[test]
fn an_unaligned_published_position_closes_the_consumer() {
    let (_tx, mut rx, heap) = ring();
    ProducerMemory::store(&heap, ProducerWord::Published, 24);
    assert_eq!(receive(&mut rx), Err(Breach::Unaligned));
}

#[test]
fn a_consumed_position_ahead_or_behind_closes_the_producer() {
    for lie in [4096u64, 0u64.wrapping_sub(16), 48] {
        let (mut tx, _rx, heap) = ring();
        let _ = send(&mut tx, b"x").expect("room");
        ConsumerMemory::store(&heap, ConsumerWord::Consumed, lie);
        assert_eq!(tx.poll(), Err(Breach::Position));
        assert_eq!(
            send(&mut tx, b"x"),
            Err(PushError::Breach(Breach::Position))
        );
    }
}

#[test]
fn an_unaligned_consumed_position_closes_the_producer() {
    let (mut tx, _rx, heap) = ring();
    let _ = send(&mut tx, b"x").expect("room");
    ConsumerMemory::store(&heap, ConsumerWord::Consumed, 8);
    assert_eq!(tx.poll(), Err(Breach::Unaligned));
}

#[test]
fn one_arming_is_rung_once() {
    let (mut tx, mut rx, _) = ring();
    assert_eq!(rx.arm(), Ok(true));
    assert_eq!(send(&mut tx, b"a"), Ok(Doorbell::Ring));
    assert_eq!(send(&mut tx, b"b"), Ok(Doorbell::Quiet));
    rx.rung(1).expect("one is owed");
    assert_eq!(send(&mut tx, b"c"), Ok(Doorbell::Quiet), "awake");
    assert_eq!(rx.arm(), Ok(false), "there is work");
    for _ in 0..3 {
        receive(&mut rx).expect("honest").expect("there");
    }
    assert_eq!(rx.arm(), Ok(true));
    assert_eq!(send(&mut tx, b"d"), Ok(Doorbell::Ring));
}

#[test]
fn a_successor_is_rung_though_its_predecessor_died_armed() {
    let (mut tx, mut rx, heap) = ring();
    for _ in 0..2 {
        // The second arming, number 2, is the one it dies with.
        assert_eq!(rx.arm(), Ok(true));
    }
    let mut rx2 = Consumer::resume(heap, &geometry(), 100, 0);
    assert_eq!(send(&mut tx, b"a"), Ok(Doorbell::Quiet), "it is awake");
    receive(&mut rx2).expect("honest").expect("there");
    assert_eq!(rx2.arm(), Ok(true));
    rx2.disarm();
    assert_eq!(rx2.arm(), Ok(true), "number 2 again");
    assert_eq!(send(&mut tx, b"b"), Ok(Doorbell::Ring));
}

#[test]
fn a_doorbell_flood_closes_the_consumer() {
    let (_tx, mut rx, _) = ring();
    rx.rung(SPARE_RINGS as usize).expect("forgiven");
    assert_eq!(rx.arm(), Ok(true));
    rx.rung(1).expect("owed");
    assert_eq!(rx.rung(1), Err(Breach::DoorbellFlood));
    assert_eq!(receive(&mut rx), Err(Breach::DoorbellFlood));
}

#[test]
fn a_new_consumer_starts_at_the_producers_position() {
    let (mut tx, mut old, heap) = ring();
    for _ in 0..3 {
        let _ = send(&mut tx, b"in flight").expect("room");
    }
    receive(&mut old).expect("honest").expect("there");
    drop(old);
    let mut rx = Consumer::resume(heap, &geometry(), 0x1000, 0);
    assert_eq!(
        rx.take_lost(),
        Lost {
            records: 2,
            bytes: 64
        }
    );
    assert_eq!(rx.poll(), Ok(State::AwaitingEcho));
    assert!(!rx.overdue(ECHO_WITHIN_NS - 1) && rx.overdue(ECHO_WITHIN_NS));
    assert_eq!(receive(&mut rx), Ok(None));
    let _ = send(&mut tx, b"first of the new").expect("room");
    assert_eq!(tx.take_lost().bytes, 96);
    assert_eq!(rx.poll(), Ok(State::Running));
    assert!(!rx.overdue(u64::MAX));
    assert_eq!(receive(&mut rx), Ok(Some(b"first of the new".to_vec())));
    assert_eq!(receive(&mut rx), Ok(None));
}

#[test]
fn a_dead_consumers_position_is_not_believed() {
    let (mut tx, _old, heap) = ring();
    // A payload that looks like a record, and a predecessor that points into it.
    let _ = send(
        &mut tx,
        zerocopy::IntoBytes::as_bytes(&[frame(0), frame(0)]),
    )
    .expect("room");
    ConsumerMemory::store(&heap, ConsumerWord::Consumed, 16);
    let mut rx = Consumer::resume(heap, &geometry(), 0x1000, 0);
    let _ = tx.poll();
    let _ = send(&mut tx, b"real").expect("room");
    assert_eq!(receive(&mut rx), Ok(Some(b"real".to_vec())));
}

#[test]
fn a_new_producer_writes_nothing_before_the_echo() {
    let (mut old, mut rx, heap) = ring();
    for _ in 0..3 {
        let _ = send(&mut old, b"left behind").expect("room");
    }
    receive(&mut rx).expect("honest").expect("there");
    drop(old);
    let mut tx = Producer::resume(heap, &geometry(), 0x77, 100);
    assert_eq!(send(&mut tx, b"too early"), Err(PushError::Full));
    assert_eq!(tx.state(), State::AwaitingEcho);
    assert!(!tx.overdue(100 + ECHO_WITHIN_NS - 1) && tx.overdue(100 + ECHO_WITHIN_NS));
    // The consumer reads on in what it knows, then follows.
    assert_eq!(rx.poll(), Ok(State::AwaitingPeer));
    assert_eq!(
        rx.take_lost(),
        Lost {
            records: 2,
            bytes: 64
        }
    );
    assert_eq!(receive(&mut rx), Ok(None));
    assert_eq!(tx.poll(), Ok(State::Running));
    let _ = send(&mut tx, b"new").expect("room");
    assert_eq!(receive(&mut rx), Ok(Some(b"new".to_vec())));
    assert_eq!(rx.state(), State::Running);
}

#[test]
fn a_consumer_reads_nothing_before_the_new_producer_is_active() {
    let (mut old, mut rx, heap) = ring();
    let _ = send(&mut old, &[1; 100]).expect("room");
    ProducerMemory::store(&heap, ProducerWord::Generation, 9);
    assert_eq!(receive(&mut rx), Ok(None));
    assert_eq!(
        receive(&mut rx),
        Ok(None),
        "what was published is its predecessor's"
    );
}

#[test]
fn successors_of_successors_settle_in() {
    let (mut tx, mut rx, heap) = ring();
    for n in 1..40u64 {
        let _ = send(&mut tx, &[n as u8; 50]).expect("room");
        if n % 2 == 0 {
            tx = Producer::resume(heap.clone(), &geometry(), n * 2, 0);
            rx.poll().expect("honest");
            tx.poll().expect("honest");
        } else {
            rx = Consumer::resume(heap.clone(), &geometry(), n * 2, 0);
            tx.poll().expect("honest");
            rx.poll().expect("honest");
        }
        assert_eq!(
            (tx.state(), rx.poll()),
            (State::Running, Ok(State::Running))
        );
        let _ = send(&mut tx, &[n as u8]).expect("room");
        assert_eq!(receive(&mut rx), Ok(Some(vec![n as u8])));
    }
}

#[test]
fn both_restarted_at_once_are_replaced_and_read_nothing() {
    let (mut old, _rx, heap) = ring();
    let _ = send(&mut old, b"left behind").expect("room");
    let mut tx = Producer::resume(heap.clone(), &geometry(), 5, 0);
    let mut rx = Consumer::resume(heap, &geometry(), 8, 0);
    assert!(rx.overdue(0));
    assert_eq!(tx.poll(), Ok(State::AwaitingEcho));
    assert_eq!(receive(&mut rx), Ok(None));
}

#[test]
fn a_peer_that_restarts_for_ever_costs_little() {
    let noted = Noted(Heap::new(CAPACITY), Rc::default());
    let mut tx = Producer::fresh(noted.clone(), &geometry());
    let mut rx = Consumer::fresh(noted.clone(), &geometry());
    let _ = send_to(&mut tx, b"left behind by each").expect("room");
    noted.1.take();
    let mut flap = |n| {
        ProducerMemory::store(&noted.0, ProducerWord::Generation, n);
        rx.poll().expect("no misdeed");
        noted.1.take().contains(&"read a header")
    };
    assert!((1..=u64::from(MAX_IDLE_RESTARTS)).all(&mut flap));
    assert!(
        !(1000..1100).any(&mut flap),
        "what is left is looked through"
    );
    // Goes on as with any other once it speaks.
    let mut tx = Producer::resume(noted.clone(), &geometry(), 5000, 0);
    rx.poll().expect("honest");
    tx.poll().expect("honest");
    let _ = send_to(&mut tx, b"hello").expect("room");
    assert_eq!(rx.next().expect("honest").expect("there").len(), 5);
}

#[test]
fn positions_wrap_at_the_end_of_64_bits() {
    let heap = Heap::new(CAPACITY);
    let near = u64::MAX - 511;
    ProducerMemory::store(&heap, ProducerWord::Published, near);
    let mut rx = Consumer::resume(heap.clone(), &geometry(), 2, 0);
    let mut tx = Producer::resume(heap, &geometry(), 3, 0);
    rx.poll().expect("honest");
    tx.poll().expect("honest");
    tx.poll().expect("honest");
    for n in 0..100u8 {
        let _ = send(&mut tx, &[n; 100]).expect("room");
        assert_eq!(receive(&mut rx), Ok(Some(vec![n; 100])));
    }
}

#[test]
fn a_stream_carries_bytes_and_rings_both_ways() {
    let heap = Heap::new(128);
    let g = Geometry::stream(128).expect("legal");
    let mut tx = StreamProducer::fresh(heap.clone(), &g);
    let mut rx = StreamConsumer::fresh(heap, &g);
    let mut out = [0; 100];
    let (mut wrote, mut read) = (0u8, 0u8);
    for _ in 0..50 {
        let bytes: Vec<u8> = (0..90).map(|i| wrote.wrapping_add(i)).collect();
        let n = tx.write(&bytes).expect("honest");
        wrote = wrote.wrapping_add(n as u8);
        let _ = tx.publish();
        let n = rx.read(&mut out[..70]).expect("honest");
        for byte in &out[..n] {
            assert_eq!(*byte, read);
            read = read.wrapping_add(1);
        }
        let _ = rx.release();
    }
    while tx.write(&[0]).expect("honest") == 1 {}
    let _ = tx.publish();
    assert_eq!(tx.arm(1), Ok(true));
    rx.read(&mut out).expect("honest");
    assert_eq!(rx.release(), Doorbell::Ring);
    assert_eq!(tx.arm(1), Ok(false));
    while rx.read(&mut out).expect("honest") != 0 {}
    assert_eq!(rx.release(), Doorbell::Quiet);
    assert_eq!(rx.arm(), Ok(true));
    tx.write(b"x").expect("honest");
    assert_eq!(tx.publish(), Doorbell::Ring);
}

/// Of a sleep by the memory nothing is left that tells of it: who saw what was published last may
/// be about to sleep, and is rung for what comes next all the same.
#[test]
fn who_naps_is_rung_each_time() {
    let heap = Heap::new(128);
    let g = Geometry::stream(128).expect("legal");
    let mut tx = StreamProducer::fresh(heap.clone(), &g);
    let mut rx = StreamConsumer::fresh(heap, &g);
    let mut put = || {
        tx.write(b"x").expect("honest");
        let rung = tx.publish();
        (rung, tx.rung_naps(), tx.rung())
    };
    assert_eq!(rx.arm_nap(), Ok(Some(0)));
    assert_eq!([put(), put()], [(Doorbell::Ring, true, 1); 2]);
    rx.disarm();
    assert_eq!(put().0, Doorbell::Quiet);
    assert_eq!(rx.arm_nap(), Ok(None));
    assert_eq!(rx.read(&mut [0; 9]), Ok(3));
    assert_eq!(rx.arm(), Ok(true));
    assert_eq!(
        [put(), put()].map(|it| it.0),
        [Doorbell::Ring, Doorbell::Quiet]
    );
    assert_eq!((tx.rung_naps(), tx.rung()), (false, 3));
}

#[test]
fn a_stream_position_out_of_its_window_closes_it() {
    let heap = Heap::new(128);
    let g = Geometry::stream(128).expect("legal");
    let mut rx = StreamConsumer::fresh(heap.clone(), &g);
    ProducerMemory::store(&heap, ProducerWord::Published, 129);
    assert_eq!(rx.read(&mut [0; 8]), Err(Breach::Position));
    let mut tx = StreamProducer::fresh(heap.clone(), &g);
    tx.write(b"abc").expect("honest");
    let _ = tx.publish();
    ConsumerMemory::store(&heap, ConsumerWord::Consumed, 4);
    assert_eq!(tx.writable(), Err(Breach::Position));
    let mut rx = StreamConsumer::fresh(heap.clone(), &g);
    ProducerMemory::store(&heap, ProducerWord::Generation, 1);
    assert_eq!(rx.read(&mut [0; 8]), Err(Breach::StreamRestart));
}

#[test]
fn illegal_geometries_are_refused() {
    assert_eq!(Geometry::records(1000, 32), Err(BadGeometry::Capacity));
    assert_eq!(Geometry::records(64, 32), Err(BadGeometry::Capacity));
    assert_eq!(Geometry::records(1024, 272), Err(BadGeometry::MaxRecord));
    assert_eq!(Geometry::records(1024, 100), Err(BadGeometry::MaxRecord));
    let g = geometry();
    assert!(g.agrees_with(&g.header_words()));
    assert!(!g.agrees_with(&[MAGIC, 2, 1024, 256 | 1 << 32]));
}

#[test]
fn breaches_are_numbered_without_gaps() {
    for (i, breach) in Breach::ALL.iter().enumerate() {
        assert_eq!(*breach as usize, i + 1);
        assert_eq!(Breach::from_number(i as u32 + 1), Some(*breach));
        assert!(!breach.to_string().is_empty());
    }
}

/// Notes the order of what is done to the words that waking rests on.
#[derive(Clone)]
struct Noted(Heap, Rc<RefCell<Vec<&'static str>>>);

impl Noted {
    fn note(&self, what: &'static str) {
        self.1.borrow_mut().push(what);
    }
}

impl ProducerMemory for Noted {
    fn load(&self, word: ConsumerWord) -> u64 {
        if word == ConsumerWord::Armed {
            self.note("look at the flag");
        }
        ProducerMemory::load(&self.0, word)
    }
    fn store(&self, word: ProducerWord, value: u64) {
        if word == ProducerWord::Published {
            self.note("publish");
        }
        ProducerMemory::store(&self.0, word, value);
    }
    fn write_header(&self, at: usize, words: [u64; 2]) {
        self.0.write_header(at, words);
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        self.0.write(at, bytes);
    }
    fn fence(&self) {
        self.note("fence");
    }
}

impl ConsumerMemory for Noted {
    fn load(&self, word: ProducerWord) -> u64 {
        if word == ProducerWord::Published {
            self.note("look for data");
        }
        ConsumerMemory::load(&self.0, word)
    }
    fn own(&self, word: ConsumerWord) -> u64 {
        self.0.own(word)
    }
    fn store(&self, word: ConsumerWord, value: u64) {
        if word == ConsumerWord::Armed {
            self.note("arm");
        }
        ConsumerMemory::store(&self.0, word, value);
    }
    fn read_header(&self, at: usize) -> [u64; 2] {
        self.note("read a header");
        self.0.read_header(at)
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        self.0.read(at, out);
    }
    fn fence(&self) {
        self.note("fence");
    }
}

#[test]
fn a_fence_stands_between_store_and_look_on_both_sides() {
    let noted = Noted(Heap::new(CAPACITY), Rc::default());
    let mut tx = Producer::fresh(noted.clone(), &geometry());
    let mut rx = Consumer::fresh(noted.clone(), &geometry());
    tx.push(0, &NONE, b"x", &[]).expect("room");
    let _ = tx.publish();
    assert_eq!(noted.1.take(), ["publish", "fence", "look at the flag"]);
    rx.next().expect("honest").expect("there");
    rx.arm().expect("honest");
    assert_eq!(
        noted.1.take(),
        [
            "look for data",
            "read a header",
            "arm",
            "fence",
            "look for data"
        ]
    );
}
