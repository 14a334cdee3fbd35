//! Many requests, one system call.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute,
    LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::socket::errno;
use crate::{Netlink, NetlinkError};

/// Requests sent at once: their acknowledgements must fit a default receive
/// buffer (208 KiB, of which each takes less than 1 KiB).
const AT_ONCE: usize = 128;

/// Requests that are carried out in order by [`Batch::commit`]. A refused request
/// does not stop those after it; the first refusal is returned.
///
/// Setting what is set already is no error, so a batch may be repeated.
#[derive(Debug)]
pub struct Batch<'a> {
    netlink: &'a mut Netlink,
    bytes: Vec<u8>,
    /// Where each request starts, its sequence number, and what it is for a person.
    requests: Vec<(usize, u32, String)>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(netlink: &'a mut Netlink) -> Batch<'a> {
        Batch {
            netlink,
            bytes: Vec::new(),
            requests: Vec::new(),
        }
    }

    /// Sends all and waits for every acknowledgement.
    ///
    /// # Errors
    /// [`NetlinkError`]: the socket failed, or the first request that the kernel refused;
    /// others of the batch, later ones as well, may be done.
    pub fn commit(self) -> Result<(), NetlinkError> {
        let mut refused: Option<NetlinkError> = None;
        for chunk in self.requests.chunks(AT_ONCE) {
            let from = chunk.first().map_or(0, |request| request.0);
            let after = from_of(&self.requests, chunk.last().map_or(0, |last| last.1));
            let to = after.unwrap_or(self.bytes.len());
            self.netlink.send(self.bytes.get(from..to).unwrap_or(&[]))?;
            let mut waiting = chunk.len();
            while waiting > 0 {
                self.netlink.receive(|message| {
                    let NetlinkPayload::Error(answer) = message.payload else {
                        return;
                    };
                    let sequence = message.header.sequence_number;
                    let Some((_, _, what)) = chunk.iter().find(|(_, own, _)| *own == sequence)
                    else {
                        return;
                    };
                    waiting = waiting.saturating_sub(1);
                    if let Some(errno) = errno(answer.code)
                        && refused.is_none()
                    {
                        let what = what.clone();
                        refused = Some(NetlinkError::Refused { what, errno });
                    }
                })?;
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Sets an interface up.
    pub fn set_up(self, index: u32) -> Self {
        self.change(index, format!("set interface {index} up"), |message| {
            message.header.flags = LinkFlags::Up;
            message.header.change_mask = LinkFlags::Up;
        })
    }

    /// Sets an interface down.
    pub fn set_down(self, index: u32) -> Self {
        self.change(index, format!("set interface {index} down"), |message| {
            message.header.change_mask = LinkFlags::Up;
        })
    }

    /// Sets an interface's MAC.
    pub fn set_mac(self, index: u32, mac: [u8; 6]) -> Self {
        self.set(
            index,
            format!("set the MAC of interface {index}"),
            LinkAttribute::Address(mac.to_vec()),
        )
    }

    /// Sets an interface's MTU, bytes of IP packet.
    pub fn set_mtu(self, index: u32, mtu: u32) -> Self {
        let what = format!("set the MTU of interface {index} to {mtu}");
        self.set(index, what, LinkAttribute::Mtu(mtu))
    }

    /// Renames an interface, which must be down.
    pub fn rename(self, index: u32, name: &str) -> Self {
        self.set(
            index,
            format!("rename interface {index} to {name}"),
            LinkAttribute::IfName(name.to_owned()),
        )
    }

    /// Moves an interface to another network namespace. Its index may change.
    pub fn move_to(self, index: u32, namespace: BorrowedFd<'_>) -> Self {
        self.set(
            index,
            format!("move interface {index} to another namespace"),
            LinkAttribute::NetNsFd(namespace.as_raw_fd()),
        )
    }

    /// Keeps the kernel from making a link-local IPv6 address of its own when the
    /// interface comes up. One that is then added by [`Batch::add_address`] is
    /// usable at once, without duplicate address detection.
    pub fn without_own_link_local(self, index: u32) -> Self {
        self.set(
            index,
            format!("set address generation of interface {index}"),
            LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(
                In6AddrGenMode::None,
            )])]),
        )
    }

    /// Gives an interface an address, with the route to its prefix. IPv6 without
    /// duplicate address detection: whoever assigns it knows that it is free.
    pub fn add_address(self, index: u32, address: IpAddr, prefix_len: u8) -> Self {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = prefix_len;
        message.header.index = index;
        message.attributes.push(AddressAttribute::Local(address));
        message.attributes.push(AddressAttribute::Address(address));
        match address {
            IpAddr::V4(v4) if prefix_len < 31 => {
                let host = u32::MAX.checked_shr(u32::from(prefix_len)).unwrap_or(0);
                let broadcast = Ipv4Addr::from_bits(v4.to_bits() | host);
                message
                    .attributes
                    .push(AddressAttribute::Broadcast(broadcast));
            }
            IpAddr::V4(_) => {}
            IpAddr::V6(_) => message
                .attributes
                .push(AddressAttribute::Flags(AddressFlags::Nodad)),
        }
        self.push(
            RouteNetlinkMessage::NewAddress(message),
            NLM_F_CREATE | NLM_F_REPLACE,
            format!("add {address}/{prefix_len} to interface {index}"),
        )
    }

    /// Routes everything through a gateway on an interface that is up. Of several
    /// interfaces the first made has it; each has its own, and takes only that along.
    pub fn add_default_route(self, index: u32, gateway: IpAddr) -> Self {
        let any = match gateway {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: family(gateway),
            table: RouteHeader::RT_TABLE_MAIN,
            protocol: RouteProtocol::Static,
            scope: RouteScope::Universe,
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        };
        message.attributes = vec![
            RouteAttribute::Gateway(RouteAddress::from(gateway)),
            RouteAttribute::Oif(index),
            RouteAttribute::Priority(index),
        ];
        self.push(
            RouteNetlinkMessage::NewRoute(message),
            NLM_F_CREATE | NLM_F_REPLACE,
            format!("route {any}/0 to interface {index}"),
        )
    }

    /// Deletes an interface.
    pub fn delete(self, index: u32) -> Self {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.push(
            RouteNetlinkMessage::DelLink(message),
            0,
            format!("delete interface {index}"),
        )
    }

    /// Makes a pair of veth interfaces. The second is put into `namespace`, or
    /// stays here.
    pub fn create_veth(
        self,
        name: &str,
        peer_name: &str,
        namespace: Option<BorrowedFd<'_>>,
    ) -> Self {
        let mut peer = LinkMessage::default();
        peer.attributes
            .push(LinkAttribute::IfName(peer_name.to_owned()));
        if let Some(namespace) = namespace {
            peer.attributes
                .push(LinkAttribute::NetNsFd(namespace.as_raw_fd()));
        }
        let mut message = LinkMessage::default();
        message
            .attributes
            .push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        self.push(
            RouteNetlinkMessage::NewLink(message),
            NLM_F_CREATE | NLM_F_EXCL,
            format!("make the veth pair {name} and {peer_name}"),
        )
    }

    fn set(self, index: u32, what: String, attribute: LinkAttribute) -> Self {
        self.change(index, what, |message| message.attributes.push(attribute))
    }

    fn change(self, index: u32, what: String, set: impl FnOnce(&mut LinkMessage)) -> Self {
        let mut message = LinkMessage::default();
        message.header.index = index;
        set(&mut message);
        // NEWLINK and not SETLINK: only it takes AF_SPEC for every kind of link,
        // and it is what iproute2 sends.
        self.push(RouteNetlinkMessage::NewLink(message), 0, what)
    }

    fn push(mut self, request: RouteNetlinkMessage, flags: u16, what: String) -> Self {
        let start = self.bytes.len();
        let sequence = self
            .netlink
            .encode(&mut self.bytes, request, flags | NLM_F_ACK);
        self.requests.push((start, sequence, what));
        self
    }
}

/// Where the request after the one with this sequence number starts.
fn from_of(requests: &[(usize, u32, String)], sequence: u32) -> Option<usize> {
    let at = requests.iter().position(|request| request.1 == sequence)?;
    requests.get(at + 1).map(|request| request.0)
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}
