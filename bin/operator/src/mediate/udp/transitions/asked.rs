//! What was asked, which may be answered: by whom first, and what comes of it with another image.

use super::*;

/// Whom a socket has sent to is remembered of so many, and for as long as the switch waits for
/// an answer that goes on (RFC 4787, REQ-5): they may answer.
const ASKED: usize = 64;
/// Of an endpoint's sockets that are more each remembers its part of so many: all together not many times as many.
const PART: usize = 8192;
pub(super) const ANSWERS: Duration = Duration::from_secs(300);
/// What a rule ends may lie unread at whom was asked: what that one sends back so long after is no question of its own.
pub(super) const UNREAD: Duration = Duration::from_secs(30);
/// What nobody is left of who asked it, the last of each endpoint.
const LEFT: usize = 4096;

/// What was judged of whom a socket sent to.
#[derive(Clone, Copy)]
pub(super) struct Judged {
    pub(super) to: u32,
    pub(super) epoch: u64,
    pub(super) at: Instant,
    /// It is not known to be an answer.
    pub(super) asks: bool,
}

/// Sockets of an endpoint that have sent one way, or are connected so.
pub(super) struct Askers {
    to: u32,
    pub(super) at: Instant,
    pub(super) cookies: BTreeSet<u64>,
    /// One is known to have sent, or may have and is gone; else they are connected, and may have sent natively or not.
    pub(super) sent: bool,
    /// It may be an answer all the same: the other way was allowed, and what was asked by it is not all remembered.
    unsure: bool,
    /// Its number among those of which nobody is left.
    left: Option<u64>,
}

/// What an endpoint's sockets asked.
#[derive(Default)]
pub(super) struct Asked {
    /// By socket, answers too.
    pub(super) judged: BTreeMap<u64, BTreeMap<Way, Judged>>,
    /// Who has sent which way, and when one did last. What a socket asked is remembered whatever comes of it and its port: it
    /// may lie unread, and its answer is no question.
    pub(super) ways: BTreeMap<Way, Askers>,
    /// Those of which nobody is left who has that port, in the order of their leaving.
    left: BTreeMap<u64, Way>,
    next: u64,
    /// The ways back of what was asked and is denied since: who is connected so has not asked for that.
    pub(super) ended: BTreeMap<Way, Instant>,
    /// Ports from which more was asked than is remembered, and when that was.
    forgotten: BTreeMap<u16, Instant>,
}

impl Asked {
    /// A socket asks no more, which had asked this way.
    fn leaves(&mut self, way: Way, cookie: u64, is_connected: bool) -> Option<(u32, Way)> {
        let askers = self.ways.get_mut(&way)?;
        if !askers.cookies.remove(&cookie) {
            return None;
        }
        // It may have sent natively until now.
        if is_connected {
            askers.at = Instant::now();
            askers.sent = true;
        }
        if !askers.cookies.is_empty() {
            return None;
        }
        if !guard!("circuits-asked-left") {
            self.ways.remove(&way);
            return None;
        }
        askers.left = Some(self.next);
        self.left.insert(self.next, way);
        self.next += 1;
        let (_, oldest) = (self.left.len() > LEFT).then(|| self.left.pop_first())??;
        self.forgets(&oldest)
    }

    /// There is no room for what was asked one way: where it went, and the way back.
    fn forgets(&mut self, way: &Way) -> Option<(u32, Way)> {
        let askers = self.removes(way)?;
        if askers.at.elapsed() < ANSWERS + UNREAD && guard!("circuits-asked-forgotten") {
            let at = self.forgotten.entry(way.local.port).or_insert(askers.at);
            *at = askers.at.max(*at);
        }
        Some((askers.to, back(way)))
    }

    /// Nothing more is known of what was asked one way.
    fn removes(&mut self, way: &Way) -> Option<Askers> {
        let askers = self.ways.remove(way)?;
        if let Some(left) = askers.left {
            self.left.remove(&left);
        }
        for cookie in &askers.cookies {
            if let Some(judged) = self.judged.get_mut(cookie) {
                judged.remove(way);
            }
        }
        Some(askers)
    }

