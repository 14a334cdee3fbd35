//! A real stack (smoltcp) as a guest: DHCP, then pings and TCP through the switch.

use crate::support::*;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::{dhcpv4, icmp, tcp};
use smoltcp::time::Instant;
use smoltcp::wire::{
    EthernetAddress, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpAddress, IpCidr,
    Ipv4Address, Ipv6Address,
};
use std::collections::VecDeque;

#[derive(Default)]
struct Wire {
    rx: VecDeque<Vec<u8>>,
    tx: VecDeque<Vec<u8>>,
}
struct Rx(Vec<u8>);
struct Tx<'a>(&'a mut VecDeque<Vec<u8>>);
impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}
impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push_back(frame);
        result
    }
}
impl Device for Wire {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;
    fn receive(&mut self, _: Instant) -> Option<(Rx, Tx<'_>)> {
        Some((Rx(self.rx.pop_front()?), Tx(&mut self.tx)))
    }
    fn transmit(&mut self, _: Instant) -> Option<Tx<'_>> {
        Some(Tx(&mut self.tx))
    }
    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

struct Guest {
    slot: u32,
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
}

impl Guest {
    fn new(slot: u32) -> Guest {
        let mut wire = Wire::default();
        let config = Config::new(EthernetAddress(mac(slot).0).into());
        let interface = Interface::new(config, &mut wire, Instant::ZERO);
        Guest {
            slot,
            wire,
            interface,
            sockets: SocketSet::new(vec![]),
        }
    }
    /// With addresses and default routes, as a namespace's interface is set up.
    fn configured(slot: u32) -> Guest {
        let mut guest = Guest::new(slot);
        let mut gateway6 = v6(slot);
        gateway6[15] = 1;
        let mut gateway4 = v4(slot);
        gateway4[3] = 1;
        guest.interface.update_ip_addrs(|a| {
            a.push(IpCidr::new(Ipv4Address::from(v4(slot)).into(), 24))
                .unwrap();
            a.push(IpCidr::new(Ipv6Address::from(v6(slot)).into(), 64))
                .unwrap();
        });
        guest
            .interface
            .routes_mut()
            .add_default_ipv4_route(gateway4.into())
            .unwrap();
        guest
            .interface
            .routes_mut()
            .add_default_ipv6_route(gateway6.into())
            .unwrap();
        guest
    }
}

/// Lets all talk for a while: 10 ms a turn.
fn run(site: &mut Site, guests: &mut [&mut Guest], turns: usize) {
    for _ in 0..turns {
        let now = Instant::from_millis((site.now / 1_000_000) as i64);
        for guest in guests.iter_mut() {
            guest
                .interface
                .poll(now, &mut guest.wire, &mut guest.sockets);
        }
        let outgoing: Vec<(u32, Vec<u8>)> = guests
            .iter_mut()
            .flat_map(|g| g.wire.tx.drain(..).map(|f| (g.slot, f)).collect::<Vec<_>>())
            .collect();
        let mut sent = Vec::new();
        for (slot, frame) in outgoing {
            let seen = site.inject(slot, &frame);
            sent.extend(seen.sent);
        }
        sent.extend(site.after(10_000_000).sent);
        for frame in sent {
            if let Some(guest) = guests.iter_mut().find(|g| g.slot == frame.slot) {
                guest.wire.rx.push_back(frame.frame);
            }
        }
    }
}

#[test]
fn a_guest_gets_its_address_by_dhcp() {
    let mut site = Site::new();
    let mut guest = Guest::new(A1);
    let handle = guest.sockets.add(dhcpv4::Socket::new());
    run(&mut site, &mut [&mut guest], 3000);
    let event = guest.sockets.get_mut::<dhcpv4::Socket>(handle).poll();
    let Some(dhcpv4::Event::Configured(config)) = event else {
        panic!("{event:?}")
    };
    assert_eq!(config.address.address(), Ipv4Address::from(v4(A1)));
    assert_eq!(config.router, Some(Ipv4Address::from(GATEWAY4)));
    assert_eq!(config.address.prefix_len(), 24);
}

fn icmp_socket(guest: &mut Guest) -> SocketHandle {
    let buffer = || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 8], vec![0; 4096]);
    let handle = guest.sockets.add(icmp::Socket::new(buffer(), buffer()));
    guest
        .sockets
        .get_mut::<icmp::Socket>(handle)
        .bind(icmp::Endpoint::Ident(9))
        .unwrap();
    handle
}

