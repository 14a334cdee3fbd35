//! `bench soak`: short connections by circuits, of mixed sizes, by all ways in which bytes go and
//! programs wait; then the same with one of the two killed at a moment drawn by lot. Who does not
//! come to an end in time stalls.

use crate::Options;
use crate::pairs::Pair;
use crate::results::Figure;
use e2e::Ended;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Both sides of a run in C: they check each byte (the tests' own).
const EXCHANGE: &str = include_str!("../../tests/tests/circuits/exchange.c");
/// How its sides wait.
const WAYS: [&str; 6] = ["block", "poll", "select", "level", "edge", "shared"];
/// Runs that are under way at once, on two cores.
const LANES: usize = 4;
/// Seconds after which who has not ended stalls: a run takes milliseconds.
const LIMIT: &str = "10";
/// For programs that are stopped for most of the time, where the bench is held against itself.
const HINDERED: &str = "0.25";
/// Bytes of the longest run: three rings, each way.
const LONGEST: f64 = 3e6;
/// A peer is killed up to so many ms after it began.
const KILLED_WITHIN: u64 = 30;
/// What timeout(1) ends with that killed what it ran.
const KILLED: i32 = 137;
/// Who writes to nobody ends so, as with TCP.
const PIPE: i32 = 141;

/// Shells in both endpoints, for one run after another.
struct Lane {
    sides: [Side; 2],
    port: usize,
}

struct Side {
    tells: ChildStdin,
    hears: BufReader<ChildStdout>,
    // Dropped last: it ends with its input.
    _shell: Ended,
}

/// What a run is.
struct Run {
    /// What it follows from.
    seed: u64,
    /// The side that is killed, and when, ms.
    killed: Option<(usize, u64)>,
}

/// What became of all.
#[derive(Default)]
struct Sum {
    runs: AtomicU64,
    stalls: AtomicU64,
    killed: AtomicU64,
}

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    let (count, killing) = match (options.smoke || options.hindered, options.quick) {
        (true, _) => (40, Duration::from_millis(300)),
        (_, true) => (1000, Duration::from_secs(3)),
        _ if options.hour => (10_000, Duration::from_secs(3600)),
        _ => (10_000, Duration::from_secs(30)),
    };
    let limit = if options.hindered { HINDERED } else { LIMIT };
    let exchange = crate::peer::built("exchange", EXCHANGE, &["-pthread"])?;
    let pair = Pair::rings()?;
    let begun = Instant::now();
    let whole = in_lanes(&pair, &exchange, limit, |next| {
        let seed = next.fetch_add(1, Relaxed);
        (seed < count).then_some(Run { seed, killed: None })
    })?;
    let took = begun.elapsed();
    let begun = Instant::now();
    let broken = in_lanes(&pair, &exchange, limit, |next| {
        let seed = next.fetch_add(1, Relaxed) + count;
        let lot = mixed(seed ^ 0xdead);
        let killed = Some((lot as usize % 2, lot / 2 % KILLED_WITHIN));
        (begun.elapsed() < killing).then_some(Run { seed, killed })
    })?;
    let stalls = whole.stalls.into_inner() + broken.stalls.into_inner();
    let (whole, tried) = (whole.runs.into_inner(), broken.runs.into_inner());
    let killed = broken.killed.into_inner();
    Ok(vec![
        Figure::of("circuits.stalls", "count", &[stalls as f64])
            .ours("runs", whole)
            .ours("runs_took_s", took.as_secs_f64().round())
            .ours("to_be_killed", tried)
            .ours("killed", killed)
            .ours("killing_took_s", begun.elapsed().as_secs_f64().round())
            .note(format!(
                "runs that had not ended after {limit} s, of {whole} connections of 1 byte to 3 MB each way, {LANES} at a time, half of them by unmodified programs with the library of rings, a quarter by programs that know of circuits, a quarter by the socket, and of {tried} of which one side was to be killed within {KILLED_WITHIN} ms, as was {killed} times before its end; each byte checked"
            )),
    ])
}

/// Runs all that `next` gives, given how many there were.
fn in_lanes(
    pair: &Pair,
    exchange: &Path,
    limit: &str,
    next: impl Fn(&AtomicU64) -> Option<Run> + Sync,
) -> Result<Sum, String> {
    let (sum, given) = (Sum::default(), AtomicU64::new(0));
    std::thread::scope(|all| {
        let (sum, given, next) = (&sum, &given, &next);
        let lanes: Vec<_> = (0..LANES)
            .map(|number| {
                all.spawn(move || {
                    let mut lane = Lane::new(pair, number)?;
                    while let Some(run) = next(given) {
                        lane.run(&run, exchange, limit, pair.address, sum)?;
                    }
                    Ok::<_, String>(())
                })
            })
            .collect();
        let done = lanes.into_iter().map(|lane| lane.join());
        done.map(|lane| lane.unwrap_or_else(|_| Err("a lane has panicked".to_owned())))
            .collect::<Result<Vec<()>, String>>()
    })?;
    Ok(sum)
}

impl Lane {
    /// Its sides on one core or two, as its number says.
    fn new(pair: &Pair, number: usize) -> Result<Lane, String> {
        let cores = [number % 2, number / 2 % 2];
        let side = |server: bool| {
            let core = cores[usize::from(!server)];
            let mut shell = pair.command(server, core, "sh");
            shell.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut shell = Ended(shell.spawn().map_err(|e| format!("sh: {e}"))?);
            let (tells, hears) = (shell.0.stdin.take(), shell.0.stdout.take());
            Ok::<_, String>(Side {
                tells: tells.ok_or("no input")?,
                hears: BufReader::new(hears.ok_or("no output")?),
                _shell: shell,
            })
        };
        Ok(Lane {
            sides: [side(true)?, side(false)?],
            port: 10_000 + number * 10_000,
        })
    }

