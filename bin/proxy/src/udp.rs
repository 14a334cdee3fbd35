//! Datagrams: a socket of UDP for each address and port of a program's, and for each of its peers
//! one of AF_UNIX that is connected to the program's. What comes by the one goes by the other,
//! whole; what finds no room is gone, as UDP's are. Nothing is kept here but what comes from
//! somebody new, until the operator has said whose it is.

use command::verbs::{Convey, Heard};
use guard::guard;
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, ipproto, recv, recvfrom,
    send, sendto, socket_with,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Addresses with ports that are heard at most, and peers that are conveyed to and from: the
/// operator keeps below.
const HEARD: usize = 1024;
/// And sockets of programs for one.
const IDS: usize = 16_384;
const CONVEYED: usize = 1024;
/// Somebody new: so many at a time, for so long, with so many datagrams each; and a second.
const ASKED: usize = 64;
const ASKED_FOR: Duration = Duration::from_secs(1);
const KEPT: usize = 16;
/// And so many bytes with each, but for the first: 4 MiB of all, or 64 of the longest.
const KEPT_BYTES: usize = 64 << 10;
const NEW: u32 = 1000;
/// After so long without anything the operator is asked whether its program is still there.
const QUIET: Duration = Duration::from_secs(300);
/// Datagrams of one socket before others have their turn.
const TURN: usize = 64;
/// And that wait at most in one that ends (513), with some that come meanwhile.
const UNSENT: usize = 10 * TURN;
/// Bytes of a datagram at most, and one more.
const ROOM: usize = 65_536;

/// From where in this endpoint, and the peer.
type Pair = (SocketAddr, SocketAddr);

/// What the operator is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// Somebody new sends.
    Heard(Pair),
    /// The program's socket is gone.
    Ended(u64),
    /// Nothing passed for long.
    Quiet(u64),
}

/// All of an endpoint.
pub struct Datagrams {
    heard: BTreeMap<SocketAddr, HeardAt>,
    /// What was heard for the operator before: what comes there waits for the next to say the same of one of these sockets.
    left: BTreeMap<SocketAddr, (OwnedFd, BTreeSet<u64>)>,
    conveyed: BTreeMap<u64, Conveyed>,
    peers: BTreeMap<Pair, u64>,
    /// What each number of an event is of.
    numbers: BTreeMap<u64, Of>,
    asked: BTreeMap<Pair, Asked>,
    /// Who may still be asked for, and since when they are counted.
    may: u32,
    counted: Instant,
    says: Vec<Say>,
    room: Vec<u8>,
}

/// An address and port.
struct HeardAt {
    fd: OwnedFd,
    number: u64,
    /// For which sockets of programs.
    ids: BTreeSet<u64>,
    /// And for which it was, as the operator before had it, of which this one has said nothing.
    before: BTreeSet<u64>,
}

#[derive(Clone, Copy)]
enum Of {
    Heard(SocketAddr),
    Conveyed(u64),
}

struct Conveyed {
    far: OwnedFd,
    pair: Pair,
    used: Instant,
    number: u64,
}

/// Somebody new, and what came from there.
struct Asked {
    since: Instant,
    kept: VecDeque<Vec<u8>>,
    /// It is nobody's, as far as is known: nothing is kept, and nobody asked, for as long as one that is asked about waits.
    refused: bool,
}

impl Datagrams {
    /// None yet.
    pub fn new(now: Instant) -> Datagrams {
        Datagrams {
            heard: BTreeMap::new(),
            left: BTreeMap::new(),
            conveyed: BTreeMap::new(),
            peers: BTreeMap::new(),
            numbers: BTreeMap::new(),
            asked: BTreeMap::new(),
            may: NEW,
            counted: now,
            says: Vec::new(),
            room: vec![0; ROOM],
        }
    }

