//! What shows a breach: packets that somebody can send, and their way through an image, by
//! its own look-ups. What is proved does not depend on any of it.

use crate::breach::{Breach, plain};
use crate::cube::Fuel;
use crate::inside::TABLE_FUEL;
use crate::intend::{Agreement, Host, given};
use crate::likely::usually;
use crate::meaning::{Cubes, passes};
use crate::ranges::Range;
use crate::way::{Becomes, Place, Way};
use image::compartment::{
    CROSSING_OFFERER, Crossing, NONE, NextHop, ROUTE_OUTSIDE, ROUTE_SERVICE, ROUTE_SUBNET,
    ROUTE_VIA, STATE_OPEN,
};
use image::fabric::FORWARD_GROUP;
use image::{CompartmentImage, FabricImage};
use wire::address::{is_link_local, mapped, unmapped};
use wire::{Tuple, tcp};

/// Of so many endpoints each pair is looked at.
const FEW: usize = 16;

/// A packet and its way, or why nobody can send one.
pub(crate) type Shown = Result<(Tuple, Way), String>;

/// The first packet of a connection that anybody may begin.
pub(crate) fn first(source: [u8; 16], destination: [u8; 16], protocol: u8, port: u16) -> Tuple {
    Tuple {
        source,
        destination,
        source_port: 1024,
        destination_port: port,
        protocol,
    }
}

/// Who is plugged into a port of a switch by the spec, `TENANT/ENDPOINT`.
fn plugged(host: &Host<'_>, slot: u32, port: u32) -> Option<String> {
    let tenants = host.compartments.get(&slot)?.iter();
    let names = tenants.filter_map(|at| Some(host.spec.tenants.get(*at)?.name.as_str()));
    names.into_iter().find_map(|tenant| {
        let of = host.numbers.tenants.get(tenant)?;
        let (name, _) = of.endpoints.iter().find(|(_, own)| own.slot == port)?;
        Some(format!("{tenant}/{name}"))
    })
}

/// An address of one family of somebody of a tenant, by its place in the spec.
pub(crate) fn somebody(host: &Host<'_>, tenant: usize, v4: bool) -> Option<[u8; 16]> {
    let tenant = host.spec.tenants.get(tenant)?;
    let numbers = host.numbers.tenants.get(tenant.name.as_str())?;
    tenant.endpoints.iter().find_map(|endpoint| {
        let own = numbers.endpoints.get(endpoint.name.as_str())?;
        let mut all = given(endpoint, &own.chosen).into_iter();
        all.find(|address| address.is_ipv4() == v4)
            .map(spec::mapped)
    })
}

/// Whether a packet can be sent to an address: it is one host's, here or outside.
pub(crate) fn is_hosts(address: &[u8; 16]) -> bool {
    match unmapped(address) {
        Some([first, second, ..]) => {
            (1..224).contains(&first) && first != 127 && (first, second) != (169, 254)
        }
        None => matches!(address[0] >> 4, 2 | 3) || address[0] & 0xfe == 0xfc,
    }
}

/// An image and where it is to be.
#[derive(Clone, Copy)]
pub(crate) struct Seat<'s> {
    pub host: &'s Host<'s>,
    pub slot: u32,
    pub image: &'s CompartmentImage<'s>,
}

