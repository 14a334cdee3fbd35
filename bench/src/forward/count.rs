//! Instructions and allocations of the switch's loop, by callgrind: what no other work on
//! the machine moves.

use super::inside::COUNTED;
use crate::Options;
use crate::results::Figure;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What was counted over the loop's steps.
pub struct Count {
    /// Instructions a packet.
    pub instructions: f64,
    /// Calls of the allocator a packet.
    pub allocations: f64,
    /// callgrind's file.
    profile: PathBuf,
}

impl Drop for Count {
    fn drop(&mut self) {
        if let Some(folder) = self.profile.parent() {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// What asks for memory or gives it back.
const ALLOCATOR: &[&str] = &[
    "malloc",
    "calloc",
    "realloc",
    "free",
    "posix_memalign",
    "aligned_alloc",
    "mmap",
    "munmap",
    "brk",
];

/// Runs `bench inside` with these words under callgrind. The least of [`COUNTS`]: what falls
/// due by the clock meanwhile, a step of a sweep, is no packet's.
pub fn count(words: &[&str]) -> Result<Count, String> {
    let mut least = once(words)?;
    for _ in 1..COUNTS {
        let again = once(words)?;
        if again.instructions < least.instructions {
            least = again;
        }
    }
    Ok(least)
}

fn once(words: &[&str]) -> Result<Count, String> {
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let folder = e2e::private_folder("bulkhead-count-")?;
    let profile = folder.join("callgrind.out");
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=callgrind", "--toggle-collect=*measured_steps*"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(this)
        .arg("inside")
        .args(words);
    let output =
        without_kernels_auxv(move || valgrind.output())?.map_err(|e| format!("valgrind: {e}"))?;
    let mut count = Count {
        instructions: 0.0,
        allocations: 0.0,
        profile,
    };
    let said = String::from_utf8_lossy(&output.stderr);
    // Not what valgrind says of itself and of system calls that it does not know.
    let said: Vec<&str> = said.lines().filter(|l| !l.starts_with("--")).collect();
    let said = said.join("\n");
    if !output.status.success() {
        return Err(format!("the loop under valgrind: {said}"));
    }
    let text = std::fs::read_to_string(&count.profile).map_err(|e| e.to_string())?;
    let total = text
        .lines()
        .find_map(|line| line.strip_prefix("totals:")?.trim().parse::<u64>().ok())
        .filter(|n| *n > 0)
        .ok_or_else(|| format!("callgrind counted nothing: {said}"))?;
    let calls = calls(&text);
    let allocator = ALLOCATOR.iter().filter_map(|name| calls.get(name));
    count.instructions = total as f64 / f64::from(COUNTED);
    count.allocations = allocator.sum::<u64>() as f64 / f64::from(COUNTED);
    Ok(count)
}

/// Runs it where the kernel does not tell a process its auxiliary vector: what it tells is
/// valgrind's own, with the address of a vDSO that the program under valgrind has not. It
/// reads /proc/self/auxv instead, for which valgrind stands in.
fn without_kernels_auxv<T: Send>(run: impl FnOnce() -> T + Send) -> Result<T, String> {
    /// linux/prctl.h
    const PR_GET_AUXV: u64 = 0x4155_5856;
    const PRCTL: i64 = 157;
    let filter = || -> Result<BpfProgram, seccompiler::Error> {
        let asks =
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, PR_GET_AUXV)?;
        let rule = SeccompRule::new(vec![asks])?;
        let refuse = SeccompAction::Errno(rustix::io::Errno::INVAL.raw_os_error().unsigned_abs());
        let filter = SeccompFilter::new(
            [(PRCTL, vec![rule])].into(),
            SeccompAction::Allow,
            refuse,
            TargetArch::x86_64,
        )?;
        Ok(filter.try_into()?)
    };
    // A filter is its thread's and inherited; this thread ends.
    std::thread::scope(|scope| {
        let ran = scope.spawn(|| {
            let filter = filter().map_err(|e| e.to_string())?;
            seccompiler::apply_filter(&filter).map_err(|e| e.to_string())?;
            Ok(run())
        });
        ran.join().map_err(|_| "it panicked".to_owned())?
    })
}

/// How often each function was called, of callgrind's own format: names are written out
/// once, `(7) malloc`, and then `(7)`; `calls=` follows the name of who is called.
fn calls(text: &str) -> BTreeMap<&str, u64> {
    let mut names = BTreeMap::new();
    let mut calls = BTreeMap::new();
    let mut called = "";
    for line in text.lines() {
        let (key, value) = line.split_once('=').unwrap_or_default();
        match key {
            "fn" | "cfn" => {
                let (number, name) = value.split_once(' ').unwrap_or((value, ""));
                if !name.is_empty() {
                    names.insert(number, name);
                }
                if key == "cfn" {
                    called = names.get(number).copied().unwrap_or_default();
                }
            }
            "calls" => {
                let times = value.split(' ').next().and_then(|n| n.parse::<u64>().ok());
                // glibc's own name for what is called by another.
                let name = called.trim_start_matches("__libc_").trim_start_matches('_');
                *calls.entry(name).or_insert(0) += times.unwrap_or(0);
            }
            _ => {}
        }
    }
    calls
}

/// The two figures.
pub fn figures(options: &Options) -> Result<Vec<Figure>, String> {
    let words: &[&str] = if options.hindered { &["--hinder"] } else { &[] };
    let count = count(words)?;
    let note = format!(
        "the loop of bulkhead-switch in a process of its own, {COUNTED} packets of 1,000 connections in random order under {} rules, from one FIFO to another, in batches of its own size",
        super::site::RULES
    );
    Ok(vec![
        Figure::of("forward.instructions", "1/packet", &[count.instructions]).note(note),
        Figure::of("forward.allocations", "1/packet", &[count.allocations])
            .note("calls of the allocator, and of the kernel for memory"),
    ])
}

/// What `bench gate` takes.
#[derive(clap::Args)]
pub struct Gate {
    /// Print where the instructions go, the dearest functions first.
    #[arg(long)]
    profile: bool,
    /// What the counts are held against.
    #[arg(long, default_value = "bench/gate.toml")]
    limits: PathBuf,
}

/// A figure may rise by so much over what is committed.
const MARGIN: f64 = 1.03;

/// Counts, of which the least is taken.
const COUNTS: usize = 3;

/// Counts, and holds the counts against those committed.
///
/// # Errors
/// Nothing could be counted, or one is more than 3 % over what is committed.
pub fn gate(asked: &Gate) -> Result<(), String> {
    let count = count(&[])?;
    if asked.profile {
        print!("{}", annotated(&count.profile)?);
    }
    let committed = limits(&asked.limits)?;
    let mut over = Vec::new();
    for (id, value) in [
        ("forward.instructions", count.instructions),
        ("forward.allocations", count.allocations),
    ] {
        let limit = committed
            .get(id)
            .ok_or_else(|| format!("{}: no {id}", asked.limits.display()))?;
        println!("{id:<24} {value:>10.2} committed {limit:>10.2}");
        if value > limit * MARGIN {
            over.push(id);
        }
    }
    match over.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{} over what is committed by more than 3 %; where that is meant, say why and write the number into {}",
            over.join(", "),
            asked.limits.display()
        )),
    }
}

fn limits(file: &Path) -> Result<BTreeMap<String, f64>, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    toml::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))
}

fn annotated(profile: &Path) -> Result<String, String> {
    let output = Command::new("callgrind_annotate")
        .args(["--auto=no", "--threshold=98"])
        .arg(profile)
        .output()
        .map_err(|e| format!("callgrind_annotate: {e}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_name() {
        let text = "fn=(1) main\n0 5\ncfn=(2) malloc\ncalls=3 0 \n0 9\nfn=(3) other\ncfn=(2)\ncalls=4 0 \n0 9\ncfn=(4) __libc_free\ncalls=1 0 \n0 9\n";
        let calls = calls(text);
        assert_eq!((calls["malloc"], calls["free"]), (7, 1));
        assert!(!calls.contains_key("main"));
    }
}
