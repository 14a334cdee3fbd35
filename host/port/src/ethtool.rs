//! What an interface of the current namespace does with frames by itself (ethtool(8)).
#![expect(unsafe_code, reason = "an interface's features are set by ioctl")]

use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Offloads of a veth that the ten bytes before a frame cannot say: a frame that relies
/// on them would be lost at its outer end. The kernel does their work before it sends.
pub const UNSAID: &[&str] = &[
    "tx-checksum-sctp",
    "tx-sctp-segmentation",
    "tx-gso-list",
    "tx-gso-robust",
    "tx-gso-partial",
    "tx-gre-segmentation",
    "tx-gre-csum-segmentation",
    "tx-ipxip4-segmentation",
    "tx-ipxip6-segmentation",
    "tx-udp_tnl-segmentation",
    "tx-udp_tnl-csum-segmentation",
    "tx-tunnel-remcsum-segmentation",
    "tx-fcoe-segmentation",
    "tx-esp-segmentation",
];

const GET_STRINGS: u32 = 0x1b;
const GET_FEATURES: u32 = 0x3a;
const SET_FEATURES: u32 = 0x3b;
const GET_SET_INFO: u32 = 0x37;
/// The set of strings that names features (`ETH_SS_FEATURES`).
const FEATURE_NAMES: u32 = 4;
const NAME: usize = 32;
/// Features at most; Linux 6.18 has 64.
const MOST: usize = 128;
const BLOCKS: usize = MOST / 32;

/// `struct ethtool_sset_info` for one set.
#[repr(C)]
struct SetInfo {
    command: u32,
    reserved: u32,
    mask: u64,
    length: u32,
}

/// `struct ethtool_gstrings`.
#[repr(C)]
struct Strings {
    command: u32,
    set: u32,
    length: u32,
    names: [[u8; NAME]; MOST],
}

/// `struct ethtool_sfeatures`.
#[repr(C)]
struct Set {
    command: u32,
    blocks: u32,
    /// Which are to be changed, and to what.
    features: [(u32, u32); BLOCKS],
}

/// `struct ethtool_gfeatures`.
#[repr(C)]
struct Get {
    command: u32,
    blocks: u32,
    features: [State; BLOCKS],
}

/// `struct ethtool_get_features_block`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct State {
    available: u32,
    requested: u32,
    active: u32,
    never_changed: u32,
}

/// Turns features of an interface off, as far as it has them and lets them go; returns
/// the names of those that stay on.
///
/// # Errors
/// No such interface, or we lack CAP_NET_ADMIN; a kernel that has no features to set
/// says `OPNOTSUPP`.
pub fn turn_off<'a>(interface: &str, names: &[&'a str]) -> Result<Vec<&'a str>, Errno> {
    let socket = plain_socket()?;
    let mut info = SetInfo {
        command: GET_SET_INFO,
        reserved: 0,
        mask: 1 << FEATURE_NAMES,
        length: 0,
    };
    ask(&socket, interface, &mut info)?;
    let mut known = Box::new(Strings {
        command: GET_STRINGS,
        set: FEATURE_NAMES,
        // The kernel writes as many as it has, whatever is asked for: no more than fit.
        length: if info.length as usize > MOST {
            return Err(Errno::OVERFLOW);
        } else {
            info.length
        },
        names: [[0; NAME]; MOST],
    });
    ask(&socket, interface, &mut *known)?;
    let blocks = info.length.div_ceil(32);
    let mut change = Set {
        command: SET_FEATURES,
        blocks,
        features: [(0, 0); BLOCKS],
    };
    let place = |name: &str| known.names.iter().position(|known| text(known) == name);
    for at in names.iter().filter_map(|name| place(name)) {
        if let Some((valid, _)) = change.features.get_mut(at / 32) {
            *valid |= 1 << (at % 32);
        }
    }
    ask(&socket, interface, &mut change)?;
    let mut now = Get {
        command: GET_FEATURES,
        blocks,
        features: [State::default(); BLOCKS],
    };
    ask(&socket, interface, &mut now)?;
    let is_on = |name: &&&str| {
        place(name)
            .and_then(|at| Some((now.features.get(at / 32)?, at % 32)))
            .is_some_and(|(state, bit)| state.active & (1 << bit) != 0)
    };
    Ok(names.iter().filter(is_on).copied().collect())
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; NAME],
    rest: [u8; 160],
}

/// The name of an interface's driver.
///
/// # Errors
/// No such interface, or it has none.
pub fn driver(interface: &str) -> Result<String, Errno> {
    const GET_DRIVER: u32 = 3;
    let mut info = DriverInfo {
        command: GET_DRIVER,
        driver: [0; NAME],
        rest: [0; 160],
    };
    ask(&plain_socket()?, interface, &mut info)?;
    Ok(text(&info.driver).to_owned())
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

/// How many queues an interface receives by.
///
/// # Errors
/// No such interface, or its driver does not say: `OPNOTSUPP`.
pub fn queues(interface: &str) -> Result<u32, Errno> {
    const GET_CHANNELS: u32 = 0x3c;
    let mut channels = Channels {
        command: GET_CHANNELS,
        ..Channels::default()
    };
    ask(&plain_socket()?, interface, &mut channels)?;
    Ok(channels.receive.saturating_add(channels.combined))
}

fn plain_socket() -> Result<OwnedFd, Errno> {
    socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )
}

fn text(name: &[u8; NAME]) -> &str {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
    name.get(..end)
        .and_then(|bytes| std::str::from_utf8(bytes).ok())
        .unwrap_or("")
}

/// One request; `body` is one of the structures above, with its command first.
fn ask<T>(socket: &OwnedFd, interface: &str, body: &mut T) -> Result<(), Errno> {
    // SAFETY: `ifreq` is plain data, for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    let Some((_, room)) = request.ifr_name.split_last_mut() else {
        return Err(Errno::INVAL);
    };
    if interface.len() > room.len() {
        return Err(Errno::NODEV);
    }
    for (place, byte) in room.iter_mut().zip(interface.bytes()) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut *body).cast();
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    // SAFETY: `request` is live and names `body`, live and borrowed mutably here, whose
    // size is what its command has the kernel read and write: at most `MOST` names and
    // `BLOCKS` blocks, of which no more are asked for than there are.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
    if done < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(())
}
