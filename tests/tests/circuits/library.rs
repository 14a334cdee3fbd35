//! What programs do beside moving bytes, with the library of rings as without: they cancel threads, wait for
//! whole messages, send a byte out of band, hand sockets to who counts nothing, and say that there is no more.

use crate::preload::Rings;
use std::time::Duration;

/// Threads that are cancelled in calls: of descriptors that are no circuits, before a ring, and of one. What the
/// connection is good for then.
const CANCELS: &str = r#"
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
static char some[1 << 20];
static struct sockaddr_in to = { .sin_family = AF_INET };
static int fd, listener;
static void *reads(void *none) { recv(fd, some, 100, 0); return none; }
static void *accepts(void *none) { accept(listener, 0, 0); return none; }
static void *writes(void *none) { for (;;) send(fd, some, sizeof some, 0); return none; }
static void move(int from, int at) {
    for (int n = 0; n < 65536;) n += send(from, some, 65536 - n, 0);
    for (int n = 0; n < 65536;) n += recv(at, some, 65536 - n, 0);
}
static int is_cancelled(void *(*what)(void *)) {
    pthread_t thread;
    void *came;
    pthread_create(&thread, 0, what, 0);
    usleep(300000);
    pthread_cancel(thread);
    pthread_join(thread, &came);
    return came == PTHREAD_CANCELED;
}
int main(int n, char **words) {
    int pipes[2];
    inet_pton(AF_INET, words[1], &to.sin_addr);
    to.sin_port = htons(7000);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&to, sizeof to) || listen(listener, 9)) return 1;
    socketpair(AF_UNIX, SOCK_STREAM, 0, pipes);
    fd = pipes[0];
    printf("pair %d\naccept %d\n", is_cancelled(reads), is_cancelled(accepts));
    for (int turn = 0; turn < 6; turn++) {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        connect(fd, (void *)&to, sizeof to);
        int c = accept(listener, 0, 0), is_ring = turn >= 2;
        for (int k = 0; is_ring && k < 16; k++) { move(fd, c); move(c, fd); }
        struct timeval limit = { 10, 0 };
        if (turn >= 4) {
            setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
            setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        }
        int done = is_cancelled(turn & 1 ? writes : reads), left = 0;
        if (!(turn & 1)) { send(c, "hello", 5, 0); left = recv(fd, some, 5, MSG_WAITALL); }
        else {
            while (recv(c, some, sizeof some, MSG_DONTWAIT) > 0) ;
            left = send(fd, "hello", 5, 0);
        }
        printf("%s %d %d\n", turn & 1 ? "write" : "read", done, left);
        close(fd);
        close(c);
    }
    printf("open %d\n", dup(0) - listener);
}
"#;

#[test]
fn a_thread_that_is_cancelled_ends_and_its_connection_goes_on() {
    let rings = Rings::new();
    rings.scene.compile("cancels", CANCELS);
    let said = rings.says("web", "exec {r} {f}/cancels 10.1.1.10");
    let each = "read 1 5\nwrite 1 5\n".repeat(3);
    // Of what is open all is closed again: the number that comes is that behind the pair's.
    assert_eq!(said, format!("pair 1\naccept 1\n{each}open 3\n"));
    let [read, written] = rings.by_ring("cancels");
    assert!(read > 4_000_000 && written > 4_000_000, "{read} {written}");
}

/// A server that reads a message in one call, of just its length, and waits for the next: by edges; by poll or select,
/// with a socket that blocks; by both in turns. The other client is one that has fallen silent.
const WHOLE: &str = "
import select, socket, sys, time
way, where = sys.argv[2], ('10.1.1.10', int(sys.argv[3]))
def whole(s, n):
    while n: n -= len(s.recv(min(n, 65536)))
if sys.argv[1] == 'ask':
    all = [socket.create_connection(where) for _ in range(2)]
    for s in all:
        for _ in range(16): s.sendall(b'x' * 65536)
    for s in all: s.settimeout(5); s.recv(1)
    silent, s = all; silent.send(b'x' * 100); silent.recv(1)
    for n in range(300):
        if n < 20: time.sleep(0.005)
        s.send(b'x' * 100); s.recv(1)
    print('all'); sys.exit()
