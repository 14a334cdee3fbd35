//! Whether one may talk to another, and which rule at which switch says so.

use super::trace::targets;
use crate::caller::Viewer;
use crate::refuse::Failure;
use crate::revoked::concerning;
use crate::server::{Server, no_endpoint};
use crate::view;
use crate::world::World;
use api::{Explanation, Fault, Judgement, Revoked, Translation, Way, Where, Whose};
use axum::Json;
use axum::extract::{Query, State};
use guard::guard;
use image::rules::Action;
use policy::{Bar, Peer, Question, Side, Unclear};
use serde::Deserialize;
use spec::{IcmpMessage, PortRange, Protocol};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use utoipa::IntoParams;

/// A port that clients speak from: the first of IANA's dynamic ones (RFC 6335).
const DYNAMIC: u16 = 49_152;
/// What `outside` stands for: two well-known hosts of the internet. Whoever has a rule
/// about other addresses asks about those.
pub const SOMEWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2606, 0x4700, 0x4700, 0, 0, 0, 0, 0x1111)),
];

/// Who, with whom, and about what.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Asked {
    /// Who begins: `TENANT/ENDPOINT`, an address, or `outside`.
    from: String,
    /// With whom, in the same words, or by what the beginner's tenant accepted: `TENANT/ACCEPTANCE`.
    to: String,
    /// `tcp`, `udp`, `icmp`, `icmp6`, `sctp` or a number; without it an echo request of
    /// either family.
    protocol: Option<String>,
    /// Destination port of tcp or udp, which need one; of icmp a name, a type, or a type
    /// and a code as `3/4`, without it an echo request.
    port: Option<String>,
    /// Source port of tcp or udp.
    #[serde(default = "dynamic")]
    source_port: u16,
}

fn dynamic() -> u16 {
    DYNAMIC
}

/// Whether one may begin to talk to another, and what in the spec says so.
#[utoipa::path(get, path = "/v1/explain", params(Asked),
    responses((status = 200, body = Explanation), (status = 403, body = Fault), (status = 404, body = Fault), (status = 422, body = Fault)))]
pub async fn explain(
    viewer: Viewer,
    State(server): State<Arc<Server>>,
    Query(asked): Query<Asked>,
) -> Result<Json<Explanation>, Failure> {
    let world = server.world.world();
    if let Some(name) = viewer.tenant().filter(|_| guard!("tenant-explain")) {
        own(name, &asked)?;
    }
    let mut explanation = Explanation::default();
    let packets = packets(asked.protocol.as_deref(), asked.port.as_deref())?;
    for (protocol, port) in packets {
        let has_ports = Protocol::Number(protocol).has_ports();
        for from in peers(&asked.from)? {
            for to in receivers(&world, &asked, (protocol, port))? {
                let question = Question {
                    from,
                    to,
                    protocol,
                    source_port: if has_ports { asked.source_port } else { 0 },
                    port,
                };
                let answer = world.explain(&question).ok_or_else(|| {
                    let advice = "apply a spec first";
                    Fault::new("not-found", Whose::User, "nothing is applied", advice)
                })?;
                let answer = answer.map_err(unclear)?;
                let ways = |ways: &[policy::Way]| -> Vec<Way> {
                    ways.iter()
                        .map(|one| way(one, &question, viewer.tenant()))
                        .collect()
                };
                explanation.there.extend(ways(&answer.there));
                explanation.back.extend(ways(&answer.back));
            }
        }
    }
    let there = &explanation.there;
    explanation.allowed = !there.is_empty() && there.iter().all(|way| way.allowed);
    let by_service = explanation.there.iter().any(|way| way.service.is_some());
    let revoked = match explanation.allowed || by_service {
        false => revoked_between(&world, &asked, viewer.tenant()),
        true => Vec::new(),
    };
    let explanation = match viewer.tenant() {
        Some(name) => view::explanation(explanation, name),
        None => explanation,
    };
    Ok(Json(Explanation {
        revoked,
        ..explanation
    }))
}

/// What of whom it is asked about is revoked, as far as `viewer` is told.
fn revoked_between(world: &World, asked: &Asked, viewer: Option<&str>) -> Vec<Revoked> {
    let mut tenants = [&asked.from, &asked.to]
        .into_iter()
        .filter_map(|word| Some(word.split_once('/')?.0));
    let (first, second) = (tenants.next(), tenants.next());
    let Some(first) = first.filter(|_| first != second) else {
        return Vec::new();
    };
    let mut all = concerning(world, first, viewer);
    if let Some(second) = second {
        let others = concerning(world, second, viewer);
        all.retain(|one| others.contains(one));
    }
    all
}

