//! Rates toward a tenant that several workers keep together.

use super::Shaper;
use crate::account::{Accounts, Among};
use std::sync::Arc;

impl Shaper {
    /// Keeps tenants' rates in accounts with the other workers, from the next image on.
    pub fn share(&mut self, accounts: Arc<dyn Accounts>) {
        let worker = self.workers.this();
        self.among = Some(Among { accounts, worker });
    }

    /// The end of a turn: what was taken of shared rates and not used is others' again.
    pub fn settle(&mut self) {
        if self.among.is_some() {
            let tenants = self.tenants.iter_mut();
            tenants.for_each(|tenant| tenant.meter.settle());
        }
    }
}
