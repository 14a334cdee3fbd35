//! Which compartments' operators may speak with each other, for circuits between tenants: the two
//! that the fabric's image, which is proved, joins under the tags of a live agreement. What one side
//! begins comes to the other through a door: a socket that listens in the network namespace of the
//! one's circuits, under a name that the one is told, and that the other has.

use super::*;
use crate::errands::Whose;
use crate::seats::Image;
use crate::watch::Bucket;
use command::verbs::{AddCrossing, EndCrossing, Share};
use image::fabric::{CHANNEL_COMPARTMENT, FORWARD_UNICAST};
use image::{CompartmentImage, FabricImage};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use rustix::rand::{GetRandomFlags, getrandom};
use shm::SealedImage;
use std::collections::BTreeMap;

/// Connections that wait at a door: as many as the kernel keeps.
const BACKLOG: i32 = 4096;

/// One side of an agreement: a compartment, and the agreement's tag there.
type Side = (u32, u16);
/// Both, the lesser first.
type Pair = [Side; 2];

/// What is agreed, and the doors of it.
#[derive(Default)]
pub struct Crossings {
    /// By the fabric's image; none: it is not looked at yet.
    agreed: Option<BTreeSet<Pair>>,
    /// By the sides that begin.
    doors: BTreeMap<Side, Door>,
    /// By the image with this digest: whether circuits go by memory.
    rings: BTreeMap<Side, ([u8; 32], bool)>,
    /// How much memory may be made for each.
    shared: BTreeMap<Pair, Bucket>,
}

struct Door {
    fd: Shared,
    name: [u8; 16],
}

impl Supervisor {
    /// Links an operator that is ready with those of the other sides.
    pub(super) fn link_crossings(&mut self, compartment: u32) {
        let is_of = |pair: &&Pair| pair.iter().any(|side| side.0 == compartment);
        let pairs: Vec<Pair> = self.agreed().iter().filter(is_of).copied().collect();
        for pair in pairs {
            self.link_crossing(pair);
        }
    }

    /// The fabric has another image: what is agreed no more ends, what is new begins.
    pub fn fabric_changed(&mut self, before: BTreeSet<Pair>) {
        self.crossings.agreed = None;
        let now = self.agreed().clone();
        for pair in before.difference(&now) {
            self.crossings.shared.remove(pair);
            for side in pair {
                self.end_crossing(*side);
                self.close_door(*side);
                self.crossings.rings.remove(side);
            }
        }
        for pair in now.difference(&before) {
            self.link_crossing(*pair);
        }
    }

    /// What the fabric's image has agreed.
    pub fn agreed(&mut self) -> &BTreeSet<Pair> {
        let fabric = self.fabric.image.as_ref();
        let crossings = &mut self.crossings;
        crossings.agreed.get_or_insert_with(|| {
            let bytes = fabric.and_then(|image| SealedImage::map(&*image.fd).ok());
            let bytes = bytes.as_ref().map(SealedImage::as_slice);
            let image = bytes.and_then(|bytes| FabricImage::map(bytes).ok());
            image.map(|image| pairs(&image)).unwrap_or_default()
        })
    }

    /// A compartment has no circuits any more: the other sides' operators have nobody to ask.
    pub(super) fn end_crossings(&mut self, compartment: u32) {
        let pairs = self.agreed().iter();
        let pairs: Vec<Pair> = pairs.copied().collect();
        for [one, other] in pairs {
            for (own, theirs) in [(one, other), (other, one)] {
                if own.0 == compartment {
                    self.end_crossing(theirs);
                    self.close_door(own);
                }
            }
        }
    }

    fn end_crossing(&mut self, (compartment, tag): Side) {
        if let Some(operator) = self.operator_in(compartment) {
            let body = EndCrossing {
                tag: tag.into(),
                reserved: 0,
            };
            self.tell(operator, &Message::new(0, &body), Vec::new());
        }
    }

    /// Who came to a door and was not let in may have sent anything.
    fn close_door(&mut self, side: Side) {
        if let Some(door) = self.crossings.doors.remove(&side) {
            self.errands
                .part_listener(Whose::Ports(side.0), door.fd.as_fd());
            self.keeper.forget_one(Key::Door(side.0, side.1));
        }
    }

