//! Reading an image: everything is checked once, when it is mapped; afterwards a
//! lookup needs no check and still cannot panic.

mod classifier;
mod compartment;
mod crossing;
mod fabric;

pub(crate) use classifier::Classifier;
pub use compartment::{CompartmentImage, MappedCompartment};
pub use fabric::{FabricImage, MappedFabric};

/// Why bytes are not an image that may be forwarded by: the fault of whoever made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Shorter than a header.
    #[error("shorter than an image's header")]
    Short,
    /// The memory does not start at a multiple of 16.
    #[error("the memory is not aligned")]
    Alignment,
    /// Not an image.
    #[error("not a table image")]
    Magic,
    /// A version this release does not read.
    #[error("of a version this release does not read")]
    Version,
    /// An image for something else.
    #[error("an image for another kind of process")]
    Kind,
    /// The length is not what the header says, or beyond all bounds.
    #[error("of another length than it says")]
    Length,
    /// The section table is not the one that follows from the counts.
    #[error("its section table contradicts itself")]
    Layout,
    /// The digest is not that of the bytes.
    #[error("its digest is not that of its bytes")]
    Digest,
    /// A record says what cannot be.
    #[error("{section} {index}: {what}")]
    Record {
        /// In which section.
        section: Section,
        /// The record's position there.
        index: u32,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl MapError {
    /// Its number, as `Running.refused` carries it; never 0.
    pub const fn number(self) -> u32 {
        match self {
            MapError::Short => 1,
            MapError::Alignment => 2,
            MapError::Magic => 3,
            MapError::Version => 4,
            MapError::Kind => 5,
            MapError::Length => 6,
            MapError::Layout => 7,
            MapError::Digest => 8,
            MapError::Record { section, .. } => 16 + section as u32,
        }
    }
}

/// `Running.refused` for memory that is not sealed, which a worker finds before it maps.
pub const NOT_SEALED: u32 = 9;
/// `Running.refused` of a worker that has no place yet.
pub const NOT_ATTACHED: u32 = 10;
/// `Running.refused` of a worker that the kernel denies the barrier with which it would serve
/// several tenants.
pub const NO_BARRIER: u32 = 11;

macro_rules! sections {
    ($($(#[doc = $doc:literal])+ $name:ident = $n:literal $text:literal,)+) => {
        /// The sections of both kinds of image.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Section { $($(#[doc = $doc])+ $name = $n,)+ }
        impl core::fmt::Display for Section {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(match self { $(Section::$name => $text,)+ })
            }
        }
    };
}
sections! {
    /// Tenants.
    Tenants = 0 "tenant",
    /// Subnets.
    Subnets = 1 "subnet",
    /// Endpoints.
    Endpoints = 2 "endpoint",
    /// Prefixes of routers.
    OwnPrefixes = 3 "own prefix",
    /// Hash of MACs.
    Macs = 4 "MAC slot",
    /// Hash of addresses.
    Addresses = 5 "address slot",
    /// Ranges of routing tables.
    Ranges = 6 "route range",
    /// Routes.
    Routes = 7 "route",
    /// Attachments to uplinks.
    Attachments = 8 "attachment",
    /// Next hops.
    NextHops = 9 "next hop",
    /// Flood lists.
    Members = 10 "member",
    /// What is in each slot.
    Slots = 11 "slot",
    /// Channels of the fabric.
    Channels = 12 "channel",
    /// Hash of where frames go.
    Forwards = 13 "forward entry",
    /// Groups.
    Groups = 14 "group",
    /// Members of groups.
    GroupMembers = 15 "group member",
    /// Templates toward uplinks.
    Templates = 16 "template",
    /// Sides of agreements.
    Crossings = 17 "crossing",
    /// Ports of services.
    ServicePorts = 18 "service port range",
    /// Hash of crossings' tags.
    CrossingTags = 19 "crossing's tag slot",
    /// Blocks of ports.
    NatBlocks = 20 "block of ports",
    /// Rule tables.
    Tables = 21 "rule table",
    /// Groups of rules.
    RuleGroups = 22 "group of rules",
    /// What rules do.
    Outcomes = 23 "rule",
    /// Boundaries of addresses.
    AddressBounds = 24 "boundary of addresses",
    /// Boundaries of ports and protocols.
    PortBounds = 25 "boundary of ports",
    /// Which word each interval has.
    Places = 26 "place of a word",
    /// Words of rules.
    Words = 27 "word of rules",
    /// Words of groups.
    Summaries = 28 "word of groups",
    /// Prefixes of crossings that are routed.
    RoutedPrefixes = 29 "routed prefix",
    /// Classes of packets.
    Classes = 30 "class",
}

/// Checks one section's records, one after another.
fn each<T>(
    section: Section,
    records: &[T],
    mut check: impl FnMut(usize, &T) -> Result<(), &'static str>,
) -> Result<(), MapError> {
    if records.len() >= u32::MAX as usize {
        return Err(MapError::Record {
            section,
            index: 0,
            what: "too many of them",
        });
    }
    for (index, record) in records.iter().enumerate() {
        check(index, record).map_err(|what| MapError::Record {
            section,
            index: index as u32,
            what,
        })?;
    }
    Ok(())
}

/// That lists `first..first + count` follow each other without gap or overlap and
/// end with the section: so that each element belongs to exactly one list.
#[derive(Default)]
struct Lists {
    next: usize,
}

impl Lists {
    fn take(&mut self, first: u32, count: u32) -> Result<(), &'static str> {
        if first as usize != self.next {
            return Err("its list does not follow the one before");
        }
        self.next += count as usize;
        Ok(())
    }
    fn end(&self, section: Section, len: usize) -> Result<(), MapError> {
        if self.next == len {
            return Ok(());
        }
        Err(MapError::Record {
            section,
            index: len as u32,
            what: "the lists do not end with it",
        })
    }
}

#[inline]
fn part<T>(records: &[T], first: u32, count: u32) -> &[T] {
    let first = first as usize;
    records
        .get(first..first.saturating_add(count as usize))
        .unwrap_or(&[])
}

/// A condition that must hold.
fn must(holds: bool, what: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(what) }
}

/// A station's MAC: neither a group's nor zero.
fn is_station(mac: [u8; 6]) -> bool {
    let [first, ..] = mac;
    first & 1 == 0 && mac != [0; 6]
}
