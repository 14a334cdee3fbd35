//! Datagrams to and from those who have packets: by the proxy of an endpoint that has one. For each
//! socket of a program's and each of its peers there is a socket of AF_UNIX, the *far* one, made
//! here and kept by the proxy: connected to the program's, and known by its name. So connected
//! sockets send natively as ever, and who sent something follows from a name. The switch judges
//! the packets; what is decided here is who has them.

use super::far::Far;
use super::transitions::{TRIES, back, hash};
use super::*;
use crate::proxies::is_loopback;
use circuit::{Family, Ip, Socket, Way};
use command::Message;
use command::verbs::{Convey, Hear, Heard, Part, Quiet, Unhear};
use image::compartment::Subnet;
use std::net::Ipv6Addr;
use wire::address::is_link_local;

/// Far sockets of an endpoint, and addresses with ports that are heard for it.
const FAR: usize = 1000;
const HEARD: usize = 1000;
/// Of no far socket: what comes from a peer is asked about.
const NOBODYS: u64 = 0;

impl Mediator {
    /// Whether what goes this way leaves circuits: a proxy leads on, and nobody who has circuits
    /// has the address; or who has a proxy too, and no such socket, where a program without
    /// circuits may be. Not where no route leads, which a kernel's own stack tells at once: who asks a name server there
    /// would wait for it; nor to all of the own subnet, which a proxy's kernel refuses where nobody is told of it.
    pub(in crate::mediate) fn is_outside(&self, slot: u32, way: &Way) -> bool {
        let is_led = |slot: u32| self.outside.is_led(slot);
        is_led(slot)
            && match self.located(slot, way) {
                Err(Errno::HOSTUNREACH) => !self.is_to_all(slot, &way.remote.ip),
                // Of a link's addresses the image knows nothing.
                Err(Errno::NETUNREACH) => {
                    is_link_local(&way.local.ip) || !guard!("circuits-outside-route")
                }
                Err(_) => false,
                Ok(to) if to == slot => false,
                Ok(to) if !self.limits.contains_key(&to) => true,
                Ok(to) => is_led(to) && self.table.find_receiver(to, way, 0).is_none(),
            }
    }

    /// Whether an address is the broadcast of an endpoint's own subnet, which one of 31 bits or more has not (RFC 3021).
    fn is_to_all(&self, slot: u32, ip: &Ip) -> bool {
        let image = self.image.as_ref().map(MappedCompartment::image);
        let of = image.and_then(|image| {
            let subnet = decide::endpoint(&image, slot)?.subnet;
            image.subnets().get(subnet as usize).copied()
        });
        let is_broadcast = |subnet: Subnet| {
            let hosts = match subnet.prefix4_len {
                length @ 1..=30 => u32::MAX >> length,
                _ => return false,
            };
            let last = u32::from_be_bytes(subnet.prefix4) | hosts;
            Ipv6Addr::from(*ip).to_ipv4_mapped() == Some(last.into())
        };
        of.is_some_and(is_broadcast)
    }

    /// The same of a connected socket. An operator that starts is told of its endpoints one by one: to whose it is linked has
    /// circuits.
    pub(in crate::mediate) fn is_led_out(&self, socket: &Socket, way: &Way) -> bool {
        let slot = socket.endpoint();
        let is_there = self.located(slot, way).is_ok_and(|to| {
            let is_told = self.limits.contains_key(&to) || !guard!("circuits-outside-told");
            !is_told && socket.linked().is_some() && !self.is_elsewhere(socket.cookie(), to)
        });
        !is_there && self.is_outside(slot, way)
    }

    /// Sends it by the endpoint's proxy. Where there is none at the moment, or no room, it is
    /// gone.
    pub(in crate::mediate) fn deliver_outside(
        &mut self,
        (cookie, fd): (u64, &OwnedFd),
        way: &Way,
        data: &[u8],
    ) -> Result<(), Errno> {
        for _ in 0..2 {
            let sent = match self.far(cookie, way) {
                Ok(name) => sockets::sends(fd, data, name),
                Err(errno) => Err(errno),
            };
            match sent {
                Ok(()) => return Ok(()),
                // The proxy has closed it: another.
                Err(Errno::CONNREFUSED | Errno::NOENT) => self.part(cookie, way),
                Err(Errno::PIPE) if self.datagrams.shut.contains(&cookie) => {
                    return Err(Errno::PIPE);
                }
                Err(Errno::AGAIN | Errno::PERM | Errno::PIPE) => break,
                Err(errno) => return Err(errno),
            }
        }
        self.finds_no_room(cookie, 1);
        Ok(())
    }