l = socket.create_server(where); print('serving', flush=True)
all = [l.accept()[0] for _ in range(2)]; known = {s.fileno(): s for s in all}
for s in all: whole(s, 16 * 65536)
watch = select.epoll() if way == 'edge' else select.poll()
for s in all:
    if way == 'edge': s.setblocking(False); watch.register(s, select.EPOLLIN | select.EPOLLET)
    elif way != 'select': watch.register(s, select.POLLIN)
    s.send(b'g')
for s in (all[:1] + all[1:] * 300) * (way == 'mixed'):
    if s.recv(4, socket.MSG_WAITALL) + s.recv(96, socket.MSG_WAITALL) != b'x' * 100: sys.exit('ends')
    if watch.poll(0): sys.exit('readable, and all is read')
    s.send(b'k')
while known and way != 'mixed':
    ready = select.select(list(known), [], [])[0] if way == 'select' else [fd for fd, _ in watch.poll()]
    for fd in ready:
        try: came = known[fd].recv(100)
        except BlockingIOError: continue
        if came: known[fd].send(b'k')
        else: sys.exit()
";

#[test]
fn who_reads_whole_messages_is_told_of_each_and_of_nothing_else() {
    let rings = Rings::new();
    rings.scene.file("whole.py", WHOLE);
    for (port, way) in [
        (7000, "edge"),
        (7001, "poll"),
        (7002, "select"),
        (7003, "mixed"),
    ] {
        let line = format!("exec {{r}} python3 {{f}}/whole.py serve {way} {port}");
        let _serves = rings.start("web", &line, "serving");
        let line = format!("{{r}} python3 {{f}}/whole.py ask {way} {port}");
        assert_eq!(rings.says("app", &line), "all\n", "{way}");
    }
    let [_, written] = rings.by_ring("python3");
    // The messages at least.
    assert!(written > 60_000, "{written}");
}

/// One side sends four MiB, and in front, or in between, goes something of which nobody here counts the bytes: a byte
/// out of band; what a program reads, or writes, that was executed meanwhile.
const UNCOUNTED: &str = "
import os, socket, sys, time
way, where = sys.argv[2], ('10.1.1.10', int(sys.argv[3]))
text = bytes(n % 251 for n in range(251 * 262)) [:65536]
def executes(s, line):
    os.set_inheritable(s.fileno(), True)
    if os.fork() == 0: os.execv('/bin/sh', ['sh', '-c', line.format(s.fileno())])
    os.wait()
def send(s):
    if way == 'wrote': executes(s, 'printf 0123456789 >&{0}')
    if way == 'read': s.send(b'0123456789')
    for n in range(64):
        if way == 'urgent' and n == 1: s.send(b'!', socket.MSG_OOB)
        s.sendall(text)
        if n < 8: time.sleep(0.02)
    s.shutdown(socket.SHUT_WR); s.recv(1)
def receive(s):
    if way == 'read': executes(s, 'head -c 10 <&{0} >/dev/null')
    if way == 'wrote': s.recv(10, socket.MSG_WAITALL)
    for n in range(64):
        left = 65536; came = b''
        while left:
            more = s.recv(left)
            if not more: sys.exit(f'ends in {n}')
            came += more; left -= len(more)
        if came != text: sys.exit(f'other bytes in {n}')
    print(s.recv(1), flush=True)
if sys.argv[1] == 'serve':
    l = socket.create_server(where); print('serving', flush=True)
    s, _ = l.accept()
else: s = socket.create_connection(where)
(receive if (sys.argv[1] == 'serve') != (way == 'wrote') else send)(s)
";

/// The same by POSIX aio, which may have a ring, and leaves it.
const BY_AIO: &str = r#"
#include <aio.h>
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
static unsigned char some[65536];
int main(int n, char **words) {
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7009) };
    inet_pton(AF_INET, words[2], &to.sin_addr);
    int s = socket(AF_INET, SOCK_STREAM, 0);
    unsigned long at = 0, turn = 0;
    if (!strcmp(words[1], "ask")) {
        connect(s, (void *)&to, sizeof to);
        for (; at < 4 << 20; at += sizeof some) {
            for (int i = 0; i < sizeof some; i++) some[i] = (at + i) % 251;
            for (int done = 0; done < sizeof some;) done += send(s, some + done, sizeof some - done, 0);
            if (at < 1 << 20) usleep(5000);
        }
        shutdown(s, SHUT_WR);
        return recv(s, some, 1, 0);
    }
    bind(s, (void *)&to, sizeof to);
    listen(s, 5);
    puts("serving");
    fflush(stdout);
    int c = accept(s, 0, 0);
    for (ssize_t n = 1; n > 0;) {
        if (++turn % 4) n = recv(c, some, sizeof some, 0);
        else {
            struct aiocb one = { .aio_fildes = c, .aio_buf = some, .aio_nbytes = sizeof some };
            const struct aiocb *all[] = { &one };
            if (aio_read(&one)) return 1;
            aio_suspend(all, 1, 0);
            n = aio_return(&one);
        }
        for (ssize_t i = 0; i < n; i++, at++) if (some[i] != at % 251) { printf("another at %lu\n", at); return 1; }
    }
    printf("%lu\n", at);
}
"#;

