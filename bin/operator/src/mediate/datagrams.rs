//! UDP: what a program sends to a name that it gives, and what it is told of who sent
//! something, goes by here; what it sends to whom it is connected to, and reads, does not.

use super::*;
use crate::message::{Came as Received, LONGEST, Message, packet_info};
use crate::receivers::Receivers;
use circuit::{Ip, Kind, Named, Socket, Way};
use core::ops::Range;
use notify::filter::MEDIATED;
use rustix::net::{Shutdown, shutdown};
use std::time::{Duration, Instant};

/// Whom a socket has sent to is remembered of so many, and for as long as the switch waits for
/// an answer that goes on (RFC 4787, REQ-5): they may answer.
const ASKED: usize = 64;
const ANSWERS: Duration = Duration::from_secs(300);
/// Ways of what was sent, and sockets that are gone, that are remembered to tell of them.
const WAYS: usize = 8192;
const GONE: usize = 1024;
/// Messages of one sendmmsg or recvmmsg; the program is told that it were so many.
const BATCH: u64 = 64;
/// The longest that is received: what a program sends by itself to whom it is connected may be
/// longer than UDP's.
const ROOM: usize = 256 << 10;
/// Receivers that turn out to be gone while one is looked for.
const TRIES: usize = 16;

/// What was judged of whom a socket sent to.
#[derive(Clone, Copy)]
struct Judged {
    to: u32,
    epoch: u64,
    at: Instant,
}

/// What is known of datagram sockets beside the table: nothing that a successor must know.
#[derive(Default)]
pub(super) struct Datagrams {
    pub(super) receivers: Receivers,
    pub(super) epoch: u64,
    judged: BTreeMap<u64, BTreeMap<Way, Judged>>,
    /// The way of what a receiver was last sent by a sender, and how much since it was looked at.
    ways: BTreeMap<(u64, u64), (Way, u32)>,
    gone: BTreeMap<[u8; 16], Socket>,
    /// Connected where they may not send any more.
    pub(super) cut: BTreeSet<u64>,
    /// Shut for sending.
    shut: BTreeSet<u64>,
    /// Connected, and sent to nobody: that is told with the next call.
    refused: BTreeSet<u64>,
    /// Datagrams that found no room, and how many were said.
    pub(super) dropped: u64,
    pub(super) said: u64,
}

impl Datagrams {
    /// Of sockets that do not live nothing more is known, of those without a record either.
    pub(super) fn retain(&mut self, live: &BTreeSet<u64>) {
        for cookies in [&mut self.cut, &mut self.shut, &mut self.refused] {
            cookies.retain(|cookie| live.contains(cookie));
        }
        self.judged.retain(|cookie, _| live.contains(cookie));
        // What a socket sent before its end may still be read.
        self.ways.retain(|(_, receiver), _| live.contains(receiver));
    }

    /// Sockets are gone: what they sent may still lie in a queue.
    pub(super) fn forget(&mut self, gone: &[Socket]) {
        for socket in gone {
            let cookie = socket.cookie();
            self.judged.remove(&cookie);
            self.cut.remove(&cookie);
            self.shut.remove(&cookie);
            self.refused.remove(&cookie);
            self.gone.insert(socket.name(), *socket);
        }
        while self.gone.len() > GONE {
            self.gone.pop_first();
        }
    }
}

impl Mediator {
    pub(super) fn make_datagram(
        &mut self,
        slot: u32,
        family: circuit::Family,
        nonblock: bool,
        closes: bool,
    ) -> Result<Came, Errno> {
        self.room_for(slot)?;
        let name = secret()?;
        let made = sockets::datagram(nonblock, name)?;
        let created = self.table.create_datagram(made.cookie, slot, family, name);
        created.map_err(number)?;
        *self.counts.entry(slot).or_default() += 1;
        Ok(Came::Datagram(made, closes))
    }

