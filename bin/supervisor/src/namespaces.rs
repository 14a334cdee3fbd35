//! Namespaces that this instance makes, told from everybody else's by a mark: a file in
//! the run directory, there before the namespace is and gone after it. It has device and
//! inode of the namespace, and is empty while that is made or removed: one that somebody
//! made anew under the name is theirs. The first port in one makes it, the last one's
//! end removes it.

use guard::guard;
use netlink::namespace::{self, NamespaceError};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The namespaces made here.
#[derive(Debug)]
pub struct Namespaces {
    marks: PathBuf,
    /// Says which names are removed. Without it a deleted namespace is seen by the next
    /// request for it.
    watch: Option<OwnedFd>,
    /// Ports in each. One that is marked and not here is kept for a port to come.
    users: BTreeMap<String, u32>,
}

/// A namespace for a port.
#[derive(Debug)]
pub struct Taken {
    /// It.
    pub namespace: OwnedFd,
    /// It was made for this port.
    pub is_fresh: bool,
}

impl Namespaces {
    /// With the marks in `run_dir`.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn new(run_dir: &Path) -> std::io::Result<Namespaces> {
        let marks = run_dir.join("netns");
        std::fs::create_dir_all(&marks)?;
        Ok(Namespaces {
            marks,
            watch: watch_names(),
            users: BTreeMap::new(),
        })
    }

    /// Readable when names were removed.
    pub fn watch(&self) -> Option<&OwnedFd> {
        self.watch.as_ref()
    }

    /// Names that were removed since the last call, ours and others'. What comes under
    /// them now is not ours.
    pub fn deleted(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let Some(watch) = &self.watch else {
            return names;
        };
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(watch, &mut room);
        // Bound: what the kernel has queued, at most 16384 events unless set otherwise.
        while let Ok(event) = reader.next() {
            let name = event.file_name().and_then(|name| name.to_str().ok());
            names.extend(name.map(str::to_owned));
        }
        for name in &names {
            let mark = self.mark(name);
            if guard!("namespace-deleted") && mark.is_some() && mark != identity(name) {
                let _ = std::fs::remove_file(self.marks.join(name));
            }
        }
        names
    }

    /// The one of this name, for one port more: made unless it is there and ours;
    /// anybody else's is left alone.
    ///
    /// # Errors
    /// As [`namespace::create_named`].
    pub fn take(&mut self, name: &str) -> Result<Taken, NamespaceError> {
        let there = if guard!("namespace-shared") && self.is_ours(name) {
            match namespace::open(name) {
                Ok(namespace) => Some(namespace),
                // Deleted behind our back.
                Err(NamespaceError::Missing(_)) => None,
                Err(error) => return Err(error),
            }
        } else {
            None
        };
        let is_fresh = there.is_none();
        let namespace = there.map_or_else(|| self.make(name), Ok)?;
        self.adopt(name);
        Ok(Taken {
            namespace,
            is_fresh,
        })
    }

    /// Counts a port that is in it already.
    pub fn adopt(&mut self, name: &str) {
        *self.users.entry(name.to_owned()).or_default() += 1;
    }

    /// Whether no port but one is in it.
    pub fn has_one_port(&self, name: &str) -> bool {
        self.users.get(name) == Some(&1)
    }

    /// A port leaves. The last one takes the namespace along, unless that `stays` for
    /// a port to come, at the latest until [`Namespaces::settle`].
    pub fn leave(&mut self, name: &str, stays: bool) {
        let Some(count) = self.users.get_mut(name) else {
            return;
        };
        *count -= 1;
        if guard!("namespace-last") && *count > 0 {
            return;
        }
        self.users.remove(name);
        if !stays {
            self.unmake(name);
        }
    }

    /// Removes those that no port is in.
    pub fn settle(&mut self) {
        for entry in std::fs::read_dir(&self.marks)
            .into_iter()
            .flatten()
            .flatten()
        {
            if let Some(name) = entry.file_name().to_str()
                && !self.users.contains_key(name)
            {
                self.unmake(name);
            }
        }
    }

    /// Removes all of them.
    pub fn unmake_all(&mut self) {
        self.users.clear();
        self.settle();
        let _ = std::fs::remove_dir(&self.marks);
    }

    fn make(&self, name: &str) -> Result<OwnedFd, NamespaceError> {
        if !is_plain(name) {
            return Err(NamespaceError::Name(name.to_owned()));
        }
        let place = Path::new(namespace::DIRECTORY).join(name);
        if self.is_ours(name) {
            // An empty file, left where the namespace was.
            namespace::delete_named(name)?;
        } else if place.exists() {
            return Err(NamespaceError::Exists(place));
        }
        let mark = self.marks.join(name);
        std::fs::write(&mark, "").map_err(|error| NamespaceError::Refused {
            what: "mark",
            path: mark.clone(),
            errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        })?;
        let made = namespace::create_named(name);
        match (&made, identity(name)) {
            // Without it the mark stays empty, and what is there counts as ours.
            (Ok(_), Some(identity)) => drop(std::fs::write(&mark, identity)),
            _ => drop(std::fs::remove_file(&mark)),
        }
        made
    }

    /// Removes one that this instance made; anybody else's stays.
    fn unmake(&self, name: &str) {
        let mark = self.marks.join(name);
        if guard!("foreign-namespace") && !self.is_ours(name) {
            // Made anew by somebody, if we ever made one.
            if self.mark(name).is_some() {
                let _ = std::fs::remove_file(mark);
            }
            return;
        }
        // If we die half-way, what is left is still ours.
        let _ = std::fs::write(&mark, "");
        match namespace::delete_named(name) {
            Ok(()) => {
                let _ = std::fs::remove_file(mark);
            }
            Err(error) => confine::say!("supervisor: {error}"),
        }
    }

    fn is_ours(&self, name: &str) -> bool {
        let Some(mark) = self.mark(name) else {
            return false;
        };
        // Nothing there: nothing of anybody else's.
        let same = identity(name).is_none_or(|there| there == mark);
        mark.is_empty() || same || !guard!("namespace-identity")
    }

    /// What the mark says, if there is one.
    fn mark(&self, name: &str) -> Option<String> {
        let mark = is_plain(name).then(|| self.marks.join(name))?;
        std::fs::read_to_string(mark).ok()
    }
}

