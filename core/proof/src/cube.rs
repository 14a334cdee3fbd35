//! Boxes of packets, and whether some of them cover another.

use core::ops::RangeInclusive;
use image::rules::Region;
use wire::Tuple;

/// Source, destination, source port, destination port, protocol.
const FIELDS: usize = 5;
/// How deep a box is cut into pieces before the question is given up.
const DEPTH: usize = 400;

/// A box of packets: a closed interval of each field of their tuples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cube {
    first: [u128; FIELDS],
    last: [u128; FIELDS],
}

/// More work than a question may cost: nothing was proved, so nothing is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfFuel;

/// What the work on a question may still cost, in comparisons of boxes.
#[derive(Clone, Copy, Debug)]
pub struct Fuel(pub u64);

impl Fuel {
    pub(crate) fn burn(&mut self, n: usize) -> Result<(), OutOfFuel> {
        self.0 = self.0.checked_sub(n as u64).ok_or(OutOfFuel)?;
        Ok(())
    }
}

impl Cube {
    /// Of these addresses, ports and protocols.
    pub fn new(
        source: &RangeInclusive<[u8; 16]>,
        destination: &RangeInclusive<[u8; 16]>,
        source_port: &RangeInclusive<u16>,
        destination_port: &RangeInclusive<u16>,
        protocol: &RangeInclusive<u8>,
    ) -> Cube {
        let address = u128::from_be_bytes;
        Cube {
            first: [
                address(*source.start()),
                address(*destination.start()),
                (*source_port.start()).into(),
                (*destination_port.start()).into(),
                (*protocol.start()).into(),
            ],
            last: [
                address(*source.end()),
                address(*destination.end()),
                (*source_port.end()).into(),
                (*destination_port.end()).into(),
                (*protocol.end()).into(),
            ],
        }
    }

    /// Of a rule.
    pub fn of(region: &Region) -> Cube {
        Cube::new(
            &region.source,
            &region.destination,
            &region.source_port,
            &region.destination_port,
            &region.protocol,
        )
    }

    /// Whether a packet is in both.
    pub fn meets(&self, other: &Cube) -> bool {
        (0..FIELDS).all(|f| self.first[f] <= other.last[f] && other.first[f] <= self.last[f])
    }

    /// What is in both.
    pub fn and(&self, other: &Cube) -> Option<Cube> {
        let mut both = *self;
        for f in 0..FIELDS {
            both.first[f] = both.first[f].max(other.first[f]);
            both.last[f] = both.last[f].min(other.last[f]);
            if both.first[f] > both.last[f] {
                return None;
            }
        }
        Some(both)
    }

    /// First and last of each field: source, destination, source port, destination port,
    /// protocol.
    pub(crate) fn sides(&self) -> impl Iterator<Item = (u128, u128)> {
        self.first.into_iter().zip(self.last)
    }

    /// Whether a packet is in it.
    pub(crate) fn has(&self, packet: &Tuple) -> bool {
        let address = u128::from_be_bytes;
        let values: [u128; FIELDS] = [
            address(packet.source),
            address(packet.destination),
            packet.source_port.into(),
            packet.destination_port.into(),
            packet.protocol.into(),
        ];
        let mut sides = self.sides().zip(values);
        sides.all(|((first, last), value)| (first..=last).contains(&value))
    }

    /// A packet of it.
    pub fn packet(&self) -> Tuple {
        let [source, destination, source_port, destination_port, protocol] = self.first;
        Tuple {
            source: source.to_be_bytes(),
            destination: destination.to_be_bytes(),
            // INVARIANT: the intervals of these fields come from u16 and u8.
            source_port: source_port as u16,
            destination_port: destination_port as u16,
            protocol: protocol as u8,
        }
    }

    /// How many of this one's faces a blocker leaves something behind; 0 = it covers all.
    fn faces_left_by(&self, blocker: &Cube) -> usize {
        (0..FIELDS)
            .map(|f| {
                usize::from(blocker.first[f] > self.first[f])
                    + usize::from(blocker.last[f] < self.last[f])
            })
            .sum()
    }
}

/// A part of `target` that no blocker covers; `None` = they cover it together.
///
/// The target is cut along the faces of the blocker that cuts it least, and each piece
/// is asked about in turn.
///
/// # Errors
/// [`OutOfFuel`].
pub fn uncovered<'a>(
    target: &Cube,
    blockers: impl Iterator<Item = &'a Cube>,
    fuel: &mut Fuel,
) -> Result<Option<Cube>, OutOfFuel> {
    let mut near = Vec::new();
    let mut seen = 0;
    for blocker in blockers {
        seen += 1;
        if blocker.meets(target) {
            if target.faces_left_by(blocker) == 0 {
                fuel.burn(seen)?;
                return Ok(None);
            }
            near.push(*blocker);
        }
    }
    fuel.burn(seen)?;
    pieces(target, &mut near, 0, DEPTH, fuel)
}

/// As [`uncovered`], by the blockers from `from` on, all of which meet the target.
fn pieces(
    target: &Cube,
    near: &mut Vec<Cube>,
    from: usize,
    depth: usize,
    fuel: &mut Fuel,
) -> Result<Option<Cube>, OutOfFuel> {
    let here = near.get(from..).unwrap_or(&[]);
    fuel.burn(here.len() + 1)?;
    let Some(least) = here
        .iter()
        .min_by_key(|blocker| target.faces_left_by(blocker))
        .copied()
    else {
        return Ok(Some(*target));
    };
    let depth = depth.checked_sub(1).ok_or(OutOfFuel)?;
    let mut rest = *target;
    for f in 0..FIELDS {
        let before = (least.first[f] > rest.first[f]).then(|| {
            let mut piece = rest;
            piece.last[f] = least.first[f] - 1;
            piece
        });
        let behind = (least.last[f] < rest.last[f]).then(|| {
            let mut piece = rest;
            piece.first[f] = least.last[f] + 1;
            piece
        });
        for piece in [before, behind].into_iter().flatten() {
            let end = near.len();
            let mut covered = false;
            for at in from..end {
                let blocker = near[at];
                if blocker.meets(&piece) {
                    covered |= piece.faces_left_by(&blocker) == 0;
                    near.push(blocker);
                }
            }
            fuel.burn(end - from)?;
            let found = if covered {
                None
            } else {
                pieces(&piece, near, end, depth, fuel)?
            };
            near.truncate(end);
            if found.is_some() {
                return Ok(found);
            }
        }
        rest.first[f] = rest.first[f].max(least.first[f]);
        rest.last[f] = rest.last[f].min(least.last[f]);
    }
    Ok(None)
}
