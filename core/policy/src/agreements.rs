//! Services from tenant to tenant: where an offer and an acceptance meet.

use crate::ids::Ids;
use core::net::IpAddr;
use core::ops::RangeInclusive;
use guard::guard;
use spec::{Accept, Located, Offer, Prefix, Protocol, Spec, Tenant};
use std::collections::{BTreeSet, HashMap};

/// A service that one tenant offers and another accepts, at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Host-wide number, from 1.
    pub id: u32,
    /// What stands for it on the fabric, between the acceptor's switch and the fabric.
    pub tag: u16,
    /// The same for the offerer's switch: another where that is the acceptor's as well.
    pub offerer_tag: u16,
    /// The tenant that offers.
    pub offerer: String,
    /// The offer's name there.
    pub offer: String,
    /// Prefixes that are routed, in place of a service.
    pub routed: Option<Routed>,
    /// The endpoint that serves; empty where it is routed.
    pub endpoint: String,
    /// That endpoint's addresses, one a family of the agreement.
    pub service: Vec<IpAddr>,
    /// What users appear as to it, one prefix a family. Routed: their own prefixes.
    pub pool: Vec<Prefix>,
    /// The tenant that accepts.
    pub acceptor: String,
    /// The acceptance's name there.
    pub acceptance: String,
    /// The service's addresses there, one a family.
    pub addresses: Vec<IpAddr>,
    /// Its protocol; `None` = any, where it is routed.
    pub protocol: Option<u8>,
    /// Its ports; none where any protocol is.
    pub ports: Vec<RangeInclusive<u16>>,
    /// When it ends, seconds since 1970; `None` = never.
    pub until: Option<u64>,
    /// Whether circuits across it may go by memory that both programs have.
    pub rings: bool,
    /// MTU across it, bytes of IP packet: the lesser side's.
    pub mtu: u16,
    /// The offerer's compartment and slot on the fabric.
    pub offerer_slot: u32,
    /// The acceptor's compartment and slot on the fabric.
    pub acceptor_slot: u32,
    /// Number of the rule that the offer stands for in the offerer's tables.
    pub offer_rule: u32,
    /// Number of the rule that the acceptance stands for in the acceptor's tables.
    pub accept_rule: u32,
}

/// What an agreement of prefixes has in place of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routed {
    /// The offerer's prefixes that take part. The acceptor's are [`Agreement::pool`].
    pub offered: Vec<Prefix>,
    /// Whether the offerer too may begin connections.
    pub both: bool,
}

impl Agreement {
    /// The addresses that lead the acceptor to the other side.
    pub fn ways(&self) -> Vec<Prefix> {
        let whole = |address: &IpAddr| Prefix {
            network: *address,
            len: if address.is_ipv4() { 32 } else { 128 },
        };
        match &self.routed {
            Some(routed) => routed.offered.clone(),
            None => self.addresses.iter().map(whole).collect(),
        }
    }

    /// The other tenant of the two.
    pub fn other(&self, tenant: &str) -> &str {
        if self.offerer == tenant {
            &self.acceptor
        } else {
            &self.offerer
        }
    }

    /// The addresses that lead one of the two to the other; none = it is neither.
    pub fn beyond(&self, tenant: &str) -> Vec<Prefix> {
        if self.offerer == tenant {
            self.pool.clone()
        } else if self.acceptor == tenant {
            self.ways()
        } else {
            Vec::new()
        }
    }

    /// Whether the offerer may begin connections.
    pub fn both(&self) -> bool {
        self.routed.as_ref().is_some_and(|routed| routed.both)
    }
}

/// The name that an agreement's numbers are kept under.
pub(crate) fn key(offerer: &Tenant, offer: &Offer, acceptor: &Tenant) -> String {
    format!(
        "{}/{}/{}",
        offerer.name.value, offer.name.value, acceptor.name.value
    )
}

/// Where offers and acceptances meet, by acceptor and acceptance in the spec's order,
/// whether or not their time is over.
pub(crate) fn meetings(spec: &Spec) -> Vec<(&Tenant, &Offer, &Tenant, &Accept)> {
    let tenants: HashMap<&str, &Tenant> = (spec.tenants.iter())
        .map(|t| (t.name.as_str(), t))
        .collect();
    let mut found = Vec::new();
    for acceptor in &spec.tenants {
        for accept in &acceptor.accepts {
            let Some(offerer) = tenants.get(accept.from.as_str()).copied() else {
                continue;
            };
            let meets = |offer: &&Offer| {
                let to = offer
                    .to
                    .iter()
                    .any(|name| name.value == acceptor.name.value);
                offer.name.value == accept.service.value && (to || !guard!("agreement-to"))
            };
            if let Some(offer) = offerer.offers.iter().find(meets) {
                found.push((offerer, offer, acceptor, accept));
            }
        }
    }
    found
}

/// The agreements that are live at `now` (seconds since 1970), by id.
pub fn agreements(spec: &Spec, ids: &Ids, now: u64) -> Vec<Agreement> {
    let mut live: Vec<Agreement> = meetings(spec)
        .into_iter()
        .filter(|(_, offer, ..)| {
            offer.until.is_none_or(|u| now < u.value.0) || !guard!("agreement-until")
        })
        .filter_map(|(offerer, offer, acceptor, accept)| {
            agreement(ids, offerer, offer, acceptor, accept)
        })
        .collect();
    live.sort_by_key(|a| a.id);
    live
}

