//! What was proved before, so that only what differs is looked at again.
//!
//! An image is the same where its digest is, a table where its bytes are, and what it is
//! to be where the spec's part and every line that concerns it are. docs/proof.md says why
//! that is enough.

use crate::intend::{Agreement, Attachment, Host, Looked, Segment};
use crate::lines::{Book, Line, Side};
use crate::numbers::Numbers;
use crate::ranges::Range;
use core::ops::Deref;
use guard::guard;
use image::compartment::NONE;
use image::rules::Action;
use image::{CompartmentImage, Digest};
use spec::Spec;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A spec that was read, and which of its parts are as they were in the one before.
#[derive(Clone, Debug)]
pub struct Read {
    spec: Spec,
    /// What concerns every tenant.
    host: Part,
    /// By the tenant's place.
    tenants: Vec<Part>,
}

/// A part of a spec. It is the same thing as long as the spec says the same there.
#[derive(Clone, Debug, Default)]
struct Part(Arc<()>);

impl PartialEq for Part {
    fn eq(&self, other: &Part) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Read {
    /// The first.
    pub fn new(spec: Spec) -> Read {
        Read {
            host: Part::default(),
            tenants: spec.tenants.iter().map(|_| Part::default()).collect(),
            spec,
        }
    }

    /// One that was read after another: what is equal in both is one thing from now on.
    pub fn after(spec: Spec, before: &Read) -> Read {
        let old = &before.spec;
        let mut read = Read::new(spec);
        if read.spec.host_name() == old.host_name()
            && read.spec.uplinks == old.uplinks
            && read.spec.guardrails == old.guardrails
        {
            read.host = before.host.clone();
        }
        let parts = read.tenants.iter_mut().zip(&before.tenants);
        for ((part, is), (now, was)) in parts.zip(read.spec.tenants.iter().zip(&old.tenants)) {
            if now == was {
                *part = is.clone();
            }
        }
        read
    }
}

impl Deref for Read {
    type Target = Spec;
    fn deref(&self) -> &Spec {
        &self.spec
    }
}

/// What was proved of images before, so that only what differs is looked at again. It
/// says nothing about a claim with a compromised compartment.
#[derive(Debug, Default)]
pub struct Known {
    last: Option<Last>,
    /// The numbers as they were read last.
    pub(crate) numbers: Option<(Vec<u8>, Arc<Numbers>)>,
}

/// The last claim that was proved: all that the proof of an image goes by.
#[derive(Debug)]
struct Last {
    host: Part,
    tenants: Vec<Part>,
    numbers: Arc<Numbers>,
    agreements: Vec<Agreement>,
    attachments: Vec<Attachment>,
    segments: Vec<Segment>,
    compartments: BTreeMap<u32, Vec<usize>>,
    /// By slot, 0 = the fabric.
    images: BTreeMap<u32, Digest>,
    /// By the tenant's place.
    meant: BTreeMap<usize, Meant>,
}

impl Known {
    /// The digest of the image that was proved last for a slot, 0 = the fabric's.
    pub fn proved(&self, slot: u32) -> Option<Digest> {
        self.last.as_ref()?.images.get(&slot).copied()
    }

    /// Of a spec, what is as it was when it was proved: what concerns all, each tenant.
    #[cfg(test)]
    pub(crate) fn says_the_same(&self, spec: &Read) -> Vec<bool> {
        let Some(last) = &self.last else {
            return Vec::new();
        };
        let parts = last.tenants.iter().zip(&spec.tenants);
        core::iter::once((&last.host, &spec.host))
            .chain(parts)
            .map(|(was, is)| was == is)
            .collect()
    }

    /// From now on it is this that was proved last; `fresh` of the tenants whose tables
    /// were looked at, by their places.
    pub(crate) fn remember(
        &mut self,
        spec: &Read,
        host: Host<'_>,
        numbers: Arc<Numbers>,
        images: BTreeMap<u32, Digest>,
        fresh: Vec<(usize, Meant)>,
    ) {
        let mut meant = self.last.take().map(|last| last.meant).unwrap_or_default();
        meant.retain(|at, _| *at < spec.tenants.len());
        meant.extend(fresh);
        self.last = Some(Last {
            host: spec.host.clone(),
            tenants: spec.tenants.clone(),
            numbers,
            agreements: host.agreements,
            attachments: host.attachments,
            segments: host.segments,
            compartments: host.compartments,
            images,
            meant,
        });
    }
}

/// What is as it was when it was proved last.
pub(crate) struct Same<'k> {
    last: Option<&'k Last>,
    /// By tenant.
    tenants: Vec<bool>,
    /// What concerns every tenant.
    host: bool,
}

