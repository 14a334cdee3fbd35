//! What is joined, refused, bounded and over.

use super::*;

fn relay(id: u64) -> Relay {
    let (from, from_port) = tcp::numbers("127.0.0.1:0".parse().unwrap());
    Relay {
        id,
        from,
        to: from,
        from_port,
        to_port: 9,
    }
}

/// One with a link, and the operator's end of it.
fn linked() -> (Proxy, Socket) {
    let (control, _) = Socket::pair().unwrap();
    let (link, operator) = Socket::pair().unwrap();
    let mut proxy = Proxy::new(control, u64::MAX).unwrap();
    proxy.begin_link(link, 1).unwrap();
    (proxy, operator)
}

#[test]
fn as_many_wait_as_may() {
    let (mut proxy, _operator) = linked();
    for id in 0..UNJOINED as u64 {
        let (fd, _) = rustix::pipe::pipe().unwrap();
        let waits = Waits {
            fd,
            ready: true,
            since: Instant::now(),
            came: None,
        };
        proxy.waits.insert(id, waits);
    }
    assert_eq!(proxy.begin(&relay(7_000)), Err(Errno::NFILE));
    proxy.waits.remove(&3);
    assert_ne!(proxy.begin(&relay(7_000)), Err(Errno::NFILE));
}

#[test]
fn what_the_operator_before_had_not_got_is_over() {
    let (mut proxy, operator) = linked();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, port) = tcp::numbers(listener.local_addr().unwrap());
    let body = Relay {
        to: at,
        to_port: port,
        ..relay(5)
    };
    operator.send(&Message::new(0, &body), &[]).unwrap();
    proxy.hear().unwrap();
    assert_eq!(proxy.waits.len(), 1);
    let (_far, _) = listener.accept().unwrap();
    drop(operator);
    proxy.hear().unwrap();
    assert!(proxy.link.is_none() && proxy.waits.is_empty());
    // Nobody is left to be told.
    proxy.relayed(5, Ok(()));
    assert!(proxy.unsaid.is_empty());
}

/// A connection of TCP that waits for its circuit, by this number.
fn waits(proxy: &mut Proxy, id: u64) {
    let (fd, _) = std::os::unix::net::UnixStream::pair().unwrap();
    let waits = Waits {
        fd: fd.into(),
        ready: true,
        since: Instant::now(),
        came: None,
    };
    proxy.waits.insert(id, waits);
}

#[test]
fn what_an_operator_gave_before_it_died_is_not_lost_with_it() {
    let (mut proxy, operator) = linked();
    let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    waits(&mut proxy, 9);
    let message = Message::new(0, &Join { id: 9 });
    operator.send(&message, &[near.as_fd()]).unwrap();
    drop(operator);
    // Its successor is there before anything was heard.
    let (link, _successor) = Socket::pair().unwrap();
    proxy.begin_link(link, 1).unwrap();
    assert_eq!(proxy.joined.len(), 1);
}

