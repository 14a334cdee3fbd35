//! Small servers and clients in namespaces of the caller's own, and the namespaces that
//! an instance makes for a spec's endpoints.

use crate::{Ended, Namespace, Said, unique};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// The namespaces of a spec: `{ns}` in it stands for the beginning of their names.
pub struct Hosts {
    /// The spec.
    pub spec: String,
    prefix: String,
}

impl Hosts {
    /// Of this spec.
    pub fn of(spec: &str) -> Hosts {
        let prefix = unique("bht");
        Hosts {
            spec: spec.replace("{ns}", &prefix),
            prefix,
        }
    }

    /// The same namespaces under another spec.
    pub fn other(&self, spec: &str) -> String {
        spec.replace("{ns}", &self.prefix)
    }

    /// The namespace `{ns}-NAME`; not removed when what is given here is dropped.
    pub fn at(&self, name: &str) -> ManuallyDrop<Namespace> {
        ManuallyDrop::new(Namespace::named(format!("{}-{name}", self.prefix)))
    }

    /// Runs a shell line in `{ns}-NAME`.
    pub fn sh(&self, name: &str, line: &str) -> Said {
        self.at(name).sh(line).unwrap()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let all = std::fs::read_dir("/run/netns").into_iter().flatten();
        for entry in all.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(&format!("{}-", self.prefix)) {
                drop(Namespace::named(name));
            }
        }
    }
}

/// What speaks: `serve tcp=PORT udp=PORT ...` tells each who asks how it looks from here;
/// `tcp|udp ADDRESS PORT [SOURCE PORT]` asks one and prints the answer, within 1 s;
/// `stream ADDRESS PORT` prints the time (monotonic, ns) of each piece that comes;
/// `bulk ADDRESS PORT BYTES` sends and prints how many bytes the other end has; `mtu
/// ADDRESS PORT` sends 1,500 bytes unfragmented and prints what the path's MTU is then;
/// `shout PORT ADDRESS...` broadcasts; `hear PORT` prints what comes in 2 s.
const PROGRAM: &str = r#"
import socket, sys, threading, time
word, rest = sys.argv[1], sys.argv[2:]
def opened(address, kind):
    six = ':' in address
    return socket.socket(socket.AF_INET6 if six else socket.AF_INET, kind)
def peer(of):
    return of[0].removeprefix('::ffff:') + ' ' + str(of[1])
def each(connection, who):
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asked = connection.recv(100).decode()
        if asked.startswith('stream'):
            while True:
                connection.sendall(b'.' * 100)
                time.sleep(0.001)
        if asked.startswith('bulk'):
            want, have = int(asked.split()[1]), 0
            connection.sendall(b'go\n')
            while have < want:
                more = len(connection.recv(1 << 16))
                if more == 0: break
                have += more
            connection.sendall(('%d\n' % have).encode())
        else:
            connection.sendall((peer(who) + '\n').encode())
    except OSError: pass
    connection.close()
def serve_tcp(port):
    s = socket.socket(socket.AF_INET6); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(('::', port)); s.listen(64)
    while True:
        threading.Thread(target=each, args=s.accept(), daemon=True).start()
def serve_udp(port):
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.bind(('::', port))
    while True:
        data, who = s.recvfrom(2000)
        print('udp', port, peer(who), flush=True)
        s.sendto((peer(who) + '\n').encode(), who)
if word == 'serve':
    for what in rest:
        kind, port = what.split('=')
        threading.Thread(target=serve_tcp if kind == 'tcp' else serve_udp, args=(int(port),), daemon=True).start()
    print('serving', flush=True)
    threading.Event().wait()
elif word in ('tcp', 'udp'):
    s = opened(rest[0], socket.SOCK_STREAM if word == 'tcp' else socket.SOCK_DGRAM)
    s.settimeout(1)
    if len(rest) > 2: s.bind(('', int(rest[2])))
    s.connect((rest[0], int(rest[1])))
    s.send(b'who')
    print(s.recv(100).decode(), end='')
elif word == 'stream':
    s = opened(rest[0], socket.SOCK_STREAM)
    s.connect((rest[0], int(rest[1])))
    s.send(b'stream')
    while s.recv(1 << 16): print(time.monotonic_ns(), flush=True)
elif word == 'bulk':
    s = opened(rest[0], socket.SOCK_STREAM); s.settimeout(8)
    s.connect((rest[0], int(rest[1])))
    want = int(rest[2])
    s.send(b'bulk %d' % want); print(s.recv(3).decode(), end='', flush=True)
    while want > 0: want -= s.send(b'x' * min(want, 1 << 16))
    print(s.recv(100).decode(), end='')
elif word == 'mtu':
    s = opened(rest[0], socket.SOCK_DGRAM); s.settimeout(1)
    six = ':' in rest[0]
    level, discover, mtu = (socket.IPPROTO_IPV6, 23, 24) if six else (socket.IPPROTO_IP, 10, 14)
    s.setsockopt(level, discover, 2)
    s.connect((rest[0], int(rest[1])))
    for _ in range(5):
        try: s.send(b'x' * (s.getsockopt(level, mtu) - (48 if six else 28)))
        except OSError: pass
        time.sleep(0.1)
    print(s.getsockopt(level, mtu))
elif word == 'shout':
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    for address in rest[1:]: s.sendto(b'shouted', (address, int(rest[0])))
elif word == 'hear':
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('', int(rest[0]))); s.settimeout(2)
    print('hearing', flush=True)
    try: print(s.recv(100).decode(), flush=True)
    except OSError: pass
"#;

/// The program of those who talk, in a folder.
pub struct Talk(PathBuf);

impl Talk {
    /// Writes it.
    pub fn new(folder: &Path) -> Talk {
        let path = folder.join("talk.py");
        std::fs::write(&path, PROGRAM).unwrap();
        Talk(path)
    }

    /// The shell line that says these words.
    pub fn line(&self, words: &str) -> String {
        format!("exec python3 {} {words}", self.0.display())
    }

    /// Says these words and what came of it.
    pub fn say(&self, at: &Namespace, words: &str) -> Said {
        at.sh(&self.line(words)).unwrap()
    }

    /// How the server sees who asks: its address and port; `None` = no answer in time.
    pub fn ask(&self, at: &Namespace, words: &str) -> Option<(String, u16)> {
        let said = self.say(at, words);
        let (address, port) = said.out.trim().split_once(' ')?;
        Some((address.to_owned(), port.parse().ok()?))
    }

    /// Starts what goes on by itself, and returns once it has printed something; what it
    /// prints is in the file.
    pub fn start(&self, at: &Namespace, words: &str) -> (Ended, PathBuf) {
        let path = self.0.with_file_name(unique("said"));
        let file = std::fs::File::create(&path).unwrap();
        let mut command = at.command(&self.line(words));
        let child = command.stdout(file).stderr(Stdio::inherit()).spawn();
        let child = Ended(child.unwrap());
        // Bound: 5 s.
        for _ in 0..500 {
            if std::fs::metadata(&path).is_ok_and(|file| file.len() > 0) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        (child, path)
    }
}

/// The last time that a stream has printed, monotonic nanoseconds; 0 = none.
pub fn last_heard(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole
        .lines()
        .last()
        .and_then(|l| l.parse().ok())
        .unwrap_or(0)
}

/// Now, on the clock of those times.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap_or(0)
}
