//! Sides of agreements in an image: each is one of a live agreement, just as agreed.

use crate::breach::{Breach, Class, Written};
use crate::intend::{Agreement, Family, Host};
use crate::ranges::{Range, common, of_prefix, others, tidy};
use crate::showing::{Seat, Shown, first, somebody};
use crate::way::{Becomes, Place, Way};
use core::net::IpAddr;
use guard::guard;
use image::CompartmentImage;
use image::compartment::{
    CROSSING_ACCEPTOR, CROSSING_BOTH, CROSSING_OFFERER, CROSSING_RINGS, CROSSING_ROUTED, Crossing,
    NONE,
};
use wire::Tuple;
use wire::address::unmapped;

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
    let seat = Seat { host, slot, image };
    for crossing in image.crossings() {
        let live = |(a, role, _): &(&Agreement, u16, usize)| {
            a.id == crossing.agreement && *role == crossing.role
        };
        let Some(at) = sides.iter().position(live) else {
            if guard!("proof-stale") {
                let id = crossing.agreement;
                let what = format!("it has a side of agreement {id}, which is not live here");
                let breach = Breach::new(Class::StaleAgreement, slot, what);
                breaches.push(breach.shown_or(seat.across_any(crossing, None)));
            }
            continue;
        };
        let (agreement, _, tenant) = sides.swap_remove(at);
        side(seat, crossing, agreement, tenant, breaches);
    }
    for (agreement, role, tenant) in sides {
        let what = format!("its side of agreement {} is missing", agreement.id);
        let breach = Breach::new(Class::StaleAgreement, slot, what).by(agreed(host, agreement));
        breaches.push(breach.shown_or(gone(seat, agreement, role, tenant)));
    }
}

/// What becomes of a user's packet at a side that is missing.
fn gone(seat: Seat<'_>, agreement: &Agreement, role: u16, tenant: usize) -> Shown {
    let Seat { host, slot, image } = seat;
    let packet = users(host, agreement).ok_or("neither side has addresses")?;
    if role == CROSSING_OFFERER {
        let tag = agreement.offerer_tag;
        if image.crossing_by_tag(tag).is_some() {
            return Err("what comes by its tag is another side's".into());
        }
        let from = Place::Channel { slot, tag };
        return Ok((packet, Way::new(from, Place::Dropped { slot })));
    }
    let name = host
        .spec
        .tenants
        .get(tenant)
        .map_or("", |t| t.name.as_str());
    let id = host.numbers.tenants.get(name).map(|t| t.id);
    let index = image.tenants().iter().position(|t| Some(t.id) == id);
    let index = index.ok_or("the tenant is not in the image")? as u32;
    let v4 = unmapped(&packet.destination).is_some();
    let user = seat.speaker(index, v4, None);
    let (user, source) = user.ok_or("nobody there has an address of its family")?;
    let to = seat.leads(index, &packet);
    Ok((Tuple { source, ..packet }, Way::new(seat.port(user), to)))
}

