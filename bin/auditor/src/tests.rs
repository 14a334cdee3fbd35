//! tshark reads back what is written.

use crate::pcapng::Writer;
use ring::record::CaptureNote;
use std::io::Write;
use std::process::{Command, Stdio};
use telemetry::drops::DropReason;

/// An Ethernet frame of an ARP request, padded.
fn frame() -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 8, 6]);
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 1, 0, 1]);
    frame.extend([0, 0, 0, 0, 0, 0, 10, 1, 0, 2]);
    frame
}

fn written() -> Vec<u8> {
    let frame = frame();
    let mut out = Writer::new();
    let passed = CaptureNote {
        time_ns: 1_700_000_000_123_456_789,
        endpoint: 7,
        original_len: 60,
        ..CaptureNote::default()
    };
    let dropped = CaptureNote {
        time_ns: 1_700_000_001_000_000_001,
        endpoint: 9,
        original_len: 10,
        drop_reason: DropReason::SourceMac as u16,
        direction: 1,
        ..CaptureNote::default()
    };
    for note in [passed, dropped] {
        out.packet(0, &note, frame.len(), |into| into.copy_from_slice(&frame));
    }
    let unknown = CaptureNote {
        drop_reason: 9999,
        endpoint: 7,
        denied: 1,
        rule: 17,
        ..CaptureNote::default()
    };
    out.packet(0, &unknown, 0, |into| assert!(into.is_empty()));
    out.bytes().to_vec()
}

fn tshark(bytes: &[u8]) -> Vec<Vec<String>> {
    let fields = [
        "frame.time_epoch",
        "frame.len",
        "frame.cap_len",
        "frame.interface_name",
    ];
    let more = ["frame.packet_flags_direction", "frame.comment", "eth.src"];
    let mut command = Command::new("timeout");
    command.args([
        "30",
        "tshark",
        "-n",
        "-r",
        "-",
        "-T",
        "fields",
        "-E",
        "separator=|",
    ]);
    for field in fields.into_iter().chain(more) {
        command.args(["-e", field]);
    }
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().expect("tshark is installed by `make test`");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(bytes).expect("tshark reads");
    drop(stdin);
    let output = child.wait_with_output().expect("tshark ends");
    assert!(output.status.success(), "tshark: {}", output.status);
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines()
        .map(|line| line.split('|').map(str::to_owned).collect())
        .collect()
}

#[test]
fn tshark_reads_times_lengths_directions_and_reasons() {
    let rows = tshark(&written());
    assert_eq!(rows.len(), 3);
    assert!(rows[0][0].contains("1700000000.123456789"), "{:?}", rows[0]);
    assert_eq!(&rows[0][1..4], ["60", "42", "endpoint-7"]);
    assert_eq!(rows[0][5], "");
    assert_eq!(rows[0][6], "02:00:00:00:00:01");
    assert_eq!(
        &rows[1][1..4],
        ["42", "42", "endpoint-9"],
        "an original length that lies"
    );
    assert!(
        rows[1][5].starts_with("dropped: source-mac: The source MAC"),
        "{:?}",
        rows[1]
    );
    assert_ne!(rows[0][4], rows[1][4], "directions differ");
    assert_eq!(rows[2][5], "dropped: reason 9999,rule 17");
}

#[test]
fn a_capture_without_frames_is_a_file() {
    assert!(tshark(Writer::new().bytes()).is_empty());
}

#[test]
fn made_up_endpoints_do_not_grow_it_for_ever() {
    let mut out = Writer::new();
    let mut per_packet = 0;
    for endpoint in 0..5000 {
        out.clear();
        let note = CaptureNote {
            endpoint,
            ..CaptureNote::default()
        };
        out.packet(0, &note, 0, |_| {});
        per_packet = out.bytes().len();
    }
    assert_eq!(per_packet, 44, "a packet block alone, no new interface");
}

/// The values of the statistics blocks' isb_ifdrop.
fn lost(bytes: &[u8]) -> Vec<u64> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a word"));
    let (mut at, mut found) = (0, Vec::new());
    while at < bytes.len() {
        if word(at) == 5 {
            assert_eq!(word(at + 20), 5 | 8 << 16, "the first option is isb_ifdrop");
            found.push(u64::from(word(at + 24)) | u64::from(word(at + 28)) << 32);
        }
        at += word(at + 4) as usize;
    }
    found
}

#[test]
fn lost_frames_are_said_once_for_each_new_number() {
    let frame = frame();
    let mut out = Writer::new();
    for (channel, lost) in [
        (0, 0),
        (0, 0),
        (0, 3),
        (1, 0),
        (0, 3),
        (1, 2),
        (0, 10),
        (1, 2),
    ] {
        let note = CaptureNote {
            endpoint: 7,
            lost,
            ..CaptureNote::default()
        };
        out.packet(channel, &note, frame.len(), |into| {
            into.copy_from_slice(&frame)
        });
    }
    assert_eq!(lost(out.bytes()), [3, 5, 12], "of both channels together");
    assert_eq!(tshark(out.bytes()).len(), 8, "tshark reads past them");
}
