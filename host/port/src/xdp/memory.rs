//! Mapped memory, and the words of a ring in it.
#![expect(
    unsafe_code,
    reason = "rings and chunks are memory that the kernel writes as well"
)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;

/// A shared, writable mapping, unmapped on drop.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

impl Mapping {
    /// Maps `length` bytes of a file from `offset` on.
    pub(super) fn new(fd: BorrowedFd<'_>, offset: i64, length: usize) -> Result<Mapping, Errno> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let nowhere = std::ptr::null_mut();
        // SAFETY: a new mapping where the kernel finds room; it replaces none.
        let base =
            unsafe { libc::mmap(nowhere, length, protection, flags, fd.as_raw_fd(), offset) };
        let failed = base == libc::MAP_FAILED;
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if !failed => Ok(Mapping { base, length }),
            _ => Err(super::setup::last_errno()),
        }
    }

    /// Where it is, for the kernel.
    pub(super) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// A 32-bit word of it; `None` = outside, or not aligned.
    pub(super) fn word(&self, at: usize) -> Option<&AtomicU32> {
        let inside = at.checked_add(4)? <= self.length && at.is_multiple_of(4);
        // SAFETY: inside the mapping, which lives as long as the reference, and aligned:
        // the mapping begins on a page. Everybody who writes it writes whole words.
        inside.then(|| unsafe { &*self.base.as_ptr().add(at).cast::<AtomicU32>() })
    }

    /// A 64-bit word of it.
    pub(super) fn long(&self, at: usize) -> Option<&AtomicU64> {
        let inside = at.checked_add(8)? <= self.length && at.is_multiple_of(8);
        // SAFETY: as in `word`.
        inside.then(|| unsafe { &*self.base.as_ptr().add(at).cast::<AtomicU64>() })
    }

    /// Bytes of it, to be written; `None` = not all inside.
    ///
    /// # Safety
    /// Nobody else, the kernel and other processes included, writes or reads them, and no
    /// other reference to them is made, while this one lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "the caller sees to it that it is the only one"
    )]
    pub(super) unsafe fn slice(&self, at: usize, length: usize) -> Option<&mut [u8]> {
        let inside = at.checked_add(length)? <= self.length;
        // SAFETY: inside the mapping, which lives as long as the reference; initialised, as
        // all shared memory is; alone, as the caller says.
        inside
            .then(|| unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(at), length) })
    }

    /// Copies bytes out; how many were inside.
    pub(super) fn read(&self, at: usize, into: &mut [u8]) -> usize {
        let length = into.len().min(self.length.saturating_sub(at));
        // SAFETY: `length` bytes from `at` are inside the mapping, and `into` is as long
        // and elsewhere. No reference is made to what the kernel might write.
        unsafe {
            std::ptr::copy_nonoverlapping(self.base.as_ptr().add(at), into.as_mut_ptr(), length);
        }
        length
    }

    /// Copies bytes in; how many were inside.
    pub(super) fn write(&self, at: usize, from: &[u8]) -> usize {
        let length = from.len().min(self.length.saturating_sub(at));
        // SAFETY: as in `read`, the other way.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), self.base.as_ptr().add(at), length);
        }
        length
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `new` with this length; nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// Where the words of a ring are in its mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offsets {
    pub(super) producer: u64,
    pub(super) consumer: u64,
    pub(super) entries: u64,
    pub(super) flags: u64,
}

/// The four rings of a queue, in the order of [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Rx = 0,
    Tx = 1,
    Fill = 2,
    Completion = 3,
}

impl Which {
    pub(super) const ALL: [Which; 4] = [Which::Rx, Which::Tx, Which::Fill, Which::Completion];

    /// Where the kernel lets it be mapped.
    fn page(self) -> i64 {
        match self {
            Which::Rx => libc::XDP_PGOFF_RX_RING,
            Which::Tx => libc::XDP_PGOFF_TX_RING,
            Which::Fill => libc::XDP_UMEM_PGOFF_FILL_RING as i64,
            Which::Completion => libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64,
        }
    }

    /// Bytes of an entry: an address, or a `struct xdp_desc`.
    fn entry(self) -> usize {
        match self {
            Which::Rx | Which::Tx => 16,
            Which::Fill | Which::Completion => 8,
        }
    }
}

/// The page behind a queue's chunks: where the kernel has the words of its rings, four
/// longs each, which the supervisor asks once; then how many chunks were ever sent.
pub(super) struct Layout;

