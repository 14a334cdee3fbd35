//! The fabric's image.

use super::{Lists, MapError, Section as Name, each, must};
use crate::compartment::NONE;
use crate::container::{self, Digest, Kind, Section};
use crate::fabric::*;
use crate::hash::{self, Keyed};
use guard::guard;

const SECTIONS: usize = 6;
const RECORDS: [usize; SECTIONS] = [
    size_of::<Channel>(),
    size_of::<Forward>(),
    size_of::<Group>(),
    size_of::<GroupMember>(),
    size_of::<Template>(),
    size_of::<SlotChannel>(),
];

/// A checked fabric image: its tables as they lie in memory.
#[derive(Clone, Copy, Debug)]
pub struct FabricImage<'a> {
    channels: &'a [Channel],
    forwards: &'a [Forward],
    groups: &'a [Group],
    members: &'a [GroupMember],
    templates: &'a [Template],
    slots: &'a [SlotChannel],
    seed: u64,
    digest: Digest,
}

impl<'a> FabricImage<'a> {
    /// Checks an image whole. `bytes` start at a multiple of 16.
    ///
    /// # Errors
    /// [`MapError`]: nothing of it may be used.
    pub fn map(bytes: &'a [u8]) -> Result<FabricImage<'a>, MapError> {
        let (sections, digest) = container::open(bytes, Kind::Fabric, &RECORDS)?;
        let image = FabricImage::from_sections(bytes, &sections, digest);
        image.check()?;
        Ok(image)
    }

    /// Checks what has just been written, but for its digest.
    pub(crate) fn check_written(bytes: &'a [u8]) -> Result<(), MapError> {
        let (sections, digest) = container::open_written(bytes, Kind::Fabric, &RECORDS)?;
        FabricImage::from_sections(bytes, &sections, digest).check()
    }

    /// Its digest.
    pub const fn digest(&self) -> Digest {
        self.digest
    }
    /// Channels.
    pub const fn channels(&self) -> &'a [Channel] {
        self.channels
    }
    /// The hash table of entries, empty slots included.
    pub const fn forwards(&self) -> &'a [Forward] {
        self.forwards
    }
    /// Groups.
    pub const fn groups(&self) -> &'a [Group] {
        self.groups
    }
    /// Slots that the image speaks of: all are below this.
    pub const fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The channel in a slot.
    #[inline]
    pub fn channel(&self, slot: u32) -> Option<&'a Channel> {
        self.channels
            .get(self.slots.get(slot as usize)?.channel as usize)
    }

    /// The entry for exactly this (ingress slot, tag, destination MAC). At most
    /// eight slots of the table are looked at. The zero MAC, which is
    /// [`FabricImage::default`]'s, finds nothing.
    #[inline]
    pub fn forward(&self, ingress: u32, tag: u16, mac: [u8; 6]) -> Option<&'a Forward> {
        let key = hash::forward_key(ingress, tag, mac);
        hash::find(self.forwards, self.seed, key).filter(|_| mac != [0; 6])
    }

    /// The entry for every other unicast MAC of this (ingress slot, tag).
    #[inline]
    pub fn default(&self, ingress: u32, tag: u16) -> Option<&'a Forward> {
        hash::find(
            self.forwards,
            self.seed,
            hash::forward_key(ingress, tag, [0; 6]),
        )
    }

    /// The entry for every other group of this (ingress slot, tag).
    #[inline]
    pub fn every_group(&self, ingress: u32, tag: u16) -> Option<&'a Forward> {
        hash::find(
            self.forwards,
            self.seed,
            hash::forward_key(ingress, tag, EVERY_GROUP),
        )
    }

    /// The members of a group; none where there is no such group.
    #[inline]
    pub fn group(&self, group: u32) -> &'a [GroupMember] {
        match self.groups.get(group as usize) {
            Some(group) => part(self.members, group.members_first, group.members_count),
            None => &[],
        }
    }

    /// What a channel may say toward uplinks.
    #[inline]
    pub fn templates(&self, channel: &Channel) -> &'a [Template] {
        part(
            self.templates,
            channel.templates_first,
            channel.templates_count,
        )
    }

    fn from_sections(
        bytes: &'a [u8],
        sections: &[Section; SECTIONS],
        digest: Digest,
    ) -> FabricImage<'a> {
        let [channels, forwards, groups, members, templates, slots] = sections;
        FabricImage {
            channels: channels.slice(bytes),
            forwards: forwards.slice(bytes),
            groups: groups.slice(bytes),
            members: members.slice(bytes),
            templates: templates.slice(bytes),
            slots: slots.slice(bytes),
            seed: forwards.seed,
            digest,
        }
    }

    fn check(&self) -> Result<(), MapError> {
        self.check_channels()?;
        self.check_groups()?;
        self.check_forwards()
    }

    fn check_channels(&self) -> Result<(), MapError> {
        let mut templates = Lists { next: 0 };
        if self.slots.len() > MAX_SLOTS as usize {
            let what = "too many slots";
            return Err(MapError::Record {
                section: Name::Slots,
                index: MAX_SLOTS,
                what,
            });
        }
        each(Name::Channels, self.channels, |index, channel| {
            let kind = matches!(channel.kind, CHANNEL_COMPARTMENT | CHANNEL_UPLINK);
            must(kind, "an unknown kind")?;
            must(
                (1..=255).contains(&channel.weight),
                "a weight that is not 1 to 255",
            )?;
            let here = self.slots.get(channel.slot as usize);
            let here = here.is_some_and(|slot| slot.channel as usize == index);
            must(
                here || !guard!("image-channel-slot"),
                "its slot is another's",
            )?;
            templates.take(channel.templates_first, channel.templates_count)
        })?;
        templates.end(Name::Templates, self.templates.len())?;
        each(Name::Slots, self.slots, |index, slot| {
            if slot.channel == NONE {
                return Ok(());
            }
            let there = self.channels.get(slot.channel as usize);
            must(
                there.is_some_and(|c| c.slot as usize == index),
                "its channel is elsewhere",
            )
        })?;
        each(Name::Templates, self.templates, |_, template| {
            let uplink = self
                .channel(template.egress)
                .is_some_and(|c| c.kind == CHANNEL_UPLINK);
            must(uplink, "speaks for what is no uplink")?;
            let len = template.len as usize;
            must(
                (14..=TEMPLATE_BYTES).contains(&len),
                "compares less than an Ethernet header",
            )?;
            let beyond = template
                .mask
                .get(len..)
                .is_some_and(|m| m.iter().any(|b| *b != 0));
            must(!beyond, "compares beyond its length")?;
            let reach = usize::from(template.reach());
            let unseen = template.except_mask.get(reach..);
            let beyond = unseen.is_none_or(|m| m.iter().any(|b| *b != 0))
                || template.bounds.iter().any(|b| usize::from(b.at) >= reach);
            // A checksum is stored behind what is looked at: into what was not counted as
            // that it could be stored after the look.
            must(
                !beyond || !guard!("image-template-reach"),
                "looks beyond what it says",
            )?;
            must(template.reserved == 0, "reserved is not zero")?;
            let own = template.mask.iter().zip(&template.value);
            let mut bytes = own.chain(template.except_mask.iter().zip(&template.except_value));
            must(
                bytes.all(|(mask, value)| value & !mask == 0),
                "expects what it does not compare",
            )
        })
    }

    fn check_groups(&self) -> Result<(), MapError> {
        let mut members = Lists { next: 0 };
        each(Name::Groups, self.groups, |_, group| {
            members.take(group.members_first, group.members_count)
        })?;
        members.end(Name::GroupMembers, self.members.len())?;
        each(Name::GroupMembers, self.members, |_, member| {
            must(self.channel(member.slot).is_some(), "no such channel")?;
            must(member.reserved == 0, "reserved is not zero")
        })
    }

    fn check_forwards(&self) -> Result<(), MapError> {
        each(Name::Forwards, self.forwards, |_, entry| {
            if entry.is_empty() {
                return must(*entry == Forward::EMPTY, "an empty slot that is not empty");
            }
            must(self.channel(entry.ingress).is_some(), "no such ingress")?;
            let to_group = entry.mac.first().is_some_and(|b| b & 1 == 1);
            match entry.kind {
                FORWARD_UNICAST => {
                    must(self.channel(entry.target).is_some(), "no such egress")?;
                    // Two tenants of one compartment are told apart by their tags.
                    let told = entry.tag != 0 && entry.out_tag != 0 && entry.tag != entry.out_tag;
                    let back = entry.target == entry.ingress && !told;
                    must(
                        !back || !guard!("image-forward-back"),
                        "leads back to its ingress",
                    )?;
                }
                FORWARD_SEGMENT => {
                    let kind = |slot| self.channel(slot).map(|channel| channel.kind);
                    let joins = kind(entry.ingress) == Some(CHANNEL_COMPARTMENT)
                        && kind(entry.target) == Some(CHANNEL_UPLINK);
                    must(
                        joins || !guard!("image-segment-uplink"),
                        "a segment that leads to no uplink",
                    )?;
                    must(
                        entry.tag != 0 && entry.out_tag != 0,
                        "a segment without a tag",
                    )?;
                }
                FORWARD_GROUP => {
                    must((entry.target as usize) < self.groups.len(), "no such group")?;
                    must(to_group && entry.out_tag == 0, "a group for one station")?;
                }
                _ => return Err("an unknown kind"),
            }
            let found = hash::find(self.forwards, self.seed, entry.key());
            must(
                found.is_some_and(|f| core::ptr::eq(f, entry)),
                "cannot be found",
            )
        })?;
        if self.forwards.is_empty() || self.forwards.len().is_power_of_two() {
            return Ok(());
        }
        let what = "the table is no power of two";
        Err(MapError::Record {
            section: Name::Forwards,
            index: 0,
            what,
        })
    }
}

