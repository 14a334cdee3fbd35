//! Connections after their switch's death: those that would begin now, and no others.

use crate::nat::shared;
use crate::policy::{rule, servers};
use crate::services::{blue, cross, red};
use crate::support::*;
use core_switch::{Connection, Cursor, Memory, Restoration, Slot};
use flow::segment::{Kind, Tcp};
use flow::{Connections, Segment, Side, Verdict};
use image::CompartmentTables;
use image::compartment::NONE;
use image::rules::{Action, RuleTable};
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;
use telemetry::drops::DropReason;
use wire::address::{mapped, unmapped};
use wire::tcp::{ACK, SYN};
use wire::{MacAddress, Tuple, ipv4};

/// Memory that outlives a switch.
#[derive(Clone)]
pub struct Page(Rc<RefCell<Vec<u64>>>);

impl Page {
    fn new(connections: usize) -> Page {
        let words = vec![0; core_switch::bytes_for(connections) / 8];
        Page(Rc::new(RefCell::new(words)))
    }

    /// As it is now.
    pub(crate) fn left(&self) -> Page {
        Page(Rc::new(RefCell::new(self.0.borrow().clone())))
    }
}

impl Memory for Page {
    fn words(&self) -> usize {
        self.0.borrow().len()
    }

    fn read(&self, at: usize, words: &mut [u64]) {
        words.copy_from_slice(&self.0.borrow()[at..at + words.len()]);
    }

    fn write(&mut self, at: usize, words: &[u64]) {
        self.0.borrow_mut()[at..at + words.len()].copy_from_slice(words);
    }
}

/// A switch with a journal.
pub(crate) fn keeping(mut site: Site) -> (Site, Page) {
    let page = Page::new(256);
    site.keep(&page);
    (site, page)
}

pub(crate) fn came(site: &Site) -> (u64, u64) {
    let Restoration {
        restored,
        refused,
        unread,
    } = site.switch().1.restoration();
    assert_eq!(unread, 0);
    (restored, refused)
}

fn connections(site: &Site) -> Vec<Connection> {
    let mut all = Vec::new();
    let mut cursor = Cursor::default();
    let switch = site.switch().1;
    while !switch.walk(site.now, &mut cursor, 1000, &mut |c| all.push(*c)) {}
    all
}

const GOES: (MacAddress, MacAddress) = (MacAddress([2, 0, 0, 0, 0, 1]), GATEWAY);

fn inside(from: Slot, to: Slot, ports: (u16, u16), numbers: (u8, u32, u32)) -> Vec<u8> {
    let link = (mac(from), gateway_of(from));
    tcp(
        link,
        (mapped(v4(from)), mapped(v4(to))),
        ports,
        numbers,
        b"",
    )
}

fn gateway_of(slot: Slot) -> MacAddress {
    gateway_mac(match slot {
        A1 | A2 | R => 0,
        B1 => 1,
        _ => 2,
    })
}

/// A TCP connection from A1 to B1's port 80, which only A1 may begin.
fn talking() -> (Site, Page) {
    let (mut site, page) = keeping(Site::with(servers()));
    site.inject(A1, &inside(A1, B1, (1000, 80), (SYN, 100, 0)))
        .only();
    site.inject(B1, &inside(B1, A1, (80, 1000), (SYN | ACK, 500, 101)))
        .only();
    site.inject(A1, &inside(A1, B1, (1000, 80), (ACK, 101, 501)))
        .only();
    (site, page)
}

