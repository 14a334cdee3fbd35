//! `demo`: the whole of it on this machine, shown to a person, then cleaned up.

pub mod actor;
mod acts;
mod attacks;
mod breach;
mod crash;
mod gateway;
mod service;
mod stage;
mod takeover;

use crate::args::Demo;
use crate::exit::{Exit, Trouble};
use std::path::Path;
use tokio::signal::unix::{SignalKind, signal};

/// The spec it brings up.
const SPEC: &str = include_str!("../../../../examples/two-tenants.yaml");
/// What it needs besides Bulkhead, and the Debian package of each.
const TOOLS: &[(&str, &str)] = &[
    ("curl", "curl"),
    ("nginx", "nginx-light"),
    ("iperf3", "iperf3"),
    ("ping", "iputils-ping"),
    ("ip", "iproute2"),
    ("bash", "bash"),
];

/// Runs it; Ctrl-C ends it in order at any point.
pub async fn demo(demo: &Demo) -> Result<Exit, Trouble> {
    let missing: Vec<&str> = TOOLS
        .iter()
        .filter(|(tool, _)| find(tool).is_none())
        .map(|(_, package)| *package)
        .collect();
    if !missing.is_empty() {
        return Err(Trouble::new(
            Exit::Failed,
            format!("the demo also needs {}", missing.join(", ")),
            format!("apt-get install {}", missing.join(" ")),
        ));
    }
    if demo.rootless || !confine::rootless::is_root() {
        // Still one thread: the runtime has started none.
        confine::rootless::enter_user_namespace()
            .map_err(|e| Trouble::new(Exit::Refused, e.to_string(), ""))?;
        say(&format!(
            "Without root, in a user namespace. What is weaker: {}.\n",
            confine::rootless::WEAKER
        ));
    }
    if let Err(error) = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
    {
        return Err(Trouble::new(
            Exit::Failed,
            format!("/dev/net/tun cannot be opened: {error}"),
            "endpoints are taps: run the demo as root, or let this user open it (usual is mode 0666)",
        ));
    }
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut stage = None;
    let outcome = tokio::select! {
        // First who ends it: what then fails in the play fails of that.
        biased;
        _ = interrupt.recv() => Err(Trouble::new(Exit::Failed, "interrupted; cleaning up", "")),
        _ = terminate.recv() => Err(Trouble::new(Exit::Failed, "told to end; cleaning up", "")),
        outcome = acts::play(&mut stage) => outcome,
    };
    if let Some(stage) = stage {
        let folder = stage.folder().display().to_string();
        let socket = stage.socket().display().to_string();
        let keep = demo.keep && outcome.is_ok();
        stage.strike(keep).await?;
        if keep {
            say(&format!(
                "\nLeft running. Look around with --socket {socket}; end it by\n  bulkhead --socket {socket} down --stop && rm -r {folder}"
            ));
        } else {
            say("\nCleaned up: no process, namespace or file of the demo is left.");
        }
    }
    outcome.map(|all_as_expected| {
        if all_as_expected {
            Exit::Done
        } else {
            Exit::Failed
        }
    })
}

fn say(text: &str) {
    // A reader that went away ends nothing: the clean-up must run.
    let _ = crate::print(format!("{text}\n").as_bytes());
}

/// A tool in PATH or where system tools are.
fn find(tool: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"])
        .map(|folder| Path::new(folder).join(tool))
        .find(|path| path.is_file())
}
