// What calls on a connection come to once a ring may be in use: `manners serve|ask ADDRESS PORT`. The
// client prints a line for each; with and without the library they are the same.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct sockaddr_in address;
static char large[1 << 20];
static volatile int signals;

static const char *said(ssize_t n) {
    static char text[2][40];
    static int turn;
    char *to = text[turn ^= 1];
    if (n >= 0) snprintf(to, 40, "%zd", n);
    else snprintf(to, 40, "%s", strerrorname_np(errno));
    return to;
}
static void whole(int fd, size_t n, int writes) {
    while (n > 0) {
        size_t some = n < 65536 ? n : 65536;
        ssize_t done = writes ? write(fd, large, some) : read(fd, large, some);
        if (done <= 0) {
            fprintf(stderr, "%s ends with %zu to go: %s\n", writes ? "writing" : "reading", n, said(done));
            exit(1);
        }
        n -= (size_t)done;
    }
}
// Half a megabyte each way, twice: both sides have a ring by then if both may.
static void warm(int fd, int begins) {
    for (int turn = 0; turn < 4; turn++) whole(fd, 1 << 19, (turn + begins) & 1);
}
static void hears(int number) { signals += number == SIGALRM || number == SIGPIPE; }
static void on(int number, int flags) {
    struct sigaction action = {.sa_handler = hears, .sa_flags = flags};
    sigaction(number, &action, NULL);
}
static void alarm_ms(int ms) {
    struct itimerval when = {.it_value = {ms / 1000, ms % 1000 * 1000}};
    setitimer(ITIMER_REAL, &when, NULL);
}
// Again and again: one that comes before a call ends no wait.
static void alarms_ms(int ms) {
    struct timeval each = {ms / 1000, ms % 1000 * 1000};
    struct itimerval when = {each, each};
    setitimer(ITIMER_REAL, &when, NULL);
}
static const char *after(struct timespec *from) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t ms = (now.tv_sec - from->tv_sec) * 1000 + (now.tv_nsec - from->tv_nsec) / 1000000;
    return ms < 90 ? "at once" : "in time";
}
static void begin(struct timespec *at) { clock_gettime(CLOCK_MONOTONIC, at); }
static int events(int fd) {
    struct pollfd one = {fd, POLLIN | POLLOUT | POLLRDHUP, 0};
    poll(&one, 1, 50);
    return one.revents;
}
static int asked(const char *what) {
    static char name[80];
    snprintf(name, sizeof name, "%-24s", what);
    printf("%s ", name);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (void *)&address, sizeof address)) printf("no connection: %s\n", said(-1));
    char wish[24] = {0};
    strncpy(wish, what, 23);
    if (write(fd, wish, 24) != 24) printf("no wish\n");
    warm(fd, 1);
    return fd;
}
// Several numbers of one connection, which go on as one: what they are for takes all from the ring.
static void copies(void) {
    // By two descriptors: one for each direction, each with buffers of its own.
    int fd = asked("echo");
    int other = dup(fd);
    struct timeval limit = {20, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    FILE *reads = fdopen(fd, "r"), *writes = fdopen(other, "w");
    size_t back = 0;
    for (int turn = 0; turn < 64; turn++) {
        memset(large, 'a' + turn % 23, 4096);
        fwrite(large, 1, 4096, writes);
        fflush(writes);
        back += fread(large + 4096, 1, 4096, reads);
        if (memcmp(large, large + 4096, 4096)) break;
    }
    printf("files: %zu\n", back);
    fclose(reads);
    fclose(writes);

    // At the lowest number that is free, which an executed program takes for its input.
    fd = asked("echo");
    printf("copied: ");
    fflush(stdout);
    if (fork() == 0) {
        close(0);
        int at = dup(fd);
        if (at == 0) close(0);
        fprintf(stderr, "to %d and to %d, ", at, fcntl(fd, F_DUPFD, 0));
        write(fd, "a line\n", 7);
        execlp("sh", "sh", "-c", "read line; echo \"$line\" >&2", NULL);
    }
    close(fd);
    wait(NULL);

    // By the number that it has in this process.
    fd = asked("echo");
    int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    int copy = (int)syscall(SYS_pidfd_getfd, self, fd, 0);
    write(copy, "taken", 5);
    char some[9];
    ssize_t n = recv(copy, some, 5, MSG_WAITALL);
    printf("taken: %s %.5s\n", said(n), some);
    close(copy);
    close(self);

    // By calls of no function's: by another number, watched, not blocking, passed on.
    close(fd);
    fd = asked("echo");
    int raw = (int)syscall(SYS_fcntl, fd, F_DUPFD, 0);
    struct pollfd one = {fd, POLLIN, 0};
    write(fd, "several", 7);
    printf("raw: %ld", syscall(SYS_poll, &one, 1, 5000));
    n = recv(raw, some, 7, MSG_WAITALL | MSG_PEEK);
    n = recv(fd, some, 2, MSG_WAITALL);
    printf(" %s %ld", said(n), syscall(SYS_poll, &one, 1, 5000));
    n = recv(raw, some, 5, MSG_WAITALL);
    printf(" %s %.5s", said(n), some);
    syscall(SYS_fcntl, fd, F_SETFL, O_NONBLOCK);
    n = recv(fd, some, 1, 0);
    printf(" %s", said(n));
    syscall(SYS_fcntl, fd, F_SETFL, 0);
    struct timeval soon = {0, 1000};
    syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    n = recv(fd, some, 1, 0);
    printf(" %s", said(n));
    close(raw);
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    struct iovec text = {"x", 1};
    char rights[CMSG_SPACE(sizeof fd)];
    struct msghdr passing = {.msg_iov = &text, .msg_iovlen = 1, .msg_control = rights, .msg_controllen = sizeof rights};
    *CMSG_FIRSTHDR(&passing) = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&passing)), &fd, sizeof fd);
    syscall(SYS_sendmsg, pair[0], &passing, 0);
    close(fd);
    recvmsg(pair[1], &passing, 0);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&passing)), sizeof fd);
    soon.tv_sec = 20;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    write(fd, "passed", 6);
    n = recv(fd, some, 6, MSG_WAITALL);
    printf(" %s %.6s\n", said(n), some);
    close(pair[0]);
    close(pair[1]);

    // What a message says beside its bytes; that it closes on exec.
    int class = 16;
    struct iovec part = {"x", 1};
    char control[CMSG_SPACE(sizeof class)];
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_level = IPPROTO_IP, .cmsg_type = IP_TOS, .cmsg_len = CMSG_LEN(sizeof class)};
    memcpy(CMSG_DATA(head), &class, sizeof class);
    close(fd);
    fd = asked("echo");
    n = sendmsg(fd, &message, 0);
    int before = fcntl(fd, F_GETFD);
    close_range((unsigned)fd, (unsigned)fd, CLOSE_RANGE_CLOEXEC);
    printf("beside: %s %d %d\n", said(n), before, fcntl(fd, F_GETFD));
    close(fd);
}
static void asks(void) {
    struct timespec from;
    struct timeval limit = {0, 100000}, none = {0, 0};
    char byte, some[100];
    signal(SIGPIPE, SIG_IGN);

    int fd = asked("echo");
    write(fd, "hello", 5);
    ssize_t n = recv(fd, some, 2, MSG_PEEK);
    printf("%s %.2s ", said(n), some);
    n = recv(fd, some, 5, MSG_WAITALL);
    printf("%s %.5s", said(n), some);
    n = recv(fd, some, 5, MSG_DONTWAIT);
    printf(" %s", said(n));
    printf(" %s %s %s\n", said(read(fd, some, 0)), said(write(fd, some, 0)), events(fd) == POLLOUT ? "out" : "?");

    printf("receive time: ");
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    begin(&from);
    n = read(fd, some, 9);
    printf("%s %s\n", said(n), after(&from));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);

    printf("interrupted read: ");
    on(SIGALRM, 0);
    alarms_ms(100);
    begin(&from);
    n = read(fd, some, 9);
    alarms_ms(0);
    signals = 0;
    printf("%s %s\n", said(n), after(&from));
    printf("restarted read: ");
    on(SIGALRM, SA_RESTART);
    alarm_ms(100);
    if (fork() == 0) {
        usleep(200000);
        write(fd, "late", 4);
        _exit(0);
    }
    n = read(fd, some, 9);
    printf("%s %d\n", said(n), signals);
    wait(NULL);

    printf("copies: ");
    int copy = dup(fd), high = fcntl(fd, F_DUPFD, 100), other = dup2(fd, 50);
    close(fd);
    // What fails changes nothing.
    printf("%s ", said(dup2(-1, other)));
    printf("%s ", said(dup3(copy, other, 77)));
    printf("%s ", said(listen(other, 5)));
    printf("%s ", said(close_range(60, 50, 0)));
    printf("%s ", said(close_range(50, 50, 64)));
    n = write(copy, "one", 3);
    printf("%s ", said(n));
    close(copy);
    n = write(high, "two", 3);
    printf("%s ", said(n));
    close(high);
    n = recv(other, some, 6, MSG_WAITALL);
    printf("%s %.6s %s\n", said(n), some, said(write(high, some, 1)));
    printf("flags: %d ", fcntl(other, F_GETFD));
    fcntl(other, F_SETFD, FD_CLOEXEC);
    printf("%d ", fcntl(other, F_GETFD));
    int flags = fcntl(other, F_GETFL);
    fcntl(other, F_SETFL, flags | O_NONBLOCK);
    n = read(other, some, 1);
    printf("%s ", said(n));
    int zero = 0, there = -1;
    ioctl(other, FIONBIO, &zero);
    write(other, "123456789", 9);
    struct pollfd one = {other, POLLIN, 0};
    poll(&one, 1, -1);
    usleep(50000);
    n = ioctl(other, FIONREAD, &there);
    printf("%s %d\n", said(n), there);
    read(other, some, 99);

    printf("half closed: ");
    write(other, "the end", 7);
    n = shutdown(other, SHUT_WR);
    printf("%s ", said(n));
    n = recv(other, some, 99, MSG_WAITALL);
    printf("%s %.7s ", said(n), some);
    n = read(other, some, 9);
    printf("%s ", said(n));
    n = write(other, some, 9);
    printf("%s %d\n", said(n), (events(other) & POLLIN) != 0);
    close(other);

    fd = asked("close");
    n = recv(fd, some, 99, MSG_WAITALL);
    printf("%s %.5s ", said(n), some);
    for (int turn = 0; turn < 3000 && n >= 0; turn++) n = write(fd, large, 10000);
    printf("%s ", said(n));
    on(SIGPIPE, 0);
    signals = 0;
    n = write(fd, large, 10000);
    printf("%s %d ", said(n), signals);
    n = send(fd, large, 10000, MSG_NOSIGNAL);
    printf("%s %d\n", said(n), signals);
    signal(SIGPIPE, SIG_IGN);
    close(fd);

    fd = asked("sleep");
    printf("send time: ");
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    begin(&from);
    for (n = 0; n >= 0;) n = write(fd, large, 100000);
    printf("%s %s ", said(n), after(&from));
    n = send(fd, large, 10, MSG_DONTWAIT);
    printf("%s %s\n", said(n), events(fd) & POLLOUT ? "out" : "not out");
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none);
    printf("interrupted write: ");
    on(SIGALRM, 0);
    alarms_ms(100);
    begin(&from);
    for (n = 0; n >= 0;) n = write(fd, large, 100000);
    alarms_ms(0);
    printf("%s %s\n", said(n), after(&from));
    close(fd);

    fd = asked("echo");
    printf("stdio: ");
    FILE *file = fdopen(fd, "r+");
    setvbuf(file, NULL, _IOFBF, 4096);
    fputs("a line\n", file);
    fflush(file);
    printf("%s", fgets(some, 99, file) ? some : "nothing\n");
    printf("dprintf: ");
    dprintf(fileno(file), "%s %d %.1f\n", "another", 2, 3.5);
    printf("%s", fgets(some, 99, file) ? some : "nothing\n");
    shutdown(fileno(file), SHUT_WR);
    printf("end: %d\n", fgetc(file));
    fclose(file);

    fd = asked("echo");
    printf("dprintf alone: ");
    n = dprintf(fd, "%s %d %.1f %s %d %d %d\n", "line", 1, 2.5, "three", 4, 5, 6);
    printf("%s ", said(n));
    n = recv(fd, some, (size_t)n, MSG_WAITALL);
    printf("%s %.*s", said(n), (int)n, some);
    close(fd);

    fd = asked("echo");
    printf("passed on: ");
    fflush(stdout);
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    struct iovec part = {"x", 1};
    char control[CMSG_SPACE(sizeof fd)];
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    n = sendmsg(pair[0], &message, 0);
    printf("%s ", said(n));
    part.iov_base = &byte;
    n = recvmsg(pair[1], &message, 0);
    memcpy(&copy, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof copy);
    close(fd);
    write(copy, "handed", 6);
    n = recv(copy, some, 6, MSG_WAITALL);
    printf("%s %.6s\n", said(n), some);
    close(copy);

    fd = asked("echo");
    printf("executed: ");
    fflush(stdout);
    if (fork() == 0) {
        dup2(fd, 0);
        dup2(fd, 1);
        close(fd);
        execlp("sh", "sh", "-c", "echo by a shell; read line; echo \"shell: $line\" >&2", NULL);
    }
    close(fd);
    wait(NULL);

    copies();

    fd = asked("echo");
    printf("spliced: ");
    int pipes[2];
    if (pipe(pipes)) exit(1);
    write(pipes[1], "through", 7);
    n = splice(pipes[0], NULL, fd, NULL, 7, 0);
    printf("%s ", said(n));
    n = splice(fd, NULL, pipes[1], NULL, 7, 0);
    printf("%s ", said(n));
    n = read(pipes[0], some, 99);
    printf("%s %.7s\n", said(n), some);
    close(fd);
}
static void serves(int fd) {
    char wish[24];
    if (recv(fd, wish, 24, MSG_WAITALL) != 24) exit(1);
    warm(fd, 0);
    if (!strcmp(wish, "echo")) {
        ssize_t n;
        while ((n = read(fd, large, sizeof large)) > 0)
            if (write(fd, large, (size_t)n) != n) break;
    } else if (!strcmp(wish, "close")) {
        write(fd, "so on", 5);
    } else {
        sleep(30);
    }
    exit(0);
}
int main(int count, char **words) {
    if (count < 4) return 2;
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[3]))};
    inet_pton(AF_INET, words[2], &address.sin_addr);
    if (!strcmp(words[1], "ask")) {
        alarm(0);
        asks();
        return 0;
    }
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 5)) return 1;
    puts("serving");
    fflush(stdout);
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        // Each in a process of its own, as many servers do.
        if (fork() == 0) {
            close(listener);
            serves(fd);
        }
        close(fd);
    }
}
