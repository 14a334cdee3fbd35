/* What a circuit that does not block does not send stays reserved, whatever signals come: its input is
 * a connected socket. It says so when no more of it goes, and sends the rest as it can. */
#include <bulkhead.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>

static const size_t part = 300001;

static void nothing(int number)
{
    (void)number;
}

static int failed(const char *what, long answer)
{
    fprintf(stderr, "%s: %ld, %s\n", what, answer, strerror(errno));
    return 1;
}

int main(void)
{
    struct itimerval often = {{0, 2000}, {0, 2000}};
    struct sigaction action = {.sa_handler = nothing};
    bulkhead_circuit *circuit = bulkhead_from_fd(0);
    struct pollfd polled = {.fd = bulkhead_fd(circuit), .events = POLLOUT};
    volatile void *room;
    size_t sent = 0, left = 0;
    ssize_t went;
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    if (bulkhead_set_nonblocking(circuit, 1))
        return failed("set_nonblocking", -1);
    while (left == 0) {
        if ((went = bulkhead_reserve(circuit, part, &room)) < (ssize_t)part)
            return failed("reserve", went);
        for (size_t n = 0; n < part; n++)
            ((volatile unsigned char *)room)[n] = (unsigned char)((sent + n) % 251);
        left = part;
        while (left > 0 && (went = bulkhead_commit(circuit, left)) > 0)
            left -= (size_t)went;
        sent += part;
    }
    if (went != -1 || errno != EAGAIN)
        return failed("commit to one who does not read", went);
    puts("full");
    fflush(stdout);
    while (left > 0) {
        if (poll(&polled, 1, -1) < 0 && errno != EINTR)
            return failed("poll", -1);
        went = bulkhead_commit(circuit, left);
        if (went > 0)
            left -= (size_t)went;
        else if (errno != EAGAIN)
            return failed("commit of the rest", went);
    }
    /* And one that blocks sends all of it. */
    bulkhead_set_nonblocking(circuit, 0);
    if (bulkhead_reserve(circuit, part, &room) < (ssize_t)part)
        return failed("reserve", -1);
    for (size_t n = 0; n < part; n++)
        ((volatile unsigned char *)room)[n] = (unsigned char)((sent + n) % 251);
    if ((went = bulkhead_commit(circuit, part)) != (ssize_t)part)
        return failed("commit of one that blocks", went);
    bulkhead_close(circuit);
    return 0;
}
