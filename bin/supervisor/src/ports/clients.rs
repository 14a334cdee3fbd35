//! Who holds the other end of a fifo: comes, is attached, speaks, goes.

use super::*;

/// A fifo whose owner has sent what holds up who lets go of it is not listened to for so long, ns.
const REST: u64 = 1_000_000_000;

impl Supervisor {
    /// Somebody connects to a fifo.
    pub fn accept(&mut self, compartment: u32, slot: u32) {
        let now = self.now();
        let Some(port) = self
            .compartments
            .get_mut(&compartment)
            .and_then(|c| c.ports.get_mut(&slot))
        else {
            return;
        };
        let Kind::Fifo {
            listener,
            client,
            token,
            ..
        } = &mut port.kind
        else {
            return;
        };
        if self.errands.is_full(Whose::Ports(compartment)) {
            // What they sent before holds up as many as may be.
            if let Some(token) = token.take() {
                self.poll.unwatch(listener, token);
            }
            self.resting.insert((compartment, slot), now + REST);
            return;
        }
        if let Err(wait) = port.knocks.spend(now)
            && guard!("fifo-knocks")
        {
            // They wait where they cost us nothing.
            if let Some(token) = token.take() {
                self.poll.unwatch(listener, token);
            }
            self.resting.insert((compartment, slot), now + wait);
            return;
        }
        let Ok(Some(socket)) = listener.accept() else {
            return;
        };
        let owner = port.body.owner;
        let allowed = socket
            .peer_credentials()
            .is_ok_and(|peer| peer.uid == 0 || peer.uid == owner);
        let errands = &mut self.errands;
        let mut refuse = |code, detail: &str| {
            let refusal = Refusal::new(code, detail);
            let _ = socket.send(&Message::new(0, &refusal.body()).failed(code), &[]);
            errands.part(Whose::Ports(compartment), socket.as_fd());
        };
        if guard!("fifo-owner") && !allowed {
            return refuse(ErrorCode::Denied, "this fifo belongs to another user");
        }
        if port.quarantined {
            return refuse(
                ErrorCode::Quarantined,
                "this endpoint is quarantined: it killed its switch",
            );
        }
        if client.is_some() {
            return refuse(
                ErrorCode::Conflict,
                "another process is attached to this fifo",
            );
        }
        let wait = port.attaches.spend(now).err();
        if let Some(wait) = wait.filter(|_| guard!("fifo-attaches")) {
            let detail = format!(
                "this fifo is attached to too often: each time costs this host memory; try again in {} ms",
                wait.div_ceil(1_000_000)
            );
            return refuse(ErrorCode::Limit, &detail);
        }
        if let Err(refusal) = spare_descriptors(&socket) {
            return refuse(refusal.code, &refusal.detail);
        }
        let body = port.body;
        let channel = match fifo_geometry(&body).map(|geometry| self.channels.take(geometry)) {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => {
                return refuse(
                    ErrorCode::System,
                    &format!("no channel can be made: {error}"),
                );
            }
            Err(refusal) => return refuse(refusal.code, &refusal.detail),
        };
        let was_closed = std::mem::take(&mut port.closed) != 0;
        if let Err(reason) = self.join(&body, socket, channel) {
            confine::say!("supervisor: {}: {reason}", body.name.as_str());
            self.drop_client(compartment, slot);
        }
        if was_closed {
            self.note_port(compartment, slot);
            let subject = Subject::Seat(Seat::Compartment(compartment));
            self.happened(Happened::new(EventKind::PortAdded, subject).slot(slot));
        }
    }