#[test]
fn a_connection_goes_on_where_it_was_and_without_a_journal_it_does_not() {
    let (mut site, page) = talking();
    site.crash(Some(&page));
    assert_eq!(came(&site), (1, 0));
    let data = inside(B1, A1, (80, 1000), (ACK, 4000, 101));
    assert_eq!(site.inject(B1, &data).only().slot, A1);
    let data = inside(A1, B1, (1000, 80), (ACK, 101, 4000));
    assert_eq!(site.inject(A1, &data).only().slot, B1);
    // And over the next death.
    site.crash(Some(&page));
    let data = inside(B1, A1, (80, 1000), (ACK, 5000, 101));
    assert_eq!(site.inject(B1, &data).only().slot, A1);
    site.crash(None);
    site.refuses(B1, &data, DropReason::EgressRule);
    let data = inside(A1, B1, (1000, 80), (ACK, 101, 5000));
    site.refuses(A1, &data, DropReason::ConnectionState);
}

#[test]
fn what_the_rules_do_not_let_begin_now_is_over() {
    for deny in [0, 1] {
        let (mut site, page) = talking();
        let before = page.left();
        site.change(|tables| {
            let denied = rule(6, 80..=80, Action::Deny, 8);
            tables.rule_tables[deny].rules.insert(0, denied);
        });
        site.crash(Some(&before));
        assert_eq!(came(&site), (0, 1));
        assert_eq!(connections(&site), []);
    }
    // What is let pass without state has no answers.
    let (mut site, page) = talking();
    let before = page.left();
    site.change(|tables| tables.rule_tables[0].rules[2].action = Action::AllowStateless);
    site.crash(Some(&before));
    assert_eq!(came(&site), (0, 1));
    // Nor has what nobody judges any more.
    let (mut site, page) = talking();
    let before = page.left();
    site.change(|tables| {
        for endpoint in &mut tables.endpoints[..4] {
            (endpoint.egress, endpoint.ingress) = (NONE, NONE);
        }
        tables.endpoints[4].egress = 0;
    });
    site.crash(Some(&before));
    assert_eq!(came(&site), (0, 1));
}

#[test]
fn another_endpoint_in_the_slot_inherits_nothing() {
    let (mut site, page) = talking();
    let before = page.left();
    site.change(|tables| tables.endpoints[3].id += 7);
    site.crash(Some(&before));
    assert_eq!(came(&site), (0, 1));
    site.refuses(
        B1,
        &inside(B1, A1, (80, 1000), (ACK, 501, 101)),
        DropReason::EgressRule,
    );
}

#[test]
fn behind_a_shared_address_a_connection_keeps_its_port() {
    const SERVER: [u8; 4] = [198, 51, 100, 7];
    const SHARED: [u8; 4] = [192, 0, 2, 10];
    let (mut site, page) = keeping(shared());
    let ask = |n: u8| udp4(GOES, (v4(A1), SERVER), (40_000, 53), &[n]);
    let left = site.inject(A1, &ask(1)).only().tuple();
    let answer = udp4(
        (MacAddress([2, 0xff, 0, 0, 0, 9]), OUTSIDE_MAC),
        (SERVER, SHARED),
        (53, left.source_port),
        b"!",
    );
    site.inject(FABRIC, &answer).only();
    let before = page.left();
    site.crash(Some(&page));
    assert_eq!(came(&site), (1, 0));
    assert_eq!(site.inject(FABRIC, &answer).only().slot, A1);
    assert_eq!(site.inject(A1, &ask(2)).only().tuple(), left);
    // Its block is another's now.
    site.change(|tables| tables.nat_blocks = vec![(0, 3), (0, 0)]);
    site.crash(Some(&before));
    assert_eq!(came(&site), (0, 1));
}

