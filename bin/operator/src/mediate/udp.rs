//! Calls at datagram sockets.
//!
//! A connected pair is linked, and its data pass no process of ours (`links`); what has each its own
//! destination or source goes by this one (`calls`), kept where nobody reads yet (`spares`), and who waits for
//! some is `waiting`. What lies unread is `sent`'s to know. To and from who has packets it goes by a proxy (`outside`).

mod calls;
mod datagrams;
mod gone;
mod late;
mod links;
mod outside;
mod sent;
mod spares;
mod waiting;

use super::*;
pub(super) use datagrams::Datagrams;
#[cfg(test)]
pub(super) use datagrams::Taken;
pub(super) use outside::Outside;
