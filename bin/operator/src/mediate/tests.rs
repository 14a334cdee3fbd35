use super::*;

mod holders;
mod hunts;
mod metered;
mod outside;
mod ports;
mod proxied;
mod udp;

use crate::decide::tests::{NEAR, WEB, judged, of, tables};
use image::CompartmentTables;

#[test]
fn an_endpoint_has_as_many_sockets_as_it_may() {
    let mut mediator = Mediator::default();
    assert_eq!(mediator.room_for(1), Err(Errno::NFILE), "none of circuits");
    mediator.opens(1, 2);
    mediator.opens(2, 2);
    for _ in 0..2 {
        assert_eq!(mediator.room_for(1), Ok(()));
        *mediator.counts.entry(1).or_default() += 1;
    }
    assert_eq!(mediator.room_for(1), Err(Errno::NFILE));
    assert_eq!(mediator.room_for(2), Ok(()), "another's are its own");
}

#[test]
fn all_together_have_as_many_as_the_table() {
    let mut mediator = Mediator::default();
    mediator.opens(1, u32::MAX);
    let nowhere = Addresses::new(&[]).unwrap();
    mediator.table = Table::new(LIMITS, vec![nowhere; 2]);
    for cookie in 1..=u64::from(LIMITS.sockets) {
        let made = mediator.table.create(cookie, 1, circuit::Family::V4, 0);
        made.unwrap_or_else(|errno| panic!("{cookie}: {errno:?}"));
    }
    assert_eq!(mediator.room_for(1), Err(Errno::NFILE));
}

/// A failing call costs what is asked of here alone, for all but a tenth of the time.
#[test]
fn what_is_closed_here_is_free_at_once_and_all_is_asked_for_at_times() {
    let mut mediator = with_circuits(&tables());
    let end = Endpoint {
        ip: of(NEAR),
        port: 80,
    };
    let (bytes, length) = circuit::write(circuit::Family::V4, end);
    let made = |mediator: &mut Mediator| {
        let made = sockets::stream(true).unwrap();
        let family = circuit::Family::V4;
        let created = mediator.table.create(made.cookie, NEAR, family, 0);
        created.unwrap();
        made
    };
    let (one, other) = (made(&mut mediator), made(&mut mediator));
    mediator.opens(NEAR, 2);
    let bind = |mediator: &mut Mediator, made: &Made| {
        let _ = mediator.swept();
        let came = mediator.bind(made.cookie, &bytes[..length]);
        came.map(|_| ())
    };
    // Each in a turn of its own.
    let room = |mediator: &mut Mediator| {
        let _ = mediator.swept();
        mediator.room_for(NEAR)
    };
    assert_eq!(bind(&mut mediator, &one), Ok(()));
    let later = Instant::now() + Duration::from_secs(3600);
    mediator.sweeps_after = Some(later);
    assert_eq!(bind(&mut mediator, &other), Err(Errno::ADDRINUSE));
    assert_eq!(room(&mut mediator), Err(Errno::NFILE));
    assert_eq!(mediator.sweeps_after, Some(later), "all was asked for");
    drop(one);
    assert_eq!(bind(&mut mediator, &other), Ok(()));
    assert_eq!(room(&mut mediator), Ok(()));
    let third = made(&mut mediator);
    mediator.sweeps_after = None;
    assert_eq!(bind(&mut mediator, &third), Err(Errno::ADDRINUSE));
    assert_eq!(room(&mut mediator), Err(Errno::NFILE));
    let at_times = mediator.sweeps_after.expect("all is asked for");
    assert!(at_times <= Instant::now() + Duration::from_secs(1));
    // Of many that are made and closed as well.
    mediator.sweeps_after = Some(later);
    mediator.sweeps_at = mediator.table.counts().0;
    drop(other);
    assert_eq!(room(&mut mediator), Ok(()));
    assert_eq!(mediator.sweeps_after, Some(later));
    assert_eq!(mediator.sweeps_at, 1 + GROWTH);
}

/// One that decides by these tables and has circuits from WEB to NEAR, and to itself.
fn with_circuits(tables: &CompartmentTables) -> Mediator {
    let mut mediator = Mediator::default();
    let page = shm::sparse_file("notes", 32 << 20).unwrap();
    mediator.recall(Words::map_whole(page).unwrap(), Vec::new());
    mediator.use_image(mapped(tables));
    for (cookie, to) in [(1, NEAR), (2, WEB)] {
        let table = &mut mediator.table;
        table.create(cookie, WEB, circuit::Family::V4, 0).unwrap();
        let (bytes, length) = circuit::write(
            circuit::Family::V4,
            Endpoint {
                ip: of(to),
                port: 80,
            },
        );
        table.connect_begin(cookie, &bytes[..length], 7).unwrap();
        table.connected(cookie).unwrap();
    }
    mediator.write();
    mediator
}

