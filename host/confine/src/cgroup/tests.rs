use super::{Cgroup, CgroupError, Hierarchy, Limits, find};
use std::path::PathBuf;

#[test]
fn version_two_is_found_below_its_own_group() {
    let mounts = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    let own = "0::/system.slice/bulkhead.service\n";
    let path = PathBuf::from("/sys/fs/cgroup/system.slice/bulkhead.service");
    assert_eq!(find(mounts, own), Some(Hierarchy::Unified(path)));
}

#[test]
fn version_one_wins_where_it_holds_the_controllers() {
    let mounts = "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                  32 24 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                  33 24 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    let own = "4:memory:/a/b\n3:cpu,cpuacct:/\n0::/\n";
    assert_eq!(
        find(mounts, own),
        Some(Hierarchy::Separate {
            memory: Some("/sys/fs/cgroup/memory/a/b".into()),
            processes: None,
            processor: Some("/sys/fs/cgroup/cpu/".into()),
        })
    );
}

#[test]
fn a_mount_of_a_part_is_taken_off_the_path() {
    let mounts = "30 24 0:26 /box/1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    let path = PathBuf::from("/sys/fs/cgroup/inner");
    assert_eq!(
        find(mounts, "0::/box/1/inner\n"),
        Some(Hierarchy::Unified(path))
    );
    assert_eq!(find("", "0::/\n"), None);
}

#[test]
fn a_name_stays_a_name() {
    let nowhere = Hierarchy::Unified("/nonexistent".into());
    for name in ["", "..", "a/b", ".hidden"] {
        let refused = Cgroup::create(&nowhere, name, &Limits::default());
        assert!(matches!(refused, Err(CgroupError::Name(_))), "{name}");
    }
}

#[test]
fn what_is_there_is_found_by_its_name_in_every_tree() {
    let folder = tempfile::tempdir().unwrap();
    let base = |name: &str| folder.path().join(name);
    let hierarchy = Hierarchy::Separate {
        memory: Some(base("memory")),
        processes: Some(base("pids")),
        processor: None,
    };
    for path in [
        "memory/bulkhead/ours-1",
        "pids/bulkhead/ours-1",
        "pids/bulkhead/theirs",
    ] {
        std::fs::create_dir_all(base(path)).unwrap();
    }
    std::fs::write(base("pids/bulkhead/ours-2"), "").unwrap();
    let found = Cgroup::existing(&hierarchy, |name| name.starts_with("ours-"));
    let [ours] = found.as_slice() else {
        panic!("{found:?}");
    };
    ours.remove().unwrap();
    assert!(!base("memory/bulkhead").exists() && base("pids/bulkhead/theirs").exists());
    assert!(!base("pids/bulkhead/ours-1").exists());
}

#[test]
fn limits_hold_where_this_host_has_groups() {
    let Ok(hierarchy) = Hierarchy::find() else {
        return;
    };
    let name = format!("test-{}", std::process::id());
    let limits = Limits {
        memory: Some(64 << 20),
        processes: Some(4),
        weight: Some(50),
    };
    let group = match Cgroup::create(&hierarchy, &name, &limits) {
        Ok(group) => group,
        // Without privilege over the hierarchy there is nothing to try.
        Err(CgroupError::Unavailable(_) | CgroupError::File { .. }) => return,
        Err(error) => panic!("{error}"),
    };
    let mut child = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    let added = group.add(child.id());
    let inside = group.processes();
    let limit = || {
        let files = ["memory.max", "memory.limit_in_bytes"];
        let paths = group
            .directories
            .iter()
            .flat_map(|d| files.map(|f| d.join(f)));
        let texts = paths.filter_map(|path| std::fs::read_to_string(path).ok());
        texts.map(|text| text.trim().parse::<u64>().unwrap()).next()
    };
    if let Some(before) = limit() {
        assert_eq!(before, 64 << 20);
        for (allowed, then) in [(96, 96), (32, 96)] {
            group.allow_memory(allowed << 20).unwrap();
            assert_eq!(limit(), Some(then << 20));
        }
    }
    let bounds = group.bounds_processes();
    child.kill().unwrap();
    child.wait().unwrap();
    added.unwrap();
    let has = |d: &PathBuf| d.join("pids.max").exists();
    assert_eq!(bounds, group.directories.iter().any(has));
    assert_eq!(inside, [child.id()]);
    group.remove().unwrap();
    assert!(group.processes().is_empty());
}
