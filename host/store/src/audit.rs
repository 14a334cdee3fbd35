//! Who did what, when, and what came of it: appended, never changed.
//!
//! Each entry has the digest of the one before, so that none can be changed, taken out or
//! put in between unnoticed. What grows too old or too much goes from the oldest on, and
//! an entry of its own says up to where. Who can write the file can still write the whole
//! chain anew, or cut its end: against that, keep the digest of the last one elsewhere.

use crate::{Store, StoreError, decode, encode, wrong};
use api::{AuditCheck, AuditEntry};
use guard::guard;
use redb::{ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use sha2::{Digest, Sha256};
use std::fmt::Write;

const AUDIT: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("audit");
/// Bytes of what one entry says, at most; the rest is counted.
const LONGEST: usize = 16 << 10;
/// What the first entry of all has for the digest of the one before.
const NOTHING: &str = "";
/// An entry about those that went.
const CUT: &str = "cut";

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Seconds.
    pub age_s: u64,
    /// Entries.
    pub entries: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            age_s: 400 * 24 * 3600,
            entries: 100_000,
        }
    }
}

/// Something that somebody did; the log gives it its number and its place in the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deed(pub AuditEntry);

impl Store {
    /// With other bounds of the audit log.
    pub fn bounded(mut self, bounds: Bounds) -> Store {
        self.bounds = bounds;
        self
    }

