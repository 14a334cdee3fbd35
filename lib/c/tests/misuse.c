/* What is asked for wrongly is refused, with nothing sent: its input is a connected socket. */
#include <bulkhead.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static int refused(const char *what, long answer)
{
    if (answer == -1 && errno == EINVAL)
        return 0;
    fprintf(stderr, "%s: %ld, %s\n", what, answer, strerror(errno));
    return 1;
}

int main(void)
{
    bulkhead_circuit *circuit = bulkhead_from_fd(0);
    volatile void *room;
    const volatile void *came;
    int wrong = refused("nothing reserved", bulkhead_commit(circuit, 7));
    wrong += refused("all of it", bulkhead_reserve(circuit, (size_t)-1, &room));
    wrong += refused("too much", bulkhead_reserve(circuit, BULKHEAD_MOST + 1, &room));
    ssize_t there = bulkhead_reserve(circuit, BULKHEAD_MOST, &room);
    if (there < (ssize_t)BULKHEAD_MOST)
        wrong += refused("the most", 0);
    wrong += refused("more than reserved", bulkhead_commit(circuit, (size_t)there + 1));
    memcpy((void *)room, "asked\n", 6);
    if (bulkhead_commit(circuit, 6) != 6)
        wrong += refused("what was reserved", 0);
    wrong += refused("twice", bulkhead_commit(circuit, 6));
    wrong += refused("nothing peeked", bulkhead_consume(circuit, 1));
    there = bulkhead_peek(circuit, &came);
    wrong += refused("more than peeked", bulkhead_consume(circuit, (size_t)there + 1));
    if (there < 1 || bulkhead_consume(circuit, (size_t)there))
        wrong += refused("what was peeked at", 0);
    wrong += refused("consumed twice", bulkhead_consume(circuit, 1));
    bulkhead_close(circuit);
    return wrong != 0;
}
