//! One compartment: its command, its ports and its table.

mod joined;
mod outside;

use crate::CompileError;
use crate::agreements::Agreement;
use crate::ids::{EndpointIds, Ids, TenantIds};
use crate::intent::{AttachmentIntent, CompartmentIntent, Image, PortIntent, SegmentIntent};
use crate::mac::made;
use crate::routes::Prefixes;
use crate::rules::{self, Member, Tables};
use command::Name;
use command::verbs::{
    CREATE_CIRCUITS, CREATE_NAMESPACE, CREATE_UNCONFIGURED, CreateCompartment, CreatePort,
    ENDPOINT_CIRCUITS, ENDPOINT_FIFO, ENDPOINT_TAP, ENDPOINT_VETH, ENDPOINT_VHOST, WAIT_ADAPTIVE,
    WAIT_POLL, WAIT_SLEEP,
};
use core::net::IpAddr;
use image::CompartmentTables;
use image::compartment::{
    ENDPOINT_METERED, Endpoint as EndpointRecord, FEATURE_CSUM, FEATURE_TSO4, FEATURE_TSO6,
    FEATURE_USO, NONE, OwnPrefix, ROLE_DHCP_SERVER, ROLE_ROUTER, ROUTE_SUBNET, ROUTE_UNREACHABLE,
    ROUTE_VIA, Rate, Route, STATE_OPEN, STATE_QUARANTINED, STATE_UNAUTHORISED, SUBNET_DHCP4,
    SUBNET_RA, SUBNET_SLAAC, ServiceClass, Subnet as SubnetRecord, Tenant as TenantRecord,
};
use spec::{
    Attach, Configure, Endpoint, Offload, Role, Spec, State, Subnet, Tenant, Via, Wait, mapped,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use wire::MacAddress;
use wire::address::{Address, link_local};

/// Longest that a switch on shared cores spins, microseconds.
const SHARED_SPIN_US: u64 = 5;
/// How long one on cores of its own spins unless told, microseconds.
const ISOLATED_SPIN_US: u64 = 100;

pub(crate) fn compile(
    spec: &Spec,
    ids: &Ids,
    name: &str,
    tenants: &[&Tenant],
    agreements: Vec<Agreement>,
) -> Result<CompartmentIntent, Vec<CompileError>> {
    let compartment = ids
        .compartments
        .get(name)
        .map_or((0, 32), |c| (c.id, c.slots));
    let mut work = Work {
        spec,
        ids,
        compartment: compartment.0,
        tables: CompartmentTables {
            classes: spec.classes.iter().map(class).collect(),
            ..CompartmentTables::default()
        },
        ports: BTreeMap::new(),
        attachments: Vec::new(),
        segments: Vec::new(),
        rules: Tables::default(),
        agreements: &agreements,
        errors: Vec::new(),
    };
    for tenant in tenants {
        work.tenant(tenant);
    }
    work.join();
    work.connections(name, tenants);
    let Work {
        tables,
        ports,
        attachments,
        segments,
        rules,
        mut errors,
        ..
    } = work;
    let image = match tables.finish() {
        Ok(bytes) => Image::new(bytes),
        Err(error) => {
            let span = tenants
                .first()
                .map_or_else(Default::default, |t| t.name.span);
            errors.push(spec.finding(
                "internal",
                span,
                format!("the table of {name} cannot be built: {error}"),
                "this is a fault of Bulkhead: please report it with the spec",
            ));
            Image::default()
        }
    };
    if !errors.is_empty() {
        return Err(errors);
    }
    let cores: Vec<u32> = tenants
        .first()
        .map_or(&[][..], |t| t.isolated_cores())
        .iter()
        .map(|c| c.value)
        .collect();
    let sum = |of: fn(&Tenant) -> u64| {
        tenants
            .iter()
            .map(|t| of(t))
            .fold(0u64, u64::saturating_add)
    };
    Ok(CompartmentIntent {
        create: create(compartment, name, tenants.first().copied(), &cores),
        name: name.to_owned(),
        tenants: tenants.iter().map(|t| t.name.to_string()).collect(),
        cores,
        weight: sum(|t| t.weight().into()).clamp(1, 255) as u32,
        min_bytes: sum(Tenant::guarantee_bits) / 8,
        ports,
        attachments,
        segments,
        tables: rules.list,
        agreements,
        image,
    })
}

fn rate((bytes, burst, packets): (u64, u64, u64)) -> Rate {
    Rate {
        bytes,
        burst,
        packets,
    }
}

fn class(class: &spec::ServiceClass) -> ServiceClass {
    let (strict_bytes, strict_burst) = class.strict();
    ServiceClass {
        dscp: class.values(),
        strict_bytes,
        strict_burst,
        weight: class.weight(),
        reserved: 0,
    }
}

fn create(
    (id, slots): (u32, u32),
    name: &str,
    tenant: Option<&Tenant>,
    cores: &[u32],
) -> CreateCompartment {
    let Some(tenant) = tenant else {
        return CreateCompartment::default();
    };
    let (wait, wait_us) = match tenant.wait() {
        Wait::Poll(us) => (WAIT_POLL, us),
        Wait::Adaptive(us) if !cores.is_empty() => (WAIT_ADAPTIVE, us.unwrap_or(ISOLATED_SPIN_US)),
        Wait::Adaptive(us) => (
            WAIT_ADAPTIVE,
            us.unwrap_or(SHARED_SPIN_US).min(SHARED_SPIN_US),
        ),
        Wait::Sleep => (WAIT_SLEEP, 0),
    };
    CreateCompartment {
        id,
        wait,
        wait_us: wait_us.min(u32::MAX.into()) as u32,
        core: cores.first().copied().unwrap_or(u32::MAX),
        sandbox: tenant.sandbox().into(),
        slots,
        capacity: tenant.channel_bytes() as u32,
        max_record: spec::max_record(tenant.channel_bytes()) as u32,
        memory: tenant.memory_bytes(),
        name: Name::new(name).unwrap_or_default(),
        program: tenant
            .program()
            .and_then(|p| Name::new(p.as_str()))
            .unwrap_or_default(),
        workers: match tenant.workers() {
            1 => 0,
            several => several,
        },
        other_cores: core::array::from_fn(|other| match tenant.workers() {
            1 => 0,
            _ => cores.get(other + 1).copied().unwrap_or(0),
        }),
    }
}

/// A compartment's tables under construction.
struct Work<'a> {
    spec: &'a Spec,
    ids: &'a Ids,
    compartment: u32,
    tables: CompartmentTables,
    ports: BTreeMap<u32, PortIntent>,
    attachments: Vec<AttachmentIntent>,
    segments: Vec<SegmentIntent>,
    rules: Tables,
    /// Those of this compartment.
    agreements: &'a [Agreement],
    errors: Vec<CompileError>,
}