    /// With its operator all that it asked for is gone, but who is new, and what is sent where it had this hear; which is to be watched
    /// no more.
    pub fn clear(&mut self, now: Instant, unwatch: impl Fn(BorrowedFd<'_>)) {
        for id in self.conveyed.keys().copied().collect::<Vec<_>>() {
            self.goes_out(id, now);
        }
        for (at, mut heard) in std::mem::take(&mut self.heard) {
            unwatch(heard.fd.as_fd());
            // One that came to its end before it had said all has its word from who was before.
            if heard.ids.len() + heard.before.len() <= IDS {
                heard.ids.append(&mut heard.before);
            }
            self.left.insert(at, (heard.fd, heard.ids));
        }
        self.conveyed.clear();
        self.peers.clear();
        self.numbers.clear();
        self.says.clear();
    }

    /// Nobody has said the same.
    pub fn leave(&mut self) {
        self.left.clear();
    }

    /// What the operator is to be told by now.
    pub fn says(&mut self) -> Vec<Say> {
        std::mem::take(&mut self.says)
    }

    /// Whether somebody's datagrams are kept for a while, and whether there is anything.
    pub fn waits(&self) -> (bool, bool) {
        let soon = !self.asked.is_empty() || !self.left.is_empty();
        (soon, !self.conveyed.is_empty())
    }

    /// Hears what is sent there by an interface, for a program's socket; the socket, to be watched by this number. `None`: it is already.
    /// What came there while an operator was replaced is for those for which it was heard, and for nobody else: one that had the
    /// port since was told of by nobody, or with the operator's last words.
    ///
    /// # Errors
    /// The kernel's: another program of the namespace has the port. NFILE: too many.
    pub fn hear(
        &mut self,
        at: SocketAddr,
        number: u64,
        (interface, id): (u32, u64),
    ) -> Result<Option<BorrowedFd<'_>>, Errno> {
        if let Some(heard) = self.heard.get_mut(&at) {
            if heard.ids.len() < IDS {
                heard.ids.insert(id);
            }
            heard.before.remove(&id);
            // It may want whom nobody did.
            self.asked
                .retain(|pair, asked| pair.0 != at || !asked.refused);
            return Ok(None);
        }
        if self.heard.len() >= HEARD {
            return Err(Errno::NFILE);
        }
        let left = self.left.remove(&at);
        let goes_on =
            |it: &(OwnedFd, BTreeSet<u64>)| it.1.contains(&id) || !guard!("proxy-hears-anew");
        let left = left.filter(|it| goes_on(it) && guard!("proxy-hears-on"));
        let (fd, mut before) = match left {
            Some(left) => left,
            None => {
                self.asks_no_more(&at);
                (opened(&at, interface)?, BTreeSet::new())
            }
        };
        before.remove(&id);
        // The operator before was told of these, and did not say whose they are.
        let now = Instant::now();
        for (pair, asked) in self.asked.iter_mut().filter(|(pair, _)| pair.0 == at) {
            (asked.since, asked.refused) = (now, false);
            self.says.push(Say::Heard(*pair));
        }
        self.numbers.insert(number, Of::Heard(at));
        let heard = HeardAt {
            fd,
            number,
            ids: BTreeSet::from([id]),
            before,
        };
        self.heard.insert(at, heard);
        Ok(self.heard.get(&at).map(|heard| heard.fd.as_fd()))
    }

    /// No more for this one, nor where it was the last.
    pub fn unhear(&mut self, at: &SocketAddr, id: u64) {
        if let Some(heard) = self.heard.get_mut(at) {
            heard.ids.remove(&id);
            if heard.ids.is_empty() {
                self.closes(at);
            }
        }
    }

    /// What is sent there is heard no more.
    pub fn closes(&mut self, at: &SocketAddr) {
        self.asks_no_more(at);
        if let Some(heard) = self.heard.remove(at) {
            self.numbers.remove(&heard.number);
        }
    }

    /// What was sent there to whom nobody knows is for nobody.
    fn asks_no_more(&mut self, at: &SocketAddr) {
        self.asked.retain(|pair, _| pair.0 != *at);
    }

