//! Rules that are removed while circuits by them go on, wherever programs have put these.

use crate::across;
use crate::scene::{GUARDED, OPEN, Program, Scene};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Both ends do with their socket what the word says, and go on with it: the server sends, and
/// the client says when that ends. "fork": a child has it, its parent closed it; "thread": who made
/// it is gone; "high": at another number, higher than most have; "passed": a process has it that
/// was given it by another, and neither has made it; "table": a thread with descriptors of its own;
/// "crowd": a child, among thousands of descriptors of others.
pub const HANDS: &str = r#"
import ctypes, os, resource, socket, sys, threading, time
how, what = sys.argv[1:]
def use(s):
    if what == 'serves':
        try:
            while True: s.sendall(b'x' * 100); time.sleep(0.01)
        except OSError: os._exit(0)
    print('reads', flush=True)
    try:
        while s.recv(1000): pass
    except OSError: pass
    print('ended', flush=True); os._exit(0)
def hand(s):
    if how == 'fork':
        if os.fork(): s.close(); threading.Event().wait()
        use(s)
    if how == 'crowd':
        # A younger process than who has it has thousands of others, at hundreds of threads.
        if os.fork() == 0: use(s)
        s.close()
        if os.fork() == 0:
            resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
            null = os.open('/dev/null', 0)
            for _ in range(4000): os.dup(null)
            threading.stack_size(64 << 10)
            for _ in range(300): threading.Thread(target=threading.Event().wait).start()
        threading.Event().wait()
    if how == 'high':
        resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
        os.dup2(s.fileno(), 15000); high = socket.socket(fileno=15000); s.close(); use(high)
    if how == 'thread':
        # It is the child's first thread that ends with nothing but this left behind.
        threading.Thread(target=use, args=(s,)).start()
        ctypes.CDLL(None).pthread_exit(None)
    if how == 'passed':
        a, b = socket.socketpair()
        if os.fork() == 0:
            s.close(); _, (fd,), *_ = socket.recv_fds(b, 1, 1); use(socket.socket(fileno=fd))
        socket.send_fds(a, [b'x'], [s.fileno()]); s.close(); threading.Event().wait()
    if how == 'table':
        def alone():
            ctypes.CDLL(None).unshare(0x400); ready.set(); use(s)
        ready = threading.Event(); threading.Thread(target=alone).start(); ready.wait()
        os.close(s.fileno()); threading.Event().wait()
if what == 'serves':
    l = socket.socket(); l.bind(('10.1.1.10', 80)); l.listen(); print('serves', flush=True)
    s, _ = l.accept(); l.close()
else:
    s = socket.create_connection(('10.1.1.10', 80))
hand(s)
"#;

#[test]
fn circuits_are_cut_wherever_their_descriptors_are() {
    let guarded = format!("{OPEN}{GUARDED}");
    let scene = Scene::of(&guarded);
    scene.file("hands.py", HANDS);
    let mut tried = 0;
    let mut goes_on = |how: &str| {
        let line = |what| format!("exec python3 {{f}}/hands.py {how} {what}");
        let _web = scene.start("web", &line("serves"), "serves");
        let reads = scene.start("app", &line("reads"), "reads");
        // Both have put it away by then.
        std::thread::sleep(Duration::from_millis(300));
        assert!(!reads.out().contains("ended"), "{how}: {}", reads.err());
        scene.apply(&guarded.replace("ports: [80]", "ports: [99]"));
        // What `apply` has returned for holds: before anybody looks a second time.
        let ended = |_: &e2e::Instance| reads.out().contains("ended");
        let ended = scene.instance.until(Duration::from_millis(700), ended);
        scene.apply(&guarded);
        tried += 1;
        !ended
    };
    for how in ["fork", "thread", "high", "passed", "table", "crowd"] {
        // What is not found is not found each time; a machine that stands still does so once.
        assert!((0..3).any(|_| !goes_on(how)), "{how} goes on");
    }
    let status = scene.instance.ask(&["status"]).unwrap();
    let operator = &status["compartments"][0]["operator"];
    assert!(
        operator["unfound"] == 0 && operator["cut"] == tried,
        "{operator}"
    );
}

