//! What a vhost-user front end says, in any order: whole messages as they come from its
//! socket, or ones that make sense, bent.
//!
//! Held: the device is told nothing that cannot be: no queue runs twice, without memory, or
//! outside of it; memory never changes under a queue that runs; a request is answered once.

use crate::input::Input;
use std::collections::BTreeSet;
use vhostuser::{
    Device, Failed, Fault, HEADER_BYTES, Header, MAX_PAYLOAD, MemoryRegion, QueueSetup, REPLY,
    Request, Session, VERSION, features,
};
use virtqueue::Stand;
use zerocopy::IntoBytes;

/// Regions of memory at most.
const REGIONS: usize = 8;
const PAIRS: u32 = 2;
/// Messages of one run.
const MESSAGES: usize = 64;

/// Whoever maps memory and runs queues.
#[derive(Default)]
struct Told {
    mapped: Vec<MemoryRegion>,
    running: BTreeSet<u32>,
    refuses: bool,
    stand: u16,
}

impl Device for Told {
    type Fd = u8;
    fn is_mapped(&self) -> bool {
        !self.mapped.is_empty()
    }
    fn map(&mut self, taken: u64, regions: &[(MemoryRegion, u8)]) -> Result<(), Failed> {
        assert!(self.running.is_empty(), "memory changes under a queue");
        assert!((1..=REGIONS).contains(&regions.len()));
        assert_eq!(taken & !features::OFFERED, 0, "what was never offered");
        for (n, (one, _)) in regions.iter().enumerate() {
            let end = |r: &MemoryRegion| r.guest.checked_add(r.size).expect("it ends");
            assert!(one.size > 0 && one.user.checked_add(one.size).is_some());
            let apart = |(other, _): &(MemoryRegion, u8)| {
                end(one) <= other.guest || end(other) <= one.guest
            };
            assert!(regions[..n].iter().all(apart), "an address that lies twice");
        }
        self.mapped.clear();
        if self.refuses {
            return Err(Failed);
        }
        self.mapped
            .extend(regions.iter().map(|(region, _)| *region));
        Ok(())
    }
    fn unmap(&mut self) {
        assert!(self.running.is_empty(), "memory goes under a queue");
        self.mapped.clear();
    }
    fn run(&mut self, setup: &QueueSetup, _: Option<&u8>) -> Result<(), Failed> {
        assert!(setup.queue < 2 * PAIRS && setup.layout.size > 0);
        let layout = &setup.layout;
        for address in [layout.descriptors, layout.driver, layout.device] {
            let within = |r: &MemoryRegion| address >= r.guest && address - r.guest < r.size;
            assert!(self.mapped.iter().any(within), "a ring that is no memory");
        }
        if self.refuses {
            return Err(Failed);
        }
        assert!(self.running.insert(setup.queue), "it runs already");
        Ok(())
    }
    fn halt(&mut self, queue: u32) -> Stand {
        assert!(self.running.remove(&queue), "it does not run");
        Stand {
            available: self.stand,
            used: self.stand,
        }
    }
    fn log(&mut self, _: u64, _: u64, _: Option<&u8>) -> Result<(), Failed> {
        assert!(self.is_mapped(), "there is nothing to be noted");
        if self.refuses { Err(Failed) } else { Ok(()) }
    }
    fn call(&mut self, queue: u32, _: Option<u8>) {
        assert!(queue < 2 * PAIRS, "a queue that there is not");
    }
    fn keepsake(&mut self, _: u64) -> Result<u8, Failed> {
        if self.refuses { Err(Failed) } else { Ok(1) }
    }
    fn knows(&mut self, _: &u8) {}
}

/// One run.
pub fn run(bytes: &[u8]) {
    let input = Input::new(bytes);
    let mut told = Told::default();
    let mut session: Session<u8> = Session::new(PAIRS, features::OFFERED);
    for _ in 0..MESSAGES {
        if input.is_over() {
            break;
        }
        let what = input.byte();
        told.refuses = what & 0xc0 == 0xc0;
        told.stand = u16::from(what) << 8;
        let (request, flags, payload, fds) = match what % 16 {
            0 => raw(&input),
            // The switch died: its successor is told all again.
            1 => {
                told.running.clear();
                told.mapped.clear();
                if session.again(&mut told).is_err() {
                    assert!(told.refuses, "nothing stood in its way");
                    // Its connection ends.
                    return;
                }
                continue;
            }
            n => likely(&input, n),
        };
        let header = Header {
            request,
            flags,
            size: payload.len() as u32,
        };
        let read: [u8; HEADER_BYTES] = header.as_bytes().try_into().expect("three words");
        let Ok(header) = Header::read(&read) else {
            assert!(flags & !8 != VERSION || payload.len() > MAX_PAYLOAD);
            return;
        };
        match session.handle(&mut told, header, &payload, fds) {
            Ok(Some(reply)) => {
                let (head, body) = reply.bytes.split_at(HEADER_BYTES);
                let size = body.len() as u32;
                let said = [request, VERSION | REPLY, size];
                assert_eq!(head, said.as_bytes());
            }
            Ok(None) => {}
            Err(fault) => return over(session, told, &fault),
        }
        assert!(told.running.is_empty() || session.runs());
    }
}

