use super::*;

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

#[test]
fn the_first_restart_is_immediate_and_repeated_deaths_wait_longer_each_time() {
    let mut backoff = Backoff::default();
    assert_eq!(backoff.died(Death::Fault, 0), 0);
    let waits: Vec<u64> = (0..9)
        .map(|_| backoff.died(Death::Fault, MS) / MS)
        .collect();
    assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
    for _ in 0..100 {
        assert!(backoff.died(Death::Fault, 0) <= S);
    }
}

#[test]
fn a_healthy_time_is_forgiven_for_a_fault_but_not_for_a_breakout() {
    let mut backoff = Backoff::default();
    for _ in 0..5 {
        assert_eq!(backoff.died(Death::Fault, 200 * MS), 0);
    }
    let mut backoff = Backoff::default();
    assert_eq!(backoff.died(Death::Breakout, S), 0);
    assert_eq!(backoff.died(Death::Breakout, S), 100 * MS);
    assert_eq!(backoff.died(Death::Breakout, S), 200 * MS);
    assert_eq!(backoff.died(Death::Breakout, 31 * S), 0);
}

#[test]
fn the_host_restarts_a_bounded_number_of_processes_a_second() {
    let mut limit = Bucket::of_host();
    let mut allowed = 0;
    // Ten seconds of a death each millisecond.
    for tick in 0..10_000 {
        if limit.take(tick * MS).is_ok() {
            allowed += 1;
        }
    }
    assert!((260..=266).contains(&allowed), "{allowed} restarts");
    // And it says how long to wait, truly.
    let mut limit = Bucket::of_host();
    let wait = std::iter::repeat_with(|| limit.take(0))
        .find_map(Result::err)
        .unwrap();
    assert!(limit.take(wait).is_ok());
}

#[test]
fn who_dies_without_end_delays_nobody_else() {
    let mut host = Bucket::of_host();
    let (mut dying, mut other) = (Bucket::of_seat(), Bucket::of_seat());
    let (mut due, mut restarts) = (0, 0);
    // A minute in which one seat dies as soon as it is started.
    for tick in 0..60_000 {
        let now = tick * MS;
        if now >= due {
            due = now + 1 + restart_wait(&mut host, &mut dying, false, now);
            restarts += 1;
        }
        if tick % 1000 == 999 {
            assert_eq!(restart_wait(&mut host, &mut other, false, now), 0);
        }
    }
    assert!((490..=500).contains(&restarts), "{restarts} restarts");
    // Many together use up what the host has: the next waits for one restart's time at
    // most, and the fabric for none.
    let now = 60 * S;
    while host.take(now).is_ok() {}
    let wait = restart_wait(&mut host, &mut other, false, now);
    assert!((1..=50 * MS + 1).contains(&wait), "{wait} ns");
    assert_eq!(
        restart_wait(&mut host, &mut Bucket::of_seat(), true, now),
        0
    );
}

#[test]
fn three_deaths_by_one_slot_quarantine_it_and_deaths_by_others_do_not_count() {
    let mut blame = Blame::default();
    assert!(!blame.died(0, 4, ENDPOINT_DEATHS));
    assert!(!blame.died(S, 5, ENDPOINT_DEATHS));
    assert!(!blame.died(2 * S, 4, ENDPOINT_DEATHS));
    assert!(!blame.died(3 * S, 6, ENDPOINT_DEATHS));
    assert!(blame.died(4 * S, 4, ENDPOINT_DEATHS));
    // Counted anew afterwards.
    assert!(!blame.died(5 * S, 4, ENDPOINT_DEATHS));
    // Two suffice for a channel of the fabric.
    let mut blame = Blame::default();
    assert!(!blame.died(0, 1, CHANNEL_DEATHS));
    assert!(blame.died(S, 1, CHANNEL_DEATHS));
}

#[test]
fn deaths_long_ago_are_forgotten() {
    let mut blame = Blame::default();
    for n in 0..100 {
        assert!(!blame.died(n * 31 * S, 4, ENDPOINT_DEATHS));
    }
}

#[test]
fn what_burns_without_a_heartbeat_is_stalled() {
    let mut progress = Progress::default();
    let burn = |ms: u64| move || Some(Duration::from_millis(ms));
    assert_eq!(progress.look(7, false, burn(100)), Seen::Awake);
    assert_eq!(progress.look(7, false, burn(149)), Seen::Awake);
    assert_eq!(progress.look(7, false, burn(150)), Seen::Stalled);
}

