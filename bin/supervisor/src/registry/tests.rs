use super::*;

fn compartment(n: u32) -> Vec<(String, Note, u32)> {
    let mut all = vec![
        (format!("compartment/{n}/body"), made(), 1),
        (format!("compartment/{n}/counters"), Note::default(), 2),
        (format!("compartment/{n}/recorder"), Note::default(), 3),
        (
            format!("compartment/{n}/image"),
            Note::default().with("epoch", 9),
            4,
        ),
        (format!("compartment/{n}/journal"), Note::default(), 5),
    ];
    all.extend((0..CHANNEL_PARTS).map(|i| {
        (
            format!("compartment/{n}/channel/{i}"),
            Note::default(),
            100 + i as u32,
        )
    }));
    all
}

fn tap(c: u32, s: u32) -> Vec<(String, Note, u32)> {
    vec![
        (format!("port/{c}/{s}/body"), made().with("features", 3), 10),
        (format!("port/{c}/{s}/netns"), Note::default(), 11),
        (format!("port/{c}/{s}/tap"), Note::default(), 12),
    ]
}

fn worker(n: u64) -> Vec<(String, Note, u32)> {
    vec![
        (
            format!("worker/{n}/control"),
            Note::default().with("seat", 3),
            20,
        ),
        (
            format!("worker/{n}/pidfd"),
            Note::default().with("pid", 77),
            21,
        ),
    ]
}

#[test]
fn names_read_back_as_they_are_written() {
    let keys = [
        Key::ControlSupervisor,
        Key::ControlController,
        Key::ApiListener,
        Key::Recorder,
        Key::Worker(7, WorkerPart::Pidfd),
        Key::Seat(Seat::Fabric, SeatPart::Image),
        Key::Seat(Seat::Compartment(3), SeatPart::Journal),
        Key::Seat(Seat::Compartment(3), SeatPart::Channel(5)),
        Key::Seat(Seat::Compartment(3), SeatPart::Circuits),
        Key::Seat(Seat::Compartment(3), SeatPart::Network),
        Key::Room(3, 10),
        Key::Program(3, 4_000_000_000),
        Key::Door(3, 65_535),
        Key::Port(3, 1, PortPart::Interface),
        Key::Port(3, 1, PortPart::Channel(0)),
        Key::Uplink(0, UplinkPart::Socket),
        Key::Uplink(0, UplinkPart::Memory),
        Key::Uplink(0, UplinkPart::Link),
        Key::Uplink(0, UplinkPart::Channel(7)),
    ];
    for key in keys {
        assert_eq!(Key::parse(&key.to_string()), Some(key));
    }
    for other in [
        "",
        "compartment",
        "compartment/x/image",
        "port/1/image",
        "worker/1/thing",
        "program/1",
        "program/1/x",
        "program/1/2/3",
        "door/1/65536",
        "channel/1",
    ] {
        assert_eq!(Key::parse(other), None, "{other}");
    }
}

#[test]
fn what_is_complete_comes_back_whole() {
    let mut kept = compartment(3);
    kept.extend(tap(3, 1));
    kept.extend(worker(5));
    kept.push(("uplink/0/body".into(), made(), 30));
    kept.push(("uplink/0/socket".into(), Note::default(), 31));
    kept.push(("control/supervisor".into(), Note::default(), 40));
    let found = rebuild(kept);
    assert_eq!(found.control, Some(40));
    assert_eq!(found.workers[&5].pidfd, 21);
    assert_eq!(found.workers[&5].person.number("pid"), 77);
    let seat = &found.compartments[&3];
    assert_eq!(seat.channel.len(), CHANNEL_PARTS);
    assert_eq!(seat.journal, Some(5));
    assert_eq!(
        seat.image.as_ref().map(|(_, note)| note.number("epoch")),
        Some(9)
    );
    assert_eq!(found.ports[&(3, 1)].interface, Some(12));
    assert_eq!(found.uplinks[&0].socket, 31);
    assert!(found.forget.is_empty() && found.half_ports.is_empty());
}

#[test]
fn a_crash_after_any_step_of_making_leaves_all_or_nothing() {
    // The steps in the order in which the supervisor does them.
    let mut steps = vec![("compartment/3/body".to_owned(), making(), 1)];
    // Its journal comes with its first process.
    steps.extend(
        compartment(3)
            .into_iter()
            .skip(1)
            .filter(|(name, ..)| !name.ends_with("/journal")),
    );
    steps.push(("compartment/3/body".to_owned(), made(), 1));
    let whole = steps.len();
    for crash in 1..=whole {
        // The keeper replaces what has the same name.
        let kept: BTreeMap<String, (Note, u32)> = steps[..crash]
            .iter()
            .cloned()
            .map(|(name, note, d)| (name, (note, d)))
            .collect();
        let found = rebuild(kept.into_iter().map(|(name, (note, d))| (name, note, d)));
        if crash == whole {
            assert_eq!(found.compartments.len(), 1);
        } else {
            assert!(found.compartments.is_empty(), "crash after step {crash}");
            assert!(found.forget.contains("compartment/3/"));
        }
    }
}

