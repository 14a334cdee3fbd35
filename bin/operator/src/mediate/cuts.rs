//! Circuits are cut. Sockets that are not where they were seen (a forked child has them, or the
//! thread that had them is gone) are looked for: the supervisor is asked who has them. Until they are
//! found they stay in the table, so that a successor cuts them too; but for those whose endpoint is gone, or address.

use super::*;
use circuit::Socket;
use command::verbs::{Found, SEEK, Seek, Sought};
use notify::{Came, End, Seen, Target, end_apart};
use telemetry::operator::{CUT, UNFOUND};

/// Circuits that are cut at a time, and of so many endpoints at most.
const AT_ONCE: usize = 256;
const SIDE_BY_SIDE: usize = 8;
/// How long it may take to cut those of an endpoint that are cut at a time; and where others have had this process wait for
/// so much altogether, how long then.
const HELD: Duration = Duration::from_millis(200);
const HELD_ALL: Duration = Duration::from_secs(1);
const HELD_THEN: Duration = Duration::from_millis(20);
/// So often: a program may hand a socket on meanwhile. Where not all processes could be looked at a search
/// counts for a part of one.
const HUNTS: u32 = 3 * PARTS;
const PARTS: u32 = 4;
/// What was found with no process is looked for once more after this, and again after twice as long, up to the longest: who
/// hides it may not do so for good.
const LOOKS_AGAIN: Duration = Duration::from_secs(1);
const LOOKS_AGAIN_LONGEST: Duration = Duration::from_secs(64);
/// A search of which nobody has said for so long that it is over was another supervisor's.
const LOST: Duration = Duration::from_secs(30);

/// A socket that is looked for. It may be in the table no more: its endpoint is gone, or its address.
struct Hunted {
    /// The circuit, by the cookie of who began it.
    began: u64,
    socket: Socket,
    /// Searches for it that are over, in [`PARTS`].
    tried: u32,
    /// The search that goes on is for it, too.
    is_asked: bool,
    /// It was found with no process before, and that was told.
    is_lost: bool,
}

/// Endpoints that had who cuts wait, and for how long.
#[derive(Default)]
struct Held {
    slots: BTreeSet<u32>,
    stood: Duration,
}

impl Held {
    fn patience(&self) -> Duration {
        match self.stood < HELD_ALL {
            true => HELD,
            false => HELD_THEN,
        }
    }
}

/// What is looked for.
#[derive(Default)]
pub(super) struct Hunts {
    /// By their cookies.
    ends: BTreeMap<u64, Hunted>,
    /// Those that were found with no process, when they are looked for next, and after how long then.
    lost: BTreeMap<u64, Hunted>,
    again: Option<(Instant, Duration)>,
    /// Cookies by inodes, of the search that goes on.
    inodes: BTreeMap<u64, u64>,
    /// Since when the supervisor searches for all of those: whoever asks again meanwhile has one answer.
    since: Option<Instant>,
    /// The number of the last search.
    number: u32,
    /// Not all processes could be looked at in it.
    missed: bool,
    /// There is something that nobody was asked for yet.
    is_new: bool,
    /// Something goes by a meter, or did.
    has_metered: bool,
    /// Who has some, as the supervisor has said in this turn, and whether that is all.
    found: Vec<Found>,
    is_over: bool,
}

impl Mediator {
    /// Looks for the ends of a circuit.
    fn hunts_for(&mut self, began: u64, ends: impl IntoIterator<Item = Socket>) {
        for socket in ends.into_iter().filter(|_| guard!("circuits-hunts")) {
            let lost = self.hunts.lost.remove(&socket.cookie());
            // Who is to be cut again and again is not looked for without end.
            let before = self.hunts.ends.get(&socket.cookie());
            let before = before.filter(|_| guard!("circuits-hunts-again"));
            let hunted = Hunted {
                began,
                socket,
                tried: before.map_or(0, |it| it.tried),
                is_asked: before.is_some_and(|it| it.is_asked),
                is_lost: before.is_some_and(|it| it.is_lost) || lost.is_some(),
            };
            self.hunts.has_metered |= socket.carrier().is_metered();
            self.hunts.ends.insert(socket.cookie(), hunted);
        }
        self.hunts.is_new = true;
    }

