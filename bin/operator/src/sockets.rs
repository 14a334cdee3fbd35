//! The sockets that programs get for those they asked for.

use guard::guard;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::sockopt::{
    Timeout, set_socket_send_buffer_size, set_socket_timeout, socket_cookie, socket_error,
    socket_send_buffer_size, socket_timeout,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, connect, connect_unspec, listen, recvfrom, sendto, socket_with,
};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Connections that wait for an accept, in the kernel's queue.
const BACKLOG: i32 = 4096;
/// Bytes that a socket has under way at most are twice this, the kernel's own cost of each included, where
/// the host's net.core.wmem_max allows: what TCP has (net.ipv4.tcp_wmem). A program that writes so much before it
/// reads would wait for ever with less; and a file that is sent is waited for at every other 64 KiB of what sockets
/// have by themselves.
const UNDER_WAY: usize = 2 << 20;
/// The same of a socket of datagrams that has no more: to a quarter of it who polls is told that there is room.
const DATAGRAMS: usize = 416 << 10;
/// Sockets of an endpoint that have as much: what nobody has read is no process's memory, and a host has no bound on
/// it as on TCP's. Others have what any AF_UNIX socket has.
pub const WIDE: u32 = 256;
/// The least that the kernel waits: a jiffy.
const AT_ONCE: Duration = Duration::from_micros(1);

/// A socket of ours, and its cookie.
pub struct Made {
    /// The socket.
    pub fd: OwnedFd,
    /// What the kernel knows it by, for as long as it lives.
    pub cookie: u64,
}

/// A stream socket. Nobody can pass a descriptor to who reads it, or to who reads one that it
/// accepts. It is bound from its beginning, to a name that nobody guesses: what is bound cannot be
/// bound, so a program that has the kernel bind one socket and puts this in its place
/// meanwhile gives it nobody's name that was seen somewhere. The name's end says whose it is, to
/// who accepts a connection that it began.
pub fn stream(nonblocking: bool) -> Result<Made, Errno> {
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, nonblocking);
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    notify::refuse_descriptors(fd.as_fd())?;
    let made = made(fd)?;
    if guard!("circuits-bound") {
        let mut name = crate::mediate::secret()?;
        if let Some(end) = name.last_chunk_mut() {
            *end = made.cookie.to_ne_bytes();
        }
        bind(&made.fd, &SocketAddrUnix::new_abstract_name(&name)?)?;
    }
    Ok(made)
}

/// It may have more under way, where the endpoint has no more than so many others. One that is accepted has it not of its
/// listener.
pub fn widens(fd: &OwnedFd, others: u32) -> Result<(), Errno> {
    match others < WIDE || !guard!("circuits-wide") {
        true => set_socket_send_buffer_size(fd, UNDER_WAY),
        false => Ok(()),
    }
}

/// The cookie of the socket that began this connection; `None`: it has no name, as those have not
/// that an operator of before made.
pub fn began(accepted: &OwnedFd) -> Option<u64> {
    let name = abstract_name(notify::name_of(accepted.as_fd(), true).ok()?)?;
    name.last_chunk().map(|end| u64::from_ne_bytes(*end))
}

/// A datagram socket that is sent to by this name, and never makes its program wait for a
/// receiver that does not read: longer than the kernel's least wait.
pub fn datagram(nonblocking: bool, name: [u8; 16]) -> Result<Made, Errno> {
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, nonblocking);
    let fd = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    notify::refuse_descriptors(fd.as_fd())?;
    set_socket_timeout(&fd, Timeout::Send, Some(AT_ONCE))?;
    set_socket_send_buffer_size(&fd, DATAGRAMS)?;
    bind(&fd, &SocketAddrUnix::new_abstract_name(&name)?)?;
    made(fd)
}

/// Sends a datagram from a program's socket to who has this name.
///
/// # Errors
/// AGAIN: the receiver's queue is full, or what the sender has under way is as much as may be.
/// CONNREFUSED: nobody has the name. PERM: who has it hears another alone. PIPE: either is shut.
pub fn sends(fd: &OwnedFd, data: &[u8], name: [u8; 16]) -> Result<(), Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let address = SocketAddrUnix::new_abstract_name(&name)?;
    sendto(fd, data, flags, &address).map(drop)
}

