//! Inside a compartment: who is there, with which addresses, and where routes lead.

use crate::breach::{Breach, Class, plain};
use crate::inside::name;
use crate::intend::{Attachment, Host, View};
use crate::lines::Book;
use crate::ranges::{holds, of_prefix};
use crate::showing::Seat;
use core::net::IpAddr;
use guard::guard;
use image::CompartmentImage;
use image::compartment::{
    Endpoint, NONE, ROLE_DHCP_SERVER, ROLE_ROUTER, ROUTE_OUTSIDE, ROUTE_SERVICE, ROUTE_SUBNET,
    ROUTE_UNREACHABLE, ROUTE_VIA, STATE_OPEN, STATE_QUARANTINED, STATE_UNAUTHORISED, SUBNET_SLAAC,
};
use spec::{Prefix, Role, State, Via};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use wire::address::mapped;

/// Where a destination goes, in numbers of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// Nowhere at all, or refused.
    Nowhere,
    /// Whoever has the address in this subnet.
    Subnet(u32),
    /// This endpoint.
    Via(u32),
    /// This router on the uplink of the attachment with this tag.
    Outside(u16, [u8; 16]),
    /// Across this agreement.
    Service(u32),
}

/// The members of a compartment's tenants in its image: by tenant's place in the list of
/// views and member, the index of the endpoint.
pub(crate) type Found = HashMap<(usize, usize), u32>;

