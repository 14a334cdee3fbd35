//! Containers, by the runtimes themselves: crun and runc, each told of an endpoint by
//! `bulkhead oci`.

use crate::scene::{GUARDED, OPEN, Program, Scene};
use e2e::{Said, program, unique};
use serde_json::{Value, json};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

const RUNTIMES: [&str; 2] = ["crun", "runc"];

/// A container of a runtime's, made of the machine's own files.
pub struct Container<'a> {
    scene: &'a Scene,
    runtime: &'static str,
    /// Its folder, and its name.
    bundle: PathBuf,
    name: String,
}

impl<'a> Container<'a> {
    /// At an endpoint, with this shell line.
    pub fn new(scene: &'a Scene, runtime: &'static str, at: &str, line: &str) -> Container<'a> {
        let name = unique("bhc");
        let files = scene.files();
        let bundle = PathBuf::from(&files).join(&name);
        for folder in ["usr", "etc", "tmp", "proc", "dev", "sys", &files[1..]] {
            std::fs::create_dir_all(bundle.join("rootfs").join(folder)).unwrap();
        }
        for folder in ["bin", "sbin", "lib", "lib64"] {
            let to = format!("usr/{folder}");
            std::os::unix::fs::symlink(to, bundle.join("rootfs").join(folder)).unwrap();
        }
        let line = line
            .replace("{peer}", "/usr/bin/python3 {f}/peer.py")
            .replace("{f}", &files);
        let bound = |path: &str| json!({ "destination": path, "type": "bind", "source": path, "options": ["rbind", "ro"] });
        let powers = json!([
            "CAP_NET_BIND_SERVICE",
            "CAP_SETUID",
            "CAP_SETGID",
            "CAP_CHOWN",
            "CAP_KILL"
        ]);
        let namespaces = ["pid", "network", "ipc", "uts", "mount"];
        let namespaces = namespaces.map(|kind| json!({ "type": kind }));
        let config = json!({
            "ociVersion": "1.0.0",
            "process": {
                "user": { "uid": 0, "gid": 0 },
                "cwd": "/",
                "env": ["PATH=/usr/sbin:/usr/bin"],
                "args": ["/bin/sh", "-c", line],
                "capabilities": { "bounding": powers, "effective": powers, "permitted": powers },
            },
            "root": { "path": "rootfs" },
            "mounts": [
                { "destination": "/proc", "type": "proc", "source": "proc" },
                { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] },
                { "destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "ro"] },
                { "destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=1777"] },
                bound("/usr"), bound("/etc"), bound(&files),
            ],
            "linux": {
                "namespaces": namespaces,
            },
            "annotations": { "bulkhead.endpoint": format!("red/{at}") },
        });
        let container = Container {
            scene,
            runtime,
            bundle,
            name,
        };
        container.write(&config);
        container
    }

    fn config(&self) -> Value {
        let text = std::fs::read(self.bundle.join("config.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    fn write(&self, config: &Value) {
        std::fs::write(self.bundle.join("config.json"), config.to_string()).unwrap();
    }

    /// The same with something otherwise.
    pub fn with(self, place: &str, value: Value) -> Container<'a> {
        let mut config = self.config();
        let (of, name) = place.rsplit_once('/').unwrap();
        let of = config.pointer_mut(of).unwrap().as_object_mut().unwrap();
        of.insert(name.to_owned(), value);
        self.write(&config);
        self
    }

    /// `bulkhead oci` with these arguments, the runtime's own before and behind.
    fn command(&self, own: &[&str], words: &[&str]) -> Command {
        // Where cgroups are of both versions crun gives up: there it sees those of the second.
        let unified =
            "test -e /sys/fs/cgroup/cgroup.controllers || mount -t cgroup2 none /sys/fs/cgroup";
        let prepare = match self.runtime {
            "crun" => format!("{unified}; exec \"$@\""),
            _ => "exec \"$@\"".into(),
        };
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-c", &prepare, "sh"]);
        let bulkhead = self
            .scene
            .instance
            .command(&["oci", "--runtime", self.runtime]);
        command
            .arg(bulkhead.get_program())
            .args(bulkhead.get_args());
        command.args(own).arg("--").args(self.options()).args(words);
        command.stdin(Stdio::null()).process_group(0);
        command
    }

    fn options(&self) -> Vec<String> {
        let root = format!("--root={}/state-{}", self.scene.files(), self.runtime);
        match self.runtime {
            "crun" => vec!["--cgroup-manager=disabled".into(), root],
            _ => vec![root],
        }
    }

    /// Where its runtime has what it knows of it.
    pub fn state(&self) -> PathBuf {
        let root = format!("{}/state-{}", self.scene.files(), self.runtime);
        PathBuf::from(root).join(&self.name)
    }

    fn bundle(&self) -> String {
        self.bundle.display().to_string()
    }

    /// `run`, with what comes of it.
    fn running(&self) -> Command {
        self.command(&[], &["run", "--bundle", &self.bundle(), &self.name])
    }

    /// The same, when it has printed this.
    pub fn start(&self, until: &str) -> Program {
        let program = self.scene.spawn(self.running());
        program.until(until);
        program
    }

    /// `run`, to its end.
    pub fn run(&self) -> Said {
        self.scene.run(self.running())
    }

    /// What it prints; it must succeed.
    fn says(&self) -> String {
        let said = self.run();
        assert!(
            said.ok(),
            "{}: {said:?}\n{}",
            self.runtime,
            self.scene.instance.log()
        );
        said.out
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        // Its runtime may have been killed, which leaves it running.
        let mut command = Command::new(self.runtime);
        command
            .args(self.options())
            .args(["delete", "--force", &self.name]);
        let _ = command.stdin(Stdio::null()).output();
    }
}

