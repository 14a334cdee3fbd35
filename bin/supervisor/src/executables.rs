//! Our own executables, and the uids that processes of them get.

use crate::settings::RANGE;
use guard::guard;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The programs beside this one.
#[derive(Debug)]
pub struct Programs {
    directory: PathBuf,
}

impl Programs {
    /// Beside this program.
    ///
    /// # Errors
    /// This program's own path cannot be read.
    pub fn beside_us() -> std::io::Result<Programs> {
        let own = std::env::current_exe()?;
        Ok(Programs {
            directory: own.parent().unwrap_or(Path::new("/")).to_owned(),
        })
    }

    /// Opens `bulkhead-NAME`, or another program of the same directory.
    ///
    /// # Errors
    /// It is not there, or `name` is not that of a file in our directory.
    pub fn open(&self, name: &str) -> std::io::Result<OwnedFd> {
        let path = Path::new(name);
        // By the controller's word nothing but our own programs is ever started.
        let inside = path.parent() == Some(Path::new("")) || path.parent() == Some(&self.directory);
        let file = path
            .file_name()
            .and_then(|file| file.to_str())
            .unwrap_or("");
        if guard!("program-beside") && !(inside && file.starts_with("bulkhead-")) {
            return Err(std::io::Error::new(
                std::io::ErrorKind::PermissionDenied,
                format!("{name:?} is not a program of Bulkhead's own directory"),
            ));
        }
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        Ok(rustix::fs::open(
            self.directory.join(file),
            flags,
            rustix::fs::Mode::empty(),
        )?)
    }
}

/// uids of workers: one each, from a range that nobody else has.
#[derive(Debug)]
pub struct Uids {
    first: u32,
    next: u32,
    used: BTreeSet<u32>,
}

impl Uids {
    /// The range that begins at `first`.
    pub fn new(first: u32) -> Uids {
        Uids {
            first,
            next: 1,
            used: BTreeSet::new(),
        }
    }
    /// The controller's: always the same, for its files.
    pub fn controller(&self) -> u32 {
        self.first
    }
    /// One that no living process has, the longest unused first.
    pub fn take(&mut self) -> Option<u32> {
        for _ in 1..RANGE {
            let uid = self.first + self.next;
            self.next = self.next % (RANGE - 1) + 1;
            if self.used.insert(uid) {
                return Some(uid);
            }
        }
        None
    }
    /// Marks one as used.
    pub fn adopt(&mut self, uid: u32) {
        self.used.insert(uid);
    }
    /// Gives one back.
    pub fn release(&mut self, uid: u32) {
        self.used.remove(&uid);
    }
}
