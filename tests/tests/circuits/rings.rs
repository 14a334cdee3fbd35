//! Programs that know of circuits: their bytes go by memory that both ends have, or by the
//! socket where one end has not.

use crate::scene::{GUARDED, OPEN, Program, Scene};
use std::io::Write as _;
use std::time::Duration;

/// What a program asks for that is no use of this library's: the option's answer, or the error.
const PROBE: &str = "
import errno, os, socket, struct, sys
def ring(s):
    try: given = s.getsockopt(0x4248, 1, 16)
    except OSError as error: return errno.errorcode[error.errno]
    number, side, capacity, version = struct.unpack('iIII', given)
    name = os.readlink(f'/proc/self/fd/{number}')
    try: os.ftruncate(number, 0); cut = 'CUT'
    except OSError as error: cut = errno.errorcode[error.errno]
    return f'{side} {capacity} {version} {name.split()[0]} {os.get_inheritable(number)} {cut}'
print('fresh:', ring(socket.socket()))
listener = socket.socket(); listener.bind(('127.0.0.1', 0)); listener.listen()
print('listening:', ring(listener))
client = socket.create_connection(listener.getsockname())
print('began:', ring(client))
print('twice:', ring(client))
server, _ = listener.accept()
print('accepted:', ring(server))
print('twice:', ring(server))
client.close()
print('little room:', end=' ')
other = socket.create_connection(listener.getsockname())
try: print(other.getsockopt(0x4248, 1, 15))
except OSError as error: print(errno.errorcode[error.errno])
print('another option:', end=' ')
try: print(other.getsockopt(0x4248, 2, 16))
except OSError as error: print(errno.errorcode[error.errno])
";

/// What another user finds of a program whose command line has this word: as many processes, and
/// what each way to its memory or its descriptors comes to.
const PRY: &str = "
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def tries(what):
    try: what(); return 'OPEN'
    except OSError as error: return errno.errorcode[error.errno]
def fetched(pid):
    pidfd = os.pidfd_open(pid)
    for number in range(3, 9):
        if libc.syscall(438, pidfd, number, 0) >= 0: return
    raise OSError(ctypes.get_errno(), '')
def opened(pid):
    first = None
    for number in range(9):
        try: return os.open(f'/proc/{pid}/fd/{number}', os.O_RDONLY)
        except OSError as error: first = first or error
    raise first
for pid in filter(str.isdigit, os.listdir('/proc')):
    try: words = open(f'/proc/{pid}/cmdline').read().split('\\0')
    except OSError: continue
    if words[0] == sys.argv[1]:
        print(tries(lambda: opened(pid)),
            tries(lambda: open(f'/proc/{pid}/mem', 'rb')),
            tries(lambda: open(f'/proc/{pid}/maps').read()),
            tries(lambda: os.listdir(f'/proc/{pid}/map_files')),
            tries(lambda: fetched(int(pid))))
";

/// The native program is a file that every user may read.
fn scene_of(spec: &str) -> Scene {
    let scene = Scene::of(spec);
    let to = scene.file("native", "");
    std::fs::copy(e2e::program("bulkhead-native"), to).unwrap();
    scene
}

fn echo(scene: &Scene) -> Program {
    scene.start("web", "exec {f}/native echo 10.1.1.10:7000", "serving")
}

fn asks(scene: &Scene, turns: u32) -> String {
    let line = format!("{{f}}/native ask 10.1.1.10:7000 {turns}");
    let said = scene.says("app", &line);
    said.trim_start_matches("connected\n").trim().to_owned()
}

#[test]
fn two_native_programs_use_the_ring() {
    let scene = scene_of(OPEN);
    let server = echo(&scene);
    assert_eq!(asks(&scene, 200), "200 by ring");
    server.until("by Ring: end\n");
    // As other users, and inside one endpoint.
    let line = "{f}/native ask 10.1.1.10:7000 50";
    let said = scene.sh_as("app", "nobody", line);
    assert!(said.out.ends_with("50 by ring\n"), "{said:?}");
    let said = scene.says("web", line);
    assert!(said.ends_with("50 by ring\n"), "{said}");
    // Of both families at once, and through the loopback.
    let _both = scene.start("web", "exec {f}/native echo [::]:7001", "serving");
    for (at, to) in [
        ("app", "10.1.1.10"),
        ("app", "[fd00:1::10]"),
        ("web", "127.0.0.1"),
        ("web", "[::1]"),
    ] {
        let said = scene.says(at, &format!("{{f}}/native ask {to}:7001 50"));
        assert!(said.ends_with("50 by ring\n"), "{to}: {said}");
    }
}

