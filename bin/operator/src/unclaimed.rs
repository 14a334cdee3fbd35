//! Connections that were accepted and are in no program yet: the kernel's queue has them no more,
//! and who began one would find it reset if this process died with it.
//!
//! Each is under way, with the listening socket that it came to, in a socket that is connected to
//! itself and that the keeper has too, from right after it was accepted until its program has it.
//! Who follows takes it from there. What came from inside the tenant, and by agreements, are in
//! sockets of their own (rooms): what is taken from between others has these go round.

use crate::chance;
use crate::sockets::{self, Made};
use command::Message;
use command::verbs::Accepted;
use guard::guard;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use seqpacket::Socket;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

/// Connections at most that are looked at in what the operator before left: more than there is
/// room for under way.
const MOST: usize = 4096;

/// How a connection came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// To a listening socket, of this cookie.
    Listener(u64),
    /// Through the door of the agreement of this tag.
    Door(u16),
}

/// Where connections are under way.
struct Room {
    kept: Socket,
    /// Those that are, in order.
    under_way: VecDeque<u64>,
}

/// One that waits, with the cookie of its listening socket.
struct Waits {
    at: u64,
    made: Made,
    /// Its turn has come: it is before all that are in the kernel's queue.
    is_due: bool,
}

/// What was accepted.
#[derive(Default)]
pub struct Unclaimed {
    /// The first for the tenant's own, the others for those of agreements; none before it is told of.
    rooms: Vec<Room>,
    /// The next one's place among them ([`Accepted::order`]).
    next: u32,
    /// For whoever accepts there next.
    waiting: Vec<Waits>,
    /// The same of those that are in a program, or not, as turns out when its call is taken up.
    claimed: Vec<(u64, Made)>,
}

impl Unclaimed {
    /// All that the operator before left in these, as they were accepted, with their listeners or the agreements that they
    /// came by.
    pub fn recall(&mut self, rooms: Vec<Socket>) -> Vec<(By, Made)> {
        let mut left = Vec::new();
        for kept in rooms {
            let mut room = Room {
                kept,
                under_way: VecDeque::new(),
            };
            room.recall(&mut left);
            self.rooms.push(room);
        }
        // In its room one goes behind those that came later, each time that one of these has its program.
        if let Some(&(first, ..)) = left.first() {
            left.sort_by_key(|(order, ..)| order.wrapping_sub(first).cast_signed());
        }
        if let Some((last, ..)) = left.last() {
            self.next = last.wrapping_add(1);
        }
        left.into_iter().map(|(_, by, made)| (by, made)).collect()
    }

    /// Where one is under way that came so.
    fn room(&mut self, by: By) -> Option<&mut Room> {
        let others = self.rooms.len().saturating_sub(1);
        let at = match by {
            By::Door(tag) if others > 0 && guard!("circuits-rooms") => {
                1 + usize::from(tag) % others
            }
            _ => 0,
        };
        self.rooms.get_mut(at)
    }

    /// It was accepted this moment: nothing else comes before this.
    pub fn keeps(&mut self, by: By, fd: OwnedFd) -> Result<Made, Errno> {
        let (listener, crossing) = match by {
            By::Listener(listener) => (listener, 0),
            By::Door(tag) => (0, tag.into()),
        };
        let body = Accepted {
            listener,
            crossing,
            order: self.next,
        };
        self.next = self.next.wrapping_add(1);
        let message = Message::new(0, &body);
        let mut room = self.room(by).filter(|_| guard!("circuits-kept"));
        // Without it, or where it is full, it is lost if this process dies now.
        let sent = room
            .as_ref()
            .map(|room| room.kept.send(&message, &[fd.as_fd()]));
        let made = sockets::made(fd)?;
        if let (Some(room), Some(Ok(()))) = (&mut room, sent) {
            room.under_way.push_back(made.cookie);
        }
        Ok(made)
    }

    /// Its program has it, or nobody is to.
    pub fn is_over(&mut self, cookie: u64) {
        self.claimed.retain(|(_, made)| made.cookie != cookie);
        for room in &mut self.rooms {
            room.is_over(cookie);
        }
    }

    /// It is for whoever accepts at this listening socket, in its turn.
    pub fn waits(&mut self, at: u64, made: Made) {
        let is_due = false;
        self.waiting.push(Waits { at, made, is_due });
    }

