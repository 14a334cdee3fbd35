//! Programs that have their operator wait in the kernel.

use crate::scene::{GUARDED, OPEN, Scene, kill};
use std::time::{Duration, Instant};

/// The program that does.
pub const C: &str = concat!(include_str!("fuse.c"), include_str!("held.c"));

fn scene(spec: &str) -> Scene {
    let scene = Scene::of(spec);
    scene.compile("held", C);
    scene
}

/// Until another endpoint's program is served.
fn served(scene: &Scene) -> Duration {
    let began = Instant::now();
    assert_eq!(scene.tries("few", "10.1.1.10,80"), ["10.1.1.12"]);
    began.elapsed()
}

/// (stalls, programs given up)
pub fn operator(scene: &Scene) -> (u64, u64) {
    let status = scene.instance.ask(&["status"]).unwrap();
    let mut all = status["compartments"].as_array().unwrap().iter();
    let operator = &all.find(|one| one["name"] == "red").unwrap()["operator"];
    let number = |name: &str| operator[name].as_u64().unwrap();
    (number("stalls"), number("given_up"))
}

/// Whether what a process has at a number is shut for reading; nothing if it has gone.
fn is_shut(process: i32, number: i32) -> Option<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    let process = pidfd_open(Pid::from_raw(process)?, PidfdFlags::empty()).ok()?;
    let socket = pidfd_getfd(process, number, PidfdGetfdFlags::empty()).ok()?;
    let mut of = [PollFd::new(&socket, PollFlags::RDHUP)];
    poll(&mut of, Some(&Timespec::default())).ok()?;
    Some(of[0].revents().contains(PollFlags::RDHUP))
}

/// It closes a file whose owner does not answer, or reads an address from memory that never comes: until its program is
/// given up nobody is served, for a second at a time.
#[test]
fn an_operator_that_is_held_is_replaced_and_who_holds_it_is_given_up() {
    for by in ["flush", "touched"] {
        let scene = scene(OPEN);
        let _web = scene.start("web", "{peer} serve 80", "serving");
        let held = scene.start("app", &format!("exec {{f}}/held {by}"), "holds");
        let mut longest = Duration::ZERO;
        let limit = Instant::now() + Duration::from_secs(30);
        while operator(&scene).1 == 0 {
            assert!(Instant::now() < limit, "{by}: {:?}", operator(&scene));
            longest = longest.max(served(&scene));
        }
        println!("{by}: longest {longest:?}");
        assert!(longest < Duration::from_secs(8), "{by}: {longest:?}");
        let (stalls, given_up) = operator(&scene);
        // One may be the machine's own.
        assert!(
            (3..=4).contains(&stalls) && given_up == 1,
            "{by}: {stalls} {given_up}"
        );
        // Nobody waits for it any more, and it holds nobody up: whom it does it holds up each time.
        let is_soon = (0..3).any(|_| served(&scene) < Duration::from_secs(2));
        assert!(is_soon, "{by}");
        let status = scene.instance.say(&["status"]).unwrap().out;
        assert!(status.contains("1 program given up"), "{status}");
        let events = scene.instance.log();
        assert!(events.matches("stands still").count() >= 3, "{events}");
        drop(held);
        assert_eq!(
            scene.tries("app", "10.1.1.10,80"),
            ["10.1.1.11"],
            "{by}: another of its endpoint"
        );
    }
}

/// A file system of the program's own knows no user like the operator's, who would have to ask it.
#[test]
fn memory_that_nobody_has_asked_for_holds_no_operator() {
    let scene = scene(OPEN);
    let _web = scene.start("web", "{peer} serve 80", "serving");
    let held = scene.start("app", "exec {f}/held memory", "over");
    let calls = "call: EFAULT\n".repeat(6);
    assert_eq!(held.out(), format!("holds\n{calls}over\n"));
    // Whom it holds up it holds up each time.
    assert!((0..3).any(|_| served(&scene) < Duration::from_secs(2)));
    assert_eq!(operator(&scene), (0, 0));
}

/// It is for one of them that the operator stands still, and nobody who follows it looks at the others: neither
/// when it starts nor when something changes at the port that they are connected to.
#[test]
fn many_who_would_hold_an_operator_hold_it_once() {
    const BINDS: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('127.0.0.1', 5000)); print('bound', flush=True); s.recv(1)
