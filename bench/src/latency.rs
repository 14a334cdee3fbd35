//! `bench latency`: one crossing over vhost-user under an open loop, against OVS-DPDK, both
//! polling; and a round trip of TCP between two namespaces, our switch asleep and polling,
//! against a Linux bridge.

use crate::Options;
use crate::forward::Ours;
use crate::load::dpdk::HugePages;
use crate::load::fifo::pin;
use crate::load::{Load, Pair as Switches, SMOKE, Shape, Slowed, loss, ovs, run as once, search};
use crate::pairs::Pair;
use crate::peer::busy_s;
use crate::results::Figure;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Parts of each switch's own throughput that it is offered.
const LOADS: [f64; 3] = [0.1, 0.5, 0.9];
/// Bytes of a message, as sockperf's of 64-byte frames.
const MESSAGE: usize = 22;

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    let mut figures = crossing(options)?;
    figures.extend(round_trips(options)?);
    Ok(figures)
}

/// p50 and p99 at each load, us; and what a packet costs at each, CPU microseconds of the
/// whole machine.
#[derive(Clone, Copy, Default)]
struct Delays {
    us: [[f64; 2]; 3],
    cpu: [f64; 3],
}

fn crossing(options: &Options) -> Result<Vec<Figure>, String> {
    const IDS: [&str; 2] = ["latency.p50_vs_ovsdpdk", "latency.p99_vs_ovsdpdk"];
    let missing = |why: &str| IDS.map(|id| Figure::missing(id, why)).into();
    let _pages = match HugePages::take() {
        Ok(pages) => pages,
        Err(why) => return Ok(missing(&why)),
    };
    let mut peer = match ovs::Vhost::start() {
        Ok(peer) => peer,
        Err(why) => return Ok(missing(&why)),
    };
    let mut ours = Ours::vhost(crate::forward::FLOWS)?;
    let shape = Shape {
        size: 64,
        flows: crate::forward::FLOWS,
        time: if options.smoke {
            SMOKE
        } else {
            Duration::from_millis(100)
        },
        every: options.hindered || options.smoke,
        hindered: options.hindered,
        loss: loss(options),
    };
    let delays = |load: &mut dyn Load| -> Result<Delays, String> {
        let found = search(load, &shape)?;
        let mut all = Delays::default();
        for (at, part) in LOADS.iter().enumerate() {
            // Where nothing passes at all there is still a delay.
            let pps = (found.mpps * 1e6 * part).max(1000.0);
            let before = busy_s();
            let (trial, taken) = once(load, &shape, pps, &mut 0)?;
            all.cpu[at] = (busy_s() - before) * 1e6 / taken.max(1) as f64;
            all.us[at] = [trial.delays[0] / 1e3, trial.delays[1] / 1e3];
        }
        Ok(all)
    };
    let mut pair = Switches {
        ours: &mut ours,
        peer: &mut peer,
    };
    let turns = pair.turns(options.runs(15, 2), delays)?;
    let proof = ours.proof()?;
    let mut figures = Vec::new();
    for (which, id) in IDS.iter().enumerate() {
        // The load at which we are worst.
        let at = |load: usize| turns.ratio(id, |d: &Delays| d.us[load][which]);
        let worst = (0..LOADS.len()).max_by(|a, b| at(*a).value.total_cmp(&at(*b).value));
        let mut figure = at(worst.unwrap_or(0)).ours("counted", proof.clone());
        for (load, part) in LOADS.iter().enumerate() {
            let percent = format!("at_{:.0}_percent", part * 100.0);
            let (mine, its) = turns.medians(|d| d.us[load][which]);
            let key = format!("us_{percent}");
            figure = figure.ours(&key, mine).peer(&key, its);
            let (mine, its) = turns.medians(|d| d.cpu[load]);
            let key = format!("cpu_us_a_packet_{percent}");
            figure = figure.ours(&key, mine).peer(&key, its);
            figure = figure.ours(&format!("ratio_{percent}"), at(load).value);
        }
        let name = format!("OVS-DPDK {}, NORMAL, vhost-user", ovs::version()?);
        figures.push(figure.peer("name", name).ours("cores", 2).peer("cores", 2).note(
            "one crossing over vhost-user, 64 B, 1,000 flows, open loop at 10, 50 and 90 % of what each forwards; the load at which ours is worst; switch core 0, generator core 1, both poll",
        ));
    }
    Ok(figures)
}

