//! What rules and agreements put into a compartment's tables.

use super::Work;
use crate::agreements::{Agreement, Routed};
use crate::routes::Prefixes;
use core::net::IpAddr;
use image::compartment::{
    CROSSING_ACCEPTOR, CROSSING_BOTH, CROSSING_OFFERER, CROSSING_RINGS, CROSSING_ROUTED, Crossing,
    NONE, ROUTE_SERVICE, Route, RoutedPrefix, ServicePorts,
};
use spec::{Prefix, Tenant};
use std::collections::BTreeSet;

impl Work<'_> {
    /// The tenant's sides of its agreements: crossings, and the routes that lead there.
    pub(super) fn cross(&mut self, tenant: &Tenant, index: u32, prefixes: &mut Prefixes) {
        let agreements = self.agreements;
        for agreement in agreements {
            let name = tenant.name.as_str();
            let via = self.tables.crossings.len() as u32;
            let (crossing, ways) = if agreement.offerer != name && agreement.acceptor != name {
                continue;
            } else if let Some(routed) = &agreement.routed {
                self.routed(agreement, routed, via, agreement.offerer == name)
            } else if agreement.offerer == name {
                let Some(endpoint) = self.endpoint_named(name, &agreement.endpoint) else {
                    continue;
                };
                (offered(agreement, endpoint), agreement.pool.clone())
            } else {
                (accepted(agreement), agreement.ways())
            };
            let tag = match agreement.offerer == name {
                true => agreement.offerer_tag,
                false => agreement.tag,
            };
            self.tables.crossings.push(Crossing {
                agreement: agreement.id,
                tenant: index,
                tag,
                mtu: agreement.mtu,
                flags: crossing.flags | if agreement.rings { CROSSING_RINGS } else { 0 },
                ..crossing
            });
            for ports in joined(&agreement.ports) {
                let ports = ServicePorts {
                    // Any protocol has no list of ports.
                    protocol: agreement.protocol.unwrap_or_default(),
                    first: ports.0,
                    last: ports.1,
                    ..ServicePorts::default()
                };
                self.tables.service_ports.push((via, ports));
            }
            let route = self.route(Route {
                kind: ROUTE_SERVICE,
                subnet: NONE,
                via,
                reserved: 0,
            });
            for way in ways {
                prefixes.add(way, route);
            }
        }
    }

    /// A side of an agreement of prefixes, and those that lead to the other.
    fn routed(
        &mut self,
        agreement: &Agreement,
        routed: &Routed,
        via: u32,
        offers: bool,
    ) -> (Crossing, Vec<Prefix>) {
        let (own, theirs) = match offers {
            true => (&routed.offered, &agreement.pool),
            false => (&agreement.pool, &routed.offered),
        };
        for (theirs, list) in [(0, own), (1, theirs)] {
            let prefixes = list.iter().map(|p| RoutedPrefix {
                prefix: spec::mapped(p.network),
                len: p.len128(),
                theirs,
            });
            let prefixes = prefixes.map(|prefix| (via, prefix));
            self.tables.routed_prefixes.extend(prefixes);
        }
        let crossing = Crossing {
            role: if offers {
                CROSSING_OFFERER
            } else {
                CROSSING_ACCEPTOR
            },
            flags: CROSSING_ROUTED | if routed.both { CROSSING_BOTH } else { 0 },
            endpoint: NONE,
            ..Crossing::default()
        };
        (crossing, theirs.clone())
    }

    fn endpoint_named(&self, tenant: &str, name: &str) -> Option<u32> {
        let slot = self.ids.tenants.get(tenant)?.endpoints.get(name)?.slot;
        self.endpoint_in(slot)
    }

    fn endpoint_in(&self, slot: u32) -> Option<u32> {
        let endpoints = &self.tables.endpoints;
        let at = endpoints.iter().position(|e| e.slot == slot)?;
        u32::try_from(at).ok()
    }

    /// Rule tables and blocks of ports, once every endpoint has its own.
    pub(super) fn join(&mut self) {
        self.tables.rule_tables.clone_from(&self.rules.list);
        for endpoint in &mut self.tables.endpoints {
            let Some(port) = self.ports.get(&endpoint.slot) else {
                continue;
            };
            endpoint.egress = port.egress.unwrap_or(NONE);
            endpoint.ingress = port.ingress.unwrap_or(NONE);
        }
        for (at, intent) in (0..).zip(&self.attachments) {
            if intent.nat_ports == 0 {
                continue;
            }
            if let Some(attachment) = self.tables.attachments.get_mut(at as usize) {
                attachment.nat_first = spec::FIRST_NAT_PORT as u16;
                attachment.nat_block = intent.nat_ports;
            }
            let mut next = 0;
            for block in &intent.nat {
                while next < block.number {
                    self.tables.nat_blocks.push((at, NONE));
                    next += 1;
                }
                let endpoint = self.endpoint_in(block.slot).unwrap_or(NONE);
                self.tables.nat_blocks.push((at, endpoint));
                next += 1;
            }
        }
    }
}

