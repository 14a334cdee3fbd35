// What a program might try that no library would. One word says what; it prints what came.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

// Tries until the other thread had a processor beside this one, on a busy machine too.
enum { MANY = 100000 };

static volatile int over;
static volatile struct sockaddr_in to;

static struct sockaddr_in at(const char *address, int port) {
  struct sockaddr_in made = {.sin_family = AF_INET, .sin_port = htons(port)};
  inet_pton(AF_INET, address, &made.sin_addr);
  return made;
}

static sigjmp_buf back;
static void faulted(int number) { siglongjmp(back, number); }

static void say(const char *what, long result) {
  printf("%s: %s\n", what, result >= 0 ? "DONE" : strerrorname_np(-result));
}

// As a 32-bit program would call. Where the kernel has no such calls it is a fault.
static long narrow(long number, long a, long b, long c) {
  long result = -ENOSYS;
  signal(SIGSEGV, faulted);
  if (sigsetjmp(back, 1) == 0)
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory", "r8", "r9", "r10", "r11");
  return (int)result;
}

static long wide(long number, long a, long b, long c) {
  long result = syscall(number, a, b, c, 0, 0, 0);
  return result < 0 ? -errno : result;
}

static void conventions(void) {
  say("int 0x80 socket", narrow(359, AF_INET, SOCK_STREAM, 0));
  say("int 0x80 connect", narrow(362, 0, 0, 0));
  say("int 0x80 socketcall", narrow(102, 1, 0, 0));
  say("int 0x80 io_uring_setup", narrow(425, 1, 0, 0));
  say("x32 socket", wide(0x40000000 + SYS_socket, AF_INET, SOCK_STREAM, 0));
  say("x32 setsockopt", wide(0x40000000 + 541, 0, 1, 2));
  say("io_uring_setup", wide(425, 1, 0, 0));
  say("io_uring_enter", wide(426, 0, 0, 0));
  say("io_uring_register", wide(427, 0, 0, 0));
}

// Ports of the address change from the allowed one (80) to the denied one (81) and back.
static void *flips(void *none) {
  while (!over) {
    to.sin_port = htons(81);
    to.sin_port = htons(80);
  }
  return none;
}

static void flip(void) {
  pthread_t thread;
  int done = 0, denied = 0, wrong = 0;
  struct sockaddr_in first = at("10.1.1.10", 80);
  memcpy((void *)&to, &first, sizeof first);
  pthread_create(&thread, 0, flips, 0);
  for (int n = 0; n < 400 || (n < MANY && (!done || !denied)); n++) {
    int s = socket(AF_INET, SOCK_STREAM, 0);
    char said[8] = "";
    if (connect(s, (struct sockaddr *)&to, sizeof to) == 0) {
      if (read(s, said, 2) == 2 && strcmp(said, "80") == 0) done++;
      else wrong++;
    } else if (errno == EACCES) denied++;
    else wrong++;
    close(s);
  }
  over = 1;
  pthread_join(thread, 0);
  printf("%d %d %d\n", done, denied, wrong);
}

// One number is now a circuit, now an AF_UNIX socket without a name.
static int number, circuit, plain;

static void *swaps(void *none) {
  while (!over) {
    dup2(plain, number);
    dup2(circuit, number);
  }
  return none;
}

static int made_pair(int *accepted) {
  struct sockaddr_in own = at("127.0.0.1", 0);
  socklen_t length = sizeof own;
  int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
  bind(listener, (struct sockaddr *)&own, sizeof own);
  listen(listener, 5);
  getsockname(listener, (struct sockaddr *)&own, &length);
  if (connect(client, (struct sockaddr *)&own, sizeof own)) perror("connect"), exit(1);
  *accepted = accept(listener, 0, 0);
  // The listener stays open: it is what has a name.
  return client;
}

