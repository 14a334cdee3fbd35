//! `bench apps`: nginx with a page of 11.3 KB and memcached between two namespaces: ours
//! against a Linux bridge and Open vSwitch in user space in its best configuration, every
//! port a veth.

use crate::Options;
use crate::pairs::{Kind, Pair};
use crate::peer::busy_s;
use crate::results::Figure;
use crate::tcp::{Came, against};
use e2e::Ended;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// Bytes of the page.
const PAGE: usize = 11_300;
/// What is asked.
#[derive(Clone, Copy)]
enum Load {
    /// nginx, a connection a request, so many at a time.
    Nginx(u32),
    Memcached,
    /// redis, GET.
    Redis,
}

/// The loads that a switch is measured by, by name.
const LOADS: [(&str, Load); 3] = [
    ("nginx c=100", Load::Nginx(100)),
    ("nginx c=1000", Load::Nginx(1000)),
    ("memcached", Load::Memcached),
];
/// Circuits by these.
const OF_CIRCUITS: [(&str, Load); 4] = [LOADS[0], LOADS[1], LOADS[2], ("redis GET", Load::Redis)];

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    if let Some(why) = missing(&PROGRAMS) {
        return Ok(["apps.vs_bridge", "apps.vs_ovs"]
            .map(|id| Figure::missing(id, &why))
            .into());
    }
    let folder = e2e::private_folder("bulkhead-apps-")?;
    let figures = measured(options, &folder);
    let _ = std::fs::remove_dir_all(&folder);
    figures
}

const PROGRAMS: [&str; 4] = ["nginx", "ab", "memcached", "memcaslap"];

/// Which of the programs is not installed.
fn missing(all: &[&str]) -> Option<String> {
    let missing = all.iter().find(|program| !is_there(program))?;
    Some(format!("peer missing: {missing}"))
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .any(|folder| folder.join(program).is_file())
}

fn measured(options: &Options, folder: &Path) -> Result<Vec<Figure>, String> {
    let requests = match (options.smoke, options.quick) {
        (true, _) => 1_000,
        (_, true) => 2_000,
        _ => 16_000,
    };
    let turns = options.runs(9, 2);
    let ours = Pair::ours(&[])?;
    if options.hindered {
        crate::hinder::without_offloads(&ours.a.name, "eth0")?;
    }
    ours.reaches()?;
    let bridge = Pair::bridge()?;
    bridge.reaches()?;
    let mut figures = vec![worst(
        "apps.vs_bridge",
        turns,
        folder,
        (&ours, (&bridge, None)),
        &LOADS,
        requests,
    )?];
    drop(bridge);
    let load = |pair: &Pair| once(pair, folder, Load::Nginx(100), requests);
    // Which of its configurations is the better one shows in a run of each.
    let mut best: Option<(f64, Pair)> = None;
    let mut why = String::new();
    for kind in [Kind::Tso, Kind::Afxdp] {
        let tried = Pair::ovs(kind).and_then(|pair| {
            pair.reaches()?;
            Ok((load(&pair)?.value, pair))
        });
        match tried {
            Ok(tried) if best.as_ref().is_none_or(|(value, _)| tried.0 > *value) => {
                best = Some(tried);
            }
            Ok(_) => {}
            Err(error) => why = error,
        }
    }
    figures.push(match best {
        Some((_, ovs)) => worst(
            "apps.vs_ovs",
            turns,
            folder,
            (&ours, (&ovs, None)),
            &LOADS,
            requests,
        )?,
        None => Figure::missing("apps.vs_ovs", &why),
    });
    Ok(figures)
}

/// The same of another pair than a switch's, which answers no ping.
pub fn against_bridge(
    options: &Options,
    id: &str,
    ours: &Pair,
    peers: Peers<'_>,
) -> Result<Figure, String> {
    let programs = [&PROGRAMS[..], &["redis-server", "redis-benchmark"]].concat();
    if let Some(why) = missing(&programs) {
        return Ok(Figure::missing(id, &why));
    }
    let requests = if options.smoke || options.quick {
        2_000
    } else {
        16_000
    };
    let folder = e2e::private_folder("bulkhead-apps-")?;
    let turns = options.runs(9, 2);
    let figure = worst(id, turns, &folder, (ours, peers), &OF_CIRCUITS, requests);
    let _ = std::fs::remove_dir_all(&folder);
    figure
}

/// Whom it is held against, and who is shown beside.
type Peers<'a> = (&'a Pair, Option<(&'a str, &'a Pair)>);

