//! Model checks under loom, which tries the interleavings of two threads and the stale values
//! that a weak memory may show. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p core-stream --release --test loom`.
//!
//! The reader reads a little, and then sleeps until its socket is readable, as whoever polls
//! does: a wake-up that is lost leaves nobody to run, which loom reports.
#![cfg(loom)]

use core_stream::reclaim::{Kept, Look, done, is_idle, look};
use core_stream::{Full, Line, Reader, Side, Stop, Writer};
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
use loom::thread;
use ring::{ConsumerMemory, ConsumerWord, Geometry, ProducerMemory, ProducerWord};
use std::collections::VecDeque;

const CAPACITY: usize = 128;

struct Shared {
    producer: Vec<AtomicU64>,
    consumer: Vec<AtomicU64>,
    /// One word for each 32 bytes of data: all writes of these models are so large.
    data: Vec<AtomicU64>,
    socket: Mutex<Socket>,
    /// The socket changed.
    changed: Condvar,
    /// What a futex sleeps by.
    sleeps: Mutex<()>,
    woken: Condvar,
    /// Somebody gives it back.
    is_kept: bool,
}

#[derive(Default)]
struct Socket {
    bytes: VecDeque<u8>,
    room: usize,
    ended: bool,
    /// How often something came.
    arrivals: u32,
}

#[derive(Clone)]
struct End(Arc<Shared>);

impl End {
    fn new(room: usize) -> End {
        End::with(room, false)
    }
    fn with(room: usize, is_kept: bool) -> End {
        let words = |n| (0..n).map(|_| AtomicU64::new(0)).collect();
        End(Arc::new(Shared {
            producer: words(9),
            consumer: words(6),
            data: words(CAPACITY / UNIT),
            socket: Mutex::new(Socket {
                room,
                ..Socket::default()
            }),
            changed: Condvar::new(),
            sleeps: Mutex::new(()),
            woken: Condvar::new(),
            is_kept,
        }))
    }
    fn socket(&self) -> MutexGuard<'_, Socket> {
        self.0.socket.lock().unwrap()
    }
    fn until(&self, is: impl Fn(&Socket) -> bool) {
        let mut socket = self.socket();
        while !is(&socket) {
            socket = self.0.changed.wait(socket).unwrap();
        }
    }
    fn until_readable(&self) {
        self.until(|socket| !socket.bytes.is_empty() || socket.ended);
    }
    fn until_writable(&self) {
        self.until(|socket| socket.bytes.len() < socket.room);
    }
    fn shut(&self) {
        self.socket().ended = true;
        self.0.changed.notify_all();
    }
    /// As futex(2): sleeps unless the reader's position is another by now.
    fn sleep(&self, seen: u32) {
        self.sleep_by(&self.0.consumer[0], seen);
    }
    /// The same by the writer's.
    fn nap(&self, seen: u32) {
        self.sleep_by(&self.0.producer[0], seen);
    }
    fn sleep_by(&self, word: &AtomicU64, seen: u32) {
        let held = self.0.sleeps.lock().unwrap();
        fence(Ordering::SeqCst);
        if word.load(Ordering::Acquire) as u32 == seen {
            drop(self.0.woken.wait(held).unwrap());
        }
    }
}

const UNIT: usize = 32;

fn p(word: ProducerWord) -> usize {
    match word {
        ProducerWord::Published => 0,
        ProducerWord::Generation => 1,
        ProducerWord::Armed => 2,
        ProducerWord::Plain => 3,
        ProducerWord::Joined => 4,
        ProducerWord::Spilled => 5,
        ProducerWord::Origin => 6,
        ProducerWord::Heads => 7,
        ProducerWord::Fills => 8,
        _ => unreachable!(),
    }
}

fn c(word: ConsumerWord) -> usize {
    match word {
        ConsumerWord::Consumed => 0,
        ConsumerWord::Generation => 1,
        ConsumerWord::Armed => 2,
        ConsumerWord::Consents => 3,
        ConsumerWord::Spilled => 4,
        ConsumerWord::Reclaims => 5,
        _ => unreachable!(),
    }
}

