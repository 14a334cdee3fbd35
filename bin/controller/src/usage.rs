//! What was used: counters' differences, added up by the hour in the store.
//!
//! A counter's last value is in the store with the sum it went into, in one write: over
//! restarts of anybody nothing is counted twice, and what is lost is what a page that
//! is gone (a compartment that was removed, a host that went down) had counted since.

mod agreed;

use crate::caller::Viewer;
use crate::happenings::{Happenings, now_ms};
use crate::names::Names;
use crate::pages::Counters;
use crate::refuse::Failure;
use crate::server::Server;
use crate::steps::{Key, Object};
use crate::survey::Survey;
use crate::turns::{Kind, Rank};
use crate::view;
use crate::world::World;
use agreed::agreed;
use api::{Fault, Usage, UsageRow, Whose};
use axum::Json;
use axum::extract::{Query, State};
use command::verbs::{ENDPOINT_VHOST, FABRIC};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use store::{Seen, SeenTarget};
use telemetry::counters::Counter;
use utoipa::IntoParams;

/// A switch's slot toward the fabric.
const CHANNEL: u32 = 0;
/// Seconds of one sum.
const HOUR: u64 = 3600;

/// Of when, and whose.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Wanted {
    /// Hours that begin from here on, seconds since 1970. Default: all that is kept.
    #[serde(default)]
    from: u64,
    /// Hours that begin before this, seconds since 1970. Default: all.
    #[serde(default = "for_ever")]
    to: u64,
    /// Only this tenant.
    tenant: Option<String>,
}

fn for_ever() -> u64 {
    u64::MAX
}

/// What was used, by tenant and endpoint.
#[utoipa::path(get, path = "/v1/usage", params(Wanted), responses((status = 200, body = Usage), (status = 404, body = Fault), (status = 422, body = Fault)))]
pub async fn usage(
    viewer: Viewer,
    State(server): State<Arc<Server>>,
    Query(wanted): Query<Wanted>,
) -> Result<Json<Usage>, Failure> {
    if wanted.from > wanted.to {
        return Err(Failure(Fault::new(
            "request",
            Whose::User,
            "the span of time ends before it begins",
            "`from` is the earlier one, `to` the later",
        )));
    }
    let place = server.place(&viewer, Kind::Look)?;
    let world = server.world.world();
    let survey = Survey::take(&server.supervisor, &world).await;
    let mut applier = server.look(place).await;
    applier.account(&world, &survey).await?;
    let hours = applier.usage(wanted.from, wanted.to)?;
    drop(applier);
    if let Some(name) = &wanted.tenant {
        // One that is no more has its sums.
        let mut used = hours.iter().flat_map(|(_, rows)| rows);
        let is = world.tenants().iter().any(|one| one.name == *name)
            || used.any(|row| row.tenant == *name);
        if !(is && viewer.sees(name)) {
            return Err(Failure(Fault::new(
                "not-found",
                Whose::User,
                format!("there is no tenant {name}, and nothing of it is kept of that time"),
                "`bulkhead status` lists them",
            )));
        }
    }
    let first = hours.first().map_or(wanted.from, |(hour, _)| *hour);
    let last = hours.last().map_or(wanted.from, |(hour, _)| hour + HOUR);
    let rows = hours.into_iter().flat_map(|(_, rows)| rows);
    let rows = rows.filter(|row| {
        let wanted = wanted.tenant.as_ref();
        wanted.is_none_or(|name| *name == row.tenant) && viewer.sees(&row.tenant)
    });
    let rows = rows.map(|row| match viewer.tenant() {
        Some(_) => view::usage(row),
        None => row,
    });
    let mut rows = summed(rows);
    let endpoints = world.tenants().iter().flat_map(|tenant| &tenant.endpoints);
    let uncounted = endpoints.filter(|it| it.counters.uncounted);
    let uncounted: BTreeSet<(&str, &str)> = uncounted.map(|it| (&*it.tenant, &*it.name)).collect();
    for row in &mut rows {
        row.uncounted = uncounted.contains(&(&*row.tenant, &*row.endpoint));
    }
    Ok(Json(Usage {
        from_s: first,
        to_s: last,
        rows,
    }))
}

