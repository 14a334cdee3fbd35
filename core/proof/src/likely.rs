//! Packets that there can be: what shows that a table is wrong is one that somebody can
//! send and somebody gets, for `bulkhead trace`, where any such packet shows it.

use crate::cube::Cube;
use crate::intend::{Agreement, Host, Member};
use crate::lines::{Book, Side};
use crate::ranges::{Range, common, of_prefix, one, others, tidy};
use crate::space::{Addresses, packets};
use core::net::{Ipv4Addr, Ipv6Addr};
use spec::State;
use wire::address::unmapped;
use wire::{icmpv4, icmpv6, tcp, udp};

const FOUR: [Range; 1] = [(
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0],
    [
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    ],
)];
const SIX: [Range; 1] = [([0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0], [0xff; 16])];
/// RFC 4291, section 2.5.6.
const LINK_LOCAL: Range = (
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [
        0xfe, 0xbf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        0xff,
    ],
);

/// TCP, UDP and pings of one family between a member's addresses and those of others of
/// its tenant, and of hosts outside where there is a way.
pub(crate) fn likely(
    host: &Host<'_>,
    book: &Book<'_>,
    at: usize,
    side: Side,
    v4: bool,
) -> Vec<Cube> {
    let members = 0..book.view.members.len();
    let own = plain(&given(book, at, v4));
    let others = members.filter(|member| *member != at);
    let mut peers: Vec<Range> = others.flat_map(|member| given(book, member, v4)).collect();
    if way(book, side, v4) {
        peers.extend(outside(host, book, v4));
    }
    if let Some(member) = book.view.members.get(at) {
        let family = if v4 { FOUR } else { SIX };
        let there = common(&book.beyond(member.subnet), &family);
        // Not a subnet's first, which is nobody's.
        peers.extend(there.into_iter().map(|(first, last)| match first.last() {
            Some(0) if first != last => (next(first), last),
            _ => (first, last),
        }));
    }
    let peers = plain(&peers);
    let all = match side {
        Side::Egress => packets(&own, &peers),
        Side::Ingress => packets(&peers, &own),
    };
    cut(&all, v4)
}

fn next(address: [u8; 16]) -> [u8; 16] {
    u128::from_be_bytes(address).saturating_add(1).to_be_bytes()
}

/// Whatever else of one family somebody can send and somebody gets: between all addresses of
/// members, what is behind them, hosts outside, and services of other tenants; any protocol.
pub(crate) fn possible(
    host: &Host<'_>,
    book: &Book<'_>,
    at: usize,
    side: Side,
    v4: bool,
) -> Vec<Cube> {
    let family = |ranges: &[Range]| -> Vec<Range> {
        let all = if v4 { FOUR } else { SIX };
        common(ranges, &all)
    };
    let members = &book.view.members;
    let Some(member) = members
        .get(at)
        .filter(|m| m.endpoint.state() == State::Open)
    else {
        return Vec::new();
    };
    let both = |own: &[Range], peers: &[Range]| match side {
        Side::Egress => packets(&plain(own), &plain(peers)),
        Side::Ingress => packets(&plain(peers), &plain(own)),
    };
    let beyond = |ranges: &[Range]| common(&family(ranges), &others(&[LINK_LOCAL]));
    let (mut near, mut far) = (Vec::new(), Vec::new());
    let open = |m: &&Member<'_>| m.endpoint.state() == State::Open && m.id != member.id;
    for other in members.iter().filter(open) {
        match other.subnet == member.subnet {
            true => near.extend_from_slice(&other.own),
            false => far.extend_from_slice(&other.own),
        }
    }
    let own = beyond(&member.own);
    let mut far = beyond(&tidy(far));
    if way(book, side, v4) {
        far.extend(outside(host, book, v4));
    }
    let mut parts = both(&family(&member.own), &family(&tidy(near)));
    parts.extend(both(&own, &far));
    let mut all: Vec<Cube> = Vec::new();
    for kind in protocols(v4) {
        all.extend(parts.iter().filter_map(|part| part.and(&kind)));
    }
    let name = &book.view.tenant.name.value;
    let accepted = host.agreements.iter().filter(|agreement| {
        let tenant = host.spec.tenants.get(agreement.acceptor);
        side == Side::Egress && tenant.is_some_and(|t| t.name.value == *name)
    });
    for agreement in accepted {
        let Some(Some(family)) = agreement.families.get(usize::from(!v4)) else {
            continue;
        };
        let parts = both(&own, &[one(spec::mapped(family.stands))]);
        let served = served(agreement);
        let cubes = served
            .iter()
            .flat_map(|cube| parts.iter().filter_map(|p| p.and(cube)));
        all.extend(cubes);
    }
    all
}

/// What an agreement's service takes.
pub(crate) fn served(agreement: &Agreement) -> Vec<Cube> {
    let all = [0; 16]..=[0xff; 16];
    let protocol = agreement.protocol.unwrap_or(tcp::PROTOCOL);
    let cube = |ports: &(u16, u16)| {
        let to = ports.0.max(1)..=ports.1;
        Cube::new(&all, &all, &(1..=u16::MAX), &to, &(protocol..=protocol))
    };
    agreement.ports.iter().map(cube).collect()
}