    /// Conveys between the program's socket that `far` is connected to and a peer, of which what comes is for this one from now on, if it
    /// `hears`; to be watched by this number.
    ///
    /// # Errors
    /// NFILE: as many are as may. What comes does not get there.
    pub fn convey(
        &mut self,
        body: &Convey,
        far: OwnedFd,
        number: u64,
        now: Instant,
    ) -> Result<BorrowedFd<'_>, Errno> {
        if self.conveyed.len() >= CONVEYED && guard!("proxy-conveyed") {
            return Err(Errno::NFILE);
        }
        let pair = pair(body);
        self.numbers.insert(number, Of::Conveyed(body.id));
        let new = Conveyed {
            far,
            pair,
            used: now,
            number,
        };
        self.conveyed.insert(body.id, new);
        if body.hears != 0 {
            self.point(body, now);
        }
        let conveyed = self.conveyed.get(&body.id).ok_or(Errno::NFILE)?;
        Ok(conveyed.far.as_fd())
    }

    /// What comes from a peer is for this one of those that are conveyed from now on, as is what was kept; or for one that is asked for, if
    /// it is none of them, or does not get there, of which the operator is told. With none that `hears` what was asked about is nobody's.
    pub fn point(&mut self, body: &Convey, now: Instant) {
        let pair = pair(body);
        if body.id == 0 && body.hears == 0 {
            if let Some(asked) = self.asked.get_mut(&pair) {
                asked.kept.clear();
                asked.refused = true;
            }
            return;
        }
        self.peers.remove(&pair);
        if let Some(conveyed) = self.conveyed.remove(&body.id) {
            let takes = self.hands_on(&pair, &conveyed.far);
            self.conveyed.insert(body.id, conveyed);
            if takes {
                self.peers.insert(pair, body.id);
                return;
            }
        }
        if body.id != 0 {
            self.part(body.id, now);
            self.says.push(Say::Ended(body.id));
        }
        let waits = self.asked.contains_key(&pair);
        self.says.extend(waits.then_some(Say::Heard(pair)));
    }

    /// Hands on what was kept; whether somebody has it. What finds no room is gone.
    fn hands_on(&mut self, pair: &Pair, far: &OwnedFd) -> bool {
        let Some(mut asked) = self.asked.remove(pair) else {
            return true;
        };
        while let Some(data) = asked.kept.front() {
            if is_nobodys(send(far, data, sends())) {
                self.asked.insert(*pair, asked);
                return false;
            }
            asked.kept.pop_front();
        }
        true
    }

    /// No more, when what the program has sent until now is gone out.
    pub fn part(&mut self, id: u64, now: Instant) {
        for _ in 0..UNSENT / TURN {
            if !self.goes_out(id, now) {
                break;
            }
        }
        self.remove(id);
    }

    fn remove(&mut self, id: u64) {
        let Some(gone) = self.conveyed.remove(&id) else {
            return;
        };
        if self.peers.get(&gone.pair) == Some(&id) {
            self.peers.remove(&gone.pair);
        }
        self.numbers.remove(&gone.number);
    }

    /// Something came at a socket.
    pub fn stirred(&mut self, number: u64, now: Instant) {
        match self.numbers.get(&number).copied() {
            Some(Of::Heard(at)) => self.comes_in(at, now),
            Some(Of::Conveyed(id)) => {
                self.goes_out(id, now);
            }
            None => {}
        }
    }

    /// From a program to its peer; whether there may be more.
    fn goes_out(&mut self, id: u64, now: Instant) -> bool {
        let Some(conveyed) = self.conveyed.get_mut(&id) else {
            return false;
        };
        let (from, to) = conveyed.pair;
        for _ in 0..TURN {
            match recv(&conveyed.far, &mut self.room[..], receives()) {
                Ok((_, length)) => {
                    conveyed.used = now;
                    // Longer than any of UDP: gone, as what the kernel refuses for another reason.
                    let heard = self.heard.get(&from);
                    if let (Some(data), Some(heard)) = (self.room.get(..length), heard) {
                        let _ = sendto(&heard.fd, data, sends(), &to);
                    }
                }
                Err(Errno::AGAIN) => return false,
                // That an end was disconnected is told so; and an interrupt.
                Err(_) => {}
            }
        }
        true
    }

    /// From peers to a program.
    fn comes_in(&mut self, at: SocketAddr, now: Instant) {
        for _ in 0..TURN {
            let Some(heard) = self.heard.get(&at) else {
                return;
            };
            let (length, from) = match recvfrom(&heard.fd, &mut self.room[..], receives()) {
                Ok((_, length, from)) => (length, from),
                Err(Errno::AGAIN) => return,
                Err(_) => continue,
            };
            let Some(from) = from.and_then(|from| SocketAddr::try_from(from).ok()) else {
                continue;
            };
            let pair = (at, plain(from));
            let id = self.peers.get(&pair).copied();
            let known = id.and_then(|id| Some((id, self.conveyed.get_mut(&id)?)));
            let data = self.room.get(..length).unwrap_or_default();
            match known {
                Some((id, conveyed)) => {
                    conveyed.used = now;
                    if is_nobodys(send(&conveyed.far, data, sends())) {
                        // Another may have the port by now.
                        let data = data.to_vec();
                        self.part(id, now);
                        self.says.push(Say::Ended(id));
                        self.ask(pair, data, now);
                    }
                }
                None => {
                    let data = data.to_vec();
                    self.ask(pair, data, now);
                }
            }
        }
    }

    /// Keeps what comes from somebody new, and asks whose it is. Beyond its bounds it is gone.
    fn ask(&mut self, pair: Pair, data: Vec<u8>, now: Instant) {
        if let Some(asked) = self.asked.get_mut(&pair) {
            let held: usize = asked.kept.iter().map(Vec::len).sum();
            if !asked.refused && asked.kept.len() < KEPT && held + data.len() <= KEPT_BYTES {
                asked.kept.push_back(data);
            }
            return;
        }
        if now.saturating_duration_since(self.counted) >= Duration::from_secs(1) {
            (self.counted, self.may) = (now, NEW);
        }
        if (self.asked.len() >= ASKED || self.may == 0) && guard!("proxy-strangers") {
            return;
        }
        self.may = self.may.saturating_sub(1);
        let kept = VecDeque::from([data]);
        let asked = Asked {
            since: now,
            kept,
            refused: false,
        };
        self.asked.insert(pair, asked);
        self.says.push(Say::Heard(pair));
    }

    /// Nobody said whose it is, in time; and what was quiet for long is said.
    pub fn forget(&mut self, now: Instant) {
        let since = |then: Instant| now.saturating_duration_since(then);
        self.asked.retain(|_, asked| since(asked.since) < ASKED_FOR);
        for (id, conveyed) in &mut self.conveyed {
            if since(conveyed.used) >= QUIET {
                conveyed.used = now;
                self.says.push(Say::Quiet(*id));
            }
        }
    }
}

