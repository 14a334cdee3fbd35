//! The provider's document and tenants' own: whose word goes first, and what ends what.

use super::*;
use api::{Audit, AuditEntry, Finding, Happening};

/// The provider's: `blue` says what goes with blue's name.
fn host(blue: &str, more: &str) -> String {
    format!(
        "version: 1
uplinks: [{{name: wan, interface: eth9}}]
tenants:
  - {{name: blue, {blue}}}
  - {{name: lender, self-managed: {{}}}}
{more}"
    )
}

const OUTSIDE: &str = "self-managed: {endpoints: 4}, outside: [{uplink: wan, address: [192.0.2.10/24], gateway: [192.0.2.1]}]";

const BLUE: &str = "version: 1
tenants:
  - name: blue
    subnets: [{name: apps, prefixes: [10.1.1.0/24]}]
    endpoints: [{name: e0, subnet: apps}, {name: e1, subnet: apps}, {name: e2, subnet: apps}]
    routes: [{to: 198.51.100.0/24, via: outside}]
    policy:
      rules: [{name: all, action: allow}]
      reach: [{from: {endpoint: e0}, to: {endpoint: e1}, protocol: tcp, ports: [445], allowed: yes}]
";

const LENDER: &str = "version: 1
tenants:
  - name: lender
    subnets: [{name: data, prefixes: [10.4.4.0/24]}]
    endpoints: [{name: db1, subnet: data}]
    offers: [{name: db, endpoint: db1, protocol: tcp, ports: [5432], to: [blue], pool: [10.4.5.0/28]}]
    policy: {rules: [{name: in, action: allow, to: {endpoint: db1}}], reach: [{from: {endpoint: db1}, to: outside, allowed: no}]}
";

impl Rig {
    async fn provide(&self, text: &str) -> Applied {
        self.good("POST", "/v1/apply?file=host.yaml", text).await
    }

    /// With this spec, and tokens of blue's and of lender's, whose documents are applied.
    async fn with_own(text: &str) -> (Rig, String, String) {
        let rig = Rig::new().await;
        rig.provide(text).await;
        let (blue, lender) = (rig.token("blue").await.text, rig.token("lender").await.text);
        rig.apply_as(&blue, BLUE).await;
        rig.apply_as(&lender, LENDER).await;
        (rig, blue, lender)
    }

    /// What is set aside of a tenant's document, and its endpoints.
    async fn aside(&self, token: &str) -> (String, Vec<Finding>, usize) {
        let status: Status = self.good_as(token, "GET", "/v1/status", "").await;
        let tenant = status.tenants.into_iter().next().unwrap();
        let aside = tenant.aside.unwrap_or_default();
        (aside.what, aside.findings, tenant.endpoints.len())
    }

    fn events(&self, kind: &str) -> Vec<Happening> {
        self.happenings.last(usize::MAX, |one| one.kind == kind)
    }

    async fn last_audited(&self, kind: &str) -> AuditEntry {
        let audit: Audit = self.good("GET", "/v1/audit", "").await;
        let mut found = audit.entries.into_iter().filter(|one| one.kind == kind);
        found.next_back().unwrap()
    }
}

