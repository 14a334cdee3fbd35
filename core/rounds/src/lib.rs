//! Whose turn it is: deficit round robin over the active channels, with weights
//! and guaranteed minimums. The fabric's among channels, a switch's among its ports.
//!
//! On coming to the head of the line a channel earns `weight` units, and besides
//! its guaranteed rate times the time since it was last there. A backlogged channel
//! so gets its minimum, and a share by weight of what the minimums leave. It is
//! served while it has credit, batch by batch; a frame may exceed what is left, and
//! the debt is paid off in later rounds. An idle channel is not in the line, and
//! neither saves up nor costs anything.

#[cfg(test)]
mod tests;

use guard::guard;

/// What a unit of weight earns in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    /// At most: where all weights are small.
    pub most: u64,
    /// At least.
    pub least: u64,
    /// What the heaviest channel earns where these two allow it, while any is in the line that
    /// would earn more than this.
    pub round: u64,
    /// Dearest that a byte of a guarantee can be: what beyond this small frames cost more than
    /// their bytes is not promised.
    pub dearest: u64,
}

/// What a channel is to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its slot.
    pub slot: u32,
    /// Its part of what the minimums leave, against the others' weights; 0 counts as 1.
    pub weight: u32,
    /// Its minimum: bytes a second, each at the price of [`Rounds::price`].
    pub min_bytes: u64,
}

/// Time for which a guarantee is earned at once, at most, nanoseconds.
const MAX_EARNED_NS: u64 = 1_000_000;
/// Credit that can stand: a visit is bounded whatever the image says.
const MAX_CREDIT: i64 = 4 << 20;
/// Parts of a price.
const PRICE: u64 = 16;
/// Debt that can stand: a group's copies are charged up to this.
const MAX_DEBT: i64 = 64 << 20;

/// How a channel stands after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has, or may have, more.
    More,
    /// It has nothing.
    Empty,
    /// Its next frame waits for a receiver's room.
    Parked,
}

/// The line of active channels.
pub struct Rounds {
    /// By slot.
    channels: Box<[Account]>,
    /// A ring buffer of slots, the head at `head`; each slot is in it at most once.
    line: Box<[u32]>,
    head: usize,
    len: usize,
    units: Units,
    /// What a unit of weight earns while a heavy channel is in the line.
    unit: u64,
    /// Channels in the line that would earn more than a round's at the most.
    heavy: usize,
}

#[derive(Clone, Copy, Default)]
struct Account {
    credit: i64,
    weight: u64,
    min_bytes: u64,
    /// What a byte of its minimum costs, in parts of [`PRICE`]; 0 = one of them.
    price: u64,
    /// When it last earned.
    earned: u64,
    in_line: bool,
    /// It has earned for this visit already.
    visited: bool,
}

impl Rounds {
    /// For slots below `slots`; allocates all it ever needs.
    pub fn new(slots: usize, units: Units) -> Rounds {
        let account = Account {
            weight: 1,
            ..Account::default()
        };
        Rounds {
            channels: vec![account; slots].into(),
            line: vec![0; slots].into(),
            head: 0,
            len: 0,
            units,
            unit: units.most,
            heavy: 0,
        }
    }

    /// Takes weights and minimums. Credit and the line stay, and so do the shares of
    /// channels that are not among these.
    pub fn configure(&mut self, shares: impl Iterator<Item = Share> + Clone) {
        let heaviest = shares.clone().map(|s| s.weight).max().unwrap_or(1);
        let Units {
            most, least, round, ..
        } = self.units;
        self.unit = (round / u64::from(heaviest.max(1))).clamp(least, most.max(least));
        for share in shares {
            if let Some(account) = self.channels.get_mut(share.slot as usize) {
                account.weight = u64::from(share.weight.max(1));
                account.min_bytes = share.min_bytes;
            }
        }
        self.heavy = (0..self.len)
            .filter_map(|i| self.at(i))
            .filter(|account| self.is_heavy(account))
            .count();
    }

    /// Puts a channel at the end of the line, if it is not in it. Out of range: nothing.
    pub fn activate(&mut self, slot: u32, now: u64) {
        let Some(account) = self.channels.get_mut(slot as usize) else {
            return;
        };
        if account.in_line {
            return;
        }
        account.in_line = true;
        account.visited = false;
        // Nothing is earned for having been idle; debts stay.
        account.earned = now;
        account.credit = account.credit.min(0);
        self.push(slot);
    }

    /// Takes a channel out of the line: it was unplugged. Bound: the line.
    pub fn remove(&mut self, slot: u32) {
        let Some(account) = self.channels.get_mut(slot as usize) else {
            return;
        };
        *account = Account {
            credit: 0,
            in_line: false,
            visited: false,
            ..*account
        };
        for _ in 0..self.len {
            if let Some(other) = self.pop()
                && other != slot
            {
                self.push(other);
            }
        }
    }

    /// Channels in the line.
    pub fn active(&self) -> usize {
        self.len
    }

    /// Whether a channel is in the line.
    pub fn is_active(&self, slot: u32) -> bool {
        self.channels.get(slot as usize).is_some_and(|a| a.in_line)
    }

    /// Keeps those in the line that are to stay, in their order. Bound: the line.
    pub fn retain(&mut self, mut stays: impl FnMut(u32) -> bool) {
        for _ in 0..self.len {
            let Some(slot) = self.pop() else { return };
            if stays(slot) {
                self.push(slot);
            } else if let Some(account) = self.channels.get_mut(slot as usize) {
                account.in_line = false;
                account.visited = false;
            }
        }
    }

