//! What is revoked, and whom it concerns: nothing else says why what the documents state is not
//! in force.

use crate::world::World;
use api::Revoked;
use guard::guard;
use std::collections::BTreeSet;

/// Revocations that are told of: who revokes thousands makes no answer long.
const MOST: usize = 100;

type Key = (String, String);

/// Of all tenants, or of the one that asks.
pub fn revoked(world: &World, of: Option<&str>) -> Vec<Revoked> {
    let applied = world.applied();
    let barred = applied.barred.iter();
    let barred = barred.map(|it| (it.tenant.clone(), it.name.clone()));
    // By its service too, whatever its tenant calls it.
    let made = world.made().into_iter();
    let stated = made.flat_map(|(spec, ..)| spec.revoked.keys().cloned());
    let all: BTreeSet<Key> = applied
        .revoked
        .iter()
        .cloned()
        .chain(barred)
        .chain(stated)
        .collect();
    let asked = all
        .iter()
        .filter(|(tenant, _)| of.is_none_or(|of| tenant == of));
    asked.take(MOST).map(|key| one(world, key)).collect()
}

/// What it takes that a tenant's agreements are as both sides state them: revocations of its own,
/// and of others' that agree with what it states. To a tenant its own alone are told.
pub fn concerning(world: &World, tenant: &str, viewer: Option<&str>) -> Vec<Revoked> {
    let mut found = revoked(world, Some(tenant));
    if viewer.is_none() || !guard!("revoked-of-others") {
        let made = world.made().into_iter();
        let others = made.flat_map(|(spec, ..)| &spec.revoked);
        let others = others.filter(|((of, name), (from, _))| {
            *of != *tenant && (from == tenant || accepts(world, tenant, (of, name)))
        });
        let room = MOST.saturating_sub(found.len());
        found.extend(others.take(room).map(|(key, _)| one(world, key)));
    }
    found
}

/// That what a half of an agreement lacks is revoked: of `other` the offer of this name, or its
/// acceptance of this (tenant, service).
pub fn lacking(world: &World, other: &str, missing: Result<&str, (&str, &str)>) -> Option<Revoked> {
    let (spec, ..) = world.made()?;
    let (key, _) = (spec.revoked.iter()).find(|((of, name), (from, what))| {
        of == other
            && match missing {
                Ok(offer) => from.is_empty() && name == offer,
                Err(offer) => (from.as_str(), what.as_str()) == offer,
            }
    })?;
    Some(one(world, key))
}

fn accepts(world: &World, tenant: &str, (from, offer): (&str, &str)) -> bool {
    let mut tenants = world
        .made()
        .into_iter()
        .flat_map(|(spec, ..)| &spec.tenants);
    let found = tenants.find(|one| one.name.as_str() == tenant);
    found.is_some_and(|one| {
        let mut accepts = one.accepts.iter();
        accepts.any(|it| it.from.as_str() == from && it.service.as_str() == offer)
    })
}

fn one(world: &World, key: &Key) -> Revoked {
    let made = world.made();
    let service = made.and_then(|(spec, ..)| spec.revoked.get(key));
    let provider = world.applied().barred.iter().any(|it| {
        let same = service.is_some_and(|(from, what)| {
            !from.is_empty() && (from, what) == (&it.from, &it.service)
        });
        it.tenant == key.0 && (it.name == key.1 || same)
    });
    Revoked {
        tenant: key.0.clone(),
        name: key.1.clone(),
        by: if provider { "provider" } else { "tenant" }.into(),
    }
}
