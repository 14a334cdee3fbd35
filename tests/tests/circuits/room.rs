//! Who comes by an agreement where there is no room yet.

use crate::across::{ANSWERS, SPEC, circuits, scene, text};
use crate::scene::kill;
use std::time::Duration;

/// Serves one after another, waiting for each by poll(2) and then in an accept(2) that blocks.
const POLLED: &str = "
import select, socket, sys
s = socket.socket(); s.bind(('10.1.1.10', 5432)); s.listen(int(sys.argv[1]))
poll = select.poll(); poll.register(s, select.POLLIN); print('serving', flush=True)
for n in range(int(sys.argv[2])):
    assert poll.poll(10000), n
    c, who = s.accept(); c.sendall(b'%d\\n' % n)
    assert c.recv(10) == b'thanks', n
    assert c.recv(10) == b'', n
    c.close()
assert not poll.poll(300), 'somebody who is not there'
s.setblocking(False)
try: s.accept()
except BlockingIOError: print('done', flush=True)
";

/// Connects so many at once, each in a thread, and says which answers came.
const MANY: &str = "
import socket, sys, threading
from concurrent.futures import ThreadPoolExecutor
def one(n):
    c = socket.create_connection((sys.argv[1], 5432), timeout=20)
    got = c.recv(100); c.sendall(b'thanks'); c.shutdown(socket.SHUT_WR)
    assert c.recv(10) == b''
    return int(got)
with ThreadPoolExecutor(int(sys.argv[2])) as all:
    got = sorted(all.map(one, range(int(sys.argv[2]))))
assert got == list(range(int(sys.argv[2]))), got
print('all', flush=True)
";

/// A queue that is full has them wait, each is there once, and who polls is told of each and of
/// none that is not there.
#[test]
fn who_comes_waits_for_room_and_is_accepted_once() {
    let scene = scene(SPEC);
    scene.file("polled.py", POLLED);
    scene.file("many.py", MANY);
    for backlog in [1, 128] {
        let line = format!("exec python3 {{f}}/polled.py {backlog} 40");
        let mut server = scene.start("red/db", &line, "serving");
        assert_eq!(
            scene.says("blue/app", "exec python3 {f}/many.py 10.1.200.10 40"),
            "all\n"
        );
        assert_eq!(
            server.wait(Duration::from_secs(20)),
            Some(0),
            "{}",
            server.err()
        );
        assert!(server.out().ends_with("done\n"));
    }
}

/// Who waits for room is judged again when there is some, and goes by the meter if it has a rate by then.
#[test]
fn who_waits_is_let_through_by_what_holds_then() {
    const FULL: &str = "
import socket, sys
s = socket.socket(); s.bind(('10.1.1.10', 5432)); s.listen(0); print('serving', flush=True)
sys.stdin.readline()
kept = []
for _ in range(2):
    s.settimeout(6)
    try: kept.append(s.accept())
    except TimeoutError: pass
print('done', flush=True)
sys.stdin.readline()
";
    const WAITS: &str = "
import errno, socket, threading, sys
first = socket.create_connection(('10.1.200.10', 5432))
print('first', flush=True)
try: second = socket.create_connection(('10.1.200.10', 5432)); print('connected', flush=True)
except OSError as error: print(errno.errorcode.get(error.errno, error), flush=True)
sys.stdin.readline()
";
    for changed in ["", "blue", "red", "rate"] {
        let scene = scene(SPEC);
        scene.file("full.py", FULL);
        scene.file("waits.py", WAITS);
        let line =
            "(while [ ! -e {f}/go ]; do sleep 0.05; done; echo go; sleep 60) | python3 {f}/full.py";
        let server = scene.start("red/db", line, "serving");
        let client = scene.start("blue/app", "sleep 60 | python3 {f}/waits.py", "first\n");
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(client.out(), "first\n", "it does not wait");
        let is_denied = ["blue", "red"].contains(&changed);
        if changed == "rate" {
            let app = "attach: circuits}\n      - {name: other";
            scene.apply(&SPEC.replace(app, &app.replace('}', ", rate: {from: 1Mbit}}")));
        }
        if is_denied {
            let of = format!("  - name: {changed}\n");
            let agreement = match changed {
                "blue" => "to: {agreement: reds-db}",
                _ => "from: {agreement: db}",
            };
            let rule = format!("{{name: no, action: deny, {agreement}}}");
            let rules = format!("{of}    policy: {{rules: [{rule}]}}\n");
            scene.apply(&SPEC.replace(&of, &rules));
        }
        scene.file("go", "");
        client.until(if is_denied { "EACCES\n" } else { "connected\n" });
        server.until("done");
        if is_denied {
            continue;
        }
        let all = circuits(&scene);
        let blues = all
            .iter()
            .filter(|row| text(row, "compartment") == "blue")
            .map(|row| text(&row["circuit"], "kind"));
        let blues: Vec<&str> = blues.collect();
        let expected: &[&str] = match changed {
            // The first one went past it, and is over.
            "rate" => &["metered"],
            _ => &["kernel", "kernel"],
        };
        assert_eq!(blues, expected, "{changed}: {all:?}");
    }
}

