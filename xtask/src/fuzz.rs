//! `cargo xtask fuzz`: the targets of fuzz/, built as cargo-fuzz builds without a sanitizer,
//! by flags that the stable compiler has.
//!
//! Three ways: for some seconds each, which goes on from what earlier runs found (`make
//! fuzz`); a fixed number of runs from the seeds alone (`make test`); and
//! with a guard taken out, of those in fuzz/mutants.txt, to see that the target finds it.

mod seeds;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a target's edges and comparisons are counted by. No static binary: libFuzzer's own
/// library for C++ is a shared one.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";

/// A target, its runs in `make test`, and bytes of an input at most.
struct Target {
    name: &'static str,
    runs: u32,
    longest: u32,
}

const fn target(name: &'static str, runs: u32, longest: u32) -> Target {
    Target {
        name,
        runs,
        longest,
    }
}

const TARGETS: &[Target] = &[
    target("circuit", 10_000, 1024),
    target("command", 20_000, 2048),
    target("frames", 1_000, 2048),
    target("image", 1_000, 1024),
    target("restoration", 1_000, 1024),
    target("ring", 30_000, 1024),
    target("spec", 400, 4096),
    target("stream", 30_000, 1024),
    target("vhostuser", 30_000, 1024),
    target("virtqueue", 20_000, 1024),
    target("virtqueue_race", 300, 1024),
];
/// Seconds in which a target must have missed a guard that is taken out: most take one.
const MUTANT_SECONDS: u32 = 60;

/// How long, and from what.
#[derive(Clone, Copy)]
enum Bound {
    /// From the seeds alone, and nothing is kept.
    Runs(u32),
    /// The same.
    Within(u32),
    /// From what was found before, too, and what is found is kept.
    Seconds(u32),
}

/// A bounded run of every target: `make test`'s.
pub fn smoke(root: &Path) -> Result<(), String> {
    build(root, "fuzz", "")?;
    each(&chosen(None)?, |target| {
        let bound = Bound::Runs(target.runs);
        run(root, "fuzz", target, bound, None)
    })
}

/// Writes fuzz/seeds anew.
pub fn seed(root: &Path) -> Result<(), String> {
    seeds::write(root).map_err(|e| format!("fuzz/seeds: {e}"))
}

/// Each target, or one, for so many seconds.
pub fn fuzz(root: &Path, only: Option<&str>, seconds: u32) -> Result<(), String> {
    let chosen = chosen(only)?;
    build(root, "fuzz", "")?;
    each(&chosen, |target| {
        run(root, "fuzz", target, Bound::Seconds(seconds), None)
    })
}

/// Takes each guard of fuzz/mutants.txt out and expects that its target fails.
pub fn mutants(root: &Path, only: Option<&str>) -> Result<(), String> {
    build(root, "fuzz-mutants", " --cfg mutants")?;
    let mut survived = Vec::new();
    for (guard, name) in listed(root)? {
        let is_asked = |o: &str| guard.contains(o) || name == o;
        if !only.is_none_or(is_asked) {
            continue;
        }
        let target = TARGETS.iter().find(|target| target.name == name);
        let target = target.ok_or_else(|| format!("fuzz/mutants.txt: no target {name}"))?;
        let bound = Bound::Within(MUTANT_SECONDS);
        let found = run(root, "fuzz-mutants", target, bound, Some(&guard)).is_err();
        println!(
            "  {} {name} without {guard}",
            if found { "red  " } else { "GREEN" }
        );
        if !found {
            survived.push(guard);
        }
    }
    match survived.is_empty() {
        true => Ok(()),
        false => Err(format!("fuzz: no target misses {}", survived.join(", "))),
    }
}

/// Guards and the targets that miss them.
pub fn listed(root: &Path) -> Result<Vec<(String, String)>, String> {
    let path = root.join("fuzz/mutants.txt");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let pair = |line: &str| {
        let (guard, target) = line.split_once('|')?;
        Some((guard.trim().to_owned(), target.trim().to_owned()))
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| pair(line).ok_or_else(|| format!("{}: no `|` in {line:?}", path.display())))
        .collect()
}

/// What both workspaces depend on is of one version, and each target has its seeds.
pub fn complete(root: &Path, wrong: &mut Vec<String>) {
    let (ours, theirs) = match (locked(root), locked(&root.join("fuzz"))) {
        (Ok(ours), Ok(theirs)) => (ours, theirs),
        (Err(message), _) | (_, Err(message)) => return wrong.push(message),
    };
    for package in &theirs {
        let (name, _) = package;
        let is_known = ours.iter().any(|(known, _)| known == name);
        if is_known && !ours.contains(package) {
            wrong.push(format!(
                "fuzz/Cargo.lock has another {name} than Cargo.lock"
            ));
        }
    }
    for target in TARGETS {
        let folder = seeds(root, target);
        if fs::read_dir(&folder).map_or(0, Iterator::count) == 0 {
            wrong.push(format!("{}: no seeds", folder.display()));
        }
        let source = root.join(format!("fuzz/src/bin/{}.rs", target.name));
        if !source.is_file() {
            wrong.push(format!("{}: no such target", source.display()));
        }
    }
}

