//! Programs that know nothing of circuits.

use crate::scene::{OPEN, Program, Scene, kill};
use e2e::Said;
use std::process::Command;
use std::time::Duration;

/// Workers are of an unprivileged user, as in a distribution's configuration.
const NGINX: &str =
    "daemon off; user www-data; worker_processes 2; pid {f}/nginx.pid; error_log stderr;
events { worker_connections 256; }
http {
  access_log off; sendfile on; keepalive_timeout 60;
  client_body_temp_path {f}/body; proxy_temp_path {f}/proxy; fastcgi_temp_path {f}/fastcgi;
  uwsgi_temp_path {f}/uwsgi; scgi_temp_path {f}/scgi;
  server {
    listen 80; listen [::]:80; root {f}/www;
    location /who { return 200 $remote_addr; }
    location /up/ { proxy_pass http://10.1.1.11:8000/; }
  }
}
";

fn nginx(scene: &Scene) -> Program {
    scene.file("nginx.conf", &NGINX.replace("{f}", &scene.files()));
    let www = format!("{}/www", scene.files());
    std::fs::create_dir(&www).unwrap();
    std::fs::write(format!("{www}/small"), "small\n").unwrap();
    let large: Vec<u8> = (0..20_000_000_u32).map(|n| (n % 251) as u8).collect();
    std::fs::write(format!("{www}/large"), large).unwrap();
    let line = "exec nginx -e stderr -p {f} -c {f}/nginx.conf";
    scene.serve("web", line, "10.1.1.10", 80)
}

#[test]
fn who_runs_as_another_user_is_told_so() {
    let scene = Scene::of(OPEN);
    let said = scene.sh_as(
        "app",
        "nobody",
        "echo $HOME $USER $LOGNAME; id -un; echo $PATH",
    );
    let path = std::env::var("PATH").unwrap();
    assert_eq!(
        said.out,
        format!("/nonexistent nobody nobody\nnobody\n{path}\n")
    );
    let said = scene.sh_as("app", "65534:65534", "echo $HOME $USER");
    assert_eq!(said.out, "/ 65534\n");
}

/// Who starts programs by hand; a service's log has its program's words alone.
#[test]
fn at_a_terminal_root_is_told_whose_files_its_program_has() {
    let scene = Scene::of(OPEN);
    let told = |arguments: &[&str], terminal: bool| {
        let run = scene.command_of("app", arguments, "echo runs");
        let mut command = Command::new("timeout");
        command.arg("20");
        if terminal {
            let by = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";
            command.args(["python3", "-c", by]);
        }
        command.arg(run.get_program()).args(run.get_args());
        let said = scene.run(command);
        assert!(said.ok() && said.out.contains("runs"), "{said:?}");
        format!("{}{}", said.out, said.err).contains("--user root")
    };
    assert!(told(&[], true));
    assert!(!told(&[], false));
    assert!(!told(&["--user", "root"], true));
    assert!(!told(&["--user", "nobody"], true));
}

/// What is sent to `bulkhead run` is for its program, which is of the same group and has by itself what a terminal sends.
#[test]
fn a_program_has_each_signal_once() {
    const TELLS: &str = "
import signal
numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH)
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print('ready', flush=True)
while True: print(signal.sigwait(numbers).name, flush=True)
";
    // A terminal of its own, and the keys Ctrl-C and Ctrl-\\.
    const KEYS: &str = "
import os, pty, sys
pid, fd = pty.fork()
if pid == 0: os.execvp(sys.argv[1], sys.argv[1:])
came = b''
def until(text):
    global came
    while text not in came: came += os.read(fd, 1000)
until(b'ready')
for key, name in ((b'\\x03', b'SIGINT'), (b'\\x1c', b'SIGQUIT')):
    os.write(fd, key)
    until(name)
os.kill(pid, 15)
until(b'SIGTERM')
print(came.decode().count('SIG'))
os.kill(pid, 9)
";
    let scene = Scene::of(OPEN);
    scene.file("tells.py", TELLS);
    let program = scene.start("app", "exec python3 {f}/tells.py", "ready\n");
    for signal in ["INT", "QUIT", "WINCH", "TERM", "HUP", "USR1", "USR2", "INT"] {
        let before = program.out();
        program.is_sent(signal);
        program.until(&format!("{before}SIG{signal}\n"));
    }
    let keys = scene.file("keys.py", KEYS);
    let run = scene.command("app", "exec python3 {f}/tells.py");
    let mut command = Command::new("timeout");
    command.args(["20", "python3"]).arg(keys);
    command.arg(run.get_program()).args(run.get_args());
    let said = scene.run(command);
    assert_eq!(said.out, "3\n", "{said:?}");
}

