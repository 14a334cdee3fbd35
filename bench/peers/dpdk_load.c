// dpdk_load.c: open-loop generator and sink over two DPDK ports, one thread that polls.
// Build: gcc -O3 -march=native dpdk_load.c $(pkg-config --cflags --libs libdpdk)
// Usage: dpdk_load EAL-ARGUMENTS. Asked by lines on standard input, answers one line each:
//   stations MAC0 IP0 MAC1 IP1      who the ports are          -> ok
//   learn                           a few frames each way      -> ok
//   converse FLOWS                  a packet of each flow each way -> ok | failed
//   links                           how many ports are up      -> 0 to 2
//   run SIZE FLOWS PPS MS PID       from port 0 to port 1; PPS 0 = what the port takes;
//                                   PID 0 = none, -1 = every window is clean
//     -> offered got seconds clean windows p50_ns p99_ns p999_ns taken
// Every packet's bytes are written before it is sent and read after it came. A run is cut
// into windows of 4 ms. A window counts as clean where this thread and the process PID had
// their processors to themselves in it and in the one before; offered, got, seconds and the
// delays are of clean windows. A packet is offered when it is due, whether or not the port
// takes it, and belongs to the window that it was due in.
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_ip.h>
#include <rte_mbuf.h>
#include <rte_udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BATCH 32
#define RING 1024
#define WINDOW_S 4e-3
#define WINDOWS 4096
#define FIRST_PORT 1024
#define PORTS 60000
#define SERVICE 4001
#define MARK 0x62656e63u
#define SUBS 64              /* buckets of each power of two */
#define BUCKETS (64 * SUBS)

struct mark { uint32_t magic; uint16_t run, window; uint64_t due; } __attribute__((packed));
static struct rte_mempool *pool;
static uint8_t frame[2][2048];
static struct { uint8_t mac[6]; uint32_t ip; } station[2];
static uint32_t *order, flows, at;
static uint64_t offered[WINDOWS], got[WINDOWS], delays[BUCKETS], recent[BUCKETS];
static uint16_t run_number;
static volatile uint64_t sink;

static double processor(int pid) {
    struct timespec t;
    clockid_t clock = pid ? (clockid_t)((~(unsigned)pid) << 3 | 2) : CLOCK_PROCESS_CPUTIME_ID;
    return clock_gettime(clock, &t) ? -1 : t.tv_sec + t.tv_nsec * 1e-9;
}

static void make(int from, unsigned size) {
    uint8_t *f = frame[from];
    for (unsigned i = 0; i < sizeof frame[0]; i++) f[i] = (uint8_t)i;
    memcpy(f, station[1 - from].mac, 6);
    memcpy(f + 6, station[from].mac, 6);
    f[12] = 8, f[13] = 0;
    struct rte_ipv4_hdr *ip = (void *)(f + 14);
    memset(ip, 0, sizeof *ip);
    ip->version_ihl = 0x45, ip->time_to_live = 64, ip->next_proto_id = 17;
    ip->total_length = htons(size - 14);
    ip->src_addr = station[from].ip, ip->dst_addr = station[1 - from].ip;
    ip->hdr_checksum = rte_ipv4_cksum(ip);
    struct rte_udp_hdr *udp = (void *)(ip + 1);
    memset(udp, 0, sizeof *udp);
    udp->dgram_len = htons(size - 34);
}

// Sends n packets of the next flows; says how many the port took.
static unsigned offer(int port, unsigned n, unsigned size, unsigned window, uint64_t due, uint64_t step) {
    struct rte_mbuf *m[BATCH];
    if (rte_pktmbuf_alloc_bulk(pool, m, n)) return 0;
    for (unsigned i = 0; i < n; i++) {
        uint8_t *d = rte_pktmbuf_mtod(m[i], uint8_t *);
        rte_memcpy(d, frame[port], size);
        uint32_t flow = order[at];
        at = at + 1 == flows ? 0 : at + 1;
        uint16_t a = htons(FIRST_PORT + flow % PORTS), b = htons(SERVICE + flow / PORTS);
        memcpy(d + 34, port ? &b : &a, 2);
        memcpy(d + 36, port ? &a : &b, 2);
        struct mark mark = {MARK, run_number, window, due + i * step};
        memcpy(d + 42, &mark, sizeof mark);
        m[i]->data_len = m[i]->pkt_len = size;
    }
    uint16_t k = rte_eth_tx_burst(port, 0, m, n);
    if (k < n) rte_pktmbuf_free_bulk(m + k, n - k);
    return k;
}

