//! Both ends in one thread, over memory of plain cells and a socket that takes little.

use crate::{Breach, Full, LONGEST_SPILL, Line, Reader, SPILL, Stop, TOKEN, Writer};
use proptest::prelude::*;
use ring::{ConsumerMemory, ConsumerWord, Geometry, ProducerMemory, ProducerWord};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

mod heirs;
mod instants;
mod reclaim;
mod tokens;
use reclaim::Keeper;

const CAPACITY: usize = 128;

struct Shared {
    producer: [Cell<u64>; 32],
    consumer: [Cell<u64>; 32],
    data: RefCell<[u8; CAPACITY]>,
    /// At the how many-th look at it the writer has the memory; 0: when it says so.
    joins_at: Cell<u32>,
    /// How often the data were given back.
    given_back: Cell<u32>,
    /// What happens when a sleep is announced, before it is looked whether there is something.
    announced: RefCell<Option<Box<dyn FnMut()>>>,
}

#[derive(Clone)]
struct Memory(Rc<Shared>);

impl Memory {
    fn new() -> Memory {
        Memory(Rc::new(Shared {
            producer: Default::default(),
            consumer: Default::default(),
            data: RefCell::new([0; CAPACITY]),
            joins_at: Cell::new(0),
            given_back: Cell::new(0),
            announced: RefCell::new(None),
        }))
    }
}

impl ProducerMemory for Memory {
    fn load(&self, word: ConsumerWord) -> u64 {
        self.0.consumer[word as usize].get()
    }
    fn store(&self, word: ProducerWord, value: u64) {
        self.0.producer[word as usize].set(value);
    }
    fn write_header(&self, _: usize, _: [u64; 2]) {
        unreachable!("a stream has no records");
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        for (n, byte) in bytes.iter().enumerate() {
            self.0.data.borrow_mut()[(at + n) % CAPACITY] = *byte;
        }
    }
    fn fence(&self) {}
}

impl ConsumerMemory for Memory {
    fn load(&self, word: ProducerWord) -> u64 {
        let there = &self.0.producer[word as usize];
        if word == ProducerWord::Joined && self.0.joins_at.get() > 0 {
            self.0.joins_at.set(self.0.joins_at.get() - 1);
            if self.0.joins_at.get() == 0 {
                there.set(1);
            }
        }
        there.get()
    }
    fn own(&self, word: ConsumerWord) -> u64 {
        self.0.consumer[word as usize].get()
    }
    fn store(&self, word: ConsumerWord, value: u64) {
        self.0.consumer[word as usize].set(value);
    }
    fn read_header(&self, _: usize) -> [u64; 2] {
        unreachable!("a stream has no records");
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        for (n, byte) in out.iter_mut().enumerate() {
            *byte = self.0.data.borrow()[(at + n) % CAPACITY];
        }
    }
    fn fence(&self) {
        if self.own(ConsumerWord::Armed) != 0
            && let Some(happens) = &mut *self.0.announced.borrow_mut()
        {
            happens();
        }
    }
}

/// A socket that takes so many bytes, and so many at once.
struct Pipe {
    bytes: RefCell<VecDeque<u8>>,
    room: usize,
    step: Cell<usize>,
    ended: Cell<bool>,
    failed: Cell<bool>,
    woken: Cell<u32>,
    sends: Cell<u32>,
}

