//! Calls by rings that wait: another thread takes their descriptor away meanwhile, or their time is over, or their
//! descriptor is carried.

use crate::preload::Rings;
use std::time::Duration;

/// One thread waits in a call, and another shuts its descriptor down once it sleeps there, and has another connection
/// at its number, by `dup2` or by closing and connecting. What the call came to, and what the other connection has
/// of it.
const REPLACED: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
static struct sockaddr_in to = { .sin_family = AF_INET };
static char some[65536], much[4 << 20];
static int fd, writes;
static volatile int waits;
static ssize_t came;
static int why;
static void *call(void *none) {
    waits = syscall(SYS_gettid);
    came = writes ? send(fd, much, sizeof much, MSG_NOSIGNAL) : recv(fd, much, 100, 0);
    why = errno;
    return none;
}
static void until_it_sleeps(void) {
    char path[64], text[200], state = 0;
    while (!waits) usleep(100);
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", waits);
    while (state != 'S') {
        FILE *file = fopen(path, "r");
        // Or it has ended already.
        if (!file) return;
        size_t n = fread(text, 1, sizeof text - 1, file);
        fclose(file);
        text[n] = 0;
        char *name = strrchr(text, ')');
        if (!name) return;
        state = name[2];
    }
}
static void serve(int c) {
    char word;
    if (recv(c, &word, 1, 0) != 1) _exit(0);
    for (int n = 0; word == 'r' && n < 16; n++) send(c, some, sizeof some, 0);
    for (long n = 0; word == 'w' && n < 1 << 20;) n += recv(c, some, sizeof some, 0);
    if (word == 'w') send(c, "k", 1, 0);
    for (int n = 0; word == 'l' && n < 16; n++) send(c, some, sizeof some, 0);
    if (word == 'l') { sleep(5); send(c, "late", 4, 0); }
    if (word == 'w') { sleep(5); _exit(0); }
    if (word == 'o') send(c, "of the other", 12, 0);
    long all = 0;
    for (ssize_t n; (n = recv(c, some, sizeof some, 0)) > 0;) all += n;
    if (word == 'o') send(c, &all, sizeof all, MSG_NOSIGNAL);
    _exit(0);
}
static int connected(void) {
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(s, (void *)&to, sizeof to)) { perror("connect"); exit(1); }
    return s;
}
int main(int n, char **words) {
    inet_pton(AF_INET, words[2], &to.sin_addr);
    to.sin_port = htons(7000);
    if (!strcmp(words[1], "serve")) {
        int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (bind(l, (void *)&to, sizeof to) || listen(l, 50)) return 1;
        puts("serving");
        fflush(stdout);
        for (int c; (c = accept(l, 0, 0)) >= 0; close(c)) if (fork() == 0) serve(c);
        return 0;
    }
    for (int turn = 0; turn < 8; turn++) {
        writes = turn & 1;
        int anew = turn & 2, other = -1;
        fd = connected();
        send(fd, writes ? "w" : "r", 1, 0);
        for (int n = 0; writes && n < 16; n++) send(fd, some, sizeof some, 0);
        for (long n = 0; !writes && n < 1 << 20;) n += recv(fd, some, sizeof some, 0);
        if (writes) recv(fd, some, 1, 0);
        if (!anew) { other = connected(); send(other, "o", 1, 0); }
        pthread_t thread;
        waits = 0;
        pthread_create(&thread, 0, call, 0);
        until_it_sleeps();
        int old = fd;
        shutdown(old, SHUT_RDWR);
        if (anew) { close(old); other = connected(); send(other, "o", 1, 0); }
        else { dup2(other, old); close(other); other = old; }
        pthread_join(thread, 0);
        shutdown(other, SHUT_WR);
        char said[13] = ""; long all = -1;
        recv(other, said, 12, MSG_WAITALL);
        recv(other, &all, sizeof all, MSG_WAITALL);
        close(other);
        const char *is = came < 0 ? (why == EPIPE ? "over" : strerror(why)) : came == 0 ? "over" : "some";
        printf("%s: %s, %s, %ld\n", writes ? "write" : "read", is, said, all);
    }
    // Nobody shuts it down: who waits has what still comes, if there is a copy.
    writes = waits = 0;
    fd = connected();
    send(fd, "l", 1, 0);
    for (long n = 0; n < 1 << 20;) n += recv(fd, some, sizeof some, 0);
    int other = connected(), file = open("/dev/null", O_WRONLY);
    off_t at = 0;
    ssize_t sent = sendfile(fd, file, &at, 10);
    int refused = errno;
    pthread_t thread;
    pthread_create(&thread, 0, call, 0);
    until_it_sleeps();
    int copied = fcntl(384, F_GETFD) >= 0;
    dup2(other, fd);
    pthread_join(thread, 0);
    printf("late: %zd, copied: %d\n", came, copied);
    printf("file: %zd %s\n", sent, strerror(refused));
}
"#;

