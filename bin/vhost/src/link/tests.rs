//! Where a queue goes on when its front end comes again.

use super::*;
use shm::memory_file;
use virtqueue::Layout;

fn at(place: u16) -> Stand {
    Stand {
        available: place,
        used: place,
    }
}

fn setup(stand: u16, said: u16) -> QueueSetup {
    QueueSetup {
        queue: 1,
        layout: Layout {
            size: 256,
            descriptors: 0x1000,
            driver: 0x3000,
            device: 0x4000,
        },
        stand: Some(at(stand)),
        said: at(said),
    }
}

/// A guest's memory, the page, and a helper that has the page.
struct Rig {
    memory: OwnedFd,
    page: OwnedFd,
    link: Link,
    own: Own,
}

impl Rig {
    fn new() -> Rig {
        Rig {
            memory: sparse_file("memory", 1 << 16).unwrap(),
            page: memory_file("page", 4096).unwrap(),
            link: Link::new(rustix::pipe::pipe().unwrap().0),
            own: Own::default(),
        }
        .helper()
    }

    /// Another helper, that knows what is in the page.
    fn helper(mut self) -> Rig {
        self.link = Link::new(rustix::pipe::pipe().unwrap().0);
        self.link.allow(1);
        let page = self.page.try_clone().unwrap();
        self.link.page = Some(Words::map_whole(page).unwrap());
        self.own = Own::default();
        self
    }

    fn line(&mut self) -> Line<'_> {
        Line {
            link: &mut self.link,
            own: &mut self.own,
            place: 0,
            is_taken: false,
        }
    }

    /// Maps the memory and runs the queue; where it goes on.
    fn run(&mut self, setup: &QueueSetup) -> u16 {
        let region = MemoryRegion {
            guest: 0,
            size: 1 << 16,
            user: 0,
            offset: 0,
        };
        let file = self.memory.try_clone().unwrap();
        let mut line = self.line();
        line.map(0, &[(region, file)]).unwrap();
        line.run(setup, None).unwrap();
        self.link.noted(1).used
    }

    /// What the switch notes.
    fn moves_on(&self, to: u16) {
        self.link.note(1, at(to));
    }
}

#[test]
fn who_comes_again_goes_on_where_it_was_and_who_is_new_where_it_says() {
    let mut rig = Rig::new();
    assert_eq!(rig.run(&setup(7, 7)), 7);
    rig.moves_on(30);
    // The helper dies; the front end knows only what it had said.
    let mut rig = rig.helper();
    assert_eq!(rig.run(&setup(7, 7)), 30);
    rig.moves_on(40);
    let mut rig = rig.helper();
    assert_eq!(rig.run(&setup(7, 7)), 40);
    // It was told where its queue is: from there on it knows.
    assert_eq!(rig.line().halt(1), at(40));
    let mut rig = rig.helper();
    assert_eq!(rig.run(&setup(7, 7)), 7);
    rig.moves_on(50);
    // It says something else, or has other rings, or is another machine.
    let mut rig = rig.helper();
    assert_eq!(rig.run(&setup(9, 9)), 9);
    rig.moves_on(60);
    let mut rig = rig.helper();
    let mut other = setup(9, 9);
    other.layout.descriptors += 0x100;
    assert_eq!(rig.run(&other), 9);
    rig.moves_on(70);
    let mut rig = rig.helper();
    rig.memory = sparse_file("other", 1 << 16).unwrap();
    assert_eq!(rig.run(&other), 9);
    rig.moves_on(80);
    // What its driver broke begins where it says.
    rig.link.forget();
    let mut rig = rig.helper();
    assert_eq!(rig.run(&other), 9);
}

#[test]
fn who_has_kept_something_goes_on_by_that_whatever_it_says() {
    let mut rig = Rig::new();
    let kept = rig.line().keepsake(4096).unwrap();
    rig.line().knows(&kept);
    assert_eq!(rig.run(&setup(7, 7)), 7);
    rig.moves_on(30);
    let mut rig = rig.helper();
    rig.line().knows(&kept);
    assert_eq!(rig.run(&setup(9, 9)), 30);
    // A driver that begins anew: its front end asks for another one.
    let mut rig = rig.helper();
    let other = rig.line().keepsake(4096).unwrap();
    rig.line().knows(&other);
    assert_eq!(rig.run(&setup(9, 9)), 9);
}

