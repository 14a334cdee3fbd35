//! Layout of the counters page: u64 words, single writer, relaxed loads and stores.
//!
//! Words 0..512 are the process's; then one block of 128 words for each slot
//! (switch: slot 0 = fabric, others ports; fabric: one slot per channel), then the
//! counts of rules ([`crate::rules`]).

/// Words in the process block (one 4 KiB page).
pub const PROCESS_WORDS: usize = 512;
/// Words in each slot's block (1 KiB).
pub const SLOT_WORDS: usize = 128;

/// Words of the process block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum ProcessWord {
    /// [`MAGIC`].
    Magic = 0,
    /// Rises by one each turn of the loop: the supervisor's sign of progress.
    Heartbeat = 1,
    /// 1 while the process sleeps in the kernel, else 0.
    Asleep = 2,
    /// The epoch of the image it says it runs.
    Epoch = 3,
    /// Slots in this page.
    Slots = 4,
    /// Slot + 1 whose batch is being worked on, 0 = none: names a poison record's source.
    Working = 5,
    /// System calls for frames (tap, veth, AF_PACKET).
    FrameSyscalls = 6,
    /// Frames those calls moved.
    FrameSyscallFrames = 7,
    /// Times the process went to sleep.
    Sleeps = 8,
    /// Wake-ups by doorbell.
    Doorbells = 9,
    /// Nanoseconds, CLOCK_MONOTONIC, of the first frame forwarded since this start.
    FirstFrame = 10,
    /// Packets of log rules that were not recorded, being too many.
    Unlogged = 11,
    /// Connections of a predecessor that go on since this start.
    Restored = 12,
    /// Those that do not: torn, or not let begin now.
    NotRestored = 13,
    /// A switch: how many workers it has, where it has several; else 0.
    Workers = 14,
    /// The worker, and 1, that panicked, where there are several; 0: none that could say so.
    Died = 15,
}

/// Workers that a switch has at most.
pub const MOST_WORKERS: usize = 8;
/// Where the words are that each of several workers writes of itself.
const WORKERS_AT: usize = 64;
/// Words of each.
const WORKER_WORDS: usize = 8;

/// Word index of what one of several workers says of itself: [`ProcessWord::Heartbeat`],
/// [`ProcessWord::Asleep`] or [`ProcessWord::Working`].
pub const fn worker_word(worker: usize, word: usize) -> usize {
    WORKERS_AT + worker * WORKER_WORDS + word
}

/// Counters of a slot, words 0..32 of its block. rx = from the slot into us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Counter {
    /// Records received from the slot.
    RxFrames = 0,
    /// Bytes received (frame bytes).
    RxBytes = 1,
    /// Wire segments those frames stand for (a GSO frame counts as its segments).
    RxSegments = 2,
    /// Bytes received in GSO frames.
    RxGsoBytes = 3,
    /// Records sent to the slot.
    TxFrames = 4,
    /// Bytes sent.
    TxBytes = 5,
    /// Wire segments sent.
    TxSegments = 6,
    /// Bytes sent in GSO frames.
    TxGsoBytes = 7,
    /// Copies sent on behalf of broadcast and multicast.
    TxFlood = 8,
    /// Answers made here (ARP, ND, RA, DHCP, ICMP).
    Replies = 9,
    /// Reports by the fabric: this channel spoke with what is not its own.
    Reports = 10,
    /// Frames finished in software (checksum or segmentation).
    Finished = 11,
    /// Switch: connections that began on the endpoint's account.
    Connections = 12,
    /// Wire bytes that had to wait: for the rate toward the endpoint, or behind others.
    Held = 13,
    /// Those of them that wait no longer. What waits is the difference.
    Released = 14,
    /// Times that the endpoint's frames were left where they are, its rate or its
    /// tenant's being used up.
    Paused = 15,
    /// Switch: what handling the slot's frames took, by its price list, in bytes of copying.
    Work = 16,
}

/// How many [`Counter`]s there are; they are numbered from 0.
pub const COUNTERS: usize = 17;
/// First word of the drops-by-reason array inside a slot's block.
pub const DROPS_AT: usize = 32;
/// Value of [`ProcessWord::Magic`]: "BHCOUNT1".
pub const MAGIC: u64 = u64::from_le_bytes(*b"BHCOUNT1");

/// Bytes of a counters page for so many slots, with the counts of rules behind them.
pub const fn bytes_for(slots: usize) -> usize {
    (PROCESS_WORDS + slots * SLOT_WORDS + crate::rules::WORDS) * 8
}
/// Word index of a slot's counter.
pub const fn counter_word(slot: usize, counter: Counter) -> usize {
    PROCESS_WORDS + slot * SLOT_WORDS + counter as usize
}
/// Word index of a slot's drop counter for a reason.
pub const fn drop_word(slot: usize, reason: crate::drops::DropReason) -> usize {
    PROCESS_WORDS + slot * SLOT_WORDS + DROPS_AT + reason as usize
}
