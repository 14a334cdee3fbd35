use super::*;
use Errno::{EADDRNOTAVAIL, EAFNOSUPPORT, EALREADY, EINVAL, EISCONN, ENETUNREACH, ENOTCONN};

/// How a socket came to where it is; cookie 1, of IPv4.
fn come_to(way: &str) -> Table {
    let mut table = table();
    let target = bytes(Family::V4, LO4, 5000);
    table.create(1, 0, Family::V4, 0).unwrap();
    for step in way.split(' ') {
        match step {
            "fresh" => {}
            "bound" => table.bind(1, &bytes(Family::V4, LO4, 0), false, 1).unwrap(),
            "anyport" => table
                .bind(1, &bytes(Family::V4, ANY4, 33333), false, 1)
                .unwrap(),
            "listening" => table.listen(1, 5, [1; 16], 2).unwrap(),
            "connecting" => {
                table.connect_begin(1, &target, 3).unwrap();
            }
            "connected" => {
                table.connect_begin(1, &target, 3).unwrap();
                table.connected(1).unwrap();
            }
            "failed" => {
                table.connect_begin(1, &target, 3).unwrap();
                table.connect_failed(1).unwrap();
            }
            "gone" => table.disconnect(1).unwrap(),
            other => panic!("{other}"),
        }
    }
    table
}

/// A way, and of where it leads: own address; bind, listen and connect (no error: `None`),
/// and whether the port that it had stays through listen.
#[test]
fn each_transition() {
    type Row = (
        &'static str,
        Ip,
        Option<Errno>,
        Option<Errno>,
        Option<Errno>,
        bool,
    );
    let rows: [Row; 14] = [
        ("fresh", ANY4, None, None, None, false),
        ("bound", LO4, Some(EINVAL), None, None, true),
        ("bound gone", LO4, Some(EINVAL), None, None, true),
        ("listening", ANY4, Some(EINVAL), None, Some(EISCONN), true),
        (
            "bound listening",
            LO4,
            Some(EINVAL),
            None,
            Some(EISCONN),
            true,
        ),
        (
            "connecting",
            LO4,
            Some(EINVAL),
            Some(EINVAL),
            Some(EALREADY),
            true,
        ),
        (
            "connected",
            LO4,
            Some(EINVAL),
            Some(EINVAL),
            Some(EISCONN),
            true,
        ),
        (
            "bound connected",
            LO4,
            Some(EINVAL),
            Some(EINVAL),
            Some(EISCONN),
            true,
        ),
        ("failed", ANY4, None, None, None, false),
        ("bound failed", LO4, None, None, None, false),
        ("connected gone", ANY4, None, None, None, false),
        ("bound connected gone", LO4, None, None, None, false),
        ("bound listening gone", LO4, None, None, None, false),
        // A port that it chose itself stays.
        ("anyport failed", ANY4, Some(EINVAL), None, None, true),
    ];
    for (way, ip, bind, listen, connect, stays) in rows {
        // Another in its place is as it is once it is disconnected.
        let mut table = come_to(way);
        table.create_anew(2, 1).unwrap();
        let told = |it: &Socket| (it.state(), it.local(), it.remote(), it.name());
        let gone = come_to(&format!("{way} gone"));
        let anew = table.socket(2).map(told);
        assert_eq!(anew, gone.socket(1).map(told), "{way}");
        let local = come_to(way).socket(1).unwrap().local();
        assert_eq!(local.ip, ip, "{way}");
        // What was given up is still told.
        assert_eq!(local.port == 0, way == "fresh", "{way}");
        let any = bytes(Family::V4, ANY4, 0);
        assert_eq!(
            come_to(way).bind(1, &any, false, 77).err(),
            bind,
            "bind {way}"
        );
        let foreign = bytes(Family::V4, v4([10, 1, 1, 1]), 0);
        let got = come_to(way).bind(1, &foreign, false, 7).err();
        assert_eq!(got, Some(EADDRNOTAVAIL), "bind to a foreign address {way}");
        let mut table = come_to(way);
        assert_eq!(
            table.listen(1, 5, [1; 16], 99).err(),
            listen,
            "listen {way}"
        );
        let port = table.socket(1).unwrap().local().port;
        assert_eq!(port == local.port, stays, "{way}");
        let target = bytes(Family::V4, LO4, 5001);
        assert_eq!(
            come_to(way).connect_begin(1, &target, 9).err(),
            connect,
            "connect {way}"
        );
        // The state is looked at before the address, but after its first two bytes.
        let got = come_to(way)
            .connect_begin(1, &bytes(Family::V6, LO6, 1), 9)
            .err();
        assert_eq!(got, connect.or(Some(EAFNOSUPPORT)), "connect to IPv6 {way}");
        assert_eq!(
            come_to(way).connect_begin(1, &[2], 9).err(),
            Some(EINVAL),
            "{way}"
        );
        assert_eq!(
            come_to(way).connect_begin(1, &[0; 2], 9),
            Ok(Connect::Disconnected)
        );
        let peer = come_to(way).getpeername(1).err();
        assert_eq!(
            peer,
            (!way.ends_with("connected")).then_some(ENOTCONN),
            "{way}"
        );
    }
}

