//! `connect` to AF_UNSPEC by a program with the library of rings: its number is of a fresh socket then, whoever else uses it.

use crate::library::paired_by;
use crate::preload::Rings;

/// `connect` to AF_UNSPEC: the number is another socket's, by a ring again; what was sent by then is read, and a copy goes on.
#[test]
fn who_is_taken_from_its_connection_is_by_another_ring() {
    let (said, written) = paired_by(
        "anew.py",
        "
def anew(s, how):
    by = [lambda: libc.connect(s.fileno(), bytes(16), 16), lambda: libc.syscall(42, s.fileno(), bytes(16), 16)][how]
    return by()
def again(s):
    s.connect(('10.1.1.10', 7000)); c = l.accept()[0]
    for a, b in [(s, c), (c, s)] * 8: a.sendall(b'x' * 65536); whole(b, 65536)
    return goes_on(s, c), goes_on(c, s)
for how in range(2):
    s, c = pair(); s.send(b'last')
    print(anew(s, how), whole(c, 4).decode(), c.recv(9), *again(s))
    s, c = pair(); copy = s.dup()
    print(anew(s, how), goes_on(copy, c), goes_on(c, copy), *again(s))
    s = socket.socket(); copy = s.dup()
    print(anew(s, how), *again(s))
# A signal ends the call, and the socket is another by then, or not.
import errno
def ticks(after): signal.setitimer(signal.ITIMER_REAL, after, after)
signal.signal(signal.SIGALRM, lambda *_: None)
ended = wrong = 0
for n in range(60):
    s, c = pair(); ticks(0.000137); tries = 0
    while anew(s, n % 2):
        if ctypes.get_errno() != errno.EINTR: sys.exit(os.strerror(ctypes.get_errno()))
        ended += 1; tries += 1
        # On a slow machine each try may take longer than that.
        if tries == 20: ticks(0)
    ticks(0); wrong += again(s) != ('still', 'still') or c.recv(9) != b''
print(ended > 0, wrong)
# Another thread writes meanwhile: to the one connection, or to the other.
wrong, goes_on = 0, True
def reads(c):
    global wrong
    try:
        while came := c.recv(65536): wrong += came.strip(b'x') != b''
    except OSError: wrong += 1
def serves():
    while True: threading.Thread(target=reads, args=(l.accept()[0],), daemon=True).start()
def writes():
    while goes_on:
        try: s.send(b'x' * 20000, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError: pass
threading.Thread(target=serves, daemon=True).start()
s = socket.create_connection(('10.1.1.10', 7000)); writer = threading.Thread(target=writes); writer.start()
for n in range(200): threading.Event().wait(0.004); anew(s, n % 2); s.connect(('10.1.1.10', 7000))
goes_on = False; writer.join(); s.close(); print(wrong)
",
    );
    let one = "0 last b'' still still\n0 still still still still\n0 still still\n";
    assert_eq!(said, one.repeat(2) + "True 0\n0\n");
    // What the first sixty-four go by, of a MiB each, and what the sixty-six after them do.
    assert!(written > 66 << 20, "{written}");
}

/// How the programs below begin: connections to themselves, by a ring each.
const BEGINS: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static char some[1 << 20];
static struct sockaddr_in to = { .sin_family = AF_INET };
static struct sockaddr none;
static int listener, number, is_called;
static pthread_barrier_t both;
static void begins(void) {
    memset(some, 'x', sizeof some);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, "10.1.1.10", &to.sin_addr);
    to.sin_port = htons(7000);
    if (bind(listener, (void *)&to, sizeof to) || listen(listener, 9)) exit(1);
    pthread_barrier_init(&both, 0, 2);
}
static void pair(int *fd, int *c) {
    *fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(*fd, (void *)&to, sizeof to)) { perror("connect"); exit(1); }
    *c = accept(listener, 0, 0);
    for (int k = 0; k < 16; k++) {
        int a = k & 1 ? *c : *fd, b = k & 1 ? *fd : *c;
        for (int n = 0; n < 65536;) n += send(a, some, 65536 - n, 0);
        for (int n = 0; n < 65536;) n += recv(b, some, 65536 - n, 0);
    }
}
static void signals_in(long us) {
    struct itimerval in = { { 0, 0 }, { 0, us } };
    is_called = us > 0;
    setitimer(ITIMER_REAL, &in, 0);
}
"#;

