//! What the keeper holds, by name and note, and what a supervisor that starts makes
//! of it. Pure: the descriptors are a type parameter.
//!
//! The order that makes a crash at any instruction harmless: an object's `body` is
//! kept first, noted `making`; its parts follow; then the body is kept again, noted
//! `made`. What is found `making`, or lacks a part, is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

#[cfg(test)]
mod tests;

/// Descriptors that make up a channel.
pub const CHANNEL_PARTS: usize = crate::channels::PARTS;

/// The name of a descriptor that the keeper holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// The supervisor's end of its socket with the controller.
    ControlSupervisor,
    /// The controller's end.
    ControlController,
    /// The API's listening socket.
    ApiListener,
    /// The supervisor's own flight recorder.
    Recorder,
    /// The lock on this instance's uids.
    Uids,
    /// A part of a process.
    Worker(u64, WorkerPart),
    /// A part of a place that a process fills.
    Seat(Seat, SeatPart),
    /// A part of the port at (compartment, slot).
    Port(u32, u32, PortPart),
    /// Where the calls of a program come that this compartment's operator mediates, by its
    /// number.
    Program(u32, u32),
    /// A room, by its number, of what this compartment's operator accepted and has put into no
    /// program yet.
    Room(u32, u8),
    /// The door of what a compartment's circuits begin by the agreement with this tag.
    Door(u32, u16),
    /// A part of an uplink.
    Uplink(u32, UplinkPart),
}

/// A place that a process fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Seat {
    /// The fabric.
    Fabric,
    /// A compartment.
    Compartment(u32),
}

macro_rules! parts {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)* /// A part of its channel.
            Channel(u8), }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $($name::$variant => f.write_str($text),)* $name::Channel(n) => write!(f, "channel/{n}") }
            }
        }
        impl $name {
            fn parse(text: &str) -> Option<$name> {
                match text {
                    $($text => Some($name::$variant),)*
                    other => other.strip_prefix("channel/")?.parse().ok().map($name::Channel),
                }
            }
        }
    };
}
parts! {
    /// Parts of a process.
    WorkerPart {
        /// Our end of its control socket.
        Control = "control",
        /// Its pidfd.
        Pidfd = "pidfd",
    }
}
parts! {
    /// Parts of a seat.
    SeatPart {
        /// The body that created it, in a memfd.
        Body = "body",
        /// Its counters page.
        Counters = "counters",
        /// Its flight recorder.
        Recorder = "recorder",
        /// The table image that it runs.
        Image = "image",
        /// The journal of its connections.
        Journal = "journal",
        /// Where its operator notes circuits' sockets.
        Circuits = "circuits",
        /// The network namespace in which these are made.
        Network = "network",
    }
}
parts! {
    /// Parts of a port.
    PortPart {
        /// The body that created it, in a memfd.
        Body = "body",
        /// The namespace that its interface is in.
        Namespace = "netns",
        /// The descriptor of its interface: a tap, or the socket at a veth's outer end.
        Interface = "tap",
        /// The socket that a fifo's owner connects to.
        Listener = "listener",
        /// Where container runtimes hand over containers' calls.
        Runtimes = "runtimes",
        /// The owner's connection.
        Client = "client",
        /// Where a guest's queues are.
        Page = "page",
    }
}
parts! {
    /// Parts of an uplink.
    UplinkPart {
        /// The body that created it, in a memfd.
        Body = "body",
        /// Its packet socket.
        Socket = "socket",
        /// What keeps its XDP program attached.
        Link = "link",
        /// The memory of its frames. `Channel` is the socket of one of its queues.
        Memory = "memory",
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::ControlSupervisor => f.write_str("control/supervisor"),
            Key::ControlController => f.write_str("control/controller"),
            Key::ApiListener => f.write_str("api/listener"),
            Key::Recorder => f.write_str("supervisor/recorder"),
            Key::Uids => f.write_str("supervisor/uids"),
            Key::Worker(n, part) => write!(f, "worker/{n}/{part}"),
            Key::Seat(Seat::Fabric, part) => write!(f, "fabric/{part}"),
            Key::Seat(Seat::Compartment(n), part) => write!(f, "compartment/{n}/{part}"),
            Key::Port(c, s, part) => write!(f, "port/{c}/{s}/{part}"),
            Key::Program(c, n) => write!(f, "program/{c}/{n}"),
            Key::Room(c, n) => write!(f, "room/{c}/{n}"),
            Key::Door(c, tag) => write!(f, "door/{c}/{tag}"),
            Key::Uplink(n, part) => write!(f, "uplink/{n}/{part}"),
        }
    }
}

