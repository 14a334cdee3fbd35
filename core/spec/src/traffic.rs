//! What rules say about packets: protocols, ports, ICMP messages; and until when.

use core::fmt;
use core::str::FromStr;
use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use crate::decode::{Decode, Findings, Scalar, nearest, scalar};
use crate::tree::Node;

/// An IP protocol, or any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Every one.
    Any,
    /// The one with this number.
    Number(u8),
}

const PROTOCOLS: &[(&str, u8)] = &[
    ("tcp", 6),
    ("udp", 17),
    ("icmp", 1),
    ("icmp6", 58),
    ("sctp", 132),
];

impl Protocol {
    /// TCP (RFC 9293).
    pub const TCP: Protocol = Protocol::Number(6);
    /// UDP (RFC 768).
    pub const UDP: Protocol = Protocol::Number(17);
    /// ICMP of IPv4 (RFC 792).
    pub const ICMP: Protocol = Protocol::Number(1);
    /// ICMP of IPv6 (RFC 4443).
    pub const ICMP6: Protocol = Protocol::Number(58);
    /// SCTP (RFC 9260).
    pub const SCTP: Protocol = Protocol::Number(132);

    /// Whether its packets have ports.
    pub fn has_ports(self) -> bool {
        [Protocol::TCP, Protocol::UDP].contains(&self)
    }
    /// Whether it is ICMP of one family or the other.
    pub fn is_icmp(self) -> bool {
        [Protocol::ICMP, Protocol::ICMP6].contains(&self)
    }
}
impl FromStr for Protocol {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "any" {
            return Ok(Protocol::Any);
        }
        if let Some((_, number)) = PROTOCOLS.iter().find(|(name, _)| *name == text) {
            return Ok(Protocol::Number(*number));
        }
        if text.bytes().all(|b| b.is_ascii_digit())
            && let Ok(number) = text.parse()
        {
            return Ok(Protocol::Number(number));
        }
        let known: Vec<&str> = PROTOCOLS.iter().map(|(name, _)| *name).collect();
        Err(match nearest(text, &known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("it is any, {} or a number of 0 to 255", known.join(", ")),
        })
    }
}
impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Protocol::Any => f.write_str("any"),
            Protocol::Number(n) => match PROTOCOLS.iter().find(|(_, number)| number == n) {
                Some((name, _)) => f.write_str(name),
                None => n.fmt(f),
            },
        }
    }
}

/// Ports from the first to the last, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

impl FromStr for PortRange {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            text.parse::<u16>()
                .ok()
                .filter(|_| digits)
                .ok_or_else(|| format!("`{text}` is not a number of 0 to 65535"))
        };
        let (first, last) = (port(first.trim())?, port(last.trim())?);
        if first > last {
            return Err("its first port is above its last".into());
        }
        Ok(PortRange { first, last })
    }
}
impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => self.first.fmt(f),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

/// A kind of ICMP message: by name, by type, or by type and code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum IcmpMessage {
    /// By a name that one of the families knows.
    Named(String),
    /// By numbers.
    Number {
        /// Its type.
        kind: u8,
        /// Its code; `None` = any.
        code: Option<u8>,
    },
}

/// Names of ICMP's messages (IANA, ICMP Type Numbers; RFC 792, RFC 1812).
const NAMES4: &[(&str, u8, Option<u8>)] = &[
    ("echo-reply", 0, None),
    ("destination-unreachable", 3, None),
    ("network-unreachable", 3, Some(0)),
    ("host-unreachable", 3, Some(1)),
    ("port-unreachable", 3, Some(3)),
    ("fragmentation-needed", 3, Some(4)),
    ("administratively-prohibited", 3, Some(13)),
    ("redirect", 5, None),
    ("echo-request", 8, None),
    ("router-advertisement", 9, None),
    ("router-solicitation", 10, None),
    ("time-exceeded", 11, None),
    ("parameter-problem", 12, None),
    ("timestamp-request", 13, None),
    ("timestamp-reply", 14, None),
];
/// Names of ICMPv6's messages (IANA, ICMPv6 "type" Numbers; RFC 4443, RFC 4861).
const NAMES6: &[(&str, u8, Option<u8>)] = &[
    ("destination-unreachable", 1, None),
    ("no-route", 1, Some(0)),
    ("administratively-prohibited", 1, Some(1)),
    ("address-unreachable", 1, Some(3)),
    ("port-unreachable", 1, Some(4)),
    ("packet-too-big", 2, None),
    ("time-exceeded", 3, None),
    ("parameter-problem", 4, None),
    ("echo-request", 128, None),
    ("echo-reply", 129, None),
    ("router-solicitation", 133, None),
    ("router-advertisement", 134, None),
    ("neighbour-solicitation", 135, None),
    ("neighbour-advertisement", 136, None),
    ("redirect", 137, None),
];

