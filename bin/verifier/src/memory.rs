//! What the verifier keeps between two questions: the last spec, and the images of the
//! world that it proved last, so that the next question need only bring what changed.

use image::{Aligned, CompartmentImage, FabricImage};
use proof::Read;
use sha2::{Digest, Sha256};
use shm::SealedImage;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

/// A digest: BLAKE3 of an image, SHA-256 of a spec.
pub type Sum = [u8; 32];

/// The digest by which a bundle names a spec: of the name, a zero and the text.
fn sum(source: &str, text: &[u8]) -> Sum {
    let mut sha = Sha256::new();
    sha.update(source);
    sha.update([0]);
    sha.update(text);
    sha.finalize().into()
}

/// The spec that was read last, with the digest that names it.
#[derive(Default)]
pub struct Specs(Option<(Sum, Read)>);

impl Specs {
    /// Reads this one, unless it is the last one; its digest.
    ///
    /// # Errors
    /// What is wrong with the text, in a sentence.
    pub fn read(&mut self, source: &str, text: &[u8]) -> Result<Sum, String> {
        let sum = sum(source, text);
        if self.held(&sum).is_none() {
            let before = self.0.take();
            let spec =
                spec::parse(source, text).map_err(|errors| match errors.findings.first() {
                    Some(first) => format!("{source}:{}: {}", first.line(), first.message),
                    None => format!("{source} is not understood"),
                })?;
            let read = match before {
                Some((_, before)) => Read::after(spec, &before),
                None => Read::new(spec),
            };
            self.0 = Some((sum, read));
        }
        Ok(sum)
    }

    /// The last one, if this is its digest.
    pub fn held(&self, sum: &Sum) -> Option<&Read> {
        let (own, read) = self.0.as_ref()?;
        (own == sum).then_some(read)
    }
}

/// An image and what was worked out from its bytes.
#[derive(Clone)]
pub struct Image {
    bytes: Bytes,
    /// Its digest, by the bytes.
    pub digest: Sum,
    /// Endpoints, or entries of the fabric's table.
    pub count: u32,
}

/// Where the bytes are.
#[derive(Clone)]
enum Bytes {
    /// In a bundle that came.
    Lent(Rc<SealedImage>, Range<usize>),
    /// A copy.
    Own(Rc<Aligned>),
}

impl Image {
    /// A part of a bundle. `None`: shorter than any image.
    pub fn of(bundle: &Rc<SealedImage>, part: &[u8]) -> Option<Image> {
        let whole = bundle.as_slice();
        let first = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
        let place = first..first.checked_add(part.len())?;
        Some(Image {
            digest: image::digest(part)?.0,
            count: count(part),
            bytes: Bytes::Lent(bundle.clone(), place),
        })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Lent(bundle, place) => bundle.as_slice().get(place.clone()).unwrap_or(&[]),
            Bytes::Own(bytes) => (**bytes).as_ref(),
        }
    }
}

/// Endpoints of a compartment's image, entries of the fabric's, as it says itself; 0: not
/// an image.
fn count(bytes: &[u8]) -> u32 {
    let count = match image::kind(bytes) {
        Some(image::Kind::Compartment) => CompartmentImage::map_again(bytes)
            .map(|image| image.endpoints().len())
            .unwrap_or(0),
        Some(image::Kind::Fabric) => FabricImage::map(bytes)
            .map(|image| image.forwards().len())
            .unwrap_or(0),
        None => 0,
    };
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Images of the world that was proved last, by their digests.
#[derive(Default)]
pub struct Images(HashMap<Sum, Image>);

impl Images {
    /// The one with this digest.
    pub fn held(&self, sum: &Sum) -> Option<&Image> {
        self.0.get(sum)
    }

    /// These, from now on, and no others.
    pub fn keep(&mut self, images: impl IntoIterator<Item = Image>) {
        self.0 = images
            .into_iter()
            .map(|image| (image.digest, image))
            .collect();
    }

    /// Copies out of bundles of which less than half is in use, so that what is held is at
    /// most twice what is needed, however many questions there were.
    pub fn tidy(&mut self) {
        let mut used: HashMap<*const SealedImage, usize> = HashMap::new();
        for image in self.0.values() {
            if let Bytes::Lent(bundle, place) = &image.bytes {
                *used.entry(Rc::as_ptr(bundle)).or_default() += place.len();
            }
        }
        for image in self.0.values_mut() {
            if let Bytes::Lent(bundle, _) = &image.bytes
                && used
                    .get(&Rc::as_ptr(bundle))
                    .is_none_or(|used| 2 * used < bundle.as_slice().len())
            {
                image.bytes = Bytes::Own(Rc::new(Aligned::copy_of(image.bytes())));
            }
        }
    }
}
