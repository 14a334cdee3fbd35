//! What of tenants' own documents yields to what others state, and who is told.

use super::Applier;
use crate::proof::Unproved;
use crate::stated::Stated;
use crate::world::World;
use api::{Fault, Proof};
use guard::guard;

/// Proofs that say whose `reach` does not hold; after these all others' is set aside at once.
const ROUNDS: u32 = 2;

impl Applier {
    /// Has a world proved. What tenants ask for by `reach` in documents of their own stops
    /// nobody but whose document this changes: it is set aside. Gives the world as it then is.
    pub(super) async fn proved(
        &mut self,
        old: &World,
        new: World,
        by: Option<&str>,
        purpose: u32,
    ) -> Result<(World, Proof), Fault> {
        let (less, proof) = self.proved_less(old, &new, by, purpose).await?;
        Ok((less.unwrap_or(new), proof))
    }

    /// Likewise; gives the world that it then is where something was set aside.
    pub(super) async fn proved_less(
        &mut self,
        old: &World,
        new: &World,
        by: Option<&str>,
        purpose: u32,
    ) -> Result<(Option<World>, Proof), Fault> {
        let accepted = by.map(|_| old);
        let mut less: Option<World> = None;
        // Bound: after these rounds nothing of others' is left to set aside.
        let mut round = 0;
        loop {
            round += 1;
            let world = less.as_ref().unwrap_or(new);
            let (mut unmet, fault) = match self.prover.prove_asked(accepted, world, purpose).await {
                Ok(proof) => return Ok((less, proof)),
                Err(Unproved::Unmet(unmet, fault)) if guard!("reach-of-others") => (unmet, fault),
                Err(why) => return Err(why.into()),
            };
            if by.is_some_and(|by| unmet.remove(by).is_some()) {
                return Err(fault);
            }
            let mut stated = Stated::before(world.applied());
            if round >= ROUNDS && guard!("reach-rounds") {
                // However few a report names, and whatever is found once these are gone.
                let all = world
                    .made()
                    .into_iter()
                    .flat_map(|(spec, ..)| &spec.tenants);
                let asks = all.filter(|one| one.policy.iter().any(|own| !own.reach.is_empty()));
                for tenant in asks.filter(|one| by != Some(one.name.as_str())) {
                    unmet.entry(tenant.name.to_string()).or_default();
                }
            }
            if !stated.without_reach(unmet) {
                return Err(fault);
            }
            less = Some(World::of(stated, old)?);
        }
    }

    /// Tells each tenant of what is set aside of its own document from now on, or no more.
    pub(super) fn tell_aside(&self, old: &World, new: &World) {
        let what = |world: &World, tenant: &str| {
            let aside = world.applied().aside.get(tenant);
            aside.map(|aside| aside.what.clone())
        };
        for tenant in new.tenants() {
            let (was, is) = (what(old, &tenant.name), what(new, &tenant.name));
            let (kind, message) = match is.as_deref() {
                _ if was == is => continue,
                Some("reach") => (
                    "reach-unmet",
                    "what its document asks for by `reach` does not hold any more, and is not held",
                ),
                Some(_) => (
                    "set-aside",
                    "its own document does not fit what the provider states now and is set aside: \
                     `bulkhead status` says what does not fit; apply one that does",
                ),
                None => ("set-aside-no-more", "all of its own document holds again"),
            };
            self.happenings
                .told(tenant.compartment, kind, &tenant.name, message.into());
        }
    }
}
