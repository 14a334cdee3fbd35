//! Datagrams of senders that have no room: what lies unread is counted against who sent it, and a
//! few who do not read would keep a sender from everybody else. To who hears everybody it is sent
//! by one of a few sockets more that the sender has here, until these have no room either; who hears
//! the sender alone loses what waits there, and nobody else's is there.

use super::*;
use circuit::Way;
use std::collections::VecDeque;

/// Such sockets whose datagrams may still wait somewhere, of all senders.
const SPARES: usize = 16_384;
/// Those that are open, of one sender and of all endpoints: each has as much under way as a socket may.
const OPEN: usize = 4;
const OPEN_ALL: usize = 256;

/// Of which sender each is.
#[derive(Default)]
pub(in crate::mediate) struct Spares {
    by_name: BTreeMap<[u8; 16], u64>,
    /// Each sender's, the oldest first.
    of: BTreeMap<u64, VecDeque<[u8; 16]>>,
    /// Each sender's that are open, and its endpoint, also once it is gone.
    open: BTreeMap<u64, (u32, Vec<OwnedFd>)>,
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
        self.open.retain(|sender, (_, fds)| {
            fds.retain(|fd| !sockets::is_all_read(fd));
            !fds.is_empty() && is_known(*sender)
        });
    }

    /// An endpoint is gone.
    pub(in crate::mediate) fn closes(&mut self, slot: u32) {
        self.open.retain(|_, (of, _)| *of != slot);
    }

    /// Open ones of an endpoint, and of all.
    fn count(&self, slot: u32) -> (usize, usize) {
        let all = self.open.values();
        let own = all.clone().filter(|(of, _)| *of == slot);
        let many = |(_, fds): &(u32, Vec<OwnedFd>)| fds.len();
        (own.map(many).sum(), all.map(many).sum())
    }

    /// Nothing is known of other senders any more.
    pub(in crate::mediate) fn retain(&mut self, is_known: impl Fn(u64) -> bool) {
        self.of.retain(|sender, _| is_known(*sender));
        self.by_name.retain(|_, sender| is_known(*sender));
    }
}

impl Mediator {
    /// Sends a datagram from a socket of this process to who has this name.
    pub(in crate::mediate) fn by_spare(
        &mut self,
        sender: u64,
        data: &[u8],
        to: [u8; 16],
    ) -> Result<(), Errno> {
        let spares = &mut self.datagrams.spares;
        let own = spares.open.get(&sender).map(|(_, fds)| fds);
        let fits = |fd: &&OwnedFd| sockets::fits(fd, data.len(), 1);
        if let Some(fd) = own.and_then(|own| own.iter().find(fits)) {
            return sockets::sends(fd, data, to);
        }
        let has = own.map_or(0, Vec::len);
        let table = &self.table;
        let slot = table
            .socket(sender)
            .map_or(u32::MAX, circuit::Socket::endpoint);
        // An endpoint has as many as there is room for others.
        let is_full = |spares: &Spares| {
            let (own, all) = spares.count(slot);
            own >= OPEN_ALL.saturating_sub(all) && guard!("circuits-spares-own")
        };
        if is_full(spares) {
            spares.close_idle(|sender| table.socket(sender).is_some());
        }
        if (has >= OPEN || is_full(spares)) && guard!("circuits-spares") {
            return Err(Errno::AGAIN);
        }
        let name = secret()?;
        let spare = sockets::datagram(true, name)?;
        sockets::sends(&spare.fd, data, to)?;
        spares.insert(sender, name);
        let (_, open) = spares.open.entry(sender).or_insert((slot, Vec::new()));
        open.push(spare.fd);
        Ok(())
    }

    /// All that a socket may have under way lies unread: who hears it alone and was sent most
    /// loses what waits there, one after another until there is room for so many bytes, or that takes too long. Who is not
    /// found stays in the list. Bound: [`super::datagrams::WAYS`].
    pub(in crate::mediate) fn free_room(&mut self, cookie: u64, fd: &OwnedFd, length: usize) {
        let hears_it_alone = |receiver: u64, way: &Way| {
            let back = self.table.socket(receiver).and_then(circuit::Socket::way);
            back.is_some_and(|back| back.remote == way.local) || !guard!("circuits-drains-own")
        };
        let sent = self.datagrams.ways.range((cookie, 0)..=(cookie, u64::MAX));
        let mut most: Vec<(u32, u64)> = sent
            .filter(|(key, (way, _))| hears_it_alone(key.1, way))
            .map(|(key, (_, count))| (*count, key.1))
            .collect();
        most.sort_unstable();
        let since = Instant::now();
        for (_, receiver) in most.into_iter().rev() {
            if circuits::is_enough(since.elapsed()) {
                return;
            }
            let found = match self.table.socket(receiver) {
                Some(socket) => self.at_place(socket).map(|at| (socket.endpoint(), at)),
                None => {
                    self.datagrams.ways.remove(&(cookie, receiver));
                    continue;
                }
            };
            if let Some((endpoint, at)) = found {
                // Its program may read there, and have this wait.
                self.touches(endpoint);
                let drained = sockets::drains(&at);
                self.touched();
                self.finds_no_room(cookie, drained);
                self.datagrams.ways.remove(&(cookie, receiver));
            }
            if sockets::has_room(fd) && !sockets::is_crowded(fd, length) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut mediator = Mediator::default();
        let own = Addresses::new(&[]).unwrap();
        mediator.table = Table::new(LIMITS, vec![own, own]);
        let data = vec![7; 50_000];
        let mut kept = Vec::new();
        let mut sends = |mediator: &mut Mediator, sender, endpoint| {
            let made = secret().unwrap();
            let table = &mut mediator.table;
            let family = circuit::Family::V4;
            let _ = table.create_datagram(sender, endpoint, family, made);
            let name = secret().unwrap();
            kept.push(sockets::datagram(true, name).unwrap());
            mediator.by_spare(sender, &data, name)
        };
        // So much each that it needs all of what one sender may have.
        let came = (0..2000).filter(|n| sends(&mut mediator, 1 + n % 100, 0).is_ok());
        assert!(came.count() >= OPEN_ALL / 2);
        let open = |mediator: &Mediator| -> usize { mediator.datagrams.spares.count(0).1 };
        assert_eq!(open(&mediator), OPEN_ALL / 2);
        assert_eq!(sends(&mut mediator, 5000, 1), Ok(()));
        assert_eq!(sends(&mut mediator, 101, 0), Err(Errno::AGAIN));
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
                match mediator.by_spare(1, &data, name) {
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
            (spares.open[&1].1.len(), spares.by_name.len()),
            (OPEN, OPEN)
        );
        // What is read makes room, for the same sockets.
        drop(receivers);
        let name = secret().unwrap();
        let _receiver = sockets::datagram(true, name).unwrap();
        assert_eq!(mediator.by_spare(1, &data, name), Ok(()));
        assert_eq!(mediator.datagrams.spares.by_name.len(), OPEN);
    }
}
