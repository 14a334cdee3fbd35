use super::*;
use crate::options::place;

/// What was measured of an unprivileged user's new socket, every option of four levels.
const MEASURED: &str = include_str!("measured.txt");

/// The same of UDP.
const MEASURED_UDP: &str = include_str!("measured_udp.txt");

/// Where a circuit answers otherwise, and why.
fn differs(level: i32, name: i32) -> bool {
    match level {
        // PEEK_OFF (42), filters (50, 52) and ZEROCOPY are refused; BINDTOIFINDEX knows no device;
        // CNX_ADVICE, NETNS_COOKIE, TXREHASH, DEVMEM_DONTNEED are not known.
        1 => matches!(name, 42 | 50 | 52 | 53 | 60 | 62 | 71 | 74 | 80),
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

/// And where UDP's answer differs besides.
fn differs_udp(level: i32, name: i32) -> bool {
    match level {
        // How long a send waits is not the program's to say; filters are refused.
        1 => matches!(name, 21 | 26 | 67) || name != 42 && differs(1, name),
        // ECN's bits are not kept; what was set of groups and fragments is not read back.
        0 => matches!(name, 1 | 25 | 32 | 33) || differs(0, name),
        41 => matches!(name, 17 | 18 | 67) || differs(41, name),
        // CORK, SEGMENT, GRO: one call sends one datagram. ENCAP, NO_CHECK6.
        17 => matches!(name, 1 | 100..=104),
        _ => false,
    }
}

fn facts(family: Family, state: State) -> Facts {
    Facts {
        kind: Kind::Stream,
        family,
        state,
        held: state != State::Fresh,
        peer: None,
        waiting: 0,
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
    answered(Kind::Stream, MEASURED, differs);
    answered(Kind::Datagram, MEASURED_UDP, differs_udp);
}

fn answered(kind: Kind, measured: &str, differs: fn(i32, i32) -> bool) {
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
    for line in measured.lines().filter(|it| !it.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let (level, name) = (words[0].parse().unwrap(), words[1].parse().unwrap());
        if differs(level, name) {
            continue;
        }
        for (word, family) in [("v4", Family::V4), ("v6", Family::V6)] {
            if words[2] != word && (words[2] != "both" || (level == 41 && word == "v4")) {
                continue;
            }
            let at = Facts {
                kind,
                ..facts(family, State::Fresh)
            };
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
    let listens = Facts {
        waiting: 3,
        ..facts(Family::V4, State::Listening { backlog: 5 })
    };
    let queue = "0300000005000000";
    let said = told(&options.read(&listens, 6, 11, 32));
    assert!(said.starts_with("32:0a") && said.ends_with(queue), "{said}");
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

#[test]
fn what_a_datagram_socket_answers_itself() {
    let at = Facts {
        kind: Kind::Datagram,
        ..facts(Family::V6, State::Fresh)
    };
    let mut options = Options::default();
    let on = 1_i32.to_ne_bytes();
    for (level, name) in [(17, 1), (17, 103), (17, 104), (6, 1)] {
        let refused = Outcome::Fails(Errno::ENOPROTOOPT);
        assert_eq!(
            options.set(&at, level, name, &on),
            refused,
            "{level} {name}"
        );
    }
    assert_eq!(options.packet_info(), (false, false));
    for (level, name) in [(0, 8), (41, 49)] {
        assert_eq!(options.set(&at, level, name, &on), Outcome::Accepted);
    }
    assert_eq!(options.packet_info(), (true, true));
    assert_eq!(options.asks_hops(), [false; 4]);
    assert_eq!(options.hops(), [64, 0, 64, 0]);
    for (n, name) in [(0, 12), (0, 13), (41, 51), (41, 66)].iter().enumerate() {
        let outcome = options.set(&at, name.0, name.1, &on);
        assert_eq!(outcome, Outcome::Accepted);
        assert!(options.asks_hops()[..=n].iter().all(|asks| *asks));
    }
    for (name, value) in [((0, 2), 3_i32), ((0, 1), 8), ((41, 16), 5), ((41, 67), 16)] {
        let outcome = options.set(&at, name.0, name.1, &value.to_ne_bytes());
        assert_eq!(outcome, Outcome::Accepted);
    }
    assert_eq!(options.hops(), [3, 8, 5, 16]);
    // A send's wait is read as none, whatever was set.
    assert_eq!(options.set(&at, 1, 21, &[7; 16]), Outcome::Accepted);
    assert_eq!(options.read(&at, 1, 21, 16), Outcome::Answer(vec![0; 16]));
    assert_eq!(options.set(&at, 1, 21, &on), Outcome::Fails(Errno::EINVAL));
    assert_eq!(options.set(&at, 0, 33, &[5]), Outcome::Accepted);
    assert_eq!(
        options.set(&at, 0, 33, &300_i32.to_ne_bytes()),
        Outcome::Fails(Errno::EINVAL)
    );
}