#[test]
fn across_an_agreement_either_switch_may_die() {
    const AS4: [u8; 4] = [10, 1, 200, 10];
    let (mut red, reds) = keeping(red());
    let (mut blue, blues) = keeping(blue());
    let ends = (mapped(v4(A1)), mapped(AS4));
    let ask = |flags, seq, ack| tcp(GOES, ends, (4000, 5432), (flags, seq, ack), b"");
    let asked = cross(&blue.inject(A1, &ask(SYN, 100, 0)), &mut red)
        .only()
        .tuple();
    let answer = |flags, seq, ack| {
        let ends = (asked.destination, asked.source);
        let ports = (asked.destination_port, asked.source_port);
        tcp(
            (mac(B1), gateway_mac(1)),
            ends,
            ports,
            (flags, seq, ack),
            b"",
        )
    };
    cross(&red.inject(B1, &answer(SYN | ACK, 500, 101)), &mut blue).only();
    cross(&blue.inject(A1, &ask(ACK, 101, 501)), &mut red).only();
    let (reds, blues) = (reds.left(), blues.left());
    for round in 1..4 {
        if round & 1 != 0 {
            red.crash(Some(&reds));
            assert_eq!(came(&red), (1, 0));
        }
        if round & 2 != 0 {
            blue.crash(Some(&blues));
            assert_eq!(came(&blue), (1, 0));
        }
        let home = cross(&red.inject(B1, &answer(ACK, 501, 101)), &mut blue);
        assert_eq!(home.only().tuple().source, mapped(AS4));
        let there = cross(&blue.inject(A1, &ask(ACK, 101, 501)), &mut red);
        assert_eq!(there.only().tuple(), asked);
    }
    // What is revoked is over at both.
    for (site, page) in [(&mut red, &reds), (&mut blue, &blues)] {
        site.change(|tables| {
            let service = tables.routes.len() as u32 - 1;
            tables.ranges.retain(|(_, range)| range.route != service);
            tables.routes.pop();
            tables.crossings.clear();
            tables.service_ports.clear();
        });
        site.crash(Some(page));
        assert_eq!(came(site), (0, 1));
    }
}

#[test]
fn many_come_back_in_steps_that_let_frames_pass() {
    const MANY: u16 = 3000;
    let open = |tables: &mut CompartmentTables| {
        servers()(tables);
        for endpoint in &mut tables.endpoints {
            endpoint.connections = 8192;
        }
    };
    let page = Page::new(MANY.into());
    let names = names(&Site::with(open));
    let mut liar = Connections::named([1, 2], &names).unwrap();
    liar.keep(Box::new(page.clone()));
    for port in 0..MANY {
        let [a, b] = sides(A1, B1, (port, 53));
        assert!(forge(&mut liar, &a, &b));
    }
    let mut site = Site::with(open);
    site.crash(Some(&page));
    let early = site.switch().1.restoration();
    assert!(early.restored > 0 && early.unread > 0);
    assert!(site.deadline() <= site.now);
    // Who is back is served, and others are not held up.
    let answer = |port| udp4((mac(B1), gateway_mac(1)), (v4(B1), v4(A1)), (53, port), b"");
    assert_eq!(site.inject(B1, &answer(0)).only().slot, A1);
    site.refuses(B1, &answer(MANY - 1), DropReason::EgressRule);
    let fresh = udp4(GOES, (v4(A1), v4(B1)), (MANY + 1, 53), b"");
    assert_eq!(site.inject(A1, &fresh).only().slot, B1);
    for _ in 0..10 {
        site.after(0);
    }
    assert_eq!(came(&site), (MANY.into(), 0));
    assert_eq!(site.inject(B1, &answer(MANY - 1)).only().slot, A1);
    assert!(site.deadline() > site.now, "it sleeps again");
}

/// Owners as the switch calls them.
fn names(site: &Site) -> Vec<(u32, u32)> {
    let mut names = vec![(NONE, 8192); 14];
    for endpoint in &site.switch().0.endpoints {
        let first = 2 * endpoint.slot as usize;
        names[first..first + 2].fill((endpoint.id, 8192));
    }
    names
}

/// Both sides inside, untranslated, by UDP.
fn sides(from: Slot, to: Slot, (source_port, destination_port): (u16, u16)) -> [Side; 2] {
    let tuple = Tuple {
        source: mapped(v4(from)),
        destination: mapped(v4(to)),
        source_port,
        destination_port,
        protocol: 17,
    };
    let side = |slot, tuple| Side {
        owner: 2 * slot,
        zone: 0,
        tuple,
    };
    [side(from, tuple), side(to, tuple.reversed())]
}

