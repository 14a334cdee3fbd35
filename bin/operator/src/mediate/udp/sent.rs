//! What lies unread of each sender at those that hear it alone. AF_UNIX has the sender pay for that, so the endpoint
//! that does not read has a part of the sender's room, as large as what it leaves to others.

use circuit::Way;
use guard::guard;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Pairs of sender and receiver of which something is known.
const PAIRS: usize = 8192;
/// Who is not found where it was seen is not looked for again for so long.
const MISSED: Duration = Duration::from_secs(1);
/// Bytes that lie somewhere at most, after which it is asked, and how long nothing was sent there then.
const MUCH: usize = 32 << 10;
const PAUSE: Duration = Duration::from_millis(1);
/// For so long after nobody was found to have read for it nobody is asked again for an endpoint.
const REFUSED: Duration = Duration::from_millis(if cfg!(test) { 400 } else { 4 });
/// So many receivers that have not read are asked for an endpoint in a while, to find room; and how long that is for
/// each endpoint for which some are.
pub(super) const LOOKS: usize = 64;
const LOOKED: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 4 });

/// Of all senders.
#[derive(Default)]
pub(in crate::mediate) struct Sent {
    pairs: BTreeMap<(u64, u64), Pair>,
    senders: BTreeMap<u64, Sender>,
    /// The pairs of each endpoint's senders with each other's receivers, the one that was used least lately first.
    of: BTreeMap<[u32; 2], BTreeMap<u64, (u64, u64)>>,
    /// The receivers of each sender's at which something may lie, by endpoint, who is silent for longest first.
    lying: BTreeMap<(u64, u32), BTreeMap<u64, u64>>,
    /// Pairs of these that were not found, and are not looked for until then.
    missed: VecDeque<(Instant, (u64, u64))>,
    /// Since when receivers were asked for an endpoint, and how many had not read.
    looked: BTreeMap<u32, (Instant, usize)>,
    next: u64,
}

/// What is known of a sender and a receiver.
struct Pair {
    way: Way,
    /// The sender's endpoint, and the receiver's.
    ends: [u32; 2],
    /// Bytes of the kernel's memory that lie there at most, and since when nothing lay anywhere.
    lies: usize,
    round: u64,
    last: u64,
    at: Instant,
    missed: Option<Instant>,
}

/// Of each endpoint's receivers, since nothing lay anywhere.
#[derive(Default)]
struct Sender {
    at: BTreeMap<u32, At>,
    round: u64,
}

/// Bytes that were sent and are not known to be read, and those of them that may lie there still.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct At {
    sent: usize,
    lies: usize,
    refused: Option<Instant>,
}

/// A sender's room: bytes that lie unread, and how many may.
#[derive(Clone, Copy)]
pub(in crate::mediate) struct Room {
    pub(in crate::mediate) now: usize,
    pub(in crate::mediate) most: usize,
}

/// Bytes that lie at an endpoint at most, those of them at a receiver, and how many may lie there.
struct Part {
    of_endpoint: usize,
    own: usize,
    most: usize,
}

impl Pair {
    /// Whether it was looked for, and not found, of late.
    fn is_missed(&self) -> bool {
        let missed = self.missed.is_some_and(|at| at.elapsed() < MISSED);
        missed && guard!("circuits-missed")
    }
}

impl Sent {
    /// The way of what a receiver was last sent by a sender.
    pub(in crate::mediate) fn way(&self, sender: u64, receiver: u64) -> Option<Way> {
        self.pairs.get(&(sender, receiver)).map(|it| it.way)
    }

