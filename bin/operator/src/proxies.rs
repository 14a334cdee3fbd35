//! Circuits whose other side has packets: what the proxies of this compartment's endpoints are
//! asked, and what they say.

use crate::sockets::{self, Made};
use circuit::{Endpoint, Socket as Known, State};
use command::Message;
use command::verbs::{Came, Heard, Join, Quiet, Refuse, Relay, Relayed, Serve, Served, Unserve};
use guard::guard;
use rustix::fs::fcntl_getfl;
use rustix::io::Errno;
use rustix::net::sockopt::socket_cookie;
use seqpacket::Socket;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// A connect is answered within seven seconds, by who is well.
const PATIENCE: Duration = Duration::from_secs(15);
/// Bits of a socket's cookie in what a proxy calls its connect; above them is how many were taken back before it.
const COOKIE: u32 = 48;
const MASK: u64 = (1 << COOKIE) - 1;
/// So many of these are told apart; the highest bit is a proxy's own.
const TAKEN_BACK: u64 = 0x7fff;
/// Ports that are tried for a connect.
const PORTS: u32 = 32;

/// What waits for room at a proxy's link at most, and descriptors of that.
const UNSAID: usize = 4096;
const UNSAID_FDS: usize = 256;

/// The proxies, and what they were asked.
#[derive(Default)]
pub struct Relays {
    links: BTreeMap<u32, Socket>,
    /// Connects, by their sockets' cookies.
    asked: BTreeMap<u64, Asked>,
    /// Of those that are asked for from another port, how many they had before.
    tried: BTreeMap<u64, u32>,
    /// Connects that were taken back.
    taken_back: u64,
    /// Listening sockets for which proxies listen, with their slots.
    served: BTreeMap<u64, (u32, Serve)>,
    /// What links had no room for.
    unsaid: BTreeMap<u32, VecDeque<(Message, Option<OwnedFd>)>>,
    /// Where circuits get their other ends.
    door: Option<(Made, [u8; 16])>,
}

/// A connect that a proxy was asked for.
struct Asked {
    slot: u32,
    body: Relay,
    since: Instant,
    outcome: Option<Result<(), Errno>>,
}

/// What a proxy says.
pub enum Said {
    /// What came of a connect.
    Relayed,
    /// Somebody connects to a program.
    Came(Came),
    /// Somebody new sends datagrams to a program.
    Heard(Heard),
    /// Nothing is conveyed between a program's socket and a peer.
    Quiet(Quiet),
}