impl Key {
    /// From its text; `None` for a name that is not ours.
    pub fn parse(text: &str) -> Option<Key> {
        let (kind, rest) = text.split_once('/')?;
        match (kind, rest) {
            ("control", "supervisor") => Some(Key::ControlSupervisor),
            ("control", "controller") => Some(Key::ControlController),
            ("api", "listener") => Some(Key::ApiListener),
            ("supervisor", "recorder") => Some(Key::Recorder),
            ("supervisor", "uids") => Some(Key::Uids),
            ("fabric", part) => Some(Key::Seat(Seat::Fabric, SeatPart::parse(part)?)),
            ("worker", rest) => {
                let (n, part) = rest.split_once('/')?;
                Some(Key::Worker(n.parse().ok()?, WorkerPart::parse(part)?))
            }
            ("compartment", rest) => {
                let (n, part) = rest.split_once('/')?;
                Some(Key::Seat(
                    Seat::Compartment(n.parse().ok()?),
                    SeatPart::parse(part)?,
                ))
            }
            ("port", rest) => {
                let (c, rest) = rest.split_once('/')?;
                let (s, part) = rest.split_once('/')?;
                Some(Key::Port(
                    c.parse().ok()?,
                    s.parse().ok()?,
                    PortPart::parse(part)?,
                ))
            }
            ("program", rest) => {
                let (c, n) = rest.split_once('/')?;
                Some(Key::Program(c.parse().ok()?, n.parse().ok()?))
            }
            ("room", rest) => {
                let (c, n) = rest.split_once('/')?;
                Some(Key::Room(c.parse().ok()?, n.parse().ok()?))
            }
            ("door", rest) => {
                let (c, tag) = rest.split_once('/')?;
                Some(Key::Door(c.parse().ok()?, tag.parse().ok()?))
            }
            ("uplink", rest) => {
                let (n, part) = rest.split_once('/')?;
                Some(Key::Uplink(n.parse().ok()?, UplinkPart::parse(part)?))
            }
            _ => None,
        }
    }
}

/// A note: words of the form `key=value`, or a bare word, at most 256 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note(String);

impl Note {
    /// From what the keeper has.
    pub fn from_text(text: &str) -> Note {
        Note(text.to_owned())
    }

    /// With one more word; `value` holds no space.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl fmt::Display) -> Note {
        use fmt::Write as _;
        let gap = if self.0.is_empty() { "" } else { " " };
        // Writing to a String does not fail.
        let _ = write!(self.0, "{gap}{key}={value}");
        self
    }

    /// The value of a word.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.0.split(' ').find_map(|word| {
            word.split_once('=')
                .filter(|(k, _)| *k == key)
                .map(|(_, v)| v)
        })
    }

    /// The value of a word, as a number; 0 where it is missing.
    pub fn number(&self, key: &str) -> u64 {
        self.value(key).and_then(|v| v.parse().ok()).unwrap_or(0)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the object is complete.
    fn is_made(&self) -> bool {
        self.value("state") == Some("made")
    }
}

/// The note of an object that is being made.
pub fn making() -> Note {
    Note::default().with("state", "making")
}

/// The note of an object that is complete.
pub fn made() -> Note {
    Note::default().with("state", "made")
}

