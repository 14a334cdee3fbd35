//! Processes die while circuits are in use.

use crate::proxy::proxy;
use crate::scene::{OPEN, Scene, kill};
use e2e::Instance;
use std::time::Duration;

/// The last number that a `follow` has printed.
fn last(follow: &crate::scene::Program) -> u64 {
    let out = follow.out();
    let whole = out.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole
        .lines()
        .last()
        .and_then(|l| l.parse().ok())
        .unwrap_or(0)
}

fn goes_on(scene: &Scene, follow: &crate::scene::Program, when: &str) {
    let from = last(follow);
    let more = |_: &e2e::Instance| last(follow) >= from + 500;
    let limit = Duration::from_secs(10);
    assert!(
        scene.instance.until(limit, more),
        "{when}: stands at {from}: {} {}",
        last(follow),
        follow.err()
    );
}

#[test]
fn connections_go_on_through_the_death_of_operator_and_supervisor() {
    let scene = Scene::of(OPEN);
    let _server = scene.start("web", "{peer} stream 9000", "serving");
    let follows = [
        scene.start("app", "{peer} follow 10.1.1.10 9000", "100\n"),
        scene.start("few", "{peer} follow fd00:1::10 9000", "100\n"),
    ];
    for (round, died) in ["operator", "supervisor", "operator", "switch"]
        .into_iter()
        .enumerate()
    {
        match died {
            "operator" => scene.kill_operator(),
            "switch" => drop(scene.instance.kill("red")),
            _ => scene.instance.kill_program("bulkhead-supervisor"),
        }
        for follow in &follows {
            goes_on(&scene, follow, &format!("{round} {died}"));
        }
        // And new ones are made, by programs that run and by new ones.
        let line = "{peer} follow 10.1.1.10 9000";
        let limit = Duration::from_secs(10);
        let starts = |_: &e2e::Instance| scene.sh("few", "true").ok();
        assert!(scene.instance.until(limit, starts), "after {died}");
        let follow = scene.start("app", line, "100\n");
        goes_on(&scene, &follow, "new");
    }
}

/// What follows an operator is confined before it dies, and has its uid; with the last endpoint
/// both are gone.
#[test]
fn an_operators_successor_waits_for_its_death() {
    let scene = Scene::of(OPEN);
    let operators = || scene.instance.children("bulkhead-operator");
    let limit = Duration::from_secs(10);
    let status = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let uid = |pid: u32| {
        let status = status(pid);
        let line = status.lines().find(|line| line.starts_with("Uid:"));
        line.unwrap_or_default().to_owned()
    };
    let mut successor = None;
    // Where nobody runs there is nobody to wait for.
    let _server = scene.start("web", "{peer} stream 9000", "serving");
    let follow = scene.start("app", "{peer} follow 10.1.1.10 9000", "100\n");
    for death in 0..3 {
        let both = |_: &e2e::Instance| operators().len() == 2;
        assert!(scene.instance.until(limit, both), "{:?}", operators());
        let [first, next] = operators()[..] else {
            panic!("{:?}", operators());
        };
        assert_eq!(first, *successor.get_or_insert(first), "death {death}");
        let confined =
            |_: &e2e::Instance| status(next).contains("Seccomp:\t2") && uid(next) == uid(first);
        assert!(scene.instance.until(limit, confined), "{}", status(next));
        scene.kill_operator();
        goes_on(&scene, &follow, "killed");
        assert_eq!(scene.sh("few", "true").code, 0);
        successor = Some(next);
    }
    // Neither does a spare's death cost anything, nor is its uid given away with it.
    let both = |_: &e2e::Instance| operators().len() == 2;
    assert!(scene.instance.until(limit, both), "{:?}", operators());
    let [first, spare] = operators()[..] else {
        panic!("{:?}", operators());
    };
    kill("KILL", &spare.to_string());
    let another = |_: &e2e::Instance| operators().len() == 2 && !operators().contains(&spare);
    assert!(scene.instance.until(limit, another), "{:?}", operators());
    assert_eq!(operators()[0], first);
    goes_on(&scene, &follow, "its spare killed");
    scene.apply(
        "version: 1\ntenants:\n  - name: red\n    subnets:\n      - { name: lan, prefixes: [10.1.1.0/24] }\n",
    );
    let gone = |_: &e2e::Instance| operators().is_empty();
    assert!(scene.instance.until(limit, gone), "{:?}", operators());
}

