//! What an honest driver offers comes whole, in order, once; who sleeps is woken.

use super::driver::{BUFFERS, Buffer, Driver};
use crate::{Chain, Direction, Features, MAX_PIECES, Queue, Stand};
use proptest::prelude::*;
use std::collections::VecDeque;

fn kinds() -> impl Strategy<Value = Features> {
    any::<(bool, bool)>().prop_map(|(packed, event_index)| Features {
        packed,
        event_index,
        indirect: true,
    })
}

#[derive(Clone, Debug)]
enum Step {
    /// A chain of pieces so long, in an indirect table or not.
    Offer(Vec<u32>, bool),
    /// The device takes so many and gives them back.
    Take(usize),
    /// It takes so many, and goes back.
    Try(usize),
    Publish,
    Reclaim,
    /// Another device side goes on from the same stand.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (prop::collection::vec(1u32..200, 1..5), any::<bool>())
            .prop_map(|(pieces, indirect)| Step::Offer(pieces, indirect)),
        3 => (1usize..6).prop_map(Step::Take),
        1 => (1usize..6).prop_map(Step::Try),
        2 => Just(Step::Publish),
        2 => Just(Step::Reclaim),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..120)
}

/// Where the `n`th chain's buffers lie: nobody else's meanwhile.
fn place(n: usize) -> u64 {
    BUFFERS + (n % 32 * 2048) as u64
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_offered_comes_once_in_order_and_goes_back(
        features in kinds(), sizes in 0u32..4, steps in steps(), is_written: bool)
    {
        let want = if is_written { Direction::Write } else { Direction::Read };
        let mut driver = Driver::new(4 << sizes, features);
        let mut queue = driver.queue();
        // Offered: (name, number, bytes); given back: (name, bytes, number).
        let (mut offered, mut given) = (VecDeque::new(), VecDeque::new());
        let (mut numbers, mut chain) = (0, Chain::new());
        for step in steps {
            match step {
                Step::Offer(pieces, indirect) => {
                    let mut at = place(numbers);
                    let mut buffers: Vec<Buffer> = Vec::new();
                    for length in &pieces {
                        let bytes: Vec<u8> = (0..*length).map(|i| (numbers + i as usize) as u8).collect();
                        driver.put(at, &bytes);
                        buffers.push((at, *length, is_written));
                        at += u64::from(*length);
                    }
                    let table = indirect.then(|| place(numbers) + 1536);
                    if offered.len() + given.len() < 32
                        && let Some(name) = driver.offer(&buffers, table)
                    {
                        offered.push_back((name, numbers, buffers));
                        numbers += 1;
                    }
                }
                Step::Take(n) => {
                    for _ in 0..n {
                        let came = queue.next(&driver.memory, want, &mut chain).unwrap();
                        prop_assert_eq!(came, !offered.is_empty());
                        let Some((name, number, buffers)) = offered.pop_front() else { break };
                        let total: u32 = buffers.iter().map(|b| b.1).sum();
                        prop_assert_eq!(chain.total(), total as usize);
                        let mut written = 0;
                        if is_written {
                            let bytes: Vec<u8> = (0..total).map(|i| (number as u32 * 3 + i) as u8).collect();
                            prop_assert_eq!(chain.write(&driver.memory, 0, &bytes), bytes.len());
                            written = total;
                        } else {
                            let mut bytes = vec![0; total as usize + 9];
                            prop_assert_eq!(chain.read(&driver.memory, 0, &mut bytes), total as usize);
                            let lengths = buffers.iter().flat_map(|b| 0..b.1);
                            for (byte, i) in bytes.iter().zip(lengths) {
                                prop_assert_eq!(*byte, (number + i as usize) as u8);
                            }
                            let mut one = [0];
                            chain.read(&driver.memory, total as usize / 2, &mut one);
                            prop_assert_eq!(one[0], bytes[total as usize / 2]);
                        }
                        queue.give(&driver.memory, chain.token(), written);
                        given.push_back((name, written, number, buffers));
                    }
                }
                Step::Try(n) => {
                    let before = queue.stand();
                    for _ in 0..n {
                        let _ = queue.next(&driver.memory, want, &mut chain).unwrap();
                    }
                    queue.rewind(before);
                }
                Step::Publish => { queue.publish(&driver.memory); }
                Step::Reclaim => {
                    while let Some((name, written)) = driver.reclaim() {
                        let (expected, length, number, buffers) = given.pop_front().unwrap();
                        prop_assert_eq!((name, written), (expected, length));
                        if is_written {
                            let mut i = 0;
                            for (at, length, _) in buffers {
                                let mut bytes = vec![0; length as usize];
                                driver.get(at, &mut bytes);
                                for byte in bytes {
                                    prop_assert_eq!(byte, (number as u32 * 3 + i) as u8);
                                    i += 1;
                                }
                            }
                        }
                    }
                }
                Step::Restart => {
                    queue.publish(&driver.memory);
                    let stand = queue.stand();
                    queue = Queue::new(&driver.memory, &driver.layout, features, stand).unwrap();
                    prop_assert_eq!(queue.stand(), stand);
                }
            }
        }
        queue.publish(&driver.memory);
        let mut left = 0;
        while driver.reclaim().is_some() {
            left += 1;
        }
        prop_assert_eq!(left, given.len());
    }

    /// A side that has asked is told exactly when there is something; one that was told
    /// once and has not asked again costs no more calls with event indices.
    #[test]
    fn who_asked_is_told(features in kinds(), rounds in prop::collection::vec((1usize..9, any::<bool>(), any::<bool>()), 1..60)) {
        let mut driver = Driver::new(8, features);
        let mut queue = driver.queue();
        let mut chain = Chain::new();
        for (n, driver_asks, device_asks) in rounds {
            match device_asks {
                true => prop_assert!(queue.arm(&driver.memory).unwrap(), "nothing is there yet"),
                false => queue.disarm(&driver.memory),
            }
            let before = driver.stand();
            for _ in 0..n {
                if driver.offer(&[(BUFFERS, 8, false)], None).is_none() {
                    break;
                }
            }
            let kicked = driver.kicks(before);
            if device_asks {
                prop_assert!(kicked);
                prop_assert!(!queue.arm(&driver.memory).unwrap(), "there is something");
            } else if !features.event_index {
                prop_assert!(!kicked);
            }
            match driver_asks {
                true => prop_assert!(!driver.arm()),
                false => driver.disarm(),
            }
            let mut calls = 0;
            // In two portions: the second is not called for where the first was.
            for portion in [n / 2, n] {
                for _ in 0..portion {
                    if !queue.next(&driver.memory, Direction::Read, &mut chain).unwrap() {
                        break;
                    }
                    queue.give(&driver.memory, chain.token(), 0);
                }
                calls += usize::from(queue.publish(&driver.memory));
            }
            prop_assert!(!queue.publish(&driver.memory), "nothing new");
            if driver_asks {
                prop_assert!(calls >= 1);
                prop_assert!(calls == 1 || !features.event_index);
            } else if !features.event_index || features.packed {
                prop_assert_eq!(calls, 0);
            }
            while driver.reclaim().is_some() {}
        }
    }
}

