//! Numbers that stay: given once, kept while the thing that is named lives, and not
//! given to another in the very change that ends it.

use core::net::IpAddr;
use guard::guard;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use spec::{Endpoint, Outside, Spec, Subnet, Tenant};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// All numbers of a host, by the names of the spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ids {
    /// By tenant.
    pub tenants: BTreeMap<String, TenantIds>,
    /// By compartment ([`spec::Tenant::compartment`]).
    pub compartments: BTreeMap<String, CompartmentIds>,
    /// By uplink.
    pub uplinks: BTreeMap<String, UplinkIds>,
    /// The next subnet's number.
    pub next_subnet: u32,
    /// The next endpoint's number.
    pub next_endpoint: u32,
}

/// A tenant's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TenantIds {
    /// 24-bit tenant id.
    pub id: u32,
    /// Host-wide subnet ids by name.
    pub subnets: BTreeMap<String, u32>,
    /// By endpoint.
    pub endpoints: BTreeMap<String, EndpointIds>,
    /// By uplink.
    pub attachments: BTreeMap<String, AttachmentIds>,
}

/// An endpoint's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointIds {
    /// Host-wide endpoint id, from 1.
    pub id: u32,
    /// Compartment that it is in.
    pub compartment: u32,
    /// Its slot there, from 1.
    pub slot: u32,
    /// Addresses that were chosen for it: one a prefix of its subnet.
    pub chosen: Vec<IpAddr>,
}

/// A compartment's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CompartmentIds {
    /// Its id and fabric slot, from 1.
    pub id: u32,
    /// Slots in its counters page: grows in leaps, because a larger page means a restart.
    pub slots: u32,
}

/// An uplink's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UplinkIds {
    /// Uplink number.
    pub number: u32,
    /// Its fabric slot.
    pub slot: u32,
}

/// An attachment's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AttachmentIds {
    /// Host-local tag on the fabric, from 1.
    pub tag: u16,
    /// What the tag stood for. Another meaning gets another tag, so that a switch that
    /// still runs the image before says nothing the fabric would take for a lie.
    pub meaning: u64,
}

impl Ids {
    /// The numbers for a spec: those of `before` for what goes on, new ones for the rest.
    pub fn assign(spec: &Spec, before: &Ids) -> Ids {
        let mut ids = Ids {
            next_subnet: before.next_subnet.max(1),
            next_endpoint: before.next_endpoint.max(1),
            ..Ids::default()
        };
        ids.fabric_slots(spec, before);
        ids.tenant_ids(spec, before);
        let mut tags: BTreeSet<u16> = before
            .tenants
            .values()
            .flat_map(|t| t.attachments.values())
            .map(|a| a.tag)
            .collect();
        for tenant in &spec.tenants {
            let old = before.tenants.get(tenant.name.as_str());
            let compartment = ids
                .compartments
                .get(&tenant.compartment())
                .map_or(0, |c| c.id);
            let mut new = TenantIds {
                id: ids.tenants.get(tenant.name.as_str()).map_or(0, |t| t.id),
                ..TenantIds::default()
            };
            for subnet in &tenant.subnets {
                let name = subnet.name.as_str();
                let id = old
                    .and_then(|o| o.subnets.get(name))
                    .copied()
                    .unwrap_or_else(|| next(&mut ids.next_subnet));
                new.subnets.insert(name.to_owned(), id);
            }
            for endpoint in &tenant.endpoints {
                let name = endpoint.name.as_str();
                let was = old.and_then(|o| o.endpoints.get(name));
                let id = was.map_or_else(|| next(&mut ids.next_endpoint), |e| e.id);
                let slot = was
                    .filter(|e| e.compartment == compartment)
                    .map_or(0, |e| e.slot);
                new.endpoints.insert(
                    name.to_owned(),
                    EndpointIds {
                        id,
                        compartment,
                        slot,
                        chosen: Vec::new(),
                    },
                );
            }
            choose_addresses(tenant, old, &mut new);
            for outside in &tenant.outside {
                let name = outside.uplink.as_str();
                let meaning = meaning(spec, tenant, outside);
                let kept = old
                    .and_then(|o| o.attachments.get(name))
                    .filter(|a| a.meaning == meaning || !guard!("tag-meaning"));
                let tag = kept.map_or_else(|| free(&mut tags), |a| a.tag);
                new.attachments
                    .insert(name.to_owned(), AttachmentIds { tag, meaning });
            }
            ids.tenants.insert(tenant.name.as_str().to_owned(), new);
        }
        ids.slots(before);
        ids
    }

