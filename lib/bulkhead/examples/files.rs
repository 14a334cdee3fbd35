//! A server of one file, straight from it into the memory that both programs have:
//! `files serve ADDRESS FILE`, and `files fetch ADDRESS`, which writes what comes to its output. Before it comes
//! how long it is, eight bytes in the network's order, so that who fetches knows the whole from a part.

use bulkhead::{Circuit, Listener};
use std::fs::File;
use std::io::{Error, Read, Result, Write};
use std::os::fd::AsFd;

/// Bytes read at a time.
const PART: usize = 256 << 10;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", address, file] => serve(address, file),
        ["fetch", address] => fetch(address),
        _ => Err(Error::other("serve ADDRESS FILE, or fetch ADDRESS")),
    }
}

fn serve(address: &str, file: &str) -> Result<()> {
    let listener = Listener::bind(address)?;
    loop {
        let (circuit, who) = listener.accept()?;
        let file = file.to_owned();
        std::thread::spawn(move || println!("{who}: {:?}", send(circuit, &file)));
    }
}

fn send(mut circuit: Circuit, file: &str) -> Result<u64> {
    let file = File::open(file)?;
    let length = file.metadata()?.len();
    circuit.write_all(&length.to_be_bytes())?;
    let mut left = length;
    while left > 0 {
        let part = PART.min(usize::try_from(left).unwrap_or(PART));
        let mut room = circuit.reserve(1)?;
        let n = room.read_from(file.as_fd(), 0, part)?;
        room.commit(n)?;
        if n == 0 {
            return Err(Error::other("the file has become shorter"));
        }
        left -= n as u64;
    }
    Ok(length)
}

fn fetch(address: &str) -> Result<()> {
    let mut circuit = Circuit::connect(address)?;
    let output = std::io::stdout();
    let mut length = [0; 8];
    circuit.read_exact(&mut length)?;
    let mut left = u64::from_be_bytes(length);
    while left > 0 {
        let came = circuit.peek()?;
        if came.is_empty() {
            return Err(Error::other(format!("{left} bytes are missing")));
        }
        let most = came.len().min(usize::try_from(left).unwrap_or(PART));
        let n = came.write_to(output.as_fd(), most)?;
        came.consume(n);
        left -= n as u64;
    }
    Ok(())
}
