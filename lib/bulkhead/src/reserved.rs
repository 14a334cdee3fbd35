//! Room to write in.

use crate::Circuit;
use shm::LINE;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

/// Bytes that are made at a time, in memory of one's own.
pub(crate) const CHUNK: usize = 4096;

/// Where room lies.
pub enum Place {
    /// In the ring, which the peer can see and change; so many bytes.
    Ring(NonNull<u8>, usize),
    /// In memory of one's own.
    Buffer(Vec<u8>),
}

/// Room in the ring, or in a buffer where there is none.
pub struct Reserved<'a> {
    circuit: &'a mut Circuit,
    length: usize,
    buffer: Option<Vec<u8>>,
}

impl<'a> Reserved<'a> {
    pub(crate) fn ring(circuit: &'a mut Circuit, length: usize) -> Reserved<'a> {
        Reserved {
            circuit,
            length,
            buffer: None,
        }
    }

    pub(crate) fn buffer(circuit: &'a mut Circuit, length: usize) -> Reserved<'a> {
        Reserved {
            circuit,
            length,
            buffer: Some(vec![0; length]),
        }
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
        match (&mut self.buffer, &mut self.circuit.ring) {
            (Some(buffer), _) => {
                if let Some(place) = buffer.get_mut(at..at + n) {
                    place.copy_from_slice(bytes);
                }
                n
            }
            (None, Some(ring)) => ring.writer.fill(at, bytes),
            (None, None) => 0,
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
        let in_place = match (&self.buffer, &self.circuit.ring) {
            (None, Some(ring)) => {
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
        match (&mut self.buffer, &mut self.circuit.ring) {
            (Some(buffer), _) => {
                let mut file = std::fs::File::from(fd.try_clone_to_owned()?);
                file.read(buffer.get_mut(at..at + n).unwrap_or_default())
            }
            (None, Some(ring)) => {
                let from = ring.writer.offset(at);
                ring.writer.memory().read_from(fd.as_fd(), from, n)
            }
            (None, None) => Ok(0),
        }
    }

    /// Where it lies, for who writes there by address: until [`Circuit::commit`], or the buffer is
    /// written, nothing else may be done with the circuit.
    pub fn into_place(self) -> Place {
        if let Some(buffer) = self.buffer {
            return Place::Buffer(buffer);
        }
        let ring = self.circuit.ring.as_ref();
        let at = ring.and_then(|ring| {
            let at = ring.writer.offset(0);
            ring.writer.memory().place(at, self.length)
        });
        match at {
            Some(at) => Place::Ring(at, self.length),
            None => Place::Buffer(Vec::new()),
        }
    }

    /// Sends the first so many bytes.
    ///
    /// # Errors
    /// As write(2).
    pub fn commit(self, n: usize) -> io::Result<()> {
        let n = n.min(self.length);
        let Some(buffer) = self.buffer else {
            return self.circuit.commit(n);
        };
        let mut bytes = buffer.get(..n).unwrap_or_default();
        // Bound: the bytes.
        while !bytes.is_empty() {
            match self.circuit.send(bytes) {
                Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
                // It was reserved: it is sent.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.circuit.wait_writable(None)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
