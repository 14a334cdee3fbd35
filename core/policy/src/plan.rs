//! The steps from one intent to another, in order, each with what undoes it.

use crate::intent::{CompartmentIntent, Image, Intent, PortIntent, UplinkIntent};
use command::verbs::{
    CreateCompartment, CreatePort, CreateUplink, DestroyCompartment, DestroyPort, DestroyUplink,
    ENDPOINT_FIFO, FABRIC,
};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// One command to the supervisor.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Open an uplink.
    CreateUplink(CreateUplink),
    /// Close it.
    DestroyUplink(DestroyUplink),
    /// Make a compartment.
    CreateCompartment(CreateCompartment),
    /// Remove it.
    DestroyCompartment(DestroyCompartment),
    /// Make an endpoint's port.
    CreatePort(CreatePort),
    /// Remove it.
    DestroyPort(DestroyPort),
    /// Install a table.
    Install {
        /// Compartment id, or [`FABRIC`].
        target: u32,
        /// The table; the caller gives it its epoch.
        image: Image,
    },
}

/// When a step is done. Any failure before the last commit is undone whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Makes what is new; what runs forwards as before.
    Prepare,
    /// Puts the new tables into force: the fabric's first, then the switches'.
    Commit,
    /// Removes what nothing uses any more.
    Cleanup,
}

/// What a step means to a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// Something new.
    Create,
    /// Something goes.
    Destroy,
    /// Something goes and comes again, with an outage of its own.
    Replace,
    /// Another table; no packet is lost.
    Install,
}

impl Change {
    /// `create`, `destroy`, `replace` or `install`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Change::Create => "create",
            Change::Destroy => "destroy",
            Change::Replace => "replace",
            Change::Install => "install",
        }
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// When.
    pub phase: Phase,
    /// What it means.
    pub change: Change,
    /// The command.
    pub action: Action,
    /// What undoes it, in order. Undo the steps that were done in reverse order.
    pub undo: Vec<Action>,
    /// What it acts on, e.g. `endpoint red/web1`.
    pub object: String,
    /// Why.
    pub reason: String,
}

/// Steps in the order in which they are done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The steps; none = nothing has to change.
    pub steps: Vec<Step>,
    needs: Needs,
}

/// What an intent asks of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Processes: one a compartment, the fabric, keeper, supervisor, controller and spares.
    pub processes: u32,
    /// Bytes of memory: channels, tables, counters and what processes keep for themselves.
    pub memory_bytes: u64,
    /// Cores taken for their own by `cores: isolated`, in order.
    pub cores: Vec<u32>,
}

impl Plan {
    /// Whether nothing has to change.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
    /// What the host holds once it is done.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }
    /// The steps of a phase, in order.
    pub fn phase(&self, phase: Phase) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(move |s| s.phase == phase)
    }
    /// For people: what changes, each object once.
    pub fn changes(&self) -> Vec<(Change, &str, &str)> {
        let mut out: Vec<(Change, &str, &str)> = Vec::new();
        let mut seen = HashSet::new();
        for step in &self.steps {
            if seen.insert((step.change, step.object.as_str())) {
                out.push((step.change, &step.object, &step.reason));
            }
        }
        out
    }
}

/// Processes whatever the spec says: keeper, supervisor, controller, fabric, a spare
/// of it, two spare switches.
const FIXED_PROCESSES: u32 = 7;
/// Private memory of the fixed processes, bytes.
const FIXED_MEMORY: u64 = 48 << 20;
/// Private memory of a switch, bytes.
const SWITCH_MEMORY: u64 = 3 << 20;
/// Header, producer and consumer pages of a direction, and a flight recorder, bytes.
const PAGES: u64 = 3 * 4096;
const RECORDER: u64 = 256 << 10;

