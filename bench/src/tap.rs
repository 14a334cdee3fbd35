//! `bench tap`: one TCP stream between two namespaces with default offloads, through
//! a switch compartment, against veth and a Linux bridge. Runs alternate; the figure
//! is the median of the ratios of neighbours.

use crate::Options;
use crate::footprint::cpu_ns;
use crate::results::Figure;
use e2e::Instance;
use serde_json::Value;
use std::process::{Child, Command, Stdio};

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    // iperf3 takes whole seconds.
    let seconds = if options.smoke {
        "1"
    } else if options.quick {
        "3"
    } else {
        "5"
    };
    let ours = Namespaces::named("o");
    let instance = Instance::start()?;
    instance.apply(&spec(&ours))?;
    if options.hindered {
        crate::hinder::without_offloads(&ours.a, "eth0")?;
    }
    let bridge = Bridge::make()?;
    let switch = instance.pid("red")?;
    let congestion = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control")
        .map_err(|e| format!("congestion control: {e}"))?;

    let (mut ratios, mut our_gbps, mut peer_gbps, mut shares, mut our_cpu, mut peer_cpu) =
        (vec![], vec![], vec![], vec![], vec![], vec![]);
    for _ in 0..options.runs(12, 5) {
        let (before, cpu) = (slots(&instance)?, cpu_ns(switch)?);
        let a = stream(&ours.a, &ours.b, "10.1.1.11", seconds)?;
        let (after, cpu) = (slots(&instance)?, cpu_ns(switch)? - cpu);
        let b = stream(&bridge.names.a, &bridge.names.b, "10.9.0.2", seconds)?;
        ratios.push(a.gbps / b.gbps);
        our_gbps.push(a.gbps);
        peer_gbps.push(b.gbps);
        shares.push((after.gso - before.gso) / (after.bytes - before.bytes).max(1.0));
        our_cpu.push((a.cpu_s + cpu as f64 / 1e9) / a.gigabytes);
        peer_cpu.push(b.cpu_s / b.gigabytes);
    }
    let median = |v: &[f64]| Figure::of("", "", v).value;
    Ok(vec![
        Figure::of("tap.tcp_vs_bridge", "ratio", &ratios)
            .ours("gbit_s", median(&our_gbps))
            .ours("cpu_s_per_gb", median(&our_cpu))
            .ours("congestion_control", congestion.trim())
            .peer("name", "veth + Linux bridge")
            .peer("gbit_s", median(&peer_gbps))
            .peer("cpu_s_per_gb", median(&peer_cpu))
            .note("iperf3, one stream, server core 0, client core 1; CPU of both iperf3 ends and of the switch"),
        Figure::of("tap.gso_share", "ratio", &shares).note("bytes that entered the switch in GSO frames"),
    ])
}

struct Namespaces {
    a: String,
    b: String,
}

impl Namespaces {
    fn named(kind: &str) -> Namespaces {
        let id = std::process::id();
        Namespaces {
            a: format!("bhb{id}-{kind}a"),
            b: format!("bhb{id}-{kind}b"),
        }
    }
}

fn spec(names: &Namespaces) -> String {
    let mut text = String::from(
        "version: 1\ntenants:\n  - name: red\n    subnets:\n      - { name: lan, prefixes: [10.1.1.0/24] }\n    endpoints:\n",
    );
    for (name, host, namespace) in [("a", 10, &names.a), ("b", 11, &names.b)] {
        text += &format!(
            "      - {{ name: {name}, subnet: lan, addresses: [10.1.1.{host}], attach: {{ tap: {{ namespace: {namespace}, interface: eth0, make: true }} }} }}\n"
        );
    }
    text
}

#[derive(Default)]
struct Slots {
    bytes: f64,
    gso: f64,
}

/// Bytes received by the switch from its endpoints, and those of them in GSO frames.
fn slots(instance: &Instance) -> Result<Slots, String> {
    let mut slots = Slots::default();
    for name in ["a", "b"] {
        let endpoint = instance.endpoint("red", name)?;
        let number = |name: &str| endpoint["counters"][name].as_f64().unwrap_or(0.0);
        slots.bytes += number("rx_bytes");
        slots.gso += number("rx_gso_bytes");
    }
    Ok(slots)
}

struct Stream {
    gbps: f64,
    gigabytes: f64,
    cpu_s: f64,
}

fn stream(client: &str, server: &str, address: &str, seconds: &str) -> Result<Stream, String> {
    let mut listening = Ended(
        Command::new("ip")
            .args([
                "netns", "exec", server, "taskset", "-c", "0", "iperf3", "-s", "-1",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("iperf3: {e}"))?,
    );
    let mut last = String::new();
    for _ in 0..50 {
        std::thread::sleep(std::time::Duration::from_millis(40));
        let output = Command::new("ip")
            .args([
                "netns", "exec", client, "taskset", "-c", "1", "iperf3", "-c", address, "-t",
                seconds, "-J",
            ])
            .output()
            .map_err(|e| format!("iperf3: {e}"))?;
        let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let end = &json["end"];
        if let (Some(bits), Some(bytes)) = (
            end["sum_received"]["bits_per_second"].as_f64(),
            end["sum_received"]["bytes"].as_f64(),
        ) {
            let time = end["sum_received"]["seconds"].as_f64().unwrap_or(1.0);
            let cpu = &end["cpu_utilization_percent"];
            let share = cpu["host_total"].as_f64().unwrap_or(0.0)
                + cpu["remote_total"].as_f64().unwrap_or(0.0);
            let _ = listening.0.wait();
            return Ok(Stream {
                gbps: bits / 1e9,
                gigabytes: bytes / 1e9,
                cpu_s: share / 100.0 * time,
            });
        }
        last = json["error"].as_str().unwrap_or("no answer").to_owned();
    }
    Err(format!("iperf3 from {client} to {address}: {last}"))
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The peer: two namespaces joined by veth pairs and a bridge in a third.
struct Bridge {
    names: Namespaces,
    middle: String,
}

impl Bridge {
    fn make() -> Result<Bridge, String> {
        let names = Namespaces::named("p");
        let middle = format!("bhb{}-pm", std::process::id());
        let bridge = Bridge { names, middle };
        let (a, b, m) = (&bridge.names.a, &bridge.names.b, &bridge.middle);
        let mut lines = vec![
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("netns add {m}"),
            format!("-n {m} link add br0 type bridge"),
            format!("-n {m} link set br0 up"),
        ];
        for (name, address, port) in [(a, "10.9.0.1/24", "pa"), (b, "10.9.0.2/24", "pb")] {
            lines.push(format!(
                "link add eth0 netns {name} type veth peer name {port} netns {m}"
            ));
            lines.push(format!("-n {m} link set {port} master br0 up"));
            lines.push(format!("-n {name} addr add {address} dev eth0"));
            lines.push(format!("-n {name} link set lo up"));
            lines.push(format!("-n {name} link set eth0 up"));
        }
        for line in &lines {
            let output = Command::new("ip")
                .args(line.split_whitespace())
                .output()
                .map_err(|e| format!("ip: {e}"))?;
            if !output.status.success() {
                return Err(format!(
                    "ip {line}: {}",
                    String::from_utf8_lossy(&output.stderr)
                ));
            }
        }
        Ok(bridge)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        for name in [&self.names.a, &self.names.b, &self.middle] {
            let _ = Command::new("ip")
                .args(["netns", "del", name])
                .stderr(Stdio::null())
                .status();
        }
    }
}
