//! What a program sees of an operator that is killed at a certain system call, and of an accept that
//! fails.

use crate::across;
use crate::scene::{GUARDED, OPEN, Program, Scene, kill};
use e2e::Instance;
use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Each connection has one owner, who closes it at once: nothing that is mediated is in between.
const SERVER: &str = "
import os, socket
s = socket.socket(); s.bind(('10.1.1.10', 7000)); s.listen(64)
print('serving', flush=True)
while True:
    fd, _ = s._accept()
    came = os.read(fd, 100)
    try: os.write(fd, came)
    except OSError: pass
    os.close(fd)
    print(came.decode(), flush=True)
";

/// Makes as many connections as a file says, waits for the end of each, and looks whether its
/// socket still blocks.
const CLIENT: &str = "
import fcntl, os, socket, sys, time
def most():
    with open(sys.argv[2]) as file: return int(file.read() or 0)
n = 0
while not os.path.exists(sys.argv[1]):
    if n >= most():
        time.sleep(0.002)
        continue
    n += 1
    blocks, came = None, b''
    try:
        with socket.socket() as s:
            s.connect(('10.1.1.10', 7000))
            blocks = fcntl.fcntl(s, fcntl.F_GETFL) & os.O_NONBLOCK == 0
            s.sendall(b'%d' % n)
            s.settimeout(20)
            while more := s.recv(100): came += more
    except OSError as error: came = repr(error).encode()
    right = blocks and came == b'%d' % n
    print(n if right else f'{n}: {came}, blocks: {blocks}', flush=True)
    time.sleep(0.02)
print('done', flush=True)
";

/// Has this process killed as it begins its next call of this kind, or one after that.
fn killed_at(pid: u32, call: &str, when: usize) -> Child {
    let inject = format!("inject={call}:signal=KILL:when={when}");
    traced(pid, &["-e", &format!("trace={call}"), "-e", &inject])
}

/// What becomes of this process's calls, from when this is back.
fn traced(pid: u32, how: &[&str]) -> Child {
    let tracer = Command::new("strace")
        .args(["-qq", "-p", &pid.to_string()])
        .args(how)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let limit = Instant::now() + Duration::from_secs(10);
    let own = format!("TracerPid:\t{}\n", tracer.id());
    let is_seen = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
        // Who is killed as it goes on waiting has ended.
        status.is_ok_and(|status| status.contains(&own)) || !runs(pid)
    };
    while !is_seen() {
        assert!(Instant::now() < limit, "nobody traces {pid}");
        std::thread::sleep(Duration::from_millis(1));
    }
    tracer
}

fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

const LIMIT: Duration = Duration::from_secs(20);

/// Kills the operator as it begins its next call of this kind, and waits for who follows it.
fn dies_at(scene: &Scene, call: &str) -> bool {
    dies_as(scene, call, 1, || ())
}

/// The same at one after that, which this brings about.
fn dies_as(scene: &Scene, call: &str, when: usize, act: impl FnOnce()) -> bool {
    let before = scene.operator().unwrap();
    let mut tracer = killed_at(before, call, when);
    act();
    let other = |_: &Instance| scene.operator().is_some_and(|pid| pid != before);
    let died = scene.instance.until(LIMIT, other);
    let _ = tracer.kill();
    let _ = tracer.wait();
    died
}