static inline unsigned bucket(uint64_t v) {
    if (v < SUBS) return v;
    unsigned power = 63 - __builtin_clzll(v);
    return (power - 5) * SUBS + ((v >> (power - 6)) & (SUBS - 1));
}
static double value(unsigned b) {
    if (b < SUBS) return b;
    unsigned power = b / SUBS + 5;
    return (double)((1ull << power) + ((uint64_t)(b % SUBS) << (power - 6)));
}

// Takes what came; says how many of this run's.
static unsigned take(int port) {
    struct rte_mbuf *m[BATCH];
    unsigned k = rte_eth_rx_burst(port, 0, m, BATCH), mine = 0;
    if (!k) return 0;
    uint64_t now = rte_rdtsc(), sum = 0;
    for (unsigned i = 0; i < k; i++) {
        const uint8_t *d = rte_pktmbuf_mtod(m[i], const uint8_t *);
        unsigned length = m[i]->data_len;
        struct mark mark;
        if (length < 58) continue;
        memcpy(&mark, d + 42, sizeof mark);
        for (unsigned j = 0; j + 8 <= length; j += 8) { uint64_t w; memcpy(&w, d + j, 8); sum += w; }
        if (mark.magic != MARK || mark.run != run_number || memcmp(d, station[port].mac, 6)) continue;
        mine++;
        if (mark.window < WINDOWS) got[mark.window]++;
        if (now > mark.due) recent[bucket(now - mark.due)]++; else recent[0]++;
    }
    sink = sum;
    rte_pktmbuf_free_bulk(m, k);
    return mine;
}

static void shuffle(uint32_t n) {
    flows = n, at = 0;
    order = realloc(order, n * sizeof *order);
    uint64_t r = 0x9e3779b97f4a7c15ull;
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    for (uint32_t i = n - 1; i > 0; i--) {
        r ^= r >> 12, r ^= r << 25, r ^= r >> 27;
        uint32_t j = (r * 0x2545f4914f6cdd1dull >> 33) % (i + 1), t = order[i];
        order[i] = order[j], order[j] = t;
    }
}

static double quantile(const uint64_t *all, double q, double hz) {
    uint64_t sum = 0, seen = 0;
    for (unsigned i = 0; i < BUCKETS; i++) sum += all[i];
    for (unsigned i = 0; i < BUCKETS; i++) if ((seen += all[i]) && seen >= q * sum) return value(i) / hz * 1e9;
    return 0;
}

static void converse(uint32_t n, double hz) {
    make(0, 64), make(1, 64), shuffle(n), run_number++;
    for (uint32_t first = 0; first < n; first += 256) {
        uint32_t count = n - first < 256 ? n - first : 256;
        for (int side = 0; side < 2; side++) {
            uint32_t came = 0;
            uint64_t end = rte_rdtsc() + 5 * hz;
            at = first;
            for (uint32_t sent = 0; sent < count;) {
                uint32_t more = count - sent < BATCH ? count - sent : BATCH, before = at;
                uint32_t took = offer(side, more, 64, WINDOWS, rte_rdtsc(), 0);
                sent += took, at = (before + took) % n;
                came += take(1 - side);
                if (rte_rdtsc() > end) break;
            }
            while (came < count && rte_rdtsc() < end) came += take(1 - side);
            if (came < count) { printf("failed %u of %u\n", came, count); return; }
        }
    }
    printf("ok\n");
}