/// A number that is made a copy of another circuit (`over`: dup2, or close and dup by another thread; dup2 by a handler of the
/// thread itself) as it is taken from its connection. Where what is sent by it comes to then.
const REPLACED: &str = r#"
static int from, over;
static void waits(long us) {
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begun.tv_sec) * 1000000 + (now.tv_nsec - begun.tv_nsec) / 1000 < us);
}
static void *replaces(void *none) {
    for (int n = 0; n < 100; n++) {
        pthread_barrier_wait(&both);
        waits(n * 3);
        if (over == 0) dup2(from, number);
        if (over == 1) {
            close(number);
            // The lowest that is free, which may be another.
            int at = dup(from);
            if (at != number) close(at);
        }
        pthread_barrier_wait(&both);
    }
    return none;
}
static void handler(int signal) { if (is_called) dup2(from, number); }
static int arrives(int fd, int at) {
    struct timeval limit = { 5, 0 };
    char got[3] = "";
    setsockopt(at, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return send(fd, "ok", 2, MSG_NOSIGNAL) == 2 && recv(at, got, 2, MSG_WAITALL) == 2 && got[0] == 'o' && got[1] == 'k';
}
int main(void) {
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
    begins();
    for (over = 0; over < 3; over++) {
        int wrong = 0;
        pthread_t thread;
        if (over < 2) pthread_create(&thread, 0, replaces, 0);
        else sigaction(SIGALRM, &action, 0);
        for (int n = 0; n < 100; n++) {
            int c, d;
            struct stat a, b;
            pair(&number, &c);
            pair(&from, &d);
            if (over < 2) pthread_barrier_wait(&both);
            else signals_in(1 + n * 2);
            connect(number, &none, sizeof none);
            if (over < 2) pthread_barrier_wait(&both);
            else signals_in(0);
            int is_there = fstat(number, &a) == 0, other = -1;
            int is_copy = is_there && fstat(from, &b) == 0 && a.st_ino == b.st_ino;
            if (is_there && !is_copy) {
                if (connect(number, (void *)&to, sizeof to)) printf("%d: %s\n", n, strerror(errno));
                else other = accept(listener, 0, 0);
            }
            int is_right = !is_there || arrives(number, is_copy ? d : other), goes_on = arrives(from, d);
            if (!is_right || !goes_on) printf("%d: copy %d, to %d: %d %d\n", n, is_copy, other, is_right, goes_on);
            wrong += !is_right || !goes_on;
            int all[] = { number, from, c, d, other };
            for (int k = 0; k < 5; k++) close(all[k]);
        }
        if (over < 2) pthread_join(thread, 0);
        printf("%d\n", wrong);
    }
}
"#;

#[test]
fn what_its_number_is_made_meanwhile_is_by_no_others_ring() {
    let rings = Rings::new();
    rings
        .scene
        .compile("replaced", &format!("{BEGINS}{REPLACED}"));
    assert_eq!(
        rings.says("web", "exec timeout 150 {r} {f}/replaced"),
        "0\n0\n0\n"
    );
    assert!(rings.by_ring("replaced")[1] > 0, "no ring");
}

/// A process that is forked in the midst: by another thread as a number is taken from its connection, by a handler of the thread
/// that does it, and as another thread makes connections. What the child finds is the connection's, or nothing.
const FORKED: &str = r#"
static int wrong, is_over;
static void reads(int fd) {
    char got[8192];
    struct itimerval limit = { { 0, 0 }, { 10, 0 } };
    // Who spins is ended, by a signal that no handler is for.
    setitimer(ITIMER_VIRTUAL, &limit, 0);
    for (int k = 0; k < 5; k++, usleep(500))
        for (int n = recv(fd, got, sizeof got, MSG_DONTWAIT); n > 0; n--) if (got[n - 1] != 'x') _exit(9);
}
static void waits_for(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    wrong += status != 0;
}
static void *forks(void *none) {
    for (int n = 0; n < 60; n++) {
        pthread_barrier_wait(&both);
        usleep(n * 4);
        pid_t child = fork();
        if (!child) { reads(number); _exit(0); }
        waits_for(child);
        pthread_barrier_wait(&both);
    }
    return none;
}
static void handler(int signal) {
    if (!is_called) return;
    is_called = 0;
    pid_t child = fork();
    if (!child) { reads(number); _exit(0); }
    waits_for(child);
}
static void *makes(void *none) {
    while (!is_over) {
        int fd, c;
        pair(&fd, &c);
        send(c, some, 5000, 0);
        usleep(200);
        close(fd);
        close(c);
    }
    return none;
}
int main(void) {
    struct sigaction action = { .sa_handler = handler };
    pthread_t thread;
    begins();
    pthread_create(&thread, 0, forks, 0);
    for (int by = 0; by < 2; by++, printf("%d\n", wrong), wrong = 0) {
        for (int n = 0; n < 60; n++) {
            int c;
            pair(&number, &c);
            send(c, some, 20000, 0);
            if (!by) pthread_barrier_wait(&both);
            else signals_in(1 + n * 3);
            connect(number, &none, sizeof none);
            if (!by) pthread_barrier_wait(&both);
            else signals_in(0);
            close(number);
            close(c);
        }
        if (!by) { pthread_join(thread, 0); sigaction(SIGALRM, &action, 0); }
    }
    pthread_create(&thread, 0, makes, 0);
    for (int n = 0; n < 2000; n++) {
        pid_t child = fork();
        if (!child) {
            struct pollfd one = { .events = POLLIN };
            for (one.fd = 4; one.fd < 12; one.fd++) {
                char got[8192];
                int came = n & 1 ? recv(one.fd, got, sizeof got, MSG_DONTWAIT | MSG_PEEK) : 0;
                while (came-- > 0) if (got[came] != 'x') _exit(9);
                poll(&one, 1, 0);
                close(one.fd);
            }
            _exit(0);
        }
        waits_for(child);
    }
    is_over = 1;
    pthread_join(thread, 0);
    printf("%d\n", wrong);
}
"#;

/// A number that was closed as another thread forked, and that the same socket has again, by a copy that was handed on: a child
/// that is forked later has it.
const AGAIN: &str = r#"
static int waits = 1, is_idle, stays = -1, misses;
static void *forks(void *none) {
    for (int status = 0;; misses += status != 0) {
        __atomic_store_n(&is_idle, 1, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&waits, __ATOMIC_SEQ_CST)) usleep(50);
        __atomic_store_n(&is_idle, 0, __ATOMIC_SEQ_CST);
        // As it was before: the kernel copies descriptors, and then memory.
        int it = __atomic_load_n(&stays, __ATOMIC_SEQ_CST);
        pid_t child = fork();
        if (!child) _exit(it >= 0 && fcntl(it, F_GETFD) < 0);
        waitpid(child, &status, 0);
    }
    return none;
}
static void rests(void) {
    __atomic_store_n(&waits, 1, __ATOMIC_SEQ_CST);
    usleep(200);
    while (!__atomic_load_n(&is_idle, __ATOMIC_SEQ_CST)) usleep(20);
}
static void passes(int by, int fd) {
    char byte = 1, control[CMSG_SPACE(sizeof fd)] = { 0 };
    struct iovec piece = { &byte, 1 };
    struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    if (sendmsg(by, &message, 0) < 0) exit(1);
}
static int comes(int by) {
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec piece = { &byte, 1 };
    struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    int fd = -1;
    if (recvmsg(by, &message, 0) == 1) memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}