    /// One more was sent, which keeps so many bytes; none of who hears everybody.
    pub(in crate::mediate) fn sends(
        &mut self,
        (sender, receiver): (u64, u64),
        ends: [u32; 2],
        way: Way,
        keeps: usize,
    ) {
        let known = self.senders.entry(sender).or_default();
        let round = known.round;
        let at = known.at.entry(ends[1]).or_default();
        at.sent = at.sent.saturating_add(keeps);
        at.lies = at.lies.saturating_add(keeps);
        let before = self.remove((sender, receiver));
        let missed = before.as_ref().and_then(|it| it.missed);
        let lay = before.filter(|it| it.round == round && it.ends == ends);
        self.next += 1;
        let pair = Pair {
            way,
            ends,
            lies: lay.map_or(0, |it| it.lies).saturating_add(keeps),
            round,
            last: self.next,
            at: Instant::now(),
            missed,
        };
        self.makes_room(ends[0]);
        let of = self.of.entry(ends).or_default();
        of.insert(pair.last, (sender, receiver));
        if pair.lies > 0 && !pair.is_missed() {
            let lying = self.lying.entry((sender, ends[1])).or_default();
            lying.insert(pair.last, receiver);
        }
        self.pairs.insert((sender, receiver), pair);
    }

    /// An endpoint's senders have as many pairs as they leave to others', and forget of those with the endpoint that has
    /// most. What lies at a forgotten one's still counts.
    fn makes_room(&mut self, endpoint: u32) {
        let own = self.of.range([endpoint, 0]..=[endpoint, u32::MAX]);
        let many: usize = own.clone().map(|(_, of)| of.len()).sum();
        let most = own.max_by_key(|(_, of)| of.len());
        if many >= PAIRS.saturating_sub(self.pairs.len())
            && guard!("circuits-pairs-own")
            && let Some((_, key)) = most.and_then(|(_, of)| of.first_key_value())
        {
            self.remove(*key);
        }
    }

    fn remove(&mut self, key: (u64, u64)) -> Option<Pair> {
        let pair = self.pairs.remove(&key)?;
        self.not_lying((key.0, pair.ends[1]), pair.last);
        if let Some(of) = self.of.get_mut(&pair.ends) {
            of.remove(&pair.last);
            if of.is_empty() {
                self.of.remove(&pair.ends);
            }
        }
        Some(pair)
    }

    /// Nothing lies there, or it is not found.
    fn not_lying(&mut self, at: (u64, u32), last: u64) {
        if let Some(lying) = self.lying.get_mut(&at) {
            lying.remove(&last);
            if lying.is_empty() {
                self.lying.remove(&at);
            }
        }
    }

    /// Whether a receiver of an endpoint may be sent so many bytes more.
    pub(in crate::mediate) fn may(
        &mut self,
        pair: (u64, u64),
        endpoint: u32,
        room: Room,
        more: usize,
    ) -> bool {
        let Some(part) = self.part(pair, endpoint, room) else {
            return true;
        };
        // One that is larger than any part, where rooms are small.
        if part.of_endpoint == 0 && more > room.most / 8 {
            return room.now.saturating_add(more) <= room.most / 2;
        }
        part.own.saturating_add(more) <= part.most || !guard!("circuits-part")
    }

    /// What part of a sender's room a receiver has, unless nothing lies anywhere: a quarter of the room, up to which polls
    /// show some, is for all. An endpoint that has something there keeps as much for others as it takes, and a receiver
    /// leaves a quarter of what is its endpoint's then to the rest of it.
    fn part(&mut self, (sender, receiver): (u64, u64), endpoint: u32, room: Room) -> Option<Part> {
        let known = self.senders.get_mut(&sender)?;
        if room.now == 0 {
            known.round += 1;
            for (at, _) in std::mem::take(&mut known.at) {
                self.lying.remove(&(sender, at));
            }
            return None;
        }
        let lies = known.at.get_mut(&endpoint).map_or(0, |at| {
            at.lies = room.now.min(at.lies);
            at.lies
        });
        let left = (room.most / 4).saturating_sub(room.now - lies);
        let part = match lies {
            0 => left,
            _ => left / 2,
        };
        let pair = self.pairs.get(&(sender, receiver));
        let own = pair.filter(|it| it.round == known.round && it.ends[1] == endpoint);
        let own = own.map_or(0, |it| it.lies.min(lies));
        let left = part.saturating_sub(lies - own);
        let most = match own {
            0 => left,
            _ => left - left / 4,
        };
        Some(Part {
            of_endpoint: lies,
            own,
            most,
        })
    }