#[inline]
fn part<T>(records: &[T], first: u32, count: u32) -> &[T] {
    let first = first as usize;
    records
        .get(first..first.saturating_add(count as usize))
        .unwrap_or(&[])
}

/// A checked fabric image together with what owns its memory.
#[derive(Clone, Debug)]
pub struct MappedFabric<O> {
    owner: O,
    sections: [Section; SECTIONS],
    digest: Digest,
}

impl<O: AsRef<[u8]>> MappedFabric<O> {
    /// Checks the owner's bytes, which must not change afterwards (a sealed memfd).
    ///
    /// # Errors
    /// [`MapError`].
    pub fn map(owner: O) -> Result<MappedFabric<O>, MapError> {
        let (sections, digest) = container::open(owner.as_ref(), Kind::Fabric, &RECORDS)?;
        FabricImage::from_sections(owner.as_ref(), &sections, digest).check()?;
        Ok(MappedFabric {
            owner,
            sections,
            digest,
        })
    }
    /// The image. Costs a few instructions a section: once a batch.
    pub fn image(&self) -> FabricImage<'_> {
        FabricImage::from_sections(self.owner.as_ref(), &self.sections, self.digest)
    }
    /// Its digest.
    pub const fn digest(&self) -> Digest {
        self.digest
    }
}
