//! Programs that try what they should not.

use crate::revoked::stands_still;
use crate::scene::{GUARDED, OPEN, Scene};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

const C: &str = include_str!("hostile.c");
const PYTHON: &str = include_str!("hostile.py");

/// Runs this spec; `{c}` and `{py}` in lines are the two programs.
fn scene(spec: &str) -> Scene {
    let scene = Scene::of(spec);
    scene.compile("hostile", C);
    scene.file("hostile.py", PYTHON);
    scene
}

fn says(scene: &Scene, at: &str, line: &str) -> String {
    scene.says(at, &line_of(line))
}

fn line_of(line: &str) -> String {
    line.replace("{c}", "{f}/hostile")
        .replace("{py}", "/usr/bin/python3 {f}/hostile.py")
}

#[test]
fn there_is_no_way_to_a_network_but_circuits() {
    let scene = scene(OPEN);
    for user in ["root", "nobody"] {
        let said = scene.sh_as("app", user, &line_of("{py} families"));
        assert_eq!(said.out.lines().count(), 14, "{said:?}");
        for line in said.out.lines() {
            assert!(!line.contains("MADE"), "{user}: {line}");
        }
    }
    let said = says(&scene, "app", "{c} conventions");
    assert_eq!(said.lines().count(), 9, "{said}");
    for line in said.lines() {
        assert!(line.ends_with(": ENOSYS"), "{line}");
    }
    // It is known who asks.
    let drops = |reason| scene.instance.drops("red", "app", reason).unwrap();
    assert!(drops("socket-kind") >= 10, "{}", drops("socket-kind"));
    assert_eq!(drops("io-uring"), 1);
    let why = scene.instance.say(&["why", "red/app"]).unwrap().out;
    assert!(why.contains("refused 1 call by io-uring"), "{why}");
    assert_eq!(
        scene.instance.drops("red", "web", "socket-kind").unwrap(),
        0
    );
}

#[test]
fn its_own_namespace_leads_nowhere() {
    let scene = scene(&format!("{OPEN}{GUARDED}"));
    let _web = scene.start("web", "{peer} serve 80 81", "serving");
    let said = says(&scene, "app", "{py} network");
    let expected = "as another: EADDRNOTAVAIL
as nobody: EADDRNOTAVAIL
outside: ENETUNREACH
nobody: EHOSTUNREACH
denied: EACCES
denied from elsewhere: EACCES
allowed from elsewhere: DONE
host: refused
listener of its own: EBUSY
";
    assert_eq!(said, expected);
}

#[test]
fn an_address_that_changes_meanwhile_reaches_nothing_denied() {
    let scene = scene(&format!("{OPEN}{GUARDED}"));
    const SERVER: &str = "
import socket, threading
def serve(port):
    s = socket.socket(); s.bind(('10.1.1.10', port)); s.listen(64)
    while True:
        c, _ = s.accept(); c.sendall(b'%d' % port); c.close(); print(port, flush=True)
for port in 80, 81: threading.Thread(target=serve, args=(port,)).start()
print('serving', flush=True)
";
    scene.file("server.py", SERVER);
    let server = scene.start("web", "exec python3 {f}/server.py", "serving");
    let said = says(&scene, "app", "{c} flip");
    let counts: Vec<u32> = said.split_whitespace().flat_map(str::parse).collect();
    let [done, denied, 0] = counts[..] else {
        panic!("{said}");
    };
    // Both were asked for.
    assert!(done > 0 && denied > 0 && done + denied >= 400, "{said}");
    assert!(!server.out().contains("81"), "{}", server.out());
}

