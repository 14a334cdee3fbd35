//! A keeper in a folder of its own, and the lives of a supervisor in the test's hands.

use command::message::{ErrorCode, Name};
use command::verbs::{Done, Fetch, Forget, Keep, List};
use command::{Message, Verb};
use rustix::process::{Pid, Signal, kill_process};
use seqpacket::{Listener, Socket};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Patience for what a process does.
pub const SOON: Duration = Duration::from_secs(10);

/// A keeper in a folder of its own.
pub struct Stage {
    pub folder: tempfile::TempDir,
    pub listener: Listener,
    pub keeper: Child,
}

/// One life of the supervisor, in the test's hands.
pub struct Life {
    /// Its end of the socket to the keeper.
    pub keeper: Socket,
    pub process: Socket,
    pub pid: u32,
    pub seq: u32,
}

impl Stage {
    pub fn new() -> Stage {
        Stage::with(|_| ())
    }

    pub fn with(prepare: impl Fn(&mut Command)) -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let here = |name: &str| folder.path().join(name);
        std::fs::copy(
            env!("CARGO_BIN_EXE_bulkhead-keeper"),
            here("bulkhead-keeper"),
        )
        .unwrap();
        std::fs::copy(
            std::env::current_exe().unwrap(),
            here("bulkhead-supervisor"),
        )
        .unwrap();
        std::fs::create_dir(here("run")).unwrap();
        let listener = Listener::bind(&here("run/test.sock"), 0o600).unwrap();
        let mut command = keeper_in(folder.path());
        prepare(&mut command);
        let keeper = command.spawn().unwrap();
        Stage {
            folder,
            listener,
            keeper,
        }
    }

    pub fn life(&self) -> Life {
        let end = Instant::now() + SOON;
        let process = loop {
            if let Some(process) = self.listener.accept().unwrap() {
                break process;
            }
            assert!(Instant::now() < end, "the keeper starts no supervisor");
            std::thread::sleep(Duration::from_millis(1));
        };
        let (hello, mut fds) = process.recv_wait(SOON).unwrap().unwrap();
        let keeper = Socket::from_fd(fds.pop().unwrap());
        let pid = hello.body::<Done>().unwrap().value;
        Life {
            keeper,
            process,
            pid,
            seq: 0,
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.keeper), signal).unwrap();
    }

    pub fn ends(&mut self) -> Option<i32> {
        let end = Instant::now() + SOON * 3;
        while Instant::now() < end {
            if let Some(status) = self.keeper.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the keeper does not end");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if matches!(self.keeper.try_wait(), Ok(None)) {
            let _ = self.keeper.kill();
            let _ = self.keeper.wait();
        }
    }
}

impl Life {
    pub fn ask(
        &mut self,
        body: &impl command::Body,
        fds: &[std::os::fd::BorrowedFd<'_>],
    ) -> (Message, seqpacket::Fds) {
        self.seq += 1;
        self.keeper
            .ask(&Message::new(self.seq, body), fds, SOON)
            .unwrap()
    }

    pub fn keep(&mut self, name: &str, note: &str, fd: impl AsFd) {
        let body = Keep {
            name: Name::new(name).unwrap(),
            note: Name::new(note).unwrap(),
        };
        assert_eq!(self.ask(&body, &[fd.as_fd()]).0.error, 0);
    }

    pub fn fetch(&mut self, name: &str) -> Option<(String, std::os::fd::OwnedFd)> {
        let (answer, fds) = self.ask(
            &Fetch {
                name: Name::new(name).unwrap(),
                ..Fetch::default()
            },
            &[],
        );
        let Some(body) = answer.body::<Fetch>() else {
            assert_eq!(answer.error, ErrorCode::NotFound as u32);
            return None;
        };
        Some((
            body.note.as_str().to_owned(),
            fds.into_iter().next().unwrap(),
        ))
    }

    pub fn list(&mut self, prefix: &str) -> Vec<String> {
        let (mut answer, mut fds) = self.ask(
            &List {
                name: Name::new(prefix).unwrap(),
                ..List::default()
            },
            &[],
        );
        let mut names = Vec::new();
        while let Some(entry) = answer.body::<List>() {
            assert_eq!(fds.len(), 1);
            names.push(entry.name.as_str().to_owned());
            (answer, fds) = self.keeper.answer_to(self.seq, SOON).unwrap();
        }
        assert_eq!(Verb::from_number(answer.verb), Some(Verb::Done));
        names
    }

    pub fn forget(&mut self, name: &str, exact: u32) {
        let body = Forget {
            name: Name::new(name).unwrap(),
            exact,
        };
        assert_eq!(self.ask(&body, &[]).0.error, 0);
    }

    pub fn tell(&self, value: u32) {
        self.process
            .send(
                &Message::new(
                    9,
                    &Done {
                        value,
                        ..Done::default()
                    },
                ),
                &[],
            )
            .unwrap();
    }
}

pub fn keeper_in(folder: &Path) -> Command {
    let mut command = Command::new(folder.join("bulkhead-keeper"));
    command
        .arg("--run-dir")
        .arg(folder.join("run"))
        .arg("--state-dir")
        .arg(folder.join("state"))
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null());
    command
}

pub fn pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    std::io::pipe().unwrap()
}

pub fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
