//! What was written is there before one looks whether the other side sleeps: without a
//! fence between, both may sleep.

use super::driver::{BUFFERS, Driver};
use crate::{Chain, Direction, Features, GuestMemory, Heap};
use std::cell::RefCell;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Load,
    Store,
    Fence,
}

struct Noted<'a> {
    memory: &'a Heap,
    steps: RefCell<Vec<Step>>,
}

impl Noted<'_> {
    fn note(&self, step: Step) {
        self.steps.borrow_mut().push(step);
    }
}

impl GuestMemory for Noted<'_> {
    fn locate(&self, address: u64, len: usize) -> Option<(usize, usize)> {
        self.memory.locate(address, len)
    }
    fn load16(&self, at: usize) -> u16 {
        self.note(Step::Load);
        self.memory.load16(at)
    }
    fn store16(&self, at: usize, value: u16) {
        self.note(Step::Store);
        self.memory.store16(at, value);
    }
    fn load64(&self, at: usize) -> u64 {
        self.note(Step::Load);
        self.memory.load64(at)
    }
    fn store64(&self, at: usize, value: u64) {
        self.note(Step::Store);
        self.memory.store64(at, value);
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        self.memory.read(at, out);
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        self.memory.write(at, bytes);
    }
    fn fence(&self) {
        self.note(Step::Fence);
    }
}

#[test]
fn a_fence_stands_between_what_is_written_and_the_look_at_the_sleeper() {
    for bits in 0..4 {
        let features = Features {
            packed: bits & 1 == 1,
            event_index: bits & 2 == 2,
            indirect: false,
        };
        let mut driver = Driver::new(8, features);
        driver.offer(&[(BUFFERS, 8, false)], None);
        let mut queue = driver.queue();
        let noted = Noted {
            memory: &driver.memory,
            steps: RefCell::default(),
        };
        let mut chain = Chain::new();
        assert_eq!(queue.next(&noted, Direction::Read, &mut chain), Ok(true));
        queue.give(&noted, chain.token(), 0);
        noted.steps.borrow_mut().clear();
        queue.publish(&noted);
        between(&noted.steps.take());
        queue.arm(&noted).unwrap();
        between(&noted.steps.take());
    }
}

/// Stores, a fence, loads: nothing else, in this order.
fn between(steps: &[Step]) {
    let fence = steps.iter().position(|step| *step == Step::Fence);
    let (stores, loads) = steps.split_at(fence.expect("no fence"));
    assert!(!stores.is_empty() && loads.len() > 1, "{steps:?}");
    assert!(stores.iter().all(|step| *step == Step::Store), "{steps:?}");
    assert!(
        loads[1..].iter().all(|step| *step == Step::Load),
        "{steps:?}"
    );
}
