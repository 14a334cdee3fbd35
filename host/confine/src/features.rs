//! What this host's kernel offers: each feature is tried, not guessed from a version.
//!
//! `required` is set where a claim about isolation would not hold without it:
//! Bulkhead then refuses to run instead of running weaker.
#![expect(
    unsafe_code,
    reason = "probes run in a forked child and use calls without safe wrappers"
)]

mod circuits;

use crate::cgroup::Hierarchy;
use crate::kernel;
use rustix::io::Errno;
use std::fs;

/// One feature of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name.
    pub name: &'static str,
    /// The Linux version that brought it; "" where it is not about a version.
    pub kernel: &'static str,
    /// What in Bulkhead uses it.
    pub used_by: &'static str,
    /// Whether it was found.
    pub found: Found,
    /// What was seen.
    pub detail: String,
    /// What is lost without it.
    pub lost: &'static str,
    /// Whether Bulkhead refuses to run without it.
    pub required: bool,
}

impl Feature {
    /// Whether this alone makes Bulkhead refuse to run.
    pub fn refuses(&self) -> bool {
        self.required && self.found == Found::No
    }
}

/// Whether a feature is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Tried, and it works.
    Yes,
    /// Tried, and it does not.
    No,
    /// In part: `detail` says what is missing.
    Partly,
}

/// Tries every feature. Works as root and as an ordinary user; leaves nothing behind.
pub fn features() -> Vec<Feature> {
    let mut found = namespaces();
    found.extend(sandbox());
    found.extend(memory_and_processes());
    found.extend(speculation());
    found.push(cgroups());
    found.extend(network());
    found.extend(circuits::circuits());
    found.extend(limits());
    found
}

fn yes_if(condition: bool) -> Found {
    if condition { Found::Yes } else { Found::No }
}

fn namespaces() -> Vec<Feature> {
    let works = |flags: i32| in_child(flags, || true).map_err(|error| error.to_string());
    let user = works(libc::CLONE_NEWUSER);
    let all = works(
        libc::CLONE_NEWUSER
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWNET
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS,
    );
    let detail = |tried: &Result<bool, String>| match tried {
        Ok(_) => "made one".to_owned(),
        Err(error) => error.clone(),
    };
    vec![
        Feature {
            name: "user namespaces",
            kernel: "3.8",
            used_by: "confinement of every process; running without root",
            found: yes_if(user.is_ok()),
            detail: detail(&user),
            lost: "no process can be confined",
            required: true,
        },
        Feature {
            name: "mount, pid, net, ipc, uts namespaces",
            kernel: "3.8",
            used_by: "confinement: no file system, network or process of the host",
            found: yes_if(all.is_ok()),
            detail: detail(&all),
            lost: "no process can be confined",
            required: true,
        },
        Feature {
            name: "clone3 with pidfd",
            kernel: "5.3",
            used_by: "starting processes without a race",
            found: yes_if(user.is_ok() || clone3_exists()),
            detail: String::new(),
            lost: "no process can be started",
            required: true,
        },
    ]
}

fn clone3_exists() -> bool {
    in_child(0, || true).is_ok()
}

fn sandbox() -> Vec<Feature> {
    let abi = kernel::landlock_abi();
    let found = match abi {
        0 => Found::No,
        1..6 => Found::Partly,
        _ => Found::Yes,
    };
    let lacks = match abi {
        0 => "; switched off or not built in",
        1..4 => "; no network nor scope rights: seccomp and namespaces alone forbid these",
        4..6 => "; no scope rights: seccomp and namespaces alone forbid signals and sockets",
        _ => "",
    };
    let seccomp = kernel::has_seccomp_action(libc::SECCOMP_RET_KILL_PROCESS);
    vec![
        Feature {
            name: "seccomp filters",
            kernel: "4.14",
            used_by: "confinement: the list of system calls of each process",
            found: yes_if(seccomp),
            detail: String::new(),
            lost: "a switch that is taken over has the whole kernel to attack",
            required: true,
        },
        Feature {
            name: "Landlock",
            kernel: "5.13; complete from 6.12",
            used_by: "confinement: no file, no port, no signal to outside, even past seccomp",
            found,
            detail: format!("ABI {abi}{lacks}"),
            lost: "the second lock on files and network",
            required: true,
        },
    ]
}

