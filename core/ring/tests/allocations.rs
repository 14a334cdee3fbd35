//! Neither end of a ring allocates once it is made, whatever its peer does.

use allocation_counter::measure;
use core_ring::heap::Heap;
use core_ring::{Consumer, Geometry, Producer, ProducerWord, PushError};
use std::sync::atomic::Ordering;
use wire::offload::RawOffload;

#[test]
fn records_cross_without_an_allocation() {
    let geometry = Geometry::records(8192, 2048).unwrap();
    let (heap, onward) = (Heap::new(8192), Heap::new(8192));
    let mut tx = Producer::fresh(heap.clone(), &geometry);
    let mut rx = Consumer::fresh(heap.clone(), &geometry);
    let mut tx2 = Producer::fresh(onward.clone(), &geometry);
    let mut rx2 = Consumer::fresh(onward, &geometry);
    let offload = RawOffload::default();
    let bytes = [7; 1500];
    let mut out = [0; 2048];
    let (mut crossed, mut full, mut rung) = (0u64, 0u64, 0u64);
    guard::stands("");
    let seen = measure(|| {
        for round in 0..1000usize {
            for n in 0..12 {
                match tx.push(
                    3,
                    &offload,
                    &bytes[..14],
                    &bytes[..(round * 7 + n * 131) % 1480],
                ) {
                    Ok(()) => {}
                    Err(PushError::Full) => full += 1,
                    Err(e) => panic!("{e:?}"),
                }
            }
            let _ = rx.arm().unwrap();
            if tx.publish() == core_ring::Doorbell::Ring {
                rx.rung(1).unwrap();
                rung += 1;
            }
            while let Some(record) = rx.peek().unwrap() {
                record.copy(0, &mut out);
                if tx2.forward(3, &offload, &out[..14], &record, 14).is_ok() {
                    crossed += 1;
                }
                rx.advance();
            }
            rx.release();
            let _ = tx2.publish();
            while let Some(record) = rx2.next().unwrap() {
                record.copy(0, &mut out);
            }
            rx2.release();
            tx.poll().unwrap();
            rx.poll().unwrap();
        }
    });
    assert_eq!((seen.count_total, seen.count_current), (0, 0));
    println!("crossed {crossed}, full {full}, rung {rung}");
    assert!(crossed > 5000 && full > 100 && rung > 900);

    // A peer that lies costs nothing either.
    heap.producer[ProducerWord::Published as usize].store(12345, Ordering::Release);
    let seen = measure(|| {
        for _ in 0..100 {
            assert!(rx.peek().is_err());
        }
    });
    assert_eq!((seen.count_total, seen.count_current), (0, 0));
    assert_eq!(
        measure(|| drop(std::hint::black_box(vec![0u8; 9]))).count_total,
        1
    );
}