impl<'k> Same<'k> {
    pub fn new(spec: &Read, host: &Host<'_>, known: &'k Known) -> Same<'k> {
        let last = known.last.as_ref();
        let tenants = spec.spec.tenants.iter().enumerate().map(|(at, tenant)| {
            let name = tenant.name.as_str();
            last.is_some_and(|last| {
                let numbers = core::ptr::eq(&*last.numbers, host.numbers)
                    || last.numbers.tenants.get(name) == host.numbers.tenants.get(name);
                let part = last.tenants.get(at);
                numbers && part.is_some() && part == spec.tenants.get(at)
            })
        });
        let is = last.is_some_and(|last| {
            last.host == spec.host && last.numbers.uplinks == host.numbers.uplinks
        });
        Same {
            last,
            tenants: tenants.collect(),
            host: is,
        }
    }

    pub fn looked(&self) -> Looked {
        match (self.last, self.host) {
            (None, _) => Looked::All,
            (Some(_), false) => Looked::Shared,
            (Some(_), true) => Looked::Changed,
        }
    }

    pub fn fabric(&self, host: &Host<'_>, bytes: &[u8]) -> Option<Digest> {
        let last = self.last.filter(|_| self.host)?;
        let digest = image::claimed_digest(bytes)?;
        let same = last.agreements == host.agreements
            && last.attachments == host.attachments
            && last.segments == host.segments
            && last.compartments.keys().eq(host.compartments.keys());
        let as_proved = last.images.get(&0) == Some(&digest);
        (as_proved && (same || !guard!("proof-known-fabric"))).then_some(digest)
    }

    pub fn compartment(
        &self,
        host: &Host<'_>,
        slot: u32,
        tenants: &[usize],
        bytes: &[u8],
    ) -> Option<Digest> {
        let last = self.last.filter(|_| self.host)?;
        let digest = image::claimed_digest(bytes)?;
        if last.images.get(&slot) != Some(&digest) {
            return None;
        }
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
            && (last.attachments.iter().filter(there)).eq(host.attachments.iter().filter(there))
            && (last.segments.iter().filter(|s| s.slot == slot))
                .eq(host.segments.iter().filter(|s| s.slot == slot));
        (same || !guard!("proof-known-spec")).then_some(digest)
    }

    /// The image that was proved last for a slot, if these are its bytes, with what its
    /// tables were to be.
    pub fn before(&self, slot: u32, bytes: Option<&'k [u8]>) -> Option<Before<'k>> {
        let (last, bytes) = (self.last?, bytes?);
        if image::claimed_digest(bytes).as_ref() != last.images.get(&slot) {
            return None;
        }
        let image = CompartmentImage::map_again(bytes).ok()?;
        let endpoints = (0..).zip(image.endpoints());
        Some(Before {
            endpoints: endpoints.map(|(at, e)| (e.id, at)).collect(),
            image,
            tenants: last.compartments.get(&slot)?,
            meant: &last.meant,
        })
    }
}

/// What the tables of a tenant's members were to be when they were proved.
#[derive(Debug)]
pub(crate) struct Meant {
    is_judged: bool,
    lines: Vec<Line>,
    inside: Vec<Range>,
    defaults: [Action; 3],
    /// Of each member: its id, and its own addresses on each side.
    members: Vec<(u32, [Vec<Range>; 2])>,
}

impl Meant {
    pub fn of(book: Book<'_>) -> Meant {
        let defaults = book.defaults();
        let ids = book.view.members.iter().map(|m| m.id);
        Meant {
            is_judged: book.is_judged,
            lines: book.lines,
            inside: book.inside,
            defaults,
            members: ids.zip(book.own).collect(),
        }
    }
}

/// A compartment as it was proved last.
pub(crate) struct Before<'k> {
    image: CompartmentImage<'k>,
    /// By their ids.
    endpoints: HashMap<u32, u32>,
    /// Who was in it, by their places.
    tenants: &'k [usize],
    meant: &'k BTreeMap<usize, Meant>,
}

/// A tenant of it, and in which lines it differs from what is meant now.
pub(crate) struct Changed<'b> {
    before: &'b Before<'b>,
    meant: &'b Meant,
    /// Lines that are not in both, of before and of now.
    lines: [&'b [Line]; 2],
}

impl Before<'_> {
    /// A tenant, by its place; `None`: nothing can be said about its tables.
    pub fn tenant<'b>(&'b self, at: usize, book: &'b Book<'_>) -> Option<Changed<'b>> {
        let meant = self
            .meant
            .get(self.tenants.iter().find(|was| **was == at)?)?;
        let (old, new) = (meant.lines.as_slice(), book.lines.as_slice());
        let alike = |(a, b): &(&Line, &Line)| a.means(b);
        let first = old.iter().zip(new).take_while(alike).count();
        let (old, new) = (old.get(first..)?, new.get(first..)?);
        let last = old.iter().rev().zip(new.iter().rev());
        let last = last.take_while(alike).count();
        let lines = [old.get(..old.len() - last)?, new.get(..new.len() - last)?];
        let same = meant.is_judged == book.is_judged
            && meant.inside == book.inside
            && meant.defaults == book.defaults();
        same.then_some(Changed {
            before: self,
            meant,
            lines,
        })
    }
}

impl Changed<'_> {
    /// Whether a member's table (an index in `image`) has the rules that were proved, and
    /// is to have them still.
    pub fn holds(
        &self,
        image: &CompartmentImage<'_>,
        book: &Book<'_>,
        at: usize,
        side: Side,
        table: u32,
    ) -> bool {
        let (Some((id, own)), Some(member)) =
            (self.meant.members.get(at), book.view.members.get(at))
        else {
            return false;
        };
        let own_now = book.own(at, side);
        let [egress, ingress] = own;
        let own = match side {
            Side::Egress => egress,
            Side::Ingress => ingress,
        };
        let mut differ = self.lines.iter().flat_map(|lines| lines.iter());
        let meant = *id == member.id
            && own == own_now
            && !differ.any(|line| line.concerns(at, side, own_now));
        if !meant && guard!("proof-known-lines") {
            return false;
        }
        let old = (self.before.endpoints.get(id))
            .and_then(|at| self.before.image.endpoints().get(*at as usize));
        let was = old.map_or(NONE, |old| match side {
            Side::Egress => old.egress,
            Side::Ingress => old.ingress,
        });
        was != NONE
            && (image.same_rules(table, &self.before.image, was) || !guard!("proof-known-rules"))
    }
}
