//! The request that made an object, kept beside it in sealed memory: a supervisor
//! that starts reads it back.

use command::Body;
use sha2::{Digest, Sha256};
use shm::SealedImage;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A sealed copy.
///
/// # Errors
/// Descriptors or memory ran out.
pub fn store<B: Body>(body: &B) -> io::Result<OwnedFd> {
    SealedImage::create("bulkhead-body", body.as_bytes())
}

/// Reads one back. A release before, whose bodies end earlier, knew nothing of the rest,
/// and zero says so; `None` for one of a release to come.
pub fn load<B: Body>(fd: impl AsFd) -> Option<B> {
    let image = SealedImage::map(fd).ok()?;
    let mut body = B::new_zeroed();
    let bytes = image.as_slice();
    body.as_mut_bytes()
        .get_mut(..bytes.len())?
        .copy_from_slice(bytes);
    Some(body)
}

/// SHA-256 over the body: tells whether two requests are the same.
pub fn digest<B: Body>(body: &B) -> [u8; 32] {
    Sha256::digest(body.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use command::verbs::CreateCompartment;

    #[test]
    fn a_body_of_a_release_before_is_read_and_zeroes_are_what_it_did_not_say() {
        let body = CreateCompartment {
            id: 7,
            memory: 1 << 20,
            workers: 3,
            other_cores: [2; 7],
            ..CreateCompartment::default()
        };
        assert_eq!(load(store(&body).unwrap()), Some(body));
        let whole = store(&body).unwrap();
        let whole = SealedImage::map(whole).unwrap();
        let bytes = whole.as_slice();
        let before = &bytes[..bytes.len() - 32];
        let kept = SealedImage::create("bulkhead-body", before).unwrap();
        let read: CreateCompartment = load(kept).unwrap();
        assert_eq!((read.id, read.memory, read.workers), (7, 1 << 20, 0));
        assert_eq!(read.other_cores, [0; 7]);
        let to_come = [bytes, &[0; 8]].concat();
        let kept = SealedImage::create("bulkhead-body", &to_come).unwrap();
        assert_eq!(load::<CreateCompartment>(kept), None);
    }
}