fn memory_and_processes() -> Vec<Feature> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let sealing = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | SealFlags::WRITE;
    let sealed = memfd_create("probe", sealing).and_then(|fd| fcntl_add_seals(fd, seals));
    let no_exec = memfd_create("probe", sealing | MemfdFlags::NOEXEC_SEAL);
    let own = rustix::process::pidfd_open(
        rustix::process::getpid(),
        rustix::process::PidfdFlags::empty(),
    );
    let says = |error: Option<Errno>| error.map(|e| e.to_string()).unwrap_or_default();
    vec![
        Feature {
            name: "sealed memory files",
            kernel: "3.17",
            used_by: "rings and table images that a peer cannot shrink or change",
            found: yes_if(sealed.is_ok()),
            detail: says(sealed.err()),
            lost: "no memory can be shared safely",
            required: true,
        },
        Feature {
            name: "memory files sealed against execution",
            kernel: "6.3",
            used_by: "rings that can never be mapped executable through a descriptor's mode",
            found: yes_if(no_exec.is_ok()),
            detail: says(no_exec.err()),
            lost: "one of two locks: seccomp still forbids executable mappings in every \
                   confined process",
            required: false,
        },
        Feature {
            name: "pidfd",
            kernel: "5.4",
            used_by: "keeper and supervisor: a process is never mistaken for another",
            found: yes_if(own.is_ok()),
            detail: says(own.err()),
            lost: "no process can be supervised",
            required: true,
        },
        Feature {
            name: "close_range",
            kernel: "5.11",
            used_by: "confinement: nothing is inherited but what was meant",
            found: yes_if(kernel::has_close_range()),
            detail: String::new(),
            lost: "no process can be started",
            required: true,
        },
        Feature {
            name: "SO_PEERCRED",
            kernel: "2.6",
            used_by: "the API and FIFO sockets: who calls",
            found: yes_if(peer_is_known()),
            detail: String::new(),
            lost: "callers cannot be told apart",
            required: true,
        },
    ]
}

fn peer_is_known() -> bool {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
    socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .and_then(|(a, _b)| sockopt::socket_peercred(a))
    .is_ok_and(|peer| peer.uid == rustix::process::getuid())
}

/// What of the separation of processes is weaker here than on the best host: what the
/// daemon says when it starts and in its status. A sentence each.
pub fn weaker() -> Vec<String> {
    speculation()
        .iter()
        .filter(|feature| feature.found != Found::Yes)
        .map(|feature| format!("no {} ({}): {}", feature.name, feature.detail, feature.lost))
        .collect()
}

fn speculation() -> Vec<Feature> {
    let probe = |name, which, lost| {
        let state = kernel::prctl(libc::PR_GET_SPECULATION_CTRL, which, 0, 0, 0);
        let (found, detail) = match state {
            Ok(0) => (Found::Yes, "this processor is not affected".to_owned()),
            Ok(state) if state & 1 != 0 => (Found::Yes, "each process can switch it off".into()),
            Ok(state) if state & 2 != 0 => (
                Found::No,
                "affected, and this processor or its hypervisor offers no control".into(),
            ),
            Ok(_) => (Found::Yes, "off on the whole host".into()),
            Err(error) => (Found::No, error.to_string()),
        };
        Feature {
            name,
            kernel: "4.17",
            used_by: "confinement: speculation of one process reading another's memory",
            found,
            detail,
            lost,
            // A channel that SECURITY.md lists as not defended where cores are shared.
            required: false,
        }
    };
    let scheduling = match kernel::core_scheduling_cookie() {
        Ok(_) => (Found::Yes, String::new()),
        Err(Errno::NODEV) => (
            Found::Yes,
            "no sibling threads on this processor".to_owned(),
        ),
        Err(error) => (Found::No, error.to_string()),
    };
    vec![
        // Within one process only, and a process holds one tenant's data.
        probe(
            "speculative store bypass control",
            0,
            "a switch may read its own memory speculatively in ways its code did not mean",
        ),
        probe(
            "indirect branch speculation control",
            1,
            "on a shared core one process may steer another's speculation; \
             `cores: isolated` does not need it",
        ),
        Feature {
            name: "core scheduling",
            kernel: "5.14, CONFIG_SCHED_CORE",
            used_by: "two tenants never on sibling threads of one core at a time",
            found: scheduling.0,
            detail: scheduling.1,
            lost: "with shared cores, timing between sibling threads is observable; \
                   `cores: isolated` does not need it",
            required: false,
        },
    ]
}