fn mapped(tables: &CompartmentTables) -> MappedCompartment<SealedImage> {
    let sealed = SealedImage::create("image", &tables.finish().unwrap()).unwrap();
    MappedCompartment::map(SealedImage::map(sealed).unwrap()).unwrap()
}

fn begun(mediator: &Mediator) -> Vec<u64> {
    let all = mediator.table.all().filter(|socket| socket.is_initiator());
    let mut all: Vec<u64> = all.map(circuit::Socket::cookie).collect();
    all.sort_unstable();
    all
}

#[test]
fn circuits_that_nobody_may_begin_any_more_are_cut() {
    let mut tables = tables();
    let mut mediator = with_circuits(&tables);
    mediator.use_image(mapped(&tables));
    assert!(mediator.hunted().is_empty());
    tables.rule_tables = vec![judged(image::rules::Action::Deny, 1)];
    tables.endpoints[0].egress = 0;
    for endpoint in &mut tables.endpoints {
        endpoint.connections = 64;
    }
    mediator.use_image(mapped(&tables));
    // Nobody has them here, so they are looked for; no rule is asked inside an endpoint.
    assert_eq!(mediator.hunted(), [1]);
    mediator.is_cut(1);
    assert_eq!(
        (begun(&mediator), mediator.hunted()),
        (vec![2], Vec::<u64>::new())
    );
}

/// A signal ended its call, and the operator before died over it.
#[test]
fn one_that_was_begun_and_that_nobody_waits_for_is_judged_as_one_that_is_there() {
    let mut tables = tables();
    let mut mediator = with_circuits(&tables);
    let to = Endpoint {
        ip: of(NEAR),
        port: 81,
    };
    let (address, length) = circuit::write(circuit::Family::V4, to);
    let table = &mut mediator.table;
    table.create(3, WEB, circuit::Family::V4, 0).unwrap();
    table.connect_begin(3, &address[..length], 7).unwrap();
    mediator.decides_begun();
    assert_eq!(begun(&mediator), [1, 2, 3]);
    assert!(mediator.was_connected(3, &address[..length]));
    tables.rule_tables = vec![judged(image::rules::Action::Deny, 1)];
    tables.endpoints[0].egress = 0;
    for endpoint in &mut tables.endpoints {
        endpoint.connections = 64;
    }
    mediator.use_image(mapped(&tables));
    assert_eq!(mediator.hunted(), [1, 3]);
}

#[test]
fn what_was_accepted_for_nobody_ends_with_its_listener() {
    let mut mediator = with_circuits(&tables());
    let ends = [false, true].map(|listens| {
        let listener = sockets::stream(true).unwrap();
        let at = listener.cookie;
        let (other, fd) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = OwnedFd::from(fd);
        let cookie = rustix::net::sockopt::socket_cookie(&fd).unwrap();
        mediator.unclaimed.waits(at, Made { fd, cookie });
        other.set_nonblocking(true).unwrap();
        (other, listens.then_some(listener))
    });
    assert!(mediator.sleep().is_some(), "it is looked at in time");
    mediator.receivers_tick(&|_| None);
    let read = |end: &std::os::unix::net::UnixStream| std::io::Read::read(&mut &*end, &mut [0]);
    assert_eq!(read(&ends[0].0).unwrap(), 0, "nobody is going to accept it");
    assert!(read(&ends[1].0).is_err(), "it waits for the next accept");
    assert!(!mediator.unclaimed.is_empty());
}

#[test]
fn an_operator_that_starts_cuts_nothing_before_it_is_told_of_its_endpoints() {
    let tables = tables();
    let mut mediator = with_circuits(&tables);
    assert!(mediator.limits.is_empty(), "endpoints are told of last");
    // By a proxy, of which it is told last as well.
    let table = &mut mediator.table;
    table.create(3, WEB, circuit::Family::V4, 0).unwrap();
    let mut outside = [0; 16];
    outside[10..].copy_from_slice(&[255, 255, 192, 0, 2, 1]);
    let to = Endpoint {
        ip: outside,
        port: 80,
    };
    let (bytes, length) = circuit::write(circuit::Family::V4, to);
    table.connect_begin(3, &bytes[..length], 7).unwrap();
    table.connected(3).unwrap();
    mediator.review();
    assert!(mediator.hunted().is_empty());
    mediator.opens(WEB, 9);
    mediator.review();
    assert_eq!(mediator.hunted(), [3], "there is none");
    mediator.image = None;
    mediator.review();
    assert_eq!(begun(&mediator), [1, 2, 3]);
}

