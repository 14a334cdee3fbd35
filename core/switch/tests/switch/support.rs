//! Two tenants with the same addresses, one of them with a way outside.

pub use crate::seen::{Seen, Sent};

use core_switch::{
    AHEAD, Config, Connection, Cursor, FORESEEN, Ingress, Nanos, Output, Slot, Switch,
};
use image::compartment::*;
use image::{Aligned, CompartmentTables, MappedCompartment};
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use telemetry::trace::Record;
use wire::address::{self, mapped};
use wire::offload::RawOffload;
use wire::{MacAddress, build, ethernet, ipv4, ipv6};

pub const SECOND: Nanos = 1_000_000_000;

/// Red's endpoints: two in its first subnet, a router there, one in its second.
pub const A1: Slot = 1;
pub const A2: Slot = 2;
pub const R: Slot = 3;
pub const B1: Slot = 4;
/// Blue's: the same addresses as A1 and A2.
pub const C1: Slot = 5;
pub const C2: Slot = 6;
pub const FABRIC: Slot = core_switch::FABRIC;
/// Red's attachment.
pub const TAG: u16 = 7;
pub const OUTSIDE_MAC: MacAddress = MacAddress([2, 0xee, 0, 0, 0, 1]);
pub const NEXT_HOP: MacAddress = MacAddress([2, 0xff, 0, 0, 0, 1]);

