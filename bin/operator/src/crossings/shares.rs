//! Memory of circuits that cross agreements: the supervisor makes it and gives it to both sides, so
//! that no descriptor goes from one tenant's operator to another's.

use command::verbs::{HasMemory, Share};
use guard::guard;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// An answer is waited for so long.
const PATIENCE: Duration = Duration::from_secs(1);
/// The supervisor is asked so often at once, and then in a second: it ends who talks without end.
/// Who comes sooner goes by the kernel. An endpoint asks as often as it leaves to others.
const BURST: u32 = 256;
const PER_SECOND: u32 = 250;
/// Words of the other sides' that came early, at most, and of one agreement's.
const EARLY: usize = 4096;
const EARLY_OF_ONE: usize = 1024;

struct Asked {
    tag: u16,
    id: u64,
    since: Instant,
    /// Why there is none.
    why: Option<Errno>,
}

/// All of a compartment.
pub struct Shares {
    /// By the cookies of the sockets here.
    asked: BTreeMap<u64, Asked>,
    /// What the other side calls those that came, with the cookies of the sockets here.
    came: BTreeMap<(u16, u64), u64>,
    /// Of which the other side's program has it: it was told sooner than this side.
    early: BTreeMap<(u16, u64), HasMemory>,
    /// Of which the supervisor is to be asked.
    asks: Vec<Share>,
    may_ask: u32,
    /// How many of those each endpoint took, until as many more have come.
    took: BTreeMap<u32, u32>,
    /// When it might last ask more.
    filled: Instant,
}

impl Default for Shares {
    fn default() -> Shares {
        Shares {
            asked: BTreeMap::new(),
            came: BTreeMap::new(),
            early: BTreeMap::new(),
            asks: Vec::new(),
            may_ask: BURST,
            took: BTreeMap::new(),
            filled: Instant::now(),
        }
    }
}

impl Shares {
    /// What came by an agreement under this number is this socket here.
    pub fn came(&mut self, tag: u16, id: u64, cookie: u64) {
        self.came.insert((tag, id), cookie);
    }

    /// The socket here that came by an agreement under this number.
    pub fn came_as(&self, tag: u16, id: u64) -> Option<u64> {
        self.came.get(&(tag, id)).copied()
    }

    /// Asks for that of an endpoint's socket here with this cookie, if it may have one more. Why there is none, of
    /// what was asked before; `None`: nothing is known yet.
    pub fn ask(
        &mut self,
        (slot, has_room): (u32, bool),
        cookie: u64,
        (tag, id): (u16, u64),
    ) -> Option<Errno> {
        if let Some(asked) = self.asked.get(&cookie) {
            let why = asked.why?;
            self.asked.remove(&cookie);
            return Some(why);
        }
        // It would be asked for in vain, as often as a program likes.
        if !has_room && guard!("across-rings-room") {
            return Some(Errno::NOBUFS);
        }
        let since = Instant::now();
        if !self.may_ask(slot, since) {
            return Some(Errno::OPNOTSUPP);
        }
        let asked = Asked {
            tag,
            id,
            since,
            why: None,
        };
        self.asked.insert(cookie, asked);
        let (tag, errno) = (tag.into(), 0);
        self.asks.push(Share { id, tag, errno });
        None
    }

    fn may_ask(&mut self, slot: u32, now: Instant) -> bool {
        let more = now.duration_since(self.filled).as_secs_f64() * f64::from(PER_SECOND);
        if more >= 1.0 {
            let more = more as u32;
            self.may_ask = BURST.min(self.may_ask.saturating_add(more));
            self.took.retain(|_, took| {
                *took = took.saturating_sub(more);
                *took > 0
            });
            self.filled = now;
        }
        let took = self.took.entry(slot).or_default();
        let is_its_part = *took < self.may_ask || !guard!("across-rings-asked");
        let may = self.may_ask > 0 && is_its_part;
        *took += u32::from(may);
        self.may_ask -= u32::from(may);
        may
    }

    /// What the supervisor is to be asked since the last time.
    pub fn asks(&mut self) -> Vec<Share> {
        std::mem::take(&mut self.asks)
    }

    /// It has answered, whoever asked: it is there, or this is why not.
    pub fn answered(&mut self, tag: u16, id: u64, outcome: Result<(), Errno>) {
        match outcome {
            Ok(()) => self.asked.retain(|_, it| (it.tag, it.id) != (tag, id)),
            Err(why) => {
                let of = self.asked.values_mut();
                for asked in of.filter(|it| (it.tag, it.id) == (tag, id)) {
                    asked.why.get_or_insert(why);
                }
            }
        }
    }

    /// The other side's program has that of a connection of which this side is not told yet, or which has
    /// not come here.
    pub fn other_is_early(&mut self, tag: u16, body: HasMemory) {
        let of_one = self.early.range((tag, 0)..=(tag, u64::MAX));
        if self.early.len() < EARLY && of_one.take(EARLY_OF_ONE).count() < EARLY_OF_ONE {
            self.early.insert((tag, body.id), body);
        }
    }

