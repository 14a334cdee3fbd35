//! What programs see of a socket, held against the kernel's own TCP: one program, run twice.

use crate::scene::{OPEN, Scene};
use e2e::Namespace;
use std::collections::BTreeSet;
use std::time::Duration;

const PROGRAM: &str = include_str!("sockets.py");

/// What differs, and why it may.
const DIFFERENT: &[(&str, &str)] = &[
    (
        "bind twice",
        "the very bind that was done just now may have been made again by a signal: done",
    ),
    (
        "send, fresh",
        "an AF_UNIX socket that is not connected: ENOTCONN, no EPIPE",
    ),
    ("recv, fresh", "the same: EINVAL, no ENOTCONN"),
    (
        "recvfrom",
        "it tells a name of AF_UNIX where TCP tells none: of no use to anybody",
    ),
    ("shutdown, fresh", "the same: it is shut"),
    (
        "sendto with a name",
        "AF_UNIX refuses a name where TCP ignores it",
    ),
    (
        "its peer hears",
        "that is an end, as where it is closed: TCP resets",
    ),
    (
        "inherited",
        "SO_KEEPALIVE, which means nothing to a circuit, is each socket's own",
    ),
    ("v4 TCP_NODELAY", "nothing is ever delayed: it is 1"),
    ("v6 TCP_NODELAY", "the same"),
    (
        "v4 sets TCP_CORK 1",
        "nothing is held back: it stays 0, whatever is set",
    ),
    ("v6 sets TCP_CORK 1", "the same"),
    (
        "v4 sets TCP_QUICKACK 0",
        "nothing is acknowledged late: it stays 1",
    ),
    ("v6 sets TCP_QUICKACK 0", "the same"),
];

#[test]
fn a_socket_is_like_the_kernels_but_for_a_few_things() {
    let scene = Scene::of(OPEN);
    differences(&scene, ("sockets.py", PROGRAM), DIFFERENT, 300);
}

/// Runs a program natively and in an endpoint: what it prints differs in the lines of these
/// names, and in no others, of more than `least`.
pub fn differences(
    scene: &Scene,
    (file, program): (&str, &str),
    different: &[(&str, &str)],
    least: usize,
) {
    let path = scene.file(file, program).display().to_string();
    let plain = Namespace::make().unwrap();
    for address in ["10.1.1.10/32", "fd00:1::10/128"] {
        plain.ip(&format!("addr add {address} dev lo")).unwrap();
    }
    let line = format!("exec /usr/bin/python3 {path}");
    let native = plain.sh(&line).unwrap();
    let circuits = scene.sh("web", &line);
    for said in [&native, &circuits] {
        assert!(said.ok(), "{said:?}");
        // All parts of it came to their end.
        assert!(!said.out.contains("HANGS"), "{}", said.out);
        assert!(!said.out.contains("FAILS"), "{}", said.out);
    }
    let native: Vec<&str> = native.out.lines().collect();
    let circuits: Vec<&str> = circuits.out.lines().collect();
    assert!(native.len() > least, "{}", native.len());
    let name = |line: &str| line.split(": ").next().unwrap_or_default().to_owned();
    // By name: a part that stops early shows as lines that only one has.
    let mut differ = BTreeSet::new();
    let (one, other): (BTreeSet<&str>, BTreeSet<&str>) =
        (native.into_iter().collect(), circuits.into_iter().collect());
    let both = one.symmetric_difference(&other);
    let unlike: Vec<&&str> = both
        .filter(|line| {
            let known = different.iter().find(|(what, _)| *what == name(line));
            differ.extend(known.map(|(what, _)| *what));
            known.is_none()
        })
        .collect();
    assert!(unlike.is_empty(), "{unlike:#?}");
    // What differs no more leaves the list.
    for (what, why) in different {
        assert!(differ.contains(what), "{what} is alike now: {why}");
    }
}

/// What nobody has read is no process's memory: of an endpoint's sockets some may have much of it, others as much as any of
/// the kernel's.
#[test]
fn an_endpoint_has_much_unread_at_some_sockets_alone() {
    const HAVE: &str = "
import collections, resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
of = lambda s: s.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
plain = socket.socketpair(); usual = of(plain[0])
all = [socket.socket() for _ in range(300)]
print(sum(of(s) > usual for s in all), sum(of(s) == usual for s in all))
for s in all: s.close()
# One at a time, beside none and beside many that live: what is closed has none, once it was time to look.
import time
for living in [0, 200]:
    all, narrow = [socket.socket() for _ in range(living)], 0
    for _ in range(3):
        for _ in range(300): socket.socket().close()
        end = time.monotonic() + 10
        while True:
            time.sleep(1.1)
            with socket.socket() as s: is_narrow = of(s) == usual
            if not is_narrow or time.monotonic() > end: break
        narrow += is_narrow
    print(narrow)
";
    let scene = Scene::of(OPEN);
    scene.file("have.py", HAVE);
    assert_eq!(scene.says("app", "python3 {f}/have.py"), "256 44\n0\n0\n");
}

