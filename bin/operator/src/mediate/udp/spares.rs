//! Datagrams of senders that have no room: what lies unread is counted against who sent it, and a
//! few who do not read would keep a sender from everybody else. To who hears everybody it is sent
//! by one of a few sockets more that the sender has here for each endpoint, until these have no room either; who hears
//! the sender alone loses what waits there, and nobody else's is there.

use super::sent::{LOOKS, Room};
use super::*;
use std::collections::VecDeque;

/// Such sockets whose datagrams may still wait somewhere, of all senders.
const SPARES: usize = 16_384;
/// Those that are open, of one sender to one endpoint and of all: each has as much under way as a socket may.
const OPEN: usize = 2;
const OPEN_ALL: usize = 256;

/// Of which sender each is.
#[derive(Default)]
pub(in crate::mediate) struct Spares {
    by_name: BTreeMap<[u8; 16], u64>,
    /// Each sender's, the oldest first.
    of: BTreeMap<u64, VecDeque<[u8; 16]>>,
    /// Each sender's that are open to an endpoint, and its own endpoint, also once it is gone.
    open: BTreeMap<(u64, u32), (u32, Vec<OwnedFd>)>,
}

impl Spares {
    /// The sender whose socket has this name.
    pub(in crate::mediate) fn sender(&self, name: &[u8; 16]) -> Option<u64> {
        self.by_name.get(name).copied()
    }

    /// A sender's. It forgets its oldest where it has as many as there is room for others.
    fn insert(&mut self, sender: u64, name: [u8; 16]) {
        let own = self.of.entry(sender).or_default();
        if own.len() >= SPARES - self.by_name.len().min(SPARES)
            && let Some(oldest) = own.pop_front()
        {
            self.by_name.remove(&oldest);
        }
        own.push_back(name);
        self.by_name.insert(name, sender);
    }

    /// Those are closed of which nothing waits anywhere, or whose sender is gone.
    fn close_idle(&mut self, is_known: impl Fn(u64) -> bool) {
        self.open.retain(|(sender, _), (_, fds)| {
            fds.retain(|fd| !sockets::is_all_read(fd));
            !fds.is_empty() && is_known(*sender)
        });
    }

    /// An endpoint is gone.
    pub(in crate::mediate) fn closes(&mut self, slot: u32) {
        self.open
            .retain(|(_, to), (of, _)| ![*to, *of].contains(&slot));
    }

    /// Whether an endpoint's senders have as many open as they leave to others', or of these to one endpoint as many as
    /// to all others.
    fn is_full(&self, slot: u32, to: u32) -> bool {
        let (mut own, mut pair, mut all) = (0, 0, 0);
        for ((_, at), (of, fds)) in &self.open {
            all += fds.len();
            own += if *of == slot { fds.len() } else { 0 };
            pair += if (*of, *at) == (slot, to) {
                fds.len()
            } else {
                0
            };
        }
        let is_all = own >= OPEN_ALL.saturating_sub(all) && guard!("circuits-spares-own");
        is_all || pair >= (OPEN_ALL / 2).saturating_sub(own) && guard!("circuits-spares-pair")
    }

    /// Nothing is known of other senders any more.
    pub(in crate::mediate) fn retain(&mut self, is_known: impl Fn(u64) -> bool) {
        self.of.retain(|sender, _| is_known(*sender));
        self.by_name.retain(|_, sender| is_known(*sender));
    }
}

