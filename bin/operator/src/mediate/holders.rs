//! Who has a port that a program wants: a socket that is closed has none, and nobody tells that it is. Of what was accepted
//! from across an agreement the kernel goes through all of the other side's sockets for each. So those alone are
//! asked of that are in the way, some at a time, and the call waits until all are known to be closed, or one to live.

use super::*;

/// So long it is asked about them at once.
const ASKED: Duration = Duration::from_millis(10);
/// So many at a time: one that lives is enough.
const FEW: usize = 8;
/// The next are asked of after as long as that took, and after so long at most. Each that is closed is asked of once:
/// whoever calls then has half of the time. Whose call fails may call as often as it likes: those of its endpoint wait so many times
/// what it took.
const PAUSE_TIMES_IN_VAIN: u32 = 10;
const PAUSE: Duration = Duration::from_secs(1);

/// Those that are in the way of who wants a port.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Holders {
    /// It wants no certain one.
    None,
    /// They are closed.
    Gone,
    /// One of them is not.
    Live,
    /// It waits to be told.
    Unknown,
}

/// Whose turn it is.
#[derive(Default)]
pub(in crate::mediate) struct Asking {
    /// From when on it is asked again; of an endpoint whose call failed.
    pub(super) after: Option<Instant>,
    pub(super) in_vain: BTreeMap<u32, Instant>,
    /// Of whose calls one went on last: of another's endpoint the next does.
    pub(super) last: u32,
    /// Where a call waits that goes on now, and its number: many may wait at one socket.
    pub(super) turn: Option<(u64, u64)>,
}

impl Asking {
    fn is_due(&self, slot: u32) -> bool {
        self.due(slot).is_none_or(|due| due <= Instant::now())
    }

    fn due(&self, slot: u32) -> Option<Instant> {
        let in_vain = self.in_vain.get(&slot).copied();
        self.after
            .max(in_vain.filter(|_| guard!("circuits-port-in-vain")))
    }

    pub(super) fn took(&mut self, took: Duration, of_who_fails: Option<u32>) {
        let least = Duration::from_millis(1);
        let now = Instant::now();
        self.after = Some(now + took.clamp(least, PAUSE));
        self.in_vain.retain(|_, due| *due > now);
        if let Some(slot) = of_who_fails {
            let pause = (PAUSE_TIMES_IN_VAIN * took).clamp(least, PAUSE);
            self.in_vain.insert(slot, now + pause);
        }
    }
}

impl Mediator {
    /// Whether those live that keep a socket from the port of this address: what is closed is forgotten.
    pub(super) fn who_holds(&mut self, cookie: u64, address: &[u8]) -> Holders {
        let is_here = |it: &circuit::Socket| it.inode() == 0;
        let Some(first) = self.table.in_the_way(cookie, address).next() else {
            return Holders::None;
        };
        let is_far = !is_here(first);
        // Who waits has its turn before one that comes, and nobody goes through them all before that.
        let waits = self.waits.any(Why::Port) && self.asking.turn.is_none_or(|it| it.0 != cookie);
        let slot = self.slot_at(cookie);
        let waits = (waits || !self.asking.is_due(slot)) && guard!("circuits-port-turns");
        if is_far && waits {
            return Holders::Unknown;
        }
        if self.table.in_the_way(cookie, address).any(is_here) {
            self.sweeps();
        }
        let all: Vec<_> = self.table.in_the_way(cookie, address).copied().collect();
        if all.is_empty() {
            return Holders::Gone;
        }
        if all.iter().any(is_here) || !guard!("circuits-port-holders") {
            return Holders::Live;
        }
        if waits {
            return Holders::Unknown;
        }
        let (began, mut closed, mut lives) = (Instant::now(), BTreeSet::new(), false);
        for some in all.chunks(FEW) {
            self.beats();
            let found = self.closed_far(some);
            lives = found.len() < some.len();
            closed.extend(found);
            if lives || began.elapsed() >= ASKED {
                break;
            }
        }
        self.keeps(|cookie| !closed.contains(&cookie));
        self.write();
        self.count();
        self.asking.took(began.elapsed(), lives.then_some(slot));
        match lives {
            true => Holders::Live,
            false if closed.len() == all.len() => Holders::Gone,
            false => Holders::Unknown,
        }
    }

    /// Those of these that are closed and that no meter carries, which were accepted from across agreements.
    fn closed_far(&self, all: &[circuit::Socket]) -> BTreeSet<u64> {
        let live = self.living_far(all);
        let closed = all.iter().filter(|it| !live.contains_key(&it.cookie()));
        let mut carried = BTreeSet::new();
        if closed.clone().any(|it| it.carrier().is_metered()) {
            let mut here = BTreeSet::new();
            // A listing may pass over some while others come and go: twice it does not.
            for _ in 0..2 {
                match self.living() {
                    Some(more) => here.extend(more.into_keys()),
                    None => return BTreeSet::new(),
                }
            }
            carried = self.carried(&here);
        }
        let closed = closed.map(circuit::Socket::cookie);
        closed.filter(|it| !carried.contains(it)).collect()
    }

    /// One of the calls goes on that wait for that, if it is time.
    pub(super) fn holders_tick(&mut self, find: Find<'_>) {
        if !self.waits.any(Why::Port) {
            return;
        }
        let Some((slot, number, at)) = self.next_holders() else {
            return;
        };
        self.asking.last = slot;
        self.asking.turn = Some((at, number));
        self.table.stir(at);
        // In a turn of its own.
        let _ = self.swept();
        self.wake(Also::Nobody, find);
        self.asking.turn = None;
    }

    /// Of each endpoint in turns the call that waits longest, if it is time: its slot, its number, and where it waits.
    pub(super) fn next_holders(&self) -> Option<(u32, u64, u64)> {
        let all = self.waits.sockets(Why::Port).into_iter();
        let all = all.filter_map(|at| {
            let slot = self.slot_at(at);
            Some((slot, self.waits.first(at, Why::Port)?, at))
        });
        let all = all.filter(|(slot, ..)| self.asking.is_due(*slot));
        all.min_by_key(|(slot, number, _)| (*slot <= self.asking.last, *slot, *number))
    }

    fn slot_at(&self, at: u64) -> u32 {
        let socket = self.table.socket(at);
        socket.map_or(0, circuit::Socket::endpoint)
    }

    /// When that is.
    pub(super) fn holders_sleep(&self) -> Option<Duration> {
        let now = Instant::now();
        let all = self.waits.sockets(Why::Port).into_iter();
        let due = all.map(|at| self.asking.due(self.slot_at(at)).unwrap_or(now));
        Some(due.min()?.saturating_duration_since(now))
    }
}
