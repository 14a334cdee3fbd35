//! What may be said to whom: the whole of the mediation.
//!
//! The key is (ingress slot, tag, destination MAC). The ingress is where the frame
//! came from, which nobody can forge; so a channel reaches only what the image
//! names for it, whatever it writes. Toward an uplink one of the channel's own
//! templates must match besides, or for a segment the source's MAC be one that the
//! segment's own frames come to by this channel. Nothing is parsed: the first 80 bytes are
//! compared at fixed places, in a private copy, and that copy is what is sent on.

use guard::guard;
use image::FabricImage;
use image::fabric::{
    CHANNEL_COMPARTMENT, CHANNEL_UPLINK, Channel, FORWARD_GROUP, FORWARD_SEGMENT, FORWARD_UNICAST,
    Forward, GroupMember, TEMPLATE_BYTES, Template,
};
use telemetry::drops::DropReason;
use wire::RawOffload;
use wire::offload::{
    DATA_VALID, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, MIN_GSO_FLOOR, NEEDS_CSUM,
};

/// Bytes of a frame that are copied and looked at.
pub const HEAD: usize = TEMPLATE_BYTES;
/// Bytes of an Ethernet header, the least that can be a frame.
const ETHERNET: usize = 14;
/// Where what an IPv4 packet carries begins at the earliest.
const TRANSPORT4: usize = ETHERNET + 20;

/// A frame as it is known here: all of it is a private copy.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Tag, as alleged by who wrote the record. From an uplink the VLAN of its 802.1Q tag,
    /// which is taken out of the frame; 0: it has none.
    pub tag: u16,
    /// Offload fields, as alleged.
    pub offload: RawOffload,
    /// Length, bytes.
    pub len: usize,
    /// Its first bytes, zeros behind its end.
    pub head: [u8; HEAD],
}

/// What is to be done with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision<'a> {
    /// Send it there.
    Unicast {
        /// Egress slot.
        slot: u32,
        /// Tag to put on.
        tag: u16,
    },
    /// Send it to each member for which [`may_join`] holds.
    Group(&'a [GroupMember]),
    /// Nobody gets it.
    Drop(DropReason),
}

/// Decides about one frame that came from the channel in slot `ingress`.
#[inline]
pub fn decide<'a>(image: &FabricImage<'a>, ingress: u32, frame: &Frame) -> Decision<'a> {
    if frame.len < ETHERNET {
        return Decision::Drop(DropReason::Malformed);
    }
    let [a, b, c, d, e, f, ..] = frame.head;
    let mac = [a, b, c, d, e, f];
    let is_group = a & 1 == 1;
    // Without its ingress in the key, any channel could use any other's entries.
    let key = if guard!("fabric-ingress") {
        ingress
    } else {
        any_ingress(image, frame.tag, mac)
    };
    let entry = match image.forward(key, frame.tag, mac) {
        None if !is_group => image.default(key, frame.tag),
        None => image.every_group(key, frame.tag),
        entry => entry,
    };
    let (Some(entry), Some(channel)) = (entry, image.channel(ingress)) else {
        return Decision::Drop(DropReason::FabricNoEntry);
    };
    match entry.kind {
        FORWARD_UNICAST => match judge(image, channel, entry.target, frame) {
            Ok(()) => Decision::Unicast {
                slot: entry.target,
                tag: entry.out_tag,
            },
            Err(reason) => Decision::Drop(reason),
        },
        FORWARD_SEGMENT => match judge_segment(image, entry, frame) {
            Ok(()) => Decision::Unicast {
                slot: entry.target,
                tag: entry.out_tag,
            },
            Err(reason) => Decision::Drop(reason),
        },
        FORWARD_GROUP => Decision::Group(image.group(entry.target)),
        _ => Decision::Drop(DropReason::FabricNoEntry),
    }
}

/// Whether a frame may go to this member of its group: not back, and by the same
/// rules as to one slot alone.
///
/// # Errors
/// `None`: it is the sender itself. Else why it is dropped.
#[inline]
pub fn may_join(
    image: &FabricImage<'_>,
    ingress: u32,
    member: &GroupMember,
    frame: &Frame,
) -> Result<(), Option<DropReason>> {
    if member.slot == ingress {
        return Err(None);
    }
    let channel = image
        .channel(ingress)
        .ok_or(Some(DropReason::FabricNoEntry))?;
    judge(image, channel, member.slot, frame).map_err(Some)
}

/// The offload fields to send on: only what was judged, nothing the sender left in
/// the others.
#[inline]
pub fn clean(offload: RawOffload) -> RawOffload {
    match offload.flags & NEEDS_CSUM {
        // Nobody's word counts for a checksum that is "valid": DATA_VALID is dropped.
        0 => RawOffload {
            flags: 0,
            csum_start: 0,
            csum_offset: 0,
            ..offload
        },
        flags => RawOffload { flags, ..offload },
    }
}

