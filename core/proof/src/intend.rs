//! What the spec and the numbers say that there is: who is where, with which MACs and
//! addresses, and which agreements are live.

use crate::cube::Fuel;
use crate::numbers::{Numbers, OfTenant};
use crate::ranges::{Range, of_prefix, one, tidy};
use crate::reach::OWN_FUEL;
use core::cell::Cell;
use core::net::IpAddr;
use guard::guard;
use sha2::{Digest, Sha256};
use spec::{
    Accept, Attach, Endpoint, Name, Offer, Outside, Prefix, Protocol, Selector, Spec, Subnet,
    Tenant,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use wire::MacAddress;
use wire::address::link_local;

/// The host: its tenants' places, and what reaches beyond one compartment.
pub(crate) struct Host<'a> {
    pub spec: &'a Spec,
    pub numbers: &'a Numbers,
    pub agreements: Vec<Agreement>,
    pub attachments: Vec<Attachment>,
    pub segments: Vec<Segment>,
    /// Tenants by place in the spec, of each compartment by its slot.
    pub compartments: BTreeMap<u32, Vec<usize>>,
    /// Fuel that is left for what tenants ask for in documents of their own, all together.
    pub own_fuel: Cell<Fuel>,
    /// How much is looked at.
    pub looked: Cell<Looked>,
}

/// How much a proof looks at, by what was proved before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    /// Everything: nothing was.
    All,
    /// What concerns every tenant has changed.
    Shared,
    /// What somebody changed.
    Changed,
}

/// A live agreement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Agreement {
    pub id: u32,
    /// The acceptor's side's.
    pub tag: u16,
    /// The offerer's side's: the same, but where one compartment has both sides.
    pub offerer_tag: u16,
    pub offerer: usize,
    pub offer: usize,
    pub acceptor: usize,
    pub accept: usize,
    pub offerer_slot: u32,
    pub acceptor_slot: u32,
    /// Host-wide id of the endpoint that serves; `None` where prefixes are routed.
    pub endpoint: Option<u32>,
    /// `None` = any, where prefixes are routed.
    pub protocol: Option<u8>,
    /// Sorted, joined; none where any protocol is.
    pub ports: Vec<(u16, u16)>,
    /// In order: IPv4, IPv6; where all three of address, pool and `as` have the family.
    pub families: [Option<Family>; 2],
    pub routed: Option<Routed>,
    /// How those who take part are attached, the least and the most ([`circuits_of`]): of the
    /// offerer, of the acceptor.
    pub circuits: [(u8, u8); 2],
    /// Circuits across it may go by memory that both have: both say so.
    pub rings: bool,
}

/// An agreement of prefixes: what both sides name, of each side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Routed {
    pub offered: Vec<Prefix>,
    pub users: Vec<Prefix>,
    /// The offerer may begin connections as well.
    pub both: bool,
}

impl Agreement {
    /// The addresses that lead a tenant, by its place, to the other side, and its own that
    /// take part (`None`: it is translated, or none of the two).
    pub fn leads(&self, tenant: usize) -> (Vec<Prefix>, Option<&[Prefix]>) {
        if let Some(routed) = &self.routed {
            return if tenant == self.offerer {
                (routed.users.clone(), Some(&routed.offered))
            } else if tenant == self.acceptor {
                (routed.offered.clone(), Some(&routed.users))
            } else {
                (Vec::new(), None)
            };
        }
        let mut all = Vec::new();
        for family in self.families.iter().flatten() {
            if self.offerer == tenant {
                all.push(family.pool);
            }
            if self.acceptor == tenant {
                let len = if family.stands.is_ipv4() { 32 } else { 128 };
                all.push(Prefix {
                    network: family.stands,
                    len,
                });
            }
        }
        (all, None)
    }

    /// The two ways by the fabric, each from (slot, tag) to (slot, tag).
    pub fn ways(&self) -> [((u32, u16), (u32, u16)); 2] {
        let one = (self.acceptor_slot, self.tag);
        let other = (self.offerer_slot, self.offerer_tag);
        [(one, other), (other, one)]
    }

    /// Its tags. Two sides in one compartment need two: what is sent is told from what comes.
    pub fn tags(&self) -> Vec<u16> {
        if self.acceptor_slot != self.offerer_slot && self.tag == self.offerer_tag {
            vec![self.tag]
        } else {
            vec![self.tag, self.offerer_tag]
        }
    }

