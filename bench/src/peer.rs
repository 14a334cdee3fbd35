//! The distance of the two cores, and peers that are built here.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

const PLAIN_RING: &str = include_str!("../peers/plain_ring.c");

static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());

/// Removes what was built in this run.
pub fn remove_built() {
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    for folder in std::mem::take(&mut *built)
        .values()
        .filter_map(|p| p.parent())
    {
        let _ = std::fs::remove_dir_all(folder);
    }
}

/// Builds a program of C once in this run and gives its path.
pub fn built(name: &str, source: &str, flags: &[&str]) -> Result<PathBuf, String> {
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = built.get(name) {
        return Ok(program.clone());
    }
    let folder = e2e::private_folder("bulkhead-peer-")?;
    let program = folder.join(name);
    let text = folder.join(format!("{name}.c"));
    std::fs::write(&text, source).map_err(|e| e.to_string())?;
    let output = Command::new("gcc")
        .args(["-O3", "-march=native", "-Wno-deprecated-declarations", "-o"])
        .arg(&program)
        .arg(&text)
        .args(flags)
        .output()
        .map_err(|e| format!("peer missing: gcc: {e}"))?;
    if output.status.success() {
        built.insert(name.into(), program.clone());
        Ok(program)
    } else {
        let _ = std::fs::remove_dir_all(&folder);
        Err(format!(
            "peer missing: {}",
            String::from_utf8_lossy(&output.stderr)
        ))
    }
}

/// The plain C ring.
pub fn plain_ring() -> Result<PathBuf, String> {
    built("plain_ring", PLAIN_RING, &[])
}

/// Round trip of a cache line between cores 0 and 1, nanoseconds.
pub fn round_trip_ns() -> Result<f64, String> {
    first_number(&said(&["pong", "0.1"])?, "round trip ")
}

/// One run of the plain ring: millions of 64-byte records a second.
pub fn plain_ring_mrecs(seconds: f64) -> Result<f64, String> {
    first_number(
        &said(&["spsc", "64", "4096", "32", &seconds.to_string()])?,
        "huge=0  ",
    )
}

/// The same ring with longer records, as many as fit a mebibyte or two: Gbit/s that are copied in
/// on one core and out on another, by what glibc takes for the best on this processor or by what
/// it has beside that, whichever is faster.
pub fn plain_copy_gbit_s(bytes: usize, seconds: f64) -> Result<f64, String> {
    let slots = ((1 << 20) / bytes).max(2).to_string();
    let words = [
        "spsc",
        &bytes.to_string(),
        &slots,
        "1",
        &seconds.to_string(),
    ];
    let copied = |tunables: &str| {
        let gigabytes = first_number(&said_with(&words, tunables)?, "Mmsg/s  ")?;
        Ok::<_, String>(gigabytes * 8.0)
    };
    Ok(copied("")?.max(copied(BY_VECTORS)?))
}

/// No string moves, which some processors are slow at over pages that another core writes.
const BY_VECTORS: &str = "glibc.cpu.x86_rep_movsb_threshold=1073741824";

fn said(words: &[&str]) -> Result<String, String> {
    said_with(words, "")
}

fn said_with(words: &[&str], tunables: &str) -> Result<String, String> {
    let output = Command::new(plain_ring()?)
        .args(words)
        .env("GLIBC_TUNABLES", tunables)
        .output()
        .map_err(|e| e.to_string())?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn first_number(text: &str, after: &str) -> Result<f64, String> {
    text.split(after)
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| format!("no number after {after:?} in {text:?}"))
}

/// `near` up to 200 ns before and after, `far` above both times, else `mixed`.
pub fn cluster(before_ns: f64, after_ns: f64) -> &'static str {
    match (before_ns <= 200.0, after_ns <= 200.0) {
        (true, true) => "near",
        (false, false) => "far",
        _ => "mixed",
    }
}

/// The cluster of many: the one they all have, else `mixed`.
pub fn cluster_of(each: &[&'static str]) -> &'static str {
    match each.first() {
        Some(first) if each.iter().all(|c| c == first) => first,
        _ => "mixed",
    }
}

/// What came of the turns in which the cores were near, where most were; else of all. Of those that were not measured
/// in each turn the first ones count.
pub fn nearest(clusters: &[&'static str], all: &[f64]) -> Vec<f64> {
    let is_near = nearest_of(clusters) == "near";
    let turns = clusters.iter().zip(all);
    let counts = turns.filter(|(cluster, _)| !is_near || **cluster == "near");
    let counted: Vec<f64> = counts.map(|(_, value)| *value).collect();
    match counted.is_empty() {
        true => all.to_vec(),
        false => counted,
    }
}

/// The cluster of what [`nearest`] chooses.
pub fn nearest_of(clusters: &[&'static str]) -> &'static str {
    let near = clusters.iter().filter(|it| **it == "near").count();
    match 2 * near > clusters.len() {
        true => "near",
        false => cluster_of(clusters),
    }
}

/// CPU seconds that everything on this machine has had, kernel threads included: where
/// nothing else runs, what is measured and all that it causes.
pub fn busy_s() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let all: Vec<f64> = line.split_whitespace().flat_map(str::parse).collect();
    // user, nice, system; not idle and iowait; irq, softirq. Hundredths of a second.
    [0, 1, 2, 5, 6]
        .iter()
        .filter_map(|at| all.get(*at))
        .sum::<f64>()
        / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_turns_that_were_near_count_where_most_were() {
        let (near, far) = ("near", "far");
        let clusters = [near, far, near, near];
        assert_eq!(nearest(&clusters, &[1.0, 2.0, 3.0, 4.0]), [1.0, 3.0, 4.0]);
        assert_eq!(nearest_of(&clusters), near);
        // Of what is measured in the first turns alone.
        assert_eq!(nearest(&clusters, &[1.0, 2.0]), [1.0]);
        assert_eq!(nearest(&[far, near, near], &[5.0]), [5.0]);
        let clusters = [near, far, far, near];
        assert_eq!(nearest(&clusters, &[1.0, 2.0, 3.0, 4.0]).len(), 4);
        assert_eq!(nearest_of(&clusters), "mixed");
    }
}
