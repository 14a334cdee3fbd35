//! What outlives the process, and what is not believed.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use flow::journal::{ENTRY, bytes_for};
use flow::state::SECOND;
use flow::{Connections, Invalid, Judgement, Memory, Refused, Restored, Side, State};
use proptest::prelude::*;
use wire::address::mapped;
use wire::tcp::{ACK, FIN, RST, SYN};
use zerocopy::IntoBytes;

use crate::{SEED, Switch, VERDICT, echo, plain, scaled, segment, sides, tuple};

/// Memory that outlives a process, which may die at a store.
#[derive(Clone, Default)]
struct Page(Rc<RefCell<(Vec<u64>, usize)>>);

const HEADER: usize = 64;
const READING: usize = 16;

impl Page {
    fn new(entries: usize) -> Page {
        let words = vec![0; bytes_for(entries) / 8];
        Page(Rc::new(RefCell::new((words, usize::MAX))))
    }

    /// From now on so many words are stored, and nothing after them.
    fn dies_after(&self, stores: usize) {
        self.0.borrow_mut().1 = stores;
    }

    fn has_died(&self) -> bool {
        self.0.borrow().1 == 0
    }

    /// The same bytes, as its successor finds them.
    fn left(&self) -> Page {
        let words = self.0.borrow().0.clone();
        Page(Rc::new(RefCell::new((words, usize::MAX))))
    }

    fn edit(&self, edit: impl FnOnce(&mut [u8])) {
        edit(self.0.borrow_mut().0.as_mut_bytes());
    }
}

impl Memory for Page {
    fn words(&self) -> usize {
        self.0.borrow().0.len()
    }

    fn read(&self, at: usize, words: &mut [u64]) {
        let page = self.0.borrow();
        for (word, at) in words.iter_mut().zip(at..) {
            *word = page.0.get(at).copied().unwrap_or(0);
        }
    }

    fn write(&mut self, at: usize, words: &[u64]) {
        let mut page = self.0.borrow_mut();
        for (word, at) in words.iter().zip(at..) {
            if page.1 == 0 {
                return;
            }
            page.1 -= 1;
            if let Some(place) = page.0.get_mut(at) {
                *place = *word;
            }
        }
    }
}

const NAMES: [(u32, u32); 2] = [(7, 16), (9, 16)];

fn keeping(page: &Page) -> Connections {
    let mut connections = Connections::named(SEED, &NAMES).unwrap();
    connections.keep(Box::new(page.clone()));
    connections
}

fn switch(protocol: u8, page: &Page) -> Switch {
    Switch::of(keeping(page), protocol)
}

/// What a successor on these bytes would be told, all of it refused.
fn alleged(page: &Page) -> Vec<Restored> {
    let mut found = Vec::new();
    keeping(&page.left()).restore(0, u32::MAX, &mut |restored| {
        found.push(*restored);
        None
    });
    found
}

const PASS: Result<Judgement, Refused> = Ok(Judgement::Pass);

fn established(page: &Page) -> Switch {
    let mut s = switch(6, page);
    assert_eq!(s.send(0, scaled(segment(SYN, 1000, 0, 0, 60_000), 7)), PASS);
    let answer = scaled(segment(SYN | ACK, 5000, 1001, 0, 60_000), 9);
    assert_eq!(s.send(1, answer), PASS);
    assert_eq!(alleged(page), [], "half-open");
    assert_eq!(s.send(0, segment(ACK, 1001, 5001, 0, 500)), PASS);
    s
}

#[test]
fn an_established_connection_goes_on_after_a_crash() {
    let page = Page::new(32);
    let before = established(&page);
    let [restored] = alleged(&page)[..] else {
        panic!()
    };
    assert_eq!((restored.a, restored.b), (before.sides[0], before.sides[1]));
    assert_eq!(restored.names, [7, 9]);
    let mut s = switch(6, &page);
    assert_eq!((s.find(0), s.connections.unread()), (None, 1));
    let resumed = s.connections.restore(s.now, 10, &mut |_| Some(VERDICT));
    assert_eq!(
        (resumed.restored, resumed.refused, resumed.ended),
        (1, 0, true)
    );
    let found = s.find(0).unwrap();
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
    // What the other sent is known once it sent more than was believed of it.
    assert_eq!(s.send(1, segment(ACK, 71_000, 91_000, 10, 100)), PASS);
    let unsent = segment(ACK, 91_000, 1_000_000, 100, 500);
    assert_eq!(
        s.send(0, unsent),
        Ok(Judgement::Invalid(Invalid::Acknowledgement))
    );
    assert_eq!(s.send(1, segment(FIN | ACK, 71_010, 91_000, 0, 100)), PASS);
    assert_eq!(s.state(), Some(State::HalfClosed));
    // It is where it was, for the next crash.
    assert_eq!(alleged(&page).len(), 1);
}

