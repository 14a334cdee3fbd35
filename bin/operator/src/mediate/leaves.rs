//! A program connects to another tenant's, by an agreement.

use super::acts::leaving;
use super::*;
use crate::crossings::{Crossing, Outcome, Watched};
use crate::decide::across;
use command::verbs::Cross;
use seqpacket::Socket;

impl Mediator {
    /// The other side of an agreement has circuits from now on, or another operator.
    pub fn link_crossing(
        &mut self,
        tag: u16,
        link: Socket,
        door: [u8; 16],
        fds: [OwnedFd; 2],
        find: Find<'_>,
    ) -> Option<Watched> {
        // Who is at the door of before came by what was agreed. Bound: as many as may have places.
        let _ = (0..16).all(|_| self.comes_in(tag, find));
        let before = self.crossings.link(tag, link, door, fds);
        self.wake(Also::Of(Why::Cross), find);
        before
    }

    /// The other side of an agreement is to have an operator before long.
    pub fn await_crossing(&mut self, tag: u16) {
        self.crossings.awaits(tag);
    }

    /// It has none any more, or the agreement is over: who waits for it is told.
    pub fn unlink_crossing(&mut self, tag: u16, find: Find<'_>) -> Option<Watched> {
        let gone = self.crossings.unlink(tag);
        self.wake(Also::Of(Why::Cross), find);
        gone
    }

    /// What the other side of an agreement says, before others have their turn: a few words, so
    /// that one who says much takes no more of this process's time than a program that calls.
    ///
    /// # Errors
    /// It is gone.
    pub fn hear_crossing(&mut self, tag: u16, find: Find<'_>) -> Result<(), ()> {
        const TURN: usize = 4;
        for _ in 0..TURN {
            let Some(said) = self.crossings.hear(tag)? else {
                break;
            };
            self.beats();
            self.crossing_said(tag, said);
        }
        self.wake(Also::Of(Why::Cross), find);
        Ok(())
    }

    /// The link of an agreement's other side whose operator is gone, until the next.
    pub fn crossing_is_down(&mut self, tag: u16) -> Option<Socket> {
        self.crossings.is_down(tag)
    }

    pub(super) fn beats(&self) {
        if let Some(notes) = &self.notes {
            notes.beats();
        }
    }

    /// The agreement by which a connection leaves, where its other side has circuits.
    pub(super) fn leaves(
        &self,
        slot: u32,
        local: Endpoint,
        remote: Endpoint,
    ) -> Option<Result<across::Leaves, Refused>> {
        let image = self.image.as_ref().map(MappedCompartment::image)?;
        let leaves = across::leaves(&image, &asked(slot, local, remote))?;
        match leaves {
            // Packets may find the way, where there are any.
            Ok(leaves) if !self.crossings.leads(leaves.tag) => None,
            leaves => Some(leaves),
        }
    }

    /// Asks the other side of an agreement.
    pub(super) fn cross(
        &mut self,
        (slot, tag): (u32, u16),
        cookie: u64,
        [local, remote]: [Endpoint; 2],
        call: &Call<'_>,
    ) -> Result<Came, Errno> {
        let carrier = self.carrier([slot, ELSEWHERE]);
        if carrier.is_metered() && !self.meters.takes() {
            return self.without_meter(cookie);
        }
        self.room_at_meter(carrier, (slot, 0), remote.ip)?;
        let far = match carrier.is_metered() {
            true => Some(sockets::stream(true)?),
            false => None,
        };
        let place = call.place(call.numbers()[0].cast_unsigned());
        self.table.place(cookie, place);
        self.table.cross(cookie, tag, carrier, monotonic(), 0);
        if carrier.is_metered() {
            self.meters.carries_one((slot, 0));
        }
        let body = Cross {
            id: far.as_ref().map_or(cookie, |far| far.cookie),
            from: local.ip,
            to: remote.ip,
            from_port: local.port.into(),
            to_port: remote.port.into(),
            waits: u32::from(!call.is_nonblocking()?),
            attempt: 0,
        };
        self.crossings.ask(cookie, tag, body, far);
        Ok(Came::Waits {
            at: cookie,
            why: Why::Cross,
        })
    }

    /// What came of it, also when the call comes again after a signal.
    pub(super) fn crossed(
        &mut self,
        slot: u32,
        cookie: u64,
        call: &Call<'_>,
    ) -> Result<Came, Errno> {
        let is_metered = self.crossings.is_metered(cookie) && self.crossings.may(cookie);
        if is_metered && !self.meters.takes() {
            return self.without_meter(cookie).or_else(|errno| {
                self.crossings.asks_no_more(cookie);
                self.is_refused(cookie, errno)
            });
        }
        let Some((crossing, outcome)) = self.crossings.joined(cookie) else {
            return Ok(Came::Waits {
                at: cookie,
                why: Why::Cross,
            });
        };
        let came = match outcome {
            Outcome::May => self.goes_through(slot, cookie, &crossing, call),
            Outcome::Refused(errno, packets) if packets && self.relays.has(slot) => {
                let (local, remote) = ends(&crossing.body);
                self.table.cross(cookie, 0, Carrier::Proxy, 0, 0);
                return match self.relay(slot, cookie, local, remote, call) {
                    Ok(came) => Ok(came),
                    Err(_) => self.is_refused(cookie, errno),
                };
            }
            Outcome::Refused(errno, _) => Err(errno),
        };
        match came {
            Ok(()) => {
                self.table.connected(cookie).map_err(number)?;
                Ok(Came::To(Ok(0)))
            }
            Err(errno) => self.is_refused(cookie, errno),
        }
    }

    fn is_refused(&mut self, cookie: u64, errno: Errno) -> Result<Came, Errno> {
        let _ = self.table.connect_failed(cookie);
        Err(errno)
    }

