//! Values written as one word: names, addresses, prefixes, rates, sizes, times.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;
use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use crate::decode::{Decode, Findings, Scalar, scalar};
use crate::tree::Node;

/// A name of a thing: 1 to 32 letters, digits, `-`, `_` or `.`, starting with a
/// letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub(crate) String);

impl Name {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
impl FromStr for Name {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if text.is_empty() || text.len() > 32 {
            return Err(format!(
                "it has {} characters, a name has 1 to 32",
                text.chars().count()
            ));
        }
        if let Some(bad) = text.chars().find(|c| !legal(*c)) {
            return Err(format!(
                "{bad:?} is not allowed: use letters, digits, `-`, `_` and `.`"
            ));
        }
        if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return Err("a name starts with a letter or a digit".into());
        }
        Ok(Name(text.to_owned()))
    }
}

/// A network interface's name: at most 15 bytes, no `/`, no space (Linux, IFNAMSIZ).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName(pub(crate) String);

impl InterfaceName {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
impl FromStr for InterfaceName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > 15 {
            return Err(format!(
                "it has {} bytes, an interface's name has 1 to 15",
                text.len()
            ));
        }
        if let Some(bad) = text
            .chars()
            .find(|c| !c.is_ascii_graphic() || matches!(c, '/' | ':' | '%'))
        {
            return Err(format!("{bad:?} is not allowed"));
        }
        if matches!(text, "." | ".." | "all" | "default") {
            return Err("the name is reserved".into());
        }
        Ok(InterfaceName(text.to_owned()))
    }
}

/// A network namespace: its name under /run/netns, or an absolute path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(pub(crate) String);

impl Namespace {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
    /// Whether it is a path (which is never made).
    pub fn is_path(&self) -> bool {
        self.0.starts_with('/')
    }
}
impl FromStr for Namespace {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > 127 {
            return Err(format!("it has {} bytes, it may have 1 to 127", text.len()));
        }
        if !text.chars().all(|c| c.is_ascii_graphic()) {
            return Err("spaces and special characters are not allowed".into());
        }
        if !text.starts_with('/') && (text.contains('/') || matches!(text, "." | "..")) {
            return Err("a name has no `/`; a path starts with one".into());
        }
        if text.split('/').any(|part| part == "..") {
            return Err("`..` is not allowed".into());
        }
        Ok(Namespace(text.to_owned()))
    }
}

/// An absolute path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(pub(crate) String);

impl Path {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
impl FromStr for Path {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if !text.starts_with('/') || text.len() > 191 || text.contains('\0') {
            return Err("it must start with `/` and have at most 191 bytes".into());
        }
        Ok(Path(text.to_owned()))
    }
}

/// A station's MAC address: not a group address, not all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl FromStr for Mac {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let part = parts
                .next()
                .filter(|p| p.len() == 2)
                .ok_or("it has six pairs of hexadecimal digits")?;
            *byte =
                u8::from_str_radix(part, 16).map_err(|_| format!("`{part}` is not hexadecimal"))?;
        }
        if parts.next().is_some() {
            return Err("it has six pairs of hexadecimal digits".into());
        }
        if bytes[0] & 1 != 0 {
            return Err("it is a group (multicast) address: the first byte must be even".into());
        }
        if bytes == [0; 6] {
            return Err("all zeros belongs to no one".into());
        }
        Ok(Mac(bytes))
    }
}
impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// An IP address of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ip(pub IpAddr);

impl Ip {
    /// IPv4 as ::ffff:a.b.c.d.
    pub fn mapped(self) -> [u8; 16] {
        mapped(self.0)
    }
}
impl FromStr for Ip {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        address(text).map(Ip)
    }
}
impl fmt::Display for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A network prefix whose host bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    /// The network's address.
    pub network: IpAddr,
    /// The prefix's length in bits of its family.
    pub len: u8,
}

