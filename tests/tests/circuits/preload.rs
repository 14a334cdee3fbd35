//! Unmodified programs with the library that is loaded before their others: their bytes go by
//! rings to those that have it too, by the socket to those that have not, and are the same bytes.

use crate::scene::{OPEN, Program, Scene};
use std::time::Duration;

/// Both sides write and read by lot, and check each byte.
const EXCHANGE: &str = include_str!("exchange.c");
/// What numbers are others' meanwhile.
const NUMBERS: &str = include_str!("numbers.c");
/// What calls come to.
const MANNERS: &str = include_str!("manners.c");

/// A scene in which `{r}` before a command loads the library, and notes what went by rings.
pub struct Rings {
    pub scene: Scene,
}

impl Rings {
    pub fn new() -> Rings {
        let scene = Scene::of(OPEN);
        let library = format!("{}/rings.so", scene.files());
        std::fs::copy(e2e::program("libbulkhead_preload.so"), library).unwrap();
        Rings { scene }
    }

    pub fn line(&self, line: &str) -> String {
        let files = self.scene.files();
        let with = format!("env LD_PRELOAD={files}/rings.so BULKHEAD_PRELOAD_LOG={files}/rings");
        line.replace("{r}", &with)
    }

    pub fn start(&self, at: &str, line: &str, until: &str) -> Program {
        self.scene.start(at, &self.line(line), until)
    }

    fn serve(&self, at: &str, line: &str, address: &str, port: u16) -> Program {
        self.scene.serve(at, &self.line(line), address, port)
    }

    pub fn says(&self, at: &str, line: &str) -> String {
        self.scene.says(at, &self.line(line))
    }

    /// What a program's sockets read and wrote by rings, as far as they are closed.
    pub fn by_ring(&self, program: &str) -> [u64; 2] {
        let path = format!("{}/rings", self.scene.files());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let mut sum = [0; 2];
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix(&format!("{program}: ")) {
                let mut words = rest.split_whitespace();
                sum[0] += words.next().unwrap().parse::<u64>().unwrap();
                sum[1] += words.nth(3).unwrap().parse::<u64>().unwrap();
            }
        }
        sum
    }

    /// Nothing went by a ring yet.
    pub fn forget(&self) {
        let _ = std::fs::remove_file(format!("{}/rings", self.scene.files()));
    }
}

/// One run of two sides, each waiting its way; what went by rings at the client.
fn exchange(
    rings: &Rings,
    [server, client]: [&str; 2],
    ways: [&str; 2],
    megabytes: u32,
    seed: u32,
) -> [u64; 2] {
    rings.forget();
    let port = 7000 + seed;
    let with = |how: &str, way: &str, who: &str| {
        format!("exec {how} {{f}}/exchange {who} 10.1.1.10 {port} {way} {megabytes} {seed}")
    };
    let mut serves = rings.start("web", &with(server, ways[0], "serve"), "serving");
    let said = rings.says("app", &with(client, ways[1], "ask"));
    assert_eq!(said, "ok\n", "{ways:?} {seed}");
    let code = serves.wait(Duration::from_secs(20));
    assert_eq!(code, Some(0), "{ways:?} {seed}: {}", serves.err());
    rings.by_ring("exchange")
}

#[test]
fn each_byte_comes_once_and_in_order_whatever_is_called_and_waited_for() {
    let rings = Rings::new();
    rings.scene.compile("exchange", EXCHANGE);
    let ways = ["block", "poll", "select", "level", "edge"];
    for (seed, way) in ways.into_iter().enumerate() {
        let ways = [way, ways[(seed + 1) % ways.len()]];
        let [read, written] = exchange(&rings, ["{r}", "{r}"], ways, 100, seed as u32);
        // Of 200 MB that both read. What finds the ring full goes by the socket, more of it where others want the
        // processor; a ring that is full once holds 1 MiB, so it is come back to.
        assert!(
            read > 4_000_000 && written > 4_000_000,
            "{ways:?}: {read} {written}"
        );
    }
}

