//! `trace --live`: a capture told as text, one line a frame, with rules by their names.

use super::filter::{ENHANCED_PACKET, cut, word};
use crate::client::{Client, encoded};
use crate::exit::{Exit, Trouble};
use api::{Names, RuleName, Status};
use http_body_util::BodyExt;
use serde::Serialize;
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use tokio::sync::mpsc;
use wire::Tuple;
use wire::parse::Network;

/// Bytes of each frame that are looked at: what the switch itself looks at.
const SNAP: usize = wire::parse::HEAD;
/// Lines that may wait to be written.
const WAITING: usize = 1024;

/// A frame that was seen.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// Nanoseconds since 1970.
    time_ns: u64,
    /// `TENANT/ENDPOINT`; `fabric` = the other compartments and uplinks.
    endpoint: String,
    /// `from` it, or `to` it.
    direction: &'static str,
    /// The packet.
    packet: String,
    /// Bytes of the frame.
    bytes: u32,
    /// `passed` or `dropped`.
    verdict: &'static str,
    /// Drop reason by name.
    reason: String,
    /// The rule that denied it.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<RuleName>,
}

/// Follows until interrupted, or until the daemon ends it. Without an endpoint all
/// compartments.
pub async fn follow(
    endpoint: Option<&str>,
    drops: bool,
    client: &Client,
    json: bool,
) -> Result<Exit, Trouble> {
    let names: Names = client.get("/v1/names").await?;
    let wanted: Vec<String> = match endpoint {
        Some(endpoint) => vec![endpoint.to_owned()],
        None => {
            let status: Status = client.get("/v1/status").await?;
            let tenants = status.compartments.iter().filter_map(|c| c.tenants.first());
            tenants.cloned().collect()
        }
    };
    if wanted.is_empty() {
        return Err(Trouble::new(
            Exit::Failed,
            "there is nothing to follow",
            "apply a spec first",
        ));
    }
    let (sender, mut packets) = mpsc::channel(WAITING);
    for endpoint in wanted {
        let path = format!(
            "/v1/capture?drops={drops}&snap={SNAP}&circuits=false&endpoint={}",
            encoded(&endpoint)
        );
        let mut body = client.stream(&path).await?;
        let sender = sender.clone();
        tokio::spawn(async move {
            let mut cut = Packets::default();
            while let Some(Ok(frame)) = body.frame().await {
                let Ok(data) = frame.into_data() else {
                    continue;
                };
                let Some(found) = cut.take(&data) else {
                    return;
                };
                for packet in found {
                    if sender.send(packet).await.is_err() {
                        return;
                    }
                }
            }
        });
    }
    drop(sender);
    let mut names = names;
    loop {
        let packet = tokio::select! {
            packet = packets.recv() => packet,
            _ = tokio::signal::ctrl_c() => return Ok(Exit::Done),
        };
        let Some(packet) = packet else {
            return Err(Trouble::new(
                Exit::Failed,
                "the daemon ended it",
                "a capture ends when its switch dies; `bulkhead status` shows how it is",
            ));
        };
        // Another spec may have been applied since.
        if !known(&packet, &names) {
            names = client.get("/v1/names").await?;
        }
        let seen = Seen::of(&packet, &names);
        let line = match json {
            true => serde_json::to_string(&seen).unwrap_or_default() + "\n",
            false => seen.line(),
        };
        let mut out = std::io::stdout().lock();
        match out.write_all(line.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => {}
            // `| head`: enough seen.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(Exit::Done),
            Err(error) => return Err(error.into()),
        }
    }
}

/// One frame of a capture.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Its interface, as the auditor named it: `endpoint-7`, `fabric`.
    pub interface: String,
    /// It goes to the interface, else it comes from it.
    pub outward: bool,
    /// Its first bytes.
    pub bytes: Vec<u8>,
    /// Bytes of the whole.
    pub length: u32,
    /// Comments: why it was dropped, by which rule.
    pub comments: Vec<String>,
}

