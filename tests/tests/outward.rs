//! What an honest switch says to an uplink, the fabric lets pass: whatever its tenants and
//! the uplink's network send. Else any of them could have it reported, and killed for it.

use fabric::{Decision, Frame, decide};
use image::{Aligned, MappedCompartment, MappedFabric};
use std::collections::BTreeMap;
use switch::{Config, FABRIC, Finish, HEAD, Ingress, Outgoing, Output, Slot, Switch};
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use wire::address::{link_local, solicited_node};
use wire::nd::NeighbourAdvert;
use wire::{MacAddress, RawOffload, arp, build, checksum, ethernet, ipv6};

/// Red routes its own addresses outside, blue has its IPv4 packets translated.
const SPEC: &str = "version: 1
uplinks: [{name: wan0, interface: eth1}]
tenants:
  - name: red
    subnets: [{name: web, prefixes: [10.1.1.0/24, 'fd00:1::/64']}]
    endpoints:
      - {name: a, subnet: web, addresses: [10.1.1.10, 'fd00:1::10'], roles: [router, dhcp-server], prefixes: [10.9.0.0/16]}
    outside: [{uplink: wan0, address: [192.0.2.10/24, '2001:db8::10/64'], gateway: [192.0.2.1, '2001:db8::1']}]
  - name: blue
    subnets: [{name: web, prefixes: [10.1.1.0/24, 'fd00:2::/64']}]
    endpoints: [{name: a, subnet: web, addresses: [10.1.1.10, 'fd00:2::10'], roles: [dhcp-server]}]
    outside: [{uplink: wan0, address: [192.0.2.11/24, '2001:db8::11/64'], gateway: [192.0.2.1, '2001:db8::1'], nat: on}]
";
const ROUTER: MacAddress = MacAddress([2, 0xaa, 0, 0, 0, 1]);
const FRAMES: u32 = 60_000;

#[derive(Default)]
struct Said {
    ingress: Vec<u8>,
    outside: Vec<(u16, RawOffload, Vec<u8>)>,
    drops: BTreeMap<DropReason, u32>,
}

impl Output for Said {
    fn ingress(&mut self, offset: usize, into: &mut [u8]) -> usize {
        let rest = self.ingress.get(offset..).unwrap_or(&[]);
        let n = rest.len().min(into.len());
        into[..n].copy_from_slice(&rest[..n]);
        n
    }
    fn send(&mut self, f: &Outgoing<'_>) {
        let rest = self.ingress.get(f.rest_from..f.total).unwrap_or(&[]);
        self.keep(f.slot, f.tag, f.offload, [f.head, rest].concat());
    }
    fn finish(&mut self, f: &Outgoing<'_>, how: &Finish) {
        let rest = self.ingress.get(f.rest_from..f.total).unwrap_or(&[]);
        let (mut frame, mut scratch) = ([f.head, rest].concat(), [0; 9100]);
        let mut all = Vec::new();
        switch::finish(how, &mut frame, &mut scratch, |offload, frame| {
            all.push((*offload, frame.to_vec()));
        })
        .expect("finishes");
        for (offload, frame) in all {
            self.keep(f.slot, f.tag, offload, frame);
        }
    }
    fn reply(&mut self, slot: Slot, tag: u16, frame: &[u8]) {
        self.keep(slot, tag, RawOffload::default(), frame.to_vec());
    }
    fn dropped(&mut self, _: Slot, reason: DropReason) {
        *self.drops.entry(reason).or_default() += 1;
    }
    fn count(&mut self, _: Slot, _: Counter, _: u64) {}
}

impl Said {
    fn keep(&mut self, slot: Slot, tag: u16, offload: RawOffload, frame: Vec<u8>) {
        if slot == FABRIC {
            self.outside.push((tag, offload, frame));
        }
    }
}

/// Numbers as by chance (Marsaglia's xorshift), the same each time.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[(self.next() >> 16) as usize % all.len()].clone()
    }
    fn one_in(&mut self, n: u64) -> bool {
        (self.next() >> 16).is_multiple_of(n)
    }
}