/// The next datagram that waits at a socket: how many bytes it has, of which as many are in
/// `into` as there is room for, and who sent it.
pub fn receives(
    fd: &OwnedFd,
    into: &mut [u8],
    peeks: bool,
) -> Result<(usize, Option<[u8; 16]>), Errno> {
    let mut flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    flags.set(RecvFlags::PEEK, peeks);
    let (_, length, from) = recvfrom(fd, into, flags)?;
    let from = from.and_then(|from| SocketAddrUnix::try_from(from).ok());
    let name = from.and_then(|from| from.abstract_name()?.try_into().ok());
    Ok((length, name))
}

/// What it sends without saying to whom goes to nobody: it is told so once (ECONNREFUSED), and
/// then that it is not connected. An error that waited for it is gone.
pub fn connects_to_nobody(fd: &OwnedFd, name: [u8; 16]) -> Result<(), Errno> {
    let gone = datagram(true, name)?;
    connects(fd, name)?;
    drop(gone);
    forgets_error(fd)
}

/// Whether a socket may have more under way: a quarter of what it may is the kernel's mark.
pub fn has_room(fd: &impl AsFd) -> bool {
    is_polled(fd, PollFlags::OUT)
}

/// Whether something waits to be read.
pub fn has_some(fd: &impl AsFd) -> bool {
    is_polled(fd, PollFlags::IN)
}

fn is_polled(fd: &impl AsFd, what: PollFlags) -> bool {
    let mut fds = [PollFd::new(fd, what)];
    poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(what)
}

/// What a datagram keeps of the kernel's memory until it is read: no more than its bytes twice and a page's fourth.
pub fn keeps(length: usize) -> usize {
    2 * length + 1024
}

/// Whether a socket has this part (1: all, 4: a quarter) of what it may have under way also with so many bytes more.
pub fn fits(fd: &impl AsFd, length: usize, part: usize) -> bool {
    under_way(fd).is_some_and(|(now, most)| now + keeps(length) <= most / part)
}

/// Whether nothing that was sent by it lies unread anywhere.
pub fn is_all_read(fd: &impl AsFd) -> bool {
    under_way(fd).is_some_and(|(now, _)| now == 0)
}

/// Memory of what a socket has under way, and how much that may be.
pub fn under_way(fd: &impl AsFd) -> Option<(usize, usize)> {
    const MEMINFO: i32 = 55;
    const WORD: usize = size_of::<u32>();
    // SK_MEMINFO_WMEM_ALLOC and SK_MEMINFO_SNDBUF.
    const UNDER_WAY: usize = 2;
    const MOST: usize = 3;
    let mut words = [0; 9 * WORD];
    let told = notify::option(fd.as_fd(), libc::SOL_SOCKET, MEMINFO, &mut words);
    let word = |at: usize| {
        let bytes = words.get(at * WORD..)?.first_chunk()?;
        usize::try_from(u32::from_ne_bytes(*bytes)).ok()
    };
    let is_told = told.is_ok_and(|told| told > MOST * WORD);
    word(UNDER_WAY).zip(word(MOST)).filter(|_| is_told)
}

/// What waits at a socket is lost; how many datagrams that were. Bound: somewhat more than wait
/// there at most, so that who sends meanwhile does not hold this up.
pub fn drains(fd: &OwnedFd) -> u64 {
    let one = |_: &u64| receives(fd, &mut [0], false).is_ok();
    (0..1024_u64).take_while(one).count() as u64
}

/// An error that waits to be told is gone.
pub fn forgets_error(fd: &OwnedFd) -> Result<(), Errno> {
    socket_error(fd).map(drop)
}

/// It is connected to nobody.
pub fn disconnects(fd: &OwnedFd) -> Result<(), Errno> {
    connect_unspec(fd)
}

/// It waits as long as the other for something to read, and for room, and has as much.
pub fn waits_as(fd: &OwnedFd, other: &OwnedFd) -> Result<(), Errno> {
    for which in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(fd, which, socket_timeout(other, which)?)?;
    }
    // It is told twice what was set.
    set_socket_send_buffer_size(fd, socket_send_buffer_size(other)? / 2)
}

