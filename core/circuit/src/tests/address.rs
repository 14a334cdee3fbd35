use super::*;
use Errno::{EAFNOSUPPORT, EINVAL, ENETUNREACH};

/// A name, its bytes, and whether connect and bind fail on a socket of IPv4, of both and of
/// IPv6 alone. The port is 5000.
type Case = (
    &'static str,
    Vec<u8>,
    [Option<Errno>; 3],
    [Option<Errno>; 3],
);

fn cases() -> Vec<Case> {
    let four = |ip| bytes(Family::V4, v4(ip), 5000);
    let six = |ip: Ip| bytes(Family::V6, ip, 5000);
    let named = |mut bytes: Vec<u8>, family: u16| {
        bytes[..2].copy_from_slice(&family.to_ne_bytes());
        bytes
    };
    let padded = |mut bytes: Vec<u8>, length| {
        bytes.resize(length, 0);
        bytes
    };
    let local = four([127, 0, 0, 1]);
    let loopback = six(LO6);
    let (ok, inval, family) = ([None; 3], [Some(EINVAL); 3], [Some(EAFNOSUPPORT); 3]);
    let v4_only = [None, Some(EINVAL), Some(EINVAL)];
    let v6_only = [Some(EAFNOSUPPORT), None, None];
    let wrong = [Some(EAFNOSUPPORT), Some(EINVAL), Some(EINVAL)];
    let mut link = [0; 16];
    (link[0], link[1], link[15]) = (0xfe, 0x80, 1);
    let mut scoped = six(link);
    scoped[24] = 1;
    let mut group = [0; 16];
    (group[0], group[15]) = (0xff, 1);
    let mapped = [Some(EAFNOSUPPORT), None, Some(EINVAL)];
    let mapped_connect = [Some(EAFNOSUPPORT), None, Some(ENETUNREACH)];
    vec![
        ("empty", vec![], inval, inval),
        ("one byte", vec![2], inval, inval),
        ("family alone", vec![2, 0], inval, inval),
        ("family 6 alone", vec![10, 0], inval, inval),
        ("unspecified alone", vec![0, 0], ok, inval),
        ("unspecified any", named(four([0; 4]), 0), ok, v4_only),
        ("unspecified address", named(local.clone(), 0), ok, wrong),
        (
            "unspecified 28",
            named(six([0; 16]), 0),
            ok,
            [None, family[1], family[2]],
        ),
        ("unspecified 8", vec![0; 8], ok, inval),
        ("15", local[..15].to_vec(), inval, inval),
        ("16", local.clone(), v4_only, v4_only),
        (
            "128",
            padded(local.clone(), 128),
            [None, family[1], family[2]],
            [None, family[1], family[2]],
        ),
        ("129", padded(local.clone(), 129), inval, inval),
        ("24", loopback[..24].to_vec(), v6_only, v6_only),
        ("23", loopback[..23].to_vec(), wrong, wrong),
        ("28", loopback.clone(), v6_only, v6_only),
        ("unix 16", named(local.clone(), 1), wrong, wrong),
        ("unix 28", named(loopback, 1), family, family),
        ("unix 4", vec![1, 0, 1, 2], inval, inval),
        ("family 99", named(local.clone(), 99), wrong, wrong),
        ("family -1", named(local, 0xffff), wrong, wrong),
        ("mapped", six(LO4), mapped_connect, mapped),
        ("mapped any", six(ANY4), mapped_connect, mapped),
        ("link without scope", six(link), wrong, wrong),
        ("link", scoped, v6_only, v6_only),
        // Connecting to a group is refused later, for want of a way.
        ("group", six(group), v6_only, wrong),
    ]
}

#[test]
fn addresses_are_read_as_linux_reads_them() {
    let sockets = [(Family::V4, false), (Family::V6, false), (Family::V6, true)];
    for (name, bytes, connect, bind) in cases() {
        for (place, (family, v6only)) in sockets.into_iter().enumerate() {
            let got = parse_connect(family, v6only, &bytes).err();
            assert_eq!(got, connect[place], "connect {name} {family:?} {v6only}");
            let got = parse_bind(family, v6only, &bytes).err();
            assert_eq!(got, bind[place], "bind {name} {family:?} {v6only}");
        }
    }
}

#[test]
fn what_is_written_is_read_back() {
    for (family, ip) in [(Family::V4, LO4), (Family::V6, LO4), (Family::V6, OWN6)] {
        let end = at(ip, 1234);
        let written = bytes(family, ip, 1234);
        assert_eq!(parse_connect(family, false, &written), Ok(Named::At(end)));
        assert_eq!(parse_bind(family, false, &written), Ok(end));
    }
    assert_eq!(
        bytes(Family::V4, LO4, 258),
        [2, 0, 1, 2, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    );
}