    /// The channel whose turn it is, and what its batch may cost; `None`: the line
    /// is empty. Each call is to be followed by [`Rounds::settle`]. Bound: two
    /// rounds of the line.
    pub fn next(&mut self, now: u64) -> Option<(u32, u64)> {
        for last in [false, true] {
            for _ in 0..self.len {
                let unit = self.unit();
                let slot = *self.line.get(self.head)?;
                let account = self.channels.get_mut(slot as usize)?;
                if !account.visited {
                    account.visited = true;
                    account.earn(unit, now);
                }
                if account.credit > 0 {
                    return Some((slot, account.credit as u64));
                }
                self.rotate();
            }
            if last || self.len == 0 {
                return None;
            }
            self.forgive();
        }
        None
    }

    /// What the channel's last frames cost, which is what its minimum is paid at: bytes are
    /// promised, and small frames cost more than their bytes.
    pub fn price(&mut self, slot: u32, cost: u64, bytes: u64) {
        if let Some(account) = self.channels.get_mut(slot as usize)
            && bytes != 0
        {
            let dearest = self.units.dearest.max(1) * PRICE;
            account.price = (cost.saturating_mul(PRICE) / bytes).clamp(PRICE, dearest);
        }
    }

    /// After the batch of the channel that [`Rounds::next`] named: charges it and
    /// puts it where it belongs. `stay`: keep an empty channel in the line, to be
    /// asked again.
    pub fn settle(&mut self, slot: u32, cost: u64, outcome: Outcome, stay: bool) {
        let Some(account) = self.channels.get_mut(slot as usize) else {
            return;
        };
        let cost = i64::try_from(cost).unwrap_or(MAX_DEBT);
        if guard!("fabric-charge") {
            account.credit = (account.credit - cost).max(-MAX_DEBT);
        }
        if self.line.get(self.head) != Some(&slot) {
            return;
        }
        match outcome {
            Outcome::More if account.credit > 0 => {}
            Outcome::More => self.rotate(),
            Outcome::Parked => {
                // It keeps its place in later rounds, not its credit in this one.
                account.credit = account.credit.min(0);
                self.rotate();
            }
            Outcome::Empty => {
                account.credit = account.credit.min(0);
                if stay {
                    return self.rotate();
                }
                account.in_line = false;
                self.pop();
            }
        }
    }

    /// Everyone in the line is in debt: as many rounds pass at once as the first of
    /// them needs to come out of it.
    fn forgive(&mut self) {
        let unit = self.unit();
        let mut rounds = i64::MAX;
        for i in 0..self.len {
            if let Some(account) = self.at(i) {
                let earns = (account.weight * unit) as i64;
                rounds = rounds.min(-account.credit / earns.max(1));
            }
        }
        for i in 0..self.len {
            let slot = self
                .line
                .get((self.head + i) % self.line.len().max(1))
                .copied();
            if let Some(account) = self.channels.get_mut(slot.unwrap_or(u32::MAX) as usize) {
                account.credit += rounds * (account.weight * unit) as i64;
            }
        }
    }

    fn at(&self, i: usize) -> Option<&Account> {
        let slot = self.line.get((self.head + i) % self.line.len().max(1))?;
        self.channels.get(*slot as usize)
    }

    /// The head goes to the end; its visit is over.
    fn rotate(&mut self) {
        if let Some(slot) = self.pop() {
            if let Some(account) = self.channels.get_mut(slot as usize) {
                account.visited = false;
            }
            self.push(slot);
        }
    }

    fn push(&mut self, slot: u32) {
        let capacity = self.line.len();
        if self.len < capacity
            && let Some(place) = self.line.get_mut((self.head + self.len) % capacity)
        {
            *place = slot;
            self.len += 1;
            self.heavy += usize::from(self.weighs(slot));
        }
    }

    fn pop(&mut self) -> Option<u32> {
        let slot = *self.line.get(self.head).filter(|_| self.len != 0)?;
        self.head = (self.head + 1) % self.line.len();
        self.len -= 1;
        self.heavy = self.heavy.saturating_sub(usize::from(self.weighs(slot)));
        Some(slot)
    }

    /// What a unit of weight earns now: who is heavy and idle makes nobody's batches smaller.
    fn unit(&self) -> u64 {
        match self.heavy {
            0 => self.units.most.max(self.unit),
            _ => self.unit,
        }
    }

    fn weighs(&self, slot: u32) -> bool {
        let account = self.channels.get(slot as usize);
        account.is_some_and(|account| self.is_heavy(account))
    }

    fn is_heavy(&self, account: &Account) -> bool {
        account.weight.saturating_mul(self.units.most) > self.units.round
    }
}

impl Account {
    fn earn(&mut self, unit: u64, now: u64) {
        let elapsed = now.saturating_sub(self.earned).min(MAX_EARNED_NS);
        self.earned = now;
        let weight = if guard!("fabric-weights") {
            self.weight
        } else {
            1
        };
        let mut earned = weight * unit;
        if guard!("fabric-minimum") {
            // Below 2^64: a rate below 2^44 bytes a second for at most 2^20 ns.
            let rate = self.min_bytes.min(1 << 43);
            let bytes = rate * elapsed / 1_000_000_000;
            earned += bytes.saturating_mul(self.price.max(PRICE)) / PRICE;
        }
        let earned = i64::try_from(earned).unwrap_or(MAX_CREDIT);
        self.credit = self.credit.saturating_add(earned).min(MAX_CREDIT);
    }
}
