//! An operator's death under a thousand connects: how long nobody gets anywhere, and whether
//! any call hangs.

use crate::Options;
use crate::pairs::Pair;
use crate::results::Figure;
use e2e::Ended;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

const PORT: u16 = 7009;
/// Threads that connect again and again.
const CONNECTS: usize = 1000;
/// Between two deaths: whoever follows does again what was left, also what the one before had forgotten, which so is seen
/// only by who waits for longer than that takes to show.
const PAUSE: Duration = Duration::from_millis(2500);
const QUICK: Duration = Duration::from_millis(700);
/// For one to come.
const LIMIT: Duration = Duration::from_secs(2);

/// Both figures.
pub fn run(pair: &Pair, options: &Options) -> Result<[Figure; 2], String> {
    let deaths = options.runs(60, 2);
    let pause = if options.quick { QUICK } else { PAUSE };
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let program = program.to_str().ok_or("own path")?.to_owned();
    let address = format!("{}:{PORT}", pair.address);
    let mut server = pair.command(true, 0, &program);
    server
        .args(["talk", "serve", &address])
        .stderr(Stdio::null());
    let mut server = Ended(server.spawn().map_err(|e| format!("talk: {e}"))?);
    std::thread::sleep(Duration::from_millis(500));
    let time = pause * (deaths as u32 + 1);
    let mut client = pair.command(false, 1, &program);
    client.args(["talk", "ends", &address, &time.as_millis().to_string()]);
    client.arg(CONNECTS.to_string()).stdout(Stdio::piped());
    let mut client = Ended(client.spawn().map_err(|e| format!("talk: {e}"))?);
    let (mut killed, taken) = (Vec::new(), pair.taken()?);
    let begun = Instant::now();
    for step in 1..=deaths {
        let next = pause * step as u32;
        std::thread::sleep(next.saturating_sub(begun.elapsed()));
        let died = dies(pair.operator().ok_or("no operator")?, step)?;
        killed.push((died, worker::clock::monotonic()));
    }
    let mut said = String::new();
    let out = client.0.stdout.as_mut().ok_or("no output")?;
    out.read_to_string(&mut said).map_err(|e| e.to_string())?;
    client.end();
    server.end();
    let mut ends: Vec<u64> = said.lines().filter_map(|line| line.parse().ok()).collect();
    ends.sort_unstable();
    let last = said.lines().last().unwrap_or_default();
    let number = |name: &str| -> Option<f64> {
        let mut words = last.split(' ').skip_while(|word| *word != name);
        words.nth(1)?.parse().ok()
    };
    let all = ["hung", "failed", "slow"].map(number);
    let [Some(hung), Some(failed), Some(slow)] = all else {
        return Err(format!(
            "talk: {} lines, and no word of those that hung",
            ends.len()
        ));
    };
    // Known, and counted: of each at most one is reset (decision 35).
    let lost = failed.min((pair.taken()? - taken) as f64);
    let outages: Vec<f64> = killed.iter().filter_map(|of| gap(&ends, *of)).collect();
    if outages.len() != killed.len() {
        return Err("connections ended before the last death".to_owned());
    }
    let what = format!(
        "{CONNECTS} threads connect, say a byte, hear it, close; the operator killed {deaths} times, as it began its first system call from some moment on, its second, and so on (a set-up is some 40), {} connections in all",
        ends.len()
    );
    Ok([
        Figure::of("circuits.operator_outage_ms", "ms", &outages).note(format!(
            "the longest time without an end of a connection from each death on: from when strace saw the call begin at which it killed, for by then it had slowed the operator down; {what}"
        )),
        Figure::of("circuits.hung_calls", "count", &[hung + failed - lost])
            .ours("failed", failed)
            .ours("lost_with_operators", lost)
            .ours("over_two_seconds", slow)
            .note(format!(
                "connections that took more than two seconds, in which twice as many as there are threads were over, or ten in any case, or failed but for those that an operator died with just as it had taken them from the kernel's queue, as `status` counts (`taken`); {what}"
            )),
    ])
}

/// Has it killed as it begins the `step`th system call from now on; when that was.
fn dies(operator: u32, step: usize) -> Result<u64, String> {
    let mut strace = Command::new("strace");
    strace.args([
        "-qq",
        "-ttt",
        "-p",
        &operator.to_string(),
        "-e",
        "trace=all",
    ]);
    strace.args(["-e", &format!("inject=all:signal=KILL:when={step}")]);
    let strace = strace.stderr(Stdio::piped()).spawn();
    let mut strace = Ended(strace.map_err(|e| format!("strace: {e}"))?);
    let limit = Instant::now() + LIMIT;
    // It ends with whom it traces. What it says of so few calls has room in a pipe.
    while matches!(strace.0.try_wait(), Ok(None)) {
        if Instant::now() > limit {
            return Err(format!("the operator began no {step} system calls"));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    // Or it could not be traced.
    let stat = std::fs::read_to_string(format!("/proc/{operator}/stat"));
    if stat.is_ok_and(|stat| !stat.contains(") Z ")) {
        return Err("strace did not kill the operator: may it trace here?".to_owned());
    }
    let mut said = String::new();
    let err = strace.0.stderr.as_mut().ok_or("no output")?;
    err.read_to_string(&mut said).map_err(|e| e.to_string())?;
    let ago = said.lines().rev().find_map(last_call).and_then(|at| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.ok()?.checked_sub(at)
    });
    let ago = ago.ok_or_else(|| format!("strace said {said:?}"))?;
    Ok(worker::clock::monotonic().saturating_sub(ago.as_nanos() as u64))
}

/// When a system call began, of a line of strace's that is of one.
fn last_call(line: &str) -> Option<Duration> {
    let (at, what) = line.split_once(' ')?;
    let seconds: f64 = at.parse().ok()?;
    (!what.starts_with("+++") && !what.starts_with("---")).then(|| Duration::from_secs_f64(seconds))
}

/// The longest pause between two ends, of what of it lies behind the first of two moments and began by half a second after the second, ms.
/// `None`: nothing ended after it.
fn gap(ends: &[u64], (at, over): (u64, u64)) -> Option<f64> {
    let last = ends.last().filter(|end| **end > over)?;
    let until = (over + 500_000_000).min(*last);
    let pairs = ends
        .windows(2)
        .filter_map(|pair| Some((*pair.first()?, *pair.get(1)?)));
    let within = pairs
        .filter(|(_, end)| *end > at)
        .filter(|(from, _)| *from < until);
    within
        .map(|(from, end)| (end - from.max(at)) as f64 / 1e6)
        .reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::{gap, last_call};
    use std::time::Duration;

    #[test]
    fn a_call_of_straces_has_its_moment() {
        let said = [
            "1795890000.250000 epoll_wait(5, ",
            "1795890001.000000 +++ killed by SIGKILL +++",
        ];
        let at = said.map(last_call);
        assert_eq!(at, [Some(Duration::from_millis(1_795_890_000_250)), None]);
    }

    #[test]
    fn the_longest_pause_after_a_moment_counts() {
        let ms = |n: u64| n * 1_000_000;
        let ends = [ms(1), ms(50), ms(100), ms(101), ms(115), ms(116), ms(900)];
        assert_eq!(gap(&ends, (ms(100), ms(100))), Some(784.0));
        assert_eq!(gap(&ends[..6], (ms(100), ms(100))), Some(14.0));
        assert_eq!(gap(&ends[..6], (ms(60), ms(60))), Some(40.0));
        assert_eq!(gap(&ends, (ms(900), ms(900))), None);
    }
}
