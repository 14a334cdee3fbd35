//! Between tenants: the fabric's entries and the sides of agreements in each image, from
//! what is trusted alone: who is in which compartment, by the spec and its numbers.

use crate::breach::{Breach, Class, Packet, Written};
use crate::intend::{Agreement, Attachment, Family, Host};
use crate::ranges::{Range, common, of_prefix, others, tidy};
use crate::uplinks;
use core::net::IpAddr;
use guard::guard;
use image::compartment::{
    CROSSING_ACCEPTOR, CROSSING_BOTH, CROSSING_OFFERER, CROSSING_ROUTED, Crossing, NONE,
};
use image::fabric::{
    CHANNEL_COMPARTMENT, CHANNEL_UPLINK, FORWARD_GROUP, FORWARD_UNICAST, Forward, GroupMember,
};
use image::{CompartmentImage, FabricImage};
use std::collections::{BTreeMap, BTreeSet};
use wire::address::unmapped;
use wire::{MacAddress, Tuple};

/// That no tag is two things'.
pub(crate) fn tags(host: &Host<'_>, breaches: &mut Vec<Breach>) {
    let attachments = host.attachments.iter().map(|a| a.tag);
    let all = attachments.chain(host.agreements.iter().flat_map(Agreement::tags));
    let mut seen = BTreeSet::new();
    for tag in all {
        if (tag == 0 || !seen.insert(tag)) && guard!("proof-tag-shared") {
            let what = format!("the tag {tag} stands for two things");
            breaches.push(Breach::new(Class::WrongTag, 0, what));
        }
    }
}

/// The fabric's image, entry by entry.
pub(crate) fn fabric(host: &Host<'_>, image: &FabricImage<'_>, breaches: &mut Vec<Breach>) {
    let mut kinds: BTreeMap<u32, u32> = BTreeMap::new();
    kinds.extend(
        host.compartments
            .keys()
            .map(|slot| (*slot, CHANNEL_COMPARTMENT)),
    );
    for uplink in &host.spec.uplinks {
        let numbers = host.numbers.uplinks.get(uplink.name.as_str());
        kinds.extend(numbers.map(|u| (u.slot, CHANNEL_UPLINK)));
    }
    let there: BTreeMap<u32, u32> = (image.channels().iter())
        .map(|c| (c.slot, c.kind))
        .collect();
    if (there != kinds || image.channels().len() != kinds.len()) && guard!("proof-channels") {
        let what = format!("its channels (slot, kind) are {there:?}, and the spec's are {kinds:?}");
        breaches.push(Breach::new(Class::FabricEntry, 0, what));
    }
    let fabric = Fabric { host, kinds };
    for channel in image.channels() {
        for template in image.templates(channel) {
            let own = fabric.attachment(channel.slot, template.tag, template.egress);
            let holds = own.is_some_and(|own| uplinks::holds(own, template));
            if !holds && guard!("proof-templates") {
                let what = format!(
                    "toward slot {} with tag {} it lets slot {} say what is not its own to say",
                    template.egress, template.tag, channel.slot
                );
                breaches.push(Breach::new(Class::FabricEntry, 0, what));
            }
        }
    }
    let mut ways: BTreeSet<(u32, u32, u16)> = BTreeSet::new();
    for entry in image.forwards().iter().filter(|e| e.kind != 0) {
        let one = [GroupMember {
            slot: entry.target,
            out_tag: entry.out_tag,
            reserved: 0,
        }];
        let members = match entry.kind {
            FORWARD_GROUP => image.group(entry.target),
            _ => &one[..],
        };
        for member in members {
            if let Err((class, why)) = fabric.holds(entry, member) {
                breaches.push(fabric.wrong(class, entry, member, why));
            }
        }
        ways.insert((entry.ingress, entry.target, entry.tag));
    }
    for agreement in &host.agreements {
        for ((from, tag), (to, _)) in agreement.ways() {
            if !ways.contains(&(from, to, tag)) {
                let what = format!(
                    "the agreement {} has no way from slot {from} to slot {to} by its tag {tag}",
                    agreement.id
                );
                breaches.push(Breach::new(Class::FabricEntry, 0, what).by(agreed(host, agreement)));
            }
        }
    }
}

