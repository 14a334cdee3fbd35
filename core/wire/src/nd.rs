//! IPv6 neighbour discovery (RFC 4861) with the options of RFC 8106.
//!
//! Reading takes a whole ICMPv6 message; what is said in it is an allegation
//! until a guard has compared it with its sender. Writing leaves the checksum
//! zero: [`crate::build::icmpv6`] fills it.

use crate::address::{Address, MacAddress, is_multicast};
use crate::field::{self, Writer};
use crate::{Malformed, NoRoom};

/// Type: router solicitation.
pub const ROUTER_SOLICIT: u8 = 133;
/// Type: router advertisement.
pub const ROUTER_ADVERT: u8 = 134;
/// Type: neighbour solicitation.
pub const NEIGHBOUR_SOLICIT: u8 = 135;
/// Type: neighbour advertisement.
pub const NEIGHBOUR_ADVERT: u8 = 136;
/// Type: redirect.
pub const REDIRECT: u8 = 137;

/// The hop limit every message must have, so that it cannot come from afar
/// (RFC 4861, section 11.2).
pub const HOP_LIMIT: u8 = 255;

/// Options read from one message at most. A message is at most a frame long and
/// an option at least eight bytes; real ones carry five or fewer.
pub const MAX_OPTIONS: usize = 16;

const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;
const PREFIX: u8 = 3;
const MTU: u8 = 5;
const RDNSS: u8 = 25;

/// Whether an ICMPv6 type is neighbour discovery.
pub const fn is_nd(kind: u8) -> bool {
    matches!(kind, ROUTER_SOLICIT..=REDIRECT)
}

/// A prefix option (RFC 4861, section 4.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The prefix; bits past its length are zero when we write it.
    pub prefix: Address,
    /// Its length, 0 to 128.
    pub length: u8,
    /// Hosts reach it without a router.
    pub on_link: bool,
    /// Hosts make addresses from it.
    pub autonomous: bool,
    /// Valid lifetime, seconds.
    pub valid_s: u32,
    /// Preferred lifetime, seconds.
    pub preferred_s: u32,
}

/// What the options of a message say; those that are not known are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Source link-layer address.
    pub source_link: Option<MacAddress>,
    /// Target link-layer address.
    pub target_link: Option<MacAddress>,
    /// MTU of the link.
    pub mtu: Option<u32>,
    /// The first prefix.
    pub prefix: Option<Prefix>,
    /// The first recursive DNS server and its lifetime in seconds.
    pub dns: Option<(Address, u32)>,
}

/// A message as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Who routes here?
    RouterSolicit {
        /// Options.
        options: Options,
    },
    /// The sender routes here.
    RouterAdvert(RouterAdvert),
    /// Who has the target?
    NeighbourSolicit {
        /// The address asked for; never multicast.
        target: Address,
        /// Options.
        options: Options,
    },
    /// The sender has the target.
    NeighbourAdvert(NeighbourAdvert),
    /// There is a better first hop.
    Redirect {
        /// The better first hop.
        target: Address,
        /// For whom.
        destination: Address,
        /// Options.
        options: Options,
    },
}

impl Message {
    /// Reads a whole ICMPv6 message of one of the five types. Its checksum is
    /// not looked at ([`crate::checksum::verifies`] does). Code other than 0,
    /// an option of length 0 or past the end, or more than [`MAX_OPTIONS`]
    /// options are malformed (RFC 4861, sections 6.1 and 7.1), and so is a
    /// second link-layer address option of the same kind, which readers would
    /// disagree about.
    ///
    /// # Errors
    /// [`Malformed`]: the bytes are not such a message, which is their sender's fault.
    pub fn parse(message: &[u8]) -> Result<Message, Malformed> {
        let [kind, code] = field::array(message, 0).ok_or(Malformed::Truncated)?;
        if code != 0 {
            return Err(Malformed::Field);
        }
        let fixed = match kind {
            ROUTER_SOLICIT => 8,
            ROUTER_ADVERT => 16,
            NEIGHBOUR_SOLICIT | NEIGHBOUR_ADVERT => 24,
            REDIRECT => 40,
            _ => return Err(Malformed::Field),
        };
        let options = Options::parse(message.get(fixed..).ok_or(Malformed::Truncated)?)?;
        let message = Message::read(message, kind, options).ok_or(Malformed::Truncated)?;
        match message {
            Message::NeighbourSolicit { target, .. }
            | Message::NeighbourAdvert(NeighbourAdvert { target, .. })
            | Message::Redirect { target, .. }
                if is_multicast(&target) =>
            {
                Err(Malformed::Field)
            }
            message => Ok(message),
        }
    }

