//! A confined switch that has been taken over, against a real fabric: it reaches
//! nobody, stops nobody, and is found out.
//!
//! Needs `bulkhead-liar` beside the fabric: `cargo build -p liar`.

mod host;

use command::verbs::{Attach, PortClosed, Running, START_FRESH, UseImage};
use confine::Profile;
use host::*;
use image::compartment::{Attachment, Endpoint, NONE, Subnet, Tenant};
use image::{CompartmentTables, digest};
use shm::{PeerWords, SealedImage};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use telemetry::counters::{self, Counter};
use telemetry::drops::DropReason;

/// The liar as it is in this process: its counters, and the process.
struct Liar {
    process: Process,
    words: PeerWords,
    _counters: OwnedFd,
}

impl Liar {
    /// Gives the liar slot 1 of the fabric. `kind`: what it lies about, or "" = all.
    fn start(host: &mut Host, kind: &str) -> Liar {
        let name = if kind.is_empty() {
            "bulkhead-liar".to_owned()
        } else {
            format!("bulkhead-liar-{kind}")
        };
        let process = Process::start(&beside("bulkhead-liar"), &name, Profile::Switch);
        let counters = shm::memory_file("counters", counters::bytes_for(32)).unwrap();
        let words = PeerWords::map(&counters).unwrap();
        process.tell(
            &Attach {
                compartment: 1,
                slots: 32,
                start: START_FRESH,
                ..Attach::default()
            },
            &[counters.as_fd()],
        );
        let fds = host.pair(1).end_a().unwrap();
        process.tell(&channel_body(0, 0), &fds.as_fds());
        let bytes = own_image();
        let digest = digest(&bytes).unwrap().0;
        let fd = SealedImage::create("image", &bytes).unwrap();
        process.tell(&UseImage { epoch: 1, digest }, &[fd.as_fd()]);
        assert_eq!(process.hears::<Running>(LONG).map(|r| r.refused), Some(0));
        Liar {
            process,
            words,
            _counters: counters,
        }
    }

    /// Lies of a kind that it says it told.
    fn told(&self, kind: usize) -> u64 {
        self.words
            .load(counters::counter_word(kind, Counter::TxFrames))
    }
}

/// What an honest switch in slot 1 would forward by: its MAC and tag on the uplink.
fn own_image() -> Vec<u8> {
    CompartmentTables {
        tenants: vec![Tenant {
            id: 1,
            ..Tenant::default()
        }],
        subnets: vec![Subnet {
            gateway_mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            ..Subnet::default()
        }],
        endpoints: vec![Endpoint {
            id: 1,
            slot: 1,
            mac: mac(7),
            mtu: 1500,
            own_first: NONE,
            ..Endpoint::default()
        }],
        attachments: vec![Attachment {
            mac: mac(1),
            tag: 5,
            mtu: 1500,
            ..Attachment::default()
        }],
        ..CompartmentTables::default()
    }
    .finish()
    .unwrap()
}

fn beside(name: &str) -> PathBuf {
    let own = PathBuf::from(env!("CARGO_BIN_EXE_bulkhead-fabric"));
    let path = match std::env::var_os("BULKHEAD_BIN_DIR") {
        Some(folder) => PathBuf::from(folder).join(name),
        None => own.with_file_name(name),
    };
    assert!(path.is_file(), "{name} is not built: cargo build -p liar");
    path
}

/// Two honest switches talk for a while; every frame arrives, and nothing else does.
fn talk(two: &mut Switch, three: &mut Switch, time: Duration) {
    let end = Instant::now() + time;
    let mut n = 0;
    while Instant::now() < end {
        n += 1;
        two.send(7, &frame(mac(3), mac(2), n, 400));
        let (tag, _, got) = three.receive(LONG).expect("their traffic goes on");
        assert_eq!((tag, got), (7, frame(mac(3), mac(2), n, 400)));
        three.send(7, &frame(mac(2), mac(3), n, 400));
        let (tag, _, got) = two.receive(LONG).expect("their traffic goes on");
        assert_eq!((tag, got), (7, frame(mac(2), mac(3), n, 400)));
    }
}

#[test]
fn forged_frames_reach_nobody() {
    let (mut host, mut two, mut three) = Host::usual();
    let wire = host.uplink();
    let kinds = [
        "source-mac",
        "destination",
        "tag",
        "source-ip",
        "arp",
        "nd",
        "ethertype",
        "vlan",
        "gso",
        "length",
        "crossing",
        "capture",
    ];
    for (number, kind) in (1..).zip(kinds) {
        let liar = Liar::start(&mut host, kind);
        talk(&mut two, &mut three, Duration::from_millis(100));
        until(kind, || {
            // The wire's frames are its own words; the test reads them away.
            while let Some(out) = wire.receive(Duration::ZERO) {
                assert_eq!(out[6..12], mac(1), "{kind}: another's MAC on the wire");
            }
            liar.told(number) > 500
        });
        // It counts each lie twice, and may be between the two.
        until("no other kind", || liar.told(0) == liar.told(number));
        assert!(liar.process.is_alive() && host.fabric.is_alive(), "{kind}");
        // Whatever it sent reached neither of the two: not even uncounted.
        assert!(
            two.receive(Duration::ZERO).is_none() && three.receive(Duration::ZERO).is_none(),
            "{kind}"
        );
    }
    for reason in [
        DropReason::FabricNoEntry,
        DropReason::FabricSource,
        DropReason::BadOffload,
        DropReason::Malformed,
    ] {
        assert!(host.dropped(1, reason) > 0, "{reason:?} never happened");
    }
    assert_eq!(host.counter(1, Counter::TxFlood), 0);
}

#[test]
fn a_corrupted_channel_is_closed_alone() {
    let (mut host, mut two, mut three) = Host::usual();
    let kinds = [
        "header",
        "position",
        "unaligned",
        "backwards",
        "scribble",
        "doorbell",
        "consumed",
    ];
    for kind in kinds {
        let liar = Liar::start(&mut host, kind);
        talk(&mut two, &mut three, Duration::from_millis(100));
        let closed: PortClosed = host
            .fabric
            .hears(LONG)
            .unwrap_or_else(|| panic!("{kind} is not found out"));
        let breach = ring::Breach::from_number(closed.reason);
        assert!(closed.slot == 1 && breach.is_some(), "{kind}: {closed:?}");
        talk(&mut two, &mut three, Duration::from_millis(20));
        assert!(liar.process.is_alive() && host.fabric.is_alive(), "{kind}");
    }
}

/// To restart is no misdeed, and without end it costs the others nothing.
#[test]
fn a_channel_that_restarts_without_end_harms_nobody() {
    let (mut host, mut two, mut three) = Host::usual();
    let liar = Liar::start(&mut host, "generation");
    talk(&mut two, &mut three, Duration::from_millis(300));
    assert!(liar.process.is_alive() && host.fabric.is_alive());
    assert!(two.receive(Duration::ZERO).is_none() && three.receive(Duration::ZERO).is_none());
}

#[test]
fn all_of_it_in_a_row() {
    let (mut host, mut two, mut three) = Host::usual();
    let _wire = host.uplink();
    let liar = Liar::start(&mut host, "");
    talk(&mut two, &mut three, Duration::from_millis(1_500));
    until("every kind of frame", || {
        (1..=12).all(|kind| liar.told(kind) > 0)
    });
    assert!(
        host.fabric
            .hears::<PortClosed>(LONG)
            .is_some_and(|closed| closed.slot == 1)
    );
    talk(&mut two, &mut three, Duration::from_millis(100));
    assert!(host.fabric.is_alive());
}