/// What one side sent and what of it the other had differ most where acknowledgements were
/// lost with the switch: the first that is heard then is a repetition of what the other has.
#[test]
fn what_was_lost_with_the_switch_is_repeated_and_heard() {
    let repeats = segment(ACK, 100_000, 70_000, 1000, 500);
    let has_more = segment(ACK, 70_000, 150_000, 0, 500);
    let next = segment(ACK, 150_000, 70_000, 1000, 500);
    for order in [
        &[(0, repeats), (1, has_more)][..],
        &[(1, has_more), (0, repeats), (1, has_more)],
        &[(0, repeats), (0, repeats), (1, has_more), (0, repeats)],
    ] {
        let page = Page::new(4);
        drop(established(&page));
        let mut s = switch(6, &page);
        s.connections.restore(s.now, 10, &mut |_| Some(VERDICT));
        for (side, segment) in order {
            assert_eq!(s.send(*side, *segment), PASS, "{order:?}");
        }
        assert_eq!(s.send(0, next), PASS);
        // From then on it counts what was sent, and how far it may go.
        let unsent = segment(ACK, 70_000, 151_001, 0, 500);
        let unsent = s.send(1, unsent);
        assert_eq!(unsent, Ok(Judgement::Invalid(Invalid::Acknowledgement)));
        let far = segment(ACK, 150_000 + 500 * 512 + 1, 70_000, 100, 500);
        assert_eq!(s.send(0, far), Ok(Judgement::Invalid(Invalid::Sequence)));
    }
}

/// Of a side whose other was not heard yet all is taken: what it had in flight is more
/// than its own window.
#[test]
fn a_burst_after_the_restart_passes() {
    let page = Page::new(4);
    drop(established(&page));
    let mut s = switch(6, &page);
    s.connections.restore(s.now, 10, &mut |_| Some(VERDICT));
    for n in 0..100 {
        let piece = segment(ACK, 100_000 + n * 60_000, 70_000, 60_000, 10);
        assert_eq!(s.send(0, piece), PASS);
    }
}

#[test]
fn what_is_over_is_not_restored() {
    let page = Page::new(4);
    let mut s = established(&page);
    assert_eq!(s.send(1, segment(RST, 5001, 0, 0, 0)), PASS);
    assert_eq!(alleged(&page), []);
    let page = Page::new(4);
    let mut s = established(&page);
    let found = s.find(0).unwrap();
    s.connections.close(found);
    assert_eq!(alleged(&page), []);
    let page = Page::new(4);
    let mut s = established(&page);
    s.now += 8000 * SECOND;
    assert_eq!(s.find(0), None);
    assert_eq!(alleged(&page), []);
}

#[test]
fn udp_and_echo_are_restored_and_taken_sides_are_not() {
    for (protocol, request, reply) in [(17, plain(60), plain(60)), (1, echo(true), echo(false))] {
        let page = Page::new(4);
        let mut s = switch(protocol, &page);
        assert_eq!(s.send(0, request), PASS);
        assert_eq!(alleged(&page), []);
        assert_eq!(s.send(1, reply), PASS);
        assert_eq!(alleged(&page).len(), 1);
        // Who comes first has the sides.
        let mut s = switch(protocol, &page);
        assert_eq!(s.send(0, request), PASS);
        let resumed = s.connections.restore(s.now, 10, &mut |_| Some(VERDICT));
        assert_eq!((resumed.restored, resumed.refused), (0, 1));
        assert_eq!(alleged(&page), []);
        assert_eq!(s.send(1, reply), PASS);
        let mut s = switch(protocol, &page);
        let resumed = s.connections.restore(s.now, 10, &mut |_| Some(VERDICT));
        assert_eq!((resumed.restored, resumed.refused), (1, 0));
        assert_eq!(s.send(1, reply), PASS);
    }
}

