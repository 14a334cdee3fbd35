//! Which descriptor of this process is of which record.
#![expect(unsafe_code, reason = "descriptors of its own")]

use crate::arena::{self, RECORDS};
use crate::cancelled::kept;
use crate::forking::{self, Before};
use crate::given::{ENDS, GIVEN, inode, is_left_behind, is_made, is_of_now, is_own, ours, waits};
use crate::lock::is_there;
use crate::record::{PLAIN, Record};
use crate::users::{is_alone, quietly};
use crate::{gate, log, real};
use std::cell::Cell;
use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering, compiler_fence};

/// Descriptors that are followed.
pub const FDS: usize = 65_536;
/// Of an entry: the program believes that it is handed on when another is executed.
pub const HANDED_ON: u32 = 1 << 31;
/// Of an entry: it was of this record, and is the end of a pair of sockets by now. It is followed no more.
const LEFT: u32 = 1 << 30;
/// Of an entry: it is this library's own copy of one of this record.
const COPY: u32 = 1 << 29;
/// So many copies there are at most, of these numbers: a program's own are the lowest that are free, and what goes by 512 to
/// 1023 waits for the operator.
const COPIES: u32 = 64;
const NUMBERS: Range<c_int> = 384..512;

/// Of an entry of [`HELD`]: it was before a fork.
const WAS: u32 = 1 << 31;

static TABLE: [AtomicU32; FDS] = [const { AtomicU32::new(0) }; FDS];
/// Of each record, its descriptors and calls under way in this process.
static HELD: [AtomicU32; RECORDS + 1] = [const { AtomicU32::new(0) }; RECORDS + 1];
/// Of each record, this library's own copy of a descriptor; 0: none, and less: there is to be none.
static COPY_OF: [AtomicI32; RECORDS + 1] = [const { AtomicI32::new(0) }; RECORDS + 1];
/// How many there are.
static COPIED: AtomicU32 = AtomicU32::new(0);
/// Not as many descriptors are permitted as a copy takes.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);
/// No higher descriptor was ever followed.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Calls of this thread that hold a record, or are about to: one, and those of handlers that interrupt it.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// A handler that interrupts this thread from here on knows that it does.
pub fn begins() {
    CALLS.set(CALLS.get() + 1);
    compiler_fence(Ordering::SeqCst);
}

pub fn is_over() {
    compiler_fence(Ordering::SeqCst);
    CALLS.set(CALLS.get().saturating_sub(1));
}

/// A higher one is followed, perhaps, than ever before.
pub fn knows_of(fd: c_int) {
    HIGHEST.fetch_max(fd.cast_unsigned(), Ordering::AcqRel);
}

pub fn entry(fd: c_int) -> Option<&'static AtomicU32> {
    TABLE.get(usize::try_from(fd).ok()?)
}

pub fn held(number: u32) -> Option<&'static AtomicU32> {
    HELD.get(number as usize)
}

/// A record that stays while it is in use; to be given back by [`put`].
#[inline]
pub fn hold(fd: c_int) -> Option<&'static Record> {
    let entry = entry(fd)?;
    // Bound: others that open and close this very number meanwhile.
    loop {
        let seen = entry.load(Ordering::Acquire) & !HANDED_ON;
        if waits(fd, entry, seen) {
            continue;
        }
        let number = ours(fd, seen);
        if number == 0 || number & (LEFT | COPY | GIVEN | ENDS) != 0 {
            return None;
        }
        let (count, record) = (held(number)?, arena::record(number)?);
        let before = count.load(Ordering::Relaxed);
        let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
        begins();
        if before == 0
            || count
                .compare_exchange(before, before + 1, done, not)
                .is_err()
        {
            is_over();
            continue;
        }
        if entry.load(Ordering::Acquire) & !HANDED_ON == seen {
            return Some(record);
        }
        put(record);
    }
}

/// A record for a new socket, that one descriptor has.
pub fn begun(before: Before) -> Option<&'static Record> {
    let is_ours = forking::stands() && before.is_now();
    let record = is_ours.then(arena::begin).flatten();
    if let Some(held) = record.and_then(|it| held(it.number())) {
        held.store(1, Ordering::Release);
    }
    forking::goes_on();
    record
}

/// Whether a descriptor is still of this record: it may be closed, or be made another, at any time. Who does that
/// says so first.
#[inline]
pub fn is_of(fd: c_int, record: &Record) -> bool {
    let seen = number_of(fd);
    seen == record.number() || (seen & GIVEN != 0 && ours(fd, seen) == record.number())
}

/// The number of its record, with what else is said of it.
#[inline]
fn number_of(fd: c_int) -> u32 {
    entry(fd).map_or(0, |it| it.load(Ordering::Acquire) & !HANDED_ON)
}