/// What an intent asks of the host.
pub fn needs(intent: &Intent) -> Needs {
    let channel = |capacity: u32| {
        if capacity == 0 {
            0
        } else {
            2 * (u64::from(capacity) + PAGES)
        }
    };
    let one = |c: &CompartmentIntent| {
        let counters = (512 + u64::from(c.create.slots) * 128) * 8;
        let ports: u64 = c.ports.values().map(|p| channel(p.create.capacity)).sum();
        SWITCH_MEMORY
            + RECORDER
            + counters
            + channel(c.create.capacity)
            + ports
            + c.image.bytes.len() as u64
    };
    let mut cores: Vec<u32> = intent
        .compartments
        .values()
        .flat_map(|c| c.cores.iter().copied())
        .collect();
    cores.sort_unstable();
    cores.dedup();
    Needs {
        processes: FIXED_PROCESSES + intent.compartments.len() as u32,
        memory_bytes: FIXED_MEMORY
            + intent.fabric.bytes.len() as u64
            + intent.compartments.values().map(|c| one(c)).sum::<u64>(),
        cores,
    }
}

/// The steps from `old` to `new`. What is the same in both is not touched.
pub fn diff(old: &Intent, new: &Intent) -> Plan {
    let mut work = Diff {
        steps: Vec::new(),
        cleanup: Vec::new(),
        installs: Vec::new(),
        old_places: None,
        gone: HashSet::new(),
    };
    for (number, uplink) in &new.uplinks {
        work.uplink(old.uplinks.get(number), uplink);
    }
    for (id, compartment) in &new.compartments {
        match old.compartments.get(id) {
            Some(before) if Arc::ptr_eq(before, compartment) => {}
            before => work.compartment(before.map(|b| &**b), compartment, old),
        }
    }
    // A host with nothing on it has a fabric that lets nothing pass.
    let fabric = match new.fabric.is_none() && !old.fabric.is_none() {
        true => crate::fabric::compile(&BTreeMap::new(), &BTreeMap::new()).unwrap_or_default(),
        false => new.fabric.clone(),
    };
    if old.fabric != fabric {
        let same = old.compartments.keys().eq(new.compartments.keys());
        let reason = match (old.fabric.is_none(), same) {
            (true, _) => "its first table",
            (_, false) => "compartments came or went",
            (_, true) => "what may be said to an uplink, or a share of the fabric, changed",
        };
        work.installs.insert(
            0,
            install(FABRIC, "fabric".into(), &old.fabric, &fabric, reason),
        );
    }
    for (id, gone) in old
        .compartments
        .iter()
        .filter(|(id, _)| !new.compartments.contains_key(id))
    {
        let (object, reason) = (
            format!("compartment {}", gone.name),
            "no tenant is placed in it any more",
        );
        for port in gone.ports.values() {
            work.cleanup.push(destroy_port(
                Phase::Cleanup,
                Change::Destroy,
                port,
                "its compartment goes",
            ));
        }
        let action = Action::DestroyCompartment(DestroyCompartment { id: *id });
        work.cleanup.push(step(
            Phase::Cleanup,
            Change::Destroy,
            action,
            object,
            reason,
        ));
    }
    for (number, gone) in old
        .uplinks
        .iter()
        .filter(|(number, _)| !new.uplinks.contains_key(number))
    {
        let action = Action::DestroyUplink(DestroyUplink { uplink: *number });
        let object = format!("uplink {}", gone.name);
        work.cleanup.push(step(
            Phase::Cleanup,
            Change::Destroy,
            action,
            object,
            "it is not in the spec any more",
        ));
    }
    let Diff {
        mut steps,
        mut cleanup,
        installs,
        gone,
        ..
    } = work;
    cleanup.retain(|s| match &s.action {
        Action::DestroyPort(port) => !gone.contains(&(port.compartment, port.slot)),
        _ => true,
    });
    // What takes another's place comes after that has left it.
    steps.sort_by_key(|s| {
        !matches!(
            s.action,
            Action::DestroyPort(_) | Action::DestroyCompartment(_)
        ) as u8
    });
    steps.extend(installs);
    steps.extend(cleanup);
    Plan {
        steps,
        needs: needs(new),
    }
}

/// What only one port can have at a time: a tap's namespace and interface, a fifo's
/// name; to (compartment, slot).
type Places = BTreeMap<(String, String), (u32, u32)>;

fn places(intent: &Intent) -> Places {
    let slot = |p: &PortIntent| (p.create.compartment, p.create.slot);
    intent
        .ports()
        .map(|(_, port)| (place(&port.create), slot(port)))
        .collect()
}