#[tokio::test]
async fn a_tenants_document_does_not_stop_the_provider() {
    let (rig, blue, lender) = Rig::with_own(&host(OUTSIDE, "")).await;
    let plain = "self-managed: {endpoints: 4}";
    let few = OUTSIDE.replace("endpoints: 4", "endpoints: 2");
    for (states, code, endpoints) in [(plain, "route", 3), (&few, "too-many", 2)] {
        // A plan says so before.
        let plan: Plan = rig.good("POST", "/v1/plan", &host(states, "")).await;
        assert!(
            plan.warnings[0]
                .message
                .contains("document of blue is set aside")
        );
        assert_eq!(rig.aside(&blue).await.0, "");
        let applied = rig.provide(&host(states, "")).await;
        let [warning] = &applied.plan.warnings[..] else {
            panic!("{applied:?}")
        };
        assert_eq!(
            (warning.code.as_str(), warning.place.file.as_str()),
            ("set-aside", "blue:own.yaml")
        );
        let (what, findings, left) = rig.aside(&blue).await;
        assert_eq!((what.as_str(), left), ("closed", endpoints), "{findings:?}");
        assert_eq!(findings[0].place.file, "own.yaml");
        assert_ne!(findings[0].place.line, 0, "{code}");
        // Nobody else's, and nothing passes of what it alone allowed.
        assert_eq!(rig.aside(&lender).await.0, "");
        let path = "/v1/explain?from=blue/e0&to=blue/e1&protocol=tcp&port=80";
        let explained: api::Explanation = rig.good_as(&blue, "GET", path, "").await;
        assert!(!explained.allowed);
        assert_eq!(rig.events("set-aside")[0].target, "blue");
        let entry = rig.last_audited("apply").await;
        let said = "aside blue: closed of its own document".to_owned();
        assert!(entry.details.contains(&said) && entry.tenants.contains(&"blue".into()));
        // Another's apply does not bring it back; its own is held to what is stated now.
        rig.apply_as(&lender, &format!("{LENDER}# again\n")).await;
        assert_eq!(rig.aside(&blue).await.0, "closed");
        let (status, _) = rig
            .bad_as(&blue, "POST", "/v1/apply?file=own.yaml", BLUE)
            .await;
        assert_eq!(status, 422);
        // It comes back by itself once it fits again, and is there as it was.
        let applied = rig.provide(&host(OUTSIDE, "")).await;
        assert_eq!(applied.plan.warnings, []);
        assert_eq!(
            (rig.aside(&blue).await.0.as_str(), rig.aside(&blue).await.2),
            ("", 3)
        );
        assert!(!rig.events("set-aside-no-more").is_empty());
    }
    // What is set aside is so after a restart, and until a document that fits comes.
    rig.provide(&host(plain, "")).await;
    let before = rig.objects();
    let rig = rig.restarted().await;
    assert_eq!(
        (rig.objects(), rig.aside(&blue).await.0.as_str()),
        (before, "closed")
    );
    let fits = BLUE.replace("    routes: [{to: 198.51.100.0/24, via: outside}]\n", "");
    rig.apply_as(&blue, &fits).await;
    assert_eq!(rig.aside(&blue).await.0, "");
    // The provider's own mistakes are still refused.
    let bad = host(
        plain,
        "  - {name: x, endpoints: [{name: a, subnet: none}]}\n",
    );
    let (status, fault) = rig.bad("POST", "/v1/apply?file=host.yaml", &bad).await;
    assert_eq!(
        (status.as_u16(), fault.place.unwrap().file.as_str()),
        (422, "host.yaml")
    );
}

#[tokio::test]
async fn its_own_reach_is_told_whole_or_without_others() {
    let (rig, blue, _) = Rig::with_own(&host(OUTSIDE, "")).await;
    rig.books.lock().unwrap().unmet = vec!["blue".into()];
    let own = format!("{BLUE}# again\n");
    let place = |fault: &api::Fault| {
        let place = fault.place.clone().unwrap();
        (place.file, place.line, place.column > 1)
    };
    let reach = ("own.yaml".to_owned(), 9, true);
    for path in ["/v1/plan?file=own.yaml", "/v1/apply?file=own.yaml"] {
        let fault = rig.bad_as(&blue, "POST", path, &own).await.1;
        assert!(
            fault.message.contains("by secretrail, own.yaml:9"),
            "{fault}"
        );
        assert_eq!(
            (fault.code.as_str(), place(&fault)),
            ("unproved", reach.clone())
        );
    }
    // Where that is the name of a guardrail, it is not told.
    rig.books.lock().unwrap().unmet.clear();
    rig.provide(&host(
        OUTSIDE,
        "guardrails: [{name: secretrail, action: deny, protocol: tcp, ports: [445]}]\n",
    ))
    .await;
    rig.books.lock().unwrap().unmet = vec!["blue".into()];
    let path = "/v1/apply?file=own.yaml";
    let fault = rig.bad_as(&blue, "POST", path, &own).await.1;
    assert!(!format!("{fault:?}").contains("secretrail"), "{fault:?}");
    assert!(fault.message.starts_with("your reach at line 9 is not met"));
    assert_eq!(place(&fault), reach);
}

