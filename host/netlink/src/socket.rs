//! One netlink socket: requests out, answers in.

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use rustix::io::Errno;

use crate::{Address, Batch, Link, NetlinkError};

/// A route-netlink socket in the namespace that was current when it was opened.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

/// Bytes received at once. The kernel cuts dumps to at most 32 KiB pieces.
const RECEIVE: usize = 64 * 1024;

impl Netlink {
    /// Opens a socket in the current network namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Socket`]: the host's fault.
    pub fn open() -> Result<Netlink, NetlinkError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // Answers to refused requests then do not repeat the request.
            socket.set_cap_ack(true)?;
            Ok(socket)
        };
        Ok(Netlink {
            socket: open().map_err(NetlinkError::Socket)?,
            sequence: 0,
        })
    }

    /// Starts a batch of requests; [`Batch::commit`] sends it.
    pub fn batch(&mut self) -> Batch<'_> {
        Batch::new(self)
    }

    /// The interface of this name.
    ///
    /// # Errors
    /// [`NetlinkError`]: no such interface, or the host's fault.
    pub fn link(&mut self, name: &str) -> Result<Link, NetlinkError> {
        let mut request = LinkMessage::default();
        request
            .attributes
            .push(LinkAttribute::IfName(name.to_owned()));
        let what = || format!("look up interface {name}");
        match self.ask(RouteNetlinkMessage::GetLink(request), 0, what) {
            Ok(answers) => answers
                .iter()
                .find_map(Link::of)
                .ok_or_else(|| NetlinkError::NoLink(name.to_owned())),
            Err(NetlinkError::Refused { errno, .. }) if errno == Errno::NODEV => {
                Err(NetlinkError::NoLink(name.to_owned()))
            }
            Err(error) => Err(error),
        }
    }

    /// All interfaces of the namespace.
    ///
    /// # Errors
    /// [`NetlinkError`]: the host's fault.
    pub fn links(&mut self) -> Result<Vec<Link>, NetlinkError> {
        let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let answers = self.ask(request, NLM_F_DUMP, || "list interfaces".to_owned())?;
        Ok(answers.iter().filter_map(Link::of).collect())
    }

    /// All IP addresses of the namespace.
    ///
    /// # Errors
    /// [`NetlinkError`]: the host's fault.
    pub fn addresses(&mut self) -> Result<Vec<Address>, NetlinkError> {
        let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let answers = self.ask(request, NLM_F_DUMP, || "list addresses".to_owned())?;
        Ok(answers.iter().filter_map(Address::of).collect())
    }

    /// Appends a request to `bytes`; returns its sequence number.
    pub(crate) fn encode(
        &mut self,
        bytes: &mut Vec<u8>,
        request: RouteNetlinkMessage,
        flags: u16,
    ) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
        message.finalize();
        let start = bytes.len();
        // Messages start at multiples of four (RFC 3549, section 2.2).
        bytes.resize(start + message.buffer_len().next_multiple_of(4), 0);
        if let Some(room) = bytes.get_mut(start..) {
            message.serialize(room);
        }
        self.sequence
    }

    /// Sends encoded requests in one call.
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<(), NetlinkError> {
        self.socket
            .send(bytes, 0)
            .map(drop)
            .map_err(NetlinkError::Socket)
    }

    /// Receives one datagram and hands each message in it to `each`.
    pub(crate) fn receive(
        &self,
        mut each: impl FnMut(NetlinkMessage<RouteNetlinkMessage>),
    ) -> Result<(), NetlinkError> {
        let mut bytes = Vec::with_capacity(RECEIVE);
        self.socket
            .recv(&mut bytes, 0)
            .map_err(NetlinkError::Socket)?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(|error| NetlinkError::Answer(error.to_string()))?;
            let length = (message.header.length as usize).next_multiple_of(4).max(16);
            each(message);
            rest = rest.get(length..).unwrap_or(&[]);
        }
        Ok(())
    }

    /// Sends one request and collects its answers.
    fn ask(
        &mut self,
        request: RouteNetlinkMessage,
        flags: u16,
        what: impl Fn() -> String,
    ) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        let mut bytes = Vec::new();
        // A dump ends with DONE, anything else with an acknowledgement.
        let flags = if flags & NLM_F_DUMP == NLM_F_DUMP {
            flags
        } else {
            flags | NLM_F_ACK
        };
        let sequence = self.encode(&mut bytes, request, flags);
        self.send(&bytes)?;
        let mut answers = Vec::new();
        let mut end: Option<Option<Errno>> = None;
        while end.is_none() {
            self.receive(|message| {
                if message.header.sequence_number != sequence {
                    return;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                    NetlinkPayload::Done(_) => end = Some(None),
                    NetlinkPayload::Error(error) => end = Some(errno(error.code)),
                    _ => {}
                }
            })?;
        }
        match end.flatten() {
            None => Ok(answers),
            Some(errno) => Err(NetlinkError::Refused {
                what: what(),
                errno,
            }),
        }
    }
}

/// The error number of an answer; `None` is an acknowledgement.
pub(crate) fn errno(code: Option<std::num::NonZeroI32>) -> Option<Errno> {
    code.map(|code| Errno::from_raw_os_error(code.get().saturating_abs()))
}
