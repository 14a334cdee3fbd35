//! `bench circuits`, of programs that know of them: by the ring, against TCP over a bridge and
//! against a copy between the two cores.

use crate::circuits::talk_of;
use crate::group::Group;
use crate::pairs::Pair;
use crate::results::Figure;
use crate::tcp::{BESIDE, Came};
use crate::{Options, peer};

/// Bytes of a message, short and long.
const MESSAGES: [usize; 2] = [16 << 10, 1 << 20];
/// Connections whose memory is measured.
const MANY: usize = 500;
/// The same by which more went.
const USED: usize = 20;

/// What was measured of one size.
#[derive(Default)]
struct Size {
    copies: Vec<f64>,
    in_place: Vec<f64>,
    copies_ratio: Vec<f64>,
    in_place_ratio: Vec<f64>,
    cpu_ratio: Vec<f64>,
    bridge: Vec<f64>,
    /// Our own switch, in the first turns.
    switch: Vec<f64>,
    switch_ratio: Vec<f64>,
    /// Of each turn.
    clusters: Vec<&'static str>,
    /// Of a plain C program, and against it.
    copied: Vec<f64>,
    copied_ratio: Vec<f64>,
}

/// Runs it.
pub fn run(
    options: &Options,
    ours: &Pair,
    [bridge, switch]: [&Pair; 2],
    turns: usize,
    time: u64,
) -> Result<Vec<Figure>, String> {
    let mut sizes = MESSAGES.map(|_| Size::default());
    for turn in 0..turns {
        for (size, message) in sizes.iter_mut().zip(MESSAGES) {
            let stream = |pair: &Pair, how: &str| {
                let words = [format!("{how}-sink"), format!("{how}-stream")];
                talk_of(pair, [&words[0], &words[1]], time, 1, message, "gbit_s")
            };
            let before = peer::round_trip_ns()?;
            let resting = switch.resting()?;
            let copies = stream(ours, "copies")?;
            let in_place = stream(ours, "place")?;
            let tcp = stream(bridge, "tcp")?;
            let copy = peer::plain_copy_gbit_s(message, time as f64 / 1e3)?;
            drop(resting);
            if turn < BESIDE {
                let beside = stream(switch, "tcp")?.value;
                size.switch.push(beside);
                size.switch_ratio.push(copies.value / beside);
            }
            let after = peer::round_trip_ns()?;
            size.clusters.push(peer::cluster(before, after));
            // CPU seconds of the whole machine a GB.
            let a_gb = |came: &Came| came.cpu / (came.value * time as f64 / 8e3);
            size.copies.push(copies.value);
            size.in_place.push(in_place.value);
            size.bridge.push(tcp.value);
            size.copies_ratio.push(copies.value / tcp.value);
            size.in_place_ratio.push(in_place.value / tcp.value);
            size.cpu_ratio.push(a_gb(&copies) / a_gb(&tcp));
            size.copied.push(copy);
            size.copied_ratio.push(copy / in_place.value);
        }
    }
    let before = peer::round_trip_ns()?;
    let rtt = (0..turns)
        .map(|_| talk_of(ours, ["copies-echo", "copies-rtt"], time, 1, 1, "us"))
        .map(|came| came.map(|came| came.value))
        .collect::<Result<Vec<_>, _>>()?;
    let memory = |what: &str, count, turns| {
        (0..turns)
            .map(|_| talk_of(ours, ["copies-echo", what], time, 1, count, "kib"))
            .map(|came| came.map(|came| came.value))
            .collect::<Result<Vec<_>, _>>()
    };
    let turns = options.runs(3, 1);
    let few = memory("copies-many", MANY, turns)?;
    let used = memory("copies-drained", USED, turns)?;
    let group = ours
        .operator()
        .ok_or("no operator".to_owned())
        .and_then(Group::enter);
    let whole = match &group {
        Ok(_) => memory(
            "copies-whole",
            if options.smoke { USED } else { MANY },
            turns,
        )
        .map(Some)?,
        Err(_) => None,
    };
    let group = group.map(drop);
    let cluster = peer::cluster(before, peer::round_trip_ns()?);
    let pair_name = bridge.name.clone();
    let median = |size: &Size, all: &[f64]| {
        let counted = peer::nearest(&size.clusters, all);
        Figure::of("", "", &counted).value
    };
    let figure = |id: &str, unit: &str, of: fn(&Size) -> &Vec<f64>, note: &str, least: bool| {
        let figures = sizes.each_ref().map(|size| {
            Figure::of(id, unit, &peer::nearest(&size.clusters, of(size)))
                .cluster(peer::nearest_of(&size.clusters))
        });
        let [short, long] = figures.each_ref().map(|figure| figure.value);
        let [a, b] = figures;
        let mut worse = if (short < long) == least { a } else { b };
        for (name, value) in [("16_kib", short), ("1_mib", long)] {
            worse = worse.ours(name, value);
        }
        let of_both =
            |of: fn(&Size) -> &Vec<f64>| sizes.each_ref().map(|size| median(size, of(size)));
        let [bridge, switch] = [of_both(|size| &size.bridge), of_both(|size| &size.switch)];
        worse
            .peer("name", pair_name.clone())
            .peer("gbit_s_16_kib", bridge[0])
            .peer("gbit_s_1_mib", bridge[1])
            .peer("switch_gbit_s_16_kib", switch[0])
            .peer("switch_gbit_s_1_mib", switch[1])
            .note(format!(
                "{note}; messages of 16 KiB and 1 MiB, the worse; each byte made and added up; server core 0, client core 1"
            ))
    };
    let copied = "read and write by the ring";
    let placed =
        "reserve and peek, lines looked at in place, and made there or aside, whichever is faster";
    let [copy_short, copy_long] = sizes.each_ref().map(|size| median(size, &size.copied));
    let switch_ratio = sizes
        .each_ref()
        .map(|size| median(size, &size.switch_ratio));
    let copying = "time of reserve, fill, peek and sum against that of a plain C ring that copies in and out, the faster of two ways to";
    let against_copy = figure("circuits.native_vs_copy", "ratio", |s| &s.copied_ratio, copying, false)
        .peer("name", "plain C ring without checks (bench/peers/plain_ring.c spsc), by glibc's own choice or by its vector copies")
        .peer("gbit_s_16_kib", copy_short)
        .peer("gbit_s_1_mib", copy_long);
    Ok(vec![
        figure("circuits.ring_vs_bridge", "ratio", |s| &s.copies_ratio, copied, true)
            .ours("ratio_switch_16_kib", switch_ratio[0])
            .ours("ratio_switch_1_mib", switch_ratio[1]),
        figure("circuits.ring_gbps", "gbit_s", |s| &s.copies, copied, true),
        figure("circuits.native_vs_bridge", "ratio", |s| &s.in_place_ratio, placed, true),
        figure("circuits.native_gbps", "gbit_s", |s| &s.in_place, placed, true),
        figure("circuits.cpu_per_gb_vs_bridge", "ratio", |s| &s.cpu_ratio, copied, false),
        against_copy,
        Figure::of("circuits.rtt_spin_us", "us", &rtt)
            .cluster(cluster)
            .note("a byte there and back, both sides spinning, cores 0 and 1"),
        match whole {
            Some(whole) => Figure::of("circuits.mem_per_conn_kib", "kib", &whole).note(
                "all that both programs and the operator are charged for by their control group, the kernel's sockets, files, mappings and page tables with it; of connections by which 4 MiB went each way and were read, idle for five seconds while one of them goes on; beside: the programs' own memory and page tables, and those of connections that a few bytes went by",
            ),
            None => Figure::missing("circuits.mem_per_conn_kib", &group.err().unwrap_or_default()),
        }
        .ours("programs_kib", Figure::of("", "", &used).value)
        .ours("programs_a_few_bytes_kib", Figure::of("", "", &few).value),
    ])
}