    /// Has what a connected socket sends natively go to its proxy.
    pub(in crate::mediate) fn link_outside(
        &mut self,
        fd: &OwnedFd,
        cookie: u64,
        way: &Way,
    ) -> Result<(), Errno> {
        self.table.carry(cookie, Carrier::Proxy, monotonic());
        // One that was made while the socket heard another would never be heard.
        self.part(cookie, way);
        sockets::disconnects(fd)?;
        match self.far(cookie, way) {
            Ok(name) => {
                sockets::connects(fd, name)?;
                sockets::forgets_error(fd)
            }
            // Until there is a proxy again, or it listens, which has it linked.
            Err(Errno::AGAIN) => {
                self.tell_later(cookie);
                sockets::connects_to_nobody(fd, secret()?)
            }
            Err(errno) => Err(errno),
        }
    }

    /// The name by which what a socket sends this way gets to its endpoint's proxy.
    ///
    /// # Errors
    /// AGAIN: there is no proxy at the moment, or it does not listen. NOBUFS: its endpoint has as
    /// many as it may.
    fn far(&mut self, cookie: u64, way: &Way) -> Result<[u8; 16], Errno> {
        if let Some(name) = self.outside.name_of(cookie, way) {
            return Ok(name);
        }
        let socket = *self.table.socket(cookie).ok_or(Errno::BADF)?;
        let slot = socket.endpoint();
        self.make_room(slot)?;
        let (made, name, reaches) = reaches(&socket)?;
        self.hear(&socket, way.local)?;
        // One that is not the nearest may send there too.
        let hears = reaches && self.receiver_of(slot, way) == Some(cookie);
        let hears = hears || !guard!("circuits-outside-sends");
        let body = Convey {
            hears: hears.into(),
            ..conveys(made.cookie, way)
        };
        let message = Message::new(0, &body);
        if !self.relays.gives(slot, message, Some(&made.fd)) {
            return Err(Errno::AGAIN);
        }
        self.outside.used += 1;
        let far = Far {
            slot,
            cookie,
            way: *way,
            name,
            reaches,
            used: self.outside.used,
        };
        self.outside.insert(made.cookie, far, hears);
        Ok(name)
    }

    /// Of an endpoint that has as many far sockets as may be those go whose program's is gone, else
    /// the one that was used least lately: but none of a socket that is connected that way.
    fn make_room(&mut self, slot: u32) -> Result<(), Errno> {
        let full = |this: &Mediator| this.outside.count(slot) >= FAR;
        if !full(self) || !guard!("circuits-far") {
            return Ok(());
        }
        // Bound: each once.
        for _ in 0..FAR {
            let Some((id, far)) = self.outside.oldest(slot) else {
                break;
            };
            let socket = self.table.socket(far.cookie);
            if socket.is_none_or(|it| it.way() != Some(far.way)) {
                self.part_id(id);
                return Ok(());
            }
            self.outside.uses(id);
        }
        self.sweep_at_times();
        match full(self) {
            true => Err(Errno::NOBUFS),
            false => Ok(()),
        }
    }

    pub(in crate::mediate) fn part(&mut self, cookie: u64, way: &Way) {
        if let Some(id) = self.outside.by_way.get(&(cookie, *way)).copied() {
            self.part_id(id);
        }
    }

    fn part_id(&mut self, id: u64) {
        if let Some(slot) = self.outside.remove(id) {
            // Whatever is conveyed since goes by another number.
            self.relays.says(slot, Message::new(0, &Part { id }));
        }
    }