/// Device and inode of what is at this name.
fn identity(name: &str) -> Option<String> {
    let there = rustix::fs::stat(Path::new(namespace::DIRECTORY).join(name)).ok()?;
    Some(format!("{} {}", there.st_dev, there.st_ino))
}

fn watch_names() -> Option<OwnedFd> {
    namespace::prepare_directory().ok()?;
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    inotify::add_watch(&watch, namespace::DIRECTORY, WatchFlags::DELETE).ok()?;
    Some(watch)
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Removes what a failed test leaves.
    struct Gone(String);
    impl Drop for Gone {
        fn drop(&mut self) {
            let _ = namespace::delete_named(&self.0);
        }
    }

    fn exists(name: &str) -> bool {
        Path::new(namespace::DIRECTORY).join(name).exists()
    }

    #[test]
    fn a_namespace_of_somebody_else_is_never_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut namespaces = Namespaces::new(folder.path()).unwrap();
        let name = format!("bhg{}-theirs", std::process::id());
        let _gone = Gone(name.clone());
        namespace::create_named(&name).unwrap();
        assert!(matches!(
            namespaces.take(&name),
            Err(NamespaceError::Exists(_))
        ));
        // Not even where a port is said to be in it.
        namespaces.adopt(&name);
        namespaces.leave(&name, false);
        namespaces.unmake_all();
        assert!(exists(&name));
    }

    #[test]
    fn one_that_somebody_made_anew_is_theirs() {
        let folder = tempfile::tempdir().unwrap();
        let mut namespaces = Namespaces::new(folder.path()).unwrap();
        let name = format!("bhg{}-anew", std::process::id());
        let _gone = Gone(name.clone());
        let marked = || folder.path().join("netns").join(&name).exists();
        // Ours lives on, as a port's does, so that theirs has another inode.
        let _ours = namespaces.take(&name).unwrap().namespace;
        namespaces.leave(&name, true);
        namespace::delete_named(&name).unwrap();
        namespace::create_named(&name).unwrap();
        assert!(matches!(
            namespaces.take(&name),
            Err(NamespaceError::Exists(_))
        ));
        // Before the deletion is heard of.
        namespaces.unmake_all();
        assert!(exists(&name) && !marked());
    }

    #[test]
    fn a_mark_goes_with_its_namespace_and_another_instance_of_it_stays() {
        let folder = tempfile::tempdir().unwrap();
        let mut namespaces = Namespaces::new(folder.path()).unwrap();
        let name = format!("bhg{}-mark", std::process::id());
        let _gone = Gone(name.clone());
        let marked = || folder.path().join("netns").join(&name).exists();
        namespaces.take(&name).unwrap();
        namespaces.leave(&name, true);
        namespace::delete_named(&name).unwrap();
        // One that is made again by us at once keeps its mark.
        namespaces.take(&name).unwrap();
        assert!(namespaces.deleted().contains(&name) && marked());
        namespace::delete_named(&name).unwrap();
        assert!(namespaces.deleted().contains(&name) && !marked());
    }

    #[test]
    fn the_first_port_makes_one_and_the_last_one_removes_it() {
        let folder = tempfile::tempdir().unwrap();
        let name = format!("bhg{}-ours", std::process::id());
        let _gone = Gone(name.clone());
        let mut namespaces = Namespaces::new(folder.path()).unwrap();
        let id = |taken: &Taken| rustix::fs::fstat(&taken.namespace).unwrap().st_ino;
        let first = namespaces.take(&name).unwrap();
        let second = namespaces.take(&name).unwrap();
        assert_eq!(id(&first), id(&second));
        assert!(first.is_fresh && !second.is_fresh);
        namespaces.leave(&name, false);
        assert!(exists(&name) && namespaces.has_one_port(&name));
        // A supervisor after this one counts the port that is left.
        let mut namespaces = Namespaces::new(folder.path()).unwrap();
        namespaces.adopt(&name);
        namespaces.settle();
        assert!(exists(&name));
        namespaces.leave(&name, false);
        assert!(!exists(&name));
    }

    #[test]
    fn one_that_stays_is_for_the_next_port_until_all_is_settled() {
        let folder = tempfile::tempdir().unwrap();
        let name = format!("bhg{}-stays", std::process::id());
        let _gone = Gone(name.clone());
        let mut namespaces = Namespaces::new(folder.path()).unwrap();
        namespaces.take(&name).unwrap();
        namespaces.leave(&name, true);
        assert!(!namespaces.take(&name).unwrap().is_fresh);
        namespaces.leave(&name, true);
        namespaces.settle();
        assert!(!exists(&name));
        // Deleted behind our back it is made again.
        namespaces.take(&name).unwrap();
        namespace::delete_named(&name).unwrap();
        assert!(namespaces.take(&name).unwrap().is_fresh);
        namespaces.unmake_all();
        assert!(!exists(&name));
        assert!(!folder.path().join("netns").exists());
        for name in ["", ".", "..", "a/b"] {
            assert!(
                matches!(namespaces.take(name), Err(NamespaceError::Name(_))),
                "{name}"
            );
        }
    }
}