    fn read(message: &[u8], kind: u8, options: Options) -> Option<Message> {
        Some(match kind {
            ROUTER_SOLICIT => Message::RouterSolicit { options },
            ROUTER_ADVERT => {
                let flags = field::byte(message, 5)?;
                Message::RouterAdvert(RouterAdvert {
                    hop_limit: field::byte(message, 4)?,
                    managed: flags & 0x80 != 0,
                    other: flags & 0x40 != 0,
                    lifetime_s: field::word(message, 6)?,
                    reachable_ms: field::long(message, 8)?,
                    retransmit_ms: field::long(message, 12)?,
                    options,
                })
            }
            NEIGHBOUR_SOLICIT => Message::NeighbourSolicit {
                target: field::array(message, 8)?,
                options,
            },
            NEIGHBOUR_ADVERT => {
                let flags = field::byte(message, 4)?;
                Message::NeighbourAdvert(NeighbourAdvert {
                    router: flags & 0x80 != 0,
                    solicited: flags & 0x40 != 0,
                    overrides: flags & 0x20 != 0,
                    target: field::array(message, 8)?,
                    target_link: options.target_link,
                })
            }
            _ => Message::Redirect {
                target: field::array(message, 8)?,
                destination: field::array(message, 24)?,
                options,
            },
        })
    }
}

impl Options {
    fn parse(mut bytes: &[u8]) -> Result<Options, Malformed> {
        let mut options = Options::default();
        // Bound: MAX_OPTIONS turns.
        for _ in 0..MAX_OPTIONS {
            let Some(kind) = bytes.first().copied() else {
                return Ok(options);
            };
            let length = usize::from(field::byte(bytes, 1).ok_or(Malformed::Truncated)?) * 8;
            if length == 0 {
                return Err(Malformed::Length);
            }
            let (option, rest) = bytes.split_at_checked(length).ok_or(Malformed::Length)?;
            options.note(kind, option)?;
            bytes = rest;
        }
        if bytes.is_empty() {
            Ok(options)
        } else {
            Err(Malformed::Length)
        }
    }

    fn note(&mut self, kind: u8, option: &[u8]) -> Result<(), Malformed> {
        match kind {
            SOURCE_LINK => once(&mut self.source_link, mac(option)?),
            TARGET_LINK => once(&mut self.target_link, mac(option)?),
            MTU => once(
                &mut self.mtu,
                field::long(option, 4).ok_or(Malformed::Length)?,
            ),
            PREFIX => {
                let prefix = read_prefix(option).ok_or(Malformed::Length)?;
                if option.len() != 32 || prefix.length > 128 {
                    return Err(Malformed::Field);
                }
                self.prefix.get_or_insert(prefix);
                Ok(())
            }
            RDNSS => {
                let server = field::array(option, 8).ok_or(Malformed::Length)?;
                let lifetime = field::long(option, 4).ok_or(Malformed::Length)?;
                self.dns.get_or_insert((server, lifetime));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn emit(&self, w: &mut Writer<'_>) {
        if let Some(mac) = self.source_link {
            w.bytes(&[SOURCE_LINK, 1]).bytes(&mac.0);
        }
        if let Some(mac) = self.target_link {
            w.bytes(&[TARGET_LINK, 1]).bytes(&mac.0);
        }
        if let Some(mtu) = self.mtu {
            w.bytes(&[MTU, 1, 0, 0]).u32(mtu);
        }
        if let Some(prefix) = self.prefix {
            let flags = u8::from(prefix.on_link) << 7 | u8::from(prefix.autonomous) << 6;
            w.bytes(&[PREFIX, 4, prefix.length, flags])
                .u32(prefix.valid_s)
                .u32(prefix.preferred_s)
                .u32(0)
                .bytes(&prefix.prefix);
        }
        if let Some((server, lifetime)) = self.dns {
            w.bytes(&[RDNSS, 3, 0, 0]).u32(lifetime).bytes(&server);
        }
    }
}

fn mac(option: &[u8]) -> Result<MacAddress, Malformed> {
    if option.len() != 8 {
        return Err(Malformed::Length);
    }
    field::array(option, 2)
        .map(MacAddress)
        .ok_or(Malformed::Length)
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<(), Malformed> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Malformed::Field),
    }
}

fn read_prefix(option: &[u8]) -> Option<Prefix> {
    let flags = field::byte(option, 3)?;
    Some(Prefix {
        length: field::byte(option, 2)?,
        on_link: flags & 0x80 != 0,
        autonomous: flags & 0x40 != 0,
        valid_s: field::long(option, 4)?,
        preferred_s: field::long(option, 8)?,
        prefix: field::array(option, 16)?,
    })
}

/// A neighbour solicitation to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourSolicit {
    /// The address asked for.
    pub target: Address,
    /// The asker's MAC; absent in duplicate address detection.
    pub source_link: Option<MacAddress>,
}

