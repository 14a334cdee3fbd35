// Threads that have numbers of their own of one connection, as one of these is handed on: `numbers ADDRESS`. A line for each.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
static struct sockaddr_in to;
static int listener, fd, peer, other, set;
static char some[1 << 16];
static volatile int begins, ends, failed;
static volatile unsigned armed;
static void move(int from, int at) {
    for (int n = 0; n < 65536;) n += send(from, some, 65536 - n, 0);
    for (int n = 0; n < 65536;) n += recv(at, some, 65536 - n, 0);
}
// By a ring at the end, and by two numbers.
static void made(void) {
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (void *)&to, sizeof to)) exit(1);
    peer = accept(listener, 0, 0);
    for (int k = 0; k < 6; k++) { move(fd, peer); move(peer, fd); }
    other = dup(fd);
}
static void handed_on(int one) {
    int pair[2];
    struct iovec part = {"x", 1};
    char control[CMSG_SPACE(sizeof one)];
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof one)};
    memcpy(CMSG_DATA(head), &one, sizeof one);
    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair);
    if (sendmsg(pair[0], &message, 0) != 1) exit(2);
    close(pair[0]);
    close(pair[1]);
}
// Its number is a file's by then.
static void *opens(void *after) {
    struct timespec begun, now;
    while (!begins) {}
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begun.tv_sec) * 1000000 + (now.tv_nsec - begun.tv_nsec) / 1000 < (long)after);
    close(other);
    other = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    return 0;
}
static void *arms(void *none) {
    while (!ends) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u32 = ++armed};
        failed |= epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) != 0;
    }
    return none;
}
int main(int count, char **words) {
    if (count < 2) return 2;
    pthread_t thread;
    struct stat is;
    to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(7000)};
    inet_pton(AF_INET, words[1], &to.sin_addr);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (void *)&to, sizeof to) || listen(listener, 9)) return 1;
    // Much is watched, of what is permitted: to look through it takes a moment.
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    set = epoll_create1(EPOLL_CLOEXEC);
    for (int k = 0; k < 800; k++) {
        struct epoll_event event = {.events = EPOLLIN};
        int one = eventfd(0, EFD_CLOEXEC), high = fcntl(one, F_DUPFD_CLOEXEC, 600);
        close(one);
        if (high < 0) break;
        if (epoll_ctl(set, EPOLL_CTL_ADD, high, &event)) return 3;
    }
    int wrong = 0, lost = 0, refused = 0;
    for (long k = 0; k < 120; k++) {
        made();
        begins = 0;
        pthread_create(&thread, 0, opens, (void *)(k * 40));
        usleep(200);
        begins = 1;
        handed_on(fd);
        pthread_join(thread, 0);
        wrong += fstat(other, &is) || !S_ISREG(is.st_mode);
        close(other);
        close(fd);
        close(peer);
    }
    for (int k = 0; k < 60; k++) {
        made();
        struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT};
        epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
        // A busy host may not let the other thread begin.
        ends = failed = armed = 0;
        pthread_create(&thread, 0, arms, 0);
        usleep(1000);
        handed_on(other);
        ends = 1;
        pthread_join(thread, 0);
        refused += failed;
        send(peer, "hello", 5, 0);
        // What was armed last holds.
        lost += epoll_wait(set, &event, 1, 5000) != 1 || event.data.u32 != armed;
        close(fd);
        close(other);
        close(peer);
    }
    printf("a file's: %d; arming: %d refused, %d lost\n", wrong, refused, lost);
    // Nothing takes the place of a number beyond what is permitted by now.
    made();
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 300);
    limit.rlim_cur = 200;
    setrlimit(RLIMIT_NOFILE, &limit);
    int n = fcntl(high, F_SETFD, 0), error = errno;
    memset(some, 'x', sizeof some);
    move(peer, high);
    printf("beyond: %s, %.3s\n", n ? strerrorname_np(error) : "0", some);
    return 0;
}
