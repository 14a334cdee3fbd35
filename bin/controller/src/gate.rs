//! The door of the API: everybody may knock, so nobody may fill it.

use crate::caller::{Caller, Rights, Wish};
use crate::patience::{Kept, Slow, Timed};
use crate::refuse::Failure;
use api::{Fault, Whose};
use axum::Router;
use axum::extract::connect_info::ConnectInfo;
use axum::http::Method;
use axum::response::IntoResponse;
use guard::guard;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore};

/// Connections at once, of all callers.
const MOST: usize = 256;
/// Of these, for none but root and the owner.
const RESERVED: usize = 32;
/// Of the others', for requests that are not known yet and for revocations: however many
/// are served something else, who ends an agreement gets in.
const KEPT: usize = 16;
/// Of one user who is neither.
const EACH: usize = 32;
/// From the connect, or the answer before, to the end of a request's head.
const HEAD: Duration = Duration::from_secs(10);
/// From a request's head to the end of its body, and as long as an answer may wait for
/// its reader to take any of it: of who is neither root nor the owner. These may stop
/// in the middle as they like (a capture into a pager): their places are reserved.
const SLOW: Duration = Duration::from_secs(10);
/// Refused ones that may take a moment to read why, and how long.
const LINGERING: usize = 64;
const LINGER: Duration = Duration::from_millis(200);
/// The same of who was answered in the middle of what it sends: a refused document.
const LAST: Duration = Duration::from_secs(2);
/// A request's head is at most this long; its body's limit is with the routes.
const HEAD_BYTES: usize = 64 << 10;

/// Takes connections for ever.
pub async fn serve(listener: UnixListener, router: Router, rights: Rights) {
    let gate = Arc::new(Mutex::new(Gate::default()));
    let lingering = Arc::new(Semaphore::new(LINGERING));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors or memory, which others give back in time.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let caller = Caller::of(&stream, rights.rootless);
        let trusted = rights.check(caller, Wish::Change).is_ok();
        match Place::take(&gate, caller.uid, trusted) {
            Some(place) => {
                let patience = Patience {
                    head: HEAD,
                    slow: (!trusted).then_some(SLOW),
                };
                tokio::spawn(one(stream, caller, router.clone(), patience, place));
            }
            None => {
                // Who comes when even that is too much is only hung up on.
                if let Ok(permit) = lingering.clone().try_acquire_owned() {
                    tokio::spawn(async move {
                        let _ = tokio::time::timeout(LINGER, refuse(stream)).await;
                        drop(permit);
                    });
                }
            }
        }
    }
}

/// How long a connection may keep its place without going on.
struct Patience {
    head: Duration,
    /// `None` = for ever.
    slow: Option<Duration>,
}

async fn one(stream: UnixStream, caller: Caller, router: Router, patience: Patience, place: Place) {
    let body = patience.slow.filter(|_| guard!("api-body-timeout"));
    let answer = patience.slow.filter(|_| guard!("api-answer-timeout"));
    let router = TowerToHyperService::new(router);
    let cut = place.cut.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(caller));
        let ends = *request.method() == Method::POST && request.uri().path().starts_with(ENDS);
        let served = place.serve(ends);
        let answer = (served.is_some())
            .then(|| router.call(request.map(|incoming| Timed::new(incoming, body))));
        async move {
            let answer = match answer {
                Some(answer) => answer.await?,
                None => Failure(full()).into_response(),
            };
            Ok::<_, Infallible>(answer.map(|body| Kept::new(body, served)))
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).max_buf_size(HEAD_BYTES);
    http.header_read_timeout(guard!("api-head-timeout").then_some(patience.head));
    let stream = TokioIo::new(Slow::new(stream, answer));
    let connection = http.serve_connection(stream, service);
    let whole = async {
        // A caller that breaks off harms itself alone.
        let Ok(parts) = connection.without_shutdown().await else {
            return;
        };
        if guard!("api-linger") {
            let _ = tokio::time::timeout(LAST, read_out(parts.io.into_inner())).await;
        }
    };
    tokio::select! {
        () = whole => {}
        // It asked for nothing, and another has come who may.
        () = cut.notified() => {}
    }
}

/// Where revocations are asked for.
const ENDS: &str = "/v1/revoke/";

fn full() -> Fault {
    Fault::new(
        "limit",
        Whose::User,
        "too many connections to the daemon are open, by this user or by all",
        "close some: `ss -x` shows who has them",
    )
}

/// Says why to a caller that asks, and waits for it to have read that. An answer before
/// the question is one that no HTTP client expects.
async fn refuse(mut stream: UnixStream) -> std::io::Result<()> {
    let body = serde_json::to_string(&full()).unwrap_or_default();
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    let mut said = [0; 1024];
    if stream.read(&mut said).await? == 0 {
        return Ok(());
    }
    stream.write_all(answer.as_bytes()).await?;
    read_out(stream).await
}

