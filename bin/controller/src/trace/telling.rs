//! A traced frame's steps in words, with what in the spec decided each.

use super::{At, CHANNEL, Walk};
use crate::flows::{at, protocol};
use crate::names::SEGMENT;
use crate::view;
use api::{RuleName, Step as Told, Where};
use policy::Side;
use telemetry::drops::DropReason;
use telemetry::trace::{Answered, Step, Tuple};

impl Walk<'_> {
    pub(super) fn compartment(&self, id: u32) -> String {
        self.world
            .compartment(id)
            .map_or_else(|| format!("compartment {id}"), |found| found.name.clone())
    }

    pub(super) fn who(&self, place: At) -> String {
        match place {
            At::Switch { compartment, .. } => {
                format!("the switch of {}", self.compartment(compartment))
            }
            At::Fabric { .. } => "the fabric".into(),
        }
    }

    fn uplink(&self, slot: u32) -> Option<String> {
        let found = self.world.uplinks().iter().find(|up| up.slot == slot)?;
        // By which one is the host's matter.
        Some(match self.tenant {
            Some(_) => "outside".into(),
            None => format!("uplink {}", found.name),
        })
    }

    pub(super) fn place(&self, place: At) -> String {
        match place {
            At::Switch {
                compartment, slot, ..
            } => self.port(compartment, slot),
            At::Fabric { slot, .. } => self
                .uplink(slot)
                .unwrap_or_else(|| format!("{}'s channel", self.compartment(slot))),
        }
    }

    fn port(&self, compartment: u32, slot: u32) -> String {
        self.world
            .name_at(compartment, slot)
            .unwrap_or_else(|| match slot {
                CHANNEL => "the fabric".into(),
                slot => format!("slot {slot}"),
            })
    }

    /// A step in words, with what in the spec decided it.
    pub(super) fn told(&self, place: At, step: &Step) -> Told {
        let plain = |kind: &str, says: String| Told {
            step: kind.into(),
            says,
            ..Told::default()
        };
        let told = match (place, step) {
            (At::Switch { compartment, .. }, step) => self.told_by_switch(compartment, step),
            (_, Step::Entry { slot, tag, uplink }) => {
                let to = match uplink {
                    true => self.uplink(*slot).unwrap_or_else(|| format!("slot {slot}")),
                    false => format!("the switch of {}", self.compartment(*slot)),
                };
                let by = match tag {
                    0 => String::new(),
                    tag => format!(" by tag {tag}"),
                };
                plain("entry", format!("leads to {to}{by}"))
            }
            (_, Step::Group { members }) => plain("entry", format!("a group of {members}")),
            (
                _,
                Step::Sent {
                    slot, bytes, real, ..
                },
            ) => {
                let to = self.place(At::Fabric {
                    slot: *slot,
                    tag: 0,
                });
                plain("send", format!("to {to}, {bytes} bytes{}", held(*real)))
            }
            (_, step) => self.told_by_switch(u32::MAX, step),
        };
        Told {
            at: match place {
                At::Switch { compartment, .. } => self.compartment(compartment),
                At::Fabric { .. } => "fabric".into(),
            },
            ..told
        }
    }

    /// A step of a tenant's packet at its own switch, or at the fabric, as that tenant may
    /// know it. `None`: it says nothing that is the tenant's.
    pub(super) fn told_tenant(&self, tenant: &str, place: At, step: &Step) -> Option<Told> {
        let plain = |kind: &str, says: String| {
            Some(Told {
                step: kind.into(),
                says,
                ..Told::default()
            })
        };
        let told = match (place, step) {
            (At::Fabric { .. }, Step::Entry { uplink: true, .. }) => {
                plain("entry", "leads outside".into())?
            }
            // From outside it leads to the tenant's own switch.
            (At::Fabric { tag: 0, .. }, Step::Entry { .. }) => {
                plain("entry", "leads to the tenant's switch".into())?
            }
            (At::Fabric { tag, .. }, Step::Entry { .. }) => plain(
                "entry",
                format!(
                    "leads across by {}; what comes of it there is the other tenant's matter",
                    self.names.tag(tag)
                ),
            )?,
            (At::Fabric { .. }, Step::Dropped { .. }) => self.told(place, step),
            (At::Fabric { .. }, _) => return None,
            (
                _,
                Step::Sent {
                    slot: CHANNEL,
                    bytes,
                    ..
                },
            ) => plain("send", format!("to the fabric, {bytes} bytes"))?,
            _ => self.told(place, step),
        };
        let rule = view::rule(
            RuleName {
                kind: told.by.clone(),
                name: told.name.clone(),
                place: told.place.clone(),
            },
            tenant,
        );
        Some(Told {
            at: match place {
                At::Switch { .. } => tenant.to_owned(),
                At::Fabric { .. } => "fabric".into(),
            },
            by: rule.kind,
            name: rule.name,
            place: rule.place,
            ..told
        })
    }

    fn told_by_switch(&self, compartment: u32, step: &Step) -> Told {
        let plain = |kind: &str, says: String| Told {
            step: kind.into(),
            says,
            ..Told::default()
        };
        let port = |slot: u32| self.port(compartment, slot);
        match *step {
            Step::Parsed => plain("parse", "well-formed".into()),
            Step::Guarded => plain("guard", "its sender may say this".into()),
            Step::Metered => plain("rate", "within its sender's rate".into()),
            Step::Bridged { slot } => plain("route", format!("to {}, on its subnet", port(slot))),
            Step::Flooded => plain("route", "to all of the subnet".into()),
            Step::Routed { slot, tag } => match slot {
                CHANNEL => {
                    let to = self.names.tag(tag);
                    match to.starts_with(SEGMENT) {
                        true => plain("route", format!("to {to}, on its subnet")),
                        false => plain("route", format!("by the gateway to {to}")),
                    }
                }
                slot => plain("route", format!("by the gateway to {}", port(slot))),
            },
            Step::Resolving { address } => {
                let hop = at(address, 0, 0);
                plain(
                    "route",
                    format!("to next hop {hop}, whose MAC is asked for"),
                )
            }
            Step::Answered(what) => plain("answer", format!("by the switch: {}", answered(what))),
            Step::Absorbed => plain("answer", "it is for the switch, which stays silent".into()),
            Step::Connection {
                state,
                back,
                own,
                rules,
            } => self.connection(state, back, own, rules),
            Step::Rule {
                egress,
                slot,
                rule,
                action,
                tuple,
            } => self.rule(compartment, egress, slot, rule, action, &tuple),
            Step::NoRules => plain("rule", "nobody has rules about it".into()),
            Step::Begins { tracked: true } => plain("connection", "begins".into()),
            Step::Begins { tracked: false } => plain(
                "connection",
                "finds no place: it is served packet by packet".into(),
            ),
            Step::Leaves(tuple) => plain("translation", format!("leaves as {}", named(&tuple))),
            Step::Sent {
                slot: CHANNEL,
                tag,
                bytes,
                cut,
                ..
            } => {
                let cut = if cut { ", in pieces" } else { "" };
                plain(
                    "send",
                    format!("to the fabric by tag {tag}, {bytes} bytes{cut}"),
                )
            }
            Step::Sent {
                slot,
                bytes,
                cut,
                real,
                ..
            } => {
                let cut = if cut { ", in pieces" } else { "" };
                plain(
                    "send",
                    format!("to {}, {bytes} bytes{cut}{}", port(slot), held(real)),
                )
            }
            Step::Replied { slot, bytes, real } => plain(
                "answer",
                format!(
                    "the switch's own to {}, {bytes} bytes{}",
                    port(slot),
                    held(real)
                ),
            ),
            Step::Dropped { reason } => {
                plain("drop", format!("{}: {}", slug(reason), sentence(reason)))
            }
            Step::Unknown | Step::Entry { .. } | Step::Group { .. } => {
                plain("unknown", "a step that this release does not know".into())
            }
        }
    }

    fn connection(&self, state: u8, back: bool, own: bool, rules: [u32; 2]) -> Told {
        let state = flow::State::of(state).map_or("unknown", flow::State::slug);
        let begun = if own {
            "that this trace began"
        } else {
            "that there is"
        };
        let verb = if back {
            "answers one"
        } else {
            "belongs to one"
        };
        let [sent, got] = rules.map(|rule| self.names.rule(rule));
        let by = |rule: &RuleName| match rule.name.as_str() {
            "" => rule.kind.clone(),
            name => format!("{} {name}", rule.kind),
        };
        let mut says = format!("{verb} {begun} ({state}), by {}", by(&sent));
        if sent != got {
            says += &format!(" and {}", by(&got));
        }
        Told {
            step: "connection".into(),
            says,
            ..Told::default()
        }
    }

    fn rule(
        &self,
        compartment: u32,
        egress: bool,
        slot: u32,
        rule: u32,
        action: u8,
        tuple: &Tuple,
    ) -> Told {
        let endpoint = self.port(compartment, slot);
        let tenant = endpoint.split('/').next().unwrap_or_default();
        let (side, word, peer) = match egress {
            true => (Side::Egress, "from", tuple.destination),
            false => (Side::Ingress, "to", tuple.source),
        };
        let says = match action {
            1 => "allow",
            2 => "allow stateless",
            _ => "deny",
        };
        let decided = self.world.made().map(|(spec, ids, intent)| {
            policy::decided((spec, ids, intent), tenant, rule, side, peer)
        });
        let (by, name, place) = match decided {
            Some(found) => (found.by.to_owned(), found.name, found.place),
            None => (String::new(), String::new(), None),
        };
        Told {
            step: "rule".into(),
            says: format!("{word} {endpoint}: {says}"),
            by,
            name,
            place: place.map(|(file, line, column)| Where { file, line, column }),
            ..Told::default()
        }
    }
}

