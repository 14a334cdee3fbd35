//! One spec out of several documents: the provider's, and one of each tenant that states
//! its own part itself. They are joined in one text, in which every place is still one
//! of the document that said it, so that whoever reads a spec reads these as well.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use guard::guard;

use crate::decode::{Decode, Findings};
use crate::model::{Document, Endpoint, Per, SelfManaged, Tenant};
use crate::shapes::Attach;
use crate::source::{Section, Source, Span};
use crate::tree;

/// Most bytes of a tenant's own document.
pub const MAX_DOCUMENT_BYTES: usize = 256 << 10;
/// Most values in one, its aliases written out: of all together as much is held as of
/// the provider's.
const MAX_DOCUMENT_NODES: usize = 1 << 16;
/// What a joined text begins with; to YAML a comment.
const MARK: &str = "#!bulkhead-parts\n";
/// Stands for the provider where a tenant's name would; no name is that.
const PROVIDER: &str = ".";
/// Characters of a file's name that are kept.
const MAX_FILE: usize = 255;

/// A document as somebody wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The file's name as its writer gave it.
    pub file: String,
    /// Its text.
    pub text: String,
}

/// What one spec is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// The provider's document.
    pub provider: Written,
    /// Tenants' own, by tenant. One of a tenant that is not there, or does not manage
    /// itself, says nothing.
    pub documents: BTreeMap<String, Written>,
    /// Offers and acceptances that count as not stated, as (tenant, name).
    pub revoked: BTreeSet<(String, String)>,
}

impl Parts {
    /// All of it as one text for [`crate::parse`]; the provider's as it is where there is
    /// nothing else.
    pub fn joined(&self) -> String {
        let alone = self.documents.is_empty() && self.revoked.is_empty();
        if alone && !self.provider.text.starts_with(MARK) {
            return self.provider.text.clone();
        }
        let mut out = MARK.to_owned();
        let all = self.documents.iter().map(|(name, of)| (name.as_str(), of));
        for (name, of) in std::iter::once((PROVIDER, &self.provider)).chain(all) {
            // A line's end in a file's name would begin a line of ours.
            let file: String = of.file.chars().take(MAX_FILE).collect();
            let file = file.replace(|c: char| c.is_control(), "?");
            out += &format!("part {} {name} {file}\n{}\n", of.text.len(), of.text);
        }
        for (tenant, name) in &self.revoked {
            out += &format!("revoked {tenant} {name}\n");
        }
        out
    }
}

/// The text with what stands where in it; as it is where it was not joined.
pub(crate) fn source(file: &str, text: String) -> Source {
    let Some((sections, revoked)) = sections(&text) else {
        return Source::new(file, text);
    };
    Source::joined(file, text, sections, revoked)
}

type Revoked = Vec<(String, String)>;

/// Bound: each turn takes a line of the text.
fn sections(text: &str) -> Option<(Vec<Section>, Revoked)> {
    let mut rest = text.strip_prefix(MARK)?;
    let (mut sections, mut revoked) = (Vec::new(), Vec::new());
    while !rest.is_empty() {
        let (line, after) = rest.split_once('\n')?;
        let mut words = line.splitn(4, ' ');
        match (words.next()?, words.next()?, words.next()?) {
            ("part", length, name) => {
                let length: usize = length.parse().ok()?;
                let start = text.len() - after.len();
                let file = words.next()?;
                after.get(..length)?;
                let tenant = (name != PROVIDER).then(|| name.to_owned());
                sections.push(Section {
                    name: match &tenant {
                        Some(tenant) => format!("{tenant}:{file}"),
                        None => file.to_owned(),
                    },
                    tenant,
                    span: Span {
                        start: start as u32,
                        end: (start + length) as u32,
                    },
                });
                rest = after.get(length..)?.strip_prefix('\n')?;
            }
            ("revoked", tenant, name) => {
                revoked.push((tenant.to_owned(), name.to_owned()));
                rest = after;
            }
            _ => return None,
        }
    }
    let first = sections.first()?;
    (first.tenant.is_none()).then_some((sections, revoked))
}

