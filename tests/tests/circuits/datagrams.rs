//! What programs see of a UDP socket, held against the kernel's own: one program, run twice.

use crate::scene::{OPEN, Scene};
use crate::sockets::differences;

const PROGRAM: &str = include_str!("datagrams.py");

/// What differs, and why it may.
const DIFFERENT: &[(&str, &str)] = &[];

#[test]
fn a_datagram_socket_is_like_the_kernels_but_for_a_few_things() {
    let scene = Scene::of(OPEN);
    differences(&scene, ("datagrams.py", PROGRAM), DIFFERENT, 1_300);
}
