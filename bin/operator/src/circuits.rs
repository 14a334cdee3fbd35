//! Circuits that are there: listed, and their ends found.

use circuit::{Endpoint, Kind, Socket, State, Table};
use command::verbs::{LISTENERS, ListFlows};
use core::ops::Range;
use guard::guard;
use image::CompartmentImage;
use notify::Target;
use rustix::fd::OwnedFd;
use shm::Words;
use std::collections::BTreeMap;
use std::time::Duration;
use telemetry::circuits::{Count, ELSEWHERE, MAGIC, ROW_WORDS, Row, bytes_for};
use telemetry::flows::{self, COUNT_AT, End, MAGIC_AT, MOST, ROWS_AT, SEEN_AT};

use crate::decide::{self, Asked, TCP, UDP, across};
use crate::place;

/// Numbers of descriptors that are looked at for a socket that is no longer where it was.
pub const NUMBERS: i32 = 4096;

/// Writes the circuits of a slot, or of all, or the sockets that wait there, as a switch lists connections; of UDP, sockets
/// that are connected and not cut. What passed by them is known of those that are metered.
pub fn list(
    table: &Table,
    image: Option<&CompartmentImage<'_>>,
    (is_cut, put_back): (impl Fn(&u64) -> bool, impl Fn(u64) -> usize),
    (counts, now): (&BTreeMap<u64, Count>, u64),
    asked: &ListFlows,
    page: OwnedFd,
) {
    let most = (asked.most as usize).min(MOST);
    let Ok(page) = Words::map(page, bytes_for(most)) else {
        return;
    };
    let (mut seen, mut rows) = (0, 0);
    let across = |it: &Socket| it.crossing() != 0 && it.state() == State::Connected;
    let has_id = |it: &Socket| it.is_initiator() || it.is_let_in() || across(it);
    let goes = |it: &&Socket| match asked.circuits {
        LISTENERS => is_waiting(it),
        _ => has_id(it) && !is_cut(&it.cookie()),
    };
    // Before a row is made of it, which asks the rules.
    let is_of = |it: &&Socket| {
        let leads = || {
            let remote = it.remote().filter(|_| asked.circuits != LISTENERS)?;
            let named = table.addresses(asked.slot).contains(&remote.ip);
            decide::whose(image.filter(|_| named)?, it.endpoint(), remote.ip)
        };
        let is_whose = asked.slot == u32::MAX || it.endpoint() == asked.slot;
        is_whose || leads() == Some(asked.slot) || !guard!("circuits-list-slot")
    };
    for socket in table.all().filter(goes).filter(is_of) {
        // One of its own is counted without.
        let is_own = asked.slot == u32::MAX || socket.endpoint() == asked.slot;
        if rows == most && is_own {
            seen += 1;
            continue;
        }
        let row = match asked.circuits {
            LISTENERS => waiting(table, socket, &put_back),
            _ => counted(row(table, socket, image, now), (counts, now)),
        };
        let (a, b) = (row.flow.a.slot, row.flow.b.slot);
        if asked.slot != u32::MAX && asked.slot != a && asked.slot != b {
            continue;
        }
        seen += 1;
        if rows == most {
            continue;
        }
        write(&page, ROWS_AT + rows * ROW_WORDS, &row);
        rows += 1;
    }
    page.store(COUNT_AT, rows as u64);
    page.store(SEEN_AT, seen);
    page.publish(MAGIC_AT, MAGIC);
}

/// What a listing would say of one, from this word on.
pub fn write_one(
    table: &Table,
    image: Option<&CompartmentImage<'_>>,
    (counts, now): (&BTreeMap<u64, Count>, u64),
    socket: &Socket,
    (page, at): (&Words, usize),
) {
    let row = counted(row(table, socket, image, now), (counts, now));
    write(page, at, &row);
}

fn write(page: &Words, at: usize, row: &Row) {
    for (word, value) in row.words().into_iter().enumerate() {
        page.store(at + word, value);
    }
}

/// With what passed by it, if that is known.
fn counted(mut row: Row, (counts, now): (&BTreeMap<u64, Count>, u64)) -> Row {
    if let Some(count) = counts.get(&row.id) {
        row.flow.bytes = count.bytes;
        row.flow.silent = now.saturating_sub(count.moved);
        row.rate = count.rate;
    }
    row
}

/// Whether whoever may comes to it: a circuit it is not.
fn is_waiting(socket: &Socket) -> bool {
    match socket.kind() {
        Kind::Stream => matches!(socket.state(), State::Listening { .. }),
        Kind::Datagram => socket.state() == State::Bound,
    }
}

