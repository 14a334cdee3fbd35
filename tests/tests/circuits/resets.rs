//! How a connection by a ring ends, to who reads: as by TCP. What lies unread in a ring no kernel knows of.

use crate::library::paired;

/// `s` has written, and `c` is awake and has read some of that.
const BEGUN: &str = "
import select, threading, time
def finds_nothing(s):
    s.setblocking(False)
    try: print(s.recv(9))
    except BlockingIOError: s.setblocking(True)
def begun(much=100000):
    s, c = pair(); s.send(b'x' * much); finds_nothing(s); c.recv(much // 1000); return s, c
def hears(s, how=0):
    try: return s.recv(9, how).decode()
    except OSError as error: return type(error).__name__
def tells(what, s): print(what, hears(s) or 'end', hears(s) or 'end')
";

#[test]
fn who_shuts_down_both_ways_has_not_reset_what_it_reads_later() {
    let said = paired(
        "shuts.py",
        &format!(
            "{BEGUN}
s, c = begun(); c.shutdown(2); tells('both', s); print(len(whole(c, 99900)))
s, c = begun(); c.shutdown(0); c.shutdown(1); tells('one and the other', s)
s, c = begun(); c.shutdown(2); c.close(); tells('and closes', s)
s, c = begun(); c.shutdown(1); c.close(); tells('says no more, and closes', s)
s, c = begun(); c.send(b'answer'); c.shutdown(2); print(hears(s)); tells('answers', s)
s, c = begun()
if os.fork() == 0: c.shutdown(2); os._exit(0)
os.wait(); tells('a child does', s)
s, c = begun(); s.shutdown(1); c.shutdown(1); tells('each its own', s)
s, c = begun(); s.shutdown(2); tells('by its own', s)
s, c = begun(); s.shutdown(0); s.shutdown(1); tells('by its own, twice', s)
"
        ),
    );
    assert_eq!(
        said,
        "both end end\n99900\none and the other end end\nand closes end end\n\
         says no more, and closes end end\nanswer\nanswers end end\na child does end end\n\
         each its own end end\nby its own end end\nby its own, twice end end\n"
    );
}

/// The child's helper has none of its sockets, though it was forked with them.
#[test]
fn who_closes_last_resets_whoever_had_the_socket_before() {
    let said = paired(
        "last.py",
        &format!(
            "{BEGUN}
def unheard():
    s, c = begun(); whole(c, 99900); s.send(b'x' * 5000); return s, c
s, c = unheard()
helper = os.fork()
if helper == 0: os.execlp('sleep', 'sleep', '60')
while open(f'/proc/{{helper}}/comm').read().strip() != 'sleep': time.sleep(0.01)
c.close(); tells('a helper lives', s); os.kill(helper, 9); os.wait()
told = []
for n in range(30):
    s, c = unheard(); at = time.monotonic() + 0.02
    child = os.fork()
    while time.monotonic() < at: pass
    c.close()
    if child == 0: os._exit(0)
    os.wait(); told.append(hears(s) or 'end'); s.close()
print('both at once', sorted(set(told)))
s, c = begun(); whole(c, 99900)
reads = threading.Thread(target=c.recv, args=(100,)); reads.start(); time.sleep(0.2)
child = os.fork()
if child == 0: c.close(); s.close(); time.sleep(60); os._exit(0)
time.sleep(0.2); s.send(b'x' * 5000); reads.join(); c.close(); tells('it forks as a thread reads', s); os.kill(child, 9); os.wait()
s, c = begun(); whole(c, 99900); finds_nothing(c); s.send(b'x'); c.close()
print('by an option', s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), hears(s) or 'end')
"
        ),
    );
    assert_eq!(
        said,
        "a helper lives ConnectionResetError end\nboth at once ['ConnectionResetError']\nit forks as a thread reads ConnectionResetError end\nby an option 104 end\n"
    );
}

