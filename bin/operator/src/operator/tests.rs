use super::*;
use crate::notes::Notes;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn programs_are_bounded_and_each_is_told_before_it_counts() {
    let most = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: most,
        maximum: most,
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let (control, supervisor) = Socket::pair().unwrap();
    let mut operator = Operator::new(control, Sizes::of_kernel().unwrap(), u64::MAX);
    operator.epoll = Some(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    let (any, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let one = || OwnedFd::from(any.try_clone().unwrap());
    for number in 1..=PROGRAMS as u32 {
        assert_eq!(operator.adopt(7, number, one()), Ok(()));
        let (told, fds) = supervisor.recv().unwrap().unwrap();
        let told = told.body::<Program>().unwrap();
        assert_eq!((told.slot, told.number, fds.len()), (7, number, 1));
    }
    assert_eq!(operator.adopt(7, 9_999, one()), Err(Errno::NOMEM));
    operator.forget(3);
    assert_eq!(operator.adopt(7, 9_999, one()), Ok(()));
    // The supervisor has no room for as many.
    let fewer = ProgramLimit {
        most: PROGRAMS as u32 - 1,
        reserved: 0,
    };
    operator.forget(4);
    let told = operator.take_place(&Message::new(0, &fewer), None, None);
    assert!(told.is_ok());
    assert_eq!(operator.adopt(7, 10_000, one()), Err(Errno::NOMEM));
    operator.forget(5);
    assert_eq!(operator.adopt(7, 10_000, one()), Ok(()));
}

/// One that follows who noted in this page.
fn follows(page: &OwnedFd) -> (Operator, Socket) {
    let (control, supervisor) = Socket::pair().unwrap();
    let mut operator = Operator::new(control, Sizes::of_kernel().unwrap(), u64::MAX);
    operator.epoll = Some(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    let page = page.try_clone().unwrap();
    let operate = Message::new(0, &Operate::default());
    operator.take(&operate, vec![page]).unwrap();
    (operator, supervisor)
}

#[test]
fn no_program_has_the_number_of_one_that_an_operator_before_had() {
    let page = shm::sparse_file("notes", 32 << 20).unwrap();
    let (mut first, _supervisor) = follows(&page);
    assert_eq!([(); 3].map(|()| first.number()), [1, 2, 3]);
    // None of them was told of.
    let (mut second, _supervisor) = follows(&page);
    assert_eq!(second.number(), 4);
    // Where they end those begin anew that nobody has.
    second.next = PROGRAM_NUMBERS - 1;
    let (any, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    second.add(7, 1, any.into()).unwrap();
    assert_eq!([(); 2].map(|()| second.number()), [PROGRAM_NUMBERS - 1, 2]);
    let (mut third, _supervisor) = follows(&page);
    assert_eq!(third.number(), 3);
}

#[test]
fn a_call_of_a_program_that_nobody_told_of_takes_no_place() {
    let page = shm::sparse_file("notes", 32 << 20).unwrap();
    let notes = || Notes::recall(Words::map_whole(page.as_fd()).unwrap());
    let call = notify::Notification {
        id: 1,
        thread: 1,
        number: 41,
        arch: 0,
        arguments: [0; 6],
    };
    notes().0.note(5, &call).unwrap();
    let (mut operator, _supervisor) = follows(&page);
    assert_eq!(notes().1.len(), 1, "it may be told of yet");
    let ports = Message::new(0, &RemovePort { slot: OTHERS });
    operator.take_place(&ports, None, None).unwrap();
    assert_eq!(notes().1.len(), 1, "programs come after ports");
    let others = ProgramGone {
        number: OTHERS,
        reserved: 0,
    };
    let told = operator.take_place(&Message::new(0, &others), None, None);
    told.unwrap();
    assert_eq!(notes().1, []);
}

#[test]
fn a_program_is_told_of_with_the_port_that_it_was_announced_at() {
    let page = shm::sparse_file("notes", 32 << 20).unwrap();
    let (mut operator, supervisor) = follows(&page);
    let add = AddPort {
        slot: 7,
        kind: PORT_CIRCUITS,
        ..AddPort::default()
    };
    // Nobody connects: any socket is a port. The former one is closed by its successor.
    for listener in [(); 2].map(|()| Socket::pair().unwrap().0) {
        let number = rustix::fs::fstat(&listener).unwrap().st_ino;
        let added = operator.take_place(&Message::new(0, &add), Some(listener.into_fd()), None);
        added.unwrap();
        let (any, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let of = operator.number();
        operator.adopt(7, of, any.into()).unwrap();
        let (told, _) = supervisor.recv().unwrap().unwrap();
        assert_eq!(told.body::<Program>().unwrap().port, number);
    }
}

/// Who is told of, by either way: programs with calls, and gone ones.
fn told(operator: &Operator) -> BTreeMap<u32, bool> {
    let mut events = Vec::with_capacity(EVENTS);
    let looked = operator.wait(&mut events).unwrap();
    let of_set = events.iter().map(|event| {
        let (data, flags) = (event.data.u64(), event.flags);
        assert_eq!(data >> 32 << 32, PROGRAM);
        (data as u32, flags.contains(EventFlags::IN))
    });
    let all: Vec<_> = looked.into_iter().flatten().chain(of_set).collect();
    let each: BTreeMap<_, _> = all.iter().copied().collect();
    assert_eq!(all.len(), each.len(), "told of twice: {all:?}");
    each
}

#[test]
fn every_program_is_looked_at_once_by_the_set_or_beside_it() {
    let (control, _supervisor) = Socket::pair().unwrap();
    let mut operator = Operator::new(control, Sizes::of_kernel().unwrap(), u64::MAX);
    operator.epoll = Some(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    let count = 2 * NEAR as u32 + 3;
    let mut others = Vec::new();
    for number in 1..=count {
        let (any, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
        operator.adopt(7, number, any.into()).unwrap();
        std::io::Write::write_all(&mut other, b"a call").unwrap();
        others.push(other);
    }
    let all: BTreeMap<u32, bool> = (1..=count).map(|number| (number, true)).collect();
    assert_eq!(told(&operator), all);
    // However often they draw near, and in whatever order.
    for number in (1..=count).chain([3, 3, 1]).chain((1..=count).rev()) {
        operator.draw_near(number).unwrap();
        assert!(operator.near.len() <= NEAR);
    }
    assert_eq!(told(&operator), all);
    assert_eq!(operator.near.back(), Some(&1));
    // Where many calls wait it is by the set.
    for unanswered in [CROWD + 1, CROWD + 1, CROWD, CROWD + 1, CROWD] {
        operator.looks_at(2, unanswered).unwrap();
        let is_near = operator.near.contains(&2);
        assert_eq!(is_near, unanswered <= CROWD);
        assert_eq!(told(&operator), all);
    }
    // Who is forgotten is told of no more, near or not.
    assert!(!operator.near.contains(&count));
    operator.forget(1);
    operator.forget(count);
    let left = count - 2;
    assert_eq!(told(&operator).len() as u32, left);
    drop(others);
    assert_eq!(told(&operator).len() as u32, left);
}

#[test]
fn a_program_that_the_supervisor_does_not_hear_of_is_not_mediated() {
    let (control, supervisor) = Socket::pair().unwrap();
    let mut operator = Operator::new(control, Sizes::of_kernel().unwrap(), u64::MAX);
    operator.epoll = Some(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    drop(supervisor);
    let (any, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert_eq!(operator.adopt(7, 1, any.into()), Err(Errno::PIPE));
    assert!(operator.programs.is_empty());
}

#[test]
fn what_the_supervisor_does_not_take_now_it_is_told_later_and_in_order() {
    const MANY: u32 = 5000;
    let (control, supervisor) = Socket::pair().unwrap();
    let mut operator = Operator::new(control, Sizes::of_kernel().unwrap(), u64::MAX);
    for number in 0..MANY {
        let gone = ProgramGone {
            number,
            reserved: 0,
        };
        operator.say(&gone).unwrap();
    }
    assert!(!operator.unsaid.is_empty() && operator.sleep().is_some());
    for number in 0..MANY {
        let (told, _) = supervisor.recv().unwrap().unwrap();
        assert_eq!(told.body::<ProgramGone>().unwrap().number, number);
        operator.flush().unwrap();
    }
    assert!(operator.unsaid.is_empty());
}

/// One whose supervisor has not read what it was told.
fn full() -> (Operator, Socket) {
    let (control, supervisor) = Socket::pair().unwrap();
    let mut operator = Operator::new(control, Sizes::of_kernel().unwrap(), u64::MAX);
    operator.epoll = Some(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    let mut number = 1000;
    while operator.unsaid.is_empty() {
        let gone = ProgramGone {
            number,
            reserved: 0,
        };
        operator.say(&gone).unwrap();
        number += 1;
    }
    (operator, supervisor)
}

#[test]
fn a_program_is_told_of_behind_what_was_said_before() {
    let (mut operator, supervisor) = full();
    let last = operator.unsaid.back().unwrap().body::<ProgramGone>();
    let adopts = |operator: &mut Operator| {
        let (any, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        operator.adopt(7, 5000, any.into())
    };
    assert_eq!(adopts(&mut operator), Err(Errno::AGAIN));
    for _ in 0..10 {
        supervisor.recv().unwrap();
    }
    assert_eq!(adopts(&mut operator), Ok(()));
    let mut order = Vec::new();
    while let Some((told, _)) = supervisor.recv().unwrap() {
        order.extend(told.body::<ProgramGone>().map(|it| it.number));
        order.extend(told.body::<Program>().map(|it| it.number));
    }
    let end = [last.unwrap().number, 5000];
    assert!(order.ends_with(&end), "{order:?}");
}

#[test]
fn that_a_container_is_not_taken_is_told_later_too_and_once() {
    let (mut operator, supervisor) = full();
    let (busy, many) = (CONTAINER_BUSY, CONTAINER_PROGRAMS);
    for (slot, why) in [(7, busy), (7, busy), (8, busy), (7, many), (7, busy)] {
        operator.refuses(slot, why).unwrap();
    }
    let mut told = Vec::new();
    for _ in 0..3 {
        while let Some((said, _)) = supervisor.recv().unwrap() {
            told.extend(said.body::<ContainerRefused>().map(|it| (it.slot, it.why)));
        }
        operator.flush().unwrap();
    }
    assert_eq!(told, [(7, busy), (8, busy), (7, many)]);
}

/// Neither what was handed over and told of, nor what is about to be.
#[test]
fn a_program_of_a_port_that_is_gone_is_nobodys() {
    let (control, supervisor) = Socket::pair().unwrap();
    let mut operator = Operator::new(control, Sizes::of_kernel().unwrap(), u64::MAX);
    operator.epoll = Some(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    let (any, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    operator.adopt(7, 1, any.into()).unwrap();
    for (number, slot) in [(2, 7), (3, 8)] {
        let (here, _there) = Socket::pair().unwrap();
        operator.announced.insert(number, (slot, here));
    }
    let gone = Message::new(0, &RemovePort { slot: 7 });
    operator.take_place(&gone, None, None).unwrap();
    let told = || supervisor.recv().unwrap().map(|(message, _)| message);
    let program = told().unwrap();
    assert_eq!(program.body::<Program>().unwrap().number, 1);
    let gone = told().unwrap();
    assert_eq!(gone.body::<ProgramGone>().unwrap().number, 1);
    assert!(told().is_none());
    let left: Vec<u32> = operator.announced.keys().copied().collect();
    assert_eq!((left, operator.programs.len()), (vec![3], 0));
}

/// What is of those that have none any more is to be cut first.
#[test]
fn that_rules_are_in_force_is_said_when_all_endpoints_are_told_of() {
    let (control, supervisor) = Socket::pair().unwrap();
    let mut operator = Operator::new(control, Sizes::of_kernel().unwrap(), u64::MAX);
    let tables = crate::decide::tests::tables().finish().unwrap();
    let sealed = shm::SealedImage::create("image", &tables).unwrap();
    let mapped = shm::SealedImage::map(sealed).unwrap();
    let image = image::MappedCompartment::map(mapped).unwrap();
    operator.mediator.use_image(image);
    operator.image = Some(5);
    let page = shm::sparse_file("notes", telemetry::operator::BYTES).unwrap();
    let words = Words::map_whole(page).unwrap();
    operator.mediator.recall(words, Vec::new());
    operator.says_what_decides().unwrap();
    assert!(supervisor.recv().unwrap().is_none());
    let all = Message::new(0, &RemovePort { slot: OTHERS });
    operator.take_place(&all, None, None).unwrap();
    let (said, _) = supervisor.recv().unwrap().unwrap();
    assert_eq!(said.body::<Running>().unwrap().epoch, 5);
}

/// Once for each call; and for what else a call takes it is not.
#[test]
fn whose_calls_have_this_process_wait_is_paused_once_for_each() {
    let (control, _supervisor) = Socket::pair().unwrap();
    let mut operator = Operator::new(control, Sizes::of_kernel().unwrap(), u64::MAX);
    let spent = |copying| Spent {
        sweeping: Duration::ZERO,
        slot: 7,
        time: Duration::from_millis(110),
        copying: Duration::from_millis(copying),
    };
    operator.turns.called(8, Instant::now());
    operator.charge(&spent(0)).unwrap();
    assert!(operator.paused.is_empty());
    let began = Instant::now();
    for _ in 0..3 {
        operator.charge(&spent(110)).unwrap();
    }
    let until = *operator.paused.get(&7).unwrap() - began;
    let whole = 3 * Duration::from_millis(900);
    assert!(
        until >= whole && until < whole + Duration::from_secs(1),
        "{until:?}"
    );
    assert_eq!(operator.paused.len(), 1);
}
