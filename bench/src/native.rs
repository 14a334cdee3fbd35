//! A program of two sides for `bench circuits` that knows of circuits. Every byte is made on one
//! side and added up on the other, and the sums are compared: a run in which nobody touches the
//! data measures nothing.

use bulkhead::{Circuit, LINE, Listener, Peeked, Way};
use std::io::{Error, Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Bytes that are made in place before they are sent: who reads begins with them then.
const PART: usize = 64 << 10;

/// How bytes are handled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// A socket, read and written.
    Tcp,
    /// A circuit, read and written.
    Copies,
    /// A circuit, its data made and used in place.
    InPlace,
    /// A circuit whose descriptor nobody polls, read and written.
    Unpolled,
}

/// A server's or a client's part: `what` is its name with the way, as `tcp-stream`. `None`: no
/// such thing; else a client's number.
pub fn run(what: &str, address: &str, time: Duration, message: usize) -> Option<Result<String>> {
    let (how, what) = what.split_once('-')?;
    if how == "mixed" {
        // The time is what sizes follow from.
        let seed = time.as_millis() as u64;
        return Some(mixed(what == "serve", address, seed, message).map(|()| String::new()));
    }
    let how = match how {
        "tcp" => How::Tcp,
        "copies" => How::Copies,
        "place" => How::InPlace,
        "unpolled" => How::Unpolled,
        _ => return None,
    };
    Some(match what {
        "sink" => sink(how, address, message).map(|()| String::new()),
        "stream" => stream(how, address, time, message).map(|n| n.to_string()),
        "echo" => echo(how, address).map(|()| String::new()),
        "rtt" => rtt(how, address, time).map(|n| n.to_string()),
        "many" => many(address, message, Memory::AFewBytes).map(|n| n.to_string()),
        "drained" => many(address, message, Memory::Used).map(|n| n.to_string()),
        "whole" => many(address, message, Memory::Whole).map(|n| n.to_string()),
        _ => return None,
    })
}

/// The sum of all eight bytes in a row, however they come.
#[derive(Default)]
struct Sum {
    sum: u64,
    rest: [u8; 8],
    held: usize,
}

impl Sum {
    fn add(&mut self, mut bytes: &[u8]) {
        while self.held > 0 && !bytes.is_empty() {
            self.one(bytes[0]);
            bytes = &bytes[1..];
        }
        let (words, rest) = bytes.as_chunks::<8>();
        let all = words.iter().map(|word| u64::from_le_bytes(*word));
        self.sum = all.fold(self.sum, u64::wrapping_add);
        rest.iter().for_each(|byte| self.one(*byte));
    }

    /// The first so many of what has come, where they lie.
    fn add_peeked(&mut self, peeked: &Peeked<'_>, bytes: usize) {
        if self.held > 0 {
            return peeked.chunks(bytes, |part| self.add(part));
        }
        let mut sums = [0_u64; 8];
        let lines = peeked.lines(bytes, |line| {
            for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
                *sum = sum.wrapping_add(u64::from_le_bytes(*word));
            }
        });
        self.sum = sums.into_iter().fold(self.sum, u64::wrapping_add);
        let mut rest = [0; LINE];
        let rest = rest.get_mut(..bytes - lines * LINE).unwrap_or_default();
        peeked.copy_to(lines * LINE, rest);
        self.add(rest);
    }

    fn one(&mut self, byte: u8) {
        self.rest[self.held] = byte;
        self.held = (self.held + 1) % 8;
        if self.held == 0 {
            self.sum = self.sum.wrapping_add(u64::from_le_bytes(self.rest));
        }
    }
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Lines of words that follow one another, eight times each, and the sum of all.
struct Lines {
    next: u64,
    sum: u64,
}

impl Lines {
    #[inline]
    fn line(&mut self) -> [u8; LINE] {
        let mut line = [0; LINE];
        for place in line.as_chunks_mut::<8>().0 {
            *place = self.next.to_le_bytes();
        }
        self.sum = self.sum.wrapping_add(self.next.wrapping_mul(8));
        self.next = self.next.wrapping_add(STEP);
        line
    }