/// A subnet and its place in the table.
#[derive(Clone, Copy)]
struct Placed<'a> {
    index: u32,
    subnet: &'a Subnet,
    gateway_mac: [u8; 6],
}

impl Work<'_> {
    fn tenant(&mut self, tenant: &Tenant) {
        let none = TenantIds::default();
        let ids = self.ids.tenants.get(tenant.name.as_str()).unwrap_or(&none);
        let index = self.tables.tenants.len() as u32;
        self.tables.tenants.push(TenantRecord {
            id: ids.id,
            from: rate(tenant.meter_from()),
            to: rate(tenant.meter_to()),
            ..TenantRecord::default()
        });

        let mut macs: BTreeSet<[u8; 6]> = tenant
            .endpoints
            .iter()
            .filter_map(|e| e.mac)
            .map(|m| m.value.0)
            .collect();
        let mut subnets = HashMap::new();
        for subnet in &tenant.subnets {
            let gateway_mac = made(
                &["gateway", tenant.name.as_str(), subnet.name.as_str()],
                &mut macs,
            );
            let id = ids.subnets.get(subnet.name.as_str()).copied().unwrap_or(0);
            let placed = Placed {
                index: self.tables.subnets.len() as u32,
                subnet,
                gateway_mac,
            };
            let segment = self.segment(tenant, subnet, ids);
            let record = subnet_record(index, id, &placed);
            self.tables.subnets.push(SubnetRecord { segment, ..record });
            subnets.insert(subnet.name.as_str(), placed);
        }

        let mut endpoints = HashMap::new();
        // What was written or chosen comes before what follows from a MAC.
        let mut own: HashSet<(u32, [u8; 16])> = HashSet::new();
        let mut derived = Vec::new();
        let mut members: Vec<Member<'_>> = Vec::new();
        let mut slots = Vec::new();
        for endpoint in &tenant.endpoints {
            let (Some(placed), Some(ids)) = (
                subnets.get(endpoint.subnet.as_str()),
                ids.endpoints.get(endpoint.name.as_str()),
            ) else {
                continue;
            };
            let mac = endpoint.mac.map_or_else(
                || {
                    made(
                        &["endpoint", tenant.name.as_str(), endpoint.name.as_str()],
                        &mut macs,
                    )
                },
                |m| m.value.0,
            );
            let at = self.endpoint(tenant, endpoint, ids, placed, mac);
            let of = (&tenant.name.value, &endpoint.subnet.value);
            let segment = self.segments.iter_mut().rev();
            let mut segment =
                segment.filter(|s| (&*s.tenant, &*s.subnet) == (of.0.as_str(), of.1.as_str()));
            if let Some(segment) = segment.next() {
                segment.stations.push(mac);
            }
            endpoints.insert(endpoint.name.as_str(), (at, placed.index));
            for address in addresses(endpoint, ids) {
                if own.insert((placed.index, mapped(address))) {
                    self.tables.addresses.push((at, mapped(address)));
                }
            }
            let addresses = addresses(endpoint, ids).into_iter().map(mapped).collect();
            members.push(Member {
                endpoint,
                addresses,
            });
            slots.push(ids.slot);
            let member = members.len() - 1;
            let mac = MacAddress(mac);
            if placed.subnet.prefix6().is_none()
                && let Some(member) = members.get_mut(member)
            {
                // It may be spoken from in any subnet: rules about it hold for that too.
                member.addresses.push(link_local(mac));
            }
            if let Some(prefix) = placed.subnet.prefix6() {
                derived.push((at, member, placed.index, link_local(mac)));
                if placed.subnet.slaac() {
                    let address = autonomous(mapped(prefix.network), mac);
                    derived.push((at, member, placed.index, address));
                }
            }
        }
        for subnet in subnets.values() {
            let gateway = subnet
                .subnet
                .prefixes
                .iter()
                .map(|p| mapped(subnet.subnet.gateway_in(p)));
            own.extend(gateway.map(|g| (subnet.index, g)));
        }
        for (at, member, subnet, address) in derived {
            if own.insert((subnet, address)) {
                self.tables.addresses.push((at, address));
                if let Some(member) = members.get_mut(member) {
                    member.addresses.push(address);
                }
            }
        }
        self.routes(tenant, index, &subnets, &endpoints);
        self.judge(tenant, &members, &slots);
    }

    /// The tag of a subnet that goes on beyond the host, which is noted; 0 = it does not.
    fn segment(&mut self, tenant: &Tenant, subnet: &Subnet, ids: &TenantIds) -> u16 {
        let Some(segment) = subnet.vlan() else {
            return 0;
        };
        let (Some(own), Some(uplink)) = (
            ids.segments.get(subnet.name.as_str()),
            self.ids.uplinks.get(segment.uplink.as_str()),
        ) else {
            return 0;
        };
        self.segments.push(SegmentIntent {
            tenant: tenant.name.to_string(),
            subnet: subnet.name.to_string(),
            uplink: uplink.number,
            tag: own.tag,
            vlan: segment.vlan.value as u16,
            stations: Vec::new(),
        });
        own.tag
    }

    /// The rule tables of a tenant's endpoints, which are in these slots.
    fn judge(&mut self, tenant: &Tenant, members: &[Member<'_>], slots: &[u32]) {
        let (spec, ids, agreements) = (self.spec, self.ids, self.agreements);
        match rules::compile(spec, ids, tenant, members, agreements, &mut self.rules) {
            Ok(pairs) => {
                for (slot, pair) in slots.iter().zip(pairs) {
                    if let (Some(port), Some(pair)) = (self.ports.get_mut(slot), pair) {
                        (port.egress, port.ingress) = (Some(pair.egress), Some(pair.ingress));
                    }
                }
            }
            Err(error) => self.errors.push(*error),
        }
    }

    /// Adds an endpoint's record and port; its index.
    fn endpoint(
        &mut self,
        tenant: &Tenant,
        endpoint: &Endpoint,
        ids: &EndpointIds,
        placed: &Placed<'_>,
        mac: [u8; 6],
    ) -> u32 {
        let at = self.tables.endpoints.len() as u32;
        let addresses = addresses(endpoint, ids);
        for prefix in placed
            .subnet
            .prefixes
            .iter()
            .filter(|_| endpoint.addresses().is_none())
        {
            if !addresses.iter().any(|a| prefix.contains(*a)) {
                self.errors.push(self.spec.finding(
                    "no-address",
                    endpoint.name.span,
                    format!(
                        "no address is left in {} for `{}`",
                        prefix.value, endpoint.name.value
                    ),
                    "use a shorter prefix, or another subnet",
                ));
            }
        }
        let dhcp4 = addresses.iter().find_map(|a| match a {
            IpAddr::V4(a) => Some(a.octets()),
            IpAddr::V6(_) => None,
        });
        let (rate_bytes, rate_burst, rate_packets) = endpoint.meter_from();
        self.tables.endpoints.push(EndpointRecord {
            id: ids.id,
            subnet: placed.index,
            slot: ids.slot,
            roles: roles(endpoint),
            state: match endpoint.state() {
                State::Open => STATE_OPEN,
                State::Unauthorised => STATE_UNAUTHORISED,
                State::Quarantined => STATE_QUARANTINED,
            },
            class: endpoint.class(),
            mac,
            mtu: mtu(endpoint, placed.subnet) as u16,
            dhcp4: dhcp4.unwrap_or_default(),
            min_gso: endpoint.min_gso() as u16,
            features: features(endpoint),
            rate_bytes,
            rate_burst,
            rate_packets,
            to: rate(endpoint.meter_to()),
            weight: endpoint.weight(),
            min_bytes: endpoint.guarantee_bits() / 8,
            flags: u32::from(endpoint.is_metered()) * ENDPOINT_METERED,
            own_first: NONE,
            own_count: 0,
            ..EndpointRecord::default()
        });
        for prefix in &endpoint.prefixes {
            let own = OwnPrefix {
                prefix: mapped(prefix.network),
                len: prefix.len128(),
                reserved: 0,
            };
            self.tables.own_prefixes.push((at, own));
        }
        self.tables.members.push((placed.index, at));
        let create = port(
            self.compartment,
            tenant,
            endpoint,
            ids,
            placed.subnet,
            &addresses,
            mac,
        );
        self.ports.insert(
            ids.slot,
            PortIntent {
                create,
                tenant: tenant.name.to_string(),
                endpoint: endpoint.name.to_string(),
                subnet: placed.subnet.name.to_string(),
                mac,
                addresses,
                egress: None,
                ingress: None,
                connections: endpoint.connections.map_or(u32::MAX, |c| c.value),
                metered: endpoint.is_metered(),
            },
        );
        at
    }

    /// On-link first, then what is written, then what routers have behind them, then
    /// what goes outside: the first of equal prefixes counts.
    fn routes(
        &mut self,
        tenant: &Tenant,
        index: u32,
        subnets: &HashMap<&str, Placed<'_>>,
        endpoints: &HashMap<&str, (u32, u32)>,
    ) {
        let mut prefixes = Prefixes::new();
        for subnet in &tenant.subnets {
            let Some(placed) = subnets.get(subnet.name.as_str()) else {
                continue;
            };
            let route = self.route(Route {
                kind: ROUTE_SUBNET,
                subnet: placed.index,
                via: NONE,
                reserved: 0,
            });
            subnet
                .prefixes
                .iter()
                .for_each(|p| prefixes.add(p.value, route));
        }
        let mut ways = self.outside(tenant, index);
        for route in &tenant.routes {
            let made = match &route.via.value {
                Via::Unreachable => Some(Route {
                    kind: ROUTE_UNREACHABLE,
                    subnet: NONE,
                    via: NONE,
                    reserved: 0,
                }),
                Via::Endpoint(name) => endpoints.get(name.as_str()).map(|(via, subnet)| Route {
                    kind: ROUTE_VIA,
                    subnet: *subnet,
                    via: *via,
                    reserved: 0,
                }),
                Via::Outside(uplink) => ways.route(self, uplink.as_ref(), route.to.value),
            };
            if let Some(made) = made {
                let made = self.route(made);
                prefixes.add(route.to.value, made);
            }
        }
        for endpoint in &tenant.endpoints {
            let Some((via, subnet)) = endpoints.get(endpoint.name.as_str()).copied() else {
                continue;
            };
            for prefix in &endpoint.prefixes {
                let route = self.route(Route {
                    kind: ROUTE_VIA,
                    subnet,
                    via,
                    reserved: 0,
                });
                prefixes.add(prefix.value, route);
            }
        }
        ways.own_routes(self, tenant, &mut prefixes);
        self.cross(tenant, index, &mut prefixes);
        self.tables
            .ranges
            .extend(prefixes.ranges().into_iter().map(|range| (index, range)));
    }

    /// The index of a route, which is added where it is new.
    fn route(&mut self, route: Route) -> u32 {
        // Equal routes follow each other: it is enough to look at the last few.
        let near = self
            .tables
            .routes
            .iter()
            .enumerate()
            .rev()
            .take(8)
            .find(|(_, r)| **r == route);
        if let Some((at, _)) = near {
            return at as u32;
        }
        self.tables.routes.push(route);
        self.tables.routes.len() as u32 - 1
    }
}

