//! Virtqueues over memory that is never the same twice: what a guest sends and what it
//! receives, through split rings and packed ones.
//!
//! Held: nothing is touched but the rings and the buffers that were just looked up; a step
//! costs a bounded number of looks; what was decided about a frame stays decided; every
//! chain that is taken goes back once, in the order in which it was taken.

use crate::input::Input;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use virtqueue::net::{Form, FromGuest, PutError, ToGuest};
use virtqueue::{Chain, Direction, Features, GuestMemory, Layout, Queue, Stand};
use wire::offload::RawOffload;

/// Guest addresses of the two regions, and where they lie in the mapping: a hole apart.
const RINGS: u64 = 0x1000;
const RINGS_BYTES: usize = 0x8000;
const BUFFERS: u64 = 0x10_0000;
const BUFFERS_BYTES: usize = 0x20_0000;
const SECOND: usize = RINGS_BYTES + 4096;
/// Where the three parts of a ring lie in the first region.
const DRIVER_AT: usize = 0x4000;
const DEVICE_AT: usize = 0x6000;

/// Looks at memory that one call costs at most: a ring of [`LARGEST`] entries is walked, and
/// of a frame for the guest no more than 64 buffers and 128 pieces are looked at.
const LOOKS: usize = 3000;
const LARGEST: u16 = 511;
/// Rounds of one run.
const ROUNDS: usize = 64;

/// The driver's memory, made of the input.
struct Fickle {
    input: Input,
    layout: Layout,
    /// Bytes of the parts of the rings, from [`DRIVER_AT`] and so on.
    rings: [(usize, usize); 3],
    /// What was looked up since the frame before: (where, bytes).
    buffers: RefCell<Vec<(usize, usize)>>,
    looks: Cell<usize>,
    /// What the device wrote: (where, bytes).
    stored: RefCell<Vec<(usize, Vec<u8>)>>,
}

impl Fickle {
    fn new(input: Input, size: u16, packed: bool) -> Fickle {
        let n = usize::from(size);
        let (driver, device) = match packed {
            true => (4, 4),
            false => (6 + 2 * n, 6 + 8 * n),
        };
        Fickle {
            input,
            layout: Layout {
                size,
                descriptors: RINGS,
                driver: RINGS + DRIVER_AT as u64,
                device: RINGS + DEVICE_AT as u64,
            },
            rings: [(0, 16 * n), (DRIVER_AT, driver), (DEVICE_AT, device)],
            buffers: RefCell::default(),
            looks: Cell::new(0),
            stored: RefCell::default(),
        }
    }

    /// A call begins, and has its own bound.
    fn begin(&self) {
        self.looks.set(0);
        self.stored.borrow_mut().clear();
    }

    fn is_ring(&self, at: usize, len: usize) -> bool {
        let within = |(begin, size): &(usize, usize)| at >= *begin && at + len <= begin + size;
        self.rings.iter().any(within)
    }

    fn touch(&self, at: usize, len: usize) {
        self.looks.set(self.looks.get() + 1);
        assert!(self.looks.get() <= LOOKS, "work without a bound");
        let looked_up = |(begin, size): &(usize, usize)| at >= *begin && at + len <= begin + size;
        assert!(
            self.is_ring(at, len) || self.buffers.borrow().iter().any(looked_up),
            "{len} bytes at {at:#x} are nobody's"
        );
    }

    /// A descriptor's half, that has a chance to be taken; or anything.
    fn word(&self) -> u64 {
        let what = self.input.byte();
        let first = self.input.byte();
        match what % 8 {
            0..3 => BUFFERS + u64::from(first) * 16,
            3 => BUFFERS + u64::from(first) * (BUFFERS_BYTES as u64 / 255) - u64::from(what / 8),
            4..7 => {
                // Length, flags and what comes next, of either kind.
                let length = u64::from(first) << (what / 8 % 3 * 4);
                let flags = u64::from(self.input.byte());
                let flags = flags & 0x87 | (flags & 0x40) << 9;
                let next = u64::from(self.input.byte());
                match what % 8 {
                    4 | 5 => length | flags << 32 | next << 48,
                    _ => length | next << 32 | flags << 48,
                }
            }
            _ => self.input.u64(),
        }
    }
}

