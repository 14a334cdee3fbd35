//! Calls that wait for another's, found by what they wait for: one that is done looks at those
//! alone that it may have let go on, however many wait elsewhere.

use guard::guard;
use notify::Notification;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::{Duration, Instant};

/// Sockets at which somebody was passed, of both kinds.
const PASSED: usize = 4096;
/// Who comes again after a signal so long after its time was over at most had all of it: signals may come in step with it.
pub const GRACE: Duration = Duration::from_millis(100);

/// A call that waits for another's.
#[derive(Clone, Copy)]
pub struct Waits {
    /// Whose program's.
    pub program: u32,
    /// Where it is noted.
    pub note: u16,
    /// The call.
    pub call: Notification,
    /// The cookie of the socket that it waits at.
    pub at: u64,
    /// For what.
    pub why: Why,
    /// The cookie of its own socket, of one that asks to be connected.
    pub own: u64,
    /// When it is told that nothing came (SO_RCVTIMEO, SO_SNDTIMEO; or as TCP gives up), and what.
    pub until: Option<(Instant, Errno)>,
}

impl Waits {
    /// Until when the same call waits that comes after a signal has ended this one (at a socket, and of one that is to be connected);
    /// `until`: by itself. Whether the kernel began it again or its program did nobody tells: with a limit of its own
    /// (SO_RCVTIMEO, SO_SNDTIMEO), which would else begin anew with each signal, it has what is left of that, if anything is.
    pub fn left_of(
        &self,
        again: &Notification,
        (at, own): (u64, u64),
        until: Option<(Instant, Errno)>,
        now: Instant,
    ) -> Option<(Instant, Errno)> {
        let as_tcp = |it: &(Instant, Errno)| it.1 == Errno::TIMEDOUT;
        let is_same = match until {
            Some(it) if as_tcp(&it) => own != 0 && self.own == own,
            _ => {
                self.call.is_alike(again)
                    && (self.at, self.own) == (at, own)
                    && guard!("circuits-limited-signal")
            }
        };
        let left = self.until.zip(until).map(|(before, _)| before);
        let goes_on = |it: &(Instant, Errno)| {
            let is_its = until.is_some_and(|(_, errno)| errno == it.1);
            is_same && is_its && (as_tcp(it) || it.0 + GRACE > now)
        };
        left.filter(goes_on).or(until)
    }
}

/// Calls that a signal had ended as their time was over, by their threads.
#[derive(Default)]
pub struct Late(BTreeMap<u32, (Notification, Instant)>);

impl Late {
    /// Nobody heard that this one's time was over, at that time.
    pub fn ended(&mut self, call: &Notification, over: Instant, now: Instant) {
        self.0.retain(|_, (_, over)| *over + GRACE > now);
        if self.0.len() < PASSED && call.thread != 0 && guard!("circuits-limit-over") {
            self.0.insert(call.thread, (*call, over));
        }
    }

    /// When its time was over, of one that is the same and comes just now.
    pub fn of(&mut self, again: &Notification, now: Instant) -> Option<Instant> {
        let (call, over) = self.0.remove(&again.thread)?;
        (call.is_alike(again) && over + GRACE > now).then_some(over)
    }
}

/// Binds that were done just now, by their sockets: a signal may have kept the word of it from the program, and the same bind comes
/// again, made by the kernel or by the program.
#[derive(Default)]
pub struct Binds(BTreeMap<u64, Done>);

/// One: by which thread, to which address, and when.
type Done = (u32, Vec<u8>, Instant);

impl Binds {
    /// A thread has bound a socket to this address.
    pub fn done(&mut self, thread: u32, cookie: u64, address: &[u8], now: Instant) {
        if self.0.len() >= PASSED {
            self.0.retain(|_, (.., at)| *at + GRACE > now);
        }
        if self.0.len() < PASSED && thread != 0 && guard!("circuits-bound-again") {
            self.0.insert(cookie, (thread, address.to_vec(), now));
        }
    }

    /// Whether the same was done just now.
    pub fn is_again(&self, thread: u32, cookie: u64, address: &[u8], now: Instant) -> bool {
        let done = self.0.get(&cookie);
        done.is_some_and(|(by, to, at)| *by == thread && to == address && *at + GRACE > now)
    }

