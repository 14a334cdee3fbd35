//! The command line: two directories, a switch, and words for others.

use std::path::PathBuf;

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub struct Arguments {
    /// Sockets and the lock.
    pub run_dir: PathBuf,
    /// What survives a reboot.
    pub state_dir: PathBuf,
    /// Inside a user namespace of its own.
    pub rootless: bool,
    /// What is printed goes to `log` in the run directory, once that is ours.
    pub log: bool,
    /// Words for the controller, passed on as they are: who may change
    /// (`--owner UID`), who may look (`--readers GID`), how often what is installed
    /// is proved (`--prove-every SECONDS`), and how much of the audit log is kept
    /// (`--audit-days`, `--audit-entries`); for the supervisor, where z3 is (`--solver FILE`).
    pub rights: Vec<String>,
}

const USAGE: &str = "usage: bulkhead-keeper [--run-dir DIR] [--state-dir DIR] [--rootless] [--log] [--owner UID] [--readers GID] [--prove-every SECONDS] [--solver FILE] [--audit-days DAYS] [--audit-entries N]";

impl Arguments {
    /// From the words after the program's name.
    ///
    /// # Errors
    /// What was wrong, and the usage.
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let mut parsed = Arguments {
            run_dir: "/run/bulkhead".into(),
            state_dir: "/var/lib/bulkhead".into(),
            rootless: false,
            log: false,
            rights: Vec::new(),
        };
        let mut words = words;
        while let Some(word) = words.next() {
            let mut path = || match words.next() {
                Some(path) if path.starts_with('/') => Ok(PathBuf::from(path)),
                Some(path) => Err(format!("{word} {path}: must be an absolute path\n{USAGE}")),
                None => Err(format!("{word} needs a path\n{USAGE}")),
            };
            match word.as_str() {
                "--run-dir" => parsed.run_dir = path()?,
                "--state-dir" => parsed.state_dir = path()?,
                "--solver" => {
                    let file = path()?.to_string_lossy().into_owned();
                    parsed.rights.extend([word, file]);
                }
                "--rootless" => parsed.rootless = true,
                "--log" => parsed.log = true,
                "--owner" | "--readers" | "--prove-every" | "--audit-days" | "--audit-entries" => {
                    match words.next() {
                        Some(number) if number.parse::<u32>().is_ok() => {
                            parsed.rights.extend([word, number])
                        }
                        _ => return Err(format!("{word} needs a number\n{USAGE}")),
                    }
                }
                _ => return Err(format!("{word:?} is not known\n{USAGE}")),
            }
        }
        Ok(parsed)
    }

    /// The same for the supervisor.
    pub fn passed(&self) -> Vec<String> {
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        let mut words = vec!["--run-dir".to_owned(), text(&self.run_dir)];
        words.extend(["--state-dir".to_owned(), text(&self.state_dir)]);
        words.extend(self.rootless.then(|| "--rootless".to_owned()));
        words.extend(self.rights.iter().cloned());
        words
    }
}
