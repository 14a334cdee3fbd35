//! `bulkhead bench`: figures, taken as docs/benching.md says.

mod apply;
mod apps;
mod boot;
mod circuits;
mod flow;
mod footprint;
mod forward;
mod group;
mod hinder;
mod latency;
mod load;
mod meter;
mod native;
mod neighbour;
mod outage;
mod outside;
mod pairs;
mod peer;
mod peers;
mod policy;
mod reboot;
mod report;
mod results;
mod ring_bench;
mod rings;
mod scale;
mod shape;
mod soak;
mod talk;
mod tap;
mod tcp;
mod verify;

use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand};
use results::{Figure, Results};
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use std::path::PathBuf;
use std::process::ExitCode;

/// Takes Bulkhead's figures and holds them against what they must reach.
#[derive(Parser)]
#[command(name = "bulkhead bench")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Kill switches and the fabric under load: outage, loss, others' loss.
    Reboot(Options),
    /// Change one endpoint among a thousand.
    Apply(Options),
    /// Memory and idle cost of a compartment.
    Footprint(Options),
    /// 200 tenants from nothing, then every ordered pair tried.
    Boot(Options),
    /// TCP between two namespaces, against veth and a Linux bridge.
    Tap(Options),
    /// The FIFO against a plain ring in C.
    Ring(Options),
    /// What rules and connections cost, and how soon a revocation holds.
    Policy(Options),
    /// What a neighbour that does its worst costs.
    Neighbour(Options),
    /// What an endpoint's rate lets through, against what was asked.
    Meter(Options),
    /// The proof of 10,000 endpoints' rules, of one that changed, of an adversary's.
    Verify(Options),
    /// Packets through one compartment, against what users would pick instead.
    Forward(Options),
    /// TCP and small UDP packets between namespaces, against a bridge and Open vSwitch.
    Tcp(Options),
    /// One crossing over vhost-user, and round trips of TCP.
    Latency(Options),
    /// nginx and memcached between namespaces, against a bridge and Open vSwitch.
    Apps(Options),
    /// What users would pick instead, on this machine now.
    Peers(Options),
    /// What a thousand idle tenants beside cost a packet.
    Scale(Options),
    /// The FIFO's size and number, and a ring of descriptors instead.
    Shape(Options),
    /// Unmodified programs over circuits, against TCP over a bridge.
    Circuits {
        /// These parts alone, of which no results are kept.
        #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(circuits::parts()))]
        only: Vec<String>,
        #[command(flatten)]
        options: Options,
    },
    /// Ten thousand short connections by circuits, then some with peers killed: none may stall.
    Soak {
        /// Kill peers for an hour.
        #[arg(long)]
        hour: bool,
        #[command(flatten)]
        options: Options,
    },
    /// What `circuits` runs.
    #[command(hide = true)]
    Talk(talk::Talk),
    /// Count instructions and allocations a packet; fails over what is committed.
    Gate(forward::Gate),
    /// For valgrind: the switch's loop in this process.
    #[command(hide = true)]
    Inside(forward::inside::Inside),
    /// Every bench for about a second: does it still give its figures?
    Smoke {
        /// These alone.
        #[arg(value_parser = PossibleValuesParser::new(BENCHES.iter().map(|(name, _)| *name)))]
        only: Vec<String>,
    },
    /// Hold the committed results against bench/reach.toml.
    Check {
        /// Folder of bench/, with reach.toml and results/.
        #[arg(long, default_value = "bench")]
        folder: PathBuf,
    },
}

/// What every bench takes.
#[derive(clap::Args, Clone)]
pub struct Options {
    /// Fewer runs: every figure within 50 s.
    #[arg(long)]
    quick: bool,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
    /// Write a self-contained report.
    #[arg(long)]
    html: Option<PathBuf>,
    /// Where results are kept; `-` keeps none [default: bench/results; of a quick run out/bench]
    #[arg(long)]
    results: Option<PathBuf>,
    /// Instead: hinder the thing under test; fails unless every figure gets worse.
    #[arg(long)]
    self_check: bool,
    #[arg(skip)]
    only: Vec<String>,
    #[arg(skip)]
    hour: bool,
    #[arg(skip)]
    smoke: bool,
    #[arg(skip)]
    hindered: bool,
}

