//! Sealed memory: written once, then by nobody.
#![expect(
    unsafe_code,
    reason = "a slice over a mapping whose seals forbid writing"
)]

use crate::file::{self, SHAPE};
use crate::mapping::Mapping;
use guard::guard;
use rustix::fs::SealFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use thiserror::Error;

/// Why a descriptor is no sealed image.
#[derive(Debug, Error)]
pub enum SealError {
    /// Somebody could still write, resize or unseal it, or it is no memory file.
    #[error("the image is not sealed against writing, shrinking, growing and sealing")]
    NotSealed,
    /// It holds nothing.
    #[error("the image is empty")]
    Empty,
    /// The operating system refused.
    #[error("mapping the image: {0}")]
    System(#[from] io::Error),
}

/// A mapped memory file that no process can change any more.
pub struct SealedImage(Mapping);

impl SealedImage {
    /// Copies the bytes to a new memory file and seals it for good. Its descriptor
    /// is read-only by seal, whoever holds it.
    ///
    /// # Errors
    /// Descriptors or memory ran out.
    pub fn create(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
        let fd = file::create(name)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let n = rustix::io::write(&fd, rest)?;
            rest = rest.get(n..).unwrap_or(&[]);
        }
        file::seal(&fd, SHAPE | SealFlags::WRITE)?;
        Ok(fd)
    }

    /// Checks the seals and maps the whole file read-only.
    ///
    /// # Errors
    /// [`SealError`].
    pub fn map(fd: impl AsFd) -> Result<SealedImage, SealError> {
        let fd = fd.as_fd();
        let seals = match rustix::fs::fcntl_get_seals(fd) {
            Ok(seals) => seals,
            Err(rustix::io::Errno::INVAL) => return Err(SealError::NotSealed),
            Err(e) => return Err(SealError::System(e.into())),
        };
        if !seals.contains(SHAPE | SealFlags::WRITE) && guard!("image-sealed") {
            return Err(SealError::NotSealed);
        }
        let size = rustix::fs::fstat(fd).map_err(io::Error::from)?.st_size;
        let bytes = usize::try_from(size).unwrap_or(0);
        if bytes == 0 {
            return Err(SealError::Empty);
        }
        Ok(SealedImage(Mapping::new(fd, bytes)?))
    }

    /// The image's bytes, aligned to a page.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the kernel grants the write seal only when no writable mapping
        // exists, and then refuses writes, holes and resizing to everyone; `map`
        // found the seal set, and seals are never taken off.
        unsafe { self.0.as_sealed_slice() }
    }
}

impl AsRef<[u8]> for SealedImage {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}