/// Any that begins something, but what are parts of IPv6's own header (RFC 8200, section 4).
fn protocols(v4: bool) -> Vec<Cube> {
    let all = [0; 16]..=[0xff; 16];
    let ports = 0..=u16::MAX;
    let of = |protocols: core::ops::RangeInclusive<u8>| {
        Cube::new(&all, &all, &ports, &ports, &protocols)
    };
    let mut kinds = usual(v4).to_vec();
    kinds.extend(match v4 {
        true => vec![of(2..=5), of(7..=16), of(18..=254)],
        false => vec![of(1..=5), of(7..=16), of(18..=42), of(99..=132)],
    });
    kinds
}

/// A service's users as its endpoint gets to see them.
pub(crate) fn users(agreement: &Agreement, v4: bool) -> Vec<Cube> {
    let Some(Some(family)) = agreement.families.get(usize::from(!v4)) else {
        return Vec::new();
    };
    let pool: Vec<Range> = of_prefix(&family.pool).collect();
    let parts = packets(&plain(&pool), &plain(&[one(spec::mapped(family.service))]));
    let served = served(agreement);
    let both = |part: &Cube| -> Vec<Cube> { served.iter().filter_map(|s| part.and(s)).collect() };
    parts.iter().flat_map(both).collect()
}

/// The same from one member to another, of both families.
pub(crate) fn between(book: &Book<'_>, from: usize, to: usize) -> Vec<Cube> {
    let of = |v4: bool| {
        let ends = [from, to].map(|member| plain(&given(book, member, v4)));
        let [sources, destinations] = &ends;
        cut(&packets(sources, destinations), v4)
    };
    [of(true), of(false)].concat()
}

/// The same from one address to another.
pub(crate) fn usually(source: &[u8; 16], destination: &[u8; 16]) -> Vec<Cube> {
    let v4 = unmapped(destination).is_some();
    let of = |address: &[u8; 16]| [*address..=*address];
    cut(&packets(&of(source), &of(destination)), v4)
}

/// A member's own addresses of one family, as written or chosen.
fn given(book: &Book<'_>, member: usize, v4: bool) -> Vec<Range> {
    let member = book.view.members.get(member);
    let open = member.filter(|m| m.endpoint.state() == State::Open);
    let all = open.into_iter().flat_map(|m| &m.given);
    all.filter(|address| address.is_ipv4() == v4)
        .map(|address| one(spec::mapped(*address)))
        .collect()
}

/// What can be sent without a connection, or a document about its format.
fn cut(parts: &[Cube], v4: bool) -> Vec<Cube> {
    let usual = usual(v4);
    let both = |part: &Cube| -> Vec<Cube> { usual.iter().filter_map(|u| part.and(u)).collect() };
    parts.iter().flat_map(both).collect()
}

fn plain(ranges: &[Range]) -> Vec<Addresses> {
    ranges.iter().map(|range| range.0..=range.1).collect()
}

/// Whether a packet has a way outside, or in.
fn way(book: &Book<'_>, side: Side, v4: bool) -> bool {
    book.view.tenant.outside.iter().any(|way| {
        let leads = way
            .gateway
            .iter()
            .any(|gateway| gateway.value.0.is_ipv4() == v4);
        // Behind a translation nobody is known outside.
        let known = side == Side::Egress || !v4 || way.nat_ports() == 0;
        leads && known && way.routes.is_none()
    })
}

/// Hosts outside: addresses for one, less those that stand for something here.
fn outside(host: &Host<'_>, book: &Book<'_>, v4: bool) -> Vec<Range> {
    let hosts = match v4 {
        true => {
            let range = |first, last| {
                let end = |a: [u8; 4]| Ipv4Addr::from(a).to_ipv6_mapped().octets();
                (end(first), end(last))
            };
            vec![
                range([1, 0, 0, 0], [126, 255, 255, 255]),
                range([128, 0, 0, 0], [223, 255, 255, 255]),
            ]
        }
        false => {
            let first = Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0);
            let last = Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, u16::MAX);
            vec![(first.octets(), last.octets())]
        }
    };
    let mut taken = book.inside.clone();
    for family in host.agreements.iter().flat_map(|a| &a.families).flatten() {
        taken.extend(of_prefix(&family.pool));
        taken.push(one(spec::mapped(family.stands)));
    }
    let own = host.attachments.iter().flat_map(|a| &a.addresses);
    taken.extend(own.map(|address| one(*address)));
    common(&hosts, &others(&tidy(taken)))
}

fn usual(v4: bool) -> [Cube; 3] {
    let all = [0; 16]..=[0xff; 16];
    let ports = 1..=u16::MAX;
    let with_ports = |protocol: u8| Cube::new(&all, &all, &ports, &ports, &(protocol..=protocol));
    let (icmp, kind) = match v4 {
        true => (icmpv4::PROTOCOL, icmpv4::ECHO_REQUEST),
        false => (icmpv6::PROTOCOL, icmpv6::ECHO_REQUEST),
    };
    let echo = u16::from(kind) << 8;
    let ping = Cube::new(&all, &all, &(0..=0), &(echo..=echo), &(icmp..=icmp));
    [with_ports(tcp::PROTOCOL), with_ports(udp::PROTOCOL), ping]
}
