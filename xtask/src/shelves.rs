//! The structure's rules: which crate may lean on which, where `unsafe` may stand,
//! and that every guard has a mutant.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A folder of crates and the shelves its crates may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("core", &["core"]),
    ("host", &["core", "host"]),
    ("bin", &["core", "host"]),
    ("lib", &["core", "host", "lib"]),
    ("bench", &["core", "host", "bin", "lib", "tests"]),
    ("tests", &["core", "host", "lib"]),
    ("fuzz", &["core", "host"]),
    ("xtask", &[]),
];

/// Crates that see packets, or judge, and what they must never see, directly or through others.
const BLIND: &[(&str, &[&str])] = &[
    ("core-switch", &["core-spec", "core-policy", "host-store"]),
    ("core-fabric", &["core-spec", "core-policy", "host-store"]),
    ("bin-switch", PLAIN),
    ("bin-fabric", PLAIN),
    ("bin-auditor", PLAIN),
    ("bin-solver", PLAIN),
    ("bin-vhost", PLAIN),
    ("bin-operator", PLAIN),
    ("bin-proxy", PLAIN),
    ("bin-keeper", PLAIN),
    ("bin-supervisor", PLAIN),
    ("bin-verifier", NO_COMPILER),
];
/// Who proves what the compiler made shares nothing with it, nor with who asks.
const NO_COMPILER: &[&str] = &[
    "core-policy",
    "host-store",
    "tokio",
    "axum",
    "hyper",
    "redb",
];
const PLAIN: &[&str] = &[
    "core-spec",
    "core-policy",
    "host-store",
    "tokio",
    "axum",
    "hyper",
    "serde-saphyr",
    "redb",
];

/// What a pure crate may not name outside its tests.
const IMPURE: &[&str] = &[
    "std::fs",
    "std::net",
    "std::thread",
    "std::process",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::env",
    "rustix::",
    "libc::",
];

/// Where packets pass: folders and files whose code takes no lock, keeps nothing by
/// thread and prints nothing. `core/guard` does so in mutant builds alone.
const DATA_PATH: &[&str] = &[
    "core/ring/src",
    "core/image/src",
    "core/switch/src",
    "core/fabric/src",
    "core/flow/src",
    "core/rounds/src",
    "core/stream/src",
    "core/telemetry/src",
    "core/virtqueue/src",
    "core/wire/src",
    "host/port/src",
    "host/shm/src",
    "host/worker/src/clock.rs",
    "bin/fabric/src/ports.rs",
    "bin/fabric/src/tally.rs",
    "bin/fabric/src/trace.rs",
    "bin/fabric/src/wait.rs",
    "bin/fabric/src/worker.rs",
    "bin/switch/src/batch.rs",
    "bin/switch/src/capture.rs",
    "bin/switch/src/guest.rs",
    "bin/switch/src/handling.rs",
    "bin/switch/src/listing.rs",
    "bin/switch/src/outlet.rs",
    "bin/switch/src/parking.rs",
    "bin/switch/src/peers.rs",
    "bin/switch/src/ports.rs",
    "bin/switch/src/readiness.rs",
    "bin/switch/src/rules.rs",
    "bin/switch/src/telling.rs",
    "bin/switch/src/trace.rs",
    "bin/switch/src/turn.rs",
    "bin/switch/src/worker.rs",
];
const LOCKS: &[&str] = &[
    "Mutex",
    "RwLock",
    "Condvar",
    "Barrier",
    "OnceLock",
    "LazyLock",
    "sync::Once",
    "mpsc",
    "thread_local!",
    "thread::",
    "print!(",
    "println!(",
    "stdout()",
    "stderr()",
    "dbg!(",
];

/// Whose `println!` and `eprintln!` would end what nobody starts again, where the other
/// end of its standard error is gone or full.
const NEVER_PANICS: [&str; 2] = ["bin-keeper", "bin-supervisor"];

struct Member {
    name: String,
    folder: PathBuf,
    shelf: String,
    depends: BTreeSet<String>,
}

