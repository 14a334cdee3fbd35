//! Connections just now, as switches write them into pages that the supervisor made.
//! Every word of a page is an allegation; how many are read is ours to say.

use crate::caller::Viewer;
use crate::circuits;
use crate::names::Names;
use crate::pages::{Counters, word};
use crate::refuse::Failure;
use crate::routes::no_tenant;
use crate::server::{Server, no_endpoint};
use crate::supervisor::Supervisor;
use crate::turns::Kind;
use crate::view;
use crate::world::World;
use api::{Fault, Flow, Flows, Listeners, RuleCount, Rules};
use axum::Json;
use axum::extract::{Path, Query, State};
use command::verbs::{LISTENERS, ListFlows};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;
use telemetry::flows::{COUNT_AT, End, MAGIC, MAGIC_AT, MOST, ROW_WORDS, ROWS_AT, Row, SEEN_AT};
use tokio::task::JoinSet;
use utoipa::IntoParams;

/// A switch of a million connections takes less, also while it is busy.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two looks at a page that is being written.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// All listings of one tenant's endpoints in a compartment that it shares.
const PATIENCE_FOR_ALL: Duration = Duration::from_secs(10);

/// One listing at a time: a switch gives up one that is under way for the next.
static LISTING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Which connections.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Wanted {
    /// `TENANT/ENDPOINT`: only those that it has a side of. Without it all of the host.
    endpoint: Option<String>,
    /// So many at most, the busiest first; 1 to 1000.
    #[serde(default = "hundred")]
    most: u32,
    /// Circuits alone.
    #[serde(default)]
    circuits: bool,
}

fn hundred() -> u32 {
    100
}

/// Where somebody's may be: an endpoint, or (a slot that none has) all of a compartment.
struct Among {
    compartment: u32,
    slot: u32,
    /// Where others have endpoints too: all of its own there.
    own: Option<Vec<u32>>,
    /// With a switch, with circuits.
    switched: bool,
    circuits: bool,
}

/// Those that somebody may see: of the endpoint that is named, or all.
fn among(viewer: &Viewer, world: &World, endpoint: Option<&str>) -> Result<Vec<Among>, Failure> {
    if let Some(name) = endpoint {
        let (tenant, endpoint) = name.split_once('/').unwrap_or((name, ""));
        let found = world
            .endpoint(tenant, endpoint)
            .filter(|_| viewer.sees(tenant))
            .ok_or_else(|| no_endpoint(tenant, endpoint))?;
        return Ok(vec![Among {
            compartment: found.compartment,
            slot: found.slot,
            own: None,
            switched: found.kind != "circuits",
            circuits: found.circuits,
        }]);
    }
    let own = |one: &&api::Compartment| match viewer.tenant() {
        Some(name) => one.tenants.iter().any(|tenant| tenant == name),
        None => true,
    };
    let with = world.with_circuits();
    let all = world.compartments().iter().filter(own);
    let all = all.map(|one| Among {
        compartment: one.id,
        slot: u32::MAX,
        own: viewer
            .tenant()
            .filter(|_| one.tenants.len() > 1)
            .map(|name| slots_of(world, name, one.id)),
        switched: true,
        circuits: with.contains(&one.id),
    });
    Ok(all.collect())
}

fn slots_of(world: &World, tenant: &str, compartment: u32) -> Vec<u32> {
    let all = world.tenants().iter().filter(|one| one.name == tenant);
    let all = all.flat_map(|one| &one.endpoints);
    let own = all.filter(|it| it.compartment == compartment);
    own.map(|it| it.slot).collect()
}

/// Connections just now, the busiest first: packets' by the switches, and circuits, which have
/// `circuit` and are among them; by `circuits` these alone.
#[utoipa::path(get, path = "/v1/flows", params(Wanted),
    responses((status = 200, body = Flows), (status = 404, body = Fault)))]