    /// Whether what was asked from a port of late is not all remembered.
    fn has_forgotten(&self, port: u16) -> bool {
        let at = self.forgotten.get(&port);
        at.is_some_and(|at| at.elapsed() < ANSWERS + UNREAD)
    }
}

impl Datagrams {
    pub(super) fn asked_by(&self, slot: u32) -> Option<&Asked> {
        self.asked.get(&slot)
    }

    /// Who of an endpoint has asked this way.
    pub(super) fn askers(&self, slot: u32, way: &Way) -> Option<&Askers> {
        self.asked.get(&slot)?.ways.get(way)
    }

    /// When what may have been answered this way was denied.
    pub(super) fn ended_at(&self, slot: u32, way: &Way) -> Option<Instant> {
        self.asked.get(&slot)?.ended.get(way).copied()
    }

    /// An endpoint is gone, and another may have its place.
    pub(in crate::mediate) fn closes(&mut self, slot: u32) {
        self.asked.remove(&slot);
    }

    /// One is known to have sent this way, which it was noted to ask before.
    fn has_sent(&mut self, slot: u32, way: &Way) {
        let asked = self.asked.get_mut(&slot);
        if let Some(asked) = asked.and_then(|it| it.ways.get_mut(way))
            && guard!("circuits-asked-heard")
        {
            (asked.at, asked.sent) = (Instant::now(), true);
        }
    }

    /// A socket is gone, or what it asked from is not its own any more; by which way it was connected.
    pub(super) fn asks_no_more(&mut self, slot: u32, cookie: u64, connected: Option<Way>) {
        let Some(asked) = self.asked.get_mut(&slot) else {
            return;
        };
        let ways = asked.judged.remove(&cookie).into_iter().flatten();
        let mut forgotten = Vec::new();
        for (way, _) in ways.filter(|(_, it)| it.asks) {
            forgotten.extend(asked.leaves(way, cookie, connected == Some(way)));
        }
        self.are_unsure(forgotten);
    }

    /// What was asked the other way is not remembered any more, of which these may be answers.
    fn are_unsure(&mut self, forgotten: impl IntoIterator<Item = (u32, Way)>) {
        for (slot, way) in forgotten {
            let asked = self.asked.get_mut(&slot);
            if let Some(askers) = asked.and_then(|it| it.ways.get_mut(&way)) {
                askers.unsure = true;
            }
        }
    }

    /// What sockets asked that are not there is nobody's any more, also of those without a record.
    pub(super) fn asks_while_there(&mut self, live: &BTreeSet<u64>) {
        let all = self.asked.iter();
        let of = |(slot, asked): (&u32, &Asked)| {
            let dead = asked.judged.keys().filter(|it| !live.contains(it));
            dead.map(|it| (*slot, *it)).collect::<Vec<_>>()
        };
        for (slot, cookie) in all.flat_map(of).collect::<Vec<_>>() {
            self.asks_no_more(slot, cookie, None);
        }
        for asked in self.asked.values_mut() {
            let is_known = |at: &Instant| at.elapsed() < ANSWERS + UNREAD;
            asked.forgotten.retain(|_, at| is_known(at));
        }
    }

    /// What a socket asked is denied, since the last image came. What came back may have been an answer, also where that is
    /// not known: it is no question either.
    fn is_ended(&mut self, slot: u32, (to, way): (u32, Way)) {
        let back = back(&way);
        for (slot, way) in [(slot, way), (to, back)] {
            if let Some(asked) = self.asked.get_mut(&slot) {
                asked.removes(&way);
            }
        }
        let asked = self.asked.entry(to).or_default();
        asked
            .ended
            .insert(back, self.since.unwrap_or_else(Instant::now));
    }
}

