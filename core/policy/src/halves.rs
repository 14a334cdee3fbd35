//! Halves of agreements: what one side states and no agreement is made of, and what it lacks.

use crate::agreements::Agreement;
use spec::{Spec, Tenant};
use std::collections::{BTreeMap, BTreeSet};

/// An offer or an acceptance that no live agreement is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Half {
    /// Whose it is.
    pub tenant: String,
    /// Its name there.
    pub name: String,
    /// The tenant that it is to agree with.
    pub other: String,
    /// What it lacks.
    pub lacks: Lacks,
}

/// What a half lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lacks {
    /// Of an offer: the other tenant accepts none of this name.
    Acceptance,
    /// Of an acceptance: the other tenant offers this one none of this name. What it offers to whom else, or whether
    /// it is there, is told to nobody.
    Offer(String),
    /// The offer's time is over.
    Time,
    /// Both are there, and have nothing in common: no family of addresses, no prefixes, or one of them routes and the
    /// other does not. Of a document of the provider's alone that is an error.
    Common,
}

/// The first `most` halves of a spec, or of one tenant of it, in its order, where these agreements are live at `now`
/// (seconds since 1970). Bound: what these tenants state.
pub fn halves(
    spec: &Spec,
    live: &[Agreement],
    (of, most): (Option<&str>, usize),
    now: u64,
) -> Vec<Half> {
    let live: BTreeSet<[&str; 3]> = (live.iter())
        .map(|one| [&*one.offerer, &*one.offer, &*one.acceptor])
        .collect();
    let tenants: BTreeMap<&str, &Tenant> = (spec.tenants.iter())
        .map(|tenant| (tenant.name.as_str(), tenant))
        .collect();
    let asked = (spec.tenants.iter()).filter(|it| of.is_none_or(|of| it.name.as_str() == of));
    // Each as whose it is, its name, the other, and who would offer what to whom.
    let stated = asked.flat_map(|tenant| {
        let own = tenant.name.as_str();
        let offers = tenant.offers.iter().flat_map(move |offer| {
            let name = offer.name.as_str();
            let to = offer.to.iter().map(|to| to.value.as_str());
            to.map(move |to| ([own, name, to], [own, name, to]))
        });
        let accepts = tenant.accepts.iter().map(move |accept| {
            let (from, service) = (accept.from.as_str(), accept.service.as_str());
            ([own, accept.name.as_str(), from], [from, service, own])
        });
        offers.chain(accepts)
    });
    let halves = stated.filter(|(_, meeting)| !live.contains(meeting));
    let halves = halves.map(|([tenant, name, other], [offerer, service, acceptor])| {
        let offer = tenants.get(offerer).and_then(|it| {
            let mut offers = it.offers.iter();
            offers.find(|it| {
                it.name.as_str() == service && it.to.iter().any(|to| to.value.as_str() == acceptor)
            })
        });
        let accept = tenants.get(acceptor).and_then(|it| {
            let mut accepts = it.accepts.iter();
            accepts.find(|it| it.from.as_str() == offerer && it.service.as_str() == service)
        });
        let lacks = match (offer, accept) {
            (None, _) => Lacks::Offer(service.into()),
            (_, None) => Lacks::Acceptance,
            (Some(offer), _) => match &offer.until {
                Some(until) if until.value.0 <= now => Lacks::Time,
                _ => Lacks::Common,
            },
        };
        let [tenant, name, other] = [tenant, name, other].map(str::to_owned);
        Half {
            tenant,
            name,
            other,
            lacks,
        }
    });
    halves.take(most).collect()
}

/// An offer to a tenant that has accepted none of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unaccepted {
    /// Whose offer.
    pub offerer: String,
    /// Its name there.
    pub offer: String,
    /// Prefixes as they are; else a service.
    pub is_routed: bool,
}

/// The first `most` offers to a tenant, live at `now` (seconds since 1970), that it has not accepted. They name it, so that it
/// may know of them. Bound: what is offered.
pub fn unaccepted(spec: &Spec, to: &str, most: usize, now: u64) -> Vec<Unaccepted> {
    let mut tenants = spec.tenants.iter();
    let Some(acceptor) = tenants.find(|it| it.name.as_str() == to) else {
        return Vec::new();
    };
    let accepted: BTreeSet<[&str; 2]> = (acceptor.accepts.iter())
        .map(|it| [it.from.as_str(), it.service.as_str()])
        .collect();
    let offers = spec.tenants.iter().flat_map(|tenant| {
        let offers = tenant.offers.iter();
        offers.map(move |offer| (tenant.name.as_str(), offer))
    });
    let left = offers.filter(|(offerer, offer)| {
        let is_over = (offer.until.as_ref()).is_some_and(|until| until.value.0 <= now);
        let names = offer.to.iter().any(|it| it.value.as_str() == to);
        names && !is_over && !accepted.contains(&[*offerer, offer.name.as_str()])
    });
    let left = left.map(|(offerer, offer)| Unaccepted {
        offerer: offerer.to_owned(),
        offer: offer.name.as_str().to_owned(),
        is_routed: !offer.route.is_empty(),
    });
    left.take(most).collect()
}
