//! A traced frame's way: from process to process, each of which handles it as any other
//! and says what became of it. What one process lets out the next is given; the fabric
//! says to whom.
//!
//! What a process says is an allegation. A switch that lies can say what it could as well
//! send, and no other process acts on more than that.

mod telling;

use crate::names::Names;
use crate::pages::word;
use crate::refuse::refused;
use crate::supervisor::Supervisor;
use crate::world::World;
use api::{Fault, Passage, Whose};
use command::verbs::{FABRIC, TRACE_DELIVER, TRACE_END, Trace};
use guard::guard;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use telemetry::drops::DropReason;
use telemetry::trace::{BYTES, MAGIC, MAGIC_AT, Record, Step};
use telling::{described, sentence, slug};

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
    /// Whose token asks; `None` = the host's own user.
    tenant: Option<&'a str>,
    touched: BTreeSet<u32>,
}

impl<'a> Walk<'a> {
    /// Over what is applied. `deliver`: what comes out goes to the workload or by the uplink.
    /// `tenant`: it is told what that one may know.
    pub fn new(
        supervisor: &'a Supervisor,
        world: &'a World,
        deliver: bool,
        tenant: Option<&'a str>,
    ) -> Walk<'a> {
        Walk {
            supervisor,
            world,
            names: match tenant {
                Some(tenant) => Names::of_tenant(world, tenant),
                None => Names::of(world),
            },
            deliver,
            tenant,
            touched: BTreeSet::new(),
        }
    }

    /// Sends a frame; its way, and where it came out with which bytes. A tenant is told what
    /// its own switch did, that the packet crossed by which agreement, and there only whether
    /// it came out: what comes out of another's switch is that one's.
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
        let mut beyond = false;
        for _ in 0..HOPS {
            let record = match self.ask(place, &frame).await {
                Ok(record) => record,
                Err(fault) => return Err(told_fault(self.tenant, fault)),
            };
            let steps = record.steps();
            match self.tenant {
                Some(_) if beyond => {}
                Some(tenant) => way.steps.extend(
                    steps
                        .iter()
                        .filter_map(|s| self.told_tenant(tenant, place, s)),
                ),
                None => way
                    .steps
                    .extend(steps.iter().map(|step| self.told(place, step))),
            }
            let left = record.left().map(|(slot, tag, f)| (slot, tag, f.to_vec()));
            match next(place, steps, left) {
                Next::Goes(to, bytes) => {
                    beyond |= self.tenant.is_some() && is_anothers(start, place, to);
                    (place, frame) = (to, bytes);
                }
                Next::Out(_, _) if beyond => {
                    way.to = "the other tenant of the agreement".into();
                    way.outcome = if self.deliver { "delivered" } else { "held" }.into();
                    return Ok((way, None));
                }
                Next::Dropped(_) if beyond => {
                    way.outcome = "dropped".into();
                    way.explain =
                        "by the other tenant of the agreement, whose matter it is why".into();
                    return Ok((way, None));
                }
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
                    let is_closed = reason == DropReason::PortClosed as u8;
                    if is_closed && self.is_for_circuits(place, steps) {
                        "who is to get it has circuits alone, which no packet reaches"
                            .clone_into(&mut way.explain);
                        if let Some(last) = way.steps.last_mut() {
                            last.says = format!("{}: {}", way.reason, way.explain);
                        }
                    }
                    return Ok((way, None));
                }
            }
        }
        // No switch sends on what came from the fabric: one of them lies.
        way.outcome = "dropped".into();
        way.explain = "it goes on and on".into();
        Ok((way, None))
    }

    /// Whether a switch would have sent it to an endpoint of circuits alone.
    fn is_for_circuits(&self, place: At, steps: &[Step]) -> bool {
        let At::Switch { compartment, .. } = place else {
            return false;
        };
        let port = |step: &Step| match step {
            Step::Bridged { slot } | Step::Routed { slot, .. } => {
                let intent = self.world.made()?.2;
                intent.compartments.get(&compartment)?.ports.get(slot)
            }
            _ => None,
        };
        let port = steps.iter().rev().find_map(port);
        port.is_some_and(policy::PortIntent::has_circuits_alone)
    }

    /// Whether a tenant asks.
    pub fn is_tenants(&self) -> bool {
        self.tenant.is_some()
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
}

/// Whether a packet comes to another tenant's switch: inside a tenant nothing crosses the
/// fabric to a switch. What began outside comes to the tenant's own.
fn is_anothers(start: At, place: At, to: At) -> bool {
    let inside = matches!(start, At::Switch { .. });
    let arrives = matches!((place, to), (At::Fabric { .. }, At::Switch { .. }));
    inside && arrives && guard!("tenant-trace-beyond")
}

/// A fault as it may be told: a tenant is not told which process was at fault.
fn told_fault(tenant: Option<&str>, fault: Fault) -> Fault {
    match tenant {
        Some(_) if guard!("tenant-trace-fault") => Fault::new(
            "supervisor",
            Whose::Bulkhead,
            "the packet's way could not be followed to its end",
            "try again; if it stays so, ask the provider of this host",
        ),
        _ => fault,
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use telemetry::trace::{Answered, WORDS};

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
    fn beyond_an_agreement_is_anothers_and_whose_fault_it_is_no_tenants_matter() {
        let fabric = At::Fabric { slot: 3, tag: 7 };
        let there = At::Switch {
            compartment: 4,
            slot: 0,
            tag: 7,
        };
        assert!(is_anothers(RED, fabric, there));
        // Also where both are in one compartment.
        let same = At::Switch {
            compartment: 3,
            slot: 0,
            tag: 7,
        };
        assert!(is_anothers(RED, fabric, same));
        assert!(!is_anothers(RED, RED, fabric));
        let uplink = At::Fabric { slot: 9, tag: 0 };
        assert!(!is_anothers(uplink, uplink, same));
        let fault = Fault::new("supervisor", Whose::Host, "the switch of zone:secret", "");
        assert!(
            !told_fault(Some("red"), fault.clone())
                .message
                .contains("secret")
        );
        assert_eq!(told_fault(None, fault.clone()), fault);
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