#[test]
fn nothing_but_bytes_crosses_a_circuit() {
    let scene = scene(OPEN);
    let hears = scene.start("web", &line_of("exec {py} hears"), "hears");
    let said = says(&scene, "app", "{py} passes");
    for line in said.lines().take(2) {
        assert!(line.ends_with(": EPERM"), "{said}");
    }
    hears.until("heard");
    let heard = hears.out();
    assert!(heard.contains("heard True []"), "{heard}");
    // A peer is nobody, as with TCP, and has no name of another family.
    assert!(heard.contains("SO_PEERCRED: (0, -1, -1)"), "{heard}");
    // Its name by an option is the one that TCP has: family 2, and 10.1.1.11.
    let named = heard.lines().find_map(|l| l.strip_prefix("gets 28: 0200"));
    let address = named.and_then(|name| name.get(4..14));
    assert_eq!(address, Some("0a01010b00"), "{heard}");
    for option in ["59", "77"] {
        let gets = format!("gets {option}: E");
        assert!(heard.contains(&gets), "{heard}");
    }
    // Who sets what has descriptors passed: it is not set.
    for option in ["16", "34", "76", "83"] {
        for whose in ["listener", "sets"] {
            let sets = format!("{whose} {option}: E");
            assert!(heard.contains(&sets), "{option}: {heard}");
        }
    }
}

#[test]
fn the_names_behind_circuits_are_never_seen_or_used() {
    let scene = scene(OPEN);
    let said = says(&scene, "app", "{py} names");
    for line in said.lines().take(6) {
        assert!(!line.contains("DONE"), "{said}");
    }
    assert!(said.contains("path: False\nlisted: 0\n"), "{said}");
    assert!(said.ends_with("named: 127.0.0.1 named: 127.0.0.1 named: 127.0.0.1 \n"));
    for _ in 0..3 {
        let said = says(&scene, "app", "{c} swap");
        assert_eq!(said, "found 0 passing 0 both seen\n");
    }
}

/// The kernel accepts what its program has it accept; to whom it is, and what crosses it, stays as it was.
#[test]
fn what_is_accepted_past_the_operator_passes_nothing_but_bytes() {
    let scene = scene(OPEN);
    for _ in 0..3 {
        let said = says(&scene, "app", "{c} steal");
        assert_eq!(said, "named 0 passing 0 both seen\n");
    }
}

/// Who is connected elsewhere, past the operator, waits at nobody's: a listener that seems full and is not
/// readable would never be read, and nobody get in.
#[test]
fn nobody_waits_at_a_listener_that_does_not_know_of_it() {
    const SERVER: &str = "
import select, socket
s = socket.socket(); s.bind(('0.0.0.0', 80)); s.listen(2); s.setblocking(False)
print('serving', flush=True)
while select.select([s], [], []):
    c, who = s.accept()
    c.sendall(who[0].encode())
    c.close()
";
    for web in ["attach: circuits", "attach: { circuits: { metered: on } }"] {
        let own = "\"fd00:1::10\"], attach: circuits";
        assert!(OPEN.contains(own));
        let spec = OPEN.replace(own, &own.replace("attach: circuits", web));
        let scene = scene(&spec);
        scene.file("server.py", SERVER);
        let server = scene.start("web", "exec python3 {f}/server.py", "serving");
        let feigns = scene.start("app", &line_of("exec {c} feign {f}/feigned"), "\n");
        assert_eq!(feigns.out(), "feigned 0, told so\n");
        for from in ["few", "app"] {
            let own = scene.tries(from, "10.1.1.10,80");
            assert_eq!(own.len(), 1, "{}", server.err());
            assert!(own[0].starts_with("10.1.1.1"), "{own:?} {}", server.err());
        }
    }
}