pub fn mac(slot: Slot) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, slot as u8])
}
pub fn gateway_mac(subnet: u32) -> MacAddress {
    MacAddress([2, 0x99, 0, 0, 0, subnet as u8])
}
pub fn v4(slot: Slot) -> [u8; 4] {
    match slot {
        A1 | C1 => [10, 1, 1, 10],
        A2 | C2 => [10, 1, 1, 11],
        R => [10, 1, 1, 12],
        _ => [10, 1, 2, 10],
    }
}
pub fn v6(slot: Slot) -> [u8; 16] {
    let [_, _, subnet, host] = v4(slot);
    [0xfd, 0, 0, 1, 0, subnet, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]
}
pub const GATEWAY4: [u8; 4] = [10, 1, 1, 1];
pub const GATEWAY6: [u8; 16] = [0xfd, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
pub const GATEWAY: MacAddress = MacAddress([2, 0x99, 0, 0, 0, 0]);

fn subnet(index: u32, tenant: u32, third: u8) -> Subnet {
    let mut prefix6 = [0; 16];
    prefix6[..6].copy_from_slice(&[0xfd, 0, 0, 1, 0, third]);
    let mut gateway6 = prefix6;
    gateway6[15] = 1;
    Subnet {
        id: 100 + index,
        tenant,
        prefix4: [10, 1, third, 0],
        gateway4: [10, 1, third, 1],
        dns4: [10, 1, third, 53],
        prefix4_len: 24,
        prefix6_len: 64,
        mtu: 1500,
        prefix6,
        gateway6,
        dns6: gateway6,
        gateway_mac: gateway_mac(index).0,
        flags: SUBNET_DHCP4 | SUBNET_RA | SUBNET_SLAAC,
        lease_s: 3600,
        ..Subnet::default()
    }
}

fn endpoint(slot: Slot, subnet: u32) -> Endpoint {
    Endpoint {
        id: 1000 + slot,
        subnet,
        slot,
        state: STATE_OPEN,
        mac: mac(slot).0,
        mtu: 1500,
        dhcp4: v4(slot),
        min_gso: 536,
        features: FEATURE_ALL,
        ..Endpoint::default()
    }
}

fn range(ranges: &mut Vec<(u32, RouteRange)>, tenant: u32, prefix: [u8; 16], len: u32, route: u32) {
    let mask = if len == 0 {
        0
    } else {
        u128::MAX << (128 - len)
    };
    let start = u128::from_be_bytes(prefix) & mask;
    let range = RouteRange {
        start: start.to_be_bytes(),
        end: (start | !mask).to_be_bytes(),
        route,
        reserved: [0; 3],
    };
    ranges.push((tenant, range));
}

/// The records of the site, to be changed by a test before it starts.
pub fn site() -> CompartmentTables {
    let subnets = vec![subnet(0, 0, 1), subnet(1, 0, 2), subnet(2, 1, 1)];
    let mut endpoints: Vec<Endpoint> = [(A1, 0), (A2, 0), (R, 0), (B1, 1), (C1, 2), (C2, 2)]
        .into_iter()
        .map(|(slot, subnet)| endpoint(slot, subnet))
        .collect();
    endpoints[2].roles = ROLE_ROUTER;
    let mut b = CompartmentTables {
        subnets,
        ..CompartmentTables::default()
    };
    b.members = endpoints
        .iter()
        .zip(0..)
        .map(|(e, index)| (e.subnet, index))
        .collect();
    for (index, endpoint) in endpoints.iter().enumerate() {
        for address in [
            mapped(v4(endpoint.slot)),
            v6(endpoint.slot),
            address::link_local(MacAddress(endpoint.mac)),
        ] {
            b.addresses.push((index as u32, address));
        }
    }
    b.endpoints = endpoints;
    b.own_prefixes = vec![(
        2,
        OwnPrefix {
            prefix: mapped([10, 9, 0, 0]),
            len: 112,
            reserved: 0,
        },
    )];
    b.routes = vec![
        Route {
            kind: ROUTE_SUBNET,
            subnet: 0,
            ..Route::default()
        },
        Route {
            kind: ROUTE_SUBNET,
            subnet: 1,
            ..Route::default()
        },
        Route {
            kind: ROUTE_SUBNET,
            subnet: 2,
            ..Route::default()
        },
        Route {
            kind: ROUTE_VIA,
            subnet: 0,
            via: 2,
            reserved: 0,
        },
        Route {
            kind: ROUTE_OUTSIDE,
            subnet: 0,
            via: 0,
            reserved: 0,
        },
        Route {
            kind: ROUTE_UNREACHABLE,
            ..Route::default()
        },
        Route {
            kind: ROUTE_OUTSIDE,
            subnet: 0,
            via: 1,
            reserved: 0,
        },
    ];
    let ranges = &mut b.ranges;
    range(ranges, 0, v6(A1), 64, 0);
    range(ranges, 0, v6(B1), 64, 1);
    range(ranges, 0, mapped([10, 1, 1, 0]), 120, 0);
    range(ranges, 0, mapped([10, 1, 2, 0]), 120, 1);
    range(ranges, 0, mapped([10, 9, 0, 0]), 112, 3);
    range(ranges, 0, mapped([172, 16, 0, 0]), 108, 5);
    range(ranges, 0, mapped([198, 51, 100, 0]), 120, 4);
    range(ranges, 0, mapped([192, 0, 2, 0]), 120, 4);
    let outside6 = [0x20, 1, 0xd, 0xb8, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    range(ranges, 0, outside6, 48, 6);
    range(ranges, 1, v6(C1), 64, 2);
    range(ranges, 1, mapped([10, 1, 1, 0]), 120, 2);
    b.tenants = vec![
        Tenant {
            id: 1,
            ..Tenant::default()
        },
        Tenant {
            id: 2,
            ..Tenant::default()
        },
    ];
    b.attachments = vec![Attachment {
        tenant: 0,
        uplink: 0,
        mac: OUTSIDE_MAC.0,
        tag: TAG,
        mtu: 1500,
        prefix4_len: 24,
        prefix6_len: 64,
        address4: [192, 0, 2, 10],
        address6: outside(10),
        ..Attachment::default()
    }];
    b.next_hops = vec![
        NextHop {
            address: mapped([192, 0, 2, 1]),
            attachment: 0,
            mac: [0; 6],
            reserved: [0; 6],
        },
        NextHop {
            address: outside(1),
            attachment: 0,
            mac: NEXT_HOP.0,
            reserved: [0; 6],
        },
    ];
    b
}

/// A host on the uplink's network.
pub fn outside(host: u8) -> [u8; 16] {
    [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]
}

/// By which tag what a slot sends comes.
fn tag_of(from: Slot) -> u16 {
    if from == FABRIC { TAG } else { 0 }
}

fn ingress<'a>(
    from: Slot,
    tag: u16,
    offload: RawOffload,
    head: &'a mut [u8],
    frame: &[u8],
) -> Ingress<'a> {
    Ingress {
        from,
        tag,
        offload,
        head,
        total: frame.len(),
    }
}

/// A running switch.
pub struct Site {
    tables: CompartmentTables,
    image: MappedCompartment<Aligned>,
    switch: Switch,
    pub now: Nanos,
}

