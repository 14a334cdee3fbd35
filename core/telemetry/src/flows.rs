//! Layout of a listing of connections: u64 words that a switch writes once, and whose
//! reader takes every one as an allegation.
//!
//! Word 0 is [`MAGIC`] once all is written, word 1 how many rows follow, word 2 how many
//! connections were looked at; rows of [`ROW_WORDS`] begin at word [`ROWS_AT`].

/// "BHFLOWS1": the listing is whole.
pub const MAGIC: u64 = u64::from_le_bytes(*b"BHFLOWS1");
/// Word of [`MAGIC`], written last.
pub const MAGIC_AT: usize = 0;
/// Word with the number of rows.
pub const COUNT_AT: usize = 1;
/// Word with the number of connections that were looked at.
pub const SEEN_AT: usize = 2;
/// First word of the first row.
pub const ROWS_AT: usize = 8;
/// Words of a row.
pub const ROW_WORDS: usize = 17;
/// Rows of one listing, at most.
pub const MOST: usize = 1000;

/// Bytes of a listing of so many rows.
pub const fn bytes_for(rows: usize) -> usize {
    (ROWS_AT + rows * ROW_WORDS) * 8
}

/// One side of a connection, as its packets come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// The endpoint's slot in whose bounds it is found.
    pub slot: u32,
    /// 0 inside, else the fabric tag that its packets come by.
    pub zone: u16,
    /// Source address, IPv4 in its ::ffff: form.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

/// One connection. Pairs are (from the initiator, from the responder).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The initiator's side.
    pub a: End,
    /// The responder's side.
    pub b: End,
    /// IP protocol.
    pub protocol: u8,
    /// `flow::State` as its number.
    pub state: u8,
    /// Rules that decided; `u32::MAX` = none, or the default.
    pub rules: [u32; 2],
    /// Packets on the wire.
    pub packets: [u64; 2],
    /// Bytes on the wire.
    pub bytes: [u64; 2],
    /// Nanoseconds since a packet passed.
    pub silent: u64,
}

impl Row {
    /// The row as words.
    pub fn words(&self) -> [u64; ROW_WORDS] {
        let (a, b) = (&self.a, &self.b);
        let [s1, s2] = halves(a.source);
        let [d1, d2] = halves(a.destination);
        let [s3, s4] = halves(b.source);
        let [d3, d4] = halves(b.destination);
        [
            s1,
            s2,
            d1,
            d2,
            s3,
            s4,
            d3,
            d4,
            u64::from(a.source_port)
                | u64::from(a.destination_port) << 16
                | u64::from(b.source_port) << 32
                | u64::from(b.destination_port) << 48,
            u64::from(self.protocol)
                | u64::from(self.state) << 8
                | u64::from(a.zone) << 16
                | u64::from(b.zone) << 32,
            u64::from(a.slot) | u64::from(b.slot) << 32,
            u64::from(self.rules[0]) | u64::from(self.rules[1]) << 32,
            self.packets[0],
            self.packets[1],
            self.bytes[0],
            self.bytes[1],
            self.silent,
        ]
    }

    /// From words; any are a row.
    pub fn of(words: &[u64; ROW_WORDS]) -> Row {
        let [
            s1,
            s2,
            d1,
            d2,
            s3,
            s4,
            d3,
            d4,
            ports,
            kind,
            slots,
            rules,
            rest @ ..,
        ] = *words;
        let [packets_a, packets_b, bytes_a, bytes_b, silent] = rest;
        Row {
            a: End {
                slot: slots as u32,
                zone: (kind >> 16) as u16,
                source: whole([s1, s2]),
                destination: whole([d1, d2]),
                source_port: ports as u16,
                destination_port: (ports >> 16) as u16,
            },
            b: End {
                slot: (slots >> 32) as u32,
                zone: (kind >> 32) as u16,
                source: whole([s3, s4]),
                destination: whole([d3, d4]),
                source_port: (ports >> 32) as u16,
                destination_port: (ports >> 48) as u16,
            },
            protocol: kind as u8,
            state: (kind >> 8) as u8,
            rules: [rules as u32, (rules >> 32) as u32],
            packets: [packets_a, packets_b],
            bytes: [bytes_a, bytes_b],
            silent,
        }
    }
}

fn halves(address: [u8; 16]) -> [u64; 2] {
    let all = u128::from_be_bytes(address);
    [(all >> 64) as u64, all as u64]
}

fn whole([high, low]: [u64; 2]) -> [u8; 16] {
    (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_comes_back_from_its_words() {
        let end = |n: u8| End {
            slot: u32::from(n) << 24 | 5,
            zone: u16::from(n) << 8 | 6,
            source: core::array::from_fn(|i| i as u8 + n),
            destination: core::array::from_fn(|i| i as u8 + n + 1),
            source_port: 0x8001 + u16::from(n),
            destination_port: 0xfff0 + u16::from(n),
        };
        let row = Row {
            a: end(1),
            b: end(2),
            protocol: 58,
            state: 9,
            rules: [7, u32::MAX],
            packets: [1, u64::MAX],
            bytes: [3, 4],
            silent: 5,
        };
        assert_eq!(Row::of(&row.words()), row);
        let words: [u64; ROW_WORDS] = core::array::from_fn(|i| 1 << i);
        assert_eq!(Row::of(&words).rules, [1 << 11, 0]);
    }
}
