//! What a socket's options follow from besides themselves.

use crate::{Endpoint, Family, Kind, State};

/// A socket as its options see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// What it carries.
    pub kind: Kind,
    /// Of which addresses.
    pub family: Family,
    /// Where it stands.
    pub state: State,
    /// Whether it holds a port.
    pub held: bool,
    /// The other end, where it is connected.
    pub peer: Option<Endpoint>,
    /// Connections that wait there, where it listens.
    pub waiting: u32,
}

impl Facts {
    /// What `TCP_INFO` says of a listening socket: how many wait, and how many may (`tcpi_unacked`, `tcpi_sacked`).
    pub(crate) const fn queue(&self) -> [u32; 2] {
        match self.state {
            State::Listening { backlog } => [self.waiting, backlog],
            _ => [0; 2],
        }
    }

    /// The number of its state as `TCP_INFO` has it.
    #[must_use]
    pub(crate) const fn tcp_state(&self) -> u8 {
        match self.state {
            State::Connected => 1,
            State::Connecting => 2,
            State::Fresh | State::Bound => 7,
            State::Listening { .. } => 10,
        }
    }
}
