// Both sides send so many bytes and read as many, at sizes and by calls that are drawn by lot, and
// check each. `exchange serve|ask ADDRESS PORT WAY MEGABYTES SEED`, of which the megabytes may be
// 0.000001, and WAY is how a side waits:
//   block   two threads, calls that block
//   poll    one thread, poll, calls that do not block
//   select  the same by select
//   level   the same by epoll
//   edge    epoll edge-triggered: goes on after less than it asked for only when it is told to
//   shared  blocks: a forked process writes, this one reads
// Prints "ok". Sending ends by shutdown, and reading by that of the other side.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 300000
static int fd, source;
static int64_t all, sent, came;
static unsigned char out_side, in_side;
static unsigned seeds[2];

static void fails(const char *what, int64_t at) {
    fprintf(stderr, "%s at %lld: %s\n", what, (long long)at, strerror(errno));
    exit(1);
}
// Of a period that is no power of two: a byte that is doubled or lost is seen.
static unsigned char byte_at(int64_t at, unsigned char side) {
    return (unsigned char)((at % 65521) * 31 + (at >> 16) + side);
}
static unsigned draw(int which) { return (unsigned)rand_r(&seeds[which]); }
static size_t size_of(int which) {
    unsigned kind = draw(which) % 10;
    if (kind == 0) return 1 + draw(which) % 40;
    if (kind < 4) return 1 + draw(which) % 5000;
    return 1 + draw(which) % MOST;
}
static void check(const unsigned char *bytes, size_t n, int64_t from) {
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != byte_at(from + (int64_t)i, in_side)) {
            errno = 0;
            fails("a wrong byte", from + (int64_t)i);
        }
}
// Some bytes out; -1: it would block. `*asked`: how many it tried.
static ssize_t put(size_t *asked) {
    static unsigned char bytes[MOST];
    size_t n = size_of(0);
    if ((int64_t)n > all - sent) n = (size_t)(all - sent);
    *asked = n;
    for (size_t i = 0; i < n; i++) bytes[i] = byte_at(sent + (int64_t)i, out_side);
    struct iovec parts[3] = {{bytes, n / 3}, {bytes + n / 3, 0}, {bytes + n / 3, n - n / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    ssize_t done;
    switch (draw(0) % 6) {
    case 0: done = send(fd, bytes, n, MSG_NOSIGNAL); break;
    case 1: done = writev(fd, parts, 3); break;
    case 2: done = sendmsg(fd, &message, 0); break;
    case 3: done = sendto(fd, bytes, n, 0, NULL, 0); break;
    case 4:
        // What is sent so may not be written over.
        if (pwrite(source, bytes, n, sent) != (ssize_t)n) fails("pwrite", sent);
        off_t from = sent;
        done = sendfile(fd, source, &from, n);
        if (done > 0 && from != sent + done) fails("sendfile's offset", sent);
        break;
    default: done = write(fd, bytes, n);
    }
    if (done < 0 && errno != EAGAIN) fails("write", sent);
    if (done > 0) sent += done;
    return done;
}
// Some bytes in; 0: the end; -1: it would block.
static ssize_t get(size_t *asked, int blocks) {
    static unsigned char bytes[MOST], peeked[MOST];
    size_t n = size_of(1);
    *asked = n;
    struct iovec parts[2] = {{bytes, n / 2}, {bytes + n / 2, n - n / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t done;
    switch (draw(1) % 7) {
    case 0: done = recv(fd, bytes, n, 0); break;
    case 1: done = readv(fd, parts, 2); break;
    case 2: done = recvmsg(fd, &message, 0); break;
    case 3: done = recvfrom(fd, bytes, n, 0, NULL, NULL); break;
    case 4: {
        ssize_t there = recv(fd, peeked, n, MSG_PEEK);
        if (there <= 0) {
            if (there < 0 && errno != EAGAIN) fails("peek", came);
            done = there;
            break;
        }
        check(peeked, (size_t)there, came);
        done = recv(fd, bytes, n, 0);
        if (done < there) fails("less came than was peeked at", came);
        break;
    }
    case 5: {
        int there = 0;
        if (ioctl(fd, FIONREAD, &there)) fails("FIONREAD", came);
        if (there > 0 && (size_t)there < n) *asked = n = (size_t)there;
        done = recv(fd, bytes, n, there > 0 ? MSG_WAITALL : 0);
        // Of more than that comes one byte less, where no edge can be given.
        if (there > 1 && done != (ssize_t)n && done < there - 1) fails("less came than was there", came);
        break;
    }
    default: done = read(fd, bytes, n);
    }
    if (done < 0 && (errno != EAGAIN || blocks)) fails("read", came);
    if (done > 0) {
        check(bytes, (size_t)done, came);
        came += done;
    }
    if (done == 0 && came != all) fails("an early end", came);
    return done;
}
static void *writes(void *nothing) {
    size_t asked;
    while (sent < all)
        if (put(&asked) != (ssize_t)asked) fails("less was written than asked for", sent);
    if (shutdown(fd, SHUT_WR)) fails("shutdown", sent);
    return nothing;
}
static void reads(void) {
    size_t asked;
    while (get(&asked, 1) > 0) {}
}
static void one_thread(const char *way) {
    int edge = !strcmp(way, "edge"), level = !strcmp(way, "level"), over = 0;
    int can_read = 0, can_write = 0, ended = 0, at = -1;
    size_t asked;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | (edge ? EPOLLET : 0)};
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    if (edge || level) {
        at = epoll_create1(0);
        epoll_ctl(at, EPOLL_CTL_ADD, fd, &event);
    }
    while (!over || sent < all) {
        int more_out = sent < all;
        if (edge || level) {
            if (level) {
                event.events = (over ? 0 : EPOLLIN) | (more_out ? EPOLLOUT : 0);
                epoll_ctl(at, EPOLL_CTL_MOD, fd, &event);
            }
            // Who knows of more to do asks, and does not wait.
            int known = edge && ((can_read && !over) || (can_write && more_out));
            struct epoll_event happened = {0};
            int n = epoll_wait(at, &happened, 1, known ? 0 : 20000);
            if (n == 0 && !known) fails("nothing happened", came);
            if (n > 0) {
                can_read |= (happened.events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
                can_write |= (happened.events & (EPOLLOUT | EPOLLERR)) != 0;
                ended |= (happened.events & EPOLLRDHUP) != 0;
            }
        } else if (!strcmp(way, "poll")) {
            struct pollfd one = {fd, (short)((over ? 0 : POLLIN) | (more_out ? POLLOUT : 0)), 0};
            if (poll(&one, 1, 20000) < 1) fails("nothing happened", came);
            can_read = (one.revents & (POLLIN | POLLHUP)) != 0;
            can_write = (one.revents & POLLOUT) != 0;
        } else {
            fd_set in, out;
            FD_ZERO(&in);
            FD_ZERO(&out);
            if (!over) FD_SET(fd, &in);
            if (more_out) FD_SET(fd, &out);
            struct timeval limit = {20, 0};
            if (select(fd + 1, &in, &out, NULL, &limit) < 1) fails("nothing happened", came);
            can_read = FD_ISSET(fd, &in);
            can_write = FD_ISSET(fd, &out);
        }
        if (can_read && !over) {
            ssize_t n = get(&asked, 0);
            over = n == 0;
            // The end has no edge of its own.
            if (n < (ssize_t)asked && !ended) can_read = 0;
        }
        if (can_write && sent < all) {
            ssize_t n = put(&asked);
            if (n < (ssize_t)asked) can_write = 0;
            if (sent == all && shutdown(fd, SHUT_WR)) fails("shutdown", sent);
        }
    }
}
int main(int count, char **words) {
    if (count < 7) return 2;
    int serves = !strcmp(words[1], "serve");
    const char *way = words[4];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[3]))};
    inet_pton(AF_INET, words[2], &address.sin_addr);
    all = (int64_t)(atof(words[5]) * 1e6 + 0.5);
    seeds[0] = (unsigned)atoi(words[6]) * 2 + (unsigned)serves;
    seeds[1] = seeds[0] * 7 + 1;
    out_side = serves ? 3 : 77;
    in_side = serves ? 77 : 3;
    alarm(110);
    source = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (serves) {
        int one = 1, listener = fd;
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(listener, (void *)&address, sizeof address) || listen(listener, 5)) fails("bind", 0);
        puts("serving");
        fflush(stdout);
        fd = accept(listener, NULL, NULL);
        close(listener);
    } else if (connect(fd, (void *)&address, sizeof address)) {
        fails("connect", 0);
    }
    if (fd < 0) fails("accept", 0);
    if (!strcmp(way, "block")) {
        pthread_t other;
        pthread_create(&other, NULL, writes, NULL);
        reads();
        pthread_join(other, NULL);
    } else if (!strcmp(way, "shared")) {
        // Half of it in one process, in turns that keep the other side reading; then a child
        // goes on writing, and this one reading, by the same ring.
        int64_t whole = all;
        size_t asked;
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        while (sent < whole / 2 || came < whole / 2) {
            struct pollfd one = {fd, (short)(POLLIN | (sent < whole / 2 ? POLLOUT : 0)), 0};
            if (poll(&one, 1, 20000) < 1) fails("nothing happened", came);
            if (one.revents & POLLIN && get(&asked, 0) == 0) break;
            if (one.revents & POLLOUT && sent < whole / 2) put(&asked);
        }
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
        pid_t child = fork();
        if (child == 0) {
            writes(NULL);
            _exit(0);
        }
        reads();
        int status = 0;
        waitpid(child, &status, 0);
        if (status) fails("the child", sent);
    } else {
        one_thread(way);
    }
    close(fd);
    puts("ok");
    return 0;
}
