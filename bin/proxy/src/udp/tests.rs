use super::*;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;

/// One that hears at an address of its own, and what a program has for a peer.
fn hearing() -> (Datagrams, SocketAddr) {
    let mut all = Datagrams::new(Instant::now());
    let at = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    assert!(all.hear(at, 1, (1, 71)).unwrap().is_some());
    assert!(
        all.hear(at, 2, (1, 72)).unwrap().is_none(),
        "it is heard already"
    );
    (all, at)
}

fn said(id: u64, (from, to): Pair, hears: u32) -> Convey {
    let ((from, from_port), (to, to_port)) = (crate::tcp::numbers(from), crate::tcp::numbers(to));
    Convey {
        id,
        from,
        to,
        from_port,
        to_port,
        hears,
        reserved: 0,
    }
}

fn convey(all: &mut Datagrams, id: u64, pair: Pair) -> Result<UnixDatagram, Errno> {
    let (program, far) = UnixDatagram::pair().unwrap();
    program.set_nonblocking(true).unwrap();
    let body = said(id, pair, 1);
    let now = Instant::now();
    all.convey(&body, far.into(), 100 + id, now).map(drop)?;
    Ok(program)
}

fn peer() -> (UdpSocket, SocketAddr) {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let at = peer.local_addr().unwrap();
    (peer, at)
}

#[test]
fn what_a_stranger_sends_is_kept_until_it_is_known_whose_it_is() {
    let (mut all, at) = hearing();
    let (peer, from) = peer();
    for text in ["one", "", "three"] {
        peer.send_to(text.as_bytes(), at).unwrap();
    }
    all.stirred(1, Instant::now());
    assert_eq!(all.says(), [Say::Heard((at, from))]);
    let program = convey(&mut all, 7, (at, from)).unwrap();
    let mut buffer = [0; 100];
    for text in ["one", "", "three"] {
        let length = program.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], text.as_bytes());
    }
    // And both ways from then on, whole and from the very port.
    let long = vec![7; 60_000];
    peer.send_to(&long, at).unwrap();
    all.stirred(1, Instant::now());
    let mut buffer = vec![0; 70_000];
    assert_eq!(program.recv(&mut buffer).unwrap(), long.len());
    for length in [0, 1, 65_507] {
        program.send(&long.repeat(2)[..length]).unwrap();
        all.stirred(107, Instant::now());
        assert_eq!(peer.recv_from(&mut buffer).unwrap(), (length, at));
    }
    // Longer than any of UDP: that one alone is gone.
    program.send(&vec![1; 65_508]).unwrap();
    program.send(b"next").unwrap();
    all.part(7, Instant::now());
    assert_eq!(peer.recv_from(&mut buffer).unwrap(), (4, at));
    assert!(all.conveyed.is_empty() && all.peers.is_empty());
}

