//! What a program was given before it was started, it has still; where that leads is bounded.

use crate::scene::{OPEN, Scene};

/// Two sockets of the host's, inherited: one that is not connected, and the name that another
/// listens by. Without a scope the kernel would connect them for whoever has the first.
#[test]
fn a_name_that_is_bound_outside_is_of_no_use() {
    let scene = Scene::of(OPEN);
    let outside = scene.file(
        "outside.py",
        "import os, socket, subprocess, sys
name = b'\\0circuits-scope-%d' % os.getpid()
listener = socket.socket(socket.AF_UNIX)
listener.bind(name)
listener.listen()
given = socket.socket(socket.AF_UNIX)
inside = '''
import socket, sys
given = socket.socket(fileno=int(sys.argv[1]))
try:
    given.connect(bytes.fromhex(sys.argv[2]))
    print('CONNECTED')
except OSError as error:
    print(error.errno)
'''
words = sys.argv[1:] + ['/usr/bin/python3', '-c', inside, str(given.fileno()), name.hex()]
said = subprocess.run(words, pass_fds=[given.fileno()], capture_output=True, text=True)
given.connect(name)
print(said.stdout.strip(), said.stderr.strip(), 'and outside: connected')
",
    );
    let command = scene.command("app", "");
    let mut outer = std::process::Command::new("/usr/bin/python3");
    outer.arg(outside).arg(command.get_program());
    // Up to the command's own words, which are a shell's.
    outer.args(command.get_args().take_while(|word| *word != "--"));
    outer.arg("--");
    let said = scene.run(outer);
    assert_eq!(said.out.trim(), "1  and outside: connected", "{said:?}");
}

/// A tracer, a sandbox, a file with capabilities and a set-user-ID program: each goes on inside, its sockets are
/// circuits as before, and what it may holds over its own namespaces alone.
#[test]
fn tools_that_trace_and_sandboxes_go_on() {
    let scene = Scene::of(OPEN);
    let _web = scene.start("web", "{peer} serve 80", "serving");
    let tries = "{peer} try 10.1.1.10,80";
    let line = format!(
        "strace -f -qq -e trace=connect -o {{f}}/traced {tries}; grep -c 'connect(.*10.1.1.10.*= 0$' {{f}}/traced"
    );
    assert_eq!(scene.says("app", &line), "10.1.1.11\n1\n");
    for sandbox in [
        "unshare -Urn",
        "unshare -Urmpf",
        "setpriv --no-new-privs",
        "unshare -Ur setpriv --bounding-set=-all",
    ] {
        assert_eq!(
            scene.says("app", &format!("{sandbox} {tries}")),
            "10.1.1.11\n",
            "{sandbox}"
        );
    }
    let line = "cp $(readlink -f /usr/bin/python3) {f}/able && setcap cap_sys_nice+ep {f}/able && cp $(command -v id) {f}/other && chown nobody {f}/other && chmod 4755 {f}/other";
    assert!(
        std::process::Command::new("sh")
            .arg("-c")
            .arg(line.replace("{f}", &scene.files()))
            .status()
            .unwrap()
            .success()
    );
    const ABLE: &str = "import os
able = [line.split()[1] for line in open('/proc/self/status') if line.startswith('CapEff')]
print(int(able[0], 16) >> 23 & 1)
try: print(os.nice(-5))
except PermissionError: print('not over the host')
";
    scene.file("able.py", ABLE);
    let said = scene.sh_as("app", "nobody", "{f}/able {f}/able.py");
    assert_eq!(said.out, "1\nnot over the host\n", "{}", said.err);
    assert_eq!(scene.says("app", "{f}/other -un"), "nobody\n");
}

/// What a program sets of sockets that are none of its circuits its operator sets itself, and goes on.
#[test]
fn options_that_its_operator_sets_end_no_operator() {
    const SETS: &str = "import socket
a, b = socket.socketpair()
for name in (16, 28, 34, 76, 83):
    for value in (1, 0):
        try: a.setsockopt(socket.SOL_SOCKET, name, value); print(name, value, end=' ')
        except OSError as e: print(name, e.errno, end=' ')
";
    let scene = Scene::of(OPEN);
    scene.file("sets.py", SETS);
    let before = scene.operator();
    let said = scene.says("app", "python3 {f}/sets.py");
    assert_eq!(said, "16 1 16 0 28 92 28 92 34 1 34 0 76 1 76 0 83 1 83 0 ");
    assert_eq!(scene.operator(), before, "{}", scene.instance.log());
}

/// Without `--user` it has root's number, and all numbers but those of Bulkhead's own processes.
#[test]
fn nobody_outside_is_signalled_and_no_number_of_ours_is_had() {
    let scene = Scene::of(OPEN);
    let _web = scene.start("web", "{peer} serve 80", "serving");
    let status = scene.instance.ask(&["status"]).unwrap();
    let operator = status["compartments"][0]["operator"]["pid"]
        .as_u64()
        .unwrap();
    let of = std::fs::read_to_string(format!("/proc/{operator}/status")).unwrap();
    let uid = of.lines().find_map(|line| line.strip_prefix("Uid:"));
    let uid = uid.unwrap().split_whitespace().next().unwrap();
    scene.file(
        "tries.py",
        "import errno, os, signal, subprocess, sys
def tries(act):
    try: act()
    except OSError as error: return errno.errorcode[error.errno]
    return 'done'
child = subprocess.Popen(['sleep', '60'])
print(*[tries(lambda: os.kill(pid, 0)) for pid in (os.getppid(), int(sys.argv[1]), child.pid)])
child.kill()
print(child.wait(), tries(lambda: os.setresuid(1234, 1234, 0)), tries(lambda: os.setresuid(0, 0, 0)))
print(tries(lambda: os.setresuid(*[int(sys.argv[2])] * 3)))
",
    );
    let line = format!("exec python3 {{f}}/tries.py {operator} {uid}");
    let told = scene.says("app", &line);
    assert_eq!(told, "EPERM EPERM done\n-9 done done\nEINVAL\n");
    for (user, why) in [
        (format!("{uid}:{uid}"), "Bulkhead's own"),
        (format!("1234:{uid}"), "Bulkhead's own"),
        ("4294967295:4294967295".to_owned(), "no such number"),
        ("1234:4294967295".to_owned(), "no such number"),
    ] {
        let words = ["run", "--endpoint", "red/app", "--user", &user, "--", "id"];
        let said = scene.instance.say(&words).unwrap();
        assert!(said.code == 2 && said.err.contains(why), "{user}: {said:?}");
    }
}
