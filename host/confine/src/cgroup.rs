//! Limits on memory, processes and processor share, by whichever cgroup hierarchy
//! this host has: the unified one (v2), or the memory, pids and cpu ones (v1).

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What a group may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory; above it the kernel kills inside the group.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u32>,
    /// Share of the processor against other groups, 1 to 10,000; 100 is usual.
    pub weight: Option<u32>,
}

/// Why there is no group.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// This host offers none to this process: limits cannot be kept.
    #[error("no cgroup to put limits on: {0}")]
    Unavailable(String),
    /// The name cannot be a directory.
    #[error("{0:?} cannot name a cgroup")]
    Name(String),
    /// A file of the group.
    #[error("{path}: {error}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
}

/// Where groups are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    /// Unified: this process's own group, to be delegated to it.
    Unified(PathBuf),
    /// Version 1: this process's own group in each controller's tree.
    Separate {
        /// memory controller.
        memory: Option<PathBuf>,
        /// pids controller.
        processes: Option<PathBuf>,
        /// cpu controller.
        processor: Option<PathBuf>,
    },
}

impl Hierarchy {
    /// Finds it from /proc/self.
    ///
    /// # Errors
    /// [`CgroupError::Unavailable`].
    pub fn find() -> Result<Hierarchy, CgroupError> {
        let read = |path: &str| {
            fs::read_to_string(path).map_err(|error| CgroupError::File {
                path: path.into(),
                error,
            })
        };
        let found = find(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?);
        match found {
            Some(Hierarchy::Unified(path)) => {
                let offered = fs::read_to_string(path.join("cgroup.controllers"));
                if offered.is_ok_and(|text| text.split_whitespace().any(|c| c == "memory")) {
                    return Ok(Hierarchy::Unified(path));
                }
                Err(CgroupError::Unavailable(
                    "the unified hierarchy offers no memory controller".into(),
                ))
            }
            Some(separate) => Ok(separate),
            None => Err(CgroupError::Unavailable(
                "no memory or pids controller is mounted".into(),
            )),
        }
    }

    /// For people: `v2` or `v1` and the controllers found.
    pub fn describe(&self) -> String {
        match self {
            Hierarchy::Unified(path) => {
                let controllers = fs::read_to_string(path.join("cgroup.controllers"));
                format!("v2: {}", controllers.unwrap_or_default().trim())
            }
            Hierarchy::Separate {
                memory,
                processes,
                processor,
            } => {
                let names = [(memory, "memory"), (processes, "pids"), (processor, "cpu")];
                let found: Vec<_> = names
                    .iter()
                    .filter(|(p, _)| p.is_some())
                    .map(|(_, n)| *n)
                    .collect();
                format!("v1: {}", found.join(" "))
            }
        }
    }
}

/// Pure part of [`Hierarchy::find`]: from the texts of mountinfo and cgroup.
fn find(mounts: &str, own: &str) -> Option<Hierarchy> {
    // mountinfo: id parent dev root mountpoint options... - type source superoptions
    let mounted = |wanted: &dyn Fn(&str, &str) -> bool| -> Option<(String, String)> {
        mounts.lines().find_map(|line| {
            let (front, back) = line.split_once(" - ")?;
            let mut back = back.split(' ');
            let (kind, options) = (back.next()?, back.nth(1)?);
            let mut front = front.split(' ').skip(3);
            let (root, place) = (front.next()?, front.next()?);
            wanted(kind, options).then(|| (root.to_owned(), place.to_owned()))
        })
    };
    // cgroup: number:controllers:path
    let own_path = |controller: &str| -> Option<&str> {
        own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (names, path) = (parts.next()?, parts.next()?);
            let matches = if controller.is_empty() {
                names.is_empty()
            } else {
                names.split(',').any(|name| name == controller)
            };
            matches.then_some(path)
        })
    };
    let place = |(root, mount): (String, String), own: &str| {
        // Under a cgroup namespace or a bind mount the mount's root is a prefix.
        let below = own.strip_prefix(root.trim_end_matches('/')).unwrap_or(own);
        PathBuf::from(mount).join(below.trim_start_matches('/'))
    };
    let separate = |controller: &str| -> Option<PathBuf> {
        let mount = mounted(&|kind, options| {
            kind == "cgroup" && options.split(',').any(|option| option == controller)
        })?;
        Some(place(mount, own_path(controller)?))
    };
    let (memory, processes) = (separate("memory"), separate("pids"));
    if memory.is_some() || processes.is_some() {
        return Some(Hierarchy::Separate {
            memory,
            processes,
            processor: separate("cpu"),
        });
    }
    let mount = mounted(&|kind, _| kind == "cgroup2")?;
    Some(Hierarchy::Unified(place(mount, own_path("")?)))
}

