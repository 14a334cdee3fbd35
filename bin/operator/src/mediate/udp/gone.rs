//! Datagram sockets that are gone: what they sent may still lie in a queue, and be answered.

use circuit::Socket;
use guard::guard;
use std::collections::{BTreeMap, VecDeque};

/// So many are remembered, the last of each endpoint; where they are more those of who has most go first.
const MOST: usize = 1024;

/// What is known of them.
#[derive(Default)]
pub struct Gone {
    by_name: BTreeMap<[u8; 16], Socket>,
    /// Of each endpoint, the oldest first.
    since: BTreeMap<u32, VecDeque<[u8; 16]>>,
}

impl Gone {
    /// Who had this name.
    pub fn get(&self, name: &[u8; 16]) -> Option<&Socket> {
        self.by_name.get(name)
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Socket> {
        self.by_name.values()
    }

    /// One more; the one that is forgotten for it.
    pub fn insert(&mut self, socket: Socket) -> Option<Socket> {
        let (name, endpoint) = (socket.name(), socket.endpoint());
        if self.by_name.insert(name, socket).is_none() {
            self.since.entry(endpoint).or_default().push_back(name);
        }
        if self.by_name.len() <= MOST {
            return None;
        }
        let most = self.since.iter().max_by_key(|(_, all)| all.len());
        let of = match guard!("circuits-gone-share") {
            true => most.map_or(endpoint, |(endpoint, _)| *endpoint),
            false => *self.since.first_key_value()?.0,
        };
        let of_it = self.since.get_mut(&of)?;
        let oldest = of_it.pop_front();
        if of_it.is_empty() {
            self.since.remove(&of);
        }
        self.by_name.remove(&oldest?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mediate::LIMITS;
    use circuit::{Addresses, Family, Table};

    #[test]
    fn the_last_of_each_endpoint_are_remembered_and_nobody_has_others_forgotten() {
        let nowhere = Addresses::new(&[]).unwrap();
        let mut table = Table::new(LIMITS, vec![nowhere; 3]);
        let mut gone = Gone::default();
        let mut insert = |gone: &mut Gone, endpoint, cookie: u64| {
            let name = u128::from(cookie).to_ne_bytes();
            let made = table.create_datagram(cookie, endpoint, Family::V4, name);
            made.unwrap();
            gone.insert(*table.socket(cookie).unwrap())
        };
        for cookie in 1..=10 {
            assert!(insert(&mut gone, 1, cookie).is_none());
        }
        let mut forgotten = Vec::new();
        for cookie in 100..100 + 2 * MOST as u64 {
            forgotten.extend(insert(&mut gone, 2, cookie));
        }
        assert!(forgotten.iter().all(|it| it.endpoint() == 2));
        assert_eq!(forgotten.len(), MOST + 10);
        assert_eq!(forgotten[0].cookie(), 100, "the oldest");
        let of = |endpoint| gone.all().filter(|it| it.endpoint() == endpoint).count();
        assert_eq!([1, 2].map(of), [10, MOST - 10]);
        assert!(gone.get(&u128::to_ne_bytes(1)).is_some());
        assert!(gone.get(&u128::to_ne_bytes(100)).is_none());
    }
}
