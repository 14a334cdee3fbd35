//! `libbulkhead_preload.so`: loaded before a program's other libraries (`LD_PRELOAD`, or `bulkhead
//! run --rings`), it takes the place of the C library's calls on sockets, so that circuits
//! between two programs that both have it go by the ring of `core/stream`. Outside of Bulkhead,
//! and for all other descriptors, each call is what it was.
//!
//! - A stream socket is followed from `socket` or `accept` on (`table`, `record`). At first its calls
//!   go to the kernel as they are, and the bytes are counted (`calls`).
//! - After so many bytes in calls that are worth it the operator is asked for the ring, if no other
//!   process has the socket. Then bytes go by it (`send`, `receive`), and the socket is a doorbell: poll, epoll
//!   and select need nothing. `record` lies in memory that a forked process shares.
//! - What the ring cannot do, or what hands the socket to somebody without this library, brings
//!   the circuit back to a plain socket (`leave`): before the ring by staying with it, after it by a
//!   process that carries the bytes between the ring and a pair of sockets.

mod arena;
mod calls;
mod cancelled;
mod descriptors;
mod elsewhere;
mod forking;
mod gate;
mod given;
mod leave;
mod line;
mod lock;
mod log;
mod memory;
mod moves;
mod orphan;
mod patience;
mod processes;
mod real;
mod receive;
mod record;
mod send;
mod socket;
mod table;
mod told;
mod users;
mod variadic;
mod waits;
mod watched;
