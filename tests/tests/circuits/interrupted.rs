//! Calls by rings that a signal's handler interrupts at any instruction, or the rest of which cannot be done.

use crate::preload::Rings;

/// What becomes of them.
const C: &str = include_str!("interrupted.c");

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
