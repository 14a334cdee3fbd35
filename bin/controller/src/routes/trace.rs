//! A packet sent for real, its way and its answer's told step by step.

use super::explain::{SOMEWHERE, packets};
use crate::caller::{Editor, Viewer};
use crate::refuse::Failure;
use crate::server::{Server, no_endpoint};
use crate::tokens::Asked as Limited;
use crate::trace::{At, Walk};
use crate::turns::Kind;
use crate::view;
use crate::world::World;
use ::image::compartment::ROUTE_SUBNET;
use ::image::rules::DEFAULT_RULE;
use ::image::{Aligned, CompartmentImage, MappedCompartment};
use api::{Fault, Names, RuleName, Traced, Traces, Where, Whose};
use axum::Json;
use axum::extract::{Query, State};
use guard::guard;
use policy::{Intent, PortIntent, Side};
use serde::Deserialize;
use spec::{Protocol, Spec, mapped};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use telemetry::trace::LONGEST;
use utoipa::IntoParams;
use wire::address::{MacAddress, is_multicast, unmapped};
use wire::{Probe, Tuple};

/// Source ports that are chosen where none is named: above those that Linux gives to
/// clients (32768 to 60999), so that no connection of the workload's has one.
const OWN_PORTS: core::ops::Range<u16> = 61_000..65_535;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// One trace at a time: a switch has one under way.
static TRACING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Which packet.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Asked {
    /// Who sends it: `TENANT/ENDPOINT`.
    from: String,
    /// To whom: `TENANT/ENDPOINT`, `TENANT/ACCEPTANCE`, an address, or `outside`.
    to: Option<String>,
    /// `tcp`, `udp`, `icmp`, `icmp6`, `sctp` or a number; without it an echo request of
    /// either family.
    protocol: Option<String>,
    /// Destination port of tcp or udp, which need one; of icmp a name, a type, or a type
    /// and a code as `3/4`, without it an echo request.
    port: Option<String>,
    /// Source port of tcp or udp; without it one that no workload has.
    source_port: Option<u16>,
    /// Bytes of the IP packet; without it the least.
    size: Option<u32>,
    /// Instead of all that: the whole Ethernet frame, as hexadecimal digits.
    packet: Option<String>,
    /// Whether the answer is sent too.
    #[serde(default = "yes")]
    answer: bool,
    /// Whether the packet, and the answer, are delivered; else they are held back where they
    /// came out.
    #[serde(default)]
    deliver: bool,
}

fn yes() -> bool {
    true
}

/// Sends a packet for real, and says what became of it. Needs the right to change; a tenant
/// sends from its own endpoints, and is told what is its own.
#[utoipa::path(post, path = "/v1/trace", params(Asked),
    responses((status = 200, body = Traces), (status = 403, body = Fault), (status = 404, body = Fault), (status = 422, body = Fault)))]
pub async fn trace(
    Editor(viewer): Editor,
    State(server): State<Arc<Server>>,
    Query(asked): Query<Asked>,
) -> Result<Json<Traces>, Failure> {
    let (tenant, name) = asked.from.split_once('/').unwrap_or((&asked.from, ""));
    if let Some(own) = viewer.tenant() {
        within(own, &asked)?;
        (server.tokens).share(own, Limited::Change, Instant::now())?;
    }
    let place = server.place(&viewer, Kind::Look)?;
    let world = server.world.world();
    let found = world
        .endpoint(tenant, name)
        .ok_or_else(|| no_endpoint(tenant, name))?;
    let start = At::Switch {
        compartment: found.compartment,
        slot: found.slot,
        tag: 0,
    };
    has_packets(&world, &asked.from)?;
    let frames = frames(&world, &asked)?;
    let _alone = TRACING.lock().await;
    viewer.still(&server.tokens)?;
    let mut walk = Walk::new(&server.supervisor, &world, asked.deliver, viewer.tenant());
    let mut traces = Vec::new();
    let mut failed = None;
    for frame in frames {
        match both(&mut walk, start, frame, asked.answer).await {
            Ok(traced) => traces.push(traced),
            Err(fault) => failed = Some(fault),
        }
    }
    walk.end().await;
    drop(place);
    if let Some(fault) = failed {
        return Err(fault.into());
    }
    let passed = |traced: &Traced| {
        traced.packet.passed() && traced.answer.as_ref().is_none_or(|answer| answer.passed())
    };
    Ok(Json(Traces {
        passed: !traces.is_empty() && traces.iter().all(passed),
        traces,
    }))
}

