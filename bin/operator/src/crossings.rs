//! Connections with other tenants, by agreements: the operators of the other sides, what they were
//! asked, and what they ask. What an operator says is an allegation, of its own tenant's
//! connections alone: which agreement it is of is known from the link that it comes by.
//!
//! What is begun here comes to the other side through a *door*: a listening socket in the network
//! namespace of this side's circuits, of which this side knows the name, and the other has the
//! descriptor. So each side makes its own end, and nothing is passed from one to the other but
//! what they say. What is at a door outlives who it goes to, and who begins it.

mod shares;

use crate::live;
use crate::sockets::{self, Made};
use command::Message;
use command::verbs::{Cross, Crossed, HasMemory, Uncross};
use guard::guard;
use rustix::io::Errno;
use seqpacket::Socket;
use shares::Shares;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// What is under way to the other side of an agreement at most, so that no answer finds its link
/// full; what comes beyond waits here.
const UNDER_WAY: usize = 64;
/// What there is no room to say is kept up to so many words: more than anybody asks at a time.
const UNSAID: usize = 4096;
/// So many are kept that wait for room, of one agreement.
const WAITING: usize = 256;
/// Who asks waits so long for an operator that is being replaced, or that does not answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// And so long for room, as a connect by TCP tries; where none can be told that one waits, it is
/// asked again after a while.
pub const CONNECT: Duration = Duration::from_secs(127);
const AGAIN: Duration = Duration::from_secs(1);
/// Places that the other side's circuits were in, one after another, and sockets may live on in.
const WITNESSES: usize = 4;
/// What time brings about is looked at so often at most.
const TICK: Duration = Duration::from_millis(200);
/// Connections that came by one agreement and wait to be accepted, with the places that are kept
/// for who is not there yet; and those of a compartment: each is a descriptor of this process.
const OF_ONE: usize = 512;
const HELD: usize = 1024;
/// A place is kept so long for who does not come: longer than one operator follows another.
const KEPT: Duration = Duration::from_secs(5);

/// What is looked at for what comes: what the other side says, until its operator is gone, and
/// who comes through the door.
pub type Watched = (Option<Socket>, Option<OwnedFd>);

/// Who and what is on the other side of an agreement.
#[derive(Default)]
struct Link {
    /// None: its operator is gone, or not there yet.
    socket: Option<Socket>,
    door: [u8; 16],
    inlet: Option<OwnedFd>,
    /// What there was no room to say.
    unsaid: VecDeque<Message>,
    /// Since when it has no operator.
    down: Option<Instant>,
}

/// A connect that the other side was asked for.
pub struct Crossing {
    /// The agreement, by its tag here.
    pub tag: u16,
    /// What was asked.
    pub body: Cross,
    /// The meter's end, where the meter carries it.
    pub far: Option<Made>,
    begun: Instant,
    stage: Stage,
    outcome: Option<Outcome>,
}

/// How far the other side is with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is asked from then on, when there is room for one more that is under way.
    Later(Instant),
    /// Asked, and not heard of yet.
    UnderWay(Instant),
    /// It waits there for room at a listening socket.
    Waits,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is to go through the door.
    May,
    /// It may not; whether somebody there may be reached by packets.
    Refused(Errno, bool),
}

/// A place at a listening socket that is kept for who is to come.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The listening socket's cookie.
    at: u64,
    since: Instant,
}

/// What the other side of an agreement says.
pub enum Said {
    /// What is heard with it, or is none of this release.
    Nothing,
    /// It asks for one.
    Cross(Cross),
    /// And does no more.
    Uncross(u64),
    /// Its program has a circuit's memory.
    Shares(HasMemory),
}

