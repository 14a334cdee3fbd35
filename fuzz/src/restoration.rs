//! A switch that goes on from a journal which its predecessor, taken over, wrote as it liked.
//!
//! Held: no connection joins two tenants, none is more than its endpoint may have, and what
//! comes out afterwards goes to the sender's own tenant.

use crate::frames;
use crate::input::Input;
use crate::support::*;
use core_switch::{Cursor, Memory, slot_of};
use std::cell::RefCell;
use std::rc::Rc;

/// Connections that the journal has room for.
const ROOM: usize = 24;
/// Words in front of the first, and of each.
const HEADER: usize = 8;
const WORDS: usize = 12;

/// Memory that outlives a switch.
#[derive(Clone)]
pub struct Page(Rc<RefCell<Vec<u64>>>);

impl Memory for Page {
    fn words(&self) -> usize {
        self.0.borrow().len()
    }
    fn read(&self, at: usize, words: &mut [u64]) {
        words.copy_from_slice(&self.0.borrow()[at..at + words.len()]);
    }
    fn write(&mut self, at: usize, words: &[u64]) {
        self.0.borrow_mut()[at..at + words.len()].copy_from_slice(words);
    }
}

/// One run.
pub fn run(bytes: &[u8]) {
    let input = Input::new(bytes);
    let words = vec![0; core_switch::bytes_for(ROOM) / 8];
    let page = Page(Rc::new(RefCell::new(words)));
    let mut site = frames::site();
    site.keep(&page);
    for _ in 0..input.byte() % 8 {
        let from = u32::from(input.byte()) % 7;
        let (frame, offload) = frames::frame(&input, from);
        let _ = site.inject_short(from, offload, &frame);
    }
    // What it left is changed: a word that is written anew, and a copy elsewhere.
    for _ in 0..input.byte() % 24 {
        forge(&input, &mut page.0.borrow_mut());
    }
    site.crash(Some(&page));
    for _ in 0..12 {
        drop(site.after(1_000_000));
        check(&site);
        let from = u32::from(input.byte()) % 7;
        let (frame, offload) = frames::frame(&input, from);
        let (_, seen) = site.inject_short(from, offload, &frame);
        for sent in &seen.sent {
            assert_eq!(frames::tenant(sent.slot), frames::tenant(from));
        }
    }
}

/// Addresses, ports, owners: half a word of an entry, and its sum put right again.
fn forge(input: &Input, words: &mut [u64]) {
    let what = input.byte();
    let slot = usize::from(what) % ROOM;
    let at = HEADER + slot * WORDS;
    match what >> 6 {
        0 => {
            let from = HEADER + input.below(ROOM) * WORDS;
            words.copy_within(from..from + WORDS, at);
        }
        1 => words[input.below(HEADER)] = u64::from(input.byte()),
        2 => words[at + input.below(WORDS)] = input.u64(),
        _ => {
            let (word, byte) = (input.below(WORDS), input.below(8) * 8);
            let value = u64::from(input.byte());
            words[at + word] = words[at + word] & !(0xff << byte) | value << byte;
        }
    }
    if input.flag() {
        // As if that many had been written.
        words[1] = words[1].max(slot as u64 + 1);
    }
    let entry = &mut words[at..at + WORDS];
    entry[0] = entry[0] & !0xffff_ffff | slot as u64;
    entry[0] = entry[0] & !0xffff_ffff | u64::from(sum(entry));
}

/// What the journal's document calls the check: it keeps out what is torn, and no forger.
fn sum(entry: &[u64]) -> u32 {
    let factor = |at: usize| {
        let step = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(at as u64 + 1);
        step.wrapping_mul(step ^ step >> 31) | 1
    };
    let sum = (entry.iter().enumerate()).fold(0_u64, |sum, (at, word)| {
        sum.wrapping_add((word ^ word >> 32).wrapping_mul(factor(at)))
    });
    ((sum ^ sum >> 29).wrapping_mul(factor(0)) >> 32) as u32
}

fn check(site: &Site) {
    let mut each = [0; 8];
    site.walk(&mut Cursor::default(), &mut |connection| {
        let owners = [&connection.a, &connection.b].map(|side| slot_of(side.owner));
        for owner in owners {
            if let Some(count) = each.get_mut(owner as usize) {
                *count += 1;
            }
        }
        assert_eq!(
            frames::tenant(owners[0]),
            frames::tenant(owners[1]),
            "{connection:?}"
        );
    });
    // Each has room for 8, and may be the other side of all that others began.
    assert!(each.iter().all(|count| *count <= 8 * 7), "{each:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else what is forged would be thrown away unread.
    #[test]
    fn the_sum_is_the_journals() {
        let words = vec![0; core_switch::bytes_for(ROOM) / 8];
        let page = Page(Rc::new(RefCell::new(words)));
        let mut site = frames::site();
        site.keep(&page);
        let link = (mac(A1), mac(A2));
        let ask = udp4(link, (v4(A1), v4(A2)), (1000, 53), b"?");
        let answer = udp4((link.1, link.0), (v4(A2), v4(A1)), (53, 1000), b"!");
        assert_eq!(site.inject(A1, &ask).slots(), [A2]);
        assert_eq!(site.inject(A2, &answer).slots(), [A1]);
        let words = page.0.borrow();
        let mut entry = words[HEADER..HEADER + WORDS].to_vec();
        assert_ne!(entry[1..], [0; WORDS - 1], "it is journalled");
        let said = entry[0] as u32;
        entry[0] &= !0xffff_ffff;
        assert_eq!(sum(&entry), said);
    }
}
