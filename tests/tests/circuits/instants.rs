//! What a program sees of an operator that is killed at a certain system call, and of an accept that
//! fails.

use crate::scene::{OPEN, Scene};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

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

/// Waits for the end of each connection, and looks whether its socket still blocks.
const CLIENT: &str = "
import fcntl, os, socket, sys, time
n = 0
while not os.path.exists(sys.argv[1]):
    n += 1
    with socket.socket() as s:
        s.connect(('10.1.1.10', 7000))
        blocks = fcntl.fcntl(s, fcntl.F_GETFL) & os.O_NONBLOCK == 0
        s.sendall(b'%d' % n)
        s.settimeout(5)
        came = b''
        try:
            while more := s.recv(100): came += more
        except OSError as error: came = repr(error).encode()
    right = blocks and came == b'%d' % n
    print(n if right else f'{n}: {came}, blocks: {blocks}', flush=True)
    time.sleep(0.02)
print('done', flush=True)
";

/// Has this process killed as it begins its next call of this kind.
fn killed_at(pid: u32, call: &str) -> Child {
    Command::new("strace")
        .args([
            "-qq",
            "-p",
            &pid.to_string(),
            "-e",
            &format!("trace={call}"),
        ])
        .args(["-e", &format!("inject={call}:signal=KILL:when=1")])
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn an_operator_killed_at_a_call_hands_on_every_connection_once_and_every_socket_as_it_was() {
    let scene = Scene::of(OPEN);
    scene.file("server.py", SERVER);
    scene.file("client.py", CLIENT);
    let server = scene.start("web", "exec python3 {f}/server.py", "serving");
    let mut client = scene.start("app", "exec python3 {f}/client.py {f}/stop", "1\n");
    let limit = Duration::from_secs(20);
    // When it has been put into its program; when its socket does not block.
    for call in ["recvfrom", "connect"].repeat(4) {
        let before = scene.operator().unwrap();
        let mut tracer = killed_at(before, call);
        let other = |_: &e2e::Instance| scene.operator().is_some_and(|pid| pid != before);
        let died = scene.instance.until(limit, other);
        let _ = tracer.kill();
        let _ = tracer.wait();
        assert!(died, "{call} was not called: {}", client.out());
        std::thread::sleep(Duration::from_millis(300));
    }
    scene.file("stop", "");
    assert_eq!(client.wait(limit), Some(0), "{}", client.err());
    let out = client.out();
    let asked = out.lines().count() - 1;
    let right = (1..=asked).map(|n| format!("{n}\n")).collect::<String>();
    assert_eq!(out, format!("{right}done\n"));
    assert_eq!(server.out(), format!("serving\n{right}"), "each once");
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
    let limit = Duration::from_secs(20);
    assert_eq!(server.wait(limit), Some(0), "{}", server.err());
    let many = "Too many open files\n".repeat(3);
    assert_eq!(
        server.out(),
        format!("serving\n{many}Bad address\nnothing []\n")
    );
}