/// Adds up at an interval; never ends.
pub async fn keep(server: &Server, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let (world, survey) = server.survey().await;
        let mut applier = server.applier.turn(Rank::Host).await;
        // An apply went by meanwhile: it has accounted itself.
        if Arc::ptr_eq(&world, &server.world.world()) {
            // A store that cannot be written says so where it matters; the counters wait.
            let _ = applier.account(&world, &survey).await;
        }
    }
}

/// One row a name, the tenant's own before its endpoints'.
pub fn summed(rows: impl Iterator<Item = UsageRow>) -> Vec<UsageRow> {
    let mut all: BTreeMap<[String; 4], UsageRow> = BTreeMap::new();
    for row in rows {
        let name = row.name();
        match all.get_mut(&name) {
            Some(sum) => sum.add(&row),
            None => drop(all.insert(name, row)),
        }
    }
    all.into_values().collect()
}

/// The beginning of the hour now.
pub fn hour() -> u64 {
    now_ms() / 1000 / HOUR * HOUR
}

/// What was used since `seen`, and what is seen now.
pub fn since(
    seen: &Seen,
    world: &World,
    survey: &Survey,
    happenings: &Happenings,
) -> (Vec<UsageRow>, Seen) {
    let mut now = Seen::default();
    let mut rows = Vec::new();
    let names = Names::of(world);
    let fabric = survey.counters(FABRIC);
    let fabric_page = survey.pages(FABRIC).map(|pages| pages.identity());
    for compartment in world.compartments() {
        let id = compartment.id;
        let before = seen.targets.get(&id);
        let looked = survey.counters(id).zip(survey.pages(id));
        let Some(((counters, pages), inspect)) = looked.zip(survey.inspected(id)) else {
            // Nobody says anything of it just now: it waits.
            now.targets
                .extend(before.map(|before| (id, before.clone())));
            continue;
        };
        let mut target = SeenTarget {
            page: pages.identity(),
            fabric_page: fabric_page.clone().unwrap_or_default(),
            time_s: now_ms() / 1000,
            pid: inspect.pid,
            cpu_ns: inspect.cpu_ns,
            spent_ns: inspect.spent_ns,
            restarts: inspect.restarts,
            own: crossing(counters, 0),
            crossed: fabric.map_or([0; 4], |fabric| crossing(fabric, id)),
            slots: BTreeMap::new(),
            work: BTreeMap::new(),
            rules: counters.rules_of_packets().into_iter().collect(),
            begun: BTreeMap::new(),
            of_circuits: counters.rules_of_circuits().into_iter().collect(),
        };
        let same = before.filter(|before| before.page == target.page);
        let endpoints = world.tenants().iter().flat_map(|tenant| &tenant.endpoints);
        let (mut parts, mut work, mut room) = (Vec::new(), Vec::new(), Vec::new());
        let worked = |slot, target: &mut SeenTarget| {
            let is = counters.counter(slot, Counter::Work);
            target.work.insert(slot, is);
            let was = same.and_then(|same| same.work.get(&slot));
            let [more] = grown([was.copied().unwrap_or_default()], [is]);
            more
        };
        let of_fabric = worked(CHANNEL, &mut target);
        for endpoint in endpoints.filter(|endpoint| endpoint.compartment == id) {
            let slot = endpoint.slot;
            let is = of_slot(counters, slot);
            let was = same.and_then(|same| same.slots.get(&slot));
            let [
                sent_packets,
                sent_bytes,
                got_packets,
                got_bytes,
                connections,
            ] = grown(was.copied().unwrap_or_default(), is);
            target.slots.insert(slot, is);
            let begun = counters.begun(slot);
            let was = same.and_then(|same| same.begun.get(&endpoint.id));
            let [by_circuits] = grown([was.copied().unwrap_or_default()], [begun]);
            target.begun.insert(endpoint.id, begun);
            let connections = connections.saturating_add(by_circuits);
            work.push((worked(slot, &mut target), got_packets));
            room.push(reserved(world, id, slot));
            parts.push(UsageRow {
                tenant: endpoint.tenant.clone(),
                endpoint: endpoint.name.clone(),
                sent_packets,
                sent_bytes,
                got_packets,
                got_bytes,
                connections,
                ..UsageRow::default()
            });
        }
        let same_fabric = before.filter(|before| before.fabric_page == target.fabric_page);
        let crossed = match fabric {
            Some(_) => grown(
                same_fabric.map_or([0; 4], |before| before.crossed),
                target.crossed,
            ),
            None => {
                // Not seen: it is as it was.
                if let Some(before) = before {
                    target.crossed = before.crossed;
                    target.fabric_page = before.fabric_page.clone();
                }
                [0; 4]
            }
        };
        if let (Some(same), Some(_), Some(_)) = (same, same_fabric, fabric) {
            let own = grown(same.own, target.own);
            let restarted = same.restarts != target.restarts;
            let capacity = capacity(world, id);
            if let Some(difference) = difference(own, crossed, capacity, restarted) {
                happenings.told(id, "usage-difference", &compartment.name, difference);
            }
        }
        let cpu_ns = processor(before, &target);
        let held = same.map_or(0, |same| target.time_s.saturating_sub(same.time_s));
        let whole = UsageRow {
            sent_packets: crossed[0],
            sent_bytes: crossed[1],
            got_packets: crossed[2],
            got_bytes: crossed[3],
            cpu_ns,
            memory_byte_seconds: inspect.memory.saturating_mul(held),
            ..UsageRow::default()
        };
        let cpu = divided(cpu_ns, &weights(&work, of_fabric));
        let memory = divided(whole.memory_byte_seconds, &room);
        for ((part, cpu), memory) in parts.iter_mut().zip(cpu).zip(memory) {
            (part.cpu_ns, part.memory_byte_seconds) = (cpu, memory);
        }
        rows.extend(shared(&compartment.tenants, &whole, &parts));
        rows.extend(parts);
        let was = same.map(|same| &same.rules);
        let compartment = (compartment.name.as_str(), &compartment.tenants[..]);
        rows.extend(by_rule(compartment, &names, was, &target.rules));
        let was = same.map(|same| &same.of_circuits);
        rows.extend(by_rule(compartment, &names, was, &target.of_circuits));
        now.targets.insert(id, target);
    }
    rows.extend(agreed(
        seen,
        &mut now,
        world,
        fabric.zip(fabric_page.as_deref()),
    ));
    rows.retain(|row| !row.is_nothing());
    (rows, now)
}

