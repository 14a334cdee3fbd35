//! The switch program's own loop in this process, between shared-memory FIFOs, for
//! valgrind to count: the crate that `bulkhead-switch` runs, as it is compiled for it, told
//! by the messages that its supervisor sends, under the image that the compiler makes of
//! the spec. What is left out is the confinement before the first message.

use super::machine::{MIB, Machine};
use super::site::{FLOWS, PLAIN, Site, Station, frame, shuffled};
use bin_switch::Worker;
use command::Message;
use command::message::Body;
use command::verbs::{
    AddPort, Attach, CreatePort, PORT_CHANNEL, PORT_VHOST, START_FRESH, UseImage, WAIT_ADAPTIVE,
    WAIT_POLL,
};
use policy::{CompartmentIntent, Ids, compile};
use seqpacket::Socket;
use shm::{Channel, CountersPage, Doorbell, Geometry, Pair, SealedImage, Start};
use std::hint::black_box;
use std::os::fd::{AsFd, BorrowedFd};
use switch::bytes_for;
use telemetry::counters::{Counter, counter_word, drop_word};
use telemetry::drops::DropReason;

/// 2026-01-01, seconds since 1970.
const NOW: u64 = 1_767_225_600;
/// Packets that are counted: all are in the ring before the loop goes on, as under full
/// load, and it takes them in batches of its own size.
pub const COUNTED: u32 = 1024;
/// Bytes of a frame.
const SIZE: usize = 64;
/// Connections that the journal has room for.
const JOURNAL: usize = 20_000;

/// What the process that valgrind runs is told.
#[derive(clap::Args, Clone, Debug)]
pub struct Inside {
    /// Tenants beside in the same switch, idle.
    #[arg(long, default_value_t = 0)]
    pub beside: usize,
    /// Wait as by default: idle channels leave the line, which they do not where it polls.
    #[arg(long)]
    pub adaptive: bool,
    /// By virtual machines' queues instead of FIFOs.
    #[arg(long)]
    pub guests: bool,
    /// Make it dearer: copies of each frame are captured, and something is allocated.
    #[arg(long)]
    pub hinder: bool,
    /// Instead of letting packets be counted: time so many times as many, without valgrind.
    #[arg(long)]
    pub timed: Option<u32>,
    /// Flows that they are of.
    #[arg(long, default_value_t = FLOWS)]
    pub flows: u32,
}

/// Passes packets of [`FLOWS`] connections in random order and says how many.
pub fn run(asked: &Inside) -> Result<(), String> {
    let mut loop_ = Loop::new(asked)?;
    let flows = shuffled(asked.flows);
    loop_.converse(&flows)?;
    if let Some(rounds) = asked.timed {
        return loop_.timed(&flows, rounds);
    }
    let steps = loop_.steps_for(&flows)?;
    let before = loop_.seen();
    loop_.fill(&flows)?;
    measured_steps(&mut loop_.worker, steps, asked.hinder);
    let came = loop_.drain(1)?;
    let after = loop_.seen();
    if came != COUNTED {
        return Err(format!("{came} of {COUNTED} packets came"));
    }
    // Guard, policy, meter and accounting were at work on each of them, and nothing else.
    let added: Vec<u64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
    let each = u64::from(COUNTED);
    let bytes = each * SIZE as u64;
    let expected = [each, bytes, each, bytes, 0, 0];
    if added != expected {
        return Err(format!("counted {added:?}, not {expected:?}"));
    }
    println!("{came}");
    Ok(())
}

/// What valgrind counts.
#[inline(never)]
fn measured_steps(worker: &mut Worker, steps: u32, hinder: bool) {
    for _ in 0..steps {
        worker.step();
        if hinder {
            for n in 0..100_000 / steps {
                black_box(Box::new(n));
            }
        }
    }
}

/// The far end of a port.
enum End {
    Channel(Channel),
    Machine(Machine),
}

/// A switch and the far ends of its ports, by slot.
struct Loop {
    worker: Worker,
    supervisor: Socket,
    ends: Vec<End>,
    counters: CountersPage,
    /// Slots of the two endpoints.
    slots: [usize; 2],
    stations: [Station; 2],
    scratch: Vec<u8>,
}