    /// What it said, if it was so; it is no more.
    pub fn other_was_early(&mut self, tag: u16, id: u64) -> Option<HasMemory> {
        self.early.remove(&(tag, id))
    }

    /// Whether it is known what came of it.
    pub fn is_told(&self, cookie: u64) -> bool {
        let asked = self.asked.get(&cookie);
        asked.is_none_or(|asked| asked.why.is_some())
    }

    /// Whether anybody waits.
    pub fn is_awaited(&self) -> bool {
        self.asked.values().any(|asked| asked.why.is_none())
    }

    /// Who waits too long is told.
    pub fn tick(&mut self) {
        let all = self.asked.values_mut();
        for asked in all.filter(|it| it.since.elapsed() >= PATIENCE) {
            asked.why.get_or_insert(Errno::OPNOTSUPP);
        }
    }

    /// Forgets those whose socket does not live.
    pub fn retain(&mut self, lives: impl Fn(u64) -> bool) {
        self.asked.retain(|cookie, _| lives(*cookie));
        self.came.retain(|_, cookie| lives(*cookie));
        // Of what came its number is known; of what began here it is the cookie. Of others nothing is known, and
        // they are few.
        let came = &self.came;
        let is_known = |it: &(u16, u64)| came.contains_key(it) || lives(it.1);
        if self.early.len() >= EARLY_OF_ONE / 2 {
            self.early.retain(|it, _| is_known(it));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(id: u64) -> HasMemory {
        HasMemory {
            id,
            cookie: 1,
            inode: 2,
            reserved: 0,
        }
    }

    #[test]
    fn who_asks_is_told_once_and_not_by_anothers_answer() {
        let mut memory = Shares::default();
        assert_eq!(memory.ask((1, true), 7, (1, 70)), None);
        assert_eq!(
            memory.ask((1, true), 7, (1, 70)),
            None,
            "nothing is known yet"
        );
        assert_eq!(memory.asks().len(), 1);
        memory.answered(2, 70, Err(Errno::NOBUFS));
        assert!(!memory.is_told(7));
        memory.answered(1, 70, Err(Errno::NOBUFS));
        assert!(memory.is_told(7));
        assert_eq!(memory.ask((1, true), 7, (1, 70)), Some(Errno::NOBUFS));
        assert!(!memory.is_awaited());
        memory.ask((1, true), 9, (1, 90));
        memory.answered(1, 90, Ok(()));
        assert!(memory.is_told(9) && !memory.is_awaited(), "it is there");
        memory.ask((1, true), 8, (1, 80));
        assert!(memory.is_awaited());
        memory.retain(|cookie| cookie != 8);
        assert!(!memory.is_awaited());
        memory.asks();
        let full = memory.ask((1, false), 10, (1, 100));
        assert_eq!((full, memory.asks().len()), (Some(Errno::NOBUFS), 0));
    }

    /// Whether it has come here by then or not, and as many as may.
    #[test]
    fn that_the_other_side_has_it_is_kept_until_this_side_does() {
        let mut memory = Shares::default();
        memory.other_is_early(1, shared(70));
        memory.came(1, 70, 7);
        memory.retain(|cookie| cookie == 7);
        assert!(
            memory.other_was_early(2, 70).is_none(),
            "another agreement's"
        );
        let mut was = |id| memory.other_was_early(1, id).is_some();
        assert!(was(70) && !was(70));
        memory.came(1, 71, 8);
        memory.other_is_early(1, shared(71));
        for id in 1000..2 * EARLY as u64 {
            memory.other_is_early(1, shared(id));
        }
        assert_eq!(memory.early.len(), EARLY_OF_ONE);
        // Nor has one agreement what is others'.
        memory.other_is_early(2, shared(3));
        assert!(memory.other_was_early(2, 3).is_some());
        // Those of which something is known here stay.
        memory.retain(|cookie| [8, 2000].contains(&cookie));
        assert_eq!(memory.early.len(), 2);
        let mut was = |id| memory.other_was_early(1, id).is_some();
        assert!(was(71) && was(2000));
    }

    #[test]
    fn who_asks_without_end_is_not_heard_out_and_leaves_as_much_to_others() {
        let mut memory = Shares::default();
        // None come anew meanwhile.
        memory.filled += Duration::from_secs(3600);
        let mut asks = |slot: u32, from: u64| {
            for cookie in from..from + 2 * u64::from(BURST) {
                memory.ask((slot, true), cookie, (1, cookie));
            }
            memory.asks().len() as u32
        };
        let parts = [asks(1, 0), asks(2, 1_000)];
        assert_eq!(parts, [BURST / 2, BURST / 4]);
        memory.filled = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        assert_eq!(memory.ask((1, true), 9_999, (1, 9_999)), None);
    }
}
