//! Datagrams of senders that have no room: what lies unread is counted against who sent it, and a
//! few who do not read would keep a sender from everybody else. To who hears everybody it is sent
//! by a socket that is made for it and closed; who hears the sender alone loses what waits there,
//! and nobody else's is there.

use super::*;
use circuit::Way;
use std::collections::VecDeque;

/// Such sockets whose datagrams may still wait somewhere, of all senders.
const SPARES: usize = 16_384;

/// Of which sender each is.
#[derive(Default)]
pub(super) struct Spares {
    by_name: BTreeMap<[u8; 16], u64>,
    /// Each sender's, the oldest first.
    of: BTreeMap<u64, VecDeque<[u8; 16]>>,
}

impl Spares {
    /// The sender whose socket has this name.
    pub(super) fn sender(&self, name: &[u8; 16]) -> Option<u64> {
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

    /// Nothing is known of other senders any more.
    pub(super) fn retain(&mut self, is_known: impl Fn(u64) -> bool) {
        self.of.retain(|sender, _| is_known(*sender));
        self.by_name.retain(|_, sender| is_known(*sender));
    }
}

impl Mediator {
    /// Sends a datagram from a socket of this process to who has this name.
    pub(super) fn by_spare(&mut self, sender: u64, data: &[u8], to: [u8; 16]) -> Result<(), Errno> {
        let name = secret()?;
        let spare = sockets::datagram(true, name)?;
        sockets::sends(&spare.fd, data, to)?;
        self.datagrams.spares.insert(sender, name);
        Ok(())
    }

    /// All that a socket may have under way lies unread: who hears it alone and was sent most
    /// loses what waits there, one after another until there is room. Bound: [`super::datagrams::WAYS`].
    pub(super) fn free_room(&mut self, cookie: u64, fd: &OwnedFd) {
        let hears_it_alone = |receiver: u64, way: &Way| {
            let back = self.table.socket(receiver).and_then(circuit::Socket::way);
            back.is_some_and(|back| back.remote == way.local) || !guard!("circuits-drains")
        };
        let sent = self.datagrams.ways.range((cookie, 0)..=(cookie, u64::MAX));
        let mut most: Vec<(u32, u64)> = sent
            .filter(|(key, (way, _))| hears_it_alone(key.1, way))
            .map(|(key, (_, count))| (*count, key.1))
            .collect();
        most.sort_unstable();
        for (_, receiver) in most.into_iter().rev() {
            if let Some(socket) = self.table.socket(receiver)
                && let Some(at) = self.at_place(socket)
            {
                // Its program may read there, and have this wait.
                self.touches(socket.endpoint(), receiver);
                let drained = sockets::drains(&at);
                self.touched();
                self.datagrams.dropped += drained;
            }
            self.datagrams.ways.remove(&(cookie, receiver));
            if sockets::has_room(fd) {
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
}
