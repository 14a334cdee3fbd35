//! Whose memory of circuits is kept, looked at, and taken back.

use super::*;

fn end(cookie: u64) -> End {
    End { inode: 1, cookie }
}

fn has(rings: &mut Rings, began: u64, side: Side, cookie: u64) -> bool {
    rings.handed(began, side, end(cookie), None);
    rings.given(began, side)
}

fn across(id: u64) -> Across {
    Across {
        tag: 5,
        id,
        is_here: true,
        place: None,
        ends: [None; 2],
    }
}

fn inode(fd: &OwnedFd) -> u64 {
    rustix::fs::fstat(fd.as_fd()).unwrap().st_ino
}

#[test]
fn both_sides_have_the_same_memory_and_each_once() {
    let mut rings = Rings::default();
    let one = inode(rings.memory(7, Side::Accepted, [1, 2]).unwrap());
    // Not heard of: it may ask again.
    assert_eq!(inode(rings.memory(7, Side::Accepted, [1, 2]).unwrap()), one);
    has(&mut rings, 7, Side::Accepted, 77);
    let again = rings.memory(7, Side::Accepted, [1, 2]);
    assert_eq!(again.map(inode), Err(Errno::ALREADY));
    assert_eq!(inode(rings.memory(7, Side::Began, [1, 2]).unwrap()), one);
    assert_ne!(inode(rings.memory(8, Side::Began, [1, 2]).unwrap()), one);
    has(&mut rings, 7, Side::Began, 7);
    assert_eq!(rings.kept, 1, "who has it keeps it");
    let again = rings.memory(7, Side::Began, [1, 2]);
    assert_eq!(again.map(inode), Err(Errno::ALREADY));
}

#[test]
fn an_endpoint_has_as_many_rings_as_it_may() {
    let mut rings = Rings::default();
    for began in 0..u64::from(MOST) {
        assert!(rings.memory(began, Side::Began, [1, 2]).is_ok());
        given_to_both(&mut rings, began);
    }
    assert_eq!(rings.kept, 0);
    for slots in [[1, 3], [3, 2], [1, 1]] {
        let more = rings.memory(9_999, Side::Began, slots);
        assert_eq!(more.map(inode), Err(Errno::NOBUFS), "{slots:?}");
    }
    assert!(rings.memory(10_000, Side::Began, [3, 3]).is_ok());
    // It counts until its pages are taken back.
    rings.retain(|began| began != 5);
    assert!(!rings.has_room([1, 3]));
    takes_back(&mut rings);
    assert!(rings.memory(9_999, Side::Began, [1, 3]).is_ok());
    assert!(!rings.has_room([1, 3]));
}

#[test]
fn connections_of_other_tenants_leave_memory_for_the_tenants_own() {
    let mut rings = Rings::default();
    let memory = || shm::circuit_file(CAPACITY).unwrap();
    for own in 0..u64::from(MOST_ACROSS) {
        assert_eq!(rings.keep(own, 1, across(own), memory()), Ok(()));
    }
    assert_eq!(
        rings.keep(9_999, 1, across(1), memory()),
        Err(Errno::NOBUFS)
    );
    assert_eq!(rings.keep(9_999, 2, across(1), memory()), Ok(()));
    assert!(rings.memory(10_000, Side::Began, [1, 1]).is_ok());
}

#[test]
fn closed_ones_are_looked_for_before_there_is_no_room_and_not_for_each_call() {
    let mut rings = Rings::default();
    for began in 0..u64::from(MOST / 4 * 3) {
        assert!(!rings.is_near_full([1, 2], false));
        rings.memory(began, Side::Began, [1, 2]).unwrap();
        given_to_both(&mut rings, began);
    }
    assert!(rings.has_room([1, 2]) && rings.is_near_full([2, 3], false));
    assert!(!rings.is_near_full([3, 3], false));
    rings
        .keep(9_999, 3, across(1), shm::circuit_file(CAPACITY).unwrap())
        .unwrap();
    assert!(!rings.is_near_full([3, 3], true) && rings.is_near_full([2, 2], true));
    rings.looked_for(Duration::from_secs(9));
    assert!(!rings.is_near_full([1, 2], false));
    rings.looked_for(Duration::ZERO);
    assert!(rings.is_near_full([1, 2], false));
}

#[test]
fn memory_that_nobody_fetches_is_bounded() {
    let mut rings = Rings::default();
    for began in 0..KEPT as u64 {
        let slot = began as u32;
        assert!(rings.memory(began, Side::Began, [slot, slot]).is_ok());
    }
    let more = rings.memory(9_999, Side::Began, [9_999, 9_999]);
    assert_eq!(more.map(inode), Err(Errno::NOBUFS));
    rings.retain(|_| false);
    assert_eq!((rings.kept, rings.all.len()), (0, 0));
    assert!(rings.counts.values().all(|count| *count == 0));
}

fn takes_back(rings: &mut Rings) {
    rings.tick();
    while rings.closed.due(Instant::now()).is_some() {
        std::thread::sleep(Duration::from_millis(1));
        rings.tick();
    }
}