impl Seat<'_> {
    /// The port of an endpoint (an index).
    pub fn port(&self, endpoint: u32) -> Place {
        let port = self.image.endpoints().get(endpoint as usize);
        let port = port.map_or(NONE, |e| e.slot);
        Place::Port {
            slot: self.slot,
            port,
            who: plugged(self.host, self.slot, port),
        }
    }

    /// The port of the endpoint with this host-wide id.
    pub fn port_of(&self, id: u32) -> Place {
        let all = self.image.endpoints();
        match (0..).zip(all).find(|(_, e)| e.id == id) {
            Some((at, _)) => self.port(at),
            None => self.dropped(),
        }
    }

    fn dropped(&self) -> Place {
        Place::Dropped { slot: self.slot }
    }

    fn channel(&self, tag: Option<u16>) -> Place {
        tag.map_or(self.dropped(), |tag| Place::Channel {
            slot: self.slot,
            tag,
        })
    }

    /// Where a tenant's first packet of something goes by its route.
    pub fn leads(&self, tenant: u32, packet: &Tuple) -> Place {
        let to = &packet.destination;
        let route = self.image.route(tenant, *to);
        let service = route.filter(|route| route.kind == ROUTE_SERVICE);
        let service = service.and_then(|r| self.image.crossings().get(r.via as usize));
        let begins = service.is_none_or(|crossing| {
            let any = crossing.is_routed();
            let serves = |c| {
                self.image
                    .serves(c, packet.protocol, packet.destination_port)
            };
            crossing.begins() && (any || serves(crossing))
        });
        if begins {
            self.way(tenant, to)
        } else {
            self.dropped()
        }
    }

    /// Where a tenant's packets to an address go by their route, and where what has it as its
    /// source comes from.
    pub fn way(&self, tenant: u32, to: &[u8; 16]) -> Place {
        let Some(route) = self.image.route(tenant, *to) else {
            return self.dropped();
        };
        match route.kind {
            ROUTE_SUBNET => match self.image.endpoint_by_address(route.subnet, *to) {
                Some(at) => self.port(at),
                None => self.dropped(),
            },
            ROUTE_VIA => self.port(route.via),
            ROUTE_OUTSIDE => {
                let hop = self.image.next_hops().get(route.via as usize);
                let way = hop.and_then(|h| self.image.attachments().get(h.attachment as usize));
                self.channel(way.map(|way| way.tag))
            }
            ROUTE_SERVICE => {
                let crossing = self.image.crossings().get(route.via as usize);
                self.channel(crossing.map(|crossing| crossing.tag))
            }
            _ => self.dropped(),
        }
    }

    /// Where an address is for an endpoint (an index) of a tenant: on its own link, or as its
    /// route says.
    pub fn near(&self, endpoint: u32, tenant: u32, address: &[u8; 16]) -> Place {
        let subnet = self.image.endpoints().get(endpoint as usize);
        let subnet = subnet.map_or(NONE, |e| e.subnet);
        let route = self.image.route(tenant, *address);
        let own = route.is_some_and(|r| r.kind == ROUTE_SUBNET && r.subnet == subnet);
        if !is_link_local(address) && !own {
            return self.way(tenant, address);
        }
        let segment = self.image.subnets().get(subnet as usize);
        let gateway = |s: &&image::compartment::Subnet| {
            *address == mapped(s.gateway4) || *address == s.gateway6
        };
        let segment = segment.filter(|subnet| !gateway(subnet));
        let segment = segment.map_or(0, |subnet| subnet.segment);
        match self.image.endpoint_by_address(subnet, *address) {
            Some(at) => self.port(at),
            // In its VLAN, whoever has it there.
            None => self.channel(Some(segment).filter(|tag| *tag != 0)),
        }
    }

    /// The same for the endpoint with this host-wide id.
    pub fn near_to(&self, id: u32, tenant: u32, address: &[u8; 16]) -> Place {
        let mut all = (0..).zip(self.image.endpoints());
        match all.find(|(_, e)| e.id == id) {
            Some((at, _)) => self.near(at, tenant, address),
            None => self.way(tenant, address),
        }
    }

    /// An endpoint of a tenant (indices) with an address of one family to speak from.
    pub fn speaker(&self, tenant: u32, v4: bool, but: Option<u32>) -> Option<(u32, [u8; 16])> {
        let speaks = |at: u32| {
            let endpoint = self.image.endpoints().get(at as usize);
            let subnet = endpoint.and_then(|e| self.image.subnets().get(e.subnet as usize));
            let own = subnet.is_some_and(|subnet| subnet.tenant == tenant);
            own && Some(at) != but && endpoint.is_some_and(|e| e.state == STATE_OPEN)
        };
        let all = self.image.addresses().iter();
        let all = all.filter(|a| unmapped(&a.address).is_some() == v4);
        let all = all.filter(|a| !is_link_local(&a.address) && speaks(a.endpoint));
        all.map(|a| (a.endpoint, a.address)).min()
    }

    /// The addresses of an endpoint (an index) but for link-local ones.
    fn given(&self, endpoint: u32) -> impl Iterator<Item = [u8; 16]> {
        let all = self.image.addresses().iter();
        all.filter(move |a| a.endpoint == endpoint && !is_link_local(&a.address))
            .map(|a| a.address)
    }

    /// A user's packet of a service, as it goes by this side of an agreement; `agreement`:
    /// what it is to be, if it is live.
    pub fn across(
        &self,
        crossing: &Crossing,
        agreement: Option<&Agreement>,
        v4: bool,
        (protocol, port): (u8, u16),
    ) -> Shown {
        let own = match v4 {
            true => mapped(crossing.address4),
            false => crossing.address6,
        };
        let agreed = agreement.and_then(|a| a.families.get(usize::from(!v4))?.as_ref());
        let stands = agreed.map_or(own, |family| spec::mapped(family.stands));
        let serves = self.image.serves(crossing, protocol, port);
        let here = Place::Channel {
            slot: self.slot,
            tag: crossing.tag,
        };
        if crossing.role != CROSSING_OFFERER {
            let route = self.image.route(crossing.tenant, stands);
            let route = route.filter(|route| route.kind == ROUTE_SERVICE);
            let by = route.and_then(|route| self.image.crossings().get(route.via as usize));
            if by.map(|by| by.tag) != Some(crossing.tag) {
                return Err("no route leads to that side".into());
            }
            let user = self.speaker(crossing.tenant, v4, None);
            let (user, source) = user.ok_or("nobody there has an address of its family")?;
            let to = if serves { here } else { self.dropped() };
            let packet = first(source, stands, protocol, port);
            return Ok((packet, Way::new(self.port(user), to)));
        }
        let (pool, len) = match v4 {
            true => (mapped(crossing.pool4), u32::from(crossing.pool4_len) + 96),
            false => (crossing.pool6, u32::from(crossing.pool6_len)),
        };
        let host = u128::MAX.checked_shr(len).unwrap_or(0);
        let network = u128::from_be_bytes(pool) & !host;
        let user = agreement.and_then(|a| somebody(self.host, a.acceptor, v4));
        let source = user.unwrap_or_else(|| network.to_be_bytes());
        let none = own == mapped([0; 4]) || own == [0; 16] || len == if v4 { 96 } else { 0 };
        let packet = first(source, stands, protocol, port);
        if !serves || none {
            return Ok((packet, Way::new(here, self.dropped())));
        }
        let becomes = Becomes {
            source: (
                plain(&network.to_be_bytes()),
                plain(&(network | host).to_be_bytes()),
            ),
            source_port: (0, u16::MAX),
            destination: plain(&own),
        };
        let way = Way {
            becomes: Some(becomes),
            ..Way::new(here, self.port(crossing.endpoint))
        };
        Ok((packet, way))
    }

    /// The way of a packet of the other tenant's by a side of an agreement of prefixes, or of
    /// one to it where only answers are let in; else why nobody can send it.
    pub fn across_prefixes(
        &self,
        crossing: &Crossing,
        packet: &Tuple,
    ) -> Result<(Tuple, Way), &'static str> {
        let here = Place::Channel {
            slot: self.slot,
            tag: crossing.tag,
        };
        let image = self.image;
        let takes = image.is_routed(crossing, true, &packet.source)
            && image.is_routed(crossing, false, &packet.destination);
        let own = match self.way(crossing.tenant, &packet.destination) {
            port @ Place::Port { .. } => port,
            _ => return Err("it is let in, and nobody has its destination"),
        };
        if crossing.is_begun_with() {
            let serves = crossing.ports_count == 0
                || image.serves(crossing, packet.protocol, packet.destination_port);
            let to = if takes && serves { own } else { self.dropped() };
            return Ok((*packet, Way::new(here, to)));
        }
        let packet = Tuple {
            source: packet.destination,
            destination: packet.source,
            ..*packet
        };
        if self.way(crossing.tenant, &packet.destination) != here {
            return Err("only answers are let in, and no route leads to who would answer");
        }
        let to = if takes { here } else { self.dropped() };
        Ok((packet, Way::new(own, to)))
    }

    /// Somebody's address of a tenant (an index) that is in one of these ranges.
    pub fn inhabitant(&self, tenant: u32, ranges: &[Range], v4: bool) -> Option<[u8; 16]> {
        let all = self.image.addresses().iter();
        let own = all.filter(|a| {
            let endpoint = self.image.endpoints().get(a.endpoint as usize);
            let subnet = endpoint.and_then(|e| self.image.subnets().get(e.subnet as usize));
            subnet.is_some_and(|subnet| subnet.tenant == tenant)
        });
        own.map(|a| a.address)
            .filter(|a| unmapped(a).is_some() == v4)
            .filter(|a| ranges.iter().any(|(first, last)| first <= a && a <= last))
            .min()
    }

    /// The first packet that shows what a side of an agreement does, of either family.
    pub fn across_any(&self, crossing: &Crossing, agreement: Option<&Agreement>) -> Shown {
        let v4 = crossing.address4 != [0; 4];
        let ports = self.image.service_ports_of(crossing).first();
        let ports = ports.ok_or("it serves no port")?;
        self.across(crossing, agreement, v4, (ports.protocol, ports.first))
    }

    /// A packet that goes by a route between two addresses, as that leads; else why nobody
    /// can send one.
    pub fn routed(&self, tenant: u32, name: &str, from: u128, to: u128) -> Shown {
        let gateways = self.image.subnets().iter().filter(|s| s.tenant == tenant);
        let gateways = gateways.flat_map(|s| [mapped(s.gateway4), s.gateway6]);
        let own = self.image.attachments().iter();
        let own = own.flat_map(|a| [mapped(a.address4), a.address6]);
        let taken: Vec<[u8; 16]> = gateways.chain(own).collect();
        let sent = |address: &[u8; 16]| is_hosts(address) && !taken.contains(address);
        // Where it does not begin with hosts, whose are the lowest that there are?
        let hosts = [mapped([1, 0, 0, 1]), {
            let mut global = [0; 16];
            (global[0], global[15]) = (0x20, 1);
            global
        }];
        let lowest = hosts.map(u128::from_be_bytes).into_iter();
        let tried = core::iter::once(from).chain(lowest.filter(|a| (from..=to).contains(a)));
        let near = tried.flat_map(|a| (0..8).filter_map(move |n| a.checked_add(n)));
        let mut near = near.filter(|a| *a <= to).map(u128::to_be_bytes);
        let to = near.find(sent).ok_or("no host has such an address")?;
        let v4 = unmapped(&to).is_some();
        let route = self.image.route(tenant, to);
        let via = route.filter(|r| r.kind == ROUTE_VIA).map(|r| r.via);
        let (user, source) = self
            .speaker(tenant, v4, via)
            .ok_or_else(|| format!("none of {name} has an address of its family"))?;
        let hop = route.filter(|r| r.kind == ROUTE_OUTSIDE);
        let hop = hop.and_then(|r| self.image.next_hops().get(r.via as usize));
        let packet = first(source, to, tcp::PROTOCOL, 80);
        let way = Way {
            back: match (via, hop) {
                (Some(_), _) => Some(self.slot),
                (None, Some(hop)) => self.own_hop(hop),
                _ => None,
            },
            ..Way::new(self.port(user), self.leads(tenant, &packet))
        };
        Ok((packet, way))
    }

    /// A packet outside by an attachment (an index) of somebody whose ports there are not
    /// those that `are` its own, by its id.
    pub fn behind(
        &self,
        attachment: u32,
        are: impl Fn(u32, &core::ops::RangeInclusive<u16>) -> bool,
    ) -> Shown {
        let way = self.image.attachments().get(attachment as usize);
        let way = way.ok_or("there is no such attachment")?;
        let to = mapped([198, 51, 100, 1]);
        let here = Place::Channel {
            slot: self.slot,
            tag: way.tag,
        };
        if self.way(way.tenant, &to) != here {
            return Err("no packet goes outside by it".into());
        }
        for (at, endpoint) in (0..).zip(self.image.endpoints()) {
            let subnet = self.image.subnets().get(endpoint.subnet as usize);
            let own = subnet.is_some_and(|subnet| subnet.tenant == way.tenant);
            let open = own && endpoint.state == STATE_OPEN;
            let Some(ports) = self.image.nat_ports(attachment, at).filter(|_| open) else {
                continue;
            };
            if are(endpoint.id, &ports) {
                continue;
            }
            let Some(source) = self.given(at).find(|a| unmapped(a).is_some()) else {
                continue;
            };
            let becomes = Becomes {
                source: (way.address4.into(), way.address4.into()),
                source_port: (*ports.start(), *ports.end()),
                destination: plain(&to),
            };
            let way = Way {
                becomes: Some(becomes),
                ..Way::new(self.port(at), here)
            };
            return Ok((first(source, to, tcp::PROTOCOL, 80), way));
        }
        Err("nobody who has ports there has an IPv4 address".into())
    }

    /// The slot of the switch of this host that a next hop outside is.
    fn own_hop(&self, hop: &NextHop) -> Option<u32> {
        let mut all = self.host.attachments.iter();
        all.find(|a| a.addresses.contains(&hop.address))
            .map(|a| a.slot)
    }

    /// A packet between two who are plugged in here, sent as somebody of the image and
    /// delivered as to another of it; `None` = not found among a few, of more.
    pub fn as_others(&self) -> Option<Shown> {
        let image = self.image;
        let endpoints = (0u32..).zip(image.endpoints());
        let plugged_in = endpoints.filter(|(_, e)| plugged(self.host, self.slot, e.slot).is_some());
        let mut plugged_in = plugged_in.map(|(at, _)| at);
        let here: Vec<u32> = plugged_in.by_ref().take(FEW).collect();
        let table = |number: u32| match number {
            NONE => None,
            _ => {
                let mut table = image::rules::RuleTable {
                    rules: Vec::new(),
                    default: image::rules::Action::Deny,
                };
                image.rule_table_into(number, &mut table);
                Some(Cubes::of(&table))
            }
        };
        for from in &here {
            let Some(sender) = image.endpoints().get(*from as usize) else {
                continue;
            };
            let egress = table(sender.egress);
            for to in here.iter().filter(|to| *to != from) {
                let Some(receiver) = image.endpoints().get(*to as usize) else {
                    continue;
                };
                let tenant = image.subnets().get(sender.subnet as usize);
                let tenant = tenant.map_or(NONE, |s| s.tenant);
                let ingress = table(receiver.ingress);
                let lists: Vec<&Cubes> = egress.iter().chain(&ingress).collect();
                for source in self.given(*from) {
                    for target in self.given(*to) {
                        let goes = self.way(tenant, &target) == self.port(*to);
                        let space = usually(&source, &target);
                        let fuel = &mut Fuel(TABLE_FUEL);
                        let found = passes(&lists, &space, fuel).ok().flatten();
                        if let (Some(packet), true) = (found, goes) {
                            let way = Way::new(self.port(*from), self.port(*to));
                            return Some(Ok((packet, way)));
                        }
                    }
                }
            }
        }
        let why = "none of who is plugged in here reaches another by it";
        plugged_in.next().is_none().then(|| Err(why.into()))
    }
}

/// Says of what would come to a switch by the fabric whether that brings it there at all.
pub(crate) fn brought(image: &FabricImage<'_>, breaches: &mut [Breach]) {
    for breach in breaches.iter_mut().filter(|breach| breach.slot != 0) {
        let Some(Way {
            from: Place::Channel { slot, tag },
            ..
        }) = breach.way
        else {
            continue;
        };
        let leads = image.forwards().iter().any(|entry| match entry.kind {
            0 => false,
            FORWARD_GROUP => {
                let mut members = image.group(entry.target).iter();
                members.any(|m| (m.slot, m.out_tag) == (slot, tag))
            }
            _ => (entry.target, entry.out_tag) == (slot, tag),
        });
        if !leads {
            let why = "no entry of the fabric leads to that switch with that tag";
            *breach = breach.clone().nobody(why);
        }
    }
}