/// The figure of the load at which ours is worst, and what each came to.
fn worst(
    id: &str,
    turns: usize,
    folder: &Path,
    (ours, peers): (&Pair, Peers<'_>),
    loads: &[(&str, Load)],
    requests: u32,
) -> Result<Figure, String> {
    let mut all = Vec::new();
    for (name, load) in loads {
        let load = |pair: &Pair| once(pair, folder, *load, requests);
        all.push((name, against(id, ours, peers, turns, load)?));
    }
    let least = all.iter().min_by(|a, b| a.1.value.total_cmp(&b.1.value));
    let (name, figure) = least.ok_or("no load")?;
    let more = match loads.len() > LOADS.len() {
        true => ", and redis by redis-benchmark",
        false => "",
    };
    let mut figure = figure.clone().note(format!(
        "the worst of nginx ({PAGE} B) at c=100 and c=1000 by ab, memcached by memcaslap{more}, which is {name}; servers core 0, clients core 1; requests or transactions a second, CPU of the whole machine a million"
    ));
    for (name, one) in &all {
        let key = name.replace([' ', '='], "_");
        figure = figure
            .ours(&format!("ratio_{key}"), one.value)
            .ours(&key, one.ours["per_s"].clone())
            .ours(&format!("cpu_s_{key}"), one.ours["cpu_s"].clone())
            .peer(&key, one.peer["per_s"].clone())
            .peer(&format!("cpu_s_{key}"), one.peer["cpu_s"].clone());
    }
    Ok(figure)
}

/// One run of a load.
fn once(pair: &Pair, folder: &Path, load: Load, requests: u32) -> Result<Came, String> {
    match load {
        Load::Nginx(at_a_time) => nginx(pair, folder, at_a_time, requests),
        Load::Memcached => memcached(pair, requests),
        Load::Redis => redis(pair, requests),
    }
}

/// nginx of one worker, with a page of so many bytes.
fn serving(pair: &Pair, folder: &Path, page: usize) -> Result<Ended, String> {
    let here = folder.display();
    let conf = format!(
        "worker_processes 1; worker_rlimit_nofile 8192; pid {here}/pid; error_log {here}/err; daemon off; user root;
events {{ worker_connections 4096; }}
http {{ access_log off; sendfile on; tcp_nopush on; default_type text/html;
 client_body_temp_path {here}/1; proxy_temp_path {here}/2; fastcgi_temp_path {here}/3; uwsgi_temp_path {here}/4; scgi_temp_path {here}/5;
 server {{ listen {}:80 backlog=4096; root {here}/www; }} }}
",
        pair.address
    );
    std::fs::create_dir_all(folder.join("www"))
        .and_then(|()| std::fs::write(folder.join("www/index.html"), vec![b'x'; page]))
        .and_then(|()| std::fs::write(folder.join("conf"), conf))
        .map_err(|e| e.to_string())?;
    crate::pairs::done(&pair.b, "sysctl -qw net.core.somaxconn=4096")?;
    let mut server = pair.command(true, 0, "nginx");
    server.arg("-c").arg(folder.join("conf"));
    server.stdout(Stdio::null()).stderr(Stdio::null());
    // `ip`, `taskset` and nginx become each other: the child is nginx's master.
    let server = Ended(server.spawn().map_err(|e| format!("nginx: {e}"))?);
    std::thread::sleep(Duration::from_millis(300));
    // It may take longer where others have the processors: it is there when it answers.
    let mut asks = pair.command(false, 1, "curl");
    asks.args(["-sS", "-o", "/dev/null", "-r", "0-0", "--retry", "20"]);
    asks.args(["--retry-connrefused", "--retry-delay", "1"]);
    asks.arg(format!("http://{}/index.html", pair.address));
    let answered = asks.output().map_err(|e| format!("curl: {e}"))?;
    match answered.status.success() {
        true => Ok(server),
        false => Err(format!(
            "nginx: {}",
            String::from_utf8_lossy(&answered.stderr)
        )),
    }
}

/// Gbit/s of a large file by nginx's sendfile, to a client that throws it away.
pub fn sendfile(pair: &Pair, folder: &Path, bytes: usize) -> Result<Came, String> {
    let mut server = serving(pair, folder, bytes)?;
    let before = busy_s();
    let mut curl = pair.command(false, 1, "curl");
    curl.args([
        "-sS",
        "-o",
        "/dev/null",
        "-w",
        "%{size_download} %{time_total}",
    ]);
    curl.arg(format!("http://{}/index.html", pair.address));
    let output = curl.output().map_err(|e| format!("curl: {e}"))?;
    let cpu = busy_s() - before;
    server.end();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut words = text.split(' ').map(str::parse::<f64>);
    match (words.next(), words.next()) {
        (Some(Ok(size)), Some(Ok(time))) if size as usize == bytes && time > 0.0 => Ok(Came {
            value: size * 8.0 / time / 1e9,
            unit: "gbit_s",
            cpu,
        }),
        _ => Err(format!(
            "curl: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

fn nginx(pair: &Pair, folder: &Path, at_a_time: u32, requests: u32) -> Result<Came, String> {
    let mut server = serving(pair, folder, PAGE)?;
    let before = busy_s();
    let mut ab = pair.command(false, 1, "ab");
    ab.args([
        "-q",
        "-r",
        "-c",
        &at_a_time.to_string(),
        "-n",
        &requests.to_string(),
    ]);
    ab.arg(format!("http://{}/index.html", pair.address));
    let output = ab.output().map_err(|e| format!("ab: {e}"))?;
    let cpu = busy_s() - before;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    server.end();
    let number = |after: &str| number_after(&text, after);
    let (Some(rate), Some(done)) = (number("Requests per second:"), number("Complete requests:"))
    else {
        return Err(format!(
            "ab: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        ));
    };
    match number("Failed requests:") {
        Some(failed) if failed > done / 1000.0 => Err(format!("ab: {failed} of {done} failed")),
        _ => Ok(Came {
            value: rate,
            unit: "per_s",
            cpu: cpu / done * 1e6,
        }),
    }
}

fn memcached(pair: &Pair, requests: u32) -> Result<Came, String> {
    let mut server = pair.command(true, 0, "memcached");
    server.args(["-u", "nobody", "-t", "1", "-m", "256", "-l", pair.address]);
    server.args(["-p", "11211", "-U", "0"]);
    server.stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Ended(server.spawn().map_err(|e| format!("memcached: {e}"))?);
    std::thread::sleep(Duration::from_millis(300));
    let before = busy_s();
    let mut client = pair.command(false, 1, "memcaslap");
    let seconds = if requests > 10_000 { "2s" } else { "1s" };
    client.args([
        "-s",
        &format!("{}:11211", pair.address),
        "-t",
        seconds,
        "-T",
        "1",
        "-c",
        "16",
    ]);
    let output = client.output().map_err(|e| format!("memcaslap: {e}"))?;
    let cpu = busy_s() - before;
    server.end();
    let text = String::from_utf8_lossy(&output.stdout);
    let (Some(rate), Some(done)) = (number_after(&text, "TPS:"), number_after(&text, "Ops:"))
    else {
        return Err(format!(
            "memcaslap: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        ));
    };
    Ok(Came {
        value: rate,
        unit: "per_s",
        cpu: cpu / done * 1e6,
    })
}

/// GET of three bytes, by sixteen connections, one request at a time on each.
fn redis(pair: &Pair, requests: u32) -> Result<Came, String> {
    let mut server = pair.command(true, 0, "redis-server");
    server.args(["--bind", pair.address, "--protected-mode", "no"]);
    server.args(["--save", "", "--appendonly", "no"]);
    server.stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Ended(server.spawn().map_err(|e| format!("redis: {e}"))?);
    std::thread::sleep(Duration::from_millis(300));
    let before = busy_s();
    let mut client = pair.command(false, 1, "redis-benchmark");
    // Some two seconds in a full run.
    let requests = requests * 12;
    client.args(["-h", pair.address, "-t", "get", "-c", "16", "--csv"]);
    client.args(["-n", &requests.to_string()]);
    let output = client
        .output()
        .map_err(|e| format!("redis-benchmark: {e}"))?;
    let cpu = busy_s() - before;
    server.end();
    let text = String::from_utf8_lossy(&output.stdout);
    let rate = redis_rate(&text).ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("redis-benchmark: {text}{said}")
    })?;
    Ok(Came {
        value: rate,
        unit: "per_s",
        cpu: cpu / f64::from(requests) * 1e6,
    })
}

/// Requests a second, of the line of GET.
fn redis_rate(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("\"GET\""))?;
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}

fn number_after(text: &str, after: &str) -> Option<f64> {
    let rest = text.split(after).nth(1)?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_the_programs_print_them() {
        let ab = "Complete requests:      8000\nFailed requests:        0\nRequests per second:    12178.40 [#/sec] (mean)\n";
        assert_eq!(number_after(ab, "Requests per second:"), Some(12178.4));
        let line = "Run time: 2.0s Ops: 169422 TPS: 84700 Net_rate: 88.1M/s";
        assert_eq!(
            (number_after(line, "TPS:"), number_after(line, "Ops:")),
            (Some(84700.0), Some(169422.0))
        );
        assert_eq!(number_after(line, "nothing"), None);
        let redis = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"84700.50\",\"0.1\"\n";
        assert_eq!(redis_rate(redis), Some(84700.5));
    }
}