    /// Something else is done by that socket: its program knows that it is bound.
    pub fn goes_on(&mut self, cookie: u64) {
        self.0.remove(&cookie);
    }
}

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// Somebody to accept.
    Accept,
    /// Room in a listener's queue.
    Room,
    /// A proxy to connect.
    Relay,
    /// The other side of an agreement.
    Cross,
    /// A meter.
    Meter,
    /// Memory that another tenant's program may have too.
    Memory,
    /// To be told whether those live that have its port.
    Port,
}

/// Where one waits, for what, and the how many-th of all it is.
pub type Key = (u64, Why, u64);

/// Whose turn it is that comes to wait again.
#[derive(Clone, Copy, Debug)]
pub enum Turn {
    /// Its own of before, if it waits for the same.
    Of(Key),
    /// That number's, whatever it waits for: an operator before noted it.
    Left(u64),
}

/// All of a compartment, at each socket the first first.
#[derive(Default)]
pub struct Waiting {
    all: BTreeMap<Key, Waits>,
    by_why: BTreeSet<(Why, u64, u64)>,
    due: BTreeSet<(Instant, Key)>,
    /// Where a thread waits.
    threads: BTreeMap<u32, Key>,
    next: u64,
    /// Sockets at which one that could not wait went before those that do, of the tenant's own or (`true`) of another's.
    passed: BTreeSet<(u64, bool)>,
}

impl Waiting {
    /// Numbers below this are turns of before: of calls that an operator before left.
    pub fn begin_at(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    /// One more, after those that wait there; or in its turn of before.
    pub fn push(&mut self, waits: Waits, turn: Option<Turn>) {
        let of = match turn {
            Some(Turn::Of((at, why, number))) => {
                let is_same = (at, why) == (waits.at, waits.why);
                (is_same && guard!("circuits-keeps-turn")).then_some(number)
            }
            Some(Turn::Left(number)) => {
                (number < self.next && guard!("circuits-left-turn")).then_some(number)
            }
            None => None,
        };
        let is_free = |number: &u64| !self.all.contains_key(&(waits.at, waits.why, *number));
        let same = of.filter(is_free);
        let number = same.unwrap_or(self.next);
        let key = (waits.at, waits.why, number);
        self.by_why.insert((waits.why, waits.at, number));
        self.due.extend(waits.until.map(|(until, _)| (until, key)));
        self.threads.insert(waits.call.thread, key);
        self.all.insert(key, waits);
        self.next += u64::from(same.is_none());
    }

    /// The number of the next that comes to wait.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The number of the first at a socket that waits for this.
    pub fn first(&self, at: u64, why: Why) -> Option<u64> {
        let mut range = self.all.range((at, why, 0)..=(at, why, u64::MAX));
        range.next().map(|((.., number), _)| *number)
    }

    /// What is waited for at a socket. Bound: its kinds.
    pub fn whys(&self, at: u64) -> Vec<Why> {
        WHYS.into_iter()
            .filter(|why| self.first(at, *why).is_some())
            .collect()
    }

    /// One waits no more.
    pub fn remove(&mut self, at: u64, why: Why, number: u64) -> Option<Waits> {
        let waits = self.all.remove(&(at, why, number))?;
        self.by_why.remove(&(why, at, number));
        if let Some((until, _)) = waits.until {
            self.due.remove(&(until, (at, why, number)));
        }
        let thread = waits.call.thread;
        if self.threads.get(&thread) == Some(&(at, why, number)) {
            self.threads.remove(&thread);
        }
        Some(waits)
    }

    /// What a thread waits for.
    pub fn of(&self, thread: u32) -> Option<&Waits> {
        self.all.get(self.threads.get(&thread)?)
    }

    /// What a thread waited for before this call, and where: it has one at a time, so a signal has ended that
    /// one. It waits no more.
    pub fn ended_by(&mut self, call: &Notification) -> Option<(Key, Waits)> {
        // Who has no number here is nobody in particular.
        let (at, why, number) = *self
            .threads
            .get(&call.thread)
            .filter(|_| call.thread != 0)?;
        match guard!("circuits-ended-by") {
            true => Some(((at, why, number), self.remove(at, why, number)?)),
            false => None,
        }
    }

    /// Some of a program's, after one of its: none, where there are no more. Bound: all.
    pub fn some_of(&self, program: u32, after: Option<Key>, most: usize) -> Vec<(Key, u64)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = self.all.range((from, Bound::Unbounded));
        let of = range.filter(|(_, waits)| waits.program == program);
        of.take(most)
            .map(|(key, waits)| (*key, waits.call.id))
            .collect()
    }