impl Pipe {
    fn of(room: usize) -> Pipe {
        Pipe {
            bytes: RefCell::default(),
            room,
            step: Cell::new(usize::MAX),
            ended: Cell::new(false),
            failed: Cell::new(false),
            woken: Cell::new(0),
            sends: Cell::new(0),
        }
    }
    fn is_readable(&self) -> bool {
        !self.bytes.borrow().is_empty() || self.ended.get() || self.failed.get()
    }
    fn holds(&self) -> Vec<u8> {
        self.bytes.borrow().iter().copied().collect()
    }
    fn copy(&self, out: &mut [u8]) -> Result<usize, Stop> {
        let bytes = self.bytes.borrow();
        if bytes.is_empty() && !out.is_empty() {
            return match (self.failed.take(), self.ended.get()) {
                (true, _) => Err(Stop::Socket(104)),
                (false, true) => Ok(0),
                (false, false) => Err(Stop::Blocked),
            };
        }
        let n = out.len().min(bytes.len());
        for (place, byte) in out.iter_mut().zip(bytes.iter()) {
            *place = *byte;
        }
        Ok(n)
    }
}

impl Line for Pipe {
    fn send(&self, head: &[u8], body: &[u8]) -> Result<usize, Stop> {
        if self.ended.get() {
            return Err(Stop::Socket(32));
        }
        let mut bytes = self.bytes.borrow_mut();
        let free = self.room.saturating_sub(bytes.len()).min(self.step.get());
        let all = head.iter().chain(body).take(free);
        let before = bytes.len();
        self.sends.set(self.sends.get() + 1);
        bytes.extend(all);
        match bytes.len() - before {
            0 => Err(Stop::Blocked),
            n => Ok(n),
        }
    }
    fn take(&self, out: &mut [u8]) -> Result<usize, Stop> {
        let n = self.copy(out)?;
        self.bytes.borrow_mut().drain(..n);
        Ok(n)
    }
    fn look(&self, out: &mut [u8]) -> Result<usize, Stop> {
        self.copy(out)
    }
    fn wake(&self) {
        self.woken.set(self.woken.get() + 1);
    }
}

fn geometry() -> Geometry {
    Geometry::stream(CAPACITY).unwrap()
}

fn ends(memory: &Memory) -> (Writer<Memory>, Reader<Memory>) {
    let writer = Writer::new(memory.clone(), &geometry());
    (writer, Reader::new(memory.clone(), &geometry()))
}

/// Both ends, and the ring in use.
fn switched(pipe: &Pipe) -> (Memory, Writer<Memory>, Reader<Memory>) {
    let memory = Memory::new();
    let (mut writer, mut reader) = ends(&memory);
    assert!(reader.consent());
    assert_eq!(writer.write(pipe, b"x", Full::Spills), Ok(1));
    assert_eq!(read(&mut reader, pipe, 9), Ok(b"x".to_vec()));
    (memory, writer, reader)
}

fn read(reader: &mut Reader<Memory>, pipe: &Pipe, most: usize) -> Result<Vec<u8>, Stop> {
    let mut out = vec![0; most];
    let n = reader.read(pipe, &mut out)?;
    out.truncate(n);
    Ok(out)
}

#[test]
fn without_the_other_side_it_is_a_socket() {
    let (memory, pipe) = (Memory::new(), Pipe::of(100));
    let mut writer = Writer::new(memory, &geometry());
    assert_eq!(writer.write(&pipe, b"TSTS", Full::Waits), Ok(4));
    assert_eq!(pipe.holds(), b"TSTS");
    // A reader whose writer has no memory.
    let other = Memory::new();
    let mut reader = Reader::new(other, &geometry());
    assert_eq!(read(&mut reader, &pipe, 3), Ok(b"TST".to_vec()));
    assert_eq!(read(&mut reader, &pipe, 3), Ok(b"S".to_vec()));
    assert_eq!(read(&mut reader, &pipe, 3), Err(Stop::Blocked));
}

