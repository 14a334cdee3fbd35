//! Tries every ordered pair from inside the namespaces, and asks who answered.

use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, ipproto,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

const TCP_PORT: u16 = 7001;
const BROADCAST_PORT: u16 = 7002;

/// Where an endpoint is.
#[derive(Clone)]
pub struct Place {
    tenant: usize,
    name: String,
    namespace: String,
    address: Ipv4Addr,
}

/// How the tries came out.
pub struct Verdict {
    /// How many tries.
    pub tries: usize,
    /// How many were not as they should be.
    pub wrong: usize,
    /// The first of those.
    pub first_wrong: String,
    /// In words.
    pub what: String,
}

/// The namespace of an endpoint; unique to this process.
pub fn namespace(tenant: usize, name: &str) -> String {
    format!("bhb{}-t{tenant}{name}", std::process::id())
}

/// Where the spec's endpoints are.
pub fn places(tenants: usize) -> Vec<Place> {
    let mut places = Vec::new();
    for tenant in 0..tenants {
        for (name, host) in [("a", 10), ("b", 11)] {
            places.push(Place {
                tenant,
                name: format!("t{tenant}{name}"),
                namespace: namespace(tenant, name),
                address: Ipv4Addr::new(10, 0, (tenant / 2) as u8, host),
            });
        }
    }
    places
}

struct Station {
    place: Place,
    network: File,
    icmp: OwnedFd,
    listener: TcpListener,
    broadcast: UdpSocket,
}

/// Tries all pairs. `few`: TCP only from every eighth endpoint.
pub fn every_pair(places: &[Place], few: bool) -> Result<Verdict, String> {
    let home = File::open("/proc/thread-self/ns/net").map_err(|e| e.to_string())?;
    let stations = places.iter().map(station).collect::<Result<Vec<_>, _>>();
    enter(&home)?;
    let stations = stations?;
    let mut wrong = Wrong::default();
    // Gateways and neighbours resolve, and IPv6 settles, before anything is judged.
    std::thread::sleep(Duration::from_millis(300));
    let pings = ping(&stations, &mut wrong)?;
    let step = if few { 8 } else { 1 };
    let connects = connect(&stations, step, &mut wrong)?;
    let broadcasts = broadcast(&stations, &mut wrong)?;
    enter(&home)?;
    Ok(Verdict {
        tries: pings + connects + broadcasts,
        wrong: wrong.count,
        first_wrong: wrong.first,
        what: format!(
            "{pings} pairs by ICMP, {connects} by TCP, {broadcasts} broadcasts, all right"
        ),
    })
}

#[derive(Default)]
struct Wrong {
    count: usize,
    first: String,
}

impl Wrong {
    fn unless(&mut self, right: bool, what: impl FnOnce() -> String) {
        if !right {
            self.count += 1;
            if self.first.is_empty() {
                self.first = what();
            }
        }
    }
}

fn enter(network: &File) -> Result<(), String> {
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|e| format!("setns: {e}"))
}

fn station(place: &Place) -> Result<Station, String> {
    let say = |e: std::io::Error| format!("{}: {e}", place.namespace);
    let network = File::open(format!("/run/netns/{}", place.namespace)).map_err(say)?;
    enter(&network)?;
    let icmp = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::RAW,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        Some(ipproto::ICMP),
    )
    .map_err(|e| say(e.into()))?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, TCP_PORT)).map_err(say)?;
    listener.set_nonblocking(true).map_err(say)?;
    let broadcast = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, BROADCAST_PORT)).map_err(say)?;
    broadcast.set_nonblocking(true).map_err(say)?;
    broadcast.set_broadcast(true).map_err(say)?;
    Ok(Station {
        place: place.clone(),
        network,
        icmp,
        listener,
        broadcast,
    })
}

/// Who should answer when `from` speaks to `address`: its own tenant's, or nobody.
fn owner<'a>(stations: &'a [Station], from: &Station, address: Ipv4Addr) -> Option<&'a Station> {
    let first = from.place.tenant * 2;
    stations[first..first + 2]
        .iter()
        .find(|s| s.place.address == address)
}

