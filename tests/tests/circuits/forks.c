// A program with many connections whose children live on forks once more: how often that child asks the kernel for other processes.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

static int *asked;
// As a kernel that has no such call: who is asked for is there then.
static void counts(int signal, siginfo_t *what, void *where) {
    ++*asked;
    ((ucontext_t *)where)->uc_mcontext.gregs[REG_RAX] = -ENOSYS;
}
static int forked(int lives) {
    int child = fork();
    if (child) return child;
    __atomic_fetch_add(&asked[1], 1, __ATOMIC_SEQ_CST);
    if (lives) pause();
    _exit(0);
}
int main(int count, char **words) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(7000)};
    inet_pton(AF_INET, words[1], &address.sin_addr);
    asked = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int listener = socket(AF_INET, SOCK_STREAM, 0), children[12];
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 9)) return 1;
    for (int i = 0; i < 100; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (void *)&address, sizeof address) || accept(listener, NULL, NULL) < 0) return 2;
    }
    // More than a connection knows by their numbers.
    for (int i = 0; i < 12; i++) children[i] = forked(1);
    // Each says that it has them as it begins.
    while (__atomic_load_n(&asked[1], __ATOMIC_SEQ_CST) < 12) usleep(1000);
    struct sigaction action = {.sa_sigaction = counts, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &action, NULL);
    struct sock_filter lines[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {4, lines};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 3;
    int status = 0;
    waitpid(forked(0), &status, 0);
    printf("%d %d\n", status, *asked);
    for (int i = 0; i < 12; i++) kill(children[i], SIGKILL);
    return 0;
}
