// Has whoever closes a file of its wait for a little (milliseconds, the second argument), many times (the third). The
// first says where: "cut" (such a file has each number that an end of a circuit to port 80 was at), "puts" (the
// numbers at which datagram sockets are put), "binds" (those that datagram sockets were at that are connected to a port
// of here, which is bound then). It prints how long what it asked for then took, in milliseconds.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void must(int ok, const char *what) {
    if (!ok) { printf("%s: %s\n", what, strerrorname_np(errno)); fflush(stdout); _exit(2); }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

// Answers what a file is opened by at once, and whoever closes it after so long.
static void serves(int fuse, int ms) {
    static char in[1 << 20];
    for (;;) {
        ssize_t got = read(fuse, in, sizeof in);
        if (got < 0 && (errno == EINTR || errno == ENOENT)) continue;
        if (got <= 0) _exit(0);
        struct fuse_in_header *h = (void *)in;
        struct { struct fuse_out_header h; union { struct fuse_init_out init; struct fuse_open_out open; struct fuse_attr_out attr; } b; } out;
        memset(&out, 0, sizeof out);
        size_t body = 0;
        if (h->opcode == FUSE_INIT) {
            out.b.init.major = FUSE_KERNEL_VERSION; out.b.init.minor = 31; out.b.init.max_write = 4096;
            body = sizeof out.b.init;
        } else if (h->opcode == FUSE_OPEN) body = sizeof out.b.open;
        else if (h->opcode == FUSE_GETATTR) {
            out.b.attr.attr_valid = 1000; out.b.attr.attr.ino = 1; out.b.attr.attr.mode = S_IFREG | 0777;
            out.b.attr.attr.nlink = 1; out.b.attr.attr.size = 4096;
            body = sizeof out.b.attr;
        } else if (h->opcode == FUSE_FLUSH) usleep(ms * 1000);
        else if (h->opcode == FUSE_INTERRUPT || h->opcode == FUSE_FORGET) continue;
        else out.h.error = -ENOSYS;
        out.h.unique = h->unique; out.h.len = sizeof out.h + body;
        if (write(fuse, &out, out.h.len) < 0) {}
    }
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
    if (fork() == 0) { prctl(PR_SET_PDEATHSIG, SIGKILL); serves(fuse, ms); }
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
