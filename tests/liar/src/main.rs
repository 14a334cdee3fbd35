//! `bulkhead-liar`: a switch that has been taken over.
//!
//! It is confined and accepted as an honest switch is, and then tells the fabric
//! every lie that the memory it holds lets it tell. It forwards nothing. What it
//! may be asked for is in its name or first argument: `bulkhead-liar` goes through
//! all of it, `bulkhead-liar-tag` (a link to it) or `bulkhead-liar tag` tells lies
//! about tags only; [`lies::Lie`] lists them.
//!
//! It counts what it sent in its counters page: slot 0 `TxFrames` in all, and slot
//! n `TxFrames` of the n-th kind of lie, where the page has that slot.

mod frames;
mod lies;
mod memory;
mod post;

use command::Message;
use command::verbs::Ready;
use confine::{Profile, descriptor, enter};
use lies::Liar;
use post::Post;
use seqpacket::Socket;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let control =
        descriptor(3).ok_or("descriptor 3 is not there: bulkhead-supervisor starts this")?;
    let only = lies::chosen(std::env::args())?;
    // The first look at the clock asks the kernel where its vDSO is, which the filter
    // would not allow any more.
    let _ = post::now();
    let stages = enter(Profile::Switch)?;
    let control = Socket::from_fd(control);
    control.send(
        &Message::new(
            0,
            &Ready {
                role: 1,
                stages: stages.0,
            },
        ),
        &[],
    )?;
    let mut post = Post::new(control);
    let mut liar = Liar::new(only);
    while post.receive(!liar.is_ready(&post))? {
        liar.tell(&mut post);
    }
    Ok(())
}