#[test]
fn bytes_that_nobody_counts_begin_no_ring() {
    let rings = Rings::new();
    rings.scene.file("uncounted.py", UNCOUNTED);
    for (port, way) in [
        (7000, "urgent"),
        (7001, "wrote"),
        (7002, "read"),
        (7003, ""),
    ] {
        let line = format!("exec {{r}} python3 {{f}}/uncounted.py serve '{way}' {port}");
        let mut serves = rings.start("web", &line, "serving");
        let line = format!("{{r}} python3 {{f}}/uncounted.py ask '{way}' {port}");
        let said = rings.says("app", &line);
        assert_eq!(
            serves.wait(Duration::from_secs(20)),
            Some(0),
            "{way}: {}",
            serves.err()
        );
        assert_eq!(
            said + &serves.out(),
            if way == "wrote" {
                "b''\nserving\n"
            } else {
                "serving\nb''\n"
            }
        );
        // Which the same program has otherwise.
        assert_eq!(rings.by_ring("python3") != [0, 0], way.is_empty(), "{way}");
    }
    rings.scene.compile("by-aio", BY_AIO);
    let mut serves = rings.start("web", "exec {r} {f}/by-aio serve 10.1.1.10", "serving");
    rings.says("app", "{r} {f}/by-aio ask 10.1.1.10");
    assert_eq!(serves.wait(Duration::from_secs(20)), Some(0));
    assert_eq!(serves.out(), "serving\n4194304\n");
}

/// From a peer that has the ring's memory and goes past any library.
#[test]
fn a_byte_out_of_band_keeps_nobody_busy() {
    let rings = Rings::new();
    rings.scene.file(
        "victim.py",
        "
import select, socket, time
l = socket.create_server(('10.1.1.10', 7000)); print('serving', flush=True)
c, _ = l.accept(); left = 1 << 20
while left: left -= len(c.recv(min(left, 65536)))
c.setblocking(False); watch = select.epoll(); watch.register(c, select.EPOLLIN); turns = 0
begun = time.monotonic(); is_over = False
while time.monotonic() - begun < 3 and not is_over:
    if not watch.poll(0.1): continue
    turns += 1
    try: is_over = not c.recv(10)
    except BlockingIOError: pass
    except OSError: is_over = True
print('few' if turns < 10 else turns, flush=True)
",
    );
    rings.scene.file(
        "urgent.py",
        "
import mmap, socket, struct, time
s = socket.create_connection(('10.1.1.10', 7000)); sent = 0
def some(n):
    global sent
    s.sendall(bytes(n)); sent += n; time.sleep(0.005)
while sent < 1 << 19: some(16384)
memory, side = struct.unpack_from('2I', s.getsockopt(0x4248, 1, 16)); assert side == 0
words = memoryview(mmap.mmap(memory, 4096)).cast('Q')
words[17] = 1
while not words[80]: some(4096)
some((1 << 20) - sent); time.sleep(0.3)
words[16] = sent + 1
s.send(b'!', socket.MSG_OOB); time.sleep(5)
",
    );
    let mut victim = rings.start("web", "exec {r} python3 {f}/victim.py", "serving");
    let command = rings.scene.command("app", "exec python3 {f}/urgent.py");
    let urgent = rings.scene.spawn(command);
    assert_eq!(
        victim.wait(Duration::from_secs(30)),
        Some(0),
        "{}",
        victim.err()
    );
    assert_eq!(
        (victim.out(), urgent.err()),
        ("serving\nfew\n".into(), String::new())
    );
}