#[tokio::test]
async fn what_a_tenant_asks_for_stops_nobody_else() {
    let (rig, blue, lender) = Rig::with_own(&host(OUTSIDE, "")).await;
    rig.books.lock().unwrap().unmet = vec!["blue".into()];
    let rail = host(
        OUTSIDE,
        "guardrails: [{name: secretrail, action: deny, protocol: tcp, ports: [445]}]\n",
    );
    let plan: Plan = rig.good("POST", "/v1/plan", &rail).await;
    assert!(
        plan.warnings[0]
            .message
            .starts_with("what blue asks for by `reach`")
    );
    let applied = rig.provide(&rail).await;
    assert_eq!(
        (applied.plan.warnings.len(), applied.plan.proof.is_some()),
        (1, true)
    );
    let (what, findings, endpoints) = rig.aside(&blue).await;
    assert_eq!((what.as_str(), endpoints), ("reach", 3));
    assert_eq!(
        (findings[0].place.file.as_str(), findings[0].place.line),
        ("own.yaml", 9)
    );
    let (_, told) = rig.call_as(Some(&blue), "GET", "/v1/status", "").await;
    assert!(!told.contains("secretrail"), "{told}");
    assert_eq!(rig.events("reach-unmet")[0].target, "blue");
    // Another tenant's change, a revocation, a restart.
    rig.apply_as(&lender, &format!("{LENDER}# again\n")).await;
    let _: Applied = rig
        .good_as(&lender, "POST", "/v1/revoke/lender/db", "")
        .await;
    let rig = rig.restarted().await;
    assert_eq!(rig.aside(&blue).await.0, "reach");
    // To its own apply it is held.
    let own = format!("{BLUE}# again\n");
    for path in ["/v1/plan?file=own.yaml", "/v1/apply?file=own.yaml"] {
        assert_eq!(
            rig.bad_as(&blue, "POST", path, &own).await.1.code,
            "unproved"
        );
    }
    rig.books.lock().unwrap().unmet.clear();
    rig.apply_as(&blue, &own).await;
    assert_eq!(rig.aside(&blue).await.0, "");
    // Where it breaks first by another tenant's change.
    rig.books.lock().unwrap().unmet = vec!["blue".into()];
    rig.apply_as(&lender, &format!("{LENDER}# more\n")).await;
    assert_eq!(rig.aside(&blue).await.0, "reach");
    // A breach beside it is one.
    rig.books.lock().unwrap().breaches = vec![(1, "wrong".into())];
    rig.books.lock().unwrap().unmet = vec!["lender".into()];
    let (_, fault) = rig
        .bad("POST", "/v1/apply?file=host.yaml", &host(OUTSIDE, ""))
        .await;
    assert_eq!(fault.code, "unproved");
}

#[tokio::test]
async fn what_a_tenant_states_ends_with_it_and_not_with_a_down() {
    for nobody in ["version: 1\n", "version: 1\ntenants: []\n"] {
        let (rig, blue, _) = Rig::with_own(&host(OUTSIDE, "")).await;
        // A down keeps it, over a restart as well.
        let _: Applied = rig.good("POST", "/v1/down", "").await;
        let rig = rig.restarted().await;
        rig.provide(&host(OUTSIDE, "")).await;
        assert_eq!(rig.aside(&blue).await.2, 3);
        // An apply without it ends it, also after a down.
        let _: Applied = rig.good("POST", "/v1/down", "").await;
        rig.provide(nobody).await;
        let entry = rig.last_audited("token-revoked").await;
        assert_eq!(entry.details, ["its tenant is no more"]);
        let documents = rig.last_audited("apply").await.details;
        assert!(
            documents.contains(&"document blue:own.yaml no more".to_owned()),
            "{documents:?}"
        );
        rig.provide(&host(OUTSIDE, "")).await;
        assert_eq!(rig.bad_as(&blue, "GET", "/v1/status", "").await.0, 401);
        let anew = rig.token("blue").await.text;
        assert_eq!(rig.aside(&anew).await.2, 0, "its document is gone");
    }
}