#[test]
fn nginx_serves_curl_and_wget() {
    let scene = Scene::of(OPEN);
    let _nginx = nginx(&scene);
    for host in ["10.1.1.10", "[fd00:1::10]"] {
        assert_eq!(
            scene.says("app", &format!("curl -sS http://{host}/small")),
            "small\n"
        );
        assert_eq!(
            scene.says("app", &format!("wget -qO- http://{host}/small")),
            "small\n"
        );
        let line = format!("curl -sS http://{host}/large | cmp - {{f}}/www/large");
        scene.says("app", &line);
    }
    assert_eq!(
        scene.says("app", "curl -sS http://10.1.1.10/who"),
        "10.1.1.11"
    );
    // One connection for three.
    let line = "curl -sS -w '%{num_connects} ' http://10.1.1.10/who http://10.1.1.10/who http://10.1.1.10/who";
    assert_eq!(scene.says("app", line), "10.1.1.111 10.1.1.110 10.1.1.110 ");
    let line = "for i in $(seq 50); do curl -sS http://10.1.1.10/small || exit 1; done | sort | uniq -c | xargs";
    assert_eq!(scene.says("app", line), "50 small\n");
    // By workers who are nobody.
    let pid = std::fs::read_to_string(format!("{}/nginx.pid", scene.files())).unwrap();
    let pid = pid.trim();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    assert_eq!(children.split_whitespace().count(), 2);
    for worker in children.split_whitespace() {
        let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
        let uid = status.lines().find(|line| line.starts_with("Uid:"));
        assert!(uid.is_some_and(|uid| !uid.contains("\t0")), "{uid:?}");
    }
    kill("QUIT", pid);
}

#[test]
fn nginx_asks_a_server_of_another_endpoint() {
    let scene = Scene::of(OPEN);
    let _nginx = nginx(&scene);
    // Nobody is there yet.
    let code = "curl -sS -o /dev/null -w '%{http_code}' http://10.1.1.10/up/small";
    assert_eq!(scene.says("few", code), "502");
    let line = "exec /usr/bin/python3 -m http.server -d {f}/www 8000";
    let _python = scene.serve("app", line, "10.1.1.11", 8000);
    assert_eq!(
        scene.says("few", "curl -sS http://10.1.1.10/up/small"),
        "small\n"
    );
    scene.says(
        "few",
        "curl -sS http://10.1.1.10/up/large | cmp - {f}/www/large",
    );
    let line = "for i in $(seq 30); do curl -sS http://10.1.1.10/up/small || exit 1; done | sort | uniq -c | xargs";
    assert_eq!(scene.says("few", line), "30 small\n");
}

