//! UDP sockets: made, bound, connected; and whom each may send to.

mod asked;
#[cfg(test)]
mod tests;

use super::gone::Gone;
use super::late::Late;
use super::sent::Sent;
use super::spares::Spares;
use super::*;
use crate::mediate::acts::leaving;
use crate::receivers::Receivers;
use crate::tally::Seen;
use asked::{ANSWERS, Asked};
use circuit::{Ip, Named, Socket, Way};
use rustix::net::{Shutdown, shutdown};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Sockets with datagrams of calls that a signal ended, and such datagrams of one.
const UNHEARD: usize = 64;
/// Bytes of all that is kept so.
const UNHEARD_BYTES: usize = 4 << 20;
/// Receivers that turn out to be gone while one is looked for.
pub(in crate::mediate) const TRIES: usize = 16;

/// A datagram that was taken for a program.
pub(in crate::mediate) struct Taken {
    /// What there was room for, of so many bytes, from who has this name.
    pub(in crate::mediate) data: Vec<u8>,
    pub(in crate::mediate) length: usize,
    pub(in crate::mediate) name: Option<[u8; 16]>,
}

/// What is known of datagram sockets beside the table: nothing that a successor must know.
#[derive(Default)]
pub(in crate::mediate) struct Datagrams {
    pub(in crate::mediate) receivers: Receivers,
    pub(in crate::mediate) epoch: u64,
    /// Since when another image rules, if one did before.
    since: Option<Instant>,
    is_ruled: bool,
    /// What each endpoint's sockets asked.
    asked: BTreeMap<u32, Asked>,
    /// Since when this operator knows, if there was one before.
    pub(in crate::mediate) follows: Option<Instant>,
    pub(in crate::mediate) sent: Sent,
    pub(in crate::mediate) gone: Gone,
    pub(in crate::mediate) spares: Spares,
    /// Connected to a port at which something changed, of this endpoint, and not yet linked anew.
    pub(in crate::mediate) late: Late,
    /// Connected where they may not send any more: cut, or looked for to be.
    pub(in crate::mediate) cut: BTreeSet<u64>,
    /// Those that may be linked, or not: linked again with the next change of the rules, if they may.
    pub(in crate::mediate) doubted: BTreeSet<u64>,
    /// Taken by the call that is being done, and by those that a signal ended before they heard
    /// of it: these are for the next call.
    pub(in crate::mediate) taken: Vec<(u64, Taken)>,
    pub(in crate::mediate) unheard: BTreeMap<u64, VecDeque<Taken>>,
    /// Shut for sending.
    pub(in crate::mediate) shut: BTreeSet<u64>,
    /// Connected, and sent to nobody: that is told with the next call.
    pub(in crate::mediate) refused: BTreeSet<u64>,
}

impl Datagrams {
    /// The call that is being done was not heard of.
    pub(in crate::mediate) fn not_heard(&mut self) {
        let kept = self.unheard.values().flatten();
        let mut bytes: usize = kept.map(|taken| taken.data.len()).sum();
        for (cookie, taken) in self.taken.drain(..) {
            bytes += taken.data.len();
            if bytes > UNHEARD_BYTES && guard!("circuits-unheard-bytes") {
                break;
            }
            // Sockets at which many were lost so are not many.
            if self.unheard.len() < UNHEARD || self.unheard.contains_key(&cookie) {
                let all = self.unheard.entry(cookie).or_default();
                if all.len() < UNHEARD {
                    all.push_back(taken);
                }
            }
        }
    }

    /// It waits for the next call again, before what waits besides.
    pub(in crate::mediate) fn keep(&mut self, cookie: u64, taken: Taken) {
        self.unheard.entry(cookie).or_default().push_front(taken);
    }

    /// What waits for the next call.
    pub(in crate::mediate) fn kept(&mut self, cookie: u64) -> Option<Taken> {
        let all = self.unheard.get_mut(&cookie)?;
        let first = all.pop_front();
        if all.is_empty() {
            self.unheard.remove(&cookie);
        }
        first
    }

