//! Records of the fabric's image: who may say what to whom.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! record {
    ($(#[$m:meta])* pub struct $name:ident { $($(#[$fm:meta])* pub $f:ident: $t:ty,)* }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $($(#[$fm])* pub $f: $t,)* }
        impl Default for $name { fn default() -> Self { zerocopy::FromZeros::new_zeroed() } }
    };
}

record! {
    /// A channel of the fabric: a compartment's, or an uplink.
    pub struct Channel {
        /// Compartment id, or uplink number.
        pub id: u32,
        /// One of `CHANNEL_*`.
        pub kind: u32,
        /// The fabric's slot it is plugged in.
        pub slot: u32,
        /// Deficit round robin weight, 1..=255.
        pub weight: u32,
        /// Guaranteed minimum, wire bytes a second; 0 = none.
        pub min_bytes: u64,
        /// First of its [`Template`]s.
        pub templates_first: u32,
        /// How many.
        pub templates_count: u32,
    }
}
/// A compartment's channel.
pub const CHANNEL_COMPARTMENT: u32 = 1;
/// An uplink.
pub const CHANNEL_UPLINK: u32 = 2;

record! {
    /// Hash slot: (ingress slot, tag, destination MAC) to where it goes. On an uplink the
    /// tag is the VLAN of a frame, which is put on and taken off there; 0 = it has no tag.
    /// A zero MAC is the entry for every other unicast MAC of that (ingress, tag),
    /// [`EVERY_GROUP`] that for every other group.
    /// Empty when `kind` is 0.
    pub struct Forward {
        /// Ingress slot.
        pub ingress: u32,
        /// Tag on ingress.
        pub tag: u16,
        /// Destination MAC.
        pub mac: [u8; 6],
        /// FORWARD_UNICAST: egress slot. FORWARD_GROUP: index into groups.
        pub target: u32,
        /// Tag on egress (unicast).
        pub out_tag: u16,
        /// One of `FORWARD_*`.
        pub kind: u16,
    }
}
/// To one slot.
pub const FORWARD_UNICAST: u16 = 1;
/// To each member of a group but the ingress.
pub const FORWARD_GROUP: u16 = 2;
/// From a compartment to one uplink as part of a segment: by no template, but only from
/// MACs for which what comes from there with that tag on egress comes to this very
/// (ingress, tag), and only ARP and IP.
pub const FORWARD_SEGMENT: u16 = 3;
/// The MAC that stands for every group without an entry of its own. Nobody's: of an
/// identifier (00-00-00) whose groups are not used.
pub const EVERY_GROUP: [u8; 6] = [1, 0, 0, 0, 0, 0];

record! {
    /// A group of channels.
    pub struct Group {
        /// First of its members.
        pub members_first: u32,
        /// How many.
        pub members_count: u32,
    }
}
record! {
    /// A member of a group.
    pub struct GroupMember {
        /// Egress slot.
        pub slot: u32,
        /// Tag on egress.
        pub out_tag: u16,
        /// Zero.
        pub reserved: u16,
    }
}
record! {
    /// A mask-compare over the first bytes of a frame toward an uplink. A frame
    /// passes when at least one template of its ingress channel for that egress
    /// and tag matches: `frame[i] & mask[i] == value[i]` for all i, no byte is over
    /// its bound, and the same compare with the exception does not hold.
    pub struct Template {
        /// Egress slot it speaks for.
        pub egress: u32,
        /// Ingress tag it speaks for.
        pub tag: u16,
        /// Bytes compared, 14..=80; a shorter frame does not match.
        pub len: u16,
        /// Bytes looked at by bounds and exception, up to 80, where these are more than `len`.
        pub looked: u16,
        /// Zero.
        pub reserved: u16,
        /// Most that some bytes may be.
        pub bounds: [Bound; BOUNDS],
        /// Mask over the frame from its first byte.
        pub mask: [u8; TEMPLATE_BYTES],
        /// Expected value; zero where the mask is.
        pub value: [u8; TEMPLATE_BYTES],
        /// Mask of the exception; all zeros: there is none.
        pub except_mask: [u8; TEMPLATE_BYTES],
        /// Value of the exception; zero where its mask is.
        pub except_value: [u8; TEMPLATE_BYTES],
    }
}
record! {
    /// The most that a byte of a frame may be.
    pub struct Bound {
        /// Its place in the frame; 0: nothing is bounded.
        pub at: u8,
        /// The most.
        pub most: u8,
    }
}
/// Bounds of a template.
pub const BOUNDS: usize = 2;

impl Template {
    /// Bytes of a frame that are looked at.
    #[inline]
    pub const fn reach(&self) -> u16 {
        if self.looked > self.len {
            self.looked
        } else {
            self.len
        }
    }
}

record! {
    /// The channel in a slot: the section is indexed by slot.
    pub struct SlotChannel {
        /// Index into channels, or [`crate::compartment::NONE`].
        pub channel: u32,
    }
}
/// Slots are below this.
pub const MAX_SLOTS: u32 = 1 << 16;
/// Bytes from a frame's start that a template can look at: to the end of a neighbour
/// advertisement's target (RFC 4861, 4.4), in whole words.
pub const TEMPLATE_BYTES: usize = 80;
