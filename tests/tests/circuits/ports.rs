//! Of several that have a port beside an interface, who comes from packets to whom.

use crate::proxy::{box_says, in_box, scene};
use std::time::Duration;

/// Says again what it hears, at the packets' side.
const ECHO: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.1.1.20', 9000)); print('bound', flush=True)
while True: s.sendto(*s.recvfrom(9))
";

/// Of programs that share a port (SO_REUSEPORT) each has some of those who come from packets, and where one ends the others have all.
#[test]
fn who_comes_from_packets_to_several_that_share_a_port_finds_those_that_are_there() {
    const SERVES: &str = "
import os, socket
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind(('10.1.1.13', 9000)); s.listen(64); print('serving', flush=True)
while True:
    with s.accept()[0] as c: c.sendall(b'%d' % os.getpid())
";
    const ASKS: &str = "
import socket
def asks():
    with socket.create_connection(('10.1.1.13', 9000), 5) as s: return s.recv(9)
print(len({asks() for _ in range(40)}))
";
    let scene = scene("");
    scene.file("serves.py", SERVES);
    scene.file("asks.py", ASKS);
    let serves = || scene.start("both", "exec python3 {f}/serves.py", "serving");
    let says = || box_says(&scene, "exec /usr/bin/python3 {f}/asks.py");
    let [first, second] = [serves(), serves()];
    assert_eq!(says(), ["2"]);
    drop(first);
    assert_eq!(says(), ["1"]);
    // Its successor does not know which of them its proxy listened for.
    let third = serves();
    scene.kill_operator();
    assert_eq!(says(), ["2"]);
    drop(second);
    assert_eq!(says(), ["1"]);
    drop(third);
}

/// A listener of both families comes after, or beside, one that has its port for one of them: as of the kernel's own the nearer one is
/// reached, and the other once that is gone.
#[test]
fn a_listener_of_both_families_is_reached_whoever_has_its_port_for_one() {
    const LISTENS: &str = "
import select, socket, sys, time
def listens(ip, only6=0):
    s = socket.socket(socket.AF_INET6 if ':' in ip else socket.AF_INET)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if ':' in ip: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only6)
    s.bind((ip, 9000)); s.listen(64); return s
names = {}
def serves(until):
    print('serving', flush=True)
    while True:
        for s in select.select(list(names), [], [])[0]:
            c = s.accept()[0]
            with c:
                if c.recv(9) == b'end': return
                c.sendall(names[s])
# One after another.
for first, only6 in [('0.0.0.0', 0), ('::', 1)]:
    s = listens(first, only6); names = {s: b'first'}; serves(first)
    s.close(); s = listens('::'); names = {s: b'both'}; serves('::'); s.close(); time.sleep(0.1)
# One beside another.
four = listens('0.0.0.0'); names = {four: b'four'}; serves('four')
both = listens('::'); names[both] = b'both'; serves('both')
del names[four]; four.close(); serves('both')
";
    const ASKS: &str = "
import socket, sys, time
def asks(to, what):
    end = time.monotonic() + 2
    while True:
        try:
            with socket.create_connection((to, 9000), 5) as s: s.sendall(what); return s.recv(9).decode()
        except OSError as error:
            if time.monotonic() > end: return str(error)
            time.sleep(0.01)
said = {to: asks(to, b'who') for to in sys.argv[1:]}; asks(sys.argv[1], b'end'); print(*said.values())
";
    let scene = scene("");
    scene.file("listens.py", LISTENS);
    scene.file("asks.py", ASKS);
    let listens = scene.spawn(scene.command("both", "exec python3 {f}/listens.py"));
    let [four, six] = ["10.1.1.13", "fd00:1::13"];
    let both = [four, six];
    for (n, (to, said)) in [
        (&[four][..], "first"),
        (&both, "both both"),
        (&[six], "first"),
        (&both, "both both"),
        (&[four], "four"),
        (&both, "four both"),
        (&both, "both both"),
    ]
    .into_iter()
    .enumerate()
    {
        listens.until(&"serving\n".repeat(n + 1));
        let line = format!("exec /usr/bin/python3 {{f}}/asks.py {}", to.join(" "));
        assert_eq!(box_says(&scene, &line), [said], "{n}: {}", listens.err());
    }
}

