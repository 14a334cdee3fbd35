//! The line before the applier: who goes before whom, counted in changes.

use super::*;
use crate::turns::Rank;
use api::{Audit, NewToken};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The provider's: so many tenants that manage themselves.
fn host(tenants: usize) -> String {
    let mut text = "version: 1\ntenants:\n".to_owned();
    for n in 0..tenants {
        text += &format!("  - {{name: t{n}, self-managed: {{}}}}\n");
    }
    text += "  - name: user\n    placement: {per: tenant}\n    subnets: [{name: s, prefixes: [10.1.1.0/24]}]\n    \
             endpoints: [{name: e, subnet: s}]\n    accepts:\n";
    for n in 0..tenants {
        text += &format!(
            "      - {{name: a{n}, from: t{n}, service: o, as: [10.2.9.{}]}}\n",
            n + 1
        );
    }
    text
}

/// A document of one of these, with something to revoke.
fn own(n: usize, mark: usize) -> String {
    format!(
        "version: 1\n# {mark}\ntenants:\n  - name: t{n}\n    subnets: [{{name: s, prefixes: [10.1.1.0/24]}}]\n    \
         endpoints: [{{name: e, subnet: s}}]\n    offers: [{{name: o, endpoint: e, protocol: tcp, ports: [80], to: [user], pool: [10.9.0.0/28]}}]\n"
    )
}

/// The supervisor answers nothing until this is dropped.
struct Stalled(
    Option<std::sync::mpsc::Sender<()>>,
    Option<std::thread::JoinHandle<()>>,
);

impl Stalled {
    fn of(rig: &Rig) -> Stalled {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let (locked, is_locked) = std::sync::mpsc::channel();
        let books = rig.books.clone();
        let thread = std::thread::spawn(move || {
            let _books = books.lock().unwrap();
            locked.send(()).unwrap();
            let _ = receiver.recv();
        });
        is_locked.recv().unwrap();
        Stalled(Some(sender), Some(thread))
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        drop(self.0.take());
        if let Some(thread) = self.1.take() {
            thread.join().unwrap();
        }
    }
}

impl Rig {
    async fn with_line(tenants: usize) -> (Rig, Vec<String>) {
        let rig = Rig::new().await;
        rig.apply(&host(tenants)).await;
        let mut tokens = Vec::new();
        for n in 0..tenants {
            let path = format!("/v1/tokens?tenant=t{n}&name=ci");
            let made: NewToken = rig.good("POST", &path, "").await;
            tokens.push(made.text);
            let (status, said) = rig
                .said(&tokens[n], "/v1/apply?file=own.yaml", &own(n, 0))
                .await;
            assert_eq!(status, 200, "{said}");
        }
        (rig, tokens)
    }

    /// Asks something, in a task of its own.
    fn asks(&self, token: &str, path: &str, body: &str) -> tokio::task::JoinHandle<(u16, String)> {
        let asked = asked(self.socket.clone(), token.into(), path.into(), body.into());
        tokio::spawn(asked)
    }

    async fn said(&self, token: &str, path: &str, body: &str) -> (u16, String) {
        self.asks(token, path, body).await.unwrap()
    }

