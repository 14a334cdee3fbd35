//! A device side that dies at any store, and its successor: every chain goes back once.

use super::driver::{BUFFERS, Buffer, Driver};
use crate::{Chain, Direction, Features, GuestMemory, Heap, Queue, Stand};
use proptest::prelude::*;
use std::cell::Cell;

/// Memory of a process that dies after so many stores.
struct Mortal<'a> {
    memory: &'a Heap,
    left: Cell<usize>,
}

impl Mortal<'_> {
    fn lives(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }
}

impl GuestMemory for Mortal<'_> {
    fn locate(&self, address: u64, len: usize) -> Option<(usize, usize)> {
        self.memory.locate(address, len)
    }
    fn load16(&self, at: usize) -> u16 {
        self.memory.load16(at)
    }
    fn store16(&self, at: usize, value: u16) {
        if self.lives() {
            self.memory.store16(at, value);
        }
    }
    fn load64(&self, at: usize) -> u64 {
        self.memory.load64(at)
    }
    fn store64(&self, at: usize, value: u64) {
        if self.lives() {
            self.memory.store64(at, value);
        }
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        self.memory.read(at, out);
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        if self.lives() {
            self.memory.write(at, bytes);
        }
    }
    fn fence(&self) {}
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whoever_comes_after_gives_back_each_chain_once(
        packed: bool, lives in prop::collection::vec((1usize..5, 0usize..12, 1usize..4), 1..40))
    {
        let features = Features { packed, event_index: true, indirect: false };
        let mut driver = Driver::new(16, features);
        let memory = driver.memory.clone();
        let start = driver.queue().stand();
        // What the dead one noted: where it was, and would be.
        let mut noted = (start, start);
        let (mut offered, mut returned) = (Vec::new(), Vec::new());
        for (chains, stores, pieces) in lives {
            for _ in 0..chains {
                let buffers: Vec<Buffer> = vec![(BUFFERS, 8, false); pieces];
                offered.extend(driver.offer(&buffers, None));
            }
            let mortal = Mortal { memory: &memory, left: Cell::new(stores) };
            let (before, after) = noted;
            let recovered = Queue::recover(&mortal, &driver.layout, features, before, after);
            if mortal.left.get() == 0 {
                // It died while it recovered: nothing is noted, the next one does it again.
            } else {
                let mut queue = recovered.unwrap();
                let mut chain = Chain::new();
                while queue.next(&mortal, Direction::Read, &mut chain).unwrap() {
                    queue.give(&mortal, chain.token(), 0);
                }
                noted = (queue.published(), queue.given());
                queue.publish(&mortal);
                if mortal.left.get() > 0 {
                    noted = (queue.given(), queue.given());
                }
            }
            returned.extend(std::iter::from_fn(|| driver.reclaim()).map(|(name, _)| name));
        }
        let mut queue = Queue::recover(&memory, &driver.layout, features, noted.0, noted.1).unwrap();
        let mut chain = Chain::new();
        while queue.next(&memory, Direction::Read, &mut chain).unwrap() {
            queue.give(&memory, chain.token(), 0);
        }
        queue.publish(&memory);
        returned.extend(std::iter::from_fn(|| driver.reclaim()).map(|(name, _)| name));
        prop_assert_eq!(returned, offered);
    }
}

#[test]
fn what_was_noted_need_not_be_true() {
    let features = Features {
        packed: true,
        event_index: true,
        indirect: false,
    };
    let driver = Driver::new(16, features);
    for (before, after) in [(0x8000, 0x8010), (0x0003, 0x8000), (0xffff, 0x8000)] {
        let stand = |used| Stand { available: 0, used };
        // Whatever comes of it, it ends.
        let _ = Queue::recover(
            &driver.memory,
            &driver.layout,
            features,
            stand(before),
            stand(after),
        );
    }
}
