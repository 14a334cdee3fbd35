/* Answers whoever connects with what it says, in place: echo PORT. */
#include <bulkhead.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static int answer(bulkhead_circuit *circuit)
{
    static char copy[65536];
    const volatile void *came;
    volatile void *room;
    ssize_t there;
    while ((there = bulkhead_peek(circuit, &came)) > 0) {
        size_t n = (size_t)there < sizeof copy ? (size_t)there : sizeof copy;
        /* What it says may change while it is looked at: this is what is answered. */
        memcpy(copy, (const void *)came, n);
        if (bulkhead_consume(circuit, n) || bulkhead_reserve(circuit, n, &room) < (ssize_t)n)
            return -1;
        memcpy((void *)room, copy, n);
        if (bulkhead_commit(circuit, n) != (ssize_t)n)
            return -1;
    }
    return (int)there;
}

/* 1 to 65535; 0: it is none. */
static in_port_t port_of(const char *word)
{
    char *end;
    long port = strtol(word, &end, 10);
    return *end || port < 1 || port > 65535 ? 0 : htons((unsigned short)port);
}

int main(int count, char **words)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    int fd, one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (count > 2 || !(address.sin_port = port_of(count > 1 ? words[1] : "7007"))) {
        fputs("echo PORT\n", stderr);
        return 2;
    }
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 16)) {
        perror("listen");
        return 1;
    }
    puts("serving");
    fflush(stdout);
    for (;;) {
        fd = accept(listener, NULL, NULL);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0) {
            perror("accept");
            return 1;
        }
        bulkhead_circuit *circuit = bulkhead_from_fd(fd);
        int done = answer(circuit);
        printf("%s by %s\n", done ? "failed" : "end", bulkhead_is_ring(circuit) ? "ring" : "socket");
        fflush(stdout);
        bulkhead_close(circuit);
    }
}
