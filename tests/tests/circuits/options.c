// Options whose length is no number of bytes, or tells how much room there is to be, or which read what they are given.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
enum { MOST = 600 };
static struct sock_filter all[MOST], told[MOST];
int main(void) {
    int ends[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    for (int n = 0; n < MOST; n++) all[n] = (struct sock_filter){BPF_LD | BPF_IMM, 0, 0, n};
    for (int many = 5; many < MOST; many += many < 60 ? 55 : 170) {
        struct sock_fprog program = {many, all};
        all[many - 1] = (struct sock_filter){BPF_RET | BPF_K, 0, 0, 0xffff};
        int set = setsockopt(ends[0], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
        memset(told, 0xee, sizeof told);
        socklen_t length = many;
        int got = getsockopt(ends[0], SOL_SOCKET, SO_GET_FILTER, told, &length);
        int is_same = !memcmp(all, told, many * sizeof *all) && (many == MOST || ((char *)&told[many])[0] == (char)0xee);
        all[many - 1] = (struct sock_filter){BPF_LD | BPF_IMM, 0, 0, many - 1};
        printf("%d of a filter: %d %d %d %s\n", many, set, got, length, is_same ? "same" : "other");
    }
    const int options[][2] = {{SOL_SOCKET, SO_PEERCRED}, {SOL_SOCKET, SO_PEERGROUPS}, {SOL_SOCKET, SO_TYPE}, {SOL_SOCKET, SO_RCVTIMEO}, {SOL_SOCKET, SO_PEERSEC}};
    for (int n = 0; n < (int)(sizeof options / sizeof *options); n++)
        for (socklen_t room = 0; room < 24; room += 4) {
            char bytes[24];
            memset(bytes, 0xee, sizeof bytes);
            socklen_t length = room;
            int done = getsockopt(ends[0], options[n][0], options[n][1], bytes, &length);
            printf("%d with %u: %s %u", options[n][1], room, done ? strerrorname_np(errno) : "done", length);
            // Which process and user it is tells nothing here.
            for (int at = 0; at < 24 && n; at++) printf(" %02x", (unsigned char)bytes[at]);
            puts("");
        }
}
