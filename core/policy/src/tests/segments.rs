//! Subnets that go on in VLANs of an uplink.

use super::{intent, read};
use crate::{Ids, Intent, Peer, Question, explain};
use image::fabric::{EVERY_GROUP, FORWARD_SEGMENT, FORWARD_UNICAST};
use image::{Aligned, CompartmentImage, FabricImage, FabricTables};
use spec::Spec;

const HOST: &str = "version: 1
uplinks: [{name: wan0, interface: eth1}, {name: wan1, interface: eth2}]
tenants:
  - name: red
    subnets:
      - {name: web, prefixes: [10.1.1.0/24], segment: {technology: vlan, uplink: wan0, vlan: 120}}
      - {name: app, prefixes: [10.1.2.0/24], segment: local}
    endpoints:
      - {name: a, subnet: web, mac: '02:00:00:00:00:0a'}
      - {name: b, subnet: web, mac: '02:00:00:00:00:0b'}
      - {name: c, subnet: app, mac: '02:00:00:00:00:0c'}
    outside: [{uplink: wan0, address: [192.0.2.10/24], gateway: [192.0.2.1]}]
";

fn fabric(intent: &Intent) -> FabricTables {
    let memory = Aligned::copy_of(&intent.fabric.bytes);
    FabricImage::map(memory.as_ref()).unwrap().decode()
}

/// (tag, segment tags of the subnets in red's image)
fn tags(ids: &Ids, intent: &Intent) -> (u16, Vec<u16>) {
    let red = intent.compartment_of("red").unwrap();
    let memory = Aligned::copy_of(&red.image.bytes);
    let image = CompartmentImage::map(memory.as_ref()).unwrap();
    let own = image.subnets().iter().map(|s| s.segment).collect();
    (ids.tenants["red"].segments["web"].tag, own)
}

#[test]
fn a_segment_is_joined_to_its_vlan_for_its_endpoints() {
    let spec = read(HOST);
    let (ids, intent) = intent(&spec);
    let (tag, own) = tags(&ids, &intent);
    assert_eq!(own, [tag, 0]);
    assert_ne!(tag, ids.tenants["red"].attachments["wan0"].tag);
    let (red, wan0) = (ids.compartments["red"].id, ids.uplinks["wan0"].slot);
    let tables = fabric(&intent);
    let of = |e: &&image::fabric::Forward| e.tag == tag || e.out_tag == tag;
    let mut said: Vec<_> = (tables.forwards.iter().filter(of))
        .map(|e| (e.ingress, e.tag, e.mac, e.target, e.out_tag, e.kind))
        .collect();
    said.sort_unstable();
    let mut wanted = vec![
        (red, tag, [0; 6], wan0, 120, FORWARD_SEGMENT),
        (red, tag, EVERY_GROUP, wan0, 120, FORWARD_SEGMENT),
        (wan0, 120, [2, 0, 0, 0, 0, 0xa], red, tag, FORWARD_UNICAST),
        (wan0, 120, [2, 0, 0, 0, 0, 0xb], red, tag, FORWARD_UNICAST),
        (wan0, 120, EVERY_GROUP, red, tag, FORWARD_UNICAST),
    ];
    wanted.sort_unstable();
    assert_eq!(said, wanted);
    // By no template does anything of it leave.
    assert!(tables.templates.iter().all(|(_, t)| t.tag != tag));
}

#[test]
fn its_tag_is_kept_while_it_means_the_same() {
    let spec = read(HOST);
    let (ids, _) = intent(&spec);
    let after = |text: &str| Ids::assign(&read(text), &ids).tenants["red"].segments["web"].tag;
    let tag = ids.tenants["red"].segments["web"].tag;
    // Whoever comes or goes.
    assert_eq!(
        after(&HOST.replace("{name: b, subnet: web", "{name: d, subnet: web")),
        tag
    );
    assert_eq!(after(&HOST.replace("10.1.1.0/24", "10.1.1.0/25")), tag);
    for (was, is) in [
        ("vlan: 120", "vlan: 121"),
        ("uplink: wan0, vlan", "uplink: wan1, vlan"),
        (
            "name: red\n",
            "name: red\n    placement: {per: zone, zone: z}\n",
        ),
    ] {
        assert_ne!(after(&HOST.replace(was, is)), tag, "{is}");
    }
}

fn ways(spec: &Spec, ids: &Ids, intent: &Intent, from: &str, to: &str) -> usize {
    let question = Question {
        from: from.parse().map_or(Peer::Endpoint(from), Peer::Address),
        to: to.parse().map_or(Peer::Endpoint(to), Peer::Address),
        protocol: 6,
        source_port: 40_000,
        port: 80,
    };
    explain(spec, ids, intent, &question)
        .expect("an answer")
        .there
        .len()
}

#[test]
fn who_is_beyond_is_explained_to_who_is_on_its_link() {
    let spec = read(HOST);
    let (ids, first) = intent(&spec);
    let ask = |from: &str, to: &str| ways(&spec, &ids, &first, from, to);
    assert_eq!(ask("red/a", "10.1.1.77"), 1);
    assert_eq!(ask("10.1.1.77", "red/a"), 1);
    // Nobody is routed there, and a subnet that is here alone ends here.
    assert_eq!(ask("red/c", "10.1.1.77"), 0);
    assert_eq!(ask("red/c", "10.1.2.77"), 0);
}
