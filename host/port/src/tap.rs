//! Taps: Ethernet interfaces in a tenant's namespace whose other end is a
//! descriptor of ours. Offloads cross unfinished in both directions.
#![expect(unsafe_code, reason = "the tun driver is set up by ioctl")]

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use wire::RawOffload;

use crate::{Features, PortError, vnet};

/// Why a tap could not be made: the host's fault, or the spec's (its name).
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// An interface name is 1 to 15 bytes without `/`, space or NUL.
    #[error("{0:?} cannot be an interface's name")]
    Name(String),
    /// No tun driver here.
    #[error("cannot open /dev/net/tun: {0}")]
    Driver(Errno),
    /// The interface exists and is not a tap that is free, or we lack CAP_NET_ADMIN.
    #[error("cannot make the tap {name}: {errno}")]
    Create {
        /// Its name.
        name: String,
        /// What the kernel said.
        errno: Errno,
    },
    /// The driver is older than what we need.
    #[error("the tun driver refuses {what}: {errno}")]
    Setup {
        /// The setting.
        what: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
}

/// Makes a tap in the current network namespace, non-blocking, with the 10-byte
/// `virtio_net_hdr` and every offload the kernel has; says which those are. The
/// interface lives as long as the descriptor. Its MAC, MTU and state are set by
/// netlink.
///
/// # Errors
/// [`TapError`]: a name that is none or is taken (the spec's fault), or the kernel refuses
/// (the host's).
pub fn create(name: &str) -> Result<(OwnedFd, Features), TapError> {
    let mut request = request(name).ok_or_else(|| TapError::Name(name.to_owned()))?;
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map_err(TapError::Driver)?;
    // SAFETY: `request` is a live, initialised `ifreq`, which is what TUNSETIFF
    // reads and writes back.
    let made = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    if made < 0 {
        return Err(TapError::Create {
            name: name.to_owned(),
            errno: last_errno(),
        });
    }
    let size = vnet::LEN as libc::c_int;
    // SAFETY: TUNSETVNETHDRSZ reads one int, which `size` is.
    let sized = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const size) };
    if sized < 0 {
        return Err(TapError::Setup {
            what: "the offload header's size",
            errno: last_errno(),
        });
    }
    let features = offload(fd.as_fd())?;
    Ok((fd, features))
}

/// Closes a tap whose namespace is about to be deleted, and leaves its interface to
/// that: the kernel then removes it behind our back, together with others. An
/// interface that goes with its last descriptor holds us up for some 30 ms each.
pub fn leave_to_namespace(fd: OwnedFd) {
    let keep: libc::c_ulong = 1;
    // SAFETY: TUNSETPERSIST takes its argument by value; no memory is touched. If it
    // is refused the interface goes with the descriptor, which is only slower.
    let _ = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETPERSIST as _, keep) };
}

/// Asks for all offloads, then for less: UDP segmentation came with Linux 6.2.
fn offload(fd: BorrowedFd<'_>) -> Result<Features, TapError> {
    let tcp = Features::CSUM.with(Features::TSO4).with(Features::TSO6);
    let tcp_bits = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let udp_bits = libc::TUN_F_USO4 | libc::TUN_F_USO6;
    for (bits, features) in [
        (tcp_bits | udp_bits, tcp.with(Features::USO)),
        (tcp_bits, tcp),
        (libc::TUN_F_CSUM, Features::CSUM),
    ] {
        let bits = libc::c_ulong::from(bits);
        // SAFETY: TUNSETOFFLOAD takes its argument by value; no memory is touched.
        if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD as _, bits) } >= 0 {
            return Ok(features);
        }
    }
    Err(TapError::Setup {
        what: "offloads",
        errno: last_errno(),
    })
}

fn request(name: &str) -> Option<libc::ifreq> {
    let legal = |byte: &u8| byte.is_ascii_graphic() && *byte != b'/';
    if name.is_empty() || !name.as_bytes().iter().all(legal) || matches!(name, "." | "..") {
        return None;
    }
    // SAFETY: `ifreq` is plain data, for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let (last, room) = request.ifr_name.split_last_mut()?;
    *last = 0;
    for (place, byte) in room.get_mut(..name.len())?.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags =
        (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    Some(request)
}

fn last_errno() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// The data side of a tap.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
}

impl Tap {
    /// Wraps a descriptor that [`create`] made; it is non-blocking already.
    pub fn from_fd(fd: OwnedFd) -> Tap {
        Tap { fd }
    }

    /// Reads one frame into `buffer`, which holds [`wire::offload::MAX_FRAME`]
    /// bytes; returns its alleged offloads and its length, or `None` when there
    /// is none now. One system call.
    ///
    /// # Errors
    /// [`PortError`]: the interface is down or gone, or sent a frame longer than `buffer`.
    pub fn recv(&self, buffer: &mut [u8]) -> Result<Option<(RawOffload, usize)>, PortError> {
        let room = buffer.len();
        let mut header = [0u8; vnet::LEN];
        let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(buffer)];
        let read = loop {
            // Bound: a signal each time, and the process has none of its own.
            match rustix::io::readv(&self.fd, &mut parts) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        match read {
            Ok(read) if read > vnet::LEN + room - 1 => Err(PortError::Truncated),
            Ok(read) => match read.checked_sub(vnet::LEN) {
                Some(length) => Ok(Some((vnet::read(&header), length))),
                None => Err(PortError::Vanished),
            },
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(PortError::from_errno(errno)),
        }
    }

    /// Writes one frame, `head` then `tail`. One system call.
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
        loop {
            // Bound: as in `recv`.
            match rustix::io::writev(&self.fd, &parts) {
                Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(PortError::from_errno(errno)),
            }
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::request;

    #[test]
    fn names_that_cannot_be_interfaces_are_refused() {
        for name in ["", "sixteen-bytes-xx", "a/b", "a b", ".", "..", "ü"] {
            assert!(request(name).is_none(), "{name:?}");
        }
        assert!(request("fifteen-bytes-x").is_some());
    }
}
