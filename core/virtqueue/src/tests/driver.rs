//! The driver's side of a ring, as the specification has it, sharing no code with the
//! device's.

use crate::{Features, GuestMemory, Heap, Layout, Queue, Stand};
use std::collections::HashMap;

/// Guest memory: rings and buffers in two regions, so that addresses are not offsets.
pub const RINGS: u64 = 0x10_0000;
pub const BUFFERS: u64 = 0x4000_0000;
const RINGS_LEN: usize = 1 << 16;
pub const BUFFERS_LEN: usize = 1 << 16;

/// A buffer of a chain: (guest-physical address, bytes, whether the device writes it).
pub type Buffer = (u64, u32, bool);

pub struct Driver {
    pub memory: Heap,
    pub layout: Layout,
    pub features: Features,
    /// Free descriptors of a split ring; free names of a packed one.
    free: Vec<u16>,
    /// By name: entries of the ring that the chain takes, and its descriptors.
    out: HashMap<u16, Vec<u16>>,
    /// Packed: entries that are free, and the places of both ends.
    room: u16,
    next: (u16, bool),
    used: (u16, bool),
    /// Split: the two indices.
    available: u16,
    seen: u16,
}

pub fn layout(size: u16) -> Layout {
    Layout {
        size,
        descriptors: RINGS,
        driver: RINGS + 0x8000,
        device: RINGS + 0xa000,
    }
}

pub fn memory() -> Heap {
    Heap::new(&[(RINGS, RINGS_LEN), (BUFFERS, BUFFERS_LEN)])
}

pub fn start(features: Features) -> Stand {
    let at = if features.packed { 0x8000 } else { 0 };
    Stand {
        available: at,
        used: at,
    }
}

impl Driver {
    pub fn new(size: u16, features: Features) -> Driver {
        Driver {
            memory: memory(),
            layout: layout(size),
            features,
            free: (0..size).collect(),
            out: HashMap::new(),
            room: size,
            next: (0, true),
            used: (0, true),
            available: 0,
            seen: 0,
        }
    }

    pub fn queue(&self) -> Queue {
        let stand = start(self.features);
        Queue::new(&self.memory, &self.layout, self.features, stand).unwrap()
    }

    fn at(&self, address: u64) -> usize {
        self.memory.locate(address, 1).unwrap().0
    }

    pub fn put(&self, address: u64, bytes: &[u8]) {
        self.memory.write(self.at(address), bytes);
    }

    pub fn get(&self, address: u64, bytes: &mut [u8]) {
        self.memory.read(self.at(address), bytes);
    }

    /// One descriptor: flags and the other word stand in another order in each kind.
    pub fn descriptor(&self, at: u64, address: u64, length: u32, flags: u16, word: u16) {
        self.put(at, &address.to_le_bytes());
        self.put(at + 8, &length.to_le_bytes());
        let (third, fourth) = match self.features.packed {
            true => (word, flags),
            false => (flags, word),
        };
        self.put(at + 12, &third.to_le_bytes());
        self.put(at + 14, &fourth.to_le_bytes());
    }

    fn table(&self, place: u64, buffers: &[Buffer]) {
        for (i, (address, length, writes)) in buffers.iter().enumerate() {
            let last = i + 1 == buffers.len();
            let next = u16::from(!last && !self.features.packed);
            let flags = next | u16::from(*writes) << 1;
            let word = if last { 0 } else { i as u16 + 1 };
            self.descriptor(place + 16 * i as u64, *address, *length, flags, word);
        }
    }

    /// Makes a chain available, by an indirect table at `indirect` if there is one; its
    /// name, or `None` where the ring has no room.
    pub fn offer(&mut self, buffers: &[Buffer], indirect: Option<u64>) -> Option<u16> {
        let table = [(indirect.unwrap_or(0), 16 * buffers.len() as u32, false)];
        let entries = match indirect {
            Some(place) => {
                self.table(place, buffers);
                &table[..]
            }
            None => buffers,
        };
        match self.features.packed {
            true => self.offer_packed(entries, indirect.is_some()),
            false => self.offer_split(entries, indirect.is_some()),
        }
    }

