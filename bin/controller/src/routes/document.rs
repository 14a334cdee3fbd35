//! Documents that come with a request: their length is limited by who sends them, before
//! they are read, and so is the memory of all that have come and are not applied yet.

use crate::caller::{Viewer, Wish};
use crate::server::Server;
use api::{Fault, Whose};
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, Request};
use axum::http::StatusCode;
use guard::guard;
use hyper::body::{Body, Bytes};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// KiB of documents of who may change the host, of who only looks, and of tenants: apart, so
/// that none of these crowds out another.
const HOST: usize = 64 << 10;
const READERS: usize = 32 << 10;
const TENANTS: usize = 32 << 10;

/// Memory for documents, in KiB.
#[derive(Debug)]
pub struct Room {
    host: Arc<Semaphore>,
    readers: Arc<Semaphore>,
    tenants: Arc<Semaphore>,
}

impl Default for Room {
    fn default() -> Room {
        Room {
            host: Arc::new(Semaphore::new(HOST)),
            readers: Arc::new(Semaphore::new(READERS)),
            tenants: Arc::new(Semaphore::new(TENANTS)),
        }
    }
}

/// One that has come whole, and its room until it is dropped.
pub struct Document {
    /// What came.
    pub text: Bytes,
    _room: OwnedSemaphorePermit,
}

impl Document {
    /// Reads what this caller sends as `file`.
    ///
    /// # Errors
    /// It is too long, or did not come whole; there is no room for it just now.
    pub async fn read(
        server: &Server,
        viewer: &Viewer,
        mut request: Request,
        file: &str,
    ) -> Result<Document, Fault> {
        let room = &server.room;
        let trusted = server.rights.check(viewer.caller, Wish::Change).is_ok();
        let (most, room) = match viewer.tenant() {
            Some(_) if guard!("api-document") => (spec::MAX_DOCUMENT_BYTES, &room.tenants),
            None if !trusted => (spec::MAX_BYTES, &room.readers),
            _ => (spec::MAX_BYTES, &room.host),
        };
        // One byte more, for the parser to say that it is too much.
        let longest = most + 1;
        let told = request.body().size_hint().exact();
        let length = told.map_or(longest, |told| usize::try_from(told).unwrap_or(usize::MAX));
        if length > longest {
            return Err(too_large(file, most));
        }
        let kib = u32::try_from(length.div_ceil(1024)).unwrap_or(u32::MAX);
        let Ok(room) = room.clone().try_acquire_many_owned(kib) else {
            return Err(Fault::new(
                "too-many",
                Whose::User,
                "too many documents are on their way at once",
                "send it again in a moment",
            ));
        };
        DefaultBodyLimit::max(longest).apply(&mut request);
        match Bytes::from_request(request, &()).await {
            Ok(text) => Ok(Document { text, _room: room }),
            Err(rejection) => Err(broken(&rejection, file, most)),
        }
    }
}

fn broken(rejection: &BytesRejection, file: &str, most: usize) -> Fault {
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(file, most),
        _ => Fault::new(
            "request",
            Whose::User,
            format!("the spec did not arrive whole: {rejection}"),
            "send it again",
        ),
    }
}

fn too_large(file: &str, most: usize) -> Fault {
    Fault::new(
        "too-large",
        Whose::User,
        format!("{file} is larger than the limit of {most} bytes"),
        "1,000 endpoints take about 200 KiB: is this the right file?",
    )
}
