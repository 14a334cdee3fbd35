//! Numbers that stay: given once, kept while the thing that is named lives, and not
//! given to another in the very change that ends it.

use crate::agreements::{key, meetings};
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
    /// Rule numbers of guardrails.
    pub guardrails: BTreeMap<String, u32>,
    /// By `OFFERER/OFFER/ACCEPTOR`.
    pub agreements: BTreeMap<String, AgreementIds>,
    /// The next subnet's number.
    pub next_subnet: u32,
    /// The next endpoint's number.
    pub next_endpoint: u32,
    /// The next rule's number.
    pub next_rule: u32,
    /// The next agreement's number.
    pub next_agreement: u32,
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
    /// Of subnets that go on beyond the host, by name.
    pub segments: BTreeMap<String, SegmentIds>,
    /// Host-wide rule numbers by the names of rules, from 1.
    pub rules: BTreeMap<String, u32>,
    /// Rule numbers, of the same space, that offers stand for.
    pub offers: BTreeMap<String, u32>,
    /// Rule numbers, of the same space, that acceptances stand for.
    pub accepts: BTreeMap<String, u32>,
}

/// An agreement's numbers, whether or not its time is over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgreementIds {
    /// Host-wide agreement id, from 1.
    pub id: u32,
    /// Tag on the fabric, of one space with the attachments'.
    pub tag: u16,
    /// The offerer's own, where both tenants are in one compartment; 0 = `tag` is both's.
    pub back: u16,
    /// What the tag stood for: the two compartments. See [`AttachmentIds::meaning`].
    pub meaning: u64,
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
    /// With `nat: on`: the number of each endpoint's block of ports.
    pub blocks: BTreeMap<String, u32>,
}

/// A segment's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SegmentIds {
    /// Host-local tag on the fabric, of one space with the attachments'.
    pub tag: u16,
    /// What the tag stood for: the compartment, the uplink and the VLAN. See
    /// [`AttachmentIds::meaning`].
    pub meaning: u64,
}

impl Ids {
    /// The numbers for a spec: those of `before` for what goes on, new ones for the rest.
    pub fn assign(spec: &Spec, before: &Ids) -> Ids {
        let mut ids = Ids {
            next_subnet: before.next_subnet.max(1),
            next_endpoint: before.next_endpoint.max(1),
            next_rule: before.next_rule.max(1),
            next_agreement: before.next_agreement.max(1),
            ..Ids::default()
        };
        let rails = spec.guardrails.iter().map(|g| g.name.as_str());
        ids.guardrails = kept_or_next(rails, Some(&before.guardrails), &mut ids.next_rule);
        ids.fabric_slots(spec, before);
        ids.tenant_ids(spec, before);
        let of_tenant = |t: &TenantIds| -> Vec<u16> {
            let attachments = t.attachments.values().map(|a| a.tag);
            attachments
                .chain(t.segments.values().map(|s| s.tag))
                .collect()
        };
        let mut tags: BTreeSet<u16> = before
            .tenants
            .values()
            .flat_map(of_tenant)
            .chain(before.agreements.values().flat_map(|a| [a.tag, a.back]))
            .collect();
        let mut cursor = 1;
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
                let was = old.and_then(|o| o.attachments.get(name));
                let kept = was.filter(|a| a.meaning == meaning || !guard!("tag-meaning"));
                let tag = kept.map_or_else(|| free(&mut tags, &mut cursor), |a| a.tag);
                let blocks = blocks(tenant, outside, was.map(|a| &a.blocks));
                let made = AttachmentIds {
                    tag,
                    meaning,
                    blocks,
                };
                new.attachments.insert(name.to_owned(), made);
            }
            for subnet in &tenant.subnets {
                let Some(segment) = subnet.vlan() else {
                    continue;
                };
                let name = subnet.name.as_str();
                let meaning = short_hash(&[
                    tenant.compartment(),
                    segment.uplink.to_string(),
                    segment.vlan.value.to_string(),
                ]);
                let was = old.and_then(|o| o.segments.get(name));
                let kept = was.filter(|s| s.meaning == meaning || !guard!("segment-tag-meaning"));
                let tag = kept.map_or_else(|| free(&mut tags, &mut cursor), |s| s.tag);
                let made = SegmentIds { tag, meaning };
                new.segments.insert(name.to_owned(), made);
            }
            let rules = tenant.policy.iter().flat_map(|p| &p.rules);
            let names = rules.map(|r| r.name.as_str());
            new.rules = kept_or_next(names, old.map(|o| &o.rules), &mut ids.next_rule);
            let names = tenant.offers.iter().map(|o| o.name.as_str());
            new.offers = kept_or_next(names, old.map(|o| &o.offers), &mut ids.next_rule);
            let names = tenant.accepts.iter().map(|a| a.name.as_str());
            new.accepts = kept_or_next(names, old.map(|o| &o.accepts), &mut ids.next_rule);
            ids.tenants.insert(tenant.name.as_str().to_owned(), new);
        }
        ids.slots(before);
        for (offerer, offer, acceptor, _) in meetings(spec) {
            let key = key(offerer, offer, acceptor);
            let old = before.agreements.get(&key);
            let ends = [offerer.compartment(), acceptor.compartment()];
            let meaning = short_hash(&ends);
            let kept = old.filter(|a| a.meaning == meaning || !guard!("agreement-tag-meaning"));
            let tag = kept.map_or_else(|| free(&mut tags, &mut cursor), |a| a.tag);
            // What goes out and comes back by one channel is told apart by its tag.
            let back = match ends {
                [one, other] if one != other => 0,
                _ => kept.map_or_else(|| free(&mut tags, &mut cursor), |a| a.back),
            };
            let id = old.map_or_else(|| next(&mut ids.next_agreement), |a| a.id);
            let made = AgreementIds {
                id,
                tag,
                back,
                meaning,
            };
            ids.agreements.insert(key, made);
        }
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

