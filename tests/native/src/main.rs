//! Programs that know of circuits, for the tests of rings: an honest server and client, one that
//! takes up the ring late, and one that writes all over the memory that it shares.

use bulkhead::{Circuit, Listener, Way};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

type Done = Result<(), Box<dyn Error>>;

/// Bytes that are under way at once: fewer than a socket's buffer, for the server does not read
/// on while its answer is not read.
const TURN: usize = 100_000;

fn main() -> Done {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["echo", address] => echo(address),
        ["late", address, sign] => late(address, sign),
        ["ask", address, turns] => ask(address, turns.parse()?),
        ["hold", address] => hold(address),
        ["rest", address] => rest(address),
        ["scribble", address, seed] => scribble(address, seed.parse()?),
        _ => Err(
            "echo ADDRESS, late ADDRESS FILE, ask ADDRESS TURNS, hold ADDRESS, rest ADDRESS or scribble ADDRESS SEED"
                .into(),
        ),
    }
}

/// Answers each with what it says, each in a thread; prints how each ended, and by which way.
fn echo(address: &str) -> Done {
    let listener = Listener::bind(address)?;
    println!("serving");
    loop {
        let (circuit, _) = listener.accept()?;
        std::thread::spawn(move || println!("{}", answered(circuit)));
    }
}

fn answered(mut circuit: Circuit) -> String {
    let (mut bytes, mut all) = (vec![0; 100_000], 0_usize);
    loop {
        let end = match circuit.read(&mut bytes) {
            Ok(0) => "end".to_owned(),
            Ok(n) => match circuit.write_all(&bytes[..n]) {
                Ok(()) => {
                    all += n;
                    continue;
                }
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        return format!("{all} by {:?}: {end}", circuit.way());
    }
}

/// Accepts as any program does, and asks for the ring when a file is there.
fn late(address: &str, sign: &str) -> Done {
    let listener = TcpListener::bind(address)?;
    println!("serving");
    let (stream, _) = listener.accept()?;
    println!("accepted");
    while !Path::new(sign).exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("{}", answered(Circuit::from_fd(OwnedFd::from(stream))));
    Ok(())
}

/// Asks so many times and compares what comes back.
fn ask(address: &str, turns: usize) -> Done {
    let mut circuit = Circuit::connect(address)?;
    println!("connected");
    let mut came = vec![0; TURN];
    for turn in 0..turns {
        let n = (turn * 104_729 % TURN) + 1;
        let bytes: Vec<u8> = (0..n).map(|at| (at ^ at >> 8 ^ turn) as u8).collect();
        circuit.write_all(&bytes)?;
        circuit.read_exact(&mut came[..n])?;
        if came[..n] != bytes {
            return Err(format!("turn {turn}: other bytes came back").into());
        }
    }
    println!("{turns} by {}", by(circuit.way()));
    Ok(())
}

/// Has a connection in use, until it ends.
fn hold(address: &str) -> Done {
    let mut circuit = Circuit::connect(address)?;
    let mut came = [0; 1000];
    for _ in 0..50 {
        circuit.write_all(&[7; 1000])?;
        circuit.read_exact(&mut came)?;
    }
    println!("held by {}", by(circuit.way()));
    while circuit.read(&mut came)? > 0 {}
    Ok(())
}

/// Has a connection whose memory was used whole rest until that is given back, and goes on.
fn rest(address: &str) -> Done {
    /// More than is seen by the other side at a time, and less than a ring holds.
    const BURST: usize = 400_000;
    let mut circuit = Circuit::connect(address)?;
    let mut came = vec![0; BURST];
    for _ in 0..5 {
        circuit.write_all(&[7; 1000])?;
        circuit.read_exact(&mut came[..1000])?;
    }
    for round in 0..3_u8 {
        for turn in 0..20_u8 {
            let bytes: Vec<u8> = (0..BURST).map(|at| (at as u8) ^ turn ^ round).collect();
            circuit.write_all(&bytes)?;
            circuit.read_exact(&mut came)?;
            if came != bytes {
                return Err(format!("round {round}, turn {turn}: other bytes came back").into());
            }
        }
        let used = mapped_kib()?;
        let begun = Instant::now();
        while mapped_kib()? > 16 {
            if begun.elapsed() > Duration::from_secs(20) {
                return Err(format!("{} KiB are left of {used}", mapped_kib()?).into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        if used < 200 {
            return Err(format!("no more than {used} KiB were used").into());
        }
        println!("given back");
        // Until the operator has heard of it, it would go by the socket.
        std::thread::sleep(Duration::from_millis(500));
    }
    println!("rested by {}", by(circuit.way()));
    Ok(())
}

/// KiB that this process has of circuits' memory.
fn mapped_kib() -> Result<u64, Box<dyn Error>> {
    let (mut all, mut is_circuit) = (0, false);
    for line in std::fs::read_to_string("/proc/self/smaps")?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, _, _, _, _, ref name @ ..] if !line.contains(" kB") => {
                is_circuit = name.first().is_some_and(|it| it.contains("memfd:circuit"));
            }
            ["Rss:", kib, "kB"] if is_circuit => all += kib.parse::<u64>()?,
            _ => {}
        }
    }
    Ok(all)
}

fn by(way: Way) -> &'static str {
    match way {
        Way::Ring => "ring",
        Way::Socket => "socket",
    }
}

/// Is honest until the ring is in use, and writes words over all four pages then, while it goes
/// on to write and to read.
fn scribble(address: &str, seed: u64) -> Done {
    let stream = TcpStream::connect(address)?;
    let fd = OwnedFd::from(stream);
    let (memory, side, capacity) = bulkhead::memory_of(&fd).ok_or("no memory")?;
    let words = shm::Words::map_whole(&memory)?;
    let mut circuit = Circuit::with_memory(fd, memory, capacity, side);
    let mut came = [0; 1000];
    for _ in 0..5 {
        circuit.write_all(&[7; 1000])?;
        circuit.read_exact(&mut came)?;
    }
    let way = circuit.way();
    circuit.set_nonblocking(true)?;
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..200 {
        let (at, value) = (next(), next());
        // Each side's words as writer and as reader are thirty-two, and these are in use.
        const USED: [u64; 12] = [0, 1, 2, 8, 9, 10, 16, 17, 18, 19, 20, 24];
        let word = (at % 4 * 32 + USED[(at / 4 % 12) as usize]) as usize;
        let near = [
            0,
            1,
            capacity as u64,
            words.load(word).wrapping_add(1),
            words.load(word).wrapping_sub(1),
        ];
        words.store(
            word,
            near.get((value % 7) as usize).copied().unwrap_or(value),
        );
        let _ = circuit.write(&[9; 3000]);
        let _ = circuit.read(&mut came);
    }
    println!("scribbled by {}", by(way));
    Ok(())
}