/// Of what is closed nobody tells, and nobody is cut off by its end.
#[test]
fn what_was_closed_before_is_not_counted_as_cut() {
    const SERVES: &str = "
import socket
s = socket.socket(); s.bind(('10.1.1.10', 80)); s.listen(100); print('serves', flush=True); all = []
while True: all.append(s.accept()[0])
";
    const HOLDS: &str = "
import socket
def one(): return socket.create_connection(('10.1.1.10', 80))
for _ in range(50): one().close()
held = [one() for _ in range(3)]; print('holds', flush=True)
for s in held: s.recv(1)
print('ended', flush=True)
";
    let guarded = format!("{OPEN}{GUARDED}");
    let scene = Scene::of(&guarded);
    scene.programs([("serves.py", SERVES), ("holds.py", HOLDS)]);
    let _web = scene.start("web", "exec python3 {f}/serves.py", "serves");
    let holds = scene.start("app", "exec python3 {f}/holds.py", "holds");
    scene.apply(&guarded.replace("ports: [80]", "ports: [99]"));
    holds.until("ended");
    let status = scene.instance.ask(&["status"]).unwrap();
    let operator = &status["compartments"][0]["operator"];
    assert_eq!(operator["cut"], 3, "{operator}");
}

/// No listing of processes has who has them: both ends of a stream, the sender of datagrams.
#[test]
fn who_forks_all_the_time_keeps_no_circuit() {
    let by_udp = r"        - {name: tells, action: allow, from: {endpoint: app}, to: {endpoint: web}, protocol: udp, ports: [53]}
";
    let guarded = format!("{OPEN}{GUARDED}{by_udp}");
    let scene = Scene::of(&guarded);
    scene.file("udp.py", crate::udp::UDP);
    scene.compile("hop", include_str!("hop.c"));
    let hears = scene.start("web", &crate::udp::line("hear 10.1.1.10 53"), "hears");
    let serves = scene.start("web", "exec {f}/hop serve 10.1.1.10 80 300", "serves");
    let asks = scene.start("app", "exec {f}/hop ask 10.1.1.10 80 300", "goes");
    let tells = scene.start("app", "exec {f}/hop say 10.1.1.10 53", "goes");
    serves.until("goes");
    scene.apply(
        &guarded
            .replace("ports: [80]", "ports: [99]")
            .replace("ports: [53]", "ports: [99]"),
    );
    for (what, ended) in [("serves", &serves), ("asks", &asks), ("tells", &tells)] {
        let ends = |_: &e2e::Instance| ended.out().contains("cut");
        let is_cut = scene.instance.until(Duration::from_secs(5), ends);
        assert!(is_cut, "{what}: {}", ended.out());
    }
    let status = scene.instance.ask(&["status"]).unwrap();
    let operator = &status["compartments"][0]["operator"];
    assert_eq!(operator["unfound"], 0, "{operator}");
    assert!(hears.out().contains("53 10.1.1.11 x"));
}

/// Nobody's table of descriptors has it: the sender of datagrams; both ends of a stream.
#[test]
fn who_has_a_circuit_in_nothing_but_a_call_keeps_it_no_longer() {
    let by_udp = r"        - {name: tells, action: allow, from: {endpoint: app}, to: {endpoint: web}, protocol: udp, ports: [53]}
";
    let guarded = format!("{OPEN}{GUARDED}{by_udp}");
    let scene = Scene::of(&guarded);
    scene.compile("hides", include_str!("hides.c"));
    let hears = "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.1.1.10', 53)); print('hears', flush=True)
while True: print(len(s.recv(65536)), flush=True)";
    scene.file("hears.py", hears);
    let hears = scene.start("web", "exec python3 {f}/hears.py", "hears");
    let mut takes = scene.start("web", "exec {f}/hides take 10.1.1.10 80", "serves");
    let hides = |how: &str| scene.start("app", &format!("exec {{f}}/hides {how}"), "hidden");
    let mut senders = ["say 10.1.1.10 53", "give 10.1.1.10 80"].map(hides);
    takes.until("hidden");
    hears.until("1024");
    let over = senders.iter().any(|sender| sender.out().contains("over"));
    assert!(!over, "it would end by itself");
    scene.apply(
        &guarded
            .replace("ports: [80]", "ports: [99]")
            .replace("ports: [53]", "ports: [99]"),
    );
    for sender in &mut senders {
        let ended = sender.wait(Duration::from_secs(10));
        // Where it waits for its reader just then it leaves.
        assert!(
            ended.is_some() && !sender.out().contains("over 1024"),
            "{}",
            sender.out()
        );
    }
    assert_eq!(
        takes.wait(Duration::from_secs(5)),
        Some(0),
        "{}",
        takes.out()
    );
    hears.falls_silent();
}

