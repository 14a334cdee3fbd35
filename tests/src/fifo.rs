//! A process's end of a `fifo` endpoint, and one behind which a kernel's stack is.

use port::Tap;
use seqpacket::Socket;
use shm::{Channel, ChannelFds, Doorbell, Geometry, Start};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A process's end of a `fifo` endpoint.
pub struct Attached {
    /// The endpoint is ours while this is open.
    _socket: Socket,
    /// Rings and doorbells.
    pub channel: Channel,
}

/// Attaches to a `fifo` endpoint.
pub fn attach(run_dir: &Path, tenant: &str, endpoint: &str) -> Result<Attached, String> {
    let path = run_dir
        .join("fifo")
        .join(tenant)
        .join(format!("{endpoint}.sock"));
    let say = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let patience = Instant::now() + Duration::from_secs(20);
    // Attachments are budgeted: eight, then one a second.
    let (socket, body, fds) = loop {
        let socket = Socket::connect(&path).map_err(|e| say(&e))?;
        let (message, fds) = socket
            .recv_wait(Duration::from_secs(5))
            .map_err(|e| say(&e))?
            .ok_or_else(|| say(&"no answer within 5 s"))?;
        match message.body::<command::verbs::AddPort>() {
            Some(body) => break (socket, body, fds),
            None if Instant::now() < patience => std::thread::sleep(Duration::from_millis(200)),
            None => return Err(say(&"refused")),
        }
    };
    let geometry =
        Geometry::records(body.capacity as usize, body.max_record as usize).map_err(|e| say(&e))?;
    let fds = ChannelFds::from_fds(fds).ok_or_else(|| say(&"descriptors are missing"))?;
    let channel = shm::attach(fds, &geometry, Start::Fresh).map_err(|e| say(&e))?;
    Ok(Attached {
        _socket: socket,
        channel,
    })
}

/// Carries what comes by a channel to a tap, and back, until it is dropped.
pub struct Relay {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Of an endpoint's channel and the tap of somebody's namespace.
    pub fn new(attached: Attached, tap: Tap) -> Relay {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            // All of it: the endpoint is ours while its socket is open.
            let mut attached = attached;
            let channel = &mut attached.channel;
            let mut buffer = vec![0; wire::offload::MAX_FRAME + 16];
            while !stopped.load(Ordering::Relaxed) {
                let mut moved = false;
                channel.tx.ring.poll().unwrap();
                while let Some(record) = channel.rx.ring.next().unwrap() {
                    let length = record.copy(0, &mut buffer);
                    let _ = tap.send(&record.offload(), &buffer[..length], &[]);
                    moved = true;
                }
                channel.rx.ring.release();
                // Bound: as a switch's, so that the other way has its turn.
                for _ in 0..64 {
                    let Ok(Some((offload, length))) = tap.recv(&mut buffer) else {
                        break;
                    };
                    let frame = &buffer[..length];
                    // What finds no room waits: nothing is lost here.
                    while channel.tx.ring.push(0, &offload, frame, &[]).is_err()
                        && !stopped.load(Ordering::Relaxed)
                    {
                        if channel.tx.ring.publish() == Doorbell::Ring {
                            let _ = channel.tx.bell.ring();
                        }
                        std::thread::sleep(Duration::from_micros(20));
                        channel.tx.ring.poll().unwrap();
                    }
                    moved = true;
                }
                if channel.tx.ring.publish() == Doorbell::Ring {
                    let _ = channel.tx.bell.ring();
                }
                if !moved {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        });
        Relay {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
