//! What docs/fifo.md says of the datagram that a process gets when it attaches: a peer
//! in another language knows nothing else.

use core_command::message::{ErrorCode, Message, Name};
use core_command::verbs::{AddPort, Done, NeedReplace, PORT_CHANNEL};
use zerocopy::IntoBytes;

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

#[test]
fn an_attaching_process_gets_what_the_document_says() {
    let offer = Message::new(
        0,
        &AddPort {
            slot: 7,
            kind: PORT_CHANNEL,
            capacity: 1 << 18,
            max_record: 2048,
            resume: 0,
            version: 1,
            mtu: 1500,
            features: 15,
        },
    );
    let bytes = offer.as_bytes();
    assert_eq!(bytes.len(), 512);
    assert_eq!(bytes[..4], [18, 0, 1, 0]);
    assert_eq!(
        words(&bytes[4..48]),
        [0, 0, 0, 7, 1, 1 << 18, 2048, 0, 1, 1500, 15]
    );
    assert!(bytes[48..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_refused_process_reads_why_and_says_one_thing_only() {
    let why = Done {
        detail: Name::new("another process is attached").unwrap(),
        ..Done::default()
    };
    let refusal = Message::new(0, &why).failed(ErrorCode::Conflict);
    let bytes = refusal.as_bytes();
    assert_eq!(words(&bytes[8..12]), [ErrorCode::Conflict as u32]);
    assert!(bytes[24..].starts_with(b"another process is attached\0"));
    let said = Message::new(0, &NeedReplace::default());
    assert_eq!(said.as_bytes()[..4], [23, 0, 1, 0]);
    assert!(said.as_bytes()[4..].iter().all(|byte| *byte == 0));
}
