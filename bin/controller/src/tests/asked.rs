//! What is asked of endpoints and services by their names.

use super::*;

const RED: &str = "version: 1
tenants:
  - name: red
    subnets: [{name: lan, prefixes: [10.1.1.0/24]}]
    endpoints: [{name: db, subnet: lan, addresses: [10.1.1.10]}]
    offers: [{name: db, endpoint: db, protocol: tcp, ports: [5432], to: [blue], pool: [10.1.250.0/28]}]
  - {name: blue, self-managed: {endpoints: 2}}
  - {name: green, self-managed: {endpoints: 2}}
";
const BLUE: &str = "version: 1
tenants:
  - name: blue
    subnets: [{name: lan, prefixes: [10.1.1.0/24]}]
    endpoints: [{name: app, subnet: lan, addresses: [10.1.1.11]}]
    accepts: [{name: reds-db, from: red, service: db, as: [10.1.200.10]}]
";

#[tokio::test]
async fn whether_it_reaches_what_it_accepted_is_asked_by_its_name_as_by_its_address() {
    let rig = Rig::new().await;
    rig.apply(RED).await;
    let blue = rig.token("blue").await.text;
    rig.apply_as(&blue, BLUE).await;
    let asked = |to| format!("/v1/explain?from=blue/app&to={to}&protocol=tcp&port=5432");
    for token in [None, Some(&*blue)] {
        let mut told = Vec::new();
        for to in ["blue/reds-db", "10.1.200.10"] {
            let (status, said) = rig.call_as(token, "GET", &asked(to), "").await;
            assert_eq!(status, StatusCode::OK, "{to}: {said}");
            told.push(said);
        }
        assert_eq!(told[0], told[1]);
        let told: api::Explanation = serde_json::from_str(&told[0]).unwrap();
        let service = told.there[0].service.as_ref().unwrap();
        assert!(told.allowed && service.offer == "red/db", "{told:?}");
        for to in ["blue/nobody", "red/nobody"] {
            let (status, said) = rig.call_as(token, "GET", &asked(to), "").await;
            assert_eq!(status, StatusCode::NOT_FOUND, "{to}: {said}");
        }
    }
    // Who began it is an endpoint.
    let turned = "/v1/explain?from=blue/reds-db&to=blue/app&protocol=tcp&port=5432";
    assert_eq!(rig.bad("GET", turned, "").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_acceptance_that_nobody_offers_for_is_told_from_a_name_of_nothing() {
    let rig = Rig::new().await;
    rig.apply(RED).await;
    let blue = rig.token("blue").await.text;
    rig.apply_as(&blue, &BLUE.replace("service: db", "service: bd"))
        .await;
    for token in [None, Some(&*blue)] {
        for (to, says) in [
            (
                "blue/reds-db",
                "is an acceptance of which there is no agreement",
            ),
            ("blue/nobody", "there is no endpoint blue/nobody"),
        ] {
            for (method, verb) in [("GET", "explain"), ("POST", "trace")] {
                let path = format!("/v1/{verb}?from=blue/app&to={to}&protocol=tcp&port=5432");
                let (status, said) = rig.call_as(token, method, &path, "").await;
                assert_eq!(status, StatusCode::NOT_FOUND, "{path}: {said}");
                assert!(said.contains(says), "{path}: {said}");
            }
        }
    }
}

#[tokio::test]
async fn whom_an_offer_names_is_told_of_it_until_it_accepts_and_nobody_else_is() {
    let rig = Rig::new().await;
    rig.apply(RED).await;
    let offered = |to| {
        let all = crate::stated::unaccepted(&rig.server.world.world(), to);
        let names = all.into_iter();
        names
            .map(|it| format!("{}/{}", it.offerer, it.offer))
            .collect::<Vec<_>>()
    };
    let blue = rig.token("blue").await.text;
    rig.apply_as(&blue, &BLUE.replace("service: db", "service: bd"))
        .await;
    assert_eq!(offered("blue"), ["red/db"]);
    for none in ["red", "green", "nobody"] {
        assert_eq!(offered(none), [""; 0], "{none}");
    }
    rig.apply_as(&blue, BLUE).await;
    assert_eq!(offered("blue"), [""; 0]);
    // What it accepted, and is revoked, is told as that.
    let _: Applied = rig.good("POST", "/v1/revoke/blue/reds-db", "").await;
    assert_eq!(offered("blue"), [""; 0]);
}

#[tokio::test]
async fn nobody_waits_for_packets_of_who_has_circuits_alone() {
    let rig = Rig::new().await;
    rig.apply(&spec(&[("red", 1)]).replace("subnet: lan }", "subnet: lan, attach: circuits }"))
        .await;
    let mut all = Vec::new();
    for (method, path) in [
        ("POST", "/v1/trace?from=red/e0&to=10.1.1.1"),
        ("GET", "/v1/capture?endpoint=red/e0&circuits=false"),
        ("GET", "/v1/capture?endpoint=red/e0&drops=true"),
    ] {
        let (status, fault) = rig.bad(method, path, "").await;
        assert_eq!((status.as_u16(), &*fault.code), (422, "request"), "{path}");
        all.push(fault.message);
    }
    let says = "red/e0 has circuits alone: no packet comes from it";
    assert_eq!(all, [says; 3]);
}

#[tokio::test]
async fn a_spec_by_which_no_step_is_done_is_told_from_the_one_that_is_in_force() {
    let rig = Rig::new().await;
    let rings = RED.replace("28]}", "28], rings: yes}");
    assert_ne!(rings, RED);
    rig.apply(RED).await;
    for (text, restated) in [(RED, false), (&rings, true)] {
        let plan: Plan = rig.good("POST", "/v1/plan", text).await;
        assert_eq!((plan.changes.len(), plan.restated), (0, restated));
        let applied = rig.apply(text).await;
        assert_eq!(
            (applied.plan.changes.len(), applied.plan.restated),
            (0, restated)
        );
    }
    let plan: Plan = rig.good("POST", "/v1/plan", &rings).await;
    assert!(!plan.restated);
    // With steps they say what is done.
    let more = RED.replace(
        "name: db, subnet",
        "name: db2, subnet: lan}, {name: db, subnet",
    );
    let applied = rig.apply(&more).await;
    assert!(!applied.plan.changes.is_empty() && !applied.plan.restated);
}
