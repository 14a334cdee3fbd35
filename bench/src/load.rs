//! Throughput and delay of one switch under an open-loop generator, and two of them in
//! turns. Core 0 is the switch's, core 1 the generator's and sink's.

pub mod dpdk;
pub mod fifo;
pub mod ovs;

use crate::Options;
use crate::footprint::cpu_ended_too_ns;
use crate::peer::{cluster, round_trip_ns};
use crate::results::Figure;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most of what is offered that may be lost.
const LOSS: f64 = 0.001;
/// In a smoke run, which asks whether anything passes: others have the processors for longer than the
/// rings hold what comes meanwhile.
const LOSS_OF_SMOKE: f64 = 0.5;
/// How long each try of a smoke run is: longer than others have a processor at a time.
pub const SMOKE: Duration = Duration::from_millis(100);
/// Fewer clean windows than this say nothing.
const WINDOWS: u32 = 3;
/// How often a run is tried again in which others had the processors.
const AGAIN: usize = 4;

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of a frame.
    pub size: usize,
    /// Flows, in random order.
    pub flows: u32,
    /// How long a run is.
    pub time: Duration,
    /// Every window of a run counts, whoever had the processors.
    pub every: bool,
    /// Ours stands still three quarters of the time: the self-check's.
    pub hindered: bool,
    /// Part of what is offered that may be lost.
    pub loss: f64,
}

/// [`Shape::loss`] of a run.
pub fn loss(options: &Options) -> f64 {
    if options.smoke { LOSS_OF_SMOKE } else { LOSS }
}

/// What became of a run; of its windows in which generator and switch had their
/// processors to themselves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trial {
    /// Packets that were due.
    pub offered: f64,
    /// Those of them that came.
    pub got: f64,
    /// Seconds of these windows.
    pub seconds: f64,
    /// How many windows.
    pub clean: u32,
    /// Delays, ns: p50, p99, p99.9.
    pub delays: [f64; 3],
    /// Packets that the port took, in all windows.
    pub taken: u64,
}

impl Trial {
    /// Packets that came, a second.
    pub fn rate(&self) -> f64 {
        self.got / self.seconds
    }
    /// Part of what was offered that was lost.
    pub fn loss(&self) -> f64 {
        1.0 - self.got / self.offered.max(1.0)
    }
}

/// A switch with its generator and sink.
pub trait Load {
    /// Offers so many packets a second (0 = as many as the port takes).
    fn run(&mut self, shape: &Shape, pps: f64) -> Result<Trial, String>;
    /// The switch's processes, which stand still while another has its turn.
    fn switch(&self) -> Vec<u32>;
    /// The generator's, where it is a process of its own.
    fn generator(&self) -> Option<u32>;
}

/// What a switch forwards at a loss of at most 0.1 %.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    /// Packets that came, millions a second; 0 = no load was found that passes.
    pub mpps: f64,
    /// That were offered.
    pub offered_mpps: f64,
    /// Part of them that was lost.
    pub loss: f64,
    /// What came where the generator sends as much as the port takes.
    pub flood_mpps: f64,
    /// CPU seconds of generator and switch a million packets.
    pub cpu_s: f64,
    /// Runs of the search in which other work had the processors all the time.
    pub disturbed: u32,
    /// 1: the generator came to its end before the switch did.
    pub generator: f64,
}

