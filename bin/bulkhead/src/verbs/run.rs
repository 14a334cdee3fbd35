//! `run`: a command inside an endpoint: in its network namespace, or with its circuits.

use crate::args::{EndpointName, Run};
use crate::client::{Client, encoded};
use crate::daemon::Daemon;
use crate::exit::{Exit, Trouble};
use api::Endpoint;
use notify::search;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Replaces this process by the command. Returns only when it could not.
pub async fn run(run: &Run, client: &Client, socket: &Path) -> Result<Exit, Trouble> {
    let path = format!(
        "/v1/endpoints/{}/{}",
        encoded(&run.endpoint.tenant),
        encoded(&run.endpoint.endpoint)
    );
    let endpoint: Endpoint = client.get(&path).await.map_err(|trouble| {
        match trouble.fault.code == "denied" && !rustix::process::getuid().is_root() {
            true => not_root(&run.endpoint, &trouble),
            false => trouble,
        }
    })?;
    if endpoint.circuits {
        return super::run_circuits::run(run, socket).await;
    }
    if run.user.is_some() {
        return Err(Trouble::new(
            Exit::Usage,
            format!(
                "--user, and {} is a {} endpoint",
                run.endpoint, endpoint.kind
            ),
            "use `setpriv` or `runuser` inside: bulkhead run --endpoint E -- runuser -u USER -- CMD",
        ));
    }
    if run.rings {
        return Err(Trouble::new(
            Exit::Usage,
            format!(
                "--rings, and {} is a {} endpoint",
                run.endpoint, endpoint.kind
            ),
            "rings are circuits': attach the endpoint with circuits",
        ));
    }
    if endpoint.namespace.is_empty() {
        return Err(Trouble::new(
            Exit::Usage,
            format!(
                "{} is a {} endpoint and has no network namespace",
                run.endpoint, endpoint.kind
            ),
            "endpoints attached by tap or veth have one; in those with circuits programs are started",
        ));
    }
    if let Ok(daemon) = Daemon::of(socket) {
        daemon.enter_user_namespace()?;
    }
    enter(&namespace_path(&endpoint.namespace))?;
    let Some((program, arguments)) = run.command.split_first() else {
        return Err(Trouble::new(
            Exit::Usage,
            "no command",
            "bulkhead run --endpoint red/web1 -- ip address",
        ));
    };
    let error = Command::new(program).args(arguments).exec();
    let errno = Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
    let errno = search::why(&search::candidates(program), errno);
    Err(not_executed(program, errno, "this user"))
}

/// To who may not even look: a right to look, of which the daemon tells, would not do.
fn not_root(endpoint: &EndpointName, trouble: &Trouble) -> Trouble {
    Trouble::new(
        Exit::Denied,
        format!(
            "this user may not start programs in {endpoint} ({})",
            trouble.fault.message
        ),
        "starting programs in an endpoint takes root on its host, or the owner of a daemon that runs without root",
    )
}

/// Of a program that does not execute, which was looked for as `whom`.
pub fn not_executed(program: &OsStr, errno: Errno, whom: &str) -> Trouble {
    let is_searched = !program.as_bytes().contains(&b'/');
    let help = match errno {
        Errno::NOENT if is_searched => format!(
            "no folder of PATH that {whom} may look into has it; name it by its path, or have it in PATH, \
             which is here (sudo has its own) {}",
            search::searched().display()
        ),
        Errno::NOENT => format!(
            "there is no such file for {whom}, or none that it names as its interpreter (`#!`, or a dynamic program's)"
        ),
        Errno::ACCESS => format!(
            "{whom} may not execute it: see its mode, the folders' on the way to it, and whether it is mounted noexec"
        ),
        Errno::NOEXEC => "it is neither a program of this machine nor a script".to_owned(),
        Errno::TOOBIG => "its arguments and its environment are too long together".to_owned(),
        _ => String::new(),
    };
    Trouble::new(
        Exit::of_program(&errno.into()),
        format!("cannot execute {}: {errno}", program.display()),
        help,
    )
}

/// Where a namespace named in the API is.
pub fn namespace_path(namespace: &str) -> PathBuf {
    PathBuf::from("/run/netns").join(namespace)
}

fn enter(path: &Path) -> Result<(), Trouble> {
    let namespace =
        open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| {
            Trouble::new(
                Exit::Failed,
                format!("{}: {errno}", path.display()),
                "is it the namespace of this host? `bulkhead why` shows the endpoint's port",
            )
        })?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).map_err(
        |errno| {
            Trouble::new(
                Exit::Denied,
                format!("{}: entering it was refused: {errno}", path.display()),
                "entering a network namespace takes root (CAP_SYS_ADMIN)",
            )
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_program_that_does_not_execute_it_is_said_what_to_do() {
        for (program, errno, exit, says) in [
            (
                "crul",
                Errno::NOENT,
                Exit::NoProgram,
                "that user web may look into",
            ),
            ("./crul", Errno::NOENT, Exit::NoProgram, "interpreter"),
            (
                "crul",
                Errno::ACCESS,
                Exit::NotExecutable,
                "user web may not execute it",
            ),
            (
                "crul",
                Errno::NOEXEC,
                Exit::NotExecutable,
                "neither a program",
            ),
        ] {
            let trouble = not_executed(OsStr::new(program), errno, "user web");
            assert_eq!(
                (trouble.exit, trouble.fault.whose),
                (exit, api::Whose::User)
            );
            assert!(trouble.fault.help.contains(says), "{}", trouble.fault.help);
        }
        let path = std::env::var("PATH").unwrap();
        let trouble = not_executed(OsStr::new("crul"), Errno::NOENT, "web");
        assert!(trouble.fault.help.ends_with(&path));
    }

    #[test]
    fn a_name_is_below_run_netns_and_a_path_is_itself() {
        assert_eq!(
            namespace_path("red-web1").to_str(),
            Some("/run/netns/red-web1")
        );
        assert_eq!(
            namespace_path("/proc/7/ns/net").to_str(),
            Some("/proc/7/ns/net")
        );
    }
}
