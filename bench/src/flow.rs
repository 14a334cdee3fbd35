//! A FIFO traffic generator and sink: numbered UDP packets, open loop, from one
//! `fifo` endpoint to another, every one accounted for.

use e2e::Instance;
pub use e2e::fifo::{Attached, attach};
use nix::sys::socket::sockopt::{RcvBufForce, ReceiveTimestampns};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt};
use nix::sys::time::TimeSpec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shm::{Channel, Doorbell, State};
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::offload::RawOffload;

/// Bytes of every packet's frame.
pub const FRAME: usize = 64;
/// Where the number stands in the frame: after Ethernet, IPv4 and UDP.
const NUMBER_AT: usize = 42;
/// Where the flow's mark stands.
const MARK_AT: usize = 50;

/// What every packet carries behind its number.
const MARK: &[u8; 14] = b"bulkhead bench";
/// The first loss of a death's is of a packet due so soon after it, ns.
const SOON: u64 = 20_000_000;
/// UDP port the packets go to.
pub const PORT: u16 = 4001;

/// A flow of numbered packets.
pub struct Flow {
    stop: Arc<AtomicBool>,
    start: Instant,
    rate: u64,
    generator: JoinHandle<Result<Vec<u64>, String>>,
    sink: JoinHandle<Result<Heard, String>>,
    delivered: Arc<AtomicU64>,
}

struct Heard {
    /// Nanoseconds since the start at which each number came; 0 = it did not.
    arrivals: Vec<u64>,
    duplicated: u64,
    misread: u64,
}

/// What became of a flow.
pub struct Tally {
    /// Packets that were due.
    pub offered: u64,
    /// Packets that came twice.
    pub duplicated: u64,
    /// Frames that were not one of the packets sent.
    pub misread: u64,
    rate: u64,
    arrivals: Vec<u64>,
    /// Nanoseconds since the start at which each number was offered, a batch at a time.
    offers: Vec<u64>,
}

/// What a death cost the flow.
#[derive(Debug, PartialEq, Eq)]
pub struct Cost {
    /// Nanoseconds from the death to the next packet delivered.
    pub outage_ns: u64,
    /// Packets that never came, of all that were due around the death.
    pub lost: u64,
    /// Of these, in flight at the death: due before it, lost, and none delivered between
    /// them and it. What is in the rings when a switch dies is dropped.
    pub in_flight: u64,
    /// Of these, the generator's own: due before the death, and offered behind it.
    pub late: u64,
    /// Lost and neither in flight nor due during the outage.
    pub beyond: u64,
}

impl Flow {
    /// Starts `rate` packets a second from one endpoint of a tenant to another, for
    /// at most `limit`.
    pub fn start(
        instance: &Instance,
        tenant: &str,
        from: &str,
        to: &str,
        rate: u64,
        limit: Duration,
    ) -> Result<Flow, String> {
        let frame = frame(instance, tenant, from, to)?;
        let (source, sink) = (
            attach(&instance.run_dir(), tenant, from)?,
            attach(&instance.run_dir(), tenant, to)?,
        );
        let expected = frame.clone();
        Flow::between(
            source,
            frame,
            rate,
            limit,
            move |stop, delivered, start, most| {
                listen(sink, stop, delivered, &expected, start, most)
            },
        )
    }

    /// Starts a flow to an address outside, where `socket` listens.
    pub fn to_socket(
        source: Attached,
        frame: Vec<u8>,
        rate: u64,
        limit: Duration,
        socket: UdpSocket,
    ) -> Result<Flow, String> {
        Flow::between(
            source,
            frame,
            rate,
            limit,
            move |stop, delivered, start, most| receive(&socket, stop, delivered, start, most),
        )
    }

    fn between(
        source: Attached,
        frame: Vec<u8>,
        rate: u64,
        limit: Duration,
        sink: impl FnOnce(&AtomicBool, &AtomicU64, Instant, u64) -> Result<Heard, String>
        + Send
        + 'static,
    ) -> Result<Flow, String> {
        let most = (rate as f64 * limit.as_secs_f64()) as u64;
        let stop = Arc::new(AtomicBool::new(false));
        let delivered = Arc::new(AtomicU64::new(0));
        let start = Instant::now();
        let sink = {
            let (stop, delivered) = (stop.clone(), delivered.clone());
            std::thread::spawn(move || sink(&stop, &delivered, start, most))
        };
        let generator = {
            let stop = stop.clone();
            std::thread::spawn(move || generate(source, &stop, frame, start, rate, most))
        };
        Ok(Flow {
            stop,
            start,
            rate,
            generator,
            sink,
            delivered,
        })
    }