/// A tenant asks about its own endpoints: one at least, and no other tenant's.
fn own(name: &str, asked: &Asked) -> Result<(), Fault> {
    let mut any = false;
    for word in [&asked.from, &asked.to] {
        if let Some((tenant, endpoint)) = word.split_once('/') {
            if tenant != name {
                return Err(no_endpoint(tenant, endpoint));
            }
            any = true;
        }
    }
    match any {
        true => Ok(()),
        false => Err(request("neither of the two is an endpoint".into())),
    }
}

/// Whom a word names: one, or for `outside` one of each family.
fn peers(word: &str) -> Result<Vec<Peer<'_>>, Fault> {
    if word == "outside" {
        return Ok(SOMEWHERE.map(Peer::Address).into());
    }
    if word.contains('/') {
        return Ok(vec![Peer::Endpoint(word)]);
    }
    match word.parse() {
        Ok(address) => Ok(vec![Peer::Address(address)]),
        Err(_) => Err(request(format!(
            "`{word}` is not TENANT/ENDPOINT, an address or `outside`"
        ))),
    }
}

/// With whom: what is no endpoint's name is, as in a trace, what the beginner's tenant accepted.
fn receivers<'a>(
    world: &World,
    asked: &'a Asked,
    (protocol, port): (u8, u16),
) -> Result<Vec<Peer<'a>>, Fault> {
    let peers = peers(&asked.to)?;
    let made = world.made().map(|(spec, _, intent)| (spec, intent));
    let named = made.filter(|made| asked.to.contains('/') && made.1.endpoint(&asked.to).is_none());
    let Some((made, (_, from))) = named.and_then(|it| Some((it, it.1.endpoint(&asked.from)?)))
    else {
        return Ok(peers);
    };
    let addresses = targets(made, from, &asked.to, protocol, port)?;
    match addresses.is_empty() {
        true => Err(request(format!(
            "{} is of prefixes, each of its endpoints by its own address",
            asked.to
        ))),
        false => Ok(addresses.into_iter().map(Peer::Address).collect()),
    }
}

/// The protocol, and the port or `type << 8 | code`; of a ping those of both families.
pub fn packets(protocol: Option<&str>, port: Option<&str>) -> Result<Vec<(u8, u16)>, Fault> {
    let Some(word) = protocol else {
        return match port {
            None => Ok(vec![echo(false), echo(true)]),
            Some(_) => Err(request("a port needs a protocol".into())),
        };
    };
    let protocol: Protocol = word
        .parse()
        .map_err(|why| request(format!("`{word}` is not a protocol: {why}")))?;
    let Protocol::Number(number) = protocol else {
        return Err(request("one protocol is asked about, not any".into()));
    };
    let v6 = protocol == Protocol::ICMP6;
    let port = match port {
        None if protocol.has_ports() => {
            return Err(request(format!("{protocol} needs a port")));
        }
        None if protocol.is_icmp() => echo(v6).1,
        None => 0,
        Some(text) if protocol.has_ports() => {
            text.parse::<PortRange>()
                .ok()
                .filter(|ports| ports.first == ports.last)
                .ok_or_else(|| request(format!("`{text}` is not a port")))?
                .first
        }
        Some(text) if protocol.is_icmp() => {
            let message: IcmpMessage = text
                .parse()
                .map_err(|why| request(format!("`{text}` is not an ICMP message: {why}")))?;
            let (kind, code) = message
                .numbers(v6)
                .ok_or_else(|| request(format!("{protocol} has no message {text}")))?;
            u16::from_be_bytes([kind, code.unwrap_or(0)])
        }
        Some(_) => return Err(request(format!("protocol {protocol} has no ports"))),
    };
    Ok(vec![(number, port)])
}

/// An echo request (RFC 792, RFC 4443).
fn echo(v6: bool) -> (u8, u16) {
    if v6 { (58, 128 << 8) } else { (1, 8 << 8) }
}

fn request(sentence: String) -> Fault {
    Fault::new(
        "request",
        Whose::User,
        sentence,
        "for example: bulkhead explain red/app1 red/web1 tcp 443",
    )
}

fn unclear(why: Unclear) -> Fault {
    match why {
        Unclear::NoEndpoint(name) => {
            let (tenant, endpoint) = name.split_once('/').unwrap_or((&name, ""));
            no_endpoint(tenant, endpoint)
        }
        Unclear::TwoAddresses => request("neither of the two is an endpoint".into()),
    }
}

