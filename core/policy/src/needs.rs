//! What an intent asks of the host.

use crate::intent::{CompartmentIntent, Intent, PortIntent};
use command::verbs::{CREATE_CIRCUITS, ENDPOINT_CIRCUITS, ENDPOINT_FIFO, ENDPOINT_VHOST};
use std::collections::BTreeSet;

/// What an intent asks of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Processes: one a compartment, one more where it has circuits and another where some are metered, one an interface with circuits beside it, one a virtual machine's interface, the fabric, keeper, supervisor, controller and spares.
    pub processes: u32,
    /// Bytes of memory: channels, tables, counters and what processes keep for themselves.
    pub memory_bytes: u64,
    /// Cores taken for their own by `cores: isolated`, in order.
    pub cores: Vec<u32>,
}

/// Processes whatever the spec says: keeper, supervisor, controller, fabric, a spare
/// of it, two spare switches.
const FIXED_PROCESSES: u32 = 8;
/// Private memory of the fixed processes, bytes.
const FIXED_MEMORY: u64 = 48 << 20;
/// Private memory of a switch, bytes.
const SWITCH_MEMORY: u64 = 3 << 20;
/// Private memory of a virtual machine's helper, bytes.
const HELPER_MEMORY: u64 = 1 << 20;
/// Header, producer and consumer pages of a direction, and a flight recorder, bytes.
const PAGES: u64 = 3 * 4096;
const RECORDER: u64 = 256 << 10;

/// A place's channel, and the one before it while its holder may not have let go.
const CHANNELS: u64 = 2;
/// Pairs that the supervisor makes ahead of each of so many geometries.
const AHEAD: u64 = 4;
const GEOMETRIES: usize = 8;

/// What an intent asks of the host.
pub fn needs(intent: &Intent) -> Needs {
    let channel = |capacity: u32| {
        if capacity == 0 {
            0
        } else {
            2 * (u64::from(capacity) + PAGES)
        }
    };
    // A machine's memory is not asked of the host here: it is the machine's own, which whoever
    // starts it has to have, and each page is there once, whoever touches it first. A limit
    // of its switch has room for it (the supervisor's `make_room`).
    let fifo = |p: &PortIntent| match p.create.kind {
        ENDPOINT_FIFO => p.create.capacity,
        _ => 0,
    };
    let own = intent.compartments.values().map(|c| {
        let create = &c.create;
        (create.capacity, create.max_record)
    });
    let ports = intent.compartments.values().flat_map(|c| c.ports.values());
    let fifos = ports.map(|p| (fifo(p), p.create.max_record));
    let geometries: BTreeSet<(u32, u32)> = own.chain(fifos).collect();
    let largest = geometries.iter().rev().take(GEOMETRIES);
    let ahead: u64 = largest
        .map(|(capacity, _)| AHEAD * channel(*capacity))
        .sum();
    let one = |c: &CompartmentIntent| {
        let counters = (512 + u64::from(c.create.slots) * 128) * 8;
        let ports: u64 = c.ports.values().map(|p| channel(fifo(p))).sum();
        SWITCH_MEMORY
            + RECORDER
            + counters
            + CHANNELS * (channel(c.create.capacity) + ports)
            + c.image.bytes.len() as u64
    };
    let mut cores: Vec<u32> = intent
        .compartments
        .values()
        .flat_map(|c| c.cores.iter().copied())
        .collect();
    cores.sort_unstable();
    cores.dedup();
    let ports = intent.compartments.values().flat_map(|c| c.ports.values());
    let guests = ports.filter(|p| p.create.kind == ENDPOINT_VHOST).count() as u32;
    let has_circuits = |c: &CompartmentIntent| {
        let mut ports = c.ports.values();
        ports.any(|p| p.create.kind == ENDPOINT_CIRCUITS || p.create.flags & CREATE_CIRCUITS != 0)
    };
    let ports = intent.compartments.values().flat_map(|c| c.ports.values());
    let proxies = ports.filter(|p| p.create.flags & CREATE_CIRCUITS != 0);
    let proxies = proxies.count() as u32;
    let compartments = intent.compartments.values();
    let operators = compartments.filter(|c| has_circuits(c)).count() as u32;
    let compartments = intent.compartments.values();
    let meters = compartments.filter(|c| c.ports.values().any(|port| port.metered));
    let meters = meters.count() as u32;
    let helpers = guests + operators + proxies + meters;
    Needs {
        processes: FIXED_PROCESSES + intent.compartments.len() as u32 + helpers,
        memory_bytes: FIXED_MEMORY
            + u64::from(helpers) * HELPER_MEMORY
            + intent.fabric.bytes.len() as u64
            + ahead
            + intent.compartments.values().map(|c| one(c)).sum::<u64>(),
        cores,
    }
}
