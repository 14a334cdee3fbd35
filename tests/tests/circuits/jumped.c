// A handler leaves each call that tells something, at any instant: what is told late is no other function's memory.
#include <arpa/inet.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
static sigjmp_buf out;
static volatile int calls;
// During a call where it is told; afterwards another function's.
static union { unsigned char bytes[64]; struct { union { struct sockaddr_in four; struct sockaddr_in6 six; } name; socklen_t length; } of; } memory;
static void leaves(int signal) {
    if (calls) { calls = 0; siglongjmp(out, 1); }
}
static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec * 1e-9;
}
static int is_overwritten(void) {
    memset(memory.bytes, 0x55, sizeof memory);
    double until = now() + 0.0001;
    do
        for (int n = 0; n < (int)sizeof memory; n++)
            if (((volatile unsigned char *)memory.bytes)[n] != 0x55) return 1;
    while (now() < until);
    return 0;
}
int main(void) {
    static int fd, six, which;
    static long told, jumped, overwritten, wrong;
    struct sigaction by = {.sa_handler = leaves};
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(7)};
    struct sockaddr_in6 there = {.sin6_family = AF_INET6, .sin6_port = htons(8)};
    fd = socket(AF_INET, SOCK_STREAM, 0);
    six = socket(AF_INET6, SOCK_STREAM, 0);
    if (bind(six, (void *)&there, sizeof there) || bind(fd, (void *)&here, sizeof here) || listen(fd, 1) || sigaction(SIGALRM, &by, 0)) return 1;
    double until = now() + 40;
    while ((jumped < 12000 || told < 2000) && now() < until) {
        if (sigsetjmp(out, 1)) {
            // What is called next is told its own; and what is not called is told nothing.
            if (++jumped % 2) overwritten += is_overwritten();
            continue;
        }
        memset(memory.bytes, 0, sizeof memory);
        memory.of.length = sizeof memory.of.name;
        // Once, wherever the call is by then.
        struct itimerval once = {.it_value = {0, 1 + (jumped + told) % 97}};
        calls = 1;
        setitimer(ITIMER_REAL, &once, 0);
        which = (which + 1) % 3;
        socklen_t *length = &memory.of.length, long_as[] = {sizeof here, sizeof(int), sizeof there};
        if (which == 0) getsockname(fd, (void *)&memory.of.name, length);
        if (which == 1) getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &memory.of.name, length);
        if (which == 2) getsockname(six, (void *)&memory.of.name, length);
        calls = 0;
        wrong += *length != long_as[which];
        wrong += which == 0 && memcmp(&memory.of.name, &here, sizeof here);
        wrong += which == 2 && memcmp(&memory.of.name, &there, sizeof there);
        told++;
    }
    calls = 0;
    printf("%s, %ld wrong, %ld overwritten\n", told >= 2000 && jumped >= 12000 ? "many" : "few", wrong, overwritten);
}
