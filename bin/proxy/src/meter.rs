//! Circuits that are metered: bytes go from one program's socket to the other's through a pipe,
//! counted, and no faster than both endpoints' rates allow. Who sends faster finds its socket
//! full, as where the other side does not read.
//!
//! - `pace`: a rate, and whose turn it is; `lines`: who waits for one, or is to be served, endpoint by endpoint.
//! - `counts`: what passed, by circuit and by endpoint, in pages that others read.
//! - `capture`: what passes, into captures' channels, by `frames` as the packets that TCP would have sent.
//! - `pulse`: that this process goes on, for the supervisor.

mod capture;
mod counts;
mod frames;
mod lines;
mod pace;
mod pulse;

use crate::relay::{State, Way, hears_out, is_left};
use capture::{Captures, End};
use command::verbs::{EVERYBODY, METER_COUNTS, MeterRates, Metered};
use counts::{Counts, Row};
use frames::Named;
use guard::guard;
use lines::{Line, Lines};
use pace::{Pace, TURN};
use pulse::Pulse;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use switch::Nanos;
use worker::clock::realtime;

/// Turns of one direction before others have theirs.
const TURNS: usize = 4;
/// Directions that have theirs before it is looked at what else has happened.
const SERVED: usize = 32;

/// Which side of an endpoint a rate is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Sends,
    IsSent,
}

/// All of a compartment.
#[derive(Default)]
pub struct Metering {
    /// What is counted.
    pub counts: Counts,
    /// What somebody captures.
    pub captures: Captures,
    /// That this process goes on.
    pub pulse: Pulse,
    circuits: BTreeMap<u64, Circuit>,
    /// Their numbers by their ids.
    by_id: BTreeMap<u64, u64>,
    paces: BTreeMap<(u32, Side), Pace>,
    /// Those of them that somebody waits for.
    awaited: BTreeSet<(u32, Side)>,
    ready: Lines,
    /// Slots of whose rates whose page this is has said nothing yet: they are of an operator's before.
    of_before: BTreeSet<u32>,
}

struct Circuit {
    id: u64,
    slots: [u32; 2],
    /// `None`: the operator did not say, and nobody is shown it.
    named: Option<Named>,
    ends: [OwnedFd; 2],
    ways: [Direction; 2],
    row: Row,
}

struct Direction {
    pipe: Way,
    /// By the rate of who sends, and of who is sent to.
    turns: [Turn; 2],
    /// It is among those that are ready.
    is_called: bool,
}

/// How a direction stands with a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Turn {
    /// It has not asked.
    #[default]
    Never,
    /// It is in line.
    Waits,
    /// It may move so much.
    Has(u64),
}

impl Circuit {
    /// The ends of a direction, and whose they are.
    fn of(&self, way: usize) -> ([BorrowedFd<'_>; 2], [u32; 2]) {
        let ([one, other], [a, b]) = (&self.ends, self.slots);
        match way {
            0 => ([one.as_fd(), other.as_fd()], [a, b]),
            _ => ([other.as_fd(), one.as_fd()], [b, a]),
        }
    }

    fn states(&self) -> [State; 2] {
        self.ways.each_ref().map(|way| way.pipe.state())
    }

    /// How it ends by itself: by who is gone while there is more to read, or as said.
    fn end(&self, failed: bool) -> End {
        let pipe = |way: usize| self.ways.get(way).map(|way| &way.pipe);
        let holds = |way| pipe(way).is_some_and(|pipe| pipe.is_full() || pipe.is_deaf());
        let resets = |way| pipe(way).is_some_and(Way::is_reset);
        let left = |side: usize| self.ends.get(side).is_some_and(is_left);
        let gone = |side: &usize| left(*side) && (failed || holds(1 - *side) || resets(*side));
        match (0..2).find(gone) {
            Some(side) => End::Gone(side),
            None if failed => End::Cut,
            None => End::Said,
        }
    }

    /// Both have said all, or one of those that have is gone.
    fn is_over(&self) -> bool {
        let [one, other] = &self.ends;
        let [there, back] = self.ways.each_ref().map(|way| way.pipe.is_told());
        there && (back || is_left(one)) || back && is_left(other)
    }
}

impl Metering {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.circuits.len()
    }