/// What each rule let pass and denied since then.
fn by_rule(
    (compartment, tenants): (&str, &[String]),
    names: &Names,
    was: Option<&BTreeMap<u32, [u64; 6]>>,
    is: &BTreeMap<u32, [u64; 6]>,
) -> Vec<UsageRow> {
    let of_all = match tenants {
        [one] => one,
        _ => compartment,
    };
    let row = |(number, is): (&u32, &[u64; 6])| {
        let was = was.and_then(|was| was.get(number)).copied();
        let [
            connections,
            alone,
            denied_packets,
            bytes,
            carried,
            denied_bytes,
        ] = grown(was.unwrap_or_default(), *is);
        let rule = names.rule(*number);
        let (tenant, name) = match (rule.name.split_once('/'), rule.kind.as_str()) {
            (Some((tenant, name)), _) => (tenant, format!("{} {name}", rule.kind)),
            (None, "guardrail") => (of_all, format!("guardrail {}", rule.name)),
            (None, "default") => (of_all, "default".to_owned()),
            // Its last connections end after it.
            (None, _) => (of_all, "rules that are no more".to_owned()),
        };
        UsageRow {
            tenant: tenant.to_owned(),
            rule: name,
            sent_packets: alone.saturating_add(carried),
            sent_bytes: bytes,
            connections,
            denied_packets,
            denied_bytes,
            ..UsageRow::default()
        }
    };
    is.iter().map(row).collect()
}

/// Parts of a switch's processor time: what it took to handle what each endpoint sent, and
/// of what it took to handle what came from the fabric by the packets that each got.
fn weights(work: &[(u64, u64)], of_fabric: u64) -> Vec<u128> {
    let got: u128 = work.iter().map(|(_, got)| u128::from(*got)).sum();
    let all = work.iter().map(|(own, to)| {
        let of_fabric = u128::from(of_fabric) * u128::from(*to);
        u128::from(*own) + of_fabric.checked_div(got).unwrap_or(0)
    });
    all.collect()
}

