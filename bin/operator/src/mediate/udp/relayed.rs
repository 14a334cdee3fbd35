//! Datagrams that go by the operator, both ways.

use super::transitions::{TRIES, Taken, hash};
use super::*;
use crate::msghdr::{Came as Received, LONGEST, Message, hops, packet_info};
use circuit::{Options, Socket, Way};

/// Messages of one sendmmsg or recvmmsg; the program is told that it were so many.
const BATCH: u64 = 64;
/// Bytes of all messages of one recvmmsg: more are left for the next.
const BATCH_BYTES: usize = 1 << 20;
/// The longest that is received: what a program sends by itself to whom it is connected may be
/// longer than UDP's.
const ROOM: usize = 256 << 10;
/// Who hears all has this part of a sender's own socket: others' have theirs of the rest ([`super::sent`]).
const OF_ALL: usize = 16;

impl Mediator {
    pub(in crate::mediate) fn send(
        &mut self,
        slot: u32,
        cookie: u64,
        call: &Call<'_>,
    ) -> Result<Came, Errno> {
        let [_, at, by_message, by_plain, ..] = call.arguments();
        let (message, flags) = match call.is(libc::SYS_sendto) {
            true => (Message::plain(call)?, by_plain),
            false => (Message::read(call, at)?, by_message),
        };
        let sent = self.send_one(slot, cookie, call, &message, flags as i32)?;
        Ok(Came::To(Ok(sent as i64)))
    }

