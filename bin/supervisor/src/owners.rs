//! uids of operators: each owns its programs' user namespaces, so whoever has it can read these programs. They
//! outlive their operator, and this daemon. No uid is given to anybody as long as one of them is left.

use crate::errands::owners::{OWNERS, parsed, text_of};
use crate::errands::{Whose, send};
use crate::ports::announced::Announced;
use crate::supervisor::Supervisor;
use guard::guard;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Read, Result, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::Child;

/// Below the run directory: a host that starts anew has none of the programs, and not the file.
const FILE: &str = "operators.uids";
/// It is looked so often, ns, and who does not come back by then is given up.
const LOOK: u64 = 10_000_000_000;
const PATIENCE: u64 = 5_000_000_000;
/// How often it is asked whether who looks is back, ns.
const ASK: u64 = 20_000_000;

/// On whose account those are that look, and do not come back.
const LOOKERS: Whose = Whose::Uid(u32::MAX);

/// Who was an operator, or is.
#[derive(Debug, Default)]
pub struct Owners {
    path: PathBuf,
    /// All that may own programs.
    all: BTreeSet<u32>,
    /// Those of them that no operator has any more.
    gone: BTreeSet<u32>,
    /// Those of these of whom the last look found nobody: who is born while somebody looks may be missed once.
    clean: BTreeSet<u32>,
    look: Option<Look>,
    /// When it is looked next, ns.
    due: u64,
}

/// Somebody looks.
#[derive(Debug)]
struct Look {
    child: Child,
    out: File,
    asked: BTreeSet<u32>,
    until: u64,
}

impl Owners {
    /// Those of before, if there were any.
    ///
    /// # Errors
    /// The file cannot be read: whose programs may be left is not known then.
    pub fn recall(run_dir: &Path) -> Result<Owners> {
        let path = run_dir.join(FILE);
        let all = match std::fs::read_to_string(&path) {
            Ok(text) => parsed(&text).ok_or(ErrorKind::InvalidData)?,
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeSet::new(),
            Err(error) => return Err(error),
        };
        Ok(Owners {
            path,
            all,
            ..Owners::default()
        })
    }

    /// All that nobody else may have.
    pub fn all(&self) -> impl Iterator<Item = u32> + '_ {
        self.all.iter().copied()
    }

    /// An operator is to have it. It is on disk before.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn begins(&mut self, uid: u32) -> Result<()> {
        self.gone.remove(&uid);
        self.clean.remove(&uid);
        match self.all.insert(uid) {
            true => self.write().inspect_err(|_| {
                self.all.remove(&uid);
            }),
            false => Ok(()),
        }
    }

    /// No operator has it any more; whether it may own programs still.
    pub fn ends(&mut self, uid: u32, now: u64) -> bool {
        let owns = self.all.contains(&uid) && guard!("uid-owners");
        if owns && self.gone.insert(uid) {
            self.due = self.due.min(now);
        }
        owns
    }

    fn write(&self) -> Result<()> {
        let new = self.path.with_extension("new");
        std::fs::write(&new, text_of(&self.all))?;
        std::fs::rename(new, &self.path)
    }

    fn start(&self, until: u64) -> Result<Look> {
        let mut input = File::from(memfd_create("uids", MemfdFlags::CLOEXEC)?);
        input.write_all(text_of(&self.gone).as_bytes())?;
        input.rewind()?;
        // Nobody reads before the end: a pipe may be too small.
        let out = File::from(memfd_create("owners", MemfdFlags::CLOEXEC)?);
        let child = send(OWNERS, input.into(), out.try_clone()?.into())?;
        Ok(Look {
            child,
            out,
            asked: self.gone.clone(),
            until,
        })
    }

    /// Those that nobody is left of.
    fn came(&mut self, mut look: Look) -> Vec<u32> {
        let mut text = String::new();
        let said = look.out.rewind();
        let said = said.and_then(|()| look.out.read_to_string(&mut text));
        let Some(found) = said.ok().and_then(|_| parsed(&text)) else {
            return Vec::new();
        };
        let clean: BTreeSet<u32> = look.asked.difference(&found).copied().collect();
        let twice = |uid: &&u32| self.clean.contains(*uid) || !guard!("uid-twice");
        let free: Vec<u32> = clean.iter().filter(twice).copied().collect();
        self.clean = clean;
        for uid in &free {
            self.gone.remove(uid);
            self.clean.remove(uid);
            self.all.remove(uid);
        }
        // What the file has too many of is looked for once more.
        let _ = self.write();
        free
    }
}

