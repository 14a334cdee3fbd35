//! Circuits that are cut and not where they were seen, and the supervisor's searches for them.

use super::*;
use telemetry::circuits::CUT_HIDDEN;

/// A circuit that no program has where it was seen, cut by its id.
fn hidden(mediator: &mut Mediator) -> Made {
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
    assert_eq!(mediator.cut_one(made.cookie), CUT_HIDDEN);
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
        mediator.sought();
        assert!(turn(&mut mediator) && !turn(&mut mediator));
    }
    // Each is given up after three searches.
    assert_eq!(mediator.hunted().len(), 3);
    mediator.sought();
    assert!(turn(&mut mediator));
}

#[test]
fn a_search_that_is_over_is_not_taken_for_the_next() {
    let mut mediator = with_circuits(&tables());
    let _made = hidden(&mut mediator);
    assert!(turn(&mut mediator));
    // Both in a turn.
    mediator.sought();
    mediator.use_image(mapped(&tables()));
    assert!(!mediator.seeks().is_empty());
    assert!(!turn(&mut mediator));
    mediator.sought();
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
        mediator.sought();
        turn(&mut mediator);
    }
    assert!(mediator.hunted().is_empty());
}
