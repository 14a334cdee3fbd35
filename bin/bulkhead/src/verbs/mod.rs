//! The verbs, by what they do.
pub mod capture;
pub mod change;
pub mod doctor;
pub mod events;
pub mod explain;
pub mod filter;
pub mod flows;
mod live;
pub mod look;
pub mod oci;
pub mod run;
pub mod run_circuits;
pub mod status;
pub mod tenants;
pub mod top;
pub mod trace;
pub mod up;
pub mod usage;
mod user;
mod wakes;

use crate::exit::{Exit, Trouble};
use serde::Serialize;

/// Of a list that has its own verb, so many.
const FEW: usize = 5;

/// The API's JSON as it is.
fn as_json<T: Serialize>(value: &T) -> Result<Exit, Trouble> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|e| Trouble::new(Exit::Failed, e.to_string(), ""))?;
    text.push('\n');
    crate::print(text.as_bytes())
}
