//! The peer's misdeeds, by name and number.

macro_rules! breaches {
    ($($(#[doc = $doc:literal])+ $name:ident = $n:literal,)+) => {
        /// What the peer did that no honest implementation of `docs/fifo.md` does.
        /// The numbers are stable: they are in events and in `PortClosed`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Breach { $($(#[doc = $doc])+ $name = $n,)+ }
        impl Breach {
            /// All of them, in order of their numbers.
            pub const ALL: &'static [Breach] = &[$(Breach::$name,)+];
            /// From its number.
            pub const fn from_number(n: u32) -> Option<Breach> { match n { $($n => Some(Breach::$name),)+ _ => None } }
            /// One sentence for a person.
            pub const fn explain(self) -> &'static str { match self { $(Breach::$name => concat!($($doc),+),)+ } }
        }
        impl core::fmt::Display for Breach {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.explain().trim())
            }
        }
        impl core::error::Error for Breach {}
    };
}

breaches! {
    /// The peer's position lies outside what its last one and the capacity allow.
    Position = 1,
    /// The peer's position is not a multiple of 16.
    Unaligned = 2,
    /// A record header whose size is zero, beyond 256 bytes, or too small for its kind.
    Header = 3,
    /// A record of an unknown kind.
    Kind = 4,
    /// A record longer than the channel's longest.
    TooLong = 5,
    /// A record that runs over the end of the ring.
    CrossesEnd = 6,
    /// A record longer than what was published.
    Overrun = 7,
    /// A pad record at the start of the ring, or one that does not end with it.
    Pad = 8,
    /// More doorbell rings than there were reasons to ring.
    DoorbellFlood = 9,
    /// A stream, which cannot lose bytes, was restarted.
    StreamRestart = 10,
    /// The header page does not say what the supervisor said.
    HeaderPage = 11,
    /// A circuit's socket has what is no frame.
    Frame = 12,
    /// A circuit's peer counts bytes of the socket that it did not have.
    Count = 13,
}