/// Of many who may not wait for room all are let in, and each is accepted once; without end they are not.
#[test]
fn a_thousand_at_once_are_let_in_beyond_a_backlog() {
    const MANY: &str = "
import collections, errno, resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
s = socket.socket()
if sys.argv[1] == 'serve':
    s.bind(('10.1.1.10', 80)); s.listen(5); print('serving', flush=True)
    sys.stdin.readline()
    for n in range(1000): c, _ = s.accept(); c.sendall(c.recv(10))
    print('accepted', flush=True); time.sleep(600)
else:
    all, told = [], collections.Counter()
    for n in range(3500):
        c = socket.socket(); c.setblocking(False)
        error = c.connect_ex(('10.1.1.10', 80)); told[errno.errorcode.get(error, error)] += 1
        if error == 0: all.append(c)
        if n == 999: print(dict(told), flush=True); sys.stdin.readline()
        if n == 999:
            for n, c in enumerate(all): c.sendall(b'%d' % n)
            for n, c in enumerate(all):
                c.setblocking(True); assert c.recv(10) == b'%d' % n; c.close()
            told.clear(); all.clear()
    print(dict(told))
";
    let scene = Scene::of(OPEN);
    scene.file("many.py", MANY);
    let start = |at: &str, what: &str, until: &str| {
        let mut command = scene.command(at, &format!("exec python3 {{f}}/many.py {what}"));
        command.stdin(std::process::Stdio::piped());
        let program = scene.spawn(command);
        program.until(until);
        program
    };
    let mut server = start("web", "serve", "serving");
    let mut client = start("app", "ask", "}");
    assert_eq!(client.out(), "{0: 1000}\n");
    server.go_on();
    client.go_on();
    server.until("accepted");
    assert_eq!(
        client.wait(Duration::from_secs(20)),
        Some(0),
        "{}",
        client.err()
    );
    // Then nobody accepts.
    let out = client.out();
    let said = out.lines().last().unwrap_or_default();
    assert_eq!(said, "{0: 2054, 'EAGAIN': 446}", "{out}");
}

#[test]
fn who_has_no_number_for_what_it_accepts_loses_nobody() {
    const SERVER: &str = "
import collections, errno, os, resource, select, socket, sys, time
s = socket.socket(); s.bind(('10.1.1.10', 7000)); s.listen(128); s.setblocking(False)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
polled = select.poll(); polled.register(s, select.POLLIN)
print('serving', flush=True)
for round, many in ('1', 100), ('2', 100), ('3', 1):
    while not os.path.exists(sys.argv[1] + round): time.sleep(0.01)
    failed, edges = collections.Counter(), select.epoll(); told = 0
    edges.register(s, select.EPOLLIN | select.EPOLLET)
    resource.setrlimit(resource.RLIMIT_NOFILE, (s.fileno() + 1, hard))
    for _ in range(90):
        if not polled.poll(5000): failed['nobody'] += 1
        try: s.accept()
        except OSError as error: failed[errno.errorcode[error.errno]] += 1
        told += len(edges.poll(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)); edges.close()
    came = []
    while len(came) < many and polled.poll(5000): came.append(s.accept()[0])
    # Nobody is left, and it is said so.
    left = polled.poll(0)
    words = [int(c.recv(100)) for c in came]
    for c, word in zip(came, words): c.sendall(b'%d' % word); c.close()
    print(dict(failed), told < 4 or told, words == list(range(many)), left, flush=True)
";
    const CLIENT: &str = "
import os, socket, sys
all = []
for n in range(int(sys.argv[3])):
    all.append(socket.create_connection(('10.1.1.10', 7000)))
    all[-1].sendall(b'%d' % n)
open(sys.argv[1] + sys.argv[2], 'w').close()
print(sum(c.recv(100) == b'%d' % n for n, c in enumerate(all)), flush=True)
";
    let scene = Scene::of(OPEN);
    scene.file("server.py", SERVER);
    scene.file("client.py", CLIENT);
    let mut server = scene.start("web", "exec python3 {f}/server.py {f}/full", "serving");
    for (round, at, many) in [("1", "app", 100), ("2", "web", 100), ("3", "app", 1)] {
        let line = format!("exec python3 {{f}}/client.py {{f}}/full {round} {many}");
        assert_eq!(
            scene.says(at, &line),
            format!("{many}\n"),
            "{}",
            server.err()
        );
    }
    assert_eq!(
        server.wait(Duration::from_secs(20)),
        Some(0),
        "{}",
        server.err()
    );
    let all = "{'EMFILE': 90} True True []\n".repeat(3);
    assert_eq!(server.out(), format!("serving\n{all}"));
}