fn cgroups() -> Feature {
    let (found, detail) = match Hierarchy::find() {
        Ok(hierarchy) => (Found::Yes, hierarchy.describe()),
        Err(error) => (Found::No, error.to_string()),
    };
    Feature {
        name: "cgroup with memory controller",
        kernel: "4.5 (v2) or v1",
        used_by: "a limit on each compartment's memory",
        found,
        detail,
        lost: "only each switch's private memory is bounded (RLIMIT_DATA)",
        required: false,
    }
}

const TAP: u32 = 1;
const HEADER: u32 = 1 << 1;
const SEGMENTATION: u32 = 1 << 2;
const UDP_SEGMENTATION: u32 = 1 << 3;
const PACKET: u32 = 1 << 4;
const PACKET_HEADER: u32 = 1 << 5;
const XDP: u32 = 1 << 6;

fn network() -> Vec<Feature> {
    let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNET;
    let seen = in_child_bits(flags, network_bits).unwrap_or(0);
    let device = match fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
    {
        Ok(_) => String::new(),
        Err(error) => format!("/dev/net/tun: {error}"),
    };
    let offloads = match (seen & SEGMENTATION != 0, seen & UDP_SEGMENTATION != 0) {
        (true, true) => (Found::Yes, "checksum, TSO, USO"),
        (true, false) => (Found::Partly, "checksum, TSO; no USO before Linux 6.2"),
        _ => (Found::No, ""),
    };
    vec![
        Feature {
            name: "tap with offload header",
            kernel: "2.6.27",
            used_by: "endpoints in network namespaces",
            found: yes_if(seen & TAP != 0 && seen & HEADER != 0),
            detail: device,
            lost: "no tap endpoints: FIFO endpoints only",
            required: false,
        },
        Feature {
            name: "tap offloads",
            kernel: "2.6.27; USO 6.2",
            used_by: "large frames crossing whole",
            found: offloads.0,
            detail: offloads.1.to_owned(),
            lost: "throughput: large frames are cut by the workload's kernel",
            required: false,
        },
        Feature {
            name: "packet sockets with offload header",
            kernel: "2.6.27",
            used_by: "uplinks, endpoints by veth",
            found: yes_if(seen & PACKET != 0 && seen & PACKET_HEADER != 0),
            detail: String::new(),
            lost: "no uplink by AF_PACKET, no endpoint by veth",
            required: false,
        },
        Feature {
            name: "AF_XDP",
            kernel: "4.18; 6.4 to be handed on",
            used_by: "uplinks without a system call a frame",
            found: yes_if(seen & XDP != 0),
            detail: String::new(),
            lost: "uplinks by AF_PACKET only",
            required: false,
        },
    ]
}

