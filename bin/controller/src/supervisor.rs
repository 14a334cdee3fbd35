//! The supervisor, as a client sees it: requests in flight together, answers by
//! number, events as they come.

use command::message::{ErrorCode, MAX_FDS};
use command::verbs::{Beat, Done, Event, Inventory};
use command::{Body, Message, Verb};
use seqpacket::{Error, Fds, Socket};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Semaphore, mpsc};

/// Longest wait for an answer. The supervisor's own limit for a worker is 100 ms;
/// what takes longer here is many requests in front of this one.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two beats; the supervisor has patience for several.
const BEAT: Duration = Duration::from_secs(2);
/// Requests in flight at most: bounds the memory of both sides.
const IN_FLIGHT: usize = 256;

/// A connection to the supervisor.
pub struct Supervisor {
    socket: AsyncFd<Socket>,
    pending: Mutex<Pending>,
    room: Semaphore,
}

#[derive(Default)]
struct Pending {
    last: u32,
    waiting: HashMap<u32, mpsc::UnboundedSender<(Message, Fds)>>,
}

/// Why a request came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The supervisor said no.
    #[error("{detail}")]
    Refused {
        /// Its code; `None` = a number this release does not know.
        code: Option<ErrorCode>,
        /// errno, or 0.
        errno: u32,
        /// Its sentence.
        detail: String,
    },
    /// No answer in time: the supervisor is being restarted, or hangs.
    #[error("the supervisor did not answer in time")]
    Silent,
    /// The socket is gone.
    #[error("the connection to the supervisor is lost: {0}")]
    Lost(String),
    /// An answer of the wrong form: our bug, or two releases that do not match.
    #[error("the supervisor's answer was not understood")]
    Garbled,
}

