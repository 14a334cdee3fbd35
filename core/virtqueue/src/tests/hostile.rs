//! What a hostile driver can do: end its own queue, by name.

use super::driver::{BUFFERS, BUFFERS_LEN, Driver, RINGS, layout, memory, start};
use crate::{Breach, Chain, Direction, Features, GuestMemory, Heap, Layout, Queue, Stand};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};

const SPLIT: Features = Features {
    packed: false,
    indirect: true,
    event_index: false,
};
const PACKED: Features = Features {
    packed: true,
    ..SPLIT
};

fn taken(driver: &Driver, want: Direction) -> Result<bool, Breach> {
    let mut queue = driver.queue();
    queue.next(&driver.memory, want, &mut Chain::new())
}

#[test]
fn buffers_elsewhere_empty_or_for_the_other_side_are_refused() {
    for features in [SPLIT, PACKED] {
        let bad = [
            ((0, 64, false), Breach::Buffer),
            ((BUFFERS + BUFFERS_LEN as u64, 1, false), Breach::Buffer),
            ((BUFFERS + BUFFERS_LEN as u64 - 1, 2, false), Breach::Buffer),
            ((BUFFERS - 1, 2, false), Breach::Buffer),
            ((u64::MAX, 2, false), Breach::Buffer),
            ((u64::MAX - 7, u32::MAX, false), Breach::Buffer),
            ((BUFFERS, u32::MAX, false), Breach::Buffer),
            ((BUFFERS, 0, false), Breach::Buffer),
            ((BUFFERS, 64, true), Breach::Direction),
        ];
        for (buffer, breach) in bad {
            for indirect in [None, Some(BUFFERS + 4096)] {
                let mut driver = Driver::new(8, features);
                driver.offer(&[(BUFFERS, 8, false), buffer], indirect);
                assert_eq!(taken(&driver, Direction::Read), Err(breach), "{buffer:?}");
            }
        }
        let mut driver = Driver::new(8, features);
        driver.offer(&[(BUFFERS, 8, true), (BUFFERS, 8, false)], None);
        assert_eq!(taken(&driver, Direction::Write), Err(Breach::Direction));
        assert_eq!(taken(&driver, Direction::Both), Err(Breach::Direction));
        let mut driver = Driver::new(8, features);
        driver.offer(&[(BUFFERS, 8, false), (BUFFERS, 8, true)], None);
        assert_eq!(taken(&driver, Direction::Both), Ok(true));
    }
}

#[test]
fn a_buffer_over_two_regions_is_two_pieces() {
    let memory = Heap::new(&[(RINGS, 1 << 16), (BUFFERS, 4096), (BUFFERS + 4096, 4096)]);
    let mut driver = Driver::new(8, SPLIT);
    driver.memory = memory;
    driver.offer(&[(BUFFERS + 4000, 200, true)], None);
    let mut queue = driver.queue();
    let mut chain = Chain::new();
    assert!(
        queue
            .next(&driver.memory, Direction::Write, &mut chain)
            .unwrap()
    );
    let bytes: Vec<u8> = (0..200).collect();
    assert_eq!(chain.write(&driver.memory, 0, &bytes), 200);
    let mut back = [0; 1];
    driver.get(BUFFERS + 4096, &mut back);
    assert_eq!(back[0], 96);
}

