//! `run` in an endpoint of circuits: a program whose sockets are answered by the operator.

use crate::args::{EndpointName, Run};
use crate::exit::{DESCRIPTORS, Exit, Trouble};
use crate::verbs::run::not_executed;
use crate::verbs::user::{Variable, user};
use command::Message;
use command::verbs::{Circuits, Done, Mediate};
use guard::guard;
use notify::Plan;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};
use seqpacket::Socket;
use std::io::IsTerminal;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;

/// What is loaded for who wants rings.
const LIBRARY: &str = "libbulkhead_preload.so";
/// How long operators may take to answer: they may have to be started anew.
const PATIENCE: Duration = Duration::from_secs(12);
/// How long one may. One that stands still is replaced after a second, and who asked it is told
/// nothing where the kernel does not let it go.
const ANSWER: Duration = Duration::from_secs(3);

/// What is started next has none that this process was given, but as input, output and errors.
pub fn keep_network_sockets() -> Result<(), Trouble> {
    let kept = notify::keep_network_sockets().map_err(|error| {
        Trouble::new(
            Exit::Failed,
            format!("/proc/self/fd: {error}: it is not known what the program would get of the network outside"),
            "mount /proc",
        )
    })?;
    for number in kept {
        eprintln!(
            "bulkhead: descriptor {number} is a socket of the network outside: the program does not get it"
        );
    }
    Ok(())
}

/// Starts the program, and ends as it ends.
pub async fn run(run: &Run, api: &Path) -> Result<Exit, Trouble> {
    let Some((program, arguments)) = run.command.split_first() else {
        return Err(Trouble::new(
            Exit::Usage,
            "no command",
            "bulkhead run --endpoint red/web1 -- curl http://10.1.1.11/",
        ));
    };
    let user = run.user.as_deref().map(user).transpose()?;
    let (user, known_as) = user.unzip();
    if user.is_none() && rustix::process::getuid().is_root() && std::io::stderr().is_terminal() {
        eprintln!("{AS_ROOT}");
    }
    let mut environment: Vec<Variable> = known_as.unwrap_or_default();
    if run.rings {
        environment.push(library_of_rings()?);
    }
    let path = announced_at(api, &run.endpoint);
    keep_network_sockets()?;
    let start = |circuits: &Circuits| {
        notify::start(&Plan {
            program: program.clone(),
            arguments: arguments.to_vec(),
            owner: circuits.uid,
            user: user.clone(),
            addresses: addresses(circuits),
            environment: environment.clone(),
        })
        .map_err(|error| not_started(error, run))
    };
    let (started, done) = announced(&path, start, notify::Started::listener)?;
    if done.errno != 0 {
        return Err(Trouble::new(
            Exit::Failed,
            format!(
                "the operator does not take the program: {}",
                std::io::Error::from_raw_os_error(done.errno.cast_signed())
            ),
            match Errno::from_raw_os_error(done.errno.cast_signed()) {
                Errno::NOMEM => {
                    "its compartment has as many programs as it may (4,096, or its part of what the daemon may have open): end some"
                }
                Errno::AGAIN => "too many programs start, or end, at a time: try once more",
                _ => NOT_THERE,
            },
        ));
    }
    // Whoever this process is told to end, it is the program that is meant.
    let mut signals = tokio::net::UnixStream::from_std(notify::passed()?)?;
    let (running, listener) = started.go().map_err(|error| not_started(error, run))?;
    // Where nobody has it any more the kernel refuses the program's calls: they do not wait for
    // whom the endpoint was taken from.
    drop(listener);
    let pidfd = running.as_fd().try_clone_to_owned()?;
    let mut ended = tokio::task::spawn_blocking(move || running.wait());
    let status = loop {
        tokio::select! {
            status = &mut ended => break status,
            which = signals.read_u8() => {
                if let Some(which) = which.ok().and_then(|it| Signal::from_named_raw(it.into())) {
                    let _ = pidfd_send_signal(&pidfd, which);
                }
            }
        }
    };
    let status = status.map_err(std::io::Error::other).and_then(|s| s)?;
    // As a shell says it.
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    std::process::exit(code)
}

