//! The process: the supervisor, a front end, a switch, and what goes between them.

use crate::front::{Asked, Front, Over};
use crate::link::{Line, Link, Own, call};
use command::verbs::{AddPort, GuestBroken, GuestCall, PORT_VHOST, Quit, ServeGuest};
use command::{Message, verbs::GUEST_QUEUES};
use guard::guard;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use seqpacket::{Fds, Socket};
use shm::Words;
use std::error::Error;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use vhostuser::Session;

/// Front ends that are connected at a time: one whose queues run, and the one that takes
/// them over, as at a machine's move from one process of its hypervisor to another.
const FRONTS: usize = 2;

/// One NIC's helper.
pub struct Helper {
    control: Socket,
    listener: Option<OwnedFd>,
    serve: ServeGuest,
    fronts: [Option<Served>; FRONTS],
    link: Link,
    /// A front end that was turned away has been spoken of.
    said: bool,
}

/// A front end.
struct Served {
    front: Front,
    session: Session<OwnedFd>,
    own: Own,
}

/// Who has something to say.
struct Ready {
    control: bool,
    listener: bool,
    fronts: [bool; FRONTS],
    switch: bool,
}

impl Helper {
    /// One that knows nobody but the supervisor.
    pub fn new(control: Socket) -> std::io::Result<Helper> {
        let ours = control.as_fd().try_clone_to_owned()?;
        Ok(Helper {
            control,
            listener: None,
            serve: ServeGuest::default(),
            fronts: [const { None }; FRONTS],
            link: Link::new(ours),
            said: false,
        })
    }

    /// Runs until it is told to end, or nobody is left to tell it.
    pub fn run(&mut self) -> Result<(), Box<dyn Error>> {
        // Bound: none; this is the process's loop.
        loop {
            let ready = self.wait()?;
            if ready.control && !self.obey()? {
                return Ok(());
            }
            for place in 0..FRONTS {
                if ready.fronts.get(place) == Some(&true) {
                    self.hear_front(place)?;
                }
            }
            if ready.listener {
                self.accept();
            }
            // Whoever it was that was ready: what the switch says while it is asked something is
            // put aside, and makes nothing readable again.
            if ready.switch || guard!("vhost-hears-aside") {
                self.hear_switch()?;
            }
        }
    }

    fn wait(&self) -> Result<Ready, Errno> {
        let has_room = self.fronts.iter().any(Option::is_none);
        let listener = self.listener.as_ref().filter(|_| has_room);
        let front = |place: usize| {
            let served = self.fronts.get(place)?.as_ref();
            served.map(|served| served.front.as_fd())
        };
        let watched: [Option<BorrowedFd<'_>>; 5] = [
            Some(self.control.as_fd()),
            listener.map(AsFd::as_fd),
            front(0),
            front(1),
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
        let [control, listener, first, second, switch] =
            watched.map(|fd| fd.is_some() && answers.next().unwrap_or(false));
        Ok(Ready {
            control,
            listener,
            fronts: [first, second],
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
            self.link.allow(body.memory);
            self.listener = fds.next();
        } else if let Some(body) = message.body::<AddPort>()
            && body.kind == PORT_VHOST
            && let Some(socket) = fds.next()
        {
            let page = fds.next().and_then(|fd| Words::map_whole(fd).ok());
            self.link.join(Socket::from_fd(socket), page);
            self.tell_again()?;
        }
        Ok(())
    }

    /// Tells a new switch what the one before it knew.
    fn tell_again(&mut self) -> Result<(), Over> {
        let Some(place) = self.link.holder() else {
            return Ok(());
        };
        let Some(Some(served)) = self.fronts.get_mut(place) else {
            return Ok(());
        };
        let mut line = Line {
            link: &mut self.link,
            own: &mut served.own,
            place,
            is_taken: false,
        };
        match served.session.again(&mut line) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.end(place, Over::Unusable)),
        }
    }

