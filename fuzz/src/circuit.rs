//! A tenant's table of circuits: what its programs ask for, and records of a table that
//! somebody scribbled over.
//!
//! Held: no limit is passed; a restored table is the one that was recorded; of scribbled
//! records what is kept is in order, and what is not is written anew.

use crate::input::Input;
use circuit::*;

/// Calls of one run.
const STEPS: usize = 128;
const LIMITS: Limits = Limits {
    sockets: 8,
    pending: 5,
};

fn four(ip: [u8; 4]) -> Ip {
    wire::address::mapped(ip)
}

fn ip(n: u8) -> Ip {
    let own6 = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
    let all = [
        four([0; 4]),
        four([127, 0, 0, 1]),
        four([10, 0, 0, 5]),
        four([10, 0, 0, 6]),
        own6,
        [0; 16],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        four([224, 0, 0, 1]),
    ];
    all[usize::from(n) % all.len()]
}

/// One run.
pub fn run(bytes: &[u8]) {
    let input = Input::new(bytes);
    let own = |ips: &[Ip]| Addresses::new(ips).expect("few enough");
    let endpoints = vec![own(&[ip(2), ip(4)]), own(&[ip(3)])];
    let mut table = Table::new(LIMITS, endpoints.clone());
    let mut page = vec![[0; RECORD]; table.slots() as usize];
    let scribbles = input.byte() % 16;
    for _ in 0..STEPS {
        if input.is_over() {
            break;
        }
        step(&input, &mut table);
        let (sockets, pending) = table.counts();
        assert!(sockets <= LIMITS.sockets as usize && pending <= LIMITS.pending as usize);
        // As many as there are slots at most.
        while let Some(slot) = table.changed() {
            page[slot as usize] = table.record(slot);
        }
    }
    let (again, rejected) = Table::restore(LIMITS, endpoints.clone(), (0..).zip(&page));
    assert_eq!(rejected, Vec::<u32>::new());
    assert_eq!(again, table);
    for _ in 0..scribbles {
        let slot = input.below(page.len());
        page[slot][input.below(RECORD)] = input.byte();
    }
    let (mut third, rejected) = Table::restore(LIMITS, endpoints.clone(), (0..).zip(&page));
    let mut written = Vec::new();
    while let Some(slot) = third.changed() {
        page[slot as usize] = third.record(slot);
        written.push(slot);
    }
    assert!(rejected.iter().all(|slot| written.contains(slot)));
    let (fourth, rejected) = Table::restore(LIMITS, endpoints, (0..).zip(&page));
    assert_eq!(rejected, Vec::<u32>::new());
    assert_eq!(fourth, third);
}

fn step(input: &Input, table: &mut Table) {
    let (what, cookie) = (input.byte(), u64::from(input.byte() % 12));
    let chance = u32::from(what) << 3;
    let family = match what & 0x80 {
        0 => Family::V4,
        _ => Family::V6,
    };
    // An address as the program wrote it: one that could be meant, or any bytes.
    let address = || match input.byte() {
        n @ 0xc0.. => input.take(usize::from(n & 0x3f)),
        n => {
            let port = [0, 80, 5000, 5001, 33000][usize::from(n >> 3) % 5];
            let (bytes, length) = write(family, Endpoint { ip: ip(n), port });
            bytes[..length].to_vec()
        }
    };
    let _ = match what % 16 {
        0 | 1 => table.create(cookie, u32::from(what >> 4) % 3, family, chance),
        2 => {
            let name = [input.byte() % 16; 16];
            table.create_datagram(cookie, u32::from(what >> 4) % 3, family, name)
        }
        3 | 4 => table.bind(cookie, &address(), what & 0x40 != 0, chance),
        5 | 6 => table.listen(cookie, i32::from(what >> 4) - 1, [7; 16], chance),
        7 | 8 => connect(table, cookie, &address(), chance),
        9 => match what & 0x10 {
            0 => table.connected(cookie),
            _ => table.connect_failed(cookie),
        },
        10 => {
            let new = u64::from(input.byte() % 12);
            table.accepted(cookie, new, None).map(drop)
        }
        11 => {
            let (level, name) = (i32::from(input.byte() % 42), i32::from(input.byte()));
            let length = usize::from(input.byte()) % 40;
            let _ = table.set_option(cookie, level, name, &input.take(length));
            table
                .read_option(cookie, level, name, length as i32)
                .map(|outcome| {
                    if let Outcome::Answer(bytes) = outcome {
                        assert!(bytes.len() <= length, "more than there is room for");
                    }
                })
        }
        12 => table.disconnect(cookie),
        13 => table.closed(cookie),
        14 => datagram(table, cookie, &address(), chance),
        _ if what & 0x10 == 0 => across(input, table, cookie),
        _ => {
            table.withdraw_all(cookie);
            table.forget_waiting(cookie);
            Ok(())
        }
    };
}

