//! What a data-path process tells the world by plain stores into a page that the
//! keeper holds: counters, drop reasons by name, and the flight recorder. Readers
//! take every value as an allegation.
pub mod circuits;
pub mod counters;
pub mod crossed;
pub mod drops;
pub mod flows;
pub mod operator;
pub mod recorder;
pub mod rules;
pub mod trace;
