//! To change: plans, applies, downs, releases.

use crate::caller::{Changer, Reader};
use crate::refuse::{Failure, refused};
use crate::server::{Server, no_endpoint};
use api::{Applied, Fault, Plan, Whose};
use axum::Json;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use command::verbs::{FABRIC, Release};
use hyper::body::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use utoipa::IntoParams;

/// The name of what is sent.
#[derive(Deserialize, IntoParams)]
pub struct Named {
    /// The spec's file name, for messages.
    #[serde(default = "unnamed")]
    file: String,
}

fn unnamed() -> String {
    "spec.yaml".into()
}

/// What applying this spec would change, and what it needs.
#[utoipa::path(post, path = "/v1/plan", params(Named), request_body(content = String, content_type = "application/yaml"),
    responses((status = 200, body = Plan), (status = 422, body = Fault), (status = 403, body = Fault)))]
pub async fn plan(
    _: Reader,
    State(server): State<Arc<Server>>,
    Query(named): Query<Named>,
    text: Result<Bytes, BytesRejection>,
) -> Result<Json<Plan>, Failure> {
    let text = whole(text, &named.file)?;
    let mut applier = server.applier.lock().await;
    Ok(Json(applier.plan(&named.file, &text).await?))
}

/// Makes the host as this spec says: all of it, or nothing.
#[utoipa::path(post, path = "/v1/apply", params(Named), request_body(content = String, content_type = "application/yaml"),
    responses((status = 200, body = Applied), (status = 422, body = Fault), (status = 403, body = Fault), (status = 503, body = Fault)))]
pub async fn apply(
    Changer(caller): Changer,
    State(server): State<Arc<Server>>,
    Query(named): Query<Named>,
    text: Result<Bytes, BytesRejection>,
) -> Result<Json<Applied>, Failure> {
    let text = whole(text, &named.file)?;
    // In a task of its own: a caller that hangs up does not stop it half way.
    let applied = tokio::spawn(async move {
        server
            .applier
            .lock()
            .await
            .apply(&named.file, &text, caller.uid)
            .await
    });
    finished(applied.await)
}

/// Takes all tenants down.
#[utoipa::path(post, path = "/v1/down", responses((status = 200, body = Applied), (status = 403, body = Fault)))]
pub async fn down(
    Changer(caller): Changer,
    State(server): State<Arc<Server>>,
) -> Result<Json<Applied>, Failure> {
    let applied = tokio::spawn(async move { server.applier.lock().await.down(caller.uid).await });
    finished(applied.await)
}

/// Lifts the quarantine of a compartment (or `fabric`).
#[utoipa::path(post, path = "/v1/release/{compartment}", params(("compartment" = String, Path)), responses((status = 200), (status = 404, body = Fault)))]
pub async fn release_compartment(
    _: Changer,
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Failure> {
    let world = server.world.world();
    let target = match name.as_str() {
        "fabric" => FABRIC,
        name => world
            .compartments()
            .iter()
            .find(|compartment| compartment.name == name)
            .map(|compartment| compartment.id)
            .ok_or_else(|| {
                Fault::new(
                    "not-found",
                    Whose::User,
                    format!("there is no compartment {name}"),
                    "`bulkhead status` lists them",
                )
            })?,
    };
    release(
        &server,
        Release {
            target,
            slot: u32::MAX,
        },
    )
    .await
}

/// Lifts the quarantine of an endpoint.
#[utoipa::path(post, path = "/v1/release/{tenant}/{endpoint}", params(("tenant" = String, Path), ("endpoint" = String, Path)),
    responses((status = 200), (status = 404, body = Fault)))]
pub async fn release_endpoint(
    _: Changer,
    State(server): State<Arc<Server>>,
    Path((tenant, name)): Path<(String, String)>,
) -> Result<Json<Value>, Failure> {
    let world = server.world.world();
    let endpoint = world
        .endpoint(&tenant, &name)
        .ok_or_else(|| no_endpoint(&tenant, &name))?;
    release(
        &server,
        Release {
            target: endpoint.compartment,
            slot: endpoint.slot,
        },
    )
    .await
}

async fn release(server: &Server, body: Release) -> Result<Json<Value>, Failure> {
    server
        .supervisor
        .request(&body, &[])
        .await
        .map_err(|refusal| refused(&refusal, "lifting the quarantine"))?;
    Ok(Json(json!({ "released": true })))
}

fn finished(
    ended: Result<Result<Applied, Fault>, tokio::task::JoinError>,
) -> Result<Json<Applied>, Failure> {
    match ended {
        Ok(outcome) => Ok(Json(outcome?)),
        Err(error) => Err(Fault::new(
            "bulkhead",
            Whose::Bulkhead,
            format!("the apply broke off: {error}"),
            "apply again: it goes on from where things are",
        )
        .into()),
    }
}

fn whole(text: Result<Bytes, BytesRejection>, file: &str) -> Result<Bytes, Fault> {
    text.map_err(|rejection| {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            Fault::new(
                "too-large",
                Whose::User,
                format!(
                    "{file} is larger than the limit of {} bytes",
                    spec::MAX_BYTES
                ),
                "1,000 endpoints take about 200 KiB: is this the right file?",
            )
        } else {
            Fault::new(
                "request",
                Whose::User,
                format!("the spec did not arrive whole: {rejection}"),
                "send it again",
            )
        }
    })
}