fn side(
    seat: Seat<'_>,
    crossing: &Crossing,
    agreement: &Agreement,
    tenant: usize,
    breaches: &mut Vec<Breach>,
) {
    let Seat { host, slot, image } = seat;
    let wrong =
        |class: Class, what: String| Breach::new(class, slot, what).by(agreed(host, agreement));
    let id = agreement.id;
    let offers = crossing.role == CROSSING_OFFERER;
    let wants = match offers {
        true => agreement.offerer_tag,
        false => agreement.tag,
    };
    let any = || seat.across_any(crossing, Some(agreement));
    if crossing.tag != wants && guard!("proof-crossing-tag") {
        let does = crossing.tag;
        breaches.push(
            wrong(
                Class::WrongTag,
                format!("its side of agreement {id} has tag {does}, and is to have {wants}"),
            )
            .shown_or(any()),
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
        breaches.push(wrong(Class::WrongService, what).shown_or(any()));
    }
    let server = match crossing.endpoint {
        NONE => None,
        at => Some(image.endpoints().get(at as usize).map_or(0, |e| e.id)),
    };
    if server != agreement.endpoint.filter(|_| offers) && guard!("proof-server") {
        let what = format!("its side of agreement {id} leads to another endpoint");
        breaches.push(wrong(Class::WrongService, what).shown_or(any()));
    }
    if crossing.has_rings() != agreement.rings && guard!("proof-rings") {
        let does = match agreement.rings {
            true => "does not let programs share memory as both tenants ask",
            false => "lets programs share memory though not both tenants ask",
        };
        let what = format!("its side of agreement {id} {does}");
        breaches.push(wrong(Class::WrongService, what).shown_or(any()));
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
        let v4 = crossing.address4 != [0; 4];
        let other = more_ports(&installed, &wanted).or_else(|| more_ports(&wanted, &installed));
        let shown = other.ok_or("it is for the same in other words".to_owned());
        let shown = shown.and_then(|port| seat.across(crossing, Some(agreement), v4, port));
        let what = format!(
            "its side of agreement {id} is for (protocol, ports) {installed:?}, and is to be for {wanted:?}"
        );
        breaches.push(wrong(Class::WrongService, what).shown_or(shown));
    }
    if let Some((what, packet)) = other_prefixes(seat, crossing, agreement, offers)
        && guard!("proof-prefixes")
    {
        let what = format!("its side of agreement {id} {what}");
        let breach = wrong(Class::WrongPrefix, what);
        let way = packet.map(|packet| (packet, seat.across_prefixes(crossing, &packet)));
        breaches.push(match way {
            None => breach.nobody("nobody is in the prefixes that differ"),
            Some((_, Ok((packet, way)))) => breach.shown(packet, way),
            Some((packet, Err(why))) => Breach {
                packet: Some(packet.into()),
                ..breach.nobody(why)
            },
        });
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
        let shown = translated(seat, crossing, agreement);
        let what =
            format!("its side of agreement {id} is translated to other addresses than agreed");
        breaches.push(wrong(Class::WrongTranslation, what).shown_or(shown));
    }
}

/// What shows that a side translates to other addresses than agreed.
fn translated(seat: Seat<'_>, crossing: &Crossing, agreement: &Agreement) -> Shown {
    if crossing.role != CROSSING_OFFERER {
        let why = "where first packets go is for routes to say, and the address that differs is asked about connections alone, which end";
        return Err(why.into());
    }
    let ports = seat.image.service_ports_of(crossing).first();
    let ports = ports.ok_or("it serves no port")?;
    for (family, v4) in agreement.families.iter().zip([true, false]) {
        let Ok((packet, way)) =
            seat.across(crossing, Some(agreement), v4, (ports.protocol, ports.first))
        else {
            continue;
        };
        let agreed = |becomes: Becomes| {
            let family = family.as_ref();
            let pool: Vec<Range> = family.iter().flat_map(|f| of_prefix(&f.pool)).collect();
            let (first, last) = becomes.source;
            let got = [(spec::mapped(first), spec::mapped(last))];
            common(&got, &others(&tidy(pool))).is_empty()
                && family.is_some_and(|f| f.service == becomes.destination)
        };
        if !way.becomes.map_or(family.is_none(), agreed) {
            return Ok((packet, way));
        }
    }
    Err(
        "every address that it translates to is an agreed one, though not all of them are there"
            .into(),
    )
}

/// Addresses of a packet across an agreement of prefixes.
fn ends(agreement: &Agreement) -> Option<([u8; 16], [u8; 16])> {
    let first = |prefix: &spec::Prefix| of_prefix(prefix).next().map(|(first, _)| first);
    let routed = agreement.routed.as_ref()?;
    let users = routed.users.first()?;
    let alike = |p: &&spec::Prefix| p.is_v4() == users.is_v4();
    Some((first(users)?, first(routed.offered.iter().find(alike)?)?))
}

/// What of a crossing's prefixes, and of who may begin, is not as agreed; and a packet
/// that it wrongly takes, where there is one.
fn other_prefixes(
    seat: Seat<'_>,
    crossing: &Crossing,
    agreement: &Agreement,
    offers: bool,
) -> Option<(&'static str, Option<Tuple>)> {
    let image = seat.image;
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
    // Whoever has one of them gets it.
    let ours = |list: &[Range], v4: bool| seat.inhabitant(crossing.tenant, list, v4);
    let is_four = |address: &[u8; 16]| unmapped(address).is_some();
    if other != theirs {
        let more = common(&other, &others(&theirs));
        let shown = more.first().and_then(|range| {
            let from = range.0;
            let to = ours(&own, is_four(&from)).or_else(|| alike(&own, &from))?;
            Some(packet(from, to))
        });
        return Some((
            "takes other addresses for the other tenant's than agreed",
            shown,
        ));
    }
    if mine != own {
        let more = common(&mine, &others(&own));
        let shown = more.first().and_then(|range| {
            let to = ours(&more, is_four(&range.0)).unwrap_or(range.0);
            Some(packet(alike(&theirs, &to)?, to))
        });
        return Some((
            "has other addresses of its own taking part than agreed",
            shown,
        ));
    }
    if crossing.flags & !CROSSING_RINGS != flags {
        let from = theirs.first().map(|range| range.0);
        let shown = from.and_then(|from| {
            let to = ours(&own, is_four(&from)).or_else(|| alike(&own, &from))?;
            Some(packet(from, to))
        });
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

/// Where an agreement is written.
pub(crate) fn agreed(host: &Host<'_>, agreement: &Agreement) -> Vec<Written> {
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

/// A user's packet across an agreement, as it is sent.
pub(crate) fn users(host: &Host<'_>, agreement: &Agreement) -> Option<Tuple> {
    let protocol = agreement.protocol.unwrap_or(6);
    let port = agreement.ports.first().map_or(80, |p| p.0);
    if agreement.routed.is_some() {
        let (source, destination) = ends(agreement)?;
        return Some(first(source, destination, protocol, port));
    }
    let mut families = agreement.families.iter().flatten();
    families.find_map(|family| {
        let source = somebody(host, agreement.acceptor, family.stands.is_ipv4())?;
        Some(first(source, spec::mapped(family.stands), protocol, port))
    })
}