";
    let spec = format!("{OPEN}{}", GUARDED.replace("from: {endpoint: app}, ", ""));
    let scene = scene(&spec);
    scene.file("binds.py", BINDS);
    let _web = scene.start("web", "{peer} serve 80", "serving");
    let _held = scene.start("app", "exec {f}/held linked 20", "holds");
    served(&scene);
    assert_eq!(operator(&scene), (0, 0), "nobody holds it yet");
    let began = Instant::now();
    let _binds = scene.spawn(scene.command("app", "exec python3 {f}/binds.py"));
    scene.apply(&spec.replace("ports: [80]", "ports: [80, 99]"));
    let mut longest = began.elapsed();
    while began.elapsed() < Duration::from_secs(8) {
        longest = longest.max(served(&scene));
    }
    println!("longest {longest:?}");
    let (stalls, given_up) = operator(&scene);
    assert!(
        (1..=2).contains(&stalls) && given_up == 0,
        "{stalls} {given_up}"
    );
    assert!(longest < Duration::from_secs(7), "{longest:?}");
}

/// Both ends of a circuit were seen with processes that have whoever takes them wait, and are used by others, which
/// are found.
#[test]
fn who_holds_a_cut_up_shields_nobody() {
    let spec = format!("{OPEN}{GUARDED}");
    let scene = scene(&spec);
    let web = scene.start("web", "exec {f}/held serves", "serves");
    let reads = scene.start("app", "exec {f}/held reads", "holds");
    web.until("holds");
    std::thread::sleep(Duration::from_millis(200));
    assert!(!reads.out().contains("ended"));
    scene.apply(&spec.replace("ports: [80]", "ports: [99]"));
    let ended = |_: &e2e::Instance| reads.out().contains("ended");
    assert!(
        scene.instance.until(Duration::from_secs(5), ended),
        "{}",
        reads.out()
    );
    let status = scene.instance.ask(&["status"]).unwrap();
    let operator = &status["compartments"][0]["operator"];
    assert!(
        operator["unfound"] == 0 && operator["stalls"] == 0,
        "{operator}"
    );
    // What was made to wait is not left behind.
    let pid = &operator["pid"];
    let of = format!("/proc/{pid}/task/{pid}/children");
    let left = |_: &e2e::Instance| std::fs::read_to_string(&of).unwrap().is_empty();
    assert!(scene.instance.until(Duration::from_secs(3), left));
}

/// A program is in the midst of a write to the memory of its own circuit, which is to be given back: one
/// process waits for that for as long as it lasts, and no more are made for it. Others' are given back.
#[test]
fn who_holds_the_memory_of_its_circuit_holds_nobody_up() {
    let scene = scene(OPEN);
    let native = scene.file("native", "");
    std::fs::copy(e2e::program("bulkhead-native"), native).unwrap();
    let _web = scene.start("web", "{peer} serve 80", "serving");
    let _echo = scene.start("web", "exec {f}/native echo 10.1.1.10:7000", "serving");
    let _held = scene.start("app", "exec {f}/held ring", "holds");
    let pid =
        scene.instance.ask(&["status"]).unwrap()["compartments"][0]["operator"]["pid"].clone();
    let waits = || {
        let of = format!("/proc/{pid}/task/{pid}/children");
        std::fs::read_to_string(of)
            .unwrap()
            .split_whitespace()
            .count()
    };
    let limit = Duration::from_secs(20);
    assert!(
        scene.instance.until(limit, |_| waits() == 1),
        "{pid}: {}",
        waits()
    );
    for _ in 0..2 {
        let said = scene.says("few", "{f}/native rest 10.1.1.10:7000");
        assert!(said.ends_with("rested by ring\n"), "{said}");
        // Whom it holds up it holds up each time.
        assert!((0..3).any(|_| served(&scene) < Duration::from_secs(1)));
    }
    assert_eq!(waits(), 1);
    assert_eq!(operator(&scene).1, 0, "given up");
}

