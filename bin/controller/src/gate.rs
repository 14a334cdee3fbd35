//! The door of the API: everybody may knock, so nobody may fill it.

use crate::caller::{Caller, Rights, Wish};
use crate::patience::{Slow, Timed};
use api::{Fault, Whose};
use axum::Router;
use axum::extract::connect_info::ConnectInfo;
use guard::guard;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// Connections at once, of all callers.
const MOST: usize = 256;
/// Of these, for none but root and the owner.
const RESERVED: usize = 32;
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

async fn one(
    stream: UnixStream,
    caller: Caller,
    router: Router,
    patience: Patience,
    _place: Place,
) {
    let body = patience.slow.filter(|_| guard!("api-body-timeout"));
    let answer = patience.slow.filter(|_| guard!("api-answer-timeout"));
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(caller));
        router.call(request.map(|incoming| Timed::new(incoming, body)))
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).max_buf_size(HEAD_BYTES);
    http.header_read_timeout(guard!("api-head-timeout").then_some(patience.head));
    let stream = TokioIo::new(Slow::new(stream, answer));
    // A caller that breaks off harms itself alone.
    let _ = http.serve_connection(stream, service).await;
}

/// Says why to a caller that asks, and waits for it to have read that. An answer before
/// the question is one that no HTTP client expects.
async fn refuse(mut stream: UnixStream) -> std::io::Result<()> {
    let fault = Fault::new(
        "limit",
        Whose::User,
        "too many connections to the daemon are open, by this user or by all",
        "close some: `ss -x` shows who has them",
    );
    let body = serde_json::to_string(&fault).unwrap_or_default();
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
    stream.shutdown().await?;
    // Bound: LINGER. Closed with something unread, the answer would be lost.
    while stream.read(&mut said).await? > 0 {}
    Ok(())
}

/// Who is inside.
#[derive(Default)]
struct Gate {
    trusted: usize,
    others: HashMap<u32, usize>,
}

impl Gate {
    fn enter(&mut self, uid: u32, trusted: bool) -> bool {
        let others: usize = self.others.values().sum();
        let all = self.trusted + others;
        if guard!("api-most") && all >= MOST {
            return false;
        }
        if trusted {
            self.trusted += 1;
            return true;
        }
        let own = self.others.get(&uid).copied().unwrap_or(0);
        if guard!("api-each") && own >= EACH || guard!("api-reserve") && others >= MOST - RESERVED {
            return false;
        }
        self.others.insert(uid, own + 1);
        true
    }

    fn leave(&mut self, uid: u32, trusted: bool) {
        if trusted {
            self.trusted -= 1;
        } else if let Some(own) = self.others.get_mut(&uid) {
            *own -= 1;
            if *own == 0 {
                self.others.remove(&uid);
            }
        }
    }
}

/// A place inside, given back when the connection ends.
struct Place {
    gate: Arc<Mutex<Gate>>,
    uid: u32,
    trusted: bool,
}

impl Place {
    fn take(gate: &Arc<Mutex<Gate>>, uid: u32, trusted: bool) -> Option<Place> {
        let entered = gate
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .enter(uid, trusted);
        entered.then(|| Place {
            gate: gate.clone(),
            uid,
            trusted,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gate
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .leave(self.uid, self.trusted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::{get, post};

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

    #[test]
    fn all_users_together_leave_the_reserve_to_root_and_the_owner() {
        let mut gate = Gate::default();
        let others = (0..1000).filter(|&uid| gate.enter(uid, false)).count();
        assert_eq!(others, MOST - RESERVED);
        let trusted = (0..1000).filter(|_| gate.enter(0, true)).count();
        assert_eq!(trusted, RESERVED);
        for uid in 0..others {
            gate.leave(u32::try_from(uid).unwrap(), false);
        }
        assert!(gate.others.is_empty());
    }
}