fn guarded() -> String {
    format!("{OPEN}{GUARDED}")
}

#[test]
fn containers_of_both_runtimes_are_under_the_tenants_rules() {
    let scene = Scene::of(&guarded());
    for runtime in RUNTIMES {
        let web = Container::new(&scene, runtime, "web", "{peer} serve 80 81");
        let server = web.start("serving");
        let tries = "{peer} try 10.1.1.10,80 fd00:1::10,80 10.1.1.10,81 10.1.1.77,80";
        let app = Container::new(&scene, runtime, "app", tries);
        let answers = "10.1.1.11\nfd00:1::11\nEACCES\nEHOSTUNREACH\n";
        assert_eq!(app.says(), answers, "{runtime}");
        let few = Container::new(&scene, runtime, "few", "{peer} try 10.1.1.10,80");
        assert_eq!(few.says(), "EACCES\n", "{runtime}");
        // A program without a container is such an endpoint's too, and another user inside.
        assert_eq!(
            scene.tries("app", "10.1.1.10,80"),
            ["10.1.1.11"],
            "{runtime}"
        );
        let user = json!({ "uid": 65534, "gid": 65534 });
        let nobody = Container::new(&scene, runtime, "app", &format!("id -u; {tries}"));
        let nobody = nobody.with("/process/user", user);
        assert_eq!(nobody.says(), format!("65534\n{answers}"), "{runtime}");
        // With its end its port is free.
        drop(server);
        drop(web);
        assert_eq!(
            scene.tries("app", "10.1.1.10,80"),
            ["ECONNREFUSED"],
            "{runtime}"
        );
    }
}

