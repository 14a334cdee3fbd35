//! Back from an image to plain tables, and to text for people.

mod rules;

use crate::build::{CompartmentTables, FabricTables};
use crate::compartment::*;
use crate::fabric::*;
use crate::hash::Keyed;
use crate::map::{CompartmentImage, FabricImage};
use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

impl CompartmentImage<'_> {
    /// The tables it was built from (lists and addresses in the image's order).
    pub fn decode(&self) -> CompartmentTables {
        let own_prefixes = (0..).zip(self.endpoints()).flat_map(|(index, endpoint)| {
            self.own_prefixes_of(endpoint)
                .iter()
                .map(move |own| (index, *own))
        });
        let ranges = (0..self.tenants().len() as u32).flat_map(|tenant| {
            self.ranges_of(tenant)
                .iter()
                .map(move |range| (tenant, *range))
        });
        let members = (0..self.subnets().len() as u32).flat_map(|subnet| {
            self.members_of(subnet)
                .iter()
                .map(move |member| (subnet, member.endpoint))
        });
        let service_ports = (0..).zip(self.crossings()).flat_map(|(index, crossing)| {
            self.service_ports_of(crossing)
                .iter()
                .map(move |ports| (index, *ports))
        });
        let routed_prefixes = (0..).zip(self.crossings()).flat_map(|(index, crossing)| {
            self.routed_prefixes_of(crossing)
                .iter()
                .map(move |prefix| (index, *prefix))
        });
        let nat_blocks = (0..)
            .zip(self.attachments())
            .flat_map(|(index, attachment)| {
                self.nat_blocks_of(attachment)
                    .iter()
                    .map(move |block| (index, block.endpoint))
            });
        let addresses = self.addresses().iter().filter(|slot| !slot.is_empty());
        CompartmentTables {
            tenants: self.tenants().to_vec(),
            subnets: self.subnets().to_vec(),
            endpoints: self.endpoints().to_vec(),
            own_prefixes: own_prefixes.collect(),
            addresses: addresses
                .map(|slot| (slot.endpoint, slot.address))
                .collect(),
            ranges: ranges.collect(),
            routes: self.routes().to_vec(),
            attachments: self.attachments().to_vec(),
            next_hops: self.next_hops().to_vec(),
            members: members.collect(),
            rule_tables: (0..self.tables().len() as u32)
                .map(|table| self.rule_table(table))
                .collect(),
            crossings: self.crossings().to_vec(),
            service_ports: service_ports.collect(),
            routed_prefixes: routed_prefixes.collect(),
            nat_blocks: nat_blocks.collect(),
            classes: self.classes().to_vec(),
        }
    }
}

impl FabricImage<'_> {
    /// The tables it was built from (entries in the image's order).
    pub fn decode(&self) -> FabricTables {
        let templates = (0..).zip(self.channels()).flat_map(|(index, channel)| {
            self.templates(channel)
                .iter()
                .map(move |template| (index, *template))
        });
        FabricTables {
            channels: self.channels().to_vec(),
            forwards: self
                .forwards()
                .iter()
                .filter(|f| !f.is_empty())
                .copied()
                .collect(),
            groups: (0..self.groups().len() as u32)
                .map(|g| self.group(g).to_vec())
                .collect(),
            templates: templates.collect(),
        }
    }
}

