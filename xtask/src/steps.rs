//! `cargo xtask test`: every step that must pass, in the order in which they fail
//! fastest, with its time.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const STATIC: &str = "-C target-feature=+crt-static";

/// What a step does: run cargo with these words and variables, or a function.
enum Work {
    Cargo(
        &'static [&'static str],
        &'static [(&'static str, &'static str)],
    ),
    Own(fn(&Path) -> Result<(), String>),
}

struct Step {
    name: &'static str,
    long: bool,
    /// It runs beside this step, which waits for the most part.
    beside: Option<&'static str>,
    work: Work,
}

const fn cargo(name: &'static str, words: &'static [&'static str]) -> Step {
    Step {
        name,
        long: false,
        beside: None,
        work: Work::Cargo(words, &[]),
    }
}

const UNIT: &str = "unit and property";
const END_TO_END: &str = "end to end";
const DEMO: &str = "demo";

const STEPS: &[Step] = &[
    cargo("format", &["fmt", "--all", "--check"]),
    Step {
        name: "structure",
        long: false,
        beside: None,
        work: Work::Own(crate::shelves::check),
    },
    Step {
        name: "pages",
        long: false,
        beside: None,
        work: Work::Own(crate::book::pages),
    },
    cargo(
        "clippy",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ],
    ),
    Step {
        name: "docs",
        long: false,
        beside: Some(END_TO_END),
        work: Work::Cargo(
            &["doc", "--workspace", "--no-deps", "--locked", "--quiet"],
            &[("RUSTDOCFLAGS", "-D warnings")],
        ),
    },
    // With the library for C, as both are installed.
    cargo(
        "programs",
        &[
            "build",
            "--release",
            "--locked",
            "--workspace",
            "--exclude",
            "lib-preload",
            "--exclude",
            "xtask",
            "--bins",
            "--lib",
            "--quiet",
        ],
    ),
    // Tests of one program start others from beside it, those of the library for C link it.
    cargo(
        "programs for tests",
        &[
            "build",
            "--locked",
            "--workspace",
            "--exclude",
            "lib-preload",
            "--exclude",
            "xtask",
            "--bins",
            "--lib",
            "--quiet",
        ],
    ),
    Step {
        name: "library to preload",
        long: false,
        beside: None,
        work: Work::Own(crate::preload::build),
    },
    Step {
        name: UNIT,
        long: false,
        beside: None,
        work: Work::Cargo(
            &[
                "test",
                "--workspace",
                "--exclude",
                "e2e",
                "--locked",
                "--quiet",
                "--no-fail-fast",
            ],
            &[],
        ),
    },
    Step {
        name: "model",
        long: false,
        beside: Some(UNIT),
        work: Work::Cargo(
            &[
                "test",
                "-p",
                "core-ring",
                "-p",
                "core-stream",
                "--profile",
                "loom",
                "--locked",
                "--quiet",
                "--test",
                "loom",
            ],
            &[
                ("RUSTFLAGS", "--cfg loom -C target-feature=+crt-static"),
                ("CARGO_TARGET_DIR", "target/loom"),
            ],
        ),
    },
    // It measures how long somebody hears nothing, and has the machine for itself.
    cargo(
        DEMO,
        &[
            "test",
            "-p",
            "e2e",
            "--locked",
            "--quiet",
            "--test",
            DEMO,
            "--",
            "--test-threads=1",
        ],
    ),
    Step {
        name: END_TO_END,
        long: false,
        beside: None,
        work: Work::Own(end_to_end),
    },
    Step {
        name: "bench smoke",
        long: false,
        beside: Some(END_TO_END),
        work: Work::Own(bench_smoke),
    },
    Step {
        name: "bench gate",
        long: false,
        beside: None,
        work: Work::Own(bench_gate),
    },
    Step {
        name: "fuzz smoke",
        long: false,
        beside: Some(END_TO_END),
        work: Work::Own(crate::fuzz::smoke),
    },
    Step {
        name: "CPython's suites",
        long: true,
        beside: None,
        work: Work::Cargo(
            &[
                "test",
                "-p",
                "e2e",
                "--locked",
                "--quiet",
                "--test",
                "circuits",
                "--",
                "--ignored",
                "cpython::",
            ],
            &[],
        ),
    },
    Step {
        name: "fuzz mutants",
        long: true,
        beside: None,
        work: Work::Own(|root| crate::fuzz::mutants(root, None)),
    },
    Step {
        name: "mutants",
        long: true,
        beside: None,
        work: Work::Own(|root| crate::mutants::run(root, None)),
    },
    Step {
        name: "book",
        long: true,
        beside: None,
        work: Work::Own(crate::book::build),
    },
];

