//! The root stage: an empty, read-only directory in place of the host's tree.

use crate::kernel::{mount, pivot_to_working_directory, unmount};
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use std::ffi::CStr;

/// Directories to mount on until the pivot; the first that exists is used.
const PLACES: [&CStr; 3] = [c"/tmp", c"/run", c"/dev"];

/// Replaces the tree. Needs a mount namespace and CAP_SYS_ADMIN over it.
pub(crate) fn replace() -> Result<(), Errno> {
    // What follows must reach no other mount namespace.
    mount(None, c"/", None, libc::MS_REC | libc::MS_PRIVATE, None)?;
    let strict = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let mut result = Err(Errno::NOENT);
    for place in PLACES {
        let options = Some(c"size=4k,nr_inodes=2,mode=0555");
        result = mount(Some(c"bulkhead"), place, Some(c"tmpfs"), strict, options)
            .and_then(|()| rustix::process::chdir(place));
        if result.is_ok() {
            break;
        }
    }
    result?;
    pivot_to_working_directory()?;
    unmount(c".", libc::MNT_DETACH)?;
    rustix::process::chdir("/")?;
    mount(
        None,
        c"/",
        None,
        libc::MS_REMOUNT | libc::MS_RDONLY | strict,
        None,
    )
}

/// Whether the root is what [`replace`] makes.
pub(crate) fn verify() -> Result<(), String> {
    let says = |error: Errno| error.to_string();
    let flags = rustix::fs::statvfs("/").map_err(says)?.f_flag;
    let want = StatVfsMountFlags::RDONLY
        | StatVfsMountFlags::NOSUID
        | StatVfsMountFlags::NODEV
        | StatVfsMountFlags::NOEXEC;
    if !flags.contains(want) {
        return Err("the root is not mounted read-only, nosuid, nodev, noexec".into());
    }
    let entries = std::fs::read_dir("/")
        .map_err(|error| error.to_string())?
        .count();
    if entries != 0 {
        return Err(format!("the root holds {entries} entries"));
    }
    Ok(())
}
