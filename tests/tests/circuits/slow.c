// Has whoever closes a file of its wait for a little (milliseconds, the second argument), many times (the third). The
// first says where: "cut" (such a file has each number that an end of a circuit to port 80 was at), "puts" (the
// numbers at which datagram sockets are put), "binds" (those that datagram sockets were at that are connected to a port
// of here, which is bound then). It prints how long what it asked for then took, in milliseconds.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static int slow_file(int ms) {
    char text[128];
    must(unshare(CLONE_NEWNS) == 0, "unshare");
    int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    must(fuse >= 0, "/dev/fuse");
    must(mount("none", "/", 0, MS_REC | MS_PRIVATE, 0) == 0, "private");
    must(mount("tmpfs", "/mnt", "tmpfs", 0, 0) == 0, "tmpfs");
    close(open("/mnt/f", O_CREAT | O_RDWR, 0666));
    sprintf(text, "fd=%d,rootmode=100666,user_id=0,group_id=0", fuse);
    must(mount("f", "/mnt/f", "fuse", 0, text) == 0, "mount");
    if (fork() == 0) { prctl(PR_SET_PDEATHSIG, SIGKILL); serves(fuse, -1, ms); }
    close(fuse);
    int file = open("/mnt/f", O_RDWR);
    must(file >= 0, "open");
    return file;
}

static void covers(int fd, int file) {
    must(fcntl(fd, F_DUPFD, 1100) >= 0, "dup");
    must(dup2(file, fd) == fd, "dup2");
}

int main(int count, char **words) {
    must(count == 4, "arguments");
    int ms = atoi(words[2]), many = atoi(words[3]), fds[512], file = slow_file(ms);
    struct rlimit files = { 4096, 4096 };
    must(setrlimit(RLIMIT_NOFILE, &files) == 0 && many <= 512, "limit");
    struct sockaddr_in at = { .sin_family = AF_INET };
    if (!strcmp(words[1], "cut")) {
        inet_pton(AF_INET, "10.1.1.10", &at.sin_addr); at.sin_port = htons(80);
        for (int n = 0; n < many; n++) {
            fds[n] = socket(AF_INET, SOCK_STREAM, 0);
            must(connect(fds[n], (void *)&at, sizeof at) == 0, "connect");
        }
        for (int n = 0; n < many; n++) covers(fds[n], file);
        printf("ready\n");
    } else if (!strcmp(words[1], "puts")) {
        for (int n = 0; n < many; n++) must(dup2(file, 1023 - n) >= 0, "dup2");
        double began = now();
        int made = socket(AF_INET, SOCK_DGRAM, 0);
        printf("%s %.0f ms\n", made < 0 ? strerrorname_np(errno) : "MADE", now() - began);
    } else {
        inet_pton(AF_INET, "10.1.1.11", &at.sin_addr); at.sin_port = htons(7777);
        int ready[2];
        must(pipe(ready) == 0, "pipe");
        // Another process has them.
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (int n = 0; n < many; n++) {
                fds[n] = socket(AF_INET, SOCK_DGRAM, 0);
                must(connect(fds[n], (void *)&at, sizeof at) == 0, "connect");
            }
            for (int n = 0; n < many; n++) covers(fds[n], file);
            must(write(ready[1], "", 1) == 1, "ready");
            pause();
        }
        char byte;
        must(read(ready[0], &byte, 1) == 1, "ready");
        int bound = socket(AF_INET, SOCK_DGRAM, 0);
        double began = now();
        must(bind(bound, (void *)&at, sizeof at) == 0, "bind");
        printf("bound %.0f ms\n", now() - began);
    }
    fflush(stdout);
    pause();
}