impl Loop {
    fn new(asked: &Inside) -> Result<Loop, String> {
        let site = Site {
            attach: match asked.guests {
                true => "vhost",
                false => "fifo",
            },
            tenant: match asked.flows {
                0..10_000 => &[],
                _ => &["memory: 2GiB"],
            },
            connections: (asked.flows + asked.flows / 50 + 64).max(8192),
            rules: super::site::RULES,
            beside: asked.beside,
        };
        let compartment = compiled(&site.spec())?;
        let say = |e: std::io::Error| e.to_string();
        let (supervisor, control) = Socket::pair().map_err(|e| e.to_string())?;
        let slots = compartment.create.slots;
        let bytes = telemetry::counters::bytes_for(slots as usize);
        let counters = shm::memory_file("counters", bytes).map_err(say)?;
        let recorder = shm::memory_file("recorder", telemetry::recorder::BYTES).map_err(say)?;
        let journal = shm::sparse_file("journal", bytes_for(JOURNAL)).map_err(say)?;
        let page = CountersPage::open(&counters, slots as usize).map_err(say)?;
        let red = |name: &str| {
            let found = compartment
                .ports
                .iter()
                .find(|(_, port)| port.tenant == "red" && port.endpoint == name);
            found.ok_or("no such endpoint")
        };
        let (a, b) = (red("a")?, red("b")?);
        let station = |port: &policy::PortIntent| {
            let four = port.addresses.iter().find_map(|a| match a {
                std::net::IpAddr::V4(a) => Some(a.octets()),
                std::net::IpAddr::V6(_) => None,
            });
            (port.mac, four.unwrap_or_default())
        };
        let mut made = Loop {
            worker: Worker::new(control).map_err(|e| e.to_string())?,
            supervisor,
            ends: Vec::new(),
            counters: page,
            slots: [*a.0 as usize, *b.0 as usize],
            stations: [station(a.1), station(b.1)],
            scratch: vec![0; 65_700],
        };
        let attach = Attach {
            compartment: compartment.create.id,
            slots,
            wait: match asked.adaptive {
                true => WAIT_ADAPTIVE,
                false => WAIT_POLL,
            },
            wait_us: 0,
            start: START_FRESH,
            seed: [7; 16],
            ..Attach::default()
        };
        made.tell(
            &attach,
            &[counters.as_fd(), recorder.as_fd(), journal.as_fd()],
        )?;
        let fabric = CreatePort {
            capacity: compartment.create.capacity,
            max_record: compartment.create.max_record,
            ..CreatePort::default()
        };
        // Everybody's, so that the idle ones are there to be looked at.
        std::mem::forget(made.plug(&fabric)?);
        for (slot, port) in &compartment.ports {
            let end = match asked.guests && made.slots.contains(&(*slot as usize)) {
                true => End::Machine(made.plug_machine(&port.create)?),
                false => End::Channel(made.plug(&port.create)?),
            };
            match made.slots.contains(&(*slot as usize)) {
                true => made.ends.push(end),
                false => std::mem::forget(end),
            }
        }
        let image = SealedImage::create("image", &compartment.image.bytes).map_err(say)?;
        let digest = compartment.image.digest.0;
        made.tell(&UseImage { epoch: 1, digest }, &[image.as_fd()])?;
        Ok(made)
    }