impl GuestMemory for Fickle {
    fn locate(&self, address: u64, len: usize) -> Option<(usize, usize)> {
        let within = |begin: u64, size: usize| {
            let n = address.checked_sub(begin)? as usize;
            (n < size).then(|| (n, len.min(size - n)))
        };
        let found = within(RINGS, RINGS_BYTES)
            .or_else(|| within(BUFFERS, BUFFERS_BYTES).map(|(at, n)| (at + SECOND, n)))?;
        self.buffers.borrow_mut().push(found);
        Some(found)
    }
    fn load16(&self, at: usize) -> u16 {
        self.touch(at, 2);
        match self.input.byte() {
            0xff => self.input.u16(),
            near => u16::from(near),
        }
    }
    fn store16(&self, at: usize, value: u16) {
        self.touch(at, 2);
        assert!(self.is_ring(at, 2), "a word in a buffer");
        let said = (at, value.to_le_bytes().to_vec());
        self.stored.borrow_mut().push(said);
    }
    fn load64(&self, at: usize) -> u64 {
        self.touch(at, 8);
        self.word()
    }
    fn store64(&self, at: usize, value: u64) {
        self.touch(at, 8);
        assert!(self.is_ring(at, 8), "a word in a buffer");
        let said = (at, value.to_le_bytes().to_vec());
        self.stored.borrow_mut().push(said);
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        self.touch(at, out.len());
        // What a frame says is not what is looked at here, but for its header.
        out.iter_mut()
            .take(12)
            .for_each(|byte| *byte = self.input.byte());
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        self.touch(at, bytes.len());
        if self.is_ring(at, bytes.len()) {
            self.stored.borrow_mut().push((at, bytes.to_vec()));
        }
    }
    fn fence(&self) {}
}

/// Where the two sides begin.
fn start(features: Features) -> Stand {
    let at = match features.packed {
        true => 0x8000,
        false => 0,
    };
    Stand {
        available: at,
        used: at,
    }
}

/// One run.
pub fn run(bytes: &[u8]) {
    let input = Input::new(bytes);
    let bits = input.byte();
    let features = Features {
        packed: bits & 1 != 0,
        indirect: bits & 2 != 0,
        event_index: bits & 4 != 0,
    };
    let size = match features.packed {
        true => (u16::from(input.byte()) * 2).min(LARGEST - 1) + 1,
        false => 1 << (input.byte() % 8),
    };
    let memory = Rc::new(Fickle::new(input, size, features.packed));
    match bits & 8 == 0 {
        true => {
            let form = Form {
                merged: bits & 16 != 0,
                modern: bits & 32 != 0,
            };
            frames(&memory, features, form);
        }
        false => chains(&memory, features),
    }
}

/// As a switch goes about it.
fn frames(memory: &Rc<Fickle>, features: Features, form: Form) {
    let make = || Queue::new(&**memory, &memory.layout, features, start(features)).ok();
    let mut from = FromGuest::new(Rc::clone(memory), form);
    let mut to = ToGuest::new(Rc::clone(memory), form);
    let again = |from: &mut FromGuest<Fickle>| (0..2).for_each(|pair| from.put(pair, make()));
    let renew = |to: &mut ToGuest<Fickle>| (0..2).for_each(|pair| to.put(pair, make()));
    again(&mut from);
    renew(&mut to);
    for round in 0..ROUNDS {
        if memory.input.is_over() {
            break;
        }
        let what = memory.input.byte();
        memory.begin();
        match what % 8 {
            0..3 => take(memory, &mut from, what),
            3..6 => give(memory, &mut to, round as u32, what),
            6 => {
                let _ = from.publish(|_, _, _| {});
                memory.begin();
                let _ = to.publish(|_, _, _| {});
            }
            _ => {
                memory.buffers.borrow_mut().clear();
                if from.arm().is_err() {
                    again(&mut from);
                }
                from.disarm();
                let (before, after) = (start(features), to.stand(0).unwrap_or(start(features)));
                memory.begin();
                let _ = Queue::recover(&**memory, &memory.layout, features, before, after);
            }
        }
        if what & 0x80 != 0 {
            (again(&mut from), renew(&mut to));
        }
    }
}

fn take(memory: &Rc<Fickle>, from: &mut FromGuest<Fickle>, what: u8) {
    memory.buffers.borrow_mut().clear();
    let is_broken = match from.peek() {
        Ok(Some(frame)) => {
            let (len, offload) = (frame.len(), frame.offload());
            let mut head = [0; 64];
            assert_eq!(frame.copy(0, &mut head), len.min(64));
            let mut all = 0;
            frame.pieces(0, len, |memory, at, done, n| {
                memory.touch(at, n);
                assert_eq!(done, all, "pieces in a row");
                all += n;
            });
            assert_eq!(all, len, "as long as was said");
            assert_eq!((frame.len(), frame.offload()), (len, offload));
            false
        }
        Ok(None) => false,
        Err(_) => true,
    };
    if is_broken || what & 0x40 != 0 {
        // The switch ends a queue whose driver broke it; another may begin.
        for pair in 0..2 {
            from.put(pair, None);
        }
    } else {
        from.advance();
    }
}