#[test]
fn plain_bytes_come_before_those_of_the_ring() {
    let (memory, pipe) = (Memory::new(), Pipe::of(100));
    let (mut writer, mut reader) = ends(&memory);
    assert_eq!(writer.write(&pipe, b"TTTT", Full::Spills), Ok(4));
    assert!(reader.consent());
    assert_eq!(writer.write(&pipe, b"ring", Full::Spills), Ok(4));
    assert_eq!(pipe.holds(), [b'T', b'T', b'T', b'T', TOKEN, 0]);
    assert_eq!(read(&mut reader, &pipe, 3), Ok(b"TTT".to_vec()));
    assert_eq!(read(&mut reader, &pipe, 100), Ok(b"T".to_vec()));
    assert!(pipe.is_readable(), "there is something to read");
    assert_eq!(read(&mut reader, &pipe, 2), Ok(b"ri".to_vec()));
    assert!(pipe.is_readable(), "there is something to read");
    assert_eq!(read(&mut reader, &pipe, 100), Ok(b"ng".to_vec()));
    assert_eq!(read(&mut reader, &pipe, 100), Err(Stop::Blocked));
    assert!(!pipe.is_readable(), "who polls it sleeps");
}

/// A socket of which somebody is told whenever it is about to be looked at, or written to.
struct Watched<'a>(&'a Pipe, &'a dyn Fn());

impl Line for Watched<'_> {
    fn send(&self, head: &[u8], body: &[u8]) -> Result<usize, Stop> {
        (self.1)();
        self.0.send(head, body)
    }
    fn take(&self, out: &mut [u8]) -> Result<usize, Stop> {
        self.0.take(out)
    }
    fn look(&self, out: &mut [u8]) -> Result<usize, Stop> {
        (self.1)();
        self.0.look(out)
    }
    fn wake(&self) {
        self.0.wake();
    }
}

/// The writer has the memory between any two looks of the reader's for that, and uses it at once.
#[test]
fn who_peeks_while_the_writer_comes_to_it_sees_plain_bytes_alone() {
    for (comes, first) in (1..6).flat_map(|comes| (0..4).map(move |first| (comes, first))) {
        let (memory, pipe) = (Memory::new(), Pipe::of(100));
        let mut reader = Reader::new(memory.clone(), &geometry());
        pipe.send(&[], b"plain").unwrap();
        memory.0.joins_at.set(comes);
        let (writer, looks) = (RefCell::new(None), Cell::new(0));
        let writes = || {
            looks.set(looks.get() + 1);
            let joined = memory.0.producer[ProducerWord::Joined as usize].get() != 0;
            if joined && looks.get() > first {
                let new = || Writer::after(memory.clone(), &geometry(), 5);
                let mut writer = writer.borrow_mut();
                let writer = writer.get_or_insert_with(new);
                writer.write(&pipe, b"ring", Full::Spills).unwrap();
            }
        };
        for _ in 0..4 {
            let mut out = [0; 20];
            let n = reader.peek(&Watched(&pipe, &writes), &mut out).unwrap();
            assert_eq!(out[..n], b"plainringringring"[..n], "{comes} {first}");
        }
    }
}

#[test]
fn a_sleeper_gets_one_token_and_who_is_awake_none() {
    let pipe = Pipe::of(100);
    let (_, mut writer, mut reader) = switched(&pipe);
    assert_eq!(read(&mut reader, &pipe, 9), Err(Stop::Blocked));
    for _ in 0..5 {
        assert_eq!(writer.write(&pipe, b"ab", Full::Spills), Ok(2));
    }
    assert_eq!(pipe.holds().len(), 2, "one token");
    assert_eq!(read(&mut reader, &pipe, 90), Ok(b"ababababab".to_vec()));
    assert_eq!(writer.write(&pipe, b"c", Full::Spills), Ok(1));
    assert_eq!(pipe.holds().len(), 2, "it is readable already");
}

