//! What became of one traced frame in one process: a page of u64 words that the process
//! writes once, and whose reader takes every one as an allegation.
//!
//! Word 0 is [`MAGIC`] once all is written; then how many steps, how many found no room,
//! and of the frame that left: its length and slot, and its tag. Steps of [`STEP_WORDS`]
//! begin at word [`STEPS_AT`], the bytes of that frame at word [`FRAME_AT`].

/// "BHTRACE1": the page is whole.
pub const MAGIC: u64 = u64::from_le_bytes(*b"BHTRACE1");
/// Word of [`MAGIC`], written last.
pub const MAGIC_AT: usize = 0;
const COUNT_AT: usize = 1;
const LOST_AT: usize = 2;
const LEFT_AT: usize = 3;
const TAG_AT: usize = 4;
/// First word of the first step.
pub const STEPS_AT: usize = 8;
/// Words of a step.
pub const STEP_WORDS: usize = 8;
/// Steps at most.
pub const MOST: usize = 32;
/// First word of the frame.
pub const FRAME_AT: usize = STEPS_AT + MOST * STEP_WORDS;
/// Longest frame that is traced, bytes.
pub const LONGEST: usize = 9_216;
/// Words of a page.
pub const WORDS: usize = FRAME_AT + LONGEST / 8;
/// Bytes of a page.
pub const BYTES: usize = WORDS * 8;

/// A packet's addresses and ports, as rules see it: of ICMP the destination port is
/// `type << 8 | code`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuple {
    /// Source address, IPv4 in its ::ffff: form.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// IP protocol.
    pub protocol: u8,
}

/// What a switch does with a frame that is for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Answered {
    /// It says who has an IPv4 address.
    Arp = 1,
    /// It says who has an IPv6 address.
    Neighbour = 2,
    /// It advertises the gateway.
    Router = 3,
    /// DHCP.
    Dhcp = 4,
    /// A ping of the gateway.
    Echo = 5,
}

/// One step of a traced frame's way through one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Step {
    /// None that this release knows.
    #[default]
    Unknown,
    /// It parses, and its offload fields are facts.
    Parsed,
    /// The guard lets its sender say this.
    Guarded,
    /// It is within its sender's rate.
    Metered,
    /// To an endpoint of the same subnet.
    Bridged {
        /// Its slot.
        slot: u32,
    },
    /// To all of the subnet.
    Flooded,
    /// Through the gateway.
    Routed {
        /// The endpoint's slot; 0 = to the fabric.
        slot: u32,
        /// The fabric tag.
        tag: u16,
    },
    /// Through the gateway to a next hop outside, whose MAC is being asked for.
    Resolving {
        /// The next hop.
        address: [u8; 16],
    },
    /// Answered by the switch itself.
    Answered(u8),
    /// Meant for the switch, and answered by silence.
    Absorbed,
    /// It belongs to a connection, and is judged by that.
    Connection {
        /// `flow::State` as its number, before this packet.
        state: u8,
        /// It answers.
        back: bool,
        /// The connection began by this trace.
        own: bool,
        /// Rules that let it begin, at the initiator and at the responder.
        rules: [u32; 2],
    },
    /// A rule was asked.
    Rule {
        /// The sender's table, else the receiver's.
        egress: bool,
        /// Whose table: the endpoint's slot.
        slot: u32,
        /// The rule's number.
        rule: u32,
        /// `image::rules::Action` as its number.
        action: u8,
        /// The packet as that table sees it.
        tuple: Tuple,
    },
    /// Neither end has rules, or they are not about this.
    NoRules,
    /// A connection begins.
    Begins {
        /// It found a place; else it is served packet by packet.
        tracked: bool,
    },
    /// It leaves under these addresses and ports.
    Leaves(Tuple),
    /// The fabric has an entry for (ingress, tag, destination MAC), or a default.
    Entry {
        /// Egress slot.
        slot: u32,
        /// Tag there.
        tag: u16,
        /// It is an uplink's.
        uplink: bool,
    },
    /// The fabric has a group for it.
    Group {
        /// Members that it may go to.
        members: u32,
    },
    /// It goes to this port.
    Sent {
        /// The slot; 0 = the fabric.
        slot: u32,
        /// The fabric tag.
        tag: u16,
        /// Bytes of the frame.
        bytes: u32,
        /// It is cut in pieces for it.
        cut: bool,
        /// It went for real; else it was held back.
        real: bool,
    },
    /// The switch says something to this port because of it: an answer, an ICMP error.
    Replied {
        /// The slot; 0 = the fabric.
        slot: u32,
        /// Bytes of the frame.
        bytes: u32,
        /// It went for real; else it was held back.
        real: bool,
    },
    /// Thrown away.
    Dropped {
        /// [`crate::drops::DropReason`] as its number.
        reason: u8,
    },
}