    /// Has a slot's proxy hear what is sent there.
    fn hear(&mut self, socket: &Socket, at: Endpoint) -> Result<(), Errno> {
        let (slot, id) = (socket.endpoint(), socket.cookie());
        let ids = self.outside.heard.get(&(slot, at));
        if ids.is_some_and(|ids| ids.contains(&id)) {
            return Ok(());
        }
        // What was sent since those were closed, which nobody is told of, is for nobody.
        if ids.is_some_and(|ids| !ids.iter().any(|id| self.has_port(*id, at.port))) {
            self.unhears_gone(slot, at);
        }
        let is_heard = self.outside.heard.contains_key(&(slot, at));
        let full = |this: &Mediator| this.outside.heard_by(slot).count() >= HEARD;
        // Closing tells nobody.
        if !is_heard && full(self) {
            self.sweeps();
        }
        if !is_heard && full(self) {
            return Err(Errno::NOBUFS);
        }
        match self.relays.says(slot, Message::new(0, &hears(at, id))) {
            true => {
                let heard = self.outside.heard.entry((slot, at)).or_default();
                heard.insert(id);
            }
            false => return Err(Errno::AGAIN),
        }
        Ok(())
    }

    /// A proxy did not listen, being told much at once: it is told again.
    pub(in crate::mediate) fn tell_later(&mut self, cookie: u64) {
        let slot = self.table.socket(cookie).map(Socket::endpoint);
        if slot.is_some_and(|slot| self.relays.has(slot)) && guard!("circuits-late-outside") {
            self.outside.late.insert(cookie);
        }
    }

    /// Says again what proxies had no ear for.
    pub(in crate::mediate) fn outside_tick(&mut self) {
        self.relays.says_on();
        let late = std::mem::take(&mut self.outside.late);
        let mut of: BTreeMap<u32, Vec<Socket>> = BTreeMap::new();
        for socket in late.iter().filter_map(|it| self.table.socket(*it)) {
            of.entry(socket.endpoint()).or_default().push(*socket);
        }
        for (slot, late) in of {
            let begun = self.starts();
            self.begin_outside(&late, false);
            self.done_for(slot, begun);
        }
    }

    /// It may hear others than before: who was refused is asked about again.
    pub(in crate::mediate) fn hears_anew(&mut self, slot: u32, cookie: u64) {
        let port = self.table.socket(cookie).map(|it| it.local().port);
        let heard = self.outside.heard_by(slot);
        let its = heard.filter(|(at, ids)| Some(at.port) == port && ids.contains(&cookie));
        for at in its.map(|(at, _)| at).collect::<Vec<_>>() {
            if guard!("circuits-outside-anew") {
                self.relays.says(slot, Message::new(0, &hears(at, cookie)));
            }
        }
        // Of one that was connected its proxy may have heard of that one's address alone.
        self.hear_bound(cookie);
    }

    /// A socket has a port: others send there, by packets too.
    pub(in crate::mediate) fn hear_bound(&mut self, cookie: u64) {
        let Some(socket) = self.table.socket(cookie).copied() else {
            return;
        };
        let (slot, local) = (socket.endpoint(), socket.local());
        if !self.relays.has(slot) || local.port == 0 {
            return;
        }
        let v4 = |ip: &Ip| Ipv6Addr::from(*ip).to_ipv4_mapped().is_some();
        let any = Ipv6Addr::from(local.ip);
        let any4 = any.to_ipv4_mapped().is_some_and(|ip| ip.is_unspecified());
        let all = match any4 || any.is_unspecified() {
            false => vec![local.ip],
            true => self.addresses(slot),
        };
        let both = socket.family() == Family::V6 && !any4;
        let heard = |ip: &Ip| match v4(ip) {
            true => any4 || local.ip == *ip || both && !socket.options().v6only(),
            false => both,
        };
        for ip in all.into_iter().filter(|ip| heard(ip) && !is_loopback(ip)) {
            let port = local.port;
            // Beyond what may be heard it is reached by circuits alone.
            if self.hear(&socket, Endpoint { ip, port }) == Err(Errno::AGAIN) {
                self.tell_later(cookie);
            }
        }
    }

    /// At an endpoint's port is another than was, or one that is connected, or is so no more: what comes from the peers of those there
    /// is the nearest one's, who is connected being nearer than any. Each goes on to send by what it has.
    pub(in crate::mediate) fn settles_peers(&mut self, slot: u32, port: u16) {
        for way in self.outside.ways(slot, port) {
            let nearest = self.receiver_of(slot, &way);
            let id = nearest.and_then(|it| self.outside.reaching(it, &way));
            let known = self.outside.theirs.get(&(slot, way)).copied();
            // Where it has none by which that gets to it, it is asked for with the next that comes.
            if id != known && guard!("circuits-outside-nearest") {
                self.points(slot, &way, id);
            }
        }
    }