/// All of a compartment.
#[derive(Default)]
pub struct Crossings {
    links: BTreeMap<u16, Link>,
    /// What tells of each agreement's other side which sockets live: as long as any may.
    /// Another where its circuits were made anew meanwhile.
    witnesses: BTreeMap<u16, Vec<(u64, OwnedFd)>>,
    /// How many places there were: each has the number it came by.
    places_seen: u64,
    /// By the cookies of the programs' sockets.
    asked: BTreeMap<u64, Crossing>,
    /// By agreement and what the other side calls it.
    places: BTreeMap<(u16, u64), Place>,
    /// What both sides' programs have in common.
    pub memory: Shares,
    /// Those of the other sides that wait for room, with whom they wait for.
    waiting: VecDeque<(u16, Cross, u64, Instant)>,
    /// When it was last looked at what time brings about.
    ticked: Option<Instant>,
    /// Connects that were asked for.
    attempts: u32,
    /// By tag: see [`Crossings::next_asked`].
    next_asked: BTreeMap<u16, usize>,
}

impl Crossings {
    /// The other side of an agreement, another than before: it is asked again for what it was
    /// asked. What it asked before it asks again. What was looked at is not any more.
    pub fn link(
        &mut self,
        tag: u16,
        socket: Socket,
        door: [u8; 16],
        [inlet, witness]: [OwnedFd; 2],
    ) -> Option<Watched> {
        let link = Link {
            socket: Some(socket),
            door,
            inlet: Some(inlet),
            unsaid: VecDeque::new(),
            down: None,
        };
        let before = self.links.insert(tag, link);
        let witnesses = self.witnesses.entry(tag).or_default();
        // Behind the same door is the same place.
        let is_same = before.as_ref().is_some_and(|before| before.door == door);
        let same = is_same.then(|| witnesses.pop()).flatten();
        let place = same.map_or_else(
            || {
                self.places_seen += 1;
                self.places_seen
            },
            |(place, _)| place,
        );
        witnesses.push((place, witness));
        if witnesses.len() > WITNESSES {
            witnesses.remove(0);
        }
        self.waiting.retain(|(of, ..)| *of != tag);
        for crossing in self.asked.values_mut().filter(|it| it.tag == tag) {
            // Who said it has its places no more.
            crossing.outcome = None;
            crossing.stage = Stage::Later(crossing.begun);
        }
        self.tells(tag);
        before.map(|link| (link.socket, link.inlet))
    }

    /// The other side of an agreement has circuits, and no operator at this moment.
    pub fn awaits(&mut self, tag: u16) {
        let link = self.links.entry(tag).or_default();
        if link.socket.is_none() {
            link.down.get_or_insert_with(Instant::now);
        }
    }

    /// An agreement is over, or its other side has no circuits any more: who asked is told.
    pub fn unlink(&mut self, tag: u16) -> Option<Watched> {
        let link = self.links.remove(&tag)?;
        self.waiting.retain(|(of, ..)| *of != tag);
        self.nobody_answers(tag);
        Some((link.socket, link.inlet))
    }

    fn nobody_answers(&mut self, tag: u16) {
        let of = self.asked.values_mut().filter(|it| it.tag == tag);
        for crossing in of {
            crossing
                .outcome
                .get_or_insert(Outcome::Refused(Errno::HOSTUNREACH, true));
        }
    }

    /// The name of the door through which connections by an agreement go.
    pub fn door(&self, tag: u16) -> Option<[u8; 16]> {
        self.links.get(&tag).map(|link| link.door)
    }

    /// Whether an agreement's other side has circuits.
    pub fn leads(&self, tag: u16) -> bool {
        self.links.contains_key(&tag)
    }

    /// Its operator is gone, until the next: its link, of which nothing more comes.
    pub fn is_down(&mut self, tag: u16) -> Option<Socket> {
        let link = self.links.get_mut(&tag)?;
        link.down.get_or_insert_with(Instant::now);
        link.socket.take()
    }

    /// The next thing that the other side of an agreement says. `Err`: it is gone.
    pub fn hear(&mut self, tag: u16) -> Result<Option<Said>, ()> {
        let Some(link) = self.links.get(&tag) else {
            return Ok(None);
        };
        let Some(socket) = &link.socket else {
            return Ok(None);
        };
        let Some((message, _)) = socket.recv().map_err(drop)? else {
            return Ok(None);
        };
        if let Some(body) = message.body::<HasMemory>() {
            return Ok(Some(Said::Shares(body)));
        }
        if let Some(body) = message.body::<Crossed>() {
            // A word of another agreement's side is none of this one.
            let asked = self.asked.values_mut();
            let mut of = asked.filter(|it| it.tag == tag && !matches!(it.stage, Stage::Later(_)));
            let is_it =
                |it: &&mut Crossing| (it.body.id, it.body.attempt) == (body.id, body.attempt);
            if let Some(crossing) = of.find(is_it) {
                crossing.is_answered(&body);
            }
            self.tells(tag);
            return Ok(Some(Said::Nothing));
        }
        let over = message.body::<Uncross>();
        let asks = message.body::<Cross>().map(Said::Cross);
        let over = over.map_or(Said::Nothing, |body| Said::Uncross(body.id));
        Ok(Some(asks.unwrap_or(over)))
    }

