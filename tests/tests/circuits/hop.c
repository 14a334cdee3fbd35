// Has a socket in one process after another, each of which forks after 300 us and ends: `hop serve|ask|say ADDRESS PORT
// [OTHERS]`, behind so many other descriptors.
// `serve` accepts one connection, `ask` begins one, and both send and read on it; `say` sends datagrams to whom it is
// connected. Prints "goes" when that works, then "cut" once it fails, or "lives" after ten seconds.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}
static void says(const char *line) {
    if (write(1, line, strlen(line)) < 0) _exit(2);
}
int main(int count, char **words) {
    if (count < 4) return 2;
    for (int n = count > 4 ? atoi(words[4]) : 0; n > 0; n--)
        if (open("/dev/null", O_RDONLY) < 0) return 1;
    int is_stream = strcmp(words[1], "say"), fd = socket(AF_INET, is_stream ? SOCK_STREAM : SOCK_DGRAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(words[3]))};
    inet_pton(AF_INET, words[2], &at.sin_addr);
    signal(SIGCHLD, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    if (!strcmp(words[1], "serve")) {
        if (bind(fd, (void *)&at, sizeof at) || listen(fd, 1)) return 1;
        says("serves\n");
        int accepted = accept(fd, 0, 0);
        close(fd);
        fd = accepted;
    } else if (connect(fd, (void *)&at, sizeof at)) {
        return 1;
    }
    double end = now() + 10, last = 0;
    int goes = 0;
    while (now() < end) {
        char bytes[100];
        int over = 0;
        if (now() - last > 0.01) {
            last = now();
            if (send(fd, "x", 1, MSG_DONTWAIT) == 1) {
                if (!is_stream && !goes) says("goes\n"), goes = 1;
            } else {
                over = errno != EAGAIN;
            }
        }
        if (is_stream) {
            ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
            if (n > 0 && !goes) says("goes\n"), goes = 1;
            over |= n == 0 || (n < 0 && errno != EAGAIN);
        }
        if (over) {
            says("cut\n");
            _exit(0);
        }
        usleep(300);
        if (fork() > 0) _exit(0);
    }
    says("lives\n");
}