    /// The sockets at which somebody waits for this.
    pub fn sockets(&self, why: Why) -> BTreeSet<u64> {
        let range = self.by_why.range((why, 0, 0)..=(why, u64::MAX, u64::MAX));
        range.map(|(_, at, _)| *at).collect()
    }

    /// The sockets at which somebody waits.
    pub fn all_sockets(&self) -> BTreeSet<u64> {
        self.all.keys().map(|(at, ..)| *at).collect()
    }

    /// Whether somebody waits for this.
    pub fn any(&self, why: Why) -> bool {
        let mut range = self.by_why.range((why, 0, 0)..=(why, u64::MAX, u64::MAX));
        range.next().is_some()
    }

    /// Whether somebody waits at a socket but this thread.
    pub fn any_at(&self, at: u64, but: u32) -> bool {
        let all = self.all.range((at, WHYS[0], 0)..);
        let mut of = all.take_while(|((of, ..), _)| *of == at);
        of.any(|(_, waits)| waits.call.thread != but)
    }

    /// One that cannot wait was let in where others wait for room: the first of them is let in as well, before another.
    pub fn passes(&mut self, at: u64, across: bool) {
        // Those at which nobody waits any more are forgotten as something changes there ([`Waiting::catches_up`]), or here:
        // whoever waits is passed again.
        if self.passed.len() >= PASSED {
            self.passed.clear();
        }
        if guard!("circuits-passed") {
            self.passed.insert((at, across));
        }
    }

    /// Whether the first who waits is let in as one was that could not wait.
    pub fn is_passed(&self, at: u64, across: bool) -> bool {
        self.passed.contains(&(at, across))
    }

    /// It was let in, or nobody waits there.
    pub fn catches_up(&mut self, at: u64, across: bool) {
        self.passed.remove(&(at, across));
    }

    /// When the first has waited enough.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(until, _)| *until)
    }

    /// Those who have waited enough: they do no more.
    pub fn overdue(&mut self, now: Instant) -> Vec<Waits> {
        let due = self.due.iter().take_while(|(until, _)| *until <= now);
        let keys: Vec<Key> = due.map(|(_, key)| *key).collect();
        self.remove_all(keys)
    }

    /// Those of whom that is said wait no more. Bound: all.
    pub fn extract_if(&mut self, is_one: impl Fn(&Waits) -> bool) -> Vec<Waits> {
        let all = self.all.iter().filter(|(_, waits)| is_one(waits));
        let keys: Vec<Key> = all.map(|(key, _)| *key).collect();
        self.remove_all(keys)
    }

    fn remove_all(&mut self, keys: Vec<Key>) -> Vec<Waits> {
        let all = keys.into_iter();
        all.filter_map(|(at, why, number)| self.remove(at, why, number))
            .collect()
    }
}