static void swap(void) {
  pthread_t thread;
  int accepted, pair[2], client = made_pair(&accepted), found = 0, internet = 0, none = 0, passing = 0;
  int all[2] = {client, accepted};
  socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
  plain = pair[0], number = dup(plain);
  for (int which = 0; which < 2; which++) {
    circuit = all[which], over = 0;
    pthread_create(&thread, 0, swaps, 0);
    for (int n = 0; n < 6000 || (!(internet && none) && n < MANY); n++) {
      union { struct sockaddr_storage any; struct sockaddr a; struct sockaddr_un u; char bytes[200]; } name;
      socklen_t length = sizeof name;
      memset(&name, 0, sizeof name);
      int kind = n % 4, done;
      if (kind == 0) done = getpeername(number, &name.a, &length);
      else if (kind == 1) done = getsockname(number, &name.a, &length);
      else if (kind == 2) done = getsockopt(number, SOL_SOCKET, 28, &name, &length);
      else {
        // A descriptor that could be passed is one too much.
        int one = 1;
        done = setsockopt(number, SOL_SOCKET, 83, &one, sizeof one);
        one = 0, length = sizeof one;
        if (getsockopt(circuit, SOL_SOCKET, 83, &one, &length) == 0 && one) passing++;
        continue;
      }
      if (done) none++;
      else if (name.a.sa_family == AF_UNIX && length > 2) found++;
      else if (name.a.sa_family == AF_INET) internet++;
      else none++;
    }
    over = 1;
    pthread_join(thread, 0);
  }
  printf("found %d passing %d", found, passing);
  printf(internet && none ? " both seen\n" : " one kind alone\n");
  fprintf(stderr, "%d of circuits, %d others\n", internet, none);
}

// One that the kernel accepts at a circuit's listener, which stood where a plain one stood when it was asked.
static void *calls(void *none) {
  struct sockaddr_in own;
  socklen_t length = sizeof own;
  getsockname(circuit, (struct sockaddr *)&own, &length);
  while (!over) {
    int client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    connect(client, (struct sockaddr *)&own, length);
    close(client);
  }
  return none;
}

static void steal(void) {
  struct sockaddr_in own = at("127.0.0.1", 0);
  struct sockaddr_un name = {AF_UNIX};
  pthread_t swapping, calling;
  int stolen = 0, known = 0, passing = 0, named = 0;
  circuit = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  plain = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0), number = dup(plain);
  snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "steals %d", getpid());
  if (bind(circuit, (struct sockaddr *)&own, sizeof own) || listen(circuit, 50)) perror("listen"), exit(1);
  if (bind(plain, (struct sockaddr *)&name, sizeof name) || listen(plain, 5)) perror("plain"), exit(1);
  pthread_create(&swapping, 0, swaps, 0);
  pthread_create(&calling, 0, calls, 0);
  for (int n = 0; n < MANY && (stolen < 3 || !known); n++) {
    union { struct sockaddr_storage any; struct sockaddr a; struct sockaddr_un u; } peer;
    socklen_t length = sizeof peer;
    int one = 1, came = accept(number, 0, 0);
    if (came < 0) continue;
    if (!getpeername(came, &peer.a, &length)) {
      if (peer.a.sa_family == AF_INET) known++;
      else if (length > 2) named++;
    } else stolen++;
    setsockopt(came, SOL_SOCKET, 83, &one, sizeof one);
    one = 0, length = sizeof one;
    if (!getsockopt(came, SOL_SOCKET, 83, &one, &length) && one) passing++;
    close(came);
  }
  over = 1;
  pthread_join(swapping, 0);
  pthread_join(calling, 0);
  printf("named %d passing %d%s\n", named, passing, stolen && known ? " both seen" : " one kind alone");
}

// A name of its choice for a circuit: the kernel binds one socket, which stood where the circuit
// stands by then.
static void take(void) {
  pthread_t thread;
  int taken = 0, bound = 0;
  plain = socket(AF_UNIX, SOCK_STREAM, 0), circuit = socket(AF_INET, SOCK_STREAM, 0), number = dup(plain);
  pthread_create(&thread, 0, swaps, 0);
  for (int n = 0; n < 3000 || (!bound && n < MANY); n++) {
    struct sockaddr_un name = {AF_UNIX}, own;
    socklen_t length = sizeof own;
    snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "a name of %d, %d", getpid(), n);
    if (bind(number, (struct sockaddr *)&name, sizeof name)) continue;
    // Where a descriptor's number is in use already, it is this one's all the same.
    int before = plain;
    if (getsockname(before, (struct sockaddr *)&own, &length)) continue;
    if (length == sizeof(sa_family_t)) taken++;
    else {
      bound++;
      plain = socket(AF_UNIX, SOCK_STREAM, 0);
      usleep(100);
      close(before);
    }
  }
  over = 1;
  pthread_join(thread, 0);
  printf("taken %d%s\n", taken, bound ? ", others bound" : "");
}

