//! `bench forward`: packets through one compartment on one core, against what users would
//! pick instead.

mod count;
pub mod inside;
mod machine;
mod ours;
pub mod site;
mod workers;

use crate::Options;
use crate::load::dpdk::{self, HugePages, Testpmd, Wire};
use crate::load::{Found, Load, Pair, SMOKE, Shape, Turns, alone, fifo, loss, ovs, search};
use crate::peer::{cluster, cluster_of, round_trip_ns};
use crate::results::Figure;
pub use count::{Gate, count, gate};
pub use ours::Ours;
pub use site::FLOWS;
use std::time::Duration;

/// Flows of the larger number.
const MANY: u32 = 1_000_000;

/// Of a FIFO: what memif's 1,024 buffers of 2 KiB take.
const CAPACITY: &str = "2MiB";

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    let turns = options.runs(15, 2);
    // First, while this process may use all cores: what comes after keeps to some.
    let workers = workers::figure(options, turns)?;
    let mut figures = count::figures(options)?;
    let pages = HugePages::take();
    let peers = pages.as_ref().map(|_| ()).map_err(Clone::clone);
    let shape = |size| Shape {
        size,
        flows: FLOWS,
        time: Duration::from_millis(match (options.smoke, options.quick) {
            (true, _) => SMOKE.as_millis() as u64,
            (_, true) => 40,
            _ => 60,
        }),
        every: options.hindered || options.smoke,
        hindered: options.hindered,
        loss: loss(options),
    };
    figures.extend(vhost(&peers, &shape(64), turns)?);
    figures.extend(fifos(&peers, &shape(64), &shape(1500), turns)?);
    figures.push(flows(options, &shape(64), turns)?);
    figures.push(gso(&shape(fifo::GSO_FRAME), turns)?);
    figures.push(workers);
    Ok(figures)
}

/// 64 B over vhost-user, against OVS-DPDK and against testpmd.
fn vhost(peers: &Result<(), String>, shape: &Shape, turns: usize) -> Result<Vec<Figure>, String> {
    const IDS: [&str; 2] = ["forward.vhost64_vs_ovsdpdk", "forward.vhost64_vs_testpmd"];
    if let Err(why) = peers {
        return Ok(IDS.map(|id| Figure::missing(id, why)).into());
    }
    let mut ours = match Ours::vhost(FLOWS) {
        // The generator is DPDK's as well.
        Err(why) if why.starts_with("peer missing") => {
            return Ok(IDS.map(|id| Figure::missing(id, &why)).into());
        }
        ours => ours?,
    };
    let mut figures = Vec::new();
    match ovs::Vhost::start() {
        Ok(mut peer) => {
            let pair = Pair {
                ours: &mut ours,
                peer: &mut peer,
            };
            let name = format!("OVS-DPDK {}, NORMAL, vhost-user", ovs::version()?);
            figures.push(compare(IDS[0], pair, shape, turns, &name)?);
        }
        Err(why) => figures.push(Figure::missing(IDS[0], &why)),
    }
    match Testpmd::start(Wire::Vhost) {
        Ok(mut peer) => {
            let pair = Pair {
                ours: &mut ours,
                peer: &mut peer,
            };
            let name = format!("testpmd {}, io forwarding, vhost-user", dpdk::version()?);
            figures.push(compare(IDS[1], pair, shape, turns, &name)?);
        }
        Err(why) => figures.push(Figure::missing(IDS[1], &why)),
    }
    let proof = ours.proof()?;
    for figure in &mut figures {
        figure.ours.insert("counted".into(), proof.clone());
    }
    Ok(figures)
}

/// 64 B and 1500 B over FIFOs, against testpmd over memif.
fn fifos(
    peers: &Result<(), String>,
    small: &Shape,
    large: &Shape,
    turns: usize,
) -> Result<Vec<Figure>, String> {
    const IDS: [&str; 2] = ["forward.fifo64_vs_memif", "forward.fifo1500_vs_memif"];
    let peer = match peers {
        Ok(()) => Testpmd::start(Wire::Memif),
        Err(why) => Err(why.clone()),
    };
    let mut peer = match peer {
        Ok(peer) => peer,
        Err(why) => return Ok(IDS.map(|id| Figure::missing(id, &why)).into()),
    };
    let mut ours = Ours::fifo(CAPACITY, FLOWS)?;
    let name = format!("testpmd {}, io forwarding, memif", dpdk::version()?);
    let mut figures = Vec::new();
    for (id, shape) in IDS.into_iter().zip([small, large]) {
        let pair = Pair {
            ours: &mut ours,
            peer: &mut peer,
        };
        figures.push(compare(id, pair, shape, turns, &name)?);
    }
    let proof = ours.proof()?;
    for figure in &mut figures {
        figure.ours.insert("counted".into(), proof.clone());
    }
    Ok(figures)
}

