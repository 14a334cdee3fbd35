//! The accounts that workers have together: found by each when an image comes, and then
//! kept by it. No frame waits for the lock.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use switch::{Account, Accounts, Way};

/// Those that somebody keeps.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Vec<(u32, Way, Weak<Account>)>>);

impl Accounts for Ledger {
    fn account(
        &self,
        tenant: u32,
        way: Way,
        rate: &image::compartment::Rate,
        now: u64,
    ) -> Arc<Account> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, _, account)| account.strong_count() > 0);
        let of = |(id, of, _): &&(u32, Way, Weak<Account>)| (*id, *of) == (tenant, way);
        let mut found = all
            .iter()
            .filter(of)
            .filter_map(|(_, _, account)| account.upgrade());
        if let Some(account) = found.find(|account| account.rate() == rate) {
            return account;
        }
        // A rate that is changed again and again is no way to a full account each time.
        let full = !all.iter().any(|one| of(&one));
        let account = Arc::new(Account::new(rate, now, full));
        all.push((tenant, way, Arc::downgrade(&account)));
        account
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::compartment::Rate;

    #[test]
    fn all_who_ask_for_the_same_have_the_same() {
        let ledger = Ledger::default();
        let rate = |bytes| Rate {
            bytes,
            burst: 1,
            packets: 0,
        };
        let of = |tenant, way, bytes| ledger.account(tenant, way, &rate(bytes), 0);
        let one = of(1, Way::From, 1_000);
        assert!(Arc::ptr_eq(&one, &of(1, Way::From, 1_000)));
        for other in [
            of(2, Way::From, 1_000),
            of(1, Way::To, 1_000),
            of(1, Way::From, 2_000),
        ] {
            assert!(!Arc::ptr_eq(&one, &other));
        }
        // Of those that nobody keeps nothing is left.
        assert_eq!(ledger.0.lock().unwrap().len(), 4);
        drop(of(3, Way::To, 1));
        assert_eq!(ledger.0.lock().unwrap().len(), 2);
    }
}
