//! What programs see of a UDP socket, held against the kernel's own: one program, run twice.

use crate::scene::{OPEN, Scene};
use crate::sockets::differences;

const PROGRAM: &str = include_str!("datagrams.py");

/// What differs, and why it may.
const DIFFERENT: &[(&str, &str)] = &[
    (
        "AF_INET 0 33 set",
        "IP_MULTICAST_TTL is not kept: there are no groups",
    ),
    ("AF_INET6 0 33 set", "the same"),
    (
        "AF_INET 6 1 set",
        "TCP_NODELAY is set unseen, at whatever descriptor; reading it is refused as UDP does",
    ),
    (
        "bind, connect fails, comes to",
        "a way out, were there one, is not of a loopback address: EINVAL",
    ),
    ("bind, send fails, comes to", "the same"),
    ("bind port, connect fails, comes to", "the same"),
    ("bind port, send fails, comes to", "the same"),
    ("connect, connect fails, comes to", "the same"),
    ("connect, send fails, comes to", "the same"),
];

#[test]
fn a_datagram_socket_is_like_the_kernels_but_for_a_few_things() {
    let scene = Scene::of(OPEN);
    differences(&scene, ("datagrams.py", PROGRAM), DIFFERENT, 1_300);
}