#[test]
fn rings_that_cannot_be_are_refused() {
    let good = layout(8);
    let end = RINGS + (1 << 16);
    for features in [SPLIT, PACKED] {
        let make =
            |layout: Layout, stand: Stand| Queue::new(&memory(), &layout, features, stand).err();
        let begin = start(features);
        assert_eq!(make(good, begin), None);
        for size in [0, 32769, u16::MAX] {
            assert_eq!(make(Layout { size, ..good }, begin), Some(Breach::Size));
        }
        for (descriptors, driver, device) in [
            (end - 16, good.driver, good.device),
            (RINGS + 8, good.driver, good.device),
            (RINGS - 16, good.driver, good.device),
            (RINGS, end - 2, good.device),
            (RINGS, RINGS + 0x8001, good.device),
            (RINGS, good.driver, end - 2),
            (RINGS, good.driver, RINGS + 0xa002),
            (RINGS, u64::MAX - 1, good.device),
        ] {
            let layout = Layout {
                size: 8,
                descriptors,
                driver,
                device,
            };
            assert_eq!(make(layout, begin), Some(Breach::Ring), "{layout:?}");
        }
    }
    let make = |features, size, available, used| {
        let layout = layout(size);
        Queue::new(&memory(), &layout, features, Stand { available, used }).err()
    };
    assert_eq!(make(SPLIT, 12, 0, 0), Some(Breach::Size));
    assert_eq!(make(SPLIT, 8, 9, 0), Some(Breach::Available));
    assert_eq!(make(SPLIT, 8, 4, 65_532), None);
    assert_eq!(make(PACKED, 12, 0x8000, 0x8000), None);
    assert_eq!(make(PACKED, 12, 0x800c, 0x8000), Some(Breach::Available));
    assert_eq!(make(PACKED, 12, 0x8000, 0x8001), Some(Breach::Available));
    assert_eq!(make(PACKED, 12, 0x0002, 0x8001), Some(Breach::Available));
    assert_eq!(make(PACKED, 12, 0x0001, 0x8001), None);
}

#[test]
fn an_index_that_runs_ahead_is_refused() {
    let mut driver = Driver::new(8, SPLIT);
    driver.offer(&[(BUFFERS, 8, false)], None);
    driver.put(RINGS + 0x8002, &9u16.to_le_bytes());
    assert_eq!(taken(&driver, Direction::Read), Err(Breach::Available));
    // Also behind ones that were taken, as long as they are not given back.
    driver.put(RINGS + 0x8002, &8u16.to_le_bytes());
    driver.descriptor(RINGS, BUFFERS, 8, 0, 0);
    let mut queue = driver.queue();
    let mut chain = Chain::new();
    for _ in 0..8 {
        assert_eq!(
            queue.next(&driver.memory, Direction::Read, &mut chain),
            Ok(true)
        );
    }
    // Nor one that runs back.
    for index in [9u16, 7, 65_535] {
        driver.put(RINGS + 0x8002, &index.to_le_bytes());
        let next = queue.next(&driver.memory, Direction::Read, &mut chain);
        assert_eq!(next, Err(Breach::Available));
    }
}

#[test]
fn a_packed_ring_gives_no_entry_twice() {
    let mut driver = Driver::new(4, PACKED);
    let mut queue = driver.queue();
    let mut chain = Chain::new();
    for _ in 0..3 {
        driver.offer(&[(BUFFERS, 8, false)], None);
        assert_eq!(
            queue.next(&driver.memory, Direction::Read, &mut chain),
            Ok(true)
        );
    }
    // A chain of two where one entry is left: it runs into those that are out.
    driver.descriptor(RINGS + 48, BUFFERS, 8, 1 | 1 << 7, 0);
    let next = queue.next(&driver.memory, Direction::Read, &mut chain);
    assert_eq!(next, Err(Breach::Available));
}

#[test]
fn chains_that_loop_or_leave_the_ring_are_refused() {
    let driver = Driver::new(8, SPLIT);
    driver.put(RINGS + 0x8002, &1u16.to_le_bytes());
    driver.descriptor(RINGS, BUFFERS, 8, 1, 0);
    assert_eq!(taken(&driver, Direction::Read), Err(Breach::Loop));
    driver.descriptor(RINGS, BUFFERS, 8, 1, 8);
    assert_eq!(taken(&driver, Direction::Read), Err(Breach::Descriptor));
    driver.put(RINGS + 0x8004, &8u16.to_le_bytes());
    assert_eq!(taken(&driver, Direction::Read), Err(Breach::Descriptor));
    let driver = Driver::new(8, PACKED);
    for i in 0..8 {
        driver.descriptor(RINGS + 16 * i, BUFFERS, 8, 1 | 1 << 7, 0);
    }
    assert_eq!(taken(&driver, Direction::Read), Err(Breach::Loop));
}

