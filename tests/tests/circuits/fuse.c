// A file of a FUSE of one's own. What uses it follows.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void must(int ok, const char *what) {
    if (!ok) { printf("%s: %s\n", what, strerrorname_np(errno)); fflush(stdout); _exit(2); }
}

// Has a byte for each question that is not answered.
static int asked[2];

// Answers what a file of one page is opened by, and nothing else: what asks for more waits; or, where there
// is nothing to be silent at, who closes it for so many milliseconds.
static void serves(int fuse, int silent, int slow) {
    static char in[1 << 20];
    for (;;) {
        ssize_t got = read(fuse, in, sizeof in);
        if (got < 0 && (errno == EINTR || errno == ENOENT)) continue;
        if (got <= 0) _exit(0);
        struct fuse_in_header *h = (void *)in;
        struct { struct fuse_out_header h; union { struct fuse_init_out init; struct fuse_open_out open; struct fuse_attr_out attr; char page[4096]; } b; } out;
        memset(&out, 0, sizeof out);
        size_t body = 0;
        if (h->opcode == FUSE_INIT) {
            out.b.init.major = FUSE_KERNEL_VERSION; out.b.init.minor = 31; out.b.init.max_write = 4096;
            body = sizeof out.b.init;
        } else if (h->opcode == FUSE_OPEN) body = sizeof out.b.open;
        else if (h->opcode == FUSE_GETATTR) {
            out.b.attr.attr_valid = 1000; out.b.attr.attr.ino = 1; out.b.attr.attr.mode = S_IFREG | 0777;
            out.b.attr.attr.nlink = 1; out.b.attr.attr.size = 4096;
            body = sizeof out.b.attr;
        } else if (h->opcode == FUSE_READ && silent == FUSE_WRITE) {
            body = sizeof out.b.page;
        } else if ((int)h->opcode == silent) {
            if (write(asked[1], "", 1) < 0) {}
            continue;
        } else if (h->opcode == FUSE_FLUSH && slow) usleep(slow * 1000);
        else if (h->opcode == FUSE_INTERRUPT || h->opcode == FUSE_FORGET) continue;
        else out.h.error = -ENOSYS;
        out.h.unique = h->unique; out.h.len = sizeof out.h + body;
        if (write(fuse, &out, out.h.len) < 0) {}
    }
}