/// Why there is no program: its user's fault, or the host's.
fn not_started(error: notify::Error, run: &Run) -> Trouble {
    let (sentence, help) = (error.to_string(), error.help());
    match error {
        notify::Error::Program { program, errno } => {
            let user = run.user.as_deref().unwrap_or("root");
            not_executed(program.as_ref(), errno, &format!("user {user}"))
        }
        notify::Error::NotRoot => Trouble::new(Exit::Denied, sentence, help),
        notify::Error::Argument => Trouble::new(Exit::Usage, sentence, help),
        error if error.is_of_descriptors() => Trouble::of_host(sentence, DESCRIPTORS),
        _ => Trouble::of_host(sentence, help),
    }
}

/// The library of rings is loaded before others. Here it is not.
fn library_of_rings() -> Result<Variable, Trouble> {
    let own = std::env::current_exe().unwrap_or_default();
    let library = own.with_file_name(LIBRARY);
    if !library.is_file() {
        return Err(Trouble::new(
            Exit::Failed,
            format!("{}: there is no such library", library.display()),
            "`make install` puts it beside this program: see lib/README.md",
        ));
    }
    let mut all = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|it| !it.is_empty()) {
        all.push(":");
        all.push(others);
    }
    Ok(("LD_PRELOAD".into(), all))
}

/// What an operator answers that tries to no avail.
const AGAIN: u32 = Errno::AGAIN.raw_os_error().cast_unsigned();

/// Starts a program and hands it to the operator; what came of that.
fn announced<S>(
    path: &Path,
    mut start: impl FnMut(&Circuits) -> Result<S, Trouble>,
    listener: impl Fn(&S) -> BorrowedFd<'_>,
) -> Result<(S, Done), Trouble> {
    let (mut socket, circuits) = meet(path)?;
    let mut started = start(&circuits)?;
    let end = Instant::now() + PATIENCE;
    loop {
        let mediate = Message::new(0, &Mediate::default());
        let sent = socket.send(&mediate, &[listener(&started)]);
        let sent = sent.map_err(|error| lost(&error.to_string()));
        match sent.and_then(|()| hear::<Done>(&socket)) {
            // It cannot have it kept just now.
            Ok(done) if done.errno == AGAIN && Instant::now() < end && guard!("run-again") => {
                std::thread::sleep(Duration::from_millis(20));
                socket = meet(path)?.0;
            }
            Ok(done) => return Ok((started, done)),
            Err(trouble) if Instant::now() > end => return Err(trouble),
            // It may have had it kept before it died. Whoever follows would have it twice, and wait by the one for calls that
            // it has taken by the other: so there is another program, and nobody is left at this one.
            Err(_) => {
                let (next, circuits) = meet(path)?;
                socket = next;
                if guard!("run-anew") {
                    started = start(&circuits)?;
                }
            }
        }
    }
}

/// Where programs of an endpoint are announced.
pub fn announced_at(api: &Path, endpoint: &EndpointName) -> PathBuf {
    let place = api.parent().unwrap_or(Path::new("/run/bulkhead"));
    let name = format!("{}.sock", endpoint.endpoint);
    place.join("circuits").join(&endpoint.tenant).join(name)
}

/// The endpoint's addresses, each alone.
pub fn addresses(circuits: &Circuits) -> Vec<(IpAddr, u8)> {
    let addresses = circuits.addresses.iter().take(circuits.count as usize);
    addresses.map(shown).collect()
}

/// Connects to the operator, and hears what the program is to be like.
pub fn meet(path: &Path) -> Result<(Socket, Circuits), Trouble> {
    let end = Instant::now() + PATIENCE;
    loop {
        match met(path) {
            // Who listens ended before it said anything: the next one is on its way.
            Err(trouble) if may_pass(&trouble) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            met => return met,
        }
    }
}

/// Whether it may be otherwise in a moment; what this process has too little of may not.
fn may_pass(trouble: &Trouble) -> bool {
    trouble.exit == Exit::Failed && trouble.fault.whose != api::Whose::Host
}