/// Bound to (or not), connected to, and both ends or the error.
#[test]
fn the_way_of_a_connection() {
    type Row = (Family, Option<Ip>, Ip, Result<(Ip, Ip), Errno>);
    let (four, six) = (Family::V4, Family::V6);
    let far4 = v4([10, 0, 0, 9]);
    let rows: [Row; 19] = [
        (four, None, LO4, Ok((LO4, LO4))),
        (
            four,
            None,
            v4([127, 0, 0, 9]),
            Ok((LO4, v4([127, 0, 0, 9]))),
        ),
        (four, None, ANY4, Ok((LO4, LO4))),
        (four, Some(LO4B), ANY4, Ok((LO4B, LO4B))),
        (four, Some(ANY4), LO4, Ok((LO4, LO4))),
        (four, None, v4([224, 0, 0, 1]), Err(ENETUNREACH)),
        (four, None, v4([255; 4]), Err(ENETUNREACH)),
        (six, None, LO4, Ok((LO4, LO4))),
        (six, None, ANY6, Ok((LO6, LO6))),
        (six, None, ANY4, Ok((LO4, LO4))),
        (six, Some(LO6), LO4, Err(ENETUNREACH)),
        (six, Some(LO4), LO6, Err(EAFNOSUPPORT)),
        (six, Some(LO4), ANY6, Ok((LO4, LO4))),
        (six, Some(ANY6), LO4, Ok((LO4, LO4))),
        // Not measured, for want of a device: own addresses.
        (four, None, OWN4, Ok((OWN4, OWN4))),
        (four, None, far4, Ok((OWN4, far4))),
        (six, None, OWN6, Ok((OWN6, OWN6))),
        (four, Some(OWN4), LO4, Ok((OWN4, LO4))),
        (four, Some(LO4), far4, Err(EINVAL)),
    ];
    for (family, bound, to, expected) in rows {
        let mut table = table();
        table.create(1, 0, family, 0).unwrap();
        if let Some(ip) = bound {
            table.bind(1, &bytes(family, ip, 0), false, 0).unwrap();
        }
        let got = table
            .connect_begin(1, &bytes(family, to, 80), 0)
            .map(|it| match it {
                Connect::To { local, remote, .. } => (local.ip, remote.ip),
                Connect::Disconnected => panic!("disconnected"),
            });
        assert_eq!(got, expected, "{family:?} {bound:?} {to:?}");
    }
}

#[test]
fn two_connections_differ() {
    let mut table = table();
    for cookie in [1, 2] {
        table.create(cookie, 0, Family::V4, 0).unwrap();
        table.set_option(cookie, 1, 2, &[1, 0, 0, 0]).unwrap();
        table
            .bind(cookie, &bytes(Family::V4, LO4, 5200), false, 0)
            .unwrap();
    }
    let target = bytes(Family::V4, LO4, 5000);
    assert!(table.connect_begin(1, &target, 0).is_ok());
    assert_eq!(table.connect_begin(2, &target, 0), Err(EADDRNOTAVAIL));
}

/// By the kernel's source: with `IP_BIND_ADDRESS_NO_PORT` connect chooses the port.
#[test]
fn an_address_without_a_port() {
    let mut table = table();
    table.create(1, 0, Family::V4, 0).unwrap();
    table.set_option(1, 0, 24, &[1]).unwrap();
    table
        .bind(1, &bytes(Family::V4, LO4B, 0), false, 0)
        .unwrap();
    assert_eq!(table.getsockname(1), Ok((Family::V4, at(LO4B, 0))));
    table
        .connect_begin(1, &bytes(Family::V4, LO4, 80), 5)
        .unwrap();
    assert_eq!(table.getsockname(1), Ok((Family::V4, at(LO4B, 32773))));
}

/// By the kernel's source (`__inet_hash_connect`): a port that connect chose serves it again, to elsewhere.
#[test]
fn a_port_that_was_bound_is_no_other_connections() {
    let mut table = table();
    for cookie in 1..5 {
        table.create(cookie, 0, Family::V4, 0).unwrap();
    }
    let bound = bytes(Family::V4, ANY4, 32773);
    table.bind(1, &bound, false, 0).unwrap();
    let mut port_of = |cookie, to| {
        let target = bytes(Family::V4, LO4, to);
        table.connect_begin(cookie, &target, 5).unwrap();
        table.getsockname(cookie).unwrap().1.port
    };
    assert_eq!(port_of(1, 80), 32773);
    assert_eq!(port_of(2, 81), 32774);
    assert_eq!(port_of(3, 82), 32774, "shared");
    assert_eq!(port_of(4, 81), 32775, "not to the same place");
}

/// The number of a connect is none of one that was accepted, however many there were.
#[test]
fn a_connect_has_a_number_after_the_last_one_too() {
    let mut table = come_to("failed");
    let (at, mut socket) = table.find(1).unwrap();
    socket.generation = u32::MAX;
    table.sockets.put(at, crate::record::Slot::Socket(socket));
    let target = bytes(Family::V4, LO4, 5000);
    let Ok(Connect::To { generation, .. }) = table.connect_begin(1, &target, 3) else {
        panic!("it may connect again");
    };
    assert_eq!(generation, 1);
    assert_eq!(table.connected(1), Ok(()));
}
