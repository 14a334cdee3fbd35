//! The controller against a supervisor that keeps books and can be told to refuse.

mod asked;
mod documents;
mod proofs;
mod queue;
mod rig;
mod tenants;

use crate::caller::Rights;
use crate::steps::Key;
use crate::turns::Rank;
use api::{Applied, Fault, Plan, Status, Whose, Why};
use axum::http::StatusCode;
use command::Message;
use command::message::ErrorCode;
use command::verbs::*;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use rig::*;
use seqpacket::Socket;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn where_a_switch_and_the_fabric_differ_the_fabric_is_billed_and_it_is_said() {
    let rig = Rig::new().await;
    rig.apply(&spec(&[("red", 1)])).await;
    let sent = |usage: &api::Usage| -> u64 {
        let whole = usage.rows.iter().filter(|row| row.endpoint.is_empty());
        whole.map(|row| row.sent_bytes).sum()
    };
    let usage: api::Usage = rig.good("GET", "/v1/usage", "").await;
    assert_eq!(sent(&usage), 0);
    let differs = |rig: &Rig| {
        let all = rig.happenings.last(100, |h| h.kind == "usage-difference");
        all.len()
    };
    // What can be on the way is no difference.
    rig.books.lock().unwrap().crossed = 1000;
    let usage: api::Usage = rig.good("GET", "/v1/usage", "").await;
    assert_eq!((sent(&usage), differs(&rig)), (1000, 0));
    rig.books.lock().unwrap().crossed = 1 << 40;
    let usage: api::Usage = rig.good("GET", "/v1/usage", "").await;
    assert_eq!((sent(&usage), differs(&rig)), (1 << 40, 1));
    // Once; and another controller goes on with the same sum.
    let rig = rig.restarted().await;
    for (path, code) in [
        ("/v1/usage?tenant=nope", "not-found"),
        ("/v1/usage?from=7200&to=3600", "request"),
    ] {
        assert_eq!(rig.bad("GET", path, "").await.1.code, code, "{path}");
    }
    let usage: api::Usage = rig.good("GET", "/v1/usage?tenant=red", "").await;
    assert_eq!((sent(&usage), differs(&rig)), (1 << 40, 0));
    let before: api::Usage = rig.good("GET", "/v1/usage?to=3600", "").await;
    assert_eq!(before.rows, []);
}

#[tokio::test]
async fn a_closed_port_is_closed_whatever_else_happened_or_was_forgotten() {
    let rig = Rig::new().await;
    rig.apply(&spec(&[("red", 2)])).await;
    let slot = |status: &Status, n: usize| {
        let endpoint = &status.tenants[0].endpoints[n];
        (endpoint.compartment, endpoint.slot)
    };
    let status: Status = rig.good("GET", "/v1/status", "").await;
    // No event was heard of it, as by a controller that starts after it.
    rig.books
        .lock()
        .unwrap()
        .closed
        .insert(slot(&status, 1), closed_by(19));
    let status: Status = rig.good("GET", "/v1/status", "").await;
    let ports: Vec<&str> = status.tenants[0]
        .endpoints
        .iter()
        .map(|endpoint| endpoint.port.as_str())
        .collect();
    assert!(
        ports[0] == "open" && ports[1].contains("No such device"),
        "{ports:?}"
    );
    let why: Why = rig.good("GET", "/v1/why/red/e1", "").await;
    assert!(
        !why.healthy && why.verdict[0].contains("port is closed"),
        "{why:?}"
    );
    rig.books.lock().unwrap().closed.clear();
    let why: Why = rig.good("GET", "/v1/why/red/e1", "").await;
    assert!(!why.verdict[0].contains("port is closed"), "{why:?}");
}

