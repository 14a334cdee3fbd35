//! Tenants' tokens: what one is good for, and that it is good for nothing else.

use super::*;
use api::{Audit, AuditCheck, NewToken, Tokens};
use serde_json::Value;
use std::os::fd::AsRawFd;

/// What one tenant may never learn of the other, each word found nowhere else.
const SECRETS: [&str; 15] = [
    "crimsonhost",
    "crimsonlan",
    "crimsonrule",
    "crimsonoffer",
    "crimsonrail",
    "crimsonzone",
    "crimsonuplink",
    "crimsonif",
    "10.77.88.",
    "10.66.55.",
    "fd77:88::",
    "secret-host.yaml",
    "other-tenant",
    "lendersdb",
    "10.44.",
];

/// The provider's: a tenant with something to hide, one more in its compartment, and two
/// that manage themselves.
const HOST: &str = r#"version: 1
uplinks: [{name: crimsonuplink, interface: crimsonif}]
guardrails: [{name: crimsonrail, action: deny, protocol: tcp, ports: [25]}]
tenants:
  - name: crimson
    placement: {per: zone, zone: crimsonzone}
    subnets: [{name: crimsonlan, prefixes: [10.77.88.0/24, "fd77:88::/64"]}]
    endpoints: [{name: crimsonhost, subnet: crimsonlan, addresses: [10.77.88.99]}]
    policy: {rules: [{name: crimsonrule, action: allow, to: {endpoint: crimsonhost}, protocol: tcp, ports: [5432]}]}
    offers: [{name: crimsonoffer, endpoint: crimsonhost, protocol: tcp, ports: [5432], to: [other-tenant], pool: [10.66.55.0/28]}]
  - name: other-tenant
    placement: {per: tenant}
    subnets: [{name: lan, prefixes: [10.77.88.0/24]}]
    endpoints: [{name: o1, subnet: lan}]
  - name: green
    placement: {per: zone, zone: crimsonzone}
    subnets: [{name: lan, prefixes: [10.1.1.0/24]}]
    endpoints: [{name: g1, subnet: lan}]
    policy: {rules: [{name: greens, action: allow, to: {endpoint: g1}}]}
  - {name: blue, self-managed: {endpoints: 3, rules: 2}}
  - {name: lender, self-managed: {}}
"#;

const BLUE: &str = r#"version: 1
tenants:
  - name: blue
    subnets: [{name: apps, prefixes: [10.1.1.0/24]}]
    endpoints: [{name: e0, subnet: apps}]
    accepts: [{name: lent, from: lender, service: db, as: [10.1.200.10]}]
"#;

const LENDER: &str = r#"version: 1
tenants:
  - name: lender
    subnets: [{name: data, prefixes: [10.44.33.0/24]}]
    endpoints: [{name: lendersdb, subnet: data}]
    offers: [{name: db, endpoint: lendersdb, protocol: tcp, ports: [5432], to: [blue], pool: [10.44.34.0/28]}]
"#;

impl Rig {
    /// What comes within a moment of an answer that may have no end.
    pub(super) async fn call_as(
        &self,
        token: Option<&str>,
        method: &str,
        path: &str,
        body: &str,
    ) -> (StatusCode, String) {
        let stream = tokio::net::UnixStream::connect(&self.socket).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        let mut request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header("host", "x");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request
            .body(Full::new(Bytes::from(body.to_owned())))
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        let status = response.status();
        let mut body = response.into_body();
        let mut said = Vec::new();
        while let Ok(Some(Ok(frame))) =
            tokio::time::timeout(Duration::from_millis(200), body.frame()).await
        {
            said.extend(frame.into_data().unwrap_or_default());
        }
        (status, String::from_utf8_lossy(&said).into_owned())
    }

    pub(super) async fn good_as<T: DeserializeOwned>(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: &str,
    ) -> T {
        let (status, said) = self.call_as(Some(token), method, path, body).await;
        assert!(status.is_success(), "{path}: {status}: {said}");
        serde_json::from_str(&said).unwrap()
    }

    pub(super) async fn bad_as(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: &str,
    ) -> (u16, Fault) {
        let (status, said) = self.call_as(Some(token), method, path, body).await;
        assert!(!status.is_success(), "{path}: {said}");
        (status.as_u16(), serde_json::from_str(&said).unwrap())
    }