#[test]
fn redis_keeps_what_it_is_told() {
    let scene = Scene::of(OPEN);
    let line = "exec redis-server --port 6379 --bind 10.1.1.10 fd00:1::10 127.0.0.1 ::1 --protected-mode no --save '' --dir {f}";
    let redis = scene.start("web", line, "Ready to accept connections");
    assert_eq!(
        scene.says("app", "redis-cli -h 10.1.1.10 set word four"),
        "OK\n"
    );
    assert_eq!(
        scene.says("app", "redis-cli -h fd00:1::10 get word"),
        "four\n"
    );
    assert_eq!(scene.says("web", "redis-cli -h ::1 get word"), "four\n");
    let line = "redis-benchmark -h 10.1.1.10 -c 20 -n 2000 -t set,get -P 4 --csv | wc -l";
    assert_eq!(scene.says("app", line), "3\n");
    // Who came to which of its addresses, as redis has it; each that it was told is bound.
    for (at, host, addresses) in [
        ("app", "10.1.1.10", ["10.1.1.11", "10.1.1.10"]),
        ("app", "fd00:1::10", ["[fd00:1::11]", "[fd00:1::10]"]),
        ("web", "10.1.1.10", ["10.1.1.10", "10.1.1.10"]),
        ("web", "127.0.0.1", ["127.0.0.1", "127.0.0.1"]),
        ("web", "::1", ["[::1]", "[::1]"]),
    ] {
        let said = scene.says(at, &format!("redis-cli -h {host} client info"));
        let has = |key: &str| {
            let mut words = said.split_whitespace();
            let word = words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
            let (address, port) = word.and_then(|it| it.rsplit_once(':')).unwrap_or_default();
            (address.to_owned(), port.to_owned())
        };
        let (peer, own) = (has("addr"), has("laddr"));
        assert_eq!([peer.0, own.0], addresses, "{at} to {host}: {said}");
        assert_eq!(own.1, "6379", "{said}");
    }
    assert!(!redis.out().contains("bind:"), "{}", redis.out());
}

#[test]
fn memcached_keeps_what_it_is_told() {
    let scene = Scene::of(OPEN);
    let line = "exec memcached -u nobody -l 10.1.1.10 -l fd00:1::10 -p 11211 -U 0 -t 2";
    let _memcached = scene.serve("web", line, "10.1.1.10", 11211);
    scene.file("word", "remembered");
    scene.says("app", "memccp --servers=10.1.1.10:11211 {f}/word");
    let line = "memccat --servers=10.1.1.10:11211 word";
    assert_eq!(scene.says("app", line).trim(), "remembered");
    let line =
        "printf 'get word\\r\\nquit\\r\\n' | curl -sS --max-time 10 'telnet://[fd00:1::10]:11211'";
    let said = scene.says("few", line);
    assert!(said.contains("remembered"), "{said}");
}

#[test]
fn iperf3_measures_both_ways() {
    let scene = Scene::of(OPEN);
    let _server = scene.start("web", "exec iperf3 -s --forceflush", "Server listening");
    for (host, more) in [
        ("10.1.1.10", ""),
        ("10.1.1.10", "-R"),
        ("fd00:1::10", "-P 4"),
        ("10.1.1.10", "--bidir"),
    ] {
        let line = format!(
            "iperf3 -J -t 1 -c {host} {more} | python3 -c 'import json, sys; e = json.load(sys.stdin)[\"end\"]; print(e[\"sum_sent\"][\"bytes\"], e[\"sum_received\"][\"bytes\"])'"
        );
        let said = scene.says("app", &line);
        let bytes: Vec<u64> = said.split_whitespace().flat_map(str::parse).collect();
        assert_eq!(bytes.len(), 2, "{more}: {said}");
        assert!(bytes.iter().all(|b| *b > 10_000_000), "{more}: {said}");
    }
}