const NGINX: &str = "user nobody nogroup; pid /tmp/pid; error_log stderr; events {}
http { access_log off; client_body_temp_path /tmp/a; proxy_temp_path /tmp/b; fastcgi_temp_path /tmp/c;
  uwsgi_temp_path /tmp/d; scgi_temp_path /tmp/e;
  server { listen 80; listen [::]:80; location / { return 200 \"from $remote_addr\\n\"; } } }
";

#[test]
fn a_server_gives_up_root_in_one_and_is_asked_from_another() {
    let scene = Scene::of(OPEN);
    scene.file("nginx.conf", NGINX);
    for runtime in RUNTIMES {
        let line = "nginx -e stderr -c {f}/nginx.conf -g 'daemon off;'";
        let web = Container::new(&scene, runtime, "web", line);
        let server = scene.spawn(web.running());
        let line = "for i in $(seq 100); do curl -sf http://10.1.1.10/ && exec curl -sf 'http://[fd00:1::10]/'; sleep 0.1; done; exit 1";
        let app = Container::new(&scene, runtime, "app", line);
        assert_eq!(
            app.says(),
            "from 10.1.1.11\nfrom fd00:1::11\n",
            "{}",
            server.err()
        );
    }
}

#[test]
fn a_container_goes_on_without_its_operator() {
    let scene = Scene::of(OPEN);
    for runtime in RUNTIMES {
        let web = Container::new(&scene, runtime, "web", "{peer} stream 90");
        let _server = web.start("serving");
        let app = Container::new(&scene, runtime, "app", "{peer} follow 10.1.1.10 90");
        let follows = app.start("\n1000\n");
        scene.kill_operator();
        let next = follows.out().lines().count() * 100 + 2000;
        follows.until(&format!("\n{next}\n"));
        // Its successor was given what is in there, and where others come.
        let line = "{peer} follow 10.1.1.10 90 | head -n 3";
        let another = Container::new(&scene, runtime, "app", line);
        assert_eq!(another.says(), "100\n200\n300\n", "{runtime}");
        assert_eq!(scene.says("few", line), "100\n200\n300\n", "{runtime}");
    }
}

/// What is asked of the kernel in a container: another listener, and a name that is bound outside
/// of it, by a socket of the host's that it was given.
const PROBES: &str = "
import ctypes, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)
code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))
filter = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 1, ctypes.addressof(code)))
print(libc.syscall(317, 1, 8, filter), ctypes.get_errno())
given = socket.socket(fileno=3)
try:
    given.connect(bytes.fromhex(sys.argv[1]))
    print('CONNECTED')
except OSError as error:
    print(error.errno)
";

#[test]
fn nothing_in_a_container_gets_at_circuits_names_or_has_a_listener() {
    let scene = Scene::of(OPEN);
    scene.file("probes.py", PROBES);
    for runtime in RUNTIMES {
        let name = format!("\0{}", unique("containers-scope"));
        let hex: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
        let line = format!("exec python3 {{f}}/probes.py {hex}");
        let app = Container::new(&scene, runtime, "app", &line);
        let outer = scene.file(
            "outer.py",
            "import os, socket, sys
name = bytes.fromhex(sys.argv[1]); os.open('/dev/null', 0)
listener = socket.socket(socket.AF_UNIX); listener.bind(name); listener.listen()
given = socket.socket(socket.AF_UNIX); os.dup2(given.fileno(), 3)
if os.fork() == 0: os.execvp(sys.argv[2], sys.argv[2:])
os.wait()
given.connect(name); print('outside: connected')
",
        );
        let inner = app.command(
            &[],
            &[
                "run",
                "--preserve-fds=1",
                "--bundle",
                &app.bundle(),
                &app.name,
            ],
        );
        let mut command = Command::new("/usr/bin/python3");
        command.arg(outer).arg(&hex);
        command.arg(inner.get_program()).args(inner.get_args());
        let said = scene.run(command);
        assert_eq!(
            said.out, "-1 16\n1\noutside: connected\n",
            "{runtime}: {said:?}"
        );
    }
}

#[test]
fn a_container_gets_no_socket_of_the_network_that_its_runtime_is_to_preserve() {
    let scene = Scene::of(OPEN);
    let outer = scene.file(
        "outer.py",
        "import os, socket, sys
os.open('/dev/null', 0)
given = socket.socket(getattr(socket, sys.argv[1])); os.dup2(given.fileno(), 3)
os.execvp(sys.argv[2], sys.argv[2:])
",
    );
    for runtime in RUNTIMES {
        for (family, has) in [("AF_UNIX", true), ("AF_INET", false)] {
            let line = "test -S /proc/self/fd/3 && echo has it; exit 0";
            let app = Container::new(&scene, runtime, "app", line);
            let preserve = "--preserve-fds=1";
            let inner = app.command(
                &[],
                &["run", preserve, "--bundle", &app.bundle(), &app.name],
            );
            let mut command = Command::new("/usr/bin/python3");
            command.arg(&outer).arg(family);
            command.arg(inner.get_program()).args(inner.get_args());
            let said = scene.run(command);
            assert_eq!(said.out == "has it\n", has, "{runtime} {family}: {said:?}");
            let told = said.err.contains("descriptor 3 is a socket of the network");
            assert_eq!(told, !has, "{runtime} {family}: {said:?}");
        }
    }
}