// Keeps one that the kernel accepted, past the operator, who was made to forget that anybody waited.
static void keeps(void) {
  struct sockaddr_in own = at("0.0.0.0", 80);
  struct sockaddr_un name = {AF_UNIX};
  char bytes[1000];
  int came = -1;
  circuit = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  plain = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0), number = dup(plain);
  snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "keeps %d", getpid());
  if (bind(circuit, (struct sockaddr *)&own, sizeof own) || listen(circuit, 5)) perror("listen"), exit(1);
  if (bind(plain, (struct sockaddr *)&name, sizeof name) || listen(plain, 5)) perror("plain"), exit(1);
  puts("listens");
  while (came < 0) {
    pthread_t thread;
    struct pollfd one = {circuit, POLLIN, 0};
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;
    poll(&one, 1, -1);
    over = 0;
    pthread_create(&thread, 0, swaps, 0);
    for (int n = 0; n < MANY && came < 0; n++) came = accept(number, 0, 0);
    over = 1;
    pthread_join(thread, 0);
    if (came >= 0 && !getpeername(came, (struct sockaddr *)&peer, &length)) close(came), came = -1;
  }
  accept(circuit, 0, 0);
  puts("keeps");
  while (read(came, bytes, sizeof bytes) > 0);
  puts("over");
  pause();
}

static int is_connected(int s) {
  struct pollfd one = {s, POLLOUT, 0};
  return poll(&one, 1, 0) == 1 && !(one.revents & POLLHUP);
}

// Circuits that the kernel has connected to a plain socket of its own, past the operator, are to be connected to another's.
static void feign(const char *path) {
  struct sockaddr_un own = {AF_UNIX};
  struct sockaddr_in victim = at("10.1.1.10", 80);
  int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0), passed = 0, feigned = 0, told = 0, got;
  snprintf(own.sun_path, sizeof own.sun_path, "%s", path);
  if (bind(listener, (struct sockaddr *)&own, sizeof own) || listen(listener, 64)) perror("listen"), exit(1);
  plain = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0), circuit = plain, number = dup(plain);
  for (int n = 0; n < 12; n++) {
    pthread_t thread;
    circuit = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), over = 0;
    pthread_create(&thread, 0, swaps, 0);
    for (int tries = 0; tries < MANY && !is_connected(circuit); tries++) {
      int before = plain;
      connect(number, (struct sockaddr *)&own, sizeof own);
      if (!is_connected(before)) continue;
      plain = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
      usleep(100);
      close(before);
      while (!is_connected(circuit) && (got = accept(listener, 0, 0)) >= 0) close(got);
    }
    over = 1;
    pthread_join(thread, 0);
    if (!is_connected(circuit)) continue;
    passed++;
    // All stay open.
    while (accept(listener, 0, 0) >= 0);
    if (!connect(circuit, (struct sockaddr *)&victim, sizeof victim)) feigned++;
    else if (errno == EISCONN) told++;
  }
  printf("feigned %d%s\n", feigned, passed && told == passed ? ", told so" : "");
  pause();
}

// What is done by a program that has other rights than who runs it.
static void rights(void) {
  int s = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in allowed = at("10.1.1.10", 80), denied = at("10.1.1.10", 81);
  printf("%d ", geteuid());
  say("denied", connect(s, (struct sockaddr *)&denied, sizeof denied) ? -errno : 0);
  say("allowed", connect(s, (struct sockaddr *)&allowed, sizeof allowed) ? -errno : 0);
}

int main(int count, char **words) {
  setvbuf(stdout, 0, _IOLBF, 0);
  const char *word = count > 1 ? words[1] : "rights";
  if (!strcmp(word, "conventions")) conventions();
  if (!strcmp(word, "flip")) flip();
  if (!strcmp(word, "swap")) swap();
  if (!strcmp(word, "steal")) steal();
  if (!strcmp(word, "take")) take();
  if (!strcmp(word, "keeps")) keeps();
  if (!strcmp(word, "feign")) feign(words[2]);
  if (!strcmp(word, "rights")) rights();
}
