//! Faults as HTTP answers.

use crate::supervisor::Refusal;
use crate::tokens::EVERY_S;
use api::{Fault, Whose};
use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use command::message::ErrorCode;
use store::StoreError;

/// A fault on its way to the caller.
#[derive(Debug)]
pub struct Failure(pub Fault);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = status(&self.0.code);
        let mut answer = (status, Json(self.0)).into_response();
        if status == StatusCode::TOO_MANY_REQUESTS {
            let after = HeaderValue::from(EVERY_S);
            answer.headers_mut().insert(RETRY_AFTER, after);
        }
        answer
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Failure {
        Failure(fault)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure(refused(&refusal, ""))
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        Failure(Fault::new(
            "store",
            Whose::Host,
            error.to_string(),
            "what runs goes on running",
        ))
    }
}

fn status(code: &str) -> StatusCode {
    match code {
        "spec" | "request" | "unproved" => StatusCode::UNPROCESSABLE_ENTITY,
        "too-large" => StatusCode::PAYLOAD_TOO_LARGE,
        "unauthenticated" => StatusCode::UNAUTHORIZED,
        "denied" => StatusCode::FORBIDDEN,
        "not-found" => StatusCode::NOT_FOUND,
        "conflict" => StatusCode::CONFLICT,
        "too-many" => StatusCode::TOO_MANY_REQUESTS,
        "supervisor" | "verifier" | "store" | "limit" => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// A refusal by the supervisor while it was asked to do `what`.
pub fn refused(refusal: &Refusal, what: &str) -> Fault {
    let message = if what.is_empty() {
        refusal.to_string()
    } else {
        format!("{what}: {refusal}")
    };
    let (code, whose, help) = match refusal {
        Refusal::Refused { code, errno, .. } => match code {
            Some(ErrorCode::NotFound) => (
                "not-found",
                Whose::User,
                "see `bulkhead status` for what exists",
            ),
            Some(ErrorCode::Conflict) => (
                "conflict",
                Whose::User,
                "`bulkhead status` shows what this daemon has; what it has not is another's (a second daemon's?): give it another name in the spec, or take it away there",
            ),
            Some(ErrorCode::Limit) => (
                "limit",
                Whose::Host,
                "see `bulkhead doctor` for this host's limits",
            ),
            Some(ErrorCode::NoNamespace) => (
                "host",
                Whose::User,
                "make the namespace first (`ip netns add`), or say `make: true` in the endpoint's attach",
            ),
            Some(ErrorCode::NoInterface) => (
                "host",
                Whose::User,
                "`ip link` shows the interfaces there are",
            ),
            Some(ErrorCode::Quarantined) => (
                "quarantined",
                Whose::Tenant,
                "see `bulkhead why`; lift it by `bulkhead release`",
            ),
            Some(ErrorCode::System) if *errno == libc::ENOMEM.cast_unsigned() => (
                "host",
                Whose::Host,
                "the host has not enough memory: see `bulkhead plan` for what the spec needs",
            ),
            Some(ErrorCode::System) => ("host", Whose::Host, "see `bulkhead doctor`"),
            Some(ErrorCode::Denied) => (
                "host",
                Whose::Host,
                "the daemon lacks a right: is it started as root? See `bulkhead doctor`",
            ),
            Some(ErrorCode::NotProved) => ("unproved", Whose::Bulkhead, "apply the spec again"),
            Some(ErrorCode::BadImage) => (
                "bulkhead",
                Whose::Bulkhead,
                "nothing was changed: leave what concerns this tenant as it was, and the rest can be applied; please report this",
            ),
            Some(ErrorCode::BadMessage) | None => {
                ("bulkhead", Whose::Bulkhead, "please report this")
            }
        },
        Refusal::Silent | Refusal::Lost(_) => (
            "supervisor",
            Whose::Bulkhead,
            "the keeper restarts it; try again in a moment. What runs goes on running",
        ),
        Refusal::Garbled => (
            "bulkhead",
            Whose::Bulkhead,
            "is the supervisor of the same release?",
        ),
    };
    Fault::new(code, whose, message, help)
}
