//! The whole question: may these images be installed for this spec?

use crate::between;
use crate::breach::{Breach, Class};
use crate::inside::{self, Scratch};
use crate::intend::{Agreement, Attachment, Host, Unknown, View};
use crate::lines::Book;
use crate::numbers::Numbers;
use crate::{places, reach};
use guard::guard;
use image::{Aligned, CompartmentImage, Digest, FabricImage, MapError};
use spec::{Guardrail, Spec, Tenant, Uplink};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
    /// The slot of a compartment whose switch is assumed to say whatever it likes: its
    /// image is no evidence, is not looked at and need not be there, and nothing is
    /// claimed about the inside of it.
    pub compromised: Option<u32>,
}

/// Breaches that are told, at most: one is enough to refuse.
const MAX_BREACHES: usize = 1000;

/// What was proved of images before, so that only what differs is looked at again. It
/// says nothing about a claim with a compromised compartment.
#[derive(Debug, Default)]
pub struct Known {
    last: Option<Last>,
    /// The numbers as they were read last.
    numbers: Option<(Vec<u8>, Arc<Numbers>)>,
}

/// The last claim that was proved: all that the proof of an image goes by.
#[derive(Debug)]
struct Last {
    host_name: String,
    uplinks: Vec<Uplink>,
    guardrails: Vec<Guardrail>,
    tenants: Vec<Tenant>,
    numbers: Arc<Numbers>,
    agreements: Vec<Agreement>,
    attachments: Vec<Attachment>,
    compartments: BTreeMap<u32, Vec<usize>>,
    /// By slot, 0 = the fabric.
    images: BTreeMap<u32, Digest>,
}

/// Proves the claim whole: the digests of the images that may be installed, the fabric's
/// first, then by slot. Those of images that were proved before are what the images
/// themselves say: what maps them sees that they say the truth.
///
/// # Errors
/// Every breach that was found, at least one; nothing of it may be installed.
pub fn prove(claim: &Claim<'_>, known: &mut Known) -> Result<Vec<Digest>, Vec<Breach>> {
    let numbers = read(claim.numbers, known).map_err(|breach| vec![*breach])?;
    let host = Host::new(claim.spec, &numbers, claim.now);
    let host = host.map_err(|unknown| vec![unfit(0, unknown)])?;
    let mut breaches = Vec::new();
    let same = Same::new(&host, known.last.as_ref());
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
        let mapped = with_compartment(bytes, |image| {
            compartment(&host, *slot, tenants, image, &mut breaches);
            image.digest()
        });
        match mapped {
            Ok(digest) => drop(images.insert(*slot, digest)),
            Err(why) => breaches.push(unreadable(*slot, why)),
        }
    }
    if !breaches.is_empty() {
        breaches.truncate(MAX_BREACHES);
        return Err(breaches);
    }
    let proved = images.values().copied().collect();
    if claim.compromised.is_none() {
        let Host {
            agreements,
            attachments,
            compartments,
            ..
        } = host;
        let spec = claim.spec;
        let unchanged = same.tenants;
        let before = known.last.take().map(|last| last.tenants);
        known.last = Some(Last {
            host_name: spec.host_name().to_owned(),
            uplinks: spec.uplinks.clone(),
            guardrails: spec.guardrails.clone(),
            tenants: kept(&spec.tenants, before, &unchanged),
            numbers: Arc::clone(&numbers),
            agreements,
            attachments,
            compartments,
            images,
        });
    }
    Ok(proved)
}

/// The tenants, those that are the same not copied again.
fn kept(now: &[Tenant], before: Option<Vec<Tenant>>, same: &[bool]) -> Vec<Tenant> {
    let mut kept = before.unwrap_or_default();
    kept.truncate(now.len());
    for (at, tenant) in now.iter().enumerate() {
        match kept.get_mut(at) {
            Some(_) if same.get(at) == Some(&true) => {}
            Some(old) => old.clone_from(tenant),
            None => kept.push(tenant.clone()),
        }
    }
    kept
}

/// What is as it was when it was proved last.
struct Same<'k> {
    last: Option<&'k Last>,
    /// By tenant.
    tenants: Vec<bool>,
    /// What concerns every tenant.
    host: bool,
}

