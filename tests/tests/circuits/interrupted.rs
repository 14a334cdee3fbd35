//! Calls by rings that a signal's handler interrupts at any instruction, or the rest of which cannot be done.

use crate::preload::Rings;

/// What becomes of them.
const C: &str = include_str!("interrupted.c");
const JUMPED: &str = include_str!("jumped.c");
const NESTED: &str = include_str!("nested.c");
const OPTIONS: &str = include_str!("options.c");

fn said(which: &str) -> String {
    let rings = Rings::new();
    rings.scene.compile("interrupted", C);
    let said = rings.says(
        "web",
        &format!("exec {{r}} {{f}}/interrupted {which} 10.1.1.10"),
    );
    let [read, written] = rings.by_ring("interrupted");
    assert!(read > 100_000 && written > 100_000, "{read} {written}");
    said
}

/// Its handler does so as well, while circuits leave their rings.
#[test]
fn a_handler_waits_for_no_thread_that_it_interrupts_as_that_copies_or_closes() {
    assert_eq!(said("numbers"), "0 failed\n");
}

#[test]
fn what_was_moved_is_told_where_the_rest_is_to_no_memory() {
    let all = "written: well, not all: 1\nread: 100\nall: 1, more: EAGAIN\n";
    assert_eq!(said("parts"), all);
}

/// Calls that Linux lets no signal end are whole with the library, whatever its program's handlers restart.
#[test]
fn no_signal_ends_what_linux_lets_none_end() {
    const ASKS: &str = "
import signal, socket
signal.signal(signal.SIGALRM, lambda *_: None)
l = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(l.getsockname()); f = l.accept()[0]
def binds():
    with socket.socket() as s: s.bind(('127.0.0.1', 0))
def ended(call):
    n = 0
    for _ in range(3000):
        try: call()
        except InterruptedError: n += 1
    return n
calls = c.getsockname, f.getpeername, binds, lambda: l.listen(5), lambda: c.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 8), \\
    lambda: c.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
said = [ended(call) for call in calls]; signal.setitimer(signal.ITIMER_REAL, 0)
print(said)
";
    let rings = Rings::new();
    rings.scene.file("asks.py", ASKS);
    let said = rings.says("web", "exec {r} /usr/bin/python3 {f}/asks.py");
    assert_eq!(said, "[0, 0, 0, 0, 0, 0]\n");
}

/// A handler may leave a call by `siglongjmp` as the operator writes what it asks for.
#[test]
fn what_is_told_late_is_written_to_no_memory_of_another_function() {
    let rings = Rings::new();
    rings.scene.compile("jumped", JUMPED);
    let said = rings.says("web", "exec {r} {f}/jumped");
    assert_eq!(said, "many, 0 wrong, 0 overwritten\n");
}

/// What it interrupts is told its own all the same, no more than it has room for.
#[test]
fn a_handler_asks_for_names_and_options_as_who_it_interrupts_does() {
    let rings = Rings::new();
    rings.scene.compile("nested", NESTED);
    let said = rings.says("web", "exec {r} {f}/nested");
    assert_eq!(said, "many, 0 wrong\n");
}

/// Of what is no circuit, and what only the kernel knows how long it is.
#[test]
fn options_that_the_kernel_answers_are_told_as_without_the_library() {
    let rings = Rings::new();
    rings.scene.compile("options", OPTIONS);
    let without = rings.says("web", "exec {f}/options");
    assert!(
        without.contains("570 of a filter: 0 0 570 same"),
        "{without}"
    );
    assert_eq!(rings.says("web", "exec {r} {f}/options"), without);
}

/// The kernel makes a call again that was done as the signal came, and whose program was not told.
#[test]
fn a_bind_that_a_signal_has_made_again_is_done_once() {
    const BINDS: &str = "
import errno, signal, socket, time
signal.signal(signal.SIGALRM, lambda *_: other.getsockname()); other = socket.socket(); signal.siginterrupt(signal.SIGALRM, False)
def fails(kind):
    n = 0
    for _ in range(4000):
        with socket.socket(type=kind) as s:
            try: s.bind(('127.0.0.1', 0))
            except OSError: n += 1
    return n
kinds = socket.SOCK_STREAM, socket.SOCK_DGRAM
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
said = [fails(kind) for kind in kinds]; signal.setitimer(signal.ITIMER_REAL, 0)
for kind in kinds:
    s = socket.socket(type=kind); s.bind(('127.0.0.1', 0)); port = s.getsockname()[1]; time.sleep(0.2)
    for address in (('127.0.0.1', 0), ('127.0.0.1', port)):
        try: s.bind(address); said += ['done']
        except OSError as e: said += [errno.errorcode[e.errno]]
print(*said)
";
    let rings = Rings::new();
    rings.scene.file("binds.py", BINDS);
    for with in ["", "{r} "] {
        let said = rings.says(
            "web",
            &format!("exec {with}/usr/bin/python3 {{f}}/binds.py"),
        );
        assert_eq!(said, "0 0 EINVAL EINVAL EINVAL EINVAL\n", "{with}");
    }
}