    pub(in crate::mediate) fn send_many(
        &mut self,
        slot: u32,
        cookie: u64,
        call: &Call<'_>,
    ) -> Result<Came, Errno> {
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
        let outside = self.is_outside(slot, &way);
        let slot_to = match outside {
            true => None,
            false => self.may_send(slot, cookie, way)?,
        };
        let data = message.data(call)?;
        if self.datagrams.refused.remove(&cookie) {
            return Err(Errno::CONNREFUSED);
        }
        let by = (cookie, call.fd()?);
        match slot_to {
            Some(slot_to) => self.deliver(by, slot_to, &way, &data, to.is_none())?,
            None if outside => self.deliver_outside(by, &way, &data)?,
            None => {}
        }
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
        let owner = self.table.socket(cookie).map_or(to, Socket::endpoint);
        let mut freed = false;
        for _ in 0..TRIES {
            let Some(receiver) = self.table.find_receiver(to, way, hash(way)) else {
                break;
            };
            let hears = self.table.socket(receiver.cookie);
            let hears_all = hears.is_some_and(|it| it.way().is_none()) && guard!("circuits-drains");
            if !hears_all && !self.has_part((cookie, fd), (to, receiver.cookie), data.len()) {
                self.finds_no_room(cookie, 1);
                return Ok(());
            }
            let sent = match hears_all && !sockets::fits(fd, data.len(), OF_ALL) {
                true => self.by_spare((cookie, to), data, receiver.name),
                false => sockets::sends(fd, data, receiver.name),
            };
            match sent {
                Ok(()) => {
                    let keeps = if hears_all {
                        0
                    } else {
                        sockets::keeps(data.len())
                    };
                    let pair = (cookie, receiver.cookie);
                    self.datagrams.sent.sends(pair, [owner, to], *way, keeps);
                    return Ok(());
                }
                Err(Errno::CONNREFUSED | Errno::NOENT) => self.lost(receiver.cookie),
                Err(Errno::PIPE) if self.datagrams.shut.contains(&cookie) => {
                    return Err(Errno::PIPE);
                }
                Err(Errno::PERM)
                    if self.by_another((cookie, owner), (receiver.cookie, to), way, data) =>
                {
                    return Ok(());
                }
                Err(Errno::PERM) if !freed && self.lets_go(cookie, receiver.cookie) => {
                    freed = true;
                }
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::PERM | Errno::PIPE) => {
                    self.finds_no_room(cookie, 1);
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

    /// Whether a receiver, which was linked to nobody, is linked no more: to whom it is connected nobody has the place to hear it,
    /// the sender being connected elsewhere, and AF_UNIX lets nobody else send to it. Its native sends are told ENOTCONN then.
    fn lets_go(&mut self, sender: u64, receiver: u64) -> bool {
        let (Some(sender), Some(hears)) = (self.table.socket(sender), self.table.socket(receiver))
        else {
            return false;
        };
        let Some(back) = hears.way() else {
            return false;
        };
        let heard_by = self
            .table
            .find_receiver(sender.endpoint(), &back, hash(&back));
        let fd = heard_by.is_none().then(|| self.at_place(hears)).flatten();
        fd.is_some_and(|fd| sockets::disconnects(&fd).is_ok())
    }

    /// Sends from the socket that a receiver is linked to, which shares the sender's port: AF_UNIX
    /// lets no other send to it. Servers of several sockets answer by any of them. Of that one's room the receiver has a
    /// part as it has of any sender's.
    fn by_another(
        &mut self,
        (sender, owner): (u64, u32),
        (receiver, to): (u64, u32),
        way: &Way,
        data: &[u8],
    ) -> bool {
        let (Some(sender), Some(hears)) = (self.table.socket(sender), self.table.socket(receiver))
        else {
            return false;
        };
        let (name, Some(back)) = (hears.name(), hears.way()) else {
            return false;
        };
        let linked = self
            .table
            .find_receiver(sender.endpoint(), &back, hash(&back));
        let linked = linked.and_then(|it| self.table.socket(it.cookie));
        let shares = linked.filter(|it| it.local().port == sender.local().port);
        let Some((by, fd)) = shares.and_then(|it| Some((it.cookie(), self.at_place(it)?))) else {
            return false;
        };
        let counts = guard!("circuits-part-another");
        if counts && !self.has_part((by, &fd), (to, receiver), data.len()) {
            return false;
        }
        if sockets::sends(&fd, data, name).is_err() {
            return false;
        }
        if counts {
            let keeps = sockets::keeps(data.len());
            let sent = &mut self.datagrams.sent;
            sent.sends((by, receiver), [owner, to], *way, keeps);
        }
        true
    }

    pub(in crate::mediate) fn receive(
        &mut self,
        cookie: u64,
        call: &mut Call<'_>,
    ) -> Result<Came, Errno> {
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
        let has_room = |this: &Mediator| {
            let all = this.datagrams.taken.iter();
            all.map(|(_, taken)| taken.data.len()).sum::<usize>() < BATCH_BYTES
        };
        while received < (count & u64::from(u32::MAX)).min(BATCH) && has_room(self) {
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
        let peeks = flags & libc::MSG_PEEK != 0;
        let kept = self.datagrams.kept(cookie);
        let was_kept = kept.is_some();
        let room = message.length().min(ROOM);
        let mut taken = match kept {
            Some(kept) => kept,
            None => take(call.fd()?, room, peeks)?,
        };
        // By a name that only the operator before knew: lost, rather than nobody's.
        // Bound: what waits at a socket.
        while !was_kept && self.follows && taken.name.is_some_and(|name| self.is_unknown(&name)) {
            if peeks {
                take(call.fd()?, room, false)?;
            }
            taken = take(call.fd()?, room, peeks)?;
        }
        let way = taken.name.map(|name| self.way_of(&name, &receiver));
        let family = receiver.family();
        let asked = receiver.options();
        let sender = taken.name.and_then(|name| self.sender(&name));
        let sent = sender
            .map_or_else(Options::default, |it| *it.options())
            .hops();
        let control = way.map(|way| {
            let mut all = packet_info(asked.packet_info(), family, way.remote.ip);
            all.extend(hops(asked.asks_hops(), sent, way.remote.ip));
            all
        });
        let room = taken.data.len().min(message.length());
        let data = taken.data.get(..room).unwrap_or_default();
        let length = taken.length;
        let received = Received {
            data,
            from: way.map(|way| (family, way.local)),
            control: &control.unwrap_or_default(),
            flags: if length > room { libc::MSG_TRUNC } else { 0 },
        };
        let told = message.tell(call, &received);
        // What is looked at stays where it is.
        match (peeks, was_kept) {
            (false, _) => self.datagrams.taken.push((cookie, taken)),
            (true, true) => self.datagrams.keep(cookie, taken),
            (true, false) => {}
        }
        told?;
        match flags & libc::MSG_TRUNC {
            0 => Ok(room),
            _ => Ok(length),
        }
    }

    /// Who has this name, or had it.
    fn sender(&self, name: &[u8; 16]) -> Option<&Socket> {
        let spare = self.datagrams.spares.sender(name);
        let spare = spare.and_then(|sender| {
            let gone = || self.datagrams.gone.all().find(|it| it.cookie() == sender);
            self.table.socket(sender).or_else(gone)
        });
        let sender = self.table.by_name(name).or(spare);
        sender.or_else(|| self.datagrams.gone.get(name))
    }

    /// Whether nobody is known to have had this name.
    fn is_unknown(&self, name: &[u8; 16]) -> bool {
        self.outside.came_by(name).is_none() && self.sender(name).is_none()
    }

    /// The way of what has come from who has this name.
    fn way_of(&self, name: &[u8; 16], receiver: &Socket) -> Way {
        if let Some(way) = self.outside.came_by(name) {
            return way;
        }
        let Some(sender) = self.sender(name) else {
            let (local, remote) = (NOBODY, receiver.local());
            return Way { local, remote };
        };
        let last = self.datagrams.sent.way(sender.cookie(), receiver.cookie());
        self.table.way_between(sender, receiver, last)
    }
}

/// The next datagram at a socket.
fn take(fd: &OwnedFd, room: usize, peeks: bool) -> Result<Taken, Errno> {
    let mut data = vec![0; room];
    let came = match sockets::receives(fd, &mut data, peeks) {
        // That another end went away is nothing that UDP tells.
        Err(Errno::CONNRESET) => sockets::receives(fd, &mut data, peeks),
        came => came,
    };
    let (length, name) = came?;
    data.truncate(length);
    Ok(Taken { data, length, name })
}