/// With a copy of the descriptor for as long as a call waits, and where there can be none.
#[test]
fn a_call_that_waits_never_goes_on_by_what_has_its_number_since() {
    let rings = Rings::new();
    rings.scene.compile("replaced", REPLACED);
    let _serves = rings.start("web", "exec {r} {f}/replaced serve 10.1.1.10", "serving");
    for (limit, late) in [
        ("", "late: 4, copied: 1\n"),
        ("ulimit -n 100; ", "late: 0, copied: 0\n"),
    ] {
        let line = format!("{limit}exec {{r}} {{f}}/replaced ask 10.1.1.10");
        let said = rings.says("app", &line);
        let writes = said.matches("write: some, of the other, 0\n").count();
        let writes = writes + said.matches("write: over, of the other, 0\n").count();
        let reads = said.matches("read: over, of the other, 0\n").count();
        // Without a copy there is a moment between the look at the number and its use.
        let least = if limit.is_empty() { 4 } else { 3 };
        assert!(reads >= least && writes >= least, "{limit}{said}");
        assert!(said.contains(late), "{limit}{said}");
        // A file that cannot be read is the file's error, and no signal.
        assert!(
            said.ends_with("file: -1 Bad file descriptor\n"),
            "{limit}{said}"
        );
    }
    let [read, written] = rings.by_ring("replaced");
    assert!(read > 500_000 && written > 1_000_000, "{read} {written}");
}

/// A child that is forked while another thread waits has none of what that one waits by.
#[test]
fn a_child_of_one_that_waits_keeps_no_connection_open() {
    let rings = Rings::new();
    rings.scene.file(
        "forks.py",
        "
import os, socket, sys, threading, time
if sys.argv[1] == 'serve':
    l = socket.create_server(('10.1.1.10', 7000)); print('serving', flush=True)
    c, _ = l.accept()
    for _ in range(16): c.sendall(b'x' * 65536)
    c.recv(1); c.send(b'go on'); c.settimeout(10)
    try: print('ends:', c.recv(1), flush=True)
    except OSError as error: print(error, flush=True)
    sys.exit()
s = socket.create_connection(('10.1.1.10', 7000)); left = 16 * 65536
while left: left -= len(s.recv(left))
waits = threading.Thread(target=lambda: s.recv(10)); waits.start(); time.sleep(0.5)
if os.fork() == 0:
    s.close(); time.sleep(20); os._exit(0)
s.send(b'g'); waits.join(); s.close(); time.sleep(15)
",
    );
    let mut serves = rings.start("web", "exec {r} python3 {f}/forks.py serve", "serving");
    let asks = rings.line("exec {r} python3 -W ignore {f}/forks.py ask");
    let _asks = rings.scene.spawn(rings.scene.command("app", &asks));
    assert_eq!(serves.wait(Duration::from_secs(20)), Some(0));
    assert_eq!(serves.out(), "serving\nends: b''\n", "{}", serves.err());
    assert!(rings.by_ring("python3")[1] > 0, "no ring");
}