fn place(port: &CreatePort) -> (String, String) {
    let (scope, name) = match port.kind {
        ENDPOINT_FIFO => ("", port.name.as_str()),
        _ => (port.namespace.as_str(), port.interface.as_str()),
    };
    (scope.to_owned(), name.to_owned())
}

struct Diff {
    steps: Vec<Step>,
    installs: Vec<Step>,
    cleanup: Vec<Step>,
    /// Made when the first new port asks.
    old_places: Option<Places>,
    /// Ports that are removed before anything new is made, by (compartment, slot).
    gone: HashSet<(u32, u32)>,
}

impl Diff {
    /// Removes a port before anything new is made, once.
    fn remove_first(&mut self, change: Change, port: &PortIntent, reason: &str) {
        if self
            .gone
            .insert((port.create.compartment, port.create.slot))
        {
            self.steps
                .push(destroy_port(Phase::Prepare, change, port, reason));
        }
    }

    fn uplink(&mut self, before: Option<&UplinkIntent>, uplink: &UplinkIntent) {
        let object = format!("uplink {}", uplink.name);
        let create = Action::CreateUplink(uplink.create);
        let undo = vec![Action::DestroyUplink(DestroyUplink {
            uplink: uplink.create.uplink,
        })];
        match before {
            None => self.steps.push(Step {
                undo,
                ..step(
                    Phase::Prepare,
                    Change::Create,
                    create,
                    object,
                    "new in the spec",
                )
            }),
            Some(before) if before.create != uplink.create => {
                let gone = Action::DestroyUplink(DestroyUplink {
                    uplink: before.create.uplink,
                });
                let reason = "its interface or namespace changed";
                let first = step(
                    Phase::Prepare,
                    Change::Replace,
                    gone,
                    object.clone(),
                    reason,
                );
                self.steps.push(Step {
                    undo: vec![Action::CreateUplink(before.create)],
                    ..first
                });
                self.steps.push(Step {
                    undo,
                    ..step(Phase::Prepare, Change::Replace, create, object, reason)
                });
            }
            Some(_) => {}
        }
    }

    fn compartment(
        &mut self,
        before: Option<&CompartmentIntent>,
        compartment: &CompartmentIntent,
        old: &Intent,
    ) {
        let object = format!("compartment {}", compartment.name);
        let id = compartment.create.id;
        let none = BTreeMap::new();
        let (mut old_ports, mut old_image) =
            before.map_or((&none, Image::default()), |b| (&b.ports, b.image.clone()));
        let make = |change, reason: String| Step {
            undo: vec![Action::DestroyCompartment(DestroyCompartment { id })],
            ..step(
                Phase::Prepare,
                change,
                Action::CreateCompartment(compartment.create),
                object.clone(),
                &reason,
            )
        };
        match before {
            None => self
                .steps
                .push(make(Change::Create, "new in the spec".into())),
            Some(before) if before.create != compartment.create => {
                let reason = difference(&before.create, &compartment.create);
                for port in before.ports.values() {
                    self.remove_first(Change::Replace, port, "its compartment is made anew");
                }
                let mut undo = vec![Action::CreateCompartment(before.create)];
                if !before.image.is_none() {
                    undo.push(Action::Install {
                        target: id,
                        image: before.image.clone(),
                    });
                }
                let gone = Action::DestroyCompartment(DestroyCompartment { id });
                self.steps.push(Step {
                    undo,
                    ..step(
                        Phase::Prepare,
                        Change::Replace,
                        gone,
                        object.clone(),
                        reason,
                    )
                });
                self.steps.push(make(Change::Replace, reason.into()));
                (old_ports, old_image) = (&none, Image::default());
            }
            Some(_) => {}
        }
        for (slot, port) in &compartment.ports {
            let was = before.and_then(|b| b.ports.get(slot));
            self.port(
                old_ports.get(slot),
                port,
                was.is_some() && !old_ports.contains_key(slot),
                old,
            );
        }
        for (_, gone) in old_ports
            .iter()
            .filter(|(slot, _)| !compartment.ports.contains_key(slot))
        {
            self.cleanup.push(destroy_port(
                Phase::Cleanup,
                Change::Destroy,
                gone,
                "it is not in the spec any more",
            ));
        }
        if old_image != compartment.image {
            let reason = if old_image.is_none() {
                "its first table"
            } else {
                "endpoints, subnets or routes changed"
            };
            self.installs
                .push(install(id, object, &old_image, &compartment.image, reason));
        }
    }

