use super::*;
use proptest::prelude::*;

const S: Nanos = 1_000_000_000;

/// The same account for whoever asks.
#[derive(Debug)]
struct One(Arc<Account>);

impl Accounts for One {
    fn account(&self, _: u32, _: Way, _: &Rate, _: Nanos) -> Arc<Account> {
        Arc::clone(&self.0)
    }
}

fn meters(rate: &Rate, workers: u32) -> Vec<TenantMeter> {
    let accounts: Arc<dyn Accounts> = Arc::new(One(Arc::new(Account::new(rate, 0, true))));
    let meter = |worker| {
        let accounts = Arc::clone(&accounts);
        let among = Among { accounts, worker };
        TenantMeter::adopt(None, (1, Way::From), rate, 0, Some(&among))
    };
    (0..workers).map(meter).collect()
}

fn rate(bytes: u64, packets: u64) -> Rate {
    Rate {
        bytes,
        burst: 1,
        packets,
    }
}

/// A turn of a worker that has frames without end; how many it sent, and when it goes on.
fn turn(meter: &mut TenantMeter, rate: &Rate, now: Nanos, frame: u64) -> (u64, Nanos) {
    let mut sent = 0;
    while sent < 64 && meter.is_free(now, rate) {
        meter.charge(rate, frame, 1);
        sent += 1;
    }
    let next = meter.free_at(rate).max(now + 5_000);
    meter.settle();
    (sent, next)
}

/// Workers that want all they can have, each so late whenever it waited; what each sent.
/// Never is more sent than there can be.
fn run(rate: &Rate, frame: u64, late: &[Nanos], end: Nanos) -> Vec<u64> {
    let mut meters = meters(rate, late.len() as u32);
    let mut due = vec![0; late.len()];
    let mut sent = vec![0; late.len()];
    loop {
        let (who, now) = due.iter().copied().enumerate().min_by_key(|d| d.1).unwrap();
        if now > end {
            return sent;
        }
        let (frames, next) = turn(&mut meters[who], rate, now, frame);
        sent[who] += frames;
        due[who] = if next > now + 5_000 {
            next + late[who]
        } else {
            next
        };
        let earned =
            |rate: u64, burst: u64| burst + (u128::from(now) * u128::from(rate) / SECOND) as u64;
        let all: u64 = sent.iter().sum();
        // Whoever has something may send one frame more than that.
        let most = late.len() as u64;
        if rate.bytes != 0 {
            assert!(all * frame <= earned(rate.bytes, byte_burst(rate)) + most * frame);
        }
        if rate.packets != 0 {
            assert!(all <= earned(rate.packets, packet_burst(rate.packets)) + most);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_workers_together_have_the_rate_and_never_more(
        bytes in prop::sample::select(vec![125_000u64, 2_000_000, 125_000_000, 2_500_000_000]),
        frame in prop::sample::select(vec![64u64, 1514, 65_000]),
        late in prop::collection::vec(0u64..2_000_000, 1..8),
    ) {
        let rate = rate(bytes, 0);
        // At high rates the smallest are more than 64 each 5 us.
        let frame = frame.max(bytes / 2_000_000);
        let all: u64 = run(&rate, frame, &late, S / 2).iter().sum::<u64>() * frame;
        // What is owed, held or waited for at the end.
        let slack = (1 + late.len() as u64) * frame + bytes / 100;
        prop_assert!(all + slack >= bytes / 2, "{all} of {}", bytes / 2);
    }

    #[test]
    fn packets_are_counted_as_bytes_are(
        packets in prop::sample::select(vec![100u64, 10_000, 3_000_000]),
        late in prop::collection::vec(0u64..2_000_000, 1..5),
    ) {
        let rate = rate(2_500_000_000, packets);
        let all: u64 = run(&rate, 64, &late, S / 2).iter().sum();
        let slack = 64 + packets / 50;
        prop_assert!(all + slack >= packets / 2, "{all} of {}", packets / 2);
    }
}

#[test]
fn each_who_waits_has_its_turn_however_late_it_comes() {
    let rate = rate(12_500_000, 0);
    for late in [[0, 0, 0], [0, 300_000, 1_000_000], [9_000_000, 10_000, 0]] {
        let sent = run(&rate, 1514, &late, 4 * S);
        let all: u64 = sent.iter().sum();
        // A third each.
        assert!(
            sent.iter().all(|one| one * 10 >= all * 3),
            "{late:?}: {sent:?}"
        );
    }
}

#[test]
fn who_waited_and_is_gone_keeps_nobody_from_anything() {
    let rate = rate(12_500_000, 0);
    let mut meters = meters(&rate, 2);
    let mut gone = meters.remove(1);
    // It had the account empty, and waits.
    while turn(&mut gone, &rate, 0, 1514).0 != 0 {}
    let (mut now, mut sent) = (0, 0);
    while now < S {
        let (frames, next) = turn(&mut meters[0], &rate, now, 1514);
        sent += frames * 1514;
        now = next;
    }
    assert!(sent >= rate.bytes * 97 / 100, "{sent}");
}

#[test]
fn what_is_not_used_is_the_others_and_what_is_owed_too() {
    let rate = rate(1_000_000, 0);
    let mut meters = meters(&rate, 2);
    let burst = byte_burst(&rate);
    // A look costs nothing.
    assert!(meters[0].is_free(0, &rate));
    meters[0].settle();
    assert_eq!(
        meters[1]
            .share
            .as_ref()
            .unwrap()
            .account
            .bytes
            .left(0, false),
        burst as i64
    );
    // One owes a large frame: the other waits until that is paid.
    assert!(meters[0].is_free(0, &rate));
    meters[0].charge(&rate, burst + 64_000, 1);
    meters[0].settle();
    assert!(!meters[1].is_free(1, &rate));
    let free = meters[1].free_at(&rate);
    assert!((64_000_000..67_000_000).contains(&free), "{free}");
    assert!(!meters[1].is_free(63_900_000, &rate));
    assert!(meters[1].is_free(free, &rate));
}

#[test]
fn who_was_idle_for_years_finds_a_full_account() {
    let rate = rate(125_000_000_000, 0);
    let account = Account::new(&rate, 0, true);
    let year = 365 * 86_400 * S;
    for age in [S, year, 3 * year, 4 * year] {
        let cap = account.bytes.cap(false);
        assert_eq!(account.bytes.left(age, false), cap, "{age}");
        assert!(account.bytes.take(age, false, 1_000) == 1_000);
    }
}

#[test]
fn threads_that_take_at_the_same_time_take_nothing_twice() {
    let rate = rate(1_000_000_000, 0);
    let clock = AtomicU64::new(0);
    let end = S / 5;
    let sent: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = meters(&rate, 4)
            .into_iter()
            .map(|mut meter| {
                let (clock, rate) = (&clock, &rate);
                scope.spawn(move || {
                    let mut sent = 0;
                    loop {
                        let now = clock.fetch_add(1_000, Relaxed);
                        if now > end {
                            return sent;
                        }
                        sent += turn(&mut meter, rate, now, 1514).0;
                    }
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    let earned = byte_burst(&rate) + rate.bytes / 5;
    let all = sent * 1514;
    assert!(all <= earned + 5 * 1514, "{all} of {earned}");
    // One that has no core may keep its turn for a while.
    assert!(all * 2 >= earned, "{all} of {earned}");
}
