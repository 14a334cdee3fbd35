//! A tenant's rate where several workers move its frames: one account for all of them. A
//! worker that has nothing left takes a slice, and spends it as if the rate were its own; at
//! the end of its turn it gives back what is left of it, or has what it owes put down. So a
//! rate costs an atomic addition or two a turn, whatever passes in it, and holds for all
//! together, however the frames are divided among them.
//!
//! An account is a count of what was ever taken. What may be is known from the clock, so that
//! nobody has to fill anything, and one word says it all. Its numbers wrap around; what is
//! compared is their difference.

use crate::meter::{LARGE, Meter, SECOND, byte_burst, packet_burst, worth};
use crate::{Credit, Nanos};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use guard::guard;
use image::compartment::Rate;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Workers at most.
const MOST: u32 = telemetry::counters::MOST_WORKERS as u32;
/// Attempts to take of what others take at the same time; then it is as if nothing were left.
const ATTEMPTS: usize = 16;
/// What lies there for so long is anybody's: whose turn it is does not want it. A fraction of a
/// second: 20 ms, more than a worker is late whose core others have, and less than an account
/// holds that somebody waits for.
const PATIENCE: u64 = 50;
/// Between two looks of who waits for its turn, ns.
const LOOK: Nanos = 100_000;
/// Nobody owes so much: who seems to has not been here for years.
const NEVER: i64 = -(1 << 60);

/// Which way a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What the tenant's endpoints send.
    From,
    /// What they are sent.
    To,
}

/// Who has the accounts. Asked when an image comes, never for a frame.
pub trait Accounts: core::fmt::Debug + Send + Sync {
    /// The account of a tenant's rate: for all workers the same.
    fn account(&self, tenant: u32, way: Way, rate: &Rate, now: Nanos) -> Arc<Account>;
}

/// What all workers together may still let pass of one rate.
#[derive(Debug)]
#[repr(align(64))]
pub struct Account {
    rate: Rate,
    began: Nanos,
    bytes: Pool,
    packets: Pool,
    /// A bit for each worker that found nothing, or not its turn, and wants some.
    waits: AtomicU32,
    /// What each had while others waited, and the most that one had before it was served.
    had: [AtomicU64; MOST as usize],
    floor: AtomicU64,
}

/// One of the two limits of a rate.
#[derive(Debug)]
struct Pool {
    rate: u64,
    burst: u64,
    spent: AtomicU64,
}

impl Account {
    /// A full one, or one with nothing in it yet.
    pub fn new(rate: &Rate, now: Nanos, full: bool) -> Account {
        let pool = |rate: u64, burst: u64| Pool {
            rate,
            burst,
            spent: AtomicU64::new(if full { 0 } else { burst }),
        };
        Account {
            rate: *rate,
            began: now,
            bytes: pool(rate.bytes, byte_burst(rate)),
            packets: pool(rate.packets, packet_burst(rate.packets)),
            waits: AtomicU32::new(0),
            had: Default::default(),
            floor: AtomicU64::new(0),
        }
    }

    /// The rate that it keeps.
    pub fn rate(&self) -> &Rate {
        &self.rate
    }

    fn limits(&self) -> impl Iterator<Item = &Pool> {
        let limits = [&self.bytes, &self.packets].into_iter();
        limits.filter(|pool| pool.rate != 0)
    }

    /// For how long it has run: never less than at its start, whosever clock it is.
    fn age(&self, now: Nanos) -> Nanos {
        now.saturating_sub(self.began)
    }

    /// Whether somebody waits for it: then it holds more, so that who comes late loses nothing.
    /// Of one that is full all the same nobody wants anything any more.
    fn is_awaited(&self, age: Nanos) -> bool {
        if self.waits.load(Relaxed) == 0 {
            return false;
        }
        let full = self
            .limits()
            .all(|pool| pool.left(age, true) >= pool.cap(true));
        if full {
            self.waits.store(0, Relaxed);
        }
        !full
    }

    /// A turn's worth, of what [`Account::had`] counts.
    fn turn(&self) -> u64 {
        match self.rate.bytes {
            0 => SLICE_PACKETS + self.rate.packets / 1000,
            bytes => LARGE.max(bytes / 1000),
        }
    }

    /// What a worker had while others waited, and whoever was idle meanwhile not much less: so
    /// that nothing is saved up (start-time fair queueing, as among ports).
    fn had(&self, worker: u32) -> u64 {
        let had = self.had.get(worker as usize);
        let had = had.map_or(u64::MAX, |had| had.load(Relaxed));
        let floor = self.floor.load(Relaxed);
        had.max(floor.saturating_sub(2 * self.turn()))
    }

    /// The others that wait and had less than this one by a turn, a bit each.
    fn before(&self, worker: u32) -> u32 {
        let waits = self.waits.load(Relaxed) & !(1 << worker);
        if waits == 0 {
            return 0;
        }
        let (own, turn) = (self.had(worker), self.turn());
        let bits = (0..MOST).filter(|other| waits >> other & 1 == 1);
        bits.filter(|other| self.had(*other).saturating_add(turn) <= own)
            .fold(0, |all, bit| all | 1 << bit)
    }

