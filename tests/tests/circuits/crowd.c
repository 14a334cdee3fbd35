// As many calls of a program wait as may, and it goes on to call: threads wait in accept, and
// processes ask for sockets all the time.
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

static int listening;

static void *accepts(void *nothing) {
    for (;;) {
        if (accept(listening, 0, 0) < 0) usleep(1000000);
    }
    return nothing;
}

int main(void) {
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(7000) };
    listening = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listening, (void *)&at, sizeof at) || listen(listening, 8)) return perror("listen"), 1;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (int n = 0; n < 1100; n++) {
        pthread_t thread;
        if (pthread_create(&thread, &small, accepts, 0)) return perror("thread"), 1;
    }
    // Until one is refused there is room.
    for (int s; (s = socket(AF_INET, SOCK_STREAM, 0)) >= 0; usleep(10000)) close(s);
    for (int n = 0; n < 8; n++) {
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;) {
                int s = socket(AF_INET, SOCK_STREAM, 0);
                if (s >= 0) close(s);
            }
        }
    }
    printf("crowds\n");
    fflush(stdout);
    pause();
}
