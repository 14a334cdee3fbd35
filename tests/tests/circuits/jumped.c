// A handler leaves each call that tells something, at any instant: what is told late is no other function's memory.
#include <arpa/inet.h>
#include <netinet/tcp.h>
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
static union { unsigned char bytes[64]; struct { struct sockaddr_in name; socklen_t length; } of; } memory;
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
    double until = now() + 0.0002;
    do
        for (int n = 0; n < (int)sizeof memory; n++)
            if (((volatile unsigned char *)memory.bytes)[n] != 0x55) return 1;
    while (now() < until);
    return 0;
}
int main(void) {
    static int fd, which;
    static long told, jumped, overwritten, wrong;
    struct sigaction by = {.sa_handler = leaves};
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(7)};
    struct itimerval every = {{0, 300}, {0, 300}};
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (void *)&here, sizeof here) || listen(fd, 1) || sigaction(SIGALRM, &by, 0)) return 1;
    double until = now() + 8;
    setitimer(ITIMER_REAL, &every, 0);
    while (now() < until) {
        if (sigsetjmp(out, 1)) {
            jumped++;
            overwritten += is_overwritten();
            continue;
        }
        memset(memory.bytes, 0, sizeof memory);
        memory.of.length = sizeof memory.of.name;
        calls = 1;
        if (which = !which) {
            getsockname(fd, (void *)&memory.of.name, &memory.of.length);
            calls = 0;
            wrong += memory.of.length != sizeof here || memcmp(&memory.of.name, &here, sizeof here);
        } else {
            getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &memory.of.name, &memory.of.length);
            calls = 0;
            wrong += memory.of.length != sizeof(int);
        }
        told++;
    }
    calls = 0;
    printf("%s, %ld wrong, %ld overwritten\n", told > 1000 && jumped > 1000 ? "many" : "few", wrong, overwritten);
}