fn held(real: bool) -> &'static str {
    if real { "" } else { ", held back" }
}

pub(super) fn slug(reason: u8) -> String {
    DropReason::from_number(reason).map_or_else(
        || format!("reason {reason}"),
        |known| known.slug().to_owned(),
    )
}

pub(super) fn sentence(reason: u8) -> String {
    DropReason::from_number(reason)
        .map_or_else(String::new, |known| known.explain().trim().to_owned())
}

fn answered(what: u8) -> &'static str {
    match what {
        n if n == Answered::Arp as u8 => "who has that IPv4 address",
        n if n == Answered::Neighbour as u8 => "who has that IPv6 address",
        n if n == Answered::Router as u8 => "the gateway advertises itself",
        n if n == Answered::Dhcp as u8 => "DHCP",
        n if n == Answered::Echo as u8 => "a ping of the gateway",
        _ => "in a way that this release does not know",
    }
}

/// `tcp 10.1.1.10:1000 to 10.1.2.10:443`.
fn named(tuple: &Tuple) -> String {
    let name = protocol(tuple.protocol);
    match tuple.protocol {
        1 | 58 => {
            let [kind, code] = tuple.destination_port.to_be_bytes();
            let (from, to) = (at(tuple.source, 0, 0), at(tuple.destination, 0, 0));
            format!("{name} {kind}/{code} {from} to {to}")
        }
        number => {
            let from = at(tuple.source, tuple.source_port, number);
            let to = at(tuple.destination, tuple.destination_port, number);
            format!("{name} {from} to {to}")
        }
    }
}