#[test]
fn memory_is_one_closed_circuits_when_both_its_ends_are() {
    let mut rings = Rings::default();
    let pages = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_blocks;
    let memory = rings.memory(7, Side::Began, [1, 2]).unwrap();
    let memory = memory.try_clone().unwrap();
    has(&mut rings, 7, Side::Began, 7);
    has(&mut rings, 7, Side::Accepted, 8);
    rustix::io::pwrite(&memory, &[1; 64 << 10], 0).unwrap();
    let before = pages(&memory);
    // Who accepted it reads what is left.
    rings.retain(|it| it != 7);
    assert_eq!((rings.has(7), rings.closed.len()), (true, 0));
    rings.retain(|it| it != 7 && it != 8);
    assert_eq!((rings.has(7), rings.closed.len()), (false, 1));
    assert_eq!(pages(&memory), before);
    takes_back(&mut rings);
    assert_eq!(pages(&memory), 0);
    assert!(rings.counts.values().all(|count| *count == 0));
}

#[test]
fn it_is_asked_now_and_then_which_circuits_with_rings_live() {
    let mut rings = Rings::default();
    let memory = shm::circuit_file(CAPACITY).unwrap();
    rings.keep(1, 1, across(50), memory).unwrap();
    assert_eq!((rings.tick(), rings.due()), (false, None));
    has(&mut rings, 1, Side::Began, 1);
    assert_eq!(rings.given_far(1, Side::Accepted, end(7)), Some(true));
    assert!(rings.due().is_some() && !rings.tick());
    rings.asks = Some(Instant::now());
    assert!(rings.tick() && !rings.tick());
    assert_eq!(rings.tags().collect::<Vec<_>>(), [5]);
    // And of both ends when this one is not known of any more.
    rings.retain(|_| false);
    assert_eq!(rings.tags().collect::<Vec<_>>(), [5]);
    let ends = [Some(end(1)), Some(end(7))];
    assert_eq!(rings.asks_ends(), [(1, Across { ends, ..across(50) })]);
    rings.is_over(1);
    takes_back(&mut rings);
    assert_eq!(rings.given_far(1, Side::Accepted, end(7)), None);
    assert!(rings.counts.values().all(|count| *count == 0));
}

/// The call failed behind that: an answer that cannot be written is an attack as well as an error.
#[test]
fn who_was_not_told_that_it_has_it_has_it_all_the_same() {
    let mut rings = Rings::default();
    let memory = rings.memory(7, Side::Began, [1, 2]).unwrap();
    let memory = memory.try_clone().unwrap();
    rustix::io::pwrite(&memory, &[1; 64 << 10], 0).unwrap();
    has(&mut rings, 7, Side::Accepted, 8);
    rings.handed(7, Side::Began, end(7), None);
    rings.retain(|_| false);
    takes_back(&mut rings);
    assert_eq!(rustix::fs::fstat(&memory).unwrap().st_blocks, 0);
    // And the other tenant's, of whom it is told after this end is closed.
    let memory = shm::circuit_file(CAPACITY).unwrap();
    rings.keep(1, 1, across(50), memory).unwrap();
    has(&mut rings, 1, Side::Began, 1);
    rings.retain(|_| false);
    assert_eq!((rings.closed.len(), rings.asks_ends()), (1, vec![]));
    assert!(rings.given_late((5, 50), end(7)));
    assert_eq!(rings.asks_ends().len(), 1);
    rings.gives_up(1);
    assert_eq!((rings.closed.len(), rings.counts[&1]), (0, 0));
}

fn given_to_both(rings: &mut Rings, began: u64) {
    has(rings, began, Side::Began, began);
    has(rings, began, Side::Accepted, 0);
}

/// Looks so often at all of them that something must have come of it, whatever the time.
fn looks(rings: &mut Rings, times: usize) {
    for _ in 0..times {
        let all = std::mem::take(&mut rings.due).into_iter();
        let now = Instant::now();
        rings.due = all.map(|(_, began)| (now, began)).collect();
        rings.tick();
        while !rings.rounds.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
            rings.hear();
        }
    }
}

#[test]
fn pages_that_nobody_uses_are_given_back_and_of_the_tenants_own_alone() {
    let pages = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_blocks / 8;
    let mut rings = Rings::default();
    rings
        .keep(1, 1, across(1), shm::circuit_file(CAPACITY).unwrap())
        .unwrap();
    rings.memory(2, Side::Began, [1, 2]).unwrap();
    let all = [1, 2].map(|began| {
        let memory = &rings.all[&began].memory;
        memory.try_clone().unwrap()
    });
    for began in [1, 2] {
        given_to_both(&mut rings, began);
    }
    assert_eq!((rings.kept, rings.all.len()), (0, 2));
    let data = stream::data_at(Side::Began, CAPACITY) as u64;
    for memory in &all {
        rustix::io::pwrite(memory, &[1; 64 << 10], data).unwrap();
    }
    looks(&mut rings, 2);
    assert_eq!(all.each_ref().map(pages), [16, 1]);
    // Somebody writes, or has not read: nothing is taken.
    for (at, value) in [(24 * 8, 1_u64), (24 * 8, 0), (0, 7)] {
        rustix::io::pwrite(&all[1], &[1; 64 << 10], data).unwrap();
        rustix::io::pwrite(&all[1], &u64::to_ne_bytes(value), at).unwrap();
        looks(&mut rings, 4);
        let given = at != 0 && value == 0;
        assert_eq!(pages(&all[1]) == 1, given, "{at} {value}");
    }
    rings.retain(|_| false);
    assert_eq!((rings.kept, rings.all.len()), (0, 0));
    rings.is_over(1);
    takes_back(&mut rings);
    looks(&mut rings, 1);
    rings.asks = None;
    assert_eq!(rings.due(), None);
}

