//! `oci`: a container runtime whose containers' sockets are circuits. The real runtime (crun, runc)
//! does the work, on a bundle that names our namespaces and our listener.

mod bundle;
mod profile;
mod taken;

use crate::args::{EndpointName, Oci};
use crate::client::{Client, encoded};
use crate::exit::{Exit, Trouble};
use notify::{Ids, Plan};
use rustix::io::{FdFlags, fcntl_setfd};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a bundle names its endpoint by.
const ANNOTATION: &str = "bulkhead.endpoint";
/// A runtime's options before the command, as crun and runc have them: those with a value.
const WITH_VALUE: [&str; 7] = [
    "--root",
    "--log",
    "--log-format",
    "--log-level",
    "--cgroup-manager",
    "--criu",
    "--rootless",
];
/// And those without.
const ALONE: [&str; 9] = [
    "--debug",
    "--systemd-cgroup",
    "--help",
    "-h",
    "-?",
    "--usage",
    "--version",
    "-v",
    "-V",
];
/// Options of `create` and `run` with a value, but for the bundle.
const OF_RUN: [&str; 3] = ["--console-socket", "--pid-file", "--preserve-fds"];
/// And those without.
const OF_RUN_ALONE: [&str; 6] = [
    "--detach",
    "-d",
    "--keep",
    "--no-new-keyring",
    "--no-pivot",
    "--no-subreaper",
];
/// What is the real runtime's alone.
const PASSED: [&str; 13] = [
    "start", "kill", "delete", "state", "list", "ps", "pause", "resume", "update", "events",
    "spec", "features", "help",
];

/// Replaces this process by the runtime. Returns only when it could not.
pub async fn oci(oci: &Oci, client: &Client, api: &Path) -> Result<Exit, Trouble> {
    match command_of(&oci.arguments)? {
        Some((at, "create" | "run")) => {
            prepare(oci, oci.arguments.get(at + 1..), client, api).await?;
        }
        Some((_, word)) if PASSED.contains(&word) => {}
        Some((_, "exec")) => {
            return Err(Trouble::new(
                Exit::Usage,
                "exec: nothing more is started in a container of circuits",
                "what a runtime starts there later is not under the Landlock scope that keeps circuits' \
                 names from it: start it by the container's own first process, or in a container of its \
                 own at the same endpoint",
            ));
        }
        Some((_, word)) => {
            return Err(Trouble::new(
                Exit::Usage,
                format!("{word}: not known of containers of circuits"),
                "commands: create, run, start, state, kill, delete; options of the runtime itself as --NAME=VALUE",
            ));
        }
        // Its version, say.
        None => {}
    }
    let error = Command::new(&oci.runtime).args(&oci.arguments).exec();
    Err(Trouble::new(
        Exit::Failed,
        format!("{}: {error}", oci.runtime.display()),
        "install crun or runc, or name one by --runtime or BULKHEAD_OCI_RUNTIME",
    ))
}

/// The runtime's command, and where it is. An option that is not known might have what follows for its value, and the
/// runtime another command than the one that is found.
fn command_of(words: &[OsString]) -> Result<Option<(usize, &str)>, Trouble> {
    let mut is_value = false;
    for (at, word) in words.iter().enumerate() {
        if std::mem::take(&mut is_value) {
            continue;
        }
        let text = text_of(word)?;
        if !text.starts_with('-') {
            return Ok(Some((at, text)));
        }
        is_value = WITH_VALUE.contains(&text);
        let is_whole = text.starts_with("--") && text.contains('=');
        if !is_value && !is_whole && !ALONE.contains(&text) {
            return Err(unclear(
                text,
                "options of the runtime itself as --NAME=VALUE",
            ));
        }
    }
    Ok(None)
}