/// Of what is closed nobody tells.
#[test]
fn what_is_closed_by_now_is_not_counted_as_cut() {
    let mut mediator = with_circuits(&tables());
    let [here, gone] = [(), ()].map(|()| sockets::stream(true).unwrap());
    let both = [here.cookie, gone.cookie];
    drop(gone);
    // A process that another test is starting may have it for a moment.
    let begun = Instant::now();
    while mediator.count_living(both.into_iter()) != 1 && begun.elapsed() < Duration::from_secs(9) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(mediator.count_living(both.into_iter()), 1);
    mediator.live = None;
    assert_eq!(mediator.count_living(both.into_iter()), 2, "nobody knows");
}

/// Of circuits across an agreement that goes, begun here or accepted, those that are closed are forgotten; nobody is cut off
/// by their end, and nobody has them who could be looked for.
#[test]
fn what_is_closed_across_an_agreement_is_forgotten_and_not_looked_for() {
    let mut mediator = with_circuits(&tables());
    let link = seqpacket::Socket::pair().unwrap().0;
    let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let fds = [file, ::netlink::witness().unwrap()];
    mediator.crossings.link(9, link, [7; 16], fds);
    let mut all = Vec::new();
    for port in 1..=4 {
        let made = sockets::stream(true).unwrap();
        let inode = rustix::fs::fstat(&made.fd).unwrap().st_ino as u32;
        let table = &mut mediator.table;
        let family = circuit::Family::V4;
        table.create(made.cookie, WEB, family, 0).unwrap();
        let to = Endpoint { ip: of(NEAR), port };
        let (bytes, length) = circuit::write(family, to);
        table
            .connect_begin(made.cookie, &bytes[..length], 7)
            .unwrap();
        table.connected(made.cookie).unwrap();
        // Those of even ports live where the other side has them.
        let inode = if port % 2 == 0 { inode } else { 0 };
        table.cross(made.cookie, 9, Carrier::Kernel, 1, inode);
        all.push(made);
    }
    mediator.write();
    let cookies: Vec<u64> = all.iter().map(|it| it.cookie).collect();
    let closed = BTreeSet::from([cookies[0], cookies[1]]);
    all.drain(..2);
    let crossings = mediator.table.all().filter(|it| it.crossing() != 0);
    let crossings: Vec<_> = crossings.copied().collect();
    assert_eq!(mediator.closed_of(&crossings), closed);
    mediator.use_image(mapped(&tables()));
    let is_there = |mediator: &Mediator| {
        let there = |it: &u64| mediator.table.socket(*it).is_some();
        cookies.iter().map(there).collect::<Vec<_>>()
    };
    assert_eq!(is_there(&mediator), [false, false, true, true]);
    let hunted = BTreeSet::from_iter(mediator.hunted());
    assert_eq!(hunted, BTreeSet::from_iter(cookies[2..].iter().copied()));
    // One that is closed while it is looked for.
    all.drain(1..);
    mediator.seeks();
    assert_eq!(mediator.hunted(), cookies[2..3]);
    assert_eq!(is_there(&mediator), [false, false, true, false]);
}

#[test]
fn sockets_of_before_count() {
    let mut mediator = with_circuits(&tables());
    mediator.live = None;
    mediator.opens(WEB, 2);
    assert_eq!(mediator.room_for(WEB), Err(Errno::NFILE));
}

#[test]
fn what_the_filter_leaves_to_the_kernel_the_table_would_too() {
    let mut mediator = with_circuits(&tables());
    for name in notify::filter::PLAIN {
        let set = mediator
            .table
            .set_option(1, libc::SOL_SOCKET, name, &[0; 16]);
        assert!(matches!(set, Ok(Outcome::Native)), "{name}");
        let read = mediator.table.read_option(1, libc::SOL_SOCKET, name, 16);
        assert!(matches!(read, Ok(Outcome::Native)), "{name}");
    }
}

