//! A switch with several workers: threads, each with a loop like the only worker's of any
//! other, and this, which speaks with the supervisor for them. Each message goes to whom it
//! concerns, and their answers become one. No frame ever comes by here.

use crate::accounts::Ledger;
use crate::attached::counters_of;
use crate::listing::{self, Listed};
use crate::peers::{self, Inbox, Peers};
use crate::readiness::{CONTROL, Readiness};
use crate::telling::Telling;
use crate::worker::Worker;
use command::Message;
use command::message::Body;
use command::verbs::{
    AddPort, Attach, Capture, Done, ListFlows, Quit, RemovePort, Running, TRACE_END, Trace,
    UseImage,
};
use seqpacket::{Error, Fds, Socket};
use shm::{CountersPage, Geometry, Words};
use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use switch::{Slot, Workers};
use telemetry::counters::{MOST_WORKERS, ProcessWord};
use worker::Outbox;

/// How long one of the workers may leave a message where it is: one that is stuck is killed
/// before.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a worker is given when it starts.
pub struct Member {
    pub peers: Peers,
    pub inbox: Inbox,
    pub desk: Desk,
}

/// What it has with the others beside frames.
pub struct Desk {
    pub workers: Workers,
    /// Of the rates that they keep together.
    pub accounts: Arc<Ledger>,
    /// Each worker's end of the socket that the supervisor's word comes by.
    posts: Arc<Vec<Socket>>,
    /// Listings of connections go back this way.
    pub listed: mpsc::Sender<Listed>,
    /// What comes with the request for a capture.
    pub lent: Receiver<Lent>,
    /// All begin when all have mapped their pages.
    begin: Arc<Barrier>,
}

impl Desk {
    /// Waits until all others have come here too.
    pub fn meet(&self) {
        self.begin.wait();
    }

    /// Gives a message to the worker that it is for after all.
    pub fn pass_on(&self, worker: u32, message: &Message, fds: &[BorrowedFd<'_>]) {
        if let Some(post) = self.posts.get(worker as usize) {
            let _ = post.send(message, fds);
        }
    }
}

/// The rings of a capture between workers: all but the first mirror into one, and the first
/// puts what comes out into the capture's own channel.
pub enum Lent {
    Mirror(shm::Sender),
    Mirrors(Vec<shm::Receiver>),
}

/// An image that not all have answered for.
struct Asked {
    seq: u32,
    epoch: u64,
    /// One bit for each that has answered.
    answered: u32,
    refused: Option<u32>,
    ran: bool,
}

/// A listing of connections that not all have made.
struct Merging {
    number: u32,
    page: Words,
    most: usize,
    parts: Vec<Listed>,
}

/// The one who speaks for all.
pub struct Crew {
    control: Socket,
    workers: Workers,
    posts: Arc<Vec<Socket>>,
    lends: Vec<mpsc::Sender<Lent>>,
    readiness: Readiness,
    outbox: Outbox,
    counters: CountersPage,
    asked: VecDeque<Asked>,
    listed: Receiver<Listed>,
    merging: Option<Merging>,
    listings: u32,
    quit: bool,
}

impl Crew {
    /// Starts so many workers as the message says.
    ///
    /// # Errors
    /// The kernel's: no memory, no thread, no descriptor.
    pub fn start(control: Socket, body: &Attach, fds: &Fds) -> Result<Crew, String> {
        let say = |what: &str, why: &dyn std::fmt::Display| format!("{what}: {why}");
        let count = body.workers.min(MOST_WORKERS as u32);
        let slots = body.slots as usize;
        let page = fds.first().ok_or("no counters page")?;
        let counters = CountersPage::open(page, slots).map_err(|e| say("counters", &e))?;
        Telling::begin(&counters);
        counters.set(ProcessWord::Workers, u64::from(count));
        let rings = peers::between(count, slots).map_err(|e| say("rings between workers", &e))?;
        let readiness = Readiness::new().map_err(|e| say("epoll", &e))?;
        readiness
            .join(control.as_fd(), CONTROL)
            .map_err(|e| say("epoll", &e))?;
        let (mut posts, mut ends) = (Vec::new(), Vec::new());
        for number in 0..u64::from(count) {
            let (ours, theirs) = Socket::pair().map_err(|e| say("a socket", &e))?;
            readiness
                .join(ours.as_fd(), number)
                .map_err(|e| say("epoll", &e))?;
            posts.push(ours);
            ends.push(theirs);
        }
        name_the_dying(CountersPage::open(page, slots).map_err(|e| say("counters", &e))?);
        let posts = Arc::new(posts);
        let accounts = Arc::new(Ledger::default());
        let begin = Arc::new(Barrier::new(count as usize));
        let (sender, listed) = mpsc::channel();
        let mut lends = Vec::new();
        for (number, (end, (peers, inbox))) in (0..).zip(ends.into_iter().zip(rings)) {
            let (lend, lent) = mpsc::channel();
            lends.push(lend);
            let desk = Desk {
                lent,
                workers: Workers::new(count, number),
                accounts: Arc::clone(&accounts),
                posts: Arc::clone(&posts),
                listed: sender.clone(),
                begin: Arc::clone(&begin),
            };
            let member = Member { peers, inbox, desk };
            std::thread::Builder::new()
                .spawn(move || {
                    let _last = Last(number);
                    NUMBER.set(Some(number));
                    if let Ok(mut worker) = Worker::member(end, member) {
                        worker.run();
                    }
                })
                .map_err(|e| say("a thread", &e))?;
        }
        // It sees no image, and is on no packet's way.
        confine::raise_branch_barrier()?;
        let mut crew = Crew {
            control,
            workers: Workers::new(count, 0),
            posts,
            lends,
            readiness,
            outbox: Outbox::new(slots),
            counters,
            asked: VecDeque::new(),
            listed,
            merging: None,
            listings: 0,
            quit: false,
        };
        crew.tell_all(&Message::new(0, body), fds);
        Ok(crew)
    }

