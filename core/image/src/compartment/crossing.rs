//! Where packets leave for another tenant, and ports behind an attachment's address.

use super::NONE;
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
        /// Zero.
        pub reserved: u16,
        /// Offerer: index of the endpoint that serves. Acceptor: NONE.
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
        /// How many; sorted by protocol and port, disjoint.
        pub ports_count: u32,
    }
}
/// [`Crossing::role`]: the tenant uses another's service.
pub const CROSSING_ACCEPTOR: u16 = 1;
/// [`Crossing::role`]: the tenant's endpoint serves.
pub const CROSSING_OFFERER: u16 = 2;

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
