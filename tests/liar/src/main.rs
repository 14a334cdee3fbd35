//! `bulkhead-liar`: a switch that has been taken over.
//!
//! It is confined and accepted as an honest switch is, and then tells the fabric
//! every lie that the memory it holds lets it tell. It forwards nothing. What it
//! may be asked for is in its name or first argument: `bulkhead-liar` goes through
//! all of it, `bulkhead-liar-tag` (a link to it) or `bulkhead-liar tag` tells lies
//! about tags only; [`lies::Lie`] lists them.
//!
//! `bulkhead-liar controller` is no switch but whoever took a controller over; see there.
//!
//! It counts what it sent in its counters page: slot 0 `TxFrames` in all, and slot
//! n `TxFrames` of the n-th kind of lie, where the page has that slot.

mod controller;
mod crossings;
mod frames;
mod lies;
mod memory;
mod post;
mod uplink;

use command::verbs::ROLE_SWITCH;
use confine::Profile;
use lies::Liar;
use post::Post;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    if words.next().is_some_and(|word| word == "controller") {
        return controller::run(words);
    }
    let only = lies::chosen(std::env::args())?;
    let control = worker::start(Profile::Switch, ROLE_SWITCH)?;
    let mut post = Post::new(control);
    let mut liar = Liar::new(only);
    while post.receive(!liar.is_ready(&post))? {
        liar.tell(&mut post);
    }
    Ok(())
}
