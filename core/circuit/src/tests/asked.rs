use super::*;
use Errno::{EACCES, EAFNOSUPPORT, EINVAL, EPERM, EPROTONOSUPPORT, ESOCKTNOSUPPORT};

#[test]
fn streams_and_datagrams() {
    for (domain, family) in [(2, Family::V4), (10, Family::V6)] {
        for protocol in [0, 6, 262] {
            let stream = Asked::Stream {
                family,
                nonblock: true,
                cloexec: true,
            };
            assert_eq!(asked(domain, 1 | 0x800 | 0x80000, protocol), stream);
        }
        let datagram = Asked::Datagram {
            family,
            nonblock: false,
            cloexec: true,
        };
        assert_eq!(asked(domain, 2 | 0x80000, 17), datagram);
    }
}

/// Of an unprivileged user.
#[test]
fn the_rest_is_refused_as_linux_refuses_it() {
    let refusals = [
        ((0, 1, 0), EAFNOSUPPORT),
        ((0, 11, 0), EINVAL),
        ((45, 1, 0), EAFNOSUPPORT),
        ((46, 11, 0), EAFNOSUPPORT),
        ((46, 17, 0), EINVAL),
        ((2, 0, 0), ESOCKTNOSUPPORT),
        ((2, 1, 17), EPROTONOSUPPORT),
        ((2, 1, 132), EPROTONOSUPPORT),
        ((2, 1, 256), EPROTONOSUPPORT),
        ((2, 1, 263), EINVAL),
        ((2, 1, -1), EINVAL),
        ((2, 2, 1), EACCES),
        ((2, 2, 58), EPROTONOSUPPORT),
        ((10, 2, 58), EACCES),
        ((10, 2, 1), EPROTONOSUPPORT),
        ((2, 3, 0), EPROTONOSUPPORT),
        ((2, 3, 1), EPERM),
        ((10, 3, 255), EPERM),
        ((2, 4, 0), ESOCKTNOSUPPORT),
        ((2, 5, 132), ESOCKTNOSUPPORT),
        ((2, 6, 33), ESOCKTNOSUPPORT),
        ((2, 10, 0), EPERM),
        ((2, 10, -1), EPERM),
        ((10, 10, 0), ESOCKTNOSUPPORT),
        ((2, 15, 0), EINVAL),
        ((2, 1 | 0x100, 0), EINVAL),
        ((17, 3, 0), EPERM),
        ((44, 3, 0), EPERM),
        // Loaded where it was measured; a circuit has none.
        ((40, 1, 0), EAFNOSUPPORT),
        ((38, 5, 0), EAFNOSUPPORT),
    ];
    for ((domain, kind, protocol), errno) in refusals {
        let got = asked(domain, kind, protocol);
        assert_eq!(
            got,
            Asked::Refused(errno),
            "socket({domain}, {kind}, {protocol})"
        );
    }
}
