//! A channel whose other end lies: positions, generations, announcements and records are the
//! input's, and another at each look.
//!
//! Held: nothing outside of the data area is read or written, and of it only what lies
//! between the two positions; a step costs a bounded number of looks; a record is no longer
//! than the longest; who was breached stays so.

use crate::input::Input;
use ring::{
    Breach, Consumer, ConsumerMemory, ConsumerWord, Geometry, Producer, ProducerMemory,
    ProducerWord, PushError, StreamConsumer, StreamProducer,
};
use std::cell::Cell;
use std::rc::Rc;
use wire::offload::RawOffload;

const CAPACITY: usize = 1024;
const MAX_RECORD: usize = 256;
/// Steps of one run.
const STEPS: usize = 256;
/// Looks of one step: what was in flight of a peer that restarted is walked once, a header for
/// each 16 bytes.
const LOOKS: usize = CAPACITY / 16 * 2 + 64;

/// The memory of both ends, as the one that is tried sees it.
pub struct Fickle {
    /// What it is made of.
    pub input: Rc<Input>,
    capacity: usize,
    looks: Cell<usize>,
    /// What the honest end last said of itself: its position, generation and echo, and what it
    /// armed by. Lies lie near.
    said: [Cell<u64>; 4],
    /// Whether it is a stream's: bare bytes, mapped twice.
    stream: bool,
}

impl Fickle {
    /// Of so many bytes of data.
    pub fn new(input: Rc<Input>, capacity: usize, stream: bool) -> Fickle {
        Fickle {
            input,
            capacity,
            looks: Cell::new(0),
            said: Default::default(),
            stream,
        }
    }

    /// A step begins.
    pub fn begin(&self) {
        self.looks.set(0);
    }

    fn look(&self) {
        self.looks.set(self.looks.get() + 1);
        assert!(self.looks.get() <= LOOKS, "work without a bound");
    }

    fn inside(&self, at: usize, len: usize) {
        self.look();
        match self.stream {
            // Mapped twice.
            true => assert!(at < self.capacity && len <= self.capacity, "{at} {len}"),
            false => assert!(at + len <= self.capacity, "{at} {len}"),
        }
    }

    /// A word of the other's: most often near what was said, and aligned.
    fn lie(&self, what: usize) -> u64 {
        self.look();
        let near = self.said[what].get();
        let byte = self.input.byte();
        let by = 16 * u64::from(byte >> 3);
        match byte & 7 {
            0..3 => near.wrapping_add(by),
            3 => near.wrapping_sub(by),
            4 | 5 => near,
            6 => u64::from(byte >> 3),
            _ => self.input.u64(),
        }
    }
}

const POSITION: usize = 0;
const GENERATION: usize = 1;
const ECHO: usize = 2;
const ARMED: usize = 3;

/// Of a generation the other tells back what was said, of an echo what stands.
fn of_producer(word: ProducerWord) -> usize {
    match word {
        ProducerWord::Published => POSITION,
        ProducerWord::Generation | ProducerWord::Active => GENERATION,
        ProducerWord::Echo => ECHO,
        _ => ARMED,
    }
}

fn of_consumer(word: ConsumerWord) -> usize {
    match word {
        ConsumerWord::Consumed => POSITION,
        ConsumerWord::Generation => GENERATION,
        ConsumerWord::Echo => ECHO,
        _ => ARMED,
    }
}

/// Which of the other's words answers this one of ours.
fn answers(what: usize) -> usize {
    match what {
        GENERATION => ECHO,
        ECHO => GENERATION,
        other => other,
    }
}

