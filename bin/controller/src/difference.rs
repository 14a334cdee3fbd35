//! What has to be done to get from what is to what shall be: pure, and the same
//! for an apply (from the world applied) and for a restart (from the inventory).

use crate::steps::{Batch, Image, Key, Object, Step};
use api::Change;
use command::verbs::{
    CreatePort, ENDPOINT_CIRCUITS, ENDPOINT_FIFO, ENDPOINT_TAP, ENDPOINT_VETH, ENDPOINT_VHOST,
    FABRIC,
};
use std::collections::{BTreeMap, BTreeSet};

/// What is, as far as it is known.
#[derive(Debug, Default)]
pub struct Existing<'a> {
    /// Objects with the digest of the body that made them.
    pub objects: BTreeMap<Key, [u8; 32]>,
    /// The bodies, where they are known.
    pub bodies: Option<&'a BTreeMap<Key, Object>>,
    /// Digests of the images in use.
    pub images: BTreeMap<u32, [u8; 32]>,
}

/// The steps, in batches that must follow each other, in three phases.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Makes what is new; undone as a whole if one step fails.
    pub prepare: Vec<Batch>,
    /// Puts changed images in use, compartments before the fabric.
    pub commit: Vec<Batch>,
    /// Removes what is no longer wanted: nothing speaks of it any more.
    pub cleanup: Vec<Batch>,
}

impl Difference {
    /// From what is to these objects (with the digests of their bodies) and images;
    /// images carry this epoch.
    pub fn between(
        existing: &Existing<'_>,
        objects: &BTreeMap<Key, Object>,
        digests: &BTreeMap<Key, [u8; 32]>,
        images: &BTreeMap<u32, Image>,
        epoch: u64,
    ) -> Difference {
        let replaced = replaced(existing, digests);
        let body = |key: &Key| existing.bodies.and_then(|bodies| bodies.get(key).copied());
        let is_compartment = |key: &Key| matches!(key, Key::Compartment(_));
        let fresh = |key: &Key| replaced.contains(key) || !existing.objects.contains_key(key);
        let in_the_way = in_the_way(existing, objects, fresh);

        // A compartment's ports go before it, so that the namespaces made for them stay,
        // and each is recorded, so that undoing makes it again.
        let mut make_room: [Batch; 2] = Default::default();
        for key in replaced.union(&in_the_way) {
            make_room[usize::from(is_compartment(key))].push(Step::Destroy(*key, body(key)));
        }
        let mut make: [Batch; 2] = Default::default();
        for (key, object) in objects.iter().filter(|(key, _)| fresh(key)) {
            make[usize::from(!is_compartment(key))].push(Step::Create(*object));
        }
        let [compartments, others] = make;
        // A new compartment has its image before its ports, so that nothing is ever
        // forwarded without one.
        let (first_images, changed): (Vec<_>, Vec<_>) = images
            .values()
            .filter(|image| fresh(&Key::Compartment(image.target)) && image.target != FABRIC || existing.images.get(&image.target) != Some(&image.digest))
            .cloned()
            .map(|image| Step::Install(image, epoch))
            .partition(|step| matches!(step, Step::Install(image, _) if image.target != FABRIC && fresh(&Key::Compartment(image.target))));
        let (of_fabric, of_compartments): (Batch, Batch) = changed
            .into_iter()
            .partition(|step| matches!(step, Step::Install(image, _) if image.target == FABRIC));

        let mut remove: [Batch; 2] = Default::default();
        for key in existing.objects.keys().filter(|key| {
            !objects.contains_key(key) && !in_the_way.contains(key) && !replaced.contains(key)
        }) {
            let gone_with_compartment = matches!(key, Key::Port(id, _) if !objects.contains_key(&Key::Compartment(*id)) && existing.objects.contains_key(&Key::Compartment(*id)));
            if !gone_with_compartment {
                remove[usize::from(is_compartment(key))].push(Step::Remove(*key, body(key)));
            }
        }
        let filled = |batches: Vec<Batch>| {
            batches
                .into_iter()
                .filter(|batch| !batch.is_empty())
                .collect()
        };
        let [ports_away, compartments_away] = make_room;
        Difference {
            prepare: filled(vec![
                ports_away,
                compartments_away,
                compartments,
                first_images,
                others,
            ]),
            commit: filled(vec![of_compartments, of_fabric]),
            cleanup: filled(remove.into()),
        }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.prepare.is_empty() && self.commit.is_empty() && self.cleanup.is_empty()
    }

