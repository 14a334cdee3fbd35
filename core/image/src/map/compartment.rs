//! A compartment's image.

use super::crossing::Crossings;
use super::{Classifier, Lists, MapError, Section as Name, each, is_station, must, part};
use crate::compartment::*;
use crate::container::{self, Digest, Kind, Section};
use crate::hash::{self, Keyed};
use crate::rules::Verdict;
use guard::guard;
use wire::Tuple;

const SECTIONS: usize = 26;
const RECORDS: [usize; SECTIONS] = [
    size_of::<Tenant>(),
    size_of::<Subnet>(),
    size_of::<Endpoint>(),
    size_of::<OwnPrefix>(),
    size_of::<MacSlot>(),
    size_of::<AddressSlot>(),
    size_of::<RouteRange>(),
    size_of::<Route>(),
    size_of::<Attachment>(),
    size_of::<NextHop>(),
    size_of::<Member>(),
    size_of::<SlotEndpoint>(),
    size_of::<Crossing>(),
    size_of::<ServicePorts>(),
    size_of::<CrossingSlot>(),
    size_of::<NatBlock>(),
    size_of::<Table>(),
    size_of::<RuleGroup>(),
    size_of::<Outcome>(),
    size_of::<u128>(),
    size_of::<u16>(),
    size_of::<u16>(),
    size_of::<Word>(),
    size_of::<u64>(),
    size_of::<RoutedPrefix>(),
    size_of::<ServiceClass>(),
];

/// A checked compartment image: its tables as they lie in memory.
#[derive(Clone, Copy, Debug)]
pub struct CompartmentImage<'a> {
    pub(super) tenants: &'a [Tenant],
    subnets: &'a [Subnet],
    pub(super) endpoints: &'a [Endpoint],
    own_prefixes: &'a [OwnPrefix],
    macs: &'a [MacSlot],
    addresses: &'a [AddressSlot],
    ranges: &'a [RouteRange],
    routes: &'a [Route],
    pub(super) attachments: &'a [Attachment],
    next_hops: &'a [NextHop],
    members: &'a [Member],
    slots: &'a [SlotEndpoint],
    pub(super) crossings: Crossings<'a>,
    pub(super) nat_blocks: &'a [NatBlock],
    classifier: Classifier<'a>,
    classes: &'a [ServiceClass],
    mac_seed: u64,
    address_seed: u64,
    digest: Digest,
}