static void run(unsigned size, uint32_t n, double pps, double ms, int pid, double hz) {
    if (flows != n) shuffle(n);
    make(0, size), run_number++;
    memset(offered, 0, sizeof offered), memset(got, 0, sizeof got), memset(delays, 0, sizeof delays), memset(recent, 0, sizeof recent);
    static uint8_t own[WINDOWS];
    static double width_s[WINDOWS];
    memset(own, 0, sizeof own);
    uint64_t t0 = rte_rdtsc(), end = t0 + ms * 1e-3 * hz, now, due_count = 0, taken = 0;
    uint64_t width = WINDOW_S * hz, edge = t0 + width;
    double mine = processor(0), its = pid > 0 ? processor(pid) : 0;
    unsigned w = 0;
    double gap = pps > 0 ? hz / pps : 0;
    do {
        now = rte_rdtsc();
        if (pps > 0) {
            uint64_t due = (now - t0) / gap;
            // What was due while this thread was away is offered at once, and late.
            for (int i = 0; i < 4 && due_count < due; i++) {
                unsigned k = due - due_count < BATCH ? due - due_count : BATCH;
                taken += offer(0, k, size, w, t0 + (uint64_t)(due_count * gap), gap);
                offered[w] += k, due_count += k;
            }
        } else {
            unsigned k = offer(0, BATCH, size, w, now, 0);
            offered[w] += k, taken += k;
        }
        take(1);
        take(0);
        if (now >= edge) {
            double a = processor(0), b = pid > 0 ? processor(pid) : 0, d = WINDOW_S + (now - edge) / hz;
            own[w] = pid < 0 || (a - mine > 0.97 * d && (!pid || b - its > 0.97 * d));
            if (own[w] && w && own[w - 1]) for (unsigned i = 0; i < BUCKETS; i++) delays[i] += recent[i];
            memset(recent, 0, sizeof recent);
            width_s[w] = d, mine = a, its = b, edge = now + width;
            if (++w >= WINDOWS - 1) break;
        }
    } while (now < end);
    uint64_t patience = rte_rdtsc() + 5e-3 * hz;
    while (rte_rdtsc() < patience) take(1);
    uint64_t all = 0, came = 0;
    unsigned clean = 0;
    double seconds = 0;
    for (unsigned i = 1; i < w; i++) if (own[i] && own[i - 1]) clean++, all += offered[i], came += got[i], seconds += width_s[i];
    printf("%lu %lu %.6f %u %u %.0f %.0f %.0f %lu\n", all, came, seconds, clean, w,
           quantile(delays, 0.5, hz), quantile(delays, 0.99, hz), quantile(delays, 0.999, hz), taken);
}

static int mac(const char *text, uint8_t *m) {
    return sscanf(text, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", m, m + 1, m + 2, m + 3, m + 4, m + 5) == 6;
}

int main(int c, char **v) {
    if (rte_eal_init(c, v) < 0) return 1;
    pool = rte_pktmbuf_pool_create("p", 16383, 256, 0, 2176, 0);
    if (!pool || rte_eth_dev_count_avail() != 2) { fprintf(stderr, "no pool, or not two ports\n"); return 1; }
    for (int p = 0; p < 2; p++) {
        struct rte_eth_conf conf;
        memset(&conf, 0, sizeof conf);
        if (rte_eth_dev_configure(p, 1, 1, &conf) || rte_eth_rx_queue_setup(p, 0, RING, 0, NULL, pool) ||
            rte_eth_tx_queue_setup(p, 0, RING, 0, NULL) || rte_eth_dev_start(p)) { fprintf(stderr, "port %d does not start\n", p); return 1; }
        rte_eth_promiscuous_enable(p);
    }
    double hz = rte_get_tsc_hz();
    shuffle(1);
    char line[256], a[32], b[32], ip0[32], ip1[32];
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ready\n");
    while (fgets(line, sizeof line, stdin)) {
        unsigned size, n;
        double pps, ms;
        int pid;
        if (sscanf(line, "stations %31s %31s %31s %31s", a, ip0, b, ip1) == 4 && mac(a, station[0].mac) && mac(b, station[1].mac)) {
            unsigned x[4];
            for (int s = 0; s < 2; s++) {
                if (sscanf(s ? ip1 : ip0, "%u.%u.%u.%u", x, x + 1, x + 2, x + 3) != 4) return 2;
                station[s].ip = htonl(x[0] << 24 | x[1] << 16 | x[2] << 8 | x[3]);
            }
            printf("ok\n");
        } else if (!strncmp(line, "links", 5)) {
            struct rte_eth_link l;
            int up = 0;
            for (int p = 0; p < 2; p++) { rte_eth_link_get_nowait(p, &l); up += l.link_status; }
            printf("%d\n", up);
        } else if (!strncmp(line, "learn", 5)) {
            make(0, 64), make(1, 64), run_number++;
            unsigned came[2] = {0, 0};
            for (int i = 0; i < 20; i++) {
                for (int p = 0; p < 2; p++) offer(p, 4, 64, WINDOWS, 0, 0);
                usleep(20000);
                for (int j = 0; j < 50; j++) for (int p = 0; p < 2; p++) came[p] += take(p);
            }
            printf("%s %u %u\n", came[0] && came[1] ? "ok" : "failed", came[0], came[1]);
        } else if (sscanf(line, "converse %u", &n) == 1 && n) converse(n, hz);
        else if (sscanf(line, "run %u %u %lf %lf %d", &size, &n, &pps, &ms, &pid) == 5 && size >= 60 && size <= 2000 && n) run(size, n, pps, ms, pid, hz);
        else printf("what\n");
    }
    return 0;
}
