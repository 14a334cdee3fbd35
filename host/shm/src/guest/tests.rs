//! Memory as front ends share it, honest and other.

use super::*;
use crate::file::create;
use rustix::fs::{FallocateFlags, MemfdFlags, ftruncate};
use std::os::fd::OwnedFd;

const PAGE: u64 = 4096;

fn file(bytes: u64) -> OwnedFd {
    let fd = create("guest").unwrap();
    ftruncate(&fd, bytes).unwrap();
    fd
}

fn region(guest: u64, size: u64, offset: u64) -> Region {
    Region {
        guest,
        size,
        offset,
    }
}

fn mapped(regions: &[(Region, BorrowedFd<'_>)]) -> Result<Guest, GuestError> {
    Guest::map(regions, 1 << 30)
}

#[test]
fn regions_are_found_by_address_and_end_where_they_end() {
    let (low, high) = (file(8 * PAGE), file(4 * PAGE));
    // The second part of one file, and a region that begins inside a page.
    let guest = mapped(&[
        (region(0, 4 * PAGE, 0), low.as_fd()),
        (region(1 << 32, 4 * PAGE, 4 * PAGE), low.as_fd()),
        (region(1 << 33, 3 * PAGE, 100), high.as_fd()),
    ])
    .unwrap();
    let other = mapped(&[(region(0, 8 * PAGE, 0), low.as_fd())]).unwrap();
    let at = guest.whole((1 << 32) + 8, 16).unwrap();
    guest.write(at, &[7; 16]);
    let mut bytes = [0; 16];
    other.read(other.whole(4 * PAGE + 8, 16).unwrap(), &mut bytes);
    assert_eq!(bytes, [7; 16], "the same memory");
    assert_eq!(guest.load64(at), 0x0707_0707_0707_0707);
    guest.store64(at, 1);
    guest.store16(at + 2, 0x0102);
    assert_eq!(guest.load64(at), 0x0102_0001);
    assert_eq!(guest.load16(at + 2), 0x0102);
    let odd = guest.whole((1 << 33) + 1, 8).unwrap();
    guest.write(odd, b"inside a");
    guest.read(odd, &mut bytes[..8]);
    assert_eq!(&bytes[..8], b"inside a");
    for (address, len, there) in [
        (4 * PAGE - 4, 8, Some(4)),
        (4 * PAGE, 1, None),
        ((1 << 32) - 1, 2, None),
        ((1 << 33) + 3 * PAGE - 1, 9, Some(1)),
        (u64::MAX, 9, None),
    ] {
        assert_eq!(guest.locate(address, len).map(|(_, n)| n), there);
    }
    // Outside of all: nothing is there, and nothing happens.
    guest.store16(usize::MAX - 1, 1);
    guest.write(usize::MAX - 3, &[1; 4]);
    assert_eq!(guest.load16(usize::MAX - 1), 0);
    assert_eq!(guest.load16(at + 1), 0, "not even");
}

#[test]
fn bytes_go_from_guest_to_guest() {
    let (from, to) = (file(PAGE), file(PAGE));
    let map = |fd: &OwnedFd| mapped(&[(region(0, PAGE, 0), fd.as_fd())]).unwrap();
    let (from, to) = (map(&from), map(&to));
    from.write(10, b"hello");
    from.copy_to_guest(10, &to, 4091, 5);
    let mut bytes = [0; 5];
    to.read(4091, &mut bytes);
    assert_eq!(&bytes, b"hello");
}

#[test]
fn what_cannot_be_is_refused() {
    let fd = file(4 * PAGE);
    let map = |regions: &[Region]| {
        let with: Vec<_> = regions.iter().map(|r| (*r, fd.as_fd())).collect();
        mapped(&with).err().map(|e| e.to_string())
    };
    assert_eq!(map(&[region(0, 4 * PAGE, 0)]), None);
    for (regions, said) in [
        (vec![], "0 regions"),
        (vec![region(0, PAGE, 0); 33], "33 regions"),
        (vec![region(0, 0, 0)], "cannot be"),
        (vec![region(0, PAGE, u64::MAX)], "cannot be"),
        (vec![region(u64::MAX, PAGE, 0)], "cannot be"),
        (vec![region(0, PAGE, 3 * PAGE + 1)], "a file of 16384 bytes"),
        (vec![region(0, u64::MAX / 2, 0)], "cannot be"),
        (
            vec![region(0, 2 * PAGE, 0), region(2 * PAGE - 1, PAGE, 0)],
            "overlap at 0x1fff",
        ),
        (
            vec![region(PAGE, PAGE, 0), region(0, 4 * PAGE, 0)],
            "overlap at 0x1000",
        ),
    ] {
        let error = map(&regions).unwrap();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn memory_that_is_cut_off_is_zeroes_and_said_and_others_go_on() {
    let (cut, other) = (file(4 * PAGE), file(4 * PAGE));
    let map = |fd: &OwnedFd| mapped(&[(region(0, 4 * PAGE, 0), fd.as_fd())]).unwrap();
    let (mine, others) = (map(&cut), map(&other));
    let at = mine.whole(2 * PAGE, 8).unwrap();
    mine.store64(at, 5);
    others.store64(at, 6);
    assert!(!mine.is_broken());
    // A hole reads as zeroes, and is no fault.
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&cut, hole, 0, 4 * PAGE).unwrap();
    assert_eq!((mine.load64(at), mine.is_broken()), (0, false));
    ftruncate(&cut, PAGE).unwrap();
    assert_eq!(mine.load64(at), 0);
    assert!(mine.is_broken());
    // What comes behind harms nobody either.
    mine.store64(at, 7);
    let mut bytes = [1; 64];
    mine.read(at + 64, &mut bytes);
    assert_eq!(bytes, [0; 64]);
    assert_eq!((others.load64(at), others.is_broken()), (6, false));
    drop(mine);
    // Its place in the list is another's now, who is whole.
    let next = map(&other);
    assert_eq!((next.load64(at), next.is_broken()), (6, false));
    // Cut while bytes are copied from one to another.
    ftruncate(&other, 0).unwrap();
    next.copy_to_guest(0, &others, PAGE as usize, 2 * PAGE as usize);
    assert!(next.is_broken() && others.is_broken());
}

#[test]
fn huge_pages_are_mapped_and_cut_off_alike() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let huge = 2 << 20;
    let made = rustix::fs::memfd_create("huge", flags)
        .and_then(|fd| ftruncate(&fd, 2 * huge).map(|()| fd));
    let Ok(fd) = made else { return };
    let map = || {
        mapped(&[
            (region(0, PAGE, 0), file(PAGE).as_fd()),
            (region(1 << 30, huge - PAGE, huge + PAGE), fd.as_fd()),
        ])
    };
    // Where the machine has none set aside, mapping says so.
    let Ok(guest) = map() else { return };
    let at = guest.whole(1 << 30, 64).unwrap();
    guest.write(at, b"huge");
    ftruncate(&fd, 0).unwrap();
    let mut bytes = [1; 4];
    guest.read(at, &mut bytes);
    assert_eq!((bytes, guest.is_broken()), ([0; 4], true));
}

#[test]
fn pages_that_are_written_are_noted() {
    let (fd, log) = (file(64 * PAGE), file(PAGE));
    let guest = mapped(&[(region(1 << 20, 64 * PAGE, 0), fd.as_fd())]).unwrap();
    guest.log(log.as_fd(), 0, PAGE).unwrap();
    let first = guest.whole(1 << 20, 1).unwrap();
    let page = |n: u64| first + (n * PAGE) as usize;
    guest.write(page(3) + 4090, &[1; 10]);
    guest.store16(page(9), 1);
    guest.store64(page(11) + 8, 1);
    let mut bytes = [0; 64];
    guest.read(page(20), &mut bytes);
    let mut noted = [0; 4096];
    rustix::io::pread(&log, &mut noted, 0).unwrap();
    let set: Vec<usize> = (0..8 * 4096)
        .filter(|n| noted[n / 8] >> (n % 8) & 1 == 1)
        .map(|n| n - 256)
        .collect();
    assert_eq!(set, [3, 4, 9, 11]);
    guest.end_log();
    guest.store16(page(30), 1);
    rustix::io::pread(&log, &mut noted, 0).unwrap();
    assert_eq!(noted[(256 + 30) / 8] >> 6 & 1, 0);
    // A log that is too short for the guest loses notes, and nothing else.
    guest.log(log.as_fd(), 0, 8).unwrap();
    guest.store16(page(31), 1);
    assert!(guest.log(log.as_fd(), 0, 2 * PAGE).is_err());
}

#[test]
fn notes_that_are_cut_off_end_their_guest_and_no_other() {
    let (fd, log, other) = (file(4 * PAGE), file(PAGE), file(PAGE));
    let map = |fd: &OwnedFd, size| mapped(&[(region(0, size, 0), fd.as_fd())]).unwrap();
    let (guest, others) = (map(&fd, 4 * PAGE), map(&other, PAGE));
    guest.log(log.as_fd(), 0, PAGE).unwrap();
    guest.store16(0, 1);
    assert!(!guest.is_broken());
    ftruncate(&log, 0).unwrap();
    guest.store16(PAGE as usize, 1);
    assert!(guest.is_broken());
    assert_eq!((others.load16(0), others.is_broken()), (0, false));
}

#[test]
fn a_bitmap_that_begins_inside_a_page_notes_the_same_pages() {
    let (fd, log) = (file(64 * PAGE), file(2 * PAGE));
    let guest = mapped(&[(region(0, 64 * PAGE, 0), fd.as_fd())]).unwrap();
    // Its last byte is the first of the file's second page.
    let begin = PAGE - 3;
    guest.log(log.as_fd(), begin, 4).unwrap();
    for page in [0, 5, 9, 31, 32, 63] {
        guest.store16((page * PAGE) as usize, 1);
    }
    let mut all = [0; 2 * PAGE as usize];
    rustix::io::pread(&log, &mut all, 0).unwrap();
    let (before, rest) = all.split_at(begin as usize);
    let (noted, behind) = rest.split_at(4);
    assert_eq!(noted, [1 | 1 << 5, 1 << 1, 0, 1 << 7]);
    // What is beside it in the file is none of ours.
    assert!(before.iter().chain(behind).all(|byte| *byte == 0));
}

#[test]
fn a_guest_shares_as_much_as_it_may_and_no_more() {
    let most = 8 * PAGE;
    let fd = file(1 << 40);
    let map = |regions: &[Region]| {
        let with: Vec<_> = regions.iter().map(|r| (*r, fd.as_fd())).collect();
        Guest::map(&with, most)
    };
    let has = |result: Result<Guest, GuestError>| match result {
        Err(GuestError::TooLarge { has, .. }) => has,
        Err(error) => panic!("{error}"),
        Ok(_) => 0,
    };
    assert_eq!(has(map(&[region(0, most, 0)])), 0);
    assert_eq!(has(map(&[region(0, most + 1, 0)])), most + PAGE);
    let half = most / 2;
    let two = |size| [region(0, half, 0), region(1 << 30, size, 0)];
    assert_eq!(has(map(&two(half))), 0);
    assert_eq!(has(map(&two(half + 1))), most + PAGE);
    // Whole pages are touched, however little of each is said.
    let bytes: Vec<_> = (0..9).map(|n| region(n * PAGE, 1, n * PAGE)).collect();
    assert_eq!(has(map(&bytes)), 9 * PAGE);
    // And of where written pages are noted there is a bound as well.
    let guest = map(&[region(0, most, 0)]).unwrap();
    assert!(
        guest
            .log(fd.as_fd(), 0, most_notes(most) / PAGE * PAGE)
            .is_ok()
    );
    let error = guest
        .log(fd.as_fd(), 0, most_notes(most) + PAGE)
        .unwrap_err();
    assert!(matches!(error, GuestError::TooLarge { .. }), "{error}");
}

/// Says that this is the process of its own that a test asks for.
const ALONE: &str = "BULKHEAD_TEST_ALONE";

#[test]
fn a_guest_may_be_larger_than_its_switchs_own_memory() {
    if std::env::var_os(ALONE).is_none() {
        // Of its own: the limit is the whole process's.
        let name = std::thread::current().name().unwrap().to_owned();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--exact", &name]).env(ALONE, "1");
        let out = child.output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let limit = Some(64 << 20);
    let limit = rustix::process::Rlimit {
        current: limit,
        maximum: limit,
    };
    rustix::process::setrlimit(rustix::process::Resource::Data, limit).unwrap();
    let (fd, log) = (file(1 << 30), file(96 << 20));
    let map = || Guest::map(&[(region(0, 1 << 30, 0), fd.as_fd())], 16 << 30);
    let guest = map().unwrap();
    guest.log(log.as_fd(), 0, 96 << 20).unwrap();
    guest.store64((1 << 30) - 8, 7);
    assert_eq!(guest.load64((1 << 30) - 8), 7);
    // Nor does what takes its place when it is cut off count: there is room for more.
    ftruncate(&fd, 0).unwrap();
    assert_eq!(guest.load64((1 << 30) - 8), 0);
    assert!(guest.is_broken());
    let mut own = Vec::<u8>::new();
    if own.try_reserve_exact(16 << 20).is_err() {
        // A panic would want memory to say so.
        std::process::abort();
    }
}
