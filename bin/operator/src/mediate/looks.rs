//! Looks at what programs have, which may have this process wait: for how long at most, and whose they are.

use super::*;
use circuit::Socket;

/// A look that has this process wait for so long is noted as who had it wait's.
const NOTED: Duration = Duration::from_millis(1);

/// What is being done for an endpoint, and how much was noted of others when that began.
pub(in crate::mediate) struct Begun {
    spending: Spending,
    spent: usize,
    stood: usize,
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
        if found.is_none() && notify::copying() - before >= SLOW {
            self.misplaced.borrow_mut().push(socket.cookie());
        }
        found
    }

    /// Whether an endpoint's programs have had this process wait, that looks at what they have, for so long in
    /// what it does now that they are looked at no more: what is there is not found.
    pub(super) fn has_stood(&self, slot: u32) -> bool {
        let stood = self.stood.borrow();
        let of = stood.iter().filter(|it| it.slot == slot);
        circuits::is_enough(of.map(|it| it.copying).sum())
    }

    /// Looks at what an endpoint's programs have, which may have this process wait: that endpoint
    /// is blamed meanwhile, and has had it for as long.
    pub(super) fn stands<T>(&self, slot: u32, looks: impl FnOnce() -> T) -> T {
        self.touches(slot);
        let spending = Spending::begins();
        let came = looks();
        let spent = spending.ends(slot, &[]);
        // Others are who asks's: there are many thousands of them at a time, of some microseconds each.
        if spent.copying >= NOTED {
            self.stood.borrow_mut().push(spent);
        }
        self.touched();
        came
    }

    /// Something is being done for an endpoint.
    pub(super) fn starts(&self) -> Begun {
        Begun {
            spending: Spending::begins(),
            spent: self.spent.len(),
            stood: self.stood.borrow().len(),
        }
    }

    /// It is done, and the endpoint's, but for what was done for others meanwhile; how long it had this process wait.
    pub(super) fn done_for(&mut self, slot: u32, begun: Begun) -> Duration {
        let stood = self.stood.get_mut();
        let stood = stood.split_off(begun.stood.min(stood.len()));
        let of = stood.iter().filter(|it| it.slot == slot);
        let waited = of.map(|it| it.copying).sum();
        let before = begun.spent.min(self.spent.len());
        self.spent.extend(stood);
        let others = self.spent.get(before..).unwrap_or_default();
        let own = begun.spending.ends(slot, others);
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
