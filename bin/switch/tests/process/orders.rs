//! What the supervisor orders, what is refused and by which number.

use crate::rig::{PATIENCE, Rig, start};
use crate::{PLAIN, frame, receive, send, tables};
use command::Message;
use command::verbs::*;
use image::map::{MapError, NOT_ATTACHED, NOT_SEALED};
use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use seqpacket::Socket;
use shm::SealedImage;
use std::os::fd::AsFd;
use telemetry::counters::ProcessWord;

#[test]
fn images_that_are_not_sealed_or_not_the_announced_are_refused_and_the_old_one_stays() {
    let rig = Rig::with_channels();
    rig.install(&tables(), 1);
    let bytes = tables().finish().unwrap();
    let unsealed = shm::memory_file("unsealed", bytes.len()).unwrap();
    rustix::io::pwrite(&unsealed, &bytes, 0).unwrap();
    let sealed = SealedImage::create("other", &bytes).unwrap();
    let garbage = SealedImage::create("garbage", &[7; 4096]).unwrap();
    for (fd, refused) in [
        (&unsealed, NOT_SEALED),
        (&sealed, MapError::Digest.number()),
        (&garbage, MapError::Magic.number()),
    ] {
        rig.tell(
            &UseImage {
                epoch: 2,
                digest: [1; 32],
            },
            &[fd],
        );
        assert_eq!(rig.hear::<Running>().refused, refused);
    }
    assert_eq!(rig.words().load(ProcessWord::Epoch as usize), 1);
    let (mut one, mut two) = (rig.guest(1), rig.guest(2));
    let sent = frame(1, 2, b"the old image");
    send(&mut one, &PLAIN, &sent);
    assert_eq!(receive(&mut two), sent);
}

#[test]
fn ports_are_refused_with_their_reason() {
    let rig = Rig::new();
    let system = |errno: Errno| closed_by(errno.raw_os_error());
    let version = ring::VERSION + 1;
    // Its header says another longest record.
    let max_record = rig.geometry.max_record() as u32 - 16;
    for (slot, body, reason) in [
        (
            1,
            AddPort {
                version,
                ..rig.port(1, 0)
            },
            system(Errno::PROTONOSUPPORT),
        ),
        (
            2,
            AddPort {
                max_record,
                ..rig.port(2, 0)
            },
            ring::Breach::HeaderPage as u32,
        ),
        (
            3,
            AddPort {
                capacity: 5,
                ..rig.port(3, 0)
            },
            system(Errno::INVAL),
        ),
    ] {
        let fds = rig.pairs[slot as usize - 1].end_a().unwrap();
        rig.control
            .send(&Message::new(0, &body), &fds.as_fds())
            .unwrap();
        assert_eq!(rig.hear::<PortClosed>(), PortClosed { slot, reason });
    }
}

#[test]
fn what_is_said_while_nobody_listens_is_heard_later() {
    let rig = Rig::with_channels();
    // What such a socket holds, and then some.
    let (one, _two) = Socket::pair().unwrap();
    let message = Message::new(0, &Running::default());
    let held = (0..)
        .take_while(|_| one.send(&message, &[]).is_ok())
        .count();
    let asked = held as u64 + 50;
    for epoch in 1..=asked {
        let body = UseImage {
            epoch,
            ..UseImage::default()
        };
        rig.control
            .send_wait(&Message::new(0, &body), &[], PATIENCE)
            .unwrap();
    }
    for epoch in 1..=asked {
        let running: Running = rig.hear();
        assert_eq!((running.epoch, running.refused), (epoch, NOT_SEALED));
    }
}

#[test]
fn who_has_no_place_refuses_an_image_by_name() {
    let (control, _, pidfd) = start();
    control
        .send(&Message::new(0, &UseImage::default()), &[])
        .unwrap();
    let (answer, _) = control.recv_wait(PATIENCE).unwrap().expect("an answer");
    assert_eq!(answer.body::<Running>().unwrap().refused, NOT_ATTACHED);
    // Nobody is left: it ends.
    drop(control);
    waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED).unwrap();
}

/// A peer reads generations: were they worked out from the secret of the start, it
/// would learn what the flow tables are seeded with.
#[test]
fn a_generation_says_nothing_of_the_seed() {
    let mut rig = Rig::with_channels();
    let generations = |rig: &mut Rig| {
        // The rig gives every successor the same seed.
        rig.restart();
        rig.install(&tables(), 1);
        let generation = |pair: &shm::Pair| {
            let mut word = [0; 8];
            let data = pair.end_a().unwrap().tx.data;
            rustix::io::pread(data.as_fd(), &mut word, 4096 + 8).unwrap();
            u64::from_le_bytes(word)
        };
        rig.pairs.iter().map(generation).collect::<Vec<_>>()
    };
    let mut all = generations(&mut rig);
    all.extend(generations(&mut rig));
    let distinct: std::collections::BTreeSet<_> = all.iter().collect();
    assert!(!all.contains(&0) && distinct.len() == all.len(), "{all:x?}");
}
