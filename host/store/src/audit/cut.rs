//! What is taken out of the audit log, and what is remembered of it: where it was, and the
//! digests at its ends, so that what is left is still one chain. The newest entry about a
//! cut has the digest of all that is remembered.

use super::{CUT, NOTHING, is_own};
use crate::{decode, encode};
use api::AuditEntry;
use guard::guard;
use redb::{ReadableTable, TableDefinition, WriteTransaction};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt::Write;

/// By the number of the first that is gone. No two touch, so there are at most as many as
/// entries, and one.
pub(super) const GAPS: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("audit-gaps");
/// So many owners are named in an entry about a cut.
const NAMED: usize = 8;

/// Entries without one between them that are gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gap {
    /// Number of the last of them.
    to: u64,
    /// Digest of the entry before the first.
    previous: String,
    /// Digest of the last.
    digest: String,
}

/// What is needed of an entry to say whether it stays.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    time_ms: u64,
    uid: Option<u32>,
    by: String,
    kind: String,
}

impl Entry {
    /// Who has it in the log: a tenant what it did itself; what nobody is known to have
    /// done, or what follows from what tenants state, goes by its kind; all else is the
    /// provider's.
    fn owner(self) -> String {
        match self.kind.as_str() {
            "shared" | "ended" | "refused" => format!("`{}`", self.kind),
            kind if is_own(kind, self.uid) => format!("`{kind}`"),
            _ if self.by.is_empty() => "the provider".into(),
            _ => format!("tenant {}", self.by),
        }
    }
}

/// Takes out what is older than `old_ms` (Unix time), and more, the oldest of whoever has
/// most first, until `most` are left; the newest of all stays. What the log then says of it.
pub(super) fn cut(
    write: &WriteTransaction,
    table: &mut redb::Table<'_, u64, &'static [u8]>,
    most: u64,
    old_ms: u64,
) -> Result<Option<AuditEntry>, redb::Error> {
    let mut owners: BTreeMap<String, VecDeque<u64>> = BTreeMap::new();
    let mut gone: Vec<u64> = Vec::new();
    let mut went: BTreeMap<String, u64> = BTreeMap::new();
    let mut left = 0;
    let newest = table.last()?.map(|(number, _)| number.value());
    for row in table.iter()? {
        let (number, value) = row?;
        let entry: Entry = decode(value.value()).unwrap_or_default();
        left += 1;
        if Some(number.value()) == newest {
            continue;
        }
        let old = entry.time_ms < old_ms;
        let owner = match guard!("audit-each") {
            true => entry.owner(),
            false => String::new(),
        };
        if old {
            gone.push(number.value());
            *went.entry(owner).or_default() += 1;
            left -= 1;
        } else {
            owners.entry(owner).or_default().push_back(number.value());
        }
    }
    let first = |all: &VecDeque<u64>| Reverse(all.front().copied());
    let mut heap: BinaryHeap<_> = (owners.into_iter())
        .map(|(owner, all)| (all.len(), first(&all), owner, all))
        .collect();
    // Bound: each turn takes one out.
    while left > most
        && let Some((_, _, owner, mut all)) = heap.pop()
        && let Some(number) = all.pop_front()
    {
        gone.push(number);
        *went.entry(owner.clone()).or_default() += 1;
        left -= 1;
        heap.push((all.len(), first(&all), owner, all));
    }
    if gone.is_empty() {
        return Ok(None);
    }
    let mut gaps = write.open_table(GAPS)?;
    remember_beginning(table, &mut gaps)?;
    for number in &gone {
        let bytes = table.remove(number)?.map(|value| value.value().to_vec());
        let entry: AuditEntry = bytes
            .and_then(|bytes| decode(&bytes).ok())
            .unwrap_or_default();
        remember(&mut gaps, *number, entry)?;
    }
    let mut all = BTreeMap::new();
    for row in gaps.iter()? {
        let (from, value) = row?;
        if let Ok(gap) = decode(value.value()) {
            all.insert(from.value(), gap);
        }
    }
    Ok(Some(AuditEntry {
        kind: CUT.into(),
        object: digest(&all),
        details: said(gone.len(), went),
        outcome: "done".into(),
        ..AuditEntry::default()
    }))
}