    /// Whether this worker may take now: nobody waits who had less, or those let it lie.
    fn is_turn(&self, worker: u32, now: Nanos) -> bool {
        let age = self.age(now);
        self.before(worker) == 0
            || !guard!("account-turns")
            || self
                .limits()
                .all(|pool| pool.left(age, true) >= pool.patience())
    }

    /// This worker has some. Those who let it lie are asked to say anew that they wait; and it
    /// waits no more, once there is no more than there is for who did not.
    fn has_taken(&self, worker: u32, age: Nanos) {
        if self.waits.load(Relaxed) == 0 {
            return;
        }
        let mut limits = self.limits();
        let own = limits.all(|pool| pool.left(age, true) <= pool.cap(false));
        let gone = self.before(worker) | u32::from(own) << worker;
        if gone != 0 {
            self.waits.fetch_and(!gone, Relaxed);
        }
    }

    /// So much of it was used while others waited: bytes, or packets where those are all that
    /// is counted.
    fn used(&self, worker: u32, bytes: i64, packets: i64) {
        if self.waits.load(Relaxed) == 0 {
            return;
        }
        let used = if self.rate.bytes == 0 { packets } else { bytes };
        let start = self.had(worker);
        self.floor.fetch_max(start, Relaxed);
        if let Some(had) = self.had.get(worker as usize) {
            // Its own word: nobody else writes it.
            had.store(start.saturating_add_signed(used), Relaxed);
        }
    }

    fn waits(&self, worker: u32) {
        let own = 1 << worker;
        if self.waits.load(Relaxed) & own == 0 {
            self.waits.fetch_or(own, Relaxed);
        }
    }
}

impl Pool {
    /// What may have been taken in so much time, from the start.
    fn earned(&self, age: Nanos) -> u64 {
        let gained = u128::from(age) * u128::from(self.rate) / SECOND;
        // It wraps around, as what was spent does.
        (gained as u64).wrapping_add(self.burst)
    }

    /// What it holds at most.
    fn cap(&self, awaited: bool) -> i64 {
        let cap = if awaited {
            self.burst.max(self.rate / 10)
        } else {
            self.burst
        };
        i64::try_from(cap).unwrap_or(i64::MAX)
    }

    fn patience(&self) -> i64 {
        i64::try_from(self.rate / PATIENCE)
            .unwrap_or(i64::MAX)
            .max(1)
    }

    fn left(&self, age: Nanos, awaited: bool) -> i64 {
        self.left_of(self.spent.load(Relaxed), age, awaited)
    }

    fn left_of(&self, spent: u64, age: Nanos, awaited: bool) -> i64 {
        let cap = self.cap(awaited);
        match self.earned(age).wrapping_sub(spent).cast_signed() {
            left if left < NEVER => cap,
            left => left.min(cap),
        }
    }

    /// Takes up to so much, of what is there. Bound: `ATTEMPTS`.
    fn take(&self, age: Nanos, awaited: bool, most: i64) -> i64 {
        let mut spent = self.spent.load(Relaxed);
        for _ in 0..ATTEMPTS {
            let left = self.left_of(spent, age, awaited);
            let taken = left.min(most);
            if taken <= 0 {
                return 0;
            }
            // What it could not hold is gone.
            let after = self.earned(age).wrapping_sub((left - taken) as u64);
            match self
                .spent
                .compare_exchange_weak(spent, after, Relaxed, Relaxed)
            {
                Ok(_) => return taken,
                Err(now) => spent = now,
            }
        }
        0
    }

    /// Puts back what was taken and not used, or takes what was used and is owed.
    fn give(&self, left: i64) {
        if left != 0 {
            self.spent.fetch_sub(left as u64, Relaxed);
        }
    }

    /// When who has so much of it, which is nothing or less, may go on.
    fn free_at(&self, now: Nanos, age: Nanos, own: i64) -> Nanos {
        // Where there is some it is another's turn, which takes no longer than it takes to fill.
        let have = self.left(age, true).saturating_add(own).min(0);
        let wanted = worth(self.rate, self.burst);
        let lacking = u128::from(wanted.saturating_sub(have).unsigned_abs());
        let wait = (lacking * SECOND).div_ceil(u128::from(self.rate.max(1)));
        now.saturating_add(Nanos::try_from(wait).unwrap_or(Nanos::MAX))
    }
}

/// Where a worker finds the accounts that it has with others.
#[derive(Clone, Debug)]
pub(crate) struct Among {
    pub(crate) accounts: Arc<dyn Accounts>,
    pub(crate) worker: u32,
}

/// One worker's part in an account.
#[derive(Clone, Debug)]
struct Share {
    account: Arc<Account>,
    worker: u32,
    /// When it was asked last.
    now: Nanos,
    /// It was empty then.
    empty: bool,
    /// Something is to be given back, or owed.
    open: bool,
    /// What was taken since that was done last: bytes, packets.
    taken: (i64, i64),
}

/// The meter of a tenant's rate: one worker's own, or its part of what all have.
#[derive(Clone, Debug)]
pub(crate) struct TenantMeter {
    own: Meter,
    share: Option<Share>,
}

