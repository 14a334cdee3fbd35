//! The bodies.

use crate::message::{Body, Name, Verb};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! body {
    ($(#[$m:meta])* $name:ident : $verb:ident { $($(#[$fm:meta])* $f:ident: $t:ty,)* }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $($(#[$fm])* pub $f: $t,)* }
        impl Body for $name { const VERB: Verb = Verb::$verb; }
        impl Default for $name { fn default() -> Self { zerocopy::FromZeros::new_zeroed() } }
    };
}

mod circuits;
mod guest;
mod proving;
pub use circuits::*;
pub use guest::*;
pub use proving::*;

body! {
    /// Plain answer.
    Done: Done {
        /// errno, or 0.
        errno: u32,
        /// Zero: no verb of this version answers with a number.
        value: u32,
        /// For people.
        detail: Name<240>,
    }
}
body! {
    /// Worker is confined and waiting.
    Ready: Ready {
        /// `ROLE_*`.
        role: u32,
        /// Stages of confinement done, one bit each in order.
        stages: u32,
    }
}
/// A compartment's switch.
pub const ROLE_SWITCH: u32 = 1;
/// The fabric.
pub const ROLE_FABRIC: u32 = 2;
/// A capture's writer.
pub const ROLE_AUDITOR: u32 = 3;
/// The verifier.
pub const ROLE_VERIFIER: u32 = 4;
/// The solver that the verifier has asked.
pub const ROLE_SOLVER: u32 = 5;
/// A virtual machine's interface.
pub const ROLE_VHOST: u32 = 6;
/// A compartment's circuits.
pub const ROLE_OPERATOR: u32 = 7;
/// Where an endpoint's circuits become TCP in its namespace.
pub const ROLE_PROXY: u32 = 8;

body! {
    /// You are this compartment now.
    Attach: Attach {
        /// Compartment id (fabric: 0).
        compartment: u32,
        /// Slots in the counters page.
        slots: u32,
        /// `WAIT_*`.
        wait: u32,
        /// Poll period or spin limit, microseconds.
        wait_us: u32,
        /// 1 = the cores are shared: never spin more than 5 us.
        shared_cores: u32,
        /// How this start came about: `START_*`.
        start: u32,
        /// Secret of this start, from the kernel's random source.
        seed: [u8; 16],
        /// Fabric: slot + 1 on which the predecessor died, 0 = none.
        suspect: u32,
        /// Switch: its workers; 0 and 1 = one.
        workers: u32,
    }
}
/// Poll with a period (`wait_us`; 0 = always).
pub const WAIT_POLL: u32 = 0;
/// Spin `wait_us` after the last work, then sleep.
pub const WAIT_ADAPTIVE: u32 = 1;
/// Sleep at once.
pub const WAIT_SLEEP: u32 = 2;
/// First start.
pub const START_FRESH: u32 = 0;
/// After a clean fault.
pub const START_FAULT: u32 = 1;
/// After a trip or report: nothing is restored.
pub const START_TRIP: u32 = 2;

body! {
    /// Plug a port in a slot.
    AddPort: AddPort {
        /// The slot.
        slot: u32,
        /// `PORT_*`.
        kind: u32,
        /// Channel: capacity in bytes of each direction (power of two). Vhost: MiB of memory
        /// that a guest may share at most.
        capacity: u32,
        /// Channel: longest record, bytes. Circuits: set-ups a second, 0 = by default. Proxy: index
        /// of its endpoint's interface, in its namespace.
        max_record: u32,
        /// Channel: 0 = fresh, 1 = resume: you restarted, take over by generation.
        resume: u32,
        /// Channel: protocol version the supervisor fixed.
        version: u32,
        /// MTU, bytes of IP packet.
        mtu: u32,
        /// `image::compartment::FEATURE_*`.
        features: u32,
    }
}
/// fds: rx data (ro), rx consumer page (rw), tx data (rw), tx consumer page (ro),
/// rx doorbell (read end), tx doorbell (write end).
pub const PORT_CHANNEL: u32 = 1;
/// fd: tap with VNET_HDR set up.
pub const PORT_TAP: u32 = 2;
/// fd: bound AF_PACKET socket with PACKET_VNET_HDR: an uplink's, or that of the outer
/// end of an endpoint's veth.
pub const PORT_PACKET: u32 = 3;

/// fds: the packet socket of an uplink, which receives nothing, the memory of its frames,
/// and an AF_XDP socket for each of its `capacity` queues. Those that find no room in a
/// message follow alone in others, in which `resume` is the number of the first. `mtu` is the
/// interface's.
pub const PORT_XDP: u32 = 5;

/// fds: the link to the port's vhost helper ([`GuestMap`] and what follows it), the page
/// that says how far its queues got (`rw`).
pub const PORT_VHOST: u32 = 4;

/// fds: the socket at which programs of a circuits endpoint are announced (to the operator), and
/// that at which container runtimes hand over their containers' calls: SOCK_STREAM, by the
/// protocol of the OCI runtime specification (`listenerPath`).
pub const PORT_CIRCUITS: u32 = 6;

/// fd: the link between a compartment's operator and the proxy of the slot's endpoint
/// ([`Relay`] and what follows it).
pub const PORT_PROXY: u32 = 7;

/// fd: the link between a compartment's operator and its meter ([`Metered`] and what is beside
/// it). The slot is 0.
pub const PORT_METER: u32 = 8;

body! {
    /// Unplug the slot.
    RemovePort: RemovePort {
        /// The slot; or [`OTHERS`].
        slot: u32,
    }
}
/// To an operator that starts: all slots that it was not told of have no port, or all programs are gone.
pub const OTHERS: u32 = u32::MAX;
body! {
    /// Use this image.
    UseImage: UseImage {
        /// Its epoch.
        epoch: u64,
        /// Its digest (BLAKE3, as the image says it).
        digest: [u8; 32],
    }
}
body! {
    /// Says it runs that epoch.
    Running: Running {
        /// The epoch.
        epoch: u64,
        /// 0 = runs; else a number of `image::map` (`MapError::number`, `NOT_SEALED`,
        /// `NOT_ATTACHED`), and the old image stays.
        refused: u32,
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// Closed a port.
    PortClosed: PortClosed {
        /// The slot.
        slot: u32,
        /// A breach's number (`ring::Breach`), or [`CLOSED_BY_SYSTEM`] + errno.
        reason: u32,
    }
}
/// [`PortClosed::reason`] from here on is an errno, below it a breach of the protocol.
pub const CLOSED_BY_SYSTEM: u32 = 1000;
/// [`PortClosed::reason`] for this errno.
pub const fn closed_by(errno: i32) -> u32 {
    CLOSED_BY_SYSTEM + errno.unsigned_abs()
}

body! {
    /// Replace this channel.
    NeedReplace: NeedReplace {
        /// The slot.
        slot: u32,
    }
}
body! {
    /// A channel spoke with what is not its own.
    Report: Report {
        /// The fabric's slot.
        slot: u32,
        /// DropReason.
        reason: u32,
        /// First 64 bytes of the frame's header.
        head: [u8; 64],
    }
}
body! {
    /// Mirror to the capture channel (the channel's fds beside it), or stop. To an operator, without
    /// a channel: have circuits go by the meter, who is told too, with one.
    Capture: Capture {
        /// 1 = start, 0 = stop.
        on: u32,
        /// 1 = drops only.
        drops_only: u32,
        /// Slot, or u32::MAX = all.
        slot: u32,
        /// Bytes of each frame to keep.
        snap: u32,
        /// Whose: 0 = the provider's, else a tenant's number; [`EVERYBODY`].
        of: u32,
        /// Channel capacity, as AddPort.
        capacity: u32,
        /// As AddPort.
        max_record: u32,
    }
}
/// [`Capture::of`], with [`Capture::on`] 0: all captures end, whosesoever.
pub const EVERYBODY: u32 = u32::MAX;

body! {
    /// End in order.
    Quit: Quit {
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// Make a compartment.
    CreateCompartment: CreateCompartment {
        /// Its id; also its fabric slot.
        id: u32,
        /// `WAIT_*`.
        wait: u32,
        /// Microseconds for `wait`.
        wait_us: u32,
        /// Core to pin to, u32::MAX = any (shared); of several workers, the first one's.
        core: u32,
        /// 1 = sandboxed (0 = baseline of the MTS paper: no own namespaces or filter).
        sandbox: u32,
        /// Slots for its counters page.
        slots: u32,
        /// Fabric channel capacity, bytes.
        capacity: u32,
        /// Fabric channel's longest record.
        max_record: u32,
        /// Memory limit, bytes.
        memory: u64,
        /// For people.
        name: Name<64>,
        /// Program to run instead of the usual switch; empty = the usual (tests: a switch that lies).
        program: Name<192>,
        /// Workers of its switch, at most `MOST_WORKERS`; 0 and 1 = one.
        workers: u32,
        /// The cores of the other workers in their order, where `core` is one; else zero.
        other_cores: [u32; 7],
    }
}
impl CreateCompartment {
    /// The core of each worker, in their order; none where cores are shared.
    pub fn cores(&self) -> impl Iterator<Item = u32> + use<> {
        let count = match self.core {
            u32::MAX => 0,
            _ => self.workers.max(1) as usize,
        };
        let all = core::iter::once(self.core).chain(self.other_cores);
        all.take(count)
    }
}
body! {
    /// Remove a compartment and all its ports.
    DestroyCompartment: DestroyCompartment {
        /// Its id.
        id: u32,
    }
}
body! {
    /// Make an endpoint's port.
    CreatePort: CreatePort {
        /// Compartment id.
        compartment: u32,
        /// Slot in its switch.
        slot: u32,
        /// Host-wide endpoint id.
        endpoint: u32,
        /// `ENDPOINT_*`.
        kind: u32,
        /// `CREATE_*` bits.
        flags: u32,
        /// MTU.
        mtu: u32,
        /// Channel capacity (fifo); MiB of memory that a machine may share at most (vhost).
        capacity: u32,
        /// Longest record (fifo); set-ups a second, 0 = by default (circuits).
        max_record: u32,
        /// uid that may attach a fifo, or a front end.
        owner: u32,
        /// Pairs of queues (vhost); sockets at most (circuits).
        pairs: u32,
        /// IPv4 address to set inside; zero = none.
        address4: [u8; 4],
        /// IPv4 gateway to set as default route; zero = none.
        gateway4: [u8; 4],
        /// IPv6 address; zero = none.
        address6: [u8; 16],
        /// IPv6 gateway; zero = none.
        gateway6: [u8; 16],
        /// Prefix lengths of the two.
        prefix4_len: u8,
        /// IPv6 prefix length.
        prefix6_len: u8,
        /// MAC of the workload's interface.
        mac: [u8; 6],
        /// Interface name inside the namespace (tap, veth).
        interface: Name<16>,
        /// Network namespace: a name under /run/netns or an absolute path (tap, veth).
        namespace: Name<128>,
        /// `tenant/endpoint`, for people and for the name of a fifo's or guest's socket.
        name: Name<128>,
    }
}
/// A tap in a namespace.
pub const ENDPOINT_TAP: u32 = 1;
/// A FIFO channel for a process that attaches.
pub const ENDPOINT_FIFO: u32 = 2;
/// A virtual machine's interface, by vhost-user.
pub const ENDPOINT_VHOST: u32 = 3;
/// A veth in a namespace.
pub const ENDPOINT_VETH: u32 = 4;
/// Programs whose sockets are circuits: no packet interface.
pub const ENDPOINT_CIRCUITS: u32 = 5;
/// The namespace is made (and removed with the port) rather than expected to exist.
pub const CREATE_NAMESPACE: u32 = 1;
/// The interface is left without addresses: the workload uses DHCP or SLAAC.
pub const CREATE_UNCONFIGURED: u32 = 2;
/// Programs with circuits are started in it too, beside its interface (tap, veth).
pub const CREATE_CIRCUITS: u32 = 4;

body! {
    /// Remove an endpoint's port.
    DestroyPort: DestroyPort {
        /// Compartment id.
        compartment: u32,
        /// Slot.
        slot: u32,
        /// 1 = the namespace that was made for it stays, for a port to come, until
        /// [`Settle`].
        keep_namespace: u32,
    }
}
body! {
    /// A change is over: namespaces that were made, and that no port came into, go.
    Settle: Settle {
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// The sender goes on.
    Beat: Beat {
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// Open an uplink.
    CreateUplink: CreateUplink {
        /// Uplink number.
        uplink: u32,
        /// Its slot in the fabric.
        slot: u32,
        /// Interface.
        interface: Name<16>,
        /// Namespace it is in; empty = the host's.
        namespace: Name<128>,
        /// `DRIVER_*`.
        driver: u32,
    }
}
/// AF_XDP where that loses nothing, else AF_PACKET.
pub const DRIVER_AUTO: u32 = 0;
/// AF_XDP or nothing.
pub const DRIVER_XDP: u32 = 1;
/// AF_PACKET.
pub const DRIVER_AF_PACKET: u32 = 2;
body! {
    /// Close an uplink.
    DestroyUplink: DestroyUplink {
        /// Uplink number.
        uplink: u32,
    }
}
body! {
    /// Install an image (sealed memfd beside it).
    Install: Install {
        /// Compartment id; u32::MAX = the fabric.
        target: u32,
        /// 1: a switch that does not take it is left down, with this for its successors,
        /// and the answer is `Done`: the change takes something from it. 0: it is refused.
        must: u32,
        /// Its epoch.
        epoch: u64,
        /// Its digest (BLAKE3, as the image says it).
        digest: [u8; 32],
    }
}
/// [`Install::target`] and [`Inspect::target`]: the fabric.
pub const FABRIC: u32 = u32::MAX;
/// [`Event::target`] and [`Inspect::target`]: the supervisor itself. Its event `Ready`
/// says that it started: what was asked before and not answered is to be asked again.
pub const SUPERVISOR: u32 = u32::MAX - 1;
body! {
    /// State of a compartment or the fabric. Also the answer.
    Inspect: Inspect {
        /// Compartment id or [`FABRIC`].
        target: u32,
        /// Answer: process id on the host, 0 = none.
        pid: u32,
        /// Answer: `RUN_*`.
        state: u32,
        /// Answer: restarts since creation.
        restarts: u32,
        /// Answer: last cause of death, `CAUSE_*`.
        cause: u32,
        /// Answer: host uid it runs as.
        uid: u32,
        /// Answer: epoch last installed.
        epoch: u64,
        /// Answer: nanoseconds of the last outage, from the death, as the supervisor saw it, to
        /// the first frame that the successor says it forwarded; 0 = it has not.
        outage_ns: u64,
        /// Answer: digest of the image installed.
        digest: [u8; 32],
        /// Answer: slots of the counters page.
        slots: u32,
        /// Answer: confinement stages done.
        stages: u32,
        /// Answer: processor time of the process, ns.
        cpu_ns: u64,
        /// Answer: processor time of its predecessors that this supervisor knew, ns.
        spent_ns: u64,
        /// Answer: memory of the process that is resident, bytes.
        memory: u64,
        /// Answer: its operator's process id, 0 = none.
        operator: u32,
        /// Answer: operators that came after another.
        operator_restarts: u32,
        /// Answer: those of them that came after one that stood still.
        operator_stalls: u32,
        /// Answer: programs over whose calls operators stood still, and that nobody answers any more.
        given_up: u32,
        /// Answer: set-ups that its operators delayed, alleged.
        delayed: u64,
        /// Answer: ends of circuits that were to be cut and were not found, alleged.
        unfound: u64,
        /// Answer: operators that came to their end while they took a connection in, alleged.
        taken: u64,
        /// Answer: circuits that were cut, being allowed no more, alleged.
        cut: u64,
    }
}
/// Starting.
pub const RUN_STARTING: u32 = 0;
/// Running.
pub const RUN_UP: u32 = 1;
/// Waiting out its backoff.
pub const RUN_BACKOFF: u32 = 2;
/// Quarantined.
pub const RUN_QUARANTINED: u32 = 3;
/// Died by itself or by a signal from outside.
pub const CAUSE_EXIT: u32 = 1;
/// Tripped its seccomp filter.
pub const CAUSE_TRIP: u32 = 2;
/// Killed: no progress while burning CPU.
pub const CAUSE_STALL: u32 = 3;
/// Killed: the fabric reported it.
pub const CAUSE_REPORT: u32 = 4;

body! {
    /// Start a capture.
    StartCapture: StartCapture {
        /// Compartment id.
        compartment: u32,
        /// Slot, or u32::MAX = all.
        slot: u32,
        /// 1 = drops only.
        drops_only: u32,
        /// Bytes of each frame to keep.
        snap: u32,
        /// Whose: 0 = the provider's, else a tenant's number. Each has one of a compartment.
        of: u32,
        /// 1 = circuits too: those that begin go by the meter.
        circuits: u32,
    }
}
body! {
    /// List connections, busiest first. The answer does not wait for the switch.
    ListFlows: ListFlows {
        /// Compartment id.
        compartment: u32,
        /// Those of this slot, or u32::MAX = all.
        slot: u32,
        /// So many rows at most (`telemetry::flows::MOST`).
        most: u32,
        /// 0: connections of its switch; 1: circuits; [`LISTENERS`]: sockets that wait for whoever comes.
        circuits: u32,
    }
}
/// In [`ListFlows::circuits`]: sockets that listen, and those of UDP that are bound and not connected.
pub const LISTENERS: u32 = 2;
body! {
    /// Trace a frame as if it had come by this port. The answer does not wait for it.
    Trace: Trace {
        /// Compartment id or [`FABRIC`].
        target: u32,
        /// The port: a switch's slot, the fabric's.
        slot: u32,
        /// Fabric tag that it comes by, else 0.
        tag: u32,
        /// `TRACE_*` bits.
        flags: u32,
    }
}
/// What comes out goes to the workload, or out by the uplink; else it is held back.
pub const TRACE_DELIVER: u32 = 1;
/// No frame: the trace is over, and what it left behind is to be forgotten.
pub const TRACE_END: u32 = 2;
body! {
    /// What exists. Request: zeros. Answers: one each, then Done.
    Inventory: Inventory {
        /// 1 = compartment, 2 = port, 3 = uplink.
        kind: u32,
        /// Compartment id or uplink number.
        id: u32,
        /// Slot.
        slot: u32,
        /// Endpoint id.
        endpoint: u32,
        /// Of a port: [`PortClosed::reason`] why it is closed; 0 = it is not.
        closed: u32,
        /// Of a port: 1 = unplugged, since it killed its switch.
        quarantined: u32,
        /// SHA-256 over the body that created it: tells the controller whether it is the same.
        created: [u8; 32],
        /// Of an uplink: how it is read and written, and why so.
        how: Name<160>,
    }
}
body! {
    /// Something happened.
    Event: Event {
        /// `telemetry::recorder::EventKind` as u32.
        kind: u32,
        /// Compartment id or FABRIC.
        target: u32,
        /// Slot or 0.
        slot: u32,
        /// `CAUSE_*`, breach or DropReason.
        cause: u32,
        /// CLOCK_MONOTONIC, ns.
        time_ns: u64,
        /// By kind.
        value: u64,
    }
}
body! {
    /// Lift a quarantine.
    Release: Release {
        /// Compartment id or FABRIC.
        target: u32,
        /// Slot, or u32::MAX.
        slot: u32,
    }
}
body! {
    /// Keep a descriptor.
    Keep: Keep {
        /// Name, e.g. `compartment/3/counters`.
        name: Name<128>,
        /// A note kept with it.
        note: Name<256>,
    }
}
body! {
    /// Give a duplicate. Also the answer.
    Fetch: Fetch {
        /// Name.
        name: Name<128>,
        /// Answer: the note.
        note: Name<256>,
    }
}
body! {
    /// Forget names with this prefix.
    Forget: Forget {
        /// Prefix; the whole name when `exact` is 1.
        name: Name<128>,
        /// 1 = exact.
        exact: u32,
    }
}
body! {
    /// Names, with the descriptor beside each answer.
    List: List {
        /// Request: prefix. Answer: name.
        name: Name<128>,
        /// Answer: the note.
        note: Name<256>,
    }
}
body! {
    /// End everything.
    Shutdown: Shutdown {
        /// Zero.
        reserved: u32,
    }
}
