//! AF_PACKET sockets, on an uplink and at the other end of an endpoint's veth: whole
//! frames with their VLAN tags, offloads unfinished in both directions.
#![expect(
    unsafe_code,
    reason = "packet socket options and auxiliary data have no safe wrapper"
)]

use std::cell::Cell;
use std::io::IoSlice;
use std::mem::{self, MaybeUninit};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use guard::guard;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use wire::RawOffload;
use wire::offload::NEEDS_CSUM;

use crate::{PortError, vnet};

/// Why an uplink could not be opened: the host's fault, or the spec's (its name).
#[derive(Debug, thiserror::Error)]
pub enum UplinkError {
    /// No interface of that name in this namespace.
    #[error("no interface {0:?} here")]
    NoInterface(String),
    /// We lack CAP_NET_RAW, or the kernel lacks AF_PACKET.
    #[error("cannot open a packet socket: {0}")]
    Socket(Errno),
    /// A setting was refused.
    #[error("the kernel refuses {what} on a packet socket: {errno}")]
    Setup {
        /// The setting.
        what: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
}

/// Bytes of an uplink's receive buffer: 4 MiB hold 64 of the longest frames, or some
/// 2,000 ordinary ones, over a pause of the fabric.
const RECEIVE_BUFFER: libc::c_int = 4 << 20;
/// And of an endpoint's: what waits there while its rate is used up was sent already, as
/// its own stack sees it, and is to be no more than a tap's queue; a thousand connections that
/// send a page each at once find room.
const ENDPOINT_BUFFER: libc::c_int = 8 << 20;

/// Opens an interface of the current network namespace by name: every frame that
/// arrives, also for other stations' MACs (our compartments have their own), none
/// of those that leave, non-blocking, with the 10-byte `virtio_net_hdr`.
///
/// # Errors
/// [`UplinkError`]: no such interface (the spec's fault), or the kernel refuses (the host's).
pub fn open(name: &str) -> Result<OwnedFd, UplinkError> {
    let (fd, index) = socket(name, RECEIVE_BUFFER)?;
    let member = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(
        &fd,
        libc::SOL_PACKET,
        libc::PACKET_ADD_MEMBERSHIP,
        &member,
        "promiscuous mode",
    )?;
    bind(&fd, index)?;
    Ok(fd)
}

/// The same for the outer end of an endpoint's veth, which gives every frame unasked.
///
/// # Errors
/// As [`open`].
pub fn open_outer(name: &str) -> Result<OwnedFd, UplinkError> {
    let (fd, index) = socket(name, ENDPOINT_BUFFER)?;
    bind(&fd, index)?;
    Ok(fd)
}

/// A socket that hears nothing yet, and the interface's index.
fn socket(name: &str, buffer: libc::c_int) -> Result<(OwnedFd, libc::c_int), UplinkError> {
    // Protocol 0: nothing is received before the socket is bound to one interface.
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is passed.
    let raw = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if raw < 0 {
        return Err(UplinkError::Socket(last_errno()));
    }
    // SAFETY: `raw` was just made and belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    let index = rustix::net::netdevice::name_to_index(&fd, name)
        .map_err(|_| UplinkError::NoInterface(name.to_owned()))?;
    let index = libc::c_int::try_from(index).map_err(|_| UplinkError::Socket(Errno::RANGE))?;
    let on: libc::c_int = 1;
    let packet = libc::SOL_PACKET;
    set(
        &fd,
        packet,
        libc::PACKET_VNET_HDR,
        &on,
        "the offload header",
    )?;
    set(&fd, packet, libc::PACKET_AUXDATA, &on, "auxiliary data")?;
    set(
        &fd,
        packet,
        libc::PACKET_IGNORE_OUTGOING,
        &on,
        "ignoring what leaves",
    )?;
    let socket = libc::SOL_SOCKET;
    set(
        &fd,
        socket,
        libc::SO_RXQ_OVFL,
        &on,
        "counting what found no room",
    )?;
    if set(&fd, socket, libc::SO_RCVBUFFORCE, &buffer, "").is_err() {
        set(&fd, socket, libc::SO_RCVBUF, &buffer, "a receive buffer")?;
    }
    Ok((fd, index))
}

/// Throws away what a socket holds. Bound: as much as its buffer takes.
pub(crate) fn drain(socket: BorrowedFd<'_>) {
    let mut header = [0; vnet::LEN];
    for _ in 0..1 << 16 {
        if matches!(recvmsg(socket, &mut header, &mut []), Ok(None)) {
            return;
        }
    }
}

fn bind(fd: &OwnedFd, index: libc::c_int) -> Result<(), UplinkError> {
    // SAFETY: `sockaddr_ll` is plain data, for which all zeros is a value.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index;
    let length = mem::size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `address` is live and `length` bytes long.
    if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) } < 0 {
        return Err(UplinkError::Setup {
            what: "binding",
            errno: last_errno(),
        });
    }
    Ok(())
}