/// A run that says something: repeated where others had the processors. `disturbed` is
/// raised where they had them every time, and all windows count.
pub fn run(
    load: &mut dyn Load,
    shape: &Shape,
    pps: f64,
    disturbed: &mut u32,
) -> Result<(Trial, u64), String> {
    let mut taken = 0;
    for _ in 0..AGAIN {
        let trial = load.run(shape, pps)?;
        taken += trial.taken;
        if shape.every || trial.clean >= WINDOWS {
            return Ok((trial, taken));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    *disturbed += 1;
    let every = Shape {
        every: true,
        ..*shape
    };
    let trial = load.run(&every, pps)?;
    Ok((trial, taken + trial.taken))
}

/// Searches the highest load of which at most 0.1 % is lost ([`Shape::loss`]): down to a thousandth of what
/// was flooded where the switch loses its processor again and again.
pub fn search(load: &mut dyn Load, shape: &Shape) -> Result<Found, String> {
    let generator = load.generator().unwrap_or(std::process::id());
    let processes: Vec<u32> = load.switch().into_iter().chain([generator]).collect();
    let spent = || -> u64 {
        processes
            .iter()
            .filter_map(|p| cpu_ended_too_ns(*p).ok())
            .sum()
    };
    let before = spent();
    let mut disturbed = 0;
    let (flood, mut taken) = run(load, shape, 0.0, &mut disturbed)?;
    let (mut low, mut high) = (0.0, flood.rate() * 1.15);
    let mut best: Option<Trial> = None;
    let mut rate = flood.rate() * 0.95;
    let mut generator = 0.0;
    for step in 1..=20 {
        let (trial, more) = run(load, shape, rate, &mut disturbed)?;
        taken += more;
        // Less was offered than asked: the generator's end, not the switch's.
        let offered = trial.offered / trial.seconds >= rate * 0.98;
        if offered && trial.loss() <= shape.loss {
            low = rate;
            if best.is_none_or(|b| trial.rate() > b.rate()) {
                best = Some(trial);
            }
        } else {
            high = rate;
            if !offered && trial.loss() <= shape.loss {
                generator = 1.0;
            }
        }
        rate = match best {
            Some(_) => (low + high) / 2.0,
            None if step < 8 => rate * 0.8,
            None => rate / 2.0,
        };
        if high - low < high * 0.015 || best.is_some() && step >= 9 {
            break;
        }
    }
    let best = best.unwrap_or_default();
    let seconds = best.seconds.max(1e-9);
    Ok(Found {
        mpps: best.got / seconds / 1e6,
        offered_mpps: best.offered / seconds / 1e6,
        loss: best.loss().max(0.0),
        flood_mpps: flood.rate() / 1e6,
        cpu_s: spent().saturating_sub(before) as f64 / 1e9 / (taken as f64 / 1e6),
        disturbed,
        generator,
    })
}

/// Two switches in turns.
pub struct Pair<'a> {
    /// Ours.
    pub ours: &'a mut dyn Load,
    /// The peer.
    pub peer: &'a mut dyn Load,
}

/// What so many turns came to.
#[derive(Default)]
pub struct Turns<T> {
    /// Of each turn, ours and the peer's.
    pub each: Vec<(T, T)>,
    /// Where the two cores were to each other.
    pub clusters: Vec<&'static str>,
}

impl Pair<'_> {
    /// So many turns, A B A B.
    pub fn turns<T>(
        &mut self,
        turns: usize,
        mut measure: impl FnMut(&mut dyn Load) -> Result<T, String>,
    ) -> Result<Turns<T>, String> {
        let mut all = Turns {
            each: Vec::new(),
            clusters: Vec::new(),
        };
        for _ in 0..turns {
            let before = round_trip_ns()?;
            let a = alone(self.ours, &mut measure)?;
            let b = alone(self.peer, &mut measure)?;
            all.clusters.push(cluster(before, round_trip_ns()?));
            all.each.push((a, b));
        }
        Ok(all)
    }
}

/// Lets a switch go on, measures, and stops it again.
pub fn alone<T>(
    load: &mut dyn Load,
    measure: &mut impl FnMut(&mut dyn Load) -> Result<T, String>,
) -> Result<T, String> {
    let switch = load.switch();
    let first: Vec<u32> = switch.iter().copied().chain(load.generator()).collect();
    signal(&switch, Signal::CONT);
    let first = First::are(&first);
    let measured = measure(load);
    drop(first);
    signal(&switch, Signal::STOP);
    measured
}

/// Stops or continues processes.
pub fn signal(processes: &[u32], signal: Signal) {
    for pid in processes {
        if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
            let _ = kill_process(pid, signal);
        }
    }
}