pub async fn flows(
    viewer: Viewer,
    State(server): State<Arc<Server>>,
    Query(wanted): Query<Wanted>,
) -> Result<Json<Flows>, Failure> {
    let world = server.world.world();
    let most = wanted.most.clamp(1, MOST as u32);
    let among = among(&viewer, &world, wanted.endpoint.as_deref())?.into_iter();
    let asked = among.flat_map(|one| {
        let switched = (one.switched && !wanted.circuits).then_some(0);
        let circuits = one.circuits.then_some(1);
        let of = switched.into_iter().chain(circuits);
        of.map(move |of| {
            let body = list(one.compartment, one.slot, most, of);
            (body, one.own.clone())
        })
    });
    let asked = asked.collect();
    let place = server.place(&viewer, Kind::Look)?;
    let _turn = server.alone(place).await;
    let _alone = LISTING.lock().await;
    let found = collected(&server.supervisor, &world, &viewer, asked, most).await;
    Ok(Json(found))
}

/// How many circuits there are, by compartment and kind. Datagram sockets are none.
pub async fn circuit_counts(server: &Server, world: &World) -> BTreeMap<(String, String), u64> {
    let mut counts = BTreeMap::new();
    let with = world.with_circuits().into_iter();
    let asked: Vec<ListFlows> = with.map(|id| list(id, u32::MAX, MOST as u32, 1)).collect();
    if asked.is_empty() {
        return counts;
    }
    let _alone = LISTING.lock().await;
    for body in asked {
        let Some(listing) = listed(&server.supervisor, &body).await else {
            continue;
        };
        let name = name_of(world, body.compartment);
        let mut count = |kind: &str, more: u64| {
            *counts.entry((name.clone(), kind.to_owned())).or_insert(0) += more;
        };
        // A kind of which there is none is told as such: what is gone from the metrics is unknown.
        for kind in circuits::KINDS {
            count(kind, 0);
        }
        count(
            "unlisted",
            listing.seen.saturating_sub(listing.rows.len() as u64),
        );
        for row in &listing.rows {
            if let Listed::Circuit(row) = row
                && row.id != 0
                && let Some(kind) = circuits::kind(row.carrier)
            {
                count(kind, 1);
            }
        }
    }
    counts
}

/// Which sockets that wait.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Waiting {
    /// `TENANT/ENDPOINT`: only its own. Without it all of the host.
    endpoint: Option<String>,
    /// So many at most; 1 to 1000.
    #[serde(default = "hundred")]
    most: u32,
}

/// Sockets of circuits that wait for whoever comes.
#[utoipa::path(get, path = "/v1/listeners", params(Waiting),
    responses((status = 200, body = Listeners), (status = 404, body = Fault)))]
pub async fn listeners(
    viewer: Viewer,
    State(server): State<Arc<Server>>,
    Query(wanted): Query<Waiting>,
) -> Result<Json<Listeners>, Failure> {
    let world = server.world.world();
    let most = wanted.most.clamp(1, MOST as u32);
    let asked = among(&viewer, &world, wanted.endpoint.as_deref())?;
    let place = server.place(&viewer, Kind::Look)?;
    let _turn = server.alone(place).await;
    let _alone = LISTING.lock().await;
    let mut told = Listeners::default();
    for one in asked.into_iter().filter(|one| one.circuits) {
        let body = list(one.compartment, one.slot, MOST as u32, LISTENERS);
        let Some(listing) = listed_for(&server.supervisor, &body, one.own.as_deref()).await else {
            told.silent.push(name_of(&world, body.compartment));
            continue;
        };
        let rows = listing.rows.iter().map(|row| match row {
            Listed::Circuit(row) => circuits::waiting(row, body.compartment, &world),
            Listed::Flow(_) => None,
        });
        let rows = rows.map(|row| match viewer.tenant() {
            Some(name) => row.filter(|it| view::has(&it.endpoint, name)),
            None => row,
        });
        let (seen, rows) = shown(&viewer, listing.seen, rows);
        told.seen = told.seen.saturating_add(seen);
        told.listeners.extend(rows);
    }
    if let Some(name) = viewer.tenant() {
        told.silent.iter_mut().for_each(|one| name.clone_into(one));
    }
    told.listeners.sort();
    told.listeners.truncate(most as usize);
    Ok(Json(told))
}