impl<'a> CompartmentImage<'a> {
    /// Checks an image whole. `bytes` start at a multiple of 16 (a mapping does;
    /// [`crate::Aligned`] otherwise).
    ///
    /// # Errors
    /// [`MapError`]: nothing of it may be used.
    pub fn map(bytes: &'a [u8]) -> Result<CompartmentImage<'a>, MapError> {
        let (sections, digest) = container::open(bytes, Kind::Compartment, &RECORDS)?;
        let image = CompartmentImage::from_sections(bytes, &sections, digest);
        image.check()?;
        Ok(image)
    }

    /// The same for who has counted the digest of these very bytes, and found the one that
    /// the image says it has.
    ///
    /// # Errors
    /// [`MapError`]: nothing of it may be used.
    pub fn map_counted(bytes: &'a [u8]) -> Result<CompartmentImage<'a>, MapError> {
        let image = CompartmentImage::map_again(bytes)?;
        image.check()?;
        Ok(image)
    }

    /// An image that was mapped before and has not changed since: only where its sections
    /// lie is looked at. Of bytes that were never checked nothing that is read means
    /// anything, though reading it is harmless.
    ///
    /// # Errors
    /// [`MapError`]: no such image.
    pub fn map_again(bytes: &'a [u8]) -> Result<CompartmentImage<'a>, MapError> {
        let (sections, digest) = container::open_written(bytes, Kind::Compartment, &RECORDS)?;
        Ok(CompartmentImage::from_sections(bytes, &sections, digest))
    }

    /// Checks what has just been written, but for its digest.
    pub(crate) fn check_written(bytes: &'a [u8]) -> Result<(), MapError> {
        CompartmentImage::map_counted(bytes).map(drop)
    }

    /// Its digest.
    pub const fn digest(&self) -> Digest {
        self.digest
    }
    /// Tenants of the compartment.
    pub const fn tenants(&self) -> &'a [Tenant] {
        self.tenants
    }
    /// Subnets.
    pub const fn subnets(&self) -> &'a [Subnet] {
        self.subnets
    }
    /// Endpoints.
    pub const fn endpoints(&self) -> &'a [Endpoint] {
        self.endpoints
    }
    /// All prefixes of routers; see [`CompartmentImage::own_prefixes_of`].
    pub const fn own_prefixes(&self) -> &'a [OwnPrefix] {
        self.own_prefixes
    }
    /// The hash table of addresses, empty slots included.
    pub const fn addresses(&self) -> &'a [AddressSlot] {
        self.addresses
    }
    /// The hash table of MACs, empty slots included.
    pub const fn macs(&self) -> &'a [MacSlot] {
        self.macs
    }
    /// All ranges; see [`CompartmentImage::ranges_of`].
    pub const fn ranges(&self) -> &'a [RouteRange] {
        self.ranges
    }
    /// Routes.
    pub const fn routes(&self) -> &'a [Route] {
        self.routes
    }
    /// Attachments to uplinks.
    pub const fn attachments(&self) -> &'a [Attachment] {
        self.attachments
    }
    /// Next hops outside.
    pub const fn next_hops(&self) -> &'a [NextHop] {
        self.next_hops
    }
    /// All flood lists; see [`CompartmentImage::members_of`].
    pub const fn members(&self) -> &'a [Member] {
        self.members
    }
    /// What is in each slot.
    pub const fn slots(&self) -> &'a [SlotEndpoint] {
        self.slots
    }

    /// Classes of packets beside best effort; the first is class 1.
    pub const fn classes(&self) -> &'a [ServiceClass] {
        self.classes
    }

    /// Rule tables; see [`CompartmentImage::judge`] and
    /// [`CompartmentImage::rule_table`].
    pub const fn tables(&self) -> &'a [Table] {
        self.classifier.tables
    }
    pub(crate) const fn classifier(&self) -> &Classifier<'a> {
        &self.classifier
    }

    /// What a table (an index, of those that [`Endpoint::egress`] and
    /// [`Endpoint::ingress`] are; [`NONE`] is the caller's to see) says about a packet.
    /// Five searches by halves and an AND; of a table of more than 256 rules five more
    /// for its summary, then five for each group that may hold a match. A table that is
    /// not there lets nothing pass.
    #[inline]
    pub fn judge(&self, table: u32, tuple: &Tuple) -> Verdict {
        self.classifier.judge(table, tuple)
    }

    /// Whether a table (an index) has the very rules of one of another image, in the same
    /// words, wherever they lie. Tables of the same rules may say no, if one was written
    /// otherwise.
    pub fn same_rules(&self, table: u32, other: &CompartmentImage<'_>, others: u32) -> bool {
        self.classifier.same_rules(table, &other.classifier, others)
    }

    /// The index of the endpoint with this MAC in this subnet (an index). At most
    /// eight slots are looked at.
    #[inline]
    pub fn endpoint_by_mac(&self, subnet: u32, mac: [u8; 6]) -> Option<u32> {
        hash::find(self.macs, self.mac_seed, hash::mac_key(subnet, mac)).map(|s| s.endpoint)
    }

    /// The index of the endpoint with this address (IPv4 in its ::ffff: form) in
    /// this subnet. At most eight slots are looked at.
    #[inline]
    pub fn endpoint_by_address(&self, subnet: u32, address: [u8; 16]) -> Option<u32> {
        let key = hash::address_key(subnet, address);
        hash::find(self.addresses, self.address_seed, key).map(|s| s.endpoint)
    }

    /// The index of the endpoint in a slot.
    #[inline]
    pub fn endpoint_by_slot(&self, slot: u32) -> Option<u32> {
        let endpoint = self.slots.get(slot as usize)?.endpoint;
        (endpoint != NONE).then_some(endpoint)
    }

    /// The route of a tenant (an index) toward an address: a binary search, the
    /// longest prefix being resolved already.
    #[inline]
    pub fn route(&self, tenant: u32, address: [u8; 16]) -> Option<&'a Route> {
        let ranges = self.ranges_of(tenant);
        let before = ranges.partition_point(|range| range.start <= address);
        let range = ranges.get(before.checked_sub(1)?)?;
        if address > range.end {
            return None;
        }
        self.routes.get(range.route as usize)
    }

    /// A tenant's ranges, sorted.
    #[inline]
    pub fn ranges_of(&self, tenant: u32) -> &'a [RouteRange] {
        match self.tenants.get(tenant as usize) {
            Some(tenant) => part(self.ranges, tenant.ranges_first, tenant.ranges_count),
            None => &[],
        }
    }

    /// A subnet's flood list.
    #[inline]
    pub fn members_of(&self, subnet: u32) -> &'a [Member] {
        match self.subnets.get(subnet as usize) {
            Some(subnet) => part(self.members, subnet.members_first, subnet.members_count),
            None => &[],
        }
    }

    /// What an endpoint with the router role may source from.
    #[inline]
    pub fn own_prefixes_of(&self, endpoint: &Endpoint) -> &'a [OwnPrefix] {
        part(self.own_prefixes, endpoint.own_first, endpoint.own_count)
    }

    fn from_sections(
        bytes: &'a [u8],
        sections: &[Section; SECTIONS],
        digest: Digest,
    ) -> CompartmentImage<'a> {
        let [
            tenants,
            subnets,
            endpoints,
            own_prefixes,
            macs,
            addresses,
            ranges,
            routes,
            attachments,
            next_hops,
            members,
            slots,
            crossings,
            service_ports,
            crossing_tags,
            nat_blocks,
            tables,
            groups,
            outcomes,
            addresses_of_rules,
            ports_of_rules,
            places,
            words,
            summaries,
            routed_prefixes,
            classes,
        ] = sections;
        CompartmentImage {
            tenants: tenants.slice(bytes),
            subnets: subnets.slice(bytes),
            endpoints: endpoints.slice(bytes),
            own_prefixes: own_prefixes.slice(bytes),
            macs: macs.slice(bytes),
            addresses: addresses.slice(bytes),
            ranges: ranges.slice(bytes),
            routes: routes.slice(bytes),
            attachments: attachments.slice(bytes),
            next_hops: next_hops.slice(bytes),
            members: members.slice(bytes),
            slots: slots.slice(bytes),
            crossings: Crossings {
                crossings: crossings.slice(bytes),
                ports: service_ports.slice(bytes),
                tags: crossing_tags.slice(bytes),
                tag_seed: crossing_tags.seed,
                routed: routed_prefixes.slice(bytes),
            },
            nat_blocks: nat_blocks.slice(bytes),
            classifier: Classifier {
                tables: tables.slice(bytes),
                groups: groups.slice(bytes),
                outcomes: outcomes.slice(bytes),
                addresses: addresses_of_rules.slice(bytes),
                ports: ports_of_rules.slice(bytes),
                places: places.slice(bytes),
                words: words.slice(bytes),
                summaries: summaries.slice(bytes),
            },
            classes: classes.slice(bytes),
            mac_seed: macs.seed,
            address_seed: addresses.seed,
            digest,
        }
    }

    fn check(&self) -> Result<(), MapError> {
        self.check_subnets()?;
        self.check_endpoints()?;
        self.check_hashes()?;
        self.check_outside()?;
        self.check_crossings()?;
        self.check_nat()?;
        self.classifier.check()?;
        self.check_classes()?;
        self.check_routes()
    }

    /// The tenant (an index) of an endpoint (an index).
    pub(super) fn tenant_of(&self, endpoint: u32) -> Option<u32> {
        let endpoint = self.endpoints.get(endpoint as usize)?;
        Some(self.subnets.get(endpoint.subnet as usize)?.tenant)
    }

    fn check_classes(&self) -> Result<(), MapError> {
        if self.classes.len() >= CLASSES {
            let what = "too many classes";
            return Err(MapError::Record {
                section: Name::Classes,
                index: CLASSES as u32,
                what,
            });
        }
        let mut taken = 0;
        each(Name::Classes, self.classes, |_, class| {
            must(class.dscp & taken == 0, "a DSCP value of another class")?;
            taken |= class.dscp;
            must(
                (1..=255).contains(&class.weight),
                "a weight that is not 1 to 255",
            )?;
            must(class.reserved == 0, "reserved is not zero")
        })
    }

    fn check_subnets(&self) -> Result<(), MapError> {
        let mut members = Lists { next: 0 };
        let tags = self.tags();
        each(Name::Subnets, self.subnets, |index, subnet| {
            must(
                (subnet.tenant as usize) < self.tenants.len(),
                "no such tenant",
            )?;
            must(
                subnet.prefix4_len <= 32 && subnet.prefix6_len <= 128,
                "a prefix too long",
            )?;
            must(
                is_station(subnet.gateway_mac),
                "its gateway's MAC is no station's",
            )?;
            must(
                subnet.flags & !(SUBNET_DHCP4 | SUBNET_RA | SUBNET_SLAAC) == 0,
                "unknown flags",
            )?;
            must(subnet.mtu >= 68, "an MTU below 68 (RFC 791)")?;
            must(subnet.reserved == 0, "reserved is not zero")?;
            must(
                subnet.segment == 0
                    || is_once(&tags, subnet.segment)
                    || !guard!("image-segment-tag"),
                "its segment's tag is another's too",
            )?;
            members.take(subnet.members_first, subnet.members_count)?;
            // Bound: the lists are disjoint, so all of this is one pass.
            for member in part(self.members, subnet.members_first, subnet.members_count) {
                let inside = self.endpoints.get(member.endpoint as usize);
                let inside = inside.is_some_and(|e| e.subnet as usize == index);
                must(
                    inside || !guard!("image-member-subnet"),
                    "floods to another subnet",
                )?;
            }
            Ok(())
        })?;
        members.end(Name::Members, self.members.len())
    }

    fn check_endpoints(&self) -> Result<(), MapError> {
        let mut own = Lists { next: 0 };
        each(Name::Endpoints, self.endpoints, |index, endpoint| {
            must(
                (endpoint.subnet as usize) < self.subnets.len(),
                "no such subnet",
            )?;
            must(is_station(endpoint.mac), "its MAC is no station's")?;
            must(
                endpoint.roles & !(ROLE_ROUTER | ROLE_DHCP_SERVER) == 0,
                "unknown roles",
            )?;
            must(endpoint.state <= STATE_QUARANTINED, "an unknown state")?;
            must(endpoint.class < 8, "an unknown class")?;
            must(
                (1..=255).contains(&endpoint.weight),
                "a weight that is not 1 to 255",
            )?;
            must(endpoint.flags & !ENDPOINT_METERED == 0, "unknown flags")?;
            must(endpoint.features & !FEATURE_ALL == 0, "unknown features")?;
            must(endpoint.mtu >= 68, "an MTU below 68 (RFC 791)")?;
            let there = |table| table == NONE || (table as usize) < self.classifier.tables.len();
            must(
                there(endpoint.egress) && there(endpoint.ingress)
                    || !guard!("image-endpoint-table"),
                "no such table of rules",
            )?;
            must(endpoint.slot != 0, "in slot 0, which is the fabric's")?;
            let here = self.slots.get(endpoint.slot as usize);
            let here = here.is_some_and(|slot| slot.endpoint as usize == index);
            must(
                here || !guard!("image-slot-unique"),
                "its slot is another's",
            )?;
            if endpoint.own_count == 0 {
                return must(endpoint.own_first == NONE, "a list of no prefixes");
            }
            must(
                endpoint.roles & ROLE_ROUTER != 0,
                "prefixes without the router role",
            )?;
            own.take(endpoint.own_first, endpoint.own_count)
        })?;
        own.end(Name::OwnPrefixes, self.own_prefixes.len())?;
        each(Name::OwnPrefixes, self.own_prefixes, |_, own| {
            must(own.len <= 128 && own.reserved == 0, "a prefix too long")
        })?;
        if self.slots.len() > MAX_SLOTS as usize {
            let what = "too many slots";
            return Err(MapError::Record {
                section: Name::Slots,
                index: MAX_SLOTS,
                what,
            });
        }
        each(Name::Slots, self.slots, |index, slot| {
            if slot.endpoint == NONE {
                return Ok(());
            }
            let there = self.endpoints.get(slot.endpoint as usize);
            must(
                there.is_some_and(|e| e.slot as usize == index),
                "its endpoint is elsewhere",
            )
        })
    }

    fn check_hashes(&self) -> Result<(), MapError> {
        let mut found = 0;
        each(Name::Macs, self.macs, |_, slot| {
            if slot.is_empty() {
                return must(*slot == MacSlot::EMPTY, "an empty slot that is not empty");
            }
            found += 1;
            let endpoint = self
                .endpoints
                .get(slot.endpoint as usize)
                .ok_or("no such endpoint")?;
            let same = endpoint.subnet == slot.subnet && endpoint.mac == slot.mac;
            must(
                same || !guard!("image-mac-owner"),
                "a MAC that is not its endpoint's",
            )?;
            must(slot.reserved == 0, "reserved is not zero")?;
            must(is_found(self.macs, self.mac_seed, slot), "cannot be found")
        })?;
        table_size(Name::Macs, self.macs.len())?;
        if found != self.endpoints.len() {
            let what = "an endpoint without its MAC";
            return Err(MapError::Record {
                section: Name::Macs,
                index: 0,
                what,
            });
        }
        each(Name::Addresses, self.addresses, |_, slot| {
            if slot.is_empty() {
                return must(
                    *slot == AddressSlot::EMPTY,
                    "an empty slot that is not empty",
                );
            }
            let endpoint = self
                .endpoints
                .get(slot.endpoint as usize)
                .ok_or("no such endpoint")?;
            let same = endpoint.subnet == slot.subnet;
            must(
                same || !guard!("image-address-owner"),
                "an address in another subnet",
            )?;
            must(slot.reserved == [0; 2], "reserved is not zero")?;
            must(
                is_found(self.addresses, self.address_seed, slot),
                "cannot be found",
            )
        })?;
        table_size(Name::Addresses, self.addresses.len())
    }

    fn check_outside(&self) -> Result<(), MapError> {
        let tags = self.tags();
        each(Name::Attachments, self.attachments, |_, attachment| {
            must(
                (attachment.tenant as usize) < self.tenants.len(),
                "no such tenant",
            )?;
            must(is_station(attachment.mac), "its MAC is no station's")?;
            must(attachment.mtu >= 68, "an MTU below 68 (RFC 791)")?;
            let long = attachment.prefix4_len > 32 || attachment.prefix6_len > 128;
            must(!long, "a prefix too long")?;
            must(
                is_once(&tags, attachment.tag) || !guard!("image-tag-unique"),
                "its tag is another's too",
            )
        })?;
        each(Name::NextHops, self.next_hops, |_, hop| {
            must(
                (hop.attachment as usize) < self.attachments.len(),
                "no such attachment",
            )?;
            must(
                hop.mac == [0; 6] || is_station(hop.mac),
                "its MAC is no station's",
            )?;
            must(hop.reserved == [0; 6], "reserved is not zero")
        })
    }

    fn check_routes(&self) -> Result<(), MapError> {
        each(Name::Routes, self.routes, |_, route| {
            must(route.reserved == 0, "reserved is not zero")?;
            must(self.tenant_of_route(route).is_some(), "leads nowhere")
        })?;
        let mut ranges = Lists { next: 0 };
        each(Name::Tenants, self.tenants, |index, tenant| {
            must(
                tenant.id < 1 << 24 && tenant.reserved == 0,
                "an id beyond 24 bits",
            )?;
            ranges.take(tenant.ranges_first, tenant.ranges_count)?;
            let mut last: Option<[u8; 16]> = None;
            // Bound: the lists are disjoint, so all of this is one pass.
            for range in part(self.ranges, tenant.ranges_first, tenant.ranges_count) {
                let sorted = range.start <= range.end && last.is_none_or(|l| l < range.start);
                must(
                    sorted || !guard!("image-range-order"),
                    "its ranges are not in order",
                )?;
                must(range.reserved == [0; 3], "reserved is not zero")?;
                last = Some(range.end);
                let route = self
                    .routes
                    .get(range.route as usize)
                    .ok_or("no such route")?;
                let owner = self.tenant_of_route(route).flatten();
                let own = owner.is_none_or(|owner| owner as usize == index);
                must(
                    own || !guard!("image-route-tenant"),
                    "a route into another tenant",
                )?;
            }
            Ok(())
        })?;
        ranges.end(Name::Ranges, self.ranges.len())
    }

    /// Outer `None`: leads nowhere. Inner `None`: belongs to no tenant.
    #[expect(clippy::option_option, reason = "two different absences")]
    fn tenant_of_route(&self, route: &Route) -> Option<Option<u32>> {
        let subnet = || Some(self.subnets.get(route.subnet as usize)?.tenant);
        match route.kind {
            ROUTE_SUBNET => Some(Some(subnet()?)),
            ROUTE_VIA => {
                let endpoint = self.endpoints.get(route.via as usize)?;
                let fits = endpoint.subnet == route.subnet && endpoint.roles & ROLE_ROUTER != 0;
                let tenant = self.tenant_of(route.via).filter(|_| fits)?;
                Some(Some(tenant))
            }
            ROUTE_OUTSIDE => {
                let hop = self.next_hops.get(route.via as usize)?;
                Some(Some(self.attachments.get(hop.attachment as usize)?.tenant))
            }
            ROUTE_SERVICE => {
                let crossing = self.crossings.crossings.get(route.via as usize)?;
                Some(Some(crossing.tenant))
            }
            ROUTE_UNREACHABLE => Some(None),
            _ => None,
        }
    }
}