    fn offer_split(&mut self, entries: &[Buffer], indirect: bool) -> Option<u16> {
        if self.free.len() < entries.len() {
            return None;
        }
        let taken = self.free.split_off(self.free.len() - entries.len());
        for (i, (address, length, writes)) in entries.iter().enumerate() {
            let next = taken.get(i + 1).copied();
            let flags =
                u16::from(next.is_some()) | u16::from(*writes) << 1 | u16::from(indirect) << 2;
            let at = self.layout.descriptors + 16 * u64::from(taken[i]);
            self.descriptor(at, *address, *length, flags, next.unwrap_or(0));
        }
        let head = taken[0];
        let slot = u64::from(self.available % self.layout.size);
        self.put(self.layout.driver + 4 + 2 * slot, &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.memory
            .store16(self.at(self.layout.driver + 2), self.available);
        self.out.insert(head, taken);
        Some(head)
    }

    fn offer_packed(&mut self, entries: &[Buffer], indirect: bool) -> Option<u16> {
        if usize::from(self.room) < entries.len() {
            return None;
        }
        let name = self.free.pop()?;
        let begin = self.next;
        let mut first = 0;
        for (i, (address, length, writes)) in entries.iter().enumerate() {
            let next = u16::from(i + 1 < entries.len());
            let mut flags = next | u16::from(*writes) << 1 | u16::from(indirect) << 2;
            flags |= match self.next.1 {
                true => 1 << 7,
                false => 1 << 15,
            };
            let at = self.layout.descriptors + 16 * u64::from(self.next.0);
            if i == 0 {
                first = flags;
            } else {
                self.descriptor(at, *address, *length, flags, name);
            }
            self.next = forward(self.next, 1, self.layout.size);
        }
        let (address, length, _) = entries[0];
        let at = self.layout.descriptors + 16 * u64::from(begin.0);
        self.descriptor(at, address, length, first, name);
        self.room -= entries.len() as u16;
        self.out.insert(name, (0..entries.len() as u16).collect());
        Some(name)
    }

    /// What the device has given back: (name, bytes written).
    pub fn reclaim(&mut self) -> Option<(u16, u32)> {
        match self.features.packed {
            true => self.reclaim_packed(),
            false => self.reclaim_split(),
        }
    }

    fn reclaim_split(&mut self) -> Option<(u16, u32)> {
        if self.memory.load16(self.at(self.layout.device + 2)) == self.seen {
            return None;
        }
        let slot = u64::from(self.seen % self.layout.size);
        let mut element = [0; 8];
        self.get(self.layout.device + 4 + 8 * slot, &mut element);
        self.seen = self.seen.wrapping_add(1);
        let [a, b, _, _, length @ ..] = element;
        let name = u16::from_le_bytes([a, b]);
        self.free.extend(self.out.remove(&name).unwrap());
        Some((name, u32::from_le_bytes(length)))
    }

    fn reclaim_packed(&mut self) -> Option<(u16, u32)> {
        let mut words = [0; 16];
        let at = self.layout.descriptors + 16 * u64::from(self.used.0);
        self.get(at, &mut words);
        let flags = u16::from_le_bytes([words[14], words[15]]);
        let (available, used) = (flags >> 7 & 1 == 1, flags >> 15 & 1 == 1);
        if available != used || used != self.used.1 {
            return None;
        }
        let name = u16::from_le_bytes([words[12], words[13]]);
        let length = u32::from_le_bytes([words[8], words[9], words[10], words[11]]);
        let entries = self.out.remove(&name).unwrap().len() as u16;
        self.used = forward(self.used, entries, self.layout.size);
        self.room += entries;
        self.free.push(name);
        Some((name, length))
    }

    /// Asks to be called at the next chain that is given back; whether there is one.
    pub fn arm(&mut self) -> bool {
        if self.features.packed {
            let (at, wrap) = self.used;
            let event = at | u16::from(wrap) << 15;
            self.put(self.layout.driver, &event.to_le_bytes());
            let flags = 2 * u16::from(self.features.event_index);
            self.put(self.layout.driver + 2, &flags.to_le_bytes());
        } else if self.features.event_index {
            let at = self.layout.driver + 4 + 2 * u64::from(self.layout.size);
            self.put(at, &self.seen.to_le_bytes());
        } else {
            self.put(self.layout.driver, &0u16.to_le_bytes());
        }
        self.has_used()
    }

    pub fn disarm(&self) {
        if self.features.packed {
            self.put(self.layout.driver + 2, &1u16.to_le_bytes());
        } else if !self.features.event_index {
            self.put(self.layout.driver, &1u16.to_le_bytes());
        }
    }

    fn has_used(&self) -> bool {
        if !self.features.packed {
            return self.memory.load16(self.at(self.layout.device + 2)) != self.seen;
        }
        let mut flags = [0; 2];
        let at = self.layout.descriptors + 16 * u64::from(self.used.0) + 14;
        self.get(at, &mut flags);
        let flags = u16::from_le_bytes(flags);
        (flags >> 7 & 1 == 1) == self.used.1 && (flags >> 15 & 1 == 1) == self.used.1
    }

    /// Whether the device wants to be kicked for what was offered from `before` on.
    pub fn kicks(&self, before: u16) -> bool {
        let word = |address| self.memory.load16(self.at(address));
        if !self.features.packed {
            if !self.features.event_index {
                return word(self.layout.device) & 1 == 0;
            }
            let event = word(self.layout.device + 4 + 8 * u64::from(self.layout.size));
            let new = self.available;
            return new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(before);
        }
        match word(self.layout.device + 2) {
            0 => true,
            2 => {
                // Places on a line of two turns, from the one of `before` on.
                let size = i32::from(self.layout.size);
                let line = |bits: u16| {
                    let same = (bits >> 15 == 1) == (before >> 15 == 1);
                    i32::from(bits & 0x7fff) + if same { 0 } else { size }
                };
                let (event, old) = (line(word(self.layout.device)), line(before));
                old <= event && event < line(self.stand())
            }
            _ => false,
        }
    }

    /// Where the next chain is offered.
    pub fn stand(&self) -> u16 {
        match self.features.packed {
            true => self.next.0 | u16::from(self.next.1) << 15,
            false => self.available,
        }
    }
}

fn forward((at, wrap): (u16, bool), by: u16, size: u16) -> (u16, bool) {
    match at + by {
        at if at >= size => (at - size, !wrap),
        at => (at, wrap),
    }
}