impl ConsumerMemory for Fickle {
    fn load(&self, word: ProducerWord) -> u64 {
        self.lie(of_producer(word))
    }
    fn own(&self, _: ConsumerWord) -> u64 {
        self.lie(POSITION)
    }
    fn store(&self, word: ConsumerWord, value: u64) {
        self.look();
        let what = of_consumer(word);
        if word == ConsumerWord::Consumed && !self.stream {
            assert!(value.is_multiple_of(16), "{value} is no end of a record");
        }
        self.said[answers(what)].set(value);
    }
    fn read_header(&self, at: usize) -> [u64; 2] {
        assert!(at.is_multiple_of(16), "{at}");
        self.inside(at, 16);
        let (what, length) = (self.input.byte(), self.input.byte());
        let (kind, units) = (u64::from(what % 4), u64::from(what >> 2 & 7));
        let length = match what >> 5 {
            0 => u64::from(self.input.u32()),
            1 => u64::from(length) * 16,
            _ => u64::from(length),
        };
        // One header in two is a frame's like any other.
        let (kind, units) = match what & 0x10 {
            0 => (1, 1),
            _ => (kind, units),
        };
        [length | kind << 32 | units << 40, u64::from(what) << 17]
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        self.inside(at, out.len());
        out.iter_mut()
            .take(4)
            .for_each(|byte| *byte = self.input.byte());
    }
    fn fence(&self) {}
}

impl ProducerMemory for Fickle {
    fn load(&self, word: ConsumerWord) -> u64 {
        self.lie(of_consumer(word))
    }
    fn store(&self, word: ProducerWord, value: u64) {
        self.look();
        if word == ProducerWord::Published && !self.stream {
            assert!(value.is_multiple_of(16), "{value} is no end of a record");
        }
        self.said[answers(of_producer(word))].set(value);
    }
    fn write_header(&self, at: usize, _: [u64; 2]) {
        assert!(at.is_multiple_of(16), "{at}");
        self.inside(at, 16);
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        self.inside(at, bytes.len());
    }
    fn fence(&self) {}
}

/// One run.
pub fn run(bytes: &[u8]) {
    let input = Rc::new(Input::new(bytes));
    let records = Geometry::records(CAPACITY, MAX_RECORD).expect("it is legal");
    let streams = Geometry::stream(CAPACITY).expect("it is legal");
    let what = input.byte();
    let memory = Fickle::new(input, CAPACITY, what & 2 != 0);
    let generation = u64::from(what) + 2;
    match what % 8 {
        0 => consumer(Consumer::fresh(memory, &records)),
        4 => consumer(Consumer::resume(memory, &records, generation, 0)),
        1 => producer(Producer::fresh(memory, &records)),
        5 => producer(Producer::resume(memory, &records, generation, 0)),
        2 | 6 => stream_consumer(StreamConsumer::fresh(memory, &streams)),
        _ => stream_producer(StreamProducer::fresh(memory, &streams)),
    }
}

/// A breach was told before: it is told again, and no other.
fn stays(before: &mut Option<Breach>, now: Option<Breach>) {
    if before.is_some() {
        assert_eq!(*before, now, "a breach is for good");
    }
    *before = now;
}

fn consumer(mut rx: Consumer<Fickle>) {
    let mut breach = None;
    let mut out = [0; 2 * MAX_RECORD];
    // Bytes that were handed out since what was read was given back.
    let mut held = 0;
    for _ in 0..STEPS {
        if rx.memory().input.is_over() {
            break;
        }
        rx.memory().begin();
        let what = rx.memory().input.byte();
        let told = match what % 8 {
            0..4 => match rx.next() {
                Ok(Some(record)) => {
                    assert!(record.ring_bytes() <= MAX_RECORD, "{}", record.ring_bytes());
                    assert!(record.len() < record.ring_bytes());
                    assert_eq!(record.copy(0, &mut out), record.len());
                    let _ = (record.note(), record.beside());
                    held += record.ring_bytes();
                    None
                }
                Ok(None) => None,
                Err(breach) => Some(breach),
            },
            4 => {
                let seen = rx.ahead(8, |_, record| assert!(record.ring_bytes() <= MAX_RECORD));
                assert!(seen <= 8);
                continue;
            }
            5 => {
                rx.release();
                held = 0;
                continue;
            }
            6 => rx.arm().err(),
            _ if what & 0x80 == 0 => rx.poll().err(),
            // A flood is seen by its bytes alone; the first breach stays what is told.
            _ => match rx.rung(usize::from(what >> 3 & 15)) {
                Err(told) => Some(told),
                Ok(()) => breach,
            },
        };
        assert!(held <= CAPACITY, "more than the ring has");
        let _ = (rx.overdue(0), rx.take_lost());
        stays(&mut breach, told);
    }
}

