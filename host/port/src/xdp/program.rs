//! The XDP program of an uplink, six instructions, and its map of sockets.
//!
//! By hand: a tool-chain to compile six instructions, or a compiled object to trust, would be
//! more to read than they are.
#![expect(unsafe_code, reason = "bpf(2) has no safe wrapper")]

use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::setup::last_errno;

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    code: u8,
    /// Destination register in the lower half, source in the upper.
    registers: u8,
    offset: i16,
    value: i32,
}

const fn instruction(code: u8, to: u8, from: u8, offset: i16, value: i32) -> Instruction {
    Instruction {
        code,
        registers: to | (from << 4),
        offset,
        value,
    }
}

/// `XDP_PASS`: the frame goes on to the kernel's own stack.
const PASS: i32 = 2;
/// Where `struct xdp_md` has the number of the queue that the frame came by.
const QUEUE: i16 = 16;
/// Helper `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;
/// `BPF_PSEUDO_MAP_FD`: the value is a map's descriptor.
const MAP_FD: u8 = 1;

/// A frame goes to the socket of its queue, or, where there is none, on to the kernel.
pub(super) fn instructions(map: i32) -> [Instruction; 6] {
    [
        // r2 = context->rx_queue_index: the key. (32-bit load; r1 is the context.)
        instruction(0x61, 2, 1, QUEUE, 0),
        // r1 = the map; its descriptor is in the first of two halves.
        instruction(0x18, 1, MAP_FD, 0, map),
        instruction(0, 0, 0, 0, 0),
        // r3 = what is to be done where the map has nobody under the key.
        instruction(0xb7, 3, 0, 0, PASS),
        // r0 = bpf_redirect_map(r1, r2, r3)
        instruction(0x85, 0, 0, 0, REDIRECT_MAP),
        // return r0
        instruction(0x95, 0, 0, 0, 0),
    ]
}

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
/// `BPF_MAP_TYPE_XSKMAP`.
const XSKMAP: u32 = 17;
/// `BPF_PROG_TYPE_XDP`.
const XDP: u32 = 6;
/// `BPF_XDP`, where a program is attached.
const ATTACH_XDP: u32 = 37;
/// `XDP_FLAGS_DRV_MODE`: by the driver, before the kernel makes a packet of the frame.
const DRIVER: u32 = 1 << 2;

/// `union bpf_attr`, as long as Linux 5.9 knew it, of which each request uses the beginning.
#[repr(C, align(8))]
struct Attributes([u32; 32]);

impl Attributes {
    fn new(words: &[(usize, u32)]) -> Attributes {
        let mut all = Attributes([0; 32]);
        for (at, value) in words {
            if let Some(place) = all.0.get_mut(*at) {
                *place = *value;
            }
        }
        all
    }

    /// With an address in two words.
    fn pointing(mut self, at: usize, address: u64) -> Attributes {
        for (at, value) in [(at, address as u32), (at + 1, (address >> 32) as u32)] {
            if let Some(place) = self.0.get_mut(at) {
                *place = value;
            }
        }
        self
    }
}

/// What the attributes point at is live until the call is over.
fn bpf(command: libc::c_int, attributes: &mut Attributes) -> Result<libc::c_long, Errno> {
    let length = mem::size_of::<Attributes>();
    let address: *mut Attributes = attributes;
    // SAFETY: `attributes` is live, `length` bytes long, zero where nothing is said; what
    // it points at its callers keep.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, address, length) };
    if done < 0 {
        Err(last_errno())
    } else {
        Ok(done)
    }
}

fn owned(descriptor: libc::c_long) -> OwnedFd {
    // SAFETY: bpf(2) has just made it for the caller, who has given it to nobody.
    unsafe { OwnedFd::from_raw_fd(descriptor as i32) }
}

/// A map of as many sockets as there are queues.
pub(super) fn create_map(queues: u32) -> Result<OwnedFd, Errno> {
    let mut attributes = Attributes::new(&[(0, XSKMAP), (1, 4), (2, 4), (3, queues)]);
    bpf(MAP_CREATE, &mut attributes).map(owned)
}

/// Notes a socket for a queue, which must be the one that it is bound to.
pub(super) fn note(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let (key, value) = (queue, socket.as_raw_fd().cast_unsigned());
    let mut attributes = Attributes::new(&[(0, map.as_raw_fd().cast_unsigned())])
        .pointing(2, (&raw const key) as u64)
        .pointing(4, (&raw const value) as u64);
    bpf(MAP_UPDATE, &mut attributes).map(drop)
}

/// Has the kernel check and take the program.
pub(super) fn load(map: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let program = instructions(map.as_raw_fd());
    let license = c"Apache-2.0";
    let mut attributes = Attributes::new(&[(0, XDP), (1, program.len() as u32)])
        .pointing(2, program.as_ptr() as u64)
        .pointing(4, license.as_ptr() as u64);
    bpf(PROG_LOAD, &mut attributes).map(owned)
}

/// Attaches the program to an interface of the current namespace, by its driver, for as long
/// as the descriptor lives.
pub(super) fn attach(program: BorrowedFd<'_>, interface: u32) -> Result<OwnedFd, Errno> {
    let mut attributes = Attributes::new(&[
        (0, program.as_fd().as_raw_fd().cast_unsigned()),
        (1, interface),
        (2, ATTACH_XDP),
        (3, DRIVER),
    ]);
    bpf(LINK_CREATE, &mut attributes).map(owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROG_TEST_RUN: libc::c_int = 10;

    /// What the program that the kernel has taken does with a frame.
    fn run(program: &OwnedFd, frame: &[u8]) -> u32 {
        // bpf_attr.test: prog_fd, retval, data_size_in, data_size_out, data_in, ...
        let words = [
            (0, program.as_raw_fd().cast_unsigned()),
            (2, frame.len() as u32),
        ];
        let mut attributes = Attributes::new(&words).pointing(4, frame.as_ptr() as u64);
        bpf(PROG_TEST_RUN, &mut attributes).unwrap();
        attributes.0[1]
    }

    #[test]
    fn it_passes_what_has_no_socket_and_does_nothing_but_ask_the_map() {
        let map = create_map(4).unwrap();
        let program = load(map.as_fd()).unwrap();
        for frame in [[0u8; 64], [0xff; 64]] {
            assert_eq!(run(&program, &frame), PASS as u32);
        }
        // No branch, no store, one call, which is of the map alone: whatever comes, what it
        // returns is what the map's entry for the queue says, or to pass.
        let all = instructions(map.as_raw_fd());
        let class = |i: &Instruction| i.code & 7;
        let stores = all.iter().filter(|i| matches!(class(i), 2 | 3)).count();
        let calls: Vec<i32> = all
            .iter()
            .filter(|i| i.code == 0x85)
            .map(|i| i.value)
            .collect();
        let jumps = all.iter().filter(|i| matches!(class(i), 5 | 6)).count();
        assert_eq!((stores, calls, jumps), (0, vec![REDIRECT_MAP], 2));
        assert_eq!((all[1].value, all[3].value), (map.as_raw_fd(), PASS));
    }

    #[test]
    fn a_map_takes_nothing_but_sockets_of_this_kind() {
        let map = create_map(1).unwrap();
        let other = std::fs::File::open("/dev/null").unwrap();
        assert!(note(map.as_fd(), 0, other.as_fd()).is_err());
        assert!(attach(map.as_fd(), 1).is_err());
    }
}