impl Relays {
    /// A slot's proxy, another than before: it is asked again for what it was asked.
    pub fn link<'a>(&mut self, slot: u32, link: Socket, all: impl Iterator<Item = &'a Known>) {
        self.unlinks(slot);
        self.links.insert(slot, link);
        for asked in self.asked.values_mut().filter(|asked| asked.slot == slot) {
            asked.outcome = None;
        }
        let again = self.asked.values().filter(|asked| asked.slot == slot);
        let bodies: Vec<Relay> = again.map(|asked| asked.body).collect();
        for body in bodies {
            self.says(slot, Message::new(0, &body));
        }
        for socket in all.filter(|socket| socket.endpoint() == slot) {
            self.serve(socket);
        }
        self.says(slot, Message::new(0, &Served::default()));
    }

    /// What a link before had is no more.
    fn unlinks(&mut self, slot: u32) -> Option<Socket> {
        self.served.retain(|_, (of, _)| *of != slot);
        self.unsaid.remove(&slot);
        self.links.remove(&slot)
    }

    /// Whether a slot's endpoint has a proxy.
    pub fn has(&self, slot: u32) -> bool {
        self.links.contains_key(&slot)
    }

    /// It is gone, for good or until the next.
    pub fn unlink(&mut self, slot: u32) -> Option<Socket> {
        for asked in self.asked.values_mut().filter(|asked| asked.slot == slot) {
            asked.outcome = Some(Err(Errno::CONNRESET));
        }
        self.unlinks(slot)
    }

    /// The next thing that a slot's proxy says. `Err`: it is gone.
    pub fn hear(&mut self, slot: u32) -> Result<Option<Said>, ()> {
        let Some(link) = self.links.get(&slot) else {
            return Ok(None);
        };
        let Some((message, _)) = link.recv().map_err(drop)? else {
            return Ok(None);
        };
        if let Some(body) = message.body::<Relayed>() {
            let asked = self.asked.get_mut(&(body.id & MASK));
            let is_it = |asked: &&mut Asked| asked.slot == slot && asked.body.id == body.id;
            if let Some(asked) = asked.filter(is_it) {
                let errno = i32::try_from(body.errno).unwrap_or(i32::MAX);
                asked.outcome = Some(match errno {
                    0 => Ok(()),
                    // A number that is no error's would be taken for success.
                    1..=4095 => Err(Errno::from_raw_os_error(errno)),
                    _ => Err(Errno::IO),
                });
            }
            return Ok(Some(Said::Relayed));
        }
        let heard = || message.body::<Heard>().map(Said::Heard);
        let quiet = || message.body::<Quiet>().map(Said::Quiet);
        let came = message.body::<Came>().map(Said::Came);
        Ok(came.or_else(heard).or_else(quiet))
    }

    /// Tells a slot's proxy, now or once its link has room, in the order of these; whether it will hear.
    pub fn says(&mut self, slot: u32, message: Message) -> bool {
        self.gives(slot, message, None)
    }

    /// The same, with a descriptor.
    pub fn gives(&mut self, slot: u32, message: Message, fd: Option<&OwnedFd>) -> bool {
        self.says_to(slot);
        let Some(link) = self.links.get(&slot) else {
            return false;
        };
        let unsaid = self.unsaid.entry(slot).or_default();
        let said = match unsaid.is_empty() {
            true => sends(link, &message, fd),
            false => Err(seqpacket::Error::Full),
        };
        if !matches!(said, Err(seqpacket::Error::Full)) {
            return said.is_ok();
        }
        let with = unsaid.iter().filter(|(_, fd)| fd.is_some());
        let has_room = unsaid.len() < UNSAID && (fd.is_none() || with.count() < UNSAID_FDS);
        // One for which there is no descriptor is lost, and closed.
        let fd = fd.filter(|_| has_room).map(OwnedFd::try_clone).transpose();
        match fd {
            Ok(fd) if has_room && guard!("circuits-late-proxy") => {
                unsaid.push_back((message, fd));
                true
            }
            _ => false,
        }
    }

    /// Says what links had no room for.
    pub fn says_on(&mut self) {
        for slot in self.unsaid.keys().copied().collect::<Vec<_>>() {
            self.says_to(slot);
        }
    }

    fn says_to(&mut self, slot: u32) {
        let Some(unsaid) = self.unsaid.get_mut(&slot) else {
            return;
        };
        // One that is closed hears nothing more.
        while let (Some((message, fd)), Some(link)) = (unsaid.front(), self.links.get(&slot))
            && !matches!(
                sends(link, message, fd.as_ref()),
                Err(seqpacket::Error::Full)
            )
        {
            unsaid.pop_front();
        }
        if unsaid.is_empty() {
            self.unsaid.remove(&slot);
        }
    }

    /// Whether a link had no room for something.
    pub fn is_late(&self) -> bool {
        self.unsaid.values().any(|unsaid| !unsaid.is_empty())
    }

    /// Whether a socket's connect is asked for.
    pub fn is_asked(&self, cookie: u64) -> bool {
        self.asked.contains_key(&cookie)
    }

    /// Nobody asks for it any more.
    pub fn asks_no_more(&mut self, cookie: u64) {
        self.tried.remove(&cookie);
        if let Some(asked) = self.asked.remove(&cookie) {
            self.refuse(asked.slot, asked.body.id);
            self.taken_back = self.taken_back.wrapping_add(1);
        }
    }

    /// What a proxy calls a connect of a socket: what it says of one that was taken back is of no other.
    fn id(&self, cookie: u64) -> u64 {
        ((self.taken_back & TAKEN_BACK) << COOKIE) | (cookie & MASK)
    }

    /// Whether it is known what came of it.
    pub fn is_over(&self, cookie: u64) -> bool {
        let asked = self.asked.get(&cookie);
        asked.is_none_or(|asked| asked.outcome.is_some())
    }

    /// Whether somebody waits for a proxy's answer.
    pub fn are_awaited(&self) -> bool {
        self.asked.values().any(|asked| asked.outcome.is_none())
    }

    /// A proxy that answers nothing for longer than a connect takes has those who wait told so.
    pub fn tick(&mut self) {
        let late =
            |asked: &&mut Asked| asked.since.elapsed() >= PATIENCE && guard!("circuits-proxy-late");
        for asked in self.asked.values_mut().filter(late) {
            asked.outcome.get_or_insert(Err(Errno::TIMEDOUT));
        }
    }

    /// Asks for a connect.
    ///
    /// # Errors
    /// The proxy does not listen.
    pub fn ask(
        &mut self,
        slot: u32,
        cookie: u64,
        local: Endpoint,
        remote: Endpoint,
    ) -> Result<(), Errno> {
        let body = Relay {
            id: self.id(cookie),
            from: local.ip,
            to: remote.ip,
            from_port: local.port.into(),
            to_port: remote.port.into(),
        };
        if !self.says(slot, Message::new(0, &body)) {
            return Err(Errno::NOBUFS);
        }
        let asked = Asked {
            slot,
            body,
            since: Instant::now(),
            outcome: None,
        };
        self.asked.insert(cookie, asked);
        Ok(())
    }

    /// What came of it: where it is connected, so is now the program's socket. `None`: nothing
    /// yet.
    pub fn joined(&mut self, cookie: u64, fd: &OwnedFd) -> Option<Result<(), Errno>> {
        let outcome = self.asked.get(&cookie)?.outcome?;
        let asked = self.asked.remove(&cookie)?;
        if outcome != Err(Errno::ADDRINUSE) {
            self.tried.remove(&cookie);
        }
        if let Err(errno) = outcome {
            return Some(Err(errno));
        }
        Some(match self.circuit(fd) {
            Ok(end) => {
                let id = asked.body.id;
                let join = Message::new(0, &Join { id });
                // One that is not sent is closed with this: the program hears the end.
                self.gives(asked.slot, join, Some(&end));
                Ok(())
            }
            Err(errno) => {
                self.refuse(asked.slot, asked.body.id);
                Err(errno)
            }
        })
    }

    /// The port of a connect, which was taken for it, is another's in its namespace: whether it is asked for from another one.
    pub fn tries_another(&mut self, cookie: u64) -> bool {
        let tried = self.tried.entry(cookie).or_default();
        *tried += 1;
        let tries = *tried < PORTS && guard!("circuits-proxy-port");
        if !tries {
            self.tried.remove(&cookie);
        }
        tries
    }

    /// Connects a program's socket to a new one, which does not block.
    pub fn circuit(&mut self, fd: &OwnedFd) -> Result<OwnedFd, Errno> {
        if self.door.is_none() {
            let door = sockets::stream(true)?;
            let name = sockets::name(&door.fd).map_or_else(crate::mediate::secret, Ok)?;
            sockets::listens(&door.fd, name)?;
            self.door = Some((door, name));
        }
        let (door, name) = self.door.as_ref().ok_or(Errno::NOBUFS)?;
        let own = socket_cookie(fd)?;
        sockets::connects_at_once(fd, fcntl_getfl(fd)?, *name)?;
        let is_own = |end: &OwnedFd| sockets::began(end) == Some(own) || !guard!("relays-whose");
        // What an accept that failed has left would be another's end.
        let end = loop {
            match sockets::accepts(&door.fd, true, || {}) {
                Ok(Some(end)) if is_own(&end) => break Ok(end),
                Ok(Some(_)) => {}
                Ok(None) => break Err(Errno::CONNRESET),
                Err(errno) => break Err(errno),
            }
        };
        // With the door, whatever waits there is over: the program's socket leads to nobody.
        end.inspect_err(|_| self.door = None)
    }

    /// Nobody wants this connection.
    pub fn refuse(&mut self, slot: u32, id: u64) {
        self.says(slot, Message::new(0, &Refuse { id }));
    }

    /// Its other end is this.
    pub fn join(&mut self, slot: u32, id: u64, end: &OwnedFd) {
        self.gives(slot, Message::new(0, &Join { id }), Some(end));
    }

    /// Has a slot's proxy listen for a program that listens where others could come from; several may at one place (SO_REUSEPORT).
    pub fn serve(&mut self, socket: &Known) {
        let Some((slot, body)) = served(socket) else {
            return;
        };
        let is_new = self.served.get(&body.id) != Some(&(slot, body));
        if is_new && self.says(slot, Message::new(0, &body)) {
            self.served.insert(body.id, (slot, body));
        }
    }

    /// Forgets what is not so any more: those are there that live, and listen.
    pub fn retain(&mut self, lives: impl Fn(u64) -> bool, listens: impl Fn(u64) -> bool) {
        let gone = self.served.extract_if(.., |cookie, _| !listens(*cookie));
        for (id, (slot, body)) in gone.collect::<Vec<_>>() {
            if !self.says(slot, Message::new(0, &Unserve { id })) {
                // Once there is room again.
                self.served.insert(id, (slot, body));
            }
        }
        self.tried.retain(|cookie, _| lives(*cookie));
        let gone = self.asked.extract_if(.., |cookie, _| !lives(*cookie));
        let gone: Vec<(u64, u32)> = gone.map(|(_, asked)| (asked.body.id, asked.slot)).collect();
        for (id, slot) in gone {
            self.refuse(slot, id);
        }
    }
}

