//! To watch: rates, events, frames.

use super::trace::has_packets;
use crate::caller::{Editor, Viewer};
use crate::refuse::{Failure, refused};
use crate::server::{Server, no_endpoint};
use crate::stream::stream;
use crate::survey::Survey;
use crate::tokens::{Asked, invalid};
use crate::turns::Kind;
use crate::view;
use crate::world::World;
use api::{Fault, Happening, Sample, Whose};
use axum::Json;
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use command::verbs::StartCapture;
use guard::guard;
use hyper::body::Bytes;
use serde::Deserialize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::broadcast::error::RecvError;
use utoipa::IntoParams;

/// How long the rates are over.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Over {
    /// Milliseconds between the two samples, at most 60,000; 0 = totals only.
    #[serde(default)]
    over_ms: u64,
}

/// Totals and rates of every endpoint and uplink.
#[utoipa::path(get, path = "/v1/top", params(Over), responses((status = 200, body = Sample)))]
pub async fn top(
    viewer: Viewer,
    State(server): State<Arc<Server>>,
    Query(over): Query<Over>,
) -> Result<Json<Sample>, Failure> {
    let (world, first) = server.survey().await;
    let mut sample = if over.over_ms == 0 {
        first.sample(None, &world)
    } else {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(over.over_ms.min(60_000))) => {}
            () = viewer.ended(&server) => return Err(invalid().into()),
        }
        let second = Survey::take(&server.supervisor, &world).await;
        second.sample(Some(&first), &world)
    };
    sample.endpoints.retain(|one| viewer.sees(&one.tenant));
    Ok(Json(sample))
}

/// What happened before.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Before {
    /// Begin with so many of the last that are kept (4,096 at most).
    #[serde(default)]
    last: usize,
}

/// What happens from now on, as server-sent events: one `Happening` each.
#[utoipa::path(get, path = "/v1/events", params(Before), responses((status = 200, content_type = "text/event-stream", body = api::Happening)))]
pub async fn events(
    viewer: Viewer,
    State(server): State<Arc<Server>>,
    Query(before): Query<Before>,
) -> Response {
    let (sender, body) = stream();
    // Of a tenant's own there are fewer: the last of all are looked through.
    let most = match viewer.tenant() {
        Some(_) => usize::MAX,
        None => before.last,
    };
    let (last, mut happenings) = server.happenings.listen(most);
    let ended = viewer.clone();
    let told = move |happening: Happening, world: &World| match viewer.tenant() {
        Some(name) => view::happened(&happening, name, world).then(|| view::happening(happening)),
        None => Some(happening),
    };
    tokio::spawn(async move {
        let world = server.world.world();
        let last = last.into_iter().filter_map(|one| told(one, &world));
        let last: Vec<Happening> = last.collect();
        let last = &last[last.len().saturating_sub(before.last)..];
        // A first line, so that the caller knows it is connected.
        let mut first = ": bulkhead\n\n".to_owned();
        first.extend(last.iter().map(line));
        let mut piece = Bytes::from(first);
        while piece.is_empty() || sender.send(piece).await.is_ok() {
            piece = tokio::select! {
                () = sender.closed() => return,
                () = ended.ended(&server) => return,
                happening = happenings.recv() => match happening {
                    Ok(happening) => {
                        let told = told(happening, &server.world.world());
                        told.map_or_else(Bytes::new, |one| Bytes::from(line(&one)))
                    }
                    Err(RecvError::Lagged(lost)) => Bytes::from(format!(": {lost} lost, too slow\n\n")),
                    Err(RecvError::Closed) => return,
                },
            };
        }
    });
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}

fn line(happening: &Happening) -> String {
    let json = serde_json::to_string(happening).unwrap_or_default();
    format!("data: {json}\n\n")
}

/// What to capture.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Wanted {
    /// `TENANT/ENDPOINT`, or `TENANT` for all of its compartment; without it the
    /// only compartment there is.
    endpoint: Option<String>,
    /// Only what is dropped.
    #[serde(default)]
    drops: bool,
    /// Bytes of each frame to keep.
    #[serde(default = "snap")]
    snap: u32,
    /// Circuits too, as TCP: those that begin meanwhile are metered.
    #[serde(default = "yes")]
    circuits: bool,
}

fn yes() -> bool {
    true
}

fn snap() -> u32 {
    256
}

