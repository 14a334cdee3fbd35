//! Ports that are closed, and what becomes of what they were of.

use super::*;
use command::verbs::CLOSED_BY_SYSTEM;

impl Supervisor {
    /// A port is closed, by a process's word or because it is gone.
    pub fn port_closed(&mut self, seat: Seat, body: &PortClosed) {
        let PortClosed { slot, reason } = *body;
        if guard!("port-closed-once") && self.is_closed(seat, slot) {
            return;
        }
        self.happened(
            Happened::new(EventKind::PortClosed, Subject::Seat(seat))
                .slot(slot)
                .cause(reason),
        );
        match seat {
            Seat::Fabric if self.compartments.contains_key(&slot) => {
                // An honest switch breaks no protocol.
                let worker = self.compartments.get(&slot).and_then(|c| c.seat.worker);
                if reason < CLOSED_BY_SYSTEM && worker.is_some() {
                    self.give_up_channel(slot);
                } else {
                    self.want_replacement(slot);
                }
            }
            Seat::Fabric => {
                if let Some(uplink) = self
                    .uplinks
                    .values_mut()
                    .find(|uplink| uplink.body.slot == slot)
                {
                    confine::say!(
                        "supervisor: the uplink {} is gone",
                        uplink.body.interface.as_str()
                    );
                    uplink.closed = true;
                }
            }
            Seat::Compartment(id) if slot == 0 => self.want_replacement(id),
            Seat::Compartment(id) => {
                self.drop_client(id, slot);
                let Some(port) = self
                    .compartments
                    .get_mut(&id)
                    .and_then(|c| c.ports.get_mut(&slot))
                else {
                    return;
                };
                if port.is_interface() {
                    confine::say!(
                        "supervisor: the interface or the namespace of {} is gone",
                        port.body.name.as_str()
                    );
                }
                // 0 is no reason: a process makes none up.
                port.closed = reason.max(1);
                let proxy = port.proxy.as_ref().and_then(|proxy| proxy.process);
                self.note_port(id, slot);
                // Another interface may have its index before long.
                if let Some(proxy) = proxy.filter(|_| guard!("proxy-closed")) {
                    self.kill(proxy, None);
                }
            }
        }
    }

    /// Whether there is nothing left to close in a slot: saying it again is no news.
    fn is_closed(&self, seat: Seat, slot: u32) -> bool {
        match seat {
            Seat::Fabric => {
                let mut uplinks = self.uplinks.values();
                !self.compartments.contains_key(&slot)
                    && uplinks.all(|uplink| uplink.body.slot != slot || uplink.closed)
            }
            Seat::Compartment(_) if slot == 0 => false,
            Seat::Compartment(id) => {
                let home = self.compartments.get(&id);
                home.and_then(|home| home.ports.get(&slot))
                    .is_none_or(|port| port.is_closed())
            }
        }
    }
}
