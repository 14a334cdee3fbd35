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