/// Of an endpoint of circuits alone no packet is seen, however long one waits.
///
/// # Errors
/// It is one.
pub fn has_packets(world: &World, endpoint: &str) -> Result<(), Fault> {
    let port = world.made().and_then(|made| made.2.endpoint(endpoint));
    if port.is_some_and(|(_, port)| port.has_circuits_alone()) && guard!("trace-circuits") {
        return Err(Fault::new(
            "request",
            Whose::User,
            format!("{endpoint} has circuits alone: no packet comes from it"),
            "`bulkhead explain` says what it may connect to, `bulkhead circuits` what it has, `bulkhead why` what it was refused",
        ));
    }
    Ok(())
}

/// A tenant asks from its own endpoint, and by names for what is its own: an endpoint, or
/// what it accepted.
fn within(own: &str, asked: &Asked) -> Result<(), Fault> {
    for word in [Some(asked.from.as_str()), asked.to.as_deref()] {
        if let Some((tenant, name)) = word.and_then(|word| word.split_once('/'))
            && tenant != own
            && guard!("tenant-trace")
        {
            return Err(no_endpoint(tenant, name));
        }
    }
    Ok(())
}

/// A packet's way, and its answer's.
async fn both(
    walk: &mut Walk<'_>,
    start: At,
    frame: Vec<u8>,
    answers: bool,
) -> Result<Traced, Fault> {
    let (packet, out) = walk.send(start, frame).await?;
    let mut traced = Traced {
        packet,
        ..Traced::default()
    };
    let Some((place, frame)) = out.filter(|_| answers) else {
        if answers && traced.packet.passed() && walk.is_tenants() {
            "only its receiver can answer it".clone_into(&mut traced.unanswered);
        }
        return Ok(traced);
    };
    let mut buffer = vec![0; LONGEST];
    match Probe::answer(&frame).and_then(|answer| answer.emit(&mut buffer).ok()) {
        Some(length) => {
            buffer.truncate(length);
            traced.answer = Some(walk.send(place, buffer).await?.0);
        }
        None => traced.unanswered = "nothing would answer this packet".into(),
    }
    Ok(traced)
}

/// The frames that a question is about: one a family.
fn frames(world: &World, asked: &Asked) -> Result<Vec<Vec<u8>>, Fault> {
    if let Some(digits) = &asked.packet {
        return Ok(vec![from_hex(digits)?]);
    }
    let Some(to) = asked.to.as_deref() else {
        return Err(request("to whom? name one, or give the whole frame"));
    };
    let (spec, _, intent) = world.made().ok_or_else(|| {
        Fault::new(
            "not-found",
            Whose::User,
            "nothing is applied",
            "apply a spec first",
        )
    })?;
    let (compartment, from) = intent.endpoint(&asked.from).ok_or_else(|| {
        let (tenant, name) = asked.from.split_once('/').unwrap_or((&asked.from, ""));
        no_endpoint(tenant, name)
    })?;
    let image = world
        .image(compartment.create.id)
        .and_then(|image| MappedCompartment::map(Aligned::copy_of(&image.bytes)).ok())
        .ok_or_else(|| Fault::new("bulkhead", Whose::Bulkhead, "its image does not read", ""))?;
    let mut all = Vec::new();
    for (protocol, port) in words(packets(asked.protocol.as_deref(), asked.port.as_deref()))? {
        let targets = targets((spec, intent), from, to, protocol, port)?;
        for v4 in families(protocol) {
            let of = |list: &[IpAddr]| list.iter().find(|a| a.is_ipv4() == *v4).copied();
            let (Some(source), Some(destination)) = (of(&from.addresses), of(&targets)) else {
                continue;
            };
            all.push(frame(
                &image.image(),
                from,
                source,
                destination,
                (protocol, port),
                asked,
            )?);
        }
    }
    if all.is_empty() {
        return Err(request(&format!(
            "{} and {to} have no address of one family that this protocol is of",
            asked.from
        )));
    }
    Ok(all)
}

fn families(protocol: u8) -> &'static [bool] {
    match Protocol::Number(protocol) {
        Protocol::ICMP => &[true],
        Protocol::ICMP6 => &[false],
        _ => &[true, false],
    }
}