/// What a switch that lies writes: any two sides, with all that makes an entry whole.
fn forge(liar: &mut Connections, a: &Side, b: &Side) -> bool {
    let segment = |kind| Segment {
        packets: 1,
        bytes: 60,
        kind,
    };
    let flags = |flags, sequence, acknowledgement| {
        segment(Kind::Tcp(Tcp {
            flags,
            sequence,
            acknowledgement,
            window: 60_000,
            payload: 0,
            scale: None,
            more: false,
        }))
    };
    let echo = |request| segment(Kind::Echo { request });
    let said = match a.tuple.protocol {
        6 => vec![flags(SYN, 1, 0), flags(SYN | ACK, 5, 2), flags(ACK, 2, 6)],
        1 | 58 => vec![echo(true), echo(false)],
        _ => vec![segment(Kind::Plain); 2],
    };
    let verdict = Verdict::default();
    let Ok(mut found) = liar.open(0, a, b, &verdict, &said[0]) else {
        return false;
    };
    for segment in &said[1..] {
        found.direction = found.direction.reversed();
        liar.packet(0, found, segment);
    }
    true
}

/// The switch of these tables, after one that left these connections.
fn after(site: impl Fn() -> Site, all: &[[Side; 2]]) -> Site {
    let page = Page::new(256);
    let mut site = site();
    let mut liar = Connections::named([1, 2], &names(&site)).unwrap();
    liar.keep(Box::new(page.clone()));
    for [a, b] in all {
        forge(&mut liar, a, b);
    }
    site.crash(Some(&page));
    site
}

#[test]
fn a_forged_translation_makes_nobody_another() {
    // A1 may ask B1; as B1 sees it, A2 does.
    let [a, b] = sides(A1, B1, (1000, 53));
    let site = || Site::with(servers());
    assert_eq!(came(&after(site, &[[a, b]])), (1, 0));
    let lied = |change: &dyn Fn(&mut Side, &mut Side)| {
        let (mut a, mut b) = (a, b);
        change(&mut a, &mut b);
        came(&after(site, &[[a, b]]))
    };
    assert_eq!(lied(&|_, b| b.tuple.destination = mapped(v4(A2))), (0, 1));
    assert_eq!(lied(&|_, b| b.tuple.source_port = 99), (0, 1));
    // In the bounds of others, or of strangers.
    assert_eq!(lied(&|a, _| a.owner = 2 * A2), (0, 1));
    assert_eq!(lied(&|a, _| a.owner += 1), (0, 1));
    assert_eq!(lied(&|_, b| b.owner += 1), (0, 1));
    // To another tenant's endpoint, which has the same address.
    let [a, b] = sides(A1, A2, (1000, 53));
    let other = Side { owner: 2 * C2, ..b };
    assert_eq!(came(&after(site, &[[a, other]])), (0, 1));
    assert_eq!(came(&after(site, &[[a, b]])), (1, 0));
    // By a tag that is none, or from nowhere.
    assert_eq!(lied(&|_, b| b.zone = 3), (0, 1));
    assert_eq!(lied(&|a, b| (a.zone, b.zone) = (7, 7)), (0, 1));
}

