//! `events`: what happens, as it happens (server-sent events, one JSON object each).

use crate::args::Events;
use crate::client::Client;
use crate::exit::{Exit, Trouble};
use crate::table::when;
use api::Happening;
use http_body_util::BodyExt;

/// Follows until interrupted or the daemon ends.
pub async fn events(events: &Events, client: &Client, json: bool) -> Result<Exit, Trouble> {
    let path = format!("/v1/events?last={}", events.last);
    let mut body = client.stream(&path).await?;
    let mut lines = Lines::default();
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|e| Trouble::new(Exit::Failed, format!("the daemon broke off: {e}"), ""))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        for happening in lines.take(&data) {
            let line = if json {
                serde_json::to_string(&happening).unwrap_or_default()
            } else {
                format!(
                    "{}  {:<12} {:<16} {}",
                    when(happening.time_ms),
                    happening.kind,
                    happening.target,
                    happening.message
                )
            };
            crate::print(format!("{line}\n").as_bytes())?;
        }
    }
    Ok(Exit::Done)
}

/// Splits a stream of server-sent events.
#[derive(Default)]
pub struct Lines {
    rest: Vec<u8>,
}

/// A line longer than this is not from our daemon.
const LONGEST_LINE: usize = 1 << 20;

impl Lines {
    /// The events that these bytes complete.
    pub fn take(&mut self, bytes: &[u8]) -> Vec<Happening> {
        self.rest.extend_from_slice(bytes);
        let mut found = Vec::new();
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            if let Some(data) = line.strip_prefix(b"data:")
                && let Ok(happening) = serde_json::from_slice(data)
            {
                found.push(happening);
            }
        }
        if self.rest.len() > LONGEST_LINE {
            self.rest.clear();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_however_the_bytes_are_cut() {
        let text = b": hello\n\ndata: {\"kind\":\"died\"}\n\ndata: {\"kind\":\"restarted\"}\n\n";
        for cut in 0..text.len() {
            let mut lines = Lines::default();
            let mut kinds: Vec<String> = Vec::new();
            for part in [&text[..cut], &text[cut..]] {
                kinds.extend(lines.take(part).into_iter().map(|h| h.kind));
            }
            assert_eq!(kinds, ["died", "restarted"]);
        }
    }
}