#[test]
fn who_has_no_ring_talks_to_who_has_and_processes_share_one() {
    let rings = Rings::new();
    rings.scene.compile("exchange", EXCHANGE);
    let none = [0, 0];
    let one = exchange(&rings, ["{r}", ""], ["edge", "block"], 20, 11);
    assert_eq!(one, none, "there is nobody at the other end");
    let other = exchange(&rings, ["", "{r}"], ["level", "block"], 20, 12);
    assert_eq!(other, none, "there is nobody at the other end");
    // A child writes, its parent reads: by one ring.
    for (seed, ways) in [
        ["shared", "block"],
        ["edge", "shared"],
        ["shared", "shared"],
    ]
    .into_iter()
    .enumerate()
    {
        let [read, written] = exchange(&rings, ["{r}", "{r}"], ways, 60, 13 + seed as u32);
        assert!(
            read > 4_000_000 && written > 4_000_000,
            "{ways:?}: {read} {written}"
        );
    }
}

#[test]
fn calls_come_to_what_they_come_to_without_it() {
    let rings = Rings::new();
    rings.scene.compile("manners", MANNERS);
    let serve = "exec {f}/manners serve 10.1.1.10 ";
    let _plain = rings.start("web", &format!("{serve} 7000"), "serving");
    let _by_ring = rings.start(
        "web",
        &serve
            .replace("exec", "exec {r}")
            .replace("10.1.1.10 ", "10.1.1.10 7001"),
        "serving",
    );
    let plain = rings.says("app", "{f}/manners ask 10.1.1.10 7000 2>&1");
    assert_eq!(rings.by_ring("manners"), [0, 0]);
    let by_ring = rings.says("app", "{r} {f}/manners ask 10.1.1.10 7001 2>&1");
    assert_eq!(by_ring, plain);
    assert!(plain.contains("spliced: 7 7 7 through"), "{plain}");
    // Of the last half of what warmed each of its connections up at least.
    let [read, written] = rings.by_ring("manners");
    assert!(read > 3_000_000 && written > 3_000_000, "{read} {written}");
}

#[test]
fn numbers_stand_still_while_a_circuit_leaves_its_ring() {
    let rings = Rings::new();
    rings.scene.compile("numbers", NUMBERS);
    let said = rings.says("web", "exec {r} {f}/numbers 10.1.1.10");
    let all = "a file's: 0; arming: 0 refused, 0 lost\nbeyond: EMFILE, xxx\n";
    assert_eq!(said, all);
}

/// As programs do that know that TCP takes some megabytes: all is sent before anything is read, to an event loop that
/// answers with all that comes and stops reading where nobody reads its answers.
#[test]
fn who_writes_much_before_it_reads_has_room_as_by_tcp() {
    const ECHO: &str = "
import asyncio, socket, sys
def room(wmem_max): return 2 * min(wmem_max, 2 << 20)
if sys.argv[1] == 'serve':
    async def echo(reader, writer):
        while data := await reader.read(65536):
            writer.write(data); await writer.drain()
        writer.close()
    async def main():
        server = await asyncio.start_server(echo, '10.1.1.10', int(sys.argv[2]))
        print('serving', flush=True); await server.serve_forever()
    asyncio.run(main())
# Each way that, of which the kernel takes some for itself.
bytes = 3 * room(int(open('/proc/sys/net/core/wmem_max').read())) // 2
s = socket.create_connection(('10.1.1.10', int(sys.argv[2]))); s.settimeout(15)
s.sendall(b'x' * bytes); s.shutdown(1); got = 0
while data := s.recv(1 << 20): got += len(data)
print(got == bytes)
";
    let rings = Rings::new();
    rings.scene.file("echo.py", ECHO);
    let _plain = rings.start("web", "exec python3 {f}/echo.py serve 7000", "serving");
    let _by_ring = rings.start("web", "exec {r} python3 {f}/echo.py serve 7001", "serving");
    for port in [7000, 7001] {
        for by in ["", "{r} "] {
            let line = format!("{by}python3 {{f}}/echo.py ask {port}");
            rings.forget();
            assert_eq!(rings.says("app", &line), "True\n", "{port} {by}");
            let by_ring = rings.by_ring("python3") != [0, 0];
            assert_eq!(by_ring, port == 7001 && !by.is_empty(), "{port} {by}");
        }
    }
}