#[test]
fn a_forged_port_behind_a_shared_address_is_not_anothers() {
    let outward = |owner: Slot, port| {
        let a = Side {
            owner: 2 * owner,
            zone: 0,
            tuple: Tuple {
                source: mapped(v4(owner)),
                destination: mapped([198, 51, 100, 7]),
                source_port: 40_000,
                destination_port: 53,
                protocol: 17,
            },
        };
        let leaves = Tuple {
            source: mapped([192, 0, 2, 10]),
            source_port: port,
            ..a.tuple
        };
        let b = Side {
            owner: 2 * owner,
            zone: TAG,
            tuple: leaves.reversed(),
        };
        [a, b]
    };
    // A1's are from 1024 on, B1's from 1124; A2 has none.
    let came = |sides| came(&after(shared, &[sides]));
    assert_eq!(came(outward(A1, 1030)), (1, 0));
    assert_eq!(came(outward(A1, 1130)), (0, 1));
    assert_eq!(came(outward(B1, 1130)), (1, 0));
    assert_eq!(came(outward(B1, 80)), (0, 1));
    assert_eq!(came(outward(A2, 1030)), (0, 1));
    // Elsewhere than it was sent.
    let [a, mut b] = outward(A1, 1030);
    b.tuple.source = mapped([198, 51, 100, 8]);
    assert_eq!(came([a, b]), (0, 1));
    // To the shared address itself: that is the switch's, and never leaves it.
    let [mut a, mut b] = outward(A1, 1030);
    a.tuple.destination = mapped([192, 0, 2, 10]);
    b.tuple.source = a.tuple.destination;
    assert_eq!(came([a, b]), (0, 1));
}

/// The first packet of a connection whose initiator's side this is: by which slot and tag,
/// and what.
fn first(a: &Side) -> Option<(Slot, u16, Vec<u8>)> {
    let slot = a.owner / 2;
    let (from, link) = match a.zone {
        0 => (slot, (mac(slot), gateway_of(slot))),
        TAG => (FABRIC, (NEXT_HOP, OUTSIDE_MAC)),
        _ => (FABRIC, (NEXT_HOP, MacAddress([2, 9, 9, 9, 9, 9]))),
    };
    let t = &a.tuple;
    let (ip, ports) = (
        (t.source, t.destination),
        (t.source_port, t.destination_port),
    );
    let four = unmapped(&t.source).zip(unmapped(&t.destination));
    let [high, low] = t.source_port.to_be_bytes();
    let frame = match (t.protocol, four) {
        (6, _) => tcp(link, ip, ports, (SYN, 1, 0), b""),
        (17, Some(ip)) => udp4(link, ip, ports, b"?"),
        (17, None) => udp6(link, ip, ports, b"?"),
        (1, Some((from, to))) => {
            let echo = [8, 0, 0, 0, high, low, 0, 1];
            icmp4(link, ipv4::Header::new(from, to, 1), &echo)
        }
        (58, None) => icmp6(link, ip, 64, &[128, 0, 0, 0, high, low, 0, 1]),
        _ => return None,
    };
    Some((from, a.zone, frame))
}

/// Whether the rules' own way begins that connection, but for ports and addresses that it
/// may choose freely.
fn begins(site: &mut Site, c: &Connection) -> bool {
    let Some((from, tag, frame)) = first(&c.a) else {
        return false;
    };
    site.inject_raw(from, tag, Default::default(), &frame);
    let [begun] = connections(site)[..] else {
        return false;
    };
    let free = |connection: &Connection| {
        let (a, mut b) = (connection.a, connection.b);
        if b.zone == TAG && b.tuple.destination != a.tuple.source {
            // A port of the same block.
            b.tuple.destination_port = b.tuple.destination_port.wrapping_sub(1024) / 100;
        }
        if a.zone == AGREED {
            // An address of the range, and any port.
            match unmapped(&b.tuple.destination) {
                Some([a, b, c, d]) => assert!([a, b, c] == [10, 1, 250] && d < 16),
                None => assert_eq!(b.tuple.destination[..14], POOL6[..14]),
            }
            (b.tuple.destination, b.tuple.destination_port) = ([0; 16], 0);
        }
        (a, b)
    };
    free(&begun) == free(c)
}

const AGREED: u16 = 9;
const SERVER: [u8; 4] = [198, 51, 100, 7];
const SERVER6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const SHARED: [u8; 4] = [192, 0, 2, 10];
const AS6: [u8; 16] = [0xfd, 0, 0, 1, 0, 200, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10];
const POOL6: [u8; 16] = [0xfd, 0, 0, 1, 0, 250, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3];

