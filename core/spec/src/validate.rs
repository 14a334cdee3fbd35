//! What one value's reading cannot see: ranges, duplicates, references, overlaps.

mod addressing;
mod agreements;
mod placement;
mod policy;
mod routed;
mod tenant;

use core::net::IpAddr;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use guard::guard;

use crate::decode::{Findings, nearest};
use crate::model::{Document, Identity, Kind, MIN_MTU4, Per, Tenant, Uplink};
use crate::policy::Accept;
use crate::shapes::Wait;
use crate::source::{Located, Span};
use crate::values::Name;

/// Most tenants of a host.
pub const MAX_TENANTS: usize = 1024;
/// Most subnets of a tenant.
pub const MAX_SUBNETS: usize = 256;
/// Most endpoints of a tenant.
pub const MAX_TENANT_ENDPOINTS: usize = 4096;
/// Most endpoints of a host.
pub const MAX_ENDPOINTS: usize = 16_384;
/// Most routes of a tenant, and of one of its ways outside.
pub const MAX_ROUTES: usize = 512;
/// Most prefixes behind an endpoint.
pub const MAX_PREFIXES: usize = 256;
/// Most rules of a tenant.
pub const MAX_RULES: usize = 2_000;
/// Most entries in one list of ports or ICMP messages of a rule.
pub const MAX_PORTS: usize = 64;
/// Most labels of an endpoint, and of a selector.
pub const MAX_LABELS: usize = 16;
/// Most guardrails of a host.
pub const MAX_GUARDRAILS: usize = 200;
/// Most offers of a tenant.
pub const MAX_OFFERS: usize = 200;
/// Most acceptances of a tenant.
pub const MAX_ACCEPTS: usize = 200;
/// Most prefixes in one list of an offer or acceptance.
pub const MAX_ROUTED: usize = 16;
/// Most acceptances of a host: with the ways outside they share 65,535 tags.
pub const MAX_AGREEMENTS: usize = 32_768;
/// Most of them between tenants of one switch: these take two tags each.
pub const MAX_AGREEMENTS_INSIDE: usize = 8_192;
/// Most entries of a tenant's `reach`.
pub const MAX_REACH: usize = 200;
/// Most connections of an endpoint that are tracked at a time.
pub const MAX_CONNECTIONS: u32 = 1 << 20;
/// The first port that translation outside takes; below are the services'.
pub const FIRST_NAT_PORT: u32 = 1024;
/// Findings after which no more names are suggested: that takes time.
const SUGGESTIONS: usize = 16;
/// Most workers of one switch.
pub const MOST_WORKERS: u32 = 8;
/// What commands and events call what is between the compartments.
const FABRIC: &str = "fabric";
/// Most uplinks of a host.
const MAX_UPLINKS: usize = 16;
/// Most classes of packets beside best effort.
pub const MAX_CLASSES: usize = 7;

/// Checks a document whole.
pub(crate) fn check(document: &Document, findings: &mut Findings) {
    // Where something could not be read, what refers to it is not reported too.
    let whole = findings.list.is_empty();
    let mut at = Check {
        document,
        findings,
        whole,
        tenant_names: document.tenants.iter().map(|t| t.name.as_str()).collect(),
    };
    if !at.sizes() && guard!("spec-sizes") {
        return;
    }
    at.header();
    at.uplinks();
    at.guardrails();
    at.classes();
    at.tenants();
    at.placements();
    at.attachments();
    at.agreements();
}

pub(crate) struct Check<'a> {
    document: &'a Document,
    findings: &'a mut Findings,
    whole: bool,
    tenant_names: HashSet<&'a str>,
}

