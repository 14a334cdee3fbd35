//! `run`: a command inside an endpoint: in its network namespace, or with its circuits.

use crate::args::Run;
use crate::client::{Client, encoded};
use crate::daemon::Daemon;
use crate::exit::{Exit, Trouble};
use api::Endpoint;
use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::AsFd;
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
    let endpoint: Endpoint = client.get(&path).await?;
    if endpoint.circuits {
        return super::circuits::run(run, socket).await;
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
    Err(Trouble::new(
        Exit::of_program(&error),
        format!("{}: {error}", program.display()),
        "",
    ))
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
    use super::namespace_path;

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
