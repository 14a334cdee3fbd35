//! Sockets of TCP in the endpoint's namespace, none of which ever blocks.

use guard::guard;
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, acceptfrom_with, bind, connect, getsockname, ipproto,
    listen, socket_with,
};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// A connect that nobody answers has failed after so long, ms: whoever asked for it waits.
const PATIENCE: u32 = 7000;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
/// So many may come before this process looks.
const BURST: u32 = 1024;
/// Who answers a handshake sooner is on this host, or beside it.
const NEAR: Duration = Duration::from_millis(1);
/// Towards these: what knows of no pace. There is nothing to find out about the way, and a pace is a timer
/// for every few segments.
const NEAR_CONTROL: &str = "reno";

/// An address as messages have it, where ::ffff:a.b.c.d is IPv4's.
pub fn address(ip: [u8; 16], port: u32) -> SocketAddr {
    let ip = Ipv6Addr::from(ip);
    let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
    SocketAddr::new(ip, port as u16)
}

/// And back.
pub fn numbers(address: SocketAddr) -> ([u8; 16], u32) {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or(ip, |ip| ip.to_ipv6_mapped()),
    };
    (ip.octets(), u32::from(address.port()))
}

/// Whatever a socket sends and takes goes by this interface from now on, and so to a switch: what the
/// namespace's routes say, and others' addresses in it, lead nowhere. An address of the interface's own is that
/// namespace's still.
///
/// # Errors
/// PERM: Linux 5.7 is needed. NODEV: none is said.
pub fn keep_to(fd: &OwnedFd, interface: u32) -> Result<(), Errno> {
    if !guard!("proxy-interface") {
        return Ok(());
    }
    if interface == 0 {
        return Err(Errno::NODEV);
    }
    let index = interface.to_ne_bytes();
    notify::set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, &index)
}

/// Whether this is an address of the loopback, or is taken for one.
pub fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().is_loopback() || address.ip().is_unspecified()
}

fn stream(address: &SocketAddr, interface: Option<u32>) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let fd = socket_with(family, SocketType::STREAM, FLAGS, Some(ipproto::TCP))?;
    if let Some(interface) = interface {
        keep_to(&fd, interface)?;
    }
    sockopt::set_socket_reuseaddr(&fd, true)?;
    // A pace that was begun stays, so the host's own comes later, where it does.
    if guard!("proxy-near") {
        let _ = sockopt::set_tcp_congestion(&fd, NEAR_CONTROL);
    }
    Ok(fd)
}

/// Gives a connection that has come about the host's own congestion control, if its other end is not near.
fn settle(fd: &OwnedFd, near: Duration) {
    if round_trip(fd).is_some_and(|time| time < near) {
        return;
    }
    let hosts = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        FLAGS,
        Some(ipproto::TCP),
    )
    .and_then(|fresh| sockopt::tcp_congestion(&fresh));
    if let Ok(hosts) = hosts {
        let _ = sockopt::set_tcp_congestion(fd, &hosts);
    }
}

/// What the handshake took; `None`: not known.
fn round_trip(fd: &OwnedFd) -> Option<Duration> {
    const AT: usize = std::mem::offset_of!(libc::tcp_info, tcpi_rtt);
    let mut info = [0; AT + 4];
    notify::option(fd.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, &mut info).ok()?;
    let micros = u32::from_ne_bytes(*info.last_chunk()?);
    (micros != 0).then(|| Duration::from_micros(micros.into()))
}

/// Begins to connect, by an interface.
///
/// # Errors
/// The kernel's. INVAL: from the loopback to elsewhere.
pub fn begin(from: &SocketAddr, to: &SocketAddr, interface: u32) -> Result<OwnedFd, Errno> {
    // What is at the loopback is the namespace's own, whatever its routes, and no packet to it leaves.
    let interface = match (
        is_loopback(from),
        is_loopback(to) && guard!("proxy-loopback"),
    ) {
        (_, true) => None,
        (true, false) => return Err(Errno::INVAL),
        (false, false) => Some(interface),
    };
    let fd = stream(to, interface)?;
    sockopt::set_tcp_nodelay(&fd, true)?;
    sockopt::set_tcp_user_timeout(&fd, PATIENCE)?;
    bind(&fd, from)?;
    match connect(&fd, to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(errno) => Err(errno),
    }
}

/// What came of it.
pub fn begun(fd: &OwnedFd) -> Result<(), Errno> {
    sockopt::socket_error(fd)??;
    settle(fd, NEAR);
    // From here on it may be silent for as long as the kernel lets it: who reads late, or is away for a while,
    // loses nothing.
    if guard!("proxy-patient") {
        sockopt::set_tcp_user_timeout(fd, 0)?;
    }
    Ok(())
}

/// Listens, for who comes by an interface.
pub fn serve(at: &SocketAddr, backlog: u32, only6: bool, interface: u32) -> Result<OwnedFd, Errno> {
    let fd = stream(at, Some(interface))?;
    // Beside others of this process's alone: which of an endpoint's sockets may have a port its operator knows.
    if guard!("proxy-shares-port") {
        sockopt::set_socket_reuseport(&fd, true)?;
    }
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, only6)?;
    }
    sockopt::set_tcp_nodelay(&fd, true)?;
    bind(&fd, at)?;
    listens(&fd, backlog)?;
    Ok(fd)
}