#[test]
fn root_of_a_container_is_who_its_bundle_says() {
    let scene = Scene::of(OPEN);
    let _web = scene.start("web", "{peer} serve 80", "serving");
    for runtime in RUNTIMES {
        let ids = json!([{ "containerID": 0, "hostID": 400_000, "size": 70_000 }]);
        let line = "cat /proc/self/uid_map; touch /tmp/x; stat -c %u /tmp/x /etc/passwd; {peer} try 10.1.1.10,80";
        let app = Container::new(&scene, runtime, "app", line)
            .with("/linux/uidMappings", ids.clone())
            .with("/linux/gidMappings", ids);
        let rootfs = app.bundle.join("rootfs");
        std::os::unix::fs::chown(rootfs, Some(400_000), Some(400_000)).unwrap();
        let said = app.says();
        let words: Vec<&str> = said.split_whitespace().collect();
        // The host's root is nobody there.
        assert_eq!(
            words,
            ["0", "400000", "70000", "0", "65534", "10.1.1.11"],
            "{runtime}"
        );
    }
}

#[test]
fn bundles_that_cannot_be_one_are_refused_with_what_to_do() {
    let scene = Scene::of(OPEN);
    let refused = |container: &Container<'_>, what: &str, todo: &str| {
        let before = container.config();
        let said = container.run();
        assert!(
            said.code == 2 && said.err.contains(what) && said.err.contains(todo),
            "{what}: {said:?}"
        );
        assert_eq!(container.config(), before, "{what}: it was changed");
    };
    let of = |line: &str| Container::new(&scene, "runc", "app", line);
    let own = json!({ "defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/tmp/other" });
    let own = of("true").with("/linux/seccomp", own);
    refused(&own, "listenerPath of its own", "take that");
    let profile = json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        { "names": ["mkdir"], "action": "SCMP_ACT_NOTIFY" }] });
    let notifies = of("true").with("/linux/seccomp", profile);
    refused(&notifies, "SCMP_ACT_NOTIFY", "take these out");
    let profile = json!({ "defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
        { "names": ["connect"], "action": "SCMP_ACT_ALLOW" }, { "names": ["connect"], "action": "SCMP_ACT_ERRNO" }] });
    let unclear = of("true").with("/linux/seccomp", profile);
    refused(
        &unclear,
        "connect is permitted and denied",
        "say of this call",
    );
    let joins = |kind: &str| json!([{ "type": kind, "path": format!("/proc/1/ns/{kind}") }]);
    let network = of("true").with("/linux/namespaces", joins("network"));
    refused(
        &network,
        "joins the network namespace /proc/1/ns/network",
        "--network none",
    );
    let user = of("true").with("/linux/namespaces", joins("user"));
    refused(&user, "joins the user namespace", "uidMappings");
    let nameless = of("true").with("/annotations", json!({}));
    refused(&nameless, "names no endpoint", "bulkhead.endpoint");
    let wrong = of("true").with("/annotations", json!({ "bulkhead.endpoint": "red" }));
    refused(&wrong, "annotation bulkhead.endpoint", "TENANT/ENDPOINT");

    // By which crun takes another filter, and runc other namespaces.
    let both =
        json!({ "bulkhead.endpoint": "red/app", "run.oci.seccomp_bpf_data": "BgAAAAAA/38=" });
    let filter = Container::new(&scene, "crun", "app", "true").with("/annotations", both);
    refused(
        &filter,
        "annotation run.oci.seccomp_bpf_data",
        "take it out",
    );
    let alike = json!({ "nameſpaces": [], "namespaces": [] });
    let alike = of("true").with("/linux", alike);
    refused(
        &alike,
        "in different ways",
        "as the runtime specification does",
    );

    let nobody = of("true").with("/annotations", json!({ "bulkhead.endpoint": "red/nobody" }));
    let said = nobody.run();
    assert!(
        said.code == 1 && said.err.contains("there is no endpoint red/nobody"),
        "{said:?}"
    );
    let other = of("true");
    let run = ["run", "--bundle", &other.bundle(), &other.name];
    let said = scene.run(other.command(&["--endpoint", "red/web"], &run));
    assert!(
        said.code == 2 && said.err.contains("it is red/app's"),
        "{said:?}"
    );
    for option in ["-f/tmp/x", "--conf=/tmp/x", "-db"] {
        let bundle = other.bundle();
        let run = ["run", "--bundle", &bundle, option, &other.name];
        let said = scene.run(other.command(&[], &run));
        assert!(said.code == 2 && said.err.contains("not known"), "{said:?}");
    }
    for word in ["exec", "restore"] {
        let said = scene.run(other.command(&[], &[word, &other.name, "true"]));
        assert!(said.code == 2 && said.err.contains(word), "{said:?}");
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--clear-groups"]);
    let whole = scene.instance.command(&["oci", "--runtime", "runc", "--"]);
    command
        .arg(whole.get_program())
        .args(whole.get_args())
        .args(run);
    let said = Said::of(&mut command).unwrap();
    assert!(
        !said.ok() && said.err.contains("Permission denied") && said.err.contains("root"),
        "{said:?}"
    );
}