#[test]
fn a_half_made_port_is_removed_with_what_it_left_outside() {
    let mut kept = compartment(3);
    kept.push(("port/3/1/body".into(), making(), 10));
    kept.push(("port/3/1/netns".into(), Note::default(), 11));
    // Somebody may be connected there already.
    kept.push(("port/3/1/listener".into(), Note::default(), 14));
    kept.push(("port/3/1/runtimes".into(), Note::default(), 15));
    // Made, but its tap is missing.
    kept.push(("port/3/2/body".into(), made(), 13));
    // Made, but its compartment is not.
    kept.extend(tap(4, 1));
    let found = rebuild(kept);
    assert!(found.ports.is_empty());
    assert_eq!(found.half_ports, [10, 13, 10]);
    assert_eq!(found.half_sockets, [(3, 14), (3, 15)]);
    assert_eq!(
        found.forget.iter().map(String::as_str).collect::<Vec<_>>(),
        ["port/3/1/", "port/3/2/", "port/4/1/"]
    );
}

#[test]
fn a_process_without_both_its_parts_is_not_adopted() {
    let mut kept = worker(5);
    kept.pop();
    kept.extend(worker(6));
    let found = rebuild(kept);
    assert_eq!(found.workers.keys().copied().collect::<Vec<_>>(), [6]);
    assert!(found.forget.contains("worker/5/"));
}

#[test]
fn a_fifo_client_that_was_half_attached_is_dropped_and_the_fifo_stays() {
    let mut kept = compartment(3);
    kept.push(("port/3/1/body".into(), made(), 10));
    kept.push(("port/3/1/listener".into(), Note::default(), 11));
    kept.push(("port/3/1/channel/0".into(), Note::default(), 12));
    kept.push(("port/3/1/client".into(), Note::default(), 13));
    let found = rebuild(kept);
    let port = &found.ports[&(3, 1)];
    assert_eq!((port.listener, &port.client), (Some(11), &None));
    assert_eq!(found.half_sockets, [(3, 13)]);
    assert!(found.forget.contains("port/3/1/client") && found.forget.contains("port/3/1/channel/"));
}

#[test]
fn a_channel_that_was_half_replaced_is_due_for_a_new_one() {
    let mut kept = compartment(3);
    for (name, note, _) in kept
        .iter_mut()
        .filter(|(name, ..)| name.contains("/channel/"))
    {
        *note = Note::default().with("pair", if name.ends_with('0') { 8 } else { 7 });
    }
    let found = rebuild(kept);
    assert!(found.compartments[&3].channel.is_empty());
    assert!(found.forget.is_empty());
}

#[test]
fn notes_keep_words() {
    let note = made().with("epoch", 7).with("digest", "ab");
    assert_eq!(note.as_str(), "state=made epoch=7 digest=ab");
    assert_eq!(Note::from_text(note.as_str()).number("epoch"), 7);
    assert_eq!(note.value("digest"), Some("ab"));
    assert_eq!(note.number("nothing"), 0);
}

#[test]
fn circuits_come_back_with_their_page_and_network_and_programs_by_number() {
    let mut kept = compartment(3);
    let uid = Note::default().with("uid", 4242);
    kept.push(("compartment/3/circuits".into(), uid, 50));
    kept.push(("compartment/3/network".into(), Note::default(), 51));
    kept.push(("room/3/0".into(), Note::default(), 52));
    kept.push(("room/3/7".into(), Note::default(), 53));
    for number in [1, 9] {
        let slot = Note::default().with("slot", number + 1);
        kept.push((format!("program/3/{number}"), slot, 60 + number));
    }
    let found = rebuild(kept);
    let circuits = found.compartments[&3].circuits.as_ref();
    let circuits = circuits.map(|((page, note), network)| (*page, note.number("uid"), *network));
    assert_eq!(circuits, Some((50, 4242, 51)));
    assert_eq!(found.rooms, BTreeMap::from([((3, 0), 52), ((3, 7), 53)]));
    let programs: Vec<_> = found
        .programs
        .iter()
        .map(|(key, (fd, note))| (*key, *fd, note.number("slot")))
        .collect();
    assert_eq!(programs, [((3, 1), 61, 2), ((3, 9), 69, 10)]);
    assert!(found.forget.is_empty());
}

#[test]
fn circuits_without_both_their_parts_are_made_anew() {
    for name in ["compartment/3/circuits", "compartment/3/network"] {
        let mut kept = compartment(3);
        kept.push((name.into(), Note::default().with("uid", 1), 50));
        let found = rebuild(kept);
        let seat = &found.compartments[&3];
        assert!(seat.circuits.is_none(), "{name}");
        assert_eq!(seat.channel.len(), CHANNEL_PARTS, "the rest is as it was");
    }
}
