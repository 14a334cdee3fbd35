//! Honest drivers of both kinds, what they and the device move between them, and what
//! hostile ones can do.

mod driver;
mod fences;
mod fickle;
mod honest;
mod hostile;
mod net;
mod recovery;
mod steering;
