//! Circuits of Bulkhead for programs that know of them.
//!
//! A [`Circuit`] is a connection as a `TcpStream` is. Where both its programs use this library,
//! in endpoints of circuits of one tenant, or across an agreement both of whose sides ask for rings, its bytes go through memory that both have; with
//! anybody else, or outside of Bulkhead, they go by the socket. Nobody has to know which.
//!
//! Data can be made and used in place: [`Circuit::reserve`] gives room that is filled and then
//! committed, [`Circuit::peek`] what came, to be used and then consumed. Neither gives a
//! reference: the peer can write that memory at any time, so what is to be judged is copied
//! first ([`Peeked::chunks`] does so, a little at a time).
//!
//! A circuit has one owner: a process that forks, or hands the descriptor on, does not use it
//! any more. An event loop polls [`AsFd::as_fd`](std::os::fd::AsFd) as it does a socket: it is
//! readable for as long as there is something to read, and writable while a write takes bytes.

mod ask;
mod circuit;
mod listener;
mod peeked;
mod reserved;
mod socket;

pub use ask::{memory_of, takes_all_in_line};
pub use circuit::{Circuit, Way};
pub use listener::Listener;
pub use peeked::Peeked;
pub use reserved::Reserved;
pub use shm::LINE;
pub use stream::{Breach, CAPACITY, Side};

#[cfg(test)]
mod tests;
