//! Circuits that go by the meter, and those that are cut because somebody says so.

use super::leaves::ELSEWHERE;
use super::*;
use command::verbs::{Capture, Metered};
use rustix::event::Timespec;
use seqpacket::Socket;
use telemetry::circuits::{CUT_BYTES, CUT_DONE, CUT_HIDDEN, CUT_ROW_AT, CUT_UNKNOWN};

/// Circuits that its programs have closed and its meter still carries an endpoint may have to one address, whatever its `sockets`; and
/// this part of the meter's room at the most.
const ORPHANS: u32 = 256;
const PART: usize = 8;

/// Who begins circuits: a slot; or [`ELSEWHERE`], and by which agreement.
type By = (u32, u16);

impl Mediator {
    /// A meter may have so many descriptors.
    pub fn has_files(&mut self, files: u64) {
        self.meters.has_files(files);
    }

    /// Whether some endpoint's circuits are metered.
    pub fn wants_meter(&self) -> bool {
        self.meters.are_wanted()
    }

    /// Somebody captures circuits that begin from now on, or does no more.
    pub fn capture(&mut self, body: &Capture) {
        self.meters.capture(body);
    }

    /// Who carries a circuit that begins between these two.
    pub(super) fn carrier(&self, slots: [u32; 2]) -> Carrier {
        match self.meters.carries(slots) && guard!("circuits-metered") {
            true => Carrier::Meter,
            false if self.shows(slots) && guard!("capture-circuits") => Carrier::Captured,
            false => Carrier::Kernel,
        }
    }

    /// Whether somebody captures a circuit that begins between these two. Where no meter comes it
    /// goes unseen, as it would if nobody captured.
    fn shows(&self, slots: [u32; 2]) -> bool {
        let comes = self.meters.is_linked() || !self.meters.is_overdue();
        // What must go by the meter has room there all the same.
        let carried = || (self.table.all()).filter(|it| it.carrier().is_metered());
        let most = self.meters.room() / 4 * 3;
        self.meters.captures(slots) && comes && carried().count() < most
    }

    /// Whether the meter has room for one more of those that must go by it, of who begins it: a slot, and to where, or by
    /// which agreement.
    ///
    /// # Errors
    /// NOBUFS: as many of theirs go by it as it has room left for others'; or as many to there that its programs have closed as
    /// may.
    pub(super) fn room_at_meter(
        &mut self,
        carrier: Carrier,
        by: By,
        to: [u8; 16],
    ) -> Result<(), Errno> {
        let has_room = |this: &Mediator| {
            let most = this.limits.get(&by.0).copied().unwrap_or(0).max(ORPHANS) as usize;
            let most = most.min(this.meters.room() / PART).max(1);
            let may = this.meters.left(by, to) < most || !guard!("meter-left-to");
            this.meters.has_room_for(by) && may
        };
        if carrier != Carrier::Meter || has_room(self) {
            return Ok(());
        }
        // Of those that are over nobody says so.
        if by.1 == 0 {
            self.sweeps();
        }
        if !has_room(self) {
            self.sweep_at_times();
        }
        match has_room(self) || !guard!("meter-share") {
            true => Ok(()),
            // Who comes by an agreement is of another tenant's endpoint.
            false if by.0 == ELSEWHERE => Err(Errno::NOBUFS),
            false => Err(self.counts_refused(by.0, Errno::NOBUFS, DropReason::SocketLimit)),
        }
    }

    /// Who has begun how many that go by the meter.
    pub(super) fn counts_carried(&mut self) {
        let metered = self.table.all().filter(|it| it.carrier().is_metered());
        let by = metered.map(|it| {
            let by = match it.generation() {
                0 => (ELSEWHERE, it.crossing()),
                _ => (it.endpoint(), 0),
            };
            let to = it.remote().map_or([0; 16], |it| it.ip);
            (by, self.orphans.contains(&it.cookie()).then_some(to))
        });
        self.meters.carries_these(by);
    }

