//! Raw frames sent from inside a namespace, and two tenants to send them between.

use crate::{Namespace, Said, unique};
use std::io::Write;
use std::process::{Command, Stdio};

/// Sends frames as they are on an interface of a namespace (a packet socket, which
/// no address, route or neighbour of the kernel's gets in the way of).
pub fn send(namespace: &str, interface: &str, frames: &[Vec<u8>]) -> Result<(), String> {
    const PROGRAM: &str = "import socket,sys
s=socket.socket(socket.AF_PACKET,socket.SOCK_RAW)
s.bind((sys.argv[1],0))
for line in sys.stdin: s.send(bytes.fromhex(line.strip()))";
    let mut child = Command::new("ip")
        .args([
            "netns", "exec", namespace, "python3", "-c", PROGRAM, interface,
        ])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("python3: {e}"))?;
    if let Some(mut input) = child.stdin.take() {
        for frame in frames {
            let hex: String = frame.iter().map(|b| format!("{b:02x}")).collect();
            writeln!(input, "{hex}").map_err(|e| e.to_string())?;
        }
    }
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// An Ethernet frame.
pub fn ethernet(to: [u8; 6], from: [u8; 6], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(14 + payload.len());
    frame.extend(to);
    frame.extend(from);
    frame.extend(ether_type.to_be_bytes());
    frame.extend(payload);
    frame.resize(frame.len().max(60), 0);
    frame
}

/// An IPv4 packet with a right header checksum.
pub fn ipv4(from: [u8; 4], to: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let total = (20 + payload.len()) as u16;
    let mut packet = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, protocol, 0, 0];
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet.extend(from);
    packet.extend(to);
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(payload);
    packet
}

/// A UDP datagram without a checksum (IPv4 allows it).
pub fn udp(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::new();
    datagram.extend(from.to_be_bytes());
    datagram.extend(to.to_be_bytes());
    datagram.extend(((8 + payload.len()) as u16).to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    datagram
}

/// The Internet checksum (RFC 1071).
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|c| u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An ARP packet for Ethernet and IPv4: `operation` 1 asks, 2 answers.
pub fn arp(operation: u16, from: ([u8; 6], [u8; 4]), to: ([u8; 6], [u8; 4])) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4];
    packet.extend(operation.to_be_bytes());
    packet.extend(from.0);
    packet.extend(from.1);
    packet.extend(to.0);
    packet.extend(to.1);
    packet
}

/// An IPv6 packet.
pub fn ipv6(
    from: [u8; 16],
    to: [u8; 16],
    next_header: u8,
    hop_limit: u8,
    payload: &[u8],
) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([next_header, hop_limit]);
    packet.extend(from);
    packet.extend(to);
    packet.extend(payload);
    packet
}

/// An ICMPv6 message with its checksum.
pub fn icmpv6(from: [u8; 16], to: [u8; 16], message: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    all.extend(from);
    all.extend(to);
    all.extend((message.len() as u32).to_be_bytes());
    all.extend([0, 0, 0, 58]);
    all.extend(message);
    let sum = checksum(&all);
    let mut message = message.to_vec();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// Two tenants with the same addresses: each a web subnet with `web1` and an app
/// subnet with `app1` and `app2`, in namespaces made by the supervisor.
pub struct TwoTenants {
    /// The spec.
    pub spec: String,
    prefix: String,
}

impl Default for TwoTenants {
    fn default() -> Self {
        TwoTenants::new("")
    }
}

impl TwoTenants {
    /// `more` is put under each tenant, indented by four spaces.
    pub fn new(more: &str) -> TwoTenants {
        let prefix = unique("bht");
        let mut spec = String::from("version: 1\ntenants:\n");
        for tenant in ["red", "blue"] {
            spec += &format!(
                "  - name: {tenant}\n{more}    subnets:\n      - {{ name: web, prefixes: [10.1.1.0/24, \"fd00:1:1:1::/64\"] }}\n      - {{ name: app, prefixes: [10.1.2.0/24, \"fd00:1:1:2::/64\"] }}\n    endpoints:\n"
            );
            for (name, subnet, net, host) in [
                ("web1", "web", 1, 10),
                ("app1", "app", 2, 11),
                ("app2", "app", 2, 12),
            ] {
                spec += &format!(
                    "      - {{ name: {name}, subnet: {subnet}, addresses: [10.1.{net}.{host}, \"fd00:1:1:{net}::{host}\"], attach: {{ tap: {{ namespace: {prefix}-{tenant}-{name}, interface: eth0, make: true }} }} }}\n"
                );
            }
        }
        TwoTenants { spec, prefix }
    }

    /// The namespace of an endpoint.
    pub fn at(&self, tenant: &str, endpoint: &str) -> Namespace {
        Namespace::named(format!("{}-{tenant}-{endpoint}", self.prefix))
    }

    /// Runs a shell line at an endpoint.
    pub fn sh(&self, tenant: &str, endpoint: &str, line: &str) -> Result<Said, String> {
        let namespace = std::mem::ManuallyDrop::new(self.at(tenant, endpoint));
        namespace.sh(line)
    }

    /// Name of an endpoint's namespace.
    pub fn name(&self, tenant: &str, endpoint: &str) -> String {
        format!("{}-{tenant}-{endpoint}", self.prefix)
    }

    /// MAC of an endpoint's interface.
    pub fn mac(&self, tenant: &str, endpoint: &str) -> Result<[u8; 6], String> {
        let said = self.sh(tenant, endpoint, "cat /sys/class/net/eth0/address")?;
        let mut mac = [0; 6];
        for (byte, text) in mac.iter_mut().zip(said.out.trim().split(':')) {
            *byte = u8::from_str_radix(text, 16).map_err(|e| format!("{}: {e}", said.out))?;
        }
        Ok(mac)
    }
}

impl Drop for TwoTenants {
    fn drop(&mut self) {
        for tenant in ["red", "blue"] {
            for endpoint in ["web1", "app1", "app2"] {
                drop(self.at(tenant, endpoint));
            }
        }
    }
}