/// Bytes that an endpoint may take of its switch's memory: its ring, its connections, and a
/// page of tables and counters.
fn reserved(world: &World, compartment: u32, slot: u32) -> u128 {
    const PAGE: u128 = 4096;
    let ports = world.made().map(|(_, _, intent)| intent.ports());
    let mut ports = ports.into_iter().flatten();
    let found =
        ports.find(|(_, port)| (port.create.compartment, port.create.slot) == (compartment, slot));
    found.map_or(PAGE, |(_, port)| {
        let connections = u128::from(port.connections) * flow::connections::BYTES as u128;
        // A machine's memory is its own.
        let ring = match port.create.kind {
            ENDPOINT_VHOST => 0,
            _ => port.create.capacity,
        };
        PAGE + u128::from(ring) + connections
    })
}

/// A figure in parts by their weights, equal ones where none weighs anything. Nothing is
/// lost by rounding.
fn divided(figure: u64, weights: &[u128]) -> Vec<u64> {
    let equal = weights.iter().all(|weight| *weight == 0);
    let weight = |weight: &u128| if equal { 1 } else { *weight };
    let all: u128 = weights.iter().map(weight).sum();
    let upto = |n: u128| u128::from(figure) * n / all.max(1);
    let mut before: u128 = 0;
    let parts = weights.iter().map(|one| {
        let from = upto(before);
        before += weight(one);
        u64::try_from(upto(before) - from).unwrap_or(u64::MAX)
    });
    parts.collect()
}

/// A compartment's own figures among its tenants: what crossed the fabric by the packets of
/// their endpoints in this time, equally where there were none; time and memory as their
/// endpoints have them, equally where there are none.
fn shared(tenants: &[String], whole: &UsageRow, parts: &[UsageRow]) -> Vec<UsageRow> {
    fn of<'a>(parts: &'a [UsageRow], tenant: &'a str) -> impl Iterator<Item = &'a UsageRow> {
        parts.iter().filter(move |part| part.tenant == tenant)
    }
    let sums = |figure: fn(&UsageRow) -> u64| -> Vec<u128> {
        let sum = |tenant: &String| of(parts, tenant).map(|part| u128::from(figure(part))).sum();
        tenants.iter().map(sum).collect()
    };
    let packets = sums(|part| part.sent_packets.saturating_add(part.got_packets));
    let by_packets = |figure: u64| divided(figure, &packets);
    let columns = [
        by_packets(whole.sent_packets),
        by_packets(whole.sent_bytes),
        by_packets(whole.got_packets),
        by_packets(whole.got_bytes),
        divided(whole.cpu_ns, &sums(|part| part.cpu_ns)),
        divided(
            whole.memory_byte_seconds,
            &sums(|part| part.memory_byte_seconds),
        ),
    ];
    let row = |(at, tenant): (usize, &String)| {
        let [
            sent_packets,
            sent_bytes,
            got_packets,
            got_bytes,
            cpu_ns,
            memory_byte_seconds,
        ] = columns
            .each_ref()
            .map(|column| column.get(at).copied().unwrap_or_default());
        UsageRow {
            tenant: tenant.clone(),
            sent_packets,
            sent_bytes,
            got_packets,
            got_bytes,
            connections: of(parts, tenant)
                .map(|part| part.connections)
                .fold(0, u64::saturating_add),
            cpu_ns,
            memory_byte_seconds,
            ..UsageRow::default()
        }
    };
    tenants.iter().enumerate().map(row).collect()
}

/// What each counter grew by. One that went back began anew.
fn grown<const N: usize>(was: [u64; N], is: [u64; N]) -> [u64; N] {
    std::array::from_fn(|at| match is[at].checked_sub(was[at]) {
        Some(more) => more,
        None => is[at],
    })
}

