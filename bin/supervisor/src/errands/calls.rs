//! A program closes the last number of a socket while a thread of it is in a call there: the socket is in no table of
//! descriptors then, and that call may take as long as somebody likes (a thousand messages, of memory that comes slowly).
//! Who is in a call that sends to an AF_UNIX socket is made to leave it (ptrace(2) interrupts it as a signal does, and it
//! begins anew, with what its number is by then). Who does not leave is ended.

use super::search::{Wanted, is_its, may_be_its, numbers};
use guard::guard;
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::io::{Result, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Functions of the kernel that a thread is in while it sends there, or waits between two messages of one call.
const SENDS: [&str; 6] = [
    "unix_stream_send",
    "unix_dgram_send",
    "unix_seqpacket_send",
    "sys_sendmmsg",
    "sys_sendmsg",
    "sys_sendto",
];
/// The same of calls that may send and wait for a file meanwhile.
const PASSES_ON: [&str; 2] = ["sys_sendfile", "splice"];
/// Who sends is looked for so often in each process, with so long between: a thread that runs just then is not seen.
const LOOKS: u32 = 3;
const APART: Duration = Duration::from_millis(5);
/// Who has not left its call by then is ended. It is less than a search has.
const LONGEST: Duration = Duration::from_secs(1);
/// With these nobody waits for who is looked at.
const SAYS: Duration = Duration::from_millis(100);
/// Processes that are looked at at a time, each by a thread: one may wait, if it is executing another program.
const AT_ONCE: usize = 256;

/// How a thread is made to leave.
#[derive(Clone, Copy)]
enum Asked {
    /// It is interrupted, and is seen to stop.
    Interrupted,
    /// Another traces it, so it cannot be: it is seen elsewhere.
    Traced,
}

/// In those of these processes that are the wanted's.
pub(super) fn end_calls(
    wanted: &Wanted,
    processes: impl Iterator<Item = u32>,
    out: &mut impl Write,
) -> Result<()> {
    let until = Instant::now() + LONGEST + LONGEST / 4;
    let (says, said) = mpsc::channel();
    let mut next = processes.filter(|process| may_be_its(*process, wanted));
    let mut waiting = 0;
    loop {
        while waiting < AT_ONCE {
            let Some(process) = next.next() else { break };
            let (says, wanted) = (says.clone(), wanted.clone());
            let ends = move || {
                let is_ended = is_its(process, &wanted) && ends_in(process);
                let _ = says.send((process, is_ended));
            };
            let thread = std::thread::Builder::new().stack_size(64 << 10);
            if thread.spawn(ends).is_err() {
                break;
            }
            waiting += 1;
        }
        // Nobody holds this one up.
        writeln!(out, "0")?;
        out.flush()?;
        if waiting == 0 || Instant::now() > until {
            return Ok(());
        }
        match said.recv_timeout(SAYS) {
            Ok((process, is_ended)) => {
                waiting -= 1;
                if is_ended {
                    writeln!(out, "ended {process}")?;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// A thread that is to leave its call.
struct Leaves {
    thread: u32,
    asked: Asked,
    /// It was seen to send since. What it is in otherwise may take long and be anything: to read from a disk, say.
    sends: bool,
}

/// Has threads of a process leave what they send by. Whether it had to be ended.
fn ends_in(process: u32) -> bool {
    let pid = rustix::process::Pid::from_raw(process.cast_signed());
    let Some(pidfd) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return false;
    };
    let (mut known, mut leave) = (BTreeSet::new(), Vec::new());
    for _ in 0..LOOKS {
        for thread in numbers(&format!("/proc/{process}/task")) {
            let is_in_call = call(thread).is_some_and(|it| it != Call::Other);
            if is_in_call && known.insert(thread) {
                leave.extend(Leaves::asks(thread));
            }
        }
        std::thread::sleep(APART);
    }
    let until = Instant::now() + LONGEST;
    while Instant::now() < until {
        leave.retain_mut(|it| !it.has_left());
        if leave.is_empty() {
            return false;
        }
        std::thread::sleep(APART);
    }
    if !leave.iter().any(|it| it.sends) {
        return false;
    }
    let is_ended = guard!("hunt-calls-ends") && pidfd_send_signal(&pidfd, Signal::KILL).is_ok();
    // Who has no processor would go on to have what it has.
    for it in leave {
        let _ = notify::hurry(it.thread);
    }
    is_ended
}

/// What a thread is in.
#[derive(PartialEq, Eq)]
enum Call {
    Sends,
    PassesOn,
    Other,
}

/// By what the kernel says it is in; of one that runs just then that is nothing.
fn call(thread: u32) -> Option<Call> {
    let stack = read_to_string(format!("/proc/{thread}/stack")).ok()?;
    let is_in = |names: &[&str]| names.iter().any(|name| stack.contains(name));
    match (is_in(&SENDS), is_in(&PASSES_ON)) {
        _ if stack.is_empty() => None,
        (true, _) => Some(Call::Sends),
        (false, true) => Some(Call::PassesOn),
        (false, false) => Some(Call::Other),
    }
}

impl Leaves {
    /// Asks a thread to leave its call. `None`: it is gone, or is ended already, or nobody may ask.
    fn asks(thread: u32) -> Option<Leaves> {
        if is_killed(thread) {
            return None;
        }
        let pid = Pid::from_raw(thread.cast_signed());
        let asked = match ptrace::seize(pid, ptrace::Options::empty()) {
            Ok(()) => ptrace::interrupt(pid).ok().map(|()| Asked::Interrupted),
            Err(Errno::EPERM) => is_traced(thread).then_some(Asked::Traced),
            Err(_) => None,
        };
        Some(Leaves {
            thread,
            asked: asked?,
            sends: false,
        })
    }

    /// Whether it has left its call; if so it goes on.
    fn has_left(&mut self) -> bool {
        let call = call(self.thread);
        self.sends |= call == Some(Call::Sends);
        if let Asked::Traced = self.asked {
            return call == Some(Call::Other);
        }
        let pid = Pid::from_raw(self.thread.cast_signed());
        match waitpid(pid, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL)) {
            Ok(WaitStatus::StillAlive) => false,
            // A signal that came first is its own.
            Ok(WaitStatus::Stopped(_, signal)) => {
                let _ = ptrace::detach(pid, signal);
                true
            }
            _ => {
                let _ = ptrace::detach(pid, None);
                true
            }
        }
    }
}

/// A number of a thread's status.
fn status(thread: u32, name: &str, radix: u32) -> Option<u64> {
    let status = read_to_string(format!("/proc/{thread}/status")).ok()?;
    let mut all = status.lines().filter_map(|line| line.strip_prefix(name));
    u64::from_str_radix(all.next()?.trim(), radix).ok()
}

/// Whether it is killed: one that waits for what even SIGKILL does not end is for ever.
fn is_killed(thread: u32) -> bool {
    status(thread, "SigPnd:", 16).is_some_and(|pending| pending & 1 << 8 != 0)
}

fn is_traced(thread: u32) -> bool {
    status(thread, "TracerPid:", 10).is_some_and(|tracer| tracer != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errands::search::tests::{end, line_of, program};

    fn said(child: &std::process::Child) -> String {
        let wanted = Wanted {
            uid: rustix::process::geteuid().as_raw(),
            ..Wanted::default()
        };
        let mut out = Vec::new();
        end_calls(&wanted, [child.id()].into_iter(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// With a thread that waits for who does not read.
    fn sender(closes: &str) -> std::process::Child {
        let (child, _) = program(&format!(
            "s, r = socket.socketpair(); n = os.dup(s.fileno()); told = []; b = bytes(range(256)) * 65536
def says():
    at = 0
    try:
        while at < len(b): at += os.write(n, b[at:])
    except OSError as error: told.append(error.errno)
    told.append(at)
threading.Thread(target=says, daemon=True).start()
def waits(t): return open(f'/proc/self/task/{{t}}/wchan').read() == 'sock_alloc_send_pskb'
while not any(map(waits, os.listdir('/proc/self/task'))): time.sleep(0.01)
{closes}"
        ));
        child
    }

    fn tells(child: &mut std::process::Child, line: &str) {
        let stdin = child.stdin.as_mut().unwrap();
        writeln!(stdin, "{line}").unwrap();
        assert_eq!(line_of(child), "done", "{line}");
    }

    /// Whatever it was interrupted for, all of it comes.
    #[test]
    fn who_sends_by_a_number_that_it_has_goes_on() {
        let mut child = sender("");
        for _ in 0..3 {
            assert!(!said(&child).contains("ended"));
        }
        tells(
            &mut child,
            "assert r.recv(len(b), socket.MSG_WAITALL) == b and told in ([], [len(b)])",
        );
        end(&mut [&mut child]);
    }

    #[test]
    fn who_sends_by_a_number_that_is_closed_sends_no_more() {
        let mut child = sender("os.close(n)");
        assert!(!said(&child).contains("ended"));
        tells(&mut child, "while len(told) < 2: time.sleep(0.01)");
        tells(&mut child, "assert told[0] == 9 and told[1] < len(b), told");
        end(&mut [&mut child]);
    }
}