impl Supervisor {
    /// A process has this uid no more: another may, unless it was an operator's, whose programs may be left.
    pub fn release_uid(&mut self, uid: u32) {
        let now = self.now();
        if !self.is_operators(uid) && !self.has_worker_of(uid) && !self.owners.ends(uid, now) {
            self.uids.release(uid);
        }
    }

    /// Those of before that have no operator now.
    pub fn adopt_owners(&mut self) {
        for home in self.compartments.values() {
            let Some(circuits) = &home.circuits else {
                continue;
            };
            // A supervisor of before may have noted neither.
            let noted = self.owners.begins(circuits.uid());
            let ports = home
                .ports
                .values()
                .filter_map(|port| port.circuits.as_ref());
            let all = ports.map(|it| Announced::note_owner(&it.path, circuits.uid()));
            if let Some(error) = [noted].into_iter().chain(all).find_map(Result::err) {
                confine::say!("supervisor: whose programs are is not noted: {error}");
            }
        }
        let all: Vec<u32> = self.owners.all().collect();
        for uid in all {
            self.uids.adopt(uid);
            self.release_uid(uid);
        }
    }

    /// Looks whose programs are all gone; when to go on, ns.
    pub fn look_for_owners(&mut self, now: u64) -> Option<u64> {
        if let Some(mut look) = self.owners.look.take() {
            match look.child.try_wait() {
                Ok(Some(status)) if status.success() => {
                    for uid in self.owners.came(look) {
                        self.uids.release(uid);
                    }
                }
                Ok(None) if now < look.until => {
                    self.owners.look = Some(look);
                    return Some(now + ASK);
                }
                _ => self.errands.gives_up(LOOKERS, look.child),
            }
            let soon = !self.owners.clean.is_empty();
            self.owners.due = now + if soon { ASK } else { LOOK };
        }
        // Those that were held up and do not end are some at most.
        if self.owners.gone.is_empty() || self.errands.is_full(LOOKERS) {
            return None;
        }
        if now < self.owners.due || self.is_ending {
            return Some(self.owners.due.max(now + ASK));
        }
        match self.owners.start(now + PATIENCE) {
            Ok(look) => self.owners.look = Some(look),
            Err(error) => {
                confine::say!("supervisor: nobody looks for operators' programs: {error}");
                self.owners.due = now + LOOK;
            }
        }
        Some(now + ASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_is_kept_until_nobody_is_left_over_a_restart_too() {
        let folder = tempfile::tempdir().unwrap();
        let mut owners = Owners::recall(folder.path()).unwrap();
        owners.begins(7).unwrap();
        owners.begins(8).unwrap();
        drop(owners);
        let mut owners = Owners::recall(folder.path()).unwrap();
        assert_eq!(owners.all().collect::<Vec<_>>(), [7, 8]);
        assert!(owners.ends(7, 5) && owners.ends(8, 5) && !owners.ends(9, 5));
        let looked = |found: &str, owners: &mut Owners| {
            let mut out = File::from(memfd_create("owners", MemfdFlags::CLOEXEC).unwrap());
            out.write_all(found.as_bytes()).unwrap();
            owners.came(Look {
                child: std::process::Command::new("true").spawn().unwrap(),
                out,
                asked: owners.gone.clone(),
                until: 0,
            })
        };
        // One look may miss who is born meanwhile: two in a row count.
        assert!(looked("7\n", &mut owners).is_empty());
        assert!(looked("7\n8\n", &mut owners).is_empty());
        assert!(looked("7\n", &mut owners).is_empty());
        assert_eq!(looked("7\n", &mut owners), [8]);
        assert!(looked("7\n", &mut owners).is_empty());
        let owners = Owners::recall(folder.path()).unwrap();
        assert_eq!(owners.all().collect::<Vec<_>>(), [7]);
        std::fs::write(folder.path().join(FILE), "no\n").unwrap();
        assert!(Owners::recall(folder.path()).is_err());
    }
}