/// All kinds.
const WHYS: [Why; 7] = [
    Why::Accept,
    Why::Room,
    Why::Relay,
    Why::Cross,
    Why::Meter,
    Why::Memory,
    Why::Port,
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn waits(note: u16, at: u64, why: Why, until: Option<Instant>) -> Waits {
        let until = until.map(|until| (until, Errno::AGAIN));
        Waits {
            program: 1,
            note,
            call: Notification {
                id: note.into(),
                thread: 1,
                number: 0,
                arch: 0,
                arguments: [0; 6],
            },
            at,
            why,
            own: 0,
            until,
        }
    }

    #[test]
    fn each_is_found_by_what_it_waits_for_and_the_first_is_first() {
        let mut waiting = Waiting::default();
        let now = Instant::now();
        let soon = now.checked_add(Duration::from_millis(1));
        waiting.push(waits(1, 7, Why::Room, None), None);
        waiting.push(waits(2, 7, Why::Accept, soon), None);
        waiting.push(waits(3, 7, Why::Room, None), None);
        waiting.push(waits(4, 9, Why::Relay, None), None);
        assert_eq!(waiting.whys(7), [Why::Accept, Why::Room]);
        assert_eq!(waiting.first(7, Why::Room), Some(0));
        assert_eq!(waiting.remove(7, Why::Room, 0).map(|it| it.note), Some(1));
        assert_eq!(waiting.first(7, Why::Room), Some(2));
        assert_eq!(waiting.sockets(Why::Relay), BTreeSet::from([9]));
        assert_eq!(waiting.all_sockets(), BTreeSet::from([7, 9]));
        // Who waited enough, and nobody else.
        assert_eq!(waiting.next_due(), soon);
        assert!(waiting.overdue(now).is_empty());
        let over = waiting.overdue(soon.unwrap());
        assert_eq!(over.iter().map(|it| it.note).collect::<Vec<_>>(), [2]);
        assert_eq!(waiting.next_due(), None);
        assert!(!waiting.any(Why::Accept) && waiting.any(Why::Room));
        assert_eq!(waiting.extract_if(|it| it.at == 7).len(), 1);
        assert!(!waiting.any_at(7, 0) && waiting.any_at(9, 0) && !waiting.any_at(9, 1));
    }

    #[test]
    fn a_thread_waits_for_one_thing_at_a_time() {
        let mut waiting = Waiting::default();
        let first = waits(1, 7, Why::Accept, None);
        let other = Waits {
            program: 2,
            call: Notification {
                thread: 2,
                ..first.call
            },
            ..waits(2, 7, Why::Accept, None)
        };
        for one in [first, other] {
            assert!(waiting.ended_by(&one.call).is_none());
            waiting.push(one, None);
        }
        let again = waits(3, 9, Why::Room, None);
        assert_eq!(waiting.ended_by(&again.call).map(|it| it.1.note), Some(1));
        waiting.push(again, None);
        assert_eq!(waiting.all_sockets(), BTreeSet::from([7, 9]));
        assert!(waiting.remove(9, Why::Room, 2).is_some());
        assert!(waiting.ended_by(&again.call).is_none(), "it went on");
        assert_eq!(waiting.ended_by(&other.call).map(|it| it.1.note), Some(2));
    }

    /// A signal has a call begin anew, and costs nobody the turn.
    #[test]
    fn who_comes_again_for_the_same_has_its_turn() {
        let mut waiting = Waiting::default();
        let of = |thread, why| {
            let it = waits(thread, 7, why, None);
            let call = Notification {
                thread: thread.into(),
                ..it.call
            };
            Waits { call, ..it }
        };
        for thread in 1..=3 {
            waiting.push(of(thread, Why::Room), None);
        }
        let again = of(1, Why::Room);
        let (before, _) = waiting.ended_by(&again.call).unwrap();
        waiting.push(again, Some(Turn::Of(before)));
        assert_eq!(waiting.first(7, Why::Room), Some(0));
        // For another thing it comes last.
        let (before, _) = waiting.ended_by(&again.call).unwrap();
        waiting.push(of(1, Why::Accept), Some(Turn::Of(before)));
        assert_eq!(waiting.first(7, Why::Room), Some(1));
        assert_eq!(waiting.first(7, Why::Accept), Some(3));
        waiting.push(of(4, Why::Room), None);
        assert_eq!(waiting.next(), 5);
    }

    /// Of several programs' those that came first are first, whichever is told of first; and before all that came since.
    #[test]
    fn who_waited_as_an_operator_died_has_its_turn() {
        let mut waiting = Waiting::default();
        waiting.begin_at(6);
        for (note, left) in [
            (1, Some(2)),
            (2, None),
            (3, Some(1)),
            (4, Some(2)),
            (5, Some(9)),
        ] {
            waiting.push(waits(note, 7, Why::Room, None), left.map(Turn::Left));
        }
        let mut order = Vec::new();
        while let Some(first) = waiting.first(7, Why::Room) {
            order.extend(
                waiting
                    .remove(7, Why::Room, first)
                    .map(|it| (first, it.note)),
            );
        }
        // Neither takes another's place, nor one of those to come.
        assert_eq!(order, [(1, 3), (2, 1), (6, 2), (7, 4), (8, 5)]);
    }

    /// Or a limit of its program's own would begin anew with each signal.
    #[test]
    fn who_comes_again_after_a_signal_has_what_is_left_of_its_time() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let with = |until| Waits {
            own: 3,
            until,
            ..waits(1, 7, Why::Room, None)
        };
        let again = with(None).call;
        let (early, late) = (now + second, now + 9 * second);
        for (before, by_itself, left) in [
            (Some(early), Some(late), early),
            // It was over just now.
            (Some(now), Some(late), now),
            // It was over: a new one.
            (now.checked_sub(GRACE), Some(late), late),
            (None, Some(late), late),
        ] {
            for errno in [Errno::AGAIN, Errno::INPROGRESS] {
                let with_limit = |it: Option<Instant>| it.map(|it| (it, errno));
                let one = with(with_limit(before));
                let told = one.left_of(&again, (7, 3), with_limit(by_itself), now);
                assert_eq!(told, Some((left, errno)));
                // At another socket it is another call, and so with other arguments.
                for at in [(8, 3), (7, 4)] {
                    assert_eq!(
                        one.left_of(&again, at, with_limit(by_itself), now),
                        with_limit(by_itself)
                    );
                }
                let other = Notification {
                    arguments: [9; 6],
                    ..again
                };
                assert_eq!(
                    one.left_of(&other, (7, 3), with_limit(by_itself), now),
                    with_limit(by_itself)
                );
                // It has no limit any more.
                assert_eq!(one.left_of(&again, (7, 3), None, now), None);
            }
        }
        // As TCP gives up, whatever it is called with.
        let tcp = |it| Some((it, Errno::TIMEDOUT));
        assert_eq!(
            with(tcp(early)).left_of(&again, (8, 3), tcp(late), now),
            tcp(early)
        );
        assert_eq!(
            with(tcp(early)).left_of(&again, (8, 4), tcp(late), now),
            tcp(late)
        );
    }

    /// Nobody is told of it, and the kernel begins the call again.
    #[test]
    fn who_was_ended_as_its_time_was_over_has_none_left() {
        let (now, call) = (Instant::now(), waits(1, 7, Why::Accept, None).call);
        let mut late = Late::default();
        late.ended(&call, now, now);
        assert_eq!(late.of(&call, now + GRACE / 2), Some(now));
        assert_eq!(late.of(&call, now + GRACE / 2), None, "once");
        late.ended(&call, now, now);
        assert_eq!(late.of(&call, now + GRACE), None, "its program begins anew");
        let other = Notification {
            arguments: [9; 6],
            ..call
        };
        late.ended(&call, now, now);
        assert_eq!(late.of(&other, now), None);
    }

    #[test]
    fn a_bind_that_was_done_is_known_when_it_comes_again() {
        let now = Instant::now();
        let mut bound = Binds::default();
        bound.done(1, 3, b"here", now);
        // What a handler binds meanwhile is another.
        bound.done(1, 4, b"there", now);
        for (thread, cookie, address, after, is_again) in [
            (1, 3, "here", GRACE / 2, true),
            (1, 4, "there", GRACE / 2, true),
            (1, 3, "there", GRACE / 2, false),
            (1, 5, "here", GRACE / 2, false),
            (2, 3, "here", GRACE / 2, false),
            (1, 3, "here", GRACE, false),
        ] {
            let told = bound.is_again(thread, cookie, address.as_bytes(), now + after);
            assert_eq!(told, is_again, "{thread} {cookie} {address} {after:?}");
        }
        bound.goes_on(3);
        assert!(!bound.is_again(1, 3, b"here", now) && bound.is_again(1, 4, b"there", now));
        for cookie in 1..100_000 {
            bound.done(1, cookie, b"here", now);
        }
        assert_eq!(bound.0.len(), PASSED);
        bound.done(1, 3, b"here", now + GRACE);
        assert_eq!(bound.0.len(), 1, "of long ago none is kept then");
    }

    /// Those at which nobody waits any more are none for ever, and keep nobody from being one.
    #[test]
    fn of_those_that_were_passed_so_many_are_known() {
        let mut waiting = Waiting::default();
        for at in 0..100_000 {
            waiting.passes(at, at % 2 == 0);
        }
        assert!(waiting.passed.len() <= PASSED && waiting.is_passed(99_999, false));
    }

    #[test]
    fn those_of_a_program_are_named_some_at_a_time() {
        let mut waiting = Waiting::default();
        for note in 0..10 {
            let program = u32::from(note % 2);
            let one = waits(note, u64::from(note % 3), Why::Accept, None);
            waiting.push(Waits { program, ..one }, None);
        }
        let (mut after, mut all) = (None, Vec::new());
        loop {
            let some = waiting.some_of(1, after, 2);
            all.extend(some.iter().map(|(_, id)| *id));
            match some.last() {
                Some((key, _)) => after = Some(*key),
                None => break,
            }
        }
        all.sort_unstable();
        assert_eq!(all, [1, 3, 5, 7, 9]);
    }
}
