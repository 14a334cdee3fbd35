//! Frames over queues: whole, in order, behind the right header.

use super::driver::{BUFFERS, Buffer, Driver, memory, start};
use crate::net::{Form, FromGuest, PutError, ToGuest};
use crate::{Breach, Features, GuestMemory, Heap, Queue};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::rc::Rc;
use wire::offload::RawOffload;

fn offload(n: u16) -> RawOffload {
    RawOffload {
        flags: 1,
        gso_type: 4,
        gso_size: n,
        csum_start: 34,
        csum_offset: 16,
    }
}

fn pair(features: Features, size: u16) -> (Driver, Queue, Rc<Heap>) {
    let driver = Driver::new(size, features);
    let memory = Rc::new(driver.memory.clone());
    let queue = driver.queue();
    (driver, queue, memory)
}

fn kinds() -> impl Strategy<Value = (Features, Form)> {
    any::<(bool, bool, bool, bool)>().prop_map(|(packed, event_index, merged, modern)| {
        let features = Features {
            packed,
            event_index,
            indirect: true,
        };
        (features, Form { merged, modern })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames_for_a_guest_come_whole_over_as_many_buffers_as_it_takes(
        (features, form) in kinds(), room in 20u32..300, buffers in 1usize..3,
        frames in prop::collection::vec((1usize..900, 0usize..100), 1..40))
    {
        let (mut driver, queue, memory) = pair(features, 16);
        let mut to = ToGuest::new(Rc::clone(&memory), form);
        to.put(0, Some(queue));
        let header = if form.merged || form.modern { 12 } else { 10 };
        let mut places = std::collections::HashMap::new();
        let mut free: Vec<u64> = (0..16).collect();
        let (mut offered, mut sent) = (VecDeque::new(), VecDeque::new());
        for (n, (length, head)) in frames.into_iter().enumerate() {
            while let Some(place) = free.pop() {
                let at = BUFFERS + place * 1024;
                let pieces: Vec<Buffer> = (0..buffers as u64).map(|i| (at + i * 400, room, true)).collect();
                match driver.offer(&pieces, None) {
                    Some(name) => { places.insert(name, place); offered.push_back(name); }
                    None => { free.push(place); break; }
                }
            }
            let frame: Vec<u8> = (0..length).map(|i| (n * 7 + i) as u8).collect();
            let (front, rest) = frame.split_at(head.min(length));
            let got = to.send(|| n as u32, &offload(n as u16), front, rest.len(), |memory, at, from, n| {
                memory.write(at, &rest[from..from + n]);
            });
            let each = room as usize * buffers;
            let needs = (header + length).div_ceil(each);
            let fits = needs == 1 || form.merged;
            let expected = if !fits { Err(PutError::TooLong) }
                else if needs > offered.len() { Err(PutError::Full) } else { Ok(()) };
            prop_assert_eq!(got, expected);
            if got.is_ok() {
                offered.drain(..needs);
                sent.push_back((frame, needs, n));
            }
            if n % 3 == 0 {
                to.publish(|_, _, _| {});
                let mut came = VecDeque::new();
                while let Some((name, written)) = driver.reclaim() {
                    let place = places.remove(&name).unwrap();
                    let mut bytes = Vec::new();
                    for i in 0..buffers as u64 {
                        let mut part = vec![0; room as usize];
                        driver.get(BUFFERS + place * 1024 + i * 400, &mut part);
                        bytes.extend(part);
                    }
                    bytes.truncate(written as usize);
                    came.push_back(bytes);
                    free.push(place);
                }
                while let Some((frame, needs, n)) = sent.pop_front() {
                    let parts: Vec<Vec<u8>> = came.drain(..needs).collect();
                    let all = parts.concat();
                    prop_assert_eq!(&all[header..], &frame[..]);
                    prop_assert_eq!(&all[..10], &[1, 4, 0, 0, n as u8, (n >> 8) as u8, 34, 0, 16, 0]);
                    if header == 12 {
                        prop_assert_eq!(usize::from(all[10]), needs);
                    }
                }
                prop_assert!(came.is_empty());
            }
        }
    }

    #[test]
    fn frames_of_a_guest_come_whole_and_wait_where_they_are(
        (features, form) in kinds(), frames in prop::collection::vec((1usize..500, 1usize..4, any::<bool>()), 1..30))
    {
        let (mut driver, queue, memory) = pair(features, 16);
        let mut from = FromGuest::new(Rc::clone(&memory), form);
        from.put(0, Some(queue));
        let header = if form.merged || form.modern { 12 } else { 10 };
        for (n, (length, pieces, waits)) in frames.into_iter().enumerate() {
            prop_assert!(from.peek().unwrap().is_none());
            let mut bytes = vec![1, 1, 99, 0, n as u8, 0, 34, 0, 16, 0, 0, 0];
            bytes.truncate(header);
            bytes.extend((0..length).map(|i| (n + i) as u8));
            let size = bytes.len().div_ceil(pieces);
            let mut buffers: Vec<Buffer> = Vec::new();
            for (i, part) in bytes.chunks(size).enumerate() {
                let at = BUFFERS + i as u64 * 1024;
                driver.put(at, part);
                buffers.push((at, part.len() as u32, false));
            }
            driver.offer(&buffers, None).unwrap();
            for _ in 0..1 + usize::from(waits) {
                let frame = from.peek().unwrap().unwrap();
                prop_assert_eq!((frame.len(), frame.is_over()), (length, false));
                prop_assert_eq!(frame.offload(), RawOffload { gso_type: 1, ..offload(n as u16) });
                let mut got = vec![0; length + 5];
                prop_assert_eq!(frame.copy(0, &mut got), length);
                prop_assert_eq!(&got[..length], &bytes[header..]);
                let mut again = vec![0; length];
                frame.pieces(length / 2, length, |memory, at, done, n| {
                    memory.read(at, &mut again[done..done + n]);
                });
                prop_assert_eq!(&again[..length - length / 2], &bytes[header + length / 2..]);
                from.publish(|_, _, _| {});
                prop_assert!(driver.reclaim().is_none(), "it waits");
                if waits && n % 2 == 0 {
                    // Who goes on from here takes it as well.
                    let stand = from.stand(0).unwrap();
                    let queue = Queue::new(&*memory, &driver.layout, features, stand).unwrap();
                    from.put(0, Some(queue));
                }
            }
            from.peek().unwrap();
            from.advance();
            from.publish(|_, _, _| {});
            prop_assert!(driver.reclaim().is_some());
        }
    }
}

#[test]
fn a_chain_without_room_for_the_header_is_a_breach() {
    for (modern, length, is_short) in [(true, 11, true), (false, 11, false), (false, 9, true)] {
        let form = Form {
            merged: false,
            modern,
        };
        let (mut driver, queue, memory) = pair(Features::default(), 8);
        driver.offer(&[(BUFFERS, length, false)], None);
        let mut from = FromGuest::new(memory, form);
        from.put(0, Some(queue));
        assert_eq!(from.peek().err(), is_short.then_some(Breach::Short));
        let (mut driver, queue, memory) = pair(Features::default(), 8);
        driver.offer(&[(BUFFERS, length, true)], None);
        let mut to = ToGuest::new(memory, form);
        to.put(0, Some(queue));
        let got = to.send(|| 0, &offload(0), &[1], 0, |_, _, _, _| {});
        assert_eq!(got == Err(PutError::Breach(Breach::Short)), is_short);
    }
}

/// One buffer is taken without a chain, where it is all of one, of the right direction, and
/// not empty: else as any chain is.
#[test]
fn one_buffer_is_held_to_what_chains_are() {
    let form = Form {
        merged: true,
        modern: true,
    };
    for packed in [false, true] {
        let features = Features {
            packed,
            indirect: true,
            ..Features::default()
        };
        let breach = |breach| Err(PutError::Breach(breach));
        let put = |driver: &mut Driver, queue, memory| {
            let mut to = ToGuest::new(memory, form);
            to.put(0, Some(queue));
            let got = to.send(|| 0, &offload(0), &[7; 60], 0, |_, _, _, _| {});
            to.publish(|_, _, _| {});
            (got, driver.reclaim().map(|(_, written)| written))
        };
        let wrong = [
            ((BUFFERS, 200, false), Breach::Direction),
            ((BUFFERS, 0, true), Breach::Buffer),
            ((0x77, 200, true), Breach::Buffer),
        ];
        for (buffer, expected) in wrong {
            let (mut driver, queue, memory) = pair(features, 8);
            driver.offer(&[buffer], None);
            assert_eq!(put(&mut driver, queue, memory).0, breach(expected));
        }
        // By a table, whose bytes are not the frame's.
        let (mut driver, queue, memory) = pair(features, 8);
        driver.offer(&[(BUFFERS, 200, true)], Some(BUFFERS + 4096));
        let mut table = [0; 16];
        driver.get(BUFFERS + 4096, &mut table);
        assert_eq!(put(&mut driver, queue, memory), (Ok(()), Some(72)));
        let (mut after, mut frame) = ([0; 16], [0; 60]);
        driver.get(BUFFERS + 4096, &mut after);
        driver.get(BUFFERS + 12, &mut frame);
        assert_eq!((table, frame), (after, [7; 60]));

        let take = |buffer: Buffer, table: Option<u64>| {
            let (mut driver, queue, memory) = pair(features, 8);
            driver.put(BUFFERS + 12, &[9; 60]);
            driver.offer(&[buffer], table);
            let mut from = FromGuest::new(memory, form);
            from.put(0, Some(queue));
            let mut frame = [0; 60];
            let taken = from.peek().map(|it| it.map(|it| it.copy(0, &mut frame)));
            (taken, frame)
        };
        let good = (Ok(Some(60)), [9; 60]);
        assert_eq!(take((BUFFERS, 72, false), None), good);
        assert_eq!(take((BUFFERS, 72, false), Some(BUFFERS + 4096)), good);
        let direction = take((BUFFERS, 72, true), None).0;
        assert_eq!(direction, Err(Breach::Direction));
        assert_eq!(take((BUFFERS, 0, false), None).0, Err(Breach::Buffer));
    }
}

/// What is given back between two looks of the driver has room in what is kept for it; and one
/// buffer has the price of one.
#[test]
fn single_buffers_wait_for_the_driver_to_be_shown_others() {
    let features = Features {
        packed: true,
        ..Features::default()
    };
    let form = Form {
        merged: true,
        modern: true,
    };
    let (mut driver, queue, memory) = pair(features, 512);
    let pieces: Vec<Buffer> = vec![(BUFFERS, 30, true); 5];
    driver.offer(&pieces, None).unwrap();
    while driver.offer(&[(BUFFERS, 200, true)], None).is_some() {}
    let mut to = ToGuest::new(memory, form);
    to.put(0, Some(queue));
    let put = |to: &mut ToGuest<Heap>| to.send(|| 0, &offload(0), &[1; 60], 60, |_, _, _, _| {});
    assert_eq!((put(&mut to), to.scattered()), (Ok(()), 5));
    assert_eq!((put(&mut to), to.scattered()), (Ok(()), 1));
    let sent = (0..512).take_while(|_| put(&mut to).is_ok()).count();
    assert_eq!(sent, crate::MAX_BATCH - 64 + 1 - 2);
    let mut notes = 0;
    to.publish(|_, _, _| notes += 1);
    assert_eq!((notes, put(&mut to)), (2, Ok(())));
}

/// A packed ring's chain is followed to its end also where no more is kept of it.
#[test]
fn a_chain_longer_than_any_drivers_is_a_breach() {
    let features = Features {
        packed: true,
        ..Features::default()
    };
    for (pieces, receives) in [(256, true), (257, true), (256, false), (257, false)] {
        let form = Form {
            merged: false,
            modern: true,
        };
        let (mut driver, queue, memory) = pair(features, 512);
        let chain: Vec<Buffer> = vec![(BUFFERS, 1, receives); pieces];
        driver.offer(&chain, None).unwrap();
        let long = pieces > 256;
        if receives {
            let mut to = ToGuest::new(memory, form);
            to.put(0, Some(queue));
            let got = to.send(|| 0, &offload(0), &[1; 60], 0, |_, _, _, _| {});
            let expected = match long {
                true => PutError::Breach(Breach::Scattered),
                false => PutError::TooLong,
            };
            assert_eq!(got, Err(expected));
        } else {
            let mut from = FromGuest::new(memory, form);
            from.put(0, Some(queue));
            let got = from.peek().map(|frame| frame.map(|it| it.is_over()));
            assert_eq!(
                got,
                if long {
                    Err(Breach::Scattered)
                } else {
                    Ok(Some(true))
                }
            );
        }
    }
}

#[test]
fn a_frame_in_more_pieces_than_any_drivers_is_a_breach() {
    // Pieces of a buffer, bytes of each, buffers: what a frame of so many bytes comes to.
    let scattered = Err(PutError::Breach(Breach::Scattered));
    for (pieces, bytes, merged, frame, expected, touched) in [
        // Most drivers; Linux, whose frames are large and which does not merge; FreeBSD.
        (1, 1536, true, 65_000, Ok(()), 43),
        (2, 2048, false, 1514, Ok(()), 2),
        (19, 4096, false, 65_000, Ok(()), 16),
        (34, 2048, false, 65_000, Ok(()), 32),
        // Not its own small frames are the cost of large buffers.
        (19, 4096, false, 60, Ok(()), 1),
        (2, 520, true, 65_000, Ok(()), 126),
        // More than any driver names is read for nothing.
        (64, 2048, false, 60, Ok(()), 64),
        (64, 20, true, 1514, Ok(()), 128),
        (64, 20, true, 2400, Ok(()), 128),
        // What was read in vain, too.
        (64, 20, true, 2600, scattered, 192),
        (64, 1, true, 200, scattered, 192),
        (3, 10, true, 1514, scattered, 129),
        (1, 12, true, 1514, Err(PutError::TooLong), 65),
        (64, 20, false, 1514, Err(PutError::TooLong), 64),
    ] {
        for packed in [false, true] {
            let features = Features {
                packed,
                ..Features::default()
            };
            let form = Form {
                merged,
                modern: true,
            };
            let (mut driver, queue, memory) = pair(features, 256);
            let buffer: Vec<Buffer> = vec![(BUFFERS, bytes, true); pieces];
            while driver.offer(&buffer, None).is_some() {}
            let mut to = ToGuest::new(memory, form);
            to.put(0, Some(queue));
            let got = to.send(|| 0, &offload(0), &[0; 60], frame - 60, |_, _, _, _| {});
            assert_eq!(got, expected, "{frame} bytes in {pieces} of {bytes}");
            assert_eq!(
                to.scattered(),
                touched,
                "{frame} bytes in {pieces} of {bytes}"
            );
        }
    }
}

#[test]
fn a_flow_keeps_to_its_pair_and_pairs_have_their_turns() {
    let features = Features::default();
    let form = Form {
        merged: true,
        modern: true,
    };
    // Two rings in one memory: the second 4 KiB behind the first.
    let heap = memory();
    let mut drivers: Vec<Driver> = (0..2).map(|_| Driver::new(8, features)).collect();
    for (n, driver) in drivers.iter_mut().enumerate() {
        driver.memory = heap.clone();
        let by = n as u64 * 1024;
        driver.layout.descriptors += by;
        driver.layout.driver += by;
        driver.layout.device += by;
    }
    let make = |driver: &Driver| {
        Queue::new(&driver.memory, &driver.layout, features, start(features)).unwrap()
    };
    let memory = Rc::new(heap);
    let mut to = ToGuest::new(Rc::clone(&memory), form);
    assert_eq!(
        to.send(|| 0, &offload(0), &[1], 0, |_, _, _, _| {}),
        Err(PutError::NoQueue)
    );
    for (pair, driver) in drivers.iter_mut().enumerate() {
        for i in 0..4 {
            driver.offer(&[(BUFFERS + pair as u64 * 8192 + i * 256, 200, true)], None);
        }
        to.put(pair, Some(make(driver)));
    }
    for flow in [1, 0, 3, 5] {
        to.send(|| flow, &offload(0), &[1; 60], 0, |_, _, _, _| {})
            .unwrap();
    }
    to.publish(|_, _, _| {});
    let count = |driver: &mut Driver| std::iter::from_fn(|| driver.reclaim()).count();
    assert_eq!(drivers.iter_mut().map(count).collect::<Vec<_>>(), [1, 3]);
    // Of frames from both, a batch of each in turn.
    let mut drivers: Vec<Driver> = drivers;
    let mut from = FromGuest::new(memory, form);
    for (pair, driver) in drivers.iter_mut().enumerate() {
        let mut fresh = Driver::new(8, features);
        (fresh.memory, fresh.layout) = (driver.memory.clone(), driver.layout);
        fresh.put(fresh.layout.driver, &[0; 40]);
        fresh.put(fresh.layout.device, &[0; 80]);
        *driver = fresh;
        for i in 0..3 {
            let at = BUFFERS + 20_000 + pair as u64 * 8192 + i * 256;
            driver.put(at + 12, &[pair as u8]);
            driver.offer(&[(at, 80, false)], None);
        }
        from.put(pair, Some(make(driver)));
    }
    let mut seen = Vec::new();
    for _ in 0..3 {
        for _ in 0..2 {
            if let Some(frame) = from.peek().unwrap() {
                let mut byte = [9];
                frame.copy(0, &mut byte);
                seen.push(byte[0]);
                from.advance();
            }
        }
        from.publish(|_, _, _| {});
    }
    assert_eq!(seen, [0, 0, 1, 1, 0, 1]);
}

#[test]
fn frames_go_by_the_queues_that_are_set_up() {
    let form = Form {
        merged: true,
        modern: true,
    };
    let features = Features::default();
    let mut drivers: Vec<Driver> = (0..3).map(|_| Driver::new(8, features)).collect();
    let heap = memory();
    for (n, driver) in drivers.iter_mut().enumerate() {
        driver.memory = heap.clone();
        let by = n as u64 * 1024;
        driver.layout.descriptors += by;
        driver.layout.driver += by;
        driver.layout.device += by;
        for i in 0..8 {
            driver.offer(&[(BUFFERS + by * 4 + i * 256, 200, true)], None);
        }
    }
    let memory = Rc::new(heap);
    let make =
        |driver: &Driver| Queue::new(&*memory, &driver.layout, features, start(features)).unwrap();
    let mut to = ToGuest::new(Rc::clone(&memory), form);
    for (pair, driver) in drivers.iter().enumerate() {
        to.put(pair, Some(make(driver)));
    }
    // One in the middle goes, then the last one: what was theirs goes by another.
    let mut came = Vec::new();
    for gone in [None, Some(1), Some(2)] {
        if let Some(pair) = gone {
            to.put(pair, None);
        }
        for flow in 0..3 {
            let sent = to.send(|| flow, &offload(0), &[1; 60], 0, |_, _, _, _| {});
            assert_eq!(sent, Ok(()), "{gone:?} {flow}");
        }
        to.publish(|_, _, _| {});
        let count = |driver: &mut Driver| std::iter::from_fn(|| driver.reclaim()).count();
        came.push(drivers.iter_mut().map(count).collect::<Vec<_>>());
    }
    assert_eq!(came, [[1, 1, 1], [2, 0, 1], [3, 0, 0]]);
    to.put(0, None);
    let none = to.send(|| 0, &offload(0), &[1; 60], 0, |_, _, _, _| {});
    assert_eq!(none, Err(PutError::NoQueue));
}
