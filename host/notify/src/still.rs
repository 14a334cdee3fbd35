//! All programs of a user namespace stand still together, and go on.
#![expect(unsafe_code, reason = "kill(2) of -1 has no safe wrapper")]

use rustix::io::Errno;
use rustix::process::Uid;
use rustix::thread::{
    LinkNameSpaceType, capabilities, move_into_link_name_space, set_capabilities,
    set_keep_capabilities, set_thread_res_uid,
};
use std::os::fd::{AsFd, OwnedFd};

/// A uid that nobody has: who has it may signal nobody by being the same user.
const NOBODYS: u32 = u32::MAX - 15;

/// Stops all programs of a user namespace, and of those in it, until `until` is over: each of them at once, whatever
/// they do, for the kernel lets nobody fork in the midst of that (copy_process and kill(2) of -1 exclude each other).
///
/// For a process of one thread that does nothing else: it is another user's afterwards, and in that namespace, which
/// is what it may signal anybody by. It needs CAP_SYS_ADMIN and CAP_SETUID.
///
/// # Errors
/// The kernel's; nobody was stopped then, or all that were go on.
pub fn stands_still(namespace: OwnedFd, until: impl FnOnce()) -> Result<(), Errno> {
    set_keep_capabilities(true)?;
    let nobody = Uid::from_raw(NOBODYS);
    set_thread_res_uid(nobody, nobody, nobody)?;
    let mut sets = capabilities(None)?;
    sets.effective = sets.permitted;
    set_capabilities(None, sets)?;
    // Fails where it is in that namespace already: nobody is signalled who is not in another.
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::User))?;
    let stopped = signal_all(libc::SIGSTOP);
    if stopped.is_ok() {
        until();
    }
    stopped.and(signal_all(libc::SIGCONT))
}

/// Everybody whom this process may signal, but itself.
fn signal_all(signal: i32) -> Result<(), Errno> {
    // SAFETY: no memory is involved.
    match unsafe { libc::kill(-1, signal) } {
        0 => Ok(()),
        _ => match Errno::from_io_error(&std::io::Error::last_os_error()) {
            // There is nobody.
            Some(Errno::SRCH) => Ok(()),
            errno => Err(errno.unwrap_or(Errno::INVAL)),
        },
    }
}