/// Nobody is told that nobody hears there, nor is what was said lost, by either.
#[test]
fn what_comes_while_an_operator_is_replaced_waits_for_the_next() {
    let (mut all, at) = hearing();
    let (known, its) = peer();
    let program = convey(&mut all, 7, (at, its)).unwrap();
    let (peer, from) = peer();
    peer.connect(at).unwrap();
    peer.send(b"told").unwrap();
    all.stirred(1, Instant::now());
    assert_eq!(all.says(), [Say::Heard((at, from))]);
    program.send(b"answer").unwrap();
    let unwatched = std::cell::Cell::new(0);
    let clear = |all: &mut Datagrams| {
        all.clear(Instant::now(), |_| unwatched.set(unwatched.get() + 1));
    };
    clear(&mut all);
    assert_eq!(unwatched.get(), 1);
    let mut buffer = [0; 100];
    assert_eq!(known.recv_from(&mut buffer).unwrap(), (6, at));
    peer.send(b"while").unwrap();
    peer.send(b"it is").unwrap();
    // By another of those that share it; and what is kept is not lost by the word of the next of these.
    assert!(all.hear(at, 9, (1, 72)).unwrap().is_some());
    assert_eq!(all.says(), [Say::Heard((at, from))]);
    assert!(all.hear(at, 9, (1, 71)).unwrap().is_none());
    assert_eq!(all.asked.len(), 1);
    all.stirred(9, Instant::now());
    let program = convey(&mut all, 8, (at, from)).unwrap();
    for text in ["told", "while", "it is"] {
        let length = program.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], text.as_bytes());
    }
    // What was sent to one that is gone is for nobody, whoever has that port next: in the queue, or kept.
    for (number, is_there) in [(11, true), (12, false)] {
        peer.send(b"to the one").unwrap();
        match is_there {
            true => clear(&mut all),
            false => {
                all.stirred(11, Instant::now());
                all.unhear(&at, 11);
            }
        }
        assert!(all.hear(at, number, (1, number)).unwrap().is_some());
        all.stirred(number, Instant::now());
        assert!(all.asked.is_empty());
        all.says();
    }
    // Nobody says anything.
    clear(&mut all);
    assert!(all.waits().0);
    all.leave();
    let refused = (0..100).any(|_| peer.send(b"to nobody").is_err());
    assert!(refused);
}

#[test]
fn strangers_are_few_at_a_time_and_so_is_what_they_sent() {
    let (mut all, at) = hearing();
    let begun = Instant::now();
    let peers: Vec<_> = (0..200).map(|_| peer()).collect();
    for (peer, _) in &peers {
        peer.send_to(b"hello", at).unwrap();
        all.stirred(1, begun);
    }
    assert_eq!((all.says().len(), all.asked.len()), (ASKED, ASKED));
    for _ in 0..100 {
        peers[0].0.send_to(b"more", at).unwrap();
        all.stirred(1, begun);
    }
    let kept = all.asked.values().map(|asked| asked.kept.len());
    assert_eq!(kept.max(), Some(KEPT));
    // Nobody said whose they are: there is room for others, up to so many a second.
    let mut told = ASKED;
    for round in 1..=40 {
        all.forget(begun + ASKED_FOR * 2);
        assert!(all.asked.is_empty(), "{round}");
        for (peer, _) in &peers {
            peer.send_to(b"hello", at).unwrap();
            all.stirred(1, begun);
        }
        told += all.says().len();
    }
    assert_eq!(told, NEW as usize);
}

#[test]
fn a_program_that_is_gone_is_told_of_and_so_is_one_that_is_quiet() {
    let (mut all, at) = hearing();
    let (peer, from) = peer();
    let program = convey(&mut all, 7, (at, from)).unwrap();
    let now = Instant::now();
    all.forget(now);
    assert!(all.says().is_empty());
    all.forget(now + QUIET);
    assert_eq!(all.says(), [Say::Quiet(7)]);
    all.forget(now + QUIET + Duration::from_secs(1));
    assert!(all.says().is_empty(), "once");
    drop(program);
    peer.send_to(b"late", at).unwrap();
    all.stirred(1, now);
    assert_eq!(all.says(), [Say::Ended(7), Say::Heard((at, from))]);
    // Another program has the port now.
    let program = convey(&mut all, 8, (at, from)).unwrap();
    let mut buffer = [0; 10];
    assert_eq!(program.recv(&mut buffer).unwrap(), 4);
}