fn ping(site: &mut Site, guests: &mut [&mut Guest], to: IpAddress) -> bool {
    let handle = icmp_socket(guests[0]);
    let from6 = Ipv6Address::from(v6(guests[0].slot));
    let socket = guests[0].sockets.get_mut::<icmp::Socket>(handle);
    match to {
        IpAddress::Ipv4(_) => {
            let repr = Icmpv4Repr::EchoRequest {
                ident: 9,
                seq_no: 1,
                data: b"ping",
            };
            let payload = socket.send(repr.buffer_len(), to).unwrap();
            repr.emit(
                &mut Icmpv4Packet::new_unchecked(payload),
                &ChecksumCapabilities::default(),
            );
        }
        IpAddress::Ipv6(to6) => {
            let repr = Icmpv6Repr::EchoRequest {
                ident: 9,
                seq_no: 1,
                data: b"ping",
            };
            let payload = socket.send(repr.buffer_len(), to).unwrap();
            repr.emit(
                &from6,
                &to6,
                &mut Icmpv6Packet::new_unchecked(payload),
                &ChecksumCapabilities::default(),
            );
        }
    }
    run(site, guests, 300);
    let socket = guests[0].sockets.get_mut::<icmp::Socket>(handle);
    let answered = socket.can_recv() && socket.recv().is_ok_and(|(_, from)| from == to);
    guests[0].sockets.remove(handle);
    answered
}

#[test]
fn guests_ping_the_gateway_and_each_other() {
    let mut site = Site::new();
    let (mut a1, mut a2, mut b1) = (
        Guest::configured(A1),
        Guest::configured(A2),
        Guest::configured(B1),
    );
    let four = |slot| IpAddress::from(Ipv4Address::from(v4(slot)));
    let six = |slot| IpAddress::from(Ipv6Address::from(v6(slot)));
    for to in [
        Ipv4Address::from(GATEWAY4).into(),
        Ipv6Address::from(GATEWAY6).into(),
        four(A2),
        six(A2),
        four(B1),
        six(B1),
    ] {
        // smoltcp forgets an answer whose receiver it must first ask for.
        let answered = (0..2).any(|_| ping(&mut site, &mut [&mut a1, &mut a2, &mut b1], to));
        assert!(answered, "{to}");
    }
    assert!(!ping(
        &mut site,
        &mut [&mut a1, &mut a2, &mut b1],
        Ipv4Address::new(10, 1, 1, 99).into()
    ));
}

#[test]
fn overlapping_tenants_reach_their_own() {
    let mut site = Site::new();
    let (mut a1, mut c1) = (Guest::configured(A1), Guest::configured(C1));
    // Blue's C2 is not there to answer, red's A2 neither: whoever answers is wrong.
    assert!(!ping(
        &mut site,
        &mut [&mut c1, &mut a1],
        Ipv4Address::from(v4(A2)).into()
    ));
}

#[test]
fn tcp_between_subnets_carries_data() {
    let mut site = Site::new();
    let (mut a1, mut b1) = (Guest::configured(A1), Guest::configured(B1));
    let socket = || {
        tcp::Socket::new(
            tcp::SocketBuffer::new(vec![0; 65_535]),
            tcp::SocketBuffer::new(vec![0; 65_535]),
        )
    };
    let server = b1.sockets.add(socket());
    b1.sockets
        .get_mut::<tcp::Socket>(server)
        .listen(80)
        .unwrap();
    let client = a1.sockets.add(socket());
    let to = (IpAddress::from(Ipv6Address::from(v6(B1))), 80);
    a1.sockets
        .get_mut::<tcp::Socket>(client)
        .connect(a1.interface.context(), to, 50_000)
        .unwrap();
    run(&mut site, &mut [&mut a1, &mut b1], 100);
    let data: Vec<u8> = (0..50_000u32).map(|n| n as u8).collect();
    assert_eq!(
        a1.sockets.get_mut::<tcp::Socket>(client).send_slice(&data),
        Ok(data.len())
    );
    let mut got = Vec::new();
    for _ in 0..200 {
        run(&mut site, &mut [&mut a1, &mut b1], 5);
        b1.sockets
            .get_mut::<tcp::Socket>(server)
            .recv(|bytes| {
                got.extend_from_slice(bytes);
                (bytes.len(), ())
            })
            .unwrap();
    }
    assert_eq!(got, data);
}
