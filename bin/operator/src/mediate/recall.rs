//! What the operator before left: its notes, what it accepted, the connects that it began.

use super::*;
use seqpacket::Socket;

impl Mediator {
    /// Goes on with what the operator before noted.
    pub fn recall(&mut self, words: Words, rooms: Vec<Socket>) {
        let (notes, left) = Notes::recall(words);
        self.follows = notes.says_anything();
        // A call of before may be in the kernel still.
        self.accepts_natively = self.follows;
        self.datagrams.follows = self.follows.then(Instant::now);
        // Whoever calls first: several wait at one listening socket, and who is noted may be dead.
        let noted = left.iter().map(|(_, note, _)| notes.put(*note));
        self.unblocked = noted
            .filter(|it| it & UNBLOCKED != 0)
            .map(|it| it & !UNBLOCKED)
            .collect();
        self.waits.begin_at(notes.came());
        self.notes = Some(notes);
        self.left = left;
        self.live = Live::new().ok();
        self.settle();
        if let Some(slot) = self.notes.as_ref().and_then(Notes::was_touched) {
            self.distrusts(slot);
        }
        self.recall_crossings();
        self.recall_accepted(rooms);
        self.sweep();
        self.review();
        self.cuts_condemned();
        self.link_everybody();
        self.write();
    }

    /// A program of this endpoint held the operator up by a socket, and may have others that do: none is taken
    /// from where it was seen until its program calls again. Written at once, for who follows this one.
    fn distrusts(&mut self, slot: u32) {
        let of = self.table.all().filter(|it| it.endpoint() == slot);
        let of: Vec<u64> = of.map(circuit::Socket::cookie).collect();
        let most = if guard!("operator-distrusts") {
            of.len()
        } else {
            1
        };
        for cookie in of.into_iter().take(most) {
            self.table.place(cookie, 0);
        }
        self.write();
    }

    /// Those go on that the operator before accepted, and put into no program or did not say so.
    fn recall_accepted(&mut self, rooms: Vec<Socket>) {
        let left = self.left.iter();
        let put = left.filter_map(|(_, note, _)| Some(self.notes.as_ref()?.put(*note)));
        let put: BTreeSet<u64> = put.collect();
        // Each is put before those that came after it.
        for (by, made) in self.unclaimed.recall(rooms).into_iter().rev() {
            let listener = match by {
                By::Listener(listener) => listener,
                By::Door(tag) => match self.had_come(tag, &made) {
                    Some(listener) => listener,
                    None => continue,
                },
            };
            let noted = self.table.socket(made.cookie).is_some();
            if put.contains(&made.cookie) {
                self.unclaimed.is_claimed(listener, made);
            } else if noted || self.takes_in(listener, &made).is_ok() {
                self.puts_back(listener, made);
            } else {
                self.unclaimed.is_over(made.cookie);
            }
        }
    }

    /// All programs are told of: calls of others that were left are nobody's.
    pub fn has_resumed(&mut self) {
        let left = std::mem::take(&mut self.left).into_iter();
        self.are_nobodys(left.map(|(_, note, _)| note).collect());
        self.decides_begun();
    }

    /// Connections that an operator before this one came to its end over, and whose calls nobody waits in any more, a
    /// signal having ended them: they may be there all the same, and are judged, listed and cut as those that are.
    pub(super) fn decides_begun(&mut self) {
        let is_nobodys = |it: &&circuit::Socket| {
            let is_begun = it.state() == circuit::State::Connecting && it.crossing() == 0;
            is_begun && !self.relays.is_asked(it.cookie()) && guard!("circuits-begun-by-nobody")
        };
        let all = self.table.all().filter(is_nobodys);
        let all: Vec<circuit::Socket> = all.copied().collect();
        for socket in &all {
            self.beats();
            let cookie = socket.cookie();
            // One that is not where its program called may be.
            let is_none = self
                .at_place(socket)
                .is_some_and(|fd| !sockets::is_joined(&fd));
            match socket.remote().filter(|_| !is_none) {
                Some(remote) => {
                    let _ = self.table.connected(cookie);
                    // Who calls once more is told that it is.
                    let (address, length) = circuit::write(socket.family(), remote);
                    self.unheard.insert(cookie, address[..length].to_vec());
                }
                None => {
                    self.table.withdraw_all(socket.token());
                    let _ = self.table.connect_failed(cookie);
                }
            }
        }
        if !all.is_empty() {
            self.review();
        }
        self.write();
    }

    /// Whose calls these were is gone.
    pub(super) fn are_nobodys(&mut self, calls: Vec<u16>) {
        for note in calls {
            let accepted = self.notes.as_ref().map_or(0, |notes| notes.put(note));
            self.unclaimed.is_over(accepted);
            self.done_with(note);
        }
        self.sweep_of(false);
    }
}
