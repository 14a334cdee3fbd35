//! A structural check of finished images: that nothing in them joins two
//! compartments, or two tenants inside one.
//!
//! It reads the images alone, not what they were made from, so that a fault of the
//! compiler shows. It is where the proof of isolation starts.

use crate::agreements::Agreement;
use crate::intent::{CompartmentIntent, Intent};
use guard::guard;
use image::compartment::{ROUTE_OUTSIDE, ROUTE_SUBNET, ROUTE_VIA};
use image::fabric::{
    CHANNEL_COMPARTMENT, CHANNEL_UPLINK, FORWARD_GROUP, FORWARD_UNICAST, GroupMember,
};
use image::{Aligned, CompartmentImage, FabricImage};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What breaks isolation: our own fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Breach {
    /// An image that cannot be read; slot 0 = the fabric's.
    Unreadable {
        /// Fabric slot of the compartment.
        slot: u32,
        /// What its mapping said.
        why: String,
    },
    /// A fabric entry between two compartments.
    Joins {
        /// Ingress slot.
        ingress: u32,
        /// Egress slot.
        egress: u32,
    },
    /// A fabric entry for a tag that is not an attachment of the compartment.
    ForeignTag {
        /// Fabric slot of the compartment.
        slot: u32,
        /// The tag.
        tag: u16,
    },
    /// A station's entry from an uplink whose MAC is not the attachment's.
    ForeignMac {
        /// Fabric slot of the compartment.
        slot: u32,
        /// The MAC.
        mac: [u8; 6],
    },
    /// A template that leaves the source MAC open, or speaks for another attachment's.
    OpenTemplate {
        /// Fabric slot of the compartment.
        slot: u32,
        /// The tag.
        tag: u16,
    },
    /// A compartment's channel whose image is missing.
    NoImage {
        /// Fabric slot of the compartment.
        slot: u32,
    },
    /// Inside a compartment, a route of one tenant that ends in another.
    Route {
        /// Fabric slot of the compartment.
        slot: u32,
        /// 24-bit id of the tenant whose route it is.
        tenant: u32,
    },
    /// Inside a compartment, an address or a flood list that reaches another subnet.
    Subnet {
        /// Fabric slot of the compartment.
        slot: u32,
        /// Host-wide id of the subnet.
        subnet: u32,
    },
    /// A tag that two attachments or agreements of the host have.
    SharedTag {
        /// The tag.
        tag: u16,
    },
}

/// All breaches in a host's images: the fabric's, and each compartment's by its slot.
/// Between two compartments only what these live agreements say is none.
/// Empty = none was found.
pub fn check_isolation<'a>(
    fabric: &[u8],
    compartments: impl IntoIterator<Item = (u32, &'a [u8])>,
    agreements: &[Agreement],
) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let mut attachments: BTreeMap<u32, BTreeMap<u16, [u8; 6]>> = BTreeMap::new();
    let mut tags = BTreeSet::new();
    for agreement in agreements {
        if !tags.insert(agreement.tag) {
            breaches.push(Breach::SharedTag { tag: agreement.tag });
        }
    }
    for (slot, bytes) in compartments {
        let memory = Aligned::copy_of(bytes);
        match CompartmentImage::map(memory.as_ref()) {
            Ok(image) => {
                inside(slot, &image, &mut breaches);
                let own = attachments.entry(slot).or_default();
                for attachment in image.attachments() {
                    own.insert(attachment.tag, attachment.mac);
                    if !tags.insert(attachment.tag) {
                        breaches.push(Breach::SharedTag {
                            tag: attachment.tag,
                        });
                    }
                }
            }
            Err(error) => breaches.push(Breach::Unreadable {
                slot,
                why: error.to_string(),
            }),
        }
    }
    let memory = Aligned::copy_of(fabric);
    match FabricImage::map(memory.as_ref()) {
        Ok(image) => between(&image, &attachments, agreements, &mut breaches),
        Err(error) => breaches.push(Breach::Unreadable {
            slot: 0,
            why: error.to_string(),
        }),
    }
    breaches
}

/// [`check_isolation`] of an intent's images. With one `before` that was found good
/// and has the same compartments and the same fabric, only the images are looked at
/// that differ, as long as their attachments are what they were.
pub fn check_after(intent: &Intent, before: Option<&Intent>) -> Vec<Breach> {
    before
        .and_then(|before| changed(intent, before))
        .unwrap_or_else(|| {
            let images = intent.compartments.values();
            check_isolation(
                &intent.fabric.bytes,
                images.map(|one| (one.create.id, &*one.image.bytes)),
                &intent.agreements,
            )
        })
}

/// The breaches in what differs; `None` = what differs is more than can be judged alone.
fn changed(intent: &Intent, before: &Intent) -> Option<Vec<Breach>> {
    let same_host = intent.fabric.bytes == before.fabric.bytes
        && intent.agreements == before.agreements
        && intent.compartments.keys().eq(before.compartments.keys());
    if !same_host {
        return None;
    }
    let mut breaches = Vec::new();
    for (one, old) in intent
        .compartments
        .values()
        .zip(before.compartments.values())
        .filter(|(one, old)| !Arc::ptr_eq(one, old))
    {
        let own = |of: &CompartmentIntent, found: Option<&mut Vec<Breach>>| {
            let memory = Aligned::copy_of(&of.image.bytes);
            let image = CompartmentImage::map(memory.as_ref()).ok()?;
            if let Some(found) = found {
                inside(of.create.id, &image, found);
            }
            let own = image.attachments().iter().map(|a| (a.tag, a.mac));
            Some(own.collect::<Vec<_>>())
        };
        if own(one, Some(&mut breaches))? != own(old, None)? {
            return None;
        }
    }
    Some(breaches)
}

