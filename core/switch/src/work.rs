//! What a frame costs its switch: by what is done for it, in bytes of copying.
//!
//! A sender is charged for it in the rounds among ports, so that who sends what is
//! expensive (small frames, packets that no connection knows, fragments, what is answered
//! with errors) gets no more of the switch's time than who does not.

use guard::guard;
use image::CompartmentImage;
use rounds::{Share, Units};

use crate::FABRIC;

/// A frame read, or one that is written: headers, tables, counters.
const FRAME: u64 = 512;
/// A look-up in the tables of connections by a frame whose flow was not at hand, or an attempt
/// to begin one.
const SOUGHT: u64 = 2048;
/// A frame that was taken apart and went through the whole pipeline.
const HANDLED: u64 = 7168;
/// And that rules judged.
const JUDGED: u64 = 2048;
/// And that a connection was made of, mostly in place of another.
const OPENED: u64 = 12 << 10;
/// A piece of a guest's memory beyond the two that any frame may lie in: as many bytes as a
/// driver's pieces have at least, on a page that may have to be found first.
const PIECE: u64 = 1024;
/// A frame moved by a call of the operating system.
const CALL: u64 = 8192;

/// What a port earns in a round: some tens of small known frames, or one of the largest.
pub const UNITS: Units = Units {
    most: 64 << 10,
    least: 4 << 10,
    round: 256 << 10,
    // A frame of 60 bytes by two system calls that begins a connection.
    dearest: 1024,
};

/// Heaviest that the fabric's channel is, against the heaviest endpoint.
const FABRIC_WEIGHT: u32 = 16;

/// What one frame cost.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    handling: u64,
    bytes: u64,
}

impl Work {
    /// A frame was read.
    pub const fn frame() -> Work {
        Work {
            handling: FRAME,
            bytes: 0,
        }
    }

    /// What it cost in all, sent on as it is with nothing judged.
    #[inline(always)]
    pub const fn passed(mut self, bytes: usize) -> u64 {
        self.copied(bytes);
        self.cost()
    }

    /// A frame of so many bytes was written or copied.
    pub const fn copied(&mut self, bytes: usize) {
        self.handling += FRAME;
        self.bytes += bytes as u64;
    }

    /// So many look-ups.
    pub const fn sought(number: usize) -> u64 {
        SOUGHT * number as u64
    }

    /// It was not like one before it.
    pub const fn handled(&mut self) {
        self.handling += HANDLED;
    }

    /// Rules judged it, and a connection may have begun with it.
    pub const fn judged(&mut self, opened: bool) {
        self.handling += if opened { OPENED } else { JUDGED };
    }

    /// It lay, or was put, in so many pieces of a guest's memory.
    #[inline(always)]
    pub fn scattered(&mut self, pieces: usize) {
        if pieces > 2 && guard!("work-scattered") {
            self.handling += PIECE * (pieces as u64 - 2);
        }
    }

    /// A system call moved it.
    pub const fn called(&mut self) {
        self.handling += CALL;
    }

    /// Its cost: its bytes, or where that is more what handling it took.
    pub const fn cost(&self) -> u64 {
        if self.bytes > self.handling {
            self.bytes
        } else {
            self.handling
        }
    }
}

/// What an image says each port is to get. The fabric's channel carries everybody's, and
/// weighs as much as all endpoints, but not more than sixteen of the heaviest.
pub fn shares<'a>(image: &CompartmentImage<'a>) -> impl Iterator<Item = Share> + Clone + 'a {
    let endpoints = image.endpoints();
    let all = endpoints
        .iter()
        .fold(0u32, |sum, endpoint| sum.saturating_add(endpoint.weight));
    let heaviest = endpoints.iter().map(|e| e.weight).max().unwrap_or(1);
    let fabric = Share {
        slot: FABRIC,
        weight: all.min(heaviest.saturating_mul(FABRIC_WEIGHT)).max(1),
        min_bytes: 0,
    };
    let ports = endpoints.iter().map(|endpoint| Share {
        slot: endpoint.slot,
        weight: endpoint.weight,
        min_bytes: endpoint.min_bytes,
    });
    ports.chain(core::iter::once(fabric))
}