#[test]
fn an_owner_of_another_name_inherits_nothing() {
    let page = Page::new(4);
    drop(established(&page));
    for other in [[(8, 16), (9, 16)], [(7, 16), (8, 16)]] {
        let page = page.left();
        let mut connections = Connections::named(SEED, &other).unwrap();
        connections.keep(Box::new(page.clone()));
        let mut asked = 0;
        let resumed = connections.restore(0, 10, &mut |_| {
            asked += 1;
            Some(VERDICT)
        });
        assert_eq!((resumed.restored, resumed.refused, asked), (0, 1, 0));
        assert_eq!(alleged(&page), []);
    }
    // Nor do fewer owners.
    let mut few = Connections::named(SEED, &NAMES[..1]).unwrap();
    few.keep(Box::new(page));
    assert_eq!(few.restore(0, 10, &mut |_| Some(VERDICT)).refused, 1);
}

#[test]
fn what_killed_its_reader_is_not_read_again() {
    let page = Page::new(4);
    drop(established(&page));
    // It dies while the connection is judged.
    let mut s = switch(6, &page);
    let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        s.connections.restore(0, 10, &mut |_| panic!("poison"))
    }));
    assert!(judged.is_err());
    let mut s = switch(6, &page);
    let resumed = s.connections.restore(0, 10, &mut |_| Some(VERDICT));
    assert_eq!((resumed.restored, resumed.ended), (0, true));
    // Who dies later does not accuse it.
    let page = Page::new(4);
    drop(established(&page));
    for _ in 0..3 {
        let mut s = switch(6, &page);
        let resumed = s.connections.restore(0, 10, &mut |_| Some(VERDICT));
        assert_eq!(resumed.restored, 1);
    }
    // Any accusation is bounded.
    for place in [0, 2, 5, u64::MAX] {
        let page = page.left();
        page.edit(|bytes| bytes[READING..READING + 8].copy_from_slice(&place.to_ne_bytes()));
        assert_eq!(alleged(&page).len(), 1);
    }
}

/// A connection by UDP that both sides agreed to.
fn answered(connections: &mut Connections, port: u16) -> Side {
    let [a, b] = sides(tuple(17, (1, port), (2, 53)), 0, 1);
    connections.open(0, &a, &b, &VERDICT, &plain(60)).unwrap();
    let back = connections.find(0, b.owner, 0, &b.tuple).unwrap();
    assert_eq!(connections.packet(0, back, &plain(60)), Judgement::Pass);
    a
}

fn close(connections: &mut Connections, a: &Side) {
    let found = connections.find(0, a.owner, 0, &a.tuple).unwrap();
    connections.close(found);
}

fn ports(page: &Page) -> BTreeSet<u16> {
    let ports = alleged(page).into_iter().map(|r| r.a.tuple.source_port);
    ports.collect()
}

#[test]
fn places_are_used_again_and_none_is_taken_that_is_not_there() {
    let page = Page::new(3);
    let mut c = keeping(&page);
    let all: Vec<Side> = (1..=5).map(|port| answered(&mut c, port)).collect();
    assert_eq!(ports(&page), [1, 2, 3].into());
    // All are tracked, with a place in the journal or without.
    assert_eq!(c.live(0), (5, 0));
    close(&mut c, &all[1]);
    close(&mut c, &all[4]);
    answered(&mut c, 6);
    answered(&mut c, 7);
    assert_eq!(ports(&page), [1, 3, 6].into());
}

#[test]
fn what_is_not_read_yet_is_not_written_over_and_outlives_its_reader() {
    let page = Page::new(32);
    let mut c = keeping(&page);
    for port in 1..=6 {
        answered(&mut c, port);
    }
    let mut c = keeping(&page);
    let resumed = c.restore(0, 2, &mut |_| Some(VERDICT));
    assert_eq!((resumed.restored, resumed.ended, c.unread()), (2, false, 4));
    answered(&mut c, 7);
    assert_eq!(ports(&page), (1..=7).collect());
    // Its successor begins at the beginning.
    let mut c = keeping(&page);
    let resumed = c.restore(0, 100, &mut |r| {
        (r.a.tuple.source_port % 2 == 1).then_some(VERDICT)
    });
    assert_eq!((resumed.restored, resumed.refused), (4, 3));
    assert_eq!(ports(&page), [1, 3, 5, 7].into());
    // Places that were refused are free.
    for port in 8..=10 {
        answered(&mut c, port);
    }
    assert_eq!(ports(&page), [1, 3, 5, 7, 8, 9, 10].into());
}

