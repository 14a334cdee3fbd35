//! Circuits that are cut and not where they were seen, and the supervisor's searches for them.

use super::*;
use command::verbs::{Found, Sought};
use telemetry::circuits::CUT_HIDDEN;

/// A circuit that no program has where it was seen, cut by its id.
fn hidden(mediator: &mut Mediator) -> Made {
    let made = unseen(mediator);
    assert_eq!(mediator.cut_one(made.cookie), CUT_HIDDEN);
    made
}

fn unseen(mediator: &mut Mediator) -> Made {
    let made = sockets::stream(true).unwrap();
    let (family, table) = (circuit::Family::V4, &mut mediator.table);
    table.create(made.cookie, WEB, family, 0).unwrap();
    let to = Endpoint {
        ip: of(NEAR),
        port: 80,
    };
    let (bytes, length) = circuit::write(family, to);
    table
        .connect_begin(made.cookie, &bytes[..length], 7)
        .unwrap();
    table.connected(made.cookie).unwrap();
    made
}

/// The end of a turn of the operator's: whether the supervisor was asked.
fn turn(mediator: &mut Mediator) -> bool {
    let asks = mediator.cuts_found() || mediator.is_to_seek();
    asks && !mediator.seeks().is_empty()
}

#[test]
fn circuits_that_are_cut_one_after_another_are_all_looked_for() {
    let mut mediator = with_circuits(&tables());
    let mut all = vec![hidden(&mut mediator)];
    assert!(turn(&mut mediator));
    for _ in 0..5 {
        // While the search before goes on: it is asked for when that is over, and once.
        all.push(hidden(&mut mediator));
        assert!(!turn(&mut mediator));
        mediator.sought(&Sought::default());
        assert!(turn(&mut mediator) && !turn(&mut mediator));
    }
    // Each is given up after three searches.
    assert_eq!(mediator.hunted().len(), 3);
    mediator.sought(&Sought::default());
    assert!(turn(&mut mediator));
}

#[test]
fn a_search_that_is_over_is_not_taken_for_the_next() {
    let mut mediator = with_circuits(&tables());
    let _made = hidden(&mut mediator);
    assert!(turn(&mut mediator));
    // Both in a turn.
    mediator.sought(&Sought::default());
    mediator.use_image(mapped(&tables()));
    assert!(!mediator.seeks().is_empty());
    assert!(!turn(&mut mediator));
    mediator.sought(&Sought::default());
    assert!(mediator.cuts_found());
}

#[test]
fn who_was_asked_for_and_not_searched_for_is_not_given_up() {
    let mut mediator = with_circuits(&tables());
    let _made = hidden(&mut mediator);
    for _ in 0..5 {
        mediator.use_image(mapped(&tables()));
        assert!(!mediator.seeks().is_empty());
    }
    for _ in 0..3 {
        assert_eq!(mediator.hunted().len(), 1);
        mediator.sought(&Sought::default());
        turn(&mut mediator);
    }
    assert!(mediator.hunted().is_empty());
}

#[test]
fn a_search_that_another_was_begun_after_is_not_taken_for_it() {
    let mut mediator = with_circuits(&tables());
    let _made = hidden(&mut mediator);
    let mut asks = || {
        let all = mediator.seeks();
        all.last().map_or(0, |body| body.last)
    };
    let [first, second] = [asks(), asks()];
    assert!(first != 0 && second != first);
    let sought = |number| Sought { number, missed: 0 };
    // It was on its way when the next was asked for.
    mediator.sought(&sought(first));
    assert!(!mediator.cuts_found());
    mediator.sought(&sought(second));
    assert!(mediator.cuts_found());
}

#[test]
fn who_could_not_be_looked_at_has_more_searches_and_not_without_end() {
    let mut mediator = with_circuits(&tables());
    let _made = hidden(&mut mediator);
    let mut searches = 0;
    while let Some(body) = mediator.seeks().last() {
        mediator.sought(&Sought {
            number: body.last,
            missed: 1,
        });
        assert!(mediator.cuts_found());
        searches += 1;
        assert!(searches < 20);
    }
    assert_eq!((searches, mediator.hunted().len()), (12, 0));
}

#[test]
fn who_is_cut_again_and_again_is_not_looked_for_without_end() {
    let mut mediator = with_circuits(&tables());
    let made = hidden(&mut mediator);
    let mut searches = 0;
    while let Some(body) = mediator.seeks().last() {
        mediator.sought(&Sought {
            number: body.last,
            missed: 0,
        });
        assert!(mediator.cuts_found());
        assert_eq!(mediator.cut_one(made.cookie), CUT_HIDDEN);
        searches += 1;
        assert!(searches < 10);
    }
    assert_eq!(searches, 3);
}