    /// An endpoint's numbers by `TENANT/ENDPOINT`.
    pub fn endpoint(&self, name: &str) -> Option<&EndpointIds> {
        let (tenant, endpoint) = name.split_once('/')?;
        self.tenants.get(tenant)?.endpoints.get(endpoint)
    }

    /// One space of slots for compartments and uplinks, dense, from 1.
    fn fabric_slots(&mut self, spec: &Spec, before: &Ids) {
        let compartments = before.compartments.values().map(|c| c.id);
        let mut taken: BTreeSet<u32> = compartments
            .chain(before.uplinks.values().map(|u| u.slot))
            .collect();
        let mut numbers: BTreeSet<u32> = before.uplinks.values().map(|u| u.number).collect();
        for tenant in &spec.tenants {
            let name = tenant.compartment();
            let kept = before.compartments.get(&name).cloned();
            self.compartments.entry(name).or_insert_with(|| {
                kept.unwrap_or_else(|| CompartmentIds {
                    id: lowest(&mut taken, 1),
                    slots: 0,
                })
            });
        }
        for uplink in &spec.uplinks {
            let name = uplink.name.as_str();
            let kept = before.uplinks.get(name).cloned();
            let made = kept.unwrap_or_else(|| UplinkIds {
                number: lowest(&mut numbers, 0),
                slot: lowest(&mut taken, 1),
            });
            self.uplinks.insert(name.to_owned(), made);
        }
    }

    /// Tenant ids: the spec's, then those kept, then free ones.
    fn tenant_ids(&mut self, spec: &Spec, before: &Ids) {
        let written: BTreeSet<u32> = spec
            .tenants
            .iter()
            .filter_map(|t| t.id)
            .map(|id| id.value)
            .collect();
        let mut taken: BTreeSet<u32> = before
            .tenants
            .values()
            .map(|t| t.id)
            .chain(written.iter().copied())
            .collect();
        for tenant in &spec.tenants {
            let name = tenant.name.as_str();
            let kept = before
                .tenants
                .get(name)
                .map(|t| t.id)
                .filter(|id| !written.contains(id));
            let id = tenant
                .id
                .map(|id| id.value)
                .or(kept)
                .unwrap_or_else(|| lowest(&mut taken, 1));
            self.tenants.insert(
                name.to_owned(),
                TenantIds {
                    id,
                    ..TenantIds::default()
                },
            );
        }
    }

    /// Slots of endpoints that have none yet, and the size of each counters page.
    fn slots(&mut self, before: &Ids) {
        let mut taken: HashMap<u32, BTreeSet<u32>> = HashMap::new();
        let all = before
            .tenants
            .values()
            .chain(self.tenants.values())
            .flat_map(|t| t.endpoints.values());
        for endpoint in all {
            taken
                .entry(endpoint.compartment)
                .or_default()
                .insert(endpoint.slot);
        }
        let mut cursors: HashMap<u32, u32> = HashMap::new();
        for endpoint in self
            .tenants
            .values_mut()
            .flat_map(|t| t.endpoints.values_mut())
        {
            if endpoint.slot == 0 {
                let cursor = cursors.entry(endpoint.compartment).or_insert(1);
                let slots = taken.entry(endpoint.compartment).or_default();
                endpoint.slot = lowest(slots, *cursor);
                *cursor = endpoint.slot + 1;
            }
        }
        let mut highest: HashMap<u32, u32> = HashMap::new();
        for endpoint in self.tenants.values().flat_map(|t| t.endpoints.values()) {
            let most = highest.entry(endpoint.compartment).or_default();
            *most = (*most).max(endpoint.slot);
        }
        for compartment in self.compartments.values_mut() {
            let needed = highest.get(&compartment.id).copied().unwrap_or(0) + 1;
            if needed > compartment.slots {
                compartment.slots = (needed + needed / 4).next_power_of_two().max(32);
            }
        }
    }
}

fn next(counter: &mut u32) -> u32 {
    let id = *counter;
    *counter += 1;
    id
}

