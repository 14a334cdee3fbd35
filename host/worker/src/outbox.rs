//! What the supervisor is told, also while it does not read.

use command::Message;
use seqpacket::{Error, Socket};
use std::collections::VecDeque;

/// Kept beyond what the slots account for: answers, reports.
pub(crate) const SPARE: usize = 64;
/// How often a full socket is tried again, ns. It is not waited for: a seqpacket socket
/// says that it is writable before a whole message fits.
pub(crate) const RETRY_NS: u64 = 10_000_000;

/// Messages that the control socket had no room for, in their order.
pub struct Outbox {
    pub(crate) waiting: VecDeque<Message>,
    most: usize,
}

impl Outbox {
    /// For a worker with so many slots.
    pub fn new(slots: usize) -> Outbox {
        let mut outbox = Outbox {
            waiting: VecDeque::new(),
            most: 0,
        };
        outbox.allow(slots);
        outbox
    }

    /// It has so many slots: each can close once and ask for a new channel once before
    /// the supervisor has to answer. Its room is whole from here on: what a channel does
    /// is told without asking for memory.
    pub fn allow(&mut self, slots: usize) {
        self.most = 2 * slots + SPARE;
        self.waiting
            .reserve_exact(self.most.saturating_sub(self.waiting.len()));
    }

    /// Tells the supervisor; never waits for it.
    pub fn say(&mut self, control: &Socket, message: Message) {
        self.flush(control);
        let sent = self.waiting.is_empty() && control.send(&message, &[]).is_ok();
        if !sent && self.waiting.len() < self.most {
            self.waiting.push_back(message);
        }
    }

    /// Sends what the socket has room for. Nobody at the other end: forgets all.
    pub fn flush(&mut self, control: &Socket) {
        while let Some(message) = self.waiting.front() {
            match control.send(message, &[]) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(Error::Closed) => self.waiting.clear(),
                Err(_) => return,
            }
        }
    }

    /// How long to sleep at most, where it would be so long (`None` = for ever).
    pub fn patience(&self, limit: Option<u64>) -> Option<u64> {
        match self.waiting.is_empty() {
            true => limit,
            false => Some(limit.map_or(RETRY_NS, |limit| limit.min(RETRY_NS))),
        }
    }
}
