//! A listing of connections, made in small steps between batches.

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

/// One that is under way.
pub struct Listing {
    page: Words,
    /// Only of this slot; `u32::MAX` = of all.
    slot: u32,
    most: usize,
    at: Cursor,
    seen: u64,
    /// The busiest so far, the least of them on top; room for all of them from the start.
    busiest: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Listing {
    /// Of at most so many rows, into the page that came with the request; `None` where
    /// it is too small or can be cut.
    pub fn new(page: OwnedFd, slot: u32, most: u32) -> Option<Listing> {
        let most = (most as usize).min(MOST);
        Some(Listing {
            page: Words::map(page, bytes_for(most)).ok()?,
            slot,
            most,
            at: Cursor::default(),
            seen: 0,
            busiest: BinaryHeap::with_capacity(most + 1),
        })
    }

    /// A step; whether the listing is written. Bound: [`STEP`] records, and the rows.
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
            self.write(switch, now);
        }
        ended
    }

    /// Writes the rows, the busiest first; what is gone by now is left out.
    fn write(&mut self, switch: &Switch, now: u64) {
        let rows = self.busiest.len();
        let mut left = rows;
        let mut gone = 0;
        // The least comes first out of the heap, and goes to the end.
        while let Some(Reverse((_, id))) = self.busiest.pop() {
            left -= 1;
            let row = match switch.connection(now, id) {
                Some(connection) => row(&connection),
                None => {
                    gone += 1;
                    // Its place stays empty: a row without a state is none.
                    Row::default()
                }
            };
            for (word, value) in row.words().into_iter().enumerate() {
                self.page.store(ROWS_AT + left * ROW_WORDS + word, value);
            }
        }
        self.page.store(COUNT_AT, rows as u64);
        self.page.store(SEEN_AT, self.seen.saturating_sub(gone));
        self.page.publish(MAGIC_AT, MAGIC);
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
