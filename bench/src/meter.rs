//! `bench meter`: what the rates of an endpoint, from it and to it, let through, against
//! what was asked: TCP and UDP over tap, large frames and the smallest segments over FIFO.
//! What each generator gets through without a rate is measured first, so that a rate that
//! this machine cannot carry is told from one that is metered wrongly. The plain
//! alternative is the kernel's own shaper on the same tap.

use crate::Options;
use crate::flow::{self, Attached};
use crate::results::Figure;
use e2e::Instance;
use serde_json::Value;
use shm::Doorbell;
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wire::offload::{GSO_TCPV4, NEEDS_CSUM, RawOffload};
use wire::{build, ethernet, ipv4, tcp};

/// What is sent, and what a byte of it costs on the wire.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// One TCP stream of iperf3, with this maximum segment size.
    Tcp(u32),
    /// Twice the rate, in datagrams of this size.
    Udp(u32),
    /// Frames of 64 KiB by a FIFO, to be cut into segments of this size.
    Fifo(u16),
}

/// Which rate it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Of the endpoint that sends.
    From,
    /// Of the endpoint that it is sent to.
    To,
}
use Way::{From, To};

/// Windows a second that datagrams are counted in.
const WINDOWS: u32 = 4;
/// A sender that was away for so long offered less than was asked: well below what the
/// tap's queue bridges.
const STALL: Duration = Duration::from_millis(5);

/// With the rate, Mbit/s.
const CASES: &[(Load, Way, u64)] = &[
    (Load::Tcp(1448), From, 1),
    (Load::Udp(1400), From, 1),
    (Load::Tcp(1448), From, 10),
    (Load::Udp(1400), From, 10),
    (Load::Tcp(1448), From, 100),
    (Load::Tcp(536), From, 100),
    (Load::Udp(1400), From, 100),
    (Load::Udp(1400), From, 400),
    (Load::Tcp(1448), From, 1_000),
    (Load::Udp(8900), From, 1_000),
    (Load::Tcp(1448), From, 5_000),
    (Load::Udp(8900), From, 5_000),
    (Load::Fifo(1448), From, 100),
    (Load::Fifo(256), From, 1_000),
    (Load::Fifo(536), From, 1_000),
    (Load::Fifo(1448), From, 5_000),
    (Load::Fifo(1448), From, 20_000),
    (Load::Tcp(1448), To, 10),
    (Load::Udp(1400), To, 100),
    (Load::Tcp(1448), To, 100),
    (Load::Tcp(1448), To, 1_000),
    (Load::Fifo(256), To, 1_000),
    (Load::Fifo(1448), To, 5_000),
];
/// The same for a smoke run.
const FEW: &[(Load, Way, u64)] = &[
    (Load::Tcp(1448), From, 100),
    (Load::Fifo(536), From, 1_000),
    (Load::Udp(1400), To, 100),
];

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    let instance = Instance::start()?;
    let names = [
        format!("bhb{}-ma", std::process::id()),
        format!("bhb{}-mb", std::process::id()),
    ];
    let seconds = if options.smoke {
        1
    } else if options.quick {
        2
    } else {
        4
    };
    let cases = if options.smoke { FEW } else { CASES };
    let bench = Bench {
        instance: &instance,
        names: &names,
        seconds,
    };
    let mut carried: Vec<(Load, f64)> = Vec::new();
    for (load, ..) in cases {
        if !carried.iter().any(|(other, _)| other == load) {
            instance.apply(&spec(&names, None))?;
            carried.push((*load, bench.measure(*load, 10_000)?.bits));
        }
    }
    let (mut errors, mut metered, mut aside) = (Vec::new(), 0f64, 0);
    let mut seen = Vec::new();
    for (load, way, mbit) in cases {
        // Hindered, it is given a tenth more than it is judged by.
        let given = if options.hindered {
            mbit * 11 / 10
        } else {
            *mbit
        };
        instance.apply(&spec(&names, Some((*way, given))))?;
        let asked = *mbit as f64 * 1e6;
        let Got {
            bits: got,
            aside: n,
        } = bench.measure(*load, *mbit)?;
        aside += n;
        let error = (got - asked).abs() / asked * 100.0;
        errors.push(error);
        let most = carried.iter().find(|(other, _)| other == load);
        let beyond = most.is_some_and(|(_, most)| *most < asked * 1.05);
        if !beyond {
            metered = metered.max(error);
        }
        let way = if *way == From { "from" } else { "to" };
        let limit = if beyond { " (the machine's limit)" } else { "" };
        seen.push(format!(
            "{} {way} {mbit}: {:.2}{limit}",
            load.name(),
            got / 1e6
        ));
    }
    let kernel = shaper(&bench)?;
    let carried: Vec<String> = carried
        .iter()
        .map(|(load, most)| format!("{}: {:.0}", load.name(), most / 1e6))
        .collect();
    let worst = Figure::quantile_of("meter.error_pct", "%", &errors, 1.0)
        .ours("mbit_s_asked_and_got", seen.join("; "))
        .ours("mbit_s_without_a_rate", carried.join("; "))
        .ours("windows_in_which_the_sender_stalled", aside)
        .ours("worst_of_what_the_machine_carries", metered)
        .peer("name", "tc tbf in the sender's namespace, TCP, 100 Mbit/s")
        .peer("error_pct", kernel)
        .note("the worst of all cases; bits of frames, a GSO frame as its segments; UDP is sent at twice the rate, windows in which its sender stalled are set aside");
    Ok(vec![worst])
}