struct Fabric<'h> {
    host: &'h Host<'h>,
    kinds: BTreeMap<u32, u32>,
}

type Wrong = (Class, &'static str);

impl Fabric<'_> {
    fn attachment(&self, slot: u32, tag: u16, uplink: u32) -> Option<&Attachment> {
        let mut all = self.host.attachments.iter();
        all.find(|a| a.slot == slot && a.tag == tag && a.uplink_slot == uplink)
    }

    fn holds(&self, entry: &Forward, member: &GroupMember) -> Result<(), Wrong> {
        let kind = |slot: u32| self.kinds.get(&slot).copied();
        let station = entry.mac.first().is_some_and(|first| first & 1 == 0);
        match (kind(entry.ingress), kind(member.slot)) {
            (Some(CHANNEL_COMPARTMENT), Some(CHANNEL_UPLINK)) => {
                let own = self.attachment(entry.ingress, entry.tag, member.slot);
                if own.is_none() && guard!("proof-uplink-tag") {
                    return Err((Class::FabricEntry, "the tag is no attachment of it there"));
                }
                if entry.kind != FORWARD_UNICAST || member.out_tag != 0 {
                    return Err((Class::FabricEntry, "what goes to an uplink has no tag"));
                }
                let asks = station || own.is_none_or(|own| uplinks::may_ask(own, &entry.mac));
                if !asks && guard!("proof-uplink-groups") {
                    return Err((Class::FabricEntry, "it needs no such group"));
                }
                Ok(())
            }
            (Some(CHANNEL_UPLINK), Some(CHANNEL_COMPARTMENT)) => {
                let Some(own) = self.attachment(member.slot, member.out_tag, entry.ingress) else {
                    return Err((Class::FabricEntry, "the tag is no attachment of it there"));
                };
                let own_mac = match entry.kind {
                    FORWARD_UNICAST => station && entry.mac == own.mac,
                    _ => uplinks::groups(own).contains(&entry.mac),
                };
                if entry.tag != 0 || !own_mac && guard!("proof-uplink-mac") {
                    return Err((Class::FabricEntry, "the MAC is another's"));
                }
                Ok(())
            }
            (Some(CHANNEL_COMPARTMENT), Some(CHANNEL_COMPARTMENT)) => {
                let ways = self.host.agreements.iter().flat_map(Agreement::ways);
                let joins = |((from, _), (to, _)): &((u32, u16), (u32, u16))| {
                    (*from, *to) == (entry.ingress, member.slot)
                };
                let mut own = ways.filter(joins).peekable();
                if own.peek().is_none() && guard!("proof-joins") {
                    return Err((Class::FabricEntry, "no agreement joins the two"));
                }
                let way = own.find(|((_, tag), _)| *tag == entry.tag);
                if way.is_none() && guard!("proof-agreement-tag") {
                    return Err((Class::WrongTag, "the tag is no live agreement's of the two"));
                }
                let out = way.map_or(entry.tag, |(_, (_, tag))| tag);
                if member.out_tag != out && guard!("proof-tag-kept") {
                    return Err((
                        Class::WrongTag,
                        "it gets another tag on the way than agreed",
                    ));
                }
                if entry.kind != FORWARD_UNICAST || entry.mac != [0; 6] {
                    return Err((
                        Class::FabricEntry,
                        "an agreement is for every station alone",
                    ));
                }
                Ok(())
            }
            _ => Err((Class::FabricEntry, "these two are never joined")),
        }
    }

    fn wrong(&self, class: Class, entry: &Forward, member: &GroupMember, why: &str) -> Breach {
        let Forward {
            ingress, tag, mac, ..
        } = entry;
        let GroupMember { slot, out_tag, .. } = member;
        let mac = MacAddress(*mac);
        let what = format!(
            "what comes from slot {ingress} with tag {tag} for station {mac} goes to slot {slot} with tag {out_tag}: {why}"
        );
        let breach = Breach::new(class, 0, what);
        // Whatever the sender's switch likes to say: for example this.
        let packet = self
            .host
            .attachments
            .iter()
            .find(|a| a.slot == *slot || a.slot == *ingress);
        let packet = packet.and_then(|a| a.addresses.first()).copied();
        match packet {
            Some(address) => breach.shown(
                Tuple {
                    source: address,
                    destination: address,
                    source_port: 1024,
                    destination_port: 80,
                    protocol: 6,
                },
                format!("from slot {ingress} by the fabric to slot {slot}"),
            ),
            None => Breach {
                path: format!("from slot {ingress} by the fabric to slot {slot}"),
                ..breach
            },
        }
    }
}