/// The addresses of whom a word names, as the sender's tenant sees them.
pub fn targets(
    (spec, intent): (&Spec, &Intent),
    from: &PortIntent,
    to: &str,
    protocol: u8,
    port: u16,
) -> Result<Vec<IpAddr>, Fault> {
    if to == "outside" {
        return Ok(SOMEWHERE.into());
    }
    if let Ok(address) = to.parse::<IpAddr>() {
        return Ok(vec![address]);
    }
    let Some((tenant, name)) = to.split_once('/') else {
        return Err(request(&format!(
            "`{to}` is not TENANT/ENDPOINT, TENANT/ACCEPTANCE, an address or `outside`"
        )));
    };
    let found = intent.endpoint(to);
    if let Some((_, port)) = found.filter(|(_, port)| port.tenant == from.tenant) {
        return Ok(port.addresses.clone());
    }
    let mut services: Vec<_> = (intent.agreements.iter())
        .filter(|one| one.acceptor == from.tenant)
        .filter(|one| {
            (one.offerer == tenant && one.endpoint == name)
                || (one.acceptor == tenant && one.acceptance == name)
        })
        .collect();
    // Of several, those that the packet is for.
    let offers = |one: &&policy::Agreement| {
        one.protocol == Some(protocol) && one.ports.iter().any(|ports| ports.contains(&port))
    };
    if services.iter().any(offers) {
        services.retain(offers);
    }
    // Where prefixes are routed it is seen as what it is.
    let routed = |address: &&IpAddr| {
        let both = |one: &&policy::Agreement| {
            let sides = [one.offerer.as_str(), one.acceptor.as_str()];
            one.routed.is_some() && sides.contains(&tenant) && sides.contains(&&*from.tenant)
        };
        let agreements = intent.agreements.iter().filter(both);
        let mut beyond = agreements.flat_map(|one| one.beyond(&from.tenant));
        beyond.any(|prefix| prefix.contains(**address))
    };
    let theirs = found.into_iter().flat_map(|(_, port)| &port.addresses);
    let routed: Vec<IpAddr> = theirs.filter(routed).copied().collect();
    match (services.first(), found) {
        (Some(service), _) if !service.addresses.is_empty() => Ok(service.addresses.clone()),
        _ if !routed.is_empty() => Ok(routed),
        (Some(service), _) => Ok(service.addresses.clone()),
        (None, Some(_)) => Err(request(&format!(
            "no agreement joins {}/{} and {to}",
            from.tenant, from.endpoint
        ))),
        (None, None) => Err(nobody(spec, from, (tenant, name))),
    }
}

/// No endpoint has this name, and no agreement: what the sender's own tenant accepts by it nobody offers, or not any more.
fn nobody(spec: &Spec, from: &PortIntent, (tenant, name): (&str, &str)) -> Fault {
    let own = spec
        .tenants
        .iter()
        .filter(|it| it.name.as_str() == from.tenant && from.tenant == tenant);
    let accepts = own
        .flat_map(|it| &it.accepts)
        .find(|it| it.name.as_str() == name);
    match accepts {
        Some(_) => Fault::new(
            "not-found",
            Whose::User,
            format!(
                "{tenant}/{name} is an acceptance of which there is no agreement: it reaches nobody"
            ),
            "`bulkhead status` says what it lacks",
        ),
        None => no_endpoint(tenant, name),
    }
}

fn frame(
    image: &CompartmentImage<'_>,
    from: &PortIntent,
    source: IpAddr,
    destination: IpAddr,
    (protocol, port): (u8, u16),
    asked: &Asked,
) -> Result<Vec<u8>, Fault> {
    let number = number();
    let own = OWN_PORTS.start + (number % u32::from(OWN_PORTS.end - OWN_PORTS.start)) as u16;
    let source_port = match Protocol::Number(protocol).has_ports() {
        true => asked.source_port.unwrap_or(own),
        false => 0,
    };
    let tuple = Tuple {
        source: mapped(source),
        destination: mapped(destination),
        source_port,
        destination_port: port,
        protocol,
    };
    let link = station(image, from, &tuple.destination);
    let mut probe = Probe::first(MacAddress(from.mac), link, tuple, number);
    if let Some(size) = asked.size {
        let most = LONGEST - ETHERNET;
        let size = size as usize;
        if size < probe.least() || size > most {
            return Err(request(&format!(
                "such a packet has from {} to {most} bytes, not {size}",
                probe.least()
            )));
        }
        probe.data = size - probe.least();
    }
    let mut buffer = vec![0; LONGEST];
    let length = probe
        .emit(&mut buffer)
        .map_err(|e| Fault::new("bulkhead", Whose::Bulkhead, e.to_string(), ""))?;
    buffer.truncate(length);
    Ok(buffer)
}

/// A MAC that nobody has: of those for documents (RFC 7042, 2.1.2), made a local one.
const BEYOND: MacAddress = MacAddress([0x02, 0x00, 0x5e, 0x00, 0x53, 0x01]);