/// As the operator is told of it.
pub fn heard((to, from): Pair) -> Heard {
    let ((from, from_port), (to, to_port)) = (crate::tcp::numbers(from), crate::tcp::numbers(to));
    Heard {
        from,
        to,
        from_port,
        to_port,
    }
}

/// From where in this endpoint, and the peer.
fn pair(body: &Convey) -> Pair {
    let from = crate::tcp::address(body.from, body.from_port);
    (from, crate::tcp::address(body.to, body.to_port))
}

/// Whether what was sent to a program gets to none: its socket is gone, or connected to another.
fn is_nobodys(sent: Result<usize, Errno>) -> bool {
    match sent {
        Err(Errno::NOTCONN | Errno::CONNREFUSED) => true,
        Err(Errno::PERM) => guard!("proxy-connected"),
        _ => false,
    }
}

fn sends() -> SendFlags {
    SendFlags::DONTWAIT | SendFlags::NOSIGNAL
}

fn receives() -> RecvFlags {
    RecvFlags::DONTWAIT | RecvFlags::TRUNC
}

/// Without what tells of an interface and a flow: the same peer is one.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

fn opened(at: &SocketAddr, interface: u32) -> Result<OwnedFd, Errno> {
    const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
    let family = match at {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let fd = socket_with(family, SocketType::DGRAM, FLAGS, Some(ipproto::UDP))?;
    crate::tcp::keep_to(&fd, interface)?;
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
        // Its interface may still find out whether another has the address.
        sockopt::set_ipv6_freebind(&fd, true)?;
    }
    bind(&fd, at)?;
    Ok(fd)
}

#[cfg(test)]
mod tests;
