//! Endpoints' ports: interfaces in namespaces, and fifos that processes attach to.

pub mod announced;
pub mod circuits;
mod clients;
mod closed;
pub mod crossings;
pub mod guests;
pub mod hunts;
pub mod meters;
pub mod operators;
pub mod programs;
pub mod proxies;

use crate::bodies;
use crate::channels::{Channel, End, each_part};
use crate::errands::Whose;
use crate::events::{Happened, Subject};
use crate::link::Shared;
use crate::poll::{Source, Token};
use crate::refusal::Refusal;
use crate::registry::{Key, Note, PortPart, Seat, made, making};
use crate::supervisor::Supervisor;
use crate::taps::{delete_interface, refuse_namespace, set_up_interface};
use crate::watch::Bucket;
use announced::Announced;
use circuits::has_circuits;
use command::Message;
use command::message::ErrorCode;
use command::verbs::{
    AddPort, CREATE_NAMESPACE, CreatePort, ENDPOINT_CIRCUITS, ENDPOINT_FIFO, ENDPOINT_TAP,
    ENDPOINT_VETH, ENDPOINT_VHOST, NeedReplace, PORT_PACKET, PORT_TAP, PortClosed, RemovePort,
    closed_by,
};
use guard::guard;
use guests::GuestPort;
use netlink::namespace;
use port::Features;
use proxies::Proxy;
use rustix::io::Errno;
use seqpacket::{Listener, Socket};
use shm::Geometry;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use telemetry::recorder::EventKind;

/// Descriptors kept for restarts, at most; of a low limit a quarter.
const RESERVE: u64 = 2048;
/// From this record size on a fifo carries segmentation offloads: the longest GSO
/// frame fits.
const GSO_RECORD: u32 = 65_568;

/// A port.
pub struct Port {
    /// The request that made it.
    pub body: CreatePort,
    /// Its digest.
    pub created: [u8; 32],
    /// The request in the keeper's memory.
    pub kept: Shared,
    /// What it is made of.
    pub kind: Kind,
    /// Attachments to it, if it is a fifo.
    pub attaches: Bucket,
    /// Connections to it, if it is a fifo.
    pub knocks: Bucket,
    /// It killed its switch: unplugged until released.
    pub quarantined: bool,
    /// [`PortClosed::reason`], where its interface or namespace is gone, or its last
    /// client broke the protocol; 0 = it is open.
    pub closed: u32,
    /// Where programs with circuits are announced, if it has any.
    pub circuits: Option<Announced>,
    /// Where they become TCP, if it has packets too.
    pub proxy: Option<Box<Proxy>>,
}

/// What a port is made of.
pub enum Kind {
    /// An interface in a namespace: a tap or a veth, as the request says.
    Interface {
        /// The descriptor of frames.
        fd: Shared,
        /// The namespace it is in.
        namespace: Shared,
        /// Offloads that the kernel gave.
        features: u32,
        /// Its index there.
        index: u32,
    },
    /// A fifo.
    Fifo {
        /// Its owner connects here.
        listener: Listener,
        /// Registration of the listener.
        token: Option<Token>,
        /// Where the socket is.
        path: PathBuf,
        /// Who is attached.
        client: Option<Client>,
    },
    /// A virtual machine's interface.
    Guest(Box<GuestPort>),
    /// No packets: programs whose sockets are circuits alone.
    Circuits,
}

/// A process attached to a fifo.
pub struct Client {
    socket: Socket,
    token: Option<Token>,
    channel: Channel,
}