/// The lowest number from `least` on that is not taken; takes it.
fn lowest(taken: &mut BTreeSet<u32>, least: u32) -> u32 {
    let mut free = least;
    for number in taken.range(least..) {
        if *number != free {
            break;
        }
        free += 1;
    }
    taken.insert(free);
    free
}

/// The lowest free tag, from 1. 65,535 are more than tenants times uplinks.
fn free(tags: &mut BTreeSet<u16>) -> u16 {
    let tag = (1..=u16::MAX)
        .find(|tag| !tags.contains(tag))
        .unwrap_or(u16::MAX);
    tags.insert(tag);
    tag
}

/// A number for what the fabric lets an attachment say.
fn meaning(spec: &Spec, tenant: &Tenant, outside: &Outside) -> u64 {
    let mut sha = Sha256::new();
    let mut word = |text: String| {
        sha.update(text.as_bytes());
        sha.update([0]);
    };
    word(spec.host_name().to_owned());
    word(outside.uplink.to_string());
    word(
        outside
            .mac
            .map_or_else(String::new, |m| m.value.to_string()),
    );
    outside
        .address
        .iter()
        .for_each(|a| word(a.value.to_string()));
    sources(tenant).for_each(|p| word(p.to_string()));
    let hash = sha.finalize();
    hash.iter()
        .take(8)
        .fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// The prefixes that a tenant's packets may come from.
pub(crate) fn sources(tenant: &Tenant) -> impl Iterator<Item = spec::Prefix> + '_ {
    let own = tenant.subnets.iter().flat_map(|s| &s.prefixes);
    own.chain(tenant.endpoints.iter().flat_map(|e| &e.prefixes))
        .map(|p| p.value)
}

/// Addresses for the endpoints that leave them to us: the one it had, else the next free.
fn choose_addresses(tenant: &Tenant, old: Option<&TenantIds>, new: &mut TenantIds) {
    let subnets: HashMap<&str, &Subnet> = tenant
        .subnets
        .iter()
        .map(|s| (s.name.as_str(), s))
        .collect();
    let written = tenant
        .endpoints
        .iter()
        .filter_map(Endpoint::addresses)
        .flatten()
        .map(|a| a.value.0);
    let gateways = tenant
        .subnets
        .iter()
        .flat_map(|s| s.prefixes.iter().map(|p| s.gateway_in(p)));
    let mut taken: HashSet<IpAddr> = written.chain(gateways).collect();
    let automatic = || tenant.endpoints.iter().filter(|e| e.addresses().is_none());
    // First all that keep theirs, so that nobody new takes it.
    let mut kept: HashMap<&str, Vec<IpAddr>> = HashMap::new();
    for endpoint in automatic() {
        let Some(subnet) = subnets.get(endpoint.subnet.as_str()) else {
            continue;
        };
        let had = old
            .and_then(|o| o.endpoints.get(endpoint.name.as_str()))
            .map_or(&[][..], |e| &e.chosen);
        let fits = |a: &&IpAddr| subnet.prefixes.iter().any(|p| p.is_host(**a));
        let keep = had
            .iter()
            .filter(fits)
            .filter(|a| taken.insert(**a))
            .copied()
            .collect();
        kept.insert(endpoint.name.as_str(), keep);
    }
    let mut cursors: HashMap<spec::Prefix, u64> = HashMap::new();
    for endpoint in automatic() {
        let Some(subnet) = subnets.get(endpoint.subnet.as_str()) else {
            continue;
        };
        let had = kept.remove(endpoint.name.as_str()).unwrap_or_default();
        let mut chosen = Vec::new();
        for prefix in &subnet.prefixes {
            if let Some(had) = had.iter().find(|a| prefix.contains(**a)) {
                chosen.push(*had);
                continue;
            }
            let cursor = cursors.entry(prefix.value).or_insert(1);
            // Bounded: each step passes a taken address or ends.
            while prefix.is_host(prefix.nth(*cursor)) {
                let address = prefix.nth(*cursor);
                *cursor += 1;
                if taken.insert(address) {
                    chosen.push(address);
                    break;
                }
            }
        }
        if let Some(ids) = new.endpoints.get_mut(endpoint.name.as_str()) {
            ids.chosen = chosen;
        }
    }
}