/// Says things to the socket of runtimes that no runtime says.
const LIES: &str = "
import array, json, os, socket, sys
path, user, what = sys.argv[1:]
# Past the folders, which are root's.
path = '/proc/self/fd/%d' % os.open(path, os.O_PATH)
if user != '0': os.setresuid(*[int(user)] * 3)
s = socket.socket(socket.AF_UNIX); s.connect(path)
state = json.dumps({'ociVersion': '1.0.0', 'fds': ['seccompFd'], 'pid': 1, 'metadata': 'red/app'}).encode()
def rights(*fds): return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))]
if what == 'nothing': s.sendall(state); s.shutdown(socket.SHUT_WR)
elif what == 'pipe': s.sendmsg([state], rights(os.pipe()[0]))
elif what == 'two': s.sendmsg([state], rights(0, 1))
elif what == 'long':
    s.settimeout(10)
    try:
        for _ in range(10000): s.sendall(b' ' * 1000)
    except (BrokenPipeError, ConnectionResetError): sys.exit(0)
elif what == 'quiet':
    many = [socket.socket(socket.AF_UNIX) for _ in range(99)]
    for one in many: one.connect(path)
    print('connected', flush=True); sys.stdin.read(); sys.exit(0)
elif what == 'connect': sys.exit(0)
s.settimeout(10); print(s.recv(1))
";

#[test]
fn what_is_no_runtime_is_refused_and_harms_nobody() {
    let scene = Scene::of(OPEN);
    let lies = scene.file("lies.py", LIES);
    let operator = scene.operator();
    let socket = scene.instance.run_dir().join("circuits/red/web.oci");
    let said = |user: &str, what: &str| {
        let mut command = Command::new("python3");
        command.arg(&lies).arg(&socket).args([user, what]);
        Said::of(&mut command).unwrap()
    };
    let events = scene.spawn(scene.instance.command(&["events"]));
    // It has begun to tell when it tells this.
    let limit = Duration::from_secs(20);
    let tells = |_: &_| said("0", "pipe").ok() && events.out().contains("no seccomp listener");
    assert!(scene.instance.until(limit, tells), "{}", events.err());
    let told = |text: &str| events.until(text);
    for (what, why) in [
        ("nothing", "its runtime sent no listener"),
        ("two", "more than one descriptor came"),
        ("long", "more than a mebibyte"),
    ] {
        let said = said("0", what);
        assert!(said.ok(), "{what}: {said:?}");
        told(why);
    }
    assert!(said("0", "connect").ok());
    assert!(
        !said("65534", "connect").ok(),
        "nobody but root has a socket of mode 600"
    );
    // Should somebody have given that away, the operator asks who it is.
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&socket, everybody).unwrap();
    said("65534", "nothing");
    told("who handed it over is not root");
    // As many as like to may connect and say nothing.
    let mut quiet = Command::new("python3");
    quiet.arg(&lies).arg(&socket).args(["0", "quiet"]);
    quiet.stdin(Stdio::piped());
    let quiet = scene.spawn(quiet);
    quiet.until("connected");
    let _server = scene.start("app", "{peer} serve 80", "serving");
    let web = Container::new(&scene, "runc", "web", "{peer} try 10.1.1.11,80");
    assert_eq!(web.says(), "10.1.1.10\n");
    assert_eq!(scene.operator(), operator, "another operator");
}