    /// Circuits that a meter carries and that a program has closed: as long as the meter has its own end of them
    /// they go on.
    pub(super) fn carried(&self, live: &BTreeSet<u64>) -> BTreeSet<u64> {
        let lives = |it: &&circuit::Socket| live.contains(&it.cookie());
        let closed = self.table.all().filter(|it| !lives(it));
        let metered = closed.filter(|it| it.carrier().is_metered());
        let carried = metered.filter(|it| live.contains(&it.token()) && guard!("meter-carried"));
        carried.map(circuit::Socket::cookie).collect()
    }

    /// There is a meter from now on, or another one: who waits for it goes on.
    pub fn link_meter(&mut self, link: Socket, find: Find<'_>) {
        self.meters.link(link);
        self.tells_meter();
        self.wake(Also::All, find);
        self.awaits_still();
    }

    /// Who was not woken, or found no room, waits on.
    fn awaits_still(&mut self) {
        if !self.waits.sockets(Why::Meter).is_empty() && guard!("meter-awaits") {
            self.meters.awaits();
        }
    }

    /// There is none any more.
    pub fn unlink_meter(&mut self) -> Option<Socket> {
        self.meters.unlink()
    }

    /// Whether it is gone.
    pub fn meter_is_gone(&self) -> bool {
        self.meters.hear().is_err()
    }

    /// A meter is told what it had no room for. Who waits for one that does not come is told, or for room,
    /// where there is some.
    pub fn meter_tick(&mut self, find: Find<'_>) {
        if guard!("circuits-ends-later") {
            self.tells_meter();
        }
        if !self.meters.is_awaited() {
            return;
        }
        if self.meters.is_overdue() {
            // By that they are told so.
            self.wake(Also::All, find);
            self.meters.forget_awaited();
        } else if self.meters.takes() {
            self.meters.forget_awaited();
            self.wake(Also::Of(Why::Meter), find);
        }
        self.awaits_still();
    }

    /// What is to end first: without its rate it would go at once.
    pub(super) fn tells_meter(&mut self) {
        if self.hunts_metered() {
            self.ends_metered();
        }
        if !self.is_to_end_metered() {
            self.meters.says();
        }
    }

    /// Whether a meter that is there is to end circuits, and was not told so: its link had no room.
    fn is_to_end_metered(&self) -> bool {
        self.meters.is_linked() && self.hunts_metered()
    }