/// A program of the namespace's own has the port first, and ends: it is the listener's then.
#[test]
fn a_listener_has_its_port_once_an_ordinary_program_leaves_it() {
    const LISTENS: &str =
        "import socket, time; s = socket.create_server(('10.1.1.13', 9000)); print('serving', flush=True)
while True: s.accept()[0].close()
";
    const ASKS: &str = "
import os, socket, sys, time
def reaches():
    try: socket.create_connection(('10.1.1.13', 9000), 5).close(); return True
    except OSError: return False
print(reaches(), flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
end = time.monotonic() + 10
while not reaches() and time.monotonic() < end: time.sleep(0.05)
print(reaches(), flush=True)
";
    let scene = scene("");
    scene.file("listens.py", LISTENS);
    scene.file("asks.py", ASKS);
    let ordinary = scene.spawn(scene.line("both", "exec /usr/bin/python3 {f}/listens.py"));
    ordinary.until("serving");
    let _listens = scene.start("both", "exec python3 {f}/listens.py", "serving");
    let asks = scene.spawn(in_box(&scene, "exec /usr/bin/python3 {f}/asks.py {f}/go"));
    asks.until("True\n");
    drop(ordinary);
    scene.file("go", "");
    asks.until("True\nTrue\n");
}

/// Who is known at a socket of any address is heard by the one that is bound to its own address since.
#[test]
fn a_peer_is_heard_by_the_nearer_socket_that_came_since() {
    const BINDS: &str = "
import select, socket, sys, time
def bound(ip):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((ip, 9000)); return s
def heard(s): return bool(select.select([s], [], [], 0.5)[0]) and s.recv(9)
def empties(s):
    while select.select([s], [], [], 0)[0]: s.recv(9)
any = bound('0.0.0.0'); print('bound', flush=True); who = any.recvfrom(9)[1]; print('any', flush=True)
own = bound('10.1.1.13'); print('own', heard(own), flush=True)
# It answers what it was asked before, and its peer is the other's still.
any.sendto(b'late', who); time.sleep(0.1); empties(own); print('own', heard(own), flush=True)
empties(any)
print('any', heard(any), flush=True)
own.close(); print('any', heard(any) or heard(any), flush=True)
";
    const SENDS: &str = "
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True: s.sendto(b'said', ('10.1.1.13', 9000)); time.sleep(0.02)
";
    let scene = scene("");
    scene.file("binds.py", BINDS);
    scene.file("sends.py", SENDS);
    let binds = scene.start("both", "exec python3 {f}/binds.py", "bound");
    let _sends = scene.spawn(in_box(&scene, "exec /usr/bin/python3 {f}/sends.py"));
    std::thread::sleep(Duration::from_millis(300));
    binds.until("bound\nany\nown b'said'\nown b'said'\nany False\nany b'said'\n");
}

/// As servers accept by UDP: another socket at the port, which is connected to a peer. It has that one, and the first all others.
#[test]
fn who_accepts_a_peer_by_udp_takes_no_other_along() {
    const ACCEPTS: &str = "
import ctypes, select, socket, sys, time
def bound(port=9000):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(('0.0.0.0', port)); s.settimeout(10); return s
def all(s, t):
    said, end = set(), time.monotonic() + t
    while time.monotonic() < end:
        if select.select([s], [], [], 0.05)[0]: said.add(s.recv(9).decode())
    return sorted(said)
first = bound(); print('bound', flush=True)
who = {}
while len(who) < 3: data, peer = first.recvfrom(9); who[data] = peer
second = bound()
# In between it is the nearest of all.
while second.recv(9) != b'q': pass
first.sendto(b'late', who[b'q'])
second.connect(who[b'p']); second.send(b'accepted')
all(first, 0.3); all(second, 0.3)
print(all(first, 0.5), all(second, 0.5), flush=True)
second.connect(who[b'q']); all(first, 0.3); all(second, 0.3)
print(all(first, 0.5), all(second, 0.5), flush=True)
# Connected no more it is the nearest again.
assert ctypes.CDLL(None).connect(second.fileno(), bytes(16), 16) == 0; all(first, 0.3)
print(all(first, 0.5), all(second, 0.5), flush=True)
second.close(); all(first, 0.3); print(all(first, 0.5), flush=True)
# Who was not heard a moment ago is heard at once.
late = bound(9001); late.connect(who[b'p']); open(sys.argv[1], 'w'); time.sleep(0.3); begun = time.monotonic()
assert ctypes.CDLL(None).connect(late.fileno(), bytes(16), 16) == 0
while late.recv(9) == b'p': pass
print(time.monotonic() - begun < 0.3, flush=True)
";
    const SENDS: &str = "
import os, socket, sys, time
all = [(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), said) for said in (b'p', b'q', b'r')]
while True:
    for s, said in all: s.sendto(said, ('10.1.1.13', 9000))
    if os.path.exists(sys.argv[1]): all[1][0].sendto(b'q', ('10.1.1.13', 9001))
    time.sleep(0.02)
";
    let scene = scene("");
    scene.file("accepts.py", ACCEPTS);
    scene.file("sends.py", SENDS);
    let accepts = scene.start("both", "exec python3 {f}/accepts.py {f}/late", "bound");
    let line = "exec /usr/bin/python3 {f}/sends.py {f}/late";
    let _sends = scene.spawn(in_box(&scene, line));
    let said =
        "bound\n['q', 'r'] ['p']\n['p', 'r'] ['q']\n[] ['p', 'q', 'r']\n['p', 'q', 'r']\nTrue\n";
    accepts.until(said);
}

