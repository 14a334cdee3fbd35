//! To look: nothing here changes anything.

use crate::caller::{Reader, Viewer};
use crate::flows;
use crate::metrics;
use crate::names::Names;
use crate::refuse::Failure;
use crate::revoked::{concerning, revoked};
use crate::server::{Server, no_endpoint};
use crate::stated::{halves, unaccepted};
use crate::survey::{Survey, hex};
use crate::turns::Kind;
use crate::view;
use crate::why::{Known, judge};
use crate::world::World;
use api::{Endpoint, Fault, Proof, RuleName, Status, Where, Whose, Why};
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use command::verbs::FABRIC;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use telemetry::drops::DropReason;
use telemetry::recorder::{Event, EventKind};
use telemetry::rules::{Logged, NO_RULE};
use utoipa::IntoParams;

type From = State<Arc<Server>>;

/// Everything at a glance.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = Status), (status = 403, body = Fault)))]
pub async fn status(viewer: Viewer, State(server): From) -> Json<Status> {
    let (world, survey, closed) = server.ports().await;
    let health = server.world.health();
    let fabric = survey.fabric();
    let degraded = match health.degraded.as_str() {
        "" => health.drift,
        _ => health.degraded,
    };
    let health_sentence = match (degraded.is_empty(), fabric.state.as_str()) {
        (false, _) => degraded,
        (true, "unknown") => "the supervisor does not answer; what runs goes on running".to_owned(),
        (true, _) => "ok".to_owned(),
    };
    let status = Status {
        version: env!("CARGO_PKG_VERSION").into(),
        health: health_sentence,
        weaker: server.weaker.clone(),
        epoch: world.epoch(),
        source: world.source().into(),
        digest: world.digest().into(),
        undertaking: health.undertaking,
        history: health.history,
        compartments: survey.compartments(&world),
        tenants: survey.tenants(&world, &closed),
        uplinks: survey.uplinks(&world),
        agreements: agreements(&world),
        halves: halves(&world, viewer.tenant()),
        revoked: revoked(&world, viewer.tenant()),
        fabric,
    };
    Json(match viewer.tenant() {
        Some(name) => view::status(status, name),
        None => status,
    })
}

fn agreements(world: &World) -> Vec<api::Agreement> {
    let Some((spec, _, intent)) = world.made() else {
        return Vec::new();
    };
    let tenants: BTreeMap<&str, &spec::Tenant> = (spec.tenants.iter())
        .map(|tenant| (tenant.name.as_str(), tenant))
        .collect();
    let told = intent.agreements.iter().map(|one| api::Agreement {
        name: crate::names::agreement(one),
        offerer: one.offerer.clone(),
        acceptor: one.acceptor.clone(),
        rings: one.rings,
        rings_asked_by: match one.rings {
            true => String::new(),
            false => asks_alone(&tenants, one).unwrap_or_default().to_owned(),
        },
    });
    told.collect()
}

/// Which side of an agreement without rings asks for them.
fn asks_alone<'a>(
    tenants: &BTreeMap<&str, &spec::Tenant>,
    one: &'a policy::Agreement,
) -> Option<&'a str> {
    let mut offers = tenants.get(&*one.offerer)?.offers.iter();
    let offer = offers.find(|it| it.name.as_str() == one.offer)?;
    if offer.rings() {
        return Some(&one.offerer);
    }
    let mut accepts = tenants.get(&*one.acceptor)?.accepts.iter();
    let accept = accepts.find(|it| it.name.as_str() == one.acceptance)?;
    accept.rings().then_some(&*one.acceptor)
}

/// One endpoint.
#[utoipa::path(get, path = "/v1/endpoints/{tenant}/{endpoint}", params(("tenant" = String, Path), ("endpoint" = String, Path)),
    responses((status = 200, body = Endpoint), (status = 404, body = Fault)))]
