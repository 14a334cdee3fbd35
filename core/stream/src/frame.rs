//! What is in the socket behind the plain bytes.

/// A token: this byte, and the low byte of the number that it answers.
pub const TOKEN: u8 = b'T';
/// Bytes of one.
pub(crate) const TOKEN_LENGTH: usize = 2;
/// A spill: this byte, how many bytes follow (four bytes, little-endian, from 1 to
/// [`LONGEST_SPILL`]), and those.
pub const SPILL: u8 = b'S';
/// Bytes of a spill at most.
pub const LONGEST_SPILL: usize = 64 << 10;
/// Bytes of the longest head.
pub(crate) const HEAD: usize = 5;

/// A frame's head, as far as it is known: what is still to be sent, or was taken so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Head {
    bytes: [u8; HEAD],
    from: usize,
    to: usize,
}

impl Head {
    pub(crate) fn token(number: u64) -> Head {
        Head {
            bytes: [TOKEN, number as u8, 0, 0, 0],
            from: 0,
            to: 2,
        }
    }

    pub(crate) fn spill(length: usize) -> Head {
        let [a, b, c, d] = (length as u32).to_le_bytes();
        Head {
            bytes: [SPILL, a, b, c, d],
            from: 0,
            to: HEAD,
        }
    }

    /// What is not sent yet.
    pub(crate) fn rest(&self) -> &[u8] {
        self.bytes.get(self.from..self.to).unwrap_or_default()
    }

    /// So many bytes more are sent.
    pub(crate) fn sent(&mut self, n: usize) {
        self.from = (self.from + n).min(self.to);
    }

    /// Bytes that were taken so far.
    pub(crate) fn taken(&self) -> usize {
        self.to
    }

    /// With these behind what was taken.
    pub(crate) fn with(mut self, more: &[u8]) -> Head {
        for (place, byte) in self.bytes.iter_mut().skip(self.to).zip(more) {
            *place = *byte;
        }
        self.to = (self.to + more.len()).min(HEAD);
        self
    }

    /// What it says.
    pub(crate) fn parse(&self) -> Parsed {
        let known = self.bytes.get(..self.to).unwrap_or_default();
        match *known {
            [TOKEN, number, ..] => Parsed::Token(number),
            [SPILL, a, b, c, d] => match u32::from_le_bytes([a, b, c, d]) as usize {
                length @ 1..=LONGEST_SPILL => Parsed::Spill(length),
                _ => Parsed::Nonsense,
            },
            [] | [TOKEN] | [SPILL, ..] => Parsed::Partial,
            _ => Parsed::Nonsense,
        }
    }
}

pub(crate) enum Parsed {
    /// More bytes are to come.
    Partial,
    Token(u8),
    Spill(usize),
    Nonsense,
}
