//! The project's own chores: `cargo xtask test | check | mutants | fuzz | book | preload`.

mod book;
mod fuzz;
mod mutants;
mod preload;
mod promises;
mod shelves;
mod steps;

use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Bulkhead's chores")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Everything that must pass: the README's test command and CI's.
    Test {
        /// Also what is long.
        #[arg(long)]
        full: bool,
        /// Only the steps whose name contains this.
        #[arg(long)]
        only: Option<String>,
    },
    /// Structure only: arrows between shelves, unsafe policy, guards and their mutants, what promises name.
    Check,
    /// Takes each guard out and expects a red test.
    Mutants {
        /// Only guards whose name contains this.
        #[arg(long)]
        only: Option<String>,
    },
    /// Fuzzes: each target of fuzz/, or one, for some seconds.
    Fuzz {
        /// Only this target.
        #[arg(long)]
        target: Option<String>,
        /// So long each.
        #[arg(long, default_value_t = 60)]
        seconds: u32,
        /// Takes each guard of fuzz/mutants.txt out instead, and expects that its target fails.
        #[arg(long)]
        mutants: bool,
        /// Writes what all targets begin with instead.
        #[arg(long)]
        seeds: bool,
    },
    /// Builds the book into out/book.
    Book,
    /// Builds the library that `bulkhead run --rings` loads, and puts it beside the programs.
    Preload,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().chore {
        Chore::Test { full, only } => steps::test(&root(), full, only.as_deref()),
        Chore::Check => shelves::check(&root()),
        Chore::Mutants { only } => mutants::run(&root(), only.as_deref()),
        Chore::Fuzz {
            target,
            seconds,
            mutants,
            seeds,
        } => match (mutants, seeds) {
            (true, _) => fuzz::mutants(&root(), target.as_deref()),
            (_, true) => fuzz::seed(&root()),
            _ => fuzz::fuzz(&root(), target.as_deref(), seconds),
        },
        Chore::Book => book::build(&root()),
        Chore::Preload => preload::build(&root()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// The checkout's top: where the workspace manifest is.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_default()
}