#[test]
fn a_change_of_room_keeps_the_journal() {
    let page = Page::new(32);
    let mut c = keeping(&page);
    let (one, two) = (answered(&mut c, 1), answered(&mut c, 2));
    let mut next = Connections::named(SEED, &[(7, 8), (9, 4)]).unwrap();
    next.inherit(c, |_| true);
    assert!(next.move_some(0, 1));
    assert_eq!(ports(&page), [1, 2].into());
    close(&mut next, &two);
    answered(&mut next, 3);
    assert_eq!(ports(&page), [1, 3].into());
    // Another in that place: what was is over.
    let mut last = Connections::named(SEED, &[(7, 8), (8, 4)]).unwrap();
    last.inherit(next, |owner| owner == 0);
    assert!(!last.move_some(0, 1000));
    assert_eq!(ports(&page), BTreeSet::new());
    assert_eq!(last.find(0, 0, 0, &one.tuple), None);
}

/// A switch's life of which a crash at any store is tried: connections come and go, more
/// of them than places, and a successor goes on.
fn life(page: &Page, step: impl Fn(&Page)) {
    let mut c = keeping(page);
    step(page);
    let mut all = Vec::new();
    for port in 1..=5 {
        all.push(answered(&mut c, port));
        step(page);
    }
    for at in [1, 3] {
        close(&mut c, &all[at]);
        step(page);
    }
    for port in 6..=8 {
        answered(&mut c, port);
        step(page);
    }
    let mut c = keeping(page);
    step(page);
    while !c
        .restore(0, 1, &mut |r| {
            (r.a.tuple.source_port != 3).then_some(VERDICT)
        })
        .ended
    {
        step(page);
    }
    step(page);
}

#[test]
fn a_crash_at_any_store_leaves_what_was_before_a_step_or_after_it() {
    let whole = RefCell::new(vec![BTreeSet::new()]);
    life(&Page::new(4), |page| whole.borrow_mut().push(ports(page)));
    let whole = whole.into_inner();
    assert!(whole.iter().any(|ports| ports.len() == 4));
    for stores in 0.. {
        let page = Page::new(4);
        page.dies_after(stores);
        let found = RefCell::new(None);
        let steps = RefCell::new(0);
        life(&page, |page| {
            *steps.borrow_mut() += 1;
            if page.has_died() && found.borrow().is_none() {
                let at = *steps.borrow();
                let left = ports(page);
                // What is being read may be what kills, and is gone.
                let accused = page.0.borrow().0[READING / 8] != 0;
                let lost = whole[at - 1].difference(&left).count();
                let but_one = accused && lost == 1 && left.is_subset(&whole[at - 1]);
                let fits = left == whole[at] || left == whole[at - 1] || but_one;
                assert!(fits, "after {stores} stores: {left:?}");
                *found.borrow_mut() = Some(left);
            }
        });
        if !page.has_died() {
            assert!(stores > 80);
            return;
        }
    }
}

/// Sets the check of the first entry right, as a switch that lies would.
fn seal(bytes: &mut [u8]) {
    bytes[HEADER..HEADER + 4].copy_from_slice(&0u32.to_ne_bytes());
    let mut sum = 0u64;
    let mut factors = [0u64; ENTRY / 8];
    for (at, word) in bytes[HEADER..HEADER + ENTRY].chunks(8).enumerate() {
        let step = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(at as u64 + 1);
        factors[at] = step.wrapping_mul(step ^ step >> 31) | 1;
        let word = u64::from_ne_bytes(word.try_into().unwrap());
        sum = sum.wrapping_add((word ^ word >> 32).wrapping_mul(factors[at]));
    }
    let sum = ((sum ^ sum >> 29).wrapping_mul(factors[0]) >> 32) as u32;
    bytes[HEADER..HEADER + 4].copy_from_slice(&sum.to_ne_bytes());
}

