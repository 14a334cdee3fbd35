//! DHCP for IPv4 (RFC 2131, RFC 2132), the server's side of it: a client's
//! message is read strictly, an offer, acknowledgement or refusal is written.

use guard::guard;

use crate::NoRoom;
use crate::address::MacAddress;
use crate::field::{self, Writer};

/// UDP port of servers.
pub const SERVER_PORT: u16 = 67;
/// UDP port of clients.
pub const CLIENT_PORT: u16 = 68;
/// Bytes before the options: the fixed fields and the magic cookie.
pub const FIXED: usize = 240;
/// The longest message read: what a client can put in an unfragmented packet.
pub const MAX_MESSAGE: usize = 1472;
/// The shortest message sent; some clients want BOOTP's 300 bytes.
pub const MIN_REPLY: usize = 300;

const COOKIE: [u8; 4] = [99, 130, 83, 99];
const SNAME: (usize, usize) = (44, 108);
const FILE: (usize, usize) = (108, 236);

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any address.
    Discover,
    /// This address.
    Request,
    /// The address is taken.
    Decline,
    /// The address is no longer needed.
    Release,
    /// Configuration without an address.
    Inform,
}

/// A client's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientMessage<'a> {
    /// What it wants.
    pub kind: Kind,
    /// Transaction id.
    pub xid: u32,
    /// It cannot receive unicast yet.
    pub broadcast: bool,
    /// The address it has and answers ARP for; zero = none.
    pub client_address: [u8; 4],
    /// Its MAC, as it says.
    pub client_mac: MacAddress,
    /// Option 50: the address it asks for.
    pub requested: Option<[u8; 4]>,
    /// Option 54: the server it speaks to.
    pub server: Option<[u8; 4]>,
    /// Option 55: the options it wants.
    pub parameters: &'a [u8],
    /// Option 57: the longest message it takes, bytes of IP packet.
    pub max_size: Option<u16>,
    /// Option 61: its identifier.
    pub client_id: Option<&'a [u8]>,
    /// Option 12: its name, as it says.
    pub host_name: Option<&'a [u8]>,
}

/// Why a message is not a well-formed client's: its sender's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DhcpError {
    /// Shorter than its fixed fields, or longer than [`MAX_MESSAGE`].
    Length,
    /// Not a request from an Ethernet client with the magic cookie.
    Fixed,
    /// It says it came through a relay, or carries a relay's option 82.
    Relayed,
    /// An option runs past its field, or has a length its kind may not have.
    Option,
    /// An option that may occur once occurs twice.
    Duplicate,
    /// No message type, or not a client's.
    Kind,
    /// No end option.
    End,
}

impl core::fmt::Display for DhcpError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            DhcpError::Length => "a DHCP message of impossible length",
            DhcpError::Fixed => "not an Ethernet client's DHCP request",
            DhcpError::Relayed => "a client's message that claims a relay",
            DhcpError::Option => "a DHCP option with a wrong length",
            DhcpError::Duplicate => "a DHCP option twice",
            DhcpError::Kind => "a DHCP message type that is not a client's",
            DhcpError::End => "DHCP options without an end",
        })
    }
}

impl core::error::Error for DhcpError {}

/// Reads a client's message: the whole UDP payload.
///
/// # Errors
/// [`DhcpError`]: it is no client's message, which is its sender's fault.
pub fn parse(message: &[u8]) -> Result<ClientMessage<'_>, DhcpError> {
    if message.len() < FIXED || message.len() > MAX_MESSAGE {
        return Err(DhcpError::Length);
    }
    let [operation, hardware, address_len, hops] =
        field::array(message, 0).ok_or(DhcpError::Length)?;
    if (operation, hardware, address_len) != (1, 1, 6) || field::array(message, 236) != Some(COOKIE)
    {
        return Err(DhcpError::Fixed);
    }
    let relay = field::long(message, 24).ok_or(DhcpError::Length)?;
    if guard!("dhcp-relay") && (hops != 0 || relay != 0) {
        return Err(DhcpError::Relayed);
    }
    let mut found = Found::default();
    let overload = found.walk(message.get(FIXED..).ok_or(DhcpError::Length)?)?;
    // RFC 2132, section 9.3: the overloaded fields are read file first. They may
    // not overload again: their own option 52 counts as a duplicate.
    for (bit, (from, to)) in [(1, FILE), (2, SNAME)] {
        if overload & bit != 0 {
            found.walk(message.get(from..to).ok_or(DhcpError::Length)?)?;
        }
    }
    Ok(ClientMessage {
        kind: found.kind.ok_or(DhcpError::Kind)?,
        xid: field::long(message, 4).ok_or(DhcpError::Length)?,
        broadcast: field::byte(message, 10).ok_or(DhcpError::Length)? & 0x80 != 0,
        client_address: field::array(message, 12).ok_or(DhcpError::Length)?,
        client_mac: MacAddress(field::array(message, 28).ok_or(DhcpError::Length)?),
        requested: found.requested,
        server: found.server,
        parameters: found.parameters.unwrap_or(&[]),
        max_size: found.max_size,
        client_id: found.client_id,
        host_name: found.host_name,
    })
}

#[derive(Default)]
struct Found<'a> {
    kind: Option<Kind>,
    overload: Option<u8>,
    requested: Option<[u8; 4]>,
    server: Option<[u8; 4]>,
    parameters: Option<&'a [u8]>,
    max_size: Option<u16>,
    client_id: Option<&'a [u8]>,
    host_name: Option<&'a [u8]>,
}

