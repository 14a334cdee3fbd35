//! Mappings of memory files, and every copy and atomic access to them.
#![expect(unsafe_code, reason = "mapping memory and touching it by address")]

use crate::near;
use crate::tables::{self, Place};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
use std::arch::asm;
use std::arch::x86_64::{
    __cpuid, __cpuid_count, __m128i, _MM_HINT_ET0, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch,
    _mm_storeu_si128,
};
use std::ffi::c_void;
use std::io;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering, compiler_fence};

/// A shared mapping, to be read. Stays mapped, at its whole length, until dropped.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    of: Of,
}

/// What becomes of a mapping's addresses.
enum Of {
    /// They are its own.
    Itself,
    /// It is a part of this, which stays mapped as long.
    Whole { _kept: Arc<Mapping> },
    /// They go back where they were taken from.
    Near,
    /// They are its own, and its page of the page table is given back where it is not used.
    Tables(Place),
}

/// A reservation: addresses without memory.
pub(crate) const RESERVED: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

/// A shared mapping that can be written too.
pub(crate) struct WritableMapping(Mapping);

// SAFETY: the mapping belongs to the value, whichever thread holds it.
unsafe impl Send for Mapping {}
// SAFETY: what a shared reference allows is loads and copies out of memory that others
// write in any case: a mixture of bytes is what they may get, and no more.
unsafe impl Sync for Mapping {}

