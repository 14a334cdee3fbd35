//! What needs privilege: memory, sockets, rings, the program. The supervisor's.
#![expect(
    unsafe_code,
    reason = "AF_XDP is set up by socket options without a wrapper"
)]

use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use super::memory::{Layout, Mapping, Offsets, Ring, Which};
use super::{CHUNK, CHUNKS, FRAMES, MAX_MTU, Mode, PART, program};
use crate::{ethtool, packet};

/// Queues at most: what is made for more of them would be memory that lies idle.
pub const MAX_QUEUES: u32 = 64;

/// Names of the features that take a tag out of a frame and put it beside, where a socket of
/// this kind does not see it.
const UNTAGGING: &[&str] = &["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"];
/// Drivers whose frames come from a stack of this host that leaves checksums to others: what
/// is missing stands beside the frame as well.
const UNFINISHED: &[&str] = &["veth", "tun"];

/// Why an interface is not read by AF_XDP.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoXdp {
    /// Its frames are not whole.
    #[error("frames of a {0} come without the checksums that its other end left out")]
    Unfinished(String),
    /// A frame and its tags do not fit a chunk.
    #[error("its MTU is over {MAX_MTU}")]
    Mtu,
    /// Tags would be lost.
    #[error("its driver does not leave tags in their frames ({0})")]
    Untags(String),
    /// More queues than we serve.
    #[error("it has {0} queues, of {MAX_QUEUES} at most (ethtool -L)")]
    Queues(u32),
    /// The kernel or the driver refuses a step.
    #[error("the kernel refuses {what}: {errno}")]
    Refused {
        /// The step.
        what: &'static str,
        /// What it said.
        errno: Errno,
    },
}

/// An uplink by AF_XDP. It ends with these descriptors.
#[derive(Debug)]
pub struct Opened {
    /// Keeps the program attached.
    pub link: OwnedFd,
    /// Every queue's chunks.
    pub memory: OwnedFd,
    /// A socket for each queue.
    pub queues: Vec<OwnedFd>,
    /// How.
    pub mode: Mode,
}

/// Opens an interface of the current namespace, beside the packet socket that holds it open
/// for all stations' frames. `insists`: what comes unfinished is taken as it comes.
///
/// # Errors
/// [`NoXdp`], with nothing left behind but that tags stay in their frames.
pub fn open(name: &str, index: u32, mtu: u32, insists: bool) -> Result<Opened, NoXdp> {
    let driver = ethtool::driver(name).unwrap_or_default();
    if UNFINISHED.contains(&driver.as_str()) && !insists {
        return Err(NoXdp::Unfinished(driver));
    }
    if mtu > MAX_MTU {
        return Err(NoXdp::Mtu);
    }
    match ethtool::turn_off(name, UNTAGGING) {
        Ok(stay) if stay.is_empty() => {}
        Ok(stay) => return Err(NoXdp::Untags(stay.join(", "))),
        Err(errno) => return Err(refused("to leave tags in frames")(errno)),
    }
    let count = ethtool::queues(name).unwrap_or(1).max(1);
    if count > MAX_QUEUES {
        return Err(NoXdp::Queues(count));
    }
    let map = program::create_map(count).map_err(refused("a map of sockets"))?;
    let loaded = program::load(map.as_fd()).map_err(refused("the program"))?;
    // Passes all until there are sockets.
    let attached = patiently(|| program::attach(loaded.as_fd(), index));
    let link = attached.map_err(refused("a program by this driver"))?;
    let memory = memory(count as usize)?;
    let mut mode = Mode::ZeroCopy;
    let mut queues = Vec::new();
    for number in 0..count {
        let bound = match mode {
            Mode::ZeroCopy => bind(memory.as_fd(), index, number, mode),
            Mode::Copy => Err(NoXdp::Mtu),
        };
        let bound = match bound {
            Err(_) if number == 0 || mode == Mode::Copy => {
                mode = Mode::Copy;
                bind(memory.as_fd(), index, number, mode)
            }
            other => other,
        };
        queues.push(bound?);
    }
    for (queue, number) in queues.iter().zip(0..) {
        program::note(map.as_fd(), number, queue.as_fd())
            .map_err(refused("a socket in the map"))?;
    }
    Ok(Opened {
        link,
        memory,
        queues,
        mode,
    })
}

/// Has a packet socket receive nothing more: what it is for is that all stations' frames
/// come, and that it says when the interface goes.
///
/// # Errors
/// The kernel refuses a filter.
pub fn deafen(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    // "Take no byte of it."
    let mut none = libc::sock_filter {
        code: 6,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let filter = libc::sock_fprog {
        len: 1,
        filter: &raw mut none,
    };
    option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)?;
    // What came before the filter did is gone with the first sockets of the other kind.
    packet::drain(socket);
    Ok(())
}

/// Tries again while the kernel says that somebody has it still: who had it before us closes
/// what it holds, and the kernel takes its time to let go. Bound: 40 times, 5 ms each.
fn patiently<T>(mut attempt: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..40 {
        match attempt() {
            Err(Errno::BUSY) => {
                let pause = rustix::event::Timespec {
                    tv_sec: 0,
                    tv_nsec: 5_000_000,
                };
                let _ = rustix::event::poll(&mut [], Some(&pause));
            }
            other => return other,
        }
    }
    attempt()
}

