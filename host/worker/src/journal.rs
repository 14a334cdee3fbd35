//! The journal of connections: memory that the keeper holds and that, of all processes,
//! this one alone has mapped.

use flow::Memory;
use shm::Words;
use std::io;
use std::os::fd::OwnedFd;

/// It, or one worker's part of it.
pub struct Journal {
    page: Words,
    /// Its first word, and how many there are.
    first: usize,
    words: usize,
}

impl Journal {
    /// Maps it whole; none of it is resident before it is used.
    ///
    /// # Errors
    /// It can be cut, or the kernel's refusal.
    pub fn open(fd: OwnedFd) -> io::Result<Journal> {
        Journal::part(fd, 0, 1)
    }

    /// As [`Journal::open`], of as many parts of equal size as `of` says the one with this
    /// number, from 0.
    ///
    /// # Errors
    /// As there.
    pub fn part(fd: OwnedFd, number: usize, of: usize) -> io::Result<Journal> {
        let page = Words::map_whole(fd)?;
        let words = page.len() / of.max(1);
        Ok(Journal {
            first: words * number,
            words,
            page,
        })
    }
}

impl Memory for Journal {
    fn words(&self) -> usize {
        self.words
    }

    fn read(&self, at: usize, words: &mut [u64]) {
        for (word, at) in words.iter_mut().zip(at..self.words) {
            *word = self.page.load(self.first + at);
        }
    }

    fn write(&mut self, at: usize, words: &[u64]) {
        // Each behind what was stored before: whoever ends us between two of them, a
        // successor sees those before alone.
        for (word, at) in words.iter().zip(at..self.words) {
            self.page.publish(self.first + at, *word);
        }
    }
}