    /// Whether a tenant, by its place, may begin connections across it.
    pub fn begins(&self, tenant: usize) -> bool {
        tenant == self.acceptor || self.both() && tenant == self.offerer
    }

    /// How those are attached who are on the other side than this tenant's, by its place: the
    /// least and the most.
    pub fn circuits_beyond(&self, tenant: usize) -> (u8, u8) {
        let [offerer, acceptor] = self.circuits;
        match tenant {
            at if at == self.offerer => acceptor,
            _ => offerer,
        }
    }

    /// Whether the offerer may.
    pub fn both(&self) -> bool {
        self.routed.as_ref().is_some_and(|routed| routed.both)
    }
}

/// Whether an endpoint has circuits: 0 none, 1 beside an interface, 2 alone, 3 alone and metered.
pub(crate) fn circuits_of(endpoint: &Endpoint) -> u8 {
    match endpoint.attach() {
        Attach::Circuits(_) => 2 + u8::from(endpoint.is_metered() && guard!("proof-reach-metered")),
        attach => u8::from(attach.circuits().is_some()),
    }
}

/// How those of some endpoints are attached that are meant: the least and the most. Nobody: by
/// packets alone.
fn attached(all: &[Endpoint], is_meant: impl Fn(&Endpoint) -> bool) -> (u8, u8) {
    let all = all.iter().filter(|endpoint| is_meant(endpoint));
    let (least, most) = all
        .map(circuits_of)
        .fold((u8::MAX, 0), |(least, most), it| {
            (least.min(it), most.max(it))
        });
    (least.min(most), most)
}

/// Whether an endpoint may be one of those that are selected: by addresses any may.
fn may_mean(selector: &Selector, endpoint: &Endpoint) -> bool {
    match selector {
        Selector::Endpoint(names) => names.iter().any(|n| n.value == endpoint.name.value),
        Selector::Subnet(names) => names.iter().any(|n| n.value == endpoint.subnet.value),
        Selector::Label(labels) => labels.0.iter().all(|(key, value)| {
            let mut own = endpoint.labels.iter().flat_map(|own| &own.0);
            own.any(|(k, v)| k.value == key.value && v.value == value.value)
        }),
        _ => true,
    }
}

/// What an agreement is in one family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Family {
    pub service: IpAddr,
    pub pool: Prefix,
    pub stands: IpAddr,
}

/// A tenant's place on an uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attachment {
    pub tenant: usize,
    /// The fabric's slot of the compartment, and of the uplink.
    pub slot: u32,
    pub uplink_slot: u32,
    /// Uplink number.
    pub uplink: u32,
    pub tag: u16,
    /// The uplink's VLAN; 0 = none.
    pub vlan: u16,
    pub mac: [u8; 6],
    /// Own addresses there.
    pub addresses: Vec<[u8; 16]>,
    /// Prefixes that packets come from besides.
    pub sources: Vec<Prefix>,
}

/// A subnet that goes on in a VLAN of an uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The fabric's slot of the compartment, and of the uplink.
    pub slot: u32,
    pub uplink_slot: u32,
    pub tag: u16,
    pub vlan: u16,
    /// Host-wide id of the subnet.
    pub subnet: u32,
    /// The MACs of its endpoints.
    pub stations: BTreeSet<[u8; 6]>,
}

/// A tenant with its parts.
pub(crate) struct View<'a> {
    pub tenant: &'a Tenant,
    pub id: u32,
    pub subnets: Vec<Net<'a>>,
    pub members: Vec<Member<'a>>,
}

pub(crate) struct Net<'a> {
    pub subnet: &'a Subnet,
    pub id: u32,
    pub gateway_mac: [u8; 6],
}

pub(crate) struct Member<'a> {
    pub endpoint: &'a Endpoint,
    pub id: u32,
    pub slot: u32,
    /// Place among the tenant's subnets.
    pub subnet: usize,
    pub mac: [u8; 6],
    /// Written or chosen.
    pub given: Vec<IpAddr>,
    /// All that it has, however it came by them.
    pub all: Vec<[u8; 16]>,
    /// All, and what is behind it: tidy.
    pub own: Vec<Range>,
}

