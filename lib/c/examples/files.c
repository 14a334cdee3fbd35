/* A server of one file, straight from it into the memory that both programs have:
 * files serve PORT FILE, and files fetch ADDRESS PORT, which writes what comes to its output. */
#include <arpa/inet.h>
#include <bulkhead.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Bytes read at a time. */
static const size_t part = 256 << 10;

static int failed(const char *what)
{
    perror(what);
    return 1;
}

/* The file's bytes are made where the peer reads them. */
static int sends(bulkhead_circuit *circuit, int file)
{
    volatile void *room;
    ssize_t there, n;
    do {
        there = bulkhead_reserve(circuit, 1, &room);
        if (there < 0)
            return -1;
        n = read(file, (void *)room, (size_t)there < part ? (size_t)there : part);
        if (n < 0 || bulkhead_commit(circuit, (size_t)n))
            return -1;
    } while (n > 0);
    return 0;
}

static int serves(const char *port, const char *path)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    int fd, one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_port = htons((unsigned short)atoi(port));
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 16))
        return failed("listen");
    puts("serving");
    fflush(stdout);
    while ((fd = accept(listener, NULL, NULL)) >= 0) {
        bulkhead_circuit *circuit = bulkhead_from_fd(fd);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        int done = file < 0 ? -1 : sends(circuit, file);
        printf("%s by %s\n", done ? "failed" : "sent", bulkhead_is_ring(circuit) ? "ring" : "socket");
        fflush(stdout);
        bulkhead_close(circuit);
        if (file >= 0)
            close(file);
    }
    return failed("accept");
}

/* What comes is written from where it is: nothing is judged by it, so it may change meanwhile. */
static int fetches(const char *host, const char *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bulkhead_circuit *circuit;
    const volatile void *came;
    ssize_t there, n;
    address.sin_port = htons((unsigned short)atoi(port));
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) {
        fprintf(stderr, "%s is no IPv4 address\n", host);
        return 2;
    }
    if (connect(fd, (struct sockaddr *)&address, sizeof address))
        return failed("connect");
    circuit = bulkhead_from_fd(fd);
    while ((there = bulkhead_peek(circuit, &came)) > 0) {
        n = write(STDOUT_FILENO, (const void *)came, (size_t)there);
        if (n < 0 || bulkhead_consume(circuit, (size_t)n))
            return failed("write");
    }
    bulkhead_close(circuit);
    return there ? failed("peek") : 0;
}

int main(int count, char **words)
{
    if (count == 4 && !strcmp(words[1], "serve"))
        return serves(words[2], words[3]);
    if (count == 4 && !strcmp(words[1], "fetch"))
        return fetches(words[2], words[3]);
    fputs("files serve PORT FILE, or files fetch ADDRESS PORT\n", stderr);
    return 2;
}
