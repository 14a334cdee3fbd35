//! `bench reboot`: `kill -9` of a switch under 100,000 numbered packets a second,
//! beside a second tenant at the same rate; then of the fabric; then a switch that
//! is made to loop for ever.

use crate::Options;
use crate::flow::{Cost, Flow, Tally, converse};
use crate::results::Figure;
use e2e::Instance;
use std::time::{Duration, Instant};

const RATE: u64 = 100_000;
/// Packets due so long before a death are that death's to account for, ns.
const QUIET: u64 = 20_000_000;

/// Two tenants with two `fifo` endpoints each.
pub fn spec(names: &[&str]) -> String {
    let mut text = String::from("version: 1\ntenants:\n");
    for name in names {
        text += &format!(
            "  - name: {name}\n    subnets:\n      - {{ name: lan, prefixes: [10.1.1.0/24] }}\n    endpoints:\n      - {{ name: a, subnet: lan, addresses: [10.1.1.10], attach: fifo }}\n      - {{ name: b, subnet: lan, addresses: [10.1.1.11], attach: fifo }}\n"
        );
    }
    text
}

/// Runs it.
pub fn run(options: &Options) -> Result<Vec<Figure>, String> {
    let kills = options.runs(100, 20);
    let instance = Instance::start()?;
    instance.apply(&spec(&["red", "blue"]))?;
    let pause = Duration::from_millis(250);
    let limit = (pause + Duration::from_millis(60)) * kills as u32 + Duration::from_secs(20);
    let red = Flow::start(&instance, "red", "a", "b", RATE, limit)?;
    let blue = Flow::start(&instance, "blue", "a", "b", RATE, limit)?;
    red.running()?;
    blue.running()?;
    // Both flows at their pace before anything is judged.
    std::thread::sleep(pause);

    let window = blue.began().elapsed().as_nanos() as u64;
    let mut deaths = Vec::new();
    let mut pid = instance.pid("red")?;
    for _ in 0..kills {
        let at = kill(pid, &red)?;
        deaths.push(at);
        std::thread::sleep(pause);
        pid = successor(&instance, "red", pid)?;
    }
    std::thread::sleep(pause);
    let window_end = blue.began().elapsed().as_nanos() as u64 - 50_000_000;
    let (red, blue) = (red.end()?, blue.end()?);
    if red.misread > 0 || red.duplicated > 0 || blue.misread > 0 || blue.duplicated > 0 {
        return Err(format!(
            "red: {} misread, {} duplicated; blue: {} misread, {} duplicated",
            red.misread, red.duplicated, blue.misread, blue.duplicated
        ));
    }
    let costs = costs(&red, &deaths)?;
    let of = |what: fn(&Cost) -> u64| costs.iter().map(|c| what(c) as f64).collect::<Vec<_>>();
    let outages: Vec<f64> = of(|cost| cost.outage_ns)
        .iter()
        .map(|ns| ns / 1e6)
        .collect();
    let worst = |what| of(what).into_iter().fold(0.0, f64::max);
    let blue_lost = blue.lost_between(window, window_end);

    let mut held = held_outages(options);
    for _ in 0..3 {
        // Where all cores are busy our own threads may be kept off them for the 10 ms in
        // which an endpoint owes its echo, and its channel is replaced (SECURITY.md).
        if held.is_err() {
            held = held_outages(options);
        }
    }
    let (held, all_back) = held.map_err(|e| format!("held: {e}"))?;
    let fabric = fabric_outages(options)?;
    let stall = stall(options)?;
    Ok(vec![
        Figure::of("reboot.outage_ms.p50", "ms", &outages)
            .note("kill -9 of the switch to the next packet delivered, 100 kpps numbered UDP over FIFO"),
        Figure::quantile_of("reboot.outage_ms.p99", "ms", &outages, 0.99)
            .ours("lost_per_kill_median", Figure::of("", "", &of(|cost| cost.lost)).value)
            .ours("p99_with_100000_connections", Figure::quantile_of("", "", &held, 0.99).value)
            .ours("until_100000_connections_are_back", all_back)
            .ours("duplicated", red.duplicated)
            .ours("misread", red.misread),
        Figure::quantile_of("reboot.lost_beyond_outage", "packets", &of(|cost| cost.beyond), 1.0)
            .ours("in_flight_median", Figure::of("", "", &of(|cost| cost.in_flight)).value)
            .ours("in_flight_worst", worst(|cost| cost.in_flight))
            .ours("late_worst", worst(|cost| cost.late))
            .note("the worst kill: packets lost, less those due in its outage (rate × outage at most) and those in flight at the death (docs/benching.md)"),
        Figure::of("reboot.others_lost", "packets", &[blue_lost as f64])
            .ours("offered", blue.offered)
            .note("the other tenant, 100 kpps, during all of that"),
        Figure::quantile_of("reboot.fabric_outage_ms.p99", "ms", &fabric, 0.99)
            .note("kill -9 of the fabric to the next packet at the far side of the uplink, 20 kpps numbered UDP"),
        Figure::of("reboot.stall_ms", "ms", &stall).note("from the start of an endless loop in the switch to traffic again"),
    ])
}

