//! Calls by rings that a signal's handler interrupts at any instruction, or the rest of which cannot be done.

use crate::preload::Rings;

/// What becomes of them.
const C: &str = include_str!("interrupted.c");

fn said(which: &str) -> String {
    let rings = Rings::new();
    rings.scene.compile("interrupted", C);
    let said = rings.says(
        "web",
        &format!("exec {{r}} {{f}}/interrupted {which} 10.1.1.10"),
    );
    let [read, written] = rings.by_ring("interrupted");
    assert!(read > 100_000 && written > 100_000, "{read} {written}");
    said
}

/// Its handler does so as well, while circuits leave their rings.
#[test]
fn a_handler_waits_for_no_thread_that_it_interrupts_as_that_copies_or_closes() {
    assert_eq!(said("numbers"), "0 failed\n");
}

#[test]
fn what_was_moved_is_told_where_the_rest_is_to_no_memory() {
    let all = "written: well, not all: 1\nread: 100\nall: 1, more: EAGAIN\n";
    assert_eq!(said("parts"), all);
}
