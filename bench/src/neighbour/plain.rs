//! The plain alternative: two senders on a Linux bridge, one of them flooding.

use super::pin;
use crate::Options;
use crate::results::Figure;
use e2e::Namespace;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Where the two flows go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Meet {
    /// To a receiver each.
    Apart,
    /// By one port of the bridge.
    Together,
}

/// Payload that makes a frame of 64 bytes.
const PAYLOAD: usize = 22;

/// What one gets beside the other, against half of what it gets alone: the median.
pub fn share(options: &Options, meet: Meet) -> Result<f64, String> {
    let middle = Namespace::make()?;
    middle.ip("link add br0 type bridge")?;
    middle.ip("link set br0 up")?;
    let mut stations = Vec::new();
    for n in 0..4 {
        let station = Namespace::make()?;
        station.ip(&format!(
            "link add eth0 type veth peer name p{n} netns {}",
            middle.name
        ))?;
        middle.ip(&format!("link set p{n} master br0 up"))?;
        station.ip(&format!("addr add 10.9.0.1{n}/24 dev eth0"))?;
        station.ip("link set eth0 up")?;
        stations.push(station);
    }
    let [a, b, c, d] = &stations[..] else {
        return Err("four stations were to be made".into());
    };
    let other = if meet == Meet::Together {
        (b, 11)
    } else {
        (d, 13)
    };
    let time = Duration::from_millis(if options.smoke { 200 } else { 700 });
    let mut ratios = Vec::new();
    for _ in 0..options.runs(9, 3) {
        let alone = came(a, b, None, time)?;
        let beside = came(a, b, Some((c, other.1)), time)?;
        ratios.push(2.0 * beside / alone);
    }
    Ok(Figure::of("", "", &ratios).value)
}

/// Datagrams a second from one to another, whether they were read or found no room.
fn came(
    from: &Namespace,
    to: &Namespace,
    flood: Option<(&Namespace, u8)>,
    time: Duration,
) -> Result<f64, String> {
    let home = e2e::enter(&to.name)?;
    let socket = UdpSocket::bind(("10.9.0.11", 4001)).map_err(|e| e.to_string());
    e2e::leave_to(&home)?;
    let socket = socket?;
    socket.set_nonblocking(true).map_err(|e| e.to_string())?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let mut threads = vec![scope.spawn(move || pour(from, "10.9.0.11:4001".into(), 0, stop))];
        if let Some((namespace, host)) = flood {
            let target = format!("10.9.0.{host}:4002");
            threads.push(scope.spawn(move || pour(namespace, target, 1, stop)));
        }
        std::thread::sleep(Duration::from_millis(100));
        let first = received(to)?;
        let begun = Instant::now();
        std::thread::sleep(time);
        let (last, took) = (received(to)?, begun.elapsed());
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        drop(socket);
        Ok((last - first) as f64 / took.as_secs_f64())
    })
}

/// What the socket was given: it is not read, and what found no room is counted.
fn received(at: &Namespace) -> Result<u64, String> {
    let home = e2e::enter(&at.name)?;
    let text = std::fs::read_to_string("/proc/thread-self/net/udp").map_err(|e| e.to_string());
    e2e::leave_to(&home)?;
    // 4001 is 0FA1; the last column is what was dropped.
    text?
        .lines()
        .find(|line| line.contains(":0FA1 "))
        .and_then(|line| line.split_whitespace().last()?.parse().ok())
        .ok_or_else(|| "no socket at port 4001".into())
}

/// As many datagrams as the kernel takes, from a core.
fn pour(from: &Namespace, to: String, core: usize, stop: &AtomicBool) -> Result<(), String> {
    if std::thread::available_parallelism().map_or(1, usize::from) > core {
        pin(None, core)?;
    }
    e2e::enter(&from.name)?;
    let socket = UdpSocket::bind(("0.0.0.0", 0)).map_err(|e| e.to_string())?;
    socket.connect(&to).map_err(|e| format!("{to}: {e}"))?;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..64 {
            // Refused where nobody listens, or no room: sent or not, on it goes.
            let _ = socket.send(&[0; PAYLOAD]);
        }
    }
    Ok(())
}
