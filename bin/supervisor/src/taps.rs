//! Interfaces of endpoints, taps and veths: what is done inside an endpoint's namespace,
//! and what is said when it fails.

use crate::refusal::Refusal;
use command::message::ErrorCode;
use command::verbs::{
    CREATE_CIRCUITS, CREATE_NAMESPACE, CREATE_UNCONFIGURED, CreatePort, ENDPOINT_VETH,
};
use guard::guard;
use netlink::namespace::{self, NamespaceError};
use netlink::{Netlink, NetlinkError};
use port::Features;
use port::packet::UplinkError;
use port::tap::TapError;
use rustix::io::Errno;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Least MTU of an interface on which the kernel has IPv6, bytes of IP packet.
const LEAST_MTU6: u32 = 1280;

/// Name of a veth's outer end, which is alone where it is.
const OUTER: &str = "outer";

/// In the endpoint's namespace: the interface, and its address where it is to have one. Its index is what it has
/// for as long as it lives, whatever it is called later.
pub fn set_up_interface(body: &CreatePort) -> Result<(OwnedFd, Features, u32), Refusal> {
    const BOTH: u32 = CREATE_CIRCUITS | CREATE_NAMESPACE;
    if body.flags & BOTH == BOTH {
        // A proxy listens for programs at whatever port they have, and is nobody. Of a namespace
        // that is another's this is left as it is.
        std::fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")
            .map_err(|e| Refusal::system("let an endpoint's proxy have every port", &e))?;
    }
    if body.kind != ENDPOINT_VETH {
        let (tap, features) =
            port::tap::create(body.interface.as_str()).map_err(|e| refuse_tap(&e))?;
        return Ok((tap, features, configure(body)?));
    }
    let name = body.interface.as_str();
    // A switch that was taken over may send by its socket to any interface of the
    // namespace that the socket is of: so each has one of its own, with nothing else in
    // it. It lives as long as the socket, and the veth as long as it.
    let outside = if guard!("veth-apart") {
        namespace::create()
    } else {
        namespace::open_current()
    };
    let outside = outside.map_err(|error| refuse_namespace(&error))?;
    make_pair(name, outside.as_fd())?;
    let made = set_up_veth(body, outside.as_fd());
    if made.is_err() {
        // At once: the same request may come again.
        let _ = delete_here(name);
    }
    made
}

/// In the endpoint's namespace: a veth whose other end is `outside`.
fn make_pair(name: &str, outside: BorrowedFd<'_>) -> Result<(), Refusal> {
    let mut socket = Netlink::open().map_err(|error| refuse_netlink(&error))?;
    let batch = socket.batch().create_veth(name, OUTER, Some(outside));
    batch.commit().map_err(|error| {
        let mut refusal = refuse_netlink(&error);
        if error.errno() == Some(Errno::EXIST) {
            refusal
                .detail
                .push_str(": an interface of that name is there already");
        }
        refusal
    })
}

fn set_up_veth(
    body: &CreatePort,
    outside: BorrowedFd<'_>,
) -> Result<(OwnedFd, Features, u32), Refusal> {
    // What the socket could not say would be lost.
    match port::ethtool::turn_off(body.interface.as_str(), port::ethtool::UNSAID) {
        Ok(stay) if stay.is_empty() => {}
        Ok(stay) => {
            return Err(Refusal::new(
                ErrorCode::System,
                format!("a veth does not let go of {}", stay.join(", ")),
            ));
        }
        Err(errno) => return Err(Refusal::errno("set a veth's offloads", errno)),
    }
    let fd = namespace::within(outside, || open_outer(body.mtu))
        .map_err(|error| refuse_namespace(&error))??;
    Ok((fd, Features::ALL, configure(body)?))
}

/// In a namespace of nobody's: the outer end, up, and known to no stack.
fn open_outer(mtu: u32) -> Result<OwnedFd, Refusal> {
    for group in ["default", "all"] {
        match std::fs::write(format!("/proc/sys/net/ipv6/conf/{group}/disable_ipv6"), "1") {
            // A kernel without IPv6.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            other => other.map_err(|e| Refusal::system("keep IPv6 from a veth's outer end", &e))?,
        }
    }
    let mut socket = Netlink::open().map_err(|error| refuse_netlink(&error))?;
    let link = socket.link(OUTER).map_err(|error| refuse_netlink(&error))?;
    let batch = socket.batch().set_mtu(link.index, mtu).set_up(link.index);
    batch.commit().map_err(|error| refuse_netlink(&error))?;
    // Up before it is bound: a socket of an interface that is down begins with that error.
    // Nothing is lost, for the inner end is still down.
    port::packet::open_outer(OUTER).map_err(|error| refuse_socket(&error))
}