/// As the operator says, which knows who is nearest; by what is there already.
#[test]
fn what_comes_is_for_another_from_when_it_is_said() {
    let (mut all, at) = hearing();
    let (peer, from) = peer();
    let now = Instant::now();
    let programs = [7, 8].map(|id| convey(&mut all, id, (at, from)).unwrap());
    let mut buffer = [0; 10];
    let hears = |all: &mut Datagrams, text: &[u8], to: &UnixDatagram, buffer: &mut [u8]| {
        peer.send_to(text, at).unwrap();
        all.stirred(1, now);
        let length = to.recv(buffer).unwrap();
        assert_eq!(&buffer[..length], text);
    };
    let point = |all: &mut Datagrams, id| {
        let body = said(id, (at, from), 1);
        all.point(&body, now);
    };
    hears(&mut all, b"8", &programs[1], &mut buffer);
    point(&mut all, 7);
    hears(&mut all, b"7", &programs[0], &mut buffer);
    // What the other sends goes on.
    programs[1].send(b"out").unwrap();
    all.stirred(108, now);
    assert_eq!(peer.recv_from(&mut buffer).unwrap(), (3, at));
    assert!(all.says().is_empty());
    point(&mut all, 0);
    assert!(all.says().is_empty());
    for text in [b"one", b"two"] {
        peer.send_to(text, at).unwrap();
        all.stirred(1, now);
    }
    assert_eq!(all.says(), [Say::Heard((at, from))], "it is asked for");
    // What was said of it before is not what is known by now.
    point(&mut all, 0);
    assert_eq!(all.says(), [Say::Heard((at, from))]);
    // One that is not there, and one whose program's is connected to another, or gone: it is asked for again, and nothing lost.
    let [seven, eight] = programs;
    drop(seven);
    for id in [7, 9] {
        point(&mut all, id);
        assert_eq!(all.says(), [Say::Ended(id), Say::Heard((at, from))]);
        assert_eq!(all.conveyed.keys().copied().collect::<Vec<_>>(), [8]);
    }
    point(&mut all, 8);
    for text in [b"one", b"two"] {
        let length = eight.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], text);
    }
    hears(&mut all, b"8", &eight, &mut buffer);
    assert!(all.says().is_empty());
}

/// Another socket has the port: it may want whom nobody did, of whom nothing is kept for it. Who is just asked about is not lost over that.
#[test]
fn who_is_asked_about_goes_on_as_another_hears_there_and_who_was_refused_is_asked_about_anew() {
    let (mut all, at) = hearing();
    let now = Instant::now();
    let [(refused, of_refused), (asked, of_asked)] = [peer(), peer()];
    let sends = |all: &mut Datagrams, peer: &UdpSocket, text: &[u8]| {
        peer.send_to(text, at).unwrap();
        all.stirred(1, now);
        all.says()
    };
    for (peer, from) in [(&refused, of_refused), (&asked, of_asked)] {
        assert_eq!(sends(&mut all, peer, b"early"), [Say::Heard((at, from))]);
    }
    all.point(&said(0, (at, of_refused), 0), now);
    // Not with each that comes.
    assert_eq!(sends(&mut all, &refused, b"meanwhile"), []);
    assert!(all.hear(at, 1, (1, 73)).unwrap().is_none());
    assert_eq!(all.says(), []);
    let heard = sends(&mut all, &refused, b"late");
    assert_eq!(heard, [Say::Heard((at, of_refused))]);
    for (id, from, text) in [(7, of_refused, "late"), (8, of_asked, "early")] {
        let program = convey(&mut all, id, (at, from)).unwrap();
        let mut buffer = [0; 10];
        let length = program.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], text.as_bytes());
        assert!(program.recv(&mut buffer).is_err());
    }
}

/// Some hundred that its program sent, and closed its socket: a turn takes fewer.
#[test]
fn what_was_sent_until_it_is_parted_goes_out_whole() {
    let (mut all, at) = hearing();
    let (peer, from) = peer();
    let program = convey(&mut all, 7, (at, from)).unwrap();
    // Fewer than its peer has room for.
    let sent = 2 * TURN as u32 + 1;
    for n in 0..sent {
        program.send(&n.to_ne_bytes()).unwrap();
    }
    all.part(7, Instant::now());
    for n in 0..sent {
        let mut buffer = [0; 4];
        peer.recv(&mut buffer).unwrap();
        assert_eq!(u32::from_ne_bytes(buffer), n);
    }
}

