//! Lies across agreements: all tags, its own ones most often, and on them everything that
//! was not agreed, as another tenant's switch would have to let in by mistake.

use crate::frames::{ethernet, ipv4_sum, put};
use image::compartment::{CROSSING_ACCEPTOR, Crossing, ServicePorts};

/// In all that it says, so that it is known where it arrives.
const MARK: &[u8; 4] = b"liar";

/// MACs, addresses and numbers to choose from, beside random ones.
const STATIONS: [[u8; 6]; 4] = [
    [0; 6],
    [0xff; 6],
    [0x33, 0x33, 0, 0, 0, 1],
    [1, 0, 0x5e, 0, 0, 1],
];
const HOSTS: [u8; 6] = [1, 10, 11, 12, 0, 255];
const PROTOCOLS: [u8; 8] = [6, 17, 1, 58, 132, 47, 0, 2];
const TCP_FLAGS: [u8; 6] = [0x02, 0x12, 0x10, 0x04, 0x11, 0];
/// Echo, unreachable, redirect, time exceeded, parameter problem; their like in IPv6.
const ICMP: [u8; 5] = [8, 3, 5, 11, 12];
const ICMP6: [u8; 8] = [128, 1, 2, 3, 134, 135, 136, 137];

/// What it knows of agreements, and how far it has come.
#[derive(Default)]
pub struct Crossings {
    known: Vec<(Crossing, Vec<ServicePorts>)>,
    step: u64,
    dice: u64,
}

impl Crossings {
    /// Takes what the image says of its own.
    pub fn learn(&mut self, crossings: &[(Crossing, Vec<ServicePorts>)]) {
        if self.known.is_empty() {
            self.known = crossings.to_vec();
        }
    }

    /// The next of them: its tag and its frame.
    pub fn forge(&mut self, own: [u8; 6]) -> (u16, Vec<u8>) {
        self.step += 1;
        let at = self.below(self.known.len());
        let known = self.known.get(at).cloned();
        let tag = match (&known, self.step % 2) {
            (Some((crossing, _)), 0) => crossing.tag,
            _ => (self.step / 2) as u16,
        };
        let (crossing, ports) = known.unwrap_or_default();
        let from = if self.below(4) == 0 {
            self.station()
        } else {
            own
        };
        let to = self.station();
        let six = self.below(2) == 0;
        let protocol = match ports.first() {
            Some(ports) if self.below(2) == 0 => ports.protocol,
            _ => self.one_of(&PROTOCOLS),
        };
        let inner = self.transport(protocol, &ports, &crossing, six);
        (tag, self.packet(to, from, six, protocol, &inner, &crossing))
    }

    /// Numbers that follow from each other (xorshift, Marsaglia, 2003).
    fn random(&mut self) -> u64 {
        let mut x = self.dice.max(1);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.dice = x;
        x >> 11
    }

    fn below(&mut self, n: usize) -> usize {
        (self.random() % n.max(1) as u64) as usize
    }

    fn one_of<T: Copy + Default>(&mut self, all: &[T]) -> T {
        let at = self.below(all.len());
        all.get(at).copied().unwrap_or_default()
    }

    fn station(&mut self) -> [u8; 6] {
        match self.below(3) {
            0 => {
                let [a, b, c, d, ..] = self.random().to_le_bytes();
                [2, a, b, c, d, 1]
            }
            _ => self.one_of(&STATIONS),
        }
    }

    /// Somebody's: of the addresses that both tenants may have, of the agreement, of nobody.
    fn four(&mut self, crossing: &Crossing) -> [u8; 4] {
        let host = self.one_of(&HOSTS);
        match self.below(6) {
            0 => crossing.address4,
            1 => [10, 1, 250, host],
            2 => [10, 1, 200, host],
            3 => (self.random() as u32).to_le_bytes(),
            4 => self.one_of(&[[255; 4], [127, 0, 0, 1], [224, 0, 0, 1], [0; 4]]),
            _ => [10, 1, 1, host],
        }
    }

    fn six(&mut self, crossing: &Crossing) -> [u8; 16] {
        let host = self.one_of(&[0x10, 0x11, 0x12, 1]);
        let of = |net: [u16; 4]| {
            let mut address = [0; 16];
            for (to, from) in address
                .iter_mut()
                .zip(net.iter().flat_map(|n| n.to_be_bytes()))
            {
                *to = from;
            }
            address[15] = host;
            address
        };
        match self.below(5) {
            0 => crossing.address6,
            1 => of([0xfd00, 1, 0x250, 0]),
            2 => of([0xff02, 0, 0, 0]),
            3 => of([0xfe80, 0, 0, 0]),
            _ => of([0xfd00, 1, 1, 1]),
        }
    }

