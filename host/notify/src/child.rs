//! Between fork and exec: from a copy of the launcher to the program. Nothing here
//! allocates or takes a lock: the launcher may have had other threads, and theirs.
#![expect(
    unsafe_code,
    reason = "clone3, unshare and exec have no safe form; signals are put back by raw calls"
)]

use crate::fault::Step;
use crate::filter;
use crate::search;
use core::convert::Infallible;
use core::ffi::c_char;
use core::mem::MaybeUninit;
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg,
};
use rustix::process::{Gid, Signal, Uid};
use rustix::thread::{CapabilitiesSecureBits, UnshareFlags};
use std::ffi::CString;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bytes of a report: the step, three of nothing, the error number (0: it is done).
pub(crate) const REPORT: usize = 8;

/// All that the child needs, made before the fork.
pub(crate) struct Prepared {
    pub(crate) owner: Uid,
    pub(crate) identity: Option<(Uid, Gid, Vec<Gid>)>,
    filter: Vec<libc::sock_filter>,
    /// Each ends in null.
    words: Vec<*const c_char>,
    variables: Vec<*const c_char>,
    /// Where the program may be, if it is to be looked for.
    candidates: Vec<CString>,
    _texts: [Vec<CString>; 2],
}

impl Prepared {
    pub(crate) fn new(
        owner: Uid,
        identity: Option<(Uid, Gid, Vec<Gid>)>,
        texts: Vec<CString>,
        environment: Vec<CString>,
        candidates: Vec<CString>,
    ) -> Prepared {
        let ended = |texts: &[CString]| {
            let each = texts.iter().map(|text| text.as_ptr());
            each.chain([core::ptr::null()]).collect()
        };
        Prepared {
            owner,
            identity,
            filter: filter::program(),
            words: ended(&texts),
            variables: ended(&environment),
            candidates,
            _texts: [texts, environment],
        }
    }

    /// Forks a child that becomes the program, in step with who holds the other end of
    /// `line`. `parent` is that end, which the child closes. Returns the child and its
    /// pidfd.
    pub(crate) fn fork(&self, line: &OwnedFd, parent: &OwnedFd) -> Result<(u32, OwnedFd), Errno> {
        let mut pidfd = -1_i32;
        // SAFETY: all zeros is a valid clone_args.
        let mut arguments: libc::clone_args = unsafe { core::mem::zeroed() };
        arguments.flags = libc::CLONE_PIDFD as u64;
        arguments.pidfd = (&raw mut pidfd).addr() as u64;
        arguments.exit_signal = libc::SIGCHLD as u64;
        // SAFETY: without CLONE_VM the child has its own copy of everything; the kernel
        // reads `arguments` and writes `pidfd`, which live on in both. The child does
        // only what needs neither memory nor locks (the module's rule) and never returns.
        let result = unsafe {
            libc::syscall(
                libc::SYS_clone3,
                &raw mut arguments,
                size_of::<libc::clone_args>(),
            )
        };
        match result {
            0 => self.run(line.as_fd(), parent),
            pid if pid > 0 => {
                // SAFETY: the kernel has just made this descriptor for us.
                Ok((pid as u32, unsafe { OwnedFd::from_raw_fd(pidfd) }))
            }
            _ => Err(errno()),
        }
    }

    fn run(&self, line: BorrowedFd<'_>, parent: &OwnedFd) -> ! {
        // The parent's death must show as the end of the line.
        // SAFETY: in the child nobody uses or drops `parent` any more.
        unsafe { rustix::io::close(std::os::fd::AsRawFd::as_raw_fd(parent)) };
        let mut step = Step::Owner;
        let Err(errno) = self.attempt(line, &mut step);
        let _ = send(
            line,
            &report(step, errno.raw_os_error()),
            SendFlags::NOSIGNAL,
        );
        // SAFETY: ends this process without anything of the parent's being run.
        unsafe { libc::_exit(127) }
    }

    fn attempt(&self, line: BorrowedFd<'_>, step: &mut Step) -> Result<Infallible, Errno> {
        // A new user namespace belongs to the effective uid. The capabilities are kept
        // where they can be, for hosts that refuse namespaces to who has none; the
        // kernel forgets this bit in the new namespace.
        let _ =
            rustix::thread::set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP);
        rustix::thread::set_thread_res_uid(None, self.owner, None)?;

