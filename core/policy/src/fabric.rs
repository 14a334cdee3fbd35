//! The fabric's table: who may say what to whom.
//!
//! Every entry joins one compartment and one uplink, or the two of a live agreement
//! under its tag: nothing else passes between tenants.

use crate::agreements::Agreement;
use crate::ids::Ids;
use crate::intent::{AttachmentIntent, CompartmentIntent, Image, UplinkIntent};
use command::Name;
use command::verbs::CreateUplink;
use guard::guard;
use image::fabric::{
    CHANNEL_COMPARTMENT, CHANNEL_UPLINK, Channel, FORWARD_GROUP, FORWARD_UNICAST, Forward,
    GroupMember, TEMPLATE_BYTES, Template,
};
use image::{BuildError, FabricTables};
use spec::{Prefix, Spec};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::MacAddress;
use wire::address::{ALL_NODES, ALL_ROUTERS, link_local, solicited_node, unmapped};

pub(crate) fn uplinks(spec: &Spec, ids: &Ids) -> BTreeMap<u32, UplinkIntent> {
    let one = |uplink: &spec::Uplink| {
        let ids = ids.uplinks.get(uplink.name.as_str())?;
        let create = CreateUplink {
            uplink: ids.number,
            slot: ids.slot,
            interface: Name::new(uplink.interface.as_str()).unwrap_or_default(),
            namespace: uplink
                .namespace
                .as_ref()
                .and_then(|n| Name::new(n.as_str()))
                .unwrap_or_default(),
        };
        Some((
            ids.number,
            UplinkIntent {
                create,
                name: uplink.name.to_string(),
            },
        ))
    };
    spec.uplinks.iter().filter_map(one).collect()
}

pub(crate) fn compile(
    compartments: &BTreeMap<u32, Arc<CompartmentIntent>>,
    uplinks: &BTreeMap<u32, UplinkIntent>,
    agreements: &[Agreement],
) -> Result<Image, BuildError> {
    let mut tables = FabricTables::default();
    // Groups of each uplink: destination MAC to members.
    let mut groups: BTreeMap<(u32, [u8; 6]), Vec<GroupMember>> = BTreeMap::new();
    for compartment in compartments.values() {
        let slot = compartment.create.id;
        let channel = tables.channels.len() as u32;
        tables.channels.push(Channel {
            id: slot,
            kind: CHANNEL_COMPARTMENT,
            slot,
            weight: compartment.weight,
            min_bytes: compartment.min_bytes,
            templates_first: 0,
            templates_count: 0,
        });
        for attachment in &compartment.attachments {
            let Some(uplink) = uplinks.get(&attachment.uplink) else {
                continue;
            };
            let uplink = uplink.create.slot;
            outward(&mut tables, slot, uplink, attachment);
            tables.templates.extend(
                templates(uplink, attachment)
                    .into_iter()
                    .map(|t| (channel, t)),
            );
            tables.forwards.push(Forward {
                ingress: uplink,
                tag: 0,
                mac: attachment.mac,
                target: slot,
                out_tag: attachment.tag,
                kind: FORWARD_UNICAST,
            });
            for mac in groups_of(attachment) {
                let member = GroupMember {
                    slot,
                    out_tag: attachment.tag,
                    reserved: 0,
                };
                groups.entry((uplink, mac)).or_default().push(member);
            }
        }
    }
    for uplink in uplinks.values() {
        tables.channels.push(Channel {
            id: uplink.create.uplink,
            kind: CHANNEL_UPLINK,
            slot: uplink.create.slot,
            weight: 1,
            min_bytes: 0,
            templates_first: 0,
            templates_count: 0,
        });
    }
    for ((uplink, mac), members) in groups {
        let target = tables.groups.len() as u32;
        tables.forwards.push(Forward {
            ingress: uplink,
            tag: 0,
            mac,
            target,
            out_tag: 0,
            kind: FORWARD_GROUP,
        });
        tables.groups.push(members);
    }
    for agreement in agreements {
        let one = (agreement.acceptor_slot, agreement.tag);
        let other = (agreement.offerer_slot, agreement.offerer_tag);
        for ((ingress, tag), (target, out_tag)) in [(one, other), (other, one)] {
            tables.forwards.push(Forward {
                ingress,
                tag,
                mac: EVERY_STATION,
                target,
                out_tag,
                kind: FORWARD_UNICAST,
            });
        }
    }
    tables.finish().map(Image::new)
}