/// The directory under which all groups of Bulkhead stand, wherever it was started.
pub const PARENT: &str = "bulkhead";
/// Where this process and its siblings go, so that their group may be divided.
pub const LEAF: &str = "bulkhead-control";

/// A group. It stays when this value goes; remove it with [`Cgroup::remove`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// One directory (v2) or one per controller (v1).
    directories: Vec<PathBuf>,
}

impl Cgroup {
    /// Makes the group `name` (or takes the one that is there) and sets its limits.
    ///
    /// # Errors
    /// [`CgroupError`]; [`CgroupError::Unavailable`] where this host has nothing to
    /// make it from: the caller says so and goes on without the limit.
    pub fn create(
        hierarchy: &Hierarchy,
        name: &str,
        limits: &Limits,
    ) -> Result<Cgroup, CgroupError> {
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0', '\n']) {
            return Err(CgroupError::Name(name.to_owned()));
        }
        match hierarchy {
            Hierarchy::Unified(base) => unified(base, name, limits),
            Hierarchy::Separate {
                memory,
                processes,
                processor,
            } => {
                let mut directories = Vec::new();
                let mut make = |base: &Option<PathBuf>, file: &str, value: Option<u64>| {
                    let Some(base) = base else { return Ok(()) };
                    let directory = base.join(PARENT).join(name);
                    make_directory(&directory)?;
                    if let Some(value) = value {
                        write(&directory.join(file), &value.to_string())?;
                    }
                    directories.push(directory);
                    Ok(())
                };
                make(memory, "memory.limit_in_bytes", limits.memory)?;
                make(processes, "pids.max", limits.processes.map(u64::from))?;
                // Weight 100 is 1024 shares (systemd's mapping).
                let shares = limits
                    .weight
                    .map(|w| (u64::from(w) * 1024 / 100).clamp(2, 262_144));
                make(processor, "cpu.shares", shares)?;
                Ok(Cgroup { directories })
            }
        }
    }

    /// Those that are there, by whoever made them, with such names.
    pub fn existing(hierarchy: &Hierarchy, is_meant: impl Fn(&str) -> bool) -> Vec<Cgroup> {
        let bases: Vec<PathBuf> = match hierarchy {
            Hierarchy::Unified(base) => vec![base.join(PARENT)],
            Hierarchy::Separate {
                memory,
                processes,
                processor,
            } => {
                let all = [memory, processes, processor].into_iter().flatten();
                all.map(|base| base.join(PARENT)).collect()
            }
        };
        let listed = bases.iter().flat_map(fs::read_dir).flatten().flatten();
        let names = listed.filter(|it| it.file_type().is_ok_and(|kind| kind.is_dir()));
        let names: BTreeSet<_> = names.map(|it| it.file_name()).collect();
        let meant = names
            .iter()
            .filter(|name| name.to_str().is_some_and(&is_meant));
        let group = |name| Cgroup {
            directories: bases.iter().map(|base| base.join(name)).collect(),
        };
        meant.map(group).collect()
    }

    /// Moves a process in.
    ///
    /// # Errors
    /// [`CgroupError::File`].
    pub fn add(&self, pid: u32) -> Result<(), CgroupError> {
        for directory in &self.directories {
            write(&directory.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Raises its limit of memory to so many bytes; one that is higher stays.
    ///
    /// # Errors
    /// [`CgroupError::File`].
    pub fn allow_memory(&self, bytes: u64) -> Result<(), CgroupError> {
        for directory in &self.directories {
            for name in ["memory.max", "memory.limit_in_bytes"] {
                let path = directory.join(name);
                let now = fs::read_to_string(&path).ok();
                if now.is_some_and(|now| now.trim().parse().is_ok_and(|now: u64| now < bytes)) {
                    write(&path, &bytes.to_string())?;
                }
            }
        }
        Ok(())
    }

    /// Whether it bounds how many processes and threads are in it: of version 1 a host may have other
    /// controllers alone.
    pub fn bounds_processes(&self) -> bool {
        let most = |directory: &PathBuf| fs::read_to_string(directory.join("pids.max"));
        let mut most = self.directories.iter().flat_map(most);
        most.any(|most| most.trim().parse::<u64>().is_ok())
    }

    /// The processes in it, as this process sees them.
    pub fn processes(&self) -> Vec<u32> {
        let text = self
            .directories
            .first()
            .map(|d| fs::read_to_string(d.join("cgroup.procs")));
        let text = text.and_then(Result::ok).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Removes it. The processes in it must have been reaped.
    ///
    /// # Errors
    /// [`CgroupError::File`] with EBUSY while a process is left. Not there is fine.
    pub fn remove(&self) -> Result<(), CgroupError> {
        for directory in &self.directories {
            match fs::remove_dir(directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(CgroupError::File {
                        path: directory.clone(),
                        error,
                    });
                }
                _ => {}
            }
            // The last one takes the parent along; else it is not empty.
            let _ = directory.parent().map(fs::remove_dir);
        }
        Ok(())
    }
}

fn unified(base: &Path, name: &str, limits: &Limits) -> Result<Cgroup, CgroupError> {
    let parent = base.join(PARENT);
    make_directory(&parent)?;
    let controllers = "+memory +pids +cpu";
    let enable = |path: &Path| fs::write(path.join("cgroup.subtree_control"), controllers);
    if enable(base).is_err() {
        // A group with processes of its own cannot be divided: they move to a leaf.
        let leaf = base.join(LEAF);
        make_directory(&leaf)?;
        let own = fs::read_to_string(base.join("cgroup.procs")).unwrap_or_default();
        for pid in own.lines() {
            let _ = fs::write(leaf.join("cgroup.procs"), pid);
        }
        enable(base).map_err(|error| {
            CgroupError::Unavailable(format!("{} is not delegated: {error}", base.display()))
        })?;
    }
    enable(&parent).map_err(|error| CgroupError::File {
        path: parent.clone(),
        error,
    })?;
    let directory = parent.join(name);
    make_directory(&directory)?;
    if let Some(memory) = limits.memory {
        write(&directory.join("memory.max"), &memory.to_string())?;
        // Swap would make it slow instead of ended; not every kernel counts it.
        let _ = fs::write(directory.join("memory.swap.max"), "0");
    }
    if let Some(processes) = limits.processes {
        write(&directory.join("pids.max"), &processes.to_string())?;
    }
    if let Some(weight) = limits.weight {
        write(
            &directory.join("cpu.weight"),
            &weight.clamp(1, 10_000).to_string(),
        )?;
    }
    Ok(Cgroup {
        directories: vec![directory],
    })
}

fn make_directory(path: &Path) -> Result<(), CgroupError> {
    fs::create_dir_all(path).map_err(|error| CgroupError::File {
        path: path.to_owned(),
        error,
    })
}

fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    fs::write(path, value).map_err(|error| CgroupError::File {
        path: path.to_owned(),
        error,
    })
}

#[cfg(test)]
mod tests;
