//! What has come.

use crate::Circuit;
use crate::reserved::CHUNK;
use shm::LINE;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// Bytes that came, in the ring or in a buffer. Those of the ring the peer can still change:
/// two looks may differ, so what is judged is copied first.
pub struct Peeked<'a> {
    circuit: &'a mut Circuit,
    length: usize,
    in_ring: bool,
}

impl<'a> Peeked<'a> {
    pub(crate) fn ring(circuit: &'a mut Circuit, length: usize) -> Peeked<'a> {
        Peeked {
            circuit,
            length,
            in_ring: true,
        }
    }

    pub(crate) fn held(circuit: &'a mut Circuit) -> Peeked<'a> {
        Peeked {
            length: circuit.held().len(),
            circuit,
            in_ring: false,
        }
    }

    /// Bytes that are there; none: the stream has ended.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the stream has ended.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies bytes from so far behind the start; how many there are.
    pub fn copy_to(&self, at: usize, out: &mut [u8]) -> usize {
        let n = out.len().min(self.length.saturating_sub(at));
        let out = out.get_mut(..n).unwrap_or_default();
        match &self.circuit.ring {
            Some(ring) if self.in_ring => ring.reader.copy(at, out),
            _ => {
                let held = self.held_from(at);
                out.copy_from_slice(held.get(..n).unwrap_or_default());
                n
            }
        }
    }

    /// Shows the first so many bytes, some at a time, as copies that nobody changes.
    pub fn chunks(&self, bytes: usize, mut show: impl FnMut(&[u8])) {
        let bytes = bytes.min(self.length);
        let (mut at, mut chunk) = (0, [0; CHUNK]);
        while at < bytes {
            let n = CHUNK.min(bytes - at);
            let part = chunk.get_mut(..n).unwrap_or_default();
            at += self.copy_to(at, part).max(1);
            show(part);
        }
    }

    /// Shows the first so many bytes where they lie, a line of 64 at a time, each by value: a copy
    /// that nobody changes. How many whole lines there are, which may be all that are shown:
    /// [`Peeked::copy_to`] has the rest.
    #[inline]
    pub fn lines(&self, bytes: usize, mut show: impl FnMut([u8; LINE])) -> usize {
        let lines = bytes.min(self.length) / LINE;
        let in_place = match &self.circuit.ring {
            Some(ring) if self.in_ring => {
                let at = ring.reader.offset(0);
                ring.reader.memory().read_lines(at, lines, &mut show)
            }
            _ => false,
        };
        if !in_place {
            let mut line = [0; LINE];
            for n in 0..lines {
                self.copy_to(n * LINE, &mut line);
                show(line);
            }
        }
        lines
    }

    /// The sum of the first so many bytes.
    pub fn sum(&self, bytes: usize) -> u64 {
        let bytes = bytes.min(self.length);
        let mut sum = 0;
        let of = |part: &[u8]| part.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let lines = self.lines(bytes, |line| sum += of(&line));
        let mut rest = [0; LINE];
        let rest = rest.get_mut(..bytes - lines * LINE).unwrap_or_default();
        self.copy_to(lines * LINE, rest);
        sum + of(rest)
    }

    /// Writes the first so many bytes, or some of them, to a descriptor; how many.
    ///
    /// # Errors
    /// write(2)'s.
    pub fn write_to(&self, fd: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
        let n = bytes.min(self.length);
        match &self.circuit.ring {
            Some(ring) if self.in_ring => {
                let reader = &ring.reader;
                reader.memory().write_to(fd, reader.offset(0), n)
            }
            _ => {
                let mut file = std::fs::File::from(fd.try_clone_to_owned()?);
                file.write(self.held_from(0).get(..n).unwrap_or_default())
            }
        }
    }

    /// The first so many bytes are used.
    pub fn consume(self, n: usize) {
        self.circuit.consume(n.min(self.length));
    }

    /// Where they lie, for who reads there by address: until [`Circuit::consume`], nothing else
    /// may be done with the circuit. What is in the ring the peer can change at any time.
    pub fn place(&self) -> NonNull<u8> {
        let held = || NonNull::from(self.held_from(0)).cast();
        match &self.circuit.ring {
            Some(ring) if self.in_ring => {
                let at = ring.reader.offset(0);
                let place = ring.reader.memory().place(at, self.length);
                place.unwrap_or_else(held)
            }
            _ => held(),
        }
    }

    fn held_from(&self, at: usize) -> &[u8] {
        self.circuit.held().get(at..).unwrap_or_default()
    }
}
