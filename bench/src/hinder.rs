//! The benches' self-check: the programs under test are stopped three quarters of the
//! time, and every figure must be worse than without.

use crate::results::{Figure, Reach};
use crate::{Bench, Options};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the programs stand still, and how long they may go on.
const STOPPED: Duration = Duration::from_millis(300);
const GOES: Duration = Duration::from_millis(100);
/// A figure is worse by at least this part of itself.
const WORSE: f64 = 0.1;

/// Stops the programs below this process again and again, until dropped.
pub struct Hinder {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hinder {
    fn start() -> Hinder {
        let over = Arc::new(AtomicBool::new(false));
        let ended = over.clone();
        let thread = std::thread::spawn(move || {
            while !ended.load(Relaxed) {
                let programs = programs();
                for pid in &programs {
                    let _ = kill_process(*pid, Signal::STOP);
                }
                std::thread::sleep(STOPPED);
                for pid in &programs {
                    let _ = kill_process(*pid, Signal::CONT);
                }
                std::thread::sleep(GOES);
            }
        });
        Hinder {
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for Hinder {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Bulkhead's own programs among this process's descendants.
fn programs() -> Vec<Pid> {
    let mut parents = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<u32>().ok())
        else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        parents.extend(parent.map(|parent: u32| (pid, parent)));
    }
    let mut below = BTreeSet::from([std::process::id()]);
    loop {
        let more: Vec<u32> = parents
            .iter()
            .filter(|(pid, parent)| below.contains(parent) && !below.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            break;
        }
        below.extend(more);
    }
    let program = |pid: &u32| {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let name = exe.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    // Programs in endpoints of circuits are moved by the kernel alone: they stand for it.
    let circuits = |pid: &u32| parents.get(pid).is_some_and(|p| program(p) == "bulkhead");
    let ours = |pid: &u32| {
        let name = program(pid);
        name.starts_with("bulkhead-") && name != "bulkhead-bench" || circuits(pid)
    };
    below.remove(&std::process::id());
    below
        .into_iter()
        .filter(ours)
        .filter_map(|pid| Pid::from_raw(pid.cast_signed()))
        .collect()
}

/// Takes an interface's segmentation offloads away.
///
/// # Errors
/// ethtool refused.
pub fn without_offloads(namespace: &str, interface: &str) -> Result<(), String> {
    let said = std::process::Command::new("ip")
        .args([
            "netns", "exec", namespace, "ethtool", "-K", interface, "tso", "off", "gso", "off",
        ])
        .output()
        .map_err(|e| format!("ethtool: {e}"))?;
    let reason = || String::from_utf8_lossy(&said.stderr).into_owned();
    said.status.success().then_some(()).ok_or_else(reason)
}

/// Runs a bench for a moment as it is and hindered; whether each figure got worse.
///
/// # Errors
/// A run failed, or reach.toml does not know a figure.
pub fn check(bench: Bench, options: &Options, reach: &Path) -> Result<bool, String> {
    let reaches = crate::results::reaches(reach)?;
    let options = Options {
        smoke: true,
        ..options.clone()
    };
    let free = bench(&options)?;
    let hindered = {
        let options = Options {
            hindered: true,
            ..options
        };
        let _hinder = Hinder::start();
        bench(&options)?
    };
    let mut all = true;
    for figure in &free {
        let id = figure.id.as_str();
        // What nothing is asked of: peers alone, shapes that were tried.
        let told = ["peers.", "shape."].iter().any(|told| id.starts_with(told));
        if figure.is_missing() || told {
            println!("{id:<32} {}", figure.note);
            continue;
        }
        let reach = reaches
            .get(id)
            .ok_or_else(|| format!("reach.toml has no {id}"))?;
        let after = hindered
            .iter()
            .find(|f| f.id == id)
            .ok_or_else(|| format!("{id} is missing where it was hindered"))?;
        let worse = is_worse(reach, figure, after);
        println!(
            "{id:<32} {:>12.4} hindered {:>12.4} {:<8} {}",
            figure.value,
            after.value,
            figure.unit,
            if worse {
                "worse, as it must be"
            } else {
                "NOT WORSE"
            }
        );
        all &= worse;
    }
    Ok(all)
}

fn is_worse(reach: &Reach, free: &Figure, hindered: &Figure) -> bool {
    let margin = free.value.abs() * WORSE;
    match reach.at_least {
        Some(_) => hindered.value < free.value - margin,
        None => hindered.value > free.value + margin,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worse_is_less_of_what_shall_be_much_and_more_of_what_shall_be_little() {
        let much = Reach {
            at_least: Some(1.0),
            at_most: None,
        };
        let little = Reach {
            at_least: None,
            at_most: Some(1.0),
        };
        let of = |value: f64| Figure::of("", "", &[value]);
        assert!(is_worse(&much, &of(1.0), &of(0.8)) && !is_worse(&much, &of(1.0), &of(0.95)));
        assert!(is_worse(&little, &of(0.0), &of(1.0)) && !is_worse(&little, &of(1.0), &of(1.0)));
    }
}