/// What cannot be: the spec and the numbers do not fit each other.
pub(crate) struct Unknown(pub String);

impl<'a> Host<'a> {
    pub fn new(spec: &'a Spec, numbers: &'a Numbers, now: u64) -> Result<Host<'a>, Unknown> {
        let mut host = Host {
            spec,
            numbers,
            agreements: Vec::new(),
            attachments: Vec::new(),
            segments: Vec::new(),
            compartments: BTreeMap::new(),
            own_fuel: Cell::new(OWN_FUEL),
            looked: Cell::new(Looked::All),
        };
        for (at, tenant) in spec.tenants.iter().enumerate() {
            let slot = host.slot(tenant)?;
            host.compartments.entry(slot).or_default().push(at);
        }
        host.live(now)?;
        host.outside()?;
        host.beyond()?;
        Ok(host)
    }

    fn slot(&self, tenant: &Tenant) -> Result<u32, Unknown> {
        let name = tenant.compartment();
        let of = self.numbers.compartments.get(&name);
        of.map(|c| c.id)
            .ok_or_else(|| Unknown(format!("the compartment {name} has no number")))
    }

    fn of(&self, tenant: &Tenant) -> Result<&'a OfTenant, Unknown> {
        let name = tenant.name.as_str();
        let of = self.numbers.tenants.get(name);
        of.ok_or_else(|| Unknown(format!("the tenant {name} has no number")))
    }

    /// A tenant's offers are accepted by name: where both sides want it and it has not
    /// ended, there is an agreement.
    fn live(&mut self, now: u64) -> Result<(), Unknown> {
        let by_name: HashMap<&str, usize> = (self.spec.tenants.iter().enumerate())
            .map(|(at, t)| (t.name.as_str(), at))
            .collect();
        for (acceptor, blue) in self.spec.tenants.iter().enumerate() {
            for (accept, wish) in blue.accepts.iter().enumerate() {
                let Some(offerer) = by_name.get(wish.from.as_str()).copied() else {
                    continue;
                };
                let Some(red) = self.spec.tenants.get(offerer) else {
                    continue;
                };
                let meant = |o: &Offer| {
                    o.name.value == wish.service.value
                        && o.to.iter().any(|t| t.value == blue.name.value)
                };
                let Some((offer, of)) = red.offers.iter().enumerate().find(|(_, o)| meant(o))
                else {
                    continue;
                };
                if of.until.is_some_and(|until| until.value.0 <= now) {
                    continue;
                }
                let key = format!("{}/{}/{}", red.name.value, of.name.value, blue.name.value);
                let numbers = self.numbers.agreements.get(&key);
                let numbers =
                    numbers.ok_or_else(|| Unknown(format!("the agreement {key} has no number")))?;
                let mut ports = joined(of.ports.iter().map(|p| (p.first, p.last)));
                let protocol = match of.protocol.map(|p| p.value) {
                    None | Some(Protocol::Any) => None,
                    Some(Protocol::Number(protocol)) => Some(protocol),
                };
                let mut endpoint = None;
                let mut families = [None, None];
                let routed = routed(of, wish);
                if routed.is_some() {
                    if protocol.is_some() && ports.is_empty() {
                        ports = vec![(0, u16::MAX)];
                    }
                } else if let (Some(server), Some(_)) = (&of.endpoint, protocol) {
                    let Some(server) = red.endpoints.iter().find(|e| e.name.value == server.value)
                    else {
                        continue;
                    };
                    let own = self.of(red)?.endpoints.get(server.name.as_str());
                    let own = own.ok_or_else(|| {
                        Unknown(format!("the endpoint {} has no number", server.name.value))
                    })?;
                    let given = given(server, &own.chosen);
                    families = [true, false].map(|v4| family(v4, of, wish, &blue.name, &given));
                    endpoint = Some(own.id);
                }
                if routed.is_none() && families.iter().all(Option::is_none) {
                    continue;
                }
                self.agreements.push(Agreement {
                    id: numbers.id,
                    tag: numbers.tag,
                    offerer_tag: match numbers.back {
                        0 => numbers.tag,
                        back => back,
                    },
                    offerer,
                    offer,
                    acceptor,
                    accept,
                    offerer_slot: self.slot(red)?,
                    acceptor_slot: self.slot(blue)?,
                    endpoint,
                    protocol,
                    ports,
                    families,
                    routed,
                    rings: [of.rings, wish.rings]
                        .iter()
                        .all(|rings| rings.is_some_and(|it| it.value.0)),
                    circuits: [
                        attached(&red.endpoints, |e| {
                            let of = of.endpoint.as_ref();
                            of.is_none_or(|of| of.value == e.name.value)
                        }),
                        attached(&blue.endpoints, |e| {
                            let chosen = wish.endpoints.as_ref();
                            chosen.is_none_or(|chosen| may_mean(&chosen.value, e))
                        }),
                    ],
                });
            }
        }
        self.agreements.sort_by_key(|a| a.id);
        Ok(())
    }

    fn outside(&mut self) -> Result<(), Unknown> {
        for (at, tenant) in self.spec.tenants.iter().enumerate() {
            for way in &tenant.outside {
                let name = way.uplink.as_str();
                let (Some(uplink), Some(own)) = (
                    self.numbers.uplinks.get(name),
                    self.of(tenant)?.attachments.get(name),
                ) else {
                    return Err(Unknown(format!("the uplink {name} has no number")));
                };
                let written = (self.spec.tenants.iter().flat_map(|t| &t.outside))
                    .filter(|o| o.uplink.as_str() == name)
                    .filter_map(|o| o.mac.map(|m| m.value.0))
                    .collect::<HashSet<_>>();
                let words = [
                    "attachment",
                    self.spec.host_name(),
                    tenant.name.as_str(),
                    name,
                ];
                let mac = way
                    .mac
                    .map_or_else(|| station(&words, &written), |mac| mac.value.0);
                self.attachments.push(Attachment {
                    tenant: at,
                    slot: self.slot(tenant)?,
                    uplink_slot: uplink.slot,
                    uplink: uplink.number,
                    tag: own.tag,
                    vlan: way.vlan(),
                    mac,
                    addresses: [way.address4(), way.address6()]
                        .into_iter()
                        .flatten()
                        .map(|a| spec::mapped(a.address))
                        .collect(),
                    sources: sources(tenant, way),
                });
            }
        }
        Ok(())
    }

    fn beyond(&mut self) -> Result<(), Unknown> {
        for (at, tenant) in self.spec.tenants.iter().enumerate() {
            if tenant.subnets.iter().all(|subnet| subnet.vlan().is_none()) {
                continue;
            }
            let (slot, of) = (self.slot(tenant)?, self.of(tenant)?);
            let view = self.view(at)?;
            for (place, net) in view.subnets.iter().enumerate() {
                let Some(vlan) = net.subnet.vlan() else {
                    continue;
                };
                let (uplink, name) = (vlan.uplink.as_str(), net.subnet.name.as_str());
                let (Some(uplink), Some(own)) =
                    (self.numbers.uplinks.get(uplink), of.segments.get(name))
                else {
                    return Err(Unknown(format!("the segment {name} has no number")));
                };
                let members = view.members.iter().filter(|m| m.subnet == place);
                self.segments.push(Segment {
                    slot,
                    uplink_slot: uplink.slot,
                    tag: own.tag,
                    vlan: vlan.vlan.value as u16,
                    subnet: net.id,
                    stations: members.map(|m| m.mac).collect(),
                });
            }
        }
        Ok(())
    }

    /// The tag of a subnet's segment; 0 = it is on this host only.
    pub fn segment_tag(&self, subnet: u32) -> u16 {
        let mut all = self.segments.iter();
        all.find(|s| s.subnet == subnet).map_or(0, |s| s.tag)
    }

    /// A tenant's parts, by its place in the spec.
    pub fn view(&self, at: usize) -> Result<View<'a>, Unknown> {
        let tenant = self
            .spec
            .tenants
            .get(at)
            .ok_or_else(|| Unknown("no such tenant".into()))?;
        let of = self.of(tenant)?;
        // MACs that names stand for: gateways first, then endpoints, each its own.
        let written = tenant.endpoints.iter().filter_map(|e| e.mac);
        let mut taken: HashSet<[u8; 6]> = written.map(|m| m.value.0).collect();
        let mut made = |what: &str, name: &Name| {
            let mac = station(&[what, tenant.name.as_str(), name.as_str()], &taken);
            taken.insert(mac);
            mac
        };
        let mut subnets = Vec::new();
        for subnet in &tenant.subnets {
            let name = subnet.name.as_str();
            let id = of.subnets.get(name).copied();
            subnets.push(Net {
                subnet,
                id: id.ok_or_else(|| Unknown(format!("the subnet {name} has no number")))?,
                gateway_mac: made("gateway", &subnet.name),
            });
        }
        let mut members: Vec<Member<'a>> = Vec::new();
        let places: HashMap<&str, usize> = (tenant.subnets.iter().enumerate())
            .map(|(at, s)| (s.name.as_str(), at))
            .collect();
        for endpoint in &tenant.endpoints {
            let name = endpoint.name.as_str();
            let own = of.endpoints.get(name);
            let own = own.ok_or_else(|| Unknown(format!("the endpoint {name} has no number")))?;
            let subnet = places.get(endpoint.subnet.as_str()).copied();
            let subnet = subnet.ok_or_else(|| Unknown(format!("{name} is in no subnet")))?;
            let mac = endpoint
                .mac
                .map_or_else(|| made("endpoint", &endpoint.name), |mac| mac.value.0);
            let given = given(endpoint, &own.chosen);
            members.push(Member {
                endpoint,
                id: own.id,
                slot: own.slot,
                subnet,
                mac,
                all: given.iter().copied().map(spec::mapped).collect(),
                given,
                own: Vec::new(),
            });
        }
        own_addresses(&subnets, &mut members);
        Ok(View {
            tenant,
            id: of.id,
            subnets,
            members,
        })
    }
}

