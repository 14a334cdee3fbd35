//! Sockets of TCP in the endpoint's namespace, none of which ever blocks.

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

fn stream(address: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let fd = socket_with(family, SocketType::STREAM, FLAGS, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    Ok(fd)
}

/// Begins to connect.
pub fn begin(from: &SocketAddr, to: &SocketAddr) -> Result<OwnedFd, Errno> {
    let fd = stream(to)?;
    sockopt::set_tcp_nodelay(&fd, true)?;
    sockopt::set_tcp_user_timeout(&fd, PATIENCE)?;
    bind(&fd, from)?;
    match connect(&fd, to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(errno) => Err(errno),
    }
}

/// What came of it.
pub fn begun(fd: impl AsFd) -> Result<(), Errno> {
    sockopt::socket_error(&fd)??;
    // From here on it may be silent for as long as the kernel lets it.
    sockopt::set_tcp_user_timeout(&fd, 0)
}

/// Listens.
pub fn serve(at: &SocketAddr, backlog: u32, only6: bool) -> Result<OwnedFd, Errno> {
    let fd = stream(at)?;
    if at.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, only6)?;
    }
    sockopt::set_tcp_nodelay(&fd, true)?;
    bind(&fd, at)?;
    listen(&fd, backlog.clamp(1, 4096) as i32)?;
    Ok(fd)
}

/// Who connected: the connection, from where, to where.
pub fn accept(fd: impl AsFd) -> Result<(OwnedFd, SocketAddr, SocketAddr), Errno> {
    let (made, from) = acceptfrom_with(fd, FLAGS)?;
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
    fn one_who_is_refused_is_told() {
        let at = "127.0.0.1:0".parse().unwrap();
        let served = serve(&at, 4, false).unwrap();
        let to = SocketAddr::try_from(getsockname(&served).unwrap()).unwrap();
        let made = begin(&at, &to).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(begun(&made), Ok(()));
        let (_, from, there) = accept(&served).unwrap();
        assert_eq!(there, to);
        assert_eq!(
            from,
            SocketAddr::try_from(getsockname(&made).unwrap()).unwrap()
        );
        drop(served);
        let outcome = begin(&at, &to).and_then(|made| {
            std::thread::sleep(Duration::from_millis(20));
            begun(&made)
        });
        assert_eq!(outcome, Err(Errno::CONNREFUSED));
    }
}
