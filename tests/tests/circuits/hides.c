// Has a socket in nothing but a call that takes long: `hides take|give|say ADDRESS PORT`. Another thread closes the only
// number. `take` accepts a connection and reads a thousand messages from it in one call, `give` connects and sends as many;
// `say` sends datagrams. Who sends has a processor only when a thread beside it has none. Prints "hidden", then "over" and
// how many messages that call did.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MESSAGES = 1024, PIECES = 1024 };
static int fd, takes;
static size_t count, size;
static volatile int hogged, in, over;
static struct mmsghdr messages[MESSAGES];
static struct iovec pieces[PIECES];

static void alone_on_this(int policy) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(0, &set);
    struct sched_param ordinary = {0};
    if (sched_setaffinity(0, sizeof set, &set) || sched_setscheduler(0, policy, &ordinary)) _exit(3);
}
static void *calls(void *buffer) {
    for (int n = 0; n < PIECES; n++) pieces[n] = (struct iovec){buffer, size};
    for (int n = 0; n < MESSAGES; n++) {
        messages[n].msg_hdr.msg_iov = pieces;
        messages[n].msg_hdr.msg_iovlen = count;
    }
    if (!takes) alone_on_this(SCHED_IDLE);
    in = 1;
    int did = takes ? recvmmsg(fd, messages, MESSAGES, MSG_WAITALL, 0) : sendmmsg(fd, messages, MESSAGES, MSG_NOSIGNAL);
    printf("over %d\n", did);
    fflush(stdout);
    over = 1;
    return 0;
}
static void *hogs(void *none) {
    alone_on_this(SCHED_OTHER);
    hogged = 1;
    while (!over) {}
    return none;
}
int main(int given, char **words) {
    if (given < 4) return 2;
    int is_stream = strcmp(words[1], "say");
    takes = !strcmp(words[1], "take");
    // Datagrams take long to put together, and little room.
    count = is_stream ? 1 : PIECES;
    size = is_stream ? 4 << 20 : 1;
    fd = socket(AF_INET, is_stream ? SOCK_STREAM : SOCK_DGRAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(words[3]))};
    inet_pton(AF_INET, words[2], &at.sin_addr);
    if (takes) {
        if (bind(fd, (void *)&at, sizeof at) || listen(fd, 1)) return 1;
        puts("serves");
        fflush(stdout);
        int accepted = accept(fd, 0, 0);
        close(fd);
        fd = accepted;
    } else if (connect(fd, (void *)&at, sizeof at)) {
        return 1;
    }
    // What it sends by a copy goes natively.
    int copy = dup(fd);
    close(fd);
    fd = copy;
    pthread_t thread;
    char *buffer = malloc(size);
    memset(buffer, 'x', size);
    if (!takes && pthread_create(&thread, 0, hogs, 0)) return 1;
    while (!takes && !hogged) usleep(1000);
    if (pthread_create(&thread, 0, calls, buffer)) return 1;
    while (!in) usleep(1000);
    usleep(50000);
    close(fd);
    puts("hidden");
    fflush(stdout);
    pthread_join(thread, 0);
    return 0;
}
