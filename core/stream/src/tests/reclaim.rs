//! Memory that is given back while both ends go on.

use super::*;
use crate::Side;
use crate::reclaim::{Kept, Look, done, is_idle, look};

/// Of one direction; by the other nothing ever goes.
impl Kept for Memory {
    fn of_writer(&self, side: Side, word: ProducerWord) -> u64 {
        match side {
            Side::Began => self.0.producer[word as usize].get(),
            Side::Accepted => 0,
        }
    }
    fn of_reader(&self, side: Side, word: ConsumerWord) -> u64 {
        match side {
            Side::Began => self.0.consumer[word as usize].get(),
            Side::Accepted => 0,
        }
    }
    fn reclaims(&self, side: Side, value: u64) {
        if side == Side::Began {
            self.0.consumer[ConsumerWord::Reclaims as usize].set(value);
        }
    }
}

/// Who keeps the memory.
#[derive(Default)]
pub(super) struct Keeper {
    seen: [u64; 2],
    asked: bool,
    unread: u32,
}

impl Keeper {
    pub(super) fn tick(&mut self, memory: &Memory) {
        if self.asked {
            if is_idle(memory, self.seen) {
                memory.0.data.borrow_mut().fill(0xee);
                memory.0.given_back.set(memory.0.given_back.get() + 1);
            }
            done(memory);
            self.asked = false;
            return;
        }
        match look(memory, self.seen) {
            Look::Moved(now) => self.seen = now,
            Look::Unread => self.unread += 1,
            Look::Asked => self.asked = true,
        }
    }
}

/// Ticks so often that what is idle is given back; how often it was.
pub(super) fn ticks(keeper: &mut Keeper, memory: &Memory) -> u32 {
    let before = memory.0.given_back.get();
    for _ in 0..3 {
        keeper.tick(memory);
    }
    if keeper.asked {
        keeper.tick(memory);
    }
    memory.0.given_back.get() - before
}

#[test]
fn memory_that_nobody_uses_is_given_back_and_used_again() {
    let pipe = Pipe::of(100);
    let (memory, mut writer, mut reader) = switched(&pipe);
    let mut keeper = Keeper::default();
    assert_eq!(writer.write(&pipe, &[7; 60], Full::Spills), Ok(60));
    assert_eq!(ticks(&mut keeper, &memory), 0, "nothing is read yet");
    assert!(keeper.unread > 0);
    assert_eq!(read(&mut reader, &pipe, 40), Ok(vec![7; 40]));
    assert_eq!(ticks(&mut keeper, &memory), 0, "not all is");
    assert_eq!(read(&mut reader, &pipe, 60), Ok(vec![7; 20]));
    assert!(ticks(&mut keeper, &memory) > 0);
    // What is reserved is not taken away, however long it takes.
    let room = writer.reserve().unwrap();
    assert_eq!(writer.fill(0, &[8; 30]), 30);
    assert_eq!(room, CAPACITY);
    assert_eq!(ticks(&mut keeper, &memory), 0);
    writer.commit(&pipe, 30).unwrap();
    assert_eq!(read(&mut reader, &pipe, 60), Ok(vec![8; 30]));
    assert!(ticks(&mut keeper, &memory) > 0);
    // Who writes instead has given up what it reserved.
    writer.reserve().unwrap();
    assert_eq!(writer.write(&pipe, &[9; 30], Full::Spills), Ok(30));
    assert_eq!(read(&mut reader, &pipe, 60), Ok(vec![9; 30]));
    assert!(ticks(&mut keeper, &memory) > 0);
}

#[test]
fn while_memory_is_given_back_bytes_go_by_the_socket() {
    let pipe = Pipe::of(100);
    let (memory, mut writer, mut reader) = switched(&pipe);
    let mut keeper = Keeper::default();
    keeper.tick(&memory);
    keeper.tick(&memory);
    assert!(keeper.asked);
    assert_eq!(writer.in_ring(&pipe), Ok(false));
    assert_eq!(writer.reserve(), Ok(0));
    for full in [Full::Waits, Full::Spills] {
        assert_eq!(writer.write(&pipe, &[7; 20], full), Ok(20));
    }
    assert!(pipe.holds().len() >= 40);
    keeper.tick(&memory);
    assert_eq!(memory.0.given_back.get(), 1);
    // Behind them in the order in which they were written.
    assert_eq!(writer.in_ring(&pipe), Ok(false));
    for _ in 0..2 {
        assert_eq!(read(&mut reader, &pipe, 60), Ok(vec![7; 20]));
    }
    assert_eq!(writer.in_ring(&pipe), Ok(true));
    assert_eq!(writer.write(&pipe, &[9; 20], Full::Spills), Ok(20));
    assert_eq!(read(&mut reader, &pipe, 60), Ok(vec![9; 20]));
}

/// Who sleeps by the memory would not hear of it.
#[test]
fn nobody_naps_while_memory_is_given_back() {
    let pipe = Pipe::of(100);
    let (memory, _writer, mut reader) = switched(&pipe);
    let mut keeper = Keeper::default();
    for naps in [true, false, true] {
        let asked = keeper.asked;
        assert_eq!(reader.nap().unwrap().is_some(), naps, "{asked}");
        reader.nap_is_over();
        keeper.tick(&memory);
        if !asked {
            keeper.tick(&memory);
        }
    }
}