    /// Of sockets that do not live nothing more is known, of those without a record either.
    pub(in crate::mediate) fn retain(&mut self, live: &BTreeSet<u64>) {
        // What those sent that are gone may still wait, as long as they are remembered.
        let gone: BTreeSet<u64> = self.gone.all().map(Socket::cookie).collect();
        self.spares
            .retain(|sender| live.contains(&sender) || gone.contains(&sender));
        let all = [
            &mut self.cut,
            &mut self.doubted,
            &mut self.shut,
            &mut self.refused,
        ];
        for cookies in all {
            cookies.retain(|cookie| live.contains(cookie));
        }
        self.asks_while_there(live);
        self.unheard.retain(|cookie, _| live.contains(cookie));
        self.sent.retain(live);
    }

    /// It is where it is to be.
    pub(in crate::mediate) fn settles(&mut self, cookie: u64) {
        self.cut.remove(&cookie);
        self.doubted.remove(&cookie);
    }

    /// Sockets are gone: what they sent may still lie in a queue, and be answered.
    pub(in crate::mediate) fn forget(&mut self, gone: &[Socket]) {
        for socket in gone {
            let cookie = socket.cookie();
            self.settles(cookie);
            self.shut.remove(&cookie);
            self.refused.remove(&cookie);
            self.asks_no_more(socket.endpoint(), cookie, socket.way());
            self.gone.insert(*socket);
        }
    }
}

impl Mediator {
    pub(in crate::mediate) fn make_datagram(
        &mut self,
        slot: u32,
        family: circuit::Family,
        nonblock: bool,
        closes: bool,
    ) -> Result<Came, Errno> {
        self.room_for_a_socket(slot)?;
        let name = secret()?;
        let made = sockets::datagram(nonblock, name)?;
        let created = self.table.create_datagram(made.cookie, slot, family, name);
        created.map_err(number)?;
        let count = self.counts.entry(slot).or_default();
        // Where it is refused it has what it had.
        let _ = sockets::widens(&made.fd, *count);
        *count += 1;
        Ok(Came::Datagram(made, closes))
    }

    /// A call about a datagram socket, if UDP's differs from TCP's.
    pub(in crate::mediate) fn perform_datagram(
        &mut self,
        slot: u32,
        cookie: u64,
        call: &mut Call<'_>,
    ) -> Option<Result<Came, Errno>> {
        let done = |result: Result<(), Errno>| result.map(|()| Came::To(Ok(0)));
        Some(if call.is(libc::SYS_sendto) || call.is(libc::SYS_sendmsg) {
            self.send(slot, cookie, call)
        } else if call.is(libc::SYS_sendmmsg) {
            self.send_many(slot, cookie, call)
        } else if [libc::SYS_recvfrom, libc::SYS_recvmsg, libc::SYS_recvmmsg]
            .iter()
            .any(|number| call.is(*number))
        {
            let received = self.receive(cookie, call);
            self.hears_askers();
            received
        } else if call.is(libc::SYS_connect) {
            done(self.connect_datagram(slot, cookie, call))
        } else if call.is(libc::SYS_bind) {
            done(self.bind_datagram(slot, cookie, call))
        } else if call.is(libc::SYS_shutdown) {
            done(self.shut_datagram(cookie, call))
        } else if call.is(libc::SYS_accept) || call.is(libc::SYS_accept4) {
            Err(Errno::OPNOTSUPP)
        } else {
            return None;
        })
    }

    fn bind_datagram(&mut self, slot: u32, cookie: u64, call: &Call<'_>) -> Result<(), Errno> {
        self.bind_of(cookie, call)?;
        self.seen(cookie, call);
        self.hear_bound(cookie);
        if let Some(port) = self.table.socket(cookie).map(|it| it.local().port) {
            self.changes_at(slot, port);
        }
        Ok(())
    }

    /// A socket is bound there, connected, or is so no more: who of others is linked to it is looked at again.
    fn changes_at(&mut self, slot: u32, port: u16) {
        self.settles_peers(slot, port);
        self.link_all(slot, port);
    }

