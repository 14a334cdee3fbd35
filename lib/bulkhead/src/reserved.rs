//! Room to write in.

use crate::Circuit;
use shm::LINE;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

/// Bytes that are made at a time, in memory of one's own.
pub(crate) const CHUNK: usize = 4096;

/// What was reserved and is neither committed nor given up.
#[derive(Default)]
pub(crate) enum Room {
    #[default]
    None,
    /// So many bytes of the ring.
    Ring(usize),
    /// Memory of one's own, and how much of it went already.
    Buffer(Vec<u8>, usize),
}

impl Room {
    /// Bytes that may be committed.
    pub(crate) fn len(&self) -> usize {
        match self {
            Room::None => 0,
            Room::Ring(length) => *length,
            Room::Buffer(buffer, went) => buffer.len().saturating_sub(*went),
        }
    }
}

/// Room in the ring, or in a buffer where there is none.
pub struct Reserved<'a> {
    circuit: &'a mut Circuit,
    length: usize,
}

impl<'a> Reserved<'a> {
    pub(crate) fn new(circuit: &'a mut Circuit, room: Room) -> Reserved<'a> {
        let length = room.len();
        circuit.room = room;
        Reserved { circuit, length }
    }

    /// Bytes of room.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there is none: never.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Puts bytes at so far from the start; how many fit.
    pub fn copy_from_slice(&mut self, at: usize, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.length.saturating_sub(at));
        let bytes = bytes.get(..n).unwrap_or_default();
        match (&mut self.circuit.room, &mut self.circuit.ring) {
            (Room::Buffer(buffer, _), _) => {
                if let Some(place) = buffer.get_mut(at..at + n) {
                    place.copy_from_slice(bytes);
                }
                n
            }
            (_, Some(ring)) => ring.writer.fill(at, bytes),
            (_, None) => 0,
        }
    }

    /// Makes `bytes` bytes from the start on, some at a time: `make` is told where they begin,
    /// and fills all that it gets. How many there was room for.
    pub fn fill(&mut self, bytes: usize, mut make: impl FnMut(usize, &mut [u8])) -> usize {
        let bytes = bytes.min(self.length);
        let (mut at, mut chunk) = (0, [0; CHUNK]);
        while at < bytes {
            let n = CHUNK.min(bytes - at);
            let part = chunk.get_mut(..n).unwrap_or_default();
            make(at, part);
            at += self.copy_from_slice(at, part).max(1);
        }
        bytes
    }

    /// Makes the first so many bytes where they lie, a line of 64 at a time: `make` is told which,
    /// and gives it by value. Of the last, as much is taken as is asked for. How many bytes there
    /// was room for.
    #[inline]
    pub fn fill_lines(&mut self, bytes: usize, mut make: impl FnMut(usize) -> [u8; LINE]) -> usize {
        let bytes = bytes.min(self.length);
        let lines = bytes / LINE;
        let in_place = match (&self.circuit.room, &self.circuit.ring) {
            (Room::Ring(_), Some(ring)) => {
                let at = ring.writer.offset(0);
                ring.writer.memory().write_lines(at, lines, &mut make)
            }
            _ => false,
        };
        let first = if in_place { lines } else { 0 };
        for n in first..bytes.div_ceil(LINE) {
            let line = make(n);
            let most = LINE.min(bytes - n * LINE);
            self.copy_from_slice(n * LINE, line.get(..most).unwrap_or_default());
        }
        bytes
    }

    /// Reads from a descriptor to so far from the start; how many bytes, none at its end.
    ///
    /// # Errors
    /// read(2)'s.
    pub fn read_from(&mut self, fd: BorrowedFd<'_>, at: usize, most: usize) -> io::Result<usize> {
        let n = most.min(self.length.saturating_sub(at));
        match (&mut self.circuit.room, &mut self.circuit.ring) {
            (Room::Buffer(buffer, _), _) => {
                let mut file = std::fs::File::from(fd.try_clone_to_owned()?);
                file.read(buffer.get_mut(at..at + n).unwrap_or_default())
            }
            (_, Some(ring)) => {
                let from = ring.writer.offset(at);
                ring.writer.memory().read_from(fd.as_fd(), from, n)
            }
            (_, None) => Ok(0),
        }
    }

    /// Where it lies, for who writes there by address, and how long it is: until all that is to go went by
    /// [`Circuit::commit`] nothing else may be done with the circuit.
    pub fn into_place(self) -> (NonNull<u8>, usize) {
        let none = (NonNull::dangling(), 0);
        match (&mut self.circuit.room, &self.circuit.ring) {
            (Room::Buffer(buffer, _), _) => {
                (NonNull::from(buffer.as_mut_slice()).cast(), self.length)
            }
            (_, Some(ring)) => {
                let at = ring.writer.offset(0);
                let at = ring.writer.memory().place(at, self.length);
                at.map_or(none, |at| (at, self.length))
            }
            (_, None) => none,
        }
    }

    /// Sends the first so many bytes; how many of them went, as [`Circuit::commit`], by which the rest goes.
    ///
    /// # Errors
    /// As there.
    pub fn commit(self, n: usize) -> io::Result<usize> {
        self.circuit.commit(n.min(self.length))
    }
}
