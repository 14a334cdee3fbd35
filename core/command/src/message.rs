//! The envelope.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 512;
/// Bytes of its body.
pub const BODY_BYTES: usize = MESSAGE_BYTES - 16;
/// Most descriptors beside one message.
pub const MAX_FDS: usize = 12;
/// This release's protocol version. A process talks to this and the one before.
pub const VERSION: u16 = 1;

/// One datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Message {
    /// [`Verb`] as u16.
    pub verb: u16,
    /// [`VERSION`].
    pub version: u16,
    /// Chosen by the asker, repeated in the answer.
    pub seq: u32,
    /// Answers: 0 or an [`ErrorCode`].
    pub error: u32,
    /// Zero.
    pub reserved: u32,
    /// The body named by the verb.
    pub body: [u8; BODY_BYTES],
}

/// A body type: fixed layout, at most [`BODY_BYTES`].
pub trait Body: FromBytes + IntoBytes + Immutable + KnownLayout + Copy {
    /// The verb it belongs to.
    const VERB: Verb;
}

impl Message {
    /// A message with this body.
    pub fn new<B: Body>(seq: u32, body: &B) -> Message {
        const { assert!(size_of::<B>() <= BODY_BYTES) };
        let mut bytes = [0; BODY_BYTES];
        bytes[..size_of::<B>()].copy_from_slice(body.as_bytes());
        Message {
            verb: B::VERB as u16,
            version: VERSION,
            seq,
            error: 0,
            reserved: 0,
            body: bytes,
        }
    }
    /// The same message marked as failed.
    pub fn failed(mut self, error: ErrorCode) -> Message {
        self.error = error as u32;
        self
    }
    /// The body, if the verb and version are right.
    pub fn body<B: Body>(&self) -> Option<B> {
        if self.verb != B::VERB as u16 || self.version != VERSION {
            return None;
        }
        B::read_from_prefix(&self.body).ok().map(|(body, _)| body)
    }
}

/// A fixed-size name, zero-padded UTF-8.
#[derive(Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Name<const N: usize>(pub [u8; N]);

impl<const N: usize> Name<N> {
    /// `None` when it does not fit or holds a zero byte.
    pub fn new(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() > N || bytes.contains(&0) {
            return None;
        }
        let mut out = [0; N];
        out[..bytes.len()].copy_from_slice(bytes);
        Some(Name(out))
    }
    /// The text; `""` where it is not UTF-8.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|b| *b == 0).unwrap_or(N);
        core::str::from_utf8(&self.0[..end]).unwrap_or("")
    }
}
impl<const N: usize> Default for Name<N> {
    fn default() -> Self {
        Name([0; N])
    }
}
impl<const N: usize> core::fmt::Debug for Name<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