fn list(compartment: u32, slot: u32, most: u32, circuits: u32) -> ListFlows {
    ListFlows {
        compartment,
        slot,
        most,
        circuits,
    }
}

async fn collected(
    supervisor: &Arc<Supervisor>,
    world: &World,
    viewer: &Viewer,
    asked: Vec<(ListFlows, Option<Vec<u32>>)>,
    most: u32,
) -> Flows {
    let mut running = JoinSet::new();
    for (body, own) in asked {
        let supervisor = supervisor.clone();
        running.spawn(async move {
            let listing = listed_for(&supervisor, &body, own.as_deref()).await;
            (body.compartment, listing)
        });
    }
    let names = Names::of(world);
    let mut all = Flows::default();
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok((id, Some(listing))) => {
                let rows = listing.rows.iter().map(|row| match row {
                    Listed::Flow(row) => told(row, id, world, &names),
                    Listed::Circuit(row) => circuits::told(row, id, world, &names),
                });
                let rows = rows.map(|row| match viewer.tenant() {
                    Some(name) => view::flow(row?, name),
                    None => row,
                });
                let (seen, rows) = shown(viewer, listing.seen, rows);
                all.seen = all.seen.saturating_add(seen);
                all.flows.extend(rows);
            }
            Ok((id, None)) => all.silent.push(name_of(world, id)),
            Err(_) => {}
        }
    }
    let busy = |flow: &Flow| flow.bytes[0].saturating_add(flow.bytes[1]);
    all.flows.sort_by_key(|flow| {
        let order = std::cmp::Reverse(busy(flow));
        (order, flow.compartment.clone(), flow.source.clone())
    });
    all.flows.truncate(most as usize);
    all.silent.sort();
    if let Some(name) = viewer.tenant() {
        all.silent.iter_mut().for_each(|one| name.clone_into(one));
    }
    all
}

/// The rows that somebody is shown, and how many there are: a tenant counts none that it is not shown.
fn shown<T>(
    viewer: &Viewer,
    seen: u64,
    rows: impl ExactSizeIterator<Item = Option<T>>,
) -> (u64, Vec<T>) {
    let all = rows.len();
    let rows: Vec<T> = rows.flatten().collect();
    let seen = match viewer.tenant() {
        Some(_) => seen.saturating_sub((all - rows.len()) as u64),
        None => seen,
    };
    (seen, rows)
}

/// What a switch or an operator lists. Where that is not all, and `own` says whose alone are shown: what it lists of these,
/// so that others' have none of them left out.
async fn listed_for(
    supervisor: &Supervisor,
    body: &ListFlows,
    own: Option<&[u32]>,
) -> Option<Listing> {
    let all = listed(supervisor, body).await?;
    let Some(own) = own.filter(|_| all.seen > all.rows.len() as u64) else {
        return Some(all);
    };
    let each = async {
        let mut listings = Vec::new();
        for slot in own {
            let body = ListFlows {
                slot: *slot,
                ..*body
            };
            listings.push(listed(supervisor, &body).await?);
        }
        Some(joined(listings))
    };
    tokio::time::timeout(PATIENCE_FOR_ALL, each).await.ok()?
}

/// As one; what is between two of them is in both.
fn joined(listings: Vec<Listing>) -> Listing {
    let mut all = Listing {
        seen: 0,
        rows: Vec::new(),
    };
    let mut known = BTreeSet::new();
    for listing in listings {
        let names: Vec<_> = listing.rows.iter().map(Listed::name).collect();
        let count = listing.rows.len();
        let rows = listing.rows.into_iter().zip(&names);
        let rows = rows.filter(|(_, name)| !known.contains(*name));
        let before = all.rows.len();
        all.rows.extend(rows.map(|(row, _)| row));
        let twice = count - (all.rows.len() - before);
        let seen = listing.seen.saturating_sub(twice as u64);
        all.seen = all.seen.saturating_add(seen);
        // Those that wait at one address are told alike, and are several: all in one listing.
        known.extend(names);
    }
    all
}