/// Of what connected sockets send natively, too.
#[test]
fn who_lost_its_address_hears_no_datagrams_to_it() {
    const TALKS: &str = "
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); at = ('10.1.1.10', 53)
if sys.argv[1] == 'hear': s.bind(at)
else: s.connect(at)
print('goes', flush=True)
while True:
    try:
        if sys.argv[1] == 'hear': print(s.recv(9), flush=True)
        else: s.send(b'x')
    except OSError: pass
    time.sleep(0.01)
";
    let scene = Scene::of(OPEN);
    scene.file("talks.py", TALKS);
    let hears = |at: &str| scene.start(at, "exec python3 {f}/talks.py hear", "goes");
    let first = hears("web");
    let _says = scene.start("app", "exec python3 {f}/talks.py say", "goes");
    first.until("b'x'");
    let moved = OPEN
        .replace(r#"[10.1.1.10, "fd00:1::10"]"#, "[10.1.1.13]")
        .replace(r#"[10.1.1.12, "fd00:1::12"]"#, "[10.1.1.10]");
    scene.apply(&moved);
    let second = hears("few");
    second.until("b'x'");
    first.falls_silent();
    // Nor where nobody has it any more.
    scene.apply(&moved.replace("[10.1.1.10]", "[10.1.1.14]"));
    second.falls_silent();
}

/// Its operator is gone by then: a tenant is removed, and all are.
#[test]
fn a_compartment_that_is_removed_leaves_no_circuit() {
    const TALKS: &str = "
import os, socket, sys, time
kind = {'tcp': socket.SOCK_STREAM, 'udp': socket.SOCK_DGRAM}[sys.argv[2]]
s = socket.socket(socket.AF_INET, kind); at = ('10.1.1.10', 80)
if sys.argv[1] == 'serves':
    s.bind(at); s.listen() if sys.argv[2] == 'tcp' else None; print('serves', flush=True)
    if sys.argv[2] == 'tcp': s, _ = s.accept()
    s.recv(9); print('goes', flush=True)
    try:
        while s.recv(9): pass
    except OSError: time.sleep(1000)
    print('over', flush=True)
else:
    s.connect(at)
    if os.fork() == 0:
        # What it sends goes by a copy, natively.
        s = socket.socket(fileno=os.dup(s.detach()))
        try:
            while True: s.send(b'x'); time.sleep(0.01)
        except OSError: print('over', flush=True)
    else: s.close(); time.sleep(1000)
";
    for ends in [
        |scene: &Scene| scene.apply("version: 1\ntenants: []\n"),
        |scene: &Scene| drop(scene.instance.say(&["down"]).unwrap()),
    ] {
        let scene = Scene::of(OPEN);
        scene.file("talks.py", TALKS);
        let talks = |at, how: &str, until| {
            scene.start(at, &format!("exec python3 {{f}}/talks.py {how}"), until)
        };
        let servers = ["serves tcp", "serves udp"].map(|how| talks("web", how, "serves"));
        let [tcp, udp] = ["asks tcp", "asks udp"].map(|how| talks("app", how, ""));
        for server in &servers {
            server.until("goes");
        }
        ends(&scene);
        for (what, of) in [
            ("server", &servers[0]),
            ("client", &tcp),
            ("datagrams", &udp),
        ] {
            let is_over = |_: &e2e::Instance| of.out().contains("over");
            let is_over = scene.instance.until(Duration::from_secs(5), is_over);
            assert!(is_over, "{what}: {}", of.out());
        }
    }
}

/// Who is sent for that outlives it.
#[test]
fn a_removed_compartments_circuits_end_though_the_supervisor_dies() {
    const HIDES: &str = "
import array, os, socket, sys, time
s = socket.socket(); at = ('10.1.1.10', 80)
if sys.argv[1] == 'serves':
    s.bind(at); s.listen(); print('serves', flush=True); s, _ = s.accept()
else: s.connect(at)
# In nobody's table: on its way from this program to itself.
there, back = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
there.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [s.fileno()]))])
s.close(); print('hidden', flush=True)
while not os.path.exists(sys.argv[2]): time.sleep(0.05)
_, ((_, _, fds),), _, _ = back.recvmsg(1, 100)
number, = array.array('i', fds)
try:
    while os.write(number, b'x') and os.read(number, 1): time.sleep(0.01)