pub async fn endpoint(
    viewer: Viewer,
    State(server): From,
    Path((tenant, endpoint)): Path<(String, String)>,
) -> Result<Json<Endpoint>, Failure> {
    if !viewer.sees(&tenant) {
        return Err(no_endpoint(&tenant, &endpoint).into());
    }
    let (world, survey, closed) = server.ports().await;
    let mut found = world
        .endpoint(&tenant, &endpoint)
        .cloned()
        .ok_or_else(|| no_endpoint(&tenant, &endpoint))?;
    survey.fill(&mut found, &closed);
    Ok(Json(match viewer.tenant() {
        Some(_) => view::endpoint(found),
        None => found,
    }))
}

/// Why an endpoint does, or does not, work: all that is known of it, judged.
#[utoipa::path(get, path = "/v1/why/{tenant}/{endpoint}", params(("tenant" = String, Path), ("endpoint" = String, Path)),
    responses((status = 200, body = Why), (status = 404, body = Fault)))]
pub async fn why(
    viewer: Viewer,
    State(server): From,
    Path((tenant, name)): Path<(String, String)>,
) -> Result<Json<Why>, Failure> {
    if !viewer.sees(&tenant) {
        return Err(no_endpoint(&tenant, &name).into());
    }
    let (world, survey, closed) = server.ports().await;
    let mut endpoint = world
        .endpoint(&tenant, &name)
        .cloned()
        .ok_or_else(|| no_endpoint(&tenant, &name))?;
    survey.fill(&mut endpoint, &closed);
    let id = endpoint.compartment;
    let compartment = world.compartment(id).cloned().unwrap_or_default();
    let recorded = survey
        .pages(id)
        .map(|pages| pages.recorded(Some(endpoint.slot), now_ns(), 64))
        .unwrap_or_default();
    let full_name = format!("{tenant}/{name}");
    let happenings = server.happenings.last(64, |happening| {
        happening.endpoint == full_name
            || (happening.endpoint.is_empty() && happening.target == compartment.name)
    });
    let alone = compartment.tenants.len() == 1;
    let names = Names::of(&world);
    let deaths = server.happenings.deaths(id, &compartment.name, 16);
    let compartment = survey.compartment(&compartment);
    let mut known = Known {
        fabric: survey.fabric(),
        deaths,
        recorded,
        happenings,
        last_denials: last_denials(&world, &survey, &names, &endpoint),
        denials: denials(&world, &survey, &names, &endpoint),
        has_operator: compartment.operator.pid != 0,
        revoked: concerning(&world, &tenant, viewer.tenant()),
        unaccepted: unaccepted(&world, &tenant),
        compartment,
        endpoint,
    };
    // Before it is judged: the verdict's sentences say no more than what it is made of.
    if let Some(name) = viewer.tenant() {
        let slot = known.endpoint.slot;
        known = Known {
            compartment: api::Compartment {
                epoch: known.compartment.epoch,
                alleged_epoch: known.compartment.alleged_epoch,
                ..view::compartment(known.compartment, name)
            },
            fabric: view::fabric(&known.fabric),
            deaths: if alone { known.deaths } else { Vec::new() },
            recorded: (known.recorded.into_iter())
                .filter_map(|event| view::recorded(event, slot))
                .collect(),
            happenings: (known.happenings.into_iter())
                .filter(|one| view::happened(one, name, &world))
                .map(view::happening)
                .collect(),
            last_denials: (known.last_denials.into_iter())
                .map(|(reason, rule)| (reason, view::rule(rule, name)))
                .collect(),
            // The provider's and the default count for all whom the switch serves.
            denials: (known.denials.into_iter())
                .filter(|(rule, _)| alone || !matches!(&*rule.kind, "guardrail" | "default"))
                .map(|(rule, packets)| (view::rule(rule, name), packets))
                .collect(),
            endpoint: view::endpoint(known.endpoint),
            has_operator: known.has_operator,
            revoked: known.revoked,
            unaccepted: known.unaccepted,
        };
        // Of two that differ only that they do is told.
        let differ = known.compartment.epoch != known.compartment.alleged_epoch;
        known.compartment.epoch = differ.into();
        known.compartment.alleged_epoch = 0;
    }
    Ok(Json(judge(known)))
}