    /// When the flow started: times in the tally count from here.
    pub fn began(&self) -> Instant {
        self.start
    }

    /// Packets delivered so far.
    pub fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Waits until packets arrive.
    pub fn running(&self) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.delivered() < 100 {
            if Instant::now() > deadline {
                return Err("no packet arrives".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Ends it and counts.
    pub fn end(self) -> Result<Tally, String> {
        self.stop.store(true, Ordering::Release);
        let offers = self
            .generator
            .join()
            .map_err(|_| "the generator panicked")??;
        let heard = self.sink.join().map_err(|_| "the sink panicked")??;
        Ok(Tally {
            offered: offers.len() as u64,
            offers,
            duplicated: heard.duplicated,
            misread: heard.misread,
            rate: self.rate,
            arrivals: heard.arrivals,
        })
    }
}

impl Tally {
    /// Nanoseconds from `at` (since the start) to the first packet delivered of those
    /// that were due after it, or where one of these was lost within [`SOON`], behind the
    /// first of them: what a dying switch still delivers ends no outage.
    pub fn outage_ns(&self, at: u64) -> Option<u64> {
        let due = self.number_due(at)..self.offered as usize;
        let soon = self.number_due(at + SOON) - due.start;
        let behind = self.arrivals.get(due)?;
        let first_lost = behind.iter().take(soon).position(|t| *t == 0);
        behind
            .get(first_lost.unwrap_or(0)..)?
            .iter()
            .filter(|t| **t != 0)
            .min()
            .map(|t| t.saturating_sub(at))
    }

    /// What a death at `at` cost, of all packets due from `from` (the end of what the
    /// death before cost) until `until` (the next death's).
    pub fn cost(&self, at: u64, from: u64, until: u64) -> Option<Cost> {
        let outage_ns = self.outage_ns(at)?;
        let dead = self.number_due(at);
        let flying = |number: &usize| self.arrivals.get(*number) == Some(&0);
        let in_flight = (self.number_due(from)..dead).rev().take_while(flying);
        let late = |number: &usize| self.offers.get(*number).is_some_and(|t| *t > at);
        let late = in_flight.clone().filter(late).count() as u64;
        let in_flight = in_flight.count() as u64;
        let lost = self.lost_between(from, until);
        let during = self.lost_between(at, at + outage_ns);
        Some(Cost {
            outage_ns,
            lost,
            in_flight,
            late,
            beyond: lost - in_flight - during,
        })
    }

    /// From when each packet that was offered after so many ns was, until it came, nanoseconds;
    /// as long as all of it took where it never did.
    pub fn delays_after(&self, begun: u64) -> Vec<f64> {
        let both = self.offers.iter().zip(&self.arrivals);
        let whole = self.offers.last().copied().unwrap_or(0);
        both.filter(|(offered, _)| **offered >= begun)
            .map(|(offered, came)| match came {
                0 => whole as f64,
                came => came.saturating_sub(*offered) as f64,
            })
            .collect()
    }

    /// When the last packet came, nanoseconds since the start.
    pub fn last_arrival(&self) -> Option<u64> {
        self.arrivals.iter().copied().max().filter(|t| *t != 0)
    }

    /// Packets due between two times that never came.
    pub fn lost_between(&self, from: u64, to: u64) -> u64 {
        let end = self
            .number_due(to)
            .min(self.offered as usize)
            .min(self.arrivals.len());
        let start = self.number_due(from).min(end);
        self.arrivals[start..end]
            .iter()
            .filter(|t| **t == 0)
            .count() as u64
    }

    fn number_due(&self, at: u64) -> usize {
        (at as u128 * self.rate as u128 / 1_000_000_000) as usize + 1
    }
}

/// Has one endpoint begin so many UDP connections with another, each answered.
pub fn converse(
    instance: &Instance,
    tenant: &str,
    from: &str,
    to: &str,
    count: u32,
) -> Result<(), String> {
    /// Connections under way at a time: less than a ring has room for.
    const AT_ONCE: u32 = 256;
    let run = instance.run_dir();
    let mut ends = [attach(&run, tenant, from)?, attach(&run, tenant, to)?];
    let frames = [
        frame(instance, tenant, from, to)?,
        frame(instance, tenant, to, from)?,
    ];
    for first in (0..count).step_by(AT_ONCE as usize) {
        for side in [0, 1, 0] {
            let (mut frame, numbers) = (frames[side].clone(), first..count.min(first + AT_ONCE));
            let expected = numbers.len();
            for n in numbers {
                let mut ports = [1024 + (n % 60_000) as u16, PORT + (n / 60_000) as u16];
                if side == 1 {
                    ports.reverse();
                }
                frame[34..36].copy_from_slice(&ports[0].to_be_bytes());
                frame[36..38].copy_from_slice(&ports[1].to_be_bytes());
                let sent = ends[side]
                    .channel
                    .tx
                    .ring
                    .push(0, &RawOffload::default(), &frame, &[]);
                sent.map_err(|e| format!("{from} to {to}: {e:?}"))?;
            }
            publish(&mut ends[side].channel);
            let patience = Instant::now() + Duration::from_secs(5);
            let mut came = 0;
            while came < expected {
                if Instant::now() > patience {
                    return Err(format!("{came} of {expected} came from {from} to {to}"));
                }
                std::thread::sleep(Duration::from_micros(200));
                settle(&mut ends[side].channel)?;
                came += heard(&mut ends[1 - side].channel, &frames[side])?;
            }
        }
    }
    Ok(())
}

/// How many frames came that have the head of this one.
fn heard(channel: &mut Channel, expected: &[u8]) -> Result<usize, String> {
    let mut head = [0; 14];
    let mut came = 0;
    let _ = channel.rx.bell.drain();
    channel.tx.ring.poll().map_err(|b| format!("{b:?}"))?;
    channel.rx.ring.poll().map_err(|b| format!("{b:?}"))?;
    while let Some(record) = channel.rx.ring.next().map_err(|b| format!("{b:?}"))? {
        let len = record.copy(0, &mut head);
        came += usize::from(len == head.len() && head[..] == expected[..14]);
    }
    channel.rx.ring.release();
    Ok(came)
}

/// Sends each packet when it is due, or counts it as offered and not taken.
fn generate(
    mut at: Attached,
    stop: &AtomicBool,
    mut frame: Vec<u8>,
    start: Instant,
    rate: u64,
    most: u64,
) -> Result<Vec<u64>, String> {
    let mut next = 0_u64;
    let mut offers = Vec::with_capacity(most as usize);
    let offload = RawOffload::default();
    while !stop.load(Ordering::Acquire) && next < most {
        let due = (start.elapsed().as_nanos() * rate as u128 / 1_000_000_000) as u64;
        settle(&mut at.channel)?;
        let mut batch = 0;
        let now = start.elapsed().as_nanos() as u64;
        while next < due.min(most) {
            frame[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&next.to_be_bytes());
            // Not taken (full, or the peer is starting again): due, and lost.
            let _ = at.channel.tx.ring.push(0, &offload, &frame, &[]);
            offers.push(now);
            next += 1;
            batch += 1;
            if batch == 64 {
                publish(&mut at.channel);
                batch = 0;
            }
        }
        publish(&mut at.channel);
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(offers)
}

fn publish(channel: &mut Channel) {
    if channel.tx.ring.publish() == Doorbell::Ring {
        let _ = channel.tx.bell.ring();
    }
}

/// Follows the peer's restarts on both directions, and throws away what comes.
fn settle(channel: &mut Channel) -> Result<(), String> {
    let _ = channel.rx.bell.drain();
    channel.tx.ring.poll().map_err(|b| format!("{b:?}"))?;
    channel.rx.ring.poll().map_err(|b| format!("{b:?}"))?;
    while channel
        .rx
        .ring
        .next()
        .map_err(|b| format!("{b:?}"))?
        .is_some()
    {}
    channel.rx.ring.release();
    Ok(())
}

/// Notes when each number comes.
fn listen(
    mut at: Attached,
    stop: &AtomicBool,
    delivered: &AtomicU64,
    expected: &[u8],
    start: Instant,
    most: u64,
) -> Result<Heard, String> {
    let mut heard = Heard {
        arrivals: vec![0; most as usize + 1],
        duplicated: 0,
        misread: 0,
    };
    let mut buffer = [0_u8; 2048];
    let mut quiet_since = None;
    loop {
        at.channel
            .tx
            .ring
            .poll()
            .map_err(|b| format!("sink: {b:?}"))?;
        let mut any = false;
        while let Some(record) = at
            .channel
            .rx
            .ring
            .next()
            .map_err(|b| format!("sink: {b:?}"))?
        {
            any = true;
            let len = record.copy(0, &mut buffer);
            match number(&buffer[..len], expected) {
                Some(number) => heard.note(number, start.elapsed(), delivered),
                // What the switch sends by itself (router advertisements) is no misreading.
                None if len >= 14 && buffer[..6] != expected[..6] => {}
                None => heard.misread += 1,
            }
        }
        at.channel.rx.ring.release();
        if any {
            quiet_since = None;
            continue;
        }
        if stop.load(Ordering::Acquire) {
            let since = *quiet_since.get_or_insert_with(Instant::now);
            if since.elapsed() > Duration::from_millis(50) {
                return Ok(heard);
            }
        }
        if at
            .channel
            .rx
            .ring
            .arm()
            .map_err(|b| format!("sink: {b:?}"))?
        {
            let settled = at.channel.rx.ring.state() == State::Running;
            let limit = Timespec {
                tv_sec: 0,
                tv_nsec: if settled { 10_000_000 } else { 100_000 },
            };
            let _ = poll(
                &mut [PollFd::new(&at.channel.rx.bell.as_fd(), PollFlags::IN)],
                Some(&limit),
            );
        }
        let rings = at
            .channel
            .rx
            .bell
            .drain()
            .map_err(|e| format!("sink: {e}"))?;
        at.channel
            .rx
            .ring
            .rung(rings)
            .map_err(|b| format!("sink: {b:?}"))?;
    }
}

/// The same at a UDP socket.
fn receive(
    socket: &UdpSocket,
    stop: &AtomicBool,
    delivered: &AtomicU64,
    start: Instant,
    most: u64,
) -> Result<Heard, String> {
    let mut heard = Heard {
        arrivals: vec![0; most as usize + 1],
        duplicated: 0,
        misread: 0,
    };
    socket
        .set_read_timeout(Some(Duration::from_millis(50)))
        .map_err(|e| e.to_string())?;
    let system = |e: nix::Error| e.to_string();
    // When the kernel got it, not when this thread had its turn on a core.
    setsockopt(socket, ReceiveTimestampns, &true).map_err(system)?;
    // What came while it waited for one is not lost. Where this is not root, less is kept.
    let _ = setsockopt(socket, RcvBufForce, &(16 << 20));
    let (wall, begun) = same_moment(start)?;
    let mut buffer = [0; 2048];
    let mut control = nix::cmsg_space!(TimeSpec);
    loop {
        match stamped(socket, &mut buffer, &mut control) {
            Ok((len, came)) => {
                let digits = buffer[..len].first_chunk::<8>();
                let right = len == FRAME - NUMBER_AT && &buffer[8..len] == MARK;
                let since = (came + begun).saturating_sub(wall);
                match digits.map(|d| u64::from_be_bytes(*d)).filter(|_| right) {
                    Some(number) => heard.note(number, since, delivered),
                    None => heard.misread += 1,
                }
            }
            Err(_) if stop.load(Ordering::Acquire) => return Ok(heard),
            Err(_) => {}
        }
    }
}

/// A datagram's length, and when the kernel got it, by the clock of the day.
fn stamped(
    socket: &UdpSocket,
    buffer: &mut [u8],
    control: &mut [u8],
) -> Result<(usize, Duration), nix::Error> {
    let mut parts = [std::io::IoSliceMut::new(buffer)];
    let fd = socket.as_raw_fd();
    let message = recvmsg::<()>(fd, &mut parts, Some(control), MsgFlags::empty())?;
    let came = message.cmsgs()?.find_map(|c| match c {
        ControlMessageOwned::ScmTimestampns(at) => Some(Duration::from(at)),
        _ => None,
    });
    Ok((message.bytes, came.ok_or(nix::Error::ENODATA)?))
}

/// One moment by the clock of the day, and since the start: of several tries the one between
/// whose two looks at the other clock least time passed.
fn same_moment(start: Instant) -> Result<(Duration, Duration), String> {
    let mut best: Option<(Duration, Duration, Duration)> = None;
    for _ in 0..16 {
        let before = start.elapsed();
        let wall = realtime()?;
        let took = start.elapsed().saturating_sub(before);
        if best.is_none_or(|(least, ..)| took < least) {
            best = Some((took, wall, before + took / 2));
        }
    }
    best.map(|(_, wall, begun)| (wall, begun))
        .ok_or_else(|| "no clock".into())
}

/// The clock of the day.
fn realtime() -> Result<Duration, String> {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_err(|e| e.to_string())
}

impl Heard {
    fn note(&mut self, number: u64, since: Duration, delivered: &AtomicU64) {
        match self.arrivals.get_mut(number as usize) {
            Some(arrival) if *arrival == 0 => {
                *arrival = (since.as_nanos() as u64).max(1);
                delivered.fetch_add(1, Ordering::Relaxed);
            }
            Some(_) => self.duplicated += 1,
            None => self.misread += 1,
        }
    }
}

/// The number in a frame, if it is one of the flow's.
fn number(frame: &[u8], expected: &[u8]) -> Option<u64> {
    let same = frame.len() == FRAME
        && frame[..6] == expected[..6]
        && frame[12..NUMBER_AT] == expected[12..NUMBER_AT]
        && frame[MARK_AT..] == expected[MARK_AT..];
    let digits: [u8; 8] = frame.get(NUMBER_AT..MARK_AT)?.try_into().ok()?;
    same.then(|| u64::from_be_bytes(digits))
}

/// A UDP packet between two endpoints of one subnet, by what `status` says of them.
fn frame(instance: &Instance, tenant: &str, from: &str, to: &str) -> Result<Vec<u8>, String> {
    let (from, to) = (
        station(instance, tenant, from)?,
        station(instance, tenant, to)?,
    );
    Ok(packet(from, to))
}

/// A numbered packet, 64 bytes with its Ethernet header.
pub fn packet(from: ([u8; 6], [u8; 4]), to: ([u8; 6], [u8; 4])) -> Vec<u8> {
    let mut payload = vec![0; 8];
    payload.extend(MARK);
    let datagram = e2e::frames::udp(4000, PORT, &payload);
    let packet = e2e::frames::ipv4(from.1, to.1, 17, &datagram);
    e2e::frames::ethernet(to.0, from.0, 0x0800, &packet)
}

/// MAC and IPv4 address of an endpoint.
pub fn station(
    instance: &Instance,
    tenant: &str,
    name: &str,
) -> Result<([u8; 6], [u8; 4]), String> {
    let endpoint = instance.endpoint(tenant, name)?;
    let bad = || format!("status gives no MAC and address for {tenant}/{name}: {endpoint}");
    let mut mac = [0; 6];
    let text = endpoint["mac"].as_str().ok_or_else(bad)?;
    for (byte, hex) in mac.iter_mut().zip(text.split(':')) {
        *byte = u8::from_str_radix(hex, 16).map_err(|_| bad())?;
    }
    let address = endpoint["addresses"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|a| {
            a.as_str()?
                .split('/')
                .next()?
                .parse::<std::net::Ipv4Addr>()
                .ok()
        })
        .next()
        .ok_or_else(bad)?;
    Ok((mac, address.octets()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet a microsecond, each delivered 5 us later but those lost; offered when due.
    fn tally(lost: &[(usize, usize)]) -> Tally {
        let mut arrivals: Vec<u64> = (0..1000).map(|n| n * 1000 + 5000).collect();
        for (from, to) in lost {
            arrivals[*from..*to].fill(0);
        }
        Tally {
            offered: 1000,
            duplicated: 0,
            misread: 0,
            rate: 1_000_000,
            arrivals,
            offers: (0..1000).map(|n| n * 1000).collect(),
        }
    }

    fn cost(lost: &[(usize, usize)]) -> Cost {
        tally(lost).cost(500_000, 0, 900_000).unwrap()
    }

    #[test]
    fn what_is_lost_is_in_flight_or_due_in_the_outage() {
        let cost = cost(&[(480, 600)]);
        let outage_ns = 605_000 - 500_000;
        let (lost, in_flight) = (120, 21);
        let (late, beyond) = (0, 0);
        assert_eq!(
            cost,
            Cost {
                outage_ns,
                lost,
                in_flight,
                late,
                beyond
            }
        );
    }

    #[test]
    fn what_a_dying_switch_still_delivers_ends_no_outage() {
        let cost = cost(&[(520, 600)]);
        assert_eq!(
            (cost.outage_ns, cost.in_flight, cost.beyond),
            (105_000, 0, 0)
        );
    }

    #[test]
    fn what_is_lost_before_or_behind_the_outage_is_neither() {
        // Delivered packets between them and the death; and due when packets came again.
        assert_eq!(cost(&[(450, 460), (480, 600)]).beyond, 10);
        assert_eq!(cost(&[(480, 600), (700, 703)]).beyond, 3);
        // Another death's are another's.
        assert_eq!(cost(&[(480, 600), (950, 960)]).beyond, 0);
    }

    #[test]
    fn what_the_generator_offered_late_is_told_apart() {
        let mut tally = tally(&[(480, 600)]);
        for number in 490..=500 {
            tally.offers[number] = 510_000;
        }
        let cost = tally.cost(500_000, 0, 900_000).unwrap();
        assert_eq!((cost.in_flight, cost.late), (21, 11));
    }
}