    /// Runs until it is told to end, or nobody is left to tell it.
    pub fn run(&mut self) {
        // Bound: none; this is the loop of the one who speaks.
        while !self.quit {
            self.outbox.flush(&self.control);
            let limit = self.outbox.patience(None);
            let mut ready = Vec::with_capacity(MOST_WORKERS + 1);
            self.readiness.wait(limit, |name| ready.push(name));
            for name in ready {
                match name {
                    CONTROL => self.hear(),
                    worker => self.hear_worker(worker as u32),
                }
            }
        }
    }

    /// Gives on what the supervisor says. Bound: what is in the socket.
    fn hear(&mut self) {
        loop {
            match self.control.recv() {
                Ok(Some((message, fds))) => self.obey(&message, fds),
                Ok(None) => return,
                Err(Error::Closed) => {
                    self.quit = true;
                    return;
                }
                Err(Error::Malformed(_)) => {}
                Err(_) => return,
            }
        }
    }

    fn obey(&mut self, message: &Message, fds: Fds) {
        if let Some(body) = message.body::<AddPort>() {
            self.tell_home(body.slot, message, &fds);
        } else if let Some(body) = message.body::<RemovePort>() {
            self.tell_home(body.slot, message, &fds);
        } else if let Some(body) = message.body::<Trace>() {
            match body.flags & TRACE_END {
                0 => self.tell_home(body.slot, message, &fds),
                _ => self.tell_all(message, &fds),
            }
        } else if let Some(body) = message.body::<UseImage>() {
            self.asked.push_back(Asked {
                seq: message.seq,
                epoch: body.epoch,
                answered: 0,
                refused: None,
                ran: false,
            });
            self.tell_all(message, &fds);
        } else if let Some(body) = message.body::<Capture>() {
            self.capture(message, &body, &fds);
        } else if let Some(body) = message.body::<ListFlows>() {
            self.list(&body, fds);
        } else if message.body::<Quit>().is_some() {
            self.quit = true;
        }
    }

    fn tell_home(&mut self, slot: Slot, message: &Message, fds: &Fds) {
        self.tell(self.workers.home(slot), message, fds);
    }

    fn tell_all(&mut self, message: &Message, fds: &Fds) {
        for worker in 0..self.workers.count() {
            self.tell(worker, message, fds);
        }
    }

    fn tell(&mut self, worker: u32, message: &Message, fds: &Fds) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let Some(post) = self.posts.get(worker as usize) else {
            return;
        };
        if let Err(error) = post.send_wait(message, &fds, PATIENCE) {
            // It would not know what the others do.
            confine::say!("bulkhead-switch: worker {worker} cannot be told: {error}");
            self.quit = true;
        }
    }

    /// Gives on what a worker says. Bound: what is in the socket.
    fn hear_worker(&mut self, worker: u32) {
        while let Some(post) = self.posts.get(worker as usize)
            && let Ok(Some((message, _))) = post.recv()
        {
            if let Some(body) = message.body::<Running>() {
                self.runs(worker, message.seq, &body);
            } else if message.body::<Done>().is_some() {
                self.merge();
            } else {
                self.outbox.say(&self.control, message);
            }
        }
    }