/// Layer 4 with headers that somebody might like to be seen as something else.
fn transport(dice: &mut Dice, four: bool) -> (u8, Vec<u8>) {
    let mut rest = vec![0; 8 + (dice.next() % 40) as usize];
    let ports: [u16; 8] = [67, 68, 547, 546, 53, 1024, 0, 40_000];
    match dice.of(&[17, 17, 6, if four { 1 } else { 58 }, 47, 59]) {
        17 => {
            rest[..2].copy_from_slice(&dice.of(&ports).to_be_bytes());
            rest[2..4].copy_from_slice(&dice.of(&ports).to_be_bytes());
            let len = rest.len() as u16;
            rest[4..6].copy_from_slice(&len.to_be_bytes());
            (17, rest)
        }
        6 => {
            rest.resize(20 + rest.len(), 0);
            rest[..2].copy_from_slice(&dice.of(&ports).to_be_bytes());
            rest[12] = 0x50;
            rest[13] = 2;
            (6, rest)
        }
        58 => {
            rest.resize(24 + rest.len(), 0);
            rest[0] = dice.of(&[128, 128, 128, 1, 2, 129, 133, 134, 135, 136, 137]);
            (58, rest)
        }
        1 => {
            rest[0] = dice.of(&[8, 8, 0, 3, 5, 9, 11]);
            (1, rest)
        }
        other => {
            rest.truncate((dice.next() % 20) as usize);
            (other, rest)
        }
    }
}

fn ip4(dice: &mut Dice, from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    let (protocol, rest) = transport(dice, true);
    let options = if dice.one_in(6) { 8 } else { 0 };
    let mut packet = vec![1; 20 + options];
    packet[0] = 0x45 + (options / 4) as u8;
    packet[1] = 0;
    let len = (packet.len() + rest.len()) as u16;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    let fragment = dice.of(&[0u16, 0, 0, 0x4000, 0x2000, 0x2009, 9]);
    packet[6..8].copy_from_slice(&fragment.to_be_bytes());
    packet[8] = dice.of(&[1, 2, 64, 128, 255]);
    packet[9] = protocol;
    packet[10..12].fill(0);
    packet[12..16].copy_from_slice(&from);
    packet[16..20].copy_from_slice(&to);
    let sum = checksum::internet(&packet).to_be_bytes();
    packet[10..12].copy_from_slice(&sum);
    packet.extend(rest);
    packet
}

fn ip6(dice: &mut Dice, from: [u8; 16], to: [u8; 16]) -> Vec<u8> {
    let (last, rest) = transport(dice, false);
    let mut headers: Vec<(u8, Vec<u8>)> = Vec::new();
    if dice.one_in(5) {
        headers.push((dice.of(&[0, 60]), vec![0, 0, 1, 4, 0, 0, 0, 0]));
    }
    if dice.one_in(6) {
        let more = dice.of(&[0, 1, 0x49]);
        headers.push((44, vec![0, 0, 0, more, 0, 0, 0, 1]));
    }
    let mut next = last;
    let mut body = rest;
    for (kind, mut header) in headers.into_iter().rev() {
        header[0] = next;
        header.extend(body);
        (next, body) = (kind, header);
    }
    let mut packet = vec![
        0x60,
        0,
        0,
        0,
        0,
        0,
        next,
        dice.of(&[1, 2, 64, 128, 254, 255]),
    ];
    packet[4..6].copy_from_slice(&(body.len() as u16).to_be_bytes());
    packet.extend(from);
    packet.extend(to);
    packet.extend(body);
    packet
}

/// A compartment with its switch.
struct Site {
    slot: u32,
    tag: u16,
    /// Its MAC outside, and its tenant's endpoint's and gateway's.
    mac: MacAddress,
    endpoint: (Slot, MacAddress, MacAddress),
    v4: [u8; 4],
    outside: ([u8; 4], [u8; 16]),
    inside: [u8; 16],
    image: MappedCompartment<Aligned>,
    switch: Switch,
}

impl Site {
    fn say(&mut self, now: u64, from: Slot, frame: &[u8]) -> Said {
        let mut said = Said {
            ingress: frame.to_vec(),
            ..Said::default()
        };
        let mut head = frame[..frame.len().min(HEAD)].to_vec();
        let ingress = Ingress {
            from,
            tag: if from == FABRIC { self.tag } else { 0 },
            offload: RawOffload::default(),
            head: &mut head,
            total: frame.len(),
        };
        let image = self.image.image();
        self.switch.process(&image, now, ingress, &mut said);
        self.switch.tick(&image, now, &mut said);
        said
    }
}