fn set<T>(
    fd: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
    what: &'static str,
) -> Result<(), UplinkError> {
    let length = mem::size_of::<T>() as libc::socklen_t;
    let value: *const T = value;
    // SAFETY: `value` points to a live `T` of `length` bytes, which the kernel reads.
    if unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value.cast(), length) } < 0 {
        return Err(UplinkError::Setup {
            what,
            errno: last_errno(),
        });
    }
    Ok(())
}

fn last_errno() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Bytes of a VLAN tag, and of the room kept before a frame for one.
const TAG: usize = 4;
/// Bytes of the two MAC addresses, after which a tag stands.
const ADDRESSES: usize = 12;

/// The data side of such a socket.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    /// What the kernel has counted as lost, as of the last frame; `None` = none came yet,
    /// and what is counted before is a predecessor's.
    overflowed: Cell<Option<u32>>,
    lost: Cell<u32>,
}

impl PacketSocket {
    /// Wraps a descriptor that [`open`] or [`open_outer`] made; it is non-blocking already.
    pub fn from_fd(fd: OwnedFd) -> PacketSocket {
        PacketSocket {
            fd,
            overflowed: Cell::new(None),
            lost: Cell::new(0),
        }
    }

    /// Frames that found no room in the socket's buffer since the last call, as far as
    /// the frames received since tell.
    pub fn take_lost(&self) -> u32 {
        self.lost.take()
    }

    /// Reads one frame into `buffer`, which holds [`wire::offload::MAX_FRAME`]
    /// bytes; returns its alleged offloads and where in `buffer` it is, or `None`
    /// when there is none now. A VLAN tag that the kernel keeps beside the frame
    /// is put back into it. One system call.
    ///
    /// [`PortError::Refused`] concerns one frame, which is lost (the kernel could
    /// not say its offloads in this header).
    ///
    /// # Errors
    /// [`PortError`]: the interface is down or gone, or sent a frame longer than `buffer`.
    pub fn recv(&self, buffer: &mut [u8]) -> Result<Option<(RawOffload, Range<usize>)>, PortError> {
        // Room for a tag before the frame, so that putting it back moves only
        // the addresses.
        let Some(frame) = buffer.get_mut(TAG..) else {
            return Err(PortError::Truncated);
        };
        let mut header = [0u8; vnet::LEN];
        let Some(message) = recvmsg(self.fd.as_fd(), &mut header, frame)? else {
            return Ok(None);
        };
        let Message {
            length,
            tag,
            overflowed,
        } = message;
        let before = self.overflowed.replace(Some(overflowed));
        let lost = overflowed.wrapping_sub(before.unwrap_or(overflowed));
        self.lost.set(self.lost.get().saturating_add(lost));
        let mut offload = vnet::read(&header);
        let end = TAG + length;
        let Some(tag) = tag.filter(|_| length >= ADDRESSES) else {
            return Ok(Some((offload, TAG..end)));
        };
        buffer.copy_within(TAG..TAG + ADDRESSES, 0);
        if let Some(place) = buffer.get_mut(ADDRESSES..ADDRESSES + TAG) {
            place.copy_from_slice(&tag);
        }
        if offload.flags & NEEDS_CSUM != 0 {
            offload.csum_start = offload.csum_start.saturating_add(TAG as u16);
        }
        Ok(Some((offload, 0..end)))
    }

