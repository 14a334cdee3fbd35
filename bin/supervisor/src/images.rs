//! Installing table images: checked, handed over, kept once the process says it runs
//! them; else the previous one goes on.

use crate::events::{Happened, Subject};
use crate::link::Shared;
use crate::refusal::Refusal;
use crate::registry::{Key, Note, Seat, SeatPart};
use crate::seats::{Image, Install, SeatState, label};
use crate::supervisor::Supervisor;
use command::Message;
use command::message::ErrorCode;
use command::verbs::{CAUSE_REPORT, CAUSE_STALL, Running, UseImage};
use guard::guard;
use shm::{SealError, SealedImage};
use std::os::fd::AsFd;
use telemetry::recorder::EventKind;

/// A process that has its image and says nothing this long is not going to, ns. One
/// that burns its processor meanwhile is found earlier, by the watch.
const RUN_LIMIT: u64 = 1_000_000_000;
/// An installation that finds no process this long fails, ns.
const SEAT_LIMIT: u64 = 15_000_000_000;
/// Times that an image is tried on processes that die with it.
const ATTEMPTS: u32 = 2;

/// Checks a descriptor that the controller sent: sealed, and of the digest it says.
///
/// # Errors
/// [`ErrorCode::BadImage`] with a sentence.
pub fn check(fd: Shared, epoch: u64, digest: [u8; 32]) -> Result<Image, Refusal> {
    let bad = |detail: String| Refusal::new(ErrorCode::BadImage, detail);
    let bytes = match SealedImage::map(&*fd) {
        Ok(bytes) => bytes,
        Err(SealError::System(error)) => return Err(Refusal::system("map the image", &error)),
        Err(error) => return Err(bad(error.to_string())),
    };
    let found = image::digest(bytes.as_slice());
    if guard!("install-digest") && found != Some(image::Digest(digest)) {
        return Err(bad(
            "the image's digest is not the one that was announced".to_owned()
        ));
    }
    drop(bytes);
    Ok(Image { fd, epoch, digest })
}

impl Supervisor {
    /// Installs an image; the answer follows when the process has spoken, or where it `must`
    /// be when it was to have.
    pub fn install(&mut self, seq: u32, seat: Seat, image: Image, must: bool) {
        let now = self.now();
        let Some(state) = self.seat_mut(seat) else {
            return;
        };
        state.installs.push_back(Install {
            seq,
            image,
            sent: None,
            asked: now,
            attempts: 0,
            must,
        });
        if must && self.seat(seat).is_some_and(|state| state.worker.is_none()) {
            self.leave_down(seat, CAUSE_STALL);
        }
        self.push_install(seat);
    }

    /// What must be is what this seat runs from now on, and whoever does not take it is
    /// down: no process is in the way of what takes something from it.
    fn leave_down(&mut self, seat: Seat, cause: u32) -> bool {
        if !guard!("install-must") {
            return false;
        }
        let Some(state) = self.seat_mut(seat) else {
            return false;
        };
        let worker = state.worker;
        let Some(install) = state.installs.pop_front_if(|install| install.must) else {
            return false;
        };
        self.adopt_image(seat, &install.image);
        self.done_when_decided(install.seq, seat, install.image.epoch, true);
        if let Some(worker) = worker {
            self.kill(worker, Some(cause));
        }
        true
    }

    fn adopt_image(&mut self, seat: Seat, image: &Image) {
        let agreed = (seat == Seat::Fabric).then(|| self.agreed().clone());
        if let Some(state) = self.seat_mut(seat) {
            state.image = Some(image.clone());
        }
        self.image_for_operator(seat, image);
        if let Some(agreed) = agreed {
            self.fabric_changed(agreed);
        }
        let note = image_note(image);
        let key = Key::Seat(seat, SeatPart::Image);
        self.keeper.keep(key, &note, image.fd.as_fd());
    }

    /// Sends the next image to the process, if there is one and none is under way.
    fn push_install(&mut self, seat: Seat) {
        let now = self.now();
        let Some(state) = self.seat(seat) else {
            return;
        };
        let Some(worker) = state.worker else { return };
        let is_killed = self.workers.get(&worker).is_none_or(|w| w.killed.is_some());
        let Some(install) = self
            .seat_mut(seat)
            .and_then(|state| state.installs.front_mut())
            .filter(|install| install.sent.is_none() && !is_killed)
        else {
            return;
        };
        install.sent = Some(now);
        install.attempts += 1;
        let body = UseImage {
            epoch: install.image.epoch,
            digest: install.image.digest,
        };
        let fd = Shared::clone(&install.image.fd);
        self.tell(worker, &Message::new(0, &body), vec![fd]);
    }