fn subnet_record(tenant: u32, id: u32, placed: &Placed<'_>) -> SubnetRecord {
    let subnet = placed.subnet;
    let (v4, v6) = (subnet.prefix4(), subnet.prefix6());
    let octets4 = |a: IpAddr| match a {
        IpAddr::V4(a) => a.octets(),
        IpAddr::V6(_) => [0; 4],
    };
    let dns = |v4: bool| {
        subnet
            .dns
            .iter()
            .map(|d| d.value.0)
            .find(|d| d.is_ipv4() == v4)
    };
    let flag = |on: bool, bit: u16| if on { bit } else { 0 };
    SubnetRecord {
        id,
        tenant,
        prefix4: v4.map_or([0; 4], |p| octets4(p.network)),
        gateway4: v4.map_or([0; 4], |p| octets4(subnet.gateway_in(&p))),
        dns4: dns(true).map_or([0; 4], octets4),
        prefix4_len: v4.map_or(0, |p| p.len),
        prefix6_len: v6.map_or(0, |p| p.len),
        mtu: subnet.mtu() as u16,
        prefix6: v6.map_or([0; 16], |p| mapped(p.network)),
        gateway6: v6.map_or([0; 16], |p| mapped(subnet.gateway_in(&p))),
        dns6: dns(false).map_or([0; 16], mapped),
        gateway_mac: placed.gateway_mac,
        flags: flag(subnet.dhcp(), SUBNET_DHCP4)
            | flag(subnet.ra(), SUBNET_RA)
            | flag(subnet.slaac(), SUBNET_SLAAC),
        lease_s: subnet.lease_s(),
        ..SubnetRecord::default()
    }
}

