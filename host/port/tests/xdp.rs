//! AF_XDP over veths, in namespaces of their own: the program, the queues, and who goes on
//! after whom. Needs root.

use host_port::xdp::setup::{NoXdp, Opened};
use host_port::xdp::{Mode, Queue, setup};
use host_port::{PacketSocket, PortError, packet};
use netlink::{Netlink, namespace};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use wire::RawOffload;
use wire::offload::MAX_FRAME;

/// Two namespaces with a veth between them; so many queues.
struct Pair {
    names: [String; 2],
    near: OwnedFd,
    far: OwnedFd,
}

impl Pair {
    fn new(queues: u32) -> Pair {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let names = ["n", "f"].map(|side| format!("bhx-{}-{number}{side}", std::process::id()));
        let [near, far] = [0, 1].map(|at: usize| {
            namespace::create_named(&names[at]).expect("a namespace (are you root?)")
        });
        let pair = Pair { names, near, far };
        let [n, f] = &pair.names;
        for line in [
            format!(
                "ip -n {n} link add up0 numrxqueues {queues} numtxqueues {queues} type veth peer name far netns {f} numrxqueues {queues} numtxqueues {queues}"
            ),
            format!("ip netns exec {f} ethtool -K far tx off txvlan off"),
            format!("ip -n {n} link set up0 addrgenmode none up"),
            format!("ip -n {f} link set far addrgenmode none up"),
        ] {
            pair.run(&line);
        }
        pair
    }

    fn run(&self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let done = Command::new(words[0]).args(&words[1..]).output().unwrap();
        assert!(done.status.success(), "{line}: {done:?}");
    }

    fn open(&self, insists: bool) -> Result<Opened, NoXdp> {
        let open = || {
            let link = Netlink::open().unwrap().link("up0").unwrap();
            setup::open("up0", link.index, link.mtu, insists)
        };
        namespace::within(self.near.as_fd(), open).unwrap()
    }

    fn peer(&self) -> PacketSocket {
        let open = || packet::open("far").unwrap();
        PacketSocket::from_fd(namespace::within(self.far.as_fd(), open).unwrap())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = namespace::delete_named(name);
        }
    }
}

fn attach(opened: &Opened, number: usize) -> Queue {
    let fd = opened.queues[number].try_clone().unwrap();
    Queue::attach(fd, opened.memory.as_fd(), number, 1500).unwrap()
}

fn frame(number: u32, length: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    frame.extend(number.to_be_bytes());
    frame.extend((frame.len()..length).map(|at| (at as u32 + number) as u8));
    frame
}

/// A datagram of a flow of its own.
fn datagram(flow: u16) -> Vec<u8> {
    let [to, from] = [9, 1].map(|last| wire::MacAddress([2, 0, 0, 0, 0, last]));
    let link = wire::ethernet::Header::new(to, from, wire::ethernet::IPV4);
    let ip = wire::ipv4::Header::new([10, 1, 0, 1], [10, 1, 0, 9], 17);
    let mut frame = vec![0; 100];
    let end = wire::build::udp4(&mut frame, &link, &ip, (1000 + flow, 9), |_| Ok(20)).unwrap();
    frame.truncate(end);
    frame
}

/// Patience for what another stack does.
fn until<T>(mut try_it: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(done) = try_it() {
            return done;
        }
        assert!(Instant::now() < end, "it did not happen");
        std::thread::sleep(Duration::from_micros(50));
    }
}

#[test]
fn frames_cross_both_ways_whole_and_successors_go_on_where_one_left() {
    let pair = Pair::new(1);
    let opened = pair.open(true).unwrap();
    assert_eq!((opened.mode, opened.queues.len()), (Mode::Copy, 1));
    let peer = pair.peer();
    let mut queue = attach(&opened, 0);
    let mut buffer = vec![0; MAX_FRAME];
    let plain = RawOffload::default();
    // Several times the chunks there are, and a successor every few frames.
    for number in 0..5000u32 {
        let length = 60 + (number as usize * 7) % 1455;
        let sent = frame(number, length);
        until(|| peer.send(&plain, &sent, &[]).ok());
        let came = until(|| queue.recv(&mut buffer).unwrap());
        assert!(buffer[..came] == sent, "{number}");
        queue
            .send(&sent[..14], length - 14, |into| {
                into.copy_from_slice(&sent[14..])
            })
            .unwrap();
        if number % 3 == 0 {
            // Whoever comes after finds it in the ring.
            drop(queue);
            queue = attach(&opened, 0);
        }
        queue.kick().unwrap();
        let at = until(|| peer.recv(&mut buffer).unwrap().map(|(_, at)| at));
        assert!(buffer[at] == sent, "{number}");
    }
}

