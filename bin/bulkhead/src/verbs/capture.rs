//! `capture`: pcapng to standard output or a file.

use super::filter::{Blocks, Filter};
use super::flows;
use crate::args::Capture;
use crate::client::{Client, encoded};
use crate::exit::{Exit, Trouble};
use http_body_util::BodyExt;
use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Write};

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
    let mut body = client.stream(&path).await?;
    // What is refused leaves the file as it was.
    let mut out: Box<dyn Write> = match &capture.write {
        Some(path) => Box::new(File::create(path).map_err(|e| {
            let what = format!("{}: {e}", path.display());
            let exit = match e.kind() {
                ErrorKind::NotFound | ErrorKind::IsADirectory | ErrorKind::PermissionDenied => {
                    Exit::Usage
                }
                _ => Exit::Failed,
            };
            Trouble::new(exit, what, "name a file that can be written by -w FILE")
        })?),
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

/// What is said at the end of what the capture does not have.
fn missing(lost: u64) -> String {
    match lost {
        0 => String::new(),
        lost => format!(
            "bulkhead: {lost} frames came too fast to be written, and are not in the capture: a smaller --snap loses fewer\n"
        ),
    }
}