fn echoes(station: &Station) -> Result<u64, String> {
    enter(&station.network)?;
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").map_err(|e| e.to_string())?;
    let mut icmp = text.lines().filter(|l| l.starts_with("Icmp:"));
    let (names, values) = (icmp.next().unwrap_or(""), icmp.next().unwrap_or(""));
    names
        .split_whitespace()
        .zip(values.split_whitespace())
        .find(|(name, _)| *name == "InEchos")
        .and_then(|(_, value)| value.parse().ok())
        .ok_or_else(|| "no InEchos".into())
}

/// Pings every address from every station, and counts at every station how many
/// requests it got: a twin's answer would be counted at the twin.
fn ping(stations: &[Station], wrong: &mut Wrong) -> Result<usize, String> {
    let before = stations.iter().map(echoes).collect::<Result<Vec<_>, _>>()?;
    let mut expected = vec![0_u64; stations.len()];
    let mut tries = 0;
    for (i, from) in stations.iter().enumerate() {
        let targets: BTreeSet<Ipv4Addr> = stations
            .iter()
            .map(|s| s.place.address)
            .filter(|a| *a != from.place.address)
            .collect();
        let mut answered = BTreeSet::new();
        for target in &targets {
            let packet = echo_request(i as u16);
            let to = SocketAddrV4::new(*target, 0);
            // No route or a full queue is an answer too: what counts is who replies.
            let _ = rustix::net::sendto(&from.icmp, &packet, SendFlags::empty(), &to);
            replies(from, i as u16, &mut answered);
            if let Some(owner) = owner(stations, from, *target) {
                let at = stations
                    .iter()
                    .position(|s| s.place.name == owner.place.name)
                    .unwrap_or(0);
                expected[at] += 1;
            }
        }
        let should: BTreeSet<Ipv4Addr> = targets
            .iter()
            .copied()
            .filter(|t| owner(stations, from, *t).is_some())
            .collect();
        let deadline = Instant::now() + Duration::from_secs(2);
        while !answered.is_superset(&should) && Instant::now() < deadline {
            replies(from, i as u16, &mut answered);
            std::thread::sleep(Duration::from_micros(200));
        }
        // Each ordered pair is a try; twins share an address and so a request.
        tries += stations.len() - 1;
        wrong.unless(answered == should, || {
            format!(
                "ping from {}: {answered:?} answered, {should:?} should",
                from.place.name
            )
        });
    }
    std::thread::sleep(Duration::from_millis(200));
    for (i, station) in stations.iter().enumerate() {
        let got = echoes(station)?.wrapping_sub(before[i]);
        wrong.unless(got == expected[i], || {
            format!(
                "{} got {got} echo requests, {} were meant for it",
                station.place.name, expected[i]
            )
        });
    }
    Ok(tries)
}