/// Many wait at a full listening socket: nobody else is kept from anything, and when it ends, however
/// it does, all are told. The same inside a tenant.
#[test]
fn who_waits_for_room_holds_nobody_up_and_is_told_of_the_end() {
    const FULL: &str = "
import os, socket, sys, time
s = socket.socket(); s.bind(('10.1.1.10', 5432)); s.listen(0); print('serving', flush=True)
while not os.path.exists(sys.argv[2]): time.sleep(0.05)
if sys.argv[1] == 'close': s.close()
if sys.argv[1] == 'shutdown': s.shutdown(socket.SHUT_RDWR)
if sys.argv[1] != 'exit': print('ended', flush=True); time.sleep(60)
";
    const WAIT: &str = "
import errno, socket, sys
from concurrent.futures import ThreadPoolExecutor
def one(_):
    c = socket.socket()
    try: c.connect((sys.argv[1], 5432)); return c
    except OSError as error: return errno.errorcode[error.errno]
many = int(sys.argv[2])
with ThreadPoolExecutor(many) as all:
    print('waiting', flush=True); got = list(all.map(one, range(many)))
said = [it for it in got if isinstance(it, str)]
print(len(said) >= many - 2, sorted(set(said)), flush=True)
";
    for (n, how) in ["exit", "close", "shutdown"].iter().enumerate() {
        let scene = scene(SPEC);
        scene.file("full.py", FULL);
        scene.file("wait.py", WAIT);
        let line = format!("exec python3 {{f}}/full.py {how} {{f}}/end");
        let _full = scene.start("red/db", &line, "serving");
        let _other = scene.start("red/db", "exec {peer} serve 5433", "serving");
        let line = "exec python3 {f}/wait.py 10.1.200.10 100";
        let across = scene.start("blue/app", line, "waiting");
        let within = scene.start(
            "red/backup",
            "exec python3 {f}/wait.py 10.1.1.10 5",
            "waiting",
        );
        std::thread::sleep(Duration::from_millis(500));
        // Who waits is no circuit yet, and least of all one from the other side.
        let all = circuits(&scene);
        assert!(all.len() < 10, "{}", all.len());
        assert!(
            all.iter().all(|row| text(row, "to") != "blue/app"),
            "{all:?}"
        );
        assert!(scene.tries("blue/app", "10.1.200.10,5433")[0].starts_with("10.1.250."));
        if n == 0 {
            // Those that are killed wait no more.
            let line = "exec python3 {f}/wait.py 10.1.200.10 50";
            let killed = scene.start("blue/app", line, "waiting");
            std::thread::sleep(Duration::from_millis(300));
            drop(killed);
        }
        // All of them, until then.
        assert_eq!([&across, &within].map(|it| it.out()), ["waiting\n"; 2]);
        scene.file("end", "");
        for waits in [&across, &within] {
            waits.until("True ['ECONNREFUSED']\n");
        }
    }
}

/// Each death of either side's operator would have those that wait longest wait longer.
#[test]
fn who_waits_from_across_keeps_its_turn_over_operators_deaths() {
    const SERVES: &str = "
import os, socket, sys, time
s = socket.socket(); s.bind(('10.1.1.10', 5432)); s.listen(0); print('listens', flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
print([s.accept()[0].recv(9).decode() for _ in range(12)], flush=True)
";
    const ASKS: &str = "
import socket, threading, time
def one(n):
    with socket.create_connection(('10.1.200.10', 5432)) as s: s.sendall(b'%d' % n); s.recv(1)
for n in range(12): time.sleep(0.1); threading.Thread(target=one, args=(n,)).start()
time.sleep(0.1); print('asked', flush=True)
";
    let scene = scene(SPEC);
    scene.file("serves.py", SERVES);
    scene.file("asks.py", ASKS);
    let server = scene.start("red/db", "exec python3 {f}/serves.py {f}/go", "listens");
    let _asks = scene.start("blue/app", "exec python3 {f}/asks.py", "asked");
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(500));
        for operator in scene.instance.children("bulkhead-operator") {
            kill("KILL", &operator.to_string());
        }
    }
    std::thread::sleep(Duration::from_secs(1));
    scene.file("go", "");
    let order: Vec<String> = (0..12).map(|n| format!("'{n}'")).collect();
    server.until(&format!("[{}]\n", order.join(", ")));
}

