//! What runs inside a namespace during the demo: the attacker and the listener.
//! Both are this same program, started by `bulkhead run`.

use super::attacks::{ATTACKS, FRAMES, MARK, Scene};
use crate::args::{Attack, Listen};
use crate::exit::{Exit, Trouble};
use port::packet::{self, PacketSocket};
use rustix::event::{PollFd, PollFlags, poll};
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Sends one attack's frames from the interface of this namespace.
pub fn attack(attack: &Attack) -> Result<Exit, Trouble> {
    let chosen = ATTACKS
        .iter()
        .find(|one| one.name == attack.name)
        .ok_or_else(|| Trouble::new(Exit::Usage, format!("no attack {}", attack.name), ""))?;
    let (gateway4, gateway_mac) = gateway()?;
    let scene = Scene {
        own_mac: attack.own_mac.0,
        own4: attack.own4,
        own6: attack.own6,
        victim_mac: attack.victim_mac.0,
        victim4: attack.victim4,
        victim6: attack.victim6,
        gateway_mac,
        gateway4,
    };
    let (offload, frame) = (chosen.frame)(&scene);
    let socket = PacketSocket::from_fd(open(&attack.interface)?);
    for _ in 0..FRAMES {
        socket
            .send(&offload, &frame, &[])
            .map_err(|e| Trouble::new(Exit::Failed, format!("{}: {e}", attack.interface), ""))?;
    }
    Ok(Exit::Done)
}

/// Says one line for each marked frame that arrives, or for each time between two of
/// iperf3's datagrams that is worth telling, until it is killed.
pub fn listen(listen: &Listen) -> Result<Exit, Trouble> {
    let mut silence = Silence::default();
    let socket = PacketSocket::from_fd(open(&listen.interface)?);
    let mut buffer = vec![0; wire::offload::MAX_FRAME + 64];
    crate::print(b"listening\n")?;
    loop {
        match socket.recv(&mut buffer) {
            Ok(Some((_, place))) => {
                let frame = buffer.get(place).unwrap_or_default();
                if let Some(port) = listen.gaps {
                    if is_datagram(frame, port)
                        && let Some(pause) = silence.heard(monotonic())
                    {
                        let line = format!("{} {}\n", pause.end, pause.length);
                        crate::print(line.as_bytes())?;
                    }
                } else if frame.windows(MARK.len()).any(|part| part == MARK) {
                    crate::print(b"heard\n")?;
                }
            }
            Ok(None) => {
                let _ = poll(
                    &mut [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)],
                    None,
                );
            }
            Err(error) => return Err(Trouble::new(Exit::Failed, error.to_string(), "")),
        }
    }
}

/// The time since the host's start, the same for every process, nanoseconds.
pub fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// A shorter time between two datagrams is nothing to tell of, nanoseconds.
pub const PAUSE: u64 = 1_000_000;

/// A time in which nothing was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// When it ended, by [`monotonic`].
    pub end: u64,
    /// Nanoseconds.
    pub length: u64,
}

impl Pause {
    /// From a listener's line.
    pub fn read(line: &str) -> Option<Pause> {
        let (end, length) = line.split_once(' ')?;
        Some(Pause {
            end: end.parse().ok()?,
            length: length.parse().ok()?,
        })
    }
}

/// When something was heard last.
#[derive(Default)]
struct Silence {
    last: Option<u64>,
}

impl Silence {
    /// Something is heard now. The pause that this ends, where it is one.
    fn heard(&mut self, now: u64) -> Option<Pause> {
        let length = now.saturating_sub(self.last.replace(now)?);
        (length >= PAUSE).then_some(Pause { end: now, length })
    }
}

/// Whether a frame is one of iperf3's numbered datagrams over IPv4 to this port: seconds,
/// microseconds and number stand before its payload. Its greeting has four bytes.
fn is_datagram(frame: &[u8], port: u16) -> bool {
    let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    // Ethernet, an IPv4 header without options, UDP.
    word(12) == Some(0x0800)
        && frame.get(14) == Some(&0x45)
        && frame.get(23) == Some(&17)
        && word(36) == Some(port)
        && word(38) >= Some(8 + 12)
}

fn open(interface: &str) -> Result<OwnedFd, Trouble> {
    packet::open(interface).map_err(|e| Trouble::new(Exit::Failed, format!("{interface}: {e}"), ""))
}

/// The default route's gateway, and its MAC as the kernel resolved it.
fn gateway() -> Result<(Ipv4Addr, [u8; 6]), Trouble> {
    let none = || Trouble::new(Exit::Failed, "this namespace has no gateway", "");
    let routes = fs::read_to_string("/proc/thread-self/net/route")?;
    let address = routes
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (destination, gateway) = (words.next()?, words.next()?);
            (destination == "00000000")
                .then(|| u32::from_str_radix(gateway, 16).ok())
                .flatten()
        })
        .find(|gateway| *gateway != 0)
        .map(|gateway| Ipv4Addr::from(gateway.to_le_bytes()))
        .ok_or_else(none)?;
    // A datagram makes the kernel resolve it.
    UdpSocket::bind("0.0.0.0:0")?.send_to(b"x", (address, 9))?;
    let end = Instant::now() + Duration::from_secs(2);
    // Bound: two seconds.
    while Instant::now() < end {
        let neighbours = fs::read_to_string("/proc/thread-self/net/arp")?;
        let found = neighbours
            .lines()
            .find(|line| line.split_whitespace().next() == Some(&address.to_string()));
        if let Some(mac) = found
            .and_then(|line| line.split_whitespace().nth(3))
            .and_then(|mac| mac.parse::<crate::args::Mac>().ok())
            && mac.0 != [0; 6]
        {
            return Ok((address, mac.0));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_told_when_it_ends() {
        let mut silence = Silence::default();
        let told = [0, 10, 10 + PAUSE - 1, 10 + 3 * PAUSE].map(|now| silence.heard(now));
        let last = Pause {
            end: 10 + 3 * PAUSE,
            length: 2 * PAUSE + 1,
        };
        assert_eq!(told, [None, None, None, Some(last)]);
        assert_eq!(Pause::read("7 5"), Some(Pause { end: 7, length: 5 }));
        assert_eq!(Pause::read("heard"), None);
    }

    #[test]
    fn only_numbered_datagrams_to_the_port_are_heard() {
        let datagram = |protocol: u8, port: u16, payload: u16| {
            let mut frame = vec![0; 42 + usize::from(payload)];
            frame[12] = 8;
            frame[14] = 0x45;
            frame[23] = protocol;
            frame[36..38].copy_from_slice(&port.to_be_bytes());
            frame[38..40].copy_from_slice(&(8 + payload).to_be_bytes());
            frame
        };
        assert!(is_datagram(&datagram(17, 5201, 200), 5201));
        assert!(!is_datagram(&datagram(6, 5201, 200), 5201));
        assert!(!is_datagram(&datagram(17, 53, 200), 5201));
        assert!(!is_datagram(&datagram(17, 5201, 4), 5201));
        assert!(!is_datagram(&datagram(17, 5201, 200)[..37], 5201));
    }
}
