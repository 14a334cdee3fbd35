//! `bench tcp`: one TCP stream, and small UDP packets, between two namespaces: ours against a
//! Linux bridge and Open vSwitch with userspace-tso. Every port is a veth, one congestion
//! control for all, runs in turns.

use crate::Options;
use crate::pairs::{Kind, Pair};
use crate::peer::{busy_s, cluster, nearest, nearest_of, round_trip_ns};
use crate::results::Figure;
use e2e::Ended;
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

/// A UDP payload that makes a frame of 64 bytes, without its check sequence.
const SMALL: &str = "22";

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    // iperf3 takes whole seconds.
    let seconds = if options.smoke || options.quick {
        "1"
    } else {
        "3"
    };
    let ours = Pair::ours(&[])?;
    if options.hindered {
        crate::hinder::without_offloads(&ours.a.name, "eth0")?;
    }
    let bridge = Pair::bridge()?;
    let ovs = Pair::ovs(Kind::Tso);
    for pair in [&ours, &bridge].into_iter().chain(ovs.as_ref().ok()) {
        pair.reaches()?;
    }
    let congestion = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control")
        .map_err(|e| format!("congestion control: {e}"))?;
    let turns = options.runs(12, 4);
    let stream = |pair: &Pair| iperf(pair, seconds, &[]);
    let told = |figure: Figure| {
        figure.ours("congestion_control", congestion.trim()).note(
            "iperf3, server core 0, client core 1; every port a veth; CPU of the whole machine a GB or a million packets",
        )
    };
    let vs_ovs = match &ovs {
        Ok(ovs) => told(against(
            "tcp.vs_ovs_tso",
            &ours,
            (ovs, None),
            turns,
            stream,
        )?),
        Err(why) => Figure::missing("tcp.vs_ovs_tso", why),
    };
    // What polls would take the bridge's and our cores.
    drop(ovs);
    let vs_bridge = |id, measure: fn(&Pair, &str) -> Result<Came, String>| {
        against(id, &ours, (&bridge, None), turns, |pair| {
            measure(pair, seconds)
        })
        .map(told)
    };
    Ok(vec![
        vs_ovs,
        vs_bridge("tcp.vs_bridge", |pair, seconds| iperf(pair, seconds, &[]))?,
        vs_bridge("tcp.udp64_vs_bridge", |pair, seconds| {
            iperf(pair, seconds, &["-u", "-l", SMALL, "-b", "0"])
        })?,
    ])
}

/// What came.
pub struct Came {
    /// Gbit/s, or thousands of packets a second.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// CPU seconds of the whole machine a GB, or a million packets or requests.
    pub cpu: f64,
}

/// Turns in which what is shown beside a figure is measured.
pub const BESIDE: usize = 3;

/// So many turns, ours and the peer's, and in the first of them one more that is shown beside it, by this word. What counts
/// are the turns in which the two cores were near, where most were.
pub fn against(
    id: &str,
    ours: &Pair,
    (peer, beside): (&Pair, Option<(&str, &Pair)>),
    turns: usize,
    measure: impl Fn(&Pair) -> Result<Came, String>,
) -> Result<Figure, String> {
    let more = beside.map(|(_, pair)| pair);
    let peers: Vec<&Pair> = std::iter::once(peer).chain(more).collect();
    let (mut values, mut cpu) = ([vec![], vec![], vec![]], [vec![], vec![]]);
    let mut clusters = Vec::new();
    let mut unit = "";
    for turn in 0..turns {
        let before = round_trip_ns()?;
        let own = std::iter::once(ours);
        let of_turn = if turn < BESIDE { 2 } else { 1 };
        let all = own.chain(peers.iter().copied().take(of_turn));
        for (side, pair) in all.enumerate() {
            let others = peers.iter().filter(|peer| !std::ptr::eq(**peer, pair));
            let _resting = others
                .map(|it| it.resting())
                .collect::<Result<Vec<_>, _>>()?;
            std::thread::sleep(Duration::from_millis(100));
            let came = measure(pair).map_err(|e| format!("{}: {e}", pair.name))?;
            values[side].push(came.value);
            if let Some(cpu) = cpu.get_mut(side) {
                cpu.push(came.cpu);
            }
            unit = came.unit;
        }
        clusters.push(cluster(before, round_trip_ns()?));
    }
    let median = |all: &[f64]| Figure::of("", "", &nearest(&clusters, all)).value;
    let ratios = |of: &[f64]| {
        let each = values[0].iter().zip(of).map(|(own, of)| own / of);
        nearest(&clusters, &each.collect::<Vec<f64>>())
    };
    let figure = Figure::of(id, "ratio", &ratios(&values[1]))
        .cluster(nearest_of(&clusters))
        .ours("name", ours.name.clone())
        .ours(unit, median(&values[0]))
        .ours("cpu_s", median(&cpu[0]))
        .peer("name", peer.name.clone())
        .peer(unit, median(&values[1]))
        .peer("cpu_s", median(&cpu[1]));
    Ok(match beside {
        Some((word, _)) => figure
            .ours(
                &format!("ratio_{word}"),
                Figure::of("", "", &ratios(&values[2])).value,
            )
            .peer(&format!("{word}_{unit}"), median(&values[2])),
        None => figure,
    })
}

/// One run of iperf3.
pub fn iperf(pair: &Pair, seconds: &str, words: &[&str]) -> Result<Came, String> {
    let mut server = pair.command(true, 0, "iperf3");
    server
        .args(["-s", "-1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut server = Ended(server.spawn().map_err(|e| format!("iperf3: {e}"))?);
    let mut last = String::new();
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(40));
        let before = busy_s();
        let mut client = pair.command(false, 1, "iperf3");
        client
            .args(["-c", pair.address, "-J", "-t", seconds])
            .args(words);
        let output = client.output().map_err(|e| format!("iperf3: {e}"))?;
        let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let Some(came) = read(&json["end"], busy_s() - before) else {
            last = json["error"].as_str().unwrap_or("no answer").to_owned();
            continue;
        };
        let _ = server.0.wait();
        return Ok(came);
    }
    Err(format!("iperf3: {last}"))
}

fn read(end: &Value, busy_s: f64) -> Option<Came> {
    if let Some(packets) = end["sum"]["packets"].as_f64() {
        let lost = end["sum"]["lost_packets"].as_f64()?;
        let seconds = end["sum"]["seconds"].as_f64()?;
        let came = packets - lost;
        return Some(Came {
            value: came / seconds / 1e3,
            unit: "kpps",
            cpu: busy_s / (came / 1e6),
        });
    }
    let sum = &end["sum_received"];
    let (bits, bytes) = (sum["bits_per_second"].as_f64()?, sum["bytes"].as_f64()?);
    Some(Came {
        value: bits / 1e9,
        unit: "gbit_s",
        cpu: busy_s / (bytes / 1e9),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_is_read_of_both_kinds() {
        let tcp = serde_json::json!({
            "sum_received": {"bits_per_second": 8e9, "bytes": 2e9, "seconds": 2.0},
        });
        let came = read(&tcp, 4.0).unwrap();
        assert_eq!((came.value, came.unit, came.cpu), (8.0, "gbit_s", 2.0));
        let udp = serde_json::json!({
            "sum": {"packets": 3e6, "lost_packets": 1e6, "seconds": 2.0},
        });
        let came = read(&udp, 2.0).unwrap();
        assert_eq!((came.value, came.unit, came.cpu), (1000.0, "kpps", 1.0));
    }
}
