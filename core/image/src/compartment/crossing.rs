//! Where packets leave for another tenant, and ports behind an attachment's address.

use super::NONE;
use wire::address::{in_prefix, mapped, unmapped};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

record! {
    /// One side of a live agreement.
    pub struct Crossing {
        /// Host-wide number of the agreement.
        pub agreement: u32,
        /// Index into tenants: whose side it is.
        pub tenant: u32,
        /// Its tag on the fabric, of its own; not 0.
        pub tag: u16,
        /// One of `CROSSING_*`.
        pub role: u16,
        /// MTU across it, bytes of IP packet: the lesser side's.
        pub mtu: u16,
        /// `CROSSING_ROUTED`, `CROSSING_BOTH`, `CROSSING_RINGS`.
        pub flags: u16,
        /// Offerer of a service: index of the endpoint that serves. Else: NONE.
        pub endpoint: u32,
        /// Acceptor: its own IPv4 address that stands for the service. Offerer: the
        /// endpoint's. Zero = none.
        pub address4: [u8; 4],
        /// The same in IPv6.
        pub address6: [u8; 16],
        /// Offerer: the range that users' IPv4 sources are translated into.
        pub pool4: [u8; 4],
        /// The same in IPv6.
        pub pool6: [u8; 16],
        /// Prefix length of `pool4`; 0 = none.
        pub pool4_len: u8,
        /// Prefix length of `pool6`; 0 = none.
        pub pool6_len: u8,
        /// Zero.
        pub reserved2: u16,
        /// First of its [`ServicePorts`].
        pub ports_first: u32,
        /// How many; sorted by protocol and port, disjoint. None where it is routed:
        /// whatever there is.
        pub ports_count: u32,
        /// Routed: the first of its [`RoutedPrefix`]es, its own and the other tenant's.
        pub prefixes_first: u32,
        /// How many.
        pub prefixes_count: u32,
    }
}
/// [`Crossing::role`]: the tenant uses another's service or prefixes.
pub const CROSSING_ACCEPTOR: u16 = 1;
/// [`Crossing::role`]: the tenant's endpoint serves, or its prefixes are offered.
pub const CROSSING_OFFERER: u16 = 2;
/// [`Crossing::flags`]: addresses stay what they are, in prefixes of both tenants.
pub const CROSSING_ROUTED: u16 = 1 << 0;
/// [`Crossing::flags`], with [`CROSSING_ROUTED`]: the offerer may begin connections as well.
pub const CROSSING_BOTH: u16 = 1 << 1;
/// [`Crossing::flags`]: circuits across it may go by memory that programs of both tenants have.
pub const CROSSING_RINGS: u16 = 1 << 2;
/// Prefixes of a crossing, at most: what a packet is held against.
pub const MAX_ROUTED: u32 = 64;

impl Crossing {
    /// Whether addresses stay what they are.
    pub const fn is_routed(&self) -> bool {
        self.flags & CROSSING_ROUTED != 0
    }
    /// Whether programs of both tenants may have memory of a circuit in common.
    pub const fn has_rings(&self) -> bool {
        self.flags & CROSSING_RINGS != 0
    }
    /// Whether its tenant may begin connections across it.
    pub const fn begins(&self) -> bool {
        self.role == CROSSING_ACCEPTOR || self.flags & CROSSING_BOTH != 0
    }
    /// Whether the other tenant may.
    pub const fn is_begun_with(&self) -> bool {
        self.role == CROSSING_OFFERER || self.flags & CROSSING_BOTH != 0
    }
    /// Whether an address is one that an offerer's endpoint sees users as.
    pub fn has_user(&self, address: &[u8; 16]) -> bool {
        let (pool, len, _) = match unmapped(address) {
            Some(_) => self.family4(),
            None => self.family6(),
        };
        len.is_some_and(|len| in_prefix(address, &pool, len))
    }
    /// The address that stands for the service, or is its endpoint's, in the family of `like`.
    pub fn address_like(&self, like: &[u8; 16]) -> Option<[u8; 16]> {
        let (.., address) = match unmapped(like) {
            Some(_) => self.family4(),
            None => self.family6(),
        };
        address
    }
    /// As whom an offerer's endpoint sees a user of this source, and that endpoint's own address.
    /// One user keeps one address of the range as long as the seed is the same. `None`: there is
    /// nothing of that family.
    pub fn as_user(&self, source: &[u8; 16], seed: u64) -> Option<[[u8; 16]; 2]> {
        let (pool, len, address) = match unmapped(source) {
            Some(_) => self.family4(),
            None => self.family6(),
        };
        // FNV-1a over the source, from the secret on.
        let hash = source.iter().fold(seed, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let host = u128::MAX.checked_shr(len?).unwrap_or(0);
        let user = u128::from_be_bytes(pool) & !host | u128::from(hash ^ hash >> 32) & host;
        Some([user.to_be_bytes(), address?])
    }
    /// Its range, that one's prefix length and the address; of what there is none, none.
    fn family4(&self) -> ([u8; 16], Option<u32>, Option<[u8; 16]>) {
        let len = (self.pool4_len != 0).then(|| u32::from(self.pool4_len) + 96);
        let address = (self.address4 != [0; 4]).then(|| mapped(self.address4));
        (mapped(self.pool4), len, address)
    }
    fn family6(&self) -> ([u8; 16], Option<u32>, Option<[u8; 16]>) {
        let len = (self.pool6_len != 0).then(|| u32::from(self.pool6_len));
        let address = (self.address6 != [0; 16]).then_some(self.address6);
        (self.pool6, len, address)
    }
}

record! {
    /// Addresses of one side of a crossing that is routed.
    pub struct RoutedPrefix {
        /// Network, IPv4 in its ::ffff: form.
        pub prefix: [u8; 16],
        /// Length in the 128-bit form.
        pub len: u32,
        /// 1 = the other tenant's, 0 = its own.
        pub theirs: u32,
    }
}

record! {
    /// Destination ports of a service.
    pub struct ServicePorts {
        /// IP protocol.
        pub protocol: u8,
        /// Zero.
        pub reserved: u8,
        /// First port; 0 where the protocol has none. ICMP: type and code, as rules do.
        pub first: u16,
        /// Last port.
        pub last: u16,
        /// Zero.
        pub reserved2: u16,
    }
}
record! {
    /// Hash slot: tag to crossing. Empty when `crossing` is NONE.
    pub struct CrossingSlot {
        /// Index into crossings.
        pub crossing: u32,
        /// The tag.
        pub tag: u16,
        /// Zero.
        pub reserved: u16,
    }
}
record! {
    /// Whose a block of ports is: the list of an attachment is indexed by its number.
    pub struct NatBlock {
        /// Index into endpoints; NONE = nobody's.
        pub endpoint: u32,
    }
}
impl NatBlock {
    /// Nobody's.
    pub const FREE: NatBlock = NatBlock { endpoint: NONE };
}
/// Ports below are not given to translated connections (RFC 6335 §6: system ports).
pub const NAT_LEAST_PORT: u16 = 1024;
