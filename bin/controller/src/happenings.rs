//! What happened: the last of it kept, all of it told to whoever listens.

use crate::pages::{cause, kind_name, kind_of, port_closed};
use crate::world::World;
use api::{Death, Happening};
use command::verbs::{Event, FABRIC, SUPERVISOR};
use guard::guard;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use telemetry::drops::DropReason;
use telemetry::recorder::EventKind;
use tokio::sync::broadcast;

/// Kept, of all together: who makes most loses its oldest, so that nobody crowds out
/// what happened to others.
const MOST: usize = 4096;

/// The log.
pub struct Happenings {
    /// Something happened after which what exists may not be what was made.
    doubt: AtomicBool,
    kept: Mutex<Kept>,
    told: broadcast::Sender<Happening>,
}

/// What is kept: by whom it happened to, numbered in order of time.
#[derive(Default)]
struct Kept {
    next: u64,
    count: usize,
    of: BTreeMap<u32, VecDeque<(u64, Happening)>>,
    /// By kind, those that are no longer kept as well.
    counts: BTreeMap<String, u64>,
}

impl Kept {
    fn push(&mut self, target: u32, happening: Happening) {
        match self.counts.get_mut(&happening.kind) {
            Some(count) => *count += 1,
            None => drop(self.counts.insert(happening.kind.clone(), 1)),
        }
        if self.count >= MOST {
            let longest = if guard!("history-each") {
                self.of.values_mut().max_by_key(|ring| ring.len())
            } else {
                self.of
                    .values_mut()
                    .min_by_key(|ring| ring.front().map_or(u64::MAX, |(number, _)| *number))
            };
            if longest.is_some_and(|ring| ring.pop_front().is_some()) {
                self.count -= 1;
            }
            self.of.retain(|_, ring| !ring.is_empty());
        }
        self.of
            .entry(target)
            .or_default()
            .push_back((self.next, happening));
        self.next += 1;
        self.count += 1;
    }

    /// All, the oldest first.
    fn in_order(&self) -> Vec<&Happening> {
        let mut all: Vec<&(u64, Happening)> = self.of.values().flatten().collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, happening)| happening).collect()
    }
}

impl Happenings {
    /// An empty log.
    pub fn new() -> Happenings {
        Happenings {
            doubt: AtomicBool::new(false),
            kept: Mutex::default(),
            told: broadcast::channel(256).0,
        }
    }

    /// The last so many, oldest first, and from then on as it happens: nothing between
    /// is lost or told twice. Who is too slow loses the oldest.
    pub fn listen(&self, last: usize) -> (Vec<Happening>, broadcast::Receiver<Happening>) {
        let kept = self.kept();
        let all = kept.in_order();
        let before = all.len().saturating_sub(last);
        let last = all.into_iter().skip(before).cloned().collect();
        (last, self.told.subscribe())
    }

    /// The supervisor's event, with the names that the world gives it.
    pub fn heard(&self, event: Event, world: &World) {
        if event.kind == EventKind::PortClosed as u32 {
            self.doubt.store(true, Ordering::Relaxed);
        }
        self.note(event.target, named(&event, world));
    }

    /// Whether, since the last call, something happened after which what exists may
    /// not be what was made: a port was closed, a step left something behind.
    pub fn take_doubt(&self) -> bool {
        self.doubt.swap(false, Ordering::Relaxed)
    }

    /// What could not be done and was left; the next apply looks at what exists.
    pub fn left_behind(&self, message: String) {
        self.doubt.store(true, Ordering::Relaxed);
        self.say("left-behind", message);
    }

    /// What is installed is not what was applied, or cannot be proved; the next apply
    /// looks at what exists.
    pub fn drifted(&self, message: String) {
        self.doubt.store(true, Ordering::Relaxed);
        self.say("drift", message);
    }

    /// Something of our own.
    pub fn say(&self, kind: &str, message: String) {
        self.note(
            FABRIC,
            Happening {
                time_ms: now_ms(),
                kind: kind.into(),
                target: "controller".into(),
                message,
                ..Happening::default()
            },
        );
    }

