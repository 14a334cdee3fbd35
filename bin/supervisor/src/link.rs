//! Sending without blocking: what a peer does not take now waits in a queue.

use command::Message;
use command::verbs::{AddPort, RemovePort};
use guard::guard;
use seqpacket::{Error, Socket};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

/// A descriptor with several owners in this process.
pub type Shared = Rc<OwnedFd>;

/// Messages queued for one peer, at most; a peer that lets more pile up is dead. Of
/// descriptors there are as many as its slots need: see [`Link::send`].
const LONGEST: usize = 16_384;
/// A peer that takes nothing of what waits for it so long is deaf, ns.
const DEAF: u64 = 1_000_000_000;

/// A socket and what waits to be sent on it.
#[derive(Debug)]
pub struct Link {
    socket: Socket,
    queue: VecDeque<(Message, Vec<Shared>)>,
    /// Since when nothing of the queue was taken, ns.
    stuck: Option<u64>,
    /// What was to go with ports that are unplugged.
    unplugged: Vec<Shared>,
}

impl Link {
    /// Over this socket.
    pub fn new(socket: Socket) -> Link {
        Link {
            socket,
            queue: VecDeque::new(),
            stuck: None,
            unplugged: Vec::new(),
        }
    }

    /// Sends now, or as soon as the peer takes it. `false`: the peer is gone, or so
    /// far behind that it counts as gone.
    ///
    /// A port that is unplugged before the peer was told of it takes that message, and
    /// its descriptors, out of the queue ([`Link::unplugged`]): in it is at most one port a slot.
    pub fn send(&mut self, message: &Message, fds: Vec<Shared>) -> bool {
        if self.queue.is_empty() {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
            match self.socket.send(message, &borrowed) {
                Ok(()) => return true,
                Err(Error::Full) => {}
                Err(_) => return false,
            }
        }
        if let Some(RemovePort { slot }) = message.body()
            && guard!("link-removed")
        {
            let unplugged = &mut self.unplugged;
            self.queue.retain_mut(|(queued, fds)| {
                let stays = slot_of(queued) != Some(slot);
                if !stays {
                    unplugged.append(fds);
                }
                stays
            });
        }
        if self.queue.len() >= LONGEST {
            return false;
        }
        self.queue.push_back((*message, fds));
        true
    }

    /// Sends what waits; whether something still does.
    pub fn flush(&mut self, now: u64) -> bool {
        while let Some((message, fds)) = self.queue.front() {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
            match self.socket.send(message, &borrowed) {
                Err(Error::Full) => {
                    self.stuck.get_or_insert(now);
                    return true;
                }
                // Gone: its death is handled where it is seen, and what waited for it there.
                Err(_) => break,
                Ok(()) => {
                    self.queue.pop_front();
                    self.stuck = None;
                }
            }
        }
        self.stuck = None;
        false
    }

    /// Whether the peer takes nothing any more of what waits for it.
    pub fn is_deaf(&self, now: u64) -> bool {
        guard!("link-deaf")
            && self
                .stuck
                .is_some_and(|since| now.saturating_sub(since) >= DEAF)
    }

    /// Nothing is sent any more: its peer is killed, or dead. What waited, and nobody else here has: of a
    /// pair of sockets the other end may have written to it.
    pub fn give_up(&mut self) -> Vec<OwnedFd> {
        self.stuck = None;
        let fds = self.queue.drain(..).flat_map(|(_, fds)| fds);
        fds.filter_map(Rc::into_inner).collect()
    }

    /// What the queue had of ports that were unplugged, and nobody else here has: as of [`Link::give_up`].
    pub fn unplugged(&mut self) -> Vec<OwnedFd> {
        let fds = self.unplugged.drain(..);
        fds.filter_map(Rc::into_inner).collect()
    }

    /// Sends now or not at all; whether it did.
    pub fn send_now(&self, message: &Message, fd: BorrowedFd<'_>) -> bool {
        self.queue.is_empty() && self.socket.send(message, &[fd]).is_ok()
    }

    /// Messages that wait.
    pub fn backlog(&self) -> usize {
        self.queue.len()
    }

    /// The socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The slot that a message plugs or unplugs.
fn slot_of(message: &Message) -> Option<u32> {
    let plugs = message.body::<AddPort>().map(|body| body.slot);
    plugs.or_else(|| message.body::<RemovePort>().map(|body| body.slot))
}

#[cfg(test)]
mod tests {
    use super::*;
    use command::verbs::UseImage;

    /// A link whose peer reads nothing, full to the brim; and that peer.
    fn full() -> (Link, Socket) {
        let (ours, theirs) = Socket::pair().unwrap();
        let mut link = Link::new(ours);
        while link.backlog() == 0 {
            assert!(link.send(&Message::new(0, &UseImage::default()), Vec::new()));
        }
        (link, theirs)
    }

    fn plug(slot: u32) -> Message {
        Message::new(
            0,
            &AddPort {
                slot,
                ..AddPort::default()
            },
        )
    }

    #[test]
    fn a_port_that_nobody_heard_of_leaves_nothing_in_the_queue() {
        let (mut link, _peer) = full();
        let fd: Shared = Rc::new(std::fs::File::open("/dev/null").unwrap().into());
        assert!(link.send(&plug(7), vec![Rc::clone(&fd)]));
        for _ in 0..100 {
            assert!(link.send(&plug(3), vec![Rc::clone(&fd); 6]));
            assert!(link.send(&Message::new(0, &RemovePort { slot: 3 }), Vec::new()));
        }
        // Another slot's waits on; of this one that it is to be unplugged, once.
        assert_eq!(link.backlog(), 3);
        link.unplugged();
        assert_eq!(Rc::strong_count(&fd), 2);
        // What nobody else has is for who asks.
        let alone = Rc::new(std::fs::File::open("/dev/null").unwrap().into());
        assert!(link.send(&plug(3), vec![fd, alone]));
        assert!(link.send(&Message::new(0, &RemovePort { slot: 3 }), Vec::new()));
        assert_eq!(link.unplugged().len(), 1);
    }

    #[test]
    fn who_takes_nothing_for_a_second_is_deaf_and_who_takes_something_is_not() {
        let (mut link, peer) = full();
        assert!(link.flush(5) && !link.is_deaf(5 + DEAF - 1));
        assert!(link.flush(5 + DEAF) && link.is_deaf(5 + DEAF));
        // It reads: what waited is sent, and the next waits from then on.
        while peer.recv().unwrap().is_some() {}
        assert!(!link.flush(6 + DEAF) && !link.is_deaf(6 + 9 * DEAF));
    }
}