#[tokio::test]
async fn an_apply_makes_everything_and_the_same_again_nothing() {
    let rig = Rig::new().await;
    let text = spec(&[("red", 2), ("blue", 1)]);
    let plan: Plan = rig.good("POST", "/v1/plan?file=a.yaml", &text).await;
    assert!(
        plan.changes
            .iter()
            .any(|change| change.action == "create" && change.object == "endpoint red/e0"),
        "{plan:?}"
    );
    assert!(plan.needs.processes > 2 && plan.needs.memory_bytes > 0);
    assert!(rig.objects().is_empty(), "a plan does nothing");

    let applied = rig.apply(&text).await;
    assert_eq!((applied.epoch, rig.objects().len()), (1, 5));
    rig.log();
    let again = rig.apply(&text).await;
    assert_eq!((again.epoch, again.plan.changes.len()), (1, 0));
    assert!(
        !rig.log()
            .iter()
            .any(|line| line.starts_with("create") || line.starts_with("install"))
    );

    let status: Status = rig.good("GET", "/v1/status", "").await;
    assert_eq!(status.health, "ok");
    assert_eq!(status.weaker, ["no such control: said"]);
    assert_eq!(
        status
            .compartments
            .iter()
            .map(|c| c.name.as_str())
            .collect::<Vec<_>>(),
        ["red", "blue"]
    );
    assert_eq!(status.tenants[0].endpoints.len(), 2);
    assert_eq!(status.history[0].outcome, "applied");
}

#[tokio::test]
async fn only_what_changed_is_touched() {
    let rig = Rig::new().await;
    rig.apply(&spec(&[("red", 1), ("blue", 1)])).await;
    rig.log();
    let applied = rig.apply(&spec(&[("red", 2), ("blue", 1)])).await;
    let log = rig.log();
    assert!(log.contains(&"create red/e1".to_owned()), "{log:?}");
    let blue = applied
        .plan
        .changes
        .iter()
        .any(|change| change.object.contains("blue"));
    assert!(
        !blue
            && !log
                .iter()
                .any(|line| line.contains("blue") || line == "install 2"),
        "{log:?}"
    );
}

#[tokio::test]
async fn a_failed_apply_leaves_what_ran_and_says_where() {
    let rig = Rig::new().await;
    rig.apply(&spec(&[("red", 1)])).await;
    let before = (rig.objects(), rig.books.lock().unwrap().images.clone());
    rig.refuse(Some("create blue/e1"));
    let (status, fault) = rig
        .bad(
            "POST",
            "/v1/apply?file=b.yaml",
            &spec(&[("red", 2), ("blue", 2)]),
        )
        .await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(
        fault
            .message
            .contains("making endpoint blue/e1: told to refuse"),
        "{fault:?}"
    );
    let place = fault.place.unwrap();
    assert_eq!((place.file.as_str(), place.line), ("b.yaml", 14));
    assert_eq!(
        (rig.objects(), rig.books.lock().unwrap().images.clone()),
        before
    );
    rig.refuse(None);
    let status: Status = rig.good("GET", "/v1/status", "").await;
    assert_eq!(status.epoch, 1);
    assert!(
        status.history[0].outcome.starts_with("rolled back"),
        "{:?}",
        status.history
    );
    // And nothing is in the way of the next.
    rig.apply(&spec(&[("red", 2), ("blue", 2)])).await;
}

#[tokio::test]
async fn circuits_of_a_daemon_that_is_not_root_are_refused_at_the_plan() {
    let rig = Rig::new().await;
    rig.server.applier.turn(Rank::Host).await.without_root(true);
    let plain = spec(&[("red", 1)]);
    let with = plain.replace("subnet: lan }", "subnet: lan, attach: circuits }");
    for way in ["/v1/plan", "/v1/apply"] {
        let (_, fault) = rig.bad("POST", way, &with).await;
        assert_eq!((fault.code.as_str(), fault.whose), ("host", Whose::Host));
    }
    assert!(rig.objects().is_empty());
    let _: Plan = rig.good("POST", "/v1/plan", &plain).await;
}