/// Twice in a row, and by the operator after the one that was there first, of a circuit of its own.
#[test]
fn memory_of_a_ring_that_rests_is_given_back() {
    let scene = scene_of(OPEN);
    let _server = echo(&scene);
    for kills in [false, true] {
        if kills {
            scene.kill_operator();
        }
        let said = scene.says("app", "{f}/native rest 10.1.1.10:7000");
        let expected = format!("{}rested by ring\n", "given back\n".repeat(3));
        assert!(said.ends_with(&expected), "{said}");
    }
}

/// Where the kernel has the operator's processes counted apart: in each hierarchy that has its group.
fn groups_of_operator(scene: &Scene) -> Vec<String> {
    let Some(operator) = scene.operator() else {
        return Vec::new();
    };
    let all = std::fs::read_to_string(format!("/proc/{operator}/cgroup")).unwrap_or_default();
    let own = all.lines().filter(|line| line.contains("/operators-"));
    own.map(str::to_owned).collect()
}

/// By its uid the kernel counts its compartment's programs too: they leave an operator its own number.
#[test]
fn memory_is_given_back_whatever_else_runs() {
    let scene = scene_of(OPEN);
    let _server = echo(&scene);
    let many = "for i in $(seq 40); do sleep 1000 & done; echo up; wait";
    let _many = scene.start("few", many, "up");
    for kills in [false, true] {
        if kills {
            scene.kill_operator();
        }
        let limit = Duration::from_secs(10);
        let without = || {
            let told = "are counted with their tenants' programs";
            scene.instance.log().contains(told)
        };
        let apart = || !groups_of_operator(&scene).is_empty();
        let known = |_: &e2e::Instance| apart() || without();
        assert!(
            scene.instance.until(limit, known),
            "{}",
            scene.instance.log()
        );
        if without() {
            // Past what a test prints: who is green without having looked says so.
            let said =
                "NOT TRIED: memory_is_given_back_whatever_else_runs: this host has no cgroups";
            writeln!(std::io::stderr(), "{said}").unwrap();
            return;
        }
        let said = scene.says("app", "{f}/native rest 10.1.1.10:7000");
        assert!(said.ends_with("rested by ring\n"), "{said}");
    }
}

#[test]
fn a_native_program_and_an_ordinary_one_use_the_socket() {
    const ORDINARY: &str = "
import socket
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(('10.1.1.10', 7000)); s.listen()
print('serving', flush=True)
while True:
    c, _ = s.accept()
    while b := c.recv(100000): c.sendall(b)
";
    let scene = scene_of(OPEN);
    scene.file("ordinary.py", ORDINARY);
    let server = scene.start("web", "exec python3 {f}/ordinary.py", "serving");
    assert_eq!(asks(&scene, 20), "20 by socket");
    drop(server);
    let server = echo(&scene);
    let client = "python3 -c 'import socket; s = socket.create_connection((\"10.1.1.10\", 7000)); s.sendall(b\"hello\" * 1000); s.shutdown(1); print(sum(len(b) for b in iter(lambda: s.recv(4096), b\"\")))'";
    assert_eq!(scene.says("app", client), "5000\n");
    server.until("5000 by Socket: end\n");
}

#[test]
fn the_memory_is_given_once_to_each_end_of_a_connection() {
    let scene = scene_of(OPEN);
    let probe = scene.file("probe.py", PROBE);
    let expected = "fresh: ENOTCONN
listening: ENOTCONN
began: 0 1048576 4 /memfd:circuit False EPERM
twice: EALREADY
accepted: 1 1048576 4 /memfd:circuit False EPERM
twice: EALREADY
little room: EINVAL
another option: ENOTSUP
";
    let line = format!("python3 {}", probe.display());
    for user in ["root", "nobody"] {
        let said = scene.sh_as("web", user, &line);
        assert_eq!(said.out, expected, "{user}: {}", said.err);
    }
}

#[test]
fn an_operator_that_dies_between_the_two_asks_leaves_them_the_socket() {
    let scene = scene_of(OPEN);
    let sign = format!("{}/sign", scene.files());
    let line = format!("exec {{f}}/native late 10.1.1.10:7000 {sign}");
    let server = scene.start("web", &line, "serving");
    let mut client = scene.start("app", "exec {f}/native ask 10.1.1.10:7000 100", "connected");
    server.until("accepted");
    scene.kill_operator();
    let limit = Duration::from_secs(10);
    assert!(
        scene
            .instance
            .until(limit, |_| scene.sh("few", "true").ok())
    );
    std::fs::write(&sign, "").unwrap();
    assert_eq!(
        client.wait(Duration::from_secs(30)),
        Some(0),
        "{}",
        client.err()
    );
    assert_eq!(client.out(), "connected\n100 by socket\n");
    server.until("by Socket: end\n");
}

