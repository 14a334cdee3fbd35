//! The whole question: may these images be installed for this spec?

use crate::between;
use crate::breach::{Breach, Class};
use crate::inside::{self, Scratch};
use crate::intend::{Host, Unknown, View};
use crate::known::{Before, Known, Meant, Read, Same};
use crate::lines::Book;
use crate::numbers::Numbers;
use crate::solver::{NoSolver, Solver};
use crate::{crossings, places, reach, showing};
use guard::guard;
use image::{Aligned, CompartmentImage, Digest, FabricImage, MapError};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is to be proved.
#[derive(Debug)]
pub struct Claim<'a> {
    /// What the provider and the tenants asked for.
    pub spec: &'a Read,
    /// The numbers that names were given, as the store has them (JSON).
    pub numbers: &'a [u8],
    /// The time, seconds since 1970: agreements end.
    pub now: u64,
    /// The fabric's image.
    pub fabric: &'a [u8],
    /// Each compartment's image, by its slot at the fabric.
    pub compartments: BTreeMap<u32, &'a [u8]>,
    /// The slot of a compartment whose switch is assumed to say whatever it likes: its
    /// image is no evidence, is not looked at and need not be there, and nothing is
    /// claimed about the inside of it.
    pub compromised: Option<u32>,
    /// Images that were proved last ([`Known::proved`]) of slots that have another now,
    /// where the caller still has them: with them only tables that differ are looked at.
    /// That they have the digest that they say is the caller's word.
    pub before: BTreeMap<u32, &'a [u8]>,
    /// Whether the caller has counted all images' digests from these very bytes and found
    /// what they say; else they are counted here.
    pub counted: bool,
}

/// Breaches that are told, at most: one is enough to refuse.
const MAX_BREACHES: usize = 1000;

/// Proves the claim whole: the digests of the images that may be installed, the fabric's
/// first, then by slot. Those of images that were proved before are what the images
/// themselves say: what maps them sees that they say the truth.
///
/// # Errors
/// Every breach that was found, at least one; nothing of it may be installed.
pub fn prove(claim: &Claim<'_>, known: &mut Known) -> Result<Vec<Digest>, Vec<Breach>> {
    prove_by(claim, known, &NoSolver)
}

/// As [`prove`]; what the boxes do not settle within their fuel this solver is asked.
///
/// # Errors
/// As [`prove`].
pub fn prove_by(
    claim: &Claim<'_>,
    known: &mut Known,
    solver: &dyn Solver,
) -> Result<Vec<Digest>, Vec<Breach>> {
    let numbers = read(claim.numbers, known).map_err(|breach| vec![*breach])?;
    let host = Host::new(claim.spec, &numbers, claim.now);
    let host = host.map_err(|unknown| vec![unfit(0, unknown)])?;
    let mut breaches = Vec::new();
    let same = Same::new(claim.spec, &host, known);
    host.looked.set(same.looked());
    let mut fresh = Vec::new();
    between::tags(&host, &mut breaches);
    let mut images = BTreeMap::new();

    match same.fabric(&host, claim.fabric) {
        Some(digest) => drop(images.insert(0, digest)),
        None => {
            let mapped = with_fabric(claim.fabric, |image| {
                between::fabric(&host, image, &mut breaches);
                image.digest()
            });
            match mapped {
                Ok(digest) => drop(images.insert(0, digest)),
                Err(why) => breaches.push(unreadable(0, why)),
            }
        }
    }

    for slot in claim.compartments.keys() {
        if !host.compartments.contains_key(slot) {
            let what = "an image that no tenant is in";
            breaches.push(Breach::new(Class::NoImage, *slot, what));
        }
    }
    for (slot, tenants) in &host.compartments {
        if Some(*slot) == claim.compromised && guard!("proof-liar-is-no-evidence") {
            continue;
        }
        let Some(bytes) = claim.compartments.get(slot) else {
            breaches.push(Breach::new(Class::NoImage, *slot, "it has no image"));
            continue;
        };
        if let Some(digest) = same.compartment(&host, *slot, tenants, bytes) {
            images.insert(*slot, digest);
            continue;
        }
        if breaches.len() >= MAX_BREACHES {
            break;
        }
        let before = same.before(*slot, claim.before.get(slot).copied());
        let mapped = with_compartment(bytes, claim.counted, |image| {
            let before = before.as_ref();
            let meant = compartment(&host, *slot, tenants, image, before, solver, &mut breaches);
            (image.digest(), meant)
        });
        match mapped {
            Ok((digest, meant)) => {
                images.insert(*slot, digest);
                fresh.extend(meant);
            }
            Err(why) => breaches.push(unreadable(*slot, why)),
        }
    }
    if !breaches.is_empty() {
        breaches.truncate(MAX_BREACHES);
        // Unreadable, it brings nothing anywhere, and is said to be unreadable.
        let _ = with_fabric(claim.fabric, |image| showing::brought(image, &mut breaches));
        return Err(breaches);
    }
    let proved = images.values().copied().collect();
    if claim.compromised.is_none() {
        known.remember(claim.spec, host, Arc::clone(&numbers), images, fresh);
    }
    Ok(proved)
}