/// The page that a switch which lies would leave; its first entry is given to be changed.
fn forged(forge: impl FnOnce(&mut [u8])) -> Page {
    let page = Page::new(4);
    drop(established(&page));
    page.edit(|bytes| {
        forge(&mut bytes[HEADER..HEADER + ENTRY]);
        seal(bytes);
    });
    page
}

#[test]
fn a_torn_or_moved_entry_is_not_taken() {
    let page = forged(|_| {});
    assert_eq!(alleged(&page).len(), 1);
    for at in 0..ENTRY {
        let torn = page.left();
        torn.edit(|bytes| bytes[HEADER + at] ^= 1);
        assert_eq!(alleged(&torn), [], "byte {at}");
    }
    let moved = page.left();
    moved.edit(|bytes| {
        bytes.copy_within(HEADER..HEADER + ENTRY, HEADER + ENTRY);
        bytes[8] = 2;
    });
    assert_eq!(alleged(&moved).len(), 1);
    // Of another layout nothing is read.
    let other = page.left();
    other.edit(|bytes| bytes[7] = b'1');
    assert_eq!(alleged(&other), []);
}

#[test]
fn sides_that_cannot_be_are_not_taken() {
    const SOURCE: usize = 32;
    let multicast = mapped([224, 0, 0, 1]);
    for (what, address) in [
        ("unspecified", [0; 16]),
        ("multicast", multicast),
        ("family", [0xfd; 16]),
    ] {
        let page = forged(|entry| entry[SOURCE..SOURCE + 16].copy_from_slice(&address));
        assert_eq!(alleged(&page), [], "{what}");
    }
    // A version that is none, a protocol that has no ports, a state that is none, one of
    // UDP's, a scale on one side.
    for (at, value) in [(4, 9), (5, 47), (6, 77), (6, 8), (7, 0xf7)] {
        let page = forged(|entry| entry[at] = value);
        assert_eq!(alleged(&page), [], "{at}");
    }
}

fn holds(side: &Side) -> bool {
    let four = |address: &[u8; 16]| wire::address::unmapped(address).is_some();
    four(&side.tuple.source) == four(&side.tuple.destination)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever an entry says, with a sum that is right: nothing panics, what is taken
    /// could be a connection, and one that is restored is bounded as any other.
    #[test]
    fn a_forged_journal_gives_nothing_that_could_not_be(
        changes in prop::collection::vec((4usize..ENTRY, any::<u8>()), 0..12),
        wild in prop::option::of(prop::array::uniform32(any::<u8>())),
        traffic in prop::collection::vec(any::<[u32; 2]>(), 0..8)) {
        let page = forged(|entry| {
            for (at, value) in changes {
                entry[at] = value;
            }
            if let Some(wild) = wild {
                entry[8..40].copy_from_slice(&wild);
            }
        });
        let mut s = switch(6, &page);
        let mut sound = true;
        s.connections.restore(s.now, u32::MAX, &mut |restored| {
            sound &= holds(&restored.a) && holds(&restored.b)
                && restored.a.tuple.protocol == restored.b.tuple.protocol
                && !restored.state.is_half_open() && !restored.state.is_over();
            Some(VERDICT)
        });
        prop_assert!(sound);
        for owner in [0, 1] {
            let (live, half_open) = s.connections.live(owner);
            prop_assert!(live <= 1 && half_open == 0);
        }
        for [sequence, acknowledgement] in traffic {
            let _ = s.send((sequence & 1) as usize, segment(ACK, sequence, acknowledgement, 10, 60_000));
        }
    }

    /// Nor do any bytes at all, and the switch that goes on with them works.
    #[test]
    fn no_bytes_of_a_journal_make_it_panic(
        bytes in prop::collection::vec(any::<u8>(), bytes_for(4)), magic: bool) {
        let page = Page::new(4);
        page.edit(|page| page.copy_from_slice(&bytes));
        if magic {
            page.edit(|page| page[..8].copy_from_slice(b"BHFLOWS2"));
        }
        let mut c = keeping(&page);
        let resumed = c.restore(0, u32::MAX, &mut |_| Some(VERDICT));
        prop_assert_eq!((resumed.restored, resumed.ended), (0, true));
        for port in 1..=6 {
            answered(&mut c, port);
        }
        prop_assert_eq!(ports(&page).len(), 4);
    }
}