fn way(way: &policy::Way, question: &Question<'_>, tenant: Option<&str>) -> Way {
    // Across an agreement a tenant is told what comes of its own end. By what the other side is
    // attached is that one's matter.
    let own = |name: &str| name.split_once('/').is_some_and(|it| Some(it.0) == tenant);
    let side = way.verdicts.iter().find(|verdict| own(&verdict.endpoint));
    let side = side.map(|verdict| verdict.side);
    let alone = side.is_some_and(|side| match side {
        Side::Egress => way.alone[0],
        Side::Ingress => way.alone[1],
    });
    let is_all_told = tenant.is_none() || way.service.is_none();
    let told = |bar: &Bar| match bar {
        _ if is_all_told => true,
        Bar::Crossing | Bar::Protocol => alone,
        Bar::Shut(of) => side == Some(*of),
        _ => !guard!("tenant-explain-bar"),
    };
    // Of one that is not told nothing shows here either.
    let bar = way.bar.filter(told);
    Way {
        source: way.source.to_string(),
        destination: way.destination.to_string(),
        protocol: question.protocol,
        port: question.port,
        allowed: way.allowed,
        answers: way.answers,
        half: false,
        circuits: bar.is_none() && (alone || is_all_told && way.alone.contains(&true)),
        bar: bar.map_or_else(String::new, |bar| barred(bar, way)),
        verdicts: way.verdicts.iter().map(judgement).collect(),
        service: way.service.as_ref().map(|service| Translation {
            agreement: service.agreement,
            tag: service.tag,
            offer: service.offer.clone(),
            offered: service.offered,
            source: service.source.to_string(),
            pool: (service.pool).map_or_else(String::new, |pool| pool.to_string()),
            destination: service.destination.to_string(),
        }),
    }
}

fn barred(bar: Bar, way: &policy::Way) -> String {
    let (from, to) = (way.source, way.destination);
    match bar {
        Bar::Apart(Side::Egress) => format!("{from} has circuits alone, and {to} has none"),
        Bar::Apart(Side::Ingress) => format!("{to} has circuits alone, and {from} has none"),
        Bar::Shut(Side::Egress) => format!("{from} is not open: see its `state` in the spec"),
        Bar::Shut(Side::Ingress) => format!("{to} is not open: see its `state` in the spec"),
        Bar::Protocol => "circuits carry TCP and UDP alone".into(),
        Bar::Crossing => "circuits carry TCP alone across an agreement".into(),
        Bar::Metered => {
            "circuits of who is metered, or has a rate, carry TCP alone, and UDP inside the endpoint"
                .into()
        }
        Bar::Stateless => "circuits are connections: a stateless rule lets none begin".into(),
    }
}

fn judgement(verdict: &policy::Verdict) -> Judgement {
    let place = verdict.decided.place.clone();
    Judgement {
        compartment: verdict.compartment.clone(),
        endpoint: verdict.endpoint.clone(),
        side: match verdict.side {
            Side::Egress => "egress",
            Side::Ingress => "ingress",
        }
        .into(),
        action: match verdict.action {
            Action::Allow => "allow",
            Action::AllowStateless => "allow stateless",
            Action::Deny => "deny",
        }
        .into(),
        by: verdict.decided.by.into(),
        name: verdict.decided.name.clone(),
        place: place.map(|(file, line, column)| Where { file, line, column }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_read_as_a_rule_would_be() {
        let asked = |protocol, port| packets(protocol, port).ok();
        assert_eq!(asked(None, None), Some(vec![(1, 0x0800), (58, 0x8000)]));
        assert_eq!(asked(Some("tcp"), Some("443")), Some(vec![(6, 443)]));
        assert_eq!(asked(Some("icmp"), Some("3/4")), Some(vec![(1, 0x0304)]));
        let too_big = Some("packet-too-big");
        assert_eq!(asked(Some("icmp6"), too_big), Some(vec![(58, 0x0200)]));
        assert_eq!(asked(Some("47"), None), Some(vec![(47, 0)]));
        for (protocol, port) in [
            (None, Some("443")),
            (Some("tcp"), None),
            (Some("tcp"), Some("1-2")),
            (Some("icmp"), too_big),
            (Some("47"), Some("1")),
            (Some("any"), None),
        ] {
            assert_eq!(asked(protocol, port), None, "{protocol:?} {port:?}");
        }
        assert!(peers("nobody").is_err());
        assert_eq!(peers("outside").map(|p| p.len()).ok(), Some(2));
    }
}
