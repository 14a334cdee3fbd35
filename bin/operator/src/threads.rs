//! Threads that were opened, kept for their next calls.

use crate::place;
use notify::{Listener, Notification, OpenError, Target};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Threads that are kept at most.
const MOST: usize = 256;

/// Threads by their number.
#[derive(Default)]
pub struct Targets(BTreeMap<u32, Rc<Target>>);

impl Targets {
    /// The thread that makes a call. `Ok(None)`: nobody waits for it any more.
    ///
    /// One that was kept may have ended, and its number be another's: whoever takes a
    /// descriptor of it is told so by the kernel, and asks [`Targets::anew`].
    pub fn of(
        &mut self,
        call: &Notification,
        listener: &Listener,
    ) -> Result<Option<Rc<Target>>, OpenError> {
        match self.0.get(&call.thread) {
            Some(target) => Ok(Some(Rc::clone(target))),
            None => self.anew(call, listener),
        }
    }

    /// The same, opened now.
    pub fn anew(
        &mut self,
        call: &Notification,
        listener: &Listener,
    ) -> Result<Option<Rc<Target>>, OpenError> {
        self.0.remove(&call.thread);
        let target = Rc::new(Target::open(call.thread)?);
        // Only if it still waits it is its thread that was opened.
        if !listener.is_live(call.id) {
            return Ok(None);
        }
        if self.0.len() >= MOST {
            // Whoever still calls is opened again.
            self.0.clear();
        }
        self.0.insert(call.thread, Rc::clone(&target));
        Ok(Some(target))
    }

    /// Where a thread has a descriptor whose call was served just now, by another descriptor of its: it is
    /// the one that is kept.
    pub fn place(&self, thread: u32, number: u32) -> u64 {
        match self.0.get(&thread) {
            Some(target) => place::of(target, number),
            None => place::of_thread(thread, number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    fn call(thread: u32) -> Notification {
        Notification {
            id: 1,
            thread,
            number: 0,
            arch: 0,
            arguments: [0; 6],
        }
    }

    #[test]
    fn nobody_is_kept_whose_call_is_over() {
        let sizes = notify::Sizes::of_kernel().unwrap();
        let nowhere = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::empty());
        let listener = Listener::new(nowhere.unwrap(), sizes);
        let mut targets = Targets::default();
        let own = rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .cast_unsigned();
        assert!(targets.of(&call(own), &listener).unwrap().is_none());
        assert!(targets.0.is_empty());
        assert_eq!(targets.of(&call(0), &listener).err(), Some(OpenError::Gone));
    }

    #[test]
    fn a_thread_that_ended_gives_no_descriptor() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let target = Target::open(child.id()).unwrap();
        assert!(target.take(0).is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(target.take(0).err(), Some(Errno::SRCH));
    }
}
