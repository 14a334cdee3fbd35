//! What a change of the image can have changed for connections, so that those that an
//! edit of rules left alone are not judged again.
//!
//! Two lists that begin and end alike differ in the rules in between, old and new. A
//! packet that is in none of these is decided by a rule of the common beginning or end,
//! the same in both: its verdict is what it was.

use flow::Side;
use guard::guard;
use image::CompartmentImage;
use image::compartment::{Endpoint, NONE};
use image::rules::{Region, RuleTable};
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::Tuple;

use crate::judgement::{opening, slot_of};

/// Rules that differ, at most, for the difference to be worth looking at.
const MOST: usize = 16;
/// Edits that are remembered: connections that are older are judged again.
const EDITS: usize = 4;

/// The last edits, the newest last.
#[derive(Debug, Default)]
pub(crate) struct Edits(Vec<Edit>);

impl Edits {
    pub(crate) fn push(&mut self, edit: Edit) {
        if self.0.len() == EDITS {
            self.0.remove(0);
        }
        self.0.push(edit);
    }

    /// Whether a connection that was let begin so many edits ago is concerned by none of them.
    pub(crate) fn leave(&self, ago: u32, a: &Side, b: &Side) -> bool {
        let ago = ago as usize;
        let looked_at = match guard!("edit-each") {
            true => ago,
            false => 1,
        };
        let concerns = |edit: &Edit| edit.concerns(a, b) && guard!("edit-concerns");
        ago <= self.0.len() && !self.0.iter().rev().take(looked_at).any(concerns)
    }
}

/// What differs between two images.
#[derive(Debug)]
pub(crate) struct Edit {
    /// By slot: of what its endpoint sends, and of what is sent to it.
    ends: Vec<[Changed; 2]>,
}

/// What differs of a table.
#[derive(Clone, Debug)]
enum Changed {
    /// The verdicts of packets in these.
    In(Arc<[Region]>),
    /// Any verdict.
    All,
}

impl Changed {
    /// Whether the first packet of a connection is among these.
    fn concerns(&self, tuple: &Tuple) -> bool {
        match self {
            Changed::In(regions) if regions.is_empty() => false,
            Changed::In(regions) => {
                let opening = opening(tuple);
                regions.iter().any(|region| region.contains(&opening))
            }
            Changed::All => true,
        }
    }
}

impl Edit {
    /// Everything may have changed.
    pub(crate) const fn all() -> Edit {
        Edit { ends: Vec::new() }
    }

    /// What differs. Off the data path: tables that changed are decoded.
    pub(crate) fn between(before: &CompartmentImage<'_>, after: &CompartmentImage<'_>) -> Edit {
        if !is_rules_alone(before, after) {
            return Edit::all();
        }
        let mut known: BTreeMap<(u32, u32), Changed> = BTreeMap::new();
        let mut changed = |old: u32, new: u32| {
            let table = |image: &CompartmentImage<'_>, at| match at {
                NONE => None,
                at => Some(image.rule_table(at)),
            };
            known
                .entry((old, new))
                .or_insert_with(|| compare(table(before, old), table(after, new)))
                .clone()
        };
        let mut ends = Vec::new();
        for (old, new) in before.endpoints().iter().zip(after.endpoints()) {
            let slot = new.slot as usize;
            if ends.len() <= slot {
                ends.resize(slot + 1, [Changed::All, Changed::All]);
            }
            if let Some(end) = ends.get_mut(slot) {
                *end = [
                    changed(old.egress, new.egress),
                    changed(old.ingress, new.ingress),
                ];
            }
        }
        Edit { ends }
    }

    /// Whether a connection that the image before let begin is to be judged again.
    /// Bound: the rules that differ, a few.
    fn concerns(&self, a: &Side, b: &Side) -> bool {
        let end = |side: &Side, which: usize, tuple: &Tuple| {
            // Beyond a tag nothing changed, or all did.
            let all = self.ends.is_empty();
            all || (side.zone == 0
                && self
                    .ends
                    .get(slot_of(side.owner) as usize)
                    .and_then(|end| end.get(which))
                    .is_none_or(|changed| changed.concerns(tuple)))
        };
        end(a, 0, &a.tuple) || end(b, 1, &b.tuple.reversed())
    }
}

/// Whether nothing but rules differs, as far as a connection's verdict goes.
fn is_rules_alone(before: &CompartmentImage<'_>, after: &CompartmentImage<'_>) -> bool {
    let bare = |endpoint: &Endpoint| Endpoint {
        egress: NONE,
        ingress: NONE,
        connections: 0,
        ..*endpoint
    };
    let ports = |image: &CompartmentImage<'_>| {
        let of = |crossing| image.service_ports_of(crossing).to_vec();
        image.crossings().iter().map(of).collect::<Vec<_>>()
    };
    let routed = |image: &CompartmentImage<'_>| {
        let of = |crossing| image.routed_prefixes_of(crossing).to_vec();
        image.crossings().iter().map(of).collect::<Vec<_>>()
    };
    before.tenants() == after.tenants()
        && before.subnets() == after.subnets()
        && (before.endpoints().iter().map(bare)).eq(after.endpoints().iter().map(bare))
        && before.addresses() == after.addresses()
        && before.own_prefixes() == after.own_prefixes()
        && before.attachments() == after.attachments()
        && before.nat_blocks() == after.nat_blocks()
        && before.crossings() == after.crossings()
        && ports(before) == ports(after)
        && routed(before) == routed(after)
}

fn compare(before: Option<RuleTable>, after: Option<RuleTable>) -> Changed {
    let (before, after) = match (before, after) {
        (None, None) => return Changed::In(Arc::default()),
        (Some(before), Some(after)) if before.default == after.default => (before, after),
        _ => return Changed::All,
    };
    let (old, new) = (&before.rules, &after.rules);
    let alike = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let (old, new) = (
        old.get(alike..).unwrap_or(&[]),
        new.get(alike..).unwrap_or(&[]),
    );
    let ends = old
        .iter()
        .rev()
        .zip(new.iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let differ = |rules: &[image::rules::Rule]| {
        let rules = rules.get(..rules.len() - ends).unwrap_or(&[]);
        rules.iter().map(|rule| rule.region.clone()).collect()
    };
    let mut regions: Vec<Region> = differ(old);
    regions.extend::<Vec<Region>>(differ(new));
    if regions.len() > MOST {
        return Changed::All;
    }
    Changed::In(regions.into())
}
