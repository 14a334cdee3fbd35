//! `bulkhead-controller`: the unprivileged process that thinks. It takes specs over
//! its API, works out tables from them, and asks the supervisor for what needs
//! privilege; descriptors 3, 4 and 5 (control socket, listening API socket, state
//! directory) are all that it has.
#![expect(
    clippy::result_large_err,
    reason = "a fault is made once a request, off every data path"
)]

mod applier;
mod caller;
mod circuits;
mod deeds;
mod difference;
mod flows;
mod gate;
mod happenings;
mod logs;
mod metrics;
mod names;
mod pages;
mod patience;
mod proof;
mod refuse;
mod revoked;
mod routes;
mod server;
mod stated;
mod steps;
mod stream;
mod supervisor;
mod survey;
#[cfg(test)]
mod tests;
mod tokens;
mod trace;
mod turns;
mod usage;
mod view;
mod why;
mod world;

use applier::{Applier, Opener};
use caller::Rights;
use confine::Profile;
use guard::guard;
use happenings::{Happenings, now_ms};
use seqpacket::Socket;
use server::{Server, Shown};
use std::error::Error;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::ExitCode;
use std::sync::Arc;
use store::{Bounds, Store, StoreError};
use supervisor::Supervisor;
use tokens::Tokens;
use turns::{Rank, Turns};

const CONTROL: u32 = 3;
const API: u32 = 4;
const STATE: u32 = 5;
/// Between two additions to what was used.
const USAGE_EVERY: std::time::Duration = std::time::Duration::from_secs(60);
/// Between two entries about what was refused: who tries without end fills no log.
const NOTE_EVERY: std::time::Duration = std::time::Duration::from_secs(60);
/// The first of a while is written down soon.
const NOTE_AFTER: std::time::Duration = std::time::Duration::from_secs(1);
/// Between two tries to open the store.
const RETRY: std::time::Duration = std::time::Duration::from_secs(2);
/// Between two looks at the clock, at most.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_secs(10);

fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            confine::say!("bulkhead-controller: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<(), Box<dyn Error>> {
    let words = words(std::env::args().skip(1))?;
    let handed = |number| {
        confine::descriptor(number).ok_or_else(|| {
            format!(
                "descriptor {number} is not there: this program is started by bulkhead-supervisor"
            )
        })
    };
    let (control, api, state) = (handed(CONTROL)?, handed(API)?, handed(STATE)?);
    // Looked for here, as confinement forbids it.
    let rootless = words
        .rights
        .rootless
        .then(|| confine::rootless::WEAKER.to_owned());
    let weaker = confine::weaker().into_iter().chain(rootless).collect();
    // rustix looks for the vDSO's clock once, by a call that confinement forbids.
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    confine::enter(Profile::Controller)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let audit = words.audit;
    let open = Box::new(move || open_store(&state).map(|store| store.bounded(audit)));
    let control = Socket::from_fd(control);
    runtime.block_on(serve(words, weaker, control, api, open))
}

async fn serve(
    words: Words,
    weaker: Vec<String>,
    control: Socket,
    api: OwnedFd,
    open: Opener,
) -> Result<(), Box<dyn Error>> {
    let supervisor = Supervisor::new(control)?;
    let shown = Arc::new(Shown::default());
    let happenings = Arc::new(Happenings::new());
    let listening = {
        let (supervisor, shown, happenings) =
            (supervisor.clone(), shown.clone(), happenings.clone());
        tokio::spawn(supervisor.listen(move |event| happenings.heard(event, &shown.world())))
    };
    // Of the one thread that ends agreements, too; from now on, as to recover takes its time.
    tokio::spawn(supervisor.clone().beat());
    let tokens = Arc::new(Tokens::default());
    let mut applier = Applier::new(
        open,
        supervisor.clone(),
        shown.clone(),
        happenings.clone(),
        tokens.clone(),
    )
    .on_cores(words.cores);
    applier.without_root(words.rights.rootless);
    // Before the first request: an apply must find the world as it is.
    applier.recover().await;
    let rights = words.rights;
    let server = Arc::new(Server {
        rights,
        weaker,
        supervisor,
        happenings,
        applier: Turns::new(applier),
        world: shown,
        tokens,
        looks: Turns::new(()),
        places: Arc::default(),
        room: routes::Room::default(),
    });

    let listener = UnixListener::from(api);
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    tokio::select! {
        () = gate::serve(listener, routes::router(server.clone()), rights) => {}
        () = catch_up(&server) => {}
        () = prove_again(&server, words.prove_every) => {}
        () = usage::keep(&server, USAGE_EVERY) => {}
        () = logs::tell(&server) => {}
        () = end_agreements(&server) => {}
        () = note_refusals(&server) => {}
        // Without the supervisor there is nothing to do; the keeper starts both anew.
        lost = listening => return Err(format!("the supervisor is gone: {}", lost?).into()),
    }
    Ok(())
}

