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
s = socket.create_connection(('10.1.1.10', 7000)); left = 1 << 20
while left > 1: left -= s.send(bytes(min(left - 1, 16384))); time.sleep(0.005)
memory, = struct.unpack_from('i', s.getsockopt(0x4248, 1, 16))
words = mmap.mmap(memory, 4096)
struct.pack_into('Q', words, 136, 1)
s.send(b'x'); time.sleep(0.3)
struct.pack_into('Q', words, 128, (1 << 20) + 1)
s.send(b'!', socket.MSG_OOB); time.sleep(5)
",
    );
    let mut victim = rings.start("web", "exec {r} python3 {f}/victim.py", "serving");
    let command = rings.scene.command("app", "exec python3 {f}/urgent.py");
    let _urgent = rings.scene.spawn(command);
    assert_eq!(
        victim.wait(Duration::from_secs(30)),
        Some(0),
        "{}",
        victim.err()
    );
    assert_eq!(victim.out(), "serving\nfew\n");
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
    let said = rings.says("app", "exec timeout 40 {r} python3 {f}/duplex.py ask");
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
some(range(1))
if ctypes.CDLL(None, use_errno=True).unshare(0x30000000): sys.exit(os.strerror(ctypes.get_errno()))
if os.fork() == 0: some(range(1, 24)); os._exit(os.getpid())
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
