//! Looks at what programs have, which may have this process wait: for how long at most, and whose they are.

use super::*;
use circuit::Socket;

/// A look that has this process wait for so long is noted as who had it wait's: some times what one takes.
const NOTED: Duration = Duration::from_micros(50);

/// A look in vain that took so long found something that has who looks wait.
const IN_VAIN: Duration = Duration::from_millis(1);

fn is_noted(copying: Duration) -> bool {
    copying >= NOTED
}

/// What was noted of whom.
#[derive(Default)]
pub(in crate::mediate) struct Stood {
    all: Vec<Spent>,
    /// From where on it is of what is being done now.
    from: usize,
}

impl Stood {
    /// Of each endpoint there is one sum of what is being done now, however many looks that is.
    fn notes(&mut self, spent: Spent) {
        let now = self.all.get_mut(self.from..).unwrap_or_default();
        match now.iter_mut().find(|it| it.slot == spent.slot) {
            Some(sum) => {
                sum.time += spent.time;
                sum.copying += spent.copying;
            }
            None => self.all.push(spent),
        }
    }

    /// All, which are forgotten.
    pub(in crate::mediate) fn taken(&mut self) -> Vec<Spent> {
        self.from = 0;
        std::mem::take(&mut self.all)
    }

    /// That of an endpoint is forgotten.
    pub(in crate::mediate) fn forgets(&mut self, slot: u32) {
        // In their places, by which it is known what is being done now.
        for of in self.all.iter_mut().filter(|it| it.slot == slot) {
            (of.time, of.copying) = (Duration::ZERO, Duration::ZERO);
        }
    }
}

/// What is being done for an endpoint, and how much was noted of others when that began.
pub(in crate::mediate) struct Begun {
    spending: Spending,
    spent: usize,
    /// From where on it was noted of what was being done before.
    from: usize,
    /// How long what was being done before had this process look for what lives.
    swept: Duration,
}

impl Mediator {
    /// A socket, taken from where it was seen. Meanwhile its endpoint is who holds this process
    /// up, if anybody does.
    pub(super) fn at_place(&self, socket: &Socket) -> Option<OwnedFd> {
        if self.has_stood(socket.endpoint()) {
            return None;
        }
        let before = notify::copying();
        let found = self.stands(socket.endpoint(), || circuits::at_place(socket));
        // What is there in its place has who looks wait.
        if found.is_none() && notify::copying() - before >= IN_VAIN {
            self.misplaced.borrow_mut().push(socket.cookie());
        }
        found
    }

    /// Whether an endpoint's programs have had this process wait, that looks at what they have, for so long in
    /// what it does now that they are looked at no more: what is there is not found.
    pub(super) fn has_stood(&self, slot: u32) -> bool {
        let stood = self.stood.borrow();
        let of = stood.all.iter().filter(|it| it.slot == slot);
        circuits::is_enough(of.map(|it| it.copying).sum())
    }

    /// Something had this process wait, and whose it was.
    pub(super) fn notes_stood(&self, spent: Spent) {
        self.stood.borrow_mut().notes(spent);
    }

    /// Looks at what an endpoint's programs have, which may have this process wait: that endpoint
    /// is blamed meanwhile, and has had it for as long.
    pub(super) fn stands<T>(&self, slot: u32, looks: impl FnOnce() -> T) -> T {
        self.touches(slot);
        let spending = Spending::begins();
        let came = looks();
        let spent = spending.ends(slot, &[]);
        // Others are who asks's: there are many thousands of them at a time, of some microseconds each.
        if is_noted(spent.copying) {
            self.notes_stood(spent);
        }
        self.touched();
        came
    }

    /// Something is being done for an endpoint.
    pub(super) fn starts(&self) -> Begun {
        let mut stood = self.stood.borrow_mut();
        let all = stood.all.len();
        Begun {
            spending: Spending::begins(),
            spent: self.spent.len(),
            from: std::mem::replace(&mut stood.from, all),
            swept: self.sweeping.take(),
        }
    }

    /// It is done, and the endpoint's, but for what was done for others meanwhile; how long it had this process wait.
    pub(super) fn done_for(&mut self, slot: u32, begun: Begun) -> Duration {
        let stood = self.stood.get_mut();
        let from = std::mem::replace(&mut stood.from, begun.from);
        let stood = stood.all.split_off(from.min(stood.all.len()));
        let of = stood.iter().filter(|it| it.slot == slot);
        let waited = of.map(|it| it.copying).sum();
        let before = begun.spent.min(self.spent.len());
        self.spent.extend(stood);
        let others = self.spent.get(before..).unwrap_or_default();
        let mut own = begun.spending.ends(slot, others);
        own.sweeping = self.sweeping.replace(begun.swept);
        self.spent.push(own);
        waited
    }

    pub(super) fn touches(&self, slot: u32) {
        if let Some(notes) = &self.notes {
            notes.touches(slot);
        }
    }

    pub(super) fn touched(&self) {
        if let Some(notes) = &self.notes {
            notes.touched();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each is too short to be noted by itself for much, and all of them are what one waits for.
    #[test]
    fn looks_are_summed_up_by_whose_they_are_in_what_is_done_now() {
        let look = |slot, us| Spent {
            slot,
            time: Duration::from_micros(us),
            copying: Duration::from_micros(us),
            sweeping: Duration::ZERO,
        };
        let mut mediator = Mediator::default();
        mediator.notes_stood(look(3, 60_000));
        let begun = mediator.starts();
        for _ in 0..199 {
            mediator.notes_stood(look(3, 500));
            mediator.notes_stood(look(4, 60));
        }
        let sums = |it: &Mediator| -> Vec<(u32, u128)> {
            let stood = it.stood.borrow();
            let all = stood.all.iter();
            all.map(|it| (it.slot, it.copying.as_micros())).collect()
        };
        assert_eq!(sums(&mediator), [(3, 60_000), (3, 99_500), (4, 11_940)]);
        assert!(mediator.has_stood(3) && !mediator.has_stood(4));
        assert_eq!(mediator.done_for(3, begun).as_micros(), 99_500);
        // What was noted before is whose it was.
        assert_eq!(sums(&mediator), [(3, 60_000)]);
        mediator.notes_stood(look(3, 1000));
        assert_eq!(sums(&mediator), [(3, 61_000)]);
        mediator.stood.get_mut().forgets(3);
        assert!(!mediator.has_stood(3));
        let spent = mediator.spent();
        let own = spent
            .iter()
            .filter(|it| it.slot == 3 && it.copying.as_micros() == 99_500);
        assert_eq!((own.count(), sums(&mediator).len()), (1, 0));
    }

    /// A look that takes some times what one takes is noted.
    #[test]
    fn what_is_slow_is_noted_and_what_is_not_is_not() {
        let mediator = Mediator::default();
        mediator.stands(5, || ());
        assert!(mediator.stood.borrow().all.is_empty());
        assert!(is_noted(Duration::from_micros(51)) && !is_noted(Duration::from_micros(49)));
    }
}
