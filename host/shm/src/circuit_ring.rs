//! A circuit's ring, as memory: one sealed file that both ends map whole. The layout is
//! `stream`'s. Nothing here believes a word of it, nor gives a reference to it.
#![expect(
    unsafe_code,
    reason = "read(2) and write(2) on shared memory; a word of it"
)]

use crate::file::{is_sealed_shape, sparse_file};
use crate::mapping::{Mapping, Twice, WritableMapping, has_fast_strings};
use crate::tables::Place;
use ring::{
    BadGeometry, ConsumerMemory, ConsumerWord, Geometry, PAGE, ProducerMemory, ProducerWord,
};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use std::time::{Duration, Instant};
use stream::{CONSUMER_WORDS_AT, PRODUCER_WORDS_AT, Says, Side, WORDS, data_at, file_bytes};

/// Makes so many calls of the faster way for one of the other: which that is changes with the cores.
const TRY_OTHER: u32 = 32;
/// Lines that are made before they are written together.
const AT_ONCE: usize = (16 << 10) / LINE;

/// Memory for a new circuit, `capacity` bytes each way: no page of it is taken before it is
/// touched. Sealed against shrinking, growing, executing and further sealing.
///
/// # Errors
/// What the operating system refused.
pub fn circuit_file(capacity: usize) -> io::Result<OwnedFd> {
    sparse_file("circuit", file_bytes(capacity))
}

/// Bytes of data that are made or looked at at a time, where they lie.
pub const LINE: usize = 64;

/// How much of each direction lies near: what is written there is reached by these addresses alone,
/// so that a circuit which moves little at a time takes no page table for the rest.
const NEAR: usize = 60 << 10;

/// What a side writes by: its data, and all words.
pub struct CircuitWriter {
    words: Arc<WritableMapping>,
    data: WritableMapping,
    /// The same, for what runs over the end.
    twice: Twice,
    capacity: usize,
    /// The first of the data once more.
    near: WritableMapping,
    /// Of the others.
    tables: Place,
    side: Side,
    /// What a line takes that is made where it lies, and one that is made aside and moved there.
    takes: Takes,
}

/// What either of two ways of doing the same takes, found out as it is done. Where the reader's core is near a
/// line is made fastest where it lies; where it is far, each of its stores waits for the reader's core to give
/// the line back, and a string move does not.
#[derive(Default)]
struct Takes {
    /// ps a line, a mean of the last ones; 0: not known.
    each: [AtomicU32; 2],
    calls: AtomicU32,
}

impl Takes {
    /// Which way is to be taken.
    fn next(&self) -> usize {
        let [one, other] = [0, 1].map(|way| self.each[way].load(Ordering::Relaxed));
        let calls = self.calls.load(Ordering::Relaxed).wrapping_add(1);
        self.calls.store(calls, Ordering::Relaxed);
        let best = usize::from(other < one);
        match one == 0 || other == 0 || !calls.is_multiple_of(TRY_OTHER) {
            true => best,
            false => 1 - best,
        }
    }

    /// What one way took this time. Who was interrupted meanwhile does not count for much.
    fn took(&self, way: usize, time: Duration, lines: usize) {
        let each = (time.as_nanos() * 1000 / lines.max(1) as u128).max(1);
        let each = u32::try_from(each).unwrap_or(u32::MAX);
        if let Some(mean) = self.each.get(way) {
            let mean_before = mean.load(Ordering::Relaxed);
            let new = match mean_before {
                0 => each,
                before => before - before / 4 + each.min(before.saturating_mul(4)) / 4,
            };
            mean.store(new.max(1), Ordering::Relaxed);
        }
    }
}

/// What a side reads by: the other's data.
pub struct CircuitReader {
    words: Arc<WritableMapping>,
    data: Mapping,
    twice: Twice,
    capacity: usize,
    near: Mapping,
    tables: Place,
    /// Who reads.
    side: Side,
}

