//! To whom the kernel takes what connected datagram sockets send natively: linked, linked again
//! with what changes at a port or in the rules, and cut.

use super::late::Wanted;
use super::transitions::{TRIES, back, hash};
use super::*;
use circuit::{Socket, Way};
use core::ops::Range;
use notify::filter::MEDIATED;
use worker::clock::spent_by_thread;

/// Sockets that are linked anew at a time.
const LINKED: usize = 32;
/// Whom a socket is linked to whose programs were left behind.
const GONE: u32 = u32::MAX - 1;
/// Threads of an endpoint that are searched for sockets that are not where they were seen: those
/// that called last.
const SEARCHED: usize = 4;

impl Mediator {
    /// Has what a connected socket sends natively go to who hears it now.
    pub(in crate::mediate) fn link(
        &mut self,
        fd: &OwnedFd,
        to: u32,
        way: &Way,
    ) -> Result<(), Errno> {
        let own = sockets::name(fd);
        let mut freed = false;
        for _ in 0..TRIES {
            let Some(receiver) = self.table.find_receiver(to, way, hash(way)) else {
                break;
            };
            match sockets::connects(fd, receiver.name) {
                // What it heard when another end went away is nothing that UDP tells.
                Ok(()) => return sockets::forgets_error(fd),
                Err(Errno::CONNREFUSED | Errno::NOENT) => self.lost(receiver.cookie),
                Err(Errno::PERM) if !freed => {
                    freed = true;
                    sockets::disconnects(fd)?;
                    self.free(receiver.cookie, own, way);
                }
                Err(Errno::PERM) => break,
                Err(errno) => return Err(errno),
            }
        }
        sockets::connects_to_nobody(fd, secret()?)
    }

    /// A receiver that is linked to another than whom it hears now (`own`, who sends this way)
    /// is linked to that one where it may send there, else to none.
    fn free(&mut self, receiver: u64, own: Option<[u8; 16]>, way: &Way) {
        let Some(receiver) = self.table.socket(receiver).copied() else {
            return;
        };
        let Some(fd) = self.at_place(&receiver) else {
            return;
        };
        let back = receiver.way().filter(|back| back.remote == way.local);
        let may = back.and_then(|back| self.judge(receiver.endpoint(), &back).ok());
        // An error shows where the sender is linked next.
        let _ = match own.zip(may) {
            Some((name, (to, _))) => {
                self.links(receiver.cookie(), to);
                self.is_sought_no_more(receiver.cookie());
                sockets::connects(&fd, name)
            }
            None => {
                self.table.link(receiver.cookie(), None);
                sockets::disconnects(&fd)
            }
        };
        let _ = sockets::forgets_error(&fd);
    }

    /// It is connected to nobody, or elsewhere.
    pub(in crate::mediate) fn unlinks(&mut self, cookie: u64) {
        self.datagrams.settles(cookie);
        self.table.link(cookie, None);
    }

    /// It is linked to an endpoint's.
    pub(in crate::mediate) fn links(&mut self, cookie: u64, to: u32) {
        self.datagrams.settles(cookie);
        self.table.link(cookie, self.id_of(to));
        let carrier = self.table.socket(cookie).map(Socket::carrier);
        if carrier == Some(Carrier::Proxy) {
            self.table.carry(cookie, Carrier::Kernel, 0);
        }
    }

    /// An endpoint's programs are left behind, perhaps with sockets that others' are linked to: those are cut, or linked
    /// to whose the address is.
    pub(in crate::mediate) fn unlinks_from(&mut self, slot: u32) {
        let Some(id) = self.id_of(slot) else { return };
        let all = self.table.all().filter(|it| it.linked() == Some(id));
        let all: Vec<u64> = all.map(Socket::cookie).collect();
        for cookie in all {
            self.table.link(cookie, Some(GONE));
        }
    }

    /// The number that a slot's endpoint has for as long as there is one.
    pub(in crate::mediate) fn id_of(&self, slot: u32) -> Option<u32> {
        let image = self.image.as_ref().map(MappedCompartment::image)?;
        let at = image.endpoint_by_slot(slot)? as usize;
        Some(image.endpoints().get(at)?.id)
    }

    /// Whether it is linked to another endpoint's than this one's.
    pub(in crate::mediate) fn is_elsewhere(&self, cookie: u64, to: u32) -> bool {
        let linked = self.table.socket(cookie).and_then(Socket::linked);
        linked.is_some_and(|it| Some(it) != self.id_of(to)) && guard!("circuits-linked-to")
    }

    /// Those that are cut and connected to where this was sent from may answer it now: of whom it was sent to.
    pub(in crate::mediate) fn link_answerers(&mut self, slot: u32, to: u32, way: &Way) {
        let unlinked = [&self.datagrams.cut, &self.datagrams.doubted];
        let all = self.table.connected_by(to, back(way));
        let all = all.map(Socket::cookie);
        let late = all.filter(|it| unlinked.iter().any(|all| all.contains(it)));
        let late: Vec<u64> = late.collect();
        if !late.is_empty() {
            for cookie in late {
                self.is_late_to(cookie, slot);
            }
            self.link_late();
        }
    }