/// Whoever looked was killed behind that: it is small, and would be looked at no more.
#[test]
fn memory_of_which_nothing_is_told_is_looked_at_again() {
    use stream::reclaim::Kept;
    let mut rings = Rings::default();
    rings.memory(1, Side::Began, [1, 2]).unwrap();
    given_to_both(&mut rings, 1);
    let memory = &rings.all[&1].memory;
    let words = shm::CircuitWords::map(memory.as_fd()).unwrap();
    words.reclaims(Side::Began, 1);
    rings.all.get_mut(&1).unwrap().is_lost = true;
    looks(&mut rings, 2);
    let of_reader = words.of_reader(Side::Began, stream::ConsumerWord::Reclaims);
    assert_eq!((of_reader, rings.all[&1].is_lost), (0, false));
}

/// Rings of these endpoints, due, so many, and large enough to be looked at.
fn due_of(rings: &mut Rings, slots: [u32; 2], count: u64) {
    for _ in 0..count {
        let began = rings.all.len() as u64;
        rings.memory(began, Side::Began, slots).unwrap();
        given_to_both(rings, began);
        let ring = rings.all.get_mut(&began).unwrap();
        ring.is_lost = true;
        rings.due.retain(|it| it.1 != began);
        rings.due.insert((Instant::now(), began));
    }
}

/// Whose circuits are looked at.
fn looked_at(rings: &Rings) -> Vec<[u32; 2]> {
    rings.rounds.iter().map(|round| round.slots).collect()
}

#[test]
fn who_has_a_look_wait_has_none_more_and_two_of_them_nobody() {
    let mut rings = Rings::default();
    let (late, _one) = Round::silent([1, 2], Duration::from_secs(2));
    rings.rounds.push(late);
    due_of(&mut rings, [1, 2], 1);
    due_of(&mut rings, [3, 4], 1);
    rings.tick();
    assert_eq!(looked_at(&rings), [[1, 2], [3, 4]]);
    let (late, _two) = Round::silent([5, 6], Duration::from_secs(2));
    rings.rounds.push(late);
    due_of(&mut rings, [7, 8], 1);
    rings.tick();
    assert!(!looked_at(&rings).contains(&[7, 8]));
    // Not soon again, for that is a wake-up each time.
    let last = rings.all.len() as u64 - 1;
    let due = rings.due.iter().find(|it| it.1 == last);
    assert!(due.is_some_and(|it| it.0 > Instant::now() + LOOKS));
}

#[test]
fn few_looks_at_a_time_and_one_of_the_same_endpoints() {
    let mut rings = Rings::default();
    let (slow, _end) = Round::silent([1, 2], Duration::ZERO);
    rings.rounds.push(slow);
    for slot in 1..9 {
        due_of(&mut rings, [slot, slot + 1], 1);
    }
    rings.tick();
    assert_eq!(looked_at(&rings), [[1, 2], [2, 3], [3, 4], [4, 5]]);
    // The others have their turn once those are over.
    let soon = |rings: &Rings| {
        let end = Instant::now() + LOOKS / 2;
        rings.due.iter().filter(|it| it.0 < end).count()
    };
    assert_eq!(soon(&rings), 5);
}

#[test]
fn a_call_does_not_wait_for_looks_at_all_that_are_due() {
    let mut rings = Rings::default();
    due_of(&mut rings, [1, 2], 100);
    let before = Instant::now();
    rings.tick();
    let untouched = rings.due.iter().filter(|it| it.0 < before).count();
    assert_eq!(untouched, 100 - LOOKED_AT);
}

#[test]
fn what_is_in_use_is_looked_at_seldom() {
    let mut rings = Rings::default();
    rings.memory(1, Side::Began, [1, 2]).unwrap();
    given_to_both(&mut rings, 1);
    let memory = rings.all[&1].memory.try_clone().unwrap();
    let data = stream::data_at(Side::Began, CAPACITY) as u64;
    rustix::io::pwrite(&memory, &[1; 64 << 10], data).unwrap();
    let waits = [0_u64, 1, 2, 3, 4].map(|published| {
        rustix::io::pwrite(&memory, &published.to_ne_bytes(), 0).unwrap();
        looks(&mut rings, 1);
        rings.all[&1].wait.as_secs()
    });
    assert_eq!(waits, [2, 4, 4, 4, 4]);
}
