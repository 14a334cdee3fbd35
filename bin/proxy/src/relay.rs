//! One connection of TCP joined to one circuit: a pipe each way, through which bytes are
//! spliced. And that pipe, as metered circuits have two.

use guard::guard;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of a pipe, where the kernel gives as many: what a socket has ready at once.
const ROOM: usize = 256 << 10;
/// Splices of one direction before others have their turn.
const TURN: usize = 16;

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing can be moved before one of the two says so.
    Waits,
    /// There is more to move at once.
    More,
    /// Both have said all, or one is gone.
    Over,
}

/// A connection and its circuit.
pub struct Relay {
    tcp: OwnedFd,
    circuit: OwnedFd,
    out: Way,
    back: Way,
}

/// One direction.
pub struct Way {
    from: OwnedFd,
    to: OwnedFd,
    held: usize,
    /// Bytes that the sink has taken.
    handed: u64,
    /// Bytes that it will not have.
    lost: u64,
    /// It takes none any more: they are thrown away.
    is_deaf: bool,
    /// The source is a program's too, which is told that.
    is_told_so: bool,
    /// The sink is a program's: whether it has closed it, or hears no more and goes on to speak, is one to who writes.
    to_program: bool,
    /// The source was asked last, and had nothing.
    dry: bool,
    /// The source has said all.
    ended: bool,
    /// It had not read all by then.
    is_reset: bool,
    /// And the sink knows.
    told: bool,
}

/// How far a direction is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Bytes that were taken from who sends.
    pub taken: u64,
    /// Bytes that the other's socket took.
    pub handed: u64,
    /// Who sends has said all.
    pub ended: bool,
    /// And the other's socket knows.
    pub told: bool,
}

impl Relay {
    /// Joins them. Neither may block.
    ///
    /// # Errors
    /// The kernel's: no descriptor is left.
    pub fn new(tcp: OwnedFd, circuit: OwnedFd) -> Result<Relay, Errno> {
        Ok(Relay {
            tcp,
            circuit,
            out: Way::new(false)?,
            back: Way::new(true)?,
        })
    }

    /// The two sockets, to be watched for any change.
    pub fn ends(&self) -> [BorrowedFd<'_>; 2] {
        [self.tcp.as_fd(), self.circuit.as_fd()]
    }

    /// Its pipes' newest ends.
    pub fn pipes(&self) -> [BorrowedFd<'_>; 2] {
        [self.out.newest(), self.back.newest()]
    }

    /// It is not carried: whoever connected is told so.
    pub fn refuse(self) {
        crate::tcp::resets(&self.tcp);
    }

    /// Moves what there is.
    pub fn turn(&mut self) -> Turn {
        let out = self.out.turn(self.circuit.as_fd(), self.tcp.as_fd());
        let back = self.back.turn(self.tcp.as_fd(), self.circuit.as_fd());
        match (out, back) {
            (Err(_), _) => {
                // The program's end is gone with what it had not read, or the other's: TCP
                // says so too.
                crate::tcp::resets(&self.tcp);
                Turn::Over
            }
            (_, Err(_)) => Turn::Over,
            _ if self.out.told && (self.back.told || is_left(&self.circuit)) => Turn::Over,
            (Ok(true), _) | (_, Ok(true)) => Turn::More,
            _ => Turn::Waits,
        }
    }
}

/// Whether the program has closed its end of a circuit, not only said all: the kernel ends what
/// is left, as it would a socket of its own.
pub fn is_left(circuit: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&circuit, PollFlags::IN)];
    let asked = poll(&mut fds, Some(&Timespec::default()));
    asked.is_ok() && fds[0].revents().contains(PollFlags::HUP)
}

/// Bytes of a program that are taken at its circuit's end.
const HEARD_OUT: usize = 256 << 10;

/// What a program said that nobody heard is taken: who closes over it would have it read an error in place of the end.
pub fn hears_out(circuit: BorrowedFd<'_>) {
    let mut bytes = [0; 16 << 10];
    let _ = shutdown(circuit, Shutdown::Read);
    // Bound: as much as most have under way. Over more it is closed, which tells of a reset, as TCP does: this is
    // in nobody's turn.
    for _ in 0..HEARD_OUT / bytes.len() {
        if !matches!(
            recv(circuit, &mut bytes[..], RecvFlags::DONTWAIT),
            Ok((1.., _))
        ) {
            break;
        }
    }
}

impl Way {
    /// One that takes much at a time.
    fn new(to_program: bool) -> Result<Way, Errno> {
        let mut way = Way::narrow()?;
        (way.is_told_so, way.to_program) = (false, to_program);
        // A smaller one does as well.
        let _ = fcntl_setpipe_size(&way.to, ROOM);
        Ok(way)
    }