/// Whether it is the end of a pair of sockets, and was of this record.
#[inline]
pub fn has_left(fd: c_int, record: &Record) -> bool {
    number_of(fd) & !GIVEN == LEFT | record.number()
}

/// Gives it back.
#[inline]
pub fn put(record: &Record) {
    release(record);
    is_over();
}

/// A descriptor, or a call, has it no more.
pub fn release(record: &Record) {
    if held(record.number()).is_some_and(|it| it.fetch_sub(1, Ordering::AcqRel) == 1) {
        uncopy(record.number());
        kept(|| log::say(record));
        record.end();
    }
}

/// Follows a new socket, that was not there `before`.
pub fn follow(fd: c_int, before: Before) {
    forget(fd);
    if entry(fd).is_none() || fd <= 2 {
        return;
    }
    begins();
    // Until it has its number: a copy that is made in between would have that and no record. Nobody waits meanwhile.
    forking::stands();
    if !is_given(fd)
        && let Some(record) = begun(before)
    {
        let _ = becomes(fd, record.number(), || true);
    }
    forking::goes_on();
    is_over();
}

/// Whether another thread has given it.
fn is_given(fd: c_int) -> bool {
    number_of(fd) & GIVEN != 0 && !is_own(fd)
}

/// A number is of a record from now on, once no other thread has given it, if it is its by then. Given by this thread it stays so.
fn becomes(fd: c_int, value: u32, is_its: impl Fn() -> bool) -> bool {
    let Some(entry) = entry(fd) else { return false };
    let stays = if is_own(fd) { GIVEN } else { 0 };
    knows_of(fd);
    // Bound: others that give this very number meanwhile.
    loop {
        let seen = entry.load(Ordering::Acquire);
        if waits(fd, entry, seen) {
            continue;
        }
        if !is_its() {
            return false;
        }
        let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
        let value = value | (seen & stays);
        if entry.compare_exchange(seen, value, done, not).is_ok() {
            break;
        }
    }
    is_made(fd, value & !HANDED_ON);
    true
}

/// A copy of a descriptor, by which its record's calls go on if it is closed, or becomes another, meanwhile. There may be none.
/// Without signals: a handler that forks in between would leave a child a copy that it does not know of.
pub fn copy(fd: c_int, record: &Record) {
    let place = COPY_OF.get(record.number() as usize);
    if let Some(place) = place.filter(|it| it.load(Ordering::Acquire) == 0)
        && !IS_REFUSED.load(Ordering::Relaxed)
        && COPIED.load(Ordering::Relaxed) < COPIES
    {
        quietly(|| copy_alone(fd, record.number(), place));
    }
}

fn copy_alone(fd: c_int, number: u32, place: &AtomicI32) {
    if COPIED.fetch_add(1, Ordering::AcqRel) < COPIES {
        // SAFETY: a new descriptor, or none.
        let own = unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, NUMBERS.start as usize) };
        if own < 0 && real::errno() == libc::EINVAL {
            IS_REFUSED.store(true, Ordering::Relaxed);
        }
        // Whoever closes or replaces a number says so first: it was still this one's.
        if NUMBERS.contains(&own) && number_of(fd) == number {
            set(own, COPY | number);
            let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
            if place.compare_exchange(0, own, done, not).is_ok() {
                return;
            }
            set(own, 0);
        }
        if own >= 0 {
            real::shut(own);
        }
    }
    COPIED.fetch_sub(1, Ordering::AcqRel);
}

/// It, if there is one.
#[inline]
pub fn copy_of(record: &Record) -> Option<c_int> {
    let own = COPY_OF.get(record.number() as usize)?;
    Some(own.load(Ordering::Acquire)).filter(|own| *own > 0)
}

/// A record's copy is used no more; whether it was this one.
fn taken_back(number: u32, own: c_int) -> bool {
    let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
    let place = COPY_OF.get(number as usize);
    let was = place.is_some_and(|it| it.compare_exchange(own, 0, done, not).is_ok());
    if was {
        COPIED.fetch_sub(1, Ordering::AcqRel);
    }
    was
}

/// A record's copy is closed, if there is one.
fn uncopy(number: u32) {
    let own = COPY_OF.get(number as usize);
    let own = own.map_or(0, |it| it.load(Ordering::Acquire));
    if own < 0 {
        // The number is another connection's from now on.
        if let Some(place) = COPY_OF.get(number as usize) {
            place.store(0, Ordering::Release);
        }
    } else if own > 0 && taken_back(number, own) {
        set(own, 0);
        real::shut(own);
    }
}

