//! Rules as tables hold them: lists of boxes, the first that contains a packet decides.

use core::ops::RangeInclusive;

/// What a rule looks at: closed intervals of the five fields of a packet's tuple.
/// IPv4 addresses are in their ::ffff: form; an ICMP message's destination port is
/// `type << 8 | code`, its source port 0; protocols without ports have 0 in both.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// Source addresses.
    pub source: RangeInclusive<[u8; 16]>,
    /// Destination addresses.
    pub destination: RangeInclusive<[u8; 16]>,
    /// Source ports.
    pub source_port: RangeInclusive<u16>,
    /// Destination ports, or ICMP types and codes.
    pub destination_port: RangeInclusive<u16>,
    /// IP protocols.
    pub protocol: RangeInclusive<u8>,
}

impl Region {
    /// Every packet.
    pub const ALL: Region = Region {
        source: [0; 16]..=[0xff; 16],
        destination: [0; 16]..=[0xff; 16],
        source_port: 0..=u16::MAX,
        destination_port: 0..=u16::MAX,
        protocol: 0..=u8::MAX,
    };
}

/// What happens to a packet that a rule decides about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Action {
    /// It is dropped.
    Deny = 0,
    /// It passes, and what answers it passes too.
    Allow = 1,
    /// It passes; nothing follows from it.
    AllowStateless = 2,
}

/// One rule of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The packets that it decides about, unless an earlier rule does.
    pub region: Region,
    /// What happens to them.
    pub action: Action,
    /// Each first packet of a connection that it decides about is logged.
    pub log: bool,
    /// Host-wide number of the rule in the spec that this comes from; several boxes may
    /// come from one.
    pub id: u32,
}

/// The rules of one direction of an endpoint. The first whose region contains a packet
/// decides, `default` where none does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RuleTable {
    /// In the order of their precedence; at most [`MAX_RULES`].
    pub rules: Vec<Rule>,
    /// What happens to the rest.
    pub default: Action,
}

/// Boxes of one table, at most.
pub const MAX_RULES: usize = 10_240;
/// [`Rule::id`] where the default decided.
pub const DEFAULT_RULE: u32 = u32::MAX;
