//! What numbers that switches tell of are called in the spec.

use crate::view;
use crate::world::World;
use api::{RuleName, Where};
use image::rules::DEFAULT_RULE;
use spec::Span;
use std::collections::{BTreeMap, HashMap};
use telemetry::circuits::ELSEWHERE;

/// How the name begins of who is beyond a subnet, in its VLAN.
pub const SEGMENT: &str = "segment (";

/// Names of one world.
#[derive(Default)]
pub struct Names {
    rules: HashMap<u32, RuleName>,
    tags: HashMap<u16, String>,
    /// In the order of the spec: guardrails, then each tenant's.
    guardrails: Vec<u32>,
    of_tenants: BTreeMap<String, Vec<u32>>,
}

impl Names {
    /// Of what is applied.
    pub fn of(world: &World) -> Names {
        let mut names = Names::default();
        let Some((spec, ids, intent)) = world.made() else {
            return names;
        };
        let at = |span: Span| {
            let position = spec.source.position(span.start);
            Some(Where {
                file: spec.source.name_at(span.start).into(),
                line: position.line,
                column: position.column,
            })
        };
        for rail in &spec.guardrails {
            let name = rail.name.as_str();
            let Some(id) = ids.guardrails.get(name) else {
                continue;
            };
            names.guardrails.push(*id);
            let rule = RuleName {
                kind: "guardrail".into(),
                name: name.to_owned(),
                place: at(rail.name.span),
            };
            names.rules.insert(*id, rule);
        }
        for tenant in &spec.tenants {
            let Some(own) = ids.tenants.get(tenant.name.as_str()) else {
                continue;
            };
            let rules = tenant.policy.iter().flat_map(|policy| &policy.rules);
            let rules = rules.map(|rule| ("rule", &rule.name, &own.rules));
            let offers = tenant.offers.iter();
            let offers = offers.map(|offer| ("offer", &offer.name, &own.offers));
            let accepts = tenant.accepts.iter();
            let accepts = accepts.map(|accept| ("acceptance", &accept.name, &own.accepts));
            let order = names
                .of_tenants
                .entry(tenant.name.as_str().to_owned())
                .or_default();
            for (kind, name, list) in rules.chain(offers).chain(accepts) {
                let Some(id) = list.get(name.as_str()) else {
                    continue;
                };
                order.push(*id);
                let rule = RuleName {
                    kind: kind.into(),
                    name: format!("{}/{}", tenant.name.as_str(), name.as_str()),
                    place: at(name.span),
                };
                names.rules.insert(*id, rule);
            }
            for (uplink, attachment) in &own.attachments {
                names
                    .tags
                    .insert(attachment.tag, format!("outside ({uplink})"));
            }
            for (subnet, segment) in &own.segments {
                let name = format!("{SEGMENT}{subnet})");
                names.tags.insert(segment.tag, name);
            }
        }
        for agreement in &intent.agreements {
            let name = self::agreement(agreement);
            for tag in [agreement.tag, agreement.offerer_tag] {
                names.tags.insert(tag, name.clone());
            }
        }
        names
    }

    /// As a tenant may know them: of others' rules and of guardrails that they are some, and
    /// not by which uplink it goes outside.
    pub fn of_tenant(world: &World, tenant: &str) -> Names {
        let mut names = Names::of(world);
        for rule in names.rules.values_mut() {
            *rule = view::rule(std::mem::take(rule), tenant);
        }
        for name in names.tags.values_mut() {
            if name.starts_with("outside (") {
                "outside".clone_into(name);
            }
        }
        names
    }

    /// A rule by its number.
    pub fn rule(&self, number: u32) -> RuleName {
        if number == ELSEWHERE {
            return RuleName {
                kind: "elsewhere".into(),
                ..RuleName::default()
            };
        }
        if number == DEFAULT_RULE {
            return RuleName {
                kind: "default".into(),
                ..RuleName::default()
            };
        }
        self.rules
            .get(&number)
            .cloned()
            .unwrap_or_else(|| RuleName {
                kind: "rule".into(),
                name: format!("number {number}, which the spec has no more"),
                place: None,
            })
    }

    /// All rules by their numbers.
    pub fn rules(&self) -> impl Iterator<Item = (u32, &RuleName)> {
        self.rules.iter().map(|(number, rule)| (*number, rule))
    }

    /// Numbers of the rules that concern a tenant, in order.
    pub fn rules_of(&self, tenant: &str) -> Vec<u32> {
        let own = self.of_tenants.get(tenant).into_iter().flatten();
        self.guardrails
            .iter()
            .chain(own)
            .copied()
            .chain([DEFAULT_RULE])
            .collect()
    }

    /// What a fabric tag stands for.
    pub fn tag(&self, tag: u16) -> String {
        let name = self.tags.get(&tag).cloned();
        name.unwrap_or_else(|| format!("tag {tag}"))
    }
}

/// What an agreement is called.
pub fn agreement(of: &policy::Agreement) -> String {
    format!("agreement {}/{} with {}", of.offerer, of.offer, of.acceptor)
}