/// All about one compartment's image; gives what its tenants' tables are to be.
fn compartment(
    host: &Host<'_>,
    slot: u32,
    tenants: &[usize],
    image: &CompartmentImage<'_>,
    before: Option<&Before<'_>>,
    solver: &dyn Solver,
    breaches: &mut Vec<Breach>,
) -> Vec<(usize, Meant)> {
    let views: Result<Vec<View<'_>>, Unknown> = tenants.iter().map(|at| host.view(*at)).collect();
    let views = match views {
        Ok(views) => views,
        Err(unknown) => {
            breaches.push(unfit(slot, unknown));
            return Vec::new();
        }
    };
    let books: Vec<Book<'_>> = (tenants.iter().zip(&views))
        .map(|(at, view)| Book::new(host, *at, view))
        .collect();
    let found = places::who(host, slot, image, &books, breaches);
    crossings::crossings(host, slot, image, breaches);
    let mut scratch = Scratch::new(solver);
    for (view, (at, book)) in tenants.iter().zip(&books).enumerate() {
        places::routes(host, slot, image, *at, book, breaches);
        let changed = before.and_then(|before| before.tenant(*at, book));
        for member in 0..book.view.members.len() {
            if let Some(index) = found.get(&(view, member)) {
                inside::tables(
                    host,
                    slot,
                    image,
                    book,
                    member,
                    *index,
                    changed.as_ref(),
                    &mut scratch,
                    breaches,
                );
            }
            if breaches.len() >= MAX_BREACHES {
                return Vec::new();
            }
        }
        reach::check(host, slot, image, *at, book, view, &found, solver, breaches);
    }
    let named: BTreeSet<u32> = (image.endpoints().iter())
        .flat_map(|e| [e.egress, e.ingress])
        .collect();
    if (0..image.tables().len() as u32).any(|table| !named.contains(&table)) {
        let what = "it has a table that is nobody's";
        breaches.push(Breach::new(Class::NoTables, slot, what));
    }
    let books = books.into_iter().map(Meant::of);
    tenants.iter().copied().zip(books).collect()
}

/// The numbers, read anew where they are other bytes than last time.
fn read(bytes: &[u8], known: &mut Known) -> Result<Arc<Numbers>, Box<Breach>> {
    if let Some((old, numbers)) = &known.numbers
        && old == bytes
    {
        return Ok(Arc::clone(numbers));
    }
    let numbers: Numbers = serde_json::from_slice(bytes).map_err(|error| {
        let what = format!("the numbers cannot be read: {error}");
        Box::new(Breach::new(Class::Unreadable, 0, what))
    })?;
    let numbers = Arc::new(numbers);
    known.numbers = Some((bytes.to_vec(), Arc::clone(&numbers)));
    Ok(numbers)
}

fn unfit(slot: u32, unknown: Unknown) -> Breach {
    let what = format!("the spec and its numbers do not fit: {}", unknown.0);
    Breach::new(Class::Unreadable, slot, what)
}

fn unreadable(slot: u32, why: MapError) -> Breach {
    let what = format!("its image cannot be read: {why}");
    Breach::new(Class::Unreadable, slot, what)
}

/// Maps an image where it lies, or in a copy where that is not aligned.
fn with_compartment<T>(
    bytes: &[u8],
    counted: bool,
    with: impl FnOnce(&CompartmentImage<'_>) -> T,
) -> Result<T, MapError> {
    let mapped = match counted {
        true => CompartmentImage::map_counted(bytes),
        false => CompartmentImage::map(bytes),
    };
    match mapped {
        Err(MapError::Alignment) => {
            CompartmentImage::map(Aligned::copy_of(bytes).as_ref()).map(|image| with(&image))
        }
        mapped => mapped.map(|image| with(&image)),
    }
}

fn with_fabric<T>(bytes: &[u8], with: impl FnOnce(&FabricImage<'_>) -> T) -> Result<T, MapError> {
    match FabricImage::map(bytes) {
        Err(MapError::Alignment) => {
            FabricImage::map(Aligned::copy_of(bytes).as_ref()).map(|image| with(&image))
        }
        mapped => mapped.map(|image| with(&image)),
    }
}