#[test]
fn asyncio_connects_a_hundred_at_once() {
    const SERVER: &str = "
import asyncio
async def each(r, w):
    w.write(await r.readline()); await w.drain(); w.close()
async def main():
    s = await asyncio.start_server(each, ['10.1.1.10', 'fd00:1::10'], 7000, backlog=16)
    print('serving', flush=True); await s.serve_forever()
asyncio.run(main())
";
    const CLIENT: &str = "
import asyncio
async def one(n):
    r, w = await asyncio.open_connection(('10.1.1.10', 'fd00:1::10')[n % 2], 7000)
    await asyncio.sleep(0.2)
    w.write(b'%d\\n' % n); answer = await r.readline(); w.close()
    return int(answer)
async def main(): print(sum(await asyncio.gather(*map(one, range(100)))))
asyncio.run(main())
";
    let scene = Scene::of(OPEN);
    scene.file("server.py", SERVER);
    scene.file("client.py", CLIENT);
    let _server = scene.start("web", "exec python3 {f}/server.py", "serving");
    for _ in 0..3 {
        assert_eq!(scene.says("app", "python3 {f}/client.py"), "4950\n");
    }
}

/// What a client of `sshd`'s is told of it and of who asks.
const WITH: &str = "-F {f}/client -i {f}/key";

/// A server that lets root in by a key, at web's port 2222.
fn sshd(scene: &Scene) -> Program {
    for key in ["host", "key"] {
        let mut make = Command::new("ssh-keygen");
        make.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
        make.arg(format!("{}/{key}", scene.files()));
        assert!(Said::of(&mut make).unwrap().ok());
    }
    // Where sshd's unprivileged half lives; a service would make it.
    std::fs::create_dir_all("/run/sshd").unwrap();
    scene.file("client", "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nBatchMode yes\nLogLevel ERROR\nIdentitiesOnly yes\n");
    let line = "exec /usr/sbin/sshd -D -e -p 2222 -h {f}/host -f /dev/null -o PidFile=none -o StrictModes=no \
        -o AuthorizedKeysFile={f}/key.pub -o PermitRootLogin=yes -o UsePAM=no -o Subsystem='sftp internal-sftp'";
    scene.serve("web", line, "10.1.1.10", 2222)
}

#[test]
fn ssh_logs_in_and_copies() {
    let scene = Scene::of(OPEN);
    let _sshd = sshd(&scene);
    let with = WITH;
    let line = format!("ssh {with} -p 2222 root@10.1.1.10 'echo $SSH_CONNECTION; id -u'");
    let said = scene.says("app", &line);
    let words: Vec<&str> = said.split_whitespace().collect();
    assert!(
        matches!(words[..], ["10.1.1.11", _, "10.1.1.10", "2222", "0"]),
        "{said}"
    );
    let line = format!(
        "head -c 50000000 /dev/urandom > {{f}}/part && for i in $(seq 20); do cat {{f}}/part; done > {{f}}/sent && scp {with} -P 2222 {{f}}/sent 'root@[fd00:1::10]:{{f}}/came' && cmp {{f}}/sent {{f}}/came && rm {{f}}/sent && scp {with} -P 2222 root@10.1.1.10:{{f}}/came {{f}}/back && cmp {{f}}/came {{f}}/back && stat -c %s {{f}}/back && rm {{f}}/came {{f}}/back"
    );
    assert_eq!(scene.says("app", &line), "1000000000\n");
    // A forwarded port: the server connects and listens for another.
    let _peer = scene.start("few", "{peer} serve 80", "serving");
    let line = format!(
        "ssh {with} -p 2222 -L 8080:10.1.1.12:80 root@10.1.1.10 sleep 20 & for i in $(seq 100); do {{peer}} try 127.0.0.1,8080 | grep 10.1.1.10 && break; sleep 0.1; done; kill $!"
    );
    assert_eq!(scene.says("app", &line), "10.1.1.10\n");
}

#[test]
fn git_clones_and_pushes() {
    let scene = Scene::of(OPEN);
    let make = "cd {f} && git init -q --bare all.git && git clone -q all.git one 2>/dev/null && cd one && head -c 5000000 /dev/urandom > data && git add data && git -c user.name=a -c user.email=a@b commit -qm data && git push -q origin HEAD";
    scene.says("web", make);
    let line = "exec git daemon --reuseaddr --base-path={f} --export-all --enable=receive-pack --listen=10.1.1.10 --listen=fd00:1::10 --port=9418";
    let _daemon = scene.serve("web", line, "10.1.1.10", 9418);
    let line = "cd {f} && git -c safe.directory='*' clone -q git://10.1.1.10/all.git two && cmp one/data two/data && cd two && echo more > more && git add more && git -c user.name=a -c user.email=a@b commit -qm more && git push -q origin HEAD && git clone -q 'git://[fd00:1::10]/all.git' ../three && cat ../three/more";
    assert_eq!(scene.says("app", line), "more\n");
}

