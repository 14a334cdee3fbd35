//! Sockets of circuits are looked for in processes: what is allowed no more is cut by its operator,
//! which sees neither processes nor their descriptors until it is told where. A process of its own looks
//! (`search`), for a program can make who looks at it wait; then it is killed, and another looks at the others
//! first. The operator is told where somebody was not looked at: it asks more often then.

use super::*;
use crate::errands::calls::say_ended;
use crate::errands::search::{LONGEST, SEARCH, Says, Wanted};
use crate::errands::send;
use command::verbs::{Found, Seek, Sought};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::pipe::{PipeFlags, pipe_with};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{Read, Seek as _, Write};
use std::process::Child;
use std::time::{Duration, Instant};

/// What is said is heard so often.
const HEARD: Duration = Duration::from_millis(2);
/// Bytes that are heard at a time.
const TURN: usize = 16 << 10;
/// Who gets no further for so long is held up where it is.
const STILL: Duration = Duration::from_millis(300);
/// A process at which one was held up is looked at last for so long, and so many of a compartment are: the
/// oldest of more are looked at like others.
const PASSED_OVER: Duration = Duration::from_secs(60);
const MOST_PASSED_OVER: usize = 128;
/// With so many of a compartment that are killed and do not end nobody looks.
const HELD_UP: usize = 16;
/// And with so many nobody is chased: who is chased chooses what who chases it is held up by.
const CHASERS_HELD_UP: usize = 4;
/// With so many words that its operator has not taken yet nothing more is heard.
const BACKLOG: usize = 1024;
/// What waits in a pipe is heard in so many turns.
const TURNS: usize = 8;
/// The next of the same compartment begins so many times as long after its end, this long at most. Three
/// that are whole, and the rests between them, are less than a change of tables waits
/// (`operators::DECIDE_LIMIT`); twelve in which somebody was missed may be more.
const REST: u32 = 3;
const LONGEST_REST: Duration = Duration::from_secs(1);
/// And this long at least, where somebody was missed: perhaps nobody could look.
const LEAST_REST: Duration = Duration::from_millis(100);
/// Sockets of a compartment that are looked for at a time: it has no more.
const MOST: usize = 16_384;

/// A search for sockets of a compartment's circuits.
pub struct Hunt {
    /// Inodes of those that are looked for.
    wanted: BTreeSet<u64>,
    /// Of those that are to be looked for instead, as far as they are named.
    named: BTreeSet<u64>,
    /// It is to begin, or, while it goes on, to begin anew at its end.
    asked: bool,
    /// What who asked last calls it.
    number: u32,
    /// Somebody was not looked at.
    missed: bool,
    /// The next is not to begin before.
    rests: Option<Instant>,
    began: Option<Instant>,
}

/// Who looks.
struct Searcher {
    child: Child,
    out: File,
    /// What is not a whole line yet.
    said: Vec<u8>,
    /// The process that it looks at, and since when.
    at: u32,
    since: Instant,
    /// It is through with those, and chases.
    chases: bool,
    /// What who asked calls its search.
    number: u32,
}

/// Who ends, or is killed and is held up still.
struct Ending {
    compartment: u32,
    child: Child,
    /// It was so in a chase.
    chased: bool,
}

/// All that look, and those that were given up.
#[derive(Default)]
pub struct Searchers {
    /// By compartment.
    all: BTreeMap<u32, Searcher>,
    ending: Vec<Ending>,
    /// By compartment, what some were held up by, and when.
    passed_over: BTreeMap<u32, VecDeque<(u32, Instant)>>,
}

impl Hunt {
    fn new() -> Hunt {
        Hunt {
            wanted: BTreeSet::new(),
            named: BTreeSet::new(),
            asked: false,
            number: 0,
            missed: false,
            rests: None,
            began: None,
        }
    }

    /// These, once the last of them is named, and none of before: it may go on by now. Who names more than there
    /// can be, or names them without end, has a search after the other, and no more memory.
    fn seeks(&mut self, body: &Seek) {
        let room = MOST.saturating_sub(self.named.len());
        let count = room.min(body.count as usize);
        self.named.extend(body.inodes.iter().take(count));
        if body.last != 0 {
            (self.asked, self.number) = (true, body.last);
            match guard!("hunt-named") {
                true => self.wanted = std::mem::take(&mut self.named),
                false => self.wanted.append(&mut self.named),
            }
        }
    }

