//! What the audit log says of a change, and what of the log a tenant is told.

use crate::happenings::now_ms;
use crate::survey::hex;
use crate::world::World;
use api::{Aside, AuditEntry, Change, Plan};
use guard::guard;
use policy::Agreement;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of what one entry says, at most; the store cuts at a little more.
const LONGEST: usize = 12 << 10;
/// Of what a document's new statement takes back, so many are named; the rest is counted.
const NAMED: usize = 8;

/// Says of an apply what it was in particular, and whom it concerns: which documents it
/// changed, what it did to agreements, revocations and what is set aside, and last the
/// steps. Of these alone the store may cut some and count them: what else does not fit in
/// one entry is said in more.
pub fn entries(mut deed: AuditEntry, old: &World, new: &World, plan: &Plan) -> Vec<AuditEntry> {
    let mut lines = documents(old, new);
    let mut tenants: BTreeSet<String> = deed.tenants.drain(..).collect();
    for (what, before, after) in [("ends", old, new), ("begins", new, old)] {
        let others = agreements(after);
        for agreement in agreements(before).difference(&others) {
            tenants.extend(parties(agreement).map(str::to_owned));
            lines.push(format!("agreement {agreement} {what}"));
        }
    }
    for (what, before, after) in [("no more", old, new), ("from now on", new, old)] {
        let gone = before
            .applied()
            .revoked
            .difference(&after.applied().revoked);
        let mut of: BTreeMap<&String, Vec<&str>> = BTreeMap::new();
        for (tenant, name) in gone {
            of.entry(tenant).or_default().push(name);
        }
        for (tenant, names) in of {
            tenants.insert(tenant.clone());
            lines.extend(revoked(tenant, &names, what));
        }
    }
    let (was, is) = (&old.applied().aside, &new.applied().aside);
    for tenant in new.tenants().iter().map(|one| &one.name) {
        let of = |all: &BTreeMap<String, Aside>| all.get(tenant).map(|one| one.what.clone());
        if of(was) != of(is) {
            let what = of(is).unwrap_or_else(|| "nothing".into());
            tenants.insert(tenant.clone());
            lines.push(format!("aside {tenant}: {what} of its own document"));
        }
    }
    let names: BTreeSet<&str> = (old.tenants().iter().chain(new.tenants()))
        .map(|tenant| tenant.name.as_str())
        .collect();
    let mut steps = Vec::new();
    for change in &plan.changes {
        let Change {
            action,
            object,
            reason,
        } = change;
        tenants.extend(
            owner(object)
                .filter(|name| names.contains(name))
                .map(str::to_owned),
        );
        // What begins and ends has its line above.
        let is_told =
            object.starts_with("agreement ") && ["create", "destroy"].contains(&action.as_str());
        if !is_told {
            steps.push(format!("{action} {object}: {reason}"));
        }
    }
    deed.tenants = tenants.into_iter().collect();
    let mut entries = vec![deed.clone()];
    let mut room = LONGEST;
    for line in lines {
        let length = line.len() + 1;
        if length > room && guard!("audit-goes-on") {
            entries.push(deed.clone());
            room = LONGEST;
        }
        room = room.saturating_sub(length);
        if let Some(entry) = entries.last_mut() {
            entry.details.push(line);
        }
    }
    if let Some(entry) = entries.last_mut() {
        entry.details.extend(steps);
    }
    entries
}

/// A line each for the first of these, and one for how many more there are.
fn revoked(tenant: &str, names: &[&str], what: &str) -> Vec<String> {
    let first = names.iter().take(NAMED);
    let mut lines: Vec<String> = first
        .map(|name| format!("revoked {tenant}/{name} {what}"))
        .collect();
    if names.len() > NAMED {
        let more = names.len() - NAMED;
        lines.push(format!("revoked {tenant}/ {more} more {what}"));
    }
    lines
}

/// The documents that are others than before, with their digests.
fn documents(old: &World, new: &World) -> Vec<String> {
    let (old, new) = (old.applied(), new.applied());
    let line = |name: &str, text: &str| {
        let digest = hex(&Sha256::digest(text));
        format!("document {name} sha256:{digest}")
    };
    let mut lines = Vec::new();
    if (&old.source, &old.spec) != (&new.source, &new.spec) {
        lines.push(line(&new.source, &new.spec));
    }
    for (tenant, of) in &new.documents {
        if old.documents.get(tenant) != Some(of) || !guard!("audit-changed") {
            lines.push(line(&format!("{tenant}:{}", of.source), &of.text));
        }
    }
    for (tenant, of) in &old.documents {
        if !new.documents.contains_key(tenant) {
            lines.push(format!("document {tenant}:{} no more", of.source));
        }
    }
    lines
}

