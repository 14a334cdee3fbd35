//! The example in C, compiled as its users would, with a client that is ordinary.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The newest static library beside this test.
fn library() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let files = std::fs::read_dir(here.parent().unwrap()).unwrap();
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libbulkhead_c") && name.ends_with(".a")
    };
    let all = files.flatten().map(|file| file.path()).filter(named);
    let made = |path: &PathBuf| path.metadata().and_then(|it| it.modified()).ok();
    all.max_by_key(made).expect("libbulkhead_c*.a is not there")
}

fn compiled(folder: &Path) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join("echo");
    let output = Command::new("cc")
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-D_GNU_SOURCE",
            "-I",
        ])
        .arg(own)
        .arg(own.join("examples/echo.c"))
        .arg(library())
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    program
}

#[test]
fn a_program_in_c_answers_an_ordinary_one() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path());
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap();
    drop(port);
    let mut command = Command::new(program);
    command.arg(address.port().to_string());
    let mut child = Ended(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "serving");
    let mut stream = TcpStream::connect(address).unwrap();
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| (n ^ n >> 8) as u8).collect();
    let mut writer = stream.try_clone().unwrap();
    let sent = bytes.clone();
    let writes = std::thread::spawn(move || {
        writer.write_all(&sent).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut came = Vec::new();
    stream.read_to_end(&mut came).unwrap();
    writes.join().unwrap();
    assert!(came == bytes);
    assert_eq!(lines.next().unwrap().unwrap(), "end by socket");
}
