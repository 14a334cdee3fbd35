//! Where this instance works.

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid, chmod, chownat, open};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The usual run directory.
const RUN_DIR: &str = "/run/bulkhead";
/// The first uid of the usual instance's range.
const FIRST_UID: u32 = 3_000_000;
/// uids of an instance.
const RANGE: u32 = 65_536;

/// The command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Sockets and marks.
    pub run_dir: PathBuf,
    /// The controller's files.
    pub state_dir: PathBuf,
    /// Inside a user namespace with one uid.
    pub rootless: bool,
    /// Words for the controller: who may change (`--owner UID`), who may look
    /// (`--readers GID`).
    pub rights: Vec<String>,
}

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
            rights: Vec::new(),
        };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let mut directory = || {
                words
                    .next()
                    .map(PathBuf::from)
                    .ok_or(format!("{word} needs a directory"))
            };
            match word.as_str() {
                "--run-dir" => settings.run_dir = directory()?,
                "--state-dir" => settings.state_dir = directory()?,
                "--rootless" => settings.rootless = true,
                "--owner" | "--readers" => {
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
        FIRST_UID + RANGE * (1 + hash % 1000)
    }

    /// Makes the directories below the run directory.
    ///
    /// # Errors
    /// What the operating system refused.
    pub fn prepare(&self) -> std::io::Result<()> {
        let fifos = self.run_dir.join("fifo");
        std::fs::create_dir_all(&fifos)?;
        // Others may look for their own socket, whose own mode says who connects.
        chmod(&self.run_dir, Mode::from_raw_mode(0o755))?;
        chmod(&fifos, Mode::from_raw_mode(0o711))?;
        Ok(())
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
        listen(&socket, 128)?;
        Ok(socket)
    }

    /// Opens the state directory for the controller, which is to own what is in it.
    ///
    /// # Errors
    /// What the operating system refused.
    pub fn open_state(&self, uid: u32) -> std::io::Result<OwnedFd> {
        std::fs::create_dir_all(&self.state_dir)?;
        if !self.rootless {
            let own = |path: &Path| {
                chownat(
                    CWD,
                    path,
                    Some(Uid::from_raw(uid)),
                    Some(Gid::from_raw(uid)),
                    AtFlags::SYMLINK_NOFOLLOW,
                )
            };
            own(&self.state_dir)?;
            for entry in std::fs::read_dir(&self.state_dir)? {
                own(&entry?.path())?;
            }
        }
        chmod(&self.state_dir, Mode::from_raw_mode(0o700))?;
        Ok(open(
            &self.state_dir,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?)
    }

    /// Removes what is in the run directory by this program's doing.
    pub fn clear(&self) {
        let _ = std::fs::remove_file(self.api_path());
        let _ = std::fs::remove_dir_all(self.run_dir.join("fifo"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_unknown_ones_refused() {
        let words = |line: &str| Settings::parse(line.split_whitespace().map(str::to_owned));
        let settings = words("--run-dir /r --state-dir /s --rootless --readers 50").unwrap();
        assert_eq!(
            settings,
            Settings {
                run_dir: "/r".into(),
                state_dir: "/s".into(),
                rootless: true,
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
                rights: Vec::new(),
            }
            .first_uid()
        };
        assert_eq!(first("/run/bulkhead"), 3_000_000);
        assert_ne!(first("/tmp/a/run"), first("/tmp/b/run"));
        assert!(first("/tmp/a/run") >= FIRST_UID + RANGE);
    }
}
