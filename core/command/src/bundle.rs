//! What a proof is asked about, as bytes in sealed memory: the spec, the numbers, the
//! time, and the images of fabric and compartments. A part may be named by its digest
//! alone, where the reader holds it from a bundle before.
//!
//! Fixed offsets and one list. Who reads it takes it for an allegation: every place is
//! checked before it is followed, and nothing is allocated by the word of a length.

use std::collections::BTreeMap;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Compartments of a bundle, at most: as many as the fabric has slots.
pub const MOST_COMPARTMENTS: usize = 2048;
/// Bytes of a bundle, at most.
pub const MOST_BYTES: usize = 1 << 31;
/// Parts begin at multiples of this: images are walked where they lie.
pub const ALIGN: usize = 64;

const MAGIC: [u8; 8] = *b"bhproof1";

/// A part of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Here it is.
    Bytes(&'a [u8]),
    /// The one with this digest, which the reader holds.
    Held([u8; 32]),
}

/// What a bundle says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle<'a> {
    /// The time, seconds since 1970.
    pub now: u64,
    /// The spec's file name.
    pub source: &'a str,
    /// The spec's text; held: by SHA-256 over source, a zero and text.
    pub spec: Part<'a>,
    /// The numbers that names were given (JSON), as the store has them.
    pub numbers: &'a [u8],
    /// The fabric's image.
    pub fabric: Option<Part<'a>>,
    /// Each compartment's image, by its slot at the fabric.
    pub compartments: BTreeMap<u32, Part<'a>>,
}

/// Why bytes are no bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BundleError {
    /// Not one of this release, or shorter than its list.
    Form,
    /// A part lies outside, or at a place where none may begin.
    Place,
    /// More than a bundle may have.
    TooMuch,
    /// The compartments are not in order, or one is there twice.
    Order,
    /// The source's name is no text.
    Name,
}

impl core::fmt::Display for BundleError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            BundleError::Form => "it is not a bundle of this release",
            BundleError::Place => "a part of it lies outside",
            BundleError::TooMuch => "it has more than a bundle may have",
            BundleError::Order => "its compartments are not in order",
            BundleError::Name => "its source's name is no text",
        })
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    now: u64,
    compartments: u32,
    reserved: u32,
    source: Record,
    spec: Record,
    numbers: Record,
    fabric: Record,
}

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Record {
    /// `NONE`, `BYTES` or `HELD`.
    kind: u32,
    /// The compartment's; else 0.
    slot: u32,
    offset: u64,
    length: u64,
    digest: [u8; 32],
}

const NONE: u32 = 0;
const BYTES: u32 = 1;
const HELD: u32 = 2;

impl<'a> Bundle<'a> {
    /// Only a spec, for who is to read it ahead of the question.
    pub fn ahead(source: &'a str, spec: &'a [u8]) -> Bundle<'a> {
        Bundle {
            now: 0,
            source,
            spec: Part::Bytes(spec),
            numbers: &[],
            fabric: None,
            compartments: BTreeMap::new(),
        }
    }

    /// As bytes.
    pub fn write(&self) -> Vec<u8> {
        let list = size_of::<Header>() + self.compartments.len() * size_of::<Record>();
        let mut end = list;
        let mut place = |slot: u32, part: Option<Part<'a>>| match part {
            None => Record::default(),
            Some(Part::Held(digest)) => Record {
                kind: HELD,
                slot,
                digest,
                ..Record::default()
            },
            Some(Part::Bytes(bytes)) => {
                let offset = end.next_multiple_of(ALIGN);
                end = offset + bytes.len();
                Record {
                    kind: BYTES,
                    slot,
                    offset: offset as u64,
                    length: bytes.len() as u64,
                    digest: [0; 32],
                }
            }
        };
        let parts = [
            Some(Part::Bytes(self.source.as_bytes())),
            Some(self.spec),
            Some(Part::Bytes(self.numbers)),
            self.fabric,
        ];
        let [source, spec, numbers, fabric] = parts.map(|part| place(0, part));
        let records: Vec<Record> = self
            .compartments
            .iter()
            .map(|(slot, part)| place(*slot, Some(*part)))
            .collect();
        let header = Header {
            magic: MAGIC,
            now: self.now,
            compartments: records.len() as u32,
            reserved: 0,
            source,
            spec,
            numbers,
            fabric,
        };
        let mut out = Vec::with_capacity(end);
        out.extend_from_slice(header.as_bytes());
        out.extend_from_slice(records.as_bytes());
        let compartments = self.compartments.values().copied().map(Some);
        for part in parts.into_iter().chain(compartments) {
            if let Some(Part::Bytes(bytes)) = part {
                out.resize(out.len().next_multiple_of(ALIGN), 0);
                out.extend_from_slice(bytes);
            }
        }
        out
    }

    /// From bytes that somebody else wrote.
    ///
    /// # Errors
    /// The first thing that is wrong with them.
    pub fn read(bytes: &'a [u8]) -> Result<Bundle<'a>, BundleError> {
        if bytes.len() > MOST_BYTES {
            return Err(BundleError::TooMuch);
        }
        let (header, mut rest) = Header::read_from_prefix(bytes).map_err(|_| BundleError::Form)?;
        if header.magic != MAGIC {
            return Err(BundleError::Form);
        }
        let count = header.compartments as usize;
        if count > MOST_COMPARTMENTS {
            return Err(BundleError::TooMuch);
        }
        let first = size_of::<Header>() + count * size_of::<Record>();
        let part = |record: &Record| match record.kind {
            NONE => Ok(None),
            HELD => Ok(Some(Part::Held(record.digest))),
            BYTES => {
                let (Ok(offset), Ok(length)) = (
                    usize::try_from(record.offset),
                    usize::try_from(record.length),
                ) else {
                    return Err(BundleError::Place);
                };
                let end = offset.checked_add(length).ok_or(BundleError::Place)?;
                let place = bytes.get(offset..end).ok_or(BundleError::Place)?;
                if offset < first || offset % ALIGN != 0 {
                    return Err(BundleError::Place);
                }
                Ok(Some(Part::Bytes(place)))
            }
            _ => Err(BundleError::Form),
        };
        let whole = |record: &Record| match part(record)? {
            Some(Part::Bytes(bytes)) => Ok(bytes),
            _ => Err(BundleError::Form),
        };
        let mut compartments = BTreeMap::new();
        for _ in 0..count {
            let (record, behind) = Record::read_from_prefix(rest).map_err(|_| BundleError::Form)?;
            rest = behind;
            let last = compartments.last_key_value().map(|(last, _)| *last);
            if last.is_some_and(|last| last >= record.slot) {
                return Err(BundleError::Order);
            }
            compartments.insert(record.slot, part(&record)?.ok_or(BundleError::Form)?);
        }
        Ok(Bundle {
            now: header.now,
            source: core::str::from_utf8(whole(&header.source)?).map_err(|_| BundleError::Name)?,
            spec: part(&header.spec)?.ok_or(BundleError::Form)?,
            numbers: whole(&header.numbers)?,
            fabric: part(&header.fabric)?,
            compartments,
        })
    }
}