    pub(super) async fn token(&self, tenant: &str) -> NewToken {
        let path = format!("/v1/tokens?tenant={tenant}&name=ci");
        self.good("POST", &path, "").await
    }

    /// With the host's spec, and a token of blue's.
    pub(super) async fn with_tenants() -> (Rig, String) {
        let rig = Rig::new().await;
        let path = "/v1/apply?file=secret-host.yaml";
        let _: Applied = rig.good("POST", path, HOST).await;
        let token = rig.token("blue").await.text;
        (rig, token)
    }

    pub(super) async fn apply_as(&self, token: &str, document: &str) -> Applied {
        self.good_as(token, "POST", "/v1/apply?file=own.yaml", document)
            .await
    }

    /// The agreements that are live, by what the audit log says of them.
    pub(super) async fn audited(&self) -> Vec<String> {
        let audit: Audit = self.good("GET", "/v1/audit", "").await;
        let lines = audit.entries.into_iter().flat_map(|entry| entry.details);
        lines
            .filter(|line| line.starts_with("agreement "))
            .collect()
    }
}

/// Each path of the description, with something for each of its parameters.
fn asked(description: &Value, tenant: &str, endpoint: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let path = path
                .replace("{tenant}", tenant)
                .replace("{endpoint}", endpoint)
                .replace("{name}", endpoint)
                .replace("{compartment}", tenant)
                .replace("{id}", "0");
            let method = method.to_uppercase();
            let mut queries = vec![String::new(), "?over_ms=1&last=4096&most=1000".into()];
            let parameters = operation["parameters"].as_array();
            let named: Vec<&str> = parameters
                .into_iter()
                .flatten()
                .filter(|one| one["in"] == "query")
                .filter_map(|one| one["name"].as_str())
                .collect();
            let both = format!("{tenant}/{endpoint}");
            for (word, value) in [
                ("tenant", tenant),
                ("endpoint", tenant),
                ("endpoint", &both),
                ("from", &both),
                ("to", &both),
            ] {
                if named.contains(&word) {
                    queries.push(format!("?{word}={value}"));
                }
            }
            if named.contains(&"from") && named.contains(&"to") && path.contains("explain") {
                for (from, to) in [
                    ("blue/e0", both.as_str()),
                    (&both, "blue/e0"),
                    (&both, &both),
                ] {
                    queries.push(format!("?from={from}&to={to}"));
                }
                queries.push("?from=blue/e0&to=10.77.88.99".into());
                queries.push("?from=blue/e0&to=10.1.200.10&protocol=tcp&port=5432".into());
                queries.push("?from=10.77.88.99&to=blue/e0".into());
            }
            all.extend(
                queries
                    .into_iter()
                    .map(|query| (method.clone(), path.clone() + &query)),
            );
        }
    }
    all
}