impl Supervisor {
    /// Over this socket. [`Supervisor::listen`] must run for answers to arrive.
    ///
    /// # Errors
    /// When the runtime cannot watch the descriptor.
    #[expect(
        deprecated,
        reason = "a Socket keeps its one descriptor for life; the other constructor is unsafe, which this shelf has none of"
    )]
    pub fn new(socket: Socket) -> std::io::Result<Arc<Supervisor>> {
        let socket = AsyncFd::new(socket)?;
        // The socket outlives us: answers to a predecessor's requests may still be in
        // it, and must not be taken for answers to ours.
        let last = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.subsec_nanos());
        let pending = Mutex::new(Pending {
            last,
            ..Pending::default()
        });
        Ok(Arc::new(Supervisor {
            socket,
            pending,
            room: Semaphore::new(IN_FLIGHT),
        }))
    }

    /// Takes what the supervisor sends until the socket ends; events go to `events`.
    pub async fn listen(self: Arc<Self>, events: impl Fn(Event)) -> Error {
        loop {
            let mut ready = match self.socket.readable().await {
                Ok(ready) => ready,
                Err(_) => return Error::Closed,
            };
            // Bounded: one batch, then the runtime's other tasks.
            for _ in 0..64 {
                match self.socket.get_ref().recv() {
                    Ok(Some((message, fds))) => self.take(message, fds, &events),
                    Ok(None) => {
                        ready.clear_ready();
                        break;
                    }
                    Err(Error::Malformed(_)) => {}
                    Err(error) => {
                        self.pending().waiting.clear();
                        return error;
                    }
                }
            }
            drop(ready);
            tokio::task::yield_now().await;
        }
    }

    /// Asks for something that is answered by [`Done`].
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn request<B: Body>(&self, body: &B, fds: &[OwnedFd]) -> Result<Done, Refusal> {
        let (message, _) = self.ask(body, fds).await?;
        message.body::<Done>().ok_or(Refusal::Garbled)
    }

    /// Asks for something that is answered by a body of the same verb.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn query<B: Body>(&self, body: &B) -> Result<(B, Fds), Refusal> {
        let (message, fds) = self.ask(body, &[]).await?;
        Ok((message.body::<B>().ok_or(Refusal::Garbled)?, fds))
    }

    /// Asks and gives the answer as it came.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn ask<B: Body>(&self, body: &B, fds: &[OwnedFd]) -> Result<(Message, Fds), Refusal> {
        self.ask_within(PATIENCE, body, fds).await
    }

    /// The same, for what may take longer than most.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn ask_within<B: Body>(
        &self,
        patience: Duration,
        body: &B,
        fds: &[OwnedFd],
    ) -> Result<(Message, Fds), Refusal> {
        let _room = self.room.acquire().await.map_err(|_| Refusal::Silent)?;
        let (seq, mut answers) = self.expect();
        let answer = async {
            self.send(&Message::new(seq, body), fds).await?;
            answers
                .recv()
                .await
                .ok_or_else(|| Refusal::Lost("closed".into()))
        };
        let answer = tokio::time::timeout(patience, answer).await;
        self.pending().waiting.remove(&seq);
        let (message, fds) = answer.map_err(|_| Refusal::Silent)??;
        checked(message).map(|message| (message, fds))
    }

    /// Says again and again that this process goes on, so that it is not taken for hung;
    /// never ends.
    pub async fn beat(self: Arc<Self>) {
        loop {
            // What finds no room there comes again.
            let _ = self
                .socket
                .get_ref()
                .send(&Message::new(0, &Beat::default()), &[]);
            tokio::time::sleep(BEAT).await;
        }
    }

    /// All that exists.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn inventory(&self) -> Result<Vec<Inventory>, Refusal> {
        let (seq, mut answers) = self.expect();
        let all = async {
            self.send(&Message::new(seq, &Inventory::default()), &[])
                .await?;
            let mut all = Vec::new();
            loop {
                let (message, _) = answers
                    .recv()
                    .await
                    .ok_or_else(|| Refusal::Lost("closed".into()))?;
                let message = checked(message)?;
                if message.verb == Verb::Done as u16 {
                    return Ok(all);
                }
                all.push(message.body::<Inventory>().ok_or(Refusal::Garbled)?);
            }
        };
        let all = tokio::time::timeout(PATIENCE, all).await;
        self.pending().waiting.remove(&seq);
        all.map_err(|_| Refusal::Silent)?
    }

    async fn send(&self, message: &Message, fds: &[OwnedFd]) -> Result<(), Refusal> {
        let fds: Vec<_> = fds.iter().take(MAX_FDS).map(AsFd::as_fd).collect();
        loop {
            match self.socket.get_ref().send(message, &fds) {
                Ok(()) => return Ok(()),
                Err(Error::Full) => {
                    let mut ready = self
                        .socket
                        .writable()
                        .await
                        .map_err(|e| Refusal::Lost(e.to_string()))?;
                    // The queue can be writable and yet too full for this datagram;
                    // a short pause instead of a spin.
                    match self.socket.get_ref().send(message, &fds) {
                        Ok(()) => return Ok(()),
                        Err(Error::Full) => ready.clear_ready(),
                        Err(error) => return Err(Refusal::Lost(error.to_string())),
                    }
                    drop(ready);
                    tokio::time::sleep(Duration::from_micros(200)).await;
                }
                Err(error) => return Err(Refusal::Lost(error.to_string())),
            }
        }
    }

    fn expect(&self) -> (u32, mpsc::UnboundedReceiver<(Message, Fds)>) {
        let (sender, answers) = mpsc::unbounded_channel();
        let mut pending = self.pending();
        // 0 is the number of events.
        pending.last = pending.last.wrapping_add(1).max(1);
        let seq = pending.last;
        pending.waiting.insert(seq, sender);
        (seq, answers)
    }

    fn take(&self, message: Message, fds: Fds, events: &impl Fn(Event)) {
        if message.seq == 0 {
            if let Some(event) = message.body::<Event>() {
                events(event);
            }
            return;
        }
        // An answer that nobody waits for any more is dropped, its descriptors closed.
        if let Some(waiting) = self.pending().waiting.get(&message.seq) {
            let _ = waiting.send((message, fds));
        }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn checked(message: Message) -> Result<Message, Refusal> {
    if message.error == 0 {
        return Ok(message);
    }
    // A refusal may come as Done, or in the request's own form without a sentence.
    let done = message.body::<Done>().unwrap_or_default();
    let code = error_code(message.error);
    let detail = match done.detail.as_str() {
        "" => code.map_or("refused", explain).to_owned(),
        sentence => sentence.to_owned(),
    };
    Err(Refusal::Refused {
        code,
        errno: done.errno,
        detail,
    })
}

fn error_code(number: u32) -> Option<ErrorCode> {
    use ErrorCode::{
        BadImage, BadMessage, Conflict, Denied, Limit, NoInterface, NoNamespace, NotFound,
        NotProved, Quarantined, System,
    };
    [
        BadMessage,
        NotFound,
        Conflict,
        Limit,
        System,
        Denied,
        BadImage,
        Quarantined,
        NoNamespace,
        NoInterface,
        NotProved,
    ]
    .into_iter()
    .find(|code| *code as u32 == number)
}

fn explain(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::BadMessage => {
            "the supervisor does not know this request; do the releases match?"
        }
        ErrorCode::NotFound => "it does not exist",
        ErrorCode::Conflict => "it exists already and differs",
        ErrorCode::Limit => "a limit of this host is reached",
        ErrorCode::System => "the operating system refused",
        ErrorCode::Denied => "not allowed",
        ErrorCode::BadImage => "the table image was not accepted",
        ErrorCode::Quarantined => "it is quarantined",
        ErrorCode::NoNamespace => "the network namespace does not exist",
        ErrorCode::NoInterface => "the interface does not exist",
        ErrorCode::NotProved => "it was not proved",
    }
}
