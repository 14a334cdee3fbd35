//! The compartment's meter, a process that carries circuits whose endpoints have a rate or are
//! counted: which endpoints those are, what it is told, and what it counts. What it says is an
//! allegation.

use crate::sockets;
use command::Message;
use command::verbs::{
    Capture, EVERYBODY, EndMetered, METER_COUNTS, MeterPage, MeterRates, Metered,
};
use guard::guard;
use image::CompartmentImage;
use image::compartment::{ENDPOINT_METERED, Endpoint};
use rustix::io::Errno;
use seqpacket::Socket;
use shm::Words;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use telemetry::circuits::{Count, METER_BYTES, METER_WORDS, METERED, carried_by};

/// A rate that was measured so long ago is none any more, ns.
const STALE: u64 = 2_500_000_000;

/// Who connects waits so long for a meter that is started.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of it.
pub struct Meters {
    link: Option<Socket>,
    page: Option<Words>,
    /// By slot.
    rates: BTreeMap<u32, MeterRates>,
    /// Slots of whose rates it does not know: its link had no room.
    unsaid: BTreeSet<u32>,
    /// There was an image, so the rates are all that there are.
    is_decided: bool,
    /// Captures under way, by whose they are: of which slot, or of all.
    captures: BTreeMap<u32, Option<u32>>,
    /// Since when somebody waits for it.
    awaited: Option<Instant>,
    /// How many circuits it has room for.
    room: usize,
    /// How many go by it, and of whom: a slot's, or an agreement's; and how many of these, by where to, no program has.
    all: usize,
    by: BTreeMap<(u32, u16), usize>,
    left: BTreeMap<((u32, u16), [u8; 16]), usize>,
}

impl Default for Meters {
    fn default() -> Meters {
        Meters {
            link: None,
            page: None,
            rates: BTreeMap::new(),
            unsaid: BTreeSet::new(),
            is_decided: false,
            captures: BTreeMap::new(),
            awaited: None,
            room: METERED,
            all: 0,
            by: BTreeMap::new(),
            left: BTreeMap::new(),
        }
    }
}

impl Meters {
    /// It may have so many descriptors.
    pub fn has_files(&mut self, files: u64) {
        self.room = carried_by(files);
    }

    /// These go by it, each of whom, and to where those that no program has.
    pub fn carries_these(&mut self, these: impl Iterator<Item = ((u32, u16), Option<[u8; 16]>)>) {
        (self.all, self.by, self.left) = Default::default();
        for (by, left) in these {
            self.carries_one(by);
            if let Some(to) = left {
                *self.left.entry((by, to)).or_default() += 1;
            }
        }
    }

    /// One more does.
    pub fn carries_one(&mut self, by: (u32, u16)) {
        self.all += 1;
        *self.by.entry(by).or_default() += 1;
    }

    /// Whether there is room for one more of theirs: they may have as many as they leave to others.
    pub fn has_room_for(&self, by: (u32, u16)) -> bool {
        let own = self.by.get(&by).copied().unwrap_or_default();
        own + self.all < self.room
    }

    /// How many of theirs to there no program has.
    pub fn left(&self, by: (u32, u16), to: [u8; 16]) -> usize {
        self.left.get(&(by, to)).copied().unwrap_or_default()
    }

    /// How many circuits it has room for.
    pub fn room(&self) -> usize {
        self.room
    }

    /// What the image says of endpoints; of what is new the meter is told by [`Meters::says`]. Bound: endpoints.
    pub fn decide_by(&mut self, image: &CompartmentImage<'_>) {
        let rates = image.endpoints().iter().filter_map(rates_of);
        let rates: BTreeMap<u32, MeterRates> = rates.map(|body| (body.slot, body)).collect();
        let before = std::mem::replace(&mut self.rates, rates);
        let all = before.keys().chain(self.rates.keys());
        let is_new = |slot: &&u32| before.get(slot) != self.rates.get(slot);
        self.unsaid.extend(all.filter(is_new));
        if !std::mem::replace(&mut self.is_decided, true) {
            self.unsaid.insert(EVERYBODY);
        }
    }

    /// Tells it of rates that it does not know, as far as there is room.
    pub fn says(&mut self) {
        while let Some(slot) = self.unsaid.first().copied() {
            let none = MeterRates {
                slot,
                ..MeterRates::default()
            };
            if !self.tell(self.rates.get(&slot).unwrap_or(&none)) {
                // The next one is told of all that there are.
                if self.link.is_none() || !guard!("meter-unsaid") {
                    self.unsaid.clear();
                }
                return;
            }
            self.unsaid.remove(&slot);
        }
    }

    /// Whether any endpoint's circuits are metered.
    pub fn are_wanted(&self) -> bool {
        !self.rates.is_empty()
    }

    /// Whether a circuit between these two goes by the meter: no other way counts it.
    pub fn carries(&self, [from, to]: [u32; 2]) -> bool {
        from != to && [from, to].iter().any(|slot| self.rates.contains_key(slot))
    }

    /// Somebody captures from now on, or does no more.
    pub fn capture(&mut self, body: &Capture) {
        match (body.on, body.of) {
            (0, EVERYBODY) => self.captures.clear(),
            (0, of) => drop(self.captures.remove(&of)),
            (_, of) => {
                let slot = (body.slot != u32::MAX).then_some(body.slot);
                self.captures.insert(of, slot);
            }
        }
    }