int main(int busy, char **words) {
    pthread_t thread;
    int by[2], lost = 0, same = 0;
    begins();
    socketpair(AF_UNIX, SOCK_STREAM, 0, by);
    for (int k = 0; k < (busy > 1 ? 3 : 1); k++) pthread_create(&thread, 0, forks, 0);
    for (int n = 0; n < 200; n++) {
        rests();
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (void *)&to, sizeof to)) exit(1);
        int c = accept(listener, 0, 0), kept = dup(fd), status;
        __atomic_store_n(&waits, 0, __ATOMIC_SEQ_CST);
        usleep(200 + n * 4);
        close(fd);
        passes(by[0], kept);
        int again = n % 2 ? comes(by[1]) : dup(kept);
        same += again == fd;
        // Or as they are forked all the time.
        if (busy < 2) rests();
        pid_t child = fork();
        if (!child) _exit(fcntl(again, F_GETFD) < 0);
        waitpid(child, &status, 0);
        lost += status != 0;
        close(again);
        close(kept);
        close(c);
        if (n % 2 == 0) close(comes(by[1]));
    }
    // Where one takes the place of another of the same socket, all that are forked have it there.
    int kept = socket(AF_INET, SOCK_STREAM, 0);
    stays = dup(kept);
    __atomic_store_n(&waits, 0, __ATOMIC_SEQ_CST);
    for (int n = 0; busy > 1 && n < 200000; n++) dup2(kept, stays);
    printf("%d %d %d\n", same > 0, lost, misses);
    exit(0);
}
"#;

