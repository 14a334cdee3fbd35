//! A guest's memory: the files that a vhost-user front end handed over, mapped behind one
//! another. The guest writes them whenever it likes, and their owner may cut them off:
//! what then faults becomes private zeroes, and [`Guest::is_broken`] says so.
#![expect(unsafe_code, reason = "mapping memory and touching it by address")]

use crate::end::{ConsumerEnd, ProducerEnd};
use crate::fault::{Watch, watch};
use crate::mapping::{Mapping, WritableMapping};
use guard::guard;
use rustix::mm::{MapFlags, ProtFlags};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering, fence};
use virtqueue::GuestMemory;

/// Regions of one guest at most.
pub const MAX_REGIONS: usize = 32;
/// Where a region ends in its file at most: so that sums stay numbers.
const MAX_END: u64 = 1 << 44;
/// Between two regions, so that nothing runs from one into the next.
const GAP: u64 = 4096;

/// Where one region of guest memory lies: all of it is an allegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Guest-physical address.
    pub guest: u64,
    /// Bytes.
    pub size: u64,
    /// Where it begins in its file.
    pub offset: u64,
}

/// Why guest memory cannot be mapped: the front end's fault, but for the last.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// None, or more than [`MAX_REGIONS`].
    #[error("{0} regions of guest memory; 1 to {MAX_REGIONS} are allowed")]
    Count(usize),
    /// A region of no size, or that ends beyond what addresses can say.
    #[error("a region of guest memory that cannot be: {0:x?}")]
    Region(Region),
    /// Two regions with the same guest addresses.
    #[error("regions of guest memory overlap at {0:#x}")]
    Overlap(u64),
    /// More memory than the guest may share, or a bitmap of written pages that is out of
    /// all proportion to that.
    #[error("{has} bytes of guest memory; at most {most} are allowed")]
    TooLarge {
        /// Bytes, in whole pages of the files.
        has: u64,
        /// As many are allowed.
        most: u64,
    },
    /// The file is shorter than its region.
    #[error("a file of {has} bytes for a region of guest memory that ends at {needs}")]
    Short {
        /// Bytes of the file.
        has: u64,
        /// Where the region ends in it.
        needs: u64,
    },
    /// There are too many guests.
    #[error("no more guests in this process")]
    Guests,
    /// The operating system refused.
    #[error("cannot map guest memory: {0}")]
    System(#[from] io::Error),
}

/// A region in the mapping.
#[derive(Clone, Copy)]
struct Placed {
    guest: u64,
    size: u64,
    at: usize,
}

/// A guest's memory.
pub struct Guest {
    /// Goes before what it watches.
    watch: Watch,
    all: WritableMapping,
    regions: Vec<Placed>,
    /// The region that an address was found in last.
    recent: Cell<usize>,
    /// Where pages that are written are noted, for a migration; and whether they are.
    log: RefCell<Option<Log>>,
    logs: Cell<bool>,
    /// Bytes that it may share at most.
    most: u64,
}

/// A bitmap of pages that are written.
struct Log {
    /// Goes before what it watches.
    watch: Watch,
    all: WritableMapping,
    /// Where it begins in what is mapped, and its bytes.
    at: usize,
    size: usize,
}

/// Bytes of the bitmap of written pages at most, of a guest that may share so many: a bit for
/// each page up to the highest address, which lies above what the guest has.
pub const fn most_notes(memory: u64) -> u64 {
    memory / 64 + (4 << 20)
}