    /// Whether it is time to ask whether a receiver has read: it was sent much, and has had time to read it, or half of its
    /// part. Who is sent something all the time is asked often enough to be found with nothing once.
    pub(in crate::mediate) fn is_doubted(
        &mut self,
        pair: (u64, u64),
        endpoint: u32,
        room: Room,
    ) -> bool {
        let known = self.pairs.get(&pair);
        let Some(known) = known.filter(|it| it.lies >= MUCH && !it.is_missed()) else {
            return false;
        };
        known.at.elapsed() >= PAUSE
            || self
                .part(pair, endpoint, room)
                .is_some_and(|it| it.own >= it.most / 2 && guard!("circuits-doubted-half"))
    }

    /// Nothing lies at a receiver.
    pub(in crate::mediate) fn is_read(&mut self, sender: u64, receiver: u64) {
        let Some(pair) = self.pairs.get_mut(&(sender, receiver)) else {
            return;
        };
        let lay = std::mem::take(&mut pair.lies);
        let (at, last, round) = (pair.ends[1], pair.last, pair.round);
        if let Some(known) = self.senders.get_mut(&sender)
            && known.round == round
            && let Some(at) = known.at.get_mut(&at)
        {
            // What lies there still is others': of what was sent since less may.
            at.sent = at.sent.saturating_sub(lay);
            at.lies = at.lies.min(at.sent);
        }
        self.not_lying((sender, at), last);
    }

    /// Whether one more receiver may be asked for an endpoint whether it has read: who has many that do not read has its
    /// oldest lose what lies there without that, and no answer cost as many looks. However many endpoints have such, the looks
    /// of all together are bounded.
    pub(in crate::mediate) fn may_look(&mut self, endpoint: u32) -> bool {
        let while_ = LOOKED * u32::try_from(self.looked.len()).unwrap_or(u32::MAX);
        self.looked.retain(|_, (since, _)| since.elapsed() < while_);
        let looked = self.looked.get(&endpoint);
        looked.is_none_or(|(_, looks)| *looks < LOOKS) || !guard!("circuits-looks-part")
    }

    /// One was asked, and has not read.
    pub(in crate::mediate) fn looks_in_vain(&mut self, endpoint: u32) {
        let looked = self.looked.entry(endpoint);
        looked.or_insert((Instant::now(), 0)).1 += 1;
    }

    /// There is no room for what is to be sent to an endpoint, whoever is asked.
    pub(in crate::mediate) fn refuses(&mut self, sender: u64, endpoint: u32) {
        let known = self.senders.get_mut(&sender);
        if let Some(at) = known.and_then(|it| it.at.get_mut(&endpoint)) {
            at.refused = Some(Instant::now());
        }
    }

    /// Whether that was found a moment ago: who has an endpoint sent more than it reads does not have others wait for as
    /// many searches.
    pub(in crate::mediate) fn is_refused(&self, sender: u64, endpoint: u32) -> bool {
        let at = self
            .senders
            .get(&sender)
            .and_then(|it| it.at.get(&endpoint));
        let refused = at.and_then(|it| it.refused);
        refused.is_some_and(|at| at.elapsed() < REFUSED) && guard!("circuits-refused-part")
    }

    /// A receiver is not where it was seen.
    pub(in crate::mediate) fn misses(&mut self, sender: u64, receiver: u64) {
        let pair = self.pairs.get_mut(&(sender, receiver));
        let Some(pair) = pair.filter(|it| !it.is_missed()) else {
            return;
        };
        let now = Instant::now();
        pair.missed = Some(now);
        let (at, last) = (pair.ends[1], pair.last);
        // As many at most as are missed in that time, also where nobody asks who may be looked for.
        self.seeks_again();
        self.missed.push_back((now, (sender, receiver)));
        self.not_lying((sender, at), last);
    }

    /// Whether a receiver was looked for of late, and not found.
    pub(in crate::mediate) fn is_missed(&self, sender: u64, receiver: u64) -> bool {
        let pair = self.pairs.get(&(sender, receiver));
        pair.is_some_and(Pair::is_missed)
    }