    /// Until so many wait for the applier.
    async fn waiting(&self, many: usize) {
        for _ in 0..2000 {
            if self.server.applier.waiting() == many {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{} wait, not {many}", self.server.applier.waiting());
    }

    /// An apply of the first tenant is under way, and stays so.
    async fn busy(&self, token: &str) -> (Stalled, tokio::task::JoinHandle<(u16, String)>) {
        let stalled = Stalled::of(self);
        let running = self.asks(
            token,
            "/v1/apply?file=own.yaml",
            &own(0, 1)
                .replace("name: e,", "name: f,")
                .replace("endpoint: e", "endpoint: f"),
        );
        for _ in 0..2000 {
            if self.server.applier.busy() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(self.server.applier.busy());
        (stalled, running)
    }

    /// What was changed, in order, by whom: `apply t1`.
    async fn changes(&self) -> Vec<String> {
        let audit: Audit = self.good("GET", "/v1/audit", "").await;
        let entries = audit.entries.into_iter();
        let own =
            entries.filter(|one| ["apply", "revoke", "revoke-undone"].contains(&one.kind.as_str()));
        own.map(|one| {
            format!(
                "{} {}",
                one.kind,
                if one.token.is_empty() {
                    "host"
                } else {
                    "tenant"
                }
            )
        })
        .collect()
    }
}

async fn asked(
    socket: std::path::PathBuf,
    token: String,
    path: String,
    body: String,
) -> (u16, String) {
    let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let mut request = hyper::Request::builder()
        .method("POST")
        .uri(path)
        .header("host", "x");
    if !token.is_empty() {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let said = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&said).into_owned())
}

#[tokio::test]
async fn a_revocation_waits_for_one_apply_however_many_flood_the_api() {
    const TENANTS: usize = 8;
    let (rig, tokens) = Rig::with_line(TENANTS).await;
    let before = rig.changes().await.len();
    let (stalled, running) = rig.busy(&tokens[0]).await;
    // Each tenant but the last asks for ten changes, and so does the provider.
    let mut floods = Vec::new();
    for mark in 0..10 {
        for (n, token) in tokens.iter().enumerate().take(TENANTS - 1) {
            floods.push(rig.asks(token, "/v1/apply?file=own.yaml", &own(n, 2 + mark)));
        }
    }
    let provider = rig.asks("", "/v1/apply?file=h.yaml", &(host(TENANTS) + "# again\n"));
    rig.waiting(TENANTS - 2 + 1).await;
    let last = &tokens[TENANTS - 1];
    let revoked = rig.asks(last, &format!("/v1/revoke/t{}/o", TENANTS - 1), "");
    rig.waiting(TENANTS - 2 + 2).await;
    drop(stalled);
    assert_eq!(revoked.await.unwrap().0, 200);
    assert_eq!(
        (running.await.unwrap().0, provider.await.unwrap().0),
        (200, 200)
    );
    let mut refused = 0;
    for flood in floods {
        let (status, said) = flood.await.unwrap();
        assert!(
            status == 200 || status == 429 && said.contains("not done yet"),
            "{status} {said}"
        );
        refused += usize::from(status == 429);
    }
    assert_eq!(
        refused,
        10 * (TENANTS - 1) - (TENANTS - 2),
        "one change each, no more"
    );
    let changes = rig.changes().await;
    let after: Vec<&str> = changes[before..].iter().map(String::as_str).collect();
    assert_eq!(after[..3], ["apply tenant", "revoke tenant", "apply host"]);
    assert_eq!(after.len(), 3 + TENANTS - 2);
}

#[tokio::test]
async fn who_hangs_up_before_its_turn_changes_nothing() {
    let (rig, tokens) = Rig::with_line(2).await;
    let before = rig.changes().await.len();
    let (stalled, running) = rig.busy(&tokens[0]).await;
    for mark in 0..5 {
        let waits = rig.asks(&tokens[1], "/v1/apply?file=own.yaml", &own(1, 9 + mark));
        rig.waiting(1).await;
        waits.abort();
        let _ = waits.await;
        // Its connection task ends with the sender.
        rig.waiting(0).await;
    }
    drop(stalled);
    assert_eq!(running.await.unwrap().0, 200);
    assert_eq!(rig.changes().await.len(), before + 1);
}

#[tokio::test]
async fn a_revocation_that_changes_nothing_waits_for_nobody_and_is_counted() {
    let (rig, tokens) = Rig::with_line(2).await;
    assert_eq!(rig.said(&tokens[1], "/v1/revoke/t1/o", "").await.0, 200);
    let before = rig.changes().await.len();
    let (stalled, running) = rig.busy(&tokens[0]).await;
    // Answered while the applier is held.
    let soon = |path: &'static str| {
        let asks = rig.asks(&tokens[1], path, "");
        async move {
            tokio::time::timeout(Duration::from_secs(20), asks)
                .await
                .unwrap()
                .unwrap()
        }
    };
    let (status, said) = soon("/v1/revoke/t1/o").await;
    assert_eq!(status, 200, "{said}");
    let applied: Applied = serde_json::from_str(&said).unwrap();
    assert!(applied.already && applied.plan.changes.is_empty());
    assert_eq!(soon("/v1/revoke/t1/nothing").await.0, 404);
    for bad in [
        "/v1/revoke/t1/o%0Arevoked%20t0%20o",
        "/v1/revoke/t1/o%20",
        "/v1/revoke/t1%0A/o",
        "/v1/revoke/t1/..%2Ft0%2Fo",
    ] {
        let (status, said) = soon(bad).await;
        assert!(
            status == 422 && said.contains("name"),
            "{bad}: {status} {said}"
        );
    }
    let mut statuses = Vec::new();
    for _ in 0..70 {
        statuses.push(soon("/v1/revoke/t1/nothing").await.0);
    }
    assert_eq!((statuses[0], statuses[69]), (404, 429));
    drop(stalled);
    assert_eq!(running.await.unwrap().0, 200);
    assert_eq!(rig.changes().await.len(), before + 1);
    // One that ends something is let through, whatever was asked before.
    let busy = rig.server.applier.turn(Rank::Host).await;
    drop(busy);
    assert_eq!(rig.said(&tokens[0], "/v1/revoke/t0/o", "").await.0, 200);
}

#[tokio::test]
async fn plans_of_who_only_looks_use_up_no_change() {
    let (rig, tokens) = Rig::with_line(1).await;
    let path = "/v1/tokens?tenant=t0&read_only=true";
    let look: NewToken = rig.good("POST", path, "").await;
    let mut last = 0;
    for _ in 0..62 {
        last = rig
            .said(&look.text, "/v1/plan?file=own.yaml", &own(0, 0))
            .await
            .0;
    }
    assert_eq!(last, 429);
    let applied = rig
        .said(&tokens[0], "/v1/apply?file=own.yaml", &own(0, 7))
        .await;
    assert_eq!(applied.0, 200, "{}", applied.1);
}

#[tokio::test]
async fn a_document_is_refused_by_its_length_before_it_is_read() {
    let (rig, tokens) = Rig::with_line(1).await;
    // The head alone: who waits for the body would not answer.
    let asked = |token: &str, path: &str, length: usize| {
        let bearer = match token {
            "" => String::new(),
            token => format!("authorization: Bearer {token}\r\n"),
        };
        format!("POST {path} HTTP/1.1\r\nhost: x\r\n{bearer}content-length: {length}\r\n\r\n")
    };
    let answer = async |head: String| {
        let mut stream = tokio::net::UnixStream::connect(&rig.socket).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut said = vec![0; 4096];
        let read = tokio::time::timeout(Duration::from_millis(500), stream.read(&mut said)).await;
        match read {
            Ok(read) => String::from_utf8_lossy(&said[..read.unwrap()]).into_owned(),
            Err(_) => "it waits for the body".to_owned(),
        }
    };
    for path in ["/v1/plan", "/v1/apply"] {
        let own = answer(asked(&tokens[0], path, spec::MAX_DOCUMENT_BYTES + 2)).await;
        assert!(own.starts_with("HTTP/1.1 413"), "{own}");
        let host = answer(asked("", path, spec::MAX_DOCUMENT_BYTES + 2)).await;
        assert_eq!(host, "it waits for the body");
        let host = answer(asked("", path, spec::MAX_BYTES + 2)).await;
        assert!(host.starts_with("HTTP/1.1 413"), "{host}");
    }
    let nobody = answer(asked("bulkhead_0_0", "/v1/apply", 100)).await;
    assert!(nobody.starts_with("HTTP/1.1 401"), "{nobody}");
}

#[tokio::test]
async fn who_only_looks_has_one_turn_at_a_time() {
    let (rig, tokens) = Rig::with_line(4).await;
    let (stalled, running) = rig.busy(&tokens[0]).await;
    let path = "/v1/plan?file=own.yaml";
    let mut looks = Vec::new();
    for (n, token) in tokens.iter().enumerate().skip(1) {
        looks.push(rig.asks(token, path, &own(n, 1)));
        looks.push(rig.asks(token, path, &own(n, 1)));
    }
    // Of all of them one waits for the applier, and of each one for that.
    for _ in 0..2000 {
        if rig.server.looks.waiting() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(
        (rig.server.looks.waiting(), rig.server.applier.waiting()),
        (2, 1)
    );
    drop(stalled);
    assert_eq!(running.await.unwrap().0, 200);
    let mut statuses = Vec::new();
    for look in looks {
        statuses.push(look.await.unwrap().0);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429]);
}

#[tokio::test]
async fn only_what_ends_something_live_is_let_through_without_end() {
    let (rig, tokens) = Rig::with_line(2).await;
    let two = own(0, 1).replace(
        "offers: [",
        "offers: [{name: alone, endpoint: e, protocol: tcp, ports: [81], to: [user], pool: [10.9.1.0/28]}, ",
    );
    assert_eq!(
        rig.said(&tokens[0], "/v1/apply?file=own.yaml", &two)
            .await
            .0,
        200
    );
    // Nobody accepts it.
    let (path, back) = ("/v1/revoke/t0/alone", "/v1/revoke/t0/alone?undo=true");
    assert_eq!(rig.said(&tokens[0], path, "").await.0, 200);
    assert_eq!(rig.said(&tokens[0], back, "").await.0, 200);
    let mut last = 0;
    for _ in 0..70 {
        last = rig.said(&tokens[0], "/v1/revoke/t0/nothing", "").await.0;
    }
    assert_eq!(last, 429);
    assert_eq!(rig.said(&tokens[0], path, "").await.0, 429);
    assert_eq!(rig.said(&tokens[0], "/v1/revoke/t0/o", "").await.0, 200);
}
