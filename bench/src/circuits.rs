//! `bench circuits`: unmodified programs over circuits, against TCP over veth and a Linux bridge, in
//! turns; of programs that know of circuits, see `rings`.

use crate::pairs::{Pair, done};
use crate::results::Figure;
use crate::tcp::{BESIDE, Came, against, iperf};
use crate::{Options, apps};
use e2e::Ended;
use std::process::Stdio;
use std::time::Duration;

/// Where the talking program listens.
const PORT: u16 = 7007;

/// What can be asked for alone.
const PARTS: [(&str, Part); 9] = [
    ("iperf3", |with| {
        let stream = |pair: &Pair| iperf(pair, with.seconds, &["-l", "128K"]);
        with.told("iperf3_vs_bridge", &with.ours, STREAM, stream)
    }),
    ("preload", |with| {
        let what = "iperf3 with 128 KiB writes, one stream, the library of rings loaded on both sides of ours";
        let stream = |pair: &Pair| iperf(pair, with.seconds, &["-l", "128K"]);
        with.told("iperf3_preload_vs_bridge", &Pair::rings()?, what, stream)
    }),
    ("setup", |with| {
        let what = "connect, accept, a byte and its answer, close, one after the other";
        let talk = |pair: &Pair| talk(pair, "setup", with.time, 0);
        let mut figures = with.told("setup_vs_bridge", &with.ours, what, talk)?;
        let loopback = Pair::loopback()?;
        done(&loopback.a, MANY_PORTS)?;
        one_control(&loopback)?;
        let turns = with.turns.min(BESIDE);
        let beside = against("", &with.ours, (&loopback, None), turns, talk)?;
        for figure in &mut figures {
            let per_s = beside.peer["per_s"].clone();
            *figure = figure
                .clone()
                .peer("loopback_per_s", per_s)
                .ours("ratio_loopback", beside.value);
        }
        Ok(figures)
    }),
    ("rtt", |with| {
        // Asleep on one core, as the figure is meant.
        let kernel = |pair: &Pair| talk(pair, "rtt", with.time, 0);
        let id = "circuits.rtt_asleep_vs_bridge";
        let by_kernel = with.against(id, &with.ours, kernel)?;
        let unpolled = ["unpolled-echo", "unpolled-rtt"];
        let best = |pair: &Pair| match pair.is_circuits() {
            true => talk_of(pair, unpolled, with.time, 0, 1, "us"),
            false => kernel(pair),
        };
        let figure = with.against(id, &with.ours, best)?;
        Ok(vec![
            figure
                .ours("name", "bulkhead, circuits by the ring")
                .ours("kernel_circuit_us", by_kernel.ours["us"].clone())
                .ours("ratio_kernel_circuit", by_kernel.value)
                .note("a byte there and back, median; both programs on core 0; ours by the ring, by programs that know of circuits and poll none; beside it unmodified ones, by the kernel; the bridge, and our own switch beside it, with a veth each"),
        ])
    }),
    ("proxy", |with| {
        let ours = Pair::proxied()?;
        one_control(&ours)?;
        proxied_reaches(&ours)?;
        let id = "circuits.proxy_vs_bridge";
        let stream = |pair: &Pair| iperf(pair, with.seconds, &["-l", "128K"]);
        let figure = with.against(id, &ours, stream)?;
        Ok(vec![
            figure
                .note("iperf3 with 128 KiB writes, one stream, from a circuit to an endpoint of packets; server core 0, client core 1, both unmodified; the bridge, and our own switch beside it, with a veth each"),
        ])
    }),
    ("sendfile", |with| {
        let bytes = if with.options.smoke {
            20_000_000
        } else {
            200_000_000
        };
        let folder = e2e::private_folder("bulkhead-sendfile-")?;
        let what = "nginx's sendfile of 200 MB to curl";
        let sendfile = |pair: &Pair| apps::sendfile(pair, &folder, bytes);
        let figures = with.told("sendfile_vs_bridge", &with.ours, what, sendfile);
        let _ = std::fs::remove_dir_all(&folder);
        figures
    }),
    ("apps", |with| {
        let id = "circuits.apps_vs_bridge";
        let peers = (&with.bridge, Some((SWITCH, &with.switch)));
        apps::against_bridge(with.options, id, &with.ours, peers).map(|it| vec![it])
    }),
    ("outage", |with| {
        crate::outage::run(&with.ours, with.options).map(Vec::from)
    }),
    ("rings", |with| {
        let peers = [&with.bridge, &with.switch];
        crate::rings::run(with.options, &with.ours, peers, with.turns, with.time)
    }),
];

type Part = fn(&With<'_>) -> Result<Vec<Figure>, String>;

/// By which word our own switch is beside a figure.
const SWITCH: &str = "switch";
/// The client's ports, each of which TCP keeps for a minute after it closed: a run of
/// connections is not to be one of waiting for these.
const MANY_PORTS: &str =
    "sysctl -qw net.ipv4.tcp_tw_reuse=1 net.ipv4.ip_local_port_range='1024 65535'";

/// One for all, as proxies have it to who is near. A bridge moves twice as much by it as by one that paces (BBR), and a namespace has
/// no other that everybody may choose.
const CONTROL: &str = "reno";

const STREAM: &str = "iperf3 with 128 KiB writes, one stream";

/// What all parts need.
struct With<'a> {
    options: &'a Options,
    ours: Pair,
    bridge: Pair,
    switch: Pair,
    turns: usize,
    /// Of iperf3, which takes whole seconds, and of others, ms.
    seconds: &'static str,
    time: u64,
}