    /// One as the kernel gives it: there are many.
    pub fn narrow() -> Result<Way, Errno> {
        let (from, to) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Way {
            from,
            to,
            held: 0,
            handed: 0,
            lost: 0,
            is_deaf: false,
            is_told_so: true,
            to_program: true,
            dry: false,
            ended: false,
            is_reset: false,
            told: false,
        })
    }

    /// The end of its pipe that was made last.
    pub fn newest(&self) -> BorrowedFd<'_> {
        self.to.as_fd()
    }

    /// Bytes that the sink has taken so far.
    pub fn handed(&self) -> u64 {
        self.handed
    }

    /// How far it is.
    pub fn state(&self) -> State {
        State {
            taken: self.handed + self.held as u64 + self.lost,
            handed: self.handed,
            ended: self.ended,
            told: self.told,
        }
    }

    /// Whether the sink had no room for all that there was.
    pub fn is_full(&self) -> bool {
        self.held > 0
    }

    /// Whether the sink takes no more than it has.
    pub fn is_deaf(&self) -> bool {
        self.is_deaf
    }

    /// Whether the source was closed before all was read that came there.
    pub fn is_reset(&self) -> bool {
        self.is_reset
    }

    /// Whether there was nothing to move.
    pub fn is_idle(&self) -> bool {
        self.dry && self.held == 0
    }

    /// Whether the source has said all, and the sink knows.
    pub fn is_told(&self) -> bool {
        self.told
    }

    /// Whether there is more to move at once.
    fn turn(&mut self, source: BorrowedFd<'_>, sink: BorrowedFd<'_>) -> Result<bool, Errno> {
        for _ in 0..TURN {
            let before = self.handed;
            let taken = self.step(source, sink, ROOM, Ok)?;
            if taken == 0 && self.handed == before {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes so many bytes at most from the source, of which `look` says how many it has seen, and
    /// hands the sink what it takes; how many were taken.
    ///
    /// # Errors
    /// One of the two is gone.
    pub fn step(
        &mut self,
        source: BorrowedFd<'_>,
        sink: BorrowedFd<'_>,
        most: usize,
        look: impl FnOnce(usize) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        const FLAGS: SpliceFlags = SpliceFlags::NONBLOCK.union(SpliceFlags::MOVE);
        let mut taken = 0;
        self.dry = false;
        if self.is_deaf && !self.ended && most > 0 {
            return self.throws_away(source, look(most));
        }
        if !self.ended && most > 0 {
            let came =
                look(most).and_then(|most| splice(source, None, &self.to, None, most, FLAGS));
            match came {
                Ok(0) => self.ended = true,
                Ok(length) => {
                    self.held += length;
                    taken = length;
                }
                // It was closed before all was read that came there: what it said came before.
                Err(Errno::CONNRESET) if self.is_told_so && guard!("meter-reset") => {
                    (self.ended, self.is_reset) = (true, true);
                }
                // Nothing there, or no room in the pipe: the second half makes some.
                Err(Errno::AGAIN) => self.dry = true,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.dry |= self.ended;
        if self.held > 0 {
            match splice(&self.from, None, sink, None, self.held, FLAGS) {
                Ok(length) => {
                    self.held -= length.min(self.held);
                    self.handed += length as u64;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                // It hears no more, and may say more, or has said what is under way still: the other direction goes on.
                Err(Errno::PIPE | Errno::CONNRESET) if self.to_program && guard!("proxy-half") => {
                    self.is_deaf = true;
                    self.lost += std::mem::take(&mut self.held) as u64;
                    // Of what is there already either this tells, or nothing any more.
                    match self.is_told_so {
                        true => shutdown(source, Shutdown::Read)?,
                        false => taken += self.throws_away(source, Ok(ROOM))?,
                    }
                }
                Err(errno) => return Err(errno),
            }
        }
        if self.ended && self.held == 0 && !self.told {
            self.told = true;
            shutdown(sink, Shutdown::Write)?;
        }
        Ok(taken)
    }

    /// What nobody hears is taken all the same: a socket that is closed over it would reset what is said there.
    fn throws_away(
        &mut self,
        source: BorrowedFd<'_>,
        most: Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let mut bytes = [0; 16 << 10];
        let came = most.and_then(|most| {
            let most = most.min(bytes.len());
            recv(source, &mut bytes[..most], RecvFlags::DONTWAIT)
        });
        match came {
            Ok((0, _)) => (self.ended, self.told, self.dry) = (true, true, true),
            Ok((length, _)) => {
                self.lost += length as u64;
                return Ok(length);
            }
            Err(Errno::AGAIN) => self.dry = true,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    fn tcp() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    fn relay() -> (Relay, TcpStream, UnixStream) {
        let ((far, tcp), (program, circuit)) = (tcp(), UnixStream::pair().unwrap());
        tcp.set_nonblocking(true).unwrap();
        circuit.set_nonblocking(true).unwrap();
        (
            Relay::new(tcp.into(), circuit.into()).unwrap(),
            far,
            program,
        )
    }

    /// Turns until it is over; how it was before.
    fn run(mut relay: Relay) -> std::thread::JoinHandle<usize> {
        std::thread::spawn(move || {
            for turns in 0..200_000 {
                if relay.turn() == Turn::Over {
                    return turns;
                }
                std::thread::yield_now();
            }
            panic!("it never ends");
        })
    }

    #[test]
    fn what_is_said_comes_whole_both_ways_and_its_end_too() {
        let (relay, mut far, mut program) = relay();
        let running = run(relay);
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
        let copy = bytes.clone();
        let mut echo = far.try_clone().unwrap();
        let echoing = std::thread::spawn(move || {
            let mut all = Vec::new();
            far.read_to_end(&mut all).unwrap();
            echo.write_all(&all).unwrap();
        });
        let mut said = program.try_clone().unwrap();
        let saying = std::thread::spawn(move || {
            said.write_all(&copy).unwrap();
            said.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut heard = Vec::new();
        program.read_to_end(&mut heard).unwrap();
        assert!(heard == bytes);
        saying.join().unwrap();
        echoing.join().unwrap();
        running.join().unwrap();
    }

    #[test]
    fn a_program_that_hears_no_more_goes_on_saying() {
        let (one, mut far, mut program) = relay();
        let running = run(one);
        program.shutdown(std::net::Shutdown::Read).unwrap();
        // More than a pipe holds, and than is read while it comes.
        far.write_all(&[0; 300_000]).unwrap();
        for said in [b"one", b"two"] {
            std::thread::sleep(std::time::Duration::from_millis(20));
            program.write_all(said).unwrap();
            let mut heard = [0; 3];
            far.read_exact(&mut heard).unwrap();
            assert_eq!(&heard, said);
        }
        let saying = std::thread::spawn(move || {
            program.write_all(&[1; 2_000_000]).unwrap();
            program
        });
        let (mut all, mut bytes) = (0, [0; 20_000]);
        while all < 2_000_000 {
            let length = far.read(&mut bytes).unwrap();
            assert_ne!(length, 0, "after {all}");
            all += length;
            let _ = far.write(b"unheard, too").unwrap();
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        drop((saying.join().unwrap(), far));
        running.join().unwrap();
    }

    /// It has closed it, with what it was sent read or not, while most of what it said is under way: as a meter carries it.
    #[test]
    fn what_is_under_way_comes_whole_whatever_is_said_to_who_has_closed() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
        for (is_read, says) in [(true, true), (false, true), (false, false)] {
            let (mut program, one) = UnixStream::pair().unwrap();
            let (other, mut far) = UnixStream::pair().unwrap();
            let [mut there, mut back] = [(), ()].map(|()| Way::narrow().unwrap());
            program.write_all(&bytes).unwrap();
            far.write_all(b"one").unwrap();
            while back.handed() < 3 {
                back.step(other.as_fd(), one.as_fd(), 1000, Ok).unwrap();
            }
            if is_read {
                program.read_exact(&mut [0; 3]).unwrap();
            }
            drop(program);
            // Too late to be heard, which whoever closes it would tell.
            let late = far.write_all(b"two");
            late.unwrap();
            let mut heard = vec![0; bytes.len()];
            for some in heard.chunks_mut(1000) {
                if says {
                    back.step(other.as_fd(), one.as_fd(), 1000, Ok).unwrap();
                }
                there.step(one.as_fd(), other.as_fd(), 1000, Ok).unwrap();
                far.read_exact(some).unwrap();
            }
            assert!(heard == bytes);
            there.step(one.as_fd(), other.as_fd(), 1000, Ok).unwrap();
            assert!(there.is_told() && is_left(&one), "{is_read} {says}");
            hears_out(other.as_fd());
            drop(other);
            assert_eq!(far.read(&mut [0; 8]).unwrap(), 0, "{is_read} {says}");
        }
    }

    #[test]
    fn a_program_that_closes_leaves_nothing_behind() {
        let (mut one, mut far, mut program) = relay();
        program.write_all(b"all").unwrap();
        program.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(one.turn(), Turn::Waits);
        drop(program);
        assert_eq!(one.turn(), Turn::Over);
        drop(one);
        let mut heard = Vec::new();
        far.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"all");
    }

    #[test]
    fn a_program_that_is_gone_resets_and_a_reset_ends_a_program() {
        let (mut one, mut far, program) = relay();
        far.write_all(b"never read").unwrap();
        assert_eq!(one.turn(), Turn::Waits);
        drop(program);
        far.write_all(b"more").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(one.turn(), Turn::Over);
        drop(one);
        let error = far.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);

        let (mut one, far, mut program) = relay();
        crate::tcp::resets(&far);
        drop(far);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(one.turn(), Turn::Over);
        drop(one);
        assert_eq!(program.read(&mut [0; 8]).unwrap_or(0), 0);
    }
}
