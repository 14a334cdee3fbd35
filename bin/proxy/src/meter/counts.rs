//! What a meter counts: circuit by circuit in a page of the operator's, and by endpoint in the
//! compartment's counters page, in which the switch counts what has packets.

use shm::{CountersPage, Words};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use switch::Nanos;
use telemetry::circuits::{Count, METER_BYTES, METER_WORDS, METERED};
use telemetry::counters::Counter;

/// So long what passes is added up for a rate, ns.
const SPAN: Nanos = 1_000_000_000;

/// The pages, as far as they are there.
#[derive(Default)]
pub struct Counts {
    rows: Option<Words>,
    endpoints: Option<CountersPage>,
    /// Slots that are counted.
    counted: BTreeSet<u32>,
    /// Places of rows that nobody has; and the first that nobody ever had.
    free: Vec<u16>,
    next: u16,
}

/// Where one circuit is counted.
pub struct Row {
    at: u16,
    count: Count,
    began: Nanos,
    bytes: [u64; 2],
}

impl Counts {
    /// Counts in this page from now on, where `rows` are shown again.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub fn use_page<'a>(
        &mut self,
        page: &OwnedFd,
        rows: impl Iterator<Item = &'a Row>,
    ) -> io::Result<()> {
        self.rows = Some(Words::map(page, METER_BYTES)?);
        for row in rows {
            self.show(row);
        }
        Ok(())
    }

    /// Counts endpoints in this page.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub fn use_counters(&mut self, page: &OwnedFd, slots: u32) -> io::Result<()> {
        self.endpoints = Some(CountersPage::open(page, slots as usize)?);
        Ok(())
    }

    /// Whether what this slot's endpoint moves is counted.
    pub fn counts(&mut self, slot: u32, counts: bool) {
        match counts {
            true => self.counted.insert(slot),
            false => self.counted.remove(&slot),
        };
    }

    /// Slots that are counted.
    pub fn counted(&self) -> &BTreeSet<u32> {
        &self.counted
    }

    /// A circuit begins. `None`: as many are counted as can be.
    pub fn begin(&mut self, id: u64, now: Nanos) -> Option<Row> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if usize::from(self.next) < METERED => {
                self.next += 1;
                self.next - 1
            }
            None => return None,
        };
        let count = Count {
            id,
            moved: now,
            ..Count::default()
        };
        let row = Row {
            at,
            count,
            began: now,
            bytes: [0; 2],
        };
        self.show(&row);
        Some(row)
    }

    /// And ends.
    pub fn end(&mut self, row: &Row) {
        let gone = Row {
            count: Count::default(),
            ..*row
        };
        self.show(&gone);
        self.free.push(row.at);
    }

    /// So many bytes were handed on, one way, from the first slot to the second.
    pub fn passed(&self, row: &mut Row, way: usize, slots: [u32; 2], bytes: u64, now: Nanos) {
        let [from, to] = slots;
        self.add(from, Counter::RxBytes, bytes);
        self.add(to, Counter::TxBytes, bytes);
        let count = &mut row.count;
        for sum in [&mut count.bytes, &mut row.bytes] {
            if let Some(sum) = sum.get_mut(way) {
                *sum += bytes;
            }
        }
        count.moved = now;
        let span = now.saturating_sub(row.began);
        if span >= SPAN {
            let rate =
                |bytes: u64| (u128::from(bytes) * u128::from(SPAN) / u128::from(span)) as u64;
            count.rate = row.bytes.map(rate);
            count.measured = now;
            (row.began, row.bytes) = (now, [0; 2]);
        }
        self.show(row);
    }

    fn add(&self, slot: u32, counter: Counter, n: u64) {
        if let Some(page) = self
            .endpoints
            .as_ref()
            .filter(|_| self.counted.contains(&slot))
        {
            page.count(slot as usize, counter, n);
        }
    }

    fn show(&self, row: &Row) {
        if let Some(rows) = &self.rows {
            let first = usize::from(row.at) * METER_WORDS;
            for (n, word) in row.count.words().into_iter().enumerate() {
                rows.store(first + n, word);
            }
        }
    }
}