    /// A call about a datagram socket, if UDP's differs from TCP's.
    pub(super) fn perform_datagram(
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
            self.receive(cookie, call)
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
        self.bind(cookie, &call.address()?)?;
        self.seen(cookie, call);
        self.link_again(slot, cookie);
        Ok(())
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
            let was = self.table.socket(cookie).map(Socket::local);
            self.table.disconnect(cookie).map_err(number)?;
            self.datagrams.cut.remove(&cookie);
            sockets::disconnects(call.fd()?)?;
            if let Some(was) = was {
                self.link_all(slot, was.port);
            }
            return Ok(());
        }
        self.bind_by_use(cookie)?;
        let to = match self.table.datagram_peer(cookie, &address).map_err(number)? {
            Named::At(to) => to,
            Named::Disconnect => return Err(Errno::INVAL),
        };
        let way = self.table.way(cookie, to, None).map_err(number)?;
        let to = self.may_send(slot, cookie, way)?;
        self.table.connect_datagram(cookie, way).map_err(number)?;
        self.seen(cookie, call);
        self.datagrams.cut.remove(&cookie);
        self.link(call.fd()?, to, &way)?;
        self.link_again(slot, cookie);
        Ok(())
    }

    fn bind_by_use(&mut self, cookie: u64) -> Result<(), Errno> {
        let bind = |this: &mut Mediator| this.table.bind_by_use(cookie, chance());
        match bind(self) {
            Err(circuit::Errno::EAGAIN) => {
                self.sweep();
                bind(self)
            }
            done => done,
        }
        .map_err(number)
    }

    /// Has what a connected socket sends natively go to who hears it now.
    fn link(&mut self, fd: &OwnedFd, to: u32, way: &Way) -> Result<(), Errno> {
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
    /// is linked to that one, or to none.
    fn free(&self, receiver: u64, own: Option<[u8; 16]>, way: &Way) {
        let Some(receiver) = self.table.socket(receiver) else {
            return;
        };
        let Some(fd) = circuits::at_place(receiver) else {
            return;
        };
        // An error shows where the sender is linked next.
        let _ = match own.filter(|_| receiver.remote() == Some(way.local)) {
            Some(name) => sockets::connects(&fd, name),
            None => sockets::disconnects(&fd),
        };
        let _ = sockets::forgets_error(&fd);
    }

    /// Links those anew that are connected to the port of a socket of which something changed,
    /// where they may still send.
    fn link_again(&mut self, slot: u32, cookie: u64) {
        if let Some(port) = self.table.socket(cookie).map(|it| it.local().port) {
            self.link_all(slot, port);
        }
    }

    /// Bound: sockets.
    fn link_all(&mut self, slot: u32, port: u16) {
        let to_it: Vec<(Socket, Way)> = self
            .table
            .connected_to(port)
            .filter_map(|it| Some((*it, it.way()?)))
            .filter(|(it, way)| self.located(it.endpoint(), way) == Ok(slot))
            .collect();
        let (mut joined, mut cut) = (Vec::new(), Vec::new());
        for (socket, way) in to_it {
            match self.judge(socket.endpoint(), &way) {
                Ok((to, _)) => joined.push((socket, to, way)),
                Err(_) => cut.push(socket),
            }
        }
        self.join_all(&joined);
        self.cut_all(&cut);
    }

    fn join_all(&mut self, joined: &[(Socket, u32, Way)]) {
        let sockets: Vec<Socket> = joined.iter().map(|(socket, ..)| *socket).collect();
        let fds = self.taken(
            &sockets,
            MEDIATED.start.cast_signed()..MEDIATED.end.cast_signed(),
        );
        for (socket, to, way) in joined {
            self.datagrams.cut.remove(&socket.cookie());
            if let Some(fd) = fds.get(&socket.cookie()) {
                let _ = self.link(fd, *to, way);
            }
        }
    }

    /// What they send natively goes to nobody, until they may again.
    pub(super) fn cut_all(&mut self, sockets: &[Socket]) {
        let cut = &mut self.datagrams.cut;
        let new: Vec<Socket> = sockets
            .iter()
            .filter(|socket| cut.insert(socket.cookie()))
            .copied()
            .collect();
        let fds = self.taken(&new, 0..circuits::NUMBERS);
        for socket in &new {
            let cut = fds.get(&socket.cookie()).is_some_and(|fd| {
                secret().is_ok_and(|name| sockets::connects_to_nobody(fd, name).is_ok())
            });
            if !cut {
                confine::say!("bulkhead-operator: a socket that may send no more is not found");
            }
        }
    }

    /// Copies of sockets, by cookie: from where they were seen, else from any thread of their
    /// endpoint that has called, at these numbers. Each thread's are looked through once.
    fn taken(&self, sockets: &[Socket], numbers: Range<i32>) -> BTreeMap<u64, OwnedFd> {
        let (mut taken, mut wanted) = (BTreeMap::new(), BTreeMap::new());
        for socket in sockets {
            match circuits::at_place(socket) {
                Some(fd) => drop(taken.insert(socket.cookie(), fd)),
                None => drop(wanted.insert(socket.cookie(), socket.endpoint())),
            }
        }
        let slots: BTreeSet<u32> = wanted.values().copied().collect();
        for thread in slots.iter().flat_map(|slot| self.callers.of(*slot)) {
            circuits::search(thread, numbers.clone(), |cookie, fd| {
                if wanted.remove(&cookie).is_some() {
                    taken.insert(cookie, fd);
                }
                !wanted.is_empty()
            });
        }
        taken
    }

    /// A socket that turned out to be gone.
    pub(super) fn lost(&mut self, cookie: u64) {
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
    fn located(&self, slot: u32, way: &Way) -> Result<u32, Errno> {
        if self.table.destination(slot, &way.remote.ip) == Some(slot) {
            return Ok(slot);
        }
        let image = self.image.as_ref().map(MappedCompartment::image);
        decide::locate(&image.ok_or(Errno::NETDOWN)?, &Self::wish(slot, way))
    }

    /// The slot of the endpoint that a socket may send to: by the rules, or as an answer to
    /// whom it is asked by.
    pub(super) fn may_send(&mut self, slot: u32, cookie: u64, way: Way) -> Result<u32, Errno> {
        let now = Instant::now();
        let epoch = self.datagrams.epoch;
        if let Some(judged) = self.datagrams.judged.get_mut(&cookie)
            && let Some(judged) = judged.get_mut(&way)
            && judged.epoch == epoch
        {
            judged.at = now;
            return Ok(judged.to);
        }
        let (to, is_answer) = self.judge(slot, &way)?;
        // It is one for as long as who asked is there, and has not gone on to ask others.
        if is_answer {
            return Ok(to);
        }
        let judged = self.datagrams.judged.entry(cookie).or_default();
        let new = Judged { to, epoch, at: now };
        judged.insert(way, new);
        if judged.len() > ASKED
            && let Some(oldest) = judged
                .iter()
                .min_by_key(|(_, it)| it.at)
                .map(|(way, _)| *way)
        {
            judged.remove(&oldest);
        }
        Ok(to)
    }

    /// How many a socket is known to have sent to.
    #[cfg(test)]
    pub(super) fn asked_by(&self, cookie: u64) -> usize {
        self.datagrams.judged.get(&cookie).map_or(0, BTreeMap::len)
    }

    /// The same, judged anew; and whether it is an answer.
    fn judge(&self, slot: u32, way: &Way) -> Result<(u32, bool), Errno> {
        if self.table.destination(slot, &way.remote.ip) == Some(slot) {
            return Ok((slot, false));
        }
        let image = self.image.as_ref().map(MappedCompartment::image);
        let image = image.ok_or(Errno::NETDOWN)?;
        let wish = Self::wish(slot, way);
        let (to, is_answer) = match decide::decide(&image, &wish) {
            Err(Errno::ACCESS) => {
                let answered = decide::decide_answer(&image, &wish).or(Err(Errno::ACCESS))?;
                if !self.was_asked(answered.slot, way) && guard!("circuits-answers") {
                    return Err(Errno::ACCESS);
                }
                (answered.slot, true)
            }
            decided => (decided?.slot, false),
        };
        match to == slot || self.limits.contains_key(&to) {
            true => Ok((to, is_answer)),
            false => Err(Errno::HOSTUNREACH),
        }
    }

    /// Whether who would hear this has sent to whom it comes from.
    fn was_asked(&self, to: u32, way: &Way) -> bool {
        let back = Way {
            local: way.remote,
            remote: way.local,
        };
        let asker = self.table.find_receiver(to, way, hash(way));
        let asker = asker.and_then(|it| self.table.socket(it.cookie));
        asker.is_some_and(|asker| {
            let judged = self.datagrams.judged.get(&asker.cookie());
            let asked = judged.and_then(|all| all.get(&back));
            asker.way() == Some(back) || asked.is_some_and(|it| it.at.elapsed() < ANSWERS)
        })
    }

    fn send(&mut self, slot: u32, cookie: u64, call: &Call<'_>) -> Result<Came, Errno> {
        let [_, at, by_message, by_plain, ..] = call.arguments();
        let (message, flags) = match call.is(libc::SYS_sendto) {
            true => (Message::plain(call)?, by_plain),
            false => (Message::read(call, at)?, by_message),
        };
        let sent = self.send_one(slot, cookie, call, &message, flags as i32)?;
        Ok(Came::To(Ok(sent as i64)))
    }

    fn send_many(&mut self, slot: u32, cookie: u64, call: &Call<'_>) -> Result<Came, Errno> {
        let [_, first, count, flags, ..] = call.arguments();
        let mut sent = 0;
        while sent < (count & u64::from(u32::MAX)).min(BATCH) {
            let at = Message::of_many(first, sent);
            let one = Message::read(call, at)
                .and_then(|message| self.send_one(slot, cookie, call, &message, flags as i32))
                .and_then(|length| Message::tell_length(call, at, length));
            match one {
                Ok(()) => sent += 1,
                Err(errno) if sent == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(Came::To(Ok(sent as i64)))
    }

    fn send_one(
        &mut self,
        slot: u32,
        cookie: u64,
        call: &Call<'_>,
        message: &Message,
        flags: i32,
    ) -> Result<usize, Errno> {
        if message.length() > LONGEST {
            return Err(Errno::MSGSIZE);
        }
        // Nothing is held back to be sent as one with what follows.
        if flags & (libc::MSG_OOB | libc::MSG_MORE) != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        self.bind_by_use(cookie)?;
        let to = match message.destination(call)? {
            Some(address) => self.table.datagram_to(cookie, &address).map_err(number)?,
            None => None,
        };
        let peer = self.table.socket(cookie).and_then(Socket::remote);
        let remote = to.or(peer).ok_or(Errno::DESTADDRREQ)?;
        let source = message.source(call)?;
        let way = self.table.way(cookie, remote, source).map_err(number)?;
        let slot_to = self.may_send(slot, cookie, way)?;
        let data = message.data(call)?;
        if self.datagrams.refused.remove(&cookie) {
            return Err(Errno::CONNREFUSED);
        }
        self.deliver((cookie, call.fd()?), slot_to, &way, &data, to.is_none())?;
        Ok(data.len())
    }

    /// Sends it from the program's socket to who hears it. Where nobody does, or there is no
    /// room, it is gone, as UDP's are; `tells`: who is connected is told then that nobody does.
    fn deliver(
        &mut self,
        (cookie, fd): (u64, &OwnedFd),
        to: u32,
        way: &Way,
        data: &[u8],
        tells: bool,
    ) -> Result<(), Errno> {
        let mut freed = false;
        for _ in 0..TRIES {
            let Some(receiver) = self.table.find_receiver(to, way, hash(way)) else {
                break;
            };
            match sockets::sends(fd, data, receiver.name) {
                Ok(()) => {
                    let ways = &mut self.datagrams.ways;
                    if ways.len() >= WAYS {
                        ways.clear();
                    }
                    let sent = ways.entry((cookie, receiver.cookie)).or_insert((*way, 0));
                    *sent = (*way, sent.1.saturating_add(1));
                    return Ok(());
                }
                Err(Errno::AGAIN) if !freed && !sockets::has_room(fd) => {
                    freed = true;
                    self.free_room(cookie, fd);
                }
                Err(Errno::CONNREFUSED | Errno::NOENT) => self.lost(receiver.cookie),
                Err(Errno::PIPE) if self.datagrams.shut.contains(&cookie) => {
                    return Err(Errno::PIPE);
                }
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::PERM | Errno::PIPE) => {
                    self.datagrams.dropped += 1;
                    return Ok(());
                }
                Err(errno) => return Err(errno),
            }
        }
        if tells {
            self.datagrams.refused.insert(cookie);
        }
        Ok(())
    }

    /// All that a socket may have under way lies unread: who was sent most loses what waits
    /// there, one after another until there is room. Else a few receivers that do not read would
    /// keep it from sending to anybody. Bound: [`WAYS`].
    fn free_room(&mut self, cookie: u64, fd: &OwnedFd) {
        let sent = self.datagrams.ways.range((cookie, 0)..=(cookie, u64::MAX));
        let mut most: Vec<(u32, u64)> = sent.map(|(key, (_, count))| (*count, key.1)).collect();
        most.sort_unstable();
        for (_, receiver) in most.into_iter().rev() {
            if let Some(socket) = self.table.socket(receiver)
                && let Some(at) = circuits::at_place(socket)
            {
                self.datagrams.dropped += sockets::drains(&at);
            }
            self.datagrams.ways.remove(&(cookie, receiver));
            if sockets::has_room(fd) {
                return;
            }
        }
    }

    fn receive(&mut self, cookie: u64, call: &mut Call<'_>) -> Result<Came, Errno> {
        let [_, at, by_message, others, ..] = call.arguments();
        let flags = match call.is(libc::SYS_recvmsg) {
            true => by_message,
            false => others,
        } as i32;
        // No error waits to be told of with its datagram.
        if flags & libc::MSG_ERRQUEUE != 0 {
            return Err(Errno::AGAIN);
        }
        let received = if call.is(libc::SYS_recvfrom) {
            self.receive_one(cookie, call, &Message::plain(call)?, flags)
        } else if call.is(libc::SYS_recvmsg) {
            self.receive_one(cookie, call, &Message::read(call, at)?, flags)
        } else {
            self.receive_many(cookie, call, flags)
        };
        let waits = flags & libc::MSG_DONTWAIT == 0 && !call.is_nonblocking()?;
        match received {
            Err(Errno::AGAIN) if waits => {
                let fd = call.take_fd()?;
                let patience = sockets::patience(&fd);
                let until = patience.and_then(|it| Instant::now().checked_add(it));
                Ok(Came::Receives { fd, until })
            }
            received => received.map(|length| Came::To(Ok(length as i64))),
        }
    }

    /// As many as are there: it does not wait for more than one.
    fn receive_many(&mut self, cookie: u64, call: &Call<'_>, flags: i32) -> Result<usize, Errno> {
        let [_, first, count, ..] = call.arguments();
        let mut received = 0;
        while received < (count & u64::from(u32::MAX)).min(BATCH) {
            let at = Message::of_many(first, received);
            let one = Message::read(call, at)
                .and_then(|message| self.receive_one(cookie, call, &message, flags))
                .and_then(|length| Message::tell_length(call, at, length));
            match one {
                Ok(()) => received += 1,
                Err(errno) if received == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(received as usize)
    }

    fn receive_one(
        &mut self,
        cookie: u64,
        call: &Call<'_>,
        message: &Message,
        flags: i32,
    ) -> Result<usize, Errno> {
        let receiver = *self.table.socket(cookie).ok_or(Errno::BADF)?;
        if self.datagrams.refused.remove(&cookie) {
            return Err(Errno::CONNREFUSED);
        }
        let mut room = vec![0; message.length().min(ROOM)];
        let peeks = flags & libc::MSG_PEEK != 0;
        let came = match sockets::receives(call.fd()?, &mut room, peeks) {
            // That another end went away is nothing that UDP tells.
            Err(Errno::CONNRESET) => sockets::receives(call.fd()?, &mut room, peeks),
            came => came,
        };
        let (length, name) = came?;
        let way = name.map(|name| self.way_of(&name, &receiver));
        let family = receiver.family();
        let asked = receiver.options().packet_info();
        let control = way.map(|way| packet_info(asked, family, way.remote.ip));
        let data = room.get(..length).unwrap_or(&room);
        let received = Received {
            data,
            from: way.map(|way| (family, way.local)),
            control: &control.unwrap_or_default(),
            flags: if length > data.len() {
                libc::MSG_TRUNC
            } else {
                0
            },
        };
        message.tell(call, &received)?;
        match flags & libc::MSG_TRUNC {
            0 => Ok(data.len()),
            _ => Ok(length),
        }
    }

    /// The way of what has come from who has this name.
    fn way_of(&self, name: &[u8; 16], receiver: &Socket) -> Way {
        let sender = self.table.by_name(name);
        let Some(sender) = sender.or_else(|| self.datagrams.gone.get(name)) else {
            let (local, remote) = (NOBODY, receiver.local());
            return Way { local, remote };
        };
        let last = self
            .datagrams
            .ways
            .get(&(sender.cookie(), receiver.cookie()));
        self.table
            .way_between(sender, receiver, last.map(|(way, _)| *way))
    }

    /// Cuts and joins again those that are connected, by what the image allows now.
    pub(super) fn review_datagrams(&mut self) {
        let connected: Vec<(Socket, Way)> = self
            .table
            .all()
            .filter(|socket| socket.kind() == Kind::Datagram)
            .filter_map(|socket| Some((*socket, socket.way()?)))
            .collect();
        let (mut joined, mut cut) = (Vec::new(), Vec::new());
        for (socket, way) in connected {
            let was_cut = self.datagrams.cut.contains(&socket.cookie());
            match self.judge(socket.endpoint(), &way) {
                // Whether the other end is of circuits is not known to an operator that starts.
                Ok(_) | Err(Errno::HOSTUNREACH) if !was_cut => {}
                Ok((to, _)) => joined.push((socket, to, way)),
                Err(_) if guard!("circuits-cut-datagrams") => cut.push(socket),
                Err(_) => {}
            }
        }
        self.join_all(&joined);
        self.cut_all(&cut);
    }
}

/// Of a group that shares a port one is picked by the way, so that what belongs together goes
/// to one (FNV-1a).
fn hash(way: &Way) -> u32 {
    let port = |port: u16| port.to_ne_bytes();
    let ends: [&Ip; 2] = [&way.local.ip, &way.remote.ip];
    let ports = [port(way.local.port), port(way.remote.port)].concat();
    let bytes = ends.into_iter().flatten().chain(&ports);
    bytes.fold(0x811c_9dc5, |hash: u32, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}
