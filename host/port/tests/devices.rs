//! Taps and packet sockets on the real kernel, in namespaces of their own.
//! Needs root.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use host_port::{Features, PacketSocket, PortError, Tap, ethtool, packet, tap};
use netlink::{Netlink, namespace};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wire::offload::{MAX_FRAME, MIN_GSO, NEEDS_CSUM};
use wire::segment::{Segmenter, complete_checksum};
use wire::{Offload, RawOffload};

/// A namespace of this test's own, removed also when the test fails.
struct Namespace {
    name: String,
    fd: OwnedFd,
}

impl Namespace {
    fn new() -> Namespace {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bhp-p{}-{number}", std::process::id());
        let fd = namespace::create_named(&name).expect("a namespace (are you root?)");
        Namespace { name, fd }
    }

    fn within<T>(&self, work: impl FnOnce() -> T) -> T {
        namespace::within(self.fd.as_fd(), work).unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = namespace::delete_named(&self.name);
    }
}

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 1, 0, last).into()
}

fn mac(last: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, last]
}

/// A namespace with a tap that has an address, up and without traffic of its own.
fn station(last: u8) -> (Namespace, Tap) {
    let made = Namespace::new();
    let fd = made.within(|| {
        let (fd, features) = tap::create("eth0").unwrap();
        assert!(features.contains(Features::CSUM.with(Features::TSO4).with(Features::TSO6)));
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link("eth0").unwrap().index;
        netlink
            .batch()
            .without_own_link_local(index)
            .set_mac(index, mac(last))
            .set_up(1)
            .set_up(index)
            .add_address(index, address(last), 24)
            .commit()
            .unwrap();
        fd
    });
    (made, Tap::from_fd(fd))
}

fn wait(fds: &[BorrowedFd<'_>], seconds: i64) {
    let mut polled: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    let limit = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    let _ = poll(&mut polled, Some(&limit));
}

/// What a frame's offloads are, once checked against the frame.
fn checked(frame: &[u8], raw: RawOffload) -> Offload {
    let parsed = wire::parse(frame, frame.len()).unwrap();
    wire::offload::check(raw, &parsed, frame.len(), MIN_GSO).unwrap()
}

/// Carries frames between two ports until told to stop. What it saw is counted.
struct Wire {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<Seen>>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    partial: u32,
    gso: u32,
    tagged: u32,
}

enum End {
    Tap(Tap),
    Packet(PacketSocket),
}

impl End {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            End::Tap(tap) => tap.as_fd(),
            End::Packet(socket) => socket.as_fd(),
        }
    }

    fn recv(&self, buffer: &mut [u8]) -> Option<(RawOffload, std::ops::Range<usize>)> {
        match self {
            End::Tap(tap) => tap
                .recv(buffer)
                .unwrap()
                .map(|(raw, length)| (raw, 0..length)),
            End::Packet(socket) => socket.recv(buffer).unwrap(),
        }
    }

    fn send(&self, raw: &RawOffload, frame: &[u8]) {
        // In two parts, cut in the middle of the headers.
        let (head, tail) = frame.split_at(20);
        let sent = match self {
            End::Tap(tap) => tap.send(raw, head, tail),
            End::Packet(socket) => socket.send(raw, head, tail),
        };
        match sent {
            Ok(()) | Err(PortError::Full) => {}
            Err(error) => panic!("{error} for {raw:?}, {} bytes", frame.len()),
        }
    }
}

