//! A traced frame's way: from process to process, each of which handles it as any other
//! and says what became of it. What one process lets out the next is given; the fabric
//! says to whom.
//!
//! What a process says is an allegation. A switch that lies can say what it could as well
//! send, and no other process acts on more than that.

use crate::flows::{at, protocol};
use crate::names::Names;
use crate::pages::word;
use crate::refuse::refused;
use crate::supervisor::Supervisor;
use crate::world::World;
use api::{Fault, Passage, RuleName, Step as Told, Where, Whose};
use command::verbs::{FABRIC, TRACE_DELIVER, TRACE_END, Trace};
use policy::Side;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use telemetry::drops::DropReason;
use telemetry::trace::{Answered, BYTES, MAGIC, MAGIC_AT, Record, Step, Tuple};

/// A process that is alive takes less, also while it is busy.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two looks at a page that is being written.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Processes that one packet may pass: a packet crosses at most once.
const HOPS: usize = 5;
/// How often a frame is sent again whose next hop's MAC is being asked for, and after how
/// long.
const ASKED: (usize, Duration) = (4, Duration::from_millis(150));
/// A switch's slot toward the fabric.
const CHANNEL: u32 = 0;

/// Where a frame is put in, or came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// At a port of a switch, by a tag if that is the fabric's.
    Switch {
        /// Compartment id.
        compartment: u32,
        /// The slot.
        slot: u32,
        /// Fabric tag, else 0.
        tag: u16,
    },
    /// At a port of the fabric.
    Fabric {
        /// The slot there.
        slot: u32,
        /// Fabric tag; 0 = an uplink's.
        tag: u16,
    },
}

/// Traces frames, and remembers which switches have to forget it.
pub struct Walk<'a> {
    supervisor: &'a Supervisor,
    world: &'a World,
    names: Names,
    deliver: bool,
    touched: BTreeSet<u32>,
}