#[test]
fn a_full_ring_says_so_and_drains() {
    let pair = Pair::new(1);
    let opened = pair.open(true).unwrap();
    let queue = attach(&opened, 0);
    let room = queue.room();
    let sent = frame(1, 10);
    for _ in 0..room {
        queue.send(&sent, 0, |_| {}).unwrap();
    }
    assert_eq!(queue.send(&sent, 0, |_| {}), Err(PortError::Full));
    assert_eq!(
        queue.send(&[0; 14], 1509, |_| {}),
        Err(PortError::Truncated)
    );
    let peer = pair.peer();
    let mut buffer = vec![0; MAX_FRAME];
    let mut came = 0;
    until(|| {
        queue.kick().unwrap();
        while let Some((_, at)) = peer.recv(&mut buffer).unwrap() {
            // Ethernet's least, in zeroes.
            assert_eq!(at.len(), 60);
            came += 1;
        }
        (came == room).then_some(())
    });
    assert!(!queue.is_waiting());
    until(|| (queue.room() == room).then_some(()));
}

#[test]
fn a_batch_costs_a_call_for_32_frames_and_no_memory() {
    let pair = Pair::new(1);
    let opened = pair.open(true).unwrap();
    let queue = attach(&opened, 0);
    let peer = pair.peer();
    let mut buffer = vec![0; MAX_FRAME];
    let sent = frame(1, 100);
    for _ in 0..64 {
        peer.send(&RawOffload::default(), &sent, &[]).unwrap();
    }
    let mut calls = 0;
    let memory = allocation_counter::measure(|| {
        for _ in 0..64 {
            until(|| queue.recv(&mut buffer).unwrap());
            queue.send(&sent, 0, |_| {}).unwrap();
        }
        calls = queue.kick().unwrap();
    });
    assert_eq!(memory.count_total, 0);
    assert!((1..=4).contains(&calls), "{calls} calls for 64 frames");
}

#[test]
fn every_queue_is_read_and_what_has_no_socket_passes() {
    let pair = Pair::new(2);
    let opened = pair.open(true).unwrap();
    assert_eq!(opened.queues.len(), 2);
    let queues = [attach(&opened, 0), attach(&opened, 1)];
    let mut buffer = vec![0; MAX_FRAME];
    // From as many senders as it takes to come by both.
    let peers: Vec<PacketSocket> = (0..32).map(|_| pair.peer()).collect();
    let mut came = [0, 0];
    until(|| {
        for (number, peer) in (0..).zip(&peers) {
            let _ = peer.send(&RawOffload::default(), &datagram(number), &[]);
        }
        for (queue, came) in queues.iter().zip(&mut came) {
            while queue.recv(&mut buffer).unwrap().is_some() {
                *came += 1;
            }
        }
        came.iter().all(|came| *came > 0).then_some(())
    });
    // The kernel's own stack has seen nothing of it, and sees all once the sockets are gone.
    let ear = namespace::within(pair.near.as_fd(), || packet::open("up0").unwrap()).unwrap();
    let ear = PacketSocket::from_fd(ear);
    let say = |number| peers[0].send(&RawOffload::default(), &frame(number, 100), &[]);
    say(1).unwrap();
    until(|| {
        queues
            .iter()
            .find_map(|queue| queue.recv(&mut buffer).unwrap())
    });
    assert_eq!(ear.recv(&mut buffer), Ok(None));
    drop(queues);
    drop(opened.queues);
    until(|| {
        say(2).unwrap();
        ear.recv(&mut buffer).unwrap()
    });
    drop(opened.link);
}

#[test]
fn what_cannot_be_read_so_says_why() {
    let pair = Pair::new(1);
    let no = pair.open(false).unwrap_err();
    assert_eq!(no, NoXdp::Unfinished("veth".into()));
    // One socket for a queue, one program for an interface.
    let opened = pair.open(true).unwrap();
    assert!(matches!(pair.open(true), Err(NoXdp::Refused { .. })));
    drop(opened);
    let opened = until(|| pair.open(true).ok());
    drop(opened);
    let [n, _] = &pair.names;
    pair.run(&format!("ip -n {n} link set up0 mtu 9000"));
    assert_eq!(pair.open(true).unwrap_err(), NoXdp::Mtu);
    pair.run(&format!("ip -n {n} link add loose type dummy0").replace("dummy0", "bridge"));
    let open = || {
        let link = Netlink::open().unwrap().link("loose").unwrap();
        setup::open("loose", link.index, 1500, false)
    };
    let no = namespace::within(pair.near.as_fd(), open).unwrap();
    assert!(no.is_err(), "a bridge has no XDP of its driver's");
}

#[test]
fn a_gone_interface_is_named() {
    let pair = Pair::new(1);
    let opened = pair.open(true).unwrap();
    let queue = attach(&opened, 0);
    queue.send(&frame(1, 60), 0, |_| {}).unwrap();
    let [n, _] = &pair.names;
    pair.run(&format!("ip -n {n} link set up0 down"));
    assert_eq!(queue.kick(), Err(PortError::Down));
    pair.run(&format!("ip -n {n} link del up0"));
    assert_eq!(queue.kick(), Err(PortError::Vanished));
}