    /// Links those anew that are connected to a port at which something changed, where they may still send.
    /// Bound: as many as are linked at a time; others are when nobody calls, or with each call. Whose sockets lead there is
    /// asked once for each endpoint, not for each of its sockets.
    pub(in crate::mediate) fn link_all(&mut self, slot: u32, port: u16) {
        let image = self.image.as_ref().map(MappedCompartment::image);
        let leads = |to: &Endpoint, of| {
            let is_own = of == slot && self.table.destination(of, &to.ip) == Some(slot);
            let whose = || decide::whose(image.as_ref()?, of, to.ip);
            is_own || whose() == Some(slot) || !guard!("circuits-late-place")
        };
        let places = self.table.connectors(slot, port);
        let places: Vec<_> = places.filter(|(to, of)| leads(to, *of)).collect();
        for (to, of) in places {
            self.datagrams.late.insert_all(of, (to, slot));
        }
        self.link_late();
    }

    /// It is to be linked to an endpoint's when its own has its turn.
    pub(in crate::mediate) fn is_late_to(&mut self, cookie: u64, slot: u32) {
        if let Some(socket) = self.table.socket(cookie) {
            self.datagrams
                .late
                .insert(socket.endpoint(), (cookie, slot));
        }
    }

    /// Whether some are still to be linked.
    #[cfg(test)]
    pub fn is_late(&self) -> bool {
        self.late_in().is_some()
    }

    /// How long until some are to be linked, if any are.
    pub fn late_in(&self) -> Option<Duration> {
        let now = Instant::now();
        let due = self.datagrams.late.due(now)?;
        Some(due.saturating_duration_since(now))
    }

    /// Links some of those anew that are connected to a port at which something changed: a few of
    /// each endpoint, which has had this process for as long as its own take.
    pub fn link_late(&mut self) {
        let most = match guard!("circuits-late") {
            true => LINKED,
            false => usize::MAX,
        };
        let (mut of, mut many, now) = (BTreeMap::new(), 0, Instant::now());
        while many < most
            && let Some((owner, wanted)) = self.datagrams.late.next(now)
        {
            // Also one that leads elsewhere by now: it was looked at.
            many += 1;
            let (socket, slot) = match wanted {
                Wanted::One(cookie, slot) => (self.table.socket(cookie).copied(), slot),
                Wanted::All(all) => {
                    let next = self.table.connected_to(all.to, owner, all.next).next();
                    let (at, socket) = next.map(|(at, it)| (at, *it)).unzip();
                    self.datagrams.late.passed(owner, all, at);
                    (socket, all.slot)
                }
            };
            let found = socket.and_then(|it| Some((it, it.way()?)));
            let found = found.filter(|(it, way)| self.located(it.endpoint(), way) == Ok(slot));
            if let Some(found) = found {
                of.entry(owner).or_insert_with(Vec::new).push(found);
            }
        }
        for (owner, to_it) in of {
            let begun = self.starts();
            // Not by a clock: another may have had the processor.
            let before = spent_by_thread();
            let (mut joined, mut cut) = (Vec::new(), Vec::new());
            for (socket, way) in to_it {
                match self.judge(socket.endpoint(), &way) {
                    Ok((to, _)) => joined.push((socket, to, way)),
                    Err(_) => cut.push(socket),
                }
            }
            self.join_all(&joined, false);
            self.cut_all(&cut);
            let worked = Duration::from_nanos(spent_by_thread().saturating_sub(before));
            let took = self.done_for(owner, begun).max(worked);
            self.datagrams.late.took(owner, took, Instant::now());
        }
    }

    /// Links them where they are to be. One that is not found is looked for, to be linked where it is, if it `seeks` and it
    /// is not linked so already: searches are for who changes the rules.
    fn join_all(&mut self, joined: &[(Socket, u32, Way)], seeks: bool) {
        let sockets: Vec<Socket> = joined.iter().map(|(socket, ..)| *socket).collect();
        let fds = self.taken(
            &sockets,
            MEDIATED.start.cast_signed()..MEDIATED.end.cast_signed(),
        );
        let (mut elsewhere, mut sought) = (Vec::new(), Vec::new());
        for (socket, to, way) in joined {
            let cookie = socket.cookie();
            let linked = self.table.socket(cookie).and_then(Socket::linked);
            if let Some(fd) = fds.get(&cookie) {
                if self.link(fd, *to, way).is_ok() {
                    self.is_sought_no_more(cookie);
                    self.links(cookie, *to);
                }
            } else if self.is_elsewhere(cookie, *to) {
                elsewhere.push(*socket);
            } else if linked.is_none() && guard!("circuits-linked-sought") {
                sought.extend(seeks.then_some(*socket));
            } else if self.is_sought_no_more(cookie) && guard!("circuits-linked-still") {
                // Nobody found it to cut it either: it is linked as it was.
                self.datagrams.cut.remove(&cookie);
                self.datagrams.doubted.insert(cookie);
            }
            // One that is not found is tried again when something changes at its port, or in the rules.
        }
        self.cut_all(&elsewhere);
        self.seek_all(sought);
        self.write();
    }