fn round_trips(options: &Options) -> Result<Vec<Figure>, String> {
    let time = Duration::from_millis(if options.smoke { 200 } else { 700 });
    let bridge = Pair::bridge()?;
    let mut figures = Vec::new();
    for (id, tenant, note) in [
        (
            "latency.rtt_asleep_vs_bridge",
            &[][..],
            "TCP, 22 bytes each way, p50; server core 0, client core 1; our switch asleep between packets (`wait: adaptive` on shared cores, the default)",
        ),
        (
            "latency.rtt_poll_vs_bridge",
            &["cores: { isolated: [0] }", "wait: poll"][..],
            "TCP, 22 bytes each way, p50; server core 0, client core 1; our switch polls on core 0, which it has for itself but for the server and keeps awake; it rests while the bridge is measured, whose cores may sleep",
        ),
    ] {
        let ours = Pair::ours(tenant)?;
        // Shorter than a round trip, so that it is in the way of each.
        let slowed = ours.switch.filter(|_| options.hindered);
        let _slowed = slowed.map(|process| Slowed::start(process, 300, 30));
        for pair in [&ours, &bridge] {
            pair.reaches()?;
        }
        let (mut ratios, mut p99s) = (Vec::new(), [Vec::new(), Vec::new()]);
        let (mut mine, mut its) = (Vec::new(), Vec::new());
        let mut cpu = [Vec::new(), Vec::new()];
        for _ in 0..options.runs(15, 3) {
            let a = round_trip(&ours, 0, time)?;
            let resting = ours.resting()?;
            let b = round_trip(&bridge, 0, time)?;
            drop(resting);
            ratios.push(a[0] / b[0]);
            mine.push(a[0]);
            its.push(b[0]);
            p99s[0].push(a[1]);
            p99s[1].push(b[1]);
            cpu[0].push(a[2]);
            cpu[1].push(b[2]);
        }
        // The same with both ends on one core.
        let a = round_trip(&ours, 1, time)?;
        let resting = ours.resting()?;
        let together = [a, round_trip(&bridge, 1, time)?];
        drop(resting);
        let median = |all: &[f64]| Figure::of("", "", all).value;
        figures.push(
            Figure::of(id, "ratio", &ratios)
                .ours("name", ours.name.clone())
                .ours("p50_us", median(&mine))
                .ours("p99_us", median(&p99s[0]))
                .peer("name", bridge.name.clone())
                .peer("p50_us", median(&its))
                .peer("p99_us", median(&p99s[1]))
                .ours("cpu_us", median(&cpu[0]))
                .peer("cpu_us", median(&cpu[1]))
                .ours("p50_us_both_ends_on_core_1", together[0][0])
                .peer("p50_us_both_ends_on_core_1", together[1][0])
                .note(note),
        );
    }
    Ok(figures)
}

/// p50 and p99 of round trips, us; and what one costs, CPU microseconds of the whole machine.
fn round_trip(pair: &Pair, server_core: usize, time: Duration) -> Result<[f64; 3], String> {
    let listener = inside(&pair.b.name, || TcpListener::bind((pair.address, 0)))?;
    let place = listener.local_addr().map_err(|e| e.to_string())?;
    let client = inside(&pair.a.name, || TcpStream::connect(place))?;
    let (server, _) = listener.accept().map_err(|e| e.to_string())?;
    for stream in [&client, &server] {
        stream.set_nodelay(true).map_err(|e| e.to_string())?;
    }
    let before = busy_s();
    std::thread::scope(|scope| {
        let server = scope.spawn(move || -> Result<(), String> {
            pin(server_core)?;
            let (mut stream, mut message) = (server, [0; MESSAGE]);
            while stream.read_exact(&mut message).is_ok() {
                stream.write_all(&message).map_err(|e| e.to_string())?;
            }
            Ok(())
        });
        let client = scope.spawn(move || -> Result<Vec<f64>, String> {
            pin(1)?;
            let (mut stream, mut message, mut all) = (client, [7; MESSAGE], Vec::new());
            let begun = Instant::now();
            while begun.elapsed() < time {
                let sent = Instant::now();
                stream.write_all(&message).map_err(|e| e.to_string())?;
                stream.read_exact(&mut message).map_err(|e| e.to_string())?;
                all.push(sent.elapsed().as_nanos() as f64 / 1e3);
            }
            Ok(all)
        });
        let all = client.join().map_err(|_| "the client panicked")?;
        server.join().map_err(|_| "the server panicked")??;
        let mut all = all?;
        let cpu = (busy_s() - before) * 1e6 / all.len().max(1) as f64;
        all.sort_by(f64::total_cmp);
        let at = |q| crate::results::quantile(&all, q);
        Ok([at(0.5), at(0.99), cpu])
    })
}

/// Makes a socket in a namespace, from this thread.
fn inside<T>(name: &str, make: impl FnOnce() -> std::io::Result<T>) -> Result<T, String> {
    let home = e2e::enter(name)?;
    let made = make().map_err(|e| e.to_string());
    e2e::leave_to(&home)?;
    made
}
