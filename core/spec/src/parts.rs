//! One spec out of several documents: the provider's, and one of each tenant that states
//! its own part itself. They are joined in one text, in which every place is still one
//! of the document that said it, so that whoever reads a spec reads these as well.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use guard::guard;

use crate::decode::{Decode, Findings};
use crate::model::{Document, Endpoint, Per, SelfManaged, Tenant};
use crate::policy::{Defaults, Policy};
use crate::shapes::{Attach, MACHINE_MEMORY};
use crate::shares::Shares;
use crate::source::{Located, Section, Source, Span, Without};
use crate::tree::{self, Kind, Node};
use crate::validate::{MAX_ACCEPTS, MAX_AGREEMENTS, MAX_ENDPOINTS};
use crate::values::Name;
use crate::{MAX_BYTES, MAX_JOINED};

/// Most bytes of a tenant's own document.
pub const MAX_DOCUMENT_BYTES: usize = 256 << 10;
/// Most values in one, its aliases written out.
pub(crate) const MAX_DOCUMENT_NODES: usize = 1 << 16;
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
    /// Acceptances that count as not stated whatever they are called, as (tenant, whose
    /// service, service).
    pub barred: BTreeSet<(String, String, String)>,
    /// How much of a tenant's own document is set aside; of all others nothing is.
    pub aside: BTreeMap<String, Aside>,
}

/// How much of a tenant's own document counts as not stated, because it does not fit what
/// the provider states now. Each is less than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aside {
    /// What it asks for by `reach`.
    Reach,
    /// All but its subnets and endpoints, as many as it may have; nothing passes.
    Closed,
    /// All of it.
    Whole,
}

impl Aside {
    /// All there are.
    pub const ALL: [Aside; 3] = [Aside::Reach, Aside::Closed, Aside::Whole];

    /// As it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Aside::Reach => "reach",
            Aside::Closed => "closed",
            Aside::Whole => "whole",
        }
    }

    /// The one that is written so.
    pub fn of(word: &str) -> Option<Aside> {
        Aside::ALL.into_iter().find(|one| one.as_str() == word)
    }
}

impl Parts {
    /// All of it as one text for [`crate::parse`]; the provider's as it is where there is
    /// nothing else.
    pub fn joined(&self) -> String {
        let alone = self.documents.is_empty() && self.revoked.is_empty() && self.barred.is_empty();
        if alone && !self.provider.text.starts_with(MARK) {
            return self.provider.text.clone();
        }
        let mut out = MARK.to_owned();
        let all = self.documents.iter().map(|(name, of)| (name.as_str(), of));
        for (name, of) in std::iter::once((PROVIDER, &self.provider)).chain(all) {
            // A line's end in a file's name would begin a line of ours.
            let file: String = of.file.chars().take(MAX_FILE).collect();
            let file = crate::finding::shown(&file).replace(['\n', '\t'], "?");
            // Of what is set aside as a whole nothing is read.
            let whole = self.aside.get(name) == Some(&Aside::Whole);
            let text = if whole { "" } else { of.text.as_str() };
            out += &format!("part {} {name} {file}\n{text}\n", text.len());
        }
        for (tenant, name) in &self.revoked {
            out += &format!("revoked {tenant} {name}\n");
        }
        for (tenant, from, service) in &self.barred {
            out += &format!("barred {tenant} {from} {service}\n");
        }
        for (tenant, aside) in &self.aside {
            out += &format!("aside {tenant} {}\n", aside.as_str());
        }
        out
    }
}

/// Most bytes of this text.
pub(crate) fn most_bytes(text: &[u8]) -> usize {
    match text.starts_with(MARK.as_bytes()) {
        true => MAX_JOINED,
        false => MAX_BYTES,
    }
}

/// The text with what stands where in it; as it is where it was not joined.
pub(crate) fn source(file: &str, text: String) -> Source {
    let Some((sections, without)) = sections(&text) else {
        return Source::new(file, text);
    };
    Source::joined(file, text, sections, without)
}

