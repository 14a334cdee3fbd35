//! The data side: one queue of an interface.
//!
//! Chunks for frames that come go round: fill ring, kernel, receive ring, fill ring. Chunks
//! for frames that leave: transmit ring, kernel, completion ring, transmit ring; those never
//! used yet are counted in shared memory. A chunk is written into the ring that it goes to
//! before it is taken out of the one that it came from, and shown there only afterwards. So
//! at any instruction each chunk is in a ring, with the kernel, or the one that the positions
//! tell to be missing, and that one stands right behind the ring's end.
#![expect(
    unsafe_code,
    reason = "the kernel is woken by sendmsg and recvmsg of nothing"
)]

use std::cell::Cell;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use guard::guard;
use rustix::io::Errno;

use super::memory::{Layout, Mapping, Ring, Which};
use super::{CHUNK, CHUNKS, HEADROOM, PART};
use crate::PortError;

/// Wake-ups after one batch, at most: the kernel takes 32 frames at each.
const WAKES: u32 = CHUNKS / 32;

/// One queue.
#[derive(Debug)]
pub struct Queue {
    fd: OwnedFd,
    memory: Mapping,
    rx: Ring,
    fill: Ring,
    tx: Ring,
    completion: Ring,
    /// A chunk for sending that is in no ring.
    in_hand: Cell<Option<u64>>,
    /// Longest frame.
    most: usize,
}

impl Queue {
    /// Maps the queue called `number` of an uplink: its socket, its part of the memory; and
    /// goes on where whoever ran it before left it. `mtu`: bytes of IP packet.
    ///
    /// # Errors
    /// The descriptors are not what [`super::setup::open`] made, or the kernel lets nobody
    /// map them; a predecessor left what cannot be.
    pub fn attach(
        fd: OwnedFd,
        memory: BorrowedFd<'_>,
        number: usize,
        mtu: u32,
    ) -> Result<Queue, Errno> {
        let offset = i64::try_from(number * PART).map_err(|_| Errno::RANGE)?;
        let memory = Mapping::new(memory, offset, PART)?;
        let ring = |which| {
            let offsets = Layout::read(&memory, which).ok_or(Errno::RANGE)?;
            Ring::map(fd.as_fd(), which, &offsets)
        };
        let queue = Queue {
            rx: ring(Which::Rx)?,
            fill: ring(Which::Fill)?,
            tx: ring(Which::Tx)?,
            completion: ring(Which::Completion)?,
            in_hand: Cell::new(None),
            most: mtu.min(super::MAX_MTU) as usize + 14 + 8,
            memory,
            fd,
        };
        queue.recover()?;
        Ok(queue)
    }

    /// Finds the chunk that a predecessor had in hand, in either direction.
    fn recover(&self) -> Result<(), Errno> {
        let (filled, read) = (self.fill.producer(), self.rx.consumer());
        match CHUNKS.wrapping_sub(filled.wrapping_sub(read)) {
            0 => {}
            // It was taken out of the receive ring, and stands behind the fill ring's end.
            1 if !guard!("xdp-recover") => {}
            1 => self.fill.produce(filled.wrapping_add(1)),
            _ => return Err(Errno::RANGE),
        }
        let (sent, completed) = (self.tx.producer(), self.completion.consumer());
        match self.fresh().wrapping_sub(sent.wrapping_sub(completed)) {
            0 => {}
            1 => self.in_hand.set(Some(self.tx.address(sent))),
            _ => return Err(Errno::RANGE),
        }
        Ok(())
    }

    /// How many of the chunks for sending were ever used.
    fn fresh(&self) -> u32 {
        let word = self.memory.word(Layout::FRESH);
        word.map_or(CHUNKS, |word| word.load(Ordering::Relaxed))
    }

    /// Copies one frame into `buffer`; its length, or `None` when there is none now. It is
    /// done with before anybody looks at it: one that kills its reader is not read again.
    ///
    /// # Errors
    /// [`PortError::Truncated`]: longer than `buffer` or a chunk; it is lost.
    #[inline]
    pub fn recv(&self, buffer: &mut [u8]) -> Result<Option<usize>, PortError> {
        let at = self.rx.consumer();
        if self.rx.producer() == at {
            return Ok(None);
        }
        let address = self.rx.address(at);
        let (length, options) = self.rx.length(at);
        let length = length as usize;
        let place = usize::try_from(address).unwrap_or(usize::MAX);
        let fits = length <= buffer.len() && place.saturating_add(length) <= super::FRAMES;
        let mut copied = 0;
        if let Some(into) = buffer.get_mut(..length)
            && fits
        {
            copied = self.memory.read(place, into);
        }
        let filled = self.fill.producer();
        self.fill.put_address(filled, address & !(CHUNK as u64 - 1));
        self.rx.consume(at.wrapping_add(1));
        self.fill.produce(filled.wrapping_add(1));
        // A frame in several chunks was not asked for.
        if copied != length || options != 0 {
            return Err(PortError::Truncated);
        }
        Ok(Some(length))
    }