/// Ends what is said, and waits for the other side to end too. Closed with something
/// unread, the answer would be lost. Unbounded: the caller's to limit in time.
async fn read_out(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<()> {
    stream.shutdown().await?;
    let mut said = [0; 4096];
    while stream.read(&mut said).await? > 0 {}
    Ok(())
}

/// Who is inside.
#[derive(Default)]
struct Gate {
    trusted: usize,
    number: u64,
    /// In order of their coming.
    others: BTreeMap<u64, Inside>,
}

/// A connection of who is neither root nor the owner.
struct Inside {
    uid: u32,
    /// A request is being answered.
    served: bool,
    cut: Arc<Notify>,
}

impl Gate {
    /// The number of who comes in; root's and the owner's is 0.
    fn enter(&mut self, uid: u32, trusted: bool, cut: &Arc<Notify>) -> Option<u64> {
        let own = self.others.values().filter(|one| one.uid == uid).count();
        if !trusted && guard!("api-each") && own >= EACH {
            return None;
        }
        let all = self.trusted + self.others.len() >= MOST && guard!("api-most");
        let others = self.others.len() >= MOST - RESERVED && guard!("api-reserve");
        if (all || others && !trusted) && !self.make_room() {
            return None;
        }
        if trusted {
            self.trusted += 1;
            return Some(0);
        }
        self.number += 1;
        let inside = Inside {
            uid,
            served: false,
            cut: cut.clone(),
        };
        self.others.insert(self.number, inside);
        Some(self.number)
    }

    /// Hangs up on the oldest connection that asks for nothing, of who has most of these.
    /// Bound: MOST.
    fn make_room(&mut self) -> bool {
        let mut idle: HashMap<u32, (usize, u64)> = HashMap::new();
        for (number, one) in self.others.iter().filter(|(_, one)| !one.served) {
            idle.entry(one.uid).or_insert((0, *number)).0 += 1;
        }
        let most = idle.into_values();
        let Some((_, number)) = most.max_by_key(|(many, oldest)| (*many, Reverse(*oldest))) else {
            return false;
        };
        match self.others.remove(&number) {
            Some(one) if guard!("api-idle") => {
                one.cut.notify_one();
                true
            }
            Some(one) => {
                self.others.insert(number, one);
                false
            }
            None => false,
        }
    }

    /// Whether one who is inside may be answered now. `ends`: it is a revocation.
    fn serve(&mut self, number: u64, ends: bool) -> bool {
        let served = self.others.values().filter(|one| one.served).count();
        let full = served >= MOST - RESERVED - KEPT && guard!("api-kept");
        match self.others.get_mut(&number) {
            Some(one) if ends || !full => {
                one.served = true;
                true
            }
            _ => false,
        }
    }
}

/// A place inside, given back when the connection ends.
struct Place {
    gate: Arc<Mutex<Gate>>,
    number: u64,
    trusted: bool,
    cut: Arc<Notify>,
}

impl Place {
    fn take(gate: &Arc<Mutex<Gate>>, uid: u32, trusted: bool) -> Option<Place> {
        let cut = Arc::default();
        let number = entered(gate).enter(uid, trusted, &cut)?;
        Some(Place {
            gate: gate.clone(),
            number,
            trusted,
            cut,
        })
    }

    /// As long as its request is answered it is not hung up on.
    fn serve(&self, ends: bool) -> Option<Served> {
        let may = self.trusted || entered(&self.gate).serve(self.number, ends);
        may.then(|| Served(self.gate.clone(), self.number))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut gate = entered(&self.gate);
        match self.trusted {
            true => gate.trusted -= 1,
            false => drop(gate.others.remove(&self.number)),
        }
    }
}

/// A request that is answered, up to the answer's end.
struct Served(Arc<Mutex<Gate>>, u64);

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(one) = entered(&self.0).others.get_mut(&self.1) {
            one.served = false;
        }
    }
}

