//! Pages of circuits that nobody uses are given back by copies of this process, which touch the memory in its
//! place and end: a program can have whoever does that wait, for seconds by punching a file that it has mapped
//! a hundred thousand times, and for as long as it likes by a write to it of memory that a file
//! system of its own does not give (FUSE), which not even a signal that kills ends.
//!
//! A copy has the files of two endpoints' circuits alone, so that what it holds on to are theirs.

use notify::apart;
use rustix::event::{Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use shm::CircuitWords;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use stream::CAPACITY;
use stream::reclaim::{Look, SETTLES, done, is_idle, look};

/// Circuits that one looks at.
pub const AT_ONCE: usize = 16;
/// It takes [`SETTLES`] and some ten microseconds for each.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of what one tells of a circuit: what came of it, its number of the round, the writers' positions.
const REPORT: usize = 24;

/// What is known of a circuit before anybody has looked.
pub const NOTHING: [u64; 2] = [u64::MAX; 2];

/// What came of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// Something goes by it: the writers' positions.
    Moved([u64; 2]),
    /// Its pages were given back, or are in use.
    Over,
    /// Whoever looked has ended, and not said of it.
    Lost,
}

/// Some circuits between the same two endpoints that are looked at.
pub struct Round {
    /// Those endpoints' slots.
    pub slots: [u32; 2],
    begun: Instant,
    hears: OwnedFd,
    /// Who began the circuits; none: it has been told of.
    rings: Vec<Option<u64>>,
}

impl Round {
    /// Begins it: who began each, its memory, and the writers' positions that were seen last.
    ///
    /// # Errors
    /// The kernel's: no process can be made.
    pub fn begin(slots: [u32; 2], all: &[(u64, BorrowedFd<'_>, [u64; 2])]) -> Result<Round, Errno> {
        let all = all.get(..AT_ONCE).unwrap_or(all);
        let (hears, tells) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let files = all.iter().map(|(_, file, _)| *file);
        let keeps: Vec<BorrowedFd<'_>> = files.chain([tells.as_fd()]).collect();
        apart(&keeps, || gives(all, &tells))?;
        Ok(Round {
            slots,
            begun: Instant::now(),
            hears,
            rings: all.iter().map(|(began, ..)| Some(*began)).collect(),
        })
    }

    /// Takes all pages of some back, whatever anybody does with them: who began each, and its memory.
    ///
    /// # Errors
    /// As of [`Round::begin`].
    pub fn take_back(slots: [u32; 2], all: &[(u64, BorrowedFd<'_>)]) -> Result<Round, Errno> {
        let (hears, tells) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let files = all.iter().map(|(_, file)| *file);
        let keeps: Vec<BorrowedFd<'_>> = files.chain([tells.as_fd()]).collect();
        apart(&keeps, || {
            for (number, (_, file)) in all.iter().enumerate() {
                let is_done = shm::take_back(file, CAPACITY).is_ok();
                tell(
                    &tells,
                    number,
                    if is_done { Came::Over } else { Came::Lost },
                );
            }
        })?;
        Ok(Round {
            slots,
            begun: Instant::now(),
            hears,
            rings: all.iter().map(|(began, _)| Some(*began)).collect(),
        })
    }

    /// What it has told since it was asked last, and whether it is over: of others nothing will come.
    pub fn hear(&mut self) -> (Vec<(u64, Came)>, bool) {
        let (mut heard, mut bytes) = (Vec::new(), [0; REPORT]);
        // Bound: what it tells of each circuit.
        let is_over = loop {
            match rustix::io::read(&self.hears, &mut bytes) {
                Ok(REPORT) => heard.extend(self.report(&bytes)),
                Err(Errno::AGAIN) => break false,
                _ => break true,
            }
        };
        if is_over {
            let rest = self.rings.iter_mut().filter_map(Option::take);
            heard.extend(rest.map(|began| (began, Came::Lost)));
        }
        (heard, is_over)
    }

    fn report(&mut self, bytes: &[u8; REPORT]) -> Option<(u64, Came)> {
        let [what, one, other] = [0, 8, 16].map(|at| {
            let word = bytes.get(at..at + 8).and_then(|it| it.try_into().ok());
            word.map_or(0, u64::from_le_bytes)
        });
        let began = self.rings.get_mut((what >> 8) as usize)?.take()?;
        let came = match what as u8 {
            0 => Came::Moved([one, other]),
            1 => Came::Over,
            _ => Came::Lost,
        };
        Some((began, came))
    }

    /// One that says nothing, as of a copy that some program has wait, and the end that it would say it by.
    #[cfg(test)]
    pub fn silent(slots: [u32; 2], since: Duration) -> (Round, OwnedFd) {
        let (hears, tells) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let begun = Instant::now().checked_sub(since).unwrap();
        let round = Round {
            slots,
            begun,
            hears,
            rings: Vec::new(),
        };
        (round, tells)
    }

    /// Whether some program has it wait.
    pub fn is_late(&self) -> bool {
        self.begun.elapsed() >= PATIENCE
    }
}

/// What came of one, by the copy. It allocates nothing.
fn tell(tells: &OwnedFd, number: usize, came: Came) {
    let (what, [one, other]) = match came {
        Came::Moved(published) => (0, published),
        Came::Over => (1, [0; 2]),
        Came::Lost => (2, [0; 2]),
    };
    let mut bytes = [0; REPORT];
    let words = [what | (number as u64) << 8, one, other];
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    let _ = rustix::io::write(tells, &bytes);
}

/// What the copy does. It allocates nothing.
fn gives(all: &[(u64, BorrowedFd<'_>, [u64; 2])], tells: &OwnedFd) {
    let tell = |number: usize, came: Came| tell(tells, number, came);
    let mut asked = [const { None }; AT_ONCE];
    for (number, ((_, file, seen), place)) in all.iter().zip(&mut asked).enumerate() {
        let Ok(words) = CircuitWords::map(*file) else {
            tell(number, Came::Over);
            continue;
        };
        // One that was killed in the midst of it left it so.
        done(&words);
        match look(&words, *seen) {
            Look::Moved(now) => tell(number, Came::Moved(now)),
            Look::Unread => tell(number, Came::Over),
            Look::Asked => *place = Some(words),
        }
    }
    if asked.iter().any(Option::is_some) {
        let until = Instant::now() + SETTLES;
        // Bound: the time; signals may come.
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            let left = Timespec::try_from(left).unwrap_or_default();
            let _ = poll(&mut [], Some(&left));
        }
    }
    for (number, ((_, file, seen), words)) in all.iter().zip(asked).enumerate() {
        let Some(words) = words else { continue };
        if is_idle(&words, *seen) {
            let _ = shm::give_back(file, CAPACITY);
        }
        done(&words);
        tell(number, Came::Over);
    }
}
