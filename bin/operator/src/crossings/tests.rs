//! What operators of both sides say to each other, and what becomes of who waits.

use super::*;

#[test]
fn the_other_side_says_nothing_that_only_a_kernel_may() {
    assert_eq!(refusal(libc::ECONNREFUSED as u32), Errno::CONNREFUSED);
    for errno in [
        libc::EINTR as u32,
        libc::EISCONN as u32,
        512,
        4096,
        u32::MAX,
    ] {
        assert_eq!(refusal(errno), Errno::HOSTUNREACH, "{errno}");
    }
}

fn of(link: Socket, crossings: &mut Crossings, tag: u16) {
    let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    crossings.link(tag, link, [7; 16], [file(), file()]);
}

fn asks(crossings: &mut Crossings, tag: u16, id: u64, waits: u32) {
    let body = Cross {
        id,
        waits,
        ..Cross::default()
    };
    crossings.ask(id, tag, body, None);
}

fn asked(link: &Socket) -> Vec<u64> {
    std::iter::from_fn(|| link.recv().unwrap())
        .filter_map(|(message, _)| message.body::<Cross>().map(|it| it.id))
        .collect()
}

fn says(link: &Socket, crossings: &mut Crossings, tag: u16, id: u64, errno: Errno) {
    let errno = errno.raw_os_error().unsigned_abs();
    let attempt = crossings.asked.get(&id).map_or(0, |it| it.body.attempt);
    let body = Crossed {
        id,
        attempt,
        errno,
        ..Crossed::default()
    };
    link.send(&Message::new(0, &body), &[]).unwrap();
    assert!(crossings.hear(tag).unwrap().is_some());
}

#[test]
fn who_waits_for_room_keeps_nobody_from_asking() {
    let mut crossings = Crossings::default();
    let (near, far) = Socket::pair().unwrap();
    of(near, &mut crossings, 1);
    let window = UNDER_WAY as u64;
    (0..2 * window).for_each(|id| asks(&mut crossings, 1, id, 1));
    assert_eq!(asked(&far).len(), UNDER_WAY, "no more is under way");
    (0..window).for_each(|id| says(&far, &mut crossings, 1, id, WAITS));
    assert_eq!(asked(&far), Vec::from_iter(window..2 * window));
    assert!((0..window).all(|id| !crossings.is_over(id)));
    says(&far, &mut crossings, 1, 3, Errno::CONNREFUSED);
    let refused = Outcome::Refused(Errno::CONNREFUSED, false);
    assert_eq!(crossings.joined(3).map(|it| it.1), Some(refused));
    // No room to wait in: it is asked again, and its program hears nothing.
    says(&far, &mut crossings, 1, window, Errno::AGAIN);
    assert!(!crossings.is_over(window));
    crossings.asked.get_mut(&window).unwrap().stage = Stage::Later(Instant::now());
    crossings.tick();
    assert_eq!(asked(&far), [window]);
}

#[test]
fn who_is_not_answered_is_told_so() {
    let mut crossings = Crossings::default();
    let (near, far) = Socket::pair().unwrap();
    of(near, &mut crossings, 1);
    (0..3).for_each(|id| asks(&mut crossings, 1, id, 1));
    asked(&far);
    says(&far, &mut crossings, 1, 1, WAITS);
    let long_ago = |since: Duration| Instant::now().checked_sub(since).unwrap();
    crossings.asked.get_mut(&0).unwrap().stage = Stage::UnderWay(long_ago(PATIENCE));
    crossings.tick();
    let over = Some(Outcome::Refused(Errno::TIMEDOUT, false));
    assert_eq!(crossings.joined(0).map(|it| it.1), over);
    assert!(!crossings.is_over(1) && !crossings.is_over(2));
    let said: Vec<u64> = std::iter::from_fn(|| far.recv().unwrap())
        .filter_map(|(message, _)| message.body::<Uncross>().map(|it| it.id))
        .collect();
    assert_eq!(said, [0]);
    crossings.asked.get_mut(&1).unwrap().begun = long_ago(CONNECT);
    crossings.tick();
    assert_eq!(crossings.joined(1).map(|it| it.1), over);
}

#[test]
fn what_finds_no_room_is_said_later_and_of_who_is_gone_what_was_told_alone() {
    let mut crossings = Crossings::default();
    let (near, far) = Socket::pair().unwrap();
    of(near, &mut crossings, 1);
    let many = 1000_u64;
    (0..many).for_each(|id| asks(&mut crossings, 1, id, 1));
    for id in 0..many {
        let cross = Cross {
            id,
            ..Cross::default()
        };
        crossings.answer(1, &cross, Err((Errno::CONNREFUSED, false)));
    }
    let mut heard = Vec::new();
    // Bound: each look takes what there is room for. No more of them: whom nobody answers for long has it said.
    while heard.len() < many as usize {
        let all = std::iter::from_fn(|| far.recv().unwrap());
        heard.extend(all.filter_map(|(it, _)| it.body::<Crossed>().map(|it| it.id)));
        crossings.tick();
    }
    assert_eq!(heard, Vec::from_iter(0..many));
    crossings.retain(|_| false, &BTreeSet::new());
    let gone = std::iter::from_fn(|| far.recv().unwrap());
    let gone: Vec<u64> = gone
        .filter_map(|(it, _)| it.body::<Uncross>().map(|it| it.id))
        .collect();
    assert_eq!(gone.len(), UNDER_WAY);
    assert!(!crossings.has_waiting());
}