/// How long a receive, or an accept, waits.
pub fn patience(fd: &OwnedFd) -> Option<Duration> {
    socket_timeout(fd, Timeout::Recv).ok().flatten()
}

/// How long a connect waits.
pub fn patience_to_connect(fd: &OwnedFd) -> Option<Duration> {
    socket_timeout(fd, Timeout::Send).ok().flatten()
}

/// With its cookie.
pub fn made(fd: OwnedFd) -> Result<Made, Errno> {
    let cookie = socket_cookie(&fd)?;
    Ok(Made { fd, cookie })
}

/// The name that it is bound to, which it listens by.
pub fn name(fd: &OwnedFd) -> Option<[u8; 16]> {
    abstract_name(notify::name_of(fd.as_fd(), false).ok()?)
}

fn abstract_name(address: Vec<u8>) -> Option<[u8; 16]> {
    // sun_family, and a zero.
    match address.split_first_chunk::<3>()? {
        ([_, _, 0], name) => name.try_into().ok(),
        _ => None,
    }
}

/// Has it listen under its name; under this one where it has none, as those have that an
/// operator of before made. In a network namespace that no program is in.
pub fn listens(fd: &OwnedFd, name: [u8; 16]) -> Result<(), Errno> {
    let address = SocketAddrUnix::new_abstract_name(&name)?;
    match bind(fd, &address) {
        Ok(()) | Err(Errno::INVAL) => listen(fd, BACKLOG),
        Err(errno) => Err(errno),
    }
}

/// Connects it to who has a name. A stream may wait for room there.
pub fn connects(fd: &OwnedFd, name: [u8; 16]) -> Result<(), Errno> {
    connect(fd, &SocketAddrUnix::new_abstract_name(&name)?)
}

/// Connects a stream to who listens under a name, and never waits for room there: the program that
/// listens can have the kernel's queue hold less than the table lets in. `flags` are its own.
///
/// # Errors
/// AGAIN: there is no room. The kernel's.
pub fn connects_at_once(fd: &OwnedFd, flags: OFlags, name: [u8; 16]) -> Result<(), Errno> {
    if flags.contains(OFlags::NONBLOCK) || !guard!("circuits-connects") {
        return connects(fd, name);
    }
    // Nothing is sent by what is not connected: nobody else minds meanwhile.
    fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
    let connected = connects(fd, name);
    fcntl_setfl(fd, flags)?;
    connected
}

/// Whether the operator before has connected it. What a program has the kernel connect by itself, past this process, is
/// connected to a path: of other names there are none that are not of operators, in the namespace that circuits are of.
pub fn is_joined(fd: &OwnedFd) -> bool {
    const FAMILY: usize = size_of::<libc::sa_family_t>();
    let name = notify::name_of(fd.as_fd(), true);
    name.is_ok_and(|name| name.get(FAMILY) == Some(&0) || !guard!("circuits-joined-by-path"))
}

/// Whether its program waits at it.
pub fn blocks(fd: &OwnedFd, blocks: bool) -> Result<(), Errno> {
    let mut flags = fcntl_getfl(fd)?;
    flags.set(OFlags::NONBLOCK, !blocks);
    fcntl_setfl(fd, flags)
}

/// Whether something waits to be read or accepted.
pub fn is_readable(fd: &OwnedFd) -> Result<bool, Errno> {
    let now = Timespec::default();
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)).map(|ready| ready != 0)
}

/// The connection that waits longest; `None`: none does. It is `taken` next, where there is one. Nobody else accepts here,
/// so that one that waited still does.
pub fn accepts(
    fd: &OwnedFd,
    nonblocking: bool,
    taken: impl FnOnce(),
) -> Result<Option<OwnedFd>, Errno> {
    if !is_readable(fd)? {
        return Ok(None);
    }
    taken();
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, nonblocking);
    match accept_with(fd, flags) {
        Err(Errno::AGAIN) => Ok(None),
        came => came.map(Some),
    }
}