/// Runs all steps (or those named), goes on after a failure, and says at the end
/// which failed.
pub fn test(root: &Path, full: bool, only: Option<&str>) -> Result<(), String> {
    let mut failed = Vec::new();
    let mut passed = 0;
    let mut times = Vec::new();
    for step in STEPS {
        let chosen = match only {
            Some(only) => step.name.contains(only),
            None => step.beside.is_none() && (full || !step.long),
        };
        if !chosen {
            continue;
        }
        println!("── {} ", step.name);
        let (start, before) = (Instant::now(), processors());
        let work = || match &step.work {
            Work::Cargo(words, variables) => run(root, words, variables),
            Work::Own(work) => work(root),
        };
        let (result, others) = match only {
            None => std::thread::scope(|scope| {
                let others = scope.spawn(|| beside(root, step.name));
                let own = work();
                let ended = || Err("what runs beside it panicked".to_owned());
                let none = |_| vec![(step.name, ended(), start.elapsed())];
                (own, others.join().unwrap_or_else(none))
            }),
            Some(_) => (work(), Vec::new()),
        };
        let own = (step.name, result, start.elapsed());
        let worked = processors() - before;
        for (name, result, time) in std::iter::once(own).chain(others) {
            // What runs beside it is in its time of processors, and says its own at its own end.
            let worked = match name == step.name {
                true => format!("{worked:>6} s"),
                false => String::new(),
            };
            times.push(format!(
                "{:>6.1} s {worked:>8} of processors  {name}",
                time.as_secs_f64()
            ));
            match result {
                Ok(()) => passed += 1,
                Err(message) => {
                    eprintln!("{message}");
                    failed.push(format!("{name}: {message}"));
                }
            }
        }
    }
    println!("\n{}", times.join("\n"));
    println!("{passed} passed, {} failed", failed.len());
    if failed.is_empty() {
        Ok(())
    } else {
        // Last, where who reads only a log's end finds it.
        let all = failed.join("\n");
        let all: Vec<String> = all.lines().map(|line| format!("failed: {line}")).collect();
        Err(all.join("\n"))
    }
}

/// Seconds of processors that all children which have ended took (proc_pid_stat(5), `cutime` and `cstime`).
fn processors() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which may have anything in it.
    let words = stat.rsplit(')').next().unwrap_or_default();
    let numbers = words.split_ascii_whitespace().skip(13).take(2);
    let ticks: u64 = numbers.filter_map(|word| word.parse::<u64>().ok()).sum();
    ticks / 100
}

/// What a step that ran beside the others said of its failure, in a few lines.
fn reasons(name: &str, said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let lines: Vec<&str> = said.lines().filter(|l| l.starts_with("failed: ")).collect();
    format!("{name} failed\n{}", lines.join("\n"))
}

/// Steps that wait for nobody, one after the other and behind those that are waited for; each says
/// at its end what it said.
fn beside(root: &Path, name: &str) -> Vec<(&'static str, Result<(), String>, Duration)> {
    let all = STEPS.iter().filter(|step| step.beside == Some(name));
    let each = all.map(|step| {
        let start = Instant::now();
        // By what runs: cargo has written the file anew meanwhile.
        let own = format!("/proc/{}/exe", std::process::id());
        let mut nice = Command::new("nice");
        nice.args(["-n", "10"]).arg(own);
        nice.args(["test", "--only", step.name]);
        let said = nice.current_dir(root).stdin(Stdio::null()).output();
        let result = match said {
            Ok(said) => {
                println!("{}", String::from_utf8_lossy(&said.stdout));
                eprintln!("{}", String::from_utf8_lossy(&said.stderr));
                let failed = || Err(reasons(step.name, &said.stderr));
                said.status.success().then_some(()).map_or_else(failed, Ok)
            }
            Err(error) => Err(format!("nice: {error}")),
        };
        (step.name, result, start.elapsed())
    });
    each.collect()
}

/// Those that take longest, which begin first.
const LONG: [&str; 3] = ["circuits", "machines", "capture"];
/// So many files of tests run at a time: each mostly waits.
const AT_A_TIME: usize = 2;

/// Of this one so many tests at a time: it is most of all there are.
const MANY: (&str, &str) = ("circuits", "--test-threads=2");