    /// The process says what it runs.
    pub fn running(&mut self, seat: Seat, body: &Running) {
        let Some(state) = self.seat_mut(seat) else {
            return;
        };
        let under_way = state
            .installs
            .front()
            .is_some_and(|i| i.sent.is_some() && i.image.epoch == body.epoch);
        let subject = Subject::Seat(seat);
        if !under_way {
            let said = state.has_refused && guard!("refused-once");
            if body.refused != 0 && !said {
                // The image that its predecessor ran: nothing better is there.
                state.has_refused = true;
                let refused = Happened::new(EventKind::ImageRefused, subject)
                    .cause(body.refused)
                    .value(body.epoch);
                self.happened(refused);
            }
            return;
        }
        if body.refused != 0 {
            let refused = Happened::new(EventKind::ImageRefused, subject)
                .cause(body.refused)
                .value(body.epoch);
            self.happened(refused);
            // The image was looked at, the process was not.
            if self.leave_down(seat, CAUSE_REPORT) || self.retry_install(seat, CAUSE_REPORT) {
                return;
            }
        }
        let name = self.name_of(seat);
        let Some(install) = self
            .seat_mut(seat)
            .and_then(|state| state.installs.pop_front())
        else {
            return;
        };
        if body.refused != 0 {
            let detail = format!(
                "{name} refuses its tables (reason {}), after a restart as before",
                body.refused
            );
            self.refuse(install.seq, &Refusal::new(ErrorCode::BadImage, detail));
        } else {
            self.adopt_image(seat, &install.image);
            self.happened(Happened::new(EventKind::ImageSwapped, subject).value(body.epoch));
            self.done_when_decided(install.seq, seat, body.epoch, install.must);
        }
        self.push_install(seat);
    }

    /// Gives up on installations that took too long; when to look again.
    pub fn expire_installs(&mut self, now: u64) -> Option<u64> {
        let mut next: Option<u64> = None;
        for seat in self.seats() {
            let Some(state) = self.seat_mut(seat) else {
                continue;
            };
            let Some(install) = state.installs.front() else {
                continue;
            };
            let end = install
                .sent
                .map_or(install.asked + SEAT_LIMIT, |sent| sent + RUN_LIMIT);
            if end > now {
                next = Some(next.map_or(end, |n| n.min(end)));
                continue;
            }
            let was_sent = install.sent.is_some();
            if self.leave_down(seat, CAUSE_STALL)
                || was_sent && self.retry_install(seat, CAUSE_STALL)
            {
                next = Some(now);
                continue;
            }
            let name = self.name_of(seat);
            let Some(state) = self.seat_mut(seat) else {
                continue;
            };
            let Some(install) = state.installs.pop_front() else {
                continue;
            };
            let before = state.image.clone();
            if let (true, Some(worker), Some(image)) = (was_sent, state.worker, before) {
                let body = UseImage {
                    epoch: image.epoch,
                    digest: image.digest,
                };
                self.tell(worker, &Message::new(0, &body), vec![image.fd]);
            }
            let detail = format!("{name} did not say in time that it uses its tables");
            self.refuse(install.seq, &Refusal::new(ErrorCode::System, detail));
            self.push_install(seat);
            next = Some(now);
        }
        next
    }

    /// A process that does not take its image, which was looked at before, is killed for
    /// `cause`, and its successor tries once; whether it is to.
    fn retry_install(&mut self, seat: Seat, cause: u32) -> bool {
        let Some(state) = self.seat_mut(seat) else {
            return false;
        };
        let worker = state.worker;
        let Some(install) = state.installs.front_mut() else {
            return false;
        };
        let (Some(worker), true) = (worker, install.attempts < ATTEMPTS) else {
            return false;
        };
        if !guard!("install-retry") {
            return false;
        }
        // Its death has it sent to the successor.
        install.sent = None;
        self.kill(worker, Some(cause));
        true
    }

    /// Whose process it is, as the spec has it.
    fn name_of(&self, seat: Seat) -> String {
        match seat {
            Seat::Compartment(id) => self.compartments.get(&id).map_or_else(
                || label(seat),
                |c| format!("the switch of {}", c.body.name.as_str()),
            ),
            Seat::Fabric => label(seat),
        }
    }

    /// After a death: an image under which processes die is not tried again.
    pub fn fail_hopeless_installs(&mut self, seat: Seat) {
        while self.leave_down(seat, CAUSE_STALL) {}
        let Some(state) = self.seat_mut(seat) else {
            return;
        };
        if state
            .installs
            .front()
            .is_some_and(|install| install.attempts >= ATTEMPTS && install.sent.is_none())
            && let Some(install) = state.installs.pop_front()
        {
            let name = self.name_of(seat);
            let detail = format!("{name} died each time it was given its tables");
            self.refuse(install.seq, &Refusal::new(ErrorCode::BadImage, detail));
        }
    }
}

/// Digests of what a seat runs and of what is on its way there.
pub fn image_digests(state: &SeatState) -> impl Iterator<Item = [u8; 32]> {
    let coming = state.installs.iter().map(|install| &install.image);
    state.image.iter().chain(coming).map(|image| image.digest)
}

/// What the keeper is told of an image.
pub fn image_note(image: &Image) -> Note {
    let digest: String = image
        .digest
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Note::default()
        .with("epoch", image.epoch)
        .with("digest", digest)
}

/// An image of before.
pub fn from_note(fd: Shared, note: &Note) -> Option<Image> {
    let text = note.value("digest")?;
    let mut digest = [0; 32];
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(Image {
        fd,
        epoch: note.number("epoch"),
        digest,
    })
}