/// A process of before.
#[derive(Debug, PartialEq, Eq)]
pub struct KeptWorker<D> {
    /// Our end of its control socket.
    pub control: D,
    /// Its pidfd.
    pub pidfd: D,
    /// What it is and where it sits: the note of the control socket.
    pub note: Note,
    /// Its pid and uid: the note of the pidfd.
    pub person: Note,
}

/// A seat of before.
#[derive(Debug, PartialEq, Eq)]
pub struct KeptSeat<D> {
    /// The body; the fabric has none.
    pub body: Option<(D, Note)>,
    /// Its counters page.
    pub counters: D,
    /// Its flight recorder.
    pub recorder: D,
    /// Its image.
    pub image: Option<(D, Note)>,
    /// The journal of its connections; none of a process that is not trusted any more.
    pub journal: Option<D>,
    /// Its circuits: the page, with the operator's uid, and their network namespace.
    pub circuits: Option<((D, Note), D)>,
    /// Its channel's parts, in order. Empty for the fabric, and where a crash came in
    /// the middle of replacing the channel: a new one is due.
    pub channel: Vec<D>,
}

/// A port of before.
#[derive(Debug, PartialEq, Eq)]
pub struct KeptPort<D> {
    /// The body.
    pub body: (D, Note),
    /// The namespace its interface is in.
    pub namespace: Option<D>,
    /// The descriptor of its interface.
    pub interface: Option<D>,
    /// A fifo's listening socket.
    pub listener: Option<D>,
    /// Where container runtimes hand over containers' calls, if it has circuits.
    pub runtimes: Option<D>,
    /// A fifo's client and its channel's parts.
    pub client: Option<(D, Vec<D>)>,
    /// Where a guest's queues are.
    pub page: Option<D>,
}

/// An uplink of before.
#[derive(Debug, PartialEq, Eq)]
pub struct KeptUplink<D> {
    /// The body.
    pub body: (D, Note),
    /// Its packet socket.
    pub socket: D,
    /// By AF_XDP: what keeps the program attached, the memory, the queues' sockets.
    pub xdp: Option<(D, D, Vec<D>)>,
}

/// What exists, and what does not deserve to.
#[derive(Debug)]
pub struct Rebuilt<D> {
    /// Our end of the socket with the controller.
    pub control: Option<D>,
    /// The controller's end.
    pub controller: Option<D>,
    /// The API's listening socket.
    pub api: Option<D>,
    /// Our flight recorder.
    pub recorder: Option<D>,
    /// The lock on our uids.
    pub uids: Option<D>,
    /// Processes by serial number.
    pub workers: BTreeMap<u64, KeptWorker<D>>,
    /// The fabric's seat.
    pub fabric: Option<KeptSeat<D>>,
    /// Compartments by id.
    pub compartments: BTreeMap<u32, KeptSeat<D>>,
    /// Ports by (compartment, slot).
    pub ports: BTreeMap<(u32, u32), KeptPort<D>>,
    /// Uplinks by number.
    pub uplinks: BTreeMap<u32, KeptUplink<D>>,
    /// Where programs' calls come, by (compartment, number), with the slot.
    pub programs: BTreeMap<(u32, u32), (D, Note)>,
    /// Rooms of accepted connections, by (compartment, number).
    pub rooms: BTreeMap<(u32, u8), D>,
    /// Doors, by (compartment, tag), with their names.
    pub doors: BTreeMap<(u32, u16), (D, Note)>,
    /// Bodies of half-made ports: what they left outside the keeper is to be removed.
    pub half_ports: Vec<D>,
    /// Sockets of what is forgotten to which others wrote or connected, with their compartments: what
    /// these sent is in there.
    pub half_sockets: Vec<(u32, D)>,
    /// Prefixes of names to forget.
    pub forget: BTreeSet<String>,
}