impl Wire {
    /// `finish`: complete checksums and segment in software before sending.
    fn new(left: End, right: End, finish: bool) -> Wire {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut buffer = vec![0; MAX_FRAME];
            let mut seen = Seen::default();
            while !stopped.load(Ordering::Relaxed) {
                wait(&[left.fd(), right.fd()], 1);
                for (from, to) in [(&left, &right), (&right, &left)] {
                    while let Some((raw, at)) = from.recv(&mut buffer) {
                        forward(&mut buffer[at], raw, to, finish, &mut seen);
                    }
                }
            }
            seen
        });
        Wire {
            stop,
            thread: Some(thread),
        }
    }

    fn stop(mut self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

fn forward(frame: &mut [u8], raw: RawOffload, to: &End, finish: bool, seen: &mut Seen) {
    seen.partial += u32::from(raw.flags & NEEDS_CSUM != 0);
    seen.gso += u32::from(raw.gso_type != 0);
    let parsed = wire::parse(frame, frame.len()).unwrap();
    seen.tagged += u32::from(!parsed.tags.is_empty());
    let offload = checked(frame, raw);
    if !finish {
        let rebuilt = offload.rebuild(parsed.transport_offset().unwrap_or(0));
        return to.send(&rebuilt, frame);
    }
    if offload.gso().is_none() {
        complete_checksum(frame, &parsed, &offload).unwrap();
        return to.send(&RawOffload::default(), frame);
    }
    let (headers, payload) = frame.split_at(parsed.payload_offset().unwrap());
    let mut segmenter = Segmenter::new(headers, payload, &parsed, &offload).unwrap();
    let mut segment = vec![0; 2000];
    while let Some(length) = segmenter.next(&mut segment).unwrap() {
        to.send(&RawOffload::default(), &segment[..length]);
    }
}

/// Sends 8 MiB by TCP from one namespace to the other; panics unless all arrives.
fn transfer(from: &Namespace, to: &Namespace, target: SocketAddr) {
    let listener = to.within(|| TcpListener::bind(target).unwrap());
    let body: Vec<u8> = (0..8u32 << 20).map(|i| (i ^ (i >> 8)) as u8).collect();
    let expected = body.clone();
    let (told, tells) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut received = Vec::new();
        listener
            .accept()
            .unwrap()
            .0
            .read_to_end(&mut received)
            .unwrap();
        told.send(()).unwrap();
        received
    });
    let mut stream = from.within(|| {
        TcpStream::connect_timeout(&target, std::time::Duration::from_secs(10)).unwrap()
    });
    stream
        .set_write_timeout(Some(std::time::Duration::from_secs(10)))
        .unwrap();
    stream.write_all(&body).unwrap();
    drop(stream);
    tells
        .recv_timeout(std::time::Duration::from_secs(20))
        .expect("all bytes arrive");
    assert!(reader.join().unwrap() == expected);
}

#[test]
fn tcp_crosses_two_taps_with_its_offloads_unfinished() {
    let ((red, red_tap), (blue, blue_tap)) = (station(1), station(2));
    let wire = Wire::new(End::Tap(red_tap), End::Tap(blue_tap), false);
    transfer(&red, &blue, SocketAddr::new(address(2), 8000));
    let seen = wire.stop();
    assert!(seen.gso > 50 && seen.partial > 50, "{seen:?}");
}

#[test]
fn tcp_crosses_two_taps_finished_in_software() {
    let ((red, red_tap), (blue, blue_tap)) = (station(1), station(2));
    let wire = Wire::new(End::Tap(red_tap), End::Tap(blue_tap), true);
    transfer(&red, &blue, SocketAddr::new(address(2), 8000));
    let seen = wire.stop();
    assert!(seen.gso > 50, "{seen:?}");
}

/// A tap, and an uplink whose far end is a veth of another namespace.
fn uplink() -> (Namespace, Namespace, Namespace, Tap, PacketSocket) {
    let (red, tap) = station(1);
    let (middle, far) = (Namespace::new(), Namespace::new());
    let socket = middle.within(|| {
        let mut netlink = Netlink::open().unwrap();
        let batch = netlink
            .batch()
            .create_veth("up", "eth0", Some(far.fd.as_fd()));
        batch.commit().unwrap();
        let index = netlink.link("up").unwrap().index;
        let batch = netlink.batch().without_own_link_local(index).set_up(index);
        batch.commit().unwrap();
        packet::open("up").unwrap()
    });
    far.within(|| {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link("eth0").unwrap().index;
        let batch = netlink.batch().without_own_link_local(index).set_up(index);
        batch.add_address(index, address(2), 24).commit().unwrap();
    });
    // Until the kernel has noted the carrier it silently drops what is sent.
    for (namespace, name) in [(&middle, "up"), (&far, "eth0")] {
        let running = || namespace.within(|| Netlink::open().unwrap().link(name).unwrap().running);
        while !running() {
            thread::sleep(std::time::Duration::from_millis(5));
        }
    }
    (red, middle, far, tap, PacketSocket::from_fd(socket))
}

