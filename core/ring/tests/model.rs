//! Any sequence of operations gives what a plain queue gives.

use core_ring::heap::Heap;
use core_ring::{Consumer, Geometry, Producer, PushError, StreamConsumer, StreamProducer};
use proptest::prelude::*;
use std::collections::VecDeque;
use wire::offload::RawOffload;

#[derive(Clone, Debug)]
enum Step {
    Push { head: usize, tail: usize, tag: u16 },
    Publish,
    Read,
    Peek,
    Release,
    Forward { from: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..120, 0usize..120, any::<u16>())
            .prop_map(|(head, tail, tag)| Step::Push { head, tail, tag }),
        3 => Just(Step::Publish),
        3 => Just(Step::Read),
        1 => Just(Step::Peek),
        2 => Just(Step::Release),
        2 => (0usize..40).prop_map(|from| Step::Forward { from }),
    ]
}

fn bytes(seed: u16, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (seed as usize * 31 + i * 7) as u8)
        .collect()
}

proptest! {
    #[test]
    fn records_are_a_queue(steps in prop::collection::vec(step(), 1..400)) {
        let geometry = Geometry::records(1024, 256).unwrap();
        let (heap, onward) = (Heap::new(1024), Heap::new(1024));
        let mut tx = Producer::fresh(heap.clone(), &geometry);
        let mut rx = Consumer::fresh(heap, &geometry);
        let mut tx2 = Producer::fresh(onward.clone(), &geometry);
        let mut rx2 = Consumer::fresh(onward, &geometry);
        let offload = RawOffload::default();
        let mut pushed: VecDeque<(u16, Vec<u8>)> = VecDeque::new();
        let mut published: VecDeque<(u16, Vec<u8>)> = VecDeque::new();
        for step in steps {
            match step {
                Step::Push { head, tail, tag } => {
                    let all = bytes(tag, head + tail);
                    match tx.push(tag, &offload, &all[..head], &all[head..]) {
                        Ok(()) => pushed.push_back((tag, all)),
                        Err(PushError::Full) => prop_assert!(tx.backlog() > 1024 - 512),
                        Err(PushError::TooLong) => prop_assert!(all.len() > 240),
                        Err(e) => prop_assert!(false, "{e:?}"),
                    }
                }
                Step::Publish => {
                    let _ = tx.publish();
                    published.append(&mut pushed);
                }
                Step::Read => {
                    let got = rx.next().unwrap().map(|r| {
                        let mut out = vec![0; r.len()];
                        r.copy(0, &mut out);
                        (r.tag(), out)
                    });
                    prop_assert_eq!(got, published.pop_front());
                }
                Step::Peek => {
                    let len = rx.peek().unwrap().map(|r| r.len());
                    prop_assert_eq!(len, published.front().map(|(_, b)| b.len()));
                }
                Step::Release => rx.release(),
                Step::Forward { from } => {
                    let Some(record) = rx.next().unwrap() else { continue };
                    let (tag, all) = published.pop_front().unwrap();
                    let from = from.min(all.len());
                    tx2.forward(tag, &offload, b"hd", &record, from).unwrap();
                    let _ = tx2.publish();
                    let copied = rx2.next().unwrap().unwrap();
                    let mut out = vec![0; copied.len()];
                    copied.copy(0, &mut out);
                    prop_assert_eq!(&out[..2], b"hd");
                    prop_assert_eq!(&out[2..], &all[from..]);
                    rx2.release();
                }
            }
        }
    }

    #[test]
    fn a_stream_is_a_queue_of_bytes(steps in prop::collection::vec((any::<bool>(), 0usize..200), 1..300)) {
        let geometry = Geometry::stream(256).unwrap();
        let heap = Heap::new(256);
        let mut tx = StreamProducer::fresh(heap.clone(), &geometry);
        let mut rx = StreamConsumer::fresh(heap, &geometry);
        let mut queue: VecDeque<u8> = VecDeque::new();
        let mut seed = 0;
        for (write, len) in steps {
            if write {
                seed += 1;
                let all = bytes(seed, len);
                let n = tx.write(&all).unwrap();
                prop_assert!(n == len || queue.len() + n == 256 );
                queue.extend(&all[..n]);
                let _ = tx.publish();
            } else {
                let mut out = vec![0; len];
                let n = rx.read(&mut out).unwrap();
                let want: Vec<u8> = queue.drain(..n).collect();
                prop_assert_eq!(&out[..n], &want[..]);
                prop_assert!(n == len || queue.is_empty());
                let _ = rx.release();
            }
        }
    }
}