#[tokio::test]
async fn what_the_provider_revoked_the_tenant_does_not_take_back() {
    let (rig, blue, lender) = Rig::with_own(&host(OUTSIDE, "")).await;
    let own = BLUE.replace(
        "    policy:",
        "    accepts: [{name: lent, from: lender, service: db, as: [10.1.200.10]}]\n    policy:",
    );
    rig.apply_as(&blue, &own).await;
    let (begins, ends) = (
        "agreement lender/db with blue begins",
        "agreement lender/db with blue ends",
    );
    let last = async |rig: &Rig| rig.audited().await.pop().unwrap();
    assert_eq!(last(&rig).await, begins);
    // Either's, and also where the tenant did so before.
    for (token, what) in [(&blue, "blue/lent"), (&lender, "lender/db")] {
        let path = format!("/v1/revoke/{what}");
        let back = format!("{path}?undo=true");
        let _: Applied = rig.good_as(token, "POST", &path, "").await;
        let _: Applied = rig.good("POST", &path, "").await;
        let (status, fault) = rig.bad_as(token, "POST", &back, "").await;
        assert_eq!((status, fault.code.as_str()), (403, "denied"), "{fault}");
        // Not by its document, by another name in it, nor by leaving it out for a while.
        let document = if what == "blue/lent" { &own } else { LENDER };
        let without = |name: &str| {
            let lines = document
                .lines()
                .filter(|line| !line.trim_start().starts_with(name));
            lines.map(|line| format!("{line}\n")).collect::<String>()
        };
        let renamed = own.replace("name: lent", "name: other");
        let mut all = vec![
            format!("{document}# anew\n"),
            without("accepts:"),
            without("offers:"),
        ];
        all.push(document.to_owned());
        if what == "blue/lent" {
            all.push(renamed);
            all.push(document.to_owned());
        }
        for text in all {
            rig.apply_as(token, &text).await;
            assert_eq!(last(&rig).await, ends, "{text}");
        }
        assert_eq!(rig.bad_as(token, "POST", &back, "").await.0, 403);
        rig.provide(&host(OUTSIDE, "")).await;
        assert_eq!(last(&rig).await, ends);
        // The provider does.
        let _: Applied = rig.good("POST", &back, "").await;
        assert_eq!(last(&rig).await, begins);
        // Also where the tenant has given it another name meanwhile.
        if what == "blue/lent" {
            let _: Applied = rig.good("POST", &path, "").await;
            rig.apply_as(token, &own.replace("name: lent", "name: other"))
                .await;
            assert_eq!(last(&rig).await, ends);
            let _: Applied = rig.good("POST", &back, "").await;
            assert_eq!(last(&rig).await, begins);
            rig.apply_as(token, &own).await;
        }
        // What the tenant revoked the provider takes back as well.
        let _: Applied = rig.good_as(token, "POST", &path, "").await;
        let _: Applied = rig.good("POST", &back, "").await;
        assert_eq!(last(&rig).await, begins);
    }
}

