//! A program of two sides for `bench circuits`: connections that are set up, answered and closed,
//! and single bytes there and back. Plain sockets: run anywhere, it knows nothing of us.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Which side, and what of.
#[derive(clap::Args)]
pub struct Talk {
    /// `serve`, `setup` or `rtt`; or one of what `native` has.
    what: String,
    /// ADDRESS:PORT
    address: String,
    /// Milliseconds.
    #[arg(default_value_t = 1000)]
    time: u64,
    /// Bytes of a message, or how many.
    #[arg(default_value_t = 1)]
    message: usize,
}

/// Runs it; a client prints one number.
pub fn run(talk: &Talk) -> Result<(), String> {
    let said = |e: std::io::Error| e.to_string();
    let time = Duration::from_millis(talk.time);
    if let Some(done) = crate::native::run(&talk.what, &talk.address, time, talk.message) {
        return done.map(|n| println!("{n}")).map_err(said);
    }
    match talk.what.as_str() {
        "serve" => serve(&talk.address).map_err(said),
        "setup" => setup(&talk.address, time)
            .map(|n| println!("{n}"))
            .map_err(said),
        "rtt" => rtt(&talk.address, time)
            .map(|n| println!("{n}"))
            .map_err(said),
        other => Err(format!("{other}: serve, setup or rtt")),
    }
}

/// Answers each byte with itself, one connection after the other.
fn serve(address: &str) -> std::io::Result<()> {
    let listener = TcpListener::bind(address)?;
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut byte = [0];
        while let Ok(1) = stream.read(&mut byte) {
            stream.write_all(&byte)?;
        }
    }
}

/// Connections a second: connect, accept, a byte and its answer, close.
fn setup(address: &str, time: Duration) -> std::io::Result<f64> {
    let (begun, mut count) = (Instant::now(), 0_u32);
    while begun.elapsed() < time {
        let mut stream = TcpStream::connect(address)?;
        let mut byte = [7];
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        count += 1;
    }
    Ok(f64::from(count) / begun.elapsed().as_secs_f64())
}

/// The median time of a byte there and back, microseconds.
fn rtt(address: &str, time: Duration) -> std::io::Result<f64> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let (begun, mut all) = (Instant::now(), Vec::new());
    while begun.elapsed() < time {
        let (sent, mut byte) = (Instant::now(), [7]);
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        all.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    all.sort_by(f64::total_cmp);
    Ok(all.get(all.len() / 2).copied().unwrap_or(f64::NAN))
}