#[test]
fn iperf3_and_redis_go_by_rings() {
    let rings = Rings::new();
    let _server = rings.start("web", "exec {r} iperf3 -s --forceflush", "Server listening");
    for more in ["", "-R", "-P 4", "--bidir"] {
        rings.forget();
        let line = format!(
            "{{r}} iperf3 -J -t 1 -c 10.1.1.10 {more} | python3 -c 'import json, sys; e = json.load(sys.stdin)[\"end\"]; print(e[\"sum_received\"][\"bytes\"])'"
        );
        let bytes: u64 = rings.says("app", &line).trim().parse().unwrap();
        let [read, written] = rings.by_ring("iperf3");
        assert!(
            read + written > bytes / 10,
            "{more}: {read} {written} of {bytes}"
        );
    }
    let line = "exec {r} redis-server --port 6379 --bind 10.1.1.10 --protected-mode no --save '' --dir {f}";
    let redis = rings.start("web", line, "Ready to accept connections");
    rings.says("app", "head -c 30000000 /dev/urandom > {f}/value");
    rings.says("app", "{r} redis-cli -h 10.1.1.10 -x set value < {f}/value");
    // A forked process that has all its sockets, and uses none, writes a file.
    assert!(
        rings
            .says("app", "{r} redis-cli -h 10.1.1.10 bgsave")
            .contains("started")
    );
    let line = "{r} redis-cli -h 10.1.1.10 --raw get value | head -c 30000000 | cmp - {f}/value";
    rings.says("app", line);
    let line = "{r} redis-benchmark -h 10.1.1.10 -c 20 -n 20000 -d 20000 -t set,get --csv | wc -l";
    assert_eq!(rings.says("app", line), "3\n");
    drop(redis);
    let [read, written] = rings.by_ring("redis-benchmark");
    assert!(
        read > 100_000_000 && written > 100_000_000,
        "{read} {written}"
    );
    let [read, _] = rings.by_ring("redis-cli");
    assert!(read > 1_000_000, "{read}");
}