    /// Whether a socket's connect is asked for.
    pub fn is_asked(&self, cookie: u64) -> bool {
        self.asked.contains_key(&cookie)
    }

    /// Whether it is known what came of it.
    pub fn is_over(&self, cookie: u64) -> bool {
        let asked = self.asked.get(&cookie);
        asked.is_none_or(|it| it.outcome.is_some())
    }

    /// Whether it may come.
    pub fn may(&self, cookie: u64) -> bool {
        let asked = self.asked.get(&cookie);
        asked.is_some_and(|it| it.outcome == Some(Outcome::May))
    }

    /// Whether a socket's connect is asked for to this address and port.
    pub fn is_to(&self, cookie: u64, (ip, port): ([u8; 16], u16)) -> bool {
        let asked = self.asked.get(&cookie).map(|it| &it.body);
        asked.is_some_and(|body| (body.to, body.to_port) == (ip, port.into()))
    }

    /// Whether what is asked for is to go by the meter.
    pub fn is_metered(&self, cookie: u64) -> bool {
        self.asked.get(&cookie).is_some_and(|it| it.far.is_some())
    }

    /// Nobody asks for it any more.
    pub fn asks_no_more(&mut self, cookie: u64) {
        if let Some(crossing) = self.asked.remove(&cookie) {
            self.is_no_more(&crossing);
        }
    }

    fn is_no_more(&mut self, crossing: &Crossing) {
        let id = crossing.body.id;
        // Who was never told knows nothing of it.
        if !matches!(crossing.stage, Stage::Later(_)) {
            self.say(crossing.tag, &Uncross { id });
        }
    }

    /// Asks for a connect of a program's socket.
    pub fn ask(&mut self, cookie: u64, tag: u16, mut body: Cross, far: Option<Made>) {
        self.attempts = self.attempts.wrapping_add(1);
        body.attempt = self.attempts;
        let crossing = Crossing {
            tag,
            body,
            far,
            begun: Instant::now(),
            stage: Stage::Later(Instant::now()),
            outcome: None,
        };
        self.asked.insert(cookie, crossing);
        self.tells(tag);
    }

    /// Tells an agreement's other side what was asked, as much as may be under way.
    fn tells(&mut self, tag: u16) {
        let Some(link) = self.links.get_mut(&tag) else {
            return;
        };
        // What is said of a socket comes in the order in which it was said.
        link.says();
        let Some(socket) = link.socket.as_ref().filter(|_| link.unsaid.is_empty()) else {
            return;
        };
        let of = self.asked.values();
        let under_way = |it: &&Crossing| it.tag == tag && matches!(it.stage, Stage::UnderWay(_));
        let under_way = of.filter(under_way).count();
        let room = UNDER_WAY.saturating_sub(under_way);
        if room == 0 {
            return;
        }
        let now = Instant::now();
        let is_next = |it: &&mut Crossing| {
            let is_due = matches!(it.stage, Stage::Later(due) if due <= now);
            it.tag == tag && is_due && it.outcome.is_none()
        };
        let mut next: Vec<_> = self.asked.values_mut().filter(is_next).collect();
        // Who has waited longest first.
        next.sort_unstable_by_key(|it| it.begun);
        for crossing in next.into_iter().take(room) {
            // Where it is gone, that is heard next.
            if socket.send(&Message::new(0, &crossing.body), &[]).is_err() {
                return;
            }
            crossing.stage = Stage::UnderWay(now);
        }
    }