/// A compartment's frame: offloads within reason, and toward an uplink its own words.
#[inline]
fn judge(
    image: &FabricImage<'_>,
    from: &Channel,
    egress: u32,
    frame: &Frame,
) -> Result<(), DropReason> {
    if from.kind != CHANNEL_COMPARTMENT {
        return Ok(());
    }
    let to_uplink = image
        .channel(egress)
        .is_some_and(|to| to.kind == CHANNEL_UPLINK);
    let (mut compared, mut looked) = (ETHERNET, ETHERNET);
    if to_uplink && guard!("fabric-template") {
        // Bound: the templates of one channel, as the image has them.
        let mut own = image.templates(from).iter();
        let template = own.find(|t| t.egress == egress && t.tag == frame.tag && matches(t, frame));
        let template = template.ok_or(DropReason::FabricSource)?;
        (compared, looked) = (template.len.into(), template.reach().into());
    }
    judge_offload(&frame.offload, frame.len, compared, looked)
}

/// A compartment's frame toward a segment: a station of its own, and ARP or IP, so that no
/// tag stands in it, and nothing that bridges say to each other. One look-up, however many
/// stations there are.
#[inline]
fn judge_segment(
    image: &FabricImage<'_>,
    entry: &Forward,
    frame: &Frame,
) -> Result<(), DropReason> {
    let [a, b, c, d, e, f, rest @ ..] = &frame.head;
    let Some((source, [high, low, ..])) = rest.split_first_chunk::<6>() else {
        return Err(DropReason::FabricSource);
    };
    let spoken = matches!([*high, *low], [8, 0] | [8, 6] | [0x86, 0xdd]);
    let heard = match [*a, *b, *c, *d, *e, *f] {
        [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] | [1, 0, 0x5e, ..] | [0x33, 0x33, ..] => true,
        [first, ..] => first & 1 == 0,
    };
    if !(spoken && heard) && guard!("fabric-segment-words") {
        return Err(DropReason::FabricSource);
    }
    let comes = image.forward(entry.target, entry.out_tag, *source);
    let own = comes.is_some_and(|back| {
        (back.kind, back.target, back.out_tag) == (FORWARD_UNICAST, entry.ingress, entry.tag)
    });
    let [first, ..] = source;
    // An honest switch may know of an endpoint a moment before this table does: no lie.
    if !(own && first & 1 == 0) && guard!("fabric-segment-source") {
        return Err(DropReason::FabricNoEntry);
    }
    judge_offload(&frame.offload, frame.len, ETHERNET, ETHERNET)
}

/// Whether the frame has what the template demands, and nothing that it excepts.
#[inline]
fn matches(template: &Template, frame: &Frame) -> bool {
    let head = &frame.head;
    // The mask is zero behind `len`, so whole words can be compared.
    differ(head, &template.mask, &template.value) == 0
        && frame.len >= template.len.into()
        && template.bounds.iter().all(|bound| {
            let byte = head.get(usize::from(bound.at)).unwrap_or(&u8::MAX);
            bound.at == 0 || *byte <= bound.most || !guard!("fabric-bound")
        })
        && !(differ(head, &template.except_mask, &template.except_value) == 0
            && template.except_mask != [0; TEMPLATE_BYTES]
            && guard!("fabric-exception"))
}

/// Bits under the mask that are not the value's; 0: there are none.
#[inline]
fn differ(head: &[u8; HEAD], mask: &[u8; HEAD], value: &[u8; HEAD]) -> u64 {
    let words = mask.chunks_exact(8).zip(value.chunks_exact(8));
    words
        .zip(head.chunks_exact(8))
        .fold(0, |differ, ((mask, value), head)| {
            differ | ((word(head) & word(mask)) ^ word(value))
        })
}

#[inline]
fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

/// Offload fields that the next kernel or switch can be given: it is told to write
/// nothing into what was just `looked` at, to sum up nothing of what was `compared`,
/// and to make no storm of tiny segments.
#[inline]
fn judge_offload(
    raw: &RawOffload,
    len: usize,
    compared: usize,
    looked: usize,
) -> Result<(), DropReason> {
    let bad = Err(DropReason::BadOffload);
    if raw.flags & !(NEEDS_CSUM | DATA_VALID) != 0 {
        return bad;
    }
    let partial = raw.flags & NEEDS_CSUM != 0;
    if partial {
        let start = usize::from(raw.csum_start);
        let stored = start + usize::from(raw.csum_offset);
        // The checksum is stored after the comparison: inside what was compared it
        // would forge a source. What is summed up begins behind the IP header; ports may
        // have been compared, and belong to it.
        let begins = compared.min(TRANSPORT4);
        if (start < begins || stored < compared || stored + 2 > len)
            && guard!("fabric-offload-window")
        {
            return bad;
        }
        // And inside what was only looked at, a port or a type that is excepted.
        if stored < looked && guard!("fabric-offload-looked") {
            return bad;
        }
    }
    let known = match raw.gso_type & !GSO_ECN {
        GSO_NONE => raw.gso_type == GSO_NONE && raw.gso_size == 0,
        GSO_TCPV4 | GSO_TCPV6 | GSO_UDP_L4 => {
            let size = raw.gso_size >= MIN_GSO_FLOOR || !guard!("fabric-min-gso");
            partial && size
        }
        _ => false,
    };
    if known { Ok(()) } else { bad }
}

/// Only for the mutant without the ingress: whoever has an entry for this MAC.
#[cold]
fn any_ingress(image: &FabricImage<'_>, tag: u16, mac: [u8; 6]) -> u32 {
    let mut all = image.forwards().iter().filter(|f| f.kind != 0);
    all.find(|f| f.tag == tag && f.mac == mac)
        .map_or(u32::MAX, |f| f.ingress)
}
