//! Several workers in one switch: who is at home where, and who owns a flow.
//!
//! Each has a [`Switch`] of its own, and nothing of it is shared. A slot's *home* alone reads
//! from its port and writes to it. What goes between two slots belongs to the home of the
//! lower one, in both directions: fragments, ICMP errors and answers of a connection all
//! have the same two slots. The fabric's is the lowest, so all that crosses it is the first
//! worker's. A frame of another's flow is handed over as it came in, before anything is
//! made of it but what says whose it is, and what its sender's rate takes for it.

use crate::decision::{Decision, Egress, decide};
use crate::frame::{Face, Frame, Leaving, Sender};
use crate::state::Paid;
use crate::{FABRIC, Ingress, Nanos, Slot, Switch, act, cache};
use guard::guard;
use image::CompartmentImage;
use telemetry::drops::DropReason;
use wire::offload;
use wire::parse::parse;

/// How many workers there are, and which this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    count: u32,
    this: u32,
}

impl Default for Workers {
    fn default() -> Workers {
        Workers::ALONE
    }
}

impl Workers {
    /// The only one.
    pub const ALONE: Workers = Workers { count: 1, this: 0 };

    /// One of `count`; `this` is below it.
    pub const fn new(count: u32, this: u32) -> Workers {
        let count = if count == 0 { 1 } else { count };
        Workers {
            count,
            this: this % count,
        }
    }

    /// How many there are.
    pub const fn count(self) -> u32 {
        self.count
    }

    /// Which this is, from 0.
    pub const fn this(self) -> u32 {
        self.this
    }

    /// The worker that a slot's port belongs to.
    pub const fn home(self, slot: Slot) -> u32 {
        slot % self.count
    }

    /// Whether that is this one.
    pub const fn is_home(self, slot: Slot) -> bool {
        self.home(slot) == self.this
    }

    /// The worker that handles what goes between two slots, whichever way.
    pub fn owner(self, a: Slot, b: Slot) -> u32 {
        if guard!("workers-one-owner") {
            self.home(a.min(b))
        } else {
            self.home(a)
        }
    }

    /// What stands for another worker among the slots that frames go to: behind them all.
    pub fn relay(self, slots: usize, worker: u32) -> Slot {
        (slots as u32).saturating_add(worker)
    }
}

impl Switch {
    /// The worker that is to handle a frame which came in at this one: of several, the one
    /// that owns its flow. Where it is another, the sender has paid for it, and later frames
    /// like it may go there by [`Switch::hit`].
    ///
    /// # Errors
    /// The sender's rate has no room for it.
    pub fn owner(
        &mut self,
        image: &CompartmentImage<'_>,
        now: Nanos,
        ingress: &Ingress<'_>,
    ) -> Result<u32, DropReason> {
        let workers = self.state.config.workers;
        let from = ingress.from;
        // What it is that nobody owns, its sender's home answers, refuses or copies.
        let sender = self.state.endpoint_at(from);
        let sender = sender.and_then(|index| Sender::of(image, index));
        let (Some(sender), Ok(parsed)) = (sender, parse(ingress.head, ingress.total)) else {
            return Ok(workers.this);
        };
        let checked = offload::check(
            ingress.offload,
            &parsed,
            ingress.total,
            sender.endpoint.min_gso,
        );
        let Ok(offload) = checked else {
            return Ok(workers.this);
        };
        let frame = Frame {
            now,
            from,
            parsed: &parsed,
            offload,
            total: ingress.total,
            face: Face::gateway(&sender),
            leaving: Leaving::Same,
        };
        let endpoint = |index: u32| image.endpoints().get(index as usize);
        let decision = decide(&self.state, image, &sender, &frame, ingress.head);
        let to = match decision {
            Decision::Bridge(index) => endpoint(index).map(|to| to.slot),
            Decision::Route(hop) => match hop.egress {
                Egress::Endpoint(index) => endpoint(index).map(|to| to.slot),
                Egress::Outside { .. } | Egress::Service { .. } => Some(FABRIC),
            },
            // Who asks for next hops outside is the one who sends there.
            Decision::Resolve { .. } => Some(FABRIC),
            // What answers comes from the fabric.
            Decision::Beyond(_) | Decision::Ask { .. } => Some(FABRIC),
            Decision::Flood if sender.subnet.segment != 0 => Some(FABRIC),
            _ => None,
        };
        let Some(to) = to else {
            return Ok(workers.this);
        };
        let owner = workers.owner(from, to);
        if owner == workers.this {
            return Ok(owner);
        }
        if !self.state.is_limited(from) {
            let to = workers.relay(self.state.config.slots, owner);
            cache::remember_owner(&mut self.state, from, ingress.head, to);
            return Ok(owner);
        }
        let bytes = offload.wire_bytes(ingress.total) as u64;
        match self.state.free(now, from) {
            Paid::Yes => {}
            _ if guard!("workers-ingress-meter") => return Err(DropReason::IngressRate),
            _ => {}
        }
        self.state.charge(from, bytes, offload.segments() as u64);
        // What its owner makes more of it is paid for here as well.
        let mtu = match decision {
            Decision::Bridge(index) => endpoint(index).map(|to| to.mtu),
            Decision::Route(hop) => Some(hop.mtu),
            Decision::Beyond(_) | Decision::Flood => Some(sender.subnet.mtu),
            _ => None,
        };
        if let Some(mtu) = mtu {
            act::pay_for_fragments(&mut self.state, &frame, mtu);
        }
        Ok(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_have_one_owner_and_it_is_at_home_at_one_end() {
        for count in 1..=8 {
            let workers = Workers::new(count, 0);
            for a in 0..40 {
                for b in 0..40 {
                    let owner = workers.owner(a, b);
                    assert_eq!(owner, workers.owner(b, a));
                    assert!([workers.home(a), workers.home(b)].contains(&owner));
                }
                assert_eq!(workers.owner(a, FABRIC), 0);
            }
        }
    }
}