impl Mediator {
    /// By the rules a socket may send this way: as a question, but for what is known to be an answer.
    pub(super) fn is_noted(
        &mut self,
        (slot, cookie): (u32, u64),
        (to, way): (u32, Way),
        sends: bool,
    ) {
        let (at, epoch) = (Instant::now(), self.datagrams.epoch);
        let answers = to != slot && self.is_answered(to, &way) && guard!("circuits-answer-asks");
        let unsure = to != slot && self.is_unsure(slot, (to, &way));
        let connected = self.table.socket(cookie).and_then(Socket::way);
        let asked = self.datagrams.asked.entry(slot).or_default();
        let others = asked.judged.len().max(1);
        let most = match guard!("circuits-asked-part") {
            true => (PART / others).clamp(1, ASKED),
            false => ASKED,
        };
        let judged = asked.judged.entry(cookie).or_default();
        // Who asked first goes on to.
        let before = judged.get(&way).is_some_and(|it| it.asks);
        let asks = !answers || before;
        judged.insert(
            way,
            Judged {
                to,
                epoch,
                at,
                asks,
            },
        );
        let mut forgotten = Vec::new();
        while judged.len() > most {
            // What it is connected to it may ask at any time, and what it asks now.
            let is_kept = |it: &Way| *it == way || Some(*it) == connected;
            let others = judged.iter().filter(|(way, _)| !is_kept(way));
            let oldest = others.min_by_key(|(_, it)| it.at).map(|(way, _)| *way);
            let Some(oldest) = oldest else {
                break;
            };
            judged.remove(&oldest);
            forgotten.push(oldest);
        }
        forgotten.retain(|way| {
            let askers = asked.ways.get_mut(way);
            askers.is_some_and(|it| it.cookies.remove(&cookie) && it.cookies.is_empty())
        });
        let forgotten: Vec<_> = forgotten
            .iter()
            .filter_map(|it| asked.forgets(it))
            .collect();
        if asks {
            let askers = asked.ways.entry(way).or_insert_with(|| Askers {
                to,
                at,
                cookies: BTreeSet::new(),
                sent: false,
                unsure: false,
                left: None,
            });
            (askers.to, askers.at) = (to, at);
            askers.cookies.insert(cookie);
            askers.sent |= sends;
            askers.unsure |= unsure && !before;
            if let Some(left) = askers.left.take() {
                asked.left.remove(&left);
            }
            asked.ended.remove(&way);
        }
        self.datagrams.are_unsure(forgotten);
    }

    /// Whether one that this goes to is known to have asked for it, and may be gone.
    fn is_answered(&self, to: u32, way: &Way) -> bool {
        let asked = self.datagrams.askers(to, &back(way));
        asked.is_some_and(|it| it.sent && it.at.elapsed() < ANSWERS + UNREAD)
    }

    /// Whether what is sent this way may answer what was asked and is not remembered: by who has asked too many, or before
    /// this operator.
    fn is_unsure(&self, slot: u32, (to, way): (u32, &Way)) -> bool {
        let follows = self.datagrams.follows;
        let forgotten = follows.is_some_and(|it| it.elapsed() < ANSWERS)
            || self.has_forgotten(to, way.remote.port);
        let might_ask = || self.judged_by(to, &back(way), false);
        forgotten
            && might_ask().is_ok_and(|(it, _)| it.slot == slot)
            && guard!("circuits-asked-unsure")
    }

    fn has_forgotten(&self, slot: u32, port: u16) -> bool {
        let asked = self.datagrams.asked.get(&slot);
        asked.is_some_and(|it| it.has_forgotten(port))
    }

    /// Whether what an endpoint may send this way may be an answer to what was denied a short while ago, and waited
    /// unread: that makes nobody's answer of what is denied.
    pub(super) fn is_of_what_ended(&self, slot: u32, (to, way): (u32, &Way)) -> bool {
        let ended = self.datagrams.ended_at(slot, way);
        if ended.is_some_and(|it| it.elapsed() < UNREAD) && guard!("circuits-ended-unread") {
            return true;
        }
        // Nor is it known whether it was asked.
        let changed = self.datagrams.since.is_some_and(|it| it.elapsed() < UNREAD);
        changed
            && self.has_forgotten(to, way.remote.port)
            && self.is_denied(to, &back(way))
            && guard!("circuits-ended-forgotten")
    }

