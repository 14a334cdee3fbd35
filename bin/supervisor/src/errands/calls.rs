//! A program closes the last number of a socket while a thread of it is in a call there: the socket is in no table of
//! descriptors then, and that call may take as long as somebody likes (a thousand messages, of memory that comes slowly).
//! Who is in a call that sends to an AF_UNIX socket is interrupted; its call begins anew, with what its number is by then. Who does
//! not leave is ended.

use super::search::{Wanted, first_of, is_its, may_be_its, numbers};
use guard::guard;
use notify::{Errno, Interrupted};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::read_to_string;
use std::io::{Result, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

/// Functions of the kernel that a thread is in while it sends there; some releases have another for what splice(2)
/// sends, of the same beginning.
const SENDS: [&str; 3] = ["unix_stream_send", "unix_dgram_send", "unix_seqpacket_send"];
/// The same between two messages of one call, if it is not in one of these others.
const BETWEEN: [&str; 3] = ["sys_sendmmsg", "sys_sendmsg", "sys_sendto"];
const ELSEWHERE: [&str; 6] = [
    "netlink_send",
    "inet_send",
    "inet6_send",
    "packet_send",
    "vsock_",
    "alg_send",
];
/// Calls that may send there, and wait for a file meanwhile.
const PASSES_ON: [&str; 2] = ["sys_sendfile", "splice"];
/// Who sends is looked for so often in each process, with so long between: a thread that runs just then is not seen.
const LOOKS: u32 = 3;
const APART: Duration = Duration::from_millis(5);
/// Who was seen to send and has not left its call by then is ended; who was not seen to by half of that is left alone.
const LONGEST: Duration = Duration::from_millis(600);
/// So long all of that lasts.
const ALL: Duration = Duration::from_millis(800);
/// With these nobody waits for who is looked at.
const SAYS: Duration = Duration::from_millis(100);
/// Processes that are looked at at a time, each by threads of its own: one may wait, if it is executing another program.
const AT_ONCE: usize = 256;

/// In those of these processes that are the wanted's, until then at the latest.
pub(super) fn end_calls(
    wanted: &Wanted,
    processes: impl Iterator<Item = u32>,
    end: Instant,
    out: &mut impl Write,
) -> Result<()> {
    let until = end.min(Instant::now() + ALL);
    let (says, said) = mpsc::channel();
    let (mut its, mut last) = (Vec::new(), Instant::now());
    for process in processes {
        if last.elapsed() > SAYS {
            last = Instant::now();
            writeln!(out, "0")?;
            out.flush()?;
        }
        its.extend(may_be_its(process, wanted).then_some(process));
    }
    // Those that are left are others each time.
    let first = first_of(its.len());
    its.rotate_left(first);
    let (mut next, mut waiting) = (its.iter(), 0);
    let mut missed = its.len();
    while missed > 0 {
        while waiting < AT_ONCE && Instant::now() < until {
            let Some(process) = next.next().copied() else {
                break;
            };
            let (says, wanted) = (says.clone(), wanted.clone());
            let ends = move || {
                let is_ended = ends_in(process, &wanted);
                let _ = says.send((process, is_ended));
            };
            if Builder::new().stack_size(64 << 10).spawn(ends).is_err() {
                break;
            }
            waiting += 1;
        }
        // Nobody holds this one up.
        writeln!(out, "0")?;
        out.flush()?;
        if waiting == 0 || Instant::now() > until {
            break;
        }
        if let Ok((process, is_ended)) = said.recv_timeout(SAYS) {
            (waiting, missed) = (waiting - 1, missed - 1);
            if is_ended {
                writeln!(out, "ended {process}")?;
            }
        }
    }
    if missed > 0 {
        writeln!(out, "missed {missed}")?;
    }
    Ok(())
}

/// It is told that one was.
pub fn say_ended(process: u32) {
    confine::say!(
        "supervisor: process {process} is ended: it was in a call that sends and did not leave it, \
         and circuits that are to be cut are found with no process"
    );
}

/// How a thread is asked to leave its call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// It is interrupted, or is to be: who begins to execute another program has that wait.
    Interrupted,
    /// Another traces it: where it is is seen.
    Traced,
    /// On this host nobody may.
    Refused,
    /// It has left.
    Left,
}

/// One that is to leave.
struct Leaves {
    since: Instant,
    asked: Asked,
    /// It was seen to send. What it is in otherwise may take long and be anything: to read from a disk, say.
    sends: bool,
}

