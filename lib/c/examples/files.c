/* A server of one file, straight from it into the memory that both programs have:
 * files serve PORT FILE, and files fetch ADDRESS PORT, which writes what comes to its output. Before it
 * comes how long it is, eight bytes in the network's order, so that who fetches knows the whole from a part. */
#include <arpa/inet.h>
#include <bulkhead.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes read at a time. */
static const size_t part = 256 << 10;

/* 1 to 65535; 0: it is none. */
static in_port_t port_of(const char *word)
{
    char *end;
    long port = strtol(word, &end, 10);
    return *end || port < 1 || port > 65535 ? 0 : htons((unsigned short)port);
}

static int failed(const char *what)
{
    perror(what);
    return 1;
}

static size_t least(uint64_t a, size_t b)
{
    return a < b ? (size_t)a : b;
}

/* The file's bytes are made where the peer reads them. */
static int sends(bulkhead_circuit *circuit, int file)
{
    struct stat of;
    uint64_t left, length;
    volatile void *room;
    ssize_t there, n;
    if (fstat(file, &of))
        return -1;
    left = (uint64_t)of.st_size;
    length = htobe64(left);
    if (bulkhead_write(circuit, &length, sizeof length) != sizeof length)
        return -1;
    for (; left > 0; left -= (uint64_t)n) {
        there = bulkhead_reserve(circuit, 1, &room);
        if (there < 0)
            return -1;
        n = read(file, (void *)room, least(left, (size_t)there < part ? (size_t)there : part));
        if (n <= 0 || bulkhead_commit(circuit, (size_t)n) != n)
            return -1;
    }
    return 0;
}

/* One client, in a process of its own: a circuit is of the process that made it. */
static int answers(int fd, const char *path)
{
    bulkhead_circuit *circuit = bulkhead_from_fd(fd);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    int wrong = file < 0 || sends(circuit, file);
    printf("%s by %s%s%s\n", wrong ? "failed" : "sent", bulkhead_is_ring(circuit) ? "ring" : "socket",
           wrong ? ": " : "", wrong ? strerror(errno) : "");
    bulkhead_close(circuit);
    return wrong;
}

static int serves(in_port_t port, const char *path)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = port};
    int fd, one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 16))
        return failed("listen");
    signal(SIGCHLD, SIG_IGN);
    puts("serving");
    fflush(stdout);
    for (;;) {
        fd = accept(listener, NULL, NULL);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0)
            return failed("accept");
        if (fork() == 0)
            exit(answers(fd, path));
        close(fd);
    }
}

/* What comes is written from where it is: nothing is judged by it, so it may change meanwhile. But its
 * length is copied, and the copy is what counts. */
static int fetches(const char *host, in_port_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = port};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bulkhead_circuit *circuit;
    const volatile void *came;
    uint64_t left = 0;
    size_t had = 0;
    ssize_t there = 1, n;
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) {
        fprintf(stderr, "%s is no IPv4 address\n", host);
        return 2;
    }
    if (connect(fd, (struct sockaddr *)&address, sizeof address))
        return failed("connect");
    circuit = bulkhead_from_fd(fd);
    for (; had < sizeof left && there > 0; had += (size_t)there)
        there = bulkhead_read(circuit, (char *)&left + had, sizeof left - had);
    if (there < 0)
        return failed("read");
    left = be64toh(left);
    while (left > 0 && (there = bulkhead_peek(circuit, &came)) > 0) {
        n = write(STDOUT_FILENO, (const void *)came, least(left, (size_t)there));
        if (n < 0 || bulkhead_consume(circuit, (size_t)n))
            return failed("write");
        left -= (uint64_t)n;
    }
    if (there < 0)
        return failed("peek");
    bulkhead_close(circuit);
    if (there > 0)
        return 0;
    fputs("not all of it came\n", stderr);
    return 1;
}

int main(int count, char **words)
{
    in_port_t port = count == 4 ? port_of(words[2 + !strcmp(words[1], "fetch")]) : 0;
    if (port && !strcmp(words[1], "serve"))
        return serves(port, words[3]);
    if (port && !strcmp(words[1], "fetch"))
        return fetches(words[2], port);
    fputs("files serve PORT FILE, or files fetch ADDRESS PORT (1 to 65535)\n", stderr);
    return 2;
}
