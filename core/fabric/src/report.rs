//! When the supervisor is told that a channel spoke with what is not its own.
//!
//! Only what an honest switch can never say is told (a frame that no template of
//! its channel matches), at most once a second for each channel, and not while two
//! images overlap: a switch may run the older one for a moment.

use guard::guard;

/// Least time between two reports about one channel, nanoseconds.
pub const EVERY_NS: u64 = 1_000_000_000;
/// After a new image nobody is told on for so long, nanoseconds.
pub const GRACE_NS: u64 = 1_000_000_000;

/// Who was reported when.
pub struct Reports {
    last: Box<[u64]>,
    grace_until: u64,
}

impl Reports {
    /// For slots below `slots`.
    pub fn new(slots: usize) -> Reports {
        Reports {
            last: vec![0; slots].into(),
            grace_until: 0,
        }
    }

    /// A new image is in use.
    pub fn swapped(&mut self, now: u64) {
        self.grace_until = now.saturating_add(GRACE_NS);
    }

    /// Whether to report this channel now; if so, not again for a second.
    pub fn is_due(&mut self, slot: u32, now: u64) -> bool {
        let Some(last) = self.last.get_mut(slot as usize) else {
            return false;
        };
        if now < self.grace_until && guard!("fabric-report-grace") {
            return false;
        }
        if *last != 0 && now.saturating_sub(*last) < EVERY_NS && guard!("fabric-report-rate") {
            return false;
        }
        *last = now.max(1);
        true
    }
}