/// A process that is stopped again and again, for shorter than a run: what the self-check
/// hinders by.
pub struct Slowed {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Slowed {
    /// Stands still for so many us, then goes for so many, until dropped.
    pub fn start(process: u32, stands: u64, goes: u64) -> Slowed {
        let over = Arc::new(AtomicBool::new(false));
        let ended = over.clone();
        let thread = std::thread::spawn(move || {
            while !ended.load(Relaxed) {
                signal(&[process], Signal::STOP);
                std::thread::sleep(Duration::from_micros(stands));
                signal(&[process], Signal::CONT);
                std::thread::sleep(Duration::from_micros(goes));
            }
        });
        Slowed {
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for Slowed {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What was written elsewhere before these processes, and this one, were put before other
/// work on the machine, as long as a run lasts. Where the kernel has neither autogroups nor
/// control groups, or this is not root, fewer windows count.
pub struct First(Vec<(PathBuf, String)>);

impl First {
    /// These, and this one.
    pub fn are(processes: &[u32]) -> First {
        let mut before = Vec::new();
        for pid in processes.iter().copied().chain([std::process::id()]) {
            before.push((format!("/proc/{pid}/autogroup").into(), "0".to_owned()));
            let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"));
            for line in groups.unwrap_or_default().lines() {
                before.extend(weights(line));
            }
        }
        before.retain(|(file, _): &(PathBuf, String)| {
            let most = match file.file_name().and_then(|name| name.to_str()) {
                Some("autogroup") => "-20",
                Some("cpu.shares") => "262144",
                _ => "10000",
            };
            std::fs::write(file, most).is_ok()
        });
        First(before)
    }
}

/// The files, with what is in them, that say how much of a processor the control group of
/// a line of /proc/PID/cgroup has, and those above it.
fn weights(line: &str) -> Vec<(PathBuf, String)> {
    let mut words = line.splitn(3, ':').skip(1);
    let (controllers, path) = (words.next().unwrap_or(""), words.next().unwrap_or("/"));
    let (root, name) = match controllers {
        "" => ("/sys/fs/cgroup", "cpu.weight"),
        some if some.split(',').any(|c| c == "cpu") => ("/sys/fs/cgroup/cpu", "cpu.shares"),
        _ => return Vec::new(),
    };
    let below = Path::new(path).ancestors().filter(|p| *p != Path::new("/"));
    let files = below.map(|p| {
        Path::new(root)
            .join(p.strip_prefix("/").unwrap_or(p))
            .join(name)
    });
    files
        .filter_map(|file| Some((file.clone(), std::fs::read_to_string(file).ok()?)))
        .collect()
}

impl Drop for First {
    fn drop(&mut self) {
        for (file, text) in self.0.iter().rev() {
            let _ = std::fs::write(file, text.trim());
        }
    }
}

impl<T> Turns<T> {
    /// The figure of the ratios of neighbouring turns, over those turns that have one: of
    /// the near ones and the far ones apart as well.
    pub fn ratio(&self, id: &str, of: impl Fn(&T) -> f64) -> Figure {
        let ratios: Vec<f64> = self.each.iter().map(|(a, b)| of(a) / of(b)).collect();
        let mut figure =
            Figure::of(id, "ratio", &ratios).cluster(crate::peer::cluster_of(&self.clusters));
        for kind in ["near", "far"] {
            let both = ratios.iter().zip(&self.clusters);
            let some: Vec<f64> = both.filter(|(_, c)| **c == kind).map(|(r, _)| *r).collect();
            if !some.is_empty() {
                let value = Figure::of("", "", &some).value;
                figure = figure.ours(&format!("ratio_{kind}"), value);
            }
        }
        figure
    }

    /// The median of a quantity on each side.
    pub fn medians(&self, of: impl Fn(&T) -> f64) -> (f64, f64) {
        let median = |side: Vec<f64>| Figure::of("", "", &side).value;
        (
            median(self.each.iter().map(|(a, _)| of(a)).collect()),
            median(self.each.iter().map(|(_, b)| of(b)).collect()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A switch that passes so many packets a second, and no more.
    struct Line(f64);
    impl Load for Line {
        fn run(&mut self, shape: &Shape, pps: f64) -> Result<Trial, String> {
            let seconds = shape.time.as_secs_f64();
            let offered = if pps == 0.0 { self.0 } else { pps } * seconds;
            Ok(Trial {
                offered,
                got: offered.min(self.0 * seconds),
                seconds,
                clean: 9,
                delays: [0.0; 3],
                taken: offered as u64,
            })
        }
        fn switch(&self) -> Vec<u32> {
            Vec::new()
        }
        fn generator(&self) -> Option<u32> {
            None
        }
    }

    const SHAPE: Shape = Shape {
        size: 64,
        flows: 1,
        time: Duration::from_millis(100),
        every: false,
        hindered: false,
        loss: LOSS,
    };

    #[test]
    fn the_search_ends_near_what_the_switch_can_do() {
        let found = search(&mut Line(8e6), &SHAPE).unwrap();
        assert!((7.8..=8.01).contains(&found.mpps), "{found:?}");
        assert!(found.loss <= LOSS);
    }

    #[test]
    fn ratios_are_of_neighbours() {
        let turns = Turns {
            each: vec![(1.0, 2.0), (30.0, 40.0), (9.0, 10.0)],
            clusters: vec!["near", "far", "near"],
        };
        let figure = turns.ratio("x", |v| *v);
        assert_eq!((figure.value, figure.cluster.as_str()), (0.75, "mixed"));
        assert_eq!(figure.ours["ratio_far"], 0.75);
    }
}
