//! Ends whose holder dies between any two steps, and with which another goes on.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// How many steps the holder has left; none: it lives.
#[derive(Clone, Default)]
struct Life(Rc<Cell<Option<u32>>>);

impl Life {
    /// One step less; before the last it dies.
    fn step(&self) {
        match self.0.get() {
            Some(0) => {
                self.0.set(None);
                resume_unwind(Box::new("dead"));
            }
            left => self.0.set(left.map(|left| left - 1)),
        }
    }
}

/// Memory of which each use is a step.
struct Mortal(Memory, Life);

impl ProducerMemory for Mortal {
    fn load(&self, word: ConsumerWord) -> u64 {
        self.1.step();
        ProducerMemory::load(&self.0, word)
    }
    fn store(&self, word: ProducerWord, value: u64) {
        self.1.step();
        ProducerMemory::store(&self.0, word, value);
        self.1.step();
    }
    fn write_header(&self, _: usize, _: [u64; 2]) {
        unreachable!("a stream has no records");
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        let (early, late) = bytes.split_at(bytes.len() / 2);
        self.1.step();
        self.0.write(at, early);
        self.1.step();
        self.0.write(at + early.len(), late);
        self.1.step();
    }
    fn fence(&self) {}
}

impl ConsumerMemory for Mortal {
    fn load(&self, word: ProducerWord) -> u64 {
        self.1.step();
        ConsumerMemory::load(&self.0, word)
    }
    fn own(&self, word: ConsumerWord) -> u64 {
        self.0.own(word)
    }
    fn store(&self, word: ConsumerWord, value: u64) {
        self.1.step();
        ConsumerMemory::store(&self.0, word, value);
        self.1.step();
    }
    fn read_header(&self, _: usize) -> [u64; 2] {
        unreachable!("a stream has no records");
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        self.1.step();
        self.0.read(at, out);
        self.1.step();
    }
    fn fence(&self) {}
}

/// The socket. Who dies in the midst of sending or taking what says more than that somebody is to look has no heir.
struct Wire<'a>(&'a Pipe, Life, Cell<bool>);

impl Line for Wire<'_> {
    fn send(&self, head: &[u8], body: &[u8]) -> Result<usize, Stop> {
        self.2.set(true);
        self.0.send(head, body)
    }
    fn send_token(&self, token: &[u8]) -> Result<usize, Stop> {
        self.1.step();
        let sent = self.0.send(token, &[]);
        self.1.step();
        sent
    }
    fn take(&self, out: &mut [u8]) -> Result<usize, Stop> {
        self.2.set(true);
        self.0.take(out)
    }
    fn take_tokens(&self, out: &mut [u8]) -> Result<usize, Stop> {
        self.1.step();
        let taken = self.0.take(out);
        self.1.step();
        taken
    }
    fn look(&self, out: &mut [u8]) -> Result<usize, Stop> {
        self.0.look(out)
    }
    fn wake(&self) {
        self.0.wake();
    }
}

/// What byte is where in the stream.
fn at(place: u64) -> u8 {
    (place % 251) as u8
}

/// How much was, in the ring and beside it.
fn written(memory: &Memory) -> u64 {
    let words = [ProducerWord::Published, ProducerWord::Spilled];
    words
        .map(|word| ConsumerMemory::load(memory, word))
        .iter()
        .sum()
}

proptest! {
    /// What is read is what was written, in its place: of who died what it had shown, and all of who follows.
    #[test]
    fn who_follows_a_dead_one_goes_on_where_it_was(
        turns in proptest::collection::vec((any::<bool>(), 1_usize..90, proptest::option::of(0_u32..24)), 1..300),
    ) {
        let (memory, pipe) = (Memory::new(), Pipe::of(400));
        let [writes, reads] = [Life::default(), Life::default()];
        let mut writer = Writer::new(Mortal(memory.clone(), writes.clone()), &geometry());
        let mut reader = Reader::new(Mortal(memory.clone(), reads.clone()), &geometry());
        prop_assert!(reader.consent());
        let [out, into] = [&writes, &reads].map(|life| Wire(&pipe, life.clone(), Cell::default()));
        // One that is told of nothing yet.
        prop_assert_eq!(writer.write(&out, &[at(0)], Full::Waits), Ok(1));
        let (mut read, mut sleeps) = (0_u64, false);
        for (is_write, n, dies) in turns {
            let life = if is_write { &writes } else { &reads };
            life.0.set(dies);
            out.2.set(false);
            into.2.set(false);
            if is_write {
                let from = written(&memory);
                let bytes: Vec<u8> = (from..from + n as u64).map(at).collect();
                let wrote = catch_unwind(AssertUnwindSafe(|| writer.write(&out, &bytes, Full::Waits)));
                life.0.set(None);
                match &wrote {
                    Ok(wrote) => prop_assert!(matches!(wrote, Ok(_) | Err(Stop::Full | Stop::Blocked)), "{:?}", wrote),
                    Err(_) if out.2.get() => return Ok(()),
                    Err(_) => writer.resumes(),
                }
                // Also of what was shown by who died before it had told of it.
                if sleeps && wrote.is_ok_and(|wrote| wrote.is_ok()) {
                    prop_assert!(pipe.is_readable());
                }
            } else {
                let mut room = vec![0; n];
                let came = catch_unwind(AssertUnwindSafe(|| reader.read(&into, &mut room)));
                life.0.set(None);
                sleeps = matches!(came, Ok(Err(Stop::Blocked)));
                match came {
                    Ok(Ok(n)) => {
                        for byte in &room[..n] {
                            prop_assert_eq!(*byte, at(read));
                            read += 1;
                        }
                    }
                    Ok(Err(stop)) => prop_assert_eq!(stop, Stop::Blocked),
                    Err(_) if into.2.get() => return Ok(()),
                    Err(_) => {
                        reader.resumes();
                        // What is not known to be sent may go by the socket.
                        read = memory.own(ConsumerWord::Consumed) + memory.own(ConsumerWord::Spilled);
                    }
                }
            }
        }
        // All that is left, and who sleeps then hears of the next.
        let mut room = [0; CAPACITY];
        // Bound: what the ring holds.
        while let Ok(n) = reader.read(&into, &mut room) {
            for byte in &room[..n] {
                prop_assert_eq!(*byte, at(read));
                read += 1;
            }
        }
        prop_assert_eq!(read, written(&memory));
        prop_assert_eq!(reader.read(&into, &mut room), Err(Stop::Blocked));
        prop_assert!(!pipe.is_readable());
        prop_assert_eq!(writer.write(&out, &[at(read)], Full::Waits), Ok(1));
        prop_assert!(pipe.is_readable());
        prop_assert_eq!(reader.read(&into, &mut room), Ok(1));
    }
}