    /// The same to private memory, whole lines of it.
    fn make(&mut self, bytes: &mut [u8]) {
        for line in bytes.as_chunks_mut::<LINE>().0 {
            *line = self.line();
        }
    }
}

/// Adds up all that comes, and answers with the sum.
fn sink(how: How, address: &str, message: usize) -> Result<()> {
    let (mut sum, mut bytes) = (Sum::default(), vec![0; message]);
    if how == How::Tcp {
        let (mut stream, _) = TcpListener::bind(address)?.accept()?;
        loop {
            match stream.read(&mut bytes)? {
                0 => return stream.write_all(&sum.sum.to_le_bytes()),
                n => sum.add(&bytes[..n]),
            }
        }
    }
    let (mut circuit, _) = Listener::bind(address)?.accept()?;
    circuit.set_spin(Duration::from_micros(50));
    loop {
        let n = match how {
            How::InPlace => {
                let peeked = circuit.peek()?;
                let n = peeked.len().min(message);
                sum.add_peeked(&peeked, n);
                peeked.consume(n);
                n
            }
            _ => {
                let n = circuit.read(&mut bytes)?;
                sum.add(&bytes[..n]);
                n
            }
        };
        if n == 0 {
            return circuit.write_all(&sum.sum.to_le_bytes());
        }
    }
}

/// Gbit/s of messages so long, to the moment at which the sum of all is known to be right.
fn stream(how: How, address: &str, time: Duration, message: usize) -> Result<f64> {
    let (mut lines, mut all) = (Lines { next: 1, sum: 0 }, 0_u64);
    let mut bytes = vec![0; message];
    let mut answer = [0; 8];
    let begun;
    if how == How::Tcp {
        let mut stream = TcpStream::connect(address)?;
        begun = Instant::now();
        while begun.elapsed() < time {
            lines.make(&mut bytes);
            stream.write_all(&bytes)?;
            all += message as u64;
        }
        stream.shutdown(Shutdown::Write)?;
        stream.read_exact(&mut answer)?;
    } else {
        let mut circuit = Circuit::connect(address)?;
        circuit.set_spin(Duration::from_micros(50));
        begun = Instant::now();
        while begun.elapsed() < time {
            if how == How::InPlace {
                // No more than fits: of a longer message a part after the other.
                let part = message.min(PART);
                for _ in 0..message / part {
                    let mut room = circuit.reserve(part)?;
                    room.fill_lines(part, |_| lines.line());
                    room.commit(part)?;
                }
            } else {
                lines.make(&mut bytes);
                circuit.write_all(&bytes)?;
            }
            all += message as u64;
        }
        if circuit.way() != Way::Ring {
            return Err(Error::other("it did not go by the ring"));
        }
        circuit.shutdown(Shutdown::Write)?;
        circuit.read_exact(&mut answer)?;
    }
    let took = begun.elapsed().as_secs_f64();
    match u64::from_le_bytes(answer) == lines.sum {
        true => Ok(all as f64 * 8.0 / took / 1e9),
        false => Err(Error::other("other bytes came than went")),
    }
}

/// So many bytes to the server and as many back, written and read by lot at all sizes, by copies
/// and in place; each is checked.
fn mixed(serves: bool, address: &str, seed: u64, count: usize) -> Result<()> {
    let mut circuit = match serves {
        true => {
            let listener = Listener::bind(address)?;
            println!("serving");
            listener.accept()?.0
        }
        false => Circuit::connect(address)?,
    };
    let mut lot = seed.wrapping_mul(2) + u64::from(serves);
    let mut draw = move |most: usize| {
        lot = lot.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        1 + (lot >> 33) as usize % most
    };
    for writes in [!serves, serves] {
        let mut at = 0;
        while at < count {
            // Few bytes as often as many.
            let most = draw(5);
            let some = draw(10_usize.pow(most as u32)).min(count - at);
            at += match writes {
                true => puts(&mut circuit, at, some, seed)?,
                false => gets(&mut circuit, at, some, seed)?,
            };
        }
        if writes {
            circuit.shutdown(Shutdown::Write)?;
        }
    }
    // Whoever answered last has its end heard.
    match serves {
        false => match circuit.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(Error::other("more came than was sent")),
        },
        true => Ok(()),
    }
}

