//! A listing of connections, made in small steps between batches.

use command::verbs::ListFlows;
use core::cmp::Reverse;
use shm::Words;
use std::collections::BinaryHeap;
use std::os::fd::OwnedFd;
use switch::{Connection, Cursor, Switch};
use telemetry::flows::{
    COUNT_AT, End, MAGIC, MAGIC_AT, MOST, ROW_WORDS, ROWS_AT, Row, SEEN_AT, bytes_for,
};

/// Records looked at in one turn of the loop.
const STEP: u32 = 512;

/// What one of several workers has listed: the busiest first.
pub struct Listed {
    /// Of which listing.
    pub number: u32,
    pub rows: Vec<Row>,
    pub seen: u64,
}

/// One that is under way.
pub struct Listing {
    /// Only of this slot; `u32::MAX` = of all.
    slot: u32,
    most: usize,
    at: Cursor,
    seen: u64,
    /// The busiest so far, the least of them on top; room for all of them from the start.
    busiest: BinaryHeap<Reverse<(u64, u32)>>,
    /// And their rows, when they are known.
    rows: Vec<Row>,
}

/// Rows at most.
pub fn most(asked: &ListFlows) -> usize {
    (asked.most as usize).min(MOST)
}

/// The page that came with a request; `None` where it is too small or can be cut.
pub fn page(page: OwnedFd, most: usize) -> Option<Words> {
    Words::map(page, bytes_for(most)).ok()
}

/// Writes a listing.
pub fn write(page: &Words, rows: &[Row], seen: u64) {
    for (row, at) in rows.iter().zip(0..) {
        for (word, value) in row.words().into_iter().enumerate() {
            page.store(ROWS_AT + at * ROW_WORDS + word, value);
        }
    }
    page.store(COUNT_AT, rows.len() as u64);
    page.store(SEEN_AT, seen);
    page.publish(MAGIC_AT, MAGIC);
}

/// What rows are sorted by.
pub fn busy(row: &Row) -> u64 {
    let [forth, back] = row.bytes;
    forth.saturating_add(back)
}

impl Listing {
    /// Of at most so many rows.
    pub fn new(asked: &ListFlows) -> Listing {
        let most = most(asked);
        Listing {
            slot: asked.slot,
            most,
            at: Cursor::default(),
            seen: 0,
            busiest: BinaryHeap::with_capacity(most + 1),
            rows: Vec::with_capacity(most),
        }
    }

    /// A step; whether all were looked at. Bound: [`STEP`] records, and the rows.
    pub fn step(&mut self, switch: &Switch, now: u64) -> bool {
        let (slot, most) = (self.slot, self.most);
        let (seen, busiest) = (&mut self.seen, &mut self.busiest);
        let ended = switch.walk(now, &mut self.at, STEP, &mut |connection| {
            if slot != u32::MAX
                && switch::slot_of(connection.a.owner) != slot
                && switch::slot_of(connection.b.owner) != slot
            {
                return;
            }
            *seen += 1;
            let [forth, back] = connection.bytes;
            busiest.push(Reverse((forth.saturating_add(back), connection.id)));
            if busiest.len() > most {
                busiest.pop();
            }
        });
        if ended {
            self.read(switch, now);
        }
        ended
    }

    /// Reads the rows, the busiest first; of what is gone by now the place stays empty: a row
    /// without a state is none.
    fn read(&mut self, switch: &Switch, now: u64) {
        while let Some(Reverse((_, id))) = self.busiest.pop() {
            let row = match switch.connection(now, id) {
                Some(connection) => row(&connection),
                None => {
                    self.seen = self.seen.saturating_sub(1);
                    Row::default()
                }
            };
            self.rows.push(row);
        }
        // The least comes first out of the heap.
        self.rows.reverse();
    }

    /// The rows, and how many connections were looked at.
    pub fn rows(&self) -> (&[Row], u64) {
        (&self.rows, self.seen)
    }
}

fn row(connection: &Connection) -> Row {
    let end = |side: &switch::Side| End {
        slot: switch::slot_of(side.owner),
        zone: side.zone,
        source: side.tuple.source,
        destination: side.tuple.destination,
        source_port: side.tuple.source_port,
        destination_port: side.tuple.destination_port,
    };
    Row {
        a: end(&connection.a),
        b: end(&connection.b),
        protocol: connection.a.tuple.protocol,
        state: connection.state as u8,
        rules: connection.verdict.rules,
        packets: connection.packets,
        bytes: connection.bytes,
        silent: connection.silent,
    }
}