    /// What came of a connect; it is forgotten. `None`: nothing yet.
    pub fn joined(&mut self, cookie: u64) -> Option<(Crossing, Outcome)> {
        let outcome = self.asked.get(&cookie)?.outcome?;
        let crossing = self.asked.remove(&cookie)?;
        Some((crossing, outcome))
    }

    /// Tells the other side of an agreement that who asks waits there.
    pub fn has_it_wait(&mut self, tag: u16, asked: &Cross) {
        self.answer(tag, asked, Err((WAITS, false)));
    }

    /// Answers the other side of an agreement.
    pub fn answer(&mut self, tag: u16, asked: &Cross, outcome: Result<(), (Errno, bool)>) {
        let (errno, packets) = match outcome {
            Ok(()) => (0, false),
            Err((errno, packets)) => (errno.raw_os_error().unsigned_abs(), packets),
        };
        let body = Crossed {
            id: asked.id,
            attempt: asked.attempt,
            errno,
            packets: u32::from(packets),
            reserved: 0,
        };
        self.say(tag, &body);
    }

    /// Says something now, or when there is room. Who does not listen misses what is beyond that.
    fn say<B: command::Body>(&mut self, tag: u16, body: &B) {
        if let Some(link) = self.links.get_mut(&tag).filter(|it| it.socket.is_some()) {
            if link.unsaid.len() < UNSAID {
                link.unsaid.push_back(Message::new(0, body));
            }
            link.says();
        }
    }

    /// The program here has a circuit's memory: the other side is told.
    pub fn shares(&mut self, tag: u16, body: &HasMemory) {
        self.say(tag, body);
    }

    /// A place is kept for who is to come by an agreement.
    pub fn keep(&mut self, tag: u16, id: u64, at: u64) {
        let since = Instant::now();
        self.places.insert((tag, id), Place { at, since });
    }

    /// Whether one more may be kept for a listening socket, where so many have come to it by this
    /// agreement, by the agreement, and by all, and are not accepted. Of what an agreement may have one
    /// listener has as much as there is room for others, of what all may have one agreement.
    pub fn has_places(&self, tag: u16, at: u64, come: [usize; 3]) -> bool {
        let of_one = || self.places.range((tag, 0)..=(tag, u64::MAX));
        let here = of_one().filter(|(_, place)| place.at == at).count() + come[0];
        let of_all = self.places.len() + come[2];
        let of_one = of_one().count() + come[1];
        let has = of_one + here < OF_ONE && of_all + of_one < HELD;
        has || !guard!("across-places")
    }

    /// Whether this one is expected.
    pub fn has_place(&self, tag: u16, id: u64) -> bool {
        self.places.contains_key(&(tag, id))
    }

    /// Nobody needs a place any more: the listening socket at which it was.
    pub fn leave(&mut self, tag: u16, id: u64) -> Option<u64> {
        self.places.remove(&(tag, id)).map(|place| place.at)
    }

    /// Places that were kept too long for who did not come: tag, number, listening socket.
    pub fn overdue(&mut self) -> Vec<(u16, u64, u64)> {
        let over = |place: &Place| place.since.elapsed() >= KEPT && guard!("across-kept");
        let gone = self.places.extract_if(.., |_, place| over(place));
        gone.map(|((tag, id), place)| (tag, id, place.at)).collect()
    }

    /// Who asks waits for room at this listening socket; whether there is room to wait.
    pub fn wait(&mut self, tag: u16, body: Cross, at: u64) -> bool {
        let of = self.waiting.iter().filter(|(of, ..)| *of == tag);
        let has_room = of.count() < WAITING || !guard!("across-waiting");
        if has_room {
            self.waiting.push_back((tag, body, at, Instant::now()));
        }
        has_room
    }

    /// The listening sockets that somebody waits for.
    pub fn awaited(&self) -> impl Iterator<Item = (u16, u64)> {
        self.waiting.iter().map(|(tag, _, at, _)| (*tag, *at))
    }

    /// Whether somebody waits for this one.
    pub fn is_awaited(&self, at: u64) -> bool {
        self.awaited().any(|(_, it)| it == at)
    }

