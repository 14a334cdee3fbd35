//! What there is: the image, endpoints, what the image allows, and what is written of all that to the page.

use super::gone::{joins, who_began, who_waits};
use super::*;
use telemetry::operator::DELAYED;

/// Circuits, by the cookies of who began them, or who was let in, with the ends that are here.
type Circuits = Vec<(u64, Vec<circuit::Socket>)>;

impl Mediator {
    /// Decides by this image from now on.
    pub fn use_image(&mut self, image: MappedCompartment<SealedImage>) {
        self.meters.decide_by(&image.image());
        self.image = Some(image);
        // What was judged by another is judged anew.
        self.datagrams.epoch += 1;
        self.doubts_lost();
        self.settle();
        self.asks_anew();
        self.review();
        self.tells_meter();
    }

    /// Whether it was told where the sockets of before are noted.
    pub fn knows_its_sockets(&self) -> bool {
        self.notes.is_some()
    }

    /// The number that the next program has; 0: nobody knows of any.
    pub fn next_program(&self) -> u32 {
        self.notes.as_ref().map_or(0, Notes::next)
    }

    /// Another.
    pub fn has_next_program(&self, next: u32) {
        if let Some(notes) = &self.notes {
            notes.has_next(next);
        }
    }

    /// Nothing is to be done until somebody calls.
    pub fn sleeps(&self) {
        if let Some(notes) = &self.notes {
            notes.sleeps();
        }
    }

    /// Something is.
    pub fn wakes(&self) {
        if let Some(notes) = &self.notes {
            notes.wakes();
        }
    }

    /// A connection is in this process alone from now on; or is not.
    pub(super) fn takes(&self, takes: bool) {
        if let Some(notes) = &self.notes {
            notes.takes(takes);
        }
    }

