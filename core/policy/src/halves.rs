//! Halves of agreements: what one side states and no agreement is made of, and what it lacks.

use crate::agreements::{Agreement, meetings};
use spec::Spec;
use std::collections::BTreeSet;

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
    /// Both are there (what would have nothing in common no spec states), and the offer's time is over.
    Time,
}

/// The halves of a spec, where these agreements are live, in the spec's order.
pub fn halves(spec: &Spec, live: &[Agreement]) -> Vec<Half> {
    let made: BTreeSet<[&str; 3]> = (live.iter())
        .map(|one| [&*one.offerer, &*one.offer, &*one.acceptor])
        .collect();
    let met: BTreeSet<[&str; 3]> = (meetings(spec).into_iter())
        .map(|(offerer, offer, acceptor, _)| {
            [&offerer.name, &offer.name, &acceptor.name].map(|name| name.as_str())
        })
        .collect();
    let mut halves = Vec::new();
    for tenant in &spec.tenants {
        let mut half = |name: &str, other: &str, of: [&str; 3], unmet: Lacks| {
            if !made.contains(&of) {
                halves.push(Half {
                    tenant: tenant.name.to_string(),
                    name: name.into(),
                    other: other.into(),
                    lacks: if met.contains(&of) {
                        Lacks::Time
                    } else {
                        unmet
                    },
                });
            }
        };
        let own = tenant.name.as_str();
        for offer in &tenant.offers {
            let name = offer.name.as_str();
            for to in offer.to.iter() {
                let of = [own, name, to.value.as_str()];
                half(name, to.value.as_str(), of, Lacks::Acceptance);
            }
        }
        for accept in &tenant.accepts {
            let (from, service) = (accept.from.as_str(), accept.service.as_str());
            let lacks = Lacks::Offer(service.into());
            half(accept.name.as_str(), from, [from, service, own], lacks);
        }
    }
    halves
}