/// So many connections wait there at most, which may be said again. Where they wait is not here: each is accepted at once, and a few
/// that a program asks for are less than come in a moment, whose last packet of the handshake the kernel drops then, or resets.
pub fn listens(fd: impl AsFd, backlog: u32) -> Result<(), Errno> {
    listen(fd, backlog.clamp(BURST, 4096) as i32)
}

/// Who connected: the connection, from where, to where.
pub fn accept(fd: impl AsFd) -> Result<(OwnedFd, SocketAddr, SocketAddr), Errno> {
    let (made, from) = acceptfrom_with(fd, FLAGS)?;
    settle(&made, NEAR);
    let to = SocketAddr::try_from(getsockname(&made)?)?;
    let from = SocketAddr::try_from(from.ok_or(Errno::NOTCONN)?)?;
    Ok((made, from, to))
}

/// Has it end with a reset, when it is closed.
pub fn resets(fd: impl AsFd) {
    // Else it ends as one that was closed in order: nothing more can be done.
    let _ = sockopt::set_socket_linger(fd, Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The index of `lo`, in whatever namespace.
    const LOOPBACK: u32 = 1;

    #[test]
    fn addresses_are_the_same_there_and_back() {
        for text in ["10.1.2.3:80", "[fd00::7]:443", "0.0.0.0:1"] {
            let it: SocketAddr = text.parse().unwrap();
            let (ip, port) = numbers(it);
            assert_eq!(address(ip, port), it);
        }
        let mapped = "[::ffff:10.1.2.3]:80".parse().unwrap();
        assert_eq!(numbers(mapped), numbers("10.1.2.3:80".parse().unwrap()));
    }

    #[test]
    fn who_is_near_is_sent_to_without_a_pace_and_others_as_the_host_does() {
        let at = "127.0.0.1:0".parse().unwrap();
        let served = serve(&at, 4, false, LOOPBACK).unwrap();
        let to = SocketAddr::try_from(getsockname(&served).unwrap()).unwrap();
        let made = begin(&at, &to, LOOPBACK).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let (accepted, _) = acceptfrom_with(&served, FLAGS).unwrap();
        let control = |fd: &OwnedFd| sockopt::tcp_congestion(fd).unwrap();
        for one in [&made, &accepted] {
            // A handshake of a busy machine may take longer than is near.
            settle(one, Duration::from_secs(1));
            assert_eq!(control(one), NEAR_CONTROL);
        }
        let hosts = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
        for one in [&made, &accepted] {
            settle(one, Duration::ZERO);
            assert_eq!(control(one), hosts.trim());
        }
    }

    #[test]
    fn a_connection_that_came_about_may_be_silent_for_as_long_as_the_kernel_lets_it() {
        let at = "127.0.0.1:0".parse().unwrap();
        let served = serve(&at, 4, false, LOOPBACK).unwrap();
        let to = SocketAddr::try_from(getsockname(&served).unwrap()).unwrap();
        let made = begin(&at, &to, LOOPBACK).unwrap();
        assert_eq!(sockopt::tcp_user_timeout(&made), Ok(PATIENCE));
        let (accepted, ..) = until_accepted(&served);
        assert_eq!(begun(&made), Ok(()));
        for one in [&made, &accepted] {
            assert_eq!(sockopt::tcp_user_timeout(one), Ok(0));
        }
    }

    /// Who connected, once it has: `served` never blocks.
    fn until_accepted(served: &OwnedFd) -> (OwnedFd, SocketAddr, SocketAddr) {
        loop {
            match accept(served) {
                Err(Errno::AGAIN) => std::thread::yield_now(),
                outcome => return outcome.unwrap(),
            }
        }
    }

    /// Its program asked for few to wait, and has them wait elsewhere.
    #[test]
    fn who_comes_in_a_burst_is_there_whatever_its_program_asked_for() {
        let at = "127.0.0.1:0".parse().unwrap();
        let served = serve(&at, 1, false, LOOPBACK).unwrap();
        let to = SocketAddr::try_from(getsockname(&served).unwrap()).unwrap();
        let all: Vec<_> = (0..300)
            .map(|_| begin(&at, &to, LOOPBACK).unwrap())
            .collect();
        // Who is told nothing comes again after a second.
        std::thread::sleep(Duration::from_millis(300));
        let came = std::iter::from_fn(|| accept(&served).ok()).count();
        assert_eq!(came, all.len());
    }

    #[test]
    fn one_who_is_refused_is_told() {
        let at = "127.0.0.1:0".parse().unwrap();
        let served = serve(&at, 4, false, LOOPBACK).unwrap();
        let to = SocketAddr::try_from(getsockname(&served).unwrap()).unwrap();
        let made = begin(&at, &to, LOOPBACK).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(begun(&made), Ok(()));
        let (_, from, there) = accept(&served).unwrap();
        assert_eq!(there, to);
        assert_eq!(
            from,
            SocketAddr::try_from(getsockname(&made).unwrap()).unwrap()
        );
        drop(served);
        let outcome = begin(&at, &to, LOOPBACK).and_then(|made| {
            std::thread::sleep(Duration::from_millis(20));
            begun(&made)
        });
        assert_eq!(outcome, Err(Errno::CONNREFUSED));
    }
}