fn byte_at(at: usize, seed: u64) -> u8 {
    (at % 65_521 * 31 + (at >> 16)) as u8 ^ seed as u8
}

/// Writes some bytes, every second time in place; how many.
fn puts(circuit: &mut Circuit, at: usize, some: usize, seed: u64) -> Result<usize> {
    if some.is_multiple_of(2) {
        let bytes: Vec<u8> = (at..at + some).map(|at| byte_at(at, seed)).collect();
        circuit.write_all(&bytes)?;
        return Ok(some);
    }
    let mut room = circuit.reserve(some)?;
    room.fill(some, |from, bytes| {
        for (n, byte) in bytes.iter_mut().enumerate() {
            *byte = byte_at(at + from + n, seed);
        }
    });
    room.commit(some)?;
    Ok(some)
}

/// Reads some bytes, every second time in place; how many.
fn gets(circuit: &mut Circuit, at: usize, some: usize, seed: u64) -> Result<usize> {
    let (mut next, mut right) = (at, true);
    let mut check = |part: &[u8]| {
        for byte in part {
            right &= *byte == byte_at(next, seed);
            next += 1;
        }
    };
    let n = if some.is_multiple_of(2) {
        let mut bytes = vec![0; some];
        let n = circuit.read(&mut bytes)?;
        check(&bytes[..n]);
        n
    } else {
        let came = circuit.peek()?;
        let n = came.len().min(some);
        came.chunks(n, &mut check);
        came.consume(n);
        n
    };
    match (n, right) {
        (0, _) => Err(Error::other("an early end")),
        (_, false) => Err(Error::other(format!("a wrong byte before {next}"))),
        (n, true) => Ok(n),
    }
}

/// Spins, or sleeps by the memory.
fn waits_so(how: How, circuit: &mut Circuit) {
    match how {
        How::Unpolled => circuit.set_polled(false),
        _ => circuit.set_spin(Duration::from_millis(20)),
    }
}

/// Answers each byte with itself on all connections that come; `m` is answered
/// with what this process has of memory, in KiB.
fn echo(how: How, address: &str) -> Result<()> {
    let listener = Listener::bind(address)?;
    let (mut all, mut burst) = (Vec::new(), vec![7; BURST]);
    loop {
        let (mut circuit, _) = listener.accept()?;
        waits_so(how, &mut circuit);
        let mut byte = [0];
        // A client of many leaves each behind after a few bytes.
        while let Ok(1) = circuit.read(&mut byte) {
            if &byte == b"n" {
                break;
            }
            match &byte {
                b"m" => circuit.write_all(&memory_kib()?.to_le_bytes())?,
                b"b" => {
                    for _ in 0..BURSTS {
                        circuit.read_exact(&mut burst)?;
                        circuit.write_all(&burst)?;
                    }
                }
                _ => circuit.write_all(&byte)?,
            }
        }
        all.push(circuit);
    }
}

/// The median time of a byte there and back, microseconds.
fn rtt(how: How, address: &str, time: Duration) -> Result<f64> {
    let mut circuit = Circuit::connect(address)?;
    waits_so(how, &mut circuit);
    let (begun, mut all, mut byte) = (Instant::now(), Vec::new(), [7]);
    // A thousand at a time: a clock takes a tenth of what is measured.
    while begun.elapsed() < time {
        let sent = Instant::now();
        for _ in 0..1000 {
            circuit.write_all(&byte)?;
            circuit.read_exact(&mut byte)?;
        }
        all.push(sent.elapsed().as_secs_f64() * 1e3);
    }
    if circuit.way() != Way::Ring {
        return Err(Error::other("it did not go by the ring"));
    }
    all.sort_by(f64::total_cmp);
    Ok(all[all.len() / 2])
}