/// By reason the rule of the newest drop or refusal that the endpoint's switch or operator recorded
/// with one.
fn last_denials(
    world: &World,
    survey: &Survey,
    names: &Names,
    endpoint: &Endpoint,
) -> Vec<(String, RuleName)> {
    let pages = survey.pages(endpoint.compartment);
    const KINDS: [EventKind; 2] = [EventKind::Drop, EventKind::Refused];
    let events = pages.map(|pages| pages.recorded_since(&KINDS, [0; 2], 0).0);
    let own = events.into_iter().flatten();
    let own = own.filter(|event| event.slot == endpoint.slot);
    let mut last: BTreeMap<String, (u64, RuleName)> = BTreeMap::new();
    for event in own {
        let Some((reason, rule)) = denied_by(&event) else {
            continue;
        };
        let named = (event.time_ns, rule_of(world, names, &endpoint.tenant, rule));
        let before = last.get(reason.slug());
        if before.is_none_or(|(when, _)| *when <= event.time_ns) {
            last.insert(reason.slug().to_owned(), named);
        }
    }
    let last = last.into_iter();
    last.map(|(reason, (_, rule))| (reason, rule)).collect()
}

/// The reason and the rule of what was dropped or refused.
fn denied_by(event: &Event) -> Option<(DropReason, u32)> {
    let (reason, rule) = match event.kind == EventKind::Refused as u32 {
        true => {
            let refused = Logged::of([event.a, event.b]);
            (refused.reason, refused.rule)
        }
        false => {
            let rule = event.b.checked_sub(1)?;
            (u8::try_from(event.a).ok()?, u32::try_from(rule).ok()?)
        }
    };
    let reason = DropReason::from_number(reason)?;
    (rule != NO_RULE).then_some((reason, rule))
}

/// Rules of the endpoint's tenant that denied something, most first.
fn denials(
    world: &World,
    survey: &Survey,
    names: &Names,
    endpoint: &Endpoint,
) -> Vec<(RuleName, u64)> {
    let counters = survey.counters(endpoint.compartment);
    let counts = counters
        .map(|counters| counters.rules())
        .unwrap_or_default();
    let denied = names.rules_of(&endpoint.tenant).into_iter();
    let denied = denied.filter_map(|number| Some((number, counts.get(&number)?[2])));
    let mut denied: Vec<_> = denied
        .filter(|(_, packets)| *packets != 0)
        .map(|(number, packets)| (rule_of(world, names, &endpoint.tenant, number), packets))
        .collect();
    denied.sort_by_key(|(_, packets)| std::cmp::Reverse(*packets));
    denied
}

/// A rule by its number; of a default where the tenant wrote it.
fn rule_of(world: &World, names: &Names, tenant: &str, number: u32) -> RuleName {
    let rule = names.rule(number);
    let made = world.made().filter(|_| rule.kind == "default");
    let decided = made.and_then(|made| {
        policy::decided(made, tenant, number, policy::Side::Egress, [0; 16]).place
    });
    let place = decided.map(|(file, line, column)| Where { file, line, column });
    RuleName {
        place: rule.place.or(place),
        ..rule
    }
}

/// The table image that a compartment (or `fabric`) forwards by, decoded.
#[utoipa::path(get, path = "/v1/dump/{compartment}", params(("compartment" = String, Path, description = "name or id, or `fabric`")),
    responses((status = 200, description = "{target, digest, installed, bytes, text}"), (status = 404, body = Fault)))]