    /// Those that were not found may be looked for again.
    fn seeks_again(&mut self) {
        while let Some((at, key)) = self.missed.front()
            && at.elapsed() >= MISSED
        {
            let round = self.senders.get(&key.0).map(|it| it.round);
            if let Some(pair) = self.pairs.get(key)
                && (pair.lies > 0 && !pair.is_missed() && Some(pair.round) == round)
            {
                let lying = self.lying.entry((key.0, pair.ends[1])).or_default();
                lying.insert(pair.last, key.1);
            }
            self.missed.pop_front();
        }
    }

    /// The receivers at which something may lie, so many at most, of an endpoint, who was sent something last the last.
    pub(in crate::mediate) fn receivers(
        &mut self,
        sender: u64,
        endpoint: u32,
        most: usize,
    ) -> Vec<u64> {
        self.seeks_again();
        let lying = self.lying.get(&(sender, endpoint)).into_iter().flatten();
        lying.map(|(_, receiver)| *receiver).take(most).collect()
    }

    /// The endpoints at which more lies of a sender than at one, where most lies first, and that one: nobody has others lose
    /// what they have less of.
    pub(in crate::mediate) fn endpoints(&self, sender: u64, than: u32) -> Vec<u32> {
        let known = self.senders.get(&sender);
        let least = known
            .and_then(|it| it.at.get(&than))
            .map_or(0, |it| it.lies);
        let all = known.into_iter().flat_map(|it| &it.at);
        let more = |it: &At| it.lies > least || !guard!("circuits-drains-more");
        let all = all.filter(|(at, it)| **at == than || more(it));
        let mut all: Vec<(usize, u32)> = all.map(|(at, it)| (it.lies, *at)).collect();
        all.sort_unstable();
        all.into_iter().rev().map(|(_, at)| at).collect()
    }