/// Checks every rule and reports all breaches together.
pub fn check(root: &Path) -> Result<(), String> {
    let members = members(root)?;
    let mut wrong = Vec::new();
    arrows(&members, &mut wrong);
    blindness(&members, &mut wrong);
    for member in &members {
        sources(root, member, &mut wrong);
    }
    for place in DATA_PATH {
        lock_free(root, &root.join(place), &mut wrong);
    }
    for shelf in ["core", "host", "bin", "lib"] {
        if !root.join(shelf).join("README.md").is_file() {
            wrong.push(format!(
                "{shelf}/README.md is missing: each shelf states its rule"
            ));
        }
    }
    crate::mutants::complete(root, &mut wrong);
    crate::fuzz::complete(root, &mut wrong);
    crate::promises::complete(root, &mut wrong);
    if wrong.is_empty() {
        println!("structure: {} crates, all rules hold", members.len());
        return Ok(());
    }
    Err(format!(
        "structure: {} breaches\n  {}",
        wrong.len(),
        wrong.join("\n  ")
    ))
}

fn members(root: &Path) -> Result<Vec<Member>, String> {
    let mut folders: Vec<PathBuf> = ["bench", "fuzz", "tests", "xtask"]
        .map(|f| root.join(f))
        .into();
    for shelf in ["core", "host", "bin", "lib", "tests"] {
        let entries = fs::read_dir(root.join(shelf)).map_err(|e| format!("{shelf}: {e}"))?;
        folders.extend(
            entries
                .flatten()
                .map(|e| e.path())
                .filter(|p| p.join("Cargo.toml").is_file()),
        );
    }
    let aliases = aliases(root)?;
    let mut members = Vec::new();
    for folder in folders {
        let manifest = read_manifest(&folder.join("Cargo.toml"))?;
        let name = manifest["package"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let shelf = folder
            .strip_prefix(root)
            .ok()
            .and_then(|p| p.components().next())
            .map(|c| c.as_os_str().to_string_lossy().into_owned())
            .unwrap_or_default();
        // Development dependencies are the tests' business; arrows are about what ships.
        let depends = manifest
            .get("dependencies")
            .and_then(toml::Value::as_table)
            .map(|table| {
                table
                    .keys()
                    .map(|k| aliases.get(k).unwrap_or(k).clone())
                    .collect()
            })
            .unwrap_or_default();
        members.push(Member {
            name,
            folder,
            shelf,
            depends,
        });
    }
    members.sort_by(|a, b| a.name.cmp(&b.name));
    members.dedup_by(|a, b| a.name == b.name);
    Ok(members)
}

fn aliases(root: &Path) -> Result<BTreeMap<String, String>, String> {
    let manifest = read_manifest(&root.join("Cargo.toml"))?;
    let table = manifest["workspace"]["dependencies"]
        .as_table()
        .cloned()
        .unwrap_or_default();
    Ok(table
        .into_iter()
        .filter_map(|(alias, value)| Some((alias, value.get("package")?.as_str()?.to_owned())))
        .collect())
}

fn read_manifest(path: &Path) -> Result<toml::Table, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    text.parse().map_err(|e| format!("{}: {e}", path.display()))
}

fn arrows(members: &[Member], wrong: &mut Vec<String>) {
    let shelf_of: BTreeMap<&str, &str> = members
        .iter()
        .map(|m| (m.name.as_str(), m.shelf.as_str()))
        .collect();
    for member in members {
        let Some((_, allowed)) = ARROWS.iter().find(|(shelf, _)| *shelf == member.shelf) else {
            continue;
        };
        for dependency in &member.depends {
            if let Some(shelf) = shelf_of.get(dependency.as_str())
                && !allowed.contains(shelf)
            {
                wrong.push(format!(
                    "{} ({}) leans on {dependency} ({shelf}): arrows point down",
                    member.name, member.shelf
                ));
            }
        }
    }
}

fn blindness(members: &[Member], wrong: &mut Vec<String>) {
    let by_name: BTreeMap<&str, &Member> = members.iter().map(|m| (m.name.as_str(), m)).collect();
    for (name, forbidden) in BLIND {
        let mut reached = BTreeSet::new();
        let mut open = vec![*name];
        while let Some(next) = open.pop() {
            if let Some(member) = by_name.get(next) {
                open.extend(
                    member
                        .depends
                        .iter()
                        .map(String::as_str)
                        .filter(|d| reached.insert(d.to_string())),
                );
            }
        }
        for dependency in forbidden.iter().filter(|d| reached.contains(**d)) {
            wrong.push(format!(
                "{name} reaches {dependency}, which it must never see"
            ));
        }
    }
}