    /// The same, before all others: it was about to be in a program.
    pub fn waits_first(&mut self, at: u64, made: Made) {
        let is_due = true;
        self.waiting.insert(0, Waits { at, made, is_due });
    }

    /// The same, once those are served.
    pub fn waits_next(&mut self, at: u64, made: Made) {
        let is_due = true;
        self.waiting.push(Waits { at, made, is_due });
    }

    /// The turn of the first has come that waits for it at this listening socket, if one does.
    pub fn comes_due(&mut self, listener: u64) {
        let mut all = self.waiting.iter_mut();
        if let Some(first) = all.find(|it| it.at == listener && !it.is_due) {
            first.is_due = true;
        }
    }

    /// As how many a listening socket is to be readable by nobody's connections: each is the place in the queue of one that
    /// waits for its turn, and one more stands for those whose turn has come.
    pub fn places(&self, listener: u64) -> usize {
        let its = || self.waiting.iter().filter(|it| it.at == listener);
        its().filter(|it| !it.is_due).count() + usize::from(its().any(|it| it.is_due))
    }

    /// The operator before was about to put it into a program.
    pub fn is_claimed(&mut self, listener: u64, made: Made) {
        self.claimed.push((listener, made));
    }

    /// It did not: with its listener.
    pub fn frees(&mut self, cookie: u64) -> Option<(u64, Made)> {
        let mut all = self.claimed.iter();
        let at = all.position(|(_, made)| made.cookie == cookie)?;
        Some(self.claimed.remove(at))
    }

    /// How many wait of which that is said, of the listening socket and its own.
    pub fn count(&self, is_one: impl Fn(u64, u64) -> bool) -> usize {
        let all = self.waiting.iter();
        all.filter(|it| is_one(it.at, it.made.cookie)).count()
    }

    /// One for who accepts there.
    pub fn take(&mut self, listener: u64) -> Option<Made> {
        self.take_first(|it| it.at == listener)
    }

    /// One whose turn has come.
    pub fn take_due(&mut self, listener: u64) -> Option<Made> {
        self.take_first(|it| it.at == listener && it.is_due)
    }

    fn take_first(&mut self, is_one: impl Fn(&Waits) -> bool) -> Option<Made> {
        let at = self.waiting.iter().position(is_one)?;
        Some(self.waiting.remove(at).made)
    }

    /// One that waits, or may be in its program, ends, whoever has it as well; whether it did.
    pub fn ends(&mut self, cookie: u64) -> bool {
        let ends =
            |made: &Made| made.cookie == cookie && shutdown(&made.fd, Shutdown::Both).is_ok();
        let is_over = self.all().any(ends);
        if is_over {
            self.waiting.retain(|it| it.made.cookie != cookie);
            self.is_over(cookie);
        }
        is_over
    }

    /// Whether there is one.
    pub fn has(&self, listener: u64) -> bool {
        self.waiting.iter().any(|it| it.at == listener)
    }

    /// Whether this one waits for who accepts, or may be in its program.
    pub fn is_waiting(&self, cookie: u64) -> bool {
        self.all().any(|made| made.cookie == cookie)
    }

    /// All that wait, or may be in their programs.
    fn all(&self) -> impl Iterator<Item = &Made> {
        let claimed = self.claimed.iter().map(|(_, made)| made);
        self.waiting.iter().map(|it| &it.made).chain(claimed)
    }

    /// Whether there is one for anybody.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.claimed.is_empty()
    }

    /// Those whose listening sockets are not `live` end.
    pub fn retain(&mut self, live: impl Fn(u64) -> bool) {
        let waiting = self.waiting.extract_if(.., |it| !live(it.at));
        let claimed = self.claimed.extract_if(.., |(at, _)| !live(*at));
        let gone = waiting
            .map(|it| it.made)
            .chain(claimed.map(|(_, made)| made));
        for made in gone.collect::<Vec<_>>() {
            self.is_over(made.cookie);
        }
    }
}