    /// The first who waits by an agreement for a listening socket of which that is said; it waits
    /// no more. Since when it did.
    pub fn next_waiting(
        &mut self,
        is_ready: impl Fn((u16, u64)) -> bool,
    ) -> Option<(u16, Cross, Instant)> {
        let mut all = self.waiting.iter();
        let at = all.position(|(tag, _, at, _)| is_ready((*tag, *at)))?;
        let next = self.waiting.remove(at);
        next.map(|(tag, body, _, since)| (tag, body, since))
    }

    /// It waits on, as it did since then, before those that came later.
    pub fn waits_on(&mut self, (tag, body, since): (u16, Cross, Instant), at: u64) {
        self.waiting.push_front((tag, body, at, since));
    }

    /// Whether this one waits, or did: it does no more.
    pub fn stops_waiting(&mut self, tag: u16, id: u64) {
        self.waiting
            .retain(|(of, body, ..)| (*of, body.id) != (tag, id));
    }

    /// The next that came through an agreement's door, which is `taken` next. `None`: nobody did.
    pub fn comes(&self, tag: u16, taken: impl FnOnce()) -> Result<Option<OwnedFd>, Errno> {
        match self.links.get(&tag).and_then(|link| link.inlet.as_ref()) {
            Some(inlet) => sockets::accepts(inlet, true, taken),
            None => Ok(None),
        }
    }

    /// Those of these sockets that came by an agreement, by inode and cookie, that live: inodes by
    /// cookies. Of whom nobody tells any more, or not yet, it is taken that all do.
    pub fn living(&self, tag: u16, asked: &[(u32, u64)]) -> BTreeMap<u64, u64> {
        let witnesses = self.witnesses.get(&tag).filter(|_| guard!("across-living"));
        let told = witnesses.and_then(|all| {
            let told = all.iter().map(|(_, witness)| live::those(witness, asked));
            let told: Result<Vec<_>, _> = told.collect();
            Some(told.ok()?.into_iter().flatten().collect())
        });
        told.unwrap_or_else(|| asked.iter().map(|(a, b)| (*b, u64::from(*a))).collect())
    }

    /// The place that a socket which lives was made in.
    pub fn place(&self, tag: u16, asked: (u32, u64)) -> Option<u64> {
        let mut all = self.witnesses.get(&tag)?.iter().rev();
        let lives = |witness| live::those(witness, &[asked]).is_ok_and(|it| !it.is_empty());
        let found = all.find(|(_, witness)| lives(witness));
        found.map(|(place, _)| *place)
    }

    /// The same as [`Crossings::living`] of one place: `None` where nobody tells of that any more, which is not to say that they
    /// are closed.
    pub fn told_of(
        &self,
        (tag, place): (u16, u64),
        asked: &[(u32, u64)],
    ) -> Option<Result<BTreeMap<u64, u64>, Errno>> {
        let mut all = self.witnesses.get(&tag)?.iter();
        let (_, witness) = all.find(|(it, _)| *it == place)?;
        Some(live::those(witness, asked))
    }

    /// Where to begin to ask about those of an agreement, so that each has its turn.
    pub fn next_asked(&self, tag: u16) -> usize {
        self.next_asked.get(&tag).copied().unwrap_or(0)
    }

    /// Those before this were asked about.
    pub fn asked_up_to(&mut self, tag: u16, next: usize) {
        self.next_asked.insert(tag, next);
    }

    /// Whether time alone brings something about.
    pub fn is_timed(&self) -> bool {
        let is_late = self.links.values().any(|link| link.down.is_some());
        let has_words = || self.links.values().any(|link| !link.unsaid.is_empty());
        let waits = self.has_waiting() || self.memory.is_awaited() || has_words();
        !self.places.is_empty() || is_late || waits
    }

