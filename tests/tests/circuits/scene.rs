//! A tenant of circuits, and the programs that are run in its endpoints.

use e2e::{Instance, Said, patience, private_folder, unique};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Three endpoints that may do everything with each other; `few` has few sockets. The place
/// of a policy is at the end.
pub const OPEN: &str = r#"version: 1
tenants:
  - name: red
    subnets:
      - { name: lan, prefixes: [10.1.1.0/24, "fd00:1::/64"] }
    endpoints:
      - { name: web, subnet: lan, addresses: [10.1.1.10, "fd00:1::10"], attach: circuits }
      - { name: app, subnet: lan, addresses: [10.1.1.11, "fd00:1::11"], attach: circuits }
      - { name: few, subnet: lan, addresses: [10.1.1.12, "fd00:1::12"], attach: { circuits: { sockets: 100 } } }
"#;

/// By default nothing; app may ask web at port 80.
pub const GUARDED: &str = r"    policy:
      default: {inside: deny}
      rules:
        - {name: app-to-web, action: allow, from: {endpoint: app}, to: {endpoint: web}, protocol: tcp, ports: [80]}
";

/// `serve PORT...` answers each who asks by its address, and prints it; `try TARGET...`
/// prints for each ADDRESS,PORT what its server answers, or the error's name; `stream PORT`
/// sends numbers, one after another, to each who connects; `follow ADDRESS PORT` prints the
/// last number of each hundred that came, and ends at one that is out of order.
const PEER: &str = r#"
import errno, socket, struct, sys, threading, time
word, rest = sys.argv[1], sys.argv[2:]
def opened(address):
    return socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET, socket.SOCK_STREAM)
def listening(port):
    s = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.bind(('::', port)); s.listen(128)
    return s
def answering(s, port):
    while True:
        connection, who = s.accept()
        name = who[0].removeprefix('::ffff:')
        print(port, name, flush=True)
        try: connection.sendall(name.encode())
        except OSError: pass
        connection.close()
def sending(connection):
    number = 0
    while True:
        connection.sendall(struct.pack('!Q', number)); number += 1
        if number % 10 == 0: time.sleep(0.001)
if word == 'serve':
    for port in map(int, rest):
        threading.Thread(target=answering, args=(listening(port), port), daemon=True).start()
    print('serving', flush=True)
    threading.Event().wait()
elif word == 'try':
    for target in rest:
        address, port = target.rsplit(',', 1)
        try:
            with opened(address) as s:
                s.settimeout(10)
                s.connect((address, int(port)))
                print(s.recv(100).decode())
        except OSError as error: print(errno.errorcode.get(error.errno, error))
elif word == 'stream':
    s = listening(int(rest[0])); print('serving', flush=True)
    while True:
        connection, _ = s.accept()
        threading.Thread(target=sending, args=(connection,), daemon=True).start()
elif word == 'follow':
    s = opened(rest[0]); s.connect((rest[0], int(rest[1])))
    expected, held = 0, b''
    while came := s.recv(8000):
        held += came
        while len(held) >= 8:
            number, = struct.unpack('!Q', held[:8]); held = held[8:]
            if number != expected: sys.exit(f'{number} came for {expected}')
            expected += 1
            if expected % 100 == 0: print(expected, flush=True)
"#;

/// All of it; gone when it is dropped.
pub struct Scene {
    /// What runs.
    pub instance: Instance,
    files: PathBuf,
}

impl Scene {
    /// Of this spec, its endpoints ready.
    pub fn of(spec: &str) -> Scene {
        Scene::of_several(spec, &["few"])
    }

    /// Of a spec of several tenants, these endpoints ready.
    pub fn of_several(spec: &str, ready: &[&str]) -> Scene {
        let instance = Instance::start().unwrap();
        let files = private_folder("circuits-").unwrap();
        // Programs that give up being root read their files too.
        std::fs::set_permissions(&files, std::fs::Permissions::from_mode(0o755)).unwrap();
        let scene = Scene { instance, files };
        scene.file("peer.py", PEER);
        scene.apply(spec);
        let limit = Duration::from_secs(10);
        for at in ready {
            let runs = |_: &Instance| scene.sh(at, "true").ok();
            assert!(scene.instance.until(limit, runs), "no operator of {at}");
        }
        scene
    }