fn producer(mut tx: Producer<Fickle>) {
    let mut breach: Option<Breach> = None;
    let offload = RawOffload::default();
    for _ in 0..STEPS {
        if tx.memory().input.is_over() {
            break;
        }
        tx.memory().begin();
        let what = tx.memory().input.byte();
        let told = match what % 8 {
            0..4 => {
                let length = usize::from(tx.memory().input.byte());
                let pushed = match what & 0x40 {
                    0 => tx.push(1, &offload, &[1; 256][..length], &[2; 9]),
                    _ => tx.push_with(1, &offload, &[1; 14], length, |memory, at| {
                        memory.inside(at, length);
                    }),
                };
                match pushed {
                    Ok(()) => {
                        assert!(breach.is_none(), "into a ring that is closed");
                        None
                    }
                    Err(PushError::Breach(breach)) => Some(breach),
                    Err(_) => breach,
                }
            }
            4 | 5 => {
                let _ = tx.publish();
                breach
            }
            6 => {
                let _ = tx.has_room(usize::from(what) * 2);
                breach
            }
            _ => tx.poll().err(),
        };
        assert!(tx.backlog() <= CAPACITY, "{} bytes under way", tx.backlog());
        let _ = (tx.overdue(0), tx.take_lost());
        breach = told.or(breach);
    }
}

fn stream_consumer(mut rx: StreamConsumer<Fickle>) {
    let mut out = [0; 2 * CAPACITY];
    let mut breach = None;
    let mut held = 0;
    for _ in 0..STEPS {
        if rx.memory().input.is_over() {
            break;
        }
        rx.memory().begin();
        let what = rx.memory().input.byte();
        let some = usize::from(what >> 2) * 16 + 1;
        let told = match what % 4 {
            0 => rx.readable().map(|n| assert!(n <= CAPACITY, "{n}")).err(),
            1 => match rx.read(&mut out[..some]) {
                Ok(n) => {
                    assert!(n <= some);
                    held += n;
                    None
                }
                Err(breach) => Some(breach),
            },
            2 => {
                assert!(rx.copy(some, &mut out) <= CAPACITY && rx.offset(some) < CAPACITY);
                let _ = rx.release();
                held = 0;
                continue;
            }
            _ => rx.arm().err(),
        };
        assert!(held <= CAPACITY, "more than the ring has");
        stays(&mut breach, told);
        if breach.is_some() && rx.memory().input.flag() {
            break;
        }
    }
}

fn stream_producer(mut tx: StreamProducer<Fickle>) {
    let mut breach = None;
    for _ in 0..STEPS {
        if tx.memory().input.is_over() {
            break;
        }
        tx.memory().begin();
        let what = tx.memory().input.byte();
        let some = usize::from(what >> 2) * 16 + 1;
        let told = match what % 4 {
            0 => tx.writable().map(|n| assert!(n <= CAPACITY, "{n}")).err(),
            1 => match tx.write(&[3; CAPACITY][..some]) {
                Ok(n) => {
                    assert!(n <= some && (n == 0 || breach.is_none()));
                    None
                }
                Err(breach) => Some(breach),
            },
            2 => {
                let n = tx.fill(0, &[4; CAPACITY][..some]);
                tx.commit(n);
                let _ = tx.publish();
                continue;
            }
            _ => tx.arm(some).err(),
        };
        breach = told.or(breach);
    }
}
