//! To change: plans, applies, downs, releases.

use super::document::Document;
use crate::applier::{Wanted, ends_one, settled, unchanged};
use crate::caller::{Changer, Editor, Viewer};
use crate::refuse::{Failure, refused};
use crate::server::{Server, no_endpoint};
use crate::tokens::Asked;
use crate::turns::{Kind, Rank};
use crate::view;
use api::{Applied, AuditEntry, Fault, Plan, Whose};
use axum::Json;
use axum::extract::{Path, Query, Request, State};
use command::verbs::{FABRIC, Release};
use guard::guard;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;
use utoipa::IntoParams;

/// The name of what is sent.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Named {
    /// The spec's file name, for messages.
    #[serde(default = "unnamed")]
    file: String,
}

/// Characters of a file's name that are kept.
const MAX_FILE: usize = 255;

impl Named {
    /// The name as it is shown to others: nothing in it moves a terminal's cursor.
    fn clean(self) -> String {
        let kept = self.file.chars().take(MAX_FILE);
        kept.map(|c| if c.is_control() { '?' } else { c }).collect()
    }
}

fn unnamed() -> String {
    "spec.yaml".into()
}

/// What applying this would change, and what it needs: a spec, or with a token the
/// tenant's own document.
#[utoipa::path(post, path = "/v1/plan", params(Named), request_body(content = String, content_type = "application/yaml"),
    responses((status = 200, body = Plan), (status = 422, body = Fault), (status = 403, body = Fault)))]
pub async fn plan(
    viewer: Viewer,
    State(server): State<Arc<Server>>,
    Query(named): Query<Named>,
    request: Request,
) -> Result<Json<Plan>, Failure> {
    let file = named.clean();
    let place = server.place(&viewer, Kind::Look)?;
    let document = Document::read(&server, &viewer, request, &file).await?;
    share(&server, &viewer, Asked::Plan)?;
    let planned = {
        let mut applier = server.look(place).await;
        viewer.still(&server.tokens)?;
        applier.plan(wanted(&viewer, &file, &document.text)).await
    };
    Ok(Json(match viewer.tenant() {
        None => planned?,
        Some(name) => view::plan(planned.map_err(|fault| view::fault(fault, name))?, name),
    }))
}

/// Makes the host as this says, all of it or nothing: a spec, or with a token the
/// tenant's own document.
#[utoipa::path(post, path = "/v1/apply", params(Named), request_body(content = String, content_type = "application/yaml"),
    responses((status = 200, body = Applied), (status = 422, body = Fault), (status = 403, body = Fault), (status = 503, body = Fault)))]
pub async fn apply(
    Editor(viewer): Editor,
    State(server): State<Arc<Server>>,
    Query(named): Query<Named>,
    request: Request,
) -> Result<Json<Applied>, Failure> {
    let file = named.clean();
    let place = server.place(&viewer, Kind::Change)?;
    let document = Document::read(&server, &viewer, request, &file).await?;
    share(&server, &viewer, Asked::Change)?;
    let by = viewer.clone();
    // Who hangs up before its turn has left the line; then it goes on in a task of its own,
    // so that who hangs up does not stop it half way.
    let mut applier = server.applier.turn(by.rank()).await;
    let applied = tokio::spawn(async move {
        let _place = place;
        let deed = by.deed("apply", &file);
        by.still(&server.tokens)?;
        let outcome = applier
            .apply(wanted(&by, &file, &document.text), deed)
            .await;
        note(&server, &by, "apply", &outcome);
        outcome
    });
    finished(applied.await, &viewer)
}

/// Whose document a caller means.
fn wanted<'a>(viewer: &'a Viewer, source: &'a str, text: &'a [u8]) -> Wanted<'a> {
    match viewer.tenant() {
        Some(tenant) => Wanted::Own {
            tenant,
            source,
            text,
        },
        None => Wanted::Provider { source, text },
    }
}

/// Whether a tenant may have this once more just now.
fn share(server: &Server, viewer: &Viewer, what: Asked) -> Result<(), Fault> {
    match viewer.tenant() {
        Some(tenant) => (server.tokens).share(tenant, what, Instant::now()),
        None => Ok(()),
    }
}

/// Remembers what was refused before anything was begun; what was begun is noted itself.
fn note(server: &Server, viewer: &Viewer, what: &str, outcome: &Result<Applied, Fault>) {
    if let Err(fault) = outcome {
        let token = viewer.token.as_ref();
        let token = token.map_or_else(String::new, |token| format!(" token {}", token.id));
        let (uid, code) = (viewer.caller.uid, &fault.code);
        server
            .tokens
            .refuse(format!("uid {uid}{token}: {what}: {code}"));
    }
}

/// What to do with a revocation.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Undo {
    /// Take the revocation back.
    #[serde(default)]
    undo: bool,
}

/// Revokes an offer or an acceptance: it counts as not stated until it is taken back,
/// or the tenant applies its own document anew. Live connections end.
#[utoipa::path(post, path = "/v1/revoke/{tenant}/{name}", params(("tenant" = String, Path), ("name" = String, Path), Undo),
    responses((status = 200, body = Applied), (status = 403, body = Fault), (status = 404, body = Fault)))]