    /// How many there were of each kind since this process began.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.kept().counts.clone()
    }

    /// Something about a compartment that the controller found out.
    pub fn told(&self, id: u32, kind: &str, name: &str, message: String) {
        self.of_endpoint(id, kind, name, String::new(), message);
    }

    /// The same about an endpoint, `TENANT/ENDPOINT`.
    pub fn of_endpoint(&self, id: u32, kind: &str, name: &str, endpoint: String, message: String) {
        let happening = Happening {
            time_ms: now_ms(),
            kind: kind.into(),
            target: name.into(),
            endpoint,
            message,
            ..Happening::default()
        };
        self.note(id, happening);
    }

    /// What a rule decided that logs: `own` is what its tenant is told.
    pub fn of_rule(&self, id: u32, name: &str, endpoint: String, [all, own]: [String; 2]) {
        let happening = Happening {
            time_ms: now_ms(),
            kind: "rule".into(),
            target: name.into(),
            endpoint,
            message: all,
            own,
            ..Happening::default()
        };
        self.note(id, happening);
    }

    /// The last that passes, newest first, at most `most`.
    pub fn last(&self, most: usize, passes: impl Fn(&Happening) -> bool) -> Vec<Happening> {
        self.kept()
            .in_order()
            .into_iter()
            .rev()
            .filter(|happening| passes(happening))
            .take(most)
            .cloned()
            .collect()
    }

    /// Deaths of a compartment, newest first, with the outage that followed. By its name
    /// as well: another may have had its number before.
    pub fn deaths(&self, target: u32, name: &str, most: usize) -> Vec<Death> {
        let mut deaths = Vec::new();
        let mut outage_ns = 0;
        let kept = self.kept();
        for (_, happening) in kept.of.get(&target).into_iter().flatten().rev() {
            if happening.target != name {
                continue;
            }
            match happening.kind.as_str() {
                "restarted" => outage_ns = happening.value,
                "died" => deaths.push(Death {
                    time_ms: happening.time_ms,
                    cause: happening.cause.clone(),
                    outage_ns: std::mem::take(&mut outage_ns),
                }),
                _ => {}
            }
            if deaths.len() >= most {
                break;
            }
        }
        deaths
    }

    fn note(&self, target: u32, happening: Happening) {
        let mut kept = self.kept();
        // Nobody listening is no error.
        let _ = self.told.send(happening.clone());
        kept.push(target, happening);
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn named(event: &Event, world: &World) -> Happening {
    let target = match event.target {
        FABRIC => "fabric".to_owned(),
        SUPERVISOR => "supervisor".to_owned(),
        id => world.compartment(id).map_or_else(
            || format!("compartment {id}"),
            |compartment| compartment.name.clone(),
        ),
    };
    let endpoint = world.name_at(event.target, event.slot).unwrap_or_default();
    let of = if endpoint.is_empty() {
        format!("slot {}", event.slot)
    } else {
        endpoint.clone()
    };
    let reason = || {
        u8::try_from(event.cause)
            .ok()
            .and_then(DropReason::from_number)
            .map_or("", DropReason::slug)
    };
    let (cause, message) = match kind_of(event.kind) {
        Some(EventKind::Died) => {
            let cause = cause(event.cause);
            let how = match cause {
                "trip" => {
                    "tried a system call that its sandbox forbids and was killed by the kernel"
                }
                "stall" => "made no progress, or read nothing it was told, and was killed",
                "report" => {
                    "did what an honest one does not (spoke with what is not its own, or broke its protocol) and was killed"
                }
                _ => "ended or was killed from outside",
            };
            (cause.to_owned(), format!("{target}'s process {how}"))
        }
        Some(EventKind::Attached) => (
            String::new(),
            format!(
                "{target} has a new process, {:.1} ms after the death was seen",
                event.value as f64 / 1e6
            ),
        ),
        Some(EventKind::Restarted) => (
            String::new(),
            format!(
                "{target} forwards again: its new process says its first frame went {:.1} ms after the death was seen",
                event.value as f64 / 1e6
            ),
        ),
        Some(EventKind::Quarantine) => (
            reason().to_owned(),
            format!(
                "{of} of {target} is quarantined: it was being served at repeated deaths; `bulkhead release` lifts it"
            ),
        ),
        Some(EventKind::Report) => (
            reason().to_owned(),
            format!(
                "the fabric caught {target} speaking with what is not its own ({})",
                reason()
            ),
        ),
        Some(EventKind::PortClosed) => {
            let why = port_closed(event.cause.into());
            (
                why.clone(),
                format!("{target} closed the port of {of}: {why}"),
            )
        }
        Some(EventKind::OperatorReplaced) => (
            cause(event.cause).to_owned(),
            match event.value {
                // Of an endpoint that is gone nothing is told.
                program if program == 0 || endpoint.is_empty() => {
                    format!("the operator of {target}'s circuits stood still and is replaced")
                }
                program => format!(
                    "the operator of {target}'s circuits stood still over a call of program {program} of {of} and is replaced"
                ),
            },
        ),
        Some(EventKind::MeterLost) => (
            cause(event.cause).to_owned(),
            format!(
                "the meter of {target}'s circuits {}: those that it carried are over, and captures of circuits; there is another",
                match cause(event.cause) {
                    "stall" => "stood still",
                    _ => "is gone",
                }
            ),
        ),
        Some(EventKind::ProxyLost) => (
            cause(event.cause).to_owned(),
            format!("the proxy of {of} is gone: what it carried is over; another is started"),
        ),
        Some(EventKind::ProgramGivenUp) => (
            String::new(),
            format!(
                "program {} of {of} is given up: one operator after another stood still over its calls; start it again when it is mended",
                event.value
            ),
        ),
        Some(EventKind::ProgramsLeft) => (
            String::new(),
            format!(
                "{of} is gone or made anew, and programs of circuits are left behind: {}. What they ask of sockets fails; start them again, or end them",
                event.value
            ),
        ),
        Some(EventKind::ContainerRefused) => (
            String::new(),
            format!(
                "a container of {of} is refused, and has no sockets: {}",
                crate::circuits::why_refused(event.value)
            ),
        ),
        Some(_) | None => (
            event.cause.to_string(),
            format!("{}: {of} of {target}", kind_name(event.kind)),
        ),
    };
    Happening {
        time_ms: now_ms(),
        kind: kind_name(event.kind).into(),
        target,
        endpoint,
        cause,
        message,
        value: event.value,
        ..Happening::default()
    }
}

/// Unix time in milliseconds.
pub fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind, cause: u32, value: u64) -> Event {
        Event {
            kind: kind as u32,
            target: 3,
            cause,
            value,
            ..Event::default()
        }
    }

    #[test]
    fn deaths_are_joined_with_the_restart_that_followed() {
        let happenings = Happenings::new();
        let world = World::default();
        for event in [
            event(EventKind::Died, command::verbs::CAUSE_EXIT, 0),
            event(EventKind::Restarted, 0, 3_000_000),
            event(EventKind::Died, command::verbs::CAUSE_TRIP, 0),
        ] {
            happenings.heard(event, &world);
        }
        let deaths = happenings.deaths(3, "compartment 3", 10);
        assert_eq!(
            deaths
                .iter()
                .map(|d| (d.cause.as_str(), d.outage_ns))
                .collect::<Vec<_>>(),
            [("trip", 0), ("exit", 3_000_000)]
        );
        assert!(happenings.deaths(4, "compartment 4", 10).is_empty());
        // Another that has that number now.
        assert!(happenings.deaths(3, "shop", 10).is_empty());
    }

    #[test]
    fn who_listens_gets_the_last_first_and_then_each_once() {
        let happenings = Happenings::new();
        let say = |kind| happenings.say(kind, String::new());
        ["a", "b", "c"].into_iter().for_each(say);
        let (last, mut told) = happenings.listen(2);
        say("d");
        let mut kinds: Vec<String> = last.into_iter().map(|h| h.kind).collect();
        kinds.push(told.try_recv().unwrap().kind);
        assert_eq!(kinds, ["b", "c", "d"]);
        assert!(told.try_recv().is_err());
        assert_eq!(happenings.listen(9).0.len(), 4);
    }

    #[test]
    fn who_makes_much_happen_crowds_out_nobody() {
        let happenings = Happenings::new();
        let world = World::default();
        let of = |target| Event {
            target,
            ..event(EventKind::Died, command::verbs::CAUSE_EXIT, 0)
        };
        (0..3).for_each(|_| happenings.heard(of(5), &world));
        (0..2 * MOST).for_each(|_| happenings.heard(of(3), &world));
        assert_eq!(happenings.deaths(5, "compartment 5", 10).len(), 3);
        assert_eq!(happenings.last(usize::MAX, |_| true).len(), MOST);
    }

    #[test]
    fn the_log_is_bounded() {
        let happenings = Happenings::new();
        for _ in 0..MOST + 10 {
            happenings.say("applied", String::new());
        }
        assert_eq!(happenings.last(usize::MAX, |_| true).len(), MOST);
    }
}
