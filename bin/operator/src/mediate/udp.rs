//! Calls at datagram sockets.
//!
//! `transitions` are how one is made, bound and connected, and who was `asked` there may answer. A
//! connected pair is linked, and its data pass no process of ours (`links`); what has each its own
//! destination or source goes by this one (`relayed`), kept where nobody reads yet (`spares`), and
//! who waits for some is `waiting`. What lies unread is `sent`'s to know. To and from who has
//! packets it goes by a proxy (`outside`; `far` knows its sockets).

mod far;
mod gone;
mod late;
mod links;
mod outside;
mod relayed;
mod sent;
mod spares;
mod transitions;
mod waiting;

use super::*;
pub(super) use far::Outside;
pub(super) use transitions::Datagrams;
#[cfg(test)]
pub(super) use transitions::Taken;