/// The bundle that `create` or `run` is about. Runtimes read options that are shortened, joined, or behind the
/// container's name in different ways, and might take another bundle, or another file, than the one that is prepared.
fn bundle_of(words: &[OsString]) -> Result<PathBuf, Trouble> {
    const WRITE: &str =
        "write --bundle PATH, and what else there is as --NAME VALUE, before the container's name";
    let mut bundle = PathBuf::from(".");
    let mut is_named = false;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = text_of(word)?;
        let (name, value) = match text.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(OsStr::new(value))),
            _ => (text, None),
        };
        let is_bundle = ["--bundle", "-b"].contains(&name);
        match name {
            "--config" | "-f" => {
                return Err(Trouble::new(
                    Exit::Usage,
                    format!(
                        "{name}: containers of circuits are described by their bundle's config.json"
                    ),
                    "name the bundle by --bundle",
                ));
            }
            _ if !name.starts_with('-') => is_named = true,
            _ if is_named => return Err(unclear(text, WRITE)),
            _ if is_bundle || OF_RUN.contains(&name) => {
                let value = value.or_else(|| words.next().map(OsString::as_os_str));
                if is_bundle {
                    bundle = value.map_or(bundle, PathBuf::from);
                }
            }
            _ if OF_RUN_ALONE.contains(&text) => {}
            _ => return Err(unclear(text, WRITE)),
        }
    }
    Ok(bundle)
}

/// An option, a command or a container's name; a value may be no text.
fn text_of(word: &OsString) -> Result<&str, Trouble> {
    let unclear = || unclear(&word.to_string_lossy(), "write it in UTF-8");
    word.to_str().ok_or_else(unclear)
}

fn unclear(option: &str, advice: &str) -> Trouble {
    let what = format!("{option}: not known, and runtimes may read it in different ways");
    Trouble::new(Exit::Usage, what, advice)
}

/// Makes the namespaces and has the bundle name them, and enters the scope.
async fn prepare(
    oci: &Oci,
    words: Option<&[OsString]>,
    client: &Client,
    api: &Path,
) -> Result<(), Trouble> {
    let path = bundle_of(words.unwrap_or_default())?.join("config.json");
    let (text, before) = read(&path)?;
    let mut config = bundle::original(before);
    let wrong = |why: bundle::Wrong| {
        Trouble::new(
            Exit::Usage,
            format!("{}: {}", path.display(), why.what),
            why.advice,
        )
    };
    bundle::is_read_alike(&config).map_err(wrong)?;
    bundle::asks_nothing_more(&config).map_err(wrong)?;
    bundle::has_a_group_of_its_own(&config).map_err(wrong)?;
    let endpoint = endpoint(oci.endpoint.as_ref(), &config, &path)?;
    let (users, groups) = bundle::ids(&config).map_err(wrong)?;

    // What a runtime is told to preserve.
    super::run_circuits::keep_network_sockets()?;
    let announced = super::run_circuits::announced_at(api, &endpoint);
    let circuits = match super::run_circuits::meet(&announced) {
        Ok((_, circuits)) => circuits,
        Err(trouble) => return Err(of_its_kind(&endpoint, client).await.unwrap_or(trouble)),
    };
    let namespaces = notify::namespaces(
        &Plan {
            program: OsString::new(),
            arguments: Vec::new(),
            owner: circuits.uid,
            user: None,
            addresses: super::run_circuits::addresses(&circuits),
            environment: Vec::new(),
        },
        &users,
        &groups,
    )
    .map_err(|error| Trouble::new(Exit::Failed, error.to_string(), ""))?;

    let place = bundle::Place {
        endpoint: endpoint.to_string(),
        listener: announced.with_extension("oci"),
        user: handed_on(&namespaces.user)?,
        network: handed_on(&namespaces.network)?,
        users: shown(&users, "uid_map"),
        groups: shown(&groups, "gid_map"),
        chance: chance()?,
    };
    bundle::merge(&mut config, &place).map_err(wrong)?;
    write(&path, &text, &config)?;
    // The runtime has them, by their numbers, for as long as it lives.
    std::mem::forget(namespaces);
    notify::scope().map_err(|errno| {
        Trouble::new(
            Exit::Failed,
            format!("the Landlock scope of the container's names: {errno}"),
            "it takes Linux 6.12 with Landlock, and root: see `bulkhead doctor`",
        )
    })
}

