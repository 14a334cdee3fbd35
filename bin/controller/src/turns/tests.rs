use super::*;
use proptest::prelude::*;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

type Waits<'a> = Pin<Box<dyn Future<Output = Turn<Vec<u32>>> + 'a>>;

fn look(waits: &mut Waits<'_>) -> Option<Turn<Vec<u32>>> {
    match waits.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(turn) => Some(turn),
        Poll::Pending => None,
    }
}

/// All who wait, in the order in which they come; each is in the line already.
fn order(turns: &Arc<Turns<Vec<u32>>>, ranks: &[Rank], leave: &[bool]) -> Vec<usize> {
    let first = look(&mut (Box::pin(turns.turn(Rank::Tenant)) as Waits<'_>)).unwrap();
    let mut all: Vec<Option<Waits<'_>>> = Vec::new();
    for rank in ranks {
        let mut waits: Waits<'_> = Box::pin(turns.turn(*rank));
        assert!(look(&mut waits).is_none(), "two have the turn");
        all.push(Some(waits));
    }
    for (at, leaves) in leave.iter().enumerate() {
        if *leaves {
            all[at] = None;
        }
    }
    let mut had = first;
    let mut order = Vec::new();
    loop {
        drop(had);
        let found = all.iter_mut().enumerate().find_map(|(at, waits)| {
            let turn = look(waits.as_mut()?)?;
            Some((at, turn))
        });
        let Some((at, turn)) = found else { break };
        all[at] = None;
        order.push(at);
        had = turn;
    }
    assert!(all.iter().all(Option::is_none), "somebody waits for ever");
    order
}

#[test]
fn what_ends_something_goes_before_all_that_waits_and_the_host_before_tenants() {
    let turns = Turns::new(Vec::new());
    use Rank::{Ends, Host, Tenant};
    let came = [Tenant, Tenant, Host, Tenant, Ends, Host, Ends];
    let order = order(&turns, &came, &[]);
    assert_eq!(order, [4, 6, 2, 5, 0, 1, 3]);
}

#[test]
fn who_hangs_up_leaves_the_line() {
    let turns = Turns::new(Vec::new());
    let held = look(&mut (Box::pin(turns.turn(Rank::Tenant)) as Waits<'_>)).unwrap();
    for _ in 0..100 {
        let mut waits: Waits<'_> = Box::pin(turns.turn(Rank::Tenant));
        assert!(look(&mut waits).is_none());
    }
    assert_eq!(turns.waiting(), 0);
    // Also who leaves after it was given the turn, and before it took it.
    let mut waits: Waits<'_> = Box::pin(turns.turn(Rank::Tenant));
    assert!(look(&mut waits).is_none());
    drop(held);
    drop(waits);
    assert!(look(&mut (Box::pin(turns.turn(Rank::Host)) as Waits<'_>)).is_some());
}

#[test]
fn each_has_one_of_a_kind_and_gets_it_back() {
    let places = Arc::new(Places::default());
    let red = || Who::Tenant("red".into());
    let first = places.take(red(), Kind::Change).unwrap();
    let again = places.take(red(), Kind::Change).unwrap_err();
    assert_eq!(again.code, "too-many");
    let ending = places.take(red(), Kind::Ending).unwrap();
    let other = places.take(Who::Tenant("blue".into()), Kind::Change);
    assert!(other.is_ok() && places.take(Who::Uid(1), Kind::Change).is_ok());
    drop((first, ending));
    assert!(places.take(red(), Kind::Change).is_ok());
}

proptest! {
    #[test]
    fn everybody_who_stays_comes_once_by_rank_and_age(
        ranks in proptest::collection::vec(0_usize..3, 0..40),
        leave in proptest::collection::vec(any::<bool>(), 40),
    ) {
        let turns = Turns::new(Vec::new());
        let ranks: Vec<Rank> =
            ranks.into_iter().map(|n| [Rank::Ends, Rank::Host, Rank::Tenant][n]).collect();
        let leave = &leave[..ranks.len()];
        let order = order(&turns, &ranks, leave);
        // The model: two lists, from one of which one is taken after each four of the other.
        let stays = |ends: bool| {
            let mut all: Vec<usize> = (0..ranks.len())
                .filter(|at| !leave[*at] && (ranks[*at] == Rank::Ends) == ends)
                .collect();
            all.sort_by_key(|at| (ranks[*at], *at));
            all.into_iter().peekable()
        };
        let (mut ends, mut others) = (stays(true), stays(false));
        let mut expected = Vec::new();
        let mut row = 0;
        while ends.peek().is_some() || others.peek().is_some() {
            let other = ends.peek().is_none() || row >= 4 && others.peek().is_some();
            row = if other { 0 } else { row + 1 };
            expected.extend(if other { others.next() } else { ends.next() });
        }
        prop_assert_eq!(order, expected);
        prop_assert_eq!(turns.waiting(), 0);
    }
}