fn port(
    compartment: u32,
    tenant: &Tenant,
    endpoint: &Endpoint,
    ids: &EndpointIds,
    subnet: &Subnet,
    addresses: &[IpAddr],
    mac: [u8; 6],
) -> CreatePort {
    let mut port = CreatePort {
        compartment,
        slot: ids.slot,
        endpoint: ids.id,
        mtu: mtu(endpoint, subnet),
        mac,
        name: Name::new(&format!("{}/{}", tenant.name.value, endpoint.name.value))
            .unwrap_or_default(),
        ..CreatePort::default()
    };
    if let Attach::Fifo(fifo) = endpoint.attach() {
        port.kind = ENDPOINT_FIFO;
        port.capacity = fifo.capacity_bytes() as u32;
        port.max_record = fifo.max_record() as u32;
        port.owner = fifo.owner.map_or(0, |o| o.value);
        port.flags = CREATE_UNCONFIGURED;
        return port;
    }
    if let Attach::Vhost(vhost) = endpoint.attach() {
        port.kind = ENDPOINT_VHOST;
        port.pairs = vhost.queues();
        // At most 1 TiB; a part of a MiB is a whole one.
        port.capacity = vhost.memory_bytes().div_ceil(1 << 20) as u32;
        port.owner = vhost.owner.map_or(0, |o| o.value);
        port.flags = CREATE_UNCONFIGURED;
        return port;
    }
    if let Attach::Circuits(circuits) = endpoint.attach() {
        port.kind = ENDPOINT_CIRCUITS;
        port.pairs = circuits.sockets();
        port.max_record = circuits.setups();
        port.flags = CREATE_UNCONFIGURED;
        return port;
    }
    if let Some((namespace, interface, make)) = endpoint.interface(&tenant.name.value) {
        port.kind = match endpoint.attach() {
            Attach::Veth(_) => ENDPOINT_VETH,
            _ => ENDPOINT_TAP,
        };
        port.namespace = Name::new(&namespace).unwrap_or_default();
        port.interface = Name::new(&interface).unwrap_or_default();
        port.flags = if make { CREATE_NAMESPACE } else { 0 };
        if let Some(circuits) = endpoint.attach().circuits() {
            port.flags |= CREATE_CIRCUITS;
            port.pairs = circuits.sockets();
            port.max_record = circuits.setups();
        }
    }
    if endpoint.configure() == Configure::None {
        port.flags |= CREATE_UNCONFIGURED;
        return port;
    }
    for address in addresses {
        let Some(prefix) = subnet.prefixes.iter().find(|p| p.contains(*address)) else {
            continue;
        };
        match (address, subnet.gateway_in(prefix)) {
            (IpAddr::V4(address), IpAddr::V4(gateway)) if port.prefix4_len == 0 => {
                (port.address4, port.gateway4, port.prefix4_len) =
                    (address.octets(), gateway.octets(), prefix.len);
            }
            (IpAddr::V6(address), IpAddr::V6(gateway)) if port.prefix6_len == 0 => {
                (port.address6, port.gateway6, port.prefix6_len) =
                    (address.octets(), gateway.octets(), prefix.len);
            }
            _ => {}
        }
    }
    port
}