#[test]
fn what_does_not_fit_waits_or_goes_by_the_socket() {
    let pipe = Pipe::of(20);
    let (_, mut writer, mut reader) = switched(&pipe);
    assert_eq!(read(&mut reader, &pipe, 9), Err(Stop::Blocked));
    assert_eq!(writer.write(&pipe, &[1; 200], Full::Waits), Ok(CAPACITY));
    assert_eq!(writer.write(&pipe, &[2; 9], Full::Waits), Err(Stop::Full));
    assert!(writer.arm(1).unwrap().is_some(), "it may sleep");
    // A token is there; 18 bytes are left, five of them a head's.
    assert_eq!(writer.write(&pipe, &[2; 30], Full::Spills), Ok(13));
    assert_eq!(
        writer.write(&pipe, &[2; 30], Full::Spills),
        Err(Stop::Blocked)
    );
    assert_eq!(read(&mut reader, &pipe, 100), Ok(vec![1; 100]));
    assert_eq!(pipe.woken.get(), 1, "there is room");
    // There is, but bytes in the socket go before.
    assert_eq!(
        writer.write(&pipe, &[2; 3], Full::Waits),
        Err(Stop::Blocked)
    );
    assert_eq!(read(&mut reader, &pipe, 100), Ok(vec![1; 28]));
    assert_eq!(read(&mut reader, &pipe, 100), Ok(vec![2; 13]));
    assert_eq!(
        writer.write(&pipe, &[2; 100], Full::Waits),
        Ok(17),
        "the frame's rest"
    );
    let (step, stop) = (&[3; 3], Err(Stop::Blocked));
    assert_eq!(writer.write(&pipe, step, Full::Waits), stop);
    assert_eq!(read(&mut reader, &pipe, 100), Ok(vec![2; 17]));
    assert_eq!(writer.write(&pipe, step, Full::Waits), Ok(3));
    assert!(pipe.is_readable(), "a token again");
    let tokens = pipe.holds().len();
    assert_eq!(writer.write(&pipe, &[4; 5], Full::Aside), Ok(5));
    assert_eq!(pipe.holds().len(), tokens + 10, "there was room");
    assert_eq!(read(&mut reader, &pipe, 100), Ok(vec![3; 3]));
    assert_eq!(read(&mut reader, &pipe, 100), Ok(vec![4; 5]));
}

/// Small messages, each waited for: the rest of the memory is never touched.
#[test]
fn a_stream_that_is_waited_for_stays_at_the_start_of_its_memory() {
    let pipe = Pipe::of(100);
    let (memory, mut writer, mut reader) = switched(&pipe);
    for number in 0..100_u8 {
        let bytes = [number; 10];
        assert_eq!(read(&mut reader, &pipe, 99), Err(Stop::Blocked));
        assert_eq!(writer.write(&pipe, &bytes, Full::Spills), Ok(10));
        assert_eq!(read(&mut reader, &pipe, 99), Ok(bytes.to_vec()));
        assert_eq!(read(&mut reader, &pipe, 99), Err(Stop::Blocked));
        // The same in place.
        assert!(writer.in_ring(&pipe).unwrap() && writer.reserve().unwrap() == CAPACITY);
        assert_eq!(writer.fill(0, &bytes[..5]), 5);
        // What is filled in stays there, however often it is looked for room.
        assert_eq!(writer.reserve(), Ok(CAPACITY));
        assert_eq!(writer.fill(5, &bytes[5..]), 5);
        assert_eq!(writer.commit(&pipe, 10), Ok(()));
        assert_eq!(read(&mut reader, &pipe, 4), Ok(vec![number; 4]));
        assert_eq!(read(&mut reader, &pipe, 99), Ok(vec![number; 6]));
    }
    assert_eq!(memory.0.data.borrow()[12..], [0; CAPACITY - 12]);
}

/// A reader that keeps up, and never sleeps, has the whole of it: close behind the writer it would
/// have all bytes from the other processor's own caches.
#[test]
fn a_stream_that_is_kept_up_with_goes_round() {
    let pipe = Pipe::of(100);
    let (memory, mut writer, mut reader) = switched(&pipe);
    for number in 1..=100_u8 {
        assert_eq!(writer.write(&pipe, &[number; 10], Full::Spills), Ok(10));
        assert_eq!(read(&mut reader, &pipe, 99), Ok(vec![number; 10]));
    }
    assert!(!memory.0.data.borrow().contains(&0));
}

