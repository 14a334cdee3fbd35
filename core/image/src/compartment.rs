//! Records of a compartment's image. All little-endian, `repr(C)`, no padding,
//! indices are positions in their section; [`NONE`] means absent.

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// An absent index.
pub const NONE: u32 = u32::MAX;

macro_rules! record {
    ($(#[$m:meta])* pub struct $name:ident { $($(#[$fm:meta])* pub $f:ident: $t:ty,)* }) => {
        record! {
            #[derive(Default)]
            $(#[$m])*
            own default pub struct $name { $($(#[$fm])* pub $f: $t,)* }
        }
    };
    ($(#[$m:meta])* own default pub struct $name:ident { $($(#[$fm:meta])* pub $f:ident: $t:ty,)* }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $($(#[$fm])* pub $f: $t,)* }
    };
}

mod classifier;
mod crossing;

pub use classifier::{
    Field, GROUP_RULES, MAX_GROUPS, OUTCOME_LOG, Outcome, RuleGroup, Summary, Table, Word,
};
pub use crossing::{
    CROSSING_ACCEPTOR, CROSSING_BOTH, CROSSING_OFFERER, CROSSING_RINGS, CROSSING_ROUTED, Crossing,
    CrossingSlot, MAX_ROUTED, NAT_LEAST_PORT, NatBlock, RoutedPrefix, ServicePorts,
};

record! {
    /// What may go one way, as it would on a wire: each segment with its headers.
    pub struct Rate {
        /// Bytes a second, 0 = no limit.
        pub bytes: u64,
        /// Bytes at once.
        pub burst: u64,
        /// Packets a second, 0 = no limit.
        pub packets: u64,
    }
}
impl Rate {
    /// Whether there is a limit.
    pub const fn is_limited(&self) -> bool {
        self.bytes != 0 || self.packets != 0
    }

    /// Bytes of memory for what waits for it, each class: 25 ms of it, so that one TCP
    /// stream (BBR too) finds enough to fill its rate, at least the largest frame and some.
    pub const fn queue_bytes(&self) -> u64 {
        let worth = self.bytes / 40;
        if worth < LEAST_QUEUE {
            LEAST_QUEUE
        } else if worth > MOST_QUEUE {
            MOST_QUEUE
        } else {
            worth.next_multiple_of(4096)
        }
    }
}
const LEAST_QUEUE: u64 = 96 << 10;
const MOST_QUEUE: u64 = 4 << 20;
record! {
    /// A tenant of this compartment.
    pub struct Tenant {
        /// 24-bit tenant id.
        pub id: u32,
        /// First of its [`RouteRange`]s.
        pub ranges_first: u32,
        /// How many; sorted by start, disjoint.
        pub ranges_count: u32,
        /// Zero.
        pub reserved: u32,
        /// What its endpoints may send, all together.
        pub from: Rate,
        /// What may be sent to its endpoints, all together.
        pub to: Rate,
    }
}
record! {
    /// A class of packets, by what their DSCP field says. The first of the section is
    /// class 1; what none lists is class 0, best effort, of weight 1.
    pub struct ServiceClass {
        /// The DSCP values that are this class: bit n stands for value n. Disjoint.
        pub dscp: u64,
        /// Up to so many wire bytes a second it goes before all others; 0 = it never does.
        pub strict_bytes: u64,
        /// And so many at once.
        pub strict_burst: u64,
        /// Its part of what the strict ones leave, against the other classes, 1..=255.
        pub weight: u32,
        /// Zero.
        pub reserved: u32,
    }
}
/// Classes at most, best effort included.
pub const CLASSES: usize = 8;
record! {
    /// A subnet and its always-there gateway.
    pub struct Subnet {
        /// Host-wide subnet id.
        pub id: u32,
        /// Index into tenants.
        pub tenant: u32,
        /// First of its flood [`Member`]s.
        pub members_first: u32,
        /// How many.
        pub members_count: u32,
        /// IPv4 prefix, network order; zero with `prefix4_len` 0 = no IPv4.
        pub prefix4: [u8; 4],
        /// The gateway's IPv4 address.
        pub gateway4: [u8; 4],
        /// First DNS server handed out by DHCP; zero = none.
        pub dns4: [u8; 4],
        /// IPv4 prefix length.
        pub prefix4_len: u8,
        /// IPv6 prefix length (0 = no IPv6).
        pub prefix6_len: u8,
        /// MTU of the subnet, bytes of IP packet.
        pub mtu: u16,
        /// IPv6 prefix.
        pub prefix6: [u8; 16],
        /// The gateway's global or unique-local IPv6 address.
        pub gateway6: [u8; 16],
        /// First DNS server in router advertisements (RFC 8106); zero = none.
        pub dns6: [u8; 16],
        /// The gateway's MAC. Its link-local address is the EUI-64 of it.
        pub gateway_mac: [u8; 6],
        /// `SUBNET_*` bits.
        pub flags: u16,
        /// DHCP lease time, seconds.
        pub lease_s: u32,
        /// Host-local fabric tag by which it goes on beyond this host; 0 = it does not.
        pub segment: u16,
        /// Zero.
        pub reserved: u16,
    }
}
/// [`Subnet::flags`]: answer DHCPv4.
pub const SUBNET_DHCP4: u16 = 1;
/// [`Subnet::flags`]: send router advertisements.
pub const SUBNET_RA: u16 = 2;
/// [`Subnet::flags`]: the prefix is autonomous (SLAAC).
pub const SUBNET_SLAAC: u16 = 4;

record! {
    /// An endpoint and what its guard allows.
    own default pub struct Endpoint {
        /// Host-wide endpoint id.
        pub id: u32,
        /// Index into subnets.
        pub subnet: u32,
        /// The switch's slot (1..) it is plugged in.
        pub slot: u32,
        /// `ROLE_*` bits.
        pub roles: u16,
        /// One of `STATE_*`.
        pub state: u8,
        /// Service class (DSCP class selector, 0..8).
        pub class: u8,
        /// Its MAC.
        pub mac: [u8; 6],
        /// MTU toward it, bytes of IP packet; at most the subnet's.
        pub mtu: u16,
        /// The address DHCP gives it; zero = none.
        pub dhcp4: [u8; 4],
        /// Least gso_size accepted from it (default 536).
        pub min_gso: u16,
        /// `FEATURE_*` bits its port takes.
        pub features: u16,
        /// Ingress meter: wire bytes a second, 0 = unlimited.
        pub rate_bytes: u64,
        /// Ingress meter: burst, wire bytes.
        pub rate_burst: u64,
        /// Ingress meter: wire packets a second, 0 = unlimited.
        pub rate_packets: u64,
        /// Index of the first of its [`OwnPrefix`]es (router role), or NONE.
        pub own_first: u32,
        /// How many.
        pub own_count: u32,
        /// The rules about what it sends: index into tables; NONE = everything passes,
        /// nothing is tracked.
        pub egress: u32,
        /// The rules about what is sent to it, likewise.
        pub ingress: u32,
        /// Connections it may have at a time.
        pub connections: u32,
        /// The number of its block of ports behind its tenant's attachments, or NONE.
        pub nat_index: u32,
        /// What may be sent to it.
        pub to: Rate,
        /// The work for it is at least so much: wire bytes a second.
        pub min_bytes: u64,
        /// Its part of the switch's work that the minimums leave, 1..=255.
        pub weight: u32,
        /// `ENDPOINT_*` bits.
        pub flags: u32,
    }
}
impl Default for Endpoint {
    /// Zeros, but without tables and ports: that is said as everywhere by [`NONE`], and
    /// not by 0, which is the first of them. Its weight is 1.
    fn default() -> Endpoint {
        Endpoint {
            egress: NONE,
            ingress: NONE,
            nat_index: NONE,
            weight: 1,
            ..Endpoint::new_zeroed()
        }
    }
}
/// [`Endpoint::flags`]: its circuits are counted, and held to its rates.
pub const ENDPOINT_METERED: u32 = 1;
/// Role: may source from its [`OwnPrefix`]es and send router advertisements.
pub const ROLE_ROUTER: u16 = 1;
/// Role: may answer DHCP.
pub const ROLE_DHCP_SERVER: u16 = 2;
/// Admission state: forwards.
pub const STATE_OPEN: u8 = 0;
/// Admission state: not admitted yet; only what admission needs would pass, which is nothing yet.
pub const STATE_UNAUTHORISED: u8 = 1;
/// Admission state: cut off.
pub const STATE_QUARANTINED: u8 = 2;
/// The port takes partial checksums.
pub const FEATURE_CSUM: u16 = 1;
/// The port takes TCP over IPv4 GSO.
pub const FEATURE_TSO4: u16 = 2;
/// The port takes TCP over IPv6 GSO.
pub const FEATURE_TSO6: u16 = 4;
/// The port takes UDP GSO.
pub const FEATURE_USO: u16 = 8;
/// All offloads.
pub const FEATURE_ALL: u16 = 15;

record! {
    /// A prefix that an endpoint with the router role may source from.
    pub struct OwnPrefix {
        /// Network address, IPv4 as ::ffff:a.b.c.d.
        pub prefix: [u8; 16],
        /// Prefix length in the 128-bit form.
        pub len: u32,
        /// Zero.
        pub reserved: u32,
    }
}
record! {
    /// Hash slot: (subnet, MAC) to endpoint. Empty when `endpoint` is NONE.
    pub struct MacSlot {
        /// Index into subnets.
        pub subnet: u32,
        /// Index into endpoints.
        pub endpoint: u32,
        /// The MAC.
        pub mac: [u8; 6],
        /// Zero.
        pub reserved: u16,
    }
}
record! {
    /// Hash slot: (subnet, address) to endpoint. Empty when `endpoint` is NONE.
    /// The same table answers "who has it" and "may this endpoint say it".
    pub struct AddressSlot {
        /// The address, IPv4 as ::ffff:a.b.c.d.
        pub address: [u8; 16],
        /// Index into subnets.
        pub subnet: u32,
        /// Index into endpoints.
        pub endpoint: u32,
        /// Zero.
        pub reserved: [u32; 2],
    }
}
record! {
    /// A disjoint address interval of a tenant's routing table (longest prefix
    /// already resolved), IPv4 in its ::ffff: form; `end` is inclusive.
    pub struct RouteRange {
        /// First address.
        pub start: [u8; 16],
        /// Last address.
        pub end: [u8; 16],
        /// Index into routes.
        pub route: u32,
        /// Zero.
        pub reserved: [u32; 3],
    }
}
record! {
    /// Where a destination goes.
    pub struct Route {
        /// One of `ROUTE_*`.
        pub kind: u32,
        /// ROUTE_SUBNET: the subnet. ROUTE_VIA: the subnet of the next hop.
        pub subnet: u32,
        /// ROUTE_VIA: the endpoint index. ROUTE_OUTSIDE: index into next hops.
        /// ROUTE_SERVICE: index into crossings.
        pub via: u32,
        /// Zero.
        pub reserved: u32,
    }
}
/// On-link in a subnet of the tenant.
pub const ROUTE_SUBNET: u32 = 1;
/// Through an endpoint with the router role.
pub const ROUTE_VIA: u32 = 2;
/// Through an uplink's next hop.
pub const ROUTE_OUTSIDE: u32 = 3;
/// Refused: answered by an ICMP error.
pub const ROUTE_UNREACHABLE: u32 = 4;
/// Across an agreement: an acceptor's own addresses for the service, an offerer's pool,
/// or where it is routed the other tenant's prefixes.
pub const ROUTE_SERVICE: u32 = 5;

record! {
    /// The compartment as a machine of its own on an uplink, for one tenant.
    pub struct Attachment {
        /// Index into tenants.
        pub tenant: u32,
        /// Host-wide uplink number.
        pub uplink: u32,
        /// The compartment's MAC there.
        pub mac: [u8; 6],
        /// Host-local fabric tag of this attachment.
        pub tag: u16,
        /// MTU of the uplink, bytes of IP packet.
        pub mtu: u16,
        /// IPv4 prefix length of `address4`.
        pub prefix4_len: u8,
        /// IPv6 prefix length of `address6`.
        pub prefix6_len: u8,
        /// Its IPv4 address on the uplink; zero = none.
        pub address4: [u8; 4],
        /// Its IPv6 address on the uplink; zero = none.
        pub address6: [u8; 16],
        /// First port of block 0 behind `address4`.
        pub nat_first: u16,
        /// Ports in a block; 0 = sources are not translated.
        pub nat_block: u16,
        /// First of its [`NatBlock`]s.
        pub blocks_first: u32,
        /// How many; block `n` has the ports from `nat_first + n * nat_block`.
        pub blocks_count: u32,
    }
}
record! {
    /// A next hop on an uplink; the switch resolves its MAC by ARP or ND.
    pub struct NextHop {
        /// Address, IPv4 as ::ffff:a.b.c.d.
        pub address: [u8; 16],
        /// Index into attachments.
        pub attachment: u32,
        /// Fixed MAC, or zero = resolve.
        pub mac: [u8; 6],
        /// Zero.
        pub reserved: [u8; 6],
    }
}
record! {
    /// A member of a subnet's flood list.
    pub struct Member {
        /// Index into endpoints.
        pub endpoint: u32,
    }
}

record! {
    /// The endpoint in a slot: the section is indexed by slot.
    pub struct SlotEndpoint {
        /// Index into endpoints, or NONE.
        pub endpoint: u32,
    }
}
/// Slots are below this.
pub const MAX_SLOTS: u32 = 1 << 16;