impl Step {
    /// The step as words.
    pub fn words(&self) -> [u64; STEP_WORDS] {
        let plain = |kind: u64| pack(kind, 0, 0, 0, 0, &Tuple::default());
        match *self {
            Step::Unknown => plain(0),
            Step::Parsed => plain(1),
            Step::Guarded => plain(2),
            Step::Metered => plain(3),
            Step::Bridged { slot } => pack(4, 0, 0, slot, 0, &Tuple::default()),
            Step::Flooded => plain(5),
            Step::Routed { slot, tag } => pack(6, 0, tag, slot, 0, &Tuple::default()),
            Step::Resolving { address } => {
                let destination = address;
                let tuple = Tuple {
                    destination,
                    ..Tuple::default()
                };
                pack(7, 0, 0, 0, 0, &tuple)
            }
            Step::Answered(what) => pack(8, what, 0, 0, 0, &Tuple::default()),
            Step::Absorbed => plain(9),
            Step::Connection {
                state,
                back,
                own,
                rules: [a, b],
            } => {
                let flags = u16::from(back) | u16::from(own) << 1;
                pack(10, state, flags, a, b, &Tuple::default())
            }
            Step::Rule {
                egress,
                slot,
                rule,
                action,
                tuple,
            } => pack(11, action, egress.into(), slot, rule, &tuple),
            Step::NoRules => plain(12),
            Step::Begins { tracked } => pack(13, tracked.into(), 0, 0, 0, &Tuple::default()),
            Step::Leaves(tuple) => pack(14, 0, 0, 0, 0, &tuple),
            Step::Entry { slot, tag, uplink } => {
                pack(15, uplink.into(), tag, slot, 0, &Tuple::default())
            }
            Step::Group { members } => pack(16, 0, 0, members, 0, &Tuple::default()),
            Step::Sent {
                slot,
                tag,
                bytes,
                cut,
                real,
            } => {
                let flags = u8::from(cut) | u8::from(real) << 1;
                pack(17, flags, tag, slot, bytes, &Tuple::default())
            }
            Step::Replied { slot, bytes, real } => {
                pack(18, real.into(), 0, slot, bytes, &Tuple::default())
            }
            Step::Dropped { reason } => pack(19, reason, 0, 0, 0, &Tuple::default()),
        }
    }

    /// From words; any are a step.
    pub fn of(words: &[u64; STEP_WORDS]) -> Step {
        let [first, second, s1, s2, d1, d2, ports, _] = *words;
        let (kind, small, short) = (first as u8, (first >> 8) as u8, (first >> 16) as u16);
        let (slot, more) = (second as u32, (second >> 32) as u32);
        let tuple = Tuple {
            source: whole([s1, s2]),
            destination: whole([d1, d2]),
            source_port: ports as u16,
            destination_port: (ports >> 16) as u16,
            protocol: (ports >> 32) as u8,
        };
        match kind {
            1 => Step::Parsed,
            2 => Step::Guarded,
            3 => Step::Metered,
            4 => Step::Bridged { slot },
            5 => Step::Flooded,
            6 => Step::Routed { slot, tag: short },
            7 => Step::Resolving {
                address: tuple.destination,
            },
            8 => Step::Answered(small),
            9 => Step::Absorbed,
            10 => Step::Connection {
                state: small,
                back: short & 1 != 0,
                own: short & 2 != 0,
                rules: [slot, more],
            },
            11 => Step::Rule {
                egress: short != 0,
                slot,
                rule: more,
                action: small,
                tuple,
            },
            12 => Step::NoRules,
            13 => Step::Begins {
                tracked: small != 0,
            },
            14 => Step::Leaves(tuple),
            15 => Step::Entry {
                slot,
                tag: short,
                uplink: small != 0,
            },
            16 => Step::Group { members: slot },
            17 => Step::Sent {
                slot,
                tag: short,
                bytes: more,
                cut: small & 1 != 0,
                real: small & 2 != 0,
            },
            18 => Step::Replied {
                slot,
                bytes: more,
                real: small != 0,
            },
            19 => Step::Dropped { reason: small },
            _ => Step::Unknown,
        }
    }
}

