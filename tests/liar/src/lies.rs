//! The kinds of lie, and whose turn it is.

use crate::frames::Forger;
use crate::memory;
use crate::post::Post;
use ring::{Doorbell, PushError};
use std::time::Duration;

/// Frames of a kind in a row.
const BURST: usize = 64;
/// Rounds of frames before the channel itself is attacked, which ends it.
const ROUNDS: u64 = 40;

macro_rules! lies {
    ($($(#[doc = $doc:literal])+ $name:ident = $n:literal $text:literal,)+) => {
        /// What it lies about. Up to [`Lie::Capture`] by frames that are well-formed
        /// records; the rest by what it does to the channel's memory.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(usize)]
        pub enum Lie { $($(#[doc = $doc])+ $name = $n,)+ }
        impl Lie {
            pub const ALL: &'static [Lie] = &[$(Lie::$name,)+];
            pub const fn name(self) -> &'static str { match self { $(Lie::$name => $text,)+ } }
        }
    };
}
lies! {
    /// Source MACs of others.
    SourceMac = 1 "source-mac",
    /// Every destination MAC it can guess: stations, broadcast, multicast, reserved.
    Destination = 2 "destination",
    /// All 65,536 tags.
    Tag = 3 "tag",
    /// Source addresses of others, both families.
    SourceIp = 4 "source-ip",
    /// ARP for what is not its own.
    Arp = 5 "arp",
    /// Neighbour and router advertisements for what is not its own.
    Nd = 6 "nd",
    /// All EtherTypes.
    EtherType = 7 "ethertype",
    /// VLAN tags, one in another.
    Vlan = 8 "vlan",
    /// Absurd segment sizes and checksum positions, one of them over the source.
    Gso = 9 "gso",
    /// Frames of no length and of the longest.
    Length = 10 "length",
    /// Everything that was not agreed, across agreements.
    Crossing = 11 "crossing",
    /// Records that say they were captured.
    Capture = 12 "capture",
    /// Record headers of no kind, size or length that there is.
    Header = 13 "header",
    /// Positions beyond the capacity.
    Position = 14 "position",
    /// Positions that are not multiples of 16.
    Unaligned = 15 "unaligned",
    /// Positions that go backwards.
    Backwards = 16 "backwards",
    /// Headers and positions that change all the while they are read.
    Scribble = 17 "scribble",
    /// A doorbell that never stops.
    Doorbell = 18 "doorbell",
    /// Restart after restart.
    Generation = 19 "generation",
    /// A consumer that has read what was never written.
    Consumed = 20 "consumed",
    /// No lie at all: the smallest frames of its own toward its uplink, as many as the
    /// channel takes. Only when it is asked for.
    Flood = 21 "flood",
    /// A router, a DHCP server, another's neighbour on its uplink, from its own MAC and
    /// addresses. Only when it is asked for.
    Uplink = 22 "uplink",
}

/// The kind that the program's name or its first argument asks for.
///
/// # Errors
/// There is no such kind.
pub fn chosen(mut arguments: impl Iterator<Item = String>) -> Result<Option<Lie>, String> {
    let name = arguments.next().unwrap_or_default();
    let by_name = name
        .rsplit('/')
        .next()
        .and_then(|n| n.strip_prefix("bulkhead-liar-"));
    let Some(wanted) = arguments.next().or(by_name.map(str::to_owned)) else {
        return Ok(None);
    };
    let lie = Lie::ALL.iter().find(|lie| lie.name() == wanted);
    let names: Vec<_> = Lie::ALL.iter().map(|lie| lie.name()).collect();
    lie.copied()
        .map(Some)
        .ok_or_else(|| format!("no lie {wanted:?}; there are {}", names.join(", ")))
}

/// Goes through its lies.
pub struct Liar {
    only: Option<Lie>,
    turn: u64,
    forger: Forger,
}

impl Liar {
    pub fn new(only: Option<Lie>) -> Liar {
        Liar {
            only,
            turn: 0,
            forger: Forger::default(),
        }
    }

    /// Whether it has what it needs.
    pub fn is_ready(&self, post: &Post) -> bool {
        post.channel.is_some() && post.starts != 0
    }

    /// One burst of one kind.
    pub fn tell(&mut self, post: &mut Post) {
        if !self.is_ready(post) || !post.is_open() {
            std::thread::sleep(Duration::from_micros(200));
            return;
        }
        let lie = self.only.unwrap_or_else(|| self.next(post.starts));
        self.turn += 1;
        if lie == Lie::Flood {
            self.flood(post);
        } else if lie <= Lie::Capture || lie == Lie::Uplink {
            self.frames(lie, post);
        } else {
            memory::attack(lie, post, self.turn);
        }
    }

    /// Frames of all kinds first; then one attack on the channel, another after each
    /// restart, since each ends it.
    fn next(&self, starts: u64) -> Lie {
        let frames = Lie::Capture as u64;
        let pick = |n: u64| Lie::ALL.get(n as usize).copied().unwrap_or(Lie::SourceMac);
        if self.turn < ROUNDS * frames {
            return pick(self.turn % frames);
        }
        let attacks = Lie::Flood as u64 - 1 - frames;
        pick(frames + starts % attacks)
    }

    fn flood(&mut self, post: &mut Post) {
        self.forger.learn(post);
        let forged = self.forger.forge(Lie::Flood);
        let (mut told, mut is_full) = (0, false);
        if let Some(channel) = &mut post.channel {
            let ring = &mut channel.tx.ring;
            // Bound: what the ring holds.
            while ring
                .push(forged.tag, &forged.offload, &forged.frame, &[])
                .is_ok()
                && told < 1 << 14
            {
                told += 1;
            }
            is_full = told < 1 << 14;
            if ring.publish() == Doorbell::Ring {
                let _ = channel.tx.bell.ring();
            }
        }
        post.count(Lie::Flood as usize, told, told * forged.frame.len() as u64);
        if is_full {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn frames(&mut self, lie: Lie, post: &mut Post) {
        self.forger.learn(post);
        let (mut told, mut bytes) = (0, 0);
        let mut is_full = false;
        if let Some(channel) = &mut post.channel {
            for _ in 0..BURST {
                let forged = self.forger.forge(lie);
                let ring = &mut channel.tx.ring;
                let pushed = if lie == Lie::Capture {
                    ring.push_capture(
                        forged.tag,
                        &forged.offload,
                        &forged.note,
                        &forged.frame,
                        &[],
                    )
                } else {
                    ring.push(forged.tag, &forged.offload, &forged.frame, &[])
                };
                match pushed {
                    Ok(()) => {
                        told += 1;
                        bytes += forged.frame.len() as u64;
                    }
                    Err(PushError::TooLong) => {}
                    Err(_) => {
                        is_full = true;
                        break;
                    }
                }
            }
            if channel.tx.ring.publish() == Doorbell::Ring {
                let _ = channel.tx.bell.ring();
            }
        }
        if lie == Lie::Crossing {
            // Nor does it say how much it was.
            bytes = 0;
        }
        post.count(lie as usize, told, bytes);
        if is_full {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
