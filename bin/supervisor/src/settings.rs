//! Where this instance works.

use guard::guard;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, chmod, chownat, fchmod, fchown, fstat, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The usual run directory.
const RUN_DIR: &str = "/run/bulkhead";
/// The first uid of the usual instance's range: above what systemd gives to containers
/// and what `useradd` writes into /etc/subuid (systemd's "Users, Groups, UIDs and GIDs").
const FIRST_UID: u32 = 0x7000_0000;
/// uids of an instance.
pub(crate) const RANGE: u32 = 16_384;
/// Ranges that other instances spread over; two in one are told (`ranges.rs`).
const RANGES: u32 = 16_000;

/// What the controller keeps in its folder.
const STATE_FILES: [&str; 2] = ["controller.redb", "controller.attempts"];

/// The command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Sockets and marks.
    pub run_dir: PathBuf,
    /// The controller's files.
    pub state_dir: PathBuf,
    /// Inside a user namespace with one uid.
    pub rootless: bool,
    /// The solver that the verifier's questions go to, where it is there.
    pub solver: PathBuf,
    /// Words for the controller: who may change (`--owner UID`), who may look
    /// (`--readers GID`), how often it proves (`--prove-every SECONDS`), how much of the
    /// audit log is kept (`--audit-days`, `--audit-entries`).
    pub rights: Vec<String>,
}

/// Folders of the run directory that tenants' sockets are in.
const SOCKETS: [&str; 3] = ["fifo", "vhost", "circuits"];