/// To a socket that is connected to another nothing gets, which its own kernel says.
#[test]
fn what_a_connected_program_does_not_hear_is_asked_for() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr as Name;
    let (mut all, at) = hearing();
    let (peer, from) = peer();
    let now = Instant::now();
    let named = |text: String| {
        let name = Name::from_abstract_name(text).unwrap();
        (UnixDatagram::bind_addr(&name).unwrap(), name)
    };
    let unique = std::process::id();
    let (program, name) = named(format!("bulkhead-udp-{unique}"));
    let (_elsewhere, other) = named(format!("bulkhead-udp-{unique}-other"));
    let (far, its) = named(format!("bulkhead-udp-{unique}-far"));
    let conveys = |all: &mut Datagrams, id, far: UnixDatagram, hears| {
        far.connect_addr(&name).unwrap();
        far.set_nonblocking(true).unwrap();
        let body = said(id, (at, from), hears);
        all.convey(&body, far.into(), 100 + id, now).map(drop)
    };
    conveys(&mut all, 7, far, 1).unwrap();
    // What it has sent by then goes out.
    program.send_to_addr(b"out", &its).unwrap();
    let second = UnixDatagram::unbound().unwrap();
    conveys(&mut all, 8, second, 0).unwrap();
    program.connect_addr(&other).unwrap();
    peer.send_to(b"said", at).unwrap();
    all.stirred(1, now);
    assert_eq!(all.says(), [Say::Ended(7), Say::Heard((at, from))]);
    assert_eq!(peer.recv(&mut [0; 10]).unwrap(), 3);
    // Nor does it hear what is kept.
    let body = said(8, (at, from), 0);
    all.point(&body, now);
    assert_eq!(all.says(), [Say::Ended(8), Say::Heard((at, from))]);
    let another = convey(&mut all, 9, (at, from)).unwrap();
    assert_eq!(another.recv(&mut [0; 10]).unwrap(), 4);
    // One that sends there alone has nothing of what comes.
    let sends = UnixDatagram::unbound().unwrap();
    sends.connect_addr(&other).unwrap();
    let body = Convey { id: 10, ..body };
    all.convey(&body, sends.into(), 110, now).unwrap();
    peer.send_to(b"again", at).unwrap();
    all.stirred(1, now);
    assert_eq!(another.recv(&mut [0; 10]).unwrap(), 5);
}

/// Sockets come and go at a port, and one is there all the time: by that one it is known who goes on.
#[test]
fn who_has_had_a_port_for_long_goes_on_hearing_however_many_had_it_since() {
    let (mut all, at) = hearing();
    // More than may be heard, of one place.
    for id in 100..100 + 2 * HEARD as u64 {
        assert!(all.hear(at, 1, (1, id)).unwrap().is_none());
    }
    for id in 100..100 + 2 * HEARD as u64 {
        assert!(all.heard.contains_key(&at));
        all.unhear(&at, id);
    }
    // One that closes as its operator comes to its end, of which the next says nothing.
    all.clear(Instant::now(), |_| {});
    let (peer, _) = peer();
    peer.send_to(b"meanwhile", at).unwrap();
    assert!(all.hear(at, 2, (1, 71)).unwrap().is_some());
    all.stirred(2, Instant::now());
    assert_eq!(all.asked.len(), 1);
    all.unhear(&at, 71);
    assert!(all.heard.is_empty());
}

#[test]
fn as_many_are_conveyed_as_may() {
    let (mut all, at) = hearing();
    let to = |n: u64| SocketAddr::new(at.ip(), n as u16);
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let limit = rustix::process::Rlimit {
        current: most,
        maximum: most,
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let programs: Vec<_> = (1..=CONVEYED as u64)
        .map(|id| convey(&mut all, id, (at, to(id))).unwrap())
        .collect();
    assert_eq!(
        convey(&mut all, 9999, (at, to(1))).err(),
        Some(Errno::NFILE)
    );
    all.part(5, Instant::now());
    assert!(convey(&mut all, 9999, (at, to(1))).is_ok());
    drop(programs);
}