/// What is listened for goes on for the next operator, with who waits there and who waits for an answer; and ends with who
/// says otherwise, or nothing.
#[test]
fn who_comes_while_an_operator_is_replaced_waits_for_the_next() {
    let (ip, _) = tcp::numbers("127.0.0.1:0".parse().unwrap());
    let serve = |id: u64| Serve {
        id,
        ip,
        backlog: 8,
        ..Serve::default()
    };
    let at = |proxy: &Proxy| -> SocketAddr {
        let served = proxy.served.values().next().unwrap();
        rustix::net::getsockname(&served.fd)
            .unwrap()
            .try_into()
            .unwrap()
    };
    let came = |operator: &Socket| {
        let said = std::iter::from_fn(|| operator.recv().unwrap());
        let said = said.filter_map(|(message, _)| message.body::<Came>());
        said.map(|came| (came.at, came.from_port))
            .collect::<Vec<_>>()
    };
    let port = |it: &std::net::TcpStream| u32::from(it.local_addr().unwrap().port());
    // Of a listener by that number, what becomes of who waits there.
    let ends = |interface: u32, next: &dyn Fn(&mut Proxy)| {
        let (mut proxy, operator) = linked();
        proxy.serve(&serve(4));
        let at = at(&proxy);
        let told = std::net::TcpStream::connect(at).unwrap();
        let number = *proxy.served.keys().next().unwrap();
        proxy.meet(number);
        assert_eq!(came(&operator), [(4, port(&told))]);
        drop(operator);
        proxy.hear().unwrap();
        // Before there is a next one.
        let queued = std::net::TcpStream::connect(at).unwrap();
        proxy.meet(number);
        let (link, operator) = Socket::pair().unwrap();
        proxy.begin_link(link, interface).unwrap();
        next(&mut proxy);
        if let Some(number) = proxy.served.keys().next().copied() {
            proxy.meet(number);
        }
        let [told, queued] = [told, queued].map(|it| {
            it.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            let mut byte = [0];
            let read = std::io::Read::read(&mut &it, &mut byte);
            let waits = read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
            (port(&it), waits)
        });
        let came = came(&operator);
        let has_come = |it: (u32, bool)| (came.iter().any(|came| came.1 == it.0), it.1);
        [has_come(told), has_come(queued)]
    };
    let over = [(false, false); 2];
    let all = |proxy: &mut Proxy| {
        proxy.take(
            &Message::new(0, &command::verbs::Served::default()),
            Fds::default(),
        );
    };
    assert_eq!(ends(1, &|proxy| proxy.serve(&serve(4))), [(true, true); 2]);
    assert_eq!(ends(1, &|proxy| proxy.serve(&serve(5))), over, "another's");
    // One that shares the place is there still, where this one is gone.
    let shares = |proxy: &mut Proxy| {
        assert_eq!(proxy.left.len(), 1);
        proxy
            .left
            .values_mut()
            .for_each(|it| assert!(it.ids.insert(5, 8).is_none()));
        proxy.serve(&serve(5));
        let unserved = Message::new(0, &Unserve { id: 4 });
        proxy.take(&unserved, Fds::default());
        all(proxy);
    };
    assert_eq!(ends(1, &shares), [(true, true); 2]);
    let longer_queue = |proxy: &mut Proxy| {
        let body = serve(4);
        proxy.serve(&Serve { backlog: 9, ..body });
    };
    assert_eq!(ends(1, &longer_queue), [(true, true); 2]);
    let longer = |proxy: &mut Proxy| proxy.forget(Instant::now() + 2 * LEFT_FOR);
    assert_eq!(ends(1, &longer), over);
    assert_eq!(ends(2, &|_| {}), over, "another interface");
    assert_eq!(ends(1, &all), over, "it was told all");
    let its = |proxy: &mut Proxy| {
        proxy.serve(&serve(4));
        all(proxy);
    };
    assert_eq!(ends(1, &its), [(true, true); 2]);
}

#[test]
fn who_is_not_joined_in_time_is_over() {
    let (mut proxy, _operator) = linked();
    let begun = Instant::now();
    let (fd, _) = rustix::pipe::pipe().unwrap();
    let waits = Waits {
        fd,
        ready: true,
        since: begun,
        came: None,
    };
    proxy.waits.insert(3, waits);
    proxy.begun.insert(8, 3);
    proxy.forget(begun + UNJOINED_FOR);
    assert_eq!(proxy.waits.len(), 1);
    proxy.forget(begun + UNJOINED_FOR + Duration::from_millis(1));
    assert!(proxy.waits.is_empty() && proxy.begun.is_empty());
}

#[test]
fn a_circuit_that_blocks_is_not_joined() {
    let (mut proxy, operator) = linked();
    for (nonblocking, joined) in [(false, 0), (true, 1)] {
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        near.set_nonblocking(nonblocking).unwrap();
        waits(&mut proxy, 9);
        let message = Message::new(0, &Join { id: 9 });
        operator.send(&message, &[near.as_fd()]).unwrap();
        proxy.hear().unwrap();
        assert_eq!(proxy.joined.len(), joined);
    }
}