fn sources(root: &Path, member: &Member, wrong: &mut Vec<String>) {
    for file in rust_files(&member.folder.join("src")) {
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        let shown = shown(root, &file);
        let test_file = is_test(&shown);
        let code = without_tests(&text);
        if !["host", "lib"].contains(&member.shelf.as_str()) && code.lines().any(names_unsafe) {
            wrong.push(format!("{shown}: unsafe outside host/ and lib/"));
        }
        if member.shelf == "core" && member.name != "core-guard" && !test_file {
            for line in code.lines().filter(|l| !l.trim_start().starts_with("//")) {
                if let Some(what) = IMPURE.iter().find(|what| line.contains(**what)) {
                    wrong.push(format!("{shown}: {what} in a pure crate"));
                }
            }
        }
        if NEVER_PANICS.contains(&member.name.as_str()) && code.contains("println!") {
            wrong.push(format!(
                "{shown}: println! and eprintln! panic where they cannot write; confine::say! does not"
            ));
        }
        let lines = text.lines().count();
        if lines > 1000 {
            wrong.push(format!("{shown}: {lines} lines; a file fits one sitting"));
        }
    }
}

/// A data-path folder or file that is gone is a breach: what replaced it is not looked at.
fn lock_free(root: &Path, place: &Path, wrong: &mut Vec<String>) {
    let files = if place.is_dir() {
        rust_files(place)
    } else {
        vec![place.to_path_buf()]
    };
    for file in files {
        let shown = shown(root, &file);
        if is_test(&shown) {
            continue;
        }
        match fs::read_to_string(&file) {
            Ok(text) => wrong.extend(
                locks(&text)
                    .into_iter()
                    .map(|what| format!("{shown}: {what} on the data path")),
            ),
            Err(error) => wrong.push(format!("{shown}: on the data path, but {error}")),
        }
    }
}

/// The words of [`LOCKS`] that a file's code names, outside comments and tests.
fn locks(text: &str) -> Vec<&'static str> {
    let code = without_tests(text).lines();
    let code: Vec<&str> = code
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect();
    let named = |word: &&&str| code.iter().any(|line| line.contains(**word));
    LOCKS.iter().filter(named).copied().collect()
}

fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default()
}

fn shown(root: &Path, file: &Path) -> String {
    let shown = file.strip_prefix(root).unwrap_or(file);
    shown.display().to_string()
}

fn is_test(shown: &str) -> bool {
    shown.ends_with("/tests.rs") || shown.contains("/tests/")
}

fn names_unsafe(line: &str) -> bool {
    let line = line.split("//").next().unwrap_or_default();
    let forms = ["{", "fn", "impl", "extern"];
    line.split("unsafe ")
        .skip(1)
        .any(|rest| forms.iter().any(|form| rest.starts_with(form)))
}

/// Every `.rs` file below a folder, in order.
pub fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_seen_in_code_and_not_in_comments_or_tests() {
        assert_eq!(locks("use std::sync::{Arc, Mutex};"), ["Mutex"]);
        assert_eq!(
            locks("thread_local! { static N: u8 = 0 }"),
            ["thread_local!"]
        );
        assert_eq!(
            locks("fn f() {\n    eprintln!(\"x\"); // said\n}"),
            ["println!("]
        );
        assert!(locks("// a Mutex would wait\nlet rx = ring.peek();").is_empty());
        assert!(
            locks("fn f() {}\n#[cfg(test)]\nmod tests {\n    use std::thread::spawn;\n}")
                .is_empty()
        );
    }

    #[test]
    fn a_data_path_that_moved_away_is_a_breach() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut wrong = Vec::new();
        lock_free(root, &root.join("src/gone.rs"), &mut wrong);
        assert!(
            matches!(&wrong[..], [one] if one.starts_with("src/gone.rs")),
            "{wrong:?}"
        );
        // This very file names every one of them, as words of a list.
        wrong.clear();
        lock_free(root, &root.join("src/shelves.rs"), &mut wrong);
        assert_eq!(wrong.len(), LOCKS.len(), "{wrong:?}");
    }
}