    /// Writes one frame, `head` then `tail`, tags in their place. One system call.
    ///
    /// # Errors
    /// [`PortError`]: no room now, the interface is down or gone, or this frame is refused.
    pub fn send(&self, offload: &RawOffload, head: &[u8], tail: &[u8]) -> Result<(), PortError> {
        let header = vnet::write(offload);
        let parts = [
            IoSlice::new(&header),
            IoSlice::new(head),
            IoSlice::new(tail),
        ];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            // Bound: a signal each time, and the process has none of its own.
            let mut nothing = SendAncillaryBuffer::default();
            match rustix::net::sendmsg(&self.fd, &parts, &mut nothing, flags) {
                Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(PortError::from_errno(errno)),
            }
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// One message.
struct Message {
    /// Its frame's length.
    length: usize,
    /// The tag kept beside it, as it stands in a frame.
    tag: Option<[u8; TAG]>,
    /// How many before it, in the socket's life, found no room.
    overflowed: u32,
}

/// `struct tpacket_auxdata` is 20 bytes, the count of what found no room 4; each has a
/// control header of 16.
#[repr(C, align(8))]
struct Control([u8; 96]);

fn recvmsg(
    fd: BorrowedFd<'_>,
    header: &mut [u8; vnet::LEN],
    frame: &mut [u8],
) -> Result<Option<Message>, PortError> {
    let mut parts = [
        libc::iovec {
            iov_base: header.as_mut_ptr().cast(),
            iov_len: header.len(),
        },
        libc::iovec {
            iov_base: frame.as_mut_ptr().cast(),
            iov_len: frame.len(),
        },
    ];
    let mut control = Control([0; 96]);
    // SAFETY: `msghdr` is plain data, for which all zeros is a value.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = mem::size_of::<Control>() as _;
    let read = loop {
        // Bound: a signal each time, and the process has none of its own.
        // SAFETY: `message` points at `parts` and `control`, both live and as long
        // as said; `parts` points at `header` and `frame`, borrowed mutably here.
        let read = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        if read >= 0 {
            break read as usize;
        }
        match last_errno() {
            Errno::INTR => {}
            Errno::AGAIN => return Ok(None),
            errno => return Err(PortError::from_errno(errno)),
        }
    };
    if message.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(PortError::Truncated);
    }
    match read.checked_sub(vnet::LEN) {
        Some(length) => {
            let (tag, overflowed) = beside(&message);
            Ok(Some(Message {
                length,
                tag,
                overflowed,
            }))
        }
        None => Err(PortError::Refused(Errno::PROTO)),
    }
}

/// What is said beside a message: the tag, and how many found no room before it.
fn beside(message: &libc::msghdr) -> (Option<[u8; TAG]>, u32) {
    let (mut tag, mut overflowed) = (None, 0);
    // SAFETY: the kernel filled `msg_control` and `msg_controllen`; the macros walk
    // within those. Bound: the 96 bytes of `Control`.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !next.is_null() {
        // SAFETY: not null, so it is a whole control header within the buffer.
        let head = unsafe { next.read_unaligned() };
        match (head.cmsg_level, head.cmsg_type) {
            (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                // SAFETY: the kernel put a `tpacket_auxdata` there, 20 bytes of plain data.
                let aux: libc::tpacket_auxdata = unsafe {
                    libc::CMSG_DATA(next)
                        .cast::<libc::tpacket_auxdata>()
                        .read_unaligned()
                };
                tag = tag_of(&aux);
            }
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                // SAFETY: the kernel put a `u32` there.
                overflowed = unsafe { libc::CMSG_DATA(next).cast::<u32>().read_unaligned() };
            }
            _ => {}
        }
        // SAFETY: as for CMSG_FIRSTHDR.
        next = unsafe { libc::CMSG_NXTHDR(message, next) };
    }
    (tag, overflowed)
}

/// The tag that the kernel took out of a frame.
fn tag_of(aux: &libc::tpacket_auxdata) -> Option<[u8; TAG]> {
    const VALID: u32 = libc::TP_STATUS_VLAN_VALID;
    const TPID_VALID: u32 = libc::TP_STATUS_VLAN_TPID_VALID;
    // Without the tag a frame of somebody else's segment would pass as one of none.
    if aux.tp_status & VALID == 0 || !guard!("packet-tag") {
        return None;
    }
    let tpid = if aux.tp_status & TPID_VALID != 0 {
        aux.tp_vlan_tpid
    } else {
        wire::ethernet::VLAN
    };
    let [a, b] = tpid.to_be_bytes();
    let [c, d] = aux.tp_vlan_tci.to_be_bytes();
    Some([a, b, c, d])
}
