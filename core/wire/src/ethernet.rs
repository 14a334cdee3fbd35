//! Ethernet II with up to two 802.1Q tags.

use crate::address::MacAddress;
use crate::field::{self, Writer};
use crate::{Malformed, NoRoom};

/// Bytes of an untagged header.
pub const HEADER: usize = 14;
/// Bytes of one tag.
pub const TAG: usize = 4;
/// Tags read and written at most: a service and a customer tag (802.1ad).
pub const MAX_TAGS: usize = 2;

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// EtherType (TPID) of a customer tag, 802.1Q.
pub const VLAN: u16 = 0x8100;
/// EtherType (TPID) of a service tag, 802.1ad.
pub const SERVICE_VLAN: u16 = 0x88a8;

/// One VLAN tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// [`VLAN`] or [`SERVICE_VLAN`].
    pub tpid: u16,
    /// Priority (3 bits), drop eligible (1 bit), VLAN id (12 bits).
    pub tci: u16,
}

impl Tag {
    /// The VLAN id, 0 to 4095.
    pub const fn id(self) -> u16 {
        self.tci & 0xfff
    }
}

/// The tags of a frame, outermost first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tags {
    tags: [Tag; MAX_TAGS],
    count: u8,
}

impl Tags {
    /// No tags.
    pub const NONE: Tags = Tags {
        tags: [Tag { tpid: 0, tci: 0 }; MAX_TAGS],
        count: 0,
    };

    /// The tags, outermost first.
    pub fn as_slice(&self) -> &[Tag] {
        self.tags.get(..usize::from(self.count)).unwrap_or(&[])
    }

    /// Adds an inner tag; `false` when there are two already.
    pub fn push(&mut self, tag: Tag) -> bool {
        let Some(slot) = self.tags.get_mut(usize::from(self.count)) else {
            return false;
        };
        *slot = tag;
        self.count += 1;
        true
    }

    /// How many.
    pub const fn count(&self) -> usize {
        self.count as usize
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Destination.
    pub destination: MacAddress,
    /// Source.
    pub source: MacAddress,
    /// VLAN tags.
    pub tags: Tags,
    /// EtherType of the payload (after the tags). Below 0x600 it is an 802.3 length.
    pub ethertype: u16,
}

impl Header {
    /// An untagged header.
    pub const fn new(destination: MacAddress, source: MacAddress, ethertype: u16) -> Self {
        Header {
            destination,
            source,
            tags: Tags::NONE,
            ethertype,
        }
    }

    /// Reads the header; a third tag is left as the EtherType.
    ///
    /// # Errors
    /// [`Malformed`]: the bytes are not such a message, which is their sender's fault.
    pub fn parse(frame: &[u8]) -> Result<Header, Malformed> {
        Header::read(frame).ok_or(Malformed::Truncated)
    }

    fn read(frame: &[u8]) -> Option<Header> {
        let mut header = Header::new(
            MacAddress(field::array(frame, 0)?),
            MacAddress(field::array(frame, 6)?),
            field::word(frame, 12)?,
        );
        // Bound: MAX_TAGS turns, the one after that fails to push.
        while matches!(header.ethertype, VLAN | SERVICE_VLAN) {
            let at = HEADER + TAG * header.tags.count();
            if header.tags.count() == MAX_TAGS {
                break;
            }
            header.tags.push(Tag {
                tpid: header.ethertype,
                tci: field::word(frame, at)?,
            });
            header.ethertype = field::word(frame, at + 2)?;
        }
        Some(header)
    }

    /// Bytes it takes.
    pub const fn len(&self) -> usize {
        HEADER + TAG * self.tags.count as usize
    }

    /// Never: a header has bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes it to the start of `buffer`; returns its length.
    ///
    /// # Errors
    /// [`NoRoom`]: the caller's buffer is too short, which is our fault.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, NoRoom> {
        let mut w = Writer::new(buffer);
        w.bytes(&self.destination.0).bytes(&self.source.0);
        for tag in self.tags.as_slice() {
            w.u16(tag.tpid).u16(tag.tci);
        }
        w.u16(self.ethertype).finish()
    }
}

/// Overwrites the two addresses of a frame in place; `None` if it is too short.
pub fn readdress(frame: &mut [u8], destination: MacAddress, source: MacAddress) -> Option<()> {
    field::put(frame, 0, &destination.0)?;
    field::put(frame, 6, &source.0)
}