impl Packet {
    fn endpoint(&self) -> Option<u32> {
        self.interface.strip_prefix("endpoint-")?.parse().ok()
    }

    /// The rule's number; `u32::MAX` = the default.
    fn rule(&self) -> Option<u32> {
        let mut rules = self.comments.iter();
        let word = rules.find_map(|comment| comment.strip_prefix("rule "))?;
        match word {
            "default" => Some(u32::MAX),
            number => number.parse().ok(),
        }
    }

    /// The drop reason's name.
    fn reason(&self) -> Option<&str> {
        let mut reasons = self.comments.iter();
        let rest = reasons.find_map(|comment| comment.strip_prefix("dropped: "))?;
        Some(rest.split_once(": ").map_or(rest, |(slug, _)| slug))
    }
}

/// Cuts a pcapng stream (little-endian, as ours is) into its frames.
#[derive(Debug, Default)]
struct Packets {
    rest: Vec<u8>,
    interfaces: Vec<String>,
}

const INTERFACE: u32 = 1;
const COMMENT: u16 = 1;
const NAME: u16 = 2;
const FLAGS: u16 = 2;

impl Packets {
    /// The frames that these bytes complete; `None` = the stream is not pcapng.
    fn take(&mut self, bytes: &[u8]) -> Option<Vec<Packet>> {
        let mut found = Vec::new();
        let interfaces = &mut self.interfaces;
        cut(&mut self.rest, bytes, |kind, block| match kind {
            INTERFACE => {
                let mut name = String::new();
                options(block, 16, |code, value| {
                    if code == NAME {
                        name = String::from_utf8_lossy(value).into_owned();
                    }
                });
                interfaces.push(name);
            }
            ENHANCED_PACKET => found.extend(frame_of(block, interfaces)),
            _ => {}
        })?;
        Some(found)
    }
}

fn frame_of(block: &[u8], interfaces: &[String]) -> Option<Packet> {
    let words: Vec<u32> = (8..28).step_by(4).map_while(|at| word(block, at)).collect();
    let [interface, high, low, kept, length] = *words.first_chunk()?;
    let bytes = block.get(28..28 + kept as usize)?.to_vec();
    let mut packet = Packet {
        time_ns: u64::from(high) << 32 | u64::from(low),
        interface: interfaces.get(interface as usize)?.clone(),
        length,
        ..Packet::default()
    };
    options(
        block,
        28 + bytes.len().next_multiple_of(4),
        |code, value| {
            match (code, value.first()) {
                (COMMENT, _) => {
                    let comment = String::from_utf8_lossy(value).into_owned();
                    packet.comments.push(comment);
                }
                // Bits 0 and 1: 2 = outbound.
                (FLAGS, Some(flags)) => packet.outward = flags & 3 == 2,
                _ => {}
            }
        },
    );
    packet.bytes = bytes;
    Some(packet)
}

/// Visits a block's options, which begin at `at`. Bound: the block.
fn options(block: &[u8], mut at: usize, mut visit: impl FnMut(u16, &[u8])) {
    while let Some(head) = word(block, at) {
        let (code, length) = (head as u16, (head >> 16) as usize);
        let value = block.get(at + 4..at + 4 + length);
        let (Some(value), true) = (value, code != 0) else {
            return;
        };
        visit(code, value);
        at += 4 + length.next_multiple_of(4);
    }
}

fn known(packet: &Packet, names: &Names) -> bool {
    let endpoint = packet.endpoint();
    let rule = packet.rule().filter(|rule| *rule != u32::MAX);
    endpoint.is_none_or(|id| names.endpoints.contains_key(&id))
        && rule.is_none_or(|id| names.rules.contains_key(&id))
}

