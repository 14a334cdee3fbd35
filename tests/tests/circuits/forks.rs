//! What a fork costs a program with the library of rings.

use crate::preload::Rings;

/// Not for each connection anew.
#[test]
fn a_child_asks_once_for_each_process_that_has_its_sockets() {
    let rings = Rings::new();
    rings.scene.compile("forks", include_str!("forks.c"));
    let said = rings.says("web", "exec {r} {f}/forks 10.1.1.10");
    let asked = said.trim().strip_prefix("0 ");
    let asked: u32 = asked.and_then(|it| it.parse().ok()).expect(&said);
    // Eight others that are known to have them; none is that the library looks at nobody.
    assert!((1..=16).contains(&asked), "{asked} for 200 sockets");
}