    /// The rates of an endpoint from now on; of [`EVERYBODY`]: of whom nothing was said since there is this page
    /// have none.
    pub fn rates(&mut self, body: &MeterRates, now: Nanos) {
        if body.slot == EVERYBODY {
            for slot in std::mem::take(&mut self.of_before) {
                let none = MeterRates {
                    slot,
                    ..MeterRates::default()
                };
                self.rates(&none, now);
            }
            return;
        }
        self.of_before.remove(&body.slot);
        let counts = body.flags & METER_COUNTS != 0;
        self.counts.counts(body.slot, counts);
        for (side, bytes, burst) in [
            (Side::Sends, body.from, body.from_burst),
            (Side::IsSent, body.to, body.to_burst),
        ] {
            let at = (body.slot, side);
            let known = self.paces.get(&at).map(Pace::rate);
            if known == Some((bytes, burst)) {
                continue;
            }
            if known.is_some() && guard!("meter-turns-of-before") {
                self.takes_turns(at);
            }
            match (bytes, self.paces.get_mut(&at)) {
                (0, None) => {}
                (0, Some(pace)) => {
                    let waited = pace.dissolve();
                    self.paces.remove(&at);
                    self.ask_again(&waited, side);
                }
                (_, Some(pace)) => {
                    pace.change(bytes, burst);
                    let waited = pace.dissolve();
                    self.ask_again(&waited, side);
                }
                (_, None) => {
                    self.paces.insert(at, Pace::new(bytes, burst, now));
                }
            }
        }
    }

    /// Turns of a rate that is another from now on are none. Bound: circuits.
    fn takes_turns(&mut self, at: (u32, Side)) {
        for circuit in self.circuits.values_mut() {
            let [a, b] = circuit.slots;
            for (slots, direction) in [[a, b], [b, a]].into_iter().zip(&mut circuit.ways) {
                let turns = sides(slots).into_iter().zip(&mut direction.turns);
                for (_, turn) in turns.filter(|(of, _)| *of == at) {
                    if let Turn::Has(_) = turn {
                        *turn = Turn::Never;
                    }
                }
            }
        }
    }

    fn ask_again(&mut self, waited: &[Line], side: Side) {
        for line in waited {
            if let Some(direction) = self.direction(*line) {
                direction.turns[side as usize] = Turn::Never;
                self.call(*line);
            }
        }
    }

    fn direction(&mut self, (number, way): Line) -> Option<&mut Direction> {
        self.circuits.get_mut(&number)?.ways.get_mut(way)
    }

    /// Has a direction served, before long and once.
    fn call(&mut self, line: Line) {
        let of = at(&mut self.circuits, line);
        if let Some((began, _, direction)) = of.filter(|(.., it)| !it.is_called) {
            direction.is_called = true;
            self.ready.push(began, line, 0);
        }
    }

    /// Carries a circuit. Its ends must not block.
    ///
    /// # Errors
    /// No descriptor is left, or no place to count it: both ends are closed.
    pub fn join(
        &mut self,
        number: u64,
        body: &Metered,
        ends: [OwnedFd; 2],
        now: Nanos,
    ) -> Result<(), Errno> {
        let way = || {
            Ok(Direction {
                pipe: Way::narrow()?,
                turns: [Turn::Never; 2],
                is_called: false,
            })
        };
        let ways = [way()?, way()?];
        let slots = [body.from, body.to];
        let row = self.counts.begin(body.id, now);
        let row = row.ok_or(Errno::NFILE)?;
        let id = body.id;
        self.by_id.insert(id, number);
        let named = Named::of(body);
        if let Some(named) = named.filter(|_| self.captures.of(slots)) {
            self.captures.begins(&named, realtime());
        }
        let circuit = Circuit {
            id,
            slots,
            named,
            ends,
            ways,
            row,
        };
        self.circuits.insert(number, circuit);
        self.stirred(number);
        Ok(())
    }

