//! Who reads nothing, or asks for more than its part, has others of its tenant wait or lose nothing for it.

use crate::scene::{OPEN, Scene};

/// Answers what is asked, or `B20` by so many of a thousand bytes.
const ANSWERS: &str = "
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((sys.argv[1], 53)); s.settimeout(2); print('bound', flush=True)
while True:
    try: came, who = s.recvfrom(65536)
    except TimeoutError: continue
    try:
        for part in [bytes(1000)] * int(came[1:]) if came[:1] == b'B' else [came]: s.sendto(part, who)
    except TimeoutError: print('no room', flush=True)
";
/// Asks once by each of so many sockets, or (`hides`) by a child's, whose parent has closed them; or (`alone`) by one that hears all.
const DEAF: &str = "
import os, socket, sys, time
how, many, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
made = lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
all, at = [made() for _ in range(1 if how == 'alone' else many)], ('10.1.1.10', 53)
for s in all if how != 'alone' else []: s.connect(at)
if how == 'hides':
    if os.fork(): 
        for s in all: s.close()
        os.wait()
    time.sleep(0.3)
for n in range(many if how == 'alone' else 1):
    for s in all:
        s.send(bytes(size)) if how != 'alone' else s.sendto(bytes(size), at)
        time.sleep(0.002)
print('said', flush=True); time.sleep(100)
";
const BURSTS: &str = "
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5)
if sys.argv[1] == 'connected': s.connect(('10.1.1.10', 53))
whole = soon = 0
for _ in range(8):
    begun = time.monotonic(); s.sendto(b'B20', ('10.1.1.10', 53)); time.sleep(0.05)
    try:
        for _ in range(20): s.recv(2000)
    except TimeoutError: continue
    whole += 1; soon += time.monotonic() - begun < 0.5
print(whole, soon)
";

fn heard_beside(how: &str) {
    let scene = Scene::of(OPEN);
    scene.programs([
        ("answers.py", ANSWERS),
        ("deaf.py", DEAF),
        ("bursts.py", BURSTS),
    ]);
    let server = scene.start("web", "exec python3 {f}/answers.py 10.1.1.10", "bound");
    let _deaf = scene.start("app", &format!("exec python3 {{f}}/deaf.py {how}"), "said");
    for kind in ["connected", "not"] {
        let said = scene.says("few", &format!("python3 {{f}}/bursts.py {kind}"));
        // What is lost stays lost. Whom others keep waiting waits each time; on a busy machine one does now and then.
        let counts: Vec<u32> = said.split_whitespace().flat_map(str::parse).collect();
        let [whole, soon] = counts[..] else {
            panic!("{kind}: {said}");
        };
        let all = format!("{kind}: {whole} of 8, {soon} of them soon");
        assert!(whole >= 7 && soon >= 4, "{all}; {}", server.out());
    }
}

#[test]
fn hundreds_that_read_nothing_take_nothing_from_who_reads() {
    heard_beside("shows 250 1000");
}

#[test]
fn nor_do_those_that_nobody_finds() {
    heard_beside("hides 60 60000");
}

#[test]
fn nor_does_one_that_hears_everybody() {
    heard_beside("alone 500 9000");
}

/// It was sent much by a sender that has no room any more, and hears another since.
#[test]
fn what_waits_at_who_hears_another_by_now_stays() {
    const MOVES: &str = "
import socket, time
moved, deaf, keeps = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)]; moved.settimeout(2)
keeps.connect(('10.1.1.10', 53)); keeps.send(b'x'); time.sleep(0.1)
moved.connect(('10.1.1.10', 53)); moved.send(b'B50'); time.sleep(0.3)
moved.connect(('10.1.1.12', 53)); moved.send(b'hello'); time.sleep(0.3)
deaf.connect(('10.1.1.10', 53)); deaf.send(b'B400'); time.sleep(0.5)
print(moved.recv(2000).decode())
";
    let scene = Scene::of(OPEN);
    scene.file("answers.py", ANSWERS);
    scene.file("moves.py", MOVES);
    let serves = |at, to: &str| {
        let line = format!("exec python3 {{f}}/answers.py {to}");
        scene.start(at, &line, "bound")
    };
    let _servers = [serves("web", "10.1.1.10"), serves("few", "10.1.1.12")];
    assert_eq!(scene.says("app", "python3 {f}/moves.py"), "hello\n");
}