impl Settings {
    /// From the words after the program's name.
    ///
    /// # Errors
    /// What was wrong.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Settings, String> {
        let mut settings = Settings {
            run_dir: RUN_DIR.into(),
            state_dir: "/var/lib/bulkhead".into(),
            rootless: false,
            solver: "/usr/bin/z3".into(),
            rights: Vec::new(),
        };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let mut path = || {
                words
                    .next()
                    .map(PathBuf::from)
                    .ok_or(format!("{word} needs a path"))
            };
            match word.as_str() {
                "--run-dir" => settings.run_dir = path()?,
                "--state-dir" => settings.state_dir = path()?,
                "--solver" => settings.solver = path()?,
                "--rootless" => settings.rootless = true,
                "--owner" | "--readers" | "--prove-every" | "--audit-days" | "--audit-entries" => {
                    let number = words.next().filter(|number| number.parse::<u32>().is_ok());
                    let number = number.ok_or(format!("{word} needs a number"))?;
                    settings.rights.extend([word, number]);
                }
                _ => {
                    return Err(format!(
                        "{word:?} is not known; the keeper starts this program"
                    ));
                }
            }
        }
        Ok(settings)
    }

    /// The first of this instance's uids; further instances on one host, told apart by
    /// their run directory, have ranges of their own.
    pub fn first_uid(&self) -> u32 {
        if self.run_dir == Path::new(RUN_DIR) {
            return FIRST_UID;
        }
        // FNV-1a: only to spread.
        let hash = self
            .run_dir
            .as_os_str()
            .as_encoded_bytes()
            .iter()
            .fold(0x811c_9dc5_u32, |hash, byte| {
                (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
            });
        FIRST_UID + RANGE * (1 + hash % RANGES)
    }

    /// Makes the directories below the run directory.
    ///
    /// # Errors
    /// What the operating system refused.
    pub fn prepare(&self) -> std::io::Result<()> {
        for kind in SOCKETS {
            let folder = self.run_dir.join(kind);
            std::fs::create_dir_all(&folder)?;
            // Others may look for their own socket, whose own mode says who connects.
            chmod(&folder, Mode::from_raw_mode(0o711))?;
        }
        Ok(chmod(&self.run_dir, Mode::from_raw_mode(0o755))?)
    }

    /// Where the API listens.
    pub fn api_path(&self) -> PathBuf {
        self.run_dir.join("api.sock")
    }

    /// Listens for clients of the API: everybody may connect, the controller asks the
    /// kernel who they are.
    ///
    /// # Errors
    /// What the operating system refused.
    pub fn listen_for_api(&self) -> std::io::Result<OwnedFd> {
        let path = self.api_path();
        // The keeper's lock says that no other instance is alive here.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(&socket, &SocketAddrUnix::new(&path)?)?;
        chmod(&path, Mode::from_raw_mode(0o666))?;
        // Nobody sends one that the controller, or whoever closes this, would wait for. Before Linux 6.16 there
        // is no way to have none sent.
        if guard!("api-descriptors") {
            let _ = notify::refuse_descriptors(socket.as_fd());
        }
        listen(&socket, 128)?;
        Ok(socket)
    }

    /// Opens the state directory for the controller, which is to own it and its own
    /// files in it. A folder that somebody else may write to is refused: what lies in
    /// it would be taken for ours.
    ///
    /// # Errors
    /// What is wrong with the folder, or what the operating system refused.
    pub fn open_state(&self, uid: u32) -> std::io::Result<OwnedFd> {
        std::fs::create_dir_all(&self.state_dir)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = open(&self.state_dir, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::LOOP | Errno::NOTDIR => {
                std::io::Error::other("not a folder itself (symbolic links are not followed)")
            }
            errno => errno.into(),
        })?;
        if !self.rootless {
            let found = fstat(&folder)?;
            let is_ours = [0, uid].contains(&found.st_uid);
            let is_closed = found.st_mode & 0o002 == 0
                && (found.st_mode & 0o020 == 0 || [0, uid].contains(&found.st_gid));
            if guard!("state-folder") && !(is_ours && is_closed) {
                return Err(std::io::Error::other(format!(
                    "the folder belongs to uid {}, mode {:o}: it must belong to root or to the controller (uid {uid}) and be writable by nobody else; correct that if it is Bulkhead's, or give --state-dir a folder of its own",
                    found.st_uid,
                    found.st_mode & 0o7777
                )));
            }
            let (user, group) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)));
            for file in STATE_FILES {
                match chownat(&folder, file, user, group, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            fchown(&folder, user, group)?;
        }
        fchmod(&folder, Mode::from_raw_mode(0o700))?;
        Ok(folder)
    }

    /// Removes what is in the run directory by this program's doing.
    pub fn clear(&self) {
        let _ = std::fs::remove_file(self.api_path());
        for kind in SOCKETS {
            let _ = std::fs::remove_dir_all(self.run_dir.join(kind));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_unknown_ones_refused() {
        let words = |line: &str| Settings::parse(line.split_whitespace().map(str::to_owned));
        let settings =
            words("--run-dir /r --state-dir /s --rootless --solver /z --readers 50").unwrap();
        assert_eq!(
            settings,
            Settings {
                run_dir: "/r".into(),
                state_dir: "/s".into(),
                rootless: true,
                solver: "/z".into(),
                rights: vec!["--readers".into(), "50".into()],
            }
        );
        assert!(words("--run-dir").is_err());
        assert!(words("--what").is_err());
        assert!(words("--owner root").is_err());
    }

    #[test]
    fn each_instance_has_uids_of_its_own() {
        let first = |dir: &str| {
            Settings {
                run_dir: dir.into(),
                state_dir: "/s".into(),
                rootless: false,
                solver: PathBuf::new(),
                rights: Vec::new(),
            }
            .first_uid()
        };
        assert_eq!(first("/run/bulkhead"), FIRST_UID);
        // Below systemd's foreign uids, and far below the sign bit.
        const { assert!(FIRST_UID + RANGE * (RANGES + 1) < 0x7ffe_0000) };
        assert_ne!(first("/tmp/a/run"), first("/tmp/b/run"));
        assert!(first("/tmp/a/run") >= FIRST_UID + RANGE);
    }

    /// Who owns a path, and with which mode.
    fn owner(path: &Path) -> (u32, u32) {
        let found = rustix::fs::lstat(path).unwrap();
        (found.st_uid, found.st_mode & 0o7777)
    }

    fn state_in(folder: &Path) -> Settings {
        Settings {
            run_dir: folder.join("run"),
            state_dir: folder.join("state"),
            rootless: false,
            solver: PathBuf::new(),
            rights: Vec::new(),
        }
    }

    #[test]
    fn only_the_controllers_own_files_are_given_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let settings = state_in(folder.path());
        let state = &settings.state_dir;
        std::fs::create_dir(state).unwrap();
        let secret = folder.path().join("secret");
        for path in [&state.join("controller.redb"), &state.join("mine"), &secret] {
            std::fs::write(path, "").unwrap();
            chmod(path, Mode::from_raw_mode(0o640)).unwrap();
        }
        std::os::unix::fs::symlink(&secret, state.join("controller.attempts")).unwrap();
        for _ in 0..2 {
            settings.open_state(3_000_000).unwrap();
        }
        assert_eq!(owner(state), (3_000_000, 0o700));
        assert_eq!(owner(&state.join("controller.redb")), (3_000_000, 0o640));
        assert_eq!(owner(&state.join("mine")), (0, 0o640));
        assert_eq!(owner(&secret), (0, 0o640));
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_refused_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let settings = state_in(folder.path());
        let state = &settings.state_dir;
        std::fs::create_dir(state).unwrap();
        for (uid, gid, mode) in [
            (0, 0, 0o777),
            (0, 0, 0o1777),
            (1234, 0, 0o700),
            (0, 5, 0o770),
        ] {
            rustix::fs::chown(state, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))).unwrap();
            chmod(state, Mode::from_raw_mode(mode)).unwrap();
            let refused = settings.open_state(3_000_000).unwrap_err().to_string();
            assert!(
                refused.contains(&format!("uid {uid}, mode {mode:o}")),
                "{refused}"
            );
            assert_eq!(owner(state), (uid, mode));
        }
        std::fs::remove_dir(state).unwrap();
        std::os::unix::fs::symlink(folder.path(), state).unwrap();
        assert!(settings.open_state(3_000_000).is_err());
    }
}