    /// Its ends, to be watched for any change.
    pub fn ends(&self, number: u64) -> impl Iterator<Item = BorrowedFd<'_>> {
        let circuit = self.circuits.get(&number);
        circuit
            .into_iter()
            .flat_map(|it| it.ends.each_ref().map(AsFd::as_fd))
    }

    /// Its pipes' newest ends.
    pub fn pipes(&self, number: u64) -> impl Iterator<Item = BorrowedFd<'_>> {
        let ways = self.circuits.get(&number).map(|circuit| &circuit.ways);
        ways.into_iter().flatten().map(|way| way.pipe.newest())
    }

    /// Ends one by its id.
    pub fn end(&mut self, id: u64) {
        if let Some(number) = self.by_id.get(&id).copied() {
            self.show_end(number, |_| End::Cut);
            self.remove(number);
        }
    }

    fn show_end(&mut self, number: u64, how: impl FnOnce(&Circuit) -> End) {
        if let Some(circuit) = self.circuits.get(&number)
            && let Some(named) = circuit.named.filter(|it| self.captures.of(it.slots))
        {
            let end = how(circuit);
            self.captures
                .ends(&named, circuit.states(), end, realtime());
        }
    }

    /// Counts in this page from now on.
    pub fn use_page(&mut self, page: &OwnedFd) {
        if guard!("meter-rates-of-before") {
            self.of_before.clone_from(self.counts.counted());
        }
        let rows = self.circuits.values().map(|circuit| &circuit.row);
        if let Err(error) = self.counts.use_page(page, rows) {
            confine::say!("bulkhead-proxy: no page to count in: {error}");
        }
    }

    /// Something happened at one of its ends.
    pub fn stirred(&mut self, number: u64) {
        self.call((number, 0));
        self.call((number, 1));
    }

    /// When there is something to do without anything happening, ns; 0: at once.
    pub fn due(&self) -> Option<Nanos> {
        match self.ready.is_empty() {
            true => {
                let awaited = self.awaited.iter().filter_map(|at| self.paces.get(at));
                awaited.filter_map(Pace::due).min()
            }
            false => Some(0),
        }
    }

    /// Moves what may be moved.
    pub fn turn(&mut self, now: Nanos) {
        for at in self.awaited.clone() {
            // Bound: what a rate gives in the time that passed.
            while let Some((line, turn)) = self.pace(at).and_then(|pace| pace.next(now)) {
                self.grant(line, at, turn);
            }
            if self.pace(at).is_none_or(|pace| !pace.is_waited_for()) {
                self.awaited.remove(&at);
            }
        }
        for _ in 0..SERVED {
            let Some(line) = self.ready.pop() else {
                break;
            };
            if let Some(direction) = self.direction(line) {
                direction.is_called = false;
                self.serve(line, now);
                self.pulse.beats();
            }
        }
        self.captures.publish();
    }

    fn pace(&mut self, at: (u32, Side)) -> Option<&mut Pace> {
        self.paces.get_mut(&at)
    }

    fn grant(&mut self, line: Line, (_, side): (u32, Side), turn: u64) {
        if let Some(direction) = self.direction(line) {
            direction.turns[side as usize] = Turn::Has(turn);
            self.call(line);
        }
    }

    fn serve(&mut self, line: Line, now: Nanos) {
        let (number, _) = line;
        let moved = self.moved(line, now);
        if moved.is_err() || self.circuits.get(&number).is_some_and(Circuit::is_over) {
            // One is gone with what it had not read: so is the other's.
            self.show_end(number, |circuit| circuit.end(moved.is_err()));
            return self.remove(number);
        }
        if self.direction(line).is_some_and(|it| it.pipe.is_idle()) {
            self.give_back(line);
        }
    }

    /// One direction, as far as it may. `Err`: an end is gone.
    fn moved(&mut self, line: Line, now: Nanos) -> Result<(), Errno> {
        let (number, way) = line;
        for _ in 0..TURNS {
            let Some(may) = self.may(line, now) else {
                return self.step(number, way, 0, now).map(drop);
            };
            let (taken, full) = self.step(number, way, may, now)?;
            self.used(line, taken);
            if full {
                // Many that nobody reads from would hold more than a burst, and let it go at once.
                self.give_back(line);
            }
            if taken == 0 || full {
                return Ok(());
            }
        }
        self.call(line);
        Ok(())
    }

    /// How much a direction may move now; `None`: it waits for its turn.
    fn may(&mut self, line: Line, now: Nanos) -> Option<u64> {
        let (began, rates, direction) = at(&mut self.circuits, line)?;
        let ([one, other], [a, b]) = (rates, direction.turns.each_mut());
        let mut both = [(one, a), (other, b)];
        let bytes = |at: &(u32, Side)| self.paces.get(at).map(|pace| pace.rate().0);
        // The slower first, and that one's turn is kept while it waits for the other's: what is kept of the
        // faster is nobody else's. All in one order, or each could keep what another waits for.
        both.sort_unstable_by_key(|(at, _)| (bytes(at).filter(|_| guard!("meter-slower")), *at));
        let mut may = Some(TURN);
        for (at, turn) in both {
            let Some(pace) = self.paces.get_mut(&at) else {
                *turn = Turn::Never;
                continue;
            };
            if may.is_none() && guard!("meter-order") {
                if let Turn::Has(left) = *turn {
                    *turn = Turn::Never;
                    pace.refund(began, left);
                }
                continue;
            }
            if *turn == Turn::Never && guard!("meter-rate") {
                let wants = may.filter(|_| guard!("meter-wants")).unwrap_or(TURN);
                let asked = pace.ask(began, line, wants, now);
                *turn = asked.map_or(Turn::Waits, Turn::Has);
                if *turn == Turn::Waits {
                    self.awaited.insert(at);
                }
            }
            may = match *turn {
                Turn::Has(turn) => may.map(|may| may.min(turn)),
                Turn::Waits => None,
                Turn::Never => may,
            };
        }
        may
    }

    fn used(&mut self, line: Line, taken: u64) {
        let Some((began, rates, direction)) = at(&mut self.circuits, line) else {
            return;
        };
        for (at, turn) in rates.into_iter().zip(&mut direction.turns) {
            let Turn::Has(left) = *turn else {
                continue;
            };
            *turn = match left > taken {
                true => Turn::Has(left - taken),
                false => Turn::Never,
            };
            if let Some(pace) = self.paces.get_mut(&at) {
                pace.used(began, taken.min(left));
            }
        }
    }

    /// Takes so much at most and hands on what it holds: what was taken, and whether the
    /// receiver has no room for more.
    fn step(
        &mut self,
        number: u64,
        way: usize,
        may: u64,
        now: Nanos,
    ) -> Result<(u64, bool), Errno> {
        let Some(circuit) = self.circuits.get_mut(&number) else {
            return Ok((0, true));
        };
        let named = circuit.named.filter(|it| self.captures.of(it.slots));
        let Circuit {
            ends: [one, other],
            slots: [a, b],
            ways,
            row,
            ..
        } = circuit;
        let (source, sink, slots) = match way {
            0 => (&*one, &*other, [*a, *b]),
            _ => (&*other, &*one, [*b, *a]),
        };
        let Some(direction) = ways.get_mut(way) else {
            return Ok((0, true));
        };
        let pipe = &mut direction.pipe;
        let before = pipe.state();
        let (source, sink) = (source.as_fd(), sink.as_fd());
        let taken = match named {
            None => pipe.step(source, sink, may as usize, Ok),
            Some(_) => {
                let look = |most| self.captures.look(source, most);
                pipe.step(source, sink, may as usize, look)
            }
        };
        let full = pipe.is_full();
        let passed = pipe.handed().wrapping_sub(before.handed);
        if passed > 0 {
            self.counts.passed(row, way, slots, passed, now);
        }
        if let Some(named) = named {
            let states = circuit.states();
            (self.captures).moved(&named, way, before, states, realtime());
        }
        Ok((taken? as u64, full))
    }

    /// A direction that has nothing to move keeps no turn from others.
    fn give_back(&mut self, line: Line) {
        let Some((began, rates, direction)) = at(&mut self.circuits, line) else {
            return;
        };
        for (at, turn) in rates.into_iter().zip(&mut direction.turns) {
            // Who is in line stays there: its place is not known here.
            if let Turn::Has(left) = *turn {
                *turn = Turn::Never;
                if let Some(pace) = self.paces.get_mut(&at) {
                    pace.refund(began, left);
                }
            }
        }
    }

    fn remove(&mut self, number: u64) {
        self.give_back((number, 0));
        self.give_back((number, 1));
        if let Some(circuit) = self.circuits.remove(&number) {
            for at in (0..2).flat_map(|way| sides(circuit.of(way).1)) {
                if let Some(pace) = self.paces.get_mut(&at) {
                    pace.forget(number);
                }
            }
            self.by_id.remove(&circuit.id);
            self.counts.end(&circuit.row);
            for end in circuit.ends.iter().filter(|_| guard!("meter-hears-out")) {
                hears_out(end.as_fd());
            }
        }
    }
}

/// The rates that hold for a direction: whose, and of which side.
type Rates = [(u32, Side); 2];

/// A direction: who began its circuit, and the rates that hold for it.
fn at(
    circuits: &mut BTreeMap<u64, Circuit>,
    (number, way): Line,
) -> Option<(u32, Rates, &mut Direction)> {
    let circuit = circuits.get_mut(&number)?;
    let ((_, slots), [began, _]) = (circuit.of(way), circuit.slots);
    Some((began, sides(slots), circuit.ways.get_mut(way)?))
}

/// The rates that hold for what goes from the first slot to the second.
fn sides([from, to]: [u32; 2]) -> Rates {
    [(from, Side::Sends), (to, Side::IsSent)]
}

#[cfg(test)]
mod tests;