impl Port {
    /// What plugs it into a switch; `None` while there is nothing to plug.
    pub fn plug(&mut self) -> Option<(AddPort, Vec<Shared>)> {
        if self.quarantined || self.closed != 0 {
            return None;
        }
        let (slot, mtu) = (self.body.slot, self.body.mtu);
        let features = fifo_features(&self.body);
        match &mut self.kind {
            Kind::Interface { fd, features, .. } => {
                let body = AddPort {
                    slot,
                    kind: match self.body.kind {
                        ENDPOINT_VETH => PORT_PACKET,
                        _ => PORT_TAP,
                    },
                    mtu,
                    features: *features,
                    ..AddPort::default()
                };
                Some((body, vec![Rc::clone(fd)]))
            }
            Kind::Fifo { client, .. } => client
                .as_mut()?
                .channel
                .hand(End::Switch, slot, mtu, features)
                .ok(),
            Kind::Guest(guest) => guest.plug(&self.body),
            // Its switch has no port for it.
            Kind::Circuits => None,
        }
    }
}

/// Offloads that a fifo carries by the size of its records.
fn fifo_features(body: &CreatePort) -> u32 {
    let features = if body.max_record >= GSO_RECORD {
        Features::ALL
    } else {
        Features::CSUM
    };
    u32::from(features.bits())
}

impl Supervisor {
    /// Makes a port, plugs it in. The same request again is no error, and makes again
    /// what vanished.
    ///
    /// # Errors
    /// [`Refusal`] with nothing left behind.
    pub fn create_port(&mut self, body: CreatePort) -> Result<(), Refusal> {
        let Some(compartment) = self.compartments.get(&body.compartment) else {
            return Err(Refusal::new(
                ErrorCode::NotFound,
                format!("compartment {} does not exist", body.compartment),
            ));
        };
        let created = bodies::digest(&body);
        match compartment.ports.get(&body.slot) {
            Some(port) if port.created == created && !port.is_gone() => return Ok(()),
            Some(port) if port.created == created => {
                self.remove_port(body.compartment, body.slot, true)
            }
            Some(_) => {
                let what = format!(
                    "slot {} of compartment {} has another port",
                    body.slot, body.compartment
                );
                return Err(Refusal::new(ErrorCode::Conflict, what));
            }
            None if body.slot == 0 || body.slot >= compartment.body.slots => {
                return Err(Refusal::new(
                    ErrorCode::Limit,
                    format!("slot {} is out of range", body.slot),
                ));
            }
            None => {}
        }
        // Before anything of it can be seen.
        self.end_captures_of_all(body.compartment);
        let kept = bodies::store(&body).map_err(|e| Refusal::system("keep a request", &e))?;
        spare_descriptors(&kept)?;
        let kept = Rc::new(kept);
        let key = |part| Key::Port(body.compartment, body.slot, part);
        self.keeper
            .keep(key(PortPart::Body), &making(), kept.as_fd());
        let made = self.create_announced(&body).and_then(|circuits| {
            let kind = match body.kind {
                ENDPOINT_TAP | ENDPOINT_VETH => self.create_interface(&body),
                ENDPOINT_FIFO => self.create_fifo(&body),
                ENDPOINT_VHOST => self.create_guest(&body),
                ENDPOINT_CIRCUITS => Ok(Kind::Circuits),
                other => Err(Refusal::new(
                    ErrorCode::BadMessage,
                    format!("no port is of kind {other}"),
                )),
            };
            if let (Err(_), Some(circuits)) = (&kind, &circuits) {
                Announced::remove(&circuits.path);
            }
            kind.map(|kind| (kind, circuits))
        });
        let (kind, circuits) = match made {
            Ok(made) => made,
            Err(refusal) => {
                self.keeper
                    .forget(&format!("port/{}/{}/", body.compartment, body.slot));
                return Err(refusal);
            }
        };
        let mut port = Port {
            body,
            created,
            kept,
            kind,
            attaches: Bucket::of_attaches(),
            knocks: Bucket::of_knocks(),
            quarantined: false,
            closed: 0,
            proxy: Proxy::beside(&body),
            circuits,
        };
        let plug = port.plug();
        let mut worker = None;
        if let Some(compartment) = self.compartments.get_mut(&body.compartment) {
            compartment.ports.insert(body.slot, port);
            worker = compartment.seat.worker;
        }
        self.make_room(body.compartment);
        if let (Some(worker), Some((body, fds))) = (worker, plug) {
            self.tell(worker, &Message::new(0, &body), fds);
        }
        self.link_helpers(body.compartment);
        self.plug_circuits(body.compartment, body.slot);
        self.note_port(body.compartment, body.slot);
        let subject = Subject::Seat(Seat::Compartment(body.compartment));
        self.happened(Happened::new(EventKind::PortAdded, subject).slot(body.slot));
        Ok(())
    }

