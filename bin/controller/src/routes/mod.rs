//! The HTTP API, version 1. Described for machines at /openapi.json.

mod change;
mod document;
mod explain;
mod look;
mod tenants;
mod trace;
mod watch;

pub use change::no_tenant;
pub use document::Room;
pub use look::now_ns;

use crate::circuits;
use crate::flows;
use crate::refuse::Failure;
use crate::server::Server;
use crate::usage;
use api::{Fault, Whose};
use axum::routing::{get, post};
use axum::{Json, Router};
use std::sync::Arc;
use utoipa::OpenApi;

/// All routes.
pub fn router(server: Arc<Server>) -> Router {
    Router::new()
        .route("/v1/plan", post(change::plan))
        .route("/v1/apply", post(change::apply))
        .route("/v1/down", post(change::down))
        .route(
            "/v1/release/{compartment}",
            post(change::release_compartment),
        )
        .route(
            "/v1/release/{tenant}/{endpoint}",
            post(change::release_endpoint),
        )
        .route("/v1/revoke/{tenant}/{name}", post(change::revoke))
        .route("/v1/tokens", get(tenants::list).post(tenants::create))
        .route("/v1/tokens/{id}/revoke", post(tenants::revoke_token))
        .route("/v1/audit", get(tenants::audit))
        .route("/v1/audit/check", get(tenants::audit_check))
        .route("/v1/spec", get(look::spec))
        .route("/v1/status", get(look::status))
        .route("/v1/endpoints/{tenant}/{endpoint}", get(look::endpoint))
        .route("/v1/why/{tenant}/{endpoint}", get(look::why))
        .route("/v1/dump/{compartment}", get(look::dump))
        .route("/v1/verify", get(look::verify))
        .route("/v1/flows", get(flows::flows))
        .route("/v1/listeners", get(flows::listeners))
        .route("/v1/circuits/{id}/cut", post(circuits::cut))
        .route("/v1/rules/{tenant}", get(flows::rules))
        .route("/v1/usage", get(usage::usage))
        .route("/v1/explain", get(explain::explain))
        .route("/v1/trace", post(trace::trace))
        .route("/v1/names", get(trace::names))
        .route("/v1/top", get(watch::top))
        .route("/v1/events", get(watch::events))
        .route("/v1/capture", get(watch::capture))
        .route("/metrics", get(look::metrics))
        .route("/healthz", get(look::healthz))
        .route("/openapi.json", get(openapi))
        .fallback(unknown)
        .with_state(server)
}

/// The API's own description.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Bulkhead",
        description = "The controller's API, over a unix socket; callers are known by SO_PEERCRED, or as a tenant's by a token (Authorization: Bearer)."
    ),
    paths(
        change::plan,
        change::apply,
        change::down,
        change::release_compartment,
        change::release_endpoint,
        change::revoke,
        tenants::create,
        tenants::list,
        tenants::revoke_token,
        tenants::audit,
        tenants::audit_check,
        look::spec,
        look::status,
        look::endpoint,
        look::why,
        look::dump,
        look::verify,
        explain::explain,
        look::metrics,
        look::healthz,
        flows::flows,
        flows::listeners,
        circuits::cut,
        flows::rules,
        usage::usage,
        trace::trace,
        trace::names,
        watch::top,
        watch::events,
        watch::capture
    ),
    components(schemas(api::Fault, api::Happening))
)]
pub struct Description;

async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(Description::openapi())
}

async fn unknown() -> Failure {
    Failure(Fault::new(
        "not-found",
        Whose::User,
        "the API has no such path",
        "/openapi.json describes it",
    ))
}