/// Who looked has cut it: a stream, or datagrams, in the search of this number.
fn chased(of: &Made, search: u32) -> Found {
    Found {
        inode: rustix::fs::fstat(&of.fd).unwrap().st_ino,
        thread: 0,
        number: search,
    }
}

#[test]
fn a_circuit_that_is_cut_by_who_looks_for_its_other_end_is_cut() {
    let mut mediator = with_circuits(&tables());
    let [began, accepted] = [(); 2].map(|()| sockets::stream(true).unwrap());
    let (family, table) = (circuit::Family::V4, &mut mediator.table);
    for made in [&began, &accepted] {
        table.create(made.cookie, WEB, family, 0).unwrap();
    }
    let end = *table.socket(accepted.cookie).unwrap();
    mediator.cut(vec![(began.cookie, vec![end])]);
    assert!(turn(&mut mediator));
    assert_eq!(mediator.hunted(), [began.cookie]);
    mediator.found(&chased(&accepted, 0));
    assert!(!turn(&mut mediator) && mediator.hunted().is_empty());
}

/// A socket of WEB's that nobody has where it was seen, connected to NEAR.
pub(super) fn connected(mediator: &mut Mediator) -> Made {
    // Nobody else's: tests run side by side in one network.
    let name = secret().unwrap();
    let made = sockets::datagram(true, name).unwrap();
    let (family, table) = (circuit::Family::V4, &mut mediator.table);
    table
        .create_datagram(made.cookie, WEB, family, name)
        .unwrap();
    let mut way = way(WEB, NEAR);
    way.local.port = 81;
    let (own, length) = circuit::write(family, way.local);
    table.bind(made.cookie, &own[..length], true, 0).unwrap();
    assert_eq!(table.connect_datagram(made.cookie, way), Ok(()));
    mediator.links(made.cookie, NEAR);
    mediator.write();
    made
}

#[test]
fn datagrams_that_are_cut_and_may_go_on_by_then_are_linked_again() {
    let mut mediator = with_datagrams(&tables());
    let made = connected(&mut mediator);
    mediator.found(&chased(&made, 1));
    assert!(!mediator.cuts_found() && mediator.is_late());
    mediator.link_late();
    // Nobody has it where it was seen. Its program may have connected it again meanwhile: it is no less cut with
    // the next change for that.
    assert!(mediator.datagrams.doubted.contains(&made.cookie) && mediator.hunted().is_empty());
    mediator.use_image(mapped(&no_datagrams(&tables())));
    assert_eq!(mediator.hunted(), [made.cookie]);
}

/// It may have been linked again since.
#[test]
fn that_datagrams_were_cut_before_they_are_looked_for_anew_is_not_believed() {
    let (tables, mut mediator) = (tables(), with_datagrams(&tables()));
    let made = connected(&mut mediator);
    let denied = no_datagrams(&tables);
    let asks = |mediator: &mut Mediator| mediator.seeks().last().map_or(0, |body| body.last);
    let says = |mediator: &mut Mediator, search| {
        mediator.found(&chased(&made, search));
        mediator.cuts_found();
        mediator.hunted()
    };
    mediator.use_image(mapped(&denied));
    let first = asks(&mut mediator);
    mediator.use_image(mapped(&tables));
    assert!(first != 0 && mediator.hunted().is_empty());
    mediator.use_image(mapped(&denied));
    assert_eq!(says(&mut mediator, first), [made.cookie], "not asked for");
    let second = asks(&mut mediator);
    assert_eq!(
        says(&mut mediator, first),
        [made.cookie],
        "of a search before"
    );
    assert!(second != first && says(&mut mediator, second).is_empty());
}

/// Who hides a socket may not do so for good.
#[test]
fn what_is_found_with_no_process_is_looked_for_again_at_times() {
    let mut mediator = with_circuits(&tables());
    let made = hidden(&mut mediator);
    let searches = |mediator: &mut Mediator| {
        let mut searches = 0;
        while turn(mediator) {
            mediator.sought(&Sought::default());
            searches += 1;
        }
        searches
    };
    assert_eq!(searches(&mut mediator), 3);
    for _ in 0..3 {
        assert!(mediator.hunted().is_empty() && mediator.sleep().is_some());
        assert_eq!(searches(&mut mediator), 0, "not yet");
        assert!(mediator.falls_due());
        assert_eq!(searches(&mut mediator), 1);
    }
    assert!(mediator.falls_due() && turn(&mut mediator));
    mediator.found(&chased(&made, 0));
    assert!(!turn(&mut mediator) && mediator.hunted().is_empty());
    mediator.sought(&Sought::default());
    mediator.falls_due();
    assert_eq!(searches(&mut mediator), 0, "it is cut");
    assert!(!mediator.falls_due());
}

