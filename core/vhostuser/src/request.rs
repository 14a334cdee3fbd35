//! Requests as they come: a header of three words, a payload of a fixed shape for each.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 12;
/// Bytes of a payload at most: a table of 8 regions is the longest that we take.
pub const MAX_PAYLOAD: usize = 512;
/// In a header's flags: the protocol's version.
pub const VERSION: u32 = 1;
/// In a header's flags: this is an answer.
pub const REPLY: u32 = 4;
/// In a header's flags: the asker waits for an answer, to whatever it is.
const NEED_REPLY: u32 = 8;

/// What stands before each message.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Header {
    /// A number of [`Request`].
    pub request: u32,
    /// Version, and whether it is an answer or asks for one.
    pub flags: u32,
    /// Bytes of the payload.
    pub size: u32,
}

impl Header {
    /// From its bytes, if a front end may say that.
    ///
    /// # Errors
    /// [`Fault::Header`].
    pub fn read(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Fault> {
        let header: Header = zerocopy::transmute!(*bytes);
        let fits = header.size as usize <= MAX_PAYLOAD;
        let plain = header.flags & !NEED_REPLY == VERSION;
        if !fits || !plain {
            return Err(Fault::Header(header));
        }
        Ok(header)
    }

    /// Whether an answer is waited for where none has a meaning of its own.
    pub fn wants_reply(self) -> bool {
        self.flags & NEED_REPLY != 0
    }
}

/// What a front end did that no honest one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A header of another version, an answer to nothing, or too long.
    #[error("a header that cannot be: {0:?}")]
    Header(Header),
    /// A payload of another length than its request has.
    #[error("request {request} with {bytes} bytes")]
    Payload {
        /// Its number.
        request: u32,
        /// What came.
        bytes: usize,
    },
    /// More or fewer descriptors than its request has.
    #[error("request {request} with {count} descriptors")]
    Descriptors {
        /// Its number.
        request: u32,
        /// What came.
        count: usize,
    },
    /// A request that is not offered.
    #[error("request {0}, which is not offered")]
    Unknown(u32),
    /// Features that are not offered.
    #[error("features {0:#x}, which are not offered")]
    Features(u64),
    /// A queue that there is not.
    #[error("queue {0}, which there is not")]
    Queue(u32),
    /// A size or position of a queue that cannot be.
    #[error("queue {queue} cannot have {value}")]
    Value {
        /// Its number.
        queue: u32,
        /// What was said.
        value: u32,
    },
    /// A ring that lies in no region of memory.
    #[error("a ring of queue {queue} at {address:#x}, which is no memory")]
    Ring {
        /// Its number.
        queue: u32,
        /// An address of the front end's own.
        address: u64,
    },
    /// Memory that cannot be: no region, too many, one twice, one that is not there.
    #[error("a table of memory that cannot be")]
    Memory,
}

macro_rules! requests {
    ($($(#[doc = $doc:literal])+ $name:ident = $n:literal,)+) => {
        /// What is asked.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Request { $($(#[doc = $doc])+ $name = $n,)+ }
        impl Request {
            /// From its number.
            pub const fn from_number(n: u32) -> Option<Request> { match n { $($n => Some(Request::$name),)+ _ => None } }
        }
    };
}
requests! {
    /// What is offered?
    GetFeatures = 1,
    /// These are taken.
    SetFeatures = 2,
    /// This connection is the owner.
    SetOwner = 3,
    /// Obsolete: every queue stops.
    ResetOwner = 4,
    /// All regions of memory.
    SetMemTable = 5,
    /// Where written pages are noted.
    SetLogBase = 6,
    /// What is written to when some were.
    SetLogFd = 7,
    /// A queue's size.
    SetVringNum = 8,
    /// Where its rings lie.
    SetVringAddr = 9,
    /// Where it goes on.
    SetVringBase = 10,
    /// Stop it: where was it?
    GetVringBase = 11,
    /// What its driver kicks.
    SetVringKick = 12,
    /// What calls its driver.
    SetVringCall = 13,
    /// What tells of errors.
    SetVringErr = 14,
    /// Which protocol features are offered?
    GetProtocolFeatures = 15,
    /// These are taken.
    SetProtocolFeatures = 16,
    /// How many queues?
    GetQueueNum = 17,
    /// A queue may run, or not.
    SetVringEnable = 18,
    /// Something to keep what is under way in.
    GetInflightFd = 31,
    /// This is what was kept.
    SetInflightFd = 32,
    /// Everything as at first.
    ResetDevice = 34,
    /// How many regions?
    GetMaxMemSlots = 36,
    /// One more region of memory.
    AddMemReg = 37,
    /// One fewer.
    RemMemReg = 38,
    /// What the driver says of itself.
    SetStatus = 39,
    /// What was said of it?
    GetStatus = 40,
}

/// A region of memory as a front end describes it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct MemoryRegion {
    /// Guest-physical address.
    pub guest: u64,
    /// Bytes.
    pub size: u64,
    /// Where the front end itself has it: rings are said by these.
    pub user: u64,
    /// Where it begins in its file.
    pub offset: u64,
}

/// One region alone.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct SingleRegion {
    pub padding: u64,
    pub region: MemoryRegion,
}

/// A queue and a number.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct VringState {
    pub queue: u32,
    pub value: u32,
}

/// Where a queue's rings lie, in the front end's own addresses.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct VringAddress {
    pub queue: u32,
    pub flags: u32,
    pub descriptors: u64,
    pub used: u64,
    pub available: u64,
    pub log: u64,
}

/// A log of written pages.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Log {
    pub size: u64,
    pub offset: u64,
}

/// Where what is under way is kept.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Inflight {
    pub size: u64,
    pub offset: u64,
    pub queues: u16,
    pub entries: u16,
    pub padding: u32,
}

/// Reads a payload that has just this shape.
pub(crate) fn shaped<T: FromBytes + KnownLayout + Immutable>(
    request: Request,
    payload: &[u8],
) -> Result<T, Fault> {
    T::read_from_bytes(payload).map_err(|_| Fault::Payload {
        request: request as u32,
        bytes: payload.len(),
    })
}