/// A message whose descriptors find no number has none, and is no operator's.
#[test]
fn no_load_takes_the_descriptors_that_an_operators_words_need() {
    let (mut proxy, operator) = linked();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (to, to_port) = tcp::numbers(listener.local_addr().unwrap());
    let to = |id| Relay {
        to,
        to_port,
        ..relay(id)
    };
    let asks = |proxy: &mut Proxy, id: u64| {
        let pair = || {
            let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
            near.set_nonblocking(true).unwrap();
            (near, far)
        };
        let ((one, a), (other, b)) = (pair(), pair());
        waits(proxy, id);
        let join = Message::new(0, &Join { id });
        operator.send(&join, &[one.as_fd()]).unwrap();
        let body = Metered {
            id,
            ..Metered::default()
        };
        let ends = [one.as_fd(), other.as_fd()];
        operator.send(&Message::new(0, &body), &ends).unwrap();
        proxy.hear().unwrap();
        let begun = proxy.begin(&to(id + 1));
        ([a, b], [proxy.joined.len(), proxy.metering.len()], begun)
    };
    let spare = std::mem::replace(&mut proxy.spare, 0);
    let (_ends, has, begun) = asks(&mut proxy, 10);
    assert_eq!((has, begun), ([0, 0], Err(Errno::NFILE)));
    proxy.spare = spare;
    let (_ends, has, begun) = asks(&mut proxy, 20);
    assert_eq!((has, begun), ([1, 1], Ok(())));
}

/// What comes from outside or leads there, and what a listener is.
#[test]
fn no_listener_and_no_stranger_takes_them_either() {
    let (mut proxy, operator) = linked();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let (ip, _) = tcp::numbers(any);
    let all = |proxy: &mut Proxy, id: u64| {
        let serve = Serve {
            id,
            ip,
            backlog: 8,
            ..Serve::default()
        };
        let served = proxy.try_serve(&serve, None);
        let (far, _near) = std::os::unix::net::UnixStream::pair().unwrap();
        let convey = Convey {
            id,
            from: ip,
            to: ip,
            ..Convey::default()
        };
        let convey = Message::new(0, &convey);
        operator.send(&convey, &[far.as_fd()]).unwrap();
        proxy.hear().unwrap();
        proxy.hear_at(any, 1);
        let (_, conveys) = proxy.datagrams.waits();
        let hears = matches!(proxy.datagrams.hear(any, 99, (0, 1)), Ok(None));
        proxy.datagrams.clear(Instant::now(), |_| {});
        proxy.datagrams.leave();
        (served, conveys, hears)
    };
    let spare = std::mem::replace(&mut proxy.spare, 0);
    assert_eq!(all(&mut proxy, 1), (Err(Errno::NFILE), false, false));
    proxy.spare = spare;
    assert_eq!(all(&mut proxy, 2), (Ok(()), true, true));
    let (number, served) = proxy.served.iter().next().unwrap();
    let at: SocketAddr = rustix::net::getsockname(&served.fd)
        .unwrap()
        .try_into()
        .unwrap();
    let number = *number;
    for (spare, comes) in [(0, 0), (spare, 1)] {
        let _stranger = std::net::TcpStream::connect(at).unwrap();
        proxy.spare = spare;
        proxy.meet(number);
        assert_eq!(proxy.waits.len(), comes);
    }
}

/// A circuit's own descriptors may be the ones for which there is no room, or those of its pipes.
#[test]
fn no_circuit_takes_them_either() {
    let (mut proxy, _operator) = linked();
    let refuses = |proxy: &mut Proxy, id: u64, least: Option<i32>| {
        let near = || {
            let (near, _) = std::os::unix::net::UnixStream::pair().unwrap();
            near.set_nonblocking(true).unwrap();
            match least {
                None => near.into(),
                Some(least) => rustix::io::fcntl_dupfd_cloexec(near, least).unwrap(),
            }
        };
        let [tcp, circuit, one, other] = [(); 4].map(|()| near());
        let all = [&tcp, &circuit, &one, &other].map(|fd| fd.as_raw_fd());
        let newest = least.or(all.into_iter().max().map(|n| n + 1));
        proxy.spare = newest.unwrap_or_default().unsigned_abs().into();
        proxy.join(tcp, circuit);
        let body = Metered {
            id,
            ..Metered::default()
        };
        proxy.carry(&body, [one, other]);
        let refused = [proxy.joined.is_empty(), proxy.metering.len() == 0];
        proxy.joined.clear();
        proxy.metering.end(id);
        refused
    };
    assert_eq!(refuses(&mut proxy, 0, Some(900)), [true; 2]);
    // Other tests' descriptors come and go below, and leave room there.
    let all = (1..100).map(|id| refuses(&mut proxy, id, None));
    let some = all.fold([false; 2], |[a, b], [c, d]| [a | c, b | d]);
    assert_eq!(some, [true; 2]);
}

