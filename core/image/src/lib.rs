//! Table images: the sealed, position-independent memory a switch or the fabric
//! forwards by. [`build`] writes one, [`map`] checks and reads one, [`decode`]
//! gives its tables back for people and for the proof; all over byte slices, so
//! that the proof reads the very structures that the data path walks.
//!
//! Little-endian throughout. The same tables always give the same bytes.

#[cfg(not(target_endian = "little"))]
compile_error!("table images are little-endian memory that is read as it lies");

pub mod build;
pub mod compartment;
mod container;
pub mod decode;
pub mod fabric;
mod hash;
pub mod map;
pub mod rules;

pub use build::{BuildError, CompartmentTables, FabricTables};
pub use container::{Aligned, Digest, Kind, claimed_digest, digest, kind};
pub use map::{CompartmentImage, FabricImage, MapError, MappedCompartment, MappedFabric};

#[cfg(test)]
mod tests;