/// 1,000,000 flows against 1,000, over FIFOs, both ours.
fn flows(options: &Options, shape: &Shape, turns: usize) -> Result<Figure, String> {
    let many = if options.smoke { 20_000 } else { MANY };
    let mut one = Ours::fifo(CAPACITY, many)?;
    let (mut ratios, mut disturbed) = (Vec::new(), 0);
    let (mut clusters, mut few_mpps, mut many_mpps) = (Vec::new(), Vec::new(), Vec::new());
    let large = Shape {
        flows: many,
        ..*shape
    };
    // Hindered, only the larger number is: the smaller is taken where the switch runs.
    let shape = &Shape {
        every: options.smoke,
        hindered: false,
        ..*shape
    };
    for _ in 0..turns {
        let before = round_trip_ns()?;
        let a = alone(&mut one, &mut |load| search(load, &large))?;
        let b = alone(&mut one, &mut |load| search(load, shape))?;
        clusters.push(cluster(before, round_trip_ns()?));
        ratios.push(a.mpps / b.mpps);
        disturbed += a.disturbed + b.disturbed;
        many_mpps.push(a.mpps);
        few_mpps.push(b.mpps);
    }
    let proof = one.proof()?;
    let median = |all: &[f64]| Figure::of("", "", all).value;
    Ok(Figure::of("forward.mflow_ratio", "ratio", &ratios)
        .cluster(cluster_of(&clusters))
        .ours("disturbed_runs", disturbed)
        .ours("mpps_many", median(&many_mpps))
        .ours("mpps_few", median(&few_mpps))
        .ours("counted", proof)
        .note(format!(
            "{many} flows against {FLOWS} in random order, 64 B over FIFOs, the same switch"
        )))
}

/// 64 KiB frames that stand for datagrams of 1,472 bytes.
fn gso(shape: &Shape, turns: usize) -> Result<Figure, String> {
    let mut ours = Ours::fifo(CAPACITY, FLOWS)?;
    let bits = (shape.size * 8) as f64 / 1e9;
    let (mut all, mut clusters) = (Vec::new(), Vec::new());
    let mut last = Found::default();
    for _ in 0..turns {
        let before = round_trip_ns()?;
        last = alone(&mut ours, &mut |load| search(load, shape))?;
        clusters.push(cluster(before, round_trip_ns()?));
        all.push(last.mpps * 1e6 * bits);
    }
    let proof = ours.proof()?;
    let near = all.iter().zip(&clusters).filter(|(_, c)| **c == "near");
    let near: Vec<f64> = near.map(|(v, _)| *v).collect();
    let mut figure = Figure::of("forward.gso_gbps", "Gbit/s", if near.is_empty() { &all } else { &near })
        .cluster(if near.is_empty() { cluster_of(&clusters) } else { "near" })
        .ours("cpu_s_per_gb", last.cpu_s / 1e6 / shape.size as f64 * 1e9)
        .ours("cores", 2)
        .ours("counted", proof)
        .note("64 KiB USO frames over FIFOs of 2 MiB, payload written and read, searched at a loss of at most 0.1 %");
    if near.len() < all.len() {
        figure = figure.ours("gbit_s_all_clusters", Figure::of("", "", &all).value);
    }
    Ok(figure)
}

/// One comparison.
fn compare(
    id: &str,
    mut pair: Pair<'_>,
    shape: &Shape,
    turns: usize,
    name: &str,
) -> Result<Figure, String> {
    let turns: Turns<Found> = pair.turns(turns, |load: &mut dyn Load| search(load, shape))?;
    let of = |what: fn(&Found) -> f64| turns.medians(what);
    let (mpps, cpu) = (of(|f| f.mpps), of(|f| f.cpu_s));
    let (loss, flood) = (of(|f| f.loss), of(|f| f.flood_mpps));
    let offered = of(|f| f.offered_mpps);
    let floods = turns.each.iter().map(|(a, b)| a.flood_mpps / b.flood_mpps);
    let floods: Vec<f64> = floods.collect();
    let count = |each: &dyn Fn(&(Found, Found)) -> f64| turns.each.iter().map(each).sum::<f64>();
    let disturbed: u32 = turns
        .each
        .iter()
        .map(|(a, b)| a.disturbed + b.disturbed)
        .sum();
    let gbps = |mpps: f64| mpps * 1e6 * (shape.size * 8) as f64 / 1e9;
    Ok(turns
        .ratio(id, |found| found.mpps)
        .ours("disturbed_runs", disturbed)
        .ours("mpps", mpps.0)
        .ours("offered_mpps", offered.0)
        .ours("loss", loss.0)
        .ours("flood_mpps", flood.0)
        .ours("ratio_flood", Figure::of("", "", &floods).value)
        .ours("turns_at_the_generators_end", count(&|(ours, _)| ours.generator))
        .ours("gbit_s", gbps(mpps.0))
        .ours("cpu_s_per_mpkt", cpu.0)
        .ours("cores", 2)
        .peer("name", name)
        .peer("mpps", mpps.1)
        .peer("offered_mpps", offered.1)
        .peer("loss", loss.1)
        .peer("flood_mpps", flood.1)
        .peer("turns_at_the_generators_end", count(&|(_, peer)| peer.generator))
        .peer("gbit_s", gbps(mpps.1))
        .peer("cpu_s_per_mpkt", cpu.1)
        .peer("cores", 2)
        .note(format!(
            "{} B, {} flows in random order, FIFOs of {CAPACITY}, searched at a loss of at most 0.1 %; the switch on core 0, generator and sink on core 1, both poll; ours under {} rules with connections, rates and accounting",
            shape.size, shape.flows, site::RULES
        )))
}
