//! Small tables that are right.

use crate::compartment::*;
use crate::fabric::*;
use crate::{CompartmentTables, FabricTables};

pub fn v4(address: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = address;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, a, b, c, d]
}

/// One tenant, subnets 10.0.s.0/24, endpoints in slots from 1, an attachment.
pub fn compartment(subnets: u32, endpoints_each: u32) -> CompartmentTables {
    let mut tables = CompartmentTables {
        tenants: vec![Tenant {
            id: 7,
            ..Tenant::default()
        }],
        attachments: vec![Attachment {
            mac: [2, 1, 1, 1, 1, 1],
            tag: 5,
            mtu: 1500,
            ..Attachment::default()
        }],
        next_hops: vec![NextHop {
            address: v4([192, 0, 2, 1]),
            ..NextHop::default()
        }],
        ..CompartmentTables::default()
    };
    for s in 0..subnets {
        tables.subnets.push(Subnet {
            id: 50 + s,
            prefix4: [10, 0, s as u8, 0],
            prefix4_len: 24,
            gateway4: [10, 0, s as u8, 1],
            gateway_mac: [2, 9, 0, 0, 0, s as u8],
            mtu: 1500,
            ..Subnet::default()
        });
        tables.routes.push(Route {
            kind: ROUTE_SUBNET,
            subnet: s,
            ..Route::default()
        });
        let (start, end) = (v4([10, 0, s as u8, 0]), v4([10, 0, s as u8, 255]));
        tables.ranges.push((
            0,
            RouteRange {
                start,
                end,
                route: s,
                reserved: [0; 3],
            },
        ));
        for e in 0..endpoints_each {
            let index = tables.endpoints.len() as u32;
            tables.endpoints.push(Endpoint {
                id: 100 + index,
                subnet: s,
                slot: 1 + index,
                mac: [2, 0, 0, 0, s as u8, e as u8],
                mtu: 1500,
                own_first: NONE,
                ..Endpoint::default()
            });
            tables.members.push((s, index));
            tables
                .addresses
                .push((index, v4([10, 0, s as u8, 10 + e as u8])));
        }
    }
    tables
}

/// Compartments in slots 1 and 2, an uplink in slot 9; 1 has an attachment there.
pub fn fabric() -> FabricTables {
    let channel = |id, kind, slot| Channel {
        id,
        kind,
        slot,
        weight: 1,
        ..Channel::default()
    };
    let forward = |ingress, tag, mac, target, out_tag, kind| Forward {
        ingress,
        tag,
        mac,
        target,
        out_tag,
        kind,
    };
    let mut template = Template {
        egress: 9,
        tag: 5,
        len: 14,
        ..Template::default()
    };
    template.mask[6..12].fill(255);
    template.value[6..12].copy_from_slice(&[2, 0, 0, 0, 1, 1]);
    FabricTables {
        channels: vec![
            channel(1, CHANNEL_COMPARTMENT, 1),
            channel(2, CHANNEL_COMPARTMENT, 2),
            channel(0, CHANNEL_UPLINK, 9),
        ],
        forwards: vec![
            forward(1, 5, [0; 6], 9, 0, FORWARD_UNICAST),
            forward(1, 5, [255; 6], 0, 0, FORWARD_GROUP),
            forward(9, 0, [2, 0, 0, 0, 1, 1], 1, 5, FORWARD_UNICAST),
        ],
        groups: vec![vec![GroupMember {
            slot: 9,
            ..GroupMember::default()
        }]],
        templates: vec![(0, template)],
    }
}

/// Offset and bytes of one of a compartment's sections, by its number of those that the
/// fabric has not and that came after it.
pub fn section_at(image: &[u8], number: usize) -> (usize, usize) {
    // The fabric's five have no place here.
    let entry = &image[64 + 32 * (number - 5)..];
    let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap()) as usize;
    let record = u32::from_le_bytes(entry[..4].try_into().unwrap()) as usize;
    (word(8), word(16) * record)
}
