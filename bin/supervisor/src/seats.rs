//! Places that a process fills: the fabric and the compartments, and what stays of
//! them while processes come and go.

use crate::channels::Channel;
use crate::link::Shared;
use crate::ports::Port;
use crate::ports::circuits::Circuits;
use crate::registry::Seat;
use crate::spread::Placing;
use crate::watch::{Backoff, Blame, Bucket, Progress};
use command::verbs::{
    CreateCompartment, CreateUplink, RUN_BACKOFF, RUN_QUARANTINED, RUN_STARTING, RUN_UP,
    START_FRESH,
};
use confine::Cgroup;
use shm::PeerWords;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;
use telemetry::counters::{MOST_WORKERS, ProcessWord, bytes_for, worker_word};

/// Slots of the fabric's counters page: compartment ids and uplink slots are below.
pub const FABRIC_SLOTS: u32 = 2048;

/// What stays when the process of a seat dies.
pub struct SeatState {
    /// Its counters page.
    pub counters: Shared,
    /// The same, as allegations to read.
    pub words: PeerWords,
    /// Its flight recorder.
    pub recorder: Shared,
    /// Slots in the counters page.
    pub slots: u32,
    /// What of its connections outlives its process; `None`: not made yet, or of one that
    /// is not trusted any more. Mapped by its process alone.
    pub journal: Option<Shared>,
    /// The image that it last said it runs.
    pub image: Option<Image>,
    /// Images to be installed, first the one under way.
    pub installs: VecDeque<Install>,
    /// The process in it.
    pub worker: Option<u64>,
    /// Processor time of the processes that died in it, ns.
    pub spent: u64,
    /// Restarts since creation.
    pub restarts: u32,
    /// `CAUSE_*` of the last death; 0 = none.
    pub cause: u32,
    /// When it died last, ns.
    pub died: u64,
    /// When its process was attached, ns.
    pub attached: u64,
    /// Nanoseconds from its last death, as we saw it, to the first frame that its successor
    /// says it forwarded; 0 = it has not.
    pub outage: u64,
    /// Its process came after a death, and has not said that it forwarded a frame.
    pub awaits_frame: bool,
    /// Not to be filled before, ns.
    pub due: u64,
    /// `START_*` for the next process.
    pub start: u32,
    /// Slot + 1 that the last process worked on when it crashed; 0 = unknown.
    pub suspect: u32,
    /// Its own share of the restarts.
    pub limit: Bucket,
    /// Its channels to the fabric that were asked for anew.
    pub replaced: Bucket,
    /// Waits between restarts.
    pub backoff: Backoff,
    /// Whose frames were being worked on at each death.
    pub blame: Blame,
    /// What the watch saw last; of several workers, of each.
    pub progress: [Progress; MOST_WORKERS],
    /// The one of several workers that got nowhere.
    pub stuck: Option<u32>,
    /// Its process has refused the image that its predecessor ran, and said so.
    pub has_refused: bool,
    /// What is known of where its process runs.
    pub placing: Placing,
    /// Each of its several workers was put on its own core.
    pub is_pinned: bool,
}

impl SeatState {
    /// New pages.
    ///
    /// # Errors
    /// Descriptors or memory ran out.
    pub fn create(slots: u32) -> io::Result<SeatState> {
        let counters = shm::memory_file("bulkhead-counters", bytes_for(slots as usize))?;
        let recorder = shm::memory_file("bulkhead-recorder", telemetry::recorder::BYTES)?;
        SeatState::from_pages(Rc::new(counters), Rc::new(recorder), slots)
    }

    /// On pages of before.
    ///
    /// # Errors
    /// They cannot be mapped.
    pub fn from_pages(counters: Shared, recorder: Shared, slots: u32) -> io::Result<SeatState> {
        let words = PeerWords::map(&*counters)?;
        Ok(SeatState {
            counters,
            words,
            recorder,
            slots,
            journal: None,
            image: None,
            installs: VecDeque::new(),
            worker: None,
            spent: 0,
            restarts: 0,
            cause: 0,
            died: 0,
            attached: 0,
            outage: 0,
            awaits_frame: false,
            due: 0,
            start: START_FRESH,
            suspect: 0,
            limit: Bucket::of_seat(),
            replaced: Bucket::of_replacements(),
            backoff: Backoff::default(),
            blame: Blame::default(),
            progress: Default::default(),
            stuck: None,
            has_refused: false,
            placing: Placing::default(),
            is_pinned: false,
        })
    }