#[test]
fn tcp_crosses_an_uplink_both_ways() {
    let (red, _middle, far, tap, socket) = uplink();
    let wire = Wire::new(End::Tap(tap), End::Packet(socket), false);
    transfer(&red, &far, SocketAddr::new(address(2), 8000));
    transfer(&far, &red, SocketAddr::new(address(1), 8000));
    let seen = wire.stop();
    assert!(seen.gso > 100 && seen.partial > 100, "{seen:?}");
}

/// A tagged UDP frame of `length` payload bytes with a partial checksum.
fn tagged(length: usize) -> Vec<u8> {
    let mut header =
        wire::ethernet::Header::new(mac(2).into(), mac(1).into(), wire::ethernet::IPV4);
    for (tpid, tci) in [
        (wire::ethernet::SERVICE_VLAN, 0x6007),
        (wire::ethernet::VLAN, 9),
    ] {
        header.tags.push(wire::ethernet::Tag { tpid, tci });
    }
    let ip = wire::ipv4::Header::new([10, 1, 0, 1], [10, 1, 0, 2], 17);
    let mut frame = vec![0; 5000];
    let end = wire::build::udp4(&mut frame, &header, &ip, (9, 5000), |b| {
        b[..length].fill(0x5a);
        Ok(length)
    })
    .unwrap();
    frame.truncate(end);
    let parsed = wire::parse(&frame, end).unwrap();
    let facts = parsed.ip().unwrap();
    let at = parsed.transport_offset().unwrap();
    let sum = wire::checksum::pseudo(&facts.source, &facts.destination, 17, length + 8).fold();
    frame[at + 6..at + 8].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn tags_are_put_back_into_frames_and_go_out_as_they_are() {
    let (_red, _middle, far, _tap, socket) = uplink();
    let peer = PacketSocket::from_fd(far.within(|| packet::open("eth0").unwrap()));
    let mut buffer = vec![0; MAX_FRAME];
    let gso = wire::offload::GSO_UDP_L4;
    for (length, gso_type, gso_size) in [(100, 0, 0), (3000, gso, 1000)] {
        let frame = tagged(length);
        let raw = RawOffload {
            flags: NEEDS_CSUM,
            gso_type,
            gso_size,
            csum_start: 42,
            csum_offset: 6,
        };
        for (from, to) in [(&socket, &peer), (&peer, &socket)] {
            from.send(&raw, &frame[..20], &frame[20..]).unwrap();
            // The kernel took the outer tag out on receipt: it is back in its place,
            // and the checksum's position counts it.
            let (received, at) = next(to, &mut buffer);
            assert_eq!(buffer[at], frame);
            assert_eq!(received, raw);
        }
    }
}

/// The next frame that is not the kernel's own chatter (IPv6 router discovery and
/// the like).
fn next(socket: &PacketSocket, buffer: &mut [u8]) -> (RawOffload, std::ops::Range<usize>) {
    for _ in 0..20 {
        if let Some((raw, at)) = socket.recv(buffer).unwrap() {
            let parsed = wire::parse(&buffer[at.clone()], at.len()).unwrap();
            if parsed.ethertype != wire::ethernet::IPV6 {
                return (raw, at);
            }
            continue;
        }
        wait(&[socket.as_fd()], 1);
    }
    panic!("no frame came");
}

#[test]
fn a_tap_that_vanishes_or_is_down_is_named() {
    let (red, tap) = station(1);
    let mut buffer = vec![0; MAX_FRAME];
    let frame = [0xff; 60];
    assert_eq!(tap.recv(&mut buffer), Ok(None));
    red.within(|| {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link("eth0").unwrap().index;
        netlink.batch().set_down(index).commit().unwrap();
    });
    let sent = tap.send(&RawOffload::default(), &frame, &[]);
    assert_eq!(sent, Err(PortError::Down));
    red.within(|| {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link("eth0").unwrap().index;
        netlink.batch().delete(index).commit().unwrap();
    });
    assert_eq!(tap.recv(&mut buffer), Err(PortError::Vanished));
    let sent = tap.send(&RawOffload::default(), &frame, &[]);
    assert_eq!(sent, Err(PortError::Vanished));
}

#[test]
fn an_uplink_that_vanishes_or_is_down_is_named() {
    let (_red, middle, _far, _tap, socket) = uplink();
    let mut buffer = vec![0; MAX_FRAME];
    let index = middle.within(|| {
        let mut netlink = Netlink::open().unwrap();
        let index = netlink.link("up").unwrap().index;
        netlink.batch().set_down(index).commit().unwrap();
        index
    });
    let error = (0..100).find_map(|_| socket.recv(&mut buffer).err());
    assert_eq!(error, Some(PortError::Down));
    middle.within(|| {
        Netlink::open()
            .unwrap()
            .batch()
            .delete(index)
            .commit()
            .unwrap()
    });
    let sent = socket.send(&RawOffload::default(), &[0xff; 60], &[]);
    assert_eq!(sent, Err(PortError::Vanished));
}

#[test]
fn a_frame_the_kernel_cannot_take_is_refused_alone() {
    let (_red, tap) = station(1);
    let bad = RawOffload {
        gso_type: 7,
        gso_size: 1,
        ..RawOffload::default()
    };
    let frame = [0; 60];
    assert!(matches!(
        tap.send(&bad, &frame, &[]),
        Err(PortError::Refused(_))
    ));
    assert!(matches!(
        tap.send(&RawOffload::default(), &frame[..5], &[]),
        Err(PortError::Refused(_))
    ));
    assert_eq!(tap.send(&RawOffload::default(), &frame, &[]), Ok(()));
}

#[test]
fn names_that_are_taken_or_missing_are_said() {
    let (red, _tap) = station(1);
    red.within(|| {
        let error = tap::create("eth0").unwrap_err();
        assert!(error.to_string().contains("eth0"), "{error}");
        let error = packet::open("no-such-if").unwrap_err();
        assert!(
            matches!(error, packet::UplinkError::NoInterface(_)),
            "{error}"
        );
    });
}

#[test]
fn what_finds_no_room_in_a_packet_socket_is_counted() {
    let (_red, _middle, far, _tap, socket) = uplink();
    let peer = PacketSocket::from_fd(far.within(|| packet::open("eth0").unwrap()));
    let mut buffer = vec![0; MAX_FRAME];
    // The first frame says how many were lost before it: none that this reader lost.
    let frame = tagged(1400);
    let plain = RawOffload::default();
    peer.send(&plain, &frame, &[]).unwrap();
    next(&socket, &mut buffer);
    assert_eq!(socket.take_lost(), 0);
    let sent = 8000;
    for _ in 0..sent {
        peer.send(&plain, &frame, &[]).unwrap();
    }
    // What came since, and one more, which knows of those that found no room.
    let mut came = 0;
    while socket.recv(&mut buffer).unwrap().is_some() {
        came += 1;
    }
    peer.send(&plain, &frame, &[]).unwrap();
    next(&socket, &mut buffer);
    let lost = socket.take_lost();
    assert!(came < sent && lost > 0, "{came} came, {lost} lost");
    assert!(came + lost >= sent, "{came} came, {lost} lost");
    assert_eq!(socket.take_lost(), 0);
}

#[test]
fn what_a_packet_socket_could_not_say_is_done_before() {
    let (_red, middle, _far, _tap, _socket) = uplink();
    let on = || {
        let shown = std::process::Command::new("ip")
            .args(["netns", "exec", &middle.name, "ethtool", "-k", "up"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        let is_on = |name: &&&str| text.contains(&format!("{name}: on"));
        ethtool::UNSAID.iter().filter(is_on).count()
    };
    assert!(on() >= 5, "a veth has them at first");
    let stay = middle.within(|| ethtool::turn_off("up", ethtool::UNSAID).unwrap());
    assert_eq!((stay, on()), (vec![], 0));
    let missing = middle.within(|| ethtool::turn_off("no-such-if", ethtool::UNSAID));
    assert!(missing.is_err());
}
