//! The API's client: HTTP/1.1 over the daemon's unix socket.

use crate::exit::{Exit, Trouble};
use api::Fault;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Longest answer that is taken whole: 1,000 endpoints are about 1 MiB.
const LONGEST_ANSWER: usize = 256 << 20;

/// How long a daemon may answer nothing before it is asked whether it is there, and
/// then before it is said not to be.
const SILENCE: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 3000 });

/// A daemon to talk to. Each request opens a connection of its own.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    token: Option<String>,
}

impl Client {
    /// The daemon behind this socket.
    pub fn new(socket: &Path) -> Client {
        Client {
            socket: socket.to_owned(),
            token: None,
        }
    }

    /// With a tenant's token: then that tenant's rights are all there are.
    pub fn with_token(self, token: Option<String>) -> Client {
        Client { token, ..self }
    }

    /// Whether it asks with a token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// GET, answered by JSON.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Trouble> {
        self.exchange(Method::GET, path, Vec::new()).await
    }

    /// POST, answered by JSON.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: Vec<u8>) -> Result<T, Trouble> {
        self.exchange(Method::POST, path, body).await
    }

    /// Whether the daemon answers, within half a second.
    pub async fn answers(&self) -> bool {
        let answer = self.get::<serde_json::Value>("/healthz");
        matches!(
            tokio::time::timeout(Duration::from_millis(500), answer).await,
            Ok(Ok(_))
        )
    }

    /// GET, answered by a stream.
    pub async fn stream(&self, path: &str) -> Result<Incoming, Trouble> {
        Ok(self.send(Method::GET, path, Vec::new()).await?.into_body())
    }

    /// Ends when the daemon answers nothing at all any more, however long what was
    /// asked of it may take: a socket takes connections also when nobody serves it.
    async fn fallen_silent(&self) {
        // Bound: the request that this watches.
        loop {
            tokio::time::sleep(SILENCE).await;
            let asked = UnixStream::connect(&self.socket).await;
            let heard = match asked {
                Ok(stream) => tokio::time::timeout(SILENCE, knock(stream)).await,
                Err(_) => return,
            };
            if !matches!(heard, Ok(Ok(()))) {
                return;
            }
        }
    }

    fn silent(&self) -> Trouble {
        Trouble::new(
            Exit::Failed,
            format!(
                "the daemon at {} takes connections, but answers none",
                self.socket.display()
            ),
            "its controller does not run, or had no processor for long; the daemon's log says why \
             (`journalctl -u bulkhead`, or `log` beside the socket). What runs goes on running, and \
             `status` tells whether what was asked for was done",
        )
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<T, Trouble> {
        let answer = self.send(method, path, body).await?.into_body();
        let bytes = whole(answer).await?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Trouble::new(
                Exit::Failed,
                format!("the daemon's answer does not read: {error}"),
                "is it of the same release? see `bulkhead --version` and `bulkhead status`",
            )
        })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, Trouble> {
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|error| self.unreachable(&error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "bulkhead")
            .header("content-type", "application/yaml");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| Trouble::new(Exit::Usage, format!("not a request: {error}"), ""))?;
        let response = tokio::select! {
            response = sender.send_request(request) => response.map_err(broken)?,
            () = self.fallen_silent() => return Err(self.silent()),
        };
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let bytes = whole(response.into_body()).await?;
        Err(match serde_json::from_slice::<Fault>(&bytes) {
            Ok(fault) => fault.into(),
            Err(_) if status == StatusCode::NOT_FOUND => Trouble::new(
                Exit::Failed,
                format!("the daemon does not know {path}"),
                "is it of an older release?",
            ),
            Err(_) => Trouble::new(
                Exit::Failed,
                format!(
                    "the daemon answered {status}: {}",
                    String::from_utf8_lossy(&bytes)
                ),
                "",
            ),
        })
    }

    fn unreachable(&self, error: &std::io::Error) -> Trouble {
        let socket = self.socket.display();
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Trouble::new(
                Exit::NotRunning,
                format!("no daemon answers at {socket}"),
                "start it: `bulkhead up`, or `systemctl start bulkhead`; or name its socket by --socket",
            ),
            ErrorKind::PermissionDenied => Trouble::new(
                Exit::Denied,
                format!("{socket} may not be opened by this user"),
                "ask as root or as the user who started the daemon",
            ),
            // As many wait already as may.
            ErrorKind::WouldBlock => self.silent(),
            _ => Trouble::of_own(&socket.to_string(), error),
        }
    }
}

/// Asks for anything, and waits for the first byte of an answer.
async fn knock(mut stream: UnixStream) -> std::io::Result<()> {
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: bulkhead\r\nconnection: close\r\n\r\n")
        .await?;
    stream.read_u8().await.map(drop)
}

async fn whole(body: Incoming) -> Result<Bytes, Trouble> {
    match Limited::new(body, LONGEST_ANSWER).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Trouble::new(
            Exit::Failed,
            "the daemon's answer has no end",
            "",
        )),
        Err(error) => Err(Trouble::new(
            Exit::Failed,
            format!("the daemon broke off: {error}"),
            "`bulkhead status` shows how it is",
        )),
    }
}

fn broken(error: hyper::Error) -> Trouble {
    Trouble::new(
        Exit::Failed,
        format!("the daemon broke off: {error}"),
        "`bulkhead status` shows how it is",
    )
}

/// A path segment or query value, percent-encoded (RFC 3986: all but unreserved).
pub fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixListener;

    #[tokio::test]
    async fn a_socket_that_nobody_serves_is_given_up_and_one_that_takes_its_time_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("api.sock");
        let _unserved = UnixListener::bind(&socket).unwrap();
        let client = Client::new(&socket);
        let trouble = client.get::<serde_json::Value>("/v1/status").await;
        let message = trouble.unwrap_err().fault.message;
        assert!(message.contains("answers none"), "{message}");
        let socket = folder.path().join("slow.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let client = Client::new(&socket);
        // The first one gets its answer late, the others at once.
        let serving = tokio::spawn(async move {
            for waited in 0.. {
                let (mut stream, _) = listener.accept().await.unwrap();
                let answered = async move {
                    let late = if waited < 1 {
                        SILENCE * 3
                    } else {
                        Duration::ZERO
                    };
                    tokio::time::sleep(late).await;
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n7";
                    let _ = stream.write_all(answer).await;
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                };
                tokio::spawn(answered);
            }
        });
        let answer = client.get::<u32>("/v1/status").await;
        assert_eq!(answer.ok(), Some(7));
        serving.abort();
    }

    #[test]
    fn what_is_reserved_is_encoded() {
        assert_eq!(encoded("a/b c?ü-_.~"), "a%2Fb%20c%3F%C3%BC-_.~");
    }
}