fn met(path: &Path) -> Result<(Socket, Circuits), Trouble> {
    let socket = Socket::connect(path).map_err(|error| unmet(path, error))?;
    let circuits: Circuits = hear(&socket)?;
    let owner = owner_beside(path)?;
    if owner != circuits.uid && guard!("run-owner") {
        return Err(Trouble::new(
            Exit::Failed,
            format!(
                "the endpoint's operator wants its programs to be those of uid {}, and has uid {owner}",
                circuits.uid
            ),
            "it may have been taken over by its tenant: nothing was started; see `bulkhead why` and SECURITY.md",
        ));
    }
    Ok((socket, circuits))
}

fn unmet(path: &Path, error: seqpacket::Error) -> Trouble {
    let (exit, advice) = match error {
        seqpacket::Error::System(errno @ Errno::MFILE) => {
            return Trouble::of_own(&path.display().to_string(), &errno.into());
        }
        seqpacket::Error::System(Errno::NOENT) => (
            Exit::NotRunning,
            "there is no such endpoint of circuits, or no daemon: see `bulkhead status`",
        ),
        seqpacket::Error::System(Errno::ACCESS | Errno::PERM) => (
            Exit::Denied,
            "starting programs in an endpoint of circuits takes root on its host",
        ),
        _ => (Exit::Failed, "see `bulkhead status` and its log"),
    };
    Trouble::new(exit, format!("{}: {error}", path.display()), advice)
}

/// Whoever starts programs by hand may not know it; a service's log is its program's.
const AS_ROOT: &str = "bulkhead: without --user this program is the host's root toward files (--user root says that it is meant)";

/// Whose the supervisor says that programs' user namespaces are to be: who answers at the socket may be the tenant's.
fn owner_beside(path: &Path) -> Result<u32, Trouble> {
    let path = path.with_extension("uid");
    let read = std::fs::read_to_string(&path);
    let uid = read.and_then(|text| text.trim().parse().map_err(std::io::Error::other));
    uid.map_err(|error| match error.raw_os_error() {
        Some(libc::EMFILE) => Trouble::of_own(&path.display().to_string(), &error),
        _ => Trouble::new(
            Exit::Failed,
            format!("{}: {error}", path.display()),
            "the daemon writes it beside the endpoint's socket: is it of this release?",
        ),
    })
}

fn hear<B: command::Body>(socket: &Socket) -> Result<B, Trouble> {
    let end = Instant::now() + ANSWER;
    loop {
        match socket.recv() {
            Ok(Some((message, _))) => {
                return message
                    .body::<B>()
                    .ok_or_else(|| lost("it speaks another version"));
            }
            Ok(None) => {}
            Err(error) => return Err(lost(&error.to_string())),
        }
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or_default();
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        if let Ok(0) = poll(&mut fds, Some(&left)) {
            return Err(lost("it does not answer"));
        }
    }
}

/// Of an operator that does not answer.
const NOT_THERE: &str = "it is started again by itself, and again where it cannot be: try once more, or see the daemon's log";

fn lost(what: &str) -> Trouble {
    Trouble::new(
        Exit::Failed,
        format!("the tenant's operator: {what}"),
        NOT_THERE,
    )
}