#[test]
fn what_is_not_read_is_not_written_over() {
    let pipe = Pipe::of(100);
    let (_, mut writer, mut reader) = switched(&pipe);
    for number in 0..40_u8 {
        // It sleeps: the writer would begin at the start again, if all was read.
        assert_eq!(read(&mut reader, &pipe, 99), Err(Stop::Blocked));
        assert_eq!(writer.write(&pipe, &[number; 20], Full::Spills), Ok(20));
        assert_eq!(writer.write(&pipe, &[number + 1; 9], Full::Spills), Ok(9));
        let both = [&[number; 20][..], &[number + 1; 9]].concat();
        assert_eq!(read(&mut reader, &pipe, 99), Ok(both));
    }
}

/// Wherever the writer says that it begins, nothing but its own bytes are read.
#[test]
fn any_origin_is_within_the_memory() {
    for origin in [1, 127, 128, u64::MAX, 1 << 40] {
        let pipe = Pipe::of(100);
        let (memory, mut writer, mut reader) = switched(&pipe);
        assert_eq!(writer.write(&pipe, &[7; 20], Full::Spills), Ok(20));
        memory.0.producer[ProducerWord::Origin as usize].set(origin);
        assert_eq!(read(&mut reader, &pipe, 99).map(|came| came.len()), Ok(20));
        assert!(reader.offset(0) < CAPACITY);
    }
}

#[test]
fn what_was_written_before_an_end_is_read() {
    for failed in [false, true] {
        let pipe = Pipe::of(300);
        let (_, mut writer, mut reader) = switched(&pipe);
        assert_eq!(writer.write(&pipe, &[1; 200], Full::Spills), Ok(CAPACITY));
        assert_eq!(writer.write(&pipe, &[2; 50], Full::Spills), Ok(50));
        pipe.ended.set(true);
        pipe.failed.set(failed);
        assert_eq!(read(&mut reader, &pipe, 1000), Ok(vec![1; CAPACITY]));
        assert_eq!(read(&mut reader, &pipe, 1000), Ok(vec![2; 50]));
        let end = match failed {
            true => Err(Stop::Socket(104)),
            false => Ok(Vec::new()),
        };
        assert_eq!(read(&mut reader, &pipe, 1000), end);
    }
}

#[test]
fn a_position_beyond_the_ring_closes_this_end_alone() {
    let pipe = Pipe::of(100);
    let (memory, mut writer, mut reader) = switched(&pipe);
    memory.0.producer[ProducerWord::Published as usize].set(1 << 40);
    let dead = Err(Stop::Peer(Breach::Position));
    assert_eq!(read(&mut reader, &pipe, 9), dead);
    assert_eq!(read(&mut reader, &pipe, 9), dead);
    memory.0.consumer[ConsumerWord::Consumed as usize].set(1 << 40);
    let written = (0..3).map(|_| writer.write(&pipe, &[0; CAPACITY], Full::Spills));
    assert_eq!(written.last(), Some(Err(Stop::Peer(Breach::Position))));
}

#[test]
fn a_count_that_was_never_sent_is_a_breach() {
    let (memory, pipe) = (Memory::new(), Pipe::of(100));
    let (mut writer, mut reader) = ends(&memory);
    assert_eq!(writer.write(&pipe, b"abcd", Full::Spills), Ok(4));
    assert!(reader.consent());
    assert_eq!(read(&mut reader, &pipe, 3), Ok(b"abc".to_vec()));
    memory.0.producer[ProducerWord::Plain as usize].set(3);
    let dead = Err(Stop::Peer(Breach::Count));
    assert_eq!(read(&mut reader, &pipe, 3), dead);
    assert_eq!(read(&mut reader, &pipe, 3), dead);
}