fn addresses(endpoint: &Endpoint, ids: &EndpointIds) -> Vec<IpAddr> {
    match endpoint.addresses() {
        Some(list) => list.iter().map(|a| a.value.0).collect(),
        None => ids.chosen.clone(),
    }
}

fn mtu(endpoint: &Endpoint, subnet: &Subnet) -> u32 {
    endpoint.mtu.map_or(subnet.mtu(), |m| m.value)
}

fn roles(endpoint: &Endpoint) -> u16 {
    let bit = |role, bit| if endpoint.has_role(role) { bit } else { 0 };
    bit(Role::Router, ROLE_ROUTER) | bit(Role::DhcpServer, ROLE_DHCP_SERVER)
}

fn features(endpoint: &Endpoint) -> u16 {
    let all = [
        (Offload::Csum, FEATURE_CSUM),
        (Offload::Tso4, FEATURE_TSO4),
        (Offload::Tso6, FEATURE_TSO6),
        (Offload::Uso, FEATURE_USO),
    ];
    // Segments are cut where checksums are finished: one without the other is of no use.
    let csum = endpoint.takes(Offload::Csum);
    all.into_iter()
        .filter(|(offload, _)| csum && endpoint.takes(*offload))
        .fold(0, |bits, (_, bit)| bits | bit)
}

/// The address that a host forms itself in a /64 (RFC 4862, section 5.5.3).
fn autonomous(prefix: Address, mac: MacAddress) -> Address {
    let mut address = prefix;
    for (to, from) in address.iter_mut().skip(8).zip(mac.interface_id()) {
        *to = from;
    }
    address
}