    fn create_interface(&mut self, body: &CreatePort) -> Result<Kind, Refusal> {
        let name = body.namespace.as_str();
        let made_here = body.flags & CREATE_NAMESPACE != 0;
        let (namespace, is_fresh) = if made_here {
            self.namespaces
                .take(name)
                .map(|taken| (taken.namespace, taken.is_fresh))
        } else {
            namespace::open(name).map(|namespace| (namespace, false))
        }
        .map_err(|error| refuse_namespace(&error))?;
        let key = |part| Key::Port(body.compartment, body.slot, part);
        self.keeper.keep(
            key(PortPart::Namespace),
            &Note::default(),
            namespace.as_fd(),
        );
        let result = namespace::within(namespace.as_fd(), || set_up_interface(body))
            .map_err(|error| refuse_namespace(&error))
            .and_then(|made| made);
        let (fd, features, index) = match result {
            Ok(interface) => interface,
            Err(refusal) => {
                if made_here {
                    self.namespaces.leave(name, !is_fresh);
                }
                return Err(refusal);
            }
        };
        self.keeper
            .keep(key(PortPart::Interface), &Note::default(), fd.as_fd());
        let features = u32::from(features.bits());
        Ok(Kind::Interface {
            fd: Rc::new(fd),
            namespace: Rc::new(namespace),
            features,
            index,
        })
    }

    fn create_fifo(&mut self, body: &CreatePort) -> Result<Kind, Refusal> {
        fifo_geometry(body)?;
        let path =
            socket_path(&self.settings.run_dir, "fifo", body.name.as_str()).ok_or_else(|| {
                Refusal::new(
                    ErrorCode::BadMessage,
                    "the endpoint's name cannot name a socket",
                )
            })?;
        let refuse = |what: &str, error: seqpacket::Error| match error {
            seqpacket::Error::System(errno) => Refusal::errno(what, errno),
            other => Refusal::new(ErrorCode::System, format!("cannot {what}: {other}")),
        };
        make_folder(&path)
            .map_err(|error| Refusal::system("make the folder of the fifo's socket", &error))?;
        let listener =
            Listener::bind(&path, 0o600).map_err(|e| refuse("listen for the fifo's owner", e))?;
        // Whoever lets go of a descriptor last may wait for what it is of. Before Linux 6.16 there is no
        // way to have none sent.
        if guard!("fifo-descriptors") {
            let _ = notify::refuse_descriptors(listener.as_fd());
        }
        if !self.settings.rootless
            && body.owner != 0
            && let Err(errno) = give_to(&path, body.owner)
        {
            remove_socket(&path);
            return Err(Refusal::errno("give the fifo's socket to its owner", errno));
        }
        let source = Source::Listener(body.compartment, body.slot);
        let token = self.poll.watch(&listener, source).ok();
        self.keeper.keep(
            Key::Port(body.compartment, body.slot, PortPart::Listener),
            &Note::default(),
            listener.as_fd(),
        );
        Ok(Kind::Fifo {
            listener,
            token,
            path,
            client: None,
        })
    }

    /// Notes with the keeper that the port is complete, and what it is like.
    pub fn note_port(&mut self, compartment: u32, slot: u32) {
        let Some(port) = self
            .compartments
            .get(&compartment)
            .and_then(|c| c.ports.get(&slot))
        else {
            return;
        };
        let (features, index) = match port.kind {
            Kind::Interface {
                features, index, ..
            } => (features, index),
            Kind::Fifo { .. } | Kind::Guest(_) | Kind::Circuits => (0, 0),
        };
        let note = made()
            .with("features", features)
            .with("index", index)
            .with("quarantined", u32::from(port.quarantined))
            .with("closed", port.closed);
        self.keeper.keep(
            Key::Port(compartment, slot, PortPart::Body),
            &note,
            port.kept.as_fd(),
        );
    }