impl Layout {
    pub(super) const FRESH: usize = super::FRAMES + 4 * 32;

    pub(super) fn write(memory: &Mapping, which: Which, offsets: &Offsets) {
        let words = [
            offsets.producer,
            offsets.consumer,
            offsets.entries,
            offsets.flags,
        ];
        for (n, word) in words.into_iter().enumerate() {
            if let Some(place) = memory.long(super::FRAMES + which as usize * 4 * 8 + n * 8) {
                place.store(word, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn read(memory: &Mapping, which: Which) -> Option<Offsets> {
        let word = |n: usize| {
            let place = memory.long(super::FRAMES + which as usize * 4 * 8 + n * 8)?;
            Some(place.load(Ordering::Relaxed))
        };
        Some(Offsets {
            producer: word(0)?,
            consumer: word(1)?,
            entries: word(2)?,
            flags: word(3)?,
        })
    }
}

/// A ring that is shared with the kernel.
#[derive(Debug)]
pub(super) struct Ring {
    mapping: Mapping,
    offsets: [usize; 4],
    entry: usize,
}

impl Ring {
    /// Maps one of a socket's rings. `BUSY`: a kernel before 6.4, which lets nobody map
    /// the rings of a socket that is bound.
    pub(super) fn map(fd: BorrowedFd<'_>, which: Which, offsets: &Offsets) -> Result<Ring, Errno> {
        let place = |word: u64| usize::try_from(word).map_err(|_| Errno::RANGE);
        let places = [
            place(offsets.producer)?,
            place(offsets.consumer)?,
            place(offsets.flags)?,
            place(offsets.entries)?,
        ];
        let length = places[3].saturating_add(super::CHUNKS as usize * which.entry());
        let ring = Ring {
            mapping: Mapping::new(fd, which.page(), length)?,
            offsets: places,
            entry: which.entry(),
        };
        let whole = places
            .iter()
            .take(3)
            .all(|at| ring.mapping.word(*at).is_some());
        let aligned = places[3].is_multiple_of(8);
        if whole && aligned {
            Ok(ring)
        } else {
            Err(Errno::RANGE)
        }
    }

    fn load(&self, word: usize, order: Ordering) -> u32 {
        let at = self.offsets.get(word).copied().unwrap_or(usize::MAX);
        self.mapping.word(at).map_or(0, |word| word.load(order))
    }

    fn store(&self, word: usize, value: u32) {
        let at = self.offsets.get(word).copied().unwrap_or(usize::MAX);
        if let Some(word) = self.mapping.word(at) {
            // What was written before is seen by who sees this.
            word.store(value, Ordering::Release);
        }
    }

    pub(super) fn producer(&self) -> u32 {
        self.load(0, Ordering::Acquire)
    }

    pub(super) fn consumer(&self) -> u32 {
        self.load(1, Ordering::Acquire)
    }

    pub(super) fn produce(&self, position: u32) {
        self.store(0, position);
    }

    pub(super) fn consume(&self, position: u32) {
        self.store(1, position);
    }

    /// Whether the kernel waits to be called before it goes on with this ring.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.load(2, Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    fn place(&self, position: u32) -> usize {
        let [.., entries] = self.offsets;
        entries + (position & (super::CHUNKS - 1)) as usize * self.entry
    }

    /// The address at a position.
    pub(super) fn address(&self, position: u32) -> u64 {
        let word = self.mapping.long(self.place(position));
        word.map_or(u64::MAX, |word| word.load(Ordering::Relaxed))
    }

    pub(super) fn put_address(&self, position: u32, address: u64) {
        if let Some(word) = self.mapping.long(self.place(position)) {
            word.store(address, Ordering::Relaxed);
        }
    }

    /// The length and options at a position of a ring of descriptors.
    pub(super) fn length(&self, position: u32) -> (u32, u32) {
        let at = self.place(position) + 8;
        let word = |at| {
            self.mapping
                .word(at)
                .map_or(0, |w| w.load(Ordering::Relaxed))
        };
        (word(at), word(at + 4))
    }

    pub(super) fn put_length(&self, position: u32, length: u32) {
        let at = self.place(position) + 8;
        for (at, value) in [(at, length), (at + 4, 0)] {
            if let Some(word) = self.mapping.word(at) {
                word.store(value, Ordering::Relaxed);
            }
        }
    }
}