/// A repository that the server starts for each who asks, by its name and in both families.
#[test]
fn git_clones_and_pushes_by_ssh() {
    let scene = Scene::of(OPEN);
    let sshd = sshd(&scene);
    let make = "cd {f} && git init -q --bare all.git && git clone -q all.git one 2>/dev/null && cd one && head -c 5000000 /dev/urandom > data && git add data && git -c user.name=a -c user.email=a@b commit -qm data && git push -q origin HEAD";
    scene.says("web", make);
    let git = |line: &str| {
        scene.says(
            "app",
            &format!("export GIT_SSH_COMMAND='ssh {WITH}'; {line}"),
        )
    };
    git(
        "git clone -q ssh://root@10.1.1.10:2222{f}/all.git {f}/two && cmp {f}/one/data {f}/two/data",
    );
    let push = "cd {f}/two && head -c 5000000 /dev/urandom > more && git add more && git -c user.name=a -c user.email=a@b commit -qm more && git push -q origin HEAD";
    git(push);
    git(
        "git clone -q 'ssh://root@[fd00:1::10]:2222{f}/all.git' {f}/three && cmp {f}/two/more {f}/three/more && cmp {f}/one/data {f}/three/data",
    );
    // The repository has it, and not only who pushed.
    let kept = scene.says("web", "git -C {f}/all.git log --format=%s");
    assert_eq!(kept, "more\ndata\n");
    let said = sshd.err();
    for (from, times) in [("10.1.1.11", 2), ("fd00:1::11", 1)] {
        let accepted = format!("Accepted publickey for root from {from} ");
        assert_eq!(said.matches(&accepted).count(), times, "{said}");
    }
}

#[test]
fn a_static_go_program_serves_and_asks() {
    const PROGRAM: &str = r#"package main
import ("fmt"; "io"; "net"; "net/http"; "os"; "sync")
func main() {
	if os.Args[1] == "serve" {
		http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
			host, _, _ := net.SplitHostPort(r.RemoteAddr)
			fmt.Fprint(w, host)
		})
		l, err := net.Listen("tcp", ":8080")
		if err != nil { panic(err) }
		fmt.Println("serving")
		panic(http.Serve(l, nil))
	}
	var all sync.WaitGroup
	said := make(chan string, 1000)
	for n := 0; n < 100; n++ {
		all.Add(1)
		go func() {
			defer all.Done()
			r, err := http.Get(os.Args[2])
			if err != nil { said <- err.Error(); return }
			b, _ := io.ReadAll(r.Body)
			r.Body.Close()
			said <- string(b)
		}()
	}
	all.Wait()
	close(said)
	counts := map[string]int{}
	for s := range said { counts[s]++ }
	fmt.Println(counts)
}
"#;
    let scene = Scene::of(OPEN);
    scene.compile_go("went", PROGRAM);
    let mut server = scene.start("web", "exec {f}/went serve", "serving");
    for (url, from) in [
        ("http://10.1.1.10:8080/", "10.1.1.11"),
        ("http://[fd00:1::10]:8080/", "fd00:1::11"),
    ] {
        let said = scene.says("app", &format!("{{f}}/went get {url}"));
        assert_eq!(said, format!("map[{from}:100]\n"));
    }
    let said = scene.says("app", "{f}/went get http://10.1.1.10:1/");
    assert!(said.contains("connection refused:100"), "{said}");
    assert_eq!(server.wait(Duration::ZERO), None, "it has ended");
}