/// What follows from a MAC comes after what was written or chosen, and is nobody's where
/// another, or the gateway, has it.
fn own_addresses(subnets: &[Net<'_>], members: &mut [Member<'_>]) {
    let mut taken: HashSet<(usize, [u8; 16])> = (members.iter())
        .flat_map(|m| m.all.iter().map(|a| (m.subnet, *a)))
        .collect();
    for (at, net) in subnets.iter().enumerate() {
        let gateways = net.subnet.prefixes.iter();
        taken.extend(gateways.map(|p| (at, spec::mapped(net.subnet.gateway_in(p)))));
    }
    for member in members {
        let subnet = subnets.get(member.subnet).map(|net| net.subnet);
        if let Some((subnet, prefix)) = subnet.and_then(|s| Some((s, s.prefix6()?))) {
            let local = link_local(MacAddress(member.mac));
            let mut autonomous = spec::mapped(prefix.network);
            for (to, from) in autonomous.iter_mut().zip(local).skip(8) {
                *to = from;
            }
            let derived = [Some(local), subnet.slaac().then_some(autonomous)];
            for address in derived.into_iter().flatten() {
                if taken.insert((member.subnet, address)) {
                    member.all.push(address);
                }
            }
        }
        let behind = member.endpoint.prefixes.iter().flat_map(|p| of_prefix(p));
        // Spoken from in any subnet, also where it is nobody's in the table.
        let local = (subnet.is_some_and(|s| s.prefix6().is_none()))
            .then(|| one(link_local(MacAddress(member.mac))));
        let own = member
            .all
            .iter()
            .map(|a| one(*a))
            .chain(behind)
            .chain(local);
        member.own = tidy(own.collect());
    }
}