#[test]
fn what_is_no_frame_is_a_breach() {
    let beyond = (LONGEST_SPILL as u32 + 1).to_le_bytes();
    let long = [&[SPILL][..], &beyond].concat();
    let tokens = [TOKEN, 77].repeat(40);
    let cases: [(&[u8], Breach); 5] = [
        (b"\0", Breach::Frame),
        (b"GET / ", Breach::Frame),
        (&[SPILL, 0, 0, 0, 0], Breach::Frame),
        (&long, Breach::Frame),
        (&tokens, Breach::DoorbellFlood),
    ];
    for (bytes, breach) in cases {
        let pipe = Pipe::of(100);
        let (_, _, mut reader) = switched(&pipe);
        pipe.bytes.borrow_mut().extend(bytes);
        let came = read(&mut reader, &pipe, 9);
        assert_eq!(came, Err(Stop::Peer(breach)), "{bytes:?}");
    }
}

#[test]
fn who_comes_to_it_late_counts_what_went_before() {
    let (memory, pipe) = (Memory::new(), Pipe::of(100));
    assert_eq!(pipe.send(b"bef", b"ore"), Ok(6));
    assert_eq!(pipe.take(&mut [0; 2]), Ok(2));
    let mut writer = Writer::after(memory.clone(), &geometry(), 6);
    let mut reader = Reader::after(memory, &geometry(), 2);
    assert!(reader.consent());
    assert_eq!(writer.write(&pipe, b"ring", Full::Spills), Ok(4));
    assert_eq!(read(&mut reader, &pipe, 100), Ok(b"fore".to_vec()));
    assert_eq!(read(&mut reader, &pipe, 100), Ok(b"ring".to_vec()));
}

/// Once counted with the head of its frame, and once as if the end had come.
#[test]
fn of_a_spill_that_is_under_way_what_has_come_is_counted() {
    let pipe = Pipe::of(8);
    let (_, mut writer, mut reader) = switched(&pipe);
    assert_eq!(read(&mut reader, &pipe, 9), Err(Stop::Blocked));
    assert_eq!(writer.write(&pipe, &[1; 200], Full::Waits), Ok(CAPACITY));
    assert_eq!(writer.write(&pipe, &[2; 28], Full::Spills), Ok(1));
    let queued = || pipe.holds().len();
    assert_eq!(reader.pending(&pipe, true, queued), Ok(CAPACITY + 1));
    assert_eq!(read(&mut reader, &pipe, 200), Ok(vec![1; CAPACITY]));
    assert_eq!(reader.pending(&pipe, true, queued), Ok(1));
    assert_eq!(read(&mut reader, &pipe, 200), Ok(vec![2]));
    assert_eq!(reader.pending(&pipe, true, queued), Err(Stop::Blocked));
    assert_eq!(writer.write(&pipe, &[2; 27], Full::Spills), Ok(8));
    assert_eq!(reader.pending(&pipe, true, queued), Ok(8));
}

#[test]
fn how_much_there_is_is_never_more_than_there_is() {
    let (memory, pipe) = (Memory::new(), Pipe::of(100));
    assert_eq!(pipe.send(b"a", b"b"), Ok(2));
    let mut reader = Reader::after(memory.clone(), &geometry(), 0);
    for plain in [3, 1 << 40, u64::MAX] {
        memory.0.producer[ProducerWord::Joined as usize].set(1);
        memory.0.producer[ProducerWord::Plain as usize].set(plain);
        let told = reader.pending(&pipe, true, || pipe.holds().len());
        assert!(
            told.is_ok_and(|told| told <= 3) || told.is_err(),
            "{told:?}"
        );
    }
}