/// One that reads late: the mark that begins the ring finds the socket full; or one that reads so much that a long
/// write goes by the ring, and then by the socket. The time is the whole call's.
#[test]
fn a_write_ends_by_its_time() {
    const WRITES: &str = "
import socket, struct, sys, time
way = sys.argv[2]
if sys.argv[1] == 'serve':
    l = socket.create_server(('10.1.1.10', int(way))); print('serving', flush=True)
    c, _ = l.accept(); n = 0
    if way == '7000':
        time.sleep(1)
        while n < 1 << 20: n += len(c.recv(65536))
    else:
        while n < 131072: n += len(c.recv(65536))
        time.sleep(0.15); c.recv(65536); c.recv(4096)
    time.sleep(60)
s = socket.create_connection(('10.1.1.10', int(way)))
s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack('ll', 1, 500_000))
if way == '7001':
    for _ in range(4): s.send(b'x' * 65536)
much, late, longest = b'x' * (65536 if way == '7000' else 64 << 20), 0, 0
while late < 2:
    begun = time.monotonic()
    try: s.send(much)
    except BlockingIOError: late += 1
    longest = max(longest, time.monotonic() - begun)
print('in time' if 1.4 < longest < 2.3 else longest)
";
    let rings = Rings::new();
    rings.scene.file("writes.py", WRITES);
    for way in ["7000", "7001"] {
        // Whose time begins anew has it so each time; a machine that stands still does so once.
        let said = (0..3).map(|_| {
            let line = format!("exec {{r}} python3 {{f}}/writes.py serve {way}");
            let _serves = rings.start("web", &line, "serving");
            rings.says("app", &format!("{{r}} python3 {{f}}/writes.py ask {way}"))
        });
        let late: Vec<_> = said.take_while(|said| said != "in time\n").collect();
        assert!(late.len() < 3, "{way}: {late:?}");
    }
    assert!(rings.by_ring("python3")[1] > 0, "no ring");
}

/// Its peer wakes it again and again, by tokens behind which there is nothing.
#[test]
fn a_read_ends_by_its_time_whatever_wakes_it() {
    let rings = Rings::new();
    rings.scene.file(
        "reads.py",
        "
import socket, struct, time
l = socket.create_server(('10.1.1.10', 7000)); print('serving', flush=True)
c, _ = l.accept(); longest = late = 0
c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 1, 0))
while late < 3:
    begun = time.monotonic()
    try: is_over = not c.recv(65536)
    except BlockingIOError: late += 1; is_over = False
    longest = max(longest, time.monotonic() - begun)
    if is_over: break
print('in time' if late == 3 and 0.9 < longest < 12 else (late, longest), flush=True)
",
    );
    rings.scene.file(
        "tokens.py",
        "
import mmap, socket, struct, time
s = socket.create_connection(('10.1.1.10', 7000)); sent = 0
for _ in range(16): sent += s.send(bytes(16384)); time.sleep(0.01)
time.sleep(0.3)
memory, = struct.unpack_from('i', s.getsockopt(0x4248, 1, 16))
words = mmap.mmap(memory, 4096)
# It has joined; and the reader, with the next byte, sees that.
struct.pack_into('Q', words, 136, 1)
sent += s.send(b'x'); time.sleep(0.3)
assert struct.unpack_from('Q', words, 640)[0], 'no consent'
struct.pack_into('Q', words, 128, sent + 1)
print('begins', flush=True)
try:
    for _ in range(75): s.send(b'T\\0'); time.sleep(0.2)
except OSError: pass
",
    );
    let mut reads = rings.start("web", "exec {r} python3 {f}/reads.py", "serving");
    let _tokens = rings
        .scene
        .start("app", "exec python3 {f}/tokens.py", "begins");
    assert_eq!(reads.wait(Duration::from_secs(30)), Some(0));
    assert_eq!(reads.out(), "serving\nin time\n", "{}", reads.err());
}