/// Which tenants share which compartment from now on, where that has changed.
pub fn shared(old: &World, new: &World) -> Vec<AuditEntry> {
    let (before, after) = (compartments(old), compartments(new));
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let none = BTreeSet::new();
    let mut deeds = Vec::new();
    for name in names {
        let was = before.get(name).unwrap_or(&none);
        let is = after.get(name).unwrap_or(&none);
        if was == is || (was.len() < 2 && is.len() < 2) {
            continue;
        }
        let list = |tenants: &BTreeSet<String>| match tenants.len() {
            0 => "nobody".to_owned(),
            _ => tenants.iter().cloned().collect::<Vec<_>>().join(", "),
        };
        deeds.push(AuditEntry {
            time_ms: now_ms(),
            tenants: was.union(is).cloned().collect(),
            kind: "shared".into(),
            object: format!("compartment {name}"),
            details: vec![
                format!("from now on: {}", list(is)),
                format!("until now: {}", list(was)),
            ],
            outcome: "done".into(),
            ..AuditEntry::default()
        });
    }
    deeds
}

/// What a tenant is told of an entry: what it did itself as it is, of what others did
/// what concerns it; `None` = nothing does.
pub fn told(entry: &AuditEntry, tenant: &str, tokens: &[String]) -> Option<AuditEntry> {
    if !entry.tenants.iter().any(|one| one == tenant) && guard!("audit-own") {
        return None;
    }
    let id = entry.token.split(' ').next().unwrap_or_default();
    let own = tokens.iter().any(|one| one == id);
    let mut told = AuditEntry {
        tenants: vec![tenant.to_owned()],
        number: 0,
        previous: String::new(),
        digest: String::new(),
        ..entry.clone()
    };
    told.details.retain(|line| concerns(line, tenant));
    if entry.kind == "circuit-cut" {
        told.details = entry
            .details
            .iter()
            .filter_map(|it| cut(it, tenant))
            .collect();
        // Whose it was is known by its ends: not by the compartment, which others may have a part of.
        if told.details.is_empty() && !own && guard!("audit-cut") {
            return None;
        }
    }
    if entry.outcome != "done" {
        told.outcome = "not done".into();
    }
    if entry.kind == "shared" {
        let shares = |line: &String| {
            let names = line.strip_prefix("from now on: ").unwrap_or_default();
            let mut names = names.split(", ");
            names.clone().count() > 1 && names.any(|name| name == tenant)
        };
        told.object = "its compartment".into();
        told.details = vec![match entry.details.iter().any(shares) {
            true => "shared with others from now on".into(),
            false => "shared with others no more".into(),
        }];
    }
    if !own {
        (told.uid, told.pid) = (None, None);
        (told.token, told.by) = (String::new(), String::new());
        if !is_own_deed(entry, tenant) && guard!("audit-object") {
            told.object = String::new();
        }
    }
    Some(told)
}

/// Whether what somebody else did is named by what is this tenant's own.
fn is_own_deed(entry: &AuditEntry, tenant: &str) -> bool {
    let object = entry.object.as_str();
    let alone = entry.tenants == [tenant];
    match entry.kind.as_str() {
        // Its own token.
        "token-created" | "token-revoked" => alone,
        "shared" | "ended" => true,
        "apply" | "down" => false,
        // Itself, or something in it.
        _ => {
            let object = object.strip_prefix("endpoint ").unwrap_or(object);
            object == tenant && alone || object.split_once('/').is_some_and(|(of, _)| of == tenant)
        }
    }
}

/// What a tenant is told of a circuit that was cut ([`described`](crate::circuits::described)): all of one inside of it, else its
/// own end, and by what it went; `None`: it has none.
fn cut(line: &str, tenant: &str) -> Option<String> {
    let (ends, rest) = line.strip_prefix("from ")?.split_once(", ")?;
    let (from, to) = ends.split_once(" to ")?;
    let is_own = |end: &str| end.split_once('/').is_some_and(|(of, _)| of == tenant);
    let by = rest.split_once(", by ").map_or(rest, |(by, _)| by);
    match [from, to].map(is_own) {
        [true, true] => Some(line.to_owned()),
        [true, false] => Some(format!("from {from}, {by}")),
        [false, true] => Some(format!("to {to}, {by}")),
        [false, false] => None,
    }
}