impl Site {
    pub fn new() -> Site {
        Site::with(|_| {})
    }
    pub fn with(change: impl FnOnce(&mut CompartmentTables)) -> Site {
        Site::configured(Config::default(), change)
    }
    pub fn configured(config: Config, change: impl FnOnce(&mut CompartmentTables)) -> Site {
        let tables = site();
        let image = image(&CompartmentTables::default());
        let mut site = Site {
            tables,
            image,
            switch: Switch::new(config),
            now: SECOND,
        };
        site.change(change);
        site
    }
    /// Sends a frame in and tells what came of it.
    pub fn inject(&mut self, from: Slot, frame: &[u8]) -> Seen {
        self.inject_raw(from, tag_of(from), RawOffload::default(), frame)
    }
    pub fn inject_raw(&mut self, from: Slot, tag: u16, offload: RawOffload, frame: &[u8]) -> Seen {
        let (mut head, mut seen) = Seen::of(frame);
        let ingress = ingress(from, tag, offload, &mut head, frame);
        self.process(ingress, &mut seen);
        seen
    }
    /// The same, and whether it took the short way.
    pub fn inject_short(&mut self, from: Slot, offload: RawOffload, frame: &[u8]) -> (bool, Seen) {
        let (mut head, mut seen) = Seen::of(frame);
        let hit = match self.switch.credit(self.now, from).is_left() {
            true => self
                .switch
                .hit(self.now, from, &offload, &mut head, frame.len()),
            false => None,
        };
        let Some(hit) = hit else {
            assert_eq!(head, frame[..head.len()], "nothing happened");
            return (false, self.judge(from, offload, frame));
        };
        let total = frame.len() as u64;
        self.switch.charge(from, total, 1);
        Output::count(&mut seen, from, Counter::RxFrames, 1);
        Output::count(&mut seen, from, Counter::RxBytes, total);
        Output::count(&mut seen, from, Counter::RxSegments, 1);
        seen.send(&hit.outgoing(&head, frame.len()));
        (true, seen)
    }
    /// Which of several workers is to handle it.
    pub fn owner(&mut self, from: Slot, frame: &[u8]) -> Result<u32, DropReason> {
        let (mut head, _) = Seen::of(frame);
        let ingress = ingress(from, tag_of(from), RawOffload::default(), &mut head, frame);
        let image = self.image.image();
        self.switch.owner(&image, self.now, &ingress)
    }
    /// Frames that were looked up since this was last asked.
    pub fn sought(&mut self) -> usize {
        self.switch.sought()
    }
    /// What frames begin with, looked up together before they come.
    pub fn foresee(&mut self, from: Slot, frames: &[&[u8]]) {
        let heads = frames
            .iter()
            .take(AHEAD)
            .map(|frame| {
                let mut head = [0; FORESEEN];
                let length = frame.len().min(head.len());
                head[..length].copy_from_slice(&frame[..length]);
                head
            })
            .collect::<Vec<_>>();
        self.switch.foresee(from, &heads);
    }
    /// A frame that never takes the short way.
    pub fn judge(&mut self, from: Slot, offload: RawOffload, frame: &[u8]) -> Seen {
        let (mut head, mut seen) = Seen::of(frame);
        let ingress = ingress(from, tag_of(from), offload, &mut head, frame);
        let image = self.image.image();
        self.switch.judge(&image, self.now, ingress, &mut seen);
        seen
    }
    /// What a slot's port takes unfinished.
    pub fn takes(&mut self, slot: Slot, features: u16) {
        self.switch.takes(slot, features);
    }
    /// The same into any output.
    pub fn process(&mut self, ingress: Ingress<'_>, out: &mut impl Output) {
        let image = self.image.image();
        self.switch.process(&image, self.now, ingress, out);
    }
    /// Traces a frame: what was written down, and what went out all the same.
    pub fn traced(&mut self, from: Slot, frame: &[u8], deliver: bool) -> (Record, Seen) {
        let (mut head, mut seen) = Seen::of(frame);
        let ingress = ingress(from, tag_of(from), RawOffload::default(), &mut head, frame);
        let mut record = Record::default();
        let image = self.image.image();
        self.switch
            .trace(&image, self.now, ingress, deliver, &mut record, &mut seen);
        (record, seen)
    }
    /// Ends the trace.
    pub fn end_trace(&mut self) {
        self.switch.end_trace(self.now);
    }
    /// All connections.
    pub fn walk(&self, at: &mut Cursor, visit: &mut impl FnMut(&Connection)) {
        while !self.switch.walk(self.now, at, 1000, visit) {}
    }
    /// What is due by now, into any output.
    pub fn tick(&mut self, out: &mut impl Output) {
        self.switch.tick(&self.image.image(), self.now, out);
    }
    /// Lets time pass and tells what fell due.
    pub fn after(&mut self, time: Nanos) -> Seen {
        self.now += time;
        let mut seen = Seen::default();
        self.tick(&mut seen);
        seen
    }
    /// Keeps a journal there from now on.
    pub fn keep(&mut self, page: &crate::restoration::Page) {
        self.switch.keep(Box::new(page.clone()));
        let image = self.image.image();
        self.switch.use_image(&image, self.now);
    }
    /// Another process in its place, under the same tables; with a journal where there is one.
    pub fn crash(&mut self, page: Option<&crate::restoration::Page>) {
        let config = Config {
            seed: self.now + 77,
            ..Config::default()
        };
        self.switch = Switch::new(config);
        if let Some(page) = page {
            self.switch.keep(Box::new(page.clone()));
        }
        self.switch.use_image(&self.image.image(), self.now);
    }
    /// The tables, and the switch that walks them.
    pub fn switch(&self) -> (&CompartmentTables, &Switch) {
        (&self.tables, &self.switch)
    }
    pub fn deadline(&self) -> Nanos {
        self.switch.next_deadline()
    }
    pub fn change(&mut self, change: impl FnOnce(&mut CompartmentTables)) {
        change(&mut self.tables);
        let new = image(&self.tables);
        self.switch
            .swap_image(&self.image.image(), &new.image(), self.now);
        self.image = new;
    }
    /// The rules in use.
    pub fn clone_rules(&self) -> Vec<image::rules::RuleTable> {
        self.tables.rule_tables.clone()
    }
    /// One frame that must be dropped for one reason, causing nothing else.
    #[track_caller]
    pub fn refuses(&mut self, from: Slot, frame: &[u8], reason: DropReason) {
        let seen = self.inject(from, frame);
        assert_eq!(
            (seen.drops.clone(), seen.sent.len()),
            (vec![(from, reason)], 0),
            "{seen:?}"
        );
    }
}

