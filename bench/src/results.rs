//! Results: one JSON file a bench, and what each figure must reach.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One bench's results, as committed under `bench/results/`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results {
    /// Name of the bench.
    pub bench: String,
    /// Day it ran, ISO 8601.
    pub date: String,
    /// Commit it ran on.
    pub commit: String,
    /// How to repeat it.
    pub command: String,
    /// Where it ran.
    pub machine: Machine,
    /// What came out.
    pub figures: Vec<Figure>,
}

/// Where a bench ran.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model.
    pub cpu: String,
    /// Processors online.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
}

/// One figure: a median with its range.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Figure {
    /// Id, as in `reach.toml`.
    pub id: String,
    /// The median.
    #[serde(deserialize_with = "number")]
    pub value: f64,
    /// Unit; "ratio" for ratios.
    pub unit: String,
    /// Least run.
    #[serde(deserialize_with = "number")]
    pub min: f64,
    /// Greatest run.
    #[serde(deserialize_with = "number")]
    pub max: f64,
    /// How many runs.
    pub runs: usize,
    /// `near`, `far`, `mixed`, or `-` where cores' distance plays no part.
    pub cluster: String,
    /// Our side: absolute values, CPU seconds and the like.
    #[serde(default)]
    pub ours: BTreeMap<String, serde_json::Value>,
    /// The peer's side, with its name and version.
    #[serde(default)]
    pub peer: BTreeMap<String, serde_json::Value>,
    /// What a reader must know.
    #[serde(default)]
    pub note: String,
    /// The runs themselves, in order, for the plot.
    #[serde(default)]
    pub samples: Vec<f64>,
}

impl Figure {
    /// The median of `samples` with its range.
    pub fn of(id: &str, unit: &str, samples: &[f64]) -> Figure {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Figure {
            id: id.into(),
            value: quantile(&sorted, 0.5),
            unit: unit.into(),
            min: sorted.first().copied().unwrap_or(f64::NAN),
            max: sorted.last().copied().unwrap_or(f64::NAN),
            runs: sorted.len(),
            cluster: "-".into(),
            ours: BTreeMap::new(),
            peer: BTreeMap::new(),
            note: String::new(),
            samples: samples.to_vec(),
        }
    }

    /// One that could not be taken here, and why.
    pub fn missing(id: &str, why: &str) -> Figure {
        Figure::of(id, "", &[]).note(why)
    }

    /// Whether it could not be taken.
    pub fn is_missing(&self) -> bool {
        self.runs == 0
    }

    /// A quantile of `samples` instead of their median.
    pub fn quantile_of(id: &str, unit: &str, samples: &[f64], q: f64) -> Figure {
        let mut figure = Figure::of(id, unit, samples);
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        figure.value = quantile(&sorted, q);
        figure
    }

    /// The same with a note.
    pub fn note(mut self, note: impl Into<String>) -> Figure {
        self.note = note.into();
        self
    }

    /// The same with a value of our side.
    pub fn ours(mut self, key: &str, value: impl Into<serde_json::Value>) -> Figure {
        self.ours.insert(key.into(), value.into());
        self
    }

    /// The same with a value of the peer's side.
    pub fn peer(mut self, key: &str, value: impl Into<serde_json::Value>) -> Figure {
        self.peer.insert(key.into(), value.into());
        self
    }

    /// The same with the cluster it was taken in.
    pub fn cluster(mut self, cluster: &str) -> Figure {
        self.cluster = cluster.into();
        self
    }
}

/// JSON has no number for what was not measured: it is null there.
fn number<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// The `q` quantile (0..=1) of sorted values, nearest rank; of an even number the median is between two.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    let rank = q * sorted.len() as f64;
    let at = |rank: usize| sorted[rank.clamp(1, sorted.len()) - 1];
    match q == 0.5 && sorted.len().is_multiple_of(2) {
        // Of as many below as above.
        true => (at(rank as usize) + at(rank as usize + 1)) / 2.0,
        false => at(rank.ceil() as usize),
    }
}

impl Results {
    /// Results of a bench that ran just now, here.
    pub fn now(bench: &str, command: &str, figures: Vec<Figure>) -> Results {
        Results {
            bench: bench.into(),
            date: said(&["date", "-u", "+%Y-%m-%dT%H:%MZ"]),
            commit: said(&["git", "rev-parse", "--short", "HEAD"]),
            command: command.into(),
            machine: Machine {
                cpu: std::fs::read_to_string("/proc/cpuinfo")
                    .unwrap_or_default()
                    .lines()
                    .find_map(|l| {
                        l.strip_prefix("model name")
                            .map(|v| v.trim_start_matches([' ', '\t', ':']).to_owned())
                    })
                    .unwrap_or_default(),
                cores: processors_online(),
                kernel: said(&["uname", "-r"]),
            },
            figures,
        }
    }