/// `apply` is done when the operator has cut what is allowed no more, and not before.
#[test]
fn a_rule_that_is_removed_ends_circuits_while_the_operator_is_held() {
    const READS: &str = "
import os, socket
s = socket.create_connection(('10.1.1.10', 80)); print('reads', os.getpid(), s.fileno(), flush=True)
while s.recv(8000): pass
print('ended', flush=True); os._exit(0)
";
    let both = GUARDED.replace("from: {endpoint: app}, ", "");
    let spec = format!("{OPEN}{both}");
    let scene = scene(&spec);
    scene.file("reads.py", READS);
    let _web = scene.start("web", "{peer} stream 80", "serving");
    let reads = scene.start("few", "exec python3 {f}/reads.py", "reads");
    let _held = scene.start("app", "exec {f}/held touched", "holds");
    let out = reads.out();
    let socket = out.lines().next().unwrap().split(' ').skip(1);
    let socket: Vec<i32> = socket.map(|number| number.parse().unwrap()).collect();
    // In the midst of it.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(is_shut(socket[0], socket[1]), Some(false));
    scene.apply(&spec.replace("ports: [80]", "ports: [99]"));
    // When the program comes to hear of it is up to the machine.
    let shut = is_shut(socket[0], socket[1]);
    assert!(shut.unwrap_or(true), "{}", reads.out());
    let (stalls, given_up) = operator(&scene);
    reads.until("ended");
    // Nor does a change wait for its call to be begun anew by one operator after another.
    assert!((1..3).contains(&stalls) && given_up == 0, "{stalls}");
}

/// More set-ups than an endpoint may have a second wait, and are no errors; others' do not.
#[test]
fn set_ups_beyond_an_endpoints_limit_wait() {
    const ASKS: &str = "
import socket, time
began = time.monotonic()
for _ in range(60):
    with socket.create_connection(('10.1.1.10', 80)) as s: s.recv(100)
print(time.monotonic() - began)
";
    let spec = OPEN.replace("sockets: 100", "sockets: 100, setups: 50");
    let scene = scene(&spec);
    scene.file("asks.py", ASKS);
    let _web = scene.start("web", "{peer} serve 80", "serving");
    let asks = |at: &str| -> f64 {
        scene
            .says(at, "python3 {f}/asks.py")
            .trim()
            .parse()
            .unwrap()
    };
    // A socket and a connect each: 50 at once, and 70 in 1.4 s.
    let few = asks("few");
    assert!(few > 1.0, "{few}");
    // Whom a limit holds up it holds up each time, for as long; a machine that is busy does not.
    assert!((0..5).any(|_| asks("app") < 1.2));
    let status = scene.instance.say(&["status"]).unwrap().out;
    assert!(status.contains("set-ups delayed"), "{status}");
    scene.kill_operator();
    let of = |metrics: &str, what: &str| {
        let line = format!("what=\"{what}\"}} ");
        let mut all = metrics.lines().filter_map(|it| it.split_once(&line));
        all.next().unwrap().1.parse::<u64>().unwrap()
    };
    // Its death is counted by who replaces it. How many of 70 depends on how fast they would be.
    let counted = |_: &e2e::Instance| of(&scene.metrics(), "restarts") == 1;
    let counted = scene.instance.until(Duration::from_secs(10), counted);
    let metrics = scene.metrics();
    assert!(counted && of(&metrics, "delayed") > 10, "{metrics}");
}

/// One endpoint has as many calls waiting as may, and goes on to call: what refusing it takes is
/// its own time, and another's calls come in between.
#[test]
fn who_has_all_that_may_wait_and_calls_on_holds_up_nobody_else() {
    const ASKS: &str = "
import socket, time
began = time.monotonic()
for _ in range(200): socket.socket().close()
print(time.monotonic() - began)
";
    let scene = Scene::of(OPEN);
    scene.compile("crowd", include_str!("crowd.c"));
    scene.file("asks.py", ASKS);
    let asks = || -> f64 {
        let took = scene.says("app", "python3 {f}/asks.py");
        took.trim().parse().unwrap()
    };
    // By itself: a machine may be busy.
    let alone = asks().max(asks());
    let _crowd = scene.start("web", "exec {f}/crowd", "crowds");
    // Of several times, where others have the processors: it crowds all the while.
    let limit = 1.0 + 10.0 * alone;
    let took = (0..5).map(|_| asks());
    let all: Vec<f64> = took.take_while(|took| *took >= limit).collect();
    println!("{all:?} s, {alone} s alone");
    assert!(all.len() < 5, "200 sockets: {all:?} s, {alone} s alone");
    // And it is told of as refused.
    let refused = |instance: &e2e::Instance| {
        let refused = instance.drops("red", "web", "socket-limit");
        refused.is_ok_and(|it| it > 0)
    };
    assert!(scene.instance.until(Duration::from_secs(10), refused));
}