    /// One of them runs an image, or refuses it: said when all have.
    fn runs(&mut self, worker: u32, seq: u32, body: &Running) {
        let bit = 1 << worker;
        let asked = self.asked.iter_mut().find(|asked| {
            (asked.seq, asked.epoch) == (seq, body.epoch) && asked.answered & bit == 0
        });
        let Some(asked) = asked else { return };
        asked.answered |= bit;
        match body.refused {
            0 => asked.ran = true,
            refused => asked.refused = Some(refused),
        }
        let all = (1 << self.workers.count()) - 1;
        while let Some(asked) = self.asked.pop_front_if(|asked| asked.answered == all) {
            if asked.ran && asked.refused.is_some() {
                confine::say!("bulkhead-switch: not all workers took an image; starting anew");
                self.quit = true;
                return;
            }
            if asked.ran {
                self.counters.set(ProcessWord::Epoch, asked.epoch);
            }
            let running = Running {
                epoch: asked.epoch,
                refused: asked.refused.unwrap_or(0),
                reserved: 0,
            };
            self.say(asked.seq, &running);
        }
    }

    fn say<B: Body>(&mut self, seq: u32, body: &B) {
        self.outbox.say(&self.control, Message::new(seq, body));
    }

    /// Has each mirror what it sees of a capture, or none any more.
    fn capture(&mut self, message: &Message, body: &Capture, fds: &Fds) {
        if body.on == 0 {
            return self.tell_all(message, &Fds::new());
        }
        // Each turn empties them: they need hold little, and are in the compartment's memory.
        let capacity = (4 * body.max_record as usize).next_power_of_two();
        let capacity = capacity.min(body.capacity as usize);
        let geometry = Geometry::records(capacity, body.max_record as usize);
        let Ok(geometry) = geometry else { return };
        let (mut mirrors, mut into) = (Vec::new(), Vec::new());
        for _ in 1..self.workers.count() {
            match shm::between(&geometry) {
                Ok((sender, receiver)) => {
                    into.push(sender);
                    mirrors.push(receiver);
                }
                // Better none than one that shows a part as the whole: its channel closes,
                // and whoever reads it is told that it has ended.
                Err(error) => {
                    confine::say!("bulkhead-switch: no memory for a capture: {error}");
                    return;
                }
            }
        }
        let lent = [Lent::Mirrors(mirrors)].into_iter();
        let lent = lent.chain(into.into_iter().map(Lent::Mirror));
        for (lend, lent) in self.lends.iter().zip(lent) {
            let _ = lend.send(lent);
        }
        self.tell(0, message, fds);
        for worker in 1..self.workers.count() {
            self.tell(worker, message, &Fds::new());
        }
    }

    /// Has each list its connections; a listing under way is given up for it.
    fn list(&mut self, body: &ListFlows, fds: Fds) {
        let most = listing::most(body);
        let Some(page) = fds
            .into_iter()
            .next()
            .and_then(|page| listing::page(page, most))
        else {
            return;
        };
        self.listings = self.listings.wrapping_add(1);
        self.merging = Some(Merging {
            number: self.listings,
            page,
            most,
            parts: Vec::new(),
        });
        self.tell_all(&Message::new(self.listings, body), &Fds::new());
    }

    /// Takes what they listed, and writes it when all have.
    fn merge(&mut self) {
        while let Ok(part) = self.listed.try_recv() {
            if let Some(merging) = &mut self.merging
                && merging.number == part.number
            {
                merging.parts.push(part);
            }
        }
        let all = self.workers.count() as usize;
        if let Some(merging) = self.merging.take_if(|merging| merging.parts.len() == all) {
            let seen = merging.parts.iter().map(|part| part.seen).sum();
            let parts = merging.parts.into_iter();
            let mut rows: Vec<_> = parts.flat_map(|part| part.rows).collect();
            rows.sort_by_key(|row| core::cmp::Reverse(listing::busy(row)));
            rows.truncate(merging.most);
            listing::write(&merging.page, &rows, seen);
        }
    }
}

thread_local! {
    /// Which worker this thread is.
    static NUMBER: Cell<Option<u32>> = const { Cell::new(None) };
}

/// None of the workers ends alone, however it ends.
struct Last(u32);

impl Drop for Last {
    fn drop(&mut self) {
        confine::say!("bulkhead-switch: worker {} has ended", self.0);
        std::process::abort()
    }
}

/// Has a worker that panics say which it was: what it worked on is to blame, and not what the
/// others did meanwhile.
fn name_the_dying(page: CountersPage) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if let Some(number) = NUMBER.get() {
            page.set(ProcessWord::Died, u64::from(number) + 1);
        }
        before(panic);
    }));
}

/// The pages of one worker of several.
pub fn pages(
    counters: CountersPage,
    recorder: shm::Recorder,
    workers: Workers,
) -> (CountersPage, shm::Recorder) {
    let counters = counters_of(counters, workers);
    match workers.count() {
        1 => (counters, recorder),
        _ => (counters, recorder.shared()),
    }
}