impl Prefix {
    /// Whether it is IPv4.
    pub fn is_v4(&self) -> bool {
        self.network.is_ipv4()
    }
    /// The address with the host bits cleared.
    pub fn network_of(address: IpAddr, len: u8) -> IpAddr {
        match address {
            IpAddr::V4(a) => Ipv4Addr::from_bits(a.to_bits() & mask4(len)).into(),
            IpAddr::V6(a) => Ipv6Addr::from_bits(a.to_bits() & mask6(len)).into(),
        }
    }
    /// Whether the address is inside.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.is_v4() && Prefix::network_of(address, self.len) == self.network
    }
    /// Whether they share an address.
    pub fn overlaps(&self, other: &Prefix) -> bool {
        if self.len <= other.len {
            self.contains(other.network)
        } else {
            other.contains(self.network)
        }
    }
    /// The addresses that they share: the longer of the two, if it is in the other.
    pub fn shared(&self, other: &Prefix) -> Option<Prefix> {
        let longer = if self.len < other.len { other } else { self };
        self.overlaps(other).then_some(*longer)
    }
    /// Whether all of the other is in it.
    pub fn includes(&self, other: &Prefix) -> bool {
        self.shared(other) == Some(*other)
    }
    /// The address this far into it; wraps at the end of its family.
    pub fn nth(&self, offset: u64) -> IpAddr {
        match self.network {
            IpAddr::V4(a) => Ipv4Addr::from_bits(a.to_bits().wrapping_add(offset as u32)).into(),
            IpAddr::V6(a) => {
                Ipv6Addr::from_bits(a.to_bits().wrapping_add(u128::from(offset))).into()
            }
        }
    }
    /// Whether the address is one a host may have: inside, and neither the network's
    /// own (IPv6: the subnet-router anycast address) nor IPv4's broadcast address.
    pub fn is_host(&self, address: IpAddr) -> bool {
        let broadcast = match (self.network, address) {
            (IpAddr::V4(n), IpAddr::V4(a)) => a.to_bits() == n.to_bits() | !mask4(self.len),
            _ => false,
        };
        self.contains(address) && address != self.network && !broadcast
    }
    /// First and last address, IPv4 in its ::ffff: form.
    pub fn range(&self) -> ([u8; 16], [u8; 16]) {
        let first = mapped(self.network);
        let host = 128 - self.len128();
        let last = u128::from_be_bytes(first) | u128::MAX.checked_shr(128 - host).unwrap_or(0);
        (first, last.to_be_bytes())
    }
    /// Its length in the 128-bit form.
    pub fn len128(&self) -> u32 {
        u32::from(self.len) + if self.is_v4() { 96 } else { 0 }
    }
}
impl FromStr for Prefix {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (network, len) = with_length(text)?;
        let canonical = Prefix::network_of(network, len);
        if canonical != network {
            return Err(format!(
                "it has host bits set: the prefix is {canonical}/{len}"
            ));
        }
        Ok(Prefix { network, len })
    }
}
impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.len)
    }
}

/// An address together with the length of its network's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceAddress {
    /// The address.
    pub address: IpAddr,
    /// The prefix's length in bits of its family.
    pub len: u8,
}

impl InterfaceAddress {
    /// Its network.
    pub fn prefix(&self) -> Prefix {
        Prefix {
            network: Prefix::network_of(self.address, self.len),
            len: self.len,
        }
    }
}
impl FromStr for InterfaceAddress {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (address, len) = with_length(text)?;
        Ok(InterfaceAddress { address, len })
    }
}
impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

/// A rate in bits a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(pub u64);

impl FromStr for BitRate {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        const UNITS: &[(&str, u64)] = &[
            ("kbit", 1_000),
            ("Mbit", 1_000_000),
            ("Gbit", 1_000_000_000),
            ("bit", 1),
        ];
        with_unit(text, UNITS).map(BitRate)
    }
}
impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, unit) = match self.0 {
            n if n > 0 && n % 1_000_000_000 == 0 => (n / 1_000_000_000, "Gbit"),
            n if n > 0 && n % 1_000_000 == 0 => (n / 1_000_000, "Mbit"),
            n if n > 0 && n % 1_000 == 0 => (n / 1_000, "kbit"),
            n => (n, "bit"),
        };
        write!(f, "{n}{unit}")
    }
}

