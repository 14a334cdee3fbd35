//! Packets walked for real: through the switch and the fabric themselves, by the images of
//! a host, from whoever has their source.

use super::hosts::Compiled;
use ::switch::{Config, FABRIC, Finish, HEAD, Ingress, Outgoing, Output, Slot, Switch};
use fabric::forward::{clean, decide};
use image::{Aligned, CompartmentImage, CompartmentTables, FabricImage, MappedCompartment};
use telemetry::counters::Counter;
use telemetry::drops::DropReason;
use telemetry::trace::{Record, Step};
use wire::address::unmapped;
use wire::offload::RawOffload;
use wire::{MacAddress, Probe, Tuple};

/// A router outside, whose MAC is known.
pub const ROUTER: [u8; 6] = [2, 0, 0, 0, 9, 9];
/// A second after the start, ns.
const SECOND: u64 = 1_000_000_000;

/// Where a packet came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At an endpoint.
    Delivered { compartment: u32, slot: u32 },
    /// By an uplink, by its slot.
    Outside(u32),
    /// Nowhere.
    Dropped(DropReason),
}

impl End {
    pub fn passed(self) -> bool {
        !matches!(self, End::Dropped(_))
    }
    /// Whether rules stopped it.
    pub fn by_rules(self) -> bool {
        let rules = [DropReason::EgressRule, DropReason::IngressRule];
        matches!(self, End::Dropped(reason) if rules.contains(&reason))
    }
}

fn tables(host: &Compiled, slot: u32) -> CompartmentTables {
    let memory = Aligned::copy_of(&host.images[&slot]);
    let mut tables = CompartmentImage::map(memory.as_ref()).unwrap().decode();
    tables.next_hops.iter_mut().for_each(|hop| hop.mac = ROUTER);
    tables
}

/// What the images do with a first packet to or from somebody of this compartment.
pub fn walk(host: &Compiled, compartment: u32, packet: &Tuple) -> End {
    let own = tables(host, compartment);
    let whose = |tables: &CompartmentTables, address: &[u8; 16]| {
        let found = tables.addresses.iter().find(|(_, a)| a == address);
        found.map(|(endpoint, _)| *endpoint as usize)
    };
    let (sender, receiver) = (
        whose(&own, &packet.source),
        whose(&own, &packet.destination),
    );
    let fabric_memory = Aligned::copy_of(&host.images[&0]);
    let fabric = FabricImage::map(fabric_memory.as_ref()).unwrap();
    let probe = |from: [u8; 6], to: [u8; 6]| {
        let probe = Probe::first(MacAddress(from), MacAddress(to), *packet, 1);
        let mut buffer = vec![0; 200];
        let length = probe.emit(&mut buffer).unwrap();
        buffer.truncate(length);
        buffer
    };
    let mut place = match sender {
        Some(sender) => {
            let from = &own.endpoints[sender];
            let subnet = own.subnets[from.subnet as usize];
            let near = receiver.map(|to| &own.endpoints[to]);
            let to = near.filter(|to| to.subnet == from.subnet);
            let mac = to.map_or(subnet.gateway_mac, |to| to.mac);
            Place::Switch(compartment, from.slot, 0, probe(from.mac, mac))
        }
        None => {
            let v4 = unmapped(&packet.source).is_some();
            let mut ways = own.attachments.iter();
            let way = ways
                .find(|way| (v4 && way.prefix4_len != 0) || (!v4 && way.prefix6_len != 0))
                .expect("somebody can send it");
            let entry = fabric
                .forwards()
                .iter()
                .find(|f| f.mac == way.mac && f.tag == 0);
            Place::Fabric(entry.unwrap().ingress, 0, probe(ROUTER, way.mac))
        }
    };
    let built = own.finish().unwrap();
    // Bound: a packet crosses at most once.
    for _ in 0..6 {
        place = match place {
            Place::Switch(at, slot, tag, frame) => {
                let image = match at == compartment {
                    true => built.clone(),
                    false => tables(host, at).finish().unwrap(),
                };
                match handled(&image, slot, tag, &frame) {
                    Err(reason) => return End::Dropped(reason),
                    Ok((FABRIC, tag, frame)) => Place::Fabric(at, tag, frame),
                    Ok((slot, ..)) => {
                        return End::Delivered {
                            compartment: at,
                            slot,
                        };
                    }
                }
            }
            Place::Fabric(from, tag, frame) => {
                let mut head = [0; fabric::HEAD];
                head.iter_mut()
                    .zip(&frame)
                    .for_each(|(to, from)| *to = *from);
                let alleged = fabric::Frame {
                    tag,
                    offload: clean(RawOffload::default()),
                    len: frame.len(),
                    head,
                };
                match decide(&fabric, from, &alleged) {
                    fabric::Decision::Unicast { slot, tag } if host.images.contains_key(&slot) => {
                        Place::Switch(slot, FABRIC, tag, frame)
                    }
                    fabric::Decision::Unicast { slot, .. } => return End::Outside(slot),
                    fabric::Decision::Drop(reason) => return End::Dropped(reason),
                    fabric::Decision::Group(_) => unreachable!("{packet:?}"),
                }
            }
        }
    }
    panic!("{packet:?} goes on and on")
}

enum Place {
    Switch(u32, Slot, u16, Vec<u8>),
    Fabric(u32, u16, Vec<u8>),
}

/// What a switch that has just started with this image does with one frame.
pub fn handled(
    image: &[u8],
    from: Slot,
    tag: u16,
    frame: &[u8],
) -> Result<(Slot, u16, Vec<u8>), DropReason> {
    let mapped = MappedCompartment::map(Aligned::copy_of(image)).unwrap();
    let mut switch = Switch::new(Config::default());
    switch.use_image(&mapped.image(), SECOND);
    let mut head = frame[..frame.len().min(HEAD)].to_vec();
    let ingress = Ingress {
        from,
        tag,
        offload: RawOffload::default(),
        head: &mut head,
        total: frame.len(),
    };
    let mut record = Record::default();
    let out = &mut Beyond(frame);
    switch.trace(&mapped.image(), SECOND, ingress, false, &mut record, out);
    let dropped = record.steps().iter().find_map(|step| match step {
        Step::Dropped { reason } => DropReason::from_number(*reason),
        _ => None,
    });
    match (dropped, record.left()) {
        (Some(reason), _) => Err(reason),
        (None, Some((slot, tag, frame))) => Ok((slot, tag, frame.to_vec())),
        (None, None) => panic!("{:?}", record.steps()),
    }
}

/// Nothing is sent: the bytes behind the head are all that is asked for.
struct Beyond<'a>(&'a [u8]);

impl Output for Beyond<'_> {
    fn ingress(&mut self, offset: usize, into: &mut [u8]) -> usize {
        let rest = self.0.get(offset..).unwrap_or(&[]);
        into.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        rest.len().min(into.len())
    }
    fn send(&mut self, _: &Outgoing<'_>) {}
    fn finish(&mut self, _: &Outgoing<'_>, _: &Finish) {}
    fn reply(&mut self, _: Slot, _: u16, _: &[u8]) {}
    fn dropped(&mut self, _: Slot, _: DropReason) {}
    fn count(&mut self, _: Slot, _: Counter, _: u64) {}
}