fn addresses() -> Vec<[u8; 16]> {
    let slots = [A1, A2, R, B1, C1, C2];
    let four = [
        SERVER,
        SHARED,
        [10, 1, 200, 10],
        [10, 1, 250, 3],
        [10, 9, 0, 5],
        [192, 0, 2, 77],
        [10, 1, 1, 1],
        [172, 16, 0, 1],
        [127, 0, 0, 1],
    ];
    let mut all: Vec<[u8; 16]> = slots
        .iter()
        .flat_map(|s| [mapped(v4(*s)), v6(*s)])
        .collect();
    all.extend(four.map(mapped));
    all.extend([SERVER6, AS6, POOL6, outside(10), outside(77)]);
    all
}
const PORTS: [u16; 9] = [0, 53, 54, 80, 1030, 1130, 5432, 5433, 40_000];
const PROTOCOLS: [u8; 6] = [6, 17, 17, 1, 58, 47];

/// Connections as honest switches have them.
fn honest() -> Vec<[Side; 2]> {
    let mut all = Vec::new();
    for protocol in [6, 17] {
        let with = |[mut a, mut b]: [Side; 2]| {
            (a.tuple.protocol, b.tuple.protocol) = (protocol, protocol);
            [a, b]
        };
        for (from, to) in [(A1, B1), (A1, A2), (B1, R), (C1, C2)] {
            for port in [53, 54, 80, 5432] {
                all.push(with(sides(from, to, (1030, port))));
            }
        }
        let [inner, _] = with(sides(A1, B1, (1030, 5432)));
        let to = |mut a: Side, destination| {
            a.tuple.destination = destination;
            a
        };
        let back = |a: Side, leaves: Tuple, owner, zone| {
            let b = Side {
                owner,
                zone,
                tuple: leaves.reversed(),
            };
            [a, b]
        };
        let out = to(inner, mapped(SERVER));
        all.push(back(out, out.tuple, out.owner, TAG));
        let hidden = Tuple {
            source: mapped(SHARED),
            ..out.tuple
        };
        all.push(back(out, hidden, out.owner, TAG));
        let asks = to(inner, mapped([10, 1, 200, 10]));
        all.push(back(asks, asks.tuple, asks.owner, AGREED));
        let stranger = |zone, source, destination| Side {
            owner: 2 * B1 + 1,
            zone,
            tuple: Tuple {
                source,
                destination,
                ..inner.tuple
            },
        };
        let comes = stranger(TAG, mapped(SERVER), mapped(v4(B1)));
        all.push(back(comes, comes.tuple, 2 * B1, 0));
        let uses = stranger(AGREED, mapped([10, 77, 0, 1]), mapped([10, 1, 200, 10]));
        let served = Tuple {
            source: mapped([10, 1, 250, 3]),
            destination: mapped(v4(B1)),
            ..uses.tuple
        };
        all.push(back(uses, served, 2 * B1, 0));
    }
    all
}

#[derive(Clone, Debug)]
enum Lie {
    Owner(bool, u32),
    Zone(bool, u16),
    Source(bool, [u8; 16]),
    Destination(bool, [u8; 16]),
    SourcePort(bool, u16),
    DestinationPort(bool, u16),
    Protocol(u8),
    /// The responder's side becomes what answers the initiator's.
    Plain,
}

fn lie() -> impl Strategy<Value = Lie> {
    let address = || prop::sample::select(addresses());
    let port = || prop::sample::select(PORTS.to_vec());
    prop_oneof![
        (any::<bool>(), 0..15u32).prop_map(|(b, n)| Lie::Owner(b, n)),
        (any::<bool>(), prop::sample::select(vec![0, TAG, AGREED, 3]))
            .prop_map(|(b, n)| Lie::Zone(b, n)),
        (any::<bool>(), address()).prop_map(|(b, n)| Lie::Source(b, n)),
        (any::<bool>(), address()).prop_map(|(b, n)| Lie::Destination(b, n)),
        (any::<bool>(), port()).prop_map(|(b, n)| Lie::SourcePort(b, n)),
        (any::<bool>(), port()).prop_map(|(b, n)| Lie::DestinationPort(b, n)),
        prop::sample::select(PROTOCOLS.to_vec()).prop_map(Lie::Protocol),
        Just(Lie::Plain),
    ]
}