    /// Frames that can be sent now. Bound of what one call of `send` may need: one.
    #[inline]
    pub fn room(&self) -> u32 {
        let fresh = CHUNKS.saturating_sub(self.fresh());
        let back = self.completion.producer();
        let back = back.wrapping_sub(self.completion.consumer());
        fresh + back + u32::from(self.in_hand.get().is_some())
    }

    /// Puts one finished frame into the transmit ring: `head`, and `rest` bytes behind it
    /// that `fill` writes. [`Queue::kick`] sends it.
    ///
    /// # Errors
    /// [`PortError::Full`]: no room now. [`PortError::Truncated`]: longer than the MTU allows.
    #[inline]
    pub fn send(
        &self,
        head: &[u8],
        rest: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), PortError> {
        let length = head.len().saturating_add(rest);
        if length > self.most {
            return Err(PortError::Truncated);
        }
        let sent = self.tx.producer();
        let address = match self.in_hand.take() {
            Some(address) => address,
            None => self.next_chunk(sent)?,
        };
        let place = usize::try_from(address).unwrap_or(usize::MAX);
        if place > super::FRAMES - CHUNK {
            return Err(PortError::Vanished);
        }
        self.memory.write(place, head);
        // SAFETY: the chunk is in no ring's shown part: nobody else has it, and no other
        // reference to it is made while this one lives.
        if let Some(into) = unsafe { self.memory.slice(place + head.len(), rest) } {
            fill(into);
        }
        // Ethernet's least, which not every interface sees to itself.
        let padding = [0; 60];
        let more = padding.get(length..).unwrap_or(&[]);
        self.memory.write(place + length, more);
        self.tx.put_length(sent, length.max(padding.len()) as u32);
        self.tx.produce(sent.wrapping_add(1));
        Ok(())
    }

    /// A free chunk, noted behind the transmit ring's end.
    #[inline]
    fn next_chunk(&self, sent: u32) -> Result<u64, PortError> {
        let completed = self.completion.consumer();
        if self.completion.producer() != completed {
            let address = self.completion.address(completed);
            self.tx.put_address(sent, address);
            self.completion.consume(completed.wrapping_add(1));
            return Ok(address);
        }
        let fresh = self.fresh();
        let Some(word) = self.memory.word(Layout::FRESH).filter(|_| fresh < CHUNKS) else {
            return Err(PortError::Full);
        };
        let address = (u64::from(CHUNKS) + u64::from(fresh)) * CHUNK as u64;
        self.tx.put_address(sent, address);
        word.store(fresh + 1, Ordering::Release);
        Ok(address)
    }

    /// Has the kernel go on with what was sent and with the chunks given back, where it
    /// waits for that; returns the system calls that it took.
    ///
    /// # Errors
    /// The interface is down or gone.
    pub fn kick(&self) -> Result<u32, PortError> {
        let mut calls = 0;
        if self.fill.needs_wakeup() {
            calls += 1;
            self.wake(Direction::Receive)?;
        }
        while self.is_waiting() && calls < WAKES {
            calls += 1;
            let before = self.tx.consumer();
            self.wake(Direction::Transmit)?;
            if self.tx.consumer() == before {
                break;
            }
        }
        Ok(calls)
    }

