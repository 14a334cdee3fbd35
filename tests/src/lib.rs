//! A Bulkhead to try things on: started in private directories, ended on drop.
//! Used by the end-to-end tests in `tests/tests/` and by the bench.

pub mod fifo;
pub mod frames;
mod instance;
pub mod machine;
pub mod monitor;
mod namespace;
pub mod outside;
mod stage;
pub mod talk;
pub mod trunk;
pub mod virtio_user;

pub use instance::{Instance, patience, program};
pub use namespace::{Ended, Namespace, Said, enter, leave_to, private_folder, unique};
pub use stage::Stage;