/// Its peer sends back all that it sends: who reads on by `splice` would wait for the write, and that for the peer.
#[test]
fn a_ring_is_left_while_another_thread_writes() {
    let rings = Rings::new();
    rings.scene.file(
        "duplex.py",
        "
import os, socket, sys, threading
if sys.argv[1] == 'serve':
    l = socket.create_server(('10.1.1.10', 7000)); print('serving', flush=True)
    c, _ = l.accept()
    while came := c.recv(65536): c.sendall(came)
    sys.exit()
s = socket.create_connection(('10.1.1.10', 7000)); left = 1 << 20
for _ in range(16):
    s.sendall(b'x' * 65536); n = 65536
    while n: n -= len(s.recv(n))
sent = []
writes = threading.Thread(target=lambda: sent.append(s.send(bytes(32 << 20)))); writes.start()
left = (32 << 20)
while left > 31 << 20: left -= len(s.recv(65536))
threading.Event().wait(0.5)
to, here = os.pipe(); nowhere = os.open('/dev/null', os.O_WRONLY)
while left:
    n = os.splice(s.fileno(), here, 65536); left -= n
    os.splice(to, nowhere, n)
writes.join(); print(sent == [32 << 20])
",
    );
    let _serves = rings.start("web", "exec {r} python3 {f}/duplex.py serve", "serving");
    let said = rings.says("app", "exec timeout 150 {r} python3 {f}/duplex.py ask");
    assert_eq!(said, "True\n");
    assert!(rings.by_ring("python3")[1] > 0, "no ring");
}

#[test]
fn a_child_of_another_pid_namespace_takes_nobody_for_dead() {
    let rings = Rings::new();
    rings.scene.file(
        "apart.py",
        "
import ctypes, os, socket, sys, time
if sys.argv[1] == 'ask':
    s = socket.create_connection(('10.1.1.10', 7000))
    for n in range(48): s.sendall(bytes([n]) * 65536); time.sleep(0.005 if n < 16 else 0)
    s.shutdown(socket.SHUT_WR); s.recv(1); sys.exit()
l = socket.create_server(('10.1.1.10', 7000)); print('serving', flush=True)
c, _ = l.accept()
def some(parts):
    for n in parts:
        came = c.recv(65536, socket.MSG_WAITALL)
        if came != bytes([n]) * 65536: sys.exit(f'{len(came)} others in {n}')
some(range(8))
if ctypes.CDLL(None, use_errno=True).unshare(0x30000000): sys.exit(os.strerror(ctypes.get_errno()))
if os.fork() == 0: some(range(8, 24)); os._exit(os.getpid())
print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
some(range(24, 48)); print(c.recv(1), flush=True)
",
    );
    let mut serves = rings.start("web", "exec {r} python3 {f}/apart.py serve", "serving");
    rings.says("app", "{r} python3 {f}/apart.py ask");
    assert_eq!(
        serves.wait(Duration::from_secs(20)),
        Some(0),
        "{}",
        serves.err()
    );
    assert_eq!(serves.out(), "serving\n1\nb''\n");
    assert!(rings.by_ring("python3")[1] > 1 << 20, "no ring");
}

#[test]
fn nothing_is_sent_after_an_own_shutdown() {
    let rings = Rings::new();
    rings.scene.file(
        "shut.py",
        "
import os, socket
l = socket.create_server(('10.1.1.10', 7000))
s = socket.create_connection(('10.1.1.10', 7000)); c, _ = l.accept()
for a, b in [(s, c), (c, s)] * 8:
    a.sendall(b'x' * 65536); n = 65536
    while n: n -= len(b.recv(n))
s.send(b'last'); s.shutdown(socket.SHUT_WR); file = os.open('/proc/self/exe', os.O_RDONLY)
for what in [lambda: s.send(b'x'), lambda: s.sendmsg([b'x' * 70000]), lambda: os.sendfile(s.fileno(), file, 0, 99)]:
    try: print(what())
    except BrokenPipeError: print('EPIPE')
print(c.recv(100), c.recv(100)); c.send(b'still'); print(s.recv(9))
",
    );
    let said = rings.says("web", "{r} python3 {f}/shut.py");
    assert_eq!(said, "EPIPE\nEPIPE\nEPIPE\nb'last' b''\nb'still'\n");
    assert!(rings.by_ring("python3")[1] > 0, "no ring");
}

