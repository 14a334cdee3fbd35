//! The page in which a meter says that it goes on, for the supervisor.

use shm::Words;
use std::io;
use std::os::fd::OwnedFd;
use telemetry::circuits::{PULSE_ASLEEP, PULSE_BYTES, PULSE_HEARTBEAT};

/// That page, once it is there.
#[derive(Default)]
pub struct Pulse(Option<Words>);

impl Pulse {
    /// Says it in this page from now on.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub fn use_page(&mut self, page: &OwnedFd) -> io::Result<()> {
        self.0 = Some(Words::map(page, PULSE_BYTES)?);
        Ok(())
    }

    /// A piece of work is done.
    pub fn beats(&self) {
        if let Some(words) = &self.0 {
            words.add(PULSE_HEARTBEAT, 1);
        }
    }

    /// There is none.
    pub fn sleeps(&self) {
        if let Some(words) = &self.0 {
            words.store(PULSE_ASLEEP, 1);
        }
    }

    /// There is some again.
    pub fn wakes(&self) {
        if let Some(words) = &self.0 {
            words.store(PULSE_ASLEEP, 0);
        }
        self.beats();
    }
}
