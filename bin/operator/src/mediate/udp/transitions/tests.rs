//! What tests look at, and have come to pass.

use super::asked::UNREAD;
use super::*;

impl Mediator {
    /// How many a socket is known to have sent to.
    pub(in crate::mediate) fn asked_by(&self, cookie: u64) -> usize {
        let all = self.datagrams.asked.values();
        let judged = all.filter_map(|it| it.judged.get(&cookie));
        judged.map(BTreeMap::len).sum()
    }

    /// How much is remembered of what an endpoint's sockets are known to have sent.
    pub(in crate::mediate) fn asked_in_all(&self, slot: u32) -> usize {
        let asked = self.datagrams.asked.get(&slot);
        asked.map_or(0, |it| it.judged.values().map(BTreeMap::len).sum())
    }

    /// How many ways some that are there are known to have sent.
    pub(in crate::mediate) fn ways_asked(&self) -> usize {
        let ways = self
            .datagrams
            .asked
            .values()
            .flat_map(|it| it.ways.values());
        ways.filter(|it| !it.cookies.is_empty()).count()
    }

    /// How many ways an endpoint's are remembered to have asked of which nobody is left.
    pub(in crate::mediate) fn ways_left(&self, slot: u32) -> usize {
        let asked = self.datagrams.asked.get(&slot);
        asked.map_or(0, |it| {
            it.ways.values().filter(|it| it.cookies.is_empty()).count()
        })
    }

    /// What waited unread when it was denied is not any more.
    pub(in crate::mediate) fn ended_long_ago(&mut self) {
        let all = self.datagrams.asked.values_mut();
        for at in all.flat_map(|it| it.ended.values_mut()) {
            *at = at.checked_sub(UNREAD).unwrap();
        }
        let since = &mut self.datagrams.since;
        *since = since.and_then(|at| at.checked_sub(UNREAD));
    }

    /// It has sent nothing for so long that who answers may not.
    pub(in crate::mediate) fn falls_silent(&mut self, cookie: u64) {
        for asked in self.datagrams.asked.values_mut() {
            let askers = asked.ways.values_mut();
            for askers in askers.filter(|it| it.cookies.contains(&cookie)) {
                askers.at = askers.at.checked_sub(ANSWERS).unwrap();
            }
            let judged = asked.judged.get_mut(&cookie).into_iter().flatten();
            for (_, judged) in judged {
                judged.at = judged.at.checked_sub(ANSWERS).unwrap();
            }
        }
    }
}
