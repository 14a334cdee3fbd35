// Has its operator wait in the kernel, by a file system of its own that does not answer. The first
// argument says where: "flush" (a descriptor is closed), "touched" (an argument is read, that a thread of its waits for
// already), "memory" (the same of one that nobody has asked for: no operator waits for that), "swap"
// (the same as flush, of a number that was a socket's), "ring" (pages of a circuit are given back), "exec" (nobody yet, but whoever looks at
// processes of its that execute another program: so many as the second argument says), "shared" (the same of
// one that has not left its old memory yet), "linked" (so many as in "exec", each with a datagram socket that is connected
// to port 5000 here), "serves" and "reads" (one as in "exec", with an end of a circuit to port 80 that a child of
// its uses), "sends" (nobody, but it sends, and has closed the circuit to port 80 that it sends by; "sends executes": and executes the file). It prints what each call came to. "give" and "linger"
// are no programs of circuits: they take over an operator, whose number is the second argument, and
// have it say the third (a message in hexadecimal) with the file, or with TCP that lingers.
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

// What it is: descriptor 3 of an operator is its link with the supervisor.
static void gives(const char *operator, const char *hex, int fd) {
    int process = syscall(SYS_pidfd_open, atoi(operator), 0);
    int link = syscall(SYS_pidfd_getfd, process, 3, 0);
    must(link >= 0, "take over");
    static unsigned char bytes[1 << 12];
    size_t length = strlen(hex) / 2;
    for (size_t n = 0; n < length; n++) must(sscanf(hex + 2 * n, "%2hhx", bytes + n) == 1, "hex");
    struct iovec part = { bytes, length };
    union { struct cmsghdr h; char room[CMSG_SPACE(sizeof fd)]; } control = {0};
    control.h.cmsg_len = CMSG_LEN(sizeof fd); control.h.cmsg_level = SOL_SOCKET; control.h.cmsg_type = SCM_RIGHTS;
    memcpy(CMSG_DATA(&control.h), &fd, sizeof fd);
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control.room };
    must(sendmsg(link, &message, 0) == (ssize_t)length, "say");
    close(link);
    printf("gave\n"); fflush(stdout);
}

// The memory of a circuit with itself, of which both ends have it.
static int circuit(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), began = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof at, size = 16;
    must(bind(listener, (void *)&at, sizeof at) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (void *)&at, &length) == 0, "name");
    must(connect(began, (void *)&at, sizeof at) == 0, "connect");
    int accepted = accept(listener, 0, 0), one[4], other[4];
    must(accepted >= 0, "accept");
    must(getsockopt(began, 0x4248, 1, one, &size) == 0, "ring");
    must(getsockopt(accepted, 0x4248, 1, other, &size) == 0, "ring");
    return one[0];
}

