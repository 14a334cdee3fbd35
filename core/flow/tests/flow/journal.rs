//! What outlives the process, and what is not believed.

use std::collections::BTreeMap;

use flow::journal::ENTRY;
use flow::state::SECOND;
use flow::{Connections, Entry, Invalid, Journal, Judgement, Refused, Restored, Side, State};
use proptest::prelude::*;
use wire::address::mapped;
use wire::tcp::{ACK, FIN, RST, SYN};
use zerocopy::{FromBytes, IntoBytes};

use crate::{SEED, Switch, VERDICT, echo, plain, scaled, segment};

#[derive(Default)]
struct Kept(BTreeMap<u32, Entry>);

impl Journal for Kept {
    fn write(&mut self, slot: u32, entry: Option<&Entry>) {
        match entry {
            Some(entry) => drop(self.0.insert(slot, *entry)),
            None => drop(self.0.remove(&slot)),
        }
    }
}

fn switch(protocol: u8) -> Switch<Kept> {
    let connections = Connections::journalled(SEED, &[16, 16], Kept::default()).unwrap();
    Switch::of(connections, protocol)
}

/// What can be restored.
fn alleged(s: &mut Switch<Kept>) -> Vec<Restored> {
    let kept = &s.connections.journal().0;
    kept.iter()
        .filter_map(|(slot, entry)| entry.read(*slot))
        .collect()
}

const PASS: Result<Judgement, Refused> = Ok(Judgement::Pass);

fn established() -> Switch<Kept> {
    let mut s = switch(6);
    assert_eq!(s.send(0, scaled(segment(SYN, 1000, 0, 0, 60_000), 7)), PASS);
    assert_eq!(alleged(&mut s), []);
    assert_eq!(
        s.connections.journal().0.len(),
        1,
        "written, and not restored half-open"
    );
    assert_eq!(
        s.send(1, scaled(segment(SYN | ACK, 5000, 1001, 0, 60_000), 9)),
        PASS
    );
    assert_eq!(s.send(0, segment(ACK, 1001, 5001, 0, 500)), PASS);
    s
}

#[test]
fn an_established_connection_goes_on_after_a_crash() {
    let mut s = established();
    let [restored] = alleged(&mut s)[..] else {
        panic!()
    };
    assert_eq!((restored.a, restored.b), (s.sides[0], s.sides[1]));
    let mut s = switch(6);
    let found = s.connections.restore(s.now, &restored, &VERDICT).unwrap();
    assert_eq!(s.connections.verdict(found), Some(VERDICT));
    assert_eq!(s.state(), Some(State::Established));
    assert_eq!(s.connections.live(0), (1, 0));
    // No RST before its sender was heard.
    assert_eq!(
        s.send(1, segment(RST, 5001, 0, 0, 0)),
        Ok(Judgement::Invalid(Invalid::Reset))
    );
    // What either side sends next is taken, with the scales it had; then windows count.
    assert_eq!(s.send(0, segment(ACK, 90_000, 70_000, 1000, 500)), PASS);
    assert_eq!(s.send(1, segment(ACK, 70_000, 91_000, 1000, 100)), PASS);
    assert_eq!(
        s.send(0, segment(ACK, 91_000 + 50_000, 71_000, 100, 500)),
        PASS
    );
    let far = segment(ACK, 91_000 + 500_000, 71_000, 100, 500);
    assert_eq!(s.send(0, far), Ok(Judgement::Invalid(Invalid::Sequence)));
    let unsent = segment(ACK, 91_000, 1_000_000, 100, 500);
    assert_eq!(
        s.send(0, unsent),
        Ok(Judgement::Invalid(Invalid::Acknowledgement))
    );
    assert_eq!(s.send(1, segment(FIN | ACK, 71_000, 91_000, 0, 100)), PASS);
    assert_eq!(s.state(), Some(State::HalfClosed));
}

#[test]
fn what_is_over_is_not_restored() {
    let mut s = established();
    assert_eq!(s.send(1, segment(RST, 5001, 0, 0, 0)), PASS);
    assert!(s.connections.journal().0.is_empty());
    let mut s = established();
    let found = s.find(0).unwrap();
    s.connections.close(found);
    assert!(s.connections.journal().0.is_empty());
    let mut s = established();
    s.now += 8000 * SECOND;
    assert_eq!(s.find(0), None);
    assert!(s.connections.journal().0.is_empty());
}