/// One socket that is connected from one port after another has the last alone, and so there are others.
#[test]
fn a_socket_that_goes_from_port_to_port_keeps_none() {
    const GOES: &str = "
import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); ports = set()
for n in range(1100):
    s.connect(('10.1.1.20', 9000)); ports.add(s.getsockname()[1])
    assert libc.connect(s.fileno(), bytes(16), 16) == 0, ctypes.get_errno()
t = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); t.settimeout(5); t.connect(('10.1.1.20', 9000)); t.send(b'said')
print(len(ports) > 1000, t.recv(9))
";
    let scene = scene("");
    scene.file("goes.py", GOES);
    scene.file("echo.py", ECHO);
    let echo = scene.spawn(in_box(&scene, "exec /usr/bin/python3 {f}/echo.py"));
    echo.until("bound");
    let said = scene.says("both", "exec python3 {f}/goes.py");
    assert_eq!(said, "True b'said'\n");
}

/// As resolvers do: a socket for each question, which is closed then. Hundreds that are closed are told of at once.
#[test]
fn short_lived_sockets_lose_nothing() {
    const ASKS: &str = "
import socket
def asks(n, connects):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(5); said = b'%d' % n
        if connects: s.connect(('10.1.1.20', 9000)); s.send(said)
        else: s.sendto(said, ('10.1.1.20', 9000))
        assert s.recv(9) == said
for n in range(1200): asks(n, n % 2)
print('all')
";
    let scene = scene("");
    scene.file("asks.py", ASKS);
    scene.file("echo.py", ECHO);
    let echo = scene.spawn(in_box(&scene, "exec /usr/bin/python3 {f}/echo.py"));
    echo.until("bound");
    assert_eq!(scene.says("both", "exec python3 {f}/asks.py"), "all\n");
}
