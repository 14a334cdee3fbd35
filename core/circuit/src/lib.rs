//! Circuits: what a program is told whose TCP and UDP sockets are AF_UNIX sockets. Its
//! `connect`, `bind`, `listen`, `accept`, `getsockname`, `getpeername` and socket options are
//! answered from a [`Table`], as Linux answers them for TCP and for UDP; what Linux 6.18 answers was measured and
//! stands in the tests.
//!
//! The table is records of a fixed size: who keeps a copy of those that changed can go on
//! after a crash, with [`Table::restore`].

mod accept;
mod address;
mod asked;
mod binding;
mod connect;
mod datagram;
mod datagram_option;
mod errno;
mod facts;
mod groups;
mod option;
mod options;
mod queue;
mod record;
mod route;
mod sockets;
mod table;
#[cfg(test)]
mod tests;

pub use address::{Endpoint, Family, Ip, Named, SOCKADDR_BYTES, parse_bind, parse_connect, write};
pub use asked::{Asked, asked};
pub use binding::Addresses;
pub use connect::Connect;
pub use datagram::{Receiver, Way};
pub use errno::Errno;
pub use facts::Facts;
pub use option::{Options, Outcome};
pub use queue::Pending;
pub use record::{Carrier, Kind, RECORD, Socket, State, said};
pub use table::{Limits, Listener, Table};
