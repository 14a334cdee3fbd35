//! The controller beside a supervisor that keeps books and can be told to refuse.

use super::proofs;
use crate::applier::Applier;
use crate::caller::Rights;
use crate::happenings::Happenings;
use crate::routes;
use crate::server::{Server, Shown};
use crate::steps::Key;
use crate::supervisor::Supervisor;
use crate::tokens::Tokens;
use api::{Applied, Fault};
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
use telemetry::circuits::CUT_DONE;
use telemetry::counters::{self, Counter};
use telemetry::drops::DropReason;
use zerocopy::IntoBytes;

/// What the fake supervisor has, and which request it refuses.
#[derive(Default)]
pub struct Books {
    pub objects: BTreeMap<Key, [u8; 32]>,
    pub images: BTreeMap<u32, ([u8; 32], u64)>,
    /// Requests in order, in a short form.
    pub log: Vec<String>,
    /// Refuses the request that has this short form.
    pub refuse: Option<(String, ErrorCode)>,
    /// A port's counters: (compartment, slot) to drops for source-ip.
    pub drops: BTreeMap<(u32, u32), u64>,
    /// Counters pages by target: the same ones as long as the host is up.
    pub pages: BTreeMap<u32, File>,
    /// Bytes that the fabric says came from each compartment; no switch says so.
    pub crossed: u64,
    /// Ports that are closed: (compartment, slot) to the reason.
    pub closed: BTreeMap<(u32, u32), u32>,
    /// Images that may be installed, and what stands for the verifier still holds.
    pub proved: BTreeSet<[u8; 32]>,
    pub held: BTreeSet<[u8; 32]>,
    /// Finds these breaches in whatever it is asked.
    pub breaches: Vec<(u32, String)>,
    /// Tenants of whom nothing is met that they ask for by `reach`.
    pub unmet: Vec<String>,
    /// Names only so many of these at a time; 0 = all.
    pub named: usize,
    /// Loses the next so many questions.
    pub lost: usize,
    /// Specs that came whole, by digest.
    pub specs: BTreeMap<[u8; 32], String>,
    /// Images that came whole, with each proof.
    pub whole: Vec<usize>,
}

pub type Shared = Arc<Mutex<Books>>;

pub fn digest<B: Body>(body: &B) -> [u8; 32] {
    Sha256::digest(body.as_bytes()).into()
}

/// Serves one end of the pair until the other is closed.
pub fn supervise(socket: Socket, books: Shared) {
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
        } else if let Some(body) = message.body::<CutCircuit>() {
            let cut = page(&CUT_DONE.to_le_bytes());
            socket
                .send_wait(
                    &Message::new(message.seq, &body),
                    &[cut.as_fd()],
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

pub fn counters_page(books: &mut Books, target: u32, epoch: u64) -> File {
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

pub fn page(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// A controller, its supervisor, and a client.
pub struct Rig {
    pub folder: Arc<tempfile::TempDir>,
    pub books: Shared,
    pub socket: PathBuf,
    pub happenings: Arc<Happenings>,
    pub server: Arc<Server>,
    pub serving: tokio::task::JoinHandle<()>,
}

impl Rig {
    pub async fn new() -> Rig {
        Rig::on(
            Arc::new(tempfile::tempdir().unwrap()),
            Shared::default(),
            Rights::default(),
        )
        .await
    }

    pub async fn on(folder: Arc<tempfile::TempDir>, books: Shared, rights: Rights) -> Rig {
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
            applier: crate::turns::Turns::new(applier),
            world: shown,
            tokens,
            looks: crate::turns::Turns::new(()),
            places: Arc::default(),
            room: routes::Room::default(),
        });
        let socket = folder.path().join(format!(
            "api-{}.sock",
            rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_nsec
        ));
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let happenings = server.happenings.clone();
        let shared = server.clone();
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
            server: shared,
            serving,
        }
    }

    /// The controller dies, and another one starts on the same store and supervisor.
    pub async fn restarted(self) -> Rig {
        self.serving.abort();
        let _ = self.serving.await;
        // It has the store open.
        drop(self.server);
        Rig::on(self.folder, self.books, Rights::default()).await
    }

    pub async fn call(&self, method: &str, path: &str, body: &str) -> (StatusCode, Bytes) {
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

    pub async fn good<T: DeserializeOwned>(&self, method: &str, path: &str, body: &str) -> T {
        let (status, bytes) = self.call(method, path, body).await;
        assert!(
            status.is_success(),
            "{status}: {}",
            String::from_utf8_lossy(&bytes)
        );
        serde_json::from_slice(&bytes).unwrap()
    }

    pub async fn bad(&self, method: &str, path: &str, body: &str) -> (StatusCode, Fault) {
        let (status, bytes) = self.call(method, path, body).await;
        assert!(!status.is_success(), "{}", String::from_utf8_lossy(&bytes));
        (status, serde_json::from_slice(&bytes).unwrap())
    }

    pub async fn apply(&self, spec: &str) -> Applied {
        self.good("POST", "/v1/apply?file=a.yaml", spec).await
    }

    pub fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.books.lock().unwrap().log)
    }

    pub fn refuse(&self, what: Option<&str>) {
        self.refuse_as(what, ErrorCode::System);
    }

    pub fn refuse_as(&self, what: Option<&str>, code: ErrorCode) {
        self.books.lock().unwrap().refuse = what.map(|what| (what.to_owned(), code));
    }

    pub fn objects(&self) -> BTreeMap<Key, [u8; 32]> {
        self.books.lock().unwrap().objects.clone()
    }
}

/// A spec of tenants with so many endpoints each.
pub fn spec(tenants: &[(&str, u32)]) -> String {
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