/// Tries again until what is applied is known and the host is so, whenever it is not: what
/// ended meanwhile is live until then, so it waits for nobody else. Never ends.
async fn catch_up(server: &Server) {
    let mut known = false;
    loop {
        if !known || server.world.health().behind {
            known = server.applier.turn(Rank::Ends).await.catch_up().await;
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Has agreements end when they do; never ends.
async fn end_agreements(server: &Server) {
    loop {
        let ends = server.world.world().expires();
        let left = ends.filter(|_| guard!("agreement-ends")).map(|ends| {
            let left = ends.saturating_mul(1000).saturating_sub(now_ms());
            std::time::Duration::from_millis(left)
        });
        if left == Some(std::time::Duration::ZERO) {
            if server
                .applier
                .turn(Rank::Ends)
                .await
                .expire()
                .await
                .is_err()
            {
                // It has said why itself.
                tokio::time::sleep(RETRY).await;
            }
            continue;
        }
        tokio::select! {
            () = server.world.another() => {}
            // No longer than that: the host's clock may be set meanwhile.
            () = tokio::time::sleep(left.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN)) => {}
        }
    }
}

/// Writes down what was refused, all of a while in one entry; never ends.
async fn note_refusals(server: &Server) {
    loop {
        tokio::time::sleep(NOTE_AFTER).await;
        let details = server.tokens.refusals();
        if details.is_empty() {
            continue;
        }
        let deed = api::AuditEntry {
            time_ms: now_ms(),
            kind: "refused".into(),
            details,
            outcome: "refused".into(),
            ..api::AuditEntry::default()
        };
        // A store that cannot be written says so where it matters.
        let _ = server.applier.turn(Rank::Host).await.note(deed).await;
        tokio::time::sleep(NOTE_EVERY).await;
    }
}

/// Has what is installed proved at an interval; never ends.
async fn prove_again(server: &Server, every: std::time::Duration) {
    loop {
        tokio::time::sleep(every).await;
        // What is wrong it says itself, where all look.
        let _ = server.applier.turn(Rank::Host).await.verify().await;
    }
}

/// The store in the state directory; by descriptor: the only files that confinement leaves.
fn open_store(state: &OwnedFd) -> Result<Store, StoreError> {
    use rustix::fs::{Mode, OFlags, openat};
    let open = |name: &str| -> Result<File, StoreError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(File::from(
            openat(state, name, flags, Mode::RUSR | Mode::WUSR)
                .map_err(|errno| StoreError::Io(errno.into()))?,
        ))
    };
    Store::open(open("controller.redb")?, &open("controller.attempts")?)
}

/// What the supervisor says on the command line.
struct Words {
    /// `--owner UID`, `--readers GID`; `--rootless`: no more than a user namespace
    /// separates what runs here.
    rights: Rights,
    /// `--cores GROUPS`, e.g. `0+4,1+5`.
    cores: command::cores::Cores,
    /// `--prove-every SECONDS`: between two proofs of what is installed.
    prove_every: std::time::Duration,
    /// `--audit-days DAYS`, `--audit-entries N`: how much of the audit log is kept.
    audit: Bounds,
}

/// Unless it is told otherwise.
const PROVE_EVERY: std::time::Duration = std::time::Duration::from_secs(60);

fn words(mut arguments: impl Iterator<Item = String>) -> Result<Words, String> {
    let mut words = Words {
        rights: Rights::default(),
        cores: Default::default(),
        prove_every: PROVE_EVERY,
        audit: Bounds::default(),
    };
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let text = arguments.next().unwrap_or_default();
            text.parse()
                .map(Some)
                .map_err(|_| format!("{argument} {text}: not a number"))
        };
        match argument.as_str() {
            "--owner" => words.rights.owner = number()?,
            "--readers" => words.rights.readers = number()?,
            "--rootless" => words.rights.rootless = true,
            "--prove-every" => {
                let seconds = number()?.unwrap_or(0).max(1);
                words.prove_every = std::time::Duration::from_secs(seconds.into());
            }
            "--audit-days" => {
                let days = number()?.unwrap_or(0).max(1);
                words.audit.age_s = u64::from(days).saturating_mul(24 * 3600);
            }
            "--audit-entries" => {
                words.audit.entries = number()?.unwrap_or(0).max(16).into();
            }
            "--cores" => {
                let text = arguments.next().unwrap_or_default();
                words.cores = text
                    .parse()
                    .map_err(|_| format!("{argument} {text}: not groups of cores"))?;
            }
            other => {
                return Err(format!(
                    "{other}: not an argument; there are --owner UID, --readers GID, \
                     --rootless, --cores GROUPS, --prove-every SECONDS, --audit-days DAYS \
                     and --audit-entries N"
                ));
            }
        }
    }
    Ok(words)
}
