//! What crosses borders of privilege: messages between processes, a question for the
//! verifier, and pages that a switch wrote for the controller to read.
//!
//! Held: a body is read by its own verb alone and back as it was; nothing of a bundle lies
//! outside of its bytes, and what is read of one is written the same; what a page says is as
//! much as it can hold.

use crate::input::Input;
use command::bundle::{ALIGN, Bundle, MOST_COMPARTMENTS, Part};
use command::message::{BODY_BYTES, MESSAGE_BYTES};
use command::verbs::*;
use command::{Body, Message, Name, Verb};
use telemetry::{flows, trace};
use zerocopy::FromBytes;

/// One run.
pub fn run(bytes: &[u8]) {
    let input = Input::new(bytes);
    match input.byte() % 4 {
        0 => messages(&input),
        1 => pages(&input),
        2 => bundle(&input.rest()),
        _ => bent(&input),
    }
}

fn messages(input: &Input) {
    let mut bytes = input.take(MESSAGE_BYTES);
    if input.flag() {
        bytes[2..4].copy_from_slice(&1u16.to_le_bytes());
    }
    let message = Message::read_from_bytes(&bytes).expect("its size");
    let read = [
        same::<Done>(&message),
        same::<Attach>(&message),
        same::<AddPort>(&message),
        same::<UseImage>(&message),
        same::<Running>(&message),
        same::<PortClosed>(&message),
        same::<Report>(&message),
        same::<GuestMap>(&message),
        same::<GuestRun>(&message),
        same::<GuestDone>(&message),
        same::<GuestCall>(&message),
        same::<Relay>(&message),
        same::<Relayed>(&message),
        same::<Came>(&message),
        same::<Heard>(&message),
        same::<Convey>(&message),
    ];
    assert!(
        read.iter().filter(|read| **read).count() <= 1,
        "two at once"
    );
    if read.contains(&true) {
        assert!(Verb::from_number(message.verb).is_some());
    }
    if let Some(done) = message.body::<Done>() {
        assert!(done.detail.as_str().len() <= 240);
        assert!(!done.detail.as_str().contains('\0'));
    }
    let _ = format!("{:?}", Name::<BODY_BYTES>(message.body).as_str());
}

/// Whether it is read, and then back as it was.
fn same<B: Body>(message: &Message) -> bool {
    let Some(body) = message.body::<B>() else {
        return false;
    };
    let size = size_of::<B>();
    assert_eq!((message.verb, message.version), (B::VERB as u16, 1));
    assert_eq!(body.as_bytes(), &message.body[..size]);
    assert_eq!(
        Message::new(message.seq, &body).body[..size],
        message.body[..size]
    );
    true
}

fn pages(input: &Input) {
    let mut record = trace::Record::default();
    record.push(trace::Step::of(&std::array::from_fn(|_| input.u64())));
    record.push(trace::Step::Parsed);
    record.leaves(1, 7, 60, |frame| frame.fill(3));
    let mut words = vec![0; trace::WORDS];
    record.write(|at, value| words[at] = value);
    words[trace::MAGIC_AT] = trace::MAGIC;
    let again = trace::Record::read(&words).expect("it is written");
    assert_eq!(again.steps().len(), 2);
    for step in again.steps() {
        assert_eq!(trace::Step::of(&step.words()), *step, "as it was read");
    }
    for _ in 0..8 {
        let at = input.u16() as usize % words.len();
        words[at] = input.u64();
    }
    if let Some(record) = trace::Record::read(&words) {
        assert!(record.steps().len() <= trace::MOST);
        assert!(
            record
                .left()
                .is_none_or(|(_, _, frame)| frame.len() <= trace::LONGEST)
        );
        let _ = format!("{:?}", record.steps());
    }
    let row = flows::Row::of(&std::array::from_fn(|_| input.u64()));
    let words = row.words();
    assert_eq!(flows::Row::of(&words).words(), words);
}

/// A good one, changed in a few places.
fn bent(input: &Input) {
    let (spec, image) = (input.take(7), input.take(40));
    let mut bundle = Bundle::ahead("a.yaml", &spec);
    bundle.compartments = [(1, Part::Bytes(&image)), (4, Part::Held([7; 32]))].into();
    bundle.fabric = Some(Part::Bytes(&image));
    let mut bytes = bundle.write();
    assert_eq!(Bundle::read(&bytes), Ok(bundle));
    for _ in 0..input.byte() % 16 {
        let at = input.u16() as usize % bytes.len();
        bytes[at] = input.byte();
    }
    bytes.truncate(bytes.len() - usize::from(input.byte() % 64));
    self::bundle(&bytes);
}

fn bundle(bytes: &[u8]) {
    let Ok(bundle) = Bundle::read(bytes) else {
        return;
    };
    assert!(bundle.compartments.len() <= MOST_COMPARTMENTS);
    let parts = [Some(bundle.spec), bundle.fabric];
    let parts = parts.into_iter().flatten();
    for part in parts.chain(bundle.compartments.values().copied()) {
        if let Part::Bytes(part) = part {
            let (whole, own) = (bytes.as_ptr_range(), part.as_ptr_range());
            assert!(whole.start <= own.start && own.end <= whole.end, "outside");
            assert_eq!((own.start as usize - whole.start as usize) % ALIGN, 0);
        }
    }
    let written = bundle.write();
    assert_eq!(Bundle::read(&written), Ok(bundle));
}