impl Options {
    /// `full` runs, or `quick` ones, or one for a smoke run.
    pub fn runs(&self, full: usize, quick: usize) -> usize {
        if self.smoke {
            1
        } else if self.quick {
            quick
        } else {
            full
        }
    }
}

impl Options {
    /// Where results are kept. What few runs show is never where `check` looks.
    fn folder(&self) -> PathBuf {
        let usual = match (self.only.is_empty(), self.quick) {
            (false, _) => "-",
            (_, true) => "out/bench",
            _ => "bench/results",
        };
        self.results.clone().unwrap_or_else(|| usual.into())
    }
}

type Bench = fn(&Options) -> Result<Vec<Figure>, String>;

const BENCHES: &[(&str, Bench)] = &[
    ("ring", ring_bench::run),
    ("footprint", footprint::run),
    ("apply", apply::run),
    ("reboot", reboot::run),
    ("tap", tap::run),
    ("boot", boot::run),
    ("meter", meter::run),
    ("policy", policy::run),
    ("neighbour", neighbour::run),
    ("verify", verify::run),
    ("forward", forward::run),
    ("tcp", tcp::run),
    ("latency", latency::run),
    ("apps", apps::run),
    ("peers", peers::run),
    ("circuits", circuits::run),
    ("soak", soak::run),
    ("scale", scale::run),
    ("shape", shape::run),
];

fn main() -> ExitCode {
    let code = run(Arguments::parse());
    peer::remove_built();
    code
}

fn run(arguments: Arguments) -> ExitCode {
    let (name, options) = match arguments.what {
        What::Reboot(o) => ("reboot", o),
        What::Apply(o) => ("apply", o),
        What::Footprint(o) => ("footprint", o),
        What::Boot(o) => ("boot", o),
        What::Tap(o) => ("tap", o),
        What::Ring(o) => ("ring", o),
        What::Meter(o) => ("meter", o),
        What::Policy(o) => ("policy", o),
        What::Neighbour(o) => ("neighbour", o),
        What::Verify(o) => ("verify", o),
        What::Forward(o) => ("forward", o),
        What::Tcp(o) => ("tcp", o),
        What::Latency(o) => ("latency", o),
        What::Apps(o) => ("apps", o),
        What::Peers(o) => ("peers", o),
        What::Scale(o) => ("scale", o),
        What::Shape(o) => ("shape", o),
        What::Circuits { only, options } => ("circuits", Options { only, ..options }),
        What::Soak { hour, options } => ("soak", Options { hour, ..options }),
        What::Talk(asked) => return ended(talk::run(&asked)),
        What::Gate(asked) => return ended(forward::gate(&asked)),
        What::Inside(asked) => return ended(forward::inside::run(&asked)),
        What::Smoke { only } => return smoke(&only),
        What::Check { folder } => {
            return match results::check(&folder.join("reach.toml"), &folder.join("results")) {
                Ok(true) => ExitCode::SUCCESS,
                Ok(false) => ExitCode::FAILURE,
                Err(message) => fail(&message),
            };
        }
    };
    let Some((_, bench)) = BENCHES.iter().find(|(n, _)| *n == name) else {
        return ExitCode::FAILURE;
    };
    if options.self_check {
        return match hinder::check(*bench, &options, std::path::Path::new("bench/reach.toml")) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => fail("a figure that nothing can worsen is no figure"),
            Err(message) => fail(&message),
        };
    }
    let figures = match bench(&options) {
        Ok(figures) => figures,
        Err(message) => return fail(&message),
    };
    let command = format!(
        "bulkhead bench {name}{}{}",
        if options.quick { " --quick" } else { "" },
        if options.hour { " --hour" } else { "" }
    );
    let results = Results::now(name, &command, figures);
    let folder = options.folder();
    if folder.as_os_str() != "-" {
        match results.save(&folder) {
            Ok(path) => eprintln!("results in {}", path.display()),
            Err(e) => return fail(&format!("{}: {e}", folder.display())),
        }
    }
    if let Some(file) = &options.html
        && let Err(e) = report::write(
            &results,
            &results::reaches(std::path::Path::new("bench/reach.toml")).unwrap_or_default(),
            file,
        )
    {
        return fail(&format!("{}: {e}", file.display()));
    }
    if options.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&results).unwrap_or_default()
        );
    } else {
        for f in &results.figures {
            println!(
                "{:<32} {:>12.4} {:<6} [{:.4} .. {:.4}] {} runs {} {}",
                f.id, f.value, f.unit, f.min, f.max, f.runs, f.cluster, f.note
            );
        }
    }
    ExitCode::SUCCESS
}