    /// Writes `bench/results/NAME.json` under `folder`.
    pub fn save(&self, folder: &Path) -> std::io::Result<PathBuf> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(format!("{}.json", self.bench));
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::other)?;
        std::fs::write(&path, text + "\n")?;
        Ok(path)
    }
}

/// Of the machine, whatever this thread is pinned to.
fn processors_online() -> usize {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let count = text.lines().filter(|l| l.starts_with("processor")).count();
    count.max(1)
}

fn said(words: &[&str]) -> String {
    std::process::Command::new(words[0])
        .args(&words[1..])
        .output()
        .ok()
        .filter(|o| o.status.success())
        .map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
        .unwrap_or_default()
}

/// What is asked of a figure.
#[derive(Debug, Deserialize)]
pub struct Reach {
    /// The figure is at least this.
    pub at_least: Option<f64>,
    /// The figure is at most this.
    pub at_most: Option<f64>,
}

/// Holds all results under `folder` against `reach`: one line a figure. `Ok(true)`
/// when every figure asked for is there, of a full run, and met. Results of sources that
/// have changed since are named.
pub fn check(reach: &Path, folder: &Path) -> Result<bool, String> {
    let reaches = reaches(reach)?;
    let mut have = BTreeMap::new();
    for entry in std::fs::read_dir(folder)
        .map_err(|e| format!("{}: {e}", folder.display()))?
        .flatten()
    {
        let path = entry.path();
        if path.extension().is_none_or(|e| e != "json") {
            continue;
        }
        let text = std::fs::read_to_string(&path).map_err(|e| e.to_string())?;
        let results: Results =
            serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        if is_quick(&results) {
            return Err(format!(
                "{}: of a quick run (`{}`), which shows nothing: run it in full",
                path.display(),
                results.command
            ));
        }
        if let Some(why) = staleness(folder, &results.commit) {
            println!("stale: {}, of {}: {why}", results.bench, results.date);
        }
        have.extend(results.figures.into_iter().map(|f| (f.id.clone(), f)));
    }
    let mut all = true;
    for (id, reach) in &reaches {
        let found = have.get(id).filter(|f| !f.is_missing());
        let (asked, met) = match (reach.at_least, reach.at_most, found) {
            (Some(least), _, Some(f)) => (format!("≥ {least}"), Some(f.value >= least)),
            (_, Some(most), Some(f)) => (format!("≤ {most}"), Some(f.value <= most)),
            (Some(least), _, None) => (format!("≥ {least}"), None),
            (_, Some(most), None) => (format!("≤ {most}"), None),
            (None, None, _) => return Err(format!("{}: {id} asks nothing", reach_name(id))),
        };
        let (ours, unit) = found.map_or(("not measured".into(), ""), |f| {
            (format!("{:.4}", f.value), f.unit.as_str())
        });
        let verdict = match met {
            Some(true) => "met",
            Some(false) => "short",
            None => "missing",
        };
        let why = have.get(id).filter(|f| f.is_missing());
        let why = why.map_or("", |f| f.note.as_str());
        println!("{id:<32} {ours:>14} {unit:<8} {asked:<10} {verdict} {why}");
        all &= met == Some(true);
    }
    Ok(all)
}

/// Of fewer runs than its figures ask for; a soak is an hour's.
fn is_quick(results: &Results) -> bool {
    let says = |asked| results.command.split(' ').any(|word| word == asked);
    says("--quick") || results.bench == "soak" && !says("--hour")
}

/// Why results taken at `commit` may not be those of the sources here; `None` = they are,
/// or this is no checkout.
fn staleness(folder: &Path, commit: &str) -> Option<String> {
    let git = |words: &[&str]| {
        std::process::Command::new("git")
            .arg("-C")
            .arg(folder)
            .args(words)
            .output()
            .ok()
    };
    let top = git(&["rev-parse", "--show-toplevel"]).filter(|o| o.status.success())?;
    let top = String::from_utf8_lossy(&top.stdout).trim().to_owned();
    let known = format!("{commit}^{{commit}}");
    let known = git(&["rev-parse", "--verify", "--quiet", &known])?;
    if commit.is_empty() || !known.status.success() {
        return Some(format!("its commit `{commit}` is not in this checkout"));
    }
    let words = ["-C", &top, "diff", "--quiet", commit, "--"];
    let measured = [
        "core",
        "host",
        "bin",
        "lib",
        "bench/src",
        "bench/peers",
        // What `soak` runs.
        "tests/tests/circuits/exchange.c",
        "Cargo.lock",
    ];
    let same = git(&[&words[..], &measured[..]].concat())?.status.success();
    (!same).then(|| format!("what it measures has changed since its commit {commit}"))
}

