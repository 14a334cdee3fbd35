//! Who did what, when, and what came of it: appended, never changed.
//!
//! Each entry has the digest of the one before, so that none can be changed, taken out or
//! put in between unnoticed. What grows too old goes, and of what grows too much the
//! oldest of whoever has most; an entry of its own says so (`cut`). Who can write the file
//! can still write the whole chain anew, or cut its end: against that, keep the digest of
//! the last one elsewhere.

use crate::{Store, StoreError, decode, encode, wrong};
use api::{AuditCheck, AuditEntry};
use cut::Gap;
use guard::guard;
use redb::{
    ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction,
};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;

mod cut;

const AUDIT: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("audit");
/// Bytes of what one entry says, at most; the rest is counted.
const LONGEST: usize = 16 << 10;
/// What the first entry of all has for the digest of the one before.
const NOTHING: &str = "";
/// An entry of the log's own, about those that went.
const CUT: &str = "cut";
/// What a deed of that kind is filed under: none is taken for the log's own word.
const NOT_CUT: &str = "cut-by";

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
        let mut gaps = self.gaps()?;
        // From the newest to the oldest: (its number, what it says of the one before).
        let mut later: Option<(u64, String)> = None;
        // What the newest entry about a cut says of what is gone.
        let mut cut: Option<String> = None;
        let mut broken = Vec::new();
        let of_gaps = cut::digest(&gaps);
        self.each_audited(|entry| {
            check.entries += 1;
            let after = |(number, previous): &(u64, String)| {
                entry.number.checked_add(1) == Some(*number) && *previous == entry.digest
            };
            let follows = match &later {
                Some(one) => after(one) || cut::before(&gaps, one).is_some_and(|one| after(&one)),
                None => {
                    check.last = entry.number;
                    check.head = entry.digest.clone();
                    true
                }
            };
            if guard!("audit-chain") && !(follows && digest(&entry) == entry.digest) {
                broken.push(entry.number);
            }
            if is_own(&entry.kind, entry.uid) && cut.is_none() {
                // One of an earlier release says where the log begins.
                gaps.extend(cut::beginning(&entry.object));
                cut = Some(entry.object);
            }
            later = Some((entry.number, entry.previous));
            true
        })?;
        if let Some(oldest) = later {
            check.first = oldest.0;
            let first_of_all = (0, NOTHING.to_owned());
            let begins = oldest == first_of_all
                || cut::before(&gaps, &oldest).is_some_and(|one| one == first_of_all);
            if guard!("audit-begin") && !begins {
                broken.push(oldest.0);
            }
            // What is gone is what the newest cut, in the chain, says that it is.
            let said = match cut {
                Some(said) => cut::beginning(&said).is_some() || said == of_gaps,
                None => gaps.is_empty(),
            };
            if guard!("audit-gaps") && !said {
                broken.push(oldest.0);
            }
        }
        check.whole = broken.is_empty();
        check.broken = broken.iter().rev().take(16).copied().collect();
        Ok(check)
    }

    /// What is gone, by the number it begins with.
    fn gaps(&mut self) -> Result<BTreeMap<u64, Gap>, StoreError> {
        let read = self.database()?.begin_read().map_err(|e| wrong(e.into()))?;
        let table = match read.open_table(cut::GAPS) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()),
            Err(error) => return Err(wrong(error.into())),
        };
        let mut gaps = BTreeMap::new();
        for row in table.iter().map_err(|e| wrong(e.into()))? {
            let (from, value) = row.map_err(|e| wrong(e.into()))?;
            gaps.insert(from.value(), decode(value.value())?);
        }
        Ok(gaps)
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
        Ok::<(), redb::Error>(())
    };
    for deed in deeds {
        add(&mut table, filed(deed.0.clone()))?;
    }
    // Cut now and then, some at a time: a cut is an entry too.
    let most = bounds.entries.max(deeds.len() as u64);
    let old_ms = |age_s: u64| newest.saturating_sub(age_s.saturating_mul(1000));
    let oldest = table.first()?.map(|(_, value)| value.value().to_vec());
    let oldest = oldest.and_then(|bytes| decode::<AuditEntry>(&bytes).ok());
    let age_s = bounds.age_s.saturating_add(bounds.age_s / 16);
    let due = table.len()? > most + most / 16
        || oldest.is_some_and(|entry| entry.time_ms < old_ms(age_s));
    if !due {
        return Ok(());
    }
    if let Some(mut gone) = cut::cut(write, &mut table, most, old_ms(bounds.age_s))? {
        gone.time_ms = newest;
        add(&mut table, gone)?;
    }
    Ok(())
}

/// Whether an entry is the log's own word about what it cut. Deeds of this kind (of the
/// releases that had such) are of somebody, and so with a uid; since then there are none.
fn is_own(kind: &str, uid: Option<u32>) -> bool {
    kind == CUT && !(uid.is_some() && guard!("audit-own-word"))
}

/// A deed as it is written.
fn filed(mut deed: AuditEntry) -> AuditEntry {
    if deed.kind == CUT && guard!("audit-own-kind") {
        deed.kind = NOT_CUT.into();
    }
    deed
}

/// SHA-256 of all of an entry but its digest, hex.
pub(crate) fn digest(entry: &AuditEntry) -> String {
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
