//! `bench neighbour`: what a neighbour that does its worst costs: a tenant on the other
//! core, an endpoint of the same switch, a switch on the same fabric.

mod fabric;
mod plain;
mod same;

use crate::Options;
use crate::flow::{Attached, PORT, attach, packet, station};
use crate::results::Figure;
use e2e::Instance;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use shm::Doorbell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wire::checksum;
use wire::offload::RawOffload;

/// What the neighbour sends.
const ATTACKS: &[(&str, Attack)] = &[
    ("full rate", |_, _| ()),
    ("new flows", |frame, random| {
        frame[34..36].copy_from_slice(&(random as u16).to_be_bytes());
        frame[36..38].copy_from_slice(&((random >> 16) as u16 | 1).to_be_bytes());
    }),
    ("headers that no rule has", |frame, random| {
        frame[30..34].copy_from_slice(&(random as u32).to_be_bytes());
        frame[34..38].copy_from_slice(&((random >> 32) as u32).to_be_bytes());
        header(frame);
    }),
    ("SYN flood", |frame, random| {
        frame[23] = 6;
        frame[34..36].copy_from_slice(&(random as u16).to_be_bytes());
        frame[36..38].copy_from_slice(&((random >> 16) as u16 | 1).to_be_bytes());
        frame[46..48].copy_from_slice(&[0x50, 0x02]);
        header(frame);
    }),
    ("ACK flood", |frame, random| {
        frame[23] = 6;
        frame[34..36].copy_from_slice(&(random as u16).to_be_bytes());
        frame[36..38].copy_from_slice(&((random >> 16) as u16 | 1).to_be_bytes());
        frame[46..48].copy_from_slice(&[0x50, 0x10]);
        header(frame);
    }),
    ("fragments", |frame, random| {
        frame[18..20].copy_from_slice(&(random as u16).to_be_bytes());
        // Firsts and later ones, each of a packet of its own.
        let place: u16 = if random & 1 << 40 == 0 {
            0x2000
        } else {
            0x2010
        };
        frame[20..22].copy_from_slice(&place.to_be_bytes());
        header(frame);
    }),
];

type Attack = fn(&mut [u8], u64);

/// Makes the IPv4 header's checksum right.
fn header(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum = checksum::internet(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut figures = Vec::new();
    if cores >= 2 {
        figures.push(isolated(options)?);
    }
    figures.push(same::run(options)?);
    figures.extend(fabric::run(options)?);
    Ok(figures)
}

fn isolated(options: &Options) -> Result<Figure, String> {
    let instance = Instance::start()?;
    let mut spec = String::from("version: 1\ntenants:\n");
    // Core 1 is b's alone; hindered, it has none of its own.
    let own = match options.hindered {
        true => "shared",
        false => "{ isolated: [1] }",
    };
    for (tenant, cores) in [("a", "shared"), ("b", own)] {
        spec += &format!(
            "  - name: {tenant}
    cores: {cores}
    subnets: [{{ name: lan, prefixes: [10.1.1.0/24] }}]
    endpoints:
      - {{ name: from, subnet: lan, addresses: [10.1.1.10], attach: {{ fifo: {{ capacity: 1MiB }} }} }}
      - {{ name: to, subnet: lan, addresses: [10.1.1.11], attach: {{ fifo: {{ capacity: 1MiB }} }} }}
"
        );
        spec += &rules(&[("from", "to")]);
    }
    instance.apply(&spec)?;
    let time = Duration::from_millis(if options.smoke { 300 } else { 1000 });
    let (mut worst, mut name) = (Figure::of("", "", &[f64::INFINITY]), "");
    let mut seen = Vec::new();
    for (attack, make) in ATTACKS {
        let mut ratios = Vec::new();
        for _ in 0..options.runs(9, 3) {
            let alone = share(&instance, time, None)?;
            // Hindered, the neighbour is on the same core.
            let core = usize::from(options.hindered);
            let beside = share(&instance, time, Some((*make, core)))?;
            ratios.push(beside / alone);
        }
        let figure = Figure::of("neighbour.isolated", "ratio", &ratios);
        seen.push(format!("{attack}: {:.3}", figure.value));
        if figure.value < worst.value {
            (worst, name) = (figure, attack);
        }
    }
    Ok(worst
        .ours("by_attack", seen.join("; "))
        .note(format!("packets that b's own receive while a attacks on the other core, against alone; the worst is {name}")))
}

/// 248 rules that nothing here is in, and TCP and UDP for these.
fn rules(pairs: &[(&str, &str)]) -> String {
    let mut text = String::from("    policy:\n      default: deny\n      rules:\n");
    for n in 0..248 {
        text += &format!(
            "        - {{ name: r{n}, action: allow, from: {{ prefix: 192.0.2.{n}/32 }}, protocol: tcp, ports: [{}] }}\n",
            2000 + n
        );
    }
    for (from, to) in pairs {
        for protocol in ["udp", "tcp"] {
            text += &format!(
                "        - {{ name: {protocol}-{from}, action: allow, from: {{ endpoint: {from} }}, to: {{ endpoint: {to} }}, protocol: {protocol} }}\n"
            );
        }
    }
    text
}

/// Packets a second that b's sink gets, with a's attack beside or none.
fn share(
    instance: &Instance,
    time: Duration,
    attack: Option<(Attack, usize)>,
) -> Result<f64, String> {
    let stop = AtomicBool::new(false);
    let frame = |tenant: &str| -> Result<Vec<u8>, String> {
        let (from, to) = (
            station(instance, tenant, "from")?,
            station(instance, tenant, "to")?,
        );
        Ok(packet(from, to))
    };
    let end = |tenant: &str, name: &str| attach(&instance.run_dir(), tenant, name);
    let (mine, theirs) = (frame("b")?, frame("a")?);
    let mut ends = [end("b", "from")?, end("b", "to")?];
    let mut others = match attack {
        Some(_) => vec![end("a", "from")?, end("a", "to")?],
        None => Vec::new(),
    };
    let (came, ignored) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let [from, to] = &mut ends;
        let mut threads = vec![
            scope.spawn(|| pin(None, 1).and_then(|()| pour(from, mine, |_, _| (), &stop))),
            scope.spawn(|| pin(None, 1).and_then(|()| take(to, &came, &stop))),
        ];
        if let (Some((make, core)), [from, to]) = (attack, &mut others[..]) {
            let (stop, ignored) = (&stop, &ignored);
            threads.push(
                scope.spawn(move || pin(None, core).and_then(|()| pour(from, theirs, make, stop))),
            );
            threads
                .push(scope.spawn(move || pin(None, core).and_then(|()| take(to, ignored, stop))));
        }
        let rate = a_second(&came, &stop, time);
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        rate
    })
}