pub async fn revoke(
    Editor(viewer): Editor,
    State(server): State<Arc<Server>>,
    Path((tenant, name)): Path<(String, String)>,
    Query(Undo { undo }): Query<Undo>,
) -> Result<Json<Applied>, Failure> {
    for part in [&tenant, &name] {
        named(part)?;
    }
    if !viewer.sees(&tenant) {
        return Err(no_tenant(&tenant).into());
    }
    let kind = if undo { Kind::Change } else { Kind::Ending };
    let place = server.place(&viewer, kind)?;
    // What can be said by what is applied costs nobody else a turn; only a revocation that
    // ends what is live is always let through, and first.
    let begun = Instant::now();
    let world = server.world.world();
    let provider = viewer.tenant().is_none();
    let ends = !undo && (ends_one(&world, (&tenant, &name)) || !guard!("revoke-live"));
    if !ends {
        share(&server, &viewer, Asked::Change)?;
    }
    let known = world
        .made()
        .map(|_| settled(&world, (&tenant, &name), undo, provider));
    if known.transpose()?.unwrap_or(false) {
        return finished(Ok(Ok(unchanged(&world, begun))), &viewer);
    }
    let by = viewer.clone();
    let rank = if ends { Rank::Ends } else { by.rank() };
    let mut applier = server.applier.turn(rank).await;
    let applied = tokio::spawn(async move {
        let _place = place;
        let kind = if undo { "revoke-undone" } else { "revoke" };
        let mut deed = by.deed(kind, format!("{tenant}/{name}"));
        deed.tenants = vec![tenant.clone()];
        let wanted = Wanted::Revoke {
            tenant: &tenant,
            name: &name,
            undo,
            provider: by.tenant().is_none(),
        };
        by.still(&server.tokens)?;
        let outcome = applier.apply(wanted, deed).await;
        note(&server, &by, kind, &outcome);
        outcome
    });
    finished(applied.await, &viewer)
}

/// Whether this could name anything in a spec: what is kept of a revocation is read again
/// as text.
fn named(part: &str) -> Result<(), Fault> {
    let checked: Result<spec::Name, String> = part.parse();
    match checked {
        Err(why) if guard!("revoke-name") => Err(Fault::new(
            "request",
            Whose::User,
            format!("{part:?} is not a name: {why}"),
            "for example: bulkhead revoke red/db",
        )),
        _ => Ok(()),
    }
}

/// A tenant that is not there, or not the caller's.
pub fn no_tenant(name: &str) -> Fault {
    Fault::new(
        "not-found",
        Whose::User,
        format!("there is no tenant {name}"),
        "`bulkhead status` lists them",
    )
}

/// Takes all tenants down.
#[utoipa::path(post, path = "/v1/down", responses((status = 200, body = Applied), (status = 403, body = Fault)))]
pub async fn down(
    Changer(viewer): Changer,
    State(server): State<Arc<Server>>,
) -> Result<Json<Applied>, Failure> {
    let deed = viewer.deed("down", "");
    let mut applier = server.applier.turn(Rank::Host).await;
    let applied = tokio::spawn(async move { applier.down(deed).await });
    finished(applied.await, &viewer)
}

/// Lifts the quarantine of a compartment (or `fabric`).
#[utoipa::path(post, path = "/v1/release/{compartment}", params(("compartment" = String, Path)), responses((status = 200), (status = 404, body = Fault)))]
pub async fn release_compartment(
    Changer(viewer): Changer,
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
    let mut deed = viewer.deed("release", &name);
    let all = world.compartments().iter().find(|one| one.id == target);
    deed.tenants = all.map_or_else(Vec::new, |one| one.tenants.clone());
    release(
        &server,
        Release {
            target,
            slot: u32::MAX,
        },
        deed,
    )
    .await
}

/// Lifts the quarantine of an endpoint.
#[utoipa::path(post, path = "/v1/release/{tenant}/{endpoint}", params(("tenant" = String, Path), ("endpoint" = String, Path)),
    responses((status = 200), (status = 404, body = Fault)))]
pub async fn release_endpoint(
    Changer(viewer): Changer,
    State(server): State<Arc<Server>>,
    Path((tenant, name)): Path<(String, String)>,
) -> Result<Json<Value>, Failure> {
    let world = server.world.world();
    let endpoint = world
        .endpoint(&tenant, &name)
        .ok_or_else(|| no_endpoint(&tenant, &name))?;
    let mut deed = viewer.deed("release", format!("endpoint {tenant}/{name}"));
    deed.tenants = vec![tenant.clone()];
    release(
        &server,
        Release {
            target: endpoint.compartment,
            slot: endpoint.slot,
        },
        deed,
    )
    .await
}

async fn release(
    server: &Server,
    body: Release,
    mut deed: AuditEntry,
) -> Result<Json<Value>, Failure> {
    let outcome = server.supervisor.request(&body, &[]).await;
    if let Err(refusal) = &outcome {
        deed.outcome = refusal.to_string();
    }
    let outcome = outcome.map_err(|refusal| refused(&refusal, "lifting the quarantine"));
    let done = format!("the quarantine of {} was lifted", deed.object);
    let mut applier = server.applier.turn(Rank::Host).await;
    applier.note_done(deed, &done, outcome.map(drop)).await?;
    Ok(Json(json!({ "released": true })))
}

fn finished(
    ended: Result<Result<Applied, Fault>, tokio::task::JoinError>,
    viewer: &Viewer,
) -> Result<Json<Applied>, Failure> {
    match (ended, viewer.tenant()) {
        (Ok(outcome), None) => Ok(Json(outcome?)),
        (Ok(outcome), Some(name)) => {
            let applied = outcome.map_err(|fault| view::fault(fault, name))?;
            Ok(Json(Applied {
                // How often others change something is not told.
                epoch: 0,
                plan: view::plan(applied.plan, name),
                took_us: applied.took_us,
                already: applied.already,
            }))
        }
        (Err(error), _) => Err(Fault::new(
            "bulkhead",
            Whose::Bulkhead,
            format!("the apply broke off: {error}"),
            "apply again: it goes on from where things are",
        )
        .into()),
    }
}
