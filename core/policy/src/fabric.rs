//! The fabric's table: who may say what to whom.
//!
//! Every entry joins one compartment and one uplink, or the two of a live agreement
//! under its tag: nothing else passes between tenants.

use crate::agreements::Agreement;
use crate::ids::Ids;
use crate::intent::{AttachmentIntent, CompartmentIntent, Image, SegmentIntent, UplinkIntent};
use command::Name;
use command::verbs::{CreateUplink, DRIVER_AF_PACKET, DRIVER_AUTO, DRIVER_XDP};
use guard::guard;
use image::fabric::{
    BOUNDS, Bound, CHANNEL_COMPARTMENT, CHANNEL_UPLINK, Channel, EVERY_GROUP, FORWARD_GROUP,
    FORWARD_SEGMENT, FORWARD_UNICAST, Forward, GroupMember, TEMPLATE_BYTES, Template,
};
use image::{BuildError, FabricTables};
use spec::{Prefix, Spec};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::address::{ALL_NODES, link_local, solicited_node, unmapped};
use wire::nd::{NEIGHBOUR_ADVERT, NEIGHBOUR_SOLICIT};
use wire::{MacAddress, icmpv4, icmpv6};

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
            driver: match uplink.driver() {
                spec::Driver::Auto => DRIVER_AUTO,
                spec::Driver::Xdp => DRIVER_XDP,
                spec::Driver::AfPacket => DRIVER_AF_PACKET,
            },
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
    // Groups of each uplink and VLAN: destination MAC to members.
    let mut groups: BTreeMap<(u32, u16, [u8; 6]), Vec<GroupMember>> = BTreeMap::new();
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
                tag: attachment.vlan,
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
                let group = (uplink, attachment.vlan, mac);
                groups.entry(group).or_default().push(member);
            }
        }
    }
    for compartment in compartments.values() {
        for segment in &compartment.segments {
            if let Some(uplink) = uplinks.get(&segment.uplink) {
                joined(
                    &mut tables,
                    compartment.create.id,
                    uplink.create.slot,
                    segment,
                );
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
    for ((uplink, vlan, mac), members) in groups {
        let target = tables.groups.len() as u32;
        tables.forwards.push(Forward {
            ingress: uplink,
            tag: vlan,
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

/// A subnet and its VLAN: out goes what is for any station or group, in comes what is for
/// its endpoints' MACs, by which the fabric knows who may speak there as well, and what is
/// for any group.
fn joined(tables: &mut FabricTables, slot: u32, uplink: u32, segment: &SegmentIntent) {
    let out = [EVERY_STATION, EVERY_GROUP].map(|mac| Forward {
        ingress: slot,
        tag: segment.tag,
        mac,
        target: uplink,
        out_tag: segment.vlan,
        kind: FORWARD_SEGMENT,
    });
    let stations = segment.stations.iter().copied();
    let back = stations.chain([EVERY_GROUP]).map(|mac| Forward {
        ingress: uplink,
        tag: segment.vlan,
        mac,
        target: slot,
        out_tag: segment.tag,
        kind: FORWARD_UNICAST,
    });
    tables.forwards.extend(out.into_iter().chain(back));
}

/// Toward the uplink: every station, and the groups that neighbour discovery needs, in the
/// attachment's VLAN alone.
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
        // Who asks for an address without having one is answered there (RFC 4861, 7.2.4).
        macs.insert(MacAddress::of_group6(ALL_NODES).0);
        let hops = hops.iter().filter(|hop| unmapped(hop).is_none());
        macs.extend(hops.map(|hop| MacAddress::of_group6(solicited_node(hop)).0));
    }
    for mac in macs {
        tables.forwards.push(Forward {
            ingress: slot,
            tag: attachment.tag,
            mac,
            target: uplink,
            out_tag: attachment.vlan,
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

/// What an attachment may say to its uplink, always with its own source MAC: ARP as
/// itself; of ICMPv6 from its own addresses errors, echo replies and what asks and answers
/// for neighbours, in clear; and its tenant's packets, as a router sends them on that is
/// neither a DHCP server nor the neighbour of their destination.
fn templates(uplink: u32, attachment: &AttachmentIntent) -> Vec<Template> {
    let speak = |ethertype: u16| {
        let template = Template {
            egress: uplink,
            tag: attachment.tag,
            ..Template::default()
        };
        let writer = Writer { template }.bytes(6, &attachment.mac);
        writer.bytes(12, &ethertype.to_be_bytes())
    };
    let packets = |address: &[u8; 16], len: u32| match unmapped(address) {
        // Without options, behind which ports and types would lie elsewhere.
        Some(v4) => {
            let from = len.saturating_sub(96);
            let writer = || {
                let writer = speak(0x0800).station().bytes(14, &[0x45]);
                writer.bits(26, &v4, from).routed4()
            };
            packets4(writer)
        }
        None => {
            let writer = speak(0x86dd).station().bits(14, &[0x60], 4);
            let writer = writer.bits(22, address, len).routed6();
            let not = |not: Writer| {
                let [high, low] = DHCP6_CLIENT;
                let udp = not.bytes(20, &[UDP]).bytes(56, &[high]);
                udp.field(57, [0xfe], [low])
            };
            vec![writer.but(guard!("uplink-server-six"), not)]
        }
    };
    let icmp6 = |address: &[u8; 16]| {
        let writer = speak(0x86dd).bits(14, &[0x60], 4).bytes(22, address);
        match guard!("uplink-icmp6") {
            true => writer.bytes(20, &[icmpv6::PROTOCOL]),
            false => writer,
        }
    };
    let mut out = Vec::new();
    let mut many = Vec::new();
    for source in &attachment.sources {
        let (first, _) = Prefix::range(source);
        let len = if guard!("uplink-source") {
            source.len128()
        } else {
            0
        };
        many.push(packets(&first, len));
    }
    for address in &attachment.addresses {
        match unmapped(address) {
            Some(v4) => {
                many.push(packets(address, 128));
                // Ethernet and IPv4, then sender MAC and address (RFC 826).
                out.push(
                    speak(0x0806)
                        .bytes(14, &[0, 1, 8, 0, 6, 4])
                        .bytes(22, &attachment.mac)
                        .bytes(28, &v4),
                );
            }
            None => {
                // Errors are types 0 to 127 (RFC 4443, 2.1); of these the first eight.
                out.push(icmp6(address).station().field(54, [0xf8], [0]));
                let link_local = link_local(MacAddress(attachment.mac));
                for own in [address, &link_local] {
                    let reply = icmp6(own).station();
                    out.push(reply.bytes(54, &[icmpv6::ECHO_REPLY]));
                    out.push(icmp6(own).bytes(54, &[NEIGHBOUR_SOLICIT]));
                    let advert = icmp6(own).bytes(54, &[NEIGHBOUR_ADVERT]);
                    out.push(match guard!("uplink-target") {
                        true => advert.bytes(62, own),
                        false => advert,
                    });
                }
            }
        }
    }
    // The tenant's packets first, of these TCP's: they are the many.
    let rank = many.iter().map(Vec::len).max().unwrap_or(0);
    let mut many: Vec<_> = many.into_iter().map(Vec::into_iter).collect();
    let ranked = (0..rank).flat_map(|_| {
        many.iter_mut()
            .filter_map(Iterator::next)
            .collect::<Vec<_>>()
    });
    let all: Vec<_> = ranked.chain(out).collect();
    all.into_iter().map(|writer| writer.template).collect()
}

/// The tenant's IPv4 packets but a DHCP server's, a redirect and a router's advertisement.
/// A template excepts one thing, so that each kind has its own by a bit in which what it
/// excepts differs from what the next does. Later fragments have neither ports nor a type.
fn packets4(writer: impl Fn() -> Writer) -> Vec<Writer> {
    let first = |not: Writer| not.field(20, [0x1f, 0xff], [0, 0]);
    let (server, router) = (guard!("uplink-server"), guard!("uplink-redirect"));
    // ICMP and UDP, 1 and 17, differ by one bit.
    let others = |not| first(not).field(23, [!(icmpv4::PROTOCOL ^ UDP)], [icmpv4::PROTOCOL & UDP]);
    let mut all = vec![writer().but(true, others)];
    for port @ [_, low] in [DHCP4_CLIENT, DHCP4_SERVER] {
        let to = writer().bytes(23, &[UDP]).field(37, [1], [low & 1]);
        all.push(to.but(server, |not| first(not).bytes(23, &[UDP]).bytes(36, &port)));
    }
    for kind in [icmpv4::REDIRECT, icmpv4::ROUTER_ADVERT] {
        let of = writer()
            .bytes(23, &[icmpv4::PROTOCOL])
            .field(34, [4], [kind & 4]);
        all.push(of.but(router, |not| {
            first(not).bytes(23, &[icmpv4::PROTOCOL]).bytes(34, &[kind])
        }));
    }
    all
}

/// UDP (RFC 768).
const UDP: u8 = 17;
/// The port that a DHCPv4 server speaks to (RFC 2131, 4.1). Many clients do not look at
/// the one that it speaks from.
const DHCP4_CLIENT: [u8; 2] = 68u16.to_be_bytes();
/// The port of DHCPv4 servers, to which they answer relays (RFC 2131, 4.1).
const DHCP4_SERVER: [u8; 2] = 67u16.to_be_bytes();
/// The same of DHCPv6's clients; its servers' and relays' is the next (RFC 8415, 7.2).
const DHCP6_CLIENT: [u8; 2] = 546u16.to_be_bytes();

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
            self.byte(at + i, (0xff00u16 >> left) as u8, *byte);
        }
        self.upto(at + value.len())
    }

    /// `value` must stand at `at` where `mask` has bits.
    fn field<const N: usize>(mut self, at: usize, mask: [u8; N], value: [u8; N]) -> Writer {
        for (i, (mask, value)) in mask.into_iter().zip(value).enumerate() {
            self.byte(at + i, mask, value);
        }
        self.upto(at + N)
    }

    fn byte(&mut self, at: usize, mask: u8, byte: u8) {
        let Template {
            mask: masks, value, ..
        } = &mut self.template;
        if let (Some(m), Some(v)) = (masks.get_mut(at), value.get_mut(at)) {
            *m |= mask;
            *v = *v & !mask | byte & mask;
        }
    }

    fn upto(mut self, end: usize) -> Writer {
        let len = &mut self.template.len;
        *len = end.min(TEMPLATE_BYTES).max((*len).into()) as u16;
        self
    }

    /// To one station, and no group.
    fn station(self) -> Writer {
        match guard!("uplink-station") {
            true => self.field(0, [1], [0]),
            false => self,
        }
    }

    /// IPv4 as a router sends it on: its time to live has gone down, and where it goes is
    /// neither a group, which 224 and above begin, nor everybody (RFC 1112, 4; RFC 1812,
    /// 5.2.1). VRRP has 255 (RFC 5798).
    fn routed4(self) -> Writer {
        match guard!("uplink-routed4") {
            true => self.at_most([Bound { at: 22, most: 254 }, Bound { at: 30, most: 223 }]),
            false => self,
        }
    }

    /// IPv6 as a router sends it on: its hop limit has gone down, and where it goes is
    /// neither a group nor an address of the link. Neighbour discovery has 255 (RFC 4861).
    fn routed6(self) -> Writer {
        match guard!("uplink-routed") {
            true => self.at_most([Bound { at: 21, most: 254 }, Bound { at: 38, most: 0xfd }]),
            false => self,
        }
    }

    fn at_most(mut self, bounds: [Bound; BOUNDS]) -> Writer {
        let looked = bounds.iter().map(|bound| u16::from(bound.at) + 1);
        self.template.looked = looked.fold(self.template.looked, u16::max);
        self.template.bounds = bounds;
        self
    }

    /// But not what is written here.
    fn but(mut self, there: bool, not: impl FnOnce(Writer) -> Writer) -> Writer {
        if there {
            let not = not(Writer {
                template: Template::default(),
            });
            let Template {
                mask, value, len, ..
            } = not.template;
            (self.template.except_mask, self.template.except_value) = (mask, value);
            self.template.looked = self.template.looked.max(len);
        }
        self
    }
}
