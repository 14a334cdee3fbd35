//! Patience that counts rounds. The library itself is linked to no test.

use patience::{PATIENCE as MOST, Patience, ROUND};
use std::time::{Duration, Instant};

#[path = "../src/patience.rs"]
mod patience;

/// What it leans on.
mod socket {
    use std::time::Duration;

    pub fn naps(_: Duration) {}
}

#[test]
fn rounds_count_for_what_they_took() {
    let mut patience = Patience::of(MOST);
    let mut now = Instant::now();
    assert!(!patience.is_over_at(now));
    for round in 1..=500 {
        now += Duration::from_millis(4);
        let is_over = patience.is_over_at(now);
        // The first look, whenever it was, counts for a round at most.
        assert!(!is_over || round > 490, "{round}");
    }
    assert!(patience.is_over_at(now));
}

#[test]
fn a_process_that_stands_still_keeps_its_patience() {
    let mut patience = Patience::of(MOST);
    let mut now = Instant::now();
    assert!(!patience.is_over_at(now));
    for _ in 0..100 {
        now += Duration::from_secs(3);
        assert!(!patience.is_over_at(now));
    }
    // Half of it is left, and is over by and by.
    for round in 1..=100 {
        now += ROUND;
        assert!(!patience.is_over_at(now) || round > 98, "{round}");
    }
    assert!(patience.is_over_at(now));
}

#[test]
fn a_clock_that_goes_back_counts_for_nothing() {
    let mut patience = Patience::of(ROUND * 2);
    let now = Instant::now() + MOST;
    assert!(!patience.is_over_at(now));
    assert!(!patience.is_over_at(now - MOST));
    assert!(patience.is_over_at(now));
}

#[test]
fn none_is_over_at_once() {
    let mut patience = Patience::of(Duration::ZERO);
    assert!(patience.is_over());
    for _ in 0..100 {
        patience.rests();
    }
}