    /// Whether it was looked for and found with no process.
    pub(super) fn is_lost(&self, cookie: u64) -> bool {
        let again = self.hunts.ends.get(&cookie);
        self.hunts.lost.contains_key(&cookie) || again.is_some_and(|it| it.is_lost)
    }

    /// Whether the supervisor is to be asked for what it was not asked for yet: once a search is over.
    pub fn is_to_seek(&self) -> bool {
        self.hunts.is_new && self.hunts.since.is_none() && self.live.is_some()
    }

    /// How long a search that nobody says any more to be over may still take; else how long until what was not found is
    /// looked for again.
    pub(super) fn hunts_sleep(&self) -> Option<Duration> {
        match (self.hunts.since, self.hunts.again) {
            (Some(since), _) => Some(LOST.saturating_sub(since.elapsed())),
            (None, Some((again, _))) => Some(again.saturating_duration_since(Instant::now())),
            (None, None) => None,
        }
    }

    /// What was found with no process is looked for once more, if it is time.
    fn looks_again(&mut self) {
        let Some((again, pause)) = self.hunts.again else {
            return;
        };
        if self.hunts.since.is_some() || again > Instant::now() {
            return;
        }
        for (cookie, hunted) in std::mem::take(&mut self.hunts.lost) {
            self.hunts.ends.entry(cookie).or_insert(hunted);
        }
        self.hunts.is_new = true;
        let next = (2 * pause).min(LOOKS_AGAIN_LONGEST);
        self.hunts.again = Some((Instant::now() + next, next));
    }

    /// By other rules they are looked for at once, if these deny them too: streams are forgotten here, datagrams perhaps linked.
    pub(super) fn doubts_lost(&mut self) {
        let table = &self.table;
        let may_go_on = |cookie: &u64| {
            let socket = table.socket(*cookie);
            socket.is_some_and(|it| it.kind() == Kind::Stream) && guard!("circuits-lost-streams")
        };
        // But for what was cut by its id: no rule said so.
        let is_condemned = |it: &Hunted| {
            let began = table.socket(it.began);
            began.is_some_and(Socket::is_condemned) && guard!("circuits-hunts-by-id")
        };
        self.hunts
            .lost
            .retain(|cookie, it| is_condemned(it) || !may_go_on(cookie));
        for cookie in self.hunts.lost.keys() {
            self.datagrams.cut.remove(cookie);
            self.datagrams.doubted.insert(*cookie);
        }
    }

    /// They are looked for no more, but at times.
    fn are_lost(&mut self, lost: Vec<(u64, Hunted)>) {
        let new = lost.iter().filter(|(_, it)| !it.is_lost).count();
        if new > 0 {
            if let Some(notes) = &self.notes {
                notes.counts(UNFOUND, new as u64);
            }
            confine::say!(
                "bulkhead-operator: {new} ends of circuits, to be cut or linked, are found with no process"
            );
        }
        if guard!("circuits-looks-again") {
            let first = (Instant::now() + LOOKS_AGAIN, LOOKS_AGAIN);
            self.hunts.again = match new {
                0 => self.hunts.again.or(Some(first)),
                _ => Some(first),
            };
            let once = |mut it: Hunted| {
                (it.tried, it.is_lost) = (HUNTS - PARTS, true);
                it
            };
            let lost = lost.into_iter().map(|(cookie, it)| (cookie, once(it)));
            self.hunts.lost.extend(lost);
        }
    }