/// Bound: each turn takes a line of the text.
fn sections(text: &str) -> Option<(Vec<Section>, Without)> {
    let mut rest = text.strip_prefix(MARK)?;
    let (mut sections, mut without) = (Vec::new(), Without::default());
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
                without.revoked.push((tenant.to_owned(), name.to_owned()));
                rest = after;
            }
            ("barred", tenant, from) => {
                let service = words.next()?.to_owned();
                let barred = (tenant.to_owned(), from.to_owned(), service);
                without.barred.push(barred);
                rest = after;
            }
            ("aside", tenant, word) => {
                (without.aside).insert(tenant.to_owned(), Aside::of(word)?);
                rest = after;
            }
            _ => return None,
        }
    }
    let first = sections.first()?;
    (first.tenant.is_none()).then_some((sections, without))
}

/// Reads all documents into one. `None` = so broken that there is none.
pub(crate) fn read(source: &Arc<Source>, findings: &mut Findings) -> Option<Document> {
    let Some((provider, own)) = source.sections().split_first() else {
        let root = tree::read(source.text(), 0, tree::MAX_NODES, findings)?;
        let document: Document = Decode::decode(&root, findings)?;
        provided(&document, findings);
        return Some(document);
    };
    let tree = |section: &Section, most, findings: &mut Findings| -> Option<Node> {
        let Span { start, end } = section.span;
        let text = source.text().get(start as usize..end as usize)?;
        tree::read(text, start, most, findings)
    };
    let root = tree(provider, tree::MAX_NODES, findings)?;
    let mut document: Document = Decode::decode(&root, findings)?;
    provided(&document, findings);
    let shares = Shares::of(&document, provider.bytes());
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
        let aside = source.aside(name).filter(|_| guard!("spec-aside"));
        if aside == Some(Aside::Whole) {
            continue;
        }
        let span = section.span;
        let (bytes, most) = (section.bytes(), shares.bytes);
        if bytes > most {
            let of = match most {
                MAX_DOCUMENT_BYTES => String::new(),
                _ => format!(", its share of the {MAX_BYTES} of a host"),
            };
            let what = format!("a tenant's own document of {bytes} bytes has more than {most}{of}");
            let span = Span {
                start: span.start,
                end: span.start,
            };
            findings
                .add("too-large", span, what)
                .help("is this the right file? The provider of this host may let fewer tenants state themselves");
            whole = false;
            continue;
        }
        let root = tree(section, shares.nodes, findings);
        if let Some(root) = root.as_ref().filter(|_| aside != Some(Aside::Closed)) {
            stated(root, findings);
        }
        match root.and_then(|root| Document::decode(&root, findings)) {
            Some(own) if aside == Some(Aside::Closed) => close(tenant, own, &limits, &shares),
            Some(own) => {
                take(tenant, own, &limits, &shares, findings);
                if let Some(policy) = tenant.policy.as_mut().filter(|_| aside.is_some()) {
                    policy.reach.clear();
                }
            }
            None => whole = false,
        }
    }
    whole.then_some(document)
}