/// Programs say how many descriptors there may be, and their sets have room for fewer.
#[test]
fn select_looks_no_further_than_there_are_sockets() {
    const SELECTS: &str = r#"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <unistd.h>
int main(void)
{
    int s = socket(AF_INET, SOCK_STREAM, 0), size = getpagesize();
    char *at = mmap(0, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct timeval at_once = { 0, 0 };
    fd_set *set = (void *)(at + size - sizeof *set);
    mprotect(at + size, size, PROT_NONE);
    FD_ZERO(set);
    FD_SET(s, set);
    printf("%d\n", select(1 << 20, set, 0, 0, &at_once) >= 0);
}
"#;
    let rings = Rings::new();
    rings.scene.compile("selects", SELECTS);
    assert_eq!(rings.says("app", "exec {r} {f}/selects"), "1\n");
}

/// Two sockets of one connection, by a ring.
const PAIR: &str = "
import ctypes, fcntl, os, resource, select, signal, socket, sys, threading, time
l = socket.create_server(('10.1.1.10', 7000))
def plain():
    s = socket.create_connection(('10.1.1.10', 7000)); return s, l.accept()[0]
def whole(s, n):
    came = b''
    while len(came) < n: came += s.recv(n - len(came)) or sys.exit(f'{len(came)} of {n}')
    return came
def pair():
    s, c = plain()
    for a, b in [(s, c), (c, s)] * 8: a.sendall(b'x' * 65536); whole(b, 65536)
    return s, c
def goes_on(s, c):
    s.send(b'still'); return whole(c, 5).decode()
libc = ctypes.CDLL(None, use_errno=True)
";

/// What one program says that begins so; some of it goes by rings.
pub fn paired(name: &str, program: &str) -> String {
    paired_by(name, program).0
}

/// The same, with how many bytes were written by rings.
pub fn paired_by(name: &str, program: &str) -> (String, u64) {
    let rings = Rings::new();
    rings.scene.file(name, &format!("{PAIR}{program}"));
    let said = rings.says(
        "web",
        &format!("exec timeout 150 {{r}} python3 {{f}}/{name}"),
    );
    let [_, written] = rings.by_ring("python3");
    assert!(written > 0, "no ring: {said}");
    (said, written)
}

/// As its sockets rest and it waits for others: what they went by is known to the kernel no more.
#[test]
fn page_tables_of_rings_that_rest_are_given_back() {
    let said = paired(
        "tables.py",
        "
import select, time
def tables(): return int([l for l in open('/proc/self/status') if l.startswith('VmPTE')][0].split()[1])
pair(); before = tables(); all = [pair() for n in range(40)]; most = tables()
s, c = pair(); watch = select.poll(); watch.register(s, select.POLLIN); end = time.monotonic() + 20
while tables() > before + (most - before) // 3 and time.monotonic() < end: watch.poll(100)
after = tables()
if most - before < 200 or after > before + (most - before) // 3: print(before, most, after)
for s, c in all: s.sendall(b'again'); print('' if whole(c, 5) == b'again' else 'lost', end='')
print('given back')
",
    );
    // No kernel that circuits run on (6.16) is one that keeps them.
    assert_eq!(said, "given back\n");
}

/// Before a ring, what each of them moved the other did not count.
#[test]
fn a_child_of_another_user_leaves_its_parent_no_ring_of_another_count() {
    let said = paired(
        "apart.py",
        "
pair(); s, c = plain()
if os.fork() == 0: os.setresuid(65534, 65534, 65534); s.send(b'y' * 1000); os._exit(0)
os.wait()
def writes():
    for n in range(128): s.sendall(bytes([n]) * 65536)
t = threading.Thread(target=writes); t.start()
print(whole(c, 1000) == b'y' * 1000, all(whole(c, 65536) == bytes([n]) * 65536 for n in range(128)))
",
    );
    assert_eq!(said, "True True\n");
}

/// It sends what says that something follows, and nothing follows.
#[test]
fn a_stray_frame_keeps_nobody_in_a_read_who_was_told_that_there_is_something() {
    const WAITS: &str = "
import select, socket, sys, time
l = socket.create_server(('10.1.1.10', 7000)); print('serving', flush=True)
c, _ = l.accept(); worst = came = 0; end = time.monotonic() + 30
watch = select.poll(); watch.register(c, select.POLLIN)
while time.monotonic() < end:
    ready = select.select([c], [], [], 1)[0] if sys.argv[1] == 'select' else watch.poll(1000)
    if not ready: continue
    begun = time.monotonic(); some = len(c.recv(65536)); worst = max(worst, time.monotonic() - begun)
    came += some
    if not some: break
print(came > 262144, worst < 1.4)
";
    const STRAY: &str = "
import mmap, socket, struct, sys, time
s = socket.create_connection(('10.1.1.10', 7000)); sent = 0
def some():
    global sent
    s.sendall(b'x' * 16384); sent += 16384; time.sleep(0.01)
for n in range(16): some()
fd, side, size, _ = struct.unpack('4I', s.getsockopt(0x4248, 1, 16)); assert side == 0
words = memoryview(mmap.mmap(fd, 4096 + 2 * size)).cast('Q')
words[17] = 1
for n in range(1000):
    if words[80]: break
    some()
assert words[80]
words[16] = sent + 1; s.send(b'T\\0'); time.sleep(0.2)
for n in range(3):
    s.send(b'S\\x10\\0\\0\\0' if sys.argv[1] == 'spill' else bytes([84, words[74] & 255])); time.sleep(0.3)
    if sys.argv[1] == 'spill': break
time.sleep(1.5)
";
    let rings = Rings::new();
    rings.scene.file("waits.py", WAITS);
    rings.scene.file("stray.py", STRAY);
    for (way, what) in [("select", "token"), ("select", "spill"), ("poll", "spill")] {
        // Whom it keeps it keeps each time; a machine that stands still does so once.
        let said = (0..3).map(|_| {
            let line = format!("exec {{r}} python3 {{f}}/waits.py {way}");
            let mut waits = rings.start("web", &line, "serving");
            let line = format!("timeout 150 python3 {{f}}/stray.py {what}");
            rings.scene.says("app", &line);
            waits.wait(Duration::from_secs(20));
            waits.out()
        });
        let kept: Vec<_> = said
            .take_while(|said| said != "serving\nTrue True\n")
            .collect();
        assert!(kept.len() < 3, "{way} {what}: {kept:?}");
    }
}

#[test]
fn who_waits_to_write_keeps_nobody_from_it() {
    let said = paired(
        "waits.py",
        "
s, c = pair()
child = os.fork()
while child == 0: s.send(b'x' * 65536)
sleeps = 0
while sleeps < 30:
    time.sleep(0.01); sleeps = sleeps + 1 if open(f'/proc/{child}/stat').read().split(') ')[1][0] == 'S' else 0
os.kill(child, 9); os.wait(); c.setblocking(False)
def came():
    try: return c.recv(65536)
    except BlockingIOError: return b''
end = time.monotonic() + 20
while came(): pass
s.send(b'last'); last = b''
while not last.endswith(b'last') and time.monotonic() < end: last = (last + came())[-4:]
print(last)
s, c = pair()
def interrupted(*_): raise InterruptedError
signal.signal(signal.SIGALRM, interrupted)
threading.Thread(target=lambda: s.sendall(b'x' * (64 << 20)), daemon=True).start()
time.sleep(0.5); signal.alarm(1)
try: s.send(b'x' * (1 << 20)); print('sent')
except InterruptedError: print('interrupted')
sys.stdout.flush(); pair(); os._exit(0)
",
    );
    assert_eq!(said, "b'last'\ninterrupted\n");
}

/// Neither the connection nor the program ends by it.
#[test]
fn what_fails_changes_nothing() {
    let said = paired(
        "fails.py",
        "
pair(); s, c = pair()
def says(n): return n if n >= 0 else os.strerror(ctypes.get_errno())
high = fcntl.fcntl(s, fcntl.F_DUPFD, 300)
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (200, most))
print(says(libc.dup2(0, high)), os.write(high, b'still'), whole(c, 5).decode())
own = []
try:
    while True: own.append(os.dup(0))
except OSError: pass
print(says(libc.dprintf(s.fileno(), b'none')), says(libc.syscall(1, s.fileno(), b'none', 4)), goes_on(s, c))
for fd in own: os.close(fd)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
os.setresuid(54321, 54321, 54321)
for n in range(1, 200):
    resource.setrlimit(resource.RLIMIT_NPROC, (n, n + 999 if n == 1 else resource.getrlimit(resource.RLIMIT_NPROC)[1]))
    try: child = os.fork()
    except BlockingIOError: continue
    if child == 0: os._exit(0)
    os.wait(); break
print(says(libc.dprintf(s.fileno(), b'none')), goes_on(s, c), goes_on(c, s))
",
    );
    assert_eq!(
        said,
        "Bad file descriptor 5 still\nToo many open files Too many open files still\n\
         Resource temporarily unavailable still still\n"
    );
}

