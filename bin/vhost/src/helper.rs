//! The process: the supervisor, a front end, a switch, and what goes between them.

use crate::front::{Asked, Front, Over};
use crate::link::Link;
use command::verbs::{AddPort, GuestBroken, GuestCall, PORT_VHOST, Quit, ServeGuest};
use command::{Message, verbs::GUEST_QUEUES};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use seqpacket::{Fds, Socket};
use shm::Words;
use std::error::Error;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use vhostuser::Session;

/// One NIC's helper.
pub struct Helper {
    control: Socket,
    listener: Option<OwnedFd>,
    serve: ServeGuest,
    front: Option<(Front, Session<OwnedFd>)>,
    link: Link,
}

/// Who has something to say.
struct Ready {
    control: bool,
    listener: bool,
    front: bool,
    switch: bool,
}

impl Helper {
    /// One that knows nobody but the supervisor.
    pub fn new(control: Socket) -> Helper {
        Helper {
            control,
            listener: None,
            serve: ServeGuest::default(),
            front: None,
            link: Link::new(),
        }
    }

    /// Runs until it is told to end, or nobody is left to tell it.
    pub fn run(&mut self) -> Result<(), Box<dyn Error>> {
        // Bound: none; this is the process's loop.
        loop {
            let ready = self.wait()?;
            if ready.control && !self.obey()? {
                return Ok(());
            }
            if ready.switch {
                self.hear_switch()?;
            }
            if ready.front {
                self.hear_front()?;
            }
            if ready.listener {
                self.accept();
            }
        }
    }

    fn wait(&self) -> Result<Ready, Errno> {
        let listener = self.listener.as_ref().filter(|_| self.front.is_none());
        let watched: [Option<BorrowedFd<'_>>; 4] = [
            Some(self.control.as_fd()),
            listener.map(AsFd::as_fd),
            self.front.as_ref().map(|(front, _)| front.as_fd()),
            self.link.socket().map(AsFd::as_fd),
        ];
        let mut polled: Vec<PollFd<'_>> = watched
            .iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
            .collect();
        match poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let mut answers = polled.iter().map(|fd| !fd.revents().is_empty());
        let [control, listener, front, switch] =
            watched.map(|fd| fd.is_some() && answers.next().unwrap_or(false));
        Ok(Ready {
            control,
            listener,
            front,
            switch,
        })
    }

    /// What the supervisor says; `false`: the end.
    fn obey(&mut self) -> Result<bool, Box<dyn Error>> {
        loop {
            match self.control.recv() {
                Ok(None) => return Ok(true),
                Ok(Some((message, _))) if message.body::<Quit>().is_some() => return Ok(false),
                Ok(Some((message, fds))) => self.take(&message, fds)?,
                Err(seqpacket::Error::Closed) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn take(&mut self, message: &Message, fds: Fds) -> Result<(), Over> {
        let mut fds = fds.into_iter();
        if let Some(body) = message.body::<ServeGuest>() {
            self.serve = body;
            self.listener = fds.next();
        } else if let Some(body) = message.body::<AddPort>()
            && body.kind == PORT_VHOST
            && let Some(socket) = fds.next()
        {
            let page = fds.next().and_then(|fd| Words::map_whole(fd).ok());
            self.link.join(Socket::from_fd(socket), page);
            if let Some((_, session)) = &mut self.front
                && session.again(&mut self.link).is_err()
            {
                return Err(self.end(Over::Unusable));
            }
        }
        Ok(())
    }

    fn accept(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        if let Ok(socket) = accept_with(listener, flags) {
            let session = Session::new(self.serve.pairs.max(1), self.serve.features);
            self.front = Some((Front::new(socket), session));
        }
    }

    /// Requests that have come whole. Bound: what the socket holds.
    fn hear_front(&mut self) -> Result<(), Over> {
        loop {
            let Some((front, session)) = &mut self.front else {
                return Ok(());
            };
            let heard = match front.next() {
                Ok(None) => return Ok(()),
                Ok(Some(asked)) => answer(front, session, &mut self.link, asked),
                Err(over) => Err(over),
            };
            match heard {
                Ok(()) => {}
                Err(Over::Closed) => {
                    self.leave();
                    return Ok(());
                }
                Err(over) => return Err(self.end(over)),
            }
        }
    }

    /// Cuts the front end off. This process ends with it: what it says then stands in the
    /// supervisor's log, and the next front end waits for the next helper.
    fn end(&mut self, over: Over) -> Over {
        self.leave();
        over
    }

    /// Forgets a front end.
    fn leave(&mut self) {
        // The switch unmaps before the front end can see that it is disconnected.
        self.link.forget();
        self.front = None;
    }

    /// What the switch says unasked. Bound: what the socket holds.
    fn hear_switch(&mut self) -> Result<(), Over> {
        loop {
            let Some(socket) = self.link.socket() else {
                return Ok(());
            };
            match socket.recv() {
                Ok(None) => return Ok(()),
                Ok(Some((message, _))) => {
                    if let Some(body) = message.body::<GuestCall>() {
                        self.call(body.queues);
                    } else if let Some(body) = message.body::<GuestBroken>() {
                        return Err(self.end(Over::broken(body.reason)));
                    }
                }
                Err(seqpacket::Error::Malformed(_)) => {}
                Err(_) => {
                    self.link.lost();
                    return Ok(());
                }
            }
        }
    }

    /// Calls drivers: writes a one to what they handed over. Where that waits, this
    /// process does, and nobody else's.
    fn call(&self, queues: u32) {
        for queue in (0..GUEST_QUEUES).filter(|n| queues >> n & 1 == 1) {
            if let Some(fd) = self.link.caller(queue) {
                let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
            }
        }
    }
}

fn answer(
    front: &Front,
    session: &mut Session<OwnedFd>,
    link: &mut Link,
    asked: Asked,
) -> Result<(), Over> {
    let bytes = session.handle(link, asked.header, &asked.payload, asked.fds)?;
    match bytes {
        Some(bytes) => front.answer(&bytes),
        None => Ok(()),
    }
}