except OSError: pass
print('over', flush=True)
";
    let scene = Scene::of(OPEN);
    scene.file("hides.py", HIDES);
    let starts = |at, word: &str, until| {
        let line = format!("exec python3 {{f}}/hides.py {word} {{f}}/back");
        scene.start(at, &line, until)
    };
    let server = starts("web", "serves", "serves");
    let client = starts("app", "asks", "hidden");
    server.until("hidden");
    let supervisor = scene.instance.child("bulkhead-supervisor").unwrap();
    scene.apply("version: 1\ntenants: []\n");
    crate::scene::kill("KILL", &supervisor.to_string());
    let answers = |it: &e2e::Instance| it.ask(&["status"]).is_ok();
    assert!(scene.instance.until(Duration::from_secs(10), answers));
    scene.file("back", "");
    for program in [&server, &client] {
        program.until("over");
    }
}

/// While others are still looked for, and after.
#[test]
fn hidden_circuits_are_cut_by_id_one_after_another() {
    const SERVES: &str = "
import os, signal, socket, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
l = socket.socket(); l.bind(('10.1.1.10', 80)); l.listen(16); print('serves', flush=True)
while True:
    c, _ = l.accept()
    if os.fork() == 0:
        try:
            while True: c.sendall(b'x' * 100); time.sleep(0.01)
        except OSError: os._exit(0)
    c.close()
";
    let scene = Scene::of(OPEN);
    scene.file("serves.py", SERVES);
    scene.file("hands.py", HANDS);
    let _web = scene.start("web", "exec python3 {f}/serves.py", "serves");
    let ids = || -> BTreeSet<String> {
        let listed = scene.instance.ask(&["circuits"]).unwrap();
        let list = listed["flows"].as_array().cloned().unwrap_or_default();
        let ids = list.iter().filter_map(|it| it["circuit"]["id"].as_str());
        ids.map(str::to_owned).collect()
    };
    let mut all = Vec::new();
    for _ in 0..8 {
        let before = ids();
        let line = "exec python3 {f}/hands.py fork reads";
        let reads = scene.start("app", line, "reads");
        let new: Vec<String> = ids().difference(&before).cloned().collect();
        assert_eq!(new.len(), 1);
        all.push((new[0].clone(), reads));
    }
    std::thread::sleep(Duration::from_millis(300));
    for some in [&all[..5], &all[5..6], &all[6..]] {
        for (id, _) in some {
            scene.instance.say(&["circuits", "cut", id]).unwrap();
        }
        let ended = |_: &e2e::Instance| some.iter().all(|(_, it)| it.out().contains("ended"));
        assert!(scene.instance.until(Duration::from_secs(8), ended));
    }
}

/// A hidden circuit that goes on ends with that change, as its client says.
fn ends_with(scene: &Scene, reads: &Program, to: &str, what: &str) {
    std::thread::sleep(Duration::from_millis(300));
    assert!(!reads.out().contains("ended"), "{what}: {}", reads.err());
    scene.apply(to);
    let ended = |_: &e2e::Instance| reads.out().contains("ended");
    assert!(
        scene.instance.until(Duration::from_secs(5), ended),
        "{what}: it goes on"
    );
}

/// Also of one whose endpoint, or address, is gone: the operator has it in its table no more.
#[test]
fn a_hidden_circuit_ends_with_its_address_and_with_its_endpoint() {
    let line = OPEN.lines().find(|line| line.contains("name: app,"));
    let gone = OPEN.replace(&format!("{}\n", line.unwrap()), "");
    let moved = |from, to| OPEN.replace(from, to);
    for (what, to) in [
        ("the client's address", moved("10.1.1.11", "10.1.1.15")),
        ("the server's address", moved("10.1.1.10", "10.1.1.16")),
        ("the client's endpoint", gone),
    ] {
        let scene = Scene::of(OPEN);
        scene.file("hands.py", HANDS);
        let line = |what| format!("exec python3 {{f}}/hands.py fork {what}");
        let _web = scene.start("web", &line("serves"), "serves");
        let reads = scene.start("app", &line("reads"), "reads");
        ends_with(&scene, &reads, &to, what);
        let status = scene.instance.ask(&["status"]).unwrap();
        let operator = &status["compartments"][0]["operator"];
        assert_eq!(operator["unfound"], 0, "{what}: {operator}");
    }
}

