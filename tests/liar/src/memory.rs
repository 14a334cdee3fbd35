//! Lies by what it does to the channel's memory. Each is what the protocol forbids
//! and what the mapping lets it do.

use crate::lies::Lie;
use crate::post::Post;
use ring::record::{KIND_FRAME, KIND_PAD, RawRecord};
use ring::{ConsumerMemory, ConsumerWord, ProducerMemory, ProducerWord};
use std::time::Duration;

/// Changes of a scribbling burst.
const SCRIBBLES: u64 = 20_000;
/// Rings of a flood.
const RINGS: usize = 5_000;

/// One attack. The fabric is to close this channel, and nothing else is to happen.
pub fn attack(lie: Lie, post: &mut Post, turn: u64) {
    let Some(channel) = &mut post.channel else {
        return;
    };
    let (ours, theirs) = (channel.tx.ring.memory(), channel.rx.ring.memory());
    let publish = |position: u64| ours.store(ProducerWord::Published, position);
    match lie {
        Lie::Header => {
            let kinds = [
                RawRecord {
                    len: u32::MAX,
                    kind: KIND_FRAME,
                    header_units: 1,
                    ..RawRecord::default()
                },
                RawRecord {
                    len: 64,
                    kind: 9,
                    header_units: 1,
                    ..RawRecord::default()
                },
                RawRecord {
                    len: 64,
                    kind: KIND_FRAME,
                    header_units: 0,
                    ..RawRecord::default()
                },
                RawRecord {
                    len: 64,
                    kind: KIND_FRAME,
                    header_units: 255,
                    ..RawRecord::default()
                },
                RawRecord {
                    len: 16,
                    kind: KIND_PAD,
                    header_units: 1,
                    ..RawRecord::default()
                },
            ];
            let record = kinds
                .get(turn as usize % kinds.len())
                .copied()
                .unwrap_or_default();
            // Wherever the fabric reads next, it reads this.
            let unit = record.to_words();
            (0..4096).for_each(|i| ours.write_header(i * 16, unit));
            let at = channel.tx.ring.backlog() as u64;
            publish(at + 4096);
        }
        Lie::Position => publish(1 << 40),
        Lie::Unaligned => publish(8),
        Lie::Backwards => publish(u64::MAX - 4095),
        Lie::Scribble => {
            let mut random = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            for _ in 0..SCRIBBLES {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let at = (random as usize >> 8) & 0xffff0;
                let record = RawRecord {
                    len: (random >> 32) as u32 & 0x1ffff,
                    kind: random as u8 & 3,
                    header_units: 1,
                    ..RawRecord::default()
                };
                ours.write_header(at, record.to_words());
                if random & 63 == 0 {
                    publish((random >> 40) & !15);
                    let _ = channel.tx.bell.ring();
                }
            }
        }
        Lie::Doorbell => {
            for _ in 0..RINGS {
                let _ = channel.tx.bell.ring();
            }
        }
        Lie::Generation => {
            for generation in 1..=1_000 {
                ours.store(ProducerWord::Generation, generation);
                theirs.store(ConsumerWord::Generation, generation * 2);
                let _ = channel.tx.bell.ring();
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        _ => {
            theirs.store(ConsumerWord::Consumed, turn | 1 << 50);
        }
    }
    let _ = channel.tx.bell.ring();
    post.count(lie as usize, 1, 0);
    // Time for the fabric to see it before the next.
    std::thread::sleep(Duration::from_millis(1));
}