    /// A door of before: operators of before have it.
    pub fn adopt_door(&mut self, side: Side, fd: OwnedFd, note: &Note) {
        let name = note
            .value("name")
            .and_then(|it| u128::from_str_radix(it, 16).ok());
        let name = name.unwrap_or_default().to_be_bytes();
        let fd = Rc::new(fd);
        self.crossings.doors.insert(side, Door { fd, name });
    }

    /// A new link between the operators of both sides, if both are there.
    fn link_crossing(&mut self, pair: Pair) {
        let operators = pair.map(|(compartment, _)| self.operator_in(compartment));
        let has_circuits = |(compartment, _): Side| self.has_circuits(compartment, u32::MAX);
        if !pair.into_iter().all(has_circuits) || !guard!("crossing-links") {
            return;
        }
        match operators {
            [Some(one), Some(other)] => {
                if let Err(error) = self.try_to_link(pair, [one, other]) {
                    confine::say!("supervisor: no link for circuits across an agreement: {error}");
                }
            }
            // The other is on its way.
            [Some(operator), None] | [None, Some(operator)] => {
                let [(_, tag), _] = match operators[0] {
                    Some(_) => pair,
                    None => [pair[1], pair[0]],
                };
                let body = AddCrossing {
                    tag: tag.into(),
                    ..AddCrossing::default()
                };
                self.tell(operator, &Message::new(0, &body), Vec::new());
            }
            [None, None] => {}
        }
    }

    fn try_to_link(&mut self, pair: Pair, operators: [u64; 2]) -> std::io::Result<()> {
        let (near, far) = words()?;
        let doors = [self.door(pair[0])?, self.door(pair[1])?];
        let witnesses = [self.witness(pair[0].0)?, self.witness(pair[1].0)?];
        let [witness_of_one, witness_of_other] = witnesses.map(Rc::new);
        let [(door_of_one, name_of_one), (door_of_other, name_of_other)] = doors;
        let sides = [
            (near, name_of_one, door_of_other, witness_of_other),
            (far, name_of_other, door_of_one, witness_of_one),
        ];
        for (((_, tag), operator), (link, door, inlet, witness)) in
            pair.into_iter().zip(operators).zip(sides)
        {
            let body = AddCrossing {
                tag: tag.into(),
                reserved: 0,
                door,
            };
            let fds = vec![Rc::new(link.into_fd()), inlet, witness];
            self.tell(operator, &Message::new(0, &body), fds);
        }
        Ok(())
    }

    /// An operator asks for memory of a connection across an agreement: both sides' operators are
    /// given the same, if both are there and both tenants have circuits of it go by memory. Not
    /// without end: what is made waits for operators that had no part in the asking.
    pub(super) fn share(&mut self, compartment: u32, body: &Share) {
        let Ok(tag) = u16::try_from(body.tag) else {
            return;
        };
        let own = (compartment, tag);
        let now = self.now();
        let mut all = self.agreed().iter();
        let Some(pair) = all.find(|pair| pair.contains(&own)).copied() else {
            return self.gives(own, body.id, None);
        };
        let are_there = pair.iter().all(|side| self.operator_in(side.0).is_some());
        let agree = pair.map(|side| self.has_rings(side)) == [true; 2];
        let shared = self.crossings.shared.entry(pair);
        let is_paced = shared.or_insert_with(Bucket::of_shares).spend(now).is_ok();
        let memory = match are_there && agree && is_paced {
            true => shm::circuit_file(stream::CAPACITY).ok().map(Rc::new),
            false => None,
        };
        match memory {
            Some(memory) => {
                for side in pair {
                    self.gives(side, body.id, Some(Rc::clone(&memory)));
                }
            }
            None => self.gives(own, body.id, None),
        }
    }

