//! The controller against a supervisor that keeps books and can be told to refuse.

mod proofs;
mod tenants;

use crate::applier::Applier;
use crate::caller::Rights;
use crate::happenings::Happenings;
use crate::routes;
use crate::server::{Server, Shown};
use crate::steps::Key;
use crate::supervisor::Supervisor;
use crate::tokens::Tokens;
use api::{Applied, Fault, Plan, Status, Why};
use axum::http::StatusCode;
use command::message::ErrorCode;
use command::verbs::*;
use command::{Body, Message};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use seqpacket::Socket;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::Store;
use telemetry::counters::{self, Counter};
use telemetry::drops::DropReason;
use zerocopy::IntoBytes;

/// What the fake supervisor has, and which request it refuses.
#[derive(Default)]
struct Books {
    objects: BTreeMap<Key, [u8; 32]>,
    images: BTreeMap<u32, ([u8; 32], u64)>,
    /// Requests in order, in a short form.
    log: Vec<String>,
    /// Refuses the request that has this short form.
    refuse: Option<(String, ErrorCode)>,
    /// A port's counters: (compartment, slot) to drops for source-ip.
    drops: BTreeMap<(u32, u32), u64>,
    /// Counters pages by target: the same ones as long as the host is up.
    pages: BTreeMap<u32, File>,
    /// Bytes that the fabric says came from each compartment; no switch says so.
    crossed: u64,
    /// Ports that are closed: (compartment, slot) to the reason.
    closed: BTreeMap<(u32, u32), u32>,
    /// Images that may be installed, and what stands for the verifier still holds.
    proved: BTreeSet<[u8; 32]>,
    held: BTreeSet<[u8; 32]>,
    /// Finds these breaches in whatever it is asked.
    breaches: Vec<(u32, String)>,
    /// Images that came whole, with each proof.
    whole: Vec<usize>,
}

type Shared = Arc<Mutex<Books>>;

fn digest<B: Body>(body: &B) -> [u8; 32] {
    Sha256::digest(body.as_bytes()).into()
}