    /// A namespace was deleted from outside: ports by that name are none any more,
    /// though their interfaces live on for who is inside.
    pub fn namespaces_deleted(&mut self) {
        let names: BTreeSet<String> = self.namespaces.deleted();
        let is_named = |body: &CreatePort| {
            let last = Path::new(body.namespace.as_str()).file_name();
            last.and_then(|name| name.to_str())
                .is_some_and(|name| names.contains(name))
        };
        let lost: Vec<(u32, u32)> = self
            .compartments
            .iter()
            .flat_map(|(id, c)| c.ports.iter().map(|(slot, port)| (*id, *slot, port)))
            .filter(|(_, _, port)| is_named(&port.body) && port.closed == 0 && port.is_gone())
            .map(|(id, slot, _)| (id, slot))
            .collect();
        for (id, slot) in lost {
            let reason = closed_by(Errno::NODEV.raw_os_error());
            self.port_closed(Seat::Compartment(id), &PortClosed { slot, reason });
        }
    }

    /// Removes a port and what was made for it; its namespace `stays` where another
    /// port is to come into it. One that is not there is no error.
    pub fn remove_port(&mut self, compartment: u32, slot: u32, stays: bool) {
        self.drop_client(compartment, slot);
        let Some(home) = self.compartments.get_mut(&compartment) else {
            return;
        };
        let Some(port) = home.ports.remove(&slot) else {
            return;
        };
        let worker = home.seat.worker;
        // The slot is another's next.
        self.end_captures_at(compartment, slot);
        if let (Some(worker), Kind::Interface { .. } | Kind::Guest(_)) = (worker, &port.kind) {
            self.tell(worker, &Message::new(0, &RemovePort { slot }), Vec::new());
        }
        if let Kind::Fifo {
            listener,
            token,
            path,
            ..
        } = &port.kind
        {
            if let Some(token) = token {
                self.poll.unwatch(listener, *token);
            }
            self.errands
                .part_listener(Whose::Ports(compartment), listener.as_fd());
            remove_socket(path);
        }
        if let Kind::Guest(guest) = &port.kind {
            self.errands
                .part_listener(Whose::Ports(compartment), guest.listener());
            remove_socket(&guest.path);
            if let Some(helper) = guest.helper {
                self.kill(helper, None);
            }
        }
        if let Some(proxy) = port.proxy.as_ref().and_then(|proxy| proxy.process) {
            self.kill(proxy, None);
        }
        if let Some(circuits) = &port.circuits {
            Announced::remove(&circuits.path);
            self.errands
                .part_listener(Whose::Ports(compartment), circuits.listener.as_fd());
            if let Some(runtimes) = &circuits.runtimes {
                self.errands
                    .part_listener(Whose::Ports(compartment), runtimes.as_fd());
            }
            self.end_circuits(compartment, slot);
        }
        if let Kind::Interface { fd, namespace, .. } = &port.kind {
            let name = port.body.namespace.as_str();
            let made_here = port.body.flags & CREATE_NAMESPACE != 0;
            match fd.try_clone() {
                // It goes with the namespace, which the kernel does behind our back:
                // deleting an interface holds up everybody for some 30 ms.
                Ok(fd) if made_here && !stays && self.namespaces.has_one_port(name) => {
                    // A veth's end is left to its namespace as it is.
                    if port.body.kind == ENDPOINT_TAP {
                        port::tap::leave_to_namespace(fd);
                    }
                }
                _ => delete_interface(namespace.as_fd(), port.body.interface.as_str()),
            }
            if made_here {
                self.namespaces.leave(name, stays);
            }
        }
        if let Kind::Guest(guest) = port.kind {
            for end in guest.ends() {
                self.errands.part_given(Whose::Ports(compartment), end);
            }
        }
        self.keeper.forget(&format!("port/{compartment}/{slot}/"));
    }