/// How many went, and of whom most.
fn said(count: usize, went: BTreeMap<String, u64>) -> Vec<String> {
    let mut went: Vec<(String, u64)> = went.into_iter().collect();
    went.sort_by_key(|(_, count)| Reverse(*count));
    let mut lines = vec![format!(
        "{count} entries were too old or too many and are gone"
    )];
    let named = went.iter().take(NAMED);
    lines.extend(named.map(|(owner, count)| format!("{count} of {owner}")));
    if went.len() > NAMED {
        lines.push(format!("and of {} more", went.len() - NAMED));
    }
    lines
}

/// A log that an earlier release cut begins later than with the first of all.
fn remember_beginning(
    table: &redb::Table<'_, u64, &'static [u8]>,
    gaps: &mut redb::Table<'_, u64, &'static [u8]>,
) -> Result<(), redb::Error> {
    let oldest = table.first()?.map(|(_, value)| value.value().to_vec());
    let oldest = oldest.and_then(|bytes| decode::<AuditEntry>(&bytes).ok());
    let Some(oldest) = oldest.filter(|entry| entry.number > 0) else {
        return Ok(());
    };
    if gaps.first()?.is_none() {
        let gap = Gap {
            to: oldest.number - 1,
            previous: NOTHING.into(),
            digest: oldest.previous,
        };
        gaps.insert(0, encode(&gap).as_slice())?;
    }
    Ok(())
}

/// That this one is gone, as one with what is gone beside it.
fn remember(
    gaps: &mut redb::Table<'_, u64, &'static [u8]>,
    number: u64,
    entry: AuditEntry,
) -> Result<(), redb::Error> {
    let mut from = number;
    let mut gap = Gap {
        to: number,
        previous: entry.previous,
        digest: entry.digest,
    };
    let before = (gaps.range(..number)?.next_back().transpose()?)
        .map(|(first, value)| (first.value(), value.value().to_vec()));
    if let Some((first, bytes)) = before
        && let Ok(before) = decode::<Gap>(&bytes)
        && before.to.checked_add(1) == Some(number)
    {
        (from, gap.previous) = (first, before.previous);
    }
    let after = gaps.remove(number + 1)?.map(|value| value.value().to_vec());
    if let Some(after) = after.and_then(|bytes| decode::<Gap>(&bytes).ok()) {
        (gap.to, gap.digest) = (after.to, after.digest);
    }
    gaps.insert(from, encode(&gap).as_slice())?;
    Ok(())
}

/// Over what is gone right before this entry: number and digest-before of the first that is.
pub(super) fn before(
    gaps: &BTreeMap<u64, Gap>,
    (number, previous): &(u64, String),
) -> Option<(u64, String)> {
    let (from, gap) = gaps.range(..number).next_back()?;
    let joins = gap.to.checked_add(1) == Some(*number) && gap.digest == *previous;
    joins.then(|| (*from, gap.previous.clone()))
}

/// Where the log begins by what a cut of an earlier release says: with this number, after
/// this digest.
pub(super) fn beginning(object: &str) -> Option<(u64, Gap)> {
    let (number, digest) = object.split_once(' ')?;
    let gap = Gap {
        to: number.parse::<u64>().ok()?.checked_sub(1)?,
        previous: NOTHING.into(),
        digest: digest.to_owned(),
    };
    Some((0, gap))
}

/// SHA-256 of all that is remembered, hex.
pub(super) fn digest(gaps: &BTreeMap<u64, Gap>) -> String {
    let mut sum = Sha256::new();
    for (from, gap) in gaps {
        sum.update(from.to_le_bytes());
        sum.update(encode(gap));
    }
    let mut out = String::new();
    for byte in sum.finalize() {
        // Writing to a String does not fail.
        let _ = write!(out, "{byte:02x}");
    }
    out
}