/// Serves one end of the pair until the other is closed.
fn supervise(socket: Socket, books: Shared) {
    while let Ok(received) = socket.recv_wait(Duration::from_secs(60)) {
        let Some((message, fds)) = received else {
            continue;
        };
        let mut books = books.lock().unwrap();
        let done = |books: &mut Books, what: String, change: &mut dyn FnMut(&mut Books)| {
            books.log.push(what.clone());
            let refused = books
                .refuse
                .as_ref()
                .filter(|(which, _)| *which == what)
                .map(|(_, code)| *code);
            let answer = match refused {
                Some(code) => Message::new(
                    message.seq,
                    &Done {
                        detail: command::Name::new("told to refuse").unwrap(),
                        ..Done::default()
                    },
                )
                .failed(code),
                None => {
                    change(books);
                    Message::new(message.seq, &Done::default())
                }
            };
            socket
                .send_wait(&answer, &[], Duration::from_secs(5))
                .unwrap();
        };
        if let Some(body) = message.body::<CreateCompartment>() {
            done(
                &mut books,
                format!("create {}", body.name.as_str()),
                &mut |b| {
                    b.objects.insert(Key::Compartment(body.id), digest(&body));
                },
            );
        } else if let Some(body) = message.body::<DestroyCompartment>() {
            done(
                &mut books,
                format!("destroy compartment {}", body.id),
                &mut |b| {
                    b.objects.retain(|key, _| !matches!(key, Key::Compartment(id) | Key::Port(id, _) if *id == body.id));
                    b.images.remove(&body.id);
                },
            );
        } else if let Some(body) = message.body::<CreatePort>() {
            done(
                &mut books,
                format!("create {}", body.name.as_str()),
                &mut |b| {
                    assert!(
                        b.objects.contains_key(&Key::Compartment(body.compartment)),
                        "a port before its compartment"
                    );
                    b.objects
                        .insert(Key::Port(body.compartment, body.slot), digest(&body));
                },
            );
        } else if let Some(body) = message.body::<DestroyPort>() {
            done(
                &mut books,
                format!("destroy port {}.{}", body.compartment, body.slot),
                &mut |b| {
                    b.objects.remove(&Key::Port(body.compartment, body.slot));
                },
            );
        } else if let Some(body) = message.body::<CreateUplink>() {
            let what = format!("create uplink on {}", body.interface.as_str());
            done(&mut books, what, &mut |b| {
                b.objects.insert(Key::Uplink(body.uplink), digest(&body));
            });
        } else if let Some(body) = message.body::<DestroyUplink>() {
            let what = format!("destroy uplink {}", body.uplink);
            done(&mut books, what, &mut |b| {
                b.objects.remove(&Key::Uplink(body.uplink));
            });
        } else if let Some(body) = message.body::<Install>() {
            let image = shm::SealedImage::map(fds[0].as_fd()).expect("a sealed image");
            assert_eq!(
                image::digest(image.as_slice()),
                Some(image::Digest(body.digest))
            );
            let target = if body.target == FABRIC {
                "fabric".to_owned()
            } else {
                body.target.to_string()
            };
            done(&mut books, format!("install {target}"), &mut |b| {
                let before = b.images.get(&body.target).map(|(digest, _)| *digest);
                assert!(
                    b.proved.contains(&body.digest) || before == Some(body.digest),
                    "it was not proved"
                );
                b.images.insert(body.target, (body.digest, body.epoch));
            });
        } else if let Some(body) = message.body::<Prove>() {
            let bundle = shm::SealedImage::map(fds[0].as_fd()).expect("a sealed bundle");
            proofs::prove(
                &socket,
                &mut books,
                message.seq,
                body.purpose,
                bundle.as_slice(),
            );
        } else if message.body::<Inventory>().is_some() {
            for (key, created) in &books.objects {
                let (kind, id, slot) = match key {
                    Key::Compartment(id) => (1, *id, 0),
                    Key::Port(id, slot) => (2, *id, *slot),
                    Key::Uplink(id) => (3, *id, 0),
                };
                let entry = Inventory {
                    kind,
                    id,
                    slot,
                    closed: books.closed.get(&(id, slot)).copied().unwrap_or(0),
                    created: *created,
                    ..Inventory::default()
                };
                socket
                    .send_wait(
                        &Message::new(message.seq, &entry),
                        &[],
                        Duration::from_secs(5),
                    )
                    .unwrap();
            }
            socket
                .send_wait(
                    &Message::new(message.seq, &Done::default()),
                    &[],
                    Duration::from_secs(5),
                )
                .unwrap();
        } else if let Some(mut body) = message.body::<Inspect>() {
            let (digest, epoch) = books.images.get(&body.target).copied().unwrap_or_default();
            body = Inspect {
                pid: 7,
                state: RUN_UP,
                digest,
                epoch,
                slots: 8,
                ..body
            };
            let pages = [counters_page(&mut books, body.target, epoch), page(&[])];
            let fds = pages.each_ref().map(AsFd::as_fd);
            socket
                .send_wait(
                    &Message::new(message.seq, &body),
                    &fds,
                    Duration::from_secs(5),
                )
                .unwrap();
        } else if let Some(body) = message.body::<Release>() {
            done(
                &mut books,
                format!("release {}.{}", body.target, body.slot),
                &mut |_| {},
            );
        } else {
            let answer = Message::new(message.seq, &Done::default()).failed(ErrorCode::BadMessage);
            socket
                .send_wait(&answer, &[], Duration::from_secs(5))
                .unwrap();
        }
    }
}

fn counters_page(books: &mut Books, target: u32, epoch: u64) -> File {
    let mut words = vec![0_u64; counters::bytes_for(8) / 8];
    words[0] = counters::MAGIC;
    words[counters::ProcessWord::Epoch as usize] = epoch;
    for ((compartment, slot), drops) in &books.drops {
        if *compartment == target {
            words[counters::counter_word(*slot as usize, Counter::RxFrames)] = 5000;
            words[counters::counter_word(*slot as usize, Counter::RxSegments)] = 7000;
            words[counters::drop_word(*slot as usize, DropReason::SourceIp)] = *drops;
        }
    }
    if target == FABRIC {
        for slot in 1..8 {
            words[counters::counter_word(slot, Counter::RxBytes)] = books.crossed;
        }
    }
    let file = books.pages.entry(target).or_insert_with(|| page(&[]));
    file.write_all_at(words.as_bytes(), 0).unwrap();
    file.try_clone().unwrap()
}

