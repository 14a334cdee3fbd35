//! Uplinks: packet sockets on interfaces of the host, used by the fabric.

use crate::attach::uplink_port;
use crate::bodies;
use crate::refusal::Refusal;
use crate::registry::{KeptUplink, Key, Note, UplinkPart, made, making};
use crate::seats::{FABRIC_SLOTS, Uplink};
use crate::supervisor::Supervisor;
use crate::taps::{refuse_namespace, refuse_socket};
use command::Message;
use command::message::ErrorCode;
use command::verbs::CreateUplink;
use netlink::namespace;
use port::packet::UplinkError;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

impl Supervisor {
    /// Opens an uplink and plugs it into the fabric. The same request again is no
    /// error, and opens again what vanished.
    ///
    /// # Errors
    /// [`Refusal`] with nothing left behind.
    pub fn create_uplink(&mut self, body: CreateUplink) -> Result<(), Refusal> {
        let created = bodies::digest(&body);
        match self.uplinks.get(&body.uplink) {
            Some(uplink) if uplink.created == created && !uplink.closed => return Ok(()),
            Some(uplink) if uplink.created == created => self.destroy_uplink(body.uplink),
            Some(_) => {
                return Err(Refusal::new(
                    ErrorCode::Conflict,
                    format!("uplink {} is another one", body.uplink),
                ));
            }
            None => {}
        }
        let taken = self.compartments.contains_key(&body.slot)
            || self.uplinks.values().any(|u| u.body.slot == body.slot);
        if body.slot >= FABRIC_SLOTS || taken {
            let what = format!("slot {} of the fabric is taken or out of range", body.slot);
            return Err(Refusal::new(ErrorCode::Limit, what));
        }
        let kept = bodies::store(&body).map_err(|e| Refusal::system("keep a request", &e))?;
        let key = |part| Key::Uplink(body.uplink, part);
        self.keeper
            .keep(key(UplinkPart::Body), &making(), kept.as_fd());
        let socket = match open(&body) {
            Ok(socket) => Rc::new(socket),
            Err(refusal) => {
                self.keeper.forget(&format!("uplink/{}/", body.uplink));
                return Err(refusal);
            }
        };
        self.keeper
            .keep(key(UplinkPart::Socket), &Note::default(), socket.as_fd());
        let uplink = Uplink {
            body,
            created,
            socket,
            closed: false,
        };
        let (port, fds) = uplink_port(&uplink);
        self.uplinks.insert(body.uplink, uplink);
        if let Some(fabric) = self.fabric.worker {
            self.tell(fabric, &Message::new(0, &port), fds);
        }
        self.keeper
            .keep(key(UplinkPart::Body), &made(), kept.as_fd());
        Ok(())
    }

    /// Closes an uplink. One that is not there is no error.
    pub fn destroy_uplink(&mut self, number: u32) {
        let Some(uplink) = self.uplinks.remove(&number) else {
            return;
        };
        self.unplug_from_fabric(uplink.body.slot);
        self.keeper.forget(&format!("uplink/{number}/"));
    }
}

/// An uplink of before, taken over.
pub fn adopt(kept: KeptUplink<OwnedFd>) -> Option<Uplink> {
    let body: CreateUplink = bodies::load(&kept.body.0)?;
    Some(Uplink {
        created: bodies::digest(&body),
        body,
        socket: Rc::new(kept.socket),
        closed: false,
    })
}

fn open(body: &CreateUplink) -> Result<OwnedFd, Refusal> {
    let name = body.interface.as_str();
    let refuse = |error: UplinkError| refuse_socket(&error);
    if body.namespace.as_str().is_empty() {
        return port::packet::open(name).map_err(refuse);
    }
    let place = namespace::open(body.namespace.as_str()).map_err(|e| refuse_namespace(&e))?;
    namespace::within(place.as_fd(), || port::packet::open(name))
        .map_err(|e| refuse_namespace(&e))?
        .map_err(refuse)
}
