//! Mutants: every `guard!("name")` in the sources is named in `tests/mutants.d`
//! with a test that must fail when the guard is taken out.
//!
//! A line there reads `guard-name | arguments of cargo test`. One build with
//! `--cfg mutants` holds all of them; `BULKHEAD_MUTANT` picks the one to take out.
//! Red is a test that says it failed. A build that breaks, a test that ends without a
//! verdict or does not end shows nothing of the guard, and is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// One run of one test, which is built before, takes no longer.
const LIMIT: Duration = Duration::from_secs(300);

/// What a run of a test shows.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// It ran and held.
    Green,
    /// It ran and failed, as a test does.
    Red,
    /// Nothing, for this reason.
    Nothing(&'static str),
}

/// Runs each mutant's test without the guard and expects it red, and once with
/// all guards in place and expects it green.
pub fn run(root: &Path, only: Option<&str>) -> Result<(), String> {
    let listed = listed(root)?;
    let chosen: Vec<_> = listed
        .iter()
        .filter(|(name, _)| only.is_none_or(|o| name.contains(o)))
        .collect();
    let tests: BTreeSet<&String> = chosen.iter().flat_map(|(_, tests)| tests.iter()).collect();
    println!("mutants: {} guards, {} tests", chosen.len(), tests.len());
    build_programs(root)?;
    let (mut survived, mut unclear) = (Vec::new(), Vec::new());
    let mut unfit = BTreeSet::new();
    for test in tests {
        build_test(root, test)?;
        let why = match run_test(root, test, None)? {
            Verdict::Green => continue,
            Verdict::Red => "is red with every guard in place",
            Verdict::Nothing(why) => why,
        };
        println!("  `cargo test {test}` {why}");
        unclear.push(format!("`cargo test {test}` {why}"));
        unfit.insert(test);
    }
    for (name, tests) in chosen {
        let mut killed = false;
        for test in tests.iter().filter(|test| !unfit.contains(test)) {
            match run_test(root, test, Some(name))? {
                Verdict::Green => {}
                Verdict::Red => killed = true,
                Verdict::Nothing(why) => {
                    unclear.push(format!("without {name} `cargo test {test}` {why}"));
                }
            }
        }
        println!("  {} {name}", if killed { "red   " } else { "GREEN " });
        if !killed {
            survived.push(name.clone());
        }
    }
    if !unclear.is_empty() {
        return Err(format!("mutants: {}", unclear.join("; ")));
    }
    if survived.is_empty() {
        return Ok(());
    }
    Err(format!("mutants: no test misses {}", survived.join(", ")))
}

/// Guards without a mutant and mutants without a guard are breaches of structure.
pub fn complete(root: &Path, wrong: &mut Vec<String>) {
    let listed = match listed(root) {
        Ok(listed) => listed,
        Err(message) => return wrong.push(message),
    };
    let mut used = BTreeSet::new();
    for name in names(root) {
        if used.contains(&name) {
            // A test that misses one of them would speak for the others.
            wrong.push(format!("guard \"{name}\" stands at two places"));
        }
        used.insert(name);
    }
    for name in used.difference(&listed.keys().cloned().collect()) {
        wrong.push(format!("guard \"{name}\" has no line in tests/mutants.d"));
    }
    let fuzzed = match crate::fuzz::listed(root) {
        Ok(fuzzed) => fuzzed,
        Err(message) => return wrong.push(message),
    };
    for (name, _) in fuzzed.iter().filter(|(name, _)| !used.contains(name)) {
        wrong.push(format!(
            "fuzz/mutants.txt names \"{name}\", which no source guards"
        ));
    }
    for name in listed.keys().filter(|name| !used.contains(*name)) {
        wrong.push(format!(
            "tests/mutants.d names \"{name}\", which no source guards"
        ));
    }
}

pub fn listed(root: &Path) -> Result<BTreeMap<String, Vec<String>>, String> {
    let folder = root.join("tests/mutants.d");
    let mut listed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in fs::read_dir(&folder)
        .map_err(|e| format!("{}: {e}", folder.display()))?
        .flatten()
    {
        let text = fs::read_to_string(entry.path()).map_err(|e| e.to_string())?;
        for line in text.lines().filter(|l| !l.trim().is_empty()) {
            let (name, test) = line
                .split_once('|')
                .ok_or_else(|| format!("{}: no `|` in {line:?}", entry.path().display()))?;
            let test = test.trim().trim_start_matches("cargo test ").to_owned();
            listed.entry(name.trim().to_owned()).or_default().push(test);
        }
    }
    Ok(listed)
}

