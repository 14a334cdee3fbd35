//! `bench meter`: what an endpoint's rate lets through, against what was asked: TCP and
//! UDP over tap, large frames and the smallest segments over FIFO. The plain alternative
//! is the kernel's own policer on the same tap.

use crate::Options;
use crate::flow::{self, Attached};
use crate::results::Figure;
use e2e::Instance;
use serde_json::Value;
use shm::Doorbell;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wire::offload::{GSO_TCPV4, NEEDS_CSUM, RawOffload};
use wire::{build, ethernet, ipv4, tcp};

/// What is sent, and what a byte of it costs on the wire.
#[derive(Clone, Copy)]
enum Load {
    /// One TCP stream of iperf3, with this maximum segment size.
    Tcp(u32),
    /// iperf3's UDP, twice the rate, datagrams of this size.
    Udp(u32),
    /// Frames of 64 KiB by a FIFO, to be cut into segments of this size.
    Fifo(u16),
}

const CASES: &[(Load, u64)] = &[
    (Load::Tcp(1448), 1),
    (Load::Udp(1400), 1),
    (Load::Tcp(1448), 10),
    (Load::Udp(1400), 10),
    (Load::Tcp(1448), 100),
    (Load::Tcp(536), 100),
    (Load::Udp(1400), 100),
    (Load::Udp(1400), 400),
    (Load::Tcp(1448), 1_000),
    (Load::Tcp(1448), 5_000),
    (Load::Fifo(1448), 100),
    (Load::Fifo(536), 1_000),
    (Load::Fifo(1448), 5_000),
    (Load::Fifo(1448), 20_000),
];
/// The same for a smoke run.
const FEW: &[(Load, u64)] = &[(Load::Tcp(1448), 100), (Load::Fifo(536), 1_000)];

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    let instance = Instance::start()?;
    let names = [
        format!("bhb{}-ma", std::process::id()),
        format!("bhb{}-mb", std::process::id()),
    ];
    let seconds = if options.smoke { 1 } else { 4 };
    let mut errors = Vec::new();
    let mut seen = Vec::new();
    for (load, mbit) in if options.smoke { FEW } else { CASES } {
        // Hindered, it is given a tenth more than it is judged by.
        let given = if options.hindered {
            mbit * 11 / 10
        } else {
            *mbit
        };
        instance.apply(&spec(&names, given))?;
        let asked = *mbit as f64 * 1e6;
        let got = match load {
            Load::Tcp(mss) => {
                let set = if *mss == 1448 {
                    vec![]
                } else {
                    vec!["-M".to_owned(), (mss + 12).to_string()]
                };
                let payload = stream(&names, seconds, &set)?;
                // Ethernet, IPv4, TCP with timestamps.
                payload * f64::from(mss + 66) / f64::from(*mss)
            }
            Load::Udp(size) => {
                let rate = format!("{}M", mbit * 2);
                let words = ["-u", "-b", &rate, "-l", &size.to_string()];
                let payload = stream(&names, seconds, &words.map(str::to_owned))?;
                payload * f64::from(size + 42) / f64::from(*size)
            }
            Load::Fifo(size) => frames(&instance, *size, Duration::from_secs(seconds.into()))?,
        };
        let error = (got - asked).abs() / asked * 100.0;
        errors.push(error);
        seen.push(format!("{} {mbit}: {:.1}", load.name(), got / 1e6));
    }
    let kernel = shaper(&names, &instance, seconds)?;
    let worst = Figure::quantile_of("meter.error_pct", "%", &errors, 1.0)
        .ours("mbit_s_asked_and_got", seen.join("; "))
        .peer("name", "tc tbf in the sender's namespace, TCP, 100 Mbit/s")
        .peer("error_pct", kernel)
        .note("the worst of all cases; bits of frames, a GSO frame as its segments; UDP is sent at twice the rate");
    Ok(vec![worst])
}

impl Load {
    fn name(self) -> String {
        match self {
            Load::Tcp(mss) => format!("TCP/{mss}"),
            Load::Udp(size) => format!("UDP/{size}"),
            Load::Fifo(size) => format!("FIFO GSO/{size}"),
        }
    }
}

fn spec(names: &[String; 2], mbit: u64) -> String {
    let rate = format!("rate: {{ bits: {mbit}Mbit, burst: 96KiB }}, min_gso: 256");
    let tap = |name: &str, host: u32, namespace: &str, more: &str| {
        format!(
            "      - {{ name: {name}, subnet: lan, addresses: [10.1.1.{host}], {more}attach: {{ tap: {{ namespace: {namespace}, interface: eth0, make: true }} }} }}\n"
        )
    };
    let fifo = |name: &str, host: u32, more: &str| {
        format!(
            "      - {{ name: {name}, subnet: lan, addresses: [10.1.1.{host}], {more}attach: {{ fifo: {{ capacity: 1MiB }} }} }}\n"
        )
    };
    let mut text = String::from(
        "version: 1\ntenants:\n  - name: red\n    subnets:\n      - { name: lan, prefixes: [10.1.1.0/24] }\n    endpoints:\n",
    );
    text += &tap("a", 10, &names[0], &format!("{rate}, "));
    text += &tap("b", 11, &names[1], "");
    text += &fifo("source", 20, &format!("{rate}, "));
    text += &fifo("sink", 21, "");
    text
}

