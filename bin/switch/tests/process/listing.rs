//! Connections as they are listed, and pages that are none.

use crate::rig::{PATIENCE, Rig};
use crate::{PLAIN, frame, receive, send, tables};
use command::verbs::ListFlows;
use image::CompartmentTables;
use image::rules::{Action, Region, Rule, RuleTable};
use shm::PeerWords;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use telemetry::flows::{COUNT_AT, MAGIC, MAGIC_AT, ROW_WORDS, ROWS_AT, Row, SEEN_AT, bytes_for};
use telemetry::rules;

const ALL: u32 = u32::MAX;

pub fn judged() -> CompartmentTables {
    let rule = Rule {
        region: Region::ALL,
        action: Action::Allow,
        log: true,
        id: 77,
    };
    let mut tables = tables();
    tables.rule_tables = vec![RuleTable {
        rules: vec![rule],
        default: Action::Deny,
    }];
    for endpoint in &mut tables.endpoints {
        (endpoint.egress, endpoint.ingress) = (0, 0);
        endpoint.connections = 64;
    }
    tables
}

pub fn list(rig: &Rig, slot: u32, most: u32) -> OwnedFd {
    let page = shm::memory_file("flows", bytes_for(most as usize)).unwrap();
    let body = ListFlows {
        slot,
        most,
        ..ListFlows::default()
    };
    rig.tell(&body, &[&page]);
    page
}

pub fn rows(page: &OwnedFd) -> (u64, Vec<Row>) {
    let words = PeerWords::map(page).unwrap();
    let end = Instant::now() + PATIENCE;
    while words.load(MAGIC_AT) != MAGIC {
        assert!(Instant::now() < end, "nothing is written");
        std::thread::sleep(Duration::from_millis(1));
    }
    let row = |n: usize| {
        let mut row = [0; ROW_WORDS];
        words.copy(ROWS_AT + n * ROW_WORDS, &mut row);
        Row::of(&row)
    };
    let count = words.load(COUNT_AT) as usize;
    (words.load(SEEN_AT), (0..count).map(row).collect())
}

#[test]
fn connections_are_listed_the_busiest_first_and_rules_are_counted_over_a_restart() {
    let mut rig = Rig::with_channels();
    rig.install(&judged(), 1);
    let (mut one, mut two) = (rig.guest(1), rig.guest(2));
    for payload in [&b"a longer one"[..], b"a longer one", b"more"] {
        send(&mut one, &PLAIN, &frame(1, 2, payload));
        receive(&mut two);
    }
    send(&mut two, &PLAIN, &frame(2, 3, b"x"));
    receive(&mut rig.guest(3));
    let (seen, all) = rows(&list(&rig, ALL, 10));
    assert_eq!((seen, all.len()), (2, 2));
    let first = all[0];
    assert_eq!((first.a.slot, first.b.slot), (1, 2));
    assert_eq!(
        (first.a.source_port, first.a.destination_port),
        (1000, 2000)
    );
    assert_eq!((first.packets, first.protocol), ([3, 0], 17));
    assert_eq!(first.rules, [77, 77]);
    assert!(first.bytes[0] > all[1].bytes[0]);
    // At most so many, the busiest of them; and only one endpoint's.
    assert_eq!(rows(&list(&rig, ALL, 1)), (2, vec![first]));
    let (seen, theirs) = rows(&list(&rig, 3, 10));
    assert_eq!((seen, theirs[0].a.slot, theirs[0].b.slot), (1, 2, 3));

    // One rule at both ends is one decision; a successor goes on.
    let entry = rules::entry_word(crate::SLOTS as usize, 0);
    let counted = |rig: &Rig| (rig.words().load(entry), rig.words().load(entry + 1));
    assert_eq!(counted(&rig), (77, 2));
    drop((one, two));
    rig.restart();
    rig.install(&judged(), 1);
    assert_eq!(counted(&rig), (77, 2));
    let (seen, all) = rows(&list(&rig, ALL, 10));
    assert_eq!((seen, all), (0, vec![]));
}

#[test]
fn a_page_that_is_none_is_not_written_and_harms_nothing() {
    let rig = Rig::with_channels();
    rig.install(&judged(), 1);
    let short = shm::memory_file("flows", 64).unwrap();
    let loose = rustix::fs::memfd_create("flows", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&loose, bytes_for(10) as u64).unwrap();
    let asked = ListFlows {
        slot: ALL,
        most: 10,
        ..ListFlows::default()
    };
    rig.tell(&asked, &[&short]);
    rig.tell(&asked, &[&loose]);
    rig.tell(&asked, &[]);
    assert_eq!(rows(&list(&rig, ALL, 10)), (0, vec![]));
    let mut magic = [0; 8];
    for page in [short, loose] {
        rustix::io::pread(&page, &mut magic, 0).unwrap();
        assert_eq!(magic, [0; 8]);
    }
}