    fn port(&mut self, ports: &[ServicePorts]) -> u16 {
        let first = ports.first().map_or(80, |p| p.first);
        match self.below(5) {
            0 | 1 => first,
            2 => first.wrapping_add(1),
            3 => self.one_of(&[22, 53, 80, 443, 5432, 0]),
            _ => self.random() as u16,
        }
    }

    fn transport(
        &mut self,
        protocol: u8,
        ports: &[ServicePorts],
        crossing: &Crossing,
        six: bool,
    ) -> Vec<u8> {
        let mut out = vec![0; 40];
        match protocol {
            1 | 58 => {
                let kind = if protocol == 1 {
                    self.one_of(&ICMP)
                } else {
                    self.one_of(&ICMP6)
                };
                put(&mut out, 0, &[kind, self.below(5) as u8]);
                // What an error quotes: something that the other side could have sent.
                let (quoted, first) = (self.one_of(&[6, 17]), self.port(ports));
                let mut inner = vec![0; 8];
                put(&mut inner, 0, &first.to_be_bytes());
                let own = self.port(ports).to_be_bytes();
                put(&mut inner, 2, &own);
                out.truncate(8);
                let quote = self.packet([0; 6], [0; 6], six, quoted, &inner, crossing);
                out.extend_from_slice(quote.get(14..).unwrap_or(&[]));
                out.extend_from_slice(MARK);
            }
            _ => {
                let (source, destination) = (self.port(ports), self.port(ports));
                put(&mut out, 0, &source.to_be_bytes());
                put(&mut out, 2, &destination.to_be_bytes());
                match protocol {
                    6 => put(&mut out, 12, &[0x50, self.one_of(&TCP_FLAGS), 0xff, 0xff]),
                    _ => put(&mut out, 4, &40u16.to_be_bytes()),
                }
                put(&mut out, 36, MARK);
            }
        }
        out
    }

    fn packet(
        &mut self,
        to: [u8; 6],
        from: [u8; 6],
        six: bool,
        protocol: u8,
        inner: &[u8],
        crossing: &Crossing,
    ) -> Vec<u8> {
        let hops = self.one_of(&[64, 64, 255, 1, 0]);
        // What users send goes to the address that stands for the service.
        let honest = crossing.role == CROSSING_ACCEPTOR && self.below(2) == 0;
        if six {
            let mut frame = ethernet(to, from, 0x86dd, 54 + inner.len());
            put(&mut frame, 14, &[0x60]);
            put(&mut frame, 18, &(inner.len() as u16).to_be_bytes());
            put(&mut frame, 20, &[protocol, hops]);
            let source = self.six(crossing);
            let destination = if honest {
                crossing.address6
            } else {
                self.six(crossing)
            };
            put(&mut frame, 22, &source);
            put(&mut frame, 38, &destination);
            put(&mut frame, 54, inner);
            checksum(&mut frame, 22, 54, protocol);
            return frame;
        }
        let mut frame = ethernet(to, from, 0x0800, 34 + inner.len());
        let total = (20 + inner.len() as u16).to_be_bytes();
        put(&mut frame, 14, &[0x45, 0, total[0], total[1]]);
        // Whole, a first fragment, a later one.
        let fragment: u16 = self.one_of(&[0, 0, 0, 0x2000, 0x2001, 7]);
        let number = (self.random() as u16 & 15).to_be_bytes();
        put(&mut frame, 18, &number);
        put(&mut frame, 20, &fragment.to_be_bytes());
        put(&mut frame, 22, &[hops, protocol]);
        let source = self.four(crossing);
        let destination = if honest {
            crossing.address4
        } else {
            self.four(crossing)
        };
        put(&mut frame, 26, &source);
        put(&mut frame, 30, &destination);
        ipv4_sum(&mut frame);
        put(&mut frame, 34, inner);
        checksum(&mut frame, 26, 34, protocol);
        frame
    }
}

/// Puts in the checksum of what begins at `inner`; addresses begin at `addresses`. Without
/// it the receiver's kernel would throw away what its switch let in.
fn checksum(frame: &mut [u8], addresses: usize, inner: usize, protocol: u8) {
    let at = match protocol {
        6 => 16,
        17 => 6,
        1 | 58 => 2,
        _ => return,
    };
    put(frame, inner + at, &[0; 2]);
    let from = if protocol == 1 { inner } else { addresses };
    let covered = frame.get(from..).unwrap_or(&[]);
    let words = covered.chunks(2).map(|word| match word {
        [high, low] => u64::from(*high) << 8 | u64::from(*low),
        [high] => u64::from(*high) << 8,
        _ => 0,
    });
    let mut sum: u64 = words.sum();
    if protocol != 1 {
        sum += u64::from(protocol) + frame.len().saturating_sub(inner) as u64;
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    put(frame, inner + at, &(!(sum as u16)).to_be_bytes());
}