fn framed(to: MacAddress, from: MacAddress, packet: &[u8]) -> Vec<u8> {
    let kind: [u8; 2] = if packet[0] >> 4 == 4 {
        [8, 0]
    } else {
        [0x86, 0xdd]
    };
    [&to.0[..], &from.0, &kind, packet].concat()
}

fn address(text: &str) -> [u8; 16] {
    spec::mapped(text.parse().expect("address"))
}

/// What the router says of itself, when it is asked.
fn answers(asked: &[u8]) -> Option<Vec<u8>> {
    let parsed = wire::parse(asked, asked.len()).ok()?;
    let mut buffer = [0; 128];
    let n = match &parsed.network {
        wire::parse::Network::Arp(message) => {
            let link = ethernet::Header::new(message.sender_mac, ROUTER, ethernet::ARP);
            let message = arp::Message {
                operation: arp::Operation::Reply,
                sender_mac: ROUTER,
                sender: message.target,
                target_mac: message.sender_mac,
                target: message.sender,
            };
            build::arp(&mut buffer, &link, &message).ok()?
        }
        wire::parse::Network::Ip(ip) if ip.is_nd() => {
            let link = ethernet::Header::new(parsed.source, ROUTER, ethernet::IPV6);
            let target = address("2001:db8::1");
            let header = ipv6::Header {
                hop_limit: 255,
                ..ipv6::Header::new(target, ip.source, 58)
            };
            let advert = NeighbourAdvert {
                router: true,
                solicited: true,
                overrides: true,
                target,
                target_link: Some(ROUTER),
            };
            build::icmpv6(&mut buffer, &link, &header, |body| advert.emit(body)).ok()?
        }
        _ => return None,
    };
    Some(buffer[..n].to_vec())
}

#[test]
fn an_honest_switch_says_nothing_that_the_fabric_refuses() {
    let spec = spec::parse("spec.yaml", SPEC.as_bytes()).expect("a spec");
    let ids = policy::Ids::assign(&spec, &policy::Ids::default());
    let intent = policy::compile(&spec, &ids, 1_767_225_600).expect("compiles");
    let tables = MappedFabric::map(Aligned::copy_of(&intent.fabric.bytes)).expect("an image");
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut passed: BTreeMap<(u16, u8), u32> = BTreeMap::new();
    let mut drops: BTreeMap<DropReason, u32> = BTreeMap::new();
    for (id, inside) in [(1, "fd00:1::10"), (2, "fd00:2::10")] {
        let compartment = &intent.compartments[&id];
        let image = MappedCompartment::map(Aligned::copy_of(&compartment.image.bytes)).unwrap();
        let own = &compartment.attachments[0];
        let (slot, port) = compartment.ports.first_key_value().unwrap();
        let gateway = MacAddress(image.image().subnets()[0].gateway_mac);
        let mut switch = Switch::new(Config::default());
        switch.use_image(&image.image(), 0);
        let mut site = Site {
            slot: compartment.create.id,
            tag: own.tag,
            mac: MacAddress(own.mac),
            endpoint: (*slot, MacAddress(port.mac), gateway),
            v4: [10, 1, 1, 10],
            outside: (
                wire::address::unmapped(&own.addresses[0]).unwrap(),
                own.addresses[1],
            ),
            inside: address(inside),
            image,
            switch,
        };
        let mut queue: Vec<Vec<u8>> = Vec::new();
        for round in 0..u64::from(FRAMES) {
            let now = 1_000_000_000 + round * 20_000_000;
            let (from, frame) = match queue.pop() {
                Some(answer) => (FABRIC, answer),
                None => anything(&mut dice, &site),
            };
            let said = site.say(now, from, &frame);
            for (reason, n) in said.drops {
                *drops.entry(reason).or_default() += n;
            }
            for (tag, offload, bytes) in said.outside {
                let mut head = [0; fabric::HEAD];
                let n = bytes.len().min(head.len());
                head[..n].copy_from_slice(&bytes[..n]);
                let len = bytes.len();
                let decision = decide(
                    &tables.image(),
                    site.slot,
                    &Frame {
                        tag,
                        offload,
                        len,
                        head,
                    },
                );
                assert!(
                    matches!(decision, Decision::Unicast { .. }),
                    "{decision:?} of {:02x?}, for {:02x?} from {from}",
                    bytes,
                    frame
                );
                let kind = u16::from_be_bytes([bytes[12], bytes[13]]);
                let at = if kind == 0x86dd { 20 } else { 23 };
                let protocol = if kind == 0x0806 { 0 } else { bytes[at] };
                *passed.entry((kind, protocol)).or_default() += 1;
                queue.extend(answers(&bytes));
            }
        }
    }
    // Each kind was really said, and what may not be said was really tried.
    for kind in [
        (0x0806, 0),
        (0x0800, 1),
        (0x0800, 6),
        (0x0800, 17),
        (0x86dd, 6),
        (0x86dd, 17),
        (0x86dd, 44),
        (0x86dd, 58),
        (0x86dd, 60),
    ] {
        assert!(passed.get(&kind) > Some(&50), "{kind:04x?}: {passed:?}");
    }
    for reason in [
        DropReason::DhcpServer,
        DropReason::RouterAdvert,
        DropReason::SourceRoute,
        DropReason::Martian,
        DropReason::ExtensionChain,
    ] {
        assert!(drops.get(&reason) > Some(&50), "{reason:?}: {drops:?}");
    }
}