impl Room {
    /// What the operator before left here.
    fn recall(&mut self, left: &mut Vec<(u32, By, Made)>) {
        // Who was here before, and came to its end over this, left its own.
        let end = chance::number();
        let marks = self
            .kept
            .send(&Message::new(end, &Accepted::default()), &[]);
        for _ in 0..MOST {
            let Ok(Some((message, fds))) = self.kept.peek() else {
                break;
            };
            let made = fds.into_iter().next().and_then(|fd| sockets::made(fd).ok());
            let (Some(body), Some(made)) = (message.body::<Accepted>(), made) else {
                let _ = self.kept.skip();
                match message.seq == end {
                    true => break,
                    false => continue,
                }
            };
            let is_known = self.under_way.contains(&made.cookie);
            if is_known && marks.is_err() {
                // All were seen.
                break;
            }
            // At the end before it is taken from here: this process may die with it too. One that
            // was there twice is there once.
            if !is_known && self.kept.send(&message, &[made.fd.as_fd()]).is_ok() {
                self.under_way.push_back(made.cookie);
            }
            let _ = self.kept.skip();
            if is_known {
                continue;
            }
            let by = match u16::try_from(body.crossing) {
                Ok(tag @ 1..) => By::Door(tag),
                _ => By::Listener(body.listener),
            };
            left.push((body.order, by, made));
        }
    }