pub async fn dump(
    _: Reader,
    State(server): From,
    Path(name): Path<String>,
) -> Result<Json<Value>, Failure> {
    let (world, survey) = server.survey().await;
    let target = match name.as_str() {
        "fabric" => FABRIC,
        name => world
            .compartments()
            .iter()
            .find(|compartment| compartment.name == name || compartment.id.to_string() == name)
            .map(|compartment| compartment.id)
            .ok_or_else(|| {
                Fault::new(
                    "not-found",
                    Whose::User,
                    format!("there is no compartment {name}"),
                    "`bulkhead status` lists them; `fabric` is the fabric",
                )
            })?,
    };
    let image = world.image(target).ok_or_else(|| {
        Fault::new(
            "not-found",
            Whose::User,
            format!("no table image has been made for {name}"),
            "apply a spec first",
        )
    })?;
    let installed = survey
        .inspected(target)
        .is_some_and(|inspect| inspect.digest == image.digest);
    Ok(Json(json!({
        "target": name,
        "digest": hex(&image.digest),
        "installed": installed,
        "bytes": image.bytes.len(),
        "text": crate::world::dumped(image),
    })))
}

/// What a proof is to hold despite.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Despite {
    /// The compartment, or the tenant, whose switch is taken for a liar. Default: none.
    compromised: Option<String>,
}

/// Has what is installed just now proved.
#[utoipa::path(get, path = "/v1/verify", params(Despite), responses((status = 200, body = Proof), (status = 403, body = Fault), (status = 404, body = Fault), (status = 422, body = Fault)))]
pub async fn verify(
    Reader(viewer): Reader,
    State(server): From,
    Query(despite): Query<Despite>,
) -> Result<Json<Proof>, Failure> {
    let place = server.place(&viewer, Kind::Look)?;
    let mut applier = server.look(place).await;
    Ok(Json(match despite.compromised {
        Some(name) => applier.verify_despite(&name).await?,
        None => applier.verify().await?,
    }))
}

/// Whose document.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Whom {
    /// That tenant's own. Default: the provider's; with a token the tenant's.
    tenant: Option<String>,
}

/// The spec that is applied, as it was given: the provider's, or a tenant's own.
#[utoipa::path(get, path = "/v1/spec", params(Whom),
    responses((status = 200, content_type = "application/yaml", body = String), (status = 404, body = Fault)))]
pub async fn spec(
    viewer: Viewer,
    State(server): From,
    Query(whom): Query<Whom>,
) -> Result<impl IntoResponse, Failure> {
    let world = server.world.world();
    let applied = world.applied();
    let own = viewer.tenant().map(str::to_owned).or(whom.tenant);
    let text = match own {
        None => applied.spec.clone(),
        Some(name) => match applied.documents.get(&name) {
            Some(document) => document.text.clone(),
            None => {
                return Err(Fault::new(
                    "not-found",
                    Whose::User,
                    format!("the tenant {name} has applied no document of its own"),
                    "what it has is stated by the provider of this host",
                )
                .into());
            }
        },
    };
    Ok(([(CONTENT_TYPE, "application/yaml")], text))
}

/// Prometheus' text.
#[utoipa::path(get, path = "/metrics", responses((status = 200, content_type = "application/openmetrics-text", body = String)))]
pub async fn metrics(_: Reader, State(server): From) -> Result<impl IntoResponse, Failure> {
    let (world, survey) = server.survey().await;
    let text = metrics::render(
        &survey,
        &world,
        &server.world.health(),
        server.happenings.counts(),
        flows::circuit_counts(&server, &world).await,
    )
    .map_err(|e| Fault::new("bulkhead", Whose::Bulkhead, e.to_string(), ""))?;
    Ok((
        [(
            CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )],
        text,
    ))
}

/// Whether the API answers; says nothing about tenants, so anyone may ask.
#[utoipa::path(get, path = "/healthz", responses((status = 200, description = "{ok, degraded}")))]
pub async fn healthz(State(server): From) -> Json<Value> {
    let health = server.world.health();
    let well = health.degraded.is_empty() && health.drift.is_empty();
    Json(json!({ "ok": true, "degraded": !well }))
}

/// Nanoseconds, CLOCK_MONOTONIC.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