impl<'k> Same<'k> {
    fn new(host: &Host<'_>, last: Option<&'k Last>) -> Same<'k> {
        let spec = host.spec;
        let tenants = spec.tenants.iter().enumerate().map(|(at, tenant)| {
            let name = tenant.name.as_str();
            last.is_some_and(|last| {
                let numbers = core::ptr::eq(&*last.numbers, host.numbers)
                    || last.numbers.tenants.get(name) == host.numbers.tenants.get(name);
                numbers && last.tenants.get(at) == Some(tenant)
            })
        });
        let is = last.is_some_and(|last| {
            last.host_name == spec.host_name()
                && last.uplinks == spec.uplinks
                && last.guardrails == spec.guardrails
                && last.numbers.uplinks == host.numbers.uplinks
        });
        Same {
            last,
            tenants: tenants.collect(),
            host: is,
        }
    }

    fn fabric(&self, host: &Host<'_>, bytes: &[u8]) -> Option<Digest> {
        let last = self.last.filter(|_| self.host)?;
        let digest = image::claimed_digest(bytes)?;
        let same = last.agreements == host.agreements
            && last.attachments == host.attachments
            && last.compartments.keys().eq(host.compartments.keys());
        let as_proved = last.images.get(&0) == Some(&digest);
        (as_proved && (same || !guard!("proof-known-fabric"))).then_some(digest)
    }

    fn compartment(
        &self,
        host: &Host<'_>,
        slot: u32,
        tenants: &[usize],
        bytes: &[u8],
    ) -> Option<Digest> {
        let last = self.last.filter(|_| self.host)?;
        let digest = image::claimed_digest(bytes)?;
        let here = |a: &&Agreement| a.acceptor_slot == slot || a.offerer_slot == slot;
        let there = |a: &&Attachment| a.slot == slot;
        let same = last
            .compartments
            .get(&slot)
            .is_some_and(|old| old == tenants)
            && tenants
                .iter()
                .all(|at| self.tenants.get(*at) == Some(&true))
            && (last.agreements.iter().filter(here)).eq(host.agreements.iter().filter(here))
            && (last.attachments.iter().filter(there)).eq(host.attachments.iter().filter(there));
        let as_proved = last.images.get(&slot) == Some(&digest);
        (as_proved && (same || !guard!("proof-known-spec"))).then_some(digest)
    }
}

/// All about one compartment's image.
fn compartment(
    host: &Host<'_>,
    slot: u32,
    tenants: &[usize],
    image: &CompartmentImage<'_>,
    breaches: &mut Vec<Breach>,
) {
    let views: Result<Vec<View<'_>>, Unknown> = tenants.iter().map(|at| host.view(*at)).collect();
    let views = match views {
        Ok(views) => views,
        Err(unknown) => return breaches.push(unfit(slot, unknown)),
    };
    let books: Vec<Book<'_>> = (tenants.iter().zip(&views))
        .map(|(at, view)| Book::new(host, *at, view))
        .collect();
    let found = places::who(host, slot, image, &books, breaches);
    between::crossings(host, slot, image, breaches);
    let mut scratch = Scratch::new();
    for (view, (at, book)) in tenants.iter().zip(&books).enumerate() {
        places::routes(host, slot, image, *at, book, breaches);
        for member in 0..book.view.members.len() {
            if let Some(index) = found.get(&(view, member)) {
                inside::tables(
                    host,
                    slot,
                    image,
                    book,
                    member,
                    *index,
                    &mut scratch,
                    breaches,
                );
            }
            if breaches.len() >= MAX_BREACHES {
                return;
            }
        }
        reach::check(host, slot, image, *at, book, view, &found, breaches);
    }
    let named: BTreeSet<u32> = (image.endpoints().iter())
        .flat_map(|e| [e.egress, e.ingress])
        .collect();
    if (0..image.tables().len() as u32).any(|table| !named.contains(&table)) {
        let what = "it has a table that is nobody's";
        breaches.push(Breach::new(Class::NoTables, slot, what));
    }
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
    with: impl FnOnce(&CompartmentImage<'_>) -> T,
) -> Result<T, MapError> {
    match CompartmentImage::map(bytes) {
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