/// What each figure must reach, by its id.
///
/// # Errors
/// The file cannot be read.
pub fn reaches(reach: &Path) -> Result<BTreeMap<String, Reach>, String> {
    let text = std::fs::read_to_string(reach).map_err(|e| format!("{}: {e}", reach.display()))?;
    toml::from_str(&text).map_err(|e| format!("{}: {e}", reach.display()))
}

fn reach_name(id: &str) -> String {
    format!("reach.toml[{id}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_tail_by_nearest_rank() {
        let figure = Figure::of("x", "ms", &[5.0, 1.0, 3.0]);
        assert_eq!((figure.value, figure.min, figure.max), (3.0, 1.0, 5.0));
        assert_eq!(Figure::of("x", "ms", &[5.0, 1.0]).value, 3.0);
        assert_eq!(Figure::of("x", "ms", &[5.0, 1.0, 9.0, 2.0]).value, 3.5);
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(Figure::quantile_of("x", "ms", &hundred, 0.99).value, 99.0);
    }

    #[test]
    fn quick_results_are_refused_and_old_ones_named() {
        let folder = e2e::private_folder("bulkhead-quick-").unwrap();
        let reach = folder.join("reach.toml");
        std::fs::write(&reach, "\"a.b\" = { at_most = 2 }\n").unwrap();
        let figures = || vec![Figure::of("a.b", "ms", &[1.0])];
        let results = folder.join("results");
        let save = |command| {
            Results::now("a", command, figures())
                .save(&results)
                .unwrap()
        };
        save("bulkhead bench a --quick");
        assert!(check(&reach, &results).unwrap_err().contains("quick"));
        save("bulkhead bench a");
        assert!(check(&reach, &results).unwrap());
        let soaked = |command| Results::now("soak", command, Vec::new());
        assert!(is_quick(&soaked("bulkhead bench soak")), "half a minute");
        assert!(!is_quick(&soaked("bulkhead bench soak --hour")));

        let git = |words: &[&str]| {
            let mut git = std::process::Command::new("git");
            git.arg("-C")
                .arg(&folder)
                .args(["-c", "user.name=x", "-c", "user.email=x"]);
            let said = git.args(words).output().unwrap();
            assert!(said.status.success(), "{said:?}");
            String::from_utf8(said.stdout).unwrap().trim().to_owned()
        };
        // No checkout: nothing can be said.
        assert_eq!(staleness(&folder, "abc"), None);
        git(&["init", "-q"]);
        std::fs::create_dir(folder.join("core")).unwrap();
        let source = folder.join("core/source");
        std::fs::write(&source, "1").unwrap();
        git(&["add", "core"]);
        git(&["commit", "-qm", "x"]);
        let commit = git(&["rev-parse", "HEAD"]);
        assert_eq!(staleness(&results, &commit), None);
        assert!(
            staleness(&results, "abcdef0")
                .unwrap()
                .contains("not in this")
        );
        std::fs::write(&source, "2").unwrap();
        assert!(
            staleness(&results, &commit)
                .unwrap()
                .contains("has changed")
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_missed_reach_is_short_and_a_missing_figure_is_missing() {
        let folder = e2e::private_folder("bulkhead-check-").unwrap();
        let reach = folder.join("reach.toml");
        std::fs::write(&reach, "\"a.b\" = { at_most = 2 }\n").unwrap();
        let results = folder.join("results");
        std::fs::create_dir_all(&results).unwrap();
        assert!(!check(&reach, &results).unwrap());
        Results::now("a", "c", vec![Figure::of("a.b", "ms", &[2.0])])
            .save(&results)
            .unwrap();
        assert!(check(&reach, &results).unwrap());
        Results::now("a", "c", vec![Figure::of("a.b", "ms", &[2.1])])
            .save(&results)
            .unwrap();
        assert!(!check(&reach, &results).unwrap());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