fn locked(folder: &Path) -> Result<Vec<(String, String)>, String> {
    let path = folder.join("Cargo.lock");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let lock: toml::Table = (text.parse()).map_err(|e| format!("{}: {e}", path.display()))?;
    let packages = lock.get("package").and_then(toml::Value::as_array);
    let word = |package: &toml::Value, key: &str| {
        let word = package.get(key).and_then(toml::Value::as_str);
        word.unwrap_or_default().to_owned()
    };
    let packages = packages.map(Vec::as_slice).unwrap_or_default();
    let both = |package| (word(package, "name"), word(package, "version"));
    Ok(packages.iter().map(both).collect())
}

fn chosen(only: Option<&str>) -> Result<Vec<&'static Target>, String> {
    let is_asked = |target: &&Target| only.is_none_or(|only| only == target.name);
    let chosen: Vec<_> = TARGETS.iter().filter(is_asked).collect();
    match chosen.is_empty() {
        true => Err("fuzz: no such target; fuzz/README.md lists them".into()),
        false => Ok(chosen),
    }
}

/// Goes on after a failure, and says at the end which failed.
fn each(
    targets: &[&Target],
    mut run: impl FnMut(&Target) -> Result<(), String>,
) -> Result<(), String> {
    let failed: Vec<String> = targets.iter().filter_map(|it| run(it).err()).collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(failed.join("\n")),
    }
}

fn build(root: &Path, folder: &str, more: &str) -> Result<(), String> {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "--bins", "--quiet"])
        .current_dir(root.join("fuzz"))
        .stdin(Stdio::null())
        .env("RUSTFLAGS", format!("{FLAGS}{more}"))
        .env("CARGO_TARGET_DIR", place(root, folder))
        .env_remove("CARGO_MANIFEST_DIR")
        .status()
        .map_err(|e| format!("cargo: {e}"))?;
    match status.success() {
        true => Ok(()),
        false => Err("fuzz: the targets do not build; what the compiler said is above (libFuzzer itself takes one of C++, which tools/setup test installs)".into()),
    }
}

/// Runs a target; what it wrote is shown where it failed.
fn run(
    root: &Path,
    folder: &str,
    target: &Target,
    bound: Bound,
    without: Option<&str>,
) -> Result<(), String> {
    let name = target.name;
    let place = place(root, folder);
    let found = place.join("found");
    fs::create_dir_all(&found).map_err(|e| format!("{}: {e}", found.display()))?;
    let program = place.join("x86_64-unknown-linux-gnu/release").join(name);
    let mut command = Command::new(program);
    command
        .current_dir(&found)
        .arg(format!("-max_len={}", target.longest))
        .arg(format!("-artifact_prefix={}/{name}-", found.display()))
        .args([
            "-seed=1",
            "-timeout=20",
            "-rss_limit_mb=1024",
            "-verbosity=1",
        ])
        .stdin(Stdio::null());
    if let Some(dictionary) = dictionary(root, target) {
        command.arg(format!("-dict={}", dictionary.display()));
    }
    match bound {
        Bound::Runs(n) | Bound::Within(n) => {
            let what = match bound {
                Bound::Runs(_) => "runs",
                _ => "max_total_time",
            };
            command.arg(format!("-{what}={n}"));
            command.arg(format!("-seed_inputs={}", inputs(&seeds(root, target))?));
        }
        Bound::Seconds(seconds) => {
            let corpus = place.join("corpus").join(name);
            fs::create_dir_all(&corpus).map_err(|e| format!("{}: {e}", corpus.display()))?;
            command.arg(format!("-max_total_time={seconds}"));
            command.arg(corpus).arg(seeds(root, target));
        }
    }
    if let Some(guard) = without {
        command.env("BULKHEAD_MUTANT", guard);
    }
    let output = command.output().map_err(|e| format!("{name}: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = |what: &str| said.lines().rev().find(|line| line.contains(what));
    if output.status.success() {
        println!(
            "  {name:<15} {}",
            last("DONE").or(last("Done")).unwrap_or_default()
        );
        return Ok(());
    }
    if without.is_none() {
        let lines: Vec<&str> = (said.lines())
            .filter(|line| !line.starts_with('#') && !line.contains("NEW_FUNC"))
            .collect();
        eprintln!("{}", lines.join("\n"));
    }
    Err(format!(
        "fuzz: {name} failed; its input is in {}, and `{name} FILE` there repeats it",
        found.display()
    ))
}

fn place(root: &Path, folder: &str) -> PathBuf {
    crate::steps::target(root).join(folder)
}

fn seeds(root: &Path, target: &Target) -> PathBuf {
    root.join("fuzz/seeds").join(target.name)
}

fn dictionary(root: &Path, target: &Target) -> Option<PathBuf> {
    let path = root.join(format!("fuzz/{}.dict", target.name));
    path.is_file().then_some(path)
}

/// The files of a folder, as libFuzzer takes them.
fn inputs(folder: &Path) -> Result<String, String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut paths: Vec<String> = entries
        .flatten()
        .map(|entry| entry.path().display().to_string())
        .collect();
    paths.sort();
    Ok(paths.join(","))
}