/// A figure is there, or it is said why not.
fn is_taken_or_said(figure: &Figure) -> bool {
    match figure.is_missing() {
        true => !figure.note.is_empty(),
        false => figure.value.is_finite(),
    }
}

fn smoke(only: &[String]) -> ExitCode {
    let options = Options {
        quick: true,
        json: false,
        html: None,
        results: Some("-".into()),
        self_check: false,
        only: Vec::new(),
        hour: false,
        smoke: true,
        hindered: false,
    };
    let mut failed = Vec::new();
    let asked = |name: &str| only.is_empty() || only.iter().any(|one| one == name);
    let benches: Vec<_> = BENCHES.iter().filter(|(name, _)| asked(name)).collect();
    let cores = sched_getaffinity(None).ok();
    for (name, bench) in &benches {
        // One bench keeps to a core; the next one's programs have all of them.
        if let Some(cores) = &cores {
            let _ = sched_setaffinity(None, cores);
        }
        // On a machine that others use a run may be starved: whether a bench works, which is all
        // that is asked here, its second says.
        let works =
            |figures: &[Figure]| !figures.is_empty() && figures.iter().all(is_taken_or_said);
        let taken = match bench(&options) {
            Ok(figures) if works(&figures) => Ok(figures),
            first => {
                if let Err(why) = first {
                    println!("smoke {name}: once more after: {why}");
                }
                bench(&options)
            }
        };
        match taken {
            Ok(figures) if works(&figures) => {
                println!("smoke {name}: {} figures", figures.len());
                for figure in figures.iter().filter(|f| f.is_missing()) {
                    println!("smoke {name}: {}: {}", figure.id, figure.note);
                }
            }
            Ok(figures) => {
                let missing = figures.iter().filter(|f| !is_taken_or_said(f));
                let missing: Vec<&str> = missing.map(|f| f.id.as_str()).collect();
                failed.push(format!(
                    "{name}: a figure is missing: {}",
                    missing.join(" ")
                ));
            }
            Err(message) => failed.push(format!("{name}: {message}")),
        }
    }
    println!(
        "{} passed, {} failed",
        benches.len() - failed.len(),
        failed.len()
    );
    for message in &failed {
        eprintln!("failed: {message}");
    }
    match failed.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn ended(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => fail(&message),
    }
}

fn fail(message: &str) -> ExitCode {
    eprintln!("bench: {message}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_is_not_kept_among_the_results_that_are_checked() {
        let folder = |words: &[&str]| {
            let words = [&["bench", "ring"], words].concat();
            match Arguments::try_parse_from(words).unwrap().what {
                What::Ring(options) => options.folder(),
                _ => PathBuf::new(),
            }
        };
        assert_eq!(folder(&[]), PathBuf::from("bench/results"));
        assert_eq!(folder(&["--quick"]), PathBuf::from("out/bench"));
        assert_eq!(folder(&["--quick", "--results", "-"]), PathBuf::from("-"));
    }

    #[test]
    fn a_part_that_is_not_there_is_no_run_of_nothing() {
        for words in [["circuits", "--only=rings,nosuch"], ["smoke", "circuit"]] {
            let parsed = Arguments::try_parse_from([&["bench"], &words[..]].concat());
            assert_eq!(parsed.map_err(|it| it.exit_code()).err(), Some(2));
        }
        for words in [["circuits", "--only=rings,setup"], ["smoke", "circuits"]] {
            let parsed = Arguments::try_parse_from([&["bench"], &words[..]].concat());
            assert!(parsed.is_ok(), "{words:?}");
        }
    }
}