/// Another descriptor is of the same as `of`; `handed_on`: as the program believes.
pub fn share(fd: c_int, of: c_int, record: &Record, handed_on: bool) {
    begins();
    if let Some(held) = held(record.number()) {
        held.fetch_add(1, Ordering::AcqRel);
    }
    if entry(fd).is_none() {
        // It is read and written as it is: only plain bytes may be there.
        record.stay();
        release(record);
    } else {
        // A call of another thread may have had a fresh socket put there since it was made a copy.
        let is_its = || inode(fd) == inode(of);
        let value = record.number() | if handed_on { HANDED_ON } else { 0 };
        match becomes(fd, value, is_its) {
            true if is_its() => {}
            // Who had it put there may have said whose it is.
            true if !is_no_more(fd, value) => {}
            _ => release(record),
        }
    }
    is_over();
}

/// A number is of no record, if it is as it was made.
fn is_no_more(fd: c_int, value: u32) -> bool {
    let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
    entry(fd).is_some_and(|it| it.compare_exchange(value, 0, done, not).is_ok())
}

fn set(fd: c_int, value: u32) {
    if let Some(entry) = entry(fd) {
        knows_of(fd);
        entry.store(value, Ordering::Release);
    }
}

/// A descriptor is no more of any, once no other thread has given it: what is there then is closed, or replaced, and no other.
pub fn forget(fd: c_int) {
    forget_as(fd, 0);
}

/// The same; its entry says this of it from then on.
pub fn forget_as(fd: c_int, says: u32) {
    let Some(entry) = entry(fd) else { return };
    // Bound: others that give this very number meanwhile.
    loop {
        let seen = entry.load(Ordering::Acquire);
        // What was there first is what is being forked may have; what came since is followed by nobody.
        let stays = seen & ENDS != 0 && forking::is_under_way();
        if seen == 0 || stays || (!waits(fd, entry, seen) && is_forgotten(fd, entry, (seen, says)))
        {
            return;
        }
    }
}

/// A number is of none any more, if nobody has given it since, or made it another; but it stays given by this thread.
pub fn is_forgotten(fd: c_int, entry: &AtomicU32, (seen, says): (u32, u32)) -> bool {
    let inside = gate::enter();
    begins();
    let stays = if is_own(fd) { GIVEN } else { 0 };
    let value = match seen & stays {
        0 => says,
        given => given,
    };
    if says != 0 {
        is_of_now(fd);
    }
    let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
    let is_done = entry.compare_exchange(seen, value, done, not).is_ok();
    if is_done {
        is_made(fd, 0);
    }
    drop(inside);
    let number = match is_done {
        true => seen & !(HANDED_ON | GIVEN),
        false => 0,
    };
    if number & COPY != 0 {
        // The program closes all that it does not know.
        taken_back(number & !COPY, fd);
    }
    if let Some(record) = arena::record(number) {
        release(record);
    }
    is_over();
    is_done
}

/// It is the end of a pair of sockets from now on; its record's locks are held.
pub fn leaves(fd: c_int, record: &Record) {
    if let Some(entry) = entry(fd) {
        let number = record.number();
        // Who has closed it meanwhile has said so.
        let is = |it: u32| (it & !HANDED_ON == number).then_some(LEFT | number);
        let (done, not) = (Ordering::AcqRel, Ordering::Relaxed);
        begins();
        if entry.fetch_update(done, not, is).is_ok() {
            release(record);
        }
        is_over();
    }
}

/// All numbers by which this process has it.
pub fn numbers(record: &Record) -> impl Iterator<Item = c_int> {
    followed(0, u32::MAX).filter(|fd| is_of(*fd, record))
}

/// The highest descriptor that was followed.
pub fn highest() -> c_int {
    c_int::try_from(HIGHEST.load(Ordering::Relaxed)).unwrap_or(c_int::MAX)
}

/// Whether any descriptor was ever followed.
#[inline]
pub fn follows() -> bool {
    HIGHEST.load(Ordering::Relaxed) > 0
}

/// Whether this one is, or was.
pub fn is_followed(fd: c_int) -> bool {
    entry(fd).is_some_and(|it| it.load(Ordering::Acquire) != 0)
}

/// All descriptors that are followed, from one number to another.
pub fn followed(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let last = last.min(HIGHEST.load(Ordering::Acquire));
    (first..=last)
        .map(u32::cast_signed)
        .filter(|fd| entry(*fd).is_some_and(|it| it.load(Ordering::Acquire) != 0))
}

/// Whether the program believes that a ring's descriptor is handed on.
pub fn is_handed_on(fd: c_int) -> bool {
    entry(fd).is_some_and(|it| it.load(Ordering::Acquire) & HANDED_ON != 0)
}

/// What it believes by now.
pub fn hands_on(fd: c_int, does: bool) {
    if let Some(entry) = entry(fd) {
        match does {
            true => entry.fetch_or(HANDED_ON, Ordering::AcqRel),
            false => entry.fetch_and(!HANDED_ON, Ordering::AcqRel),
        };
    }
}

