//! ARP, answered from the tables (RFC 826, RFC 5227).

use crate::admission::taken;
use crate::crossing::is_service;
use crate::decision::{Answer, Decision};
use crate::frame::{Sender, owner};
use crate::segment::is_asked;
use guard::guard;
use image::CompartmentImage;
use image::compartment::NONE;
use telemetry::drops::DropReason;
use wire::address::{MacAddress, mapped};
use wire::arp::{Message, Operation};

/// Where an admitted ARP message goes. Requests are never flooded: the table knows
/// every address of the subnet that is here, and beyond is one place.
pub(crate) fn decide(
    image: &CompartmentImage<'_>,
    sender: &Sender<'_>,
    destination: MacAddress,
    message: &Message,
) -> Decision {
    let target = mapped(message.target);
    if sender.endpoint.egress != NONE && !asks(message) && guard!("arp-under-rules") {
        // The switch answers for everyone: between endpoints under rules there is nothing
        // to say, and what is said carries what else it likes.
        return Decision::Absorb;
    }
    if message.is_gratuitous() {
        // The owner announces itself to its subnet.
        return Decision::Flood;
    }
    match message.operation {
        Operation::Request => {
            let probe = message.sender == [0; 4];
            if sender.is_gateway(&target) {
                return Decision::Answer(Answer::Arp {
                    message: *message,
                    mac: MacAddress(sender.subnet.gateway_mac),
                });
            }
            match owner(image, sender.subnet_index, &target) {
                Some(index) if taken(image, sender, &target) => {
                    match image.endpoints().get(index as usize) {
                        Some(endpoint) => Decision::Answer(Answer::Arp {
                            message: *message,
                            mac: MacAddress(endpoint.mac),
                        }),
                        None => Decision::Drop(DropReason::NoNeighbour),
                    }
                }
                None if is_service(image, sender.subnet.tenant, &target) => {
                    Decision::Answer(Answer::Arp {
                        message: *message,
                        mac: MacAddress(sender.subnet.gateway_mac),
                    })
                }
                // Its own address, or a probe for one that nobody has: silence says it is free.
                Some(_) => Decision::Absorb,
                None if is_asked(image, sender, &target) => Decision::Ask { target },
                None if probe => Decision::Absorb,
                None => Decision::Drop(DropReason::NoNeighbour),
            }
        }
        Operation::Reply if destination.is_group() => Decision::Flood,
        Operation::Reply => crate::decision::bridge(image, sender, destination),
    }
}

/// Whether a message is a question that the switch answers.
fn asks(message: &Message) -> bool {
    message.operation == Operation::Request && !message.is_gratuitous()
}