#[tokio::test]
async fn no_answer_to_a_tenant_has_anything_of_another_in_it() {
    let (rig, blue) = Rig::with_tenants().await;
    let lender = rig.token("lender").await.text;
    rig.apply_as(&lender, LENDER).await;
    rig.apply_as(&blue, BLUE).await;
    rig.happenings
        .say("applied", "by crimsonhost in secret-host.yaml".into());
    rig.happenings.of_endpoint(
        1,
        "rule",
        "zone:crimsonzone",
        "crimson/crimsonhost".into(),
        "crimsonrule".into(),
    );
    let green = rig.token("green").await.text;
    let description: Value = rig.good("GET", "/openapi.json", "").await;
    let routes = asked(&description, "crimson", "crimsonhost");
    assert!(routes.len() > 60, "{}", routes.len());
    let bodies = ["", HOST, BLUE, "version: 1\ntenants: [{name: crimson}]\n"];
    for token in [&blue, &green] {
        for (method, path) in &routes {
            let bodies = if method == "POST" {
                &bodies[..]
            } else {
                &bodies[..1]
            };
            for body in bodies {
                let (status, said) = rig.call_as(Some(token), method, path, body).await;
                // What it was asked about by name a refusal may say back; that it makes no
                // difference whether there is such a thing is asked below.
                let refused = status.as_u16() >= 400;
                let asked = |word: &str| path.contains(word) || refused && body.contains(word);
                for secret in SECRETS {
                    let told = said.contains(secret) && !asked(secret);
                    assert!(!told, "{method} {path}: {secret}: {status} {said}");
                }
                let told = said.contains("crimson") && !asked("crimson");
                assert!(!told, "{method} {path}: {said}");
            }
        }
    }
    // Who serves is told nothing of who uses it but that it does.
    for path in asked(&description, "lender", "lendersdb")
        .into_iter()
        .chain([
            (
                "GET".into(),
                "/v1/explain?from=10.44.34.0&to=lender/lendersdb&protocol=tcp&port=5432".into(),
            ),
            (
                "GET".into(),
                "/v1/explain?from=lender/lendersdb&to=10.44.34.0&protocol=tcp&port=9".into(),
            ),
        ])
    {
        let (method, path) = path;
        if method == "GET" && !path.contains("openapi") {
            let (_, said) = rig.call_as(Some(&lender), &method, &path, "").await;
            let own = path.contains("blue/e0") || path.contains("10.1.");
            for secret in ["10.1.", "apps", "blue/"] {
                assert!(own || !said.contains(secret), "{path}: {secret}: {said}");
            }
        }
    }
    // Whether something of another exists, or not, makes no difference.
    let others = asked(&description, "nobody7", "nobodyshost");
    for ((method, path), (_, other)) in routes.iter().zip(&others) {
        if path == other || path.contains("/v1/audit") || method == "POST" {
            continue;
        }
        let (status, said) = rig.call_as(Some(&blue), method, path, "").await;
        let (none, nothing) = rig.call_as(Some(&blue), method, other, "").await;
        let same = |said: &str| {
            let said = said.replace("crimsonhost", "X").replace("nobodyshost", "X");
            said.replace("crimson", "Y").replace("nobody7", "Y")
        };
        let took = |said: &str| said.contains("\"time_ms\"") || said.contains("\"seconds\"");
        assert_eq!(status, none, "{path}: {said} {nothing}");
        assert!(
            same(&said) == same(&nothing) || took(&said),
            "{path}: {said} {nothing}"
        );
    }
    // The same questions are answered to the host's own user.
    let (_, status) = rig.call_as(None, "GET", "/v1/status", "").await;
    assert!(status.contains("crimsonhost") && status.contains("secret-host.yaml"));
}

#[tokio::test]
async fn a_tenant_sees_its_own() {
    let (rig, blue) = Rig::with_tenants().await;
    rig.apply_as(&blue, BLUE).await;
    let status: Status = rig.good_as(&blue, "GET", "/v1/status", "").await;
    let names: Vec<&str> = status.tenants.iter().map(|one| one.name.as_str()).collect();
    assert_eq!((names, status.compartments.len()), (vec!["blue"], 1));
    assert_eq!(status.tenants[0].endpoints[0].name, "e0");
    assert_eq!(
        (status.epoch, status.history.len(), status.uplinks.len()),
        (0, 0, 0)
    );
    let why: Why = rig.good_as(&blue, "GET", "/v1/why/blue/e0", "").await;
    assert!(why.healthy, "{why:?}");
    let (_, spec) = rig.call_as(Some(&blue), "GET", "/v1/spec", "").await;
    assert_eq!(spec, BLUE);
    let (_, spec) = rig.call_as(None, "GET", "/v1/spec", "").await;
    assert_eq!(spec, HOST, "the provider's own is as it was");
    let (_, spec) = rig.call_as(None, "GET", "/v1/spec?tenant=blue", "").await;
    assert_eq!(spec, BLUE);
    let explained: api::Explanation = rig
        .good_as(
            &blue,
            "GET",
            "/v1/explain?from=blue/e0&to=10.1.1.1&protocol=tcp&port=25",
            "",
        )
        .await;
    let verdict = &explained.there[0].verdicts[0];
    assert!(!explained.allowed);
    assert_eq!(
        (verdict.by.as_str(), verdict.name.as_str()),
        ("guardrail", "")
    );
}