/// The lowest free tag from `cursor` on, which moves past it. 65,535 are more than
/// tenants times uplinks and the agreements of a host ([`spec::MAX_AGREEMENTS`]).
fn free(tags: &mut BTreeSet<u16>, cursor: &mut u16) -> u16 {
    let tag = (*cursor..=u16::MAX)
        .find(|tag| !tags.contains(tag))
        .unwrap_or(u16::MAX);
    tags.insert(tag);
    *cursor = tag;
    tag
}

/// The number that each name had, else the next.
fn kept_or_next<'a>(
    names: impl Iterator<Item = &'a str>,
    old: Option<&BTreeMap<String, u32>>,
    counter: &mut u32,
) -> BTreeMap<String, u32> {
    names
        .map(|name| {
            let kept = old.and_then(|old| old.get(name)).copied();
            (name.to_owned(), kept.unwrap_or_else(|| next(counter)))
        })
        .collect()
}

/// Blocks of ports for the endpoints that have IPv4: the one each had, else the lowest
/// that nobody has; of those that are leaving only where no other is left.
fn blocks(
    tenant: &Tenant,
    outside: &Outside,
    old: Option<&BTreeMap<String, u32>>,
) -> BTreeMap<String, u32> {
    let mut made = BTreeMap::new();
    let size = outside.nat_ports();
    if size == 0 {
        return made;
    }
    let fit = (65_536 - spec::FIRST_NAT_PORT) / size;
    let users: Vec<&str> = tenant
        .endpoints
        .iter()
        .filter(|e| {
            let subnet = tenant.subnet(&e.subnet.value);
            subnet.is_some_and(|s| s.prefix4().is_some())
        })
        .map(|e| e.name.as_str())
        .collect();
    let mut taken: BTreeSet<u32> = BTreeSet::new();
    for name in &users {
        let kept = old.and_then(|old| old.get(*name)).filter(|n| **n < fit);
        if let Some(kept) = kept {
            taken.insert(*kept);
            made.insert((*name).to_owned(), *kept);
        }
    }
    let mut all: BTreeSet<u32> = taken.clone();
    all.extend(old.into_iter().flat_map(|old| old.values()));
    for name in users {
        if made.contains_key(name) {
            continue;
        }
        let mut number = lowest(&mut all, 0);
        if number >= fit {
            number = lowest(&mut taken, 0);
        }
        taken.insert(number);
        made.insert(name.to_owned(), number);
    }
    made
}

/// A number for words.
fn short_hash(words: &[String]) -> u64 {
    let mut sha = Sha256::new();
    for word in words {
        sha.update(word.as_bytes());
        sha.update([0]);
    }
    let hash = sha.finalize();
    hash.iter()
        .take(8)
        .fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// A number for what the fabric lets an attachment say.
fn meaning(spec: &Spec, tenant: &Tenant, outside: &Outside) -> u64 {
    let mac = outside.mac.map(|m| m.value.to_string());
    let mut words = vec![
        spec.host_name().to_owned(),
        outside.uplink.to_string(),
        mac.unwrap_or_default(),
    ];
    words.extend(outside.address.iter().map(|a| a.value.to_string()));
    words.extend(outward_sources(tenant, outside).map(|p| p.to_string()));
    short_hash(&words)
}

/// The prefixes that a tenant's packets may come from.
pub(crate) fn sources(tenant: &Tenant) -> impl Iterator<Item = spec::Prefix> + '_ {
    let own = tenant.subnets.iter().flat_map(|s| &s.prefixes);
    own.chain(tenant.endpoints.iter().flat_map(|e| &e.prefixes))
        .map(|p| p.value)
}

/// Those of them that its packets have on an uplink: translated ones have its own.
pub(crate) fn outward_sources<'a>(
    tenant: &'a Tenant,
    outside: &Outside,
) -> impl Iterator<Item = spec::Prefix> + 'a {
    let translated = outside.nat_ports() != 0 && guard!("nat-source");
    sources(tenant).filter(move |p| !(translated && p.is_v4()))
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
    // What stands for a service of another tenant is nobody's.
    let services = (tenant.accepts.iter().flat_map(|a| a.as_.iter())).map(|a| a.value.0);
    let services = services.filter(|_| guard!("service-address-chosen"));
    let mut taken: HashSet<IpAddr> = written.chain(gateways).chain(services).collect();
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