#[tokio::test]
async fn isolated_cores_that_leave_none_for_the_rest_are_refused_at_the_plan() {
    let rig = Rig::new().await;
    let isolated = |cores: [u32; 2]| {
        let [red, blue] = cores.map(|core| format!("    cores: {{ isolated: [{core}] }}\n"));
        spec(&[("red", 1), ("blue", 1)])
            .replace("- name: red\n", &format!("- name: red\n{red}"))
            .replace("- name: blue\n", &format!("- name: blue\n{blue}"))
    };
    let sole = isolated([1, 0]).replace("    cores: { isolated: [0] }\n", "");
    let _: Plan = rig.good("POST", "/v1/plan", &sole).await;
    // Of one switch's workers two may have siblings.
    let workers = |cores: &str| {
        let own = format!("    workers: 2\n    cores: {{ isolated: {cores} }}\n");
        spec(&[("red", 1)]).replace("- name: red\n", &format!("- name: red\n{own}"))
    };
    let siblings: Plan = rig.good("POST", "/v1/plan", &workers("[2, 0]")).await;
    let mut lines = siblings.changes.iter().map(|change| change.reason.as_str());
    assert!(lines.any(|why| why.ends_with("cores 2, 0")), "{siblings:?}");
    for (spec, sentence) in [
        (isolated([0, 1]), "no core is left"),
        (workers("[0, 1]"), "no core is left"),
        (workers("[0, 9]"), "which this host does not have"),
        (isolated([0, 2]), "shares a physical core"),
        (isolated([0, 9]), "which this host does not have"),
    ] {
        for way in ["/v1/plan", "/v1/apply"] {
            let (_, fault) = rig.bad("POST", way, &spec).await;
            assert!(fault.message.contains(sentence), "{fault:?}");
        }
    }
    assert!(rig.objects().is_empty());
}

#[tokio::test]
async fn what_is_missing_on_the_host_is_shown_where_the_spec_names_it() {
    let rig = Rig::new().await;
    let text = "version: 1
tenants:
  - name: red
    subnets:
      - { name: lan, prefixes: [10.1.0.0/16] }
    endpoints:
      - name: e0
        subnet: lan
        attach:
          tap:
            namespace: nowhere
            interface: eth7
";
    for (what, code, line) in [
        ("create red/e0", ErrorCode::NoNamespace, 11),
        ("create red/e0", ErrorCode::NoInterface, 12),
        ("create red/e0", ErrorCode::System, 7),
    ] {
        rig.refuse_as(Some(what), code);
        let (_, fault) = rig.bad("POST", "/v1/apply?file=b.yaml", text).await;
        assert_eq!(fault.place.unwrap().line, line, "{what} {code:?}");
    }
}

#[tokio::test]
async fn a_refused_image_is_taken_back() {
    let rig = Rig::new().await;
    rig.apply(&spec(&[("red", 1), ("blue", 1)])).await;
    let before = rig.books.lock().unwrap().images.clone();
    rig.refuse(Some("install 2"));
    rig.bad("POST", "/v1/apply", &spec(&[("red", 2), ("blue", 2)]))
        .await;
    rig.refuse(None);
    let after = rig.books.lock().unwrap().images.clone();
    let digests = |images: &BTreeMap<u32, ([u8; 32], u64)>| {
        images
            .iter()
            .map(|(target, (digest, _))| (*target, *digest))
            .collect::<Vec<_>>()
    };
    assert_eq!(digests(&after), digests(&before));
}

#[tokio::test]
async fn a_bad_spec_changes_nothing_and_all_of_it_is_said() {
    let rig = Rig::new().await;
    let (status, fault) = rig
        .bad(
            "POST",
            "/v1/apply?file=bad.yaml",
            "version: 1\ntenants:\n  - nam: red\n    subnetz: []\n",
        )
        .await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        (fault.code.as_str(), fault.whose),
        ("spec", api::Whose::User)
    );
    assert_eq!(fault.place.unwrap().file, "bad.yaml");
    assert!(fault.findings.len() > 1);
    assert!(rig.objects().is_empty());
    let (status, fault) = rig
        .bad("POST", "/v1/apply", &"#".repeat(spec::MAX_BYTES + 2))
        .await;
    assert_eq!(
        (status, fault.code.as_str()),
        (StatusCode::PAYLOAD_TOO_LARGE, "too-large")
    );
}

#[tokio::test]
async fn a_controller_that_comes_back_finds_the_world_as_it_was() {
    let rig = Rig::new().await;
    let text = spec(&[("red", 2)]);
    rig.apply(&text).await;
    let rig = rig.restarted().await;
    rig.log();
    let again = rig.apply(&text).await;
    assert_eq!((again.epoch, again.plan.changes.len()), (1, 0));
    assert!(rig.log().is_empty(), "nothing was touched");
}

