//! The root stage: an empty, read-only directory in place of the host's tree.

use crate::kernel::{mount, only_read_below, pivot_to_working_directory, unmount};
use guard::guard;
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use std::ffi::CStr;

/// Directories to mount on until the pivot; the first that exists is used.
const PLACES: [&CStr; 3] = [c"/tmp", c"/run", c"/dev"];

/// Where a host's shared libraries are. Not below /etc: without its cache the loader looks
/// where it was built to look.
pub(crate) const LIBRARIES: [&CStr; 4] = [c"/usr/lib", c"/usr/lib64", c"/lib", c"/lib64"];
/// The loader of shared libraries (System V ABI, AMD64 supplement).
pub(crate) const LOADER: &CStr = c"/lib64/ld-linux-x86-64.so.2";

/// Replaces the tree, by one with nothing in it or with libraries alone. Needs a mount namespace and CAP_SYS_ADMIN over it.
pub(crate) fn replace(libraries: bool) -> Result<(), Errno> {
    // What follows must reach no other mount namespace.
    mount(None, c"/", None, libc::MS_REC | libc::MS_PRIVATE, None)?;
    let strict = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let mut result = Err(Errno::NOENT);
    for place in PLACES {
        let options = match libraries {
            false => c"size=4k,nr_inodes=2,mode=0555",
            true => c"size=4k,nr_inodes=16,mode=0755",
        };
        let options = Some(options);
        result = mount(Some(c"bulkhead"), place, Some(c"tmpfs"), strict, options)
            .and_then(|()| rustix::process::chdir(place));
        if result.is_ok() {
            break;
        }
    }
    result?;
    if libraries {
        show_libraries()?;
    }
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

/// In the working directory, at the same paths.
fn show_libraries() -> Result<(), Errno> {
    let mode = rustix::fs::Mode::from_raw_mode(0o755);
    rustix::fs::mkdir("usr", mode)?;
    for path in LIBRARIES {
        // INVARIANT: each begins with a slash, one byte.
        let here = path.to_bytes_with_nul().get(1..).unwrap_or(b"\0");
        let here = CStr::from_bytes_with_nul(here).map_err(|_| Errno::INVAL)?;
        match rustix::fs::statat(rustix::fs::CWD, path, rustix::fs::AtFlags::empty()) {
            Ok(_) => {}
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error),
        }
        rustix::fs::mkdir(here, mode)?;
        let bind = libc::MS_BIND | libc::MS_REC;
        mount(Some(path), here, None, bind, None)?;
        match guard!("libraries-below").then(|| only_read_below(here)) {
            Some(Ok(())) => {}
            // An older kernel, or not looked at: what is mounted below stays as it is.
            Some(Err(Errno::NOSYS)) | None => {
                let strict = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV;
                let again = libc::MS_REMOUNT | libc::MS_BIND | strict;
                mount(None, here, None, again, None)?;
            }
            Some(Err(error)) => return Err(error),
        }
    }
    Ok(())
}

/// Whether the root is what [`replace`] makes.
pub(crate) fn verify(libraries: bool) -> Result<(), String> {
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
    let most = if libraries { LIBRARIES.len() } else { 0 };
    if entries > most {
        return Err(format!("the root holds {entries} entries"));
    }
    Ok(())
}