#[tokio::test]
async fn what_is_revoked_is_listed_and_given_as_the_reason() {
    const ALONE: &str = "self-managed: {endpoints: 4}";
    let rig = Rig::new().await;
    rig.provide(&host(ALONE, "")).await;
    let (blue, lender) = (rig.token("blue").await.text, rig.token("lender").await.text);
    rig.apply_as(&lender, LENDER).await;
    let own = BLUE.replace("    routes: [{to: 198.51.100.0/24, via: outside}]\n", "");
    let own = own.replace(
        "    policy:",
        "    accepts: [{name: lent, from: lender, service: db, as: [10.1.200.10]}]\n    policy:",
    );
    rig.apply_as(&blue, &own).await;
    let status = async |token: Option<&str>| -> Status {
        match token {
            Some(token) => rig.good_as(token, "GET", "/v1/status", "").await,
            None => rig.good("GET", "/v1/status", "").await,
        }
    };
    let lines =
        |of: &Status| -> Vec<String> { of.revoked.iter().map(|it| it.to_string()).collect() };
    let asked = "/v1/explain?from=blue/e0&to=10.1.200.10&protocol=tcp&port=5432";
    for (token, key, by, half, generic) in [
        (
            &lender,
            "lender/db",
            "its tenant",
            "blue/lent",
            "lender does not offer it db",
        ),
        (
            &blue,
            "blue/lent",
            "its tenant",
            "lender/db",
            "blue does not accept it",
        ),
        (
            &lender,
            "lender/db",
            "the provider of this host",
            "blue/lent",
            "lender does not offer it db",
        ),
        (
            &blue,
            "blue/lent",
            "the provider of this host",
            "lender/db",
            "blue does not accept it",
        ),
    ] {
        let path = format!("/v1/revoke/{key}");
        let applied: Applied = match by {
            "its tenant" => rig.good_as(token, "POST", &path, "").await,
            _ => rig.good("POST", &path, "").await,
        };
        let begin = format!("{key} is revoked by {by}: `bulkhead revoke --undo {key}`");
        let told = status(None).await;
        assert!(
            lines(&told).len() == 1 && lines(&told)[0].starts_with(&begin),
            "{:?}",
            told.revoked
        );
        let halves = |of: &[api::Half]| -> Vec<String> {
            of.iter()
                .map(|it| format!("{}/{}: {}", it.tenant, it.name, it.lacks))
                .collect()
        };
        assert!(
            halves(&told.halves)[0].starts_with(&format!("{half}: {begin}")),
            "{:?}",
            told.halves
        );
        let plan: api::Plan = rig
            .good("POST", "/v1/plan?file=h.yaml", &host(ALONE, ""))
            .await;
        assert_eq!(plan.halves, told.halves);
        // A tenant is told of its own; of what another revoked, that it is not there.
        let (owner, other) = match key {
            "blue/lent" => (&blue, &lender),
            _ => (&lender, &blue),
        };
        assert_eq!(lines(&status(Some(owner)).await), lines(&told));
        let others = status(Some(other)).await;
        assert_eq!(
            (lines(&others), halves(&others.halves)),
            (vec![], vec![format!("{half}: {generic}")])
        );
        assert_eq!(applied.plan.halves.len(), usize::from(by != "its tenant"));
        for asked in [asked, "/v1/explain?from=lender/db1&to=blue/e0"] {
            let explained: api::Explanation = rig.good("GET", asked, "").await;
            assert_eq!(explained.revoked, told.revoked, "{:?}", explained.there);
        }
        let explained: api::Explanation = rig.good_as(&blue, "GET", asked, "").await;
        assert_eq!(explained.revoked.len(), usize::from(key == "blue/lent"));
        let back = format!("{path}?undo=true");
        let _: Applied = rig.good("POST", &back, "").await;
        let after = status(None).await;
        assert_eq!((lines(&after), after.halves), (vec![], vec![]));
        assert_eq!(after.history[0].source, format!("revoke --undo {key}"));
        let explained: api::Explanation = rig.good("GET", asked, "").await;
        assert!(!explained.there.is_empty() && explained.revoked.is_empty());
    }
    let (_, fault) = rig.bad("POST", "/v1/revoke/lender/bd", "").await;
    assert!(fault.help.contains("`bulkhead status`"), "{fault}");
}

#[tokio::test]
async fn an_entry_says_what_was_changed_whatever_others_call_their_files() {
    let rig = Rig::new().await;
    let many: String = (0..170)
        .map(|n| format!("  - {{name: a{n:03}, self-managed: {{}}}}\n"))
        .collect();
    rig.provide(&host(OUTSIDE, &many)).await;
    let (blue, lender) = (rig.token("blue").await.text, rig.token("lender").await.text);
    let own = |n: usize| {
        format!(
            "version: 1\ntenants:\n  - name: a{n:03}\n    subnets: [{{name: s, prefixes: [10.1.1.0/24]}}]\n"
        )
    };
    let long = "%F0%9F%98%80".repeat(255);
    for n in 0..17 {
        let token = rig.token(&format!("a{n:03}")).await.text;
        let path = format!("/v1/apply?file={long}");
        let _: Applied = rig.good_as(&token, "POST", &path, &own(n)).await;
    }
    let accepts = BLUE.replace(
        "    policy:",
        "    accepts: [{name: lent, from: lender, service: db, as: [10.1.200.10]}]\n    policy:",
    );
    rig.apply_as(&blue, &accepts).await;
    rig.apply_as(&lender, LENDER).await;
    let entry = rig.last_audited("apply").await;
    let begins = "agreement lender/db with blue begins".to_owned();
    assert!(entry.details[0].starts_with("document lender:own.yaml sha256:"));
    assert_eq!(entry.details[1], begins);
    assert!(entry.details.iter().all(|line| !line.contains('\u{1F600}')));
    // Where all of them change at once, everything is said, in as many entries as it takes.
    rig.provide(&host(OUTSIDE, "")).await;
    let audit: Audit = rig.good("GET", "/v1/audit", "").await;
    let lines = audit.entries.iter().flat_map(|entry| &entry.details);
    assert_eq!(lines.filter(|line| line.ends_with("own.yaml no more") || line.ends_with("\u{1F600} no more")).count(), 17);
    let blues: Audit = rig.good_as(&blue, "GET", "/v1/audit", "").await;
    assert!(
        blues
            .entries
            .iter()
            .any(|entry| entry.details.contains(&begins))
    );
}