impl<'a> Walk<'a> {
    /// Over what is applied. `deliver`: what comes out goes to the workload or by the uplink.
    pub fn new(supervisor: &'a Supervisor, world: &'a World, deliver: bool) -> Walk<'a> {
        Walk {
            supervisor,
            world,
            names: Names::of(world),
            deliver,
            touched: BTreeSet::new(),
        }
    }

    /// Sends a frame; its way, and where it came out with which bytes.
    ///
    /// # Errors
    /// A process is not there, or says nothing.
    pub async fn send(
        &mut self,
        start: At,
        frame: Vec<u8>,
    ) -> Result<(Passage, Option<(At, Vec<u8>)>), Fault> {
        let mut way = Passage {
            from: self.place(start),
            packet: described(&frame),
            bytes: frame.len() as u64,
            ..Passage::default()
        };
        let (mut place, mut frame) = (start, frame);
        for _ in 0..HOPS {
            let record = self.ask(place, &frame).await?;
            let steps = record.steps();
            way.steps
                .extend(steps.iter().map(|step| self.told(place, step)));
            let left = record.left().map(|(slot, tag, f)| (slot, tag, f.to_vec()));
            match next(place, steps, left) {
                Next::Goes(to, bytes) => (place, frame) = (to, bytes),
                Next::Out(to, bytes) => {
                    way.to = self.place(to);
                    way.outcome = if self.deliver { "delivered" } else { "held" }.into();
                    return Ok((way, Some((to, bytes))));
                }
                Next::Over(outcome) => {
                    way.outcome = outcome.into();
                    return Ok((way, None));
                }
                Next::Dropped(reason) => {
                    way.outcome = "dropped".into();
                    way.reason = slug(reason);
                    way.explain = sentence(reason);
                    return Ok((way, None));
                }
            }
        }
        // No switch sends on what came from the fabric: one of them lies.
        way.outcome = "dropped".into();
        way.explain = "it goes on and on".into();
        Ok((way, None))
    }

    /// Has all forget what the trace left behind.
    pub async fn end(&mut self) {
        for target in std::mem::take(&mut self.touched) {
            let body = Trace {
                target,
                flags: TRACE_END,
                ..Trace::default()
            };
            // One that does not answer forgets it by itself, or is dead.
            let _ = self.supervisor.ask(&body, &[]).await;
        }
    }

    /// What one process does with a frame.
    async fn ask(&mut self, place: At, frame: &[u8]) -> Result<Record, Fault> {
        let mut record = self.ask_once(place, frame).await?;
        for _ in 0..ASKED.0 {
            let waits = DropReason::Resolving as u8;
            if !record.steps().contains(&Step::Dropped { reason: waits }) {
                break;
            }
            tokio::time::sleep(ASKED.1).await;
            record = self.ask_once(place, frame).await?;
        }
        Ok(record)
    }

    async fn ask_once(&mut self, place: At, frame: &[u8]) -> Result<Record, Fault> {
        let (target, slot, tag) = match place {
            At::Switch {
                compartment,
                slot,
                tag,
            } => (compartment, slot, tag),
            At::Fabric { slot, tag } => (FABRIC, slot, tag),
        };
        let body = Trace {
            target,
            slot,
            tag: tag.into(),
            flags: if self.deliver { TRACE_DELIVER } else { 0 },
        };
        if target != FABRIC {
            self.touched.insert(target);
        }
        let frame = shm::SealedImage::create("trace", frame).map_err(|error| {
            Fault::new(
                "host",
                Whose::Host,
                format!("memory for a frame: {error}"),
                "",
            )
        })?;
        let (_, fds) = self
            .supervisor
            .ask(&body, &[frame])
            .await
            .map_err(|refusal| refused(&refusal, "tracing a packet"))?;
        let page = fds.into_iter().next().map(File::from).ok_or_else(|| {
            let what = "the supervisor answered without a page";
            Fault::new("bulkhead", Whose::Bulkhead, what, "")
        })?;
        let end = tokio::time::Instant::now() + PATIENCE;
        // Bound: the patience.
        loop {
            if let Some(record) = read(&page) {
                return Ok(record);
            }
            if tokio::time::Instant::now() >= end {
                return Err(Fault::new(
                    "supervisor",
                    Whose::Bulkhead,
                    format!("{} did not say what became of it", self.who(place)),
                    "`bulkhead status` shows how it is",
                ));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn compartment(&self, id: u32) -> String {
        self.world
            .compartment(id)
            .map_or_else(|| format!("compartment {id}"), |found| found.name.clone())
    }

    fn who(&self, place: At) -> String {
        match place {
            At::Switch { compartment, .. } => {
                format!("the switch of {}", self.compartment(compartment))
            }
            At::Fabric { .. } => "the fabric".into(),
        }
    }

    fn uplink(&self, slot: u32) -> Option<String> {
        let found = self.world.uplinks().iter().find(|up| up.slot == slot)?;
        Some(format!("uplink {}", found.name))
    }

    fn place(&self, place: At) -> String {
        match place {
            At::Switch {
                compartment, slot, ..
            } => self.port(compartment, slot),
            At::Fabric { slot, .. } => self
                .uplink(slot)
                .unwrap_or_else(|| format!("{}'s channel", self.compartment(slot))),
        }
    }

    fn port(&self, compartment: u32, slot: u32) -> String {
        self.world
            .name_at(compartment, slot)
            .unwrap_or_else(|| match slot {
                CHANNEL => "the fabric".into(),
                slot => format!("slot {slot}"),
            })
    }

    /// A step in words, with what in the spec decided it.
    fn told(&self, place: At, step: &Step) -> Told {
        let plain = |kind: &str, says: String| Told {
            step: kind.into(),
            says,
            ..Told::default()
        };
        let told = match (place, step) {
            (At::Switch { compartment, .. }, step) => self.told_by_switch(compartment, step),
            (_, Step::Entry { slot, tag, uplink }) => {
                let to = match uplink {
                    true => self.uplink(*slot).unwrap_or_else(|| format!("slot {slot}")),
                    false => format!("the switch of {}", self.compartment(*slot)),
                };
                let by = match tag {
                    0 => String::new(),
                    tag => format!(" by tag {tag}"),
                };
                plain("entry", format!("leads to {to}{by}"))
            }
            (_, Step::Group { members }) => plain("entry", format!("a group of {members}")),
            (
                _,
                Step::Sent {
                    slot, bytes, real, ..
                },
            ) => {
                let to = self.place(At::Fabric {
                    slot: *slot,
                    tag: 0,
                });
                plain("send", format!("to {to}, {bytes} bytes{}", held(*real)))
            }
            (_, step) => self.told_by_switch(u32::MAX, step),
        };
        Told {
            at: match place {
                At::Switch { compartment, .. } => self.compartment(compartment),
                At::Fabric { .. } => "fabric".into(),
            },
            ..told
        }
    }

    fn told_by_switch(&self, compartment: u32, step: &Step) -> Told {
        let plain = |kind: &str, says: String| Told {
            step: kind.into(),
            says,
            ..Told::default()
        };
        let port = |slot: u32| self.port(compartment, slot);
        match *step {
            Step::Parsed => plain("parse", "well-formed".into()),
            Step::Guarded => plain("guard", "its sender may say this".into()),
            Step::Metered => plain("rate", "within its sender's rate".into()),
            Step::Bridged { slot } => plain("route", format!("to {}, on its subnet", port(slot))),
            Step::Flooded => plain("route", "to all of the subnet".into()),
            Step::Routed { slot, tag } => match slot {
                CHANNEL => plain(
                    "route",
                    format!("by the gateway to {}", self.names.tag(tag)),
                ),
                slot => plain("route", format!("by the gateway to {}", port(slot))),
            },
            Step::Resolving { address } => {
                let hop = at(address, 0, 0);
                plain(
                    "route",
                    format!("to next hop {hop}, whose MAC is asked for"),
                )
            }
            Step::Answered(what) => plain("answer", format!("by the switch: {}", answered(what))),
            Step::Absorbed => plain("answer", "it is for the switch, which stays silent".into()),
            Step::Connection {
                state,
                back,
                own,
                rules,
            } => self.connection(state, back, own, rules),
            Step::Rule {
                egress,
                slot,
                rule,
                action,
                tuple,
            } => self.rule(compartment, egress, slot, rule, action, &tuple),
            Step::NoRules => plain("rule", "nobody has rules about it".into()),
            Step::Begins { tracked: true } => plain("connection", "begins".into()),
            Step::Begins { tracked: false } => plain(
                "connection",
                "finds no place: it is served packet by packet".into(),
            ),
            Step::Leaves(tuple) => plain("translation", format!("leaves as {}", named(&tuple))),
            Step::Sent {
                slot: CHANNEL,
                tag,
                bytes,
                cut,
                ..
            } => {
                let cut = if cut { ", in pieces" } else { "" };
                plain(
                    "send",
                    format!("to the fabric by tag {tag}, {bytes} bytes{cut}"),
                )
            }
            Step::Sent {
                slot,
                bytes,
                cut,
                real,
                ..
            } => {
                let cut = if cut { ", in pieces" } else { "" };
                plain(
                    "send",
                    format!("to {}, {bytes} bytes{cut}{}", port(slot), held(real)),
                )
            }
            Step::Replied { slot, bytes, real } => plain(
                "answer",
                format!(
                    "the switch's own to {}, {bytes} bytes{}",
                    port(slot),
                    held(real)
                ),
            ),
            Step::Dropped { reason } => {
                plain("drop", format!("{}: {}", slug(reason), sentence(reason)))
            }
            Step::Unknown | Step::Entry { .. } | Step::Group { .. } => {
                plain("unknown", "a step that this release does not know".into())
            }
        }
    }

    fn connection(&self, state: u8, back: bool, own: bool, rules: [u32; 2]) -> Told {
        let state = flow::State::of(state).map_or("unknown", flow::State::slug);
        let begun = if own {
            "that this trace began"
        } else {
            "that there is"
        };
        let verb = if back {
            "answers one"
        } else {
            "belongs to one"
        };
        let [sent, got] = rules.map(|rule| self.names.rule(rule));
        let by = |rule: &RuleName| match rule.name.as_str() {
            "" => rule.kind.clone(),
            name => format!("{} {name}", rule.kind),
        };
        let mut says = format!("{verb} {begun} ({state}), by {}", by(&sent));
        if sent != got {
            says += &format!(" and {}", by(&got));
        }
        Told {
            step: "connection".into(),
            says,
            ..Told::default()
        }
    }

    fn rule(
        &self,
        compartment: u32,
        egress: bool,
        slot: u32,
        rule: u32,
        action: u8,
        tuple: &Tuple,
    ) -> Told {
        let endpoint = self.port(compartment, slot);
        let tenant = endpoint.split('/').next().unwrap_or_default();
        let (side, word, peer) = match egress {
            true => (Side::Egress, "from", tuple.destination),
            false => (Side::Ingress, "to", tuple.source),
        };
        let says = match action {
            1 => "allow",
            2 => "allow stateless",
            _ => "deny",
        };
        let decided = self.world.made().map(|(spec, ids, intent)| {
            policy::decided((spec, ids, intent), tenant, rule, side, peer)
        });
        let (by, name, place) = match decided {
            Some(found) => (found.by.to_owned(), found.name, found.place),
            None => (String::new(), String::new(), None),
        };
        Told {
            step: "rule".into(),
            says: format!("{word} {endpoint}: {says}"),
            by,
            name,
            place: place.map(|(file, line, column)| Where { file, line, column }),
            ..Told::default()
        }
    }
}

/// What follows from one process's word.
#[derive(Debug, PartialEq)]
enum Next {
    /// It goes on there.
    Goes(At, Vec<u8>),
    /// It came out there.
    Out(At, Vec<u8>),
    /// It ended, and not by a drop.
    Over(&'static str),
    /// It was dropped.
    Dropped(u8),
}

fn next(place: At, steps: &[Step], left: Option<(u32, u16, Vec<u8>)>) -> Next {
    let is = |what: fn(&Step) -> bool| steps.iter().any(what);
    let dropped = steps.iter().find_map(|step| match step {
        Step::Dropped { reason } => Some(*reason),
        _ => None,
    });
    if let Some(reason) = dropped {
        return Next::Dropped(reason);
    }
    if is(|step| matches!(step, Step::Flooded | Step::Group { .. })) {
        return Next::Over("flooded");
    }
    if is(|step| matches!(step, Step::Answered(_))) {
        return Next::Over("answered");
    }
    match (place, left) {
        (At::Fabric { .. }, Some((slot, tag, frame))) => {
            if is(|step| matches!(step, Step::Entry { uplink: true, .. })) {
                return Next::Out(At::Fabric { slot, tag: 0 }, frame);
            }
            let to = At::Switch {
                compartment: slot,
                slot: CHANNEL,
                tag,
            };
            Next::Goes(to, frame)
        }
        (At::Switch { compartment, .. }, Some((CHANNEL, tag, frame))) => {
            let slot = compartment;
            Next::Goes(At::Fabric { slot, tag }, frame)
        }
        (At::Switch { compartment, .. }, Some((slot, _, frame))) => {
            let at = At::Switch {
                compartment,
                slot,
                tag: 0,
            };
            Next::Out(at, frame)
        }
        (_, None) if is(|step| matches!(step, Step::Replied { .. })) => Next::Over("answered"),
        (_, None) => Next::Over("absorbed"),
    }
}

/// Reads a page; `None`: it is not written yet.
fn read(page: &File) -> Option<Record> {
    let mut head = [0; 8];
    page.read_exact_at(&mut head, (MAGIC_AT * 8) as u64).ok()?;
    if word(&head) != MAGIC {
        return None;
    }
    let mut bytes = vec![0; BYTES];
    page.read_exact_at(&mut bytes, 0).ok()?;
    let words: Vec<u64> = bytes.chunks_exact(8).map(word).collect();
    Record::read(&words)
}

fn held(real: bool) -> &'static str {
    if real { "" } else { ", held back" }
}

fn slug(reason: u8) -> String {
    DropReason::from_number(reason).map_or_else(
        || format!("reason {reason}"),
        |known| known.slug().to_owned(),
    )
}

fn sentence(reason: u8) -> String {
    DropReason::from_number(reason)
        .map_or_else(String::new, |known| known.explain().trim().to_owned())
}

fn answered(what: u8) -> &'static str {
    match what {
        n if n == Answered::Arp as u8 => "who has that IPv4 address",
        n if n == Answered::Neighbour as u8 => "who has that IPv6 address",
        n if n == Answered::Router as u8 => "the gateway advertises itself",
        n if n == Answered::Dhcp as u8 => "DHCP",
        n if n == Answered::Echo as u8 => "a ping of the gateway",
        _ => "in a way that this release does not know",
    }
}

/// `tcp 10.1.1.10:1000 to 10.1.2.10:443`.
fn named(tuple: &Tuple) -> String {
    let name = protocol(tuple.protocol);
    match tuple.protocol {
        1 | 58 => {
            let [kind, code] = tuple.destination_port.to_be_bytes();
            let (from, to) = (at(tuple.source, 0, 0), at(tuple.destination, 0, 0));
            format!("{name} {kind}/{code} {from} to {to}")
        }
        number => {
            let from = at(tuple.source, tuple.source_port, number);
            let to = at(tuple.destination, tuple.destination_port, number);
            format!("{name} {from} to {to}")
        }
    }
}

/// A frame in a few words.
fn described(frame: &[u8]) -> String {
    let head = frame.get(..frame.len().min(wire::parse::HEAD));
    let Some(Ok(parsed)) = head.map(|head| wire::parse(head, frame.len())) else {
        return "a frame that does not parse".into();
    };
    let Some(ip) = parsed.ip() else {
        return match parsed.network {
            wire::parse::Network::Arp(_) => "arp".into(),
            _ => format!("ethertype {:#06x}", parsed.ethertype),
        };
    };
    let tuple = wire::Tuple::of_rules(ip).unwrap_or(wire::Tuple {
        source: ip.source,
        destination: ip.destination,
        protocol: ip.protocol,
        ..wire::Tuple::default()
    });
    let mut text = named(&Tuple {
        source: tuple.source,
        destination: tuple.destination,
        source_port: tuple.source_port,
        destination_port: tuple.destination_port,
        protocol: tuple.protocol,
    });
    if let wire::parse::Transport::Tcp { flags, .. } = ip.transport {
        let names = [
            (wire::tcp::SYN, " syn"),
            (wire::tcp::FIN, " fin"),
            (wire::tcp::RST, " rst"),
            (wire::tcp::ACK, " ack"),
        ];
        text.extend(
            names
                .iter()
                .filter(|(bit, _)| flags & bit != 0)
                .map(|n| n.1),
        );
    }
    if ip.fragment != wire::parse::Fragment::Whole {
        text += ", a fragment";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use telemetry::trace::WORDS;

    const RED: At = At::Switch {
        compartment: 3,
        slot: 5,
        tag: 0,
    };

    #[test]
    fn a_frame_goes_where_processes_say_and_ends_where_one_drops_it() {
        let frame = vec![1, 2, 3];
        let sent = |slot| Some((slot, 7, frame.clone()));
        assert_eq!(
            next(RED, &[], sent(0)),
            Next::Goes(At::Fabric { slot: 3, tag: 7 }, frame.clone())
        );
        let out = At::Switch {
            compartment: 3,
            slot: 6,
            tag: 0,
        };
        assert_eq!(next(RED, &[], sent(6)), Next::Out(out, frame.clone()));
        // The fabric's word says whose switch it comes to, and by which tag.
        let fabric = At::Fabric { slot: 3, tag: 7 };
        let entry = |uplink| Step::Entry {
            slot: 4,
            tag: 7,
            uplink,
        };
        let there = At::Switch {
            compartment: 4,
            slot: 0,
            tag: 7,
        };
        assert_eq!(
            next(fabric, &[entry(false)], sent(4)),
            Next::Goes(there, frame.clone())
        );
        let uplink = At::Fabric { slot: 4, tag: 0 };
        assert_eq!(
            next(fabric, &[entry(true)], sent(4)),
            Next::Out(uplink, frame.clone())
        );
        // A drop counts, whatever else is said.
        let drop = Step::Dropped { reason: 39 };
        assert_eq!(next(RED, &[drop], sent(6)), Next::Dropped(39));
        assert_eq!(next(RED, &[Step::Flooded], sent(6)), Next::Over("flooded"));
        let echo = Step::Answered(Answered::Echo as u8);
        assert_eq!(next(RED, &[echo], sent(5)), Next::Over("answered"));
        assert_eq!(next(RED, &[Step::Absorbed], None), Next::Over("absorbed"));
    }

    #[test]
    fn a_page_is_read_once_it_is_whole() {
        let mut record = Record::default();
        record.push(Step::Parsed);
        record.leaves(2, 9, 3, |into| into.copy_from_slice(b"abc"));
        let mut words = vec![0u64; WORDS];
        record.write(|at, value| words[at] = value);
        let page = |words: &[u64]| {
            let mut file = tempfile::tempfile().unwrap();
            for word in words {
                file.write_all(&word.to_le_bytes()).unwrap();
            }
            file
        };
        assert!(read(&page(&words)).is_none());
        words[MAGIC_AT] = MAGIC;
        assert_eq!(read(&page(&words)), Some(record));
        assert!(read(&page(&words[..20])).is_none());
    }

    #[test]
    fn packets_are_described_as_people_write_them() {
        let (a, b) = (wire::MacAddress([2; 6]), wire::MacAddress([4; 6]));
        let tuple = wire::Tuple {
            source: wire::address::mapped([10, 1, 1, 10]),
            destination: wire::address::mapped([10, 1, 2, 10]),
            source_port: 1000,
            destination_port: 443,
            protocol: 6,
        };
        let built = |probe: wire::Probe| {
            let mut buffer = vec![0; 200];
            let length = probe.emit(&mut buffer).unwrap();
            buffer.truncate(length);
            buffer
        };
        let frame = built(wire::Probe::first(a, b, tuple, 1));
        assert_eq!(described(&frame), "tcp 10.1.1.10:1000 to 10.1.2.10:443 syn");
        let answer = built(wire::Probe::answer(&frame).unwrap());
        assert_eq!(
            described(&answer),
            "tcp 10.1.2.10:443 to 10.1.1.10:1000 syn ack"
        );
        let ping = wire::Tuple {
            source_port: 0,
            destination_port: 0x0800,
            protocol: 1,
            ..tuple
        };
        let frame = built(wire::Probe::first(a, b, ping, 1));
        assert_eq!(described(&frame), "icmp 8/0 10.1.1.10 to 10.1.2.10");
        assert_eq!(described(&[0; 5]), "a frame that does not parse");
    }
}