#[tokio::test]
async fn what_a_dead_controller_left_half_done_is_undone() {
    let rig = Rig::new().await;
    rig.apply(&spec(&[("red", 1)])).await;
    {
        // As if it had died between making a compartment and putting it in use.
        let mut books = rig.books.lock().unwrap();
        books.objects.insert(Key::Compartment(9), [1; 32]);
        books.objects.insert(Key::Port(9, 1), [2; 32]);
        books.objects.remove(&Key::Port(1, 1));
    }
    let rig = rig.restarted().await;
    assert_eq!(
        rig.objects().keys().copied().collect::<Vec<_>>(),
        [Key::Compartment(1), Key::Port(1, 1)]
    );
}

#[tokio::test]
async fn down_leaves_nothing() {
    let rig = Rig::new().await;
    rig.apply(&spec(&[("red", 2), ("blue", 1)])).await;
    let _: Applied = rig.good("POST", "/v1/down", "").await;
    assert!(rig.objects().is_empty());
    let status: Status = rig.good("GET", "/v1/status", "").await;
    assert!(status.tenants.is_empty() && status.compartments.is_empty());
}

#[tokio::test]
async fn why_joins_and_judges() {
    let rig = Rig::new().await;
    rig.apply(&spec(&[("red", 1)])).await;
    rig.books.lock().unwrap().drops.insert((1, 1), 1204);
    let why: Why = rig.good("GET", "/v1/why/red/e0", "").await;
    assert!(!why.healthy);
    assert!(
        why.verdict[0].starts_with("red/e0 lost 1,204 frames to source-ip"),
        "{:?}",
        why.verdict
    );
    let (status, fault) = rig.bad("GET", "/v1/why/red/nobody", "").await;
    assert_eq!(
        (status, fault.code.as_str()),
        (StatusCode::NOT_FOUND, "not-found")
    );
}

#[tokio::test]
async fn numbers_images_and_the_spec_can_be_looked_at() {
    let rig = Rig::new().await;
    let text = spec(&[("red", 1)]);
    rig.apply(&text).await;
    let drops = [((1, 1), 3), ((FABRIC, 1), 4)];
    rig.books.lock().unwrap().drops.extend(drops);
    let (_, metrics) = rig.call("GET", "/metrics", "").await;
    let metrics = String::from_utf8_lossy(&metrics);
    assert!(
        metrics.contains(
            "bulkhead_dropped_frames_total{tenant=\"red\",endpoint=\"e0\",reason=\"source-ip\"} 3"
        ),
        "{metrics}"
    );
    for line in [
        "bulkhead_events_total{kind=",
        "bulkhead_compartment_up{compartment=\"red\"} 1",
        "bulkhead_fabric_dropped_frames_total{compartment=\"red\",reason=\"source-ip\"} 4",
        "bulkhead_received_segments_total{tenant=\"red\",endpoint=\"e0\"} 7000",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let told = include_str!("../../../docs/operating.md");
    let names = |line: &&str| line.starts_with("bulkhead_");
    for line in metrics.lines().filter(names) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        assert!(
            told.contains(&format!("`{name}`")),
            "operating.md lacks {name}"
        );
    }
    for name in ["red", "fabric"] {
        let dump: serde_json::Value = rig.good("GET", &format!("/v1/dump/{name}"), "").await;
        assert_eq!(dump["installed"], true);
        assert!(
            dump["text"]
                .as_str()
                .is_some_and(|text| text.starts_with("image ")),
            "{dump}"
        );
    }
    let (_, shown) = rig.call("GET", "/v1/spec", "").await;
    assert_eq!(shown, text);
    let sample: api::Sample = rig.good("GET", "/v1/top?over_ms=1", "").await;
    assert_eq!(sample.endpoints[0].rx_frames, 5000);
    let _: serde_json::Value = rig.good("POST", "/v1/release/red/e0", "").await;
    assert_eq!(rig.log().last().map(String::as_str), Some("release 1.1"));
}

#[tokio::test]
async fn a_caller_without_rights_is_told_so() {
    // This test's own user is root or another; neither is uid 4242's equal.
    let rig = Rig::on(
        Arc::new(tempfile::tempdir().unwrap()),
        Shared::default(),
        Rights {
            owner: Some(4242),
            readers: None,
            ..Rights::default()
        },
    )
    .await;
    if rustix::process::geteuid().is_root() {
        // Root may always; the rule itself is tested beside it in `caller`.
        assert!(rig.call("GET", "/v1/status", "").await.0.is_success());
        return;
    }
    let (status, fault) = rig.bad("POST", "/v1/apply", "version: 1\n").await;
    assert_eq!(
        (status, fault.code.as_str()),
        (StatusCode::FORBIDDEN, "denied")
    );
}

