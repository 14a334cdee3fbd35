//! The book: the pages of docs/ as HTML, by mdBook.

use std::path::Path;
use std::process::Command;

/// Builds docs/ into out/book, installing mdBook by its package name if it is missing.
pub fn build(root: &Path) -> Result<(), String> {
    if Command::new("mdbook").arg("--version").output().is_err() {
        run(
            root,
            &[
                "cargo",
                "install",
                "--locked",
                "mdbook",
                "--target",
                "x86_64-unknown-linux-gnu",
            ],
        )?;
    }
    run(
        root,
        &["mdbook", "build", "docs", "--dest-dir", "../out/book"],
    )
}

/// Every page that SUMMARY.md names exists, and every page in docs/ is named there.
pub fn pages(root: &Path) -> Result<(), String> {
    let summary = std::fs::read_to_string(root.join("docs/SUMMARY.md"))
        .map_err(|e| format!("docs/SUMMARY.md: {e}"))?;
    let named: Vec<&str> = summary
        .split("](")
        .skip(1)
        .filter_map(|p| p.split(')').next())
        .collect();
    let mut wrong: Vec<String> = named
        .iter()
        .filter(|page| !root.join("docs").join(page).is_file())
        .map(|page| format!("docs/SUMMARY.md names {page}, which is not there"))
        .collect();
    for folder in ["docs", "docs/decisions"] {
        for entry in std::fs::read_dir(root.join(folder))
            .map_err(|e| e.to_string())?
            .flatten()
        {
            let path = entry.path();
            let name = path
                .strip_prefix(root.join("docs"))
                .unwrap_or(&path)
                .display()
                .to_string();
            if name.ends_with(".md") && name != "SUMMARY.md" && !named.contains(&name.as_str()) {
                wrong.push(format!("docs/{name} is not in docs/SUMMARY.md"));
            }
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("\n"))
    }
}

fn run(root: &Path, words: &[&str]) -> Result<(), String> {
    let status = Command::new(words[0])
        .args(&words[1..])
        .current_dir(root)
        .status()
        .map_err(|e| format!("{}: {e}", words[0]))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{} failed", words.join(" ")))
    }
}
