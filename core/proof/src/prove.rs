//! The whole question: may these images be installed for this spec?

use image::{Aligned, CompartmentImage, Digest, FabricImage};
use spec::Spec;
use std::collections::BTreeMap;

/// What is to be proved.
#[derive(Debug)]
pub struct Claim<'a> {
    /// What the provider and the tenants asked for.
    pub spec: &'a Spec,
    /// The numbers that names were given, as the store has them (JSON).
    pub numbers: &'a [u8],
    /// The time, seconds since 1970: agreements end.
    pub now: u64,
    /// The fabric's image.
    pub fabric: &'a [u8],
    /// Each compartment's image, by its slot at the fabric.
    pub compartments: BTreeMap<u32, &'a [u8]>,
}

/// Why images may not be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// Whose switch or table: a fabric slot, 0 = the fabric's own.
    pub slot: u32,
    /// What is wrong, with a packet that shows it where there is one, in sentences.
    pub what: String,
}

/// What was proved of images before, so that only what differs is looked at again.
#[derive(Debug, Default)]
pub struct Known {}

/// Proves the claim whole.
///
/// # Errors
/// Every breach that was found, at least one; nothing of it may be installed.
pub fn prove(claim: &Claim<'_>, known: &mut Known) -> Result<Vec<Digest>, Vec<Breach>> {
    let _ = known;
    let mut proved = Vec::new();
    let mut breaches = Vec::new();
    let unreadable = |slot: u32, why: image::MapError| Breach {
        slot,
        what: format!("the image cannot be read: {why}"),
    };
    match FabricImage::map(Aligned::copy_of(claim.fabric).as_ref()) {
        Ok(image) => proved.push(image.digest()),
        Err(why) => breaches.push(unreadable(0, why)),
    }
    for (slot, bytes) in &claim.compartments {
        match CompartmentImage::map(Aligned::copy_of(bytes).as_ref()) {
            Ok(image) => proved.push(image.digest()),
            Err(why) => breaches.push(unreadable(*slot, why)),
        }
    }
    if breaches.is_empty() {
        Ok(proved)
    } else {
        Err(breaches)
    }
}