pub(super) fn is_found<T: Keyed>(table: &[T], seed: u64, slot: &T) -> bool {
    hash::find(table, seed, slot.key()).is_some_and(|found| core::ptr::eq(found, slot))
}

/// Whether a sorted list has a tag exactly once.
pub(super) fn is_once(sorted: &[u16], tag: u16) -> bool {
    let at = sorted.partition_point(|t| *t <= tag);
    at - sorted.partition_point(|t| *t < tag) == 1
}

pub(super) fn table_size(section: Name, len: usize) -> Result<(), MapError> {
    if len == 0 || len.is_power_of_two() {
        return Ok(());
    }
    Err(MapError::Record {
        section,
        index: 0,
        what: "the table is no power of two",
    })
}

/// A checked compartment image together with what owns its memory, so that a
/// process can hold it and swap it.
#[derive(Clone, Debug)]
pub struct MappedCompartment<O> {
    owner: O,
    sections: [Section; SECTIONS],
    digest: Digest,
}

impl<O: AsRef<[u8]>> MappedCompartment<O> {
    /// Checks the owner's bytes, which must not change afterwards (a sealed memfd).
    ///
    /// # Errors
    /// [`MapError`].
    pub fn map(owner: O) -> Result<MappedCompartment<O>, MapError> {
        let (sections, digest) = container::open(owner.as_ref(), Kind::Compartment, &RECORDS)?;
        CompartmentImage::from_sections(owner.as_ref(), &sections, digest).check()?;
        Ok(MappedCompartment {
            owner,
            sections,
            digest,
        })
    }
    /// The image. Costs a few instructions a section: once a batch.
    pub fn image(&self) -> CompartmentImage<'_> {
        CompartmentImage::from_sections(self.owner.as_ref(), &self.sections, self.digest)
    }
    /// Its digest.
    pub const fn digest(&self) -> Digest {
        self.digest
    }
}