/// Either end is in a forked child alone, and its operator has it in its table no more.
#[test]
fn a_hidden_circuit_to_another_tenant_ends_with_its_address_and_with_its_endpoint() {
    let moved = |from, to| across::SPEC.replace(from, to);
    let other = |line: &str| match line.contains("{name: other") {
        true => line.replace("addresses", "labels: {role: app}, addresses"),
        false => line.to_owned(),
    };
    let alone = across::without("- {name: app, subnet");
    let alone: String = alone.lines().map(|line| other(line) + "\n").collect();
    for (what, to) in [
        (
            "the server's address",
            moved(
                "name: db, subnet: data, addresses: [10.1.1.10",
                "name: db, subnet: data, addresses: [10.1.1.15",
            ),
        ),
        (
            "the client's address",
            moved(
                "name: app, subnet: apps, addresses: [10.1.1.10",
                "name: app, subnet: apps, addresses: [10.1.1.16",
            ),
        ),
        ("the client's endpoint", alone),
    ] {
        assert_ne!(to, across::SPEC);
        let scene = across::scene(across::SPEC);
        scene.file(
            "red.py",
            &HANDS.replace("'10.1.1.10', 80", "'10.1.1.10', 5432"),
        );
        let own = format!("'{}', 5432", across::DB[0]);
        scene.file("blue.py", &HANDS.replace("'10.1.1.10', 80", &own));
        let _db = scene.start("red/db", "exec python3 {f}/red.py fork serves", "serves");
        let reads = scene.start("blue/app", "exec python3 {f}/blue.py fork reads", "reads");
        ends_with(&scene, &reads, &to, what);
        let status = scene.instance.ask(&["status"]).unwrap();
        for compartment in status["compartments"].as_array().unwrap() {
            assert_eq!(
                compartment["operator"]["unfound"], 0,
                "{what}: {compartment}"
            );
        }
    }
}

/// What /proc says of it waits for a file that it closes, or for memory that it has in common with another. The
/// former are seen to be so, as many as there may be; by the latter who searches is held up, and others go on.
#[test]
fn a_program_that_is_executing_another_holds_no_search_up() {
    let guarded = format!("{OPEN}{GUARDED}");
    let scene = Scene::of(&guarded);
    scene.compile("held", crate::held::C);
    scene.file("hands.py", HANDS);
    let mut held = vec![scene.start("app", "exec {f}/held exec 40", "holds")];
    held.extend((0..3).map(|_| scene.start("app", "exec {f}/held shared", "holds")));
    let line = |what| format!("exec python3 {{f}}/hands.py fork {what}");
    let _web = scene.start("web", &line("serves"), "serves");
    let reads = scene.start("app", &line("reads"), "reads");
    std::thread::sleep(Duration::from_millis(300));
    let begun = std::time::Instant::now();
    scene.apply(&guarded.replace("ports: [80]", "ports: [99]"));
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
    let ended = |_: &e2e::Instance| reads.out().contains("ended");
    assert!(
        scene.instance.until(Duration::from_secs(5), ended),
        "{took:?}: {} {}",
        reads.err(),
        scene.instance.log()
    );
    // Who searches next passes them over, and nobody else has waited: whom they hold up they hold up each time.
    let is_soon = (0..3).any(|_| {
        let begun = std::time::Instant::now();
        scene.instance.ask(&["status"]).unwrap();
        begun.elapsed() < Duration::from_secs(2)
    });
    assert!(is_soon);
    let status = scene.instance.ask(&["status"]).unwrap();
    let operator = &status["compartments"][0]["operator"];
    assert!(
        operator["cut"] == 1 && operator["unfound"] == 0,
        "{operator}"
    );
    assert!(held.iter().all(|it| it.out() == "holds\n"));
}

/// Its programs are left behind, and nobody connects to what they were.
#[test]
fn an_endpoint_that_is_made_anew_leaves_nobody_who_listens() {
    is_made_anew(OPEN, ANEW, |_| (), 0);
}

