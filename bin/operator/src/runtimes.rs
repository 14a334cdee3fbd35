//! Container runtimes: they hand over where a container's calls come, as the OCI runtime
//! specification has it of `listenerPath`.
//!
//! A runtime connects, sends the container's state as JSON with the listener beside it, and goes.
//! Which endpoint it is says the socket that it connected to, and the listener is a descriptor: so
//! nothing of the text is looked at, and there is no parser here to attack.

use command::verbs::{
    CONTAINER_DESCRIPTORS, CONTAINER_LONG, CONTAINER_NO_LISTENER, CONTAINER_NOT_ROOT,
    CONTAINER_NOTHING,
};
use core::mem::MaybeUninit;
use guard::guard;
use notify::is_listener;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, accept_with, recvmsg,
};
use seqpacket::Socket;
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

/// Runtimes that have not gone yet, at most.
const MOST: usize = 64;
/// Bytes of a container's state at most: some hundred, with what its maker wrote beside it.
const LONGEST: usize = 1 << 20;
/// Bytes taken at a time.
const ROOM: usize = 16 << 10;
/// Descriptors that are taken at a time, to be refused if they are more than one.
const DESCRIPTORS: usize = 8;

/// Where they come, by slot, and who has come.
#[derive(Default)]
pub struct Runtimes {
    slots: BTreeMap<u32, OwnedFd>,
    here: BTreeMap<u32, Runtime>,
}

struct Runtime {
    slot: u32,
    socket: Rc<OwnedFd>,
    bytes: usize,
    handed: bool,
}

/// What a runtime said.
pub enum Said {
    /// Nothing that counts yet, or any more.
    More,
    /// Where a container's calls come.
    Container {
        /// Of which endpoint.
        slot: u32,
        /// The descriptor of its filter.
        listener: OwnedFd,
    },
    /// It said what it should not, and is gone.
    Refused {
        /// Of which endpoint.
        slot: u32,
        /// `CONTAINER_*`.
        why: u32,
    },
    /// It has gone.
    Over,
}

impl Runtimes {
    /// An endpoint has this socket for runtimes.
    pub fn opens(&mut self, slot: u32, socket: OwnedFd) {
        self.slots.insert(slot, socket);
    }

    /// An endpoint goes, and who has come for it.
    pub fn closes(&mut self, slot: u32) -> Option<OwnedFd> {
        self.here.retain(|_, runtime| runtime.slot != slot);
        self.slots.remove(&slot)
    }

    /// The next one that connects; an error, if it is not root: who else could start a container
    /// as another's.
    pub fn meet(&self, slot: u32) -> Result<Option<Rc<OwnedFd>>, u32> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listening = self.slots.get(&slot);
        let Some(socket) = listening.and_then(|it| accept_with(it, flags).ok()) else {
            return Ok(None);
        };
        let socket = Socket::from_fd(socket);
        let is_root = socket.peer_credentials().is_ok_and(|who| who.uid == 0);
        match guard!("runtime-root") && !is_root {
            true => Err(CONTAINER_NOT_ROOT),
            false => Ok(Some(Rc::new(socket.into_fd()))),
        }
    }

    /// It is watched, by this number.
    pub fn met(&mut self, number: u32, slot: u32, socket: Rc<OwnedFd>) {
        if self.here.len() >= MOST {
            // Who is here longest is who does not go.
            self.here.pop_first();
        }
        let runtime = Runtime {
            slot,
            socket,
            bytes: 0,
            handed: false,
        };
        self.here.insert(number, runtime);
    }

    /// What one says.
    pub fn hear(&mut self, number: u32) -> Said {
        let Some(runtime) = self.here.get_mut(&number) else {
            return Said::Over;
        };
        let said = runtime.hear();
        if matches!(said, Said::Refused { .. } | Said::Over) {
            self.here.remove(&number);
        }
        said
    }
}

impl Runtime {
    fn hear(&mut self) -> Said {
        let slot = self.slot;
        let refused = |why| Said::Refused { slot, why };
        let mut room = [0_u8; ROOM];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut data = [IoSliceMut::new(&mut room)];
        let received = recvmsg(self.socket.as_fd(), &mut data, &mut control, flags);
        let bytes = match received {
            Ok(received) => received.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Said::More,
            Err(_) => return Said::Over,
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(came) = message {
                fds.extend(came);
            }
        }
        self.bytes += bytes;
        if self.bytes > LONGEST {
            return refused(CONTAINER_LONG);
        }
        match (bytes, fds.pop()) {
            (0, _) if !self.handed => refused(CONTAINER_NOTHING),
            (0, _) => Said::Over,
            (_, None) => Said::More,
            (_, Some(_)) if self.handed || !fds.is_empty() => refused(CONTAINER_DESCRIPTORS),
            (_, Some(fd)) if !is_listener(fd.as_fd()) && guard!("runtime-listener") => {
                refused(CONTAINER_NO_LISTENER)
            }
            (_, Some(listener)) => {
                self.handed = true;
                Said::Container { slot, listener }
            }
        }
    }
}