/// A MAC of all zeros stands for every other station.
const EVERY_STATION: [u8; 6] = [0; 6];

/// Toward the uplink: every station, and the groups that neighbour discovery needs.
fn outward(tables: &mut FabricTables, slot: u32, uplink: u32, attachment: &AttachmentIntent) {
    let mut macs: BTreeSet<[u8; 6]> = BTreeSet::from([EVERY_STATION]);
    let hops = &attachment.next_hops;
    if attachment
        .addresses
        .iter()
        .chain(hops)
        .any(|a| unmapped(a).is_some())
    {
        macs.insert(MacAddress::BROADCAST.0);
    }
    if attachment.addresses.iter().any(|a| unmapped(a).is_none()) {
        macs.extend([ALL_NODES, ALL_ROUTERS].map(|group| MacAddress::of_group6(group).0));
        let hops = hops.iter().filter(|hop| unmapped(hop).is_none());
        macs.extend(hops.map(|hop| MacAddress::of_group6(solicited_node(hop)).0));
    }
    for mac in macs {
        tables.forwards.push(Forward {
            ingress: slot,
            tag: attachment.tag,
            mac,
            target: uplink,
            out_tag: 0,
            kind: FORWARD_UNICAST,
        });
    }
}

/// The groups on an uplink that an attachment listens to.
fn groups_of(attachment: &AttachmentIntent) -> BTreeSet<[u8; 6]> {
    let mut macs = BTreeSet::new();
    let mac = MacAddress(attachment.mac);
    for address in &attachment.addresses {
        if unmapped(address).is_some() {
            macs.insert(MacAddress::BROADCAST.0);
        } else {
            let groups = [
                ALL_NODES,
                solicited_node(address),
                solicited_node(&link_local(mac)),
            ];
            macs.extend(groups.map(|group| MacAddress::of_group6(group).0));
        }
    }
    macs
}

/// What an attachment may say to its uplink: ARP as itself, IP from its own
/// addresses and its tenant's prefixes, always with its own source MAC.
fn templates(uplink: u32, attachment: &AttachmentIntent) -> Vec<Template> {
    let speak = |ethertype: u16| {
        Writer {
            template: Template {
                egress: uplink,
                tag: attachment.tag,
                ..Template::default()
            },
        }
        .bytes(6, &attachment.mac)
        .bytes(12, &ethertype.to_be_bytes())
    };
    let ip = |address: &[u8; 16], len: u32| match unmapped(address) {
        Some(v4) => speak(0x0800)
            .bits(14, &[0x40], 4)
            .bits(26, &v4, len.saturating_sub(96)),
        None => speak(0x86dd).bits(14, &[0x60], 4).bits(22, address, len),
    };
    let mut out = Vec::new();
    // The tenant's packets first: they are the many.
    for source in &attachment.sources {
        let (first, _) = Prefix::range(source);
        let len = if guard!("uplink-source") {
            source.len128()
        } else {
            0
        };
        out.push(ip(&first, len));
    }
    for address in &attachment.addresses {
        out.push(ip(address, 128));
        if let Some(v4) = unmapped(address) {
            // Ethernet and IPv4, then sender MAC and address (RFC 826).
            out.push(
                speak(0x0806)
                    .bytes(14, &[0, 1, 8, 0, 6, 4])
                    .bytes(22, &attachment.mac)
                    .bytes(28, &v4),
            );
        }
    }
    if attachment.addresses.iter().any(|a| unmapped(a).is_none()) {
        out.push(ip(&link_local(MacAddress(attachment.mac)), 128));
    }
    out.into_iter().map(|writer| writer.template).collect()
}

struct Writer {
    template: Template,
}

impl Writer {
    fn bytes(self, at: usize, value: &[u8]) -> Writer {
        self.bits(at, value, value.len() as u32 * 8)
    }

    /// The first `bits` of `value` must stand at `at`.
    fn bits(mut self, at: usize, value: &[u8], bits: u32) -> Writer {
        for (i, byte) in value.iter().enumerate() {
            let left = bits.saturating_sub(i as u32 * 8).min(8);
            let mask = (0xff00u16 >> left) as u8;
            let (Some(m), Some(v)) = (
                self.template.mask.get_mut(at + i),
                self.template.value.get_mut(at + i),
            ) else {
                break;
            };
            *m |= mask;
            *v = *v & !mask | byte & mask;
        }
        self.template.len = self
            .template
            .len
            .max((at + value.len()).min(TEMPLATE_BYTES) as u16);
        self
    }
}
