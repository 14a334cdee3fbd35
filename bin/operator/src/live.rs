//! Which sockets live: a program that closes one tells nobody. The kernel lists those of this
//! process's network namespace, in which all circuits' sockets are made (sock_diag(7)).

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

/// struct nlmsghdr.
const HEADER: usize = 16;
/// SOCK_DIAG_BY_FAMILY.
const BY_FAMILY: u16 = 20;
/// NLM_F_REQUEST | NLM_F_DUMP.
const DUMP: u16 = 0x301;
/// NLMSG_ERROR, NLMSG_DONE.
const ERROR: u16 = 2;
const DONE: u16 = 3;
const UNIX: u8 = 1;

/// What asks.
pub struct Live(OwnedFd);

impl Live {
    /// A socket that asks of this namespace.
    pub fn new() -> Result<Live, Errno> {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::RAW;
        let protocol = Some(netlink::SOCK_DIAG);
        socket_with(AddressFamily::NETLINK, kind, flags, protocol).map(Live)
    }

    /// The cookies of all sockets of the family that live.
    pub fn cookies(&self) -> Result<BTreeSet<u64>, Errno> {
        send(&self.0, &request(), SendFlags::empty())?;
        let mut all = BTreeSet::new();
        let mut buffer = vec![0; 64 << 10];
        // Bound: what the kernel lists, which ends with DONE.
        loop {
            let (length, _) = recv(&self.0, &mut buffer[..], RecvFlags::empty())?;
            let mut rest = buffer.get(..length).unwrap_or_default();
            while let Some((kind, body, after)) = message(rest) {
                match kind {
                    DONE => return Ok(all),
                    ERROR => return Err(Errno::IO),
                    // struct unix_diag_msg: four bytes, the inode, the cookie.
                    _ => all.extend(
                        word(body, 8)
                            .map(|low| u64::from(low))
                            .zip(word(body, 12))
                            .map(|(low, high)| low | u64::from(high) << 32),
                    ),
                }
                rest = after;
            }
        }
    }
}

/// struct nlmsghdr and struct unix_diag_req: all states, whatever inode and cookie.
fn request() -> [u8; HEADER + 24] {
    let mut bytes = [0; HEADER + 24];
    let mut put = |at: usize, part: &[u8]| {
        if let Some(place) = bytes.get_mut(at..at + part.len()) {
            place.copy_from_slice(part);
        }
    };
    put(0, &((HEADER + 24) as u32).to_ne_bytes());
    put(4, &BY_FAMILY.to_ne_bytes());
    put(6, &DUMP.to_ne_bytes());
    put(HEADER, &[UNIX]);
    put(HEADER + 4, &u32::MAX.to_ne_bytes());
    put(HEADER + 16, &[0xff; 8]);
    bytes
}

/// The first message: its kind, its body, and what follows.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = word(bytes, 0)? as usize;
    let kind = word(bytes, 4)? as u16;
    let body = bytes.get(HEADER..length)?;
    let after = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, body, after))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at + 4)?.first_chunk::<4>()?;
    Some(u32::from_ne_bytes(*four))
}