fn between(
    image: &FabricImage<'_>,
    attachments: &BTreeMap<u32, BTreeMap<u16, [u8; 6]>>,
    agreements: &[Agreement],
    breaches: &mut Vec<Breach>,
) {
    let agreed: BTreeSet<(u32, u32, u16)> = agreements
        .iter()
        .flat_map(|a| {
            let (one, other) = (a.acceptor_slot, a.offerer_slot);
            [(one, other, a.tag), (other, one, a.tag)]
        })
        .collect();
    let kind = |slot: u32| image.channel(slot).map(|c| c.kind);
    let mac_of = |slot: u32, tag: u16| {
        attachments
            .get(&slot)
            .and_then(|own| own.get(&tag))
            .copied()
    };
    for channel in image
        .channels()
        .iter()
        .filter(|c| c.kind == CHANNEL_COMPARTMENT)
    {
        if !attachments.contains_key(&channel.slot) {
            breaches.push(Breach::NoImage { slot: channel.slot });
        }
        for template in image.templates(channel) {
            let full = template
                .mask
                .get(6..12)
                .is_some_and(|m| m.iter().all(|b| *b == 0xff));
            let own = mac_of(channel.slot, template.tag);
            if !full || own.is_none() || template.value.get(6..12) != own.as_ref().map(|m| &m[..]) {
                breaches.push(Breach::OpenTemplate {
                    slot: channel.slot,
                    tag: template.tag,
                });
            }
        }
    }
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
            match (kind(entry.ingress), kind(member.slot)) {
                (Some(CHANNEL_COMPARTMENT), Some(CHANNEL_UPLINK)) => {
                    if mac_of(entry.ingress, entry.tag).is_none() {
                        breaches.push(Breach::ForeignTag {
                            slot: entry.ingress,
                            tag: entry.tag,
                        });
                    }
                }
                (Some(CHANNEL_UPLINK), Some(CHANNEL_COMPARTMENT)) => {
                    match mac_of(member.slot, member.out_tag) {
                        None => breaches.push(Breach::ForeignTag {
                            slot: member.slot,
                            tag: member.out_tag,
                        }),
                        Some(mac) if entry.kind == FORWARD_UNICAST && mac != entry.mac => {
                            breaches.push(Breach::ForeignMac {
                                slot: member.slot,
                                mac: entry.mac,
                            });
                        }
                        Some(_) => {}
                    }
                }
                (Some(CHANNEL_COMPARTMENT), Some(CHANNEL_COMPARTMENT))
                    if agreed.contains(&(entry.ingress, member.slot, entry.tag))
                        && (member.out_tag == entry.tag || !guard!("isolation-agreement-tag"))
                        && entry.kind == FORWARD_UNICAST
                        && entry.mac == [0; 6] => {}
                _ if !guard!("isolation-joins") => {}
                _ => breaches.push(Breach::Joins {
                    ingress: entry.ingress,
                    egress: member.slot,
                }),
            }
        }
    }
}

fn inside(slot: u32, image: &CompartmentImage<'_>, breaches: &mut Vec<Breach>) {
    let tenant_of_subnet = |subnet: u32| image.subnets().get(subnet as usize).map(|s| s.tenant);
    let subnet_of = |endpoint: u32| image.endpoints().get(endpoint as usize).map(|e| e.subnet);
    for (index, tenant) in (0..).zip(image.tenants()) {
        let foreign = image.ranges_of(index).iter().any(|range| {
            let Some(route) = image.routes().get(range.route as usize) else {
                return true;
            };
            let owner = match route.kind {
                ROUTE_SUBNET => tenant_of_subnet(route.subnet),
                ROUTE_VIA => subnet_of(route.via).and_then(tenant_of_subnet),
                ROUTE_OUTSIDE => {
                    let hop = image.next_hops().get(route.via as usize);
                    hop.and_then(|h| image.attachments().get(h.attachment as usize))
                        .map(|a| a.tenant)
                }
                _ => Some(index),
            };
            owner != Some(index)
        });
        if foreign {
            breaches.push(Breach::Route {
                slot,
                tenant: tenant.id,
            });
        }
    }
    for (index, subnet) in (0..).zip(image.subnets()) {
        if image
            .members_of(index)
            .iter()
            .any(|m| subnet_of(m.endpoint) != Some(index))
        {
            breaches.push(Breach::Subnet {
                slot,
                subnet: subnet.id,
            });
        }
    }
    for entry in image
        .addresses()
        .iter()
        .filter(|a| a.endpoint != image::compartment::NONE)
    {
        if subnet_of(entry.endpoint) != Some(entry.subnet) {
            let id = image
                .subnets()
                .get(entry.subnet as usize)
                .map_or(0, |s| s.id);
            breaches.push(Breach::Subnet { slot, subnet: id });
        }
    }
}