impl Mediator {
    /// Sends a datagram from a socket of this process to who has this name, at this endpoint.
    pub(in crate::mediate) fn by_spare(
        &mut self,
        (sender, at): (u64, u32),
        data: &[u8],
        to: [u8; 16],
    ) -> Result<(), Errno> {
        let spares = &mut self.datagrams.spares;
        let own = spares.open.get(&(sender, at)).map(|(_, fds)| fds);
        let fits = |fd: &&OwnedFd| sockets::fits(fd, data.len(), 1);
        if let Some(fd) = own.and_then(|own| own.iter().find(fits)) {
            return sockets::sends(fd, data, to);
        }
        let has = own.map_or(0, Vec::len);
        let table = &self.table;
        let slot = table
            .socket(sender)
            .map_or(u32::MAX, circuit::Socket::endpoint);
        if spares.is_full(slot, at) {
            spares.close_idle(|sender| table.socket(sender).is_some());
        }
        if (has >= OPEN || spares.is_full(slot, at)) && guard!("circuits-spares") {
            return Err(Errno::AGAIN);
        }
        let name = secret()?;
        let spare = sockets::datagram(true, name)?;
        sockets::sends(&spare.fd, data, to)?;
        spares.insert(sender, name);
        let (_, open) = spares
            .open
            .entry((sender, at))
            .or_insert((slot, Vec::new()));
        open.push(spare.fd);
        Ok(())
    }

