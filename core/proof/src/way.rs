//! The way of a packet that shows a breach: where it comes in, and where it is then.

use core::fmt;
use core::net::IpAddr;
use serde::Serialize;

/// A place on a packet's way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// At a port of the switch in a slot.
    Port {
        /// The switch's slot at the fabric.
        slot: u32,
        /// The port's number at the switch.
        port: u32,
        /// Who is plugged in there by the spec, `TENANT/ENDPOINT`.
        who: Option<String>,
    },
    /// On the channel between the switch in a slot and the fabric, with this tag.
    Channel {
        /// The switch's slot at the fabric.
        slot: u32,
        /// The tag.
        tag: u16,
    },
    /// On an uplink.
    Uplink {
        /// Its slot at the fabric.
        slot: u32,
    },
    /// Nowhere.
    Dropped {
        /// By the switch in this slot, 0 = by the fabric.
        slot: u32,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Port { slot, port, who } => match who {
                Some(who) => write!(f, "{who} (port {port} of the switch in slot {slot})"),
                None => write!(f, "port {port} of the switch in slot {slot}"),
            },
            Place::Channel { slot, tag } => {
                write!(f, "the channel of slot {slot} with tag {tag}")
            }
            Place::Uplink { slot } => write!(f, "the uplink in slot {slot}"),
            Place::Dropped { slot: 0 } => f.write_str("nobody: the fabric drops it"),
            Place::Dropped { slot } => {
                write!(f, "nobody: the switch in slot {slot} drops it")
            }
        }
    }
}

/// As what a packet comes out that is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Becomes {
    /// Its source is one of these.
    pub source: (IpAddr, IpAddr),
    /// And its source port one of these.
    pub source_port: (u16, u16),
    /// Its destination.
    pub destination: IpAddr,
}

/// A packet's way through what is wrong: one switch, or the fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Way {
    /// Where it comes in.
    pub from: Place,
    /// Where it comes out.
    pub to: Place,
    /// By what, in words; empty where the places say it.
    pub by: String,
    /// As what, where it is translated.
    pub becomes: Option<Becomes>,
    /// The slot of the switch that it comes back to, where whoever gets it has no other way.
    pub back: Option<u32>,
    /// The frame's first 64 bytes, where the fabric goes by them; else none.
    pub frame: Vec<u8>,
}

impl Way {
    pub(crate) fn new(from: Place, to: Place) -> Way {
        Way {
            from,
            to,
            by: String::new(),
            becomes: None,
            back: None,
            frame: Vec::new(),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {} to {}", self.from, self.to)?;
        if !self.by.is_empty() {
            write!(f, " by {}", self.by)?;
        }
        if let Some(Becomes {
            source: (first, last),
            source_port,
            destination,
        }) = &self.becomes
        {
            write!(f, ", where its source is {first}")?;
            if first != last {
                write!(f, " to {last}")?;
            }
            if *source_port != (0, u16::MAX) {
                write!(f, ", port {} to {}", source_port.0, source_port.1)?;
            }
            write!(f, ", and its destination {destination}")?;
        }
        if let Some(slot) = self.back {
            write!(
                f,
                ", from where there is no other way than back to the switch in slot {slot}"
            )?;
        }
        if !self.frame.is_empty() {
            f.write_str(", as a frame that begins ")?;
            self.frame
                .iter()
                .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        Ok(())
    }
}