/// What a load got.
struct Got {
    /// Bits a second on the wire.
    bits: f64,
    /// Windows that are not judged.
    aside: usize,
}

/// Where it is measured.
struct Bench<'a> {
    instance: &'a Instance,
    names: &'a [String; 2],
    seconds: u32,
}

impl Bench<'_> {
    /// Bits a second on the wire that arrive.
    fn measure(&self, load: Load, mbit: u64) -> Result<Got, String> {
        // What is on its way at the ends weighs more where there is less.
        let seconds = if mbit < 10 {
            6 * self.seconds
        } else {
            self.seconds
        };
        let bits = match load {
            Load::Tcp(mss) => {
                // iperf3 counts the timestamps in.
                let payload = stream(self.names, seconds, &(mss + 12).to_string())?;
                // Ethernet, IPv4, TCP with timestamps.
                payload * f64::from(mss + 66) / f64::from(mss)
            }
            Load::Udp(size) => return datagrams(self.names, size, mbit, seconds),
            Load::Fifo(size) => frames(self.instance, size, Duration::from_secs(seconds.into()))?,
        };
        Ok(Got { bits, aside: 0 })
    }
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

fn spec(names: &[String; 2], limit: Option<(Way, u64)>) -> String {
    let (mut from, mut to) = (String::new(), String::new());
    match limit {
        // The least burst there is.
        Some((From, mbit)) => from = format!("rate: {{ bits: {mbit}Mbit, burst: 96KiB }}, "),
        Some((To, mbit)) => to = format!("rate: {{ to: {{ bits: {mbit}Mbit, burst: 96KiB }} }}, "),
        None => {}
    }
    let tap = |name: &str, host: u32, namespace: &str, more: &str| {
        format!(
            "      - {{ name: {name}, subnet: lan, addresses: [10.1.1.{host}], {more}attach: {{ tap: {{ namespace: {namespace}, interface: eth0, make: true }} }} }}\n"
        )
    };
    let fifo = |name: &str, host: u32, more: &str| {
        format!(
            "      - {{ name: {name}, subnet: lan, addresses: [10.1.1.{host}], {more}min_gso: 256, attach: {{ fifo: {{ capacity: 4MiB }} }} }}\n"
        )
    };
    let mut text = String::from(
        "version: 1\ntenants:\n  - name: red\n    subnets:\n      - { name: lan, prefixes: [10.1.1.0/24], mtu: 9000 }\n    endpoints:\n",
    );
    text += &tap("a", 10, &names[0], &format!("{from}min_gso: 256, "));
    text += &tap("b", 11, &names[1], &to);
    text += &fifo("source", 20, &from);
    text += &fifo("sink", 21, &to);
    text
}

/// Bits of payload a second of one TCP stream that arrive.
fn stream(names: &[String; 2], seconds: u32, segment: &str) -> Result<f64, String> {
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
            .args(["netns", "exec", &names[0], "iperf3", "-c", "10.1.1.11"])
            .args(["-J", "-M", segment, "-O", "2", "-t", &seconds.to_string()])
            .output()
            .map_err(|e| format!("iperf3: {e}"))?;
        let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if let Some(bits) = json["end"]["sum_received"]["bits_per_second"].as_f64() {
            let _ = server.0.wait();
            return Ok(bits);
        }
        last = json["error"].as_str().unwrap_or("no answer").to_owned();
    }
    Err(format!("iperf3: {last}"))
}