/// Maps a side's two ends, and tells the shape of each direction. Three mappings, all of which can be written, so that
/// what lies in a row in the file is one: of a process's there are 65,530 (`vm.max_map_count`), and each is memory of
/// the kernel's. The data of both directions lie where one page of the page table knows them.
///
/// # Errors
/// `InvalidInput`: the file is shorter than it should be or can be shrunk, or the capacity is
/// no power of two from a page to 256 MiB. Or what the operating system refused.
pub fn circuit_ends(
    fd: impl AsFd,
    capacity: usize,
    side: Side,
) -> io::Result<(CircuitWriter, CircuitReader, Geometry)> {
    let wrong = |_: BadGeometry| io::Error::from(io::ErrorKind::InvalidInput);
    let geometry = Geometry::stream(capacity).map_err(wrong)?;
    if capacity < PAGE || !is_sealed_shape(fd.as_fd(), file_bytes(capacity))? {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let [one, other] = [Side::Began, Side::Accepted].map(|side| data_at(side, capacity));
    let some = NEAR.min(capacity);
    let parts = [(0, one + some), (other, some)];
    let near = Mapping::near(fd.as_fd(), &parts)?.map(Arc::new);
    let part = |at, len| match &near {
        Some(near) => Mapping::part(near, at, len),
        // All of it is far.
        None => Mapping::own(std::ptr::dangling_mut(), 0),
    };
    let words = match &near {
        Some(near) => WritableMapping::adopt(Mapping::part(near, 0, PAGE)?),
        None => WritableMapping::new(fd.as_fd(), PAGE)?,
    };
    let words = Arc::new(words);
    let mut data = Mapping::aligned(fd.as_fd(), one, 2 * capacity)?;
    let tables = data.gives_back_tables();
    let data = Arc::new(data);
    let data_of = |of: Side| Mapping::part(&data, data_at(of, capacity) - one, capacity);
    let near_of = |of: Side| part(one + of as usize * some, some);
    let writer = CircuitWriter {
        words: Arc::clone(&words),
        data: WritableMapping::adopt(data_of(side)?),
        twice: Twice::new(data_of(side)?),
        capacity,
        near: WritableMapping::adopt(near_of(side)?),
        tables,
        side,
        takes: Takes::default(),
    };
    let reader = CircuitReader {
        words,
        data: data_of(side.other())?,
        twice: Twice::new(data_of(side.other())?),
        capacity,
        near: near_of(side.other())?,
        tables,
        side,
    };
    Ok((writer, reader, geometry))
}

fn producer_word(side: Side, word: ProducerWord) -> usize {
    PRODUCER_WORDS_AT + side as usize * WORDS + word as usize * 8
}

/// Of the words of who reads what `side` writes.
fn consumer_word(side: Side, word: ConsumerWord) -> usize {
    CONSUMER_WORDS_AT + side as usize * WORDS + word as usize * 8
}

/// Where so many bytes of a direction lie in a row: in the first of these that has them, else over the end.
#[inline]
fn place(near: &Mapping, data: (&Twice, Place), at: usize, bytes: usize) -> Option<NonNull<u8>> {
    near.pointer(at, bytes).or_else(|| {
        let (twice, tables) = data;
        tables.uses();
        let found = twice.once.pointer(at, bytes);
        found.or_else(|| twice.pointer(at, bytes))
    })
}

/// The low half of a word, by which one sleeps until it is another (futex(2)).
fn half(words: &WritableMapping, at: usize) -> Option<&AtomicU32> {
    let at = words.pointer(at, 4)?;
    // SAFETY: in bounds and aligned, mapped for as long as the borrow lasts; an atomic takes
    // whatever the peer writes. The low half comes first (x86_64).
    Some(unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) })
}

impl CircuitWriter {
    /// The low half of the reader's position, by which who waits for room sleeps.
    pub fn sleeps_by(&self) -> Option<&AtomicU32> {
        half(
            &self.words,
            consumer_word(self.side, ConsumerWord::Consumed),
        )
    }

    /// What wakes who reads what is written here.
    pub fn waker(&self) -> CircuitWaker {
        CircuitWaker {
            words: Arc::clone(&self.words),
            at: producer_word(self.side, ProducerWord::Published),
        }
    }

    /// What says that no more is written here, whoever writes meanwhile.
    pub fn end(&self) -> CircuitEnd {
        CircuitEnd {
            words: Arc::clone(&self.words),
            at: producer_word(self.side, ProducerWord::Ended),
        }
    }

    /// Where so many bytes of the data lie from `at` on; they may run over the end, where the
    /// data begin again. `None`: more than there are, or no more mappings are to be had for what runs over the end.
    #[inline]
    pub fn place(&self, at: usize, bytes: usize) -> Option<NonNull<u8>> {
        place(&self.near, (&self.twice, self.tables), at, bytes)
    }