/// Bits of payload a second that arrive.
fn stream(names: &[String; 2], seconds: u32, words: &[String]) -> Result<f64, String> {
    let mut server = Ended(
        Command::new("ip")
            .args(["netns", "exec", &names[1], "iperf3", "-s", "-1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("iperf3: {e}"))?,
    );
    let mut last = String::new();
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(40));
        let output = Command::new("ip")
            .args([
                "netns",
                "exec",
                &names[0],
                "iperf3",
                "-c",
                "10.1.1.11",
                "-J",
            ])
            .args(["-t", &seconds.to_string(), "-O", "2"])
            .args(words)
            .output()
            .map_err(|e| format!("iperf3: {e}"))?;
        let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let end = &json["end"];
        let tcp = end["sum_received"]["bits_per_second"].as_f64();
        if let Some(bits) = tcp {
            let sum = &end["sum"];
            let lost = match words.first().map(String::as_str) {
                // Of UDP iperf3 says what was sent, and what part of it never came.
                Some("-u") => sum["lost_percent"]
                    .as_f64()
                    .filter(|_| end["sum_received"].is_null()),
                _ => None,
            };
            let _ = server.0.wait();
            return Ok(bits * (1.0 - lost.unwrap_or(0.0) / 100.0));
        }
        last = json["error"].as_str().unwrap_or("no answer").to_owned();
    }
    Err(format!("iperf3: {last}"))
}

/// Bits a second of frames of 64 KiB that pass, each as its segments.
fn frames(instance: &Instance, size: u16, time: Duration) -> Result<f64, String> {
    let mac = |name: &str| -> Result<wire::MacAddress, String> {
        let endpoint = instance.endpoint("red", name)?;
        let text = endpoint["mac"]
            .as_str()
            .ok_or("an endpoint without a MAC")?;
        let mut mac = [0; 6];
        for (to, byte) in mac.iter_mut().zip(text.split(':')) {
            *to = u8::from_str_radix(byte, 16).map_err(|e| e.to_string())?;
        }
        Ok(wire::MacAddress(mac))
    };
    let link = ethernet::Header::new(mac("sink")?, mac("source")?, ethernet::IPV4);
    let header = ipv4::Header::new([10, 1, 1, 20], [10, 1, 1, 21], tcp::PROTOCOL);
    let segment = tcp::Header {
        source: 1,
        destination: 2,
        sequence: 0,
        acknowledgement: 0,
        header_len: 20,
        flags: tcp::ACK,
        window: 1000,
    };
    let payload = usize::from(size) * (64_000 / usize::from(size));
    let mut frame = vec![0; 66_000];
    let length = build::ipv4(&mut frame, &link, &header, |body| {
        let emitted = segment.emit(body)?;
        body[emitted..emitted + payload].fill(7);
        Ok(emitted + payload)
    })
    .map_err(|e| e.to_string())?;
    frame.truncate(length);
    let offload = RawOffload {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        gso_size: size,
        csum_start: 34,
        csum_offset: 16,
    };
    let wire_bytes = (payload + 54 * payload / usize::from(size)) as u64;
    let (mut source, mut sink) = (
        flow::attach(&instance.run_dir(), "red", "source")?,
        flow::attach(&instance.run_dir(), "red", "sink")?,
    );
    let (stop, came) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| pour(&mut source, &frame, &offload, &stop));
        let taker = scope.spawn(|| take(&mut sink, length, &came, &stop));
        // Past the burst.
        std::thread::sleep(Duration::from_millis(1500));
        let (first, begun) = (came.load(Ordering::Relaxed), Instant::now());
        std::thread::sleep(time);
        let (last, took) = (came.load(Ordering::Relaxed), begun.elapsed());
        stop.store(true, Ordering::Relaxed);
        let ended = sender.join().map_err(|_| "the sender panicked")?;
        ended.and(taker.join().map_err(|_| "the taker panicked")?)?;
        Ok(((last - first) * wire_bytes * 8) as f64 / took.as_secs_f64())
    })
}

/// As much as the ring takes.
fn pour(
    at: &mut Attached,
    frame: &[u8],
    offload: &RawOffload,
    stop: &AtomicBool,
) -> Result<(), String> {
    while !stop.load(Ordering::Relaxed) {
        let full = at.channel.tx.ring.push(0, offload, frame, &[]).is_err();
        if at.channel.tx.ring.publish() == Doorbell::Ring {
            let _ = at.channel.tx.bell.ring();
        }
        if full {
            at.channel.tx.ring.poll().map_err(|b| format!("{b:?}"))?;
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    Ok(())
}

fn take(
    at: &mut Attached,
    length: usize,
    came: &AtomicU64,
    stop: &AtomicBool,
) -> Result<(), String> {
    while !stop.load(Ordering::Relaxed) {
        at.channel.tx.ring.poll().map_err(|b| format!("{b:?}"))?;
        let mut any = 0;
        while let Some(record) = at.channel.rx.ring.next().map_err(|b| format!("{b:?}"))? {
            any += u64::from(record.len() == length);
        }
        at.channel.rx.ring.release();
        came.fetch_add(any, Ordering::Relaxed);
        if any == 0 {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
    Ok(())
}

/// The kernel's shaper inside the sender's namespace, where the sender could remove it:
/// error in percent at 100 Mbit/s.
fn shaper(names: &[String; 2], instance: &Instance, seconds: u32) -> Result<f64, String> {
    let text = spec(names, 1).replace("rate: { bits: 1Mbit, burst: 96KiB }, ", "");
    instance.apply(&text)?;
    let words = "qdisc replace dev eth0 root tbf rate 100mbit burst 96k latency 50ms";
    let output = Command::new("ip")
        .args(["netns", "exec", &names[0], "tc"])
        .args(words.split(' '))
        .output()
        .map_err(|e| format!("tc: {e}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("tc {words}: {said}"));
    }
    let got = stream(names, seconds, &[])? * 1514.0 / 1448.0;
    Ok((got - 100e6).abs() / 1e6)
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
