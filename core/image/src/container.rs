//! The container: header, section table, sections, digest.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | magic `BHIMAGE1` |
//! | 8..10, 10..12 | version, [`Kind`] |
//! | 12..16 | sections |
//! | 16..24 | length of the whole |
//! | 24..56 | BLAKE3 over the whole with these 32 bytes as zeros |
//! | 56..64 | zero |
//! | 64.. | one 32-byte entry a section: bytes a record, zero, offset, records, seed |
//!
//! Then the sections in the order of their kind's list, each at the next multiple
//! of 16, with zeros between: where everything lies follows from the counts, so
//! sections can neither overlap nor leave room for anything else.

use crate::map::MapError;
use guard::guard;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of the container and its records that this release writes and reads.
pub const VERSION: u16 = 4;
/// Longest image, bytes: a compartment of 65,535 endpoints is under 20 MiB, and a table
/// of 250 rules that are usual is about 23 KiB.
pub const MAX_BYTES: usize = 64 << 20;

const MAGIC: [u8; 8] = *b"BHIMAGE1";
const HEADER: usize = size_of::<Header>();
const ENTRY: usize = size_of::<Entry>();
const DIGEST_AT: usize = 24;
const DIGEST_END: usize = DIGEST_AT + 32;
const ALIGN: usize = 16;

/// What an image is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// A compartment's switch.
    Compartment = 1,
    /// The fabric.
    Fabric = 2,
}

/// BLAKE3 (256 bits) of an image: what stands in its header, and in `Install` and `UseImage`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl core::fmt::Display for Digest {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}
impl core::fmt::Debug for Digest {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// Computes an image's digest from its bytes, whatever its header claims. Zeros
/// stand in for the digest's own place. `None`: too short to be an image.
pub fn digest(bytes: &[u8]) -> Option<Digest> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(bytes.get(..DIGEST_AT)?);
    hasher.update(&[0; 32]);
    hasher.update(bytes.get(DIGEST_END..)?);
    Some(Digest(hasher.finalize().into()))
}

/// The digest that an image's header claims, unchecked: for who has just built it.
pub fn claimed_digest(bytes: &[u8]) -> Option<Digest> {
    let (header, _) = Header::read_from_prefix(bytes).ok()?;
    Some(Digest(header.digest))
}

/// What an image claims to be for; `None`: not an image of ours.
pub fn kind(bytes: &[u8]) -> Option<Kind> {
    let (header, _) = Header::read_from_prefix(bytes).ok()?;
    match header.kind {
        _ if header.magic != MAGIC => None,
        1 => Some(Kind::Compartment),
        2 => Some(Kind::Fabric),
        _ => None,
    }
}

/// A copy of an image in memory aligned as mapped memory is.
#[derive(Clone)]
pub struct Aligned {
    words: Vec<u128>,
    len: usize,
}

impl Aligned {
    /// Copies the bytes.
    pub fn copy_of(bytes: &[u8]) -> Aligned {
        let mut words = vec![0u128; bytes.len().div_ceil(ALIGN)];
        for (to, from) in words.as_mut_bytes().iter_mut().zip(bytes) {
            *to = *from;
        }
        Aligned {
            words,
            len: bytes.len(),
        }
    }
}
impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        self.words.as_bytes().get(..self.len).unwrap_or(&[])
    }
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: u16,
    kind: u16,
    sections: u32,
    total: u64,
    digest: [u8; 32],
    reserved: u64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Entry {
    record_bytes: u32,
    reserved: u32,
    offset: u64,
    count: u64,
    seed: u64,
}

/// Where a section lies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Section {
    offset: usize,
    bytes: usize,
    count: usize,
    /// Seed of a hash table; else 0.
    pub(crate) seed: u64,
}

/// A section to be written.
pub(crate) struct Part<'a> {
    pub(crate) record_bytes: usize,
    pub(crate) bytes: &'a [u8],
    pub(crate) seed: u64,
}

