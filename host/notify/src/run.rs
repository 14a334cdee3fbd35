//! Starting a program under the filter.

use crate::child::{Prepared, REPORT};
use crate::fault::{Error, Step};
use crate::filter::MEDIATED;
use crate::search;
use core::mem::MaybeUninit;
use netlink::{Netlink, NetlinkError, namespace};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags,
    SocketType, recvmsg, send, socketpair,
};
use rustix::process::{Gid, Pid, Signal, Uid, WaitOptions, geteuid, pidfd_send_signal, waitpid};
use std::ffi::{CString, OsString};
use std::fs;
use std::io::{self, IoSliceMut};
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// A program and what it is to run as. Its working directory and its descriptors are the
/// launcher's (those that are not close-on-exec), and so is its environment but for what is said here.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program, looked for in PATH if there is no `/` in it.
    pub program: OsString,
    /// Its arguments, without its own name.
    pub arguments: Vec<OsString>,
    /// The operator's uid, which will own the program's user namespace: that is what lets
    /// an operator without capabilities read the program. Whoever has this uid and is
    /// outside can also enter the namespace and be root over the program and, by the
    /// identity map, over files: it must be nobody else's uid, and the operator's own
    /// confinement must leave it neither setns(2) nor ptrace(2).
    pub owner: u32,
    /// Who the program runs as; the launcher (root) if `None`.
    pub user: Option<User>,
    /// The addresses on its loopback, besides 127.0.0.1 and ::1.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Variables that it has instead of the launcher's of these names.
    pub environment: Vec<(OsString, OsString)>,
}

/// An identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
}

/// A program that is ready and waits for the word. If this is dropped, or its process
/// dies, the program never runs.
#[derive(Debug)]
pub struct Started {
    child: Child,
    listener: OwnedFd,
    line: OwnedFd,
    program: String,
}

/// A program that runs.
#[derive(Debug)]
pub struct Running {
    pid: Pid,
    pidfd: OwnedFd,
}

/// Makes a program's process: its namespaces, its loopback, its filter. Needs root, for
/// [`Plan::owner`] and the maps of ids; inside a container, CAP_SETFCAP and CAP_SYS_PTRACE
/// too. For the time of the call the calling thread is in the program's network
/// namespace. With other threads in the process, none may change the environment.
///
/// # Errors
/// [`Error`], which says what to do. No process is left.
pub fn start(plan: &Plan) -> Result<Started, Error> {
    if !geteuid().is_root() {
        return Err(Error::NotRoot);
    }
    let (pid, child, line) = begin(plan)?;

    expect(&line, Step::Namespaces)?;
    map(pid, "uid_map", &[])?;
    map(pid, "gid_map", &[])?;
    bring_up(pid, &plan.addresses)?;
    tell(&line)?;
    let listener = expect(&line, Step::Hand)?.ok_or(Error::Ended)?;
    expect(&line, Step::Identity)?;
    Ok(Started {
        child,
        listener,
        line,
        program: plan.program.to_string_lossy().into_owned(),
    })
}

/// A child that has begun; on an error, or if it is dropped, it ends.
fn begin(plan: &Plan) -> Result<(Pid, Child, OwnedFd), Error> {
    let prepared = prepare(plan)?;
    let (line, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(host("make a socket to a new process"))?;
    // The child's own filter would notify what it says there.
    if MEDIATED.contains(&theirs.as_raw_fd().cast_unsigned()) {
        return Err(host("start with so many descriptors open")(Errno::MFILE));
    }
    let (pid, pidfd) = prepared
        .fork(&theirs, &line)
        .map_err(host("make a process"))?;
    drop(theirs);
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(Error::Ended)?;
    Ok((pid, Child(Some(Running { pid, pidfd })), line))
}

/// The namespaces of a container, for a runtime to join: they go with who is in them and who
/// holds them.
#[derive(Debug)]
pub struct Namespaces {
    /// The user namespace.
    pub user: OwnedFd,
    /// The network namespace, which is the user namespace's.
    pub network: OwnedFd,
}

/// Which ids there are in a user namespace: those from `first` on are here those from `outside` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    /// The first one inside.
    pub first: u32,
    /// What it is here.
    pub outside: u32,
    /// How many.
    pub count: u32,
}