    /// Whether a circuit that begins between these two is captured: its bytes are seen by the
    /// meter alone. Bound: captures under way.
    pub fn captures(&self, [from, to]: [u32; 2]) -> bool {
        let of = |slot: &Option<u32>| slot.is_none_or(|slot| slot == from || slot == to);
        from != to && self.captures.values().any(of)
    }

    /// Whether one of these two has a rate, which nothing else holds.
    pub fn limits(&self, [from, to]: [u32; 2]) -> bool {
        let limited = |slot| {
            let body = self.rates.get(slot);
            body.is_some_and(|body| body.from != 0 || body.to != 0)
        };
        from != to && [from, to].iter().any(limited)
    }

    /// A meter, another than before; of rates it is told by [`Meters::says`].
    pub fn link(&mut self, link: Socket) {
        self.link = Some(link);
        self.awaited = None;
        // While there is room for sure.
        if let Err(error) = self.share_page() {
            confine::say!("bulkhead-operator: no page for the meter to count in: {error}");
        }
        // The last word is that these are all.
        let all = self.is_decided.then_some(EVERYBODY);
        self.unsaid = self.rates.keys().copied().chain(all).collect();
    }

    fn share_page(&mut self) -> std::io::Result<()> {
        let page = shm::sparse_file("bulkhead-metered", METER_BYTES)?;
        self.page = Some(Words::map(&page, METER_BYTES)?);
        if let Some(link) = &self.link {
            let message = Message::new(0, &MeterPage::default());
            let sent = link.send(&message, &[page.as_fd()]);
            sent.map_err(std::io::Error::other)?;
        }
        Ok(())
    }

    /// Whether there is one.
    pub fn is_linked(&self) -> bool {
        self.link.is_some()
    }

    /// Whether there is one that may be told of a circuit, and knows all rates.
    pub fn takes(&self) -> bool {
        let has_room = |link: &Socket| sockets::has_room(link) || !guard!("meter-room");
        self.unsaid.is_empty() && self.link.as_ref().is_some_and(has_room)
    }

    /// Whether it has not been told all.
    pub fn is_behind(&self) -> bool {
        !self.unsaid.is_empty()
    }

    /// Somebody waits for it from now on.
    pub fn awaits(&mut self) {
        self.awaited.get_or_insert_with(Instant::now);
    }

    /// Whether it does not come.
    pub fn is_overdue(&self) -> bool {
        self.awaited
            .is_some_and(|since| since.elapsed() >= PATIENCE)
    }

    /// It was waited for so long.
    #[cfg(test)]
    pub fn await_since(&mut self, ago: Duration) {
        self.awaited = Instant::now().checked_sub(ago);
    }

    /// Whether somebody waits, and it did not come yet.
    pub fn is_awaited(&self) -> bool {
        self.awaited.is_some()
    }

    /// Nobody waits any more.
    pub fn forget_awaited(&mut self) {
        self.awaited = None;
    }

    /// It is gone, until the next.
    pub fn unlink(&mut self) -> Option<Socket> {
        self.page = None;
        self.link.take()
    }

    /// It never says anything. `Err`: it is gone.
    pub fn hear(&self) -> Result<(), ()> {
        match &self.link {
            Some(link) => link.recv().map(drop).map_err(drop),
            None => Ok(()),
        }
    }

    /// Hands it a circuit.
    ///
    /// # Errors
    /// NOBUFS: it does not listen, or does not know all rates.
    pub fn carry(&self, body: &Metered, ends: [&OwnedFd; 2]) -> Result<(), Errno> {
        let body = Message::new(0, body);
        let link = self.link.as_ref().filter(|_| self.unsaid.is_empty());
        let link = link.ok_or(Errno::NOBUFS)?;
        let sent = link.send(&body, &ends.map(AsFd::as_fd));
        sent.map_err(|_| Errno::NOBUFS)
    }

    /// Ends a circuit, wherever its programs have it.
    pub fn end(&self, id: u64) -> bool {
        self.tell(&EndMetered { id })
    }

    fn tell<B: command::Body>(&self, body: &B) -> bool {
        let link = self.link.as_ref();
        link.is_some_and(|link| link.send(&Message::new(0, body), &[]).is_ok())
    }

    /// What it counted, by circuit. Bound: its page.
    pub fn counts(&self, now: u64) -> BTreeMap<u64, Count> {
        let Some(page) = &self.page else {
            return BTreeMap::new();
        };
        let all = (0..METERED).map(|row| {
            let word = |n| page.load(row * METER_WORDS + n);
            let mut count = Count::of(&core::array::from_fn(word));
            if now.saturating_sub(count.measured) > STALE {
                count.rate = [0; 2];
            }
            (count.id, count)
        });
        all.filter(|(id, _)| *id != 0).collect()
    }
}

/// What the meter is to do with an endpoint's circuits; `None`: nothing.
fn rates_of(endpoint: &Endpoint) -> Option<MeterRates> {
    let body = MeterRates {
        slot: endpoint.slot,
        flags: METER_COUNTS,
        from: endpoint.rate_bytes,
        from_burst: endpoint.rate_burst,
        to: endpoint.to.bytes,
        to_burst: endpoint.to.burst,
    };
    (endpoint.flags & ENDPOINT_METERED != 0).then_some(body)
}
