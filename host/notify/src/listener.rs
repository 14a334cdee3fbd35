//! The other side of a filter, which a compartment's operator has: notifications in, answers out.
#![expect(
    unsafe_code,
    reason = "the seccomp_unotify(2) requests have no safe wrapper"
)]

use rustix::io::Errno;
use shm::Words;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Bytes kept for one notification: several times what any kernel has (80).
const ROOM: usize = 512;

/// Words that a notification is received into.
pub const RECEIVED: usize = ROOM / 8;

/// What [`Listener::receive_at`] received there, unless it was zeroed since.
pub fn received(page: &Words, word: usize) -> Option<Notification> {
    let at = |n: usize| page.load(word + n);
    let (id, caller, call) = (at(0), at(1), at(2));
    (id != 0).then(|| Notification {
        id,
        thread: caller as u32,
        number: call as i32,
        arch: (call >> 32) as u32,
        arguments: core::array::from_fn(|n| at(4 + n)),
    })
}

/// How large this kernel's structures are (SECCOMP_GET_NOTIF_SIZES). Asked once, before
/// confinement: seccomp(2) is not a call that a confined operator keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    notification: usize,
    response: usize,
}

impl Sizes {
    /// Asks the kernel.
    ///
    /// # Errors
    /// The host's fault: no user notification (before Linux 5.0), or structures larger
    /// than this program was made for.
    pub fn of_kernel() -> io::Result<Sizes> {
        let mut sizes = libc::seccomp_notif_sizes {
            seccomp_notif: 0,
            seccomp_notif_resp: 0,
            seccomp_data: 0,
        };
        // SAFETY: the kernel writes one `seccomp_notif_sizes`.
        let result = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_GET_NOTIF_SIZES,
                0_u32,
                &raw mut sizes,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let sizes = Sizes {
            notification: sizes.seccomp_notif.into(),
            response: sizes.seccomp_notif_resp.into(),
        };
        if sizes.notification > ROOM || sizes.response > ROOM {
            return Err(io::Error::other(
                "the kernel's seccomp notifications are larger than this program knows: update it",
            ));
        }
        Ok(sizes)
    }
}

/// What became of a request about a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the caller may be gone"]
pub enum Outcome<T = ()> {
    /// Done.
    Done(T),
    /// Nobody waits for this notification (ENOENT): the thread was killed, or the call
    /// was answered before. Nothing was done.
    Gone,
}

/// A system call that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// Names the call in all requests. Unique per filter.
    pub id: u64,
    /// The calling thread, as the receiver's pid namespace numbers it; 0: it is not in it.
    pub thread: u32,
    /// The system call's number.
    pub number: i32,
    /// The architecture (AUDIT_ARCH_*) that the number belongs to.
    pub arch: u32,
    /// The arguments as the registers held them. Pointers point into the caller's memory.
    pub arguments: [u64; 6],
}

impl Notification {
    /// Whether another asks for the same by the same words, as one does that the kernel restarts.
    #[must_use]
    pub fn is_alike(&self, other: &Notification) -> bool {
        (self.number, self.arguments) == (other.number, other.arguments)
    }
}

/// The descriptor that a filter was installed with. Any process that holds it may
/// receive and answer; no privilege is asked for that.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    sizes: Sizes,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether a descriptor is a listener, of which the kernel says that no call has this number;
/// any other answers otherwise.
pub fn is_listener(fd: BorrowedFd<'_>) -> bool {
    let none = 0_u64;
    // SAFETY: the kernel reads one u64; of what is no listener, the argument is a number that
    // the request does not belong to.
    let result = unsafe {
        libc::ioctl(
            fd.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
            &raw const none,
        )
    };
    result != 0 && errno() == Errno::NOENT
}

/// The same of one of which nothing is known: what is asked of it is the name that the kernel gives
/// it, and not itself, which may be a file that makes who asks wait.
#[must_use]
pub fn is_called_listener(fd: BorrowedFd<'_>) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|name| name.as_os_str() == "anon_inode:seccomp notify")
}

/// A buffer that any of the structures fits and that is aligned for all of them.
type Room = [u64; ROOM / 8];

impl Listener {
    /// Takes over a descriptor. It is not looked at: a wrong one is refused at the first
    /// request.
    pub fn new(fd: OwnedFd, sizes: Sizes) -> Listener {
        Listener { fd, sizes }
    }

