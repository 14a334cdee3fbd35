//! Guest memory, as the device side may touch it.

/// Memory that belongs to somebody hostile, who writes it whenever he likes.
///
/// No method gives a reference: bytes are copied in or out, words are loaded and stored
/// atomically. Offsets are those that [`GuestMemory::locate`] gave; an implementation must
/// in any case stay inside its mappings whatever it is given, reading zeroes and writing
/// nothing beyond.
pub trait GuestMemory {
    /// Where the guest's physical `address` lies, and how many bytes from there on lie
    /// behind one another, at most `len`. `None`: nowhere.
    fn locate(&self, address: u64, len: usize) -> Option<(usize, usize)>;
    /// Loads 16 bits at an even offset, acquire.
    fn load16(&self, at: usize) -> u16;
    /// Stores 16 bits at an even offset, release.
    fn store16(&self, at: usize, value: u16);
    /// Loads 64 bits at a multiple of 8, acquire.
    fn load64(&self, at: usize) -> u64;
    /// Stores 64 bits at a multiple of 8, release.
    fn store64(&self, at: usize, value: u64);
    /// Copies bytes out.
    fn read(&self, at: usize, out: &mut [u8]);
    /// Copies bytes in.
    fn write(&self, at: usize, bytes: &[u8]);
    /// A sequentially consistent fence.
    fn fence(&self);

    /// A hint that the cache line at an offset will be read, or written, soon.
    #[inline]
    fn will_use(&self, _at: usize, _writes: bool) {}

    /// Where all of a range lies, if in one piece.
    #[inline(always)]
    fn whole(&self, address: u64, len: usize) -> Option<usize> {
        self.locate(address, len)
            .filter(|(_, there)| *there == len)
            .map(|(at, _)| at)
    }
}