    /// Listens again to fifos that were knocked at too often; when the next is due, ns.
    pub fn wake_listeners(&mut self, now: u64) -> Option<u64> {
        let due: Vec<(u32, u32)> = self
            .resting
            .iter()
            .filter(|(_, due)| **due <= now)
            .map(|(place, _)| *place)
            .collect();
        for place in due {
            self.resting.remove(&place);
            let home = self.compartments.get_mut(&place.0);
            let port = home.and_then(|home| home.ports.get_mut(&place.1));
            if let Some(Port {
                kind: Kind::Fifo {
                    listener, token, ..
                },
                ..
            }) = port
                && token.is_none()
            {
                let source = Source::Listener(place.0, place.1);
                *token = self.poll.watch(&*listener, source).ok();
            }
        }
        self.resting.values().min().copied()
    }

    /// Gives both ends of a fresh channel to the switch and the client.
    fn join(
        &mut self,
        body: &CreatePort,
        socket: Socket,
        mut channel: Channel,
    ) -> Result<(), String> {
        let (compartment, slot) = (body.compartment, body.slot);
        let key = |part| Key::Port(compartment, slot, part);
        let note = Note::default().with("pair", channel.serial());
        let keeper = &mut self.keeper;
        each_part(&channel, |n, part| {
            keeper.keep(key(PortPart::Channel(n)), &note, part)
        });
        self.keeper
            .keep(key(PortPart::Client), &note, socket.as_fd());
        let (far, fds) = channel
            .hand(End::Far, slot, body.mtu, fifo_features(body))
            .map_err(|e| format!("the channel's end: {e}"))?;
        let token = self
            .poll
            .watch(&socket, Source::Client(compartment, slot))
            .ok();
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
        let sent = socket.send(&Message::new(0, &far), &borrowed);
        let Some(home) = self.compartments.get_mut(&compartment) else {
            return Ok(());
        };
        let Some(port) = home.ports.get_mut(&slot) else {
            return Ok(());
        };
        if let Kind::Fifo { client, .. } = &mut port.kind {
            *client = Some(Client {
                socket,
                token,
                channel,
            });
        }
        sent.map_err(|e| e.to_string())?;
        let plug = port.plug();
        if let (Some(worker), Some((body, fds))) = (home.seat.worker, plug) {
            self.tell(worker, &Message::new(0, &body), fds);
        }
        Ok(())
    }

    /// The client of a fifo says something, or is gone.
    pub fn hear_client(&mut self, compartment: u32, slot: u32) {
        let Some(port) = self
            .compartments
            .get(&compartment)
            .and_then(|c| c.ports.get(&slot))
        else {
            return;
        };
        let Kind::Fifo {
            client: Some(client),
            ..
        } = &port.kind
        else {
            return;
        };
        // A tenant's: descriptors that it sends this process never has.
        match client.socket.recv_word() {
            Ok(None) => {}
            // The switch did not answer the client's resume: a new channel, by a new
            // connection. Anything else is nothing a client has to say.
            Ok(Some(message)) if message.body::<NeedReplace>().is_some() => {
                self.drop_client(compartment, slot)
            }
            Ok(Some(_)) | Err(_) => self.drop_client(compartment, slot),
        }
    }

    /// Ends a fifo's connection. Its channel is destroyed: a tenant had it mapped.
    pub fn drop_client(&mut self, compartment: u32, slot: u32) {
        let Some(home) = self.compartments.get_mut(&compartment) else {
            return;
        };
        let Some(port) = home.ports.get_mut(&slot) else {
            return;
        };
        let Kind::Fifo { client, .. } = &mut port.kind else {
            return;
        };
        let Some(client) = client.take() else { return };
        self.errands
            .part(Whose::Ports(compartment), client.socket.as_fd());
        if let Some(token) = client.token {
            self.poll.unwatch(&client.socket, token);
        }
        if let Some(worker) = home.seat.worker {
            self.tell(worker, &Message::new(0, &RemovePort { slot }), Vec::new());
        }
        let place = (compartment, slot);
        self.channels.retire(place, client.channel, self.now());
        let prefix = format!("port/{compartment}/{slot}");
        self.keeper
            .forget_one(Key::Port(compartment, slot, PortPart::Client));
        self.keeper.forget(&format!("{prefix}/channel/"));
    }
}