/// The names of the offers and acceptances in a tenant's own document; `None` = it does not
/// read at all.
pub fn offered_or_accepted(text: &str) -> Option<BTreeSet<String>> {
    let mut findings = Findings::new(Arc::new(Source::new("", text.to_owned())));
    let root = tree::read(text, 0, MAX_DOCUMENT_NODES, &mut findings)?;
    let document = Document::decode(&root, &mut findings)?;
    let names = document.tenants.iter().flat_map(|tenant| {
        let offers = tenant.offers.iter().map(|offer| &offer.name);
        offers.chain(tenant.accepts.iter().map(|accept| &accept.name))
    });
    Some(names.map(|name| name.as_str().to_owned()).collect())
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
            let (namespace, ..) = endpoint.interface(&tenant.name.value)?;
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

/// Finds each key that is not a tenant's to state: all but those that are named here, so
/// that one that is new to the format is refused until somebody says whose it is.
fn stated(root: &Node, findings: &mut Findings) {
    let mut foreign = |node: &Node, known: &[&str], own: &[&str]| {
        let Kind::Mapping(entries) = &node.kind else {
            return;
        };
        for (key, _) in entries {
            let (word, is) = (key.text.as_str(), |all: &[&str]| {
                all.contains(&key.text.as_str())
            });
            if is(known) && !is(own) && guard!("spec-own-document") {
                findings
                    .add(
                        "self-managed",
                        key.span,
                        format!("`{word}` is not the tenant's to state"),
                    )
                    .help("take it out: the provider of this host states it");
            }
        }
    };
    foreign(root, Document::KEYS, &OWN_DOCUMENT);
    let Kind::Mapping(entries) = &root.kind else {
        return;
    };
    for (key, tenants) in entries {
        if let ("tenants", Kind::Sequence(tenants)) = (key.text.as_str(), &tenants.kind) {
            for tenant in tenants {
                foreign(tenant, Tenant::KEYS, &OWN_TENANT);
            }
        }
    }
}

/// The keys that a tenant's own document has.
const OWN_DOCUMENT: [&str; 2] = ["version", "tenants"];
/// And of its tenant, beside the name: what it states of itself.
const OWN_TENANT: [&str; 7] = [
    "name",
    "subnets",
    "endpoints",
    "routes",
    "policy",
    "offers",
    "accepts",
];

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
    shares: &Shares,
    findings: &mut Findings,
) {
    let version = own.version;
    let mut tenants = own.tenants.into_iter();
    let (Some(mut mine), None) = (tenants.next(), tenants.next()) else {
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
    if mine.name.value != tenant.name.value && guard!("spec-own-tenant") {
        findings
            .add(
                "self-managed",
                mine.name.span,
                format!("`{}` is not the tenant's to state", mine.name.value),
            )
            .help("it states itself alone, by the name that the provider of this host gave it");
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
    let accepts: Vec<Span> = mine.accepts.iter().map(|a| a.name.span).collect();
    // What it may have, and of what that is a share.
    let own =
        |own: usize, share: usize, host: usize| (own.min(share), (share < own).then_some(host));
    let endpoints_most = own(
        limits.endpoints() as usize,
        shares.endpoints(limits),
        MAX_ENDPOINTS,
    );
    for (what, spans, (most, share)) in [
        ("endpoints", endpoints, endpoints_most),
        ("rules", rules, (limits.rules() as usize, None)),
        (
            "acceptances",
            accepts,
            own(MAX_ACCEPTS, shares.accepts, MAX_AGREEMENTS),
        ),
    ] {
        if let Some(span) = spans.get(most).filter(|_| guard!("spec-own-limits")) {
            let share = share.map_or_else(String::new, |host| {
                format!(", its share of the {host} of a host")
            });
            findings
                .add(
                    "too-many",
                    *span,
                    format!(
                        "{} {what}, more than the {most} that this tenant may have{share}",
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
    for subnet in &mut mine.subnets {
        if let Some(segment) = subnet.vlan().filter(|_| guard!("spec-own-segment")) {
            findings
                .add(
                    "self-managed",
                    segment.uplink.span,
                    "a VLAN of an uplink is not the tenant's to state",
                )
                .help("leave `segment` out: the subnet is on this host only");
            // Which uplinks there are is not said to it either.
            subnet.segment = None;
        }
    }
    tenant.subnets = mine.subnets;
    tenant.endpoints = mine.endpoints;
    tenant.routes = mine.routes;
    tenant.policy = mine.policy;
    tenant.offers = mine.offers;
    tenant.accepts = mine.accepts;
}

/// Of a document that is set aside the tenant keeps its endpoints, as many as it may have,
/// and nothing passes between them or beyond.
fn close(tenant: &mut Tenant, own: Document, limits: &SelfManaged, shares: &Shares) {
    let name = tenant.name.value.clone();
    let mut tenants = own.tenants.into_iter();
    let Some(mine) = tenants.find(|one| one.name.value == name) else {
        return;
    };
    tenant.subnets = mine.subnets;
    for subnet in &mut tenant.subnets {
        subnet.segment = None;
    }
    tenant.endpoints = mine.endpoints;
    tenant
        .endpoints
        .retain(|endpoint| foreign(endpoint, limits).is_none());
    tenant.endpoints.truncate(shares.endpoints(limits));
    tenant.policy = Some(Policy {
        default: Some(Located::nowhere(Defaults::CLOSED)),
        rules: Vec::new(),
        reach: Vec::new(),
    });
}

/// An endpoint of a tenant's own document reaches nothing of the host: its namespace is
/// one that is made for it, under the tenant's name.
fn attached(endpoint: &Endpoint, limits: &SelfManaged, findings: &mut Findings) {
    if let Some((span, what)) = foreign(endpoint, limits) {
        let help = match what {
            CIRCUITS => {
                "circuits are for tenants whose endpoints the provider of this host states; without `attach` the endpoint has packets, in a namespace of its own"
            }
            FIFO => "ask the provider of this host for `fifo: on`, or leave `attach` out",
            MACHINE => "ask the provider of this host for `vhost: on`, or leave `attach` out",
            MEMORY => {
                "say less; what a machine has beyond is for the provider of this host to lend"
            }
            _ => "leave it out: the endpoint gets a namespace of its own, TENANT-ENDPOINT",
        };
        findings
            .add(
                "self-managed",
                span,
                format!("{what} is not the tenant's to state"),
            )
            .help(help);
    }
}

const CIRCUITS: &str = "an endpoint of circuits";
const FIFO: &str = "a fifo";
const MACHINE: &str = "a virtual machine's interface";
const MEMORY: &str = "more memory than 4GiB";

/// What of an endpoint's attachment is not the tenant's to state.
fn foreign(endpoint: &Endpoint, limits: &SelfManaged) -> Option<(Span, &'static str)> {
    let wrong = match endpoint.attach() {
        Attach::Tap(named) | Attach::Veth(named) if named.circuits.is_none() => {
            match (named.namespace, named.make) {
                (Some(named), _) => Some((named.span, "a namespace")),
                (None, Some(make)) => Some((make.span, "whether its namespace is made")),
                (None, None) => None,
            }
        }
        Attach::Fifo(_) if limits.fifo() => None,
        Attach::Vhost(vhost) if limits.vhost() => {
            // What a host lends to its own machines is more than nothing said.
            let memory = vhost.memory.filter(|it| it.value.0 > MACHINE_MEMORY);
            memory.map(|memory| (memory.span, MEMORY))
        }
        attach => {
            let span = endpoint.attach.as_ref().map(|attach| attach.span);
            let what = match attach {
                Attach::Fifo(_) => FIFO,
                attach if attach.circuits().is_some() => CIRCUITS,
                _ => MACHINE,
            };
            Some((span.unwrap_or(endpoint.name.span), what))
        }
    };
    wrong.filter(|_| guard!("spec-own-attach"))
}

/// Takes out what was revoked; gives what of it there was: by (tenant, name), of an
/// acceptance whose which service it is. After all checks: what refers to it is as good as
/// before.
pub(crate) fn revoke(document: &mut Document, source: &Source) -> Revoked {
    let mut found = Revoked::new();
    let revoked: BTreeSet<(&str, &str)> = (source.revoked().iter())
        .map(|(tenant, name)| (tenant.as_str(), name.as_str()))
        .collect();
    let barred: BTreeSet<(&str, &str, &str)> = (source.barred().iter())
        .map(|(tenant, from, service)| (tenant.as_str(), from.as_str(), service.as_str()))
        .collect();
    if revoked.is_empty() && barred.is_empty() {
        return found;
    }
    for tenant in &mut document.tenants {
        let of = tenant.name.value.clone();
        let key = |name: &Located<Name>| (of.as_str().to_owned(), name.as_str().to_owned());
        let named = |name: &Located<Name>| revoked.contains(&(of.as_str(), name.as_str()));
        tenant.offers.retain(|offer| {
            let out = named(&offer.name);
            if out {
                found.insert(key(&offer.name), Default::default());
            }
            !out || !guard!("spec-revoked")
        });
        tenant.accepts.retain(|accept| {
            let (from, service) = (accept.from.as_str(), accept.service.as_str());
            let out = named(&accept.name);
            let barred = barred.contains(&(of.as_str(), from, service)) && guard!("spec-barred");
            if out || barred {
                found.insert(key(&accept.name), (from.to_owned(), service.to_owned()));
            }
            !barred && (!out || !guard!("spec-revoked-accept"))
        });
    }
    found
}

/// What is revoked of what is stated: see [`crate::Spec`].
pub(crate) type Revoked = BTreeMap<(String, String), (String, String)>;