    /// For people: one line a thing, a replacement as one.
    pub fn changes(&self, existing: &Existing<'_>, names: impl Fn(u32) -> String) -> Vec<Change> {
        let steps = || {
            self.prepare
                .iter()
                .chain(&self.commit)
                .chain(&self.cleanup)
                .flatten()
        };
        let made: BTreeMap<Key, Object> = steps()
            .filter_map(|step| match step {
                Step::Create(object) => Some((object.key(), *object)),
                _ => None,
            })
            .collect();
        let mut changes = Vec::new();
        for step in steps() {
            let change = |action: &str, object: String, reason: String| Change {
                action: action.into(),
                object,
                reason,
            };
            match step {
                Step::Create(object) if !existing.objects.contains_key(&object.key()) => {
                    changes.push(change("create", object.name(), about(object)))
                }
                Step::Create(object) => {
                    let before = existing.bodies.and_then(|bodies| bodies.get(&object.key()));
                    changes.push(change(
                        "replace",
                        object.name(),
                        why_replaced(before, object),
                    ));
                }
                Step::Destroy(key, _) if made.contains_key(key) => {}
                Step::Destroy(key, body) | Step::Remove(key, body) => changes.push(change(
                    "destroy",
                    body.map_or_else(|| format!("{key:?}"), |body| body.name()),
                    format!("no longer in the spec{}", existing.left_with(key)),
                )),
                Step::Install(image, _)
                    if !existing.images.contains_key(&image.target) && image.target != FABRIC => {}
                Step::Install(image, _) => changes.push(change(
                    "install",
                    format!("tables of {}", names(image.target)),
                    "what it forwards by has changed".into(),
                )),
            }
        }
        changes
    }
}

/// Ports that are to go and hold what a port to be made wants: they go first. Where a
/// body is not known, it may be this one.
fn in_the_way(
    existing: &Existing<'_>,
    objects: &BTreeMap<Key, Object>,
    fresh: impl Fn(&Key) -> bool,
) -> BTreeSet<Key> {
    let wanted: BTreeSet<_> = objects
        .iter()
        .filter(|(key, _)| fresh(key))
        .filter_map(|(_, object)| held(object))
        .collect();
    existing
        .objects
        .keys()
        .filter(|key| matches!(key, Key::Port(..)) && !objects.contains_key(key))
        .filter(
            |key| match existing.bodies.and_then(|bodies| bodies.get(key)) {
                Some(body) => held(body).is_some_and(|place| wanted.contains(&place)),
                None => !wanted.is_empty(),
            },
        )
        .copied()
        .collect()
}

/// What only one port can hold at a time: its namespace and interface, a socket's name.
fn held(object: &Object) -> Option<(&str, &str)> {
    match object {
        Object::Port(body)
            if matches!(
                body.kind,
                ENDPOINT_FIFO | ENDPOINT_VHOST | ENDPOINT_CIRCUITS
            ) =>
        {
            Some(("", body.name.as_str()))
        }
        Object::Port(body) => Some((body.namespace.as_str(), body.interface.as_str())),
        _ => None,
    }
}

/// Keys that exist with another body; with a compartment all its ports, also those that
/// are to go: else their namespaces would end with it, and undoing would not find them.
fn replaced(existing: &Existing<'_>, digests: &BTreeMap<Key, [u8; 32]>) -> BTreeSet<Key> {
    let differs: BTreeSet<Key> = digests
        .iter()
        .filter(|(key, digest)| {
            existing
                .objects
                .get(key)
                .is_some_and(|created| created != *digest)
        })
        .map(|(key, _)| *key)
        .collect();
    let with_ports: Vec<Key> = existing
        .objects
        .keys()
        .filter(|key| matches!(key, Key::Port(id, _) if differs.contains(&Key::Compartment(*id))))
        .copied()
        .collect();
    differs.into_iter().chain(with_ports).collect()
}

