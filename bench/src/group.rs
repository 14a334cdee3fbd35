//! A control group for what is measured: all memory of its processes is counted there to the page, the kernel's for
//! them (sockets, files, mappings, page tables) with it, and nobody else's on this machine.

use std::path::{Path, PathBuf};

/// Processes that are in it, and where they were before.
pub struct Group {
    folder: PathBuf,
    members: Vec<(u32, PathBuf)>,
}

impl Group {
    /// Makes one, and goes there with another process: what is started from now on is in it too.
    ///
    /// # Errors
    /// No controller of memory that we may use, in words.
    pub fn enter(other: u32) -> Result<Group, String> {
        let own = std::process::id();
        let (base, _) = place(own)?;
        let folder = base.join(format!("bulkhead-bench-{own}"));
        let say = |e: std::io::Error| format!("{}: {e}", folder.display());
        std::fs::create_dir(&folder).map_err(say)?;
        let mut group = Group {
            folder: folder.clone(),
            members: Vec::new(),
        };
        if !usage(&folder).is_some_and(|file| file.exists()) {
            return Err(format!("{}: it counts no memory", folder.display()));
        }
        for id in [own, other] {
            let (base, path) = place(id)?;
            moves(id, &folder)?;
            group.members.push((id, base.join(path)));
        }
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for (id, before) in &self.members {
            let _ = moves(*id, before);
        }
        // Who was started in it may be about to end.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

/// All memory of the group that this process is in, KiB.
pub fn memory_kib() -> Result<u64, String> {
    let (base, path) = place(std::process::id())?;
    let file = usage(&base.join(path)).ok_or("no group of memory")?;
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let bytes: u64 = text.trim().parse().map_err(|_| "no number".to_owned())?;
    Ok(bytes >> 10)
}

/// Where the groups that count memory are, and a process's own below.
fn place(id: u32) -> Result<(PathBuf, PathBuf), String> {
    let file = format!("/proc/{id}/cgroup");
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
    let groups = text.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        Some((parts.next()?, parts.next()?.trim_start_matches('/')))
    });
    let groups: Vec<_> = groups.collect();
    let old = groups
        .iter()
        .find(|(all, _)| all.split(',').any(|it| it == "memory"));
    let new = groups.iter().find(|(all, _)| all.is_empty());
    match (old, new) {
        (Some((_, path)), _) => Ok(("/sys/fs/cgroup/memory".into(), path.into())),
        (None, Some((_, path))) => Ok(("/sys/fs/cgroup".into(), path.into())),
        (None, None) => Err("no control groups".into()),
    }
}

fn usage(folder: &Path) -> Option<PathBuf> {
    let names = ["memory.usage_in_bytes", "memory.current"];
    names
        .iter()
        .map(|name| folder.join(name))
        .find(|file| file.exists())
}

fn moves(id: u32, to: &Path) -> Result<(), String> {
    let file = to.join("cgroup.procs");
    std::fs::write(&file, id.to_string()).map_err(|e| format!("{}: {e}", file.display()))
}