#[tokio::test]
async fn without_a_store_nothing_is_applied_and_the_reason_is_said() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    std::fs::write(folder.path().join("store"), vec![0x55; 8192]).unwrap();
    let rig = Rig::on(folder, Shared::default(), Rights::default()).await;
    let (status, fault) = rig.bad("POST", "/v1/apply", &spec(&[("red", 1)])).await;
    assert_eq!(
        (status, fault.code.as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, "store")
    );
    assert!(rig.objects().is_empty());
    let status: Status = rig.good("GET", "/v1/status", "").await;
    assert!(status.health.contains("damaged"), "{}", status.health);
    // Moved aside as that says: the next apply opens a new one and goes on.
    std::fs::remove_file(rig.folder.path().join("store")).unwrap();
    assert_eq!(rig.apply(&spec(&[("red", 1)])).await.epoch, 1);
    let status: Status = rig.good("GET", "/v1/status", "").await;
    assert_eq!(status.health, "ok");
}

#[tokio::test]
async fn a_store_that_was_moved_aside_takes_nothing_down() {
    let rig = Rig::new().await;
    rig.apply(&spec(&[("red", 1)])).await;
    let ran = rig.objects();
    std::fs::remove_file(rig.folder.path().join("store")).unwrap();
    let rig = rig.restarted().await;
    assert_eq!(rig.objects(), ran);
    let status: Status = rig.good("GET", "/v1/status", "").await;
    assert!(status.health.contains("apply"), "{}", status.health);
    rig.apply(&spec(&[("red", 1)])).await;
    assert_eq!(rig.objects().len(), ran.len());
    let status: Status = rig.good("GET", "/v1/status", "").await;
    assert_eq!(status.health, "ok");
}

#[tokio::test]
async fn the_api_describes_itself() {
    let rig = Rig::new().await;
    let described: serde_json::Value = rig.good("GET", "/openapi.json", "").await;
    assert!(
        described["openapi"]
            .as_str()
            .is_some_and(|version| version.starts_with("3.1"))
    );
    for path in [
        "/v1/apply",
        "/v1/why/{tenant}/{endpoint}",
        "/v1/capture",
        "/v1/trace",
        "/v1/names",
        "/metrics",
    ] {
        assert!(described["paths"][path].is_object(), "{path}");
    }
    let (status, fault) = rig.bad("GET", "/v2/status", "").await;
    assert_eq!(
        (status, fault.code.as_str()),
        (StatusCode::NOT_FOUND, "not-found")
    );
}

#[tokio::test]
async fn what_the_host_refused_at_a_restart_is_tried_until_it_holds() {
    let rig = Rig::new().await;
    let text = spec(&[("red", 1), ("blue", 1)]);
    rig.apply(&text).await;
    let applied = rig.books.lock().unwrap().images.clone();
    // What lies in blue's seat is of before, and neither it nor the verifier yields.
    rig.books.lock().unwrap().images.get_mut(&2).unwrap().0 = [7; 32];
    rig.refuse(Some("install 2"));
    let rig = rig.restarted().await;
    let health = async |rig: &Rig| rig.good::<Status>("GET", "/v1/status", "").await.health;
    assert!(health(&rig).await.contains("tried again"));
    let server = rig.server.clone();
    let trying = tokio::spawn(async move { crate::catch_up(&server).await });
    let tries = || async {
        rig.log();
        while !rig.log().contains(&"install 2".to_owned()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let bound = Duration::from_secs(60);
    tokio::time::timeout(bound, tries()).await.expect("a try");
    tokio::time::timeout(bound, tries()).await.expect("another");
    assert_eq!(rig.books.lock().unwrap().images[&2].0, [7; 32]);
    rig.books.lock().unwrap().breaches = vec![(1, "it leaks".to_owned())];
    rig.refuse(None);
    while !health(&rig).await.contains("it leaks") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    rig.books.lock().unwrap().breaches.clear();
    let holds = async {
        while health(&rig).await != "ok" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(bound, holds).await.expect("it holds");
    assert_eq!(rig.books.lock().unwrap().images, applied);
    rig.log();
    trying.abort();
}