    /// A search is over, and all that was found is told. One that another was begun after is nobody's.
    pub fn sought(&mut self, body: &Sought) {
        if body.number != 0 && body.number != self.hunts.number && guard!("circuits-hunt-number") {
            return;
        }
        self.hunts.missed = body.missed != 0 && guard!("circuits-hunt-missed");
        self.hunts.is_over = self.hunts.since.take().is_some();
    }

    /// What the supervisor is to be asked; nothing: all that is allowed no more is cut, or cannot
    /// be found.
    pub fn seeks(&mut self) -> Vec<Seek> {
        // What was found of before is looked for once more.
        (self.hunts.is_new, self.hunts.is_over, self.hunts.since) = (false, false, None);
        self.hunts.inodes.clear();
        if self.hunts.lost.is_empty() && self.hunts.ends.is_empty() {
            self.hunts.again = None;
        }
        if self.hunts.ends.is_empty() {
            return Vec::new();
        }
        let Some(mut live) = self.living() else {
            // It is not known what lives: later, perhaps.
            self.hunts.is_new = true;
            return Vec::new();
        };
        let far = self.hunts.ends.values().map(|it| it.socket);
        let far: Vec<Socket> = far.filter(|it| it.inode() != 0).collect();
        if guard!("across-hunted") {
            live.extend(self.living_far(&far));
        }
        // A listing may pass over some while others come and go: twice it does not.
        let is_whole = self.hunts.ends.keys().all(|it| live.contains_key(it));
        if !is_whole {
            live.extend(self.living().into_iter().flatten());
        }
        let closed = far.iter().map(Socket::cookie);
        let closed = closed.filter(|it| !live.contains_key(it)).collect();
        self.forgets(&closed);
        // Nobody has what is gone, but perhaps a meter.
        self.hunts.ends.retain(|cookie, it| {
            live.contains_key(cookie)
                || it.socket.carrier().is_metered() && live.contains_key(&it.socket.token())
        });
        let tried = |_: &u64, it: &mut Hunted| it.tried >= HUNTS;
        let missing: Vec<_> = self.hunts.ends.extract_if(.., tried).collect();
        if !missing.is_empty() {
            self.are_lost(missing);
        }
        for hunted in self.hunts.ends.values_mut() {
            hunted.is_asked = true;
        }
        let ends = self.hunts.ends.keys();
        self.hunts.inodes = ends.filter_map(|it| Some((*live.get(it)?, *it))).collect();
        let inodes: Vec<u64> = self.hunts.inodes.keys().copied().collect();
        let batches = inodes.len().div_ceil(SEEK);
        let number = self.hunts.number.checked_add(1).unwrap_or(1);
        self.hunts.number = number;
        self.hunts.since = (batches > 0).then(Instant::now);
        let batches = (1..=batches).zip(inodes.chunks(SEEK)).map(|(n, some)| {
            let mut body = Seek {
                count: some.len() as u32,
                last: if n == batches { number } else { 0 },
                ..Seek::default()
            };
            for (place, inode) in body.inodes.iter_mut().zip(some) {
                *place = *inode;
            }
            body
        });
        batches.collect()
    }

    /// The supervisor says who has one, or had it a moment ago.
    pub fn found(&mut self, body: &Found) {
        self.hunts.found.push(*body);
    }

