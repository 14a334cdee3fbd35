//! The order of steps, on worlds made by hand; from specs in `specs.rs`.

mod specs;

use super::*;
use command::verbs::CreateCompartment;
use std::sync::Arc;

type World = (BTreeMap<Key, Object>, BTreeMap<u32, Image>);

fn world(ports: &[(u32, u32, u32)], core: u32, table: u8) -> World {
    let mut objects = BTreeMap::new();
    let mut images = BTreeMap::new();
    for (id, slot, mtu) in ports {
        for object in [
            Object::Compartment(CreateCompartment {
                id: *id,
                core,
                ..CreateCompartment::default()
            }),
            Object::Port(CreatePort {
                compartment: *id,
                slot: *slot,
                mtu: *mtu,
                ..CreatePort::default()
            }),
        ] {
            objects.insert(object.key(), object);
        }
        images.insert(
            *id,
            Image {
                target: *id,
                digest: [table; 32],
                bytes: Arc::from([table]),
            },
        );
    }
    images.insert(
        FABRIC,
        Image {
            target: FABRIC,
            digest: [objects.len() as u8; 32],
            bytes: Arc::from([0]),
        },
    );
    (objects, images)
}

fn digests(world: &World) -> BTreeMap<Key, [u8; 32]> {
    world
        .0
        .iter()
        .map(|(key, object)| (*key, object.digest()))
        .collect()
}

fn existing(world: &World) -> Existing<'_> {
    Existing {
        objects: digests(world),
        bodies: Some(&world.0),
        images: world
            .1
            .iter()
            .map(|(target, image)| (*target, image.digest))
            .collect(),
    }
}

fn between(old: &World, new: &World) -> Difference {
    Difference::between(&existing(old), &new.0, &digests(new), &new.1, 2)
}

/// A short form: c1 makes compartment 1, d1.2 removes port 2 of it, i1 installs.
fn short(batches: &[Batch]) -> Vec<String> {
    let key = |key: &Key| match key {
        Key::Compartment(id) => id.to_string(),
        Key::Port(id, slot) => format!("{id}.{slot}"),
        Key::Uplink(number) => format!("u{number}"),
    };
    let step = |step: &Step| match step {
        Step::Create(object) => format!("c{}", key(&object.key())),
        Step::Destroy(k, _) => format!("d{}", key(k)),
        Step::Remove(k, _) => format!("r{}", key(k)),
        Step::Install(image, _) if image.target == FABRIC => "iF".into(),
        Step::Install(image, _) => format!("i{}", image.target),
    };
    batches
        .iter()
        .map(|batch| batch.iter().map(step).collect::<Vec<_>>().join(" "))
        .collect()
}

#[test]
fn the_same_is_nothing_to_do() {
    let world = world(&[(1, 1, 1500), (2, 1, 1500)], 0, 1);
    assert!(between(&world, &world).is_empty());
}

#[test]
fn a_new_compartment_has_its_image_before_its_ports() {
    let difference = between(
        &World::default(),
        &world(&[(1, 1, 1500), (1, 2, 1500)], 0, 1),
    );
    assert_eq!(short(&difference.prepare), ["c1", "i1", "c1.1 c1.2"]);
    assert_eq!(short(&difference.commit), ["iF"]);
    assert!(difference.cleanup.is_empty());
}

#[test]
fn only_what_changed_is_touched() {
    let old = world(&[(1, 1, 1500), (2, 1, 1500)], 0, 1);
    let mut new = old.clone();
    new.1.insert(
        2,
        Image {
            target: 2,
            digest: [9; 32],
            bytes: Arc::from([9]),
        },
    );
    let difference = between(&old, &new);
    assert_eq!(
        (
            short(&difference.prepare),
            short(&difference.commit),
            short(&difference.cleanup)
        ),
        (vec![], vec!["i2".to_owned()], vec![])
    );
}