/// Who cannot wait is let in beyond a listener's backlog, over and over; who waits there has its turns.
#[test]
fn who_waits_for_room_is_let_in_beside_those_that_do_not_wait() {
    const FLOOD: &str = "
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
static void *floods(void *unused)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(80) };
    inet_pton(AF_INET, \"10.1.1.10\", &to.sin_addr);
    for (;;) {
        int s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (s >= 0) { connect(s, (void *)&to, sizeof to); close(s); }
    }
    return unused;
}
int main(void)
{
    pthread_t all[8];
    for (int n = 0; n < 8; n++) pthread_create(&all[n], 0, floods, 0);
    puts(\"floods\"); fflush(stdout); pause();
}
";
    const SERVES: &str = "
import socket, time
s = socket.socket(); s.bind(('10.1.1.10', 80)); s.listen(16); print('listens', flush=True)
while True: s.accept()[0].close(); time.sleep(0.002)
";
    let scene = Scene::of(OPEN);
    scene.compile("floods", FLOOD);
    scene.file("serves.py", SERVES);
    let _server = scene.start("web", "exec python3 {f}/serves.py", "listens");
    let flood = scene.start("app", "exec {f}/floods", "floods");
    std::thread::sleep(std::time::Duration::from_secs(1));
    let line = "timeout 60 python3 -c \"
import socket
for n in range(5): socket.create_connection(('10.1.1.10', 80)).close()
print('well')\"";
    assert_eq!(scene.says("few", line), "well\n");
    drop(flood);
}

/// A signal has its call begin anew, and costs it no turn.
#[test]
fn who_waits_for_room_keeps_its_turn_over_a_signal() {
    const SERVES: &str = "
import socket, time
s = socket.socket(); s.bind(('10.1.1.10', 80)); s.listen(0); print('listens', flush=True)
while True: time.sleep(0.05); s.accept()[0].close()
";
    const OTHERS: &str = "
import socket, threading
def one():
    while True:
        s = socket.socket(); s.connect(('10.1.1.10', 80)); s.close()
for _ in range(10): threading.Thread(target=one).start()
print('asks', flush=True)
";
    const INTERRUPTED: &str = "
import signal, socket
signal.signal(signal.SIGALRM, lambda *a: None); signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
s = socket.socket(); s.connect(('10.1.1.10', 80)); signal.setitimer(signal.ITIMER_REAL, 0); print('well')
";
    let scene = Scene::of(OPEN);
    scene.programs([
        ("serves.py", SERVES),
        ("others.py", OTHERS),
        ("interrupted.py", INTERRUPTED),
    ]);
    let _server = scene.start("web", "exec python3 {f}/serves.py", "listens");
    let _others = scene.start("app", "exec python3 {f}/others.py", "asks");
    let said = scene.says("few", "timeout 60 python3 {f}/interrupted.py");
    assert_eq!(said, "well\n");
}

/// A limit of its program's own does not begin anew with each signal whose handler restarts calls.
#[test]
fn who_waits_with_a_limit_of_its_own_waits_no_longer_for_signals() {
    const LIMITED: &str = "
import signal, socket, struct, time
signal.signal(signal.SIGALRM, lambda *a: None); signal.siginterrupt(signal.SIGALRM, False)
listener = socket.socket(); listener.bind(('10.1.1.11', 80)); listener.listen(0)
def waits(what):
    begun = time.monotonic(); signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try: what(); said = 'nothing'
    except OSError as error: said = str(error.errno)
    signal.setitimer(signal.ITIMER_REAL, 0); took = time.monotonic() - begun
    print(said, 'early' if took < 1 else 'late' if took > 8 else 'in time', flush=True)
long = struct.pack('ll', 1, 0)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, long); waits(listener.accept)
# One has room there.
first, s = socket.create_connection(('10.1.1.11', 80)), socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, long); waits(lambda: s.connect(('10.1.1.11', 80)))
";
    let scene = Scene::of(OPEN);
    scene.programs([("limited.py", LIMITED)]);
    let said = scene.says("app", "timeout 40 python3 {f}/limited.py");
    assert_eq!(said, "11 in time\n115 in time\n");
}

/// A server of several sockets that answers by another than it was asked by: what lies there unread has a part, too.
#[test]
fn nor_do_those_that_a_server_answers_by_another_of_its_sockets() {
    const ANSWERS: &str = "
import select, socket
def made():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(('10.1.1.10', 53)); s.setblocking(False); return s
a, b = made(), made(); other = {a: b, b: a}; print('bound', flush=True)
while True:
    for s in select.select([a, b], [], [])[0]:
        try: came, who = s.recvfrom(2000); other[s].sendto(bytes(int(came)), who)
        except BlockingIOError: pass
";
    const DEAF: &str = "
import socket, time
all = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(8)]
for s in all: s.connect(('10.1.1.10', 53)); s.setblocking(False)
for _ in range(60):
    for s in all:
        try: s.send(b'60000')
        except OSError: pass
    time.sleep(0.005)
print('said', flush=True); time.sleep(100)
";
    const ASKS: &str = "
import socket
all = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(8)]; heard = []
for s in all: s.connect(('10.1.1.10', 53)); s.settimeout(5)
for s in all:
    s.send(b'100')
    try: heard.append(len(s.recv(2000)))
    except TimeoutError: pass
print(heard)
";
    let scene = Scene::of(OPEN);
    scene.programs([
        ("answers.py", ANSWERS),
        ("deaf.py", DEAF),
        ("asks.py", ASKS),
    ]);
    let _server = scene.start("web", "exec python3 {f}/answers.py", "bound");
    let _deaf = scene.start("app", "exec python3 {f}/deaf.py", "said");
    let said = scene.says("few", "python3 {f}/asks.py");
    assert_eq!(said, format!("{:?}\n", [100; 8]));
}
