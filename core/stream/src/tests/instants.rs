//! What happens between two calls of the socket, and what is left of what was not sent.

use super::reclaim::ticks;
use super::*;

/// A socket of which the one is told whenever it is about to be looked at, and the other when it is taken from.
struct Seen<'a>(&'a Pipe, &'a dyn Fn(), &'a dyn Fn());

impl Line for Seen<'_> {
    fn send(&self, head: &[u8], body: &[u8]) -> Result<usize, Stop> {
        self.0.send(head, body)
    }
    fn take(&self, out: &mut [u8]) -> Result<usize, Stop> {
        (self.2)();
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

fn nothing() {}

#[test]
fn what_the_writer_sends_as_plain_bytes_are_taken_is_none() {
    let (memory, pipe) = (Memory::new(), Pipe::of(100));
    let (mut writer, mut reader) = ends(&memory);
    assert_eq!(writer.write(&pipe, b"plain", Full::Spills), Ok(5));
    assert!(reader.consent());
    let writer = RefCell::new(writer);
    let writes = || {
        assert_eq!(
            writer.borrow_mut().write(&pipe, b"ring", Full::Spills),
            Ok(4)
        )
    };
    let mut out = [0; 20];
    let n = reader.read(&Seen(&pipe, &nothing, &writes), &mut out);
    assert_eq!((n, &out[..5]), (Ok(5), &b"plain"[..]));
    assert_eq!(read(&mut reader, &pipe, 20), Ok(b"ring".to_vec()));
}

/// The socket was full as the ring was: what was published then has no token, and room comes as old ones are taken.
#[test]
fn what_no_token_tells_of_is_read_before_a_spill_and_before_a_reset() {
    for is_reset in [false, true] {
        let pipe = Pipe::of(8);
        let (_, writer, mut reader) = switched(&pipe);
        assert_eq!(read(&mut reader, &pipe, 9), Err(Stop::Blocked));
        pipe.bytes.borrow_mut().extend([TOKEN, 99].repeat(4));
        let (writer, looks) = (RefCell::new(writer), Cell::new(0));
        let writes = || {
            looks.set(looks.get() + 1);
            let mut writer = writer.borrow_mut();
            match looks.get() {
                1 => {
                    let wrote = writer.write(&pipe, &[1; CAPACITY], Full::Spills);
                    assert_eq!(wrote, Ok(CAPACITY));
                    assert_eq!(pipe.holds(), [TOKEN, 99].repeat(4));
                }
                5 if is_reset => pipe.failed.set(true),
                5 => assert_eq!(writer.write(&pipe, &[2; 3], Full::Spills), Ok(3)),
                _ => {}
            }
        };
        let mut out = [0; CAPACITY + 9];
        let n = reader.read(&Seen(&pipe, &writes, &nothing), &mut out);
        assert_eq!((n, out[0]), (Ok(CAPACITY), 1));
        let then = read(&mut reader, &pipe, 9);
        match is_reset {
            true => assert_eq!(then, Err(Stop::Socket(104))),
            false => assert_eq!(then, Ok(vec![2; 3])),
        }
    }
}

/// What follows would be read as the frame's rest.
#[test]
fn a_token_of_which_another_reader_takes_a_part_is_a_breach() {
    let pipe = Pipe::of(100);
    let (_, _, mut reader) = switched(&pipe);
    assert_eq!(read(&mut reader, &pipe, 9), Err(Stop::Blocked));
    pipe.bytes.borrow_mut().extend([TOKEN, 99]);
    let takes = || assert!(pipe.bytes.borrow_mut().pop_front().is_some());
    let came = reader.read(&Seen(&pipe, &nothing, &takes), &mut [0; 9]);
    assert_eq!(came, Err(Stop::Peer(Breach::Frame)));
}

#[test]
fn who_naps_is_woken_for_what_goes_past_the_ring() {
    let pipe = Pipe::of(100);
    let (_, mut writer, mut reader) = switched(&pipe);
    assert!(reader.nap().unwrap().is_some());
    assert_eq!(writer.write(&pipe, b"aside", Full::Aside), Ok(5));
    assert_eq!(pipe.woken.get(), 1);
    reader.nap_is_over();
    assert_eq!(read(&mut reader, &pipe, 9), Ok(b"aside".to_vec()));
    assert_eq!(writer.write(&pipe, b"aside", Full::Aside), Ok(5));
    assert_eq!(pipe.woken.get(), 1, "who does not nap has the socket");
}

/// Else the memory is taken away under what is filled in then.
#[test]
fn what_is_reserved_after_a_write_is_reserved_anew() {
    let pipe = Pipe::of(100);
    let (memory, mut writer, mut reader) = switched(&pipe);
    let mut keeper = Keeper::default();
    writer.reserve().unwrap();
    assert_eq!(writer.write(&pipe, &[9; 30], Full::Spills), Ok(30));
    assert_eq!(read(&mut reader, &pipe, 60), Ok(vec![9; 30]));
    writer.reserve().unwrap();
    assert_eq!(writer.fill(0, &[8; 30]), 30);
    assert_eq!(ticks(&mut keeper, &memory), 0);
    writer.commit(&pipe, 30).unwrap();
    assert_eq!(read(&mut reader, &pipe, 60), Ok(vec![8; 30]));
}

/// Neither of a frame nor of a token: the ring is used again as soon as it has room.
#[test]
fn of_what_a_full_socket_did_not_take_nothing_is_left() {
    let pipe = Pipe::of(4);
    let (_, mut writer, mut reader) = switched(&pipe);
    assert_eq!(read(&mut reader, &pipe, 9), Err(Stop::Blocked));
    let old = [TOKEN, 99].repeat(2);
    pipe.bytes.borrow_mut().extend(&old);
    assert_eq!(writer.write(&pipe, &[1; 100], Full::Spills), Ok(100));
    assert_eq!(writer.in_ring(&pipe), Ok(true), "no token is owed");
    assert_eq!(writer.write(&pipe, &[1; 28], Full::Spills), Ok(28));
    let none = writer.write(&pipe, &[2; 30], Full::Spills);
    assert_eq!((none, pipe.holds()), (Err(Stop::Blocked), old));
    assert_eq!(read(&mut reader, &pipe, 200), Ok(vec![1; CAPACITY]));
    assert_eq!(writer.in_ring(&pipe), Ok(true), "nor is a frame");
    assert_eq!(writer.write(&pipe, &[3; 5], Full::Spills), Ok(5));
    assert_eq!(read(&mut reader, &pipe, 200), Ok(vec![3; 5]));
}

#[test]
fn of_plain_bytes_it_is_not_known_that_they_are_read() {
    let (memory, pipe) = (Memory::new(), Pipe::of(100));
    let (mut writer, mut reader) = ends(&memory);
    assert_eq!(writer.write(&pipe, b"plain", Full::Spills), Ok(5));
    assert!(!writer.is_read());
    assert!(reader.consent());
    assert_eq!(read(&mut reader, &pipe, 9), Ok(b"plain".to_vec()));
    assert_eq!(writer.write(&pipe, b"ring", Full::Spills), Ok(4));
    assert!(!writer.is_read());
    assert_eq!(read(&mut reader, &pipe, 9), Ok(b"ring".to_vec()));
    assert!(writer.is_read());
}