fn pack(kind: u64, small: u8, short: u16, slot: u32, more: u32, tuple: &Tuple) -> [u64; 8] {
    let [s1, s2] = halves(tuple.source);
    let [d1, d2] = halves(tuple.destination);
    let ports = u64::from(tuple.source_port)
        | u64::from(tuple.destination_port) << 16
        | u64::from(tuple.protocol) << 32;
    [
        kind | u64::from(small) << 8 | u64::from(short) << 16,
        u64::from(slot) | u64::from(more) << 32,
        s1,
        s2,
        d1,
        d2,
        ports,
        0,
    ]
}

fn halves(address: [u8; 16]) -> [u64; 2] {
    let all = u128::from_be_bytes(address);
    [(all >> 64) as u64, all as u64]
}

fn whole([high, low]: [u64; 2]) -> [u8; 16] {
    (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
}

/// All of it: steps, and the frame that left, in room that never grows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    steps: [Step; MOST],
    count: usize,
    /// Steps that found no room.
    pub lost: u64,
    /// Slot and tag that the frame left by, and its length.
    left: Option<(u32, u16, usize)>,
    frame: [u8; LONGEST],
}

impl Default for Record {
    fn default() -> Record {
        Record {
            steps: [Step::Unknown; MOST],
            count: 0,
            lost: 0,
            left: None,
            frame: [0; LONGEST],
        }
    }
}

impl Record {
    /// Adds a step; one too many is counted.
    pub fn push(&mut self, step: Step) {
        match self.steps.get_mut(self.count) {
            Some(place) => {
                *place = step;
                self.count += 1;
            }
            None => self.lost += 1,
        }
    }

    /// The steps.
    pub fn steps(&self) -> &[Step] {
        self.steps.get(..self.count).unwrap_or(&[])
    }

    /// Where the frame left, and its bytes.
    pub fn left(&self) -> Option<(u32, u16, &[u8])> {
        let (slot, tag, length) = self.left?;
        Some((slot, tag, self.frame.get(..length)?))
    }

    /// Takes note of the frame that leaves: `length` bytes, which `copy` writes. Only the
    /// first is noted, and none that is too long.
    pub fn leaves(&mut self, slot: u32, tag: u16, length: usize, copy: impl FnOnce(&mut [u8])) {
        if self.left.is_none()
            && let Some(into) = self.frame.get_mut(..length)
        {
            copy(into);
            self.left = Some((slot, tag, length));
        }
    }

    /// Writes it as words, [`MAGIC`] not included, which is to be written last.
    pub fn write(&self, mut store: impl FnMut(usize, u64)) {
        store(COUNT_AT, self.count as u64);
        store(LOST_AT, self.lost);
        let (slot, tag, length) = self.left.unwrap_or_default();
        store(LEFT_AT, length as u64 | u64::from(slot) << 32);
        store(TAG_AT, tag.into());
        for (at, step) in self.steps().iter().enumerate() {
            for (word, value) in step.words().into_iter().enumerate() {
                store(STEPS_AT + at * STEP_WORDS + word, value);
            }
        }
        let (words, _) = self.frame.as_chunks::<8>();
        for (at, bytes) in words.iter().take(length.div_ceil(8)).enumerate() {
            store(FRAME_AT + at, u64::from_le_bytes(*bytes));
        }
    }