/// Has threads of a process leave what they send by. Whether it had to be ended.
fn ends_in(process: u32, wanted: &Wanted) -> bool {
    let pid = Pid::from_raw(process.cast_signed());
    let Some(pidfd) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return false;
    };
    if !is_its(process, wanted) {
        return false;
    }
    let (asks, asked) = mpsc::channel();
    let (tells, told) = mpsc::channel();
    let interrupts = move || interrupt(&asked, &tells);
    if Builder::new()
        .stack_size(64 << 10)
        .spawn(interrupts)
        .is_err()
    {
        return false;
    }
    let (began, mut looks) = (Instant::now(), 0);
    let (mut leave, mut left): (BTreeMap<u32, Leaves>, BTreeSet<u32>) = Default::default();
    while began.elapsed() < LONGEST {
        if looks < LOOKS {
            looks += 1;
            let threads = numbers(&format!("/proc/{process}/task"));
            for thread in threads.take_while(|_| began.elapsed() < LONGEST / 2) {
                let known = leave.contains_key(&thread) || left.contains(&thread);
                if !known && is_in_call(thread) && !is_killed(thread) {
                    let _ = asks.send(thread);
                    let new = Leaves {
                        since: Instant::now(),
                        asked: Asked::Interrupted,
                        sends: false,
                    };
                    leave.insert(thread, new);
                }
            }
        } else if leave.is_empty() {
            return false;
        }
        sleep(APART);
        for (thread, asked) in told.try_iter() {
            if let Some(it) = leave.get_mut(&thread) {
                it.asked = asked;
            }
        }
        let is_late = began.elapsed() > LONGEST / 2;
        leave.retain(|thread, it| {
            let call = call(*thread);
            it.sends |= call == Some(Call::Sends);
            let is_elsewhere = it.asked == Asked::Traced && call == Some(Call::Other);
            let has_left = it.asked == Asked::Left || is_elsewhere || is_late && !it.sends;
            if has_left {
                left.insert(*thread);
            }
            !has_left
        });
    }
    // Who was asked late has had little time.
    let is_bound = |it: &Leaves| matches!(it.asked, Asked::Interrupted | Asked::Traced);
    let stays = |it: &Leaves| it.sends && is_bound(it) && it.since.elapsed() >= LONGEST / 2;
    let is_ended = leave.values().any(stays)
        && guard!("hunt-calls-ends")
        && pidfd_send_signal(&pidfd, Signal::KILL).is_ok();
    // Who has no processor would go on to have what it has.
    for thread in leave.keys().filter(|_| is_ended) {
        let _ = notify::hurry(*thread);
    }
    is_ended
}

/// Interrupts those that it is asked to, and tells what became of each. A thread of its own: it may wait.
fn interrupt(asked: &Receiver<u32>, tells: &Sender<(u32, Asked)>) {
    let (mut new, mut interrupted): (Vec<u32>, Vec<(u32, Interrupted)>) = Default::default();
    loop {
        let first = asked.recv_timeout(APART);
        let is_over = first == Err(RecvTimeoutError::Disconnected);
        new.extend(first.into_iter().chain(asked.try_iter()));
        let mut is_heard = true;
        for thread in std::mem::take(&mut new) {
            // Who begins to execute may wait for one that has left.
            is_heard &= tell_who_left(&mut interrupted, tells);
            let asked = match Interrupted::new(thread) {
                Ok(one) => {
                    interrupted.push((thread, one));
                    Asked::Interrupted
                }
                Err(Errno::SRCH) => Asked::Left,
                // Its tracer may let it go.
                Err(_) => {
                    new.push(thread);
                    match is_traced(thread) {
                        true => Asked::Traced,
                        false => Asked::Refused,
                    }
                }
            };
            is_heard &= tells.send((thread, asked)).is_ok();
        }
        is_heard &= tell_who_left(&mut interrupted, tells);
        // Who is interrupted still goes on by itself with the end of this.
        if is_over || !is_heard {
            return;
        }
    }
}

/// Whether that is heard.
fn tell_who_left(all: &mut Vec<(u32, Interrupted)>, tells: &Sender<(u32, Asked)>) -> bool {
    let left = all.extract_if(.., |(_, one)| one.has_left());
    let left: Vec<u32> = left.map(|(thread, _)| thread).collect();
    let mut told = left.into_iter().map(|it| tells.send((it, Asked::Left)));
    told.all(|it| it.is_ok())
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
    let sends = is_in(&SENDS) || is_in(&BETWEEN) && !is_in(&ELSEWHERE);
    match (sends, is_in(&PASSES_ON)) {
        _ if stack.is_empty() => None,
        (true, _) => Some(Call::Sends),
        (false, true) => Some(Call::PassesOn),
        (false, false) => Some(Call::Other),
    }
}

fn is_in_call(thread: u32) -> bool {
    call(thread).is_some_and(|it| it != Call::Other)
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

    fn said_for(uid: u32, child: &std::process::Child) -> String {
        let wanted = Wanted {
            uid,
            ..Wanted::default()
        };
        let (mut out, end) = (Vec::new(), Instant::now() + 2 * ALL);
        end_calls(&wanted, [child.id()].into_iter(), end, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn said(child: &std::process::Child) -> String {
        said_for(rustix::process::geteuid().as_raw(), child)
    }

    /// With a thread that waits for who does not read.
    fn sender(closes: &str) -> std::process::Child {
        let (child, _) = program(&format!(
            "s, r = socket.socketpair(); n = os.dup(s.fileno()); told = []; calls = []; b = bytes(range(256)) * 65536
def says():
    at = 0
    try:
        while at < len(b): calls.append(at); at += os.write(n, b[at:])
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
            let said = said(&child);
            assert!(
                !said.contains("ended") && !said.contains("missed"),
                "{said}"
            );
        }
        tells(&mut child, "assert len(calls) > 1");
        tells(
            &mut child,
            "assert r.recv(len(b), socket.MSG_WAITALL) == b and told in ([], [len(b)])",
        );
        end(&mut [&mut child]);
    }

    #[test]
    fn who_sends_by_a_number_that_is_closed_sends_no_more() {
        let mut child = sender("os.close(n)");
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(said_for(uid + 54_321, &child), "");
        tells(&mut child, "assert calls == [0] and told == []");
        let said = said(&child);
        assert!(
            !said.contains("ended") && !said.contains("missed"),
            "{said}"
        );
        tells(
            &mut child,
            "for _ in range(500): len(told) == 2 or time.sleep(0.01)",
        );
        tells(&mut child, "assert told[0] == 9 and told[1] < len(b), told");
        end(&mut [&mut child]);
    }
}
