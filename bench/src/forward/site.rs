//! What is measured: one tenant, one compartment, two endpoints of one subnet under 250
//! rules with connections, a rate that never bites; and the packets between them.

use wire::offload::RawOffload;
use wire::{MacAddress, build, ethernet, ipv4};

/// Rules of the tenant.
pub const RULES: usize = 250;
/// Flows at which peers are compared.
pub const FLOWS: u32 = 1_000;
/// Source ports of the flows: from here on, so many to one destination port.
const FIRST_PORT: u16 = 1024;
const PORTS: u32 = 60_000;
/// The first of the destination ports, which the rule in the middle allows.
const SERVICE: u16 = 4001;
/// No offload is asked for.
pub const PLAIN: RawOffload = RawOffload {
    flags: 0,
    gso_type: 0,
    gso_size: 0,
    csum_start: 0,
    csum_offset: 0,
};

/// MAC and IPv4 address.
pub type Station = ([u8; 6], [u8; 4]);

/// How the two endpoints and their switch are set up.
pub struct Site<'a> {
    /// `attach:` of both.
    pub attach: &'a str,
    /// More settings of the tenant, a line each, unindented.
    pub tenant: &'a [&'a str],
    /// Connections that the sender may have.
    pub connections: u32,
    /// Of rules: [`RULES`], or what hinders.
    pub rules: usize,
    /// Tenants beside it in the same compartment, of two endpoints each.
    pub beside: usize,
}

impl Site<'_> {
    /// The spec.
    pub fn spec(&self) -> String {
        let mut text = String::from("version: 1\n");
        text += "tenants:\n  - name: red\n    rate: { from: 800Gbit, to: 800Gbit }\n";
        let place = "    placement: { per: host }\n";
        if self.beside > 0 {
            text += place;
        }
        for line in self.tenant {
            text += &format!("    {line}\n");
        }
        text += &format!(
            "    subnets: [{{ name: lan, prefixes: [10.1.1.0/24] }}]
    endpoints:
      - {{ name: a, subnet: lan, addresses: [10.1.1.10], attach: {0}, connections: {1}, rate: {{ from: 400Gbit, to: 400Gbit }} }}
      - {{ name: b, subnet: lan, addresses: [10.1.1.11], attach: {0}, rate: {{ from: 400Gbit, to: 400Gbit }} }}
    policy:
      default: {{ inside: deny }}
      rules:
",
            self.attach, self.connections
        );
        for n in 0..self.rules {
            text += &rule(n, self.rules / 2);
        }
        for n in 0..self.beside {
            text += &format!(
                "  - name: t{n}
{place}    subnets: [{{ name: lan, prefixes: [10.1.1.0/24] }}]
    endpoints:
      - {{ name: a, subnet: lan, addresses: [10.1.1.10], attach: fifo }}
      - {{ name: b, subnet: lan, addresses: [10.1.1.11], attach: fifo }}
"
            );
        }
        text
    }
}

/// Rules as tenants write them, in no order; the one in the middle lets the flows through.
fn rule(n: usize, middle: usize) -> String {
    if n == middle {
        let last = SERVICE + 63;
        return format!(
            "        - {{ name: flows, action: allow, from: {{ endpoint: a }}, to: {{ endpoint: b }}, protocol: udp, ports: [{SERVICE}-{last}] }}\n"
        );
    }
    // Ports of a scattered order, none of them the flows'.
    let port = 5000 + (n * 7919) % 50_000;
    let from = match n % 3 {
        0 => String::new(),
        1 => format!("from: {{ prefix: 10.1.1.{}/32 }}, ", 1 + n % 250),
        _ => format!("from: {{ prefix: 172.{}.{}.0/24 }}, ", 16 + n % 16, n % 256),
    };
    let protocol = if n.is_multiple_of(2) { "tcp" } else { "udp" };
    format!(
        "        - {{ name: r{n}, action: allow, {from}protocol: {protocol}, ports: [{port}-{}] }}\n",
        port + n % 8
    )
}

/// The ports of flow `n`, source and destination.
pub fn ports(n: u32) -> (u16, u16) {
    (
        FIRST_PORT + (n % PORTS) as u16,
        SERVICE + (n / PORTS) as u16,
    )
}

/// A packet of flow `n`, `size` bytes with its Ethernet header; backward, an answer.
pub fn frame(from: Station, to: Station, n: u32, size: usize, backward: bool) -> Vec<u8> {
    let mut frame = vec![0; size];
    let link = ethernet::Header::new(MacAddress(to.0), MacAddress(from.0), ethernet::IPV4);
    let header = ipv4::Header::new(from.1, to.1, 17);
    let ports = match (ports(n), backward) {
        (ports, false) => ports,
        ((a, b), true) => (b, a),
    };
    let payload = size - 42;
    let made = build::udp4(&mut frame, &link, &header, ports, |_| Ok(payload));
    assert_eq!(made.ok(), Some(size), "a frame of {size} bytes");
    // As the peers' generator: no checksum over the payload.
    frame[40..42].fill(0);
    frame
}

/// Flows in random order: every one of them once, then in another order again.
pub fn shuffled(flows: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..flows).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for at in (1..order.len()).rev() {
        random ^= random >> 12;
        random ^= random << 25;
        random ^= random >> 27;
        order.swap(
            at,
            (random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % (at + 1),
        );
    }
    order
}
