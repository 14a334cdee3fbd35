// Sends a file and bytes of memory by lot, and its peer checks each. `files serve ADDRESS PORT WAY MEGABYTES | ask ADDRESS PORT HOW`.
// Of who serves, WAY is
//   block    its calls block
//   poll     they do not: it polls
//   threads  they block, and it has another thread
//   limit    they block, no longer than ten seconds
//   gone     they block, and its peer goes away in the midst: each call that fails so is told by one signal
//   quiet    the same of calls that do not block
// Of who asks, HOW is how much of it is read in small pieces: `all`, or so many megabytes; or `goes` after one.
// Prints how much it read by calls that move files, and "ok".
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static int fd, source, signals;
static int64_t all, sent;
static unsigned seed = 7;

static void fails(const char *what, int64_t at) {
    fprintf(stderr, "%s at %lld: %s\n", what, (long long)at, strerror(errno));
    exit(1);
}
static unsigned char byte_at(int64_t at) { return (unsigned char)((at % 65521) * 31 + (at >> 16)); }
static void counts(int signal) { signals += signal == SIGPIPE; }
static void *rests(void *none) { pause(); return none; }
// Calls that read files, of all that this program did.
static long read_calls(void) {
    char text[1000];
    FILE *file = fopen("/proc/self/io", "r");
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return atol(strstr(text, "syscr:") + 6);
}
// Some of it, and of what lies behind its end, which is nothing.
static ssize_t put(const unsigned char *bytes, size_t *asked) {
    size_t n = rand_r(&seed) % 4 ? rand_r(&seed) % (2 << 20) + 1 : rand_r(&seed) % 5000 + 1;
    ssize_t done;
    int64_t left = all - sent;
    int by_memory = rand_r(&seed) % 4 == 0, by_offset = rand_r(&seed) % 2;
    if (by_memory && n > 100000) n = 100000;
    *asked = (int64_t)n < left ? n : (size_t)left;
    if (by_memory) return send(fd, bytes + sent, *asked, MSG_NOSIGNAL);
    off_t at = sent;
    if (!by_offset && lseek(source, sent, SEEK_SET) != sent) fails("lseek", sent);
    done = sendfile(fd, source, by_offset ? &at : NULL, n);
    int why = errno;
    if (!by_offset) at = lseek(source, 0, SEEK_CUR);
    if (at != sent + (done > 0 ? done : 0)) fails("an offset", sent);
    errno = why;
    return done;
}
static void serve(const char *way, const unsigned char *bytes) {
    int polls = !strcmp(way, "poll") || !strcmp(way, "quiet"), goes = !strcmp(way, "gone") || !strcmp(way, "quiet");
    pthread_t thread;
    struct timeval limit = {10, 0};
    if (polls) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    if (!strcmp(way, "threads")) pthread_create(&thread, NULL, rests, NULL);
    if (!strcmp(way, "limit")) setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    signal(SIGPIPE, counts);
    long before = read_calls();
    for (int failed = 0; sent < all && failed < 5;) {
        size_t asked;
        off_t at = sent;
        // Whoever is gone is told of so by calls that send files alone.
        ssize_t done = goes ? sendfile(fd, source, &at, (size_t)(all - sent)) : put(bytes, &asked);
        if (done > 0 && goes) asked = (size_t)done;
        if (done < 0 && errno == EAGAIN && polls) {
            struct pollfd one = {fd, POLLOUT, 0};
            if (poll(&one, 1, 20000) < 1) fails("nothing happened", sent);
            continue;
        }
        if (done < 0 && goes && (errno == EPIPE || errno == ECONNRESET)) {
            failed += errno == EPIPE;
            // A call that waits may have sent some before, and says so: the kernel gives the signal all the same.
            if (signals != failed && (polls || signals != failed + 1)) fails("another number of signals", signals);
            continue;
        }
        if (done <= 0) fails("send", sent);
        if (!polls && (size_t)done != asked) fails("less was sent than asked for", sent);
        sent += done;
    }
    if (goes != (sent < all)) fails("an end", sent);
    long calls = read_calls() - before;
    char last;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    if (!goes && (shutdown(fd, SHUT_WR) || recv(fd, &last, 1, 0) != 0)) fails("the end", sent);
    close(fd);
    printf("%ld calls\nok\n", calls);
}
static void ask(const char *how) {
    static unsigned char bytes[1 << 17];
    int64_t small = !strcmp(how, "all") ? INT64_MAX : !strcmp(how, "goes") ? 0 : atol(how) * 1000000LL, came = 0;
    for (ssize_t n; (n = recv(fd, bytes, came < small ? 3000 : sizeof bytes, 0)) != 0; came += n) {
        if (n < 0) fails("recv", came);
        for (ssize_t i = 0; i < n; i++) if (bytes[i] != byte_at(came + i)) { errno = 0; fails("a wrong byte", came + i); }
        if (!strcmp(how, "goes") && came > 1 << 20) break;
    }
    // The other side has no room any more, and waits.
    if (!strcmp(how, "goes")) sleep(1);
    printf("%lld\n", (long long)came);
}
int main(int count, char **words) {
    if (count < 5) return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[3]))};
    inet_pton(AF_INET, words[2], &address.sin_addr);
    alarm(60);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (strcmp(words[1], "serve")) {
        if (connect(fd, (void *)&address, sizeof address)) fails("connect", 0);
        ask(words[4]);
        return 0;
    }
    int one = 1, listener = fd;
    all = atol(words[5]) * 1000000LL;
    source = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    if (ftruncate(source, all)) fails("ftruncate", all);
    unsigned char *bytes = mmap(NULL, (size_t)all, PROT_READ | PROT_WRITE, MAP_SHARED, source, 0);
    for (int64_t i = 0; i < all; i++) bytes[i] = byte_at(i);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 5)) fails("bind", 0);
    puts("serving");
    fflush(stdout);
    fd = accept(listener, NULL, NULL);
    close(listener);
    serve(words[4], bytes);
    return 0;
}