/// Nobody but who began it is known of such a one: it ends with the endpoint that it leads to all the same.
#[test]
fn what_is_accepted_past_the_operator_ends_with_its_endpoint() {
    const DRIPS: &str = "
import socket, time
while True:
    try:
        with socket.create_connection(('10.1.1.12', 80), 5) as s:
            while True: s.send(b'.'); time.sleep(0.01)
    except OSError: time.sleep(0.05)
";
    let few = "      - { name: few,";
    let (before, of_few) = OPEN.split_once(few).unwrap();
    let prefix = e2e::unique("ck");
    let veth = format!("attach: {{ veth: {{ namespace: {prefix}, make: true, circuits: {{}} }} }}");
    let plain = "attach: { circuits: { sockets: 100 } }";
    // Another has its address by then.
    let moved = format!(
        "{few} subnet: lan, addresses: [10.1.1.16], attach: circuits }}\n      - {{ name: other,"
    );
    for (from, to, anew, stands) in [
        (
            "attach: circuits",
            plain,
            "attach: { circuits: { sockets: 90 } }",
            false,
        ),
        (
            "attach: circuits",
            "attach: { circuits: { sockets: 100, metered: on } }",
            "attach: { circuits: { sockets: 90, metered: on } }",
            false,
        ),
        // By packets another way would be left.
        (&veth, plain, "", false),
        // Who starts has not seen it go, nor move.
        (&veth, plain, "", true),
        ("attach: circuits", plain, &moved, true),
        ("attach: circuits", plain, &moved, false),
    ] {
        let app = before.replace(
            "\"fd00:1::11\"], attach: circuits",
            &format!("\"fd00:1::11\"], {from}"),
        );
        assert!(app.contains(from) && of_few.contains(plain));
        let of = |to| format!("{app}{few}{}", of_few.replace(plain, to));
        let scene = scene(&of(to));
        scene.file("drips.py", DRIPS);
        let keeps = scene.start("few", &line_of("exec {c} keeps"), "listens");
        let _drips = scene.spawn(scene.command("app", "exec python3 {f}/drips.py"));
        keeps.until("keeps");
        if stands {
            stands_still(&scene);
        }
        scene.apply(&match anew {
            "" => app.clone(),
            anew if anew == moved => format!("{app}{moved}{of_few}"),
            anew => of(anew),
        });
        keeps.until("over");
    }
}

/// Who could give a circuit a name that was somebody's would be called for him.
#[test]
fn nobody_names_a_circuit() {
    let scene = scene(OPEN);
    for _ in 0..3 {
        let said = says(&scene, "app", "{c} take");
        assert_eq!(said, "taken 0, others bound\n");
    }
}

/// An endpoint's sockets are judged by its own rules, whoever has them.
#[test]
fn a_circuit_that_was_passed_on_is_nobodys() {
    let scene = scene(OPEN);
    let _web = scene.start("web", &line_of("exec {py} lends {f}/lends.sock"), "lends");
    let said = says(&scene, "app", "{py} borrows {f}/lends.sock");
    assert_eq!(
        said,
        "accept: EACCES\ngetsockname: EACCES\nconnect: EACCES\n"
    );
}

/// The kernel tells who receives which name the other socket has; what that is worth is in
/// `scope` and in `nobody_names_a_circuit`.
#[test]
fn who_receives_is_told_names_of_no_use_alone() {
    let scene = scene(OPEN);
    let said = says(&scene, "app", "{py} told");
    let mut expected = String::new();
    for who in ["client", "server"] {
        for (call, data) in [("recvfrom", "12"), ("recvmsg", "34")] {
            expected += &format!("{who} {call} b'{data}' a name\ncalls -1 ECONNREFUSED\n");
        }
    }
    assert_eq!(said, expected);
}

#[test]
fn a_flood_of_sockets_ends_at_the_limit_and_harms_nobody() {
    let scene = scene(OPEN);
    let _web = scene.start("web", "{peer} serve 80", "serving");
    let mut command = scene.command("few", &line_of("exec {py} flood"));
    command.stdin(Stdio::piped());
    let mut flood = scene.spawn(command);
    flood.until("full");
    // Another endpoint works, this one does not.
    assert_eq!(scene.tries("app", "10.1.1.10,80"), ["10.1.1.11"]);
    assert_eq!(scene.tries("few", "10.1.1.10,80"), ["ENFILE"]);
    flood.go_on();
    assert_eq!(flood.wait(Duration::from_secs(30)), Some(0));
    let out = flood.out();
    assert_eq!(
        out,
        "100 ENFILE\nfull\n100 ENFILE\n100 ENFILE\n100 ENFILE\n"
    );
    // With its program the sockets are gone.
    assert_eq!(scene.tries("few", "10.1.1.10,80"), ["10.1.1.12"]);
}

#[test]
fn descriptors_of_high_numbers_are_like_others() {
    let scene = scene(OPEN);
    let said = scene.sh("app", &line_of("ulimit -n 1024; exec {py} high"));
    let expected = "sends: (3, b'one')
sendto: EISCONN
sendmsg: (5, b'three')
descriptor: EPERM
accepts: True
name: True
unix: (3, b'six')
unix descriptor: (1, 1)
";
    assert_eq!(said.out, expected, "{}", said.err);
}

