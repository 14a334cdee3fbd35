//! Which sockets live: a program that closes one tells nobody. The kernel lists those of this
//! process's network namespace, in which all circuits' sockets are made (sock_diag(7)).

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

/// struct nlmsghdr.
const HEADER: usize = 16;
/// struct unix_diag_req.
const REQUEST: usize = 24;
/// SOCK_DIAG_BY_FAMILY.
const BY_FAMILY: u16 = 20;
/// NLM_F_REQUEST | NLM_F_DUMP.
const DUMP: u16 = 0x301;
/// NLM_F_REQUEST: of one.
const ONE: u16 = 1;
/// Of so many at once: what comes has room to wait.
const AT_ONCE: usize = 64;
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
        let all = self.listed()?.into_iter();
        Ok(all.map(|(cookie, _)| cookie).collect())
    }

    /// Those of these, by inode and cookie: inodes by cookies.
    pub fn those(&self, asked: &[(u32, u64)]) -> Result<BTreeMap<u64, u64>, Errno> {
        those(&self.0, asked)
    }

    /// The same of all, each with its inode.
    pub fn sockets(&self) -> Result<BTreeMap<u64, u64>, Errno> {
        Ok(self.listed()?.into_iter().collect())
    }

    /// In the kernel's order: many thousands are quicker sorted at once than one by one.
    fn listed(&self) -> Result<Vec<(u64, u64)>, Errno> {
        send(&self.0, &request(), SendFlags::empty())?;
        let mut all = Vec::new();
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
                    _ => all.extend(socket(body)),
                }
                rest = after;
            }
        }
    }
}

/// Cookie and inode.
fn socket(body: &[u8]) -> Option<(u64, u64)> {
    let (inode, low, high) = (word(body, 4)?, word(body, 8)?, word(body, 12)?);
    Some((u64::from(low) | u64::from(high) << 32, inode.into()))
}

/// Those of these sockets, by inode and cookie, that live in the namespace of a socket that answers
/// of one at a time ([`netlink::witness`](../../host/netlink)): inodes by cookies.
///
/// # Errors
/// The kernel's.
pub fn those(witness: &OwnedFd, asked: &[(u32, u64)]) -> Result<BTreeMap<u64, u64>, Errno> {
    let mut all = BTreeMap::new();
    let mut buffer = vec![0; 4 << 10];
    let mut failed = Ok(());
    for some in asked.chunks(AT_ONCE) {
        let requests: Vec<u8> = some.iter().copied().flat_map(request_one).collect();
        send(witness, &requests, SendFlags::empty())?;
        // All answers are there by now, one each. Where one is missing the next would be another's.
        for _ in some {
            let came = recv(witness, &mut buffer[..], RecvFlags::DONTWAIT);
            let (length, _) = came.inspect_err(|_| drain(witness, &mut buffer))?;
            let answer = message(buffer.get(..length).unwrap_or_default());
            let Some((kind, body, _)) = answer else {
                continue;
            };
            match kind {
                BY_FAMILY => all.extend(socket(body)),
                // struct nlmsgerr: of what the kernel cannot tell it is not taken that it is closed.
                _ => match word(body, 0).map(|it| Errno::from_raw_os_error(-it.cast_signed())) {
                    Some(Errno::NOENT | Errno::STALE) | None => {}
                    Some(errno) => failed = Err(errno),
                },
            }
        }
    }
    failed.map(|()| all)
}

fn drain(witness: &OwnedFd, buffer: &mut [u8]) {
    for _ in 0..2 * AT_ONCE {
        // What was dropped is told once, and what is there comes after it.
        if recv(witness, &mut *buffer, RecvFlags::DONTWAIT) == Err(Errno::AGAIN) {
            return;
        }
    }
}

/// struct nlmsghdr and struct unix_diag_req: all states, whatever inode and cookie.
fn request() -> [u8; HEADER + REQUEST] {
    requests(DUMP, 0, u64::MAX)
}

fn request_one((inode, cookie): (u32, u64)) -> [u8; HEADER + REQUEST] {
    requests(ONE, inode, cookie)
}