    /// Says something and lets it be heard: the loop's own way there is a system call that
    /// valgrind may not know.
    fn tell<B: Body>(&mut self, body: &B, fds: &[BorrowedFd<'_>]) -> Result<(), String> {
        let message = Message::new(0, body);
        self.supervisor
            .send(&message, fds)
            .map_err(|e| e.to_string())?;
        self.worker.hear();
        Ok(())
    }

    fn plug(&mut self, port: &CreatePort) -> Result<Channel, String> {
        let geometry = Geometry::records(port.capacity as usize, port.max_record as usize)
            .map_err(|e| e.to_string())?;
        let pair = Pair::create(&geometry).map_err(|e| e.to_string())?;
        let body = AddPort {
            slot: port.slot,
            kind: PORT_CHANNEL,
            capacity: port.capacity,
            max_record: port.max_record,
            version: ring::VERSION,
            mtu: port.mtu,
            ..AddPort::default()
        };
        let end = pair.end_a().map_err(|e| e.to_string())?;
        self.tell(&body, &end.as_fds())?;
        let far = pair.end_b().map_err(|e| e.to_string())?;
        shm::attach(far, &geometry, Start::Fresh).map_err(|e| e.to_string())
    }

    fn plug_machine(&mut self, port: &CreatePort) -> Result<Machine, String> {
        let (mut machine, link) = Machine::new()?;
        let body = AddPort {
            slot: port.slot,
            kind: PORT_VHOST,
            capacity: MIB,
            mtu: port.mtu,
            ..AddPort::default()
        };
        self.tell(&body, &[link.as_fd(), machine.page()])?;
        machine.start(|| self.worker.hear_helper(port.slot))?;
        Ok(machine)
    }

    /// A packet of each flow each way: their connections are set up.
    fn converse(&mut self, flows: &[u32]) -> Result<(), String> {
        for chunk in flows.chunks(256) {
            for side in [0, 1] {
                for flow in chunk {
                    let (from, to) = (self.stations[side], self.stations[1 - side]);
                    self.put(side, &frame(from, to, *flow, SIZE, side == 1))?;
                }
                let came = self.steps_until(1 - side, chunk.len() as u32)?;
                black_box(came);
            }
        }
        Ok(())
    }

    /// Says how many nanoseconds of this processor the loop takes a packet.
    fn timed(&mut self, flows: &[u32], rounds: u32) -> Result<(), String> {
        let spent = || {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        };
        let (mut all, mut steps) = (Vec::new(), self.steps_for(flows)?);
        for round in 0..rounds as usize {
            let first = round * COUNTED as usize % flows.len();
            self.fill(&flows[first..])?;
            let before = spent();
            measured_steps(&mut self.worker, steps, false);
            all.push((spent() - before) as f64 / f64::from(COUNTED));
            let came = self.drain(1)?;
            if came < COUNTED {
                steps += self.steps_until(1, COUNTED - came)?;
            }
        }
        all.sort_by(f64::total_cmp);
        let at = |part: usize| all.get(all.len() * part / 20).copied().unwrap_or(f64::NAN);
        println!("ns a packet: {:.1} p5, {:.1} p50", at(1), at(10));
        Ok(())
    }

    /// All the packets that are counted, seen at once.
    fn fill(&mut self, flows: &[u32]) -> Result<(), String> {
        for n in 0..COUNTED {
            let flow = flows[n as usize % flows.len()];
            let frame = frame(self.stations[0], self.stations[1], flow, SIZE, false);
            self.put(0, &frame)?;
        }
        Ok(())
    }

    fn put(&mut self, side: usize, frame: &[u8]) -> Result<(), String> {
        let tx = match &mut self.ends[side] {
            End::Channel(channel) => &mut channel.tx,
            End::Machine(machine) => {
                machine.put(frame)?;
                machine.show(1);
                return Ok(());
            }
        };
        tx.ring.poll().map_err(|b| format!("{b:?}"))?;
        tx.ring
            .push(0, &PLAIN, frame, &[])
            .map_err(|e| format!("{e:?}"))?;
        if tx.ring.publish() == Doorbell::Ring {
            let _ = tx.bell.ring();
            self.worker.wake(self.slots[side] as u32);
        }
        Ok(())
    }

    /// Steps of the loop that the packets to be counted take.
    fn steps_for(&mut self, flows: &[u32]) -> Result<u32, String> {
        // Once for what only the first time takes.
        self.fill(flows)?;
        self.steps_until(1, COUNTED)?;
        self.fill(flows)?;
        self.steps_until(1, COUNTED)
    }

    fn steps_until(&mut self, side: usize, packets: u32) -> Result<u32, String> {
        let mut came = 0;
        for steps in 1..10_000 {
            self.worker.step();
            came += self.drain(side)?;
            if came >= packets {
                return Ok(steps);
            }
        }
        Err(format!("{came} of {packets} packets came"))
    }

    /// Takes all that has come to a side: how many packets of the other.
    fn drain(&mut self, side: usize) -> Result<u32, String> {
        let (own, other) = (self.stations[side].0, self.stations[1 - side].0);
        let mut came = 0;
        let channel = match &mut self.ends[side] {
            End::Channel(channel) => channel,
            End::Machine(machine) => {
                machine.drain(&mut self.scratch, |seen| {
                    came += u32::from(seen.starts_with(&own) && seen[6..].starts_with(&other));
                });
                return Ok(came);
            }
        };
        while let Some(record) = channel.rx.ring.next().map_err(|b| format!("{b:?}"))? {
            let len = record.copy(0, &mut self.scratch);
            let seen = self.scratch.get(..len).unwrap_or(&[]);
            came += u32::from(seen.starts_with(&own) && seen[6..].starts_with(&other));
        }
        channel.rx.ring.release();
        Ok(came)
    }

    /// Frames and bytes of the sender and to the receiver, what was dropped, connections.
    fn seen(&self) -> [u64; 6] {
        let [a, b] = self.slots;
        let of = |slot, counter| self.counters.words().load(counter_word(slot, counter));
        let drops = |slot| {
            let all = DropReason::ALL.iter();
            all.map(|r| self.counters.words().load(drop_word(slot, *r)))
                .sum::<u64>()
        };
        [
            of(a, Counter::RxFrames),
            of(a, Counter::RxBytes),
            of(b, Counter::TxFrames),
            of(b, Counter::TxBytes),
            drops(a) + drops(b),
            of(a, Counter::Connections),
        ]
    }
}

/// The compartment that `red` is in.
fn compiled(text: &str) -> Result<CompartmentIntent, String> {
    let spec = spec::parse("bench.yaml", text.as_bytes()).map_err(|e| e.to_string())?;
    let ids = Ids::assign(&spec, &Ids::default());
    let intent = compile(&spec, &ids, NOW).map_err(|e| format!("{e:?}"))?;
    let mut all = intent.compartments.into_values();
    let found = all.find(|c| c.tenants.iter().any(|t| t == "red"));
    let found = found.ok_or("no compartment")?;
    Ok(CompartmentIntent::clone(&found))
}
