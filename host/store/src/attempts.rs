//! Counts the starts that died while they opened a store.

use crate::StoreError;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Starts that may die while opening before the store is called damaged. More
/// than one, since a start can also be killed from outside just then.
const MOST: u64 = 2;

/// One start's mark, taken back when it came through.
pub(crate) struct Attempts<'a> {
    file: &'a File,
    inode: u64,
}

impl<'a> Attempts<'a> {
    /// Marks that this store is being opened.
    pub(crate) fn begin(file: &'a File, store: &File) -> Result<Attempts<'a>, StoreError> {
        let inode = store.metadata().map_err(StoreError::Io)?.ino();
        let mut bytes = [0; 16];
        let died = match file.read_exact_at(&mut bytes, 0) {
            Ok(()) if word(&bytes, 0) == inode => word(&bytes, 8),
            _ => 0,
        };
        if died >= MOST {
            return Err(StoreError::Corrupt(format!(
                "the last {died} starts died while reading it"
            )));
        }
        let attempts = Attempts { file, inode };
        attempts.write(died + 1).map_err(StoreError::Disk)?;
        Ok(attempts)
    }

    /// It came through, with or without an error.
    pub(crate) fn end(self) {
        // A mark that cannot be taken back costs one attempt of the next start.
        let _ = self.write(0);
    }

    fn write(&self, died: u64) -> std::io::Result<()> {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.inode.to_le_bytes());
        bytes[8..].copy_from_slice(&died.to_le_bytes());
        self.file.write_all_at(&bytes, 0)
    }
}

fn word(bytes: &[u8; 16], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
