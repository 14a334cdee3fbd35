//! `bench footprint`: memory and idle cost of one compartment.

use crate::Options;
use crate::results::Figure;
use e2e::Instance;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Hindered: five hundred endpoints more, and a switch that never sleeps.
fn spec(hindered: bool) -> String {
    let mut text = String::from(SPEC);
    if hindered {
        text = text
            .replace("adaptive", "{ poll: 50us }")
            .replace("10.1.1.0/24", "10.1.0.0/16");
        for n in 0..500 {
            text += &format!(
                "      - {{ name: x{n}, subnet: lan, addresses: [10.1.{}.{}], attach: fifo }}\n",
                2 + n / 250,
                1 + n % 250
            );
        }
    }
    text
}

const SPEC: &str = "version: 1
tenants:
  - name: red
    wait: adaptive
    subnets:
      - { name: lan, prefixes: [10.1.1.0/24, \"fd00:1:1::/64\"] }
    endpoints:
      - { name: a, subnet: lan, addresses: [10.1.1.10], attach: fifo }
      - { name: b, subnet: lan, addresses: [10.1.1.11], attach: fifo }
";

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    let window = Duration::from_secs(if options.smoke { 1 } else { 10 });
    let (mut private, mut total, mut idle) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.runs(5, 2) {
        let instance = Instance::start()?;
        instance.apply(&spec(options.hindered))?;
        let pid = instance.pid("red")?;
        // Idle means idle: what starting cost is over.
        std::thread::sleep(Duration::from_millis(if options.smoke {
            300
        } else {
            2000
        }));
        let memory = memory(pid)?;
        private.push(memory.private_mib);
        total.push(memory.private_mib + memory.shared_memory_mib);
        let (cpu, start) = (cpu_ns(pid)?, Instant::now());
        std::thread::sleep(window);
        idle.push((cpu_ns(pid)? - cpu) as f64 / start.elapsed().as_nanos() as f64 * 100.0);
    }
    Ok(vec![
        Figure::of("footprint.compartment_mib", "MiB", &private).note("private pages of the switch process (smaps)"),
        Figure::of("footprint.total_mib", "MiB", &total)
            .note("and all memory of every file it maps: channels at default size, counters, recorder, image, journal"),
        Figure::of("footprint.idle_core_pct", "%", &idle).note("of one core, adaptive, nothing to do"),
    ])
}

struct Memory {
    private_mib: f64,
    shared_memory_mib: f64,
}

/// Private pages, and what the memfds mapped take, each file once: channels are allocated in
/// whole before they are handed over, the journal is as it is used.
fn memory(pid: u32) -> Result<Memory, String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps"))
        .map_err(|e| format!("smaps of {pid}: {e}"))?;
    let mut private_kib = 0_u64;
    let mut files = std::collections::BTreeMap::new();
    let mut of_memfd = None;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [range, _, _, _, inode, path, ..] if range.contains('-') => {
                of_memfd = path.starts_with("/memfd:").then_some(());
                if of_memfd.is_some() && !files.contains_key(*inode) {
                    let file = format!("/proc/{pid}/map_files/{range}");
                    let file = std::fs::metadata(&file).map_err(|e| format!("{file}: {e}"))?;
                    files.insert(inode.to_string(), file.blocks() * 512);
                }
            }
            [range, ..] if range.contains('-') && words.len() == 5 => of_memfd = None,
            ["Private_Clean:" | "Private_Dirty:", kib, "kB"] if of_memfd.is_none() => {
                private_kib += kib.parse::<u64>().unwrap_or(0);
            }
            _ => {}
        }
    }
    Ok(Memory {
        private_mib: private_kib as f64 / 1024.0,
        shared_memory_mib: files.values().sum::<u64>() as f64 / (1024.0 * 1024.0),
    })
}

/// CPU time of a process with that of its threads that have ended, nanoseconds, in steps of
/// 10 ms (USER_HZ, the same on every Linux).
pub fn cpu_ended_too_ns(pid: u32) -> Result<u64, String> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    let fields = text.rsplit_once(") ").map_or("", |(_, fields)| fields);
    // utime and stime, fields 14 and 15.
    let ticks = fields.split(' ').skip(11).take(2);
    Ok(ticks.filter_map(|w| w.parse::<u64>().ok()).sum::<u64>() * 10_000_000)
}

/// CPU time of all threads of a process, nanoseconds.
pub fn cpu_ns(pid: u32) -> Result<u64, String> {
    let mut sum = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))
        .map_err(|e| format!("tasks of {pid}: {e}"))?
        .flatten()
    {
        let text =
            std::fs::read_to_string(thread.path().join("schedstat")).map_err(|e| e.to_string())?;
        sum += text
            .split_whitespace()
            .next()
            .and_then(|w| w.parse::<u64>().ok())
            .unwrap_or(0);
    }
    Ok(sum)
}
