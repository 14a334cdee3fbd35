//! Between tenants: the fabric's entries, from what is trusted alone: who is in which
//! compartment, by the spec and its numbers.

use crate::breach::{Breach, Class};
use crate::crossings::{agreed, users};
use crate::intend::{Agreement, Attachment, Host, Segment};
use crate::showing::{first, somebody};
use crate::templates::{STATION, forged, link, packet};
use crate::uplinks::{self, demands};
use crate::way::{Place, Way};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use guard::guard;
use image::FabricImage;
use image::fabric::{
    CHANNEL_COMPARTMENT, CHANNEL_UPLINK, EVERY_GROUP, FORWARD_GROUP, FORWARD_SEGMENT,
    FORWARD_UNICAST, Forward, GroupMember, Template,
};
use std::collections::{BTreeMap, BTreeSet};
use wire::{MacAddress, Tuple};

/// That no tag is two things'.
pub(crate) fn tags(host: &Host<'_>, breaches: &mut Vec<Breach>) {
    let attachments = host.attachments.iter().map(|a| a.tag);
    let segments = host.segments.iter().map(|s| s.tag);
    let all = attachments
        .chain(segments)
        .chain(host.agreements.iter().flat_map(Agreement::tags));
    let mut seen = BTreeSet::new();
    for tag in all {
        if (tag == 0 || !seen.insert(tag)) && guard!("proof-tag-shared") {
            let what = format!("the tag {tag} stands for two things");
            breaches.push(Breach::new(Class::WrongTag, 0, what));
        }
    }
    let attachments = host.attachments.iter().filter(|a| a.vlan != 0);
    let attachments = attachments.map(|a| (a.uplink_slot, a.vlan));
    let segments = host.segments.iter().map(|s| (s.uplink_slot, s.vlan));
    let mut seen = BTreeSet::new();
    for (uplink, vlan) in attachments.chain(segments) {
        if !seen.insert((uplink, vlan)) && guard!("proof-vlan-shared") {
            let what = format!("VLAN {vlan} of the uplink in slot {uplink} stands for two things");
            breaches.push(Breach::new(Class::FabricEntry, 0, what));
        }
    }
}

/// The fabric's image, entry by entry.
pub(crate) fn fabric(host: &Host<'_>, image: &FabricImage<'_>, breaches: &mut Vec<Breach>) {
    let mut kinds: BTreeMap<u32, u32> = BTreeMap::new();
    kinds.extend(
        host.compartments
            .keys()
            .map(|slot| (*slot, CHANNEL_COMPARTMENT)),
    );
    for uplink in &host.spec.uplinks {
        let numbers = host.numbers.uplinks.get(uplink.name.as_str());
        kinds.extend(numbers.map(|u| (u.slot, CHANNEL_UPLINK)));
    }
    let there: BTreeMap<u32, u32> = (image.channels().iter())
        .map(|c| (c.slot, c.kind))
        .collect();
    if (there != kinds || image.channels().len() != kinds.len()) && guard!("proof-channels") {
        let what = format!("its channels (slot, kind) are {there:?}, and the spec's are {kinds:?}");
        breaches.push(Breach::new(Class::FabricEntry, 0, what));
    }
    let fabric = Fabric { host, kinds };
    for channel in image.channels() {
        for template in image.templates(channel) {
            let own = fabric.attachment(channel.slot, template.tag, template.egress);
            let holds = own.is_some_and(|own| uplinks::holds(own, template));
            if !holds && guard!("proof-templates") {
                let what = format!(
                    "toward slot {} with tag {} it lets slot {} say what is not its own to say",
                    template.egress, template.tag, channel.slot
                );
                let breach = Breach::new(Class::FabricEntry, 0, what);
                breaches.push(fabric.lets_out(image, channel.slot, template, breach));
            }
        }
    }
    let mut ways: BTreeSet<(u32, u32, u16)> = BTreeSet::new();
    for entry in image.forwards().iter().filter(|e| e.kind != 0) {
        let one = [GroupMember {
            slot: entry.target,
            out_tag: entry.out_tag,
            reserved: 0,
        }];
        let members = match entry.kind {
            FORWARD_GROUP => image.group(entry.target),
            _ => &one[..],
        };
        for member in members {
            if let Err((class, why)) = fabric.holds(entry, member) {
                breaches.push(fabric.wrong(class, image, entry, member, why));
            }
        }
        ways.insert((entry.ingress, entry.target, entry.tag));
    }
    for agreement in &host.agreements {
        for ((from, tag), (to, _)) in agreement.ways() {
            if !ways.contains(&(from, to, tag)) {
                let what = format!(
                    "the agreement {} has no way from slot {from} to slot {to} by its tag {tag}",
                    agreement.id
                );
                let breach = Breach::new(Class::FabricEntry, 0, what).by(agreed(host, agreement));
                breaches.push(fabric.has_no_way(image, agreement, (from, tag), breach));
            }
        }
    }
}