/// Makes sense of all that the keeper holds.
pub fn rebuild<D>(kept: impl IntoIterator<Item = (String, Note, D)>) -> Rebuilt<D> {
    let mut out = Rebuilt {
        control: None,
        controller: None,
        api: None,
        recorder: None,
        uids: None,
        workers: BTreeMap::new(),
        fabric: None,
        compartments: BTreeMap::new(),
        ports: BTreeMap::new(),
        uplinks: BTreeMap::new(),
        programs: BTreeMap::new(),
        rooms: BTreeMap::new(),
        doors: BTreeMap::new(),
        half_ports: Vec::new(),
        half_sockets: Vec::new(),
        forget: BTreeSet::new(),
    };
    let mut workers: BTreeMap<u64, BTreeMap<WorkerPart, (D, Note)>> = BTreeMap::new();
    let mut seats: BTreeMap<Seat, BTreeMap<SeatPart, (D, Note)>> = BTreeMap::new();
    let mut ports: BTreeMap<(u32, u32), BTreeMap<PortPart, (D, Note)>> = BTreeMap::new();
    let mut uplinks: BTreeMap<u32, BTreeMap<UplinkPart, (D, Note)>> = BTreeMap::new();
    for (name, note, descriptor) in kept {
        match Key::parse(&name) {
            Some(Key::ControlSupervisor) => out.control = Some(descriptor),
            Some(Key::ControlController) => out.controller = Some(descriptor),
            Some(Key::ApiListener) => out.api = Some(descriptor),
            Some(Key::Recorder) => out.recorder = Some(descriptor),
            Some(Key::Uids) => out.uids = Some(descriptor),
            Some(Key::Worker(n, part)) => {
                workers
                    .entry(n)
                    .or_default()
                    .insert(part, (descriptor, note));
            }
            Some(Key::Seat(seat, part)) => {
                seats
                    .entry(seat)
                    .or_default()
                    .insert(part, (descriptor, note));
            }
            Some(Key::Port(c, s, part)) => {
                ports
                    .entry((c, s))
                    .or_default()
                    .insert(part, (descriptor, note));
            }
            Some(Key::Program(c, n)) => {
                out.programs.insert((c, n), (descriptor, note));
            }
            Some(Key::Room(c, n)) => {
                out.rooms.insert((c, n), descriptor);
            }
            Some(Key::Door(c, tag)) => {
                out.doors.insert((c, tag), (descriptor, note));
            }
            Some(Key::Uplink(n, part)) => {
                uplinks
                    .entry(n)
                    .or_default()
                    .insert(part, (descriptor, note));
            }
            // Not ours: left where it is.
            None => {}
        }
    }
    for (n, mut parts) in workers {
        match (
            parts.remove(&WorkerPart::Control),
            parts.remove(&WorkerPart::Pidfd),
        ) {
            (Some((control, note)), Some((pidfd, person))) => {
                out.workers.insert(
                    n,
                    KeptWorker {
                        control,
                        pidfd,
                        note,
                        person,
                    },
                );
            }
            _ => {
                out.forget.insert(format!("worker/{n}/"));
            }
        }
    }
    for (seat, parts) in seats {
        match (seat, complete_seat(seat, parts)) {
            (Seat::Fabric, Some(kept)) => out.fabric = Some(kept),
            (Seat::Compartment(n), Some(kept)) => {
                out.compartments.insert(n, kept);
            }
            (Seat::Fabric, None) => {
                out.forget.insert("fabric/".to_owned());
            }
            (Seat::Compartment(n), None) => {
                out.forget.insert(format!("compartment/{n}/"));
            }
        }
    }
    for ((compartment, slot), mut parts) in ports {
        let prefix = format!("port/{compartment}/{slot}/");
        let has = |part| parts.contains_key(&part);
        let has_way = has(PortPart::Interface) || has(PortPart::Listener);
        let has_place = out.compartments.contains_key(&compartment);
        let body = match parts.remove(&PortPart::Body) {
            Some((body, note)) if note.is_made() && has_place && has_way => (body, note),
            half => {
                out.half_ports.extend(half.map(|(body, _)| body));
                let sockets = [PortPart::Listener, PortPart::Runtimes, PortPart::Client]
                    .into_iter()
                    .filter_map(|part| parts.remove(&part))
                    .map(|(descriptor, _)| (compartment, descriptor));
                out.half_sockets.extend(sockets);
                out.forget.insert(prefix);
                continue;
            }
        };
        let mut take = |part| parts.remove(&part).map(|(descriptor, _)| descriptor);
        let (namespace, interface, listener) = (
            take(PortPart::Namespace),
            take(PortPart::Interface),
            take(PortPart::Listener),
        );
        let runtimes = take(PortPart::Runtimes);
        let (connection, page) = (take(PortPart::Client), take(PortPart::Page));
        let channel = channel_parts(|n| parts.remove(&PortPart::Channel(n)));
        let client = match (connection, channel) {
            (Some(connection), Some(channel)) => Some((connection, channel)),
            (None, None) => None,
            // A connection that was half made: the client sees it close and connects again.
            (connection, _) => {
                out.half_sockets
                    .extend(connection.map(|it| (compartment, it)));
                out.forget.insert(format!("{prefix}client"));
                out.forget.insert(format!("{prefix}channel/"));
                None
            }
        };
        out.ports.insert(
            (compartment, slot),
            KeptPort {
                body,
                namespace,
                interface,
                listener,
                runtimes,
                client,
                page,
            },
        );
    }
    for (n, mut parts) in uplinks {
        match (
            parts.remove(&UplinkPart::Body),
            parts.remove(&UplinkPart::Socket),
        ) {
            (Some(body), Some((socket, _))) if body.1.is_made() => {
                let mut take = |part| parts.remove(&part).map(|(descriptor, _)| descriptor);
                let (link, memory) = (take(UplinkPart::Link), take(UplinkPart::Memory));
                // As many as there are: it is noted as made when all were kept.
                let queues: Vec<D> = (0..u8::MAX)
                    .map_while(|n| take(UplinkPart::Channel(n)))
                    .collect();
                let xdp = link
                    .zip(memory)
                    .map(|(link, memory)| (link, memory, queues));
                out.uplinks.insert(n, KeptUplink { body, socket, xdp });
            }
            _ => {
                out.forget.insert(format!("uplink/{n}/"));
            }
        }
    }
    out
}

