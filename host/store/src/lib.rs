//! The controller's memory over restarts: what is applied, the numbers given out,
//! the intent of an apply that is under way, the history of applies, tokens, and who did
//! what.
//!
//! One redb file in the state directory, used by its descriptor alone. A damaged file, one of a newer
//! release, a full disk: each is an error that says so; nothing is guessed.

mod attempts;
mod audit;
mod records;
#[cfg(test)]
mod tests;
mod usage;

pub use audit::{Bounds, Deed};
pub use records::{Applied, Barred, Document, HistoryEntry, Seen, SeenTarget, Token, Undertaking};

use attempts::Attempts;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Layout of the records. Raised when an older release could not read them.
pub const FORMAT: u64 = 1;
/// Applies kept in the history.
pub const HISTORY: usize = 256;

const CURRENT: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("current");
const HISTORY_TABLE: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("history");

const KEY_FORMAT: &str = "format";
const KEY_APPLIED: &str = "applied";
const KEY_UNDERTAKING: &str = "undertaking";
const KEY_TOKENS: &str = "tokens";

/// The open store. One owner; every write is on disk when the call returns.
pub struct Store {
    file: File,
    database: Option<Database>,
    bounds: Bounds,
}

/// What went wrong with the store, and whose fault it is.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file is not a store, or is damaged.
    #[error(
        "the state file is damaged ({0}); what runs goes on running. Move controller.redb aside and apply the spec again"
    )]
    Corrupt(String),
    /// Another process has it open.
    #[error(
        "the state file is in use by another controller; is a second daemon running on this state directory?"
    )]
    InUse,
    /// Written by a release with another layout.
    #[error(
        "the state file has layout {found}, this release reads {FORMAT}; run the release that wrote it, or move controller.redb aside and apply the spec again"
    )]
    Format {
        /// The layout found.
        found: u64,
    },
    /// The disk is full or refuses to be written.
    #[error("the state file cannot be written ({0}); make room on the disk of the state directory")]
    Disk(io::Error),
    /// Any other refusal by the operating system.
    #[error("the state file cannot be read ({0})")]
    Io(io::Error),
}