fn anything(dice: &mut Dice, site: &Site) -> (Slot, Vec<u8>) {
    let (slot, endpoint, gateway) = site.endpoint;
    let (own4, own6) = site.outside;
    let local = link_local(site.mac);
    let far4 = [
        [198, 51, 100, 7],
        [192, 0, 2, 1],
        [192, 0, 2, 99],
        [224, 0, 0, 1],
        [240, 0, 0, 1],
        [255; 4],
        [169, 254, 1, 1],
    ];
    let far6 = [
        "2606:4700::1",
        "2001:db8::1",
        "2001:db8::99",
        "fe80::1",
        "fec0::1",
        "fe00::1",
        "ff02::1",
        "ff0e::1",
        "8000::1",
        "fd99::1",
    ]
    .map(address);
    let (from, mut frame) = match dice.next() % 4 {
        0 => {
            let from = dice.of(&[site.v4, [10, 9, 1, 1], site.v4]);
            let to = dice.of(&far4);
            (slot, framed(gateway, endpoint, &ip4(dice, from, to)))
        }
        1 => {
            let to = dice.of(&far6);
            (slot, framed(gateway, endpoint, &ip6(dice, site.inside, to)))
        }
        2 => {
            let (from, to) = (dice.of(&far4), dice.of(&[own4, own4, site.v4]));
            (FABRIC, framed(site.mac, ROUTER, &ip4(dice, from, to)))
        }
        _ => {
            let from = dice.of(&[far6[0], far6[1], far6[2], far6[3], far6[5], [0; 16]]);
            let to = dice.of(&[
                own6,
                local,
                site.inside,
                solicited_node(&own6),
                solicited_node(&local),
            ]);
            let mac = match to[0] {
                0xff => MacAddress::of_group6(to),
                _ => site.mac,
            };
            let mut packet = ip6(dice, from, to);
            if dice.one_in(3) {
                // A question for one of its addresses, well formed.
                let target = dice.of(&[own6, local, address("2001:db8::77")]);
                let message = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target].concat();
                packet = [&[0x60, 0, 0, 0, 0, 24, 58, 255][..], &from, &to, &message].concat();
                let sum = checksum::pseudo(&from, &to, 58, message.len())
                    .bytes(&message)
                    .finish();
                packet[42..44].copy_from_slice(&sum.to_be_bytes());
            }
            (FABRIC, framed(mac, ROUTER, &packet))
        }
    };
    // What lies behind the packet may look like ports.
    if dice.one_in(3) {
        frame.extend([0, 67, 0, 68, 2, 35]);
    }
    (from, frame)
}