    /// How many of so many bytes from `at` on lie in a row, wherever that is.
    pub fn reach(&self, at: usize, bytes: usize) -> usize {
        let to_end = self.capacity.saturating_sub(at);
        self.place(at, bytes).map_or(bytes.min(to_end), |_| bytes)
    }

    /// Makes lines of data where they lie: each comes by value, so that nothing is between it and
    /// the processor's registers; or aside and moved there, where that is faster. `false`: so many do not fit.
    #[inline]
    pub fn write_lines(
        &self,
        at: usize,
        lines: usize,
        mut make: impl FnMut(usize) -> [u8; LINE],
    ) -> bool {
        let Some(to) = lines
            .checked_mul(LINE)
            .and_then(|bytes| self.place(at, bytes))
        else {
            return false;
        };
        let mut first = 0;
        let timed = lines >= AT_ONCE && has_fast_strings();
        let (way, begun) = match timed {
            true => (self.takes.next(), Some(Instant::now())),
            false => (0, None),
        };
        if way == 1 {
            // As many as are fast at once, and stay in the first-level cache meanwhile.
            let mut some = [[0; LINE]; AT_ONCE];
            while first + AT_ONCE <= lines {
                for (n, line) in some.iter_mut().enumerate() {
                    *line = make(first + n);
                }
                self.write(at + first * LINE, some.as_flattened());
                first += AT_ONCE;
            }
        }
        for n in first..lines {
            // SAFETY: `lines` of them from there on are mapped and writable; no reference to them
            // exists.
            unsafe {
                to.cast::<[u8; LINE]>()
                    .add(n)
                    .as_ptr()
                    .write_unaligned(make(n));
            }
        }
        if let Some(begun) = begun {
            self.takes.took(way, begun.elapsed(), lines);
        }
        true
    }