/// Nobody makes it another link.
#[test]
fn what_is_no_operators_word_ends_it() {
    let (mut proxy, operator) = linked();
    let short = rustix::net::send(&operator, b"short", rustix::net::SendFlags::empty());
    assert_eq!(short, Ok(5));
    assert!(proxy.hear().is_err());
}

/// Of several that share a port one goes on where another ends, with who waits there.
#[test]
fn who_shares_a_port_goes_on_with_those_who_came() {
    let (mut proxy, operator) = linked();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = free.local_addr().unwrap();
    drop(free);
    let (ip, port) = tcp::numbers(at);
    let serve = |id: u64| Serve {
        id,
        ip,
        port,
        backlog: 8,
        ..Serve::default()
    };
    proxy.serve(&serve(4));
    let _told = std::net::TcpStream::connect(at).unwrap();
    let number = *proxy.served.keys().next().unwrap();
    proxy.meet(number);
    let _waits = std::net::TcpStream::connect(at).unwrap();
    proxy.serve(&serve(5));
    // It is another's by what it is told: neither the other's nor what has come there ends with it.
    let ends = |proxy: &mut Proxy, id| {
        let unserve = Message::new(0, &Unserve { id });
        operator.send(&unserve, &[]).unwrap();
        proxy.hear().unwrap();
    };
    ends(&mut proxy, 4);
    proxy.meet(number);
    assert_eq!(proxy.waits.len(), 2);
    let queue = || {
        let at_once = (0..4000).take_while(|_| {
            std::net::TcpStream::connect_timeout(&at, Duration::from_millis(50)).is_ok()
        });
        at_once.count()
    };
    // As many wait there as was said last, or as come in a moment.
    let before = queue();
    proxy.serve(&Serve {
        backlog: 2000,
        ..serve(5)
    });
    assert!(
        (1023..=1025).contains(&before) && queue() >= 900,
        "{before}"
    );
    // One that wants fewer takes none of them, and what another wanted ends with that.
    proxy.serve(&serve(6));
    let backlog = |proxy: &Proxy| proxy.served.values().next().map(|it| it.body.backlog);
    assert_eq!(backlog(&proxy), Some(2000));
    ends(&mut proxy, 5);
    assert_eq!(backlog(&proxy), Some(8));
    // It listens elsewhere by now.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (_, port) = tcp::numbers(free.local_addr().unwrap());
    drop(free);
    proxy.serve(&Serve { port, ..serve(6) });
    let ports: Vec<u32> = proxy.served.values().map(|it| it.body.port).collect();
    assert_eq!(ports, [port]);
    ends(&mut proxy, 6);
    assert!(proxy.served.is_empty());
}

/// Where an ordinary program has a port, it is tried for as long as somebody wants it.
#[test]
fn nothing_is_listened_for_later_that_nobody_wants_any_more() {
    let later = Instant::now() + 2 * AGAIN;
    let listens = |forgets: &dyn Fn(&mut Proxy)| {
        let (mut proxy, _operator) = linked();
        let ordinary = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (ip, port) = tcp::numbers(ordinary.local_addr().unwrap());
        proxy.serve(&Serve {
            id: 4,
            ip,
            port,
            backlog: 8,
            ..Serve::default()
        });
        assert!(proxy.served.is_empty());
        drop(ordinary);
        forgets(&mut proxy);
        proxy.forget(later);
        !proxy.served.is_empty()
    };
    assert!(listens(&|_| {}));
    let unserved = |proxy: &mut Proxy| {
        proxy.take(&Message::new(0, &Unserve { id: 4 }), Fds::default());
    };
    assert!(!listens(&unserved));
    // The next says what it wants.
    let next = |proxy: &mut Proxy| {
        let (link, _operator) = Socket::pair().unwrap();
        proxy.begin_link(link, 1).unwrap();
    };
    assert!(!listens(&next));
}
