//! Mutants: every `guard!("name")` in the sources is named in `tests/mutants.d`
//! with a test that must fail when the guard is taken out.
//!
//! A line there reads `guard-name | arguments of cargo test`. One build with
//! `--cfg mutants` holds all of them; `BULKHEAD_MUTANT` picks the one to take out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

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
    for test in &tests {
        if !passes(root, test, None)? {
            return Err(format!(
                "mutants: `cargo test {test}` is red with every guard in place"
            ));
        }
    }
    let mut survived = Vec::new();
    for (name, tests) in chosen {
        let mut killed = false;
        for test in tests {
            killed |= !passes(root, test, Some(name))?;
        }
        println!("  {} {name}", if killed { "red   " } else { "GREEN " });
        if !killed {
            survived.push(name.clone());
        }
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
    let used = used(root);
    for name in used.difference(&listed.keys().cloned().collect()) {
        wrong.push(format!("guard \"{name}\" has no line in tests/mutants.d"));
    }
    for name in listed.keys().filter(|name| !used.contains(*name)) {
        wrong.push(format!(
            "tests/mutants.d names \"{name}\", which no source guards"
        ));
    }
}

fn listed(root: &Path) -> Result<BTreeMap<String, Vec<String>>, String> {
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

fn used(root: &Path) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for shelf in ["core", "host", "bin"] {
        for file in crate::shelves::rust_files(&root.join(shelf)) {
            if file.starts_with(root.join("core/guard")) {
                continue;
            }
            let text = fs::read_to_string(&file).unwrap_or_default();
            for part in text.split("guard!(\"").skip(1) {
                used.extend(part.split('"').next().map(str::to_owned));
            }
        }
    }
    used
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

fn passes(root: &Path, test: &str, without: Option<&str>) -> Result<bool, String> {
    let mut command = cargo(root);
    command
        .args(["test", "--locked", "--quiet"])
        .args(test.split_whitespace())
        .env(
            "BULKHEAD_BIN_DIR",
            root.join("target/mutants/x86_64-unknown-linux-gnu/debug"),
        );
    if let Some(name) = without {
        command.env("BULKHEAD_MUTANT", name);
    }
    let output = command.output().map_err(|e| format!("cargo: {e}"))?;
    if output.status.success() && without.is_none() {
        let text = String::from_utf8_lossy(&output.stdout);
        if !text
            .lines()
            .any(|l| l.starts_with("test result: ok.") && !l.contains(" 0 passed"))
        {
            return Err(format!("mutants: `cargo test {test}` runs no test"));
        }
    }
    Ok(output.status.success())
}