#[test]
fn indirect_tables_are_held_to_the_specification() {
    let table = BUFFERS + 4096;
    for features in [SPLIT, PACKED] {
        let available = if features.packed { 1 << 7 } else { 0 };
        let refused = |features, address, length, flags, in_table| {
            let driver = Driver::new(8, features);
            driver.put(RINGS + 0x8002, &1u16.to_le_bytes());
            driver.descriptor(table, BUFFERS, 8, in_table, 1);
            driver.descriptor(table + 16, BUFFERS, 8, 0, 0);
            driver.descriptor(RINGS, address, length, flags | available, 1);
            driver.descriptor(RINGS + 16, BUFFERS, 8, available, 0);
            taken(&driver, Direction::Read)
        };
        let next = u16::from(!features.packed);
        assert_eq!(refused(features, table, 32, 4, next), Ok(true));
        let without = Features {
            indirect: false,
            ..features
        };
        for (features, address, length, flags, in_table) in [
            (without, table, 32, 4, next),
            (features, table, 32, 4, 4),
            (features, table, 32, 5, next),
            (features, table, 0, 4, next),
            (features, table, 33, 4, next),
            (features, table + 8, 32, 4, next),
            (features, BUFFERS + BUFFERS_LEN as u64 - 16, 32, 4, next),
            (features, 0, 32, 4, next),
            (features, table, 16 * 32769, 4, next),
        ] {
            let got = refused(features, address, length, flags, in_table);
            assert_eq!(got, Err(Breach::Indirect), "{address:x} {length} {flags}");
        }
    }
    let driver = Driver::new(8, SPLIT);
    driver.put(RINGS + 0x8002, &1u16.to_le_bytes());
    driver.descriptor(RINGS, table, 32, 4, 0);
    driver.descriptor(table, BUFFERS, 8, 1, 2);
    assert_eq!(taken(&driver, Direction::Read), Err(Breach::Descriptor));
    driver.descriptor(table, BUFFERS, 8, 1, 0);
    assert_eq!(taken(&driver, Direction::Read), Err(Breach::Loop));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is in memory, and whoever writes it meanwhile: no panic, an end, and no
    /// bytes but guest memory's.
    #[test]
    fn scribbled_memory_harms_nobody(seed: u64, packed: bool, event_index: bool, is_written: bool) {
        let features = Features { packed, event_index, indirect: true };
        let memory = memory();
        let stop = AtomicBool::new(false);
        let want = if is_written { Direction::Write } else { Direction::Read };
        std::thread::scope(|scope| {
            scope.spawn(|| scribble(&memory, seed, &stop));
            let mut bytes = [0; 256];
            for _ in 0..20 {
                let begin = start(features);
                let Ok(mut queue) = Queue::new(&memory, &layout(64), features, begin) else { continue };
                let mut chain = Chain::new();
                for _ in 0..64 {
                    match queue.next(&memory, want, &mut chain) {
                        Ok(true) => {
                            chain.read(&memory, 3, &mut bytes);
                            if is_written {
                                chain.write(&memory, 5, &bytes);
                            }
                            queue.give(&memory, chain.token(), 7);
                        }
                        Ok(false) => { let _ = queue.arm(&memory); }
                        Err(_) => break,
                    }
                    queue.publish(&memory);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

/// Writes what looks like descriptors, indices and flags, everywhere in the rings.
fn scribble(memory: &Heap, mut seed: u64, stop: &AtomicBool) {
    let mut random = move || {
        // xorshift64*
        seed |= 1;
        seed ^= seed >> 12;
        seed ^= seed << 25;
        seed ^= seed >> 27;
        seed.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    while !stop.load(Ordering::Relaxed) {
        let (what, place) = (random(), random());
        let descriptor = (place % 64 * 16) as usize;
        match what % 6 {
            0 => memory.store64(descriptor, BUFFERS + random() % BUFFERS_LEN as u64),
            1 => memory.store64(descriptor, random()),
            2 => memory.store64(descriptor + 8, random() & 0xff8f_00ff_0000_00ff),
            3 => memory.store64(descriptor + 8, random()),
            4 => memory.store16(0x8000 + (place % 68 * 2) as usize, random() as u16 & 0xff),
            _ => memory.store16(0x8002, random() as u16 & 0x7f),
        }
    }
}
