//! The uids of one instance, held against every other instance of the host.

use guard::guard;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open, stat};
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Where the ranges in use are, a file each, locked by the instance that has it.
const FOLDER: &str = "/run/bulkhead-uids";

/// Takes the range that begins at `first` for the instance in `run_dir`, for as long as
/// the descriptor is open anywhere.
///
/// # Errors
/// A sentence: another instance has it, or what the system refused.
pub fn take(first: u32, run_dir: &Path) -> Result<OwnedFd, String> {
    take_in(Path::new(FOLDER), first, run_dir)
}

/// Removes the file of a range that is held, and the folder of the last.
pub fn remove(first: u32) {
    remove_in(Path::new(FOLDER), first);
}

fn remove_in(folder: &Path, first: u32) {
    let _ = std::fs::remove_file(place(folder, first));
    // Fails where another instance has a range.
    let _ = std::fs::remove_dir(folder);
}

fn place(folder: &Path, first: u32) -> PathBuf {
    folder.join(first.to_string())
}

fn take_in(folder: &Path, first: u32, run_dir: &Path) -> Result<OwnedFd, String> {
    let path = place(folder, first);
    let says = |error: std::io::Error| format!("{}: {error}", path.display());
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    loop {
        // Bound: once more for each instance that ends just now.
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(says)?;
        let fd = match open(&path, flags, Mode::RUSR | Mode::WUSR) {
            // The folder was the last one's, and went with it.
            Err(Errno::NOENT) => continue,
            opened => opened.map_err(|e| says(e.into()))?,
        };
        let locked = flock(&fd, FlockOperation::NonBlockingLockExclusive);
        let mut file = File::from(fd);
        match locked {
            Err(Errno::WOULDBLOCK) if guard!("uid-range") => {
                let mut other = String::new();
                let _ = file.read_to_string(&mut other);
                return Err(format!(
                    "the uids from {first} on belong to the instance in {other}, whose --run-dir comes to the same numbers: give this one another --run-dir"
                ));
            }
            Ok(()) | Err(Errno::WOULDBLOCK) => {}
            Err(errno) => return Err(says(errno.into())),
        }
        // Whoever had it may have removed it between our opening and our locking.
        let same = fstat(&file).ok().zip(stat(&path).ok());
        if same.is_none_or(|(ours, there)| ours.st_ino != there.st_ino) {
            continue;
        }
        file.set_len(0)
            .and_then(|()| file.write_all(run_dir.as_os_str().as_encoded_bytes()))
            .map_err(says)?;
        return Ok(file.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_instances_never_have_the_same_uids() {
        let folder = tempfile::tempdir().unwrap();
        let take = |first, run| take_in(folder.path(), first, Path::new(run));
        let held = take(5, "/run/one").unwrap();
        // Also by a duplicate, which the keeper has.
        let kept = held.try_clone().unwrap();
        drop(held);
        let refused = take(5, "/run/two").unwrap_err();
        assert!(refused.contains("/run/one"), "{refused}");
        assert!(take(6, "/run/two").is_ok());
        drop(kept);
        assert!(take(5, "/run/two").is_ok());
    }

    #[test]
    fn the_last_range_takes_the_folder_along() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("uids");
        let held = [5, 6].map(|first| take_in(&folder, first, Path::new("/run/one")).unwrap());
        remove_in(&folder, 5);
        assert!(folder.join("6").exists());
        remove_in(&folder, 6);
        assert!(!folder.exists());
        drop(held);
        assert!(take_in(&folder, 5, Path::new("/run/one")).is_ok());
    }
}
