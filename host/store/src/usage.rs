//! What was used: a sum for each hour, and the counters that it was taken from.

use crate::{CURRENT, Seen, Store, StoreError, decode, encode, wrong};
use api::UsageRow;
use redb::{Durability, ReadableDatabase, ReadableTable, TableDefinition};

/// Hours that are kept: 400 days.
pub const HOURS: u64 = 400 * 24;
const HOUR_S: u64 = 3600;

const USAGE: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("usage");
const KEY_SEEN: &str = "seen";

impl Store {
    /// Counters as they were when they were added up last.
    ///
    /// # Errors
    /// When the record cannot be read or is not one.
    pub fn seen(&mut self) -> Result<Seen, StoreError> {
        Ok(self.record(KEY_SEEN)?.unwrap_or_default())
    }

    /// Adds to an hour (its beginning, seconds since 1970), together with the counters
    /// that this was taken from: both are written, or neither. Hours that are too old go.
    ///
    /// # Errors
    /// When it could not be made durable.
    pub fn account(&mut self, hour: u64, rows: &[UsageRow], seen: &Seen) -> Result<(), StoreError> {
        let outcome = self.add_up(hour, rows, seen);
        if outcome.is_err() {
            // As in `write`.
            self.database = None;
        }
        outcome
    }

    fn add_up(&mut self, hour: u64, rows: &[UsageRow], seen: &Seen) -> Result<(), StoreError> {
        let failed = |error: redb::Error| wrong(error);
        let mut write = (self.database()?.begin_write()).map_err(|e| failed(e.into()))?;
        write
            .set_durability(Durability::Immediate)
            .map_err(|e| failed(e.into()))?;
        {
            let mut table = write.open_table(USAGE).map_err(|e| failed(e.into()))?;
            let before = table.get(hour).map_err(|e| failed(e.into()))?;
            let before = before.map(|bytes| decode(bytes.value())).transpose()?;
            let mut sum: Vec<UsageRow> = before.unwrap_or_default();
            for row in rows {
                let is = |one: &&mut UsageRow| one.name() == row.name();
                match sum.iter_mut().find(is) {
                    Some(one) => one.add(row),
                    None => sum.push(row.clone()),
                }
            }
            if !sum.is_empty() {
                table
                    .insert(hour, encode(&sum).as_slice())
                    .map_err(|e| failed(e.into()))?;
            }
            let oldest = hour.saturating_sub(HOURS * HOUR_S);
            table
                .retain_in(..oldest, |_, _| false)
                .map_err(|e| failed(e.into()))?;
            let mut current = write.open_table(CURRENT).map_err(|e| failed(e.into()))?;
            current
                .insert(KEY_SEEN, encode(seen).as_slice())
                .map_err(|e| failed(e.into()))?;
        }
        write.commit().map_err(|e| failed(e.into()))
    }

    /// The hours that begin from `from` on and before `to` (seconds since 1970), oldest
    /// first, with what was used in each.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn usage(&mut self, from: u64, to: u64) -> Result<Vec<(u64, Vec<UsageRow>)>, StoreError> {
        if from >= to {
            return Ok(Vec::new());
        }
        let read = self.database()?.begin_read().map_err(|e| wrong(e.into()))?;
        let table = match read.open_table(USAGE) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            Err(error) => return Err(wrong(error.into())),
        };
        let mut hours = Vec::new();
        for row in table.range(from..to).map_err(|e| wrong(e.into()))? {
            let (hour, rows) = row.map_err(|e| wrong(e.into()))?;
            hours.push((hour.value(), decode(rows.value())?));
        }
        Ok(hours)
    }
}