fn give(memory: &Rc<Fickle>, to: &mut ToGuest<Fickle>, flow: u32, what: u8) {
    memory.buffers.borrow_mut().clear();
    let rest = memory.input.u16() as usize % 3000 * (1 + usize::from(what & 0x40));
    let head = vec![7; usize::from(what >> 3 & 3) * 20];
    let mut filled = 0;
    let sent = to.send(
        || flow,
        &RawOffload::default(),
        &head,
        rest,
        |memory, at, from, n| {
            memory.touch(at, n);
            assert!(from + n <= rest, "{from} {n} {rest}");
            filled += n;
        },
    );
    match sent {
        Ok(()) => assert_eq!(filled, rest, "all of it, and once"),
        Err(PutError::Breach(_)) => (0..2).for_each(|pair| to.put(pair, None)),
        Err(_) => {}
    }
}

/// A queue by itself, held against what it must write back.
fn chains(memory: &Rc<Fickle>, features: Features) {
    let Ok(mut queue) = Queue::new(&**memory, &memory.layout, features, start(features)) else {
        return;
    };
    let size = usize::from(memory.layout.size);
    let want = [Direction::Read, Direction::Write, Direction::Both][memory.input.below(3)];
    let mut chain = Chain::new();
    let (mut taken, mut given) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS * 4 {
        if memory.input.is_over() {
            break;
        }
        memory.begin();
        match memory.input.byte() % 8 {
            0..5 => {
                memory.buffers.borrow_mut().clear();
                match queue.next(&**memory, want, &mut chain) {
                    Ok(true) => taken.push(chain.token()),
                    Ok(false) => continue,
                    Err(_) => break,
                }
                assert!(taken.len() <= size, "more is out than the ring has entries");
                assert!(chain.pieces() <= virtqueue::MAX_PIECES);
                let mut out = vec![0; chain.total().min(70_000)];
                assert_eq!(chain.read(&**memory, 0, &mut out), out.len());
            }
            5 | 6 if !taken.is_empty() && queue.room() > 0 => {
                let written = u32::from(memory.input.byte());
                given.push((queue.stand().used, written));
                queue.give(&**memory, taken.remove(0), written);
                // A split ring's elements are written at once, and counted later.
                if !features.packed {
                    elements(memory, &given[given.len() - 1..]);
                }
            }
            5 | 6 => {}
            _ => {
                let count = std::mem::take(&mut given);
                let is_new = queue.is_published() == count.is_empty();
                assert!(is_new, "{} are not shown yet", count.len());
                let _ = queue.publish(&**memory);
                shown(memory, features, &count, queue.stand());
            }
        }
    }
}

/// The used ring's elements of chains that were given back.
fn elements(memory: &Fickle, given: &[(u16, u32)]) {
    let size = usize::from(memory.layout.size);
    let stored = memory.stored.borrow();
    assert_eq!(stored.len(), given.len(), "one element a chain");
    for ((at, bytes), (position, written)) in stored.iter().zip(given) {
        assert_eq!(*at, DEVICE_AT + 4 + 8 * (usize::from(*position) % size));
        assert_eq!(bytes[4..], written.to_le_bytes());
    }
}

/// What the driver is shown: each chain once, in order, and nothing else.
fn shown(memory: &Fickle, features: Features, given: &[(u16, u32)], stand: Stand) {
    let stored = memory.stored.borrow();
    if given.is_empty() {
        assert!(stored.is_empty(), "nothing was given back");
        return;
    }
    if !features.packed {
        let index = (DEVICE_AT + 2, stand.used.to_le_bytes().to_vec());
        assert_eq!(stored[..], [index]);
        return;
    }
    assert_eq!(stored.len(), given.len(), "one descriptor a chain");
    // The first is written last: it is there that the driver looks.
    for ((at, bytes), (position, written)) in stored.iter().rev().zip(given) {
        assert_eq!(*at, 16 * usize::from(position & 0x7fff) + 8);
        assert_eq!(bytes[..4], written.to_le_bytes());
        let turn = if position >> 15 == 1 { 0x80 } else { 0 };
        assert_eq!((bytes[6] & 0x80, bytes[7] & 0x80), (turn, turn));
    }
}