    /// Whether there is something to do now.
    fn is_due(&self) -> bool {
        let rests = self.rests.is_some_and(|until| Instant::now() < until);
        self.began.is_some() || self.asked && !rests
    }

    /// How long until there is something to do; none: nothing is asked.
    fn rests(&self) -> Option<Duration> {
        if self.began.is_some() {
            return Some(HEARD);
        }
        let until = self.rests.filter(|_| self.asked)?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    fn begins(&mut self) {
        if self.began.is_none() {
            self.began = Some(Instant::now());
            (self.asked, self.missed) = (false, false);
        }
    }

    fn is_late(&self) -> bool {
        self.began.is_some_and(|began| began.elapsed() > LONGEST)
    }

    /// Whether who looks is to be given up, and if so whether it is held up where it is. What it has not
    /// looked at by then is missed.
    fn is_given_up(&mut self, searcher: &Searcher) -> Option<bool> {
        let is_held_up = searcher.since.elapsed() > STILL && guard!("hunt-held-up");
        let is_given_up = is_held_up || self.is_late();
        self.missed |= is_given_up && guard!("hunt-missed");
        is_given_up.then_some(is_held_up)
    }

    /// It is over. Whether all that was asked for was looked for: else another begins.
    fn ends(&mut self) -> bool {
        let took = self.began.take().map(|began| began.elapsed());
        let mut rest = (took.unwrap_or_default() * REST).min(LONGEST_REST);
        if self.missed {
            rest = rest.max(LEAST_REST);
        }
        self.rests = Instant::now().checked_add(rest);
        if !self.asked {
            self.wanted.clear();
        }
        !self.asked
    }
}

impl Searcher {
    fn start(wanted: &Wanted) -> std::io::Result<Searcher> {
        let mut input = File::from(memfd_create("wanted", MemfdFlags::CLOEXEC)?);
        input.write_all(wanted.text().as_bytes())?;
        input.rewind()?;
        let (out, end) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&out, true)?;
        let child = send(SEARCH, input.into(), end.into())?;
        Ok(Searcher {
            child,
            out: out.into(),
            said: Vec::new(),
            at: 0,
            since: Instant::now(),
            chases: false,
            number: 0,
        })
    }

    /// What it has found since, and whether there may be more.
    fn hears(&mut self, missed: &mut bool) -> (Vec<Found>, bool) {
        let mut bytes = [0; TURN];
        let n = match self.out.read(&mut bytes) {
            Ok(n) => n,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                return (Vec::new(), true);
            }
            Err(_) => 0,
        };
        self.said
            .extend_from_slice(bytes.get(..n).unwrap_or_default());
        let whole = self.said.iter().rposition(|byte| *byte == b'\n');
        let whole: Vec<u8> = self.said.drain(..whole.map_or(0, |at| at + 1)).collect();
        let text = String::from_utf8_lossy(&whole);
        let mut found = Vec::new();
        for says in text.lines().filter_map(Says::of) {
            match says {
                Says::At(process) => (self.at, self.since) = (process, Instant::now()),
                Says::Missed(_) => *missed = true,
                Says::Ended(process) => say_ended(process),
                // Nobody whom it has looked at holds it up from now on.
                Says::Chases => {
                    (self.at, self.since, self.chases) = (0, Instant::now(), true);
                }
                Says::Found(inode, thread, number) => {
                    let is_of_chase = thread == 0 && number != 0 && guard!("hunt-which");
                    let number = if is_of_chase { self.number } else { number };
                    found.push(Found {
                        inode,
                        thread,
                        number,
                    });
                }
            }
        }
        (found, n > 0)
    }
}

impl Searchers {
    /// Somebody looks for these of a compartment; `false`: nobody does, for too many are held up, or no process can
    /// be had.
    fn begins(
        &mut self,
        compartment: u32,
        uid: u32,
        hunt: &Hunt,
        start: impl FnOnce(&Wanted) -> std::io::Result<Searcher>,
    ) -> bool {
        if self.held_up(compartment, false) >= HELD_UP && guard!("hunt-many-held-up") {
            return false;
        }
        let chasers = self.held_up(compartment, true);
        let late = self.passed_over.get(&compartment).into_iter().flatten();
        let wanted = Wanted {
            uid,
            chases: chasers < CHASERS_HELD_UP || !guard!("hunt-chasers-held-up"),
            late: late.map(|(at, _)| *at).collect(),
            inodes: hunt.wanted.clone(),
        };
        match start(&wanted) {
            Ok(mut searcher) => {
                searcher.number = hunt.number;
                self.all.insert(compartment, searcher);
                true
            }
            Err(error) => {
                confine::say!("supervisor: nobody looks for circuits' sockets: {error}");
                false
            }
        }
    }