/// In the endpoint's namespace: what an interface is to be like; its index.
fn configure(body: &CreatePort) -> Result<u32, Refusal> {
    let name = body.interface.as_str();
    let mut socket = Netlink::open().map_err(|error| refuse_netlink(&error))?;
    let index = socket
        .link(name)
        .map_err(|error| refuse_netlink(&error))?
        .index;
    let loopback = socket
        .link("lo")
        .map_err(|error| refuse_netlink(&error))?
        .index;
    let mut batch = socket
        .batch()
        .set_up(loopback)
        .set_mac(index, body.mac)
        .set_mtu(index, body.mtu);
    let configured = body.flags & CREATE_UNCONFIGURED == 0;
    let v6 = Ipv6Addr::from(body.address6);
    let link_local = link_local(body.mac);
    let six = body.mtu >= LEAST_MTU6;
    if configured && six {
        batch = batch.without_own_link_local(index);
    }
    batch = batch.set_up(index);
    if configured {
        if six {
            batch = batch.add_address(index, link_local.into(), 64);
        }
        if body.address4 != [0; 4] {
            batch = batch.add_address(
                index,
                Ipv4Addr::from(body.address4).into(),
                body.prefix4_len,
            );
        }
        if !v6.is_unspecified() {
            batch = batch.add_address(index, v6.into(), body.prefix6_len);
        }
        if body.gateway4 != [0; 4] {
            batch = batch.add_default_route(index, Ipv4Addr::from(body.gateway4).into());
        }
        if body.gateway6 != [0; 16] {
            batch = batch.add_default_route(index, Ipv6Addr::from(body.gateway6).into());
        }
    }
    batch.commit().map_err(|error| refuse_netlink(&error))?;
    Ok(index)
}

/// fe80::/64 with the modified EUI-64 of the MAC (RFC 4291, appendix A).
fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    Ipv6Addr::from([
        0xfe,
        0x80,
        0,
        0,
        0,
        0,
        0,
        0,
        a ^ 2,
        b,
        c,
        0xff,
        0xfe,
        d,
        e,
        f,
    ])
}

/// Deletes the interface at once: the switch has it open for a moment longer.
pub fn delete_interface(namespace: BorrowedFd<'_>, name: &str) {
    // Gone already is as good.
    let _ = namespace::within(namespace, || delete_here(name));
}

fn delete_here(name: &str) -> Result<(), NetlinkError> {
    let mut socket = Netlink::open()?;
    let index = socket.link(name)?.index;
    socket.batch().delete(index).commit()
}

/// A namespace's error as a refusal.
pub fn refuse_namespace(error: &NamespaceError) -> Refusal {
    let code = match error {
        NamespaceError::Name(_) => ErrorCode::BadMessage,
        NamespaceError::Missing(_) | NamespaceError::Host(_) => ErrorCode::NoNamespace,
        NamespaceError::Exists(_) => ErrorCode::Conflict,
        NamespaceError::Refused { .. } => ErrorCode::System,
    };
    let errno = match error {
        NamespaceError::Refused { errno, .. } => errno.raw_os_error().unsigned_abs(),
        _ => 0,
    };
    Refusal {
        code,
        errno,
        detail: error.to_string(),
    }
}

fn refuse_tap(error: &TapError) -> Refusal {
    let errno = match error {
        TapError::Name(_) => None,
        TapError::Driver(errno)
        | TapError::Create { errno, .. }
        | TapError::Setup { errno, .. } => Some(*errno),
    };
    let code = if errno.is_none() {
        ErrorCode::BadMessage
    } else {
        ErrorCode::System
    };
    let mut detail = error.to_string();
    if errno == Some(Errno::BUSY) {
        detail.push_str(": an interface of that name is there already and in use");
    }
    Refusal {
        code,
        errno: errno.map_or(0, |e| e.raw_os_error().unsigned_abs()),
        detail,
    }
}

/// A packet socket's error as a refusal.
pub fn refuse_socket(error: &UplinkError) -> Refusal {
    match error {
        UplinkError::NoInterface(name) => Refusal::new(
            ErrorCode::NoInterface,
            format!("there is no interface {name:?}"),
        ),
        UplinkError::Socket(errno) | UplinkError::Setup { errno, .. } => Refusal {
            code: ErrorCode::System,
            errno: errno.raw_os_error().unsigned_abs(),
            detail: error.to_string(),
        },
    }
}

/// A netlink error as a refusal.
pub fn refuse_netlink(error: &NetlinkError) -> Refusal {
    let code = if matches!(error, NetlinkError::NoLink(_)) {
        ErrorCode::NoInterface
    } else {
        ErrorCode::System
    };
    let errno = error.errno().map_or(0, |e| e.raw_os_error().unsigned_abs());
    Refusal {
        code,
        errno,
        detail: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_local_address_is_the_macs() {
        let address = link_local([0x02, 0x11, 0x22, 0x33, 0x44, 0x55]);
        assert_eq!(address.to_string(), "fe80::11:22ff:fe33:4455");
    }
}
