//! Virtual machines' interfaces: a socket that a vhost-user front end connects to, a helper
//! that serves it, a page where the queues are, and a link between helper and switch that
//! is new whenever one of the two is.

use super::*;
use crate::role::{Purpose, Role};
use crate::seats::Compartment;
use command::verbs::{PORT_VHOST, ServeGuest};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen};
use std::os::unix::ffi::OsStrExt;

/// Bytes of the page that says how far queues got.
const PAGE: usize = 4096;
/// Front ends that may wait to connect: one is served at a time.
const BACKLOG: i32 = 4;
/// After a helper's death the next one waits, ns.
const AGAIN: u64 = 100_000_000;

/// What a virtual machine's interface is made of.
pub struct GuestPort {
    /// Front ends connect here.
    listener: Shared,
    /// Where the socket is.
    pub path: PathBuf,
    /// Where the queues are.
    page: Shared,
    /// Who serves it.
    pub helper: Option<u64>,
    /// Whether it is ready to be told.
    is_ready: bool,
    /// The helper's end of the link, until it has it.
    far: Option<Shared>,
    /// Those that another came in the place of: their switch may have sent anything.
    left: Vec<Shared>,
    /// When a helper is started, ns.
    due: u64,
}

impl GuestPort {
    /// A port of before.
    pub fn adopted(listener: OwnedFd, path: PathBuf, page: OwnedFd) -> GuestPort {
        GuestPort {
            listener: Rc::new(listener),
            path,
            page: Rc::new(page),
            helper: None,
            is_ready: false,
            far: None,
            left: Vec::new(),
            due: 0,
        }
    }

    /// The ends that no helper has.
    pub fn ends(self) -> impl Iterator<Item = OwnedFd> {
        let all = self.left.into_iter().chain(self.far);
        all.filter_map(Rc::into_inner)
    }

    /// Where front ends connect.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// A link's near end, for the switch; the far one waits for the helper.
    pub(super) fn plug(&mut self, body: &CreatePort) -> Option<(AddPort, Vec<Shared>)> {
        let (near, far) = Socket::pair().ok()?;
        // The helper is given none by the switch.
        let _ = notify::refuse_descriptors(far.as_fd());
        self.left.extend(self.far.replace(Rc::new(far.into_fd())));
        let near = Rc::new(near.into_fd());
        Some((port_of(body), vec![near, Rc::clone(&self.page)]))
    }
}

fn port_of(body: &CreatePort) -> AddPort {
    AddPort {
        slot: body.slot,
        kind: PORT_VHOST,
        mtu: body.mtu,
        capacity: body.capacity,
        ..AddPort::default()
    }
}

impl Supervisor {
    pub(super) fn create_guest(&mut self, body: &CreatePort) -> Result<Kind, Refusal> {
        let name = body.name.as_str();
        let path = socket_path(&self.settings.run_dir, "vhost", name).ok_or_else(|| {
            Refusal::new(
                ErrorCode::BadMessage,
                "the endpoint's name cannot name a socket",
            )
        })?;
        make_folder(&path)
            .map_err(|error| Refusal::system("make the folder of the guest's socket", &error))?;
        let listener = listen_at(&path)
            .map_err(|errno| Refusal::errno("listen for the guest's front end", errno))?;
        if !self.settings.rootless
            && body.owner != 0
            && let Err(errno) = give_to(&path, body.owner)
        {
            remove_socket(&path);
            return Err(Refusal::errno(
                "give the guest's socket to its owner",
                errno,
            ));
        }
        let page = shm::memory_file("guest", PAGE)
            .map_err(|error| Refusal::system("make a guest's page", &error))?;
        let key = |part| Key::Port(body.compartment, body.slot, part);
        self.keeper
            .keep(key(PortPart::Page), &Note::default(), page.as_fd());
        self.keeper
            .keep(key(PortPart::Listener), &Note::default(), listener.as_fd());
        Ok(Kind::Guest(Box::new(GuestPort::adopted(
            listener, path, page,
        ))))
    }

    fn guest(&mut self, (compartment, slot): (u32, u32)) -> Option<(CreatePort, &mut GuestPort)> {
        let port = self
            .compartments
            .get_mut(&compartment)?
            .ports
            .get_mut(&slot)?;
        match &mut port.kind {
            Kind::Guest(guest) => Some((port.body, guest)),
            _ => None,
        }
    }

    /// Starts a helper for a guest that has none; whether there was one.
    pub fn start_helper(&mut self, now: u64) -> bool {
        let wants = |port: &Port| match &port.kind {
            Kind::Guest(guest) => {
                guest.helper.is_none() && guest.due <= now && !port.quarantined && port.closed == 0
            }
            _ => false,
        };
        let homes = self.compartments.iter();
        let homes = homes.filter(|(id, _)| !self.is_held_up(**id));
        let mut all = homes.flat_map(|(id, home)| {
            let ports = home.ports.iter();
            ports.map(move |(slot, port)| ((*id, *slot), port))
        });
        let Some(place) = all.find(|(_, port)| wants(port)).map(|(place, _)| place) else {
            return false;
        };
        let (role, profile) = (Role::Vhost, Role::Vhost.profile());
        let started = self.start_worker(role, profile, "bulkhead-vhost", Purpose::Guest(place));
        if let Some((_, guest)) = self.guest(place) {
            guest.helper = started;
            guest.due = now + AGAIN;
        }
        true
    }

