//! What is left of circuits that are closed.

use super::across::{SPEC, scene};
use std::time::Duration;

/// Answers each with its memory written over, and closes.
const FILLS: &str = "
import os, socket, struct
listener = socket.create_server(('', 5432))
print('serving', flush=True)
while True:
    s, _ = listener.accept()
    number, side, capacity, _ = struct.unpack('iIII', s.getsockopt(0x4248, 1, 16))
    os.pwrite(number, b'x' * (2 * capacity), 4096)
    # Something lies there that nobody reads.
    os.pwrite(number, struct.pack('Q', 7), side * 256)
    os.close(number)
    s.sendall(b'y')
    s.close()
";

/// Keeps the memory of a circuit, and its own end for a while; then nothing but that memory.
const KEEPS: &str = "
import mmap, os, socket, struct, sys, time
s = socket.create_connection((sys.argv[1], 5432))
number = struct.unpack('iIII', s.getsockopt(0x4248, 1, 16))[0]
kept = mmap.mmap(number, 0, mmap.MAP_SHARED, mmap.PROT_READ)
blocks = lambda: os.fstat(number).st_blocks
assert s.recv(1) == b'y' and s.recv(1) == b''
whole = blocks()
print('held', flush=True)
time.sleep(float(sys.argv[2]))
print('all' if whole > 4096 and blocks() == whole else 'taken', flush=True)
s.close()
until = time.monotonic() + 60
while blocks() and time.monotonic() < until: time.sleep(.1)
print(blocks(), flush=True)
";

/// A program may have it mapped for as long as it likes, and who wrote it would be charged for it so long.
#[test]
fn memory_of_closed_circuits_is_taken_back_from_who_keeps_it() {
    let spec = SPEC
        .replace("to: [blue], pool: ", "to: [blue], rings: yes, pool: ")
        .replace("service: db, ", "service: db, rings: yes, ");
    let scene = scene(&spec);
    scene.file("fills.py", FILLS);
    scene.file("keeps.py", KEEPS);
    let _fills = scene.start("red/db", "exec python3 {f}/fills.py", "serving");
    let keeps = |at: &str, to: &str| {
        let line = format!("exec python3 {{f}}/keeps.py {to} 14");
        scene.start(at, &line, "held")
    };
    // Longer than it takes to be asked which circuits live.
    let all = [
        keeps("blue/app", "10.1.200.10"),
        keeps("red/backup", "10.1.1.10"),
    ];
    for mut program in all {
        assert_eq!(program.wait(Duration::from_secs(90)), Some(0));
        assert_eq!(program.out(), "held\nall\n0\n", "{}", program.err());
    }
}