impl NeighbourSolicit {
    /// Writes it with a zero checksum; returns its length.
    ///
    /// # Errors
    /// [`NoRoom`]: the caller's buffer is too short, which is our fault.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let mut w = Writer::new(buffer);
        w.bytes(&[NEIGHBOUR_SOLICIT, 0, 0, 0, 0, 0, 0, 0])
            .bytes(&self.target);
        Options {
            source_link: self.source_link,
            ..Options::default()
        }
        .emit(&mut w);
        w.finish()
    }
}

/// A neighbour advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourAdvert {
    /// The sender is a router.
    pub router: bool,
    /// It answers a solicitation.
    pub solicited: bool,
    /// It replaces what is cached.
    pub overrides: bool,
    /// The address it is about.
    pub target: Address,
    /// Who has it.
    pub target_link: Option<MacAddress>,
}

impl NeighbourAdvert {
    /// Writes it with a zero checksum; returns its length.
    ///
    /// # Errors
    /// [`NoRoom`]: the caller's buffer is too short, which is our fault.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let flags = u8::from(self.router) << 7
            | u8::from(self.solicited) << 6
            | u8::from(self.overrides) << 5;
        let mut w = Writer::new(buffer);
        w.bytes(&[NEIGHBOUR_ADVERT, 0, 0, 0, flags, 0, 0, 0])
            .bytes(&self.target);
        Options {
            target_link: self.target_link,
            ..Options::default()
        }
        .emit(&mut w);
        w.finish()
    }
}

/// A router solicitation to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterSolicit {
    /// The asker's MAC.
    pub source_link: Option<MacAddress>,
}

impl RouterSolicit {
    /// Writes it with a zero checksum; returns its length.
    ///
    /// # Errors
    /// [`NoRoom`]: the caller's buffer is too short, which is our fault.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let mut w = Writer::new(buffer);
        w.bytes(&[ROUTER_SOLICIT, 0, 0, 0, 0, 0, 0, 0]);
        Options {
            source_link: self.source_link,
            ..Options::default()
        }
        .emit(&mut w);
        w.finish()
    }
}

/// A router advertisement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterAdvert {
    /// Hop limit for hosts to use; 0 = not said.
    pub hop_limit: u8,
    /// Addresses come by DHCPv6.
    pub managed: bool,
    /// Other configuration comes by DHCPv6.
    pub other: bool,
    /// How long the sender is a default router, seconds; 0 = it is none.
    pub lifetime_s: u16,
    /// Reachable time, milliseconds; 0 = not said.
    pub reachable_ms: u32,
    /// Retransmission time, milliseconds; 0 = not said.
    pub retransmit_ms: u32,
    /// Options.
    pub options: Options,
}

impl RouterAdvert {
    /// Writes it with a zero checksum; returns its length.
    ///
    /// # Errors
    /// [`NoRoom`]: the caller's buffer is too short, which is our fault.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let flags = u8::from(self.managed) << 7 | u8::from(self.other) << 6;
        let mut w = Writer::new(buffer);
        w.bytes(&[ROUTER_ADVERT, 0, 0, 0, self.hop_limit, flags])
            .u16(self.lifetime_s)
            .u32(self.reachable_ms)
            .u32(self.retransmit_ms);
        self.options.emit(&mut w);
        w.finish()
    }
}