impl<'a> Part<'a> {
    pub(crate) fn of<T: IntoBytes + Immutable>(records: &'a [T]) -> Part<'a> {
        Part::seeded(records, 0)
    }
    pub(crate) fn seeded<T: IntoBytes + Immutable>(records: &'a [T], seed: u64) -> Part<'a> {
        Part {
            record_bytes: size_of::<T>(),
            bytes: records.as_bytes(),
            seed,
        }
    }
}

/// Writes an image.
pub(crate) fn write(kind: Kind, parts: &[Part<'_>]) -> Vec<u8> {
    let table = HEADER + parts.len() * ENTRY;
    let total = parts
        .iter()
        .fold(table, |at, p| at.next_multiple_of(ALIGN) + p.bytes.len());
    let mut out = Vec::with_capacity(total);
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        kind: kind as u16,
        sections: parts.len() as u32,
        total: total as u64,
        digest: [0; 32],
        reserved: 0,
    };
    out.extend_from_slice(header.as_bytes());
    let mut at = table;
    for part in parts {
        at = at.next_multiple_of(ALIGN);
        let entry = Entry {
            record_bytes: part.record_bytes as u32,
            reserved: 0,
            offset: at as u64,
            count: (part.bytes.len() / part.record_bytes.max(1)) as u64,
            seed: part.seed,
        };
        out.extend_from_slice(entry.as_bytes());
        at += part.bytes.len();
    }
    for part in parts {
        out.resize(out.len().next_multiple_of(ALIGN), 0);
        out.extend_from_slice(part.bytes);
    }
    seal(&mut out);
    out
}

/// Puts the digest of the rest into its place.
pub(crate) fn seal(image: &mut [u8]) {
    if let Some(Digest(digest)) = digest(image)
        && let Some(place) = image.get_mut(DIGEST_AT..DIGEST_END)
    {
        place.copy_from_slice(&digest);
    }
}

/// Checks the container and says where its `N` sections lie; `records` are the
/// bytes a record of each.
pub(crate) fn open<const N: usize>(
    bytes: &[u8],
    kind: Kind,
    records: &[usize; N],
) -> Result<([Section; N], Digest), MapError> {
    let (sections, claimed) = open_written(bytes, kind, records)?;
    if guard!("image-digest") && digest(bytes) != Some(claimed) {
        return Err(MapError::Digest);
    }
    Ok((sections, claimed))
}

/// The same for bytes that [`write()`] has just made, whose digest needs no second look.
pub(crate) fn open_written<const N: usize>(
    bytes: &[u8],
    kind: Kind,
    records: &[usize; N],
) -> Result<([Section; N], Digest), MapError> {
    if !(bytes.as_ptr() as usize).is_multiple_of(ALIGN) {
        return Err(MapError::Alignment);
    }
    let (header, _) = Header::read_from_prefix(bytes).map_err(|_| MapError::Short)?;
    if header.magic != MAGIC {
        return Err(MapError::Magic);
    }
    if header.version != VERSION {
        return Err(MapError::Version);
    }
    if header.kind != kind as u16 {
        return Err(MapError::Kind);
    }
    if header.total != bytes.len() as u64 || bytes.len() > MAX_BYTES {
        return Err(MapError::Length);
    }
    if header.sections as usize != N || header.reserved != 0 {
        return Err(MapError::Layout);
    }
    let mut sections = [Section::default(); N];
    let mut end = HEADER + N * ENTRY;
    for (i, (section, record_bytes)) in sections.iter_mut().zip(records).enumerate() {
        let entry = bytes.get(HEADER + i * ENTRY..).ok_or(MapError::Short)?;
        let (entry, _) = Entry::read_from_prefix(entry).map_err(|_| MapError::Short)?;
        let start = end.next_multiple_of(ALIGN);
        // Counts beyond the file fail here, so nothing below overflows.
        let count = usize::try_from(entry.count)
            .ok()
            .filter(|c| *c <= bytes.len());
        let count = count.ok_or(MapError::Layout)?;
        if entry.offset != start as u64
            || entry.record_bytes as usize != *record_bytes
            || entry.reserved != 0
        {
            return Err(MapError::Layout);
        }
        let size = count * record_bytes;
        let padding = bytes.get(end..start).ok_or(MapError::Layout)?;
        if padding.iter().any(|b| *b != 0) {
            return Err(MapError::Layout);
        }
        end = start + size;
        if end > bytes.len() {
            return Err(MapError::Layout);
        }
        *section = Section {
            offset: start,
            bytes: size,
            count,
            seed: entry.seed,
        };
    }
    if end != bytes.len() {
        return Err(MapError::Layout);
    }
    Ok((sections, Digest(header.digest)))
}

impl Section {
    /// Its records; nothing where it does not lie inside `bytes` (which [`open`]
    /// has excluded).
    #[inline]
    pub(crate) fn slice<'a, T: FromBytes + Immutable + KnownLayout>(
        &self,
        bytes: &'a [u8],
    ) -> &'a [T] {
        bytes
            .get(self.offset..self.offset.wrapping_add(self.bytes))
            .and_then(|bytes| <[T]>::ref_from_bytes_with_elems(bytes, self.count).ok())
            .unwrap_or(&[])
    }
}
