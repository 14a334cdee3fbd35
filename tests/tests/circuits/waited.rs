//! What `select` leaves in what a program gave it, with a ring as without.

use crate::preload::Rings;
use std::time::Duration;

/// By the C library: Python's own gives each set a place of its own.
const SELECTS: &str = "
import ctypes, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
l = socket.create_server(('10.1.1.10', int(sys.argv[1]))); print('serving', flush=True)
c, _ = l.accept(); left = 1 << 20
while left: left -= len(c.recv(left))
time.sleep(0.5)
def selects(given, limit):
    sets = [(ctypes.c_ulong * 16)() for _ in range(3)]
    for one in given:
        if one is not None: sets[one][c.fileno() // 64] |= 1 << c.fileno() % 64
    time_left = (ctypes.c_long * 2)(*limit)
    places = [None if one is None else ctypes.byref(sets[one]) for one in given]
    came = libc.select(c.fileno() + 1, *places, ctypes.byref(time_left))
    found = [sum(one[n].bit_count() for n in range(16)) for one in sets]
    return came, found, time_left[0] * 1_000_000 + time_left[1]
for given in [(0, 0, None), (0, 0, 0), (0, None, 0), (0, 1, 0), (0, 1, 2)]:
    came, found, left = selects(given, (5, 0)); print(given, came, found, left > 0)
c.send(b'waits')
came, found, left = selects((0, None, None), (5, 0)); print(came, found, left < 100_000)
";

/// Its bytes, by the ring, and then a token behind which there is nothing.
const ASKS: &str = "
import mmap, socket, struct, sys, time
s = socket.create_connection(('10.1.1.10', int(sys.argv[1]))); sent = 0
def some():
    global sent
    s.sendall(b'x' * 16384); sent += 16384; time.sleep(0.005)
for n in range(24): some()
if sys.argv[2] == 'ring':
    fd, side, size, _ = struct.unpack('4I', s.getsockopt(0x4248, 1, 16)); assert side == 0
    words = memoryview(mmap.mmap(fd, 4096 + 2 * size)).cast('Q')
    words[17] = 1
    while not words[80]: some()
    while sent < 1 << 20: some()
    words[16] = sent + 1; s.send(b'T\\0')
while sent < 1 << 20: some()
s.recv(5, socket.MSG_WAITALL); time.sleep(0.3)
if sys.argv[2] == 'ring': s.send(bytes([84, words[74] & 255]))
time.sleep(30)
";

#[test]
fn select_leaves_what_it_leaves_without_a_ring() {
    let rings = Rings::new();
    rings
        .scene
        .programs([("selects.py", SELECTS), ("asks.py", ASKS)]);
    let mut said = ["plain", "ring"]
        .into_iter()
        .zip(["", "{r}"])
        .map(|(way, with)| {
            let port = if way == "ring" { 7001 } else { 7000 };
            let line = format!("exec timeout 40 {with} python3 {{f}}/selects.py {port}");
            let mut selects = rings.start("web", &line, "serving");
            let line = format!("exec python3 {{f}}/asks.py {port} {way}");
            let _asks = rings.scene.spawn(rings.scene.command("app", &line));
            assert_eq!(
                selects.wait(Duration::from_secs(40)),
                Some(0),
                "{way}: {}",
                selects.err()
            );
            selects.out()
        });
    let [plain, by_ring] = [said.next().unwrap(), said.next().unwrap()];
    assert_eq!(by_ring, plain);
    assert!(plain.ends_with("\n0 [0, 0, 0] True\n"), "{plain}");
    assert!(plain.contains("(0, 0, None) 1 [1, 0, 0] True\n"), "{plain}");
}
