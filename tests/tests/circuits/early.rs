//! Who has its answer before it has said all, or wants no more of it.

use crate::library::paired;
use crate::preload::Rings;

const EARLY: &str = include_str!("early.c");

/// A server that refuses what is sent to it answers and closes. Who looks for that before each write has it: a write takes
/// no longer for that its connection is about to go by a ring.
#[test]
fn who_is_answered_before_it_has_sent_all_sees_the_answer() {
    let rings = Rings::new();
    rings.scene.compile("early", EARLY);
    let _serves = rings.start("web", "exec {r} {f}/early serve 10.1.1.10 7000", "serving");
    let said = rings.says("app", "{r} {f}/early ask 10.1.1.10 7000");
    let lost = said.trim().strip_prefix("rings.so ");
    let lost: u32 = lost.and_then(|it| it.parse().ok()).expect(&said);
    // One in a hundred by TCP, and by circuits of the kernel; all but one in a hundred where the ring was asked for before the write.
    assert!(lost < 200, "{lost} of 400 answers");
}

/// As HAProxy empties what it is about to close: where there is no memory for it, TCP drops it.
#[test]
fn what_is_only_to_be_gone_is_written_nowhere() {
    let said = paired(
        "drops.py",
        "
def drops(to, n, flags):
    done = libc.recv(c.fileno(), to, n, flags | socket.MSG_TRUNC)
    return done if done >= 0 else os.strerror(ctypes.get_errno())
s, c = pair()
s.sendall(b'x' * 30000 + b'behind')
print(drops(None, 30000, 0), c.recv(6))
s.sendall(b'x' * 30000); at_once = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
print(drops(None, 0x7fffffff, at_once), drops(None, 0x7fffffff, at_once))
kept = ctypes.create_string_buffer(b'kept'); s.sendall(b'lost, found')
print(drops(kept, 4, socket.MSG_PEEK), drops(kept, 4, 0), kept.value, c.recv(9))
s.sendall(b'half'); threading.Timer(0.3, s.sendall, [b' of it']).start()
print(drops(None, 10, socket.MSG_WAITALL))
s.sendall(b'last'); s.shutdown(socket.SHUT_WR)
print(drops(None, 0x7fffffff, 0), drops(None, 0x7fffffff, 0))
",
    );
    let all = "30000 b'behind'\n30000 Resource temporarily unavailable\n4 4 b'kept' b', found'\n10\n4 0\n";
    assert_eq!(said, all);
}

/// A write may wait for long, and its number be another connection's when it is done: whose ring is that one's.
#[test]
fn a_write_that_is_done_asks_for_no_ring_of_what_has_its_number_by_then() {
    const SERVES: &str = "
import socket, time
s = socket.create_server(('10.1.1.10', 7000)); print('serving', flush=True)
a, b = s.accept()[0], s.accept()[0]
some = bytes(range(256)) * 256
for _ in range(6): b.sendall(some)
time.sleep(0.3); n = 0
while (came := len(a.recv(1 << 20))): n += came
print('read', n, flush=True)
for _ in range(20): b.sendall(some)
b.shutdown(socket.SHUT_WR); b.recv(1)
";
    const ASKS: &str = "
import os, socket, threading, time
a = socket.create_connection(('10.1.1.10', 7000)); number = a.fileno()
writes = threading.Thread(target=a.send, args=(bytes(16 << 20),)); writes.start(); time.sleep(0.5)
os.close(a.detach())
b = socket.create_connection(('10.1.1.10', 7000)); assert b.fileno() == number
writes.join(); time.sleep(0.2); b.settimeout(10); came = b''
while (some := b.recv(100000)): came += some
print(came == bytes(range(256)) * 256 * 26)
";
    let rings = Rings::new();
    rings
        .scene
        .programs([("serves.py", SERVES), ("asks.py", ASKS)]);
    let server = rings.start("web", "exec {r} python3 {f}/serves.py", "serving");
    assert_eq!(rings.says("app", "{r} python3 {f}/asks.py"), "True\n");
    server.until("read 16777216\n");
    // The other side had one to give.
    drop(server);
}