    /// Reads from a descriptor right into the data, as many as lie in a row; how many bytes.
    ///
    /// # Errors
    /// read(2)'s.
    pub fn read_from(&self, fd: BorrowedFd<'_>, at: usize, bytes: usize) -> io::Result<usize> {
        let bytes = self.reach(at, bytes);
        let to = self.place(at, bytes).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: `bytes` from there on are mapped and writable; no reference to them exists.
        let n = unsafe { libc::read(fd.as_raw_fd(), to.as_ptr().cast(), bytes) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

/// Wakes the peer, if it sleeps by the memory.
#[derive(Clone)]
pub struct CircuitWaker {
    words: Arc<WritableMapping>,
    at: usize,
}

impl CircuitWaker {
    /// By what it sleeps.
    pub fn sleeps_by(&self) -> Option<&AtomicU32> {
        half(&self.words, self.at)
    }
}

/// The word by which a side says what became of its sending.
pub struct CircuitEnd {
    words: Arc<WritableMapping>,
    at: usize,
}

impl CircuitEnd {
    /// Says so.
    pub fn says(&self, what: Says) {
        self.words.store(self.at, what as u64, Ordering::Release);
    }
}

impl CircuitReader {
    /// The low half of the writer's position, by which who reads naps.
    pub fn naps_by(&self) -> Option<&AtomicU32> {
        let of = self.side.other();
        half(&self.words, producer_word(of, ProducerWord::Published))
    }

    /// What wakes the writer of what is read here.
    pub fn waker(&self) -> CircuitWaker {
        CircuitWaker {
            words: Arc::clone(&self.words),
            at: consumer_word(self.side.other(), ConsumerWord::Consumed),
        }
    }

    /// Where so many bytes of the data lie, as [`CircuitWriter::place`]: the peer can change
    /// them at any time.
    #[inline]
    pub fn place(&self, at: usize, bytes: usize) -> Option<NonNull<u8>> {
        place(&self.near, (&self.twice, self.tables), at, bytes)
    }

    /// As [`CircuitWriter::reach`].
    pub fn reach(&self, at: usize, bytes: usize) -> usize {
        let to_end = self.capacity.saturating_sub(at);
        self.place(at, bytes).map_or(bytes.min(to_end), |_| bytes)
    }

    /// Looks at lines of data where they lie: each comes by value, a copy that nobody changes.
    /// `false`: there are not so many.
    #[inline]
    pub fn read_lines(&self, at: usize, lines: usize, mut look: impl FnMut([u8; LINE])) -> bool {
        let Some(from) = lines
            .checked_mul(LINE)
            .and_then(|bytes| self.place(at, bytes))
        else {
            return false;
        };
        for n in 0..lines {
            // SAFETY: `lines` of them from there on are mapped; whatever bytes are there are a line.
            let line = unsafe { from.cast::<[u8; LINE]>().add(n).as_ptr().read_unaligned() };
            // Or the compiler might read shared memory a second time in place of the copy.
            compiler_fence(Ordering::SeqCst);
            look(line);
        }
        true
    }

    /// Writes data to a descriptor, as many as lie in a row; how many bytes.
    ///
    /// # Errors
    /// write(2)'s.
    pub fn write_to(&self, fd: BorrowedFd<'_>, at: usize, bytes: usize) -> io::Result<usize> {
        let bytes = self.reach(at, bytes);
        let from = self.place(at, bytes).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: `bytes` from there on are mapped; the kernel copies them, whatever they are.
        let n = unsafe { libc::write(fd.as_raw_fd(), from.as_ptr().cast(), bytes) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }
}

impl ProducerMemory for CircuitWriter {
    #[inline]
    fn load(&self, word: ConsumerWord) -> u64 {
        self.words
            .load(consumer_word(self.side, word), Ordering::Acquire)
    }
    #[inline]
    fn store(&self, word: ProducerWord, value: u64) {
        self.words
            .store(producer_word(self.side, word), value, Ordering::Release);
    }
    fn write_header(&self, at: usize, words: [u64; 2]) {
        match self.near.pointer(at, 16) {
            Some(_) => self.near.store_pair(at, words),
            None => {
                self.tables.uses();
                self.data.store_pair(at, words);
            }
        }
    }
    #[inline]
    fn write(&self, at: usize, bytes: &[u8]) {
        let at = at & (self.capacity - 1);
        if self.near.pointer(at, bytes.len()).is_some() {
            return self.near.copy_in(at, bytes);
        }
        self.tables.uses();
        // In two, where it runs over the end: the rest lies at the start.
        let (one, rest) = bytes.split_at(bytes.len().min(self.capacity - at));
        self.data.copy_in(at, one);
        if !rest.is_empty() {
            self.data.copy_in(0, rest);
        }
    }
    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

impl ConsumerMemory for CircuitReader {
    #[inline]
    fn load(&self, word: ProducerWord) -> u64 {
        self.words
            .load(producer_word(self.side.other(), word), Ordering::Acquire)
    }
    fn own(&self, word: ConsumerWord) -> u64 {
        self.words
            .load(consumer_word(self.side.other(), word), Ordering::Acquire)
    }
    #[inline]
    fn store(&self, word: ConsumerWord, value: u64) {
        let at = consumer_word(self.side.other(), word);
        self.words.store(at, value, Ordering::Release);
    }
    fn read_header(&self, at: usize) -> [u64; 2] {
        match self.near.pointer(at, 16) {
            Some(_) => self.near.load_pair(at),
            None => {
                self.tables.uses();
                self.data.load_pair(at)
            }
        }
    }
    #[inline]
    fn read(&self, at: usize, out: &mut [u8]) {
        let at = at & (self.capacity - 1);
        if self.near.pointer(at, out.len()).is_some() {
            return self.near.copy_out(at, out);
        }
        self.tables.uses();
        let (one, rest) = out.split_at_mut(out.len().min(self.capacity - at));
        self.data.copy_out(at, one);
        if !rest.is_empty() {
            self.data.copy_out(0, rest);
        }
    }
    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_way_is_taken_and_the_other_tried_now_and_then() {
        let takes = Takes::default();
        // `each`: what either way takes, ns a line.
        let others = |each: [u64; 2], calls: usize| {
            let best = usize::from(each[1] < each[0]);
            let all = (0..calls).filter(|_| {
                let way = takes.next();
                takes.took(way, Duration::from_nanos(each[way] * 100), 100);
                way != best
            });
            all.count()
        };
        assert!(others([10, 4], 640) <= 640 / TRY_OTHER as usize + 1);
        // The cores are others now.
        assert!(others([3, 9], 640) <= 640 / TRY_OTHER as usize + 40);
        // Who was interrupted once goes on as before.
        takes.took(0, Duration::from_millis(20), 1);
        assert!(others([3, 9], 640) <= 640 / TRY_OTHER as usize + 20);
    }
}
