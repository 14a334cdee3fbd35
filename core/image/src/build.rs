//! Writing an image from plain tables. Hash tables, the order of ranges, lists and
//! what is in each slot are made here; what comes out has been mapped once.

mod classifier;

use crate::compartment::{
    AddressSlot, Attachment, Crossing, CrossingSlot, Endpoint, MacSlot, Member, NONE, NatBlock,
    NextHop, OwnPrefix, Route, RouteRange, RoutedPrefix, ServiceClass, ServicePorts, SlotEndpoint,
    Subnet, Tenant,
};
use crate::container::{self, Aligned, Kind, Part};
use crate::fabric::{Channel, Forward, Group, GroupMember, SlotChannel, Template};
use crate::hash;
use crate::map::{CompartmentImage, FabricImage, MapError};
use crate::rules::RuleTable;

/// The tables of a compartment. Indices are positions in these vectors.
///
/// Lists are given as pairs (index of the owner, element) in any order; the
/// `*_first` and `*_count` fields of records are filled in here, whatever they
/// hold, and so is [`Endpoint::nat_index`]. Inside a list the given order stays, but
/// ranges and ports of services are sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompartmentTables {
    /// Tenants.
    pub tenants: Vec<Tenant>,
    /// Subnets.
    pub subnets: Vec<Subnet>,
    /// Endpoints; each one's (subnet, MAC) becomes an entry of the MAC table.
    pub endpoints: Vec<Endpoint>,
    /// (endpoint, prefix): what routers may source from.
    pub own_prefixes: Vec<(u32, OwnPrefix)>,
    /// (endpoint, address): every address an endpoint has, IPv4 in its ::ffff: form.
    pub addresses: Vec<(u32, [u8; 16])>,
    /// (tenant, range); disjoint inside a tenant.
    pub ranges: Vec<(u32, RouteRange)>,
    /// Routes.
    pub routes: Vec<Route>,
    /// Attachments to uplinks.
    pub attachments: Vec<Attachment>,
    /// Next hops outside.
    pub next_hops: Vec<NextHop>,
    /// (subnet, endpoint): who gets broadcasts.
    pub members: Vec<(u32, u32)>,
    /// What endpoints' `egress` and `ingress` are indices of.
    pub rule_tables: Vec<RuleTable>,
    /// Sides of agreements.
    pub crossings: Vec<Crossing>,
    /// (crossing, ports of its service); disjoint inside a crossing.
    pub service_ports: Vec<(u32, ServicePorts)>,
    /// (crossing, prefix of one of its sides).
    pub routed_prefixes: Vec<(u32, RoutedPrefix)>,
    /// (attachment, endpoint or NONE): whose each block of ports is, in their order.
    pub nat_blocks: Vec<(u32, u32)>,
    /// Classes of packets beside best effort, class 1 first.
    pub classes: Vec<ServiceClass>,
}

/// The tables of the fabric. Lists as in [`CompartmentTables`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricTables {
    /// Channels.
    pub channels: Vec<Channel>,
    /// Entries, in any order; none empty.
    pub forwards: Vec<Forward>,
    /// The members of each group.
    pub groups: Vec<Vec<GroupMember>>,
    /// (index of the channel, template).
    pub templates: Vec<(u32, Template)>,
}

/// Why no image was written: the caller's tables contradict themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// Two endpoints of a subnet with one MAC.
    #[error("subnet {subnet}: two endpoints have MAC {mac:02x?}")]
    MacTwice {
        /// Index of the subnet.
        subnet: u32,
        /// The MAC.
        mac: [u8; 6],
    },
    /// Two endpoints of a subnet with one address.
    #[error("subnet {subnet}: address {address:02x?} is there twice")]
    AddressTwice {
        /// Index of the subnet.
        subnet: u32,
        /// The address.
        address: [u8; 16],
    },
    /// Two crossings with one tag.
    #[error("two crossings have tag {tag}")]
    TagTwice {
        /// The tag.
        tag: u16,
    },
    /// A table of more rules than [`MAX_RULES`](crate::rules::MAX_RULES).
    #[error("rule table {table}: {rules} rules are too many")]
    Rules {
        /// Index of the table.
        table: u32,
        /// Its rules.
        rules: usize,
    },
    /// A rule that no packet is in.
    #[error("rule table {table}: rule {rule} contains nothing")]
    EmptyRegion {
        /// Index of the table.
        table: u32,
        /// The rule's place there.
        rule: usize,
    },
    /// Two entries for one (ingress, tag, MAC).
    #[error("ingress {ingress}, tag {tag}: two entries for MAC {mac:02x?}")]
    ForwardTwice {
        /// Ingress slot.
        ingress: u32,
        /// Tag.
        tag: u16,
        /// Destination MAC.
        mac: [u8; 6],
    },
    /// A list's element whose owner does not exist.
    #[error("a list element whose owner {0} does not exist")]
    NoOwner(u32),
    /// A slot beyond `MAX_SLOTS`.
    #[error("slot {0} is beyond the last")]
    Slot(u32),
    /// Everything else that mapping refuses.
    #[error("{0}")]
    Refused(#[from] MapError),
}

