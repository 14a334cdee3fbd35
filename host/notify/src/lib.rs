//! Seccomp user notification: an unmodified program's socket calls, answered by
//! another process.
//!
//! The launcher [`start`]s the program: a user namespace that the operator's uid owns, a
//! network namespace with nothing but `lo`, and the [`filter`] that notifies. The
//! operator takes the descriptor that comes of it as a [`Listener`], reads what a call
//! points to by a [`Target`], and answers. What it has read is a copy: the program can
//! change its own memory meanwhile, so the operator acts on the copy and answers the
//! call itself; [`Listener::proceed`] is not for decisions.
//!
//! Linux 5.19 and x86_64 only.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("the filter names the system calls of Linux on x86_64");

mod apart;
mod child;
mod fault;
pub mod filter;
mod hurry;
mod inherited;
mod interrupt;
mod listener;
mod option;
mod owner;
mod passed;
mod run;
pub mod search;
mod target;

pub use apart::{Came, End, Seen, apart, end, end_apart, leave_no_children};
pub use child::scope;
pub use fault::{Error, Step};
pub use hurry::hurry;
pub use inherited::keep_network_sockets;
pub use interrupt::Interrupted;
pub use listener::{
    Listener, Notification, Outcome, RECEIVED, Sizes, is_called_listener, is_listener, received,
};
pub use option::{
    PASS_RIGHTS, name_of, option, refuse_descriptors, refuses_descriptors, set_option,
};
pub use owner::{is_within, owners, share_descriptors, user_namespace, user_namespace_at_once};
pub use passed::passed;
pub use run::{Ids, Namespaces, OWN, Plan, Running, Started, User, namespaces, start};
pub use target::{OpenError, PIECES, Target, copying};

/// The kernel's error numbers, as answered to programs.
pub use rustix::io::Errno;