#[test]
fn who_waits_and_is_interrupted_thousands_of_times_is_still_served() {
    const SERVER: &str = "
import signal, socket
hits = 0
def hit(*_):
    global hits
    hits += 1
    if hits == 3000:
        signal.setitimer(signal.ITIMER_REAL, 0)
        print('interrupted', flush=True)
s = socket.socket(); s.bind(('10.1.1.10', 7000)); s.listen()
signal.signal(signal.SIGALRM, hit)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
c, _ = s.accept()
c.sendall(b'served')
";
    let scene = Scene::of(OPEN);
    scene.file("server.py", SERVER);
    let server = scene.start("web", "exec python3 {f}/server.py", "interrupted");
    let asks = "python3 -c 'import socket; print(socket.create_connection((\"10.1.1.10\", 7000), 20).recv(100).decode())'";
    assert_eq!(scene.says("app", asks), "served\n", "{}", server.err());
}

/// More than may wait at once are killed while they do, and what started them goes on.
#[test]
fn who_is_killed_while_it_waits_leaves_its_place() {
    const SERVER: &str = "
import os, signal, socket, time
s = socket.socket(); s.bind(('10.1.1.10', 7000)); s.listen()
def waits():
    child = os.fork()
    if child == 0:
        s.accept()
        os._exit(0)
    return child
for _ in range(4):
    children = [waits() for _ in range(300)]
    time.sleep(0.5)
    for child in children: os.kill(child, signal.SIGKILL)
    for child in children: os.waitpid(child, 0)
print('killed', flush=True)
c, _ = s.accept()
c.sendall(b'served')
";
    let scene = Scene::of(OPEN);
    scene.file("server.py", SERVER);
    let server = scene.start("web", "exec python3 {f}/server.py", "killed");
    let asks = "python3 -c 'import socket; print(socket.create_connection((\"10.1.1.10\", 7000), 20).recv(100).decode())'";
    assert_eq!(scene.says("app", asks), "served\n", "{}", server.err());
}

/// SO_RCVTIMEO ends an `accept`, and SO_SNDTIMEO a `connect` that waits for room, as TCP's do.
#[test]
fn timeouts_of_a_socket_end_accept_and_connect() {
    const TIMES: &str = "
import errno, socket, struct, time
def waits(s, which, what):
    s.setsockopt(socket.SOL_SOCKET, which, struct.pack('ll', 0, 300000))
    begun = time.monotonic()
    try:
        what(); said = 'came'
    except OSError as e:
        said = errno.errorcode[e.errno]
    took = time.monotonic() - begun
    print(said, 'in time' if 0.25 < took < 3 else took, flush=True)
l = socket.socket(); l.bind(('10.1.1.10', 7000)); l.listen(0)
# Nobody comes; the timeout holds again for the next.
for _ in range(2): waits(l, socket.SO_RCVTIMEO, l.accept)
first = socket.create_connection(('10.1.1.10', 7000))
c = socket.socket()
waits(c, socket.SO_SNDTIMEO, lambda: c.connect(('10.1.1.10', 7000)))
l.accept()
c.connect(('10.1.1.10', 7000)); print('connected')
";
    let scene = Scene::of(OPEN);
    scene.file("times.py", TIMES);
    assert_eq!(
        scene.says("web", "exec python3 {f}/times.py"),
        "EAGAIN in time\nEAGAIN in time\nEINPROGRESS in time\nconnected\n"
    );
}

/// Of an endpoint that is gone nobody answers: programs that are left there are refused by the
/// kernel, also those that wait.
#[test]
fn who_is_left_in_an_endpoint_that_is_gone_is_refused() {
    const LEFT: &str = "
import socket, time
s = socket.socket(); s.bind(('10.1.1.10', 7000)); s.listen()
print('waits', flush=True)
try: s.accept()
except OSError as e: print('accept', e.errno, flush=True)
try: socket.socket()
except OSError as e: print('socket', e.errno, flush=True)
";
    let scene = Scene::of(OPEN);
    scene.file("left.py", LEFT);
    let mut left = scene.start("web", "exec python3 {f}/left.py", "waits");
    let web = OPEN
        .lines()
        .find(|line| line.contains("name: web"))
        .unwrap();
    scene.apply(&OPEN.replace(web, ""));
    let ended = left.wait(Duration::from_secs(10));
    assert_eq!(
        (ended, left.out()),
        (Some(0), "waits\naccept 38\nsocket 38\n".into())
    );
}