#[test]
fn who_waits_for_a_connection_gets_it_after_the_operators_death() {
    const WAITS: &str = "
import socket
s = socket.socket(); s.bind(('10.1.1.10', 7000)); s.listen()
while True:
    print('waits', flush=True)
    c, who = s.accept()
    print('got', who[0], c.recv(100).decode(), flush=True)
    c.sendall(b'yes')
";
    let scene = Scene::of(OPEN);
    scene.file("waits.py", WAITS);
    let waits = scene.start("web", "exec python3 {f}/waits.py", "waits");
    let asks = "python3 -c 'import socket; s = socket.create_connection((\"10.1.1.10\", 7000), 20); s.sendall(b\"asked\"); print(s.recv(100).decode())'";
    for round in 1..=3 {
        // It is in its accept by then.
        std::thread::sleep(Duration::from_millis(100));
        scene.kill_operator();
        if round == 3 {
            scene.instance.kill_program("bulkhead-supervisor");
        }
        let limit = Duration::from_secs(10);
        let mut said = Vec::new();
        let starts = |_: &e2e::Instance| {
            let start = std::time::Instant::now();
            let one = scene.sh("app", "true");
            let ok = one.ok();
            said.push((start.elapsed(), one));
            ok
        };
        if !scene.instance.until(limit, starts) {
            let (one, last) = (&said[0], &said[said.len() - 1]);
            panic!(
                "{} tries, first {one:?}, last {last:?}\n{}",
                said.len(),
                scene.instance.log()
            );
        }
        assert_eq!(scene.says("app", asks), "yes\n", "{}", waits.err());
        assert_eq!(waits.out().matches("got 10.1.1.11 asked").count(), round);
    }
}

/// Each death would have those that wait longest wait longer.
#[test]
fn who_waits_for_room_keeps_its_turn_over_the_operators_death() {
    const SERVES: &str = "
import os, socket, sys, time
s = socket.socket(); s.bind(('10.1.1.10', 7000)); s.listen(0); print('listens', flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
print([s.accept()[0].recv(9).decode() for _ in range(int(sys.argv[2]))], flush=True)
";
    // One after the other, each once those before it wait; of the two programs each every other one.
    const ASKS: &str = "
import os, socket, sys, threading, time
def one(n):
    with socket.create_connection(('10.1.1.10', 7000)) as s: s.sendall(b'%d' % n); s.recv(1)
begun = float(sys.argv[1])
for n in range(int(sys.argv[2]), 20, 2):
    time.sleep(max(0, begun + n * 0.1 - time.time())); threading.Thread(target=one, args=(n,)).start()
print('asked', flush=True)
";
    let scene = Scene::of(OPEN);
    scene.programs([("serves.py", SERVES), ("asks.py", ASKS)]);
    let line = "exec python3 {f}/serves.py {f}/go 20";
    let server = scene.start("web", line, "listens");
    let begun = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let begun = begun.as_secs_f64() + 2.0;
    let asks = [("app", 0), ("few", 1)].map(|(at, first)| {
        scene.spawn(scene.command(at, &format!("exec python3 {{f}}/asks.py {begun} {first}")))
    });
    for one in &asks {
        one.until("asked\n");
    }
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(300));
        scene.kill_operator();
    }
    std::thread::sleep(Duration::from_millis(300));
    scene.file("go", "");
    let order: Vec<String> = (0..20).map(|n| format!("'{n}'")).collect();
    server.until(&format!("[{}]\n", order.join(", ")));
}