    /// One of a compartment's is given up; where it is comes last for a while, if it is held up there.
    fn gives_up(&mut self, compartment: u32, is_held_up: bool) {
        if let Some(mut searcher) = self.all.remove(&compartment) {
            let _ = searcher.child.kill();
            let (at, chased) = (searcher.at, searcher.chases);
            self.ends(compartment, searcher.child, chased);
            if is_held_up && at != 0 {
                let passed_over = self.passed_over.entry(compartment).or_default();
                passed_over.push_back((at, Instant::now()));
            }
        }
    }

    fn ends(&mut self, compartment: u32, child: Child, chased: bool) {
        self.ending.push(Ending {
            compartment,
            child,
            chased,
        });
    }

    /// All are.
    pub fn end(&mut self) {
        while let Some((compartment, _)) = self.all.first_key_value() {
            self.gives_up(*compartment, false);
        }
    }

    /// A compartment's are another's.
    pub fn hands_on(&mut self, from: u32, to: u32) {
        self.gives_up(from, false);
        self.passed_over.remove(&from);
        let ending = self.ending.iter_mut().map(|it| &mut it.compartment);
        for of in ending.filter(|of| **of == from) {
            *of = to;
        }
    }

    /// Those of a compartment that are killed and do not end, in a chase or not.
    fn held_up(&self, compartment: u32, chased: bool) -> usize {
        let is_one = |it: &&Ending| it.compartment == compartment && it.chased == chased;
        self.ending.iter().filter(is_one).count()
    }

    /// Of those that are gone nothing is left.
    fn reap(&mut self) {
        let is_there = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        self.ending.retain_mut(|it| is_there(&mut it.child));
        let is_over = |(_, since): &(u32, Instant)| since.elapsed() > PASSED_OVER;
        self.passed_over.retain(|_, all| {
            while all.len() > MOST_PASSED_OVER || all.front().is_some_and(is_over) {
                all.pop_front();
            }
            !all.is_empty()
        });
    }
}

impl Supervisor {
    /// An operator wants to know who has these sockets.
    pub(super) fn seek(&mut self, compartment: u32, body: &Seek) {
        let Some(circuits) = self.circuits(compartment) else {
            return;
        };
        let hunt = circuits.hunt.get_or_insert_with(|| Box::new(Hunt::new()));
        hunt.seeks(body);
    }

    /// Goes on with what is looked for.
    pub fn go_on_hunting(&mut self) {
        self.searchers.reap();
        self.errands.reap();
        let begun = |c: &circuits::Circuits| c.hunt.as_ref().is_some_and(|h| h.began.is_some());
        let is_due = |c: &circuits::Circuits| c.hunt.as_ref().is_some_and(|h| h.is_due());
        let of = |id: &u32, is: &dyn Fn(&circuits::Circuits) -> bool| {
            let home = self.compartments.get(id);
            home.is_some_and(|home| home.circuits.as_deref().is_some_and(is))
        };
        // Whose operator is gone needs none: its successor looks itself what is still to be cut.
        let all = self.searchers.all.keys().filter(|id| !of(id, &begun));
        let over: Vec<u32> = all.copied().collect();
        let due = self.compartments.keys().filter(|id| of(id, &is_due));
        let due: Vec<u32> = due.copied().collect();
        for compartment in over {
            self.searchers.gives_up(compartment, false);
        }
        for compartment in due {
            self.hunt(compartment);
        }
    }

    /// When one goes on, or is to begin.
    pub fn next_hunt(&self, now: u64) -> Option<u64> {
        let circuits = self.compartments.values();
        let circuits = circuits.filter_map(|home| home.circuits.as_deref());
        let rests = circuits.filter_map(|circuits| circuits.hunt.as_ref()?.rests());
        let is_awaited = !self.searchers.ending.is_empty() || self.errands.is_awaited();
        let ending = is_awaited.then_some(LONGEST_REST);
        let least = rests.chain(ending).min()?;
        Some(now + least.as_nanos() as u64)
    }