/// Bits a second of datagrams' frames that arrive, of twice as many that are sent. Judged
/// are the windows in which the sender kept its pace: it sends without waiting for anybody,
/// so whether it does is the machine's doing alone (a guest whose free pages its host takes
/// back stalls at each page that it touches anew). Where these are too few, all are.
fn datagrams(names: &[String; 2], size: u32, mbit: u64, seconds: u32) -> Result<Got, String> {
    let inside = |name: &str, address: &str| {
        let home = e2e::enter(name)?;
        let socket = UdpSocket::bind(address).map_err(|e| format!("{address}: {e}"));
        e2e::leave_to(&home)?;
        socket
    };
    // Nobody reads it: what it has no room for is counted like the rest.
    let _ear = inside(&names[1], "10.1.1.11:4001")?;
    let mouth = inside(&names[0], "10.1.1.10:0")?;
    let ready = mouth.connect("10.1.1.11:4001");
    ready
        .and_then(|()| mouth.set_nonblocking(true))
        .map_err(|e| e.to_string())?;
    let wire_bits = f64::from(size + 42) * 8.0;
    let (stop, stalled) = (AtomicBool::new(false), AtomicBool::new(false));
    let a_second = 2.0 * mbit as f64 * 1e6 / wire_bits;
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(&mouth, size, a_second, &stop, &stalled));
        // Past the burst.
        std::thread::sleep(Duration::from_millis(1500));
        let seen = windows(&names[1], seconds * WINDOWS, &stalled);
        stop.store(true, Ordering::Relaxed);
        sender.join().map_err(|_| "the sender panicked")?;
        let seen = seen?;
        let judged: Vec<_> = seen.iter().filter(|w| !w.stalled).collect();
        let is_enough = judged.len() >= (seconds * WINDOWS) as usize;
        let judged = if is_enough {
            judged
        } else {
            seen.iter().collect()
        };
        let came: u64 = judged.iter().map(|w| w.came).sum();
        let took: f64 = judged.iter().map(|w| w.took.as_secs_f64()).sum();
        Ok(Got {
            bits: came as f64 * wire_bits / took,
            aside: seen.len() - judged.len(),
        })
    })
}

/// Sends so many datagrams a second, as time passes, until it is stopped. It says when it
/// stalled: then it offered less than it should.
fn send(mouth: &UdpSocket, size: u32, a_second: f64, stop: &AtomicBool, stalled: &AtomicBool) {
    let payload = vec![7; size as usize];
    let (begun, mut sent) = (Instant::now(), 0u64);
    let mut last = begun;
    while !stop.load(Ordering::Relaxed) {
        let due = (begun.elapsed().as_secs_f64() * a_second) as u64;
        // Not more at once than a queue of the kernel holds, nor what is long past.
        sent = sent.max(due.saturating_sub(2_000));
        while sent < due {
            let _ = mouth.send(&payload);
            sent += 1;
        }
        let now = Instant::now();
        if now - last > STALL {
            stalled.store(true, Ordering::Relaxed);
        }
        last = now;
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// What came in one window.
struct Window {
    came: u64,
    took: Duration,
    stalled: bool,
}

/// Windows until so many are without a stall, or four times as many are over.
fn windows(name: &str, enough: u32, stalled: &AtomicBool) -> Result<Vec<Window>, String> {
    let mut seen: Vec<Window> = Vec::new();
    let mut kept = 0;
    stalled.store(false, Ordering::Relaxed);
    let (mut last, mut begun) = (datagrams_at(name)?, Instant::now());
    while kept < enough && (seen.len() as u32) < 4 * enough {
        std::thread::sleep(Duration::from_secs(1) / WINDOWS);
        let (now, at) = (datagrams_at(name)?, Instant::now());
        let window = Window {
            came: now - last,
            took: at - begun,
            stalled: stalled.swap(false, Ordering::Relaxed),
        };
        (last, begun) = (now, at);
        kept += u32::from(!window.stalled);
        seen.push(window);
    }
    Ok(seen)
}

/// Datagrams that came to a namespace's sockets, whether they found room there or not.
fn datagrams_at(name: &str) -> Result<u64, String> {
    let home = e2e::enter(name)?;
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").map_err(|e| e.to_string());
    e2e::leave_to(&home)?;
    let text = text?;
    let mut lines = text.lines().filter(|line| line.starts_with("Udp: "));
    let (Some(heads), Some(values)) = (lines.next(), lines.next()) else {
        return Err("/proc/net/snmp without UDP".into());
    };
    let counted = ["InDatagrams", "InErrors"];
    let pairs = heads.split(' ').zip(values.split(' '));
    let mut sum = 0;
    for (_, value) in pairs.filter(|(head, _)| counted.contains(head)) {
        sum += value.parse::<u64>().map_err(|e| format!("{value}: {e}"))?;
    }
    Ok(sum)
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
fn shaper(bench: &Bench<'_>) -> Result<f64, String> {
    bench.instance.apply(&spec(bench.names, None))?;
    let words = "qdisc replace dev eth0 root tbf rate 100mbit burst 96k latency 50ms";
    let output = Command::new("ip")
        .args(["netns", "exec", &bench.names[0], "tc"])
        .args(words.split(' '))
        .output()
        .map_err(|e| format!("tc: {e}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("tc {words}: {said}"));
    }
    let got = bench.measure(Load::Tcp(1448), 100)?.bits;
    Ok((got - 100e6).abs() / 1e6)
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