/// All descriptors of a record close when another program is executed: it would know nothing of
/// the ring, and read and write its doorbell.
pub fn closes_on_exec(record: &Record) {
    for fd in numbers(record) {
        hands_on(fd, !crate::descriptors::close_on_exec(fd));
    }
}

/// Records that this process has.
fn own() -> impl Iterator<Item = &'static Record> {
    (1..=RECORDS as u32)
        .filter(|number| held(*number).is_some_and(|it| it.load(Ordering::Acquire) > 0))
        .filter_map(arena::record)
}

/// A process is about to be forked.
pub fn forks() {
    forking::begins();
    if HIGHEST.load(Ordering::Acquire) > 0 {
        own().for_each(Record::forks);
    }
}

/// It was not, after all. Where other threads fork too, nobody knows whom they counted.
pub fn forks_not() {
    if HIGHEST.load(Ordering::Acquire) > 0 && is_alone() {
        own().for_each(Record::forks_not);
    }
}

/// In a process that was forked: no call of the other's threads goes on here, and their copies would keep circuits
/// open that both close. One that was made in the very moment stays.
pub fn uncopies() {
    if COPIED.load(Ordering::Acquire) > 0 {
        (1..=RECORDS as u32).for_each(uncopy);
    }
}

/// This process was.
pub fn is_forked() {
    forking::is_forked();
    uncopies();
    if HIGHEST.load(Ordering::Acquire) == 0 {
        return;
    }
    let mut known = Known::default();
    own().for_each(|it| it.is_forked(|pid| known.is_there(pid)));
    followed(0, u32::MAX).for_each(is_left_behind);
    if CALLS.get() == 0 {
        recount();
        return;
    }
    // By a handler, in the midst of a call that goes on here too. What calls of the other's threads hold nobody can tell from
    // what it holds, and is never given back: it would keep a copy, and so the connection, open.
    for (place, held) in COPY_OF.iter().zip(&HELD) {
        if held.load(Ordering::Acquire) > 0 {
            place.store(-1, Ordering::Release);
        }
    }
}

/// Processes that were asked for since a fork: the same few have all its sockets, and to ask is some system calls.
struct Known {
    all: [(u32, bool); 64],
    asked: usize,
}

impl Default for Known {
    fn default() -> Known {
        let all = [(0, false); 64];
        Known { all, asked: 0 }
    }
}

impl Known {
    fn is_there(&mut self, pid: u32) -> bool {
        if let Some((_, there)) = self.all.iter().find(|(it, _)| *it == pid) {
            return *there;
        }
        let there = is_there(pid);
        let place = self.asked % self.all.len();
        if let Some(place) = self.all.get_mut(place) {
            *place = (pid, there);
        }
        self.asked += 1;
        there
    }
}

/// In a process that was forked, which no calls but this thread's go on in, and that has none: what others held is nobody's.
fn recount() {
    for held in HELD.iter().filter(|it| it.load(Ordering::Acquire) > 0) {
        held.store(WAS, Ordering::Release);
    }
    for fd in followed(0, u32::MAX) {
        if let Some(held) = held(number_of(fd) & !GIVEN).filter(|it| it.load(Ordering::Acquire) > 0)
        {
            held.fetch_add(1, Ordering::AcqRel);
        }
    }
    for (number, held) in (0..).zip(&HELD) {
        if held.fetch_and(!WAS, Ordering::AcqRel) == WAS
            && let Some(record) = arena::record(number)
        {
            uncopy(number);
            record.end();
        }
    }
}

/// This process is another user's from now on, whom the one that it was forked by need not trust, nor
/// its memory. Who has other threads, or goes on with a ring that another process uses too, shares on.
pub fn parts() {
    if HIGHEST.load(Ordering::Acquire) > 0 && !own().any(Record::is_shared) {
        // While both see it: from here on neither counts what the other moves.
        own().for_each(Record::is_counted_apart);
        arena::parts(own());
    }
}

/// A process is about to be made of this one's descriptors that will not say so: what has no ring
/// gets none, and what has one is never taken for another's.
pub fn copies() {
    if HIGHEST.load(Ordering::Acquire) > 0 {
        for record in own() {
            record.stay();
            record.is_many();
        }
    }
}

/// The process ends.
pub fn ends() {
    if HIGHEST.load(Ordering::Acquire) > 0 {
        own().for_each(log::say);
    }
}

/// A program is about to be started that none of this sees: what it inherits stays with the
/// kernel.
pub fn starts() {
    for fd in followed(0, u32::MAX) {
        if let Some(record) = hold(fd) {
            if record.state.load(Ordering::Acquire) != PLAIN
                && !crate::descriptors::is_close_on_exec(fd)
            {
                record.stay();
            }
            put(record);
        }
    }
}
