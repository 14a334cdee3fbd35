//! The spec: the YAML in which users say what tenants, subnets and endpoints a host
//! has. [`parse`] reads and checks it whole and reports everything that is wrong,
//! each with its place, what is wrong and what to do.

mod decode;
mod finding;
mod model;
mod parts;
mod policy;
mod rates;
mod schema;
mod segment;
mod selectors;
mod shapes;
mod shares;
mod source;
#[cfg(test)]
mod tests;
mod traffic;
mod tree;
mod validate;
mod values;

use guard::guard;
use std::collections::BTreeMap;
use std::sync::Arc;

pub use finding::{Finding, MAX_FINDINGS, SpecErrors};
pub use model::{
    Configure, Document, Driver, Endpoint, Host, Identity, Kind, MIN_MTU4, MIN_MTU6, Offload,
    Outside, Per, Placement, Role, Route, SelfManaged, State, Subnet, Tenant, Uplink,
};
pub use parts::{Aside, MAX_DOCUMENT_BYTES, Parts, Written, offered_or_accepted};
pub use policy::{
    Accept, Action, Defaults, Guardrail, Offer, Policy, Reach, Rule, Scope, Tracking, Traffic,
};
pub use rates::{BothWays, Dscp, Limit, LongLimit, Rate, ServiceClass};
pub use schema::json_schema;
pub use segment::{Segment, Technology, VlanSegment};
pub use selectors::{Labels, OneOrMore, Selector, TenantList};
pub use shapes::{
    AddressList, Attach, Circuits, Class, Cores, Fifo, Interface, LongOutsideRoute, OutsideRoute,
    Vhost, Via, Wait, max_record,
};
pub use source::{Located, Position, Source, Span};
pub use traffic::{IcmpMessage, PortRange, Protocol, Until};
pub use tree::{MAX_DEPTH, MAX_NODES};
pub use validate::{
    FIRST_NAT_PORT, MAX_ACCEPTS, MAX_AGREEMENTS, MAX_AGREEMENTS_INSIDE, MAX_CLASSES,
    MAX_CONNECTIONS, MAX_ENDPOINTS, MAX_GUARDRAILS, MAX_LABELS, MAX_OFFERS, MAX_PORTS,
    MAX_PREFIXES, MAX_REACH, MAX_ROUTED, MAX_ROUTES, MAX_RULES, MAX_SUBNETS, MAX_TENANT_ENDPOINTS,
    MAX_TENANTS,
};
pub use values::{
    BitRate, Duration, InterfaceAddress, InterfaceName, Ip, Mac, Name, Namespace, Path, Prefix,
    Size, Toggle, mapped,
};

/// Most bytes of a spec, tenants' own documents included. A larger file is refused by its
/// size, before it is read; of these each has its share of what the provider's leaves.
pub const MAX_BYTES: usize = 16 << 20;
/// Most bytes of documents that were joined: those, and what is said about them.
const MAX_JOINED: usize = 128 << 20;

/// A spec that was read and found good.
#[derive(Clone, Debug)]
pub struct Spec {
    /// What it says.
    pub document: Document,
    /// Its text, for messages that point into it.
    pub source: Arc<Source>,
    /// Offers and acceptances that it states and that count as not stated, by (tenant,
    /// name), an acceptance with whose and which service it is: see [`Parts`].
    pub revoked: BTreeMap<(String, String), (String, String)>,
}

/// Two specs are equal when they say the same, however they are laid out.
impl PartialEq for Spec {
    fn eq(&self, other: &Self) -> bool {
        self.document == other.document
    }
}

impl core::ops::Deref for Spec {
    type Target = Document;
    fn deref(&self) -> &Document {
        &self.document
    }
}

/// Reads and checks a spec, or several documents joined by [`Parts::joined`]. `file` is
/// the name its user knows it by.
///
/// # Errors
/// Everything that is wrong with it, in order of place: always the fault of who wrote it.
pub fn parse(file: &str, text: &[u8]) -> Result<Spec, SpecErrors> {
    if guard!("spec-size") && text.len() > parts::most_bytes(text) {
        return Err(too_large(file, text.len() as u64));
    }
    let (text, bad) = match core::str::from_utf8(text) {
        Ok(text) => (text.to_owned(), None),
        Err(error) => (
            String::from_utf8_lossy(text).into_owned(),
            Some(error.valid_up_to() as u32),
        ),
    };
    let source = Arc::new(parts::source(file, text));
    let provided = source.sections().first().map_or(0, |one| one.bytes());
    if guard!("spec-size-joined") && provided > MAX_BYTES {
        return Err(too_large(file, provided as u64));
    }
    let mut findings = decode::Findings::new(source.clone());
    if let Some(at) = bad {
        findings
            .add(
                "utf-8",
                Span { start: at, end: at },
                "the spec is not UTF-8 text",
            )
            .help("save it as UTF-8; is this the right file?");
        return Err(SpecErrors::new(findings.list));
    }
    let mut document = parts::read(&source, &mut findings);
    let mut revoked = BTreeMap::new();
    if let Some(document) = &mut document {
        validate::check(document, &mut findings);
        revoked = parts::revoke(document, &source);
    }
    match document {
        Some(document) if findings.list.is_empty() => Ok(Spec {
            document,
            source,
            revoked,
        }),
        _ => Err(SpecErrors::new(findings.list)),
    }
}

/// The refusal of a spec by its size alone, for a caller that has not read it.
pub fn too_large(file: &str, bytes: u64) -> SpecErrors {
    let mut findings = decode::Findings::new(Arc::new(Source::new(file, String::new())));
    findings
        .add(
            "too-large",
            Span::default(),
            format!("the spec has {bytes} bytes, more than the limit of {MAX_BYTES}"),
        )
        .help("1,000 endpoints take about 200 KiB: is this the right file?");
    SpecErrors::new(findings.list)
}

impl Spec {
    /// The name of its host; `host` where it names none.
    pub fn host_name(&self) -> &str {
        let host = self.document.host.as_ref().or(self.document.hosts.first());
        host.map_or("host", |h| h.name.as_str())
    }

    /// A tenant and an endpoint of it by `TENANT/ENDPOINT`.
    pub fn endpoint(&self, name: &str) -> Option<(&Tenant, &Endpoint)> {
        let (tenant, endpoint) = name.split_once('/')?;
        let tenant = self.tenants.iter().find(|t| t.name.as_str() == tenant)?;
        Some((
            tenant,
            tenant
                .endpoints
                .iter()
                .find(|e| e.name.as_str() == endpoint)?,
        ))
    }

    /// A finding about a place of this spec, for what is only found out later: a
    /// namespace that does not exist, say.
    pub fn finding(
        &self,
        code: &'static str,
        span: Span,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Finding {
        Finding {
            code,
            message: message.into(),
            help: help.into(),
            span,
            label: "here".into(),
            also: Vec::new(),
            source: self.source.clone(),
        }
    }
}
