//! Nothing that comes in makes the fabric allocate.

use super::bench::{
    EVERYBODY, IP_ONE, ONE, Queue, ROUTER, TWO, UPLINK, frame, honest, image, tables,
};
use crate::serve::{BATCH, Batch, Counters, Egress, PARK_NS, Refused, Turn, serve};
use crate::{Frame, Outcome, Rounds};
use allocation_counter::measure;
use image::FabricImage;
use telemetry::counters::Counter;
use telemetry::drops::{DropReason, MAX_REASONS};
use wire::RawOffload;
use wire::offload::{GSO_TCPV4, NEEDS_CSUM};

/// Ends that keep nothing but sums; a slot may be full, gone or refused by the system.
#[derive(Default)]
struct Quiet {
    sent: u64,
    refuses: Option<(u32, Refused)>,
}

impl Egress<Queue> for Quiet {
    fn send(&mut self, slot: u32, _: u16, _: &Frame, (): &()) -> Result<(), Refused> {
        match self.refuses {
            Some((full, refused)) if full == slot => Err(refused),
            _ => {
                self.sent += 1;
                Ok(())
            }
        }
    }
    fn calls(&self) -> u64 {
        self.sent / 64
    }
}

struct Sums {
    drops: [u64; MAX_REASONS],
    counted: u64,
}

impl Counters for Sums {
    fn add(&mut self, _: u32, _: Counter, n: u64) {
        self.counted += n;
    }
    fn crossed(&mut self, _: u32, _: u16, segments: u64, bytes: u64) {
        self.counted += segments + bytes;
    }
    fn dropped(&mut self, _: u32, reason: DropReason, _: &Frame) {
        self.drops[reason as usize] += 1;
    }
}

#[test]
fn no_frame_allocates() {
    let bytes = image(&tables());
    let image = FabricImage::map(bytes.as_ref()).unwrap();
    let mut rounds = Rounds::new(64, crate::UNITS);
    rounds.configure(crate::shares(&image));
    let mut queue = Queue::default();
    let mut to = Quiet::default();
    let mut sums = Sums {
        drops: [0; MAX_REASONS],
        counted: 0,
    };
    guard::stands("");
    let offload = RawOffload {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        gso_size: 1448,
        csum_start: 34,
        csum_offset: 16,
    };
    let gso = Frame {
        offload,
        ..honest(60_000)
    };
    let absurd = Frame {
        offload: RawOffload {
            csum_start: 20,
            ..offload
        },
        ..gso
    };
    let kinds = [
        (1, honest(200)),
        (1, gso),
        (1, absurd),
        (1, frame(5, ROUTER, TWO, IP_ONE, 200)),
        (1, frame(9, ROUTER, ONE, IP_ONE, 200)),
        (1, frame(5, EVERYBODY, ONE, IP_ONE, 60)),
        (3, honest(200)),
        (1, honest(3)),
        (UPLINK, frame(0, ONE, ROUTER, [8; 4], 200)),
        (UPLINK, frame(0, EVERYBODY, ROUTER, [8; 4], 60)),
        (UPLINK, frame(0, ROUTER, ROUTER, [8; 4], 200)),
    ];
    let (mut now, mut parked) = (1, 0u64);
    for refuses in [
        None,
        Some((UPLINK, Refused::Full)),
        Some((1, Refused::Full)),
        Some((UPLINK, Refused::Gone)),
        Some((UPLINK, Refused::System)),
    ] {
        to.refuses = refuses;
        for (ingress, frame) in kinds {
            queue.0.clear();
            queue.0.extend((0..2 * BATCH).map(|_| frame));
            let seen = measure(|| {
                rounds.activate(ingress, now);
                let mut since = 0;
                for _ in 0..5 {
                    let Some((slot, allowance)) = rounds.next(now) else {
                        continue;
                    };
                    let turn = Turn {
                        allowance,
                        now,
                        parked: since,
                        may_park: slot != UPLINK,
                    };
                    let Batch { cost, outcome, .. } =
                        serve(&image, slot, &mut queue, &mut to, &mut sums, turn);
                    if outcome == Outcome::Parked {
                        parked += 1;
                        since = now;
                    }
                    now += PARK_NS;
                    rounds.settle(slot, cost, outcome, false);
                }
                rounds.remove(ingress);
            });
            let count = (seen.count_total, seen.count_current);
            assert_eq!(count, (0, 0), "from {ingress}, {refuses:?}: {frame:?}");
        }
    }
    // So much of the fabric was run that the zeros mean something.
    let reasons = sums.drops.iter().filter(|n| **n > 0).count();
    println!("sent {}, parked {parked}, reasons {reasons}", to.sent);
    assert!(to.sent > 1000 && parked > 0 && reasons >= 6 && sums.counted > 0);
}