/// Makes the namespaces that a program of this plan would have, and no program; with these user
/// and group ids, or all there are here where there are none. As [`start`] it needs root.
///
/// # Errors
/// As for [`start`].
pub fn namespaces(plan: &Plan, users: &[Ids], groups: &[Ids]) -> Result<Namespaces, Error> {
    if !geteuid().is_root() {
        return Err(Error::NotRoot);
    }
    let (pid, _child, line) = begin(plan)?;
    expect(&line, Step::Namespaces)?;
    map(pid, "uid_map", users)?;
    map(pid, "gid_map", groups)?;
    bring_up(pid, &plan.addresses)?;
    let open = |name: &str| namespace::open(&format!("/proc/{}/ns/{name}", pid.as_raw_pid()));
    Ok(Namespaces {
        user: open("user")?,
        network: open("net")?,
    })
}

impl Started {
    /// What the operator is to have before [`Started::go`].
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// The process' id.
    pub fn pid(&self) -> u32 {
        // INVARIANT: the child is taken out by `go` alone, which takes all of us.
        self.child.0.as_ref().map_or(0, Running::pid)
    }

    /// Lets the program run, and waits until it does. The listener comes back: whoever
    /// keeps it keeps callers waiting when the operator dies, for a successor to answer;
    /// once no copy is left they are told ENOSYS, as are all calls after.
    ///
    /// # Errors
    /// [`Error::Program`]: it does not execute.
    pub fn go(mut self) -> Result<(Running, OwnedFd), Error> {
        tell(&self.line)?;
        // The line is close-on-exec: it ends when the program runs.
        match hear(&self.line)? {
            None => {}
            Some((_, number, _)) => {
                let (program, errno) = (self.program, Errno::from_raw_os_error(number));
                return Err(Error::Program { program, errno });
            }
        }
        let running = self.child.0.take().ok_or(Error::Ended)?;
        Ok((running, self.listener))
    }
}

impl AsFd for Running {
    /// Its pidfd: readable when it has ended, and the way to send it signals.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Running {
    /// The process' id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_pid().cast_unsigned()
    }

    /// Waits for its end. If this is dropped instead it goes on, unreaped.
    ///
    /// # Errors
    /// The launcher's fault: it ignores SIGCHLD, or has reaped this child elsewhere.
    pub fn wait(self) -> io::Result<ExitStatus> {
        reap(self.pid)
    }
}

/// A child that has not run its program yet; ended on drop.
#[derive(Debug)]
struct Child(Option<Running>);

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(running) = self.0.take() {
            let _ = pidfd_send_signal(&running.pidfd, Signal::KILL);
            let _ = reap(running.pid);
        }
    }
}