/// The names of all guards, as often as they stand in the sources.
fn names(root: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for shelf in ["core", "host", "bin"] {
        for file in crate::shelves::rust_files(&root.join(shelf)) {
            if file.starts_with(root.join("core/guard")) {
                continue;
            }
            let text = fs::read_to_string(&file).unwrap_or_default();
            for part in text.split("guard!(\"").skip(1) {
                names.extend(part.split('"').next().map(str::to_owned));
            }
        }
    }
    names
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command
        .current_dir(root)
        .env("RUSTFLAGS", "--cfg mutants -C target-feature=+crt-static")
        .env("CARGO_TARGET_DIR", root.join("target/mutants"))
        .stdin(Stdio::null());
    command
}

fn build_programs(root: &Path) -> Result<(), String> {
    let status = cargo(root)
        .args(["build", "--locked", "--workspace", "--bins"])
        .status()
        .map_err(|e| format!("cargo: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err("mutants: the build with --cfg mutants failed".into())
    }
}

fn test_command(root: &Path, before: &[&str], test: &str) -> Command {
    let mut command = cargo(root);
    command
        .args(["test", "--locked", "--quiet"])
        .args(before)
        .args(test.split_whitespace())
        .env(
            "BULKHEAD_BIN_DIR",
            root.join("target/mutants/x86_64-unknown-linux-gnu/debug"),
        );
    command
}

fn build_test(root: &Path, test: &str) -> Result<(), String> {
    let status = test_command(root, &["--no-run"], test)
        .status()
        .map_err(|e| format!("cargo: {e}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("mutants: `cargo test {test}` does not build")),
    }
}

fn run_test(root: &Path, test: &str, without: Option<&str>) -> Result<Verdict, String> {
    let mut command = test_command(root, &[], test);
    if let Some(name) = without {
        command.env("BULKHEAD_MUTANT", name);
    }
    bounded(&mut command, LIMIT)
}

/// Runs a command that tests, in a process group of its own, and ends that after `limit`.
fn bounded(command: &mut Command, limit: Duration) -> Result<Verdict, String> {
    // Not a pipe: what a test left running would keep that open for ever.
    let mut said = nameless_file().map_err(|e| format!("a temporary file: {e}"))?;
    let mut child = command
        .process_group(0)
        .stdout(said.try_clone().map_err(|e| e.to_string())?)
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| format!("cargo: {e}"))?;
    let end = Instant::now() + limit;
    let status = loop {
        match child.try_wait().map_err(|e| format!("cargo: {e}"))? {
            Some(status) => break Some(status),
            None if Instant::now() >= end => break None,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let Some(status) = status else {
        let group = format!("-{}", child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = child.wait();
        return Ok(Verdict::Nothing("does not end"));
    };
    let mut text = Vec::new();
    said.rewind()
        .and_then(|()| said.read_to_end(&mut text))
        .map_err(|e| format!("a temporary file: {e}"))?;
    Ok(verdict(status.success(), &String::from_utf8_lossy(&text)))
}

fn nameless_file() -> std::io::Result<fs::File> {
    let path = std::env::temp_dir().join(format!("bulkhead-mutant-{}", std::process::id()));
    let file = fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// What the exit of a test and its lines say, whatever its harness.
fn verdict(succeeded: bool, said: &str) -> Verdict {
    let results: Vec<&str> = said
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("test result: "))
        .collect();
    let failed = |line: &&str| line.starts_with("FAILED.") && !line.contains(" 0 failed");
    let passed = |line: &&str| line.starts_with("ok.") && !line.contains(" 0 passed");
    if !succeeded && results.iter().any(failed) {
        Verdict::Red
    } else if !succeeded {
        Verdict::Nothing("ends without saying which test failed")
    } else if results.iter().any(passed) {
        Verdict::Green
    } else {
        Verdict::Nothing("runs no test")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn red_is_a_test_that_says_it_failed() {
        let red = "running 1 test\ntest result: FAILED. 0 passed; 1 failed; 0 ignored";
        assert_eq!(verdict(false, red), Verdict::Red);
        let green = "test result: ok. 0 passed; 0 failed\n\ntest result: ok. 2 passed; 0 failed";
        assert_eq!(verdict(true, green), Verdict::Green);
    }

    #[test]
    fn a_build_that_breaks_a_crash_and_no_test_at_all_show_nothing() {
        let nothing = |succeeded, said| {
            assert!(
                matches!(verdict(succeeded, said), Verdict::Nothing(_)),
                "{said}"
            );
        };
        nothing(false, "");
        nothing(false, "running 1 test");
        // Another test binary's success beside a crash.
        nothing(false, "test result: ok. 3 passed; 0 failed");
        nothing(true, "test result: ok. 0 passed; 0 failed; 9 filtered out");
        nothing(true, "");
    }

    #[test]
    fn what_does_not_end_is_ended_with_all_it_started() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "sleep 1000 & sleep 1000; echo 'test result: FAILED. 1 failed'",
        ]);
        let said = bounded(&mut command, Duration::from_millis(200));
        assert_eq!(said, Ok(Verdict::Nothing("does not end")));
    }
}