    /// From the words of a page; `None`: it is not written yet, or too short.
    pub fn read(words: &[u64]) -> Option<Record> {
        let header: &[u64; STEPS_AT] = words.first_chunk()?;
        if header[MAGIC_AT] != MAGIC || words.len() < WORDS {
            return None;
        }
        let mut record = Record::default();
        let count = usize::try_from(header[COUNT_AT]).unwrap_or(MOST).min(MOST);
        let (steps, _) = words.get(STEPS_AT..FRAME_AT)?.as_chunks::<STEP_WORDS>();
        for step in steps.iter().take(count) {
            record.push(Step::of(step));
        }
        record.lost = header[LOST_AT];
        let length = (header[LEFT_AT] as u32) as usize;
        if length != 0 && length <= LONGEST {
            let slot = (header[LEFT_AT] >> 32) as u32;
            record.leaves(slot, header[TAG_AT] as u16, length, |into| {
                for (bytes, word) in into.chunks_mut(8).zip(words.iter().skip(FRAME_AT)) {
                    let word = word.to_le_bytes();
                    bytes.copy_from_slice(word.get(..bytes.len()).unwrap_or(&[]));
                }
            });
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tuple() -> impl Strategy<Value = Tuple> {
        any::<([u8; 16], [u8; 16], u16, u16, u8)>().prop_map(
            |(source, destination, source_port, destination_port, protocol)| Tuple {
                source,
                destination,
                source_port,
                destination_port,
                protocol,
            },
        )
    }

    fn step() -> impl Strategy<Value = Step> {
        let numbers = any::<(u32, u16, u32, u8, bool, bool)>();
        (0..20usize, numbers, tuple()).prop_map(|(kind, numbers, tuple)| {
            let (slot, tag, bytes, small, one, two) = numbers;
            [
                Step::Unknown,
                Step::Parsed,
                Step::Guarded,
                Step::Metered,
                Step::Bridged { slot },
                Step::Flooded,
                Step::Routed { slot, tag },
                Step::Resolving {
                    address: tuple.destination,
                },
                Step::Answered(small),
                Step::Absorbed,
                Step::Connection {
                    state: small,
                    back: one,
                    own: two,
                    rules: [slot, bytes],
                },
                Step::Rule {
                    egress: one,
                    slot,
                    rule: bytes,
                    action: small,
                    tuple,
                },
                Step::NoRules,
                Step::Begins { tracked: one },
                Step::Leaves(tuple),
                Step::Entry {
                    slot,
                    tag,
                    uplink: one,
                },
                Step::Group { members: slot },
                Step::Sent {
                    slot,
                    tag,
                    bytes,
                    cut: one,
                    real: two,
                },
                Step::Replied {
                    slot,
                    bytes,
                    real: one,
                },
                Step::Dropped { reason: small },
            ][kind]
        })
    }

    proptest! {
        #[test]
        fn a_record_comes_back_from_its_page(
            steps in prop::collection::vec(step(), 0..40),
            left in prop::option::of((any::<u32>(), any::<u16>(), prop::collection::vec(any::<u8>(), 1..200))),
        ) {
            let mut record = Record::default();
            steps.iter().for_each(|step| record.push(*step));
            prop_assert_eq!(record.lost, steps.len().saturating_sub(MOST) as u64);
            if let Some((slot, tag, frame)) = &left {
                record.leaves(*slot, *tag, frame.len(), |into| into.copy_from_slice(frame));
                // The first alone.
                record.leaves(0, 0, 1, |into| into.fill(0));
            }
            let mut words = vec![0; WORDS];
            record.write(|at, value| words[at] = value);
            prop_assert_eq!(Record::read(&words), None);
            words[MAGIC_AT] = MAGIC;
            let back = Record::read(&words).unwrap();
            prop_assert_eq!(back.steps(), record.steps());
            let left = left.as_ref().map(|(slot, tag, frame)| (*slot, *tag, &frame[..]));
            prop_assert_eq!(back.left(), left);
            prop_assert_eq!(back, record);
        }

        #[test]
        fn any_words_are_read_without_harm(
            mut words in prop::collection::vec(any::<u64>(), 0..WORDS + 3), whole: bool,
        ) {
            if whole {
                words.resize(WORDS, u64::MAX);
            }
            if let Some(first) = words.first_mut() {
                *first = MAGIC;
            }
            let read = Record::read(&words);
            prop_assert_eq!(read.is_some(), words.len() >= WORDS);
            if let Some(record) = read {
                prop_assert!(record.steps().len() <= MOST);
            }
        }
    }

    #[test]
    fn a_frame_that_is_too_long_is_not_noted() {
        let mut record = Record::default();
        record.leaves(1, 0, LONGEST + 1, |_| unreachable!());
        assert_eq!(record.left(), None);
    }
}
