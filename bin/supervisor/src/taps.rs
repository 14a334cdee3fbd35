//! Taps: what is done inside an endpoint's namespace, and what is said when it fails.

use crate::refusal::Refusal;
use command::message::ErrorCode;
use command::verbs::{CREATE_UNCONFIGURED, CreatePort};
use netlink::namespace::{self, NamespaceError};
use netlink::{Netlink, NetlinkError};
use port::Features;
use port::tap::TapError;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{BorrowedFd, OwnedFd};

/// Least MTU of an interface on which the kernel has IPv6, bytes of IP packet.
const LEAST_MTU6: u32 = 1280;

/// In the endpoint's namespace: the tap, and its address where it is to have one.
pub fn set_up_tap(body: &CreatePort) -> Result<(OwnedFd, Features), Refusal> {
    let name = body.interface.as_str();
    let (fd, features) = port::tap::create(name).map_err(|error| refuse_tap(&error))?;
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
    Ok((fd, features))
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
    let _ = namespace::within(namespace, || {
        let mut socket = Netlink::open()?;
        let index = socket.link(name)?.index;
        socket.batch().delete(index).commit()
    });
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
    if errno == Some(rustix::io::Errno::BUSY) {
        detail.push_str(": an interface of that name is there already and in use");
    }
    Refusal {
        code,
        errno: errno.map_or(0, |e| e.raw_os_error().unsigned_abs()),
        detail,
    }
}

fn refuse_netlink(error: &NetlinkError) -> Refusal {
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