fn complete_seat<D>(seat: Seat, mut parts: BTreeMap<SeatPart, (D, Note)>) -> Option<KeptSeat<D>> {
    let body = parts.remove(&SeatPart::Body);
    let channel = match seat {
        Seat::Fabric => Vec::new(),
        Seat::Compartment(_) => {
            if !body.as_ref()?.1.is_made() {
                return None;
            }
            channel_parts(|n| parts.remove(&SeatPart::Channel(n))).unwrap_or_default()
        }
    };
    Some(KeptSeat {
        body,
        counters: parts.remove(&SeatPart::Counters)?.0,
        recorder: parts.remove(&SeatPart::Recorder)?.0,
        image: parts.remove(&SeatPart::Image),
        journal: parts.remove(&SeatPart::Journal).map(|(d, _)| d),
        circuits: parts
            .remove(&SeatPart::Circuits)
            .zip(parts.remove(&SeatPart::Network).map(|(d, _)| d)),
        channel,
    })
}

/// All parts of one channel, or none. Parts of two different channels are what a
/// crash in the middle of a replacement leaves.
fn channel_parts<D>(mut part: impl FnMut(u8) -> Option<(D, Note)>) -> Option<Vec<D>> {
    let (found, serials): (Vec<D>, Vec<u64>) = (0..CHANNEL_PARTS as u8)
        .filter_map(&mut part)
        .map(|(d, note)| (d, note.number("pair")))
        .unzip();
    let one = serials.iter().all(|serial| Some(serial) == serials.first());
    (found.len() == CHANNEL_PARTS && one).then_some(found)
}