fn image(tables: &CompartmentTables) -> MappedCompartment<Aligned> {
    let bytes = tables.finish().expect("legal tables");
    MappedCompartment::map(Aligned::copy_of(&bytes)).expect("a legal image")
}

/// UDP over IPv4.
pub fn udp4(
    link: (MacAddress, MacAddress),
    ip: ([u8; 4], [u8; 4]),
    ports: (u16, u16),
    payload: &[u8],
) -> Vec<u8> {
    udp4_with(link, ipv4::Header::new(ip.0, ip.1, 17), ports, payload)
}
pub fn udp4_with(
    link: (MacAddress, MacAddress),
    header: ipv4::Header,
    ports: (u16, u16),
    payload: &[u8],
) -> Vec<u8> {
    let mut buffer = vec![0; 66_000];
    let link = ethernet::Header::new(link.1, link.0, ethernet::IPV4);
    let n = build::udp4(&mut buffer, &link, &header, ports, |b| put(b, payload)).unwrap();
    buffer.truncate(n);
    buffer
}
/// UDP over IPv6.
pub fn udp6(
    link: (MacAddress, MacAddress),
    ip: ([u8; 16], [u8; 16]),
    ports: (u16, u16),
    payload: &[u8],
) -> Vec<u8> {
    let mut buffer = vec![0; 66_000];
    let link = ethernet::Header::new(link.1, link.0, ethernet::IPV6);
    let n = build::udp6(
        &mut buffer,
        &link,
        &ipv6::Header::new(ip.0, ip.1, 17),
        ports,
        |b| put(b, payload),
    )
    .unwrap();
    buffer.truncate(n);
    buffer
}
/// An ICMPv6 message (its checksum is filled in).
pub fn icmp6(
    link: (MacAddress, MacAddress),
    ip: ([u8; 16], [u8; 16]),
    hop_limit: u8,
    message: &[u8],
) -> Vec<u8> {
    let mut buffer = vec![0; 66_000];
    let link = ethernet::Header::new(link.1, link.0, ethernet::IPV6);
    let header = ipv6::Header {
        hop_limit,
        ..ipv6::Header::new(ip.0, ip.1, 58)
    };
    let n = build::icmpv6(&mut buffer, &link, &header, |b| put(b, message)).unwrap();
    buffer.truncate(n);
    buffer
}
/// An ICMP message, checksum and all.
pub fn icmp4(link: (MacAddress, MacAddress), header: ipv4::Header, message: &[u8]) -> Vec<u8> {
    let mut buffer = vec![0; 66_000];
    let link = ethernet::Header::new(link.1, link.0, ethernet::IPV4);
    let mut message = message.to_vec();
    let sum = wire::checksum::internet(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let n = build::icmpv4(&mut buffer, &link, &header, |b| put(b, &message)).unwrap();
    buffer.truncate(n);
    buffer
}
pub fn arp(link: (MacAddress, MacAddress), message: wire::arp::Message) -> Vec<u8> {
    let mut buffer = vec![0; 64];
    let n = build::arp(
        &mut buffer,
        &ethernet::Header::new(link.1, link.0, ethernet::ARP),
        &message,
    )
    .unwrap();
    buffer.truncate(n);
    buffer
}
/// "Who has `target`?"
pub fn arp_request(slot: Slot, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    arp(
        (mac(slot), MacAddress::BROADCAST),
        wire::arp::Message {
            operation: wire::arp::Operation::Request,
            sender_mac: mac(slot),
            sender,
            target_mac: MacAddress::ZERO,
            target,
        },
    )
}
fn put(buffer: &mut [u8], bytes: &[u8]) -> Result<usize, wire::NoRoom> {
    buffer
        .get_mut(..bytes.len())
        .ok_or(wire::NoRoom {
            needed: bytes.len(),
        })?
        .copy_from_slice(bytes);
    Ok(bytes.len())
}
/// TCP, either family (IPv4 in its ::ffff: form), checksums and all.
pub fn tcp(
    link: (MacAddress, MacAddress),
    ip: ([u8; 16], [u8; 16]),
    ports: (u16, u16),
    numbers: (u8, u32, u32),
    payload: &[u8],
) -> Vec<u8> {
    let header = wire::tcp::Header {
        source: ports.0,
        destination: ports.1,
        sequence: numbers.1,
        acknowledgement: numbers.2,
        header_len: 20,
        flags: numbers.0,
        window: 60_000,
    };
    let mut message = vec![0; 20];
    header.emit(&mut message).unwrap();
    message.extend_from_slice(payload);
    message[16..18].fill(0);
    let sum = wire::checksum::pseudo(&ip.0, &ip.1, 6, message.len())
        .bytes(&message)
        .finish();
    message[16..18].copy_from_slice(&sum.to_be_bytes());
    let mut buffer = vec![0; 66_000];
    let length = match (address::unmapped(&ip.0), address::unmapped(&ip.1)) {
        (Some(from), Some(to)) => {
            let link = ethernet::Header::new(link.1, link.0, ethernet::IPV4);
            let header = ipv4::Header {
                dont_fragment: true,
                ..ipv4::Header::new(from, to, 6)
            };
            build::ipv4(&mut buffer, &link, &header, |b| put(b, &message))
        }
        _ => {
            let link = ethernet::Header::new(link.1, link.0, ethernet::IPV6);
            let header = ipv6::Header::new(ip.0, ip.1, 6);
            build::ipv6(&mut buffer, &link, &header, |b| put(b, &message))
        }
    };
    buffer.truncate(length.unwrap());
    buffer
}

impl Sent {
    /// Its tuple; every checksum is right.
    #[track_caller]
    pub fn tuple(&self) -> wire::Tuple {
        let parsed = self.parsed();
        let ip = parsed.ip().expect("IP");
        let transport = self.transport();
        match ip.protocol {
            6 | 17 | 58 => assert!(
                wire::checksum::verifies(&ip.source, &ip.destination, ip.protocol, transport),
                "checksum of {self:?}"
            ),
            1 => assert_eq!(wire::checksum::internet(transport), 0, "{self:?}"),
            _ => {}
        }
        wire::Tuple::of_connection(ip, &self.frame)
            .or_else(|| wire::Tuple::of_rules(ip))
            .expect("a tuple")
    }
}