/// Many small frames, and one that is told of and not there yet: their heads are no data.
#[test]
fn how_much_there_is_has_no_heads_in_it() {
    let pipe = Pipe::of(10_000);
    let (_, mut writer, reader) = switched(&pipe);
    assert_eq!(
        writer.write(&pipe, &[1; CAPACITY], Full::Spills),
        Ok(CAPACITY)
    );
    let (reader, there) = (RefCell::new(reader), Cell::new(CAPACITY));
    let asks = || {
        let queued = || pipe.bytes.borrow().len();
        let says = reader.borrow_mut().pending(&pipe, true, queued).unwrap();
        assert!(says <= there.get() + 1, "{says} of {}", there.get());
        assert!(says + 8 >= there.get(), "{says} of {}", there.get());
    };
    for _ in 0..50 {
        assert_eq!(
            writer.write(&Watched(&pipe, &asks), &[2; 3], Full::Spills),
            Ok(3)
        );
        there.set(there.get() + 3);
    }
    let mut reader = reader.into_inner();
    assert_eq!(
        read(&mut reader, &pipe, 2 * CAPACITY),
        Ok(vec![1; CAPACITY])
    );
    for left in (1..=50).rev() {
        let says = reader
            .pending(&pipe, true, || pipe.bytes.borrow().len())
            .unwrap();
        assert!((left * 3..=left * 3 + 1).contains(&says), "{left}: {says}");
        assert_eq!(read(&mut reader, &pipe, 99), Ok(vec![2; 3]));
    }
}

#[test]
fn who_was_told_how_much_there_is_gets_an_edge_for_more() {
    let pipe = Pipe::of(100);
    let (_, mut writer, mut reader) = switched(&pipe);
    assert_eq!(read(&mut reader, &pipe, 9), Err(Stop::Blocked));
    for turn in 0..40 {
        assert_eq!(writer.write(&pipe, b"a", Full::Spills), Ok(1));
        let before = pipe.sends.get();
        match turn % 2 {
            0 => assert_eq!(
                reader.pending(&pipe, true, || pipe.holds().len()),
                Ok(turn + 1)
            ),
            _ => assert_eq!(reader.peek(&pipe, &mut [0; 99]), Ok(turn + 1)),
        }
        assert!(pipe.is_readable(), "there is something to read");
        assert!(pipe.holds().len() <= 4, "tokens are few");
        assert_eq!(pipe.sends.get(), before);
    }
    let before = pipe.sends.get();
    assert_eq!(writer.write(&pipe, b"b", Full::Spills), Ok(1));
    assert_eq!(pipe.sends.get(), before + 1, "an edge");
    assert_eq!(read(&mut reader, &pipe, 99).map(|it| it.len()), Ok(41));
    assert_eq!(read(&mut reader, &pipe, 99), Err(Stop::Blocked));
    assert!(!pipe.is_readable(), "who polls it sleeps");
}

#[derive(Clone, Debug)]
enum Act {
    Write(usize, usize),
    Read(usize),
    Peek(usize),
    Pending,
    Consent,
    Step(usize),
    Reserve(usize),
    Commit,
    Tick,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        5 => (1..300_usize, 0..3_usize).prop_map(|(n, full)| Act::Write(n, full)),
        5 => (1..300_usize).prop_map(Act::Read),
        2 => (1..300_usize).prop_map(Act::Peek),
        1 => Just(Act::Pending),
        1 => Just(Act::Consent),
        1 => (1..40_usize).prop_map(Act::Step),
        2 => (1..200_usize).prop_map(Act::Reserve),
        2 => Just(Act::Commit),
        5 => Just(Act::Tick),
    ];
    proptest::collection::vec(act, 1..200)
}

fn numbered(from: u64, n: usize) -> Vec<u8> {
    (from..).take(n).map(|at| (at ^ at >> 8) as u8).collect()
}