#[test]
fn a_heartbeat_a_sleep_or_a_starved_process_is_no_stall() {
    let mut progress = Progress::default();
    let burn = |ms: u64| move || Some(Duration::from_millis(ms));
    for n in 1..100 {
        assert_eq!(progress.look(n, false, burn(n * 60)), Seen::Awake);
    }
    // Awake, but others have the core: no CPU time of its own, whatever the wall says.
    for _ in 0..100 {
        assert_eq!(progress.look(99, false, burn(99 * 60)), Seen::Awake);
    }
    assert_eq!(progress.look(99, true, burn(99 * 60)), Seen::Asleep);
    assert_eq!(progress.look(99, false, burn(99 * 60)), Seen::Awake);
    // A process that is gone has no CPU clock.
    assert_eq!(progress.look(99, false, || None), Seen::Awake);
}

#[test]
fn who_says_it_sleeps_and_burns_is_stalled_too() {
    let mut progress = Progress::default();
    let burn = |ms: u64| move || Some(Duration::from_millis(ms));
    assert_eq!(progress.look(7, true, burn(0)), Seen::Asleep);
    assert_eq!(progress.look(7, true, burn(0)), Seen::Asleep);
    // Looked at more often from here on.
    assert_eq!(progress.look(7, true, burn(10)), Seen::Awake);
    assert_eq!(progress.look(7, true, burn(50)), Seen::Stalled);
}

#[test]
fn a_trip_or_report_restores_nothing_and_a_kill_from_outside_blames_nobody() {
    use command::verbs::{
        CAUSE_EXIT, CAUSE_REPORT, CAUSE_STALL, CAUSE_TRIP, START_FAULT, START_TRIP,
    };
    let trip = ending(None, How::Signal(31));
    assert_eq!(
        (trip.cause, trip.start, trip.death),
        (CAUSE_TRIP, START_TRIP, Death::Breakout)
    );
    let report = ending(Some(CAUSE_REPORT), How::Signal(9));
    assert_eq!(
        (report.cause, report.start, report.blames),
        (CAUSE_REPORT, START_TRIP, false)
    );
    let stall = ending(Some(CAUSE_STALL), How::Signal(9));
    assert_eq!(
        (stall.cause, stall.start, stall.blames),
        (CAUSE_STALL, START_FAULT, true)
    );
    let crash = ending(None, How::Signal(11));
    assert_eq!(
        (crash.cause, crash.start, crash.blames),
        (CAUSE_EXIT, START_FAULT, true)
    );
    let killed = ending(None, How::Signal(9));
    assert_eq!(
        (killed.cause, killed.start, killed.blames),
        (CAUSE_EXIT, START_FAULT, false)
    );
    let unknown = ending(None, How::Unknown);
    assert_eq!(
        (unknown.cause, unknown.start, unknown.blames),
        (CAUSE_EXIT, START_TRIP, false)
    );
}

#[test]
fn limits_wait_for_a_quiet_moment_but_not_long() {
    assert!(limits_are_due(true, 0, 0));
    assert!(!limits_are_due(false, S, S + 49 * MS));
    assert!(limits_are_due(false, S, S + 50 * MS));
}

/// Looks each 10 ms until it hangs, at most 10 minutes: when, ns.
fn silent(silence: &mut Silence, from: u64, spent: impl Fn(u64) -> u64) -> Option<u64> {
    let mut times = (0..60_000).map(|n| from + n * 10 * MS);
    times.find(|now| silence.look(*now, || spent(*now)).0)
}

#[test]
fn who_says_nothing_hangs_soon_without_work_and_late_with() {
    let stopped = silent(&mut Silence::default(), 3 * S, |_| 7).unwrap();
    assert!((14 * S..=18 * S).contains(&(stopped - 3 * S)), "{stopped}");
    let busy = silent(&mut Silence::default(), 3 * S, |now| now / 1000).unwrap();
    assert!((100 * S..=140 * S).contains(&(busy - 3 * S)), "{busy}");
}

#[test]
fn who_goes_on_does_not_hang_and_neither_does_who_was_not_looked_at() {
    let mut silence = Silence::default();
    for n in 0..1000 {
        assert!(!silence.look(n * 5 * S, || 7).0);
        silence.heard();
    }
    // We ourselves stood still for an hour: what came meanwhile is heard in the next turn.
    let now = 5000 * S;
    assert!(!silence.look(now, || 7).0 && !silence.look(now + 3600 * S, || 7).0);
    // Killed once, its successor has as long.
    let first = silent(&mut silence, now + 3601 * S, |_| 7).unwrap();
    let second = silent(&mut silence, first + MS, |_| 7).unwrap();
    assert!(second - first >= 12 * S, "{first} {second}");
}