    /// Cuts what was found in this turn, together: a process is made for each time. `true`: a search is over, and
    /// all that it found is cut.
    pub fn cuts_found(&mut self) -> bool {
        self.looks_again();
        let (mut all, mut cut, mut in_vain) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        for body in std::mem::take(&mut self.hunts.found) {
            let cookie = self.hunts.inodes.get(&body.inode);
            let Some(hunted) = cookie.and_then(|cookie| self.hunts.ends.get(cookie)) else {
                // By who looked itself, and datagrams: of these it says so.
                if body.thread == 0 && body.number != 0 && guard!("circuits-hunts-in-vain") {
                    in_vain.insert(body.inode);
                }
                continue;
            };
            // It may be in the table no more.
            let known = self.table.socket(hunted.socket.cookie()).is_some();
            if !known && !guard!("circuits-hunts-gone") {
                continue;
            }
            // Who looked has cut it: it was gone before anybody could be told. A stream is over for good; datagrams may
            // have been linked again since a search of before, or before they are looked for anew.
            if body.thread == 0 {
                let is_over = body.number == 0;
                let is_of_this =
                    body.number == self.hunts.number || !guard!("circuits-hunts-which");
                let is_cut =
                    is_over || is_of_this && (hunted.is_asked || !guard!("circuits-hunts-asked"));
                cut.extend(is_cut.then_some(hunted.began));
                continue;
            }
            if let Ok(target) = Target::open(body.thread) {
                // Where it is linked again, once it may go on: but of who had this process wait.
                let cookie = hunted.socket.cookie();
                let place = place::of(&target, body.number);
                let is_known = self.table.socket(cookie).is_some_and(|it| it.place() != 0);
                if is_known && guard!("circuits-found-at") {
                    self.table.place(cookie, place);
                }
                let seen = Seen {
                    target,
                    number: body.number,
                    cookie: hunted.socket.cookie(),
                    end: end_of(&hunted.socket),
                };
                all.push((hunted.socket.endpoint(), (hunted.began, seen)));
            }
        }
        if !in_vain.is_empty() {
            self.were_cut_in_vain(&in_vain);
        }
        cut.extend(self.end_all(all, Some, &mut Held::default()));
        self.are_cut(&cut);
        // Those that were linked to who had an address before, to whose it is now.
        for cookie in &cut {
            self.link_later(*cookie);
        }
        if self
            .hunts
            .since
            .is_some_and(|since| since.elapsed() >= LOST)
        {
            self.sought(&Sought::default());
        }
        let is_over = std::mem::take(&mut self.hunts.is_over);
        if is_over {
            for cookie in self.hunts.inodes.values() {
                if let Some(hunted) = self.hunts.ends.get_mut(cookie) {
                    hunted.tried += if self.hunts.missed { 1 } else { PARTS };
                }
            }
        }
        is_over
    }

    /// It may go on: who looks for it finds it in vain. Whether it was looked for.
    pub(super) fn is_sought_no_more(&mut self, cookie: u64) -> bool {
        let lost = self.hunts.lost.remove(&cookie).is_some();
        self.hunts.ends.remove(&cookie).is_some() || lost
    }

    /// Who looked has cut those (inodes) that may go on by now, or are looked for no more. Datagrams are linked again, if they
    /// may; or are linked already, and elsewhere, if their program was quicker.
    fn were_cut_in_vain(&mut self, inodes: &BTreeSet<u64>) {
        let all = self.living().into_iter().flatten();
        for (cookie, _) in all.filter(|(_, inode)| inodes.contains(inode)) {
            let socket = self.table.socket(cookie);
            if socket.is_some_and(|it| it.kind() == Kind::Datagram && it.way().is_some()) {
                self.table.link(cookie, None);
                self.datagrams.doubted.insert(cookie);
                self.link_later(cookie);
            }
        }
    }

    /// A datagram socket is linked when nobody calls, if it may be.
    fn link_later(&mut self, cookie: u64) {
        if let Some(socket) = self.table.socket(cookie)
            && let Some(way) = socket.way().filter(|_| socket.kind() == Kind::Datagram)
        {
            let slot = socket.endpoint();
            if self.is_outside(slot, &way) {
                self.tell_later(cookie);
            } else if let Ok(slot) = self.located(slot, &way) {
                self.is_late_to(cookie, slot);
            }
        }
    }

    /// Cookies of sockets that live, with their inodes, where that is told.
    pub(super) fn living(&self) -> Option<BTreeMap<u64, u64>> {
        self.live.as_ref()?.sockets().ok()
    }