proptest! {
    /// Whatever is written when and however little the socket takes, the same bytes come out,
    /// and whoever polls the socket never sleeps with something to read.
    #[test]
    fn it_is_a_queue_of_bytes(acts in acts(), room in 8..200_usize) {
        let (memory, pipe) = (Memory::new(), Pipe::of(room));
        let (mut writer, mut reader) = ends(&memory);
        let (mut sent, mut came, mut filled) = (0_u64, 0_u64, 0);
        let mut keeper = Keeper::default();
        for act in acts.into_iter().chain(std::iter::repeat_n(Act::Read(64), 40)) {
            match act {
                // Whoever fills in commits first.
                Act::Write(..) if filled > 0 => {}
                Act::Write(n, full) => {
                    let full = [Full::Spills, Full::Waits, Full::Aside][full];
                    match writer.write(&pipe, &numbered(sent, n), full) {
                        Ok(n) => sent += n as u64,
                        Err(stop) => prop_assert!(matches!(stop, Stop::Blocked | Stop::Full)),
                    }
                }
                Act::Read(most) => match read(&mut reader, &pipe, most) {
                    Ok(bytes) => {
                        prop_assert!(!bytes.is_empty());
                        prop_assert_eq!(&bytes, &numbered(came, bytes.len()));
                        came += bytes.len() as u64;
                    }
                    Err(stop) => prop_assert_eq!(stop, Stop::Blocked),
                },
                Act::Peek(most) => {
                    let mut out = vec![0; most];
                    match reader.peek(&pipe, &mut out) {
                        Ok(n) => prop_assert_eq!(&out[..n], &numbered(came, n)),
                        Err(stop) => prop_assert_eq!(stop, Stop::Blocked),
                    }
                }
                Act::Pending => match reader.pending(&pipe, true, || pipe.holds().len()) {
                    Ok(n) => prop_assert!([0, 1].contains(&(n as u64 - (sent - came)))),
                    Err(stop) => prop_assert_eq!(stop, Stop::Blocked),
                },
                Act::Consent => {
                    reader.consent();
                }
                Act::Step(n) => pipe.step.set(n),
                Act::Reserve(n) => {
                    if filled == 0 && writer.in_ring(&pipe) == Ok(true) {
                        let room = writer.reserve().unwrap();
                        filled = writer.fill(0, &numbered(sent, n.min(room)));
                    }
                }
                Act::Commit => {
                    writer.commit(&pipe, filled).unwrap();
                    sent += std::mem::take(&mut filled) as u64;
                }
                Act::Tick => keeper.tick(&memory),
            }
            prop_assert!(came == sent || pipe.is_readable());
        }
        prop_assert_eq!(came, sent);
    }

    /// A peer that scribbles over all that it can write: at most this circuit is closed.
    #[test]
    fn a_scribbler_harms_nobody_else(
        words in proptest::collection::vec((any::<bool>(), 0..32_usize, any::<u64>()), 1..60),
        bytes in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let pipe = Pipe::of(100);
        let (memory, mut writer, mut reader) = switched(&pipe);
        pipe.bytes.borrow_mut().extend(bytes);
        let near = [0, 1, CAPACITY as u64, 1 << 32, u64::MAX];
        for (producer, word, value) in words {
            let value = near.get(value as usize % 7).copied().unwrap_or(value);
            let page = if producer { &memory.0.producer } else { &memory.0.consumer };
            page[word].set(value);
            let _ = writer.write(&pipe, &[7; 50], Full::Spills);
            let _ = writer.arm(1);
            prop_assert!(writer.reserve().unwrap_or(0) <= CAPACITY);
            let _ = writer.commit(&pipe, 7);
            let mut out = [0; 300];
            let n = reader.read(&pipe, &mut out).unwrap_or(0);
            prop_assert!(n <= 300);
            prop_assert!(reader.in_ring().unwrap_or(0) <= CAPACITY);
        }
    }
}

#[test]
fn what_is_given_is_told_as_it_is() {
    let given = crate::Given {
        number: -7,
        side: 1,
        capacity: 1 << 20,
        version: u32::MAX,
    };
    assert_eq!(crate::Given::of(&given.to_bytes()), given);
}