#[tokio::test]
async fn a_token_is_good_until_it_is_revoked_and_for_what_it_says() {
    let (rig, blue) = Rig::with_tenants().await;
    let look: NewToken = rig
        .good("POST", "/v1/tokens?tenant=blue&read_only=true", "")
        .await;
    let (status, fault) = rig.bad_as(&look.text, "POST", "/v1/apply", BLUE).await;
    assert_eq!((status, fault.code.as_str()), (403, "denied"));
    let _: Plan = rig
        .good_as(&look.text, "POST", "/v1/plan?file=own.yaml", BLUE)
        .await;
    let (status, _) = rig
        .bad_as(&look.text, "GET", "/v1/capture?endpoint=blue/e0", "")
        .await;
    assert_eq!(status, 403);
    for path in [
        "/v1/tokens?tenant=blue",
        "/v1/down",
        "/v1/release/blue",
        "/v1/release/blue/e0",
    ] {
        assert_eq!(rig.bad_as(&blue, "POST", path, "").await.0, 403, "{path}");
    }
    for path in ["/metrics", "/v1/verify", "/v1/dump/blue", "/v1/audit/check"] {
        assert_eq!(rig.bad_as(&blue, "GET", path, "").await.0, 403, "{path}");
    }
    // Own ones only: others' are not there.
    let all: Tokens = rig.good_as(&blue, "GET", "/v1/tokens", "").await;
    assert_eq!(all.tokens.len(), 2);
    let green = rig.token("green").await;
    let path = format!("/v1/tokens/{}/revoke", green.token.id);
    assert_eq!(rig.bad_as(&blue, "POST", &path, "").await.0, 404);
    let path = format!("/v1/tokens/{}/revoke", look.token.id);
    let _: api::Token = rig.good_as(&blue, "POST", &path, "").await;
    let (status, fault) = rig.bad_as(&look.text, "GET", "/v1/status", "").await;
    assert_eq!((status, fault.code.as_str()), (401, "unauthenticated"));
    // It is so after a restart, and the digest alone is in the store.
    let rig = rig.restarted().await;
    assert_eq!(rig.bad_as(&look.text, "GET", "/v1/status", "").await.0, 401);
    let _: Status = rig.good_as(&blue, "GET", "/v1/status", "").await;
    let stored = std::fs::read(rig.folder.path().join("store")).unwrap();
    let has = |text: &str| stored.windows(text.len()).any(|one| one == text.as_bytes());
    assert!(!has(&blue) && has(&green.token.id));
}

#[tokio::test]
async fn a_token_that_is_none_lets_nobody_in_not_even_root() {
    let (rig, blue) = Rig::with_tenants().await;
    let long = "x".repeat(20_000);
    let cut = &blue[..blue.len() - 1];
    for bad in [
        "",
        "x",
        "bulkhead",
        "bulkhead__",
        "bulkhead_0_0",
        "\u{fc}",
        cut,
        &long,
    ] {
        assert_eq!(
            rig.bad_as(bad, "GET", "/v1/status", "").await.0,
            401,
            "{bad}"
        );
    }
    let past = rig.bad("POST", "/v1/tokens?tenant=blue&until=1", "").await;
    assert_eq!(past.0.as_u16(), 422);
    let nobody = rig.bad("POST", "/v1/tokens?tenant=nobody", "").await;
    assert_eq!(nobody.0.as_u16(), 404);
    let _: Status = rig.good("GET", "/v1/status", "").await;
}

#[tokio::test]
async fn a_token_ends_with_its_tenant_and_not_with_a_down() {
    let (rig, blue) = Rig::with_tenants().await;
    rig.apply_as(&blue, BLUE).await;
    let _: Applied = rig.good("POST", "/v1/down", "").await;
    assert_eq!(rig.bad_as(&blue, "GET", "/v1/status", "").await.0, 401);
    let _: Applied = rig.good("POST", "/v1/apply?file=h.yaml", HOST).await;
    let status: Status = rig.good_as(&blue, "GET", "/v1/status", "").await;
    assert_eq!(
        status.tenants[0].endpoints.len(),
        1,
        "its document was kept"
    );
    // Another blue is somebody else.
    let without = HOST.replace(
        "  - {name: blue, self-managed: {endpoints: 3, rules: 2}}\n",
        "",
    );
    let _: Applied = rig.good("POST", "/v1/apply?file=h.yaml", &without).await;
    let _: Applied = rig.good("POST", "/v1/apply?file=h.yaml", HOST).await;
    assert_eq!(rig.bad_as(&blue, "GET", "/v1/status", "").await.0, 401);
    let anew = rig.token("blue").await.text;
    let status: Status = rig.good_as(&anew, "GET", "/v1/status", "").await;
    assert!(
        status.tenants[0].endpoints.is_empty(),
        "its document is gone"
    );
}