#[test]
fn the_interface_is_one_front_ends_at_a_time() {
    let mut rig = Rig::new();
    rig.run(&setup(7, 7));
    assert_eq!(rig.link.holder(), Some(0));
    let mut second = Own::default();
    let region = MemoryRegion {
        guest: 0,
        size: 1 << 16,
        user: 0,
        offset: 0,
    };
    let file = rig.memory.try_clone().unwrap();
    for is_taken in [true, false] {
        let mut line = Line {
            link: &mut rig.link,
            own: &mut second,
            place: 1,
            is_taken,
        };
        let mapped = line.map(0, &[(region, file.try_clone().unwrap())]);
        assert_eq!(mapped.is_err(), is_taken);
        assert!(matches!(line.own.over, Some(Over::Second)));
        assert_eq!(line.is_mapped(), !is_taken);
        // What only the other one is to hear is not said for this one.
        assert_eq!(line.log(4096, 0, None), Ok(()));
    }
    assert_eq!(rig.link.holder(), Some(1));
    // Who has nothing takes nothing along.
    rig.link.leave(0);
    assert_eq!(rig.link.holder(), Some(1));
    rig.link.leave(1);
    assert_eq!(rig.link.holder(), None);
}

#[test]
fn memory_that_could_make_the_switch_wait_is_refused() {
    let mut rig = Rig::new();
    let region = MemoryRegion {
        guest: 0,
        size: 4096,
        user: 0,
        offset: 0,
    };
    // Of no file system of memory: what is behind it may be anybody's.
    let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    let memory = rig.memory.try_clone().unwrap();
    let mut line = rig.line();
    assert_eq!(
        line.map(0, &[(region, memory), (region, file)]),
        Err(Failed)
    );
    assert!(matches!(line.own.over, Some(Over::Memory)));
    assert!(!line.is_mapped());
}

#[test]
fn what_could_make_the_switch_wait_is_not_kicked_nor_noted_in() {
    use rustix::event::{EventfdFlags, epoll, eventfd};
    let mut rig = Rig::new();
    rig.run(&setup(7, 7));
    let bell = eventfd(0, EventfdFlags::empty()).unwrap();
    let (pipe, _end) = rustix::pipe::pipe().unwrap();
    for good in [&bell, &pipe] {
        assert_eq!(rig.line().run(&setup(7, 7), Some(good)), Ok(()));
    }
    // A set of bells says of itself what the least of them says.
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    let memory = rig.memory.try_clone().unwrap();
    for bad in [&set, &file, &memory] {
        let mut line = rig.line();
        assert_eq!(line.run(&setup(7, 7), Some(bad)), Err(Failed));
        assert!(matches!(line.own.over, Some(Over::Kick)));
    }
    let mut line = rig.line();
    assert_eq!(line.log(4096, 0, Some(&file)), Err(Failed));
    assert!(matches!(line.own.over, Some(Over::Memory)));
    assert_eq!(line.log(4096, 0, Some(&memory)), Ok(()));
}

#[test]
fn a_guests_memory_is_not_mapped_anew_again_and_again() {
    let mut rig = Rig::new();
    let begun = Instant::now();
    for _ in 0..MAPS + 5 {
        rig.run(&setup(7, 7));
        rig.link.leave(0);
    }
    assert!(begun.elapsed() >= 5 * MAP_EVERY, "{:?}", begun.elapsed());
    // Who waits may go on again.
    let before = Instant::now();
    rig.run(&setup(7, 7));
    assert!(before.elapsed() < 3 * MAP_EVERY, "{:?}", before.elapsed());
}

#[test]
fn a_machine_shares_as_much_as_it_may_and_no_more() {
    const MIB: u64 = 1 << 20;
    let mut rig = Rig::new();
    let file = sparse_file("memory", 4 << 20).unwrap();
    let region = |guest, size| {
        let (user, offset) = (guest, guest);
        let region = MemoryRegion {
            guest,
            size,
            user,
            offset,
        };
        (region, file.try_clone().unwrap())
    };
    let mut line = rig.line();
    for good in [
        vec![region(0, MIB)],
        vec![region(0, MIB / 2), region(MIB, MIB / 2)],
    ] {
        assert_eq!(line.map(0, &good), Ok(()));
        assert!(line.own.over.is_none());
    }
    line.unmap();
    for bad in [
        vec![region(0, 2 * MIB)],
        vec![region(0, MIB), region(MIB, 1)],
    ] {
        assert_eq!(line.map(0, &bad), Err(Failed));
        assert!(!line.is_mapped());
        let over = line.own.over.take().unwrap();
        assert!(matches!(over, Over::TooMuch { .. }) && over.is_answered());
    }
    let said = Over::TooMuch {
        has: MIB + 4096,
        most: MIB,
    };
    assert_eq!(
        said.to_string(),
        "the machine shares 1052672 bytes of memory and may share 1048576: its endpoint wants \
         `attach: {vhost: {memory: 2MiB}}`, or the machine has to have less"
    );
    // The bitmap of its written pages is held to that as well.
    assert_eq!(line.log(most_notes(MIB), 0, Some(&file)), Ok(()));
    assert_eq!(line.log(most_notes(MIB) + 1, 0, Some(&file)), Err(Failed));
    assert!(matches!(line.own.over, Some(Over::Notes(_))));
}
