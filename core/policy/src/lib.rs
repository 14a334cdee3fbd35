//! From the spec to what the host shall hold: numbers that stay, bodies of
//! commands, table images, and what they ask of the host.
//!
//! Everything here is a function of its arguments: the same spec and numbers give
//! the same bytes.
//!
//! ```text
//! Ids::assign(spec, &before) → Ids      numbers, kept while the named thing lives
//! compile(spec, &ids, now)   → Intent   bodies and images; what has ended by now is left out
//! needs(&intent)             → Needs    processes, memory, cores
//! explain(...)               → Answer   whether A reaches B, and which rule says so
//! ```

mod agreements;
mod compartment;
mod explain;
mod fabric;
mod halves;
mod ids;
mod intent;
mod mac;
mod needs;
mod routes;
mod rules;
#[cfg(test)]
mod tests;

pub use agreements::{Agreement, Routed, agreements};
pub use explain::{
    Answer, Bar, Decided, Peer, Question, Service, Side, Unclear, Verdict, Way, decided, explain,
};
pub use halves::{Half, Lacks, Unaccepted, halves, unaccepted};
pub use ids::{
    AgreementIds, AttachmentIds, CompartmentIds, EndpointIds, Ids, SegmentIds, TenantIds, UplinkIds,
};
pub use intent::{
    AttachmentIntent, CompartmentIntent, Image, Intent, NatBlock, PortIntent, SegmentIntent,
    UplinkIntent,
};
pub use needs::{Needs, needs};
pub use rules::MAX_BOXES;
pub use spec::Finding as CompileError;

use spec::Spec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The intent of a spec under these numbers at `now`, seconds since 1970: agreements
/// that have ended by then are left out.
///
/// # Errors
/// What only shows once numbers are given out, e.g. a prefix with no free address
/// left, each with its place in the spec.
pub fn compile(spec: &Spec, ids: &Ids, now: u64) -> Result<Intent, Vec<CompileError>> {
    compile_after(spec, ids, now, None)
}

/// Like [`compile`], but what is the same as in a compilation before is taken from
/// it: the cost is that of the compartments that changed.
///
/// # Errors
/// As [`compile`].
pub fn compile_after(
    spec: &Spec,
    ids: &Ids,
    now: u64,
    before: Option<(&Spec, &Ids, &Intent)>,
) -> Result<Intent, Vec<CompileError>> {
    let mut errors = Vec::new();
    let mut compartments = BTreeMap::new();
    let agreements = agreements(spec, ids, now);
    let mut by_slot: BTreeMap<u32, Vec<Agreement>> = BTreeMap::new();
    for agreement in &agreements {
        for slot in BTreeSet::from([agreement.offerer_slot, agreement.acceptor_slot]) {
            by_slot.entry(slot).or_default().push(agreement.clone());
        }
    }
    let reuse = before
        .filter(|(old, ..)| old.uplinks == spec.uplinks && old.host_name() == spec.host_name());
    let old_groups = reuse.map(|(old, ..)| groups(old));
    for (name, tenants) in groups(spec) {
        let slot = ids.compartments.get(&name).map_or(0, |c| c.id);
        let own = by_slot.remove(&slot).unwrap_or_default();
        let same = reuse
            .zip(old_groups.as_ref())
            .and_then(|((_, old_ids, old), groups)| {
                let same = groups
                    .get(&name)
                    .is_some_and(|before| before.iter().eq(tenants.iter()))
                    && old_ids.compartments.get(&name) == ids.compartments.get(&name)
                    && old_ids.uplinks == ids.uplinks
                    && guardrails(spec, ids, &tenants).eq(guardrails(
                        reuse.map_or(spec, |(old, ..)| old),
                        old_ids,
                        &tenants,
                    ))
                    && (old.compartments.get(&slot)).is_some_and(|old| old.agreements == own)
                    && tenants.iter().all(|t| {
                        old_ids.tenants.get(t.name.as_str()) == ids.tenants.get(t.name.as_str())
                    });
                same.then(|| old.compartments.get(&ids.compartments.get(&name)?.id))
                    .flatten()
            });
        let made = match same {
            Some(same) => Ok(same.clone()),
            None => compartment::compile(spec, ids, &name, &tenants, own).map(Arc::new),
        };
        match made {
            Ok(made) => {
                compartments.insert(made.create.id, made);
            }
            Err(mut more) => errors.append(&mut more),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let uplinks = fabric::uplinks(spec, ids);
    let image = fabric::compile(&compartments, &uplinks, &agreements);
    match image {
        Ok(fabric) => Ok(Intent {
            compartments,
            uplinks,
            fabric,
            expires: agreements::next_end(&agreements),
            agreements,
        }),
        Err(error) => Err(vec![spec.finding(
            "internal",
            spec::Span::default(),
            format!("the fabric's table cannot be built: {error}"),
            "this is a fault of Bulkhead: please report it with the spec",
        )]),
    }
}

/// The guardrails that concern any of the tenants, with their numbers.
fn guardrails<'a>(
    spec: &'a Spec,
    ids: &'a Ids,
    tenants: &'a [&spec::Tenant],
) -> impl Iterator<Item = (&'a spec::Guardrail, Option<&'a u32>)> {
    spec.guardrails
        .iter()
        .filter(|g| tenants.iter().any(|t| g.concerns(&t.name.value)))
        .map(|g| (g, ids.guardrails.get(g.name.as_str())))
}

/// The tenants of each compartment by its name, in the spec's order.
fn groups(spec: &Spec) -> BTreeMap<String, Vec<&spec::Tenant>> {
    let mut groups: BTreeMap<String, Vec<&spec::Tenant>> = BTreeMap::new();
    for tenant in &spec.tenants {
        groups.entry(tenant.compartment()).or_default().push(tenant);
    }
    groups
}