/// Where an agreement is written.
fn agreed(host: &Host<'_>, agreement: &Agreement) -> Vec<Written> {
    let spec = host.spec;
    let offer = spec
        .tenants
        .get(agreement.offerer)
        .and_then(|t| t.offers.get(agreement.offer));
    let accept =
        (spec.tenants.get(agreement.acceptor)).and_then(|t| t.accepts.get(agreement.accept));
    let offer = offer.map(|o| Written::new(spec, format!("offer {}", o.name.value), o.name.span));
    let accept =
        accept.map(|a| Written::new(spec, format!("acceptance {}", a.name.value), a.name.span));
    offer.into_iter().chain(accept).collect()
}

/// An image's crossings: each a side of a live agreement, and each live side there.
pub(crate) fn crossings(
    host: &Host<'_>,
    slot: u32,
    image: &CompartmentImage<'_>,
    breaches: &mut Vec<Breach>,
) {
    let mut sides: Vec<(&Agreement, u16, usize)> = Vec::new();
    for agreement in &host.agreements {
        if agreement.acceptor_slot == slot {
            sides.push((agreement, CROSSING_ACCEPTOR, agreement.acceptor));
        }
        if agreement.offerer_slot == slot {
            sides.push((agreement, CROSSING_OFFERER, agreement.offerer));
        }
    }
    for crossing in image.crossings() {
        let live = |(a, role, _): &(&Agreement, u16, usize)| {
            a.id == crossing.agreement && *role == crossing.role
        };
        let Some(at) = sides.iter().position(live) else {
            if guard!("proof-stale") {
                let id = crossing.agreement;
                let what = format!("it has a side of agreement {id}, which is not live here");
                breaches.push(Breach::new(Class::StaleAgreement, slot, what));
            }
            continue;
        };
        let (agreement, _, tenant) = sides.swap_remove(at);
        side(host, slot, image, crossing, agreement, tenant, breaches);
    }
    for (agreement, ..) in sides {
        let what = format!("its side of agreement {} is missing", agreement.id);
        let breach = Breach::new(Class::StaleAgreement, slot, what);
        breaches.push(breach.by(agreed(host, agreement)));
    }
}