#[test]
fn who_leaves_bytes_unread_resets_and_signals_tell_of_each_message() {
    let said = paired(
        "told.py",
        "
def finds_nothing(s):
    s.setblocking(False)
    try: print(s.recv(9))
    except BlockingIOError: s.setblocking(True)
s, c = pair(); s.send(b'x' * 100000); finds_nothing(s); c.recv(100); c.close()
for call in [lambda: s.recv(9), lambda: s.send(b'x'), lambda: s.recv(9)]:
    try: print(call())
    except OSError as error: print(type(error).__name__)
for last in (b'', b'nobody closed upon'):
    s, c = pair(); s.send(b'all'); finds_nothing(s); whole(c, 3); c.close(); last and s.send(last); print(s.recv(9))
s, c = pair(); told = 0
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})
fcntl.fcntl(s, fcntl.F_SETOWN, os.getpid()); fcntl.fcntl(s, fcntl.F_SETFL, os.O_ASYNC)
for n in range(20):
    c.send(b'x' * 100); told += signal.sigtimedwait({signal.SIGIO}, 3) is not None; whole(s, 100)
print(told)
",
    );
    assert_eq!(
        said,
        "ConnectionResetError\nBrokenPipeError\nb''\nb''\nb''\n20\n"
    );
}

/// More sockets than are followed at a time, each of which other processes had, for a moment or never.
#[test]
fn what_others_had_for_a_moment_is_free_again() {
    let said = paired(
        "free.py",
        "
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 1000), most))
def many(forks):
    for turn in range(28):
        all = [socket.socket() for _ in range(300)]; forks()
        for s in all: s.close()