/// Also where its operator came to its end before it was told, and where it has no circuits any more.
#[test]
fn an_endpoint_that_is_made_anew_while_its_operator_stands_still_leaves_nobody() {
    for attach in [ANEW, "fifo"] {
        is_made_anew(OPEN, attach, stands_still, 1);
    }
}

pub fn stands_still(scene: &Scene) {
    let status = scene.instance.ask(&["status"]).unwrap();
    let operator = status["compartments"][0]["operator"]["pid"].as_u64();
    let pid = rustix::process::Pid::from_raw(operator.unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
}

pub const ANEW: &str = "{ circuits: { sockets: 90 } }";

/// Takes ENOSYS for what it is, and keeps what it has.
const STAYS: &str = "
import os, socket, sys, time
l = socket.create_server(('10.1.1.12', 80))
print('stays', flush=True)
kept = []
while True:
    try:
        kept.append(l.accept()[0]); print('has', flush=True)
        while not os.path.exists(sys.argv[1]): time.sleep(0.02)
    except OSError as error: print(error.errno, flush=True); time.sleep(0.1)
";

/// The endpoint of this spec that has a hundred sockets is, with circuits of another kind.
pub fn is_made_anew(spec: &str, attach: &str, meanwhile: impl Fn(&Scene), stalls: u64) {
    let scene = Scene::of(spec);
    scene.file("stays.py", STAYS);
    let mut old = scene.start("few", "exec python3 {f}/stays.py {f}/go", "stays");
    // One that was accepted, and one that waits until the old program would.
    let hears = "import socket; s = socket.create_connection(('10.1.1.12', 80)); print('begun', flush=True); print(s.recv(1))";
    let begin = || scene.start("app", &format!("exec python3 -c \"{hears}\""), "begun");
    let accepted = begin();
    old.until("has\n");
    let all = [accepted, begin()];
    meanwhile(&scene);
    scene.apply(&spec.replace("{ circuits: { sockets: 100 } }", attach));
    for mut begun in all {
        assert!(begun.wait(Duration::from_secs(5)).is_some(), "it is over");
    }
    let anew = attach == ANEW;
    let refused = if anew { "ECONNREFUSED" } else { "EHOSTUNREACH" };
    assert_eq!(scene.tries("app", "10.1.1.12,80"), [refused]);
    scene.file("go", "");
    old.until("38");
    assert_eq!(old.wait(Duration::ZERO), None, "it is there");
    if anew {
        let _new = scene.start("few", "{peer} serve 80", "serving");
        assert_eq!(scene.tries("app", "10.1.1.12,80"), ["10.1.1.11"]);
    }
    let status = scene.instance.ask(&["status"]).unwrap();
    let operator = &status["compartments"][0]["operator"];
    assert_eq!(operator["stalls"], stalls, "{status}");
}

/// An event loop, as most servers are: what it listens at is never readable, whoever waited there.
#[test]
fn who_is_left_behind_and_polls_is_told_of_nothing() {
    const POLLS: &str = "
import os, select, socket, sys, time
l = socket.create_server(('10.1.1.12', 80)); l.setblocking(False)
poll = select.poll(); poll.register(l, select.POLLIN); print('listens', flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.02)
n, end = 0, time.monotonic() + 1
while time.monotonic() < end:
    if not poll.poll(100): continue
    n += 1
    try: l.accept()
    except OSError: pass
print(n, 'events')
";
    const ASKS: &str = "
import socket
s = socket.create_connection(('10.1.1.12', 80)); print('begun', flush=True); print(s.recv(1))
";
    let metered = OPEN.replace("sockets: 100", "sockets: 100, metered: true");
    let removed = |scene: &Scene, _: &str| scene.apply("version: 1\ntenants: []\n");
    let down = |scene: &Scene, _: &str| drop(scene.instance.say(&["down"]).unwrap());
    let anew =
        |scene: &Scene, spec: &str| scene.apply(&spec.replace("sockets: 100", "sockets: 90"));
    type Ends<'a> = &'a dyn Fn(&Scene, &str);
    let ends: [(&str, Ends<'_>); 4] = [
        (OPEN, &removed),
        (OPEN, &down),
        (OPEN, &anew),
        (&metered, &anew),
    ];
    for (n, (spec, ends)) in ends.into_iter().enumerate() {
        let scene = Scene::of(spec);
        scene.file("polls.py", POLLS);
        scene.file("asks.py", ASKS);
        let mut polls = scene.start("few", "exec python3 {f}/polls.py {f}/go", "listens");
        let mut asks = scene.start("app", "exec python3 {f}/asks.py", "begun");
        ends(&scene, spec);
        assert!(asks.wait(Duration::from_secs(5)).is_some(), "{n}: it waits");
        if n != 1 {
            let events = scene.spawn(scene.instance.command(&["events", "--last", "100"]));
            events
                .until("red/few is gone or made anew, and programs of circuits are left behind: 1");
        }
        scene.file("go", "");
        assert!(polls.wait(Duration::from_secs(10)).is_some(), "{n}");
        let out = polls.out();
        let events = out.lines().last().and_then(|it| it.strip_suffix(" events"));
        let events: u64 = events.unwrap().parse().unwrap();
        assert!(events < 20, "{n}: {events} events in a second");
    }
}

/// Its number is that of a file by then whose closing holds whoever looks at it.
#[test]
fn a_file_in_the_place_of_a_circuit_holds_no_revocation_up() {
    let guarded = format!("{OPEN}{GUARDED}");
    let scene = Scene::of(&guarded);
    scene.compile("held", crate::held::C);
    let _web = scene.start("web", "{peer} stream 80", "serving");
    let held = scene.start("app", "exec {f}/held swap", "holds");
    scene.apply(&guarded.replace("ports: [80]", "ports: [99]"));
    held.until("cut");
    let status = scene.instance.ask(&["status"]).unwrap();
    assert_eq!(
        status["compartments"][0]["operator"]["stalls"], 0,
        "{status}"
    );
}

/// Thousands of connections, each in a process that is not who made it: all are cut, in turns with what others ask.
#[test]
fn thousands_that_are_hidden_are_cut_and_hold_up_nobody() {
    const MANY: usize = 3000;
    const HIDES: &str = "
import os, resource, socket, sys, threading
resource.setrlimit(resource.RLIMIT_NOFILE, (5000, 5000))
n, all = int(sys.argv[2]), []
def hide():
    if os.fork() == 0:
        if os.fork() == 0: print('hidden', flush=True); threading.Event().wait()
        os._exit(0)
if sys.argv[1] == 'serves':
    l = socket.socket(); l.bind(('10.1.1.10', 80)); l.listen(100); print('serves', flush=True)
    if os.fork() == 0:
        for _ in range(n): all.append(l.accept()[0])
        hide(); os._exit(0)
else:
    if os.fork() == 0:
        for _ in range(n): all.append(socket.create_connection(('10.1.1.10', 80)))
        hide(); os._exit(0)
threading.Event().wait()
";
    const ASKS: &str = "
import os, socket, sys, time
longest = 0; print('asks', flush=True)
while not os.path.exists(sys.argv[1]):
    begun = time.monotonic(); socket.socket().close(); longest = max(longest, time.monotonic() - begun)
    time.sleep(0.005)
print('longest', longest, flush=True)
";
    let guarded = format!("{OPEN}{GUARDED}");
    let scene = Scene::of(&guarded);
    scene.file("hides.py", HIDES);
    scene.file("asks.py", ASKS);
    let line = |what| format!("exec python3 {{f}}/hides.py {what} {MANY}");
    let web = scene.start("web", &line("serves"), "serves");
    let app = scene.start("app", &line("begins"), "hidden");
    web.until("serves\nhidden\n");
    let asks = scene.start("few", "exec python3 {f}/asks.py {f}/stop", "asks");
    let begun = Instant::now();
    scene.apply(&guarded.replace("ports: [80]", "ports: [99]"));
    let all = begun.elapsed().as_secs_f64();
    scene.file("stop", "");
    let said = |_: &e2e::Instance| asks.out().contains("longest");
    assert!(scene.instance.until(Duration::from_secs(10), said));
    let longest: f64 = asks
        .out()
        .trim()
        .rsplit(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let status = scene.instance.ask(&["status"]).unwrap();
    let operator = &status["compartments"][0]["operator"];
    assert!(
        operator["cut"] == MANY && operator["unfound"] == 0 && operator["restarts"] == 0,
        "{operator}"
    );
    // On a slow machine all takes longer.
    println!("longest {longest} of {all} s");
    assert!(longest < f64::max(0.7, 0.6 * all), "{longest} of {all} s");
    drop(app);
}