fn entered(gate: &Mutex<Gate>) -> MutexGuard<'_, Gate> {
    gate.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::{get, post};
    use std::future::Future;

    #[test]
    fn one_user_fills_its_own_share_alone_and_gets_it_back() {
        let gate = Arc::default();
        let mut mine: Vec<_> = (0..EACH)
            .map(|_| Place::take(&gate, 1000, false).unwrap())
            .collect();
        assert!(Place::take(&gate, 1000, false).is_none());
        assert!(Place::take(&gate, 1001, false).is_some());
        mine.pop();
        assert!(Place::take(&gate, 1000, false).is_some());
    }

    /// A place for a caller who said this and then says nothing and reads nothing.
    async fn after(said: &[u8], head_ms: u64, slow_ms: Option<u64>) -> (UnixStream, Shared) {
        let gate = Shared::default();
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        let place = Place::take(&gate, 1000, false).unwrap();
        theirs.write_all(said).await.unwrap();
        let caller = Caller::of(&ours, false);
        let patience = Patience {
            head: Duration::from_millis(head_ms),
            slow: slow_ms.map(Duration::from_millis),
        };
        // An answer that no socket's buffer takes whole, and one that reads first.
        let router = Router::new()
            .route("/long", get(|| async { "x".repeat(4 << 20) }))
            .route("/read", post(|body: String| async move { body }));
        tokio::spawn(one(ours, caller, router, patience, place));
        (theirs, gate)
    }

    type Shared = Arc<Mutex<Gate>>;

    /// Whether the place comes back, within five seconds.
    async fn left(gate: &Shared) -> bool {
        for _ in 0..500 {
            if gate.lock().unwrap().others.is_empty() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        false
    }

    const MINUTES: u64 = 600_000;
    const BODY: &[u8] = b"POST /read HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf";

    #[tokio::test]
    async fn a_head_that_never_ends_is_hung_up_on_and_its_place_given_back() {
        let (_theirs, gate) = after(b"GET / HTTP/1.1\r\nhost", 50, Some(MINUTES)).await;
        assert!(left(&gate).await);
    }

    #[tokio::test]
    async fn a_body_that_never_ends_is_hung_up_on_and_its_place_given_back() {
        // The head after the answer to it does not come either.
        let (_theirs, gate) = after(BODY, 50, Some(50)).await;
        assert!(left(&gate).await);
    }

    #[tokio::test]
    async fn an_answer_that_nobody_reads_is_given_up_and_its_place_given_back() {
        let asked = b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n".repeat(100);
        let (_theirs, gate) = after(&asked, MINUTES, Some(50)).await;
        assert!(left(&gate).await);
    }

    #[tokio::test]
    async fn who_is_refused_in_the_middle_of_a_document_reads_why() {
        let length = 16 << 20;
        let head = format!("POST /read HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        let (mut theirs, gate) = after(head.as_bytes(), MINUTES, Some(MINUTES)).await;
        // More than any socket takes: what is not read by then is not written either.
        theirs.write_all(&vec![0; length]).await.unwrap();
        let mut said = String::new();
        theirs.read_to_string(&mut said).await.unwrap();
        assert!(said.starts_with("HTTP/1.1 413"), "{said}");
        drop(theirs);
        assert!(left(&gate).await);
    }

    #[tokio::test]
    async fn an_answer_that_is_read_slowly_arrives_whole() {
        let asked = b"GET /long HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let (mut theirs, _gate) = after(asked, MINUTES, Some(500)).await;
        let (mut read, mut some) = (0, vec![0; 512 << 10]);
        loop {
            match theirs.read(&mut some).await.unwrap() {
                0 => break,
                more => read += more,
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(read > 4 << 20, "{read}");
    }

    fn enter(gate: &mut Gate, uid: u32, trusted: bool) -> Option<u64> {
        gate.enter(uid, trusted, &Arc::default())
    }

    #[test]
    fn all_users_together_leave_the_reserve_to_root_and_the_owner() {
        let mut gate = Gate::default();
        let mut others = Vec::new();
        for uid in 0..1000 {
            if let Some(number) = enter(&mut gate, uid, false) {
                assert!(gate.serve(number, true));
                others.push(number);
            }
        }
        assert_eq!(others.len(), MOST - RESERVED);
        let trusted = (0..1000).filter(|_| enter(&mut gate, 0, true).is_some());
        assert_eq!(trusted.count(), RESERVED);
    }

    #[test]
    fn who_asks_for_nothing_makes_room_oldest_first_of_who_has_most() {
        let mut gate = Gate::default();
        let quiet = enter(&mut gate, 1, false).unwrap();
        let served = enter(&mut gate, 2, false).unwrap();
        assert!(gate.serve(served, false));
        for _ in 0..EACH {
            let _ = enter(&mut gate, 2, false);
        }
        let mut uid = 3;
        while gate.others.len() < MOST - RESERVED {
            assert!(enter(&mut gate, uid, false).is_some());
            uid += 1;
        }
        let cut: Arc<Notify> = gate.others[&(served + 1)].cut.clone();
        let newcomer = enter(&mut gate, 9999, false).expect("there is room");
        assert_eq!(gate.others.len(), MOST - RESERVED);
        assert!(!gate.others.contains_key(&(served + 1)));
        let told = std::pin::pin!(cut.notified());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(told.poll(&mut context).is_ready());
        for number in [quiet, served, newcomer] {
            assert!(gate.others.contains_key(&number));
        }
        // One after another, whoever has most: then each has one, and the oldest goes.
        for uid in 10_000..10_000 + 1000 {
            assert!(enter(&mut gate, uid, false).is_some());
        }
        assert!(gate.others.contains_key(&served), "it is being answered");
        assert!(!gate.others.contains_key(&newcomer));
    }

    #[test]
    fn a_place_is_kept_for_who_ends_an_agreement() {
        let mut gate = Gate::default();
        let mut served = 0;
        for uid in 0..1000 {
            let Some(number) = enter(&mut gate, uid, false) else {
                continue;
            };
            served += usize::from(gate.serve(number, false));
        }
        assert_eq!(served, MOST - RESERVED - KEPT);
        let number = enter(&mut gate, 5000, false).expect("it may ask");
        assert!(!gate.serve(number, false) && gate.serve(number, true));
    }
}
