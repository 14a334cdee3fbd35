//! What was asked, which may be answered: by whom first, and what comes of it with another image.

use super::*;

impl Datagrams {
    /// One is known to have sent this way, which it was noted to ask before.
    fn has_sent(&mut self, slot: u32, way: &Way) {
        if let Some(asked) = self.asked.get_mut(&(slot, *way))
            && guard!("circuits-asked-heard")
        {
            (asked.at, asked.sent) = (Instant::now(), true);
        }
    }

    /// A socket asks this way, and has sent; or is connected.
    pub(super) fn asks(
        &mut self,
        (slot, cookie): (u32, u64),
        way: Way,
        (at, sent): (Instant, bool),
    ) {
        let askers = self.asked.entry((slot, way)).or_insert_with(|| Askers {
            at,
            cookies: BTreeSet::new(),
            sent: false,
        });
        askers.at = at;
        askers.cookies.insert(cookie);
        askers.sent |= sent;
        self.ended.remove(&(slot, way));
    }

    /// What a socket asked is denied. What came back may have been an answer, also where that is not known: it is no
    /// question either.
    fn is_ended(&mut self, (slot, cookie): (u32, u64), (to, way): (u32, Way)) {
        let back = back(&way);
        unasked(&mut self.asked, (slot, way), cookie);
        let answered = self.asked.remove(&(to, back)).map(|it| it.cookies);
        for (cookie, way) in answered
            .into_iter()
            .flatten()
            .map(|it| (it, back))
            .chain([(cookie, way)])
        {
            if let Some(judged) = self.judged.get_mut(&cookie) {
                judged.remove(&way);
            }
        }
        self.ended.insert((to, back), Instant::now());
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
        let judged = self.datagrams.judged.entry(cookie).or_default();
        // Who asked first goes on to.
        let before = judged.get(&way).filter(|it| it.asks);
        let asks = !answers || before.is_some();
        let unsure = before.map_or(unsure, |it| it.unsure);
        judged.insert(
            way,
            Judged {
                to,
                epoch,
                at,
                asks,
                unsure,
            },
        );
        // What it is connected to it may ask at any time.
        let others = judged.iter().filter(|(way, _)| Some(**way) != connected);
        let oldest = others.min_by_key(|(_, it)| it.at).map(|(way, _)| *way);
        if judged.len() > ASKED
            && let Some(oldest) = oldest
        {
            if judged.remove(&oldest).is_some_and(|it| it.asks) {
                self.datagrams.full.insert(cookie);
            }
            unasked(&mut self.datagrams.asked, (slot, oldest), cookie);
        }
        if asks {
            self.datagrams.asks((slot, cookie), way, (at, sends));
        }
    }

    /// Whether one that this goes to is known to have asked for it, and may be gone.
    fn is_answered(&self, to: u32, way: &Way) -> bool {
        let back = back(way);
        let asked = self.datagrams.asked.get(&(to, back)).filter(|it| it.sent);
        let mut gone = self.datagrams.gone.at(to, back.local.port);
        asked.is_some_and(|it| it.at.elapsed() < ANSWERS)
            || gone.any(|it| self.datagrams.has_asked(it, &back))
    }

    /// Whether what is sent this way may answer what was asked and is not remembered: by who has asked too many, or before
    /// this operator.
    fn is_unsure(&self, slot: u32, (to, way): (u32, &Way)) -> bool {
        let port = way.remote.port;
        let gone = self.datagrams.gone.at(to, port);
        let mut all = self.table.datagrams_at(to, port).chain(gone);
        let follows = self.datagrams.follows;
        let forgotten = follows.is_some_and(|it| it.elapsed() < ANSWERS)
            || all.any(|it| self.datagrams.full.contains(&it.cookie()));
        let might_ask = || self.judged_by(to, &back(way), false);
        forgotten
            && might_ask().is_ok_and(|(it, _)| it.slot == slot)
            && guard!("circuits-asked-unsure")
    }

    /// Who is connected may ask, natively, and it is known that it may from when its rule comes.
    pub(in crate::mediate) fn is_connected_to_ask(&mut self, socket: &Socket, to: u32, way: &Way) {
        let (slot, cookie) = (socket.endpoint(), socket.cookie());
        let judged = self.datagrams.judged.get(&cookie);
        let is_noted = judged.is_some_and(|all| all.contains_key(way));
        let is_ended = self.datagrams.ended.contains_key(&(slot, *way));
        if !is_noted && !is_ended && guard!("circuits-connected-asks") {
            self.is_noted((slot, cookie), (to, *way), false);
        }
    }

    /// By another image what was asked is judged anew, by the rules alone: what is denied was not asked, nor is what came
    /// back a question.
    pub(in crate::mediate) fn asks_anew(&mut self) {
        let table = &self.table;
        let gone = self.datagrams.gone.all();
        let all = table.all().chain(gone);
        let slots: BTreeMap<u64, u32> = all.map(|it| (it.cookie(), it.endpoint())).collect();
        let mut asked = Vec::new();
        for (cookie, ways) in &mut self.datagrams.judged {
            // What was an answer is one still, if that which it answers was asked.
            ways.retain(|_, it| it.asks);
            let Some(slot) = slots.get(cookie) else {
                continue;
            };
            for (way, it) in ways {
                asked.push(((*slot, *cookie), (it.to, *way)));
                // As if the other had asked.
                if it.unsure {
                    asked.push(((it.to, 0), (*slot, back(way))));
                }
            }
        }
        asked.retain(|((slot, _), (_, way))| {
            self.beats();
            let judged = self.judged_by(*slot, way, false);
            judged.is_err_and(|it| it.errno == Errno::ACCESS) && guard!("circuits-asked-anew")
        });
        for (of, way) in asked {
            self.datagrams.is_ended(of, way);
        }
        let table = &self.table;
        let is_connected = |(slot, way): &(u32, Way)| table.is_connected(*slot, way);
        let ended = &mut self.datagrams.ended;
        ended.retain(|of, at| at.elapsed() < UNREAD || is_connected(of));
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