    /// How long this process may sleep.
    pub fn sleep(&self) -> Option<Timespec> {
        let linked = self.meters.is_linked();
        let waits = self.meters.is_awaited() || self.meters.is_behind();
        let own = match waits || self.is_to_end_metered() {
            // Its link has no room, and it says nothing when there is some.
            true if linked => Some(Timespec {
                tv_sec: 0,
                tv_nsec: 5_000_000,
            }),
            true => Some(Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            }),
            false => None,
        };
        let receivers = self.receivers_sleep();
        match (own, receivers) {
            (Some(own), Some(other)) => Some(own.min(other)),
            (own, other) => own.or(other),
        }
    }

    /// A connect that needs a meter where none is, or none that may be told of it.
    pub(super) fn without_meter(&mut self, cookie: u64) -> Result<Came, Errno> {
        if self.meters.is_overdue() {
            return Err(Errno::NETDOWN);
        }
        self.meters.awaits();
        Ok(Came::Waits {
            at: cookie,
            why: Why::Meter,
        })
    }

    /// Connects a program's socket to the meter, and the meter to who listens.
    pub(super) fn connect_metered(
        &mut self,
        (body, carrier): (&Metered, Carrier),
        far: &Made,
        (fd, name): (&OwnedFd, [u8; 16]),
    ) -> Result<(), Errno> {
        // Who listens would hear of one that is over at once.
        if notify::name_of(fd.as_fd(), true).is_ok() {
            return Err(Errno::ISCONN);
        }
        // First where it may fail: a socket that is connected stays so.
        sockets::connects(&far.fd, name)?;
        self.table.carry(body.id, carrier, 0);
        self.write();
        // Its other end is here alone until the meter has it.
        self.takes(true);
        let near = self.relays.circuit(fd);
        // One that is not sent is closed with this: both programs hear the end.
        let carried = near.and_then(|near| {
            let carried = self.meters.carry(body, [&near, &far.fd]);
            carried.or(Err(Errno::CONNRESET))
        });
        self.takes(false);
        carried
    }

    /// What a meter is told of a circuit.
    pub(super) fn described(&self, id: u64, slots: [u32; 2], ends: [Endpoint; 2]) -> Metered {
        let image = self.image.as_ref().map(MappedCompartment::image);
        let known = |slot| decide::endpoint(image.as_ref()?, slot).map(|it| (it.id, it.mac));
        let known = slots.map(|slot| known(slot).unwrap_or_default());
        let [from, to] = slots;
        Metered {
            id,
            from,
            to,
            addresses: ends.map(|end| end.ip),
            ports: ends.map(|end| end.port.into()),
            endpoints: known.map(|(id, _)| id),
            macs: known.map(|(_, mac)| mac),
            reserved: 0,
        }
    }

    /// Whether a circuit goes past a rate that one of its endpoints has.
    pub(super) fn evades(&self, slots: [u32; 2], cookie: u64) -> bool {
        let carrier = self.table.socket(cookie).map(|socket| socket.carrier());
        let unmetered = matches!(carrier, Some(Carrier::Kernel | Carrier::Ring));
        unmetered && self.meters.limits(slots) && guard!("circuits-metered-evade")
    }

    /// Has the meter end a circuit that goes by it: wherever its programs have it, it is over.
    pub(super) fn end_metered(&self, socket: &circuit::Socket) -> bool {
        socket.carrier().is_metered() && self.meters.end(socket.cookie())
    }

    /// Cuts a circuit, and says on this page what it was, and what came of it.
    pub fn cut_asked(&mut self, id: u64, page: OwnedFd) {
        // What is closed is no circuit any more.
        self.sweep();
        let page = Words::map(page, CUT_BYTES).ok();
        // Once it is over nobody knows any more between whom it was.
        if let Some((page, socket)) = page.as_ref().zip(self.with_id(id)) {
            let image = self.image.as_ref().map(MappedCompartment::image);
            let now = monotonic();
            let counts = (&self.meters.counts(now), now);
            let at = (page, CUT_ROW_AT);
            circuits::write_one(&self.table, image.as_ref(), counts, &socket, at);
        }
        let outcome = self.cut_one(id);
        if let Some(page) = page {
            page.publish(0, outcome);
        }
    }

    /// The socket that a circuit has its id by.
    fn with_id(&self, id: u64) -> Option<circuit::Socket> {
        let socket = self.table.socket(id).copied();
        let is_circuit = |it: &circuit::Socket| {
            let has_id = it.is_initiator() || it.is_let_in() || it.crossing() != 0;
            it.kind() == Kind::Stream && has_id
        };
        socket.filter(is_circuit)
    }

    /// What was to be cut by its id is looked for by who follows, too.
    pub(super) fn cuts_condemned(&mut self) {
        let condemned = self.table.all().filter(|it| it.is_condemned());
        let all = condemned.map(|it| (it.cookie(), circuits::ends(&self.table, it.cookie())));
        self.cut(all.filter(|_| guard!("circuits-condemned")).collect());
    }

    /// Ends a circuit for both its programs. One that no thread has where it was seen is looked for.
    pub(super) fn cut_one(&mut self, id: u64) -> u64 {
        let Some(socket) = self.with_id(id) else {
            return CUT_UNKNOWN;
        };
        let ended = match self.end_metered(&socket) {
            true => self.table.disconnect(id).is_ok(),
            false => {
                // First noted: no rule says so to who follows.
                self.table.condemn(id);
                self.write();
                let ends = circuits::ends(&self.table, id);
                self.cut(vec![(id, ends)]);
                !self.is_hunted(id)
            }
        };
        self.write();
        match ended {
            true => CUT_DONE,
            false => CUT_HIDDEN,
        }
    }
}
