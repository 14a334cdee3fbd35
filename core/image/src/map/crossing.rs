//! Crossings and blocks of ports: finding and checking them.

use super::compartment::{CompartmentImage, is_found, is_once, table_size};
use super::{Lists, MapError, Section as Name, each, must, part};
use crate::compartment::*;
use crate::hash::{self, Keyed};
use core::ops::RangeInclusive;
use guard::guard;
use wire::address::mapped;

/// The sections of crossings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crossings<'a> {
    pub(super) crossings: &'a [Crossing],
    pub(super) ports: &'a [ServicePorts],
    pub(super) tags: &'a [CrossingSlot],
    pub(super) tag_seed: u64,
    pub(super) routed: &'a [RoutedPrefix],
}

impl<'a> CompartmentImage<'a> {
    /// The sides of agreements that are in this compartment.
    pub const fn crossings(&self) -> &'a [Crossing] {
        self.crossings.crossings
    }

    /// The crossing with this tag, and its index. At most eight slots are looked at.
    #[inline]
    pub fn crossing_by_tag(&self, tag: u16) -> Option<(u32, &'a Crossing)> {
        let Crossings { tags, tag_seed, .. } = self.crossings;
        let index = hash::find(tags, tag_seed, hash::tag_key(tag))?.crossing;
        Some((index, self.crossings.crossings.get(index as usize)?))
    }

    /// The destination ports of a crossing's service, sorted by protocol and port.
    #[inline]
    pub fn service_ports_of(&self, crossing: &Crossing) -> &'a [ServicePorts] {
        part(
            self.crossings.ports,
            crossing.ports_first,
            crossing.ports_count,
        )
    }

    /// Whether a destination port is of a crossing's service: a search by halves.
    #[inline]
    pub fn serves(&self, crossing: &Crossing, protocol: u8, port: u16) -> bool {
        let ports = self.service_ports_of(crossing);
        let before = ports.partition_point(|p| (p.protocol, p.first) <= (protocol, port));
        let found = before.checked_sub(1).and_then(|at| ports.get(at));
        found.is_some_and(|p| p.protocol == protocol && port <= p.last)
    }

    /// The prefixes of a crossing that is routed, its own and the other tenant's.
    #[inline]
    pub fn routed_prefixes_of(&self, crossing: &Crossing) -> &'a [RoutedPrefix] {
        part(
            self.crossings.routed,
            crossing.prefixes_first,
            crossing.prefixes_count,
        )
    }

    /// Whether an address is in one of a routed crossing's own prefixes, or of the other
    /// tenant's (`theirs`). Bound: its prefixes, at most [`MAX_ROUTED`].
    #[inline]
    pub fn is_routed(&self, crossing: &Crossing, theirs: bool, address: &[u8; 16]) -> bool {
        self.routed_prefixes_of(crossing).iter().any(|p| {
            (p.theirs != 0) == theirs && wire::address::in_prefix(address, &p.prefix, p.len)
        })
    }

    /// All blocks of ports; those of an attachment are a list.
    pub const fn nat_blocks(&self) -> &'a [NatBlock] {
        self.nat_blocks
    }

    /// The blocks of ports behind an attachment's IPv4 address, by their number.
    #[inline]
    pub fn nat_blocks_of(&self, attachment: &Attachment) -> &'a [NatBlock] {
        part(
            self.nat_blocks,
            attachment.blocks_first,
            attachment.blocks_count,
        )
    }

    /// The index of the endpoint whose block a port behind an attachment (an index) is in.
    #[inline]
    pub fn endpoint_by_nat_port(&self, attachment: u32, port: u16) -> Option<u32> {
        let attachment = self.attachments.get(attachment as usize)?;
        let number = port
            .checked_sub(attachment.nat_first)?
            .checked_div(attachment.nat_block)?;
        let blocks = self.nat_blocks_of(attachment);
        let endpoint = blocks.get(usize::from(number))?.endpoint;
        (endpoint != NONE).then_some(endpoint)
    }

    /// The ports of an endpoint (an index) behind an attachment (an index).
    #[inline]
    pub fn nat_ports(&self, attachment: u32, endpoint: u32) -> Option<RangeInclusive<u16>> {
        let attachment = self.attachments.get(attachment as usize)?;
        let number = self.endpoints.get(endpoint as usize)?.nat_index;
        let block = self.nat_blocks_of(attachment).get(number as usize)?;
        if block.endpoint != endpoint {
            return None;
        }
        let before = u16::try_from(number)
            .ok()?
            .checked_mul(attachment.nat_block)?;
        let first = attachment.nat_first.checked_add(before)?;
        let last = first.checked_add(attachment.nat_block.checked_sub(1)?)?;
        Some(first..=last)
    }

    /// The tags that this compartment is spoken to by, sorted.
    pub(super) fn tags(&self) -> Vec<u16> {
        let attachments = self.attachments.iter().map(|a| a.tag);
        let crossings = self.crossings.crossings.iter().map(|c| c.tag);
        let segments = self.subnets().iter().map(|s| s.segment);
        let segments = segments.filter(|tag| *tag != 0);
        let mut tags: Vec<u16> = attachments.chain(crossings).chain(segments).collect();
        tags.sort_unstable();
        tags
    }

    pub(super) fn check_crossings(&self) -> Result<(), MapError> {
        let Crossings {
            crossings,
            ports,
            tags,
            tag_seed,
            routed,
        } = self.crossings;
        let all = self.tags();
        let mut lists = Lists::default();
        let mut prefixes = Lists::default();
        each(Name::Crossings, crossings, |_, crossing| {
            must(
                (crossing.tenant as usize) < self.tenants.len(),
                "no such tenant",
            )?;
            must(
                crossing.tag != 0 && is_once(&all, crossing.tag) || !guard!("image-crossing-tag"),
                "its tag is another's too",
            )?;
            must(
                crossing.flags & !(CROSSING_ROUTED | CROSSING_BOTH | CROSSING_RINGS) == 0
                    && crossing.reserved2 == 0,
                "reserved is not zero",
            )?;
            must(crossing.mtu >= 68, "an MTU below 68 (RFC 791)")?;
            must(
                is_network(&crossing.pool4, crossing.pool4_len)
                    && is_network(&crossing.pool6, crossing.pool6_len),
                "a pool that is no prefix",
            )?;
            prefixes.take(crossing.prefixes_first, crossing.prefixes_count)?;
            must(
                crossing.is_routed() || crossing.address4 != [0; 4] || crossing.address6 != [0; 16],
                "no address",
            )?;
            match crossing.role {
                CROSSING_ACCEPTOR | CROSSING_OFFERER if crossing.is_routed() => {
                    self.check_routed(crossing)?;
                }
                _ if crossing.flags & !CROSSING_RINGS != 0 || crossing.prefixes_count != 0 => {
                    return Err("prefixes of a service");
                }
                CROSSING_ACCEPTOR => must(
                    crossing.endpoint == NONE && crossing.pool4_len | crossing.pool6_len == 0,
                    "an acceptor that serves",
                )?,
                CROSSING_OFFERER => self.check_offerer(crossing)?,
                _ => return Err("an unknown role"),
            }
            lists.take(crossing.ports_first, crossing.ports_count)?;
            let mut last = None;
            // Bound: the lists are disjoint, so all of this is one pass.
            for range in part(ports, crossing.ports_first, crossing.ports_count) {
                must(
                    range.reserved == 0 && range.reserved2 == 0,
                    "reserved is not zero",
                )?;
                let rises = last < Some((range.protocol, range.first));
                must(
                    rises && range.first <= range.last || !guard!("image-service-order"),
                    "its ports are not in order",
                )?;
                last = Some((range.protocol, range.last));
            }
            Ok(())
        })?;
        lists.end(Name::ServicePorts, ports.len())?;
        prefixes.end(Name::RoutedPrefixes, routed.len())?;

        let mut found = 0;
        each(Name::CrossingTags, tags, |_, slot| {
            if slot.is_empty() {
                let empty = *slot == CrossingSlot::EMPTY;
                return must(empty, "an empty slot that is not empty");
            }
            found += 1;
            let crossing = crossings.get(slot.crossing as usize);
            must(
                crossing.is_some_and(|c| c.tag == slot.tag) || !guard!("image-crossing-slot"),
                "a tag that is not its crossing's",
            )?;
            must(slot.reserved == 0, "reserved is not zero")?;
            must(is_found(tags, tag_seed, slot), "cannot be found")
        })?;
        table_size(Name::CrossingTags, tags.len())?;
        if found == crossings.len() {
            return Ok(());
        }
        Err(MapError::Record {
            section: Name::CrossingTags,
            index: 0,
            what: "a crossing without its tag",
        })
    }

    /// That a crossing that is routed translates nothing, and has prefixes of both sides.
    fn check_routed(&self, crossing: &Crossing) -> Result<(), &'static str> {
        let plain = crossing.endpoint == NONE
            && crossing.pool4_len | crossing.pool6_len == 0
            && crossing.address4 == [0; 4]
            && crossing.address6 == [0; 16];
        must(plain, "a routed crossing that translates")?;
        must(
            crossing.prefixes_count <= MAX_ROUTED || !guard!("image-routed-many"),
            "too many prefixes",
        )?;
        let prefixes = self.routed_prefixes_of(crossing);
        for prefix in prefixes {
            must(prefix.theirs <= 1, "reserved is not zero")?;
            let len = u8::try_from(prefix.len).map_err(|_| "a prefix that is none")?;
            // No prefix of IPv6 has IPv4's form in it (RFC 4291, section 2.5.5.2).
            let family = len >= 96 || !wire::address::in_prefix(&FORM4, &prefix.prefix, prefix.len);
            must(
                is_network(&prefix.prefix, len) && family || !guard!("image-routed-prefix"),
                "a prefix that is none",
            )?;
        }
        let of = |theirs: u32| prefixes.iter().any(|p| p.theirs == theirs);
        must(of(0) && of(1), "a side without prefixes")
    }

    /// That who serves is the tenant's own endpoint, by addresses of its own.
    fn check_offerer(&self, crossing: &Crossing) -> Result<(), &'static str> {
        let own = self.tenant_of(crossing.endpoint) == Some(crossing.tenant);
        must(
            own || !guard!("image-crossing-endpoint"),
            "its endpoint is another tenant's",
        )?;
        let subnet = self.endpoints.get(crossing.endpoint as usize);
        let subnet = subnet.map_or(NONE, |endpoint| endpoint.subnet);
        let has = |address| self.endpoint_by_address(subnet, address) == Some(crossing.endpoint);
        must(
            (crossing.address4 == [0; 4] || has(mapped(crossing.address4)))
                && (crossing.address6 == [0; 16] || has(crossing.address6))
                || !guard!("image-crossing-address"),
            "an address that is not its endpoint's",
        )?;
        must(
            crossing.address4 != [0; 4] && crossing.pool4_len != 0
                || crossing.address6 != [0; 16] && crossing.pool6_len != 0,
            "no family has both an address and a pool",
        )?;
        must(crossing.ports_count != 0, "a service without ports")
    }

    pub(super) fn check_nat(&self) -> Result<(), MapError> {
        let mut lists = Lists::default();
        each(Name::Attachments, self.attachments, |_, attachment| {
            let count = attachment.blocks_count;
            lists.take(attachment.blocks_first, count)?;
            if attachment.nat_block == 0 {
                let none = attachment.nat_first == 0 && count == 0;
                return must(none, "blocks of no ports");
            }
            must(
                attachment.address4 != [0; 4],
                "translation without an IPv4 address",
            )?;
            let end = u64::from(attachment.nat_first)
                + u64::from(count) * u64::from(attachment.nat_block);
            must(
                attachment.nat_first >= NAT_LEAST_PORT && end <= 1 << 16
                    || !guard!("image-nat-ports"),
                "blocks beyond 1024 to 65535",
            )?;
            // Bound: the lists are disjoint, so all of this is one pass.
            for (number, block) in (0..).zip(self.nat_blocks_of(attachment)) {
                if block.endpoint == NONE {
                    continue;
                }
                let endpoint = self.endpoints.get(block.endpoint as usize);
                must(
                    endpoint.is_some_and(|e| e.nat_index == number) || !guard!("image-nat-number"),
                    "a block that its endpoint has not",
                )?;
                must(
                    self.tenant_of(block.endpoint) == Some(attachment.tenant)
                        || !guard!("image-nat-tenant"),
                    "a block of another tenant's endpoint",
                )?;
            }
            Ok(())
        })?;
        lists.end(Name::NatBlocks, self.nat_blocks.len())
    }
}

/// The first IPv4 address in its ::ffff: form.
const FORM4: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];

/// Whether a prefix is one: not too long, without bits behind its length, and not
/// given at all if its length is 0.
fn is_network<const N: usize>(prefix: &[u8; N], len: u8) -> bool {
    let len = usize::from(len);
    len <= N * 8
        && (0..).zip(prefix).all(|(at, byte)| {
            let kept = len.saturating_sub(at * 8).min(8);
            kept == 8 || byte & (0xff >> kept) == 0
        })
}