#[tokio::test]
async fn a_stream_ends_with_its_token() {
    let (rig, _) = Rig::with_tenants().await;
    let made = rig.token("blue").await;
    let stream = tokio::net::UnixStream::connect(&rig.socket).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::builder()
        .uri("/v1/events")
        .header("host", "x")
        .header("authorization", format!("Bearer {}", made.text))
        .body(Full::new(Bytes::new()))
        .unwrap();
    let mut body = sender.send_request(request).await.unwrap().into_body();
    assert!(body.frame().await.is_some());
    let path = format!("/v1/tokens/{}/revoke", made.token.id);
    let _: api::Token = rig.good("POST", &path, "").await;
    let ended = tokio::time::timeout(Duration::from_secs(5), async {
        while let Some(Ok(_)) = body.frame().await {}
    });
    ended.await.expect("it goes on");
}

#[tokio::test]
async fn a_tenants_document_changes_its_own_and_survives_the_providers() {
    let (rig, blue) = Rig::with_tenants().await;
    let before = rig.objects();
    let applied = rig.apply_as(&blue, BLUE).await;
    let own: Vec<&str> = applied
        .plan
        .changes
        .iter()
        .map(|one| one.object.as_str())
        .collect();
    assert!(own.contains(&"endpoint blue/e0"), "{own:?}");
    assert!(own.iter().all(|one| one.contains("blue")), "{own:?}");
    let after = rig.objects();
    assert!(
        before
            .iter()
            .all(|(key, digest)| after.get(key) == Some(digest))
    );
    assert_eq!(after.len(), before.len() + 1);
    // The provider applies the same again, and another controller comes.
    let again: Applied = rig
        .good("POST", "/v1/apply?file=secret-host.yaml", HOST)
        .await;
    assert_eq!(again.plan.changes, []);
    let rig = rig.restarted().await;
    assert_eq!(rig.objects(), after);
    let status: Status = rig.good_as(&blue, "GET", "/v1/status", "").await;
    assert_eq!(status.tenants[0].endpoints.len(), 1);
    // A place in it is one of that file.
    let other = BLUE.replace("subnet: apps}]", "subnet: gone}]");
    let (_, fault) = rig
        .bad_as(&blue, "POST", "/v1/apply?file=own.yaml", &other)
        .await;
    let place = fault.place.unwrap();
    assert_eq!((place.file.as_str(), place.line), ("own.yaml", 5));
    assert_eq!(rig.objects(), after, "what ran, runs");
    // Who is not self-managed states nothing.
    let green = rig.token("green").await.text;
    let own = BLUE.replace("blue", "green");
    assert_eq!(rig.bad_as(&green, "POST", "/v1/apply", &own).await.0, 403);
}