/// An endpoint's addresses, written or chosen.
pub(crate) fn given(endpoint: &Endpoint, chosen: &[IpAddr]) -> Vec<IpAddr> {
    match endpoint.addresses() {
        Some(written) => written.iter().map(|a| a.value.0).collect(),
        None => chosen.to_vec(),
    }
}

fn family(
    v4: bool,
    offer: &Offer,
    accept: &Accept,
    acceptor: &Name,
    given: &[IpAddr],
) -> Option<Family> {
    let service = given.iter().find(|a| a.is_ipv4() == v4)?;
    let stands = accept.as_.iter().map(|a| a.value.0);
    let stands = stands.into_iter().find(|a| a.is_ipv4() == v4)?;
    // The pool is cut into as many parts as the next power of two has: by place in `to`.
    let place = offer.to.iter().position(|t| t.value == *acceptor)? as u128;
    let cuts = (0u8..16).find(|cuts| 1usize << cuts >= offer.to.len())?;
    let whole = offer.pool.iter().find(|p| p.is_v4() == v4)?.value;
    let bits = if v4 { 32 } else { 128u8 };
    let len = whole.len.checked_add(cuts).filter(|len| *len <= bits)?;
    let step = if len == 0 { 0 } else { place << (bits - len) };
    let network = match whole.network {
        IpAddr::V4(a) => IpAddr::from((u32::from(a) + step as u32).to_be_bytes()),
        IpAddr::V6(a) => IpAddr::from((u128::from(a) + step).to_be_bytes()),
    };
    Some(Family {
        service: *service,
        pool: Prefix { network, len },
        stands,
    })
}

