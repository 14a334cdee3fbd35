//! The project's own chores: `cargo xtask test | check | mutants | book`.

mod book;
mod mutants;
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
    /// Structure only: arrows between shelves, unsafe policy, guards and their mutants.
    Check,
    /// Takes each guard out and expects a red test.
    Mutants {
        /// Only guards whose name contains this.
        #[arg(long)]
        only: Option<String>,
    },
    /// Builds the book into out/book.
    Book,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().chore {
        Chore::Test { full, only } => steps::test(&root(), full, only.as_deref()),
        Chore::Check => shelves::check(&root()),
        Chore::Mutants { only } => mutants::run(&root(), only.as_deref()),
        Chore::Book => book::build(&root()),
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