/// A frame in a few words.
pub(super) fn described(frame: &[u8]) -> String {
    let head = frame.get(..frame.len().min(wire::parse::HEAD));
    let Some(Ok(parsed)) = head.map(|head| wire::parse(head, frame.len())) else {
        return "a frame that does not parse".into();
    };
    let Some(ip) = parsed.ip() else {
        return match parsed.network {
            wire::parse::Network::Arp(_) => "arp".into(),
            _ => format!("ethertype {:#06x}", parsed.ethertype),
        };
    };
    let tuple = wire::Tuple::of_rules(ip).unwrap_or(wire::Tuple {
        source: ip.source,
        destination: ip.destination,
        protocol: ip.protocol,
        ..wire::Tuple::default()
    });
    let mut text = named(&Tuple {
        source: tuple.source,
        destination: tuple.destination,
        source_port: tuple.source_port,
        destination_port: tuple.destination_port,
        protocol: tuple.protocol,
    });
    if let wire::parse::Transport::Tcp { flags, .. } = ip.transport {
        let names = [
            (wire::tcp::SYN, " syn"),
            (wire::tcp::FIN, " fin"),
            (wire::tcp::RST, " rst"),
            (wire::tcp::ACK, " ack"),
        ];
        text.extend(
            names
                .iter()
                .filter(|(bit, _)| flags & bit != 0)
                .map(|n| n.1),
        );
    }
    if ip.fragment != wire::parse::Fragment::Whole {
        text += ", a fragment";
    }
    text
}
