//! `bulkhead-auditor`: writes what a capture mirrors to a pipe, as pcapng.
//!
//! Confine, receive, loop. It reads what a switch that may be taken over wrote, and what a meter
//! did, and so knows nothing but the reading end of a channel of each and the pipe. It ends when
//! the pipe's reader goes, or a peer breaks its channel's protocol.

mod pcapng;
#[cfg(test)]
mod tests;

use command::message::Verb;
use command::verbs::{AddPort, ROLE_AUDITOR};
use confine::Profile;
use pcapng::Writer;
use ring::Geometry;
use rustix::event::{PollFd, PollFlags, poll};
use seqpacket::Socket;
use shm::{ConsumerFds, Receiver, Start, attach_consumer};
use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use worker::start;

/// Most records between two looks at the control socket.
const BATCH: usize = 64;
/// Channels at most: a switch's, and a meter's.
const CHANNELS: usize = 2;
/// Bytes gathered before they are written to the pipe.
const FLUSH: usize = 64 * 1024;

/// Where frames come from, and where they go.
type Place = (Vec<Receiver>, OwnedFd);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            confine::say!("bulkhead-auditor: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let control = start(Profile::Auditor, ROLE_AUDITOR)?;
    let Some((mut receivers, pipe)) = channels(&control)? else {
        return Ok(());
    };
    let mut out = Writer::new();
    loop {
        let mut more = false;
        for (channel, receiver) in receivers.iter_mut().enumerate() {
            more |= gather(receiver, channel, &mut out)?;
            if !write_all(&pipe, out.bytes()) {
                return Ok(());
            }
            out.clear();
        }
        if !more && (!sleep(&control, &mut receivers, &pipe)? || !go_on(&control)?) {
            return Ok(());
        }
    }
}

/// Waits for the channels and the pipe. `None`: told to end before they came.
fn channels(control: &Socket) -> Result<Option<Place>, Box<dyn Error>> {
    loop {
        poll(&mut [PollFd::new(&control.as_fd(), PollFlags::IN)], None)?;
        let (message, mut fds) = match control.recv() {
            Ok(Some(got)) => got,
            Ok(None) => continue,
            Err(seqpacket::Error::Closed) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        match Verb::from_number(message.verb) {
            Some(Verb::Quit) => return Ok(None),
            Some(Verb::AddPort) => {}
            _ => continue,
        }
        let port: AddPort = message.body().ok_or("AddPort of another version")?;
        let pipe = fds.pop().ok_or("AddPort without descriptors")?;
        let geometry = Geometry::records(port.capacity as usize, port.max_record as usize)?;
        let (mut receivers, mut fds) = (Vec::new(), fds.into_iter());
        while receivers.len() < CHANNELS
            && let Some(ends) = ConsumerFds::from_fds(&mut fds)
        {
            receivers.push(attach_consumer(ends, &geometry, Start::Fresh)?);
        }
        return match receivers.is_empty() {
            true => Err("AddPort with too few descriptors".into()),
            false => Ok(Some((receivers, pipe))),
        };
    }
}

/// Takes at most a batch of records; whether there may be more.
fn gather(receiver: &mut Receiver, channel: usize, out: &mut Writer) -> Result<bool, ring::Breach> {
    for _ in 0..BATCH {
        let Some(record) = receiver.ring.next()? else {
            receiver.ring.release();
            return Ok(false);
        };
        if let Some(note) = record.note() {
            out.packet(channel, &note, record.len(), |into| {
                record.copy(0, into);
            });
        }
        if out.bytes().len() > FLUSH {
            break;
        }
    }
    receiver.ring.release();
    Ok(true)
}

/// Sleeps until there are records, a message, or no reader: then `false`.
fn sleep(
    control: &Socket,
    receivers: &mut [Receiver],
    pipe: &OwnedFd,
) -> Result<bool, Box<dyn Error>> {
    let mut sleeps = true;
    for receiver in receivers.iter_mut() {
        sleeps &= receiver.ring.arm()?;
    }
    if sleeps {
        let control = control.as_fd();
        let mut waiting = vec![
            PollFd::new(&control, PollFlags::IN),
            // Nothing is asked of the pipe: its error, that nobody reads, is always told.
            PollFd::new(pipe, PollFlags::empty()),
        ];
        let bells = receivers.iter().map(|it| it.bell.as_fd());
        waiting.extend(bells.map(|bell| PollFd::from_borrowed_fd(bell, PollFlags::IN)));
        match poll(&mut waiting, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if (waiting.get(1))
            .is_some_and(|pipe| pipe.revents().intersects(PollFlags::ERR | PollFlags::HUP))
        {
            return Ok(false);
        }
    }
    // One that was armed and is not slept for may have been rung.
    let mut silent = true;
    for receiver in receivers.iter_mut() {
        match receiver.bell.drain() {
            Ok(rings) => {
                receiver.ring.rung(rings)?;
                silent = false;
            }
            // Nobody is left who could ring: what was published is still read.
            Err(_) => silent &= !receiver.ring.is_ready()?,
        }
    }
    Ok(!silent)
}

/// Reads the control socket; `false` when it says to end, or is gone.
fn go_on(control: &Socket) -> Result<bool, Box<dyn Error>> {
    match control.recv() {
        Ok(Some((message, _))) => Ok(Verb::from_number(message.verb) != Some(Verb::Quit)),
        Ok(None) => Ok(true),
        Err(seqpacket::Error::Closed) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Writes everything, waiting for a slow reader; `false` when there is none.
fn write_all(pipe: &OwnedFd, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match rustix::io::write(pipe, bytes) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or(&[]),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                if poll(&mut [PollFd::new(pipe, PollFlags::OUT)], None).is_err() {
                    return false;
                }
            }
            Err(_) => return false,
        }
    }
    true
}