/// Processor time since then: of the process there, and of those that died since.
fn processor(before: Option<&SeenTarget>, now: &SeenTarget) -> u64 {
    let Some(before) = before.filter(|before| before.page == now.page) else {
        return now.cpu_ns.saturating_add(now.spent_ns);
    };
    // A supervisor that came back knows of no dead.
    let spent = now
        .spent_ns
        .checked_sub(before.spent_ns)
        .unwrap_or(now.spent_ns);
    if before.pid == now.pid {
        return now
            .cpu_ns
            .saturating_sub(before.cpu_ns)
            .saturating_add(spent);
    }
    // The one before is among the dead, with what it was counted for already.
    now.cpu_ns
        .saturating_add(spent.saturating_sub(before.cpu_ns))
}

/// What a switch says of its channel to the fabric, and the fabric of the same, where
/// they differ by more than can be on the way. Both are (packets, bytes) from the
/// compartment and to it.
fn difference(own: [u64; 4], fabric: [u64; 4], capacity: u64, restarted: bool) -> Option<String> {
    // What was on the way at each end of the time; a death may lose as much again. And
    // the two pages are not read at one moment.
    let slack = capacity.saturating_mul(if restarted { 8 } else { 4 });
    for (way, own, fabric) in [("sent", own[1], fabric[1]), ("got", own[3], fabric[3])] {
        if own.abs_diff(fabric) > slack {
            return Some(format!(
                "its switch says that it {way} {own} bytes by the fabric, the fabric says {fabric}: the fabric's figure is taken"
            ));
        }
    }
    None
}

/// Bytes of a compartment's channel in each direction.
fn capacity(world: &World, id: u32) -> u64 {
    match world.objects().get(&Key::Compartment(id)) {
        Some(Object::Compartment(body)) => body.capacity.into(),
        _ => 0,
    }
}

/// Of a slot of the fabric's page, or slot 0 of a switch's: what came from the
/// compartment, and what went to it.
fn crossing(counters: &Counters, slot: u32) -> [u64; 4] {
    let of = |which| counters.counter(slot, which);
    let (rx, tx) = (
        [of(Counter::RxSegments), of(Counter::RxBytes)],
        [of(Counter::TxSegments), of(Counter::TxBytes)],
    );
    let ([a, b], [c, d]) = match slot {
        // What a switch sends to its slot 0 the fabric receives.
        0 => (tx, rx),
        _ => (rx, tx),
    };
    [a, b, c, d]
}

