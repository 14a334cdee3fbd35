//! Where things lie in the two memory files of a direction, and what is legal.

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Records start and end at multiples of this many bytes.
pub const UNIT: usize = 16;
/// First bytes of a frame that are copied together: a whole small one.
pub const FIRST: usize = 64;
/// File D: the header page.
pub const HEADER_PAGE_AT: usize = 0;
/// File D: the producer's page.
pub const PRODUCER_PAGE_AT: usize = PAGE;
/// File D: the data area, to the file's end.
pub const DATA_AT: usize = 2 * PAGE;
/// First word of the header page: "BHFIFO\x00\x01" as little-endian bytes.
pub const MAGIC: u64 = u64::from_le_bytes(*b"BHFIFO\x00\x01");
/// Protocol version that this release speaks.
pub const VERSION: u32 = 1;
/// Words of the header page in use.
pub const HEADER_WORDS: usize = 4;
/// Longest record header, bytes, `header_units` = 16.
pub const MAX_HEADER: usize = 256;
/// Least capacity of a ring in shared memory is a page; this is the least the logic takes.
const MIN_CAPACITY: usize = 128;
/// Largest capacity: positions of a batch fit 32 bits with room to spare.
const MAX_CAPACITY: usize = 1 << 28;

/// What the header page says of the data area: records with headers, aligned to 16.
const RECORDS: u32 = 1;

/// The shape of one direction of a channel, as the supervisor fixed it; or of a circuit's, whose
/// memory has no header page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    capacity: u32,
    max_record: u32,
    features: u32,
}

/// A geometry that the protocol does not allow: the caller's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadGeometry {
    /// The capacity is not a power of two between 128 bytes and 256 MiB.
    Capacity,
    /// `max_record` is not a multiple of 16 from 32 to a quarter of the capacity.
    MaxRecord,
}

impl core::fmt::Display for BadGeometry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            BadGeometry::Capacity => "capacity is not a power of two from 128 bytes to 256 MiB",
            BadGeometry::MaxRecord => {
                "max_record is not a multiple of 16 from 32 to a quarter of the capacity"
            }
        })
    }
}
impl core::error::Error for BadGeometry {}

impl Geometry {
    /// A channel's. `capacity` in bytes, a power of two; `max_record` in bytes of a
    /// whole record (header and padding included), at most a quarter of `capacity`.
    pub const fn records(capacity: usize, max_record: usize) -> Result<Geometry, BadGeometry> {
        if !capacity.is_power_of_two() || capacity < MIN_CAPACITY || capacity > MAX_CAPACITY {
            return Err(BadGeometry::Capacity);
        }
        if !max_record.is_multiple_of(UNIT) || max_record < 2 * UNIT || max_record > capacity / 4 {
            return Err(BadGeometry::MaxRecord);
        }
        Ok(Geometry {
            capacity: capacity as u32,
            max_record: max_record as u32,
            features: 0,
        })
    }

    /// A stream of bytes, a circuit's. `capacity` in bytes, a power of two.
    pub const fn stream(capacity: usize) -> Result<Geometry, BadGeometry> {
        if !capacity.is_power_of_two() || capacity < MIN_CAPACITY || capacity > MAX_CAPACITY {
            return Err(BadGeometry::Capacity);
        }
        Ok(Geometry {
            capacity: capacity as u32,
            max_record: 0,
            features: 0,
        })
    }

    /// The least `max_record` for frames of so many bytes, with room for a capture note.
    pub const fn max_record_for(frame: usize) -> usize {
        (3 * UNIT + frame).next_multiple_of(UNIT)
    }

    /// Bytes of the data area.
    pub const fn capacity(&self) -> usize {
        self.capacity as usize
    }
    /// Longest whole record, bytes; 0 of a stream.
    pub const fn max_record(&self) -> usize {
        self.max_record as usize
    }
    /// Bytes of file D.
    pub const fn data_file_bytes(&self) -> usize {
        DATA_AT + self.capacity as usize
    }

    /// The words of the header page.
    pub const fn header_words(&self) -> [u64; HEADER_WORDS] {
        [
            MAGIC,
            VERSION as u64 | (self.features as u64) << 32,
            self.capacity as u64,
            self.max_record as u64 | (RECORDS as u64) << 32,
        ]
    }

    /// Whether the header page says what the supervisor said. Checked once, at
    /// attach; the page is never read again.
    pub fn agrees_with(&self, header: &[u64; HEADER_WORDS]) -> bool {
        self.header_words() == *header
    }
}