/// Somebody comes by an agreement, or does not come any more.
fn across(input: &Input, table: &mut Table, cookie: u64) -> Result<(), Errno> {
    let (what, token) = (input.byte(), u64::from(input.byte() % 4));
    let crossing = u16::from(what >> 3) % 3;
    match what % 4 {
        0 => {
            let (ip, port) = (ip(what), [80, 5000, 5001][usize::from(what >> 4) % 3]);
            let found = table.find_listener(0, Endpoint { ip, port }, u32::from(what));
            let found = found.ok_or(Errno::ECONNREFUSED)?;
            let client = Endpoint { ip, port: 40_000 };
            let pending = Pending {
                client,
                local: Endpoint { ip, port },
                token,
                crossing,
                relayed: what & 128 != 0,
            };
            let _ = table.is_taken(0, &pending.local, &client);
            let queued = table.enqueue_beyond(found.cookie, pending, usize::from(what) % 5);
            let kept = table.kept().any(|(_, it)| *it == pending);
            assert!(queued.is_err() || kept || crossing == 0, "it has no place");
            queued
        }
        1 => {
            let new = u64::from(input.byte() % 12);
            table.crossed(cookie, new, token, crossing).map(drop)
        }
        2 => {
            table.withdraw_crossing(cookie, crossing, token);
            Ok(())
        }
        _ => {
            table.cross(cookie, crossing, Carrier::Kernel, 1, u32::from(what));
            table.carry(cookie, Carrier::Ring, 0);
            Ok(())
        }
    }
}

fn connect(table: &mut Table, cookie: u64, address: &[u8], chance: u32) -> Result<(), Errno> {
    let from = table.socket(cookie).ok_or(Errno::EBADF)?.endpoint();
    let Connect::To { local, remote, .. } = table.connect_begin(cookie, address, chance)? else {
        return Ok(());
    };
    let to = table
        .destination(from, &remote.ip)
        .ok_or(Errno::ENETUNREACH)?;
    let found = table
        .find_listener(to, remote, chance)
        .ok_or(Errno::ECONNREFUSED)?;
    let pending = Pending {
        client: local,
        local: remote,
        token: cookie,
        crossing: 0,
        relayed: chance & 1 != 0,
    };
    let queued = table.enqueue(found.cookie, pending);
    assert_ne!(queued, Err(Errno::EINVAL), "not where it listens");
    assert!(queued.is_err() || !found.full, "into a queue that is full");
    queued
}

fn datagram(table: &mut Table, cookie: u64, address: &[u8], chance: u32) -> Result<(), Errno> {
    table.bind_by_use(cookie, chance)?;
    if let Named::At(to) = table.datagram_peer(cookie, address)? {
        let way = table.way(cookie, to, None)?;
        if chance & 8 == 0 {
            table.connect_datagram(cookie, way)?;
            table.link(cookie, (chance & 16 == 0).then_some(chance));
        }
        if let Some(found) = table.find_receiver(0, &way, chance) {
            let found = table.socket(found.cookie).expect("it was found");
            assert_eq!(found.local().port, way.remote.port);
            assert!(
                found.remote().is_none_or(|peer| peer == way.local),
                "another's"
            );
        }
    }
    table.datagram_to(cookie, address).map(drop)
}