/// Connections that a switch has beside the flow.
const HELD: u32 = 100_000;

/// The outages of a switch with [`HELD`] connections, under rules that let these begin, ms;
/// and how long it took until all of them were back, ms.
fn held_outages(options: &Options) -> Result<(Vec<f64>, f64), String> {
    let instance = Instance::start()?;
    let endpoint = |name: &str, host: u32, more: &str| {
        format!(
            "      - {{ name: {name}, subnet: lan, addresses: [10.1.1.{host}], attach: fifo{more} }}\n"
        )
    };
    let room = format!(", connections: {}", HELD + HELD / 16);
    let spec = [
        "version: 1\ntenants:\n  - name: red\n    memory: 256MiB\n",
        "    subnets: [{ name: lan, prefixes: [10.1.1.0/24] }]\n    endpoints:\n",
        &endpoint("a", 10, ""),
        &endpoint("b", 11, ""),
        &endpoint("c", 12, &room),
        &endpoint("d", 13, ""),
        "    policy:\n      default: deny\n      rules:\n",
        "        - { name: flow, action: allow, from: { endpoint: a }, to: { endpoint: b }, protocol: udp }\n",
        "        - { name: held, action: allow, from: { endpoint: c }, to: { endpoint: d }, protocol: udp }\n",
    ];
    instance.apply(&spec.concat())?;
    converse(&instance, "red", "c", "d", HELD).map_err(|e| format!("c to d: {e}"))?;
    let kills = options.runs(50, 10);
    let pause = Duration::from_millis(1000);
    let limit = pause * (kills as u32 + 10);
    let flow = Flow::start(&instance, "red", "a", "b", RATE / 10, limit)?;
    flow.running()?;
    let mut pid = instance.pid("red")?;
    let (mut deaths, mut back) = (Vec::new(), Vec::new());
    for _ in 0..kills {
        let begun = Instant::now();
        deaths.push(kill(pid, &flow)?);
        pid = successor(&instance, "red", pid)?;
        loop {
            let status = instance.ask(&["status"])?;
            let restored = status["compartments"][0]["restored"].as_u64();
            if restored.is_some_and(|n| n >= u64::from(HELD)) {
                break;
            }
            if begun.elapsed() > Duration::from_secs(5) {
                return Err(format!("{restored:?} of {HELD} connections came back"));
            }
        }
        back.push(begun.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(pause.saturating_sub(begun.elapsed()));
    }
    let outages = milliseconds(&flow.end()?, &deaths)?;
    Ok((outages, Figure::of("", "", &back).value))
}

/// What each death cost; together they account for every packet of the time between.
fn costs(flow: &Tally, deaths: &[u64]) -> Result<Vec<Cost>, String> {
    let mut from = deaths.first().map_or(0, |at| at.saturating_sub(QUIET));
    let mut costs = Vec::new();
    for (n, at) in deaths.iter().enumerate() {
        // The next death's costs begin with what is in flight then.
        let until = deaths
            .get(n + 1)
            .map_or(at + 10 * QUIET, |next| next.saturating_sub(QUIET));
        costs.push(
            flow.cost(*at, from, until)
                .ok_or("no packet came after a kill")?,
        );
        from = until;
    }
    Ok(costs)
}

/// Kills a process and says when, in the flow's time: the moment before, for after it
/// we may be kept off the processor while others see the death.
fn kill(pid: u32, flow: &Flow) -> Result<u64, String> {
    let pid = rustix::process::Pid::from_raw(pid as i32).ok_or("no pid")?;
    let at = flow.began().elapsed().as_nanos() as u64;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)
        .map_err(|e| format!("kill: {e}"))?;
    Ok(at)
}