    fn hunt(&mut self, compartment: u32) {
        let Some(circuits) = self.circuits(compartment) else {
            return;
        };
        let Some(mut hunt) = circuits.hunt.take() else {
            return;
        };
        let (operator, uid) = (circuits.operator, circuits.uid());
        let Some(operator) = operator else {
            return;
        };
        hunt.begins();
        let link = self.workers.get(&operator).and_then(|it| it.link.as_ref());
        let waits = link.is_some_and(|link| link.backlog() > BACKLOG);
        let (found, goes_on) = self.searches(compartment, &mut hunt, uid, waits);
        for body in found {
            self.tell(operator, &Message::new(0, &body), Vec::new());
        }
        if !goes_on && hunt.ends() {
            let body = Sought {
                number: hunt.number,
                missed: hunt.missed.into(),
            };
            self.tell(operator, &Message::new(0, &body), Vec::new());
        }
        if let Some(circuits) = self.circuits(compartment) {
            circuits.hunt = Some(hunt);
        }
    }

    /// What is found, and whether there is more to be found.
    fn searches(
        &mut self,
        compartment: u32,
        hunt: &mut Hunt,
        uid: u32,
        waits: bool,
    ) -> (Vec<Found>, bool) {
        let searchers = &mut self.searchers;
        let is_late = hunt.is_late();
        let Some(searcher) = searchers.all.get_mut(&compartment) else {
            let goes_on = !is_late && searchers.begins(compartment, uid, hunt, Searcher::start);
            hunt.missed |= !goes_on;
            return (Vec::new(), goes_on);
        };
        if waits && !is_late {
            // It waits for us, at a full pipe.
            searcher.since = Instant::now();
            return (Vec::new(), true);
        }
        let (mut found, mut more) = searcher.hears(&mut hunt.missed);
        // Of one that is given up all that it found counts.
        for _ in 1..if is_late { TURNS } else { 1 } {
            let (others, goes_on) = searcher.hears(&mut hunt.missed);
            found.extend(others);
            more &= goes_on;
        }
        if !more {
            let mut searcher = searchers.all.remove(&compartment);
            // It ends now, having said all.
            if let Some(searcher) = searcher.take() {
                searchers.ends(compartment, searcher.child, searcher.chases);
            }
            return (found, false);
        }
        if let Some(is_held_up) = hunt.is_given_up(searcher) {
            searchers.gives_up(compartment, is_held_up);
        }
        (found, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seek(last: u32, from: u64) -> Seek {
        let mut body = Seek {
            count: 60,
            last,
            ..Seek::default()
        };
        for (n, inode) in body.inodes.iter_mut().enumerate() {
            *inode = from + n as u64;
        }
        body
    }

    #[test]
    fn who_names_without_end_has_no_more_memory_and_no_more_searches() {
        let mut hunt = Hunt::new();
        for n in 0..1000 {
            hunt.seeks(&seek(0, n * 60));
        }
        assert_eq!((hunt.wanted.len(), hunt.named.len()), (0, MOST));
        assert!(!hunt.is_due() && hunt.rests().is_none());
        hunt.seeks(&seek(1, 0));
        assert!(hunt.is_due());
        hunt.begins();
        let began = hunt.began;
        hunt.seeks(&seek(7, 0));
        assert_eq!(hunt.wanted.len(), 60, "those of before may go on by now");
        hunt.begins();
        assert_eq!(hunt.began, began, "one after the other");
        std::thread::sleep(Duration::from_millis(20));
        assert!(!hunt.ends(), "it was asked again meanwhile");
        // It rests before it does.
        assert!(!hunt.is_due());
        let rests = hunt.rests().unwrap();
        assert!(rests > Duration::from_millis(40), "{rests:?}");
        hunt.rests = Some(Instant::now());
        assert!(hunt.is_due());
        hunt.begins();
        assert!(hunt.ends() && hunt.wanted.is_empty());
        assert_eq!(hunt.number, 7, "who asked last is answered");
        assert!(!hunt.is_due() && hunt.rests().is_none());
    }

    /// One, and by which it says something.
    fn searcher() -> (Searcher, rustix::fd::OwnedFd) {
        let (out, end) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let searcher = Searcher {
            child: std::process::Command::new("true").spawn().unwrap(),
            out: out.into(),
            said: Vec::new(),
            at: 0,
            since: Instant::now(),
            chases: false,
            number: 0,
        };
        (searcher, end)
    }

    #[test]
    fn nobody_looks_where_many_are_held_up_or_no_process_is_to_be_had() {
        let mut searchers = Searchers::default();
        let mut hunt = Hunt::new();
        hunt.wanted.insert(17);
        let begins = |searchers: &mut Searchers, compartment| {
            searchers.begins(compartment, 9, &hunt, |wanted| {
                assert_eq!((wanted.uid, wanted.inodes.len()), (9, 1));
                Ok(searcher().0)
            })
        };
        assert!(begins(&mut searchers, 1));
        // Killed, and not gone: of another they are none of this one's.
        for _ in 0..HELD_UP {
            assert!(begins(&mut searchers, 1));
            searchers.gives_up(1, true);
        }
        assert!(!begins(&mut searchers, 1) && begins(&mut searchers, 2));
        let none = |_: &Wanted| Err(std::io::Error::from(rustix::io::Errno::AGAIN));
        assert!(!searchers.begins(3, 9, &hunt, none));
        assert!(!searchers.all.contains_key(&3));
        for ending in &mut searchers.ending {
            let _ = ending.child.wait();
        }
        searchers.reap();
        assert!(begins(&mut searchers, 1));
        searchers.end();
    }

    /// Datagrams may be linked again since.
    #[test]
    fn what_a_chase_has_cut_is_said_with_the_search_that_it_was_of() {
        let (mut searchers, mut hunt) = (Searchers::default(), Hunt::new());
        hunt.number = 7;
        let begins = searchers.begins(1, 9, &hunt, |_| {
            let (searcher, end) = searcher();
            File::from(end).write_all(b"5 17 1\nchases\n5 0 1\n6 0 0\n")?;
            Ok(searcher)
        });
        assert!(begins);
        hunt.number = 8;
        let found = searchers.all.get_mut(&1).unwrap().hears(&mut false).0;
        let found: Vec<_> = found.iter().map(|it| (it.thread, it.number)).collect();
        assert_eq!(found, [(17, 1), (0, 7), (0, 0)]);
        searchers.end();
        let _ = searchers.ending[0].child.wait();
    }

    #[test]
    fn who_is_held_up_in_a_chase_keeps_nobody_from_being_looked_for() {
        let (mut searchers, hunt) = (Searchers::default(), Hunt::new());
        let mut chases = 0;
        for _ in 0..HELD_UP + 2 {
            let begins = searchers.begins(1, 9, &hunt, |wanted| {
                chases += usize::from(wanted.chases);
                let (mut searcher, end) = searcher();
                File::from(end).write_all(b"17\nchases\n")?;
                assert!(searcher.hears(&mut false).1);
                Ok(searcher)
            });
            assert!(begins);
            searchers.gives_up(1, true);
        }
        assert_eq!(chases, CHASERS_HELD_UP);
        // No process is to blame.
        assert!(searchers.passed_over.is_empty());
        for ending in &mut searchers.ending {
            let _ = ending.child.wait();
        }
    }

    #[test]
    fn a_search_in_which_somebody_was_missed_says_so_and_rests() {
        let (mut searcher, end) = searcher();
        let ago = |time: Duration| Instant::now().checked_sub(time).unwrap();
        let mut hunt = Hunt::new();
        hunt.begins();
        assert!(hunt.is_given_up(&searcher).is_none() && !hunt.missed);
        // It is held up; its time is over.
        searcher.since = ago(STILL * 2);
        assert!(hunt.is_given_up(&searcher) == Some(true) && hunt.missed);
        hunt.missed = false;
        (searcher.since, hunt.began) = (Instant::now(), Some(ago(LONGEST * 2)));
        assert!(hunt.is_given_up(&searcher) == Some(false) && hunt.missed);
        // It says so itself.
        hunt.missed = false;
        hunt.began = Some(Instant::now());
        File::from(end).write_all(b"17\nmissed 3\n").unwrap();
        assert!(searcher.hears(&mut hunt.missed).1 && hunt.missed && searcher.at == 17);
        hunt.asked = true;
        hunt.ends();
        assert!(hunt.rests().unwrap() > LEAST_REST / 2);
        let _ = searcher.child.wait();
    }
}