/// Tests from end to end: some files of them at a time, of each (but of one) one test after the other.
fn end_to_end(root: &Path) -> Result<(), String> {
    const TEST: [&str; 5] = ["test", "-p", "e2e", "--locked", "--quiet"];
    const LAST: [&str; 2] = ["--", "--test-threads=1"];
    run(root, &[&TEST[..], &["--no-run"]].concat(), &[])?;
    let mut names = names(&root.join("tests/tests"))?;
    names.retain(|name| name != DEMO);
    names.sort_by_key(|name| LONG.iter().position(|it| it == name).unwrap_or(LONG.len()));
    let own = run(
        root,
        &[&TEST[..], &["--lib", "--bins"], &LAST].concat(),
        &[],
    );
    let next = AtomicUsize::new(0);
    // Also where another's fail.
    let each = || -> Vec<String> {
        let mut failed = Vec::new();
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            let threads = if name == MANY.0 { MANY.1 } else { LAST[1] };
            let words = [&TEST[..], &["--test", name, LAST[0], threads]].concat();
            let said = command(root, &words, &[]).output();
            let (passed, said) = match said {
                Ok(said) => (said.status.success(), [said.stdout, said.stderr].concat()),
                Err(error) => (false, error.to_string().into_bytes()),
            };
            println!("── end to end: {name}\n{}", String::from_utf8_lossy(&said));
            if !passed {
                let why = panics(&String::from_utf8_lossy(&said));
                failed.push(format!("{name}{why}"));
            }
        }
        failed
    };
    let failed: Vec<String> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(each)).collect();
        let all = all.into_iter().map(|it| it.join());
        all.flat_map(|it| it.unwrap_or_else(|_| vec!["a thread of ours".into()]))
            .collect()
    });
    match failed.is_empty() {
        true => own,
        false => Err(format!("end to end: failed: {}", failed.join(", "))),
    }
}

/// The names of a package's files of tests.
fn names(folder: &Path) -> Result<Vec<String>, String> {
    let say = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(say)? {
        let path = entry.map_err(say)?.path();
        if path.extension().is_some_and(|of| of == "rs")
            && let Some(name) = path.file_stem().and_then(|stem| stem.to_str())
        {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn run(root: &Path, words: &[&str], variables: &[(&str, &str)]) -> Result<(), String> {
    let mut command = command(root, words, variables);
    let is_test = words.first() == Some(&"test");
    if is_test {
        command.stdout(Stdio::piped());
    }
    let mut child = command.spawn().map_err(|e| e.to_string())?;
    let mut said = String::new();
    // Shown as it comes, and kept for why it failed.
    if let Some(out) = child.stdout.take() {
        for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            said.push_str(&line);
            said.push('\n');
        }
    }
    let status = child.wait().map_err(|e| e.to_string())?;
    match status.success() {
        true => Ok(()),
        false => Err(format!(
            "`cargo {}` failed{}",
            words.join(" "),
            panics(&said)
        )),
    }
}

/// Where tests panicked and over what, a few lines of each, as a log's end has room for.
fn panics(said: &str) -> String {
    const EACH: usize = 8;
    const ALL: usize = 60;
    let lines: Vec<&str> = said.lines().collect();
    let begin = (0..lines.len()).filter(|&at| lines[at].contains(" panicked at "));
    let each = begin.flat_map(|at| {
        let goes_on = |it: &&&str| !it.starts_with("stack backtrace") && !it.starts_with("note: ");
        lines[at..].iter().take(EACH).take_while(goes_on)
    });
    each.take(ALL).map(|line| format!("\n  {line}")).collect()
}

/// cargo, with what all steps have in common.
fn command(root: &Path, words: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(words)
        .current_dir(root)
        .stdin(Stdio::null())
        .env("RUSTFLAGS", STATIC)
        // Nobody debugs what is built here, and without it that takes a sixth less.
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env("CARGO_PROFILE_TEST_DEBUG", "0");
    command.envs(variables.iter().copied());
    // `cargo xtask` runs us with the package's own variables set: not for those below.
    command.env_remove("CARGO_MANIFEST_DIR");
    if words.contains(&"e2e") && words.contains(&"-p") {
        let programs = target(root).join("x86_64-unknown-linux-gnu/release");
        command.env("BULKHEAD_BIN_DIR", programs);
    }
    command
}

/// Where cargo puts what it builds.
pub fn target(root: &Path) -> std::path::PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into)
}

/// Each bench for about a second: it runs, and gives every figure it promises.
fn bench_smoke(root: &Path) -> Result<(), String> {
    bench(root, "smoke")
}

/// Instructions and allocations a packet, against what is committed.
fn bench_gate(root: &Path) -> Result<(), String> {
    bench(root, "gate")
}

fn bench(root: &Path, verb: &str) -> Result<(), String> {
    let program = target(root).join("x86_64-unknown-linux-gnu/release/bulkhead-bench");
    let status = Command::new(program)
        .arg(verb)
        .current_dir(root)
        .status()
        .map_err(|e| format!("bulkhead-bench: {e}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("bulkhead-bench {verb} failed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_test_panicked_over_is_said_again() {
        let said = "running 2 tests\n.. FAILED\n---- one stdout ----\nthread 'one' (7) panicked at a.rs:5:1:\n\
                    it is 3\nnote: run with `RUST_BACKTRACE=1`\n\nfailures:\n    one\n";
        let why = "\n  thread 'one' (7) panicked at a.rs:5:1:\n  it is 3";
        assert_eq!(panics(said), why);
        assert_eq!(panics("test result: ok. 2 passed; 0 failed"), "");
        assert_eq!(panics(&said.repeat(100)).lines().count(), 61);
    }
}