#[test]
fn a_proxy_lets_in_to_its_own_endpoint_alone() {
    let mut mediator = with_circuits(&tables());
    mediator.opens(NEAR, 8);
    let made = sockets::stream(false).unwrap();
    let table = &mut mediator.table;
    table
        .create(made.cookie, NEAR, circuit::Family::V4, 0)
        .unwrap();
    let here = Endpoint {
        ip: of(NEAR),
        port: 80,
    };
    let (bytes, length) = circuit::write(circuit::Family::V4, here);
    table.bind(made.cookie, &bytes[..length], true, 7).unwrap();
    let name = sockets::name(&made.fd).unwrap();
    table.listen(made.cookie, 8, name, 7).unwrap();
    sockets::listens(&made.fd, name).unwrap();
    let came = command::verbs::Came {
        id: 1 << 63,
        at: made.cookie,
        from: of(WEB),
        to: here.ip,
        from_port: 4242,
        to_port: 80,
    };
    for (slot, joined) in [(WEB, false), (NEAR, true)] {
        let (link, proxy) = seqpacket::Socket::pair().unwrap();
        mediator.link_proxy(slot, link);
        while proxy.recv().unwrap().is_some() {}
        let said = command::Message::new(0, &came);
        proxy.send(&said, &[]).unwrap();
        mediator.hear_proxy(slot, &|_| None).unwrap();
        let (said, fds) = proxy.recv().unwrap().unwrap();
        assert_eq!(said.body::<command::verbs::Join>().is_some(), joined);
        assert_eq!(fds.len(), usize::from(joined));
    }
    let waiting: Vec<&Pending> = mediator.table.waiting(made.cookie).collect();
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0].client.port, 4242);
}

/// A socket of NEAR's that listens, and so many that began a connection to it, from port 5000 on.
fn listening(mediator: &mut Mediator, clients: usize) -> (Made, Vec<Made>) {
    let table = &mut mediator.table;
    let made = sockets::stream(true).unwrap();
    let listener = made.cookie;
    table
        .create(listener, NEAR, circuit::Family::V4, 0)
        .unwrap();
    let here = Endpoint {
        ip: of(NEAR),
        port: 80,
    };
    let (bytes, length) = circuit::write(circuit::Family::V4, here);
    table.bind(listener, &bytes[..length], true, 7).unwrap();
    let name = sockets::name(&made.fd).unwrap();
    table.listen(listener, 8, name, 7).unwrap();
    sockets::listens(&made.fd, name).unwrap();
    let clients: Vec<Made> = (0..clients)
        .map(|_| sockets::stream(true).unwrap())
        .collect();
    for (client, port) in clients.iter().zip(5000..) {
        let pending = Pending {
            client: Endpoint { ip: of(WEB), port },
            local: here,
            token: client.cookie,
            crossing: 0,
            relayed: false,
        };
        if table.enqueue(listener, pending).is_ok() {
            sockets::connects(&client.fd, name).unwrap();
        }
    }
    mediator.write();
    (made, clients)
}

#[test]
fn what_was_accepted_goes_on_with_who_follows() {
    let page = shm::sparse_file("notes", 32 << 20).unwrap();
    let kept = seqpacket::Socket::to_itself().unwrap();
    // One after another, all of the same page.
    let next = || {
        let kept = kept.as_fd().try_clone_to_owned().unwrap();
        let mut mediator = Mediator::default();
        mediator.use_image(mapped(&tables()));
        let words = Words::map_whole(&page).unwrap();
        mediator.recall(words, vec![seqpacket::Socket::from_fd(kept)]);
        mediator
    };
    let mut first = next();
    let (listener, _clients) = listening(&mut first, 4);
    let at = listener.cookie;
    // It dies right after the first, and after it noted the second; the third was about to be put
    // into its program, and was; the fourth was about to be, and was not.
    let accepted = sockets::accepts(&listener.fd, true, || {})
        .unwrap()
        .unwrap();
    drop(first.unclaimed.keeps(By::Listener(at), accepted).unwrap());
    drop(first.take_in(at, &listener.fd, true).unwrap().unwrap());
    let here = rustix::thread::gettid().as_raw_nonzero().get();
    let call = |id, thread: i32| Notification {
        id,
        thread: thread.cast_unsigned(),
        number: libc::SYS_accept as i32,
        arch: 0,
        arguments: [0; 6],
    };
    let mut about = |id, thread| {
        let made = first.take_in(at, &listener.fd, true).unwrap().unwrap();
        let note = first
            .notes
            .as_mut()
            .unwrap()
            .note(9, &call(id, thread))
            .unwrap();
        first.puts(note, made.cookie, 0);
        first.write();
        made
    };
    let put = about(3, here);
    // Its thread is nowhere here: this one has all that the operators have.
    drop(about(4, i32::MAX));
    drop(first);
    let mut second = next();
    let port = |mediator: &Mediator, cookie| mediator.table.getpeername(cookie).unwrap().1.port;
    let ports = |mediator: &mut Mediator| -> Vec<u16> {
        let all = std::iter::from_fn(|| mediator.unclaimed.take(at));
        let all: Vec<Made> = all.collect();
        all.iter().map(|made| port(mediator, made.cookie)).collect()
    };
    assert_eq!(ports(&mut second), [5000, 5001]);
    // Nobody takes what another has, or may have.
    let nobody = Listener::new(
        rustix::event::epoll::create(rustix::event::epoll::CreateFlags::empty()).unwrap(),
        notify::Sizes::of_kernel().unwrap(),
    );
    // Neither waits any more: what one was given, or was about to be, nobody else is.
    second.resume(9, &|_| Some((NEAR, &nobody)));
    assert_eq!(ports(&mut second), [0_u16; 0]);
    drop((second, put));
    let mut third = next();
    let mut left = ports(&mut third);
    left.sort_unstable();
    assert_eq!(left, [5000, 5001], "until somebody has them");
}

