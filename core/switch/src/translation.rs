//! Which addresses and ports a connection's packets leave with.

use crate::tracking::Tracking;
use image::CompartmentImage;
use wire::address::mapped;
use wire::{Tuple, icmpv4, tcp, udp};

/// What happens to the addresses of a connection that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Translation {
    /// Nothing.
    None,
    /// Nothing, but only what answers may come back: to a service of another tenant.
    Tracked,
    /// Nothing: from prefix to prefix of an agreement, what that is for.
    Routed {
        /// Index of the crossing.
        crossing: u32,
    },
    /// None begins so: only answers go this way.
    Answers,
    /// The source becomes an attachment's IPv4 address and a port of the endpoint's own.
    Nat {
        /// Index of the attachment.
        attachment: u32,
        /// Index of the endpoint.
        endpoint: u32,
    },
    /// From another tenant to a service: the destination becomes the serving endpoint's
    /// address, the source one of the agreement's range.
    Pool {
        /// Index of the crossing.
        crossing: u32,
    },
}

impl Translation {
    /// Whether another try may find another tuple.
    pub(crate) const fn chooses(self) -> bool {
        matches!(self, Translation::Nat { .. } | Translation::Pool { .. })
    }

    /// How the first packet of a connection with this tuple leaves, by the `attempt`-th
    /// choice.
    pub(crate) fn leaves_as(
        self,
        image: &CompartmentImage<'_>,
        tracking: &mut Tracking,
        tuple: &Tuple,
        attempt: u32,
    ) -> Option<Tuple> {
        match self {
            Translation::None | Translation::Tracked | Translation::Routed { .. } => Some(*tuple),
            Translation::Answers => None,
            Translation::Nat {
                attachment,
                endpoint,
            } => nat(image, tracking, attachment, endpoint, tuple, attempt),
            Translation::Pool { crossing } => {
                let seed = tracking.seed.wrapping_add(u64::from(attempt / 2));
                let leaves = tracking.pool_tuple(image, crossing, tuple, seed)?;
                let source_port = match attempt {
                    0 => tuple.source_port,
                    _ => 1024 + tracking.random_below(0xffff - 1024) as u16,
                };
                Some(Tuple {
                    source_port,
                    ..leaves
                })
            }
        }
    }
}

/// Behind an attachment's address: the port it has, where that is one of the endpoint's,
/// else another of them (RFC 4787, section 4.2).
fn nat(
    image: &CompartmentImage<'_>,
    tracking: &mut Tracking,
    attachment: u32,
    endpoint: u32,
    tuple: &Tuple,
    attempt: u32,
) -> Option<Tuple> {
    if !matches!(
        tuple.protocol,
        tcp::PROTOCOL | udp::PROTOCOL | icmpv4::PROTOCOL
    ) {
        return None;
    }
    let own = image.nat_ports(attachment, endpoint)?;
    let count = u32::from(*own.end()) - u32::from(*own.start()) + 1;
    let source_port = match attempt {
        0 if own.contains(&tuple.source_port) => tuple.source_port,
        0 => own.start() + (u32::from(tuple.source_port) % count) as u16,
        _ => own.start() + tracking.random_below(count) as u16,
    };
    let address = image.attachments().get(attachment as usize)?.address4;
    Some(Tuple {
        source: mapped(address),
        source_port,
        ..*tuple
    })
}

impl Tracking {
    /// A user's packet as the serving endpoint gets it, with the user's own port. One
    /// user keeps one address of the range as long as the seed is the same.
    pub(crate) fn pool_tuple(
        &self,
        image: &CompartmentImage<'_>,
        crossing: u32,
        tuple: &Tuple,
        seed: u64,
    ) -> Option<Tuple> {
        let crossing = image.crossings().get(crossing as usize)?;
        let [source, destination] = crossing.as_user(&tuple.source, seed)?;
        Some(Tuple {
            source,
            destination,
            ..*tuple
        })
    }
}