    fn gives(&mut self, (compartment, tag): Side, id: u64, memory: Option<Shared>) {
        let errno = match memory {
            Some(_) => 0,
            None => rustix::io::Errno::OPNOTSUPP.raw_os_error().unsigned_abs(),
        };
        if let Some(operator) = self.operator_in(compartment) {
            let tag = tag.into();
            let body = Share { id, tag, errno };
            self.tell(operator, &Message::new(0, &body), Vec::from_iter(memory));
        }
    }

    /// Whether a side's own image has the agreement's circuits go by memory; it is looked at once.
    fn has_rings(&mut self, side: Side) -> bool {
        let home = self.compartments.get(&side.0);
        let Some(image) = home.and_then(|home| home.seat.image.as_ref()) else {
            return false;
        };
        match self.crossings.rings.get(&side) {
            Some((digest, has_rings)) if *digest == image.digest => *has_rings,
            _ => {
                let has_rings = are_by_memory(image, side.1);
                self.crossings.rings.insert(side, (image.digest, has_rings));
                has_rings
            }
        }
    }

    fn network(&self, compartment: u32) -> std::io::Result<Shared> {
        let network = self.network_of(compartment).map(|(_, network)| network);
        network.ok_or_else(|| std::io::ErrorKind::NotFound.into())
    }

    /// What tells the other side which of the sockets live that came from this one.
    fn witness(&self, compartment: u32) -> std::io::Result<OwnedFd> {
        let network = self.network(compartment)?;
        let made = namespace::within(network.as_fd(), netlink::witness);
        let made = made.map_err(std::io::Error::other)?;
        made.map_err(std::io::Error::other)
    }

    /// The door of what this side begins, and its name.
    fn door(&mut self, side: Side) -> std::io::Result<(Shared, [u8; 16])> {
        if let Some(door) = self.crossings.doors.get(&side) {
            return Ok((Rc::clone(&door.fd), door.name));
        }
        let network = self.network(side.0)?;
        let mut name = [0; 16];
        getrandom(&mut name, GetRandomFlags::empty())?;
        let made = namespace::within(network.as_fd(), || listening(name));
        let fd = Rc::new(made.map_err(std::io::Error::other)??);
        let door = Door {
            fd: Rc::clone(&fd),
            name,
        };
        // Who closes it last lets go of what came to it: not this process, where it just ends.
        let note = Note::default().with("name", format_args!("{:032x}", u128::from_be_bytes(name)));
        self.keeper
            .keep(Key::Door(side.0, side.1), &note, fd.as_fd());
        self.crossings.doors.insert(side, door);
        Ok((fd, name))
    }
}

fn are_by_memory(image: &Image, tag: u16) -> bool {
    let bytes = SealedImage::map(&*image.fd).ok();
    let bytes = bytes.as_ref().map(SealedImage::as_slice);
    let image = bytes.and_then(|bytes| CompartmentImage::map(bytes).ok());
    let crossing = image.as_ref().and_then(|image| image.crossing_by_tag(tag));
    crossing.is_some_and(|(_, crossing)| crossing.has_rings() || !guard!("across-shared"))
}

/// A link for words alone: who is made to close another's descriptor can be held up by that.
fn words() -> std::io::Result<(Socket, Socket)> {
    let (near, far) = Socket::pair().map_err(std::io::Error::other)?;
    for end in [&near, &far] {
        notify::refuse_descriptors(end.as_fd())?;
    }
    Ok((near, far))
}

/// A stream socket that listens under this name. Nobody can pass a descriptor to who accepts there.
fn listening(name: [u8; 16]) -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let made = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    notify::refuse_descriptors(made.as_fd())?;
    bind(&made, &SocketAddrUnix::new_abstract_name(&name)?)?;
    listen(&made, BACKLOG)?;
    Ok(made)
}