impl ProducerMemory for End {
    fn load(&self, word: ConsumerWord) -> u64 {
        // Never set here, and not worth a step of the model.
        if word == ConsumerWord::Generation {
            return 0;
        }
        // Stands for the time that whoever gives memory back waits: a store has been seen by then.
        if word == ConsumerWord::Reclaims && self.0.is_kept {
            fence(Ordering::SeqCst);
        }
        self.0.consumer[c(word)].load(Ordering::Acquire)
    }
    fn store(&self, word: ProducerWord, value: u64) {
        self.0.producer[p(word)].store(value, Ordering::Release);
    }
    fn write_header(&self, _: usize, _: [u64; 2]) {
        unreachable!();
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        for n in 0..bytes.len() / UNIT {
            let word = &self.0.data[(at / UNIT + n) % (CAPACITY / UNIT)];
            word.store(u64::from(bytes[n * UNIT]), Ordering::Relaxed);
        }
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl ConsumerMemory for End {
    fn load(&self, word: ProducerWord) -> u64 {
        if word == ProducerWord::Generation {
            return 0;
        }
        self.0.producer[p(word)].load(Ordering::Acquire)
    }
    fn own(&self, word: ConsumerWord) -> u64 {
        self.0.consumer[c(word)].load(Ordering::Acquire)
    }
    fn store(&self, word: ConsumerWord, value: u64) {
        self.0.consumer[c(word)].store(value, Ordering::Release);
    }
    fn read_header(&self, _: usize) -> [u64; 2] {
        unreachable!();
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        for n in 0..out.len() / UNIT {
            let word = &self.0.data[(at / UNIT + n) % (CAPACITY / UNIT)];
            let byte = word.load(Ordering::Relaxed) as u8;
            out[n * UNIT..(n + 1) * UNIT].fill(byte);
        }
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl Line for End {
    fn send(&self, head: &[u8], body: &[u8]) -> Result<usize, Stop> {
        let mut socket = self.socket();
        let free = socket.room - socket.bytes.len();
        let n = free.min(head.len() + body.len());
        socket.bytes.extend(head.iter().chain(body).take(n));
        socket.arrivals += u32::from(n > 0);
        self.0.changed.notify_all();
        if n == 0 { Err(Stop::Blocked) } else { Ok(n) }
    }
    fn take(&self, out: &mut [u8]) -> Result<usize, Stop> {
        let n = self.look(out)?;
        self.socket().bytes.drain(..n);
        self.0.changed.notify_all();
        Ok(n)
    }
    fn look(&self, out: &mut [u8]) -> Result<usize, Stop> {
        let socket = self.socket();
        if socket.bytes.is_empty() && !out.is_empty() && !socket.ended {
            return Err(Stop::Blocked);
        }
        let n = out.len().min(socket.bytes.len());
        for (place, byte) in out.iter_mut().zip(&socket.bytes) {
            *place = *byte;
        }
        Ok(n)
    }
    fn wake(&self) {
        drop(self.0.sleeps.lock().unwrap());
        self.0.woken.notify_one();
    }
}

/// As who keeps the memory has it; by the other direction nothing ever goes.
impl Kept for End {
    fn of_writer(&self, side: Side, word: ProducerWord) -> u64 {
        match side {
            Side::Began => self.0.producer[p(word)].load(Ordering::Acquire),
            Side::Accepted => 0,
        }
    }
    fn of_reader(&self, side: Side, word: ConsumerWord) -> u64 {
        match side {
            Side::Began => self.0.consumer[c(word)].load(Ordering::Acquire),
            Side::Accepted => 0,
        }
    }
    fn reclaims(&self, side: Side, value: u64) {
        if side == Side::Began {
            self.0.consumer[c(ConsumerWord::Reclaims)].store(value, Ordering::Release);
            fence(Ordering::SeqCst);
        }
    }
}

fn geometry() -> Geometry {
    Geometry::stream(CAPACITY).unwrap()
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// Writes all; sleeps as a program that polls, or one that blocks.
fn write_all(end: &End, writer: &mut Writer<End>, mut bytes: &[u8], full: Full) {
    while !bytes.is_empty() {
        match writer.write(end, bytes, full) {
            Ok(n) => bytes = &bytes[n..],
            Err(Stop::Blocked) => end.until_writable(),
            Err(Stop::Full) => {
                if let Some(seen) = writer.arm(1).unwrap() {
                    end.sleep(seen);
                    writer.disarm();
                }
            }
            Err(stop) => panic!("{stop:?}"),
        }
    }
}

/// Reads so many units, each of one byte's value, `most` bytes at a time, and never before the
/// socket is readable.
fn read_all(end: &End, reader: &mut Reader<End>, units: u8, most: usize, ends: bool) {
    let (mut came, mut out) = (Vec::new(), vec![0; most]);
    while came.len() < usize::from(units) * UNIT {
        end.until_readable();
        match reader.read(end, &mut out) {
            Ok(0) => panic!("ended after {}", came.len()),
            Ok(n) => came.extend_from_slice(&out[..n]),
            Err(Stop::Blocked) => {}
            Err(stop) => panic!("{stop:?}"),
        }
    }
    let expected: Vec<u8> = (1..=units).flat_map(|unit| [unit; UNIT]).collect();
    assert_eq!(came, expected);
    while ends {
        end.until_readable();
        match reader.read(end, &mut out) {
            Ok(0) => break,
            Err(Stop::Blocked) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Reads so many units as who is told of edges alone: after each it asks how much there is, reads
/// that, and nothing more.
fn read_by_edges(end: &End, reader: &mut Reader<End>, units: u8) {
    let (mut came, mut seen) = (0, 0);
    while came < usize::from(units) * UNIT {
        end.until(|socket| socket.arrivals != seen);
        seen = end.socket().arrivals;
        let queued = || end.socket().bytes.len();
        let mut told = match reader.pending(end, true, queued) {
            Ok(told) => told,
            Err(Stop::Blocked) => continue,
            Err(stop) => panic!("{stop:?}"),
        };
        while told > 0 {
            let mut out = [0; 4 * UNIT];
            let most = told.min(out.len());
            match reader.read(end, &mut out[..most]) {
                Ok(n) => (came, told) = (came + n, told - n),
                Err(Stop::Blocked) => break,
                Err(stop) => panic!("{stop:?}"),
            }
        }
    }
}

/// Reads units as who reads a whole message in one call, each by an edge of its own if it is alone: until all in the ring is
/// read, and never until nothing comes.
fn read_whole(end: &End, reader: &mut Reader<End>, units: u8) {
    let (mut came, mut seen) = (0, 0);
    while came < usize::from(units) {
        end.until(|socket| socket.arrivals != seen);
        seen = end.socket().arrivals;
        while came < usize::from(units) {
            match reader.read(end, &mut [0; UNIT]) {
                Ok(n) => assert_eq!(n, UNIT),
                Err(Stop::Blocked) => break,
                Err(stop) => panic!("{stop:?}"),
            }
            came += 1;
            if reader.in_ring() == Ok(0) {
                reader.rest(end);
                if reader.in_ring() == Ok(0) {
                    break;
                }
            }
        }
    }
}

fn units(numbers: core::ops::RangeInclusive<u8>) -> Vec<u8> {
    numbers.flat_map(|unit| [unit; UNIT]).collect()
}

/// Both ends in the ring: what comes before is in a model of its own.
fn switched(end: &End) -> (Writer<End>, Reader<End>) {
    let mut writer = Writer::new(end.clone(), &geometry());
    let mut reader = Reader::new(end.clone(), &geometry());
    assert!(reader.consent());
    assert_eq!(writer.in_ring(end), Ok(true));
    assert_eq!(reader.read(end, &mut [0; 32]), Err(Stop::Blocked));
    (writer, reader)
}

#[test]
fn who_polls_its_socket_is_woken_for_every_byte() {
    check(5, || {
        let end = End::new(16);
        let (mut writer, mut reader) = switched(&end);
        let at = end.clone();
        let other = thread::spawn(move || {
            for unit in 1..=3 {
                write_all(&at, &mut writer, &units(unit..=unit), Full::Spills);
            }
        });
        read_all(&end, &mut reader, 3, UNIT, false);
        other.join().unwrap();
    });
}

#[test]
fn the_ring_is_taken_up_in_the_middle() {
    check(5, || {
        let end = End::new(2 * UNIT);
        let at = end.clone();
        let other = thread::spawn(move || {
            let mut writer = Writer::new(at.clone(), &geometry());
            for unit in 1..=3 {
                write_all(&at, &mut writer, &units(unit..=unit), Full::Spills);
            }
        });
        let mut reader = Reader::new(end.clone(), &geometry());
        read_all(&end, &mut reader, 3, UNIT, false);
        other.join().unwrap();
    });
}

#[test]
fn bytes_that_spill_stay_in_order_until_the_end() {
    check(4, || {
        let end = End::new(UNIT + 9);
        let (mut writer, mut reader) = switched(&end);
        // It is full from the start.
        write_all(&end, &mut writer, &units(1..=4), Full::Spills);
        let at = end.clone();
        let other = thread::spawn(move || {
            write_all(&at, &mut writer, &units(5..=5), Full::Spills);
            write_all(&at, &mut writer, &units(6..=6), Full::Spills);
            at.shut();
        });
        read_all(&end, &mut reader, 6, 3 * UNIT, true);
        other.join().unwrap();
    });
}

#[test]
fn who_sleeps_for_room_is_woken() {
    check(5, || {
        let end = End::new(16);
        let (mut writer, mut reader) = switched(&end);
        write_all(&end, &mut writer, &units(1..=4), Full::Waits);
        let at = end.clone();
        let other = thread::spawn(move || {
            write_all(&at, &mut writer, &units(5..=6), Full::Waits);
        });
        read_all(&end, &mut reader, 6, 2 * UNIT, false);
        other.join().unwrap();
    });
}

/// Naps, and sleeps by the socket now and then, as who gave up a nap does: nobody is woken by a
/// time here, so a wake-up that is lost is seen.
#[test]
fn who_naps_is_woken_and_so_is_who_gave_it_up() {
    check(5, || {
        let end = End::new(16);
        let (mut writer, mut reader) = switched(&end);
        let at = end.clone();
        let other = thread::spawn(move || {
            for unit in 1..=3 {
                write_all(&at, &mut writer, &units(unit..=unit), Full::Spills);
            }
        });
        let (mut came, mut out, mut naps) = (0, [0; UNIT], true);
        while came < 3 * UNIT {
            if naps && let Some(seen) = reader.nap().unwrap() {
                end.nap(seen);
                reader.nap_is_over();
            }
            match reader.read(&end, &mut out) {
                Ok(n) => came += n,
                Err(Stop::Blocked) => end.until_readable(),
                Err(stop) => panic!("{stop:?}"),
            }
            naps = came != UNIT;
        }
        other.join().unwrap();
    });
}

/// Three units come while somebody reads so.
fn three_come(reads: fn(&End, &mut Reader<End>, u8)) {
    check(4, move || {
        let end = End::new(64);
        let (mut writer, mut reader) = switched(&end);
        let at = end.clone();
        let other = thread::spawn(move || {
            for unit in 1..=3 {
                write_all(&at, &mut writer, &units(unit..=unit), Full::Spills);
            }
        });
        reads(&end, &mut reader, 3);
        other.join().unwrap();
    });
}

#[test]
fn who_reads_as_much_as_it_was_told_has_an_edge_for_more() {
    three_come(read_by_edges);
}

#[test]
fn who_reads_whole_messages_has_an_edge_for_each() {
    three_come(read_whole);
}

#[test]
fn an_edge_is_there_for_what_spills_too() {
    check(3, || {
        let end = End::new(2 * UNIT + 9);
        let (mut writer, mut reader) = switched(&end);
        write_all(&end, &mut writer, &units(1..=4), Full::Spills);
        let at = end.clone();
        let other = thread::spawn(move || {
            write_all(&at, &mut writer, &units(5..=5), Full::Spills);
            write_all(&at, &mut writer, &units(6..=6), Full::Spills);
        });
        read_by_edges(&end, &mut reader, 6);
        other.join().unwrap();
    });
}

/// Looks so often that it may give memory back once.
fn keep(end: &End) -> thread::JoinHandle<()> {
    let at = end.clone();
    thread::spawn(move || {
        let mut seen = [0; 2];
        if let Look::Moved(now) = look(&at, seen) {
            seen = now;
        }
        if look(&at, seen) == Look::Asked {
            if is_idle(&at, seen) {
                for word in &at.0.data {
                    word.store(0, Ordering::Relaxed);
                }
            }
            done(&at);
        }
    })
}

#[test]
fn memory_is_given_back_beside_who_writes() {
    check(5, || {
        let end = End::with(3 * UNIT, true);
        let (mut writer, mut reader) = switched(&end);
        let keeper = keep(&end);
        let mut out = [0; UNIT];
        for unit in 1..=2 {
            // Filled in, and published later.
            let room = match writer.in_ring(&end) {
                Ok(true) => writer.reserve().unwrap(),
                _ => 0,
            };
            match room {
                0 => write_all(&end, &mut writer, &[unit; UNIT], Full::Spills),
                _ => {
                    assert_eq!(writer.fill(0, &[unit; UNIT]), UNIT);
                    writer.commit(&end, UNIT).unwrap();
                }
            }
            assert_eq!(reader.read(&end, &mut out), Ok(UNIT));
            assert_eq!(out, [unit; UNIT]);
        }
        keeper.join().unwrap();
    });
}

#[test]
fn memory_is_given_back_beside_both() {
    check(2, || {
        let end = End::with(3 * UNIT, true);
        let (mut writer, mut reader) = switched(&end);
        let keeper = keep(&end);
        let at = end.clone();
        let other = thread::spawn(move || {
            for unit in 1..=2 {
                write_all(&at, &mut writer, &units(unit..=unit), Full::Spills);
            }
        });
        read_all(&end, &mut reader, 2, UNIT, false);
        other.join().unwrap();
        keeper.join().unwrap();
    });
}