// TCP whose close waits: what it sent is not read by its peer.
static int lingers(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), small = 2048;
    setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof at;
    must(bind(listener, (void *)&at, sizeof at) == 0 && listen(listener, 1) == 0, "listen");
    must(getsockname(listener, (void *)&at, &length) == 0, "name");
    int tcp = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(tcp, (void *)&at, sizeof at) == 0 && accept(listener, 0, 0) >= 0, "connect");
    static char bytes[65536];
    while (send(tcp, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {}
    struct linger linger = { .l_onoff = 1, .l_linger = 60 };
    must(setsockopt(tcp, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0, "linger");
    return tcp;
}

// All that it touches is there by then: who needs more memory waits before it executes anything.
static int executes(void *wait) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char path[] = "/bin/sleep", for_long[] = "1000";
    char *args[] = { path, for_long, 0 }, *none[] = { 0 };
    must(mlockall(MCL_CURRENT) == 0, "touch");
    usleep(*(int *)wait);
    execve(path, args, none);
    _exit(1);
}

// Another map takes a page's place, which is written first: until it is, nobody with this memory can leave it.
static void shares(int held) {
    static char stack[1 << 16];
    static int wait = 200000;
    volatile char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, held, 0);
    must(page != MAP_FAILED, "mmap");
    page[0] = 1;
    must(clone(executes, stack + sizeof stack, CLONE_VM | SIGCHLD, &wait) > 0, "clone");
    usleep(wait / 2);
    mmap((void *)page, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    printf("it was written\n"); fflush(stdout);
}

static int sending;
static const char *executed;
static void *closes(void *none) {
    // It is sending by then.
    char byte;
    must(read(asked[0], &byte, 1) == 1, "asked");
    close(sending);
    printf("holds\n"); fflush(stdout);
    // Its file does not come either, and as long nobody may trace this process.
    if (executed) execl(executed, executed, (char *)0);
    return none;
}

// Whoever reads that page later waits for the same answer.
static void *touches(void *page) {
    if (*(volatile char *)page) {}
    return 0;
}

int main(int count, char **args) {
    const char *where = count > 1 ? args[1] : "";
    if (strcmp(where, "linger") == 0) {
        int tcp = lingers();
        gives(args[2], args[3], tcp);
        // Somebody else has it as well, and so this does not wait.
        close(tcp);
        pause();
    }
    // Beside itself, to go with it.
    char path[300] = "";
    must(readlink("/proc/self/exe", path, 200) > 0, "where it is");
    strcat(path, "-XXXXXX");
    must(unshare(CLONE_NEWNS) == 0, "unshare");
    must(mount(0, "/", 0, MS_REC | MS_PRIVATE, 0) == 0, "private");
    int file = mkstemp(path);
    int fuse = open("/dev/fuse", O_RDWR);
    must(fuse >= 0, "fuse");
    char options[100];
    snprintf(options, sizeof options, "fd=%d,rootmode=100000,user_id=0,group_id=0", fuse);
    must(mount("held", path, "fuse", MS_NOSUID | MS_NODEV, options) == 0, "mount");
    close(file);
    int shared = strcmp(where, "shared") == 0;
    int ring = strcmp(where, "ring") == 0, sends = strcmp(where, "sends") == 0;
    int touched = strcmp(where, "touched") == 0;
    int memory = ring || sends || touched || strcmp(where, "memory") == 0;
    must(pipe2(asked, O_CLOEXEC) == 0, "pipe");
    int server = fork();
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serves(fuse, shared ? FUSE_WRITE : memory ? FUSE_READ : FUSE_FLUSH, 0);
    }
    close(fuse);
    int held = open(path, O_RDWR);
    must(held >= 0, "open");
    // What is not known to have a page has none.
    struct stat known;
    must(fstat(held, &known) == 0, "fstat");
    if (strcmp(where, "give") == 0) {
        gives(args[2], args[3], held);
        pause();
    }
    void *page = memory ? mmap(0, 4096, PROT_READ, MAP_SHARED, held, 0) : 0;
    must(page != MAP_FAILED, "mmap");
    if (ring) {
        // It is used and idle; and the kernel has the file for as long as this write lasts.
        int given = circuit();
        static char used[1 << 16] = { 1 };
        must(pwrite(given, used, sizeof used, 4096) == sizeof used, "use");
        printf("holds\n"); fflush(stdout);
        must(pwrite(given, page, 4096, 4096) == 4096, "hold");
        pause();
    }
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(80) };
    inet_pton(AF_INET, "10.1.1.10", &to.sin_addr);
    if (sends) {
        int s = socket(AF_INET, SOCK_STREAM, 0);
        must(connect(s, (void *)&to, sizeof to) == 0, "connect");
        sending = dup(s);
        close(s);
        executed = count > 2 ? path : 0;
        // As long as that lives not even SIGKILL ends who waits.
        printf("server %d\n", server); fflush(stdout);
        pthread_t thread;
        must(pthread_create(&thread, 0, closes, 0) == 0, "thread");
        printf("sent: %zd\n", send(sending, page, 4096, 0)); fflush(stdout);
        pause();
    }
    int execs = strcmp(where, "exec") == 0;
    if (execs || shared) {
        for (int n = 0; n < (execs ? atoi(args[2]) : 1); n++) {
            if (fork() != 0) continue;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (shared) { shares(held); pause(); }
            must(fcntl(held, F_SETFD, FD_CLOEXEC) == 0, "cloexec");
            execl("/bin/sleep", "sleep", "1000", (char *)0);
            _exit(1);
        }
        usleep(500000);
        printf("holds\n"); fflush(stdout);
        pause();
    }
    if (strcmp(where, "serves") == 0 || strcmp(where, "reads") == 0) {
        int s = socket(AF_INET, SOCK_STREAM, 0), reads = strcmp(where, "reads") == 0;
        if (reads) must(connect(s, (void *)&to, sizeof to) == 0, "connect");
        else {
            int listener = s;
            must(bind(s, (void *)&to, sizeof to) == 0 && listen(s, 1) == 0, "listen");
            printf("serves\n"); fflush(stdout);
            must((s = accept(listener, 0, 0)) >= 0, "accept");
            close(listener);
        }
        if (fork() == 0) {
            char byte = 1;
            while (reads ? read(s, &byte, 1) == 1 : send(s, &byte, 1, MSG_NOSIGNAL) == 1) if (!reads) usleep(10000);
            printf("ended\n"); fflush(stdout);
            _exit(0);
        }
        usleep(100000);
        printf("holds\n"); fflush(stdout);
        must(fcntl(held, F_SETFD, FD_CLOEXEC) == 0, "cloexec");
        execl("/bin/sleep", "sleep", "1000", (char *)0);
        _exit(1);
    }
    if (strcmp(where, "linked") == 0) {
        for (int n = atoi(args[2]); n > 0; n--) {
            if (fork() != 0) continue;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            int s = socket(AF_INET, SOCK_DGRAM, 0), one = 1;
            setsockopt(s, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
            to.sin_addr.s_addr = htonl(INADDR_LOOPBACK); to.sin_port = htons(90);
            must(bind(s, (void *)&to, sizeof to) == 0, "bind");
            to.sin_port = htons(5000);
            must(connect(s, (void *)&to, sizeof to) == 0, "connect");
            must(fcntl(held, F_SETFD, FD_CLOEXEC) == 0 && fcntl(s, F_SETFD, 0) == 0, "cloexec");
            execl("/bin/sleep", "sleep", "1000", (char *)0);
            _exit(1);
        }
        usleep(500000);
        printf("holds\n"); fflush(stdout);
        pause();
    }
    if (strcmp(where, "swap") == 0) {
        // A connection that is to be cut, and whose number is something else by then.
        int s = socket(AF_INET, SOCK_STREAM, 0);
        must(connect(s, (void *)&to, sizeof to) == 0, "connect");
        char byte;
        int kept = fcntl(s, F_DUPFD, 3000);
        must(kept >= 0 && read(kept, &byte, 1) == 1 && dup2(held, s) == s, "swap");
        printf("holds\n"); fflush(stdout);
        while (read(kept, &byte, 1) == 1) {}
        printf("cut\n"); fflush(stdout);
        pause();
    }
    if (touched) {
        pthread_t thread; char byte;
        must(pthread_create(&thread, 0, touches, page) == 0 && read(asked[0], &byte, 1) == 1, "touch");
    }
    printf("holds\n"); fflush(stdout);
    for (int n = 0; n < 6; n++) {
        struct sockaddr_storage name; socklen_t length = sizeof name;
        int s = memory ? socket(AF_INET, SOCK_STREAM, 0) : held;
        int done = s < 0 ? -1 : memory ? connect(s, page, sizeof to) : getpeername(s, (void *)&name, &length);
        printf("call: %s\n", done < 0 ? strerrorname_np(errno) : "DONE"); fflush(stdout);
        if (memory && s >= 0) close(s);
    }
    printf("over\n"); fflush(stdout);
    pause();
}