/// Waits for another process in the compartment.
fn successor(instance: &Instance, name: &str, before: u32) -> Result<u32, String> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match instance.pid(name) {
            Ok(pid) if pid != before => return Ok(pid),
            _ if Instant::now() > deadline => {
                return Err(format!(
                    "{name} does not come back; log:\n{}",
                    instance.log()
                ));
            }
            _ => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Makes a switch loop for ever where it stands: writes a jump to itself over the
/// instruction that its next wake-up returns to. The processor burns, no progress.
fn stall(options: &Options) -> Result<Vec<f64>, String> {
    let instance = Instance::start()?;
    instance.apply(&spec(&["red"]))?;
    let runs = options.runs(10, 3);
    let flow = Flow::start(
        &instance,
        "red",
        "a",
        "b",
        RATE / 10,
        Duration::from_secs(2 * runs as u64 + 20),
    )?;
    flow.running()?;
    let mut starts = Vec::new();
    for _ in 0..runs {
        let pid = instance.pid("red")?;
        loop_for_ever(pid)?;
        starts.push(flow.began().elapsed().as_nanos() as u64);
        successor(&instance, "red", pid)?;
        std::thread::sleep(Duration::from_millis(1000));
    }
    let tally = flow.end()?;
    milliseconds(&tally, &starts)
}

fn loop_for_ever(pid: u32) -> Result<(), String> {
    use std::os::unix::fs::FileExt;
    let memory = std::fs::OpenOptions::new()
        .write(true)
        .open(format!("/proc/{pid}/mem"))
        .map_err(|e| format!("memory of {pid}: {e}"))?;
    for _ in 0..100_000 {
        // "running", or: number arguments... stack-pointer program-counter.
        let text =
            std::fs::read_to_string(format!("/proc/{pid}/syscall")).map_err(|e| e.to_string())?;
        let counter = text
            .split_whitespace()
            .last()
            .and_then(|w| u64::from_str_radix(w.strip_prefix("0x")?, 16).ok());
        if let (false, Some(counter)) = (text.starts_with("running"), counter) {
            return memory
                .write_all_at(&[0xeb, 0xfe], counter)
                .map_err(|e| format!("memory of {pid}: {e}"));
        }
    }
    Err(format!("{pid} never sleeps"))
}

/// Kills the fabric while numbered packets cross it to the outside.
fn fabric_outages(options: &Options) -> Result<Vec<f64>, String> {
    let outside = crate::outside::Outside::make()?;
    let instance = Instance::start()?;
    instance.apply(&outside.spec())?;
    let kills = options.runs(100, 20);
    let pause = Duration::from_millis(250);
    let limit = (pause + Duration::from_millis(60)) * kills as u32 + Duration::from_secs(20);
    let flow = outside.flow(&instance, RATE / 5, limit)?;
    flow.running()?;
    std::thread::sleep(pause);
    let mut deaths = Vec::new();
    let mut pid = instance.pid("fabric")?;
    for _ in 0..kills {
        deaths.push(kill(pid, &flow)?);
        std::thread::sleep(pause);
        pid = successor(&instance, "fabric", pid)?;
    }
    std::thread::sleep(pause);
    let tally = flow.end()?;
    if tally.misread > 0 || tally.duplicated > 0 {
        return Err(format!(
            "fabric: {} misread, {} duplicated",
            tally.misread, tally.duplicated
        ));
    }
    milliseconds(&tally, &deaths)
}

/// The outage that began at each of these times, ms.
fn milliseconds(flow: &Tally, times: &[u64]) -> Result<Vec<f64>, String> {
    times
        .iter()
        .map(|at| {
            flow.outage_ns(*at)
                .map(|ns| ns as f64 / 1e6)
                .ok_or_else(|| "no packet came after a death".into())
        })
        .collect()
}