impl Store {
    /// Opens the store on this file (read and write), or makes one in an empty file,
    /// and reads all that is in it once. `attempts` is a small file beside it that
    /// counts starts which did not survive that: redb panics on some damage, and a
    /// process that dies whenever it opens its store could never say why.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`], [`StoreError::InUse`], [`StoreError::Format`], or what the disk says.
    pub fn open(file: File, attempts: &File) -> Result<Store, StoreError> {
        let attempts = Attempts::begin(attempts, &file)?;
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let mut store = Store::check(file)?;
            store.applied()?;
            store.undertaking()?;
            store.history(usize::MAX)?;
            store.usage(0, u64::MAX)?;
            store.seen()?;
            store.tokens()?;
            store.audit_readable()?;
            Ok(store)
        }));
        attempts.end();
        opened.unwrap_or_else(|_| Err(StoreError::Corrupt("reading it goes astray".into())))
    }

    fn check(file: File) -> Result<Store, StoreError> {
        let mut store = Store {
            file,
            database: None,
            bounds: Bounds::default(),
        };
        store.reopen()?;
        if let Some(database) = &mut store.database {
            // Also rebuilds the file's own bookkeeping where it contradicts the data.
            database.check_integrity().map_err(|e| wrong(e.into()))?;
        }
        match store.read(KEY_FORMAT)? {
            None => store.write(
                &[(KEY_FORMAT, Some(FORMAT.to_le_bytes().to_vec()))],
                None,
                &[],
            )?,
            Some(bytes) => {
                let found = bytes
                    .try_into()
                    .map(u64::from_le_bytes)
                    .map_err(|_| StoreError::Corrupt("its format mark is torn".into()))?;
                if found != FORMAT {
                    return Err(StoreError::Format { found });
                }
            }
        }
        Ok(store)
    }

    /// What is applied; `None` before the first apply.
    ///
    /// # Errors
    /// When the record cannot be read or is not one.
    pub fn applied(&mut self) -> Result<Option<Applied>, StoreError> {
        self.record(KEY_APPLIED)
    }

    /// The apply that was begun and not ended.
    ///
    /// # Errors
    /// When the record cannot be read or is not one.
    pub fn undertaking(&mut self) -> Result<Option<Undertaking>, StoreError> {
        self.record(KEY_UNDERTAKING)
    }

    /// Journals the intent before its first step.
    ///
    /// # Errors
    /// When it could not be made durable: then the step must not be done.
    pub fn undertake(&mut self, undertaking: &Undertaking) -> Result<(), StoreError> {
        self.write(&[(KEY_UNDERTAKING, Some(encode(undertaking)))], None, &[])
    }

    /// Ends the undertaking: what it led to is applied now, and the history and the audit
    /// log say so.
    ///
    /// # Errors
    /// When it could not be made durable; the undertaking then stands.
    pub fn conclude(
        &mut self,
        applied: &Applied,
        entry: &HistoryEntry,
        deeds: &[Deed],
    ) -> Result<(), StoreError> {
        self.write(
            &[
                (KEY_APPLIED, Some(encode(applied))),
                (KEY_UNDERTAKING, None),
            ],
            Some(entry),
            deeds,
        )
    }

    /// Ends the undertaking: what was applied before still is.
    ///
    /// # Errors
    /// When it could not be made durable; the undertaking then stands.
    pub fn abandon(&mut self, entry: &HistoryEntry, deeds: &[Deed]) -> Result<(), StoreError> {
        self.write(&[(KEY_UNDERTAKING, None)], Some(entry), deeds)
    }

    /// The tokens there are.
    ///
    /// # Errors
    /// When the record cannot be read or is not one.
    pub fn tokens(&mut self) -> Result<Vec<Token>, StoreError> {
        Ok(self.record(KEY_TOKENS)?.unwrap_or_default())
    }

    /// Other tokens from now on, and who made it so.
    ///
    /// # Errors
    /// When it could not be made durable.
    pub fn keep_tokens(&mut self, tokens: &[Token], deeds: &[Deed]) -> Result<(), StoreError> {
        self.write(&[(KEY_TOKENS, Some(encode(&tokens)))], None, deeds)
    }

    /// Remembers who did something.
    ///
    /// # Errors
    /// When it could not be made durable.
    pub fn note(&mut self, deeds: &[Deed]) -> Result<(), StoreError> {
        self.write(&[], None, deeds)
    }

    /// The last applies, newest first, at most `most`.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn history(&mut self, most: usize) -> Result<Vec<HistoryEntry>, StoreError> {
        let read = self.database()?.begin_read().map_err(|e| wrong(e.into()))?;
        let table = match read.open_table(HISTORY_TABLE) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            Err(error) => return Err(wrong(error.into())),
        };
        let mut entries = Vec::new();
        for row in table.iter().map_err(|e| wrong(e.into()))?.rev().take(most) {
            let (_, value) = row.map_err(|e| wrong(e.into()))?;
            entries.push(decode(value.value())?);
        }
        Ok(entries)
    }

    fn record<T: serde::de::DeserializeOwned>(
        &mut self,
        key: &str,
    ) -> Result<Option<T>, StoreError> {
        self.read(key)?.map(|bytes| decode(&bytes)).transpose()
    }

    fn read(&mut self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let read = self.database()?.begin_read().map_err(|e| wrong(e.into()))?;
        let table = match read.open_table(CURRENT) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(wrong(error.into())),
        };
        let value = table.get(key).map_err(|e| wrong(e.into()))?;
        Ok(value.map(|guard| guard.value().to_vec()))
    }

    fn write(
        &mut self,
        rows: &[(&str, Option<Vec<u8>>)],
        entry: Option<&HistoryEntry>,
        deeds: &[Deed],
    ) -> Result<(), StoreError> {
        let bounds = self.bounds;
        let outcome = self
            .database()
            .and_then(|database| transact(database, rows, entry, deeds, bounds).map_err(wrong))
            .map_err(|error| match error {
                // Whatever it is that the disk does not do: it was to be written.
                StoreError::Io(error) => StoreError::Disk(error),
                other => other,
            });
        if outcome.is_err() {
            // After a failed write redb refuses all further ones until the file is
            // opened anew: a disk that was full must be usable once there is room.
            self.database = None;
        }
        outcome
    }

    fn database(&mut self) -> Result<&Database, StoreError> {
        if self.database.is_none() {
            self.reopen()?;
        }
        // INVARIANT: `reopen` sets it or fails.
        self.database
            .as_ref()
            .ok_or_else(|| StoreError::Corrupt("it could not be opened again".into()))
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        let file = self.file.try_clone().map_err(StoreError::Io)?;
        self.database = Some(
            Database::builder()
                .create_file(file)
                .map_err(|e| wrong(e.into()))?,
        );
        Ok(())
    }
}

fn transact(
    database: &Database,
    rows: &[(&str, Option<Vec<u8>>)],
    entry: Option<&HistoryEntry>,
    deeds: &[Deed],
    bounds: Bounds,
) -> Result<(), redb::Error> {
    let mut write = database.begin_write()?;
    write.set_durability(Durability::Immediate)?;
    {
        let mut current = write.open_table(CURRENT)?;
        for (key, value) in rows {
            match value {
                Some(bytes) => drop(current.insert(*key, bytes.as_slice())?),
                None => drop(current.remove(*key)?),
            }
        }
        if let Some(entry) = entry {
            let mut history = write.open_table(HISTORY_TABLE)?;
            let next = history.last()?.map_or(0, |(key, _)| key.value() + 1);
            history.insert(next, encode(entry).as_slice())?;
            if let Some(oldest) = next.checked_sub(HISTORY as u64) {
                history.remove(oldest)?;
            }
        }
        audit::append(&write, deeds, bounds)?;
    }
    write.commit()?;
    Ok(())
}

fn encode<T: serde::Serialize>(record: &T) -> Vec<u8> {
    // INVARIANT: the records are plain structs of strings and numbers, which always encode.
    serde_json::to_vec(record).unwrap_or_default()
}

fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(bytes)
        .map_err(|e| StoreError::Corrupt(format!("a record in it does not read: {e}")))
}

fn wrong(error: redb::Error) -> StoreError {
    match error {
        redb::Error::DatabaseAlreadyOpen => StoreError::InUse,
        redb::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
            StoreError::Corrupt("it is not a store".into())
        }
        redb::Error::Io(error) if writing(&error) => StoreError::Disk(error),
        redb::Error::Io(error) => StoreError::Io(error),
        other => StoreError::Corrupt(other.to_string()),
    }
}

fn writing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::ReadOnlyFilesystem
    )
}