/// What is wrong with an endpoint that announces nothing, where the daemon knows none of that name, or
/// as one without circuits.
async fn of_its_kind(name: &EndpointName, client: &Client) -> Option<Trouble> {
    let path = format!(
        "/v1/endpoints/{}/{}",
        encoded(&name.tenant),
        encoded(&name.endpoint)
    );
    let endpoint: api::Endpoint = match client.get(&path).await {
        Ok(endpoint) => endpoint,
        Err(trouble) => return (trouble.exit == Exit::Failed).then_some(trouble),
    };
    (!endpoint.circuits).then(|| {
        Trouble::new(
            Exit::Usage,
            format!("{name} is a {} endpoint and has no circuits", endpoint.kind),
            "a container with packets is given the endpoint's network namespace by its runtime; circuits take \
             `attach: circuits` in the spec",
        )
    })
}

/// By --endpoint or by the bundle's annotation, and never by two that differ.
fn endpoint(
    given: Option<&EndpointName>,
    config: &Value,
    path: &Path,
) -> Result<EndpointName, Trouble> {
    let said = config
        .pointer("/annotations")
        .and_then(|all| all.get(ANNOTATION));
    let said = match said {
        None => None,
        Some(said) => Some(
            said.as_str()
                .ok_or_else(|| format!("`{said}` is no string"))
                .and_then(str::parse::<EndpointName>)
                .map_err(|why| {
                    Trouble::new(
                        Exit::Usage,
                        format!("{}: annotation {ANNOTATION}: {why}", path.display()),
                        "TENANT/ENDPOINT",
                    )
                })?,
        ),
    };
    match (given, said) {
        (Some(given), Some(said)) if given.to_string() != said.to_string() => Err(Trouble::new(
            Exit::Usage,
            format!(
                "{}: it is {said}'s, and --endpoint says {given}",
                path.display()
            ),
            "leave one of them out",
        )),
        (Some(given), _) => Ok(given.clone()),
        (None, Some(said)) => Ok(said),
        (None, None) => Err(Trouble::new(
            Exit::Usage,
            format!("{}: it names no endpoint", path.display()),
            "say which: --endpoint TENANT/ENDPOINT, or the annotation bulkhead.endpoint (podman: \
             --annotation bulkhead.endpoint=TENANT/ENDPOINT); other containers are crun's or runc's own",
        )),
    }
}

/// What nobody can know before.
fn chance() -> Result<u128, Trouble> {
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Trouble::new(Exit::Failed, errno.to_string(), ""))?;
    Ok(u128::from_ne_bytes(random))
}

/// Where the runtime finds a descriptor of this process, which it will be.
fn handed_on(fd: &OwnedFd) -> Result<String, Trouble> {
    fcntl_setfd(fd, FdFlags::empty())
        .map_err(|errno| Trouble::new(Exit::Failed, errno.to_string(), ""))?;
    Ok(format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        fd.as_raw_fd()
    ))
}

/// The ids that there are inside, as a bundle has them.
fn shown(ids: &[Ids], file: &str) -> Value {
    let row = |first: u64, outside: u64, count: u64| serde_json::json!({ "containerID": first, "hostID": outside, "size": count });
    if !ids.is_empty() {
        let rows = ids
            .iter()
            .map(|ids| row(ids.first.into(), ids.outside.into(), ids.count.into()));
        return rows.collect();
    }
    let own = std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let rows = own.lines().filter_map(|line| {
        let mut words = line.split_whitespace().map(|word| word.parse().ok());
        let (first, count) = (words.next()??, words.nth(1)??);
        Some(row(first, first, count))
    });
    rows.collect()
}