    /// A port of before, taken over.
    pub fn adopt_port(&mut self, kept: crate::registry::KeptPort<OwnedFd>) -> Option<Port> {
        let (fd, note) = kept.body;
        let body: CreatePort = bodies::load(&fd)?;
        let (mut listener, mut circuits) = (kept.listener, None);
        if has_circuits(&body) {
            let path = socket_path(&self.settings.run_dir, "circuits", body.name.as_str())?;
            let listener = Rc::new(listener.take()?);
            let runtimes = kept.runtimes.map(Rc::new);
            circuits = Some(Announced {
                listener,
                runtimes,
                path,
            });
        }
        let kind = match (kept.interface, kept.namespace, listener) {
            _ if body.kind == ENDPOINT_CIRCUITS => Kind::Circuits,
            (Some(interface), Some(namespace), _) => {
                if body.flags & CREATE_NAMESPACE != 0 {
                    self.namespaces.adopt(body.namespace.as_str());
                }
                Kind::Interface {
                    fd: Rc::new(interface),
                    namespace: Rc::new(namespace),
                    features: note.number("features") as u32,
                    index: note.number("index") as u32,
                }
            }
            (_, _, Some(listener)) if body.kind == ENDPOINT_VHOST => {
                let path = socket_path(&self.settings.run_dir, "vhost", body.name.as_str())?;
                Kind::Guest(Box::new(GuestPort::adopted(listener, path, kept.page?)))
            }
            (_, _, Some(listener)) => {
                let listener = Listener::from_fd(listener);
                let token = self
                    .poll
                    .watch(&listener, Source::Listener(body.compartment, body.slot))
                    .ok();
                let path = socket_path(&self.settings.run_dir, "fifo", body.name.as_str())?;
                let client = kept.client.and_then(|(socket, parts)| {
                    let channel = Channel::from_parts(parts, fifo_geometry(&body).ok()?, 0)?;
                    let socket = Socket::from_fd(socket);
                    let token = self
                        .poll
                        .watch(&socket, Source::Client(body.compartment, body.slot))
                        .ok();
                    Some(Client {
                        socket,
                        token,
                        channel,
                    })
                });
                Kind::Fifo {
                    listener,
                    token,
                    path,
                    client,
                }
            }
            _ => return None,
        };
        Some(Port {
            body,
            created: bodies::digest(&body),
            kept: Rc::new(fd),
            kind,
            attaches: Bucket::of_attaches(),
            knocks: Bucket::of_knocks(),
            quarantined: note.number("quarantined") != 0,
            closed: note.number("closed") as u32,
            proxy: Proxy::beside(&body),
            circuits,
        })
    }

    /// Removes what a half-made port may have left outside the keeper. A namespace is
    /// left to [`crate::namespaces::Namespaces::settle`]: the request comes again.
    pub fn remove_half_port(&mut self, body: OwnedFd) {
        let Some(body) = bodies::load::<CreatePort>(&body) else {
            return;
        };
        let folder = match body.kind {
            ENDPOINT_FIFO => "fifo",
            ENDPOINT_VHOST => "vhost",
            _ if has_circuits(&body) => "circuits",
            _ => return,
        };
        if let Some(path) = socket_path(&self.settings.run_dir, folder, body.name.as_str()) {
            match folder {
                "circuits" => Announced::remove(&path),
                _ => remove_socket(&path),
            }
        }
    }
}

impl Port {
    /// Whether it is an interface.
    pub fn is_interface(&self) -> bool {
        matches!(self.kind, Kind::Interface { .. })
    }

    /// Whether there is nothing left of it to close.
    pub fn is_closed(&self) -> bool {
        match &self.kind {
            Kind::Interface { .. } => self.closed != 0,
            Kind::Fifo { client, .. } => client.is_none(),
            Kind::Guest(_) | Kind::Circuits => self.closed != 0,
        }
    }