    /// Endpoints that have made a socket, or begun or accepted a connection, once for each, since
    /// this was asked.
    pub fn begun(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.begun)
    }

    /// What calls took that went on by another's, or by none, since this was asked.
    pub fn spent(&mut self) -> Vec<Spent> {
        let mut all = std::mem::take(&mut self.spent);
        all.append(&mut self.stood.get_mut().taken());
        for cookie in self.misplaced.take() {
            self.table.place(cookie, 0);
        }
        all
    }

    /// Calls of an endpoint that wait for datagrams are left waiting, or no more.
    ///
    /// # Errors
    /// The kernel's: some would wait for ever.
    pub fn holds(&mut self, slot: u32, holds: bool) -> Result<(), Errno> {
        self.datagrams.receivers.hold(slot, holds)
    }

    /// Calls of an endpoint that have no answer yet.
    pub fn unanswered(&self, slot: u32) -> usize {
        let notes = self.notes.as_ref();
        notes.map_or(0, |notes| notes.unanswered(slot))
    }

    /// An endpoint's calls wait, being too many.
    pub fn delays(&self) {
        if let Some(notes) = &self.notes {
            notes.counts(DELAYED, 1);
        }
    }

    /// An endpoint of circuits.
    pub fn opens(&mut self, slot: u32, sockets: u32) {
        self.limits.insert(slot, sockets);
        self.owns_slots();
        self.count();
    }

    /// Its port, by a number that the one before it has not had. Where the endpoint was made anew, and the operator before was told of
    /// neither, what is of the former port goes.
    pub fn plugs(&mut self, slot: u32, port: u64) {
        let before = self.notes.as_ref().map_or(0, |notes| notes.port(slot));
        if before != 0 && before != port && guard!("circuits-port-anew") {
            self.leaves_behind(slot);
            self.is_anew = true;
        }
        if let Some(notes) = &self.notes {
            notes.has_port(slot, port);
        }
    }

    /// All that have circuits are told of: others have none any more, whoever was to be told.
    pub fn has_plugged(&mut self) {
        let all = self.table.all().map(circuit::Socket::endpoint);
        let gone: BTreeSet<u32> = all.filter(|it| !self.limits.contains_key(it)).collect();
        for slot in gone.into_iter().filter(|_| guard!("circuits-port-gone")) {
            self.leaves_behind(slot);
            self.is_anew = true;
        }
        if std::mem::take(&mut self.is_anew) {
            self.review_datagrams();
            self.write();
        }
    }

    /// It is none any more, or is made anew: its programs are left behind, and with them their
    /// sockets. Who would be let in to one that listens would wait for nobody.
    pub fn closes(&mut self, slot: u32) {
        self.limits.remove(&slot);
        self.leaves_behind(slot);
        if guard!("circuits-left-behind") {
            self.review_datagrams();
        }
        // The next one's there is charged for nothing of it, nor rests for it.
        self.spent.retain(|it| it.slot != slot);
        self.stood.get_mut().forgets(slot);
        self.datagrams.closes(slot);
        self.datagrams.late.closes(slot);
        self.datagrams.spares.closes(slot);
        self.write();
    }

    fn leaves_behind(&mut self, slot: u32) {
        let of = self.table.all().filter(|socket| socket.endpoint() == slot);
        let of: Vec<circuit::Socket> = of.copied().collect();
        // Who waits to be accepted waits for nobody, as long as the old program keeps its socket.
        let mut waiting = who_waits(&self.table, of.iter());
        waiting.retain(|_| guard!("circuits-left-waiting"));
        let id = self.id_of(slot);
        let reached = self.who_leads(|it| it.linked() == id);
        joins(&mut waiting, reached);
        waiting.retain(|it| it.endpoint() != slot);
        // Cut before they are forgotten: who comes to an end on the way has who follows begin anew.
        let of_it = of.iter().filter(|it| it.remote().is_some());
        self.are_gone(of_it.copied().chain(waiting));
        let listens =
            |it: &&circuit::Socket| matches!(it.state(), circuit::State::Listening { .. });
        for listener in of.iter().filter(listens) {
            self.empties(listener);
        }
        for socket in &of {
            let _ = self.table.closed(socket.cookie());
        }
        self.settle_relays();
        self.outside.closes(slot);
        self.callers.forget(slot);
        self.unlinks_from(slot);
        self.write();
        if let Some(notes) = &self.notes {
            notes.has_port(slot, 0);
        }
    }

    /// Nobody accepts who waits there any more: as long as anybody does it is readable, and who polls it would never
    /// rest.
    fn empties(&self, listener: &circuit::Socket) {
        let Some(fd) = self
            .at_place(listener)
            .filter(|_| guard!("circuits-left-polling"))
        else {
            return;
        };
        // Who has this process wait is known by it.
        self.touches(listener.endpoint());
        // Bound: as many as may wait.
        for _ in 0..4 * BEYOND_BACKLOG {
            self.beats();
            if !matches!(sockets::accepts_at_once(&fd, true, || {}), Ok(Some(_))) {
                break;
            }
        }
        drop(fd);
        self.touched();
    }

    /// What is counted of each slot is its endpoint's.
    fn owns_slots(&self) {
        if let (Some(notes), Some(mapped)) = (&self.notes, &self.image) {
            for endpoint in mapped.image().endpoints() {
                notes.owns(endpoint.slot, endpoint.id);
            }
        }
    }

    /// The addresses of a slot's endpoint.
    pub fn addresses(&self, slot: u32) -> Vec<[u8; 16]> {
        let image = self.image.as_ref().map(MappedCompartment::image);
        image.map_or_else(Vec::new, |image| decide::addresses(&image, slot))
    }

    /// The table with the endpoints of the image: sockets go on whose addresses are still
    /// there.
    pub(super) fn settle(&mut self) {
        self.owns_slots();
        self.write();
        let Some(notes) = &self.notes else { return };
        let last = self.image.as_ref().map_or(0, |mapped| {
            mapped
                .image()
                .endpoints()
                .iter()
                .map(|e| e.slot)
                .max()
                .unwrap_or(0)
        });
        let endpoints: Vec<Addresses> = (0..=last.min(SLOTS as u32))
            .map(|slot| {
                let all = self.addresses(slot);
                // A spec has no endpoint of more.
                Addresses::new(all.get(..16).unwrap_or(&all))
            })
            .map_while(|addresses| addresses)
            .collect();
        let records = notes.records(self.table.slots());
        let all = records.iter().map(|(slot, record)| (*slot, record));
        let (table, rejected) = Table::restore(LIMITS, endpoints, all);
        self.table = table;
        // Who waits at one that is gone is told.
        let awaited = self.crossings.awaited().map(|(_, at)| at);
        for at in self.waits.all_sockets().into_iter().chain(awaited) {
            self.table.stir(at);
        }
        // By what the page says: an operator that starts has no table of before.
        let rejected: BTreeSet<u32> = rejected.into_iter().collect();
        let rejected = records.iter().filter(|(slot, _)| rejected.contains(slot));
        let (mut gone, mut tokens) = (Vec::new(), BTreeSet::new());
        for (_, record) in rejected {
            let (socket, pending) = circuit::said(record);
            gone.extend(socket.filter(|it| it.remote().is_some()));
            let own = pending.filter(|it| it.crossing == 0 && !it.relayed);
            tokens.extend(own.map(|it| it.token));
        }
        gone.retain(|it| self.table.socket(it.cookie()).is_none());
        if guard!("circuits-gone-waiting") {
            gone.extend(who_began(&self.table, &tokens));
        }
        let reached = self.who_leads_elsewhere();
        joins(&mut gone, reached);
        self.are_gone(gone.into_iter());
        self.write();
        self.count();
    }

    /// What changed goes to the page.
    pub(super) fn write(&mut self) {
        if let Some(notes) = &self.notes {
            while let Some(slot) = self.table.changed() {
                notes.write(slot, &self.table.record(slot));
            }
        }
    }

    /// Cuts the circuits that the image lets nobody begin any more. Bound: sockets.
    pub(super) fn review(&mut self) {
        // Without one it is not known what is allowed, and nothing new begins.
        let Some(image) = self.image.as_ref().map(MappedCompartment::image) else {
            return;
        };
        let mut denied = Vec::new();
        let begun: Vec<(circuit::Socket, Endpoint)> = self
            .table
            .all()
            .filter(|socket| socket.kind() == Kind::Stream && socket.is_initiator())
            .filter(|socket| socket.crossing() == 0)
            .filter_map(|socket| Some((*socket, socket.remote()?)))
            .collect();
        for (socket, remote) in begun {
            let (cookie, slot, local) = (socket.cookie(), socket.endpoint(), socket.local());
            if let Some(notes) = &self.notes {
                notes.beats();
            }
            // Whether the other end is of circuits is not asked: an operator that starts is told
            // of its endpoints one by one.
            let decided = self.decided(&image, slot, local, remote);
            // Where a proxy leads, packets are judged; of those too who starts is told last. Whose
            // other end has no address any more is found by that end.
            let starts = self.limits.is_empty() && guard!("circuits-told");
            let by_proxy = socket.carrier() == Carrier::Proxy && self.relays.has(slot);
            let kept = |errno: Errno| errno != Errno::ACCESS && (starts || by_proxy);
            let is_cut = match decided {
                Err(refused) => !kept(refused.errno) && guard!("circuits-cut"),
                Ok(to) => self.evades([slot, to.slot], cookie),
            };
            if is_cut {
                denied.push((cookie, circuits::ends(&self.table, cookie)));
            }
        }
        let (let_in, waits) = self.refused_let_in(&image);
        denied.extend(let_in);
        let mut crossings = self.review_crossings(&image);
        let closed = self.closed_of(&crossings);
        crossings.retain(|it| !closed.contains(&it.cookie()) || it.carrier().is_metered());
        let here = self.count_living(denied.iter().map(|(cookie, _)| *cookie));
        let living = crossings.iter().filter(|it| !closed.contains(&it.cookie()));
        self.counts_cut(here + living.count());
        denied.extend(crossings.into_iter().map(|it| (it.cookie(), vec![it])));
        for (at, token) in waits {
            if guard!("circuits-let-in-waits") && self.table.withdraw(at, token).is_ok() {
                self.counts_cut(1);
            }
        }
        // Wherever its programs have it, what is metered is over.
        denied.retain(|(cookie, _)| {
            let socket = self.table.socket(*cookie).copied();
            let ended = socket.is_some_and(|it| self.end_metered(&it));
            if ended {
                let _ = self.table.disconnect(*cookie);
            }
            !ended
        });
        self.cut(denied);
        self.forgets(&closed);
        self.review_datagrams();
        self.write();
    }

    /// Connections that proxies let in and that may be no more: those that programs have, and those that wait to be
    /// accepted (at which listening socket, and whose), of which none is.
    fn refused_let_in(&self, image: &CompartmentImage<'_>) -> (Circuits, Vec<(u64, u64)>) {
        let table = &self.table;
        let refuses = |slot, own, remote: Endpoint| {
            if let Some(notes) = &self.notes {
                notes.beats();
            }
            // What stays in an endpoint's own namespace no switch sees.
            let is_inside = table.destination(slot, &remote.ip) == Some(slot);
            let lets_in = || decide::let_in::lets_in(image, slot, own, remote);
            let is_refused = || lets_in().is_err_and(|it| it.errno == Errno::ACCESS);
            !(is_inside && guard!("circuits-let-in-inside")) && is_refused()
        };
        let let_in = table.all().filter(|it| it.is_let_in());
        let is_refused = |it: &&circuit::Socket| {
            let refused = |remote| refuses(it.endpoint(), it.local(), remote);
            it.remote().is_some_and(refused) && guard!("circuits-cut-let-in")
        };
        let cut = let_in.filter(is_refused);
        let cut: Vec<_> = cut.map(|it| (it.cookie(), vec![*it])).collect();
        let waits = table.relayed().filter(|(at, pending)| {
            let slot = table.socket(*at).map(circuit::Socket::endpoint);
            slot.is_some_and(|slot| refuses(slot, pending.local, pending.client))
        });
        (cut, waits.map(|(at, it)| (at, it.token)).collect())
    }

    /// Writes a listing of circuits.
    pub fn list(&mut self, asked: &ListFlows, page: OwnedFd) {
        // What is closed is no circuit any more, which nobody was told of: asked for a tenth of the time, and listed for a
        // second more at most.
        self.sweep_at_times();
        let image = self.image.as_ref().map(MappedCompartment::image);
        // What is not found goes on, perhaps.
        let is_cut = |cookie: &u64| self.datagrams.cut.contains(cookie) && !self.is_lost(*cookie);
        let put_back = |listener| self.unclaimed.count(|at, _| at == listener);
        let now = monotonic();
        let counts = self.meters.counts(now);
        circuits::list(
            &self.table,
            image.as_ref(),
            (is_cut, put_back),
            (&counts, now),
            asked,
            page,
        );
    }

    /// A program with all that it started is gone.
    pub fn program_gone(&mut self, program: u32) {
        let waited = self.waits.extract_if(|waits| waits.program == program);
        let gone: Vec<u16> = waited.iter().map(|waits| waits.note).collect();
        self.looks.remove(&program);
        self.receivers_gone(program);
        self.are_nobodys(gone);
    }
}
