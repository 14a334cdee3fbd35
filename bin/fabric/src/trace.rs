//! One traced frame: decided about as any other, written down, and held back unless it is
//! to be delivered and its way is an uplink's. Toward a switch who asked hands it on.

use crate::ports::Source;
use crate::worker::Worker;
use command::verbs::{TRACE_DELIVER, Trace};
use fabric::forward::{clean, decide, may_join};
use fabric::{Decision, Egress, Frame, HEAD};
use telemetry::drops::DropReason;
use telemetry::trace::{Record, Step};
use wire::RawOffload;

impl Worker {
    /// Decides about the frame, and writes what was decided down.
    pub(crate) fn follow(&mut self, body: &Trace, bytes: &[u8], record: &mut Record) {
        let mut head = [0; HEAD];
        head.iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = *from);
        let frame = Frame {
            tag: body.tag as u16,
            offload: clean(RawOffload::default()),
            len: bytes.len(),
            head,
        };
        let drop = |reason: DropReason| Step::Dropped {
            reason: reason as u8,
        };
        let Some(image) = self.image.take() else {
            return record.push(drop(DropReason::NoImage));
        };
        let decision = decide(&image.image(), body.slot, &frame);
        match decision {
            Decision::Drop(reason) => record.push(drop(reason)),
            Decision::Group(members) => {
                let joins = |member: &&_| may_join(&image.image(), body.slot, member, &frame);
                let members = members.iter().filter(|m| joins(m).is_ok()).count();
                record.push(Step::Group {
                    members: u32::try_from(members).unwrap_or(u32::MAX),
                });
            }
            Decision::Unicast { slot, tag } => {
                let there = self.ports.descriptor(slot).is_some();
                let uplink = there && !self.ports.is_channel(slot);
                record.push(Step::Entry { slot, tag, uplink });
                let real = uplink && body.flags & TRACE_DELIVER != 0;
                let sent = match (there, real) {
                    (false, _) => Err(DropReason::PortClosed),
                    (true, false) => Ok(()),
                    (true, true) => {
                        let (_, mut to) = self.ports.ends(body.slot);
                        let sent = to.send(slot, tag, &frame, &Source::Bytes(bytes));
                        self.ports.end_batch(body.slot, &mut self.tally);
                        sent.map_err(fabric::Refused::reason)
                    }
                };
                match sent {
                    Err(reason) => record.push(drop(reason)),
                    Ok(()) => {
                        record.push(Step::Sent {
                            slot,
                            tag,
                            bytes: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
                            cut: false,
                            real,
                        });
                        record.leaves(slot, tag, bytes.len(), |into| into.copy_from_slice(bytes));
                    }
                }
            }
        }
        self.image = Some(image);
    }
}