/// Reads all documents into one. `None` = so broken that there is none.
pub(crate) fn read(source: &Arc<Source>, findings: &mut Findings) -> Option<Document> {
    let Some((provider, own)) = source.sections().split_first() else {
        let root = tree::read(source.text(), 0, tree::MAX_NODES, findings)?;
        let document: Document = Decode::decode(&root, findings)?;
        provided(&document, findings);
        return Some(document);
    };
    let part = |section: &Section, most, findings: &mut Findings| -> Option<Document> {
        let Span { start, end } = section.span;
        let text = source.text().get(start as usize..end as usize)?;
        let root = tree::read(text, start, most, findings)?;
        Decode::decode(&root, findings)
    };
    let mut document = part(provider, tree::MAX_NODES, findings)?;
    provided(&document, findings);
    // All that is wrong with any of them is said.
    let mut whole = true;
    for section in own {
        let Some(name) = section.tenant.as_deref() else {
            continue;
        };
        let tenant = document
            .tenants
            .iter_mut()
            .find(|tenant| tenant.name.as_str() == name);
        let Some((tenant, limits)) = tenant.and_then(|tenant| {
            let limits = tenant.self_managed.clone()?;
            Some((tenant, limits))
        }) else {
            continue;
        };
        let span = section.span;
        if span.end.saturating_sub(span.start) as usize > MAX_DOCUMENT_BYTES {
            findings
                .add(
                    "too-large",
                    Span { start: span.start, end: span.start },
                    format!("a tenant's own document has more than the limit of {MAX_DOCUMENT_BYTES} bytes"),
                )
                .help("is this the right file?");
            whole = false;
            continue;
        }
        match part(section, MAX_DOCUMENT_NODES, findings) {
            Some(own) => take(tenant, own, &limits, span, findings),
            None => whole = false,
        }
    }
    whole.then_some(document)
}

/// What the provider says of tenants that manage themselves.
fn provided(document: &Document, findings: &mut Findings) {
    for tenant in &document.tenants {
        if tenant.self_managed.is_none() {
            continue;
        }
        for (key, span) in own_keys(tenant) {
            findings
                .add(
                    "self-managed",
                    span,
                    format!("the tenant {} states its `{key}` itself", tenant.name.value),
                )
                .help("take it out here, or take out `self-managed`");
        }
        if tenant.per() != Per::Tenant {
            findings
                .add(
                    "self-managed",
                    tenant.name.span,
                    format!(
                        "the tenant {} manages itself and so has a switch of its own",
                        tenant.name.value
                    ),
                )
                .help("place it by `per: tenant`");
        }
    }
    namespaces(document, findings);
}

/// The namespaces of a tenant that manages itself are called by its name and its endpoints':
/// nobody else's may be.
fn namespaces(document: &Document, findings: &mut Findings) {
    let all = document.tenants.iter();
    let own = all.filter(|tenant| tenant.self_managed.is_some());
    let own: BTreeSet<&str> = own.map(|tenant| tenant.name.as_str()).collect();
    // The one that could take what has this name; `whose` it is.
    let taken = |name: &str, whose: &str| {
        let begins = name.match_indices('-');
        let mut begins = begins.filter_map(|(at, _)| name.get(..at));
        begins
            .find(|begin| *begin != whose && own.contains(begin))
            .map(str::to_owned)
    };
    for tenant in &document.tenants {
        let whose = tenant.name.as_str();
        let named = taken(whose, whose).map(|by| (by, tenant.name.span, whose.to_owned()));
        let attached = tenant.endpoints.iter().filter_map(|endpoint| {
            let (namespace, ..) = endpoint.tap(&tenant.name.value)?;
            let by = taken(&namespace, whose)?;
            Some((by, endpoint.name.span, namespace))
        });
        for (by, span, name) in named.into_iter().chain(attached) {
            if guard!("spec-own-namespaces") {
                findings
                    .add(
                        "self-managed",
                        span,
                        format!(
                            "the tenant {by} manages itself, and could take the namespace {name}"
                        ),
                    )
                    .label("called so by this")
                    .help("rename one of the two");
            }
        }
    }
}

/// What a tenant that manages itself states, and where it stands.
fn own_keys(tenant: &Tenant) -> Vec<(&'static str, Span)> {
    let policy = tenant.policy.as_ref().map(|_| tenant.name.span);
    let first = [
        ("subnets", tenant.subnets.first().map(|s| s.name.span)),
        ("endpoints", tenant.endpoints.first().map(|e| e.name.span)),
        ("routes", tenant.routes.first().map(|r| r.to.span)),
        ("policy", policy),
        ("offers", tenant.offers.first().map(|o| o.name.span)),
        ("accepts", tenant.accepts.first().map(|a| a.name.span)),
    ];
    let found = first
        .into_iter()
        .filter_map(|(key, span)| Some((key, span?)));
    found.collect()
}

