//! Bounds-checked access to the big-endian fields of a byte slice.

use crate::NoRoom;

/// The `N` bytes at `at`, if they are all there.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// The byte at `at`.
pub(crate) fn byte(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

/// The 16-bit field at `at`.
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

/// The 32-bit field at `at`.
pub(crate) fn long(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}

/// Overwrites the bytes at `at`; nothing happens and `None` if they do not all fit.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> Option<()> {
    bytes
        .get_mut(at..at.checked_add(value.len())?)?
        .copy_from_slice(value);
    Some(())
}

/// Fills a buffer from its start. Remembers that it ran over instead of failing
/// at each field; [`Writer::finish`] says so once.
pub(crate) struct Writer<'a> {
    buffer: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Writer { buffer, at: 0 }
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        let _ = put(self.buffer, self.at, value);
        self.at = self.at.saturating_add(value.len());
        self
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    /// Zero bytes up to offset `to`.
    pub(crate) fn zeros_to(&mut self, to: usize) -> &mut Self {
        if let Some(gap) = self.buffer.get_mut(self.at.min(to)..to) {
            gap.fill(0);
        }
        self.at = self.at.max(to);
        self
    }

    /// Bytes written so far, whether or not they fitted.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// The length written, or how much room it would have taken.
    pub(crate) fn finish(&self) -> Result<usize, NoRoom> {
        if self.at > self.buffer.len() {
            return Err(NoRoom { needed: self.at });
        }
        Ok(self.at)
    }
}