fn shown(address: &[u8; 16]) -> (IpAddr, u8) {
    match Ipv6Addr::from(*address).to_canonical() {
        four @ IpAddr::V4(_) => (four, 32),
        six @ IpAddr::V6(_) => (six, 128),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use rustix::net::sockopt;

    fn accepted(listener: &seqpacket::Listener) -> Socket {
        let end = Instant::now() + 4 * PATIENCE;
        loop {
            if let Some(socket) = listener.accept().unwrap() {
                return socket;
            }
            assert!(Instant::now() < end, "nobody asks");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn whose_programs_are_the_supervisor_says_and_not_who_answers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.sock");
        let listener = seqpacket::Listener::bind(&path, 0o600).unwrap();
        let met_by = |says: u32| {
            std::thread::scope(|scope| {
                let meets = scope.spawn(|| met(&path));
                let answers = accepted(&listener);
                let body = Circuits {
                    uid: says,
                    ..Circuits::default()
                };
                answers.send(&Message::new(0, &body), &[]).unwrap();
                meets.join().unwrap().map(|(_, circuits)| circuits.uid)
            })
        };
        // Without a word of the supervisor's nobody's is taken.
        assert!(met_by(70_001).is_err());
        std::fs::write(path.with_extension("uid"), "70001\n").unwrap();
        assert_eq!(met_by(70_001).unwrap(), 70_001);
        let trouble = met_by(5).unwrap_err();
        let said = trouble.fault.message;
        assert!(said.contains("uid 5"), "{said}");
    }

    #[test]
    fn who_may_have_too_few_descriptors_is_told_so_at_once() {
        let path = Path::new("/run/web.sock");
        for errno in [Errno::MFILE, Errno::CONNREFUSED] {
            let is_own = errno == Errno::MFILE;
            for trouble in [
                unmet(path, seqpacket::Error::System(errno)),
                Trouble::from(std::io::Error::from(errno)),
            ] {
                assert_eq!((trouble.exit, may_pass(&trouble)), (Exit::Failed, !is_own));
                assert_eq!(trouble.fault.help.contains("ulimit -n"), is_own);
            }
        }
        let errno = Errno::MFILE;
        let what = "make a process";
        let file = "uid_map";
        let error = errno.into();
        let of_namespace = netlink::namespace::NamespaceError::Refused {
            what: "open",
            path: "/proc/7/ns/net".into(),
            errno,
        };
        let all = [
            notify::Error::Host { what, errno },
            notify::Error::Mapping { file, error },
            of_namespace.into(),
            netlink::NetlinkError::Socket(errno.into()).into(),
        ];
        let run =
            crate::args::Cli::try_parse_from(["bulkhead", "run", "-e", "red/web", "--", "true"]);
        let crate::args::Verb::Run(run) = run.unwrap().verb else {
            unreachable!("it is `run`");
        };
        for error in all {
            let trouble = not_started(error, &run);
            assert!(trouble.fault.help.contains("ulimit -n"), "{trouble:?}");
            assert!(!trouble.fault.message.contains("CAP_SYS"), "{trouble:?}");
        }
        let refused = notify::Error::Host {
            what,
            errno: Errno::PERM,
        };
        assert_eq!(not_started(refused, &run).fault.help, "");
        let nested = notify::Error::Child {
            step: notify::Step::Owner,
            errno: Errno::INVAL,
        };
        let fault = not_started(nested, &run).fault;
        assert!(fault.help.ends_with("run it from the host"), "{fault}");
        assert!(!fault.message.contains("host"), "{fault}");
    }

    /// The kernel does not let it go: its connection is never over.
    #[test]
    fn who_asked_an_operator_that_stands_still_asks_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.sock");
        let listener = seqpacket::Listener::bind(&path, 0o600).unwrap();
        std::fs::write(path.with_extension("uid"), "70001\n").unwrap();
        let answers = |socket: &Socket| {
            let body = Circuits {
                uid: 70_001,
                ..Circuits::default()
            };
            socket.send(&Message::new(0, &body), &[]).unwrap();
        };
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| {
                let starts = |_: &Circuits| Ok(std::os::unix::net::UnixStream::pair().unwrap());
                let (started, done) = announced(&path, starts, |it| it.0.as_fd())?;
                Ok::<_, Trouble>((sockopt::socket_cookie(&started.0).unwrap(), done))
            });
            let silent = accepted(&listener);
            let held = accepted(&listener);
            answers(&held);
            let next = accepted(&listener);
            answers(&next);
            let handed = |to: &Socket| loop {
                if let Some((_, fds)) = to.recv().unwrap() {
                    assert_eq!(fds.len(), 1);
                    break sockopt::socket_cookie(&fds[0]).unwrap();
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            let [first, second] = [&held, &next].map(handed);
            assert_ne!(first, second, "it may be kept already");
            let done = Done {
                errno: 7,
                ..Done::default()
            };
            next.send(&Message::new(0, &done), &[]).unwrap();
            let (started, done) = asks.join().unwrap().unwrap();
            assert_eq!((started, done.errno), (second, 7));
            drop((silent, held));
        });
    }
}
