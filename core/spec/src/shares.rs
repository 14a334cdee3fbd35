//! What tenants' own documents share of a host's limits: each has so much that all of them
//! together do not go beyond what the provider's own leaves, whatever they state. So none
//! stops the provider or another tenant by using a limit up.

use guard::guard;

use crate::MAX_BYTES;
use crate::model::{Document, SelfManaged, Tenant};
use crate::parts::{MAX_DOCUMENT_BYTES, MAX_DOCUMENT_NODES};
use crate::validate::{MAX_ACCEPTS, MAX_AGREEMENTS, MAX_ENDPOINTS, MAX_TENANT_ENDPOINTS};

/// Most values in all of tenants' own documents, their aliases written out.
const MAX_OWN_NODES: usize = 64 * MAX_DOCUMENT_NODES;

/// What there is for tenants' own documents.
#[derive(Debug)]
pub(crate) struct Shares {
    /// Bytes of a document.
    pub bytes: usize,
    /// Values in one.
    pub nodes: usize,
    /// Acceptances of a tenant.
    pub accepts: usize,
    /// Endpoints that the provider's leaves, and those that it lets tenants have.
    endpoints: (usize, usize),
}

impl Shares {
    /// By the provider's document, of so many bytes.
    pub fn of(document: &Document, bytes: usize) -> Shares {
        let own = |tenant: &&Tenant| tenant.self_managed.is_some();
        let (mut count, mut promised) = (0, 0);
        for limits in document
            .tenants
            .iter()
            .filter_map(|t| t.self_managed.as_ref())
        {
            count += 1;
            promised += most_endpoints(limits);
        }
        let provided = || document.tenants.iter().filter(|tenant| !own(tenant));
        let endpoints: usize = provided().map(|tenant| tenant.endpoints.len()).sum();
        let accepts: usize = provided().map(|tenant| tenant.accepts.len()).sum();
        let each = |most: usize, all: usize| share(most, most * count, all);
        Shares {
            bytes: each(MAX_DOCUMENT_BYTES, MAX_BYTES.saturating_sub(bytes)),
            nodes: each(MAX_DOCUMENT_NODES, MAX_OWN_NODES),
            accepts: each(MAX_ACCEPTS, MAX_AGREEMENTS.saturating_sub(accepts)),
            endpoints: (MAX_ENDPOINTS.saturating_sub(endpoints), promised),
        }
    }

    /// Endpoints of a tenant with these limits.
    pub fn endpoints(&self, limits: &SelfManaged) -> usize {
        let (left, promised) = self.endpoints;
        share(most_endpoints(limits), promised, left)
    }
}

fn most_endpoints(limits: &SelfManaged) -> usize {
    (limits.endpoints() as usize).min(MAX_TENANT_ENDPOINTS)
}

/// Of what is left, by what each was promised; all of that where it is enough for all.
fn share(promised: usize, of: usize, left: usize) -> usize {
    if of <= left || !guard!("spec-own-shares") {
        return promised;
    }
    // None of these is beyond 2^40.
    promised * left / of
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_shares_together_are_no_more_than_there_is(
            promised in proptest::collection::vec(0usize..5_000, 1..1024),
            left in 0usize..20_000,
        ) {
            let of = promised.iter().sum();
            let shares = promised.iter().map(|one| share(*one, of, left));
            prop_assert!(shares.clone().sum::<usize>() <= left);
            // What goes round is lost to nobody but by the remainder.
            let least = of.min(left).saturating_sub(promised.len());
            prop_assert!(shares.clone().sum::<usize>() >= least);
            prop_assert!(shares.zip(&promised).all(|(share, promised)| share <= *promised));
        }
    }
}
