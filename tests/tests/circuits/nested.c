// A handler asks, as calls that ask are under way, for what tells more and less than those do.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static int fd, six;
static volatile long asked;
static void asks(int signal) {
    char some[400];
    socklen_t length = sizeof some;
    getsockname(six, (void *)some, &length);
    length = sizeof some;
    getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, some, &length);
    asked++;
}
int main(void) {
    struct sigaction by = {.sa_handler = asks, .sa_flags = SA_RESTART};
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(7)};
    struct sockaddr_in6 there = {.sin6_family = AF_INET6, .sin6_port = htons(8)};
    long wrong = 0, done = 0;
    fd = socket(AF_INET, SOCK_STREAM, 0), six = socket(AF_INET6, SOCK_STREAM, 0);
    if (bind(fd, (void *)&here, sizeof here) || listen(fd, 1) || bind(six, (void *)&there, sizeof there)) return 1;
    struct timeval patience = {.tv_usec = 100000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (sigaction(SIGALRM, &by, 0)) return 1;
    time_t until = time(0) + 40;
    while (asked < 12000 && time(0) < until) {
        // Once, wherever it is by then.
        struct itimerval once = {.it_value = {0, 1 + done % 197}};
        setitimer(ITIMER_REAL, &once, 0);
        struct { struct sockaddr_in name; char behind[16]; } at;
        memset(&at, 0x55, sizeof at);
        socklen_t length = sizeof at.name;
        int said = getsockname(fd, (void *)&at.name, &length);
        wrong += said || length != sizeof here || memcmp(&at.name, &here, sizeof here);
        for (int n = 0; n < 16; n++) wrong += at.behind[n] != 0x55;
        // Shorter than it is: what there is room for, and how long it is.
        memset(&at, 0x55, sizeof at);
        length = 5;
        said = getsockname(six, (void *)&at.name, &length);
        wrong += said || length != sizeof there || memcmp(&at.name, &there, 5) || ((char *)&at.name)[5] != 0x55;
        if (++done % 8) continue;
        int one = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(one, (void *)&here, sizeof here) && errno != EISCONN) return 1;
        length = sizeof at.name;
        // Not each is heard of.
        int other = accept(fd, (void *)&at.name, &length);
        if (other < 0 && errno == EAGAIN) {
            close(one);
            continue;
        }
        struct sockaddr_in own;
        socklen_t own_length = sizeof own;
        getpeername(other, (void *)&own, &own_length);
        wrong += other < 0 || own_length != sizeof own || length != sizeof own || memcmp(&at.name, &own, sizeof own);
        close(one), close(other);
    }
    printf("%s, %ld wrong\n", asked >= 12000 ? "many" : "few", wrong);
}