/// In a child that is alone in new user and network namespaces: what works there.
/// Allocates nothing.
fn network_bits() -> u32 {
    const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
    const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
    const TUNSETVNETHDRSZ: libc::c_ulong = 0x4004_54d8;
    const OFFLOAD_CHECKSUM_TSO: libc::c_ulong = 0x01 | 0x02 | 0x04;
    const OFFLOAD_USO: libc::c_ulong = 0x20 | 0x40;
    const PACKET_VNET_HDR: libc::c_int = 15;
    let mut seen = 0;
    // SAFETY: descriptors made here, numbers, and structs of our own that the kernel
    // only reads; the child exits next, so nothing needs closing.
    unsafe {
        let tun = libc::open(c"/dev/net/tun".as_ptr(), libc::O_RDWR);
        let mut request: libc::ifreq = core::mem::zeroed();
        request.ifr_ifru.ifru_flags =
            (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        if tun >= 0 && libc::ioctl(tun, TUNSETIFF, &raw mut request) == 0 {
            seen |= TAP;
            let size: libc::c_int = 12;
            if libc::ioctl(tun, TUNSETVNETHDRSZ, &raw const size) == 0 {
                seen |= HEADER;
            }
            if libc::ioctl(tun, TUNSETOFFLOAD, OFFLOAD_CHECKSUM_TSO) == 0 {
                seen |= SEGMENTATION;
            }
            if libc::ioctl(tun, TUNSETOFFLOAD, OFFLOAD_CHECKSUM_TSO | OFFLOAD_USO) == 0 {
                seen |= UDP_SEGMENTATION;
            }
        }
        if libc::socket(libc::AF_XDP, libc::SOCK_RAW, 0) >= 0 {
            seen |= XDP;
        }
        let packet = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0);
        if packet >= 0 {
            seen |= PACKET;
            let on: libc::c_int = 1;
            let length = size_of::<libc::c_int>() as libc::socklen_t;
            let option = (&raw const on).cast();
            if libc::setsockopt(packet, libc::SOL_PACKET, PACKET_VNET_HDR, option, length) == 0 {
                seen |= PACKET_HEADER;
            }
        }
    }
    seen
}

fn limits() -> Vec<Feature> {
    /// Descriptors for 200 compartments of two endpoints.
    const FILES: u64 = 16_384;
    let (soft, hard) = kernel::limits(libc::RLIMIT_NOFILE).unwrap_or((0, 0));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = kernel::limits(libc::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft);
    vec![
        Feature {
            name: "open files",
            kernel: "",
            used_by: "six descriptors a channel, held by the keeper",
            found: if hard >= FILES {
                Found::Yes
            } else {
                Found::Partly
            },
            detail: format!("{soft} now, {hard} at most"),
            lost: "fewer endpoints",
            required: false,
        },
        Feature {
            name: "locked memory",
            kernel: "",
            used_by: "AF_XDP uplinks, before Linux 5.11",
            found: Found::Yes,
            detail: if memory == u64::MAX {
                "unlimited".into()
            } else {
                format!("{memory} bytes")
            },
            lost: "",
            required: false,
        },
        Feature {
            name: "processor cores",
            kernel: "",
            used_by: "`cores: isolated`: one a worker, and one for all the rest",
            found: if cores >= 2 {
                Found::Yes
            } else {
                Found::Partly
            },
            detail: format!("{cores}"),
            lost: "no core can be given to one tenant alone",
            required: false,
        },
    ]
}

/// Runs a closure in a forked child in new namespaces; its answer.
fn in_child(flags: i32, probe: fn() -> bool) -> Result<bool, Errno> {
    child_status(flags, || u32::from(!probe())).map(|status| status == 0)
}

fn in_child_bits(flags: i32, probe: fn() -> u32) -> Result<u32, Errno> {
    child_status(flags, probe)
}

/// The exit status (0 to 255) of a child that runs `probe`.
fn child_status(flags: i32, probe: impl Fn() -> u32) -> Result<u32, Errno> {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    use std::os::fd::AsFd;
    // SAFETY: the probes allocate nothing and take no lock; then the child exits.
    let Some((_, pidfd)) = (unsafe { kernel::fork_into(flags as u64)? }) else {
        let status = probe();
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(status.cast_signed()) }
    };
    let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?;
    let code = status.and_then(|status| status.exit_status());
    code.map(i32::cast_unsigned).ok_or(Errno::CHILD)
}

#[cfg(test)]
mod tests;
