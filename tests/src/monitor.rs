//! What QEMU is told while it runs (QMP).

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// A machine's monitor.
pub struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    /// Connects to `-qmp unix:PATH,server=on,wait=off`.
    ///
    /// # Errors
    /// Nobody listens there in 20 s.
    pub fn connect(path: &Path) -> Result<Monitor, String> {
        let end = Instant::now() + Duration::from_secs(20);
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > end => {
                    return Err(format!("{}: {error}", path.display()));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let patience = Some(Duration::from_secs(30));
        stream
            .set_read_timeout(patience)
            .map_err(|e| e.to_string())?;
        let mut monitor = Monitor {
            stream: BufReader::new(stream),
        };
        monitor.line()?;
        monitor.ask("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    /// Tells it to do something; what it says to that.
    ///
    /// # Errors
    /// It refuses.
    pub fn ask(&mut self, what: &str, arguments: Value) -> Result<Value, String> {
        let asked = json!({"execute": what, "arguments": arguments});
        let stream = self.stream.get_mut();
        writeln!(stream, "{asked}").map_err(|e| e.to_string())?;
        // Bound: events that come between.
        loop {
            let said = self.line()?;
            if let Some(error) = said.get("error") {
                return Err(format!("{what}: {error}"));
            }
            if let Some(answer) = said.get("return") {
                return Ok(answer.clone());
            }
        }
    }

    fn line(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => Err("the monitor is gone".into()),
            Ok(_) => serde_json::from_str(&line).map_err(|e| format!("{e}: {line}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Begins to move the machine to whoever waits there, at so many bytes a second.
    ///
    /// # Errors
    /// It refuses.
    pub fn migrate(&mut self, to: &Path, bandwidth: u64) -> Result<(), String> {
        let limit = json!({"max-bandwidth": bandwidth});
        self.ask("migrate-set-parameters", limit)?;
        let to = json!({"uri": format!("unix:{}", to.display())});
        self.ask("migrate", to).map(|_| ())
    }

    /// Waits until memory is being copied.
    ///
    /// # Errors
    /// It is not within 20 s.
    pub fn copies(&mut self) -> Result<(), String> {
        let begun = |said: &Value| said["ram"]["transferred"].as_u64() > Some(1 << 20);
        self.until(Duration::from_secs(20), begun).map(|_| ())
    }

    /// Waits until it has moved; what it says of that.
    ///
    /// # Errors
    /// It failed, or takes longer than `patience`.
    pub fn migrated(&mut self, patience: Duration) -> Result<Value, String> {
        self.until(patience, |said| said["status"] == "completed")
    }

    fn until(
        &mut self,
        patience: Duration,
        holds: impl Fn(&Value) -> bool,
    ) -> Result<Value, String> {
        let end = Instant::now() + patience;
        loop {
            let said = self.ask("query-migrate", json!({}))?;
            let over = matches!(said["status"].as_str(), Some("failed" | "cancelled"));
            match holds(&said) {
                true => return Ok(said),
                false if over || Instant::now() > end => return Err(said.to_string()),
                false => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }
}
