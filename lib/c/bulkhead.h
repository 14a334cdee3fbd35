/* Circuits of Bulkhead for programs in C: docs/circuits-rings.md.
 *
 * A circuit is a connection. To a program that uses this library too, in endpoints of circuits of
 * one tenant, or across an agreement of which both sides ask for it, its bytes go by memory that both
 * have; to anybody else by its socket.
 *
 * A circuit is of one thread at a time, and of the process that made it: after fork the child
 * leaves it alone. Functions that return -1 have set errno; ECONNABORTED: the peer wrote nonsense
 * into what both have, and this circuit is dead.
 *
 * One that blocks waits for as long as it takes: a signal ends no call (there is no EINTR), and
 * SO_RCVTIMEO and SO_SNDTIMEO count for none. Who is to wait no longer than so sets it non-blocking,
 * and polls: no call waits then. */
#ifndef BULKHEAD_H
#define BULKHEAD_H

#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bulkhead_circuit bulkhead_circuit;

/* A connected stream socket, by which this end has neither read nor written anything yet. It is
 * the circuit's from now on. Never fails; NULL only where fd is negative. */
bulkhead_circuit *bulkhead_from_fd(int fd);

/* Ends it, and closes its socket. NULL is nothing. */
void bulkhead_close(bulkhead_circuit *circuit);

/* Its socket, to poll: readable while there is something to read (but after
 * bulkhead_set_polled(circuit, 0)), writable while a write takes bytes. Nothing else may be done with it but shutdown(2). */
int bulkhead_fd(const bulkhead_circuit *circuit);

/* 1: bytes that are written now go by memory; 0: by the socket. */
int bulkhead_is_ring(bulkhead_circuit *circuit);

/* As fcntl(O_NONBLOCK). 0, or -1. */
int bulkhead_set_nonblocking(bulkhead_circuit *circuit, int nonblocking);

/* How long who waits looks at the memory before it sleeps; 5 at first. */
void bulkhead_set_spin_us(bulkhead_circuit *circuit, unsigned microseconds);

/* Whether somebody polls its socket, as is believed at first. Where nobody does, 0 has who reads
 * sleep by the memory, which takes half the time; the socket tells nothing then, also not of what
 * is there when this is changed back: that is to be read first. */
void bulkhead_set_polled(bulkhead_circuit *circuit, int polled);

/* As read(2) and write(2). Bytes may be NULL only where their number is 0. */
ssize_t bulkhead_read(bulkhead_circuit *circuit, void *bytes, size_t length);
ssize_t bulkhead_write(bulkhead_circuit *circuit, const void *bytes, size_t length);

/* Room to make data in: how many bytes, at least `least`, from *at on; -1. EINVAL: more than
 * BULKHEAD_MOST. What was reserved before is given up. What is there is sent by bulkhead_commit alone, but the peer can see it,
 * and change it, at any time from now on: hence volatile. Until then nothing else is done with the
 * circuit. Where it goes by the socket this is a buffer, also where the ring is full and it does not block: there is no EAGAIN. */
#define BULKHEAD_MOST ((size_t)1 << 20)
ssize_t bulkhead_reserve(bulkhead_circuit *circuit, size_t least, volatile void **at);
/* Sends the first so many bytes of what was reserved: how many of them went; -1. All of them, if it
 * blocks, or the room is in the ring; what was reserved beyond them is given up. Where it does not
 * block, and the socket takes no more, it may be fewer, as by write(2): the rest stays reserved, where
 * it is, and is committed by another call (of what is left) once a poll says that it is writable.
 * Whoever writes or reserves before that gives it up. EAGAIN: none went, and all stays reserved. Any other error gives it up.
 * EINVAL: more than is reserved, of which nothing is sent. */
ssize_t bulkhead_commit(bulkhead_circuit *circuit, size_t length);

/* What has come: how many bytes, from *at on; 0: the stream has ended; -1. It stays until it is
 * consumed. The peer can change it at any time, between two looks too: hence volatile. What is
 * judged is to be copied first, and the copy judged. It waits for something, unless it does not block (EAGAIN). */
ssize_t bulkhead_peek(bulkhead_circuit *circuit, const volatile void **at);
/* EINVAL: more than was peeked at and is not consumed. */
int bulkhead_consume(bulkhead_circuit *circuit, size_t length);

#ifdef __cplusplus
}
#endif
#endif