impl Seen {
    fn of(packet: &Packet, names: &Names) -> Seen {
        let named = packet
            .endpoint()
            .and_then(|id| names.endpoints.get(&id))
            .cloned();
        // Of what comes from beyond, the tenant is not told.
        let tenant = named.as_deref().and_then(|name| name.split('/').next());
        let rule = packet.rule().map(|number| match number {
            u32::MAX => tenant
                .and_then(|tenant| names.defaults.get(tenant).cloned())
                .unwrap_or_else(|| RuleName {
                    kind: "default".into(),
                    ..RuleName::default()
                }),
            number => names
                .rules
                .get(&number)
                .cloned()
                .unwrap_or_else(|| RuleName {
                    kind: "rule".into(),
                    name: format!("number {number}"),
                    place: None,
                }),
        });
        let reason = packet.reason().unwrap_or_default().to_owned();
        Seen {
            time_ns: packet.time_ns,
            endpoint: named.unwrap_or_else(|| packet.interface.clone()),
            direction: if packet.outward { "to" } else { "from" },
            packet: described(&packet.bytes, packet.length as usize),
            bytes: packet.length,
            verdict: match reason.as_str() {
                "" => "passed",
                _ => "dropped",
            },
            reason,
            rule,
        }
    }

    fn line(&self) -> String {
        let seconds = self.time_ns / 1_000_000_000;
        let [hour, minute, second] = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60];
        let micros = self.time_ns / 1000 % 1_000_000;
        let mut line = format!(
            "{hour:02}:{minute:02}:{second:02}.{micros:06} {} {} {} {}",
            self.direction, self.endpoint, self.packet, self.bytes
        );
        match self.reason.as_str() {
            "" => line += " passed",
            reason => line += &format!(" DROPPED {reason}"),
        }
        if let Some(rule) = &self.rule {
            line += " by ";
            line += &rule.kind;
            if !rule.name.is_empty() {
                line += &format!(" {}", rule.name);
            }
            if let Some(at) = &rule.place {
                line += &format!(" ({}:{})", at.file, at.line);
            }
        }
        line + "\n"
    }
}

/// A frame in a few words.
fn described(head: &[u8], length: usize) -> String {
    let Ok(parsed) = wire::parse(head, length) else {
        return "?".into();
    };
    match &parsed.network {
        Network::Arp(arp) => {
            let [from, to] = [arp.sender, arp.target].map(IpAddr::from);
            format!("arp {from} > {to}")
        }
        Network::Unknown => format!("ethertype {:#06x}", parsed.ethertype),
        Network::Ip(ip) => match Tuple::of_rules(ip) {
            Some(tuple) => packet(&tuple),
            None => format!("fragment {} > {}", plain(ip.source), plain(ip.destination)),
        },
    }
}

fn packet(tuple: &Tuple) -> String {
    let (from, to) = (plain(tuple.source), plain(tuple.destination));
    let ports = |name: &str| {
        let from = SocketAddr::new(from, tuple.source_port);
        let to = SocketAddr::new(to, tuple.destination_port);
        format!("{name} {from} > {to}")
    };
    let [kind, code] = tuple.destination_port.to_be_bytes();
    match tuple.protocol {
        6 => ports("tcp"),
        17 => ports("udp"),
        1 => format!("icmp {kind}/{code} {from} > {to}"),
        58 => format!("icmp6 {kind}/{code} {from} > {to}"),
        number => format!("protocol {number} {from} > {to}"),
    }
}