const READ: ProtFlags = ProtFlags::READ;
const WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Mapping {
    /// Maps the first `len` bytes. The caller has checked that the file is at least
    /// that long and sealed against shrinking.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize) -> io::Result<Mapping> {
        Mapping::map(fd, len, READ)
    }

    /// Maps `len` bytes of a file from `at` on, to be written too, at a multiple of `len`, right below what was mapped
    /// there before where there is room. `at` is a multiple of the page size, `len` a power of two, and both are within the file.
    pub(crate) fn aligned(fd: BorrowedFd<'_>, at: usize, len: usize) -> io::Result<Mapping> {
        // As much more as it takes to end at the right place.
        let whole = Mapping::reserve(2 * len)?;
        let last = (whole.base.addr().get() + len) & !(len - 1);
        let first = last - whole.base.addr().get();
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: inside the reservation just made, which nobody else knows, and by no more than its length behind
        // its start; what it leaves of that goes.
        unsafe {
            let to = whole.base.as_ptr().add(first);
            rustix::mm::mmap(to.cast(), len, WRITE, flags, fd, at as u64)?;
            let base = whole.base;
            std::mem::forget(whole);
            let mapping = Mapping::own(to.cast(), len)?;
            if first > 0 {
                rustix::mm::munmap(base.as_ptr().cast(), first)?;
            }
            if first < len {
                rustix::mm::munmap(to.add(len).cast(), len - first)?;
            }
            Ok(mapping)
        }
    }

    /// From now on what it has of page tables is given back where it is not used ([`Place::uses`]).
    pub(crate) fn gives_back_tables(&mut self) -> Place {
        let place = tables::enter(self.base.addr().get(), self.len);
        self.of = Of::Tables(place);
        place
    }

    /// Maps parts of a file one behind the other, to be written too, at addresses near other circuits'; `None`: no
    /// such addresses are left. A part: where it begins, and how long it is.
    /// All are multiples of the page size, and within the file.
    pub(crate) fn near(
        fd: BorrowedFd<'_>,
        parts: &[(usize, usize)],
    ) -> io::Result<Option<Mapping>> {
        let len = parts.iter().map(|(_, len)| len).sum();
        if len > near::PLACE {
            return Ok(None);
        }
        let Some(place) = near::take()? else {
            return Ok(None);
        };
        let mut mapping = Mapping::own(place, len)?;
        mapping.of = Of::Near;
        let mut to = place.cast::<u8>();
        for &(at, len) in parts {
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            // SAFETY: inside the place just taken, which nobody else has.
            unsafe {
                rustix::mm::mmap(to.cast(), len, WRITE, flags, fd, at as u64)?;
                to = to.add(len);
            }
        }
        Ok(Some(mapping))
    }

    /// Addresses, without memory behind them yet.
    fn reserve(len: usize) -> io::Result<Mapping> {
        // SAFETY: a new anonymous reservation at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), RESERVED)?
        };
        Mapping::own(base, len)
    }

    fn map(fd: BorrowedFd<'_>, len: usize, prot: ProtFlags) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no
        // memory that exists.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0)? };
        Mapping::own(base, len)
    }

    /// What was mapped already.
    pub(crate) fn own(base: *mut c_void, len: usize) -> io::Result<Mapping> {
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping {
            base,
            len,
            of: Of::Itself,
        })
    }

    /// New zeroed memory that this process's threads share, and nobody else.
    pub(crate) fn of_threads(len: usize) -> io::Result<Arc<Mapping>> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory
        // that exists.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, WRITE, MapFlags::SHARED)?
        };
        Ok(Arc::new(Mapping::own(base, len)?))
    }

    /// So many bytes of it, from `at` on, a multiple of the page size.
    pub(crate) fn part(whole: &Arc<Mapping>, at: usize, len: usize) -> io::Result<Mapping> {
        if !whole.holds(at, len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: in bounds of what `whole` keeps mapped.
        let base = unsafe { whole.base.add(at) };
        Ok(Mapping {
            base,
            len,
            of: Of::Whole {
                _kept: Arc::clone(whole),
            },
        })
    }

    /// So many bytes from `at` on, for a system call to read, or to write to where it may be
    /// written; `None` where there are fewer.
    pub(crate) fn pointer(&self, at: usize, bytes: usize) -> Option<NonNull<u8>> {
        let end = at.checked_add(bytes)?;
        // SAFETY: `at` is within the mapping.
        (end <= self.len).then(|| unsafe { self.base.add(at) })
    }

    /// Bytes mapped.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Loads the word at byte offset `at`; 0 where there is none.
    #[inline]
    pub(crate) fn load(&self, at: usize, order: Ordering) -> u64 {
        if !self.holds_words(at, 8) {
            return 0;
        }
        // SAFETY: in bounds and aligned (the base is page-aligned); the memory stays
        // mapped while `self` lives; the peer's writes are not ours to synchronise
        // and an atomic load takes any value.
        unsafe { self.word(at).load(order) }
    }

    /// Loads two words in a row, each once, relaxed; zeroes where there are none.
    #[inline]
    pub(crate) fn load_pair(&self, at: usize) -> [u64; 2] {
        if !self.holds_words(at, 16) {
            return [0; 2];
        }
        // SAFETY: as in `load`.
        unsafe {
            [
                self.word(at).load(Ordering::Relaxed),
                self.word(at + 8).load(Ordering::Relaxed),
            ]
        }
    }

    /// Copies bytes out from offset `at`; zeroes where there are none.
    #[inline]
    pub(crate) fn copy_out(&self, at: usize, out: &mut [u8]) {
        if !self.holds(at, out.len()) {
            out.fill(0);
            return;
        }
        // SAFETY: in bounds; `out` is private memory, so the two do not overlap.
        unsafe { copy(self.base.as_ptr().add(at), out.as_mut_ptr(), out.len()) }
        // Or the compiler might read shared memory a second time in place of the copy.
        compiler_fence(Ordering::SeqCst);
    }

    /// Copies bytes to another mapping; nothing where they do not fit.
    #[inline]
    pub(crate) fn copy_to(&self, at: usize, to: &WritableMapping, to_at: usize, len: usize) {
        if !self.holds(at, len) || !to.holds(to_at, len) {
            return;
        }
        // SAFETY: in bounds of both. Two mappings may show the same file (a compartment
        // that was handed one ring twice), so this one copy allows for overlap.
        unsafe { copy_overlapping(self.base.as_ptr().add(at), to.base.as_ptr().add(to_at), len) }
    }

    /// Begins to fetch the cache line at offset `at`.
    #[inline]
    pub(crate) fn prefetch(&self, at: usize) {
        // SAFETY: a hint, which faults nowhere; and the address is computed, not used.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(self.base.as_ptr().wrapping_add(at).cast()) }
    }

    /// The same, of one that will be written.
    #[inline]
    pub(crate) fn prefetch_to_write(&self, at: usize) {
        // SAFETY: as in `prefetch`.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(self.base.as_ptr().wrapping_add(at).cast()) }
    }

    /// The mapped bytes as a slice.
    ///
    /// # Safety
    /// Nobody, in any process, can write this memory while `self` lives: the file is
    /// sealed against writing.
    pub(crate) unsafe fn as_sealed_slice(&self) -> &[u8] {
        // SAFETY: mapped, page-aligned, initialised by the kernel, and never written
        // by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    #[inline]
    fn holds(&self, at: usize, len: usize) -> bool {
        at <= self.len && len <= self.len - at
    }

    #[inline]
    fn holds_words(&self, at: usize, len: usize) -> bool {
        self.holds(at, len) && at & 7 == 0
    }

    /// # Safety
    /// The word is in bounds and `at` is a multiple of 8.
    #[inline]
    unsafe fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the caller's promise; mapped while `self` lives.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }
}

impl WritableMapping {
    /// One that was made to be written.
    pub(crate) fn adopt(mapping: Mapping) -> WritableMapping {
        WritableMapping(mapping)
    }

    /// Where it begins.
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.0.base.as_ptr()
    }

    /// As [`Mapping::new`].
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize) -> io::Result<WritableMapping> {
        Ok(WritableMapping(Mapping::map(fd, len, WRITE)?))
    }

    /// Stores the word at byte offset `at`; nothing where there is none.
    #[inline]
    pub(crate) fn store(&self, at: usize, value: u64, order: Ordering) {
        if self.holds_words(at, 8) {
            // SAFETY: in bounds, aligned and writable.
            unsafe { self.word(at).store(value, order) }
        }
    }

    /// Adds to the word at byte offset `at`, which others add to as well; what it was
    /// before. Nothing, and 0, where there is none.
    #[inline]
    pub(crate) fn fetch_add(&self, at: usize, n: u64, order: Ordering) -> u64 {
        if !self.holds_words(at, 8) {
            return 0;
        }
        // SAFETY: in bounds, aligned and writable.
        unsafe { self.word(at).fetch_add(n, order) }
    }

    /// Stores two words in a row, relaxed; nothing where there are none.
    #[inline]
    pub(crate) fn store_pair(&self, at: usize, words: [u64; 2]) {
        if self.holds_words(at, 16) {
            // SAFETY: in bounds, aligned and writable.
            unsafe {
                self.word(at).store(words[0], Ordering::Relaxed);
                self.word(at + 8).store(words[1], Ordering::Relaxed);
            }
        }
    }

    /// Stores two words in a row, relaxed, and copies bytes in behind them; nothing where both
    /// do not fit.
    #[inline]
    pub(crate) fn store_record(&self, at: usize, words: [u64; 2], bytes: &[u8]) {
        if !self.holds_words(at, 16 + bytes.len()) {
            return;
        }
        // SAFETY: in bounds, aligned and writable; `bytes` is private memory, so the two do
        // not overlap.
        unsafe {
            self.word(at).store(words[0], Ordering::Relaxed);
            self.word(at + 8).store(words[1], Ordering::Relaxed);
            let to = self.base.as_ptr().add(at + 16);
            copy(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Copies bytes in at offset `at`; nothing where they do not fit.
    #[inline]
    pub(crate) fn copy_in(&self, at: usize, bytes: &[u8]) {
        if !self.holds(at, bytes.len()) {
            return;
        }
        // SAFETY: in bounds of a writable mapping; `bytes` is private memory, so the
        // two do not overlap.
        unsafe {
            let to = self.base.as_ptr().add(at);
            match bytes.len() >= STRING && has_fast_strings() {
                true => copy_string(bytes.as_ptr(), to, bytes.len()),
                false => copy(bytes.as_ptr(), to, bytes.len()),
            }
        }
    }
}

impl Deref for WritableMapping {
    type Target = Mapping;
    #[inline]
    fn deref(&self) -> &Mapping {
        &self.0
    }
}

/// A part of a shared mapping twice in a row, for what runs over its end: mapped when that is asked for first, for most
/// never do, and a process may have so many mappings. Its address is this process's: who shares the value with others that were
/// forked (`lib/preload`) never asks for what runs over the end.
pub(crate) struct Twice {
    pub(crate) once: Mapping,
    at: AtomicPtr<u8>,
}

impl Twice {
    pub(crate) fn new(once: Mapping) -> Twice {
        let at = AtomicPtr::default();
        Twice { once, at }
    }

    /// Where so many bytes from `at` on lie in a row; `None`: there are not so many, or the kernel has no more mappings
    /// for this process.
    #[cold]
    pub(crate) fn pointer(&self, at: usize, bytes: usize) -> Option<NonNull<u8>> {
        let begins = NonNull::new(self.at.load(Ordering::Acquire));
        let begins = begins.or_else(|| self.map())?;
        let end = at.checked_add(bytes)?;
        // SAFETY: in bounds of what is mapped there for as long as `self` is.
        (at < self.once.len && end <= 2 * self.once.len).then(|| unsafe { begins.add(at) })
    }

    fn map(&self) -> Option<NonNull<u8>> {
        let len = self.once.len;
        let whole = Mapping::reserve(2 * len).ok()?;
        for time in [0, 1] {
            let once = self.once.base.as_ptr().cast();
            // SAFETY: of an old length of 0 it makes a second mapping of the same shared memory (mremap(2)), and leaves
            // the first; inside the reservation just made, which nobody else knows.
            unsafe {
                let to = whole.base.as_ptr().add(time * len).cast();
                rustix::mm::mremap_fixed(once, 0, len, MremapFlags::MAYMOVE, to).ok()?;
            }
        }
        let (own, order) = (whole.base.as_ptr(), Ordering::AcqRel);
        match self
            .at
            .compare_exchange(null_mut(), own, order, Ordering::Acquire)
        {
            Ok(_) => {
                // It is unmapped with `self`.
                std::mem::forget(whole);
                NonNull::new(own)
            }
            Err(others) => NonNull::new(others),
        }
    }
}

impl Drop for Twice {
    fn drop(&mut self) {
        let at = *self.at.get_mut();
        if !at.is_null() {
            // SAFETY: exactly what `map` mapped, and nothing borrows it now.
            let _ = unsafe { rustix::mm::munmap(at.cast(), 2 * self.once.len) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let base = self.base.as_ptr().cast();
        match self.of {
            Of::Whole { .. } => {}
            // SAFETY: exactly what `new`, `aligned` or `of_threads` mapped, and nothing borrows it
            // or has a part of it now.
            Of::Itself => drop(unsafe { rustix::mm::munmap(base, self.len) }),
            Of::Tables(place) if !place.leaves(base.addr()) => {}
            // SAFETY: as above.
            Of::Tables(_) => drop(unsafe { rustix::mm::munmap(base, self.len) }),
            // SAFETY: it was taken there, and as above.
            Of::Near => unsafe { near::give_back(base) },
        }
    }
}

/// Copies where source and target do not overlap. A peer that writes one of the two
/// meanwhile gets any mixture of bytes across, which is all it could send anyway.
///
/// # Safety
/// Both ranges are mapped, the target is writable, and they do not overlap.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    if (16..=128).contains(&len) {
        // SAFETY: the caller's promise.
        unsafe { copy_blocks(from, to, len) };
    } else if len >= LONG {
        // SAFETY: the caller's promise.
        unsafe { copy_long(from, to, len) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }
}

/// The same where they may overlap, by which bytes may be garbled, no more.
///
/// # Safety
/// Both ranges are mapped and the target is writable.
#[inline]
unsafe fn copy_overlapping(from: *const u8, to: *mut u8, len: usize) {
    if (16..=128).contains(&len) {
        // SAFETY: the caller's promise.
        unsafe { copy_blocks(from, to, len) };
    } else if len >= LONG {
        // SAFETY: the caller's promise.
        unsafe { copy_long(from, to, len) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy(from, to, len) };
    }
}

/// From here on the C library (glibc 2.36) copies by `rep movsb`, up to some hundred KiB. On Zen 3
/// that takes ten times as long where one of the two is aligned to a page and the other is
/// not (glibc's bug 30994), as of a ring and of what malloc gives.
const LONG: usize = 2048;

/// From here on what another core is to read is written by `rep movsb` where that is fast: it takes no line
/// from the other core that it writes whole. A store does, and waits for it, which takes several times as long
/// where the two share no cache.
const STRING: usize = 4096;

/// Whether `rep movsb` is fast here, however source and target lie (CPUID: FSRM). Of AMD's from
/// family 1Ah (Zen 5) on: see [`LONG`].
#[inline]
pub(crate) fn has_fast_strings() -> bool {
    /// Not asked yet, no, yes.
    static FAST: AtomicU8 = AtomicU8::new(0);
    match FAST.load(Ordering::Relaxed) {
        0 => {
            let fast = says_fast_strings();
            FAST.store(1 + u8::from(fast), Ordering::Relaxed);
            fast
        }
        known => known == 2,
    }
}

#[cold]
fn says_fast_strings() -> bool {
    let (named, model, more) = (__cpuid(0), __cpuid(1), __cpuid_count(7, 0));
    let family = (model.eax >> 8 & 0xf) + (model.eax >> 20 & 0xff);
    let is_amd = named.ebx.to_le_bytes() == *b"Auth";
    more.edx >> 4 & 1 == 1 && (!is_amd || family >= 0x1a)
}

/// Copies where source and target do not overlap.
///
/// # Safety
/// As for [`copy`].
#[inline]
unsafe fn copy_string(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise; the direction flag is clear, as the ABI has it.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

/// At least 64 bytes, in blocks of so many; the last may overlap the one before. From the end where
/// what is written lies a little behind what is read, but for whole pages: the processor
/// takes what is read next for what it has just written.
///
/// # Safety
/// Both ranges are mapped, the target is writable, and `len` is at least 64.
unsafe fn copy_long(from: *const u8, to: *mut u8, len: usize) {
    let line = |at: usize| {
        // SAFETY: `at` is at most `len - 64`.
        let parts = [0, 16, 32, 48].map(|more| unsafe {
            let from = from.add(at + more).cast::<__m128i>();
            _mm_loadu_si128(from)
        });
        for (n, part) in parts.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { _mm_storeu_si128(to.add(at + 16 * n).cast(), part) };
        }
    };
    let behind = (to.addr().wrapping_sub(from.addr())) % 4096;
    if (1..256).contains(&behind) {
        for at in (0..len - 63).step_by(64) {
            line(len - 64 - at);
        }
        line(0);
        return;
    }
    for at in (0..len - 63).step_by(64) {
        line(at);
    }
    line(len - 64);
}

/// From 16 to 128 bytes without a loop or a call: blocks of 16 from the front and
/// from the back, which overlap in the middle.
///
/// # Safety
/// Both ranges are mapped, the target is writable, and `len` is from 16 to 128.
#[inline]
unsafe fn copy_blocks(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: each offset is at most `len - 16` by the branch it stands in.
    unsafe {
        let both = |at: usize| {
            block(from.add(at), to.add(at));
            block(from.add(len - 16 - at), to.add(len - 16 - at));
        };
        both(0);
        if len > 32 {
            both(16);
            if len > 64 {
                both(32);
                both(48);
            }
        }
    }
}

/// # Safety
/// 16 bytes at both are mapped, and those at `to` are writable.
#[inline(always)]
unsafe fn block(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise; unaligned on both sides.
    unsafe {
        let bytes = from.cast::<[u8; 16]>().read_unaligned();
        to.cast::<[u8; 16]>().write_unaligned(bytes);
    }
}
