use super::*;

const PLACES: [(&str, Family, Ip, bool); 8] = [
    ("4any", Family::V4, ANY4, false),
    ("4lo", Family::V4, LO4, false),
    ("4lo2", Family::V4, LO4B, false),
    ("6any", Family::V6, ANY6, false),
    ("6anyonly", Family::V6, ANY6, true),
    ("6lo", Family::V6, LO6, false),
    ("6map", Family::V6, LO4, false),
    ("6mapany", Family::V6, ANY4, false),
];

/// Which of them overlap, row and column in the order of [`PLACES`].
const OVERLAP: [&str; 8] = [
    "XXXX..XX", "XX.X..XX", "X.XX...X", "XXXXXXXX", "...XXX..", "...XXX..", "XX.X..XX", "XXXX..XX",
];

/// Where they overlap: the first's reuse (none, address, port, both), then the second's, and
/// for each whether the first is bound or listens.
const SHARED: &str = "XXXXXXXXXX.XXX.XXXXX....XX.X....";

fn socket(
    table: &mut Table,
    cookie: u64,
    place: usize,
    reuse: usize,
    uid: u32,
) -> Result<(), Errno> {
    let (_, family, ip, v6only) = PLACES[place];
    table.create(cookie, 0, family, uid).unwrap();
    let on = 1_i32.to_ne_bytes();
    if v6only {
        assert_eq!(table.set_option(cookie, 41, 26, &on), Ok(Outcome::Accepted));
    }
    if reuse & 1 != 0 {
        assert_eq!(table.set_option(cookie, 1, 2, &on), Ok(Outcome::Accepted));
    }
    if reuse & 2 != 0 {
        assert_eq!(table.set_option(cookie, 1, 15, &on), Ok(Outcome::Accepted));
    }
    table.bind(cookie, &bytes(family, ip, 8000), false, 0)
}

