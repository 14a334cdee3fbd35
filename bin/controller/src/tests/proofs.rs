//! What is asked of the verifier, and what becomes of its verdicts.

use super::*;
use command::bundle::{Bundle, Part};
use std::os::fd::OwnedFd;

/// Stands for supervisor and verifier: proves all but what it was told not to, and needs
/// whole what it was not given before.
pub fn prove(socket: &Socket, books: &mut Books, seq: u32, purpose: u32, bytes: &[u8]) {
    let bundle = Bundle::read(bytes).expect("a bundle");
    let say = |verdict: Verdict, report: Option<&OwnedFd>| {
        let fds: Vec<_> = report.into_iter().map(AsFd::as_fd).collect();
        let message = Message::new(seq, &verdict);
        socket
            .send_wait(&message, &fds, Duration::from_secs(5))
            .unwrap();
    };
    let spec = match bundle.spec {
        Part::Held(digest) => Some(digest),
        Part::Bytes(text) => {
            let name = [bundle.source.as_bytes(), &[0]].concat();
            let digest = Sha256::digest([name.as_slice(), text].concat()).into();
            books.held.insert(digest);
            let text = String::from_utf8(text.to_vec()).unwrap();
            books.specs.insert(digest, text);
            Some(digest)
        }
    };
    if purpose == PROVE_AHEAD {
        return say(Verdict::default(), None);
    }
    books.log.push("prove".into());
    if books.lost > 0 {
        books.lost -= 1;
        let verdict = Verdict {
            outcome: VERDICT_UNREADABLE,
            ..Verdict::default()
        };
        return say(verdict, None);
    }
    assert!(bundle.now > 1_700_000_000 && !bundle.numbers.is_empty());
    let fabric = bundle.fabric.map(|part| (0, part)).expect("a fabric");
    let parts = bundle
        .compartments
        .iter()
        .map(|(slot, part)| (*slot, *part));
    let parts: BTreeMap<u32, Part<'_>> = parts.chain([fabric]).collect();
    let mut breaches = books.breaches.clone();
    let (mut digests, mut whole) = (BTreeSet::new(), 0);
    for (slot, part) in &parts {
        let digest = match part {
            Part::Held(digest) => *digest,
            Part::Bytes(bytes) => {
                whole += 1;
                let digest = image::digest(bytes).unwrap().0;
                books.held.insert(digest);
                digest
            }
        };
        digests.insert(digest);
        let target = if *slot == 0 { FABRIC } else { *slot };
        let lies = books.images.get(&target).map(|(digest, _)| *digest);
        if purpose == PROVE_INSTALLED && lies != Some(digest) {
            breaches.push((*slot, "another image is in use".into()));
        }
    }
    let needed = (digests.iter().chain(&spec)).any(|digest| !books.held.contains(digest));
    let asked: Vec<serde_json::Value> = match spec.and_then(|digest| books.specs.get(&digest)) {
        Some(text) if !books.unmet.is_empty() => asked(bundle.source, text, &books.unmet),
        _ => Vec::new(),
    };
    let named = match books.named {
        0 => asked.len(),
        few => few,
    };
    let asked: Vec<serde_json::Value> = asked.into_iter().take(named).collect();
    breaches.extend(asked.iter().map(|_| (1, String::new())));
    let outcome = match (needed && purpose != PROVE_INSTALLED, breaches.is_empty()) {
        (true, _) => VERDICT_NEED,
        (false, true) => VERDICT_PROVED,
        (false, false) => VERDICT_BREACHES,
    };
    books.whole.push(whole);
    if outcome == VERDICT_PROVED && purpose == PROVE_TO_INSTALL {
        let in_use = books.images.values().map(|(digest, _)| *digest);
        books.proved = digests.iter().copied().chain(in_use).collect();
    }
    let verdict = Verdict {
        outcome,
        breaches: breaches.len() as u32,
        compartments: bundle.compartments.len() as u32,
        ..Verdict::default()
    };
    let report: Vec<serde_json::Value> = breaches
        .iter()
        .filter(|(_, what)| !what.is_empty())
        .map(|(slot, what)| serde_json::json!({ "slot": slot, "what": what }))
        .chain(asked)
        .collect();
    let report = serde_json::to_vec(&report).unwrap();
    let report = shm::SealedImage::create("report", &report).unwrap();
    say(verdict, (outcome == VERDICT_BREACHES).then_some(&report));
}

/// What these tenants ask for, as the verifier says that it does not hold.
fn asked(source: &str, text: &str, unmet: &[String]) -> Vec<serde_json::Value> {
    let spec = spec::parse(source, text.as_bytes()).unwrap();
    let of = spec.tenants.iter();
    let of = of.filter(|tenant| unmet.contains(&tenant.name.as_str().to_owned()));
    of.flat_map(|tenant| tenant.policy.iter().flat_map(|policy| &policy.reach))
        .map(|reach| {
            let at = reach.allowed.span.start;
            let (file, line) = (spec.source.name_at(at), spec.source.position(at).line);
            let what = format!("by secretrail, {file}:{line}");
            serde_json::json!({ "slot": 1, "what": what, "asked": [file, line] })
        })
        .collect()
}

fn told(rig: &Rig, change: impl FnOnce(&mut Books)) {
    change(&mut rig.books.lock().unwrap());
}

/// Images that came whole with each question since the last call.
fn whole(rig: &Rig) -> Vec<usize> {
    std::mem::take(&mut rig.books.lock().unwrap().whole)
}

fn happened(rig: &Rig, kind: &str) -> usize {
    let last = rig.happenings.last(usize::MAX, |h| h.kind == kind);
    last.len()
}