fn requests(flags: u16, inode: u32, cookie: u64) -> [u8; HEADER + REQUEST] {
    let mut bytes = [0; HEADER + REQUEST];
    let mut put = |at: usize, part: &[u8]| {
        if let Some(place) = bytes.get_mut(at..at + part.len()) {
            place.copy_from_slice(part);
        }
    };
    put(0, &((HEADER + REQUEST) as u32).to_ne_bytes());
    put(4, &BY_FAMILY.to_ne_bytes());
    put(6, &flags.to_ne_bytes());
    put(HEADER, &[UNIX]);
    put(HEADER + 4, &u32::MAX.to_ne_bytes());
    put(HEADER + 8, &inode.to_ne_bytes());
    put(HEADER + 16, &(cookie as u32).to_ne_bytes());
    put(HEADER + 20, &((cookie >> 32) as u32).to_ne_bytes());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_asks_for_all_of_the_family_in_any_state() {
        let bytes = request();
        assert_eq!(bytes.len(), 40);
        assert_eq!(bytes[..4], 40_u32.to_ne_bytes());
        assert_eq!(bytes[4..8], [20, 0, 1, 3], "SOCK_DIAG_BY_FAMILY, a dump");
        assert_eq!((bytes[16], bytes[17]), (1, 0), "AF_UNIX, no protocol");
        assert_eq!(bytes[20..24], [0xff; 4], "every state");
        assert_eq!(
            bytes[24..32],
            [0; 8],
            "whatever inode; nothing but its number"
        );
        assert_eq!(bytes[32..], [0xff; 8], "whatever cookie");
    }

    #[test]
    fn messages_are_taken_one_by_one() {
        let mut bytes = vec![0; 48];
        bytes[..4].copy_from_slice(&21_u32.to_ne_bytes());
        bytes[4] = 20;
        bytes[24..28].copy_from_slice(&24_u32.to_ne_bytes());
        bytes[28] = 3;
        let (kind, body, rest) = message(&bytes).unwrap();
        assert_eq!(
            (kind, body.len(), rest.len()),
            (20, 5, 24),
            "aligned by four"
        );
        let (kind, body, rest) = message(rest).unwrap();
        assert_eq!((kind, body.len(), rest.len()), (3, 8, 0));
        assert!(message(rest).is_none());
    }

    #[test]
    fn no_answer_whatsoever_ends_in_a_panic_or_in_no_end() {
        for length in [0, 1, 15, 16, 17, 39, 40, u32::MAX - 2, u32::MAX] {
            for size in 0..64 {
                let mut bytes = vec![0xa5; size];
                if let Some(place) = bytes.get_mut(..4) {
                    place.copy_from_slice(&length.to_ne_bytes());
                }
                let (mut rest, mut count) = (bytes.as_slice(), 0);
                while let Some((_, body, after)) = message(rest) {
                    assert!(after.len() < rest.len() && body.len() <= rest.len());
                    (rest, count) = (after, count + 1);
                    let _ = (word(body, 8), word(body, 12));
                }
                assert!(count <= 4);
            }
        }
    }

    #[test]
    fn it_is_asked_of_one_socket_at_a_time_whether_it_lives() {
        let witness = ::netlink::witness().unwrap();
        let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino as u32;
        let made: Vec<_> = (0..100).map(|_| crate::sockets::stream(false)).collect();
        let made: Vec<_> = made.into_iter().map(Result::unwrap).collect();
        let mut asked: Vec<(u32, u64)> = made.iter().map(|it| (inode(&it.fd), it.cookie)).collect();
        let all: BTreeMap<u64, u64> = asked.iter().map(|(a, b)| (*b, u64::from(*a))).collect();
        assert_eq!(those(&witness, &asked).unwrap(), all);
        // Of another's inode, of one that is gone.
        asked[0].1 = asked[1].1;
        drop(made);
        assert_eq!(those(&witness, &asked).unwrap(), BTreeMap::new());
        // Who lists all learns of none.
        send(&witness, &request(), SendFlags::empty()).unwrap();
        let mut buffer = [0; 4096];
        let came = recv(&witness, &mut buffer[..], RecvFlags::DONTWAIT);
        assert_eq!(came.err(), Some(Errno::AGAIN));
    }

    #[test]
    fn a_socket_is_listed_for_as_long_as_it_lives() {
        let live = Live::new().unwrap();
        let made = crate::sockets::stream(false).unwrap();
        assert!(live.cookies().unwrap().contains(&made.cookie));
        let gone = made.cookie;
        drop(made);
        assert!(!live.cookies().unwrap().contains(&gone));
    }
}
