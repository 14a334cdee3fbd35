// What interrupts a call by a ring, or hinders the rest of it: `interrupted WHICH ADDRESS`.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
static struct sockaddr_in to;
static int listener, fd, peer;
static char some[1 << 16];
static volatile int ends;
static void move(int from, int at) {
    for (int n = 0; n < 65536;) n += send(from, some, 65536 - n, 0);
    for (int n = 0; n < 65536;) n += recv(at, some, 65536 - n, 0);
}
// By a ring at the end.
static void made(int *one, int *other) {
    *one = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(*one, (void *)&to, sizeof to)) exit(1);
    *other = accept(listener, 0, 0);
    for (int k = 0; k < 6; k++) { move(*one, *other); move(*other, *one); }
}
// From here on a handler of SIGTRAP comes behind each instruction.
static inline void steps(void) { __builtin_ia32_writeeflags_u64(__builtin_ia32_readeflags_u64() | 0x100); }
static inline void steps_no_more(void) { __builtin_ia32_writeeflags_u64(__builtin_ia32_readeflags_u64() & ~0x100ull); }
static void on_each(void (*handler)(int)) {
    struct sigaction by = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGTRAP, &by, 0);
}
static const char *said(long n) { return n < 0 ? strerrorname_np(errno) : "well"; }

static void copies(int signal) {
    int before = errno;
    close(dup(peer));
    errno = before;
}
static void *steps_through(void *none) {
    while (!ends) {
        steps();
        close(dup(peer));
        steps_no_more();
    }
    return none;
}
static void numbers(void) {
    pthread_t thread;
    int failed = 0;
    made(&fd, &peer);
    on_each(copies);
    pthread_create(&thread, 0, steps_through, 0);
    for (int k = 0; k < 40; k++) {
        int one, other;
        made(&one, &other);
        struct mmsghdr message = {0};
        failed += sendmmsg(other, &message, 1, MSG_NOSIGNAL) < 0;
        close(one);
        close(other);
    }
    ends = 1;
    pthread_join(thread, 0);
    printf("%d failed\n", failed);
}

static void parts(void) {
    const long half = 4096, all = 1300000;
    char *bad = mmap(0, 2 * half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static char much[1300000];
    // Behind what the ring has room for it goes by the socket.
    made(&fd, &peer);
    long sent = 0, n;
    while (sent < all && (n = send(fd, much + sent, all - sent, MSG_DONTWAIT)) > 0) sent += n;
    mprotect(bad + half, half, PROT_NONE);
    struct iovec pieces[] = {{much, 2 * half}, {bad, 2 * half}};
    n = writev(fd, pieces, 2);
    printf("written: %s, not all: %d\n", said(n), n < 4 * half);
    sent += n < 0 ? 0 : n;
    for (long came = 0; came < 1200000;) came += recv(peer, much, 1200000 - came < 4096 ? 1200000 - came : 4096, 0);
    pieces[0].iov_len = 100;
    pieces[1] = (struct iovec){bad + half, half};
    long came = readv(peer, pieces, 2);
    printf("read: %ld\n", came);
    came += 1200000;
    while ((n = recv(peer, much, sizeof much, MSG_DONTWAIT)) > 0) came += n;
    printf("all: %d, more: %s\n", came == sent, said(n));
}

int main(int count, char **words) {
    if (count < 3) return 2;
    to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(7000)};
    inet_pton(AF_INET, words[2], &to.sin_addr);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (void *)&to, sizeof to) || listen(listener, 9)) return 1;
    if (!strcmp(words[1], "numbers")) numbers();
    if (!strcmp(words[1], "parts")) parts();
    return 0;
}