/// As many bytes as a ring has go each way, so often, where rings are to have been used.
const BURST: usize = 1 << 20;
const BURSTS: usize = 4;
/// How long circuits whose memory was used are idle before it is looked at.
const IDLE: Duration = Duration::from_secs(5);
/// By one of them a byte goes there and back so often meanwhile: the programs are not asleep for good.
const NOW_AND_THEN: Duration = Duration::from_millis(100);

/// Whose memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// The programs', of circuits that a few bytes went by.
    AFewBytes,
    /// The same after several rings full.
    Used,
    /// All of it, the kernel's part and the operator's too: what their control group is charged for.
    Whole,
}

/// KiB of memory for each of so many idle connections that bytes went by, each way by the ring. What it is before and after is
/// looked at by a connection of its own, which a few bytes went by: of one that a burst went by, and that is not idle, the
/// memory is there or not as that goes on.
fn many(address: &str, count: usize, whose: Memory) -> Result<f64> {
    let used = whose != Memory::AFewBytes;
    let (mut all, mut burst) = (Vec::new(), vec![7; BURST]);
    let mut memory = Vec::new();
    for number in 0..=count {
        let mut circuit = by_ring(address)?;
        if used {
            circuit.write_all(b"b")?;
            for _ in 0..BURSTS {
                circuit.write_all(&burst)?;
                circuit.read_exact(&mut burst)?;
            }
        }
        circuit.write_all(b"n")?;
        all.push(circuit);
        if number == 0 || number == count {
            let mut beside = by_ring(address)?;
            if used {
                let (begun, mut byte) = (Instant::now(), [7]);
                while begun.elapsed() < IDLE {
                    beside.wait_readable(Some(NOW_AND_THEN))?;
                    beside.write_all(&byte)?;
                    beside.read_exact(&mut byte)?;
                }
            }
            beside.write_all(b"m")?;
            let mut theirs = [0; 8];
            beside.read_exact(&mut theirs)?;
            memory.push(match whose {
                Memory::Whole => crate::group::memory_kib().map_err(Error::other)?,
                _ => memory_kib()? + u64::from_le_bytes(theirs),
            });
            beside.write_all(b"n")?;
            all.push(beside);
        }
    }
    match memory[..] {
        [before, after] => Ok((after as f64 - before as f64) / count as f64),
        _ => Err(Error::other("no connections")),
    }
}

/// A connection that goes by the ring after a few bytes.
fn by_ring(address: &str) -> Result<Circuit> {
    let mut circuit = Circuit::connect(address)?;
    let mut byte = [7];
    for _ in 0..4 {
        circuit.write_all(&byte)?;
        circuit.read_exact(&mut byte)?;
    }
    match circuit.way() {
        Way::Ring => Ok(circuit),
        _ => Err(Error::other("it did not go by the ring")),
    }
}

/// What this process has, with its part of what it shares, and its page tables.
fn memory_kib() -> Result<u64> {
    Ok(kib_of("/proc/self/smaps_rollup", "Pss:")? + kib_of("/proc/self/status", "VmPTE:")?)
}

/// A number of a file of /proc.
fn kib_of(file: &str, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(file)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    let number = number.and_then(|it| it.parse().ok());
    number.ok_or_else(|| Error::other(format!("{file} says no {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_the_same_however_bytes_come() {
        let (mut bytes, mut lines) = (vec![0; 4096], Lines { next: 1, sum: 0 });
        lines.make(&mut bytes);
        for step in [1, 3, 8, 13, 4096] {
            let mut came = Sum::default();
            bytes.chunks(step).for_each(|part| came.add(part));
            assert_eq!(came.sum, lines.sum, "{step}");
        }
    }
}
