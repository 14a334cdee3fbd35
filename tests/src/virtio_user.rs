//! DPDK's virtio-user as an endpoint: testpmd, which sends every frame back to where it
//! came from, addresses and ports exchanged.

use crate::namespace::{Ended, enter, leave_to, unique};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// A running testpmd.
pub struct Reflector {
    process: Ended,
    input: ChildStdin,
}

impl Reflector {
    /// One that connects to this vhost-user socket by so many pairs of queues. `device`:
    /// more for virtio-user, as `,packed_vq=1`.
    ///
    /// # Errors
    /// It is not installed.
    pub fn start(
        (socket, mac): (&Path, &str),
        queues: u32,
        device: &str,
    ) -> Result<Reflector, String> {
        let card = format!(
            "net_virtio_user0,mac={mac},path={},queues={queues}{device}",
            socket.display()
        );
        // Its memory is a memfd of ordinary pages: it need not have huge ones.
        let mut child: Child = Command::new("dpdk-testpmd")
            .args(["--lcores=(0,1)@0", "--no-huge", "-m", "96", "--no-pci"])
            .args(["--no-shconf", "--no-telemetry", "--file-prefix"])
            .arg(unique("bht"))
            .args(["--vdev", &card, "--", "-i", "-a", "--nb-cores=1"])
            .args(["--total-num-mbufs=4096", "--forward-mode=5tswap"])
            .arg(format!("--rxq={queues}"))
            .arg(format!("--txq={queues}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("dpdk-testpmd: {e}: apt-get install dpdk-dev"))?;
        let input = child.stdin.take().ok_or("no input")?;
        Ok(Reflector {
            process: Ended(child),
            input,
        })
    }

    /// Ends it; what it counted, by name: `rx_q0_good_packets`.
    ///
    /// # Errors
    /// It ended before it was told.
    pub fn end(mut self) -> Result<BTreeMap<String, u64>, String> {
        self.input
            .write_all(b"show port xstats all\nquit\n")
            .map_err(|e| e.to_string())?;
        let mut out = String::new();
        if let Some(mut pipe) = self.process.0.stdout.take() {
            pipe.read_to_string(&mut out).map_err(|e| e.to_string())?;
        }
        let ended = self.process.0.wait().map_err(|e| e.to_string())?;
        let counted = |line: &str| {
            let (name, value) = line.split_once(": ")?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        };
        match ended.success() {
            true => Ok(out.lines().filter_map(counted).collect()),
            false => Err(out),
        }
    }
}

/// Sends from as many ports as there are flows, `rounds` times each, from a namespace; how
/// many came back as they were sent. The first one waits until somebody is there.
///
/// # Errors
/// Nobody answers in 60 s.
pub fn reflected(
    namespace: &str,
    target: &str,
    flows: u16,
    rounds: usize,
) -> Result<usize, String> {
    let says = |error: std::io::Error| error.to_string();
    let home = enter(namespace)?;
    let opened: Result<Vec<UdpSocket>, _> = (0..flows)
        .map(|_| {
            let any = if target.contains(':') {
                "::"
            } else {
                "0.0.0.0"
            };
            let socket = UdpSocket::bind((any, 0))?;
            socket.connect((target, 7))?;
            socket.set_read_timeout(Some(Duration::from_millis(500)))?;
            Ok(socket)
        })
        .collect();
    leave_to(&home)?;
    let sockets = opened.map_err(says)?;
    let comes_back = |socket: &UdpSocket, text: &[u8]| {
        let mut buffer = [0; 2048];
        // One that is not there yet answers by an error on the socket, at the next call.
        if socket.send(text).is_err() {
            return false;
        }
        // Bound: what came late of those before.
        while let Ok(n) = socket.recv(&mut buffer) {
            if buffer.get(..n) == Some(text) {
                return true;
            }
        }
        false
    };
    let end = Instant::now() + Duration::from_secs(60);
    if let Some(socket) = sockets.first() {
        while !comes_back(socket, b"is anybody there?") {
            if Instant::now() > end {
                return Err("nobody sends anything back".into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    let mut back = 0;
    for round in 0..rounds {
        for (n, socket) in sockets.iter().enumerate() {
            let mut text = format!("{n} {round} ").into_bytes();
            text.resize(40 + round * 1300 / rounds, b'x');
            back += usize::from(comes_back(socket, &text));
        }
    }
    Ok(back)
}
