//! Rules as tables hold them: lists of boxes, the first that contains a packet decides.

use core::ops::RangeInclusive;
use wire::Tuple;

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

    /// Whether a packet is in it.
    pub fn contains(&self, tuple: &Tuple) -> bool {
        // What decides most often and costs least comes first.
        self.destination_port.contains(&tuple.destination_port)
            && self.protocol.contains(&tuple.protocol)
            && self.source_port.contains(&tuple.source_port)
            && self.source.contains(&tuple.source)
            && self.destination.contains(&tuple.destination)
    }

    /// Whether no packet is in it.
    pub fn is_empty(&self) -> bool {
        self.source.is_empty()
            || self.destination.is_empty()
            || self.source_port.is_empty()
            || self.destination_port.is_empty()
            || self.protocol.is_empty()
    }
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

impl Action {
    /// By its number; what is none is a refusal, though mapping lets none through.
    #[inline]
    pub(crate) const fn from_number(number: u16) -> Action {
        match number {
            1 => Action::Allow,
            2 => Action::AllowStateless,
            _ => Action::Deny,
        }
    }
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

impl RuleTable {
    /// What a table means, one rule after another. Packets are judged by the image's
    /// own structures ([`crate::CompartmentImage::judge`]), which must say the same.
    pub fn judge(&self, tuple: &Tuple) -> Verdict {
        let decides = |(_, rule): &(u32, &Rule)| rule.region.contains(tuple);
        match (0..).zip(&self.rules).find(decides) {
            Some((place, rule)) => Verdict {
                action: rule.action,
                log: rule.log,
                rule: rule.id,
                place,
            },
            None => Verdict::by_default(self.default),
        }
    }
}

/// What a table says about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Verdict {
    /// What happens to it.
    pub action: Action,
    /// It is logged, if it is the first of a connection.
    pub log: bool,
    /// [`Rule::id`] of the rule that decided, or [`DEFAULT_RULE`].
    pub rule: u32,
    /// That rule's position in the table, or [`NONE`](crate::compartment::NONE).
    pub place: u32,
}

impl Verdict {
    /// Where no rule decided.
    pub(crate) const fn by_default(action: Action) -> Verdict {
        Verdict {
            action,
            log: false,
            rule: DEFAULT_RULE,
            place: crate::compartment::NONE,
        }
    }
}

/// Boxes of one table, at most.
pub const MAX_RULES: usize = 10_240;
/// [`Rule::id`] where the default decided.
pub const DEFAULT_RULE: u32 = u32::MAX;