fn reap(pid: Pid) -> io::Result<ExitStatus> {
    loop {
        match waitpid(Some(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => return Ok(ExitStatus::from_raw(status.as_raw())),
            Ok(None) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn prepare(plan: &Plan) -> Result<Prepared, Error> {
    let words = [&plan.program].into_iter().chain(&plan.arguments);
    let texts: Result<Vec<CString>, _> = words
        .map(|word| CString::new(word.clone().into_vec()))
        .collect();
    let identity = plan.user.as_ref().map(|user| {
        let groups = user.groups.iter().copied().map(Gid::from_raw);
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        (uid, gid, groups.collect())
    });
    let texts = texts.map_err(|_| Error::Argument)?;
    let owner = Uid::from_raw(plan.owner);
    let candidates = search::candidates(&plan.program);
    Ok(Prepared::new(
        owner,
        identity,
        texts,
        environment(plan)?,
        candidates,
    ))
}

/// The launcher's, and in the place of what the plan says that.
fn environment(plan: &Plan) -> Result<Vec<CString>, Error> {
    let is_said = |name: &OsString| plan.environment.iter().any(|(said, _)| said == name);
    let own = std::env::vars_os().filter(|(name, _)| !is_said(name));
    let text = |(mut name, value): (OsString, OsString)| {
        name.push("=");
        name.push(value);
        CString::new(name.into_vec())
    };
    let all = own.chain(plan.environment.iter().cloned()).map(text);
    all.collect::<Result<_, _>>().map_err(|_| Error::Argument)
}

/// Ids of Bulkhead's processes, of whatever instance (docs/decisions/0006). No program has them: who has one may signal
/// and bound whoever has the same.
pub const OWN: Range<u32> = 0x7000_0000..0x7ffe_0000;

/// Lines of a map of so many ids to themselves, without [`OWN`].
fn without_own(first: u64, count: u64) -> String {
    let (begin, end) = (u64::from(OWN.start), u64::from(OWN.end));
    let last = first + count;
    let parts = [(first, last.min(begin)), (first.max(end), last)];
    let parts = parts.into_iter().filter(|(first, last)| first < last);
    parts
        .map(|(first, last)| format!("{first} {first} {}\n", last - first))
        .collect()
}

/// Maps these ids, or all that there are here to themselves, but for [`OWN`].
fn map(pid: Pid, file: &'static str, ids: &[Ids]) -> Result<(), Error> {
    let write = || {
        let own = fs::read_to_string(format!("/proc/self/{file}"))?;
        // "inside outside count": what is inside here is outside there.
        let lines = own.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let (first, count) = (words.next()?, words.nth(1)?);
            Some(without_own(first.parse().ok()?, count.parse().ok()?))
        });
        let given = ids
            .iter()
            .map(|ids| format!("{} {} {}\n", ids.first, ids.outside, ids.count));
        let text: String = match ids {
            [] => lines.collect(),
            _ => given.collect(),
        };
        // All of it in one write, or the kernel refuses.
        fs::write(format!("/proc/{}/{file}", pid.as_raw_pid()), text)
    };
    write().map_err(|error| Error::Mapping { file, error })
}

/// Sets the program's loopback up, from here: the child must not allocate.
fn bring_up(pid: Pid, addresses: &[(IpAddr, u8)]) -> Result<(), Error> {
    let own = namespace::open(&format!("/proc/{}/ns/net", pid.as_raw_pid()))?;
    namespace::within(own.as_fd(), || -> Result<(), NetlinkError> {
        let mut netlink = Netlink::open()?;
        let lo = netlink.link("lo")?.index;
        let batch = netlink.batch().set_up(lo);
        let batch = addresses
            .iter()
            .fold(batch, |batch, (address, prefix_len)| {
                batch.add_address(lo, *address, *prefix_len)
            });
        batch.commit()
    })??;
    Ok(())
}

fn tell(line: &OwnedFd) -> Result<(), Error> {
    match send(line, &[1], SendFlags::NOSIGNAL) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::Ended),
    }
}

/// The child's word that a step is done, and the descriptor beside it.
fn expect(line: &OwnedFd, awaited: Step) -> Result<Option<OwnedFd>, Error> {
    let (step, number, fd) = hear(line)?.ok_or(Error::Ended)?;
    match (Step::of(step), number) {
        (Some(step), 0) if step == awaited => Ok(fd),
        (None, _) | (_, 0) => Err(Error::Ended),
        (Some(step), number) => Err(Error::Child {
            step,
            errno: Errno::from_raw_os_error(number),
        }),
    }
}

/// A step's number, an error number or 0, a descriptor.
type Report = (u8, i32, Option<OwnedFd>);

/// The child's next report; `None` where the line has ended.
fn hear(line: &OwnedFd) -> Result<Option<Report>, Error> {
    let mut report = [0_u8; REPORT];
    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    loop {
        let mut data = [IoSliceMut::new(&mut report)];
        match recvmsg(line, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) if message.bytes == REPORT => break,
            Ok(_) | Err(Errno::CONNRESET) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(host("hear from a new process")(errno)),
        }
    }
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let [step, _, _, _, a, b, c, d] = report;
    Ok(Some((step, i32::from_ne_bytes([a, b, c, d]), fd)))
}

fn host(what: &'static str) -> impl FnOnce(Errno) -> Error {
    move |errno| Error::Host { what, errno }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_program_has_an_id_of_ours() {
        let whole = "0 0 1879048192\n2147352576 2147352576 2147614719\n";
        assert_eq!(without_own(0, 4_294_967_295), whole);
        assert_eq!(without_own(0, 65_536), "0 0 65536\n");
        assert_eq!(without_own(0x7000_0001, 5), "");
        assert_eq!(without_own(0x6fff_ffff, 5), "1879048191 1879048191 1\n");
    }
}