#[cfg(test)]
std::thread_local! {
    /// Rows that this thread has made: what a listing costs.
    static MADE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// A socket that waits, with what waits at it; so many were put back there.
fn waiting(table: &Table, socket: &Socket, put_back: impl Fn(u64) -> usize) -> Row {
    #[cfg(test)]
    MADE.set(MADE.get() + 1);
    let local = socket.local();
    let end = End {
        slot: socket.endpoint(),
        source: local.ip,
        source_port: local.port,
        ..End::default()
    };
    let (protocol, rate) = match socket.state() {
        State::Listening { backlog } => {
            let waits = table.waiting(socket.cookie()).count() + put_back(socket.cookie());
            (TCP, [waits as u64, backlog.into()])
        }
        _ => (UDP, [0; 2]),
    };
    let flow = flows::Row {
        a: end,
        b: end,
        protocol,
        ..flows::Row::default()
    };
    Row {
        flow,
        rate,
        ..Row::default()
    }
}

fn row(table: &Table, socket: &Socket, image: Option<&CompartmentImage<'_>>, now: u64) -> Row {
    #[cfg(test)]
    MADE.set(MADE.get() + 1);
    let (local, remote) = (socket.local(), socket.remote().unwrap_or(socket.local()));
    let (protocol, state) = match socket.kind() {
        Kind::Stream => (TCP, flow::State::Established),
        Kind::Datagram => (UDP, flow::State::Replied),
    };
    let asked = Asked {
        slot: socket.endpoint(),
        from: local.ip,
        from_port: local.port,
        to: remote.ip,
        to_port: remote.port,
        protocol,
    };
    // Inside one endpoint no rule is asked.
    let inside = table.destination(socket.endpoint(), &remote.ip) == Some(socket.endpoint());
    let decided = image.filter(|_| !inside).and_then(|image| {
        let answers = || {
            let answers = decide::decide_answer(image, &asked).ok();
            answers.filter(|_| socket.kind() == Kind::Datagram)
        };
        decide::decide(image, &asked).ok().or_else(answers)
    });
    let rules = decided.map_or([None, None], |decided| decided.rules);
    let end = |slot, source: Endpoint, destination: Endpoint| End {
        slot,
        zone: 0,
        source: source.ip,
        destination: destination.ip,
        source_port: source.port,
        destination_port: destination.port,
    };
    // Of one that is allowed no more, and not found to be cut, it is known whose address that is.
    let to = decided.map(|decided| decided.slot);
    let named = || {
        image
            .filter(|_| !inside)
            .and_then(|image| decide::locate(image, &asked).ok())
    };
    let to = to.or_else(named).unwrap_or(socket.endpoint());
    let [mut a, mut b] = [
        end(socket.endpoint(), local, remote),
        end(to, remote, local),
    ];
    let number = |by: Option<decide::Ruling>| by.map_or(u32::MAX, |by| by.rule);
    let mut rules = rules.map(number);
    if socket.crossing() != 0 {
        // Of the other side of an agreement nothing is known here but its tag.
        b.zone = socket.crossing();
        let own = image.and_then(|image| across::stays(image, socket).ok()?);
        rules = [number(own), ELSEWHERE];
        if !socket.is_initiator() {
            (a, b) = (b, a);
            rules.reverse();
        }
    }
    if socket.is_let_in() {
        let slot = socket.endpoint();
        let began = image.filter(|_| !inside);
        let began =
            began.and_then(|image| decide::let_in::lets_in(image, slot, local, remote).ok());
        rules = began.map_or([u32::MAX; 2], |it| it.rules.map(number));
        if let Some(it) = began {
            b.slot = it.slot.unwrap_or(b.slot);
            b.zone = it.tag;
            if it.tag != 0 {
                rules = [ELSEWHERE, rules[1]];
            }
        }
        (a, b) = (b, a);
    }
    let flow = flows::Row {
        a,
        b,
        protocol,
        state: state as u8,
        rules,
        ..flows::Row::default()
    };
    let is_circuit = socket.kind() == Kind::Stream;
    Row {
        flow,
        id: if is_circuit { socket.cookie() } else { 0 },
        carrier: socket.carrier() as u8,
        age: match socket.since() {
            since if is_circuit && since != 0 => now.saturating_sub(since),
            _ => u64::MAX,
        },
        rate: [0; 2],
    }
}

/// The sockets that are the ends of a circuit.
pub fn ends(table: &Table, cookie: u64) -> Vec<Socket> {
    let own = table.socket(cookie).into_iter();
    own.chain(table.other_ends(cookie)).copied().collect()
}

/// How long one look at many descriptors of an endpoint's programs may have this process wait for what is closed
/// again: microseconds altogether, but where a program's file is slow at it.
const STANDS: Duration = Duration::from_millis(100);

/// Whether that has lasted too long.
pub fn is_enough(stood: Duration) -> bool {
    stood >= STANDS && guard!("circuits-stands")
}

/// The number that a thread's program has a socket at.
pub fn number_of(thread: u32, cookie: u64) -> Option<u32> {
    let target = Target::open(thread).ok()?;
    let is = |number: &i32| {
        let taken = target.take_socket(*number);
        taken.is_ok_and(|(_, found)| found == cookie)
    };
    let before = notify::copying();
    let mut numbers = (0..NUMBERS).take_while(|_| !is_enough(notify::copying() - before));
    numbers.find(is).map(i32::cast_unsigned)
}

/// The socket, taken from the program that was seen with it, at its number.
pub fn at_place(socket: &Socket) -> Option<OwnedFd> {
    let (target, number) = place::at(socket.place())?;
    taken(&target, number.cast_signed(), socket.cookie())
}

/// Shows each socket that a thread's program has at these numbers, until that is enough
/// (`false`).
pub fn search(thread: u32, numbers: Range<i32>, mut shown: impl FnMut(u64, OwnedFd) -> bool) {
    let Ok(target) = Target::open(thread) else {
        return;
    };
    let before = notify::copying();
    for number in numbers.take_while(|_| !is_enough(notify::copying() - before)) {
        if let Ok((fd, cookie)) = target.take_socket(number)
            && !shown(cookie, fd)
        {
            return;
        }
    }
}

fn taken(target: &Target, number: i32, cookie: u64) -> Option<OwnedFd> {
    let (fd, found) = target.take_socket(number).ok()?;
    (found == cookie).then_some(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::tests::{NEAR, OTHER, WEB, judged, of, tables};
    use crate::mediate::LIMITS;
    use circuit::{Addresses, Family};
    use image::Aligned;

    /// Who polls what is its own has others' sockets cost a look each, and no question of the rules.
    #[test]
    fn of_what_is_not_listed_no_row_is_made() {
        let image = Aligned::copy_of(&tables().finish().unwrap());
        let image = CompartmentImage::map(image.as_ref()).unwrap();
        let all = (0..=OTHER).map(|it| Addresses::new(&[of(it)]).unwrap());
        let mut table = Table::new(LIMITS, all.collect());
        for cookie in 1..=40_u64 {
            // One of each ten leads to NEAR, and is listed as its too.
            let (from, to) = match cookie % 10 {
                0 => (WEB, NEAR),
                1 => (NEAR, WEB),
                _ => (OTHER, OTHER),
            };
            table.create(cookie, from, Family::V4, 0).unwrap();
            let port = 100 + cookie as u16;
            let to = Endpoint { ip: of(to), port };
            let (bytes, length) = circuit::write(Family::V4, to);
            table.connect_begin(cookie, &bytes[..length], 7).unwrap();
            table.connected(cookie).unwrap();
        }
        let listed = |slot, most, circuits| {
            let page = shm::sparse_file("listing", bytes_for(64)).unwrap();
            let asked = ListFlows {
                compartment: 0,
                slot,
                most,
                circuits,
            };
            let before = MADE.get();
            let counts = BTreeMap::new();
            let own = page.try_clone().unwrap();
            list(
                &table,
                Some(&image),
                (|_: &u64| false, |_| 0),
                (&counts, 0),
                &asked,
                own,
            );
            let page = Words::map_whole(page).unwrap();
            let told = [COUNT_AT, SEEN_AT].map(|at| page.load(at));
            (told, MADE.get() - before)
        };
        assert_eq!(listed(NEAR, 64, 1), ([8, 8], 8));
        assert_eq!(listed(WEB, 64, 1), ([8, 8], 8));
        assert_eq!(listed(OTHER, 64, 1), ([32, 32], 32));
        assert_eq!(listed(OTHER, 5, 1), ([5, 32], 5));
        assert_eq!(listed(u32::MAX, 5, 1), ([5, 40], 5));
        assert_eq!(listed(NEAR, 64, LISTENERS), ([0, 0], 0));
    }

    /// Of one that is allowed no more the address may be nobody's by now, or another tenant's, or both have it.
    #[test]
    fn no_other_tenants_endpoint_is_named() {
        let elsewhere = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 9];
        for (has, named) in [
            ([NEAR].as_slice(), NEAR),
            (&[OTHER], WEB),
            (&[OTHER, NEAR], NEAR),
        ] {
            let mut tables = tables();
            tables.rule_tables = vec![judged(image::rules::Action::Deny, 1)];
            tables.endpoints[0].egress = 0;
            for endpoint in &mut tables.endpoints {
                endpoint.connections = 64;
            }
            if !has.contains(&NEAR) {
                let of_near = tables.addresses.iter_mut().find(|it| it.1 == of(NEAR));
                of_near.unwrap().1 = elsewhere;
            }
            let image = Aligned::copy_of(&tables.finish().unwrap());
            let image = CompartmentImage::map(image.as_ref()).unwrap();
            // The other tenant's endpoint first.
            let addresses = |slot| match slot {
                0 if has.contains(&OTHER) => Addresses::new(&[of(NEAR)]),
                WEB => Addresses::new(&[of(WEB)]),
                NEAR if has.contains(&NEAR) => Addresses::new(&[of(NEAR)]),
                _ => Addresses::new(&[]),
            };
            let all = (0..=OTHER).map(|it| addresses(it).unwrap()).collect();
            let mut table = Table::new(LIMITS, all);
            table.create(1, WEB, Family::V4, 0).unwrap();
            let to = Endpoint {
                ip: of(NEAR),
                port: 80,
            };
            let (bytes, length) = circuit::write(Family::V4, to);
            table.connect_begin(1, &bytes[..length], 7).unwrap();
            table.connected(1).unwrap();
            let row = row(&table, table.socket(1).unwrap(), Some(&image), 0);
            assert_eq!([row.flow.a.slot, row.flow.b.slot], [WEB, named], "{has:?}");
        }
    }
}