#[test]
fn every_connect_ends_while_the_operator_dies_thirty_times() {
    every_connect_ends(OPEN);
}

#[test]
fn every_metered_connect_ends_while_the_operator_dies_thirty_times() {
    let web = "\"fd00:1::10\"], attach: circuits }";
    assert!(OPEN.contains(web));
    let spec = OPEN.replace(
        web,
        "\"fd00:1::10\"], attach: { circuits: { metered: on } } }",
    );
    every_connect_ends(&spec);
}

/// Those to `web` of this spec, from others and from itself.
fn every_connect_ends(spec: &str) {
    const SERVER: &str = "
import socket, threading
s = socket.socket(); s.bind(('10.1.1.10', 7000)); s.listen(64)
def serve():
    while True:
        c, who = s.accept()
        c.settimeout(10)
        try: c.sendall(b'%s %d %s' % (who[0].encode(), who[1], c.recv(100)))
        except OSError: pass
        c.close()
for _ in range(4): threading.Thread(target=serve).start()
print('serving', flush=True)
";
    // It asks until it is told to stop, and 400 times at least; SIGALRM ends what hangs, and
    // the program with it.
    const CLIENT: &str = "
import collections, errno, os, signal, socket, sys
ended, asked, stop = collections.Counter(), 0, sys.argv[1]
while asked < 400 or not os.path.exists(stop):
    asked += 1
    signal.alarm(30)
    try:
        with socket.socket() as s:
            s.settimeout(None)
            s.connect(('10.1.1.10', 7000))
            if s.getpeername() != ('10.1.1.10', 7000): sys.exit('another')
            word = b'%d of %d' % (asked, os.getpid())
            s.sendall(word)
            # Its listener sees it as what it is.
            own = b'%s %d %s' % (s.getsockname()[0].encode(), s.getsockname()[1], word)
            came = s.recv(100)
            ended['right' if came == own else 'nothing' if not came else f'{came} for {own}'] += 1
    except OSError as error: ended[errno.errorcode[error.errno]] += 1
    signal.alarm(0)
print(asked, dict(ended), flush=True)
";
    let scene = Scene::of(spec);
    scene.file("server.py", SERVER);
    scene.file("client.py", CLIENT);
    let server = scene.start("web", "exec python3 {f}/server.py", "serving");
    let line = "exec python3 {f}/client.py {f}/stop";
    let mut clients: Vec<_> = ["app", "app", "few", "web"]
        .iter()
        .map(|at| scene.spawn(scene.command(at, line)))
        .collect();
    for _ in 0..30 {
        // Long enough for calls to be under way at any point.
        std::thread::sleep(Duration::from_millis(60));
        scene.kill_operator();
    }
    scene.file("stop", "");
    let (mut total, mut lost) = (0, 0);
    for client in &mut clients {
        let code = client.wait(Duration::from_secs(60));
        let out = client.out();
        println!("{out}");
        assert_eq!(code, Some(0), "{out}{}", client.err());
        let asked: u64 = out.split_whitespace().next().unwrap().parse().unwrap();
        assert!(!out.contains(" for "), "{out}");
        let right = out
            .split("'right': ")
            .nth(1)
            .and_then(|it| it.split([',', '}']).next());
        lost += asked - right.unwrap().parse::<u64>().unwrap();
        total += asked;
    }
    assert!(total >= 1_000, "{total}");
    // One that is accepted in the very moment of a death, between two calls of the operator's.
    let taken = scene.taken_along();
    assert!(
        lost <= taken && taken <= 12,
        "{lost} of {total} connections are lost, {taken} may be"
    );
    // Listeners and all of their threads are as before.
    assert!(server.err().is_empty(), "{}", server.err());
    scene.file("again", "");
    let line = "exec python3 {f}/client.py {f}/again";
    for at in ["app", "few"] {
        let said = scene.says(at, line);
        assert_eq!(said, "400 {'right': 400}\n");
    }
}

