//! How a program asks for the ring of a circuit: `getsockopt(fd, LEVEL, RING, &given, &length)`.

/// The level; no protocol's.
pub const LEVEL: i32 = 0x4248;
/// The option.
pub const RING: i32 = 1;
/// Bytes of the answer.
pub const GIVEN: usize = 16;

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// The number of a descriptor that the program has now: the memory. It closes on exec.
    pub number: i32,
    /// Which side it is: [`Side`](crate::Side)'s number.
    pub side: u32,
    /// Bytes of each direction.
    pub capacity: u32,
    /// [`VERSION`](crate::VERSION).
    pub version: u32,
}

impl Given {
    /// As it is told.
    #[must_use]
    pub fn to_bytes(self) -> [u8; GIVEN] {
        let words = [
            self.number.cast_unsigned(),
            self.side,
            self.capacity,
            self.version,
        ];
        let mut bytes = [0; GIVEN];
        for (place, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *place = word.to_ne_bytes();
        }
        bytes
    }

    /// As it was told.
    #[must_use]
    pub fn of(bytes: &[u8; GIVEN]) -> Given {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *word = u32::from_ne_bytes(*bytes);
        }
        let [number, side, capacity, version] = words;
        Given {
            number: number.cast_signed(),
            side,
            capacity,
            version,
        }
    }
}
