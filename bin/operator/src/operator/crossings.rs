//! The other sides of agreements.

use super::*;
use crate::crossings::Watched;

impl Operator {
    /// The other side of an agreement has circuits, or another operator.
    pub(super) fn link_crossing(&mut self, body: &AddCrossing, fds: Fds) -> Result<(), Errno> {
        let mut fds = fds.into_iter();
        let (Some(link), Some(door), Some(witness)) = (fds.next(), fds.next(), fds.next()) else {
            self.mediator.await_crossing(body.tag as u16);
            return Ok(());
        };
        let link = Socket::from_fd(link);
        self.watch(&link, CROSSING | u64::from(body.tag))?;
        self.watch(&door, DOOR | u64::from(body.tag))?;
        let programs = &self.programs;
        let find = |number: u32| programs.get(&number).map(|(slot, it)| (*slot, it));
        let fds = [door, witness];
        let tag = body.tag as u16;
        let before = self
            .mediator
            .link_crossing(tag, link, body.door, fds, &find);
        self.look_away_from(before);
        Ok(())
    }

    /// It has none any more.
    pub(super) fn unlink_crossing(&mut self, tag: u16) {
        let programs = &self.programs;
        let find = |number: u32| programs.get(&number).map(|(slot, it)| (*slot, it));
        let before = self.mediator.unlink_crossing(tag, &find);
        self.look_away_from(before);
    }

    fn look_away_from(&self, crossing: Option<Watched>) {
        if let Some((link, door)) = crossing {
            link.iter().for_each(|link| self.unwatch(link));
            door.iter().for_each(|door| self.unwatch(door));
        }
    }

    /// Those come in that another tenant's programs have connected.
    pub(super) fn comes_in(&mut self, tag: u16) {
        let programs = &self.programs;
        let find = |number: u32| programs.get(&number).map(|(slot, it)| (*slot, it));
        self.mediator.comes_in(tag, &find);
    }

    /// What the other side of an agreement says.
    pub(super) fn hear_crossing(&mut self, tag: u16) {
        let programs = &self.programs;
        let find = |number: u32| programs.get(&number).map(|(slot, it)| (*slot, it));
        if self.mediator.hear_crossing(tag, &find).is_err()
            && let Some(link) = self.mediator.crossing_is_down(tag)
        {
            self.unwatch(&link);
        }
    }

    /// The supervisor's answer to who asked for memory of a circuit across an agreement.
    pub(super) fn takes_memory(&mut self, body: &Share, memory: Option<OwnedFd>) {
        let programs = &self.programs;
        let find = |number: u32| programs.get(&number).map(|(slot, it)| (*slot, it));
        self.mediator.takes_memory(body, memory, &find);
    }
}
