//! The journal of connections: memory that the keeper holds and that, of all processes,
//! this one alone has mapped.

use flow::Memory;
use shm::Words;
use std::io;
use std::os::fd::OwnedFd;

/// It.
pub struct Journal(Words);

impl Journal {
    /// Maps it whole; none of it is resident before it is used.
    ///
    /// # Errors
    /// It can be cut, or the kernel's refusal.
    pub fn open(fd: OwnedFd) -> io::Result<Journal> {
        Words::map_whole(fd).map(Journal)
    }
}

impl Memory for Journal {
    fn words(&self) -> usize {
        self.0.len()
    }

    fn read(&self, at: usize, words: &mut [u64]) {
        for (word, at) in words.iter_mut().zip(at..) {
            *word = self.0.load(at);
        }
    }

    fn write(&mut self, at: usize, words: &[u64]) {
        // Each behind what was stored before: whoever ends us between two of them, a
        // successor sees those before alone.
        for (word, at) in words.iter().zip(at..) {
            self.0.publish(at, *word);
        }
    }
}