impl IcmpMessage {
    /// Its type and code (`None` = any) in ICMPv6 or ICMP; `None` = that family has no
    /// message of this name.
    pub fn numbers(&self, v6: bool) -> Option<(u8, Option<u8>)> {
        match self {
            IcmpMessage::Number { kind, code } => Some((*kind, *code)),
            IcmpMessage::Named(name) => IcmpMessage::table(v6)
                .iter()
                .find(|(known, ..)| known == name)
                .map(|(_, kind, code)| (*kind, *code)),
        }
    }
    /// The names that a family knows.
    pub(crate) fn names(v6: bool) -> Vec<&'static str> {
        IcmpMessage::table(v6).iter().map(|(n, ..)| *n).collect()
    }
    fn table(v6: bool) -> &'static [(&'static str, u8, Option<u8>)] {
        if v6 { NAMES6 } else { NAMES4 }
    }
}
impl FromStr for IcmpMessage {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let digits = text.bytes().all(|b| b.is_ascii_digit());
            text.parse::<u8>()
                .ok()
                .filter(|_| digits)
                .ok_or_else(|| format!("`{text}` is not a number of 0 to 255"))
        };
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(match text.split_once('/') {
                None => IcmpMessage::Number {
                    kind: number(text)?,
                    code: None,
                },
                Some((kind, code)) => IcmpMessage::Number {
                    kind: number(kind)?,
                    code: Some(number(code)?),
                },
            });
        }
        let mut known = IcmpMessage::names(false);
        known.extend(IcmpMessage::names(true));
        if known.contains(&text) {
            return Ok(IcmpMessage::Named(text.to_owned()));
        }
        Err(match nearest(text, &known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "it is a name, a type, or a type and a code as 3/4".into(),
        })
    }
}
impl fmt::Display for IcmpMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IcmpMessage::Named(name) => f.write_str(name),
            IcmpMessage::Number { kind, code: None } => kind.fmt(f),
            IcmpMessage::Number {
                kind,
                code: Some(code),
            } => write!(f, "{kind}/{code}"),
        }
    }
}

/// A moment in UTC, in seconds since 1970: a date means the moment that it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Until(pub u64);

const DAY: u64 = 86_400;

impl FromStr for Until {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (date, time) = match text.split_once(['T', ' ']) {
            None => (text, None),
            Some((date, time)) => (
                date,
                Some(
                    time.strip_suffix('Z')
                        .ok_or("a time ends in `Z`: it is in UTC")?,
                ),
            ),
        };
        let number = |text: Option<&str>, digits: usize| {
            text.filter(|t| t.len() == digits && t.bytes().all(|b| b.is_ascii_digit()))
                .and_then(|t| t.parse::<u64>().ok())
        };
        let mut parts = date.split('-');
        let (Some(year), Some(month), Some(day), None) = (
            number(parts.next(), 4),
            number(parts.next(), 2),
            number(parts.next(), 2),
            parts.next(),
        ) else {
            return Err("a date is written YYYY-MM-DD".into());
        };
        let days = days_before(year, month)
            .filter(|_| day >= 1 && day <= days_in(year, month))
            .ok_or("there is no such day from 1970 on")?
            + day
            - 1;
        let seconds = match time {
            None => 0,
            Some(time) => {
                let mut parts = time.split(':');
                let (hour, minute) = (number(parts.next(), 2), number(parts.next(), 2));
                let second = match parts.next() {
                    None => Some(0),
                    some => number(some, 2),
                };
                match (hour, minute, second, parts.next()) {
                    (Some(h @ 0..24), Some(m @ 0..60), Some(s @ 0..60), None) => {
                        h * 3600 + m * 60 + s
                    }
                    _ => return Err("a time is written HH:MM:SSZ or HH:MMZ".into()),
                }
            }
        };
        Ok(Until(days * DAY + seconds))
    }
}

/// Days in a month; 0 = there is no such month.
fn days_in(year: u64, month: u64) -> u64 {
    let leap = year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    match month {
        2 => 28 + u64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    }
}

/// Days from the beginning of 1970 to that of a month. Bound: 8,029 years of 12 months.
fn days_before(year: u64, month: u64) -> Option<u64> {
    if year < 1970 || !(1..=12).contains(&month) {
        return None;
    }
    let years = (1970..year).map(|y| 337 + days_in(y, 2)).sum::<u64>();
    Some(years + (1..month).map(|m| days_in(year, m)).sum::<u64>())
}

impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut days, seconds) = (self.0 / DAY, self.0 % DAY);
        let mut year = 1970;
        while days >= 337 + days_in(year, 2) {
            days -= 337 + days_in(year, 2);
            year += 1;
        }
        let mut month = 1;
        while days >= days_in(year, month) {
            days -= days_in(year, month);
            month += 1;
        }
        write!(f, "{year:04}-{month:02}-{:02}", days + 1)?;
        if seconds != 0 {
            let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
            write!(f, "T{h:02}:{m:02}:{s:02}Z")?;
        }
        Ok(())
    }
}

macro_rules! texts {
    ($($type:ident: $what:literal, $example:literal, $kind:tt, $pattern:literal;)*) => {$(
        impl Scalar for $type {
            const WHAT: &'static str = $what;
            const EXAMPLE: &'static str = $example;
        }
        impl Decode for $type {
            fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
                scalar(node, findings)
            }
        }
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": $kind, "description": $what, "pattern": $pattern, "examples": [$example] })
            }
        }
    )*};
}
texts! {
    Protocol: "a protocol", "tcp", ["string", "integer"], "^(any|tcp|udp|icmp|icmp6|sctp|[0-9]{1,3})$";
    PortRange: "a port or a range of ports", "8000-8999", ["string", "integer"], "^[0-9]{1,5}( ?- ?[0-9]{1,5})?$";
    IcmpMessage: "a kind of ICMP message", "echo-request", ["string", "integer"], "^([a-z-]+|[0-9]{1,3}(/[0-9]{1,3})?)$";
    Until: "a day or a time in UTC", "2027-01-31", "string", "^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2})?Z)?$";
}