/// The same at each of these, one after the other, as a client goes on.
fn dies_at_each(scene: &Scene, calls: &[&str], client: &Program) {
    for call in calls {
        let out = || client.out();
        assert!(dies_at(scene, call), "{call} was not called: {}", out());
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// Stops the client: all that it has asked was right, which is this.
fn ends_right(scene: &Scene, client: &mut Program) -> String {
    scene.file("stop", "");
    assert_eq!(client.wait(LIMIT), Some(0), "{}", client.err());
    let out = client.out();
    let asked = out.lines().count() - 1;
    let right = (1..=asked).map(|n| format!("{n}\n")).collect::<String>();
    assert_eq!(out, format!("{right}done\n"));
    right
}

#[test]
fn an_operator_killed_as_it_takes_a_program_leaves_it_to_the_next_one_once() {
    let scene = Scene::of(OPEN);
    scene.file("server.py", SERVER);
    scene.file("client.py", CLIENT);
    scene.file("most", "");
    let _server = scene.start("web", "exec python3 {f}/server.py", "serving");
    let line = "exec python3 {f}/client.py {f}/stop {f}/most";
    // As it says what the program is to be like, as it has it kept, and as it says that it is.
    let mut clients = Vec::new();
    for when in 1..=3 {
        let starts = || clients.push(scene.spawn(scene.command("app", line)));
        assert!(dies_as(&scene, "sendmsg", when, starts), "{when}");
    }
    scene.file("most", "100");
    for client in &clients {
        let all = |_: &Instance| client.out().ends_with("\n100\n");
        let done = scene.instance.until(LIMIT, all);
        assert!(done, "{}{}", client.out(), client.err());
    }
    for client in &mut clients {
        ends_right(&scene, client);
    }
    // One that has a program twice waits by the one for what it took by the other: some twenty by now.
    let (stalls, _) = crate::held::operator(&scene);
    assert!(stalls <= 2, "{stalls}");
}

#[test]
fn an_operator_killed_as_it_has_said_that_there_is_no_number_loses_nobody() {
    const FULL: &str = "
import os, resource, select, socket, sys, time
s = socket.socket(); s.bind(('10.1.1.10', 7000)); s.listen(8); s.setblocking(False)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
polled = select.poll(); polled.register(s, select.POLLIN)
for n in range(2):
    c = socket.create_connection(('10.1.1.10', 7000)); c.sendall(b'%d' % n)
    print('full', flush=True)
    while not os.path.exists(sys.argv[1] + str(n)): time.sleep(0.01)
    resource.setrlimit(resource.RLIMIT_NOFILE, (s.fileno() + 1, hard))
    try: s.accept(); print('has a number')
    except OSError as error: print(error.strerror)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(polled.poll(20000) != [], s.accept()[0].recv(9), flush=True)
";
    let scene = Scene::of(OPEN);
    scene.file("full.py", FULL);
    let full = scene.start("web", "exec python3 {f}/full.py {f}/go", "full");
    for (n, call) in ["socket", "connect"].iter().enumerate() {
        let all = |_: &Instance| full.out().matches("full\n").count() == n + 1;
        assert!(scene.instance.until(LIMIT, all), "{}", full.out());
        let goes = || drop(scene.file(&format!("go{n}"), ""));
        assert!(dies_as(&scene, call, 1, goes), "{call}: {}", full.out());
        full.until(&format!("True b'{n}'\n"));
    }
    assert_eq!(full.out().matches("Too many open files\n").count(), 2);
}

#[test]
fn an_operator_killed_at_a_call_hands_on_every_connection_once_and_every_socket_as_it_was() {
    let scene = Scene::of(OPEN);
    scene.file("server.py", SERVER);
    scene.file("client.py", CLIENT);
    scene.file("most", "1000000");
    let server = scene.start("web", "exec python3 {f}/server.py", "serving");
    let mut client = scene.start("app", "exec python3 {f}/client.py {f}/stop {f}/most", "1\n");
    // When it has been put into its program; when its socket does not block.
    dies_at_each(&scene, &["recvfrom", "connect"].repeat(4), &client);
    let right = ends_right(&scene, &mut client);
    assert_eq!(server.out(), format!("serving\n{right}"), "each once");
    // Nor is one left as a zombie, though a tracer watched it: a compartment's group has room for so many processes.
    let supervisor = scene.instance.child("bulkhead-supervisor").unwrap();
    let children = format!("/proc/{supervisor}/task/{supervisor}/children");
    let children = std::fs::read_to_string(children).unwrap();
    let dead = children
        .split_whitespace()
        .filter(|id| !runs(id.parse().unwrap()));
    assert_eq!(dead.count(), 0, "{children}");
}

/// One socket, which is taken from each of its connections (AF_UNSPEC) and has another: whenever its operator dies it is
/// either, and no call fails or waits for ever.
#[test]
fn an_operator_killed_as_a_socket_is_taken_from_its_connection_leaves_it_whole() {
    const ONE: &str = "
import ctypes, errno, os, socket, sys
connect = ctypes.CDLL(None, use_errno=True).connect
n, s = 0, socket.socket()
while not os.path.exists(sys.argv[1]):
    n += 1
    came = b''
    try:
        s.connect(('10.1.1.10', 7000))
        s.sendall(b'%d' % n)
        while more := s.recv(100): came += more
        if connect(s.fileno(), bytes(16), 16): came += os.strerror(ctypes.get_errno()).encode()
        if s.connect_ex(('10.1.1.10', 1)) != errno.ECONNREFUSED: came += b'; not fresh'
    except OSError as error: came += repr(error).encode()
    print(n if came == b'%d' % n else f'{n}: {came}', flush=True)
print('done', flush=True)
";
    let scene = Scene::of(OPEN);
    scene.file("server.py", SERVER);
    scene.file("one.py", ONE);
    let server = scene.start("web", "exec python3 {f}/server.py", "serving");
    let mut client = scene.start("app", "exec python3 {f}/one.py {f}/stop", "1\n");
    // As the other is made; as it is in its place, or nothing is; as either is told.
    dies_at_each(
        &scene,
        &["socket", "setsockopt", "ioctl"].repeat(5),
        &client,
    );
    let right = ends_right(&scene, &mut client);
    assert_eq!(server.out(), format!("serving\n{right}"), "each once");
}

/// A signal ends the program's connect before the next operator does it: it is connected all the same.
#[test]
fn a_connect_that_a_signal_ended_while_its_operator_died_is_seen_and_cut() {
    const ENDS: &str = "
import os, signal, socket, sys, time
class Ends(Exception): pass
def ends(*_): raise Ends
s = socket.socket(); signal.signal(signal.SIGALRM, ends); print(os.getpid(), 'ready', flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
try: s.connect(('10.1.1.10', 80)); print('connected', flush=True)
except Ends: print('ended', flush=True)
s.settimeout(10)
print(len(s.recv(10)) > 0, flush=True)
while s.recv(8000): pass
print('over', flush=True); time.sleep(100)
";
    let spec = format!("{OPEN}{GUARDED}");
    let scene = Scene::of(&spec);
    scene.file("ends.py", ENDS);
    let _web = scene.start("web", "{peer} stream 80", "serving");
    let ends = scene.start("app", "exec python3 {f}/ends.py {f}/go", "ready");
    let program = ends.out().split(' ').next().unwrap().to_owned();
    // When it blocks again.
    let before = scene.operator().unwrap();
    let mut tracer = killed_at(before, "fcntl", 3);
    // Nobody starts another meanwhile.
    let supervisor = scene.instance.child("bulkhead-supervisor").unwrap();
    kill("STOP", &supervisor.to_string());
    scene.file("go", "");
    let died = scene.instance.until(LIMIT, |_| !runs(before));
    let ended = died && {
        kill("ALRM", &program);
        let told = |_: &Instance| ends.out().lines().count() > 1;
        scene.instance.until(LIMIT, told)
    };
    kill("CONT", &supervisor.to_string());
    let _ = tracer.kill();
    let _ = tracer.wait();
    assert!(ended, "died: {died}; {}", ends.out());
    ends.until("True");
    assert!(ends.out().contains("ended"), "{}", ends.out());
    let listed = |_: &Instance| across::circuits(&scene).len() == 1;
    assert!(scene.instance.until(LIMIT, listed), "{}", ends.out());
    scene.apply(&spec.replace("ports: [80]", "ports: [99]"));
    ends.until("over");
}

/// Who is noted as the one for whom a listening socket does not block is one of several that wait there.
#[test]
fn an_operator_killed_as_it_accepts_tells_nobody_that_nothing_waits() {
    const THREADS: &str = "
import socket, threading
s = socket.socket(); s.bind(('10.1.1.10', 7000)); s.listen(64)
def serve():
    while True:
        c, _ = s.accept()
        with c: c.sendall(c.recv(100))
for _ in range(8): threading.Thread(target=serve).start()
print('serving', flush=True)
";
    let scene = Scene::of(OPEN);
    scene.file("server.py", THREADS);
    scene.file("client.py", CLIENT);
    scene.file("most", "1000000");
    let server = scene.start("web", "exec python3 {f}/server.py", "serving");
    let mut client = scene.start("app", "exec python3 {f}/client.py {f}/stop {f}/most", "1\n");
    // Whoever comes after one knows nothing of how programs accept.
    scene.kill_operator();
    for _ in 0..6 {
        let asked = client.out().lines().count();
        let more = |_: &Instance| client.out().lines().count() > asked + 8;
        assert!(scene.instance.until(LIMIT, more), "{}", client.out());
        let died = dies_at(&scene, "accept4");
        assert!(died, "nothing was accepted: {}", client.out());
    }
    ends_right(&scene, &mut client);
    assert_eq!(server.err(), "");
}

/// Set-ups whose calls are listed, and in which one of each kind is waited for: of some calls one
/// is for several set-ups.
const SET_UPS: usize = 40;

/// A server, and a client that makes as many connections as it may.
struct Turns {
    scene: Scene,
    server: Program,
    client: Program,
    asked: usize,
}

impl Turns {
    fn new() -> Turns {
        let scene = Scene::of(OPEN);
        scene.file("server.py", SERVER);
        scene.file("client.py", CLIENT);
        scene.file("most", "1");
        let server = scene.start("web", "exec python3 {f}/server.py", "serving");
        let line = "exec python3 {f}/client.py {f}/stop {f}/most";
        let client = scene.start("app", line, "1\n");
        Turns {
            scene,
            server,
            client,
            asked: 1,
        }
    }

    /// One connection more; what is wrong with it.
    fn asks(&mut self) -> Option<String> {
        self.asked += 1;
        let own = self.asked.to_string();
        self.scene.file("most", &own);
        let told = |_: &Instance| self.client.out().lines().count() == self.asked;
        if !self.scene.instance.until(LIMIT, told) {
            return Some(format!("{own}: its client hangs"));
        }
        let client = self.client.out();
        let client = client.lines().last().unwrap();
        if client != own {
            return Some(client.to_owned());
        }
        let heard = |_: &Instance| self.server.out().lines().any(|line| line == own);
        let heard = self.scene.instance.until(LIMIT, heard);
        (!heard).then(|| format!("{own}: its server hangs"))
    }

    /// The calls of an idle operator until so many connections are made.
    fn calls(&mut self) -> Vec<String> {
        rests();
        let list = self.scene.file("calls", "").display().to_string();
        let mut tracer = traced(self.scene.operator().unwrap(), &["-o", &list]);
        for _ in 0..SET_UPS {
            assert_eq!(self.asks(), None);
        }
        rests();
        kill("INT", &tracer.id().to_string());
        tracer.wait().unwrap();
        let text = std::fs::read_to_string(list).unwrap();
        let names = text
            .lines()
            .filter_map(|line| Some(line.split_once('(')?.0));
        names.map(str::to_owned).collect()
    }

    /// Kills the operator at this call of those that it makes from now on; what is wrong with the
    /// connections that are made meanwhile and with the one after. `false`: it made no such call.
    fn killed(&mut self, call: &str, when: usize) -> (bool, Vec<String>) {
        let before = self.scene.operator().unwrap();
        let mut tracer = killed_at(before, call, when);
        let mut wrong = Vec::new();
        let other = |scene: &Scene| scene.operator().is_some_and(|pid| pid != before);
        let mut left = SET_UPS;
        while left > 0 && !other(&self.scene) {
            wrong.extend(self.asks());
            left -= 1;
        }
        let limit = Duration::from_secs(1);
        let died = self.scene.instance.until(limit, |_| other(&self.scene));
        let _ = tracer.kill();
        let _ = tracer.wait();
        wrong.extend(self.asks());
        rests();
        (died, wrong)
    }
}

/// Meanwhile the server accepts again, and then the operator is idle: calls are counted from there.
fn rests() {
    std::thread::sleep(Duration::from_millis(100));
}

/// How often each comes in all these calls.
fn often(calls: &[String]) -> BTreeMap<&str, usize> {
    let mut all = BTreeMap::new();
    for call in calls {
        *all.entry(call.as_str()).or_default() += 1;
    }
    all
}

/// What a client says of a connection that ended without an answer, and not for want of patience.
fn is_over(said: &str) -> bool {
    let all = ["ConnectionResetError", "BrokenPipeError", ": b'',"];
    all.iter().any(|it| said.contains(it))
}

/// The call after the first `accept4`, and its number among those of its kind.
fn after_accept(calls: &[String]) -> (&str, usize) {
    let at = calls.iter().position(|call| call == "accept4").unwrap() + 1;
    let call = &calls[at];
    let when = calls[..=at].iter().filter(|it| *it == call).count();
    (call, when)
}

/// At each call of a set-up: between every two of them. Between the kernel's giving it a connection
/// and its next call that is nowhere else, and may be lost with it (docs/decisions/0033): who began
/// it is told so then, and no other is lost.
#[test]
fn an_operator_killed_at_any_call_of_a_set_up_hands_on_every_connection_once() {
    let mut turns = Turns::new();
    let calls = turns.calls();
    let (mut wrong, mut lost) = (Vec::new(), None);
    for (call, all) in often(&calls) {
        for when in 1..=all.div_ceil(SET_UPS) {
            let (died, mut of) = turns.killed(call, when);
            // Some are not of every set-up.
            assert!(died || all < SET_UPS, "no {call} {when}: {of:?}");
            if (call, when) == after_accept(&calls) {
                lost = of.pop_if(|it| is_over(it));
            }
            wrong.extend(of.into_iter().map(|it| format!("{call} {when}: {it}")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let lost = lost.and_then(|it| it.split(':').next()?.parse().ok());
    let right = (1..=turns.asked).filter(|n| Some(*n) != lost);
    let right = right.map(|n| format!("{n}\n")).collect::<String>();
    assert_eq!(turns.server.out(), format!("serving\n{right}"), "each once");
}

/// As with TCP: a connection waits on where there is no room for a descriptor, seen by who polls,
/// and is over where its name has nowhere to go.
#[test]
fn an_accept_that_fails_leaves_what_tcp_leaves() {
    const SERVER: &str = "
import ctypes, os, resource, select, socket
s = socket.socket(); s.bind(('10.1.1.10', 7000)); s.listen(64)
print('serving', flush=True)
poll = select.poll(); poll.register(s, select.POLLIN)
assert poll.poll(20000)
libc = ctypes.CDLL(None, use_errno=True)
full = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0), full[1]))
for _ in range(3):
    assert poll.poll(2000), 'nobody tells of it'
    assert libc.accept(s.fileno(), None, None) == -1
    print(os.strerror(ctypes.get_errno()), flush=True)
resource.setrlimit(resource.RLIMIT_NOFILE, full)
assert poll.poll(2000), 'nobody tells of it'
fd, _ = s._accept()
os.write(fd, os.read(fd, 100)); os.close(fd)
assert poll.poll(20000)
length = ctypes.c_int(16)
assert libc.accept(s.fileno(), ctypes.c_void_p(8), ctypes.byref(length)) == -1
print(os.strerror(ctypes.get_errno()), flush=True)
s.setblocking(False)
try: print(s._accept())
except BlockingIOError: print('nothing', poll.poll(100), flush=True)
";
    const CLIENT: &str = "
import socket
s = socket.create_connection(('10.1.1.10', 7000), 10)
try: s.sendall(b'hello'); print(s.recv(100))
except OSError: print('over')
";
    let scene = Scene::of(OPEN);
    scene.file("server.py", SERVER);
    scene.file("client.py", CLIENT);
    let mut server = scene.start("web", "exec python3 {f}/server.py", "serving");
    assert_eq!(scene.says("app", "python3 {f}/client.py"), "b'hello'\n");
    let second = scene.says("app", "python3 {f}/client.py");
    assert!(["over\n", "b''\n"].contains(&second.as_str()), "{second}");
    assert_eq!(server.wait(LIMIT), Some(0), "{}", server.err());
    let many = "Too many open files\n".repeat(3);
    assert_eq!(
        server.out(),
        format!("serving\n{many}Bad address\nnothing []\n")
    );
}
