//! Circuits that lead to an endpoint or address that is gone, or another's by now: whose they are, and their end.

use super::*;

impl Mediator {
    /// Whose address is gone, or endpoint, has no circuit by it any more.
    pub(super) fn are_gone(&mut self, gone: impl Iterator<Item = circuit::Socket>) {
        let (datagrams, streams): (Vec<_>, Vec<_>) =
            gone.partition(|socket| socket.kind() == Kind::Datagram);
        self.cut_all(&datagrams);
        let begun = streams
            .iter()
            .filter(|it| it.is_initiator() || it.is_let_in());
        self.counts_cut(self.count_living(begun.map(circuit::Socket::cookie)));
        if guard!("circuits-address-gone") {
            let (mut left, metered) = (Vec::new(), self.metered());
            for socket in streams {
                // There may be many thousands.
                self.beats();
                let ends = self.ends_of(&socket, &metered);
                // The meter knows it by who began it, and that one alone is known to be metered.
                let metered = ends.iter().find(|it| it.carrier().is_metered()).copied();
                match metered.filter(|it| self.end_metered(it)) {
                    Some(began) => {
                        self.unclaimed.ends(socket.cookie());
                        for one in [socket.cookie(), began.cookie()] {
                            let _ = self.table.disconnect(one);
                        }
                    }
                    None => left.push((socket.cookie(), ends)),
                }
            }
            self.cut(left);
        }
    }

    /// Who began a circuit whose address another endpoint has by now, or none.
    pub(super) fn who_leads_elsewhere(&self) -> Vec<circuit::Socket> {
        if self.image.is_none() {
            return Vec::new();
        }
        self.who_leads(|it| {
            let way = it.remote().map(|remote| circuit::Way {
                local: it.local(),
                remote,
            });
            let to = way.and_then(|way| self.located(it.endpoint(), &way).ok());
            to.and_then(|to| self.id_of(to)) != it.linked()
        })
    }

    /// Of those who began a circuit, or an operator before this one came to its end over that, the ones that these are, and whose
    /// other end is not known: a program may have had the kernel accept it, past this process.
    pub(super) fn who_leads(&self, are: impl Fn(&circuit::Socket) -> bool) -> Vec<circuit::Socket> {
        let begins = |it: &&circuit::Socket| {
            let is_here = it.kind() == Kind::Stream && it.crossing() == 0;
            is_here && it.carrier() != Carrier::Proxy && it.linked().is_some()
        };
        let alone = |it: &&circuit::Socket| {
            // There may be many thousands.
            self.beats();
            self.table.other_ends(it.cookie()).next().is_none()
        };
        let all = self.table.all().filter(begins).filter(|it| are(it));
        let mut all: Vec<_> = all.filter(alone).copied().collect();
        all.retain(|_| guard!("circuits-left-reached"));
        all
    }

    /// Who began by the meter what is inside this compartment, by the tokens with which that waits to be accepted.
    fn metered(&self) -> BTreeMap<u64, circuit::Socket> {
        let begins = |it: &&circuit::Socket| it.generation() != 0 && it.remote().is_some();
        let all = self.table.all().filter(begins);
        let inside = all.filter(|it| it.crossing() == 0 && it.carrier().is_metered());
        inside.map(|it| (it.token(), *it)).collect()
    }

    /// The ends of a circuit, with who began it by the meter, also where the socket is in the table no more. By its
    /// token: that of what came by an agreement, or by a proxy, is of another's choice, or of nobody's.
    fn ends_of(
        &self,
        socket: &circuit::Socket,
        metered: &BTreeMap<u64, circuit::Socket>,
    ) -> Vec<circuit::Socket> {
        let mut ends = circuits::ends(&self.table, socket.cookie());
        if ends.is_empty() {
            ends.push(*socket);
        }
        let by_token = socket.generation() == 0 && socket.crossing() == 0 && !socket.is_let_in();
        if !ends.iter().any(|it| it.carrier().is_metered()) && by_token {
            ends.extend(metered.get(&socket.token()));
        }
        ends
    }
}

/// Who began what waits to be accepted at these sockets, of the tenants' own. Bound: sockets.
pub(super) fn who_waits<'a>(
    table: &Table,
    at: impl Iterator<Item = &'a circuit::Socket>,
) -> Vec<circuit::Socket> {
    let waiting = at.flat_map(|it| table.waiting(it.cookie()));
    let waiting = waiting.filter(|it| it.crossing == 0 && !it.relayed);
    who_began(table, &waiting.map(|it| it.token).collect())
}

/// Each once.
pub(super) fn joins(all: &mut Vec<circuit::Socket>, others: Vec<circuit::Socket>) {
    let known: BTreeSet<u64> = all.iter().map(circuit::Socket::cookie).collect();
    all.extend(
        others
            .into_iter()
            .filter(|it| !known.contains(&it.cookie())),
    );
}

pub(super) fn who_began(table: &Table, tokens: &BTreeSet<u64>) -> Vec<circuit::Socket> {
    if tokens.is_empty() {
        return Vec::new();
    }
    // Also who is about to: an operator before this one may have come to its end over it.
    let begins = |it: &circuit::Socket| it.generation() != 0 && it.remote().is_some();
    let began = table.all().filter(|it| begins(it) && it.crossing() == 0);
    began
        .filter(|it| it.kind() == Kind::Stream && tokens.contains(&it.token()))
        .copied()
        .collect()
}