#[test]
fn a_datagram_socket_at_another_number_is_of_no_use() {
    let scene = scene(OPEN);
    let said = scene.sh("app", &line_of("{py} below"));
    let expected = "below True True
heard b'x' True 19
sends to its name EPERM
from elsewhere ECONNREFUSED
connects to it EAFNOSUPPORT
sends to an address EINVAL
descriptor EPERM
";
    assert_eq!(said.out, expected, "{}", said.err);
}

#[test]
fn a_set_user_id_program_is_under_the_same_rules() {
    let scene = scene(&format!("{OPEN}{GUARDED}"));
    let _web = scene.start("web", "{peer} serve 80 81", "serving");
    let path = format!("{}/hostile", scene.files());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let said = scene.sh_as("app", "nobody", &line_of("id -u; {c} rights"));
    assert_eq!(
        said.out, "65534\n0 denied: EACCES\nallowed: DONE\n",
        "{said:?}"
    );
}

#[test]
fn nobody_gets_the_name_of_another() {
    let scene = scene(OPEN);
    let mut command = scene.command("web", &line_of("exec {py} order"));
    command.stdin(Stdio::piped());
    let mut order = scene.spawn(command);
    order.until("listens");
    let _spoofs = scene.start("app", &line_of("exec {py} spoofs"), "connected");
    let line = "exec python3 -c 'import socket; s = socket.create_connection((\"10.1.1.10\", 80)); s.sendall(b\"few\"); print(\"said\", flush=True); s.recv(1)'";
    let few = scene.spawn(scene.command("few", line));
    let line = "python3 -c 'import socket; s = socket.create_connection((\"10.1.1.10\", 80)); s.sendall(b\"web\")'";
    few.until("said");
    scene.says("web", line);
    order.go_on();
    order.until("web");
    order.until("few\n");
    drop(few);
    let out = order.out();
    assert!(out.contains("10.1.1.12 few\n"), "{out}");
    assert!(out.contains("10.1.1.10 web\n"), "{out}");
}

/// While the kernel takes pages out of memory that one side has mapped a hundred thousand times the other waits for
/// seconds: nobody of circuits may, of whatever file; nor by the calls of i386.
#[test]
fn nobody_takes_pages_out_of_memory_that_another_has() {
    const TAKES: &str = "
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
static const char *said(long came) { return came == 0 ? \"done\" : errno == EOPNOTSUPP ? \"EOPNOTSUPP\" : errno == EINVAL ? \"EINVAL\" : \"other\"; }
int main(void)
{
    int fd = memfd_create(\"own\", 0);
    char *at = ftruncate(fd, 8192) ? 0 : mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    at[0] = 7;
    printf(\"%s \", said(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096)));
    printf(\"%s \", said(madvise(at, 4096, MADV_REMOVE)));
    struct iovec part = { at, 4096 };
    printf(\"%s \", said(syscall(SYS_process_madvise, syscall(SYS_pidfd_open, getpid(), 0), &part, 1L, MADV_REMOVE, 0L)));
    long old;
    __asm__ volatile(\"int $0x80\" : \"=a\"(old) : \"a\"(324), \"b\"(fd), \"c\"(3), \"d\"(0), \"S\"(0), \"D\"(4096) : \"memory\");
    printf(\"%ld \", old);
    long long space[6] = { 0, 0, 4096 };
    printf(\"%s \", said(ioctl(fd, 0x4030582bL, space)));
    __asm__ volatile(\"int $0x80\" : \"=a\"(old) : \"a\"(54), \"b\"(fd), \"c\"(0x402c582b), \"d\"(0) : \"memory\");
    printf(\"%ld %d \", old, at[0]);
    printf(\"%s \", said(fallocate(fd, 0, 0, 8192)));
    printf(\"%s\\n\", said(madvise(at, 4096, MADV_DONTNEED)));
}
";
    let scene = Scene::of(OPEN);
    scene.compile("takes", TAKES);
    let said = scene.says("app", "{f}/takes");
    assert_eq!(
        said,
        "EOPNOTSUPP EINVAL EINVAL -38 EOPNOTSUPP -95 7 done done\n"
    );
}