/// An end of a pair of sockets, at the same number: its time limits are the same, and whoever watches it still does.
#[test]
fn what_is_carried_keeps_its_time_limits_and_who_watches_it() {
    let rings = Rings::new();
    rings.scene.file(
        "carried.py",
        "
import os, select, socket, struct, sys, time
if sys.argv[1] == 'ask':
    s = socket.create_connection(('10.1.1.10', 7000))
    for _ in range(32): s.sendall(b'x' * 65536)
    assert s.recv(2) == b'go'; s.send(b'late'); s.recv(1); sys.exit()
l = socket.create_server(('10.1.1.10', 7000)); print('serving', flush=True)
c, _ = l.accept(); left = 32 * 65536
limit = struct.pack('ll', 1, 0)
for option in [socket.SO_RCVTIMEO, socket.SO_SNDTIMEO]: c.setsockopt(socket.SOL_SOCKET, option, limit)
watches = [select.epoll(), select.epoll()]
for which in watches: which.register(c, select.EPOLLIN)
while left: left -= len(c.recv(min(left, 65536)))
os.set_inheritable(c.fileno(), True)
print(c.family == socket.AF_INET, socket.socket(fileno=os.dup(c.fileno())).family.name)
for option in [socket.SO_RCVTIMEO, socket.SO_SNDTIMEO]: print(c.getsockopt(socket.SOL_SOCKET, option, 16) == limit)
begun = time.monotonic()
try: print(c.recv(10))
except BlockingIOError: print('in time', time.monotonic() - begun < 10)
c.send(b'go')
for which in watches: print(which.poll(5) == [(c.fileno(), select.EPOLLIN)])
print(c.recv(10), [which.poll(0) for which in watches], flush=True)
",
    );
    let mut carried = rings.start("web", "exec {r} python3 {f}/carried.py serve", "serving");
    let asks = rings.line("exec {r} python3 {f}/carried.py ask");
    let _asks = rings.scene.spawn(rings.scene.command("app", &asks));
    let code = carried.wait(Duration::from_secs(20));
    let said = "serving\nTrue AF_UNIX\nTrue\nTrue\nin time True\nTrue\nTrue\nb'late' [[], []]\n";
    assert_eq!(
        (code, carried.out()),
        (Some(0), said.to_owned()),
        "{}",
        carried.err()
    );
}

/// While one thread waits in a write, and another has the descriptor carried, which waits for that.
#[test]
fn how_much_there_is_to_read_is_told_while_a_ring_is_left() {
    let rings = Rings::new();
    rings.scene.file(
        "pending.py",
        "
import fcntl, os, socket, struct, sys, termios, threading, time
if sys.argv[1] == 'serve':
    l = socket.create_server(('10.1.1.10', 7000)); print('serving', flush=True)
    c, _ = l.accept(); left = 1 << 20
    while left: left -= len(c.recv(left))
    c.send(b'here'); time.sleep(60)
s = socket.create_connection(('10.1.1.10', 7000))
for _ in range(16): s.sendall(b'x' * 65536)
while s.recv(4, socket.MSG_PEEK) != b'here': pass
print('by ring?', flush=True)
while not os.path.exists(sys.argv[2]): time.sleep(0.01)
def apart(what): threading.Thread(target=what, daemon=True).start(); time.sleep(0.5)
apart(lambda: s.send(b'x' * (64 << 20)))
apart(lambda: fcntl.fcntl(s, fcntl.F_SETFD, 0))
try: print(struct.unpack('i', fcntl.ioctl(s, termios.FIONREAD, bytes(4))), flush=True)
except OSError as error: print(error, flush=True)
os._exit(0)
",
    );
    let _serves = rings.start("web", "exec {r} python3 {f}/pending.py serve", "serving");
    let line = "exec {r} python3 {f}/pending.py ask {f}/go";
    let asks = rings.start("app", line, "by ring?");
    let all = rings.scene.instance.ask(&["circuits"]).unwrap();
    assert_eq!(all["flows"][0]["circuit"]["kind"], "ring", "{all}");
    rings.scene.file("go", "");
    asks.until("(4,)\n");
}