/// Puts what a tenant says of itself into what the provider says of it.
fn take(
    tenant: &mut Tenant,
    own: Document,
    limits: &SelfManaged,
    whole: Span,
    findings: &mut Findings,
) {
    let head = Span {
        start: whole.start,
        end: whole.start,
    };
    let mut foreign: Vec<(&str, Span)> = Vec::new();
    let rail = own.guardrails.first().map_or(head, |rail| rail.name.span);
    for (is, what, span) in [
        (own.host.is_some(), "host", head),
        (!own.hosts.is_empty(), "hosts", head),
        (!own.uplinks.is_empty(), "uplinks", head),
        (!own.guardrails.is_empty(), "guardrails", rail),
    ] {
        foreign.extend(is.then_some((what, span)));
    }
    for other in &own.tenants {
        let is = other.name.value != tenant.name.value;
        foreign.extend(is.then_some(("tenants", other.name.span)));
    }
    let version = own.version;
    let mut tenants = own.tenants.into_iter();
    let (Some(mine), None) = (tenants.next(), tenants.next()) else {
        findings
            .add(
                "self-managed",
                version.span,
                format!(
                    "a tenant's own document states one tenant, {}",
                    tenant.name.value
                ),
            )
            .help("write it like a spec, with one entry in `tenants`");
        return;
    };
    let at = mine.name.span;
    for (is, what) in [
        (mine.id.is_some(), "id"),
        (mine.placement.is_some(), "placement"),
        (mine.cores.is_some(), "cores"),
        (mine.wait.is_some(), "wait"),
        (mine.weight.is_some(), "weight"),
        (mine.guarantee.is_some(), "guarantee"),
        (mine.channel.is_some(), "channel"),
        (mine.memory.is_some(), "memory"),
        (!mine.outside.is_empty(), "outside"),
        (mine.self_managed.is_some(), "self-managed"),
    ] {
        foreign.extend(is.then_some((what, at)));
    }
    for (what, span) in foreign {
        if guard!("spec-own-document") {
            findings
                .add(
                    "self-managed",
                    span,
                    format!("`{what}` is not the tenant's to state"),
                )
                .help("take it out: the provider of this host states it");
        }
    }
    if version.value != 1 {
        findings
            .add(
                "version",
                version.span,
                "this version of the format is not known to this release",
            )
            .help("write `version: 1`");
    }
    let rules = mine.policy.iter().flat_map(|policy| &policy.rules);
    let rules: Vec<Span> = rules.map(|rule| rule.name.span).collect();
    let endpoints: Vec<Span> = mine.endpoints.iter().map(|e| e.name.span).collect();
    for (what, spans, most) in [
        ("endpoints", endpoints, limits.endpoints()),
        ("rules", rules, limits.rules()),
    ] {
        if let Some(span) = spans
            .get(most as usize)
            .filter(|_| guard!("spec-own-limits"))
        {
            findings
                .add(
                    "too-many",
                    *span,
                    format!(
                        "{} {what}, more than the {most} that this tenant may have",
                        spans.len()
                    ),
                )
                .label("the first one beyond")
                .help("ask the provider of this host for more");
        }
    }
    for endpoint in &mine.endpoints {
        attached(endpoint, limits, findings);
    }
    tenant.subnets = mine.subnets;
    tenant.endpoints = mine.endpoints;
    tenant.routes = mine.routes;
    tenant.policy = mine.policy;
    tenant.offers = mine.offers;
    tenant.accepts = mine.accepts;
}

/// An endpoint of a tenant's own document reaches nothing of the host: its namespace is
/// one that is made for it, under the tenant's name.
fn attached(endpoint: &Endpoint, limits: &SelfManaged, findings: &mut Findings) {
    let wrong = match endpoint.attach() {
        Attach::Tap(tap) => match (tap.namespace, tap.make) {
            (Some(named), _) => Some((named.span, "a namespace")),
            (None, Some(make)) => Some((make.span, "whether its namespace is made")),
            (None, None) => None,
        },
        Attach::Fifo(_) if limits.fifo() => None,
        Attach::Fifo(_) => {
            let span = endpoint.attach.as_ref().map(|attach| attach.span);
            Some((span.unwrap_or(endpoint.name.span), "a fifo"))
        }
    };
    if let Some((span, what)) = wrong.filter(|_| guard!("spec-own-attach")) {
        findings
            .add(
                "self-managed",
                span,
                format!("{what} is not the tenant's to state"),
            )
            .help("leave it out: the endpoint gets a namespace of its own, TENANT-ENDPOINT");
    }
}

/// Takes out what was revoked; gives what of it there was. After all checks: what refers
/// to it is as good as before.
pub(crate) fn revoke(document: &mut Document, source: &Source) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for (tenant, name) in source.revoked() {
        let of = document.tenants.iter_mut();
        for one in of.filter(|one| one.name.as_str() == tenant) {
            let before = one.offers.len() + one.accepts.len();
            if guard!("spec-revoked") {
                one.offers.retain(|offer| offer.name.as_str() != name);
                one.accepts.retain(|accept| accept.name.as_str() != name);
            }
            if one.offers.len() + one.accepts.len() < before {
                found.insert((tenant.clone(), name.clone()));
            }
        }
    }
    found
}