fn told(mut sides: [Side; 2], lies: &[Lie]) -> [Side; 2] {
    for lie in lies {
        match lie {
            Lie::Owner(second, n) => sides[usize::from(*second)].owner = *n,
            Lie::Zone(second, n) => sides[usize::from(*second)].zone = *n,
            Lie::Source(second, n) => sides[usize::from(*second)].tuple.source = *n,
            Lie::Destination(second, n) => sides[usize::from(*second)].tuple.destination = *n,
            Lie::SourcePort(second, n) => sides[usize::from(*second)].tuple.source_port = *n,
            Lie::DestinationPort(second, n) => {
                sides[usize::from(*second)].tuple.destination_port = *n
            }
            Lie::Protocol(n) => sides.iter_mut().for_each(|side| side.tuple.protocol = *n),
            Lie::Plain => sides[1].tuple = sides[0].tuple.reversed(),
        }
    }
    sides
}

fn rules() -> impl Strategy<Value = RuleTable> {
    let action = || {
        prop::sample::select(vec![
            Action::Allow,
            Action::Allow,
            Action::AllowStateless,
            Action::Deny,
        ])
    };
    let one = (
        prop::sample::select(vec![6u8, 17]),
        prop::sample::select(PORTS.to_vec()),
        prop::sample::select(vec![0u16, 1, 500, 50_000]),
        action(),
    );
    let rules = prop::collection::vec(one, 0..4);
    (rules, action()).prop_map(|(rules, default)| RuleTable {
        rules: (1..)
            .zip(rules)
            .map(|(id, (protocol, first, more, action))| {
                rule(protocol, first..=first.saturating_add(more), action, id)
            })
            .collect(),
        default,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1500, ..ProptestConfig::default() })]

    /// Whatever a journal alleges, what goes on is what the rules' own way begins now; and
    /// what is true and would begin, goes on.
    #[test]
    fn nothing_goes_on_that_would_not_begin_now(
        kind in 0..4usize, egress in rules(), ingress in rules(), picks in prop::collection::vec(
            (any::<prop::sample::Index>(), prop::collection::vec(lie(), 0..4)), 1..6)) {
        let site = || {
            let mut site = match kind {
                0 => Site::with(servers()),
                1 => shared(),
                2 => red(),
                _ => blue(),
            };
            site.change(|tables| {
                tables.next_hops[0].mac = NEXT_HOP.0;
                tables.rule_tables = vec![egress.clone(), ingress.clone()];
                for endpoint in &mut tables.endpoints {
                    (endpoint.egress, endpoint.ingress) = (0, 1);
                }
            });
            site
        };
        let honest = honest();
        for (pick, lies) in picks {
            let true_one = *pick.get(&honest);
            let sides = told(true_one, &lies);
            let restored = connections(&after(site, &[sides]));
            for connection in &restored {
                prop_assert!(begins(&mut site(), connection), "{connection:?}");
            }
            if lies.is_empty() {
                let [a, b] = sides;
                let mut fresh = site();
                let (from, tag, frame) = first(&a).unwrap();
                fresh.inject_raw(from, tag, Default::default(), &frame);
                let begun = connections(&fresh);
                let same = begun.iter().any(|c| (c.a, c.b.owner, c.b.zone) == (a, b.owner, b.zone)
                    && (c.b.tuple == a.tuple.reversed()) == (b.tuple == a.tuple.reversed()));
                prop_assert_eq!(restored.len(), usize::from(same), "{:?}", sides);
            }
        }
    }
}
