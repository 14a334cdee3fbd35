//! The kernel that ours is compared with, and frames by chance to compare it over.

use host_port::{PacketSocket, packet};
use netlink::namespace;
use std::fmt::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use wire::RawOffload;
use wire::offload::{MAX_FRAME, NEEDS_CSUM};

/// A veth between two namespaces, of which `near` has no offload at all, and a packet
/// socket at each end.
pub struct Wire {
    pub names: [String; 2],
    near: PacketSocket,
    far: PacketSocket,
}

impl Wire {
    pub fn new() -> Wire {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let names = ["n", "f"].map(|side| format!("bhs-{}-{number}{side}", std::process::id()));
        let [near, far]: [OwnedFd; 2] = [0, 1].map(|at: usize| {
            namespace::create_named(&names[at]).expect("a namespace (are you root?)")
        });
        let [n, f] = &names;
        let quiet = "net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1";
        for line in [
            format!("ip netns exec {n} sysctl -qw {quiet}"),
            format!("ip netns exec {f} sysctl -qw {quiet}"),
            format!(
                "ip -n {n} link add near mtu 65535 type veth peer name far netns {f} mtu 65535"
            ),
            format!("ip netns exec {n} ethtool -K near tx off sg off tso off gso off txvlan off"),
            format!("ip netns exec {n} ethtool -K near tx-udp-segmentation off"),
            format!("ip netns exec {f} ethtool -K far gro off"),
            format!("ip -n {f} link set far addrgenmode none up"),
            format!("ip -n {n} link set near addrgenmode none up"),
        ] {
            let words: Vec<&str> = line.split_whitespace().collect();
            let done = Command::new(words[0]).args(&words[1..]).output().unwrap();
            assert!(done.status.success(), "{line}: {done:?}");
        }
        let open = |at: &OwnedFd, name: &str| {
            let open = || packet::open(name).unwrap();
            PacketSocket::from_fd(namespace::within(at.as_fd(), open).unwrap())
        };
        let wire = Wire {
            near: open(&near, "near"),
            far: open(&far, "far"),
            names,
        };
        // Until the kernel has noted the carrier it silently drops what is sent.
        let hello = [&[2; 12][..], &[0x88, 0xb5], &[0; 46]].concat();
        let mut buffer = vec![0; MAX_FRAME];
        for _ in 0..1000 {
            wire.near.send(&RawOffload::default(), &hello, &[]).unwrap();
            wait(&wire.far, 5);
            if let Ok(Some(_)) = wire.far.recv(&mut buffer) {
                while let Ok(Some(_)) = wire.far.recv(&mut buffer) {}
                return wire;
            }
        }
        panic!("nothing crosses the veth");
    }

    /// What the kernel makes of a frame: as many as are asked for, and what else is there
    /// at once; fewer if none comes for a second.
    pub fn cut(&self, raw: &RawOffload, frame: &[u8], wanted: usize) -> Vec<Vec<u8>> {
        self.given(raw, frame, (&self.far, wanted))
    }

    /// The same where it comes out elsewhere.
    pub fn given(
        &self,
        raw: &RawOffload,
        frame: &[u8],
        (end, wanted): (&PacketSocket, usize),
    ) -> Vec<Vec<u8>> {
        if let Err(error) = self.near.send(raw, frame, &[]) {
            println!(
                "the kernel refuses {raw:?} of {} bytes: {error}",
                frame.len()
            );
            return Vec::new();
        }
        let mut buffer = vec![0; MAX_FRAME];
        let mut all: Vec<Vec<u8>> = Vec::new();
        loop {
            match end.recv(&mut buffer).unwrap() {
                Some((raw, at)) => {
                    assert!(raw.gso_type == 0 && raw.flags & NEEDS_CSUM == 0, "{raw:?}");
                    all.push(buffer[at].to_vec());
                }
                None if all.len() >= wanted => break,
                None if wait(end, 1000) => {}
                None => break,
            }
        }
        assert_eq!(end.take_lost(), 0, "no room for what came");
        all
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = namespace::delete_named(name);
        }
    }
}

/// Whether something comes within so many milliseconds.
pub fn wait(socket: &PacketSocket, milliseconds: i64) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec {
        tv_sec: milliseconds / 1000,
        tv_nsec: milliseconds % 1000 * 1_000_000,
    };
    let mut polled = [PollFd::new(socket, PollFlags::IN)];
    poll(&mut polled, Some(&limit)).is_ok_and(|ready| ready > 0)
}

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
pub struct Random(pub u64);

impl Random {
    /// By the clock, or by what SEED says; it is printed.
    pub fn seeded() -> Random {
        let said = std::env::var("SEED")
            .ok()
            .and_then(|text| text.parse().ok());
        let seed = said.unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            now.as_nanos() as u64
        });
        println!("SEED={seed}");
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// Where two frames differ.
pub fn difference(ours: &[Vec<u8>], kernels: &[Vec<u8>]) -> Option<String> {
    let mut said = String::new();
    if ours.len() != kernels.len() {
        let _ = write!(
            said,
            "{} frames of ours, {} of the kernel's; ",
            ours.len(),
            kernels.len()
        );
    }
    for (number, (ours, kernels)) in ours.iter().zip(kernels).enumerate() {
        if ours == kernels {
            continue;
        }
        let at = ours.iter().zip(kernels).position(|(a, b)| a != b);
        let at = at.unwrap_or(ours.len().min(kernels.len()));
        let from = |frame: &[u8]| format!("{:02x?}", &frame[at..frame.len().min(at + 4)]);
        let _ = write!(
            said,
            "frame {number}: {} bytes of ours, {} of the kernel's; at {at} ours has {} and the kernel's {}",
            ours.len(),
            kernels.len(),
            from(ours),
            from(kernels)
        );
        return Some(said);
    }
    (!said.is_empty()).then_some(said)
}
