//! Tenants' tokens, what they revoke, and the log of who did what.

use crate::caller::{Changer, Editor, Reader, Viewer};
use crate::deeds;
use crate::happenings::now_ms;
use crate::refuse::Failure;
use crate::server::Server;
use crate::tokens::Asked;
use crate::turns::{Kind, Rank};
use api::{Audit, AuditCheck, Fault, NewToken, Token, Tokens, Whose};
use axum::Json;
use axum::extract::{Path, Query, State};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Instant;
use utoipa::IntoParams;

/// Characters of a token's name, at most.
const MAX_NAME: usize = 64;
/// Entries of the audit log that are told at once, at most.
const MOST_ENTRIES: usize = 10_000;

/// What token.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct New {
    /// Whose it is.
    tenant: String,
    /// What it is called, at most 64 characters.
    #[serde(default)]
    name: String,
    /// When it ends, Unix time in seconds; 0 = never.
    #[serde(default)]
    until: u64,
    /// Whether it may only look.
    #[serde(default)]
    read_only: bool,
}

/// Makes a token of a tenant. Its text is told this once.
#[utoipa::path(post, path = "/v1/tokens", params(New),
    responses((status = 200, body = NewToken), (status = 403, body = Fault), (status = 404, body = Fault), (status = 422, body = Fault)))]
pub async fn create(
    Changer(viewer): Changer,
    State(server): State<Arc<Server>>,
    Query(new): Query<New>,
) -> Result<Json<NewToken>, Failure> {
    let now_s = now_ms() / 1000;
    let request = |sentence: &str| {
        let help = "for example: bulkhead token create red --name ci --until 2031-01-01";
        Fault::new("request", Whose::User, sentence, help)
    };
    let printable = new.name.chars().all(|c| !c.is_control());
    if new.name.chars().count() > MAX_NAME || !printable {
        return Err(request("a token's name has at most 64 printable characters").into());
    }
    if new.until != 0 && new.until <= now_s {
        return Err(request("the token would have ended already").into());
    }
    let wanted = store::Token {
        name: new.name,
        tenant: new.tenant,
        read_only: new.read_only,
        created_s: now_s,
        until_s: new.until,
        ..store::Token::default()
    };
    let deed = viewer.deed("token-created", "");
    let mut applier = server.applier.turn(Rank::Host).await;
    let made = applier.create_token(wanted, deed).await?;
    drop(applier);
    Ok(Json(NewToken {
        token: shown(made.token),
        text: made.text,
    }))
}

/// The tokens that there are, a tenant's own to a tenant.
#[utoipa::path(get, path = "/v1/tokens", responses((status = 200, body = Tokens), (status = 403, body = Fault)))]
pub async fn list(
    viewer: Viewer,
    State(server): State<Arc<Server>>,
) -> Result<Json<Tokens>, Failure> {
    let all = server.tokens.all()?.into_iter();
    let tokens = all.filter(|token| viewer.sees(&token.tenant)).map(shown);
    Ok(Json(Tokens {
        tokens: tokens.collect(),
    }))
}

/// Revokes a token: what it has under way ends.
#[utoipa::path(post, path = "/v1/tokens/{id}/revoke", params(("id" = String, Path)),
    responses((status = 200, body = Token), (status = 403, body = Fault), (status = 404, body = Fault)))]
pub async fn revoke_token(
    Editor(viewer): Editor,
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
) -> Result<Json<Token>, Failure> {
    let deed = viewer.deed("token-revoked", "");
    let _place = server.place(&viewer, Kind::Token)?;
    let mut applier = server.applier.turn(Rank::Ends).await;
    viewer.still(&server.tokens)?;
    let token = applier.revoke_token(&id, viewer.tenant(), deed).await?;
    Ok(Json(shown(token)))
}

fn shown(token: store::Token) -> Token {
    Token {
        id: token.id,
        name: token.name,
        tenant: token.tenant,
        read_only: token.read_only,
        created_s: token.created_s,
        until_s: token.until_s,
    }
}

/// Of when, and whose.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Wanted {
    /// From then on, Unix time in seconds. Default: all that is kept.
    #[serde(default)]
    since: u64,
    /// Before then, likewise. Default: up to now.
    #[serde(default = "for_ever")]
    until: u64,
    /// Only what concerns this tenant.
    tenant: Option<String>,
    /// The last so many, at most 10,000.
    #[serde(default = "thousand")]
    most: usize,
}

fn for_ever() -> u64 {
    u64::MAX
}

fn thousand() -> usize {
    1000
}

/// Who did what, when, and what came of it; to a tenant what concerns itself.
#[utoipa::path(get, path = "/v1/audit", params(Wanted), responses((status = 200, body = Audit), (status = 403, body = Fault)))]
pub async fn audit(
    viewer: Viewer,
    State(server): State<Arc<Server>>,
    Query(wanted): Query<Wanted>,
) -> Result<Json<Audit>, Failure> {
    if let Some(tenant) = viewer.tenant() {
        (server.tokens).share(tenant, Asked::Audit, Instant::now())?;
    }
    let tenant = viewer.tenant().map(str::to_owned).or(wanted.tenant);
    let within = (
        wanted.since.saturating_mul(1000),
        wanted.until.saturating_mul(1000),
    );
    let most = wanted.most.clamp(1, MOST_ENTRIES);
    let concerns = |entry: &api::AuditEntry| {
        tenant
            .as_ref()
            .is_none_or(|name| entry.tenants.contains(name))
    };
    let place = server.place(&viewer, Kind::Look)?;
    let mut applier = server.look(place).await;
    let mut entries = applier.audit(within, most, concerns).await?;
    drop(applier);
    if let Some(name) = viewer.tenant() {
        let all = server.tokens.all()?;
        let own: Vec<String> = (all.into_iter())
            .filter(|token| token.tenant == name)
            .map(|token| token.id)
            .collect();
        entries = (entries.iter())
            .filter_map(|entry| deeds::told(entry, name, &own))
            .collect();
    }
    Ok(Json(Audit { entries }))
}

/// Whether the audit log is whole.
#[utoipa::path(get, path = "/v1/audit/check", responses((status = 200, body = AuditCheck), (status = 403, body = Fault)))]
pub async fn audit_check(
    Reader(viewer): Reader,
    State(server): State<Arc<Server>>,
) -> Result<Json<AuditCheck>, Failure> {
    let place = server.place(&viewer, Kind::Look)?;
    Ok(Json(server.look(place).await.audit_check().await?))
}