/// Bytes that these regions share, in whole pages of their files.
///
/// # Errors
/// [`GuestError`].
pub fn shared_bytes(regions: &[(Region, BorrowedFd<'_>)]) -> Result<u64, GuestError> {
    if regions.is_empty() || regions.len() > MAX_REGIONS {
        return Err(GuestError::Count(regions.len()));
    }
    // Bound: MAX_REGIONS of at most MAX_END and a huge page each.
    (regions.iter()).try_fold(0, |sum, (region, fd)| Ok(sum + Span::of(region, *fd)?.size))
}

impl Guest {
    /// Maps a guest's regions, each with its file, that share at most so many bytes: a page
    /// of theirs that nobody has touched before is charged to this process.
    ///
    /// # Errors
    /// [`GuestError`].
    pub fn map(regions: &[(Region, BorrowedFd<'_>)], most: u64) -> Result<Guest, GuestError> {
        let has = shared_bytes(regions)?;
        if has > most && guard!("guest-memory") {
            return Err(GuestError::TooLarge { has, most });
        }
        let (mut spans, mut placed, mut end) = (Vec::new(), Vec::new(), 0);
        for (region, fd) in regions {
            let span = Span::of(region, *fd)?;
            let begin = u64::next_multiple_of(end, span.align);
            let at = begin + (region.offset - span.offset);
            end = begin + span.size + GAP;
            spans.push((begin, span));
            placed.push(Placed {
                guest: region.guest,
                size: region.size,
                at: at as usize,
            });
        }
        apart(&placed)?;
        let align = spans.iter().map(|(_, span)| span.align).max();
        let all = WritableMapping::reserve(end as usize, align.unwrap_or(GAP) as usize)?;
        for ((begin, span), (_, fd)) in spans.iter().zip(regions) {
            all.place(*begin as usize, span.size as usize, *fd, span.offset)?;
        }
        let watch = watch(all.base(), all.len()).ok_or(GuestError::Guests)?;
        Ok(Guest {
            watch,
            all,
            regions: placed,
            recent: Cell::new(0),
            log: RefCell::new(None),
            logs: Cell::new(false),
            most,
        })
    }

    /// Notes from now on in a bitmap, a bit for every 4096 bytes of guest-physical
    /// addresses, what is written (vhost-user, `SET_LOG_BASE`).
    ///
    /// # Errors
    /// The file is shorter than said, larger than [`most_notes`], or cannot be mapped.
    pub fn log(&self, fd: BorrowedFd<'_>, offset: u64, size: u64) -> Result<(), GuestError> {
        let region = Region {
            guest: 0,
            size,
            offset,
        };
        let span = Span::of(&region, fd)?;
        let (has, most) = (span.size, most_notes(self.most));
        if has > most && guard!("guest-notes-memory") {
            return Err(GuestError::TooLarge { has, most });
        }
        let all = WritableMapping::reserve(span.size as usize, span.align as usize)?;
        all.place(0, span.size as usize, fd, span.offset)?;
        let watch = watch(all.base(), all.len()).ok_or(GuestError::Guests)?;
        self.log.replace(Some(Log {
            watch,
            all,
            at: (offset - span.offset) as usize,
            size: size as usize,
        }));
        self.logs.set(true);
        Ok(())
    }

    /// Notes nothing any more.
    pub fn end_log(&self) {
        self.logs.set(false);
        self.log.replace(None);
    }

    /// Whether a part of it was cut off, or of what its writes are noted in: then what is
    /// read is worth nothing.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.watch.was_hit() || self.logs.get() && self.has_lost_notes()
    }

    #[cold]
    fn has_lost_notes(&self) -> bool {
        let log = self.log.borrow();
        log.as_ref()
            .is_some_and(|log| log.watch.was_hit() && guard!("guest-notes-lost"))
    }

    /// Copies bytes from here into another guest's memory.
    #[inline]
    pub fn copy_to_guest(&self, at: usize, to: &Guest, to_at: usize, len: usize) {
        self.all.copy_to(at, &to.all, to_at, len);
        to.written(to_at, len);
    }

    /// Copies bytes from here into a ring.
    #[inline]
    pub fn copy_to_ring(&self, at: usize, to: &ProducerEnd, to_at: usize, len: usize) {
        to.copy_from(&self.all, at, to_at, len);
    }

    /// Copies bytes from a ring to here.
    #[inline]
    pub fn copy_from_ring(&self, from: &ConsumerEnd, from_at: usize, at: usize, len: usize) {
        from.copy_out_to(from_at, &self.all, at, len);
        self.written(at, len);
    }

    #[inline]
    fn written(&self, at: usize, len: usize) {
        if self.logs.get() && guard!("guest-noted") {
            self.mark(at, len);
        }
    }

    #[cold]
    fn mark(&self, at: usize, len: usize) {
        let inside = |r: &&Placed| at >= r.at && at - r.at < r.size as usize;
        let Some(region) = self.regions.iter().find(inside) else {
            return;
        };
        let log = self.log.borrow();
        let Some(log) = log.as_ref() else {
            return;
        };
        let begin = region.guest + (at - region.at) as u64;
        // Bound: a frame's pages.
        for page in begin / 4096..=(begin + len.max(1) as u64 - 1) / 4096 {
            log.note(page);
        }
    }
}

impl Log {
    /// Notes a page; nothing where the bitmap has no place for it.
    fn note(&self, page: u64) {
        if page / 8 < self.size as u64 {
            self.all.set_bit(self.at + (page / 8) as usize, page % 8);
        }
    }
}

/// What is mapped of a file for a region: whole pages of the file's own size.
struct Span {
    offset: u64,
    size: u64,
    align: u64,
}

impl Span {
    fn of(region: &Region, fd: BorrowedFd<'_>) -> Result<Span, GuestError> {
        let bad = || GuestError::Region(*region);
        let needs = (region.offset.checked_add(region.size)).ok_or_else(bad)?;
        region.guest.checked_add(region.size).ok_or_else(bad)?;
        if region.size == 0 || needs > MAX_END {
            return Err(bad());
        }
        let stat = rustix::fs::fstat(fd).map_err(io::Error::from)?;
        // Huge pages are a file's block.
        let align = u64::try_from(stat.st_blksize).unwrap_or(0).max(GAP);
        let has = u64::try_from(stat.st_size).unwrap_or(0);
        if has < needs && guard!("guest-short-file") {
            return Err(GuestError::Short { has, needs });
        }
        if !align.is_power_of_two() || align > 1 << 30 {
            return Err(bad());
        }
        let offset = region.offset & !(align - 1);
        let size = (needs - offset).next_multiple_of(align);
        Ok(Span {
            offset,
            size,
            align,
        })
    }
}

/// No address is in two regions.
fn apart(placed: &[Placed]) -> Result<(), GuestError> {
    let mut sorted: Vec<_> = placed.iter().map(|r| (r.guest, r.guest + r.size)).collect();
    sorted.sort_unstable();
    for pair in sorted.windows(2) {
        if let [(_, end), (begin, _)] = pair
            && begin < end
        {
            return Err(GuestError::Overlap(*begin));
        }
    }
    Ok(())
}

impl GuestMemory for Guest {
    #[inline(always)]
    fn locate(&self, address: u64, len: usize) -> Option<(usize, usize)> {
        let inside = |r: &Placed| {
            let within = address.wrapping_sub(r.guest);
            let there = r.size.checked_sub(within).filter(|n| *n > 0)?;
            Some((r.at + within as usize, len.min(there as usize)))
        };
        let recent = self.recent.get();
        if let Some(found) = self.regions.get(recent).and_then(inside) {
            return Some(found);
        }
        let mut all = self.regions.iter().enumerate();
        let (n, found) = all.find_map(|(n, r)| inside(r).map(|found| (n, found)))?;
        self.recent.set(n);
        Some(found)
    }
    #[inline(always)]
    fn load16(&self, at: usize) -> u16 {
        match self.all.half(at) {
            // SAFETY: in bounds, aligned and mapped while `self` lives; a peer's writes
            // are not ours to synchronise, and an atomic load takes any value.
            Some(half) => unsafe { AtomicU16::from_ptr(half).load(Ordering::Acquire) },
            None => 0,
        }
    }
    #[inline(always)]
    fn store16(&self, at: usize, value: u16) {
        if let Some(half) = self.all.half(at) {
            // SAFETY: as in `load16`, and writable.
            unsafe { AtomicU16::from_ptr(half).store(value, Ordering::Release) }
            self.written(at, 2);
        }
    }
    #[inline(always)]
    fn load64(&self, at: usize) -> u64 {
        self.all.load(at, Ordering::Acquire)
    }
    #[inline(always)]
    fn store64(&self, at: usize, value: u64) {
        self.all.store(at, value, Ordering::Release);
        self.written(at, 8);
    }
    #[inline(always)]
    fn read(&self, at: usize, out: &mut [u8]) {
        self.all.copy_out(at, out);
    }
    #[inline(always)]
    fn write(&self, at: usize, bytes: &[u8]) {
        self.all.copy_in(at, bytes);
        self.written(at, bytes.len());
    }
    #[inline(always)]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
    #[inline(always)]
    fn will_use(&self, at: usize, writes: bool) {
        match writes {
            true => self.all.prefetch_to_write(at),
            false => self.all.prefetch(at),
        }
    }
}

impl WritableMapping {
    /// Addresses and nothing behind them, to be covered by what [`WritableMapping::place`]
    /// maps; what is between that ends who touches it. As it cannot be written it counts
    /// against no limit of a process's own memory (RLIMIT_DATA), however large the guest.
    /// `align` is a power of two and a multiple of the page size.
    fn reserve(len: usize, align: usize) -> io::Result<WritableMapping> {
        let room = len + align;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory
        // that exists.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                room,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let begin = (base as usize).next_multiple_of(align);
        let front = begin - base as usize;
        // SAFETY: the front and the back of the mapping just made, which nobody uses.
        unsafe {
            if front > 0 {
                rustix::mm::munmap(base, front)?;
            }
            let keep = len.next_multiple_of(GAP as usize);
            if room - front > keep {
                let back = base.cast::<u8>().add(front + keep);
                rustix::mm::munmap(back.cast(), room - front - keep)?;
            }
            let begin = base.cast::<u8>().add(front);
            Ok(WritableMapping::adopt(Mapping::own(begin.cast(), len)?))
        }
    }

    /// Maps a part of a file at `at`, over what is there.
    fn place(&self, at: usize, len: usize, fd: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
        if at > self.len() || len > self.len() - at {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: inside the reservation, which is ours and to which nobody has a
        // reference.
        unsafe {
            let to = self.base().add(at).cast();
            rustix::mm::mmap(to, len, protection, flags, fd.as_fd(), offset)?;
        }
        Ok(())
    }

    /// Where 16 bits at an even offset are.
    #[inline]
    fn half(&self, at: usize) -> Option<*mut u16> {
        let fits = at & 1 == 0 && self.len() >= 2 && at <= self.len() - 2;
        // SAFETY: in bounds.
        fits.then(|| unsafe { self.base().add(at).cast() })
    }

    /// Sets one of a byte's eight bits; nothing where there is none.
    fn set_bit(&self, at: usize, bit: u64) {
        if at < self.len() {
            // SAFETY: in bounds of a mapping that lives as long as `self`.
            let byte = unsafe { AtomicU8::from_ptr(self.base().add(at)) };
            byte.fetch_or(1 << (bit % 8), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