impl With<'_> {
    fn against(
        &self,
        id: &str,
        ours: &Pair,
        measure: impl Fn(&Pair) -> Result<Came, String>,
    ) -> Result<Figure, String> {
        let peers = (&self.bridge, Some((SWITCH, &self.switch)));
        against(id, ours, peers, self.turns, measure)
    }

    fn told(
        &self,
        id: &str,
        ours: &Pair,
        what: &str,
        measure: impl Fn(&Pair) -> Result<Came, String>,
    ) -> Result<Vec<Figure>, String> {
        let figure = self.against(&format!("circuits.{id}"), ours, measure)?;
        Ok(vec![figure.note(format!(
            "{what}; server core 0, client core 1, both unmodified; the bridge, and our own switch beside it, with a veth each"
        ))])
    }
}

/// What can be asked for alone, by name.
pub fn parts() -> impl Iterator<Item = &'static str> {
    PARTS.iter().map(|(name, _)| *name)
}

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    let asked = |(name, _): &&(&str, Part)| {
        options.only.is_empty() || options.only.iter().any(|it| it == name)
    };
    let parts: Vec<&(&str, Part)> = PARTS.iter().filter(asked).collect();
    let (seconds, time) = match options.smoke || options.quick {
        true => ("1", 300),
        false => ("2", 1000),
    };
    let with = With {
        options,
        ours: Pair::circuits()?,
        bridge: Pair::bridge()?,
        switch: Pair::ours(&[])?,
        turns: options.runs(9, 2),
        seconds,
        time,
    };
    with.bridge.reaches()?;
    with.switch.reaches()?;
    for pair in [&with.bridge, &with.switch] {
        done(&pair.a, MANY_PORTS)?;
        one_control(pair)?;
    }
    let mut figures = Vec::new();
    for (_, part) in parts {
        let some = part(&with)?.into_iter();
        figures.extend(some.map(|it| match it.peer.is_empty() {
            true => it,
            false => it.peer("congestion_control", CONTROL),
        }));
    }
    Ok(figures)
}

fn one_control(pair: &Pair) -> Result<(), String> {
    let sets = format!("sysctl -qw net.ipv4.tcp_congestion_control={CONTROL}");
    [&pair.a, &pair.b]
        .into_iter()
        .try_for_each(|at| done(at, &sets).map(drop))
}

/// Waits until a proxy connects there.
fn proxied_reaches(pair: &Pair) -> Result<(), String> {
    let mut last = String::new();
    for _ in 0..100 {
        let mut client = pair.command(false, 1, "bash");
        client.args(["-c", &format!(": <>/dev/tcp/{}/1", pair.address)]);
        let output = client.output().map_err(|e| format!("bash: {e}"))?;
        last = String::from_utf8_lossy(&output.stderr).into_owned();
        // Nobody listens there, and it says so.
        if last.contains("refused") {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(format!("no proxy connects: {last}"))
}

/// One run of the talking program: connections a second, or microseconds.
fn talk(pair: &Pair, what: &str, time: u64, core: usize) -> Result<Came, String> {
    let (core, unit) = match what {
        "rtt" => (core, "us"),
        _ => (1, "per_s"),
    };
    talk_of(pair, ["serve", what], time, core, 1, unit)
}

/// One run of what its server and its client do, the server on core 0.
pub fn talk_of(
    pair: &Pair,
    [server, client]: [&str; 2],
    time: u64,
    core: usize,
    message: usize,
    unit: &'static str,
) -> Result<Came, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let program = program.to_str().ok_or("own path")?.to_owned();
    let address = format!("{}:{PORT}", pair.address);
    let words = |what: &str| {
        let numbers = [time.to_string(), message.to_string()];
        let words = ["talk", what, &address].map(str::to_owned);
        words.into_iter().chain(numbers)
    };
    let mut serves = pair.command(true, 0, &program);
    serves.args(words(server)).stderr(Stdio::null());
    serves.stdout(Stdio::null());
    let mut serves = Ended(serves.spawn().map_err(|e| format!("talk: {e}"))?);
    let mut last = String::new();
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(40));
        let before = crate::peer::busy_s();
        let mut asks = pair.command(false, core, &program);
        asks.args(words(client));
        let output = asks.output().map_err(|e| format!("talk: {e}"))?;
        let busy = crate::peer::busy_s() - before;
        let text = String::from_utf8_lossy(&output.stdout);
        if let Ok(value) = text.trim().parse::<f64>() {
            serves.end();
            return Ok(Came {
                value,
                unit,
                cpu: busy,
            });
        }
        last = String::from_utf8_lossy(&output.stderr).into_owned();
        // Asked again until its server is there, and for nothing else.
        if !["os error 111", "os error 113", "os error 101"]
            .iter()
            .any(|it| last.contains(it))
        {
            break;
        }
    }
    Err(format!("talk {client}: {last}"))
}