/// Frames as pcapng, until the caller goes away. Needs the right to change: frames
/// are the tenants' own.
#[utoipa::path(get, path = "/v1/capture", params(Wanted), responses((status = 200, content_type = "application/x-pcapng"), (status = 403, body = Fault)))]
pub async fn capture(
    Editor(viewer): Editor,
    State(server): State<Arc<Server>>,
    Query(wanted): Query<Wanted>,
) -> Result<Response, Failure> {
    let (compartment, slot) = match viewer.tenant() {
        Some(name) => {
            (server.tokens).share(name, Asked::Change, Instant::now())?;
            place(
                &server,
                Some(own(&server, name, wanted.endpoint.as_deref())?),
            )?
        }
        None => place(&server, wanted.endpoint.as_deref())?,
    };
    if let Some(endpoint) = wanted.endpoint.as_deref()
        && (wanted.drops || !wanted.circuits)
    {
        has_packets(&server.world.world(), endpoint)?;
    }
    let body = StartCapture {
        compartment,
        slot,
        drops_only: wanted.drops.into(),
        snap: wanted.snap.clamp(64, 65_535),
        of: viewer
            .tenant()
            .map_or(0, |name| number(&server.world.world(), name)),
        circuits: wanted.circuits.into(),
    };
    let world = server.world.world();
    let mut deed = viewer.deed("capture", wanted.endpoint.as_deref().unwrap_or("all"));
    deed.tenants = match wanted
        .endpoint
        .as_deref()
        .and_then(|name| name.split_once('/'))
    {
        Some((tenant, _)) => vec![tenant.to_owned()],
        None => (world.compartment(compartment)).map_or_else(Vec::new, |one| one.tenants.clone()),
    };
    let starts = server.place(&viewer, Kind::Capture)?;
    let outcome = server.supervisor.ask(&body, &[]).await;
    if let Err(refusal) = &outcome {
        deed.outcome = refusal.to_string();
    }
    let rank = viewer.rank();
    server.applier.turn(rank).await.note(deed).await?;
    drop(starts);
    let (_, fds) = outcome.map_err(|refusal| {
        let mut fault = refused(&refusal, "starting the capture");
        if fault.code == "conflict" {
            "end that one first (Ctrl-C); a tenant's captures are apart from the host's"
                .clone_into(&mut fault.help);
        }
        fault
    })?;
    let pipe = fds.into_iter().next().ok_or_else(|| {
        Fault::new(
            "bulkhead",
            Whose::Bulkhead,
            "the supervisor answered without a pipe",
            "",
        )
    })?;
    let mut pipe = Receiver::from_owned_fd(pipe).map_err(|e| {
        Fault::new(
            "bulkhead",
            Whose::Bulkhead,
            format!("the capture's pipe: {e}"),
            "",
        )
    })?;
    let (sender, body) = stream();
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = tokio::select! {
                () = sender.closed() => return,
                () = viewer.ended(&server) => return,
                read = pipe.read(&mut buffer) => read,
            };
            match read {
                Ok(0) | Err(_) => return,
                Ok(length) => {
                    if sender
                        .send(Bytes::copy_from_slice(&buffer[..length]))
                        .await
                        .is_err()
                    {
                        return;
                    }
                }
            }
        }
    });
    Ok(([(CONTENT_TYPE, "application/x-pcapng")], body).into_response())
}

/// The number of a tenant, by which its capture is another than the provider's.
fn number(world: &World, name: &str) -> u32 {
    let ids = world.made().and_then(|(_, ids, _)| ids.tenants.get(name));
    ids.map_or(u32::MAX, |ids| ids.id.saturating_add(1))
}

/// What of its own a tenant captures: an endpoint; all of its compartment where that is
/// nobody else's.
fn own<'a>(server: &Server, name: &'a str, wanted: Option<&'a str>) -> Result<&'a str, Fault> {
    let world = server.world.world();
    let alone = world.compartments().iter().any(|one| one.tenants == [name]);
    let wanted = wanted.unwrap_or(name);
    match wanted.split_once('/') {
        _ if !guard!("tenant-capture") => Ok(wanted),
        Some((tenant, _)) if tenant == name => Ok(wanted),
        Some((tenant, endpoint)) => Err(no_endpoint(tenant, endpoint)),
        None if wanted == name && alone => Ok(wanted),
        None if wanted == name => Err(Fault::new(
            "request",
            Whose::User,
            "the tenant's switch is shared with others",
            "name an endpoint: --endpoint TENANT/ENDPOINT",
        )),
        None => Err(super::change::no_tenant(wanted)),
    }
}

/// Compartment and slot of what is to be captured.
fn place(server: &Server, wanted: Option<&str>) -> Result<(u32, u32), Fault> {
    let world = server.world.world();
    match wanted.map(|name| name.split_once('/').ok_or(name)) {
        Some(Ok((tenant, name))) => match world.endpoint(tenant, name) {
            Some(endpoint) => Ok((endpoint.compartment, endpoint.slot)),
            None => Err(no_endpoint(tenant, name)),
        },
        Some(Err(name)) => match world.tenants().iter().find(|tenant| tenant.name == name) {
            Some(tenant) => Ok((tenant.compartment, u32::MAX)),
            None => Err(Fault::new(
                "not-found",
                Whose::User,
                format!("there is no tenant {name}"),
                "`bulkhead status` lists them",
            )),
        },
        None => match world.compartments() {
            [only] => Ok((only.id, u32::MAX)),
            [] => Err(Fault::new(
                "not-found",
                Whose::User,
                "there is nothing to capture",
                "apply a spec first",
            )),
            _ => Err(Fault::new(
                "request",
                Whose::User,
                "there are several compartments",
                "name a tenant or an endpoint: --endpoint red, --endpoint red/web1",
            )),
        },
    }
}
