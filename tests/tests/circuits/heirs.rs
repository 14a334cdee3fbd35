//! What a process that dies or stands still in the midst of a call leaves to those that have its sockets too.

use crate::preload::Rings;

/// The parent's connection is a ring's by then. A child begins to copy into it, or out of it, by way of memory whose second
/// half is not there: at that it ends, goes to sleep, or is another program from then on. Nobody asks how it ended meanwhile.
const HEIRS: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
enum { HALF = 16384, MOST = 1 << 20 };
static char some[MOST], came[MOST];
static int fd, c;
static void move(int from, int at) {
    for (int n = 0; n < 65536;) n += send(from, some, 65536 - n, 0);
    for (int n = 0; n < 65536;) n += recv(at, came, 65536 - n, 0);
}
static void hears(int signal) { (void)signal; }
static int told;
static void sleeps(int signal) { (void)signal; syscall(SYS_write, told, "b", 1); for (;;) pause(); }
static void executes(int signal) { (void)signal; execlp("sleep", "sleep", "60", (char *)0); _exit(8); }
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
int main(int n, char **words) {
    int writes = !strcmp(words[2], "writes"), stands = !strcmp(words[3], "stands"), goes_on = !strcmp(words[3], "executes");
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7000) };
    inet_pton(AF_INET, words[1], &to.sin_addr);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&to, sizeof to) || listen(listener, 9)) return 1;
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (void *)&to, sizeof to)) return 1;
    c = accept(listener, 0, 0);
    for (int k = 0; k < 16; k++) { move(fd, c); move(c, fd); }
    char *half = mmap(0, 2 * HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(half + HALF, HALF, PROT_NONE);
    for (int k = 0; k < HALF; k++) half[k] = 'h';
    for (int k = 0; k < 2 * HALF; k++) some[k] = 'a' + k % 23;
    if (!writes && send(c, some, 2 * HALF, 0) != 2 * HALF) return 1;
    int says[2];
    char byte;
    pipe2(says, O_CLOEXEC);
    pid_t child = fork();
    if (!child) {
        close(says[0]);
        // It tells as it stands still; or its parent waits for the end of it.
        told = says[1];
        if (stands) signal(SIGSEGV, sleeps);
        if (goes_on) signal(SIGSEGV, executes);
        writes ? send(fd, half, 2 * HALF, 0) : recv(fd, half, 2 * HALF, 0);
        _exit(9);
    }
    close(says[1]);
    read(says[0], &byte, 1);
    struct rlimit many, few;
    getrlimit(RLIMIT_NOFILE, &many);
    few = (struct rlimit){ 64, many.rlim_max };
    if (n > 4) {
        // No descriptor is to be had meanwhile.
        setrlimit(RLIMIT_NOFILE, &few);
        while (dup(2) >= 0) {}
    }
    double begun = now();
    if (stands) {
        // By its time, by a signal, and at once.
        struct timeval limit = { 0, 400000 }, none = { 0, 0 };
        int which = writes ? SO_SNDTIMEO : SO_RCVTIMEO;
        for (int k = 0; k < 3; k++) {
            setsockopt(fd, SOL_SOCKET, which, k ? &none : &limit, sizeof limit);
            struct sigaction by = { .sa_handler = hears };
            sigaction(SIGALRM, &by, 0);
            // Again and again: one that comes between two of its looks at the holder ends no wait.
            struct itimerval in = { { 0, 400000 }, { 0, 400000 } }, never = { 0 };
            if (k == 1) setitimer(ITIMER_REAL, &in, 0);
            double begun = now();
            int flags = k == 2 ? MSG_DONTWAIT : 0;
            int got = writes ? send(fd, "hello", 5, flags) : recv(fd, came, 5, flags);
            int error = errno;
            setitimer(ITIMER_REAL, &never, 0);
            int late = now() - begun > 3, early = k < 2 && now() - begun < 0.35;
            printf("%d %s%s%s\n", got, strerrorname_np(error), late ? " late" : "", early ? " early" : "");
        }
        kill(child, SIGKILL);
    }
    struct timeval limit = { 10, 0 };
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(c, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (writes) {
        // What the child had written was shown to nobody.
        int sent = send(fd, "hello", 5, 0), error = errno;
        int got = recv(c, came, sizeof came, 0);
        printf("%d %d %.5s", sent, got, got > 0 ? came : strerrorname_np(error));
        // And after a megabyte more.
        int wrong = 0;
        for (int k = 0; k < 16; k++) move(fd, c);
        for (int at = 0; at < 4 * HALF; at += 4096) wrong |= send(fd, some + at % HALF, 4096, 0) != 4096;
        for (int at = 0; at < 4 * HALF; at += 4096) {
            for (int n = 0; n < 4096;) n += recv(c, came + n, 4096 - n, 0);
            wrong |= memcmp(came, some + at % HALF, 4096);
        }
        printf(" %s\n", wrong ? "wrong" : "right");
    } else {
        // The child had none of it.
        int all = 0;
        while (all < 2 * HALF) {
            int got = recv(fd, came + all, sizeof came - all, 0);
            if (got <= 0) { printf("%s\n", strerrorname_np(errno)); return 1; }
            all += got;
        }
        printf("%d %s\n", all, memcmp(some, came, 2 * HALF) ? "wrong" : "right");
    }
    printf("%s\n", now() - begun > 9 ? "late" : "soon");
    setrlimit(RLIMIT_NOFILE, &many);
    int how;
    if (goes_on) kill(child, SIGKILL);
    waitpid(child, &how, 0);
    printf("%d\n", WIFSIGNALED(how) ? WTERMSIG(how) : -1);
    return 0;
}
"#;

fn said(how: &str) -> String {
    let rings = Rings::new();
    rings.scene.compile("heirs", HEIRS);
    let said = rings.says("web", &format!("exec {{r}} {{f}}/heirs 10.1.1.10 {how}"));
    let [read, written] = rings.by_ring("heirs");
    assert!(read > 1_000_000 && written > 1_000_000, "{read} {written}");
    said
}

#[test]
fn who_dies_as_it_writes_leaves_the_connection_as_it_was() {
    assert_eq!(said("writes dies"), "5 5 hello right\nsoon\n11\n");
}

#[test]
fn who_dies_as_it_reads_leaves_what_it_read() {
    assert_eq!(said("reads dies"), "32768 right\nsoon\n11\n");
}

#[test]
fn that_a_child_died_is_seen_without_a_descriptor_to_be_had() {
    assert_eq!(said("writes dies poor"), "5 5 hello right\nsoon\n11\n");
    assert_eq!(said("reads dies poor"), "32768 right\nsoon\n11\n");
}

#[test]
fn who_is_another_program_in_the_midst_of_a_call_leaves_the_connection_as_it_was() {
    assert_eq!(said("writes executes"), "5 5 hello right\nsoon\n9\n");
    assert_eq!(said("reads executes"), "32768 right\nsoon\n9\n");
}

#[test]
fn who_stands_still_as_it_writes_keeps_others_no_longer_than_they_wait() {
    let each = "-1 EAGAIN\n-1 EINTR\n-1 EAGAIN\n";
    let after = "5 5 hello right\nsoon\n9\n";
    assert_eq!(said("writes stands"), format!("{each}{after}"));
}

#[test]
fn who_stands_still_as_it_reads_keeps_others_no_longer_than_they_wait() {
    let each = "-1 EAGAIN\n-1 EINTR\n-1 EAGAIN\n";
    assert_eq!(
        said("reads stands"),
        format!("{each}32768 right\nsoon\n9\n")
    );
}