/// Checks who is where; gives where each member was found.
pub(crate) fn who(
    host: &Host<'_>,
    slot: u32,
    image: &CompartmentImage<'_>,
    books: &[Book<'_>],
    breaches: &mut Vec<Breach>,
) -> Found {
    let mut wrong = |class: Class, what: String| breaches.push(Breach::new(class, slot, what));
    let mut found = Found::new();
    let installed: BTreeSet<u32> = image.tenants().iter().map(|t| t.id).collect();
    let wanted: BTreeSet<u32> = books.iter().map(|b| b.view.id).collect();
    if guard!("proof-tenants") && (installed != wanted || image.tenants().len() != wanted.len()) {
        let what = format!("its image is for the tenants {installed:?}, and {wanted:?} are in it");
        let breach = Breach::new(Class::ImageSwapped, slot, what);
        breaches.push(match (Seat { host, slot, image }).as_others() {
            Some(shown) => breach.shown_or(shown),
            None => breach,
        });
        return found;
    }
    let index_of = |id: u32| image.tenants().iter().position(|t| t.id == id);
    let mut subnets: BTreeMap<u32, u32> = (0..)
        .zip(image.subnets())
        .map(|(at, s)| (s.id, at))
        .collect();
    let by_id: HashMap<u32, u32> = (0..)
        .zip(image.endpoints())
        .map(|(at, e)| (e.id, at))
        .collect();
    if by_id.len() != image.endpoints().len() || subnets.len() != image.subnets().len() {
        wrong(Class::WrongPlace, "a number is there twice".into());
    }
    let mut addresses: HashMap<u32, BTreeSet<[u8; 16]>> = HashMap::new();
    for entry in image.addresses().iter().filter(|a| a.endpoint != NONE) {
        addresses
            .entry(entry.endpoint)
            .or_default()
            .insert(entry.address);
    }
    let mut expected = 0;
    for (at, book) in books.iter().enumerate() {
        let view = book.view;
        let index = index_of(view.id).map_or(NONE, |at| at as u32);
        let mut places = Vec::new();
        for net in &view.subnets {
            let place = subnets.remove(&net.id);
            let there = place.and_then(|at| image.subnets().get(at as usize));
            let octets = |a: IpAddr| match a {
                IpAddr::V4(a) => a.octets(),
                IpAddr::V6(_) => [0; 4],
            };
            let (v4, v6) = (net.subnet.prefix4(), net.subnet.prefix6());
            let right = there.is_some_and(|s| {
                s.tenant == index
                    && s.gateway_mac == net.gateway_mac
                    && (s.segment == host.segment_tag(net.id) || !guard!("proof-segment-place"))
                    && (s.flags & SUBNET_SLAAC != 0) == net.subnet.slaac()
                    && s.prefix4_len == v4.map_or(0, |p| p.len)
                    && s.prefix6_len == v6.map_or(0, |p| p.len)
                    && s.prefix4 == v4.map_or([0; 4], |p| octets(p.network))
                    && s.gateway4 == v4.map_or([0; 4], |p| octets(net.subnet.gateway_in(&p)))
                    && s.prefix6 == v6.map_or([0; 16], |p| spec::mapped(p.network))
                    && s.gateway6 == v6.map_or([0; 16], |p| spec::mapped(net.subnet.gateway_in(&p)))
            });
            if !right && guard!("proof-subnets") {
                let subnet = &net.subnet.name.value;
                let tenant = &view.tenant.name.value;
                wrong(
                    Class::WrongPlace,
                    format!("the subnet {subnet} of {tenant} is not there as it is written"),
                );
            }
            places.push(place.unwrap_or(NONE));
        }
        for (member_at, member) in view.members.iter().enumerate() {
            expected += 1;
            let endpoint = by_id.get(&member.id).copied();
            let record = endpoint.and_then(|at| image.endpoints().get(at as usize));
            let full = name(book, member_at);
            let (Some(endpoint), Some(record)) = (endpoint, record) else {
                wrong(Class::WrongPlace, format!("{full} is not there"));
                continue;
            };
            found.insert((at, member_at), endpoint);
            let own: BTreeSet<[u8; 16]> = addresses.remove(&endpoint).unwrap_or_default();
            let subnet = places.get(member.subnet).copied().unwrap_or(NONE);
            let is = |holds: bool, what: &str| (!holds).then(|| what.to_owned());
            let troubles = [
                is(record.subnet == subnet, "is in another subnet"),
                is(record.slot == member.slot, "is in another slot"),
                is(record.mac == member.mac, "has another MAC"),
                is(
                    record.state == state(member.endpoint.state()),
                    "has another state",
                ),
                is(record.roles == roles(member.endpoint), "has other roles"),
                is(
                    own == member.all.iter().copied().collect() || !guard!("proof-addresses"),
                    "has other addresses",
                ),
                is(
                    behind(image, record, member.endpoint),
                    "has other prefixes behind it",
                ),
                is(
                    image
                        .members_of(subnet)
                        .iter()
                        .filter(|m| m.endpoint == endpoint)
                        .count()
                        == 1,
                    "is not in its subnet's flood list once",
                ),
            ];
            for trouble in troubles.into_iter().flatten() {
                wrong(Class::WrongPlace, format!("{full} {trouble}"));
            }
        }
    }
    let more = image.members().len() != expected || !addresses.is_empty() || !subnets.is_empty();
    if guard!("proof-nobody-else") && (image.endpoints().len() != expected || more) {
        wrong(
            Class::WrongPlace,
            "an endpoint, address or subnet is there that nobody asked for".into(),
        );
    }
    attached(host, slot, image, books, breaches);
    found
}

fn behind(image: &CompartmentImage<'_>, record: &Endpoint, endpoint: &spec::Endpoint) -> bool {
    let there = image.own_prefixes_of(record).iter();
    let there: BTreeSet<([u8; 16], u32)> = there.map(|p| (p.prefix, p.len)).collect();
    let bits = |p: &Prefix| u32::from(p.len) + if p.is_v4() { 96 } else { 0 };
    let wanted = endpoint.prefixes.iter();
    there == wanted.map(|p| (spec::mapped(p.network), bits(p))).collect()
}

fn state(state: State) -> u8 {
    match state {
        State::Open => STATE_OPEN,
        State::Unauthorised => STATE_UNAUTHORISED,
        State::Quarantined => STATE_QUARANTINED,
    }
}

fn roles(endpoint: &spec::Endpoint) -> u16 {
    let has = |role: Role, bit: u16| if endpoint.has_role(role) { bit } else { 0 };
    has(Role::Router, ROLE_ROUTER) | has(Role::DhcpServer, ROLE_DHCP_SERVER)
}

/// Attachments, and whose blocks of ports are behind them.
fn attached(
    host: &Host<'_>,
    slot: u32,
    image: &CompartmentImage<'_>,
    books: &[Book<'_>],
    breaches: &mut Vec<Breach>,
) {
    let own: Vec<&Attachment> = host.attachments.iter().filter(|a| a.slot == slot).collect();
    for (index, there) in (0..).zip(image.attachments()) {
        let wanted = own.iter().find(|a| a.tag == there.tag);
        let Some(wanted) = wanted.filter(|_| guard!("proof-attachments")) else {
            let what = format!(
                "an attachment has tag {}, which is none of its own",
                there.tag
            );
            breaches.push(Breach::new(Class::WrongTag, slot, what));
            continue;
        };
        let Some(tenant) = host.spec.tenants.get(wanted.tenant) else {
            continue;
        };
        let book = books
            .iter()
            .find(|b| b.view.tenant.name.value == tenant.name.value);
        let id = image.tenants().get(there.tenant as usize).map(|t| t.id);
        let mut addresses = Vec::new();
        if there.address4 != [0; 4] {
            addresses.push(mapped(there.address4));
        }
        if there.address6 != [0; 16] {
            addresses.push(there.address6);
        }
        let right = id == book.map(|b| b.view.id)
            && there.mac == wanted.mac
            && there.uplink == wanted.uplink
            && addresses == wanted.addresses;
        if !right {
            let tenant = &tenant.name.value;
            let what = format!("the place of {tenant} on its uplink is not as it is written");
            breaches.push(Breach::new(Class::WrongPlace, slot, what));
        }
        let Some(book) = book else {
            continue;
        };
        let uplink = host.spec.uplinks.iter().find(|u| {
            let numbers = host.numbers.uplinks.get(u.name.as_str());
            numbers.is_some_and(|n| n.number == wanted.uplink)
        });
        let name = uplink.map_or("", |u| u.name.as_str());
        let way = tenant.outside.iter().find(|o| o.uplink.as_str() == name);
        let size = way.map_or(0, spec::Outside::nat_ports);
        let blocks: BTreeMap<u32, u32> = match host.numbers.tenants.get(tenant.name.as_str()) {
            Some(of) if size != 0 => {
                let blocks = of.attachments.get(name).into_iter().flat_map(|a| &a.blocks);
                let member = |name: &str| {
                    let mut all = book.view.members.iter();
                    Some(all.find(|m| m.endpoint.name.as_str() == name)?.id)
                };
                blocks
                    .filter_map(|(name, number)| Some((*number, member(name)?)))
                    .collect()
            }
            _ => BTreeMap::new(),
        };
        let installed: BTreeMap<u32, u32> = (0u32..)
            .zip(image.nat_blocks_of(there))
            .filter_map(|(number, block)| {
                Some((number, image.endpoints().get(block.endpoint as usize)?.id))
            })
            .collect();
        // Ports below 1024 are nobody's (RFC 6335, section 6).
        let right = u32::from(there.nat_block) == size
            && (size == 0 || there.nat_first == 1024)
            && blocks == installed;
        if !right && guard!("proof-blocks") {
            let what = format!("blocks of ports behind attachment {index} are not whose they are");
            let seat = Seat { host, slot, image };
            let shown = seat.behind(index, |id, ports| {
                let own = blocks.iter().find(|(_, of)| **of == id);
                own.and_then(|(number, _)| 1024u32.checked_add(number.checked_mul(size)?))
                    == Some(u32::from(*ports.start()))
            });
            breaches.push(Breach::new(Class::WrongTranslation, slot, what).shown_or(shown));
        }
    }
    if image.attachments().len() != own.len() {
        let what = "it has not the attachments that are written";
        breaches.push(Breach::new(Class::WrongPlace, slot, what));
    }
}

/// Checks where a tenant's packets are routed: as the spec says, from every address on.
pub(crate) fn routes(
    host: &Host<'_>,
    slot: u32,
    image: &CompartmentImage<'_>,
    at: usize,
    book: &Book<'_>,
    breaches: &mut Vec<Breach>,
) {
    let view = book.view;
    let Some(index) = image.tenants().iter().position(|t| t.id == view.id) else {
        return;
    };
    let wanted = intended(host, at, view);
    let ranges = image.ranges_of(index as u32);
    let seat = Seat { host, slot, image };
    let mut edges: BTreeSet<u128> = wanted.keys().copied().collect();
    for range in ranges {
        edges.insert(u128::from_be_bytes(range.start));
        edges.extend(u128::from_be_bytes(range.end).checked_add(1));
    }
    let ends = edges.iter().skip(1).map(|next| next - 1);
    let ends: Vec<u128> = ends.chain([u128::MAX]).collect();
    let mut told = 0;
    for (edge, end) in edges.into_iter().zip(ends) {
        let wants = wanted
            .range(..=edge)
            .next_back()
            .map_or(Target::Nowhere, |(_, target)| *target);
        let address = edge.to_be_bytes();
        let does = installed(image, index as u32, &address);
        if does == Some(wants) || !guard!("proof-routes") {
            continue;
        }
        let class = match does {
            Some(does) if leads_back(host, view, does, &address) => Class::Loop,
            _ => Class::WrongRoute,
        };
        let to = plain(&address);
        let what = format!(
            "packets of {} to {to} go {}, and are to go {}",
            view.tenant.name.value,
            does.map_or("where nobody is".to_owned(), |does| words(host, view, does)),
            words(host, view, wants),
        );
        let mut shown = seat.routed(index as u32, view.tenant.name.as_str(), edge, end);
        if let (Ok((_, way)), true) = (&mut shown, class != Class::Loop) {
            way.back = None;
        }
        breaches.push(Breach::new(class, slot, what).shown_or(shown));
        told += 1;
        if told == 8 {
            break;
        }
    }
}

fn words(host: &Host<'_>, view: &View<'_>, target: Target) -> String {
    match target {
        Target::Nowhere => "nowhere".into(),
        Target::Subnet(id) => {
            let net = view.subnets.iter().find(|n| n.id == id);
            net.map_or("to a foreign subnet".into(), |n| {
                format!("to subnet {}", n.subnet.name.value)
            })
        }
        Target::Via(id) => {
            let member = view.members.iter().find(|m| m.id == id);
            member.map_or("to a foreign endpoint".into(), |m| {
                format!("by {}", m.endpoint.name.value)
            })
        }
        Target::Outside(tag, hop) => format!("outside by {} (tag {tag})", plain(&hop)),
        Target::Service(id) => {
            let agreement = host.agreements.iter().find(|a| a.id == id);
            agreement.map_or(format!("across agreement {id}, which is not"), |a| {
                format!("across agreement {}", a.id)
            })
        }
    }
}

/// Whether who gets a packet for this address has no way for it but back: a router with
/// nothing of the kind behind it, a host's own switch.
fn leads_back(host: &Host<'_>, view: &View<'_>, target: Target, to: &[u8; 16]) -> bool {
    match target {
        Target::Via(id) => {
            let member = view.members.iter().find(|m| m.id == id);
            member.is_none_or(|m| {
                let behind = m.endpoint.prefixes.iter();
                !behind.flat_map(|p| of_prefix(p)).any(|r| holds(&[r], to)) && !m.all.contains(to)
            })
        }
        Target::Outside(_, hop) => host.attachments.iter().any(|a| a.addresses.contains(&hop)),
        _ => false,
    }
}

fn installed(image: &CompartmentImage<'_>, tenant: u32, to: &[u8; 16]) -> Option<Target> {
    let Some(route) = image.route(tenant, *to) else {
        return Some(Target::Nowhere);
    };
    Some(match route.kind {
        ROUTE_SUBNET => Target::Subnet(image.subnets().get(route.subnet as usize)?.id),
        ROUTE_VIA => Target::Via(image.endpoints().get(route.via as usize)?.id),
        ROUTE_OUTSIDE => {
            let hop = image.next_hops().get(route.via as usize)?;
            let attachment = image.attachments().get(hop.attachment as usize)?;
            if hop.mac != [0; 6] {
                return None;
            }
            Target::Outside(attachment.tag, hop.address)
        }
        ROUTE_SERVICE => Target::Service(image.crossings().get(route.via as usize)?.agreement),
        ROUTE_UNREACHABLE => Target::Nowhere,
        _ => return None,
    })
}

/// From which address on packets go where, painted: the longer prefix over the shorter,
/// the earlier in precedence over the later.
fn intended(host: &Host<'_>, at: usize, view: &View<'_>) -> BTreeMap<u128, Target> {
    let tenant = view.tenant;
    let mut list: Vec<(Prefix, Target)> = Vec::new();
    for net in &view.subnets {
        let prefixes = net.subnet.prefixes.iter();
        list.extend(prefixes.map(|p| (p.value, Target::Subnet(net.id))));
    }
    let number = |name: &str| host.numbers.uplinks.get(name).map(|u| u.number);
    let tag = |name: &str| {
        let number = number(name)?;
        let mut all = host.attachments.iter();
        Some(all.find(|a| a.tenant == at && a.uplink == number)?.tag)
    };
    let by = |way: &spec::Outside, to: &Prefix, gateway: Option<[u8; 16]>| {
        let hop = gateway.or_else(|| way.gateway_for(to.is_v4()).map(|g| spec::mapped(g.0)))?;
        Some(Target::Outside(tag(way.uplink.as_str())?, hop))
    };
    for route in &tenant.routes {
        let to = route.to.value;
        let target = match &route.via.value {
            Via::Unreachable => Some(Target::Nowhere),
            Via::Endpoint(name) => {
                let member = view.members.iter().find(|m| m.endpoint.name.value == *name);
                member.map(|m| Target::Via(m.id))
            }
            Via::Outside(uplink) => {
                let named =
                    |o: &&spec::Outside| uplink.as_ref().is_none_or(|name| o.uplink.value == *name);
                let way = tenant.outside.iter().find(named);
                way.and_then(|way| by(way, &to, None))
            }
        };
        list.extend(target.map(|target| (to, target)));
    }
    for member in &view.members {
        let behind = member.endpoint.prefixes.iter();
        list.extend(behind.map(|p| (p.value, Target::Via(member.id))));
    }
    for way in &tenant.outside {
        for route in way.routes.iter().flatten() {
            let gateway = route.gateway.map(|g| spec::mapped(g.value.0));
            let target = by(way, &route.to.value, gateway);
            list.extend(target.map(|target| (route.to.value, target)));
        }
    }
    for all in ["0.0.0.0/0", "::/0"] {
        let Ok(to) = all.parse::<Prefix>() else {
            continue;
        };
        let written = tenant.routes.iter().any(|r| r.to.value == to);
        let way = tenant.outside.iter();
        let mut way = way.filter(|o| o.routes.is_none() && o.gateway_for(to.is_v4()).is_some());
        if let Some(way) = way.next().filter(|_| !written) {
            list.extend(by(way, &to, None).map(|target| (to, target)));
        }
    }
    for agreement in &host.agreements {
        list.extend(
            (agreement.leads(at).0.into_iter()).map(|p| (p, Target::Service(agreement.id))),
        );
    }
    // Painted from the least to the most: by length, then against precedence.
    let bits = |p: &Prefix| u32::from(p.len) + if p.is_v4() { 96 } else { 0 };
    list.reverse();
    list.sort_by_key(|(prefix, _)| bits(prefix));
    let mut painted = BTreeMap::from([(0u128, Target::Nowhere)]);
    for (prefix, target) in list {
        for (first, last) in of_prefix(&prefix) {
            paint(
                &mut painted,
                u128::from_be_bytes(first),
                u128::from_be_bytes(last),
                target,
            );
        }
    }
    painted
}

fn paint(map: &mut BTreeMap<u128, Target>, first: u128, last: u128, target: Target) {
    if let Some(next) = last.checked_add(1) {
        let was = map
            .range(..=next)
            .next_back()
            .map_or(Target::Nowhere, |(_, t)| *t);
        map.insert(next, was);
    }
    let inside: Vec<u128> = map.range(first..=last).map(|(at, _)| *at).collect();
    for at in inside {
        map.remove(&at);
    }
    map.insert(first, target);
}