fn side(
    host: &Host<'_>,
    slot: u32,
    image: &CompartmentImage<'_>,
    crossing: &Crossing,
    agreement: &Agreement,
    tenant: usize,
    breaches: &mut Vec<Breach>,
) {
    let mut wrong = |class: Class, what: String, packet: Option<Tuple>| {
        let mut breach = Breach::new(class, slot, what).by(agreed(host, agreement));
        if let Some(packet) = packet {
            let path = format!("by the fabric with tag {} to slot {slot}", crossing.tag);
            breach.packet = Some(Packet::from(packet));
            breach.path = path;
        }
        breaches.push(breach);
    };
    let id = agreement.id;
    let offers = crossing.role == CROSSING_OFFERER;
    let wants = match offers {
        true => agreement.offerer_tag,
        false => agreement.tag,
    };
    if crossing.tag != wants && guard!("proof-crossing-tag") {
        let does = crossing.tag;
        wrong(
            Class::WrongTag,
            format!("its side of agreement {id} has tag {does}, and is to have {wants}"),
            None,
        );
    }
    let name = host
        .spec
        .tenants
        .get(tenant)
        .map_or("", |t| t.name.as_str());
    let wanted = host.numbers.tenants.get(name).map(|t| t.id);
    let there = image.tenants().get(crossing.tenant as usize).map(|t| t.id);
    if there != wanted {
        let what = format!("its side of agreement {id} is not {name}'s");
        wrong(Class::WrongService, what, None);
    }
    let server = match crossing.endpoint {
        NONE => None,
        at => Some(image.endpoints().get(at as usize).map_or(0, |e| e.id)),
    };
    if server != agreement.endpoint.filter(|_| offers) && guard!("proof-server") {
        let what = format!("its side of agreement {id} leads to another endpoint");
        wrong(Class::WrongService, what, None);
    }
    let ports = image.service_ports_of(crossing);
    let installed: Vec<(u8, u16, u16)> = ports
        .iter()
        .map(|p| (p.protocol, p.first, p.last))
        .collect();
    let ports = agreement.ports.iter();
    let protocol = agreement.protocol.unwrap_or(0);
    let wanted: Vec<(u8, u16, u16)> = ports.map(|p| (protocol, p.0, p.1)).collect();
    if installed != wanted && guard!("proof-service-ports") {
        let packet = more_ports(&installed, &wanted).and_then(|(protocol, port)| {
            let (source, destination) = ends(agreement, offers)?;
            Some(Tuple {
                source,
                destination,
                source_port: 1024,
                destination_port: port,
                protocol,
            })
        });
        let what = format!(
            "its side of agreement {id} is for (protocol, ports) {installed:?}, and is to be for {wanted:?}"
        );
        wrong(Class::WrongService, what, packet);
    }
    if let Some((what, packet)) = other_prefixes(image, crossing, agreement, offers)
        && guard!("proof-prefixes")
    {
        let what = format!("its side of agreement {id} {what}");
        wrong(Class::WrongPrefix, what, packet);
    }
    let [four, six] = &agreement.families;
    let address = |family: &Option<Family>| {
        let family = family.as_ref()?;
        Some(if offers {
            family.service
        } else {
            family.stands
        })
    };
    let pool = |family: &Option<Family>| family.as_ref().filter(|_| offers).map(|f| f.pool);
    let v4 = |a: Option<IpAddr>| match a {
        Some(IpAddr::V4(a)) => a.octets(),
        _ => [0; 4],
    };
    let v6 = |a: Option<IpAddr>| match a {
        Some(IpAddr::V6(a)) => a.octets(),
        _ => [0; 16],
    };
    let right = crossing.address4 == v4(address(four))
        && crossing.address6 == v6(address(six))
        && crossing.pool4 == v4(pool(four).map(|p| p.network))
        && crossing.pool6 == v6(pool(six).map(|p| p.network))
        && crossing.pool4_len == pool(four).map_or(0, |p| p.len)
        && crossing.pool6_len == pool(six).map_or(0, |p| p.len);
    if !right && guard!("proof-translation") {
        let packet = ends(agreement, offers).map(|(source, destination)| Tuple {
            source,
            destination,
            source_port: 1024,
            destination_port: agreement.ports.first().map_or(0, |p| p.0),
            protocol,
        });
        let what =
            format!("its side of agreement {id} is translated to other addresses than agreed");
        wrong(Class::WrongTranslation, what, packet);
    }
}