/// Whether a line of an entry is about this tenant.
fn concerns(line: &str, tenant: &str) -> bool {
    let Some((word, rest)) = line.split_once(' ') else {
        return false;
    };
    match word {
        "document" => rest.split_once(':').is_some_and(|(of, _)| of == tenant),
        "agreement" => parties(rest).any(|party| party == tenant),
        "revoked" => rest.split_once('/').is_some_and(|(of, _)| of == tenant),
        "aside" => rest.split_once(':').is_some_and(|(of, _)| of == tenant),
        _ => {
            let object = rest.split_once(": ").map_or(rest, |(object, _)| object);
            is_own(object, tenant)
        }
    }
}

/// Whether what a plan changes is of this tenant alone.
pub fn is_own(object: &str, tenant: &str) -> bool {
    owner(object) == Some(tenant)
}

/// Whose alone something is that a plan changes. What several share goes by no tenant's name.
fn owner(object: &str) -> Option<&str> {
    if let Some(endpoint) = object.strip_prefix("endpoint ") {
        return endpoint.split_once('/').map(|(of, _)| of);
    }
    // Who offers says when that ends.
    if let Some(agreement) = object.strip_prefix("agreement ") {
        return agreement.split_once('/').map(|(of, _)| of);
    }
    for of in ["rules of ", "default of "] {
        if let Some(tenant) = object.strip_prefix(of) {
            return Some(tenant);
        }
    }
    let object = object.strip_prefix("tables of ").unwrap_or(object);
    object.strip_prefix("compartment ")
}

/// The live ones, as `OFFERER/OFFER with ACCEPTOR`.
fn agreements(world: &World) -> BTreeSet<String> {
    let live = world.made().into_iter();
    live.flat_map(|(.., intent)| &intent.agreements)
        .map(name_of)
        .collect()
}

/// `OFFERER/OFFER with ACCEPTOR`.
pub fn name_of(one: &Agreement) -> String {
    format!("{}/{} with {}", one.offerer, one.offer, one.acceptor)
}

fn parties(agreement: &str) -> impl Iterator<Item = &str> {
    let offerer = agreement.split('/').next();
    let acceptor = agreement.split(' ').nth(2);
    offerer.into_iter().chain(acceptor)
}