    /// Whether anything is looked for.
    pub fn hunts(&self) -> bool {
        !self.hunts.ends.is_empty()
    }

    /// So many circuits end because they are allowed no more.
    pub(super) fn counts_cut(&self, circuits: usize) {
        if let Some(notes) = &self.notes {
            notes.counts(CUT, circuits as u64);
        }
    }

    /// Cuts circuits, each by one of its ends; both its programs find it closed. What is not where
    /// it was seen is looked for.
    pub(super) fn cut(&mut self, circuits: Vec<(u64, Vec<Socket>)>) {
        let mut left = circuits;
        // Those that no program has yet are here.
        let mut here = Vec::new();
        left.retain(|(began, ends)| {
            let is_here = ends
                .iter()
                .any(|end| guard!("circuits-unclaimed") && self.unclaimed.ends(end.cookie()));
            here.extend(is_here.then_some(*began));
            !is_here
        });
        for began in here {
            self.is_cut(began);
        }
        let mut held = Held::default();
        // Bound: a circuit has two ends.
        for which in 0..2 {
            let at = |socket: &Socket| {
                let (target, number) = place::at(socket.place())?;
                Some(Seen {
                    target,
                    number,
                    cookie: socket.cookie(),
                    end: end_of(socket),
                })
            };
            let ends = left
                .iter()
                .filter_map(|(began, ends)| Some((*began, *ends.get(which)?)));
            let ends = ends.map(|(began, socket)| (socket.endpoint(), (began, socket)));
            let cut = self.end_all(
                ends.collect(),
                |(began, socket)| Some((began, at(&socket)?)),
                &mut held,
            );
            left.retain(|(began, _)| !cut.contains(began));
            self.are_cut(&cut);
        }
        for (began, ends) in left {
            self.hunts_for(began, ends);
        }
    }

    /// Which of them are cut, by endpoints, of which some are looked at side by side. One that has who looks wait
    /// is not looked at again: neither with one socket for long, nor with many for a little each.
    fn end_all<T>(
        &self,
        all: Vec<(u32, T)>,
        mut seen: impl FnMut(T) -> Option<(u64, Seen)>,
        held: &mut Held,
    ) -> BTreeSet<u64> {
        let (mut cut, mut of) = (BTreeSet::new(), BTreeMap::<u32, Vec<T>>::new());
        for (slot, one) in all.into_iter().rev() {
            of.entry(slot).or_default().push(one);
        }
        // Bound: each time there are less.
        loop {
            of.retain(|slot, left| !left.is_empty() && !held.slots.contains(slot));
            let slots: Vec<u32> = of.keys().copied().take(SIDE_BY_SIDE).collect();
            if slots.is_empty() {
                return cut;
            }
            if let Some(notes) = &self.notes {
                notes.beats();
            }
            let share = AT_ONCE / slots.len();
            let (mut began, mut groups) = (Vec::new(), Vec::new());
            for slot in &slots {
                let left = of.entry(*slot).or_default();
                let some = left.split_off(left.len().saturating_sub(share));
                let some = some.into_iter().rev().filter_map(&mut seen);
                let (circuits, group): (Vec<u64>, Vec<Seen>) = some.unzip();
                began.push(circuits);
                groups.push(group);
            }
            let (since, is_apart) = (Instant::now(), guard!("circuits-apart"));
            let all = match is_apart {
                true => end_apart(&groups, held.patience()),
                false => groups.iter().map(|_| Err(Errno::AGAIN)).collect(),
            };
            for ((slot, group), (came, began)) in
                slots.iter().zip(&groups).zip(all.into_iter().zip(&began))
            {
                // Copies of before may be about to end.
                let alone = |errno| match is_apart {
                    true => end_apart(std::slice::from_ref(group), held.patience())
                        .pop()
                        .unwrap_or(Err(errno)),
                    false => Err(errno),
                };
                // Others that cut are held by as many as may be: whoever holds this too is known.
                let came = came.or_else(alone);
                let came = came.unwrap_or_else(|_| self.end_here(*slot, group));
                let is_held = came.last() == Some(&Came::Held);
                if is_held {
                    held.slots.insert(*slot);
                    let time = since.elapsed();
                    self.notes_stood(Spent {
                        slot: *slot,
                        time,
                        copying: time,
                        sweeping: Duration::ZERO,
                    });
                }
                let ended = began
                    .iter()
                    .zip(came)
                    .filter(|(_, came)| *came == Came::Ended);
                cut.extend(ended.map(|(began, _)| *began));
            }
            if !held.slots.is_empty() {
                held.stood += since.elapsed();
            }
        }
    }