/// By an event; and while there is none, to programs, and by a name of its own.
#[test]
fn a_proxy_that_died_is_told_of() {
    let scene = crate::proxy::scene("");
    let limit = Duration::from_secs(10);
    let dies = || kill("KILL", &proxy(&scene).unwrap().to_string());
    dies();
    let events = scene.spawn(scene.instance.command(&["events", "--last", "100"]));
    let lost = |_: &Instance| events.out().matches("proxy-lost").count() == 1;
    assert!(scene.instance.until(limit, lost), "{}", events.out());
    assert!(scene.instance.until(limit, |_| proxy(&scene).is_some()));
    // Nobody starts another meanwhile.
    let waits = "echo ready; until test -e {f}/go; do sleep 0.01; done; {peer} try 10.1.1.20,80";
    let tries = scene.start("both", waits, "ready");
    let supervisor = scene.instance.child("bulkhead-supervisor").unwrap();
    kill("STOP", &supervisor.to_string());
    dies();
    std::thread::sleep(Duration::from_millis(100));
    scene.file("go", "");
    let tried = |_: &Instance| tries.out().lines().count() > 1;
    let tried = scene.instance.until(limit, tried);
    kill("CONT", &supervisor.to_string());
    assert!(tried, "{}", tries.err());
    assert_eq!(tries.out(), "ready\nEHOSTUNREACH\n");
    let told = |it: &Instance| it.drops("red", "both", "proxy-gone") == Ok(1);
    assert!(scene.instance.until(limit, told));
}

/// Its proxy listens on meanwhile, and says again who came.
#[test]
fn who_comes_from_packets_is_neither_refused_nor_reset_while_an_operator_is_replaced() {
    const ECHO: &str = "
import socket, threading
def echo(c):
    with c:
        try: c.sendall(c.recv(1))
        except OSError: pass
def serve(s):
    while True: threading.Thread(target=echo, args=s.accept()[:1], daemon=True).start()
# One for each family at one port, as nginx and sshd have them.
six = socket.create_server(('::', 9000), family=socket.AF_INET6, backlog=128)
four = socket.create_server(('0.0.0.0', 9000), backlog=128); print('serving', flush=True)
threading.Thread(target=serve, args=[six], daemon=True).start(); serve(four)
";
    const ASKS: &str = "
import os, socket, sys, threading, time
while True:
    try: [socket.create_connection((it, 9000), 1).close() for it in ('10.1.1.13', 'fd00:1::13')]; break
    except OSError: time.sleep(0.1)
print('asks', flush=True)
done = []; failed = []
def asks(to):
    while not os.path.exists(sys.argv[1]):
        try:
            with socket.create_connection((to, 9000), 20) as s:
                s.sendall(b'x'); done.append(s.recv(1) == b'x')
        except ConnectionResetError: failed.append('reset')
        except OSError as error: failed.append((to, str(error)))
threads = [threading.Thread(target=asks, args=[['10.1.1.13', 'fd00:1::13'][n % 2]]) for n in range(8)]
for it in threads: it.start()
for it in threads: it.join()
print(len(done) > 100, all(done), failed)
";
    let (said, taken) = asks_while_operators_die([ECHO, ASKS], (12, 200), "True True [");
    // As each that an operator takes along (decision 35).
    let may =
        (0..=taken.min(3)).map(|n| format!("True True {:?}\n", vec!["reset"; n]).replace('"', "'"));
    assert!(
        may.into_iter().any(|it| said.ends_with(&it)),
        "{said}{taken}"
    );
}