fn about(object: &Object) -> String {
    match object {
        Object::Compartment(body) => {
            let own: Vec<String> = body.cores().map(|core| core.to_string()).collect();
            let cores = match own.as_slice() {
                [] => "shared cores".to_owned(),
                [core] => format!("core {core}"),
                several => format!("cores {}", several.join(", ")),
            };
            format!(
                "{}, {cores}",
                if body.sandbox == 1 {
                    "sandboxed"
                } else {
                    "no sandbox"
                }
            )
        }
        Object::Port(body) => place(body),
        Object::Uplink(body) if body.namespace.as_str().is_empty() => {
            "in the host's namespace".into()
        }
        Object::Uplink(body) => format!("in namespace {}", body.namespace.as_str()),
    }
}

fn place(body: &CreatePort) -> String {
    let kind = match body.kind {
        ENDPOINT_FIFO => return format!("fifo for uid {}", body.owner),
        ENDPOINT_VHOST => return format!("vhost-user for uid {}", body.owner),
        ENDPOINT_CIRCUITS => return "circuits".to_owned(),
        ENDPOINT_VETH => "veth",
        _ => "tap",
    };
    let made = if body.flags & command::verbs::CREATE_NAMESPACE != 0 {
        " (made)"
    } else {
        ""
    };
    let circuits = match has_circuits(body) {
        false => "",
        true => ", with circuits",
    };
    format!(
        "{kind} {} in namespace {}{made}{circuits}",
        body.interface.as_str(),
        body.namespace.as_str()
    )
}

impl Existing<'_> {
    /// What comes of programs of circuits that are in something that goes.
    fn left_with(&self, key: &Key) -> &'static str {
        let mut bodies = self.bodies.into_iter().flatten();
        let has = |(port, body): (&Key, &Object)| {
            let is_in = match (key, port) {
                (Key::Compartment(id), Key::Port(of, _)) => id == of,
                _ => key == port,
            };
            is_in && matches!(body, Object::Port(body) if has_circuits(body))
        };
        match bodies.any(has) {
            true => ": its programs' circuits end, and they are left behind",
            false => "",
        }
    }
}

fn has_circuits(body: &CreatePort) -> bool {
    body.kind == ENDPOINT_CIRCUITS || body.flags & command::verbs::CREATE_CIRCUITS != 0
}

/// What is set at a port's interface.
fn addresses(body: &CreatePort) -> ([u8; 4], [u8; 16], [u8; 2]) {
    let lengths = [body.prefix4_len, body.prefix6_len];
    (body.address4, body.address6, lengths)
}

fn why_replaced(before: Option<&Object>, after: &Object) -> String {
    match (before, after) {
        (Some(Object::Port(old)), Object::Port(new)) => {
            let mut what = Vec::new();
            let mut note = |differs: bool, name| {
                if differs {
                    what.push(name);
                }
            };
            note(old.endpoint != new.endpoint, "another endpoint");
            note(old.kind != new.kind, "another kind of port");
            note(old.mac != new.mac, "MAC");
            note(old.mtu != new.mtu, "MTU");
            // What only one of two kinds has did not change: the kind did.
            let both = |kinds: &[u32]| [old, new].iter().all(|it| kinds.contains(&it.kind));
            let interfaces = both(&[ENDPOINT_TAP, ENDPOINT_VETH]);
            let owned = both(&[ENDPOINT_FIFO, ENDPOINT_VHOST]);
            note(interfaces && addresses(old) != addresses(new), "addresses");
            let gateways = |body: &CreatePort| (body.gateway4, body.gateway6);
            note(interfaces && gateways(old) != gateways(new), "gateway");
            let place = |body: &CreatePort| (body.interface, body.namespace);
            note(interfaces && place(old) != place(new), "place");
            note(owned && old.owner != new.owner, "owner");
            let size = |body: &CreatePort| (body.capacity, body.max_record, body.pairs);
            note(
                old.kind == new.kind && size(old) != size(new),
                match new.kind {
                    ENDPOINT_VHOST => "memory",
                    ENDPOINT_VETH | ENDPOINT_TAP | ENDPOINT_CIRCUITS => "sockets or set-ups",
                    _ => "queue size",
                },
            );
            note(interfaces && old.flags != new.flags, "how it is set up");
            note(old.name != new.name, "name");
            let left = match has_circuits(old) {
                true => ": its programs' circuits end, and they have to be started again",
                false => "",
            };
            if what.is_empty() {
                return format!("it is closed, or its compartment is made anew{left}");
            }
            format!("changed: {}{left}", what.join(", "))
        }
        _ => format!("changed: {}", about(after)),
    }
}

#[cfg(test)]
mod tests;