impl TenantMeter {
    /// A tenant's by the present image: what it was where that still keeps its rate.
    pub(crate) fn adopt(
        before: Option<&TenantMeter>,
        (tenant, way): (u32, Way),
        rate: &Rate,
        now: Nanos,
        among: Option<&Among>,
    ) -> TenantMeter {
        let among = among.filter(|_| rate.is_limited() && guard!("account-shared"));
        let keeps = |before: &&TenantMeter| match (&before.share, among) {
            (Some(share), Some(_)) => share.account.rate == *rate,
            (before, among) => before.is_none() && among.is_none(),
        };
        if let Some(before) = before.filter(keeps) {
            return before.clone();
        }
        let share = among.map(|among| Share {
            account: among.accounts.account(tenant, way, rate, now),
            worker: among.worker,
            now,
            empty: false,
            open: false,
            taken: (0, 0),
        });
        let own = match share {
            Some(_) => Meter::EMPTY,
            None => Meter::full(now, rate),
        };
        TenantMeter { own, share }
    }

    /// Whether others may use up what there is.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.share.is_some()
    }

    /// As [`Meter::is_free`].
    #[inline]
    pub(crate) fn is_free(&mut self, now: Nanos, rate: &Rate) -> bool {
        match &mut self.share {
            None => self.own.is_free(now, rate),
            Some(share) => share.has_some(now, &mut self.own),
        }
    }

    /// As [`Meter::credit`].
    pub(crate) fn credit(&mut self, now: Nanos, rate: &Rate) -> Credit {
        match &mut self.share {
            None => self.own.credit(now, rate),
            Some(share) => {
                share.has_some(now, &mut self.own);
                self.own.holds(rate)
            }
        }
    }

    /// As [`Meter::charge`].
    #[inline]
    pub(crate) fn charge(&mut self, rate: &Rate, bytes: u64, packets: u64) {
        self.own.charge(rate, bytes, packets);
        if let Some(share) = &mut self.share {
            share.open = true;
        }
    }

    /// As [`Meter::free_at`].
    #[inline]
    pub(crate) fn free_at(&mut self, rate: &Rate) -> Nanos {
        match &mut self.share {
            None => self.own.free_at(rate),
            Some(share) => match share.has_some(share.now, &mut self.own) {
                true => 0,
                false => share.free_at(&self.own),
            },
        }
    }

    /// As [`Meter::late`]; an account that somebody waits for holds as much anyway.
    pub(crate) fn late(&mut self, now: Nanos, rate: &Rate) {
        if self.share.is_none() {
            self.own.late(now, rate);
        }
    }

    /// The end of a turn: nothing of an account is with this worker then.
    pub(crate) fn settle(&mut self) {
        let Some(share) = self.share.as_mut().filter(|share| share.open) else {
            return;
        };
        if guard!("account-settled") {
            let (bytes, packets) = self.own.empty();
            share.account.bytes.give(bytes);
            share.account.packets.give(packets);
            let (all, of_packets) = core::mem::take(&mut share.taken);
            let account = &share.account;
            account.used(share.worker, all - bytes, of_packets - packets);
        }
        share.open = false;
    }
}

impl Share {
    /// Whether there is something in hand; what is not is taken, where there is some.
    fn has_some(&mut self, now: Nanos, own: &mut Meter) -> bool {
        let account = &*self.account;
        let lacks = |own: &Meter| own.lacks(&account.rate);
        if !lacks(own) {
            return true;
        }
        // One clock for a batch: it does not fill meanwhile.
        if now == self.now && self.empty {
            return false;
        }
        self.now = now;
        let age = account.age(now);
        if account.is_turn(self.worker, now) {
            let awaited = account.is_awaited(age);
            own.fetch(&account.rate, |bytes, packets| {
                let slice = LARGE.max(account.rate.bytes / 8000).cast_signed();
                let bytes = bytes.map(|has| account.bytes.take(age, awaited, slice - has));
                let slice = SLICE_PACKETS.max(account.rate.packets / 8000).cast_signed();
                let packets = packets.map(|has| account.packets.take(age, awaited, slice - has));
                let taken = (bytes.unwrap_or(0), packets.unwrap_or(0));
                self.taken = (self.taken.0 + taken.0, self.taken.1 + taken.1);
                taken
            });
            self.open = true;
        }
        self.empty = lacks(own);
        match self.empty {
            true => account.waits(self.worker),
            false => account.has_taken(self.worker, age),
        }
        !self.empty
    }

    fn free_at(&self, own: &Meter) -> Nanos {
        let account = &*self.account;
        let age = account.age(self.now);
        let (bytes, packets) = own.held();
        let limits = [(&account.bytes, bytes), (&account.packets, packets)].into_iter();
        let limits = limits.filter(|(pool, _)| pool.rate != 0);
        let free = limits.map(|(pool, own)| pool.free_at(self.now, age, own.min(0)));
        free.max().unwrap_or(0).max(self.now + LOOK)
    }
}

/// Packets of a slice, at least.
const SLICE_PACKETS: u64 = 64;