/// Its connection ends, and with it what it has: nothing of it may be looked at again.
fn over(session: Session<u8>, told: Told, fault: &Fault) {
    let _ = (session.runs(), told.is_mapped(), fault.to_string());
}

type Message = (u32, u32, Vec<u8>, Vec<u8>);

fn raw(input: &Input) -> Message {
    let request = u32::from(input.byte());
    let flags = u32::from(input.byte());
    let length = input.u16() as usize % (MAX_PAYLOAD + 8);
    let fds = vec![0; input.below(10)];
    (request, flags, input.take(length), fds)
}

/// Something that makes sense, most of the time.
fn likely(input: &Input, n: u8) -> Message {
    let queue = u32::from(input.byte()) % (2 * PAIRS + 1);
    let small = u32::from(input.byte());
    let number = |request: Request, value: u64| (request, value.as_bytes().to_vec(), 0);
    let state = |request: Request, value: u32| (request, [queue, value].as_bytes().to_vec(), 0);
    let region = || {
        let at = u64::from(input.byte() % 8) << 12;
        [at, 0x1000 << (input.byte() % 4), 0x7f00_0000 + at, 0]
    };
    let (request, payload, fds) = match n {
        2 => {
            let bits = [
                features::VERSION_1 | features::PROTOCOL,
                features::OFFERED,
                features::VERSION_1,
                1 << small % 64,
            ];
            number(Request::SetFeatures, bits[queue as usize % 4])
        }
        3 => number(
            Request::SetProtocolFeatures,
            vhostuser::protocol::OFFERED & input.u64(),
        ),
        4 => {
            let count = small as usize % 10;
            let mut payload = [count as u32, 0].as_bytes().to_vec();
            (0..count).for_each(|_| payload.extend_from_slice(region().as_bytes()));
            (Request::SetMemTable, payload, count)
        }
        5 | 6 => {
            let request = [Request::AddMemReg, Request::RemMemReg][usize::from(n) - 5];
            let mut payload = 0u64.as_bytes().to_vec();
            payload.extend_from_slice(region().as_bytes());
            (request, payload, 1)
        }
        7 => state(
            Request::SetVringNum,
            [8, 256, small, small << 8][queue as usize % 4],
        ),
        8 => {
            let at = |n: u8| 0x7f00_0000 + u64::from(n % 64) * 1024;
            let mut payload = [queue, 0].as_bytes().to_vec();
            let places = [at(input.byte()), at(input.byte()), at(input.byte()), 0];
            payload.extend_from_slice(places.as_bytes());
            (Request::SetVringAddr, payload, 0)
        }
        9 => state(Request::SetVringBase, small << (queue * 8)),
        10 => state(Request::GetVringBase, 0),
        11 => {
            let request = [
                Request::SetVringKick,
                Request::SetVringCall,
                Request::SetVringErr,
            ][small as usize % 3];
            let without = u64::from(small & 0x80 != 0) << 8;
            (
                request,
                (u64::from(queue) | without).as_bytes().to_vec(),
                usize::from(without == 0),
            )
        }
        12 => state(Request::SetVringEnable, small % 3),
        13 => (
            Request::SetLogBase,
            [u64::from(small) << 12, 0].as_bytes().to_vec(),
            1,
        ),
        14 => (
            [Request::GetInflightFd, Request::SetInflightFd][small as usize % 2],
            input.take(24),
            small as usize % 2,
        ),
        _ => {
            let plain = [
                Request::ResetDevice,
                Request::ResetOwner,
                Request::SetOwner,
                Request::GetFeatures,
                Request::GetStatus,
                Request::GetQueueNum,
            ];
            (plain[small as usize % plain.len()], Vec::new(), 0)
        }
    };
    let flags = VERSION | (u32::from(small & 1) << 3);
    (request as u32, flags, payload, vec![0; fds])
}