#[test]
fn a_reset_is_told_once_however_it_is_looked_for() {
    let said = paired(
        "resets.py",
        &format!(
            "{BEGUN}
s, c = begun(); c.close(); print('peek', hears(s, socket.MSG_PEEK), hears(s) or 'end')
s, c = begun(); s.shutdown(1); c.close(); tells('has said all', s)
s, c = begun(); c.close(); hears(s); s.shutdown(1); tells('told before', s)
def waited_for(says_more=True):
    s, c = pair(); s.send(b'x' * 100); says_more or s.shutdown(1); threading.Timer(0.3, c.close).start(); return s
s = waited_for(); print('peek that waits', hears(s, socket.MSG_PEEK), hears(s) or 'end')
tells('has said all, and waits', waited_for(False))
def written():
    s, c = pair(); s.send(b'x' * 100); whole(c, 100); c.send(b'y'); s.recv(9); s.send(b'x' * 100000); c.recv(100); return s, c
s, c = written(); c.close(); tells('late', s)
s, c = written(); c.send(b'answer'); c.close(); print(hears(s)); tells('answered', s)
for way in ('poll', 'select'):
    s, c = written(); watch = select.poll(); watch.register(s, select.POLLIN)
    def waits(time):
        if way == 'poll': return bool(watch.poll(time))
        return bool(select.select([s], [], [], time / 1000)[0])
    first = waits(100)
    # It closes nothing, and ends: by what its peer was known to wait for.
    child = os.fork()
    if child == 0: s.close(); time.sleep(0.5); os._exit(0)
    c.close(); print(first, waits(10000), end=' '); os.waitpid(child, 0); tells(way, s)
s, c = pair(); s.send(b'all'); whole(c, 3); c.close(); s.send(b'nobody closed upon'); tells('all was read', s)
"
        ),
    );
    let reset = "ConnectionResetError end\n";
    assert_eq!(
        said,
        format!(
            "peek {reset}has said all {reset}told before end end\npeek that waits {reset}\
             has said all, and waits {reset}late {reset}answer\nanswered {reset}\
             False True poll {reset}False True select {reset}all was read end end\n"
        )
    );
}

/// As TCP does: who takes POLLHUP for the end would read nothing of what lies before it.
#[test]
fn a_poll_tells_of_a_hang_up_once_both_ends_have_said_all() {
    let said = paired(
        "hangs.py",
        "
events = dict(IN=select.POLLIN, HUP=select.POLLHUP, ERR=select.POLLERR, RDHUP=select.POLLRDHUP)
def polled(s, of=select.POLLIN | select.POLLRDHUP, most=5000):
    poll = select.poll(); poll.register(s, of); came = poll.poll(most)
    return '+'.join(name for name, event in events.items() if came and came[0][1] & event) or 'nothing'
def ends(by, s, c, before, after):
    before(s); s.sendall(b'x' * 150000); s.close(); came, told = 0, set()
    while True:
        told.add(polled(c))
        try: more = len(c.recv(9000))
        except ConnectionResetError: told.add('reset'); more = 0
        came += more
        if not more: break
    told.add(polled(c, select.POLLIN)); told.add(polled(c, 0, 50))
    after(c); print(by, came, *sorted(told), 'then', polled(c), polled(c, 0))
def nothing(s): pass
def shuts(s): s.shutdown(socket.SHUT_WR)
ends('plain', *plain(), nothing, shuts)
ends('ring', *pair(), nothing, shuts)
s, c = pair(); ends('unread', s, c, lambda s: c.sendall(b'x'), nothing)
with socket.socket() as s: print(polled(s, 0, 50))
# Another thread says all meanwhile.
s, c = plain(); s.close(); threading.Timer(0.3, shuts, (c,)).start(); print(polled(c, 0, -1))
# A signal that the mask of a `ppoll` lets in is heard, though nothing else is told.
import errno
signal.signal(signal.SIGUSR1, lambda *_: None); signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
s, c = plain(); s.close(); os.kill(os.getpid(), signal.SIGUSR1); ctypes.set_errno(0)
print(libc.ppoll((ctypes.c_int * 2)(c.fileno(), 0), 1, (ctypes.c_long * 2)(), bytes(128)), errno.errorcode.get(ctypes.get_errno()))
# As many, and none of them keeps it from the others.
all = [plain() for _ in range(40)]; poll = select.poll()
for s, c in all: poll.register(c, 0); s.close()
s, c = plain(); poll.register(c, select.POLLIN); threading.Timer(0.3, s.send, (b'x',)).start()
print(poll.poll() == [(c.fileno(), select.POLLIN)])
",
    );
    let [plain, ring, unread, none, late, masked, others] =
        said.lines().collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(
        plain,
        "plain 150000 IN IN+RDHUP nothing then IN+HUP+RDHUP HUP"
    );
    assert_eq!(
        ring,
        "ring 150000 IN IN+RDHUP nothing then IN+HUP+RDHUP HUP"
    );
    // Its end read not all, which a read says.
    assert_eq!(
        unread,
        "unread 150000 HUP IN+HUP IN+RDHUP reset then IN+HUP+RDHUP HUP"
    );
    assert_eq!((none, late, others), ("HUP", "HUP", "True"));
    assert_eq!(masked, "-1 EINTR");
}
