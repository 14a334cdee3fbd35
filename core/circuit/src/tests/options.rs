use super::*;
use crate::options::place;

/// What was measured of an unprivileged user's new socket, every option of four levels.
const MEASURED: &str = include_str!("measured.txt");

/// Where a circuit answers otherwise, and why.
fn differs(level: i32, name: i32) -> bool {
    match level {
        // Filters (50, 52) and ZEROCOPY are refused; BINDTOIFINDEX knows no device;
        // CNX_ADVICE, NETNS_COOKIE, TXREHASH, DEVMEM_DONTNEED are not known.
        1 => matches!(name, 50 | 52 | 53 | 60 | 62 | 71 | 74 | 80),
        // NODELAY is always set: programs' filter sees to it that nobody asks (1). The measuring
        // host has bbr (13, 26); TIMESTAMP (24) is a clock's; the control
        // messages of INQ (36) would not come; TX_DELAY and those of the newest kernels.
        6 => matches!(name, 1 | 13 | 24 | 26 | 36 | 37 | 42 | 44 | 45),
        // OPTIONS are not set; a range of ports is not looked at; tables of xtables, and
        // what was measured of groups and fragments is not known.
        0 => matches!(name, 4 | 26 | 49 | 51 | 64 | 80),
        // MTU and what was measured of routing headers and xtables is not known.
        _ => matches!(name, 24 | 31 | 57 | 61 | 64 | 65 | 68 | 69 | 72 | 77 | 80),
    }
}

fn facts(family: Family, state: State) -> Facts {
    Facts {
        family,
        state,
        held: state != State::Fresh,
        peer: None,
    }
}

fn told(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Native => "native".into(),
        Outcome::Accepted => "ok".into(),
        Outcome::Fails(errno) => format!("{errno:?}"),
        Outcome::Answer(bytes) => {
            let hex: String = bytes.iter().map(|it| format!("{it:02x}")).collect();
            format!("{}:{hex}", bytes.len())
        }
    }
}

#[test]
fn options_are_answered_as_measured() {
    let values: [&[u8]; 7] = [
        &[],
        &[1],
        &[1, 0, 0],
        &0_i32.to_ne_bytes(),
        &1_i32.to_ne_bytes(),
        &(-1_i32).to_ne_bytes(),
        &100_000_i32.to_ne_bytes(),
    ];
    let (mut wrong, mut same) = (Vec::new(), 0);
    for line in MEASURED.lines().filter(|it| !it.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let (level, name) = (words[0].parse().unwrap(), words[1].parse().unwrap());
        if differs(level, name) {
            continue;
        }
        for (word, family) in [("v4", Family::V4), ("v6", Family::V6)] {
            if words[2] != word && (words[2] != "both" || (level == 41 && word == "v4")) {
                continue;
            }
            let at = facts(family, State::Fresh);
            let read = told(&Options::default().read(&at, level, name, 4));
            if read != "native" && read != words[3] {
                wrong.push(format!("read {line}: {read}"));
            }
            for (value, expected) in values.iter().zip(&words[4..]) {
                let mut options = Options::default();
                let mut got = told(&options.set(&at, level, name, value));
                if got == "ok" && expected.contains('=') {
                    got = format!("ok={}", told(&options.read(&at, level, name, 4)));
                }
                if got != "native" && got != *expected {
                    wrong.push(format!("set {value:?} {line}: {got}"));
                }
                same += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(same > 1000, "{same}");
}

#[test]
fn what_circuits_answer_themselves() {
    let at = facts(Family::V4, State::Connected);
    let mut options = Options::default();
    let read = |options: &Options, name, room| told(&options.read(&at, 6, name, room));
    assert_eq!(
        read(&options, 13, 16),
        "16:63756269630000000000000000000000"
    );
    assert_eq!(read(&options, 13, 3), "3:637562");
    assert_eq!(read(&options, 11, -1), "EINVAL");
    let Outcome::Answer(info) = options.read(&at, 6, 11, 104) else {
        panic!("no TCP_INFO")
    };
    assert_eq!((info.len(), info[0]), (104, 1));
    assert_eq!(read(&options, 1, 4), "4:01000000");
    assert_eq!(options.set(&at, 6, 13, b"cubic"), Outcome::Accepted);
    assert_eq!(
        options.set(&at, 6, 13, b"reno"),
        Outcome::Fails(Errno::ENOENT)
    );
    assert_eq!(options.set(&at, 1, 25, b"lo\0"), Outcome::Accepted);
    assert_eq!(
        options.set(&at, 1, 25, b"eth0"),
        Outcome::Fails(Errno::ENODEV)
    );
    assert_eq!(
        told(&options.read(&at, 1, 17, 64)),
        "12:00000000ffffffffffffffff"
    );
    assert_eq!(
        options.read(&at, 41, 26, 4),
        Outcome::Fails(Errno::EOPNOTSUPP)
    );
    // IPv6 sockets: the family is decided with the port.
    let bound = facts(Family::V6, State::Bound);
    assert_eq!(
        options.set(&bound, 41, 26, &[1, 0, 0, 0]),
        Outcome::Fails(Errno::EINVAL)
    );
    let peer = Facts {
        peer: Some(at_peer()),
        ..at
    };
    let whole = told(&options.read(&peer, 1, 28, 16));
    assert_eq!(
        whole,
        "16:0200138810000005".replace("10000005", "0a000005") + "0000000000000000"
    );
}

fn at_peer() -> Endpoint {
    at(OWN4, 5000)
}

#[test]
fn every_option_has_one_place() {
    for (at, option) in crate::options::INTS.iter().enumerate() {
        assert_eq!(place(option.level, option.name), Some(at));
        assert!(option.is_kept(option.default));
    }
}