    fn accept(&mut self) {
        let place = self.fronts.iter_mut().find(|front| front.is_none());
        let (Some(listener), Some(place)) = (&self.listener, place) else {
            return;
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        if let Ok(socket) = accept_with(listener, flags) {
            *place = Some(Served {
                front: Front::new(socket),
                session: Session::new(self.serve.pairs.max(1), self.serve.features),
                own: Own::default(),
            });
        }
    }

    /// A request, if one has come whole. The next has its turn after all others who have
    /// something to say: one may take its time.
    fn hear_front(&mut self, place: usize) -> Result<(), Over> {
        let others = self.fronts.iter().enumerate();
        let runs = |(at, front): (usize, &Option<Served>)| {
            at != place && front.as_ref().is_some_and(|served| served.session.runs())
        };
        let is_taken = others.into_iter().any(runs);
        let Some(Some(served)) = self.fronts.get_mut(place) else {
            return Ok(());
        };
        let mut line = Line {
            link: &mut self.link,
            own: &mut served.own,
            place,
            is_taken,
        };
        let heard = match served.front.next() {
            Ok(None) => return Ok(()),
            Ok(Some(asked)) => answer(&served.front, &mut served.session, &mut line, asked),
            Err(over) => Err(over),
        };
        match heard {
            Ok(()) => Ok(()),
            Err(Over::Closed) => {
                self.leave(place);
                Ok(())
            }
            Err(over) => self.cut(place, over),
        }
    }

    /// Cuts a front end off. Where another has the interface, that one stays.
    fn cut(&mut self, place: usize, over: Over) -> Result<(), Over> {
        let holder = self.link.holder();
        if holder.is_none_or(|holder| holder == place) {
            return Err(self.end(place, over));
        }
        // Once is enough: what nobody reads would make us wait.
        if !std::mem::replace(&mut self.said, true) {
            confine::say!("bulkhead-vhost: {over}");
        }
        self.leave(place);
        Ok(())
    }

    /// Cuts the front end off that has the interface, or nobody has. This process ends with
    /// it: what it says then stands in the supervisor's log, and the next front end waits
    /// for the next helper.
    fn end(&mut self, place: usize, over: Over) -> Over {
        self.leave(place);
        self.link.forget();
        over
    }

    /// Forgets a front end.
    fn leave(&mut self, place: usize) {
        // The switch unmaps before the front end can see that it is disconnected.
        self.link.leave(place);
        if let Some(front) = self.fronts.get_mut(place) {
            *front = None;
        }
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
                        let place = self.link.holder().unwrap_or(0);
                        return Err(self.end(place, Over::broken(body.reason)));
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

    /// Calls the drivers of queues.
    fn call(&self, queues: u32) {
        let holder = self.link.holder().and_then(|place| self.fronts.get(place));
        let Some(Some(served)) = holder else {
            return;
        };
        for queue in (0..GUEST_QUEUES).filter(|n| queues >> n & 1 == 1) {
            if let Some(fd) = served.own.caller(queue) {
                call(fd);
            }
        }
    }
}

fn answer(
    front: &Front,
    session: &mut Session<OwnedFd>,
    line: &mut Line<'_>,
    asked: Asked,
) -> Result<(), Over> {
    let reply = session.handle(line, asked.header, &asked.payload, asked.fds);
    let over = line.own.over.take();
    let answered = match reply {
        _ if over.as_ref().is_some_and(|over| !over.is_answered()) => Ok(()),
        Ok(Some(reply)) => front.answer(&reply.bytes, reply.fd.as_ref().map(AsFd::as_fd)),
        Ok(None) => Ok(()),
        Err(fault) => Err(fault.into()),
    };
    over.map_or(answered, Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use command::verbs::{GuestDone, GuestMap};
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::net::{AddressFamily, SocketType, socketpair};
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(5);

    /// A helper whose first front end is the test, which is the switch and the supervisor too.
    fn served() -> (Helper, Front, [Socket; 2]) {
        let (control, supervisor) = Socket::pair().unwrap();
        let mut helper = Helper::new(control).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::STREAM;
        let (theirs, ours) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        helper.fronts[0] = Some(Served {
            front: Front::new(theirs),
            session: Session::new(1, u64::MAX),
            own: Own::default(),
        });
        let (link, switch) = Socket::pair().unwrap();
        helper.link.join(link, None);
        helper.link.allow(1);
        (helper, Front::new(ours), [switch, supervisor])
    }

    /// A request: its number, its words, and what comes beside it.
    fn ask(front: &Front, request: u32, words: &[u64], fd: &OwnedFd) {
        let mut bytes = Vec::new();
        for word in [request, 1, 8 * words.len() as u32] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        front.answer(&bytes, Some(fd.as_fd())).unwrap();
    }

    const SET_MEM_TABLE: u32 = 5;
    const SET_VRING_CALL: u32 = 13;

    fn called(bell: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        let read = rustix::io::read(bell, &mut count);
        read.map_or(0, |_| u64::from_ne_bytes(count))
    }

    fn bell() -> OwnedFd {
        eventfd(0, EventfdFlags::NONBLOCK).unwrap()
    }

    fn soon(what: impl Fn() -> bool) -> bool {
        let end = std::time::Instant::now() + SOON;
        while !what() {
            if std::time::Instant::now() > end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    #[test]
    fn what_a_switch_says_before_it_answers_is_heard() {
        let (mut helper, front, [switch, _supervisor]) = served();
        let (bell, memory) = (bell(), shm::memory_file("memory", 4096).unwrap());
        ask(&front, SET_VRING_CALL, &[0], &bell);
        helper.hear_front(0).unwrap();
        ask(&front, SET_MEM_TABLE, &[1, 0, 4096, 0, 0], &memory);
        std::thread::spawn(move || {
            let _ = helper.run();
        });
        let (message, _) = switch.recv_wait(SOON).unwrap().unwrap();
        assert!(message.body::<GuestMap>().is_some());
        let say = |seq, body: Message| {
            switch.send(&Message { seq, ..body }, &[]).unwrap();
        };
        let (queues, reserved) = (1, 0);
        say(0, Message::new(0, &GuestCall { queues, reserved }));
        say(message.seq, Message::new(0, &GuestDone::default()));
        // Nothing else comes from anybody.
        assert!(soon(|| called(&bell) == 1));
    }

    #[test]
    fn whoever_says_what_calls_its_driver_has_it_called() {
        let (mut helper, front, _others) = served();
        helper.link.lost();
        let (bell, memory) = (bell(), shm::memory_file("memory", 4096).unwrap());
        // Nobody ran its queues yet.
        ask(&front, SET_VRING_CALL, &[0], &bell);
        helper.hear_front(0).unwrap();
        assert_eq!(called(&bell), 0);
        // The helper before this one may have been told to call, and died.
        ask(&front, SET_MEM_TABLE, &[1, 0, 4096, 0, 0], &memory);
        helper.hear_front(0).unwrap();
        ask(&front, SET_VRING_CALL, &[0], &bell);
        helper.hear_front(0).unwrap();
        assert_eq!(called(&bell), 1);
    }

    #[test]
    fn a_call_that_nobody_hears_makes_nobody_wait() {
        // Full, and who writes more waits.
        let full = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let (done, waits) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            call(full.as_fd());
            let _ = done.send(());
        });
        assert_eq!(waits.recv_timeout(Duration::from_secs(5)), Ok(()));
        let heard = eventfd(0, EventfdFlags::empty()).unwrap();
        call(heard.as_fd());
        let mut count = [0; 8];
        rustix::io::read(&heard, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
    }
}