    /// One run: the client begins when the server is ready.
    fn run(
        &mut self,
        run: &Run,
        exchange: &Path,
        limit: &str,
        address: &str,
        sum: &Sum,
    ) -> Result<(), String> {
        let port = self.port + run.seed as usize % 10_000;
        let line = |side: usize| {
            let words = words(run.seed, side, exchange, address, port);
            // What is killed is killed with what it forked.
            let (signal, time) = match run.killed {
                Some((killed, ms)) if killed == side => ("KILL", format!("0.{:03}", ms + 1)),
                _ => ("TERM", limit.to_owned()),
            };
            // Killed before it connected, it leaves a server that waits rightly: somebody comes.
            let also = match run.killed {
                Some((1, _)) if side == 1 => {
                    format!("bash -c ': <>/dev/tcp/{address}/{port}' 2>/dev/null; ")
                }
                _ => String::new(),
            };
            format!("timeout -s {signal} {time} {words} 2>&1; code=$?; {also}echo done $code\n")
        };
        let [server, client] = &mut self.sides;
        server.tell(&line(0))?;
        // One that is killed before it is ready has no client.
        let mut said = [String::new(), String::new()];
        let mut codes = [server.hear("serving", &mut said[0])?, None];
        if codes[0].is_none() {
            client.tell(&line(1))?;
            codes[1] = client.hear("", &mut said[1])?;
            codes[0] = server.hear("", &mut said[0])?;
        }
        // timeout(1)'s own code.
        let stalls = codes.contains(&Some(124));
        // Who was faster than its end was not killed. Who is left may hear of the other's, and does not crash.
        let was_killed = run
            .killed
            .is_some_and(|(side, _)| codes.get(side) == Some(&Some(KILLED)));
        let fails = match run.killed {
            None => codes != [Some(0); 2],
            Some((side, _)) => (0..2).zip(codes).any(|(of, code)| {
                let ends_so = [Some(PIPE), (of == side).then_some(KILLED)];
                code.is_some_and(|it| it >= 128) && !ends_so.contains(&code)
            }),
        };
        if (fails && !stalls) || said.iter().any(|said| said.contains("wrong byte")) {
            let line = [line(0), line(1)].concat();
            return Err(format!("a run failed: {codes:?} {said:?}: {line}"));
        }
        if stalls {
            eprintln!("stalled: {codes:?} {said:?}: {}{}", line(0), line(1));
            sum.stalls.fetch_add(1, Relaxed);
        }
        sum.runs.fetch_add(1, Relaxed);
        sum.killed.fetch_add(u64::from(was_killed), Relaxed);
        Ok(())
    }
}

impl Side {
    fn tell(&mut self, line: &str) -> Result<(), String> {
        let told = self.tells.write_all(line.as_bytes());
        told.map_err(|e| format!("a shell is gone: {e}"))
    }

    /// Reads until it says this word (`None`), or how what it ran ended.
    fn hear(&mut self, word: &str, said: &mut String) -> Result<Option<i32>, String> {
        loop {
            let mut line = String::new();
            match self.hears.read_line(&mut line) {
                Ok(0) | Err(_) => return Err(format!("a shell is gone: {said}")),
                Ok(_) => {}
            }
            if let Some(code) = line.strip_prefix("done ") {
                return Ok(code.trim().parse().ok());
            }
            if line.trim() == word && !word.is_empty() {
                return Ok(None);
            }
            *said += &line;
        }
    }
}

/// What a side of a run is, by lot.
fn words(seed: u64, side: usize, exchange: &Path, address: &str, port: usize) -> String {
    let lot = mixed(seed);
    // As many of each magnitude.
    let size = LONGEST.powf((lot >> 8 & 0xffff) as f64 / 65_535.0);
    if seed.is_multiple_of(4) {
        let program = std::env::current_exe().unwrap_or_default();
        let what = ["mixed-serve", "mixed-ask"][side];
        let size = size as u64;
        return format!(
            "{} talk {what} {address}:{port} {seed} {size}",
            program.display()
        );
    }
    let what = ["serve", "ask"][side];
    let without = match seed % 4 {
        1 => "env -u LD_PRELOAD ",
        _ => "",
    };
    let way = WAYS[(lot >> (24 + 8 * side)) as usize % WAYS.len()];
    format!(
        "{without}{} {what} {address} {port} {way} {:.6} {seed}",
        exchange.display(),
        size / 1e6
    )
}

/// splitmix64's last step.
fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_of_all_ways_and_magnitudes() {
        let exchange = Path::new("exchange");
        let all: Vec<String> = (0..1000)
            .map(|seed| words(seed, 0, exchange, "10.9.0.2", 7000))
            .collect();
        let having = |what: &str| all.iter().filter(|words| words.contains(what)).count();
        assert_eq!((having("mixed-serve"), having("env -u")), (250, 250));
        for way in WAYS {
            assert!(having(&format!(" {way} ")) > 80, "{way}");
        }
        let size = |words: &String| {
            let rest = words.split(' ').rev().nth(1);
            rest.and_then(|it| it.parse::<f64>().ok()).unwrap()
        };
        let sizes: Vec<f64> = all
            .iter()
            .filter(|words| words.contains("exchange"))
            .map(size)
            .collect();
        assert!(sizes.iter().all(|size| (1e-6..=3.0).contains(size)));
        assert!(sizes.iter().filter(|size| **size < 0.001).count() > 200);
        assert!(sizes.iter().filter(|size| **size > 0.5).count() > 50);
    }
}