/// What it sends by is in no table of descriptors, and what it sends never comes.
#[test]
fn who_sends_what_never_comes_by_a_number_that_is_closed_is_ended() {
    let guarded = format!("{OPEN}{GUARDED}");
    let scene = scene(&guarded);
    for (n, how) in ["sends", "sends executes"].into_iter().enumerate() {
        let web = scene.start("web", "exec {peer} stream 80", "serving");
        let mut sends = scene.start("app", &format!("exec {{f}}/held {how}"), "holds");
        // Nobody has the other end either; to who has closed it nothing would be sent.
        drop(web);
        scene.apply(&guarded.replace("ports: [80]", "ports: [99]"));
        let ended = |log: &str| log.matches("is ended: it was in a call").count();
        let is_ended = |instance: &e2e::Instance| ended(&instance.log()) > n;
        let is_ended = scene.instance.until(Duration::from_secs(20), is_ended);
        assert!(is_ended, "{how}: {}", scene.instance.log());
        let out = sends.out();
        let mut lines = out.lines();
        let server = lines.find_map(|line| line.strip_prefix("server "));
        kill("KILL", server.unwrap());
        assert!(sends.wait(Duration::from_secs(10)).is_some(), "{how}");
        assert_eq!(ended(&scene.instance.log()), n + 1, "{how}");
        assert!(!sends.out().contains("sent"), "{how}: {}", sends.out());
        scene.apply(&guarded);
    }
}

/// Its memory is another thread's for a tenth of a second at a time, and its addresses cannot be read meanwhile. It is not given
/// up, and calls less often than it would.
#[test]
fn who_has_the_operator_wait_has_its_calls_delayed_where_others_call() {
    const SLOW: &str = "
import ctypes, mmap, socket, threading, time
c = ctypes.CDLL(None, use_errno=True); all = 16 << 30; size = ctypes.c_size_t(all)
c.mmap.restype = ctypes.c_void_p
at = ctypes.c_void_p(c.mmap(None, size, 1, 0x4022, -1, ctypes.c_long(0)))
assert c.madvise(at, size, 15) == 0 and c.madvise(at, size, 22) == 0
began = time.monotonic()
for _ in range(4): c.mprotect(at, size, 3); c.mprotect(at, size, 1)
took = (time.monotonic() - began) / 8; print(took, 's')
size = ctypes.c_size_t(int(all * min(1, 0.1 / took)) & -4096)
def locks():
    while True: c.mprotect(at, size, 3); c.mprotect(at, size, 1)
threading.Thread(target=locks, daemon=True).start()
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); print('slow', flush=True)
while True:
    try: s.connect(('10.1.1.99', 9))
    except OSError: pass
";
    const ASKS: &str = "
import socket, time
until = time.monotonic() + 3
while time.monotonic() < until: socket.socket().close()
";
    const HEARS: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('10.1.1.11', 53)); print('hears', flush=True)
while True: s.recvfrom(9); print('x', flush=True)
";
    const TELLS: &str = "
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('10.1.1.11', 53))
while True: s.send(b'x'); time.sleep(0.05)
";
    let scene = Scene::of(OPEN);
    for (name, text) in [
        ("slow.py", SLOW),
        ("asks.py", ASKS),
        ("hears.py", HEARS),
        ("tells.py", TELLS),
    ] {
        scene.file(name, text);
    }
    let hears = scene.start("app", "exec python3 {f}/hears.py", "hears");
    let _tells = scene.start("web", "exec python3 {f}/tells.py", "");
    let asks = || scene.says("web", "python3 {f}/asks.py");
    let delayed = || {
        let metrics = scene.metrics();
        let mut all = metrics
            .lines()
            .filter_map(|it| it.split_once("what=\"delayed\"} "));
        all.next().unwrap().1.parse::<u64>().unwrap()
    };
    asks();
    asks();
    let before = delayed();
    // What it measures on a busy machine is more than it takes: it measures anew.
    let is_delayed = (0..3).any(|_| {
        let _slow = scene.start("app", "exec python3 {f}/slow.py", "slow");
        asks();
        delayed() > before
    });
    assert!(is_delayed, "{} {before}", delayed());
    // Whose receives waited as long goes on to hear.
    let heard = hears.out().len();
    let hears_on = |_: &e2e::Instance| hears.out().len() > heard + 20;
    assert!(scene.instance.until(Duration::from_secs(35), hears_on));
    // A busy machine has it wait longer than it was measured to.
    let (stalls, given_up) = operator(&scene);
    assert!(stalls <= 1 && given_up == 0, "{stalls} {given_up}");
}
