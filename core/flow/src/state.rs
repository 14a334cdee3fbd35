//! States of a connection, how long each may be silent, and why a packet does not fit.

/// A second of [`crate::Connections`]' time, nanoseconds.
pub const SECOND: u64 = 1_000_000_000;
/// Half-open or half-closed TCP may be silent for so long: the transitory idle time-out
/// of RFC 5382, REQ-5.
pub const TCP_TRANSITORY: u64 = 240 * SECOND;
/// Established TCP: two hours and four minutes (RFC 5382, REQ-5).
pub const TCP_ESTABLISHED: u64 = 7440 * SECOND;
/// Both sides sent FIN: twice the maximum segment lifetime (RFC 9293, section 3.4.2).
pub const TCP_TIME_WAIT: u64 = 240 * SECOND;
/// After a RST: long enough for what was on its way. Nothing asks for more.
pub const TCP_RESET: u64 = 10 * SECOND;
/// UDP without answer: the least of RFC 4787, REQ-5.
pub const UDP_UNREPLIED: u64 = 120 * SECOND;
/// UDP with answers, or any other protocol: what RFC 4787, REQ-5 recommends.
pub const UDP_REPLIED: u64 = 300 * SECOND;
/// Echo: the least of RFC 5508, REQ-1.
pub const ECHO: u64 = 60 * SECOND;

/// Established TCP that was silent for so long gives way to a new connection of the
/// same owner when its places are all taken; it stays where they are not.
pub const TCP_IDLE: u64 = 900 * SECOND;
/// The same for half-closed TCP and for answered connections of other protocols.
pub const OTHER_IDLE: u64 = 60 * SECOND;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// TCP: a SYN of the initiator.
    SynSent = 1,
    /// TCP: SYNs of both sides, not both acknowledged.
    SynReceived = 2,
    /// TCP: both acknowledged, or restored.
    Established = 3,
    /// TCP: one side sent FIN.
    HalfClosed = 4,
    /// TCP: both did.
    TimeWait = 5,
    /// TCP: one side sent RST.
    Reset = 6,
    /// Not TCP: no answer yet.
    Unreplied = 7,
    /// Not TCP: answered.
    Replied = 8,
    /// Not TCP: answered, and the initiator went on.
    Stream = 9,
}

impl State {
    /// Of its number in a record or journal.
    pub const fn of(number: u8) -> Option<State> {
        Some(match number {
            1 => State::SynSent,
            2 => State::SynReceived,
            3 => State::Established,
            4 => State::HalfClosed,
            5 => State::TimeWait,
            6 => State::Reset,
            7 => State::Unreplied,
            8 => State::Replied,
            9 => State::Stream,
            _ => return None,
        })
    }

    /// Its name for people and programs.
    pub const fn slug(self) -> &'static str {
        match self {
            State::SynSent => "syn-sent",
            State::SynReceived => "syn-received",
            State::Established => "established",
            State::HalfClosed => "half-closed",
            State::TimeWait => "time-wait",
            State::Reset => "reset",
            State::Unreplied => "unreplied",
            State::Replied => "replied",
            State::Stream => "stream",
        }
    }

    /// Only one side was heard, or TCP's handshake is not over: a flood is made of
    /// these.
    pub const fn is_half_open(self) -> bool {
        matches!(self, State::SynSent | State::SynReceived | State::Unreplied)
    }

    /// The connection is over, and only stragglers are waited for.
    pub const fn is_over(self) -> bool {
        matches!(self, State::TimeWait | State::Reset)
    }

    /// Nanoseconds of silence after which the connection is gone.
    pub const fn timeout(self, protocol: u8) -> u64 {
        let echo = matches!(protocol, wire::icmpv4::PROTOCOL | wire::icmpv6::PROTOCOL);
        match self {
            State::SynSent | State::SynReceived | State::HalfClosed => TCP_TRANSITORY,
            State::Established => TCP_ESTABLISHED,
            State::TimeWait => TCP_TIME_WAIT,
            State::Reset => TCP_RESET,
            State::Unreplied | State::Replied | State::Stream if echo => ECHO,
            State::Unreplied => UDP_UNREPLIED,
            State::Replied | State::Stream => UDP_REPLIED,
        }
    }

    /// Nanoseconds of silence after which it gives way to another of the same owner,
    /// where there is no other place.
    pub const fn idle(self) -> u64 {
        match self {
            State::TimeWait | State::Reset => 0,
            State::Established => TCP_IDLE,
            _ => OTHER_IDLE,
        }
    }
}

/// Why a packet does not belong to the connection that its tuple names: its sender's
/// doing, dropped and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Invalid {
    /// TCP flags that no implementation sends together.
    Flags,
    /// TCP that begins without SYN, or goes on before the other side's.
    NotSyn,
    /// A sequence number outside what the receiver allows.
    Sequence,
    /// An acknowledgement of what was not sent, or long ago.
    Acknowledgement,
    /// A RST outside the receiver's window.
    Reset,
    /// An echo reply that nobody asked for.
    Unsolicited,
    /// An ICMP error about what was not sent.
    Unrelated,
    /// A packet of another kind than the connection's.
    Kind,
}

impl core::fmt::Display for Invalid {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Invalid::Flags => "TCP flags that contradict each other",
            Invalid::NotSyn => "TCP that does not begin with SYN",
            Invalid::Sequence => "a sequence number outside the window",
            Invalid::Acknowledgement => "an acknowledgement of what was not sent",
            Invalid::Reset => "a RST outside the window",
            Invalid::Unsolicited => "an echo reply that nobody asked for",
            Invalid::Unrelated => "an ICMP error about what was not sent",
            Invalid::Kind => "a packet of another kind than its connection",
        })
    }
}

impl core::error::Error for Invalid {}