/// The MAC that the workload would send to: a neighbour's of its subnet, else the gateway's.
fn station(image: &CompartmentImage<'_>, from: &PortIntent, to: &[u8; 16]) -> MacAddress {
    if is_multicast(to) {
        return match unmapped(to) {
            Some(v4) => MacAddress::of_group4(v4),
            None => MacAddress::of_group6(*to),
        };
    }
    let endpoints = image.endpoints();
    let own = image.endpoint_by_slot(from.create.slot);
    let Some(own) = own.and_then(|index| endpoints.get(index as usize)) else {
        return MacAddress::BROADCAST;
    };
    let neighbour = image.endpoint_by_address(own.subnet, *to);
    if let Some(neighbour) = neighbour.and_then(|index| endpoints.get(index as usize)) {
        return MacAddress(neighbour.mac);
    }
    let Some(subnet) = image.subnets().get(own.subnet as usize) else {
        return MacAddress::BROADCAST;
    };
    let gateways = [mapped(IpAddr::from(subnet.gateway4)), subnet.gateway6];
    let route = image.route(subnet.tenant, *to);
    let on_link = route.is_some_and(|r| r.kind == ROUTE_SUBNET && r.subnet == own.subnet);
    match subnet.segment != 0 && on_link && !gateways.contains(to) {
        // Somebody beyond, in its VLAN: whose MAC is which there, workloads alone know.
        true => BEYOND,
        false => MacAddress(subnet.gateway_mac),
    }
}

fn from_hex(digits: &str) -> Result<Vec<u8>, Fault> {
    let digits: Vec<u8> = digits
        .bytes()
        .filter(|b| !b.is_ascii_whitespace() && *b != b':')
        .collect();
    if let Some(at) = digits.iter().position(|digit| !digit.is_ascii_hexdigit()) {
        let digit = digits.get(at).copied().unwrap_or_default();
        return Err(packet(&format!(
            "digit {} of the packet, `{}`, is not hexadecimal",
            at + 1,
            digit.escape_ascii()
        )));
    }
    if !digits.len().is_multiple_of(2) {
        return Err(packet(&format!(
            "the packet has {} hexadecimal digits, and half a byte at its end",
            digits.len()
        )));
    }
    let byte = |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    let bytes = bytes.unwrap_or_default();
    match bytes.len() {
        0..ETHERNET => Err(packet(&format!(
            "the packet ends after {} of the {ETHERNET} bytes of an Ethernet header: six of the destination's MAC, six of the source's, two of the type",
            bytes.len()
        ))),
        ETHERNET..=LONGEST => Ok(bytes),
        length => Err(packet(&format!(
            "the packet has {length} bytes, and {LONGEST} is the most"
        ))),
    }
}

/// What is wrong with a frame in digits, and what one looks like.
fn packet(sentence: &str) -> Fault {
    Fault::new(
        "request",
        Whose::User,
        sentence,
        "give the whole Ethernet frame from its destination MAC on, without the checksum at its end, as in 02:00:00:00:00:02 02:00:00:00:00:01 0800 45...; `bulkhead capture` shows some; or name protocol and port instead: bulkhead trace red/app1 red/web1 tcp 443",
    )
}