impl<'a> Found<'a> {
    /// Walks one options field; returns the overload bits known so far. Bound:
    /// the field's length, each turn takes at least one byte.
    fn walk(&mut self, mut options: &'a [u8]) -> Result<u8, DhcpError> {
        loop {
            let kind = *options.first().ok_or(DhcpError::End)?;
            match kind {
                0 => {
                    options = options.get(1..).ok_or(DhcpError::End)?;
                    continue;
                }
                255 => return Ok(self.overload.unwrap_or(0)),
                _ => {}
            }
            let length = usize::from(*options.get(1).ok_or(DhcpError::Option)?);
            let value = options.get(2..2 + length).ok_or(DhcpError::Option)?;
            options = options.get(2 + length..).ok_or(DhcpError::Option)?;
            self.note(kind, value)?;
        }
    }

    fn note(&mut self, kind: u8, value: &'a [u8]) -> Result<(), DhcpError> {
        match kind {
            12 => once(&mut self.host_name, value),
            50 => once(&mut self.requested, fixed(value)?),
            52 => match fixed(value)? {
                [bits @ 1..=3] => once(&mut self.overload, bits),
                _ => Err(DhcpError::Option),
            },
            53 => {
                let kind = match fixed(value)? {
                    [1] => Kind::Discover,
                    [3] => Kind::Request,
                    [4] => Kind::Decline,
                    [7] => Kind::Release,
                    [8] => Kind::Inform,
                    _ => return Err(DhcpError::Kind),
                };
                once(&mut self.kind, kind)
            }
            54 => once(&mut self.server, fixed(value)?),
            55 => once(&mut self.parameters, value),
            57 => once(&mut self.max_size, u16::from_be_bytes(fixed(value)?)),
            61 if value.len() < 2 => Err(DhcpError::Option),
            61 => once(&mut self.client_id, value),
            82 if guard!("dhcp-relay-option") => Err(DhcpError::Relayed),
            _ => Ok(()),
        }
    }
}

fn fixed<const N: usize>(value: &[u8]) -> Result<[u8; N], DhcpError> {
    value.try_into().map_err(|_| DhcpError::Option)
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<(), DhcpError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(DhcpError::Duplicate),
    }
}

/// What a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    /// Take this address?
    Offer,
    /// It is yours.
    Ack,
    /// It is not.
    Nak,
}

/// A server's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// Offer, acknowledgement or refusal. A refusal carries nothing but the server.
    pub kind: ReplyKind,
    /// The request's transaction id.
    pub xid: u32,
    /// The request's broadcast flag.
    pub broadcast: bool,
    /// The request's client address (zero in an offer).
    pub client_address: [u8; 4],
    /// The address given; zero when answering an inform.
    pub your_address: [u8; 4],
    /// The client's MAC.
    pub client_mac: MacAddress,
    /// The server's address.
    pub server: [u8; 4],
    /// Lease, seconds; absent when answering an inform.
    pub lease_s: Option<u32>,
    /// Prefix length of the subnet, for the mask; 0 to 32.
    pub prefix_len: u8,
    /// Default router.
    pub router: Option<[u8; 4]>,
    /// DNS server.
    pub dns: Option<[u8; 4]>,
    /// Interface MTU.
    pub mtu: Option<u16>,
    /// Further options, ready made: kind, length, value, repeated.
    pub further: &'a [u8],
}

impl Reply<'_> {
    /// Writes the UDP payload; returns its length, at least [`MIN_REPLY`].
    ///
    /// # Errors
    /// [`NoRoom`]: the caller's buffer is too short, which is our fault.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let granted = self.kind != ReplyKind::Nak;
        let address = |address| if granted { address } else { [0; 4] };
        let mut w = Writer::new(buffer);
        w.bytes(&[2, 1, 6, 0])
            .u32(self.xid)
            .u16(0)
            // A refused client may have no usable address: it is told by broadcast.
            .u16(if self.broadcast || !granted {
                0x8000
            } else {
                0
            })
            .bytes(&address(self.client_address))
            .bytes(&address(self.your_address))
            .bytes(&[0; 8])
            .bytes(&self.client_mac.0)
            .zeros_to(236)
            .bytes(&COOKIE);
        let kind = match self.kind {
            ReplyKind::Offer => 2,
            ReplyKind::Ack => 5,
            ReplyKind::Nak => 6,
        };
        w.bytes(&[53, 1, kind]).bytes(&[54, 4]).bytes(&self.server);
        if granted {
            self.emit_configuration(&mut w);
        }
        w.u8(255);
        let end = w.at().max(MIN_REPLY);
        w.zeros_to(end).finish()
    }

    fn emit_configuration(&self, w: &mut Writer<'_>) {
        if let Some(lease) = self.lease_s {
            // Renewal at half and rebinding at seven eighths (RFC 2131, section 4.4.5).
            let rebind = lease - lease / 8;
            w.bytes(&[51, 4]).u32(lease);
            w.bytes(&[58, 4]).u32(lease / 2);
            w.bytes(&[59, 4]).u32(rebind);
        }
        let host_bits = 32 - u32::from(self.prefix_len.min(32));
        let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
        w.bytes(&[1, 4]).u32(mask);
        if let Some(router) = self.router {
            w.bytes(&[3, 4]).bytes(&router);
        }
        if let Some(dns) = self.dns {
            w.bytes(&[6, 4]).bytes(&dns);
        }
        if let Some(mtu) = self.mtu {
            w.bytes(&[26, 2]).u16(mtu);
        }
        w.bytes(self.further);
    }
}
