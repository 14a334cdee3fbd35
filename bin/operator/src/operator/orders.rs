//! What the supervisor says, and what it is told.

use super::*;

impl Operator {
    /// Says something to the supervisor now, or when it has read what it was told before.
    pub(super) fn say<B: command::Body>(&mut self, body: &B) -> Result<(), seqpacket::Error> {
        self.unsaid.push_back(Message::new(0, body));
        self.flush()
    }

    pub(super) fn flush(&mut self) -> Result<(), seqpacket::Error> {
        while let Some(message) = self.unsaid.front() {
            match self.control.send(message, &[]) {
                Ok(()) => drop(self.unsaid.pop_front()),
                Err(seqpacket::Error::Full) if guard!("operator-unsaid") => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Says that a container is not taken: its runtime does not hear of it. Once for each reason, while it is
    /// not heard.
    pub(super) fn refuses(&mut self, slot: u32, why: u32) -> Result<(), seqpacket::Error> {
        let of = |it: &Message| {
            it.body::<ContainerRefused>()
                .is_some_and(|it| (it.slot, it.why) == (slot, why))
        };
        if self.unsaid.iter().any(of) {
            return Ok(());
        }
        self.say(&ContainerRefused { slot, why })
    }

    /// What the supervisor says, some of it: programs have their turns too. `false`: the end.
    pub(super) fn obey(&mut self) -> Result<bool, Box<dyn Error>> {
        for _ in 0..SAYINGS {
            match self.control.recv() {
                Ok(None) => return Ok(true),
                Ok(Some((message, _))) if message.body::<Quit>().is_some() => return Ok(false),
                Ok(Some((message, fds))) => self.take(&message, fds)?,
                Err(seqpacket::Error::Closed) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    pub(super) fn take(&mut self, message: &Message, fds: Fds) -> Result<(), Box<dyn Error>> {
        if let Some(body) = message.body::<UseImage>() {
            match worker::compartment(&body, fds) {
                Ok(image) => {
                    // Who does not say that all are told of is a supervisor of the release before.
                    self.is_told |= self.image.is_some();
                    self.mediator.use_image(image);
                    self.image = Some(body.epoch);
                    (self.cutting, self.is_late) = (None, false);
                    self.want_meter()?;
                }
                // The one before decides on, and nothing is said of this one, which the switch
                // has taken: the supervisor does not wait for ever.
                Err(why) => {
                    confine::say!("bulkhead-operator: no image: {why}");
                    return Ok(());
                }
            }
            return self.says_what_decides();
        }
        if let Some(body) = message.body::<AddCrossing>() {
            return Ok(self.link_crossing(&body, fds)?);
        }
        let mut fds = fds.into_iter();
        let fd = fds.next();
        if let Some(body) = message.body::<Share>() {
            self.takes_memory(&body, fd);
            return Ok(());
        }
        match (message.body::<Operate>(), fd) {
            (Some(body), Some(fd)) => {
                self.uid = body.uid;
                let rooms = fds.map(Socket::from_fd).collect();
                self.mediator.recall(Words::map_whole(fd)?, rooms);
                self.next = self.mediator.next_program().max(1);
                self.says_what_decides()
            }
            (_, fd) => self.take_place(message, fd, fds.next()),
        }
    }

    /// Every circuit that the image allows no more is cut by now; before it is known which there
    /// are, nothing is said.
    pub(super) fn says_what_decides(&mut self) -> Result<(), Box<dyn Error>> {
        let knows = (self.is_told || !guard!("operator-told")) && self.mediator.knows_its_sockets();
        let Some(epoch) = self.image.filter(|_| knows) else {
            return Ok(());
        };
        self.cutting.get_or_insert_with(Instant::now);
        if self.seeks()? {
            return Ok(());
        }
        self.cutting = None;
        Ok(self.says_running(epoch)?)
    }

    /// A search is over: what was not found is looked for again, some times.
    pub(super) fn seeks_again(&mut self) -> Result<(), Box<dyn Error>> {
        match self.cutting {
            Some(_) => self.says_what_decides(),
            // Somebody had circuits cut one by one.
            None => Ok(self.seeks().map(drop)?),
        }
    }

    /// Who hides sockets among thousands of descriptors, or thousands of them, keeps no rule from being in force.
    pub(super) fn says_late(&mut self) -> Result<(), seqpacket::Error> {
        self.is_late = true;
        let Some(epoch) = self.image else {
            return Ok(());
        };
        confine::say!(
            "bulkhead-operator: connections that are allowed no more are still looked for; new ones are judged by the new rules"
        );
        self.says_running(epoch)
    }

    fn says_running(&mut self, epoch: u64) -> Result<(), seqpacket::Error> {
        self.say(&Running {
            epoch,
            ..Running::default()
        })
    }

    /// Asks the supervisor who has what is to be cut; whether there is anything.
    pub(super) fn seeks(&mut self) -> Result<bool, seqpacket::Error> {
        let seeks = self.mediator.seeks();
        for body in &seeks {
            self.say(body)?;
        }
        Ok(self.mediator.hunts())
    }

    pub(super) fn take_place(
        &mut self,
        message: &Message,
        fd: Option<OwnedFd>,
        other: Option<OwnedFd>,
    ) -> Result<(), Box<dyn Error>> {
        if let Some(body) = message
            .body::<AddPort>()
            .filter(|b| b.kind == PORT_CIRCUITS)
            && let Some(fd) = fd
        {
            let port = number_of(&fd);
            let listener = seqpacket::Listener::from_fd(fd);
            self.watch(&listener, SLOT | u64::from(body.slot))?;
            self.slots.insert(body.slot, listener);
            if let Some(runtimes) = other {
                self.watch(&runtimes, RUNTIMES | u64::from(body.slot))?;
                self.runtimes.opens(body.slot, runtimes);
            }
            self.mediator.plugs(body.slot, port);
            self.mediator.opens(body.slot, body.capacity);
            // One of the release before says nothing.
            let setups = match body.max_record {
                0 => SETUPS,
                setups => setups,
            };
            self.turns.opens(body.slot, setups, Instant::now());
        } else if let Some(body) = message.body::<AddPort>().filter(|b| b.kind == PORT_PROXY)
            && let Some(fd) = fd
        {
            self.drop_proxy(body.slot);
            let link = Socket::from_fd(fd);
            self.watch(&link, PROXY | u64::from(body.slot))?;
            self.mediator.link_proxy(body.slot, link);
        } else if let Some(body) = message.body::<AddPort>()
            && body.kind == PORT_METER
            && let Some(fd) = fd
        {
            self.drop_meter();
            let link = Socket::from_fd(fd);
            self.watch(&link, METER)?;
            let programs = &self.programs;
            let find = |number: u32| programs.get(&number).map(|(slot, it)| (*slot, it));
            self.mediator.link_meter(link, &find);
        } else if let Some(body) = message.body::<Program>()
            && let Some(fd) = fd
        {
            // A release before noted nothing of it.
            self.next = self.next.max(body.number.saturating_add(1));
            self.add(body.slot, body.number, fd)?;
            let programs = &self.programs;
            self.mediator.resume(body.number, &|number| {
                programs.get(&number).map(|(slot, it)| (*slot, it))
            });
        } else if let Some(body) = message.body::<ListFlows>()
            && let Some(fd) = fd
        {
            self.mediator.wants_list(body, fd);
        } else if let Some(body) = message.body::<CutCircuit>()
            && let Some(fd) = fd
        {
            self.mediator.cut_asked(body.id, fd);
        } else if let Some(RemovePort { slot: OTHERS }) = message.body() {
            self.mediator.has_plugged();
            self.is_told = true;
            self.says_what_decides()?;
        } else if let Some(body) = message.body::<RemovePort>() {
            if let Some(listener) = self.slots.remove(&body.slot) {
                self.unwatch(&listener);
            }
            if let Some(runtimes) = self.runtimes.closes(body.slot) {
                self.unwatch(&runtimes);
            }
            let of: Vec<u32> = self
                .programs
                .iter()
                .filter(|(_, (slot, _))| *slot == body.slot)
                .map(|(number, _)| *number)
                .collect();
            for number in of {
                self.forget(number);
                // The supervisor may have heard of it after it let the port's programs go.
                self.say(&ProgramGone {
                    number,
                    reserved: 0,
                })?;
            }
            // Those of them that were not handed over yet are told so by the end of their link.
            self.announced
                .retain(|_, (slot, _)| *slot != body.slot || !guard!("operator-announced"));
            self.drop_proxy(body.slot);
            self.mediator.closes(body.slot);
            self.turns.closes(body.slot);
            self.paused.remove(&body.slot);
        } else if let Some(body) = message.body::<Capture>() {
            self.mediator.capture(&body);
        } else if let Some(ProgramGone { number: OTHERS, .. }) = message.body() {
            if guard!("operator-nobodys") {
                self.mediator.has_resumed();
            }
        } else if let Some(body) = message.body::<ProgramLimit>() {
            self.most = PROGRAMS.min(body.most as usize);
        } else if let Some(body) = message.body::<EndCrossing>() {
            self.unlink_crossing(body.tag as u16);
        } else if let Some(body) = message.body::<Found>() {
            self.mediator.found(&body);
        } else if let Some(body) = message.body::<Sought>() {
            self.mediator.sought(&body);
        }
        Ok(())
    }

    /// Says once that a meter is wanted: from then on there is always one.
    pub(super) fn want_meter(&mut self) -> Result<(), seqpacket::Error> {
        if self.wants_meter || !self.mediator.wants_meter() {
            return Ok(());
        }
        self.wants_meter = true;
        self.say(&WantMeter::default())
    }
}