/// A number that the trace before had not: it need not be secret.
fn number() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanoseconds = since.map_or(1, |since| since.as_nanos() as u64);
    (nanoseconds.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

fn request(sentence: &str) -> Fault {
    Fault::new(
        "request",
        Whose::User,
        sentence,
        "for example: bulkhead trace red/app1 red/web1 tcp 443",
    )
}

/// What the numbers in captures are called.
#[utoipa::path(get, path = "/v1/names", responses((status = 200, body = Names), (status = 403, body = Fault)))]
pub async fn names(viewer: Viewer, State(server): State<Arc<Server>>) -> Json<Names> {
    let world = server.world.world();
    let own = viewer.tenant();
    let names = match own {
        Some(own) => crate::names::Names::of_tenant(&world, own),
        None => crate::names::Names::of(&world),
    };
    // Of others' rules no more is told than that the number is none of its own.
    let is_own =
        |rule: &RuleName| own.is_none() || !rule.name.is_empty() || rule.kind == "guardrail";
    let seen = || world.tenants().iter().filter(|one| viewer.sees(&one.name));
    let endpoints = seen().flat_map(|tenant| &tenant.endpoints);
    let default = |tenant: &str| {
        let at = policy::decided(world.made()?, tenant, DEFAULT_RULE, Side::Egress, [0; 16]);
        let (file, line, column) = at.place?;
        let rule = RuleName {
            kind: at.by.to_owned(),
            name: String::new(),
            place: Some(Where { file, line, column }),
        };
        Some(match own {
            Some(own) => view::rule(rule, own),
            None => rule,
        })
    };
    let defaults = seen().filter_map(|t| Some((t.name.clone(), default(&t.name)?)));
    Json(Names {
        defaults: defaults.collect(),
        endpoints: endpoints
            .map(|endpoint| {
                (
                    endpoint.id,
                    format!("{}/{}", endpoint.tenant, endpoint.name),
                )
            })
            .collect(),
        rules: names
            .rules()
            .filter(|(_, rule)| is_own(rule))
            .map(|(number, rule)| (number, rule.clone()))
            .collect(),
    })
}

/// What is wrong with how it is asked, with an example of this verb.
fn words<T>(read: Result<T, Fault>) -> Result<T, Fault> {
    read.map_err(|fault| Fault {
        help: "for example: bulkhead trace red/app1 red/web1 tcp 443".into(),
        ..fault
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_in_digits_is_read_as_people_paste_it() {
        let digits = "02:00:00:00:00:02 02:00:00:00:00:01\n0800 45";
        assert_eq!(from_hex(digits).unwrap().len(), 15);
        for bad in [
            "",
            "02",
            "zz",
            &"0".repeat(29),
            &"0".repeat(2 * LONGEST + 2),
        ] {
            assert!(from_hex(bad).is_err(), "{bad}");
        }
        for (bad, says) in [
            ("00", "after 1 of the 14 bytes"),
            ("", "after 0 of"),
            ("0", "half a byte"),
            (
                &format!("+1{}", "00".repeat(20)),
                "digit 1 of the packet, `+`",
            ),
            (&"00".repeat(LONGEST + 1), "is the most"),
        ] {
            let fault = from_hex(bad).unwrap_err();
            assert!(fault.message.contains(says), "{}", fault.message);
            assert!(fault.help.contains("whole Ethernet frame"));
        }
    }

    #[test]
    fn a_tenant_asks_from_and_for_what_is_its_own() {
        let asked = |from: &str, to: Option<&str>| Asked {
            from: from.to_owned(),
            to: to.map(str::to_owned),
            protocol: None,
            port: None,
            source_port: None,
            size: None,
            packet: None,
            answer: true,
            deliver: false,
        };
        for to in [None, Some("red/b"), Some("10.0.0.1"), Some("outside")] {
            assert!(within("red", &asked("red/a", to)).is_ok());
        }
        for (from, to) in [("blue/a", None), ("red/a", Some("blue/a"))] {
            assert!(within("red", &asked(from, to)).is_err());
        }
    }

    #[test]
    fn whom_a_word_names_is_seen_as_its_tenant_sees_it() {
        let text = include_str!("../../../../examples/agreement.yaml");
        let world = World::compile("a.yaml", text.as_bytes(), &World::default()).unwrap();
        let (spec, _, intent) = world.made().unwrap();
        let agreement = &intent.agreements[0];
        let user = intent
            .ports()
            .find(|(_, port)| port.tenant == agreement.acceptor)
            .unwrap()
            .1;
        let target = |to: &str| {
            let port = *agreement.ports[0].start();
            targets((spec, intent), user, to, agreement.protocol.unwrap(), port)
        };
        let by_endpoint = format!("{}/{}", agreement.offerer, agreement.endpoint);
        let by_name = format!("{}/{}", agreement.acceptor, agreement.acceptance);
        for to in [by_endpoint, by_name] {
            assert_eq!(target(&to).unwrap(), agreement.addresses, "{to}");
        }
        let own = format!("{}/{}", user.tenant, user.endpoint);
        assert_eq!(target(&own).unwrap(), user.addresses);
        assert_eq!(target("outside").unwrap().len(), 2);
        assert!(target("nobody").is_err() && target("no/body").is_err());
        let asked = |size, to: &str| Asked {
            from: own.clone(),
            to: Some(to.to_owned()),
            protocol: Some("udp".into()),
            port: Some("53".into()),
            source_port: None,
            size,
            packet: None,
            answer: true,
            deliver: false,
        };
        let frames = |size| super::frames(&world, &asked(size, "192.0.2.1"));
        let built = frames(Some(500)).unwrap();
        assert_eq!((built.len(), built[0].len()), (1, 514));
        let port = u16::from_be_bytes([built[0][34], built[0][35]]);
        assert!(OWN_PORTS.contains(&port));
        assert!(frames(Some(20)).is_err() && frames(Some(20_000)).is_err());
    }
}