    /// Its program has it, or nobody is to.
    fn is_over(&mut self, cookie: u64) {
        let Some(at) = self.under_way.iter().position(|it| *it == cookie) else {
            return;
        };
        // What is before it goes to the end, and is there before it is taken from here.
        for _ in 0..at {
            if let Ok(Some((message, fds))) = self.kept.peek()
                && let Some(other) = self.under_way.pop_front()
                && let Some(fd) = fds.first()
                && self.kept.send(&message, &[fd.as_fd()]).is_ok()
            {
                self.under_way.push_back(other);
            }
            let _ = self.kept.skip();
        }
        let _ = self.kept.skip();
        self.under_way.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn one() -> (UnixStream, OwnedFd) {
        let (other, fd) = UnixStream::pair().unwrap();
        other.set_nonblocking(true).unwrap();
        (other, OwnedFd::from(fd))
    }

    /// As the keeper has it.
    fn copy(kept: &Socket) -> Socket {
        Socket::from_fd(kept.as_fd().try_clone_to_owned().unwrap())
    }

    fn is_open(other: &UnixStream) -> bool {
        (&*other).read(&mut [0]).is_err()
    }

    #[test]
    fn what_was_accepted_outlives_who_accepted_it() {
        let kept = Socket::to_itself().unwrap();
        let mut first = Unclaimed::default();
        assert!(first.recall(vec![copy(&kept)]).is_empty());
        let (others, all): (Vec<_>, Vec<_>) = (0..5).map(|_| one()).unzip();
        // The last came by an agreement.
        let by = |at| match at {
            14 => By::Door(7),
            at => By::Listener(at),
        };
        let keeps = |(at, fd)| first.keeps(by(at), fd).unwrap();
        let made = (10..).zip(all).map(keeps);
        let made: Vec<Made> = made.collect();
        // The third has its program.
        first.is_over(made[2].cookie);
        let cookies: Vec<u64> = made.iter().map(|made| made.cookie).collect();
        drop((first, made));
        // One dies after the other, and no connection with them.
        for _ in 0..3 {
            // The one before came to its end between two steps.
            let (message, fds) = kept.peek().unwrap().unwrap();
            kept.send(&message, &[fds[0].as_fd()]).unwrap();
            let mark = Message::new(7, &Accepted::default());
            kept.send(&mark, &[]).unwrap();
            drop(fds);
            let mut next = Unclaimed::default();
            let left = next.recall(vec![copy(&kept)]);
            let at = |by: &By| match by {
                By::Listener(at) => *at,
                By::Door(tag) => 7 + u64::from(*tag),
            };
            // As they came, though two went round the third.
            let came: Vec<_> = left.iter().map(|(by, it)| (at(by), it.cookie)).collect();
            let expected = [(10, 0), (11, 1), (13, 3), (14, 4)];
            assert_eq!(came, expected.map(|(at, n)| (at, cookies[n])));
            let open: Vec<bool> = others.iter().map(is_open).collect();
            assert_eq!(open, [true, true, false, true, true]);
        }
        let mut last = Unclaimed::default();
        for (by, made) in last.recall(vec![copy(&kept)]) {
            let at = match by {
                By::Listener(at) => at,
                By::Door(_) => 14,
            };
            match at {
                10 => last.is_claimed(at, made),
                _ => last.waits(at, made),
            }
        }
        assert!(!last.has(10) && last.has(11) && last.take(10).is_none());
        let (at, made) = last.frees(cookies[0]).unwrap();
        last.waits(at, made);
        assert_eq!(last.take(10).map(|made| made.cookie), Some(cookies[0]));
        last.is_over(cookies[0]);
        last.retain(|at| at == 13);
        let open: Vec<bool> = others.iter().map(is_open).collect();
        assert_eq!(open, [false, false, false, true, false]);
        assert!(last.take(13).is_some());
        last.is_over(cookies[3]);
        assert!(last.is_empty() && kept.recv().unwrap().is_none());
    }

    #[test]
    fn what_came_by_an_agreement_does_not_go_round_for_the_tenants_own() {
        let rooms: Vec<Socket> = (0..3).map(|_| Socket::to_itself().unwrap()).collect();
        let copies = || rooms.iter().map(copy).collect::<Vec<_>>();
        let mut first = Unclaimed::default();
        assert!(first.recall(copies()).is_empty());
        let (_others, all): (Vec<_>, Vec<_>) = (0..4).map(|_| one()).unzip();
        let by = [By::Door(1), By::Door(1), By::Door(2), By::Listener(9)];
        let keeps = |(by, fd)| first.keeps(by, fd).unwrap().cookie;
        let cookies: Vec<u64> = by.into_iter().zip(all).map(keeps).collect();
        let in_room = |at: usize| {
            let seen = rooms[at].peek().unwrap();
            seen.map(|(_, mut fds)| sockets::made(fds.remove(0)).unwrap().cookie)
        };
        // Each is the first of its own.
        assert_eq!(in_room(0), Some(cookies[3]));
        assert_eq!(in_room(1), Some(cookies[2]));
        assert_eq!(in_room(2), Some(cookies[0]));
        first.is_over(cookies[3]);
        assert_eq!((in_room(0), in_room(2)), (None, Some(cookies[0])));
        drop(first);
        // And who follows finds all of them, and the rooms where they were.
        let mut next = Unclaimed::default();
        let left = next.recall(copies());
        let left: Vec<_> = left.iter().map(|(by, it)| (*by, it.cookie)).collect();
        let expected = [0, 1, 2].map(|n| (by[n], cookies[n]));
        assert_eq!(left, expected);
        next.is_over(cookies[1]);
        assert_eq!(in_room(2), Some(cookies[0]));
    }

    #[test]
    fn whose_turn_has_come_is_before_all_others() {
        let mut all = Unclaimed::default();
        let (_others, fds): (Vec<_>, Vec<_>) = (0..4).map(|_| one()).unzip();
        let made: Vec<Made> = fds
            .into_iter()
            .map(|fd| sockets::made(fd).unwrap())
            .collect();
        let cookies: Vec<u64> = made.iter().map(|made| made.cookie).collect();
        let mut made = made.into_iter();
        let mut next = || made.next().unwrap();
        // Two by an agreement: each has its place in the queue.
        all.waits(7, next());
        all.waits(7, next());
        assert_eq!((all.places(7), all.places(8)), (2, 0));
        assert!(all.take_due(7).is_none());
        // One that had no number, and what was behind it in the queue: one place for both.
        all.waits_first(7, next());
        all.waits_next(7, next());
        assert_eq!(all.places(7), 3);
        let take = |all: &mut Unclaimed| all.take_due(7).map(|made| made.cookie);
        assert_eq!(take(&mut all), Some(cookies[2]));
        assert_eq!((all.places(7), take(&mut all)), (3, Some(cookies[3])));
        // The place of the first of those was it that came.
        all.comes_due(7);
        assert_eq!((all.places(7), take(&mut all)), (2, Some(cookies[0])));
        assert_eq!((all.places(7), take(&mut all)), (1, None));
        assert_eq!(all.take(7).map(|made| made.cookie), Some(cookies[1]));
        all.comes_due(7);
        assert_eq!(all.places(7), 0);
    }

    #[test]
    fn without_a_place_to_keep_them_they_are_handed_on_all_the_same() {
        let mut unclaimed = Unclaimed::default();
        let (_other, fd) = one();
        let made = unclaimed.keeps(By::Listener(7), fd).unwrap();
        let cookie = made.cookie;
        unclaimed.waits(7, made);
        assert_eq!(unclaimed.take(7).map(|made| made.cookie), Some(cookie));
        unclaimed.is_over(cookie);
        assert!(unclaimed.is_empty());
    }
}
