//! A frame that the supervisor has traced, and the page where its way is written.

use command::verbs::{TRACE_END, Trace};
use seqpacket::Fds;
use shm::{SealedImage, Words};
use telemetry::trace::{BYTES, LONGEST, MAGIC, MAGIC_AT, Record};

/// Has the frame that came with the message followed, and writes what became of it. What
/// is not well-formed is left alone, its page stays empty; so is the end of a trace.
pub fn traced(body: &Trace, fds: Fds, follow: impl FnOnce(&[u8], &mut Record)) {
    let mut fds = fds.into_iter();
    let (Some(page), Some(frame)) = (fds.next(), fds.next()) else {
        return;
    };
    let (Ok(page), Ok(frame)) = (Words::map(page, BYTES), SealedImage::map(frame)) else {
        return;
    };
    let bytes = frame.as_slice();
    if body.flags & TRACE_END != 0 || bytes.len() > LONGEST {
        return;
    }
    let mut record = Record::default();
    follow(bytes, &mut record);
    record.write(|word, value| page.store(word, value));
    page.publish(MAGIC_AT, MAGIC);
}