#[test]
fn the_matrix_of_conflicts() {
    for (first, row) in OVERLAP.iter().enumerate() {
        for (second, overlaps) in row.chars().enumerate() {
            for (case, shared) in SHARED.chars().enumerate() {
                let mut table = table();
                socket(&mut table, 1, first, case / 8, 0).unwrap();
                if case % 2 == 1 {
                    table.listen(1, 5, [1; 16], 0).unwrap();
                }
                let got = socket(&mut table, 2, second, case / 2 % 4, 0);
                let taken = overlaps == 'X' && shared == 'X';
                let expected = if taken {
                    Err(Errno::EADDRINUSE)
                } else {
                    Ok(())
                };
                let names = (PLACES[first].0, PLACES[second].0);
                assert_eq!(got, expected, "{names:?} case {case}");
                if got.is_ok() {
                    assert_eq!(
                        table.listen(2, 5, [2; 16], 0),
                        Ok(()),
                        "{names:?} case {case}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_port_is_shared_by_one_user_alone_and_within_one_endpoint_alone() {
    let mut table = table();
    socket(&mut table, 1, 0, 2, 7).unwrap();
    assert_eq!(socket(&mut table, 2, 0, 2, 8), Err(Errno::EADDRINUSE));
    table.create(3, 1, Family::V4, 8).unwrap();
    assert_eq!(
        table.bind(3, &bytes(Family::V4, ANY4, 8000), false, 0),
        Ok(())
    );
}

#[test]
fn of_two_that_reuse_an_address_one_listens() {
    let mut table = table();
    socket(&mut table, 1, 1, 1, 0).unwrap();
    socket(&mut table, 2, 1, 1, 0).unwrap();
    assert_eq!(table.listen(1, 1, [1; 16], 0), Ok(()));
    assert_eq!(table.listen(2, 1, [2; 16], 0), Err(Errno::EADDRINUSE));
}

/// In the order in which Linux looks.
#[test]
fn addresses_and_ports_that_cannot_be_had() {
    let foreign = v4([10, 1, 1, 1]);
    for (ip, port, privileged, expected) in [
        (foreign, 80, false, Err(Errno::EADDRNOTAVAIL)),
        (LO4, 80, false, Err(Errno::EACCES)),
        (LO4, 1023, false, Err(Errno::EACCES)),
        (LO4, 1024, false, Ok(())),
        (LO4, 80, true, Ok(())),
        (OWN4, 0, false, Ok(())),
        (v4([127, 9, 9, 9]), 0, false, Ok(())),
    ] {
        let mut table = table();
        table.create(1, 0, Family::V4, 0).unwrap();
        let got = table.bind(1, &bytes(Family::V4, ip, port), privileged, 0);
        assert_eq!(got, expected, "{ip:?} {port}");
    }
}

/// Not measured at this size: with a range of one port.
#[test]
fn ports_run_out() {
    let own = Addresses::new(&[OWN4]).unwrap();
    let mut table = Table::new(
        Limits {
            sockets: 30000,
            pending: 1,
        },
        vec![own],
    );
    let any = bytes(Family::V4, LO4, 0);
    for cookie in 0..28232 {
        table.create(cookie, 0, Family::V4, 0).unwrap();
        table.bind(cookie, &any, false, cookie as u32).unwrap();
    }
    for cookie in 29000..29003 {
        table.create(cookie, 0, Family::V4, 0).unwrap();
    }
    assert_eq!(table.bind(29000, &any, false, 9), Err(Errno::EADDRINUSE));
    assert_eq!(table.listen(29001, 1, [0; 16], 9), Err(Errno::EADDRINUSE));
    let target = bytes(Family::V4, LO4, 80);
    table
        .bind(29002, &bytes(Family::V4, LO4B, 0), false, 9)
        .unwrap();
    assert_eq!(
        table.connect_begin(29001, &target, 9),
        Err(Errno::EADDRNOTAVAIL)
    );
}

/// Measured: what has no connection outlives its address, is not reached meanwhile and reaches nobody.
#[test]
fn an_address_goes_and_comes_back() {
    let mut table = table();
    for (cookie, port) in [(1, 80), (2, 81), (3, 82)] {
        table.create(cookie, 0, Family::V4, 0).unwrap();
        let to = bytes(Family::V4, OWN4, port);
        table.bind(cookie, &to, true, 0).unwrap();
    }
    table.listen(1, 8, [1; 16], 0).unwrap();
    table.create_datagram(4, 0, Family::V4, [4; 16]).unwrap();
    table
        .bind(4, &bytes(Family::V4, OWN4, 53), true, 0)
        .unwrap();
    let far = bytes(Family::V4, v4([10, 0, 0, 6]), 80);
    table.connect_begin(3, &far, 0).unwrap();
    let to = |ip, port| Endpoint { ip, port };
    let restored = |table: &Table, all: &[Ip]| {
        let page: Vec<_> = (0..table.slots()).map(|it| table.record(it)).collect();
        let mut endpoints = table.endpoints.clone();
        endpoints[0] = Addresses::new(all).unwrap();
        Table::restore(table.limits, endpoints, (0..).zip(&page))
    };
    let (mut gone, rejected) = restored(&table, &[OWN6]);
    assert_eq!(rejected.len(), 1);
    assert!(gone.socket(3).is_none());
    assert_eq!(gone.find_listener(0, to(OWN4, 80), 0), None);
    let (_, local) = gone.getsockname(1).unwrap();
    assert_eq!(local, to(OWN4, 80));
    for to in [&far, &bytes(Family::V4, LO4, 80)] {
        assert_eq!(gone.connect_begin(2, to, 0), Err(Errno::ENETUNREACH));
    }
    let way = gone.way(4, to(LO4, 53), None);
    assert_eq!(way.unwrap_err(), Errno::ENETUNREACH);
    gone.create(5, 0, Family::V4, 0).unwrap();
    let bound = gone.bind(5, &bytes(Family::V4, OWN4, 0), true, 0);
    assert_eq!(bound, Err(Errno::EADDRNOTAVAIL));
    let (mut again, rejected) = restored(&gone, &[OWN4, OWN6]);
    assert_eq!(rejected, Vec::<u32>::new());
    let found = again.find_listener(0, to(OWN4, 80), 0);
    assert_eq!(found.map(|it| it.cookie), Some(1));
    assert!(again.connect_begin(2, &far, 0).is_ok());
}