/// Looks each 10 ms at one heartbeat, for 10 s at most: when it stands still, ms.
fn stands(cpu: impl Fn(u64) -> u64, does: Does) -> Option<u64> {
    let mut standing = Standing::default();
    let mut look = |ms: u64| {
        let spent = || Some(Duration::from_millis(cpu(ms)));
        standing.look(S + ms * MS, (7, false), spent, || does) == Seen::Stalled
    };
    (0..10_000).step_by(10).find(|ms| look(*ms))
}

#[test]
fn an_operator_that_is_held_or_burns_stands_still_and_one_without_a_processor_does_not() {
    let held = stands(|_| 3, Does::Waits).unwrap();
    assert!((1000..1100).contains(&held), "{held}");
    let burns = stands(|ms| ms, Does::Runs).unwrap();
    assert!((2000..2100).contains(&burns), "{burns}");
    let waits = stands(|_| 3, Does::Runs);
    assert_eq!(waits, None, "it waits for a processor");
    let third = stands(|ms| ms / 6, Does::Runs);
    assert_eq!(third, None, "it has a sixth of one");
}

/// A busy host, or a program's quota, is no program's misdeed; it holds others up all the same.
#[test]
fn an_operator_whose_program_lacks_a_processor_has_more_patience_and_not_for_ever() {
    let starved = stands(|_| 3, Does::Hands).unwrap();
    assert!((5000..5100).contains(&starved), "{starved}");
}

#[test]
fn an_operator_that_goes_on_or_sleeps_or_was_not_looked_at_does_not_stand_still() {
    let mut standing = Standing::default();
    let cpu = || Some(Duration::ZERO);
    for n in 0..1000 {
        let goes_on = standing.look(n * 10 * MS, (n, false), cpu, || Does::Waits);
        assert_eq!(goes_on, Seen::Awake);
    }
    for n in 1000..2000 {
        let sleeps = standing.look(n * 10 * MS, (1000, true), cpu, || Does::Waits);
        assert_eq!(sleeps, Seen::Asleep);
    }
    // We ourselves stood still for an hour: what counts of that is little.
    let now = 3600 * S;
    assert_eq!(
        standing.look(now, (1000, false), cpu, || Does::Waits),
        Seen::Awake
    );
    assert_eq!(
        standing.look(2 * now, (1000, false), cpu, || Does::Waits),
        Seen::Awake
    );
}

#[test]
fn one_that_is_stopped_in_its_sleep_stands_still_and_one_that_sleeps_on_does_not() {
    let mut standing = Standing::default();
    let none = || Some(Duration::ZERO);
    let mut look = |ms: u64, does| standing.look(S + ms * MS, (7, true), none, || does);
    for ms in (0..10_000).step_by(40) {
        assert_eq!(look(ms, Does::Waits), Seen::Asleep);
    }
    // For a moment only, as a debugger does.
    assert_eq!(look(10_000, Does::Stopped), Seen::Asleep);
    for ms in (10_040..12_000).step_by(40) {
        assert_eq!(look(ms, Does::Waits), Seen::Asleep);
    }
    let looks = (12_000..20_000).step_by(40);
    let mut stopped = looks.filter(|ms| look(*ms, Does::Stopped) == Seen::Stalled);
    let first = stopped.next().unwrap();
    assert!((12_600..13_300).contains(&first), "{first}");
}

#[test]
fn an_operator_whose_programs_all_end_at_once_says_so_and_is_believed() {
    // Each was taken over, and is gone, in words of their own.
    let burst = |role| {
        let mut words = Bucket::of_words(role);
        (0..).take_while(|_| words.spend(1).is_ok()).count()
    };
    assert!(burst(Role::Operator) >= 2 * PROGRAMS);
    // Nobody else has as much to say.
    assert!(burst(Role::Switch) < PROGRAMS);
    for role in [Role::Operator, Role::Switch, Role::Fabric] {
        let mut words = Bucket::of_words(role);
        let told = (0..20_000).filter(|at| words.spend(*at).is_ok()).count();
        assert!(told < 10_000, "{told}: it talks without end");
    }
}