/// Addresses of a packet across an agreement, as its sender or its receiver has them.
fn ends(agreement: &Agreement, offers: bool) -> Option<([u8; 16], [u8; 16])> {
    let first = |prefix: &spec::Prefix| of_prefix(prefix).next().map(|(first, _)| first);
    if let Some(routed) = &agreement.routed {
        let users = routed.users.first()?;
        let alike = |p: &&spec::Prefix| p.is_v4() == users.is_v4();
        return Some((first(users)?, first(routed.offered.iter().find(alike)?)?));
    }
    let family = agreement.families.iter().flatten().next()?;
    let to = if offers {
        family.service
    } else {
        family.stands
    };
    Some((first(&family.pool)?, spec::mapped(to)))
}

/// What of a crossing's prefixes, and of who may begin, is not as agreed; and a packet
/// that it wrongly takes, where there is one.
fn other_prefixes(
    image: &CompartmentImage<'_>,
    crossing: &Crossing,
    agreement: &Agreement,
    offers: bool,
) -> Option<(&'static str, Option<Tuple>)> {
    let flags = match &agreement.routed {
        None => 0,
        Some(routed) => CROSSING_ROUTED | if routed.both { CROSSING_BOTH } else { 0 },
    };
    let (own, theirs) = match &agreement.routed {
        None => (Vec::new(), Vec::new()),
        Some(routed) if offers => (ranges(&routed.offered), ranges(&routed.users)),
        Some(routed) => (ranges(&routed.users), ranges(&routed.offered)),
    };
    let installed = |theirs: u32| {
        let prefixes = image.routed_prefixes_of(crossing).iter();
        let prefixes = prefixes.filter(|p| p.theirs == theirs);
        // By the bits that the data path compares.
        let range = |p: &image::compartment::RoutedPrefix| {
            let host = u128::MAX.checked_shr(p.len).unwrap_or(0);
            let first = u128::from_be_bytes(p.prefix) & !host;
            (first.to_be_bytes(), (first | host).to_be_bytes())
        };
        tidy(prefixes.map(range).collect())
    };
    let (mine, other) = (installed(0), installed(1));
    let packet = |source: [u8; 16], destination: [u8; 16]| Tuple {
        source,
        destination,
        source_port: 1024,
        destination_port: agreement.ports.first().map_or(80, |p| p.0),
        protocol: agreement.protocol.unwrap_or(6),
    };
    let alike = |list: &[Range], to: &[u8; 16]| {
        let v4 = unmapped(to).is_some();
        let mut all = list.iter().map(|range| range.0);
        all.find(|a| unmapped(a).is_some() == v4)
    };
    if other != theirs {
        let more = common(&other, &others(&theirs));
        let shown = more.first().and_then(|range| {
            let from = range.0;
            Some(packet(from, alike(&own, &from)?))
        });
        return Some((
            "takes other addresses for the other tenant's than agreed",
            shown,
        ));
    }
    if mine != own {
        let more = common(&mine, &others(&own));
        let shown = more.first().and_then(|range| {
            let to = range.0;
            Some(packet(alike(&theirs, &to)?, to))
        });
        return Some((
            "has other addresses of its own taking part than agreed",
            shown,
        ));
    }
    if crossing.flags != flags {
        let from = theirs.first().map(|range| range.0);
        let shown = from.and_then(|from| Some(packet(from, alike(&own, &from)?)));
        return Some(("lets others begin, or others translate, than agreed", shown));
    }
    None
}

fn ranges(prefixes: &[spec::Prefix]) -> Vec<Range> {
    tidy(prefixes.iter().flat_map(of_prefix).collect())
}

/// A port that is in the first and not in the second.
fn more_ports(some: &[(u8, u16, u16)], others: &[(u8, u16, u16)]) -> Option<(u8, u16)> {
    for (protocol, first, last) in some {
        let mut edges = vec![*first];
        edges.extend(others.iter().filter_map(|o| o.2.checked_add(1)));
        for port in edges {
            let is = |list: &[(u8, u16, u16)]| {
                list.iter()
                    .any(|(p, a, b)| p == protocol && *a <= port && port <= *b)
            };
            if port >= *first && port <= *last && is(some) && !is(others) {
                return Some((*protocol, port));
            }
        }
    }
    None
}