    /// Whether there is room for what is sent to who hears this sender alone: its endpoint has its part. Where that is
    /// taken, it is asked who has read; and if others' is, who was silent for longest of endpoints that have more loses what
    /// waits there, until there is room. Nobody knows of who is not found. Bound: so many are looked for at a time.
    pub(in crate::mediate) fn has_part(
        &mut self,
        (cookie, fd): (u64, &OwnedFd),
        (to, receiver): (u32, u64),
        length: usize,
    ) -> bool {
        let more = sockets::keeps(length);
        let room = || sockets::under_way(fd).map(|(now, most)| Room { now, most });
        let may = |this: &mut Mediator, room: Option<Room>| {
            let sent = &mut this.datagrams.sent;
            room.is_none_or(|room| sent.may((cookie, receiver), to, room, more))
        };
        let first = room();
        let is_doubted = first.is_some_and(|room| {
            let sent = &mut self.datagrams.sent;
            sent.is_doubted((cookie, receiver), to, room)
        });
        let now = match is_doubted && self.has_read(cookie, receiver, false) {
            true => room(),
            false => first,
        };
        if may(self, now) {
            return true;
        }
        // Who reads beside others of its endpoint that do not is asked all the same.
        if self.has_read(cookie, receiver, false) && may(self, room()) {
            return true;
        }
        if self.datagrams.sent.is_refused(cookie, to) {
            return false;
        }
        // One of them may be the receiver.
        let sent = &mut self.datagrams.sent;
        let own = sent.receivers(cookie, to, LOOKS + 1);
        for own in own.into_iter().filter(|it| *it != receiver) {
            if !self.datagrams.sent.may_look(to) {
                break;
            }
            if self.has_read(cookie, own, false) || self.knows_closed(cookie, own) {
                if may(self, room()) {
                    return true;
                }
            } else {
                self.datagrams.sent.looks_in_vain(to);
            }
        }
        let mut looks = 0;
        // Bound: the looks.
        'search: loop {
            for endpoint in self.datagrams.sent.endpoints(cookie, to) {
                let sent = &mut self.datagrams.sent;
                for other in sent.receivers(cookie, endpoint, LOOKS + 1) {
                    if other == receiver {
                        continue;
                    }
                    if looks >= LOOKS {
                        break 'search;
                    }
                    looks += 1;
                    if self.has_read(cookie, other, true) && may(self, room()) {
                        return true;
                    }
                    // Who has most may be another then.
                    if self.knows_closed(cookie, other) {
                        if may(self, room()) {
                            return true;
                        }
                        continue 'search;
                    }
                }
            }
            break;
        }
        self.datagrams.sent.refuses(cookie, to);
        false
    }

    /// Whether it was asked, for one that was not found, which are closed: what was sent to these would count as unread, and who
    /// asks by a new socket each time be taken for one that has much.
    fn knows_closed(&mut self, sender: u64, receiver: u64) -> bool {
        self.datagrams.sent.is_missed(sender, receiver) && self.sweep_at_times()
    }

    /// Whether nothing lies at a receiver: all is read, or lost now if it `loses`.
    fn has_read(&mut self, sender: u64, receiver: u64, loses: bool) -> bool {
        let found = self.table.socket(receiver).copied();
        let Some(socket) = found else {
            self.datagrams.sent.is_read(sender, receiver);
            return true;
        };
        let Some(fd) = self.at_place(&socket) else {
            self.datagrams.sent.misses(sender, receiver);
            return false;
        };
        // Connected elsewhere by now: what lies there is another's.
        let way = self.datagrams.sent.way(sender, receiver);
        let hears_it = |(back, way): (circuit::Way, circuit::Way)| back.remote == way.local;
        let hears_it = socket.way().zip(way).is_some_and(hears_it);
        if (hears_it || !guard!("circuits-drains-own")) && sockets::has_some(&fd) {
            if !loses {
                return false;
            }
            // Its program may read there, and have this wait.
            self.touches(socket.endpoint());
            let drained = sockets::drains(&fd);
            self.touched();
            self.finds_no_room(sender, drained);
        }
        self.datagrams.sent.is_read(sender, receiver);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of three endpoints.
    fn of_three() -> Mediator {
        let own = Addresses::new(&[]).unwrap();
        Mediator {
            table: Table::new(LIMITS, vec![own; 3]),
            ..Mediator::default()
        }
    }

    /// Has a sender, if there is none of that number.
    fn makes(mediator: &mut Mediator, sender: u64, endpoint: u32) {
        let (family, name) = (circuit::Family::V4, secret().unwrap());
        let _ = (mediator.table).create_datagram(sender, endpoint, family, name);
    }

    #[test]
    fn no_sender_has_all_and_each_forgets_its_own() {
        let mut spares = Spares::default();
        let name = |n: u32| {
            let mut name = [0; 16];
            name[..4].copy_from_slice(&n.to_le_bytes());
            name
        };
        for n in 0..20_000 {
            spares.insert(1, name(n));
        }
        spares.insert(2, name(50_000));
        for n in 20_000..30_000 {
            spares.insert(1, name(n));
        }
        assert_eq!(spares.sender(&name(50_000)), Some(2));
        assert_eq!(
            (spares.sender(&name(0)), spares.sender(&name(29_999))),
            (None, Some(1))
        );
        assert!(spares.by_name.len() <= SPARES && spares.of[&1].len() <= SPARES / 2);
        spares.retain(|sender| sender == 2);
        assert_eq!((spares.by_name.len(), spares.of.len()), (1, 1));
    }

    /// Nobody reads; and once somebody does, what is read is nobody's.
    #[test]
    fn no_endpoint_has_all_that_are_open() {
        let mut mediator = of_three();
        let data = vec![7; 50_000];
        let mut kept = Vec::new();
        // Each sender to another endpoint: of what goes to one there are not as many.
        let mut sends = |mediator: &mut Mediator, sender: u64, endpoint| {
            makes(mediator, sender, endpoint);
            let name = secret().unwrap();
            kept.push(sockets::datagram(true, name).unwrap());
            mediator.by_spare((sender, sender as u32), &data, name)
        };
        // So much each that it needs all of what one sender may have.
        let came = (0..2000).filter(|n| sends(&mut mediator, 1 + n % 100, 0).is_ok());
        assert!(came.count() >= OPEN_ALL / 2);
        let open = |mediator: &Mediator| -> usize {
            let all = mediator.datagrams.spares.open.values();
            all.map(|(_, fds)| fds.len()).sum()
        };
        // The last of them would be a second one to an endpoint.
        assert!((OPEN_ALL / 2 - 1..=OPEN_ALL / 2).contains(&open(&mediator)));
        assert_eq!(sends(&mut mediator, 5000, 1), Ok(()));
        let more = (101..=103).map(|sender| sends(&mut mediator, sender, 0));
        assert_eq!(more.last(), Some(Err(Errno::AGAIN)));
        // Who closes what it sends by has no more for that.
        for sender in 1..=64 {
            mediator.table.closed(sender).unwrap();
        }
        let mut more = 0;
        for sender in 6000..6100 {
            more += usize::from(sends(&mut mediator, sender, 0).is_ok());
            mediator.table.closed(sender).unwrap();
        }
        assert!(
            more > 0 && open(&mediator) <= OPEN_ALL / 2 + 1,
            "{}",
            open(&mediator)
        );
        // What is read is kept by nobody.
        kept.clear();
        mediator.datagrams.spares.close_idle(|_| true);
        assert_eq!(open(&mediator), 0);
    }

    /// Each has half of what the others leave.
    #[test]
    fn whoever_comes_next_has_a_part_of_what_is_left() {
        let (mut mediator, data) = (of_three(), vec![7; 50_000]);
        let mut kept = Vec::new();
        for (endpoint, part) in [(0, OPEN_ALL / 2), (1, OPEN_ALL / 4), (2, OPEN_ALL / 8)] {
            let mut came = 0;
            for n in 0..400 {
                let sender = u64::from(endpoint) * 1000 + n % 200;
                makes(&mut mediator, sender, endpoint);
                let name = secret().unwrap();
                kept.push(sockets::datagram(true, name).unwrap());
                let sent = mediator.by_spare((sender, sender as u32), &data, name);
                came += u64::from(sent.is_ok());
            }
            let open = mediator.datagrams.spares.open.values();
            let own = open.filter(|(of, _)| *of == endpoint);
            let own: usize = own.map(|(_, fds)| fds.len()).sum();
            assert!(
                came > 0 && own <= part && own + 2 >= part,
                "{endpoint}: {own} of {part}"
            );
        }
    }

    #[test]
    fn a_sender_has_a_few_sockets_more_and_what_they_hold_is_bounded() {
        let mut mediator = Mediator::default();
        let data = vec![7; 50_000];
        let mut came = [0; 2];
        // None of them reads.
        let receivers: Vec<_> = (0..100)
            .map(|_| {
                let name = secret().unwrap();
                let receiver = sockets::datagram(true, name).unwrap();
                match mediator.by_spare((1, 7), &data, name) {
                    Ok(()) => came[0] += 1,
                    Err(errno) => {
                        assert_eq!(errno, Errno::AGAIN);
                        came[1] += 1;
                    }
                }
                receiver
            })
            .collect();
        assert!(came[0] >= OPEN && came[1] > 0, "{came:?}");
        let spares = &mediator.datagrams.spares;
        assert_eq!(
            (spares.open[&(1, 7)].1.len(), spares.by_name.len()),
            (OPEN, OPEN)
        );
        // What is read makes room, for the same sockets.
        drop(receivers);
        let name = secret().unwrap();
        let _receiver = sockets::datagram(true, name).unwrap();
        assert_eq!(mediator.by_spare((1, 7), &data, name), Ok(()));
        assert_eq!(mediator.datagrams.spares.by_name.len(), OPEN);
    }

    /// However many of an endpoint's read nothing, of however many senders: others are sent to.
    #[test]
    fn an_endpoint_that_reads_nothing_takes_a_part_of_what_senders_have() {
        let mut mediator = of_three();
        let data = vec![7; 50_000];
        let mut kept = Vec::new();
        for sender in 1..=200 {
            makes(&mut mediator, sender, 0);
        }
        let mut sends = |sender, at| {
            let name = secret().unwrap();
            kept.push(sockets::datagram(true, name).unwrap());
            mediator.by_spare((sender, at), &data, name).is_ok()
        };
        for n in 0..4000 {
            sends(1 + n % 200, 7);
        }
        assert!(!sends(1, 7));
        assert!((1..=30).all(|sender| sends(sender, 8)));
    }
}
