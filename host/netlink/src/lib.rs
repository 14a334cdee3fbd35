//! Links, addresses, routes and network namespaces, synchronously.
//!
//! Everything acts in the network namespace that is current for the calling
//! thread when the socket is opened. A namespace is set up with one [`Netlink`]
//! and a few [`Batch`]es: all requests of a batch go out in one system call.

mod batch;
mod link;
pub mod namespace;
mod socket;
mod witness;

pub use batch::Batch;
pub use link::{Address, Link};
pub use socket::Netlink;
pub use witness::witness;

use rustix::io::Errno;

/// What went wrong: the host's fault, or the spec's when it names what is not there.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket failed.
    #[error("netlink socket: {0}")]
    Socket(#[source] std::io::Error),
    /// The kernel refused a request.
    #[error("cannot {what}: {errno}")]
    Refused {
        /// The request, for a person.
        what: String,
        /// What the kernel said.
        errno: Errno,
    },
    /// No interface has this name.
    #[error("no interface {0:?} in this network namespace")]
    NoLink(String),
    /// The kernel's answer could not be read: our bug or a kernel newer than we know.
    #[error("unreadable netlink answer: {0}")]
    Answer(String),
}

impl NetlinkError {
    /// The kernel's error number, if it refused.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            NetlinkError::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}
