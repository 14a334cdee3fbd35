//! Answers whoever connects with what it says: `echo ADDRESS`.

use bulkhead::{Circuit, Listener};
use std::io::{Read, Result, Write};

fn main() -> Result<()> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:7007".into());
    let listener = Listener::bind(address)?;
    loop {
        let (circuit, who) = listener.accept()?;
        std::thread::spawn(move || match answer(circuit) {
            Ok(bytes) => println!("{who}: {bytes} bytes"),
            Err(error) => println!("{who}: {error}"),
        });
    }
}

fn answer(mut circuit: Circuit) -> Result<u64> {
    let (mut bytes, mut all) = (vec![0; 64 << 10], 0);
    loop {
        match circuit.read(&mut bytes)? {
            0 => return Ok(all),
            n => {
                circuit.write_all(&bytes[..n])?;
                all += n as u64;
            }
        }
    }
}
