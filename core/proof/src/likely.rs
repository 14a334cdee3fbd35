//! Packets that there can be: what shows that a table is wrong is one that somebody can
//! send and somebody gets, for `bulkhead trace`, where any such packet shows it.

use crate::cube::Cube;
use crate::intend::Host;
use crate::lines::{Book, Side};
use crate::ranges::{Range, common, of_prefix, one, others, tidy};
use crate::space::{Addresses, packets};
use core::net::{Ipv4Addr, Ipv6Addr};
use spec::State;
use wire::address::unmapped;
use wire::{icmpv4, icmpv6, tcp, udp};

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
    let peers = plain(&peers);
    let all = match side {
        Side::Egress => packets(&own, &peers),
        Side::Ingress => packets(&peers, &own),
    };
    cut(&all, v4)
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