/// One with packets asks a program with circuits until it is told to end, while so many operators die, each so many milliseconds
/// after the last; what it says, with that at its end, and how many operators may have taken a connection along.
fn asks_while_operators_die(
    [echo, asks]: [&str; 2],
    (deaths, after): (u32, u64),
    end: &str,
) -> (String, usize) {
    let scene = crate::proxy::scene("");
    scene.file("echo.py", echo);
    scene.file("asks.py", asks);
    let _echo = scene.start("both", "exec python3 {f}/echo.py", "serving");
    let line = "exec /usr/bin/python3 {f}/asks.py {f}/end";
    let asks = scene.spawn(crate::proxy::in_box(&scene, line));
    asks.until("asks");
    for _ in 0..deaths {
        std::thread::sleep(Duration::from_millis(after));
        scene.kill_operator();
    }
    std::thread::sleep(Duration::from_secs(1));
    scene.file("end", "");
    asks.until(end);
    (asks.out(), scene.taken_along() as usize)
}

/// What is asked of a program by datagrams meanwhile is not refused, and is answered by the next ones.
#[test]
fn who_asks_from_packets_by_udp_is_not_refused_while_an_operator_is_replaced() {
    const ECHO: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.1.1.13', 9000)); print('serving', flush=True)
while True:
    data, who = s.recvfrom(100); s.sendto(data, who)
";
    const ASKS: &str = "
import os, socket, sys, threading
answered = [0] * 8; refused = []
def peer():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.2); s.connect(('10.1.1.13', 9000)); return s
while True:
    with peer() as s:
        try: s.send(b'there?'); s.recv(100); break
        except OSError: pass
print('asks', flush=True)
def asks(n):
    s = peer(); i = 0
    while not os.path.exists(sys.argv[1]) or not answered[n]:
        i += 1
        try:
            s.send(b'%d' % i)
            while s.recv(100) != b'%d' % i: pass
            answered[n] += 1
        except TimeoutError: pass
        except ConnectionRefusedError as error: refused.append(i)
threads = [threading.Thread(target=asks, args=[n]) for n in range(8)]
for it in threads: it.start()
for it in threads: it.join()
print(min(answered) > 20, refused)
";
    asks_while_operators_die([ECHO, ASKS], (20, 100), "True []\n");
}

/// What comes when nobody has a port is not for who has it next, whether an operator died or not.
#[test]
fn a_datagram_to_nobody_from_packets_is_for_nobody() {
    const BINDS: &str = "
import os, socket, sys, time
def bound():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.1.1.13', 9000)); s.settimeout(5); return s
# Another has the port for the other family, all the time.
six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1); six.bind(('::', 9000))
for n in range(9):
    s = bound(); print('bound', n, flush=True); assert s.recv(100) == b'first'; s.close(); print('closed', n, flush=True)
    while not os.path.exists(f'{sys.argv[1]}{n}'): time.sleep(0.01)
    time.sleep(0.1); s = bound(); s.settimeout(0.7); print('again', n, flush=True)
    try: print('heard', s.recv(100), flush=True)
    except TimeoutError: print('nothing', n, flush=True)
    s.close()
";
    let scene = crate::proxy::scene("");
    scene.file("binds.py", BINDS);
    let binds = scene.spawn(scene.command("both", "exec python3 {f}/binds.py {f}/go"));
    let sends = |text: &str| {
        let line = format!(
            "exec /usr/bin/python3 -c \"import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'{text}', ('10.1.1.13', 9000))\""
        );
        let said = crate::proxy::in_box(&scene, &line).status().unwrap();
        assert!(said.success());
    };
    for n in 0..9 {
        binds.until(&format!("bound {n}"));
        let came = |_: &Instance| {
            sends("first");
            binds.out().contains(&format!("closed {n}"))
        };
        assert!(scene.instance.until(Duration::from_secs(10), came));
        if n % 3 == 1 {
            scene.kill_operator();
        }
        sends("late");
        scene.file(&format!("go{n}"), "");
        // Its successor has the same asked again.
        if n % 3 == 2 {
            binds.until(&format!("again {n}"));
            scene.kill_operator();
        }
        binds.until(&format!("nothing {n}"));
    }
}