/// A size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        const UNITS: &[(&str, u64)] = &[
            ("KiB", 1 << 10),
            ("MiB", 1 << 20),
            ("GiB", 1 << 30),
            ("kB", 1_000),
            ("MB", 1_000_000),
            ("GB", 1_000_000_000),
            ("B", 1),
        ];
        with_unit(text, UNITS).map(Size)
    }
}
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, unit) = match self.0 {
            n if n > 0 && n.is_multiple_of(1 << 30) => (n >> 30, "GiB"),
            n if n > 0 && n.is_multiple_of(1 << 20) => (n >> 20, "MiB"),
            n if n > 0 && n.is_multiple_of(1 << 10) => (n >> 10, "KiB"),
            n => (n, "B"),
        };
        write!(f, "{n}{unit}")
    }
}

/// A span of time in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(pub u64);

impl FromStr for Duration {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        const UNITS: &[(&str, u64)] = &[
            ("us", 1),
            ("ms", 1_000),
            ("min", 60_000_000),
            ("s", 1_000_000),
            ("h", 3_600_000_000),
            ("d", 86_400_000_000),
        ];
        if text.parse::<u64>().is_ok_and(|n| n != 0) {
            return Err("it lacks its unit".into());
        }
        with_unit(text, UNITS).map(Duration)
    }
}
impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n, unit) = match self.0 {
            n if n > 0 && n.is_multiple_of(3_600_000_000) => (n / 3_600_000_000, "h"),
            n if n > 0 && n.is_multiple_of(60_000_000) => (n / 60_000_000, "min"),
            n if n > 0 && n.is_multiple_of(1_000_000) => (n / 1_000_000, "s"),
            n if n > 0 && n.is_multiple_of(1_000) => (n / 1_000, "ms"),
            n => (n, "us"),
        };
        write!(f, "{n}{unit}")
    }
}

fn with_unit(text: &str, units: &[(&str, u64)]) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| "it starts with a whole number".to_owned())?;
    let unit = unit.trim();
    let factor = match unit {
        "" => 1,
        unit => units
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
            .map(|(_, factor)| *factor)
            .ok_or_else(|| {
                let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
                format!("`{unit}` is not one of the units {}", names.join(", "))
            })?,
    };
    number
        .checked_mul(factor)
        .ok_or_else(|| "it is too large".to_owned())
}

fn with_length(text: &str) -> Result<(IpAddr, u8), String> {
    let (head, tail) = text
        .split_once('/')
        .ok_or("the prefix's length is missing, for example `/24`")?;
    let network = address(head)?;
    let most = if network.is_ipv4() { 32 } else { 128 };
    let len = tail
        .parse::<u8>()
        .ok()
        .filter(|len| {
            *len <= most && !tail.starts_with('+') && (tail.len() == 1 || !tail.starts_with('0'))
        })
        .ok_or_else(|| format!("`/{tail}` is not a length of 0 to {most}"))?;
    Ok((network, len))
}

fn address(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text
        .parse()
        .map_err(|_| "it is neither IPv4 nor IPv6".to_owned())?;
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err("an IPv4 address in IPv6 clothes: write it as IPv4".into())
        }
        address => Ok(address),
    }
}