impl fmt::Display for CompartmentImage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "image {}", self.digest())?;
        for (index, tenant) in (0..).zip(self.tenants()) {
            writeln!(f, "tenant {index}: id {}", tenant.id)?;
            rates(f, &tenant.from, &tenant.to)?;
            for range in self.ranges_of(index) {
                let (start, end) = (Address(range.start), Address(range.end));
                write!(f, "  {start} to {end}: ")?;
                match self.routes().get(range.route as usize) {
                    Some(route) => writeln!(f, "{}", Way(route))?,
                    None => writeln!(f, "-")?,
                }
            }
        }
        for (index, subnet) in (0..).zip(self.subnets()) {
            write!(
                f,
                "subnet {index}: id {} tenant {}",
                subnet.id, subnet.tenant
            )?;
            if subnet.prefix4_len != 0 {
                let gateway = IpAddr::from(subnet.gateway4);
                let prefix = IpAddr::from(subnet.prefix4);
                write!(f, " {prefix}/{} gateway {gateway}", subnet.prefix4_len)?;
            }
            if subnet.prefix6_len != 0 {
                let (prefix, gateway) = (Address(subnet.prefix6), Address(subnet.gateway6));
                write!(f, " {prefix}/{} gateway {gateway}", subnet.prefix6_len)?;
            }
            let (mac, mtu) = (Mac(subnet.gateway_mac), subnet.mtu);
            write!(f, " {mac} mtu {mtu} flags {:#x}", subnet.flags)?;
            match subnet.segment {
                0 => writeln!(f)?,
                tag => writeln!(f, " segment tag {tag}")?,
            }
            let members = self.members_of(index).iter().map(|m| m.endpoint);
            writeln!(f, "  members {:?}", members.collect::<Vec<_>>())?;
        }
        for (index, endpoint) in (0..).zip(self.endpoints()) {
            let Endpoint {
                id,
                slot,
                subnet,
                mtu,
                state,
                roles,
                ..
            } = endpoint;
            let mac = Mac(endpoint.mac);
            write!(
                f,
                "endpoint {index}: id {id} slot {slot} subnet {subnet} {mac} mtu {mtu}"
            )?;
            writeln!(f, " state {state} roles {roles:#x}")?;
            let from = Rate {
                bytes: endpoint.rate_bytes,
                burst: endpoint.rate_burst,
                packets: endpoint.rate_packets,
            };
            rates(f, &from, &endpoint.to)?;
            if endpoint.flags & ENDPOINT_METERED != 0 {
                writeln!(f, "  circuits metered")?;
            }
            if endpoint.weight != 1 || endpoint.min_bytes != 0 {
                let (weight, least) = (endpoint.weight, endpoint.min_bytes);
                writeln!(f, "  weight {weight} least {least} bytes/s")?;
            }
            let mut addresses: Vec<[u8; 16]> = self
                .addresses()
                .iter()
                .filter(|a| a.endpoint == index)
                .map(|a| a.address)
                .collect();
            addresses.sort_unstable();
            for address in addresses {
                writeln!(f, "  {}", Address(address))?;
            }
            for own in self.own_prefixes_of(endpoint) {
                writeln!(f, "  may source from {}/{}", Address(own.prefix), own.len)?;
            }
            for (way, table) in [("egress", endpoint.egress), ("ingress", endpoint.ingress)] {
                if table != NONE {
                    writeln!(f, "  {way} by rule table {table}")?;
                }
            }
        }
        for (index, class) in (1..).zip(self.classes()) {
            let ServiceClass {
                dscp,
                weight,
                strict_bytes,
                ..
            } = class;
            let values = (0..64).filter(|bit| dscp >> bit & 1 == 1);
            let values: Vec<u32> = values.collect();
            writeln!(
                f,
                "class {index}: dscp {values:?} weight {weight} first up to {strict_bytes} bytes/s"
            )?;
        }
        for (index, attachment) in (0..).zip(self.attachments()) {
            let Attachment {
                tenant,
                uplink,
                tag,
                ..
            } = attachment;
            write!(
                f,
                "attachment {index}: tenant {tenant} uplink {uplink} tag {tag}"
            )?;
            write!(f, " {}", Mac(attachment.mac))?;
            let four = IpAddr::from(attachment.address4);
            write!(f, " {four}/{}", attachment.prefix4_len)?;
            writeln!(
                f,
                " {}/{}",
                Address(attachment.address6),
                attachment.prefix6_len
            )?;
            for block in self.nat_blocks_of(attachment) {
                if let Some(ports) = self.nat_ports(index, block.endpoint) {
                    let (first, last) = (ports.start(), ports.end());
                    writeln!(f, "  ports {first} to {last}: endpoint {}", block.endpoint)?;
                }
            }
        }
        for (index, hop) in (0..).zip(self.next_hops()) {
            let address = Address(hop.address);
            writeln!(
                f,
                "next hop {index}: {address} by attachment {}",
                hop.attachment
            )?;
        }
        for (index, crossing) in (0..).zip(self.crossings()) {
            writeln!(f, "crossing {index}: {}", Side(crossing))?;
            for ports in self.service_ports_of(crossing) {
                let ServicePorts {
                    protocol,
                    first,
                    last,
                    ..
                } = ports;
                writeln!(f, "  protocol {protocol} ports {first} to {last}")?;
            }
            for routed in self.routed_prefixes_of(crossing) {
                let whose = if routed.theirs == 0 { "own" } else { "theirs" };
                let four = wire::address::unmapped(&routed.prefix).is_some();
                let len = routed.len - if four { 96 } else { 0 };
                writeln!(f, "  {whose} {}/{len}", Address(routed.prefix))?;
            }
        }
        for index in 0..self.tables().len() as u32 {
            let table = self.rule_table(index);
            let (rules, default) = (table.rules.len(), table.default);
            writeln!(f, "rule table {index}: {rules} rules, else {default}")?;
            for (place, rule) in table.rules.iter().enumerate() {
                writeln!(f, "  {place}: {rule}")?;
            }
        }
        Ok(())
    }
}

