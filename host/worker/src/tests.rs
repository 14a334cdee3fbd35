//! What is refused has its number; what is said arrives.

use super::*;
use crate::outbox::{RETRY_NS, SPARE};
use command::verbs::{PORT_CHANNEL, PortClosed};
use shm::Pair;
use std::os::fd::OwnedFd;

const CAPACITY: usize = 1 << 16;

fn body(max_record: u32, version: u32) -> AddPort {
    AddPort {
        slot: 1,
        kind: PORT_CHANNEL,
        capacity: CAPACITY as u32,
        max_record,
        version,
        ..AddPort::default()
    }
}

/// One side of a channel whose header says that a record has at most 2048 bytes.
fn fds() -> Vec<OwnedFd> {
    let geometry = Geometry::records(CAPACITY, 2048).unwrap();
    let end = Pair::create(&geometry).unwrap().end_a().unwrap();
    vec![
        end.rx.data,
        end.rx.consumer,
        end.tx.data,
        end.tx.consumer,
        end.rx.bell,
        end.tx.bell,
    ]
}

#[test]
fn a_channel_is_refused_with_its_reason() {
    let refused = |body: &AddPort, fds| channel(body, fds, 0).err();
    assert_eq!(refused(&body(2048, ring::VERSION), fds()), None);
    assert_eq!(
        refused(&body(2048, ring::VERSION + 1), fds()),
        Some(system(Errno::PROTONOSUPPORT))
    );
    assert_eq!(
        refused(&body(1024, ring::VERSION), fds()),
        Some(Breach::HeaderPage as u32)
    );
    assert_eq!(
        refused(&body(2047, ring::VERSION), fds()),
        Some(system(Errno::INVAL))
    );
    let mut few = fds();
    few.pop();
    assert_eq!(
        refused(&body(2048, ring::VERSION), few),
        Some(system(Errno::BADF))
    );
}

#[test]
fn what_a_full_socket_has_no_room_for_is_said_later_in_order() {
    let (ours, theirs) = Socket::pair().unwrap();
    let mut outbox = Outbox::new(100);
    let mut said = 0;
    while outbox.waiting.len() < 200 {
        let message = PortClosed {
            slot: said,
            reason: 0,
        };
        outbox.say(&ours, Message::new(0, &message));
        said += 1;
    }
    assert_eq!(outbox.patience(None), Some(RETRY_NS));
    assert_eq!(outbox.patience(Some(5)), Some(5));
    let mut heard = 0;
    while heard < said {
        match theirs.recv().unwrap() {
            Some((message, _)) => {
                assert_eq!(message.body::<PortClosed>().unwrap().slot, heard);
                heard += 1;
            }
            None => outbox.flush(&ours),
        }
    }
    assert_eq!(outbox.patience(None), None);
}

#[test]
fn what_nobody_will_hear_is_forgotten_and_what_is_kept_is_bounded() {
    let (ours, theirs) = Socket::pair().unwrap();
    let mut outbox = Outbox::new(1);
    for _ in 0..10_000 {
        outbox.say(&ours, Message::new(0, &PortClosed::default()));
    }
    assert_eq!(outbox.waiting.len(), 2 + SPARE);
    drop(theirs);
    outbox.flush(&ours);
    assert_eq!(outbox.patience(None), None);
}