impl Work<'_> {
    /// How many connections each judged endpoint has room for: as written, else an equal
    /// power of two within half the switch's memory.
    pub(super) fn connections(&mut self, name: &str, tenants: &[&Tenant]) {
        let memory = tenants.first().map_or(0, |tenant| tenant.memory_bytes());
        let endpoints = &mut self.tables.endpoints;
        let translated: BTreeSet<u32> = self
            .attachments
            .iter()
            .flat_map(|attachment| attachment.nat.iter().map(|block| block.slot))
            .collect();
        let judged = |e: &image::compartment::Endpoint| {
            e.egress != NONE || e.ingress != NONE || translated.contains(&e.slot)
        };
        let (mut written, mut others) = (0u64, 0u64);
        for endpoint in endpoints.iter().filter(|e| judged(e)) {
            match self.ports.get(&endpoint.slot).map(|p| p.connections) {
                Some(UNWRITTEN) => others += 1,
                Some(connections) => written += u64::from(connections),
                None => {}
            }
        }
        let room = (memory / 2 / CONNECTION_BYTES).saturating_sub(written);
        let each = (room / others.max(1)).min(MOST_CONNECTIONS);
        // A power of two, so that one endpoint more rarely changes it for all.
        let each = each.checked_ilog2().map_or(0, |log| 1u32 << log);
        for endpoint in endpoints.iter_mut() {
            let Some(port) = self.ports.get_mut(&endpoint.slot) else {
                continue;
            };
            if port.connections == UNWRITTEN {
                port.connections = if judged(endpoint) { each } else { 0 };
            }
            endpoint.connections = port.connections;
        }
        let needed = written * CONNECTION_BYTES;
        if needed > memory / 2
            && let Some(tenant) = tenants.first()
        {
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            // Of a tenant that is alone there it is what it wrote, perhaps in a document of
            // its own; of several it is the provider's to sort out.
            let most = match tenants {
                [_] => (tenant.endpoints.iter())
                    .filter_map(|endpoint| endpoint.connections.as_ref())
                    .max_by_key(|written| written.value),
                _ => None,
            };
            self.errors.push(self.spec.finding(
                "memory",
                most.map_or(tenant.name.span, |written| written.span),
                format!(
                    "the connections of {name} need {} MiB, more than half of its switch's {} MiB",
                    mib(needed),
                    mib(memory)
                ),
                format!(
                    "write `memory: {}MiB`, or fewer `connections`",
                    mib(2 * needed)
                ),
            ));
        }
    }
}

/// [`crate::intent::PortIntent::connections`] while nothing was written.
const UNWRITTEN: u32 = u32::MAX;
/// Bytes of a switch's memory that a connection takes, translated and in the journal
/// (core/flow): as many are for strangers as for the endpoint's own.
const CONNECTION_BYTES: u64 = 2 * (166 + 96);
/// What an endpoint has room for where memory is no matter.
const MOST_CONNECTIONS: u64 = 8192;

fn of_family<T>(list: &[T], v4: bool, is_v4: impl Fn(&T) -> bool) -> Option<&T> {
    list.iter().find(|one| is_v4(one) == v4)
}

fn octets(address: Option<&IpAddr>) -> ([u8; 4], [u8; 16]) {
    match address {
        Some(IpAddr::V4(a)) => (a.octets(), [0; 16]),
        Some(IpAddr::V6(a)) => ([0; 4], a.octets()),
        None => ([0; 4], [0; 16]),
    }
}

fn offered(agreement: &Agreement, endpoint: u32) -> Crossing {
    let pool = |v4| of_family(&agreement.pool, v4, Prefix::is_v4);
    let service = |v4| of_family(&agreement.service, v4, IpAddr::is_ipv4);
    Crossing {
        role: CROSSING_OFFERER,
        endpoint,
        address4: octets(service(true)).0,
        address6: octets(service(false)).1,
        pool4: octets(pool(true).map(|p| &p.network)).0,
        pool6: octets(pool(false).map(|p| &p.network)).1,
        pool4_len: pool(true).map_or(0, |p| p.len),
        pool6_len: pool(false).map_or(0, |p| p.len),
        ..Crossing::default()
    }
}

fn accepted(agreement: &Agreement) -> Crossing {
    let address = |v4| of_family(&agreement.addresses, v4, IpAddr::is_ipv4);
    Crossing {
        role: CROSSING_ACCEPTOR,
        endpoint: NONE,
        address4: octets(address(true)).0,
        address6: octets(address(false)).1,
        ..Crossing::default()
    }
}

/// Sorted, and as few ranges as say the same.
fn joined(ports: &[core::ops::RangeInclusive<u16>]) -> Vec<(u16, u16)> {
    let mut sorted: Vec<(u16, u16)> = ports.iter().map(|p| (*p.start(), *p.end())).collect();
    sorted.sort_unstable();
    let mut joined: Vec<(u16, u16)> = Vec::new();
    for (first, last) in sorted {
        match joined.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => joined.push((first, last)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::joined;

    #[test]
    fn ports_are_sorted_and_joined() {
        assert_eq!(
            joined(&[80..=90, 443..=443, 85..=100, 101..=101, 65535..=65535]),
            [(80, 101), (443, 443), (65535, 65535)]
        );
    }
}