#[tokio::test]
async fn either_revokes_by_its_own_token_and_nobody_elses_does() {
    let (rig, blue) = Rig::with_tenants().await;
    let lender = rig.token("lender").await.text;
    // What may be a name misspelt is said at once to who states it, however many others state.
    let half = |n| format!("{{name: a{n}, from: green, service: s{n}, as: [10.78.0.{n}]}}");
    let halves: Vec<String> = (1..=120).map(half).collect();
    let accepts = format!("accepts: [{}]", halves.join(", "));
    let others = "  - name: other-tenant\n";
    let host = HOST.replace(others, &format!("{others}    {accepts}\n"));
    let applied: Applied = rig.good("POST", "/v1/apply?file=h.yaml", &host).await;
    assert_eq!(applied.plan.halves.len(), 100);
    let alone = rig.apply_as(&lender, LENDER).await.plan.halves;
    let alone: Vec<_> = alone.iter().map(|it| (&*it.tenant, &*it.lacks)).collect();
    assert_eq!(alone, [("lender", "blue does not accept it")]);
    assert_eq!(rig.apply_as(&blue, BLUE).await.plan.halves, []);
    let (begins, ends) = (
        "agreement lender/db with blue begins",
        "agreement lender/db with blue ends",
    );
    assert_eq!(rig.audited().await, [begins]);
    let halves = async |token: &str| {
        let status: Status = rig.good_as(token, "GET", "/v1/status", "").await;
        let halves = status.halves.into_iter();
        halves
            .map(|it| format!("{}/{}: {}", it.tenant, it.name, it.lacks))
            .collect::<Vec<_>>()
    };
    for (mine, own, others, lacks, [told, not]) in [
        (
            &blue,
            "blue/lent",
            "lender/db",
            "blue does not accept it",
            [&lender, &blue],
        ),
        (
            &lender,
            "lender/db",
            "blue/lent",
            "lender does not offer it db",
            [&blue, &lender],
        ),
    ] {
        let path = |what: &str| format!("/v1/revoke/{what}");
        assert_eq!(rig.bad_as(mine, "POST", &path(others), "").await.0, 404);
        assert!(halves(told).await.is_empty());
        let _: Applied = rig.good_as(mine, "POST", &path(own), "").await;
        assert_eq!(rig.audited().await.last().unwrap(), ends);
        assert_eq!(halves(told).await, [format!("{others}: {lacks}")]);
        assert!(halves(not).await.is_empty());
        // Neither the provider's apply nor a restart brings it back.
        let _: Applied = rig.good("POST", "/v1/apply?file=h.yaml", HOST).await;
        assert_eq!(rig.audited().await.last().unwrap(), ends);
        let back = format!("{}?undo=true", path(own));
        let _: Applied = rig.good_as(mine, "POST", &back, "").await;
        assert_eq!(rig.audited().await.last().unwrap(), begins);
        assert_eq!(rig.bad_as(mine, "POST", &back, "").await.0, 404);
    }
    let none = rig
        .bad_as(&blue, "POST", "/v1/revoke/blue/nothing", "")
        .await;
    assert_eq!(none.0, 404);
    // Applying its document anew takes its revocations back.
    let _: Applied = rig.good_as(&blue, "POST", "/v1/revoke/blue/lent", "").await;
    let rig = rig.restarted().await;
    assert_eq!(rig.audited().await.last().unwrap(), ends);
    rig.apply_as(&blue, BLUE).await;
    assert_eq!(rig.audited().await.last().unwrap(), begins);
}

#[tokio::test]
async fn the_audit_log_says_who_did_what_and_who_shared_which_compartment() {
    let (rig, blue) = Rig::with_tenants().await;
    rig.apply_as(&blue, BLUE).await;
    let apart = HOST.replace(
        "  - name: green\n    placement: {per: zone, zone: crimsonzone}\n",
        "  - name: green\n",
    );
    let _: Applied = rig.good("POST", "/v1/apply?file=h.yaml", &apart).await;
    let rig = rig.restarted().await;
    let audit: Audit = rig.good("GET", "/v1/audit", "").await;
    let kinds: Vec<&str> = audit
        .entries
        .iter()
        .map(|entry| entry.kind.as_str())
        .collect();
    assert_eq!(
        kinds,
        [
            "apply",
            "shared",
            "token-created",
            "apply",
            "apply",
            "shared"
        ]
    );
    let shared = &audit.entries[1];
    assert_eq!(shared.object, "compartment zone:crimsonzone");
    assert_eq!(shared.details[0], "from now on: crimson, green");
    assert_eq!(audit.entries[5].details[0], "from now on: crimson");
    let own = &audit.entries[3];
    let id = &audit.entries[2].object;
    assert_eq!(
        (own.uid, &own.token, own.object.as_str()),
        (Some(0), id, "own.yaml")
    );
    assert_eq!(own.tenants, ["blue"]);
    let check: AuditCheck = rig.good("GET", "/v1/audit/check", "").await;
    assert_eq!((check.whole, check.entries), (true, 6));
    let theirs: Audit = rig.good_as(&blue, "GET", "/v1/audit", "").await;
    let kinds: Vec<&str> = theirs
        .entries
        .iter()
        .map(|entry| entry.kind.as_str())
        .collect();
    assert_eq!(kinds, ["apply", "token-created", "apply"]);
}

