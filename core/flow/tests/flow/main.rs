//! Connections by packet traces, against a naive model, and under floods.

mod bench;
mod bounds;
mod fragments;
mod journal;
mod model;
mod segment;
mod shares;
mod tally;
mod tcp;
mod udp;

use flow::segment::{Kind, Tcp};
use flow::state::SECOND;
use flow::{Connections, Found, Judgement, Refused, Segment, Side, Verdict};
use wire::Tuple;
use wire::address::mapped;

pub(crate) const SEED: [u64; 2] = [0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321];
pub(crate) const VERDICT: Verdict = Verdict {
    epoch: 1,
    rules: [11, 12],
};

/// A tuple of protocol `protocol` from host `from` to host `to`.
pub(crate) fn tuple(
    protocol: u8,
    (from, source_port): (u8, u16),
    (to, destination_port): (u8, u16),
) -> Tuple {
    Tuple {
        source: mapped([10, 0, 0, from]),
        destination: mapped([10, 0, 0, to]),
        source_port,
        destination_port,
        protocol,
    }
}

/// Both sides of an untranslated connection inside.
pub(crate) fn sides(tuple: Tuple, a: u32, b: u32) -> [Side; 2] {
    [
        Side {
            owner: a,
            zone: 0,
            tuple,
        },
        Side {
            owner: b,
            zone: 0,
            tuple: tuple.reversed(),
        },
    ]
}

pub(crate) fn plain(bytes: u32) -> Segment {
    Segment {
        packets: 1,
        bytes,
        kind: Kind::Plain,
    }
}

pub(crate) fn echo(request: bool) -> Segment {
    Segment {
        packets: 1,
        bytes: 98,
        kind: Kind::Echo { request },
    }
}

/// A TCP segment.
pub(crate) fn segment(
    flags: u8,
    sequence: u32,
    acknowledgement: u32,
    payload: u32,
    window: u16,
) -> Segment {
    Segment {
        packets: 1,
        bytes: 54 + payload,
        kind: Kind::Tcp(Tcp {
            flags,
            sequence,
            acknowledgement,
            window,
            payload,
            scale: None,
            more: false,
        }),
    }
}

pub(crate) fn scaled(mut segment: Segment, scale: u8) -> Segment {
    if let Kind::Tcp(tcp) = &mut segment.kind {
        tcp.scale = Some(scale);
    }
    segment
}

/// A switch in miniature: packets as their senders send them, in time.
pub(crate) struct Switch {
    pub(crate) connections: Connections,
    pub(crate) now: u64,
    pub(crate) sides: [Side; 2],
}

impl Switch {
    pub(crate) fn of(connections: Connections, protocol: u8) -> Self {
        let ends = match protocol {
            1 => ((1, 7), (2, 0)),
            _ => ((1, 40_000), (2, 80)),
        };
        Switch {
            connections,
            now: 1_000 * SECOND,
            sides: sides(tuple(protocol, ends.0, ends.1), 0, 1),
        }
    }

    pub(crate) fn find(&mut self, side: usize) -> Option<Found> {
        let Side { owner, zone, tuple } = self.sides[side];
        self.connections.find(self.now, owner, zone, &tuple)
    }

    /// A packet of side `side`, ten milliseconds later.
    pub(crate) fn send(&mut self, side: usize, segment: Segment) -> Result<Judgement, Refused> {
        self.now += SECOND / 100;
        let (this, other) = (self.sides[side], self.sides[1 - side]);
        if let Some(found) = self.find(side) {
            let would = self.connections.would(found, &segment);
            // Every other packet tries the short way first.
            if self.now.is_multiple_of(SECOND / 50) && self.step(found, &segment) {
                assert_eq!(would, Judgement::Pass, "in one step: {segment:?}");
                return Ok(would);
            }
            let judgement = self.connections.packet(self.now, found, &segment);
            assert_eq!(would, judgement, "asked beforehand: {segment:?}");
            match judgement {
                Judgement::Anew => {}
                judgement => return Ok(judgement),
            }
        }
        self.connections
            .open(self.now, &this, &other, &VERDICT, &segment)
            .map(|_| Judgement::Pass)
    }

    /// Whether a packet passes in one step; it changes nothing if it does not.
    fn step(&mut self, found: Found, segment: &Segment) -> bool {
        let facts = match &segment.kind {
            Kind::Tcp(facts) if segment.packets == 1 => Some(facts),
            Kind::Plain if segment.packets == 1 => None,
            _ => return false,
        };
        let all = |connections: &Connections| {
            let connection = connections.connection(self.now, found.id);
            (connection, [0, 1].map(|owner| connections.counters(owner)))
        };
        let before = all(&self.connections);
        let generation = self.connections.generation(found);
        let passed = self
            .connections
            .step(self.now, found, generation, facts, segment.bytes);
        if !passed {
            assert_eq!(all(&self.connections), before, "{segment:?}");
        }
        passed
    }

    pub(crate) fn state(&mut self) -> Option<flow::State> {
        let found = self.find(0)?;
        let connection = self.connections.connection(self.now, found.id)?;
        Some(connection.state)
    }
}
