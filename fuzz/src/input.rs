//! The fuzzer's bytes, from the first to the last.

use std::cell::Cell;

/// Bytes that are taken one behind another; zeroes behind the last.
pub struct Input {
    bytes: Vec<u8>,
    next: Cell<usize>,
}

impl Input {
    pub fn new(bytes: &[u8]) -> Input {
        Input {
            bytes: bytes.to_vec(),
            next: Cell::new(0),
        }
    }

    /// Whether all were taken.
    pub fn is_over(&self) -> bool {
        self.next.get() >= self.bytes.len()
    }

    pub fn byte(&self) -> u8 {
        let byte = self.bytes.get(self.next.get()).copied();
        self.next.set(self.next.get() + 1);
        byte.unwrap_or(0)
    }

    pub fn flag(&self) -> bool {
        self.byte() & 1 == 1
    }

    pub fn u16(&self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub fn u32(&self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    pub fn u64(&self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A number below `end`, which is not 0.
    pub fn below(&self, end: usize) -> usize {
        match end {
            0..=256 => usize::from(self.byte()) % end,
            _ => self.u16() as usize % end,
        }
    }

    /// So many bytes.
    pub fn take(&self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }

    /// All that are left.
    pub fn rest(&self) -> Vec<u8> {
        let from = self.next.get().min(self.bytes.len());
        self.next.set(self.bytes.len().max(self.next.get()));
        self.bytes[from..].to_vec()
    }
}