#[test]
fn nginx_sends_files_by_rings_and_asks_others_so() {
    const NGINX: &str =
        "daemon off; user root; worker_processes 2; pid {f}/nginx.pid; error_log stderr;
events { worker_connections 256; }
http {
  access_log off; sendfile on; keepalive_timeout 60;
  client_body_temp_path {f}/body; proxy_temp_path {f}/proxy; fastcgi_temp_path {f}/fastcgi;
  uwsgi_temp_path {f}/uwsgi; scgi_temp_path {f}/scgi;
  upstream python { server 10.1.1.11:8000; keepalive 4; keepalive_timeout 1s; }
  server {
    listen 80; root {f}/www;
    location /up/ { proxy_pass http://python/; proxy_http_version 1.1; proxy_set_header Connection ''; }
  }
}
";
    let rings = Rings::new();
    let files = rings.scene.files();
    rings
        .scene
        .file("nginx.conf", &NGINX.replace("{f}", &files));
    std::fs::create_dir(format!("{files}/www")).unwrap();
    let bytes = |length: u32| -> Vec<u8> { (0..length).map(|n| (n % 251) as u8).collect() };
    std::fs::write(format!("{files}/www/large"), bytes(50_000_000)).unwrap();
    // It has room in a ring, whoever has a processor meanwhile; the first of a connection may go by the socket.
    std::fs::write(format!("{files}/www/page"), bytes(300_000)).unwrap();
    std::fs::write(format!("{files}/pages"), bytes(300_000).repeat(100)).unwrap();
    let line = "exec {r} nginx -e stderr -p {f} -c {f}/nginx.conf";
    let _nginx = rings.serve("web", line, "10.1.1.10", 80);
    for (file, as_file) in [("large", "www/large"), ("page?[1-100]", "pages")] {
        for with in ["{r}", ""] {
            let line = format!("{with} curl -sS 'http://10.1.1.10/{file}' | cmp - {{f}}/{as_file}");
            rings.says("app", &line);
        }
    }
    let [read, _] = rings.by_ring("curl");
    // What finds the ring full goes by the socket: who does not block does not wait for room.
    assert!(read > 25_000_000, "{read}");
    let line = "exec {r} python3 -m http.server -p HTTP/1.1 -d {f}/www 8000";
    let _python = rings.serve("app", line, "10.1.1.11", 8000);
    for (file, as_file) in [("large", "www/large"), ("page?[1-100]", "pages")] {
        let one = format!("{{r}} curl -sS 'http://10.1.1.10/up/{file}' | cmp - {{f}}/{as_file}");
        let line = format!(
            "for i in 1 2 3 4; do ({one}) & all=\"$all $!\"; done; for i in $all; do wait $i || exit 1; done"
        );
        rings.says("few", &line);
    }
    // It is told of a connection that is closed, a second after its last use.
    let by_rings = |_: &e2e::Instance| rings.by_ring("nginx")[0] > 90_000_000;
    let is_told = rings
        .scene
        .instance
        .until(Duration::from_secs(10), by_rings);
    assert!(is_told, "of its upstream: {:?}", rings.by_ring("nginx"));
}

/// Echoes by asyncio; by a process for each connection; and hands connections to `cat`.
const SERVERS: &str = "
import asyncio, os, socket, socketserver, subprocess, sys, threading
async def echo(r, w):
    while b := await r.read(200000):
        w.write(b); await w.drain()
    w.close()
async def main():
    s = await asyncio.start_server(echo, '10.1.1.10', 7000)
    print('one', flush=True); await s.serve_forever()
class Each(socketserver.BaseRequestHandler):
    def handle(self):
        while b := self.request.recv(100000): self.request.sendall(b)
class Forking(socketserver.ForkingTCPServer): allow_reuse_address = True; request_queue_size = 50
def handing():
    l = socket.create_server(('10.1.1.10', 7002)); print('three', flush=True)
    while True:
        s, _ = l.accept()
        # The first two megabytes it answers itself.
        left = 2000000
        while left:
            b = s.recv(min(left, 100000)); s.sendall(b); left -= len(b)
        with s: subprocess.Popen(['cat'], stdin=s, stdout=s)
if sys.argv[1] == 'one': asyncio.run(main())
if sys.argv[1] == 'two': print('two', flush=True); Forking(('10.1.1.10', 7001), Each).serve_forever()
if sys.argv[1] == 'three': handing()
";
/// Sends so much, in two threads, and compares what comes back.
const ASKS: &str = "
import hashlib, os, socket, sys, threading
port, all = int(sys.argv[1]), int(sys.argv[2])
s = socket.create_connection(('10.1.1.10', port))
ours, theirs, n = hashlib.sha256(), hashlib.sha256(), 0
def sends():
    left = all
    while left:
        b = os.urandom(min(left, 90001)); ours.update(b); s.sendall(b); left -= len(b)
    s.shutdown(socket.SHUT_WR)
t = threading.Thread(target=sends); t.start()
while b := s.recv(150000): theirs.update(b); n += len(b)
t.join()
print(n, ours.digest() == theirs.digest())
";

#[test]
fn python_by_asyncio_by_forked_processes_and_handed_to_another_program() {
    let rings = Rings::new();
    rings.scene.file("servers.py", SERVERS);
    rings.scene.file("asks.py", ASKS);
    for (way, port) in [("one", 7000), ("two", 7001), ("three", 7002)] {
        let line = format!("exec {{r}} /usr/bin/python3 {{f}}/servers.py {way}");
        let _server = rings.start("web", &line, way);
        for (client, turns) in [("{r}", 3), ("", 1)] {
            rings.forget();
            for _ in 0..turns {
                let line = format!("{client} /usr/bin/python3 {{f}}/asks.py {port} 30000000");
                assert_eq!(rings.says("app", &line), "30000000 True\n", "{way}");
            }
            let [read, written] = rings.by_ring("python3");
            let does = !client.is_empty();
            assert_eq!(
                read > 30_000_000 && written > 30_000_000,
                does,
                "{way}: {read} {written}"
            );
        }
    }
}

#[test]
fn ssh_and_git_work_as_without_it() {
    let rings = Rings::new();
    let files = rings.scene.files();
    for key in ["host", "key"] {
        let mut make = std::process::Command::new("ssh-keygen");
        make.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
        make.arg(format!("{files}/{key}"));
        assert!(e2e::Said::of(&mut make).unwrap().ok());
    }
    std::fs::create_dir_all("/run/sshd").unwrap();
    let line = "exec {r} /usr/sbin/sshd -D -e -p 2222 -h {f}/host -f /dev/null -o PidFile=none -o StrictModes=no \
        -o AuthorizedKeysFile={f}/key.pub -o PermitRootLogin=yes -o UsePAM=no -o Subsystem='sftp internal-sftp'";
    let _sshd = rings.serve("web", line, "10.1.1.10", 2222);
    rings.scene.file("client", "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nBatchMode yes\nLogLevel ERROR\nIdentitiesOnly yes\n");
    let line = "head -c 50000000 /dev/urandom > {f}/sent && {r} scp -F {f}/client -i {f}/key -P 2222 {f}/sent root@10.1.1.10:{f}/came && {r} scp -F {f}/client -i {f}/key -P 2222 root@10.1.1.10:{f}/came {f}/back && sha256sum {f}/sent {f}/came {f}/back | cut -d' ' -f1 | uniq -c | wc -l";
    assert_eq!(rings.says("app", line), "1\n");
    let make = "cd {f} && git init -q --bare all.git && git clone -q all.git one 2>/dev/null && cd one && head -c 20000000 /dev/urandom > data && git add data && git -c user.name=a -c user.email=a@b commit -qm data && git push -q origin HEAD";
    rings.says("web", make);
    let line = "exec {r} git daemon --reuseaddr --base-path={f} --export-all --enable=receive-pack --listen=10.1.1.10 --port=9418";
    let _daemon = rings.serve("web", line, "10.1.1.10", 9418);
    let line = "cd {f} && {r} git -c safe.directory='*' clone -q git://10.1.1.10/all.git two && cmp one/data two/data && cd two && head -c 5000000 /dev/urandom > more && git add more && git -c user.name=a -c user.email=a@b commit -qm more && {r} git push -q origin HEAD && {r} git clone -q git://10.1.1.10/all.git ../three && cmp more ../three/more && echo same";
    assert_eq!(rings.says("app", line), "same\n");
}

#[test]
fn run_loads_it_and_static_programs_go_on_without() {
    let rings = Rings::new();
    let scene = &rings.scene;
    let source = scene.file("exchange.c", EXCHANGE);
    for (name, how) in [("exchange", "-O1"), ("alone", "-static")] {
        let mut gcc = std::process::Command::new("gcc");
        gcc.args(["-O1", how, "-pthread", "-o"]);
        gcc.arg(format!("{}/{name}", scene.files())).arg(&source);
        let said = e2e::Said::of(&mut gcc).unwrap();
        assert!(said.ok(), "{}", said.err);
    }
    for (seed, server) in [(1, "exchange"), (2, "alone")] {
        rings.forget();
        let command = |at: &str, line: &str| {
            let log = format!("{}/rings", scene.files());
            let mut command = scene.command_of(at, &["--rings"], line);
            command.env("BULKHEAD_PRELOAD_LOG", log);
            command
        };
        let line = format!("exec {{f}}/{server} serve 10.1.1.10 700{seed} edge 20 {seed}");
        let mut serves = scene.spawn(command("web", &line));
        serves.until("serving");
        let said = scene.run(command(
            "app",
            &format!("exec {{f}}/exchange ask 10.1.1.10 700{seed} poll 20 {seed}"),
        ));
        assert_eq!((said.code, &*said.out), (0, "ok\n"), "{said:?}");
        assert_eq!(
            serves.wait(Duration::from_secs(10)),
            Some(0),
            "{}",
            serves.err()
        );
        let [read, written] = rings.by_ring("exchange");
        assert_eq!(
            read > 1_000_000 && written > 1_000_000,
            server == "exchange",
            "{server}: {read} {written}"
        );
    }
}

#[test]
#[ignore = "by hand: as long as one likes"]
fn each_byte_for_long() {
    let rings = Rings::new();
    rings.scene.compile("exchange", EXCHANGE);
    let ways = ["block", "poll", "select", "level", "edge", "shared"];
    let turns: u32 = std::env::var("TURNS").unwrap().parse().unwrap();
    for seed in 0..turns {
        let ways = [ways[seed as usize % 6], ways[seed as usize / 6 % 6]];
        exchange(&rings, ["{r}", "{r}"], ways, 30, seed);
    }
}

/// A child of another user fills what it shares with its parent with nonsense, as far as there is
/// something; its parent's sockets go on.
const NONSENSE: &str = r"
import ctypes, os, re, socket
keep = ctypes.create_string_buffer(4096 * 4)
page = (ctypes.addressof(keep) + 4095) & ~4095
before = socket.create_connection(('10.1.1.10', 80))
hear, tell = os.pipe()
if os.fork() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    # It has its own sockets still.
    before.recv(4)
    changed = 0
    for line in open('/proc/self/maps'):
        at = re.match(r'([0-9a-f]+)-([0-9a-f]+) rw-s .*/dev/zero', line)
        if at:
            begin, end = (int(x, 16) for x in at.groups())
            size = (end - begin) // 8192
            for record in range(begin, end, size):
                state = ctypes.c_uint32.from_address(record)
                if state.value in (1, 4):
                    for word in range(record + 256, record + size - 8, 8):
                        ctypes.c_uint64.from_address(word).value = page
                    state.value = 3
                    changed += 1
    os.write(tell, b'%d' % changed)
    os._exit(0)
assert os.read(hear, 9) != b'0', 'nothing was changed'
os.wait()
before.close()
after = socket.create_connection(('10.1.1.10', 80))
print('parent goes on', len(after.recv(4)), flush=True)
";

#[test]
fn a_child_of_another_user_reaches_none_of_its_parents_rings() {
    let rings = Rings::new();
    rings.scene.file("nonsense.py", NONSENSE);
    let _web = rings.start("web", "{r} {peer} stream 80", "serving");
    let said = rings.says("app", "{r} python3 {f}/nonsense.py");
    assert!(said.contains("parent goes on"), "{said}");
}

/// Who waits for edges had the peer's end as one before: a short answer now would have it wait for ever.
#[test]
fn what_a_ring_takes_and_nobody_reads_is_no_short_answer() {
    let rings = Rings::new();
    rings.scene.file(
        "ends.py",
        "
import select, socket, time
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('10.1.1.10', 7000)); s.listen(); print('serving', flush=True)
c, _ = s.accept()
for n in range(34):
    c.sendall(b'x' * 16384)
    # The reader has come to the ring by then.
    if n == 12: time.sleep(0.5)
assert c.recv(1) == b'r'
edges = select.epoll(); c.setblocking(False)
edges.register(c, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)
ended = 0
while not ended & select.EPOLLHUP:
    for _, ended in edges.poll(10): pass
while edges.poll(0.1): pass
try: print('sent', c.send(b'x' * 3_000_000), edges.poll(1))
except OSError as error: print(type(error).__name__)
",
    );
    rings.scene.file(
        "reads.py",
        "
import os, socket, time
s = socket.create_connection(('10.1.1.10', 7000)); left = 34 * 16384
while left > 20 * 16384: left -= len(s.recv(8192))
# All of it is there: it never announces a sleep again.
time.sleep(0.5)
while left: left -= len(s.recv(min(left, 65536)))
s.send(b'r'); os.kill(os.getpid(), 9)
",
    );
    let mut ends = rings.start("web", "exec {r} python3 {f}/ends.py", "serving");
    let reads = rings.line("exec {r} python3 {f}/reads.py");
    let _reads = rings.scene.spawn(rings.scene.command("app", &reads));
    assert_eq!(
        ends.wait(Duration::from_secs(20)),
        Some(0),
        "{}",
        ends.err()
    );
    assert_eq!(ends.out(), "serving\nBrokenPipeError\n");
    assert!(rings.by_ring("python3")[0] > 0, "no ring");
}