#[test]
fn a_ring_goes_on_through_the_operators_death_and_is_taken_up_late() {
    let scene = scene_of(OPEN);
    let sign = format!("{}/sign", scene.files());
    let line = format!("exec {{f}}/native late 10.1.1.10:7000 {sign}");
    let server = scene.start("web", &line, "serving");
    let mut client = scene.start(
        "app",
        "exec {f}/native ask 10.1.1.10:7000 30000",
        "connected",
    );
    server.until("accepted");
    std::fs::write(&sign, "").unwrap();
    let is_given = |it: &e2e::Instance| {
        let all = it.ask(&["circuits"]).unwrap();
        all["flows"][0]["circuit"]["kind"] == "ring"
    };
    let limit = Duration::from_secs(10);
    assert!(scene.instance.until(limit, is_given), "{}", server.out());
    scene.kill_operator();
    assert_eq!(
        client.wait(Duration::from_secs(50)),
        Some(0),
        "{}",
        client.err()
    );
    assert!(client.out().contains("30000 by ring"), "{}", client.out());
    server.until(": end\n");
}

/// One that asks the same server all the while: it ends with the first answer that is none.
fn beside(scene: &Scene) -> Program {
    let line = "exec {f}/native ask 10.1.1.10:7000 1000000000";
    scene.start("few", line, "connected")
}

#[test]
fn a_peer_that_is_killed_ends_its_circuit_alone() {
    let scene = scene_of(OPEN);
    let server = echo(&scene);
    let mut beside = beside(&scene);
    for round in 0..12_u64 {
        let client = scene.start(
            "app",
            "exec {f}/native ask 10.1.1.10:7000 1000000",
            "connected",
        );
        std::thread::sleep(Duration::from_millis(round * 37 % 200));
        drop(client);
    }
    assert_eq!(beside.wait(Duration::from_millis(1)), None, "it goes on");
    drop(beside);
    assert_eq!(asks(&scene, 20), "20 by ring");
    // Each of its threads has ended.
    let ended = |_: &e2e::Instance| server.out().matches(" by ").count() >= 14;
    let limit = Duration::from_secs(10);
    assert!(scene.instance.until(limit, ended), "{}", server.out());
}

#[test]
fn a_peer_that_scribbles_over_the_memory_ends_its_circuit_alone() {
    let scene = scene_of(OPEN);
    let server = echo(&scene);
    let mut beside = beside(&scene);
    let all =
        "for seed in $(seq 1 60); do {f}/native scribble 10.1.1.10:7000 $seed || exit 1; done";
    let said = scene.says("app", all);
    assert_eq!(said, "scribbled by ring\n".repeat(60));
    assert_eq!(beside.wait(Duration::from_millis(1)), None, "it goes on");
    drop(beside);
    assert_eq!(asks(&scene, 20), "20 by ring");
    let ended = |_: &e2e::Instance| server.out().matches(" by ").count() >= 62;
    let limit = Duration::from_secs(10);
    assert!(scene.instance.until(limit, ended), "{}", server.out());
    let named = server
        .out()
        .matches("the peer's position lies outside")
        .count();
    let named = named
        + server
            .out()
            .matches("The peer's position lies outside")
            .count();
    assert!(named > 0, "no breach by name: {}", server.out());
}

#[test]
fn a_rule_that_is_removed_ends_a_ring() {
    let rules = GUARDED.replace("[80]", "[7000]");
    let scene = scene_of(&format!("{OPEN}{rules}"));
    let server = echo(&scene);
    let mut client = scene.start(
        "app",
        "exec {f}/native ask 10.1.1.10:7000 1000000",
        "connected",
    );
    let listed = || scene.instance.ask(&["circuits"]).unwrap();
    let is_ring = |_: &e2e::Instance| listed()["flows"][0]["circuit"]["kind"] == "ring";
    let is_ring = scene.instance.until(Duration::from_secs(10), is_ring);
    assert!(is_ring, "{}", listed());
    scene.apply(&format!("{OPEN}{GUARDED}"));
    assert_eq!(
        client.wait(Duration::from_secs(10)),
        Some(1),
        "{}",
        client.err()
    );
    server.until(" by ");
}

