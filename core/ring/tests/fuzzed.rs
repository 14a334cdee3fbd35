//! What the fuzzer found (`fuzz/src/ring.rs`), as it happens between two ends; and what the
//! short ways of both ends must not take for granted.

use core_ring::heap::Heap;
use core_ring::record::KIND_FRAME;
use core_ring::{
    Breach, Consumer, ConsumerMemory, ConsumerWord, Geometry, Producer, ProducerMemory,
    ProducerWord, PushError, RawRecord, SPARE_RINGS, State,
};
use wire::offload::RawOffload;

const CAPACITY: usize = 1024;

fn geometry() -> Geometry {
    Geometry::records(CAPACITY, 256).expect("it is legal")
}

/// A record across the end would be written where the ring is not, and its reader would close
/// the channel for it.
#[test]
fn a_successor_that_learns_where_it_begins_as_it_writes_pads_the_end_there() {
    let heap = Heap::new(CAPACITY);
    let mut old = Producer::fresh(heap.clone(), &geometry());
    let mut rx = Consumer::fresh(heap.clone(), &geometry());
    let offload = RawOffload::default();
    for _ in 0..CAPACITY / 64 - 1 {
        old.push(1, &offload, &[1; 48], &[]).expect("room");
        let _ = old.publish();
        assert!(rx.next().expect("honest").is_some());
        rx.release();
    }
    let mut tx = Producer::resume(heap, &geometry(), 7, 0);
    assert_eq!(rx.poll(), Ok(State::AwaitingPeer));
    // It has not looked since: the echo, and the start 64 bytes before the end, come now.
    tx.push(1, &offload, &[2; 180], &[]).expect("room");
    let _ = tx.publish();
    let mut out = [0; 256];
    let record = rx.next().expect("honest").expect("there");
    assert_eq!(record.copy(0, &mut out), 180);
    assert_eq!(out[..180], [2; 180]);
}

#[test]
fn a_flood_after_a_breach_is_not_the_reason() {
    let heap = Heap::new(CAPACITY);
    let mut rx = Consumer::fresh(heap.clone(), &geometry());
    ProducerMemory::store(&heap, ProducerWord::Published, 24);
    assert_eq!(rx.poll(), Err(Breach::Unaligned));
    let flood = rx.rung(SPARE_RINGS as usize + 1);
    assert_eq!(flood, Err(Breach::Unaligned));
    assert_eq!(rx.poll(), Err(Breach::Unaligned));
}

/// Behind a record that is as it should be, too.
#[test]
fn a_record_over_the_end_is_refused_behind_others() {
    let heap = Heap::new(CAPACITY);
    let mut tx = Producer::fresh(heap.clone(), &geometry());
    let mut rx = Consumer::fresh(heap.clone(), &geometry());
    let mut push = || tx.push(0, &RawOffload::default(), &[1; 48], &[]);
    for _ in 0..CAPACITY / 64 {
        push().expect("room");
    }
    let published = |position| ProducerMemory::store(&heap, ProducerWord::Published, position);
    published(CAPACITY as u64 - 128);
    for _ in 0..CAPACITY / 64 - 2 {
        assert!(rx.next().expect("honest").is_some());
    }
    rx.release();
    // The last record says that it is longer than what is left, and as much is published.
    let header = RawRecord {
        len: 100,
        kind: KIND_FRAME,
        header_units: 1,
        ..RawRecord::default()
    };
    heap.write_header(CAPACITY - 64, header.to_words());
    published(CAPACITY as u64 + 256);
    assert!(rx.next().expect("honest").is_some());
    assert_eq!(rx.next().err(), Some(Breach::CrossesEnd));
}

#[test]
fn nothing_is_read_after_a_breach() {
    let heap = Heap::new(CAPACITY);
    let mut tx = Producer::fresh(heap.clone(), &geometry());
    let mut rx = Consumer::fresh(heap, &geometry());
    for _ in 0..3 {
        tx.push(0, &RawOffload::default(), b"x", &[]).expect("room");
    }
    let _ = tx.publish();
    assert!(rx.next().expect("honest").is_some());
    let flood = rx.rung(SPARE_RINGS as usize + 1);
    assert_eq!(flood, Err(Breach::DoorbellFlood));
    assert_eq!(rx.next().err(), Some(Breach::DoorbellFlood));
}

/// A successor that says that it is where the one before it was long ago has what it did not read.
#[test]
fn what_a_successor_has_not_read_is_not_written_over() {
    let heap = Heap::new(CAPACITY);
    let mut tx = Producer::fresh(heap.clone(), &geometry());
    let push = |tx: &mut Producer<Heap>| tx.push(0, &RawOffload::default(), &[1; 48], &[]);
    let consumed = |at| ConsumerMemory::store(&heap, ConsumerWord::Consumed, at);
    // A lap, so that the end of the ring is not the end of what is free.
    for _ in 0..CAPACITY / 64 {
        push(&mut tx).expect("room");
    }
    let _ = tx.publish();
    consumed(CAPACITY as u64);
    assert_eq!(tx.poll(), Ok(State::Running));
    push(&mut tx).expect("room");
    let _ = tx.publish();
    consumed(CAPACITY as u64 / 2);
    ConsumerMemory::store(&heap, ConsumerWord::Generation, 8);
    assert_eq!(tx.poll(), Ok(State::Running));
    let written = (0..CAPACITY / 64).take_while(|_| push(&mut tx).is_ok());
    assert_eq!(written.count(), CAPACITY / 64 / 2 - 1);
    assert_eq!(push(&mut tx), Err(PushError::Full));
}
