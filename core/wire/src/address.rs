//! Link and network addresses.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A 48-bit IEEE 802 MAC address.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// All zeros: no station has it.
    pub const ZERO: MacAddress = MacAddress([0; 6]);
    /// All ones: every station.
    pub const BROADCAST: MacAddress = MacAddress([0xff; 6]);

    /// A group address (broadcast included): bit 0 of the first byte.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// The broadcast address.
    pub const fn is_broadcast(self) -> bool {
        u64_of(self) == 0xffff_ffff_ffff
    }

    /// May be a station's own: neither a group nor all zeros.
    pub const fn is_station(self) -> bool {
        !self.is_group() && u64_of(self) != 0
    }

    /// 01:80:c2:00:00:00 to :0f, never forwarded by a bridge (IEEE 802.1Q, table 8-1).
    pub const fn is_reserved(self) -> bool {
        u64_of(self) & !0xf == 0x0180_c200_0000
    }

    /// The modified EUI-64 interface identifier (RFC 4291, appendix A).
    pub const fn interface_id(self) -> [u8; 8] {
        let [a, b, c, d, e, f] = self.0;
        [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
    }

    /// The group address of an IPv4 multicast address (RFC 1112, section 6.4).
    pub const fn of_group4(address: [u8; 4]) -> MacAddress {
        MacAddress([0x01, 0, 0x5e, address[1] & 0x7f, address[2], address[3]])
    }

    /// The group address of an IPv6 multicast address (RFC 2464, section 7).
    pub const fn of_group6(address: [u8; 16]) -> MacAddress {
        MacAddress([
            0x33,
            0x33,
            address[12],
            address[13],
            address[14],
            address[15],
        ])
    }
}

const fn u64_of(mac: MacAddress) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

impl From<[u8; 6]> for MacAddress {
    fn from(bytes: [u8; 6]) -> Self {
        MacAddress(bytes)
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An IP address of either family; IPv4 in its v4-mapped form.
pub type Address = [u8; 16];

/// `::`, the unspecified IPv6 address.
pub const UNSPECIFIED6: Address = [0; 16];
/// `0.0.0.0` in its mapped form.
pub const UNSPECIFIED4: Address = mapped([0; 4]);
/// `255.255.255.255` in its mapped form.
pub const BROADCAST4: Address = mapped([255; 4]);
/// `ff02::1`, all nodes on the link.
pub const ALL_NODES: Address = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// `ff02::2`, all routers on the link.
pub const ALL_ROUTERS: Address = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

/// The v4-mapped form `::ffff:a.b.c.d`.
pub const fn mapped(v4: [u8; 4]) -> Address {
    let [a, b, c, d] = v4;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// The IPv4 address that this is the mapped form of.
pub const fn unmapped(address: &Address) -> Option<[u8; 4]> {
    match *address {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
        _ => None,
    }
}

/// The link-local address `fe80::/64` + EUI-64 of a MAC (RFC 4862, section 5.3).
pub const fn link_local(mac: MacAddress) -> Address {
    let [a, b, c, d, e, f, g, h] = mac.interface_id();
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, d, e, f, g, h]
}

/// The solicited-node group of an IPv6 address (RFC 4291, section 2.7.1).
pub const fn solicited_node(address: &Address) -> Address {
    [
        0xff,
        2,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        1,
        0xff,
        address[13],
        address[14],
        address[15],
    ]
}

/// `0.0.0.0` or `::`.
pub fn is_unspecified(address: &Address) -> bool {
    *address == UNSPECIFIED6 || *address == UNSPECIFIED4
}

/// 127/8 or `::1`.
pub const fn is_loopback(address: &Address) -> bool {
    match unmapped(address) {
        Some(v4) => v4[0] == 127,
        None => u128::from_be_bytes(*address) == 1,
    }
}

/// 224/4 or `ff00::/8`. The IPv4 broadcast address is not one.
pub const fn is_multicast(address: &Address) -> bool {
    match unmapped(address) {
        Some(v4) => v4[0] & 0xf0 == 0xe0,
        None => address[0] == 0xff,
    }
}

/// 169.254/16 or `fe80::/10`.
pub const fn is_link_local(address: &Address) -> bool {
    match unmapped(address) {
        Some(v4) => v4[0] == 169 && v4[1] == 254,
        None => address[0] == 0xfe && address[1] & 0xc0 == 0x80,
    }
}

/// Whether `address` lies in `prefix`/`length`, both in the 128-bit form.
pub const fn in_prefix(address: &Address, prefix: &Address, length: u32) -> bool {
    let mask = if length == 0 {
        0
    } else {
        u128::MAX << (128 - if length > 128 { 128 } else { length })
    };
    (u128::from_be_bytes(*address) ^ u128::from_be_bytes(*prefix)) & mask == 0
}