/// When the next live agreement ends, seconds since 1970.
pub(crate) fn next_end(agreements: &[Agreement]) -> Option<u64> {
    agreements.iter().filter_map(|a| a.until).min()
}

fn agreement(
    ids: &Ids,
    offerer: &Tenant,
    offer: &Offer,
    acceptor: &Tenant,
    accept: &Accept,
) -> Option<Agreement> {
    let numbers = ids.agreements.get(&key(offerer, offer, acceptor))?;
    let (ours, theirs) = (
        ids.tenants.get(offerer.name.as_str())?,
        ids.tenants.get(acceptor.name.as_str())?,
    );
    let mut made = Agreement {
        id: numbers.id,
        tag: numbers.tag,
        offerer_tag: match numbers.back {
            0 => numbers.tag,
            back => back,
        },
        offerer: offerer.name.to_string(),
        offer: offer.name.to_string(),
        routed: None,
        endpoint: String::new(),
        service: Vec::new(),
        pool: Vec::new(),
        acceptor: acceptor.name.to_string(),
        acceptance: accept.name.to_string(),
        addresses: Vec::new(),
        protocol: match offer.protocol() {
            Protocol::Any => None,
            Protocol::Number(protocol) => Some(protocol),
        },
        ports: offer.ports.iter().map(|p| p.first..=p.last).collect(),
        until: offer.until.map(|u| u.value.0),
        rings: offer.rings() && accept.rings() || !guard!("agreement-rings"),
        mtu: mtu(offerer, None, acceptor),
        offerer_slot: ids.compartments.get(&offerer.compartment())?.id,
        acceptor_slot: ids.compartments.get(&acceptor.compartment())?.id,
        offer_rule: *ours.offers.get(offer.name.as_str())?,
        accept_rule: *theirs.accepts.get(accept.name.as_str())?,
    };
    if offer.is_routed() || accept.is_routed() {
        return (offer.is_routed() && accept.is_routed() && route(&mut made, offer, accept))
            .then_some(made);
    }
    let server = offer.endpoint.as_ref()?;
    let server = (offerer.endpoints.iter()).find(|e| e.name.value == server.value)?;
    made.endpoint = server.name.to_string();
    made.mtu = mtu(offerer, Some(server), acceptor);
    let chosen = &ours.endpoints.get(server.name.as_str())?.chosen;
    let addresses: Vec<IpAddr> = match server.addresses() {
        Some(list) => list.iter().map(|a| a.value.0).collect(),
        None => chosen.clone(),
    };
    let pool = offer.pool_of(&acceptor.name.value);
    // A family counts where all three have it.
    for v4 in [true, false] {
        if let (Some(service), Some(pool), Some(address)) = (
            addresses.iter().find(|a| a.is_ipv4() == v4),
            pool.iter().find(|p| p.is_v4() == v4),
            accept.address(v4),
        ) {
            made.service.push(*service);
            made.pool.push(*pool);
            made.addresses.push(address);
        }
    }
    (!made.service.is_empty()).then_some(made)
}

/// Fills in what takes part: what both sides name. Whether there is a family of which
/// both have something.
fn route(made: &mut Agreement, offer: &Offer, accept: &Accept) -> bool {
    let common = |one: &[Located<Prefix>], other: &[Located<Prefix>]| -> Vec<Prefix> {
        let pairs = one.iter().flat_map(|a| other.iter().map(move |b| (a, b)));
        let shared = |a: &Located<Prefix>, b: &Located<Prefix>| match guard!("agreement-routed") {
            true => a.shared(&b.value),
            false => Some(a.value),
        };
        let found: BTreeSet<Prefix> = pairs.filter_map(|(a, b)| shared(a, b)).collect();
        found.into_iter().collect()
    };
    let mut offered = common(&offer.route, &accept.route);
    let mut users = common(&accept.users, &offer.users);
    let family = |list: &[Prefix], v4| list.iter().any(|p| p.is_v4() == v4);
    let has = [true, false].map(|v4| family(&offered, v4) && family(&users, v4));
    for list in [&mut offered, &mut users] {
        list.retain(|p| has[usize::from(!p.is_v4())]);
    }
    let any = !offered.is_empty();
    if made.protocol.is_some() && made.ports.is_empty() {
        made.ports.push(0..=u16::MAX);
    }
    made.pool = users;
    made.routed = Some(Routed {
        offered,
        both: offer.both() && accept.both() || !guard!("agreement-both"),
    });
    any
}

/// What the server, or every subnet of the offerer, and every subnet of the users carry.
fn mtu(offerer: &Tenant, server: Option<&spec::Endpoint>, acceptor: &Tenant) -> u16 {
    let least = |tenant: &Tenant| tenant.subnets.iter().map(spec::Subnet::mtu).min();
    let subnet = match server {
        Some(server) => offerer.subnet(&server.subnet.value).map(spec::Subnet::mtu),
        None => least(offerer),
    };
    let server = server.and_then(|server| server.mtu);
    [server.map(|mtu| mtu.value), subnet, least(acceptor)]
        .into_iter()
        .flatten()
        .min()
        .map_or(1500, |mtu| mtu.min(u32::from(u16::MAX)) as u16)
}