    /// Connects a program's socket to where the other side gets it, or to the meter, and that one.
    fn goes_through(
        &mut self,
        slot: u32,
        cookie: u64,
        crossing: &Crossing,
        call: &Call<'_>,
    ) -> Result<(), Errno> {
        let (local, remote) = ends(&crossing.body);
        let door = self
            .crossings
            .door(crossing.tag)
            .ok_or(Errno::HOSTUNREACH)?;
        // By what was decided since.
        let still = self.leaves(slot, local, remote);
        let same = matches!(&still, Some(Ok(leaves)) if leaves.tag == crossing.tag);
        if !same && guard!("across-still") {
            return Err(match still {
                Some(Err(refused)) => self.refuses(&leaving(slot, local, remote), &refused),
                _ => Errno::HOSTUNREACH,
            });
        }
        let connected = match &crossing.far {
            Some(far) => {
                let body = self.described(cookie, [slot, ELSEWHERE], [local, remote]);
                let carrier = self.table.socket(cookie).map(|socket| socket.carrier());
                let carrier = carrier.unwrap_or(Carrier::Meter);
                self.table.waits_as(cookie, far.cookie);
                self.connect_metered((&body, carrier), far, (call.fd()?, door))
            }
            None => sockets::connects_at_once(call.fd()?, call.flags()?, door),
        };
        match connected {
            // By its program, past this process; the other is as good as done, before the operator before died.
            Err(Errno::ISCONN) if !sockets::is_joined(call.fd()?) => Err(Errno::ISCONN),
            Ok(()) | Err(Errno::ISCONN) => {
                let rule = still.and_then(Result::ok).and_then(|leaves| leaves.rule);
                self.begins(&leaving(slot, local, remote), [rule, None]);
                Ok(())
            }
            // It is over since.
            Err(Errno::CONNREFUSED) => Err(Errno::HOSTUNREACH),
            Err(errno) => Err(errno),
        }
    }

    /// Whether somebody waits for what came of this connect, to this address, or nobody does any
    /// more: then another may be begun. So it is where a rate came meanwhile, which it would go past.
    ///
    /// # Errors
    /// ALREADY: one to elsewhere is under way.
    pub(super) fn is_crossed(
        &mut self,
        slot: u32,
        cookie: u64,
        (address, call): (&[u8], &Call<'_>),
    ) -> Result<bool, Errno> {
        let socket = self.table.socket(cookie).ok_or(Errno::BADF)?;
        let to = circuit::parse_connect(socket.family(), false, address);
        let is_to = |to: circuit::Endpoint| self.crossings.is_to(cookie, (to.ip, to.port));
        let same = matches!(to, Ok(circuit::Named::At(to)) if is_to(to));
        let is_metered = self.carrier([slot, ELSEWHERE]) == Carrier::Meter;
        let evades = is_metered && !self.crossings.is_metered(cookie) && guard!("across-rate");
        match same {
            true if !evades => return Ok(true),
            // By another of its threads: what this one was in before a signal has ended.
            false if self.waits.any_at(cookie, call.thread()) => return Err(Errno::ALREADY),
            _ => {}
        }
        self.crossings.asks_no_more(cookie);
        let _ = self.table.connect_failed(cookie);
        Ok(false)
    }

    /// What a connect of this socket asked for by an agreement or a proxy is nobody's: a signal has ended the call, or its program
    /// takes it back. Nobody is to hold a place for it, nor to have it come later.
    pub(super) fn abandons(&mut self, cookie: u64) {
        if self.crossings.is_asked(cookie) || self.relays.is_asked(cookie) {
            self.crossings.asks_no_more(cookie);
            self.relays.asks_no_more(cookie);
            let _ = self.table.connect_failed(cookie);
        }
    }

    /// Connections that were begun here across an agreement and may not be any more, and those that
    /// were let in, each by its own end. Bound: sockets.
    pub(super) fn review_crossings(&self, image: &CompartmentImage<'_>) -> Vec<circuit::Socket> {
        let is_one = |socket: &&circuit::Socket| {
            // One whose connect nobody waits for may be connected all the same.
            let is_begun = match socket.state() {
                circuit::State::Connected => true,
                circuit::State::Connecting => !self.crossings.is_asked(socket.cookie()),
                _ => false,
            };
            socket.crossing() != 0 && is_begun
        };
        let crossings = self.table.all().filter(is_one);
        let crossings: Vec<circuit::Socket> = crossings.copied().collect();
        let is_cut = |socket: &circuit::Socket| {
            self.beats();
            // Memory that programs have nobody takes back: the connection ends.
            let by_memory = socket.carrier() == Carrier::Ring || self.rings.has(socket.cookie());
            let may = across::stays(image, socket).is_ok()
                && (!by_memory || across::shares(image, socket.crossing()));
            let ends = [socket.endpoint(), ELSEWHERE];
            !may && guard!("across-cut") || self.evades(ends, socket.cookie())
        };
        crossings.into_iter().filter(is_cut).collect()
    }
}

/// The slot of whom another compartment has.
pub(super) const ELSEWHERE: u32 = u32::MAX;

/// From where to where.
fn ends(body: &Cross) -> (Endpoint, Endpoint) {
    let end = |ip, port: u32| Endpoint {
        ip,
        port: port as u16,
    };
    (end(body.from, body.from_port), end(body.to, body.to_port))
}

/// As the image is asked: of whose slot, from where to where.
pub(super) fn asked(slot: u32, from: Endpoint, to: Endpoint) -> Wish {
    Wish {
        slot,
        from: from.ip,
        from_port: from.port,
        to: to.ip,
        to_port: to.port,
        protocol: decide::TCP,
    }
}