macro_rules! verbs {
    ($($(#[doc = $doc:literal])+ $name:ident = $n:literal,)+) => {
        /// What a message asks or tells.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Verb { $($(#[doc = $doc])+ $name = $n,)+ }
        impl Verb {
            /// From its number.
            pub const fn from_number(n: u16) -> Option<Verb> { match n { $($n => Some(Verb::$name),)+ _ => None } }
        }
    };
}
verbs! {
    /// Answer to any request without an answer body of its own.
    Done = 1,
    /// worker → supervisor: confined and waiting.
    Ready = 16,
    /// supervisor → worker: you are this compartment now; fds: counters, recorder.
    Attach = 17,
    /// supervisor → worker: plug a port in a slot; fds by kind.
    AddPort = 18,
    /// supervisor → worker: unplug.
    RemovePort = 19,
    /// supervisor → worker: use this image; fd: image.
    UseImage = 20,
    /// worker → supervisor: says it runs that epoch (an allegation).
    Running = 21,
    /// worker → supervisor: closed a port, and why.
    PortClosed = 22,
    /// worker → supervisor: no echo in time, replace this channel.
    NeedReplace = 23,
    /// fabric → supervisor: this channel spoke with what is not its own.
    Report = 24,
    /// supervisor → worker: start or stop mirroring to the capture channel; fds: channel.
    Capture = 25,
    /// supervisor → worker: end in order.
    Quit = 26,
    /// verifier → supervisor: these images were proved, as part of this question.
    Proved = 27,
    /// verifier → supervisor, and on to the controller: what came of a question; fd: its
    /// report (JSON), where there is something to report.
    Verdict = 28,
    /// supervisor → verifier: what lies in these seats; fds: their images.
    Lying = 29,
    /// verifier → supervisor, and on to a solver with where its answer goes: solve this; fd:
    /// the text.
    Solve = 30,
    /// supervisor → verifier: what comes of that; fd: where the answer comes from.
    Solving = 31,
    /// controller → supervisor: make a compartment.
    CreateCompartment = 48,
    /// controller → supervisor: remove it.
    DestroyCompartment = 49,
    /// controller → supervisor: make an endpoint's port.
    CreatePort = 50,
    /// controller → supervisor: remove it.
    DestroyPort = 51,
    /// controller → supervisor: open an uplink.
    CreateUplink = 52,
    /// controller → supervisor: close it.
    DestroyUplink = 53,
    /// controller → supervisor: install an image; fd: sealed image.
    Install = 54,
    /// controller → supervisor: state of a compartment; answer with fds: counters, recorder (read-only).
    Inspect = 55,
    /// controller → supervisor: start a capture; answer with fd: pipe of pcapng bytes.
    StartCapture = 56,
    /// controller → supervisor: what exists (one answer an object, then Done).
    Inventory = 57,
    /// supervisor → controller: something happened (death, restart, quarantine, report).
    Event = 58,
    /// controller → supervisor: lift a quarantine.
    Release = 59,
    /// controller → supervisor: a change is over, remove what was kept for it.
    Settle = 60,
    /// controller → supervisor, and on to the verifier: prove this; fd: the bundle.
    Prove = 61,
    /// controller → supervisor, and on to the switch with the page to write: list
    /// connections, or to the operator to list circuits; answer with fd: the page (read-only),
    /// see `telemetry::flows` and `telemetry::circuits`.
    ListFlows = 62,
    /// controller → supervisor, and on to a switch or the fabric with the page to write:
    /// trace this frame; fd: the frame, sealed; answer with fd: the page (read-only), see
    /// `telemetry::trace`.
    Trace = 68,
    /// controller → supervisor, supervisor → keeper: it goes on; without an answer.
    Beat = 69,
    /// anyone → keeper: keep this descriptor under this name; fd.
    Keep = 80,
    /// anyone → keeper: give a duplicate of the descriptor.
    Fetch = 81,
    /// anyone → keeper: forget it.
    Forget = 82,
    /// anyone → keeper: names from this one on (one answer each, then Done).
    List = 83,
    /// supervisor → keeper: end everything.
    Shutdown = 84,
    /// supervisor → vhost helper: serve a front end; fd: where it connects.
    ServeGuest = 95,
    /// vhost helper → switch: map a guest's memory, in place of what is mapped; fds: its
    /// regions' files.
    GuestMap = 96,
    /// vhost helper → switch: unmap it; queues that run are halted.
    GuestUnmap = 97,
    /// vhost helper → switch: run a queue; fd: what its driver kicks, where it has that.
    GuestRun = 98,
    /// vhost helper → switch: halt a queue.
    GuestHalt = 99,
    /// vhost helper → switch: note pages that are written, or no longer; fd: the bitmap.
    GuestLog = 100,
    /// switch → vhost helper: answer to each of these.
    GuestDone = 101,
    /// switch → vhost helper: call the drivers of these queues.
    GuestCall = 102,
    /// switch → vhost helper: the guest's side broke the protocol, or its memory is gone.
    GuestBroken = 103,
    /// supervisor → operator: you mediate this compartment's circuits now; fds: the page in
    /// which their sockets are noted, and the rooms where [`Verb::Accepted`] goes and comes from.
    Operate = 104,
    /// operator → supervisor, to be kept, and back to its successor: a program's calls come
    /// here; fd: its seccomp listener.
    Program = 105,
    /// operator → supervisor: nobody is left who could call there.
    ProgramGone = 106,
    /// operator → `bulkhead run`: what a program in this endpoint is to be like.
    Circuits = 107,
    /// `bulkhead run` → operator: mediate this program, and answer; fd: its seccomp listener.
    Mediate = 108,
    /// operator → proxy: connect by TCP.
    Relay = 109,
    /// proxy → operator: what came of it.
    Relayed = 110,
    /// operator → proxy: join this connection to a circuit; fd: the circuit's other end.
    Join = 111,
    /// operator → proxy: end this connection, nobody has it.
    Refuse = 112,
    /// operator → proxy: listen by TCP for a program that listens.
    Serve = 113,
    /// operator → proxy: it listens no more.
    Unserve = 114,
    /// proxy → operator: somebody connected there.
    Came = 115,
    /// operator → supervisor: say who has these sockets.
    Seek = 116,
    /// supervisor → operator: who has one, or had it a moment ago.
    Found = 117,
    /// supervisor → operator: every process was looked at.
    Sought = 118,
    /// operator → supervisor: a container was handed over and is not taken.
    ContainerRefused = 119,
    /// operator → supervisor: some of its circuits are to be metered.
    WantMeter = 120,
    /// supervisor → proxy: you meter this compartment's circuits; fd: its counters page.
    Meter = 121,
    /// operator → meter: count here, circuit by circuit (`telemetry::circuits::Count`); fd: the
    /// page.
    MeterPage = 122,
    /// operator → meter: what an endpoint may send and be sent from now on.
    MeterRates = 123,
    /// operator → meter: carry this circuit; fds: its two ends, of who began it first.
    Metered = 124,
    /// operator → meter: end this circuit.
    EndMetered = 125,
    /// controller → supervisor, and on to the operator with the page to write: cut a circuit;
    /// answer with fd: the page (read-only), see `telemetry::circuits`.
    CutCircuit = 126,
    /// operator → proxy: have datagrams that are sent here come.
    Hear = 144,
    /// operator → proxy: no more.
    Unhear = 145,
    /// proxy → operator: somebody new sends datagrams there.
    Heard = 146,
    /// operator → proxy: convey datagrams between a program's socket and this peer; fd: what is
    /// connected to the program's.
    Convey = 147,
    /// operator → proxy: no more.
    Part = 148,
    /// proxy → operator: nothing was conveyed for long, or the program's socket is gone.
    Quiet = 149,
    /// operator → its successor, if it dies now: accepted, and in no program yet; fd: the connection.
    Accepted = 150,
    /// supervisor → operator; fds: the link to the operator of the other side of a live agreement,
    /// where what it begins comes, and what says which sockets live there; none: it has circuits,
    /// and no operator at this moment.
    AddCrossing = 151,
    /// supervisor → operator: an agreement is over, or its other side has no circuits.
    EndCrossing = 152,
    /// operator → operator, of the two sides of an agreement: may this connection be begun?
    Cross = 153,
    /// The answer.
    Crossed = 154,
    /// operator → operator: nobody wants it any more.
    Uncross = 155,
    /// operator → supervisor: memory for a circuit across an agreement is asked for; → both operators: fd: it is
    /// this, or why none.
    Share = 156,
    /// supervisor → operator: how many programs may be kept.
    ProgramLimit = 157,
    /// operator → operator: the program here has a circuit's memory.
    HasMemory = 158,
    /// operator → proxy: of all that listen it was told.
    Served = 159,
}

/// Why a request failed. `detail` in the answer's Done body says more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// The message is not one of ours.
    BadMessage = 1,
    /// The thing named does not exist.
    NotFound = 2,
    /// It exists already and differs.
    Conflict = 3,
    /// A limit of this host.
    Limit = 4,
    /// The operating system refused; errno in the Done body.
    System = 5,
    /// Not allowed for this caller.
    Denied = 6,
    /// An image that is not sealed, or whose digest or content is wrong.
    BadImage = 7,
    /// Quarantined.
    Quarantined = 8,
    /// A namespace that does not exist.
    NoNamespace = 9,
    /// An interface that does not exist.
    NoInterface = 10,
    /// An image that the verifier has not proved, or a proof that was not carried out.
    NotProved = 11,
}