/// The same where a program may accept by itself meanwhile: it is not waited for the next one.
pub fn accepts_at_once(
    fd: &OwnedFd,
    nonblocking: bool,
    taken: impl FnOnce(),
) -> Result<Option<OwnedFd>, Errno> {
    let flags = fcntl_getfl(fd)?;
    let is_plain = flags.contains(OFlags::NONBLOCK) || !is_readable(fd)?;
    if is_plain || !guard!("circuits-accepts-at-once") {
        return accepts(fd, nonblocking, taken);
    }
    fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
    let came = accepts(fd, nonblocking, taken);
    let _ = fcntl_setfl(fd, flags);
    came
}

/// The cookie of the network namespace that a socket is of (SO_NETNS_COOKIE), by which of those that an operator does
/// not know circuits can be told from programs' own.
pub fn namespace(fd: &impl AsFd) -> Option<u64> {
    const NETNS_COOKIE: i32 = 71;
    let mut cookie = [0; 8];
    let length = notify::option(fd.as_fd(), libc::SOL_SOCKET, NETNS_COOKIE, &mut cookie);
    (length == Ok(8)).then(|| u64::from_ne_bytes(cookie))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_full_listener_holds_nobody_up() {
        let listener = stream(false).unwrap();
        let own = name(&listener.fd).unwrap();
        listens(&listener.fd, own).unwrap();
        // As a program can have it past this process.
        listen(&listener.fd, 0).unwrap();
        let first = stream(false).unwrap();
        let connects = move |fd: &OwnedFd| connects_at_once(fd, fcntl_getfl(fd).unwrap(), own);
        assert_eq!(connects(&first.fd), Ok(()));
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let second = stream(false).unwrap();
            let connected = connects(&second.fd);
            let flags = fcntl_getfl(&second.fd).unwrap();
            tell.send((connected, flags.contains(OFlags::NONBLOCK)))
        });
        let told = told.recv_timeout(Duration::from_secs(5));
        assert_eq!(told, Ok((Err(Errno::AGAIN), false)));
    }

    /// Whatever their sizes are: who polls it may send to others.
    #[test]
    fn what_fits_a_quarter_leaves_room_to_whoever_polls() {
        for length in [0, 1, 100, 700, 1472, 4000, 5000, 9000, 17_000, 20_000] {
            let made = || datagram(true, crate::mediate::secret().unwrap()).unwrap();
            let (sender, mut receivers) = (made(), Vec::new());
            while fits(&sender.fd, length, 4) {
                // One of them has few that wait.
                let receiver = made();
                sends(&sender.fd, &vec![7; length], name(&receiver.fd).unwrap()).unwrap();
                receivers.push(receiver);
            }
            let sent = receivers.len();
            assert!(sent > 0 && has_room(&sender.fd), "{length}: {sent}");
        }
    }

    #[test]
    fn what_leads_to_a_path_was_not_joined() {
        let path = std::env::temp_dir().join(format!("joined-{}", std::process::id()));
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let elsewhere = stream(false).unwrap().fd;
        rustix::net::connect(&elsewhere, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let listener = stream(false).unwrap();
        let own = name(&listener.fd).unwrap();
        listens(&listener.fd, own).unwrap();
        let fd = stream(false).unwrap().fd;
        assert!(!is_joined(&fd));
        connects(&fd, own).unwrap();
        assert_eq!((is_joined(&fd), is_joined(&elsewhere)), (true, false));
    }

    /// A program may accept what was seen there by itself, if another thread has the kernel do it.
    #[test]
    fn what_somebody_else_accepts_is_not_waited_for() {
        let listener = stream(false).unwrap();
        let own = name(&listener.fd).unwrap();
        listens(&listener.fd, own).unwrap();
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let client = stream(false).unwrap();
            connects(&client.fd, own).unwrap();
            let steals = || drop(accept_with(&listener.fd, SocketFlags::CLOEXEC).unwrap());
            let came = accepts_at_once(&listener.fd, true, steals);
            let flags = fcntl_getfl(&listener.fd).unwrap();
            connects(&stream(false).unwrap().fd, own).unwrap();
            let next = accepts_at_once(&listener.fd, true, || {});
            let next = next.is_ok_and(|it| it.is_some());
            tell.send((came.map(drop), flags.contains(OFlags::NONBLOCK), next))
        });
        let told = told.recv_timeout(Duration::from_secs(5));
        assert_eq!(told, Ok((Ok(()), false, true)));
    }
}