    /// Applies another spec.
    pub fn apply(&self, spec: &str) {
        self.instance.apply(spec).unwrap();
    }

    /// A file for programs.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.files.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Where those are, as text for command lines.
    pub fn files(&self) -> String {
        self.files.display().to_string()
    }

    /// A C program, compiled.
    pub fn compile(&self, name: &str, text: &str) {
        let source = self.file(&format!("{name}.c"), text);
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-pthread", "-o"])
            .arg(self.files.join(name))
            .arg(source);
        let said = Said::of(&mut gcc).unwrap();
        assert!(said.ok(), "{}", said.err);
    }

    /// A Go program, compiled without C.
    pub fn compile_go(&self, name: &str, text: &str) {
        let source = self.file(&format!("{name}.go"), text);
        let mut go = Command::new("go");
        go.args(["build", "-o", name])
            .arg(source)
            .current_dir(&self.files)
            .env("CGO_ENABLED", "0")
            // Not everybody has a home.
            .env("GOCACHE", self.files.join("cache"))
            .env("GO111MODULE", "off");
        let said = Said::of(&mut go).unwrap();
        assert!(said.ok(), "{}", said.err);
    }

    /// A shell line in an endpoint, of red or with its tenant before it, not yet run. `{f}` in it is the folder of files, and
    /// `{peer}` the small server and client.
    pub fn command(&self, at: &str, line: &str) -> Command {
        self.command_of(at, &[], line)
    }

    /// The same with more arguments for `bulkhead run`.
    pub fn command_of(&self, at: &str, arguments: &[&str], line: &str) -> Command {
        let line = line
            .replace("{peer}", "/usr/bin/python3 {f}/peer.py")
            .replace("{f}", &self.files());
        let endpoint = match at.contains('/') {
            true => at.to_owned(),
            false => format!("red/{at}"),
        };
        let mut words = vec!["run", "--endpoint", &endpoint];
        words.extend(arguments);
        words.extend(["--", "sh", "-c", &line]);
        let mut command = self.instance.command(&words);
        command.process_group(0);
        command
    }

    /// Runs it to its end, a minute at most.
    pub fn sh(&self, at: &str, line: &str) -> Said {
        self.run(self.command(at, line))
    }

    /// The same as another user.
    pub fn sh_as(&self, at: &str, user: &str, line: &str) -> Said {
        self.run(self.command_of(at, &["--user", user], line))
    }

    /// Runs a command to its end, a minute at most.
    pub fn run(&self, command: Command) -> Said {
        let mut program = self.spawn(command);
        let code = program.wait(Duration::from_secs(60));
        Said {
            code: code.unwrap_or(-2),
            out: program.out(),
            err: program.err(),
        }
    }

    /// Programs, by their names.
    pub fn programs<const N: usize>(&self, all: [(&str, &str); N]) {
        for (name, text) in all {
            self.file(name, text);
        }
    }

    /// What it prints; it must succeed.
    pub fn says(&self, at: &str, line: &str) -> String {
        let said = self.sh(at, line);
        assert!(said.ok(), "{at}: {line}: {said:?}\n{}", self.instance.log());
        said.out
    }

    /// Starts it and waits until it has printed this.
    pub fn start(&self, at: &str, line: &str, until: &str) -> Program {
        let program = self.spawn(self.command(at, line));
        program.until(until);
        program
    }

    /// Starts it.
    pub fn spawn(&self, mut command: Command) -> Program {
        let path = self.files.join(unique("said"));
        let file = |end: &str| std::fs::File::create(path.with_extension(end)).unwrap();
        command.stdout(file("out")).stderr(file("err"));
        let child = command.process_group(0).spawn().unwrap();
        Program { child, path }
    }