    /// The descriptor again, as for handing it to a successor.
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Has the kernel run the receiver on the caller's processor, and back
    /// (SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP): a fraction of the round trip where both may
    /// run there. False where the kernel does not know it (before 6.6); nothing else
    /// changes then.
    pub fn set_flags(&self) -> bool {
        const SYNC_WAKE_UP: libc::c_ulong = 1;
        // SAFETY: the argument is a number.
        let result = unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS,
                SYNC_WAKE_UP,
            )
        };
        result == 0
    }

    /// The next call that waits. To be called once poll(2) says it is readable: it waits
    /// otherwise, whatever O_NONBLOCK says. `None` where the caller has gone since, or a
    /// signal came. POLLHUP says that the last program under the filter has ended.
    ///
    /// A notification is received once. If its receiver ends without an answer, the caller
    /// goes on waiting while any copy of the descriptor is open, and is told ENOSYS when there
    /// is none: who must not lose one uses [`Listener::receive_at`].
    ///
    /// # Errors
    /// The host's fault: not a listener, or a kernel that does not say the sizes it said.
    pub fn receive(&self) -> io::Result<Option<Notification>> {
        // The kernel wants zeros.
        let mut room: Room = [0; ROOM / 8];
        debug_assert!(self.sizes.notification <= size_of::<Room>());
        // SAFETY: the kernel writes as many bytes as it said a notification has, which
        // `Sizes` found to be no more than there is room for.
        let result = unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_RECV,
                room.as_mut_ptr(),
            )
        };
        if result != 0 {
            return match errno() {
                Errno::NOENT | Errno::INTR => Ok(None),
                errno => Err(errno.into()),
            };
        }
        // struct seccomp_notif: id, (pid, flags), then struct seccomp_data: (nr, arch),
        // instruction pointer, six arguments. Newer kernels append.
        let [id, caller, call, _instruction, a, b, c, d, e, f, ..] = room;
        Ok(Some(Notification {
            id,
            thread: caller as u32,
            number: call as i32,
            arch: (call >> 32) as u32,
            arguments: [a, b, c, d, e, f],
        }))
    }

    /// As [`Listener::receive`], written by the kernel to a page that outlives this process, at
    /// these [`RECEIVED`] words, which are zero but while a call is received: with the call taken
    /// from the kernel it is there, and nothing comes in between. [`received`] reads it.
    ///
    /// # Errors
    /// As for [`Listener::receive`]; `InvalidInput`: the page has no such words.
    pub fn receive_at(&self, page: &Words, word: usize) -> io::Result<Option<Notification>> {
        let room = page.place(word, RECEIVED);
        let room = room.ok_or(io::ErrorKind::InvalidInput)?;
        debug_assert!(self.sizes.notification <= RECEIVED * 8);
        for at in 0..RECEIVED {
            page.store(word + at, 0);
        }
        // SAFETY: the kernel writes as many bytes as it said a notification has, which
        // `Sizes` found to be no more than there is room for; the words are mapped, of a file
        // that cannot shrink, and no reference to them exists.
        let result = unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_RECV,
                room.as_ptr(),
            )
        };
        if result != 0 {
            return match errno() {
                Errno::NOENT | Errno::INTR => Ok(None),
                errno => Err(errno.into()),
            };
        }
        Ok(received(page, word))
    }

    /// Whether the caller still waits for this answer. Asked after opening or reading the
    /// caller: only then was it the caller that was opened or read, for a thread's number
    /// is not given out again while the thread waits.
    pub fn is_live(&self, id: u64) -> bool {
        // SAFETY: the kernel reads one u64.
        let result = unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
                &raw const id,
            )
        };
        result == 0
    }

    /// Answers the call with a value or an error.
    ///
    /// # Errors
    /// EINPROGRESS: answered already and not yet taken; the operator's fault.
    pub fn answer(&self, id: u64, result: Result<i64, Errno>) -> io::Result<Outcome> {
        match result {
            Ok(value) => self.send(id, value, 0, 0),
            Err(errno) => self.send(id, 0, -errno.raw_os_error(), 0),
        }
    }

    /// Has the kernel do the call as if there were no filter
    /// (SECCOMP_USER_NOTIF_FLAG_CONTINUE).
    ///
    /// The kernel reads the arguments' memory again, and descriptors may mean something
    /// else by then: another thread can have changed both since the operator looked. So
    /// this is only for calls that would be harmless with any arguments whatsoever, as
    /// where the program's own namespaces already hold whatever it could do. Never for a
    /// call that was let through because of what its pointers point to.
    ///
    /// # Errors
    /// As for [`Listener::answer`].
    pub fn proceed(&self, id: u64) -> io::Result<Outcome> {
        self.send(id, 0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32)
    }

    fn send(&self, id: u64, value: i64, error: i32, flags: u32) -> io::Result<Outcome> {
        let mut room: Room = [0; ROOM / 8];
        // struct seccomp_notif_resp: id, value, (error, flags).
        let status = u64::from(error.cast_unsigned()) | u64::from(flags) << 32;
        let [at_id, at_value, at_status, ..] = &mut room;
        (*at_id, *at_value, *at_status) = (id, value.cast_unsigned(), status);
        debug_assert!(self.sizes.response <= size_of::<Room>());
        // SAFETY: the kernel reads as many bytes as it said a response has, which `Sizes`
        // found to be no more than there are.
        let result = unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SEND,
                room.as_mut_ptr(),
            )
        };
        outcome(result).map(|outcome| match outcome {
            Outcome::Done(_) => Outcome::Done(()),
            Outcome::Gone => Outcome::Gone,
        })
    }

    /// Puts a copy of a descriptor into the caller, at its lowest free number, which is
    /// returned. The call goes on waiting.
    ///
    /// The kernel has the caller's thread do it and waits for that: for as long as the
    /// caller gets no processor (4 ms where it runs SCHED_IDLE beside a busy thread), which
    /// an operator of several programs takes from the others. A signal meanwhile is no
    /// harm: nothing was installed, and it is tried again. The kernel could answer with the number
    /// in the same step (SECCOMP_ADDFD_FLAG_SEND), but marks the call as answered first: a signal
    /// or a death meanwhile has the program take its standard input for the socket.
    ///
    /// # Errors
    /// What the kernel says to the caller's table: EMFILE where the program's own limit
    /// is reached. The call then still waits for its answer.
    pub fn install(&self, id: u64, fd: BorrowedFd<'_>, cloexec: bool) -> io::Result<Outcome<u32>> {
        self.add(id, fd, cloexec, None)
    }

    /// The same, at this number; what the caller has there is closed, so who asks for it looks
    /// before ([`Target::take`](crate::Target::take)).
    ///
    /// # Errors
    /// EBADF: the program's own limit does not allow so high a number.
    pub fn install_at(
        &self,
        id: u64,
        fd: BorrowedFd<'_>,
        cloexec: bool,
        number: u32,
    ) -> io::Result<Outcome<u32>> {
        self.add(id, fd, cloexec, Some(number))
    }

    fn add(
        &self,
        id: u64,
        fd: BorrowedFd<'_>,
        cloexec: bool,
        number: Option<u32>,
    ) -> io::Result<Outcome<u32>> {
        let set = libc::SECCOMP_ADDFD_FLAG_SETFD as u32;
        let request = libc::seccomp_notif_addfd {
            id,
            flags: number.map_or(0, |_| set),
            srcfd: fd.as_raw_fd().cast_unsigned(),
            newfd: number.unwrap_or(0),
            newfd_flags: if cloexec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        loop {
            // SAFETY: the kernel reads one `seccomp_notif_addfd`, whose size is in the
            // request.
            let result = unsafe {
                libc::ioctl(
                    self.fd.as_raw_fd(),
                    libc::SECCOMP_IOCTL_NOTIF_ADDFD,
                    &raw const request,
                )
            };
            match outcome(result) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => return outcome,
            }
        }
    }
}

fn outcome(result: i32) -> io::Result<Outcome<u32>> {
    match u32::try_from(result) {
        Ok(value) => Ok(Outcome::Done(value)),
        Err(_) => match errno() {
            Errno::NOENT => Ok(Outcome::Gone),
            errno => Err(errno.into()),
        },
    }
}

fn errno() -> Errno {
    let number = io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(number.unwrap_or(libc::EIO))
}