#[test]
fn a_bundle_is_run_again_and_elsewhere() {
    let scene = Scene::of(OPEN);
    let _server = scene.start("web", "{peer} serve 80", "serving");
    let app = Container::new(&scene, "crun", "app", "{peer} try 10.1.1.10,80");
    let first = app.config();
    assert_eq!(app.says(), "10.1.1.11\n");
    let rules = |it: &Value| it["linux"]["seccomp"]["syscalls"].as_array().map(Vec::len);
    let once = rules(&app.config());
    // What its owner changes of it meanwhile holds.
    let app = app.with("/annotations", json!({ "bulkhead.endpoint": "red/few" }));
    assert_eq!(app.says(), "10.1.1.12\n");
    assert_eq!(rules(&app.config()), once);
    assert_eq!(
        app.config()["bulkhead"]["namespaces"],
        first["linux"]["namespaces"]
    );
    // As a runtime by name, in the two steps of managers of containers.
    let named = app.bundle.join("bulkhead-oci");
    std::os::unix::fs::symlink(program("bulkhead"), &named).unwrap();
    let runtime = |words: &[&str]| {
        let mut command = Command::new(&named);
        command
            .args(["--root", &format!("{}/state-runc", scene.files())])
            .args(words);
        command.env("BULKHEAD_OCI_RUNTIME", "runc");
        command.env("BULKHEAD_SOCKET", scene.instance.run_dir().join("api.sock"));
        let said = scene.run(command);
        assert!(said.ok(), "{words:?}: {said:?}");
        said.out
    };
    let created = Container {
        scene: &scene,
        runtime: "runc",
        bundle: app.bundle.clone(),
        name: unique("bhc"),
    };
    let pid = app.bundle.join("pid").display().to_string();
    runtime(&[
        "create",
        "--bundle",
        &app.bundle(),
        "--pid-file",
        &pid,
        &created.name,
    ]);
    let state: Value = serde_json::from_str(&runtime(&["state", &created.name])).unwrap();
    assert_eq!(state["status"], "created");
    runtime(&["start", &created.name]);
    let stopped = |_: &_| runtime(&["state", &created.name]).contains("\"stopped\"");
    assert!(scene.instance.until(Duration::from_secs(20), stopped));
    runtime(&["delete", &created.name]);
}

/// Podman starts containers by `bulkhead oci` as by any runtime, with its own profile.
#[test]
fn podman_runs_containers_of_circuits() {
    let scene = Scene::of(&guarded());
    let files = scene.files();
    let runtime = scene.instance.command(&["oci", "--runtime", "runc", "--"]);
    let words = std::iter::once(runtime.get_program()).chain(runtime.get_args());
    let words: Vec<_> = words.map(|word| word.to_str().unwrap()).collect();
    let own = scene.file(
        "bulkhead-oci",
        &format!("#!/bin/sh\nexec {} \"$@\"\n", words.join(" ")),
    );
    let may = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&own, may).unwrap();
    let engine = format!(
        "[engine]\nruntime = \"bulkhead-oci\"\n[engine.runtimes]\nbulkhead-oci = [\"{}\"]\n",
        own.display()
    );
    let engine = scene.file("containers.conf", &engine);
    let rootfs = PathBuf::from(&files).join("podman/rootfs");
    for folder in ["bin", "tmp", "etc"] {
        std::fs::create_dir_all(rootfs.join(folder)).unwrap();
    }
    std::fs::copy("/bin/busybox", rootfs.join("bin/busybox")).unwrap();
    std::fs::write(rootfs.join("hello"), "from a container\n").unwrap();
    let podman = |words: &[&str]| {
        let mut command = Command::new("podman");
        for (name, folder) in [("root", "images"), ("runroot", "runs"), ("tmpdir", "tmp")] {
            command.args([format!("--{name}"), format!("{files}/podman/{folder}")]);
        }
        command.args([
            "--storage-driver=vfs",
            "--events-backend=file",
            "--cgroup-manager=cgroupfs",
        ]);
        command.args(words).env("CONTAINERS_CONF", &engine);
        scene.run(command)
    };
    let rootfs = rootfs.display().to_string();
    let name = unique("bhp");
    let run = |at: &str, before: &[&str], words: &[&str]| {
        let annotation = format!("bulkhead.endpoint=red/{at}");
        // More than this process has a root without CAP_SYS_RESOURCE could not give.
        let limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"];
        let own = ["run", "--network=none", "--annotation", &annotation];
        let own = [&own[..], &limits].concat();
        let rootfs = ["--rootfs", &rootfs, "/bin/busybox"];
        podman(&[&own, before, &rootfs, words].concat())
    };
    let server = run(
        "web",
        &["-d", "--name", &name],
        &["httpd", "-f", "-p", "80", "-h", "/"],
    );
    // Its end, whatever becomes of this.
    struct Ends<F: Fn()>(F);
    impl<F: Fn()> Drop for Ends<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    let _ends = Ends(|| drop(podman(&["rm", "--force", "--time=0", &name])));
    assert!(server.ok(), "{server:?}");
    let line = "id -u; for i in 1 2 3 4 5 6 7 8 9; do wget -q -O - http://10.1.1.10/hello && exit; sleep 1; done; exit 1";
    let user = ["--rm", "--user=65534"];
    let said = run("app", &user, &["sh", "-c", line]);
    assert_eq!(said.out, "65534\nfrom a container\n", "{said:?}");
    let said = run(
        "few",
        &["--rm"],
        &["wget", "-q", "-O", "-", "http://10.1.1.10/hello"],
    );
    assert!(
        !said.ok() && said.err.contains("Permission denied"),
        "{said:?}"
    );
    let said = podman(&["exec", &name, "/bin/busybox", "id"]);
    assert!(
        !said.ok() && said.err.contains("nothing more is started"),
        "{said:?}"
    );
}