/// What a fabric's image joins of compartments: each way by its own entry, both or neither.
fn pairs(image: &FabricImage<'_>) -> BTreeSet<Pair> {
    let compartment = |slot: u32| {
        let channel = image.channel(slot)?;
        (channel.kind == CHANNEL_COMPARTMENT).then_some(channel.id)
    };
    let joined = image.forwards().iter().filter_map(|entry| {
        let every = entry.kind == FORWARD_UNICAST && entry.mac == [0; 6];
        let back = image.default(entry.target, entry.out_tag)?;
        let both = back.kind == FORWARD_UNICAST
            && (back.target, back.out_tag) == (entry.ingress, entry.tag);
        let one = (compartment(entry.ingress)?, entry.tag);
        let other = (compartment(entry.target)?, entry.out_tag);
        let mut pair = [one, other];
        pair.sort_unstable();
        (every && both && one != other).then_some(pair)
    });
    joined.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::compartment::{CROSSING_ACCEPTOR, CROSSING_RINGS, Crossing, NONE, Tenant};
    use image::fabric::{CHANNEL_UPLINK, Channel, Forward};
    use image::{Aligned, CompartmentTables, FabricTables};

    #[test]
    fn those_are_linked_that_the_fabric_joins_both_ways() {
        let mut tables = FabricTables::default();
        let kinds = [
            (1, CHANNEL_COMPARTMENT),
            (2, CHANNEL_COMPARTMENT),
            (3, CHANNEL_COMPARTMENT),
            (9, CHANNEL_UPLINK),
        ];
        for (slot, kind) in kinds {
            tables.channels.push(Channel {
                id: slot + 100,
                kind,
                slot,
                weight: 1,
                ..Channel::default()
            });
        }
        let mut joins = |ingress, tag, target, out_tag| {
            tables.forwards.push(Forward {
                ingress,
                tag,
                target,
                out_tag,
                kind: FORWARD_UNICAST,
                ..Forward::default()
            });
        };
        joins(2, 7, 1, 8);
        joins(1, 8, 2, 7);
        // Of one compartment, whose tenants agree.
        joins(3, 4, 3, 5);
        joins(3, 5, 3, 4);
        // An uplink's; one way alone.
        joins(1, 3, 9, 20);
        joins(2, 40, 3, 41);
        let bytes = Aligned::copy_of(&tables.finish().unwrap());
        let image = FabricImage::map(bytes.as_ref()).unwrap();
        let expected = [[(101, 8), (102, 7)], [(103, 4), (103, 5)]];
        assert_eq!(pairs(&image), BTreeSet::from(expected));
    }

    #[test]
    fn neither_a_link_nor_a_door_passes_a_descriptor() {
        let (near, far) = words().unwrap();
        let message = Message::new(0, &Share::default());
        for (from, to) in [(&near, &far), (&far, &near)] {
            assert!(from.send(&message, &[from.as_fd()]).is_err());
            from.send(&message, &[]).unwrap();
            let (_, fds) = to.recv().unwrap().unwrap();
            assert!(fds.is_empty());
        }
        let name = *b"a door of a test";
        let door = listening(name).unwrap();
        let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
        let begun = socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        let address = SocketAddrUnix::new_abstract_name(&name).unwrap();
        rustix::net::connect(&begun, &address).unwrap();
        let came = Socket::from_fd(rustix::net::accept(&door).unwrap());
        // What came has it of the door, whatever who began has set.
        assert!(
            Socket::from_fd(begun)
                .send(&message, &[door.as_fd()])
                .is_err()
        );
        drop(came);
    }

    #[test]
    fn memory_is_made_where_an_image_says_so() {
        let image = |flags| {
            let mut tables = CompartmentTables::default();
            tables.tenants.push(Tenant::default());
            tables.crossings.push(Crossing {
                tag: 7,
                mtu: 1500,
                agreement: 1,
                address4: [10, 1, 200, 1],
                role: CROSSING_ACCEPTOR,
                endpoint: NONE,
                flags,
                ..Crossing::default()
            });
            let bytes = tables.finish().unwrap();
            let (epoch, digest) = (1, [0; 32]);
            let fd = Rc::new(SealedImage::create("image", &bytes).unwrap());
            Image { fd, epoch, digest }
        };
        assert!(are_by_memory(&image(CROSSING_RINGS), 7));
        assert!(!are_by_memory(&image(CROSSING_RINGS), 8));
        assert!(!are_by_memory(&image(0), 7));
    }
}
