//! What is wrong with images, for people and for the report.

use crate::way::Way;
use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
use serde::Serialize;
use spec::{Span, Spec};
use wire::Tuple;

macro_rules! classes {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// What kind of breach.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Class { $($(#[doc = $doc])+ $name,)+ }
        impl fmt::Display for Class {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Class::$name => $text,)+ })
            }
        }
    };
}
classes! {
    /// An image that cannot be read, or numbers that cannot.
    Unreadable = "unreadable",
    /// A compartment has no image, or one that nobody asked for.
    NoImage = "no image",
    /// The image is another compartment's.
    ImageSwapped = "image swapped",
    /// A tag that is not the agreement's or attachment's, or that two have.
    WrongTag = "wrong tag",
    /// A crossing of an agreement that has ended or never was, or none of a live one.
    StaleAgreement = "stale agreement",
    /// A crossing's ports, protocol or endpoint are not its service's.
    WrongService = "wrong service",
    /// A crossing's addresses or pool, or a block of ports, are not what was agreed.
    WrongTranslation = "wrong translation",
    /// A routed crossing's prefixes, or who may begin across it, are not what was agreed.
    WrongPrefix = "wrong prefix",
    /// An entry or template of the fabric joins what is not to be joined.
    FabricEntry = "fabric entry",
    /// Something passes that no rule allows.
    WiderRule = "wider rule",
    /// Something passes that a rule denies.
    MissingDeny = "missing deny",
    /// Something is dropped that is to pass.
    NarrowerRule = "narrower rule",
    /// What passes is tracked though it must not be, or the reverse.
    WrongState = "wrong state",
    /// The rules hold for IPv4, and not for IPv6.
    SixForgotten = "v6 forgotten",
    /// A guardrail does not hold.
    Guardrail = "guardrail",
    /// What `reach` asks for does not hold.
    Reach = "reach",
    /// An endpoint that must have rule tables has none, or the reverse.
    NoTables = "no tables",
    /// A tenant, subnet, endpoint or address that is not where the spec has it.
    WrongPlace = "wrong place",
    /// A route that leads elsewhere than the spec says.
    WrongRoute = "wrong route",
    /// A route that leads back to a switch.
    Loop = "loop",
    /// Not proved within its fuel.
    Fuel = "not proved within its fuel",
}

/// A packet that shows a breach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Packet {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// IP protocol.
    pub protocol: u8,
    /// Source port; 0 where there is none.
    pub source_port: u16,
    /// Destination port, or an ICMP message's type and code (`type << 8 | code`).
    pub destination_port: u16,
}

impl From<Tuple> for Packet {
    fn from(tuple: Tuple) -> Packet {
        Packet {
            source: plain(&tuple.source),
            destination: plain(&tuple.destination),
            protocol: tuple.protocol,
            source_port: tuple.source_port,
            destination_port: tuple.destination_port,
        }
    }
}

impl From<Packet> for Tuple {
    fn from(packet: Packet) -> Tuple {
        Tuple {
            source: spec::mapped(packet.source),
            destination: spec::mapped(packet.destination),
            source_port: packet.source_port,
            destination_port: packet.destination_port,
            protocol: packet.protocol,
        }
    }
}

/// An address as people write it.
pub(crate) fn plain(address: &[u8; 16]) -> IpAddr {
    Ipv6Addr::from(*address).to_canonical()
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Packet {
            source,
            destination,
            protocol,
            source_port,
            destination_port,
        } = self;
        let host = |a: &IpAddr| match a {
            IpAddr::V4(a) => a.to_string(),
            IpAddr::V6(a) => format!("[{a}]"),
        };
        match protocol {
            6 | 17 => write!(
                f,
                "{} {}:{source_port} to {}:{destination_port}",
                if *protocol == 6 { "tcp" } else { "udp" },
                host(source),
                host(destination)
            ),
            1 | 58 => {
                let [kind, code] = destination_port.to_be_bytes();
                let name = if *protocol == 1 { "icmp" } else { "icmp6" };
                write!(f, "{name} {kind}/{code} {source} to {destination}")
            }
            _ => write!(f, "protocol {protocol} {source} to {destination}"),
        }
    }
}

