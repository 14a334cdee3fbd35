//! Two workers against one: two pairs of endpoints, each pair at home at one worker of two,
//! and a thread for each pair that sends what its ring takes and counts what comes.

use super::site::{PLAIN, Station, frame};
use crate::Options;
use crate::flow::{Attached, attach, station};
use crate::load::fifo::pin;
use crate::results::Figure;
use e2e::Instance;
use std::time::{Duration, Instant};

/// Workers that are compared with one, and threads that send and receive.
const WORKERS: usize = 2;
const GENERATORS: usize = 2;
/// Slots follow the names: one and three are at home at one worker, two and four at the other.
const PAIRS: [(&str, &str); GENERATORS] = [("a", "c"), ("b", "d")];
/// Flows of each pair.
const FLOWS: u32 = 500;
/// Frames put into a ring before what came is taken.
const BURST: usize = 64;

/// The figure; where cores do not allow it, why.
pub fn figure(options: &Options, turns: usize) -> Result<Figure, String> {
    const ID: &str = "forward.workers2_ratio";
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let needed = WORKERS + GENERATORS;
    if cores < needed && !options.smoke {
        return Ok(Figure::missing(
            ID,
            &format!(
                "not measured: two workers under two generators need {needed} cores, here are {cores}"
            ),
        ));
    }
    let time = Duration::from_millis(if options.smoke || options.quick {
        200
    } else {
        1_000
    });
    let (mut one, mut two) = (Setup::start(1)?, Setup::start(WORKERS)?);
    let (mut ratios, mut all) = (Vec::new(), [Vec::new(), Vec::new()]);
    for _ in 0..turns {
        let mpps = [one.run(time, cores)?, two.run(time, cores)?];
        ratios.push(mpps[1] / mpps[0]);
        for (all, mpps) in all.iter_mut().zip(mpps) {
            all.push(mpps);
        }
    }
    let median = |all: &[f64]| Figure::of("", "", all).value;
    let few = match cores < needed {
        true => format!("; only {cores} cores for {needed} threads: it says nothing"),
        false => String::new(),
    };
    Ok(Figure::of(ID, "ratio", &ratios)
        .ours("mpps_one_worker", median(&all[0]))
        .ours("mpps_two_workers", median(&all[1]))
        .ours("cores", needed)
        .note(format!(
            "64 B over FIFOs, two pairs of endpoints, {FLOWS} flows each, with connections; the same generators, the switch with two workers against one{few}"
        )))
}

struct Setup {
    instance: Instance,
    pairs: Vec<(Attached, Attached, Vec<Vec<u8>>)>,
}

impl Setup {
    fn start(workers: usize) -> Result<Setup, String> {
        let instance = Instance::start()?;
        let endpoints: String = (10..)
            .zip(["a", "b", "c", "d"])
            .map(|(host, name)| {
                format!(
                    "      - {{ name: {name}, subnet: lan, addresses: [10.1.1.{host}], attach: {{ fifo: {{ capacity: 1MiB }} }} }}\n"
                )
            })
            .collect();
        instance.apply(&format!(
            "version: 1
tenants:
  - name: red
    workers: {workers}
    subnets: [{{ name: lan, prefixes: [10.1.1.0/24] }}]
    endpoints:
{endpoints}    policy:
      default: {{ inside: deny }}
      rules:
        - {{ name: flows, action: allow, protocol: udp }}
"
        ))?;
        let run = instance.run_dir();
        let mut pairs = Vec::new();
        for (from, to) in PAIRS {
            let station = |name| station(&instance, "red", name);
            let ends: [Station; 2] = [station(from)?, station(to)?];
            let frames = (0..FLOWS)
                .map(|flow| frame(ends[0], ends[1], flow, 64, false))
                .collect();
            pairs.push((attach(&run, "red", from)?, attach(&run, "red", to)?, frames));
        }
        Ok(Setup { instance, pairs })
    }

    /// Million frames a second that came, of all pairs.
    fn run(&mut self, time: Duration, cores: usize) -> Result<f64, String> {
        let came: Result<Vec<u64>, String> = std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .pairs
                .iter_mut()
                .enumerate()
                .map(|(n, (from, to, frames))| {
                    scope.spawn(move || {
                        // The last cores; the kernel finds the others for the switch.
                        pin(cores.saturating_sub(1 + n) % cores)?;
                        drive(from, to, frames, time)
                    })
                })
                .collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended
                .map(|came| came.map_err(|_| "a generator panicked".to_owned())?)
                .collect()
        });
        let came: u64 = came?.iter().sum();
        if came == 0 {
            return Err(format!("nothing came: {}", self.instance.log()));
        }
        Ok(came as f64 / time.as_secs_f64() / 1e6)
    }
}

/// Frames that came in this time.
fn drive(
    from: &mut Attached,
    to: &mut Attached,
    frames: &[Vec<u8>],
    time: Duration,
) -> Result<u64, String> {
    let say = |breach| format!("{breach:?}");
    let (mut next, mut came) = (frames.iter().cycle(), 0);
    let end = Instant::now() + time;
    while Instant::now() < end {
        let (tx, rx) = (&mut from.channel.tx, &mut to.channel.rx);
        // Both ends of each channel are followed: what a restart says is seen.
        tx.ring.poll().map_err(say)?;
        from.channel.rx.ring.poll().map_err(say)?;
        to.channel.tx.ring.poll().map_err(say)?;
        for _ in 0..BURST {
            let Some(frame) = next.next() else { break };
            if tx.ring.push(0, &PLAIN, frame, &[]).is_err() {
                break;
            }
        }
        if tx.ring.publish() == shm::Doorbell::Ring {
            tx.bell.ring().map_err(|e| e.to_string())?;
        }
        while rx.ring.next().map_err(say)?.is_some() {
            came += 1;
        }
        rx.ring.release();
    }
    Ok(came)
}