#[test]
fn what_is_put_back_is_seen_by_who_polls() {
    let mut mediator = with_circuits(&tables());
    let (listener, _clients) = listening(&mut mediator, 20);
    let at = listener.cookie;
    let is_readable = || {
        let now = rustix::event::Timespec::default();
        let mut fds = [rustix::event::PollFd::new(
            &listener.fd,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut fds, Some(&now)).unwrap() > 0
    };
    let mut all = Vec::new();
    while let Some(made) = mediator.take_in(at, &listener.fd, true).unwrap() {
        all.push(made);
    }
    assert!(!is_readable());
    assert_eq!(all.len(), 9, "as many as may wait there");
    mediator.puts_back(at, all.pop().unwrap());
    assert!(is_readable(), "as it was before somebody took it");
    assert!(mediator.unclaimed.take(at).is_some());
    assert!(mediator.take_in(at, &listener.fd, true).unwrap().is_none());
    assert!(!is_readable(), "and nobody looks for ever");
    // No endpoint has as many as it likes.
    for _ in 0..queue::PUT_BACK + 5 {
        let (one, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let made = sockets::made(one.into()).unwrap();
        mediator.puts_back(at, made);
    }
    assert_eq!(mediator.unclaimed.count(|it, _| it == at), queue::PUT_BACK);
}

#[test]
fn who_is_accepted_is_who_the_sockets_queue_says() {
    let mut mediator = with_circuits(&tables());
    let (made, clients) = listening(&mut mediator, 4);
    let listener = made.cookie;
    // The first was taken out, and the second withdrawn, by one who died before he wrote of it.
    drop(sockets::accepts(&made.fd, true, || {}).unwrap().unwrap());
    let table = &mut mediator.table;
    table.withdraw(listener, clients[1].cookie).unwrap();
    for port in [5002, 5003] {
        let came = mediator.take_in(listener, &made.fd, true).unwrap().unwrap();
        let (_, peer) = mediator.table.getpeername(came.cookie).unwrap();
        assert_eq!(peer.port, port);
    }
    assert!(
        mediator
            .take_in(listener, &made.fd, true)
            .unwrap()
            .is_none()
    );
    assert_eq!(mediator.table.waiting(listener).count(), 0);
}

#[test]
fn memory_is_for_the_two_ends_of_a_connection() {
    use stream::Side;
    let mut tables = tables();
    let mut mediator = with_circuits(&tables);
    let table = &mut mediator.table;
    let began = *table.socket(1).unwrap();
    table.create(10, NEAR, circuit::Family::V4, 0).unwrap();
    let any = Endpoint {
        ip: of(NEAR),
        port: 80,
    };
    let (bytes, length) = circuit::write(circuit::Family::V4, any);
    table.bind(10, &bytes[..length], true, 7).unwrap();
    table.listen(10, 5, [1; 16], 7).unwrap();
    let pending = Pending {
        client: began.local(),
        local: began.remote().unwrap(),
        token: 1,
        crossing: 0,
        relayed: false,
    };
    table.enqueue(10, pending).unwrap();
    table.accepted(10, 11, None).unwrap();
    table.create(12, NEAR, circuit::Family::V4, 0).unwrap();
    let slots = [WEB, NEAR];
    assert_eq!(mediator.connection(1), Ok((1, Side::Began, slots)));
    assert_eq!(mediator.connection(11), Ok((1, Side::Accepted, slots)));
    for none in [10, 12] {
        assert_eq!(mediator.connection(none), Err(Errno::NOTCONN), "{none}");
    }
    assert_eq!(mediator.connection(99), Err(Errno::BADF));
    // One that may not be begun any more has none.
    tables.rule_tables = vec![judged(image::rules::Action::Deny, 1)];
    tables.endpoints[0].egress = 0;
    for endpoint in &mut tables.endpoints {
        endpoint.connections = 64;
    }
    mediator.image = Some(mapped(&tables));
    assert_eq!(mediator.connection(11), Err(Errno::ACCESS));
    mediator.review();
    mediator.is_cut(1);
    assert_eq!(mediator.connection(11), Err(Errno::NOTCONN));
}

/// One that decides by these tables, where WEB and NEAR have each a socket of UDP at port 80
/// that is connected to nobody: cookies 1 and 2.
fn with_datagrams(tables: &CompartmentTables) -> Mediator {
    let mut mediator = Mediator::default();
    let page = shm::sparse_file("notes", 32 << 20).unwrap();
    mediator.recall(Words::map_whole(page).unwrap(), Vec::new());
    mediator.use_image(mapped(tables));
    for (cookie, slot) in [(1, WEB), (2, NEAR)] {
        mediator.opens(slot, 9);
        let table = &mut mediator.table;
        let family = circuit::Family::V4;
        let name = [cookie as u8; 16];
        table.create_datagram(cookie, slot, family, name).unwrap();
        let own = Endpoint {
            ip: of(slot),
            port: 80,
        };
        let (bytes, length) = circuit::write(family, own);
        table.bind(cookie, &bytes[..length], true, 0).unwrap();
    }
    mediator.write();
    mediator
}

fn way(from: u32, to: u32) -> circuit::Way {
    let end = |slot| Endpoint {
        ip: of(slot),
        port: 80,
    };
    circuit::Way {
        local: end(from),
        remote: end(to),
    }
}

/// To port 80 by UDP: no rule of `judged`, which is TCP's, allows it.
fn no_datagrams(tables: &CompartmentTables) -> CompartmentTables {
    let mut denied = tables.clone();
    denied.rule_tables = vec![judged(image::rules::Action::Allow, 1)];
    denied.endpoints[0].egress = 0;
    for endpoint in &mut denied.endpoints {
        endpoint.connections = 64;
    }
    denied
}

#[test]
fn a_call_that_no_operator_survives_is_refused() {
    let mut mediator = with_circuits(&tables());
    let nobody = std::os::unix::net::UnixStream::pair().unwrap().0;
    let listener = Listener::new(nobody.into(), notify::Sizes::of_kernel().unwrap());
    for (thread, survived, done) in [(71, false, false), (72, true, true)] {
        let call = Notification {
            id: 7,
            thread,
            number: libc::SYS_connect as i32,
            arch: 0,
            arguments: [0; 6],
        };
        let notes = mediator.notes.as_mut().unwrap();
        let note = notes.note(3, &call).unwrap();
        for _ in 0..TRIES {
            notes.begins(note);
        }
        if survived {
            notes.ended(note);
        }
        mediator.left = vec![(3, note, call)];
        mediator.resume(3, &|_| Some((WEB, &listener)));
        let called = mediator.callers.of(WEB).any(|it| it == thread);
        assert_eq!(called, done, "{thread}");
    }
}

#[test]
fn who_was_not_heard_is_connected_to_where_it_asked_to_be() {
    let mut mediator = Mediator::default();
    mediator.unheard.insert(7, b"there".to_vec());
    assert!(!mediator.was_connected(8, b"there"));
    assert!(mediator.was_connected(7, b"there"));
    assert!(!mediator.was_connected(7, b"there"), "told once");
    mediator.unheard.insert(7, b"there".to_vec());
    assert!(!mediator.was_connected(7, b"elsewhere"));
}

/// A call of a program that is not there waits so.
fn waits_at(mediator: &mut Mediator, at: u64, why: Why) {
    let call = notify::Notification {
        id: 1,
        thread: 0,
        number: 0,
        arch: 0,
        arguments: [0; 6],
    };
    let waits = Waits {
        program: 9,
        note: 0,
        call,
        at,
        why,
        own: 0,
        until: None,
    };
    mediator.waits.push(waits, None);
}
