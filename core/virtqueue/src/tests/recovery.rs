//! A device side that dies at any store, and its successor: every chain goes back once.

use super::driver::{BUFFERS, Buffer, Driver};
use crate::net::{Form, FromGuest, ToGuest};
use crate::{Features, GuestMemory, Heap, Queue, Stand};
use proptest::prelude::*;
use std::cell::Cell;
use std::rc::Rc;
use wire::offload::RawOffload;

/// Memory of a process that dies after so many stores.
struct Mortal {
    memory: Heap,
    left: Cell<usize>,
}

impl Mortal {
    fn is_dead(&self) -> bool {
        self.left.get() == 0
    }

    fn lives(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }
}

impl GuestMemory for Mortal {
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

/// A life of the device side: it goes on where the one before it was, and takes and gives back
/// what there is; whether it had the driver called before it died. `noted`: where it was, and
/// would be.
fn live(driver: &Driver, stores: usize, noted: &mut (Stand, Stand)) -> bool {
    let memory = Rc::new(Mortal {
        memory: driver.memory.clone(),
        left: Cell::new(stores),
    });
    let (before, after) = *noted;
    let recovered = Queue::recover(&*memory, &driver.layout, driver.features, before, after);
    if memory.is_dead() {
        // It died while it recovered: nothing is noted, the next one does it again.
        return false;
    }
    let form = Form {
        merged: true,
        modern: true,
    };
    let mut from = FromGuest::new(Rc::clone(&memory), form);
    from.put(0, Some(recovered.unwrap()));
    let mut note = |_: usize, before, after| {
        if !memory.is_dead() {
            *noted = (before, after);
        }
    };
    let mut calls = from.publish(&mut note);
    let mut called = calls != 0 && !memory.is_dead();
    while from.peek().unwrap().is_some() {
        from.advance();
    }
    calls = from.publish(&mut note);
    called |= calls != 0 && !memory.is_dead();
    called
}

/// A driver that is called takes what came back until there is nothing more, and sleeps.
fn wake(driver: &mut Driver) -> Vec<u16> {
    let mut returned = Vec::new();
    loop {
        returned.extend(std::iter::from_fn(|| driver.reclaim()).map(|(name, _)| name));
        if !driver.arm() {
            return returned;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whoever_comes_after_gives_back_each_chain_once_and_says_so(
        packed: bool, event_index: bool,
        lives in prop::collection::vec((1usize..5, 0usize..12, 1usize..4), 1..40))
    {
        let features = Features { packed, event_index, indirect: false };
        let mut driver = Driver::new(16, features);
        let start = driver.queue().stand();
        let mut noted = (start, start);
        let (mut offered, mut returned) = (Vec::new(), Vec::new());
        driver.arm();
        for (chains, stores, pieces) in lives {
            for _ in 0..chains {
                let buffers: Vec<Buffer> = vec![(BUFFERS, 16, false); pieces];
                offered.extend(driver.offer(&buffers, None));
            }
            // It looks only when it is called.
            if live(&driver, stores, &mut noted) {
                returned.extend(wake(&mut driver));
            }
        }
        if live(&driver, usize::MAX, &mut noted) {
            returned.extend(wake(&mut driver));
        }
        prop_assert_eq!(returned, offered);
    }
}

#[test]
fn whoever_begins_calls_the_driver_once() {
    for (packed, event_index) in [(false, true), (true, true), (false, false), (true, false)] {
        let features = Features {
            packed,
            event_index,
            indirect: false,
        };
        let mut driver = Driver::new(16, features);
        let form = Form {
            merged: true,
            modern: true,
        };
        let memory = Rc::new(driver.memory.clone());
        let mut to = ToGuest::new(Rc::clone(&memory), form);
        to.put(2, Some(driver.queue()));
        assert_eq!(to.publish(|_, _, _| {}), 1 << 2);
        driver.arm();
        let buffers: [Buffer; 1] = [(BUFFERS, 100, true)];
        for _ in 0..5 {
            driver.offer(&buffers, None).unwrap();
        }
        let send = |to: &mut ToGuest<Heap>| {
            to.send(|| 0, &RawOffload::default(), &[0; 60], 0, |_, _, _, _| {})
                .unwrap();
        };
        let mut noted = None;
        send(&mut to);
        // It shows what came, and dies before it calls.
        assert_eq!(to.publish(|_, _, after| noted = Some(after)), 1 << 2);
        let noted = noted.unwrap();
        let queue = Queue::recover(&*memory, &driver.layout, features, noted, noted).unwrap();
        let mut to = ToGuest::new(Rc::clone(&memory), form);
        to.put(2, Some(queue));
        // Nothing may come for a long time: it is not left to the next frame.
        assert_eq!(to.publish(|_, _, _| {}), 1 << 2);
        assert_eq!(to.publish(|_, _, _| {}), 0, "once");
        // The event lies behind what is given now, and the driver has been told of that.
        send(&mut to);
        to.publish(|_, _, _| {});
        // One that does not run is not called.
        to.put(1, Some(driver.queue()));
        to.put(1, None);
        assert_eq!(to.publish(|_, _, _| {}), 0);
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
