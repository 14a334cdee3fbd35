//! An ordinary Rust program on tokio, for the tests of circuits: it knows nothing of them.

use std::error::Error;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

type Done<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes that each connection sends and gets back.
const BYTES: usize = 300_000;
const LONGEST: Duration = Duration::from_secs(20);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Done {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", address] => serve(address).await,
        ["ask", address, count] => ask(address, count.parse()?).await,
        ["closed", address] => closed(address).await,
        _ => Err("serve ADDRESS, ask ADDRESS COUNT or closed ADDRESS".into()),
    }
}

/// Answers bytes and datagrams with themselves.
async fn serve(address: &str) -> Done {
    let listener = TcpListener::bind(address).await?;
    let datagrams = UdpSocket::bind(address).await?;
    println!("serving");
    tokio::spawn(async move {
        let mut bytes = [0; 2000];
        while let Ok((length, from)) = datagrams.recv_from(&mut bytes).await {
            let _ = datagrams.send_to(&bytes[..length], from).await;
        }
    });
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let (mut from, mut to) = stream.into_split();
            let _ = tokio::io::copy(&mut from, &mut to).await;
            let _ = to.shutdown().await;
        });
    }
}

/// So many connections and as many datagrams at once; prints how many of each came back whole.
async fn ask(address: &str, count: usize) -> Done {
    let mut all = JoinSet::new();
    for number in 0..count {
        let address = address.to_owned();
        all.spawn(async move { timeout(LONGEST, stream(&address, number)).await });
    }
    let streams = all.join_all().await.into_iter();
    let streams = streams.filter(|done| matches!(done, Ok(Ok(true)))).count();
    let mut all = JoinSet::new();
    for number in 0..count {
        let address = address.to_owned();
        all.spawn(async move { timeout(LONGEST, datagram(&address, number)).await });
    }
    let datagrams = all.join_all().await.into_iter();
    let datagrams = datagrams.filter(|done| matches!(done, Ok(Ok(true))));
    println!("{streams} {}", datagrams.count());
    Ok(())
}

/// Writes and reads at once, each its own task; whether all came back.
async fn stream(address: &str, number: usize) -> Done<bool> {
    let sent: Vec<u8> = (0..BYTES).map(|at| (at * 7 + number) as u8).collect();
    let (mut from, mut to) = TcpStream::connect(address).await?.into_split();
    let bytes = sent.clone();
    let writes = tokio::spawn(async move {
        to.write_all(&bytes).await?;
        to.shutdown().await
    });
    let mut came = Vec::new();
    from.read_to_end(&mut came).await?;
    writes.await??;
    Ok(came == sent)
}

/// One datagram there and back, from a socket that is connected or, every second, is not.
async fn datagram(address: &str, number: usize) -> Done<bool> {
    let any = if address.starts_with('[') {
        "[::]:0"
    } else {
        "0.0.0.0:0"
    };
    let socket = UdpSocket::bind(any).await?;
    let (sent, mut came) = (number.to_ne_bytes(), [0; 100]);
    let length = match number % 2 {
        0 => {
            socket.connect(address).await?;
            socket.send(&sent).await?;
            socket.recv(&mut came).await?
        }
        _ => {
            socket.send_to(&sent, address).await?;
            socket.recv_from(&mut came).await?.0
        }
    };
    Ok(came[..length] == sent)
}

/// Nobody listens there: prints what a connect says, and how long a wait for nothing takes.
async fn closed(address: &str) -> Done {
    let refused = TcpStream::connect(address).await.map(drop);
    let waits = UdpSocket::bind("127.0.0.1:0").await?;
    let waited = timeout(Duration::from_millis(50), waits.recv(&mut [0])).await;
    println!("{:?} {}", refused.err().map(|e| e.kind()), waited.is_err());
    Ok(())
}