#[test]
fn more_pieces_than_are_kept_are_cut_and_said() {
    for packed in [false, true] {
        let features = Features {
            packed,
            indirect: true,
            event_index: true,
        };
        let mut driver = Driver::new(256, features);
        let mut queue = driver.queue();
        let buffers = vec![(BUFFERS, 4, false); MAX_PIECES + 1];
        driver.offer(&buffers, None).unwrap();
        driver.offer(&buffers, Some(BUFFERS + 4096)).unwrap();
        driver.offer(&buffers[1..], None).unwrap();
        let mut chain = Chain::new();
        for cut in [true, true, false] {
            assert!(
                queue
                    .next(&driver.memory, Direction::Read, &mut chain)
                    .unwrap()
            );
            assert_eq!((chain.is_cut(), chain.total()), (cut, 4 * MAX_PIECES));
            queue.give(&driver.memory, chain.token(), 0);
        }
        queue.publish(&driver.memory);
        assert_eq!(std::iter::from_fn(|| driver.reclaim()).count(), 3);
    }
}

#[test]
fn a_split_ring_runs_over_its_index() {
    let features = Features::default();
    let mut driver = Driver::new(4, features);
    let stand = Stand {
        available: 0,
        used: 0,
    };
    let mut queue = Queue::new(&driver.memory, &driver.layout, features, stand).unwrap();
    let mut chain = Chain::new();
    for _ in 0..70_000 {
        driver.offer(&[(BUFFERS, 4, false)], None).unwrap();
        assert!(
            queue
                .next(&driver.memory, Direction::Read, &mut chain)
                .unwrap()
        );
        queue.give(&driver.memory, chain.token(), 0);
        queue.publish(&driver.memory);
        assert!(driver.reclaim().is_some());
    }
}

#[test]
fn nothing_allocates() {
    for packed in [false, true] {
        let features = Features {
            packed,
            indirect: true,
            event_index: true,
        };
        let mut driver = Driver::new(64, features);
        for n in 0..32 {
            driver.offer(&[(BUFFERS + n * 64, 64, false)], None);
        }
        let mut queue = driver.queue();
        let counted = allocation_counter::measure(|| {
            let mut chain = Chain::new();
            let mut bytes = [0; 64];
            while queue
                .next(&driver.memory, Direction::Read, &mut chain)
                .unwrap()
            {
                chain.read(&driver.memory, 0, &mut bytes);
                queue.give(&driver.memory, chain.token(), 0);
            }
            queue.publish(&driver.memory);
        });
        assert_eq!(counted.count_total, 0);
    }
}