    fn port(&mut self, before: Option<&PortIntent>, port: &PortIntent, again: bool, old: &Intent) {
        let reason = match before {
            Some(before) if before.create == port.create => return,
            Some(before) => {
                let reason = port_difference(&before.create, &port.create);
                self.remove_first(Change::Replace, before, reason);
                reason
            }
            None if again => "its compartment is made anew",
            None => "new in the spec",
        };
        let places = self.old_places.get_or_insert_with(|| places(old));
        let holder = places.get(&place(&port.create)).copied();
        if let Some((compartment, slot)) =
            holder.filter(|h| *h != (port.create.compartment, port.create.slot))
        {
            let holder = old
                .compartments
                .get(&compartment)
                .and_then(|c| c.ports.get(&slot));
            if let Some(holder) = holder {
                self.remove_first(Change::Destroy, holder, "another takes its interface");
            }
        }
        let change = if before.is_some() || again {
            Change::Replace
        } else {
            Change::Create
        };
        let create = step(
            Phase::Prepare,
            change,
            Action::CreatePort(port.create),
            object_of(port),
            reason,
        );
        self.steps.push(Step {
            undo: vec![destroy(&port.create)],
            ..create
        });
    }
}

fn step(phase: Phase, change: Change, action: Action, object: String, reason: &str) -> Step {
    Step {
        phase,
        change,
        action,
        undo: Vec::new(),
        object,
        reason: reason.to_owned(),
    }
}

fn install(target: u32, object: String, old: &Image, new: &Image, reason: &str) -> Step {
    let undo = if old.is_none() {
        Vec::new()
    } else {
        vec![Action::Install {
            target,
            image: old.clone(),
        }]
    };
    let action = Action::Install {
        target,
        image: new.clone(),
    };
    Step {
        undo,
        ..step(Phase::Commit, Change::Install, action, object, reason)
    }
}

fn destroy(create: &CreatePort) -> Action {
    Action::DestroyPort(DestroyPort {
        compartment: create.compartment,
        slot: create.slot,
        ..DestroyPort::default()
    })
}

fn destroy_port(phase: Phase, change: Change, port: &PortIntent, reason: &str) -> Step {
    // What cleanup removes nothing needs again.
    let undo = if phase == Phase::Cleanup {
        Vec::new()
    } else {
        vec![Action::CreatePort(port.create)]
    };
    Step {
        undo,
        ..step(
            phase,
            change,
            destroy(&port.create),
            object_of(port),
            reason,
        )
    }
}

fn object_of(port: &PortIntent) -> String {
    format!("endpoint {}/{}", port.tenant, port.endpoint)
}

fn difference(old: &CreateCompartment, new: &CreateCompartment) -> &'static str {
    match (old, new) {
        _ if old.slots != new.slots => "it needs room for more endpoints",
        _ if (old.wait, old.wait_us) != (new.wait, new.wait_us) => "how it waits changed",
        _ if old.core != new.core => "its core changed",
        _ if old.sandbox != new.sandbox => "its sandbox changed",
        _ if old.capacity != new.capacity => "the size of its channel changed",
        _ if old.memory != new.memory => "its memory limit changed",
        _ if old.program != new.program => "its program changed",
        _ => "its settings changed",
    }
}

fn port_difference(old: &CreatePort, new: &CreatePort) -> &'static str {
    match (old, new) {
        _ if old.endpoint != new.endpoint => "another endpoint takes its slot",
        _ if old.kind != new.kind => "how it is attached changed",
        _ if (old.namespace, old.interface) != (new.namespace, new.interface) => {
            "its namespace or interface changed"
        }
        _ if old.mac != new.mac => "its MAC changed",
        _ if old.mtu != new.mtu => "its mtu changed",
        _ if (old.address4, old.address6, old.gateway4, old.gateway6)
            != (new.address4, new.address6, new.gateway4, new.gateway6) =>
        {
            "its addresses changed"
        }
        _ => "its attachment's settings changed",
    }
}
