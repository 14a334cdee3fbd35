//! A tenant's ways outside: attachments, next hops and the routes to them.

use super::Work;
use crate::ids::{AttachmentIds, outward_sources};
use crate::intent::{AttachmentIntent, NatBlock};
use crate::mac::made;
use crate::routes::Prefixes;
use core::net::IpAddr;
use image::compartment::{Attachment, NONE, NextHop, ROUTE_OUTSIDE, Route};
use spec::{Name, Outside, OutsideRoute, Prefix, Tenant, mapped};
use std::collections::BTreeSet;

/// A tenant's ways outside with their places in the table.
pub(super) struct Ways<'a> {
    list: Vec<Way<'a>>,
}

struct Way<'a> {
    outside: &'a Outside,
    /// Index into attachments.
    attachment: u32,
    /// Index into the intent's attachments.
    intent: usize,
}

impl Work<'_> {
    pub(super) fn outside<'t>(&mut self, tenant: &'t Tenant, index: u32) -> Ways<'t> {
        let spec = self.spec;
        let mut list = Vec::new();
        for outside in &tenant.outside {
            let name = outside.uplink.as_str();
            let Some(uplink) = spec.uplinks.iter().find(|u| u.name.as_str() == name) else {
                continue;
            };
            let number = self.ids.uplinks.get(name).map_or(0, |u| u.number);
            let ids = self
                .ids
                .tenants
                .get(tenant.name.as_str())
                .and_then(|t| t.attachments.get(name));
            let tag = ids.map_or(0, |a| a.tag);
            // Written MACs of others on this uplink are not made again.
            let all = spec
                .tenants
                .iter()
                .flat_map(|t| &t.outside)
                .filter(|o| o.uplink.as_str() == name);
            let mut taken: BTreeSet<[u8; 6]> =
                all.filter_map(|o| o.mac).map(|m| m.value.0).collect();
            let words = ["attachment", spec.host_name(), tenant.name.as_str(), name];
            let mac = outside
                .mac
                .map_or_else(|| made(&words, &mut taken), |m| m.value.0);
            let (v4, v6) = (outside.address4(), outside.address6());
            let attachment = self.tables.attachments.len() as u32;
            self.tables.attachments.push(Attachment {
                tenant: index,
                uplink: number,
                mac,
                tag,
                mtu: uplink.effective_mtu() as u16,
                prefix4_len: v4.map_or(0, |a| a.len),
                prefix6_len: v6.map_or(0, |a| a.len),
                address4: match v4.map(|a| a.address) {
                    Some(IpAddr::V4(a)) => a.octets(),
                    _ => [0; 4],
                },
                address6: v6.map_or([0; 16], |a| mapped(a.address)),
                ..Attachment::default()
            });
            list.push(Way {
                outside,
                attachment,
                intent: self.attachments.len(),
            });
            self.attachments.push(AttachmentIntent {
                tenant: tenant.name.to_string(),
                uplink: number,
                tag,
                vlan: outside.vlan(),
                mac,
                addresses: v4
                    .into_iter()
                    .chain(v6)
                    .map(|a| mapped(a.address))
                    .collect(),
                sources: outward_sources(tenant, outside).collect(),
                next_hops: Vec::new(),
                nat_ports: outside.nat_ports() as u16,
                nat: self.blocks(tenant, ids),
            });
        }
        Ways { list }
    }

    /// Blocks of ports by number.
    fn blocks(&self, tenant: &Tenant, ids: Option<&AttachmentIds>) -> Vec<NatBlock> {
        let endpoints = self.ids.tenants.get(tenant.name.as_str());
        let slot = |name: &str| Some(endpoints?.endpoints.get(name)?.slot);
        let mut blocks: Vec<NatBlock> = ids
            .into_iter()
            .flat_map(|ids| &ids.blocks)
            .filter_map(|(name, number)| {
                Some(NatBlock {
                    number: *number,
                    slot: slot(name)?,
                })
            })
            .collect();
        blocks.sort_by_key(|b| b.number);
        blocks
    }
}

impl Ways<'_> {
    /// A route outside by this uplink (`None` = the only one) for a prefix.
    pub(super) fn route(
        &mut self,
        work: &mut Work<'_>,
        uplink: Option<&Name>,
        to: Prefix,
    ) -> Option<Route> {
        let way = self
            .list
            .iter()
            .find(|w| uplink.is_none_or(|name| w.outside.uplink.value == *name))?;
        way.hop(work, to.is_v4(), None)
    }

    /// The routes that the ways themselves name; by default everything.
    pub(super) fn own_routes(&self, work: &mut Work<'_>, tenant: &Tenant, prefixes: &mut Prefixes) {
        for way in &self.list {
            for OutsideRoute { to, gateway } in way.outside.routes.iter().flatten() {
                if let Some(route) = way.hop(work, to.is_v4(), gateway.map(|g| g.mapped())) {
                    let route = work.route(route);
                    prefixes.add(to.value, route);
                }
            }
        }
        let everything = ["0.0.0.0/0", "::/0"]
            .into_iter()
            .filter_map(|p| p.parse::<Prefix>().ok());
        for to in everything {
            let written = tenant.routes.iter().any(|r| r.to.value == to) || prefixes.has(to);
            let way = self.list.iter().find(|w| {
                w.outside.routes.is_none() && w.outside.gateway_for(to.is_v4()).is_some()
            });
            if let Some(route) = way
                .filter(|_| !written)
                .and_then(|way| way.hop(work, to.is_v4(), None))
            {
                let route = work.route(route);
                prefixes.add(to, route);
            }
        }
    }
}

impl Way<'_> {
    /// A route by a next hop, which is added where it is new.
    fn hop(&self, work: &mut Work<'_>, v4: bool, gateway: Option<[u8; 16]>) -> Option<Route> {
        let address = gateway.or_else(|| self.outside.gateway_for(v4).map(|g| g.mapped()))?;
        let hop = NextHop {
            address,
            attachment: self.attachment,
            mac: [0; 6],
            reserved: [0; 6],
        };
        let known = work.tables.next_hops.iter().position(|h| *h == hop);
        let via = known.unwrap_or_else(|| {
            work.tables.next_hops.push(hop);
            work.tables.next_hops.len() - 1
        });
        if let Some(intent) = work.attachments.get_mut(self.intent)
            && !intent.next_hops.contains(&address)
        {
            intent.next_hops.push(address);
        }
        Some(Route {
            kind: ROUTE_OUTSIDE,
            subnet: NONE,
            via: via as u32,
            reserved: 0,
        })
    }
}
