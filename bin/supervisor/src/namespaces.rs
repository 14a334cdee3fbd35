//! Namespaces that this instance makes, told from everybody else's by a mark: an empty
//! file in the run directory, there before the namespace is and gone after it.

use guard::guard;
use netlink::namespace::{self, NamespaceError};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Where the marks are.
#[derive(Clone, Debug)]
pub struct Namespaces {
    marks: PathBuf,
}

impl Namespaces {
    /// With the marks in `run_dir`.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn new(run_dir: &Path) -> std::io::Result<Namespaces> {
        let marks = run_dir.join("netns");
        std::fs::create_dir_all(&marks)?;
        Ok(Namespaces { marks })
    }

    /// Makes one. A namespace that an instance before this one made and could not
    /// remove (it was killed whole) is replaced; anybody else's is left alone.
    ///
    /// # Errors
    /// As [`namespace::create_named`].
    pub fn make(&self, name: &str) -> Result<OwnedFd, NamespaceError> {
        if !is_plain(name) {
            return Err(NamespaceError::Name(name.to_owned()));
        }
        let place = Path::new(namespace::DIRECTORY).join(name);
        if self.is_ours(name) {
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
        if made.is_err() {
            let _ = std::fs::remove_file(&mark);
        }
        made
    }

    /// Removes one that this instance made; anybody else's stays.
    pub fn unmake(&self, name: &str) {
        if guard!("foreign-namespace") && !self.is_ours(name) {
            return;
        }
        match namespace::delete_named(name) {
            Ok(()) => {
                let _ = std::fs::remove_file(self.marks.join(name));
            }
            Err(error) => eprintln!("supervisor: {error}"),
        }
    }

    /// Removes all of them.
    pub fn unmake_all(&self) {
        for entry in std::fs::read_dir(&self.marks)
            .into_iter()
            .flatten()
            .flatten()
        {
            if let Some(name) = entry.file_name().to_str() {
                self.unmake(name);
            }
        }
        let _ = std::fs::remove_dir(&self.marks);
    }

    fn is_ours(&self, name: &str) -> bool {
        is_plain(name) && self.marks.join(name).exists()
    }
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
        let namespaces = Namespaces::new(folder.path()).unwrap();
        let name = format!("bhg{}-theirs", std::process::id());
        let _gone = Gone(name.clone());
        namespace::create_named(&name).unwrap();
        namespaces.unmake(&name);
        assert!(exists(&name));
        assert!(matches!(
            namespaces.make(&name),
            Err(NamespaceError::Exists(_))
        ));
        namespaces.unmake_all();
        assert!(exists(&name));
    }

    #[test]
    fn one_that_an_instance_before_left_is_replaced_and_removed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let name = format!("bhg{}-ours", std::process::id());
        let _gone = Gone(name.clone());
        Namespaces::new(folder.path()).unwrap().make(&name).unwrap();
        // Killed whole; the next one finds the mark.
        let namespaces = Namespaces::new(folder.path()).unwrap();
        namespaces.make(&name).unwrap();
        assert!(exists(&name));
        namespaces.unmake_all();
        assert!(!exists(&name));
        assert!(!folder.path().join("netns").exists());
        for name in ["", ".", "..", "a/b"] {
            assert!(
                matches!(namespaces.make(name), Err(NamespaceError::Name(_))),
                "{name}"
            );
        }
    }
}