struct Fabric<'h> {
    host: &'h Host<'h>,
    kinds: BTreeMap<u32, u32>,
}

type Wrong = (Class, &'static str);

impl Fabric<'_> {
    fn attachment(&self, slot: u32, tag: u16, uplink: u32) -> Option<&Attachment> {
        let mut all = self.host.attachments.iter();
        all.find(|a| a.slot == slot && a.tag == tag && a.uplink_slot == uplink)
    }

    fn segment(&self, slot: u32, tag: u16, uplink: u32) -> Option<&Segment> {
        let mut all = self.host.segments.iter();
        all.find(|s| s.slot == slot && s.tag == tag && s.uplink_slot == uplink)
    }

    /// A segment's entry. Who may speak is said by what comes in: the fabric lets out only
    /// what is from a MAC for which it has an entry back to that very place.
    fn of_segment(
        own: &Segment,
        outward: bool,
        entry: &Forward,
        member: &GroupMember,
    ) -> Result<(), Wrong> {
        let wrong = |why| Err((Class::FabricEntry, why));
        let (kind, vlan) = match outward {
            true => (FORWARD_SEGMENT, member.out_tag),
            false => (FORWARD_UNICAST, entry.tag),
        };
        if entry.kind != kind && guard!("proof-segment-kind") {
            return wrong("it is no entry of a segment");
        }
        if vlan != own.vlan && guard!("proof-segment-vlan") {
            return wrong("it is of a VLAN that is not its own");
        }
        let known = match entry.mac {
            EVERY_GROUP => true,
            [0, 0, 0, 0, 0, 0] => outward,
            mac => !outward && own.stations.contains(&mac),
        };
        if !known && guard!("proof-segment-mac") {
            return wrong("the MAC is another's");
        }
        Ok(())
    }

    fn holds(&self, entry: &Forward, member: &GroupMember) -> Result<(), Wrong> {
        let kind = |slot: u32| self.kinds.get(&slot).copied();
        let station = entry.mac.first().is_some_and(|first| first & 1 == 0);
        match (kind(entry.ingress), kind(member.slot)) {
            (Some(CHANNEL_COMPARTMENT), Some(CHANNEL_UPLINK)) => {
                if let Some(own) = self.segment(entry.ingress, entry.tag, member.slot) {
                    return Self::of_segment(own, true, entry, member);
                }
                let own = self.attachment(entry.ingress, entry.tag, member.slot);
                if own.is_none() && guard!("proof-uplink-tag") {
                    return Err((Class::FabricEntry, "the tag is no attachment of it there"));
                }
                let vlan = own.map_or(0, |own| own.vlan);
                if entry.kind != FORWARD_UNICAST
                    || member.out_tag != vlan && guard!("proof-vlan-out")
                {
                    return Err((
                        Class::FabricEntry,
                        "it goes into a VLAN that is not its own",
                    ));
                }
                let asks = station || own.is_none_or(|own| uplinks::may_ask(own, &entry.mac));
                if !asks && guard!("proof-uplink-groups") {
                    return Err((Class::FabricEntry, "it needs no such group"));
                }
                Ok(())
            }
            (Some(CHANNEL_UPLINK), Some(CHANNEL_COMPARTMENT)) => {
                if let Some(own) = self.segment(member.slot, member.out_tag, entry.ingress) {
                    return Self::of_segment(own, false, entry, member);
                }
                let Some(own) = self.attachment(member.slot, member.out_tag, entry.ingress) else {
                    return Err((Class::FabricEntry, "the tag is no attachment of it there"));
                };
                let own_mac = match entry.kind {
                    FORWARD_UNICAST => station && entry.mac == own.mac,
                    FORWARD_GROUP => uplinks::groups(own).contains(&entry.mac),
                    _ => false,
                };
                if !own_mac && guard!("proof-uplink-mac") {
                    return Err((Class::FabricEntry, "the MAC is another's"));
                }
                if entry.tag != own.vlan && guard!("proof-vlan-in") {
                    return Err((Class::FabricEntry, "it is of a VLAN that is not its own"));
                }
                Ok(())
            }
            (Some(CHANNEL_COMPARTMENT), Some(CHANNEL_COMPARTMENT)) => {
                let ways = self.host.agreements.iter().flat_map(Agreement::ways);
                let joins = |((from, _), (to, _)): &((u32, u16), (u32, u16))| {
                    (*from, *to) == (entry.ingress, member.slot)
                };
                let mut own = ways.filter(joins).peekable();
                if own.peek().is_none() && guard!("proof-joins") {
                    return Err((Class::FabricEntry, "no agreement joins the two"));
                }
                let way = own.find(|((_, tag), _)| *tag == entry.tag);
                if way.is_none() && guard!("proof-agreement-tag") {
                    return Err((Class::WrongTag, "the tag is no live agreement's of the two"));
                }
                let out = way.map_or(entry.tag, |(_, (_, tag))| tag);
                if member.out_tag != out && guard!("proof-tag-kept") {
                    return Err((
                        Class::WrongTag,
                        "it gets another tag on the way than agreed",
                    ));
                }
                if entry.kind != FORWARD_UNICAST || entry.mac != [0; 6] {
                    return Err((
                        Class::FabricEntry,
                        "an agreement is for every station alone",
                    ));
                }
                Ok(())
            }
            _ => Err((Class::FabricEntry, "these two are never joined")),
        }
    }

    fn wrong(
        &self,
        class: Class,
        image: &FabricImage<'_>,
        entry: &Forward,
        member: &GroupMember,
        why: &str,
    ) -> Breach {
        let Forward {
            ingress, tag, mac, ..
        } = entry;
        let GroupMember { slot, out_tag, .. } = member;
        let mac = MacAddress(*mac);
        let what = format!(
            "what comes from slot {ingress} with tag {tag} for station {mac} goes to slot {slot} with tag {out_tag}: {why}"
        );
        let breach = Breach::new(class, 0, what);
        match self.sent(image, entry, member) {
            Ok((Some(packet), way)) => breach.shown(packet, way),
            Ok((None, way)) => breach.goes(way),
            Err(why) => breach.nobody(why),
        }
    }

    /// What goes by an entry: whatever a switch that was taken over likes to say, or anybody
    /// on the uplink.
    fn sent(
        &self,
        image: &FabricImage<'_>,
        entry: &Forward,
        member: &GroupMember,
    ) -> Result<(Option<Tuple>, Way), &'static str> {
        let kind = |slot: u32| image.channel(slot).map(|channel| channel.kind);
        let place = |slot: u32, tag: u16| match kind(slot) {
            Some(CHANNEL_UPLINK) => Place::Uplink { slot },
            _ => Place::Channel { slot, tag },
        };
        let channel = image.channel(entry.ingress);
        let channel = channel.ok_or("no channel is in the slot that it would come from")?;
        if channel.kind == CHANNEL_UPLINK && entry.tag != 0 {
            return Err("it takes a frame of that VLAN, which is not shown");
        }
        if entry.kind == FORWARD_SEGMENT {
            return Err("who may speak by it is said by other entries, and is not shown");
        }
        if entry.kind == FORWARD_GROUP && member.slot == entry.ingress {
            return Err("nothing goes back to its sender by a group");
        }
        let mut way = Way::new(
            place(entry.ingress, entry.tag),
            place(member.slot, member.out_tag),
        );
        let to_uplink = kind(member.slot) == Some(CHANNEL_UPLINK);
        if channel.kind == CHANNEL_COMPARTMENT && to_uplink {
            let mut own = image.templates(channel).iter();
            let to = station(entry);
            let of = |t: &&Template| {
                let mut bits = t.mask.iter().zip(&t.value).zip(to);
                (t.egress, t.tag) == (member.slot, entry.tag)
                    && bits.all(|((mask, value), to)| to & mask == *value)
            };
            let mut head = own.find(of).ok_or("no template lets it out there")?.value;
            let station = head.iter_mut().zip(to);
            station.for_each(|(to, from)| *to = from);
            way.frame = head.to_vec();
            return Ok((packet(&head), way));
        }
        if entry.mac != [0; 6] {
            way.frame = link(entry.mac, STATION, [0x88, 0xb5]).to_vec();
            return Ok((None, way));
        }
        let by = |v4: bool| {
            let of = |slot: u32| {
                let mut all = self.host.compartments.get(&slot)?.iter();
                all.find_map(|at| somebody(self.host, *at, v4))
            };
            let outside: IpAddr = if v4 {
                Ipv4Addr::new(198, 51, 100, 1).into()
            } else {
                Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()
            };
            let beyond = |slot: u32| match kind(slot) {
                Some(CHANNEL_UPLINK) => Some(spec::mapped(outside)),
                _ => of(slot),
            };
            Some(first(beyond(entry.ingress)?, beyond(member.slot)?, 6, 80))
        };
        Ok((by(true).or_else(|| by(false)), way))
    }

    /// What a template lets out that the attachment may not say.
    fn lets_out(
        &self,
        image: &FabricImage<'_>,
        slot: u32,
        template: &Template,
        breach: Breach,
    ) -> Breach {
        let Template { egress, tag, .. } = *template;
        let head = match self.attachment(slot, tag, egress) {
            Some(own) => forged(own, template, &demands(own)),
            None => Some(template.value),
        };
        let Some(mut head) = head else {
            return breach;
        };
        let mut entries = image.forwards().iter();
        let leads = |e: &&Forward| {
            let key = (e.ingress, e.tag, e.target);
            let to = station(e);
            let mut bits = template.mask.iter().zip(&template.value).zip(to);
            let group = |mac: &[u8]| mac.first().is_some_and(|first| first & 1 == 1);
            e.kind == FORWARD_UNICAST
                && key == (slot, tag, egress)
                && group(&to) == group(&head)
                && bits.all(|((mask, value), to)| to & mask == *value)
        };
        let Some(entry) = entries.find(leads) else {
            return breach.nobody("no entry of the fabric leads there");
        };
        head.iter_mut()
            .zip(station(entry))
            .for_each(|(to, from)| *to = from);
        let way = Way {
            frame: head.to_vec(),
            ..Way::new(Place::Channel { slot, tag }, Place::Uplink { slot: egress })
        };
        match packet(&head) {
            Some(packet) => breach.shown(packet, way),
            None => breach.goes(way),
        }
    }

    /// What becomes of a packet across an agreement that has no way of its own.
    fn has_no_way(
        &self,
        image: &FabricImage<'_>,
        agreement: &Agreement,
        (slot, tag): (u32, u16),
        breach: Breach,
    ) -> Breach {
        let entry = image.default(slot, tag);
        let to = match entry.filter(|entry| entry.kind == FORWARD_UNICAST) {
            None => Place::Dropped { slot: 0 },
            Some(entry) => Place::Channel {
                slot: entry.target,
                tag: entry.out_tag,
            },
        };
        let way = Way::new(Place::Channel { slot, tag }, to);
        let offers = slot == agreement.offerer_slot && tag == agreement.offerer_tag;
        let packet = users(self.host, agreement).map(|packet| match offers {
            false => packet,
            true => packet.reversed(),
        });
        match packet {
            Some(packet) => breach.shown(packet, way),
            None => breach.goes(way),
        }
    }
}

/// The station that a frame is for that goes by an entry.
const fn station(entry: &Forward) -> [u8; 6] {
    match entry.mac {
        [0, 0, 0, 0, 0, 0] => STATION,
        mac => mac,
    }
}
