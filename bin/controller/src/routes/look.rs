//! To look: nothing here changes anything.

use crate::caller::Reader;
use crate::metrics;
use crate::refuse::Failure;
use crate::server::{Server, no_endpoint};
use crate::survey::hex;
use crate::why::{Known, judge};
use api::{Endpoint, Fault, Proof, Status, Whose, Why};
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use command::verbs::FABRIC;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use utoipa::IntoParams;

type From = State<Arc<Server>>;

/// Everything at a glance.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = Status), (status = 403, body = Fault)))]
pub async fn status(_: Reader, State(server): From) -> Json<Status> {
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
    Json(Status {
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
        fabric,
    })
}

/// One endpoint.
#[utoipa::path(get, path = "/v1/endpoints/{tenant}/{endpoint}", params(("tenant" = String, Path), ("endpoint" = String, Path)),
    responses((status = 200, body = Endpoint), (status = 404, body = Fault)))]
pub async fn endpoint(
    _: Reader,
    State(server): From,
    Path((tenant, endpoint)): Path<(String, String)>,
) -> Result<Json<Endpoint>, Failure> {
    let (world, survey, closed) = server.ports().await;
    let mut found = world
        .endpoint(&tenant, &endpoint)
        .cloned()
        .ok_or_else(|| no_endpoint(&tenant, &endpoint))?;
    survey.fill(&mut found, &closed);
    Ok(Json(found))
}

/// Why an endpoint does, or does not, work: all that is known of it, judged.
#[utoipa::path(get, path = "/v1/why/{tenant}/{endpoint}", params(("tenant" = String, Path), ("endpoint" = String, Path)),
    responses((status = 200, body = Why), (status = 404, body = Fault)))]
pub async fn why(
    _: Reader,
    State(server): From,
    Path((tenant, name)): Path<(String, String)>,
) -> Result<Json<Why>, Failure> {
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
    Ok(Json(judge(Known {
        compartment: survey.compartment(&compartment),
        fabric: survey.fabric(),
        deaths: server.happenings.deaths(id, 16),
        recorded,
        happenings,
        endpoint,
    })))
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
pub struct Despite {
    /// The compartment, or the tenant, whose switch is taken for a liar. Default: none.
    compromised: Option<String>,
}

/// Has what is installed just now proved.
#[utoipa::path(get, path = "/v1/verify", params(Despite), responses((status = 200, body = Proof), (status = 403, body = Fault), (status = 404, body = Fault), (status = 422, body = Fault)))]
pub async fn verify(
    _: Reader,
    State(server): From,
    Query(despite): Query<Despite>,
) -> Result<Json<Proof>, Failure> {
    let mut applier = server.applier.lock().await;
    Ok(Json(match despite.compromised {
        Some(name) => applier.verify_despite(&name).await?,
        None => applier.verify().await?,
    }))
}

/// The spec that is applied, as it was given.
#[utoipa::path(get, path = "/v1/spec", responses((status = 200, content_type = "application/yaml", body = String)))]
pub async fn spec(_: Reader, State(server): From) -> impl IntoResponse {
    (
        [(CONTENT_TYPE, "application/yaml")],
        server.world.world().text().to_owned(),
    )
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
