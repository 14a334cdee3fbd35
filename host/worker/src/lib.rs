//! What a switch, a fabric, an auditor and a verifier do alike: they start confined, say so, and
//! take channels and images from the supervisor by the same rules.

pub mod clock;
mod journal;
mod outbox;
#[cfg(test)]
mod tests;
mod traced;

pub use journal::Journal;
pub use outbox::Outbox;
pub use traced::traced;

use command::Message;
use command::verbs::{AddPort, Ready, UseImage, closed_by};
use confine::{Profile, descriptor, enter};
use guard::guard;
use image::MappedCompartment;
use image::map::{MapError, NO_BARRIER, NOT_SEALED};
use ring::{Breach, Geometry};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use seqpacket::{Fds, Socket};
use shm::{AttachError, Channel, ChannelFds, SealedImage, Start};
use std::os::fd::AsFd;

/// The control socket's descriptor, where the supervisor placed it.
const CONTROL: u32 = 3;

/// Gives up all but the control socket, and says so.
///
/// # Errors
/// A sentence: nobody started this as it is to be, or a stage of confinement failed.
pub fn start(profile: Profile, role: u32) -> Result<Socket, Box<dyn std::error::Error>> {
    let control = descriptor(CONTROL)
        .ok_or("descriptor 3 is not open: bulkhead-supervisor starts this program")?;
    // The first look at the clock asks the kernel where its vDSO is, which the filter
    // would not allow any more.
    let _ = (clock::monotonic(), clock::realtime());
    let stages = enter(profile)?;
    let control = Socket::from_fd(control);
    let ready = Ready {
        role,
        stages: stages.0,
    };
    control.send(&Message::new(0, &ready), &[])?;
    Ok(control)
}

/// Waits for what the supervisor says next; `None`: it is gone.
///
/// # Errors
/// The kernel's, or what came is no message.
pub fn next(control: &Socket) -> Result<Option<(Message, Fds)>, Box<dyn std::error::Error>> {
    loop {
        match poll(&mut [PollFd::new(&control.as_fd(), PollFlags::IN)], None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        match control.recv() {
            Ok(None) => {}
            Ok(got) => return Ok(got),
            Err(seqpacket::Error::Closed) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The channel that was handed over with this message.
///
/// # Errors
/// A reason for `PortClosed`; nothing of the channel is left mapped.
pub fn channel(body: &AddPort, fds: Fds, now: u64) -> Result<Channel, u32> {
    if guard!("channel-version") && body.version != ring::VERSION {
        return Err(system(Errno::PROTONOSUPPORT));
    }
    let geometry = Geometry::records(body.capacity as usize, body.max_record as usize)
        .map_err(|_| system(Errno::INVAL))?;
    let fds = ChannelFds::from_fds(fds).ok_or(system(Errno::BADF))?;
    let start = match body.resume {
        0 => Start::Fresh,
        _ => Start::resume(now).map_err(|error| by(&error))?,
    };
    shm::attach(fds, &geometry, start).map_err(|error| match error {
        AttachError::Header => Breach::HeaderPage as u32,
        AttachError::Shape => system(Errno::INVAL),
        AttachError::System(error) => by(&error),
    })
}

/// The image that was handed over with this message: sealed, sound, and the one
/// announced.
///
/// # Errors
/// A number for `Running.refused`; the image before stays.
pub fn image<T>(
    body: &UseImage,
    fds: Fds,
    map: impl FnOnce(SealedImage) -> Result<T, MapError>,
    digest: impl FnOnce(&T) -> image::Digest,
) -> Result<T, u32> {
    let fd = fds.into_iter().next().ok_or(NOT_SEALED)?;
    let sealed = SealedImage::map(fd).map_err(|_| NOT_SEALED)?;
    let mapped = map(sealed).map_err(MapError::number)?;
    if guard!("image-announced") && digest(&mapped).0 != body.digest {
        return Err(MapError::Digest.number());
    }
    Ok(mapped)
}

/// A compartment's image, as [`image()`] takes it: for who serves its tenants. Where these are
/// several this thread has a barrier against other processes' branches from here on.
///
/// # Errors
/// A number for `Running.refused`; the image before stays.
pub fn compartment(body: &UseImage, fds: Fds) -> Result<MappedCompartment<SealedImage>, u32> {
    let mapped = image(body, fds, MappedCompartment::map, MappedCompartment::digest)?;
    if mapped.image().tenants().len() > 1 && guard!("barrier-of-several") {
        confine::raise_branch_barrier().map_err(|why| {
            confine::say!("no barrier against others' branches: {why}");
            NO_BARRIER
        })?;
    }
    Ok(mapped)
}

/// A reason for `PortClosed`: the operating system's.
pub fn system(errno: Errno) -> u32 {
    closed_by(errno.raw_os_error())
}

/// As [`system`], of an error that carries an errno.
pub fn by(error: &std::io::Error) -> u32 {
    closed_by(error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error()))
}