    /// Whether the interface went away under it (deleted, or its namespace was).
    fn is_gone(&self) -> bool {
        match &self.kind {
            Kind::Interface { namespace, .. } => {
                self.closed != 0
                    || !namespace::is_at(namespace.as_fd(), self.body.namespace.as_str())
            }
            Kind::Fifo { .. } | Kind::Guest(_) | Kind::Circuits => false,
        }
    }
}

/// Whether enough descriptors are left for restarts after this one, which is the newest:
/// the kernel gives the lowest number that is free, so all below it are in use.
///
/// # Errors
/// [`ErrorCode::Limit`].
fn spare_descriptors(newest: impl AsFd) -> Result<(), Refusal> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.unwrap_or(u64::MAX);
    let number = newest.as_fd().as_raw_fd().unsigned_abs().into();
    if guard!("descriptor-reserve") && limit.saturating_sub(number) < RESERVE.min(limit / 4) {
        let detail = format!(
            "of the {limit} descriptors that this host lets the supervisor have, the rest is kept for restarts"
        );
        return Err(Refusal::new(ErrorCode::Limit, detail));
    }
    Ok(())
}

fn fifo_geometry(body: &CreatePort) -> Result<Geometry, Refusal> {
    Geometry::records(body.capacity as usize, body.max_record as usize)
        .map_err(|error| Refusal::new(ErrorCode::Limit, error.to_string()))
}

/// The socket of the fifo or guest called `tenant/endpoint`, in a folder of the tenant's
/// own: no part of the name leads out of the directory, and no two names to one socket.
fn socket_path(run_dir: &Path, kind: &str, name: &str) -> Option<PathBuf> {
    let (tenant, endpoint) = name.split_once('/')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_plain =
        |part: &str| !part.is_empty() && !part.starts_with('.') && part.chars().all(plain);
    if !is_plain(tenant) || !is_plain(endpoint) {
        return None;
    }
    let folder = run_dir.join(kind).join(tenant);
    Some(folder.join(format!("{endpoint}.sock")))
}

/// Makes the folder that a socket is in. Others may pass through it to their own, whose
/// mode says who connects.
fn make_folder(socket: &Path) -> std::io::Result<()> {
    let Some(folder) = socket.parent() else {
        return Ok(());
    };
    match std::fs::create_dir(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Whatever the umask is.
    Ok(rustix::fs::chmod(
        folder,
        rustix::fs::Mode::from_raw_mode(0o711),
    )?)
}

/// Gives a socket to who may connect.
fn give_to(path: &Path, owner: u32) -> Result<(), Errno> {
    let owner = rustix::fs::Uid::from_raw(owner);
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::chownat(rustix::fs::CWD, path, Some(owner), None, flags)
}

/// Removes a socket, and the tenant's folder with the last one.
fn remove_socket(socket: &Path) {
    let _ = std::fs::remove_file(socket);
    if let Some(folder) = socket.parent() {
        // Not empty: another endpoint's is in it.
        let _ = std::fs::remove_dir(folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifos_socket_stays_in_its_directory() {
        let path = |name| socket_path(Path::new("/run/b"), "fifo", name);
        assert_eq!(
            path("red/web1"),
            Some(PathBuf::from("/run/b/fifo/red/web1.sock"))
        );
        // Dots are only dots.
        assert_ne!(path("fe/b.c"), path("fe.b/c"));
        for name in [
            "", "web1", "/etc", "red/", "../x", "a/../b", "a/b/c", "a /b", "a/b\n", ".a/b", "a/.b",
        ] {
            assert_eq!(path(name), None, "{name}");
        }
    }

    #[test]
    fn only_a_fifo_for_the_longest_frames_carries_segmentation() {
        let body = |max_record| CreatePort {
            max_record,
            ..CreatePort::default()
        };
        assert_eq!(fifo_features(&body(2048)), u32::from(Features::CSUM.bits()));
        assert_eq!(
            fifo_features(&body(65_712)),
            u32::from(Features::ALL.bits())
        );
    }
}
