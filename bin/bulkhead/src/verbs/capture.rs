//! `capture`: pcapng to standard output or a file.

use super::filter::{Blocks, Filter};
use super::flows;
use crate::args::Capture;
use crate::client::{Client, encoded};
use crate::exit::{Exit, Trouble};
use http_body_util::BodyExt;
use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;

/// Streams until interrupted, until enough frames came, or until the reader went away.
pub async fn capture(capture: &Capture, client: &Client) -> Result<Exit, Trouble> {
    let filter: Filter = match &capture.filter {
        Some(text) => text.parse().map_err(|wrong: String| {
            Trouble::new(
                Exit::Usage,
                wrong,
                "e.g. --filter 'tcp and port 80 and host 10.1.1.10'",
            )
        })?,
        None => Filter::default(),
    };
    if capture.write.is_none() && std::io::stdout().is_terminal() {
        return Err(Trouble::new(
            Exit::Usage,
            "a capture is not for terminals",
            "write it to a file by -w FILE, or show it: bulkhead capture | tshark -r -",
        ));
    }
    let circuits = !capture.drops && !capture.no_circuits;
    let (drops, snap) = (capture.drops, capture.snap);
    let mut path = format!("/v1/capture?drops={drops}&snap={snap}&circuits={circuits}");
    if let Some(endpoint) = &capture.endpoint {
        path.push_str(&format!("&endpoint={}", encoded(endpoint)));
    }
    // A capture is audited, and has circuits metered: none begins that nothing can be written of.
    let into = capture.write.as_deref().map(Into::open).transpose()?;
    let mut body = match client.stream(&path).await {
        Ok(body) => body,
        Err(trouble) => {
            if let Some(into) = into {
                into.leave();
            }
            return Err(trouble);
        }
    };
    let mut out: Box<dyn Write> = match into {
        Some(into) => Box::new(into.begin()?),
        None => Box::new(std::io::stdout().lock()),
    };
    if circuits {
        // It is the capture that was asked for: it goes on without that.
        let unseen = flows::unseen(capture.endpoint.as_deref(), client).await;
        eprint!("{}", unseen.unwrap_or_default());
    }
    let most = capture.count.unwrap_or(u64::MAX);
    let mut blocks = Blocks::default();
    // One for all: a signal between two frames counts.
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    while blocks.packets < most {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            _ = &mut interrupted => break,
        };
        let Some(frame) = frame else {
            eprint!("{}", missing(blocks.lost));
            return Err(Trouble::new(
                Exit::Failed,
                "the capture has ended: the switch or the meter that it sees by, or the daemon, is \
                 gone, or the token is no good any more",
                "`bulkhead events` says what happened; begin it again",
            ));
        };
        let frame = frame
            .map_err(|e| Trouble::new(Exit::Failed, format!("the daemon broke off: {e}"), ""))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let kept = blocks.take(&data, &filter, most).ok_or_else(|| {
            Trouble::new(
                Exit::Failed,
                "the daemon sent what is not pcapng",
                "is it of the same release?",
            )
        })?;
        match out.write_all(&kept).and_then(|()| out.flush()) {
            Ok(()) => {}
            // `| head`, `| tshark -c 5`: enough seen.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            Err(error) => return Err(error.into()),
        }
    }
    eprint!("{}", missing(blocks.lost));
    Ok(Exit::Done)
}

/// The file that is named, open, before the capture begins: what is refused leaves it as it was.
struct Into<'a> {
    path: &'a Path,
    file: File,
    /// It was not there before.
    is_new: bool,
}

impl Into<'_> {
    fn open(path: &Path) -> Result<Into<'_>, Trouble> {
        let mut options = File::options();
        options.write(true);
        let opened = match options.clone().create_new(true).open(path) {
            // A link that leads nowhere yet among them.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let file = options.create(true).truncate(false).open(path);
                file.map(|file| (file, false))
            }
            made => made.map(|file| (file, true)),
        };
        let (file, is_new) = opened.map_err(|e| {
            let what = format!("{}: {e}", path.display());
            let exit = match e.kind() {
                ErrorKind::NotFound | ErrorKind::IsADirectory | ErrorKind::PermissionDenied => {
                    Exit::Usage
                }
                _ => Exit::Failed,
            };
            Trouble::new(exit, what, "name a file that can be written by -w FILE")
        })?;
        Ok(Into { path, file, is_new })
    }

    /// Of what was there nothing stays; of a pipe or a device nothing has to go.
    fn begin(self) -> std::io::Result<File> {
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        Ok(self.file)
    }

    /// Nothing is captured.
    fn leave(self) {
        if self.is_new {
            // Where it cannot go it stays, empty.
            let _ = std::fs::remove_file(self.path);
        }
    }
}

/// What is said at the end of what the capture does not have.
fn missing(lost: u64) -> String {
    match lost {
        0 => String::new(),
        lost => format!(
            "bulkhead: {lost} frames came too fast to be written, and are not in the capture: a smaller --snap loses fewer\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    fn asked(into: &Path) -> Capture {
        Capture {
            endpoint: None,
            drops: true,
            no_circuits: false,
            snap: 256,
            count: None,
            filter: None,
            write: Some(into.to_owned()),
        }
    }

    #[tokio::test]
    async fn nothing_is_captured_that_cannot_be_written_and_what_is_refused_leaves_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("api.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let begun = Arc::new(AtomicUsize::new(0));
        let count = begun.clone();
        let serving = tokio::spawn(async move {
            for answer in ["403 Forbidden", "403 Forbidden", "200 OK"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                let _ = stream.read(&mut [0; 4096]).await;
                let answer = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        let client = Client::new(&socket);
        let ended = async |into: &Path| capture(&asked(into), &client).await.unwrap_err();
        let nowhere = ended(&folder.path().join("nowhere/x")).await;
        assert_eq!(nowhere.exit, Exit::Usage);
        assert_eq!(begun.load(Ordering::Relaxed), 0, "no capture was asked for");
        let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
        std::fs::write(&old, "of before").unwrap();
        for file in [&old, &new] {
            ended(file).await;
        }
        assert!(!new.exists());
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "of before");
        // One that begins takes its place.
        ended(&old).await;
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "");
        serving.await.unwrap();
    }
}
