//! Where programs with circuits are announced: a socket for `bulkhead run`, and one for container runtimes.

use super::circuits::has_circuits;
use super::*;

/// Where programs with circuits are announced.
pub struct Announced {
    /// Who starts one connects here.
    pub listener: Shared,
    /// Container runtimes here; none where a supervisor of before had none.
    pub runtimes: Option<Shared>,
    /// Where the socket is; that of runtimes is beside it.
    pub path: PathBuf,
}

impl Announced {
    /// The port's number, which none before it had in its place: programs are announced at it.
    pub fn number(&self) -> u64 {
        rustix::fs::fstat(&self.listener).map_or(0, |it| it.st_ino)
    }

    /// Removes the sockets' names, of which `path` is one.
    pub fn remove(path: &Path) {
        // With the last of the sockets their folder goes.
        let _ = std::fs::remove_file(owner_beside(path));
        remove_socket(path);
        remove_socket(&runtimes_beside(path));
    }

    /// Whose the user namespaces of programs are that are announced there: who starts one does not take its
    /// operator's word for that, which may be the tenant's by now.
    pub fn note_owner(path: &Path, uid: u32) -> std::io::Result<()> {
        std::fs::write(owner_beside(path), format!("{uid}\n"))
    }
}

/// Where container runtimes connect, beside the socket of who starts a program. It is told them
/// as `listenerPath`.
fn runtimes_beside(path: &Path) -> PathBuf {
    path.with_extension("oci")
}

/// Where it is noted whose their user namespaces are.
fn owner_beside(path: &Path) -> PathBuf {
    path.with_extension("uid")
}

impl Supervisor {
    /// Where programs with circuits are announced, for an endpoint that is to have any.
    pub(super) fn create_announced(
        &mut self,
        body: &CreatePort,
    ) -> Result<Option<Announced>, Refusal> {
        if !has_circuits(body) {
            return Ok(None);
        }
        if self.settings.rootless {
            return Err(Refusal::new(
                ErrorCode::Denied,
                "circuits need a supervisor that is root: their programs get user namespaces of another's",
            ));
        }
        let path = socket_path(&self.settings.run_dir, "circuits", body.name.as_str()).ok_or_else(
            || {
                Refusal::new(
                    ErrorCode::BadMessage,
                    "the endpoint's name cannot name a socket",
                )
            },
        )?;
        self.prepare_circuits(body.compartment)?;
        make_folder(&path)
            .map_err(|error| Refusal::system("make the folder of the circuits' socket", &error))?;
        let uid = self.circuits(body.compartment).map(|it| it.uid());
        Announced::note_owner(&path, uid.unwrap_or(u32::MAX))
            .map_err(|error| Refusal::system("note who owns its programs", &error))?;
        let refuse = |error| {
            Refusal::new(
                ErrorCode::System,
                format!("cannot listen for programs: {error}"),
            )
        };
        let listener = Listener::bind(&path, 0o600).map_err(|error| {
            Announced::remove(&path);
            refuse(error)
        })?;
        let runtimes = Listener::bind_stream(&runtimes_beside(&path), 0o600).map_err(|error| {
            Announced::remove(&path);
            refuse(error)
        })?;
        let listener = listener
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| Refusal::system("listen for programs", &error))?;
        let key = Key::Port(body.compartment, body.slot, PortPart::Listener);
        self.keeper.keep(key, &Note::default(), listener.as_fd());
        let key = Key::Port(body.compartment, body.slot, PortPart::Runtimes);
        self.keeper.keep(key, &Note::default(), runtimes.as_fd());
        Ok(Some(Announced {
            listener: Rc::new(listener),
            runtimes: Some(Rc::new(runtimes)),
            path,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_a_tenants_last_endpoint_its_folder_goes() {
        let folder = tempfile::tempdir().unwrap();
        let tenant = folder.path().join("red");
        std::fs::create_dir(&tenant).unwrap();
        let all = ["web", "app"].map(|name| tenant.join(name).with_extension("sock"));
        for path in &all {
            for other in [path, &runtimes_beside(path)] {
                std::fs::write(other, "").unwrap();
            }
            Announced::note_owner(path, 7).unwrap();
        }
        Announced::remove(&all[0]);
        assert_eq!(std::fs::read_dir(&tenant).unwrap().count(), 3);
        Announced::remove(&all[1]);
        assert!(!tenant.exists());
    }
}
