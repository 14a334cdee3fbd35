//! `bench peers`: what users would pick instead, on this machine now. No ratio: figures of
//! ours are taken side by side with theirs by the other benches.

use crate::Options;
use crate::load::dpdk::{HugePages, Testpmd, Wire};
use crate::load::{Load, SMOKE, Shape, alone, loss, ovs, search};
use crate::pairs::{Kind, Pair};
use crate::peer::{cluster, round_trip_ns};
use crate::results::Figure;
use crate::tcp::iperf;
use std::time::Duration;

type Start = fn() -> Result<Box<dyn Load>, String>;
type Joined = fn() -> Result<Pair, String>;

const SWITCHES: [(&str, &str, Start); 3] = [
    ("peers.testpmd_memif", "testpmd io, memif", || {
        Testpmd::start(Wire::Memif).map(|s| Box::new(s) as _)
    }),
    ("peers.testpmd_vhost", "testpmd io, vhost-user", || {
        Testpmd::start(Wire::Vhost).map(|s| Box::new(s) as _)
    }),
    ("peers.ovs_vhost", "OVS-DPDK NORMAL, vhost-user", || {
        ovs::Vhost::start().map(|s| Box::new(s) as _)
    }),
];

const KERNEL: [(&str, Joined); 3] = [
    ("peers.bridge", Pair::bridge),
    ("peers.ovs_tso", || Pair::ovs(Kind::Tso)),
    ("peers.ovs_afxdp", || Pair::ovs(Kind::Afxdp)),
];

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    let mut figures = Vec::new();
    let pages = HugePages::take();
    for (id, name, start) in SWITCHES {
        let ids = [format!("{id}_64_mpps"), format!("{id}_1500_mpps")];
        let started = match &pages {
            Ok(_) => start(),
            Err(why) => Err(why.clone()),
        };
        match started {
            Ok(mut switch) => {
                for (id, size) in ids.iter().zip([64, 1500]) {
                    figures.push(forwards(id, name, switch.as_mut(), size, options)?);
                }
            }
            Err(why) => figures.extend(ids.iter().map(|id| Figure::missing(id, &why))),
        }
    }
    let seconds = if options.smoke || options.quick {
        "1"
    } else {
        "2"
    };
    for (id, make) in KERNEL {
        let ids = [format!("{id}_tcp_gbps"), format!("{id}_udp64_kpps")];
        let pair = match make().and_then(|pair| pair.reaches().map(|()| pair)) {
            Ok(pair) => pair,
            Err(why) => {
                figures.extend(ids.iter().map(|id| Figure::missing(id, &why)));
                continue;
            }
        };
        let loads: [&[&str]; 2] = [&[], &["-u", "-l", "22", "-b", "0"]];
        for (id, words) in ids.iter().zip(loads) {
            let mut all = Vec::new();
            let mut last = None;
            for _ in 0..options.runs(5, 1) {
                let came = iperf(&pair, seconds, words)?;
                all.push(came.value);
                last = Some(came);
            }
            let unit = if words.is_empty() { "Gbit/s" } else { "kpps" };
            let figure = Figure::of(id, unit, &all).peer("name", pair.name.clone());
            figures.push(match last {
                Some(came) => figure.peer("cpu_s", came.cpu),
                None => figure,
            });
        }
    }
    Ok(figures)
}

fn forwards(
    id: &str,
    name: &str,
    switch: &mut dyn Load,
    size: usize,
    options: &Options,
) -> Result<Figure, String> {
    let shape = Shape {
        size,
        flows: crate::forward::FLOWS,
        time: if options.smoke {
            SMOKE
        } else {
            Duration::from_millis(60)
        },
        every: options.hindered || options.smoke,
        hindered: options.hindered,
        loss: loss(options),
    };
    let (mut all, mut clusters, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.runs(9, 2) {
        let before = round_trip_ns()?;
        let found = alone(switch, &mut |load| search(load, &shape))?;
        clusters.push(cluster(before, round_trip_ns()?));
        all.push(found.mpps);
        cpu.push(found.cpu_s);
    }
    Ok(Figure::of(id, "Mpps", &all)
        .cluster(crate::peer::cluster_of(&clusters))
        .peer("name", name)
        .peer("cpu_s_per_mpkt", Figure::of("", "", &cpu).value)
        .note(format!("{size} B, 1,000 flows, at a loss of at most 0.1 %")))
}
