//! A program of two sides for `bench circuits`: connections that are set up, answered and closed,
//! and single bytes there and back. Plain sockets: run anywhere, it knows nothing of us.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Which side, and what of.
#[derive(clap::Args)]
pub struct Talk {
    /// `serve`, `setup`, `rtt` or `ends`; or one of what `native` has.
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
        "ends" => ends(&talk.address, time, talk.message).map_err(said),
        other => Err(format!("{other}: serve, setup, rtt or ends")),
    }
}

/// Answers each byte with itself, one connection after the other.
fn serve(address: &str) -> std::io::Result<()> {
    let listener = TcpListener::bind(address)?;
    loop {
        let (mut stream, _) = listener.accept()?;
        let mut byte = [0];
        // Whoever is gone has no answer.
        let _ = stream.set_nodelay(true);
        while let Ok(1) = stream.read(&mut byte) {
            if stream.write_all(&byte).is_err() {
                break;
            }
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

/// Longer than so waits who is forgotten; or whose turn has come, on a machine that does as few as 500 a second.
const SLOW: Duration = Duration::from_secs(2);
/// And so long nobody whose turn comes at all.
const HUNG: Duration = Duration::from_secs(10);

/// So many connect at once, again and again. Prints when each connection was over that was answered (of the
/// monotonic clock, ns), and then how many hung, how many others failed, and how many took more than two seconds.
fn ends(address: &str, time: Duration, threads: usize) -> std::io::Result<()> {
    let (begun, (tell, told)) = (Instant::now(), std::sync::mpsc::channel());
    let over = Arc::new(AtomicUsize::new(0));
    for _ in 0..threads {
        let (tell, address, over) = (tell.clone(), address.to_owned(), over.clone());
        let builder = std::thread::Builder::new().stack_size(64 << 10);
        builder.spawn(move || {
            while begun.elapsed() < time {
                let (from, first) = (Instant::now(), over.load(Relaxed));
                let done = TcpStream::connect(&address).and_then(|mut stream| {
                    let mut byte = [7];
                    stream.write_all(&byte)?;
                    stream.read_exact(&mut byte)
                });
                let others = over.fetch_add(1, Relaxed) - first;
                let end = worker::clock::monotonic();
                let _ = tell.send((end, done.is_err(), took(from.elapsed(), others, threads)));
            }
        })?;
    }
    drop(tell);
    let (mut text, [mut hung, mut failed, mut slow]) = (String::new(), [0; 3]);
    // Each thread's last word is that it is gone; one that hangs has none.
    while let Ok((end, has_failed, (is_slow, has_hung))) = told.recv_timeout(SLOW + HUNG) {
        if !has_failed {
            text += &format!("{end}\n");
        }
        hung += usize::from(has_hung);
        failed += usize::from(has_failed && !has_hung);
        slow += usize::from(is_slow);
    }
    if told.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
        hung += threads;
    }
    text += &format!("hung {hung} failed {failed} slow {slow}\n");
    std::io::stdout().write_all(text.as_bytes())
}

/// Whether a connection was slow, and whether it hung: it was passed by, while twice as many others were over as there are threads.
fn took(time: Duration, others: usize, threads: usize) -> (bool, bool) {
    let is_slow = time > SLOW;
    (is_slow, is_slow && others > 2 * threads || time > HUNG)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_passed_by_hangs_and_who_waits_its_turn_is_slow() {
        let seconds = Duration::from_secs;
        for (time, others, expected) in [
            (seconds(1), 9000, (false, false)),
            (seconds(3), 1000, (true, false)),
            (seconds(3), 2001, (true, true)),
            (seconds(11), 0, (true, true)),
        ] {
            assert_eq!(took(time, others, 1000), expected, "{time:?} {others}");
        }
    }
}