fn echo_request(id: u16) -> [u8; 16] {
    let mut packet = [0; 16];
    packet[0] = 8;
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    let mut sum: u32 = packet
        .chunks(2)
        .map(|c| u32::from(u16::from_be_bytes([c[0], c[1]])))
        .sum();
    sum = (sum & 0xffff) + (sum >> 16);
    packet[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    packet
}

fn replies(station: &Station, id: u16, answered: &mut BTreeSet<Ipv4Addr>) {
    let mut buffer = [0_u8; 512];
    while let Ok((n, _, from)) =
        rustix::net::recvfrom(&station.icmp, &mut buffer[..], RecvFlags::empty())
    {
        let reply = n >= 28 && buffer[20] == 0 && buffer[24..26] == id.to_be_bytes();
        if let (true, Some(SocketAddrAny { .. })) = (reply, from.clone()) {
            answered.insert(Ipv4Addr::new(
                buffer[12], buffer[13], buffer[14], buffer[15],
            ));
        }
    }
}

/// Connects from stations to every address and reads who answers.
fn connect(stations: &[Station], step: usize, wrong: &mut Wrong) -> Result<usize, String> {
    let mut tries = 0;
    let addresses: BTreeSet<Ipv4Addr> = stations.iter().map(|s| s.place.address).collect();
    let froms: Vec<&Station> = stations.iter().step_by(step).collect();
    for group in froms.chunks(20) {
        let mut open: Vec<(&Station, Ipv4Addr, OwnedFd)> = Vec::new();
        for from in group {
            enter(&from.network)?;
            for target in addresses.iter().filter(|a| **a != from.place.address) {
                let socket = rustix::net::socket_with(
                    AddressFamily::INET,
                    SocketType::STREAM,
                    SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
                    None,
                )
                .map_err(|e| e.to_string())?;
                let _ = rustix::net::connect(&socket, &SocketAddrV4::new(*target, TCP_PORT));
                open.push((from, *target, socket));
            }
        }
        let mut answered: BTreeMap<(String, Ipv4Addr), String> = BTreeMap::new();
        let expected: usize = open
            .iter()
            .filter(|(from, target, _)| owner(stations, from, *target).is_some())
            .count();
        let start = Instant::now();
        // All that will answer has answered long before; what must not gets a second.
        while start.elapsed() < Duration::from_secs(1)
            || (answered.len() < expected && start.elapsed() < Duration::from_secs(4))
        {
            for station in stations {
                while let Ok((mut stream, _)) = station.listener.accept() {
                    let _ = stream.write_all(station.place.name.as_bytes());
                }
            }
            open.retain_mut(|(from, target, socket)| {
                let Ok(copy) = socket.try_clone() else {
                    return true;
                };
                let mut stream = TcpStream::from(copy);
                let mut name = [0; 32];
                match stream.read(&mut name) {
                    Ok(n) if n > 0 => {
                        answered.insert(
                            (from.place.name.clone(), *target),
                            String::from_utf8_lossy(&name[..n]).into(),
                        );
                        false
                    }
                    _ => true,
                }
            });
            std::thread::sleep(Duration::from_millis(5));
        }
        for from in group {
            for target in addresses.iter().filter(|a| **a != from.place.address) {
                let got = answered
                    .get(&(from.place.name.clone(), *target))
                    .map(String::as_str);
                let should = owner(stations, from, *target).map(|s| s.place.name.as_str());
                wrong.unless(got == should, || {
                    format!(
                        "TCP from {} to {target}: {got:?} answered, {should:?} should",
                        from.place.name
                    )
                });
            }
            tries += stations.len() - 1;
        }
    }
    Ok(tries)
}

/// A broadcast from every station reaches its tenant's other endpoint and no one else.
fn broadcast(stations: &[Station], wrong: &mut Wrong) -> Result<usize, String> {
    for station in stations {
        let _ = station
            .broadcast
            .send_to(
                station.place.name.as_bytes(),
                (Ipv4Addr::BROADCAST, BROADCAST_PORT),
            )
            .or_else(|_| {
                let a = station.place.address.octets();
                station.broadcast.send_to(
                    station.place.name.as_bytes(),
                    (Ipv4Addr::new(a[0], a[1], a[2], 255), BROADCAST_PORT),
                )
            });
    }
    // What will be heard has long been heard; what must not gets half a second.
    let start = Instant::now();
    let mut heard = vec![BTreeSet::new(); stations.len()];
    let should: Vec<BTreeSet<String>> = stations
        .iter()
        .map(|station| {
            let first = station.place.tenant * 2;
            let pair = stations[first..first + 2]
                .iter()
                .map(|s| s.place.name.clone());
            pair.filter(|name| *name != station.place.name).collect()
        })
        .collect();
    while start.elapsed() < Duration::from_millis(500)
        || (heard != should && start.elapsed() < Duration::from_secs(3))
    {
        for (station, heard) in stations.iter().zip(&mut heard) {
            let mut buffer = [0; 64];
            while let Ok((n, _)) = station.broadcast.recv_from(&mut buffer) {
                let name = String::from_utf8_lossy(&buffer[..n]).into_owned();
                // A sender's own kernel may loop its broadcast back: that says nothing of us.
                if name != station.place.name {
                    heard.insert(name);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    for ((station, heard), should) in stations.iter().zip(&heard).zip(&should) {
        wrong.unless(heard == should, || {
            format!(
                "{} heard broadcasts of {heard:?}, should hear {should:?}",
                station.place.name
            )
        });
    }
    Ok(stations.len())
}