#[test]
fn a_number_that_was_closed_as_another_thread_forked_is_anothers_by_the_next_fork() {
    let rings = Rings::new();
    rings.scene.compile("again", &format!("{BEGINS}{AGAIN}"));
    for busy in ["", "busy"] {
        let line = format!("exec timeout 150 {{r}} {{f}}/again {busy}");
        assert_eq!(rings.says("web", &line), "1 0 0\n", "{busy}");
    }
}

/// What a process that is being forked may have is closed, and other things come and go at its number: the kernel has copied the
/// numbers by then, and waits with the memory for a thread that gives much of it back.
const UNDER: &str = r#"
#include <sys/mman.h>
static pthread_barrier_t three;
static void *leaves(void *none) {
    for (int n = 0; n < 20; n++) {
        size_t much = 128 << 20;
        char *all = mmap(0, much, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(all, much, MADV_NOHUGEPAGE);
        memset(all, 1, much);
        pthread_barrier_wait(&three);
        munmap(all, much);
        pthread_barrier_wait(&three);
    }
    return none;
}
static void *forks(void *none) {
    int wrong = 0;
    for (int n = 0; n < 20; n++) {
        pthread_barrier_wait(&three);
        // The kernel copies the numbers, and waits with the memory for who leaves much of it.
        usleep(500);
        pid_t child = fork();
        if (!child) {
            char got[8192];
            int came = recv(number, got, sizeof got, MSG_DONTWAIT | MSG_PEEK);
            while (came-- > 0) if (got[came] != 'x') _exit(9);
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        wrong += status != 0;
        pthread_barrier_wait(&three);
    }
    printf("%d\n", wrong);
    return none;
}
int main(void) {
    pthread_t one, other;
    int c, same = 0;
    begins();
    pthread_barrier_init(&three, 0, 3);
    pthread_create(&one, 0, leaves, 0);
    pthread_create(&other, 0, forks, 0);
    for (int n = 0; n < 20; n++) {
        pair(&number, &c);
        send(c, some, 5000, 0);
        int kept = dup(number);
        pthread_barrier_wait(&three);
        usleep(1500);
        for (int k = 0; k < 3; k++) {
            close(number);
            same += (k & 1 ? dup(0) : socket(AF_INET, SOCK_STREAM, 0)) == number;
        }
        pthread_barrier_wait(&three);
        close(number);
        close(kept);
        close(c);
    }
    pthread_join(other, 0);
    printf("%d\n", same > 0);
    exit(0);
}
"#;

#[test]
fn whatever_comes_and_goes_at_a_number_a_child_that_is_being_forked_reads_no_others_bytes() {
    let rings = Rings::new();
    rings.scene.compile("under", &format!("{BEGINS}{UNDER}"));
    assert_eq!(
        rings.says("web", "exec timeout 150 {r} {f}/under"),
        "0\n1\n"
    );
    assert!(rings.by_ring("under")[1] > 0, "no ring");
}

#[test]
fn a_child_that_is_forked_meanwhile_reads_no_others_bytes_and_ends() {
    let rings = Rings::new();
    rings.scene.compile("forked", &format!("{BEGINS}{FORKED}"));
    assert_eq!(
        rings.says("web", "exec timeout 150 {r} {f}/forked"),
        "0\n0\n0\n"
    );
    assert!(rings.by_ring("forked")[1] > 0, "no ring");
}
