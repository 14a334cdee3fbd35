use super::*;
use command::verbs::Metered;
use rustix::net::SendFlags;
use shm::{Direction, Receiver, attach_consumer};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use wire::address::{Address, mapped};
use wire::{checksum, ethernet, ipv4, ipv6, tcp};

const CAPACITY: usize = 1 << 19;

fn geometry() -> Geometry {
    Geometry::records(CAPACITY, Geometry::max_record_for(65_664)).unwrap()
}

/// What comes out of a capture's channel.
struct Seen {
    receiver: Receiver,
}

/// A packet that was captured, its sums right.
#[derive(Debug, PartialEq)]
struct Packet {
    from: u16,
    flags: u8,
    sequence: u32,
    acknowledgement: u32,
    payload: Vec<u8>,
    note: CaptureNote,
}

fn capture(captures: &mut Captures, of: u32, slot: u32, snap: u32) -> Seen {
    let (geometry, direction) = (geometry(), Direction::create(&geometry()).unwrap());
    let asked = Asked {
        on: 1,
        slot,
        snap,
        of,
        capacity: CAPACITY as u32,
        max_record: geometry.max_record() as u32,
        ..Asked::default()
    };
    let fds = direction.producer_end().unwrap();
    let [a, b, c] = fds.as_fds().map(|fd| fd.try_clone_to_owned().unwrap());
    let mut all = Fds::new();
    all.extend([a, b, c]);
    captures.ask(&asked, all);
    let fds = direction.consumer_end().unwrap();
    Seen {
        receiver: attach_consumer(fds, &geometry, Start::Fresh).unwrap(),
    }
}

impl Seen {
    /// All that was captured, whole.
    fn packets(&mut self) -> Vec<Packet> {
        let frames = self.frames();
        frames
            .iter()
            .map(|(note, frame)| packet(note, frame))
            .collect()
    }

    fn frames(&mut self) -> Vec<(CaptureNote, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(record) = self.receiver.ring.next().unwrap() {
            let mut frame = vec![0; record.len()];
            record.copy(0, &mut frame);
            all.push((record.note().unwrap(), frame));
        }
        self.receiver.ring.release();
        all
    }
}

fn packet(note: &CaptureNote, frame: &[u8]) -> Packet {
    assert_eq!(note.original_len as usize, frame.len());
    let link = ethernet::Header::parse(frame).unwrap();
    let rest = &frame[ethernet::HEADER..];
    let (source, destination, rest): (Address, Address, &[u8]) = match link.ethertype {
        ethernet::IPV4 => {
            let ip = ipv4::Header::parse(rest).unwrap();
            assert_eq!(usize::from(ip.payload_len) + ipv4::HEADER, rest.len());
            (
                mapped(ip.source),
                mapped(ip.destination),
                &rest[ipv4::HEADER..],
            )
        }
        _ => {
            let ip = ipv6::Header::parse(rest).unwrap();
            assert_eq!(usize::from(ip.payload_len) + ipv6::HEADER, rest.len());
            (ip.source, ip.destination, &rest[ipv6::HEADER..])
        }
    };
    assert!(checksum::verifies(
        &source,
        &destination,
        tcp::PROTOCOL,
        rest
    ));
    let header = tcp::Header::parse(rest).unwrap();
    Packet {
        from: header.source,
        flags: header.flags,
        sequence: header.sequence,
        acknowledgement: header.acknowledgement,
        payload: rest[usize::from(header.header_len)..].to_vec(),
        note: *note,
    }
}

/// From port 10 of slot 1 to port 20 of slot 2.
fn named(addresses: [Address; 2]) -> Named {
    let body = Metered {
        id: 9,
        from: 1,
        to: 2,
        addresses,
        ports: [10, 20],
        endpoints: [101, 102],
        macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
        reserved: 0,
    };
    Named::of(&body).unwrap()
}

fn four() -> [Address; 2] {
    [mapped([10, 1, 1, 10]), mapped([10, 1, 1, 11])]
}

const SYN: u8 = tcp::SYN;
const ACK: u8 = tcp::ACK;
const PUSH: u8 = tcp::PSH | tcp::ACK;
const FIN: u8 = tcp::FIN | tcp::ACK;
const RST: u8 = tcp::RST | tcp::ACK;