    fn shut_datagram(&mut self, cookie: u64, call: &Call<'_>) -> Result<(), Errno> {
        let [_, how, _] = call.numbers();
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Errno::INVAL),
        };
        shutdown(call.fd()?, how)?;
        if how != Shutdown::Read {
            self.datagrams.shut.insert(cookie);
        }
        // Linux shuts it, and says so of one that is not connected.
        self.table.getpeername(cookie).map(drop).map_err(number)
    }

    /// Where its program has a socket.
    fn seen(&mut self, cookie: u64, call: &Call<'_>) {
        let place = call.place(call.numbers()[0].cast_unsigned());
        self.table.place(cookie, place);
    }

    fn connect_datagram(&mut self, slot: u32, cookie: u64, call: &Call<'_>) -> Result<(), Errno> {
        let address = call.address()?;
        let family = address.first_chunk().ok_or(Errno::INVAL)?;
        if u16::from_ne_bytes(*family) == libc::AF_UNSPEC as u16 {
            let was = self.disconnects(slot, cookie)?;
            sockets::disconnects(call.fd()?)?;
            self.unlinks(cookie);
            self.is_sought_no_more(cookie);
            if let Some(was) = was {
                self.hears_anew(slot, cookie);
                self.changes_at(slot, was.port);
            }
            return Ok(());
        }
        self.bind_by_use(cookie)?;
        let to = match self.table.datagram_peer(cookie, &address).map_err(number)? {
            Named::At(to) => to,
            Named::Disconnect => return Err(Errno::INVAL),
        };
        let way = self.table.way(cookie, to, None).map_err(number)?;
        let outside = self.is_outside(slot, &way);
        let to = match outside {
            true => None,
            false => self.may_ask((slot, cookie), way, false)?,
        };
        self.table.connect_datagram(cookie, way).map_err(number)?;
        self.seen(cookie, call);
        let linked = match outside {
            true => self.leads_outside(call, cookie, &way),
            false => self.leads_inside(call, cookie, (to, &way)),
        };
        if linked.is_ok() {
            // What it was connected to before it is no more.
            self.is_sought_no_more(cookie);
        }
        self.changes_at(slot, way.local.port);
        linked
    }

    fn leads_outside(&mut self, call: &Call<'_>, cookie: u64, way: &Way) -> Result<(), Errno> {
        if let Err(errno) = self.link_outside(call.fd()?, cookie, way) {
            self.table.disconnect(cookie).map_err(number)?;
            return Err(errno);
        }
        self.unlinks(cookie);
        Ok(())
    }

    fn leads_inside(
        &mut self,
        call: &Call<'_>,
        cookie: u64,
        (to, way): (Option<u32>, &Way),
    ) -> Result<(), Errno> {
        self.table.carry(cookie, Carrier::Kernel, 0);
        match to {
            Some(to) => {
                // Should that fail, it may still go where it did.
                self.datagrams.doubted.insert(cookie);
                self.link(call.fd()?, to, way)?;
                self.links(cookie, to);
            }
            None => {
                sockets::connects_to_nobody(call.fd()?, secret()?)?;
                self.unlinks(cookie);
                self.datagrams.cut.insert(cookie);
            }
        }
        Ok(())
    }

    /// It is connected to nobody, and may have another port by its next use; the one that it had.
    pub(in crate::mediate) fn disconnects(
        &mut self,
        slot: u32,
        cookie: u64,
    ) -> Result<Option<Endpoint>, Errno> {
        let was = self.table.socket(cookie).copied();
        self.table.disconnect(cookie).map_err(number)?;
        let was = was.map(|it| (it.local(), it.way()));
        let is = self.table.socket(cookie).map(Socket::local);
        // What it asked from its port is nobody's question where that is given up, and what comes back is none either.
        if let Some((was, way)) = was
            && is.is_none_or(|it| it.port != was.port)
        {
            self.datagrams.asks_no_more(slot, cookie, way);
        }
        Ok(was.map(|(was, _)| was))
    }

    pub(in crate::mediate) fn bind_by_use(&mut self, cookie: u64) -> Result<(), Errno> {
        let chance = chance::number();
        let bind = |this: &mut Mediator| this.table.bind_by_use(cookie, chance);
        self.once_swept(circuit::Errno::EAGAIN, bind)
            .map_err(number)
    }

    /// A socket that turned out to be gone.
    pub(in crate::mediate) fn lost(&mut self, cookie: u64) {
        let gone: Vec<Socket> = self.table.socket(cookie).copied().into_iter().collect();
        self.datagrams.forget(&gone);
        let _ = self.table.closed(cookie);
    }

    fn wish(slot: u32, way: &Way) -> Wish {
        Wish {
            slot,
            from: way.local.ip,
            from_port: way.local.port,
            to: way.remote.ip,
            to_port: way.remote.port,
            protocol: decide::UDP,
        }
    }

    /// The slot of the endpoint that something goes to, whether it may or not.
    pub(in crate::mediate) fn located(&self, slot: u32, way: &Way) -> Result<u32, Errno> {
        if self.table.destination(slot, &way.remote.ip) == Some(slot) {
            return Ok(slot);
        }
        let image = self.image.as_ref().map(MappedCompartment::image);
        Ok(decide::locate(
            &image.ok_or(Errno::NETDOWN)?,
            &Self::wish(slot, way),
        )?)
    }

    /// The slot of the endpoint that a socket may send to: by the rules, or as an answer to
    /// whom it is asked by. `None`: it is an answer to who is gone, and gets nowhere; who sends it
    /// could not know.
    pub(in crate::mediate) fn may_send(
        &mut self,
        slot: u32,
        cookie: u64,
        way: Way,
    ) -> Result<Option<u32>, Errno> {
        self.may_ask((slot, cookie), way, true)
    }

    /// The same of who sends, or is to be connected.
    pub(in crate::mediate) fn may_ask(
        &mut self,
        (slot, cookie): (u32, u64),
        way: Way,
        sends: bool,
    ) -> Result<Option<u32>, Errno> {
        let now = Instant::now();
        let epoch = self.datagrams.epoch;
        if let Some(asked) = self.datagrams.asked.get_mut(&slot)
            && let Some(judged) = asked.judged.get_mut(&cookie)
            && let Some(judged) = judged.get_mut(&way)
            && judged.epoch == epoch
            // Who is silent for longer has its answerers cut: they are linked below.
            && (now.saturating_duration_since(judged.at) < ANSWERS || !guard!("circuits-silent"))
        {
            judged.at = now;
            if judged.asks
                && let Some(askers) = asked.ways.get_mut(&way)
            {
                askers.at = now;
                askers.sent |= sends;
            }
            return Ok(Some(judged.to));
        }
        let seen = Seen {
            protocol: decide::UDP,
            ..leaving(slot, way.local, way.remote)
        };
        let (decided, is_answer) = match self.judged(slot, &way) {
            Ok(judged) => judged,
            Err(refused) if refused.errno == Errno::ACCESS && self.is_late_answer(slot, &way) => {
                return Ok(None);
            }
            Err(refused) => return Err(self.refuses(&seen, &refused)),
        };
        let to = decided.slot;
        // It is one for as long as who asked is there, and has not gone on to ask others.
        if is_answer {
            return Ok(Some(to));
        }
        if to != slot {
            self.begins(&seen, decided.rules);
        }
        self.judges_asked(slot, (to, &way));
        // What waits unread where it was sent is answered still.
        if self.is_of_what_ended(slot, (to, &way)) {
            return Ok(Some(to));
        }
        self.is_noted((slot, cookie), (to, way), sends);
        // Those that could not answer before may now.
        let unlinked = [&self.datagrams.cut, &self.datagrams.doubted];
        if unlinked.iter().any(|all| !all.is_empty()) && guard!("circuits-asked-again") {
            self.link_answerers(slot, to, &way);
        }
        Ok(Some(to))
    }

    /// The same, judged anew; and whether it is an answer.
    pub(in crate::mediate) fn judge(&self, slot: u32, way: &Way) -> Result<(u32, bool), Errno> {
        let (decided, is_answer) = self.judged(slot, way)?;
        Ok((decided.slot, is_answer))
    }

    /// The same, with the rules.
    fn judged(&self, slot: u32, way: &Way) -> Result<(Decided, bool), Refused> {
        self.judged_by(slot, way, true)
    }

    /// The same; not as an answer, unless it `may_answer`.
    fn judged_by(
        &self,
        slot: u32,
        way: &Way,
        may_answer: bool,
    ) -> Result<(Decided, bool), Refused> {
        if self.table.destination(slot, &way.remote.ip) == Some(slot) {
            let inside = Decided {
                slot,
                rules: [None; 2],
            };
            return Ok((inside, false));
        }
        let image = self.image.as_ref().map(MappedCompartment::image);
        let image = image.ok_or(decide::NO_IMAGE)?;
        let wish = Self::wish(slot, way);
        let (decided, is_answer) = match decide::decide(&image, &wish) {
            Err(refused) if refused.errno == Errno::ACCESS && may_answer => {
                let answered = decide::decide_answer(&image, &wish).or(Err(refused))?;
                if !self.was_asked(slot, (answered.slot, way)) && guard!("circuits-answers") {
                    return Err(refused);
                }
                (answered, true)
            }
            decided => (decided?, false),
        };
        let to = decided.slot;
        // What is sent natively nobody could count, or hold to a rate.
        if self.meters.carries([slot, to]) && guard!("circuits-metered-datagrams") {
            return Err(Refused::new(Errno::ACCESS, DropReason::Unmetered));
        }
        match to == slot || self.limits.contains_key(&to) {
            true => Ok((decided, is_answer)),
            false => Err(decide::NOBODY),
        }
    }

    /// Whether something was sent from where this goes to where it comes from.
    fn was_asked(&self, slot: u32, (to, way): (u32, &Way)) -> bool {
        let back = back(way);
        // Of those that share a port any may have asked, and another hear the answer.
        let is_there = |cookie: &u64| {
            let asker = self.table.socket(*cookie);
            asker.is_some_and(|it| it.endpoint() == to && it.local().port == back.local.port)
        };
        // Who is connected may have sent natively.
        let is_ended =
            self.datagrams.ended_at(to, &back).is_some() || self.was_denied(slot, (to, way));
        let is_connected = self.table.is_connected(to, &back);
        let asked = self.is_asked(slot, (to, way));
        is_connected && !(is_ended && guard!("circuits-connected-ended"))
            || asked.is_some_and(|it| it.cookies.iter().any(is_there))
    }

    /// The same, by who is gone. Another that has the port since did not ask.
    fn is_late_answer(&self, slot: u32, way: &Way) -> bool {
        let image = self.image.as_ref().map(MappedCompartment::image);
        let answered =
            image.and_then(|image| decide::decide_answer(&image, &Self::wish(slot, way)).ok());
        let asked = answered.and_then(|to| self.is_asked(slot, (to.slot, way)));
        // Else it goes on, from elsewhere.
        asked.is_some_and(|it| it.cookies.is_empty()) && guard!("circuits-late-answers")
    }
}

/// The way of an answer.
pub(in crate::mediate) fn back(way: &Way) -> Way {
    Way {
        local: way.remote,
        remote: way.local,
    }
}

/// Of a group that shares a port one is picked by the way, so that what belongs together goes
/// to one (FNV-1a).
pub(in crate::mediate) fn hash(way: &Way) -> u32 {
    let port = |port: u16| port.to_ne_bytes();
    let ends: [&Ip; 2] = [&way.local.ip, &way.remote.ip];
    let ports = [port(way.local.port), port(way.remote.port)].concat();
    let bytes = ends.into_iter().flatten().chain(&ports);
    bytes.fold(0x811c_9dc5, |hash: u32, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}