/// IPv4 as ::ffff:a.b.c.d (RFC 4291, section 2.5.5.2).
pub fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn mask4(len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)
}
fn mask6(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

macro_rules! texts {
    ($($type:ident: $what:literal, $example:literal, $pattern:literal;)*) => {$(
        impl Scalar for $type {
            const WHAT: &'static str = $what;
            const EXAMPLE: &'static str = $example;
        }
        impl Decode for $type {
            fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
                scalar(node, findings)
            }
        }
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "description": $what, "pattern": $pattern, "examples": [$example] })
            }
        }
    )*};
}
macro_rules! plain_text {
    ($($type:ident)*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}
plain_text! { Name InterfaceName Namespace Path }
texts! {
    Name: "a name", "web1", "^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$";
    InterfaceName: "an interface's name", "eth0", "^[^/:% ]{1,15}$";
    Namespace: "a network namespace", "red-web1", "^(/.+|[^/ ]+)$";
    Path: "an absolute path", "/usr/lib/bulkhead/bulkhead-switch", "^/.*$";
    Mac: "a station's MAC address", "02:00:00:00:00:01", "^[0-9A-Fa-f][02468ACEace]([:-][0-9A-Fa-f]{2}){5}$";
    Ip: "an IP address", "10.1.1.10", "^[0-9A-Fa-f:.]+$";
    Prefix: "a network prefix", "10.1.1.0/24", "^[0-9A-Fa-f:.]+/[0-9]{1,3}$";
    InterfaceAddress: "an address with its prefix's length", "192.0.2.10/24", "^[0-9A-Fa-f:.]+/[0-9]{1,3}$";
}

macro_rules! quantities {
    ($($type:ident: $what:literal, $example:literal, $pattern:literal;)*) => {$(
        impl Scalar for $type {
            const WHAT: &'static str = $what;
            const EXAMPLE: &'static str = $example;
        }
        impl Decode for $type {
            fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
                scalar(node, findings)
            }
        }
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": ["string", "integer"], "description": $what, "pattern": $pattern, "examples": [$example] })
            }
        }
    )*};
}
quantities! {
    BitRate: "a rate in bits a second", "100Mbit", "^[0-9]+ ?([kMG]?bit)?$";
    Size: "a size in bytes", "1MiB", "^[0-9]+ ?([KMG]iB|[kMG]?B)?$";
    Duration: "a span of time", "50us", "^[0-9]+ ?(us|ms|s|min|h|d)?$";
}

impl Scalar for Number {
    const WHAT: &'static str = "a whole number";
    const EXAMPLE: &'static str = "1500";
}
/// A whole number before its type's range is known.
struct Number(u64);
impl FromStr for Number {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.parse()
            .map(Number)
            .map_err(|_| "it is written with digits only".into())
    }
}
macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Decode for $type {
            fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
                let Number(n) = scalar(node, findings)?;
                let fits = <$type>::try_from(n).ok();
                if fits.is_none() {
                    findings
                        .add("value", node.span, format!("{n} is too large"))
                        .help(format!("at most {}", <$type>::MAX));
                }
                fits
            }
        }
    )*};
}
numbers! { u16 u32 u64 }

/// `on` or `off` (`true`, `yes`, `false`, `no` are understood).
struct OnOff(bool);
impl Scalar for OnOff {
    const WHAT: &'static str = "`yes` or `no` (or `on`, `off`)";
    const EXAMPLE: &'static str = "yes";
}
impl FromStr for OnOff {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "on" | "true" | "yes" => Ok(OnOff(true)),
            "off" | "false" | "no" => Ok(OnOff(false)),
            _ => Err("it is none of them".into()),
        }
    }
}
/// A switch that is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Toggle(pub bool);

impl Decode for Toggle {
    fn decode(node: &Node, findings: &mut Findings) -> Option<Self> {
        scalar::<OnOff>(node, findings).map(|OnOff(on)| Toggle(on))
    }
}
impl Serialize for Toggle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bool(self.0)
    }
}
impl JsonSchema for Toggle {
    fn schema_name() -> Cow<'static, str> {
        "Toggle".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "`on` or `off`",
            "anyOf": [{ "type": "boolean" }, { "type": "string", "enum": ["on", "off", "yes", "no"] }]
        })
    }
}