fn page(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// A controller, its supervisor, and a client.
struct Rig {
    folder: Arc<tempfile::TempDir>,
    books: Shared,
    socket: PathBuf,
    happenings: Arc<Happenings>,
    serving: tokio::task::JoinHandle<()>,
}

impl Rig {
    async fn new() -> Rig {
        Rig::on(
            Arc::new(tempfile::tempdir().unwrap()),
            Shared::default(),
            Rights::default(),
        )
        .await
    }

    async fn on(folder: Arc<tempfile::TempDir>, books: Shared, rights: Rights) -> Rig {
        // This process has no user namespace of its own: its 0 is the host's.
        let rights = Rights {
            rootless: true,
            ..rights
        };
        let (ours, theirs) = Socket::pair().unwrap();
        let kept = books.clone();
        std::thread::spawn(move || supervise(theirs, kept));
        let place = folder.path().to_owned();
        let open = Box::new(move || {
            let open = |name: &str| {
                File::options()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(place.join(name))
                    .unwrap()
            };
            Store::open(open("store"), &open("attempts"))
        });
        let supervisor = Supervisor::new(ours).unwrap();
        let shown = Arc::new(Shown::default());
        let happenings = Arc::new(Happenings::new());
        let (heard, named) = (happenings.clone(), shown.clone());
        let listening = tokio::spawn(
            supervisor
                .clone()
                .listen(move |event| heard.heard(event, &named.world())),
        );
        let tokens = Arc::new(Tokens::default());
        let mut applier = Applier::new(
            open,
            supervisor.clone(),
            shown.clone(),
            happenings.clone(),
            tokens.clone(),
        )
        .on_cores("0+2,1+3".parse().unwrap());
        // A predecessor's task may hold the file for a moment yet.
        for _ in 0..100 {
            if applier.recover().await || !shown.health().degraded.contains("in use") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let server = Arc::new(Server {
            rights,
            weaker: vec!["no such control: said".into()],
            supervisor,
            happenings,
            applier: tokio::sync::Mutex::new(applier),
            world: shown,
            tokens,
            looks: crate::looks::Looks::default(),
        });
        let socket = folder.path().join(format!(
            "api-{}.sock",
            rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_nsec
        ));
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let happenings = server.happenings.clone();
        let serving = tokio::spawn(async move {
            tokio::select! {
                _ = crate::gate::serve(listener, routes::router(server), rights) => {}
                _ = listening => {}
            }
        });
        Rig {
            folder,
            books,
            socket,
            happenings,
            serving,
        }
    }

    /// The controller dies, and another one starts on the same store and supervisor.
    async fn restarted(self) -> Rig {
        self.serving.abort();
        let _ = self.serving.await;
        Rig::on(self.folder, self.books, Rights::default()).await
    }

    async fn call(&self, method: &str, path: &str, body: &str) -> (StatusCode, Bytes) {
        let stream = tokio::net::UnixStream::connect(&self.socket).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        let request = hyper::Request::builder()
            .method(method)
            .uri(path)
            .header("host", "x")
            .body(Full::new(Bytes::from(body.to_owned())))
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        (
            response.status(),
            response.into_body().collect().await.unwrap().to_bytes(),
        )
    }

    async fn good<T: DeserializeOwned>(&self, method: &str, path: &str, body: &str) -> T {
        let (status, bytes) = self.call(method, path, body).await;
        assert!(
            status.is_success(),
            "{status}: {}",
            String::from_utf8_lossy(&bytes)
        );
        serde_json::from_slice(&bytes).unwrap()
    }

    async fn bad(&self, method: &str, path: &str, body: &str) -> (StatusCode, Fault) {
        let (status, bytes) = self.call(method, path, body).await;
        assert!(!status.is_success(), "{}", String::from_utf8_lossy(&bytes));
        (status, serde_json::from_slice(&bytes).unwrap())
    }

    async fn apply(&self, spec: &str) -> Applied {
        self.good("POST", "/v1/apply?file=a.yaml", spec).await
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.books.lock().unwrap().log)
    }

    fn refuse(&self, what: Option<&str>) {
        self.refuse_as(what, ErrorCode::System);
    }

    fn refuse_as(&self, what: Option<&str>, code: ErrorCode) {
        self.books.lock().unwrap().refuse = what.map(|what| (what.to_owned(), code));
    }

    fn objects(&self) -> BTreeMap<Key, [u8; 32]> {
        self.books.lock().unwrap().objects.clone()
    }
}

/// A spec of tenants with so many endpoints each.
fn spec(tenants: &[(&str, u32)]) -> String {
    let mut text = "version: 1\ntenants:\n".to_owned();
    for (tenant, endpoints) in tenants {
        text += &format!(
            "  - name: {tenant}\n    subnets:\n      - {{ name: lan, prefixes: [10.1.0.0/16] }}\n    endpoints:\n"
        );
        for endpoint in 0..*endpoints {
            text += &format!("      - {{ name: e{endpoint}, subnet: lan }}\n");
        }
    }
    text
}

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
    let usage: api::Usage = rig.good("GET", "/v1/usage?tenant=red", "").await;
    assert_eq!((sent(&usage), differs(&rig)), (1 << 40, 0));
    let none: api::Usage = rig.good("GET", "/v1/usage?tenant=blue", "").await;
    assert_eq!(none.rows, []);
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
    for (spec, sentence) in [
        (isolated([0, 1]), "no core is left"),
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