/// What offer and acceptance both name, of the families that both sides then have;
/// `None` = they are of no prefixes, or have none in common.
fn routed(offer: &Offer, accept: &Accept) -> Option<Routed> {
    let named = [&offer.route, &offer.users, &accept.route, &accept.users];
    if named.iter().any(|list| list.is_empty()) {
        return None;
    }
    let inside = |inner: &Prefix, outer: &Prefix| {
        of_prefix(inner).all(|range| of_prefix(outer).any(|o| o.0 <= range.0 && range.1 <= o.1))
    };
    let both = |ours: &[spec::Located<Prefix>], theirs: &[spec::Located<Prefix>]| {
        let mut all = BTreeSet::new();
        for a in ours {
            for b in theirs.iter().filter(|b| b.is_v4() == a.is_v4()) {
                if inside(&a.value, &b.value) {
                    all.insert(a.value);
                } else if inside(&b.value, &a.value) {
                    all.insert(b.value);
                }
            }
        }
        all
    };
    let (offered, users) = (
        both(&offer.route, &accept.route),
        both(&offer.users, &accept.users),
    );
    let other =
        |list: &BTreeSet<Prefix>, one: &Prefix| list.iter().any(|p| p.is_v4() == one.is_v4());
    let routed = Routed {
        offered: offered
            .iter()
            .filter(|p| other(&users, p))
            .copied()
            .collect(),
        users: users
            .iter()
            .filter(|p| other(&offered, p))
            .copied()
            .collect(),
        both: [offer.both, accept.both]
            .iter()
            .all(|both| both.is_some_and(|b| b.value.0)),
    };
    (!routed.users.is_empty()).then_some(routed)
}

/// Ports sorted, neighbours joined.
pub(crate) fn joined(ports: impl Iterator<Item = (u16, u16)>) -> Vec<(u16, u16)> {
    let mut all: Vec<(u16, u16)> = ports.collect();
    all.sort_unstable();
    let mut out: Vec<(u16, u16)> = Vec::new();
    for (first, last) in all {
        match out.last_mut() {
            Some(before) if u32::from(first) <= u32::from(before.1) + 1 => {
                before.1 = before.1.max(last);
            }
            _ => out.push((first, last)),
        }
    }
    out
}

/// Where a tenant's packets come from on an uplink: not IPv4 where that is translated.
fn sources(tenant: &Tenant, way: &Outside) -> Vec<Prefix> {
    let subnets = tenant.subnets.iter().flat_map(|s| &s.prefixes);
    let behind = tenant.endpoints.iter().flat_map(|e| &e.prefixes);
    subnets
        .chain(behind)
        .map(|p| p.value)
        .filter(|p| way.nat_ports() == 0 || !p.is_v4())
        .collect()
}

/// The MAC that a name stands for: 46 bits of a hash of its words, and of a number that
/// is the first that makes it nobody else's.
fn station(words: &[&str], taken: &HashSet<[u8; 6]>) -> [u8; 6] {
    (0u32..)
        .map(|round| {
            let mut text: Vec<u8> = Vec::new();
            for word in words {
                text.extend_from_slice(word.as_bytes());
                text.push(0);
            }
            text.extend_from_slice(&round.to_le_bytes());
            let hash = Sha256::digest(&text);
            let mut mac = [0u8; 6];
            mac.copy_from_slice(hash.get(..6).unwrap_or(&[0; 6]));
            mac[0] = mac[0] & 0b1111_1100 | 0b10;
            mac
        })
        .find(|mac| !taken.contains(mac))
        .unwrap_or([2, 0, 0, 0, 0, 0])
}