    /// The slot whose frames its process was working on when it died, as alleged. Of several
    /// workers only that is believed of which was stuck, or which said that it panicked.
    pub fn worked_on(&self, workers: u32) -> Option<u32> {
        let slot = |word: u64| {
            let slot = u32::try_from(word).ok()?.checked_sub(1)?;
            (slot < self.slots).then_some(slot)
        };
        if workers < 2 {
            return slot(self.word(ProcessWord::Working));
        }
        let working = |worker: u32| self.word_of(worker, ProcessWord::Working);
        if let Some(worker) = self.stuck {
            return slot(working(worker));
        }
        let died = u32::try_from(self.word(ProcessWord::Died)).ok()?;
        let died = died.checked_sub(1).filter(|worker| *worker < workers)?;
        slot(working(died))
    }

    /// A word that one of several workers writes of itself, as alleged.
    pub fn word_of(&self, worker: u32, word: ProcessWord) -> u64 {
        self.words.load(worker_word(worker as usize, word as usize))
    }

    /// A word of its counters page, as alleged.
    pub fn word(&self, word: ProcessWord) -> u64 {
        self.words.load(word as usize)
    }

    /// `RUN_*`.
    pub fn run_state(&self, now: u64, quarantined: bool) -> u32 {
        match self.worker {
            _ if quarantined => RUN_QUARANTINED,
            Some(_) => RUN_UP,
            None if self.due > now => RUN_BACKOFF,
            None => RUN_STARTING,
        }
    }
}

/// A table image.
#[derive(Clone, Debug)]
pub struct Image {
    /// Sealed memory.
    pub fd: Shared,
    /// Its epoch.
    pub epoch: u64,
    /// Its digest.
    pub digest: [u8; 32],
}

/// An image to be installed.
#[derive(Clone, Debug)]
pub struct Install {
    /// The controller's request.
    pub seq: u32,
    /// The image.
    pub image: Image,
    /// When it was sent to the process, ns.
    pub sent: Option<u64>,
    /// When it was asked for, ns.
    pub asked: u64,
    /// How often it was sent.
    pub attempts: u32,
    /// Whether a process that does not take it is left down.
    pub must: bool,
}

/// A compartment.
pub struct Compartment {
    /// The request that made it.
    pub body: CreateCompartment,
    /// Its digest.
    pub created: [u8; 32],
    /// Its seat.
    pub seat: SeatState,
    /// Its channel with the fabric; `None` while none could be made.
    pub channel: Option<Channel>,
    /// The fabric's side of the channel is unplugged: it killed the fabric.
    pub quarantined: bool,
    /// Its ports by slot.
    pub ports: BTreeMap<u32, Port>,
    /// Its limits, where the host has cgroups.
    pub cgroup: Option<Cgroup>,
    /// Its circuits, once it has an endpoint of them.
    pub circuits: Option<Box<Circuits>>,
}

/// An uplink.
pub struct Uplink {
    /// The request that made it.
    pub body: CreateUplink,
    /// Its digest.
    pub created: [u8; 32],
    /// Its packet socket.
    pub socket: Shared,
    /// By AF_XDP, beside that.
    pub xdp: Option<Xdp>,
    /// How it is read and written and why so, for people.
    pub how: String,
    /// The fabric closed it: its interface is gone.
    pub closed: bool,
}

/// What an uplink by AF_XDP is made of.
pub struct Xdp {
    /// Keeps the program attached.
    pub link: Shared,
    /// The memory of its frames.
    pub memory: Shared,
    /// A socket for each queue.
    pub queues: Vec<Shared>,
    /// The interface's MTU.
    pub mtu: u32,
}

/// For messages: `compartment 3`, `the fabric`.
pub fn label(seat: Seat) -> String {
    match seat {
        Seat::Fabric => "the fabric".to_owned(),
        Seat::Compartment(id) => format!("compartment {id}"),
    }
}