/// It sends to nobody, wherever its program has it.
#[test]
fn what_was_cut_is_looked_for_when_it_may_go_on() {
    let (tables, mut mediator) = (tables(), with_datagrams(&tables()));
    let made = connected(&mut mediator);
    let denied = no_datagrams(&tables);
    mediator.use_image(mapped(&denied));
    assert!(turn(&mut mediator));
    let cut = |mediator: &mut Mediator, number| {
        mediator.found(&chased(&made, number));
        mediator.sought(&Sought::default());
        turn(mediator);
        mediator.hunted()
    };
    assert!(cut(&mut mediator, 1).is_empty());
    for number in 2..4 {
        mediator.use_image(mapped(&tables));
        assert_eq!(mediator.hunted(), [made.cookie], "{number}");
        assert!(!mediator.seeks().is_empty());
        // Where it was found it is no more: it is not looked for without end.
        assert!(cut(&mut mediator, number).is_empty());
        mediator.link_late();
        assert!(mediator.hunted().is_empty());
    }
}

/// Others' sockets are linked to theirs, in whichever processes.
#[test]
fn who_is_connected_to_programs_that_are_left_behind_is_cut() {
    let mut mediator = with_datagrams(&tables());
    let made = connected(&mut mediator);
    mediator.closes(NEAR);
    assert_eq!(mediator.hunted(), [made.cookie]);
}

/// It is looked for at times while it is denied, and no more.
#[test]
fn what_was_not_found_and_is_allowed_again_is_not_cut_any_more() {
    let (tables, mut mediator) = (tables(), with_datagrams(&tables()));
    let made = connected(&mut mediator);
    mediator.use_image(mapped(&no_datagrams(&tables)));
    let gives_up = |mediator: &mut Mediator| {
        while !mediator.seeks().is_empty() {
            mediator.sought(&Sought::default());
            mediator.cuts_found();
        }
    };
    gives_up(&mut mediator);
    // Nor is it looked for because somebody binds where it is connected to.
    mediator.link_all(NEAR, 80);
    assert!(mediator.hunted().is_empty() && mediator.falls_due());
    mediator.use_image(mapped(&tables));
    mediator.falls_due();
    mediator.cuts_found();
    assert!(mediator.hunted().is_empty() && mediator.seeks().is_empty());
    mediator.use_image(mapped(&no_datagrams(&tables)));
    assert_eq!(mediator.hunted(), [made.cookie], "denied once more");
}

/// The same of a stream, but of one that was cut by its id: no rule said so, and none takes that back.
#[test]
fn a_stream_that_was_not_found_and_is_allowed_again_is_not_cut_any_more() {
    for by_id in [false, true] {
        let mut mediator = with_circuits(&tables());
        let made = unseen(&mut mediator);
        match by_id {
            true => assert_eq!(mediator.cut_one(made.cookie), CUT_HIDDEN),
            false => {
                let socket = *mediator.table.socket(made.cookie).unwrap();
                mediator.cut(vec![(made.cookie, vec![socket])]);
            }
        }
        while turn(&mut mediator) {
            mediator.sought(&Sought::default());
        }
        assert!(mediator.is_lost(made.cookie));
        mediator.use_image(mapped(&tables()));
        mediator.falls_due();
        assert_eq!(turn(&mut mediator), by_id);
        assert_eq!(mediator.hunted().is_empty(), !by_id);
    }
}

/// As long as they may go on.
#[test]
fn datagrams_that_are_cut_are_listed_where_they_were_not_found() {
    use telemetry::flows::COUNT_AT;
    let mut mediator = with_datagrams(&tables());
    let _made = connected(&mut mediator);
    let listed = |mediator: &mut Mediator| {
        let page = shm::sparse_file("listing", telemetry::circuits::bytes_for(9)).unwrap();
        let asked = ListFlows {
            compartment: 0,
            slot: u32::MAX,
            most: 9,
            circuits: 1,
        };
        mediator.list(&asked, page.try_clone().unwrap());
        Words::map_whole(page).unwrap().load(COUNT_AT)
    };
    assert_eq!(listed(&mut mediator), 1);
    mediator.use_image(mapped(&no_datagrams(&tables())));
    while turn(&mut mediator) {
        assert_eq!(listed(&mut mediator), 0);
        mediator.sought(&Sought::default());
    }
    assert_eq!(listed(&mut mediator), 1);
    // Also while it is looked for again.
    mediator.falls_due();
    assert!(turn(&mut mediator));
    assert_eq!(listed(&mut mediator), 1);
}