fn of_slot(counters: &Counters, slot: u32) -> [u64; 5] {
    [
        Counter::RxSegments,
        Counter::RxBytes,
        Counter::TxSegments,
        Counter::TxBytes,
        Counter::Connections,
    ]
    .map(|which| counters.counter(slot, which))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn target(pid: u32, cpu_ns: u64, spent_ns: u64) -> SeenTarget {
        SeenTarget {
            page: "one".into(),
            pid,
            cpu_ns,
            spent_ns,
            ..SeenTarget::default()
        }
    }

    #[test]
    fn processor_time_is_counted_once_over_deaths() {
        let before = target(1, 100, 0);
        assert_eq!(processor(None, &before), 100);
        assert_eq!(processor(Some(&before), &target(1, 130, 0)), 30);
        // It died at 150, its successor has 20.
        assert_eq!(processor(Some(&before), &target(2, 20, 150)), 70);
        // A supervisor that came back: the dead are forgotten, the living is not.
        assert_eq!(processor(Some(&target(2, 20, 150)), &target(2, 25, 0)), 5);
        let other = SeenTarget {
            page: "another".into(),
            ..target(1, 130, 5)
        };
        assert_eq!(processor(Some(&before), &other), 135);
    }

    #[test]
    fn a_rules_row_is_its_tenants_and_one_of_several_tenants_nobodys() {
        let spec = include_bytes!("../../../examples/policy.yaml");
        let world = World::compile("a.yaml", spec, &World::default()).unwrap();
        let names = Names::of(&world);
        let (number, rule) = names.rules().find(|(_, rule)| rule.kind == "rule").unwrap();
        let (tenant, name) = rule.name.split_once('/').unwrap();
        let default = ::image::rules::DEFAULT_RULE;
        let is = BTreeMap::from([
            (number, [9, 8, 7, 6000, 5, 400]),
            (default, [1, 0, 0, 0, 0, 0]),
            (default - 1, [1, 0, 0, 0, 0, 0]),
        ]);
        let was = BTreeMap::from([(number, [1, 1, 1, 1000, 1, 100])]);
        let both = [tenant.to_owned(), "other".to_owned()];
        let rows = by_rule(("zone:z", &both), &names, Some(&was), &is);
        let find = |name: &str| rows.iter().find(|row| row.rule == name).unwrap();
        let own = find(&format!("rule {name}"));
        assert_eq!((own.tenant.as_str(), own.endpoint.as_str()), (tenant, ""));
        assert_eq!((own.sent_packets, own.sent_bytes), (7 + 4, 5000));
        assert_eq!(
            (own.connections, own.denied_packets, own.denied_bytes),
            (8, 6, 300)
        );
        assert_eq!(find("default").tenant, "zone:z");
        assert_eq!(find("rules that are no more").tenant, "zone:z");
        let rows = by_rule((tenant, &both[..1]), &names, None, &is);
        assert!(rows.iter().all(|row| row.tenant == tenant), "{rows:?}");
    }

    #[test]
    fn what_is_on_the_way_is_no_difference() {
        assert_eq!(
            difference([0, 5000, 0, 0], [0, 1000, 0, 4000], 1000, false),
            None
        );
        assert!(difference([0, 5001, 0, 0], [0, 1000, 0, 0], 1000, false).is_some());
        assert!(difference([0, 0, 0, 0], [0, 0, 0, 4001], 1000, false).is_some());
        assert_eq!(difference([0, 0, 0, 0], [0, 0, 0, 4001], 1000, true), None);
    }

    proptest! {
        #[test]
        fn shares_add_up(
            work in proptest::collection::vec((0_u64..1 << 40, 0_u64..1 << 40), 1..6),
            of_fabric in 0_u64..1 << 50,
            cpu_ns in any::<u64>(),
        ) {
            let tenants: Vec<String> = (0..work.len()).map(|n| format!("t{n}")).collect();
            let cpu = divided(cpu_ns, &weights(&work, of_fabric));
            let parts: Vec<UsageRow> = tenants.iter().zip(&work).zip(cpu).map(|((tenant, (_, got)), cpu_ns)| UsageRow {
                tenant: tenant.clone(),
                endpoint: "e".into(),
                got_packets: *got,
                connections: 1,
                cpu_ns,
                ..UsageRow::default()
            }).collect();
            let whole = UsageRow { cpu_ns, got_bytes: 77, ..UsageRow::default() };
            let rows = shared(&tenants, &whole, &parts);
            let all = |of: fn(&UsageRow) -> u64, rows: &[UsageRow]| rows.iter().map(|row| u128::from(of(row))).sum::<u128>();
            prop_assert_eq!(all(|row| row.cpu_ns, &parts), u128::from(cpu_ns));
            prop_assert_eq!(all(|row| row.cpu_ns, &rows), u128::from(cpu_ns));
            prop_assert_eq!(all(|row| row.got_bytes, &rows), 77);
            // Each tenant has what its one endpoint has.
            prop_assert!(cpu_ns == 0 || rows.iter().zip(&parts).all(|(row, part)| row.cpu_ns == part.cpu_ns && row.connections == 1));
            let any = work.iter().any(|(own, _)| *own > 0);
            let idle = work.iter().zip(&parts).filter(|(work, _)| **work == (0, 0));
            prop_assert!(!any || idle.into_iter().all(|(_, row)| row.cpu_ns == 0));
        }

        #[test]
        fn sums_equal_the_counters_whatever_they_did(steps in proptest::collection::vec((0_u64..1 << 30, any::<bool>()), 1..30)) {
            // A counter that grows, and begins anew now and then, is never counted twice.
            let (mut counter, mut was, mut sum, mut truth) = (0_u64, 0_u64, 0_u64, 0_u64);
            for (more, anew) in steps {
                if anew {
                    counter = 0;
                }
                counter += more;
                truth += more;
                let [more] = grown([was], [counter]);
                sum += more;
                was = counter;
            }
            prop_assert!(sum <= truth);
        }
    }
}
