//! A tenant beside one whose switch has been taken over and floods the fabric with the
//! smallest frames toward the same uplink.

use super::{pin, plain, pour, rate};
use crate::Options;
use crate::flow::Attached;
use crate::load::Slowed;
use crate::outside::Outside;
use crate::results::{Figure, quantile};
use e2e::Instance;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Packets a second whose delays are taken.
const PACED: u64 = 20_000;

/// Before delays are taken.
const WARM: Duration = Duration::from_millis(300);

/// The program, while it is needed.
struct Flood(std::path::PathBuf);

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    let outside = Outside::make()?;
    let liar = e2e::program("bulkhead-liar");
    // What asks it for a flood is its name; from elsewhere the supervisor starts nothing.
    let flood = liar.with_file_name("bulkhead-liar-flood");
    std::fs::copy(&liar, &flood).map_err(|e| format!("{}: {e}", liar.display()))?;
    let flood = Flood(flood);
    let instance = Instance::start()?;
    let time = Duration::from_millis(if options.smoke { 300 } else { 1000 });
    let (mut shares, mut delays, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    let mut told = Vec::new();
    for _ in 0..options.runs(7, 3) {
        instance.apply(&outside.spec())?;
        let alone = flow(&instance, &outside, time, options.hindered)?;
        let quick = delay(&instance, &outside, time)?;
        instance.apply(&(outside.spec() + &neighbour(&flood.0)))?;
        let beside = flow(&instance, &outside, time, options.hindered)?;
        // Hindered, the fabric stands still half of the time.
        let process = instance.pid("fabric")?;
        let slowed = options.hindered.then(|| Slowed::start(process, 300, 300));
        let slow = delay(&instance, &outside, time)?;
        drop(slowed);
        // Half of what the uplink carries, or all that it offers where that is less.
        let fair = (beside.all / 2.0).min(alone.own);
        shares.push(beside.own / fair);
        delays.push(slow / quick);
        rates.push((beside.all / 1e6, beside.own / 1e6, alone.own / 1e6));
        told.push(format!("{:.0} us, {:.0} us alone", slow / 1e3, quick / 1e3));
    }
    drop(flood);
    let kernel = plain::share(options, plain::Meet::Together)?;
    let rates: Vec<String> = rates
        .iter()
        .map(|(all, own, alone)| format!("{own:.2} of {all:.2} M/s, {alone:.2} alone"))
        .collect();
    let delays = Figure::of("neighbour.fabric_p99", "ratio", &delays)
        .ours("p99", told.join("; "))
        .note("p99 of the delay of 20,000 packets a second from their ring to the far side's kernel, beside the flood against alone");
    let shares = Figure::of("neighbour.fabric", "ratio", &shares)
        .ours("frames", rates.join("; "))
        .peer("name", "Linux bridge with veth pairs, UDP floods of 64-byte frames to one port")
        .peer("share", kernel)
        .note("64-byte frames of one tenant on the uplink while another's switch, taken over, floods it, against half of all or what it offers alone");
    Ok(vec![shares, delays])
}

/// Another tenant, whose switch is this program.
fn neighbour(program: &std::path::Path) -> String {
    format!(
        "  - name: evil
    placement: {{ program: {} }}
    subnets:
      - {{ name: lan, prefixes: [10.2.1.0/24] }}
    endpoints:
      - {{ name: e, subnet: lan, addresses: [10.2.1.10], attach: fifo }}
    outside:
      - {{ uplink: wan, address: [192.0.2.11/24], gateway: [192.0.2.1] }}
",
        program.display()
    )
}

/// Frames a second.
struct Rates {
    own: f64,
    all: f64,
}

/// As much as the fabric takes of one tenant; what came to the far side of it, and of all.
fn flow(
    instance: &Instance,
    outside: &Outside,
    time: Duration,
    hindered: bool,
) -> Result<Rates, String> {
    if std::thread::available_parallelism().map_or(1, usize::from) > 1 {
        pin(Some(instance.pid("fabric")?), 0)?;
        pin(Some(instance.pid("red")?), 1)?;
        if let Ok(evil) = instance.pid("evil") {
            pin(Some(evil), 1)?;
        }
    }
    let (mut source, packet) = outside.source(instance)?;
    let socket = outside.ear()?;
    let stop = AtomicBool::new(false);
    let rest = |_: &mut [u8], random: u64| {
        if hindered && random & 63 == 0 {
            std::thread::sleep(Duration::from_micros(500));
        }
    };
    let rates = std::thread::scope(|scope| {
        let pourer = scope.spawn(|| pouring(&mut source, packet, rest, &stop));
        let warm = Duration::from_millis(200);
        let came = rate(|| outside.came(), warm, time, |came| came.0);
        stop.store(true, Ordering::Relaxed);
        pourer.join().map_err(|_| "the sender panicked")??;
        let (first, last, took) = came?;
        Ok::<_, String>(Rates {
            own: (last.0 - first.0) as f64 / took,
            all: (last.1 - first.1) as f64 / took,
        })
    })?;
    drop(socket);
    Ok(rates)
}

fn pouring(
    source: &mut Attached,
    packet: Vec<u8>,
    make: impl Fn(&mut [u8], u64),
    stop: &AtomicBool,
) -> Result<(), String> {
    if std::thread::available_parallelism().map_or(1, usize::from) > 1 {
        pin(None, 1)?;
    }
    pour(source, packet, make, stop)
}

/// p99 of the delay of paced packets to the far side, nanoseconds: from when a batch was put
/// into the ring until the far side's kernel had it. What is late with its first packets,
/// while threads start and memory is touched, is not the fabric.
fn delay(instance: &Instance, outside: &Outside, time: Duration) -> Result<f64, String> {
    let flow = outside.flow(instance, PACED, time + Duration::from_secs(5))?;
    flow.running()?;
    std::thread::sleep(WARM + time);
    let mut delays = flow.end()?.delays_after(WARM.as_nanos() as u64);
    if delays.is_empty() {
        return Err("nothing was sent".into());
    }
    delays.sort_by(f64::total_cmp);
    Ok(quantile(&delays, 0.99))
}
