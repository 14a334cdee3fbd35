//! A guest's memory as it is mapped, and another thread that rewrites it while its queues are
//! run: what [`virtqueue`](crate::virtqueue) does step by step, by chance and for real.
//!
//! Held: nothing is touched but the mapping (else the process dies), a frame stays as long as
//! it was said to be, and what is sent is put there whole or not at all.

use crate::input::Input;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use shm::{Guest, Region};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use virtqueue::net::{Form, FromGuest, PutError, ToGuest};
use virtqueue::{Features, Layout, Queue, Stand};
use wire::offload::RawOffload;

/// Guest memory: the rings in its first pages, buffers behind.
const BYTES: u64 = 0x1_0000;
const SIZE: u16 = 16;
const ROUNDS: u32 = 200;
/// Where a pair's rings lie: descriptors, the driver's part, the device's.
const RINGS: [u64; 3] = [0, 0x400, 0x800];
const APART: u64 = 0x1000;

/// One run.
pub fn run(bytes: &[u8]) {
    let input = Input::new(bytes);
    let bits = input.byte();
    let features = Features {
        packed: bits & 1 != 0,
        indirect: bits & 2 != 0,
        event_index: bits & 4 != 0,
    };
    let form = Form {
        merged: bits & 8 != 0,
        modern: bits & 16 != 0,
    };
    let file = memory();
    // What is written again and again: (where, bytes).
    let script: Vec<(u64, Vec<u8>)> = (0..64)
        .take_while(|_| !input.is_over())
        .map(|_| word(&input, features.packed))
        .collect();
    for (at, bytes) in &script {
        file.write_all_at(bytes, *at).expect("memory takes it");
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let scribbler = file.try_clone().expect("another descriptor");
        let (script, done) = (&script, &done);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) && !script.is_empty() {
                for (at, bytes) in script {
                    let _ = scribbler.write_at(bytes, *at);
                }
                // And away again.
                for (at, bytes) in script.iter().take(8) {
                    let _ = scribbler.write_at(&vec![0; bytes.len()], *at);
                }
            }
        });
        drive(&file, features, form);
        done.store(true, Ordering::Relaxed);
    });
}

fn memory() -> File {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a file in memory");
    ftruncate(&file, BYTES).expect("room for it");
    file.into()
}

/// A descriptor, an index or a flag somewhere in the rings; or anything anywhere.
fn word(input: &Input, packed: bool) -> (u64, Vec<u8>) {
    let (what, slot) = (input.byte(), u64::from(input.byte() % 16));
    let pair = u64::from(what >> 7) * APART;
    match what % 4 {
        0 | 1 => {
            let address = 0x4000 + u64::from(input.byte()) * 16;
            let length = u32::from(input.byte()) << (what >> 2 & 7);
            let flags = u16::from(input.byte());
            let flags = flags & 0x87 | (flags & 0x40) << 9;
            let next = u16::from(input.byte() % 18);
            let mut bytes = address.to_le_bytes().to_vec();
            bytes.extend_from_slice(&length.to_le_bytes());
            let (third, fourth) = if packed { (next, flags) } else { (flags, next) };
            bytes.extend_from_slice(&third.to_le_bytes());
            bytes.extend_from_slice(&fourth.to_le_bytes());
            // In a ring, or in a table that lies among the buffers.
            let table = if what & 8 == 0 {
                RINGS[0] + pair
            } else {
                0x4000
            };
            (table + slot * 16, bytes)
        }
        2 => {
            let value = u16::from(input.byte());
            (RINGS[1] + pair + slot * 2, value.to_le_bytes().to_vec())
        }
        _ => {
            let at = u64::from(input.u16()) % (BYTES - 8);
            (at, input.take(8))
        }
    }
}

fn drive(file: &File, features: Features, form: Form) {
    let region = Region {
        guest: 0,
        size: BYTES,
        offset: 0,
    };
    let guest = Guest::map(&[(region, file.as_fd())], 1 << 30).expect("it can be mapped");
    let guest = Rc::new(guest);
    let at = if features.packed { 0x8000 } else { 0 };
    let stand = Stand {
        available: at,
        used: at,
    };
    let make = |pair: u64| {
        let layout = Layout {
            size: SIZE,
            descriptors: RINGS[0] + pair * APART,
            driver: RINGS[1] + pair * APART,
            device: RINGS[2] + pair * APART,
        };
        Queue::new(&*guest, &layout, features, stand).ok()
    };
    let mut from = FromGuest::new(Rc::clone(&guest), form);
    let mut to = ToGuest::new(Rc::clone(&guest), form);
    from.put(0, make(0));
    to.put(0, make(1));
    for round in 0..ROUNDS {
        match from.peek() {
            Ok(Some(frame)) => {
                let (len, offload) = (frame.len(), frame.offload());
                let mut head = vec![0; len.min(70_000)];
                assert_eq!(frame.copy(0, &mut head), head.len());
                assert_eq!((frame.len(), frame.offload()), (len, offload));
                from.advance();
            }
            Ok(None) => {}
            Err(_) => from.put(0, make(0)),
        }
        let rest = round as usize * 37 % 2000;
        let mut filled = 0;
        match to.send(
            || round,
            &RawOffload::default(),
            &[7; 20],
            rest,
            |_, _, _, n| filled += n,
        ) {
            Ok(()) => assert_eq!(filled, rest),
            Err(PutError::Breach(_)) => to.put(0, make(1)),
            Err(_) => {}
        }
        if round % 8 == 0 {
            let _ = from.publish(|_, _, _| {}) | to.publish(|_, _, _| {});
        }
    }
    assert!(!guest.is_broken(), "all of it is there");
}
