//! What memory a machine may share, and what its switch may touch of it.

use super::*;

/// A front end's memory of that size, sparse, and its table, of which it wants to know whether
/// it is taken.
fn shares(socket: &UnixStream, bytes: u64) -> (OwnedFd, u64) {
    let memory = rustix::fs::memfd_create("vm", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, bytes).unwrap();
    // SET_MEM_TABLE, with an answer (version 1, NEED_REPLY).
    let mut table = Vec::new();
    for word in [5u32, 1 | 1 << 3, 40, 1, 0] {
        table.extend_from_slice(&word.to_ne_bytes());
    }
    for word in [0u64, bytes, 1 << 40, 0] {
        table.extend_from_slice(&word.to_ne_bytes());
    }
    says(socket, &table, memory.as_fd());
    let mut answer = [0; 20];
    (&*socket).read_exact(&mut answer).unwrap();
    let (_, value) = answer.split_at(12);
    (memory, u64::from_ne_bytes(value.try_into().unwrap()))
}

/// Bytes of a file that are there.
fn there(file: &OwnedFd) -> u64 {
    512 * rustix::fs::fstat(file).unwrap().st_blocks as u64
}

#[test]
fn a_machine_shares_what_it_may_and_its_switch_lives_with_all_of_it() {
    const MIB: u64 = 1 << 20;
    const PAGE: u64 = 4096;
    // Virtio's version 1, and the protocol features, of which REPLY_ACK.
    const FEATURES: u64 = 1 << 32 | 1 << 30;
    const REPLY_ACK: u64 = 1 << 3;
    const SIZE: u64 = 256;
    let app = Namespace::named(unique("bht-vm"));
    let instance = Instance::start().unwrap();
    // More than a switch may use itself (64MiB), which is not to be more for it.
    let spec = spec(&app.name).replace("attach: vhost}", "attach: {vhost: {memory: 256MiB}}}");
    instance.apply(&spec).unwrap();
    let home = Home { instance, app };
    let card = (&*home.socket("vm2"), MACS[1]);
    let other = Reflector::start(card, 1, "").unwrap();
    let passes = || reflected(&home.app.name, "10.1.1.11", 2, 5).unwrap() == 10;
    assert!(passes());
    let connects = || {
        let front = UnixStream::connect(home.socket("vm1")).unwrap();
        front.set_read_timeout(Some(PATIENCE)).unwrap();
        say(&front, 2, &FEATURES.to_ne_bytes(), false);
        say(&front, 16, &REPLY_ACK.to_ne_bytes(), false);
        front
    };

    // More than it may is answered with a failure, and said with what to do.
    let (_, refused) = shares(&connects(), 256 * MIB + PAGE);
    assert_ne!(refused, 0);
    let said = "shares 268439552 bytes of memory and may share 268435456";
    assert!(home.instance.until(PATIENCE, |i| i.log().contains(said)));
    assert!(home.instance.log().contains("memory: 257MiB"));

    // As much as it may is taken.
    let front = connects();
    let (memory, refused) = shares(&front, 256 * MIB);
    assert_eq!(refused, 0);
    let write = |at: u64, bytes: &[u8]| {
        assert_eq!(rustix::io::pwrite(&memory, bytes, at).unwrap(), bytes.len());
    };
    // What it sends is in pages that nobody has touched: the switch is the first, with each.
    let (descriptors, driver, device) = (0, 0x2000, 0x3000);
    for (request, words) in [(8u32, [1, SIZE as u32]), (10, [1, 0])] {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        say(&front, request, &bytes, false);
    }
    let mut address = 1u64.to_ne_bytes().to_vec();
    let user = |place| place + (1u64 << 40);
    for user in [user(descriptors), user(device), user(driver), 0] {
        address.extend_from_slice(&user.to_ne_bytes());
    }
    say(&front, 9, &address, false);
    let kick = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let mut message = Vec::new();
    for word in [12u32, 1, 8, 1, 0] {
        message.extend_from_slice(&word.to_ne_bytes());
    }
    says(&front, &message, kick.as_fd());
    say(&front, 18, &[1, 0, 0, 0, 1, 0, 0, 0], false);
    let all = 256 * MIB / PAGE;
    let mut index = 0u16;
    let mut page = 16;
    while page < all {
        let several = (all - page).min(SIZE);
        for n in 0..several {
            // A frame of its header and sixty bytes, all of them zeroes.
            let mut descriptor = ((page + n) * PAGE).to_ne_bytes().to_vec();
            descriptor.extend_from_slice(&72u32.to_ne_bytes());
            descriptor.extend_from_slice(&[0; 4]);
            write(descriptors + 16 * n, &descriptor);
            let place = u64::from(index.wrapping_add(n as u16)) % SIZE;
            write(driver + 4 + 2 * place, &(n as u16).to_ne_bytes());
        }
        index = index.wrapping_add(several as u16);
        write(driver + 2, &index.to_ne_bytes());
        rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            let mut used = [0; 2];
            rustix::io::pread(&memory, &mut used, device + 2).unwrap();
            if u16::from_ne_bytes(used) == index {
                break;
            }
            assert!(std::time::Instant::now() < end, "{page} of {all} pages");
            assert_eq!(home.restarts(), 0, "{page} of {all} pages");
            std::thread::sleep(Duration::from_micros(200));
        }
        page += several;
    }
    assert!(there(&memory) >= (all - 16) * PAGE, "{}", there(&memory));
    assert!(passes(), "the other machine");
    assert_eq!(home.restarts(), 0, "no switch died");
    assert_eq!(other.end().unwrap()["rx_errors"], 0);
}
