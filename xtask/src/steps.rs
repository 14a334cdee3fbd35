//! `cargo xtask test`: every step that must pass, in the order in which they fail
//! fastest, with its time.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

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
    work: Work,
}

const fn cargo(name: &'static str, words: &'static [&'static str]) -> Step {
    Step {
        name,
        long: false,
        work: Work::Cargo(words, &[]),
    }
}

const STEPS: &[Step] = &[
    cargo("format", &["fmt", "--all", "--check"]),
    Step {
        name: "structure",
        long: false,
        work: Work::Own(crate::shelves::check),
    },
    Step {
        name: "pages",
        long: false,
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
        work: Work::Cargo(
            &["doc", "--workspace", "--no-deps", "--locked", "--quiet"],
            &[("RUSTDOCFLAGS", "-D warnings")],
        ),
    },
    cargo(
        "programs",
        &[
            "build",
            "--release",
            "--locked",
            "--workspace",
            "--bins",
            "--quiet",
        ],
    ),
    // As it is installed, for programs from end to end; and for its own tests.
    cargo(
        "library for C",
        &["build", "--release", "--locked", "-p", "lib-c", "--quiet"],
    ),
    cargo(
        "library for C, for tests",
        &["build", "--locked", "-p", "lib-c", "--quiet"],
    ),
    // Tests of one program start others from beside it.
    cargo(
        "programs for tests",
        &["build", "--locked", "--workspace", "--bins", "--quiet"],
    ),
    Step {
        name: "library to preload",
        long: false,
        work: Work::Own(crate::preload::build),
    },
    Step {
        name: "unit and property",
        long: false,
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
        work: Work::Cargo(
            &[
                "test",
                "-p",
                "core-ring",
                "-p",
                "core-stream",
                "--release",
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
    Step {
        name: "end to end",
        long: false,
        work: Work::Own(end_to_end),
    },
    Step {
        name: "bench smoke",
        long: false,
        work: Work::Own(bench_smoke),
    },
    Step {
        name: "bench gate",
        long: false,
        work: Work::Own(bench_gate),
    },
    Step {
        name: "fuzz smoke",
        long: false,
        work: Work::Own(crate::fuzz::smoke),
    },
    Step {
        name: "CPython's suites",
        long: true,
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
        work: Work::Own(|root| crate::fuzz::mutants(root, None)),
    },
    Step {
        name: "mutants",
        long: true,
        work: Work::Own(|root| crate::mutants::run(root, None)),
    },
    Step {
        name: "book",
        long: true,
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
        if (step.long && !full && only.is_none()) || only.is_some_and(|o| !step.name.contains(o)) {
            continue;
        }
        println!("── {} ", step.name);
        let start = Instant::now();
        let result = match &step.work {
            Work::Cargo(words, variables) => run(root, words, variables),
            Work::Own(work) => work(root),
        };
        times.push(format!(
            "{:>6.1} s  {}",
            start.elapsed().as_secs_f64(),
            step.name
        ));
        match result {
            Ok(()) => passed += 1,
            Err(message) => {
                eprintln!("{message}");
                failed.push(step.name);
            }
        }
    }
    println!("\n{}", times.join("\n"));
    println!("{passed} passed, {} failed", failed.len());
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("failed: {}", failed.join(", ")))
    }
}

/// What runs beside all the others: it takes as long as a quarter of them, and waits for the
/// most part, as they do.
const BESIDE: &str = "circuits";

/// Tests from end to end, one after the other but for those of one file.
fn end_to_end(root: &Path) -> Result<(), String> {
    const TEST: [&str; 5] = ["test", "-p", "e2e", "--locked", "--quiet"];
    run(root, &[&TEST[..], &["--no-run"]].concat(), &[])?;
    let mut names = names(&root.join("tests/tests"))?;
    names.retain(|name| name != BESIDE);
    let said = target(root).join("end-to-end-beside.log");
    let file = std::fs::File::create(&said).map_err(|e| format!("{}: {e}", said.display()))?;
    let also = file.try_clone().map_err(|e| e.to_string())?;
    let last = ["--", "--test-threads=1"];
    let mut beside = command(root, &[&TEST[..], &["--test", BESIDE], &last].concat(), &[])
        .stdout(file)
        .stderr(also)
        .spawn()
        .map_err(|e| e.to_string())?;
    let each = names.iter().flat_map(|name| ["--test", name.as_str()]);
    let words = TEST
        .into_iter()
        .chain(["--lib", "--bins", "--no-fail-fast"]);
    let words: Vec<&str> = words.chain(each).chain(last).collect();
    let others = run(root, &words, &[]);
    let ended = beside.wait().map_err(|e| e.to_string())?;
    print!("{}", std::fs::read_to_string(&said).unwrap_or_default());
    match ended.success() {
        true => others,
        false => Err(format!("end to end: `--test {BESIDE}` failed")),
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
    let status = command(root, words, variables)
        .status()
        .map_err(|e| e.to_string())?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("`cargo {}` failed", words.join(" "))),
    }
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