/// What limits an owner, where anything does.
fn rates(f: &mut fmt::Formatter<'_>, from: &Rate, to: &Rate) -> fmt::Result {
    for (way, rate) in [("from", from), ("to", to)] {
        if rate.is_limited() {
            let Rate {
                bytes,
                burst,
                packets,
            } = rate;
            writeln!(
                f,
                "  {way} it at most {bytes} bytes/s (burst {burst}) {packets} packets/s, 0 = any"
            )?;
        }
    }
    Ok(())
}

impl fmt::Display for FabricImage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "image {}", self.digest())?;
        for channel in self.channels() {
            let kind = if channel.kind == CHANNEL_UPLINK {
                "uplink"
            } else {
                "compartment"
            };
            let Channel {
                id,
                slot,
                weight,
                min_bytes,
                ..
            } = channel;
            writeln!(
                f,
                "slot {slot}: {kind} {id} weight {weight} least {min_bytes} bytes/s"
            )?;
            for template in self.templates(channel) {
                write!(f, "  to slot {} tag {}: ", template.egress, template.tag)?;
                let len = template.len.into();
                compared(f, &template.mask, &template.value, len)?;
                for bound in template.bounds.iter().filter(|b| b.at != 0) {
                    write!(f, ", byte {} at most {:02x}", bound.at, bound.most)?;
                }
                if template.except_mask.iter().any(|m| *m != 0) {
                    f.write_str(", but not ")?;
                    let reach = template.reach().into();
                    compared(f, &template.except_mask, &template.except_value, reach)?;
                }
                writeln!(f)?;
            }
        }
        let mut forwards: Vec<&Forward> =
            self.forwards().iter().filter(|f| !f.is_empty()).collect();
        forwards.sort_by_key(|f| (f.ingress, f.tag, f.mac));
        for entry in forwards {
            let Forward {
                ingress,
                tag,
                target,
                out_tag,
                ..
            } = entry;
            write!(f, "from slot {ingress} tag {tag} to ")?;
            match entry.mac {
                [0, 0, 0, 0, 0, 0] => write!(f, "any other station")?,
                EVERY_GROUP => write!(f, "any other group")?,
                mac => write!(f, "{}", Mac(mac))?,
            }
            let alone = match entry.kind {
                FORWARD_UNICAST => "",
                FORWARD_SEGMENT => " of its segment",
                _ => "group",
            };
            if alone != "group" {
                writeln!(f, ": slot {target} tag {out_tag}{alone}")?;
                continue;
            }
            write!(f, ": group {target}:")?;
            for member in self.group(*target) {
                write!(f, " slot {} tag {}", member.slot, member.out_tag)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// The bytes of a mask-compare.
fn compared(f: &mut fmt::Formatter<'_>, mask: &[u8], value: &[u8], len: usize) -> fmt::Result {
    for (mask, value) in mask.iter().zip(value).take(len) {
        match mask {
            0 => f.write_str("..")?,
            255 => write!(f, "{value:02x}")?,
            mask => write!(f, "[{value:02x}&{mask:02x}]")?,
        }
    }
    Ok(())
}

struct Mac([u8; 6]);
impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

struct Address([u8; 16]);
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv6Addr::from(self.0).to_canonical())
    }
}

struct Way<'a>(&'a Route);
impl fmt::Display for Way<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Route {
            kind, subnet, via, ..
        } = self.0;
        match *kind {
            ROUTE_SUBNET => write!(f, "on subnet {subnet}"),
            ROUTE_VIA => write!(f, "by endpoint {via} on subnet {subnet}"),
            ROUTE_OUTSIDE => write!(f, "outside by next hop {via}"),
            ROUTE_SERVICE => write!(f, "across by crossing {via}"),
            _ => write!(f, "unreachable"),
        }
    }
}

struct Side<'a>(&'a Crossing);
impl fmt::Display for Side<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Crossing {
            agreement,
            tenant,
            tag,
            mtu,
            endpoint,
            ..
        } = self.0;
        write!(
            f,
            "agreement {agreement} tenant {tenant} tag {tag} mtu {mtu}"
        )?;
        if self.0.has_rings() {
            write!(f, " rings")?;
        }
        if self.0.is_routed() {
            let begins = match (self.0.begins(), self.0.is_begun_with()) {
                (true, true) => "both begin",
                (true, false) => "it begins",
                _ => "the other begins",
            };
            return write!(f, " routed, {begins}");
        }
        match self.0.role {
            CROSSING_OFFERER => write!(f, " serves by endpoint {endpoint}")?,
            _ => write!(f, " uses it")?,
        }
        let four = IpAddr::from(self.0.address4);
        write!(f, " at {four} {}", Address(self.0.address6))?;
        if self.0.pool4_len != 0 {
            let four = IpAddr::from(self.0.pool4);
            write!(f, " pool {four}/{}", self.0.pool4_len)?;
        }
        if self.0.pool6_len != 0 {
            write!(f, " pool {}/{}", Address(self.0.pool6), self.0.pool6_len)?;
        }
        Ok(())
    }
}