impl CompartmentTables {
    /// The image.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn finish(&self) -> Result<Vec<u8>, BuildError> {
        let (mut tenants, mut subnets) = (self.tenants.clone(), self.subnets.clone());
        let mut endpoints = self.endpoints.clone();

        let mut ranges = self.ranges.clone();
        ranges.sort_by_key(|(tenant, range)| (*tenant, range.start));
        let ranges = lists(&ranges, &mut tenants, |tenant, first, count| {
            (tenant.ranges_first, tenant.ranges_count) = (first, count);
        })?;
        let members = lists(&self.members, &mut subnets, |subnet, first, count| {
            (subnet.members_first, subnet.members_count) = (first, count);
        })?;
        let members: Vec<Member> = members.iter().map(|e| Member { endpoint: *e }).collect();
        let own = lists(
            &self.own_prefixes,
            &mut endpoints,
            |endpoint, first, count| {
                let first = if count == 0 { NONE } else { first };
                (endpoint.own_first, endpoint.own_count) = (first, count);
            },
        )?;

        let mut attachments = self.attachments.clone();
        let blocks = lists(
            &self.nat_blocks,
            &mut attachments,
            |attachment, first, count| {
                (attachment.blocks_first, attachment.blocks_count) = (first, count);
            },
        )?;
        number_blocks(&attachments, &blocks, &mut endpoints);
        let blocks: Vec<NatBlock> = blocks
            .iter()
            .map(|endpoint| NatBlock {
                endpoint: *endpoint,
            })
            .collect();
        let mut crossings = self.crossings.clone();
        let mut ports = self.service_ports.clone();
        ports.sort_by_key(|(crossing, ports)| (*crossing, ports.protocol, ports.first));
        let ports = lists(&ports, &mut crossings, |crossing, first, count| {
            (crossing.ports_first, crossing.ports_count) = (first, count);
        })?;
        let routed = lists(
            &self.routed_prefixes,
            &mut crossings,
            |crossing, first, count| {
                (crossing.prefixes_first, crossing.prefixes_count) = (first, count);
            },
        )?;
        let tags: Vec<CrossingSlot> = (0..)
            .zip(&crossings)
            .map(|(crossing, c)| CrossingSlot {
                crossing,
                tag: c.tag,
                reserved: 0,
            })
            .collect();
        let (tags, tag_seed) =
            hash::build(&tags).map_err(|twice| BuildError::TagTwice { tag: twice.tag })?;
        let rules = classifier::write(&self.rule_tables)?;

        let macs: Vec<MacSlot> = (0..)
            .zip(&endpoints)
            .map(|(i, e)| MacSlot {
                subnet: e.subnet,
                endpoint: i,
                mac: e.mac,
                reserved: 0,
            })
            .collect();
        let (macs, mac_seed) = hash::build(&macs).map_err(|twice| BuildError::MacTwice {
            subnet: twice.subnet,
            mac: twice.mac,
        })?;
        let addresses = self
            .addresses
            .iter()
            .map(|(endpoint, address)| {
                let owner = endpoints.get(*endpoint as usize);
                let subnet = owner.ok_or(BuildError::NoOwner(*endpoint))?.subnet;
                let (endpoint, address) = (*endpoint, *address);
                Ok(AddressSlot {
                    address,
                    subnet,
                    endpoint,
                    reserved: [0; 2],
                })
            })
            .collect::<Result<Vec<_>, BuildError>>()?;
        let (addresses, address_seed) =
            hash::build(&addresses).map_err(|twice| BuildError::AddressTwice {
                subnet: twice.subnet,
                address: twice.address,
            })?;
        let slots = slots(
            endpoints.iter().map(|e| e.slot),
            SlotEndpoint { endpoint: NONE },
            |endpoint| SlotEndpoint { endpoint },
        )?;