#[tokio::test]
async fn what_is_revoked_stays_so_while_its_document_is_set_aside() {
    let (rig, blue, _) = Rig::with_own(&host(OUTSIDE, "")).await;
    let accepts = "    accepts: [{name: d, from: lender, service: db, as: [10.1.9.9]}, {name: f, from: lender, service: other, as: [10.1.9.8]}]\n    policy:\n";
    rig.apply_as(&blue, &BLUE.replace("    policy:\n", accepts))
        .await;
    let revoke = async |name: &str, undo: bool| -> Applied {
        let path = format!("/v1/revoke/blue/{name}?undo={undo}");
        rig.good_as(&blue, "POST", &path, "").await
    };
    assert!(!revoke("d", false).await.already);
    let plain = host("self-managed: {endpoints: 4}", "");
    rig.provide(&plain).await;
    assert_eq!(rig.aside(&blue).await.0, "closed");
    assert!(revoke("d", false).await.already);
    // Also what nobody looks into just now, but nothing that it does not state.
    assert!(!revoke("f", false).await.already);
    let path = "/v1/revoke/blue/nothing";
    let (status, fault) = rig.bad_as(&blue, "POST", path, "").await;
    assert_eq!((status, fault.code.as_str()), (404, "not-found"));
    rig.provide(&format!("{plain}# again\n")).await;
    rig.provide(&host(OUTSIDE, "")).await;
    assert_eq!(rig.aside(&blue).await.0, "");
    for name in ["d", "f"] {
        assert!(revoke(name, false).await.already, "{name}");
        assert!(!revoke(name, true).await.already, "{name}");
    }
}

#[tokio::test]
async fn what_a_tenant_asks_for_does_not_stop_a_restart() {
    let (rig, blue, _) = Rig::with_own(&host(OUTSIDE, "")).await;
    let digests = |rig: &Rig| -> Vec<[u8; 32]> {
        let books = rig.books.lock().unwrap();
        books.images.values().map(|(digest, _)| *digest).collect()
    };
    let applied = digests(&rig);
    // Something else lies in blue's seat, and what blue asks for does not hold any more.
    rig.books.lock().unwrap().images.get_mut(&1).unwrap().0 = [7; 32];
    rig.books.lock().unwrap().unmet = vec!["blue".into()];
    let rig = rig.restarted().await;
    assert_eq!(digests(&rig), applied);
    assert_eq!(rig.aside(&blue).await.0, "reach");
    assert_eq!(rig.events("reach-unmet")[0].target, "blue");
    let status: Status = rig.good("GET", "/v1/status", "").await;
    assert_eq!(status.health, "ok");
    // It is known from then on.
    rig.books.lock().unwrap().unmet.clear();
    let rig = rig.restarted().await;
    assert_eq!(rig.aside(&blue).await.0, "reach");
}

#[tokio::test]
async fn who_has_more_than_its_share_is_set_aside_and_stops_nobody() {
    let (rig, blue, lender) = Rig::with_own(&host(OUTSIDE, "")).await;
    let long = format!("{BLUE}#{}\n", "x".repeat(200 << 10));
    rig.apply_as(&blue, &long).await;
    let many: String = (0..200)
        .map(|n| format!("  - {{name: a{n:03}, self-managed: {{}}}}\n"))
        .collect();
    let applied = rig.provide(&host(OUTSIDE, &many)).await;
    let [warning] = &applied.plan.warnings[..] else {
        panic!("{applied:?}")
    };
    assert!(warning.message.contains("its share"), "{warning:?}");
    assert_eq!(rig.aside(&blue).await.0, "whole");
    rig.apply_as(&lender, &format!("{LENDER}# again\n")).await;
    // To its own apply the share is held; what is within it takes its place.
    let (status, fault) = rig
        .bad_as(&blue, "POST", "/v1/apply?file=own.yaml", &long)
        .await;
    assert_eq!((status, fault.code.as_str()), (422, "spec"));
    assert!(fault.message.contains("its share"), "{fault}");
    rig.apply_as(&blue, BLUE).await;
    assert_eq!(rig.aside(&blue).await.0, "");
}