/// An example in C, as the header says to build it.
fn in_c(scene: &Scene, name: &str) {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../lib/c");
    let mut cc = std::process::Command::new("cc");
    cc.args([
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O1",
        "-D_GNU_SOURCE",
        "-I",
        own,
        "-o",
    ])
    .arg(format!("{}/{name}", scene.files()))
    .arg(format!("{own}/examples/{name}.c"))
    .arg(e2e::program("libbulkhead_c.a"))
    .args(["-lpthread", "-ldl", "-lm"]);
    let said = e2e::Said::of(&mut cc).unwrap();
    assert!(said.ok(), "{}", said.err);
}

#[test]
fn a_program_in_c_uses_the_ring() {
    let scene = scene_of(OPEN);
    in_c(&scene, "echo");
    let server = scene.start("web", "exec {f}/echo 7000", "serving");
    assert_eq!(asks(&scene, 100), "100 by ring");
    server.until("end by ring");
}

/// By memory to who knows of it, and by the socket to who does not.
#[test]
fn a_file_goes_whole_from_a_server_in_c() {
    let scene = scene_of(OPEN);
    in_c(&scene, "files");
    let sum = "head -c 5000001 /dev/urandom > {f}/whole; cksum < {f}/whole";
    let whole = scene.says("web", sum);
    let server = scene.start("web", "exec {f}/files serve 7000 {f}/whole", "serving");
    let fetch = "{f}/files fetch 10.1.1.10 7000 | cksum";
    assert_eq!(scene.says("app", fetch), whole);
    server.until("sent by ring");
    let plain = "python3 -c 'import socket, sys; s = socket.create_connection((\"10.1.1.10\", 7000)); s.recv(8, socket.MSG_WAITALL); [sys.stdout.buffer.write(b) for b in iter(lambda: s.recv(65536), b\"\")]' | cksum";
    assert_eq!(scene.says("app", plain), whole);
    server.until("sent by socket");
    // A part is not taken for the whole.
    let _missing = scene.start("web", "exec {f}/files serve 7002 {f}/missing", "serving");
    let part = scene.sh("app", "{f}/files fetch 10.1.1.10 7002");
    assert!(
        part.code == 1 && part.err.contains("not all of it"),
        "{part:?}"
    );
    let nobody = scene.sh("app", "{f}/files fetch 10.1.1.10 7001");
    assert!(
        nobody.code == 1 && nobody.err.contains("refused"),
        "{nobody:?}"
    );
}

/// As who installs the library for C and finds it by pkg-config.
#[test]
fn the_library_for_c_is_installed_and_found() {
    let scene = scene_of(OPEN);
    let line = format!(
        "make -s -C {top} install-c OUT={out} DESTDIR={{f}}/root >&2
        export PKG_CONFIG_LIBDIR={{f}}/root/usr/local/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR={{f}}/root
        for name in echo files; do
            cc -std=c11 -Wall -Wextra -Werror -D_GNU_SOURCE -O1 -o {{f}}/$name {top}/lib/c/examples/$name.c $(pkg-config --static --cflags --libs bulkhead)
        done
        pkg-config --modversion bulkhead; cd {{f}}/root && find . -type f | sort",
        top = concat!(env!("CARGO_MANIFEST_DIR"), "/.."),
        out = e2e::program("libbulkhead_c.a").parent().unwrap().display(),
    );
    let line = line.replace("{f}", &scene.files());
    let said = e2e::Said::of(std::process::Command::new("sh").args(["-ec", &line])).unwrap();
    assert!(said.ok(), "{said:?}");
    let installed = "0.1.0
./usr/local/include/bulkhead.h
./usr/local/lib/libbulkhead.a
./usr/local/lib/pkgconfig/bulkhead.pc
";
    assert_eq!(said.out, installed);
    let answers = scene.start("web", "exec {f}/echo 7000", "serving");
    assert_eq!(asks(&scene, 100), "100 by ring");
    answers.until("end by ring");
    let sum = "head -c 5000001 /dev/urandom > {f}/whole; cksum < {f}/whole";
    let whole = scene.says("web", sum);
    let server = scene.start("web", "exec {f}/files serve 7001 {f}/whole", "serving");
    let fetch = "{f}/files fetch 10.1.1.10 7001 | cksum";
    assert_eq!(scene.says("app", fetch), whole);
    server.until("sent by ring");
}

