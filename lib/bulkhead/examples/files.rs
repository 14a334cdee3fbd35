//! A server of one file, straight from it into the memory that both programs have:
//! `files serve ADDRESS FILE`, and `files fetch ADDRESS`, which writes what comes to its output.

use bulkhead::{Circuit, Listener};
use std::fs::File;
use std::io::Result;
use std::os::fd::AsFd;

/// Bytes read at a time.
const PART: usize = 256 << 10;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", address, file] => serve(address, file),
        ["fetch", address] => fetch(address),
        _ => Err(std::io::Error::other(
            "serve ADDRESS FILE, or fetch ADDRESS",
        )),
    }
}

fn serve(address: &str, file: &str) -> Result<()> {
    let listener = Listener::bind(address)?;
    loop {
        let (circuit, who) = listener.accept()?;
        let file = File::open(file)?;
        std::thread::spawn(move || println!("{who}: {:?}", send(circuit, &file)));
    }
}

fn send(mut circuit: Circuit, file: &File) -> Result<u64> {
    let mut all = 0;
    loop {
        let mut room = circuit.reserve(1)?;
        let n = room.read_from(file.as_fd(), 0, PART)?;
        room.commit(n)?;
        if n == 0 {
            return Ok(all);
        }
        all += n as u64;
    }
}

fn fetch(address: &str) -> Result<()> {
    let mut circuit = Circuit::connect(address)?;
    let output = std::io::stdout();
    loop {
        let came = circuit.peek()?;
        let n = match came.len() {
            0 => return Ok(()),
            n => came.write_to(output.as_fd(), n)?,
        };
        came.consume(n);
    }
}