#[test]
fn each_packet_has_its_number_and_its_sum() {
    let six = [1, 2].map(|n| {
        let mut address = [0; 16];
        (address[0], address[15]) = (0xfd, n);
        address
    });
    for addresses in [four(), six] {
        let mut captures = Captures::default();
        let mut seen = capture(&mut captures, 0, u32::MAX, 65_535);
        let named = named(addresses);
        captures.begins(&named, 5);
        // 40,000 bytes that end in an odd one, of which the other has got a part.
        let (here, far) = UnixStream::pair().unwrap();
        let bytes: Vec<u8> = (0..40_001_u32).map(|n| (n % 251) as u8).collect();
        rustix::net::send(&far, &bytes, SendFlags::empty()).unwrap();
        assert_eq!(captures.look(here.as_fd(), 65_536), Ok(40_001));
        let mut states = [State::default(); 2];
        let before = states[0];
        (states[0].taken, states[0].handed) = (40_001, 30_000);
        captures.moved(&named, 0, before, states, 6);
        let before = states[0];
        states[0] = State {
            taken: 40_001,
            handed: 40_001,
            ended: true,
            told: true,
        };
        captures.moved(&named, 0, before, states, 7);
        captures.ends(&named, states, End::Said, 8);
        captures.publish();
        let all = seen.packets();
        let kinds: Vec<(u16, u8, usize)> = all
            .iter()
            .map(|it| (it.from, it.flags, it.payload.len()))
            .collect();
        let wanted = [
            (10, SYN, 0),
            (20, SYN | ACK, 0),
            (10, ACK, 0),
            (10, ACK, 16_384),
            (10, ACK, 16_384),
            (10, PUSH, 7_233),
            (20, ACK, 0),
            (10, FIN, 0),
            (20, ACK, 0),
            (20, FIN, 0),
            (10, ACK, 0),
        ];
        assert_eq!(kinds, wanted);
        let [a, b] = [0, 1].map(|at: usize| all[at].sequence);
        let numbers: Vec<[u32; 2]> = all[2..]
            .iter()
            .map(|it| {
                let (own, other) = if it.from == 10 { (a, b) } else { (b, a) };
                [
                    it.sequence.wrapping_sub(own),
                    it.acknowledgement.wrapping_sub(other),
                ]
            })
            .collect();
        let wanted = [
            [1, 1],
            [1, 1],
            [16_385, 1],
            [32_769, 1],
            [1, 30_001],
            [40_002, 1],
            [1, 40_003],
            [1, 40_003],
            [40_003, 2],
        ];
        assert_eq!(numbers, wanted);
        let payload: Vec<u8> = all.iter().flat_map(|it| it.payload.clone()).collect();
        assert!(payload == bytes);
        let noted = |it: &Packet| (it.note.endpoint, it.note.direction);
        assert!(
            all.iter()
                .all(|it| noted(it) == (if it.from == 10 { 101 } else { 102 }, 0))
        );
    }
}

#[test]
fn resets_are_of_who_is_gone_or_of_both() {
    let mut captures = Captures::default();
    let mut seen = capture(&mut captures, 0, 2, 65_535);
    let named = named(four());
    let states = [State::default(); 2];
    captures.ends(&named, states, End::Gone(1), 1);
    captures.ends(&named, states, End::Cut, 2);
    captures.publish();
    let all = seen.packets();
    let kinds: Vec<_> = all
        .iter()
        .map(|it| (it.from, it.flags, it.note.direction))
        .collect();
    assert_eq!(kinds, [(20, RST, 0), (10, RST, 1), (20, RST, 0)]);
    assert!(
        all.iter().all(|it| it.note.endpoint == 102),
        "as slot 2 sees it"
    );
}

#[test]
fn each_has_its_slots_and_its_length_and_what_finds_no_room_is_counted() {
    let mut captures = Captures::default();
    let mut own = capture(&mut captures, 0, 1, 64);
    let mut others = capture(&mut captures, 7, 65, 65_535);
    assert!(captures.of([1, 2]) && !captures.of([2, 3]) && captures.of([65, 2]));
    let named = named(four());
    captures.looked.fill(b'x');
    let mut states = [State::default(); 2];
    let frames = |captures: &mut Captures, states: &mut [State; 2], times: usize| {
        for _ in 0..times {
            let before = states[0];
            states[0].taken += 1000;
            captures.moved(&named, 0, before, *states, 1);
        }
        captures.publish();
    };
    frames(&mut captures, &mut states, 1);
    let all = own.frames();
    let (note, frame) = &all[0];
    assert_eq!((frame.len(), note.original_len, note.lost), (64, 1054, 0));
    assert_eq!(&frame[54..], [b'x'; 10]);
    // One record of 64 bytes takes 112.
    let many = 2 * CAPACITY / 112;
    frames(&mut captures, &mut states, many);
    let kept = own.frames().len();
    assert!(kept < many, "{kept}");
    captures.publish();
    frames(&mut captures, &mut states, 1);
    let all = own.frames();
    assert_eq!(all[0].0.lost as usize, many - kept);
    assert!(others.frames().is_empty());
    // The one ends, and the other; nobody is shown anything any more.
    let none = |of| Asked {
        of,
        ..Asked::default()
    };
    captures.ask(&none(0), Fds::new());
    assert!(!captures.of([1, 2]) && captures.of([65, 1]));
    captures.ask(&none(EVERYBODY), Fds::new());
    assert!(!captures.of([65, 1]) && captures.looked.is_empty());
}

#[test]
fn what_an_operator_of_the_release_before_hands_over_is_shown_to_nobody() {
    let body = Metered {
        id: 9,
        from: 1,
        to: 2,
        ..Metered::default()
    };
    assert_eq!(Named::of(&body), None);
}