        *step = Step::Namespaces;
        // SAFETY: none of the flags unshares the descriptor table.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) }?;
        say(line, *step)?;
        wait(line)?;

        // Here there is CAP_SYS_ADMIN over the new namespace, whoever the program will
        // be: so no_new_privs is not set, and set-user-id programs work inside.
        *step = Step::Filter;
        scope()?;
        let listener = filter::install(&self.filter)?;

        // From here on what the filter notifies would wait for an operator that is not
        // there yet. Messages on this descriptor are not notified.
        *step = Step::Hand;
        hand(line, *step, listener)?;

        *step = Step::Identity;
        match &self.identity {
            Some((uid, gid, groups)) => {
                rustix::thread::set_thread_groups(groups)?;
                rustix::thread::set_thread_res_gid(*gid, *gid, *gid)?;
                rustix::thread::set_thread_res_uid(*uid, *uid, *uid)?;
            }
            None => rustix::thread::set_thread_res_uid(None, Uid::ROOT, None)?,
        }
        // Who ends the launcher for good means the program; set-user-id programs go on.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        say(line, *step)?;
        wait(line)?;

        *step = Step::Execute;
        restore_signals();
        if let [program, ..] = self.words[..] {
            let (words, variables) = (self.words.as_ptr(), self.variables.as_ptr());
            // SAFETY: words and variables are C strings that live in `_texts`, with a null after
            // them. The C library searches PATH on the stack.
            unsafe { libc::execvpe(program, words, variables) };
        }
        Err(search::why(&self.candidates, errno()))
    }
}

/// Nothing of the program connects to an abstract AF_UNIX name that is bound outside of it, or signals
/// who is outside (landlock(7), Linux 6.12). Of a circuit the first is all there is between it and a listener whose
/// name it has seen: recvfrom(2) shows it. The second is all there is between who has root's number and the host's processes. For good, for the calling thread and all that comes of
/// it; it takes CAP_SYS_ADMIN or no_new_privs.
///
/// # Errors
/// What the kernel says: NOSYS, OPNOTSUPP or INVAL where it has no such scope.
pub fn scope() -> Result<(), Errno> {
    /// struct landlock_ruleset_attr: files, ports, scopes (names, signals).
    const SCOPES: [u64; 3] = [0, 0, 1 | 2];
    // SAFETY: the kernel reads the attributes, whose size is beside them; the descriptor is new
    // and ours.
    unsafe {
        let rules = libc::syscall(
            libc::SYS_landlock_create_ruleset,
            SCOPES.as_ptr(),
            size_of_val(&SCOPES),
            0_u32,
        );
        if rules < 0 {
            return Err(errno());
        }
        let restricted = match libc::syscall(libc::SYS_landlock_restrict_self, rules, 0_u32) {
            0 => Ok(()),
            _ => Err(errno()),
        };
        libc::close(rules as i32);
        restricted
    }
}

fn report(step: Step, errno: i32) -> [u8; REPORT] {
    let [a, b, c, d] = errno.to_ne_bytes();
    [step as u8, 0, 0, 0, a, b, c, d]
}

fn say(line: BorrowedFd<'_>, step: Step) -> Result<(), Errno> {
    send(line, &report(step, 0), SendFlags::NOSIGNAL).map(drop)
}

/// Waits for the parent's word. If it dies instead, the line ends, and so does the child.
fn wait(line: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut word = [0_u8; 1];
    loop {
        match recv(line, &mut word, RecvFlags::empty()) {
            Ok((1, _)) => return Ok(()),
            Ok(_) => return Err(Errno::PIPE),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn hand(line: BorrowedFd<'_>, step: Step, listener: OwnedFd) -> Result<(), Errno> {
    let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [listener.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let report = report(step, 0);
    let data = [IoSlice::new(&report)];
    sendmsg(line, &data, &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// As a shell would start it: Rust ignores SIGPIPE, and a launcher blocks signals that it
/// takes by signalfd. What the user has had ignored (nohup) stays so.
fn restore_signals() {
    let none = 0_u64;
    // SAFETY: the default action is no function of ours; the kernel reads one 64-bit set.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const none,
            core::ptr::null::<u64>(),
            size_of_val(&none),
        );
    }
}

fn errno() -> Errno {
    let number = std::io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(number.unwrap_or(libc::EIO))
}