#[tokio::test]
async fn a_breach_changes_nothing_and_is_shown_with_its_place() {
    let rig = Rig::new().await;
    rig.apply(&spec(&[("red", 1)])).await;
    let before = (rig.objects(), rig.books.lock().unwrap().images.clone());
    rig.log();
    told(&rig, |books| {
        let first = "red/e1 would reach blue/e0: a.yaml:3:5 says that it may not";
        books.breaches = vec![(1, first.into()), (0, "a second one".into())];
    });
    let text = spec(&[("red", 2)]);
    for path in ["/v1/plan?file=a.yaml", "/v1/apply?file=a.yaml"] {
        let (status, fault) = rig.bad("POST", path, &text).await;
        assert_eq!(
            (status, fault.code.as_str()),
            (StatusCode::UNPROCESSABLE_ENTITY, "unproved")
        );
        assert!(
            fault
                .message
                .contains("compartment red: red/e1 would reach")
                && fault.message.contains("1 more"),
            "{fault}"
        );
        let place = fault.place.clone().unwrap();
        assert_eq!(
            (place.line, place.column, fault.whose),
            (3, 5, api::Whose::User)
        );
        assert_eq!(fault.findings.len(), 2);
        assert!(fault.findings[1].message.starts_with("the fabric: "));
    }
    assert_eq!(rig.log(), ["prove", "prove"], "nothing was changed");
    assert_eq!(
        before,
        (rig.objects(), rig.books.lock().unwrap().images.clone())
    );
    assert_eq!(happened(&rig, "unproved"), 1);
    told(&rig, |books| books.breaches.clear());
    let plan: Plan = rig.good("POST", "/v1/plan", &text).await;
    assert_eq!(plan.proof.unwrap().compartments, 1);
    let applied = rig.apply(&text).await;
    assert_eq!(applied.plan.proof.unwrap().compartments, 1);
}

#[tokio::test]
async fn only_what_changed_is_sent_and_a_verifier_that_forgot_gets_the_whole() {
    let rig = Rig::new().await;
    rig.apply(&spec(&[("red", 1), ("blue", 1), ("green", 1)]))
        .await;
    assert_eq!(whole(&rig), [4]);
    rig.apply(&spec(&[("red", 2), ("blue", 1), ("green", 1)]))
        .await;
    let sent = whole(&rig);
    assert!(sent.len() == 1 && sent[0] <= 2, "{sent:?}");
    told(&rig, |books| books.held.clear());
    rig.apply(&spec(&[("red", 2), ("blue", 2), ("green", 1)]))
        .await;
    let sent = whole(&rig);
    assert!(sent.len() == 2 && sent[0] <= 2 && sent[1] == 4, "{sent:?}");
}

#[tokio::test]
async fn images_compiled_after_a_restart_are_proved_before_they_are_installed() {
    let rig = Rig::new().await;
    rig.apply(&spec(&[("red", 1)])).await;
    // The host was started anew: nothing exists, and nothing is proved.
    told(&rig, |books| *books = Books::default());
    let rig = rig.restarted().await;
    let log = rig.log();
    assert_eq!(log.first().map(String::as_str), Some("prove"), "{log:?}");
    assert!(log.contains(&"install 1".to_owned()), "{log:?}");
    // One that cannot be proved is not installed, and that is said.
    told(&rig, |books| {
        let breaches = vec![(1, "it leaks".to_owned())];
        *books = Books {
            breaches,
            ..Books::default()
        };
    });
    let rig = rig.restarted().await;
    assert_eq!(rig.log(), ["prove"]);
    let status: Status = rig.good("GET", "/v1/status", "").await;
    assert!(status.health.contains("it leaks"), "{}", status.health);
    // And once it can be, the same text applied again puts all in its place.
    told(&rig, |books| books.breaches.clear());
    rig.apply(&spec(&[("red", 1)])).await;
    assert_eq!(rig.books.lock().unwrap().images.len(), 2);
}

#[tokio::test]
async fn drift_is_said_once_and_the_next_apply_repairs_it() {
    let rig = Rig::new().await;
    let nothing: api::Proof = rig.good("GET", "/v1/verify", "").await;
    assert_eq!(nothing, api::Proof::default());
    let text = spec(&[("red", 1), ("blue", 1)]);
    rig.apply(&text).await;
    let proof: api::Proof = rig.good("GET", "/v1/verify", "").await;
    assert_eq!(proof.compartments, 2);
    let metric = async |name: &str| {
        let (_, text) = rig.call("GET", "/metrics", "").await;
        let text = String::from_utf8(text.to_vec()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| value.trim().parse::<f64>().ok())
            .unwrap_or_else(|| panic!("no {name} in {text}"))
    };
    assert_eq!(metric("bulkhead_proof_drift ").await, 0.0);
    assert!(metric("bulkhead_proof_last_seconds ").await > 1e9);
    // Planted: in blue's seat lies another image.
    told(&rig, |books| books.images.get_mut(&2).unwrap().0 = [7; 32]);
    for _ in 0..3 {
        let (_, fault) = rig.bad("GET", "/v1/verify", "").await;
        assert_eq!(fault.code, "unproved");
        assert!(
            fault.message.contains("compartment blue: another"),
            "{fault}"
        );
    }
    assert_eq!(happened(&rig, "drift"), 1);
    assert_eq!(metric("bulkhead_proof_drift ").await, 1.0);
    let status: Status = rig.good("GET", "/v1/status", "").await;
    assert!(status.health.contains("blue"), "{}", status.health);
    rig.log();
    rig.apply(&text).await;
    assert_eq!(rig.log(), ["prove", "install 2"]);
    let _: api::Proof = rig.good("GET", "/v1/verify", "").await;
    assert_eq!(metric("bulkhead_proof_drift ").await, 0.0);
    let status: Status = rig.good("GET", "/v1/status", "").await;
    assert_eq!(status.health, "ok");
}