fn plain(address: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(address).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Where;

    fn names() -> Names {
        let mut names = Names::default();
        names.endpoints.insert(7, "red/app1".into());
        let rule = RuleName {
            kind: "rule".into(),
            name: "red/no-web".into(),
            place: Some(Where {
                file: "a.yaml".into(),
                line: 12,
                column: 9,
            }),
        };
        names.rules.insert(3, rule);
        names
    }

    fn frame() -> Vec<u8> {
        let tuple = Tuple {
            source: wire::address::mapped([10, 1, 1, 10]),
            destination: wire::address::mapped([10, 1, 2, 10]),
            source_port: 4000,
            destination_port: 443,
            protocol: 6,
        };
        let (a, b) = (wire::MacAddress([2; 6]), wire::MacAddress([4; 6]));
        let mut buffer = vec![0; 100];
        let length = wire::Probe::first(a, b, tuple, 1)
            .emit(&mut buffer)
            .unwrap();
        buffer.truncate(length);
        buffer
    }

    #[test]
    fn a_denied_frame_is_told_with_its_rules_line() {
        let packet = Packet {
            time_ns: 1_700_000_000_123_456_789,
            interface: "endpoint-7".into(),
            bytes: frame(),
            length: 54,
            comments: vec![
                "dropped: egress-rule: The rules say so.".into(),
                "rule 3".into(),
            ],
            ..Packet::default()
        };
        let seen = Seen::of(&packet, &names());
        assert_eq!(
            seen.line(),
            "22:13:20.123456 from red/app1 tcp 10.1.1.10:4000 > 10.1.2.10:443 54 DROPPED egress-rule by rule red/no-web (a.yaml:12)\n"
        );
        assert!(known(&packet, &names()) && !known(&packet, &Names::default()));
        let told = serde_json::to_value(&seen).unwrap();
        assert_eq!(told["rule"]["place"]["line"], 12);
        let default = Packet {
            comments: vec!["dropped: ingress-rule: x".into(), "rule default".into()],
            ..packet
        };
        let mut names = names();
        let line = Seen::of(&default, &names).line();
        assert!(
            line.ends_with("DROPPED ingress-rule by default\n"),
            "{line}"
        );
        let written = RuleName {
            kind: "default".into(),
            name: String::new(),
            place: Some(Where {
                file: "a.yaml".into(),
                line: 9,
                column: 7,
            }),
        };
        names.defaults.insert("red".into(), written);
        let line = Seen::of(&default, &names).line();
        assert!(line.ends_with(" by default (a.yaml:9)\n"), "{line}");
    }

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = (12 + body.len()) as u32;
        let words = [kind, length].map(u32::to_le_bytes).concat();
        [&words, body, &length.to_le_bytes()].concat()
    }

    fn option(code: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = [code, value.len() as u16].map(u16::to_le_bytes).concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn frames_are_cut_out_of_a_capture_wherever_its_bytes_break() {
        let interface = [vec![0; 8], option(NAME, b"endpoint-7"), option(0, b"")].concat();
        let mut body = [0, 1, 2, 54, 60].map(u32::to_le_bytes).concat();
        body.extend(frame());
        body.extend([0; 2]);
        body.extend(option(FLAGS, &[2, 0, 0, 0]));
        body.extend(option(COMMENT, b"dropped: a: b"));
        body.extend(option(COMMENT, b"rule 3"));
        body.extend(option(0, b""));
        let stream = [
            block(0x0a0d_0d0a, &[0; 16]),
            block(1, &interface),
            block(6, &body),
        ]
        .concat();
        for at in 0..stream.len() {
            let mut packets = Packets::default();
            let mut found = packets.take(&stream[..at]).unwrap();
            found.extend(packets.take(&stream[at..]).unwrap());
            let expected = Packet {
                time_ns: 1 << 32 | 2,
                interface: "endpoint-7".into(),
                outward: true,
                bytes: frame(),
                length: 60,
                comments: vec!["dropped: a: b".into(), "rule 3".into()],
            };
            assert_eq!(found, [expected], "cut at {at}");
        }
        assert!(Packets::default().take(&[0xff; 64]).is_none());
    }

    #[test]
    fn what_passes_and_what_is_no_packet_is_told_too() {
        let packet = Packet {
            interface: "fabric".into(),
            outward: true,
            bytes: frame(),
            length: 54,
            ..Packet::default()
        };
        let line = Seen::of(&packet, &names()).line();
        assert!(line.contains(" to fabric tcp ") && line.ends_with(" 54 passed\n"));
        let odd = Packet {
            bytes: vec![1, 2, 3],
            ..packet
        };
        assert_eq!(Seen::of(&odd, &names()).packet, "?");
    }
}