/// The example of a service by systemd is one that systemd takes.
#[test]
fn a_services_drop_in_is_understood() {
    let units = e2e::private_folder("units-").unwrap();
    let given = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd");
    let text = |path: &str| std::fs::read_to_string(given.join(path)).unwrap();
    let own = program("bulkhead").display().to_string();
    let verify = |example: &str| {
        let folder = units.join("web.service.d");
        std::fs::create_dir_all(&folder).unwrap();
        let example = example.replace("/usr/local/bin/bulkhead", &own);
        std::fs::write(folder.join("circuits.conf"), example).unwrap();
        // As distributions restrict theirs.
        let service = "[Service]\nType=notify\nUser=daemon\nExecStart=/usr/bin/true\nCapabilityBoundingSet=\nNoNewPrivileges=yes\nRestrictNamespaces=yes\nPrivateUsers=yes\nSystemCallFilter=@system-service\nSystemCallFilter=~@privileged\n";
        std::fs::write(units.join("web.service"), service).unwrap();
        let daemon = "[Service]\nExecStart=/usr/bin/true\n";
        std::fs::write(units.join("bulkhead.service"), daemon).unwrap();
        let mut command = Command::new("systemd-analyze");
        command
            .args(["verify", "--man=no"])
            .arg(units.join("web.service"));
        command.env("SYSTEMD_UNIT_PATH", format!("{}:", units.display()));
        Said::of(&mut command).unwrap()
    };
    let example = text("examples/circuits.conf");
    // Root has the line that starts the program, and not those that the unit has beside.
    let sets = |what: &str| example.lines().any(|line| line.starts_with(what));
    assert!(sets("ExecStart=!/usr/local/bin/bulkhead run "), "{example}");
    for what in ["User=", "Group=", "Type="] {
        assert!(!sets(what), "{what} is the unit's own");
    }
    let said = verify(&example);
    let restricts = |what: &str| {
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--offline=yes", "--no-pager"]);
        command.arg(units.join("web.service"));
        command.env("SYSTEMD_UNIT_PATH", format!("{}:", units.display()));
        let said = Said::of(&mut command).unwrap();
        let line = said.out.lines().find(|line| line.contains(what));
        line.unwrap_or_else(|| panic!("{what}: {said:?}"))
            .starts_with('✓')
    };
    for what in [
        "RestrictNamespaces=~user",
        "RestrictNamespaces=~net",
        "PrivateUsers=",
        "CAP_SYS_ADMIN",
        "SystemCallFilter=~@mount",
    ] {
        assert!(!restricts(what), "{what}");
    }
    assert!(restricts("User=/DynamicUser="));
    let wrong = verify(&example.replace("PrivateUsers=", "PrivateUser="));
    let _ = std::fs::remove_dir_all(&units);
    let about = |said: &Said| {
        said.err
            .lines()
            .any(|line| line.contains("circuits.conf") || line.contains("web.service"))
    };
    assert!(said.ok() && !about(&said), "{said:?}");
    assert!(about(&wrong), "nothing is looked at: {wrong:?}");
}