    /// Of other receivers nothing more is known. What a socket sent before its end may still be read.
    pub(in crate::mediate) fn retain(&mut self, live: &BTreeSet<u64>) {
        let gone = self.pairs.keys().filter(|it| !live.contains(&it.1));
        for key in gone.copied().collect::<Vec<_>>() {
            self.is_read(key.0, key.1);
            self.remove(key);
        }
        self.senders.retain(|sender, _| live.contains(sender));
        self.lying.retain(|(sender, _), _| live.contains(sender));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use circuit::Endpoint;

    const WAY: Way = {
        let ip = [0; 16];
        let end = Endpoint { ip, port: 7 };
        Way {
            local: end,
            remote: end,
        }
    };
    const MOST: usize = 4 << 20;
    const MARK: usize = MOST / 4;

    fn room(now: usize) -> Room {
        Room { now, most: MOST }
    }

    /// Sends to new receivers of an endpoint for as long as that may be; how many bytes lie there then.
    fn fills(sent: &mut Sent, endpoint: u32, mut now: usize) -> usize {
        let before = now;
        for receiver in 0..10_000 {
            let receiver = u64::from(endpoint) * 100_000 + receiver;
            if !sent.may((1, receiver), endpoint, room(now), 2000) {
                break;
            }
            sent.sends((1, receiver), [0, endpoint], WAY, 2000);
            now += 2000;
        }
        now - before
    }

    /// Sends to one receiver for as long as that may be; how many bytes lie there then.
    fn given(sent: &mut Sent, (receiver, endpoint): (u64, u32), before: usize) -> usize {
        let mut now = before;
        while now < MOST && sent.may((1, receiver), endpoint, room(now), 2000) {
            sent.sends((1, receiver), [0, endpoint], WAY, 2000);
            now += 2000;
        }
        now - before
    }

    /// However many endpoints' programs read nothing, there is room for another's, and for polls.
    #[test]
    fn who_reads_nothing_leaves_as_much_as_it_takes() {
        let mut sent = Sent::default();
        let mut now = 0;
        for endpoint in 1..=6 {
            let lies = fills(&mut sent, endpoint, now);
            let part = (MARK - now) / 2;
            assert!(
                lies <= part && lies + 4000 > part,
                "{endpoint}: {lies} of {part}"
            );
            now += lies;
        }
        assert!(now < MARK && sent.may((1, 9), 9, room(now), 2000));
        // Whoever reads has as much again, and of what lies at others' nothing is its own.
        for receiver in sent.receivers(1, 1, 9999) {
            sent.is_read(1, receiver);
        }
        now -= MARK / 2;
        assert!(fills(&mut sent, 1, now) > MARK / 4);
        // Who has less loses nothing for it.
        assert_eq!(sent.endpoints(1, 1), [1]);
        assert_eq!(sent.endpoints(1, 3), [1, 2, 3]);
    }

    /// Nor does one of an endpoint's take all that is that endpoint's.
    #[test]
    fn who_reads_nothing_leaves_others_of_its_endpoint_a_part() {
        let mut sent = Sent::default();
        let mut now = 0;
        for receiver in 0..3 {
            let before = now;
            now += given(&mut sent, (receiver, 1), now);
            let left = MARK / 2 - before;
            let (lies, part) = (now - before, left - left / 4);
            assert!(
                lies <= part && lies + 4000 > part,
                "{receiver}: {lies} of {part}"
            );
        }
        assert!(sent.may((1, 9), 1, room(now), 2000));
    }

    #[test]
    fn what_is_read_is_known_of_once_nothing_lies_anywhere() {
        let mut sent = Sent::default();
        let lies = fills(&mut sent, 1, 0);
        assert!(!sent.may((1, 8), 1, room(lies), 2000));
        // Less lies than was sent: that much at most is this endpoint's.
        assert!(sent.may((1, 8), 1, room(2000), 2000));
        assert!(sent.may((1, 8), 1, room(0), 2000));
        assert!(sent.receivers(1, 1, 9999).is_empty());
        assert!(fills(&mut sent, 1, 0) > 0);
    }

    /// However much another of its endpoint's was sent and read meanwhile, which is asked at times.
    #[test]
    fn who_reads_does_not_hide_what_others_have_not_read() {
        let mut sent = Sent::default();
        let now = given(&mut sent, (2, 1), 0);
        for _ in 0..100 {
            for _ in 0..10 {
                if sent.may((1, 3), 1, room(now), 2000) {
                    sent.sends((1, 3), [0, 1], WAY, 2000);
                }
            }
            sent.is_read(1, 3);
        }
        assert!(!sent.may((1, 2), 1, room(now), 2000));
    }

    /// Also without a pause: whoever reads has nothing there at some time.
    #[test]
    fn who_is_sent_something_all_the_time_is_asked_from_half_its_part_on() {
        let mut sent = Sent::default();
        let now = fills(&mut sent, 1, 0);
        let mut lies = 0;
        while !sent.is_doubted((1, 2), 2, room(now + lies)) {
            assert!(sent.may((1, 2), 2, room(now + lies), 2000));
            sent.sends((1, 2), [0, 2], WAY, 2000);
            lies += 2000;
        }
        assert!(lies >= MUCH);
        let mut more = 0;
        while sent.may((1, 2), 2, room(now + lies + more), 2000) {
            sent.sends((1, 2), [0, 2], WAY, 2000);
            more += 2000;
        }
        assert!(more * 5 > lies * 4, "{more} after {lies}");
    }

    /// Until a moment is over, of this endpoint alone.
    #[test]
    fn where_nobody_has_read_nobody_is_asked_again_at_once() {
        let mut sent = Sent::default();
        for endpoint in [2, 3] {
            sent.sends((1, 5), [0, endpoint], WAY, 100);
        }
        sent.refuses(1, 2);
        sent.refuses(1, 4);
        assert_eq!(
            [2, 3, 4].map(|it| sent.is_refused(1, it)),
            [true, false, false]
        );
        std::thread::sleep(REFUSED);
        assert!(!sent.is_refused(1, 2));
    }

    /// However many others there are: the more of them, the fewer looks for each.
    #[test]
    fn looks_in_vain_are_bounded_for_each_endpoint_and_for_all() {
        let mut sent = Sent::default();
        let looks = |sent: &mut Sent, endpoint| {
            let may = (0..1000).take_while(|_| {
                let may = sent.may_look(endpoint);
                if may {
                    sent.looks_in_vain(endpoint);
                }
                may
            });
            may.count()
        };
        assert_eq!([1, 1, 2].map(|it| looks(&mut sent, it)), [LOOKS, 0, LOOKS]);
        std::thread::sleep(LOOKED);
        // For each of two it is twice as long.
        assert_eq!([1, 2].map(|it| looks(&mut sent, it)), [0, 0]);
        std::thread::sleep(LOOKED);
        assert_eq!([1, 2].map(|it| looks(&mut sent, it)), [LOOKS, LOOKS]);
    }

    /// One that is larger than any part is let in where its endpoint has nothing.
    #[test]
    fn what_is_larger_than_a_part_comes_where_there_is_room() {
        let mut sent = Sent::default();
        let room = |now| Room {
            now,
            most: 416 << 10,
        };
        let large = 121_000;
        assert!(sent.may((1, 2), 1, room(0), large));
        sent.sends((1, 2), [0, 1], WAY, 100);
        assert!(sent.may((1, 3), 4, room(100), large) && !sent.may((1, 2), 1, room(100), large));
        assert!(!sent.may((1, 3), 4, room(150_000), large));
    }

    /// Who was sent something last is asked last, and who is not found not at once again.
    #[test]
    fn those_that_are_silent_for_longest_come_first() {
        let mut sent = Sent::default();
        for receiver in [5, 3, 4, 5] {
            sent.sends((1, receiver), [0, 2], WAY, 100);
        }
        sent.sends((1, 8), [0, 2], WAY, 0);
        sent.sends((1, 9), [0, 3], WAY, 100);
        assert_eq!(sent.receivers(1, 2, 9999), [3, 4, 5]);
        // Nor is remembered for longer that one was not found, who it was, or wherever nobody asks.
        let long_ago = Instant::now().checked_sub(MISSED).unwrap();
        sent.missed.push_back((long_ago, (7, 7)));
        sent.misses(1, 3);
        assert_eq!(sent.missed.len(), 1);
        assert_eq!(sent.receivers(1, 2, 9999), [4, 5]);
        // Nor where it is sent more meanwhile; of much it is asked after a pause.
        sent.sends((1, 3), [0, 2], WAY, MUCH);
        sent.sends((1, 4), [0, 2], WAY, MUCH);
        std::thread::sleep(PAUSE);
        let mut is_doubted = |it| sent.is_doubted((1, it), 2, room(MUCH));
        assert_eq!([3, 4, 5].map(&mut is_doubted), [false, true, false]);
        sent.sends((1, 5), [0, 2], WAY, 100);
        sent.is_read(1, 4);
        assert_eq!(sent.receivers(1, 2, 9999), [5]);
        assert_eq!(sent.endpoints(1, 9), [2, 3]);
        sent.retain(&BTreeSet::from([1, 9]));
        assert!(sent.receivers(1, 2, 9999).is_empty());
        assert_eq!((sent.way(1, 5), sent.way(1, 9)), (None, Some(WAY)));
        assert_eq!((sent.pairs.len(), sent.of[&[0, 3]].len()), (1, 1));
    }

    /// One endpoint's senders have others' know nothing less, and what lies at those that it forgets still counts.
    #[test]
    fn pairs_are_bounded_and_each_endpoint_forgets_its_own() {
        let mut sent = Sent::default();
        sent.sends((1, 1), [7, 7], WAY, 10);
        for receiver in 0..20_000 {
            sent.sends((2, receiver), [8, 9], WAY, 10);
        }
        assert_eq!(sent.way(1, 1), Some(WAY));
        assert!(sent.pairs.len() <= PAIRS && sent.way(2, 19_999).is_some());
        assert_eq!(sent.senders[&2].at[&9].lies, 200_000);
        // Nor does one endpoint's have a sender know nothing of another's.
        sent.sends((2, 50_000), [8, 6], WAY, 10);
        for receiver in 0..20_000 {
            sent.sends((2, receiver), [8, 9], WAY, 10);
        }
        assert_eq!(sent.way(2, 50_000), Some(WAY));
        let of: usize = sent.of.values().map(BTreeMap::len).sum();
        assert_eq!(of, sent.pairs.len());
    }
}
