//! Files that programs with the library of rings send, to whoever has it and whoever has not.

use crate::preload::Rings;
use std::time::Duration;

const FILES: &str = include_str!("files.c");
const MEGABYTES: u32 = 40;

/// Who serves so, and a peer; what both say, and how much went by a ring.
fn sends(rings: &Rings, port: u16, way: &str, peer: &str, how: &str) -> (String, String, u64) {
    rings.forget();
    let line = format!("exec {{r}} {{f}}/files serve 10.1.1.10 {port} {way} {MEGABYTES}");
    let mut serves = rings.start("web", &line, "serving");
    let line = format!("exec {peer} {{f}}/files ask 10.1.1.10 {port} {how}");
    let came = rings.says("app", &line);
    let code = serves.wait(Duration::from_secs(30));
    assert_eq!(code, Some(0), "{way} {peer} {how}: {}", serves.err());
    (serves.out(), came, rings.by_ring("files")[1])
}

/// By the kernel, as without it, as long as there is no ring; and each byte once and in order, whoever takes the ring up in
/// the midst.
#[test]
fn a_file_goes_as_without_it_until_the_peer_takes_the_ring_up() {
    let rings = Rings::new();
    rings.scene.compile("files", FILES);
    let ways = ["block", "poll", "threads", "limit"];
    // A peer without the library, one that is not worth a ring, and ones that have it at once, or in the midst.
    let peers = [("", "0"), ("{r}", "all"), ("{r}", "0"), ("{r}", "9")];
    for (port, (way, (peer, how))) in
        (7000..).zip(ways.into_iter().flat_map(|way| peers.map(|it| (way, it))))
    {
        let (said, came, by_ring) = sends(&rings, port, way, peer, how);
        let what = format!("{way} {peer} {how}: {by_ring} by a ring, {said}");
        assert_eq!(came, format!("{MEGABYTES}000000\n"), "{what}");
        let has_ring = peer == "{r}" && how != "all";
        assert_eq!(by_ring > 1_000_000, has_ring, "{what}");
        let calls = said.split_whitespace().nth(1).unwrap();
        let calls: u32 = calls.parse().unwrap();
        // Of 256 KiB where the kernel moves them, of 64 where they are read first.
        if way != "poll" && !has_ring {
            assert!(calls < MEGABYTES * 1_000_000 / 40_000, "{what}");
        }
    }
}

#[test]
fn a_peer_that_is_gone_is_told_by_one_signal_for_each_file() {
    let rings = Rings::new();
    rings.scene.compile("files", FILES);
    for (port, way) in (7000..).zip(["gone", "quiet"]) {
        let (said, _, by_ring) = sends(&rings, port, way, "", "goes");
        assert!(said.ends_with("ok\n"), "{said}");
        assert_eq!(by_ring, 0);
    }
}