fn sends(link: &Socket, message: &Message, fd: Option<&OwnedFd>) -> Result<(), seqpacket::Error> {
    let fds: Vec<_> = fd.into_iter().map(AsFd::as_fd).collect();
    link.send(message, &fds)
}

/// Where a proxy is to listen for a socket, and what it is told; none, where nobody comes from elsewhere.
fn served(socket: &Known) -> Option<(u32, Serve)> {
    let State::Listening { backlog } = socket.state() else {
        return None;
    };
    let (local, only6) = (socket.local(), socket.options().v6only());
    let body = Serve {
        id: socket.cookie(),
        ip: local.ip,
        port: local.port.into(),
        backlog,
        only6: only6.into(),
        reserved: 0,
    };
    (!is_loopback(&local.ip)).then_some((socket.endpoint(), body))
}

/// ::1, 127.0.0.0/8.
pub fn is_loopback(ip: &[u8; 16]) -> bool {
    let ip = std::net::Ipv6Addr::from(*ip);
    ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_port_is_tried_so_often_and_for_each_connect_anew() {
        let mut relays = Relays::default();
        for _ in 0..2 {
            let tries = (0..100).take_while(|_| relays.tries_another(7)).count();
            assert_eq!(tries, PORTS as usize - 1);
        }
        assert!(relays.tries_another(7) && relays.tries_another(8));
        relays.retain(|cookie| cookie == 8, |_| false);
        assert_eq!(relays.tried.len(), 1);
    }

    /// Its proxy stands still. What has no descriptors waits beside.
    #[test]
    fn descriptors_that_wait_for_a_link_are_few() {
        let mut relays = Relays::default();
        let (link, proxy) = Socket::pair().unwrap();
        relays.link(3, link, std::iter::empty());
        let (fd, _far) = rustix::pipe::pipe().unwrap();
        let given = (0..2000).filter(|id| {
            let join = Message::new(0, &Join { id: *id });
            relays.gives(3, join, Some(&fd))
        });
        let given = given.count();
        assert!(
            (UNSAID_FDS..2 * UNSAID_FDS + 512).contains(&given),
            "{given}"
        );
        assert!(relays.says(3, Message::new(0, &Unserve { id: 9 })));
        let (mut heard, mut ends) = (Vec::new(), 0);
        for _ in 0..100 {
            while let Some((message, fds)) = proxy.recv().unwrap() {
                let join = message.body::<Join>().map(|it| (it.id, fds.len()));
                heard.extend(join);
                ends += usize::from(message.body::<Unserve>().is_some());
            }
            relays.says_on();
        }
        let expected: Vec<_> = (0..given as u64).map(|id| (id, 1)).collect();
        assert_eq!((heard, ends), (expected, 1));
    }

    /// Its proxy stands still: what it is told beyond that is told again later, by who knows that it was not.
    #[test]
    fn what_waits_for_a_link_has_a_bound_and_its_order() {
        let mut relays = Relays::default();
        let (link, proxy) = Socket::pair().unwrap();
        relays.link(3, link, std::iter::empty());
        let many = 4 * UNSAID as u64;
        let unserve = |id| Message::new(0, &Unserve { id });
        let told = (0..many).take_while(|id| relays.says(3, unserve(*id)));
        let told = told.count() as u64;
        assert!((UNSAID as u64..many).contains(&told), "{told}");
        assert!(!relays.says(3, unserve(many)), "there is room");
        let mut heard = Vec::new();
        for _ in 0..100 {
            while let Some((message, _)) = proxy.recv().unwrap() {
                heard.extend(message.body::<Unserve>().map(|it| it.id));
            }
            relays.says_on();
        }
        assert!(heard.into_iter().eq(0..told));
        assert!(relays.says(3, unserve(many)));
    }

    #[test]
    fn a_number_that_is_no_errors_is_no_success() {
        let point = Endpoint {
            ip: [0; 16],
            port: 7,
        };
        for errno in [4096, u32::MAX, 1 << 31] {
            let mut relays = Relays::default();
            let (link, proxy) = Socket::pair().unwrap();
            relays.link(3, link, std::iter::empty());
            relays.ask(3, 9, point, point).unwrap();
            let said = Relayed {
                id: relays.id(9),
                errno,
                ..Relayed::default()
            };
            proxy.send(&Message::new(0, &said), &[]).unwrap();
            assert!(matches!(relays.hear(3), Ok(Some(Said::Relayed))));
            let own = sockets::stream(true).unwrap();
            assert_eq!(relays.joined(9, &own.fd), Some(Err(Errno::IO)), "{errno}");
        }
    }

    #[test]
    fn a_circuit_has_its_own_other_end_and_no_other_that_waits() {
        let mut relays = Relays::default();
        let [first, stale, own] = [(), (), ()].map(|()| sockets::stream(true).unwrap());
        let end = relays.circuit(&first.fd).unwrap();
        assert_eq!(sockets::began(&end), Some(first.cookie));
        // As an accept leaves it that failed.
        let name = relays.door.as_ref().unwrap().1;
        sockets::connects(&stale.fd, name).unwrap();
        let end = relays.circuit(&own.fd).unwrap();
        assert_eq!(sockets::began(&end), Some(own.cookie));
        let gone = rustix::io::write(&stale.fd, b"to nobody");
        assert_eq!(gone, Err(Errno::PIPE));
    }
}