#[test]
fn an_answer_is_of_one_attempt_and_who_must_not_wait_does_not() {
    let mut crossings = Crossings::default();
    let (near, far) = Socket::pair().unwrap();
    of(near, &mut crossings, 1);
    asks(&mut crossings, 1, 5, 1);
    let (attempt, errno) = (crossings.asked[&5].body.attempt, 0);
    crossings.asks_no_more(5);
    asks(&mut crossings, 1, 5, 0);
    assert!(!crossings.is_to(5, ([1; 16], 0)) && crossings.is_to(5, ([0; 16], 0)));
    let body = Crossed {
        id: 5,
        attempt,
        errno,
        ..Crossed::default()
    };
    far.send(&Message::new(0, &body), &[]).unwrap();
    crossings.hear(1).unwrap();
    assert!(!crossings.is_over(5), "of the one before");
    says(&far, &mut crossings, 1, 5, WAITS);
    assert!(crossings.is_over(5));
}

#[test]
fn an_answer_of_another_agreements_side_is_none() {
    let mut crossings = Crossings::default();
    let [(near, far), (other_near, other_far)] = [(); 2].map(|()| Socket::pair().unwrap());
    of(near, &mut crossings, 1);
    of(other_near, &mut crossings, 2);
    asks(&mut crossings, 1, 5, 0);
    says(&other_far, &mut crossings, 2, 5, Errno::CONNREFUSED);
    assert!(!crossings.is_over(5));
    says(&far, &mut crossings, 1, 5, Errno::AGAIN);
    let refused = Outcome::Refused(Errno::AGAIN, false);
    assert_eq!(crossings.joined(5).map(|it| it.1), Some(refused));
}

#[test]
fn who_asks_and_does_not_come_takes_a_place_from_others_for_a_while_only() {
    let mut crossings = Crossings::default();
    let places = OF_ONE as u64 / 2;
    (0..places).for_each(|id| crossings.keep(1, id, 7));
    assert!(!crossings.has_places(1, 7, [0; 3]));
    // Another listener's, and another agreement's.
    assert!(crossings.has_places(1, 8, [0; 3]) && crossings.has_places(2, 7, [0; 3]));
    assert!(!crossings.has_places(1, 8, [OF_ONE / 4, OF_ONE / 4, OF_ONE / 4]));
    assert!(!crossings.has_places(2, 7, [0, 0, HELD]));
    assert!(!crossings.has_places(2, 7, [0, HELD / 4, HELD / 2]));
    assert!(crossings.overdue().is_empty());
    for place in crossings.places.values_mut() {
        place.since = place.since.checked_sub(KEPT).unwrap();
    }
    crossings.keep(2, 5, 8);
    let gone = crossings.overdue();
    assert_eq!((gone.len() as u64, gone[0]), (places, (1, 0, 7)));
    assert!(crossings.has_places(1, 7, [0; 3]));
    assert_eq!(crossings.leave(2, 5), Some(8));
}

#[test]
fn so_many_wait_for_room_and_no_more() {
    let mut crossings = Crossings::default();
    let body = |id| Cross {
        id,
        ..Cross::default()
    };
    for id in 0..WAITING as u64 {
        assert!(crossings.wait(1, body(id), 7));
    }
    assert!(!crossings.wait(1, body(9_999), 7));
    assert!(crossings.wait(2, body(9_999), 7), "another agreement's");
    crossings.stops_waiting(1, 3);
    assert!(crossings.wait(1, body(9_999), 7));
    // Who finds none in its turn waits on as long as it would have.
    let first = crossings.next_waiting(|it| it == (1, 7)).unwrap();
    let since = first.2;
    crossings.waits_on(first, 7);
    let first = crossings.next_waiting(|it| it == (1, 7));
    assert_eq!(first.map(|it| (it.0, it.1.id, it.2)), Some((1, 0, since)));
}

/// That a place is known no more says of nothing that was made there that it is closed.
#[test]
fn of_who_was_made_where_nobody_tells_of_any_more_nothing_is_known() {
    let mut crossings = Crossings::default();
    let mut links = Vec::new();
    let mut place_of = |crossings: &mut Crossings, door: u8, witness: OwnedFd| {
        let (link, other) = Socket::pair().unwrap();
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        crossings.link(3, link, [door; 16], [file, witness]);
        links.push(other);
    };
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let made = crate::sockets::stream(false).unwrap();
    let inode = rustix::fs::fstat(&made.fd).unwrap().st_ino as u32;
    let asked = (inode, made.cookie);
    place_of(&mut crossings, 1, ::netlink::witness().unwrap());
    let place = crossings.place(3, asked).unwrap();
    // Its next operator is where the one before was.
    place_of(&mut crossings, 1, ::netlink::witness().unwrap());
    assert_eq!(crossings.place(3, asked), Some(place));
    assert_eq!(crossings.place(4, asked), None);
    for door in 2..5 {
        place_of(&mut crossings, door, null());
        let told = crossings.told_of((3, place), &[asked]).unwrap().unwrap();
        assert_eq!(told.len(), 1, "{door}");
    }
    place_of(&mut crossings, 5, null());
    assert!(crossings.told_of((3, place), &[asked]).is_none());
}