    /// When to look whether a helper is to be started, ns. One that has come to be due since
    /// that was looked at last is due soon: nothing else would wake this process for it.
    pub fn next_helper(&self, now: u64) -> Option<u64> {
        const SOON: u64 = 1_000_000;
        let homes = self.compartments.iter();
        let homes = homes.filter(|(id, _)| !self.is_held_up(**id));
        let ports = homes.flat_map(|(_, home)| home.ports.values());
        let due = ports.filter_map(|port| match &port.kind {
            Kind::Guest(guest)
                if guest.helper.is_none() && !port.quarantined && port.closed == 0 =>
            {
                Some(guest.due.max(now.saturating_add(SOON)))
            }
            _ => None,
        });
        due.min()
    }

    /// A helper is confined and waits: it is given its front end's socket and a link.
    pub fn helper_ready(&mut self, id: u64, place: (u32, u32)) {
        let Some((body, guest)) = self.guest(place) else {
            return self.kill(id, None);
        };
        if guest.helper != Some(id) {
            return self.kill(id, None);
        }
        guest.is_ready = true;
        let listener = Rc::clone(&guest.listener);
        let serve = ServeGuest {
            features: u64::MAX,
            pairs: body.pairs.max(1),
            memory: body.capacity,
        };
        self.tell(id, &Message::new(0, &serve), vec![listener]);
        self.plug_guest(place);
        self.note_place(id, &format!("guest-{}-{}", place.0, place.1));
    }

    /// A new link between a helper and its switch.
    fn plug_guest(&mut self, (compartment, slot): (u32, u32)) {
        let Some(home) = self.compartments.get_mut(&compartment) else {
            return;
        };
        let worker = home.seat.worker;
        let plug = home.ports.get_mut(&slot).and_then(Port::plug);
        if let (Some(worker), Some((body, fds))) = (worker, plug) {
            self.tell(worker, &Message::new(0, &body), fds);
        }
        self.link_helpers(compartment);
    }

    /// Gives helpers their ends of links that their switch has the others of.
    pub fn link_helpers(&mut self, compartment: u32) {
        let Some(home) = self.compartments.get_mut(&compartment) else {
            return;
        };
        for port in home.ports.values_mut() {
            if let Kind::Guest(guest) = &mut port.kind {
                for end in guest.left.drain(..).filter_map(Rc::into_inner) {
                    self.errands.part_given(Whose::Ports(compartment), end);
                }
            }
        }
        // Not before the switch has its own: what a helper sends to one that waits here would be ours to close.
        let switch = home.seat.worker.and_then(|id| self.workers.get(&id));
        let waits = switch.and_then(|switch| switch.link.as_ref());
        if waits.is_some_and(|link| link.backlog() > 0) {
            return;
        }
        let mut told = Vec::new();
        for port in home.ports.values_mut() {
            if let Kind::Guest(guest) = &mut port.kind
                && let (Some(helper), true) = (guest.helper, guest.is_ready)
                && let Some(far) = guest.far.take()
            {
                let fds = vec![far, Rc::clone(&guest.page)];
                told.push((helper, port_of(&port.body), fds));
            }
        }
        for (helper, body, fds) in told {
            self.tell(helper, &Message::new(0, &body), fds);
        }
    }

    /// A helper is dead: its front end was disconnected with it. The next one comes soon.
    pub fn helper_lost(&mut self, id: u64, place: (u32, u32)) {
        let now = self.now();
        if let Some((_, guest)) = self.guest(place)
            && guest.helper == Some(id)
        {
            guest.helper = None;
            guest.is_ready = false;
            guest.due = guest.due.max(now + AGAIN);
        }
    }

    /// A helper of before goes on; whether there is such a place.
    pub fn adopt_helper(&mut self, id: u64, place: (u32, u32)) -> bool {
        match self.guest(place) {
            Some((_, guest)) if guest.helper.is_none() => {
                guest.helper = Some(id);
                guest.is_ready = true;
                true
            }
            _ => false,
        }
    }
}

impl Compartment {
    /// Bytes that its processes may be charged with: what it may use itself, and what its
    /// machines share. A page of a machine's that nobody has touched before is charged to
    /// the switch that touches it, until the machine lets go of it.
    pub fn memory(&self) -> u64 {
        let guests = self.ports.values().map(|port| &port.body);
        let guests = guests.filter(|body| body.kind == ENDPOINT_VHOST);
        let shared = guests.map(|body| u64::from(body.capacity) << 20);
        match self.body.memory {
            // No limit.
            0 => 0,
            // Bound: MOST_SLOTS of 4 PiB.
            own => shared.map(|n| n + shm::most_notes(n)).sum::<u64>() + own,
        }
    }
}

/// A place from its word.
pub fn place_of(word: &str) -> Option<(u32, u32)> {
    let (compartment, slot) = word.strip_prefix("guest-")?.split_once('-')?;
    Some((compartment.parse().ok()?, slot.parse().ok()?))
}

fn listen_at(path: &Path) -> Result<OwnedFd, Errno> {
    // One that a supervisor before us left; nobody listens there any more.
    let _ = std::fs::remove_file(path);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(path.as_os_str().as_bytes())?;
    // Nobody's before its mode is set.
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = bind(&socket, &address);
    rustix::process::umask(before);
    bound?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}