    /// Whether an endpoint may not ask this way.
    fn is_denied(&self, slot: u32, way: &Way) -> bool {
        let judged = self.judged_by(slot, way, false);
        judged.is_err_and(|it| it.errno == Errno::ACCESS)
    }

    /// Who is connected may ask, natively, and it is known that it may from when its rule comes.
    pub(in crate::mediate) fn is_connected_to_ask(&mut self, socket: &Socket, to: u32, way: &Way) {
        let (slot, cookie) = (socket.endpoint(), socket.cookie());
        self.judges_asked(slot, (to, way));
        let judged = self.datagrams.asked_by(slot);
        let judged = judged.and_then(|it| it.judged.get(&cookie));
        let is_noted = judged.is_some_and(|all| all.contains_key(way));
        let is_ended = self.datagrams.ended_at(slot, way).is_some();
        if !is_noted && !is_ended && guard!("circuits-connected-asks") {
            self.is_noted((slot, cookie), (to, *way), false);
        }
    }

    /// Another image rules: what was asked is judged anew, by the rules alone, where it would be answered. Nothing is asked
    /// of it here, for it may be much, and of whoever likes.
    pub(in crate::mediate) fn asks_anew(&mut self) {
        self.datagrams.since = self.datagrams.is_ruled.then(Instant::now);
        self.datagrams.is_ruled = true;
        let table = &self.table;
        for (slot, of) in &mut self.datagrams.asked {
            let ended = &mut of.ended;
            ended.retain(|way, at| at.elapsed() < UNREAD || table.is_connected(*slot, way));
        }
    }

    /// An endpoint may send this way. If the other asked for that, or may have, and is denied since, it did not, nor is what
    /// goes this way a question.
    pub(super) fn judges_asked(&mut self, slot: u32, (to, way): (u32, &Way)) {
        let back = back(way);
        let asked = self.datagrams.askers(to, &back).is_some();
        let might = || self.datagrams.askers(slot, way).is_some_and(|it| it.unsure);
        if to != slot
            && (asked || might())
            && self.is_denied(to, &back)
            && guard!("circuits-asked-anew")
        {
            self.datagrams.is_ended(to, (slot, back));
        }
    }

    /// What is asked so that an endpoint may answer this way, by which it may not ask. If it did, or may have, it was denied
    /// since: what came back is no question.
    pub(super) fn is_asked(&self, slot: u32, (to, way): (u32, &Way)) -> Option<&Askers> {
        let asked = self.datagrams.askers(to, &back(way));
        let asked = asked.filter(|it| it.at.elapsed() < ANSWERS);
        asked.filter(|_| !self.was_denied(slot, (to, way)))
    }

    /// Whether an endpoint, which may not ask this way, did before, or may have.
    pub(super) fn was_denied(&self, slot: u32, (to, way): (u32, &Way)) -> bool {
        let asked = self.datagrams.askers(slot, way).is_some();
        let might = || self.datagrams.askers(to, &back(way));
        (asked || might().is_some_and(|it| it.unsure)) && guard!("circuits-asked-denied")
    }

    /// What was sent natively is seen where it is received by a call, and there alone.
    pub(in crate::mediate) fn hears_askers(&mut self) {
        let taken = self.datagrams.taken.iter();
        let sent = taken.filter_map(|(cookie, taken)| {
            let by = self.table.by_name(&taken.name?)?;
            let (way, receiver) = (by.way()?, self.table.socket(*cookie)?);
            let is_there = way.remote.port == receiver.local().port
                && self.located(by.endpoint(), &way) == Ok(receiver.endpoint());
            is_there.then(|| (by.endpoint(), way))
        });
        for (slot, way) in sent.collect::<Vec<_>>() {
            self.datagrams.has_sent(slot, &way);
        }
    }
}