    /// Starts a server and waits until somebody listens at this port of its endpoint.
    pub fn serve(&self, at: &str, line: &str, address: &str, port: u16) -> Program {
        let program = self.spawn(self.command(at, line));
        let tries = format!(
            "for i in $(seq 200); do bash -c ': <>/dev/tcp/{address}/{port}' 2>/dev/null && exit; sleep 0.05; done; exit 1"
        );
        let said = self.sh(at, &tries);
        assert!(
            said.ok(),
            "{line}: {}{}{said:?}",
            program.out(),
            program.err()
        );
        program
    }

    /// What each of the targets, ADDRESS,PORT, answers who tries it from an endpoint.
    pub fn tries(&self, from: &str, targets: &str) -> Vec<String> {
        let said = self.says(from, &format!("{{peer}} try {targets}"));
        said.lines().map(str::to_owned).collect()
    }

    /// The operator's process.
    pub fn operator(&self) -> Option<u32> {
        self.instance.child("bulkhead-operator")
    }

    /// What Prometheus would read.
    pub fn metrics(&self) -> String {
        let socket = self.instance.run_dir().join("api.sock");
        let mut curl = Command::new("curl");
        curl.args(["-s", "http://host/metrics", "--unix-socket"]);
        Said::of(curl.arg(socket)).unwrap().out
    }

    /// Operators that may have taken a connection along into their death, as `status` has it.
    pub fn taken_along(&self) -> u64 {
        let status = self.instance.ask(&["status"]).unwrap();
        let all = status["compartments"].as_array().unwrap();
        let taken = all.iter().map(|of| of["operator"]["taken"].as_u64());
        taken.map(|taken| taken.unwrap()).sum()
    }

    /// Kills the operator and waits for the next one.
    pub fn kill_operator(&self) {
        let limit = Duration::from_secs(10);
        assert!(self.instance.until(limit, |_| self.operator().is_some()));
        let before = self.operator().unwrap();
        kill("KILL", &before.to_string());
        let other = |_: &Instance| self.operator().is_some_and(|pid| pid != before);
        assert!(self.instance.until(limit, other), "no operator any more");
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.files);
    }
}

/// A program that runs in an endpoint; it and what it started end when this is dropped.
pub struct Program {
    child: Child,
    path: PathBuf,
}

impl Program {
    /// What it has printed.
    pub fn out(&self) -> String {
        read(&self.path.with_extension("out"))
    }

    /// What it has complained of.
    pub fn err(&self) -> String {
        read(&self.path.with_extension("err"))
    }

    /// Sends a signal to `bulkhead run`, and to nobody else.
    pub fn is_sent(&self, signal: &str) {
        kill(signal, &self.child.id().to_string());
    }

    /// Waits until it has printed this, a minute at most.
    pub fn until(&self, text: &str) {
        let limit = Instant::now() + patience(Duration::from_secs(20));
        while !self.out().contains(text) {
            let (out, err) = (self.out(), self.err());
            assert!(Instant::now() < limit, "no {text:?}: {out}{err}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until it prints nothing new for 0.3 s, a minute at most: what lies at it it reads, however slowly.
    pub fn falls_silent(&self) {
        let limit = Instant::now() + patience(Duration::from_secs(20));
        loop {
            let heard = self.out().len();
            std::thread::sleep(Duration::from_millis(300));
            if self.out().len() == heard {
                return;
            }
            assert!(Instant::now() < limit, "it hears more");
        }
    }

    /// Lets one go on that reads its input (a pipe).
    pub fn go_on(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Its exit code, if it ends in time.
    pub fn wait(&mut self, limit: Duration) -> Option<i32> {
        let limit = Instant::now() + patience(limit);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status.code().unwrap_or(-1));
            }
            if Instant::now() > limit {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("of {}: {}{}", self.path.display(), self.out(), self.err());
        }
        // Its process group is its own: what it has started is in it.
        kill("KILL", &format!("-{}", self.child.id()));
        let _ = self.child.wait();
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// Sends a signal to a process, or to a group that is its leader's number with a minus.
pub fn kill(signal: &str, whom: &str) {
    let _ = Command::new("kill")
        .args(["-s", signal, "--", whom])
        .stderr(Stdio::null())
        .status();
}