fn compartments(world: &World) -> BTreeMap<String, BTreeSet<String>> {
    let all = world.compartments().iter();
    all.map(|one| (one.name.clone(), one.tenants.iter().cloned().collect()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_told_what_is_its_own_and_nothing_of_others() {
        let entry = AuditEntry {
            number: 7,
            uid: Some(4711),
            pid: Some(4712),
            tenants: vec!["red".into(), "blue".into()],
            kind: "apply".into(),
            object: "hosts-secret.yaml".into(),
            details: [
                "document hosts-secret.yaml sha256:aa",
                "document red:own.yaml sha256:bb",
                "document blue:own.yaml sha256:cc",
                "agreement red/db with blue begins",
                "agreement red/x with green ends",
                "revoked red/y from now on",
                "create endpoint red/web1: tap eth0 in namespace red-web1 (made)",
                "create endpoint blue/b1: tap eth0 in namespace blue-b1 (made)",
                "install tables of compartment blue: what it forwards by has changed",
                "install tables of the fabric: what it forwards by has changed",
            ]
            .map(str::to_owned)
            .into(),
            outcome: "rolled back: red's endpoint".into(),
            previous: "p".into(),
            digest: "d".into(),
            ..AuditEntry::default()
        };
        let blue = told(&entry, "blue", &[]).unwrap();
        let text = format!("{blue:?}");
        assert_eq!(blue.details.len(), 4, "{text}");
        // Blue's own agreement names the other party, as blue did itself.
        let rest = text.replace("agreement red/db with blue begins", "");
        for secret in ["red", "4711", "4712", "secret", "green", "fabric"] {
            assert!(!rest.contains(secret), "{secret}: {text}");
        }
        assert_eq!(told(&entry, "green", &[]), None);
        let own = AuditEntry {
            token: "id name".into(),
            ..entry
        };
        let own = told(&own, "blue", &["id".into()]).unwrap();
        assert_eq!(
            (own.uid, own.object.as_str()),
            (Some(4711), "hosts-secret.yaml")
        );
    }

    #[test]
    fn of_many_that_are_taken_back_at_once_the_first_are_named_and_all_counted() {
        let names: Vec<String> = (10..210).map(|n| format!("d{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let lines = revoked("red", &names, "no more");
        assert_eq!(lines.len(), NAMED + 1);
        assert_eq!(lines[0], "revoked red/d10 no more");
        assert_eq!(lines[NAMED], "revoked red/ 192 more no more");
        assert!(
            lines
                .iter()
                .all(|line| concerns(line, "red") && !concerns(line, "blue"))
        );
        assert_eq!(revoked("red", &names[..NAMED], "no more").len(), NAMED);
    }

    #[test]
    fn of_whom_it_shares_a_compartment_with_a_tenant_is_told_no_name() {
        let shared = |now: &str| AuditEntry {
            tenants: vec!["crimson".into(), "blue".into()],
            kind: "shared".into(),
            object: "compartment zone:secret".into(),
            details: vec![format!("from now on: {now}"), "until now: nobody".into()],
            outcome: "done".into(),
            ..AuditEntry::default()
        };
        let text = |now| format!("{:?}", told(&shared(now), "blue", &[]).unwrap());
        let (both, alone) = (text("blue, crimson"), text("crimson, green"));
        assert!(both.contains("shared with others from now on"), "{both}");
        assert!(alone.contains("shared with others no more"), "{alone}");
        for secret in ["crimson", "secret", "green"] {
            assert!(
                !both.contains(secret) && !alone.contains(secret),
                "{both}{alone}"
            );
        }
    }

    #[test]
    fn of_a_circuit_that_was_cut_a_tenant_is_told_its_own_end() {
        let entry = |details: &[&str]| AuditEntry {
            tenants: vec!["red".into(), "blue".into(), "crimson".into()],
            kind: "circuit-cut".into(),
            object: "circuit 1-7".into(),
            details: details.iter().map(|one| (*one).to_owned()).collect(),
            outcome: "done".into(),
            ..AuditEntry::default()
        };
        let across = entry(&[
            "from red/web 10.1.1.10:40001 to blue/db 10.2.1.11:6379, tcp, kernel, by rule red/out (hosts.yaml:9) and default",
        ]);
        let details = |entry: &AuditEntry, tenant| told(entry, tenant, &[]).map(|it| it.details);
        let line = |one: &str| Some(vec![one.to_owned()]);
        let from = "from red/web 10.1.1.10:40001, tcp, kernel";
        assert_eq!(details(&across, "red"), line(from));
        let to = "to blue/db 10.2.1.11:6379, tcp, kernel";
        assert_eq!(details(&across, "blue"), line(to));
        // It shares the compartment, and has no part in it.
        assert_eq!(details(&across, "crimson"), None);
        assert_eq!(told(&across, "blue", &[]).unwrap().object, "");
        let inside =
            "from red/web 10.1.1.10:1 to red/db 10.1.1.11:2, tcp, ring, by default and default";
        assert_eq!(details(&entry(&[inside]), "red"), line(inside));
        // One that nobody knew.
        assert_eq!(details(&entry(&[]), "red"), None);
    }

    #[test]
    fn an_object_is_told_where_it_is_the_tenants_own() {
        let entry = |kind: &str, object: &str, tenants: &[&str]| AuditEntry {
            tenants: tenants.iter().map(|one| (*one).to_owned()).collect(),
            kind: kind.into(),
            object: object.into(),
            outcome: "done".into(),
            ..AuditEntry::default()
        };
        let both = ["blue", "crimson"];
        for (kind, object, tenants) in [
            ("release", "zone:secret", &both[..]),
            ("release", "endpoint crimson/a", &both),
            ("release", "blue", &both),
            ("capture", "crimson", &both),
            ("capture", "crimson/a", &both),
            ("capture", "all", &both),
            ("capture", "bluer/a", &both),
            ("revoke", "crimson/db", &both),
            ("apply", "host.yaml", &both),
            ("down", "blue/x", &["blue"]),
            ("token-revoked", "id name", &both),
            ("of a later release", "crimson", &both),
        ] {
            let told = told(&entry(kind, object, tenants), "blue", &[]).unwrap();
            assert_eq!(told.object, "", "{kind} {object}");
        }
        for (kind, object) in [
            ("release", "blue"),
            ("release", "endpoint blue/a"),
            ("capture", "blue/a"),
            ("revoke", "blue/db"),
            ("token-created", "id name"),
        ] {
            let told = told(&entry(kind, object, &["blue"]), "blue", &[]).unwrap();
            assert_eq!(told.object, object, "{kind}");
        }
    }
}