def forks():
    for n in range(5):
        if os.fork() == 0: os._exit(0)
        os.wait()
many(forks); s, c = pair(); print(goes_on(s, c))
",
    );
    assert_eq!(said, "still\n");
}

/// A file is sent, and a ring is left, by threads with no more of a stack than there has to be.
#[test]
fn small_stacks_are_enough() {
    const STACKS: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
static char some[1 << 20];
static int fd;
static void *sends(void *none) {
    off_t from = 0;
    printf("%d\n", (int)sendfile(fd, open("/proc/self/exe", O_RDONLY), &from, 10000));
    return none;
}
static void *leaves(void *none) {
    struct iovec part = { some, 1000 };
    struct mmsghdr one = { .msg_hdr = { .msg_iov = &part, .msg_iovlen = 1 } };
    printf("%d\n", sendmmsg(fd, &one, 1, 0));
    return none;
}
static void does(void *(*what)(void *)) {
    pthread_t thread;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 16384);
    pthread_create(&thread, &small, what, 0);
    pthread_join(thread, 0);
}
static void move(int from, int at, int all) {
    for (int n = 0; n < all;) n += send(from, some, all - n, 0);
    for (int n = 0; n < all;) n += recv(at, some, all - n, 0);
}
int main(void) {
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7000) };
    int l = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, "10.1.1.10", &to.sin_addr);
    if (bind(l, (void *)&to, sizeof to) || listen(l, 9)) return 1;
    fd = socket(AF_INET, SOCK_STREAM, 0);
    connect(fd, (void *)&to, sizeof to);
    int c = accept(l, 0, 0);
    for (int n = 0; n < 16; n++) { move(fd, c, 65536); move(c, fd, 65536); }
    does(sends);
    does(leaves);
    printf("%d\n", (int)recv(c, some, 11000, MSG_WAITALL));
}
"#;
    let rings = Rings::new();
    rings.scene.compile("stacks", STACKS);
    assert_eq!(
        rings.says("web", "exec {r} {f}/stacks"),
        "10000\n1\n11000\n"
    );
    assert!(rings.by_ring("stacks")[1] > 0, "no ring");
}