/// A listing as it was written.
#[derive(Debug, PartialEq)]
struct Listing {
    seen: u64,
    rows: Vec<Listed>,
}

/// A row of either kind of listing.
#[derive(Clone, Debug, PartialEq)]
enum Listed {
    Flow(Row),
    Circuit(telemetry::circuits::Row),
}

impl Listed {
    /// By what it is known in another listing.
    fn name(&self) -> impl Ord + use<> {
        let (row, id) = match self {
            Listed::Flow(row) => (row, 0),
            Listed::Circuit(row) => (&row.flow, row.id),
        };
        let end = |it: &End| {
            let ports = [it.source_port, it.destination_port];
            (it.slot, it.zone, it.source, it.destination, ports)
        };
        (id, row.protocol, end(&row.a), end(&row.b))
    }
}

/// What a switch answers; `None`: nothing in time.
async fn listed(supervisor: &Supervisor, body: &ListFlows) -> Option<Listing> {
    let (_, fds) = supervisor.query(body).await.ok()?;
    let page = File::from(fds.into_iter().next()?);
    let end = tokio::time::Instant::now() + PATIENCE;
    // Bound: the patience.
    loop {
        if let Some(listing) = read(&page, body.most as usize, body.circuits != 0) {
            return Some(listing);
        }
        if tokio::time::Instant::now() >= end {
            return None;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Reads a page of at most so many rows, of circuits or of a switch's connections; `None`: it is
/// not written yet.
fn read(page: &File, most: usize, circuits: bool) -> Option<Listing> {
    let (magic, words) = match circuits {
        true => (telemetry::circuits::MAGIC, telemetry::circuits::ROW_WORDS),
        false => (MAGIC, ROW_WORDS),
    };
    let mut head = [0; ROWS_AT * 8];
    page.read_exact_at(&mut head, 0).ok()?;
    let head: Vec<u64> = head.chunks_exact(8).map(word).collect();
    if head.get(MAGIC_AT) != Some(&magic) {
        return None;
    }
    let count = usize::try_from(head[COUNT_AT]).unwrap_or(usize::MAX);
    let rows = count.min(most).min(MOST);
    let mut bytes = vec![0; rows * words * 8];
    page.read_exact_at(&mut bytes, (ROWS_AT * 8) as u64).ok()?;
    let rows = bytes.chunks_exact(words * 8).map(|row| match circuits {
        true => Listed::Circuit(telemetry::circuits::Row::of(&words_of(row))),
        false => Listed::Flow(Row::of(&words_of(row))),
    });
    // The place of one that was gone when it was to be read: it is counted no more.
    let rows = rows.filter(|row| !matches!(row, Listed::Flow(row) if row.state == 0));
    Some(Listing {
        seen: head[SEEN_AT],
        rows: rows.collect(),
    })
}

pub fn words_of<const N: usize>(row: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (into, from) in words.iter_mut().zip(row.chunks_exact(8)) {
        *into = word(from);
    }
    words
}

/// A row with its names; `None`: it is none.
pub fn told(row: &Row, compartment: u32, world: &World, names: &Names) -> Option<Flow> {
    let state = flow::State::of(row.state)?;
    let who = |end: &End| match end.zone {
        0 => world
            .name_at(compartment, end.slot)
            .unwrap_or_else(|| format!("slot {}", end.slot)),
        tag => names.tag(tag),
    };
    let place = |address: [u8; 16], port: u16| at(address, port, row.protocol);
    let (a, b) = (&row.a, &row.b);
    let source = place(a.source, a.source_port);
    let destination = place(a.destination, a.destination_port);
    // What the responder sends, the other way round.
    let source_there = place(b.destination, b.destination_port);
    let destination_there = place(b.source, b.source_port);
    Some(Flow {
        compartment: name_of(world, compartment),
        from: who(a),
        to: who(b),
        protocol: protocol(row.protocol),
        translated: source != source_there || destination != destination_there,
        source,
        destination,
        source_there,
        destination_there,
        state: state.slug().into(),
        packets: row.packets,
        bytes: row.bytes,
        silent_ns: row.silent,
        rules: row.rules.map(|rule| names.rule(rule)),
        circuit: None,
    })
}

fn name_of(world: &World, id: u32) -> String {
    world
        .compartment(id)
        .map_or_else(|| format!("compartment {id}"), |found| found.name.clone())
}

/// `10.1.1.10:443`; without a port where the protocol has none. An echo's is its
/// identifier.
pub fn at(address: [u8; 16], port: u16, protocol: u8) -> String {
    let address = IpAddr::V6(Ipv6Addr::from(address)).to_canonical();
    match protocol {
        6 | 17 | 132 | 1 | 58 => SocketAddr::new(address, port).to_string(),
        _ => address.to_string(),
    }
}

/// A protocol's name, or its number.
pub fn protocol(number: u8) -> String {
    match number {
        1 => "icmp".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        58 => "icmp6".into(),
        132 => "sctp".into(),
        other => other.to_string(),
    }
}

/// What each rule of a tenant decided.
#[utoipa::path(get, path = "/v1/rules/{tenant}", params(("tenant" = String, Path)),
    responses((status = 200, body = Rules), (status = 404, body = Fault)))]
pub async fn rules(
    viewer: Viewer,
    State(server): State<Arc<Server>>,
    Path(tenant): Path<String>,
) -> Result<Json<Rules>, Failure> {
    let (world, survey) = server.survey().await;
    let mut all = world.tenants().iter();
    let found = all.find(|one| one.name == tenant);
    let Some(found) = found.filter(|_| viewer.sees(&tenant)) else {
        return Err(no_tenant(&tenant).into());
    };
    let names = Names::of(&world);
    let counters = survey.counters(found.compartment);
    let counts = counters
        .map(|counters| counters.rules())
        .unwrap_or_default();
    let rules = names.rules_of(&tenant).into_iter().map(|number| {
        let counts = counts.get(&number).copied().unwrap_or_default();
        let [connections, packets, denied, bytes, carried, denied_bytes] = counts;
        RuleCount {
            rule: names.rule(number),
            connections,
            packets,
            denied,
            carried,
            bytes,
            denied_bytes,
        }
    });
    let mut rules = Rules {
        rules: rules.collect(),
        compartment: name_of(&world, found.compartment),
        unlogged: counters.map_or(0, Counters::unlogged),
        tenant,
    };
    if let Some(name) = viewer.tenant() {
        let compartment = world.compartment(found.compartment);
        let alone = compartment.is_some_and(|one| one.tenants.len() == 1);
        for count in &mut rules.rules {
            count.rule = view::rule(std::mem::take(&mut count.rule), name);
            // These count for all whom the switch serves.
            if !alone && matches!(count.rule.kind.as_str(), "guardrail" | "default") {
                *count = RuleCount {
                    rule: std::mem::take(&mut count.rule),
                    ..RuleCount::default()
                };
            }
        }
        name.clone_into(&mut rules.compartment);
        rules.unlogged = if alone { rules.unlogged } else { 0 };
    }
    Ok(Json(rules))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;
    use telemetry::flows::bytes_for;

    fn page(words: &[u64]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        for word in words {
            file.write_all(&word.to_le_bytes()).unwrap();
        }
        file
    }

    fn listing(rows: &[Row]) -> Vec<u64> {
        let mut words = vec![0; ROWS_AT];
        words[MAGIC_AT] = MAGIC;
        words[COUNT_AT] = rows.len() as u64;
        words[SEEN_AT] = 9;
        words.extend(rows.iter().flat_map(Row::words));
        words
    }

    #[test]
    fn rows_are_read_as_they_were_written_and_no_more_than_asked_for() {
        let rows: Vec<Row> = (1..4)
            .map(|n| Row {
                protocol: 6,
                state: 3,
                bytes: [n, n],
                ..Row::default()
            })
            .collect();
        let page = page(&listing(&rows));
        let read_back = read(&page, 10, false).unwrap();
        let rows: Vec<Listed> = rows.into_iter().map(Listed::Flow).collect();
        assert_eq!((read_back.seen, &read_back.rows), (9, &rows));
        assert_eq!(read(&page, 2, false).unwrap().rows, rows[..2]);
        assert_eq!(read(&page, 10, true), None, "it is none of circuits");
    }

    #[test]
    fn what_is_between_two_of_a_tenants_is_told_once() {
        let waits = |slot, port| {
            let a = End {
                slot,
                source_port: port,
                ..End::default()
            };
            let flow = Row {
                a,
                b: a,
                ..Row::default()
            };
            Listed::Circuit(telemetry::circuits::Row {
                flow,
                ..Default::default()
            })
        };
        let circuit = |id, bytes| {
            let mut row = telemetry::circuits::Row {
                id,
                ..Default::default()
            };
            row.flow.bytes = [bytes; 2];
            Listed::Circuit(row)
        };
        let listing = |seen, rows| Listing { seen, rows };
        let both = joined(vec![
            listing(7, vec![waits(1, 80), waits(1, 80), circuit(5, 1)]),
            listing(3, vec![circuit(5, 2), waits(2, 80), circuit(6, 0)]),
        ]);
        let all = [
            waits(1, 80),
            waits(1, 80),
            circuit(5, 1),
            waits(2, 80),
            circuit(6, 0),
        ];
        assert_eq!((both.seen, both.rows.as_slice()), (9, all.as_slice()));
    }

    #[test]
    fn what_is_not_written_yet_or_says_too_much_is_not_read() {
        assert_eq!(read(&page(&[0; 100]), 5, false), None);
        assert_eq!(read(&page(&[]), 5, false), None);
        let mut words = listing(&[]);
        words[COUNT_AT] = u64::MAX;
        assert_eq!(read(&page(&words), 5, false), None);
        words.resize(bytes_for(5) / 8, u64::MAX);
        assert_eq!(read(&page(&words), 5, false).unwrap().rows.len(), 5);
    }

    #[test]
    fn both_tuples_of_a_translated_connection_are_told() {
        let end = |source, destination, ports: (u16, u16)| End {
            source: wire(source),
            destination: wire(destination),
            source_port: ports.0,
            destination_port: ports.1,
            ..End::default()
        };
        let row = Row {
            a: end([10, 0, 0, 1], [10, 9, 9, 9], (4000, 80)),
            b: end([10, 1, 1, 1], [192, 0, 2, 1], (80, 5000)),
            protocol: 6,
            state: 3,
            rules: [u32::MAX; 2],
            ..Row::default()
        };
        let flow = told(&row, 1, &World::default(), &Names::default()).unwrap();
        assert!(flow.translated);
        assert_eq!(flow.source, "10.0.0.1:4000");
        assert_eq!(flow.destination, "10.9.9.9:80");
        assert_eq!(flow.source_there, "192.0.2.1:5000");
        assert_eq!(flow.destination_there, "10.1.1.1:80");
        assert_eq!(
            (flow.state.as_str(), flow.protocol.as_str()),
            ("established", "tcp")
        );
    }

    fn wire([a, b, c, d]: [u8; 4]) -> [u8; 16] {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
    }

    proptest! {
        #[test]
        fn any_words_are_told_without_harm(words in proptest::collection::vec(any::<u64>(), 0..200)) {
            let mut words = words;
            if let Some(first) = words.first_mut() {
                *first = MAGIC;
            }
            if let Some(listing) = read(&page(&words), 7, false) {
                prop_assert!(listing.rows.len() <= 7);
                for row in &listing.rows {
                    let Listed::Flow(row) = row else { continue };
                    told(row, 3, &World::default(), &Names::default());
                }
            }
        }
    }
}
