//! Memory that never says the same twice: each look finds what the driver's other
//! processor has just written there. Whatever is decided is decided on one look, and
//! nothing outside of the guest's memory is ever touched.

use super::driver::{BUFFERS, BUFFERS_LEN, RINGS, layout, start};
use crate::net::{Form, FromGuest, PutError, ToGuest};
use crate::{Features, GuestMemory, Queue};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use wire::offload::RawOffload;

const RINGS_LEN: usize = 1 << 16;
/// Where buffers lie behind the rings, with a hole in between.
const SECOND: usize = RINGS_LEN + 4096;

/// What is found there next, from the test's input, and where somebody looked outside.
struct Fickle {
    input: Vec<u8>,
    next: Cell<usize>,
    looks: Cell<usize>,
    outside: RefCell<Vec<(usize, usize)>>,
}

impl Fickle {
    fn new(input: Vec<u8>) -> Fickle {
        Fickle {
            input,
            next: Cell::new(0),
            looks: Cell::new(0),
            outside: RefCell::default(),
        }
    }

    fn byte(&self) -> u8 {
        let n = self.next.get();
        self.next.set(n + 1);
        // Past its end the input comes again, shifted.
        let turn = (n / self.input.len().max(1)) as u8;
        let byte = self.input.get(n % self.input.len().max(1)).copied();
        byte.unwrap_or(0).wrapping_add(turn)
    }

    fn touch(&self, at: usize, len: usize) {
        self.looks.set(self.looks.get() + 1);
        let end = at + len;
        let inside = end <= RINGS_LEN || at >= SECOND && end <= SECOND + BUFFERS_LEN;
        if !inside {
            self.outside.borrow_mut().push((at, len));
        }
    }

    /// A descriptor or an index that has a chance to be taken.
    fn word(&self) -> u64 {
        match self.byte() % 8 {
            // An address, or a table's.
            0..4 => BUFFERS + u64::from(self.byte()) * 16,
            // Length, flags and what comes next, of either kind.
            4..7 => {
                let length = u64::from(self.byte()) * 4;
                let flags = u64::from(self.byte() & 0x87) | u64::from(self.byte() & 0x80) << 8;
                let next = u64::from(self.byte() % 16);
                match self.byte() % 2 {
                    0 => length | flags << 32 | next << 48,
                    _ => length | next << 32 | flags << 48,
                }
            }
            _ => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }
}

impl GuestMemory for Fickle {
    fn locate(&self, address: u64, len: usize) -> Option<(usize, usize)> {
        let within = |begin: u64, size: usize| {
            let n = address.checked_sub(begin)? as usize;
            (n < size).then(|| (n, len.min(size - n)))
        };
        let rings = within(RINGS, RINGS_LEN);
        rings.or_else(|| within(BUFFERS, BUFFERS_LEN).map(|(at, n)| (at + SECOND, n)))
    }
    fn load16(&self, at: usize) -> u16 {
        self.touch(at, 2);
        u16::from(self.byte() % 16)
    }
    fn store16(&self, at: usize, _: u16) {
        self.touch(at, 2);
    }
    fn load64(&self, at: usize) -> u64 {
        self.touch(at, 8);
        self.word()
    }
    fn store64(&self, at: usize, _: u64) {
        self.touch(at, 8);
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        self.touch(at, out.len());
        out.fill_with(|| self.byte());
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        self.touch(at, bytes.len());
    }
    fn fence(&self) {}
}

/// Everything that a switch does with a guest's queues, over memory that lies: what it
/// took and gave, in looks.
fn drive(input: Vec<u8>, features: Features, form: Form) -> Result<usize, TestCaseError> {
    let memory = Rc::new(Fickle::new(input));
    let make = || Queue::new(&*memory, &layout(16), features, start(features)).unwrap();
    let mut from = FromGuest::new(Rc::clone(&memory), form);
    let mut to = ToGuest::new(Rc::clone(&memory), form);
    for pair in 0..2 {
        from.put(pair, Some(make()));
        to.put(pair, Some(make()));
    }
    let mut passed = 0;
    for round in 0..40u32 {
        match from.peek() {
            Ok(Some(frame)) => {
                let offload = frame.offload();
                let len = frame.len();
                // However often one asks: it is the copy that answers.
                prop_assert_eq!((frame.len(), frame.offload()), (len, offload));
                let mut head = [0; 64];
                prop_assert!(frame.copy(0, &mut head) <= len.min(64));
                let mut all = 0;
                let mut end = true;
                frame.pieces(0, len, |_, _, done, n| {
                    end &= done == all;
                    all += n;
                });
                prop_assert!(end && all == len, "pieces in a row, as long as was said");
                from.advance();
                passed += 1;
            }
            Ok(None) => {
                let _ = from.arm();
                from.disarm();
            }
            // The switch ends the queue: another begins.
            Err(_) => {
                for pair in 0..2 {
                    from.put(pair, Some(make()));
                }
            }
        }
        let offload = RawOffload {
            flags: 1,
            ..RawOffload::default()
        };
        let rest = (round as usize * 97) % 3000;
        let mut filled = 0;
        let sent = to.send(
            || round,
            &offload,
            &[7; 60],
            rest,
            |memory, at, from, n| {
                memory.touch(at, n);
                filled += n;
                assert!(from + n <= rest, "{from} {n} {rest}");
            },
        );
        match sent {
            Ok(()) => {
                prop_assert_eq!(filled, rest);
                passed += 1;
            }
            Err(PutError::Breach(_)) => {
                for pair in 0..2 {
                    to.put(pair, Some(make()));
                }
            }
            Err(_) => {}
        }
        if round % 3 == 0 {
            let _ = from.publish(|_, _, _| {}) | to.publish(|_, _, _| {});
        }
        if round % 7 == 0 {
            let (before, after) = (start(features), to.stand(0).unwrap_or(start(features)));
            let _ = Queue::recover(&*memory, &layout(16), features, before, after);
        }
    }
    prop_assert!(memory.outside.borrow().is_empty(), "{:?}", memory.outside);
    // Bounded work, whatever is found: 40 rounds of a few chains of at most a table each.
    prop_assert!(memory.looks.get() < 40 * 70 * 600, "{}", memory.looks.get());
    Ok(passed)
}

fn kinds() -> impl Strategy<Value = (Features, Form)> {
    any::<[bool; 5]>().prop_map(|[packed, indirect, event_index, merged, modern]| {
        let features = Features {
            packed,
            indirect,
            event_index,
        };
        (features, Form { merged, modern })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_that_changes_at_every_look_decides_nothing(
        input in prop::collection::vec(any::<u8>(), 16..600), (features, form) in kinds())
    {
        drive(input, features, form)?;
    }
}

#[test]
fn what_changes_at_every_look_is_sometimes_a_frame() {
    let mut passed = 0;
    for seed in 0..400u32 {
        let input =
            (0..400u32).map(|n| (n.wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b1) >> 23) as u8);
        for packed in [false, true] {
            let features = Features {
                packed,
                indirect: true,
                event_index: true,
            };
            let form = Form {
                merged: true,
                modern: true,
            };
            passed += drive(input.clone().collect(), features, form).unwrap();
        }
    }
    assert!(passed > 400, "{passed}: else nothing was tried");
}
