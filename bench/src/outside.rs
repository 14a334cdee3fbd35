//! An uplink with somebody at its far side: a veth pair between two namespaces.

use crate::flow::{Attached, Flow, PORT, attach, packet, station};
use e2e::{Instance, Namespace};
use shm::Doorbell;
use std::net::UdpSocket;
use std::time::{Duration, Instant};
use wire::offload::RawOffload;

/// The two namespaces: the host's side of the uplink, and the far side.
pub struct Outside {
    near: Namespace,
    far: Namespace,
}

impl Outside {
    /// Makes them.
    pub fn make() -> Result<Outside, String> {
        let outside = Outside {
            near: Namespace::make()?,
            far: Namespace::make()?,
        };
        outside.near.ip(&format!(
            "link add wan0 type veth peer name eth0 netns {}",
            outside.far.name
        ))?;
        outside.near.ip("link set wan0 up")?;
        outside.far.ip("addr add 192.0.2.1/24 dev eth0")?;
        outside.far.ip("link set eth0 up")?;
        outside.far.ip("route add 10.1.1.0/24 via 192.0.2.10")?;
        Ok(outside)
    }

    /// One tenant, routed outside.
    pub fn spec(&self) -> String {
        format!(
            "version: 1
uplinks:
  - {{ name: wan, interface: wan0, namespace: {} }}
tenants:
  - name: red
    subnets:
      - {{ name: lan, prefixes: [10.1.1.0/24] }}
    endpoints:
      - {{ name: a, subnet: lan, addresses: [10.1.1.10], attach: fifo }}
    outside:
      - {{ uplink: wan, address: [192.0.2.10/24], gateway: [192.0.2.1] }}
",
            self.near.name
        )
    }

    /// Numbered packets from the tenant's endpoint to the far side.
    pub fn flow(&self, instance: &Instance, rate: u64, limit: Duration) -> Result<Flow, String> {
        let socket = self.ear()?;
        let (source, packet) = self.source(instance)?;
        Flow::to_socket(source, packet, rate, limit, socket)
    }

    /// A socket at the far side, to which the packets go.
    pub fn ear(&self) -> Result<UdpSocket, String> {
        let home = e2e::enter(&self.far.name)?;
        let socket = UdpSocket::bind(("192.0.2.1", PORT)).map_err(|e| e.to_string());
        e2e::leave_to(&home)?;
        socket
    }

    /// The tenant's endpoint, and its packet to the far side.
    pub fn source(&self, instance: &Instance) -> Result<(Attached, Vec<u8>), String> {
        let from = station(instance, "red", "a")?;
        let mut source = attach(&instance.run_dir(), "red", "a")?;
        let gateway = gateway_mac(&mut source, from)?;
        Ok((source, packet(from, (gateway, [192, 0, 2, 1]))))
    }

    /// What found no room in a socket of [`Outside::ear`] that is not read, and the frames
    /// that came to the far side in all.
    pub fn came(&self) -> Result<(u64, u64), String> {
        let home = e2e::enter(&self.far.name)?;
        let read = |path: &str| std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
        let texts = (
            read("/proc/thread-self/net/udp"),
            read("/proc/thread-self/net/dev"),
        );
        e2e::leave_to(&home)?;
        let (sockets, devices) = (texts.0?, texts.1?);
        let port = format!(":{PORT:04X} ");
        let own = sockets
            .lines()
            .find(|line| line.contains(&port))
            .and_then(|line| line.split_whitespace().last()?.parse().ok())
            .ok_or("no socket at the far side")?;
        // Bytes, then packets.
        let all = devices
            .lines()
            .find_map(|line| line.trim().strip_prefix("eth0:"))
            .and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
            .ok_or("no interface at the far side")?;
        Ok((own, all))
    }
}

/// Asks for the gateway by ARP, as any station would.
fn gateway_mac(at: &mut Attached, own: ([u8; 6], [u8; 4])) -> Result<[u8; 6], String> {
    let request = e2e::frames::arp(1, own, ([0; 6], [10, 1, 1, 1]));
    let frame = e2e::frames::ethernet([0xff; 6], own.0, 0x0806, &request);
    let deadline = Instant::now() + Duration::from_secs(2);
    let mut buffer = [0; 128];
    while Instant::now() < deadline {
        let _ = at
            .channel
            .tx
            .ring
            .push(0, &RawOffload::default(), &frame, &[]);
        if at.channel.tx.ring.publish() == Doorbell::Ring {
            let _ = at.channel.tx.bell.ring();
        }
        std::thread::sleep(Duration::from_millis(20));
        while let Some(record) = at.channel.rx.ring.next().map_err(|b| format!("{b:?}"))? {
            let len = record.copy(0, &mut buffer);
            let reply = buffer.get(12..22) == Some(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2][..]);
            if let (true, true, Some(mac)) = (reply, len >= 42, buffer[22..].first_chunk::<6>()) {
                return Ok(*mac);
            }
        }
        at.channel.rx.ring.release();
    }
    Err("the gateway does not answer ARP".into())
}