#[tokio::test]
async fn who_cut_a_circuit_is_in_the_audit_log_and_it_stays_whole() {
    let rig = Rig::new().await;
    let with = spec(&[("red", 1)]).replace("subnet: lan }", "subnet: lan, attach: circuits }");
    rig.apply(&with).await;
    let _: Value = rig.good("POST", "/v1/circuits/1-7/cut", "").await;
    let audit: Audit = rig.good("GET", "/v1/audit", "").await;
    let last = audit.entries.last().unwrap();
    let (kind, object) = (last.kind.as_str(), last.object.as_str());
    assert_eq!((kind, object), ("circuit-cut", "circuit 1-7"));
    assert_eq!(
        (last.uid, &last.tenants[..]),
        (Some(0), &["red".into()][..])
    );
    let check: AuditCheck = rig.good("GET", "/v1/audit/check", "").await;
    assert!(check.whole, "{check:?}");
}

/// A store that can be read and, from some moment on, not be written.
fn sealable(rig: &tempfile::TempDir) -> std::os::fd::OwnedFd {
    use rustix::fs::{MemfdFlags, memfd_create};
    let store = memfd_create("store", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    let path = format!("/proc/self/fd/{}", store.as_raw_fd());
    std::os::unix::fs::symlink(path, rig.path().join("store")).unwrap();
    store
}

#[tokio::test]
async fn what_was_done_is_told_where_the_audit_log_cannot_be_written() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let store = sealable(&folder);
    let rig = Rig::on(folder, Shared::default(), Rights::default()).await;
    let with = spec(&[("red", 1)]).replace("subnet: lan }", "subnet: lan, attach: circuits }");
    rig.apply(&with).await;
    rustix::fs::fcntl_add_seals(&store, rustix::fs::SealFlags::WRITE).unwrap();
    for (way, done) in [
        (
            "/v1/circuits/1-7/cut",
            "circuit 1-7 was cut, but the audit log has no entry",
        ),
        (
            "/v1/release/red",
            "the quarantine of red was lifted, but the audit log has no entry",
        ),
    ] {
        let (status, fault) = rig.bad("POST", way, "").await;
        assert_eq!(
            (status, fault.whose),
            (StatusCode::SERVICE_UNAVAILABLE, Whose::Host)
        );
        assert!(fault.message.starts_with(done), "{fault:?}");
        assert!(!fault.message.contains("othing was changed"), "{fault:?}");
    }
    let missing = rig.happenings.last(100, |h| h.kind == "audit-missing");
    assert_eq!(missing.len(), 2);
    assert!(
        missing.iter().all(|one| one.message.contains("by uid 0")),
        "{missing:?}"
    );
    // What was not done is told so.
    rig.books.lock().unwrap().refuse =
        Some((format!("release 1.{}", u32::MAX), ErrorCode::NotFound));
    let (_, fault) = rig.bad("POST", "/v1/release/red", "").await;
    assert_eq!(fault.code, "not-found", "{fault:?}");
    assert!(fault.message.contains("no entry of it"), "{fault:?}");
    let (_, fault) = rig.bad("POST", "/v1/down", "").await;
    assert!(fault.message.ends_with("nothing was changed"), "{fault:?}");
}

#[tokio::test]
async fn rings_that_one_side_alone_asks_for_are_told_to_it_and_to_the_provider() {
    let rig = Rig::new().await;
    let example = include_str!("../../../../examples/agreement.yaml");
    let asked = |offer: bool, accept: bool| {
        let yes = |yes: bool| if yes { "\n        rings: yes" } else { "" };
        let text = example.replace("to: [blue]", &format!("to: [blue]{}", yes(offer)));
        text.replace("service: db", &format!("service: db{}", yes(accept)))
    };
    let mut told = Vec::new();
    for (offer, accept) in [(false, false), (true, false), (false, true), (true, true)] {
        rig.apply(&asked(offer, accept)).await;
        let status: Status = rig.good("GET", "/v1/status", "").await;
        let by = |status: &Status| status.agreements[0].rings_asked_by.clone();
        let theirs = |name| by(&crate::view::status(status.clone(), name));
        told.push([by(&status), theirs("red"), theirs("blue")]);
    }
    let right = [
        ["", "", ""],
        ["red", "red", ""],
        ["blue", "", "blue"],
        ["", "", ""],
    ];
    assert_eq!(told, right);
}