#[test]
fn udp_and_echo_are_restored_and_taken_sides_are_not() {
    for (protocol, request, reply) in [(17, plain(60), plain(60)), (1, echo(true), echo(false))] {
        let mut s = switch(protocol);
        assert_eq!(s.send(0, request), PASS);
        assert_eq!(alleged(&mut s), []);
        assert_eq!(s.send(1, reply), PASS);
        let [restored] = alleged(&mut s)[..] else {
            panic!()
        };
        assert_eq!(
            s.connections.restore(s.now, &restored, &VERDICT),
            Err(Refused::Taken)
        );
        let mut s = switch(protocol);
        assert!(s.connections.restore(s.now, &restored, &VERDICT).is_ok());
        assert_eq!(s.send(1, reply), PASS);
        let mut few = Connections::new(SEED, &[16]).unwrap();
        assert_eq!(few.restore(0, &restored, &VERDICT), Err(Refused::Sides));
    }
}

/// The entry that a switch which lies would write.
fn forged(restored: impl FnOnce(&mut [u8])) -> (u32, Entry) {
    let mut s = established();
    let (slot, entry) = s.connections.journal().0.pop_first().unwrap();
    let mut bytes = [0; ENTRY];
    bytes.copy_from_slice(entry.as_bytes());
    restored(&mut bytes[8..]);
    let mut hasher = siphasher::sip::SipHasher13::new();
    core::hash::Hasher::write(&mut hasher, &u64::from(slot).to_le_bytes());
    core::hash::Hasher::write(&mut hasher, &bytes[8..]);
    bytes[..8].copy_from_slice(&core::hash::Hasher::finish(&hasher).to_ne_bytes());
    (slot, Entry::read_from_bytes(&bytes).unwrap())
}

#[test]
fn a_torn_or_moved_entry_is_not_taken() {
    let (slot, entry) = forged(|_| {});
    assert!(entry.read(slot).is_some());
    assert_eq!(entry.read(slot + 1), None);
    for at in 0..ENTRY {
        let mut bytes = [0; ENTRY];
        bytes.copy_from_slice(entry.as_bytes());
        bytes[at] ^= 1;
        assert_eq!(
            Entry::read_from_bytes(&bytes).unwrap().read(slot),
            None,
            "byte {at}"
        );
    }
}

#[test]
fn sides_that_cannot_be_are_not_taken() {
    const SOURCE: usize = 8;
    let multicast = mapped([224, 0, 0, 1]);
    for (what, address) in [
        ("unspecified", [0; 16]),
        ("multicast", multicast),
        ("family", [0xfd; 16]),
    ] {
        let (slot, entry) = forged(|bytes| bytes[SOURCE..SOURCE + 16].copy_from_slice(&address));
        assert_eq!(entry.read(slot), None, "{what}");
    }
    // A version that is none, a state that is none, a scale on one side.
    for (at, value) in [(87, 9), (85, 77), (85, 8), (86, 0xf7)] {
        let (slot, entry) = forged(|bytes| bytes[at] = value);
        assert_eq!(entry.read(slot), None, "{at}");
    }
}

fn holds(side: &Side) -> bool {
    let four = |address: &[u8; 16]| wire::address::unmapped(address).is_some();
    four(&side.tuple.source) == four(&side.tuple.destination)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a journal says, with a sum that is right: nothing panics, what is taken
    /// could be a connection, and one that is restored is bounded as any other.
    #[test]
    fn a_forged_journal_gives_nothing_that_could_not_be(
        forgeries in prop::collection::vec(prop::collection::vec((0usize..ENTRY - 8, any::<u8>()), 0..12), 0..30),
        wild in prop::array::uniform32(any::<u8>()), traffic in prop::collection::vec(any::<[u32; 2]>(), 0..8)) {
        let mut s = Switch::of(Connections::new(SEED, &[4, 4]).unwrap(), 6);
        for changes in forgeries {
            let (slot, entry) = forged(|bytes| {
                for (at, value) in changes {
                    bytes[at] = value;
                }
                if bytes[0] == wild[0] {
                    bytes[..32].copy_from_slice(&wild);
                }
            });
            let Some(restored) = entry.read(slot) else { continue };
            prop_assert!(holds(&restored.a) && holds(&restored.b));
            prop_assert_eq!(restored.a.tuple.protocol, restored.b.tuple.protocol);
            prop_assert!(!restored.state.is_half_open() && !restored.state.is_over());
            let _ = s.connections.restore(s.now, &restored, &VERDICT);
            let (live, half_open) = s.connections.live(0);
            prop_assert!(live <= 4 && half_open == 0);
        }
        for [sequence, acknowledgement] in traffic {
            let _ = s.send((sequence & 1) as usize, segment(ACK, sequence, acknowledgement, 10, 60_000));
        }
    }

    #[test]
    fn no_bytes_of_a_journal_make_it_panic(bytes in prop::collection::vec(any::<u8>(), ENTRY), slot: u32) {
        let entry = Entry::read_from_bytes(&bytes).unwrap();
        prop_assert_eq!(entry.read(slot), None);
    }
}