#[test]
fn tables_stop_naming_a_thing_before_it_is_removed() {
    let old = world(&[(1, 1, 1500), (2, 1, 1500), (2, 2, 1500)], 0, 1);
    let new = world(&[(2, 1, 1500)], 0, 7);
    let difference = between(&old, &new);
    assert!(difference.prepare.is_empty());
    assert_eq!(short(&difference.commit), ["i2", "iF"]);
    // Compartment 1's port goes with it.
    assert_eq!(short(&difference.cleanup), ["r2.2", "r1"]);
}

#[test]
fn a_changed_port_is_replaced_and_a_changed_compartment_takes_its_ports_along() {
    let old = world(&[(1, 1, 1500)], 0, 1);
    let port = between(&old, &world(&[(1, 1, 9000)], 0, 1));
    assert_eq!(short(&port.prepare), ["d1.1", "c1.1"]);
    assert_eq!(
        port.changes(&existing(&old), |_| String::new())[0].reason,
        "changed: MTU"
    );
    let compartment = between(&old, &world(&[(1, 1, 1500)], 3, 1));
    assert_eq!(
        short(&compartment.prepare),
        ["d1.1", "d1", "c1", "i1", "c1.1"]
    );
}

#[test]
fn a_port_that_goes_with_a_replaced_compartment_goes_before_it_to_be_found_by_undoing() {
    let old = world(&[(1, 1, 1500), (1, 2, 1500)], 0, 1);
    let difference = between(&old, &world(&[(1, 1, 1500)], 3, 1));
    assert_eq!(
        short(&difference.prepare),
        ["d1.1 d1.2", "d1", "c1", "i1", "c1.1"]
    );
    assert!(difference.cleanup.is_empty());
}

#[test]
fn strangers_in_the_inventory_are_removed() {
    let stranger = Existing {
        objects: [(Key::Port(7, 1), [0; 32]), (Key::Uplink(0), [0; 32])].into(),
        ..Existing::default()
    };
    let difference = Difference::between(
        &stranger,
        &BTreeMap::new(),
        &BTreeMap::new(),
        &BTreeMap::new(),
        1,
    );
    assert_eq!(short(&difference.cleanup), ["r7.1 ru0"]);
}

/// Port `slot` of compartment `id` on an interface of one namespace.
fn placed(id: u32, slot: u32, interface: &str) -> World {
    let (mut objects, images) = world(&[(id, slot, 1500)], 0, 1);
    if let Some(Object::Port(body)) = objects.get_mut(&Key::Port(id, slot)) {
        body.kind = command::verbs::ENDPOINT_TAP;
        body.namespace = command::Name::new("one").unwrap();
        body.interface = command::Name::new(interface).unwrap();
    }
    (objects, images)
}

#[test]
fn who_holds_what_another_is_to_have_goes_first() {
    let old = placed(1, 1, "eth0");
    // Another endpoint's slot, another tenant's compartment: the same interface.
    let difference = between(&old, &placed(1, 2, "eth0"));
    assert_eq!(short(&difference.prepare), ["d1.1", "c1.2"]);
    assert!(difference.cleanup.is_empty());
    let difference = between(&old, &placed(2, 1, "eth0"));
    assert_eq!(short(&difference.prepare), ["d1.1", "c2", "i2", "c2.1"]);
    assert_eq!(short(&difference.cleanup), ["r1"]);
    // Undoing makes it again.
    assert!(matches!(
        difference.prepare[0][0],
        Step::Destroy(_, Some(Object::Port(_)))
    ));
    // Another interface is in nobody's way.
    let difference = between(&old, &placed(1, 2, "eth1"));
    assert_eq!(short(&difference.prepare), ["c1.2"]);
    assert_eq!(short(&difference.cleanup), ["r1.1"]);
}

#[test]
fn a_stranger_of_unknown_body_may_be_in_the_way() {
    let new = placed(1, 2, "eth0");
    let mut before = existing(&new);
    before.bodies = None;
    before.objects.remove(&Key::Port(1, 2));
    before.objects.insert(Key::Port(1, 1), [0; 32]);
    let difference = Difference::between(&before, &new.0, &digests(&new), &new.1, 2);
    assert_eq!(short(&difference.prepare), ["d1.1", "c1.2"]);
}