impl Check<'_> {
    /// Whether nothing is too many. Before all else: what follows takes time by it.
    fn sizes(&mut self) -> bool {
        let before = self.findings.list.len();
        let document = self.document;
        let uplinks = document.uplinks.iter().map(|u| u.name.span);
        self.at_most("uplinks", uplinks, MAX_UPLINKS);
        let tenants = document.tenants.iter().map(|t| t.name.span);
        self.at_most("tenants", tenants, MAX_TENANTS);
        // Of what is counted over a whole host tenants' own documents have shares that never
        // come to more: where there is too much, it is of the provider's.
        let provided = || document.tenants.iter().filter(|t| t.self_managed.is_none());
        let endpoints = provided().flat_map(|t| &t.endpoints);
        self.at_most("endpoints", endpoints.map(|e| e.name.span), MAX_ENDPOINTS);
        let guardrails = document.guardrails.iter().map(|g| g.name.span);
        let classes = document.classes.iter().map(|c| c.name.span);
        self.at_most("classes", classes, MAX_CLASSES);
        self.at_most("guardrails", guardrails, MAX_GUARDRAILS);
        let accepts = provided().flat_map(|t| &t.accepts);
        self.at_most("acceptances", accepts.map(|a| a.name.span), MAX_AGREEMENTS);
        let switches: HashMap<&str, String> = (document.tenants.iter())
            .map(|t| (t.name.as_str(), t.compartment()))
            .collect();
        let mut inside = Vec::new();
        for tenant in provided() {
            let own = switches.get(tenant.name.as_str());
            let near = |a: &&Accept| switches.get(a.from.as_str()) == own;
            inside.extend(tenant.accepts.iter().filter(near).map(|a| a.name.span));
        }
        let what = "acceptances inside one switch";
        self.at_most(what, inside.into_iter(), MAX_AGREEMENTS_INSIDE);
        for guardrail in &document.guardrails {
            self.scope_sizes(guardrail.scope());
        }
        for tenant in &document.tenants {
            self.policy_sizes(tenant);
            let subnets = tenant.subnets.iter().map(|s| s.name.span);
            self.at_most("subnets in a tenant", subnets, MAX_SUBNETS);
            let endpoints = tenant.endpoints.iter().map(|e| e.name.span);
            self.at_most("endpoints in a tenant", endpoints, MAX_TENANT_ENDPOINTS);
            let routes = tenant.routes.iter().map(|r| r.to.span);
            self.at_most("routes of a tenant", routes, MAX_ROUTES);
            for outside in &tenant.outside {
                let routes = outside.routes.iter().flatten().map(|r| r.to.span);
                self.at_most("routes outside by one uplink", routes, MAX_ROUTES);
            }
            for endpoint in &tenant.endpoints {
                let prefixes = endpoint.prefixes.iter().map(|p| p.span);
                self.at_most("prefixes behind an endpoint", prefixes, MAX_PREFIXES);
            }
        }
        self.findings.list.len() == before
    }

    fn header(&mut self) {
        let version = self.document.version;
        if version.value != 1 {
            self.findings
                .add(
                    "version",
                    version.span,
                    format!(
                        "version {} of the format is not known to this release",
                        version.value
                    ),
                )
                .help("write `version: 1`");
        }
        let document = self.document;
        let second = match &document.host {
            Some(_) => document.hosts.first(),
            None => document.hosts.get(1),
        };
        if let Some(host) = second {
            self.findings
                .add(
                    "several-hosts",
                    host.name.span,
                    "this release runs one host for each spec",
                )
                .help("write a spec for each host");
        }
    }

    fn uplinks(&mut self) {
        let document = self.document;
        self.distinct(
            "name",
            "uplink",
            document
                .uplinks
                .iter()
                .map(|u| (u.name.value.as_str(), u.name.span)),
        );
        let interfaces = document.uplinks.iter().map(|u| {
            let namespace = u.namespace.as_ref().map_or("", |n| n.as_str());
            ((namespace, u.interface.as_str()), u.interface.span)
        });
        for (first, second, (_, name)) in duplicates(interfaces) {
            self.findings
                .add(
                    "duplicate-interface",
                    second,
                    format!("the interface {name} is an uplink twice"),
                )
                .label("again here")
                .also(first, "first here")
                .help("let the tenants share one uplink");
        }
        for uplink in &document.uplinks {
            self.uplink(uplink);
        }
    }

    fn uplink(&mut self, uplink: &Uplink) {
        if let Some(mtu) = uplink.mtu {
            self.range(mtu, MIN_MTU4, 65_535, "an uplink's mtu");
        }
        if let Some(overhead) = uplink
            .overhead
            .filter(|o| uplink.mtu().saturating_sub(o.value) < MIN_MTU4)
        {
            self.findings
                .add(
                    "mtu",
                    overhead.span,
                    format!(
                        "an overhead of {} leaves less than {MIN_MTU4} of the mtu {}",
                        overhead.value,
                        uplink.mtu()
                    ),
                )
                .help("raise the mtu or lower the overhead");
        }
        if let Some(identity) = uplink.identity.filter(|i| i.value == Identity::Host) {
            self.findings
                .add(
                    "not-yet",
                    identity.span,
                    "`identity: host` is not in this release",
                )
                .help("leave it out: each compartment then has a MAC and addresses of its own");
        }
    }

    fn classes(&mut self) {
        let document = self.document;
        let classes = &document.classes;
        self.distinct(
            "name",
            "class",
            classes.iter().map(|c| (c.name.value.as_str(), c.name.span)),
        );
        let values = classes.iter().flat_map(|c| &c.dscp);
        for (first, second, dscp) in duplicates(values.map(|d| (d.value, d.span))) {
            self.findings
                .add(
                    "duplicate-dscp",
                    second,
                    format!("packets of DSCP {dscp} would be in two classes"),
                )
                .label("again here")
                .also(first, "first here")
                .help("list each value once");
        }
        for class in classes {
            if class.dscp.is_empty() {
                self.findings
                    .add("range", class.name.span, "no packet is in this class")
                    .help("list DSCP values, for example `dscp: [ef]`");
            }
            if let Some(weight) = class.weight {
                self.range(weight, 1, 255, "a weight");
            }
            if let Some(strict) = class.strict.filter(|s| s.value.0 < 8_000) {
                self.findings
                    .add(
                        "range",
                        strict.span,
                        "less than 8kbit before all others helps nobody",
                    )
                    .help("leave it out, and give the class a weight");
            }
        }
    }

    fn tenants(&mut self) {
        let document = self.document;
        self.distinct(
            "name",
            "tenant",
            document
                .tenants
                .iter()
                .map(|t| (t.name.value.as_str(), t.name.span)),
        );
        let ids = document
            .tenants
            .iter()
            .filter_map(|t| t.id)
            .map(|id| (id.value, id.span));
        for (first, second, id) in duplicates(ids) {
            self.findings
                .add(
                    "duplicate-id",
                    second,
                    format!("two tenants have the id {id}"),
                )
                .label("again here")
                .also(first, "first here")
                .help("give one another id, or leave it out");
        }
        for tenant in &document.tenants {
            if tenant.name.as_str() == FABRIC {
                self.findings
                    .add(
                        "reserved-name",
                        tenant.name.span,
                        "no tenant is called `fabric`: commands mean the fabric by it",
                    )
                    .help("give it another name");
            }
            self.tenant(tenant);
        }
    }

    /// What tenants could only take from each other: namespaces and places on an uplink.
    fn attachments(&mut self) {
        let document = self.document;
        let mut taps = HashMap::new();
        let mut stations = HashMap::new();
        let mut addresses: HashMap<(&str, u16, IpAddr), Span> = HashMap::new();
        let mut vlans: HashMap<(&str, u32), Span> = HashMap::new();
        for tenant in &document.tenants {
            for endpoint in &tenant.endpoints {
                let Some((namespace, interface, _)) = endpoint.interface(&tenant.name.value) else {
                    continue;
                };
                let span = endpoint
                    .attach
                    .as_ref()
                    .map_or(endpoint.name.span, |a| a.span);
                if interface == "lo" {
                    let taken = "every namespace has an interface lo of its own";
                    self.findings
                        .add("interface", span, taken)
                        .help("give it another name, or leave `interface` out");
                }
                match taps.entry((namespace, interface)) {
                    Entry::Vacant(entry) => {
                        entry.insert(span);
                    }
                    Entry::Occupied(first) => {
                        let (namespace, interface) = first.key();
                        self.findings
                            .add("duplicate-attachment", span, format!("the interface {interface} in the namespace {namespace} is attached twice"))
                            .label("again here")
                            .also(*first.get(), "first here")
                            .help("give one another `interface` or `namespace`");
                    }
                }
            }
            for segment in tenant.subnets.iter().filter_map(|subnet| subnet.vlan()) {
                self.vlan(segment.uplink.value.as_str(), segment.vlan, &mut vlans);
            }
            for outside in &tenant.outside {
                let uplink = outside.uplink.value.as_str();
                if let Some(vlan) = outside.vlan {
                    self.vlan(uplink, vlan, &mut vlans);
                }
                let first = outside
                    .mac
                    .and_then(|m| stations.insert((uplink, m.value), m.span));
                if let (Some(mac), Some(first)) = (outside.mac, first) {
                    self.findings
                        .add(
                            "duplicate-mac",
                            mac.span,
                            format!("{} is used twice on the uplink {uplink}", mac.value),
                        )
                        .label("again here")
                        .also(first, "first here")
                        .help("leave it out: it is then made");
                }
                for address in &outside.address {
                    // In another VLAN it is another network's.
                    let place = (uplink, outside.vlan(), address.value.address);
                    if let Some(first) = addresses.insert(place, address.span) {
                        self.findings
                            .add(
                                "duplicate-address",
                                address.span,
                                format!(
                                    "{} is used twice on the uplink {uplink}",
                                    address.value.address
                                ),
                            )
                            .label("again here")
                            .also(first, "first here")
                            .help("each tenant has its own address on an uplink");
                    }
                }
            }
        }
    }

    /// A VLAN of an uplink is one way outside's or one subnet's.
    fn vlan<'n>(
        &mut self,
        uplink: &'n str,
        vlan: Located<u32>,
        taken: &mut HashMap<(&'n str, u32), Span>,
    ) {
        self.range(vlan, 1, 4094, "a VLAN");
        let first = taken.insert((uplink, vlan.value), vlan.span);
        if let Some(first) = first {
            let what = format!("VLAN {} of the uplink {uplink} is used twice", vlan.value);
            self.findings
                .add("duplicate-vlan", vlan.span, what)
                .label("again here")
                .also(first, "first here")
                .help("a VLAN is one tenant's alone, for its way outside or one of its subnets");
        }
    }

    /// Reports each name that is given twice.
    fn distinct<'n>(&mut self, what: &str, of: &str, names: impl Iterator<Item = (&'n str, Span)>) {
        for (first, second, name) in duplicates(names) {
            self.findings
                .add(
                    "duplicate-name",
                    second,
                    format!("two {of}s have the {what} `{name}`"),
                )
                .label("again here")
                .also(first, "first here")
                .help("rename one of the two");
        }
    }

    fn at_most(&mut self, what: &str, mut items: impl Iterator<Item = Span>, most: usize) {
        if let Some(span) = items.nth(most) {
            let more = items.count() + 1;
            self.findings
                .add(
                    "too-many",
                    span,
                    format!("{} {what}, more than the limit of {most}", most + more),
                )
                .label("the first one beyond")
                .help("split the spec over several hosts");
        }
    }

    fn range(&mut self, value: Located<u32>, least: u32, most: u32, what: &str) {
        if value.value < least || value.value > most {
            self.findings
                .add(
                    "range",
                    value.span,
                    format!(
                        "{} is out of range: {what} is {least} to {most}",
                        value.value
                    ),
                )
                .help(if value.value < least {
                    format!("at least {least}")
                } else {
                    format!("at most {most}")
                });
        }
    }

    /// Reports a name that is no tenant's.
    fn no_tenant(&mut self, name: &Located<Name>) {
        if self.tenant_names.contains(name.as_str()) {
            return;
        }
        // Who else is here is not told to a tenant.
        let own = self.findings.source.tenant_at(name.span.start).is_some();
        if own && guard!("spec-names-of-others") {
            return;
        }
        let document = self.document;
        let mut known: Vec<&str> = Vec::new();
        if self.findings.list.len() < SUGGESTIONS {
            known.extend(document.tenants.iter().map(|t| t.name.as_str()));
        }
        self.missing(name, "tenant", &known);
    }

    /// Reports a name that refers to nothing.
    fn missing(&mut self, name: &Located<Name>, what: &str, known: &[&str]) {
        if !self.whole {
            return;
        }
        let near = (self.findings.list.len() < SUGGESTIONS)
            .then(|| nearest(name.as_str(), known))
            .flatten();
        let help = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None if known.is_empty() => format!("no {what} is declared here"),
            None => format!("there are: {}", shortened(known)),
        };
        self.findings
            .add(
                "missing-reference",
                name.span,
                format!("there is no {what} `{}`", name.value),
            )
            .label("refers to this")
            .help(help);
    }
}

fn shortened(known: &[&str]) -> String {
    let mut text = known.iter().take(8).copied().collect::<Vec<_>>().join(", ");
    if known.len() > 8 {
        text.push_str(", ...");
    }
    text
}

/// First and repeated place of each value that comes more than once.
fn duplicates<K: core::hash::Hash + Eq + Clone>(
    items: impl Iterator<Item = (K, Span)>,
) -> Vec<(Span, Span, K)> {
    let mut seen: HashMap<K, Span> = HashMap::new();
    let mut found = Vec::new();
    for (key, span) in items {
        match seen.entry(key) {
            Entry::Occupied(first) => found.push((*first.get(), span, first.key().clone())),
            Entry::Vacant(entry) => {
                entry.insert(span);
            }
        }
    }
    found
}