#[tokio::test]
async fn what_tenants_ask_for_costs_a_change_a_few_proofs_whatever_they_are() {
    const TENANTS: usize = 7;
    let many = |more: &str| -> String {
        let all = (0..TENANTS).map(|n| format!("  - {{name: t{n}, self-managed: {{}}}}\n"));
        format!(
            "version: 1\ntenants:\n  - {{name: plain, self-managed: {{}}}}\n{}{more}",
            all.collect::<String>()
        )
    };
    let rig = Rig::new().await;
    rig.provide(&many("")).await;
    let own = |name: &str, reach: &str| {
        format!(
            "version: 1\ntenants:\n  - name: {name}\n    subnets: [{{name: s, prefixes: [10.1.1.0/24]}}]\n    \
             endpoints: [{{name: a, subnet: s}}, {{name: b, subnet: s}}]\n    policy: {{rules: []{reach}}}\n"
        )
    };
    let reach = ", reach: [{from: {endpoint: a}, to: {endpoint: b}, allowed: no}]";
    let mut tokens = Vec::new();
    for n in 0..TENANTS {
        let name = format!("t{n}");
        tokens.push(rig.token(&name).await.text);
        rig.apply_as(&tokens[n], &own(&name, reach)).await;
    }
    let plain = rig.token("plain").await.text;
    rig.apply_as(&plain, &own("plain", "")).await;
    // A report names one at a time of those that are not met.
    {
        let mut books = rig.books.lock().unwrap();
        books.unmet = (1..TENANTS).map(|n| format!("t{n}")).collect();
        books.named = 1;
    }
    rig.log();
    let applied = rig.provide(&many("# again\n")).await;
    let proofs = rig.log().into_iter().filter(|what| what == "prove").count();
    assert_eq!((proofs, applied.plan.warnings.len()), (3, TENANTS));
    // Also those that nobody looked at are told so, but not who asks for nothing.
    for token in &tokens {
        let (what, findings, _) = rig.aside(token).await;
        assert_eq!((what.as_str(), findings.len()), ("reach", 1));
    }
    assert_eq!(rig.aside(&plain).await.0, "");
    // A tenant's own change does so to others' at most, never to its own.
    rig.books.lock().unwrap().unmet.clear();
    for (n, token) in tokens.iter().enumerate() {
        rig.apply_as(token, &own(&format!("t{n}"), reach)).await;
    }
    rig.books.lock().unwrap().unmet = (1..TENANTS).map(|n| format!("t{n}")).collect();
    rig.log();
    rig.apply_as(&tokens[0], &(own("t0", reach) + "# again\n"))
        .await;
    let proofs = rig.log().into_iter().filter(|what| what == "prove").count();
    assert_eq!((proofs, rig.aside(&tokens[0]).await.0.as_str()), (3, ""));
    assert_eq!(rig.aside(&tokens[1]).await.0, "reach");
}

#[tokio::test]
async fn what_a_tenant_asks_for_is_not_taken_from_a_verifier_that_knows_nothing() {
    let (rig, blue, _) = Rig::with_own(&host(OUTSIDE, "")).await;
    // The controller has been started anew and knows nothing of the verifier, which does not
    // answer when it is shown what is applied.
    let rig = rig.restarted().await;
    rig.log();
    rig.books.lock().unwrap().lost = 1;
    let apply = "/v1/apply?file=own.yaml";
    let own = BLUE.replace(", {name: e2, subnet: apps}", "");
    let (_, fault) = rig.bad_as(&blue, "POST", apply, &own).await;
    assert_eq!(fault.code, "verifier", "{fault}");
    assert_eq!(rig.log(), ["prove"]);
    // The next one shows it again.
    rig.apply_as(&blue, &own).await;
    let proofs = rig.log().into_iter().filter(|what| what == "prove").count();
    assert_eq!(proofs, 2);
    // No change of the provider's waits for it.
    let rig = rig.restarted().await;
    rig.log();
    rig.provide(&host(OUTSIDE, "# more\n")).await;
    let proofs = rig.log().into_iter().filter(|what| what == "prove").count();
    assert_eq!(proofs, 1);
}