    /// Has what comes from a peer go by one of those that a proxy has, or be asked about.
    fn points(&mut self, slot: u32, way: &Way, id: Option<u64>) {
        let body = conveys(id.unwrap_or(NOBODYS), way);
        if self.relays.says(slot, Message::new(0, &body)) {
            match id {
                Some(id) => drop(self.outside.theirs.insert((slot, *way), id)),
                None => drop(self.outside.theirs.remove(&(slot, *way))),
            }
        }
    }

    /// Whose is what comes from where this way leads.
    fn receiver_of(&self, slot: u32, way: &Way) -> Option<u64> {
        let way = back(way);
        let receiver = self.table.find_receiver(slot, &way, hash(&way));
        receiver.map(|it| it.cookie)
    }

    /// What comes from where this way leads is a socket's; its proxy has it as another's, or as nobody's.
    fn conveys_to(&mut self, slot: u32, cookie: u64, way: &Way) -> Result<(), Errno> {
        if let Some(id) = self.outside.reaching(cookie, way) {
            self.points(slot, way, Some(id));
            return Ok(());
        }
        let socket = self.table.socket(cookie).ok_or(Errno::BADF)?;
        if socket.way().is_some() {
            reaches(socket)?;
            // What it sends natively goes that way too: linked anew, not beside.
            self.tell_later(cookie);
            return Ok(());
        }
        self.part(cookie, way);
        self.far(cookie, way).map(drop)
    }

    /// Somebody new sends to a program by packets, which its switch has judged.
    pub(in crate::mediate) fn heard_outside(&mut self, slot: u32, body: &Heard) {
        let end = |ip, port: u32| Endpoint {
            ip,
            port: port as u16,
        };
        let way = Way {
            local: end(body.from, body.from_port),
            remote: end(body.to, body.to_port),
        };
        for _ in 0..TRIES {
            // A proxy is another's word: of its own endpoint's programs alone.
            let Some(receiver) = self.table.find_receiver(slot, &way, hash(&way)) else {
                break;
            };
            match self.conveys_to(slot, receiver.cookie, &back(&way)) {
                Err(Errno::CONNREFUSED | Errno::NOENT) => self.lost(receiver.cookie),
                Ok(()) => return,
                Err(_) => break,
            }
        }
        // Before another is heard that may want it.
        let nobodys = Convey {
            hears: 0,
            ..conveys(NOBODYS, &back(&way))
        };
        self.relays.says(slot, Message::new(0, &nobodys));
        self.unhears_gone(slot, way.remote);
    }

    /// Nothing is conveyed for a socket: it ends with the program's, or when that is connected
    /// elsewhere.
    pub(in crate::mediate) fn quiet_outside(&mut self, slot: u32, body: &Quiet) {
        let is_of = |this: &Mediator| {
            this.outside
                .far
                .get(&body.id)
                .is_some_and(|far| far.slot == slot)
        };
        if !is_of(self) {
            // Its end was said where there was no room for it.
            if body.ended == 0 && !self.outside.far.contains_key(&body.id) {
                self.relays
                    .says(slot, Message::new(0, &Part { id: body.id }));
            }
            return;
        }
        if body.ended != 0 {
            self.outside.remove(body.id);
            return;
        }
        self.sweep_at_times();
        let far = self.outside.far.get(&body.id);
        let connected = far.is_some_and(|far| {
            let socket = self.table.socket(far.cookie);
            socket.is_some_and(|it| it.way() == Some(far.way))
        });
        if !connected {
            self.part_id(body.id);
        }
    }

    /// What no socket has any more leads nowhere, and is not heard.
    pub(in crate::mediate) fn settle_outside(&mut self) {
        let gone = self.outside.far.iter();
        let gone = gone.filter(|(_, far)| self.table.socket(far.cookie).is_none());
        let gone: Vec<u64> = gone.map(|(id, _)| *id).collect();
        for id in gone {
            self.part_id(id);
        }
        let heard: Vec<(u32, Endpoint)> = self.outside.heard.keys().copied().collect();
        for (slot, at) in heard {
            self.unhears_gone(slot, at);
        }
    }

