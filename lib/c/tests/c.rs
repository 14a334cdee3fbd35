//! The example in C, compiled as its users would, with a client that is ordinary.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
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

/// A source of this crate's.
fn compiled(folder: &Path, source: &str) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join("program");
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
        .arg(own.join(source))
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
    let program = compiled(folder.path(), "examples/echo.c");
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

#[test]
fn what_c_asks_for_wrongly_is_refused_and_nothing_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "tests/misuse.c");
    let (own, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut command = Command::new(program);
    let stdin = OwnedFd::from(theirs);
    command.stdin(stdin).stderr(Stdio::piped());
    let mut child = Ended(command.spawn().unwrap());
    // Its end is its own alone.
    drop(command);
    let mut lines = BufReader::new(own.try_clone().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "asked");
    (&own).write_all(b"answer").unwrap();
    let mut said = String::new();
    let code = child.0.wait().unwrap();
    let mut err = child.0.stderr.take().unwrap();
    err.read_to_string(&mut said).unwrap();
    drop(child);
    assert!(code.success(), "{said}");
    // It sent what it asked for and no more.
    assert!(lines.next().is_none());
}

#[test]
fn what_a_circuit_in_c_does_not_send_at_once_stays_reserved() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "tests/commit.c");
    let (mut own, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut command = Command::new(program);
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped());
    let mut child = Ended(command.stderr(Stdio::piped()).spawn().unwrap());
    drop(command);
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let full = lines.next();
    let mut came = Vec::new();
    own.read_to_end(&mut came).unwrap();
    let code = child.0.wait().unwrap();
    let mut said = String::new();
    let mut err = child.0.stderr.take().unwrap();
    err.read_to_string(&mut said).unwrap();
    assert!(code.success(), "{said}");
    assert_eq!(full.unwrap().unwrap(), "full");
    assert!(came.len() > 300_001 && came.len().is_multiple_of(300_001));
    assert!(
        came.iter()
            .enumerate()
            .all(|(n, byte)| *byte == (n % 251) as u8)
    );
}
