//! Uplinks: interfaces of the host, used by the fabric through AF_XDP, or a packet socket.

use crate::attach::uplink_ports;
use crate::bodies;
use crate::refusal::Refusal;
use crate::registry::{KeptUplink, Key, Note, UplinkPart, made, making};
use crate::seats::{FABRIC_SLOTS, Uplink, Xdp};
use crate::supervisor::Supervisor;
use crate::taps::{refuse_namespace, refuse_netlink, refuse_socket};
use command::Message;
use command::message::ErrorCode;
use command::verbs::{CreateUplink, DRIVER_AF_PACKET, DRIVER_AUTO, DRIVER_XDP};
use guard::guard;
use netlink::{Netlink, namespace};
use port::packet::UplinkError;
use port::xdp::setup::{self, Opened};
use std::net::IpAddr;
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
        let opened = match open(&body) {
            Ok(opened) => opened,
            Err(refusal) => {
                self.keeper.forget(&format!("uplink/{}/", body.uplink));
                return Err(refusal);
            }
        };
        let uplink = Uplink {
            body,
            created,
            socket: Rc::new(opened.socket),
            xdp: opened.xdp.map(|(xdp, mtu)| Xdp {
                link: Rc::new(xdp.link),
                memory: Rc::new(xdp.memory),
                queues: xdp.queues.into_iter().map(Rc::new).collect(),
                mtu,
            }),
            how: opened.how,
            closed: false,
        };
        confine::say!(
            "supervisor: the uplink {}: {}",
            body.interface.as_str(),
            uplink.how
        );
        let none = Note::default();
        self.keeper
            .keep(key(UplinkPart::Socket), &none, uplink.socket.as_fd());
        if let Some(xdp) = &uplink.xdp {
            self.keeper
                .keep(key(UplinkPart::Link), &none, xdp.link.as_fd());
            self.keeper
                .keep(key(UplinkPart::Memory), &none, xdp.memory.as_fd());
            for (queue, n) in xdp.queues.iter().zip(0..) {
                let part = UplinkPart::Channel(n);
                self.keeper.keep(key(part), &none, queue.as_fd());
            }
        }
        let note = made()
            .with("mtu", uplink.xdp.as_ref().map_or(0, |xdp| xdp.mtu))
            .with("how", uplink.how.replace(' ', SPACE));
        let ports = uplink_ports(&uplink);
        self.uplinks.insert(body.uplink, uplink);
        if let Some(fabric) = self.fabric.worker {
            for (port, fds) in ports {
                self.tell(fabric, &Message::new(0, &port), fds);
            }
        }
        self.keeper.keep(key(UplinkPart::Body), &note, kept.as_fd());
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

/// What stands for a space in a note's value.
const SPACE: &str = "+";
/// Bytes of [`Uplink::how`], at most: a note has 256 in all.
const MOST_SAID: usize = 150;

/// An uplink of before, taken over.
pub fn adopt(kept: KeptUplink<OwnedFd>) -> Option<Uplink> {
    let (body, note) = kept.body;
    let body: CreateUplink = bodies::load(&body)?;
    Some(Uplink {
        created: bodies::digest(&body),
        body,
        socket: Rc::new(kept.socket),
        xdp: kept.xdp.map(|(link, memory, queues)| Xdp {
            link: Rc::new(link),
            memory: Rc::new(memory),
            queues: queues.into_iter().map(Rc::new).collect(),
            mtu: note.number("mtu") as u32,
        }),
        how: note.value("how").unwrap_or_default().replace(SPACE, " "),
        closed: false,
    })
}

/// An uplink that was opened.
struct Found {
    socket: OwnedFd,
    /// By AF_XDP, and the interface's MTU.
    xdp: Option<(Opened, u32)>,
    how: String,
}

fn open(body: &CreateUplink) -> Result<Found, Refusal> {
    if body.namespace.as_str().is_empty() {
        return open_here(body);
    }
    let place = namespace::open(body.namespace.as_str()).map_err(|e| refuse_namespace(&e))?;
    namespace::within(place.as_fd(), || open_here(body)).map_err(|e| refuse_namespace(&e))?
}

fn open_here(body: &CreateUplink) -> Result<Found, Refusal> {
    let name = body.interface.as_str();
    let socket = port::packet::open(name).map_err(|error: UplinkError| refuse_socket(&error))?;
    if body.driver == DRIVER_AF_PACKET {
        let how = "AF_PACKET, as the spec says".to_owned();
        let xdp = None;
        return Ok(Found { socket, xdp, how });
    }
    let reason = match open_xdp(body)? {
        Ok((opened, mtu)) => match setup::deafen(socket.as_fd()) {
            Ok(()) => {
                let (mode, queues) = (opened.mode.name(), opened.queues.len());
                let how = format!("{mode}, queues: {queues}");
                let xdp = Some((opened, mtu));
                return Ok(Found { socket, xdp, how });
            }
            Err(errno) => format!("the kernel refuses a socket's filter: {errno}"),
        },
        Err(reason) => reason,
    };
    if body.driver == DRIVER_XDP {
        let detail = format!("{name} cannot be used by AF_XDP: {reason}");
        return Err(Refusal::new(ErrorCode::System, detail));
    }
    let mut how = format!("AF_PACKET: {}", reason.replace(SPACE, "-"));
    let end = (0..=MOST_SAID.min(how.len())).rfind(|at| how.is_char_boundary(*at));
    how.truncate(end.unwrap_or(0));
    Ok(Found {
        socket,
        xdp: None,
        how,
    })
}

/// By AF_XDP, or why not. All frames of the interface come to the fabric then, and nothing to
/// the host's own stack.
fn open_xdp(body: &CreateUplink) -> Result<Result<(Opened, u32), String>, Refusal> {
    let name = body.interface.as_str();
    let mut socket = Netlink::open().map_err(|error| refuse_netlink(&error))?;
    let link = socket.link(name).map_err(|error| refuse_netlink(&error))?;
    let addresses = socket.addresses().map_err(|error| refuse_netlink(&error))?;
    let is_own = |address: IpAddr| match address {
        IpAddr::V4(address) => !address.is_link_local(),
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    let own = addresses
        .iter()
        .find(|has| has.index == link.index && is_own(has.address));
    if let (Some(own), true) = (own, guard!("xdp-own-addresses")) {
        return Ok(Err(format!(
            "the host has {} there and would be cut off",
            own.address
        )));
    }
    if link.master.is_some() {
        return Ok(Err("it is a part of another interface".to_owned()));
    }
    let insists = body.driver != DRIVER_AUTO;
    let opened = setup::open(name, link.index, link.mtu, insists);
    Ok(opened
        .map(|opened| (opened, link.mtu))
        .map_err(|error| error.to_string()))
}