        let image = container::write(
            Kind::Compartment,
            &[
                Part::of(&tenants),
                Part::of(&subnets),
                Part::of(&endpoints),
                Part::of(&own),
                Part::seeded(&macs, mac_seed),
                Part::seeded(&addresses, address_seed),
                Part::of(&ranges),
                Part::of(&self.routes),
                Part::of(&attachments),
                Part::of(&self.next_hops),
                Part::of(&members),
                Part::of(&slots),
                Part::of(&crossings),
                Part::of(&ports),
                Part::seeded(&tags, tag_seed),
                Part::of(&blocks),
                Part::of(&rules.tables),
                Part::of(&rules.groups),
                Part::of(&rules.outcomes),
                Part::of(&rules.addresses),
                Part::of(&rules.ports),
                Part::of(&rules.places),
                Part::of(&rules.words),
                Part::of(&rules.summaries),
                Part::of(&routed),
                Part::of(&self.classes),
            ],
        );
        CompartmentImage::check_written(Aligned::copy_of(&image).as_ref())?;
        Ok(image)
    }
}

impl FabricTables {
    /// The image.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn finish(&self) -> Result<Vec<u8>, BuildError> {
        let mut channels = self.channels.clone();
        let templates = lists(&self.templates, &mut channels, |channel, first, count| {
            (channel.templates_first, channel.templates_count) = (first, count);
        })?;
        let (forwards, seed) =
            hash::build(&self.forwards).map_err(|twice| BuildError::ForwardTwice {
                ingress: twice.ingress,
                tag: twice.tag,
                mac: twice.mac,
            })?;
        let mut members = Vec::new();
        let mut groups = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            let (members_first, members_count) = (members.len() as u32, group.len() as u32);
            groups.push(Group {
                members_first,
                members_count,
            });
            members.extend_from_slice(group);
        }
        let slots = slots(
            channels.iter().map(|c| c.slot),
            SlotChannel { channel: NONE },
            |channel| SlotChannel { channel },
        )?;
        let image = container::write(
            Kind::Fabric,
            &[
                Part::of(&channels),
                Part::seeded(&forwards, seed),
                Part::of(&groups),
                Part::of(&members),
                Part::of(&templates),
                Part::of(&slots),
            ],
        );
        FabricImage::check_written(Aligned::copy_of(&image).as_ref())?;
        Ok(image)
    }
}

/// Tells each endpoint the number of its block, of those whose endpoints are in `blocks`.
/// Mapping refuses one that has another number elsewhere.
fn number_blocks(attachments: &[Attachment], blocks: &[u32], endpoints: &mut [Endpoint]) {
    for endpoint in &mut *endpoints {
        endpoint.nat_index = NONE;
    }
    let lists = attachments.iter().flat_map(|a| 0..a.blocks_count);
    for (number, endpoint) in lists.zip(blocks) {
        if let Some(endpoint) = endpoints.get_mut(*endpoint as usize) {
            endpoint.nat_index = number;
        }
    }
}

/// Puts the elements in the order of their owners and tells each owner its list.
fn lists<O, E: Clone>(
    elements: &[(u32, E)],
    owners: &mut [O],
    mut tell: impl FnMut(&mut O, u32, u32),
) -> Result<Vec<E>, BuildError> {
    let mut sorted: Vec<&(u32, E)> = elements.iter().collect();
    sorted.sort_by_key(|(owner, _)| *owner);
    if let Some((owner, _)) = sorted.last()
        && *owner as usize >= owners.len()
    {
        return Err(BuildError::NoOwner(*owner));
    }
    let mut first = 0;
    for (index, owner) in owners.iter_mut().enumerate() {
        let rest = sorted.get(first..).unwrap_or(&[]);
        let count = rest
            .iter()
            .take_while(|(owner, _)| *owner as usize == index)
            .count();
        tell(owner, first as u32, count as u32);
        first += count;
    }
    Ok(sorted
        .into_iter()
        .map(|(_, element)| element.clone())
        .collect())
}

/// The section that says what is in each slot.
fn slots<S: Copy>(
    of: impl Iterator<Item = u32>,
    empty: S,
    full: impl Fn(u32) -> S,
) -> Result<Vec<S>, BuildError> {
    let mut table = Vec::new();
    for (index, slot) in (0..).zip(of) {
        if slot >= crate::compartment::MAX_SLOTS {
            return Err(BuildError::Slot(slot));
        }
        if table.len() <= slot as usize {
            table.resize(slot as usize + 1, empty);
        }
        if let Some(place) = table.get_mut(slot as usize) {
            *place = full(index);
        }
    }
    Ok(table)
}