/// The tenant's own are always some that wait, and one that comes by the agreement has its place among them.
#[test]
fn who_comes_by_an_agreement_has_its_turn_beside_the_tenants_own() {
    const SLOW: &str = "
import socket, time
s = socket.create_server(('10.1.1.10', 5432), backlog=128); print('serving', flush=True)
while True:
    c, _ = s.accept()
    with c: c.sendall(b'x'); time.sleep(0.02)
";
    const OWN: &str = "
import socket, threading
def asks():
    while True:
        with socket.create_connection(('10.1.1.10', 5432)) as c: c.recv(1)
for _ in range(4): threading.Thread(target=asks).start()
while True:
    with socket.create_connection(('10.1.1.10', 5432)) as c: c.recv(1)
    print('on', flush=True)
";
    const ACROSS: &str = "
import socket, threading
def asks():
    with socket.create_connection(('10.1.200.10', 5432), 60) as c: print('served', c.recv(1), flush=True)
for _ in range(6): threading.Thread(target=asks).start()
";
    let scene = scene(SPEC);
    scene.file("slow.py", SLOW);
    scene.file("own.py", OWN);
    scene.file("across.py", ACROSS);
    let _slow = scene.start("red/db", "exec python3 {f}/slow.py", "serving");
    let mut own = scene.start("red/backup", "exec python3 {f}/own.py", "on");
    let line = "exec timeout 20 python3 {f}/across.py";
    assert_eq!(scene.says("blue/app", line), "served b'x'\n".repeat(6));
    assert_eq!(own.wait(Duration::from_millis(1)), None, "{}", own.err());
}

/// Who closes tells nobody, here less than elsewhere: of many short connections, many more than its
/// endpoint may have sockets, none is turned away, nor waits long.
#[test]
fn many_short_connections_find_room() {
    const SHORT: &str = "
import errno, socket, time
refused, longest = 0, 0
for n in range(600):
    begun = time.monotonic()
    c = socket.socket()
    c.setblocking(n % 2 == 0)
    while True:
        try:
            c.connect(('10.1.200.10', 5432)); break
        except OSError as e:
            if e.errno == errno.EAGAIN: refused += 1; time.sleep(0.01)
            elif e.errno == errno.EISCONN: break
            else: time.sleep(0.001)
    c.setblocking(True)
    c.sendall(b'x'); c.shutdown(socket.SHUT_WR); assert c.recv(10) == b'x'
    c.close()
    longest = max(longest, time.monotonic() - begun)
print(refused, 'fast' if longest < 0.8 else longest)
";
    let few = SPEC.replace(
        "\"fd00:1:1:1::10\"], attach: circuits}\n      - {name: backup",
        "\"fd00:1:1:1::10\"], attach: {circuits: {sockets: 64}}}\n      - {name: backup",
    );
    assert_ne!(few, SPEC);
    let scene = scene(&few);
    scene.file("answers.py", ANSWERS);
    scene.file("short.py", SHORT);
    let _server = scene.start("red/db", "exec python3 {f}/answers.py", "serving");
    // Who waits for room waits for it each time; a machine that stands still does so once.
    let mut all = (0..3).map(|_| scene.says("blue/app", "exec python3 {f}/short.py"));
    let said: Vec<_> = all.by_ref().take_while(|said| said != "0 fast\n").collect();
    assert!(said.iter().all(|said| said.starts_with("0 ")), "{said:?}");
    assert!(said.len() < 3, "{said:?}");
}

/// The listener's own tenant has more that wait than are ever let in: who comes by the agreement has turns beside them.
#[test]
fn who_waits_from_across_has_turns_beside_the_tenants_own() {
    const SERVES: &str = "
import socket, time
s = socket.socket(); s.bind(('10.1.1.10', 5432)); s.listen(2); print('serving', flush=True)
while True: time.sleep(0.01); s.accept()[0].close()
";
    const OWN: &str = "
import socket, threading
def one():
    while True:
        s = socket.socket(); s.connect(('10.1.1.10', 5432)); s.close()
for _ in range(16): threading.Thread(target=one).start()
print('asks', flush=True)
";
    const ACROSS: &str = "
import socket
for n in range(20): s = socket.socket(); s.connect(('10.1.200.10', 5432)); s.close()
print('well')
";
    let scene = scene(SPEC);
    scene.programs([
        ("serves.py", SERVES),
        ("own.py", OWN),
        ("across.py", ACROSS),
    ]);
    let _server = scene.start("red/db", "exec python3 {f}/serves.py", "serving");
    let _own = scene.start("red/backup", "exec python3 {f}/own.py", "asks");
    let line = "timeout 60 python3 {f}/across.py";
    assert_eq!(scene.says("blue/app", line), "well\n");
}