fn read(path: &Path) -> Result<(Vec<u8>, Value), Trouble> {
    let text = std::fs::read(path).map_err(|error| {
        Trouble::new(
            Exit::Usage,
            format!("{}: {error}", path.display()),
            "name the bundle by --bundle",
        )
    })?;
    let config = serde_json::from_slice(&text).map_err(|error| {
        Trouble::new(
            Exit::Usage,
            format!("{}: {error}", path.display()),
            "it is to be a bundle of the OCI runtime specification: `crun spec` writes one",
        )
    })?;
    Ok((text, config))
}

/// In its place in one step; who had the old one open reads it to its end.
fn write(path: &Path, before: &[u8], config: &Value) -> Result<(), Trouble> {
    let failed = |error: std::io::Error| {
        Trouble::new(
            Exit::Failed,
            format!("{}: {error}", path.display()),
            "the bundle is written to: its namespaces and its seccomp profile are circuits' for this run",
        )
    };
    let text = serde_json::to_vec(config).map_err(|error| failed(error.into()))?;
    if text == before {
        return Ok(());
    }
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = std::fs::metadata(path).and_then(|was| {
        // Nobody else reads it before it is who the old one was.
        let mut options = std::fs::OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&beside)?;
        std::os::unix::fs::fchown(&file, Some(was.uid()), Some(was.gid()))?;
        file.set_permissions(was.permissions())?;
        file.write_all(&text)?;
        std::fs::rename(&beside, path)
    });
    written.map_err(|error| {
        let _ = std::fs::remove_file(&beside);
        failed(error)
    })
}

#[cfg(test)]
mod tests {
    use super::{bundle_of, command_of};
    use std::ffi::OsString;
    use std::path::{Path, PathBuf};

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_runtimes_command_is_found_behind_its_options() {
        let found = |line: &str| match command_of(&words(line)) {
            Ok(found) => found.map_or("none".to_owned(), |(_, word)| word.to_owned()),
            Err(_) => "unclear".to_owned(),
        };
        assert_eq!(found("run -b x t"), "run");
        // As podman and containerd have it.
        let conmon =
            "--cgroup-manager=disabled --root /run --log-format json --debug create --bundle /b id";
        assert_eq!(found(conmon), "create");
        // A value that looks like a command is none.
        assert_eq!(found("--root run delete id"), "delete");
        assert_eq!(found("--version"), "none");
        assert_eq!(found("--new=value create id"), "create");
        // What follows an unknown option may be its value, or the command.
        for line in [
            "--new delete create id",
            "--roo delete create id",
            "-r/x run id",
            "-x=y run id",
        ] {
            assert_eq!(found(line), "unclear", "{line}");
        }
    }

    #[test]
    fn a_bundle_is_named_or_here() {
        let of = |line: &str| bundle_of(&words(line)).ok();
        assert_eq!(of("id").as_deref(), Some(Path::new(".")));
        for line in [
            "-b /x id",
            "--bundle /x id",
            "--bundle=/x --pid-file p id",
            "-d --preserve-fds=1 --no-pivot --console-socket s -b /x id",
        ] {
            assert_eq!(of(line).as_deref(), Some(Path::new("/x")), "{line}");
        }
        for line in [
            "--config other.json id",
            "--conf=other.json id",
            "-fother.json id",
            "-db /y id",
            "-b /x id -b /y",
            "-b /x -- id",
            "-b /x --new=value id",
            "-b /x --detach=false id",
            "-b/x id",
            "-b=/x id",
            "-bundle /x id",
            "--bund /x id",
            "--bu=/x id",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
        use std::os::unix::ffi::OsStringExt;
        let no_text = OsString::from_vec(b"-f\xff".to_vec());
        assert!(bundle_of(&[no_text.clone(), "id".into()]).is_err());
        assert!(command_of(&[no_text, "create".into()]).is_err());
        let path = OsString::from_vec(b"/\xff".to_vec());
        let named = bundle_of(&["--bundle".into(), path.clone(), "id".into()]).ok();
        assert_eq!(named, Some(PathBuf::from(path)));
    }
}