    /// Entries that pass, of those from `from_ms` on and before `to_ms` (Unix time), the
    /// oldest first: the last `most` of them.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn audit(
        &mut self,
        from_ms: u64,
        to_ms: u64,
        most: usize,
        passes: impl Fn(&AuditEntry) -> bool,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        let mut found = Vec::new();
        self.each_audited(|entry| {
            let within = entry.time_ms >= from_ms && entry.time_ms < to_ms;
            if within && passes(&entry) {
                found.push(entry);
            }
            found.len() < most
        })?;
        found.reverse();
        Ok(found)
    }

    /// Whether the log is whole: each entry as it was written, none missing between the
    /// oldest that is kept and the newest, and the oldest one the first of all or the one
    /// that the last cut left.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn audit_check(&mut self) -> Result<AuditCheck, StoreError> {
        let mut check = AuditCheck {
            whole: true,
            ..AuditCheck::default()
        };
        // From the newest to the oldest: (its number, what it says of the one before).
        let mut later: Option<(u64, String)> = None;
        // Where the newest entry about a cut says that the log begins, after what digest.
        let mut cut: Option<(u64, String)> = None;
        let mut broken = Vec::new();
        self.each_audited(|entry| {
            check.entries += 1;
            let follows = match &later {
                Some((number, previous)) => {
                    entry.number.checked_add(1) == Some(*number) && *previous == entry.digest
                }
                None => {
                    check.last = entry.number;
                    check.head = entry.digest.clone();
                    true
                }
            };
            if guard!("audit-chain") && !(follows && digest(&entry) == entry.digest) {
                broken.push(entry.number);
            }
            if entry.kind == CUT && cut.is_none() {
                cut = begins(&entry);
            }
            later = Some((entry.number, entry.previous.clone()));
            true
        })?;
        let (first, previous) = later.unwrap_or_default();
        check.first = first;
        let began = cut.unwrap_or((0, NOTHING.to_owned()));
        if check.entries > 0 && guard!("audit-begin") && (first, previous) != began {
            broken.push(first);
        }
        check.whole = broken.is_empty();
        check.broken = broken.iter().rev().take(16).copied().collect();
        Ok(check)
    }

    /// Reads all bytes of it once.
    pub(crate) fn audit_readable(&mut self) -> Result<(), StoreError> {
        let read = self.database()?.begin_read().map_err(|e| wrong(e.into()))?;
        let table = match read.open_table(AUDIT) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(()),
            Err(error) => return Err(wrong(error.into())),
        };
        for row in table.iter().map_err(|e| wrong(e.into()))? {
            row.map_err(|e| wrong(e.into()))?;
        }
        Ok(())
    }

    /// All, the newest first, until it says enough.
    fn each_audited(&mut self, mut each: impl FnMut(AuditEntry) -> bool) -> Result<(), StoreError> {
        let read = self.database()?.begin_read().map_err(|e| wrong(e.into()))?;
        let table = match read.open_table(AUDIT) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(()),
            Err(error) => return Err(wrong(error.into())),
        };
        for row in table.iter().map_err(|e| wrong(e.into()))?.rev() {
            let (_, value) = row.map_err(|e| wrong(e.into()))?;
            if !each(decode(value.value())?) {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Adds these to the log, and takes out what is too old or too much.
pub fn append(write: &WriteTransaction, deeds: &[Deed], bounds: Bounds) -> Result<(), redb::Error> {
    let Some(newest) = deeds.last().map(|deed| deed.0.time_ms) else {
        return Ok(());
    };
    let mut table = write.open_table(AUDIT)?;
    let last = table.last()?.map(|(_, value)| value.value().to_vec());
    let last = last.and_then(|bytes| decode::<AuditEntry>(&bytes).ok());
    let (mut number, mut previous) = match last {
        Some(entry) => (entry.number + 1, entry.digest),
        None => (0, NOTHING.to_owned()),
    };
    let mut add = |table: &mut redb::Table<'_, u64, &[u8]>, mut entry: AuditEntry| {
        shorten(&mut entry);
        entry.number = number;
        entry.previous = std::mem::take(&mut previous);
        entry.digest = digest(&entry);
        table.insert(number, encode(&entry).as_slice())?;
        previous = entry.digest;
        number += 1;
        Ok::<u64, redb::Error>(number)
    };
    let mut next = 0;
    for deed in deeds {
        next = add(&mut table, deed.0.clone())?;
    }
    // Cut now and then, some at a time: a cut is an entry too.
    let oldest = |table: &redb::Table<'_, u64, &[u8]>| {
        let bytes = table.first()?.map(|(_, value)| value.value().to_vec());
        Ok::<_, redb::Error>(bytes.and_then(|bytes| decode::<AuditEntry>(&bytes).ok()))
    };
    let beyond = |entry: &AuditEntry, most: u64, age_s: u64| {
        let old = newest.saturating_sub(age_s.saturating_mul(1000)) > entry.time_ms;
        next - entry.number > most || old
    };
    let (most, age_s) = (bounds.entries.max(deeds.len() as u64), bounds.age_s);
    let due = oldest(&table)?
        .is_some_and(|entry| beyond(&entry, most + most / 16, age_s.saturating_add(age_s / 16)));
    if !due {
        return Ok(());
    }
    let mut went: Option<AuditEntry> = None;
    let mut count = 0_u64;
    // Bound: each turn takes one out, and the newest stays.
    while let Some(entry) = oldest(&table)?
        && entry.number + 1 < next
        && beyond(&entry, most, age_s)
    {
        table.remove(entry.number)?;
        went = Some(entry);
        count += 1;
    }
    if let Some(went) = went {
        let cut = AuditEntry {
            time_ms: newest,
            kind: CUT.into(),
            object: format!("{} {}", went.number + 1, went.digest),
            details: vec![format!(
                "{count} entries up to number {} were too old or too many and are gone",
                went.number
            )],
            outcome: "done".into(),
            ..AuditEntry::default()
        };
        add(&mut table, cut)?;
    }
    Ok(())
}

/// The number that the log begins with since this cut, and the digest before it.
fn begins(cut: &AuditEntry) -> Option<(u64, String)> {
    let (number, digest) = cut.object.split_once(' ')?;
    Some((number.parse().ok()?, digest.to_owned()))
}

/// SHA-256 of all of an entry but its digest, hex.
fn digest(entry: &AuditEntry) -> String {
    let bare = AuditEntry {
        digest: String::new(),
        ..entry.clone()
    };
    let sum = Sha256::digest(encode(&bare));
    sum.iter().fold(String::new(), |mut out, byte| {
        // Writing to a String does not fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Keeps of what an entry says as many lines as there is room for, the first ones: who
/// writes it puts what matters most first.
fn shorten(entry: &mut AuditEntry) {
    let all = entry.details.len();
    let mut room = LONGEST;
    let mut fits = |line: &String| {
        let left = room.checked_sub(line.len() + 1);
        room = left.unwrap_or(0);
        left.is_some()
    };
    let kept = entry.details.iter().take_while(|line| fits(line)).count();
    entry.details.truncate(kept);
    if kept < all {
        entry.details.push(format!("and {} more", all - kept));
    }
}
