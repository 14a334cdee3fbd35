//! What programs see of a UDP socket, held against the kernel's own: one program, run twice.

use crate::scene::{OPEN, Scene};
use crate::sockets::differences;
use std::time::Duration;

const PROGRAM: &str = include_str!("datagrams.py");

/// What differs, and why it may.
const DIFFERENT: &[(&str, &str)] = &[
    (
        "bind, bind, comes to",
        "the very bind that was done just now may have been made again by a signal: done",
    ),
    ("bind any, bind any, comes to", "the same"),
    ("bind port, bind port, comes to", "the same"),
    (
        "AF_INET 0 33 set",
        "IP_MULTICAST_TTL is not kept: there are no groups",
    ),
    ("AF_INET6 0 33 set", "the same"),
    (
        "AF_INET 6 1 set",
        "TCP_NODELAY is set unseen, at whatever descriptor; reading it is refused as UDP does",
    ),
    (
        "bind, connect fails, comes to",
        "a way out, were there one, is not of a loopback address: EINVAL",
    ),
    ("bind, send fails, comes to", "the same"),
    ("bind port, connect fails, comes to", "the same"),
    ("bind port, send fails, comes to", "the same"),
    ("connect, connect fails, comes to", "the same"),
    ("connect, send fails, comes to", "the same"),
];

#[test]
fn a_datagram_socket_is_like_the_kernels_but_for_a_few_things() {
    let scene = Scene::of(OPEN);
    differences(&scene, ("datagrams.py", PROGRAM), DIFFERENT, 1_300);
}

/// Who polls for room before it sends, as Python does with a timeout, sends on to others.
#[test]
fn who_is_not_read_leaves_its_sender_room_for_others() {
    const SLEEPS: &str = "
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.1.1.10', 53)); print('bound', flush=True); time.sleep(100)
";
    const TELLS: &str = "
import select, socket, sys
for size in (8, 1400, 9000, 60000):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2)
    for _ in range(1000): s.sendto(bytes(size), ('10.1.1.10', 53))
    assert select.select([], [s], [], 0)[1], size
    s.sendto(b'?', ('10.1.1.12', 53))
    assert s.recv(100) == b'10.1.1.11', size
print('well')
";
    const ANSWERS: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.1.1.12', 53)); print('bound', flush=True)
while True: _, who = s.recvfrom(99999); s.sendto(who[0].encode(), who)
";
    let scene = Scene::of(OPEN);
    let files = [
        ("sleeps.py", SLEEPS),
        ("tells.py", TELLS),
        ("answers.py", ANSWERS),
    ];
    for (name, text) in files {
        scene.file(name, text);
    }
    let _sleeps = scene.start("web", "exec python3 {f}/sleeps.py", "bound");
    let _answers = scene.start("few", "exec python3 {f}/answers.py", "bound");
    assert_eq!(scene.says("app", "python3 {f}/tells.py"), "well\n");
}

/// The same where who does not read hears that sender alone, whose answers lie at it until it has room no more.
#[test]
fn who_is_connected_and_reads_nothing_silences_nobody() {
    const ANSWERS: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.1.1.10', 53)); s.settimeout(2); print('bound', flush=True)
while True:
    try: came, who = s.recvfrom(2000)
    except TimeoutError: continue
    try: s.sendto(came + bytes(30), who)
    except TimeoutError: print('no room', flush=True)
";
    // One where its operator does not know it to be: another number, of a thread that ended. Where the server is
    // behind, what finds no room is told so.
    const DEAF: &str = "
import fcntl, socket, threading, time
all = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)]
for s in all[1:]: s.connect(('10.1.1.10', 53))
def moves():
    all[0].connect(('10.1.1.10', 53)); moved = socket.socket(fileno=fcntl.fcntl(all[0], fcntl.F_DUPFD, 30)); all[0].close(); all[0] = moved
thread = threading.Thread(target=moves); thread.start(); thread.join()
for n in range(600):
    for s in all:
        try: s.send(b'x')
        except BlockingIOError: pass
    time.sleep(0.001)
print('said', flush=True); time.sleep(100)
";
    const READS: &str = "
import os, socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1); s.connect(('10.1.1.10', 53))
def asks(n):
    s.send(b'%d' % n)
    try:
        # One that came late is of another.
        while s.recv(100).strip(bytes(1)) != b'%d' % n: pass
        return True
    except OSError: return False
for n in range(400): asks(n)
print('ready', flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
print(sum(asks(n) for n in range(20)))
";
    const ASKS: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1); heard = 0
if __import__('sys').argv[1] == 'connected': s.connect(('10.1.1.10', 53))
for n in range(20):
    s.sendto(b'%d' % n, ('10.1.1.10', 53))
    try:
        while s.recv(100).strip(bytes(1)) != b'%d' % n: pass
        heard += 1
    except OSError: pass
print(heard)
";
    let scene = Scene::of(OPEN);
    scene.programs([
        ("answers.py", ANSWERS),
        ("deaf.py", DEAF),
        ("asks.py", ASKS),
    ]);
    let server = scene.start("web", "exec python3 {f}/answers.py", "bound");
    // Two that hear it alone, and have been answered often: what they read nobody takes from them.
    scene.file("reads.py", READS);
    let reads = [(); 2].map(|()| scene.start("app", "exec python3 {f}/reads.py {f}/go", "ready"));
    let _deaf = scene.start("app", "exec python3 {f}/deaf.py", "said");
    for how in ["connected", "not"] {
        let said = scene.says("few", &format!("python3 {{f}}/asks.py {how}"));
        let heard: u32 = said.trim().parse().unwrap();
        assert!(heard >= 19, "{how}: {heard} of 20; {}", server.out());
    }
    scene.file("go", "");
    for mut reads in reads {
        assert_eq!(
            reads.wait(Duration::from_secs(60)),
            Some(0),
            "{}",
            reads.err()
        );
        let heard: u32 = reads.out().lines().last().unwrap().parse().unwrap();
        assert!(heard >= 18, "{heard} of 20");
    }
}