/// Who has no processor for so long, on a machine that does much else, is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// How much a second is counted in this time, once it is under way; then all stop.
fn a_second(counted: &AtomicU64, stop: &AtomicBool, time: Duration) -> Result<f64, String> {
    let counted = || Ok(counted.load(Ordering::Relaxed));
    let rate = rate(counted, Duration::from_millis(100), time, |n| *n);
    stop.store(true, Ordering::Relaxed);
    rate.map(|(first, last, took)| (last - first) as f64 / took)
}

/// What is counted so long after it began, and a while later, in which something came by
/// `own`; and how many seconds lie between.
fn rate<T>(
    counted: impl Fn() -> Result<T, String>,
    warm: Duration,
    time: Duration,
    own: impl Fn(&T) -> u64,
) -> Result<(T, T, f64), String> {
    std::thread::sleep(warm);
    let (first, begun) = (counted()?, Instant::now());
    while begun.elapsed() < PATIENCE.max(time) {
        std::thread::sleep(time);
        let (last, took) = (counted()?, begun.elapsed());
        if own(&last) > own(&first) {
            return Ok((first, last, took.as_secs_f64()));
        }
    }
    Err("nothing came".into())
}

/// Pins a process, or this thread.
fn pin(process: Option<u32>, core: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(core);
    let pid = process.and_then(|pid| Pid::from_raw(pid as i32));
    sched_setaffinity(pid, &set).map_err(|e| format!("core {core}: {e}"))
}

/// As many frames as the ring takes, each made by `make` from a number at random.
fn pour(
    at: &mut Attached,
    mut frame: Vec<u8>,
    make: impl Fn(&mut [u8], u64),
    stop: &AtomicBool,
) -> Result<(), String> {
    let offload = RawOffload::default();
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    while !stop.load(Ordering::Relaxed) {
        let mut full = false;
        for _ in 0..32 {
            random ^= random >> 12;
            random ^= random << 25;
            random ^= random >> 27;
            make(&mut frame, random.wrapping_mul(0x2545_F491_4F6C_DD1D));
            full = at.channel.tx.ring.push(0, &offload, &frame, &[]).is_err();
            if full {
                break;
            }
        }
        if at.channel.tx.ring.publish() == Doorbell::Ring {
            let _ = at.channel.tx.bell.ring();
        }
        if full {
            at.channel.tx.ring.poll().map_err(|b| format!("{b:?}"))?;
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// Counts what comes to the port of the flows.
fn take(at: &mut Attached, came: &AtomicU64, stop: &AtomicBool) -> Result<(), String> {
    let mut head = [0; 42];
    while !stop.load(Ordering::Relaxed) {
        at.channel.tx.ring.poll().map_err(|b| format!("{b:?}"))?;
        let mut any = 0;
        while let Some(record) = at.channel.rx.ring.next().map_err(|b| format!("{b:?}"))? {
            record.copy(0, &mut head);
            any += u64::from(head[36..38] == PORT.to_be_bytes());
        }
        at.channel.rx.ring.release();
        came.fetch_add(any, Ordering::Relaxed);
        if any == 0 {
            std::thread::yield_now();
        }
    }
    Ok(())
}