fn refused(what: &'static str) -> impl Fn(Errno) -> NoXdp {
    move |errno| NoXdp::Refused { what, errno }
}

/// Memory for so many queues. Nobody can cut it off, and it is there before it is used.
fn memory(queues: usize) -> Result<OwnedFd, NoXdp> {
    let make = || {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL;
        let fd = rustix::fs::memfd_create("bulkhead-uplink", flags)?;
        let length = (queues * PART) as u64;
        rustix::fs::ftruncate(&fd, length)?;
        rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, length)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals)?;
        Ok(fd)
    };
    make().map_err(refused("memory for frames"))
}

/// One queue's socket, bound, with its chunks given to the kernel.
fn bind(memory: BorrowedFd<'_>, index: u32, number: u32, mode: Mode) -> Result<OwnedFd, NoXdp> {
    // SAFETY: no memory is passed.
    let raw = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(refused("a socket of this kind")(last_errno()));
    }
    // SAFETY: just made; nobody else has it.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    let offset = i64::from(number) * PART as i64;
    let mapped = Mapping::new(memory, offset, PART).map_err(refused("memory for frames"))?;
    // SAFETY: plain data, for which all zeros is a value.
    let mut chunks: libc::xdp_umem_reg = unsafe { mem::zeroed() };
    chunks.addr = mapped.address();
    chunks.len = FRAMES as u64;
    chunks.chunk_size = CHUNK as u32;
    let xdp = libc::SOL_XDP;
    option(fd.as_fd(), xdp, libc::XDP_UMEM_REG, &chunks).map_err(refused("memory to share"))?;
    for ring in [
        libc::XDP_UMEM_FILL_RING,
        libc::XDP_UMEM_COMPLETION_RING,
        libc::XDP_RX_RING,
        libc::XDP_TX_RING,
    ] {
        option(fd.as_fd(), xdp, ring, &CHUNKS).map_err(refused("a ring"))?;
    }
    let places = offsets(fd.as_fd()).map_err(refused("where its rings are"))?;
    for (which, place) in Which::ALL.into_iter().zip(&places) {
        Layout::write(&mapped, which, place);
    }
    if let Some(fresh) = mapped.word(Layout::FRESH) {
        fresh.store(0, std::sync::atomic::Ordering::Relaxed);
    }
    let [_, _, fill, _] = places;
    let filling = Ring::map(fd.as_fd(), Which::Fill, &fill).map_err(refused("a ring's mapping"))?;
    for n in 0..CHUNKS {
        filling.put_address(n, u64::from(n) * CHUNK as u64);
    }
    filling.produce(CHUNKS);
    let how = match mode {
        Mode::ZeroCopy => libc::XDP_ZEROCOPY,
        Mode::Copy => libc::XDP_COPY,
    };
    // SAFETY: plain data, for which all zeros is a value.
    let mut address: libc::sockaddr_xdp = unsafe { mem::zeroed() };
    address.sxdp_family = libc::AF_XDP as libc::c_ushort;
    address.sxdp_flags = how | libc::XDP_USE_NEED_WAKEUP;
    address.sxdp_ifindex = index;
    address.sxdp_queue_id = number;
    let length = mem::size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    let attempt = || {
        // SAFETY: `address` is live and `length` bytes long.
        let done = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) };
        if done < 0 { Err(last_errno()) } else { Ok(()) }
    };
    patiently(attempt).map_err(refused("to bind a queue"))?;
    // The fabric maps it after us, and its successor after it.
    Ring::map(fd.as_fd(), Which::Fill, &fill)
        .map_err(refused("to map a bound socket's rings (before Linux 6.4)"))?;
    Ok(fd)
}

/// Where the kernel has the words of a socket's rings, in the order of [`Which::ALL`].
fn offsets(fd: BorrowedFd<'_>) -> Result<[Offsets; 4], Errno> {
    // SAFETY: plain data, for which all zeros is a value.
    let mut found: libc::xdp_mmap_offsets = unsafe { mem::zeroed() };
    let mut length = mem::size_of::<libc::xdp_mmap_offsets>() as libc::socklen_t;
    // SAFETY: `found` is live and `length` bytes long.
    let got = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_MMAP_OFFSETS,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if got < 0 {
        return Err(last_errno());
    }
    // An older kernel's answer is shorter, and has no flags.
    if length as usize != mem::size_of::<libc::xdp_mmap_offsets>() {
        return Err(Errno::NOSYS);
    }
    Ok(
        [found.rx, found.tx, found.fr, found.cr].map(|ring| Offsets {
            producer: ring.producer,
            consumer: ring.consumer,
            entries: ring.desc,
            flags: ring.flags,
        }),
    )
}

fn option<T>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> Result<(), Errno> {
    let length = mem::size_of::<T>() as libc::socklen_t;
    let value: *const T = value;
    // SAFETY: `value` points to a live `T` of `length` bytes, which the kernel reads.
    let done = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value.cast(), length) };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}

pub(super) fn last_errno() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
