//! What front ends say, in their order and out of it.

use crate::features::{self, LOG_ALL, PROTOCOL, RING_PACKED, VERSION_1};
use crate::{
    Device, Failed, Fault, HEADER_BYTES, Header, MemoryRegion, QueueSetup, REPLY, Reply, Request,
    Session, VERSION, protocol,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use virtqueue::{Layout, Stand};
use zerocopy::IntoBytes;

/// What the device was told, and whether it was told it in an order that can be.
#[derive(Default)]
struct Told {
    mapped: Option<(u64, Vec<MemoryRegion>)>,
    running: BTreeMap<u32, QueueSetup>,
    kicks: BTreeMap<u32, u32>,
    calls: BTreeMap<u32, Option<u32>>,
    log: Option<(u64, u64)>,
    /// Where a queue is when it is halted.
    stand: u16,
    keepsakes: u32,
    known: Option<u32>,
    refuses: bool,
}

impl Device for Told {
    type Fd = u32;
    fn map(&mut self, features: u64, regions: &[(MemoryRegion, u32)]) -> Result<(), Failed> {
        assert!(self.running.is_empty(), "memory changes under a queue");
        assert!(!regions.is_empty());
        self.mapped = None;
        if self.refuses {
            return Err(Failed);
        }
        self.mapped = Some((features, regions.iter().map(|(r, _)| *r).collect()));
        Ok(())
    }
    fn unmap(&mut self) {
        assert!(self.running.is_empty(), "memory goes under a queue");
        self.mapped = None;
    }
    fn run(&mut self, setup: &QueueSetup, kick: Option<&u32>) -> Result<(), Failed> {
        let (_, regions) = self.mapped.as_ref().expect("a queue without memory");
        for address in [
            setup.layout.descriptors,
            setup.layout.driver,
            setup.layout.device,
        ] {
            assert!(
                regions
                    .iter()
                    .any(|r| address >= r.guest && address - r.guest < r.size)
            );
        }
        assert!(setup.layout.size > 0);
        if self.refuses {
            return Err(Failed);
        }
        assert!(
            self.running.insert(setup.queue, *setup).is_none(),
            "it runs already"
        );
        self.kicks.remove(&setup.queue);
        self.kicks.extend(kick.map(|kick| (setup.queue, *kick)));
        Ok(())
    }
    fn halt(&mut self, queue: u32) -> Stand {
        assert!(self.running.remove(&queue).is_some(), "it does not run");
        Stand {
            available: self.stand,
            used: self.stand,
        }
    }
    fn is_mapped(&self) -> bool {
        self.mapped.is_some()
    }
    fn log(&mut self, size: u64, offset: u64, fd: Option<&u32>) -> Result<(), Failed> {
        assert!(self.mapped.is_some(), "there is nothing to be noted");
        self.log = fd.map(|_| (size, offset));
        Ok(())
    }
    fn keepsake(&mut self, bytes: u64) -> Result<u32, Failed> {
        assert_eq!(bytes, 4096);
        self.keepsakes += 1;
        Ok(1000 + self.keepsakes)
    }
    fn knows(&mut self, keepsake: &u32) {
        self.known = Some(*keepsake);
    }
    fn call(&mut self, queue: u32, fd: Option<u32>) {
        self.calls.insert(queue, fd);
    }
}

struct Front {
    session: Session<u32>,
    told: Told,
}

type Said = Result<Option<Vec<u8>>, Fault>;

fn bytes(reply: Option<Reply<u32>>) -> Option<Vec<u8>> {
    reply.map(|reply| reply.bytes)
}

impl Front {
    fn new(pairs: u32) -> Front {
        Front {
            session: Session::new(pairs, features::OFFERED),
            told: Told::default(),
        }
    }

    fn say(&mut self, request: Request, payload: &[u8], fds: &[u32]) -> Said {
        self.say_with(VERSION, request, payload, fds)
    }

    fn reply(
        &mut self,
        request: Request,
        payload: &[u8],
        fds: &[u32],
    ) -> Result<Option<Reply<u32>>, Fault> {
        let header = Header {
            request: request as u32,
            flags: VERSION,
            size: payload.len() as u32,
        };
        self.session
            .handle(&mut self.told, header, payload, fds.to_vec())
    }

    fn say_with(&mut self, flags: u32, request: Request, payload: &[u8], fds: &[u32]) -> Said {
        let header = Header {
            request: request as u32,
            flags,
            size: payload.len() as u32,
        };
        self.session
            .handle(&mut self.told, header, payload, fds.to_vec())
            .map(bytes)
    }

    fn number(&mut self, request: Request, payload: &[u8]) -> u64 {
        let bytes = self.say(request, payload, &[]).unwrap().unwrap();
        let (head, body) = bytes.split_at(HEADER_BYTES);
        let words = [request as u32, VERSION | REPLY, 8];
        assert_eq!(head, words.as_bytes());
        u64::from_ne_bytes(body.try_into().unwrap())
    }

    fn value(&mut self, request: Request, queue: u32, value: u32) -> Said {
        self.say(request, [queue, value].as_bytes(), &[])
    }

    /// As QEMU does, but for the features.
    fn begin(&mut self, taken: u64) {
        let offered = self.number(Request::GetFeatures, &[]);
        assert_eq!(offered, features::OFFERED);
        assert_eq!(
            self.number(Request::GetProtocolFeatures, &[]),
            protocol::OFFERED
        );
        let acks = protocol::REPLY_ACK | protocol::MQ;
        self.say(Request::SetProtocolFeatures, &acks.to_ne_bytes(), &[])
            .unwrap();
        self.say(Request::SetOwner, &[], &[]).unwrap();
        self.say(Request::SetFeatures, &taken.to_ne_bytes(), &[])
            .unwrap();
    }

    fn memory(&mut self, regions: &[MemoryRegion]) -> Said {
        let mut payload = [regions.len() as u32, 0].as_bytes().to_vec();
        payload.extend_from_slice(regions.as_bytes());
        let fds: Vec<u32> = (100..100 + regions.len() as u32).collect();
        self.say_with(VERSION | 8, Request::SetMemTable, &payload, &fds)
    }

    fn queue(&mut self, n: u32) -> Result<(), Fault> {
        self.value(Request::SetVringNum, n, 256)?;
        self.value(Request::SetVringBase, n, 7)?;
        self.rings(n, 0x7f00_0000)?;
        self.say(
            Request::SetVringKick,
            &u64::from(n).to_ne_bytes(),
            &[10 + n],
        )?;
        self.say(
            Request::SetVringCall,
            &u64::from(n).to_ne_bytes(),
            &[20 + n],
        )?;
        Ok(())
    }

    fn rings(&mut self, n: u32, at: u64) -> Said {
        let mut payload = [n, 0].as_bytes().to_vec();
        payload.extend_from_slice([at, at + 0x2000, at + 0x1000, 0].as_bytes());
        self.say(Request::SetVringAddr, &payload, &[])
    }
}

const LOW: MemoryRegion = MemoryRegion {
    guest: 0,
    size: 0x10_0000,
    user: 0x7f00_0000,
    offset: 0,
};
const HIGH: MemoryRegion = MemoryRegion {
    guest: 1 << 32,
    size: 0x10_0000,
    user: 0x7fff_0000,
    offset: 0x10_0000,
};
const ACKED: [u8; 20] = [5, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn a_front_end_sets_up_moves_its_memory_and_stops() {
    let mut front = Front::new(2);
    front.begin(VERSION_1 | PROTOCOL);
    front.queue(0).unwrap();
    assert!(front.told.running.is_empty(), "no memory yet, nor enabled");
    // QEMU enables before there is memory, other front ends after.
    front.value(Request::SetVringEnable, 0, 1).unwrap();
    assert_eq!(front.memory(&[LOW]).unwrap().unwrap(), ACKED);
    let setup = QueueSetup {
        queue: 0,
        layout: Layout {
            size: 256,
            descriptors: 0,
            driver: 0x1000,
            device: 0x2000,
        },
        stand: Some(Stand {
            available: 7,
            used: 7,
        }),
        said: Stand {
            available: 7,
            used: 7,
        },
    };
    assert_eq!(front.told.running[&0], setup);
    assert_eq!((front.told.kicks[&0], front.told.calls[&0]), (10, Some(20)));
    // Another table: it goes on where it was, at another place.
    front.told.stand = 99;
    let moved = MemoryRegion {
        guest: 0x5000_0000,
        ..LOW
    };
    front.memory(&[HIGH, moved]).unwrap();
    let now = front.told.running[&0];
    assert_eq!(now.layout.driver, 0x5000_1000);
    assert_eq!(now.stand.unwrap().available, 99);
    let (_, regions) = front.told.mapped.clone().unwrap();
    assert_eq!(regions, [HIGH, moved]);
    // It is stopped, and says where it was.
    front.told.stand = 111;
    let base = front.value(Request::GetVringBase, 0, 0).unwrap().unwrap();
    assert_eq!(base[HEADER_BYTES..], *[0u32, 111].as_bytes());
    assert!(front.told.running.is_empty());
    assert_eq!(front.told.calls[&0], None);
    // Disabled and enabled again: as it was.
    front.queue(2).unwrap();
    front.value(Request::SetVringEnable, 2, 1).unwrap();
    front.value(Request::SetVringEnable, 2, 0).unwrap();
    assert!(front.told.running.is_empty());
    front.value(Request::SetVringEnable, 2, 1).unwrap();
    assert_eq!(front.told.running[&2].stand.unwrap().used, 111);
    front.say(Request::ResetDevice, &[], &[]).unwrap();
    assert!(front.told.running.is_empty());
}

#[test]
fn regions_come_and_go_one_by_one() {
    let mut front = Front::new(1);
    front.begin(VERSION_1 | PROTOCOL);
    assert_eq!(front.number(Request::GetMaxMemSlots, &[]), 8);
    let one = |region: &MemoryRegion| {
        let mut payload = vec![0; 8];
        payload.extend_from_slice(region.as_bytes());
        payload
    };
    front.say(Request::AddMemReg, &one(&LOW), &[1]).unwrap();
    front.queue(1).unwrap();
    front.value(Request::SetVringEnable, 1, 1).unwrap();
    front.say(Request::AddMemReg, &one(&HIGH), &[2]).unwrap();
    assert_eq!(front.told.mapped.as_ref().unwrap().1, [LOW, HIGH]);
    assert!(front.told.running.contains_key(&1));
    front.say(Request::RemMemReg, &one(&HIGH), &[]).unwrap();
    assert_eq!(front.told.mapped.as_ref().unwrap().1, [LOW]);
    // QEMU says both once for every pair of queues: nothing stops for it.
    front.told.stand = 9;
    front.say(Request::AddMemReg, &one(&LOW), &[3]).unwrap();
    front.say(Request::RemMemReg, &one(&HIGH), &[]).unwrap();
    assert_eq!(front.told.mapped.as_ref().unwrap().1, [LOW]);
    assert_eq!(front.told.running[&1].stand.unwrap().used, 0);
    let other = MemoryRegion {
        size: LOW.size / 2,
        ..LOW
    };
    let overlaps = front.say(Request::AddMemReg, &one(&other), &[3]);
    assert_eq!(overlaps, Err(Fault::Memory));
}

#[test]
fn a_successor_of_the_device_is_told_all_again_and_knows_itself_where_it_was() {
    let mut front = Front::new(1);
    front.begin(VERSION_1 | PROTOCOL | RING_PACKED);
    front.memory(&[LOW]).unwrap();
    for n in [0, 1] {
        front.queue(n).unwrap();
    }
    front.value(Request::SetVringEnable, 0, 1).unwrap();
    assert_eq!(front.told.running.len(), 1);
    front.told = Told::default();
    front.session.again(&mut front.told).unwrap();
    let setup = front.told.running[&0];
    assert_eq!((setup.stand, front.told.running.len()), (None, 1));
    assert_eq!(front.told.kicks[&0], 10);
    let (features, _) = front.told.mapped.clone().unwrap();
    assert_eq!(features, VERSION_1 | PROTOCOL | RING_PACKED);
    front.told = Told {
        refuses: true,
        ..Told::default()
    };
    assert_eq!(front.session.again(&mut front.told), Err(Failed));
}

#[test]
fn packed_rings_say_both_ends_and_their_turns() {
    let mut front = Front::new(1);
    front.begin(VERSION_1 | PROTOCOL | RING_PACKED);
    front.memory(&[LOW]).unwrap();
    front.queue(0).unwrap();
    let base = |front: &mut Front, n| {
        let bytes = front.value(Request::GetVringBase, n, 0).unwrap().unwrap();
        bytes[HEADER_BYTES + 4..].to_vec()
    };
    assert_eq!(base(&mut front, 1), 0x8000_8000u32.to_ne_bytes());
    front.value(Request::SetVringBase, 0, 0x8003_0004).unwrap();
    front.value(Request::SetVringEnable, 0, 1).unwrap();
    let stand = front.told.running[&0].stand.unwrap();
    assert_eq!((stand.available, stand.used), (4, 0x8003));
    front.value(Request::SetVringBase, 0, 0x8005).unwrap();
    front.value(Request::SetVringEnable, 0, 1).unwrap();
    let stand = front.told.running[&0].stand.unwrap();
    assert_eq!((stand.available, stand.used), (0x8005, 0x8005));
    front.told.stand = 0x8010;
    assert_eq!(base(&mut front, 0), 0x8010_8010u32.to_ne_bytes());
}

#[test]
fn what_the_front_end_said_stays_said_while_its_queues_move_on() {
    let mut front = Front::new(1);
    front.begin(VERSION_1 | PROTOCOL);
    front.memory(&[LOW]).unwrap();
    front.queue(0).unwrap();
    front.value(Request::SetVringEnable, 0, 1).unwrap();
    let at = |front: &Front| {
        let setup = front.told.running[&0];
        (setup.said.used, setup.stand.map(|stand| stand.used))
    };
    assert_eq!(at(&front), (7, Some(7)));
    // Other memory in between: it goes on where it was.
    front.told.stand = 20;
    front.memory(&[LOW, HIGH]).unwrap();
    assert_eq!(at(&front), (7, Some(20)));
    front.value(Request::SetVringBase, 0, 21).unwrap();
    front.value(Request::SetVringEnable, 0, 1).unwrap();
    assert_eq!(at(&front), (21, Some(21)));
}

#[test]
fn one_whose_memory_was_unmapped_for_another_has_it_mapped_when_it_runs() {
    let mut front = Front::new(1);
    front.begin(VERSION_1 | PROTOCOL);
    front.memory(&[LOW]).unwrap();
    front.queue(0).unwrap();
    front.value(Request::SetVringEnable, 0, 1).unwrap();
    assert!(front.session.runs());
    front.value(Request::GetVringBase, 0, 0).unwrap();
    assert!(!front.session.runs());
    // The machine was to move elsewhere, and did not.
    front.told.mapped = None;
    front.queue(0).unwrap();
    let (_, regions) = front.told.mapped.clone().unwrap();
    assert_eq!(regions, [LOW]);
    assert!(front.session.runs());
}

#[test]
fn a_front_end_gets_something_to_keep_and_shows_it_again() {
    let mut front = Front::new(1);
    front.begin(VERSION_1 | PROTOCOL);
    for padding in [0, 4] {
        let mut asked = [0u64, 0].as_bytes().to_vec();
        asked.extend([2u16, 256].as_bytes());
        asked.resize(20 + padding, 0);
        let reply = front.reply(Request::GetInflightFd, &asked, &[]).unwrap();
        let reply = reply.unwrap();
        let mut expected = [4096u64, 0].as_bytes().to_vec();
        expected.extend(&asked[16..]);
        assert_eq!(reply.bytes[HEADER_BYTES..], expected);
        let kept = reply.fd.unwrap();
        assert_eq!(front.told.keepsakes, kept - 1000, "a new one each time");
        front
            .say(Request::SetInflightFd, &expected, &[kept])
            .unwrap();
        assert_eq!(front.told.known, Some(kept));
    }
    let short = front.say(Request::GetInflightFd, &[0; 16], &[]);
    assert!(matches!(short, Err(Fault::Payload { .. })));
    let none = front.say(Request::SetInflightFd, &[0; 24], &[]);
    assert!(matches!(none, Err(Fault::Descriptors { .. })));
}

#[test]
fn without_protocol_features_a_kick_is_enough() {
    let mut front = Front::new(1);
    front
        .say(Request::SetFeatures, &VERSION_1.to_ne_bytes(), &[])
        .unwrap();
    front.memory(&[LOW]).unwrap();
    front.queue(0).unwrap();
    assert!(front.told.running.contains_key(&0));
}

#[test]
fn what_cannot_be_done_is_acknowledged_so() {
    let mut front = Front::new(1);
    front.begin(VERSION_1 | PROTOCOL);
    front.told.refuses = true;
    let answer = front.memory(&[LOW]).unwrap().unwrap();
    assert_eq!(answer[HEADER_BYTES..], 1u64.to_ne_bytes());
    // And not at all where nobody asks.
    let mut payload = [1u32, 0].as_bytes().to_vec();
    payload.extend_from_slice(LOW.as_bytes());
    let quiet = front.say(Request::SetMemTable, &payload, &[1]).unwrap();
    assert_eq!(quiet, None);
}

#[test]
fn pages_that_are_written_are_noted_for_as_long_as_both_want_it() {
    let mut front = Front::new(1);
    front.begin(VERSION_1 | PROTOCOL);
    front.memory(&[LOW]).unwrap();
    front.queue(0).unwrap();
    front.value(Request::SetVringEnable, 0, 1).unwrap();
    let log = [4096u64, 64];
    let answer = front
        .say(Request::SetLogBase, log.as_bytes(), &[5])
        .unwrap();
    assert_eq!(answer.unwrap().len(), HEADER_BYTES);
    assert_eq!(front.told.log, Some((4096, 64)));
    let with = VERSION_1 | PROTOCOL | LOG_ALL;
    front
        .say(Request::SetFeatures, &with.to_ne_bytes(), &[])
        .unwrap();
    assert!(front.told.running.contains_key(&0), "no queue stops for it");
    // Also in other memory, and by a successor of the device.
    front.told.log = None;
    front.memory(&[LOW, HIGH]).unwrap();
    assert_eq!(front.told.log, Some((4096, 64)));
    front.told = Told::default();
    front.session.again(&mut front.told).unwrap();
    assert_eq!(front.told.log, Some((4096, 64)));
    let without = VERSION_1 | PROTOCOL;
    front
        .say(Request::SetFeatures, &without.to_ne_bytes(), &[])
        .unwrap();
    assert_eq!(front.told.log, None);
    front.memory(&[LOW]).unwrap();
    assert_eq!(front.told.log, None, "it is over");
    // Said before there is memory.
    let mut front = Front::new(1);
    front.begin(with);
    front
        .say(Request::SetLogBase, log.as_bytes(), &[5])
        .unwrap();
    front.memory(&[LOW]).unwrap();
    assert_eq!(front.told.log, Some((4096, 64)));
}

#[test]
fn without_memory_nobody_is_told_of_a_log() {
    let mut front = Front::new(1);
    for taken in [VERSION_1 | LOG_ALL, VERSION_1] {
        // Who is told checks that there is memory.
        front
            .say(Request::SetFeatures, &taken.to_ne_bytes(), &[])
            .unwrap();
    }
    assert_eq!(front.told.log, None);
}

#[test]
fn what_no_front_end_says_is_a_fault() {
    let mut front = Front::new(2);
    front.begin(VERSION_1 | PROTOCOL);
    let bits = (1u64 << 63).to_ne_bytes();
    let faults = [
        (
            front.say(Request::SetFeatures, &bits, &[]),
            Fault::Features(1 << 63),
        ),
        (
            front.say(Request::SetProtocolFeatures, &bits, &[]),
            Fault::Features(1 << 63),
        ),
        (
            front.say(Request::SetFeatures, &[0; 4], &[]),
            Fault::Payload {
                request: 2,
                bytes: 4,
            },
        ),
        (
            front.say(Request::SetOwner, &[], &[1]),
            Fault::Descriptors {
                request: 3,
                count: 1,
            },
        ),
        (front.value(Request::SetVringNum, 4, 8), Fault::Queue(4)),
        (
            front.value(Request::SetVringNum, 0, 0),
            Fault::Value { queue: 0, value: 0 },
        ),
        (
            front.value(Request::SetVringNum, 0, 32769),
            Fault::Value {
                queue: 0,
                value: 32769,
            },
        ),
        (
            front.value(Request::SetVringBase, 0, 1 << 16),
            Fault::Value {
                queue: 0,
                value: 1 << 16,
            },
        ),
        (
            front.say(Request::SetVringKick, &0u64.to_ne_bytes(), &[]),
            Fault::Descriptors {
                request: 12,
                count: 0,
            },
        ),
        (
            front.say(Request::SetVringCall, &(1u64 << 8).to_ne_bytes(), &[1]),
            Fault::Descriptors {
                request: 13,
                count: 1,
            },
        ),
        (
            front.say(Request::SetVringErr, &9u64.to_ne_bytes(), &[1]),
            Fault::Queue(9),
        ),
        (
            front.memory(&[LOW; 9]),
            Fault::Payload {
                request: 5,
                bytes: 8 + 9 * 32,
            },
        ),
        (front.memory(&[LOW, LOW]), Fault::Memory),
        (
            front.memory(&[
                LOW,
                MemoryRegion {
                    guest: 1 << 40,
                    ..LOW
                },
            ]),
            Fault::Memory,
        ),
        (
            front.memory(&[
                LOW,
                MemoryRegion {
                    user: 1 << 40,
                    ..LOW
                },
            ]),
            Fault::Memory,
        ),
        (
            front.memory(&[MemoryRegion { size: 0, ..LOW }]),
            Fault::Memory,
        ),
        (
            front.memory(&[MemoryRegion {
                size: u64::MAX,
                ..LOW
            }]),
            Fault::Memory,
        ),
    ];
    for (got, expected) in faults {
        assert_eq!(got, Err(expected));
    }
    // Rings outside of memory, at whatever moment that shows.
    let mut front = Front::new(1);
    front.begin(VERSION_1 | PROTOCOL);
    front.memory(&[HIGH]).unwrap();
    front.queue(0).unwrap();
    let ran = front.value(Request::SetVringEnable, 0, 1);
    let fault = Fault::Ring {
        queue: 0,
        address: 0x7f00_0000,
    };
    assert_eq!(ran, Err(fault));
    let header = |request, flags, size| {
        let words: [u32; 3] = [request, flags, size];
        Header::read(words.as_bytes().try_into().unwrap())
    };
    assert!(header(1, VERSION, 0).is_ok() && header(1, VERSION | 8, 512).is_ok());
    for (flags, size) in [
        (0, 0),
        (2, 0),
        (VERSION | REPLY, 0),
        (VERSION | 16, 0),
        (VERSION, 513),
    ] {
        assert!(header(1, flags, size).is_err());
    }
    let unknown = Header {
        request: 77,
        flags: VERSION,
        size: 0,
    };
    let got = front.session.handle(&mut front.told, unknown, &[], vec![]);
    assert_eq!(got, Err(Fault::Unknown(77)));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes in whatever order: the device is told nothing that cannot be, and
    /// nobody panics.
    #[test]
    fn anything_in_any_order_is_a_fault_or_makes_sense(
        said in prop::collection::vec((1u32..45, prop::collection::vec(any::<u8>(), 0..64), 0usize..3, 0u8..12), 0..60))
    {
        let mut front = Front::new(2);
        front.begin(VERSION_1 | PROTOCOL);
        for (request, payload, fds, likely) in said {
            // Most of the time something that makes sense, so that there is a way into it.
            let n = u32::from(likely % 4);
            let got = match likely {
                0 | 1 => front.memory(&[LOW]),
                2 => front.memory(&[LOW, HIGH]),
                3 | 4 => front.queue(n).map(|()| None),
                5 => front.value(Request::SetVringEnable, n, u32::from(payload.len() % 2 == 0)),
                6 => front.value(Request::GetVringBase, n, 0),
                7 => front.say(Request::ResetDevice, &[], &[]),
                8 => front.session.again({ front.told.running.clear(); &mut front.told }).map(|()| None).map_err(|_| Fault::Memory),
                _ => {
                    let header = Header { request, flags: VERSION, size: payload.len() as u32 };
                    let fds = (0..fds as u32).collect();
                    front.session.handle(&mut front.told, header, &payload, fds).map(bytes)
                }
            };
            if got.is_err() {
                break;
            }
        }
    }
}