    /// Whether frames are waiting that the kernel goes on with only when it is called.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.tx.producer() != self.tx.consumer() && self.tx.needs_wakeup()
    }

    fn wake(&self, direction: Direction) -> Result<(), PortError> {
        // SAFETY: `msghdr` is plain data, for which all zeros is a value: no name, no
        // bytes, nothing beside them.
        let mut nothing: libc::msghdr = unsafe { mem::zeroed() };
        let fd = self.fd.as_raw_fd();
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: `nothing` is live and refers to no memory.
        let done = unsafe {
            match direction {
                Direction::Receive => libc::recvmsg(fd, &raw mut nothing, flags),
                Direction::Transmit => libc::sendmsg(fd, &raw const nothing, flags),
            }
        };
        if done >= 0 {
            return Ok(());
        }
        match super::setup::last_errno() {
            // It will go on, or is to be asked again.
            Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR => Ok(()),
            // A frame that it cannot send is dropped by it.
            Errno::INVAL | Errno::OVERFLOW => Ok(()),
            errno => Err(PortError::from_errno(errno)),
        }
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Receive,
    Transmit,
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

const _: () = assert!(CHUNK > HEADROOM && CHUNKS.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::super::memory::Offsets;
    use super::*;

    /// A queue without a kernel: files, of which the rings are at the places where a socket
    /// has them.
    struct Apart {
        socket: OwnedFd,
        memory: OwnedFd,
    }

    impl Apart {
        fn new() -> Apart {
            let file = |length: u64| {
                let flags = rustix::fs::MemfdFlags::CLOEXEC;
                let fd = rustix::fs::memfd_create("test", flags).unwrap();
                rustix::fs::ftruncate(&fd, length).unwrap();
                fd
            };
            let apart = Apart {
                socket: file(1 << 33),
                memory: file(PART as u64),
            };
            let memory = Mapping::new(apart.memory.as_fd(), 0, PART).unwrap();
            let offsets = Offsets {
                producer: 0,
                consumer: 64,
                entries: 320,
                flags: 128,
            };
            for which in Which::ALL {
                Layout::write(&memory, which, &offsets);
            }
            let queue = Queue::map(&apart);
            for n in 0..CHUNKS {
                queue.fill.put_address(n, u64::from(n) * CHUNK as u64);
            }
            queue.fill.produce(CHUNKS);
            apart
        }
    }

    impl Queue {
        fn map(apart: &Apart) -> Queue {
            let memory = Mapping::new(apart.memory.as_fd(), 0, PART).unwrap();
            let ring = |which| {
                let offsets = Layout::read(&memory, which).unwrap();
                Ring::map(apart.socket.as_fd(), which, &offsets).unwrap()
            };
            Queue {
                rx: ring(Which::Rx),
                fill: ring(Which::Fill),
                tx: ring(Which::Tx),
                completion: ring(Which::Completion),
                in_hand: Cell::new(None),
                most: 1522,
                memory,
                fd: apart.socket.try_clone().unwrap(),
            }
        }

        fn successor(apart: &Apart) -> Result<Queue, Errno> {
            let fd = apart.socket.try_clone().unwrap();
            Queue::attach(fd, apart.memory.as_fd(), 0, 1500)
        }

        /// As the kernel does: a chunk from the fill ring comes back with a frame.
        fn bring(&self, length: u32) -> u64 {
            let filled = self.fill.consumer();
            assert_ne!(filled, self.fill.producer(), "no chunk is left");
            let address = self.fill.address(filled);
            self.fill.consume(filled.wrapping_add(1));
            let at = self.rx.producer();
            self.rx.put_address(at, address + HEADROOM as u64);
            self.rx.put_length(at, length);
            self.rx.produce(at.wrapping_add(1));
            address
        }

        /// As the kernel does: what was sent comes back.
        fn complete(&self) -> u64 {
            let at = self.tx.consumer();
            assert_ne!(at, self.tx.producer(), "nothing was sent");
            let (address, done) = (self.tx.address(at), self.completion.producer());
            self.tx.consume(at.wrapping_add(1));
            self.completion.put_address(done, address);
            self.completion.produce(done.wrapping_add(1));
            address
        }
    }

    #[test]
    fn a_chunk_that_a_predecessor_had_in_hand_is_neither_lost_nor_used_twice() {
        let apart = Apart::new();
        let mut buffer = [0; 2000];
        let mut seen = std::collections::BTreeSet::new();
        for turn in 0..CHUNKS + 100 {
            let queue = Queue::successor(&apart).unwrap();
            // Dies after the chunk was taken out of the receive ring.
            let address = queue.bring(60);
            let (at, filled) = (queue.rx.consumer(), queue.fill.producer());
            queue.fill.put_address(filled, address);
            queue.rx.consume(at.wrapping_add(1));
            drop(queue);
            let queue = Queue::successor(&apart).unwrap();
            assert_eq!(queue.fill.producer(), filled.wrapping_add(1));
            assert_eq!(queue.recv(&mut buffer), Ok(None));
            seen.insert(address);
            // Dies with a chunk noted behind the transmit ring's end.
            let address = queue.next_chunk(queue.tx.producer()).unwrap();
            drop(queue);
            let queue = Queue::successor(&apart).unwrap();
            queue.send(&[0; 60], 0, |_| {}).unwrap();
            assert_eq!(queue.complete(), address, "{turn}");
        }
        // Each of them had its turn: none was lost.
        assert_eq!(seen.len(), CHUNKS as usize);
        let queue = Queue::successor(&apart).unwrap();
        assert_eq!(queue.room(), CHUNKS);
        // What cannot be is not gone on with.
        let filled = queue.fill.producer();
        queue.fill.produce(filled.wrapping_sub(3));
        assert!(Queue::successor(&apart).is_err());
        queue.fill.produce(filled);
        queue.tx.produce(queue.tx.producer().wrapping_sub(2));
        assert!(Queue::successor(&apart).is_err());
    }

    #[test]
    fn what_a_ring_says_is_held_to_the_memory() {
        let apart = Apart::new();
        let queue = Queue::successor(&apart).unwrap();
        let mut buffer = [0; 2000];
        for (address, length) in [
            (u64::MAX, 60),
            (super::super::FRAMES as u64 - 10, 60),
            (0, 3000),
        ] {
            queue.bring(60);
            let at = queue.rx.producer().wrapping_sub(1);
            queue.rx.put_address(at, address);
            queue.rx.put_length(at, length);
            assert_eq!(queue.recv(&mut buffer), Err(PortError::Truncated));
        }
        queue.bring(60);
        assert_eq!(queue.recv(&mut buffer), Ok(Some(60)));
    }
}