    /// Cuts some by this process itself, up to one by which an endpoint has held it for long: it is blamed for that.
    fn end_here(&self, slot: u32, group: &[Seen]) -> Vec<Came> {
        let (mut came, since) = (Vec::new(), Instant::now());
        for seen in group {
            self.touches(slot);
            came.push(notify::end(seen));
            self.touched();
            if since.elapsed() >= HELD {
                came.push(Came::Held);
                break;
            }
        }
        came
    }

    /// It is time to look again for what was not found; whether there is anything.
    #[cfg(test)]
    pub(super) fn falls_due(&mut self) -> bool {
        let again = self.hunts.again.as_mut();
        again.map(|(again, _)| *again = Instant::now()).is_some()
    }

    /// Circuits that are looked for, by who began them.
    #[cfg(test)]
    pub(super) fn hunted(&self) -> Vec<u64> {
        let all: BTreeSet<u64> = self.hunts.ends.values().map(|it| it.began).collect();
        all.into_iter().collect()
    }

    /// Whether a circuit is looked for, to be cut, by who began it.
    pub(super) fn is_hunted(&self, began: u64) -> bool {
        self.hunts.ends.values().any(|it| it.began == began)
    }

    pub(super) fn is_cut(&mut self, began: u64) {
        self.are_cut(&BTreeSet::from([began]));
    }

    fn are_cut(&mut self, circuits: &BTreeSet<u64>) {
        if circuits.is_empty() {
            return;
        }
        for hunted in [&mut self.hunts.ends, &mut self.hunts.lost] {
            hunted.retain(|_, it| !circuits.contains(&it.began));
        }
        for began in circuits {
            self.table.link(*began, None);
            let socket = self.table.socket(*began);
            if socket.is_some_and(|socket| end_of(socket) == End::Shut) {
                let _ = self.table.disconnect(*began);
            }
        }
        self.write();
    }

    /// What is looked for and goes by a meter is over when that ends it, wherever it is: the meter may not have
    /// been linked when it was to be cut, or had no room to be told.
    pub(super) fn ends_metered(&mut self) {
        // By the socket that is metered: what is looked for may be named by the other end.
        let hunted = self.hunts.ends.values().chain(self.hunts.lost.values());
        let metered = hunted.filter(|it| it.socket.carrier().is_metered());
        let ends =
            |it: &&Hunted| self.meters.end(it.socket.cookie()) && guard!("circuits-hunts-metered");
        let over = metered.take_while(ends);
        let over: BTreeMap<u64, u64> = over.map(|it| (it.socket.cookie(), it.began)).collect();
        for cookie in over.keys() {
            let _ = self.table.disconnect(*cookie);
        }
        self.are_cut(&over.values().copied().collect());
        let mut left = self.hunts.ends.values().chain(self.hunts.lost.values());
        self.hunts.has_metered = left.any(|it| it.socket.carrier().is_metered());
    }

    /// Whether what is looked for may go by a meter.
    pub(super) fn hunts_metered(&self) -> bool {
        self.hunts.has_metered
    }
}

fn end_of(socket: &Socket) -> End {
    match socket.kind() {
        Kind::Datagram => End::Disconnect,
        _ => End::Shut,
    }
}