/// An example in Rust, built: nothing of it is downloaded, and most is there from the build of the tests.
fn in_rust(scene: &Scene, name: &str) {
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo
        .args([
            "build",
            "--locked",
            "--offline",
            "--quiet",
            "-p",
            "lib-bulkhead",
        ])
        .args(["--example", name, "--message-format", "json"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        // Of the package that this is a test of.
        .env_remove("CARGO_MANIFEST_DIR");
    let said = e2e::Said::of(&mut cargo).unwrap();
    assert!(said.ok(), "{}", said.err);
    let each = said.out.lines().flat_map(serde_json::from_str);
    let mut built =
        each.filter_map(|line: serde_json::Value| Some(line["executable"].as_str()?.to_owned()));
    let program = built.next().expect("no program was built");
    std::fs::copy(program, scene.file(&format!("rust-{name}"), "")).unwrap();
}

#[test]
fn the_examples_in_rust_answer_and_hand_out_a_file() {
    let scene = scene_of(OPEN);
    in_rust(&scene, "echo");
    in_rust(&scene, "files");
    let echo = scene.serve(
        "web",
        "exec {f}/rust-echo 10.1.1.10:7000",
        "10.1.1.10",
        7000,
    );
    assert_eq!(asks(&scene, 100), "100 by ring");
    // By the socket who knows nothing of it.
    scene.says("app", "head -c 5000001 /dev/urandom > {f}/whole");
    let plain = "python3 -c 'import shutil, socket, sys, threading
s = socket.create_connection((\"10.1.1.10\", 7000)); whole = open(sys.argv[1], \"rb\")
threading.Thread(target=lambda: (s.sendfile(whole), s.shutdown(1))).start()
shutil.copyfileobj(s.makefile(\"rb\"), sys.stdout.buffer)' {f}/whole | cmp - {f}/whole";
    scene.says("app", plain);
    echo.until(": 5000001 bytes");
    // A file, to who does not take it before it was seen by which way it comes.
    let line = "exec {f}/rust-files serve 10.1.1.10:7001 {f}/whole";
    let server = scene.serve("web", line, "10.1.1.10", 7001);
    let fetch = "{f}/rust-files fetch 10.1.1.10:7001 | (until test -e {f}/go; do sleep 0.05; done; cmp - {f}/whole)";
    let mut fetches = scene.spawn(scene.command("app", fetch));
    let limit = Duration::from_secs(10);
    let by_ring = |instance: &e2e::Instance| {
        let listed = instance.ask(&["circuits"]).unwrap();
        let flows = listed["flows"].as_array().unwrap();
        flows.iter().any(|flow| {
            flow["circuit"]["kind"] == "ring" && flow["destination"] == "10.1.1.10:7001"
        })
    };
    assert!(scene.instance.until(limit, by_ring), "{}", fetches.err());
    scene.file("go", "");
    assert_eq!(fetches.wait(limit), Some(0), "{}", fetches.err());
    server.until("Ok(5000001)");
    // Nothing is not taken for a file.
    let line = "exec {f}/rust-files serve 10.1.1.10:7002 {f}/missing";
    let _missing = scene.serve("web", line, "10.1.1.10", 7002);
    let part = scene.sh("app", "{f}/rust-files fetch 10.1.1.10:7002");
    assert!(part.code == 1 && part.out.is_empty(), "{part:?}");
    let nobody = scene.sh("app", "{f}/rust-files fetch 10.1.1.10:7003");
    assert!(
        nobody.code == 1 && nobody.err.contains("refused"),
        "{nobody:?}"
    );
}

#[test]
fn another_user_has_no_way_to_the_memory() {
    let scene = scene_of(OPEN);
    scene.file("pry.py", PRY);
    let server = echo(&scene);
    let client = "exec {f}/native ask 10.1.1.10:7000 1000000";
    let client = scene.spawn(scene.command_of("app", &["--user", "daemon"], client));
    client.until("connected");
    let whole = format!("{}/native", scene.files());
    for user in ["nobody", "daemon"] {
        for at in ["app", "web"] {
            let said = scene.sh_as(at, user, &format!("python3 {{f}}/pry.py {whole}"));
            let refused = "EACCES EACCES EACCES EACCES EPERM";
            let open = said.out.lines().filter(|line| *line != refused).count();
            // Who is the same user may look into its own, in its own endpoint.
            let own = usize::from(user == "daemon" && at == "app");
            assert!(open <= own, "{user} at {at}: {said:?}");
            assert_eq!(said.out.lines().count(), 2, "{user} at {at}: {said:?}");
        }
    }
    drop((client, server));
}
