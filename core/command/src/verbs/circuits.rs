//! The bodies of circuits: what the supervisor and the operator tell each other, and what the
//! operator and who starts a program do.

use crate::message::{Body, Verb};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Addresses of a circuits endpoint at most.
pub const CIRCUITS_ADDRESSES: usize = 16;

body! {
    /// The circuits of a compartment.
    Operate: Operate {
        /// The user id that this process has: of the user namespaces of its programs.
        uid: u32,
        /// Zero.
        reserved: u32,
    }
}
/// Numbers of programs, from 1, end below this.
pub const PROGRAM_NUMBERS: u32 = 1 << 31;

body! {
    /// A program whose calls are mediated.
    Program: Program {
        /// The slot of its endpoint.
        slot: u32,
        /// Which one: the operator's number for it.
        number: u32,
        /// The port that it was announced at, by its number; 0: of the release before.
        port: u64,
    }
}
body! {
    /// How many programs may be kept.
    ProgramLimit: ProgramLimit {
        /// At most; one more would end with this process.
        most: u32,
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// A program that is gone, with all that it started.
    ProgramGone: ProgramGone {
        /// The number; or [`OTHERS`](super::OTHERS).
        number: u32,
        /// Zero.
        reserved: u32,
    }
}
/// Sockets of one [`Seek`] at most.
pub const SEEK: usize = 60;

body! {
    /// Say who has these sockets.
    Seek: Seek {
        /// Inodes that count.
        count: u32,
        /// These were the last, the search begins: its number, which is never 0.
        last: u32,
        /// Inodes, as links in /proc name them.
        inodes: [u64; SEEK],
    }
}
body! {
    /// Who has one.
    Found: Found {
        /// The inode.
        inode: u64,
        /// The thread, by the host's numbers; 0: who looked has cut it, for nobody could be told in time.
        thread: u32,
        /// At which number. Where who looked has cut it, [`Seek::last`] of the search for datagrams, 0 for a stream.
        number: u32,
    }
}
body! {
    /// A search is over.
    Sought: Sought {
        /// [`Seek::last`] of it; 0: not known, as of the release before.
        number: u32,
        /// 1: there are processes that could not be looked at.
        missed: u32,
    }
}
body! {
    /// What a program in this endpoint is to be like.
    Circuits: Circuits {
        /// Who is to own its user namespace.
        uid: u32,
        /// Addresses that count.
        count: u32,
        /// The endpoint's, IPv4 ones as ::ffff:a.b.c.d.
        addresses: [[u8; 16]; CIRCUITS_ADDRESSES],
    }
}
body! {
    /// Mediate this program.
    Mediate: Mediate {
        /// Zero.
        reserved: u32,
        /// Zero.
        zero: u32,
    }
}
body! {
    /// Connect by TCP. Addresses of IPv4 as ::ffff:a.b.c.d.
    Relay: Relay {
        /// The connection, by the operator's number.
        id: u64,
        /// From where.
        from: [u8; 16],
        /// To where.
        to: [u8; 16],
        /// The port here.
        from_port: u32,
        /// The port there.
        to_port: u32,
    }
}
body! {
    /// What came of a [`Relay`].
    Relayed: Relayed {
        /// Its number.
        id: u64,
        /// connect(2)'s; 0 = it is connected, and waits to be joined.
        errno: u32,
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// Join a connection that is there to a circuit.
    Join: Join {
        /// Its number, the operator's or the proxy's.
        id: u64,
    }
}
body! {
    /// End a connection that nobody has.
    Refuse: Refuse {
        /// Its number.
        id: u64,
    }
}
body! {
    /// Listen by TCP.
    Serve: Serve {
        /// Which program's socket, by its cookie.
        id: u64,
        /// At which address; all zero, or ::ffff:0.0.0.0: any of the family.
        ip: [u8; 16],
        /// At which port.
        port: u32,
        /// Connections that wait at most.
        backlog: u32,
        /// 1: IPv6 alone.
        only6: u32,
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// Those were all: what an operator before had listened for is over, but for them.
    Served: Served {
        /// Zero.
        reserved: u64,
    }
}
body! {
    /// Listen for it no more; and not there, where it was the last of those that share the place.
    Unserve: Unserve {
        /// Which.
        id: u64,
    }
}
body! {
    /// Somebody connected.
    Came: Came {
        /// The connection, by the proxy's number: of the upper half of all.
        id: u64,
        /// Where: [`Serve::id`].
        at: u64,
        /// Who.
        from: [u8; 16],
        /// To which address.
        to: [u8; 16],
        /// The port there.
        from_port: u32,
        /// The port here.
        to_port: u32,
    }
}
body! {
    /// Have datagrams that are sent here come. An address of IPv4 as ::ffff:a.b.c.d.
    Hear: Hear {
        /// Which of the endpoint's addresses.
        ip: [u8; 16],
        /// Which port.
        port: u32,
        /// Zero.
        reserved: u32,
        /// For which program's socket, by its cookie: where an operator before had it heard for the same, what came since is for it.
        id: u64,
    }
}
body! {
    /// No more, for this one; and none that is sent there, where it was the last.
    Unhear: Unhear {
        /// [`Hear::ip`].
        ip: [u8; 16],
        /// [`Hear::port`].
        port: u32,
        /// Zero.
        reserved: u32,
        /// [`Hear::id`].
        id: u64,
    }
}
body! {
    /// Somebody new sends datagrams to where some are heard.
    Heard: Heard {
        /// Who.
        from: [u8; 16],
        /// To which address.
        to: [u8; 16],
        /// The port there.
        from_port: u32,
        /// The port here.
        to_port: u32,
    }
}
body! {
    /// Convey datagrams between a program's socket and a peer, by the descriptor that is with it. Without one it is conveyed already,
    /// by this number; or what comes from the peer is asked for, if that is zero.
    Convey: Convey {
        /// What is conveyed, by the operator's number, which is not zero.
        id: u64,
        /// From where: one that is heard.
        from: [u8; 16],
        /// The peer.
        to: [u8; 16],
        /// The port here.
        from_port: u32,
        /// The port there.
        to_port: u32,
        /// 1: what comes from the peer is its, whoever had that before; 0: it sends there alone.
        hears: u32,
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// Convey that no more.
    Part: Part {
        /// [`Convey::id`].
        id: u64,
    }
}
body! {
    /// Nothing is conveyed.
    Quiet: Quiet {
        /// [`Convey::id`].
        id: u64,
        /// 1: the program's socket is gone, and it is conveyed no more; 0: nothing passed for long.
        ended: u32,
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// A connection that was accepted.
    Accepted: Accepted {
        /// The cookie of the listening socket that it came to; 0: through a door, and it is not
        /// looked yet to which.
        listener: u64,
        /// The tag of the agreement whose door that was.
        crossing: u32,
        /// One more than of what was accepted before it, beyond the largest zero again.
        order: u32,
    }
}
body! {
    /// The other side of a live agreement.
    AddCrossing: AddCrossing {
        /// The agreement's tag on this side.
        tag: u32,
        /// Zero.
        reserved: u32,
        /// The name, in the network namespace of this side, of the socket at which the other side
        /// gets what is begun here.
        door: [u8; 16],
    }
}
body! {
    /// A connection across an agreement. Addresses of IPv4 as ::ffff:a.b.c.d.
    Cross: Cross {
        /// The cookie of the socket that will come through the door, which is the end of its name.
        id: u64,
        /// From where, as who begins it has it.
        from: [u8; 16],
        /// To where, likewise.
        to: [u8; 16],
        /// The port here.
        from_port: u32,
        /// The port there.
        to_port: u32,
        /// 1 = it may wait for room.
        waits: u32,
        /// Another each time that a socket is to be connected.
        attempt: u32,
    }
}
body! {
    /// Whether it may be begun.
    Crossed: Crossed {
        /// [`Cross::id`].
        id: u64,
        /// [`Cross::attempt`].
        attempt: u32,
        /// connect(2)'s; 0 = it may, has a place, and is to come through the door; EINPROGRESS = it
        /// waits for room.
        errno: u32,
        /// 1 = who is refused may find somebody there by packets.
        packets: u32,
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// Nobody wants it any more.
    Uncross: Uncross {
        /// [`Cross::id`].
        id: u64,
    }
}
body! {
    /// Memory of a circuit that crosses an agreement. An operator asks the supervisor for it, which
    /// gives the same to both sides.
    Share: Share {
        /// [`Cross::id`].
        id: u64,
        /// The agreement's tag on the side of who asks or is told.
        tag: u32,
        /// Of an answer without memory: why.
        errno: u32,
    }
}
body! {
    /// The program of the operator that says so has a circuit's memory.
    HasMemory: HasMemory {
        /// [`Cross::id`].
        id: u64,
        /// Of the program's socket, of which it can be asked whether it lives.
        cookie: u64,
        /// Likewise.
        inode: u32,
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// Nothing crosses an agreement any more.
    EndCrossing: EndCrossing {
        /// Its tag on this side.
        tag: u32,
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// A container was handed over and is not taken: its calls are told ENOSYS.
    ContainerRefused: ContainerRefused {
        /// The endpoint that it was to be of.
        slot: u32,
        /// `CONTAINER_*`.
        why: u32,
    }
}
/// Whoever handed it over is not root.
pub const CONTAINER_NOT_ROOT: u32 = 1;
/// Nothing was handed over.
pub const CONTAINER_NOTHING: u32 = 2;
/// What came is no seccomp listener.
pub const CONTAINER_NO_LISTENER: u32 = 3;
/// More than one descriptor came.
pub const CONTAINER_DESCRIPTORS: u32 = 4;
/// Its state is longer than any.
pub const CONTAINER_LONG: u32 = 5;
/// There are as many programs as there may be.
pub const CONTAINER_PROGRAMS: u32 = 6;
/// The operator could not keep it at that moment.
pub const CONTAINER_BUSY: u32 = 7;

body! {
    /// Start a meter for this compartment.
    WantMeter: WantMeter {
        /// Zero.
        reserved: u32,
        /// Zero.
        zero: u32,
    }
}
body! {
    /// Meter the circuits of a compartment; once more, with other pages.
    Meter: Meter {
        /// Slots of the counters page.
        slots: u32,
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// Count circuits here.
    MeterPage: MeterPage {
        /// Zero.
        reserved: u64,
    }
}
body! {
    /// Rates of an endpoint's circuits, bytes of data a second.
    MeterRates: MeterRates {
        /// Its slot; [`EVERYBODY`](crate::verbs::EVERYBODY): those told of since [`MeterPage`] are all, and of
        /// whom nothing was said have none.
        slot: u32,
        /// `METER_*` bits.
        flags: u32,
        /// What it may send; 0 = no limit.
        from: u64,
        /// And so many at once.
        from_burst: u64,
        /// What it may be sent; 0 = no limit.
        to: u64,
        /// And so many at once.
        to_burst: u64,
    }
}
/// [`MeterRates::flags`]: its bytes are counted in its slot of the counters page.
pub const METER_COUNTS: u32 = 1;
body! {
    /// Carry a circuit.
    Metered: Metered {
        /// Its number.
        id: u64,
        /// The slot of who began it.
        from: u32,
        /// The slot of the other.
        to: u32,
        /// Its addresses, in the same order, IPv4 ones as ::ffff:a.b.c.d: for captures.
        addresses: [[u8; 16]; 2],
        /// Its ports.
        ports: [u32; 2],
        /// Host-wide ids of the two endpoints; 0: not known, as of the release before.
        endpoints: [u32; 2],
        /// Their MACs.
        macs: [[u8; 6]; 2],
        /// Zero.
        reserved: u32,
    }
}
body! {
    /// End a circuit.
    EndMetered: EndMetered {
        /// Its number.
        id: u64,
    }
}
body! {
    /// Cut a circuit.
    CutCircuit: CutCircuit {
        /// Compartment id.
        compartment: u32,
        /// Zero.
        reserved: u32,
        /// The circuit's number.
        id: u64,
    }
}