    /// Whether it is time to look at that again: who calls often does not have it looked at more.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.ticked.is_none_or(|at| at.elapsed() >= TICK);
        if is_due {
            self.ticked = Some(Instant::now());
        }
        is_due
    }

    /// Whether anybody waits, here or there, whose socket, or that which it waits at, may have
    /// come to its end: of that nobody tells.
    pub fn has_waiting(&self) -> bool {
        !self.asked.is_empty() || !self.waiting.is_empty()
    }

    /// Who waits for an operator that does not come or answer is told, and who waits too long for
    /// room or for memory.
    pub fn tick(&mut self) {
        self.memory.tick();
        let late = |link: &Link| link.down.is_some_and(|since| since.elapsed() >= PATIENCE);
        let late = self.links.iter().filter(|(_, link)| late(link));
        let late: Vec<u16> = late.map(|(tag, _)| *tag).collect();
        for tag in late {
            self.nobody_answers(tag);
        }
        let mut over = Vec::new();
        for crossing in self.asked.values_mut().filter(|it| it.outcome.is_none()) {
            let is_over = match crossing.stage {
                Stage::UnderWay(since) => since.elapsed() >= PATIENCE,
                // Who must not wait does so for nobody else either.
                Stage::Later(_) if crossing.body.waits == 0 => crossing.begun.elapsed() >= PATIENCE,
                _ => crossing.begun.elapsed() >= CONNECT,
            };
            if is_over && guard!("across-answers") {
                crossing.outcome = Some(Outcome::Refused(Errno::TIMEDOUT, false));
                if !matches!(crossing.stage, Stage::Later(_)) {
                    over.push((crossing.tag, crossing.body.id));
                }
                crossing.stage = Stage::Waits;
            }
        }
        for (tag, id) in over {
            self.say(tag, &Uncross { id });
        }
        // Who asked waits no longer, whatever it says.
        self.waiting
            .retain(|(.., since)| since.elapsed() < 2 * CONNECT);
        self.links.values_mut().for_each(Link::says);
        let tags: BTreeSet<u16> = self.asked.values().map(|it| it.tag).collect();
        tags.into_iter().for_each(|tag| self.tells(tag));
    }

    /// Nobody waits any more for a connect whose socket does not live.
    pub fn retain(&mut self, lives: impl Fn(u64) -> bool, tags: &BTreeSet<u16>) {
        let links = &self.links;
        let is_used = |tag: &u16| links.contains_key(tag) || tags.contains(tag);
        self.witnesses.retain(|tag, _| is_used(tag));
        self.next_asked.retain(|tag, _| is_used(tag));
        self.memory.retain(&lives);
        let gone = self.asked.extract_if(.., |cookie, _| !lives(*cookie));
        let gone: Vec<Crossing> = gone.map(|(_, crossing)| crossing).collect();
        for crossing in gone {
            self.is_no_more(&crossing);
            self.tells(crossing.tag);
        }
    }
}

impl Link {
    fn says(&mut self) {
        let Some(socket) = &self.socket else {
            return;
        };
        while let Some(message) = self.unsaid.front()
            && socket.send(message, &[]).is_ok()
        {
            self.unsaid.pop_front();
        }
    }
}

impl Crossing {
    fn is_answered(&mut self, body: &Crossed) {
        let errno = body.errno;
        let is = |known: Errno| known.raw_os_error().unsigned_abs() == errno;
        if is(WAITS) && self.body.waits != 0 {
            self.stage = Stage::Waits;
        } else if is(Errno::AGAIN) && self.body.waits != 0 {
            self.stage = Stage::Later(Instant::now() + AGAIN);
        } else {
            self.stage = Stage::Waits;
            self.outcome = Some(match errno {
                0 => Outcome::May,
                errno => Outcome::Refused(refusal(errno), body.packets != 0),
            });
        }
    }
}

/// What the other side says of who waits there: no outcome.
const WAITS: Errno = Errno::INPROGRESS;

/// Why the other side refuses, of what it can say: a program takes what it is told for its own
/// kernel's word.
fn refusal(errno: u32) -> Errno {
    const KNOWN: [Errno; 7] = [
        Errno::ACCESS,
        Errno::AGAIN,
        Errno::CONNREFUSED,
        Errno::ADDRNOTAVAIL,
        Errno::NETDOWN,
        Errno::INVAL,
        Errno::NOBUFS,
    ];
    let is_it = |known: &Errno| known.raw_os_error().unsigned_abs() == errno;
    KNOWN.into_iter().find(is_it).unwrap_or(Errno::HOSTUNREACH)
}

#[cfg(test)]
mod tests;