    /// Of those for which an address is heard these are gone, or have that port no more.
    fn unhears_gone(&mut self, slot: u32, at: Endpoint) {
        let Some(mut ids) = self.outside.heard.remove(&(slot, at)) else {
            return;
        };
        let gone = ids.extract_if(.., |id| !self.has_port(*id, at.port));
        for id in gone.collect::<Vec<_>>() {
            let body = Unhear {
                ip: at.ip,
                port: at.port.into(),
                reserved: 0,
                id,
            };
            if !self.relays.says(slot, Message::new(0, &body)) {
                // Once there is room again.
                ids.insert(id);
            }
        }
        if !ids.is_empty() {
            self.outside.heard.insert((slot, at), ids);
        }
    }

    /// Whether a socket is there, and has this port still.
    fn has_port(&self, cookie: u64, port: u16) -> bool {
        let socket = self.table.socket(cookie);
        socket.is_some_and(|it| it.local().port == port)
    }

    /// A slot's endpoint has a proxy, or another one: it hears for all that are bound, and who is
    /// connected to somebody outside is linked to it.
    pub(in crate::mediate) fn lead_outside(&mut self, slot: u32) {
        self.outside.forget(slot);
        self.outside.led.insert(slot);
        self.sweep();
        let all = self.table.all().filter(|it| it.kind() == Kind::Datagram);
        // Others' that are connected may lead there by packets now.
        let all = all.filter(|it| it.endpoint() == slot || it.way().is_some());
        let (of, others): (Vec<Socket>, Vec<Socket>) =
            all.copied().partition(|it| it.endpoint() == slot);
        self.begin_outside(&of, true);
        self.begin_outside(&others, false);
    }

    fn begin_outside(&mut self, of: &[Socket], seeks: bool) {
        let mut connected = Vec::new();
        for socket in of {
            match socket.way() {
                None => self.hear_bound(socket.cookie()),
                Some(way) => {
                    // What a search has cut, perhaps since it was linked, leads nowhere whatever is known of it.
                    let (cookie, datagrams) = (socket.cookie(), &self.datagrams);
                    let leads = self.outside.leads(cookie, &way)
                        && !datagrams.cut.contains(&cookie)
                        && !datagrams.doubted.contains(&cookie)
                        && self.table.socket(cookie).and_then(Socket::linked).is_none();
                    if !leads && self.is_led_out(socket, &way) {
                        connected.push(*socket);
                    }
                }
            }
        }
        self.join_outside(&connected, seeks);
        self.write();
    }

    /// Links those that are connected to somebody outside, wherever their programs have them; one that is not found is looked
    /// for if it `seeks`, or is linked inside.
    pub(in crate::mediate) fn join_outside(&mut self, sockets: &[Socket], seeks: bool) {
        let numbers = notify::filter::MEDIATED;
        let fds = self.taken(
            sockets,
            numbers.start.cast_signed()..numbers.end.cast_signed(),
        );
        let (mut left, mut sought) = (Vec::new(), Vec::new());
        for socket in sockets {
            let cookie = socket.cookie();
            match (fds.get(&cookie), socket.way()) {
                (Some(fd), Some(way)) => {
                    self.is_sought_no_more(cookie);
                    self.unlinks(cookie);
                    let _ = self.link_outside(fd, cookie, &way);
                }
                // It goes to who had that address inside.
                _ if socket.linked().is_some() => left.push(*socket),
                _ => sought.extend(seeks.then_some(*socket)),
            }
        }
        self.cut_all(&left);
        self.seek_all(sought);
    }
}

/// One that is connected to a program's, its name, and whether it gets there: to one that is connected elsewhere it does not.
///
/// # Errors
/// CONNREFUSED, NOENT: that is gone.
fn reaches(socket: &Socket) -> Result<(Made, [u8; 16], bool), Errno> {
    let name = secret()?;
    let made = sockets::datagram(true, name)?;
    match sockets::connects(&made.fd, socket.name()) {
        Ok(()) => Ok((made, name, true)),
        Err(Errno::PERM) => Ok((made, name, false)),
        Err(errno) => Err(errno),
    }
}

fn hears(at: Endpoint, id: u64) -> Hear {
    Hear {
        ip: at.ip,
        port: at.port.into(),
        reserved: 0,
        id,
    }
}

fn conveys(id: u64, way: &Way) -> Convey {
    Convey {
        id,
        from: way.local.ip,
        to: way.remote.ip,
        from_port: way.local.port.into(),
        to_port: way.remote.port.into(),
        hears: 1,
        reserved: 0,
    }
}
