//! A circuit whose other end lies in the shared pages and sends what it likes by the socket.
//!
//! Held: the same as of a channel's ends; no more bytes are given or taken than was said; a
//! read or a write looks into the socket a bounded number of times; what the writer sends by
//! the socket is always plain bytes and then whole frames, however little it takes at once.

use crate::input::Input;
use crate::ring::Fickle;
use ring::Geometry;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use stream::{Full, LONGEST_SPILL, Line, Reader, SPILL, Stop, TOKEN, Writer};

const CAPACITY: usize = 1024;
const STEPS: usize = 256;
/// Calls of the socket that one read or write makes at most.
const CALLS: usize = 256;

/// A socket into which the peer puts what the input says.
struct Socket {
    input: Rc<Input>,
    waiting: RefCell<VecDeque<u8>>,
    sent: RefCell<Vec<u8>>,
    calls: Cell<usize>,
}

impl Socket {
    fn called(&self) -> u8 {
        self.calls.set(self.calls.get() + 1);
        assert!(self.calls.get() <= CALLS, "work without a bound");
        self.input.byte()
    }

    /// The peer may send between any two calls.
    fn comes(&self) -> Result<(), Stop> {
        let what = self.called();
        let mut waiting = self.waiting.borrow_mut();
        match what % 16 {
            0..3 => waiting.extend([TOKEN, self.input.byte()]),
            3 | 4 => {
                let length = u32::from(self.input.byte()) << (what >> 4);
                waiting.push_back(SPILL);
                waiting.extend(length.to_le_bytes());
            }
            5..8 => waiting.extend(self.input.take(usize::from(what >> 4))),
            8 => return Err(Stop::Socket(104)),
            _ => {}
        }
        match waiting.is_empty() {
            true if what % 16 == 9 => Ok(()),
            true => Err(Stop::Blocked),
            false => Ok(()),
        }
    }

    fn copy(&self, out: &mut [u8]) -> usize {
        let waiting = self.waiting.borrow();
        for (place, byte) in out.iter_mut().zip(waiting.iter()) {
            *place = *byte;
        }
        out.len().min(waiting.len())
    }
}

impl Line for Socket {
    fn send(&self, head: &[u8], body: &[u8]) -> Result<usize, Stop> {
        let what = self.called();
        let all = head.iter().chain(body).copied();
        let n = match what % 8 {
            0 => return Err(Stop::Blocked),
            1 => return Err(Stop::Socket(32)),
            2..5 => usize::from(what >> 3),
            _ => head.len() + body.len(),
        };
        let n = n.min(head.len() + body.len());
        self.sent.borrow_mut().extend(all.take(n));
        match n {
            0 => Err(Stop::Blocked),
            n => Ok(n),
        }
    }
    fn take(&self, out: &mut [u8]) -> Result<usize, Stop> {
        self.comes()?;
        let n = self.copy(out);
        self.waiting.borrow_mut().drain(..n);
        Ok(n)
    }
    fn look(&self, out: &mut [u8]) -> Result<usize, Stop> {
        self.comes()?;
        Ok(self.copy(out))
    }
    fn wake(&self) {}
}

/// One run.
pub fn run(bytes: &[u8]) {
    let input = Rc::new(Input::new(bytes));
    let writes = input.flag();
    let geometry = Geometry::stream(CAPACITY).expect("it is legal");
    let memory = Fickle::new(Rc::clone(&input), CAPACITY, true);
    let socket = Socket {
        input,
        waiting: RefCell::default(),
        sent: RefCell::default(),
        calls: Cell::new(0),
    };
    match writes {
        true => writer(Writer::new(memory, &geometry), &socket),
        false => reader(Reader::new(memory, &geometry), &socket),
    }
}

fn reader(mut reader: Reader<Fickle>, socket: &Socket) {
    let mut out = [0; 2 * CAPACITY];
    let mut closed = None;
    for _ in 0..STEPS {
        if socket.input.is_over() {
            break;
        }
        reader.memory().begin();
        socket.calls.set(0);
        let what = socket.input.byte();
        let some = usize::from(what >> 2) * 16 + 1;
        let told = match what % 4 {
            0..3 => match reader.read(socket, &mut out[..some]) {
                Ok(n) => {
                    assert!(n <= some);
                    assert_eq!(closed, None, "from an end that is closed");
                    continue;
                }
                Err(stop) => stop,
            },
            _ => match reader.in_ring() {
                Ok(n) => {
                    assert!(n <= CAPACITY, "{n}");
                    assert!(reader.copy(0, &mut out) <= CAPACITY);
                    reader.consume(socket, some.min(n));
                    continue;
                }
                Err(stop) => stop,
            },
        };
        assert!(told != Stop::Full, "a reader's");
        if let Stop::Peer(breach) = told {
            assert!(closed.is_none_or(|before| before == breach), "for good");
            closed = Some(breach);
        }
    }
}

fn writer(mut writer: Writer<Fickle>, socket: &Socket) {
    let mut plain = 0;
    for _ in 0..STEPS {
        if socket.input.is_over() {
            break;
        }
        writer.memory().begin();
        socket.calls.set(0);
        let what = socket.input.byte();
        let some = usize::from(what >> 3) * 64 + 1;
        let before = socket.sent.borrow().len();
        match what % 8 {
            0..5 => {
                let full = match what >> 6 {
                    0 | 1 => Full::Spills,
                    2 => Full::Waits,
                    _ => Full::Aside,
                };
                if let Ok(n) = writer.write(socket, &vec![5; some], full) {
                    assert!(n <= some);
                }
            }
            5 => {
                if writer.in_ring(socket) == Ok(true)
                    && let Ok(room) = writer.room()
                {
                    assert!(room <= CAPACITY, "{room}");
                    let n = writer.fill(0, &[6; CAPACITY][..some.min(CAPACITY)]);
                    assert!(n <= room && writer.offset(0) < CAPACITY);
                    let _ = writer.commit(socket, n);
                }
            }
            6 => {
                let _ = writer.arm(some);
                writer.disarm();
            }
            _ => {
                let _ = writer.is_read();
            }
        }
        // Until the reader consents all is as it was given.
        let sent = socket.sent.borrow();
        if plain == before && sent[before..].iter().all(|byte| *byte == 5) {
            plain = sent.len();
        }
    }
    frames(&socket.sent.borrow()[plain..]);
}

/// Whole frames one behind another; the last one may have been cut off.
fn frames(mut rest: &[u8]) {
    loop {
        rest = match rest {
            [] | [TOKEN] => return,
            [TOKEN, _, rest @ ..] => rest,
            [SPILL, a, b, c, d, rest @ ..] => {
                let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
                assert!((1..=LONGEST_SPILL).contains(&length), "{length}");
                let (body, rest) = rest.split_at(length.min(rest.len()));
                assert!(body.iter().all(|byte| *byte == 5), "a spill's bytes");
                rest
            }
            [SPILL, ..] => return,
            [other, ..] => panic!("{other} begins no frame"),
        };
    }
}