    /// Looks for those that send to nobody, to be linked where they are found.
    pub(in crate::mediate) fn seek_all(&mut self, mut sought: Vec<Socket>) {
        sought.retain(|it| !self.is_hunted(it.cookie()));
        self.datagrams.cut.extend(sought.iter().map(Socket::cookie));
        self.cut(
            sought
                .into_iter()
                .map(|it| (it.cookie(), vec![it]))
                .collect(),
        );
    }

    /// What they send natively goes to nobody, until they may again.
    pub(in crate::mediate) fn cut_all(&mut self, sockets: &[Socket]) {
        let cut = &mut self.datagrams.cut;
        let new: Vec<Socket> = sockets
            .iter()
            .filter(|socket| cut.insert(socket.cookie()))
            .copied()
            .collect();
        self.counts_cut(new.len());
        let cut = new.into_iter().map(|it| (it.cookie(), vec![it]));
        self.cut(cut.collect());
    }

    /// Copies of sockets, by cookie: from where they were seen, else from any thread of their
    /// endpoint that has called, at these numbers. Each thread's are looked through once.
    pub(in crate::mediate) fn taken(
        &self,
        sockets: &[Socket],
        numbers: Range<i32>,
    ) -> BTreeMap<u64, OwnedFd> {
        let (mut taken, mut wanted) = (BTreeMap::new(), BTreeMap::new());
        for socket in sockets {
            match self.at_place(socket) {
                Some(fd) => drop(taken.insert(socket.cookie(), fd)),
                None => drop(wanted.insert(socket.cookie(), socket.endpoint())),
            }
        }
        let slots: BTreeSet<u32> = wanted.values().copied().collect();
        let threads: Vec<(u32, u32)> = slots
            .iter()
            .flat_map(|slot| {
                let last = self.callers.of(*slot).take(SEARCHED);
                last.map(|thread| (*slot, thread))
            })
            .collect();
        for (slot, thread) in threads {
            if self.has_stood(slot) {
                continue;
            }
            let shown = |cookie, fd| {
                if wanted.remove(&cookie).is_some() {
                    taken.insert(cookie, fd);
                }
                !wanted.is_empty()
            };
            let looks = || circuits::search(thread, numbers.clone(), shown);
            self.stands(slot, looks);
        }
        taken
    }

    /// Links all anew that are not cut: the operator before may have died between a change and
    /// what follows from it. Who is linked rightly is not changed.
    pub(in crate::mediate) fn link_everybody(&mut self) {
        let joined: Vec<(Socket, u32, Way)> = self
            .table
            .all()
            .filter(|socket| socket.kind() == Kind::Datagram)
            .filter(|socket| !self.datagrams.cut.contains(&socket.cookie()))
            // Those that lead outside wait for the proxy.
            .filter(|it| it.carrier() != Carrier::Proxy)
            .filter_map(|socket| {
                let way = socket.way()?;
                Some((*socket, self.located(socket.endpoint(), &way).ok()?, way))
            })
            .collect();
        self.join_all(&joined, true);
    }

    /// Cuts and joins again those that are connected, by what the image allows now.
    pub(in crate::mediate) fn review_datagrams(&mut self) {
        let connected: Vec<(Socket, Way)> = self
            .table
            .all()
            .filter(|socket| socket.kind() == Kind::Datagram)
            .filter_map(|socket| Some((*socket, socket.way()?)))
            .collect();
        let (mut joined, mut cut, mut outside) = (Vec::new(), Vec::new(), Vec::new());
        for (socket, way) in connected {
            let cookie = socket.cookie();
            let was_cut =
                self.datagrams.cut.contains(&cookie) || self.datagrams.doubted.contains(&cookie);
            let is_linked = socket.linked().is_some();
            let leads = self.outside.leads(cookie, &way);
            let has_led = self.outside.has(cookie, &way);
            // Packets are judged, where they go.
            if self.is_led_out(&socket, &way) {
                if !leads || was_cut || is_linked {
                    outside.push(socket);
                }
                continue;
            }
            let judged = self.judge(socket.endpoint(), &way);
            if let Ok((to, false)) = judged {
                self.is_connected_to_ask(&socket, to, &way);
            }
            match judged {
                Ok((to, _)) if !was_cut && !has_led && !self.is_elsewhere(cookie, to) => {}
                // Whether the other end is of circuits is not known to an operator that starts; that nobody has the
                // address, or who had it is gone, is.
                Err(Errno::HOSTUNREACH)
                    if !was_cut
                        && !has_led
                        && self
                            .located(socket.endpoint(), &way)
                            .is_ok_and(|to| !self.is_elsewhere(cookie, to)) => {}
                Ok((to, _)) => joined.push((socket, to, way)),
                // Nor who has a proxy, by which others are reached.
                Err(Errno::NETUNREACH) if self.limits.is_empty() => {}
                Err(_) if guard!("circuits-cut-datagrams") => cut.push(socket),
                Err(_) => {}
            }
        }
        self.join_all(&joined, true);
        self.cut_all(&cut);
        self.join_outside(&outside, true);
    }
}