/// Something that is written in the spec, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Written {
    /// Its name.
    pub name: String,
    /// The file.
    pub file: String,
    /// The line there, from 1.
    pub line: u32,
}

impl Written {
    pub(crate) fn new(spec: &Spec, name: impl Into<String>, span: Span) -> Written {
        Written {
            name: name.into(),
            file: spec.source.name_at(span.start).to_owned(),
            line: spec.source.position(span.start).line,
        }
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}:{})", self.name, self.file, self.line)
    }
}

/// Begins a path that nobody can send anything on.
const NOBODY: &str = "nobody can send what shows it: ";

/// Why images may not be installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Breach {
    /// Its kind.
    pub class: Class,
    /// Whose switch or table: a fabric slot, 0 = the fabric's own.
    pub slot: u32,
    /// At which endpoint, `TENANT/ENDPOINT`.
    pub endpoint: Option<String>,
    /// A packet that shows it, where there is one.
    pub packet: Option<Packet>,
    /// Its way through what is wrong; `None`: nobody can send it, or there is none.
    pub way: Option<Way>,
    /// The way in words, or why nobody can send what shows it; empty where nothing is said.
    pub path: String,
    /// What the spec says about it, and where.
    pub rules: Vec<Written>,
    /// What is wrong, in a sentence.
    pub what: String,
}

impl Breach {
    /// One without more than this.
    pub fn new(class: Class, slot: u32, what: impl Into<String>) -> Breach {
        Breach {
            class,
            slot,
            endpoint: None,
            packet: None,
            way: None,
            path: String::new(),
            rules: Vec::new(),
            what: what.into(),
        }
    }
    pub(crate) fn at(mut self, endpoint: impl Into<String>) -> Breach {
        self.endpoint = Some(endpoint.into());
        self
    }
    /// Shown by this packet, which goes this way.
    pub(crate) fn shown(self, packet: Tuple, way: Way) -> Breach {
        Breach {
            packet: Some(packet.into()),
            ..self.goes(way)
        }
    }
    /// Shown by what goes this way.
    pub(crate) fn goes(self, way: Way) -> Breach {
        Breach {
            path: way.to_string(),
            way: Some(way),
            ..self
        }
    }
    /// Nobody can send what shows it, and why.
    pub(crate) fn nobody(self, why: impl fmt::Display) -> Breach {
        Breach {
            way: None,
            path: format!("{NOBODY}{why}"),
            ..self
        }
    }
    /// By this packet and way, or nobody can send one, and why.
    pub(crate) fn shown_or(self, shown: Result<(Tuple, Way), String>) -> Breach {
        match shown {
            Ok((packet, way)) => self.shown(packet, way),
            Err(why) => self.nobody(why),
        }
    }
    /// Whether it is said that nobody can send what shows it.
    pub fn is_nobodys(&self) -> bool {
        self.path.starts_with(NOBODY)
    }
    pub(crate) fn by(mut self, rules: impl IntoIterator<Item = Written>) -> Breach {
        self.rules.extend(rules);
        self
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.class)?;
        match (self.slot, &self.endpoint) {
            (0, None) => f.write_str("the fabric: ")?,
            (slot, None) => write!(f, "the switch in slot {slot}: ")?,
            (slot, Some(endpoint)) => write!(f, "{endpoint} (the switch in slot {slot}): ")?,
        }
        f.write_str(&self.what)?;
        if let Some(packet) = &self.packet {
            write!(f, "; for example {packet}")?;
        }
        match (&self.packet, self.path.as_str()) {
            (_, "") => {}
            (Some(_), path) if self.way.is_some() => write!(f, ", which goes {path}")?,
            (None, path) if self.way.is_some() => write!(f, "; what shows it goes {path}")?,
            (_, path) => write!(f, "; {path}")?,
        }
        for (at, rule) in self.rules.iter().enumerate() {
            let word = if at == 0 { "; the spec: " } else { ", " };
            write!(f, "{word}{rule}")?;
        }
        Ok(())
    }
}
